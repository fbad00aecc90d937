//! From a checked configuration to the parts of an agent: what its state file says, its pools' workers, what registers them.

use super::tell_speeds;
use crate::config::{AgentConfig, HostConfig};
use crate::io::{Buf, Token};
use crate::policy::{Core, Dispatcher, stream_seed};
use crate::ring::Place;
use crate::role::agent::{Packet, PoolWorkers, Registrar, WorkerLink, WorkerSet};
use crate::state::table::{Limits, PoolSpec, Role, Spec, WorkerSpec};
use crate::state::{StateError, Table};

/// The agent's state, in the configured file or in memory of this process.
///
/// # Errors
/// When the file can't be had.
pub fn table(config: &AgentConfig, ticks_hz: u64, seed: u64) -> Result<Table, StateError> {
    let address = config.ports.iter().take(1).map(|port| port.ip.to_bits());
    let spec = spec(&config.host, config.id, address, ticks_hz, seed);
    match &config.state {
        Some(path) => Table::create(path, &Spec { group: config.state_group, ..spec }),
        None => Ok(Table::heap(&spec)),
    }
}

/// What a state file says of an agent.
pub fn spec(
    host: &HostConfig,
    node: u16,
    address: impl Iterator<Item = u32>,
    ticks_hz: u64,
    seed: u64,
) -> Spec {
    let pools = host.pools.iter().map(|pool| PoolSpec {
        id: pool.id,
        policy: pool.policy.to_string(),
        workers: pool.workers.iter().map(|&id| WorkerSpec { id, server: 0 }).collect(),
    });
    let (servers, pools) = (address.collect(), pools.collect());
    // The agent answers to where tasks came from, so it knows no neighbours but its leaf.
    let (role, cores, ports, group) = (Role::Agent, 1, 0, None);
    let limits = Limits::default();
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
    let timeout = match host.worker_timeout_ms {
        0 => u64::MAX,
        ms => ms.saturating_mul(ticks_hz) / 1000,
    };
    let mut channel = 0;
    let mut worker_sets = Vec::new();
    for (index, pool) in host.pools.iter().enumerate() {
        let view = table.view(0, index);
        let seed = stream_seed(seed, 0, index);
        let mut dispatcher = Dispatcher::new(&pool.policy, view, Core::ONLY, seed)
            .with_queue(pool.queue, pool.overflow);
        tell_speeds(&mut dispatcher, &pool.speeds);
        let entries = pool.workers.iter().map(|&id| {
            channel += 1;
            (Place { id, pool: pool.id }, link(channel - 1))
        });
        let workers = WorkerSet::new(dispatcher, entries.collect(), timeout);
        worker_sets.push(PoolWorkers { pool: Some(pool.id), workers });
    }
    worker_sets
}

/// Tells the configured leaf of the workers.
#[must_use]
pub fn registrar(config: &AgentConfig, places: &[Place], ticks_hz: u64) -> Option<Registrar> {
    let leaf = config.leaf?;
    Some(Registrar::new(leaf.ip.to_bits(), leaf.port, leaf.mac, places, ticks_hz))
}
