//! From a checked configuration to a node's parts: its state, its network, and each core's stages.

pub mod agent;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::config::Config;
use crate::policy::{Core, Dispatcher, stream_seed};
use crate::role::host;
use crate::stage::network::{NetworkError, ServerSpec};
use crate::stage::{AffinityTable, Backlog, Network, PortAddress, Side, Stages};
use crate::state::table::{PoolSpec, Role, Spec, WorkerSpec};
use crate::state::{StateError, Table};
use crate::wire::auth;
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

/// What was sent so long before a leaf's start it does not believe, if a key is to prove it: an earlier leaf may have.
const BEFORE_START: Duration = Duration::from_secs(300);

/// The first sequence that a leaf that starts now believes.
pub(crate) fn first_believed() -> u64 {
    auth::sequence_at(SystemTime::now().checked_sub(BEFORE_START).unwrap_or(UNIX_EPOCH))
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

/// All servers, this host last when it has workers of its own.
fn servers(config: &Config) -> Vec<ServerSpec> {
    let elsewhere = config.servers.iter().map(|server| ServerSpec {
        ip: server.ip.to_bits(),
        mac: server.mac,
        workers: server.workers.clone(),
        pool: server.pool,
        registers: server.registers,
    });
    let here = config.agent.iter().flat_map(|agent| &agent.pools).map(|pool| ServerSpec {
        ip: host::AGENT_IP,
        mac: Some(host::AGENT_MAC),
        workers: pool.workers.clone(),
        pool: pool.id,
        registers: true,
    });
    elsewhere.chain(here).collect()
}

/// What the state file says of the configured node; members in the order of [`Network::new`].
fn spec(config: &Config, ticks_hz: u64, seed: u64) -> Spec {
    let servers = servers(config);
    let workers = |pool: u16| {
        let servers = servers.iter().enumerate();
        servers
            .filter(|(_, server)| server.pool == pool)
            .flat_map(|(at, server)| {
                server.workers.iter().map(move |&id| WorkerSpec { id, server: at as u16 })
            })
            .collect()
    };
    Spec {
        group: config.leaf.state_group,
        role: Role::Leaf,
        node: config.leaf.id,
        cores: config.leaf.cores.len(),
        ports: config.ports.len() + usize::from(config.agent.is_some()),
        servers: servers.iter().map(|server| server.ip).collect(),
        pools: config
            .pools
            .iter()
            .map(|pool| PoolSpec {
                id: pool.id,
                policy: pool.policy.to_string(),
                workers: workers(pool.id),
            })
            .collect(),
        ticks_hz,
        seed,
    }
}

/// The speeds of a pool's members, in the order of [`spec`].
fn speeds(config: &Config, pool: u16) -> Vec<f64> {
    let elsewhere = config.servers.iter().filter(|server| server.pool == pool);
    let elsewhere = elsewhere.flat_map(|server| vec![server.speed; server.workers.len()]);
    let here = config.agent.iter().flat_map(|agent| &agent.pools);
    let here = here.filter(|other| other.id == pool).flat_map(|pool| pool.speeds.clone());
    elsewhere.chain(here).collect()
}

/// Tells a dispatcher its members' speeds, if they differ.
pub(crate) fn tell_speeds(dispatcher: &mut Dispatcher, speeds: &[f64]) {
    if speeds.windows(2).any(|two| two[0] != two[1]) {
        dispatcher.set_rates(speeds);
    }
}

/// The network around the node; `macs` are its own addresses, one for each port. The wire to the agent is the last port.
///
/// # Errors
/// When no port leads to a server.
pub fn network(
    config: &Config,
    macs: impl IntoIterator<Item = Mac>,
    table: &Table,
) -> Result<Network, NetworkError> {
    let ports = config.ports.iter().zip(macs).map(|(port, mac)| PortAddress {
        mac,
        ip: port.ip.to_bits(),
        prefix: port.prefix,
        side: port.side,
        gateway: port.gateway.map(|gateway| gateway.to_bits()),
    });
    let wire = config.agent.as_ref().map(|_| PortAddress {
        mac: host::LEAF_MAC,
        ip: host::LEAF_IP,
        prefix: host::PREFIX,
        side: Side::Workers,
        gateway: None,
    });
    let (ports, servers) = (ports.chain(wire), servers(config));
    let pools = config.pools.iter().map(|pool| pool.id).collect();
    let port = config.leaf.udp_port;
    let mut network = Network::new(port, ports.collect(), pools, &servers, &table.neighbours())?;
    network.node = config.leaf.id;
    for (pool, entry) in config.pools.iter().enumerate() {
        if let Some(key) = &entry.key {
            network.protect(pool, key.clone(), first_believed());
        }
    }
    if config.agent.is_some() {
        network.trust(config.ports.len());
    }
    Ok(network)
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
    let dispatchers = config.pools.iter().enumerate().map(|(pool, entry)| {
        let seed = stream_seed(seed, index, pool);
        let mut dispatcher = Dispatcher::new(&entry.policy, table.view(index, pool), core, seed);
        tell_speeds(&mut dispatcher, &speeds(config, entry.id));
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
        stages.set_backlog(pool, Backlog::new(entry.queue, entry.overflow));
        stages.set_shared_workers(pool, entry.shared_workers);
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
        assert_eq!(speeds(&config, 1), [1.0, 1.0, 8.0, 8.0]);
        let table = table(&config, 1_000_000_000, 7).unwrap();
        let network = Arc::new(network(&config, [Mac([2, 0, 0, 0, 0, 1])], &table).unwrap());
        for core in 0..2 {
            let mut stages = stages(&config, 1_000_000_000, &network, &table, 7, core);
            let mut picks = vec![None; 9000];
            stages.dispatchers[0].schedule(&vec![Task::default(); 9000], &mut picks);
            let fast = picks.iter().flatten().filter(|pick| pick.member.index() >= 2).count();
            // 8000 expected, with a deviation of 30.
            assert!(fast.abs_diff(8000) < 200, "{fast} on core {core}");
            assert_eq!(stages.dispatchers[1].view().rate(crate::state::Member(0)), 1.0);
        }
    }
}
