//! Assembly of a node's parts from a checked configuration. `wedjat leaf`, `wedjat agent`, embedding programs, the
//! testbed and the tests call it once, at their start.
//!
//! A leaf schedules the tasks of a rack, and a spine schedules them over leaves. Its parts are:
//! - the table, or state: loads, counters and neighbours, also copied to a file for monitoring programs,
//! - the membership: the pools, servers and workers, by place (index), at one epoch (number of the last change),
//! - the network: ports, neighbours, and addresses of the servers,
//! - for each core its stages, the steps of the packet path, with a dispatcher (policy and view of the load) per pool.
//!
//! [`agent`] builds an agent, which gives tasks to the workers of one host. [`peers`] adds an agent's peers in a rack
//! without a leaf. [`takeover`] restores the state of the previous process. [`embed`] is the scheduler for other
//! programs.

pub mod agent;
pub mod embed;
#[cfg_attr(not(feature = "peers"), path = "no_peers.rs")]
pub mod peers;
#[cfg(test)]
mod roles;
pub mod takeover;

// The test rig uses paths of the crate `wedjat` (`wedjat::io`, ...); here this crate stands for it.
#[cfg(test)]
use crate as assembly;
#[cfg(test)]
pub use wedjat_core::{io, node, ring, role, stage, state, wire};
#[cfg(test)]
pub use wedjat_desired::{config, control};
#[cfg(test)]
extern crate self as wedjat;
#[cfg(test)]
#[path = "../../tests/rig/mod.rs"]
mod rig;

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crossbeam_queue::ArrayQueue;

use wedjat_core::limits::{QUEUED_TASKS_MIN, SPINES_MAX};
use wedjat_core::node::Commands;
use wedjat_core::policy::{Core, stream_seed};
use wedjat_core::role::colocated::WireNetwork;
use wedjat_core::stage::fabric::{Fabric, Shared};
use wedjat_core::stage::network::{FixedNetwork, NetworkError};
use wedjat_core::stage::{
    AffinityTable, IpOptions, Network, PortAddress, PortV6, Side, Stages, UnknownWorker,
};
use wedjat_core::state::table::{Entries, Role, Spec};
use wedjat_core::state::{StateError, Table};
use wedjat_core::wire::ether::Mac;
use wedjat_desired::config::{Config, HostConfig};
use wedjat_desired::control::{LeafCores, Membership};

/// Returns the configured seed of all random streams, or one from the current time and the process id. The state shows
/// the seed, so that the run can be repeated. A chosen seed is below 2^63, because a file has no larger integers.
fn seed(configured: Option<u64>) -> u64 {
    configured.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        stream_seed(now.as_nanos() as u64, std::process::id() as usize, 0) >> 1
    })
}

/// Creates the state of the configured leaf or spine, in the configured file or in memory of this process. `ticks_hz`
/// is the rate of the clock that all its times use.
///
/// # Errors
/// If the file cannot be created.
pub fn table(config: &Config, ticks_hz: u64) -> Result<Arc<Table>, StateError> {
    create_table(config.leaf.state.as_deref(), &spec(config, ticks_hz))
}

/// Creates a state in a file, or in memory without a path.
fn create_table(path: Option<&Path>, spec: &Spec) -> Result<Arc<Table>, StateError> {
    path.map_or_else(|| Ok(Table::heap(spec)), |path| Table::create(path, spec)).map(Arc::new)
}

/// Returns the configured node's identity, clock rate and seed, and the sizes from which its state is laid out.
fn spec(config: &Config, ticks_hz: u64) -> Spec {
    let Entries { servers, pools, .. } = Membership::of(config).entries();
    // Without configured ports the node is embedded in another program, see `CALL_PORTS`.
    let ports = if config.ports.is_empty() { CALL_PORTS.len() } else { config.ports.len() };
    Spec {
        group: config.leaf.state_group,
        role: config.role,
        node: config.leaf.id,
        cores: config.leaf.cores.len(),
        // One more port for the link in memory to an agent on the leaf's core.
        ports: ports + usize::from(config.agent.is_some()),
        servers: servers.into_iter().flatten().collect(),
        // A leaf may get spines later, by a change.
        spines: if config.role == Role::Leaf { SPINES_MAX } else { 0 },
        // Only agents have peers.
        peers: 0,
        pools: pools.into_iter().flatten().collect(),
        limits: config.leaf.limits,
        ticks_hz,
        seed: seed(config.leaf.seed),
    }
}

