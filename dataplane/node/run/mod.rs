//! Start, run and orderly end of a configured node on DPDK ports. Each dispatcher core is a thread that polls. The
//! calling thread is the watching thread: it serves requests, checks links, workers and cores, and reports.
//!
//! A node is a leaf (schedules the tasks of a rack), a spine (schedules tasks over leaves) or an agent (gives tasks to
//! the workers of its host). This file has the parts that all roles share. [`leaf::run`] and [`agent::run`] start a
//! node. memif is DPDK's device for packets in memory that two processes share.

pub mod agent;
mod attach_log;
mod auto;
mod causes;
mod launch;
pub mod leaf;
mod poll;
mod probe;
mod stalls;
mod supervisor;
mod telemetry;
pub mod threads;
pub mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::auto::AutoThread;
pub use self::probe::probe;
use self::stalls::StallWatch;
use self::supervisor::Supervisor;
use crossbeam_queue::ArrayQueue;

use wedjat_admin::pcap::CaptureError;
use wedjat_admin::{Handle, Requests};
use wedjat_core::clock::ClockError;
use wedjat_core::cpus;
use wedjat_core::stage::UnknownWorker;
use wedjat_core::stage::network::NetworkError;
use wedjat_core::state::table::Role;
use wedjat_core::state::{Counters, StateError, Totals};
use wedjat_core::stats::{self, CoreTime, PortStats};
use wedjat_desired::config::ControlConfig;
use wedjat_desired::config::FollowConfig;
use wedjat_desired::control::{Cores, Membership};
use wedjat_dpdk::{Device, DeviceError, DeviceEvent, Eal, EalError, PoolError};
use wedjat_fabric::{FollowerThread, NodeId};

/// Options of a run, beyond the configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Time after which the node stops by itself.
    pub duration: Option<Duration>,
    /// Arguments of EAL.
    pub eal: Vec<String>,
    /// Name of the capture files of all packets, to which the node appends port and core.
    pub pcap: Option<PathBuf>,
    /// File with changes (requests of the control interface), one per line. The node applies each line as it arrives.
    /// `-` is standard input.
    pub changes: Option<PathBuf>,
    /// Set from outside, for example by a signal, to request a reload: the node reads the configuration again and
    /// applies the differences.
    pub reload: Arc<AtomicBool>,
    /// Clock file of a conductor, the program that advances emulated time. The node uses that time.
    pub clock: Option<PathBuf>,
    /// Longest time that a memif client waits for its server; `None` for the default of
    /// [`wedjat_dpdk::DeviceOptions`].
    pub peer_timeout: Option<Duration>,
}

