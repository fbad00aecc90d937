//! Response times of tasks, from arrival at the agent to completion or loss, and the number of waiting tasks. The agent
//! publishes them to observers in other processes, such as a batch job on the workers' cores. An active observer
//! increments a shared word again and again. Without an active observer, the agent measures nothing. It never measures
//! a task that a thread answers itself.

use crate::node::Timing;
use crate::ring::AgentStatusWords;

/// Publisher of response times and waiting tasks.
#[derive(Debug)]
pub struct ResponseTimes {
    /// Words shared with the observers.
    watch: AgentStatusWords,
    /// Conversions of the agent's clock.
    timing: Timing,
    /// True if an observer is active.
    is_observed: bool,
    /// Value of the observers' word at the last check.
    last_request: u64,
    /// Time in ticks at which a check found the word changed.
    changed_at: u64,
}

/// Milliseconds after its last increment for which an observer counts as active. Observers increment at least
/// ten times a second.
const ACTIVE_MS: u64 = 1000;

impl ResponseTimes {
    /// Creates the publisher.
    pub fn new(watch: AgentStatusWords, timing: Timing) -> Self {
        let last_request = watch.asked();
        Self { watch, timing, is_observed: false, last_request, changed_at: 0 }
    }

    /// Records the response time of a task, answered or not, if an observer is active.
    #[inline]
    pub fn note(&self, response_ns: u64) {
        if self.is_observed {
            self.watch.note(response_ns);
        }
    }

    /// Checks for active observers at `now` ticks. If there is one, publishes the result of `waiting`: the number of
    /// tasks without a free worker.
    pub fn tick(&mut self, now: u64, waiting: impl FnOnce() -> usize) {
        let request = self.watch.asked();
        let silence = now.saturating_sub(self.changed_at);
        if request != self.last_request {
            (self.last_request, self.changed_at) = (request, now);
            self.is_observed = true;
        } else if self.is_observed && silence > self.timing.ticks_of_ms(ACTIVE_MS) {
            self.is_observed = false;
        }
        if self.is_observed {
            self.watch.set_waiting(waiting() as u64);
        }
    }
}
