//! The leaf or spine: one or several dispatcher cores. The first one may also run an agent with its workers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wedjat_admin::pcap::Tap;
use wedjat_admin::{Requests, reload};
use wedjat_assembly::takeover::{self, TakeoverCounts};
use wedjat_core::clock::{Clock, ClockError, ClockFile, EmulatedClock, Node, NodeKind};
use wedjat_core::cpus;
use wedjat_core::io::Port;
use wedjat_core::io::link::{self, DeviceOrWire};
use wedjat_core::node::refusals::Refusals;
use wedjat_core::node::tap::TapCommands;
use wedjat_core::node::{Commands, Timing};
use wedjat_core::quantity;
use wedjat_core::role::agent::AttachStats;
use wedjat_core::role::{Colocated, Leaf};
use wedjat_core::stage::{Side, Stages};
use wedjat_core::state::Totals;
use wedjat_core::state::table::Role;
use wedjat_core::stats::LeafStats;
use wedjat_core::wire::ether::Mac;
use wedjat_desired::config::{Config, PollMode};
use wedjat_desired::control::{ColocatedCores, Control, Membership};
use wedjat_dpdk::{
    Adaptive, Device, DeviceError, DeviceOptions, Eal, MbufPool, PoolHandle, QueuePort, RssFields,
    Sleeper, StallCounter,
};
use wedjat_fabric::NodeId;

use super::causes::Causes;
use super::colocated::{self, ColocatedEnd, LocalAgent, LocalParts};
use super::{ControlInterface, CoreThread, LaunchError, Links, Options, QUIET, Watch, telemetry};
use super::{
    all_port_stats, check_cpus, describe, join, log_link_event, manifest, port_stats, spawn,
    tap_points, ticks, ticks_hz,
};

/// Maximum time after a stop request in which a core still forwards packets in flight.
const DRAIN_MAX: Duration = Duration::from_millis(500);
/// Interval at which the watching thread checks signals and time.
const WATCH: Duration = Duration::from_millis(20);

