//! Policies of nodes without a leaf, by their names in configurations and on command lines: `rsteal`,
//! `malcolm(steal=off)`. To *forward* a task is to send a fresh one to another node (migration). To *request* a task is
//! to ask another node for a waiting one (stealing).

use std::fmt;
use std::str::FromStr;

use wedjat_learner::{Optimizer, Utility};

use crate::nearest::did_you_mean;

/// Policy by which a node forwards and requests tasks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PeerPolicy {
    /// Two learned policies (Malcolm, POMACS 2022): for the destination of a fresh task, and for the node to request a
    /// task from.
    Malcolm(LearnedOptions),
    /// The same two policies with their random initial parameters, without learning.
    Frozen(LearnedOptions),
    /// Keeps all tasks, and asks a random node when idle.
    RandomSteal,
    /// The node with the fewest waiting tasks.
    Shortest,
    /// The one of two random nodes with fewer waiting tasks.
    TwoChoices,
    /// This node if it has fewer waiting tasks than the number, else any other such node, else any node.
    Below(u32),
    /// Keeps all tasks. Named `random`, because clients choose the nodes at random.
    Keep,
}

/// Options of learned policies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnedOptions {
    /// True to request tasks.
    pub steals: bool,
    /// True to forward tasks.
    pub migrates: bool,
    /// Definition of the reward's utility: decrease of the imbalance between the nodes, or negative imbalance.
    pub utility: Utility,
    /// True for a plain gradient step per beat (interval between heartbeats) instead of AdamW.
    pub sgd: bool,
    /// Beats per AdamW step.
    pub batch: u32,
    /// Decay of eligibility traces.
    pub lambda: f32,
    /// Learning rate of the critic.
    pub critic_rate: f32,
    /// Learning rate of both policies, for forwarding and for requests.
    pub actor_rate: f32,
    /// Divisor of a node's load. The load is the waiting work, divided by `slots` and by the number of tasks that the
    /// node's workers can serve at the same time. The released program has 64 slots.
    pub slots: u32,
    /// Factor on the loads from which rewards are computed.
    pub gain: f32,
}

impl Default for LearnedOptions {
    /// Returns the options of the released program.
    fn default() -> Self {
        let Optimizer::AdamW(adamw) = wedjat_learner::Settings::new(1).optimizer else {
            unreachable!("the released learner's optimizer")
        };
        let wedjat_learner::Settings { lambda, critic_rate, migration_rate, .. } =
            wedjat_learner::Settings::new(1);
        Self {
            steals: true,
            migrates: true,
            utility: Utility::Difference,
            sgd: false,
            batch: adamw.batch,
            lambda,
            critic_rate,
            actor_rate: migration_rate,
            slots: SLOTS,
            gain: 1.0,
        }
    }
}

/// Default of [`LearnedOptions::slots`].
const SLOTS: u32 = 64;
/// Default threshold of `jbt` in waiting tasks.
const BELOW: u32 = 2;
/// Names of all policies, for messages.
const NAMES: &str = "malcolm, frozen, rsteal, jsq, po2, jbt, random";
/// Parameters of the learned policies, for messages.
const LEARNED: &str = "steal=on|off, migrate=on|off, utility=difference|level, optimizer=adamw|sgd, batch=1..10000, \
                       lambda=0..1, critic-rate=0..1, actor-rate=0..1, slots=1..4096, gain=0.001..1000";

/// Error in the text of a peer policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerPolicyError {
    /// The name is unknown.
    #[error("unknown policy of peers `{0}`{meant}; known: {NAMES}", meant = did_you_mean(.0, NAMES.split(", ")))]
    Name(String),
    /// The text does not have the form `name(key=value,...)`.
    #[error("`{0}`: write a name, or a name with parameters as in `malcolm(steal=off)`")]
    Form(String),
    /// The parameter or its value is invalid.
    #[error("`{policy}`: `{parameter}` is not allowed; allowed: {allowed}")]
    Parameter {
        /// Policy.
        policy: &'static str,
        /// The given parameter.
        parameter: String,
        /// Allowed parameters.
        allowed: &'static str,
    },
}

impl PeerPolicy {
    /// Returns true if the policy requests tasks.
    #[must_use]
    pub fn steals(&self) -> bool {
        match self {
            Self::Malcolm(learned) | Self::Frozen(learned) => learned.steals,
            Self::RandomSteal => true,
            _ => false,
        }
    }

    /// Returns the divisor of a node's load, see [`LearnedOptions::slots`]. All nodes publish their loads, under every
    /// policy.
    #[must_use]
    pub fn slots(&self) -> u32 {
        match self {
            Self::Malcolm(learned) | Self::Frozen(learned) => learned.slots,
            _ => SLOTS,
        }
    }

    /// Returns the name without parameters.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Malcolm(_) => "malcolm",
            Self::Frozen(_) => "frozen",
            Self::RandomSteal => "rsteal",
            Self::Shortest => "jsq",
            Self::TwoChoices => "po2",
            Self::Below(_) => "jbt",
            Self::Keep => "random",
        }
    }
}

