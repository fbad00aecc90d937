//! Roles: compositions of stages and ports.

pub mod agent;
pub mod colocated;
#[cfg(test)]
mod fixtures;
pub mod leaf;

use crate::state::{Counter, Counters};

pub use agent::Agent;
pub use colocated::Colocated;
pub use leaf::Leaf;

/// Accounting of the polls' time. A poll lasts until the next one starts, so one clock reading per poll
/// suffices.
#[derive(Clone, Copy, Debug, Default)]
struct PollTime {
    last: u64,
    was_busy: bool,
}

impl PollTime {
    /// Starts a poll at `now` ticks.
    #[inline]
    fn start(&mut self, now: u64, counters: &Counters) {
        if self.was_busy {
            counters.add(Counter::BusyTicks, now.saturating_sub(self.last));
            counters.add(Counter::BusyPolls, 1);
        } else {
            counters.add(Counter::EmptyPolls, 1);
        }
        self.last = now;
    }

    /// Ends a poll; `was_busy` if it brought packets.
    #[inline]
    fn end(&mut self, was_busy: bool) {
        self.was_busy = was_busy;
    }
}
