//! Agent's file as TOML has it: keys and types are right, values are unchecked.
//! [`super::keys`] has the meaning of each key. The checks read keys without a field, such as `slots`, by name from an
//! entry's `table`.
//!
//! `entry!` defines a type with one field for each key, and its `of`, which reads a table of the file. `Spanned` is a
//! value with its place in the text.

use serde::Deserialize;
use toml::Spanned;

use super::raw::{Pool, Port};
use super::raw_control::Follow;
use super::read::{self, Table, entry};

/// Agent's file.
pub struct File {
    pub agent: Agent,
    pub leaf: Vec<Leaf>,
    pub port: Vec<Port>,
    pub pool: Vec<Pool>,
    pub controller: Option<Follow>,
    pub peers: Option<Peers>,
    pub cosched: Option<Cosched>,
}

impl File {
    /// Returns the contents of a file.
    pub fn of(file: &read::File) -> Self {
        Self {
            agent: Agent::of(file, file.only("agent")),
            leaf: file.entries("leaf", Leaf::of),
            port: file.entries("port", Port::of),
            pool: file.entries("pool", Pool::of),
            controller: file.entries("controller", Follow::of).pop(),
            peers: file.entries("peers", Peers::of).pop(),
            cosched: file.entries("cosched", Cosched::of).pop(),
        }
    }
}

entry! {
    /// `[peers]`: all nodes of a rack without a leaf, including this agent, and the policy between them.
    Peers {
        nodes: Spanned<Vec<Spanned<String>>>,
        policy: Option<Spanned<String>>,
    }
}

entry! {
    /// `[cosched]`: settings of batch jobs beside the workers.
    Cosched {
        policy: Option<Spanned<String>>,
        objective: Option<Spanned<String>>,
        experts: Option<Spanned<String>>,
        class: Option<Spanned<String>>,
        cgroup: Option<Spanned<String>>,
    }
}

entry! {
    /// A `[[cosched.job]]`. The check of `[cosched]` reads these tables.
    Job {
        command: Spanned<Vec<Spanned<String>>>,
        wall: Option<Spanned<String>>,
        progress: Option<Spanned<String>>,
        work: Option<Spanned<f64>>,
        log: Option<Spanned<String>>,
    }
}

entry! {
    /// `[agent]`.
    Agent {
        name: Spanned<String>,
        leaf: Option<Spanned<String>>,
        leaf_mac: Option<Spanned<String>>,
    }
}

/// Value of `worker_sends`: sender of replies of workers that are threads of the agent's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplyPath {
    /// The worker, if the devices have a transmit queue for it; else the agent's core.
    #[default]
    Try,
    /// The worker. The agent does not start if a worker lacks a transmit queue.
    Must,
    /// The agent's core.
    Never,
}

impl ReplyPath {
    /// Returns the value's word in a file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Try => "try",
            Self::Must => "must",
            Self::Never => "never",
        }
    }
}

/// Value of a node's `poll`: behaviour of a core without packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PollMode {
    /// Keep polling.
    #[default]
    Busy,
    /// Sleep until a packet arrives.
    Adaptive,
}

/// Value of a port's `checksums`: treatment of checksums that the device has not verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checksums {
    /// Verify them and refuse packets with wrong ones.
    #[default]
    Verify,
    /// Accept them.
    Trust,
}

entry! {
    /// A `[[leaf]]`: one of several leaves with which the workers register. `[agent]` names a single one.
    Leaf {
        ip: Spanned<String>,
        mac: Option<Spanned<String>>,
    }
}