/// Reason why a node does not start or failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// EAL does not start.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// The mempool cannot be created.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The state cannot be created.
    #[error(transparent)]
    State(#[from] StateError),
    /// The region of an agent's workers cannot be created.
    #[error(transparent)]
    Region(#[from] wedjat_core::ring::RegionError),
    /// The network configuration is invalid.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A capture cannot be created.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Emulated time is not available.
    #[error(transparent)]
    Clock(#[from] ClockError),
    /// The control interface cannot be opened.
    #[error(transparent)]
    Control(#[from] wedjat_admin::ServerError),
    /// The thread that follows a controller cannot be started.
    #[error("the thread that follows the controller: {0}")]
    Follow(std::io::Error),
    /// The thread that chooses policies cannot be started.
    #[error("the thread that chooses policies: {0}")]
    Auto(std::io::Error),
    /// The CPU of a core is not available.
    #[error(
        "dispatcher core: this machine has no CPU {cpu} for this process; it may use {usable:?}"
    )]
    Cpu {
        /// The requested CPU.
        cpu: usize,
        /// The usable CPUs.
        usable: Vec<usize>,
    },
    /// The CPU of a worker thread is not available.
    #[error("worker thread: this machine has no CPU {cpu} for this process; it may use {usable:?}")]
    WorkerCpu {
        /// The requested CPU.
        cpu: usize,
        /// The usable CPUs.
        usable: Vec<usize>,
    },
    /// Batch jobs are configured, but their workers cannot be watched from another process.
    #[error(
        "{}: `[cosched]` has {}, and workers that are threads of the agent's own process can't be watched from another one, so \
         none would run beside them; take `[cosched]` out, or have `wedjat agent` run this file and workers attach to it",
        path.display(),
        wedjat_core::quantity(*jobs, "batch job")
    )]
    JobsBesideThreads {
        /// Path of the configuration.
        path: PathBuf,
        /// Number of configured jobs.
        jobs: usize,
    },
    /// A worker thread cannot be started.
    #[error("worker {id}: cannot start a thread for it: {error}")]
    Worker {
        /// Id of the worker.
        id: u16,
        /// The system's error.
        error: std::io::Error,
    },
    /// Too few transmit queues for worker threads that must send their replies themselves (`worker_sends = "must"`).
    /// Each needs a queue of its own at every device.
    #[error(
        "device {device:?} has {found} transmit queues to spare for {wanted} workers that must send their replies \
         themselves; give it more, use fewer workers, or set worker_sends = \"try\""
    )]
    Outlets {
        /// Name of the device.
        device: String,
        /// Number of queues besides the dispatcher's.
        found: usize,
        /// Number of workers.
        wanted: usize,
    },
    /// A core's thread did not start, or failed.
    #[error("the dispatcher on CPU {cpu} failed: {reason}")]
    Core {
        /// CPU of the thread.
        cpu: usize,
        /// Text of the error.
        reason: String,
    },
}

/// Logs a device's link event. For an AF_PACKET or AF_XDP device without its interface, logs the removal instead: the
/// link never comes back. May log one exit of a memif peer twice, because the link goes down a moment before the count
/// of disconnects changes.
fn log_link_event(port: usize, device: &Device, is_up: bool) {
    if device.is_removed() {
        return log::error!(
            "port {port}, {}: its interface was removed, so the port stays down; create the interface again and restart the node",
            device.name()
        );
    }
    log::info!("port {port}, {}: link {}", device.name(), if is_up { "up" } else { "down" });
}

/// Handles removals, resets and returns of NICs, and logs them. [`Device::advance_lifecycle`] opens a returned NIC
/// again, and reports the outcome. `failures` holds the last failure of each device, by port, so that repeated attempts
/// log it once.
fn tend_devices(devices: &[Device], failures: &mut BTreeMap<usize, String>) {
    for (port, device) in devices.iter().enumerate() {
        let name = device.name();
        match device.advance_lifecycle() {
            None => {}
            Some(DeviceEvent::Removed) => log::warn!(
                "port {port}, {name}: removed; other ports go on; the port opens again once the NIC is back and bound to \
                 vfio-pci"
            ),
            Some(DeviceEvent::Resetting) => log::warn!("port {port}, {name}: its driver resets it"),
            Some(DeviceEvent::Returned(warning)) => {
                failures.remove(&port);
                log::info!("port {port}, {name}: opened again");
                warning.into_iter().for_each(|text| log::warn!("port {port}, {name}: {text}"));
            }
            Some(DeviceEvent::Failed(text)) if failures.get(&port) != Some(&text) => {
                log::error!("port {port}, {name}: is back, but does not open, tries again: {text}");
                failures.insert(port, text);
            }
            Some(DeviceEvent::Failed(_)) => {} // logged before
        }
    }
}

/// Logs once for each device that its receive interrupts do not work. `reported` holds the ports of earlier logs.
fn log_silent_interrupts(devices: &[Device], reported: &mut BTreeSet<usize>) {
    for (port, device) in devices.iter().enumerate() {
        if !device.delivers_interrupts() && reported.insert(port) {
            log::warn!(
                "port {port}, {}: {} accepts receive interrupts but delivers none, so idle cores look for packets \
                 every 50 us",
                device.name(),
                device.driver()
            );
        }
    }
}

/// States of the devices' links at the last check of the watching thread.
struct Links(Vec<LinkState>);

/// State of one link at a check.
struct LinkState {
    is_up: bool,
    /// Number of ended connections with memif peers; see [`Device::disconnects`].
    disconnects: u64,
}

