//! Input of a chooser: the state before a decision, and its outcome. A decision gives a batch job a share of
//! the cores of a running job (in the simulated cluster), or of an agent's workers, which serve short tasks.

use serde::{Deserialize, Serialize};

use crate::settings::HappinessFormula;

/// Progress of a job, in tasks: any unit of work.
///
/// An agent's workers have no end. The caller expresses their latency as progress: `wall` is the objective in
/// microseconds, `remaining` the measured percentile in microseconds, `elapsed` 0 and `rate` 1. By formula `Ratio`,
/// their happiness is then the objective divided by the percentile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Allowed run time in seconds.
    pub wall: f64,
    /// Seconds since the start.
    pub elapsed: f64,
    /// Speed of the job: completed tasks per second.
    pub rate: f64,
    /// Remaining tasks.
    pub remaining: f64,
}

/// Bound of happiness in both directions. It replaces infinity, which JSON cannot hold. By formula `Ratio`, a job
/// without remaining tasks has this happiness.
const HAPPINESS_MAX: f64 = 1e9;

impl Progress {
    /// Returns the happiness of the job, a measure of whether it will end in time. Experts use it by the configured
    /// formula, and the loss by `Ratio`. By formula `Ratio`, a job that will end in time has at least 1. By `Printed`,
    /// the value grows with the risk of a late end.
    #[must_use]
    pub fn happiness(&self, formula: HappinessFormula) -> f64 {
        let time_left = self.wall - self.elapsed;
        let happiness = match formula {
            HappinessFormula::Printed => time_left.abs() * self.remaining / self.rate,
            HappinessFormula::Ratio if self.remaining <= 0.0 => HAPPINESS_MAX,
            HappinessFormula::Ratio => time_left * self.rate / self.remaining,
        };
        // 0/0 occurs by formula `Printed`: the job makes no progress, and has no remaining tasks or no time left.
        if happiness.is_nan() { 0.0 } else { happiness.clamp(-HAPPINESS_MAX, HAPPINESS_MAX) }
    }

    /// Returns the values with their names, for checks.
    fn numbers(&self) -> [(&'static str, f64); 4] {
        let Self { wall, elapsed, rate, remaining } = *self;
        [("wall", wall), ("elapsed", elapsed), ("rate", rate), ("remaining", remaining)]
    }
}

/// State on which experts decide: of the running job, or of the worker cores and their tasks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Used fraction of the cores' time.
    pub cpu: f64,
    /// Used fraction of the memory or its bandwidth.
    pub memory: f64,
    /// Kind of the job's current stage: 0 if sequential, 1 if parallel. Of an agent's workers, the fraction in use.
    pub stage: f64,
    /// Completed fraction of the running job. Beside an agent's workers it is the elapsed fraction of the batch job's
    /// wall time; 0 without one.
    pub interval: f64,
    /// Progress of the job.
    pub progress: Progress,
}

/// Outcome of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Expected value of the running job: its time alone for the same work, or the objective of a percentile.
    pub expected: f64,
    /// Observed value, in the same unit.
    pub observed: f64,
    /// Progress of the batch job, if it reports any.
    #[serde(default)]
    pub batch: Option<Progress>,
}

impl Outcome {
    /// Returns the relative excess of observed over expected; 0 if there is none.
    #[must_use]
    pub fn excess(&self) -> f64 {
        ((self.observed - self.expected) / self.expected).max(0.0)
    }

    /// Checks that a loss can be computed.
    pub fn check(&self) -> Result<(), StateError> {
        let numbers = [("expected", self.expected), ("observed", self.observed)];
        let batch = self.batch.iter().flat_map(Progress::numbers);
        check_numbers(numbers.into_iter().chain(batch))?;
        match self.expected > 0.0 {
            true => Ok(()),
            false => Err(StateError { name: "expected", value: self.expected, rule: "above 0" }),
        }
    }
}

impl State {
    /// Checks that experts can use the state.
    pub fn check(&self) -> Result<(), StateError> {
        let Self { cpu, memory, stage, interval, progress } = *self;
        let numbers = [("cpu", cpu), ("memory", memory), ("stage", stage), ("interval", interval)];
        check_numbers(numbers.into_iter().chain(progress.numbers()))
    }
}

/// Checks that each number is finite and not negative.
fn check_numbers(numbers: impl Iterator<Item = (&'static str, f64)>) -> Result<(), StateError> {
    for (name, value) in numbers {
        if !value.is_finite() || value < 0.0 {
            return Err(StateError { name, value, rule: "a number of at least 0" });
        }
    }
    Ok(())
}

/// Invalid measurement.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value}, but must be {rule}")]
pub struct StateError {
    /// Name of the value.
    pub name: &'static str,
    /// The value.
    pub value: f64,
    /// Allowed values.
    pub rule: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Job after half of its wall time: it has 50 s left, and needs 40 s for the remaining 80 tasks.
    const HALFWAY: Progress = Progress { wall: 100.0, elapsed: 50.0, rate: 2.0, remaining: 80.0 };

    #[test]
    fn happiness_is_at_least_one_for_finishing_jobs() {
        let ratio = |progress: Progress| progress.happiness(HappinessFormula::Ratio);
        assert_eq!(ratio(HALFWAY), 1.25);
        assert_eq!(ratio(Progress { remaining: 200.0, ..HALFWAY }), 0.5);
        assert!(ratio(Progress { elapsed: 120.0, ..HALFWAY }) < 0.0);
        assert!(ratio(Progress { remaining: 0.0, ..HALFWAY }) > 1e6);
        assert_eq!(ratio(Progress { rate: 0.0, ..HALFWAY }), 0.0);
    }

    #[test]
    fn printed_happiness_grows_with_the_risk() {
        let printed = |progress: Progress| progress.happiness(HappinessFormula::Printed);
        assert_eq!(printed(HALFWAY), 2000.0);
        assert!(printed(Progress { remaining: 200.0, ..HALFWAY }) > printed(HALFWAY));
        assert!(printed(Progress { rate: 1.0, ..HALFWAY }) > printed(HALFWAY));
        assert_eq!(printed(Progress { rate: 0.0, remaining: 0.0, ..HALFWAY }), 0.0);
    }

    // promise: batch.2
    #[test]
    fn invalid_measurement_is_named() {
        let state = State { cpu: 0.5, memory: 0.5, stage: 1.0, interval: 0.5, progress: HALFWAY };
        state.check().unwrap();
        let error = State { memory: f64::NAN, ..state }.check().unwrap_err();
        assert_eq!(error.to_string(), "memory is NaN, but must be a number of at least 0");
        let infinite = Progress { rate: f64::INFINITY, ..HALFWAY };
        assert_eq!(State { progress: infinite, ..state }.check().unwrap_err().name, "rate");
        let outcome = Outcome { expected: 0.0, observed: 1.0, batch: None };
        assert_eq!(outcome.check().unwrap_err().name, "expected");
        let outcome = Outcome { expected: 1.0, observed: 1.0, batch: Some(infinite) };
        assert_eq!(outcome.check().unwrap_err().name, "rate");
    }
}
