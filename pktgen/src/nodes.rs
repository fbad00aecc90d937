//! Stalls of a leaf or an agent on this machine, read from its state file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wedjat::state::counters::{PAUSES, Stall};
use wedjat::state::{Snapshot, StateError};

use crate::slices::{self, LoopWatch, Pauses};

/// Interval between reads during a run. Each read takes CPU time from a loop.
const PERIOD: Duration = Duration::from_millis(250);
/// Time in which a stalled or ended node may still write its last stalls.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval between reads while waiting for them.
const SOON: Duration = Duration::from_millis(10);

/// A node whose state file is read during a run.
pub struct WatchedNode {
    path: PathBuf,
    cores: Vec<Core>,
}

#[derive(Default)]
struct Core {
    count: u64,
    found: BTreeSet<Stall>,
    unknown_from: Option<u64>,
}

impl WatchedNode {
    /// Opens a node's state file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let cores = Snapshot::open(path)?.cores;
        let since = |count| Core { count, ..Core::default() };
        let cores = cores.iter().map(|core| since(core.pauses)).collect();
        Ok(Self { path: path.to_owned(), cores })
    }

    /// Reads the stalls since the last call. Unreadable ones are read at the next call.
    pub fn look(&mut self) {
        if let Ok(snapshot) = Snapshot::open(&self.path) {
            self.take(&snapshot);
        }
    }

    fn take(&mut self, snapshot: &Snapshot) {
        for (core, now) in self.cores.iter_mut().zip(&snapshot.cores) {
            core.take(now.pauses, &now.newest_pauses);
        }
    }

    /// Reads the remaining stalls, which the node may not have written yet. If the node has stopped writing,
    /// all time after the last known stall may be one.
    #[must_use]
    pub fn finish(mut self) -> Vec<LoopWatch> {
        let (started, mut polls, mut copies) = (Instant::now(), None, 0);
        // The second new copy began after this call.
        while copies < 3 && started.elapsed() < PATIENCE {
            if let Ok(snapshot) = Snapshot::open(&self.path) {
                let now: u64 = snapshot.cores.iter().map(polls_of).sum();
                if polls.replace(now) != Some(now) {
                    copies += 1;
                    self.take(&snapshot);
                }
            }
            std::thread::sleep(SOON);
        }
        let is_known = copies >= 3;
        self.cores.into_iter().enumerate().map(|(at, core)| core.watched(at, is_known)).collect()
    }
}

/// Reads the node's file repeatedly while the run continues.
pub fn look_while(node: &mut WatchedNode, goes_on: impl Fn() -> bool) {
    while goes_on() {
        std::thread::sleep(PERIOD);
        node.look();
    }
}

fn polls_of(core: &wedjat::state::table::CoreSnapshot) -> u64 {
    ["busy_polls", "empty_polls"].iter().filter_map(|name| core.counters.get(name)).sum()
}

impl Core {
    fn take(&mut self, count: u64, newest: &[Stall]) {
        if count.saturating_sub(self.count) > PAUSES as u64 {
            let last = self.found.last().map_or(0, |pause| pause.to);
            self.unknown_from = self.unknown_from.or(Some(last));
        }
        if count > self.count {
            self.found.extend(newest);
        }
        self.count = count;
    }

    fn watched(self, at: usize, is_known: bool) -> LoopWatch {
        let last = self.found.last().map_or(0, |pause| pause.to);
        let unknown_from = self.unknown_from.or((!is_known).then_some(last));
        let found = self.found.iter().map(|pause| slices::Pause { from: pause.from, to: pause.to });
        let pauses = Pauses::noted(found.collect(), unknown_from);
        LoopWatch { name: format!("the scheduler's core {at}"), pauses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(times: std::ops::Range<u64>) -> Vec<Stall> {
        times.map(|at| Stall { from: 100 * at, to: 100 * at + 50 }).collect()
    }

    // promise: measurement.2
    #[test]
    fn every_stall_is_read_once_and_gaps_show() {
        let mut core = Core { count: 7, ..Core::default() };
        core.take(10, &pauses(0..10));
        core.take(12, &pauses(0..12));
        assert_eq!((core.found.len(), core.unknown_from), (12, None));
        let kept = PAUSES as u64;
        core.take(13 + kept, &pauses(13..13 + kept));
        assert_eq!(core.unknown_from, Some(1150));
        let mut silent = Core::default();
        silent.take(1, &pauses(3..4));
        assert_eq!(silent.watched(0, false).pauses.unknown_from(), Some(350));
    }
}
