//! What a chooser is told: the state before a decision, and what came of it.

use serde::{Deserialize, Serialize};

use crate::settings::Happiness;

/// How far a job has come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Seconds that it may take.
    pub wall: f64,
    /// Seconds since it began.
    pub elapsed: f64,
    /// Tasks that it does in a second.
    pub rate: f64,
    /// Tasks that it has still to do.
    pub remaining: f64,
}

/// What is said of a job that has nothing left to do; as good as infinite, and a number in every format.
const CONTENT: f64 = 1e9;

impl Progress {
    /// How well it goes.
    #[must_use]
    pub fn happiness(&self, form: Happiness) -> f64 {
        let left = self.wall - self.elapsed;
        let happiness = match form {
            Happiness::Printed => left.abs() * self.remaining / self.rate,
            Happiness::Ratio if self.remaining <= 0.0 => CONTENT,
            Happiness::Ratio => left * self.rate / self.remaining,
        };
        // 0/0: a job that does nothing and has nothing to do.
        if happiness.is_nan() { 0.0 } else { happiness.clamp(-CONTENT, CONTENT) }
    }

    fn numbers(&self) -> [(&'static str, f64); 4] {
        let Self { wall, elapsed, rate, remaining } = *self;
        [("wall", wall), ("elapsed", elapsed), ("rate", rate), ("remaining", remaining)]
    }
}

/// What experts decide by; of the running job, or of the worker cores and their tasks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The part of its cores' time that it uses.
    pub cpu: f64,
    /// The part of the memory, or of its bandwidth, that it uses.
    pub memory: f64,
    /// The part of its cores that its stage uses: 0 for a sequential stage, 1 for a parallel one.
    pub stage: f64,
    /// The part of its time that has passed.
    pub interval: f64,
    /// How far it has come.
    pub progress: Progress,
}

/// What came of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// What the running job was to take at most: its wall time, or the objective of a percentile.
    pub expected: f64,
    /// What it took, in the same unit.
    pub observed: f64,
    /// How far the batch job has come, if there is one that tells.
    #[serde(default)]
    pub batch: Option<Progress>,
}

impl Outcome {
    /// By how much the running job missed what was expected, as a part of it: 0 when it did not.
    #[must_use]
    pub fn excess(&self) -> f64 {
        ((self.observed - self.expected) / self.expected).max(0.0)
    }

    /// Refuses what no loss can be computed from.
    pub fn check(&self) -> Result<(), StateError> {
        let own = [("expected", self.expected), ("observed", self.observed)];
        let batch = self.batch.iter().flat_map(Progress::numbers);
        check_numbers(own.into_iter().chain(batch))?;
        match self.expected > 0.0 {
            true => Ok(()),
            false => Err(StateError { name: "expected", value: self.expected, rule: "above 0" }),
        }
    }
}

impl State {
    /// Refuses what no expert can decide by.
    pub fn check(&self) -> Result<(), StateError> {
        let Self { cpu, memory, stage, interval, progress } = *self;
        let own = [("cpu", cpu), ("memory", memory), ("stage", stage), ("interval", interval)];
        check_numbers(own.into_iter().chain(progress.numbers()))
    }
}

fn check_numbers(numbers: impl Iterator<Item = (&'static str, f64)>) -> Result<(), StateError> {
    for (name, value) in numbers {
        if !value.is_finite() || value < 0.0 {
            return Err(StateError { name, value, rule: "a number of at least 0" });
        }
    }
    Ok(())
}

/// A measurement that says nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value}, and must be {rule}")]
pub struct StateError {
    /// Of which.
    pub name: &'static str,
    /// What it was.
    pub value: f64,
    /// What it must be.
    pub rule: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALFWAY: Progress = Progress { wall: 100.0, elapsed: 50.0, rate: 2.0, remaining: 80.0 };

    #[test]
    fn happiness_is_at_least_one_when_the_job_will_finish() {
        let ratio = |progress: Progress| progress.happiness(Happiness::Ratio);
        assert_eq!(ratio(HALFWAY), 1.25);
        assert_eq!(ratio(Progress { remaining: 200.0, ..HALFWAY }), 0.5);
        assert!(ratio(Progress { elapsed: 120.0, ..HALFWAY }) < 0.0);
        assert!(ratio(Progress { remaining: 0.0, ..HALFWAY }) > 1e6);
        assert_eq!(ratio(Progress { rate: 0.0, ..HALFWAY }), 0.0);
    }

    #[test]
    fn happiness_as_printed_is_greater_the_less_likely_the_job_finishes() {
        let printed = |progress: Progress| progress.happiness(Happiness::Printed);
        assert_eq!(printed(HALFWAY), 2000.0);
        assert!(printed(Progress { remaining: 200.0, ..HALFWAY }) > printed(HALFWAY));
        assert!(printed(Progress { rate: 1.0, ..HALFWAY }) > printed(HALFWAY));
        assert_eq!(printed(Progress { rate: 0.0, remaining: 0.0, ..HALFWAY }), 0.0);
    }

    #[test]
    fn what_is_no_measurement_is_named() {
        let state = State { cpu: 0.5, memory: 0.5, stage: 1.0, interval: 0.5, progress: HALFWAY };
        state.check().unwrap();
        let error = State { memory: f64::NAN, ..state }.check().unwrap_err();
        assert_eq!(error.to_string(), "memory is NaN, and must be a number of at least 0");
        let late = Progress { rate: f64::INFINITY, ..HALFWAY };
        assert_eq!(State { progress: late, ..state }.check().unwrap_err().name, "rate");
        let outcome = Outcome { expected: 0.0, observed: 1.0, batch: None };
        assert_eq!(outcome.check().unwrap_err().name, "expected");
        let outcome = Outcome { expected: 1.0, observed: 1.0, batch: Some(late) };
        assert_eq!(outcome.check().unwrap_err().name, "rate");
    }
}
