//! How a chooser learns.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which learner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Algorithm 1 as it is printed: risk is the expert's probability of the share that was drawn times the loss.
    Paper,
    /// Risk is weighted by how seldom the share is drawn, so that an expert is not safe for spreading out.
    Iw,
    /// As `Iw`, and a batch job that will not finish adds to the loss.
    #[default]
    Balanced,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Paper, Self::Iw, Self::Balanced];

    /// Its name in files and on command lines.
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
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| format!("there is no mode {text:?}; modes are paper, iw and balanced"))
    }
}

/// Which of two formulas tells how well a job goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Happiness {
    /// Equation 1 as it is printed, `|wall - t| * remaining / rate`: in square seconds, and greater the worse it goes.
    Printed,
    /// `(wall - t) * rate / remaining`: at least 1 when the job will finish in time.
    #[default]
    Ratio,
}

/// How a chooser learns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Which learner.
    pub mode: Mode,
    /// Gamma of the first round: how strongly a round's risk counts.
    pub rate: f64,
    /// Whether gamma falls with the square root of the rounds.
    pub falling: bool,
    /// The loss for what takes twice as long as it should: 1 (section 3.2 of the paper) or 2 (section 4.4).
    pub loss_factor: f64,
    /// How much a batch job's unhappiness adds to the loss, in mode balanced.
    pub lambda: f64,
    /// Added to the probability that risk is divided by, in modes iw and balanced.
    pub epsilon: f64,
    /// The part of all weight that is dealt out evenly after each round, so that no expert is forgotten; 0 for none.
    pub fixed_share: f64,
    /// How far losses may rise above their mean, summed up, before all weights are made equal again; 0 for never.
    pub restart: f64,
    /// Which formula tells how well a job goes.
    pub happiness: Happiness,
    /// Of the draws.
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
            happiness: Happiness::default(),
            seed: 1,
        }
    }
}

impl Settings {
    /// Refuses what can't be learnt with.
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
            return refuse("fixed-share", self.fixed_share, "0 in mode paper, which is as printed");
        }
        if self.mode == Mode::Paper && self.restart > 0.0 {
            return refuse("restart", self.restart, "0 in mode paper, which is as printed");
        }
        Ok(())
    }

    /// Gamma of a round, of which the first is 1.
    #[must_use]
    pub(crate) fn gamma(&self, round: u64) -> f64 {
        if self.falling { self.rate / (round as f64).sqrt() } else { self.rate }
    }
}

/// A setting that can't be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key} is {value}, and must be {rule}")]
pub struct SettingsError {
    /// Which.
    pub key: &'static str,
    /// What it was.
    pub value: f64,
    /// What it must be.
    pub rule: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_are_named() {
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
