//! Algorithm 1 of the ASA_X paper (arXiv 2401.09706): a weighted mixture of advice, a random draw, and
//! weights that fall with the risk.
//!
//! An expert's advice is a distribution over shares of core time for a batch job. The risk of an expert is
//! its probability of the drawn share times the loss. A round adds up risks until one exceeds 1, and then
//! updates the weights, the paper's alpha. Gamma is the learning rate of a round. The excess risk is that of
//! the mixture minus that of the best expert. Happiness measures whether a job will end in time.

use serde::{Deserialize, Serialize};

use crate::expert::{Aimd, Expert};
use crate::settings::{HappinessFormula, Mode, Settings, SettingsError};
use crate::share::{Distribution, SHARES, Share, drawn};
use crate::state::{Outcome, State, StateError};

/// Chooses shares by the advice of experts, and learns which experts to follow.
#[derive(Clone, Debug)]
pub struct Chooser {
    settings: Settings,
    experts: Box<[Expert]>,
    /// Logarithms of the weights, not normalised, so that weights near 0 keep their value.
    log_weights: Box<[f64]>,
    /// Weights of the experts. They sum to 1.
    alpha: Box<[f64]>,
    /// Risk of each expert in this round.
    risk: Box<[f64]>,
    /// Current round, from 1.
    round: u64,
    /// State of the additive-increase, multiplicative-decrease rule.
    aimd: Aimd,
    totals: Totals,
    /// Test that resets the weights after losses have risen.
    rise_test: RiseTest,
}

/// Sums since the start, for the excess risk and its bound.
#[derive(Clone, Debug)]
struct Totals {
    /// Risk of the mixture.
    mixture: f64,
    /// Risk of each expert.
    experts: Box<[f64]>,
    /// Sum of the squared gammas of all rounds, a term of the bound.
    gammas_squared: f64,
}

/// A drawn share, and the probabilities behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The drawn share.
    pub share: Share,
    /// Probability of the drawn share.
    pub probability: f64,
    /// Weighted mixture of all advice.
    pub mixture: Distribution,
    /// Advice of each expert.
    pub advice: Vec<Distribution>,
}

/// Result of learning from one outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct LearningUpdate {
    /// Loss, from 0 to 1.
    pub loss: f64,
    /// Risk of each expert in this round so far, including the outcome that ended the round.
    pub risk: Vec<f64>,
    /// The round that this outcome ended.
    pub ended: Option<Round>,
    /// True if the weights were reset to equal values because losses had risen.
    pub restarted: bool,
}

/// A completed round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Number of the round, from 1.
    pub round: u64,
    /// Learning rate of the round.
    pub gamma: f64,
    /// Weights of the experts after the round.
    pub alpha: Vec<f64>,
    /// Excess risk E_t: risk of the mixture since the start, minus that of the best expert.
    pub excess_risk: f64,
    /// Upper bound of the excess risk by Theorem 1. The theorem holds for mode paper without `fixed_share` and
    /// `restart`; otherwise the value is a reference.
    pub bound: f64,
}

impl Chooser {
    /// Creates a chooser with equal weights. Fails for invalid settings, and without experts.
    pub fn new(settings: Settings, experts: Vec<Expert>) -> Result<Self, SettingsError> {
        settings.check()?;
        if experts.is_empty() {
            let rule = "at least 1";
            return Err(SettingsError { key: "the number of experts", value: 0.0, rule });
        }
        let zeros = vec![0.0; experts.len()].into_boxed_slice();
        Ok(Self {
            settings,
            log_weights: zeros.clone(),
            alpha: vec![1.0 / experts.len() as f64; experts.len()].into_boxed_slice(),
            risk: zeros.clone(),
            round: 1,
            aimd: Aimd::default(),
            totals: Totals { mixture: 0.0, experts: zeros, gammas_squared: 0.0 },
            rise_test: RiseTest::default(),
            experts: experts.into_boxed_slice(),
        })
    }

    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the experts.
    #[must_use]
    pub fn experts(&self) -> &[Expert] {
        &self.experts
    }

    /// Returns the weights of the experts. They sum to 1.
    #[must_use]
    pub fn alpha(&self) -> &[f64] {
        &self.alpha
    }

    /// Draws a share of at most `limit` from the mixture of all advice. `draw` is a random number of 53 bits. Changes
    /// nothing: [`Chooser::learn`] does. Fails for an invalid state.
    pub fn decide(&self, state: &State, limit: Share, draw: u64) -> Result<Decision, StateError> {
        state.check()?;
        let formula = self.settings.happiness;
        let advice: Vec<_> = self
            .experts
            .iter()
            .map(|expert| expert.advice(state, formula, limit, &self.aimd))
            .collect();
        let mut mixture = [0.0; SHARES];
        for (alpha, advice) in self.alpha.iter().zip(&advice) {
            for (sum, probability) in mixture.iter_mut().zip(advice) {
                *sum += alpha * probability;
            }
        }
        let share = drawn(&mixture, draw);
        Ok(Decision { share, probability: mixture[share.index()], mixture, advice })
    }

