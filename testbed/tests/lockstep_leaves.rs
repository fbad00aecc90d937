//! Lockstep runs, in this process and in emulated time, equal the simulator's runs task by task. Leaves that share
//! workers equal the dispatchers of the model `ct`. Agents with peers equal the nodes of the model `nodes`.
//!
//! Workers report their queues to the leaves in messages, or answer probes. LSQ's parameter `eps` is the probability
//! that a busy worker reports after a task.
#![allow(clippy::unwrap_used, reason = "a test")]

use wedjat_testbed::lockstep::leaves;
use wedjat_testbed::lockstep::nodes::{self, RunDetails};
use wedjat_testbed::sim::ct;
use wedjat_testbed::sim::model::Model;
use wedjat_testbed::sim::{SimArgs, plan};

/// Builds the configuration of the model `ct`, which [`leaves::run`] runs too.
fn config(policy: &str, (leaves, workers): (usize, usize), load: &str) -> ct::Config {
    let text = |text: &str| Some(text.to_owned());
    let args = SimArgs {
        model: text("ct"),
        policy: text(policy),
        dispatchers: Some(leaves.to_string()),
        servers: Some(workers.to_string()),
        delay: text("5us"),
        load: text(load),
        tasks: text("3000"),
        digest: text("yes"),
        ..SimArgs::default()
    };
    match plan::cells(&args).unwrap().remove(0).model {
        Model::Ct(config) => ct::Config { seed: 7, ..config },
        _ => panic!("another model"),
    }
}

/// Runs leaves and model with this configuration. Checks that their digests, which cover the worker and the times of
/// each task, and their messages are equal. Returns the messages per task.
fn assert_equal(config: &ct::Config, name: &str) -> f64 {
    let (outcome, details) = leaves::run(config).unwrap_or_else(|error| panic!("{name}: {error}"));
    let model = ct::run(config).unwrap();
    assert_eq!(details.faults, Vec::<String>::new(), "{name}");
    assert_eq!(outcome.record, model.record, "{name}");
    assert_eq!(outcome.record.unwrap().answered, config.tasks, "{name}");
    assert_eq!((outcome.tasks, outcome.messages), (model.tasks, model.messages), "{name}");
    assert_eq!(
        details.reports + details.probes,
        model.messages,
        "{name}: each message is a packet"
    );
    model.messages as f64 / config.tasks as f64
}

/// Returns LSQ's `eps`, at most 1, for as many messages as two samples by each leaf would cost. In a slot of the
/// paper's model, each busy worker reports with this probability.
fn eps_of(leaves: usize, workers: usize) -> f64 {
    (2.0 * leaves as f64 / workers as f64).min(1.0)
}

/// The papers' bound: at most one message per task, in the worst case (LSQ, V-B and VI, and JIQ).
// promise: scheduling.6
#[test]
fn leaves_decide_as_the_simulators_dispatchers() {
    for (leaves, workers) in [(1, 32), (4, 32), (10, 32), (1, 100), (4, 100), (10, 100)] {
        let eps = eps_of(leaves, workers);
        for policy in [
            format!("lsq-update(eps={eps})"),
            format!("lsq-smart(eps={eps})"),
            "lsq-smart(eps=0.05)".to_owned(),
            "hlsq-update".to_owned(),
            "jiq".to_owned(),
            "jbt(r=2)".to_owned(),
        ] {
            for load in ["0.7", "0.95"] {
                let name = format!("{policy}, {leaves} leaves, {workers} workers, load {load}");
                let messages = assert_equal(&config(&policy, (leaves, workers), load), &name);
                println!("{name}: {messages:.3} messages per task, at most 1");
                assert!(messages <= 1.0, "{name}: {messages}");
            }
        }
    }
}

// promise: scheduling.6
#[test]
fn leaves_match_for_any_delay_and_speed() {
    for delay_ns in [0.0, 50_000.0, 300_000.0] {
        for policy in ["lsq-update(eps=0.3)", "hlsq-smart", "jiq-weighted", "jbt(r=3)"] {
            let name = format!("{policy}, {delay_ns} ns");
            let mut config = config(policy, (4, 32), "0.9");
            config.delay_ns = delay_ns;
            for (worker, speed) in config.speeds.iter_mut().enumerate() {
                *speed = if worker < 16 { 0.4 } else { 1.6 };
            }
            assert_equal(&config, &name);
        }
    }
}

