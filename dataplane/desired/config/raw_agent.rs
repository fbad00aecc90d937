//! Agent's file, and `[agent]` of a leaf's, as TOML has them: keys and types are right, values are unchecked.
//! [`super::keys`] has the meaning of each key.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;
use wedjat_core::policy::Overflow;

use super::{raw_control, raw_controller};

/// File as TOML has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub agent: Agent,
    #[serde(default)]
    pub leaf: Vec<Leaf>,
    #[serde(default)]
    pub port: Vec<Port>,
    #[serde(default)]
    pub pool: Vec<Pool>,
    pub control: Option<raw_control::Control>,
    pub controller: Option<raw_controller::Follow>,
    pub peers: Option<Peers>,
    pub cosched: Option<Spanned<Cosched>>,
}

/// Rack without a leaf.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    pub nodes: Spanned<Vec<Spanned<String>>>,
    pub policy: Option<Spanned<String>>,
    pub beat_us: Option<Spanned<i64>>,
}

/// Batch jobs beside the workers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cosched {
    pub policy: Option<Spanned<String>>,
    pub objective: Option<Spanned<String>>,
    pub experts: Option<Spanned<String>>,
    pub class: Option<Spanned<String>>,
    pub cgroup: Option<String>,
    pub processes: Option<Spanned<i64>>,
    #[serde(default)]
    pub job: Vec<Job>,
}

/// A `[[cosched.job]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub command: Spanned<Vec<String>>,
    pub wall: Option<Spanned<String>>,
    pub progress: Option<Spanned<String>>,
    pub work: Option<Spanned<f64>>,
    pub log: Option<Spanned<String>>,
}

/// `[agent]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    pub name: Spanned<String>,
    pub core: usize,
    pub id: Option<Spanned<i64>>,
    pub udp_port: Option<Spanned<i64>>,
    pub state: Option<Spanned<String>>,
    pub state_group: Option<Spanned<String>>,
    pub seed: Option<u64>,
    pub mbufs: Option<Spanned<i64>>,
    pub slots: Option<Spanned<i64>>,
    pub payload: Option<Spanned<i64>>,
    pub worker_timeout_ms: Option<Spanned<i64>>,
    pub leaf: Option<Spanned<String>>,
    pub leaf_mac: Option<Spanned<String>>,
    pub worker_sends: Option<ReplyPath>,
    pub poll: Option<PollMode>,
    pub pools_max: Option<Spanned<i64>>,
    pub workers_max: Option<Spanned<i64>>,
}

/// Sender of replies of workers that are threads of the agent's process.
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

/// Behaviour of a core without packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PollMode {
    /// Keep polling.
    #[default]
    Busy,
    /// Sleep until a packet arrives.
    Adaptive,
}

/// Treatment of checksums that the device has not verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checksums {
    /// Verify them and refuse packets with wrong ones.
    #[default]
    Verify,
    /// Accept them.
    Trust,
}

/// One of several leaves.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leaf {
    pub ip: Spanned<String>,
    pub mac: Option<Spanned<String>>,
}

/// A `[[port]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    pub checksums: Option<Checksums>,
    pub device: Spanned<String>,
    pub ip: Spanned<String>,
    pub mac: Option<Spanned<String>>,
    pub queue_slots: Option<Spanned<i64>>,
    pub vlan: Option<Spanned<i64>>,
}

/// `[agent]` in a leaf's file: the agent's keys without those of ports, which the leaf has.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalAgentSection {
    pub name: Spanned<String>,
    pub slots: Option<Spanned<i64>>,
    pub payload: Option<Spanned<i64>>,
    pub worker_timeout_ms: Option<Spanned<i64>>,
    pub pools_max: Option<Spanned<i64>>,
    pub workers_max: Option<Spanned<i64>>,
    #[serde(default)]
    pub pool: Vec<Pool>,
}

/// A `[[pool]]` of an agent, or an `[[agent.pool]]` of a leaf.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    pub id: Spanned<u16>,
    pub policy: Spanned<String>,
    pub workers: Spanned<String>,
    pub queue: Option<Spanned<i64>>,
    pub overflow: Option<Overflow>,
    pub speeds: Option<Spanned<BTreeMap<String, f64>>>,
    pub key_file: Option<Spanned<String>>,
    /// Not for pools on a leaf's own core.
    pub leaf_policy: Option<Spanned<String>>,
}
