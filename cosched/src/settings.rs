//! Settings of a chooser. It draws the share of core time for a batch job from the advice of experts, and
//! learns from the loss which experts to follow. "The paper" is ASA_X (arXiv 2401.09706).

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Learning rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Algorithm 1 as printed: the risk is the expert's probability of the drawn share times the loss.
    Paper,
    /// Importance-weighted risk: as in `Paper`, divided by the probability with which the share was drawn. An
    /// expert then gains nothing by spreading its probability over many shares.
    Iw,
    /// Like `Iw`, with an additional loss for a batch job that will miss its deadline.
    #[default]
    Balanced,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Paper, Self::Iw, Self::Balanced];

    /// Returns the name in files and on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Iw => "iw",
            Self::Balanced => "balanced",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = Self::ALL.into_iter().find(|mode| mode.name() == text);
        mode.ok_or_else(|| format!("unknown mode {text:?}; modes are paper, iw and balanced"))
    }
}

/// Formula of a job's happiness, which measures whether it will end in time. `wall`, `rate` (the job's speed)
/// and `remaining` are fields of [`Progress`](crate::Progress), and `t` is the elapsed time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HappinessFormula {
    /// Equation 1 as printed, `|wall - t| * remaining / rate`: in square seconds, larger for slower jobs.
    Printed,
    /// `(wall - t) * rate / remaining`: at least 1 if the job will finish in time.
    #[default]
    Ratio,
}

/// Settings of a chooser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Learning rule.
    pub mode: Mode,
    /// Learning rate: gamma of the first round, the factor of a round's risk in the experts' weights. Not the
    /// `rate` of a job's progress.
    pub rate: f64,
    /// True to divide gamma by the square root of the round number, so that later rounds change the weights less.
    pub falling: bool,
    /// Loss for twice the expected time, before the cap of 1: 1 (section 3.2 of the paper) or 2 (section 4.4).
    pub loss_factor: f64,
    /// Weight of the batch job's unhappiness in the loss, in mode balanced: 1 minus its happiness, from 0 to
    /// 1.
    pub lambda: f64,
    /// Term added to the probability by which the risk is divided, in modes iw and balanced.
    pub epsilon: f64,
    /// Fraction of the weight that is spread evenly after each round, so that every expert can recover; 0
    /// disables it.
    pub fixed_share: f64,
    /// Accumulated rise of losses above their mean that resets all weights to equal values, because the workload has
    /// changed; 0 disables it.
    pub restart: f64,
    /// Formula of happiness.
    pub happiness: HappinessFormula,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            rate: 0.2,
            falling: false,
            loss_factor: 1.0,
            lambda: 0.5,
            epsilon: 0.05,
            fixed_share: 0.0,
            restart: 0.0,
            happiness: HappinessFormula::default(),
            seed: 1,
        }
    }
}

impl Settings {
    /// Checks that each setting is in its range, and that mode paper has no addition to the paper's algorithm.
    pub fn check(&self) -> Result<(), SettingsError> {
        let refuse = |key, value, rule| Err(SettingsError { key, value, rule });
        if !(self.rate > 0.0 && self.rate <= 100.0) {
            return refuse("rate", self.rate, "above 0 and at most 100");
        }
        if !(self.loss_factor > 0.0 && self.loss_factor <= 1000.0) {
            return refuse("loss-factor", self.loss_factor, "above 0 and at most 1000");
        }
        if !(0.0..=1.0).contains(&self.lambda) {
            return refuse("lambda", self.lambda, "from 0 to 1");
        }
        if !(self.epsilon > 0.0 && self.epsilon <= 1.0) {
            return refuse("epsilon", self.epsilon, "above 0 and at most 1");
        }
        if !(0.0..=0.5).contains(&self.fixed_share) {
            return refuse("fixed-share", self.fixed_share, "from 0 to 0.5");
        }
        if !(self.restart >= 0.0 && self.restart.is_finite()) {
            return refuse("restart", self.restart, "a number of at least 0");
        }
        if self.mode == Mode::Paper && self.fixed_share > 0.0 {
            return refuse("fixed-share", self.fixed_share, "0 in mode paper");
        }
        if self.mode == Mode::Paper && self.restart > 0.0 {
            return refuse("restart", self.restart, "0 in mode paper");
        }
        Ok(())
    }

    /// Returns gamma, the learning rate, of a round; the first round is 1.
    #[must_use]
    pub(crate) fn gamma(&self, round: u64) -> f64 {
        if self.falling { self.rate / (round as f64).sqrt() } else { self.rate }
    }
}

/// Invalid setting.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key} is {value}, but must be {rule}")]
pub struct SettingsError {
    /// Name of the setting.
    pub key: &'static str,
    /// Value of the setting.
    pub value: f64,
    /// Allowed values.
    pub rule: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: batch.2
    #[test]
    fn impossible_settings_are_named() {
        let right = Settings::default();
        right.check().unwrap();
        let paper = Settings { mode: Mode::Paper, ..right.clone() };
        let wrong = [
            (Settings { rate: 0.0, ..right.clone() }, "rate"),
            (Settings { rate: f64::NAN, ..right.clone() }, "rate"),
            (Settings { loss_factor: -1.0, ..right.clone() }, "loss-factor"),
            (Settings { lambda: 1.5, ..right.clone() }, "lambda"),
            (Settings { epsilon: 0.0, ..right.clone() }, "epsilon"),
            (Settings { fixed_share: 0.6, ..right.clone() }, "fixed-share"),
            (Settings { restart: f64::INFINITY, ..right.clone() }, "restart"),
            (Settings { fixed_share: 0.1, ..paper.clone() }, "fixed-share"),
            (Settings { restart: 1.0, ..paper.clone() }, "restart"),
        ];
        for (settings, key) in wrong {
            assert_eq!(settings.check().unwrap_err().key, key);
        }
        paper.check().unwrap();
    }

    #[test]
    fn modes_are_read_by_their_names() {
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert!("asax".parse::<Mode>().unwrap_err().contains("paper, iw and balanced"));
    }
}