// promise: scheduling.6
#[test]
fn leaves_match_over_workers_with_shared_cores() {
    for policy in ["lsq-smart", "jiq", "lsq-sample", "jsq(d=2)"] {
        let config = config(policy, (4, 32), "0.9");
        let sharing = "10us,500ns".parse().unwrap();
        assert_equal(&ct::Config { sharing: Some(sharing), ..config }, policy);
    }
}

/// LSQ's Algorithm 1 samples d workers, like power-of-d choices: one probe each.
// promise: scheduling.6
#[test]
fn probing_leaves_decide_as_the_simulators_dispatchers() {
    for (leaves, workers) in [(1, 32), (4, 32), (10, 32), (4, 100), (10, 100)] {
        for (policy, probes) in [("lsq-sample", 2.0), ("lsq-sample(d=3)", 3.0), ("jsq(d=2)", 2.0)] {
            for load in ["0.7", "0.95"] {
                let name = format!("{policy}, {leaves} leaves, {workers} workers, load {load}");
                let messages = assert_equal(&config(policy, (leaves, workers), load), &name);
                println!("{name}: {messages:.3} messages per task");
                assert!(messages == probes, "{name}: {messages}");
            }
        }
    }
}

// promise: scheduling.6
#[test]
fn probing_leaves_match_for_any_delay_and_speed() {
    for delay_ns in [0.0, 50_000.0, 300_000.0] {
        for policy in ["lsq-sample", "hlsq-sample", "jsq(d=1)", "ppot", "ppot-ll"] {
            let name = format!("{policy}, {delay_ns} ns");
            let mut config = config(policy, (4, 32), "0.8");
            config.delay_ns = delay_ns;
            for (worker, speed) in config.speeds.iter_mut().enumerate() {
                *speed = if worker < 16 { 0.7 } else { 1.3 };
            }
            assert_equal(&config, &name);
        }
    }
}

// promise: scheduling.6
#[test]
fn persistent_idle_matches_until_the_model_searches() {
    // `pi` (persistent idle) picks an idle worker, else the one that last reported itself idle. A dispatcher of the
    // model also searches for idle workers on no list, after 16 reports per worker or after 100 ms. A leaf with reports
    // in messages does not search. These runs are too short for a search.
    for (leaves, workers, tasks) in [(1, 32, 500), (4, 32, 1500), (4, 100, 3000), (10, 100, 3000)] {
        let config = config("pi", (leaves, workers), "0.8");
        assert_equal(
            &ct::Config { tasks, ..config },
            &format!("{leaves} leaves, {workers} workers"),
        );
    }
}

// promise: scheduling.6
#[test]
fn eps_sets_the_report_rate() {
    // Number of messages per task. With `eps` 0, workers report only when they become idle.
    let messages = |eps: f64| {
        let policy = format!("lsq-update(eps={eps})");
        assert_equal(&config(&policy, (4, 32), "0.9"), &policy)
    };
    let [never, half, always] = [0.0, 0.5, 1.0].map(messages);
    assert!(never < 0.8 && never + 0.1 < half && half + 0.1 < always, "{never}, {half}, {always}");
    assert!(always == 1.0, "with each task: {always}");
}

/// Builds the configuration of the model `nodes`, which [`nodes::run`] runs too. Its nodes pass tasks to each other: a
/// node forwards a new task (migration), or takes one from another node (steal). `change` sets further flags.
fn nodes_config(
    policy: &str,
    change: impl FnOnce(&mut SimArgs),
) -> wedjat_testbed::sim::nodes::Config {
    let text = |text: &str| Some(text.to_owned());
    let mut args = SimArgs {
        model: text("nodes"),
        policy: text(policy),
        nodes: text("3x2,2x4"),
        service: text("mix(0.5*exp(20us),0.5*exp(200us))"),
        load: text("0.9"),
        tasks: text("4000"),
        digest: text("yes"),
        ..SimArgs::default()
    };
    change(&mut args);
    match plan::cells(&args).unwrap().remove(0).model {
        Model::Nodes(config) => wedjat_testbed::sim::nodes::Config { seed: 7, ..config },
        _ => panic!("another model"),
    }
}

