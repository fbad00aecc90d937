//! Response times from arrival to answer, and waiting tasks, published to observers in other processes. An
//! observer increments a shared word while it is active; without one nothing is measured.

use crate::node::Timing;
use crate::ring::AgentStatusWords;

/// Publisher of response times and waiting tasks.
#[derive(Debug)]
pub struct ResponseTimes {
    /// Words shared with the observers.
    watch: AgentStatusWords,
    /// Parameters of the clock, for conversions of ticks.
    timing: Timing,
    /// True if an observer is active.
    is_observed: bool,
    /// Value of the observers' word at the last check, and time in ticks of its last change.
    last_request: (u64, u64),
}

/// Milliseconds after its last increment for which an observer counts as active. Observers increment at least
/// ten times a second.
const ACTIVE_MS: u64 = 1000;

impl ResponseTimes {
    /// Creates the publisher.
    pub fn new(watch: AgentStatusWords, timing: Timing) -> Self {
        let last_request = (watch.asked(), 0);
        Self { watch, timing, is_observed: false, last_request }
    }

    /// Records the response time of an answered task, if an observer is active.
    #[inline]
    pub fn note(&self, response_ns: u64) {
        if self.is_observed {
            self.watch.note(response_ns);
        }
    }

    /// Checks for observers, and publishes the number of waiting tasks if one is active. `now` is in ticks.
    pub fn tick(&mut self, now: u64, waiting: impl FnOnce() -> usize) {
        let request = self.watch.asked();
        let silence = now.saturating_sub(self.last_request.1);
        if request != self.last_request.0 {
            self.last_request = (request, now);
            self.is_observed = true;
        } else if self.is_observed && silence > self.timing.ticks_of_ms(ACTIVE_MS) {
            self.is_observed = false;
        }
        if self.is_observed {
            self.watch.set_waiting(waiting() as u64);
        }
    }
}
