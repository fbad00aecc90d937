//! Test of a spine and two leaves that serve clients, over either address family. A spine schedules tasks over leaves,
//! and a leaf over the workers of its rack. Signals are load reports of leaves to the spine, and heartbeats in both
//! directions.

use serde_json::Value;

use super::family::Family;
use super::switch::*;

/// Runs `wedjat spine` and two `wedjat leaf` below it, as processes in real time. The test is the switch
/// between them, the client and the workers. Kills one leaf. Checks that every task is answered, and that each node
/// accounts for its packets. Checks no times.
pub fn serve_and_lose_a_leaf(family: Family) {
    let home = Home::new(family);
    for name in ["spine90.toml", "leaf1.toml"] {
        // Panics if `wedjat check` refuses the file.
        home.received(&["check", "--config"], name);
    }
    let spine = home.start("spine", "spine90");
    let first = home.start("leaf", "leaf1");
    let second = home.start("leaf", "leaf2");
    // The remaining ends belong to the second spine, which does not run.
    let mut switch = Switch::open(&home, &ENDS[..4]);
    switch.poll_until("spine and leaves receive signals", || {
        let leaves = ["leaf1", "leaf2"].map(|leaf| home.counter(leaf, "signals"));
        home.counter("spine90", "signals") > 10 && leaves.iter().all(|received| *received > 0)
    });
    switch.ask(0..1000);
    for leaf in 0..2 {
        let answers = switch.answered.values().filter(|&&by| by == leaf).count();
        assert!(answers > 100, "{answers} answers of leaf {leaf}");
    }
    let state = home.state("spine90");
    assert_eq!((state["role"].as_str(), state["node"].as_u64()), (Some("spine"), Some(90)));
    assert_eq!(state["pools"][0]["members"].as_array().map(Vec::len), Some(2), "{state}");

    // The first leaf dies. The second gets all tasks after the spine has detected it.
    drop(first.end("-KILL"));
    switch.wires.dead.push(UP[0]);
    // For a spine, `workers_lost` counts leaves.
    switch.poll_until("the spine notices", || home.counter("spine90", "workers_lost") == 1);
    let before = switch.answered.len() as u16;
    switch.ask(before..before + 200);
    assert!(switch.answered.range(before..).all(|(_, &leaf)| leaf == 1));
    assert!(switch.signals > 0);

    let (spine, leaf) = (spine.account(), second.account());
    let count = |account: &Value, name: &str| account[name].as_u64().unwrap();
    // 1000 tasks before the death, and 200 after it.
    assert_eq!(count(&spine, "scheduled"), 1200, "{spine}");
    let by_second = switch.answered.values().filter(|&&leaf| leaf == 1).count() as u64;
    assert_eq!(
        (count(&leaf, "scheduled"), count(&leaf, "replies")),
        (by_second, by_second),
        "{leaf}"
    );
}
