//! Properties of policies ([`Entry`]), and policies by name as in configuration files and command lines
//! ([`PolicySpec`]): `horus`, `lsq-smart(eps=0.2)`. Nodes, the simulator and the documentation of policies use them.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::member::Notify;
use super::{AnyPolicy, CATALOGUE, ClassRules, LANES};
use crate::nearest::did_you_mean;
use crate::state::PublishedState;

/// Name of a pool's policy under which the node chooses: see [`super::PolicyChoice`].
pub(super) const AUTO: &str = "auto";

/// The parameter `boost` of policies; see [`ClassRules`].
pub(super) const BOOST: Parameter = Parameter::new("boost", 0.0, (0.0, 1e6)).omitting_default();
/// The parameter `reserve` of policies; see [`ClassRules`].
pub(super) const RESERVE: Parameter =
    Parameter::integer("reserve", 0.0, (0.0, 1024.0)).omitting_default();
/// The parameter `slo` of policies: a time limit in microseconds for each lane; see [`ClassRules`].
pub(super) const SLO: Parameter =
    Parameter::new("slo", 0.0, (0.0, 1e9)).omitting_default().list(LANES);

/// Properties of a policy, known before it is built: its needs, and its effects on cores, members and spines. Each
/// policy's file defines its entry, and [`CATALOGUE`] lists all. `Entry::new` sets common values.
#[derive(Debug)]
pub struct Entry {
    /// Name of the policy.
    pub name: &'static str,
    /// One-line description.
    pub summary: &'static str,
    /// Paper or section that defines it.
    pub source: &'static str,
    /// Parameters, in the order of unnamed values.
    pub parameters: &'static [Parameter],
    /// Nodes that can use it, besides the simulator.
    pub runs: Runs,
    /// True if it decides by configured service rates. Without rates all members count as equally fast.
    pub by_rate: bool,
    /// True if it chooses the members of a burst's tasks together, in one step. Choices task by task would differ.
    pub decides_jointly: bool,
    /// True if it learns members' service rates from replies.
    pub learns: bool,
    /// Policy over racks at a spine, if there is one.
    pub over_racks: Option<RackPolicy>,
    /// State that the cores of one node exchange for it.
    pub publishes: PublishedState,
    /// Effect of its parameters on a leaf with reports in replies; empty if the effect is that of the paper. Completes
    /// the sentence "so that ...".
    pub parameters_on_leaf: &'static str,
    /// Returns the rule by which members report their queues. This function and the next ones receive the values of
    /// `parameters`, in order. A list parameter has [`Parameter::count`] of them.
    pub(super) notify: fn(&[f64]) -> Notify,
    /// Returns the policy's access to current queues.
    pub(super) queue_access: fn(&[f64]) -> QueueAccess,
    /// Returns the maximum number of unfinished tasks at a member. `None` without a maximum, or for a
    /// policy that determines it at run time.
    pub(super) bound: fn(&[f64]) -> Option<u32>,
    /// Returns the rules for classes of tasks.
    pub(super) classes: fn(&[f64]) -> ClassRules,
    /// Builds the policy.
    pub(super) build: fn(&[f64]) -> AnyPolicy,
}

/// Access of a policy to the members' queues, besides the members' own reports. A leaf whose workers report in replies
/// reads its own counts of outstanding tasks instead, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueAccess {
    /// No access: the policy decides by reports and by its own sends.
    ReportsOnly,
    /// Probes: for each task, the policy asks a few members for their queues. The task waits for their answers.
    Probes,
    /// Direct: the policy reads the last known queue of any member, so that no task waits. Some of these policies read
    /// only a few queues, or only from time to time.
    Direct,
}

/// Policy over racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RackPolicy {
    /// Name of that policy: the same one, or one made for racks.
    pub policy: &'static str,
    /// Reports of leaves to it.
    pub reports: LeafReports,
}

/// Reports of leaves to a spine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafReports {
    /// Idleness and average load, by one of Horus's protocols ([`super::signals::Protocol`]).
    Signals,
    /// Average of the last reported loads, with every reply.
    EveryReply,
    /// No reports.
    Nothing,
}

