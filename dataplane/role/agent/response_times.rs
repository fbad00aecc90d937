//! How long tasks take from their arrival to their answer, and how many wait, for whoever watches from another process.

use crate::node::Timing;
use crate::ring::Watch;

/// Told while somebody asks; see [`Watch`].
#[derive(Debug)]
pub struct ResponseTimes {
    watch: Watch,
    timing: Timing,
    is_asked: bool,
    /// What was asked when that was last looked at, and since when it is so.
    asked: (u64, u64),
}

/// Milliseconds for which a question counts.
const COUNTS_MS: u64 = 1000;

impl ResponseTimes {
    /// Nobody asks yet.
    pub fn new(watch: Watch, timing: Timing) -> Self {
        let asked = (watch.asked(), 0);
        Self { watch, timing, is_asked: false, asked }
    }

    /// A task that arrived at `since` ticks was answered at `now`.
    #[inline]
    pub fn note(&self, since: u64, now: u64) {
        if self.is_asked {
            self.watch.note(self.timing.to_ns(now.saturating_sub(since)));
        }
    }

    /// Looks whether somebody asks, and then tells how many tasks wait.
    pub fn tick(&mut self, now: u64, waiting: impl FnOnce() -> usize) {
        let asked = self.watch.asked();
        if asked != self.asked.0 {
            self.asked = (asked, now);
            self.is_asked = true;
        } else if self.is_asked && now.saturating_sub(self.asked.1) > self.timing.of_ms(COUNTS_MS) {
            self.is_asked = false;
        }
        if self.is_asked {
            self.watch.set_waiting(waiting() as u64);
        }
    }
}