/// Runs the leaf or spine until `stop` is set or the duration is over. `report` gets a line per second. Returns the
/// account: packets, tasks and drops.
///
/// Creates the region for local workers, the mempool, the state and the devices, in this order. The predecessor's state
/// file is read before this node's own replaces it. Then starts a thread per core, and watches them until all have
/// ended.
///
/// # Errors
/// If it cannot start, or a core failed.
pub fn run(
    config: &Config,
    options: &Options,
    stop: &Arc<AtomicBool>,
    report: impl FnMut(&str),
) -> Result<LeafStats, LaunchError> {
    check_cpus(&config.leaf.cores)?;
    let cpus = cpus::except(&config.leaf.cores);
    config.warnings().iter().for_each(|warning| log::warn!("{warning}"));
    let clock = options.clock.as_deref().map(ClockFile::open).transpose()?;
    let region = colocated::region(config)?;
    let names: Vec<_> = config.ports.iter().map(|port| port.device.as_str()).collect();
    let eal = Eal::init_excluding(&options.eal, &names, &config.leaf.cores)?;
    let mbufs = MbufPool::new(&eal, "wedjat", config.leaf.mbufs)?;
    let hz = ticks_hz(clock.as_ref(), &eal);
    let predecessor = takeover::read(config).unwrap_or_else(|error| {
        // Not fatal: the node's own state file is created next, and reports a real obstacle as an error.
        log::info!("takes over nothing: {error}");
        None
    });
    let table = wedjat_assembly::table(config, hz)?;
    let seed = table.seed();
    let agent = config.agent.as_ref().zip(region);
    let agent = agent.map(|agent| LocalAgent::new(config, agent, &mbufs, &table)).transpose()?;
    let (agent, mut parts, agent_control) = match agent {
        Some((agent, parts, control)) => (Some(agent), Some(parts), Some(control)),
        None => (None, None, None),
    };
    telemetry::show(&eal, config.role, &table);
    agent.iter().for_each(|agent| telemetry::show(&eal, Role::Agent, agent.table()));
    let opened = open_devices(config, &eal, &mbufs, options.patience, stop);
    if let Err(DeviceError::Stopped { name }) = &opened {
        log::info!("stopped while {name} waited for its peer");
        return Ok(not_started(config, &eal, hz, seed));
    }
    let (devices, mut queues) = opened?;
    let macs = devices.iter().map(|device| Mac(device.mac()));
    let membership = Membership::of(config);
    let mut stages = wedjat_assembly::stages(config, &membership, macs, &table)?;
    if let Some(predecessor) = predecessor {
        let now_ms = Timing { ticks_hz: hz }.to_ms(ticks(clock.as_ref(), &eal)());
        let TakeoverCounts { members, hosts } =
            predecessor.take_over(&mut stages, &table, now_ms as u32);
        let age = predecessor.age().as_millis();
        log::info!(
            "took over loads of {} and MAC addresses of {}, which were written {age} ms ago",
            quantity(members, "member"),
            quantity(hosts, "host")
        );
    }
    // Queue of workers that are unknown to this node, for the controller.
    let newcomers =
        config.controller.as_ref().map(|_| wedjat_assembly::watch_unknown_workers(&mut stages));
    log::info!(
        "{} {} runs on {} with seed {seed}",
        config.role.name(),
        config.leaf.id,
        quantity(config.leaf.cores.len(), "core")
    );

    let counters: Vec<_> = (0..config.leaf.cores.len()).map(|core| table.counters(core)).collect();
    let (leaf_cores, commands) = wedjat_assembly::cores(&stages, &table);
    let control =
        Control::of(Arc::clone(&table), membership, ColocatedCores::new(leaf_cores, agent_control));
    let taps: Vec<_> = commands.iter().map(|_| TapCommands::default()).collect();
    let points = tap_points(taps.clone(), &devices, (clock.as_ref(), &eal), &cpus);
    let requests = Requests::new(control, Arc::clone(&table), reload::leafs_reader(config));
    let agents = agent.as_ref().map(|agent| Arc::clone(agent.table()));
    let mut requests = requests.with_taps(points).with_agent(agents);
    let sockets = (&config.control, config.leaf.state.as_deref());
    let interface = ControlInterface::open(&requests, options, sockets, &cpus)?;
    let _following = super::follow(
        config.controller.as_ref(),
        match config.role {
            Role::Spine => NodeId::Spine(config.leaf.id),
            _ => NodeId::Leaf(config.leaf.id),
        },
        &interface.handle,
        newcomers,
        &cpus,
    )?;
    // Read before the cores start, so that they do not send to a port without a link.
    let mut links = Links::of(&devices);
    let neighbours = table.neighbours();
    for (port, device) in devices.iter().enumerate().filter(|(_, device)| !device.link().up) {
        log::info!("port {port}, {}: no link yet", device.name());
        neighbours.set_link(port, false);
    }
    let refusals: Vec<_> = counters.iter().map(|_| Refusals::default()).collect();
    let mut causes = Causes::of(refusals.clone(), counters.clone());
    let mut cores = Vec::new();
    let kind = if config.role == Role::Spine { NodeKind::Spine } else { NodeKind::Leaf };
    let started = Instant::now();
    let commands = commands.into_iter().zip(taps);
    let core_parts = config.leaf.cores.iter().zip(stages).zip(commands).enumerate();
    for (index, ((&cpu, stages), (commands, tap))) in core_parts {
        let ports: Vec<QueuePort> = queues.iter_mut().map(|ports| ports.remove(0)).collect();
        let node = Node { kind, id: config.leaf.id, core: index as u16 };
        let setup = CoreSetup {
            eal: eal.clone(),
            stages,
            ports,
            pool: mbufs.handle(),
            commands,
            tap,
            refusals: refusals[index].clone(),
            is_patient: false,
            polling: config.leaf.poll,
            sleeper: None,
            stop: Arc::clone(stop),
            pcap: options.pcap.clone().map(|path| (path, index)),
            agent: parts.take(), // a leaf with an agent has one core
            clock: clock.as_ref().map(|clock| clock.join(node)).transpose()?,
            mbufs: config.leaf.mbufs as usize,
        };
        let cpu_use = (cpu, clock.is_none() && config.leaf.poll == PollMode::Busy);
        let thread = spawn("dispatch", cpu_use, eal.clone(), move || dispatch(setup))?;
        cores.push((cpu, thread));
    }
    drop(queues);
    // The cores need each event, because a host may be gone after the link was down.
    let on_event = |port, device: &Device, is_up| {
        log_link_event(port, device, is_up);
        neighbours.set_link(port, is_up);
    };
    let check = |time| {
        links.check(&devices, on_event);
        interface.check_reload();
        causes.update(&devices, requests.control().membership());
        requests.serve_for(time, &|| all_port_stats(&devices));
        agent.as_ref().inspect(|agent| agent.check_workers());
    };
    // With local workers more often, because a check also finds dead ones.
    let interval = if agent.is_some() { super::agent::WATCH } else { WATCH };
    let (duration, core_counters) = (options.duration, &counters[..]);
    let polling = if options.clock.is_none() { &config.leaf.cores[..] } else { &[] };
    let watch = Watch {
        duration,
        stop,
        counters: core_counters,
        cpus: polling,
        ticks_hz: hz,
        interval,
        started,
    };
    watch.until_ended(&cores.iter().map(|(_, core)| core).collect::<Vec<_>>(), check, report);
    let agent_end = join_all(cores)?;
    let seconds = started.elapsed().as_secs_f64();

    let ports = devices.iter().map(port_stats).collect();
    let manifest = manifest(&config.text, &eal, hz);
    drop(devices); // returns the buffers in receive queues
    let mut account = LeafStats::of(Totals::read(&counters), seconds, manifest);
    account.ports = ports;
    account.mbufs_leaked = mbufs.in_use();
    describe(
        &mut account,
        config.role.name(),
        requests.control().membership(),
        &config.leaf.cores,
        seed,
    );
    let agent = agent.as_ref().zip(agent_end).zip(requests.control().of_agent());
    account.agent = agent.map(|((agent, end), membership)| {
        Box::new(agent.account(end, seconds, config, membership, (&eal, hz)))
    });
    Ok(account)
}

