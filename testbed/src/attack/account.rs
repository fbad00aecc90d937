//! What an attack has done and found: what it sent, what held, what fell, and figures.

use std::fmt::Display;

use serde::Serialize;

/// One promise, and whether it held.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The promise.
    pub promise: String,
    /// It held.
    pub held: bool,
    /// What was found.
    pub found: String,
}

/// An attack's account, filled while it goes on.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Account {
    /// What was sent, and how many of each.
    pub tried: Vec<(String, u64)>,
    /// What had to hold.
    pub checks: Vec<Check>,
    /// Figures, with their units in their names.
    pub figures: Vec<(String, f64)>,
    /// What this machine does not allow to be tried, and why.
    pub skipped: Vec<String>,
}

impl Account {
    /// Adds to what was sent.
    pub fn tried(&mut self, what: &str, count: u64) {
        match self.tried.iter_mut().find(|(name, _)| name == what) {
            Some((_, sum)) => *sum += count,
            None => self.tried.push((what.to_owned(), count)),
        }
    }

    /// Notes whether a promise held, and what was found.
    pub fn check(&mut self, promise: impl Into<String>, held: bool, found: impl Display) {
        self.checks.push(Check { promise: promise.into(), held, found: found.to_string() });
    }

    /// Notes whether as many tasks were answered as were sent.
    pub fn check_answered(&mut self, promise: impl Into<String>, answered: u64, sent: u64) {
        self.check(promise, answered == sent, format!("{answered} of {sent}"));
    }

    /// Notes whether the ledger balances at the end of the run under this policy.
    pub fn check_ledger(&mut self, policy: &str, balances: bool) {
        self.check(format!("{policy}: the ledger balances"), balances, "a difference");
    }

    /// Notes whether no buffer is missing after the run under this policy.
    pub fn check_buffers(&mut self, policy: &str, missing: usize) {
        let promise = format!("{policy}: every buffer comes back");
        self.check(promise, missing == 0, format!("{missing} missing"));
    }

    /// Notes a figure; the name ends in its unit.
    pub fn figure(&mut self, name: impl Into<String>, value: f64) {
        self.figures.push((name.into(), value));
    }

    /// Notes what can't be tried on this machine, and why.
    pub fn skip(&mut self, what: impl Into<String>) {
        self.skipped.push(what.into());
    }

    /// Something was checked, or could not be, and nothing fell.
    #[must_use]
    pub fn held(&self) -> bool {
        let looked = !self.checks.is_empty() || !self.skipped.is_empty();
        looked && self.checks.iter().all(|check| check.held)
    }
}
