//! Launch of a node: the sequence from its configuration to its account, the same for a leaf, a spine and an agent. The
//! steps are [`Runtime::start`], [`Runtime::open_devices`] and [`Runtime::run`]. The role creates its region in the
//! first step and its table after it, and builds [`NodeParts`] before the last one.
//!
//! A region is the memory shared by an agent and its workers. The table is the node's published state, which other
//! processes can read. The account is the report of a process at its end. The membership is the set of pools, servers
//! and workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Release;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use wedjat_admin::{Requests, TapPoints};
use wedjat_core::clock::{ClockFile, Node};
use wedjat_core::cpus;
use wedjat_core::policy::stream_seed;
use wedjat_core::program::Program;
use wedjat_core::stage::{Side, UnknownWorker};
use wedjat_core::state::table::Role;
use wedjat_core::state::{Table, Totals};
use wedjat_core::stats::{LeafStats, Manifest};
use wedjat_core::wire::ether::Mac;
use wedjat_desired::config::{NodeConfig, PollMode};
use wedjat_desired::control::{Cores, Membership, Pool};
use wedjat_dpdk::{
    Device, DeviceError, DeviceOptions, Eal, MbufPool, Outlet, QueuePort, RssFields, Spread,
    SteeredSide, Steering,
};
use wedjat_fabric::NodeId;

use super::causes::Causes;
use super::poll::{AgentEnd, CoreParts, CoreSetup, CoreWatch};
use super::workers::{self, WorkerWatch};
use super::{ControlInterface, LaunchError, Links, Options, Watch};
use super::{all_port_stats, check_cpus, choose_policies, follow, join};
use super::{log_link_event, port_stats, spawn};
use super::{log_silent_interrupts, tend_devices};

/// Longest time between two checks of the watching thread, on a node without local workers.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// EAL, packet buffers and clock of a node, and the options of its run.
pub struct Runtime<'a> {
    /// Mempool of all packets.
    pub mbufs: MbufPool,
    /// Emulated time; `None` for the time-stamp counter.
    pub clock: Option<ClockFile>,
    /// DPDK's environment, initialised.
    pub eal: Eal,
    config: NodeConfig<'a>,
    options: &'a Options,
    /// Set to stop the node.
    stop: &'a Arc<AtomicBool>,
    /// CPUs of the threads that poll no ports.
    cpus: Vec<usize>,
}

/// Open devices, with the queues of each. All lists have the order of the configured ports.
pub struct Devices {
    /// Devices of the ports.
    pub devices: Vec<Device>,
    /// Queue pairs of each device, one per dispatcher core.
    queues: Vec<Vec<QueuePort>>,
    /// Transmit queues of each device for worker threads.
    pub outlets: Vec<Vec<Outlet>>,
    /// States of the links before the cores start. The node marks ports without a link, so that the cores do not send
    /// there.
    pub(super) links: Links,
}

/// Parts of a node whose devices are open.
pub struct NodeParts<C, K: Cores> {
    /// Id of the node at a controller.
    pub id: NodeId,
    /// Parts of each core.
    pub cores: Vec<C>,
    /// Queue of the control interface's requests, with the control that applies them to the cores.
    pub requests: Requests<K>,
    /// Queue of workers that are unknown to this node, for the controller.
    pub newcomers: Option<Arc<ArrayQueue<UnknownWorker>>>,
    /// Workers that attach to this process.
    pub workers: Option<WorkerWatch>,
    /// Workers that are threads of this process.
    pub threads: Vec<JoinHandle<()>>,
}