impl LinkState {
    /// Reads the state. Reads the disconnects first, so that the next check sees a disconnect between both reads.
    fn of(device: &Device) -> Self {
        let disconnects = device.disconnects();
        Self { is_up: device.link().up, disconnects }
    }

    /// Returns the events between two states, in order: false for a link that went down, true for one that came up. A
    /// memif peer can leave between two checks with the same link state, for example if its successor connects at once.
    /// The number of disconnects then shows the events.
    fn events_until(&self, now: &Self) -> impl Iterator<Item = bool> + use<> {
        let went_down = now.disconnects != self.disconnects || (self.is_up && !now.is_up);
        let came_up = now.is_up && (went_down || !self.is_up);
        went_down.then_some(false).into_iter().chain(came_up.then_some(true))
    }
}

impl Links {
    /// Reads the states of all links.
    fn of(devices: &[Device]) -> Self {
        Self(devices.iter().map(LinkState::of).collect())
    }

    /// Returns the ports whose link was down at the last check.
    fn down(&self) -> impl Iterator<Item = usize> {
        let links = self.0.iter().enumerate().filter(|(_, link)| !link.is_up);
        links.map(|(port, _)| port)
    }

    /// Calls `on_event` for each event since the last check, with the port and the link's state: true for up.
    fn check(&mut self, devices: &[Device], on_event: impl Fn(usize, &Device, bool)) {
        for (port, (last, device)) in self.0.iter_mut().zip(devices).enumerate() {
            let now = LinkState::of(device);
            last.events_until(&now).for_each(|is_up| on_event(port, device, is_up));
            *last = now;
        }
    }
}

/// Interface for changes and observation of a running node: a file with changes, a reload signal, and sockets. Other
/// threads read the file and the sockets. They send requests to the watching thread, which alone changes the node.
struct ControlInterface {
    /// Set by a signal to request a reload.
    reload: Arc<AtomicBool>,
    /// Sender of requests to the watching thread.
    handle: Handle,
    /// Serves the sockets until it is dropped.
    _server: Option<wedjat_admin::Server>,
}

impl ControlInterface {
    /// Opens the interface: starts the reader of the file with changes, and serves the configured addresses and the
    /// socket beside the state file. The thread of the sockets runs on `cpus`.
    fn open<C: Cores>(
        requests: &Requests<C>,
        options: &Options,
        (config, state): (&ControlConfig, Option<&Path>),
        cpus: &[usize],
    ) -> Result<Self, LaunchError> {
        let (handle, reload) = (requests.handle(), Arc::clone(&options.reload));
        if let Some(path) = &options.changes {
            wedjat_admin::start_line_reader(path, handle.clone());
        }
        let server = wedjat_admin::Server::start(config, state, handle.clone(), cpus)?;
        Ok(Self { reload, handle, _server: server })
    }

    /// Reloads the configuration if a signal requested it. The watching thread calls it at each check.
    fn check_reload(&self) {
        if self.reload.swap(false, AcqRel) {
            log::info!("reads the configuration again");
            self.handle.reload(false, |_| {}); // the log gets the result
        }
    }
}

/// Starts a thread that follows a controller, if one is configured: it applies the controller's desired state to this
/// node. The thread runs on `cpus`. `newcomers` is the queue of unknown workers, which it reports to the controller.
fn follow(
    config: Option<&FollowConfig>,
    node: NodeId,
    handle: &Handle,
    newcomers: Option<Arc<ArrayQueue<UnknownWorker>>>,
    cpus: &[usize],
) -> Result<Option<FollowerThread>, LaunchError> {
    let Some(config) = config.cloned() else { return Ok(None) };
    let thread = FollowerThread::start(config, node, handle.clone(), newcomers, cpus);
    thread.map(Some).map_err(LaunchError::Follow)
}

