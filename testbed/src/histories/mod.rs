//! Histories of controllers under faults. Clients send commands and reads to `wedjat controller` processes,
//! followers receive their messages, and a nemesis (a thread, named as in Jepsen) injects faults. Afterwards
//! [`check`] verifies that one versioned fabric explains all observations.
//!
//! The soak in emulated time (long random runs of `lockstep`) records histories in the same form, for the same
//! check.

pub mod check;
mod client;
pub mod cluster;
pub mod linear;
pub mod nemesis;
pub mod record;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use check::{Rule, Violation};
use client::RunState;
use cluster::{Cluster, Store};
use nemesis::{ClusterFault, Injection, Nemesis};
use record::{Answer, History, Request};

/// Maximum time to the first leader, and from the last fault until a leader serves and all followers have its
/// version.
const SERVED_MAX: Duration = Duration::from_secs(90);

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Store of the controllers.
    pub store: Store,
    /// Kinds of faults.
    pub faults: Vec<ClusterFault>,
    /// Length of the run.
    pub time: Duration,
    /// Seed of faults and clients.
    pub seed: u64,
    /// Lease of a leader: the time-limited right to change the fabric, which the leader renews. Also the unit of
    /// the faults' lengths and of the clients' timeout; with [`Store::File`], only that.
    pub lease: Duration,
    /// Number of clients.
    pub clients: u32,
    /// Number of leaves that follow.
    pub followers: u16,
    /// Path of the command `wedjat`.
    pub wedjat: PathBuf,
    /// Folder for the logs of all processes; `None` to keep none.
    pub logs: Option<PathBuf>,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// History.
    pub history: History,
    /// Injected faults.
    pub injected: Vec<Injection>,
    /// Longest interval without an answer of a leader: its length, and its end since the start of the run.
    pub longest_gap: (Duration, Duration),
    /// Time from the end of the faults until a leader stored the final change, which tests the service; `None` if the
    /// test failed.
    pub recovered: Option<Duration>,
    /// Violations, in the order of time.
    pub violations: Vec<Violation>,
    /// Duration of the check.
    pub checked_in: Duration,
}

impl Report {
    /// Returns the numbers of operations, by request and answer.
    #[must_use]
    pub fn outcomes(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for operation in &self.history.operations {
            let name = match (&operation.request, &operation.answer) {
                (Request::Read, Answer::State { .. }) => "reads",
                (Request::Read, _) => "reads not answered",
                (_, Answer::Done { .. }) => "changes acknowledged",
                (_, Answer::Absent | Answer::Present | Answer::OtherVersion { .. }) => {
                    "changes refused"
                }
                (_, Answer::Unknown { .. }) => "changes unknown",
                (_, _) => "changes not made",
            };
            *counts.entry(name).or_default() += 1;
        }
        counts
    }

    /// Returns the numbers of faults, by kind.
    #[must_use]
    pub fn faults(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for injection in &self.injected {
            *counts.entry(injection.period.fault.name()).or_default() += 1;
        }
        counts
    }
}

/// Records a history and checks it. The run ends early if `stop` is set. The process needs namespaces of its
/// own ([`cluster::enter_namespaces`]).
///
/// # Errors
/// If the history cannot be recorded. Violations are part of the report instead.
pub fn run(setting: &Setting, stop: &AtomicBool) -> Result<Report, String> {
    let cluster = Cluster::start(setting.store, &setting.wedjat, setting.lease)?;
    let sockets = (0..cluster.controllers()).map(|index| cluster.socket(index)).collect();
    let (cluster, leader) = (Mutex::new(cluster), Arc::new(AtomicUsize::new(usize::MAX)));
    let began = Instant::now();
    let run_state = Rc::new(RunState::new(sockets, began, setting.lease, Arc::clone(&leader)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let tasks = tokio::task::LocalSet::new();
    let prepared = run_state.prepare(setting.followers, SERVED_MAX);
    tasks
        .block_on(&runtime, prepared)
        .map_err(|reason| format!("the history could not be prepared: {reason}"))?;
    // The plan's times count from the end of the preparation.
    let offset = began.elapsed();
    let plan = nemesis::plan(&setting.faults, setting.seed, setting.time, setting.lease);
    let plan: Vec<_> = plan
        .into_iter()
        .map(|period| nemesis::FaultPeriod {
            from: period.from + offset,
            to: period.to + offset,
            ..period
        })
        .collect();
    let end = offset + setting.time;
    let stop_nemesis = AtomicBool::new(false);
    // Clients and followers are asynchronous tasks of this thread. The nemesis has a thread of its own.
    let (injected, (settled, longest_gap)) = std::thread::scope(|scope| {
        let nemesis = Nemesis {
            cluster: &cluster,
            store: setting.store,
            leader: &leader,
            began,
            stop: &stop_nemesis,
        };
        let nemesis = scope.spawn(move || nemesis.run(&plan));
        let settled = tasks.block_on(&runtime, async {
            let clients = (1..=setting.clients).map(|number| {
                tokio::task::spawn_local(Rc::clone(&run_state).run_client(number, setting.seed))
            });
            let clients: Vec<_> = clients.collect();
            let followers = (1..=setting.followers).map(|leaf| {
                tokio::task::spawn_local(Rc::clone(&run_state).run_follower(leaf, setting.seed))
            });
            let followers: Vec<_> = followers.collect();
            while began.elapsed() < end && !stop.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            // The nemesis undoes all faults before it ends. Clients continue meanwhile.
            stop_nemesis.store(true, Ordering::Relaxed);
            while !nemesis.is_finished() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let settled = run_state.settle(setting.followers, SERVED_MAX).await;
            let longest_gap = run_state.longest_gap();
            run_state.end();
            for client in clients {
                let _ = client.await;
            }
            followers.into_iter().for_each(|follower| follower.abort());
            (settled, longest_gap)
        });
        (nemesis.join(), settled)
    });
    let injected = injected.map_err(|_| "the nemesis panicked")??;
    let cluster = cluster.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(logs) = &setting.logs {
        copy_logs(&cluster, logs)?;
    }
    drop(cluster);
    let (history, check_started) = (run_state.take_history(), Instant::now());
    let mut violations = check::check(&history);
    let recovered = settled.as_ref().ok().copied();
    violations.extend(settled.err().map(|error| Violation {
        rule: Rule::Served,
        at_ns: began.elapsed().as_nanos() as u64,
        description: error,
        lines: Vec::new(),
    }));
    violations.sort_by_key(|violation| violation.at_ns);
    Ok(Report {
        history,
        injected,
        longest_gap,
        recovered,
        violations,
        checked_in: check_started.elapsed(),
    })
}

/// Copies the logs of all processes.
fn copy_logs(cluster: &Cluster, target: &std::path::Path) -> Result<(), String> {
    let describe = |error: std::io::Error| format!("{}: {error}", target.display());
    std::fs::create_dir_all(target).map_err(describe)?;
    for file in std::fs::read_dir(cluster.folder()).map_err(describe)? {
        let file = file.map_err(describe)?;
        if file.path().extension().is_some_and(|ending| ending == "log") {
            std::fs::copy(file.path(), target.join(file.file_name())).map_err(describe)?;
        }
    }
    Ok(())
}
