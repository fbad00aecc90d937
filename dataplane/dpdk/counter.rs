//! Clocks of a poll loop in real time, on the processor's time-stamp counter (TSC). [`Eal`] is the plain clock.
//! [`StallCounter`] wraps it, and also records pauses of the core. Poll loops use the latter, alone or in `Adaptive`.
//!
//! A pause is a long time between two polls, because the core did not run; a stall is a pause of at least 1 ms.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use wedjat_core::clock::{Clock, ClockError, Progress};
use wedjat_core::state::counters::{PAUSE_NS, STALL_NS};
use wedjat_core::state::{Counter, Counters};

use crate::Eal;

/// TSC clock that records the pauses and stalls of its core in the core's counters.
pub struct StallCounter {
    /// Reader of the TSC.
    eal: Eal,
    /// Counters of the core.
    counters: Counters,
    /// Time of the last poll in ticks; `u64::MAX` before the first.
    last: u64,
    /// Ticks between two polls above which they count as a pause.
    pause: u64,
    /// Ticks from which a pause is also a stall.
    stall: u64,
}

impl StallCounter {
    /// Creates the clock of the core with these counters.
    #[must_use]
    pub fn new(eal: Eal, counters: Counters) -> Self {
        let ticks = |ns: u64| ns * eal.ticks_hz() / 1_000_000_000;
        let (pause, stall) = (ticks(PAUSE_NS), ticks(STALL_NS));
        Self { eal, counters, last: u64::MAX, pause, stall }
    }

    /// Returns the current time in ticks.
    pub(super) fn now(&self) -> u64 {
        self.eal.now()
    }

    /// Returns the time of the last poll in ticks. `Adaptive` uses it as the current time, to save a read of the TSC.
    #[inline]
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Ends a sleep that was planned until `until`, in ticks. It counts as a pause only if it ended a stall's length
    /// too late.
    pub(super) fn slept(&mut self, until: u64) {
        let now = self.now();
        // The next poll measures a pause from `last` on.
        self.last = if now.saturating_sub(until) < self.stall { now } else { until };
    }

    /// Counts a pause before the end of the loop. The polls of the drain record no pauses.
    #[cold]
    fn end(&mut self) {
        let now = self.now();
        if now.saturating_sub(self.last) > self.pause {
            self.note_pause(now);
        }
    }

    /// Records the time since the last poll as a pause. A long pause is also a stall.
    #[cold]
    fn note_pause(&self, now: u64) {
        self.counters.note_pause(self.last, now);
        let length = now - self.last;
        if length >= self.stall {
            self.counters.add(Counter::Stalls, 1);
            self.counters.add(Counter::StalledTicks, length);
        }
    }
}

impl Clock for StallCounter {
    /// Returns the TSC's ticks per second.
    fn ticks_hz(&self) -> u64 {
        self.eal.ticks_hz()
    }

    /// Returns the reader of the TSC, to measure how long decisions take.
    fn stopwatch(&self) -> Option<fn() -> u64> {
        Some(crate::tsc)
    }

    /// Returns the time of the next poll; `None` once `stop` is set. Records a pause before it.
    #[inline(always)]
    fn next(&mut self, stop: &AtomicBool) -> Option<u64> {
        let Some(now) = self.eal.next(stop) else {
            self.end();
            return None;
        };
        if now.saturating_sub(self.last) > self.pause {
            self.note_pause(now);
        }
        self.last = now;
        Some(now)
    }

    /// Does nothing: a core on this clock polls continuously.
    #[inline(always)]
    fn polled(&mut self, _: impl FnOnce() -> Progress) {}

    /// Polls after the end of the loop: calls `is_busy` with the time of each poll, until it has returned false for
    /// `quiet`, and at most for `longest`.
    fn drain(&mut self, quiet: Duration, longest: Duration, is_busy: impl FnMut(u64) -> bool) {
        self.eal.drain(quiet, longest, is_busy);
    }

    /// Returns no error: only `stop` ends the loop in real time.
    fn ended(&self) -> Result<(), ClockError> {
        Ok(())
    }
}

impl Clock for Eal {
    /// Returns the TSC's ticks per second.
    fn ticks_hz(&self) -> u64 {
        Self::ticks_hz(self)
    }

    /// Returns the current time; `None` once `stop` is set.
    #[inline(always)]
    fn next(&mut self, stop: &AtomicBool) -> Option<u64> {
        if stop.load(Relaxed) { None } else { Some(self.now()) }
    }

    /// Does nothing: a core on this clock polls continuously.
    #[inline(always)]
    fn polled(&mut self, _: impl FnOnce() -> Progress) {}

    /// Polls after the end of the loop: calls `is_busy` with the time of each poll, until it has returned false for
    /// `quiet`, and at most for `longest`.
    fn drain(&mut self, quiet: Duration, longest: Duration, mut is_busy: impl FnMut(u64) -> bool) {
        let hz = u128::from(Self::ticks_hz(self));
        let ticks = |time: Duration| (time.as_nanos() * hz / 1_000_000_000) as u64;
        let end = self.now() + ticks(longest);
        let mut quiet_at = self.now() + ticks(quiet);
        loop {
            let now = self.now();
            if is_busy(now) {
                quiet_at = now + ticks(quiet);
            }
            if now >= end || now >= quiet_at {
                break;
            }
        }
    }

    /// Returns no error: only `stop` ends the loop in real time.
    fn ended(&self) -> Result<(), ClockError> {
        Ok(())
    }
}
