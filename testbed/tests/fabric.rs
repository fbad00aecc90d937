//! A whole fabric in emulated time, in which parts are killed, cut off, added and drained. The report names
//! the cost of each event, and each cost is within its bound.
//!
//! Spines spread tasks over leaves, which schedule the workers of their racks. A controller stores the desired state of
//! all nodes. Controllers may also run as real processes beside the emulated fabric, which share an etcd.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../tests/golden/mod.rs"]
mod golden;

use std::process::Command;
use std::sync::atomic::AtomicBool;

use serde_json::Value;
use wedjat_testbed::demo::fabric::controllers::has_etcd;
use wedjat_testbed::demo::fabric::{self, RealControllers, Report, Setting, page};

/// Events of every run, in their order.
const EVENTS: [&str; 10] = [
    "a leaf is killed",
    "the leaf is restarted",
    "the spine is killed",
    "a link from spine to leaf is cut",
    "the link is restored",
    "the leading controller is stopped",
    "the new leader is killed",
    "a member of etcd is killed",
    "a rack is added",
    "a rack is drained",
];
/// Indices of the events that concern controllers. They need controller processes, and do not run without.
const REAL: std::ops::Range<usize> = 5..8;

/// Runs the fabric without controller processes.
fn report(seed: u64, spine: &str, leaf: &str) -> Report {
    let setting = Setting {
        spine: spine.parse().unwrap(),
        leaf: leaf.parse().unwrap(),
        service: "exp(2ms)".to_owned(),
        load: 0.4,
        seed,
        real: RealControllers::None,
        wedjat: None,
    };
    fabric::run(&setting, &AtomicBool::default()).unwrap()
}

// promise: fabric.3
#[test]
fn every_event_ends_within_its_bound() {
    for (seed, spine, leaf) in [
        (1, "horus-spine-weighted", "horus"),
        (2, "random", "racksched"),
        (3, "racksched", "jbsq(k=2)"),
    ] {
        let report = report(seed, spine, leaf);
        let rows_text = fabric::table(&report.rows);
        assert_eq!(report.outcome.violations, [], "{rows_text}");
        assert_eq!(report.rows.iter().map(|row| row.event).collect::<Vec<_>>(), EVENTS);
        assert!(report.holds(), "{rows_text}");
        for (number, row) in report.rows.iter().enumerate() {
            let has_run = !REAL.contains(&number);
            assert_eq!(row.holds, has_run.then_some(true), "{rows_text}");
            assert_eq!(row.recovered_ms.is_some(), has_run, "{rows_text}");
        }
        let lost = |number: usize| report.rows[number].lost;
        // Killing a leaf, killing the spine and cutting a link lose the tasks in flight. No other event loses
        // a task.
        assert!(lost(0) > 0 && lost(2) > 0 && lost(3) > 0, "{rows_text}");
        assert_eq!([1, 4, 5, 6, 7, 8, 9].map(lost), [0; 7], "{rows_text}");
        // A node counts as silent after three heartbeats, thus after at least 20 ms.
        assert!(report.rows[0].recovered_ms > Some(20.0), "{rows_text}");
        let all: u64 = report.outcome.lost.values().sum();
        assert_eq!(report.outcome.tasks, report.outcome.answered + report.outcome.refused + all);
    }
}

#[test]
fn report_equals_the_golden_file() {
    let report = report(1, "horus-spine-weighted", "horus");
    let page = page::page(&report).unwrap();
    let (before, rest) = page.split_once("<svg").unwrap();
    let (_, after) = rest.split_once("</svg>").unwrap();
    let (_, body) = before.split_once("<body").unwrap();
    let text = format!("{}\n<body{body}PLOT{after}\n", fabric::table(&report.rows));
    golden::assert_golden("fabric.txt", &text);
}

// promise: emulated-time.2
#[test]
fn unexplained_losses_and_missed_bounds_are_reported() {
    let whole = report(1, "horus-spine", "horus");
    assert!(whole.holds());
    let mut late = whole.clone();
    late.rows[0].holds = Some(false);
    assert!(!late.holds());
    // The run lost one task more than its events explain now.
    let mut unexplained = whole;
    unexplained.rows[0].lost -= 1;
    assert!(!unexplained.holds());
}

/// Runs `wedjat-testbed fabric`, and checks its exit status and its files. Returns its JSON and its page.
fn command(arguments: &[&str]) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat-testbed"));
    command.args(["fabric", "--format", "json", "--service", "exp(2ms)", "--load", "0.3"]);
    let output = command.arg("--report").arg(folder.path()).args(arguments).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    let value: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{printed}"));
    assert_eq!(output.status.success(), value["holds"] == true, "{printed}");
    let written = std::fs::read_to_string(folder.path().join("fabric.json")).unwrap();
    assert_eq!(written.parse::<Value>().unwrap(), value);
    (value, std::fs::read_to_string(folder.path().join("index.html")).unwrap())
}

#[test]
fn command_writes_rows_and_a_page() {
    let (value, page) = command(&["--controllers", "none", "--seed", "5"]);
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), EVENTS.len());
    for key in ["event", "at_ms", "lost", "recovered_ms", "bound_ms", "holds"] {
        assert!(rows.iter().all(|row| row.get(key).is_some()), "{key}");
    }
    assert!(rows[5]["note"].as_str().unwrap().contains("not run: needs etcd"));
    assert_eq!(page.matches("<tr").count(), EVENTS.len() + 1);
    assert!(page.contains("<svg") && !page.contains("NaN"));
    for outside in ["<script", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(command(&["--controllers", "none", "--seed", "5"]).0, value);
}

// promise: controller.3
#[test]
fn etcd_controllers_take_over_with_equal_versions() {
    if !has_etcd() {
        eprintln!("SKIPPED: etcd is not installed; scripts/deps.sh test installs it where it can");
        return;
    }
    let (value, _) = command(&["--controllers", "etcd", "--seed", "5"]);
    let rows = value["rows"].as_array().unwrap();
    // The time of a takeover is not asserted here.
    assert!(
        rows[REAL].iter().all(|row| row["recovered_ms"].is_number() && row["lost"] == 0),
        "{value}"
    );
    assert_eq!(value["violations"], 0);
    // Decisions do not depend on the store of the desired state.
    assert_eq!(value["digest"], command(&["--controllers", "none", "--seed", "5"]).0["digest"]);
}
