//! Checked configuration of a leaf or spine, and the reading of its own table and of its servers.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;

use wedjat_core::limits::{CORES_MAX, MULTI_PACKET_PER_SOURCE};
use wedjat_core::state::table::{Limits, Role};
use wedjat_core::wire::ether::Mac;

use super::address::is_unicast;
use super::agent::HostConfig;
use super::control::ControlConfig;
use super::controller::FollowConfig;
use super::fault::ConfigFault;
use super::faults::{FaultCollector, HOST, state, state_group};
use super::port::PortConfig;
use super::raw;
use super::raw_agent::PollMode;
use super::settings::Settings;
use crate::state::{Pool, Spine};

/// Checked configuration of a leaf or spine.
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
    /// `[[pool]]`, with their ids.
    pub pools: Vec<(u16, Pool)>,
    /// `[[server]]`. At a spine `[[leaf]]`: each leaf is its own only worker, with its number of workers as
    /// speed.
    pub servers: Vec<ServerConfig>,
    /// `[[spine]]` of a leaf.
    pub spines: Vec<Spine>,
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
    pub(super) warnings: Vec<ConfigFault>,
}

/// Settings of the leaf or spine itself.
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

impl LeafConfig {
    /// Reads the settings of the node itself, and records their faults. `limits` and the default of `mbufs` depend on
    /// the rest of the file, and the caller sets them later.
    pub(super) fn read(faults: &mut FaultCollector, raw: &raw::Config) -> Self {
        let (node, table, key) =
            (&raw.leaf, raw.leaf.table, |name: &str| format!("{}.{name}", raw.role.name()));
        let cores = node.cores.get_ref();
        if cores.is_empty() || cores.len() > CORES_MAX {
            let allowed = format!("1 to {CORES_MAX} CPU numbers");
            faults.note(&node.cores, &key("cores"), format!("{} cores", cores.len()), &allowed);
        }
        if let Some(core) = duplicate(cores.iter()) {
            faults.note(&node.cores, &key("cores"), format!("{core} twice"), "each CPU once");
        }
        let connections = faults.number(table, "connections");
        let multi_packet_per_source = faults.number_in(
            table,
            "multi_packet_per_source",
            MULTI_PACKET_PER_SOURCE.min(connections),
            (1, connections.max(1)),
        );
        faults.settings.set(&key("multi_packet_per_source"), multi_packet_per_source);
        let state = state(faults, table);
        let timeout = if raw.role == Role::Spine { "leaf_timeout_ms" } else { "worker_timeout_ms" };
        Self {
            id: faults.number(table, "id"),
            udp_port: faults.number(table, "udp_port"),
            cores: cores.clone(),
            state_group: state_group(faults, table, state.is_some()),
            state,
            seed: faults.count(table, "seed"),
            mbufs: faults.number(table, "mbufs"),
            poll: faults.word(table, "poll"),
            connections,
            multi_packet_per_source,
            connection_timeout_ms: faults.number(table, "connection_timeout_ms"),
            worker_timeout_ms: faults.number(table, timeout),
            limits: Limits::default(),
        }
    }
}

/// Workers of one server in one pool. At a spine, a leaf in one pool.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// IP address.
    pub ip: IpAddr,
    /// MAC address; `None` to find it by ARP or neighbour discovery.
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

impl ServerConfig {
    /// Reads a `[[server]]`, and records its faults. `pools_with_key` has the ids of pools with a `key_file`.
    pub(super) fn read(
        faults: &mut FaultCollector,
        raw: &raw::Server,
        pools_with_key: &HashSet<u16>,
    ) -> Self {
        // Registration is the default for pools with a key: the proof identifies the server.
        let proves = pools_with_key.contains(raw.pool.get_ref());
        Self {
            workers: faults.workers(&raw.workers, "server.workers"),
            ip: faults.host(&raw.ip, "server.ip", is_unicast, HOST),
            mac: faults.mac(raw.mac.as_ref(), "server.mac"),
            pool: *raw.pool.get_ref(),
            speed: faults.decimal(raw.table, "speed"),
            registers: raw.registers.as_ref().map_or(proves, |at| *at.get_ref()),
        }
    }
}

/// Returns the first item that occurs again.
fn duplicate<T: Ord>(items: impl Iterator<Item = T>) -> Option<T> {
    let mut seen = std::collections::BTreeSet::new();
    for item in items {
        if let Some(item) = seen.replace(item) {
            return Some(item);
        }
    }
    None
}
