//! Assembly of an agent from a checked configuration: state, workers of its pools, their registration with leaves, and
//! control. `wedjat agent` calls [`table`], [`parts`] and [`control`] once, at its start; `wedjat leaf` calls
//! `colocated` for an agent on its own core.
//!
//! An agent gives the tasks of a worker host to worker processes or threads, from one core. A worker process attaches
//! to a channel of the region, memory shared with the agent. The table is the agent's state, also copied to a file
//! for monitoring programs. The control applies changes of the membership (pools and workers).
//! A `HostConfig` has the pools, workers and limits, which both kinds of agents have.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use rand::SeedableRng as _;
use wedjat_core::io::{Buf, Token};
use wedjat_core::limits::CORES_MAX;
use wedjat_core::node::Timing;
use wedjat_core::policy::{Core, Rng, stream_seed};
use wedjat_core::ring::{WorkerIdentity, WorkerRegion};
use wedjat_core::role::agent::{
    AgentCommands, Packet, Parts, QueueReports, Registrar, Signer, WorkerLink, WorkerSet,
};
use wedjat_core::role::colocated::{self, WireNetwork};
use wedjat_core::state::table::{Entries, Role, Spec, agents_file};
use wedjat_core::state::{StateError, Table};
use wedjat_desired::config::{AgentConfig, Config, HostConfig, LeafAddress, PeersConfig};
use wedjat_desired::control::{AgentCores, AgentParts, Control, Membership};
use wedjat_desired::state::Pool;

use super::{create_table, seed};

/// Creates the agent's state, in the configured file or in memory of this process. `ticks_hz` is the rate of the clock
/// that all its times use.
///
/// # Errors
/// If the file cannot be created.
pub fn table(config: &AgentConfig, ticks_hz: u64) -> Result<Arc<Table>, StateError> {
    let seed = seed(config.seed);
    let spec = spec(&config.host, &membership(config), config.id, ticks_hz, seed);
    let peers = config.peers.as_ref().map_or(0, PeersConfig::count);
    create_table(config.state.as_deref(), &Spec { group: config.state_group, peers, ..spec })
}

/// Creates the state of an agent on a leaf's core, in a file beside the leaf's; its seed derives from the
/// leaf's.
fn colocated_table(
    config: &Config,
    host: &HostConfig,
    leaf_table: &Table,
) -> Result<Arc<Table>, StateError> {
    // The number `CORES_MAX` belongs to no core of the leaf, so agent and leaf have different random streams.
    let seed = stream_seed(leaf_table.seed(), CORES_MAX, 0);
    let membership = Membership::of_host(host);
    let spec = spec(host, &membership, config.leaf.id, leaf_table.ticks_hz(), seed);
    let path = config.leaf.state.as_deref().map(agents_file);
    create_table(path.as_deref(), &Spec { group: config.leaf.state_group, ..spec })
}

/// Returns the initial membership of the configured agent.
#[must_use]
pub fn membership(config: &AgentConfig) -> Membership {
    Membership::of_host(&config.host)
}

/// Returns an agent's identity, clock rate and seed, and the sizes from which its state is laid out. Callers add the
/// file's group and the number of peers.
fn spec(host: &HostConfig, membership: &Membership, node: u16, ticks_hz: u64, seed: u64) -> Spec {
    let Entries { servers, pools, .. } = membership.entries();
    let (servers, pools) =
        (servers.into_iter().flatten().collect(), pools.into_iter().flatten().collect());
    // No ports and neighbours: an agent sends a reply to the MAC address that the task came from. It keeps the MAC
    // addresses of leaves and peers, and of clients that it answers directly, outside its state.
    let (role, cores, limits) = (Role::Agent, 1, host.limits);
    Spec { role, node, cores, servers, pools, limits, ticks_hz, seed, ..Spec::default() }
}

