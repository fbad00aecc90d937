//! Stalls of a leaf or an agent on this machine, read from its state file. A stall is a time in which a poll
//! loop did not run, because the system preempted its CPU. Tasks that it delays say nothing about the
//! scheduler, so the report excludes their time ([`crate::slices`]).
//!
//! A leaf is the scheduler process of a rack, an agent that of a worker host. Each copies its counters and its newest
//! stalls ("pauses" there) to its state file at intervals. The node and this process read the same clock, the TSC.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wedjat::state::counters::{PAUSES, PollPause};
use wedjat::state::{Snapshot, StateError};

use crate::slices::{self, LoopWatch, Pauses};

/// Interval between reads during a run. Each read takes CPU time from a loop.
const READ_INTERVAL: Duration = Duration::from_millis(250);
/// Longest wait for the last stalls of a node after the run. The node may be stalled, or may have ended.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between reads during that wait.
const FINISH_INTERVAL: Duration = Duration::from_millis(10);

/// A node whose state file is read during a run.
pub struct WatchedNode {
    /// Path of the state file.
    path: PathBuf,
    /// Process that wrote the last snapshot.
    pid: u64,
    cores: Vec<Core>,
}

/// Stalls of one core of the node, whose times are ticks of the machine's clock.
#[derive(Default)]
struct Core {
    /// Number of stalls that the node has counted.
    count: u64,
    /// Stalls read so far.
    stalls: BTreeSet<PollPause>,
    /// Tick from which stalls may be missing, because the node overwrote them before they were read. It is the end of
    /// the last known stall, or 0.
    unknown_from: Option<u64>,
}

impl WatchedNode {
    /// Opens a node's state file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let Snapshot { pid, cores, .. } = Snapshot::open(path)?;
        // Starts at the present count: stalls before the run do not matter.
        let new_core = |count| Core { count, ..Core::default() };
        let cores = cores.iter().map(|core| new_core(core.pauses)).collect();
        Ok(Self { path: path.to_owned(), pid, cores })
    }

    /// Reads the stalls since the last call. If the file is unreadable now, the next call reads them.
    pub fn read_new_stalls(&mut self) {
        if let Ok(snapshot) = Snapshot::open(&self.path) {
            self.add_snapshot(&snapshot);
        }
    }

    /// Adds the stalls of a snapshot, core by core.
    fn add_snapshot(&mut self, snapshot: &Snapshot) {
        if std::mem::replace(&mut self.pid, snapshot.pid) != snapshot.pid {
            self.cores.iter_mut().for_each(Core::restart);
        }
        for (core, state) in self.cores.iter_mut().zip(&snapshot.cores) {
            core.add_stalls(state.pauses, &state.newest_pauses);
        }
    }

    /// Reads the remaining stalls, which the node may not have written yet, and returns all stalls of each core. If the
    /// node has stopped writing, stalls may be missing after the last known one.
    #[must_use]
    pub fn finish(mut self) -> Vec<LoopWatch> {
        let (started, mut polls, mut copies) = (Instant::now(), None, 0);
        // The first copy may be old, and the node may have begun the second one before this call. The third
        // is newer than this call.
        while copies < 3 && started.elapsed() < FINISH_TIMEOUT {
            if let Ok(snapshot) = Snapshot::open(&self.path) {
                let now: u64 = snapshot.cores.iter().map(polls_of).sum();
                // A loop that runs polls all the time, so a new copy of its counters has more polls.
                if polls.replace(now) != Some(now) {
                    copies += 1;
                    self.add_snapshot(&snapshot);
                }
            }
            std::thread::sleep(FINISH_INTERVAL);
        }
        let is_complete = copies >= 3;
        self.cores
            .into_iter()
            .enumerate()
            .map(|(index, core)| core.watched(index, is_complete))
            .collect()
    }
}

/// Reads the node's file repeatedly while `is_running` returns true. The file holds only the newest stalls.
pub fn read_while(node: &mut WatchedNode, is_running: impl Fn() -> bool) {
    while is_running() {
        std::thread::sleep(READ_INTERVAL);
        node.read_new_stalls();
    }
}

/// Returns the number of polls of a core. It grows with each copy of the counters, even without packets.
fn polls_of(core: &wedjat::state::table::CoreSnapshot) -> u64 {
    ["busy_polls", "empty_polls"].iter().filter_map(|name| core.counters.get(name)).sum()
}

impl Core {
    /// Handles a restart of the node, which counts its stalls from 0 again. The last stalls of the old process and the
    /// time between both are unknown.
    fn restart(&mut self) {
        let last = self.stalls.last().map_or(0, |stall| stall.to);
        self.unknown_from = self.unknown_from.or(Some(last));
        self.count = 0;
    }

    /// Adds the newest stalls of the node, which has counted `count` stalls. Stalls read before are in the
    /// set already.
    fn add_stalls(&mut self, count: u64, newest: &[PollPause]) {
        // The file has only the newest `PAUSES` stalls. If more are new, the first of them are overwritten.
        if count.saturating_sub(self.count) > PAUSES as u64 {
            let last = self.stalls.last().map_or(0, |stall| stall.to);
            self.unknown_from = self.unknown_from.or(Some(last));
        }
        if count > self.count {
            self.stalls.extend(newest);
        }
        self.count = count;
    }

    /// Returns the stalls in the form for reports. If they are not complete, stalls may be missing after the
    /// last one.
    fn watched(self, index: usize, is_complete: bool) -> LoopWatch {
        let last = self.stalls.last().map_or(0, |stall| stall.to);
        let unknown_from = self.unknown_from.or((!is_complete).then_some(last));
        let stalls =
            self.stalls.iter().map(|stall| slices::Pause { from: stall.from, to: stall.to });
        let pauses = Pauses::from_stalls(stalls.collect(), unknown_from);
        LoopWatch { name: format!("the scheduler's core {index}"), pauses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns stalls of 50 ticks, one each 100 ticks.
    fn stalls(times: std::ops::Range<u64>) -> Vec<PollPause> {
        times.map(|at| PollPause { from: 100 * at, to: 100 * at + 50 }).collect()
    }

    // promise: measurement.2
    #[test]
    fn every_stall_is_read_once_and_gaps_show() {
        let mut core = Core { count: 7, ..Core::default() };
        core.add_stalls(10, &stalls(0..10));
        core.add_stalls(12, &stalls(0..12));
        assert_eq!((core.stalls.len(), core.unknown_from), (12, None));
        // One more new stall than the file holds: the last known one ended at 1150.
        let capacity = PAUSES as u64;
        core.add_stalls(13 + capacity, &stalls(13..13 + capacity));
        assert_eq!(core.unknown_from, Some(1150));
        // The last known stall of a node ended at 350. The node stops writing, so it may have stalled since.
        let mut silent = Core::default();
        silent.add_stalls(1, &stalls(3..4));
        assert_eq!(silent.watched(0, false).pauses.unknown_from(), Some(350));
    }

    #[test]
    fn stalls_after_a_restart_are_read() {
        let mut core = Core::default();
        core.add_stalls(9, &stalls(0..9));
        core.restart();
        core.add_stalls(1, &stalls(20..21));
        assert_eq!((core.stalls.len(), core.unknown_from), (10, Some(850)));
    }
}
