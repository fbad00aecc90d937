//! Response times from arrival to answer, and waiting tasks, for observers in other processes.

use crate::node::Timing;
use crate::ring::AgentStatusWords;

/// Published while an observer asks; see [`AgentStatusWords`].
#[derive(Debug)]
pub struct ResponseTimes {
    watch: AgentStatusWords,
    timing: Timing,
    is_asked: bool,
    /// Observer's word at the last check, and time since which it has that value.
    asked: (u64, u64),
}

/// Milliseconds for which an observer's request counts.
const COUNTS_MS: u64 = 1000;

impl ResponseTimes {
    /// Creates the publisher.
    pub fn new(watch: AgentStatusWords, timing: Timing) -> Self {
        let asked = (watch.asked(), 0);
        Self { watch, timing, is_asked: false, asked }
    }

    /// Records the answer to a task, and its response time.
    #[inline]
    pub fn note(&self, response_ns: u64) {
        if self.is_asked {
            self.watch.note(response_ns);
        }
    }

    /// Checks for observers, and then publishes the number of waiting tasks.
    pub fn tick(&mut self, now: u64, waiting: impl FnOnce() -> usize) {
        let asked = self.watch.asked();
        if asked != self.asked.0 {
            self.asked = (asked, now);
            self.is_asked = true;
        } else if self.is_asked && now.saturating_sub(self.asked.1) > self.timing.of_ms(COUNTS_MS) {
            self.is_asked = false;
        }
        if self.is_asked {
            self.watch.set_waiting(waiting() as u64);
        }
    }
}
