//! Generator on DPDK: opens the device, resolves the next hop, runs one generator per core. The floor is the
//! latency of the generator alone, measured on a virtual device that loops tasks back. A watched node is the leaf or
//! agent on this machine, whose stalls exclude parts of the run.

mod progress;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use wedjat::io::dpdk::{
    self, Device, DeviceOptions, Eal, MbufPool, PoolHandle, QueuePort, StampClock, Stamping,
};
use wedjat::io::{Burst, Pool, Port};
use wedjat::wire::ether::Mac;
use wedjat_pktgen::address::Addresses;
use wedjat_pktgen::engine::Generator;
use wedjat_pktgen::exchange::AnswerExchange;
use wedjat_pktgen::host::{FrameKind, Host};
use wedjat_pktgen::latency::LatencySummary;
use wedjat_pktgen::load::Load;
use wedjat_pktgen::manifest::{self, Manifest};
use wedjat_pktgen::nodes::{self, WatchedNode};
use wedjat_pktgen::process::{pin, stop_on_signals};
use wedjat_pktgen::reflector::Reflector;
use wedjat_pktgen::report::Report;
use wedjat_pktgen::stamps::Stamps;
use wedjat_pktgen::tally::Tally;
use wedjat_pktgen::target::Target;

use self::progress::Progress;
use crate::args::{NetworkArgs, ReflectArgs, Timestamps};
use crate::failure::Failure;

/// Virtual device that receives what it sends, for measuring the floor.
const FLOOR_DEVICE: &str = "net_ring_floor";
/// Duration of the floor measurement.
const FLOOR_S: f64 = 0.25;
/// Interval of repeated requests for the next hop's MAC address.
const REQUEST_INTERVAL: Duration = Duration::from_millis(100);
/// Number of polls of the reflector between two checks of clock and signals.
const POLLS_PER_CHECK: u32 = 4096;

/// An open device with the scheduler behind it.
pub struct Network {
    /// Addresses and packet format of tasks.
    target: Target,
    /// One queue pair per core; empty during a run.
    ports: Vec<QueuePort>,
    /// Port of [`FLOOR_DEVICE`], if the floor is measured.
    floor_port: Option<QueuePort>,
    device: Device,
    pool: MbufPool,
    eal: Eal,
    /// CPUs of the sending cores.
    cores: Vec<usize>,
    /// State file of the scheduler.
    state: Option<PathBuf>,
    /// Number of runs so far.
    runs: u32,
    /// True once the user has requested the end.
    stop: Arc<AtomicBool>,
    /// Field and clock of receive timestamps, or the reason why there are none.
    stamps: Result<Stamping, String>,
}

impl Network {
    /// Opens the device and resolves the next hop.
    pub fn open(args: &NetworkArgs) -> Result<Self, Failure> {
        let addresses = args.addresses()?;
        let cores = args.core_count();
        if args.no_ext && cores > 1 {
            return Err("--no-ext needs a single core: with several, the header extension tells which core an answer belongs to"
                .into());
        }
        let name = device_name(args.device.as_deref(), &args.eal)?;
        let mut eal_arguments = args.eal.clone();
        if !args.no_floor {
            eal_arguments.extend(["--vdev".to_owned(), FLOOR_DEVICE.to_owned()]);
        }
        let eal = Eal::init_excluding(&eal_arguments, &[&name], &args.cores)?;
        let pool = MbufPool::new(&eal, "tasks", args.buffers)?;
        // Inlets are receive queues beyond the queue pairs.
        let (queues, inlets) = (cores as u16, args.more_rx);
        let peer_timeout = Duration::from_secs_f64(args.peer_timeout);
        let (vlan, defaults) = (args.vlan, DeviceOptions::with_peer_timeout(Some(peer_timeout)));
        // Requests for an IPv6 host's MAC address go to a multicast address.
        let multicast = args.dst.is_ipv6();
        let stamps = args.timestamps != Timestamps::Software;
        let options = DeviceOptions { queues, inlets, vlan, multicast, stamps, ..defaults };
        let (device, ports) = Device::open(&eal, &name, &pool, &options)?;
        let stamps = stamps_of(&device, args.timestamps)?;
        let floor_port = match args.no_floor {
            true => None,
            false => open_floor(&eal, &pool)?,
        };
        let target = target(args, addresses, Mac(device.mac()));
        let stop = stop_on_signals()?;
        let (cores, state, runs) = (args.cores.clone(), args.state.clone(), 0);
        let mut network =
            Self { target, ports, floor_port, device, pool, eal, cores, state, runs, stop, stamps };
        network.find_next_hop(peer_timeout)?;
        Ok(network)
    }

