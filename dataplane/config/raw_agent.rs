//! An agent's file, and `[agent]` of a leaf's, as TOML has them: right keys and types, values not yet looked at.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::{raw_control, raw_controller};
use crate::policy::Overflow;

/// The file as TOML has it.
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
    #[cfg(feature = "admin")]
    pub cosched: Option<Cosched>,
}

/// A rack without a leaf.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "peers"), allow(dead_code, reason = "refused, whatever it says"))]
pub struct Peers {
    pub nodes: Spanned<Vec<Spanned<String>>>,
    pub policy: Option<Spanned<String>>,
    pub beat_us: Option<Spanned<i64>>,
}

/// Batch jobs beside the workers.
#[cfg(feature = "admin")]
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

#[cfg(feature = "admin")]
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub command: Spanned<Vec<String>>,
    pub wall: Option<Spanned<String>>,
    pub progress: Option<Spanned<String>>,
    pub work: Option<Spanned<f64>>,
    pub log: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    pub name: Spanned<String>,
    pub core: usize,
    pub id: Option<Spanned<i64>>,
    pub udp_port: Option<Spanned<i64>>,
    pub state: Option<String>,
    pub state_group: Option<Spanned<String>>,
    pub seed: Option<u64>,
    pub mbufs: Option<Spanned<i64>>,
    pub slots: Option<Spanned<i64>>,
    pub payload: Option<Spanned<i64>>,
    pub worker_timeout_ms: Option<Spanned<i64>>,
    pub leaf: Option<Spanned<String>>,
    pub leaf_mac: Option<Spanned<String>>,
    pub worker_sends: Option<Sends>,
    pub poll: Option<Polling>,
    pub pools_max: Option<Spanned<i64>>,
    pub workers_max: Option<Spanned<i64>>,
}

/// Whether workers that are threads of the agent's process send their replies themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sends {
    /// Those for which the devices have a transmit queue.
    #[default]
    Try,
    /// All, or the agent does not start.
    Must,
    /// None.
    Never,
}

/// What a core does while nothing comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Polling {
    /// It polls on.
    #[default]
    Busy,
    /// It sleeps until something comes.
    Adaptive,
}

/// What becomes of checksums that the device has not verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checksums {
    /// They are verified, and packets with wrong ones refused.
    #[default]
    Verify,
    /// They are taken for right.
    Trust,
}

/// One of several leaves.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leaf {
    pub ip: Spanned<String>,
    pub mac: Option<Spanned<String>>,
}

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

/// `[agent]` in a leaf's file: what is left of an agent when the leaf has the ports.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Local {
    pub name: Spanned<String>,
    pub slots: Option<Spanned<i64>>,
    pub payload: Option<Spanned<i64>>,
    pub worker_timeout_ms: Option<Spanned<i64>>,
    pub pools_max: Option<Spanned<i64>>,
    pub workers_max: Option<Spanned<i64>>,
    #[serde(default)]
    pub pool: Vec<Pool>,
}

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
    /// Not of a leaf's own core.
    pub leaf_policy: Option<Spanned<String>>,
}
