//! Clocks of poll loops: the processor's TSC, or emulated time set by a conductor.
//!
//! On the TSC a loop polls continuously, or, with `wedjat_dpdk::Adaptive`, sleeps while no packets arrive.
//!
//! In emulated time a node is the same program. Only the [`Clock`] differs, and the loop is compiled for
//! each. A *conductor* (in the testbed) owns the time. It shares a small file, the [`ClockFile`], with all
//! nodes, and advances the time only when no node receives or sends packets. So the result of a run depends only
//! on its seeds and files. The speed of the machine changes its duration, but not its result.
//!
//! The conductor gives *turns*. A node with a turn polls at the file's time until two consecutive polls
//! neither received nor sent a packet. Then it reports the end of the turn and waits for the next one, first
//! spinning, then asleep. Between turns it does nothing, so all nodes and the conductor can share one CPU.
//! Each packet and each due timer gets a turn of its own, because a decision may depend on its time.

mod conductor;
mod emulated;
mod file;
mod waiter;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use conductor::{Conductor, Line, TurnError};
pub use emulated::EmulatedClock;
pub use file::{ClockError, ClockFile, Node, VERSION};

/// A core's progress since its start, and its timers. Emulated time uses `timer`, a clock that sleeps uses `latest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Received packets.
    pub received: u64,
    /// Sent packets, including packets that the core made.
    pub sent: u64,
    /// Earliest timer, in ticks of its clock.
    pub timer: u64,
    /// Latest time of the next poll if no packets arrive, in ticks. It limits a sleep. It may be after `timer`, because
    /// a core without work lets its ticks be late.
    pub latest: u64,
    /// True if local workers have tasks, whose completion only polling detects.
    pub awaits_workers: bool,
}

impl Progress {
    /// Combines the progress of two roles on one core: a leaf and an agent.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            sent: self.sent + other.sent,
            timer: self.timer.min(other.timer),
            latest: self.latest.min(other.latest),
            awaits_workers: self.awaits_workers || other.awaits_workers,
        }
    }
}

/// Clock of a poll loop. The loop calls [`Clock::next`] before and [`Clock::polled`] after each poll.
pub trait Clock {
    /// Returns the ticks per second.
    fn ticks_hz(&self) -> u64;

    /// Returns the time of the next poll in ticks. `None` ends the loop, for instance because `stop` is set.
    fn next(&mut self, stop: &AtomicBool) -> Option<u64>;

    /// Returns the function that reads the real time in ticks, to measure how long decisions take. `None` in emulated
    /// time, whose results must not depend on the machine.
    fn stopwatch(&self) -> Option<fn() -> u64> {
        None
    }

    /// Returns true if the clock has put the loop to sleep since the last poll. The loop then runs a due tick before
    /// the poll.
    #[inline(always)]
    fn has_slept(&self) -> bool {
        false
    }

    /// Reports the end of a poll; `progress` returns the node's state, and is called only by clocks that need
    /// it.
    fn polled(&mut self, progress: impl FnOnce() -> Progress);

    /// Polls after the end of the loop: calls `is_busy` with the time of each poll, until it has returned false for
    /// `quiet`, and at most for `longest`. In emulated time, until two consecutive polls find no work, or a maximum
    /// number of polls is reached.
    fn drain(&mut self, quiet: Duration, longest: Duration, is_busy: impl FnMut(u64) -> bool);

    /// Returns the reason why [`Clock::next`] ended the loop, if that was not `stop` or the end of the run.
    ///
    /// # Errors
    /// The reason.
    fn ended(&self) -> Result<(), ClockError>;
}

#[cfg(test)]
mod tests;
