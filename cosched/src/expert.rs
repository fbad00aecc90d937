//! Experts that advise a chooser: decision trees and rules. Advice is a distribution over shares of core time
//! for a batch job. Happiness measures whether a job will end in time.

use serde::{Deserialize, Serialize};

use crate::settings::HappinessFormula;
use crate::share::{Distribution, SHARES, Share, certain, limited};
use crate::state::State;

/// Metric of a state that a tree uses besides happiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// [`State::cpu`].
    Cpu,
    /// [`State::memory`].
    Memory,
    /// [`State::stage`].
    Stage,
    /// [`State::interval`].
    Interval,
}

impl Metric {
    /// Returns the metric's value in `state`.
    fn value_in(self, state: &State) -> f64 {
        match self {
            Self::Cpu => state.cpu,
            Self::Memory => state.memory,
            Self::Stage => state.stage,
            Self::Interval => state.interval,
        }
    }
}

/// Method of an expert.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plan {
    /// Decision tree: the classes of a metric and of happiness (low, middle or high) select one of nine
    /// distributions.
    Tree {
        /// The metric.
        metric: Metric,
        /// Lower bounds of the middle and the high class of the metric.
        bounds: [f64; 2],
        /// Lower bounds of the middle and the high class of happiness.
        happiness: [f64; 2],
        /// The distributions, with happiness varying fastest: low metric with low, middle and high happiness,
        /// then middle metric, then high metric.
        leaves: Box<[Distribution; 9]>,
    },
    /// A constant share.
    Always(Share),
    /// Additive increase by 10 percentage points after each harmless decision, multiplicative decrease by half after a
    /// harmful one. A decision is harmful if the observed value exceeds the expected one.
    Aimd,
    /// The largest share that the guard allows.
    Guard,
}

/// An expert.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expert {
    /// Name of the expert.
    pub name: String,
    /// Method of the expert.
    pub plan: Plan,
}

/// Tolerance for the sum of a distribution from a file.
const SUM_WITHIN: f64 = 1e-9;

impl Expert {
    /// Checks the expert. The error names the faulty key or leaf.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Plan::Tree { bounds, happiness, leaves, .. } = &self.plan else { return Ok(()) };
        for (key, [middle, high]) in [("bounds", bounds), ("happiness", happiness)] {
            if !(middle.is_finite() && high.is_finite() && middle <= high) {
                return Err(format!(
                    "{key} are {middle} and {high}, but must be two numbers in rising order"
                ));
            }
        }
        for (index, leaf) in leaves.iter().enumerate() {
            let sum: f64 = leaf.iter().sum();
            let is_out_of_range = leaf.iter().any(|probability| !(0.0..=1.0).contains(probability));
            if is_out_of_range || (sum - 1.0).abs() > SUM_WITHIN {
                return Err(format!(
                    "leaf {} adds up to {sum}; give {SHARES} numbers from 0 to 1 with a sum of 1",
                    index + 1
                ));
            }
        }
        Ok(())
    }

    /// Returns the advice: a distribution over the shares up to `limit`, which gets the probability of larger shares.
    /// `formula` computes the happiness, and `aimd` is the state of the AIMD rule.
    pub(crate) fn advice(
        &self,
        state: &State,
        formula: HappinessFormula,
        limit: Share,
        aimd: &Aimd,
    ) -> Distribution {
        let unlimited = match &self.plan {
            Plan::Tree { metric, bounds, happiness, leaves } => {
                let row = class(metric.value_in(state), bounds);
                let column = class(state.progress.happiness(formula), happiness);
                leaves[row * 3 + column]
            }
            Plan::Always(share) => certain(*share),
            Plan::Aimd => certain(Share::at_most(aimd.part)),
            Plan::Guard => certain(limit),
        };
        limited(unlimited, limit)
    }
}

/// Returns the class of a value by the lower bounds of the middle and the high class: 0 for low, 1 for middle, 2 for
/// high.
fn class(value: f64, [middle, high]: &[f64; 2]) -> usize {
    usize::from(value >= *middle) + usize::from(value >= *high)
}

/// State of the additive-increase, multiplicative-decrease rule, shared by all experts that use it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Aimd {
    /// Share as a fraction.
    part: f64,
}

impl Aimd {
    /// Updates the share after a decision. A harmful decision halves it, and a harmless one adds 10 percentage points,
    /// up to the largest share.
    pub(crate) fn step(&mut self, did_harm: bool) {
        self.part =
            if did_harm { self.part / 2.0 } else { (self.part + 0.1).min(Share::MOST.part()) };
    }
}
