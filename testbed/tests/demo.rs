//! `wedjat-testbed demo` from a user's view: a real leaf process on memif, with traffic from both sides, and the files
//! that it leaves. A leaf schedules the tasks of one rack.
//!
//! The demo runs each policy at each load, and reports a row for each pair. In emulated time (the default) the testbed
//! advances the leaf's clock, so that equal seeds give equal rows. In real time a busy machine spoils a row, which is
//! then invalid. A ledger balances if each received packet was sent, consumed or dropped.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../tests/golden/mod.rs"]
mod golden;
mod processes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use serde_json::Value;

use processes::TIMEOUT;

/// Load that any machine can carry. It has fewer tasks than memif's queues hold, so that a stalled machine
/// loses none.
const SMALL: [&str; 12] = [
    "--clock",
    "real",
    "--workers",
    "8",
    "--service",
    "exp(1ms)",
    "--seconds",
    "0.5",
    "--warmup",
    "100ms",
    "--retries",
    "0",
];

/// Runs `wedjat-testbed demo`.
fn demo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wedjat-testbed")).arg("demo").args(arguments).output().unwrap()
}

/// Converts output to text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the leaf's binary. It belongs to another package: `cargo test --workspace` and `cargo build` make
/// it.
fn leaf() -> PathBuf {
    let leaf = Path::new(env!("CARGO_BIN_EXE_wedjat-testbed")).with_file_name("wedjat");
    assert!(leaf.is_file(), "{} is not built: run `cargo build --bin wedjat`", leaf.display());
    leaf
}

/// Runs the demo in emulated time: three policies at two loads. Returns its rows and its page. Checks that the JSON on
/// standard output equals that of the file.
fn emulated(folder: &Path) -> (Value, String) {
    let leaf = leaf().display().to_string();
    let out = folder.display().to_string();
    let output = demo(&[
        "--policies",
        "horus,sed,random",
        "--loads",
        "0.5,0.9",
        "--workers",
        "16",
        "--tasks",
        "2000",
        "--format",
        "json",
        "--out",
        &out,
        "--leaf",
        &leaf,
    ]);
    let printed = text(&output.stderr);
    assert!(output.status.success(), "whatever the machine does: {printed}");
    let all: Value = serde_json::from_slice(&output.stdout).expect(&printed);
    let on_disk = fs::read(folder.join("demo.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&on_disk).unwrap(), all);
    (all["rows"].clone(), fs::read_to_string(folder.join("index.html")).unwrap())
}

// promise: emulated-time.2
#[test]
fn emulated_runs_are_equal_and_valid() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, page) = emulated(folder.path());
    let names: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["policy"].clone()).collect();
    assert_eq!(names, ["horus", "sed(half=0.5)", "random", "horus", "sed(half=0.5)", "random"]);
    for row in rows.as_array().unwrap() {
        assert_eq!((&row["answered"], &row["lost"]), (&Value::from(2000), &Value::from(0)));
        assert!(row["p99"].as_f64() > row["p50"].as_f64(), "{row}");
    }
    assert!(page.contains("At 90% load ") && page.contains("Measured in real time"));
    assert_eq!(page.matches("<svg").count(), 2);
    assert_eq!(emulated(folder.path()).0, rows);
    // The golden file has the page's body without the plots, up to the part about this machine, whose figures vary.
    let mut parts = page.split("<svg");
    let mut text = parts.next().unwrap().split_once("<body").unwrap().1.to_owned();
    text.extend(parts.map(|part| format!("PLOT{}", part.split_once("</svg>").unwrap().1)));
    let text = text.split("Measured in real time").next().unwrap();
    golden::assert_golden("demo.txt", &format!("<body{text}\n"));
}

/// Returns the rows of a real-time run of `horus` and `random`, after checks that hold on a machine of any speed.
fn balanced(output: &Output) -> Value {
    let printed = text(&output.stderr);
    let rows: Value = serde_json::from_slice(&output.stdout).expect(&printed);
    // A busy machine makes invalid rows. The exit status says whether there are any.
    let valid = rows.as_array().unwrap().iter().all(|row| row["valid"] == true);
    assert_eq!(output.status.code(), Some(i32::from(!valid)), "{printed}");
    let names: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["policy"].clone()).collect();
    assert_eq!(names, ["horus", "random"]);
    for row in rows.as_array().unwrap() {
        let count = |key: &str| row[key].as_u64().unwrap();
        assert_eq!(count("sent"), count("answered") + count("refused") + count("lost"));
        let (leaf, rack) = (&row["leaf"], &row["rack"]);
        assert_eq!(leaf["balanced"], true, "{leaf}");
        assert_eq!(leaf["mbufs_leaked"], 0);
        assert_eq!(leaf["policy"], row["policy"]);
        // On the way from the leaf to the emulated rack, a full memif queue may lose tasks.
        assert!(leaf["scheduled"].as_u64() >= rack["tasks"].as_u64(), "{row}");
        assert_eq!(rack["dropped"], serde_json::json!({}), "all is well-formed");
    }
    rows
}

#[test]
fn two_policies_run_with_balanced_ledgers() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report");
    let (out_text, leaf) = (out.display().to_string(), leaf().display().to_string());
    let mut arguments = SMALL.to_vec();
    arguments.extend(["--policies", "horus,random", "--loads", "0.1", "--format", "json"]);
    arguments.extend(["--out", &out_text, "--leaf", &leaf]);
    // This run is in real time. If the machine stalls for its half second, answers are missing or late; the
    // run is then repeated. The ledgers balance in any case.
    let start = Instant::now();
    let rows = loop {
        let rows = balanced(&demo(&arguments));
        let all = rows.as_array().unwrap();
        if all.iter().all(|row| row["answered"].as_u64() > Some(0) && row["lost"] == 0) {
            break rows;
        }
        assert!(start.elapsed() < TIMEOUT, "{rows}");
    };
    for row in rows.as_array().unwrap() {
        let (leaf, rack) = (&row["leaf"], &row["rack"]);
        assert_eq!(rack["tasks"], leaf["scheduled"], "no packet is lost on memif at this rate");
        // Both ends count the tasks for a worker on the leaf's idle list. A flag in the task's header shows them.
        assert_eq!(rack["idle_picks"], leaf["idle_picks"]);
    }
    assert_eq!(rows[1]["leaf"]["idle_picks"], 0, "random knows no idle list");
    let on_disk: Value = serde_json::from_slice(&fs::read(out.join("demo.json")).unwrap()).unwrap();
    assert_eq!(on_disk, rows);
    // A header and two rows.
    assert_eq!(fs::read_to_string(out.join("demo.csv")).unwrap().lines().count(), 3);
    assert!(fs::read_to_string(out.join("index.html")).unwrap().contains("<svg"));
}

#[test]
fn failing_leaf_start_shows_its_output() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    // Another program in place of the leaf does not know the leaf's arguments.
    let mut arguments = SMALL.to_vec();
    arguments.extend(["--out", &out, "--leaf", env!("CARGO_BIN_EXE_wedjat-testbed")]);
    let output = demo(&arguments);
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(
        printed.contains("the leaf ended unexpectedly") && printed.contains("unrecognized"),
        "{printed}"
    );
}

#[test]
fn mistakes_are_named_and_refused() {
    for (arguments, part) in [
        (["--leaf", "/nowhere/wedjat"], "/nowhere/wedjat"),
        (["--policies", "best"], "unknown policy `best`"),
        (["--workers", "5000"], "5000 workers"),
        (["--loads", "90"], "`90` is not a load"),
    ] {
        let output = demo(&arguments);
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains(part), "{printed}");
    }
}
