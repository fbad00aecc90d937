//! The ways of sharing that are compared.

use std::str::FromStr;

use serde::Serialize;

use crate::settings::{Happiness, Mode, Settings};

/// How jobs share cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// Not at all: the paper's Slurm, with backfill.
    Slurm,
    /// Two jobs may have the same cores, and each gets half of them, whether the other is there or not.
    Static,
    /// Two jobs may have the same cores, and the second gets what the first leaves idle. Not in the paper.
    Idle,
    /// ASA_X as printed, but for the happiness.
    AsaxPaper,
    /// ASA_X as printed, with the happiness as printed.
    AsaxPrinted,
    /// ASA_X with weighted risk.
    AsaxIw,
    /// ASA_X with weighted risk, and guests that will not finish in time count.
    AsaxBalanced,
}

impl Arm {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 7] = [
        Self::Slurm,
        Self::Static,
        Self::Idle,
        Self::AsaxPaper,
        Self::AsaxPrinted,
        Self::AsaxIw,
        Self::AsaxBalanced,
    ];

    /// Its name in tables and on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Static => "static",
            Self::Idle => "idle",
            Self::AsaxPaper => "asax-paper",
            Self::AsaxPrinted => "asax-printed",
            Self::AsaxIw => "asax-iw",
            Self::AsaxBalanced => "asax-balanced",
        }
    }

    /// How its learners learn, if it has any.
    pub(super) fn settings(self, seed: u64) -> Option<Settings> {
        let (mode, happiness) = match self {
            Self::Slurm | Self::Static | Self::Idle => return None,
            Self::AsaxPaper => (Mode::Paper, Happiness::Ratio),
            Self::AsaxPrinted => (Mode::Paper, Happiness::Printed),
            Self::AsaxIw => (Mode::Iw, Happiness::Ratio),
            Self::AsaxBalanced => (Mode::Balanced, Happiness::Ratio),
        };
        // Section 4.4: a loss of 1 is for what takes half as long again. Of gamma the paper says nothing; Theorem 1 bounds the risk of
        // four experts best with about this one when there are five to thirty rounds, as here.
        Some(Settings { mode, happiness, rate: 0.6, loss_factor: 2.0, seed, ..Settings::default() })
    }
}

impl FromStr for Arm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|arm| arm.name() == text);
        found.ok_or_else(|| format!("there is no arm {text:?}; arms are {}", names()))
    }
}
