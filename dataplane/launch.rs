//! Brings a configured leaf up on DPDK ports, runs it, and ends it in order: one thread per dispatcher core,
//! the calling thread watches and reports.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_queue::ArrayQueue;

mod local;

use crate::assembly;
use crate::clock::{Clock, ClockError, ClockFile, Emulated, Kind, Node};
use crate::config::Config;
use crate::io::Port;
use crate::io::dpdk::{
    self, Device, DeviceError, DeviceOptions, Eal, EalError, MbufPool, PoolError,
};
use crate::io::dpdk::{PoolHandle, QueuePort};
use crate::io::link::{self, Either};
use crate::io::pcap::{CaptureError, Tap};
use crate::policy::stream_seed;
use crate::role::agent::Comings;
use crate::role::{Command, Host, Leaf, leaf::Timing};
use crate::serve;
use crate::stage::network::NetworkError;
use crate::stage::{Network, Stages};
use crate::state::{Counters, StateError, Table};
use crate::stats::{self, LeafStats, Manifest, PortStats, Totals};
use crate::wire::ether::Mac;
use local::{AgentParts, Ended, LocalAgent};

/// Commands that may wait for a core.
const COMMANDS: usize = 1024;
/// A stopping core ends when no packet came for so long.
const QUIET: Duration = Duration::from_millis(20);
/// A stopping core ends at the latest after so long.
const DRAIN_MAX: Duration = Duration::from_millis(500);
/// Between two looks of the watching thread at signals and time.
const WATCH: Duration = Duration::from_millis(20);

/// How to run, beyond the configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Stop by itself after so long.
    pub duration: Option<Duration>,
    /// EAL's arguments.
    pub eal: Vec<String>,
    /// Record all packets in files of this name (with port and core appended).
    pub pcap: Option<PathBuf>,
    /// Run on the emulated time of this clock file's conductor.
    pub clock: Option<PathBuf>,
}

/// Why a leaf does not start or did not run.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// EAL does not start.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// No mempool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// No device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No state.
    #[error(transparent)]
    State(#[from] StateError),
    /// No region for an agent's workers.
    #[error(transparent)]
    Region(#[from] crate::ring::RegionError),
    /// No network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// No capture.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// No emulated time.
    #[error(transparent)]
    Clock(#[from] ClockError),
    /// A core that is not there.
    #[error(
        "dispatcher core: this machine has no CPU {cpu} for this process; it may use {usable:?}"
    )]
    Cpu {
        /// The CPU asked for.
        cpu: usize,
        /// Those there are.
        usable: Vec<usize>,
    },
    /// A worker thread's CPU that is not there.
    #[error("worker thread: this machine has no CPU {cpu} for this process; it may use {usable:?}")]
    WorkerCpu {
        /// The CPU asked for.
        cpu: usize,
        /// Those there are.
        usable: Vec<usize>,
    },
    /// A worker thread does not start.
    #[error("worker {id}: the system starts no thread for it: {error}")]
    Worker {
        /// The worker.
        id: u16,
        /// What the system said.
        error: std::io::Error,
    },
    /// Too few transmit queues for workers that must send for themselves.
    #[error(
        "device {device:?} has {found} transmit queues to spare for {wanted} workers that must send their replies \
         themselves; give it more, use fewer workers, or set worker_sends = \"try\""
    )]
    Outlets {
        /// The device.
        device: String,
        /// Queues there are besides the dispatcher's.
        found: usize,
        /// Workers.
        wanted: usize,
    },
    /// A dispatcher thread ended early.
    #[error("the dispatcher on CPU {cpu} failed: {reason}")]
    Core {
        /// Its CPU.
        cpu: usize,
        /// Why.
        reason: String,
    },
}

