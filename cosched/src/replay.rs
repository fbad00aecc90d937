//! A log done again: under its own mode, which must give what it says, or under another one.
//!
//! Under another mode shares and outcomes stay those that were, and what is learnt from them differs. Risk is then weighted by
//! the probability with which the log's chooser drew the share, since that is how often such shares came to be seen.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use serde::Serialize;

use crate::chooser::{Chooser, Decision, Round};
use crate::expert::Expert;
use crate::journal::{Record, VERSION};
use crate::settings::{Mode, Settings, SettingsError};
use crate::share::Share;
use crate::state::{Outcome, StateError};

/// What is to be otherwise than in the log.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Another mode.
    pub mode: Option<Mode>,
    /// Another part of the weight that is dealt out evenly.
    pub fixed_share: Option<f64>,
    /// Another weight of the batch job's unhappiness.
    pub lambda: Option<f64>,
    /// Other experts.
    pub experts: Option<Vec<Expert>>,
}

/// What became of a log.
#[derive(Clone, Debug, Serialize)]
pub struct Replayed {
    /// How was learnt.
    pub settings: Settings,
    /// Names of the experts, in the order of their weights.
    pub experts: Vec<String>,
    /// Rounds, with what was done in each.
    pub rounds: Vec<ReplayedRound>,
    /// What was done since the last round ended.
    pub unfinished: Steps,
    /// Decisions in the log.
    pub decisions: u64,
    /// Those whose outcome is not there; nothing was learnt from them.
    pub unanswered: u64,
    /// Whether the last line is a part of one, as after a crash; it was left out.
    pub torn: bool,
    /// Decisions for which another share would have been drawn by the same random number.
    pub other_shares: u64,
    /// Mean loss of all decisions.
    pub mean_loss: f64,
    /// Rounds in which the excess risk is above the bound.
    pub rounds_above_bound: u64,
    /// How far what is computed here is from what the log says; none where the log was done again otherwise than it was.
    pub difference: Option<f64>,
}

/// What was done, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Steps {
    /// Shares that the batch had, in per cent.
    pub actions: Vec<Share>,
    /// Their losses.
    pub losses: Vec<f64>,
}

/// A round that ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayedRound {
    /// What was learnt.
    #[serde(flatten)]
    pub round: Round,
    /// What was done in it.
    #[serde(flatten)]
    pub steps: Steps,
}

/// Does a log again.
pub fn replay(mut log: impl BufRead, overrides: &Overrides) -> Result<Replayed, ReplayError> {
    let mut lines = Lines { number: 0, text: String::new(), torn: false };
    let Some(first) = lines.next(&mut log)? else { return Err(ReplayError::Empty) };
    let Record::Start { version, settings, experts } = first else {
        return Err(lines.broken("a log begins with a line of the kind \"start\"".to_owned()));
    };
    if version != VERSION {
        return Err(lines.broken(format!("version {version} is not known, {VERSION} is")));
    }
    let mut replaying = Replaying::new(settings, experts, overrides)?;
    while let Some(record) = lines.next(&mut log)? {
        replaying.take(record).map_err(|why| lines.broken(why))?;
    }
    Ok(replaying.end(lines.torn))
}

/// A log's lines, of which the last may be a part of one.
struct Lines {
    number: u64,
    text: String,
    torn: bool,
}

impl Lines {
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

    fn broken(&self, why: String) -> ReplayError {
        ReplayError::Line { number: self.number, why }
    }
}

struct Replaying {
    chooser: Chooser,
    /// By their numbers, those whose outcome is still to come.
    pending: BTreeMap<u64, Decision>,
    done: Replayed,
    loss: f64,
    answered: u64,
}

