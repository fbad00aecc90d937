//! Checked configuration of a leaf or spine.

use std::net::IpAddr;
use std::path::PathBuf;

use wedjat_core::policy::{Overflow, PolicySpec, Reports};
use wedjat_core::stage::network::SpineLink;
use wedjat_core::state::table::{Limits, Role};
use wedjat_core::wire::auth::Key;
use wedjat_core::wire::ether::Mac;

use super::agent::HostConfig;
use super::control::ControlConfig;
use super::controller::FollowConfig;
use super::faults::Fault;
use super::port::PortConfig;
use super::raw_agent::PollMode;
use super::settings::Settings;

/// Checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Path of the file.
    pub path: PathBuf,
    /// Text of the file, for a run's manifest.
    pub text: String,
    /// Role: leaf or spine.
    pub role: Role,
    /// `[leaf]`, or `[spine]` of a spine.
    pub leaf: LeafConfig,
    /// `[[port]]`.
    pub ports: Vec<PortConfig>,
    /// `[[pool]]`.
    pub pools: Vec<PoolConfig>,
    /// `[[server]]`. At a spine `[[leaf]]`: each leaf is its own only worker, with its number of workers as
    /// speed.
    pub servers: Vec<ServerConfig>,
    /// `[[spine]]` of a leaf: ids and addresses.
    pub spines: Vec<(u16, IpAddr)>,
    /// `[agent]`: worker cores of the leaf's own host.
    pub agent: Option<HostConfig>,
    /// `[control]`.
    pub control: ControlConfig,
    /// `[controller]`: the controller that the node follows.
    pub controller: Option<FollowConfig>,
    /// Values of all keys that can't change while the node runs.
    pub settings: Settings,
    /// Settings that are allowed and are probably mistakes, in order of lines. `allowed` names a better
    /// value.
    pub(super) warnings: Vec<Fault>,
}

/// Settings of the leaf itself.
#[derive(Clone, Debug)]
pub struct LeafConfig {
    /// Id.
    pub id: u16,
    /// UDP port of tasks.
    pub udp_port: u16,
    /// CPUs of the dispatcher cores.
    pub cores: Vec<usize>,
    /// State file; `None` for process memory.
    pub state: Option<PathBuf>,
    /// Group that may read the state file besides its owner.
    pub state_group: Option<u32>,
    /// Seed of all random streams; `None` to choose one at the start.
    pub seed: Option<u64>,
    /// Total number of packet buffers.
    pub mbufs: u32,
    /// Behaviour of the cores without packets.
    pub poll: PollMode,
    /// Maximum number of multi-packet tasks that each core tracks.
    pub connections: usize,
    /// Maximum number of these from one source address: 1 to `connections`.
    pub multi_packet_per_source: usize,
    /// Milliseconds without a packet after which a core forgets a multi-packet task.
    pub connection_timeout_ms: u64,
    /// Milliseconds without a message after which a registered worker, or a spine's leaf, gets no more tasks;
    /// 0 for never.
    pub worker_timeout_ms: u64,
    /// Maximum numbers at run time, never less than the file names.
    pub limits: Limits,
}

/// Pool of a leaf or spine.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Id.
    pub id: u16,
    /// Policy.
    pub policy: PolicySpec,
    /// Maximum number of queued tasks on each core, for policies that queue tasks.
    pub queue: usize,
    /// Treatment of tasks that exceed the queue.
    pub overflow: Overflow,
    /// True if other schedulers send tasks to these workers too. A report may then name more tasks than this
    /// leaf sent.
    pub shared_workers: bool,
    /// Way in which workers report their queues. With messages, several leaves share the workers.
    pub reports: Reports,
    /// Key. With a key, the leaf accepts the workers' replies and registrations only with a proof, a tag made with the
    /// key.
    pub key: Option<Key>,
    /// Service address that clients use, if it is not the node's own. A spine takes tasks to it, and leaves
    /// reply from it.
    pub service: Option<IpAddr>,
    /// At a leaf, the spine that receives signals of this pool, by its index, and the rules of these signals.
    pub link: Option<SpineLink>,
}

/// Worker server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// IP address.
    pub ip: IpAddr,
    /// MAC address; `None` to find it by ARP.
    pub mac: Option<Mac>,
    /// Global ids of its workers.
    pub workers: Vec<u16>,
    /// Pool that the workers serve.
    pub pool: u16,
    /// Speed of each worker, relative to other servers' workers.
    pub speed: f64,
    /// True if the workers register themselves (WORKER_ID, KEEP_ALIVE).
    pub registers: bool,
}