/// Returns the account of a leaf that was stopped before its devices started.
fn not_started(config: &Config, eal: &Eal, hz: u64, seed: u64) -> LeafStats {
    let mut account = LeafStats::of(Totals::default(), 0.0, manifest(&config.text, eal, hz));
    describe(&mut account, config.role.name(), &Membership::of(config), &config.leaf.cores, seed);
    account
}

/// Devices, and the queues of each.
type Devices = (Vec<Device>, Vec<Vec<QueuePort>>);

/// Opens the devices, each with a queue pair per core.
fn open_devices(
    config: &Config,
    eal: &Eal,
    mbufs: &MbufPool,
    patience: Option<Duration>,
    stop: &Arc<AtomicBool>,
) -> Result<Devices, DeviceError> {
    let mut devices = Vec::new();
    let mut queues = Vec::new();
    for port in &config.ports {
        let options = DeviceOptions {
            queues: config.leaf.cores.len() as u16,
            rss: match port.side {
                Side::Clients => RssFields::Source,
                Side::Workers => RssFields::Destination,
                Side::Both => RssFields::FourTuple,
            },
            rx_slots: port.queue_slots,
            tx_slots: port.queue_slots,
            // Needed to receive packets to a configured MAC address that differs from the device's own.
            promiscuous: port.mac.is_some(),
            multicast: port.ip.is_ipv6(),
            trust_checksums: port.trust_checksums,
            vlan: port.vlan,
            interrupts: config.leaf.poll == PollMode::Adaptive,
            stop: Arc::clone(stop),
            ..DeviceOptions::patient(patience)
        };
        let (device, ports) = Device::open(eal, &port.device, mbufs, &options)?;
        log::info!("{} ({}) is {}", device.name(), device.driver(), Mac(device.mac()));
        if let Some(fields) = device.rss().filter(|_| options.queues > 1) {
            log::info!("{} spreads packets over the cores by {fields}", device.name());
        }
        devices.push(device);
        queues.push(ports);
    }
    Ok((devices, queues))
}

/// State for a dispatcher thread.
struct CoreSetup {
    eal: Eal,
    stages: Stages,
    /// Queues of this core, one per device.
    ports: Vec<QueuePort>,
    /// Mempool for packets that the core makes.
    pool: PoolHandle,
    commands: Commands,
    tap: TapCommands,
    refusals: Refusals,
    /// True to leave tasks in their devices until workers are reachable, at most for a short time after a link-up.
    is_patient: bool,
    stop: Arc<AtomicBool>,
    /// Name for captures of all packets, and this core's index.
    pcap: Option<(PathBuf, usize)>,
    /// Agent on the same core.
    agent: Option<LocalParts>,
    /// Emulated time instead of the time-stamp counter.
    clock: Option<EmulatedClock>,
    polling: PollMode,
    /// Sleep of the core while no packets arrive.
    sleeper: Option<Sleeper>,
    /// Total number of packet buffers.
    mbufs: usize,
}