impl<'a> Runtime<'a> {
    /// Starts EAL for this node, and creates its mempool. Before EAL, `create_region` creates the region of local
    /// workers, if the node has any, and this function returns it. It fails for a second agent with the same region,
    /// which then opens no device.
    ///
    /// # Errors
    /// If a CPU, the clock file, the region, EAL or the mempool is not available.
    pub fn start<R>(
        config: NodeConfig<'a>,
        options: &'a Options,
        stop: &'a Arc<AtomicBool>,
        create_region: impl FnOnce() -> Result<R, LaunchError>,
    ) -> Result<(Self, R), LaunchError> {
        check_cpus(config.cores)?;
        let cpus = cpus::except(config.cores);
        config.warnings().iter().for_each(|warning| log::warn!("{warning}"));
        let clock = options.clock.as_deref().map(ClockFile::open).transpose()?;
        let region = create_region()?;
        let names: Vec<_> = config.ports.iter().map(|port| port.device.as_str()).collect();
        let eal = Eal::init_excluding(&options.eal, &names, config.cores)?;
        let mbufs = MbufPool::new(&eal, "wedjat", config.mbufs)?;
        Ok((Self { mbufs, clock, eal, config, options, stop, cpus }, region))
    }

    /// Returns the ticks per second of the node's clock.
    pub fn ticks_hz(&self) -> u64 {
        self.clock.as_ref().map_or(self.eal.ticks_hz(), |_| ClockFile::TICKS_HZ)
    }

    /// Returns a function that reads the node's clock in ticks, for code outside the poll loops.
    pub fn ticks(&self) -> Box<dyn Fn() -> u64> {
        match self.clock.clone() {
            Some(clock) => Box::new(move || clock.now_ns()),
            None => {
                let eal = self.eal.clone();
                Box::new(move || eal.now())
            }
        }
    }

    /// Returns the account of a role's cores over `seconds`, with the seeds, and the workers and policies of
    /// `membership`. In the seeds, the role's name is the key of the node's own seed. Each pool's policy has a random
    /// stream of its own on each core, whose seed derives from the node's.
    pub fn account(
        &self,
        (role, cores): (Role, &[usize]),
        table: &Table,
        membership: &Membership,
        seconds: f64,
    ) -> LeafStats {
        let manifest = Manifest {
            revision: Program::current().revision.to_owned(),
            rustc: Program::current().rustc.to_owned(),
            dpdk: wedjat_dpdk::version().unwrap_or_default(),
            eal: self.eal.arguments().to_vec(),
            ticks_hz: self.ticks_hz(),
            config: self.config.text.to_owned(),
        };
        let counters: Vec<_> = (0..cores.len()).map(|core| table.counters(core)).collect();
        let mut account = LeafStats::of(Totals::read(&counters), seconds, manifest);
        account.cores = cores.to_vec();
        account.seeds = [(role.name().to_owned(), table.seed())].into();
        let mut names = Vec::new();
        for (index, pool) in membership.pools.iter().enumerate() {
            let Some(Pool { id, settings, .. }) = pool else { continue }; // a removed pool leaves its place empty
            for core in 0..cores.len() {
                let seed = stream_seed(table.seed(), core, index);
                account.seeds.insert(format!("core{core}.pool{id}"), seed);
            }
            let policy = settings.policy.to_string();
            if !names.contains(&policy) {
                names.push(policy);
            }
            account.policies.insert(*id, settings.policy.to_string());
        }
        account.policy = names.join(", ");
        account.workers = membership.workers().count();
        account
    }