/// Runs the leaf until `stop` is set or the duration is over; `report` gets a line a second.
///
/// # Errors
/// When it can't start, or a core failed.
pub fn run(
    config: &Config,
    options: &Options,
    stop: &Arc<AtomicBool>,
    mut report: impl FnMut(&str),
) -> Result<LeafStats, LaunchError> {
    check_cpus(&config.leaf.cores)?;
    config.warnings().iter().for_each(|warning| log::warn!("{warning}"));
    let clock = options.clock.as_deref().map(ClockFile::open).transpose()?;
    let region = local::region(config)?;
    let names: Vec<_> = config.ports.iter().map(|port| port.device.as_str()).collect();
    let eal = Eal::init_beside(&options.eal, &names, &config.leaf.cores)?;
    let mbufs = MbufPool::new(&eal, "wedjat", config.leaf.mbufs)?;
    let seed = assembly::seed(config);
    let hz = ticks_hz(clock.as_ref(), &eal);
    let table = assembly::table(config, hz, seed)?;
    let agent = config.agent.as_ref().zip(region);
    let agent = agent.map(|(host, region)| LocalAgent::new(config, host, region, hz, seed));
    let agent = agent.transpose()?;
    let opened = open_devices(config, &eal, &mbufs, stop);
    if let Err(DeviceError::Stopped { name }) = &opened {
        log::info!("told to stop while {name} waited for its peer");
        return not_started(config, &eal, hz, &table, seed);
    }
    let (devices, mut queues) = opened?;
    let macs = config.ports.iter().zip(&devices);
    let macs = macs.map(|(port, device)| port.mac.unwrap_or(Mac(device.mac())));
    let network = Arc::new(assembly::network(config, macs, &table)?);
    log::info!(
        "leaf {} runs on {} cores with seed {seed}",
        config.leaf.id,
        config.leaf.cores.len()
    );

    let counters: Vec<_> = (0..config.leaf.cores.len()).map(|core| table.counters(core)).collect();
    let mut cores = Vec::new();
    let started = Instant::now();
    for (index, &cpu) in config.leaf.cores.iter().enumerate() {
        let ports: Vec<QueuePort> = queues.iter_mut().map(|ports| ports.remove(0)).collect();
        let stages = assembly::stages(config, hz, &network, &table, seed, index);
        let node = Node { kind: Kind::Leaf, id: config.leaf.id, core: index as u16 };
        let setup = CoreSetup {
            eal: eal.clone(),
            cpu,
            stages,
            ports,
            pool: mbufs.handle(),
            commands: Arc::new(ArrayQueue::new(COMMANDS)),
            stop: Arc::clone(stop),
            pcap: options.pcap.clone().map(|path| (path, index)),
            agent: agent.as_ref().map(|agent| agent.parts(hz, &mbufs, config.leaf.udp_port)),
            clock: clock.as_ref().map(|clock| clock.join(node)).transpose()?,
            mbufs: config.leaf.mbufs as usize,
        };
        cores.push((cpu, spawn(setup)?));
    }
    drop(queues);
    let watch = Watch { agent: agent.as_ref(), duration: options.duration, started };
    let mut links = Links::of(&devices);
    let neighbours = table.neighbours();
    for (port, device) in devices.iter().enumerate().filter(|(_, device)| !device.link().up) {
        log::info!("port {port}, {}: no link yet", device.name());
        neighbours.set_link(port, false);
    }
    // Who was there is not known to be there afterwards.
    let changed = |port, device: &Device, is_up| {
        link_changed(port, device, is_up);
        neighbours.set_link(port, is_up);
    };
    let mut look = || links.look(&devices, changed);
    watch.until_ended(stop, &counters, &cores, &mut look, &mut report);
    stop.store(true, Release);
    watch.drain(&cores);
    let ended = join(cores)?;
    let seconds = started.elapsed().as_secs_f64();

    let ports = devices.iter().map(port_stats).collect();
    let manifest = manifest(config, &eal, hz);
    drop(devices); // returns the buffers that receive queues hold
    let mut account = LeafStats::of(&Totals::read(&counters), seconds, manifest);
    account.ports = ports;
    account.mbufs_leaked = mbufs.in_use();
    describe(&mut account, config, &network, seed);
    let agent = agent.as_ref().zip(ended);
    account.agent =
        agent.map(|(agent, ended)| Box::new(agent.account(ended, seconds, config, &eal, hz)));
    Ok(account)
}

/// Ticks a second of the clock that nodes run on.
pub(crate) fn ticks_hz(clock: Option<&ClockFile>, eal: &Eal) -> u64 {
    clock.map_or(eal.ticks_hz(), |_| ClockFile::TICKS_HZ)
}

