//! A leaf's or spine's configuration when it is checked.

use std::net::IpAddr;
use std::path::PathBuf;

use super::agent::HostConfig;
use super::control::ControlConfig;
use super::controller::FollowConfig;
use super::faults::Fault;
use super::port::PortConfig;
use super::raw_agent::Polling;
use crate::policy::{Overflow, PolicySpec, Reports};
use crate::stage::network::SpineLink;
use crate::state::table::{Limits, Role};
use crate::wire::auth::Key;
use crate::wire::ether::Mac;

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file it comes from.
    pub path: PathBuf,
    /// Its text, for a run's manifest.
    pub text: String,
    /// Whether it is a leaf's or a spine's.
    pub role: Role,
    /// `[leaf]`, or `[spine]` of a spine.
    pub leaf: LeafConfig,
    /// `[[port]]`.
    pub ports: Vec<PortConfig>,
    /// `[[pool]]`.
    pub pools: Vec<PoolConfig>,
    /// `[[server]]`; `[[leaf]]` of a spine, each of which is its own only worker, as fast as it has workers.
    pub servers: Vec<ServerConfig>,
    /// `[[spine]]` of a leaf: ids and addresses.
    pub spines: Vec<(u16, IpAddr)>,
    /// `[agent]`: worker cores of the leaf's own host.
    pub agent: Option<HostConfig>,
    /// `[control]`.
    pub control: ControlConfig,
    /// `[controller]`: whom it follows.
    pub controller: Option<FollowConfig>,
    /// What is allowed and yet may not be meant, in order of lines; `allowed` says what would be better.
    pub(super) warnings: Vec<Fault>,
}

/// The leaf itself.
#[derive(Clone, Debug)]
pub struct LeafConfig {
    /// Its id.
    pub id: u16,
    /// The UDP port of tasks.
    pub udp_port: u16,
    /// CPUs of the dispatcher cores.
    pub cores: Vec<usize>,
    /// The state file; memory of the process when none.
    pub state: Option<PathBuf>,
    /// The group that may read it besides its owner.
    pub state_group: Option<u32>,
    /// Seed of all random streams; chosen at start when none.
    pub seed: Option<u64>,
    /// Packet buffers in all.
    pub mbufs: u32,
    /// What its cores do while nothing comes.
    pub poll: Polling,
    /// Multi-packet tasks tracked by each core.
    pub connections: usize,
    /// Of these, how many may come from one source address: 1 to `connections`.
    pub multi_packet_per_source: usize,
    /// After how long without a packet such a task is forgotten.
    pub connection_timeout_ms: u64,
    /// After how long without a word a registered worker, or a spine's leaf, is taken out; 0 for never.
    pub worker_timeout_ms: u64,
    /// How much there may be while it runs: never less than this file names.
    pub limits: Limits,
    /// `pools_max`, `servers_max`, `workers_max` and, of a spine, `leaves_max` where the file gives them.
    pub room: [Option<usize>; 4],
}

/// A pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Its id.
    pub id: u16,
    /// Its policy.
    pub policy: PolicySpec,
    /// Tasks that may wait for a member on each core, under policies that let them wait.
    pub queue: usize,
    /// What becomes of those beyond.
    pub overflow: Overflow,
    /// Other schedulers send tasks to these workers too, so that a report may name more tasks than this leaf sent.
    pub shared_workers: bool,
    /// How its workers tell their queues; in messages, they are shared with other leaves.
    pub reports: Reports,
    /// With it, what its workers say is believed with proof only.
    pub key: Option<Key>,
    /// The address that clients ask, where it is not the node's own: a spine takes tasks to it, and leaves answer from it.
    pub service: Option<IpAddr>,
    /// At a leaf, the spine that is told of it, by its index, and what.
    pub link: Option<SpineLink>,
}

/// A worker server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Its address.
    pub ip: IpAddr,
    /// Its MAC address, if ARP need not find it.
    pub mac: Option<Mac>,
    /// Its workers' global ids.
    pub workers: Vec<u16>,
    /// The pool they serve.
    pub pool: u16,
    /// How fast each of them is, relative to other servers' workers.
    pub speed: f64,
    /// Its workers register themselves (WORKER_ID, KEEP_ALIVE).
    pub registers: bool,
}