/// Parameter of a policy.
#[derive(Debug)]
pub struct Parameter {
    /// Name of the parameter.
    pub name: &'static str,
    /// Default value.
    pub default: f64,
    /// Smallest and largest allowed value.
    pub range: (f64, f64),
    /// True if only whole numbers are allowed.
    pub whole: bool,
    /// Names of the values 0, 1, ...; empty for numbers.
    pub names: &'static [&'static str],
    /// True if the text of a policy omits the default value. Older releases refuse parameters unknown to them.
    pub omits_default: bool,
    /// Maximum number of values, separated by `/` in the text. Omitted ones at the end have the default value.
    pub count: usize,
}

impl Parameter {
    /// Creates a parameter that may have fractions.
    pub(super) const fn new(name: &'static str, default: f64, range: (f64, f64)) -> Self {
        Self { name, default, range, whole: false, names: &[], omits_default: false, count: 1 }
    }

    /// Creates a parameter with whole values.
    pub(super) const fn integer(name: &'static str, default: f64, range: (f64, f64)) -> Self {
        Self { whole: true, ..Self::new(name, default, range) }
    }

    /// Creates a parameter whose values have names. The first is the default.
    pub(super) const fn choice(name: &'static str, names: &'static [&'static str]) -> Self {
        let range = (0.0, names.len() as f64 - 1.0);
        Self { names, ..Self::integer(name, 0.0, range) }
    }

    /// Returns the parameter, which the text of a policy then omits while it has its default value.
    pub(super) const fn omitting_default(self) -> Self {
        Self { omits_default: true, ..self }
    }

    /// Returns the parameter with up to `count` values.
    pub(super) const fn list(self, count: usize) -> Self {
        Self { count, ..self }
    }

    /// Returns true if this is not the default value.
    fn differs(&self, value: f64) -> bool {
        value.total_cmp(&self.default).is_ne()
    }

    /// Returns true if the text of a policy contains these values of the parameter.
    fn shows(&self, values: &[f64]) -> bool {
        !self.omits_default || values.iter().any(|&value| self.differs(value))
    }

    /// Formats a value.
    #[must_use]
    pub fn text(&self, value: f64) -> String {
        self.names.get(value as usize).map_or_else(|| value.to_string(), |&name| name.to_owned())
    }

    /// Formats all values of the parameter, without default ones at the end of a list.
    fn text_of_all(&self, values: &[f64]) -> String {
        let last = values.iter().rposition(|&value| self.differs(value)).unwrap_or(0);
        let texts: Vec<_> = values[..=last].iter().map(|&value| self.text(value)).collect();
        texts.join("/")
    }

    /// Parses one value, or a list of values. `None` if a value is not allowed, or the list is too long.
    fn parse(&self, text: &str) -> Option<Vec<f64>> {
        let given = text.split('/').map(|text| self.parse_one(text.trim()));
        let mut values = given.collect::<Option<Vec<_>>>()?;
        let fits = values.len() <= self.count;
        values.resize(self.count, self.default);
        fits.then_some(values)
    }

    /// Parses a value; `None` if it is not allowed.
    fn parse_one(&self, text: &str) -> Option<f64> {
        if !self.names.is_empty() {
            return self.names.iter().position(|name| *name == text).map(|index| index as f64);
        }
        let number = text.parse::<f64>().ok()?;
        let in_range = (self.range.0..=self.range.1).contains(&number);
        (in_range && !(self.whole && number.fract() != 0.0)).then_some(number)
    }

    /// Returns the allowed values, for messages.
    #[must_use]
    pub fn allowed(&self) -> String {
        if !self.names.is_empty() {
            return self.names.join(", ");
        }
        let (least, most) = self.range;
        let kind = if self.whole { ", whole numbers" } else { "" };
        let list = match self.count {
            1 => String::new(),
            count => format!(", up to {count} values separated by `/`"),
        };
        format!("{least} to {most}{kind}{list}")
    }
}

/// Nodes on which a policy runs, besides the simulator. A leaf's policy also runs on an agent, and some also run
/// on a spine ([`Entry::runs_on_spine`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// On a leaf: its own sends and the reports in replies suffice.
    Leaf,
    /// On a leaf with a queue for tasks that no member may take now.
    LeafHolding,
    /// Only on a spine: its members are racks.
    Spine,
}

