//! Generator and workers in this process, with the leaf or agent between them in another process. The generator
//! uses a DPDK device. So do the workers, unless they attach to the agent as *stand-ins*: emulated workers that use an
//! agent's memory like real ones. The commands `demo` and `drive` use this module.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use wedjat::wire::ether::Mac;
use wedjat_pktgen::address::Addresses;
use wedjat_pktgen::engine::{Generator, Phase};
use wedjat_pktgen::latency::LatencySummary;
use wedjat_pktgen::load::Load;
use wedjat_pktgen::manifest::Manifest;
use wedjat_pktgen::nodes::{self, WatchedNode};
use wedjat_pktgen::process;
use wedjat_pktgen::report::Report;
use wedjat_pktgen::slices::Slices;
use wedjat_pktgen::target::Target;
use wedjat_testbed::drive;
use wedjat_testbed::rack::{self, Layout, Options, Outage, Outages, Rack};
use wedjat_testbed::stand_ins::StandIns;

use super::Failure;
use super::ports::{self, Device, Eal, Environment, PoolHandle, QueuePort};

/// Virtual loopback device for the measurement of the floor: the generator's response time without a
/// scheduler.
const FLOOR_DEVICE: &str = "net_ring_floor";
/// Duration of the floor measurement in seconds.
const FLOOR_S: f64 = 0.25;
/// Longest wait for the links to a separately started leaf or agent. Nodes of `lockstep` use it for their clock, too.
pub const TIMEOUT: Duration = Duration::from_secs(15);

/// Settings of a run: addresses, generator and workers.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// Address of the generator, and address of the leaf on the clients' side.
    pub addresses: Addresses,
    /// UDP port of tasks.
    pub udp_port: u16,
    /// Worker pool of all tasks.
    pub pool: u16,
    /// Layout of the rack's workers.
    pub layout: Layout,
    /// Other settings of the rack: UDP port, bounds of its queues, lost replies.
    pub options: Options,
    /// Outages of workers.
    pub outages: Vec<Outage>,
    /// Name of an agent. `layout.workers()` emulated workers attach to it, instead of a rack.
    pub agent: Option<String>,
    /// State file of the leaf or agent, to detect its pauses.
    pub state: Option<PathBuf>,
    /// CPU of generator and workers; `None` if the kernel decides.
    pub core: Option<usize>,
}

/// The open devices and EAL, shared by all runs of this process.
pub struct Rig {
    // Drop order: ports before their devices, devices before the buffer pool and EAL.
    /// Port of the generator; `None` while a run has it.
    client_port: Option<QueuePort>,
    /// Port of the workers; `None` while a run has it, or if the workers attach to an agent.
    worker_port: Option<QueuePort>,
    /// Response times of the loopback; `None` before the first run.
    floor: Option<LatencySummary>,
    /// Device on the clients' side.
    client: Device,
    /// Device on the workers' side; `None` if the workers attach to an agent.
    worker: Option<Device>,
    environment: Environment,
    /// Number of runs so far. The application ids of tasks depend on it, so that late answers of an earlier run do not
    /// count.
    runs: u32,
}

impl Rig {
    /// Opens the devices, with packet buffers for `outstanding_max` tasks in flight. `eal` has EAL's arguments, `core`
    /// the CPU of the runs. Without a device for workers, the workers must attach to an agent.
    pub fn open(
        eal: &[String],
        client: &str,
        worker: Option<&str>,
        outstanding_max: u32,
        core: Option<usize>,
    ) -> Result<Self, Failure> {
        let mut eal = eal.to_vec();
        eal.extend(["--vdev".to_owned(), FLOOR_DEVICE.to_owned()]);
        let devices: Vec<_> = [client].into_iter().chain(worker).collect();
        let environment = Environment::start(&eal, &devices, outstanding_max, core)?;
        let (client, client_port) = environment.open(client)?;
        let (worker, worker_port) = match worker {
            Some(name) => {
                environment.open(name).map(|(device, port)| (Some(device), Some(port)))?
            }
            None => (None, None),
        };
        Ok(Self {
            client_port: Some(client_port),
            worker_port,
            floor: None,
            client,
            worker,
            environment,
            runs: 0,
        })
    }

