//! CPU time: the whole machine's, that of processes, that of a batch's cgroup. What is left of the first is foreign.

use std::fs;
use std::path::{Path, PathBuf};

use wedjat_cosched::mechanism::{Controller, Hierarchies, Made, threads_of};

/// Where the machine's CPU time is told.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Of all that runs, in nanoseconds: of the root cgroup, where that is told.
    usage: Option<PathBuf>,
    /// A tick of /proc/stat in nanoseconds.
    tick_ns: u64,
}

/// A machine's CPU time until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Of all that ran, in nanoseconds.
    pub ran_ns: u64,
    /// Taken by others on the same host, in nanoseconds.
    pub stolen_ns: u64,
}

/// Ticks a second in /proc/stat: the same on all machines that this runs on (time(7), USER_HZ).
const USER_HZ: u64 = 100;

impl Machine {
    /// This one.
    #[must_use]
    pub fn new() -> Self {
        let place = Hierarchies::of_this_machine().place(Controller::Cpuacct).cloned();
        let usage = place.and_then(|place| {
            let files = ["cpuacct.usage", "cpu.stat"].map(|name| place.folder.join(name));
            files.into_iter().find(|path| path.exists())
        });
        Self { usage, tick_ns: 1_000_000_000 / USER_HZ }
    }

    /// Until now.
    #[must_use]
    pub fn used(&self) -> Used {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let fields = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
        let ticks: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
        let at = |field: usize| ticks.get(field).copied().unwrap_or(0) * self.tick_ns;
        // user nice system idle iowait irq softirq steal guest guest_nice
        let by_ticks = at(0) + at(1) + at(2) + at(5) + at(6);
        let ran_ns = self.usage.as_deref().and_then(nanoseconds).unwrap_or(by_ticks);
        Used { ran_ns, stolen_ns: at(7) }
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

/// What a cgroup's file tells: of version 1 in nanoseconds, of version 2 in microseconds among other things.
fn nanoseconds(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
        Some(us) => us.trim().parse::<u64>().ok().map(|us| us * 1000),
        None => text.trim().parse().ok(),
    }
}

/// Nanoseconds that a cgroup's processes ran, those that have ended, too.
#[must_use]
pub fn of_group(made: &Made) -> Option<u64> {
    let file = |name: &str| made.paths().map(|path| path.join(name)).find(|path| path.exists());
    nanoseconds(&file("cpuacct.usage").or_else(|| file("cpu.stat"))?)
}

/// Nanoseconds that a process's threads ran; 0 when it has ended.
#[must_use]
pub fn of_process(pid: u32) -> u64 {
    let of = |thread: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    threads_of(pid).into_iter().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_runs_is_counted_as_its_own_and_as_the_machines() {
        let (machine, own) = (Machine::new(), std::process::id());
        let (before, ran) = (machine.used(), of_process(own));
        let ran_50_ms = || of_process(own) > ran + 50_000_000;
        while !ran_50_ms() {
            std::hint::black_box((0..1000).sum::<u64>());
        }
        let used = machine.used();
        // Other tests of this process may have ended a thread meanwhile, whose time is nobody's then.
        assert!(used.ran_ns > before.ran_ns + 30_000_000, "{before:?} {used:?}");
        assert!(used.stolen_ns >= before.stolen_ns);
        assert_eq!(of_process(u32::MAX), 0);
    }

    #[test]
    fn both_forms_of_a_cgroups_file_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (text, told) in [
            ("1234567\n", Some(1_234_567)),
            ("usage_usec 1234\nuser_usec 5\n", Some(1_234_000)),
            ("nothing\n", None),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(nanoseconds(&path), told);
        }
    }
}