/// Returns for each pool its dispatcher (policy and view of the load) and its workers, none of them attached. `link`
/// creates the link by which a worker gets its tasks, from the number of its channel. Channels are numbered over all
/// pools, in the order of the configuration.
fn worker_sets<B: Buf + Token>(
    host: &HostConfig,
    table: &Table,
    mut link: impl FnMut(usize) -> WorkerLink<Packet<B>>,
) -> Vec<WorkerSet<Packet<B>>> {
    let membership = Membership::of_host(host);
    let timeout = timeout(host, table);
    let mut channel = 0;
    let mut worker_sets = Vec::new();
    for (index, pool) in membership.pools.iter().flatten().enumerate() {
        let dispatcher = pool.dispatcher(index, table, Core::ONLY);
        let entries = pool.members.iter().flatten().map(|worker| {
            channel += 1;
            (WorkerIdentity { id: worker.id, pool: pool.id }, link(channel - 1))
        });
        worker_sets.push(WorkerSet::new(pool.id, dispatcher, entries.collect(), timeout));
    }
    worker_sets
}

/// Capacity of the queue through which the watching thread reports dead worker processes to the core. The thread
/// reports a death again if the queue was full.
const DEATHS: usize = 1024;

/// Creates the parts of the configured agent, whose state is `table`: workers, registration with its leaves, queue
/// reports and peers. `link` creates the link to a worker from the number of its channel, which counts over all pools.
/// `pool` is the pool of packet buffers.
pub fn parts<B: Buf + Token, A>(
    config: &AgentConfig,
    table: &Table,
    link: impl FnMut(usize) -> WorkerLink<Packet<B>>,
    pool: A,
) -> Parts<B, A> {
    let identities = config.host.identities();
    // Registers all workers with one leaf, and sends keep-alives.
    let registrar = |leaf: &LeafAddress| {
        Registrar::new(leaf.ip, leaf.port, leaf.mac, &identities, table.ticks_hz())
    };
    let registrars: Vec<_> = config.leaves.iter().map(registrar).collect();
    let reports = reports(&config.host, registrars.len(), table);
    let parts = base_parts(&config.host, (config.udp_port, registrars), table, link, pool);
    let peers = super::peers::peers(config, table);
    Parts { reports, peers, ..parts }
}

/// Returns the sender of the workers' queue lengths to `leaves` leaves, in unsolicited messages; `None` if no pool
/// sends them. A pool sends them if its configuration names the policy of its leaves. The times of reports follow from
/// the policy.
fn reports(host: &HostConfig, leaves: usize, table: &Table) -> Option<QueueReports> {
    let notify = |(id, pool): &(u16, Pool)| Some((*id, pool.fixed.leaf_policy.as_ref()?.notify()));
    let pools: Vec<_> = host.pools.iter().filter_map(notify).collect();
    // Random stream 1: the only core has stream 0.
    let rng = Rng::seed_from_u64(stream_seed(table.seed(), 1, 0));
    // Room for the workers that changes may add.
    let (workers, hz) = (host.limits.workers.max(host.workers.len()), table.ticks_hz());
    (!pools.is_empty()).then(|| QueueReports::new(pools, leaves, workers, rng, hz))
}

/// Creates the parts that a stand-alone agent and one on a leaf's core have in common: all except reports and peers.
/// `udp_port` is the port of tasks, and `registrars` register the workers, one for each leaf. `buffers` is the pool of
/// packet buffers.
fn base_parts<B: Buf + Token, A>(
    host: &HostConfig,
    (udp_port, registrars): (u16, Vec<Registrar>),
    table: &Table,
    link: impl FnMut(usize) -> WorkerLink<Packet<B>>,
    buffers: A,
) -> Parts<B, A> {
    Parts {
        worker_sets: worker_sets(host, table, link),
        identities: host.identities(),
        pool: buffers,
        udp_port,
        payload_max: host.payload,
        registrars,
        reports: None,
        peers: None,
        deaths: Arc::new(ArrayQueue::new(DEATHS)),
        counters: table.counters(0),
        timing: Timing { ticks_hz: table.ticks_hz() },
        commands: AgentCommands::default(),
        room: (host.limits.pools, host.limits.workers),
        watch: None,
        seed: table.seed(),
    }
}

