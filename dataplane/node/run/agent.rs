//! The agent: one dispatcher core. The calling thread also watches the workers' locks.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use wedjat_admin::{Requests, reload};
use wedjat_assembly::agent;
use wedjat_core::clock::{Clock, ClockError, ClockFile, Node, NodeKind};
use wedjat_core::cpus;
use wedjat_core::node::refusals::Refusals;
use wedjat_core::node::tap::TapCommands;
use wedjat_core::ring::region::path_of;
use wedjat_core::ring::{Producer, RegionError, WorkerRegion};
use wedjat_core::role::Agent;
use wedjat_core::role::agent::{AttachStats, Death, NamedLoad, Parts, Signer, WorkerLink};
use wedjat_core::stage::PortAddress;
use wedjat_core::state::table::Role;
use wedjat_core::state::{Counters, Totals};
use wedjat_core::stats::{AgentStats, LeafStats};
use wedjat_core::wire::ether::Mac;
use wedjat_desired::config::{AgentConfig, HostConfig, PollMode, ReplyPath};
use wedjat_desired::control::signer;
use wedjat_dpdk::QueuePort;
use wedjat_dpdk::{Adaptive, StallCounter};
use wedjat_dpdk::{
    Device, DeviceError, DeviceOptions, Eal, Mbuf, MbufPool, Outlet, PoolHandle, Sleeper,
};
use wedjat_fabric::NodeId;

use super::attach_log::AttachLog;
use super::causes::Causes;
use super::{ControlInterface, LaunchError, Links, Options, QUIET, Watch, telemetry};
use super::{
    all_port_stats, check_cpus, describe, join, log_link_event, manifest, port_stats, spawn,
    tap_points, ticks_hz,
};

/// Interval between checks of workers' locks, signals and time.
pub const WATCH: Duration = Duration::from_millis(5);
/// Maximum time after a stop request in which an agent still serves its tasks.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Attach statistics, and the number of workers registered at the end.
type AgentEnd = (Vec<AttachStats>, usize);

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
    check_cpus(&[config.core])?;
    // First, to refuse a second agent of that name before it opens devices.
    let region = Arc::new(region(&config.host)?);
    start(config, options, &region, None, stop, report)
}

/// Transmit queues of each port for threads.
pub(super) type Queues = Vec<Vec<Outlet>>;

/// Workers that are threads of this process.
#[derive(Default)]
pub(super) struct ThreadWorkers {
    /// Unfinished tasks by worker, shared with the dispatcher.
    pub load: Arc<NamedLoad>,
    /// Counters of the workers that send their replies themselves.
    pub counters: Vec<Counters>,
    /// Dispatcher's end of the channel to each worker; `None` for workers whose replies the dispatcher sends.
    pub producers: Vec<Option<Producer<Mbuf>>>,
    pub threads: Vec<JoinHandle<()>>,
}

/// Function that starts the threads, given transmit queues and the signer.
pub(super) type StartThreadWorkers<'a> =
    &'a mut dyn FnMut(&Eal, Queues, Option<&Arc<Signer>>) -> Result<ThreadWorkers, LaunchError>;