impl FromStr for PeerPolicy {
    type Err = PeerPolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let invalid_form = || PeerPolicyError::Form(text.to_owned());
        let (name, inner) = match text.split_once('(') {
            None => (text, ""),
            Some((name, rest)) => (name.trim(), rest.strip_suffix(')').ok_or_else(invalid_form)?),
        };
        let mut policy = match name {
            "malcolm" => Self::Malcolm(LearnedOptions::default()),
            "frozen" => Self::Frozen(LearnedOptions::default()),
            "rsteal" => Self::RandomSteal,
            "jsq" => Self::Shortest,
            "po2" => Self::TwoChoices,
            "jbt" => Self::Below(BELOW),
            "random" => Self::Keep,
            _ => return Err(PeerPolicyError::Name(name.to_owned())),
        };
        for parameter in inner.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = parameter.split_once('=').ok_or_else(invalid_form)?;
            let (key, value) = (key.trim(), value.trim());
            let (result, allowed) = match &mut policy {
                Self::Malcolm(learned) | Self::Frozen(learned) => {
                    (learned.set(key, value), LEARNED)
                }
                Self::Below(below) => {
                    let number = value.parse().ok().filter(|number| (1..=1 << 20).contains(number));
                    let result = (key == "below").then_some(()).and(number).map(|n| *below = n);
                    (result, "below=1..1048576")
                }
                _ => (None, "none"),
            };
            if result.is_none() {
                let (policy, parameter) = (policy.name(), parameter.to_owned());
                return Err(PeerPolicyError::Parameter { policy, parameter, allowed });
            }
        }
        Ok(policy)
    }
}

impl LearnedOptions {
    /// Sets a parameter. Returns `None` if it does not exist or the value is not allowed.
    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        let flag = || match value {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        };
        let share = || value.parse::<f32>().ok().filter(|share| (0.0..=1.0).contains(share));
        match key {
            "steal" => self.steals = flag()?,
            "migrate" => self.migrates = flag()?,
            "utility" => {
                self.utility = match value {
                    "difference" => Utility::Difference,
                    "level" => Utility::Level,
                    _ => return None,
                }
            }
            "optimizer" => {
                self.sgd = match value {
                    "adamw" => false,
                    "sgd" => true,
                    _ => return None,
                }
            }
            "batch" => {
                self.batch = value.parse().ok().filter(|batch| (1..=10_000).contains(batch))?;
            }
            "lambda" => self.lambda = share()?,
            "critic-rate" => self.critic_rate = share()?,
            "actor-rate" => self.actor_rate = share()?,
            "slots" => {
                self.slots = value.parse().ok().filter(|slots| (1..=4096).contains(slots))?;
            }
            "gain" => {
                self.gain = value.parse().ok().filter(|gain| (1e-3..=1e3).contains(gain))?;
            }
            _ => return None,
        }
        Some(())
    }
}

impl fmt::Display for PeerPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = LearnedOptions::default();
        let mut parts = Vec::new();
        match self {
            Self::Malcolm(learned) | Self::Frozen(learned) => {
                let mut part = |differs: bool, text: String| {
                    if differs {
                        parts.push(text);
                    }
                };
                let l = learned;
                part(!l.steals, "steal=off".to_owned());
                part(!l.migrates, "migrate=off".to_owned());
                part(l.utility == Utility::Level, "utility=level".to_owned());
                part(l.sgd, "optimizer=sgd".to_owned());
                part(l.batch != default.batch, format!("batch={}", l.batch));
                part(l.lambda != default.lambda, format!("lambda={}", l.lambda));
                part(
                    l.critic_rate != default.critic_rate,
                    format!("critic-rate={}", l.critic_rate),
                );
                part(l.actor_rate != default.actor_rate, format!("actor-rate={}", l.actor_rate));
                part(l.slots != default.slots, format!("slots={}", l.slots));
                part(l.gain != default.gain, format!("gain={}", l.gain));
            }
            Self::Below(below) if *below != BELOW => parts.push(format!("below={below}")),
            _ => {}
        }
        f.write_str(self.name())?;
        if parts.is_empty() { Ok(()) } else { write!(f, "({})", parts.join(",")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_texts_round_trip() {
        for text in [
            "malcolm",
            "malcolm(steal=off)",
            "malcolm(migrate=off,utility=level,optimizer=sgd,batch=5,lambda=0.5)",
            "frozen",
            "frozen(critic-rate=0.01,actor-rate=0.02)",
            "malcolm(slots=8,gain=0.5)",
            "rsteal",
            "jsq",
            "po2",
            "jbt",
            "jbt(below=7)",
            "random",
        ] {
            assert_eq!(text.parse::<PeerPolicy>().unwrap().to_string(), text);
        }
        let malcolm =
            PeerPolicy::Malcolm(LearnedOptions { steals: false, ..LearnedOptions::default() });
        assert_eq!(" malcolm( steal = off )".parse(), Ok(malcolm));
        assert!(!malcolm.steals() && PeerPolicy::RandomSteal.steals());
    }

    #[test]
    fn invalid_peer_policy_lists_allowed_values() {
        for (text, expected) in [
            ("horus", "known: malcolm, frozen"),
            ("malcom", "(did you mean `malcolm`?)"),
            ("malcolm(steal", "write a name"),
            ("malcolm(steal)", "write a name"),
            ("malcolm(steal=maybe)", "steal=on|off"),
            ("malcolm(batch=0)", "`batch=0` is not allowed"),
            ("malcolm(lambda=nan)", "lambda=0..1"),
            ("malcolm(slots=0)", "slots=1..4096"),
            ("malcolm(gain=inf)", "gain=0.001..1000"),
            ("jbt(below=0)", "below=1.."),
            ("jsq(2=3)", "allowed: none"),
        ] {
            let error = text.parse::<PeerPolicy>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