/// Runs agents and model with this configuration. Checks that their digests, messages and losses are equal, and each
/// node's probabilities, critic's error, load and totals. No agent may refuse a message. Returns the agents' run.
fn assert_nodes_equal(config: &wedjat_testbed::sim::nodes::Config, name: &str) -> RunDetails {
    let details = nodes::run(config).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (model, peers) = wedjat_testbed::sim::nodes::run_with_peers(config).unwrap();
    assert_eq!(details.faults, Vec::<String>::new(), "{name}");
    let outcome = &details.outcome;
    assert_eq!((outcome.record, outcome.passed), (model.record, model.passed), "{name}");
    assert_eq!((outcome.messages, outcome.lost), (model.messages, model.lost), "{name}");
    assert_eq!(details.peers.len(), peers.len());
    for (node, (agent, model)) in details.peers.iter().zip(&peers).enumerate() {
        assert_eq!(agent.probabilities(), model.probabilities(), "{name}: node {node}");
        assert_eq!(
            (agent.value_loss(), agent.load()),
            (model.value_loss(), model.load()),
            "{name}"
        );
        assert_eq!(agent.totals(), model.totals(), "{name}: node {node}");
        assert_eq!(agent.refusals().total(), 0, "{name}: node {node}");
    }
    details
}

// promise: agent.4, emulated-time.1
#[test]
fn peer_agents_decide_as_the_simulators_nodes() {
    for policy in ["frozen", "rsteal", "random", "jsq", "po2", "jbt(below=1)"] {
        let details = assert_nodes_equal(&nodes_config(policy, |_| ()), policy);
        let passed = details.outcome.passed.unwrap();
        let passes = [passed.migrations > 100, passed.stolen > 100];
        let expected = match policy {
            "random" => [false, false],
            "rsteal" => [false, true],
            // Depends on the initial random policies.
            "frozen" => [true, passed.stolen > 100],
            _ => [true, false],
        };
        assert_eq!(passes, expected, "{policy}: {passed:?}");
    }
    // Longer delays, and queues that fill up now and then.
    let far = nodes_config("frozen", |args| {
        args.delay = Some("50us".to_owned());
        args.queue = Some("8".to_owned());
    });
    assert!(assert_nodes_equal(&far, "far").outcome.lost > 0);
}

// promise: agent.4, emulated-time.1
#[test]
fn agents_whose_workers_share_match_the_simulator() {
    for policy in ["frozen", "rsteal", "random", "jsq", "po2"] {
        for sharing in ["10us,500ns", "3us,1us,2", "20us,0us,3", "10us,500ns,1"] {
            let config = nodes_config(policy, |args| {
                args.sharing = Some(sharing.to_owned());
                args.tasks = Some("3000".to_owned());
            });
            assert_nodes_equal(&config, &format!("{policy}, {sharing}"));
        }
    }
    // Queues that fill up now and then.
    let full = nodes_config("jsq", |args| {
        args.sharing = Some("10us,500ns,2".to_owned());
        (args.queue, args.load) = (Some("4".to_owned()), Some("1.1".to_owned()));
    });
    assert!(assert_nodes_equal(&full, "full").outcome.lost > 0);
}

// promise: agent.4, emulated-time.1
#[test]
fn agents_learn_as_the_simulators_nodes() {
    // A beat is a step of learning. The run has enough of them for the nodes to average their critics twice.
    let config = nodes_config("malcolm", |args| {
        (args.beat, args.tasks) = (Some("10us".to_owned()), Some("6000".to_owned()));
    });
    let details = assert_nodes_equal(&config, "malcolm");
    for peers in &details.peers {
        let totals = peers.totals();
        assert!(totals.beats > 4000 && totals.agreed >= 2 && totals.lost_parts == 0, "{totals:?}");
    }
    let passed = details.outcome.passed.unwrap();
    assert!(passed.migrations > 100 && passed.stolen > 0, "{passed:?}");
}
