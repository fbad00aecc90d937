//! A leaf in lockstep equals the simulator's: with equal seeds, the same tasks go to the same workers at the
//! same times. In lockstep, a conductor emulates everything around the leaf and gives it turns: in a turn,
//! the leaf polls until it is quiet.
//!
//! The leaf is the dataplane's code, in this process, on ports in memory. The simulator's model `rack` is the
//! reference. A run's record holds a digest of all decisions with their times, and the number of answered tasks.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::sync::atomic::AtomicBool;

use wedjat::clock::{Line, TurnError};
use wedjat::policy::{CATALOGUE, Runs};
use wedjat::state::{Counter, Gauge};
use wedjat::wire::ether::Mac;
use wedjat_testbed::lockstep::{
    self, Clients, LeafAddresses, LocalLeaf, LockstepError, Scheduler, Workers,
};
use wedjat_testbed::sim::model::Model;
use wedjat_testbed::sim::outcome::Outcome;
use wedjat_testbed::sim::{SimArgs, plan, rack};

const CLIENTS: Mac = Mac([2, 0, 0, 0, 1, 0x64]);
const WORKERS: Mac = Mac([2, 0, 0, 0, 2, 0x0B]);

/// Returns the model configuration of a rack with 16 workers at load 0.9; `change` alters the flags. The digest makes
/// the model act like a leaf process and record each task.
fn config(change: impl FnOnce(&mut SimArgs)) -> rack::Config {
    let text = |text: &str| Some(text.to_owned());
    let mut args = SimArgs {
        racks: text("16"),
        load: text("0.9"),
        tasks: text("3000"),
        digest: text("yes"),
        ..SimArgs::default()
    };
    change(&mut args);
    match plan::cells(&args).unwrap().remove(0).model {
        Model::Rack(config) => rack::Config { seed: 7, ..config },
        _ => panic!("another model"),
    }
}

/// Runs a leaf in memory, wrapped by `wrap`, until all tasks have ended. Fails early if `stop` is set. The wrapper
/// observes or falsifies the leaf's turns. Also returns the number of tasks that went to idle workers.
fn run_until<S: Scheduler + ?Sized>(
    config: &rack::Config,
    wrap: impl FnOnce(LocalLeaf) -> Box<S>,
    stop: &AtomicBool,
) -> Result<(Outcome, Box<S>, u64), LockstepError> {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let addresses = LeafAddresses::new(config).unwrap();
    let text = addresses.leaf(config, 0, &state).toml();
    let leaf = wedjat::config::Config::parse(Path::new("leaf.toml"), &text).unwrap();
    // 8192 packet buffers.
    let (scheduler, mut ends) = LocalLeaf::new(&leaf, 8192).unwrap();
    ends.workers.set_steered(config.cores.steered);
    let mut scheduler = wrap(scheduler);
    let mut clients = Clients::new(ends.clients, ends.pool, &addresses.target(CLIENTS));
    let mut workers = Workers::new(ends.workers, addresses.address(WORKERS));
    let outcome = lockstep::run(config, &mut clients, &mut workers, &mut *scheduler, stop)?;
    Ok((outcome, scheduler, workers.idle_picks()))
}

/// Same as [`run_until`], with a `stop` that is never set.
fn run_to_end<S: Scheduler + ?Sized>(
    config: &rack::Config,
    wrap: impl FnOnce(LocalLeaf) -> Box<S>,
) -> Result<(Outcome, Box<S>, u64), LockstepError> {
    run_until(config, wrap, &AtomicBool::default())
}

/// Runs a leaf in memory to the end. Checks that the ledger of each core balances without drops.
fn in_lockstep(config: &rack::Config) -> Outcome {
    let (outcome, scheduler, _) = run_to_end(config, Box::new).unwrap();
    for core in scheduler.cores() {
        let counters = core.stages().counters();
        assert!(counters.balances());
        assert_eq!(counters.dropped_total(), 0);
    }
    outcome
}

/// Compares leaf and simulator in a run of this configuration: the digest of all decisions, the numbers of tasks, and
/// the mean response times of each batch of tasks. Returns the leaf's outcome.
fn compare(config: &rack::Config) -> Outcome {
    let (found, expected) = (in_lockstep(config), rack::run(config).unwrap());
    let name = format!("{} on {:?}", config.leaf, config.cores);
    assert_eq!(found.record, expected.record, "{name}");
    assert_eq!((found.tasks, found.lost), (expected.tasks, expected.lost), "{name}");
    let means =
        |outcome: &Outcome| outcome.batches.iter().map(|batch| batch.mean()).collect::<Vec<_>>();
    assert_eq!(means(&found), means(&expected), "{name}");
    found
}

// promise: emulated-time.1
#[test]
fn every_policy_matches_the_simulator() {
    for entry in CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine) {
        for load in ["0.5", "0.95"] {
            let outcome = compare(&config(|args| {
                args.policy = Some(entry.name.to_owned());
                args.load = Some(load.to_owned());
            }));
            assert_eq!(outcome.record.unwrap().answered, 3000, "{}", entry.name);
        }
    }
}

