//! From a checked configuration to the parts of an agent: what its state file says, its pools' workers, what registers them.

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::config::{AgentConfig, HostConfig};
use crate::control::{AgentCores, AgentParts, Control, Membership};
use crate::io::{Buf, Token};
use crate::policy::{Core, Dispatcher, stream_seed};
use crate::ring::{Place, WorkerRegion};
use crate::role::agent::{
    AgentCommands, Packet, PoolWorkers, Registrar, Signer, WorkerLink, WorkerSet,
};
use crate::state::table::{Entries, Role, Spec};
use crate::state::{StateError, Table};

/// The agent's state, in the configured file or in memory of this process.
///
/// # Errors
/// When the file can't be had.
pub fn table(config: &AgentConfig, ticks_hz: u64, seed: u64) -> Result<Table, StateError> {
    let spec = spec(&config.host, &membership(config), config.id, ticks_hz, seed);
    match &config.state {
        Some(path) => Table::create(path, &Spec { group: config.state_group, ..spec }),
        None => Ok(Table::heap(&spec)),
    }
}

/// What the configured agent begins with.
#[must_use]
pub fn membership(config: &AgentConfig) -> Membership {
    let address = config.ports.first().map_or(Ipv4Addr::UNSPECIFIED, |port| port.ip);
    Membership::of_host(&config.host, address)
}

/// What a state file says of an agent.
pub fn spec(
    host: &HostConfig,
    membership: &Membership,
    node: u16,
    ticks_hz: u64,
    seed: u64,
) -> Spec {
    let Entries { servers, pools, .. } = membership.entries();
    let (servers, pools) =
        (servers.into_iter().flatten().collect(), pools.into_iter().flatten().collect());
    // The agent answers to where tasks came from, so it knows no neighbours but its leaf.
    let (role, cores, ports, group, limits) = (Role::Agent, 1, 0, None, host.limits);
    Spec { role, node, cores, ports, servers, pools, limits, ticks_hz, seed, group }
}

/// The pools' workers, none of them there yet, each with the link to its tasks.
pub fn worker_sets<B: Buf + Token>(
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

/// Ticks of silence after which a worker with tasks is shut out.
fn timeout(host: &HostConfig, ticks_hz: u64) -> u64 {
    match host.worker_timeout_ms {
        0 => u64::MAX,
        ms => ms.saturating_mul(ticks_hz) / 1000,
    }
}

/// The control of the configured agent, whose core takes `commands`. Workers attach to `region`, unless they are threads of this
/// process.
#[must_use]
pub fn control<B: Buf + Token>(
    config: &AgentConfig,
    ticks_hz: u64,
    table: Arc<Table>,
    (region, commands): (Option<Arc<WorkerRegion>>, AgentCommands<B>),
    (signer, seed): (Option<Arc<Signer>>, u64),
) -> Control<AgentCores<B>> {
    let (host, membership) = (&config.host, membership(config));
    let (slots, has_leaf, timeout) = (host.slots, config.leaf.is_some(), timeout(host, ticks_hz));
    let parts = AgentParts { region, commands, slots, has_leaf, timeout, seed, signer };
    let cores = AgentCores::new(parts, &membership);
    Control::of(table, membership, cores)
}

/// Tells the configured leaf of the workers.
#[must_use]
pub fn registrar(config: &AgentConfig, places: &[Place], ticks_hz: u64) -> Option<Registrar> {
    let leaf = config.leaf?;
    Some(Registrar::new(leaf.ip.to_bits(), leaf.port, leaf.mac, places, ticks_hz))
}
