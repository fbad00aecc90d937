//! Runs the shell commands of docs/tutorials/first-tasks.md in network namespaces, with kernel sockets as client and
//! worker.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod patience;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use wedjat::state::Table;
use wedjat::state::table::Spec;

use patience::LIFETIME;

/// Returns the page's shell commands, in order.
fn commands(page: &str) -> String {
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.collect()
}

/// Returns the reason why namespaces or raw sockets are unavailable, if any.
fn obstacle() -> Option<String> {
    let name = format!("wedjat-try-{}", std::process::id());
    for tool in ["ip", "ss", "python3"] {
        if Command::new(tool).arg("-V").output().is_err() {
            return Some(format!("{tool} is not installed"));
        }
    }
    let ip = |arguments: &[&str]| Command::new("ip").args(arguments).output().unwrap();
    let told = |output: &Output| String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let made = ip(&["netns", "add", &name]);
    if !made.status.success() {
        return Some(format!("no network namespace can be made: {}", told(&made)));
    }
    let pair = ip(&["-n", &name, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1"]);
    ip(&["netns", "del", &name]);
    (!pair.status.success()).then(|| format!("no veth interfaces can be made: {}", told(&pair)))
}

/// Removes the leftovers of an interrupted page.
struct Cleanup;

impl Drop for Cleanup {
    fn drop(&mut self) {
        for host in ["client", "leaf", "worker"] {
            let name = format!("wedjat-{host}");
            let pids = Command::new("ip").args(["netns", "pids", &name]).output().unwrap();
            for pid in String::from_utf8_lossy(&pids.stdout).split_whitespace() {
                let _ = Command::new("kill").args(["-KILL", pid]).status();
            }
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

// promise: ports.1
#[test]
fn page_commands_work() {
    if let Some(obstacle) = obstacle() {
        // Written directly to standard error, because the output of passing tests is hidden.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: docs/tutorials/first-tasks.md needs root's rights: {obstacle}"
        );
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/tutorials/first-tasks.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root.join("examples"), folder.path().join("examples")).unwrap();
    let bin = Path::new(env!("CARGO_BIN_EXE_wedjat")).parent().unwrap();
    let path = std::env::join_paths(
        [bin.to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    // A state file left by an earlier run.
    let old = Spec { node: 1, cores: 1, ports: 2, ..Spec::default() };
    drop(Table::create(Path::new("/dev/shm/wedjat-first"), &old).unwrap());
    // The page's wait condition must reject the old file.
    let waits = page.lines().find_map(|line| line.strip_prefix("until wedjat state")).unwrap();
    let condition = format!("wedjat state{}", waits.split("; do").next().unwrap());
    let mut shell = Command::new("bash");
    shell.args(["-uc", &condition]).current_dir(folder.path()).env("leaf", "1");
    let is_met = shell.env("PATH", path.as_ref().unwrap()).status().unwrap();
    assert!(!is_met.success(), "{condition} is met by an old state file");
    let _cleanup = Cleanup;
    let mut shell = Command::new("timeout");
    shell.args([LIFETIME, "bash", "-euc", &commands(&page)]);
    shell.current_dir(folder.path()).env("PATH", path.as_ref().unwrap());
    let output = shell.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let all = format!("{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{all}");
    let promised = page.split("It prints `").nth(1).unwrap().split('`').next().unwrap();
    assert!(said.lines().any(|line| line.starts_with(promised)), "{promised:?} is not in {all}");

    let account = fs::read_to_string(folder.path().join("leaf.json")).unwrap();
    let account: Value = serde_json::from_str(&account).unwrap();
    assert_eq!((&account["scheduled"], &account["replies"]), (&100.into(), &100.into()));
    assert_eq!(account["balanced"], true, "{account}");
    for port in account["ports"].as_array().unwrap() {
        assert!(port["rx_partial"].as_u64() >= Some(100), "{port}");
        assert_eq!(port["rx_missed"], 0, "{port}");
    }
    for reason in ["udp_checksum", "ipv4_checksum", "neighbour_queue_full"] {
        assert!(account["drops"].get(reason).is_none(), "{account}");
    }
}
