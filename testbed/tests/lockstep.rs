//! A leaf in lockstep does what the simulator's does: the same seeds give the same tasks to the same workers at the same times.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::sync::atomic::AtomicBool;

use wedjat::clock::{Line, TurnError};
use wedjat::policy::{CATALOGUE, Runs};
use wedjat::state::{Counter, Gauge};
use wedjat::wire::ether::Mac;
use wedjat_testbed::lockstep::{self, Clients, Local, LockstepError, Scheduler, Setting, Workers};
use wedjat_testbed::sim::model::Model;
use wedjat_testbed::sim::outcome::Outcome;
use wedjat_testbed::sim::{SimArgs, plan, rack};

const CLIENTS: Mac = Mac([2, 0, 0, 0, 1, 0x64]);
const WORKERS: Mac = Mac([2, 0, 0, 0, 2, 0x0B]);

/// The model that these flags and these changes of them stand for, as its leaf would be a process.
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

/// A run of what `wrap` makes of a leaf in memory, until `stop` is set; and how many tasks went to idle workers.
fn run_until<S: Scheduler + ?Sized>(
    config: &rack::Config,
    wrap: impl FnOnce(Local) -> Box<S>,
    stop: &AtomicBool,
) -> Result<(Outcome, Box<S>, u64), LockstepError> {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let setting = Setting::new(config).unwrap();
    let text = setting.leaf(config, 0, &state).toml();
    let leaf = wedjat::config::Config::parse(Path::new("leaf.toml"), &text).unwrap();
    let (scheduler, mut ends) = Local::new(&leaf, 8192).unwrap();
    ends.workers.set_steered(config.cores.steered);
    let mut scheduler = wrap(scheduler);
    let mut clients = Clients::new(ends.clients, ends.pool, &setting.target(CLIENTS));
    let mut workers = Workers::new(ends.workers, setting.address(WORKERS));
    let outcome = lockstep::run(config, &mut clients, &mut workers, &mut *scheduler, stop)?;
    Ok((outcome, scheduler, workers.idle_picks()))
}

fn run_of<S: Scheduler + ?Sized>(
    config: &rack::Config,
    wrap: impl FnOnce(Local) -> Box<S>,
) -> Result<(Outcome, Box<S>, u64), LockstepError> {
    run_until(config, wrap, &AtomicBool::default())
}

/// A run of a leaf in memory.
fn in_lockstep(config: &rack::Config) -> Outcome {
    let (outcome, scheduler, _) = run_of(config, Box::new).unwrap();
    for core in scheduler.cores() {
        let counters = core.stages().counters();
        assert!(counters.balances());
        assert_eq!(counters.dropped_total(), 0);
    }
    outcome
}

/// Both runs of these flags are the same, task by task.
fn compare(config: &rack::Config) -> Outcome {
    let (found, expected) = (in_lockstep(config), rack::run(config).unwrap());
    let name = &config.leaf;
    assert_eq!(found.record, expected.record, "{name}");
    assert_eq!((found.tasks, found.lost), (expected.tasks, expected.lost), "{name}");
    let means =
        |outcome: &Outcome| outcome.batches.iter().map(|batch| batch.mean()).collect::<Vec<_>>();
    assert_eq!(means(&found), means(&expected), "{name}");
    found
}

