//! Recommendation: the best policy against the running one, and the trust in the model.
//!
//! The input is the standings, the results of all policies after the last round of simulations. Only policies that
//! finished, stable in all rounds, are candidates. The model earns trust if it predicts the measured response time of
//! the running policy.

use serde::Serialize;
use wedjat_core::policy::Objective;
use wedjat_workload::results::run::Estimate;

use super::halving::{End, Standing};
use super::objective::Prediction;

/// Gain above which a change is worthwhile, as a fraction of the running policy's score.
pub const GAIN_MIN: f64 = 0.05;
/// Largest relative error of the predicted 99th percentile of a model that fits.
pub const ERROR_MAX: f64 = 0.3;

/// Recommended action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Change the running policy.
    Change,
    /// Keep the running policy.
    Keep,
    /// Take this policy; no policy is known to run.
    Choose,
    /// None: no policy is stable.
    None,
}

/// Recommendation.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Action.
    pub action: Action,
    /// Index of the best policy.
    pub best: Option<usize>,
    /// Fraction by which the best policy's score is below that of the running one, or of the second without a running
    /// policy. `None` without a stable policy to compare with.
    pub gain: Option<f64>,
}

impl Advice {
    /// Recommends the best policy of the standings, which [`super::halving::halve`] sorted. Keeps a stable
    /// running policy unless the gain exceeds [`GAIN_MIN`].
    #[must_use]
    pub fn new(standings: &[Standing], running: Option<usize>, objective: &Objective) -> Self {
        let finished: Vec<_> =
            standings.iter().filter(|standing| standing.end == End::Finished).collect();
        let Some(best) = finished.first() else {
            return Self { action: Action::None, best: None, gain: None };
        };
        // An unstable running policy has not finished, and gives no gain.
        let compared = match running {
            Some(running) => finished.iter().find(|standing| standing.policy == running),
            None => finished.get(1),
        };
        let gain = compared.map(|compared| best.gain_over(compared, objective));
        let action = match (running, gain) {
            (None, _) => Action::Choose,
            (Some(_), Some(gain)) if gain <= GAIN_MIN => Action::Keep,
            // The gain is large, or the queues of the running policy grow.
            (Some(_), _) => Action::Change,
        };
        Self { action, best: Some(best.policy), gain }
    }
}

/// Comparison of the running policy's prediction with its measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Measured mean response time in microseconds.
    pub mean_us: f64,
    /// Measured 99th percentile of the response time in microseconds.
    pub p99_us: f64,
    /// Relative error of the predicted 99th percentile; negative if the prediction is too low.
    pub p99_error: f64,
    /// True if the error is at most [`ERROR_MAX`], and the predicted queues do not grow.
    pub fits: bool,
}

impl Fit {
    /// Compares a prediction with a measured mean and 99th percentile.
    #[must_use]
    pub fn new(prediction: &Prediction, mean_us: Estimate, p99_us: Estimate) -> Self {
        // An infinite measured percentile, of a run with more than 1% unanswered tasks, gives an error of -1.
        let p99_error = prediction.p99_us / p99_us.value - 1.0;
        let fits = p99_error.abs() <= ERROR_MAX && !prediction.unstable;
        Self { mean_us: mean_us.value, p99_us: p99_us.value, p99_error, fits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the standings of policies 0, 1, ... with these mean response times in microseconds. `None` stands for an
    /// unstable policy, whose low mean must not count.
    fn standings(means: &[Option<f64>]) -> Vec<Standing> {
        let standing = |(policy, mean): (usize, &Option<f64>)| {
            let prediction = Prediction {
                mean_us: mean.unwrap_or(0.1),
                unstable: mean.is_none(),
                ..Prediction::default()
            };
            let end = if mean.is_some() { End::Finished } else { End::Unstable };
            Standing { policy, round: 4, tasks: 1, end, prediction }
        };
        means.iter().enumerate().map(standing).collect()
    }

    /// Returns the advice for these means.
    fn advice(means: &[Option<f64>], running: Option<usize>) -> (Action, Option<usize>) {
        let advice = Advice::new(&standings(means), running, &Objective::Mean);
        (advice.action, advice.best)
    }

    #[test]
    fn change_needs_a_gain_above_5_percent() {
        // Gains of 4% and 6% over a mean of 100 us.
        let (a, b) = (Some(96.0), Some(100.0));
        assert_eq!(advice(&[a, b], Some(1)), (Action::Keep, Some(0)));
        assert_eq!(advice(&[a, b], Some(0)), (Action::Keep, Some(0)));
        assert_eq!(advice(&[Some(94.0), b], Some(1)), (Action::Change, Some(0)));
        assert_eq!(advice(&[a, b], None), (Action::Choose, Some(0)));
    }

    #[test]
    fn unstable_policies_are_never_advised() {
        assert_eq!(advice(&[Some(50.0), None], Some(1)), (Action::Change, Some(0)));
        assert_eq!(advice(&[None, Some(50.0)], None), (Action::Choose, Some(1)));
        assert_eq!(advice(&[None, None], Some(0)), (Action::None, None));
    }

    #[test]
    fn model_fits_within_30_percent() {
        // Returns true if the model fits, for a predicted and a measured 99th percentile in microseconds.
        let fit = |predicted: f64, measured: f64, unstable| {
            let prediction = Prediction { p99_us: predicted, unstable, ..Prediction::default() };
            let measured = Estimate { value: measured, half: 0.0 };
            Fit::new(&prediction, measured, measured).fits
        };
        assert!(fit(129.0, 100.0, false) && fit(71.0, 100.0, false));
        assert!(!fit(131.0, 100.0, false) && !fit(69.0, 100.0, false));
        assert!(!fit(100.0, 100.0, true) && !fit(100.0, f64::INFINITY, false));
    }
}
