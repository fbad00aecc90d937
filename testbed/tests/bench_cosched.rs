//! `bench-cosched` in a small run: it measures and counts everything. The results themselves are not
//! asserted. It runs a batch job beside a worker under several ways to limit the batch (arms), in windows of
//! time. Bars are required values. A window is discarded if threads of other programs took too much CPU time in it.
//! The objective is an upper bound of a percentile of the worker's response times. A window with a higher
//! percentile violates it.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use wedjat_cosched::mechanism::{Group, Hierarchies, Limits, Scheduling};

const TESTBED: &str = env!("CARGO_BIN_EXE_wedjat-testbed");
/// All arms, in the order of the rows.
const ARMS: [&str; 9] =
    ["none", "static", "shares", "idle", "guard", "aimd", "asax-paper", "asax-iw", "asax-balanced"];

/// Returns the reason why this machine cannot run the measurement: too few CPUs, no right to create a cgroup,
/// or none to real-time priority.
fn missing_requirement() -> Option<String> {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return Some("it needs two CPUs".to_owned());
    }
    let hierarchies = Hierarchies::of_this_machine();
    if hierarchies.folders().is_empty() {
        return Some("this machine has no cgroups".to_owned());
    }
    // Creates and removes a cgroup to find out whether this user may.
    let name = format!("try-bench-{}", std::process::id());
    let planned = Group::planned(&hierarchies, Path::new("/"), &name);
    let cpus = Scheduling::of(std::process::id()).unwrap().cpus;
    let group = Group::make(&hierarchies, &planned, &Limits { cpus, processes: 1 });
    let timeout = std::time::Duration::from_secs(300);
    if let Err(error) = group.and_then(|group| group.remove(timeout)) {
        return Some(error.to_string());
    }
    let fifo = Command::new("chrt").args(["-f", "1", "true"]).output();
    let has_real_time = fifo.is_ok_and(|output| output.status.success());
    (!has_real_time).then(|| "it may not ask for real time".to_owned())
}

/// Runs the command with short windows, at one load. `out` is the folder of its tables.
fn bench(out: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(TESTBED);
    command.args(["bench-cosched", "--quick", "--format", "json", "--out"]).arg(out);
    command.args(["--window-ms", "40", "--loads", "20%"]).args(arguments).output().unwrap()
}

/// Returns true if the test `name` cannot run on this machine, and prints the reason.
fn skipped(name: &str) -> bool {
    let reason = missing_requirement();
    if let Some(reason) = &reason {
        // Written directly to standard error, because the output of passing tests is hidden.
        let _ = writeln!(io::stderr(), "{name}: SKIPPED, {reason}");
    }
    reason.is_some()
}

/// Returns a JSON value that must be a whole number.
fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

// promise: speed.2
#[test]
fn every_arm_has_a_row_and_counted_windows() {
    if skipped("every_arm_has_a_row_and_counted_windows") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--workers", "parked-normal", "--batches", "hash", "--objective-us", "5000"];
    let output = bench(folder.path(), &[&arguments[..], &["--bar-windows", "3"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let arms: Vec<_> = rows.iter().map(|row| row["arm"].as_str().unwrap()).collect();
    assert_eq!(arms, ARMS);
    let [all, valid, discarded] = ["windows", "kept", "discarded"].map(|key| number(&report[key]));
    assert_eq!(all, valid + discarded);
    // The control runs before and after are the rows of arm `none`.
    for row in rows {
        let measured = number(&row["windows"]) + number(&row["discarded"]);
        assert_eq!((&row["worker"], &row["batch"]), (&"parked-normal".into(), &"hash".into()));
        assert_eq!(measured, if row["arm"] == "none" { 2 } else { 1 }, "{row}");
        assert!(number(&row["tasks"]) > 0 || row["hand_over_p999_us"].is_null(), "{row}");
        assert!(number(&row["windows"]) > 0 || row["violating"].is_null(), "{row}");
    }
    // The bars: cost and gain of the batch, its share after a step in load, and windows under the guard that miss the
    // objective.
    assert!(number(&report["tasks"]) > 0 && report["bars"].as_array().unwrap().len() == 4);
    // Two arms cannot protect a worker of the normal scheduling class from a batch of that class: a quota and
    // a weight. They are measured nevertheless, and reported as refused.
    let refused: Vec<_> =
        report["refused"].as_array().unwrap().iter().map(|refusal| &refusal["arm"]).collect();
    assert_eq!(refused, ["static", "shares"]);
    // The three arms `asax-*` learn.
    let learners = report["learners"].as_array().unwrap();
    assert_eq!(learners.len(), 3);
    assert!(learners.iter().all(|learner| learner["replayed"]["difference"].is_number()));
    // The tables hold the same rows. Each window states the CPU time that foreign threads took.
    let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(text("cosched.csv").lines().count(), 1 + ARMS.len());
    assert_eq!(text("cosched-windows.csv").lines().count() as u64, 1 + all);
    let windows = text("cosched-windows.csv");
    // Not all windows have this worker. Those of the batch alone (without tasks) and of the bars have a real-time one.
    assert!(windows.contains(",parked-normal") && windows.contains(",hash,"), "{windows}");
    let head = text("cosched-windows.csv").lines().next().unwrap().to_owned();
    assert!(
        ["foreign", "is_undisturbed", "violates"]
            .iter()
            .all(|column| head.split(',').any(|key| key == *column))
    );
}

// promise: speed.2
#[test]
fn discarded_windows_give_no_figures() {
    if skipped("discarded_windows_give_no_figures") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--arms", "none,idle", "--workers", "parked-fifo", "--batches", "compress"];
    let strict = ["--objective-us", "5000", "--foreign-max", "0", "--bar-windows", "0"];
    let output = std::thread::scope(|outer| {
        let bench = outer.spawn(|| bench(folder.path(), &[&arguments[..], &strict].concat()));
        // Foreign work on every CPU, above the bound of 0.
        std::thread::scope(|inner| {
            for _ in 0..std::thread::available_parallelism().unwrap().get() {
                inner.spawn(|| {
                    while !bench.is_finished() {
                        std::hint::spin_loop();
                    }
                });
            }
        });
        bench.join().unwrap()
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    for row in rows.iter().filter(|row| number(&row["windows"]) == 0) {
        assert!(row["violating"].is_null() && row["progress"].is_null() && row["tasks"] == 0);
    }
    let sum = |key: &str| rows.iter().map(|row| number(&row[key])).sum::<u64>();
    // Two windows of the arm `none`, before and after, and one of `idle`. A late supervisor may leave a window
    // without length and work.
    assert!(sum("discarded") > 0, "{rows:?}");
    assert_eq!(sum("discarded") + sum("windows"), 3);
    assert!(report["bars"].as_array().unwrap().is_empty());
}

// promise: speed.2
#[test]
fn impossible_measurement_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (line, part) in [
        (["--cpus", "0"], "--cpus"),
        (["--cpus", "0,4095"], "0,4095"),
        (["--loads", "120%"], "as in 20%"),
        (["--loads", "20%,20%"], "--loads"),
        (["--arms", "idle,idle"], "--arms"),
        (["--service-us", "0"], "--service-us"),
        (["--foreign-max", "NaN"], "--foreign-max"),
    ] {
        let output = Command::new(TESTBED)
            .args(["bench-cosched", "--out"])
            .arg(folder.path())
            .args(line)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(part), "{part}: {error}");
    }
}
