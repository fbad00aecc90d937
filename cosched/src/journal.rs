//! A chooser whose decisions are written down, a line of JSON each, with all that went into them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::chooser::{Chooser, Decision, Learnt, Round};
use crate::expert::Expert;
use crate::settings::Settings;
use crate::share::{DRAW_BITS, Distribution, Share};
use crate::state::{Outcome, State, StateError};

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Record {
    /// The first: who chooses.
    Start {
        /// Of the log's form.
        version: u32,
        /// How it learns.
        settings: Settings,
        /// Whose advice it takes.
        experts: Vec<Expert>,
    },
    /// A share was drawn.
    Decision {
        /// From 0.
        number: u64,
        /// When, by its caller's clock.
        at_ns: u64,
        /// What the experts were told.
        state: State,
        /// What the guard allowed.
        limit: Share,
        /// The random number, of 53 bits.
        draw: u64,
        /// The share.
        share: Share,
        /// With what probability it was drawn.
        probability: f64,
        /// What all experts together advised.
        mixture: Distribution,
    },
    /// What came of it.
    Outcome {
        /// The decision's.
        number: u64,
        /// When, by its caller's clock.
        at_ns: u64,
        /// What was measured.
        outcome: Outcome,
        /// The loss.
        loss: f64,
        /// The risk of each expert in this round up to now.
        risk: Vec<f64>,
        /// The round that ended with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended: Option<Round>,
        /// Whether all weights were made equal again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        restarted: bool,
    },
}

/// Of the log's form.
pub(crate) const VERSION: u32 = 1;

/// A chooser with its random numbers and its log. Several decisions may be under way, as for several pools or hosts; each outcome is
/// one decision's, by its number.
pub struct Logged<W> {
    chooser: Chooser,
    random: Xoshiro256PlusPlus,
    log: W,
    /// The next decision's.
    number: u64,
    pending: BTreeMap<u64, Decision>,
}

impl<W: Write> Logged<W> {
    /// Writes down who chooses.
    pub fn new(chooser: Chooser, mut log: W) -> io::Result<Self> {
        let (settings, experts) = (chooser.settings().clone(), chooser.experts().to_vec());
        let random = Xoshiro256PlusPlus::seed_from_u64(settings.seed);
        line(&mut log, &Record::Start { version: VERSION, settings, experts })?;
        Ok(Self { chooser, random, log, number: 0, pending: BTreeMap::new() })
    }

    /// The chooser.
    #[must_use]
    pub fn chooser(&self) -> &Chooser {
        &self.chooser
    }

    /// Draws a share of at most `limit`. What came of the decisions before, if nobody told, is not learnt from.
    pub fn decide(
        &mut self,
        at_ns: u64,
        state: &State,
        limit: Share,
    ) -> Result<Share, LoggedError> {
        self.pending.clear();
        self.decide_beside(at_ns, state, limit).map(|(_, share)| share)
    }

    /// As `decide`, while outcomes of other decisions are still to come; with its number, by which its own is told.
    pub fn decide_beside(
        &mut self,
        at_ns: u64,
        state: &State,
        limit: Share,
    ) -> Result<(u64, Share), LoggedError> {
        let draw = self.random.next_u64() >> (u64::BITS - DRAW_BITS);
        let decision = self.chooser.decide(state, limit, draw)?;
        let Decision { share, probability, mixture, .. } = decision;
        let (number, state) = (self.number, *state);
        let record =
            Record::Decision { number, at_ns, state, limit, draw, share, probability, mixture };
        self.number += 1;
        self.pending.insert(number, decision);
        line(&mut self.log, &record)?;
        Ok((number, share))
    }

    /// Learns what came of the last decision; nothing where its outcome was told.
    pub fn learn(&mut self, at_ns: u64, outcome: &Outcome) -> Result<Option<Learnt>, LoggedError> {
        match self.number.checked_sub(1) {
            Some(last) => self.learn_of(last, at_ns, outcome),
            None => Ok(None),
        }
    }

    /// Learns what came of the decision of this number; nothing where there is none whose outcome is to come.
    pub fn learn_of(
        &mut self,
        number: u64,
        at_ns: u64,
        outcome: &Outcome,
    ) -> Result<Option<Learnt>, LoggedError> {
        let Some(decision) = self.pending.remove(&number) else { return Ok(None) };
        let learnt = self.chooser.learn(&decision, outcome)?;
        let Learnt { loss, risk, ended, restarted } = learnt.clone();
        let outcome = *outcome;
        let record = Record::Outcome { number, at_ns, outcome, loss, risk, ended, restarted };
        line(&mut self.log, &record)?;
        Ok(Some(learnt))
    }

    /// Leaves out a decision of which nothing came.
    pub fn forget(&mut self, number: u64) {
        self.pending.remove(&number);
    }

    /// Writes out what a buffer holds, and gives the log back.
    pub fn into_log(mut self) -> io::Result<W> {
        self.log.flush()?;
        Ok(self.log)
    }
}

fn line(log: &mut impl Write, record: &Record) -> io::Result<()> {
    let mut text = serde_json::to_vec(record)?;
    text.push(b'\n');
    log.write_all(&text)
}

/// Why a decision was not made, or not written down.
#[derive(Debug, thiserror::Error)]
pub enum LoggedError {
    /// The measurement says nothing.
    #[error(transparent)]
    State(#[from] StateError),
    /// The log can't be written.
    #[error("the log of decisions: {0}")]
    Log(#[from] io::Error),
}
