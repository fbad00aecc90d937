//! A leaf that is a process of its own, on the conductor's clock.

use wedjat::clock::{Conductor, Line, TurnError};

use super::Scheduler;

/// See the module's text: the leaf has joined the clock.
#[derive(Debug)]
pub struct Process {
    conductor: Conductor,
    node: usize,
}

impl Process {
    /// The node of this number of the conductor's.
    #[must_use]
    pub fn new(conductor: Conductor, node: usize) -> Self {
        Self { conductor, node }
    }

    /// Ends the run: the leaf ends in order.
    pub fn end(&mut self) {
        self.conductor.end();
    }
}

impl Scheduler for Process {
    #[inline]
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        self.conductor.set_now_ns(now_ns);
        self.conductor.turn(self.node)
    }
}