    /// Returns true once the user has requested the end.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Offers one load, from warm-up to drain. Measures the floor first, at the same rate per core.
    pub fn offer(&mut self, load: &Load) -> Result<Report, Failure> {
        // Each run has application ids of its own, so that late answers of the run before do not count.
        let load = Load { run: self.runs, ..load.clone() };
        self.runs += 1;
        for seeds in load.seeds() {
            log::info!(
                "core {}: seeds of arrivals {:#018x}, of service times {:#018x}",
                seeds.arrivals.core,
                seeds.arrivals.seed,
                seeds.service.seed
            );
        }
        let mut manifest = Manifest::new(&load, SystemTime::now());
        manifest.dpdk = dpdk::version().ok();
        manifest.config.device = Some(self.device.name().to_owned());
        let floor = self.measure_floor(&load)?;
        let title = format!("{:.0} tasks/s", load.rate_pps);
        let progress = Progress::start(title, load.warmup_s + load.duration_s);
        let mut node = self.state.as_deref().map(WatchedNode::open).transpose()?;
        let tally = self.run(&load, &mut node)?;
        drop(progress);
        let watched = node.map(WatchedNode::finish).unwrap_or_default();
        let slices = tally.slices(&load.rule, &watched);
        manifest.timestamps = Some(manifest::Timestamps {
            receive: self.receive_clock(),
            reason: self.stamps.as_ref().err().cloned(),
            stats: tally.stamps,
        });
        Ok(Report::new(&load, &tally, &slices, floor, manifest))
    }

    /// Measures the floor at the load's rate per core, if requested.
    fn measure_floor(&mut self, load: &Load) -> Result<Option<LatencySummary>, Failure> {
        let Some(mut port) = self.floor_port.take() else { return Ok(None) };
        let floor = measure(load, &mut port, &self.pool, &self.eal)?;
        self.floor_port = Some(port);
        Ok(Some(floor.response().summary()))
    }

    /// Runs one generator per core to the end, and reads the stalls of the node meanwhile.
    fn run(&mut self, load: &Load, node: &mut Option<WatchedNode>) -> Result<Tally, Failure> {
        let hz = self.eal.ticks_hz() as f64;
        let apps: Vec<_> = (0..load.cores).map(|core| load.app(core)).collect();
        let mut generators = Vec::new();
        for ((core, port), exchange) in
            (0..).zip(self.ports.drain(..)).zip(AnswerExchange::between(&apps))
        {
            let pool = self.pool.handle();
            let mut generator = Generator::new(load, &self.target, core, hz, port, pool)?;
            if apps.len() > 1 {
                generator.join(exchange);
            }
            generators.push(generator);
        }
        if let Ok(stamping) = self.stamps {
            for generator in &mut generators {
                generator.stamp(self.clock(stamping)?);
            }
        }
        // Number of busy cores. Relaxed accesses suffice: the join synchronizes all data.
        let busy = AtomicUsize::new(generators.len());
        let (eal, stop, cores) = (&self.eal, &*self.stop, &self.cores);
        // Uses separate threads even for one core, so that the main thread keeps its affinity.
        let finished: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = generators
                .into_iter()
                .enumerate()
                .map(|(i, generator)| {
                    let (core, busy) = (cores.get(i).copied(), BusyCore(&busy));
                    scope.spawn(move || run_core(generator, core, eal, stop, busy))
                })
                .collect();
            if let Some(node) = node {
                nodes::read_while(node, || busy.load(Ordering::Relaxed) > 0);
            }
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let mut total: Option<Tally> = None;
        for core in finished {
            let (port, tally) = core.map_err(|_| "a sending core panicked")??;
            self.ports.push(port);
            match &mut total {
                Some(total) => total.merge(&tally),
                None => total = Some(tally),
            }
        }
        total.ok_or_else(|| "no core".into())
    }