/// Starts the thread that chooses policies for a leaf's pools. In emulated time there is none, because it would make
/// runs differ. Pools under `auto` then keep their first policy, and a warning says so.
fn choose_policies(
    role: Role,
    is_emulated: bool,
    membership: &Membership,
    handle: &Handle,
    cpus: &[usize],
) -> Result<Option<AutoThread>, LaunchError> {
    if role != Role::Leaf {
        return Ok(None);
    }
    if is_emulated {
        for pool in membership.pools.iter().flatten().filter(|pool| pool.settings.auto.is_some()) {
            log::warn!(
                "pool {}: with --clock, `policy = \"auto\"` stays at its first policy",
                pool.id
            );
        }
        return Ok(None);
    }
    AutoThread::start(handle.clone(), cpus).map(Some).map_err(LaunchError::Auto)
}

/// Checks that this process may use the CPUs of the cores.
fn check_cpus(cores: &[usize]) -> Result<(), LaunchError> {
    let usable = cpus::usable();
    match cores.iter().find(|cpu| !usable.contains(cpu)) {
        Some(&cpu) => Err(LaunchError::Cpu { cpu, usable }),
        None => Ok(()),
    }
}

/// Thread of a core, pinned to its CPU and registered with EAL. Its error is a text for [`LaunchError::Core`].
type CoreThread<T> = JoinHandle<Result<T, String>>;

/// Starts a core's thread, pinned to `cpu`. The thread returns the result of `work`, or an error. If it `always_polls`,
/// without sleep, its name contains its CPU, so that other nodes detect a shared CPU.
fn spawn<T: Send + 'static>(
    name: &str,
    (cpu, always_polls): (usize, bool),
    eal: Eal,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<CoreThread<T>, LaunchError> {
    let pinned = move || {
        if !cpus::pin(cpu) {
            return Err("the system refused to pin its thread there".to_owned());
        }
        // Keeps the registration, and so the thread's mempool cache, until the end of the work.
        let _lcore = eal.register_thread().map_err(|error| error.to_string())?;
        work()
    };
    std::thread::Builder::new()
        .name(cpus::thread_name(name, cpu, always_polls))
        .spawn(pinned)
        .map_err(|error| LaunchError::Core { cpu, reason: error.to_string() })
}

/// Waits for a core's thread and returns its result. A panic becomes an error.
fn join<T>(cpu: usize, thread: CoreThread<T>) -> Result<T, LaunchError> {
    let result = thread.join().unwrap_or_else(|panic| {
        // `panic!` passes a `String` if it formats its message, and a `&str` otherwise.
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("a defect: {}", text.unwrap_or("panicked")))
    });
    result.map_err(|reason| LaunchError::Core { cpu, reason })
}

/// Work of the watching thread. It checks the node at least once per `interval`, informs the service manager
/// if there is one, and reports every second until the node must stop.
struct Watch<'a> {
    /// Time after which the node stops by itself; `None` for never.
    duration: Option<Duration>,
    /// Set to stop all cores.
    stop: &'a AtomicBool,
    /// Counters of each core.
    counters: &'a [Counters],
    /// CPUs of the cores; empty in emulated time, where a conductor controls the polls and a pause is no stall.
    cpus: &'a [usize],
    /// Ticks per second of the cores' clock.
    ticks_hz: u64,
    /// Longest time between two checks.
    interval: Duration,
    /// Start of the cores.
    started: Instant,
}

