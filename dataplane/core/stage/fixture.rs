//! Stages of a node with one server and one pool, for tests.

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

/// Parameters of a test node: a leaf, or a spine if it has a service address, with one server and one pool.
pub struct Fixture {
    /// Ports of the node.
    pub ports: Vec<PortAddress>,
    /// Address of its only server, or of a spine's only leaf.
    pub server: IpAddr,
    /// MAC address of the server; `None` if the node must resolve it.
    pub mac: Option<Mac>,
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
    /// True if the server answers the clients itself.
    pub is_direct: bool,
}

/// Builds the stages of the node's only core. No worker of it becomes silent.
pub fn stages(node: Fixture) -> Stages {
    cores(node, 1).remove(0)
}

/// Builds the stages of this many cores of the node. No worker of it becomes silent.
pub fn cores(node: Fixture, count: usize) -> Vec<Stages> {
    let is_spine = node.service.is_some();
    let worker = |&id: &u16| WorkerSpec { id, server: 0 };
    let limits = Limits { pools: 1, servers: 1, workers: node.members.len() };
    let table = Table::heap(&Spec {
        role: if is_spine { Role::Spine } else { Role::Leaf },
        node: 0,
        cores: count,
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
    let host = Host { ip: node.server, mac: node.mac, registers: false, former_ip: None };
    let authenticator =
        node.key.map(|key| Arc::new(ReplyAuthenticator::new(key, limits.workers, 0)));
    let pool = NetworkPool {
        id: Some(node.pool),
        members: node.members.iter().map(|&id| Some((id, 0))).collect(),
        authenticator,
        service: node.service,
        is_direct: node.is_direct,
        ..NetworkPool::default()
    };
    let neighbours = table.neighbours();
    let network = Network::with_places(base, &[Some(host)], &[], &[pool], &neighbours).unwrap();
    let (network, policy) = (Arc::new(network), node.policy.parse().unwrap());
    let core = |index| {
        let core = Core { index, count };
        let (view, seed) = (table.view(index, 0), stream_seed(SEED, index, 0));
        let dispatcher = Dispatcher::new(&policy, view, core, seed);
        // Room for 1024 tasks of one pool. A task expires after a millisecond without a packet.
        let affinity = AffinityTable::new(1024, TICKS_HZ / 1000, 1, SEED);
        let (counters, dispatchers) = (table.counters(index), vec![dispatcher]);
        let (network, neighbours) = (Arc::clone(&network), neighbours.clone());
        let mut stages = Stages::new(network, neighbours, dispatchers, affinity, counters);
        stages.set_worker_timeout(0); // 0: no worker is silent
        stages.make_room(limits.pools, limits.workers, limits.servers);
        table.exchange(index).into_iter().for_each(|exchange| stages.set_exchange(exchange));
        stages
    };
    (0..count).map(core).collect()
}
