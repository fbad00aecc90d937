//! What tells a poll loop the time: the processor's counter, or a conductor that emulates time for a whole system.
//!
//! On the processor's counter a loop polls without end, or, with [`Adaptive`], sleeps while nothing comes.
//!
//! On emulated time a node is the same program: only [`Clock`] differs, and the loop is compiled for each. A *conductor*
//! (in the testbed) owns the time. It shares a small file with all nodes, the [`ClockFile`], and moves the time only
//! when nothing moves anywhere. So a run is a function of its seeds and files: how fast the machine is changes how long a run
//! takes, and not what comes out of it.
//!
//! It gives *turns*. A node that has a turn polls, at the time that the file tells, until two polls in a row have neither
//! received nor sent anything; then it says so and waits for its next turn, at first spinning and then asleep. Between turns it
//! does nothing, so that all nodes and the conductor can share one CPU.

#[cfg(feature = "dpdk")]
mod adaptive;
mod conductor;
#[cfg(feature = "dpdk")]
mod counter;
mod emulated;
mod file;
mod waiter;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

#[cfg(feature = "dpdk")]
pub use adaptive::Adaptive;
pub use conductor::{Conductor, Line, TurnError};
#[cfg(feature = "dpdk")]
pub use counter::Watched;
pub use emulated::Emulated;
pub use file::{ClockError, ClockFile, Node, NodeKind, VERSION};

/// What a node has done since it started, and when it has something to do again without being sent anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Packets received.
    pub received: u64,
    /// Packets sent, those that the node made included.
    pub sent: u64,
    /// Its earliest timer, in ticks of its clock.
    pub timer: u64,
    /// When it must be polled at the latest though nothing comes: a node without work lets its timers be late.
    pub latest: u64,
    /// Workers of this host have tasks, whose ends nothing but a look tells.
    pub awaits_workers: bool,
}

impl Progress {
    /// That of two parts of one node.
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

/// A poll loop's clock. A loop asks [`Clock::next`] before each poll and tells [`Clock::polled`] after it.
pub trait Clock {
    /// Ticks in a second.
    fn ticks_hz(&self) -> u64;

    /// The time at which to poll next, in ticks; none when the loop is to end, as it is when `stop` is set.
    fn next(&mut self, stop: &AtomicBool) -> Option<u64>;

    /// The loop has slept since its last poll.
    #[inline(always)]
    fn has_slept(&self) -> bool {
        false
    }

    /// A poll is over; `progress` says what the node has done so far. A clock that needs no such word does not ask.
    fn polled(&mut self, progress: impl FnOnce() -> Progress);

    /// Polls on after the end, at the times given to `is_busy`, until the node has not been busy for `quiet`, at most for
    /// `longest`. Where time stands still, that is until it is seen to have nothing more to do.
    fn drain(&mut self, quiet: Duration, longest: Duration, is_busy: impl FnMut(u64) -> bool);

    /// Why [`Clock::next`] ended the loop, when that was for another reason than `stop` or the end of the run.
    ///
    /// # Errors
    /// That reason.
    fn ended(&self) -> Result<(), ClockError>;
}

#[cfg(test)]
mod tests;
