//! Batch work beside an agent's worker cores: watching the agent, the job that runs there, and the queue of those that are to.
//!
//! A job is a process of its own, `wedjat cosched run`. It reads what the agent tells in its workers' region ([`watching`]), has
//! the guard and the chooser of `wedjat-cosched` decide what its batch may have, and holds the batch by cgroups of its own
//! ([`job`]). What it makes it notes beforehand in a folder of the user's ([`notes`]), where jobs of one agent wait for each
//! other, and whoever comes next takes away what a killed one left.

pub mod job;
pub mod notes;
pub mod options;
pub mod progress;
pub mod queue;
pub mod watching;

pub use job::{Ended, Job, Setting, Signals, run};
pub use notes::{Folder, JobState, Note, jobs_beside};
pub use options::{Objective, Policy};
pub use progress::Measure;
pub use queue::Queue;
pub use watching::Watching;

use std::io;
use std::path::PathBuf;

use wedjat_cosched::mechanism::GroupError;
use wedjat_cosched::{GuardSettingsError, LoggedError, SettingsError};

use crate::ring::RegionError;

/// Why a batch does not run, or did not to its end.
#[derive(Debug, thiserror::Error)]
pub enum CoschedError {
    /// Its agent can't be watched.
    #[error("{error}{hint}", error = .0, hint = threads(.0))]
    Region(#[from] RegionError),
    /// The agent has ended.
    #[error(
        "agent {0} does not run any more, so that nobody tells what its cores leave idle; the batch is ended"
    )]
    AgentGone(String),
    /// Nobody knows which cores it could have.
    #[error(
        "agent {0} has no worker that can be watched: attach one that is pinned to its core, or name the cores with --cpus"
    )]
    NoWorkers(String),
    /// The same.
    #[error(
        "worker {worker} (process {process}) may run on CPUs {cpus}, so which core it leaves idle is not known: pin it \
         (`cpu` of its options, or taskset), or name the cores with --cpus"
    )]
    NotPinned {
        /// The worker.
        worker: u16,
        /// Its process.
        process: u32,
        /// Where it may run.
        cpus: String,
    },
    /// The batch would take the dispatcher's time.
    #[error(
        "CPU {0} is that of the agent's dispatcher, which never leaves it idle: pin the workers elsewhere, or name other cores with --cpus"
    )]
    Dispatcher(usize),
    /// A core that is not there.
    #[error("this process may not use CPU {cpu}; it may use {usable:?}")]
    Cpu {
        /// The one.
        cpu: usize,
        /// Those there are.
        usable: Vec<usize>,
    },
    /// What does harm.
    #[error(
        "a batch of the normal class (limited by: {limit}) beside worker {worker}, which is of the normal class, too, delays its tasks by \
         milliseconds: leave out --class normal, have the worker ask for real time (`real_time` of its options, or chrt -f), or \
         say --force"
    )]
    Harmful {
        /// What would limit the batch.
        limit: &'static str,
        /// Whom it would harm.
        worker: u16,
    },
    /// Nobody tells what its guard would go by.
    #[error(
        "agent {agent} has no worker that can be watched, so that policy {policy} has nothing to go by: attach a worker, \
         or say --policy idle, or --force"
    )]
    Unwatched {
        /// The agent.
        agent: String,
        /// Who would say how much the batch gets.
        policy: String,
    },
    /// This machine has no cgroups at all.
    #[error(
        "this machine has no cgroups that a batch could be held by: mount cgroup2, or the controllers cpu and pids"
    )]
    NoGroups,
    /// A cgroup can't be made or set.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// Something of it is left.
    #[error(
        "processes {0:?} of the batch do not end, though they were killed; they stay in its cgroup"
    )]
    Unkillable(Vec<u32>),
    /// The command does not start.
    #[error("{command}: {error}")]
    Command {
        /// The program.
        command: String,
        /// What the system said.
        error: io::Error,
    },
    /// The folder of notes can't be used.
    #[error("{}: {error}", path.display())]
    Notes {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The folder of notes is another user's.
    #[error("{} is not a folder of this user's alone; take it away, or name another one in WEDJAT_COSCHED_DIR", .0.display())]
    Foreign(PathBuf),
    /// The log can't be written.
    #[error(transparent)]
    Log(#[from] LoggedError),
    /// It can't be learnt so.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// It can't be guarded so.
    #[error(transparent)]
    Guard(#[from] GuardSettingsError),
}

/// An agent's workers are all processes, which attach to it by its name, or all threads of its own, which have no need of one.
fn threads(error: &RegionError) -> &'static str {
    match error {
        RegionError::Missing { .. } => {
            " (an agent whose workers are threads of its own process has none, and can't be watched)"
        }
        _ => "",
    }
}
