//! What is known of a policy before it is built, and policies by name, as configuration and command lines give them:
//! `horus`, `lsq-smart(eps=0.2)`.

use std::fmt;
use std::str::FromStr;

use super::member::Notify;
use super::{AnyPolicy, CATALOGUE};
use crate::nearest::did_you_mean;
use crate::state::Sharing;

/// What is known of a policy before it is built: all that it needs of others, or has them do. Stands in the policy's file
/// and is listed in [`CATALOGUE`]; `Entry::new` has what most of them have in common.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Where it is defined.
    pub source: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// Where it runs besides the simulator.
    pub runs: Runs,
    /// It decides by service rates that it is told, and takes members for equally fast when it is told none.
    pub by_rate: bool,
    /// It divides the tasks of a run among the members as a whole, which is not the same as deciding one at a time.
    pub divides_runs: bool,
    /// It learns from what replies tell.
    pub learns: bool,
    /// It may have racks as its members, at a spine.
    pub over_racks: Option<OverRacks>,
    /// What it has the cores of one node tell each other.
    pub sharing: Sharing,
    /// What its parameters mean on a leaf, where they mean something else; else empty.
    pub on_leaf: &'static str,
    /// When members tell their queue. This and those below are given the parameters' values in their order.
    pub(super) notify: fn(&[f64]) -> Notify,
    /// Whose queues it asks for.
    pub(super) asks: fn(&[f64]) -> Asks,
    /// The most tasks that it gives a member, where that is known beforehand.
    pub(super) bound: fn(&[f64]) -> Option<u32>,
    /// Makes it.
    pub(super) build: fn(&[f64]) -> AnyPolicy,
}

/// Which members a policy asks for their queues. On a leaf its own count of what is outstanding answers at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// None.
    Nobody,
    /// A few for each task, and it waits for their answers.
    Some,
    /// It wants to know all, or now and then some, and goes by what it knows.
    All,
}

/// A policy whose members are racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverRacks {
    /// Which one it is there: itself, or one that is made for racks.
    pub policy: &'static str,
    /// What leaves report to it.
    pub reports: LeafReports,
}

/// What leaves report to a spine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafReports {
    /// Idleness and average load, by one of Horus's protocols ([`super::signals::Protocol`]).
    Signals,
    /// The average of the last reported loads, with every reply.
    EveryReply,
    /// Nothing.
    Nothing,
}

/// A policy's parameter.
#[derive(Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its value when not given.
    pub default: f64,
    /// The least and the greatest value allowed.
    pub range: (f64, f64),
    /// Only whole numbers mean something.
    pub whole: bool,
}

impl Parameter {
    pub(super) const fn new(name: &'static str, default: f64, range: (f64, f64)) -> Self {
        Self { name, default, range, whole: false }
    }

    pub(super) const fn whole(name: &'static str, default: f64, range: (f64, f64)) -> Self {
        Self { name, default, range, whole: true }
    }

    /// The values allowed, for people.
    #[must_use]
    pub fn allowed(&self) -> String {
        let (least, most) = self.range;
        let kind = if self.whole { ", whole numbers" } else { "" };
        format!("{least} to {most}{kind}")
    }
}

/// Where a policy runs besides the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// On a leaf: its own sends and what replies report are enough.
    Leaf,
    /// On a leaf that holds tasks while no member may have them.
    LeafHolding,
    /// On a spine: its members are racks.
    Spine,
}

impl Entry {
    /// A spine takes it: its members may be racks.
    #[must_use]
    pub fn runs_on_spine(&self) -> bool {
        self.over_racks.is_some_and(|over| over.policy == self.name)
    }

    /// A leaf's policy that decides by its own sends and by what replies report, and has no parameters.
    pub(super) const fn new(
        name: &'static str,
        summary: &'static str,
        source: &'static str,
        build: fn(&[f64]) -> AnyPolicy,
    ) -> Self {
        Self {
            name,
            summary,
            source,
            parameters: &[],
            runs: Runs::Leaf,
            by_rate: false,
            divides_runs: false,
            learns: false,
            over_racks: None,
            sharing: Sharing::COUNTS,
            on_leaf: "",
            notify: |_| Notify::Reply,
            asks: |_| Asks::Nobody,
            bound: |_| None,
            build,
        }
    }

    /// The policy of that name; parameters that follow it are passed over.
    #[must_use]
    pub fn named(text: &str) -> Option<&'static Self> {
        let name = text.split('(').next().unwrap_or_default().trim();
        CATALOGUE.iter().find(|entry| entry.name == name)
    }

    /// Tasks wait while no member may have them.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.runs == Runs::LeafHolding
    }

    /// Members choose when to tell their queue, and whom, where that takes a message. On a leaf, and in models
    /// of one, every reply tells it.
    #[must_use]
    pub fn is_pulled(&self) -> bool {
        let defaults: Vec<_> = self.parameters.iter().map(|parameter| parameter.default).collect();
        !matches!((self.notify)(&defaults), Notify::Reply | Notify::Never)
    }
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leaf => "leaf",
            Self::LeafHolding => "leaf, where tasks wait in a bounded queue",
            Self::Spine => "spine only: its members are racks",
        })
    }
}

/// A policy and its parameters, not yet built.
#[derive(Clone, Debug)]
pub struct PolicySpec {
    entry: &'static Entry,
    values: Vec<f64>,
}

