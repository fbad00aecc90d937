//! Log of a chooser in lines of JSON: its configuration, then each decision with all its inputs, and each outcome.
//!
//! A chooser draws the share of core time for a batch job from the advice of experts. It learns from the outcomes which
//! experts to follow. With the log, [`crate::replay()`] repeats all decisions.

use std::collections::BTreeMap;
use std::io::{self, Write};

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::chooser::{Chooser, Decision, LearningUpdate, Round};
use crate::expert::Expert;
use crate::settings::Settings;
use crate::share::{DRAW_BITS, Distribution, Share};
use crate::state::{Outcome, State, StateError};

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Record {
    /// First line: configuration of the chooser.
    Start {
        /// Version of the log format.
        version: u32,
        /// Settings of the chooser.
        settings: Settings,
        /// Experts.
        experts: Vec<Expert>,
    },
    /// A decision.
    Decision {
        /// Number of the decision, from 0.
        number: u64,
        /// Time by the caller's clock, in nanoseconds.
        at_ns: u64,
        /// State that the experts saw.
        state: State,
        /// Largest allowed share, set by the guard, which protects the workers by fixed rules.
        limit: Share,
        /// Random number of 53 bits.
        draw: u64,
        /// The drawn share.
        share: Share,
        /// Probability of the drawn share.
        probability: f64,
        /// Weighted mixture of all advice.
        mixture: Distribution,
    },
    /// Outcome of a decision.
    Outcome {
        /// Number of the decision.
        number: u64,
        /// Time by the caller's clock, in nanoseconds.
        at_ns: u64,
        /// Measured outcome.
        outcome: Outcome,
        /// Loss that the chooser computed from the outcome, from 0 to 1.
        loss: f64,
        /// Risk of each expert in this round so far: the sum of losses, each times the probability with which the
        /// expert advised the drawn share. Modes iw and balanced divide by the probability of the draw.
        risk: Vec<f64>,
        /// The round that this outcome ended, with the new weights of the experts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended: Option<Round>,
        /// True if the weights were reset to equal values, because losses had risen.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        restarted: bool,
    },
}

/// Version of the log format.
pub(crate) const VERSION: u32 = 1;

/// A chooser with its random numbers and its log. Several decisions may be open, as for several pools or
/// hosts; each outcome names its decision by number.
pub struct LoggingChooser<W> {
    chooser: Chooser,
    /// Generator of the draws; the settings contain its seed.
    random: Xoshiro256PlusPlus,
    log: W,
    /// Number of the next decision.
    number: u64,
    /// Decisions without outcome, by number.
    pending: BTreeMap<u64, Decision>,
}

impl<W: Write> LoggingChooser<W> {
    /// Creates the logging chooser, with the settings' seed for its draws, and writes the log's first line.
    pub fn new(chooser: Chooser, mut log: W) -> io::Result<Self> {
        let (settings, experts) = (chooser.settings().clone(), chooser.experts().to_vec());
        let random = Xoshiro256PlusPlus::seed_from_u64(settings.seed);
        write_line(&mut log, &Record::Start { version: VERSION, settings, experts })?;
        Ok(Self { chooser, random, log, number: 0, pending: BTreeMap::new() })
    }

    /// Returns the chooser.
    #[must_use]
    pub fn chooser(&self) -> &Chooser {
        &self.chooser
    }

    /// Draws a share of at most `limit`, for callers with one open decision at a time. Discards open decisions without
    /// learning from them.
    pub fn decide(
        &mut self,
        at_ns: u64,
        state: &State,
        limit: Share,
    ) -> Result<Share, LoggingError> {
        self.pending.clear();
        self.decide_concurrent(at_ns, state, limit).map(|(_, share)| share)
    }

    /// Like `decide`, but keeps open decisions. Also returns the decision's number, which its outcome must
    /// name.
    pub fn decide_concurrent(
        &mut self,
        at_ns: u64,
        state: &State,
        limit: Share,
    ) -> Result<(u64, Share), LoggingError> {
        // Keeps the upper bits, as many as an `f64` holds exactly.
        let draw = self.random.next_u64() >> (u64::BITS - DRAW_BITS);
        let decision = self.chooser.decide(state, limit, draw)?;
        let Decision { share, probability, mixture, .. } = decision;
        let (number, state) = (self.number, *state);
        let record =
            Record::Decision { number, at_ns, state, limit, draw, share, probability, mixture };
        self.number += 1;
        self.pending.insert(number, decision);
        write_line(&mut self.log, &record)?;
        Ok((number, share))
    }

    /// Learns from the outcome of the last decision. Returns `None` without a decision, or after its outcome.
    pub fn learn(
        &mut self,
        at_ns: u64,
        outcome: &Outcome,
    ) -> Result<Option<LearningUpdate>, LoggingError> {
        match self.number.checked_sub(1) {
            Some(last) => self.learn_of(last, at_ns, outcome),
            None => Ok(None),
        }
    }

    /// Learns from the outcome of the decision `number`. Returns `None` if no such decision is open. An invalid outcome
    /// closes the decision, too.
    pub fn learn_of(
        &mut self,
        number: u64,
        at_ns: u64,
        outcome: &Outcome,
    ) -> Result<Option<LearningUpdate>, LoggingError> {
        let Some(decision) = self.pending.remove(&number) else { return Ok(None) };
        let update = self.chooser.learn(&decision, outcome)?;
        let LearningUpdate { loss, risk, ended, restarted } = update.clone();
        let outcome = *outcome;
        let record = Record::Outcome { number, at_ns, outcome, loss, risk, ended, restarted };
        write_line(&mut self.log, &record)?;
        Ok(Some(update))
    }

    /// Discards a decision whose outcome cannot be measured. The log keeps it without an outcome.
    pub fn forget(&mut self, number: u64) {
        self.pending.remove(&number);
    }

    /// Flushes and returns the log.
    pub fn into_log(mut self) -> io::Result<W> {
        self.log.flush()?;
        Ok(self.log)
    }
}

/// Writes a record as one line of JSON.
fn write_line(log: &mut impl Write, record: &Record) -> io::Result<()> {
    let mut text = serde_json::to_vec(record)?;
    text.push(b'\n');
    log.write_all(&text)
}

/// Reason why a decision or learning from its outcome failed, or was not logged.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The state or the outcome is invalid.
    #[error(transparent)]
    State(#[from] StateError),
    /// The log cannot be written.
    #[error("the log of decisions: {0}")]
    Log(#[from] io::Error),
}