/// Runs a dispatcher core: the poll loop over its ports, or over taps that record all packets. Returns the end of its
/// agent, if it has one.
fn dispatch(mut setup: CoreSetup) -> Result<Option<ColocatedEnd>, String> {
    let ports = std::mem::take(&mut setup.ports);
    if setup.polling == PollMode::Adaptive && setup.clock.is_none() {
        setup.sleeper = Some(Sleeper::new(&ports).map_err(|error| error.to_string())?);
    }
    let Some((path, index)) = setup.pcap.take() else {
        let (_, end, clock) = poll(setup, ports);
        return clock.map(|()| end).map_err(|error| error.to_string());
    };
    let tapped = ports.into_iter().enumerate().map(|(port, queue)| {
        let mut name = path.clone().into_os_string();
        name.push(format!(".port{port}.core{index}.pcap"));
        let since_epoch = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Tap::new(queue, &PathBuf::from(name), since_epoch).map_err(|error| error.to_string())
    });
    let (tapped, end, clock) = poll(setup, tapped.collect::<Result<Vec<_>, _>>()?);
    for (port, tap) in tapped.into_iter().enumerate() {
        if tap.recorded() == 0 {
            log::info!("--pcap: no packet passed port {port} on core {index}: its file is empty");
        }
        tap.finish().map_err(|error| error.to_string())?;
    }
    clock.map(|()| end).map_err(|error| error.to_string())
}

/// The ports, the account of an agent, and the reason why emulated time ended.
type PollResult<P> = (Vec<P>, Option<ColocatedEnd>, Result<(), ClockError>);

/// Runs the poll loop, on the clock chosen at the start.
fn poll<P: Port<Buf = wedjat_dpdk::Mbuf>>(mut setup: CoreSetup, ports: Vec<P>) -> PollResult<P> {
    match setup.clock.take() {
        Some(clock) => poll_on(clock, setup, ports),
        None => {
            let counters = setup.stages.counters().clone();
            // Real devices come up one after another.
            setup.is_patient = true;
            let tsc = StallCounter::new(setup.eal.clone(), counters.clone());
            match setup.sleeper.take() {
                Some(sleeper) => poll_on(Adaptive::new(tsc, sleeper, counters), setup, ports),
                None => poll_on(tsc, setup, ports),
            }
        }
    }
}

/// Runs the poll loop. After a stop request it goes on until the ports are quiet, for the replies in flight.
fn poll_on<P: Port<Buf = wedjat_dpdk::Mbuf>>(
    mut clock: impl Clock,
    setup: CoreSetup,
    ports: Vec<P>,
) -> PollResult<P> {
    let CoreSetup { stages, pool, commands, tap, refusals, is_patient, stop, agent, mbufs, .. } =
        setup;
    let timing = Timing { ticks_hz: clock.ticks_hz() };
    let Some(parts) = agent else {
        let mut leaf = Leaf::new(stages, ports, pool, commands, timing);
        leaf = leaf.with_tap(tap).with_refusals(refusals).with_stopwatch(clock.stopwatch());
        if is_patient {
            leaf = leaf.with_patience();
        }
        while let Some(now) = clock.next(&stop) {
            if clock.has_slept() {
                leaf.catch_up(now);
            }
            leaf.poll(now);
            clock.polled(|| leaf.progress());
        }
        clock.drain(QUIET, DRAIN_MAX, |now| leaf.poll(now) > 0);
        return (leaf.close(), None, clock.ended());
    };
    // Leaf and agent are joined by a link in memory. Room for all buffers, so that it never loses a reply.
    let (near, far) = link::pair(mbufs);
    let ports = ports.into_iter().map(DeviceOrWire::Device).chain([DeviceOrWire::Link(near)]);
    let leaf = Leaf::new(stages, ports.collect(), pool, commands, timing);
    let leaf = leaf.with_tap(tap).with_refusals(refusals).with_stopwatch(clock.stopwatch());
    let mut both = Colocated::new(leaf, parts, far);
    let mut last = 0;
    while let Some(now) = clock.next(&stop) {
        if clock.has_slept() {
            both.catch_up(now);
        }
        both.poll(now);
        last = now;
        clock.polled(|| both.progress());
    }
    clock.drain(QUIET, super::agent::DRAIN_MAX, |now| {
        last = now;
        both.poll(now) > 0 || both.held() > 0
    });
    let attach_stats = both.agent().attach_stats().fold(AttachStats::default(), AttachStats::and);
    let end = (attach_stats, both.agent().registered());
    (both.close(last), Some(end), clock.ended())
}

/// Joins all cores. Returns the account of the agent, from the core that has one.
fn join_all(
    cores: Vec<(usize, CoreThread<Option<ColocatedEnd>>)>,
) -> Result<Option<ColocatedEnd>, LaunchError> {
    // All are joined, also after the first error.
    let results: Vec<_> = cores.into_iter().map(|(cpu, core)| join(cpu, core)).collect();
    let ends: Result<Vec<_>, _> = results.into_iter().collect();
    Ok(ends?.into_iter().flatten().next())
}
