//! Controllers as processes under faults: their answers are linearizable. Controllers store the desired state of a
//! fabric, each change with a new version. A history records requests, answers and the messages to followers, the nodes
//! that receive the desired state. Tests with controllers are skipped without the right to create
//! namespaces, and the one over etcd also without etcd.
#![allow(clippy::unwrap_used, reason = "a test")]

mod processes;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use wedjat_testbed::demo::fabric::controllers::has_etcd;
use wedjat_testbed::histories::cluster::lacks_namespaces;

/// Runs `wedjat-testbed histories`.
fn histories(arguments: &[&str]) -> Output {
    let mut command = processes::command("wedjat-testbed");
    command.arg("histories").args(arguments).output().unwrap()
}

/// Runs three controllers over etcd, or one with a file. Asserts that the history and its file have no violation.
/// Returns the report, or `None` if the machine cannot run them.
fn run(store: &str, faults: &str, seconds: &str) -> Option<Value> {
    if let Some(reason) = lacks_namespaces() {
        eprintln!("SKIPPED: {reason}");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let wedjat = processes::command("wedjat").get_program().to_owned();
    let output = histories(&[
        "--store",
        store,
        "--faults",
        faults,
        "--seconds",
        seconds,
        "--lease",
        "3",
        "--seed",
        "3",
        "--format",
        "json",
        "--report",
        report.to_str().unwrap(),
        "--wedjat",
        wedjat.to_str().unwrap(),
    ]);
    let printed = String::from_utf8_lossy(&output.stderr);
    let value: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{printed}"));
    let shown = serde_json::to_string_pretty(&value).unwrap();
    assert_eq!(value["violations"], Value::Array(Vec::new()), "{shown}\n{printed}");
    assert!(output.status.success(), "{shown}\n{printed}");
    assert_reconnected(&report.join("history.jsonl"));
    // The file holds the checked history.
    let again = check(&report.join("history.jsonl"));
    assert!(again.status.success(), "{again:?}");
    Some(value)
}

/// Asserts that a process of a follower received the first messages of two connections. Otherwise the run
/// would not test that a follower never goes back to an older version.
fn assert_reconnected(file: &Path) {
    let history = std::fs::read_to_string(file).unwrap();
    let lines = history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let updates = lines.filter_map(|line| line.get("update").cloned());
    // Only the first message of a connection has the time of its request.
    let firsts = updates.filter(|update| update["asked_ns"].is_u64());
    let mut connections = BTreeMap::<u64, u32>::new();
    for first in firsts {
        *connections.entry(first["process"].as_u64().unwrap()).or_default() += 1;
    }
    assert!(connections.values().any(|count| *count > 1), "{connections:?}");
}

/// Checks a history file with the command, which does the same after a run. Returns its output.
fn check(file: &Path) -> Output {
    histories(&["--check", file.to_str().unwrap()])
}

/// Asserts that these faults happened, and that requests and messages were recorded.
fn assert_has(value: &Value, faults: &[&str]) {
    for fault in faults {
        assert!(value["faults"][fault].as_u64() > Some(0), "{fault}: {value}");
    }
    for outcome in ["reads", "changes acknowledged"] {
        assert!(value["operations"][outcome].as_u64() > Some(0), "{outcome}: {value}");
    }
    assert!(value["updates"].as_u64() > Some(0), "{value}");
}

#[test]
fn controllers_over_etcd_are_linearizable_under_faults() {
    if !has_etcd() {
        eprintln!("SKIPPED: etcd is not installed; scripts/deps.sh test installs it where it can");
        return;
    }
    let Some(value) = run("etcd", "kill,pause,cut", "18") else { return };
    assert_has(&value, &["kill", "pause", "cut"]);
}

#[test]
fn controller_with_file_is_linearizable_under_faults() {
    let Some(value) = run("file", "kill,pause,full", "9") else { return };
    // The plan may have no room for a pause, which takes up to 2.4 leases of 3 s.
    assert_has(&value, &["kill", "full"]);
}

#[test]
fn history_with_stale_read_fails() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("history.jsonl");
    // A line of the file: an operation of a client, from its request to its answer.
    let operation = |(began, ended), request: &str, answer: &str| {
        format!(
            r#"{{"operation":{{"client":1,"controller":2,"began_ns":{began},"ended_ns":{ended},"request":{request},"answer":{answer}}}}}"#
        )
    };
    let leaf = r#"{"made":"10.0.0.1","set":[["Failed",0]]}"#;
    let change = format!(r#""key":["Leaf",7],"change":{{"Add":{leaf}}},"if_version":null"#);
    let add = format!(r#"{{"Command":{{"text":"add-leaf id=7 ip=10.0.0.1",{change}}}}}"#);
    let read = |version: u64, state| {
        format!(r#"{{"State":{{"term":1,"version":{version},"state":{state}}}}}"#)
    };
    // A file lists each state of the fabric before the operations that refer to it: an empty one, one with
    // leaf 7, its addition (version 1), and a read that returns it.
    let begin = [
        r#"{"state":[]}"#.to_owned(),
        format!(r#"{{"state":[[["Leaf",7],{leaf}]]}}"#),
        operation((10, 20), &add, r#"{"Done":{"version":1}}"#),
        operation((30, 40), r#""Read""#, &read(1, 1)),
    ];
    let write = |lines: &[String]| std::fs::write(&file, lines.join("\n")).unwrap();
    write(&begin);
    let output = check(&file);
    assert!(output.status.success(), "{output:?}");
    // A later read returns the empty state of version 0.
    let stale = operation((50, 60), r#""Read""#, &read(0, 0));
    write(&[&begin[..], &[stale]].concat());
    let output = check(&file);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("VIOLATED: leaf 7 is not linearizable"), "{printed}");
    assert!(
        printed.contains("version 0 answers a request that began after version 1"),
        "{printed}"
    );
}

#[test]
fn unsuitable_or_unknown_faults_are_refused() {
    for (arguments, reason) in [
        (["--store", "file", "--faults", "cut"], "cut is not a fault for --store file"),
        (
            ["--store", "file", "--faults", "flood"],
            "unknown fault `flood`; choose from kill, pause",
        ),
    ] {
        let output = histories(&arguments);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains(reason), "{printed}");
    }
}
