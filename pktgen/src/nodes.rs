//! When a leaf or an agent on this machine stood still: its own polls tell, in its state file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wedjat::state::counters::{PAUSES, Pause};
use wedjat::state::{Snapshot, StateError};

use crate::slices::{self, Pauses, Watched};

/// Between two looks into the file during a run: each takes a CPU away from a loop for some time.
const PERIOD: Duration = Duration::from_millis(250);
/// A node that has stood still, or has ended, may write its last pauses so much later.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks for that.
const SOON: Duration = Duration::from_millis(10);

/// A node whose state file is looked into during a run.
pub struct WatchedNode {
    path: PathBuf,
    cores: Vec<Core>,
}

#[derive(Default)]
struct Core {
    count: u64,
    found: BTreeSet<Pause>,
    unknown_from: Option<u64>,
}

impl WatchedNode {
    /// The node with this state file.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let cores = Snapshot::open(path)?.cores;
        let since = |count| Core { count, ..Core::default() };
        let cores = cores.iter().map(|core| since(core.pauses)).collect();
        Ok(Self { path: path.to_owned(), cores })
    }

    /// Takes what has been written since the last look. What can't be read now is read at the next.
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

    /// Takes what the node has noted until now, which it may not have written yet. Where it does not write any more, all that
    /// is later than the last known pause may be one.
    #[must_use]
    pub fn finish(mut self) -> Vec<Watched> {
        let (started, mut polls, mut copies) = (Instant::now(), None, 0);
        // The second copy that is new was begun after this call.
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

/// Looks into the node's file again and again, for as long as the run goes on.
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
    fn take(&mut self, count: u64, newest: &[Pause]) {
        if count.saturating_sub(self.count) > PAUSES as u64 {
            let last = self.found.last().map_or(0, |pause| pause.to);
            self.unknown_from = self.unknown_from.or(Some(last));
        }
        if count > self.count {
            self.found.extend(newest);
        }
        self.count = count;
    }

    fn watched(self, at: usize, is_known: bool) -> Watched {
        let last = self.found.last().map_or(0, |pause| pause.to);
        let unknown_from = self.unknown_from.or((!is_known).then_some(last));
        let found = self.found.iter().map(|pause| slices::Pause { from: pause.from, to: pause.to });
        let pauses = Pauses::noted(found.collect(), unknown_from);
        Watched { name: format!("the scheduler's core {at}"), pauses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(times: std::ops::Range<u64>) -> Vec<Pause> {
        times.map(|at| Pause { from: 100 * at, to: 100 * at + 50 }).collect()
    }

    #[test]
    fn every_pause_is_taken_once_and_a_gap_is_known() {
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