    /// Waits until all devices have a link. Fails after `timeout`. Fails earlier if `check_peer` returns an error or
    /// `stop` is set.
    pub fn wait_for_peer(
        &self,
        timeout: Duration,
        stop: &AtomicBool,
        mut check_peer: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let start = Instant::now();
        let devices = || [&self.client].into_iter().chain(&self.worker);
        let find_unlinked = || devices().find(|device| !device.link().up);
        while let Some(device) = find_unlinked() {
            check_peer()?;
            if stop.load(Ordering::Relaxed) {
                return Err("stopped before the leaf was connected".into());
            }
            if start.elapsed() > timeout {
                return Err(format!(
                    "device {} had no link for {} s; start the leaf at its other end",
                    device.name(),
                    timeout.as_secs()
                )
                .into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Offers one load, from warm-up to drain. Returns the reports of generator and workers. The generator's report
    /// has the verdict over both. The verdict covers only undisturbed time slices, in which neither the loop of
    /// `run` nor the node at `settings.state` paused.
    pub fn offer(
        &mut self,
        load: &Load,
        settings: &RunSettings,
        stop: &AtomicBool,
    ) -> Result<(Report, rack::Report), Failure> {
        let load = Load { run: self.runs, ..load.clone() };
        self.runs += 1;
        let mut manifest = Manifest::new(&load, SystemTime::now());
        manifest.dpdk = ports::version();
        manifest.config.device = Some(self.client.name().to_owned());
        let (generator, workers) = self.set_up(&load, settings)?;
        let mut node = settings.state.as_deref().map(WatchedNode::open).transpose()?;
        // `run` pins its thread to a CPU. It runs on a separate thread, so that the calling thread and its child
        // processes may use every CPU.
        let eal = &self.environment.eal;
        let (generator, workers) = std::thread::scope(|scope| {
            let running = scope.spawn(|| run(generator, workers, settings.core, eal, stop));
            if let Some(node) = &mut node {
                nodes::read_while(node, || !running.is_finished());
            }
            running.join().map_err(|_| Failure::from("generator and workers panicked"))
        })??;
        let is_resolved = generator.phase() != Phase::Unresolved;
        // Keeps the ports for the next run, even if the leaf does not answer. An earlier error or panic loses them.
        let (port, _, tally) = generator.into_parts();
        self.client_port = Some(port);
        let node_pauses = node.map(WatchedNode::finish).unwrap_or_default();
        // The load's rule sets the length of slices, and which of them count as undisturbed.
        let slices = tally.slices(&load.rule, &node_pauses);
        let rack_report = workers.report(&slices);
        if let Workers::Rack(rack, _) = workers {
            self.worker_port = Some(rack.into_port());
        }
        if !is_resolved {
            return Err(format!(
                "{} does not answer {} on {}; give the leaf's address on the clients' side",
                settings.addresses.dst(),
                settings.addresses.resolution_protocol(),
                self.client.name()
            )
            .into());
        }
        let mut report = Report::new(&load, &tally, &slices, self.floor, manifest);
        // Adds the reasons why the workers make the run invalid.
        drive::judge(&mut report, &rack_report);
        Ok((report, rack_report))
    }

    /// Creates the generator and the workers of a run. Measures the floor before the first run.
    fn set_up(
        &mut self,
        load: &Load,
        settings: &RunSettings,
    ) -> Result<GeneratorAndWorkers, Failure> {
        if self.floor.is_none() {
            self.floor = Some(self.measure_floor(load, settings.core)?);
        }
        let hz = self.environment.eal.ticks_hz() as f64;
        // The MAC address is the generator's own. The generator resolves that of the leaf.
        let base = Target::to(Mac(self.client.mac()), settings.addresses);
        let target = Target { udp_port: settings.udp_port, pool: settings.pool, ..base };
        let missing_ports = "an earlier run did not return its ports";
        let pool = self.environment.pool.handle();
        let port = self.client_port.take().ok_or(missing_ports)?;
        // Part 0 of the load, as only one core generates.
        let generator = Generator::new(load, &target, 0, hz, port, pool)?;
        let workers = match (&settings.agent, &self.worker) {
            (Some(agent), _) => {
                let workload = load.service.workload();
                let mut stand_ins =
                    StandIns::attach(agent, settings.layout.workers(), workload, hz)?;
                stand_ins.log_replies(load.tasks_max());
                Workers::StandIns(Box::new(stand_ins))
            }
            (None, Some(device)) => {
                let port = self.worker_port.take().ok_or(missing_ports)?;
                let mac = Mac(device.mac());
                let mut rack = Rack::new(port, mac, settings.layout, settings.options.clone(), hz);
                rack.log_replies(load.tasks_max());
                let rack = Box::new(rack);
                Workers::Rack(rack, Outages::new(&settings.outages, self.environment.eal.now(), hz))
            }
            (None, None) => {
                return Err(
                    "no device for workers and no agent; give --worker-device or --attach".into()
                );
            }
        };
        Ok((generator, workers))
    }

    /// Measures the loopback floor, at the rate that `load` has for one core. One measurement suffices for all runs,
    /// because the floor is a property of this process and machine.
    fn measure_floor(&self, load: &Load, core: Option<usize>) -> Result<LatencySummary, Failure> {
        let (_device, mut port) = self.environment.open(FLOOR_DEVICE)?;
        let (eal, pool) = (&self.environment.eal, self.environment.pool.handle());
        let result = std::thread::scope(|scope| {
            let measuring = scope.spawn(|| {
                process::pin(core);
                let _lcore = eal.register_thread().map_err(|error| error.to_string())?;
                let hz = eal.ticks_hz() as f64;
                let measure = wedjat_pktgen::floor::measure;
                measure(load, FLOOR_S, &mut port, pool, hz, || eal.now())
                    .map_err(|error| error.to_string())
            });
            measuring.join().map_err(|_| Failure::from("measuring the floor panicked"))
        })?;
        Ok(result?.response().summary())
    }
}

/// Emulated workers.
enum Workers {
    /// A rack on its own port, with the outages of its workers.
    Rack(Box<Rack<QueuePort>>, Outages),
    /// Workers attached to an agent.
    StandIns(Box<StandIns>),
}

impl Workers {
    /// Returns the workers' report on the whole run. Only its verdict on late replies is limited to the undisturbed
    /// `slices`.
    fn report(&self, slices: &Slices) -> rack::Report {
        match self {
            Self::Rack(rack, _) => rack.report_judged_by(Some(slices)),
            Self::StandIns(stand_ins) => stand_ins.report_judged_by(Some(slices)),
        }
    }
}

/// Generator and workers, moved into `run` and back.
type GeneratorAndWorkers = (Generator<QueuePort, PoolHandle>, Workers);

/// Runs generator and workers in one loop on CPU `core`, until the run is over. `stop` ends it early.
fn run(
    mut generator: Generator<QueuePort, PoolHandle>,
    mut workers: Workers,
    core: Option<usize>,
    eal: &Eal,
    stop: &AtomicBool,
) -> Result<GeneratorAndWorkers, String> {
    process::pin(core);
    let _lcore = eal.register_thread().map_err(|error| error.to_string())?;
    let now = || eal.now();
    match &mut workers {
        Workers::Rack(rack, outages) => {
            let poll = |time| {
                outages.apply(rack, time);
                rack.poll(time);
            };
            drive::run(&mut generator, poll, now, stop);
        }
        Workers::StandIns(stand_ins) => {
            drive::run(&mut generator, |time| stand_ins.poll(time), now, stop)
        }
    }
    Ok((generator, workers))
}
