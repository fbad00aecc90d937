//! Leaf and agent processes over memif, paused, killed and restarted in emulated time: their results equal those of
//! nodes in memory. The testbed gives each node its turns, and injects the faults of a plan.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Runs 200 tasks with nodes in memory or as processes (`nodes`) under these faults. Returns the JSON report. Processes
/// run the `wedjat` program beside the testbed's, which cargo does not build for this test.
fn run(nodes: &str, faults: &str, seed: u64) -> Value {
    let binary = Path::new(env!("CARGO_BIN_EXE_wedjat-testbed"));
    let leaf = binary.with_file_name("wedjat");
    assert!(leaf.is_file(), "{} is not built: run `cargo build --bin wedjat`", leaf.display());
    let seed = seed.to_string();
    let flags =
        ["lockstep", "--nodes", nodes, "--faults", faults, "--tasks", "200", "--load", "0.9"];
    let further = ["--service", "exp(100us)", "--seed", &seed, "--format", "json"];
    let output = Command::new(binary).args(flags).args(further).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

// promise: emulated-time.2
#[test]
fn faulty_processes_match_nodes_in_memory() {
    // Each kind of fault: fractions of lost, duplicated, reordered and corrupted packets, then a cut link, a paused
    // node and a killed node, with their times.
    let every_kind = "loss=0.01,dup=0.01,reorder=0.02,corrupt=0.01,cut=leaf1-agent1@1ms..2ms,pause=leaf1@2ms..3ms,\
                    kill=agent2@3ms..5ms";
    for (faults, seed) in
        [("none", 1), (every_kind, 2), ("kill=leaf1@2ms..4ms,pause=agent1@1ms..6ms", 3)]
    {
        let (found, expected) = (run("process", faults, seed), run("memory", faults, seed));
        for key in [
            "plan",
            "tasks",
            "answered",
            "refused",
            "lost",
            "answered_again",
            "mean_ns",
            "digest",
            "violations",
        ] {
            assert_eq!(found[key], expected[key], "{key}: {found} {expected}");
        }
    }
}
