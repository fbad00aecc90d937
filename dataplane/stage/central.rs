//! Central queues: tasks that wait, in order, while no member may have them.
//!
//! The stages decide which tasks wait and which of them may go; whoever runs the stages has the packets. [`Backlog`] is what
//! the stages know of a queue.

use crate::policy::Overflow;

/// A pool's queue as the stages see it: how many tasks wait, and whether one more may.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    bound: usize,
    overflow: Overflow,
    waiting: usize,
}

/// Whether a task has found room to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It waits.
    Waits,
    /// It is dropped.
    Drops,
    /// It goes back to its client.
    Refuses,
}

impl Backlog {
    /// An empty queue for at most `bound` tasks.
    #[must_use]
    pub fn new(bound: usize, overflow: Overflow) -> Self {
        Self { bound, overflow, waiting: 0 }
    }

    /// How many tasks may wait.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// Says anew how many tasks may wait, and what becomes of others; those that wait do so on.
    pub fn set(&mut self, bound: usize, overflow: Overflow) {
        (self.bound, self.overflow) = (bound, overflow);
    }

    /// How many tasks wait.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// One more task would wait. What is refused must be a task's first packet: its client learns of it once.
    pub(super) fn join(&mut self, first: bool) -> Room {
        if self.waiting < self.bound {
            self.waiting += 1;
            Room::Waits
        } else if first && self.overflow == Overflow::Refuse {
            Room::Refuses
        } else {
            Room::Drops
        }
    }

    /// A task waits no longer.
    pub(super) fn leave(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }
}
