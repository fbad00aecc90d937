//! Real time for a core that sleeps while nothing comes.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::{Clock, ClockError, Progress, Watched};
use crate::io::dpdk::Sleeper;
use crate::state::{Counter, Counters};

/// A core whose polls have moved nothing for so long sleeps.
const SPIN_NS: u64 = 20_000;
/// It sleeps for so long at most, however much it has time: between two looks whether to stop.
const SLEEP_MOST_NS: u64 = 10_000_000;
/// And for so long while workers of this host have tasks.
const WORKERS_NS: u64 = 50_000;

/// The processor's counter, and sleep.
pub struct Adaptive {
    watched: Watched,
    sleeper: Sleeper,
    counters: Counters,
    /// Packets received and sent at the last poll.
    moved: (u64, u64),
    /// When a poll moved something last, in ticks.
    moved_at: u64,
    /// What comes wakes the core.
    is_armed: bool,
    has_slept: bool,
}

impl Adaptive {
    /// For the core that has these counters, and the ports that the sleeper is for.
    #[must_use]
    pub fn new(watched: Watched, sleeper: Sleeper, counters: Counters) -> Self {
        let (moved, moved_at) = ((0, 0), 0);
        Self { watched, sleeper, counters, moved, moved_at, is_armed: false, has_slept: false }
    }

    fn ticks(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.ticks_hz()) / 1_000_000_000) as u64
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.sleeper.disarm();
        }
    }

    /// Sleeps until something comes, or it is time.
    fn sleep(&mut self, progress: &Progress) {
        let now = self.watched.now();
        let most = if progress.awaits_workers { WORKERS_NS } else { SLEEP_MOST_NS };
        let until = progress.latest.min(now + self.ticks(most));
        if until <= now {
            return;
        }
        let ns = u128::from(until - now) * 1_000_000_000 / u128::from(self.ticks_hz());
        let is_woken = self.sleeper.sleep(Duration::from_nanos(ns as u64));
        self.watched.slept(until);
        self.has_slept = true;
        self.counters.add(Counter::Sleeps, 1);
        self.counters.add(Counter::Wakes, u64::from(is_woken));
        if is_woken {
            self.disarm();
        }
    }
}

impl Clock for Adaptive {
    fn ticks_hz(&self) -> u64 {
        self.watched.ticks_hz()
    }

    #[inline]
    fn next(&mut self, stop: &AtomicBool) -> Option<u64> {
        self.watched.next(stop)
    }

    #[inline]
    fn has_slept(&self) -> bool {
        self.has_slept
    }

    #[inline]
    fn polled(&mut self, progress: impl FnOnce() -> Progress) {
        let (progress, now) = (progress(), self.watched.last());
        let moved = (progress.received, progress.sent);
        self.has_slept = false;
        if moved != self.moved {
            (self.moved, self.moved_at) = (moved, now);
            self.disarm();
        } else if self.is_armed {
            self.sleep(&progress);
        } else if now.saturating_sub(self.moved_at) >= self.ticks(SPIN_NS) {
            // One more poll, for what came before.
            self.sleeper.arm();
            self.is_armed = true;
        }
    }

    fn drain(&mut self, quiet: Duration, longest: Duration, is_busy: impl FnMut(u64) -> bool) {
        self.disarm();
        self.watched.drain(quiet, longest, is_busy);
    }

    fn ended(&self) -> Result<(), ClockError> {
        self.watched.ended()
    }
}
