//! The agent as a process: one dispatcher core gives tasks to the workers of this host, and sends their replies, except
//! those that worker threads send themselves. The calling thread also watches the workers' locks.
//!
//! Workers are processes that attach to a region, the memory shared with the agent, or threads of this process. The
//! region has one channel per worker. The account is the report of a process at its end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use wedjat_admin::{Requests, reload};
use wedjat_assembly::agent;
use wedjat_core::clock::Clock;
use wedjat_core::io::{Pool, Port, Token};
use wedjat_core::ring::region::path_of;
use wedjat_core::ring::{Producer, RegionError, WorkerRegion};
use wedjat_core::role::Agent;
use wedjat_core::role::agent::{AttachStats, NamedLoad, Parts, Signer, WorkerLink};
use wedjat_core::stage::PortAddress;
use wedjat_core::state::Counters;
use wedjat_core::state::table::Role;
use wedjat_core::stats::{AgentStats, LeafStats};
use wedjat_core::wire::ether::Mac;
use wedjat_desired::config::{AgentConfig, HostConfig, ReplyPath};
use wedjat_desired::control::signer;
use wedjat_dpdk::{Eal, Mbuf, Outlet, PoolHandle};
use wedjat_fabric::NodeId;

use super::launch::{NodeParts, Runtime};
use super::poll::{AgentEnd, CoreParts, CoreWatch, PollResult, QUIET, poll_until_stopped};
use super::workers::WorkerWatch;
use super::{LaunchError, Options, telemetry};

/// Maximum time after a stop request in which an agent still serves its tasks.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Time in which threads must complete their tasks after the stop request to them.
const THREAD_DRAIN_MAX: Duration = Duration::from_millis(500);

/// Runs the agent until `stop` is set or the duration is over. `report` gets a line per second. Returns the account:
/// packets, tasks, drops and attachments.
///
/// # Errors
/// If it cannot start, or its core failed.
pub fn run(
    config: &AgentConfig,
    options: &Options,
    stop: &Arc<AtomicBool>,
    report: impl FnMut(&str),
) -> Result<AgentStats, LaunchError> {
    start(config, options, || Ok(region(&config.host)?), None, stop, report)
}

/// Transmit queues for worker threads, by port. A port has one per worker, or fewer if its device has no more to spare.
pub(super) type Queues = Vec<Vec<Outlet>>;

/// Workers that are threads of this process.
#[derive(Default)]
pub(super) struct ThreadWorkers {
    /// Unfinished tasks by the leaf's chosen worker, shared with the dispatcher.
    pub load: Arc<NamedLoad>,
    /// Counters of the workers that send their replies themselves.
    pub counters: Vec<Counters>,
    /// Dispatcher's end of the packet channel to each worker; `None` for workers that use a channel of the region, and
    /// whose replies the dispatcher sends.
    pub producers: Vec<Option<Producer<Mbuf>>>,
    /// Running threads of all workers.
    pub threads: Vec<JoinHandle<()>>,
}

/// Function that starts the worker threads, given transmit queues and the signer.
pub(super) type StartThreadWorkers<'a> =
    &'a mut dyn FnMut(&Eal, Queues, Option<&Arc<Signer>>) -> Result<ThreadWorkers, LaunchError>;