    /// Returns the name of the clock of receive times.
    fn receive_clock(&self) -> &'static str {
        match self.stamps.as_ref().map(|stamping| stamping.clock) {
            Ok(StampClock::Device) => "device",
            Ok(StampClock::Kernel { .. }) => manifest::KERNEL,
            Err(_) => "software",
        }
    }

    /// Creates the conversion from the timestamp clock to the clock of the poll loop.
    fn clock(&self, Stamping { field, clock }: Stamping) -> Result<Stamps, Failure> {
        let (eal, hz) = (self.eal.clone(), self.eal.ticks_hz() as f64);
        let stamps = match clock {
            StampClock::Kernel { unit_ns } => {
                Stamps::of_kernel(field, unit_ns, hz, move || eal.now())
            }
            StampClock::Device => {
                let read_device = self.device.clock_reader();
                // Our clock is read on both sides, which bounds the time of the device's reading.
                let read_clocks = move || {
                    let before = eal.now();
                    Some((before, read_device()?, eal.now()))
                };
                Stamps::new(field, hz, read_clocks)
            }
        };
        stamps.ok_or_else(|| {
            let (name, source) = (self.device.name(), self.receive_clock());
            format!("{name}: the {source}'s clock does not advance, so its timestamps are unusable; give --timestamps software").into()
        })
    }

    /// Waits for the link if the next hop's MAC address is given. Otherwise resolves it. Waits at most
    /// `peer_timeout`. A missing link is only a warning: it may come up later.
    fn find_next_hop(&mut self, peer_timeout: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        let name = self.device.name().to_owned();
        if self.target.next_hop_mac.is_some() {
            while !self.device.link().up && start.elapsed() < peer_timeout && !self.stopped() {
                std::thread::sleep(Duration::from_millis(1));
            }
            if !self.device.link().up {
                log::warn!("device {name} has no link; start the process at its other end");
            }
            return Ok(());
        }
        let mut host = self.target.host();
        let mut pool = self.pool.handle();
        let mut requested: Option<Instant> = None;
        while start.elapsed() < peer_timeout && !self.stopped() {
            if requested.is_none_or(|time| time.elapsed() > REQUEST_INTERVAL) {
                requested = Some(Instant::now());
                self.send_request(&host, &mut pool);
            }
            for port in &mut self.ports {
                let mut burst = Burst::new();
                port.rx_burst(&mut burst);
                // Keeps only answers to requests for our address, and sends them.
                burst.retain(|buf| host.receive(buf, false) == FrameKind::NeighbourAnswer);
                port.tx_burst(&mut burst);
            }
            if let Some(mac) = host.next_hop_mac() {
                self.target.next_hop_mac = Some(mac);
                return Ok(());
            }
        }
        if self.stopped() {
            return Err(Failure::from("stopped"));
        }
        let addresses = self.target.addresses;
        let (next_hop, resolver) = (addresses.next_hop(), addresses.resolution_protocol());
        let link = if self.device.link().up { "link up" } else { "no link" };
        Err(format!(
            "{next_hop} does not answer {resolver} on {name} ({link}); start the scheduler with that address at the other \
             end, or give its MAC address with --dst-mac"
        )
        .into())
    }

    /// Sends a request for the next hop's MAC address.
    fn send_request(&mut self, host: &Host, pool: &mut PoolHandle) {
        let Some(mut request) = pool.take() else { return };
        if host.write_mac_request(&mut request) {
            let mut burst = Burst::new();
            burst.push(request);
            self.ports[0].tx_burst(&mut burst);
        }
    }
}

