//! Algorithm 1 of the paper: advice mixed by weights, a draw, and weights that fall with the risk.

use serde::{Deserialize, Serialize};

use crate::expert::{Aimd, Expert};
use crate::settings::{Mode, Settings, SettingsError};
use crate::share::{Distribution, SHARES, Share, drawn};
use crate::state::{Outcome, State, StateError};

/// Chooses shares by the advice of experts, and learns whose to follow.
#[derive(Clone, Debug)]
pub struct Chooser {
    settings: Settings,
    experts: Box<[Expert]>,
    /// Logarithms of the weights, of which no sum is known: weights that are almost 0 stay what they are.
    logs: Box<[f64]>,
    alpha: Box<[f64]>,
    /// This round's.
    risk: Box<[f64]>,
    /// The round that is under way, from 1.
    round: u64,
    aimd: Aimd,
    totals: Totals,
    drift: Drift,
}

/// Sums since the start, for the excess risk and its bound.
#[derive(Clone, Debug)]
struct Totals {
    mixture: f64,
    experts: Box<[f64]>,
    gammas_squared: f64,
}

/// A share that was drawn, and from what.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The share.
    pub share: Share,
    /// With what probability it was drawn.
    pub probability: f64,
    /// What all experts together advised.
    pub mixture: Distribution,
    /// What each expert advised.
    pub advice: Vec<Distribution>,
}

/// What was learnt of an outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Learnt {
    /// The loss, from 0 to 1.
    pub loss: f64,
    /// The risk of each expert in this round up to now, also where the round ended with it.
    pub risk: Vec<f64>,
    /// The round that ended with it.
    pub ended: Option<Round>,
    /// Whether the weights were made equal again, since losses had risen.
    pub restarted: bool,
}

/// A round that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Its number, from 1.
    pub round: u64,
    /// How strongly its risk counted.
    pub gamma: f64,
    /// The experts' weights after it.
    pub alpha: Vec<f64>,
    /// How much more risk the mixture had since the start than the best expert: E_t.
    pub excess_risk: f64,
    /// What Theorem 1 says that it is at most. The theorem is of mode paper; for others it is a measure.
    pub bound: f64,
}

impl Chooser {
    /// With these experts, which all count the same at first.
    pub fn new(settings: Settings, experts: Vec<Expert>) -> Result<Self, SettingsError> {
        settings.check()?;
        if experts.is_empty() {
            let rule = "at least 1, since without experts nobody can be followed";
            return Err(SettingsError { key: "the number of experts", value: 0.0, rule });
        }
        let zeros = vec![0.0; experts.len()].into_boxed_slice();
        Ok(Self {
            settings,
            logs: zeros.clone(),
            alpha: vec![1.0 / experts.len() as f64; experts.len()].into_boxed_slice(),
            risk: zeros.clone(),
            round: 1,
            aimd: Aimd::default(),
            totals: Totals { mixture: 0.0, experts: zeros, gammas_squared: 0.0 },
            drift: Drift::default(),
            experts: experts.into_boxed_slice(),
        })
    }

    /// How it learns.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whose advice it takes.
    #[must_use]
    pub fn experts(&self) -> &[Expert] {
        &self.experts
    }

    /// How much each expert counts; they add up to 1.
    #[must_use]
    pub fn alpha(&self) -> &[f64] {
        &self.alpha
    }

    /// Draws a share of at most `limit` by a random number, of which 53 bits count.
    pub fn decide(&self, state: &State, limit: Share, draw: u64) -> Result<Decision, StateError> {
        state.check()?;
        let form = self.settings.happiness;
        let advice: Vec<_> = self
            .experts
            .iter()
            .map(|expert| expert.advice(state, form, limit, &self.aimd))
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

    /// The loss of an outcome: how far beyond what was expected, and in mode balanced how unhappy the batch job is.
    #[must_use]
    pub fn loss(&self, outcome: &Outcome) -> f64 {
        let harm = self.settings.loss_factor * outcome.excess();
        let unhappy = match (self.settings.mode, &outcome.batch) {
            (Mode::Balanced, Some(batch)) => {
                (1.0 - batch.happiness(self.settings.happiness)).clamp(0.0, 1.0)
            }
            _ => 0.0,
        };
        (harm + self.settings.lambda * unhappy).min(1.0)
    }

    /// Takes in what came of a decision; the last one that was made, or another chooser's for the same state.
    pub fn learn(&mut self, decision: &Decision, outcome: &Outcome) -> Result<Learnt, StateError> {
        outcome.check()?;
        let loss = self.loss(outcome);
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
        let ended = risk.iter().any(|risk| *risk > 1.0).then(|| self.end_round());
        let restarted = self.settings.restart > 0.0 && self.drift.rose(loss, self.settings.restart);
        if restarted {
            self.logs.fill(0.0);
            self.risk.fill(0.0);
            self.normalise();
        }
        Ok(Learnt { loss, risk, ended, restarted })
    }

    fn end_round(&mut self) -> Round {
        let (round, gamma) = (self.round, self.settings.gamma(self.round));
        for (log, risk) in self.logs.iter_mut().zip(&mut self.risk) {
            *log -= gamma * *risk;
            *risk = 0.0;
        }
        self.normalise();
        let even = self.settings.fixed_share;
        if even > 0.0 {
            let each = even / self.alpha.len() as f64;
            for (alpha, log) in self.alpha.iter_mut().zip(&mut self.logs) {
                *alpha = (1.0 - even) * *alpha + each;
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
            bound: ((self.alpha.len() as f64).ln() + self.totals.gammas_squared / 2.0) / gamma,
        }
    }

    /// Makes weights of their logarithms; the largest is taken off first, so that one of them at least is no 0.
    fn normalise(&mut self) {
        let most = self.logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut sum = 0.0;
        for (alpha, log) in self.alpha.iter_mut().zip(&self.logs) {
            *alpha = (log - most).exp();
            sum += *alpha;
        }
        for alpha in &mut self.alpha {
            *alpha /= sum;
        }
    }
}

/// Page and Hinkley's test for a mean that has risen.
#[derive(Clone, Debug, Default)]
struct Drift {
    count: f64,
    mean: f64,
    sum: f64,
    lowest: f64,
}

/// A rise of the mean loss that is none.
const RISE_IGNORED: f64 = 0.05;

impl Drift {
    /// Whether losses have risen, by so much summed up; then it begins anew.
    fn rose(&mut self, loss: f64, by: f64) -> bool {
        self.count += 1.0;
        self.mean += (loss - self.mean) / self.count;
        self.sum += loss - self.mean - RISE_IGNORED;
        self.lowest = self.lowest.min(self.sum);
        let rose = self.sum - self.lowest > by;
        if rose {
            *self = Self::default();
        }
        rose
    }
}
