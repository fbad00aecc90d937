//! Roles of a node: leaf or spine, agent, and leaf with agent on one core. A role is the body of one core's poll loop.
//! It joins ports to the decisions: at a leaf or spine to the packet path's stages, at an agent to the workers' rings.

pub mod agent;
pub mod colocated;
pub mod leaf;

use crate::clock::Progress;
use crate::state::{Counter, Counters};

pub use agent::Agent;
pub use colocated::Colocated;
pub use leaf::Leaf;

/// Role of a core, as its poll loop sees it.
pub trait CoreRole {
    /// Polls ports and workers once at `now` ticks. Returns the number of received packets.
    fn poll(&mut self, now: u64) -> usize;

    /// Runs a due tick after the poll loop has slept and before it processes new packets, so that policies have
    /// the current time.
    fn catch_up(&mut self, _now: u64) {}

    /// Returns its progress, and the time of its next timer.
    fn progress(&self) -> Progress;

    /// Returns the number of tasks that an agent on this core holds; 0 without an agent.
    fn held(&self) -> usize {
        0
    }
}

/// Counts busy and empty polls, and the ticks of busy ones. A poll lasts until the next one starts, so one clock
/// reading per poll suffices.
#[derive(Clone, Copy, Debug, Default)]
struct PollTime {
    /// Start of the last poll in ticks.
    last: u64,
    /// True if the last poll brought packets, or workers' replies.
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

    /// Ends a poll; `was_busy` if it brought packets, or workers' replies.
    #[inline]
    fn end(&mut self, was_busy: bool) {
        self.was_busy = was_busy;
    }
}
