//! Stages of one core with one server and one pool, for tests.

use std::net::IpAddr;
use std::sync::Arc;

use super::auth::ReplyAuthenticator;
use super::network::{FixedNetwork, Host, NetworkPool};
use super::{AffinityTable, Network, PortAddress, Stages};
use crate::policy::{Core, Dispatcher, stream_seed};
use crate::state::Table;
use crate::state::table::{Limits, PoolSpec, Role, Spec, WorkerSpec};
use crate::wire::auth::Key;
use crate::wire::ether::Mac;
use crate::wire::task::UDP_PORT;

/// Ticks per second: one tick is one nanosecond.
const TICKS_HZ: u64 = 1_000_000_000;
const SEED: u64 = 7;

/// Parameters of a test node: a leaf, or a spine if it has a service address, with one core, one server and one pool.
pub struct Fixture {
    /// Ports of the node.
    pub ports: Vec<PortAddress>,
    /// Address of its only server, or of a spine's only leaf.
    pub server: IpAddr,
    /// MAC address of the server.
    pub mac: Mac,
    /// Id of the pool.
    pub pool: u16,
    /// Name of the pool's policy.
    pub policy: &'static str,
    /// Ids of the members.
    pub members: Vec<u16>,
    /// Key of the workers' replies. Their authenticator refuses sequence numbers of the first window.
    pub key: Option<Key>,
    /// Service address, for a spine.
    pub service: Option<IpAddr>,
}

/// Builds the stages of the node's only core. No worker of it becomes silent.
pub fn stages(node: Fixture) -> Stages {
    let is_spine = node.service.is_some();
    let worker = |&id: &u16| WorkerSpec { id, server: 0 };
    let limits = Limits { pools: 1, servers: 1, workers: node.members.len() };
    let table = Table::heap(&Spec {
        role: if is_spine { Role::Spine } else { Role::Leaf },
        node: 0,
        cores: 1,
        ports: node.ports.len(),
        servers: vec![node.server],
        spines: 0,
        peers: 0,
        pools: vec![PoolSpec {
            id: node.pool,
            policy: node.policy.to_owned(),
            objective: String::new(),
            workers: node.members.iter().map(worker).collect(),
        }],
        limits,
        ticks_hz: TICKS_HZ,
        seed: SEED,
        group: None,
    });
    let base =
        FixedNetwork { udp_port: UDP_PORT, ports: node.ports, is_spine, ..FixedNetwork::default() };
    let host = Host { ip: node.server, mac: Some(node.mac), registers: false, former_ip: None };
    let authenticator =
        node.key.map(|key| Arc::new(ReplyAuthenticator::new(key, limits.workers, 0)));
    let pool = NetworkPool {
        id: Some(node.pool),
        members: node.members.iter().map(|&id| Some((id, 0))).collect(),
        authenticator,
        service: node.service,
        ..NetworkPool::default()
    };
    let neighbours = table.neighbours();
    let network = Network::with_places(base, &[Some(host)], &[], &[pool], &neighbours).unwrap();
    let core = Core { index: 0, count: 1 };
    let policy = node.policy.parse().unwrap();
    let dispatcher = Dispatcher::new(&policy, table.view(0, 0), core, stream_seed(SEED, 0, 0));
    // Room for 1024 tasks of one pool. A task expires after a millisecond without a packet.
    let affinity = AffinityTable::new(1024, TICKS_HZ / 1000, 1, SEED);
    let (counters, dispatchers) = (table.counters(0), vec![dispatcher]);
    let mut stages = Stages::new(Arc::new(network), neighbours, dispatchers, affinity, counters);
    stages.set_worker_timeout(0); // 0: no worker is silent
    stages.make_room(limits.pools, limits.workers, limits.servers);
    stages
}