/// Placeholder ports for a program that embeds the node and passes tasks and reports by calls. The network needs a port
/// to each server. With prefix length 0, one port leads to all servers with IPv4 addresses, one to all with IPv6
/// addresses. No packet uses them.
const CALL_PORTS: [PortAddress; 2] = {
    let v4 = PortAddress {
        mac: Mac([0; 6]),
        ip: 0,
        prefix: 0,
        side: Side::Both,
        gateway: None,
        ip_options: IpOptions::Refuse,
        v6: None,
    };
    [v4, PortAddress { v6: Some(PortV6 { ip: 0, prefix: 0, gateway: None }), ..v4 }]
};

/// Builds the network around the node at its first membership. `macs` has the MAC address of each configured port's
/// device, for ports whose configuration names none. The link to the agent on the leaf's core follows the configured
/// ports. A node without configured ports gets `CALL_PORTS`; its embedding program passes tasks and reports by calls.
///
/// # Errors
/// If no port leads to one of the servers or spines, or a pool has addresses of both families. Also if the network does
/// not permit a pool's direct replies, or there are too many neighbours.
pub fn network(
    config: &Config,
    membership: &Membership,
    macs: impl IntoIterator<Item = Mac>,
    table: &Table,
) -> Result<Arc<Network>, NetworkError> {
    let ports = config.ports.iter().zip(macs).map(|(port, mac)| port.address(mac));
    let wire = |agent: &HostConfig| WireNetwork::of(agent.ip.is_ipv6());
    let agent_link = config.agent.as_ref().map(|agent| wire(agent).leaf_port());
    let is_embedded = config.ports.is_empty();
    let call_ports = CALL_PORTS.into_iter().filter(|_| is_embedded);
    let base = FixedNetwork {
        udp_port: config.leaf.udp_port,
        node: config.leaf.id,
        ports: ports.chain(agent_link).chain(call_ports).collect(),
        // Index of the link to the agent. Its packets need no authentication.
        local_port: config.agent.as_ref().map(|_| config.ports.len()),
        is_spine: config.role == Role::Spine,
        is_embedded,
    };
    membership.network(base, table.limits(), &table.neighbours())
}

/// Returns the control's side of the cores with these stages, and the command queue of each core. The control sends
/// changes of the membership through the queues.
///
/// # Panics
/// If there is no core.
#[must_use]
pub fn cores(stages: &[Stages]) -> (LeafCores, Vec<Commands>) {
    let commands: Vec<_> = stages.iter().map(|_| Commands::default()).collect();
    (LeafCores::new(stages, commands.clone()), commands)
}

/// Builds the stages of all cores, around the [`network`] of the node at its first membership. `macs` are as for
/// [`network`].
///
/// # Errors
/// If no port leads to one of the servers or spines, or a pool has addresses of both families. Also if the network does
/// not permit a pool's direct replies, or there are too many neighbours.
pub fn stages(
    config: &Config,
    membership: &Membership,
    macs: impl IntoIterator<Item = Mac>,
    table: &Table,
) -> Result<Vec<Stages>, NetworkError> {
    let network = network(config, membership, macs, table)?;
    let (cores, pools) = (config.leaf.cores.len(), table.limits().pools);
    // A spine and a leaf below spines exchange load signals. Their cores share some of the state for that. If a change
    // links a leaf to its first spine, the control creates that state.
    let is_in_fabric = config.role == Role::Spine || !config.spines.is_empty();
    let shared = is_in_fabric.then(|| Shared::new(cores, pools));
    let core = |index| {
        let mut stages = stages_of_core(config, membership, &network, table, index);
        if let Some(shared) = &shared {
            let core = Core { index, count: cores };
            let members = table.limits().workers;
            stages.set_fabric(Fabric::new(&network, core, Arc::clone(shared), pools, members));
        }
        stages
    };
    Ok((0..cores).map(core).collect())
}

/// Maximum number of unknown workers that wait to be reported. The cores ignore further ones, which repeat their
/// registrations.
const UNKNOWN_MAX: usize = 1024;

/// Creates a queue to which these cores append each worker that registers but is not configured. The node reports these
/// workers to its controller.
pub fn watch_unknown_workers(stages: &mut [Stages]) -> Arc<ArrayQueue<UnknownWorker>> {
    let unknown = Arc::new(ArrayQueue::new(UNKNOWN_MAX));
    stages.iter_mut().for_each(|core| core.set_unknown_workers(Arc::clone(&unknown)));
    unknown
}

