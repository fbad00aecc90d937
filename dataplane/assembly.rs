//! From a checked configuration to a node's parts: its state, its network, and each core's stages.

pub mod agent;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::config::Config;
use crate::control::{Control, LeafCores, Membership, Parts};
use crate::node::Commands;
use crate::policy::{Core, Dispatcher, stream_seed};
use crate::role::colocated;
use crate::stage::network::{Base, NetworkError};
use crate::stage::{AffinityTable, Network, PortAddress, Side, Stages};
use crate::state::table::{Entries, Role, Spec};
use crate::state::{StateError, Table};
use crate::wire::ether::Mac;

/// The configured seed; one of the moment for those who set none, to be reported so that the run can be repeated.
#[must_use]
pub fn seed(config: &Config) -> u64 {
    config.leaf.seed.unwrap_or_else(seed_of_the_moment)
}

/// A seed for those who set none.
pub(crate) fn seed_of_the_moment() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    stream_seed(now.as_nanos() as u64, std::process::id() as usize, 0)
}

/// The node's state, in the configured file or in memory of this process.
///
/// # Errors
/// When the file can't be had.
pub fn table(config: &Config, ticks_hz: u64, seed: u64) -> Result<Table, StateError> {
    let spec = spec(config, ticks_hz, seed);
    match &config.leaf.state {
        Some(path) => Table::create(path, &spec),
        None => Ok(Table::heap(&spec)),
    }
}

/// What the state file says of the configured node.
fn spec(config: &Config, ticks_hz: u64, seed: u64) -> Spec {
    let Entries { servers, pools, .. } = Membership::of(config).entries();
    Spec {
        group: config.leaf.state_group,
        role: Role::Leaf,
        node: config.leaf.id,
        cores: config.leaf.cores.len(),
        ports: config.ports.len() + usize::from(config.agent.is_some()),
        servers: servers.into_iter().flatten().collect(),
        pools: pools.into_iter().flatten().collect(),
        limits: config.leaf.limits,
        ticks_hz,
        seed,
    }
}

/// The network around the node at its first membership; `macs` are its own addresses, one for each port. The wire to the agent
/// is the last port.
///
/// # Errors
/// When no port leads to a server.
pub fn network(
    config: &Config,
    membership: &Membership,
    macs: impl IntoIterator<Item = Mac>,
    table: &Table,
) -> Result<Arc<Network>, NetworkError> {
    let ports = config.ports.iter().zip(macs).map(|(port, mac)| PortAddress {
        mac,
        ip: port.ip.to_bits(),
        prefix: port.prefix,
        side: port.side,
        gateway: port.gateway.map(|gateway| gateway.to_bits()),
    });
    let wire = config.agent.as_ref().map(|_| PortAddress {
        mac: colocated::LEAF_MAC,
        ip: colocated::LEAF_IP,
        prefix: colocated::PREFIX,
        side: Side::Workers,
        gateway: None,
    });
    let base = Base {
        udp_port: config.leaf.udp_port,
        node: config.leaf.id,
        ports: ports.chain(wire).collect(),
        inside: config.agent.as_ref().map(|_| config.ports.len()),
    };
    let (hosts, places) = membership.places(table.limits());
    Network::with_places(base, &hosts, &places, &table.neighbours()).map(Arc::new)
}

/// The control of a node whose cores have these stages, and take these commands.
///
/// # Panics
/// When there is no core.
#[must_use]
pub fn control(
    table: Arc<Table>,
    membership: Membership,
    stages: &[Stages],
    cores: Vec<Commands>,
    seed: u64,
) -> Control {
    Control::of(table, membership, cores_of(stages, cores, seed))
}

/// Cores that have these stages and take these commands, as their control drives them.
///
/// # Panics
/// When there is no core.
#[must_use]
pub fn cores_of(stages: &[Stages], commands: Vec<Commands>, seed: u64) -> LeafCores {
    assert!(!stages.is_empty(), "a node has a core");
    let (network, waiting) = (Arc::clone(&stages[0].network), stages[0].capacity().waiting);
    LeafCores::new(Parts { network, cores: commands, waiting, seed })
}

/// The stages of the core at `index`.
#[must_use]
pub fn stages(
    config: &Config,
    ticks_hz: u64,
    network: &Arc<Network>,
    table: &Table,
    seed: u64,
    index: usize,
) -> Stages {
    let core = Core { index, count: config.leaf.cores.len() };
    let (membership, limits) = (Membership::of(config), table.limits());
    let dispatchers = membership.pools.iter().flatten().enumerate().map(|(pool, entry)| {
        let seed = stream_seed(seed, index, pool);
        let mut dispatcher = Dispatcher::new(&entry.policy, table.view(index, pool), core, seed)
            .with_queue(entry.queue, entry.overflow);
        if let Some(speeds) = entry.speeds(dispatcher.view().members()) {
            dispatcher.set_rates(&speeds);
        }
        dispatcher
    });
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
    stages.set_worker_timeout(config.leaf.worker_timeout_ms.saturating_mul(1_000_000));
    for (pool, entry) in config.pools.iter().enumerate() {
        stages.set_shared_workers(pool, entry.shared_workers);
    }
    stages.make_room(limits.pools, limits.pools * limits.workers, limits.servers);
    if let Some(exchange) = table.exchange(index) {
        stages.set_exchange(exchange);
    }
    stages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Task;
    use std::path::Path;

    const TEXT: &str = r#"
[leaf]
id = 1
cores = [1, 2]
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
    fn faster_servers_get_more() {
        let config = Config::parse(Path::new("leaf.toml"), TEXT).unwrap();
        let membership = Membership::of(&config);
        let speeds = |pool: usize| membership.pools[pool].as_ref().unwrap().speeds(5);
        assert_eq!(speeds(0).unwrap()[..], [1.0, 1.0, 8.0, 8.0, 1.0]);
        assert_eq!(speeds(1), None);
        let table = table(&config, 1_000_000_000, 7).unwrap();
        let network = network(&config, &membership, [Mac([2, 0, 0, 0, 0, 1])], &table).unwrap();
        for core in 0..2 {
            let mut stages = stages(&config, 1_000_000_000, &network, &table, 7, core);
            let mut picks = vec![None; 9000];
            stages.dispatchers[0].schedule(&vec![Task::default(); 9000], &mut picks);
            let fast = picks.iter().flatten().filter(|pick| pick.member.index() >= 2).count();
            // 8000 expected, with a deviation of 30.
            assert!(fast.abs_diff(8000) < 200, "{fast} on core {core}");
        }
    }
}
