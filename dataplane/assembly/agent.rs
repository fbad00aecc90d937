//! From a checked configuration to the parts of an agent: what its state file says, its pools' workers, what registers them.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use crate::config::{AgentConfig, Config, HostConfig};
use crate::control::{AgentCores, AgentParts, Control, Membership};
use crate::io::{Buf, Token};
use crate::node::Timing;
use crate::policy::{Core, Dispatcher, stream_seed};
use crate::ring::{Place, WorkerRegion};
use crate::role::agent::{
    AgentCommands, Packet, Parts, PoolWorkers, Registrar, Signer, WorkerLink, WorkerSet,
};
use crate::role::colocated;
use crate::state::table::{Entries, Role, Spec};
use crate::state::{StateError, Table};

/// The agent's state, in the configured file or in memory of this process.
///
/// # Errors
/// When the file can't be had.
pub fn table(config: &AgentConfig, ticks_hz: u64, seed: u64) -> Result<Table, StateError> {
    let spec = spec(&config.host, &membership(config), config.id, ticks_hz, seed);
    make(config.state.as_deref(), Spec { group: config.state_group, ..spec })
}

/// That of an agent on the core of a leaf, in this file if there is one; `seed` is the agent's.
///
/// # Errors
/// When the file can't be had.
pub fn table_beside_leaf(
    config: &Config,
    host: &HostConfig,
    path: Option<&Path>,
    ticks_hz: u64,
    seed: u64,
) -> Result<Table, StateError> {
    let spec = spec(host, &Membership::beside_leaf(host), config.leaf.id, ticks_hz, seed);
    make(path, Spec { group: config.leaf.state_group, ..spec })
}

fn make(path: Option<&Path>, spec: Spec) -> Result<Table, StateError> {
    path.map_or_else(|| Ok(Table::heap(&spec)), |path| Table::create(path, &spec))
}

/// What the configured agent begins with.
#[must_use]
pub fn membership(config: &AgentConfig) -> Membership {
    let address = config.ports.first().map_or(Ipv4Addr::UNSPECIFIED, |port| port.ip);
    Membership::of_host(&config.host, address)
}

/// What a state file says of an agent.
fn spec(host: &HostConfig, membership: &Membership, node: u16, ticks_hz: u64, seed: u64) -> Spec {
    let Entries { servers, pools, .. } = membership.entries();
    let (servers, pools) =
        (servers.into_iter().flatten().collect(), pools.into_iter().flatten().collect());
    // The agent answers to where tasks came from, so it knows no neighbours but its leaf.
    let (role, cores, ports, group, limits) = (Role::Agent, 1, 0, None, host.limits);
    Spec { role, node, cores, ports, servers, pools, limits, ticks_hz, seed, group }
}

/// The pools' workers, none of them there yet, each with the link to its tasks.
fn worker_sets<B: Buf + Token>(
    host: &HostConfig,
    ticks_hz: u64,
    table: &Table,
    mut link: impl FnMut(usize) -> WorkerLink<Packet<B>>,
    seed: u64,
) -> Vec<PoolWorkers<B>> {
    let begin = Membership::of_host(host, Ipv4Addr::UNSPECIFIED);
    let timeout = timeout(host, ticks_hz);
    let mut channel = 0;
    let mut worker_sets = Vec::new();
    for (index, pool) in host.pools.iter().enumerate() {
        let view = table.view(0, index);
        let seed = stream_seed(seed, 0, index);
        let mut dispatcher = Dispatcher::new(&pool.policy, view, Core::ONLY, seed)
            .with_queue(pool.queue, pool.overflow);
        let speeds = begin.pools[index].as_ref();
        if let Some(speeds) = speeds.and_then(|pool| pool.speeds(dispatcher.view().members())) {
            dispatcher.set_rates(&speeds);
        }
        let entries = pool.workers.iter().map(|&id| {
            channel += 1;
            (Place { id, pool: pool.id }, link(channel - 1))
        });
        let workers = WorkerSet::new(dispatcher, entries.collect(), timeout);
        worker_sets.push(PoolWorkers { pool: Some(pool.id), workers });
    }
    worker_sets
}

/// Deaths that may wait for the core.
const DEATHS: usize = 1024;

/// The parts of an agent on this host; `table` and `seed` are its own.
pub fn parts<B: Buf + Token, A>(
    host: &HostConfig,
    (udp_port, registrar): (u16, Option<Registrar>),
    (table, ticks_hz, seed): (&Table, u64, u64),
    link: impl FnMut(usize) -> WorkerLink<Packet<B>>,
    pool: A,
) -> Parts<B, A> {
    Parts {
        worker_sets: worker_sets(host, ticks_hz, table, link, seed),
        places: host.places(),
        pool,
        udp_port,
        payload_max: host.payload,
        registrar,
        deaths: Arc::new(ArrayQueue::new(DEATHS)),
        counters: table.counters(0),
        timing: Timing { ticks_hz },
        commands: AgentCommands::default(),
        room: (host.limits.pools, host.limits.workers),
    }
}

/// The same of an agent on a leaf's core, at the other end of the wire there.
pub fn beside_leaf<B: Buf + Token, A>(
    host: &HostConfig,
    udp_port: u16,
    own: (&Table, u64, u64),
    link: impl FnMut(usize) -> WorkerLink<Packet<B>>,
    pool: A,
) -> Parts<B, A> {
    let leaf = Some(colocated::LEAF_MAC);
    let registrar = Registrar::new(colocated::LEAF_IP, 0, leaf, &host.places(), own.1);
    parts(host, (udp_port, Some(registrar)), own, link, pool)
}

/// Ticks of silence after which a worker with tasks is shut out.
fn timeout(host: &HostConfig, ticks_hz: u64) -> u64 {
    match host.worker_timeout_ms {
        0 => u64::MAX,
        ms => ms.saturating_mul(ticks_hz) / 1000,
    }
}

/// The control of an agent with such workers, whose core takes `commands` and starts at `membership`. Workers attach to `region`,
/// unless they are threads of this process. `has_leaf`: it tells a leaf elsewhere of its workers.
#[must_use]
pub fn control<B: Buf + Token>(
    (host, has_leaf): (&HostConfig, bool),
    membership: Membership,
    ticks_hz: u64,
    table: Arc<Table>,
    (region, commands): (Option<Arc<WorkerRegion>>, AgentCommands<B>),
    (signer, seed): (Option<Arc<Signer>>, u64),
) -> Control<AgentCores<B>> {
    let &HostConfig { slots, payload, .. } = host;
    let timeout = timeout(host, ticks_hz);
    let parts = AgentParts { region, commands, slots, payload, has_leaf, timeout, seed, signer };
    let cores = AgentCores::new(parts, &membership);
    Control::of(table, membership, cores)
}

/// Tells the configured leaf of the workers.
#[must_use]
pub fn registrar(config: &AgentConfig, ticks_hz: u64) -> Option<Registrar> {
    let leaf = config.leaf?;
    let places = config.host.places();
    Some(Registrar::new(leaf.ip.to_bits(), leaf.port, leaf.mac, &places, ticks_hz))
}