/// Builds the stages of the core at `index`, without the load signals of a fabric, which [`stages`] adds. Reserves the
/// memory for later changes, because polling cores allocate nothing.
#[must_use]
pub fn stages_of_core(
    config: &Config,
    membership: &Membership,
    network: &Arc<Network>,
    table: &Table,
    index: usize,
) -> Stages {
    let core = Core { index, count: config.leaf.cores.len() };
    let (ticks_hz, seed, limits) = (table.ticks_hz(), table.seed(), table.limits());
    let dispatchers = membership.pools.iter().flatten().enumerate().map(|(pool, entry)| {
        let mut dispatcher = entry.dispatcher(pool, table, core);
        // A spine needs the leaves' numbers of workers even if all are equal.
        if config.role == Role::Spine {
            dispatcher.set_rates(&entry.speeds_of_all(dispatcher.view().members()));
        }
        dispatcher
    });
    // In ticks. The affinity table sends all packets of a task to one worker, and forgets an incomplete task after it.
    let timeout = config.leaf.connection_timeout_ms.saturating_mul(ticks_hz) / 1000;
    let pools = config.pools.len();
    let mut connections = AffinityTable::new(config.leaf.connections, timeout, pools, seed);
    connections.set_per_source(config.leaf.multi_packet_per_source);
    let mut stages = Stages::new(
        Arc::clone(network),
        table.neighbours(),
        dispatchers.collect(),
        connections,
        table.counters(index),
    );
    // Milliseconds to nanoseconds.
    stages.set_worker_timeout(config.leaf.worker_timeout_ms.saturating_mul(1_000_000));
    for (pool, (_, entry)) in config.pools.iter().enumerate() {
        stages.set_shared_workers(pool, entry.fixed.shared_workers);
        stages.set_reports(pool, entry.fixed.reports);
    }
    // A controller may add pools that queue tasks, so the memory for waiting tasks has a minimum.
    if config.controller.is_some() {
        stages.set_waiting_least(QUEUED_TASKS_MIN);
    }
    stages.make_room(limits.pools, limits.pools * limits.workers, limits.servers);
    // The cores of a node exchange the loads that they know. One core alone has no exchange.
    if let Some(exchange) = table.exchange(index) {
        stages.set_exchange(exchange);
    }
    stages
}

#[cfg(test)]
mod tests {
    use wedjat_core::policy::Task;

    use super::*;

    /// A leaf with two cores and servers of different speeds.
    const TEXT: &str = r#"
[leaf]
id = 1
cores = [1, 2]
seed = 7
[[port]]
device = "net_memif0"
side = "both"
ip = "10.0.2.1/24"
[[pool]]
id = 1
policy = "weighted-random"
[[pool]]
id = 2
policy = "sed"
[[server]]
ip = "10.0.2.11"
workers = "0-1"
pool = 1
[[server]]
ip = "10.0.2.12"
workers = "2,5"
pool = 1
speed = 8
[[server]]
ip = "10.0.2.13"
workers = "6"
pool = 2
speed = 3
"#;

    #[test]
    fn a_chosen_seed_fits_into_a_file() {
        assert_eq!(seed(Some(7)), 7);
        for _ in 0..100 {
            let chosen = seed(None);
            assert!(i64::try_from(chosen).is_ok(), "{chosen}");
        }
    }

    // promise: scheduling.5
    #[test]
    fn faster_servers_get_more() {
        let config = Config::parse(Path::new("leaf.toml"), TEXT).unwrap();
        let membership = Membership::of(&config);
        // Four workers and an unused place. Pool 2, whose speeds are all equal, has none.
        let speeds = |pool: usize| membership.pools[pool].as_ref().unwrap().speeds(5);
        assert_eq!(speeds(0).unwrap()[..], [1.0, 1.0, 8.0, 8.0, 1.0]);
        assert_eq!(speeds(1), None);
        let table = table(&config, 1_000_000_000).unwrap();
        let macs = [Mac([2, 0, 0, 0, 0, 1])];
        let cores = stages(&config, &membership, macs, &table).unwrap();
        assert_eq!(cores.len(), 2);
        for (core, mut stages) in cores.into_iter().enumerate() {
            let mut picks = vec![None; 9000];
            stages.dispatcher_mut(0).unwrap().schedule(&vec![Task::default(); 9000], &mut picks);
            // Members 2 and 3 of pool 1 are workers 2 and 5, of speed 8.
            let fast = picks.iter().flatten().filter(|pick| pick.member.index() >= 2).count();
            // Their share of the speeds is 16 of 18, so 8000 of 9000 tasks. The standard deviation is 30.
            assert!(fast.abs_diff(8000) < 200, "{fast} on core {core}");
        }
    }
}