/// An agent on a leaf's core: its parts, its state, and its control.
pub type ColocatedAgent<B, A> = (Parts<B, A>, Arc<Table>, Control<AgentCores<B>>);

/// Creates the agent on the core of the configured leaf. `host` is the leaf's `[agent]`, `leaf_table` the leaf's state,
/// and `pool` the pool of packet buffers. The workers attach to `region`.
///
/// # Errors
/// If its state file cannot be created.
pub fn colocated<B: Buf + Token, A>(
    config: &Config,
    host: &HostConfig,
    leaf_table: &Table,
    region: &Arc<WorkerRegion>,
    pool: A,
) -> Result<ColocatedAgent<B, A>, StateError> {
    let table = colocated_table(config, host, leaf_table)?;
    let (leaf, ticks_hz) = (Some(colocated::LEAF_MAC), table.ticks_hz());
    let wire = WireNetwork::of(host.ip.is_ipv6());
    // The agent's only port, 0, is the link to the leaf.
    let registrar = Registrar::new(wire.leaf, 0, leaf, &host.identities(), ticks_hz);
    let port_and_registrars = (config.leaf.udp_port, vec![registrar]);
    let mut parts = base_parts(
        host,
        port_and_registrars,
        &table,
        |channel| region.channel(channel).into(),
        pool,
    );
    // Programs that watch the region, such as batch jobs on idle worker cores, read the core's CPU and queue there.
    region.watch().set_core(config.leaf.cores[0]);
    parts.watch = Some(region.watch());
    let region_and_commands = (Some(Arc::clone(region)), parts.commands.clone());
    // `has_leaf` is false: the leaf on this core releases a worker before the agent removes it, and sends it no late
    // tasks. So the agent need not remember the ids of removed workers.
    let host_and_leaf = (host, false);
    let control =
        control_of(host_and_leaf, Membership::of_host(host), &table, region_and_commands, None);
    Ok((parts, table, control))
}

/// Returns the ticks of silence after which a worker with tasks is excluded. If `worker_timeout_ms` is 0, there is no
/// timeout, and the result is `u64::MAX`.
fn timeout(host: &HostConfig, table: &Table) -> u64 {
    match host.worker_timeout_ms {
        0 => u64::MAX,
        ms => ms.saturating_mul(table.ticks_hz()) / 1000,
    }
}

/// Creates the control of the configured agent, with its state `table`. It sends changes to the core through
/// `commands`. Workers attach to the region; it is `None` if they are threads of this process. `signer` signs replies
/// with the pools' keys, if any.
#[must_use]
pub fn control<B: Buf + Token>(
    config: &AgentConfig,
    table: &Arc<Table>,
    region_and_commands: (Option<Arc<WorkerRegion>>, AgentCommands<B>),
    signer: Option<Arc<Signer>>,
) -> Control<AgentCores<B>> {
    let host_and_leaf = (&config.host, !config.leaves.is_empty());
    control_of(host_and_leaf, membership(config), table, region_and_commands, signer)
}

/// Creates the control of an agent with this membership. `has_leaf` is true if a leaf may still send tasks to a removed
/// worker for a while. See [`control`] for `commands`, `region` and `signer`.
fn control_of<B: Buf + Token>(
    (host, has_leaf): (&HostConfig, bool),
    membership: Membership,
    table: &Arc<Table>,
    (region, commands): (Option<Arc<WorkerRegion>>, AgentCommands<B>),
    signer: Option<Arc<Signer>>,
) -> Control<AgentCores<B>> {
    let &HostConfig { slots, payload, payload_max, .. } = host;
    let timeout = timeout(host, table);
    let parts =
        AgentParts { region, commands, slots, payload, payload_max, has_leaf, timeout, signer };
    let cores = AgentCores::new(parts, &membership);
    Control::of(Arc::clone(table), membership, cores)
}