/// The account of a leaf that was told to stop before its devices had started.
fn not_started(
    config: &Config,
    eal: &Eal,
    hz: u64,
    table: &Table,
    seed: u64,
) -> Result<LeafStats, LaunchError> {
    let macs = config.ports.iter().map(|port| port.mac.unwrap_or(Mac([0; 6])));
    let network = assembly::network(config, macs, table)?;
    let mut account = LeafStats::of(&Totals::default(), 0.0, manifest(config, eal, hz));
    describe(&mut account, config, &network, seed);
    Ok(account)
}

/// A device's link has come up or gone down, or a memif peer has left, of which a peer that came at once may hide the rest:
/// then both are told of, first that it is down. That may be told twice of one peer: its link is down a moment before the
/// peer counts as gone. Called by the watching thread.
pub(crate) fn link_changed(port: usize, device: &Device, is_up: bool) {
    log::info!("port {port}, {}: link {}", device.name(), if is_up { "up" } else { "down" });
}

/// What the watching thread has seen of the devices' links.
pub(crate) struct Links(Vec<LinkSeen>);

/// At the last look.
struct LinkSeen {
    is_up: bool,
    /// Memif peers that had left.
    disconnects: u64,
}

impl LinkSeen {
    /// The disconnects first: what comes after them the next look sees.
    fn of(device: &Device) -> Self {
        let disconnects = device.disconnects();
        Self { is_up: device.link().up, disconnects }
    }

    /// What has happened since then, in order: true for a link that came up.
    fn until(&self, now: &Self) -> impl Iterator<Item = bool> + use<> {
        let went_down = now.disconnects != self.disconnects || (self.is_up && !now.is_up);
        let came_up = now.is_up && (went_down || !self.is_up);
        went_down.then_some(false).into_iter().chain(came_up.then_some(true))
    }
}

impl Links {
    pub(crate) fn of(devices: &[Device]) -> Self {
        Self(devices.iter().map(LinkSeen::of).collect())
    }

    /// Calls `changed` for each link that has changed since the last look, with its port and whether it is up.
    pub(crate) fn look(&mut self, devices: &[Device], changed: impl Fn(usize, &Device, bool)) {
        for (port, (seen, device)) in self.0.iter_mut().zip(devices).enumerate() {
            let now = LinkSeen::of(device);
            seen.until(&now).for_each(|is_up| changed(port, device, is_up));
            *seen = now;
        }
    }
}

pub(crate) fn check_cpus(cores: &[usize]) -> Result<(), LaunchError> {
    let usable: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    match cores.iter().find(|cpu| !usable.contains(cpu)) {
        Some(&cpu) => Err(LaunchError::Cpu { cpu, usable }),
        None => Ok(()),
    }
}

type Devices = (Vec<Device>, Vec<Vec<QueuePort>>);

fn open_devices(
    config: &Config,
    eal: &Eal,
    mbufs: &MbufPool,
    stop: &Arc<AtomicBool>,
) -> Result<Devices, DeviceError> {
    let mut devices = Vec::new();
    let mut queues = Vec::new();
    for port in &config.ports {
        let options = DeviceOptions {
            queues: config.leaf.cores.len() as u16,
            rx_slots: port.queue_slots,
            tx_slots: port.queue_slots,
            // A device that has another MAC address than we use must pass ours.
            promiscuous: port.mac.is_some(),
            stop: Arc::clone(stop),
            ..DeviceOptions::default()
        };
        let (device, ports) = Device::open(eal, &port.device, mbufs, &options)?;
        log::info!("{} ({}) is {}", device.name(), device.driver(), Mac(device.mac()));
        devices.push(device);
        queues.push(ports);
    }
    Ok((devices, queues))
}

/// What a dispatcher thread takes with it.
struct CoreSetup {
    eal: Eal,
    cpu: usize,
    stages: Stages,
    ports: Vec<QueuePort>,
    pool: PoolHandle,
    commands: Arc<ArrayQueue<Command>>,
    stop: Arc<AtomicBool>,
    pcap: Option<(PathBuf, usize)>,
    /// On the same core.
    agent: Option<AgentParts>,
    /// Emulated time instead of the counter's.
    clock: Option<Emulated>,
    /// Packet buffers in all.
    mbufs: usize,
}

type CoreThread = JoinHandle<Result<Option<Ended>, String>>;