/// Returns field and clock of the device's receive timestamps. The inner error is the reason why the run does
/// without them. The outer error is that the user insists on timestamps that the device does not have.
fn stamps_of(device: &Device, requested: Timestamps) -> Result<Result<Stamping, String>, Failure> {
    let name = device.name();
    let refusal = |option: &str, why: &str| -> Failure {
        format!("--timestamps {option}: {name} has no usable timestamps: {why}; give --timestamps software, or another device").into()
    };
    let stamping = device.stamps();
    match (requested, stamping.as_ref().map(|stamping| stamping.clock)) {
        (Timestamps::Software, _) => Ok(Err("requested".to_owned())),
        (Timestamps::Auto, Err(why)) => Ok(Err(format!("none from {name}: {why}"))),
        (Timestamps::Device, Err(why)) => Err(refusal("device", &why.to_string())),
        (Timestamps::Kernel, Err(why)) => Err(refusal("kernel", &why.to_string())),
        (Timestamps::Device, Ok(StampClock::Kernel { .. })) => {
            let why = "its packets have kernel timestamps; give --timestamps kernel";
            Err(refusal("device", why))
        }
        (Timestamps::Kernel, Ok(StampClock::Device)) => {
            let why = "its packets have device timestamps; give --timestamps device";
            Err(refusal("kernel", why))
        }
        _ => stamping.map(Ok).map_err(|why| why.to_string().into()),
    }
}

/// Guard that counts a core as busy. Its drop ends that, also after an error or a panic of the core. Finished cores and
/// the reader of the node's stalls continue until no core is busy.
struct BusyCore<'a>(&'a AtomicUsize);

impl Drop for BusyCore<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs one core's generator to its end. Then keeps receiving for the cores that are still running: their
/// answers may arrive at this core's queue.
fn run_core(
    mut generator: Generator<QueuePort, PoolHandle>,
    core: Option<usize>,
    eal: &Eal,
    stop: &AtomicBool,
    busy: BusyCore<'_>,
) -> Result<(QueuePort, Tally), String> {
    pin(core);
    let lcore = eal.register_thread().map_err(|error| error.to_string())?;
    generator.run(|| eal.now(), stop);
    let busy_cores = busy.0;
    drop(busy);
    while busy_cores.load(Ordering::Relaxed) > 0 {
        generator.receive(eal.now());
    }
    let (port, pool, tally) = generator.into_parts();
    drop((pool, lcore));
    Ok((port, tally))
}

/// Measures the floor at the load's rate per core on `port`, which receives what it sends.
fn measure(
    load: &Load,
    port: &mut QueuePort,
    pool: &MbufPool,
    eal: &Eal,
) -> Result<Tally, Failure> {
    let hz = eal.ticks_hz() as f64;
    // Gives the thread a buffer cache of its own.
    let _lcore = eal.register_thread()?;
    let floor =
        wedjat_pktgen::floor::measure(load, FLOOR_S, port, pool.handle(), hz, || eal.now())?;
    Ok(floor)
}

/// Opens the device for measuring the floor. Returns its only port.
fn open_floor(eal: &Eal, pool: &MbufPool) -> Result<Option<QueuePort>, Failure> {
    let (_, ports) = Device::open(eal, FLOOR_DEVICE, pool, &DeviceOptions::default())?;
    Ok(ports.into_iter().next())
}

/// Measures only the floor, without the user's device.
pub fn floor(load: &Load, eal_arguments: &[String]) -> Result<Tally, Failure> {
    let mut arguments = eal_arguments.to_vec();
    arguments.extend(["--vdev".to_owned(), FLOOR_DEVICE.to_owned()]);
    let eal = Eal::init(&arguments, &[])?;
    // DPDK's mempools use memory best at 2^n - 1 buffers. 8191 cover 8 ms at a million tasks per second.
    let pool = MbufPool::new(&eal, "tasks", 8191)?;
    let mut port =
        open_floor(&eal, &pool)?.ok_or("the device for measuring the floor has no queue")?;
    measure(load, &mut port, &pool, &eal)
}

