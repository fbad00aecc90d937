//! CPU time of the whole machine, of processes, and of a batch's cgroup. The machine's time beyond that of the
//! benchmark's own processes is foreign. A window of the benchmark with too much foreign time does not count.

use std::fs;
use std::path::{Path, PathBuf};

use wedjat_cosched::mechanism::{CgroupFolders, Controller, Hierarchies, threads_of};

/// Sources of the machine's CPU time.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Usage file of the root cgroup, if there is one. Its unit is finer than a tick of /proc/stat.
    usage: Option<PathBuf>,
    /// Length of a tick of /proc/stat in nanoseconds.
    tick_ns: u64,
}

/// CPU time of a machine since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Used time, in nanoseconds.
    pub ran_ns: u64,
    /// Time stolen by other virtual machines of the same host, in nanoseconds.
    pub stolen_ns: u64,
}

/// Ticks per second in /proc/stat, the same on all supported machines (time(7), USER_HZ).
const USER_HZ: u64 = 100;

impl Machine {
    /// Finds the sources of this machine.
    #[must_use]
    pub fn new() -> Self {
        let mount_point = Hierarchies::of_this_machine().mount_point(Controller::Cpuacct).cloned();
        let usage = mount_point.and_then(|mount_point| {
            let files = ["cpuacct.usage", "cpu.stat"].map(|name| mount_point.folder.join(name));
            files.into_iter().find(|path| path.exists())
        });
        Self { usage, tick_ns: 1_000_000_000 / USER_HZ }
    }

    /// Reads the CPU time since the machine's start.
    #[must_use]
    pub fn used(&self) -> CpuTimes {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let fields = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
        let ticks: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
        let field_ns = |index: usize| ticks.get(index).copied().unwrap_or(0) * self.tick_ns;
        // user nice system idle iowait irq softirq steal guest guest_nice
        let by_ticks = field_ns(0) + field_ns(1) + field_ns(2) + field_ns(5) + field_ns(6);
        let ran_ns = self.usage.as_deref().and_then(nanoseconds).unwrap_or(by_ticks);
        CpuTimes { ran_ns, stolen_ns: field_ns(7) }
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

/// Reads a cgroup's usage file in nanoseconds; `None` if it is invalid. Version 1 has only nanoseconds; version 2 has
/// microseconds among other values.
fn nanoseconds(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
        Some(us) => us.trim().parse::<u64>().ok().map(|us| us * 1000),
        None => text.trim().parse().ok(),
    }
}

/// Returns the CPU time of a cgroup's processes in nanoseconds, including exited processes; `None` if no folder has a
/// valid usage file.
#[must_use]
pub fn of_group(folders: &CgroupFolders) -> Option<u64> {
    let file = |name: &str| folders.paths().map(|path| path.join(name)).find(|path| path.exists());
    nanoseconds(&file("cpuacct.usage").or_else(|| file("cpu.stat"))?)
}

/// Returns the CPU time of a process's live threads in nanoseconds; 0 if it has exited. Decreases when a thread exits.
#[must_use]
pub fn of_process(pid: u32) -> u64 {
    let thread_ns = |thread: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    threads_of(pid).into_iter().filter_map(thread_ns).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: speed.2
    #[test]
    fn process_time_counts_for_process_and_machine() {
        let (machine, own) = (Machine::new(), std::process::id());
        let (before, ran) = (machine.used(), of_process(own));
        let ran_50_ms = || of_process(own) > ran + 50_000_000;
        while !ran_50_ms() {
            std::hint::black_box((0..1000).sum::<u64>());
        }
        let used = machine.used();
        // 20 ms of tolerance, because /proc/stat counts in ticks of 10 ms. Other tests of this process may end a
        // thread in between. `of_process` then loses its time, which only prolongs the loop.
        assert!(used.ran_ns > before.ran_ns + 30_000_000, "{before:?} {used:?}");
        assert!(used.stolen_ns >= before.stolen_ns);
        assert_eq!(of_process(u32::MAX), 0);
    }

    // promise: speed.2
    #[test]
    fn both_forms_of_a_cgroups_file_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (text, expected) in [
            ("1234567\n", Some(1_234_567)),
            ("usage_usec 1234\nuser_usec 5\n", Some(1_234_000)),
            ("nothing\n", None),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(nanoseconds(&path), expected);
        }
    }
}