impl Entry {
    /// Returns true if it runs on a spine, over racks: it is its own policy over racks.
    #[must_use]
    pub fn runs_on_spine(&self) -> bool {
        self.over_racks.is_some_and(|over| over.policy == self.name)
    }

    /// Creates an entry with common values: a leaf's policy without parameters that decides by its own sends
    /// and the reports in replies.
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
            decides_jointly: false,
            learns: false,
            over_racks: None,
            publishes: PublishedState::COUNTS,
            parameters_on_leaf: "",
            notify: |_| Notify::Reply,
            queue_access: |_| QueueAccess::ReportsOnly,
            bound: |_| None,
            classes: |_| ClassRules::default(),
            build,
        }
    }

    /// Returns the policy of that name, if there is one. Ignores parameters behind the name.
    #[must_use]
    pub fn named(text: &str) -> Option<&'static Self> {
        let name = text.split('(').next().unwrap_or_default().trim();
        CATALOGUE.iter().find(|entry| entry.name == name)
    }

    /// Returns true if tasks wait for a member that may take them.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.runs == Runs::LeafHolding
    }

    /// Returns true if members themselves choose the time and receiver of their reports, under the default parameters:
    /// an entry has no other values. Such reports are messages. With the setting `reports = "replies"`, a leaf's
    /// default, its workers do not choose: every reply carries the queue.
    #[must_use]
    pub fn members_choose_reports(&self) -> bool {
        !matches!((self.notify)(&self.defaults()), Notify::Reply | Notify::Never)
    }

    /// Returns the default values of all parameters.
    fn defaults(&self) -> Vec<f64> {
        let values =
            |parameter: &Parameter| std::iter::repeat_n(parameter.default, parameter.count);
        self.parameters.iter().flat_map(values).collect()
    }

    /// Iterates over the parameters, each with the places of its values among the values of all.
    fn places(&self) -> impl Iterator<Item = (&'static Parameter, Range<usize>)> {
        self.parameters.iter().scan(0, |end, parameter| {
            let start = *end;
            *end += parameter.count;
            Some((parameter, start..*end))
        })
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

/// A policy with parameters, not yet built.
#[derive(Clone, Debug)]
pub struct PolicySpec {
    entry: &'static Entry,
    /// Values of the entry's parameters, in their order: [`Parameter::count`] for each.
    values: Vec<f64>,
}

/// Reason why a text describes no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The name is unknown.
    #[error("unknown policy `{name}`{suggestion}; known: {known}")]
    Name {
        /// The given name.
        name: String,
        /// Suggestion for the end of the message.
        suggestion: String,
        /// Known names.
        known: String,
    },
    /// A parenthesis opens and the text does not end with the closing one.
    #[error(
        "`{text}` is not a policy; write a name, or a name with parameters as in `name(key=value)`"
    )]
    Form {
        /// The given text.
        text: String,
    },
    /// There is nothing between two commas, beside a comma, or after `=`.
    #[error(
        "policy `{policy}`: a value is missing in `{text}`; separate values by one comma, as in \
         `name(key=value, key=value)`"
    )]
    Missing {
        /// Name of the policy.
        policy: &'static str,
        /// The given text.
        text: String,
    },
    /// There are more values without a name than parameters.
    #[error("policy `{policy}` has no parameter for the value `{found}`; it has {known}")]
    TooMany {
        /// Name of the policy.
        policy: &'static str,
        /// The first value without a parameter.
        found: String,
        /// Known parameters.
        known: String,
    },
    /// The policy does not have this parameter.
    #[error("policy `{policy}` has no parameter `{parameter}`{suggestion}; it has {known}")]
    Parameter {
        /// Name of the policy.
        policy: &'static str,
        /// The given name.
        parameter: String,
        /// Suggestion for the end of the message.
        suggestion: String,
        /// Known parameters.
        known: String,
    },
    /// A value is no number, out of range, not whole where it must be, or none of the parameter's named values.
    #[error("policy `{policy}`: `{parameter}` is {found}, allowed is {allowed}")]
    Value {
        /// Name of the policy.
        policy: &'static str,
        /// Name of the parameter.
        parameter: &'static str,
        /// The given value.
        found: String,
        /// Allowed values.
        allowed: String,
    },
    /// The choice by the node (`auto`) is wrong here, or has wrong parameters.
    #[error("`{text}`: {reason}")]
    Auto {
        /// The given text.
        text: String,
        /// Reason and fix.
        reason: String,
    },
    /// Both `boost` and `slo` are given.
    #[error("policy `{policy}`: `boost` and `slo` both order waiting tasks; give only one of them")]
    TwoOrders {
        /// Name of the policy.
        policy: &'static str,
    },
    /// A parameter is given more than once.
    #[error("policy `{policy}`: `{parameter}` is given twice; give each parameter once")]
    Twice {
        /// Name of the policy.
        policy: &'static str,
        /// Name of the parameter.
        parameter: &'static str,
    },
}