fn spawn(setup: CoreSetup) -> Result<CoreThread, LaunchError> {
    let cpu = setup.cpu;
    std::thread::Builder::new()
        .name(format!("dispatch-{cpu}"))
        .spawn(move || dispatch(setup))
        .map_err(|error| LaunchError::Core { cpu, reason: error.to_string() })
}

fn dispatch(mut setup: CoreSetup) -> Result<Option<Ended>, String> {
    if !core_affinity::set_for_current(core_affinity::CoreId { id: setup.cpu }) {
        return Err("the system refused to pin its thread there".to_owned());
    }
    let _lcore = setup.eal.register_thread().map_err(|error| error.to_string())?;
    let ports = std::mem::take(&mut setup.ports);
    let Some((path, index)) = setup.pcap.take() else {
        let (_, ended, clock) = poll(setup, ports);
        return clock.map(|()| ended).map_err(|error| error.to_string());
    };
    let tapped = ports.into_iter().enumerate().map(|(port, queue)| {
        let mut name = path.clone().into_os_string();
        name.push(format!(".port{port}.core{index}.pcap"));
        let since_epoch = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Tap::new(queue, &PathBuf::from(name), since_epoch).map_err(|error| error.to_string())
    });
    let (tapped, ended, clock) = poll(setup, tapped.collect::<Result<Vec<_>, _>>()?);
    for tap in tapped {
        tap.finish().map_err(|error| error.to_string())?;
    }
    clock.map(|()| ended).map_err(|error| error.to_string())
}

/// The ports, the account of an agent, and why there was no more time.
type Polled<P> = (Vec<P>, Option<Ended>, Result<(), ClockError>);

/// The loop, on the clock that was chosen at the start.
fn poll<P: Port<Buf = dpdk::Mbuf>>(mut setup: CoreSetup, ports: Vec<P>) -> Polled<P> {
    match setup.clock.take() {
        Some(clock) => poll_on(clock, setup, ports),
        None => {
            let counters = setup.stages.counters().clone();
            poll_on(crate::clock::Watched::new(setup.eal.clone(), counters), setup, ports)
        }
    }
}

/// Once stopped it goes on until the ports fall quiet, so that replies under way get through.
fn poll_on<P: Port<Buf = dpdk::Mbuf>>(
    mut clock: impl Clock,
    setup: CoreSetup,
    ports: Vec<P>,
) -> Polled<P> {
    let CoreSetup { stages, pool, commands, stop, agent, mbufs, .. } = setup;
    let timing = Timing { ticks_hz: clock.ticks_hz() };
    let Some(parts) = agent else {
        let mut leaf = Leaf::new(stages, ports, pool, commands, timing);
        while let Some(now) = clock.next(&stop) {
            leaf.poll(now);
            clock.polled(|| leaf.progress());
        }
        clock.drain(QUIET, DRAIN_MAX, |now| leaf.poll(now) > 0);
        return (leaf.close(), None, clock.ended());
    };
    // Room for all buffers there are: the wire never loses a reply.
    let (near, far) = link::pair(mbufs);
    let ports = ports.into_iter().map(Either::Device).chain([Either::Link(near)]);
    let leaf = Leaf::new(stages, ports.collect(), pool, commands, timing);
    let places = parts.places.clone();
    let mut host = Host::new(leaf, local::agent(parts, far), &places);
    let mut last = 0;
    while let Some(now) = clock.next(&stop) {
        host.poll(now);
        last = now;
        clock.polled(|| host.progress());
    }
    clock.drain(QUIET, serve::DRAIN_MAX, |now| {
        last = now;
        host.poll(now) > 0 || host.held() > 0
    });
    let comings = host.agent().comings().fold(Comings::default(), Comings::and);
    let ended = (comings, host.agent().registered());
    (host.close(last), Some(ended), clock.ended())
}

/// The calling thread's part.
struct Watch<'a> {
    agent: Option<&'a LocalAgent<'a>>,
    duration: Option<Duration>,
    started: Instant,
}

