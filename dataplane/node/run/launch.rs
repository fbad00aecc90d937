//! Launch of a node: the sequence from its configuration to its account, the same for a leaf, a spine and an agent. A
//! [`NodeRole`] supplies what differs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use wedjat_admin::{Requests, TapPoints};
use wedjat_core::clock::{ClockFile, Node};
use wedjat_core::cpus;
use wedjat_core::program::Program;
use wedjat_core::stage::{Side, UnknownWorker};
use wedjat_core::state::Table;
use wedjat_core::state::table::Role;
use wedjat_core::stats::{LeafStats, Manifest};
use wedjat_core::wire::ether::Mac;
use wedjat_desired::config::{NodeConfig, PollMode};
use wedjat_desired::control::{Cores, Membership};
use wedjat_dpdk::{
    Device, DeviceError, DeviceOptions, Eal, MbufPool, Outlet, QueuePort, RssFields,
};
use wedjat_fabric::NodeId;

use super::causes::Causes;
use super::poll::{AgentEnd, CoreParts, CoreSetup, CoreWatch};
use super::workers::{self, WorkerWatch};
use super::{ControlInterface, LaunchError, Links, Options, Watch};
use super::{all_port_stats, check_cpus, follow, join, ledger, log_link_event, port_stats, spawn};

/// Interval at which the watching thread checks signals and time.
const WATCH: Duration = Duration::from_millis(20);

/// EAL, packet buffers and clock of a node.
pub struct Machine {
    pub mbufs: MbufPool,
    pub clock: Option<ClockFile>,
    pub eal: Eal,
}

impl Machine {
    /// Returns the ticks per second of the nodes' clock.
    pub fn ticks_hz(&self) -> u64 {
        self.clock.as_ref().map_or(self.eal.ticks_hz(), |_| ClockFile::TICKS_HZ)
    }

    /// Returns a reader of the nodes' clock, in its ticks.
    pub fn ticks(&self) -> Box<dyn Fn() -> u64> {
        match self.clock.clone() {
            Some(clock) => Box::new(move || clock.now_ns()),
            None => {
                let eal = self.eal.clone();
                Box::new(move || eal.now())
            }
        }
    }

    /// Returns the manifest of a run, with the text of its configuration.
    fn manifest(&self, config: &str) -> Manifest {
        Manifest {
            revision: Program::current().revision.to_owned(),
            rustc: Program::current().rustc.to_owned(),
            dpdk: wedjat_dpdk::version().unwrap_or_default(),
            eal: self.eal.arguments().to_vec(),
            ticks_hz: self.ticks_hz(),
            config: config.to_owned(),
        }
    }
}

/// Role of a node: what a leaf and an agent do differently.
pub trait NodeRole: Sized {
    /// Cores as the control drives them.
    type Cores: Cores;
    /// Parts of one core.
    type Core: CoreParts;
    /// Account of a run.
    type Account;

    /// Returns the node's id at a controller.
    fn id(&self) -> NodeId;

    /// Returns the first membership.
    fn membership(&self) -> Membership;

    /// Returns the number of transmit queues of each device for worker threads.
    fn outlets(&self) -> usize {
        0
    }

    /// Creates the node's state, and shows it in telemetry. The devices are not open yet.
    fn create_state(&mut self, machine: &Machine) -> Result<Arc<Table>, LaunchError>;

    /// Builds cores and control around the open devices. `outlets` are the transmit queues of each for worker
    /// threads.
    fn assemble(
        &mut self,
        machine: &Machine,
        table: &Arc<Table>,
        devices: &[Device],
        outlets: Vec<Vec<Outlet>>,
    ) -> Result<Assembly<Self>, LaunchError>;

    /// Returns the account. `ledger` is that of the node's own cores. An agent, also one on a leaf's core, has an `end`
    /// once it has run; `of_agent` is the last membership of an agent on a leaf's core.
    fn account(
        self,
        ledger: LeafStats,
        end: Option<AgentEnd>,
        of_agent: Option<&Membership>,
    ) -> Self::Account;
}