impl PolicySpec {
    /// Creates a policy with its default parameters.
    pub(super) fn usual(entry: &'static Entry) -> Self {
        Self { entry, values: entry.defaults() }
    }

    /// Returns the properties of the policy.
    #[must_use]
    pub fn entry(&self) -> &'static Entry {
        self.entry
    }

    /// Returns the value of a parameter, if the policy has it; of a list, the first value.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<f64> {
        let (_, place) = self.entry.places().find(|(parameter, _)| parameter.name == name)?;
        self.values.get(place.start).copied()
    }

    /// Returns the rule by which members report their queues under this policy.
    #[must_use]
    pub fn notify(&self) -> Notify {
        (self.entry.notify)(&self.values)
    }

    /// Returns true if it has no access to queues except by its own sends and by reports whose time the members choose.
    #[must_use]
    pub fn uses_member_reports(&self) -> bool {
        !matches!(self.notify(), Notify::Reply | Notify::Never)
            && self.queue_access() == QueueAccess::ReportsOnly
    }

    /// Returns true if its probes can be messages between a leaf and its workers: it probes a few members for each
    /// task, and needs only their answers. A policy that learns also needs load reports in replies.
    #[must_use]
    pub fn can_probe_by_messages(&self) -> bool {
        self.queue_access() == QueueAccess::Probes && !self.entry.learns
    }

    /// Returns true if members may report their queues in messages instead of replies, on request or not.
    #[must_use]
    pub fn takes_messages(&self) -> bool {
        self.uses_member_reports() || self.can_probe_by_messages()
    }

    /// Returns the policy's access to current queues.
    #[must_use]
    pub fn queue_access(&self) -> QueueAccess {
        (self.entry.queue_access)(&self.values)
    }

    /// Returns the maximum number of unfinished tasks at a member. `None` without a maximum, or for a
    /// policy that determines it at run time.
    #[must_use]
    pub fn bound(&self) -> Option<u32> {
        (self.entry.bound)(&self.values)
    }

    /// Returns its rules for classes of tasks.
    #[must_use]
    pub fn classes(&self) -> ClassRules {
        (self.entry.classes)(&self.values)
    }

    /// Builds a new policy of this kind.
    #[must_use]
    pub fn build(&self) -> AnyPolicy {
        (self.entry.build)(&self.values)
    }
}

impl PartialEq for PolicySpec {
    /// Compares name and values: an entry's functions cannot be compared.
    fn eq(&self, other: &Self) -> bool {
        self.entry.name == other.entry.name && self.values == other.values
    }
}

impl fmt::Display for PolicySpec {
    /// Writes the policy as its `from_str` reads it, with its parameters by name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry.name)?;
        let shown = self.entry.places().map(|(parameter, place)| (parameter, &self.values[place]));
        let mut open = "(";
        for (parameter, values) in shown.filter(|(parameter, values)| parameter.shows(values)) {
            write!(f, "{open}{}={}", parameter.name, parameter.text_of_all(values))?;
            open = ", ";
        }
        if open == "(" { Ok(()) } else { f.write_str(")") }
    }
}