impl Watch<'_> {
    /// Publishes the stalls of the cores, and logs those that have become long.
    fn check_stalls(&self, stalls: &mut StallWatch) {
        for line in stalls.update(self.counters, Instant::now()) {
            log::warn!("{line}");
        }
    }

    /// Runs until a core ends, after a stop request or a failure. Then stops all cores, and continues the checks until
    /// all have ended. `cores` are the cores' threads. `check` does the node's own checks and serves requests for about
    /// the given time. `report` gets a line of statistics per second.
    fn until_ended<T>(
        &self,
        cores: &[CoreThread<T>],
        mut check: impl FnMut(Duration),
        mut report: impl FnMut(&str),
    ) {
        // Counters at the last report, and its time.
        let (mut before, mut reported) = (Totals::default(), self.started);
        let mut supervisor = Supervisor::from_environment();
        // Threads of other nodes that poll a CPU of this one.
        for poller in cpus::pollers(Path::new("/proc"), self.cpus) {
            log::warn!(
                "{poller}: both stall for the other's time slices; {}",
                cpus::SHARED_CPU_FIX
            );
        }
        let mut stalls = StallWatch::new(self.cpus, self.ticks_hz, self.started);
        while !cores.iter().any(|core| core.is_finished()) {
            let running = self.started.elapsed();
            let remaining =
                self.duration.map_or(self.interval, |total| total.saturating_sub(running));
            if remaining.is_zero() {
                self.stop.store(true, Release);
            }
            supervisor.update(self.counters, Instant::now());
            self.check_stalls(&mut stalls);
            if self.stop.load(Acquire) {
                supervisor.stopping();
            }
            // After the end of the duration, the cores drain, and the checks continue at their interval.
            check(if remaining.is_zero() { self.interval } else { remaining.min(self.interval) });
            let seconds = reported.elapsed().as_secs_f64();
            if seconds >= 1.0 && !self.stop.load(Acquire) {
                // A stall may have ended meanwhile. Its core has counted it, so the gauge must not have it any more.
                self.check_stalls(&mut stalls);
                let now = Totals::read(self.counters);
                let time = CoreTime { cores: self.counters.len(), ticks_hz: self.ticks_hz };
                let line = stats::line(running.as_secs_f64(), &before, &now, seconds, time);
                // Present if a stall ended and stalls took a tenth or more of the cores' time.
                if let Some(text) = stats::starvation(&before, &now, seconds, time) {
                    log::warn!("{text}");
                }
                supervisor.status(&line);
                report(&line);
                (before, reported) = (now, Instant::now());
            }
        }
        // After the end of one core all others must end, too. The checks continue, because workers may die while the
        // cores wait for them.
        self.stop.store(true, Release);
        supervisor.stopping();
        while !cores.iter().all(|core| core.is_finished()) {
            check(self.interval);
        }
        stalls.end(self.counters, Instant::now());
    }
}

/// Returns the statistics of the devices with the drivers' extended statistics (xstats), for requests at run time.
fn all_port_stats(devices: &[Device]) -> Vec<PortStats> {
    let stats = |device: &Device| PortStats { xstats: device.xstats(), ..port_stats(device) };
    devices.iter().map(stats).collect()
}

/// Returns the statistics of a device since its start, for the node's account. Leaves out the driver's extended ones.
fn port_stats(device: &Device) -> PortStats {
    let stats = device.stats();
    PortStats {
        device: device.name().to_owned(),
        driver: device.driver().to_owned(),
        rx_missed: stats.rx_missed,
        rx_partial: stats.rx_partial,
        rx_other_vlan: stats.rx_other_vlan,
        rx_no_mbuf: stats.rx_no_mbuf,
        rx_errors: stats.rx_errors,
        tx_errors: stats.tx_errors,
        peers_refused: stats.peers_refused,
        peers_left: device.disconnects(),
        interfaces_removed: u64::from(device.is_removed()),
        unplugged: device.removals(),
        xstats: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: ports.2
    #[test]
    fn departed_peer_is_noticed_despite_a_successor() {
        let state = |is_up, disconnects| LinkState { is_up, disconnects };
        // Up (true) and down (false), in order.
        let between = |before: LinkState, now| before.events_until(&now).collect::<Vec<_>>();
        assert!(between(state(true, 3), state(true, 3)).is_empty());
        assert!(between(state(false, 3), state(false, 3)).is_empty());
        assert_eq!(between(state(false, 0), state(true, 0)), [true]);
        assert_eq!(between(state(true, 0), state(false, 0)), [false], "carrier lost");
        assert_eq!(between(state(true, 0), state(false, 1)), [false], "peer left");
        assert_eq!(between(state(true, 1), state(true, 3)), [false, true], "peer replaced");
        assert_eq!(between(state(false, 1), state(false, 2)), [false], "peer came and left");
    }
}
