//! CPUs of this process: affinity, pinning, time used, and the threads of other nodes that poll the same CPU.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Returns the CPUs in the calling thread's affinity, which a cpuset narrows. Empty if the system does not report
/// them.
#[must_use]
pub fn usable() -> Vec<usize> {
    let Ok(usable) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&cpu| usable.is_set(cpu)).collect()
}

/// Pins the calling thread to one CPU. Returns false if the system refuses.
#[must_use]
pub fn pin(cpu: usize) -> bool {
    if cpu >= CpuSet::MAX_CPU {
        return false;
    }
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).is_ok()
}

/// Returns the usable CPUs without `cores`, for threads that must not disturb the polling cores.
#[must_use]
pub fn except(cores: &[usize]) -> Vec<usize> {
    usable().into_iter().filter(|cpu| !cores.contains(cpu)).collect()
}

/// Returns the CPU time that the calling thread has used. Background simulations bound their cost with it.
#[must_use]
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Kinds of threads that poll, by the first part of their names.
const POLLING: [&str; 2] = ["dispatch", "agent"];

/// Returns the name of a node's thread. The name of a thread that polls without sleep contains its CPU, for
/// [`pollers`].
#[must_use]
pub fn thread_name(kind: &str, cpu: usize, always_polls: bool) -> String {
    if always_polls { format!("{kind}-{cpu}") } else { kind.to_owned() }
}

/// A thread of another node that polls without sleep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poller {
    /// CPU of the thread.
    pub cpu: usize,
    /// Process id of the node.
    pub pid: u32,
}

impl fmt::Display for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPU {}: the node with pid {} polls it, too", self.cpu, self.pid)
    }
}

/// Advice for two nodes that poll the same CPU.
pub const SHARED_CPU_FIX: &str = "give one of the nodes another CPU (`leaf.cores`, `agent.core`), or let both sleep while idle: poll = \"adaptive\"";

/// Returns the threads of other processes that poll these CPUs without sleep, by the names that [`thread_name`] gives.
/// `proc` is the folder of the process file system.
#[must_use]
pub fn pollers(proc: &Path, cpus: &[usize]) -> Vec<Poller> {
    let numbers = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    for pid in numbers(proc).into_iter().filter(|&pid| pid != std::process::id()) {
        let tasks = proc.join(format!("{pid}/task"));
        for task in numbers(&tasks) {
            let name = fs::read_to_string(tasks.join(format!("{task}/comm"))).unwrap_or_default();
            let parts = name.trim_end().rsplit_once('-').filter(|(kind, _)| POLLING.contains(kind));
            let cpu = parts.and_then(|(_, cpu)| cpu.parse().ok()).filter(|cpu| cpus.contains(cpu));
            found.extend(cpu.map(|cpu| Poller { cpu, pid }));
        }
    }
    found.sort_unstable_by_key(|poller| (poller.cpu, poller.pid));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_threads_of_other_processes_are_found() {
        let proc = tempfile::tempdir().unwrap();
        let thread = |pid: u32, task: u32, name: &str| {
            let folder = proc.path().join(format!("{pid}/task/{task}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
        };
        // Found are the threads that poll CPU 2, except those that sleep, of other programs, or of this process.
        thread(1 << 30, 1, "wedjat");
        thread(1 << 30, 2, &thread_name("dispatch", 2, true));
        thread(1 << 30, 3, &thread_name("dispatch", 3, true));
        thread(1 << 29, 4, &thread_name("agent", 2, true));
        thread(1 << 28, 5, &thread_name("agent", 2, false));
        thread(1 << 28, 6, "kworker-2");
        thread(std::process::id(), 7, &thread_name("dispatch", 2, true));
        fs::write(proc.path().join("cpuinfo"), "").unwrap();
        let found = pollers(proc.path(), &[1, 2]);
        assert_eq!(found, [1 << 29, 1 << 30].map(|pid| Poller { cpu: 2, pid }));
        assert_eq!(found[0].to_string(), "CPU 2: the node with pid 536870912 polls it, too");
    }

    #[test]
    fn remaining_cpus_exclude_the_given() {
        let all = usable();
        assert!(!all.is_empty() && except(&all).is_empty() && except(&[]) == all);
        assert_eq!(except(&all[..1]), all[1..]);
        let last = all[all.len() - 1];
        let alone = std::thread::spawn(move || (pin(last), usable(), pin(usize::MAX)));
        assert_eq!(alone.join().unwrap(), (true, vec![last], false));
    }
}