/// Starts the agent around the region of its workers, processes or threads, and runs it to its end. Starts worker
/// threads after the devices, whose transmit queues they need, and before the dispatcher, which needs their channels.
pub(super) fn start(
    config: &AgentConfig,
    options: &Options,
    region: &Arc<WorkerRegion>,
    start_threads: Option<StartThreadWorkers<'_>>,
    stop: &Arc<AtomicBool>,
    report: impl FnMut(&str),
) -> Result<AgentStats, LaunchError> {
    check_cpus(&[config.core])?;
    let cpus = cpus::except(&[config.core]);
    config.warnings().iter().for_each(|warning| log::warn!("{warning}"));
    let clock = options.clock.as_deref().map(ClockFile::open).transpose()?;
    let host = &config.host;
    let names: Vec<_> = config.ports.iter().map(|port| port.device.as_str()).collect();
    let eal = Eal::init_excluding(&options.eal, &names, &[config.core])?;
    let mbufs = MbufPool::new(&eal, "wedjat", config.mbufs)?;
    let hz = ticks_hz(clock.as_ref(), &eal);
    let table = agent::table(config, hz)?;
    let seed = table.seed();
    telemetry::show(&eal, Role::Agent, &table);
    let senders = match config.sends {
        ReplyPath::Never => 0,
        ReplyPath::Try | ReplyPath::Must if start_threads.is_some() => host.places().len(),
        _ => 0,
    };
    let opened = open_devices(config, &eal, &mbufs, senders, (options.patience, stop));
    if let Err(DeviceError::Stopped { name }) = &opened {
        log::info!("stopped while {name} waited for its peer");
        return Ok(not_started(config, &eal, hz, seed));
    }
    let (devices, ports, queues) = opened?;
    let signer = signer(&agent::membership(config), None).map(Arc::new);
    let shared_region = start_threads.is_none().then(|| Arc::clone(region));
    let mut thread_workers = start_threads
        .map(|start_threads| start_threads(&eal, queues, signer.as_ref()))
        .transpose()?
        .unwrap_or_default();
    let mut producers = std::mem::take(&mut thread_workers.producers).into_iter();
    let link = |channel: usize| match producers.next().flatten() {
        Some(producer) => WorkerLink::from(producer),
        None => WorkerLink::from(region.channel(channel)),
    };
    let mut parts = agent::parts(config, &table, link, mbufs.handle());
    region.watch().set_core(config.core);
    parts.watch = Some(region.watch());
    let macs = devices.iter().map(|device| Mac(device.mac()));
    let ports = ports.into_iter().zip(config.addresses(macs)).collect();
    let deaths = Arc::clone(&parts.deaths);
    let core_parts = (shared_region, parts.commands.clone());
    let control = agent::control(config, &table, core_parts, signer.clone());
    let tap = TapCommands::default();
    let points = tap_points(vec![tap.clone()], &devices, (clock.as_ref(), &eal), &cpus);
    let requests = Requests::new(control, Arc::clone(&table), reload::agents_reader(config));
    let mut requests = requests.with_taps(points);
    let sockets = (&config.control, config.state.as_deref());
    let interface = ControlInterface::open(&requests, options, sockets, &cpus)?;
    let _following = {
        let port = &config.ports[config.leaves.first().map_or(0, |leaf| leaf.port)];
        let ip = wedjat_desired::config::v4_bits(port.ip).unwrap_or_default();
        let node = NodeId::Agent(ip.into());
        super::follow(config.controller.as_ref(), node, &interface.handle, None, &cpus)?
    };
    let refusals = Refusals::default();
    let mut causes = Causes::of(vec![refusals.clone()], Vec::new());
    let ThreadWorkers { load, counters, threads, .. } = thread_workers;
    let shared = Shared { load, counters, signer, tap, refusals };
    log::info!("agent {} runs on CPU {} with seed {seed}", host.name, config.core);
    let started = Instant::now();
    let senders = shared.counters.len();
    let node = Node { kind: NodeKind::Agent, id: config.id, core: 0 };
    let clock = clock.map(|clock| clock.join(node)).transpose()?;
    let stop_core = Arc::clone(stop);
    let (counter, polling) = (eal.clone(), config.poll);
    let cpu_use = (config.core, clock.is_none() && polling == PollMode::Busy);
    let core = spawn("agent", cpu_use, eal.clone(), move || {
        let counters = parts.counters.clone();
        let tsc = |counters| StallCounter::new(counter, counters);
        let (end, time) = match (clock, polling) {
            (Some(clock), _) => poll(clock, (parts, ports), shared, &stop_core),
            (None, PollMode::Busy) => poll(tsc(counters), (parts, ports), shared, &stop_core),
            (None, PollMode::Adaptive) => {
                let sleeper = Sleeper::new(ports.iter().map(|(port, _)| port));
                let sleeper = sleeper.map_err(|error| error.to_string())?;
                let clock = Adaptive::new(tsc(counters.clone()), sleeper, counters);
                poll(clock, (parts, ports), shared, &stop_core)
            }
        };
        time.map(|()| end).map_err(|error| error.to_string())
    })?;
    let counters = [table.counters(0)];
    let (mut attach_log, mut links) = (AttachLog::new(region), Links::of(&devices));
    let check = |time| {
        report_deaths(region, &deaths);
        interface.check_reload();
        causes.update(&devices, requests.control().membership());
        requests.serve_for(time, &|| all_port_stats(&devices));
        attach_log.update(region);
        links.check(&devices, log_link_event);
    };
    let (duration, core_counters) = (options.duration, &counters[..]);
    let (interval, cpu) = (WATCH, [config.core]);
    let polling = if options.clock.is_none() { &cpu[..] } else { &[] };
    let watch = Watch {
        duration,
        stop,
        counters: core_counters,
        cpus: polling,
        ticks_hz: hz,
        interval,
        started,
    };
    watch.until_ended(&[&core], check, report);
    let (attach_stats, registered) = join(config.core, core)?;
    join_workers(threads);
    let seconds = started.elapsed().as_secs_f64();

    let ports = devices.iter().map(port_stats).collect();
    let mut ledger =
        LeafStats::of(Totals::read(&counters), seconds, manifest(&config.text, &eal, hz));
    drop(devices); // returns the buffers in receive queues
    ledger.ports = ports;
    ledger.mbufs_leaked = mbufs.in_use();
    let membership = requests.control().membership();
    describe(&mut ledger, "agent", membership, &[config.core], seed);
    let attach_stats = attach_stats.into_iter().fold(AttachStats::default(), AttachStats::and);
    Ok(AgentStats { ledger, name: host.name.clone(), attach: attach_stats, registered, senders })
}

