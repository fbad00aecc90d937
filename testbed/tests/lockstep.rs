//! A leaf in lockstep does what the simulator's does: the same seeds give the same tasks to the same workers at the same times.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::sync::atomic::AtomicBool;

use wedjat::policy::{CATALOGUE, Runs};
use wedjat::wire::ether::Mac;
use wedjat_testbed::lockstep::{self, Clients, Local, Setting, Workers};
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

/// A run of a leaf in memory.
fn in_lockstep(config: &rack::Config) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let setting = Setting::new(config).unwrap();
    let text = setting.leaf(config, 0, &state).toml();
    let leaf = wedjat::config::Config::parse(Path::new("leaf.toml"), &text).unwrap();
    let (mut scheduler, ends) = Local::new(&leaf, 8192).unwrap();
    let pool = ends.pool.clone();
    let mut clients = Clients::new(ends.clients, ends.pool, &setting.target(CLIENTS));
    let mut workers = Workers::new(ends.workers, setting.address(WORKERS));
    let stop = AtomicBool::default();
    let outcome = lockstep::run(config, &mut clients, &mut workers, &mut scheduler, &stop).unwrap();
    let counters = scheduler.leaf().stages().counters();
    assert!(counters.balances());
    assert_eq!(counters.dropped_total(), 0);
    drop((clients, workers, scheduler));
    assert_eq!(pool.in_use(), 0);
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
