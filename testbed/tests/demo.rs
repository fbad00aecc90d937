//! The demo as a user meets it: a real leaf process on memif, driven from both sides, and what is left of it.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod processes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use serde_json::Value;

use processes::PATIENCE;

/// Load so small that any machine can carry it, and fewer tasks than memif's queues hold: a machine that stalls loses none.
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

fn demo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wedjat-testbed")).arg("demo").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The leaf is another package's binary: `cargo test --workspace` and `cargo build` make it.
fn leaf() -> PathBuf {
    let leaf = Path::new(env!("CARGO_BIN_EXE_wedjat-testbed")).with_file_name("wedjat");
    assert!(leaf.is_file(), "{} is not built: run `cargo build --bin wedjat`", leaf.display());
    leaf
}

/// The rows of the demo on emulated time, and the page.
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
    let said = text(&output.stderr);
    assert!(output.status.success(), "whatever the machine does: {said}");
    let all: Value = serde_json::from_slice(&output.stdout).expect(&said);
    let on_disk = fs::read(folder.join("demo.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&on_disk).unwrap(), all);
    (all["rows"].clone(), fs::read_to_string(folder.join("index.html")).unwrap())
}

#[test]
fn on_emulated_time_every_run_is_the_same_and_none_is_doubtful() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, page) = emulated(folder.path());
    let names: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["policy"].clone()).collect();
    assert_eq!(names, ["horus", "sed", "random", "horus", "sed", "random"]);
    for row in rows.as_array().unwrap() {
        assert_eq!((&row["answered"], &row["lost"]), (&Value::from(2000), &Value::from(0)));
        assert!(row["p99"].as_f64() > row["p50"].as_f64(), "{row}");
    }
    assert!(page.contains("At 90% load ") && page.contains("What is real here"));
    assert_eq!(page.matches("<svg").count(), 2);
    assert_eq!(emulated(folder.path()).0, rows);
}

/// The rows of a run for two policies, with what holds at any speed.
fn balanced(output: &Output) -> Value {
    let said = text(&output.stderr);
    let rows: Value = serde_json::from_slice(&output.stdout).expect(&said);
    // A machine that is too busy makes figures that are not to be believed, and the status says whether there are such.
    let valid = rows.as_array().unwrap().iter().all(|row| row["valid"] == true);
    assert_eq!(output.status.code(), Some(i32::from(!valid)), "{said}");
    let names: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["policy"].clone()).collect();
    assert_eq!(names, ["horus", "random"]);
    for row in rows.as_array().unwrap() {
        let count = |key: &str| row[key].as_u64().unwrap();
        assert_eq!(count("sent"), count("answered") + count("refused") + count("lost"));
        let (leaf, rack) = (&row["leaf"], &row["rack"]);
        assert_eq!(leaf["balanced"], true, "{leaf}");
        assert_eq!(leaf["mbufs_leaked"], 0);
        assert_eq!(leaf["policy"], row["policy"]);
        assert!(leaf["scheduled"].as_u64() >= rack["tasks"].as_u64(), "{row}");
        assert_eq!(rack["dropped"], serde_json::json!({}), "all is well-formed");
    }
    rows
}

#[test]
fn two_policies_run_and_every_book_balances() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report");
    let (out_text, leaf) = (out.display().to_string(), leaf().display().to_string());
    let mut arguments = SMALL.to_vec();
    arguments.extend(["--policies", "horus,random", "--loads", "0.1", "--format", "json"]);
    arguments.extend(["--out", &out_text, "--leaf", &leaf]);
    // Its time is real. Of half a second in which the machine stands still nothing is answered, or answers come too late:
    // then it is done again. Whatever the machine did, the books balance.
    let start = Instant::now();
    let rows = loop {
        let rows = balanced(&demo(&arguments));
        let all = rows.as_array().unwrap();
        if all.iter().all(|row| row["answered"].as_u64() > Some(0) && row["lost"] == 0) {
            break rows;
        }
        assert!(start.elapsed() < PATIENCE, "{rows}");
    };
    for row in rows.as_array().unwrap() {
        let (leaf, rack) = (&row["leaf"], &row["rack"]);
        assert_eq!(rack["tasks"], leaf["scheduled"], "nothing gets lost on memif at this rate");
        assert_eq!(rack["idle_picks"], leaf["idle_picks"]);
    }
    assert_eq!(rows[1]["leaf"]["idle_picks"], 0, "random knows no idle list");
    let on_disk: Value = serde_json::from_slice(&fs::read(out.join("demo.json")).unwrap()).unwrap();
    assert_eq!(on_disk, rows);
    assert_eq!(fs::read_to_string(out.join("demo.csv")).unwrap().lines().count(), 3);
    assert!(fs::read_to_string(out.join("index.html")).unwrap().contains("<svg"));
}

#[test]
fn a_leaf_that_does_not_start_is_shown_with_what_it_said() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    let mut arguments = SMALL.to_vec();
    arguments.extend(["--out", &out, "--leaf", env!("CARGO_BIN_EXE_wedjat-testbed")]);
    let output = demo(&arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("the leaf ended by itself") && said.contains("unrecognized"), "{said}");
}

#[test]
fn mistakes_are_named_before_anything_starts() {
    for (arguments, part) in [
        (["--leaf", "/nowhere/wedjat"], "/nowhere/wedjat"),
        (["--policies", "best"], "unknown policy `best`"),
        (["--workers", "5000"], "5000 workers"),
        (["--loads", "90"], "`90` is no load"),
    ] {
        let output = demo(&arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(part), "{said}");
    }
}