impl Replaying {
    fn new(
        logged: Settings,
        experts: Vec<Expert>,
        overrides: &Overrides,
    ) -> Result<Self, ReplayError> {
        let mut settings = logged.clone();
        settings.mode = overrides.mode.unwrap_or(settings.mode);
        settings.lambda = overrides.lambda.unwrap_or(settings.lambda);
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
        let with = overrides.experts.clone().unwrap_or_else(|| experts.clone());
        let is_same = settings == logged && with == experts;
        let names = with.iter().map(|expert| expert.name.clone()).collect();
        let done = Replayed {
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
            chooser: Chooser::new(settings, with)?,
            pending: BTreeMap::new(),
            done,
            loss: 0.0,
            answered: 0,
        })
    }

    fn take(&mut self, record: Record) -> Result<(), String> {
        let named = |error: StateError| error.to_string();
        match record {
            Record::Start { .. } => Err("a log has one line of the kind \"start\"".to_owned()),
            Record::Decision { number, state, limit, draw, share, probability, .. } => {
                if !(probability > 0.0 && probability <= 1.0 + 1e-9) {
                    return Err(format!(
                        "a share of probability {probability} can't have been drawn"
                    ));
                }
                let mut decision = self.chooser.decide(&state, limit, draw).map_err(named)?;
                self.done.decisions += 1;
                self.done.other_shares += u64::from(decision.share != share);
                self.differ(decision.mixture[share.index()] - probability);
                (decision.share, decision.probability) = (share, probability);
                match self.pending.insert(number, decision) {
                    Some(_) => Err(format!("a second decision {number}")),
                    None => Ok(()),
                }
            }
            Record::Outcome { number, outcome, loss, risk, ended, .. } => {
                let Some(decision) = self.pending.remove(&number) else {
                    return Err(format!(
                        "an outcome of decision {number}, which was not made or has one"
                    ));
                };
                self.learn(&decision, &outcome, loss, &risk, ended).map_err(named)
            }
        }
    }

    fn learn(
        &mut self,
        decision: &Decision,
        outcome: &Outcome,
        loss: f64,
        risk: &[f64],
        ended: Option<Round>,
    ) -> Result<(), StateError> {
        let learnt = self.chooser.learn(decision, outcome)?;
        self.answered += 1;
        self.loss += learnt.loss;
        self.done.unfinished.actions.push(decision.share);
        self.done.unfinished.losses.push(learnt.loss);
        self.differ(learnt.loss - loss);
        for (computed, logged) in learnt.risk.iter().zip(risk) {
            self.differ(computed - logged);
        }
        if learnt.risk.len() != risk.len() || learnt.ended.is_some() != ended.is_some() {
            self.differ(f64::INFINITY);
        }
        for (computed, logged) in learnt.ended.iter().zip(&ended) {
            for (computed, logged) in computed.alpha.iter().zip(&logged.alpha) {
                self.differ(computed - logged);
            }
            self.differ(computed.excess_risk - logged.excess_risk);
        }
        if let Some(round) = learnt.ended {
            self.done.rounds_above_bound += u64::from(round.excess_risk > round.bound);
            let steps = std::mem::take(&mut self.done.unfinished);
            self.done.rounds.push(ReplayedRound { round, steps });
        }
        Ok(())
    }

    fn differ(&mut self, by: f64) {
        if let Some(most) = &mut self.done.difference {
            *most = most.max(if by.is_nan() { f64::INFINITY } else { by.abs() });
        }
    }

    fn end(mut self, torn: bool) -> Replayed {
        self.done.unanswered = self.pending.len() as u64;
        self.done.torn = torn;
        self.done.mean_loss =
            if self.answered == 0 { 0.0 } else { self.loss / self.answered as f64 };
        self.done
    }
}

impl Replayed {
    /// Whether what was computed is what the log says, to rounding; also where it was done again otherwise.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.difference.is_none_or(|difference| difference < 1e-9 && self.other_shares == 0)
    }

    /// For people: the last round, and what there is to say of all.
    #[must_use]
    pub fn lines(&self) -> String {
        let Self { decisions, unanswered, mean_loss, .. } = self;
        let mut text = format!(
            "mode {}: {decisions} decisions ({unanswered} without an outcome), {} rounds, mean loss {mean_loss:.4}\n",
            self.settings.mode.name(),
            self.rounds.len(),
        );
        if let Some(ReplayedRound { round, .. }) = self.rounds.last() {
            let above = self.rounds_above_bound;
            text += &format!(
                "excess risk {:.3}, bound {:.3}; above its bound in {above} rounds\n",
                round.excess_risk, round.bound
            );
            for (name, alpha) in self.experts.iter().zip(&round.alpha) {
                text += &format!("  {name:16} {alpha:.6}\n");
            }
        }
        text += &match self.difference {
            Some(difference) => format!(
                "differs from the log by {difference:.1e}, in {} shares\n",
                self.other_shares
            ),
            None => format!("would have drawn another share for {} decisions\n", self.other_shares),
        };
        if self.torn {
            text += "the last line is a part of one and was left out\n";
        }
        text
    }
}

/// Why a log can't be done again.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It can't be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// There is nothing in it.
    #[error("the log is empty; it begins with a line of the kind \"start\"")]
    Empty,
    /// A line is none.
    #[error("line {number}: {why}")]
    Line {
        /// From 1.
        number: u64,
        /// Why.
        why: String,
    },
    /// It can't be learnt so.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}
