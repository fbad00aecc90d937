//! Resources that the system refuses, or that a run must release: file descriptors, disk space, hugepages.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod frames;
mod hugepages;
mod process;
mod running;
mod timeouts;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;

use hugepages::Hugepages;
use process::ChildProcess;
use running::{Home, WEDJAT};
use timeouts::wait_until;

/// Returns the lowest free descriptor number of a process.
fn next_descriptor(process: u32) -> u64 {
    let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let numbers: BTreeSet<u64> =
        open.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    (0..).find(|number| !numbers.contains(number)).unwrap()
}

// promise: control.3
#[test]
fn a_leaf_without_descriptors_logs_one_line() {
    let home = Home::new();
    let leaf = home.start(home.leaf(&[]));
    let own = getrlimit(Resource::Nofile);
    let limit = |current| {
        let limit = Rlimit { current, ..own };
        prlimit(Pid::from_raw(leaf.id() as i32), Resource::Nofile, limit).unwrap();
    };
    // The leaf can open no further descriptor.
    limit(Some(next_descriptor(leaf.id())));
    let mut socket = home.state().into_os_string();
    socket.push(".ctl");
    let _client = UnixStream::connect(&socket).unwrap();
    let log = || {
        let [_, stderr] = home.output();
        stderr
    };
    let lines = || log().matches("cannot accept connections").count();
    wait_until("the log has the error", || lines() > 0);
    assert!(log().contains("ulimit -n"), "{}", log());
    // Time of about ten retries of the leaf. It logs the error once, not at each retry.
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(lines(), 1, "{}", log());
    limit(own.current);
    let mut show = Command::new(WEDJAT);
    show.args(["ctl", "--node"]).arg(home.state()).arg("show").stdout(Stdio::null());
    wait_until("the leaf can be reached again", || show.status().unwrap().success());
    leaf.ended_by("-TERM");
}

/// `--stats` names the file of the account: the leaf's packet ledger, which it writes at its end as JSON.
// promise: input.3
#[test]
fn a_report_appears_whole_at_the_end() {
    let home = Home::new();
    let stats = home.path("stats.json");
    fs::write(&stats, "the previous account").unwrap();
    let mut command = home.leaf(&["--stats"]);
    command.arg(&stats);
    let leaf = home.start(command);
    assert_eq!(fs::read_to_string(&stats).unwrap(), "the previous account");
    leaf.ended_by("-TERM");
    let account: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    assert_eq!(account["balanced"], true);

    // A symbolic link is refused, and its target stays unchanged.
    let link = home.path("link");
    symlink(&stats, &link).unwrap();
    let before = fs::read(&stats).unwrap();
    let mut command = home.leaf(&["--stats"]);
    let refused = command.arg(&link).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("a symbolic link"), "{text}");
    assert_eq!(fs::read(&stats).unwrap(), before);
}

/// A file system of a few pages, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// Mounts the file system. Returns `None` if the mount fails, as for any user except root.
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(folder.path());
        let mounted = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        mounted.then_some(Self(folder))
    }

    /// Writes a file until no space is left.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.path().join("filler")).unwrap();
        while file.write_all(&[1; 512]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

// promise: input.3
#[test]
fn a_full_disk_leaves_the_previous_report() {
    let Some(disk) = SmallDisk::mount() else {
        println!("SKIPPED: only root may mount a small disk");
        return;
    };
    let home = Home::new();
    let stats = disk.0.path().join("stats.json");
    fs::write(&stats, "the previous account").unwrap();
    let mut command = home.leaf(&["--stats"]);
    command.arg(&stats);
    let leaf = home.start(command);
    disk.fill();
    let ended = leaf.end("-TERM");
    assert!(!ended.status.success(), "the missing account is an error");
    let [_, stderr] = home.output();
    assert!(stderr.contains("--stats") && stderr.contains("make room"), "{stderr}");
    assert_eq!(fs::read_to_string(&stats).unwrap(), "the previous account");
    let left: Vec<_> = fs::read_dir(disk.0.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "the report and the filler: {left:?}");
}

// promise: running.1
#[test]
fn an_exit_leaves_no_hugepage_file() {
    // 48 hugepages of 2 MiB; EAL takes 64 MiB.
    let Some(pages) = Hugepages::reserve(48) else {
        println!("SKIPPED: this system gives no hugepages");
        return;
    };
    let files = || fs::read_dir(pages.folder()).unwrap().count();
    // Adds arguments for EAL: 64 MiB of memory from the hugetlbfs in `folder`.
    let with_pages = |command: &mut Command, folder: &Path| {
        command.args(["--", "--no-pci", "-m", "64", "--huge-dir"]).arg(folder);
    };
    let home = Home::new();
    for more in [&[][..], &["--file-prefix", "wedjat-of-a-test"]] {
        let mut command = home.leaf(&[]);
        with_pages(&mut command, pages.folder());
        let leaf = home.start({
            command.args(more);
            command
        });
        let [_, stderr] = home.output();
        assert!(files() > 0, "EAL has no hugepage: {stderr}");
        leaf.ended_by("-TERM");
        assert_eq!(files(), 0, "{more:?}");
        fs::remove_file(home.state()).unwrap();
    }
    // The leaf also removes the files when it fails, after the start of EAL or inside it.
    let text = fs::read_to_string(home.path("leaf.toml")).unwrap();
    fs::write(home.path("leaf.toml"), text.replace("net_pcap0,", "net_pcap0,rx_pcap=/nowhere,"))
        .unwrap();
    // Checks that the leaf fails, and leaves no hugepage file.
    let fails = |more: &[&str]| {
        let mut command = home.leaf(&[]);
        with_pages(&mut command, pages.folder());
        assert!(!ChildProcess::start(command.args(more)).output().status.success());
        let [_, stderr] = home.output();
        assert_eq!(files(), 0, "{more:?}: {stderr}");
    };
    // The driver cannot open the capture of the port's device.
    fails(&[]);
    // No driver has the name of the port's device.
    fs::write(home.path("leaf.toml"), text.replace("net_pcap0,", "net_nothing0,")).unwrap();
    fails(&[]);
    fs::write(home.path("leaf.toml"), text).unwrap();
    // No driver has the name of an additional device in EAL's arguments.
    fails(&["--vdev", "net_nothing0"]);
}
