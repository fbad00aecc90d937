//! Process information from the system: identity, CPUs and scheduling class.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Identity of a process. Its start time distinguishes it from a later process with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Start time since boot, in the kernel's clock ticks.
    pub started: u64,
}

impl Process {
    /// Returns the process that has this id now; `None` without one.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let stat = Stat::of(&format!("/proc/{pid}"))?;
        Some(Self { pid, started: stat.number(STARTED)? })
    }

    /// Returns the calling process. Without a readable /proc, its start time is 0.
    #[must_use]
    pub fn own() -> Self {
        let pid = std::process::id();
        Self::of(pid).unwrap_or(Self { pid, started: 0 })
    }

    /// Returns true until the process exits; zombies count as exited.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let stat = Stat::of(&format!("/proc/{}", self.pid));
        stat.is_some_and(|stat| {
            stat.number(STARTED) == Some(self.started) && !matches!(stat.field(STATE), "Z" | "X")
        })
    }
}

/// Scheduling attributes of a thread. A supervisor of batch jobs reads those of workers, and restores those of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// Class: 0 normal, 1 FIFO, 2 round robin, 3 batch, 5 idle, 6 deadline (sched(7)).
    pub class: u32,
    /// CPUs that it may use.
    pub cpus: BTreeSet<usize>,
}

impl Scheduling {
    /// Reads the attributes of a thread of any process. Returns `None` after its exit.
    #[must_use]
    pub fn of(thread: u32) -> Option<Self> {
        let folder = format!("/proc/{thread}");
        let class = Stat::of(&folder)?.number(CLASS)? as u32;
        let status = fs::read_to_string(format!("{folder}/status")).ok()?;
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(Self { class, cpus: cpu_list(allowed.trim()) })
    }

    /// Returns true for real-time classes.
    #[must_use]
    pub fn is_real_time(&self) -> bool {
        matches!(self.class, 1 | 2 | 6)
    }
}

/// Returns the thread ids of a process; none after its exit.
#[must_use]
pub fn threads_of(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Parses a set of CPUs in the kernel's form: `0-3,8`. Skips invalid parts.
#[must_use]
pub fn cpu_list(text: &str) -> BTreeSet<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Index of the state among the fields of /proc/PID/stat after the name: its number in proc_pid_stat(5) minus
/// 3.
const STATE: usize = 0;
/// Index of the start time.
const STARTED: usize = 19;
/// Index of the scheduling class.
const CLASS: usize = 38;

/// Fields of a `stat` file after the process's name, which may contain any character.
struct Stat(String);

impl Stat {
    /// Reads the file in a folder of /proc. Returns `None` if there is none.
    fn of(folder: &str) -> Option<Self> {
        let text = fs::read_to_string(PathBuf::from(folder).join("stat")).ok()?;
        text.rsplit_once(") ").map(|(_, fields)| Self(fields.to_owned()))
    }

    /// Returns a field as text; empty if it is missing.
    fn field(&self, index: usize) -> &str {
        self.0.split_whitespace().nth(index).unwrap_or_default()
    }

    /// Returns a field as a number.
    fn number(&self, index: usize) -> Option<u64> {
        self.field(index).parse().ok()
    }
}
