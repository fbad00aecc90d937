//! Replay of a chooser's log of decisions: in its own mode, which must reproduce it, or in another one. The mode is the
//! learning rule ([`Mode`]). A chooser draws shares of core time for a batch job from the advice of experts, and learns
//! which experts to follow. A round of learning is a run of decisions, after which the weights of the experts change.
//! The command `wedjat cosched replay` prints the result.
//!
//! With another mode, setting or experts, the shares and outcomes stay those of the log, and learning differs. Modes
//! iw and balanced divide the risk by the logged probability of the share, not by that of the replay. The log's
//! chooser drew the share, so its probability determines how often the log has an outcome of the share.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use serde::Serialize;

use crate::chooser::{Chooser, Decision, Round};
use crate::expert::Expert;
use crate::journal::{Record, VERSION};
use crate::settings::{Mode, Settings, SettingsError};
use crate::share::Share;
use crate::state::{Outcome, StateError};

/// Changes to the log's configuration.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Another mode.
    pub mode: Option<Mode>,
    /// Another fraction of the weight to spread evenly over the experts after each round.
    pub fixed_share: Option<f64>,
    /// Another weight of the batch job's unhappiness.
    pub lambda: Option<f64>,
    /// Other experts.
    pub experts: Option<Vec<Expert>>,
}

/// Result of a replay.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayResult {
    /// Settings used.
    pub settings: Settings,
    /// Names of the experts, in the order of their weights.
    pub experts: Vec<String>,
    /// Completed rounds with their steps.
    pub rounds: Vec<ReplayedRound>,
    /// Steps since the last completed round.
    pub unfinished: Steps,
    /// Number of decisions in the log.
    pub decisions: u64,
    /// Decisions without an outcome, which teach nothing.
    pub unanswered: u64,
    /// True if the last line was incomplete, as after a crash. It was skipped.
    pub torn: bool,
    /// Decisions for which the same random number would now draw another share.
    pub other_shares: u64,
    /// Mean loss of the decisions with an outcome; 0 without any.
    pub mean_loss: f64,
    /// Rounds with an excess risk above the bound.
    pub rounds_above_bound: u64,
    /// Largest difference from the log, in probabilities, losses, risks, weights and excess risks. Infinite if a round
    /// ends elsewhere; `None` if the configuration was changed.
    pub difference: Option<f64>,
}

/// Steps in the order of their outcomes. A step is a decision with its outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Steps {
    /// Shares of the batch, in per cent.
    pub actions: Vec<Share>,
    /// Losses of the steps.
    pub losses: Vec<f64>,
}

/// A completed round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayedRound {
    /// Result of learning.
    #[serde(flatten)]
    pub round: Round,
    /// Steps in the round.
    #[serde(flatten)]
    pub steps: Steps,
}

/// Replays a log. The result tells how far it differs from the log.
///
/// # Errors
/// If the log cannot be read or is empty, or a line or the settings are invalid. An incomplete last line is no error,
/// except as the first.
pub fn replay(mut log: impl BufRead, overrides: &Overrides) -> Result<ReplayResult, ReplayError> {
    let mut lines = Lines { number: 0, text: String::new(), torn: false };
    let Some(first) = lines.next(&mut log)? else { return Err(ReplayError::Empty) };
    let Record::Start { version, settings, experts } = first else {
        return Err(lines.broken("the first line of a log must have the kind \"start\"".to_owned()));
    };
    if version != VERSION {
        return Err(
            lines.broken(format!("unknown version {version}; version {VERSION} is supported"))
        );
    }
    let mut state = ReplayState::new(settings, experts, overrides)?;
    while let Some(record) = lines.next(&mut log)? {
        state.apply(record).map_err(|why| lines.broken(why))?;
    }
    Ok(state.end(lines.torn))
}

/// Lines of a log; the last one may be incomplete.
struct Lines {
    /// Number of lines read.
    number: u64,
    /// Current line.
    text: String,
    /// True if the last line was incomplete.
    torn: bool,
}

