//! Ledger of tasks: counts every due task by its outcome, so that a report cannot hide unsent or lost tasks.

use serde::{Deserialize, Serialize};

/// Ledger of the tasks due in one interval, or of one class of them. Intervals are the warm-up, the measured time and
/// the undisturbed slices.
///
/// At the end of a run `scheduled = sent + unsent` and `sent = answered + refused + lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Tasks due.
    pub scheduled: u64,
    /// Tasks handed to the device.
    pub sent: u64,
    /// Tasks sent later than the tolerance; part of `sent`.
    pub late: u64,
    /// Tasks never handed to the device.
    pub unsent: u64,
    /// Tasks answered by a worker.
    pub answered: u64,
    /// Tasks with a wrong answer, part of `answered`; 0 if answers are not checked.
    pub wrong: u64,
    /// Tasks that the scheduler returned undone.
    pub refused: u64,
    /// Sent tasks without an answer at the end of the drain, or evicted from the full ring of tasks in flight.
    pub lost: u64,
}

impl Ledger {
    /// Returns true if every task is counted once, as it must be at the end of a run. Detects defects of the generator.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.scheduled == self.sent + self.unsent
            && self.sent == self.answered + self.refused + self.lost
    }

    /// Returns the fraction of the due tasks that were sent on time; 0 if none was due.
    #[must_use]
    pub fn adherence(&self) -> f64 {
        if self.scheduled == 0 {
            return 0.0;
        }
        (self.sent - self.late) as f64 / self.scheduled as f64
    }

    /// Adds the counts of another core.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.scheduled += other.scheduled;
        self.sent += other.sent;
        self.late += other.late;
        self.unsent += other.unsent;
        self.answered += other.answered;
        self.wrong += other.wrong;
        self.refused += other.refused;
        self.lost += other.lost;
    }
}
