//! The policies by name, as configuration and command lines give them: `horus`, `lsq-smart(eps=0.2)`.

use std::fmt;
use std::str::FromStr;

use super::{AnyPolicy, Horus, HorusInflight, HorusSpine, Jsq, RackSched, Random, RoundRobin};

/// What is known of a policy before it is built.
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
    build: fn(&[f64]) -> AnyPolicy,
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
}

/// Every policy.
pub const CATALOGUE: &[Entry] = &[
    Entry {
        name: "horus",
        summary: "an idle member, else the better of two random ones by load plus drift",
        source: "Horus, NSDI 2024, 3.3",
        parameters: &[],
        build: |_| AnyPolicy::from(Horus),
    },
    Entry {
        name: "horus-inflight",
        summary: "horus that never forgets tasks on their way to a member",
        source: "wedjat, after Horus, NSDI 2024",
        parameters: &[],
        build: |_| AnyPolicy::from(HorusInflight),
    },
    Entry {
        name: "horus-spine",
        summary: "horus over racks: a random idle rack, else the better of two, by average load",
        source: "Horus, NSDI 2024, 3.3",
        parameters: &[],
        build: |_| AnyPolicy::from(HorusSpine::default()),
    },
    Entry {
        name: "racksched",
        summary: "the better of two random members by the load they last reported",
        source: "RackSched, OSDI 2020",
        parameters: &[],
        build: |_| AnyPolicy::from(RackSched),
    },
    Entry {
        name: "random",
        summary: "any member, each as likely",
        source: "baseline",
        parameters: &[],
        build: |_| AnyPolicy::from(Random),
    },
    Entry {
        name: "round-robin",
        summary: "one member after the other",
        source: "baseline",
        parameters: &[],
        build: |_| AnyPolicy::from(RoundRobin::default()),
    },
    Entry {
        name: "jsq",
        summary: "the member with the fewest outstanding tasks",
        source: "baseline, on the leaf's own count",
        parameters: &[],
        build: |_| AnyPolicy::from(Jsq),
    },
];

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
    #[error("unknown policy `{name}`; known: {known}")]
    Name {
        /// What was given.
        name: String,
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
    #[error("policy `{policy}` has no parameter `{parameter}`; it has {known}")]
    Parameter {
        /// The policy.
        policy: &'static str,
        /// What was given.
        parameter: String,
        /// What it has.
        known: String,
    },
    /// A value outside its range, or no number.
    #[error("policy `{policy}`: `{parameter}` is {found}, allowed is {least} to {most}")]
    Value {
        /// The policy.
        policy: &'static str,
        /// The parameter.
        parameter: &'static str,
        /// What was given.
        found: String,
        /// The least value allowed.
        least: String,
        /// The greatest value allowed.
        most: String,
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
        let entry = CATALOGUE.iter().find(|entry| entry.name == name).ok_or_else(|| {
            let known: Vec<_> = CATALOGUE.iter().map(|entry| entry.name).collect();
            PolicyError::Name { name: name.to_owned(), known: known.join(", ") }
        })?;
        let mut values: Vec<f64> = entry.parameters.iter().map(|p| p.default).collect();
        let arguments = arguments.unwrap_or_default().split(',').map(str::trim);
        for argument in arguments.filter(|argument| !argument.is_empty()) {
            let (key, value) = argument.split_once('=').ok_or_else(form)?;
            let (at, value) = parse_parameter(entry, key.trim(), value.trim())?;
            values[at] = value;
        }
        Ok(Self { entry, values })
    }
}

fn parse_parameter(
    entry: &'static Entry,
    key: &str,
    value: &str,
) -> Result<(usize, f64), PolicyError> {
    let Some(at) = entry.parameters.iter().position(|parameter| parameter.name == key) else {
        let known: Vec<_> = entry.parameters.iter().map(|parameter| parameter.name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(PolicyError::Parameter {
            policy: entry.name,
            parameter: key.to_owned(),
            known,
        });
    };
    let parameter = &entry.parameters[at];
    let (least, most) = parameter.range;
    match value.parse::<f64>() {
        Ok(number) if (least..=most).contains(&number) => Ok((at, number)),
        _ => Err(PolicyError::Value {
            policy: entry.name,
            parameter: parameter.name,
            found: value.to_owned(),
            least: least.to_string(),
            most: most.to_string(),
        }),
    }
}