/// Parts of a node whose devices are open.
pub struct Assembly<R: NodeRole> {
    /// Parts of each core.
    pub cores: Vec<R::Core>,
    pub requests: Requests<R::Cores>,
    /// Queue of workers that are unknown to this node, for the controller.
    pub newcomers: Option<Arc<ArrayQueue<UnknownWorker>>>,
    /// Workers that attach to this process.
    pub workers: Option<WorkerWatch>,
    /// Workers that are threads of this process.
    pub threads: Vec<JoinHandle<()>>,
}

/// Runs a node until `stop` is set or the duration is over. `report` gets a line per second. Returns the account.
///
/// `create` creates the role before EAL starts: a region that exists refuses a second agent before it opens devices.
/// Then come the mempool, the state and the devices, in this order, and a thread per core. The calling thread watches
/// these until all have ended.
pub fn launch<R: NodeRole>(
    config: &NodeConfig<'_>,
    options: &Options,
    create: impl FnOnce() -> Result<R, LaunchError>,
    stop: &Arc<AtomicBool>,
    report: impl FnMut(&str),
) -> Result<R::Account, LaunchError> {
    check_cpus(config.cores)?;
    let cpus = cpus::except(config.cores);
    config.warnings().iter().for_each(|warning| log::warn!("{warning}"));
    let clock = options.clock.as_deref().map(ClockFile::open).transpose()?;
    let mut role = create()?;
    let names: Vec<_> = config.ports.iter().map(|port| port.device.as_str()).collect();
    let eal = Eal::init_excluding(&options.eal, &names, config.cores)?;
    let mbufs = MbufPool::new(&eal, "wedjat", config.mbufs)?;
    let machine = Machine { mbufs, clock, eal };
    let table = role.create_state(&machine)?;
    let ledger = |membership: &Membership, seconds| {
        let manifest = machine.manifest(config.text);
        ledger(config.role, &table, config.cores, membership, (seconds, manifest))
    };
    let opened = open_devices(config, role.outlets(), &machine, (options.patience, stop));
    if let Err(DeviceError::Stopped { name }) = &opened {
        log::info!("stopped while {name} waited for its peer");
        let ledger = ledger(&role.membership(), 0.0);
        return Ok(role.account(ledger, None, None));
    }
    let Devices { devices, mut queues, outlets } = opened?;
    // Read before the cores start, so that they do not send to a port without a link.
    let mut links = Links::of(&devices);
    let assembly = role.assemble(&machine, &table, &devices, outlets)?;
    let Assembly { cores, requests, newcomers, mut workers, threads } = assembly;

    let watches: Vec<_> = cores.iter().map(|_| CoreWatch::default()).collect();
    let mut requests = requests.with_taps(TapPoints {
        cores: watches.iter().map(|watch| watch.tap.clone()).collect(),
        ports: devices.iter().map(|device| device.name().to_owned()).collect(),
        clock: machine.ticks(),
        ticks_hz: machine.ticks_hz(),
        cpus: cpus.clone(),
    });
    let sockets = (config.control, config.state);
    let interface = ControlInterface::open(&requests, options, sockets, &cpus)?;
    let (controller, id) = (config.controller, role.id());
    let _following = follow(controller, id, &interface.handle, newcomers, &cpus)?;
    let counters: Vec<_> = (0..cores.len()).map(|core| table.counters(core)).collect();
    let refusals = watches.iter().map(|watch| watch.refusals.clone()).collect();
    let mut causes = Causes::of(refusals, counters.clone());
    let started = Instant::now();
    let thread = if config.role == Role::Agent { "agent" } else { "dispatch" };
    let mut running = Vec::new();
    let cores = config.cores.iter().zip(cores).zip(watches).enumerate();
    for (index, ((&cpu, parts), watch)) in cores {
        let node = Node { role: config.role, id: config.id, core: index as u16 };
        let clock = machine.clock.as_ref().map(|clock| clock.join(node)).transpose()?;
        let always_polls = clock.is_none() && config.poll == PollMode::Busy;
        let setup = CoreSetup {
            eal: machine.eal.clone(),
            parts,
            ports: queues.iter_mut().map(|ports| ports.remove(0)).collect(),
            watch,
            counters: counters[index].clone(),
            polling: config.poll,
            clock,
            stop: Arc::clone(stop),
            pcap: options.pcap.clone().map(|path| (path, index)),
        };
        let core = spawn(thread, (cpu, always_polls), machine.eal.clone(), move || setup.run())?;
        running.push(core);
    }
    let neighbours = table.neighbours();
    // The cores need each event, because a host may be gone after the link was down.
    let on_event = |port, device: &Device, is_up| {
        log_link_event(port, device, is_up);
        neighbours.set_link(port, is_up);
    };
    // With local workers more often, because a check also finds dead ones.
    let interval = if workers.is_some() { workers::WATCH } else { WATCH };
    let check = |time| {
        links.check(&devices, on_event);
        interface.check_reload();
        causes.update(&devices, requests.control().membership());
        requests.serve_for(time, &|| all_port_stats(&devices));
        workers.iter_mut().for_each(WorkerWatch::check);
    };
    let watch = Watch {
        duration: options.duration,
        stop,
        counters: &counters,
        cpus: if machine.clock.is_none() { config.cores } else { &[] },
        ticks_hz: machine.ticks_hz(),
        interval,
        started,
    };
    watch.until_ended(&running, check, report);
    // All are joined, also after the first error.
    let ends: Vec<_> =
        config.cores.iter().zip(running).map(|(&cpu, core)| join(cpu, core)).collect();
    let ends = ends.into_iter().collect::<Result<Vec<_>, _>>()?;
    workers::join_threads(threads);

    let mut ledger = ledger(requests.control().membership(), started.elapsed().as_secs_f64());
    ledger.ports = devices.iter().map(port_stats).collect();
    drop(devices); // returns the buffers in receive queues
    ledger.mbufs_leaked = machine.mbufs.in_use();
    let end = ends.into_iter().flatten().next();
    Ok(role.account(ledger, end, requests.control().of_agent()))
}