/// Why a text names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No such name.
    #[error("unknown policy `{name}`{meant}; known: {known}")]
    Name {
        /// What was given.
        name: String,
        /// What was probably meant, for a sentence's end.
        meant: String,
        /// What is known.
        known: String,
    },
    /// Not of the form `name(key=value, ...)`.
    #[error(
        "`{text}` is not a policy; write a name, or a name with parameters as in `name(key=value)`"
    )]
    Form {
        /// What was given.
        text: String,
    },
    /// The policy has no such parameter.
    #[error("policy `{policy}` has no parameter `{parameter}`{meant}; it has {known}")]
    Parameter {
        /// The policy.
        policy: &'static str,
        /// What was given.
        parameter: String,
        /// What was probably meant, for a sentence's end.
        meant: String,
        /// What it has.
        known: String,
    },
    /// A value outside its range, or no number.
    #[error("policy `{policy}`: `{parameter}` is {found}, allowed is {allowed}")]
    Value {
        /// The policy.
        policy: &'static str,
        /// The parameter.
        parameter: &'static str,
        /// What was given.
        found: String,
        /// The values allowed.
        allowed: String,
    },
    /// A parameter was given more than once.
    #[error("policy `{policy}`: `{parameter}` is given twice; give each parameter once")]
    Twice {
        /// The policy.
        policy: &'static str,
        /// The parameter.
        parameter: &'static str,
    },
}

impl PolicySpec {
    /// What is known of the policy.
    #[must_use]
    pub fn entry(&self) -> &'static Entry {
        self.entry
    }

    /// The value of a parameter.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<f64> {
        let at = self.entry.parameters.iter().position(|parameter| parameter.name == name)?;
        self.values.get(at).copied()
    }

    /// When members report, under this policy.
    #[must_use]
    pub fn notify(&self) -> Notify {
        (self.entry.notify)(&self.values)
    }

    /// It knows of queues only what members tell when they choose to, beside what it sends itself.
    #[must_use]
    pub fn is_told(&self) -> bool {
        !matches!(self.notify(), Notify::Reply | Notify::Never) && self.asks() == Asks::Nobody
    }

    /// It asks some members about each task, and needs no more than their answers: they may be asked in messages.
    #[must_use]
    pub fn probes(&self) -> bool {
        self.asks() == Asks::Some && !self.entry.learns
    }

    /// Members may tell it of their queues in messages of their own, asked or not, and not by replies.
    #[must_use]
    pub fn takes_messages(&self) -> bool {
        self.is_told() || self.probes()
    }

    /// Whose queues it asks for.
    #[must_use]
    pub fn asks(&self) -> Asks {
        (self.entry.asks)(&self.values)
    }

    /// The most tasks that it gives a member, where that is known beforehand.
    #[must_use]
    pub fn bound(&self) -> Option<u32> {
        (self.entry.bound)(&self.values)
    }

    /// A new policy of this kind.
    #[must_use]
    pub fn build(&self) -> AnyPolicy {
        (self.entry.build)(&self.values)
    }
}

impl PartialEq for PolicySpec {
    fn eq(&self, other: &Self) -> bool {
        self.entry.name == other.entry.name && self.values == other.values
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry.name)?;
        for (at, (parameter, value)) in self.entry.parameters.iter().zip(&self.values).enumerate() {
            let open = if at == 0 { "(" } else { ", " };
            write!(f, "{open}{}={value}", parameter.name)?;
        }
        if self.values.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

impl FromStr for PolicySpec {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || PolicyError::Form { text: text.to_owned() };
        let (name, arguments) = match text.trim().split_once('(') {
            None => (text.trim(), None),
            Some((name, rest)) => (name.trim(), Some(rest.strip_suffix(')').ok_or_else(form)?)),
        };
        let entry = Entry::named(name).ok_or_else(|| {
            let known: Vec<_> = CATALOGUE.iter().map(|entry| entry.name).collect();
            let meant = did_you_mean(name, known.iter().copied());
            PolicyError::Name { name: name.to_owned(), meant, known: known.join(", ") }
        })?;
        let mut values: Vec<f64> = entry.parameters.iter().map(|p| p.default).collect();
        let mut given = vec![false; values.len()];
        let arguments = arguments.unwrap_or_default().split(',').map(str::trim);
        for (place, argument) in arguments.filter(|argument| !argument.is_empty()).enumerate() {
            // `jsq(2)` as `jsq(d=2)`: in the parameters' order, without their names.
            let unnamed = entry.parameters.get(place).map(|parameter| (parameter.name, argument));
            let (key, value) = argument.split_once('=').or(unnamed).ok_or_else(form)?;
            let (at, value) = parse_parameter(entry, key.trim(), value.trim())?;
            values[at] = value;
            if std::mem::replace(&mut given[at], true) {
                let parameter = entry.parameters[at].name;
                return Err(PolicyError::Twice { policy: entry.name, parameter });
            }
        }
        Ok(Self { entry, values })
    }
}

fn parse_parameter(
    entry: &'static Entry,
    key: &str,
    value: &str,
) -> Result<(usize, f64), PolicyError> {
    let named = |parameter: &Parameter| parameter.name.eq_ignore_ascii_case(key); // jbt-d(T=500)
    let Some(at) = entry.parameters.iter().position(named) else {
        let known: Vec<_> = entry.parameters.iter().map(|parameter| parameter.name).collect();
        let meant = did_you_mean(key, known.iter().copied());
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(PolicyError::Parameter {
            policy: entry.name,
            parameter: key.to_owned(),
            meant,
            known,
        });
    };
    let parameter = &entry.parameters[at];
    let (least, most) = parameter.range;
    match value.parse::<f64>() {
        Ok(number)
            if (least..=most).contains(&number) && !(parameter.whole && number.fract() != 0.0) =>
        {
            Ok((at, number))
        }
        _ => Err(PolicyError::Value {
            policy: entry.name,
            parameter: parameter.name,
            found: value.to_owned(),
            allowed: parameter.allowed(),
        }),
    }
}
