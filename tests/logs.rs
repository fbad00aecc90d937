//! Output of a running leaf: its log as text or JSON, DPDK's log lines in it, and filtered lines. A leaf logs its rates
//! each second, and its account (all packets and tasks by port, pool and drop reason) at the end. As text, both go to
//! standard output, and as JSON to the log on standard error.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod frames;
mod process;
mod running;
mod timeouts;

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use process::{ChildProcess, log_of};
use running::*;

/// Runs a leaf for longer than its reporting interval of a second. Returns its standard output and standard error.
fn run(arguments: &[&str], rust_log: Option<&str>) -> (String, String) {
    let home = Home::new();
    let mut leaf = home.leaf(arguments);
    leaf.envs(rust_log.map(|filter| ("RUST_LOG", filter)));
    let leaf = home.start(leaf);
    std::thread::sleep(Duration::from_millis(1500));
    leaf.ended_by("-TERM");
    let [stdout, stderr] = home.output();
    (stdout, stderr)
}

/// Parses a log in JSON, one record per line.
fn records(log: &str) -> Vec<Value> {
    log.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect()
}

/// Returns the messages of the records with this target.
fn messages<'a>(records: &'a [Value], target: &str) -> Vec<&'a str> {
    let has_target = |record: &&Value| record["target"] == target;
    records.iter().filter(has_target).map(|record| record["message"].as_str().unwrap()).collect()
}

// promise: control.3
#[test]
fn json_log_has_every_record() {
    let (stdout, stderr) = run(&["--log-format", "json"], None);
    assert_eq!(stdout, "");
    let records = records(&stderr);
    for record in &records {
        let keys: Vec<_> = record.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["level", "message", "target", "time"], "{record}");
        assert!(record["time"].as_str().unwrap().ends_with('Z'), "{record}");
    }
    assert!(
        messages(&records, "wedjat::run::leaf")
            .iter()
            .any(|text| text.contains("leaf 1 runs on 1 core "))
    );
    assert!(messages(&records, "rates").iter().all(|text| text.contains("k/s")));
    assert!(!messages(&records, "rates").is_empty());
    assert!(
        matches!(messages(&records, "account")[..], [text] if text.contains("ledger:") && text.contains('\n'))
    );
}

/// Returns true for a record with a warning about a stalled or shared CPU, like [`is_of_the_machine`].
fn is_of_starvation(record: &Value) -> bool {
    is_of_the_machine(record["message"].as_str().unwrap())
}

/// Returns true for a warning about a stalled machine, or about another test's node on the same CPU.
fn is_of_the_machine(line: &str) -> bool {
    let warnings = ["cores did not poll", "the dispatcher core has", "polls it, too"];
    warnings.iter().any(|warning| line.contains(warning))
}

// promise: control.3
#[test]
fn dpdk_log_lines_join_the_log() {
    let more =
        ["--log-format", "json", "--", "--log-level=lib.eal:debug", "--log-level=lib.ethdev:debug"];
    let (stdout, stderr) = run(&more, Some("warn,dpdk=debug"));
    assert_eq!(stdout, "");
    let records = records(&stderr);
    let from_dpdk = messages(&records, "dpdk");
    assert!(
        !from_dpdk.is_empty() && from_dpdk.iter().all(|line| !line.ends_with('\n')),
        "{from_dpdk:?}"
    );
    // Lines captured while EAL starts lose their levels. Lines that EAL logs at its end keep theirs.
    assert!(
        records.iter().any(|record| record["target"] == "dpdk" && record["level"] == "debug"),
        "{stderr}"
    );
    assert!(
        records.iter().all(|record| record["target"] == "dpdk" || is_of_starvation(record)),
        "the filter is RUST_LOG's: {stderr}"
    );
}

// promise: control.3
#[test]
fn a_quiet_leaf_gives_its_account_only() {
    let (stdout, stderr) = run(&["--quiet"], Some("debug"));
    assert!(stdout.starts_with("ledger:") && !stdout.contains("k/s"), "{stdout}");
    // Lines of the leaf itself; warnings about the machine are allowed.
    let is_of_leaf = |line: &&str| !is_of_the_machine(line);
    assert_eq!(stderr.lines().find(is_of_leaf), None);
    let (stdout, stderr) = run(&["--quiet", "--log-format", "json"], None);
    assert_eq!(stdout, "");
    let stderr: String =
        stderr.lines().filter(is_of_leaf).map(|line| format!("{line}\n")).collect();
    assert!(matches!(&records(&stderr)[..], [record] if record["target"] == "account"), "{stderr}");
    let (stdout, stderr) = run(&[], None);
    assert!(
        stdout.contains("k/s") && stderr.contains("INFO") && stderr.contains("leaf 1 runs"),
        "{stdout}{stderr}"
    );
}

// promise: control.3
#[test]
fn failing_leaf_logs_in_the_same_format() {
    let home = Home::new();
    fs::write(home.path("leaf.toml"), "[leaf]\nid = 1\ncores = []\n").unwrap();
    let status = home.leaf(&["--log-format", "json"]).status().unwrap();
    assert_eq!(status.code(), Some(1));
    let records = records(&home.output()[1]);
    let last = records.last().unwrap();
    assert!(
        last["level"] == "error" && last["message"].as_str().unwrap().contains("leaf.toml"),
        "{last}"
    );
}

#[test]
fn inherited_standard_error_is_no_log_of_node() {
    let home = tempfile::tempdir().unwrap();
    // Starts a process whose standard error is this file.
    let start = |file: &std::path::Path| {
        let file = fs::File::options().create(true).append(true).open(file).unwrap();
        ChildProcess::start(Command::new("sleep").arg("60").stderr(file))
    };
    let log = home.path().join("log");
    let [node, same, other] = [&log, &log, &home.path().join("other")].map(|file| start(file));
    assert_eq!(log_of(node.id(), other.id()), Some(log));
    assert_eq!(log_of(node.id(), same.id()), None);
}
