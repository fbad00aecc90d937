//! Processes as the system tells of them: whether they are still the same ones, where they may run and in which class.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A process that no later one of the same number is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in the system's units since the machine did.
    pub started: u64,
}

impl Process {
    /// The one that has this number now.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let stat = Stat::of(&format!("/proc/{pid}"))?;
        Some(Self { pid, started: stat.number(STARTED)? })
    }

    /// The calling one.
    #[must_use]
    pub fn own() -> Self {
        let pid = std::process::id();
        Self::of(pid).unwrap_or(Self { pid, started: 0 })
    }

    /// It has not ended; one that nobody has waited for has.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let stat = Stat::of(&format!("/proc/{}", self.pid));
        stat.is_some_and(|stat| {
            stat.number(STARTED) == Some(self.started) && !matches!(stat.field(STATE), "Z" | "X")
        })
    }
}

/// How the system schedules a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// Its class: 0 normal, 1 FIFO, 2 round robin, 3 batch, 5 idle, 6 deadline (sched(7)).
    pub class: u32,
    /// CPUs that it may use.
    pub cpus: BTreeSet<usize>,
}

impl Scheduling {
    /// Of a thread of any process; none when it has ended.
    #[must_use]
    pub fn of(thread: u32) -> Option<Self> {
        let folder = format!("/proc/{thread}");
        let class = Stat::of(&folder)?.number(CLASS)? as u32;
        let status = fs::read_to_string(format!("{folder}/status")).ok()?;
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(Self { class, cpus: cpu_list(allowed.trim()) })
    }

    /// It comes before all that are not of real time.
    #[must_use]
    pub fn is_real_time(&self) -> bool {
        matches!(self.class, 1 | 2 | 6)
    }
}

/// The threads of a process.
#[must_use]
pub fn threads_of(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The kernel's way to write sets of CPUs: `0-3,8`.
fn cpu_list(text: &str) -> BTreeSet<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Places of fields of /proc/PID/stat behind the name, which may hold anything: proc_pid_stat(5), less 3.
const STATE: usize = 0;
const STARTED: usize = 19;
const CLASS: usize = 38;

struct Stat(String);

impl Stat {
    fn of(folder: &str) -> Option<Self> {
        let text = fs::read_to_string(PathBuf::from(folder).join("stat")).ok()?;
        text.rsplit_once(") ").map(|(_, fields)| Self(fields.to_owned()))
    }

    fn field(&self, at: usize) -> &str {
        self.0.split_whitespace().nth(at).unwrap_or_default()
    }

    fn number(&self, at: usize) -> Option<u64> {
        self.field(at).parse().ok()
    }
}