/// Runs the agent, with workers that are processes (`start_threads` is `None`, from [`run`]) or threads (module
/// `threads`). `create_region` creates the region of the workers. Starts worker threads after the devices, whose
/// transmit queues they need, and before the dispatcher, which needs their channels.
pub(super) fn start(
    config: &AgentConfig,
    options: &Options,
    create_region: impl FnOnce() -> Result<Arc<WorkerRegion>, LaunchError>,
    start_threads: Option<StartThreadWorkers<'_>>,
    stop: &Arc<AtomicBool>,
    report: impl FnMut(&str),
) -> Result<AgentStats, LaunchError> {
    let (runtime, region) = Runtime::start(config.node(), options, stop, create_region)?;
    let table = agent::table(config, runtime.ticks_hz())?;
    telemetry::show(&runtime.eal, Role::Agent, &table);
    let (host, membership) = (&config.host, agent::membership(config));
    // A transmit queue for each worker that may send its replies itself.
    let outlets = match config.sends {
        ReplyPath::Try | ReplyPath::Must if start_threads.is_some() => host.identities().len(),
        _ => 0,
    };
    // No devices: the node was stopped while a device waited for its peer.
    let Some(mut devices) = runtime.open_devices(outlets, None)? else {
        let role_and_cores = (Role::Agent, &[config.core][..]);
        let ledger = runtime.account(role_and_cores, &table, &membership, 0.0);
        return Ok(account(host, ledger, AgentEnd::default(), 0));
    };
    let signer = signer(&membership, None).map(Arc::new);
    // The control interface adds workers to the region of processes. No process attaches to that of threads, so no
    // worker can be added there.
    let shared_region = start_threads.is_none().then(|| Arc::clone(&region));
    let outlets = std::mem::take(&mut devices.outlets);
    let thread_workers = start_threads
        .map(|start_threads| start_threads(&runtime.eal, outlets, signer.as_ref()))
        .transpose()?
        .unwrap_or_default();
    let ThreadWorkers { load, counters, producers, threads } = thread_workers;
    let (senders, mut producers) = (counters.len(), producers.into_iter());
    // The agent calls `link` once for each channel, in their order, which is also that of `producers`.
    let link = |channel: usize| match producers.next().flatten() {
        Some(producer) => WorkerLink::from(producer),
        None => WorkerLink::from(region.channel(channel)),
    };
    let mut parts = agent::parts(config, &table, link, runtime.mbufs.handle());
    // Batch jobs on this host read the agent's state and its CPU from the region.
    region.watch().set_core(config.core);
    parts.watch = Some(region.watch());
    let workers = WorkerWatch::new(region, Arc::clone(&parts.deaths));
    let core_parts = (shared_region, parts.commands.clone());
    let control = agent::control(config, &table, core_parts, signer.clone());
    let seed = table.seed();
    log::info!("agent {} runs on CPU {} with seed {seed}", host.name, config.core);
    let macs = devices.devices.iter().map(|device| Mac(device.mac()));
    let addresses = config.addresses(macs).collect();
    // The agent's address is that of the port towards its first leaf, or without a leaf, of its first port.
    let port = &config.ports[config.leaves.first().map_or(0, |leaf| leaf.port)];
    let parts = NodeParts {
        id: NodeId::Agent(port.ip),
        cores: vec![AgentCore { parts, addresses, load, counters, signer }],
        requests: Requests::new(control, Arc::clone(&table), reload::agent_file_reader(config)),
        newcomers: None,
        workers: Some(workers),
        threads,
    };
    let (ledger, end, _) = runtime.run(&table, devices, parts, report)?;
    Ok(account(host, ledger, end.unwrap_or_default(), senders))
}

/// Creates the region to which the host's workers attach. Refuses a second agent of that name.
pub(super) fn region(host: &HostConfig) -> Result<Arc<WorkerRegion>, RegionError> {
    WorkerRegion::create_for(&path_of(&host.name), &host.identities(), host.shape()).map(Arc::new)
}

/// Returns the account of the host's agent, which had this number of threads that send their replies themselves.
pub(super) fn account(
    host: &HostConfig,
    ledger: LeafStats,
    (attach, registered): AgentEnd,
    senders: usize,
) -> AgentStats {
    AgentStats { ledger, name: host.name.clone(), attach, registered, senders }
}

/// Returns the sums of the statistics of an agent's attached workers, and its number of registered workers. Closing the
/// agent consumes it, so callers read them before.
pub(super) fn end<P: Port<Buf: Token>, A: Pool<Buf = P::Buf>>(agent: &Agent<P, A>) -> AgentEnd {
    let attach = agent.attach_stats().fold(AttachStats::default(), AttachStats::and);
    (attach, agent.registered())
}

/// Parts of an agent's core.
struct AgentCore {
    /// Parts of the agent's role.
    parts: Parts<Mbuf, PoolHandle>,
    /// Addresses of the ports, in the ports' order.
    addresses: Vec<PortAddress>,
    /// Unfinished tasks by the leaf's chosen worker, shared with threads.
    load: Arc<NamedLoad>,
    /// Counters of workers that are threads and send their replies themselves.
    counters: Vec<Counters>,
    /// Keys of pools whose messages are signed.
    signer: Option<Arc<Signer>>,
}

impl CoreParts for AgentCore {
    /// Polls the agent until a stop request, and then at most [`DRAIN_MAX`] until its tasks end. Then its threads have
    /// at most [`THREAD_DRAIN_MAX`] to end theirs.
    fn poll<P: Port<Buf = Mbuf>>(
        self,
        ports: Vec<P>,
        CoreWatch { tap, refusals }: CoreWatch,
        mut clock: impl Clock,
        stop: &AtomicBool,
    ) -> PollResult<P> {
        let Self { parts, addresses, load, counters, signer } = self;
        let ports = ports.into_iter().zip(addresses).collect();
        let mut agent = Agent::new(parts, ports).with_signer(signer);
        agent = agent.with_tap(tap).with_refusals(refusals);
        if !counters.is_empty() {
            agent = agent.with_threads(load, counters);
        }
        poll_until_stopped(&mut agent, &mut clock, stop, DRAIN_MAX);
        // Tasks that threads still serve count at the threads, so these must end before the agent's account.
        if agent.has_threads() {
            agent.stop();
            clock.drain(QUIET, THREAD_DRAIN_MAX, |now| {
                agent.poll(now);
                agent.has_threads()
            });
        }
        let end = end(&agent);
        (agent.close(), Some(end), clock.ended())
    }
}
