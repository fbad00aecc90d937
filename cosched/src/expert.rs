//! Those whose advice a chooser mixes: decision trees, and rules.

use serde::{Deserialize, Serialize};

use crate::settings::Happiness;
use crate::share::{Distribution, SHARES, Share, certain, limited};
use crate::state::State;

/// Which number of a state a tree looks at, beside the happiness.
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
    fn of(self, state: &State) -> f64 {
        match self {
            Self::Cpu => state.cpu,
            Self::Memory => state.memory,
            Self::Stage => state.stage,
            Self::Interval => state.interval,
        }
    }
}

/// How an expert comes to its advice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plan {
    /// One metric and the happiness, each low, middle or high, name one of nine distributions.
    Tree {
        /// Which metric.
        metric: Metric,
        /// Where the metric is middle, and where it is high.
        bounds: [f64; 2],
        /// Where the happiness is middle, and where it is high.
        happiness: [f64; 2],
        /// The distributions: of a low metric those for low, middle and high happiness, then of a middle and of a high one.
        leaves: Box<[Distribution; 9]>,
    },
    /// The same share whatever happens.
    Always(Share),
    /// More by a tenth after each decision that did no harm, half as much after one that did.
    Aimd,
    /// All that the guard allows.
    Guard,
}

/// One of those whose advice a chooser mixes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expert {
    /// Its name.
    pub name: String,
    /// How it comes to its advice.
    pub plan: Plan,
}

/// How far from 1 the sum of a distribution of a file may be.
const SUM_WITHIN: f64 = 1e-9;

impl Expert {
    /// Refuses what gives no advice, in words that name the leaf.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Plan::Tree { bounds, happiness, leaves, .. } = &self.plan else { return Ok(()) };
        for (key, [middle, high]) in [("bounds", bounds), ("happiness", happiness)] {
            if !(middle.is_finite() && high.is_finite() && middle <= high) {
                return Err(format!(
                    "{key} are {middle} and {high}, and must be two numbers in rising order"
                ));
            }
        }
        for (at, leaf) in leaves.iter().enumerate() {
            let sum: f64 = leaf.iter().sum();
            let below = leaf.iter().any(|probability| !(0.0..=1.0).contains(probability));
            if below || (sum - 1.0).abs() > SUM_WITHIN {
                return Err(format!(
                    "leaf {} adds up to {sum}: it must be {SHARES} numbers from 0 to 1 that add up to 1",
                    at + 1
                ));
            }
        }
        Ok(())
    }

    /// What it advises where no more than `limit` may be given; `aimd` is where rule AIMD stands.
    pub(crate) fn advice(
        &self,
        state: &State,
        form: Happiness,
        limit: Share,
        aimd: &Aimd,
    ) -> Distribution {
        let free = match &self.plan {
            Plan::Tree { metric, bounds, happiness, leaves } => {
                let row = class(metric.of(state), bounds);
                let column = class(state.progress.happiness(form), happiness);
                leaves[row * 3 + column]
            }
            Plan::Always(share) => certain(*share),
            Plan::Aimd => certain(Share::at_most(aimd.part)),
            Plan::Guard => certain(limit),
        };
        limited(free, limit)
    }
}

/// 0 for low, 1 for middle, 2 for high.
fn class(value: f64, [middle, high]: &[f64; 2]) -> usize {
    usize::from(value >= *middle) + usize::from(value >= *high)
}

/// Where the rule of additive increase and multiplicative decrease stands; the same for all that follow it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Aimd {
    part: f64,
}

impl Aimd {
    /// After a decision that did harm or not.
    pub(crate) fn step(&mut self, harmed: bool) {
        self.part =
            if harmed { self.part / 2.0 } else { (self.part + 0.1).min(Share::MOST.part()) };
    }
}