#[test]
fn every_policy_gives_the_same_tasks_to_the_same_workers_at_the_same_times() {
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

#[test]
fn cores_give_the_same_tasks_to_the_same_workers_as_in_the_simulator() {
    for entry in CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine) {
        for (cores, replies, load) in
            [("2", "same", "0.5"), ("2", "any", "0.9"), ("5", "same", "0.9")]
        {
            // Cores beyond two find its bound in another order in the leaf's timers than in the simulator's.
            if entry.name == "cfcfs" && cores == "5" {
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

/// A leaf of which is noted for how long a place was free at a worker while a task waited, after the turns at which it was.
struct PlacesWatched {
    leaf: Local,
    free_since_ns: Option<u64>,
    longest_ns: u64,
    waited: u64,
}

impl Scheduler for PlacesWatched {
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        let line = self.leaf.turn(now_ns)?;
        let dispatchers = self.leaf.cores().iter().filter_map(|core| core.stages().dispatcher(0));
        let waiting = dispatchers.clone().filter(|dispatcher| dispatcher.waiting() > 0);
        self.waited += waiting.clone().count() as u64;
        // Its core may have kept it for a task of its own.
        let kept = || dispatchers.clone().any(|one| !one.view().idle().is_empty());
        let is_free = waiting.clone().any(|one| one.may_release() || kept());
        let since_ns = *self.free_since_ns.get_or_insert(now_ns);
        self.longest_ns = self.longest_ns.max(now_ns - since_ns);
        if !is_free {
            self.free_since_ns = None;
        }
        Ok(line)
    }
}

#[test]
fn no_place_stays_free_while_a_task_waits_on_another_core() {
    for policy in ["jbsq(k=1)", "jbsq(k=2)", "cfcfs"] {
        for (cores, replies) in [("2", "same"), ("2", "any"), ("6", "same"), ("6", "any")] {
            let config = config(|args| {
                args.policy = Some(policy.to_owned());
                args.load = Some("0.85".to_owned());
                (args.cores, args.replies) = (Some(cores.to_owned()), Some(replies.to_owned()));
            });
            let watched = |leaf| {
                Box::new(PlacesWatched { leaf, free_since_ns: None, longest_ns: 0, waited: 0 })
            };
            let (_, scheduler, _) = run_of(&config, watched).unwrap();
            let PlacesWatched { longest_ns, waited, .. } = *scheduler;
            assert!(waited > 100, "{policy}: {waited}");
            assert!(longest_ns <= 10_000, "{policy} on {cores}, {replies}: {longest_ns} ns");
        }
    }
}

#[test]
fn ties_losses_and_speeds_make_no_difference() {
    let text = |text: &str| Some(text.to_owned());
    for policy in ["horus", "cfcfs", "jbsq", "sed", "ppot-learned", "jiq"] {
        // Everything is a multiple of the same times, so that much happens at once.
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
        let lossy = compare(&config(|args| {
            args.policy = text(policy);
            args.load = text("0.5");
            args.loss = text("0.01");
        }));
        let answered = lossy.record.unwrap().answered;
        assert!(lossy.lost > 30 && answered < 3000 - lossy.lost, "replies get lost, too");
        compare(&config(|args| {
            args.policy = text(policy);
            args.speeds = text("8x1,8x4");
        }));
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

#[test]
fn what_a_leaf_looks_at_now_and_then_changes_nothing() {
    // Long enough for all that a leaf does besides: it looks at silent workers, lost tasks and neighbours.
    for policy in ["jiq", "horus"] {
        compare(&config(|args| {
            args.policy = Some(policy.to_owned());
            (args.load, args.tasks) = (Some("0.3".to_owned()), Some("60000".to_owned()));
        }));
    }
}

#[test]
fn tasks_wait_in_the_leaf_for_workers_without_any() {
    let config = config(|args| args.policy = Some("jbsq(k=1)".to_owned()));
    let (outcome, scheduler, idle_picks) = run_of(&config, Box::new).unwrap();
    assert_eq!(
        (idle_picks, outcome.lost),
        (3000, 0),
        "every task goes to a worker without another"
    );
    let counters = scheduler.leaf().stages().counters();
    assert_eq!((counters.read(Counter::Scheduled), counters.read(Counter::Refused)), (3000, 0));
    assert_eq!(counters.read(Gauge::Held), 0);
}

#[test]
fn another_seed_is_another_run() {
    let config = config(|_| {});
    let other = rack::Config { seed: 8, ..config.clone() };
    assert_ne!(in_lockstep(&config).record, in_lockstep(&other).record);
    assert_eq!(in_lockstep(&config).record, in_lockstep(&config).record);
}

/// A leaf whose account of itself is wrong by one packet from a time on.
struct Miscounting(Local);

impl Scheduler for Miscounting {
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        let line = self.0.turn(now_ns)?;
        Ok(Line { sent: line.sent + u64::from(now_ns > 1_000_000), ..line })
    }
}

/// A leaf whose timer never lets time pass.
struct Restless(Local);

impl Scheduler for Restless {
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        let line = self.0.turn(now_ns)?;
        Ok(Line { timer_ns: line.timer_ns.min(1_000_000), ..line })
    }
}

#[test]
fn a_scheduler_that_does_what_it_may_not_is_found_out() {
    let config = config(|_| {});
    let said =
        |wrong: fn(Local) -> Box<dyn Scheduler>| run_of(&config, wrong).err().unwrap().to_string();
    let books = said(|local| Box::new(Miscounting(local)));
    assert!(books.contains("the books do not agree at 1"), "{books}");
    let timer = said(|local| Box::new(Restless(local)));
    assert!(timer.contains("timer stays at 1000000 ns"), "{timer}");
    let stop = AtomicBool::new(true);
    let stopped = run_until(&config, Box::new, &stop).err().unwrap().to_string();
    assert_eq!(stopped, "stopped");
}
