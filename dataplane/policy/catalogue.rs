//! The policies by name, as configuration and command lines give them: `horus`, `lsq-smart(eps=0.2)`.

use std::fmt;
use std::str::FromStr;

use super::member::Notify;
use super::{
    AnyPolicy, Bounded, Horus, HorusInflight, HorusSpine, Learned, Lsq, Notified, Otherwise, Ppot,
    RackSched, Random, RoundRobin, Shortest, ShortestOf, WaterFill, WeightedRandom, Window,
};

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
    /// Where it runs besides the simulator.
    pub runs: Runs,
    notify: fn(&[f64]) -> Notify,
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
    /// Only whole numbers mean something.
    pub whole: bool,
}

impl Parameter {
    const fn new(name: &'static str, default: f64, range: (f64, f64)) -> Self {
        Self { name, default, range, whole: false }
    }

    const fn whole(name: &'static str, default: f64, range: (f64, f64)) -> Self {
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
    /// It decides by service rates that it is told, and takes members for equally fast when it is told none.
    #[must_use]
    pub fn is_told_rates(&self) -> bool {
        BY_RATE.contains(&self.name)
    }

    /// Members choose when to tell their queue, and whom, where that takes a message. On a leaf, and in models
    /// of one, every reply tells it.
    #[must_use]
    pub fn is_pulled(&self) -> bool {
        let defaults: Vec<_> = self.parameters.iter().map(|parameter| parameter.default).collect();
        !matches!((self.notify)(&defaults), Notify::Reply | Notify::Never)
    }
}

/// See [`Entry::is_told_rates`].
const BY_RATE: [&str; 10] = [
    "weighted-random",
    "sed",
    "jiq-weighted",
    "ppot",
    "ppot-ll",
    "hlsq-sample",
    "hlsq-update",
    "hlsq-smart",
    "hlsq-hybrid",
    "scd",
];

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leaf => "leaf",
            Self::LeafHolding => "leaf, where tasks wait in a bounded queue",
            Self::Spine => "spine only: its members are racks",
        })
    }
}

const EPS: Parameter = Parameter::new("eps", 0.2, (0.0, 1.0));
const D: Parameter = Parameter::whole("d", 2.0, (1.0, 16.0));
/// Tasks at a member that is silent for so many milliseconds are lost; 0: as services suggest.
const SILENCE: Parameter = Parameter::new("silence-ms", 0.0, (0.0, 1e6));

fn lsq(samples: f64, chance: f64, by_speed: bool) -> AnyPolicy {
    AnyPolicy::from(Lsq::new(samples as usize, chance, by_speed))
}

const C1: Parameter = Parameter::new("c1", 1.0, (1e-3, 1000.0));
const WEIGHT: Parameter = Parameter::new("weight", 0.05, (1e-4, 1.0));
/// Arrivals whose mean distance is taken.
const S: Parameter = Parameter::whole("s", 1000.0, (1.0, 1e9));
/// Mean processing time that the members guarantee together; 0: as measured.
const GUARANTEED: Parameter = Parameter::new("service-us", 0.0, (0.0, 1e9));

fn learned(least_loaded: bool, window: Window, v: &[f64]) -> AnyPolicy {
    AnyPolicy::from(Learned::new(least_loaded, window, v[1] as u64, v[2] * 1e3))
}

fn shortest(of: f64) -> AnyPolicy {
    match of as usize {
        0 => AnyPolicy::from(Shortest::new(false)),
        count => AnyPolicy::from(ShortestOf::new(count)),
    }
}

fn notified(below: f64, otherwise: Otherwise) -> AnyPolicy {
    AnyPolicy::from(Notified::new(below as u32, otherwise))
}

fn ms(milliseconds: f64) -> Option<u64> {
    (milliseconds > 0.0).then_some((milliseconds * 1e6) as u64)
}

