//! Real-time clock for a core that sleeps while no packets arrive. The poll loop gets its time from it, and reports
//! each poll to it.
//!
//! After a time without work the core arms the devices' interrupts, polls once more, and sleeps until an interrupt or
//! a timer. A *late wake* is a sleep that a timer ended although packets waited, because their interrupt did not come.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use wedjat_core::clock::{Clock, ClockError, Progress};
use wedjat_core::state::{Counter, Counters};

use super::{Sleeper, StallCounter, WakeReason};

/// Time without work after which a core sleeps.
const SPIN_NS: u64 = 20_000;
/// Longest sleep, which bounds the delay of a stop request.
const SLEEP_MAX_NS: u64 = 10_000_000;
/// Longest sleep while local workers have tasks. Their completions cause no interrupt.
const WORKERS_NS: u64 = 50_000;

/// Time in which the interrupt of a packet may still come after a timer has ended the sleep. The timer may end the
/// sleep between the packet and its interrupt, which NICs delay. A busy host delays those of an emulated NIC by
/// milliseconds. A lost interrupt never comes.
const GRACE_NS: u64 = 10_000_000;

/// TSC-based clock whose core sleeps while it has no work.
pub struct Adaptive {
    /// Clock while the core polls.
    tsc_clock: StallCounter,
    /// Sources of wake-ups of the core's ports.
    sleeper: Sleeper,
    /// Counters of the core.
    counters: Counters,
    /// Numbers of packets received and sent up to the last poll.
    packets: (u64, u64),
    /// Time of the last poll with work, in ticks.
    last_work: u64,
    /// True if the devices' interrupts are armed: arriving packets wake the core.
    is_armed: bool,
    /// True if the core has slept after its last poll.
    has_slept: bool,
    /// Reason of the end of the sleep before the last poll, if no device ended it and packets may have been waiting.
    unwoken: Option<WakeReason>,
    /// Missing interrupt of packets that were waiting at the end of a sleep.
    unannounced: Option<MissingInterrupt>,
}

/// An interrupt that had not come when a sleep ended. It may still come: NICs delay interrupts. The core polls, with
/// its interrupts armed, until the deadline.
#[derive(Clone, Copy)]
struct MissingInterrupt {
    /// Reason of the end of the sleep: timer or nap.
    end: WakeReason,
    /// Time at which it counts as missed, in ticks.
    deadline: u64,
}

impl Adaptive {
    /// Creates the clock for a core with these counters, and for the ports of the sleeper.
    #[must_use]
    pub fn new(tsc_clock: StallCounter, sleeper: Sleeper, counters: Counters) -> Self {
        let (packets, last_work) = ((0, 0), 0);
        Self {
            tsc_clock,
            sleeper,
            counters,
            packets,
            last_work,
            is_armed: false,
            has_slept: false,
            unwoken: None,
            unannounced: None,
        }
    }

    /// Converts nanoseconds to ticks.
    fn ticks(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.ticks_hz()) / 1_000_000_000) as u64
    }

    /// Disables the devices' interrupts if they are armed.
    fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.sleeper.disarm();
        }
    }

    /// Arms the devices' interrupts.
    fn arm(&mut self) {
        self.sleeper.arm();
        self.is_armed = true;
    }

    /// Decides at the deadline whether the interrupt was missed. [`Sleeper::was_missed`] records a miss as evidence
    /// against the device's interrupts. A miss after [`WakeReason::Timer`] also counts as a late wake. Disarms the
    /// interrupts.
    #[cold]
    fn judge(&mut self, end: WakeReason) {
        self.unannounced = None;
        if self.sleeper.was_missed() && end == WakeReason::Timer {
            self.counters.add(Counter::LateWakes, 1);
        }
        self.disarm();
    }

    /// Sleeps until a packet arrives or a timer is due: at most `SLEEP_MAX_NS`, or `WORKERS_NS` while local workers
    /// have tasks. Disarms the interrupts if a device woke the core.
    fn sleep(&mut self, progress: &Progress) {
        let now = self.tsc_clock.now();
        let longest_ns = if progress.awaits_workers { WORKERS_NS } else { SLEEP_MAX_NS };
        let until = progress.latest.min(now + self.ticks(longest_ns));
        if until <= now {
            return;
        }
        let ns = u128::from(until - now) * 1_000_000_000 / u128::from(self.ticks_hz());
        let end = self.sleeper.sleep(Duration::from_nanos(ns as u64));
        let is_woken = end.is_device();
        self.unwoken = self.sleeper.is_suspect().then_some(end);
        self.tsc_clock.slept(until);
        self.has_slept = true;
        self.counters.add(Counter::Sleeps, 1);
        self.counters.add(Counter::Wakes, u64::from(is_woken));
        if is_woken {
            self.disarm();
        }
    }
}

impl Clock for Adaptive {
    /// Returns the ticks per second of all times of this clock.
    fn ticks_hz(&self) -> u64 {
        self.tsc_clock.ticks_hz()
    }

    /// Returns the reader of the TSC, to measure how long decisions take.
    fn stopwatch(&self) -> Option<fn() -> u64> {
        self.tsc_clock.stopwatch()
    }

    /// Returns the time of the next poll; `None` once `stop` is set.
    #[inline]
    fn next(&mut self, stop: &AtomicBool) -> Option<u64> {
        self.tsc_clock.next(stop)
    }

    /// Returns true if the core has slept since the last poll. The poll loop then runs a tick first, because timers may
    /// be due.
    #[inline]
    fn has_slept(&self) -> bool {
        self.has_slept
    }

    /// Handles the end of a poll, with the node's progress. After a poll with work, disarms the interrupts. After
    /// `SPIN_NS` without work, arms them. Sleeps after a poll without work while they are armed. While an interrupt is
    /// missing, does not sleep and leaves them armed: it may still come.
    #[inline]
    fn polled(&mut self, progress: impl FnOnce() -> Progress) {
        let (progress, now) = (progress(), self.tsc_clock.last());
        let packets = (progress.received, progress.sent);
        self.has_slept = false;
        let unwoken = self.unwoken.take();
        if let Some(MissingInterrupt { end, deadline }) = self.unannounced
            && now >= deadline
        {
            self.judge(end);
        }
        // The numbers of packets are sums, so a change means that the poll had work.
        if packets != self.packets {
            // Packets waited at the end of a sleep that no device ended: gives their interrupt some more time.
            if let Some(end) = unwoken
                && packets.0 != self.packets.0
            {
                let deadline = now + self.ticks(GRACE_NS);
                self.unannounced = Some(MissingInterrupt { end, deadline });
            }
            (self.packets, self.last_work) = (packets, now);
            if self.unannounced.is_none() {
                self.disarm();
            }
        } else if self.unannounced.is_some() {
            // Polls on: the interrupt may still come.
        } else if self.is_armed {
            self.sleep(&progress);
        } else if now.saturating_sub(self.last_work) >= self.ticks(SPIN_NS) {
            // Sleeps only after one more poll, since packets that arrived before arming cause no interrupt.
            self.arm();
        }
    }

    /// Disarms the interrupts. Then calls `is_busy`, which polls, without sleeps until it has returned false for
    /// `quiet`, at most for `longest`.
    fn drain(&mut self, quiet: Duration, longest: Duration, is_busy: impl FnMut(u64) -> bool) {
        self.disarm();
        self.tsc_clock.drain(quiet, longest, is_busy);
    }

    /// Returns no error: only the stop request ends the loop in real time.
    fn ended(&self) -> Result<(), ClockError> {
        self.tsc_clock.ended()
    }
}
