//! A spine and its leaves in lockstep (emulated time, in which a conductor gives each node turns) equal the
//! simulator's model with several racks. A leaf that ends is excluded. A spine spreads tasks over leaves, each of which
//! schedules the workers of one rack. Leaves send load signals and heartbeats to the spine.
#![allow(clippy::unwrap_used, reason = "a test")]

use wedjat_testbed::lockstep::fabric::{self, Report};
use wedjat_testbed::sim::model::Model;
use wedjat_testbed::sim::outcome::Outcome;
use wedjat_testbed::sim::script::{Action, Step};
use wedjat_testbed::sim::{SimArgs, plan, rack};

/// Builds the simulator's configuration with several racks. Its leaves tick like leaf processes, and its workers run no
/// benchmark tasks, so that both runs make equal decisions.
fn config(racks: &str, policy: &str, spine: &str, load: &str) -> rack::Config {
    let text = |text: &str| Some(text.to_owned());
    let args = SimArgs {
        racks: text(racks),
        policy: text(policy),
        spine_policy: text(spine),
        load: text(load),
        tasks: text("4000"),
        // With a constant delay, repeated signals at different times draw no random numbers and never
        // overtake each other.
        hop_dist: text("const"),
        ..SimArgs::default()
    };
    match plan::cells(&args).unwrap().remove(0).model {
        Model::Rack(config) => {
            rack::Config { seed: 7, benchmarks: false, as_process: true, ..config }
        }
        _ => panic!("another model"),
    }
}

/// Asserts that no node reported a fault, and that none dropped a packet for lack of a member, from an unknown or
/// spoofed sender, or for the wrong pool. An ended node has no counters.
fn assert_right(report: &Report, name: &str) {
    assert_eq!(report.faults, Vec::<String>::new(), "{name}");
    for (node, counted) in
        report.counted.iter().enumerate().filter(|(_, counted)| !counted.is_empty())
    {
        assert_eq!(counted["no_member"] + counted["unknown_peer"], 0, "{name}, node {node}");
        assert_eq!(counted["spoofed_signal"] + counted["signal_pool"], 0, "{name}, node {node}");
    }
}

// promise: emulated-time.1
#[test]
fn nodes_decide_as_the_simulator_with_several_racks() {
    for racks in ["8,8,8,8", "4,4,8,32"] {
        for (leaf, spine) in [
            ("horus", "horus-spine"),
            ("horus", "horus-spine-weighted"),
            ("horus", "jsq-spine"),
            ("racksched", "racksched"),
            ("racksched", "random"),
            ("horus-inflight", "horus-spine"),
        ] {
            for load in ["0.5", "0.85"] {
                let name = format!("{leaf} under {spine}, {racks}, {load}");
                let config = config(racks, leaf, spine, load);
                let (outcome, report) =
                    fabric::run(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_right(&report, &name);
                let Outcome { record, tasks, lost, .. } = rack::run(&config).unwrap();
                assert_eq!((outcome.tasks, outcome.lost), (tasks, lost), "{name}");
                assert_eq!(report.answered, tasks, "{name}");
                assert_eq!(outcome.record, record, "{name}");
            }
        }
    }
}

// promise: fabric.2
#[test]
fn ended_leaf_is_excluded_within_50_ms() {
    for (racks, spine) in
        [("8,8", "horus-spine"), ("8,8,8,8", "horus-spine-weighted"), ("4,4,8,32", "random")]
    {
        let mut config = config(racks, "horus", spine, "0.5");
        config.tasks = 60_000;
        let failure = Step { at_ns: 50e6, action: Action::FailLeaf(1) };
        config.script = vec![failure];
        let (outcome, report) = fabric::run(&config).unwrap();
        let name = format!("{spine}, {racks}");
        assert_right(&report, &name);
        let lost: u64 = report.lost.values().sum();
        assert!(lost > 0, "{name}");
        assert_eq!(
            outcome.tasks,
            report.answered + report.refused + lost,
            "{name}: {:?}",
            report.lost
        );
        let last_ns = report.chosen_after_ns[&1];
        // Time from the leaf's end. The leaf sent its last heartbeat at most 10 ms before its end, and counts as silent
        // 30 ms after that heartbeat. The spine chose the last task for it a little earlier.
        assert!((18_000_000..50_000_000).contains(&last_ns), "{name}: {last_ns}");
        let spine = &report.counted[0];
        assert_eq!(spine["workers_lost"], 1, "{name}: the leaf is a worker of the spine");
        // The spine estimates the leaf's tasks from its last signals and the tasks sent since. It is right within a
        // fifth.
        let written_off = spine["written_off"];
        assert!(written_off.abs_diff(lost) * 5 < lost, "{name}: {written_off} of {lost}");
        // No surviving leaf is affected.
        let survivors = report.counted[1..].iter().filter(|counted| !counted.is_empty());
        assert!(survivors.clone().all(|leaf| leaf["spines_lost"] == 0), "{name}");
        assert_eq!(survivors.count(), config.racks.len() - 1);
    }
}

// promise: emulated-time.2
/// Tasks queued at an ended leaf are never answered. The run ends after a stall and counts them as `kept`.
#[test]
fn run_ends_although_ended_leaf_has_queue() {
    let mut config = config("2,8", "cfcfs", "random", "0.9");
    config.tasks = 20_000;
    config.script = vec![Step { at_ns: 20e6, action: Action::FailLeaf(0) }];
    let (outcome, report) = fabric::run(&config).unwrap();
    assert_right(&report, "cfcfs");
    assert!(report.lost["kept"] > 0, "the leaf had a queue: {:?}", report.lost);
    let lost: u64 = report.lost.values().sum();
    assert_eq!(outcome.tasks, report.answered + report.refused + lost, "{:?}", report.lost);
}

// promise: emulated-time.2
#[test]
fn packet_loss_is_accounted_and_excludes_no_leaf() {
    for seed in 1..6 {
        let mut config = config("8,8,8,8", "horus", "horus-spine", "0.7");
        (config.loss, config.seed) = (0.01, seed);
        let (outcome, report) = fabric::run(&config).unwrap();
        assert_right(&report, "losses");
        let lost: u64 = report.lost.values().sum();
        assert_eq!(outcome.tasks, report.answered + lost, "{:?}", report.lost);
        // 1% of the packets are lost. Each of 4000 tasks has three packets that can be lost: from spine to leaf, from
        // leaf to worker, and the reply to the leaf.
        assert!(lost > 30 && lost < 300, "{lost}");
        assert!(report.counted[0]["workers_lost"] == 0, "never three heartbeats in a row are lost");
    }
}