    /// Opens the devices, each with a queue pair per core and up to `outlets` transmit queues for worker threads.
    /// `steered` holds the UDP port of tasks and the seed of a node whose replies must reach the core of their task;
    /// `None` for other nodes. Returns `None` if the node was stopped while a device waited for its peer.
    ///
    /// # Errors
    /// If a device cannot be opened.
    pub fn open_devices(
        &self,
        outlets: usize,
        steered: Option<(u16, u64)>,
    ) -> Result<Option<Devices>, LaunchError> {
        let (mut devices, mut queues, mut all_outlets) = (Vec::new(), Vec::new(), Vec::new());
        for port in self.config.ports {
            let options = DeviceOptions {
                queues: self.config.cores.len() as u16,
                // The side is the kind of hosts behind the port. The client of a packet selects its core: the source of
                // a task, the destination of a reply.
                rss: match port.side {
                    Side::Clients => RssFields::Source,
                    Side::Workers => RssFields::Destination,
                    Side::Both => RssFields::FourTuple,
                },
                // A port with both kinds of hosts has no steering.
                steering: match port.side {
                    Side::Clients => Some(SteeredSide::Clients),
                    Side::Workers => Some(SteeredSide::Workers),
                    Side::Both => None,
                }
                .zip(steered)
                .map(|(side, (task_port, seed))| Steering {
                    side,
                    leaf: port.ip,
                    task_port,
                    seed,
                }),
                outlets: outlets as u16,
                rx_slots: port.queue_slots,
                tx_slots: port.queue_slots,
                // A configured MAC address may differ from the device's, which then filters packets to it.
                promiscuous: port.mac.is_some(),
                multicast: port.ip.is_ipv6(),
                trust_checksums: port.trust_checksums,
                vlan: port.vlan,
                interrupts: self.config.poll == PollMode::Adaptive,
                stop: Arc::clone(self.stop),
                ..DeviceOptions::with_peer_timeout(self.options.peer_timeout)
            };
            let opened = Device::open_with_outlets(&self.eal, &port.device, &self.mbufs, &options);
            if let Err(DeviceError::Stopped { name }) = &opened {
                log::info!("stopped while {name} waited for its peer");
                return Ok(None);
            }
            let (device, ports, outlets) = opened?;
            log::info!("{} ({}) is {}", device.name(), device.driver(), Mac(device.mac()));
            // One core receives everything and needs no spreading. A device with a rule of its own has nothing to
            // report.
            match device.spread() {
                _ if options.queues == 1 => {}
                Spread::OwnRule => {}
                Spread::None => log::warn!(
                    "{} ({}) hashes no UDP, so one core receives all its packets and the others none: use one core, or \
                     another NIC",
                    device.name(),
                    device.driver()
                ),
                spread => {
                    log::info!("{} spreads packets over the cores by {spread}", device.name())
                }
            }
            devices.push(device);
            queues.push(ports);
            all_outlets.push(outlets);
        }
        // Replies follow their tasks only if all ports with one side are steered, or none.
        let one_sided = devices.iter().zip(self.config.ports);
        let one_sided = one_sided.filter(|(_, port)| port.side != Side::Both);
        let (with_key, without): (Vec<_>, Vec<_>) = one_sided
            .map(|(device, _)| device)
            .partition(|device| device.spread() == Spread::Steered);
        if let (Some(with_key), Some(without)) = (with_key.first(), without.first()) {
            log::warn!(
                "{} and {} spread packets by different rules, so replies may reach another core than their tasks: use \
                 NICs of one kind, or one core",
                with_key.name(),
                without.name()
            );
        }
        let links = Links::of(&devices);
        Ok(Some(Devices { devices, queues, outlets: all_outlets, links }))
    }