// promise: emulated-time.1
#[test]
fn workers_with_shared_cores_match_the_simulator() {
    for policy in ["jsq", "jsq-msq", "horus", "jbsq(k=4)", "cfcfs"] {
        // A sharing is a quantum, the cost of a switch, and the maximum number of tasks on a core. The second run
        // limits these tasks. The third has unlike speeds and losses.
        for sharing in ["10us,500ns", "3us,1us,2", "20us,0ns"] {
            compare(&config(|args| {
                args.policy = Some(policy.to_owned());
                args.service = Some("mix(0.5*exp(20us),0.5*fixed(200us))".to_owned());
                args.sharing = Some(sharing.to_owned());
                if sharing == "20us,0ns" {
                    args.speeds = Some("8x1,8x2".to_owned());
                    args.loss = Some("0.001".to_owned());
                }
            }));
        }
    }
}

/// Tasks of three classes, whose order the policy changes, and whose long ones may not take all workers.
// promise: emulated-time.1
#[test]
fn classes_match_the_simulator() {
    for policy in [
        "jbsq(k=1, boost=1)",
        "jbsq(k=2, boost=1, reserve=3)",
        "cfcfs(boost=10)",
        "cfcfs(slo=0/50/200/1000, reserve=2)",
        "eft(boost=1, reserve=2)",
    ] {
        for (cores, load) in [("1", "0.9"), ("2", "0.95")] {
            // Beside free reserved places, waiting long tasks let a leaf's core poll at more times than the
            // simulator's. So its timers find bounds and backlogs at other times.
            if cores == "2" && policy.contains("reserve") {
                continue;
            }
            let outcome = compare(&config(|args| {
                args.policy = Some(policy.to_owned());
                args.load = Some(load.to_owned());
                args.cores = Some(cores.to_owned());
                args.service = Some("mix(0.4*exp(10us),0.3*fixed(50us),0.3*exp(500us))".to_owned());
            }));
            assert_eq!(outcome.record.unwrap().answered, 3000, "{policy} on {cores}");
        }
    }
}

// promise: scheduling.2
#[test]
fn cores_match_the_simulator() {
    for entry in CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine) {
        // Replies reach the core that sent the task (same), or any core.
        for (cores, replies, load) in
            [("2", "same", "0.5"), ("2", "any", "0.9"), ("5", "same", "0.9")]
        {
            // With more than two cores, the leaf's timers find the bounds of these policies in a different order than
            // the simulator's.
            if ["cfcfs", "eft"].contains(&entry.name) && cores == "5" {
                continue;
            }
            let outcome = compare(&config(|args| {
                args.policy = Some(entry.name.to_owned());
                args.load = Some(load.to_owned());
                (args.cores, args.replies) = (Some(cores.to_owned()), Some(replies.to_owned()));
            }));
            assert_eq!(outcome.record.unwrap().answered, 3000, "{} on {cores}", entry.name);
        }
    }
}

/// Leaf with a record of the longest time of a free place beside a waiting task, measured after each turn. A
/// place is room for a task at a worker, under the policy's bound.
struct WatchedPlaces {
    leaf: LocalLeaf,
    /// Start of the current time with a free place, in nanoseconds; `None` without one.
    free_since_ns: Option<u64>,
    /// Longest time with a free place so far, in nanoseconds.
    longest_ns: u64,
    /// Sum over all turns of the number of cores with a waiting task.
    waited: u64,
}

impl Scheduler for WatchedPlaces {
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        let line = self.leaf.turn(now_ns)?;
        let dispatchers = self.leaf.cores().iter().filter_map(|core| core.stages().dispatcher(0));
        let waiting = dispatchers.clone().filter(|dispatcher| dispatcher.waiting() > 0);
        self.waited += waiting.clone().count() as u64;
        // `may_release` of a waiting core does not show a free worker that another core keeps on its idle list for
        // tasks of its own.
        let has_idle =
            || dispatchers.clone().any(|dispatcher| !dispatcher.view().idle().is_empty());
        let is_free = waiting.clone().any(|dispatcher| dispatcher.may_release() || has_idle());
        // The start is noted before the check, so that the time includes the step to the turn that takes the place.
        let since_ns = *self.free_since_ns.get_or_insert(now_ns);
        self.longest_ns = self.longest_ns.max(now_ns - since_ns);
        if !is_free {
            self.free_since_ns = None;
        }
        Ok(line)
    }
}

/// A place is free for at most 10 us while a task waits.
// promise: scheduling.2
#[test]
fn no_place_idles_while_another_core_waits() {
    for policy in ["jbsq(k=1)", "jbsq(k=2)", "cfcfs"] {
        for (cores, replies) in [("2", "same"), ("2", "any"), ("6", "same"), ("6", "any")] {
            let config = config(|args| {
                args.policy = Some(policy.to_owned());
                args.load = Some("0.85".to_owned());
                (args.cores, args.replies) = (Some(cores.to_owned()), Some(replies.to_owned()));
            });
            let watched = |leaf| {
                Box::new(WatchedPlaces { leaf, free_since_ns: None, longest_ns: 0, waited: 0 })
            };
            let (_, scheduler, _) = run_to_end(&config, watched).unwrap();
            let WatchedPlaces { longest_ns, waited, .. } = *scheduler;
            assert!(waited > 100, "{policy}: {waited}");
            // Cores exchange free places when they poll, within some turns.
            assert!(longest_ns <= 10_000, "{policy} on {cores}, {replies}: {longest_ns} ns");
        }
    }
}