impl Watch<'_> {
    fn until_ended(
        &self,
        stop: &AtomicBool,
        counters: &[Counters],
        cores: &[(usize, CoreThread)],
        look: &mut impl FnMut(),
        report: &mut impl FnMut(&str),
    ) {
        let started = self.started;
        let (mut before, mut reported) = (Totals::default(), started);
        while !stop.load(Acquire) && !cores.iter().any(|(_, core)| core.is_finished()) {
            let left = self.duration.map_or(WATCH, |all| all.saturating_sub(started.elapsed()));
            if left.is_zero() {
                return;
            }
            self.pause(left);
            look();
            let interval = reported.elapsed().as_secs_f64();
            if interval >= 1.0 {
                let now = Totals::read(counters);
                report(&stats::line(started.elapsed().as_secs_f64(), &before, &now, interval));
                before = now;
                reported = Instant::now();
            }
        }
    }

    /// Workers may die while a stopping core waits for them.
    fn drain(&self, cores: &[(usize, CoreThread)]) {
        while self.agent.is_some() && !cores.iter().all(|(_, core)| core.is_finished()) {
            self.pause(WATCH);
        }
    }

    fn pause(&self, longest: Duration) {
        match self.agent {
            Some(agent) => {
                agent.look();
                std::thread::sleep(longest.min(serve::WATCH));
            }
            None => std::thread::sleep(longest.min(WATCH)),
        }
    }
}

/// The account of the agent on the core that has one.
fn join(cores: Vec<(usize, CoreThread)>) -> Result<Option<Ended>, LaunchError> {
    let mut outcome = Ok(None);
    for (cpu, core) in cores {
        let ended = core.join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("a defect: {}", text.unwrap_or("panicked")))
        });
        match (ended, &mut outcome) {
            (Ok(ended), Ok(account)) => *account = account.or(ended),
            (Err(reason), _) => outcome = Err(LaunchError::Core { cpu, reason }),
            (Ok(_), Err(_)) => {}
        }
    }
    outcome
}

pub(crate) fn port_stats(device: &Device) -> PortStats {
    let counted = device.stats();
    PortStats {
        device: device.name().to_owned(),
        driver: device.driver().to_owned(),
        rx_missed: counted.rx_missed,
        rx_no_mbuf: counted.rx_no_mbuf,
        rx_errors: counted.rx_errors,
        tx_errors: counted.tx_errors,
        peers_refused: counted.peers_refused,
        peers_left: device.disconnects(),
    }
}

fn manifest(config: &Config, eal: &Eal, ticks_hz: u64) -> Manifest {
    Manifest {
        revision: crate::REVISION.to_owned(),
        rustc: crate::RUSTC.to_owned(),
        dpdk: dpdk::version(),
        eal: eal.arguments().to_vec(),
        ticks_hz,
        config: config.text.clone(),
    }
}

fn describe(account: &mut LeafStats, config: &Config, network: &Network, seed: u64) {
    account.policies = config.pools.iter().map(|pool| (pool.id, pool.policy.to_string())).collect();
    let mut names: Vec<_> = account.policies.values().cloned().collect();
    names.dedup();
    account.policy = names.join(", ");
    account.workers = (0..network.pools()).map(|pool| network.members(pool).len()).sum();
    account.cores = config.leaf.cores.clone();
    account.seeds = BTreeMap::from([("leaf".to_owned(), seed)]);
    for core in 0..config.leaf.cores.len() {
        for (pool, entry) in config.pools.iter().enumerate() {
            let name = format!("core{core}.pool{}", entry.id);
            account.seeds.insert(name, stream_seed(seed, core, pool));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_left_is_noticed_whether_or_not_another_came() {
        let seen = |is_up, disconnects| LinkSeen { is_up, disconnects };
        let between = |before: LinkSeen, now| before.until(&now).collect::<Vec<_>>();
        assert_eq!(between(seen(true, 3), seen(true, 3)), []);
        assert_eq!(between(seen(false, 3), seen(false, 3)), []);
        assert_eq!(between(seen(false, 0), seen(true, 0)), [true]);
        assert_eq!(between(seen(true, 0), seen(false, 0)), [false], "a cable");
        assert_eq!(between(seen(true, 0), seen(false, 1)), [false], "a peer");
        assert_eq!(between(seen(true, 1), seen(true, 3)), [false, true], "back at once");
        assert_eq!(between(seen(false, 1), seen(false, 2)), [false], "came and left");
    }
}
