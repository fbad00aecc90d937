//! A whole fabric in emulated time, of which parts are killed, cut off, added and drained: what each costs is told, and within bounds.
#![cfg(feature = "control")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;
use std::sync::atomic::AtomicBool;

use serde_json::Value;
use wedjat_testbed::demo::fabric::controllers::has_etcd;
use wedjat_testbed::demo::fabric::{self, Real, Report, Setting};

const EVENTS: [&str; 10] = [
    "a leaf is killed",
    "it is started anew",
    "the spine is killed",
    "a link of spine and leaf is cut",
    "it is mended",
    "the leading controller stands still",
    "the one that leads now is killed",
    "a member of etcd is killed",
    "a rack is added",
    "a rack is drained",
];
/// Those that happen to controllers.
const REAL: std::ops::Range<usize> = 5..8;

fn report(seed: u64, spine: &str, leaf: &str) -> Report {
    let setting = Setting {
        spine: spine.parse().unwrap(),
        leaf: leaf.parse().unwrap(),
        service: "exp(2ms)".to_owned(),
        load: 0.4,
        seed,
        real: Real::None,
        wedjat: None,
    };
    fabric::run(&setting, &AtomicBool::default()).unwrap()
}

#[test]
fn every_event_is_over_within_its_bound_and_what_it_costs_is_counted() {
    for (seed, spine, leaf) in [
        (1, "horus-spine-weighted", "horus"),
        (2, "random", "racksched"),
        (3, "racksched", "jbsq(k=2)"),
    ] {
        let report = report(seed, spine, leaf);
        let told = fabric::table(&report.rows);
        assert_eq!(report.outcome.violations, [], "{told}");
        assert_eq!(report.rows.iter().map(|row| row.event).collect::<Vec<_>>(), EVENTS);
        assert!(report.holds(), "{told}");
        for (number, row) in report.rows.iter().enumerate() {
            let has_run = !REAL.contains(&number);
            assert_eq!(row.holds, has_run.then_some(true), "{told}");
            assert_eq!(row.recovered_ms.is_some(), has_run, "{told}");
        }
        let lost = |number: usize| report.rows[number].lost;
        // Killing a leaf and its spine, and cutting a link, costs what was under way; nothing else does.
        assert!(lost(0) > 0 && lost(2) > 0 && lost(3) > 0, "{told}");
        assert_eq!([1, 4, 5, 6, 7, 8, 9].map(lost), [0; 7], "{told}");
        // What is silent for three heartbeats is so for 20 ms at least.
        assert!(report.rows[0].recovered_ms > Some(20.0), "{told}");
        let all: u64 = report.outcome.lost.values().sum();
        assert_eq!(report.outcome.tasks, report.outcome.answered + report.outcome.refused + all);
    }
}

#[test]
fn a_loss_that_no_event_explains_and_a_bound_that_does_not_hold_are_told() {
    let whole = report(1, "horus-spine", "horus");
    assert!(whole.holds());
    let mut late = whole.clone();
    late.rows[0].holds = Some(false);
    assert!(!late.holds());
    let mut more = whole;
    more.rows[0].lost -= 1;
    assert!(!more.holds());
}

fn command(arguments: &[&str]) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat-testbed"));
    command.args(["fabric", "--format", "json", "--service", "exp(2ms)", "--load", "0.3"]);
    let output = command.arg("--report").arg(folder.path()).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!(output.status.success(), value["holds"] == true, "{said}");
    let written = std::fs::read_to_string(folder.path().join("fabric.json")).unwrap();
    assert_eq!(written.parse::<Value>().unwrap(), value);
    (value, std::fs::read_to_string(folder.path().join("index.html")).unwrap())
}

#[test]
fn the_command_writes_rows_and_a_page_that_stands_alone() {
    let (value, page) = command(&["--controllers", "none", "--seed", "5"]);
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), EVENTS.len());
    for key in ["event", "at_ms", "lost", "recovered_ms", "bound_ms", "holds"] {
        assert!(rows.iter().all(|row| row.get(key).is_some()), "{key}");
    }
    assert!(rows[5]["note"].as_str().unwrap().contains("not run: etcd"));
    assert_eq!(page.matches("<tr").count(), EVENTS.len() + 1);
    assert!(page.contains("<svg") && !page.contains("NaN"));
    for outside in ["<script", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(command(&["--controllers", "none", "--seed", "5"]).0, value);
}

#[test]
fn controllers_over_etcd_take_over_and_come_to_the_same_versions() {
    if !has_etcd() {
        eprintln!("SKIPPED: etcd is not installed; scripts/deps.sh test installs it where it can");
        return;
    }
    let (value, _) = command(&["--controllers", "etcd", "--seed", "5"]);
    let rows = value["rows"].as_array().unwrap();
    // How fast they do so is not asserted here.
    assert!(
        rows[REAL].iter().all(|row| row["recovered_ms"].is_number() && row["lost"] == 0),
        "{value}"
    );
    assert_eq!(value["violations"], 0);
    // What is decided does not depend on who keeps it.
    assert_eq!(value["digest"], command(&["--controllers", "none", "--seed", "5"]).0["digest"]);
}
