//! Account of an attack: its actions, the checked promises, and figures.

use std::fmt::Display;

use serde::Serialize;

/// A promise, which is a property that must hold under attack, and its check.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The promise.
    pub promise: String,
    /// True if the promise held.
    pub held: bool,
    /// Observed value. For some checks it is the fixed text of a failure; valid only if `held` is false.
    pub found: String,
}

/// Account of an attack, filled during its run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Account {
    /// Numbers of the attack's actions by kind, such as packets sent or processes killed.
    pub tried: Vec<(String, u64)>,
    /// Checked promises.
    pub checks: Vec<Check>,
    /// Figures, with their units in their names.
    pub figures: Vec<(String, f64)>,
    /// Parts of the attack that this machine does not allow, each with the reason.
    pub skipped: Vec<String>,
}

impl Account {
    /// Adds `count` actions of this kind.
    pub fn tried(&mut self, kind: &str, count: u64) {
        match self.tried.iter_mut().find(|(name, _)| name == kind) {
            Some((_, sum)) => *sum += count,
            None => self.tried.push((kind.to_owned(), count)),
        }
    }

    /// Records a promise's check and its finding.
    pub fn check(&mut self, promise: impl Into<String>, held: bool, found: impl Display) {
        self.checks.push(Check { promise: promise.into(), held, found: found.to_string() });
    }

    /// Records a promise that every sent task was answered, with both numbers.
    pub fn check_answered(&mut self, promise: impl Into<String>, answered: u64, sent: u64) {
        self.check(promise, answered == sent, format!("{answered} of {sent}"));
    }

    /// Records the result of the ledger's check at the end of a run under this policy. `balances` is true if received
    /// packets equal those sent on, consumed, dropped and held. `found` has the text of an imbalance in both cases.
    pub fn check_ledger(&mut self, policy: &str, balances: bool) {
        self.check(format!("{policy}: the ledger balances"), balances, "a difference");
    }

    /// Checks that no buffer is missing after the run under this policy.
    pub fn check_buffers(&mut self, policy: &str, missing: usize) {
        let promise = format!("{policy}: every buffer returns to its pool");
        self.check(promise, missing == 0, format!("{missing} missing"));
    }

    /// Records a figure; its name ends in the unit.
    pub fn figure(&mut self, name: impl Into<String>, value: f64) {
        self.figures.push((name.into(), value));
    }

    /// Records a part of the attack that this machine does not allow, with the reason.
    pub fn skip(&mut self, reason: impl Into<String>) {
        self.skipped.push(reason.into());
    }

    /// Returns true if something was checked or skipped, and every checked promise held.
    #[must_use]
    pub fn held(&self) -> bool {
        let has_results = !self.checks.is_empty() || !self.skipped.is_empty();
        has_results && self.checks.iter().all(|check| check.held)
    }
}