// promise: emulated-time.1
#[test]
fn ties_losses_and_speeds_make_no_difference() {
    let text = |text: &str| Some(text.to_owned());
    for policy in ["horus", "cfcfs", "jbsq", "sed", "ppot-learned", "jiq"] {
        // All times are multiples of the same values, so that many events coincide (ties).
        compare(&config(|args| {
            args.policy = text(policy);
            args.service = text("fixed(100us)");
            args.arrivals = text("constant");
            (args.hop, args.hop_dist) = (text("5us"), text("const"));
        }));
        compare(&config(|args| {
            args.policy = text(policy);
            args.service = text("mix(0.9*fixed(20us), 0.1*exp(400us))");
            args.hop = text("0us");
        }));
        // 1% of the packets are lost. 3000 tasks cross two links each to their workers: about 60 get lost.
        let lossy = compare(&config(|args| {
            args.policy = text(policy);
            args.load = text("0.5");
            args.loss = text("0.01");
        }));
        let answered = lossy.record.unwrap().answered;
        assert!(lossy.lost > 30 && answered < 3000 - lossy.lost, "replies get lost, too");
        // Eight workers of speed 1 and eight of speed 4.
        compare(&config(|args| {
            args.policy = text(policy);
            args.speeds = text("8x1,8x4");
        }));
        // Compares a run in which a leaf's work takes `delay`. Returns its digest.
        let digest = |delay| {
            let outcome = compare(&config(|args| {
                args.policy = text(policy);
                args.load = text("0.3");
                args.node_delay = text(delay);
            }));
            outcome.record.unwrap().digest
        };
        assert!(
            digest("0us") != digest("2us"),
            "what a leaf's work takes is part of each response"
        );
    }
}

// promise: emulated-time.1
#[test]
fn periodic_checks_change_nothing() {
    // 60,000 tasks make the run long enough for a leaf's periodic checks of silent workers, lost tasks and neighbours.
    for policy in ["jiq", "horus"] {
        compare(&config(|args| {
            args.policy = Some(policy.to_owned());
            (args.load, args.tasks) = (Some("0.3".to_owned()), Some("60000".to_owned()));
        }));
    }
}

// promise: scheduling.3
#[test]
fn tasks_wait_in_leaf_for_idle_workers() {
    let config = config(|args| args.policy = Some("jbsq(k=1)".to_owned()));
    let (outcome, scheduler, idle_picks) = run_to_end(&config, Box::new).unwrap();
    // With a bound of one task per worker, only idle workers get tasks.
    assert_eq!(
        (idle_picks, outcome.lost),
        (3000, 0),
        "every task goes to a worker without another"
    );
    let counters = scheduler.leaf().stages().counters();
    assert_eq!((counters.read(Counter::Scheduled), counters.read(Counter::Refused)), (3000, 0));
    assert_eq!(counters.read(Gauge::Held), 0);
}

// promise: emulated-time.2
#[test]
fn another_seed_is_another_run() {
    let config = config(|_| {});
    let other = rack::Config { seed: 8, ..config.clone() };
    assert_ne!(in_lockstep(&config).record, in_lockstep(&other).record);
    assert_eq!(in_lockstep(&config).record, in_lockstep(&config).record);
}

/// Leaf that reports one sent packet too many from 1 ms on.
struct MiscountingLeaf(LocalLeaf);

impl Scheduler for MiscountingLeaf {
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        let line = self.0.turn(now_ns)?;
        Ok(Line { sent: line.sent + u64::from(now_ns > 1_000_000), ..line })
    }
}

/// Leaf whose next timer never lies beyond 1 ms. The conductor could then never advance past that time.
struct RestlessLeaf(LocalLeaf);

impl Scheduler for RestlessLeaf {
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        let line = self.0.turn(now_ns)?;
        Ok(Line { timer_ns: line.timer_ns.min(1_000_000), ..line })
    }
}

// promise: emulated-time.2
#[test]
fn misbehaving_scheduler_is_detected() {
    let config = config(|_| {});
    // Returns the conductor's error for a leaf with this wrapper.
    let error_of = |wrap: fn(LocalLeaf) -> Box<dyn Scheduler>| {
        run_to_end(&config, wrap).err().unwrap().to_string()
    };
    let counts = error_of(|local| Box::new(MiscountingLeaf(local)));
    // The time in the message begins with 1: the first turn after 1,000,000 ns.
    assert!(counts.contains("packet counts differ at 1"), "{counts}");
    let timer = error_of(|local| Box::new(RestlessLeaf(local)));
    assert!(timer.contains("timer stays at 1000000 ns"), "{timer}");
    let stop = AtomicBool::new(true);
    let stopped = run_until(&config, Box::new, &stop).err().unwrap().to_string();
    assert_eq!(stopped, "stopped");
}
