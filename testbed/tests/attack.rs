//! Attacks that run in memory, on an emulated clock: deterministic, with a small budget. Each sends the
//! inputs of an attacker to a node, and checks the promises that must hold nevertheless.
#![allow(clippy::unwrap_used, reason = "a test")]

use wedjat_testbed::attack::{Budget, Row, RunsOn, attacks};

/// Emulated seconds of each attack; `make attack` takes longer.
const SECONDS: f64 = 0.25;

// promise: input.4
#[test]
fn attacks_in_memory_hold() {
    let budget = Budget { seconds: SECONDS, seed: 1 };
    let in_memory = attacks().into_iter().filter(|attack| attack.runs_on == RunsOn::Memory);
    // An attack is held if the node kept every promise.
    let rows: Vec<Row> = in_memory.map(|attack| attack.run(&budget)).collect();
    // Guards against an empty list.
    assert!(rows.len() >= 12, "the attacks are found: {}", rows.len());
    let fallen: String = rows.iter().filter(|row| !row.held).map(Row::to_string).collect();
    assert!(fallen.is_empty(), "\n{fallen}");
}

// promise: input.4
#[test]
fn equal_seeds_make_equal_attacks() {
    let budget = Budget { seconds: 0.2, seed: 3 };
    let run = |name: &str| {
        let attack = attacks().into_iter().find(|attack| attack.name == name).unwrap();
        let account = attack.run(&budget).account;
        (account.tried, account.figures, account.checks.len())
    };
    assert_eq!(run("storm-from-both"), run("storm-from-both"));
}