/// Open devices, with the queues of each.
struct Devices {
    devices: Vec<Device>,
    /// Queue pairs of the dispatcher cores.
    queues: Vec<Vec<QueuePort>>,
    /// Transmit queues for worker threads.
    outlets: Vec<Vec<Outlet>>,
}

/// Opens the devices, each with a queue pair per core and up to `outlets` transmit queues for worker threads.
fn open_devices(
    config: &NodeConfig<'_>,
    outlets: usize,
    machine: &Machine,
    (patience, stop): (Option<Duration>, &Arc<AtomicBool>),
) -> Result<Devices, DeviceError> {
    let mut opened = Devices { devices: Vec::new(), queues: Vec::new(), outlets: Vec::new() };
    for port in config.ports {
        let options = DeviceOptions {
            queues: config.cores.len() as u16,
            rss: match port.side {
                Side::Clients => RssFields::Source,
                Side::Workers => RssFields::Destination,
                Side::Both => RssFields::FourTuple,
            },
            outlets: outlets as u16,
            rx_slots: port.queue_slots,
            tx_slots: port.queue_slots,
            // Needed to receive packets to a configured MAC address that differs from the device's own.
            promiscuous: port.mac.is_some(),
            multicast: port.ip.is_ipv6(),
            trust_checksums: port.trust_checksums,
            vlan: port.vlan,
            interrupts: config.poll == PollMode::Adaptive,
            stop: Arc::clone(stop),
            ..DeviceOptions::patient(patience)
        };
        let (device, ports, outlets) =
            Device::open_with_outlets(&machine.eal, &port.device, &machine.mbufs, &options)?;
        log::info!("{} ({}) is {}", device.name(), device.driver(), Mac(device.mac()));
        if let Some(fields) = device.rss().filter(|_| options.queues > 1) {
            log::info!("{} spreads packets over the cores by {fields}", device.name());
        }
        opened.devices.push(device);
        opened.queues.push(ports);
        opened.outlets.push(outlets);
    }
    Ok(opened)
}