/// Answers tasks immediately until stopped.
pub fn reflect(args: &ReflectArgs) -> Result<(), Failure> {
    let name = device_name(args.device.as_deref(), &args.eal)?;
    let eal = Eal::init_excluding(&args.eal, &[&name], args.core.as_slice())?;
    let pool = MbufPool::new(&eal, "tasks", args.buffers)?;
    let options =
        DeviceOptions { queues: args.queues, multicast: true, ..DeviceOptions::default() };
    let (device, ports) = Device::open(&eal, &name, &pool, &options)?;
    let stop = stop_on_signals()?;
    let mac = Mac(device.mac());
    let reflectors = ports.into_iter().map(|port| Reflector::new(port, mac)).collect();
    let end = args.duration.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    log::info!("answering tasks on {}", device.name());
    let (eal, stop) = (&eal, &*stop);
    // Uses a separate thread, so that the main thread keeps its affinity.
    let answered = std::thread::scope(|scope| {
        scope.spawn(|| reflect_until(reflectors, args.core, eal, stop, end)).join()
    });
    wedjat_pktgen::report::print_line(format_args!(
        "answered {} tasks and neighbour requests",
        answered.map_err(|_| "the reflecting core panicked")??
    ))?;
    Ok(())
}

/// Answers tasks until `stop` is set or the end has come. Returns the number of answers.
fn reflect_until(
    mut reflectors: Vec<Reflector<QueuePort>>,
    core: Option<usize>,
    eal: &Eal,
    stop: &AtomicBool,
    end: Option<Instant>,
) -> Result<u64, String> {
    pin(core);
    let _lcore = eal.register_thread().map_err(|error| error.to_string())?;
    while !stop.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        for _ in 0..POLLS_PER_CHECK {
            reflectors.iter_mut().for_each(Reflector::poll);
        }
    }
    Ok(reflectors.iter().map(Reflector::answered).sum())
}

/// Returns the requested device, or the first that the EAL arguments create or allow.
fn device_name(requested: Option<&str>, eal: &[String]) -> Result<String, Failure> {
    if let Some(name) = requested {
        return Ok(name.to_owned());
    }
    let mut arguments = eal.iter();
    while let Some(argument) = arguments.next() {
        let value = match argument.as_str() {
            "--vdev" | "-a" | "--allow" => arguments.next().map(String::as_str),
            other => other.strip_prefix("--vdev=").or_else(|| other.strip_prefix("--allow=")),
        };
        if let Some(name) = value.and_then(|value| value.split(',').next()) {
            return Ok(name.to_owned());
        }
    }
    Err("no device; give --device with a PCI address, or a virtual device and its arguments, as in \
        net_memif0,role=client,socket=leaf"
        .into())
}

/// Returns the target of the arguments.
fn target(args: &NetworkArgs, addresses: Addresses, device_mac: Mac) -> Target {
    Target {
        next_hop_mac: args.dst_mac,
        udp_port: args.udp_port,
        pool: args.pool,
        flows: args.flows,
        extended: !args.no_ext,
        checksums: !args.no_checksum,
        frame_bytes: usize::from(args.size),
        ..Target::to(args.mac.unwrap_or(device_mac), addresses)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::*;

    #[test]
    fn failed_core_is_not_busy() {
        let busy = AtomicUsize::new(2);
        let fail = |_busy: BusyCore<'_>| Err::<(), _>("no lcore");
        assert!(fail(BusyCore(&busy)).is_err());
        let panicked: Result<(), _> = catch_unwind(AssertUnwindSafe(|| {
            let _busy = BusyCore(&busy);
            resume_unwind(Box::new("a panic"))
        }));
        assert!(panicked.is_err());
        assert_eq!(busy.into_inner(), 0);
    }

    #[test]
    fn device_is_found_or_created() {
        let eal = ["-l", "0", "--vdev=net_memif3,role=client", "--vdev", "net_null0"];
        let eal = eal.map(str::to_owned);
        assert_eq!(device_name(Some("0000:03:00.0"), &eal).unwrap(), "0000:03:00.0");
        assert_eq!(device_name(None, &eal).unwrap(), "net_memif3");
        assert_eq!(device_name(None, &eal[3..]).unwrap(), "net_null0");
        assert!(device_name(None, &eal[..2]).unwrap_err().to_string().contains("--device"));
    }
}