/// Every policy.
pub const CATALOGUE: &[Entry] = &[
    Entry {
        name: "horus",
        summary: "an idle member, else the better of two random ones by load plus drift",
        source: "Horus, NSDI 2024, 3.3",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |_| AnyPolicy::from(Horus),
    },
    Entry {
        name: "horus-inflight",
        summary: "horus that never forgets tasks on their way to a member",
        source: "wedjat, after Horus, NSDI 2024",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |_| AnyPolicy::from(HorusInflight),
    },
    Entry {
        name: "horus-spine",
        summary: "horus over racks: a random idle rack, else the better of two, by average load",
        source: "Horus, NSDI 2024, 3.3",
        parameters: &[],
        runs: Runs::Spine,
        notify: |_| Notify::Reply,
        build: |_| AnyPolicy::from(HorusSpine::default()),
    },
    Entry {
        name: "horus-spine-weighted",
        summary: "horus over racks, each taken in proportion to its workers",
        source: "wedjat, after Horus, NSDI 2024",
        parameters: &[],
        runs: Runs::Spine,
        notify: |_| Notify::Reply,
        build: |_| AnyPolicy::from(HorusSpine::new(true)),
    },
    Entry {
        name: "racksched",
        summary: "the better of two random members by the load they last reported",
        source: "RackSched, OSDI 2020",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |_| AnyPolicy::from(RackSched),
    },
    Entry {
        name: "lsq-sample",
        summary: "the shortest queue of a local view, of which each arrival samples d",
        source: "LSQ, ToN 2020, Algorithm 1",
        parameters: &[D],
        runs: Runs::Leaf,
        notify: |_| Notify::Never,
        build: |v| lsq(v[0], 1.0, false),
    },
    Entry {
        name: "lsq-update",
        summary: "the shortest queue of a local view; members report when idle, else with probability eps",
        source: "LSQ, ToN 2020, Algorithm 2",
        parameters: &[EPS],
        runs: Runs::Leaf,
        notify: |v| Notify::Update(v[0]),
        build: |_| lsq(0.0, 0.0, false),
    },
    Entry {
        name: "lsq-smart",
        summary: "as lsq-update, and members report to the dispatcher that is most wrong",
        source: "LSQ, ToN 2020, Algorithm 3",
        parameters: &[EPS],
        runs: Runs::Leaf,
        notify: |v| Notify::Smart(v[0]),
        build: |_| lsq(0.0, 0.0, false),
    },
    Entry {
        name: "lsq-hybrid",
        summary: "the shortest queue of a local view; idle members report, a share eps of arrivals samples one",
        source: "LSQ, ToN 2020, Example 3",
        parameters: &[EPS],
        runs: Runs::Leaf,
        notify: |_| Notify::Update(0.0),
        build: |v| lsq(1.0, v[0], false),
    },
    Entry {
        name: "hlsq-sample",
        summary: "lsq-sample by (queue + 1) / speed",
        source: "wedjat, after LSQ, ToN 2020",
        parameters: &[D],
        runs: Runs::Leaf,
        notify: |_| Notify::Never,
        build: |v| lsq(v[0], 1.0, true),
    },
    Entry {
        name: "hlsq-update",
        summary: "lsq-update by (queue + 1) / speed",
        source: "wedjat, after LSQ, ToN 2020",
        parameters: &[EPS],
        runs: Runs::Leaf,
        notify: |v| Notify::Update(v[0]),
        build: |_| lsq(0.0, 0.0, true),
    },
    Entry {
        name: "hlsq-smart",
        summary: "lsq-smart by (queue + 1) / speed",
        source: "wedjat, after LSQ, ToN 2020",
        parameters: &[EPS],
        runs: Runs::Leaf,
        notify: |v| Notify::Smart(v[0]),
        build: |_| lsq(0.0, 0.0, true),
    },
    Entry {
        name: "hlsq-hybrid",
        summary: "lsq-hybrid by (queue + 1) / speed",
        source: "wedjat, after LSQ, ToN 2020",
        parameters: &[EPS],
        runs: Runs::Leaf,
        notify: |_| Notify::Update(0.0),
        build: |v| lsq(1.0, v[0], true),
    },
    Entry {
        name: "ppot",
        summary: "the shorter queue of two draws in proportion to given service rates",
        source: "Rosella, IV",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |_| AnyPolicy::from(Ppot::new(false)),
    },
    Entry {
        name: "ppot-ll",
        summary: "of two draws in proportion to given rates, the one that is done sooner",
        source: "Rosella, IV",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |_| AnyPolicy::from(Ppot::new(true)),
    },
    Entry {
        name: "ppot-learned",
        summary: "the shorter queue of two draws in proportion to rates that it learns, as printed; on a leaf without benchmark tasks",
        source: "Rosella, IV",
        parameters: &[C1, S, GUARANTEED],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |v| learned(false, Window::Printed { c1: v[0] }, v),
    },
    Entry {
        name: "ppot-ewma",
        summary: "the shorter queue of two draws in proportion to rates that it learns, by moving averages; on a leaf without benchmark tasks",
        source: "wedjat, after Rosella, IV",
        parameters: &[WEIGHT, S, GUARANTEED],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |v| learned(false, Window::Ewma { weight: v[0] }, v),
    },
    Entry {
        name: "ppot-ll-learned",
        summary: "of two draws, the one that is done sooner, by rates that it learns, as printed; on a leaf without benchmark tasks",
        source: "Rosella, IV",
        parameters: &[C1, S, GUARANTEED],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |v| learned(true, Window::Printed { c1: v[0] }, v),
    },
    Entry {
        name: "ppot-ll-ewma",
        summary: "of two draws, the one that is done sooner, by rates that it learns, by moving averages; on a leaf without benchmark tasks",
        source: "wedjat, after Rosella, IV",
        parameters: &[WEIGHT, S, GUARANTEED],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |v| learned(true, Window::Ewma { weight: v[0] }, v),
    },
    Entry {
        name: "jbsq",
        summary: "at most k tasks at a member, the others wait at the dispatcher",
        source: "R2P2, ATC 2019",
        parameters: &[Parameter::whole("k", 2.0, (1.0, 64.0)), SILENCE],
        runs: Runs::LeafHolding,
        notify: |_| Notify::Reply,
        build: |v| AnyPolicy::from(Bounded::new(v[0] as usize, ms(v[1]))),
    },
    Entry {
        name: "cfcfs",
        summary: "one queue at the dispatcher, with the least bound that keeps members busy",
        source: "wedjat, after R2P2, ATC 2019",
        parameters: &[SILENCE],
        runs: Runs::LeafHolding,
        notify: |_| Notify::Reply,
        build: |v| AnyPolicy::from(Bounded::adaptive(ms(v[0]))),
    },
    Entry {
        name: "random",
        summary: "any member, each as likely",
        source: "baseline",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |_| AnyPolicy::from(Random),
    },
    Entry {
        name: "weighted-random",
        summary: "any member, in proportion to its service rate",
        source: "baseline",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |_| AnyPolicy::from(WeightedRandom::default()),
    },
    Entry {
        name: "round-robin",
        summary: "one member after the other",
        source: "baseline",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |_| AnyPolicy::from(RoundRobin::default()),
    },
    Entry {
        name: "jsq",
        summary: "the shortest queue of all, or of d random ones; on a leaf by its own count",
        source: "baseline; Mitzenmacher 2001 for d",
        parameters: &[Parameter::whole("d", 0.0, (0.0, 16.0))],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |v| shortest(v[0]),
    },
    Entry {
        name: "sed",
        summary: "the shortest expected delay, (queue + 1) / speed; on a leaf by its own count",
        source: "baseline; Weber 1978",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |_| AnyPolicy::from(Shortest::new(true)),
    },
    Entry {
        name: "jiq",
        summary: "a member that told of its idleness, else a random one",
        source: "JIQ, Performance Evaluation 2011",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Below(1),
        build: |_| notified(1.0, Otherwise::Random),
    },
    Entry {
        name: "jiq-weighted",
        summary: "jiq that falls back on service rates",
        source: "JIQ, Performance Evaluation 2011",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Below(1),
        build: |_| notified(1.0, Otherwise::Weighted),
    },
    Entry {
        name: "jbt",
        summary: "a member that told its queue fell below r, else a random one",
        source: "Malcolm, POMACS 2022, as its baseline",
        parameters: &[Parameter::whole("r", 2.0, (1.0, 1000.0))],
        runs: Runs::Leaf,
        notify: |v| Notify::Below(v[0] as u32),
        build: |v| notified(v[0], Otherwise::Random),
    },
    Entry {
        name: "jbt-d",
        summary: "jbt that learns its threshold from d random queues every t us",
        source: "Zhou et al., SIGMETRICS 2017",
        parameters: &[Parameter::new("t", 1000.0, (1.0, 1e9)), D],
        runs: Runs::Leaf,
        notify: |_| Notify::Always,
        build: |v| AnyPolicy::from(Notified::learning((v[0] * 1e3) as u64, v[1] as usize)),
    },
    Entry {
        name: "pi",
        summary: "an idle member, else the one that was the last to report itself idle",
        source: "Persistent Idle, Atar et al. 2020",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Below(1),
        build: |_| notified(1.0, Otherwise::Last),
    },
    Entry {
        name: "scd",
        summary: "stochastically coordinated dispatching: fill queues to a level by chance",
        source: "Goren et al., SIGMETRICS 2021",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |_| AnyPolicy::from(WaterFill::new(true)),
    },
    Entry {
        name: "twf",
        summary: "tidal water filling: scd for equal speeds",
        source: "Goren et al., INFOCOM 2020",
        parameters: &[],
        runs: Runs::Leaf,
        notify: |_| Notify::Reply,
        build: |_| AnyPolicy::from(WaterFill::new(false)),
    },
];

/// Pairs of policies for leaf and spine that have a name of their own: name, leaf's, spine's, summary, source.
pub const PAIRS: &[(&str, &str, &str, &str, &str)] = &[
    (
        "rs-lb",
        "racksched",
        "random",
        "a uniform rack, then racksched",
        "Horus, NSDI 2024, 4 (RackSched with a load balancer)",
    ),
    (
        "rs-h",
        "racksched",
        "racksched",
        "racksched over racks, then over workers",
        "Horus, NSDI 2024, 4 (RackSched in a hierarchy)",
    ),
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
