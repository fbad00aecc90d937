//! Batch work beside an agent's workers, on the workers' cores: observation of the agent, the running job, and
//! the queue of waiting jobs.
//!
//! The *agent* gives network tasks to the *workers* of its host. A *batch* is a command that uses CPU time which the
//! workers leave idle, without much delay for their tasks.
//!
//! A job is a separate process, `wedjat cosched run` or `job`. It reads the agent's published state in the worker
//! region ([`watching`]). Guard and chooser of `wedjat-cosched` set the batch's share of the cores' time, and
//! cgroups hold the batch ([`job`]). The job records its cgroups in a note before it creates them ([`notes`]).
//! Jobs of one agent queue in the folder of notes, and a later job removes the leftovers of a killed one.

pub mod job;
pub mod notes;
pub mod options;
pub mod progress;
pub mod queue;
pub mod watching;

pub use job::{BatchSettings, Job, JobEnd, Signals, run};
pub use notes::{JobState, Note, NotesFolder, jobs_of_agent};
pub use options::{Objective, Policy};
pub use progress::Measure;
pub use queue::JobQueue;
pub use watching::AgentMonitor;

use std::io;
use std::path::PathBuf;

use wedjat_cosched::mechanism::GroupError;
use wedjat_cosched::{GuardSettingsError, LoggingError, SettingsError};

use wedjat_core::ring::RegionError;

/// Reason why a batch did not start or did not complete.
#[derive(Debug, thiserror::Error)]
pub enum CoschedError {
    /// The agent cannot be watched.
    #[error("{error}{hint}", error = .0, hint = region_hint(.0))]
    Region(#[from] RegionError),
    /// The agent has ended.
    #[error("agent {0} has stopped, so the idle time of its cores is unknown; the batch is ended")]
    AgentGone(String),
    /// No worker is attached, or none of their threads is visible.
    #[error(
        "agent {0} has no worker that can be watched: attach one that is pinned to its core, or name the cores with --cpus"
    )]
    NoWorkers(String),
    /// A worker is not pinned to one CPU.
    #[error(
        "worker {worker} (process {process}) may run on CPUs {cpus}, so its idle core is \
         unknown: pin it (`cpu` of its options, or taskset), or name the cores with --cpus"
    )]
    NotPinned {
        /// Id of the worker.
        worker: u16,
        /// Number of its process.
        process: u32,
        /// CPUs that it may use.
        cpus: String,
    },
    /// The batch would take the dispatcher's time.
    #[error(
        "CPU {0} is that of the agent's dispatcher, which never leaves it idle: pin the workers elsewhere, or name other cores with --cpus"
    )]
    Dispatcher(usize),
    /// This process may not use the CPU.
    #[error("this process may not use CPU {cpu}; it may use {usable:?}")]
    Cpu {
        /// The given CPU.
        cpu: usize,
        /// Usable CPUs.
        usable: Vec<usize>,
    },
    /// The batch would harm a worker.
    #[error(
        "a batch of the normal class (limited by: {limit}) beside worker {worker}, which is of \
         the normal class, too, delays its tasks by milliseconds: leave out --class normal, \
         have the worker ask for real time (`real_time` of its options, or chrt -f), or give \
         --force"
    )]
    Harmful {
        /// Limit of the batch.
        limit: &'static str,
        /// Id of the worker.
        worker: u16,
    },
    /// The guard, which limits the batch by the workers' load, would have no observations.
    #[error(
        "agent {agent} has no worker that can be watched, so policy {policy} has no input: attach a worker, or give --policy idle or --force"
    )]
    Unwatched {
        /// Agent.
        agent: String,
        /// Policy.
        policy: String,
    },
    /// The machine has no cgroups.
    #[error(
        "this machine has no cgroups to limit a batch: mount cgroup2, or the controllers cpu and pids"
    )]
    NoGroups,
    /// A cgroup cannot be created, changed or removed, or lacks a control file.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// Processes are left.
    #[error("processes {0:?} of the batch were killed but do not end; they stay in its cgroup")]
    Unkillable(Vec<u32>),
    /// The command cannot be started or watched.
    #[error("{command}: {error}")]
    Command {
        /// Program.
        command: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The folder of notes, a file in it, or the file of the log cannot be used.
    #[error("{}: {error}", path.display())]
    Notes {
        /// Folder or file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The folder of notes is no folder, belongs to another user, or others may write to it.
    #[error("{} is not a private folder of this user; remove it, or name another one in WEDJAT_COSCHED_DIR", .0.display())]
    Foreign(PathBuf),
    /// A decision failed, or could not be logged.
    #[error(transparent)]
    Log(#[from] LoggingError),
    /// The chooser's settings are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The guard's settings are invalid.
    #[error(transparent)]
    Guard(#[from] GuardSettingsError),
}

/// Returns a hint for a missing region. Agents whose workers are threads of their process have no region.
fn region_hint(error: &RegionError) -> &'static str {
    match error {
        RegionError::Missing { .. } => {
            " (an agent whose workers are threads of its own process has none, and can't be watched)"
        }
        _ => "",
    }
}
