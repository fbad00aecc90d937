//! Roles of a node: leaf or spine, agent, and both on one core. A role joins the packet path's stages to ports
//! and is one core's poll loop body.

pub mod agent;
pub mod colocated;
pub mod leaf;

use crate::state::{Counter, Counters};

pub use agent::Agent;
pub use colocated::Colocated;
pub use leaf::Leaf;

/// Counts busy and empty polls, and the ticks of busy ones. A poll lasts until the next one starts, so one clock
/// reading per poll suffices.
#[derive(Clone, Copy, Debug, Default)]
struct PollTime {
    /// Start of the last poll in ticks.
    last: u64,
    /// True if the last poll brought packets.
    was_busy: bool,
}

impl PollTime {
    /// Counts the previous poll and starts one at `now` ticks.
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