/// Returns the account of an agent that was stopped before its devices started.
fn not_started(config: &AgentConfig, eal: &Eal, hz: u64, seed: u64) -> AgentStats {
    let mut ledger = LeafStats::of(Totals::default(), 0.0, manifest(&config.text, eal, hz));
    describe(&mut ledger, "agent", &agent::membership(config), &[config.core], seed);
    let (name, attach_stats) = (config.host.name.clone(), AttachStats::default());
    AgentStats { ledger, name, attach: attach_stats, registered: 0, senders: 0 }
}

/// Creates the region to which the host's workers attach.
pub(super) fn region(host: &HostConfig) -> Result<WorkerRegion, RegionError> {
    WorkerRegion::create_for(&path_of(&host.name), &host.places(), host.shape())
}

/// Opens the devices, each with up to `senders` transmit queues for threads.
fn open_devices(
    config: &AgentConfig,
    eal: &Eal,
    mbufs: &MbufPool,
    senders: usize,
    (patience, stop): (Option<Duration>, &Arc<AtomicBool>),
) -> Result<(Vec<Device>, Vec<QueuePort>, Queues), DeviceError> {
    let (mut devices, mut queues, mut spare) = (Vec::new(), Vec::new(), Vec::new());
    for port in &config.ports {
        let options = DeviceOptions {
            rx_slots: port.queue_slots,
            tx_slots: port.queue_slots,
            // Needed to receive packets to a configured MAC address that differs from the device's own.
            promiscuous: port.mac.is_some(),
            multicast: port.ip.is_ipv6(),
            trust_checksums: port.trust_checksums,
            vlan: port.vlan,
            interrupts: config.poll == PollMode::Adaptive,
            outlets: senders as u16,
            stop: Arc::clone(stop),
            ..DeviceOptions::patient(patience)
        };
        let (device, mut ports, outlets) =
            Device::open_with_outlets(eal, &port.device, mbufs, &options)?;
        spare.push(outlets);
        log::info!("{} ({}) is {}", device.name(), device.driver(), Mac(device.mac()));
        devices.push(device);
        queues.append(&mut ports);
    }
    Ok((devices, queues, spare))
}

/// Time in which threads must end after the agent.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval between checks of the threads.
const JOIN_INTERVAL: Duration = Duration::from_millis(1);

/// Waits a limited time for the threads. Abandons a thread that does not end.
fn join_workers(threads: Vec<JoinHandle<()>>) {
    let start = Instant::now();
    while !threads.iter().all(JoinHandle::is_finished) && start.elapsed() < PATIENCE {
        std::thread::sleep(JOIN_INTERVAL);
    }
    for thread in threads {
        let name = thread.thread().name().unwrap_or("a worker").to_owned();
        if !thread.is_finished() {
            log::warn!("{name} is still busy with a task and is abandoned");
        } else if thread.join().is_err() {
            log::error!("{name} ended by a panic; its tasks are counted as worker_lost");
        }
    }
}

/// State shared by the core and further threads.
struct Shared {
    /// Unfinished tasks by worker.
    load: Arc<NamedLoad>,
    /// Counters of workers that are threads and send their replies themselves.
    counters: Vec<Counters>,
    /// Keys of pools whose messages are signed.
    signer: Option<Arc<Signer>>,
    tap: TapCommands,
    refusals: Refusals,
}

/// Runs the poll loop. After a stop request it goes on until the ports are quiet and no task is held, at most
/// for a fixed time. Also returns the reason why emulated time ended.
fn poll(
    mut clock: impl Clock,
    (parts, ports): (Parts<Mbuf, PoolHandle>, Vec<(QueuePort, PortAddress)>),
    shared: Shared,
    stop: &AtomicBool,
) -> (AgentEnd, Result<(), ClockError>) {
    let Shared { load, counters, signer, tap, refusals } = shared;
    let mut agent = Agent::new(parts, ports).with_signer(signer).with_tap(tap);
    agent = agent.with_refusals(refusals);
    if !counters.is_empty() {
        agent = agent.with_threads(load, counters);
    }
    while let Some(now) = clock.next(stop) {
        // The policies get the time at each poll, also after a sleep.
        agent.poll(now);
        clock.polled(|| agent.progress());
    }
    clock.drain(QUIET, DRAIN_MAX, |now| agent.poll(now) > 0 || agent.held() > 0);
    // Tasks that threads still serve count at the threads, so these must end before the agent's account.
    if agent.has_threads() {
        agent.stop();
        clock.drain(QUIET, THREAD_DRAIN_MAX, |now| {
            agent.poll(now);
            agent.has_threads()
        });
    }
    let end = (agent.attach_stats().collect(), agent.registered());
    agent.close();
    (end, clock.ended())
}

/// Reports dead workers to the core: granted ones with a free lock. Reads the claim before the lock. So the death
/// carries the claim of the dead worker, and the core ignores it if a successor has the grant by then.
pub fn report_deaths(region: &WorkerRegion, deaths: &ArrayQueue<Death>) {
    for channel in 0..region.shape().channels {
        let claim = region.granted(channel);
        if claim != 0 && !region.has_worker(channel) {
            // If the queue is full, the next check finds the death again.
            let _ = deaths.push(Death { channel, claim });
        }
    }
}