    /// Runs the cores until `stop` is set or the duration is over. The calling thread watches them until all have
    /// ended. `report` gets a line of statistics per second. Returns the account, the last statistics of the node's
    /// agent, if it has one, and the requests, whose control has the final membership.
    ///
    /// # Errors
    /// If the control interface, the follower, a clock or a thread cannot start, or a core failed. Sets `stop` if a
    /// core's thread cannot start, and waits for the earlier ones.
    pub fn run<C: CoreParts, K: Cores>(
        &self,
        table: &Table,
        devices: Devices,
        parts: NodeParts<C, K>,
        report: impl FnMut(&str),
    ) -> Result<(LeafStats, Option<AgentEnd>, Requests<K>), LaunchError> {
        let (config, cpus) = (&self.config, &self.cpus);
        let Devices { devices, mut queues, mut links, .. } = devices;
        let NodeParts { id, cores, requests, newcomers, mut workers, threads } = parts;
        let watches: Vec<_> = cores.iter().map(|_| CoreWatch::default()).collect();
        let mut requests = requests.with_taps(TapPoints {
            cores: watches.iter().map(|watch| watch.tap.clone()).collect(),
            ports: devices.iter().map(|device| device.name().to_owned()).collect(),
            clock: self.ticks(),
            ticks_hz: self.ticks_hz(),
            cpus: cpus.clone(),
        });
        let sockets = (config.control, config.state);
        let interface = ControlInterface::open(&requests, self.options, sockets, cpus)?;
        // Follows the controller until this function returns.
        let _following = follow(config.controller, id, &interface.handle, newcomers, cpus)?;
        let is_emulated = self.clock.is_some();
        let membership = requests.control().membership();
        let _chooser =
            choose_policies(config.role, is_emulated, membership, &interface.handle, cpus)?;
        let counters: Vec<_> = (0..cores.len()).map(|core| table.counters(core)).collect();
        let refusals = watches.iter().map(|watch| watch.refusals.clone()).collect();
        let mut causes = Causes::of(refusals, counters.clone());
        // In emulated time, each core joins the clock under its own name. Joins before the first core starts, so that a
        // refusal leaves no core behind.
        let join_clock = |index: usize| match &self.clock {
            Some(clock) => {
                let node = Node { role: config.role, id: config.id, core: index as u16 };
                clock.join(node).map(Some)
            }
            None => Ok(None),
        };
        let clocks = (0..cores.len()).map(join_clock).collect::<Result<Vec<_>, _>>()?;
        let started = Instant::now();
        let thread = if config.role == Role::Agent { "agent" } else { "dispatch" };
        let mut running = Vec::new();
        let cores = config.cores.iter().zip(cores).zip(watches).zip(clocks).enumerate();
        for (index, (((&cpu, parts), watch), clock)) in cores {
            let always_polls = clock.is_none() && config.poll == PollMode::Busy;
            let setup = CoreSetup {
                eal: self.eal.clone(),
                parts,
                // The next queue pair of each device.
                ports: queues.iter_mut().map(|ports| ports.remove(0)).collect(),
                watch,
                counters: counters[index].clone(),
                polling: config.poll,
                clock,
                stop: Arc::clone(self.stop),
                pcap: self.options.pcap.clone().map(|path| (path, index)),
            };
            match spawn(thread, (cpu, always_polls), self.eal.clone(), move || setup.run()) {
                Ok(core) => running.push(core),
                Err(error) => {
                    // No core may poll the devices after the return.
                    self.stop.store(true, Release);
                    let earlier = config.cores.iter().zip(running);
                    earlier.for_each(|(&cpu, core)| _ = join(cpu, core));
                    return Err(error);
                }
            }
        }
        let neighbours = table.neighbours();
        // The cores need each event: after a link-down, hosts may be gone, so they must resolve them again.
        let on_event = |port, device: &Device, is_up| {
            log_link_event(port, device, is_up);
            neighbours.set_link(port, is_up);
        };
        // Checks more often with local workers, because a check also detects dead ones.
        let interval = if workers.is_some() { workers::WATCH_INTERVAL } else { WATCH_INTERVAL };
        let (mut failures, mut silent) = (BTreeMap::new(), BTreeSet::new());
        let check = |time| {
            tend_devices(&devices, &mut failures);
            log_silent_interrupts(&devices, &mut silent);
            links.check(&devices, on_event);
            interface.check_reload();
            causes.update(&devices, requests.control().membership());
            requests.serve_for(time, &|| all_port_stats(&devices));
            workers.iter_mut().for_each(WorkerWatch::check);
        };
        let watch = Watch {
            duration: self.options.duration,
            stop: self.stop,
            counters: &counters,
            cpus: if self.clock.is_none() { config.cores } else { &[] },
            ticks_hz: self.ticks_hz(),
            interval,
            started,
        };
        watch.until_ended(&running, check, report);
        // Joins all cores before the first error ends this function.
        let ends: Vec<_> =
            config.cores.iter().zip(running).map(|(&cpu, core)| join(cpu, core)).collect();
        let ends = ends.into_iter().collect::<Result<Vec<_>, _>>()?;
        workers::join_threads(threads);

        let seconds = started.elapsed().as_secs_f64();
        let (role_and_cores, membership) =
            ((config.role, config.cores), requests.control().membership());
        let mut account = self.account(role_and_cores, table, membership, seconds);
        account.ports = devices.iter().map(port_stats).collect();
        drop(devices); // returns the buffers in receive queues
        account.mbufs_leaked = self.mbufs.in_use();
        Ok((account, ends.into_iter().flatten().next(), requests))
    }
}