impl Lines {
    /// Reads the next record. Returns `None` at the end, or at an incomplete last line.
    fn next(&mut self, log: &mut impl BufRead) -> Result<Option<Record>, ReplayError> {
        self.text.clear();
        if log.read_line(&mut self.text)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        match serde_json::from_str(&self.text) {
            Ok(record) => Ok(Some(record)),
            Err(_) if self.number > 1 && !self.text.ends_with('\n') => {
                self.torn = true;
                Ok(None)
            }
            Err(error) => Err(self.broken(error.to_string())),
        }
    }

    /// Returns the error of an invalid current line.
    fn broken(&self, why: String) -> ReplayError {
        ReplayError::Line { number: self.number, why }
    }
}

/// State of a replay: the chooser that repeats the log, and the result so far.
struct ReplayState {
    chooser: Chooser,
    /// Decisions that have no outcome yet, by number.
    pending: BTreeMap<u64, Decision>,
    result: ReplayResult,
    /// Sum of all losses.
    loss: f64,
    /// Number of decisions with an outcome.
    answered: u64,
}

impl ReplayState {
    /// Creates the chooser of the replay from the log's first line and the overrides. Checks the experts of the log, as
    /// the log may be damaged. The loader of a file with other experts has checked those.
    fn new(
        logged_settings: Settings,
        experts: Vec<Expert>,
        overrides: &Overrides,
    ) -> Result<Self, ReplayError> {
        let mut settings = logged_settings.clone();
        settings.mode = overrides.mode.unwrap_or(settings.mode);
        settings.lambda = overrides.lambda.unwrap_or(settings.lambda);
        // The paper's algorithm neither spreads weight evenly nor resets the weights: `Chooser::new` refuses
        // both.
        settings.fixed_share = match (overrides.fixed_share, settings.mode) {
            (Some(share), _) => share,
            (None, Mode::Paper) => 0.0,
            (None, _) => settings.fixed_share,
        };
        if settings.mode == Mode::Paper {
            settings.restart = 0.0;
        }
        for expert in &experts {
            expert.check().map_err(|why| ReplayError::Line {
                number: 1,
                why: format!("expert {:?}: {why}", expert.name),
            })?;
        }
        let used_experts = overrides.experts.clone().unwrap_or_else(|| experts.clone());
        let is_same = settings == logged_settings && used_experts == experts;
        let names = used_experts.iter().map(|expert| expert.name.clone()).collect();
        let result = ReplayResult {
            settings: settings.clone(),
            experts: names,
            rounds: Vec::new(),
            unfinished: Steps::default(),
            decisions: 0,
            unanswered: 0,
            torn: false,
            other_shares: 0,
            mean_loss: 0.0,
            rounds_above_bound: 0,
            difference: is_same.then_some(0.0),
        };
        Ok(Self {
            chooser: Chooser::new(settings, used_experts)?,
            pending: BTreeMap::new(),
            result,
            loss: 0.0,
            answered: 0,
        })
    }

    /// Replays one record: decides or learns again. The error is the reason why the log is invalid.
    fn apply(&mut self, record: Record) -> Result<(), String> {
        let error_text = |error: StateError| error.to_string();
        match record {
            Record::Start { .. } => {
                Err("second line of the kind \"start\"; only the first line may have it".to_owned())
            }
            Record::Decision { number, state, limit, draw, share, probability, .. } => {
                if !(probability > 0.0 && probability <= 1.0 + 1e-9) {
                    return Err(format!(
                        "a drawn share has the impossible probability {probability}"
                    ));
                }
                // The replay decides again for the comparison, but then learns from the logged share.
                let mut decision = self.chooser.decide(&state, limit, draw).map_err(error_text)?;
                self.result.decisions += 1;
                self.result.other_shares += u64::from(decision.share != share);
                self.note_difference(decision.mixture[share.index()] - probability);
                (decision.share, decision.probability) = (share, probability);
                match self.pending.insert(number, decision) {
                    Some(_) => Err(format!("decision {number} occurs twice")),
                    None => Ok(()),
                }
            }
            Record::Outcome { number, outcome, loss, risk, ended, .. } => {
                let Some(decision) = self.pending.remove(&number) else {
                    return Err(format!(
                        "outcome of decision {number}, which is unknown or already has an outcome"
                    ));
                };
                self.learn(&decision, &outcome, loss, &risk, ended).map_err(error_text)
            }
        }
    }