impl FromStr for PolicySpec {
    type Err = PolicyError;

    /// Parses a name, or a name with values in parentheses: `name(key=value, ...)` or `name(value, ...)`. Parameters
    /// without a value keep their defaults. The list may be empty, but none of its values.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || PolicyError::Form { text: text.to_owned() };
        let (name, arguments) = match text.trim().split_once('(') {
            None => (text.trim(), None),
            Some((name, rest)) => (name.trim(), Some(rest.strip_suffix(')').ok_or_else(form)?)),
        };
        if name == AUTO {
            let reason = "only a pool of a leaf may have it; write one policy here, as in `eft`";
            return Err(PolicyError::Auto {
                text: text.trim().to_owned(),
                reason: reason.to_owned(),
            });
        }
        let entry = Entry::named(name).ok_or_else(|| {
            let known: Vec<_> = CATALOGUE.iter().map(|entry| entry.name).collect();
            let suggestion = did_you_mean(name, known.iter().copied());
            PolicyError::Name { name: name.to_owned(), suggestion, known: known.join(", ") }
        })?;
        let Self { mut values, .. } = Self::usual(entry);
        let mut is_given = vec![false; entry.parameters.len()];
        let list = arguments.map(str::trim).filter(|list| !list.is_empty());
        for (place, argument) in list.into_iter().flat_map(|list| list.split(',')).enumerate() {
            let argument = argument.trim();
            // `jsq(2)` means `jsq(d=2)`: values in the parameters' order, without names.
            let unnamed = entry.parameters.get(place).map(|parameter| (parameter.name, argument));
            let (key, value) = match argument.split_once('=').or(unnamed) {
                Some((key, value)) if !value.trim().is_empty() => (key.trim(), value.trim()),
                None if !argument.is_empty() => {
                    let (policy, found) = (entry.name, argument.to_owned());
                    return Err(PolicyError::TooMany { policy, found, known: known(entry) });
                }
                _ => {
                    let text = text.to_owned();
                    return Err(PolicyError::Missing { policy: entry.name, text });
                }
            };
            let (index, place, given) = parse_parameter(entry, key, value)?;
            values[place].copy_from_slice(&given);
            if std::mem::replace(&mut is_given[index], true) {
                let parameter = entry.parameters[index].name;
                return Err(PolicyError::Twice { policy: entry.name, parameter });
            }
        }
        let spec = Self { entry, values };
        let rules = spec.classes();
        if rules.boost > 0.0 && rules.slo_us.iter().any(|&slo_us| slo_us > 0.0) {
            return Err(PolicyError::TwoOrders { policy: entry.name });
        }
        Ok(spec)
    }
}

/// Returns the names of a policy's parameters, for messages.
fn known(entry: &Entry) -> String {
    let known: Vec<_> = entry.parameters.iter().map(|parameter| parameter.name).collect();
    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
}

/// Returns the index of the parameter `key`, and the places of its values with the values, given as text.
fn parse_parameter(
    entry: &'static Entry,
    key: &str,
    value: &str,
) -> Result<(usize, Range<usize>, Vec<f64>), PolicyError> {
    // Papers write some parameters in upper case: jbt-d(T=500).
    let has_name = |parameter: &Parameter| parameter.name.eq_ignore_ascii_case(key);
    let mut places = entry.places().enumerate();
    let Some((index, (parameter, place))) = places.find(|(_, (parameter, _))| has_name(parameter))
    else {
        let names = entry.parameters.iter().map(|parameter| parameter.name);
        return Err(PolicyError::Parameter {
            policy: entry.name,
            parameter: key.to_owned(),
            suggestion: did_you_mean(key, names),
            known: known(entry),
        });
    };
    match parameter.parse(value) {
        Some(values) => Ok((index, place, values)),
        None => Err(PolicyError::Value {
            policy: entry.name,
            parameter: parameter.name,
            found: value.to_owned(),
            allowed: parameter.allowed(),
        }),
    }
}
