//! A leaf under a service manager: its messages on the notification socket (protocol of sd_notify(3)). Also checks the
//! systemd units in share/systemd.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod frames;
mod process;
mod running;
mod timeouts;

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

use running::*;
use timeouts::*;

// promise: running.1
#[test]
fn leaf_reports_ready_alive_and_stopping() {
    let home = Home::new();
    let manager = UnixDatagram::bind(home.path("manager")).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    // Returns the next message of the leaf.
    let receive = || {
        let mut text = [0; 1024];
        let len = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..len]).into_owned()
    };
    let mut leaf = home.leaf(&[]);
    // The manager expects a heartbeat at least every 300 ms.
    leaf.env("NOTIFY_SOCKET", home.path("manager")).env("WATCHDOG_USEC", "300000");
    let leaf = home.start(leaf);
    assert_eq!(receive(), "READY=1");
    let mut received = Vec::new();
    let count = |received: &[String], start: &str| {
        received.iter().filter(|text| text.starts_with(start)).count()
    };
    while count(&received, "WATCHDOG=1") < 5 || count(&received, "STATUS=") < 1 {
        received.push(receive());
    }
    // The status has the rates of packets.
    assert!(received.iter().any(|text| text.contains("k/s")), "{received:?}");
    leaf.signal("-TERM");
    while received.last().unwrap() != "STOPPING=1" {
        received.push(receive());
    }
    drop(leaf);
    assert!(!received.contains(&"READY=1".to_owned()), "once only: {received:?}");
}

/// Checks the units with the tested program in place of the installed one, because `systemd-analyze verify`
/// requires that it exists.
// promise: running.1
#[test]
fn systemd_accepts_the_units() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("share/systemd");
    let folder = tempfile::tempdir().unwrap();
    let mut units = Vec::new();
    for role in ["leaf", "agent", "spine", "controller"] {
        let name = format!("wedjat-{role}@.service");
        let unit = std::fs::read_to_string(source.join(&name)).unwrap();
        assert!(unit.contains(&format!("ExecStart=@PREFIX@/bin/wedjat {role} ")), "{unit}");
        // A controller reads its file only at its start.
        let reloads = unit.contains("\nExecReload=/bin/kill -HUP $MAINPID\n");
        assert_eq!(reloads, role != "controller", "{unit}");
        let unit = unit.replace("@PREFIX@/bin/wedjat ", &format!("{WEDJAT} "));
        let path = folder.path().join(name.replace('@', "@rack1"));
        std::fs::write(&path, unit).unwrap();
        units.push(path);
    }
    let mut verify = Command::new("systemd-analyze");
    let Ok(output) = verify.args(["verify", "--man=no"]).args(&units).output() else {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: the units need systemd-analyze (Debian: systemd)"
        );
        return;
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    // Warnings name the unit.
    assert!(output.status.success() && !stderr.contains("wedjat-"), "{stderr}");
}
