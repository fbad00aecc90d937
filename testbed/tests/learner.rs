//! The learner, by which nodes without a scheduler choose where they pass tasks, against traces of the
//! program published with the Malcolm paper (uwaterloo-mast/malcolm). `traces/` holds the values: 60 beats (steps of
//! learning) of five nodes with AdamW, and 40 with stochastic gradient ascent, of seeded random loads.
//!
//! The learner is an actor-critic: two policies give the probabilities of nodes to pass tasks to (migration) and to
//! take tasks from (stealing). The critic estimates the value of the loads. In a consensus nodes average their critics.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Returns the path of a trace.
fn trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces").join(name)
}

/// Runs `wedjat-testbed learner`.
fn learner(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat-testbed"));
    command.arg("learner").args(arguments).output().unwrap()
}

/// Compares the learner with a trace. Returns the exit code and the largest differences.
fn compared(path: &Path) -> (Option<i32>, Value) {
    let output = learner(&["--trace", path.to_str().unwrap(), "--format", "json"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let value = serde_json::from_slice(&output.stdout);
    (output.status.code(), value.unwrap_or_else(|_| panic!("{error}")))
}

/// Keys of the differences: probabilities and temporal-difference error of each beat, and the final parameters of
/// critic and policies, also after a consensus.
const NAMES: [&str; 6] =
    ["probabilities", "td_error", "critic", "migration", "stealing", "consensus"];

// promise: agent.4
#[test]
fn learner_matches_the_released_one() {
    for (name, beats) in [("adamw_n5.json", 60), ("sgd_n5.json", 40)] {
        let (code, differences) = compared(&trace(name));
        assert_eq!((code, &differences["beats"]), (Some(0), &beats.into()), "{differences}");
        // Sums in another order differ by rounding.
        for key in NAMES {
            let largest = differences[key].as_f64().unwrap();
            assert!(largest < 1e-6, "{name}: {key}: {largest}");
        }
    }
}

#[test]
fn different_learner_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.json");
    let text = std::fs::read_to_string(trace("adamw_n5.json")).unwrap();
    // Another setting in the trace makes the learner differ from the values there.
    let mut other: Value = serde_json::from_str(&text).unwrap();
    for (key, value, differs) in [
        ("lambda", 0.7, "migration"),
        ("critic_lr", 0.003, "critic"),
        ("weight_decay", 0.1, "stealing"),
        ("avg_reward_step", 0.1, "td_error"),
    ] {
        let before = std::mem::replace(&mut other[key], value.into());
        std::fs::write(&path, other.to_string()).unwrap();
        let (code, differences) = compared(&path);
        assert_eq!(code, Some(1), "{key}");
        assert!(differences[differs].as_f64().unwrap() > 1e-5, "{key}: {differences}");
        other[key] = before;
    }
    // A cosine schedule changes the learning rates.
    other["cosine"] = 1.into();
    std::fs::write(&path, other.to_string()).unwrap();
    assert_eq!(compared(&path).0, Some(1), "its rates are others");
}

#[test]
fn invalid_trace_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.json");
    let good = std::fs::read_to_string(trace("sgd_n5.json")).unwrap();
    // The valid trace with another value of this key.
    let with = |key: &str, value: Value| {
        let mut trace: Value = serde_json::from_str(&good).unwrap();
        trace[key] = value;
        trace.to_string()
    };
    for (text, part) in [
        (String::new(), "EOF"),
        (good[..5000].to_owned(), "EOF"),
        (with("n", 65.into()), "n: 65; allowed: 1 to 64"),
        (with("n", 4.into()), "critic's parameters, expected 23"),
        (with("x0", [0.5; 4].as_slice().into()), "4 loads, expected 5"),
        (with("x0", [0.5, 0.5, 0.5, 0.5, -0.5].as_slice().into()), "load 4 is -0.5"),
        (with("consensus_others", "two".into()), "allowed: multiples as in `w_i=0.01*i`"),
    ] {
        std::fs::write(&path, &text).unwrap();
        let output = learner(&["--trace", path.to_str().unwrap()]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("bad.json") && error.contains(part), "{part}: {error}");
    }
    let output = learner(&["--trace", "/nonexistent.json"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent.json: No such file"));
}