    /// Learns from an outcome and compares the result with the logged one.
    fn learn(
        &mut self,
        decision: &Decision,
        outcome: &Outcome,
        loss: f64,
        risk: &[f64],
        ended: Option<Round>,
    ) -> Result<(), StateError> {
        let update = self.chooser.learn(decision, outcome)?;
        self.answered += 1;
        self.loss += update.loss;
        self.result.unfinished.actions.push(decision.share);
        self.result.unfinished.losses.push(update.loss);
        self.note_difference(update.loss - loss);
        for (computed, logged) in update.risk.iter().zip(risk) {
            self.note_difference(computed - logged);
        }
        // Different numbers of experts, or a round that ends elsewhere, cannot be compared.
        if update.risk.len() != risk.len() || update.ended.is_some() != ended.is_some() {
            self.note_difference(f64::INFINITY);
        }
        for (computed, logged) in update.ended.iter().zip(&ended) {
            for (computed, logged) in computed.alpha.iter().zip(&logged.alpha) {
                self.note_difference(computed - logged);
            }
            self.note_difference(computed.excess_risk - logged.excess_risk);
        }
        if let Some(round) = update.ended {
            self.result.rounds_above_bound += u64::from(round.excess_risk > round.bound);
            let steps = std::mem::take(&mut self.result.unfinished);
            self.result.rounds.push(ReplayedRound { round, steps });
        }
        Ok(())
    }

    /// Updates the largest difference from the log, if the configuration is the same. NaN counts as infinite.
    fn note_difference(&mut self, difference: f64) {
        if let Some(largest) = &mut self.result.difference {
            *largest =
                largest.max(if difference.is_nan() { f64::INFINITY } else { difference.abs() });
        }
    }

    /// Completes and returns the result. `torn` is true if the last line was incomplete.
    fn end(mut self, torn: bool) -> ReplayResult {
        self.result.unanswered = self.pending.len() as u64;
        self.result.torn = torn;
        self.result.mean_loss =
            if self.answered == 0 { 0.0 } else { self.loss / self.answered as f64 };
        self.result
    }
}

impl ReplayResult {
    /// Returns true if all shares are those of the log, and the results match it up to rounding. Also true if the
    /// configuration was changed, because the results then have nothing to match.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.difference.is_none_or(|difference| difference < 1e-9 && self.other_shares == 0)
    }

    /// Returns a summary with the last round, as text.
    #[must_use]
    pub fn summary(&self) -> String {
        let Self { decisions, unanswered, mean_loss, .. } = self;
        let mut text = format!(
            "mode {}: {decisions} decisions ({unanswered} without outcome), {} rounds, mean loss {mean_loss:.4}\n",
            self.settings.mode.name(),
            self.rounds.len(),
        );
        if let Some(ReplayedRound { round, .. }) = self.rounds.last() {
            let above = self.rounds_above_bound;
            text += &format!(
                "excess risk {:.3}, bound {:.3}; above the bound in {above} rounds\n",
                round.excess_risk, round.bound
            );
            for (name, alpha) in self.experts.iter().zip(&round.alpha) {
                text += &format!("  {name:16} {alpha:.6}\n");
            }
        }
        text += &match self.difference {
            Some(difference) => format!(
                "differs from the log by at most {difference:.1e}; {} shares are different\n",
                self.other_shares
            ),
            None => format!("{} decisions draw another share than the log's\n", self.other_shares),
        };
        if self.torn {
            text += "the last line is incomplete and was ignored\n";
        }
        text
    }
}

/// Reason why a log cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The log cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The log is empty.
    #[error("the log is empty; its first line must have the kind \"start\"")]
    Empty,
    /// A line is invalid.
    #[error("line {number}: {why}")]
    Line {
        /// Line number, from 1.
        number: u64,
        /// Reason.
        why: String,
    },
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}