    /// Returns the loss of an outcome, at most 1: `loss_factor` times the excess over the expected time. In mode
    /// balanced, `lambda` times the batch job's unhappiness adds to it. Unhappiness always uses formula `Ratio`: no
    /// value of `Printed` means that the job will end in time.
    #[must_use]
    pub fn loss(&self, outcome: &Outcome) -> f64 {
        let harm = self.settings.loss_factor * outcome.excess();
        let unhappy = match (self.settings.mode, &outcome.batch) {
            (Mode::Balanced, Some(batch)) => {
                (1.0 - batch.happiness(HappinessFormula::Ratio)).clamp(0.0, 1.0)
            }
            _ => 0.0,
        };
        (harm + self.settings.lambda * unhappy).min(1.0)
    }

    /// Learns from the outcome of a decision, which need not be the last one. In a replay its share and probability
    /// are those of the logged chooser. Fails for an invalid outcome.
    pub fn learn(
        &mut self,
        decision: &Decision,
        outcome: &Outcome,
    ) -> Result<LearningUpdate, StateError> {
        outcome.check()?;
        let loss = self.loss(outcome);
        // Importance weighting: a rarely drawn share counts more, as if each share had been drawn equally often.
        // Epsilon bounds the weight.
        let weight = match self.settings.mode {
            Mode::Paper => 1.0,
            Mode::Iw | Mode::Balanced => 1.0 / (decision.probability + self.settings.epsilon),
        };
        for (expert, advice) in decision.advice.iter().enumerate() {
            let risk = advice[decision.share.index()] * loss * weight;
            self.risk[expert] += risk;
            self.totals.experts[expert] += risk;
            self.totals.mixture += self.alpha[expert] * risk;
        }
        self.aimd.step(outcome.excess() > 0.0);
        let risk = self.risk.to_vec();
        // Algorithm 1 ends a round once the risk of any expert exceeds 1.
        let ended = risk.iter().any(|risk| *risk > 1.0).then(|| self.end_round());
        let restarted =
            self.settings.restart > 0.0 && self.rise_test.has_risen(loss, self.settings.restart);
        if restarted {
            self.log_weights.fill(0.0);
            self.risk.fill(0.0);
            self.normalise();
        }
        Ok(LearningUpdate { loss, risk, ended, restarted })
    }

    /// Updates the weights by the round's risks, and starts the next round.
    fn end_round(&mut self) -> Round {
        let (round, gamma) = (self.round, self.settings.gamma(self.round));
        // Each weight falls by the factor exp(-gamma * risk).
        for (log, risk) in self.log_weights.iter_mut().zip(&mut self.risk) {
            *log -= gamma * *risk;
            *risk = 0.0;
        }
        self.normalise();
        // Spreads a part of the weight evenly, so that an expert with almost no weight can recover.
        let fixed_share = self.settings.fixed_share;
        if fixed_share > 0.0 {
            let even_part = fixed_share / self.alpha.len() as f64;
            for (alpha, log) in self.alpha.iter_mut().zip(&mut self.log_weights) {
                *alpha = (1.0 - fixed_share) * *alpha + even_part;
                *log = alpha.ln();
            }
        }
        self.round += 1;
        self.totals.gammas_squared += gamma * gamma;
        let best = self.totals.experts.iter().copied().fold(f64::INFINITY, f64::min);
        Round {
            round,
            gamma,
            alpha: self.alpha.to_vec(),
            excess_risk: self.totals.mixture - best,
            // Theorem 1, with the gamma of this round.
            bound: ((self.alpha.len() as f64).ln() + self.totals.gammas_squared / 2.0) / gamma,
        }
    }

    /// Computes the weights from their logarithms, with a sum of 1. Subtracts the largest logarithm first, so that at
    /// least one weight is not 0 before the division.
    fn normalise(&mut self) {
        let largest = self.log_weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut sum = 0.0;
        for (alpha, log) in self.alpha.iter_mut().zip(&self.log_weights) {
            *alpha = (log - largest).exp();
            sum += *alpha;
        }
        for alpha in &mut self.alpha {
            *alpha /= sum;
        }
    }
}

/// Page-Hinkley test for an increase of the mean loss. A rise shows that the weights no longer fit the workload.
#[derive(Clone, Debug, Default)]
struct RiseTest {
    /// Number of losses.
    count: f64,
    /// Mean of the losses.
    mean: f64,
    /// Sum of the losses above the mean, less [`RISE_IGNORED`] for each.
    sum: f64,
    /// Smallest `sum` so far.
    lowest: f64,
}

/// Increase of the mean loss that the test ignores as noise.
const RISE_IGNORED: f64 = 0.05;

impl RiseTest {
    /// Adds a loss. Returns true, and resets the test, once the accumulated increase exceeds `threshold`.
    fn has_risen(&mut self, loss: f64, threshold: f64) -> bool {
        self.count += 1.0;
        // Running mean.
        self.mean += (loss - self.mean) / self.count;
        self.sum += loss - self.mean - RISE_IGNORED;
        self.lowest = self.lowest.min(self.sum);
        let has_risen = self.sum - self.lowest > threshold;
        if has_risen {
            *self = Self::default();
        }
        has_risen
    }
}
