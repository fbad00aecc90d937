//! Brings a configured node up on DPDK ports, runs it, and ends it in order: a thread for each dispatcher core polls, the
//! calling thread watches and reports.

pub mod agent;
mod attach_log;
mod causes;
mod colocated;
pub mod leaf;
mod stalls;
mod supervisor;
mod telemetry;
pub mod threads;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::stalls::StallWatch;
use self::supervisor::Supervisor;
#[cfg(feature = "control")]
use crossbeam_queue::ArrayQueue;

use crate::admin::{Handle, Requests, TapPoints};
use crate::clock::{ClockError, ClockFile};
use crate::config::ControlConfig;
#[cfg(feature = "control")]
use crate::config::FollowConfig;
use crate::control::{Cores, Membership, Pool};
#[cfg(feature = "control")]
use crate::controller::{Following, NodeId};
use crate::cpus;
use crate::io::dpdk::{self, Device, DeviceError, Eal, EalError, PoolError};
use crate::io::pcap::CaptureError;
use crate::node::tap::TapCommands;
use crate::policy::stream_seed;
#[cfg(feature = "control")]
use crate::stage::Newcomer;
use crate::stage::network::NetworkError;
use crate::state::{Counters, StateError, Totals};
use crate::stats::{self, CoreTime, LeafStats, Manifest, PortStats};

/// A stopping core ends when no packet came for so long, and nothing is held.
const QUIET: Duration = Duration::from_millis(20);

/// How to run, beyond the configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Stop by itself after so long.
    pub duration: Option<Duration>,
    /// EAL's arguments.
    pub eal: Vec<String>,
    /// Record all packets in files of this name (with port and core appended).
    pub pcap: Option<PathBuf>,
    /// Make the changes that stand in this file, a line each, as they come; `-` is standard input.
    pub changes: Option<PathBuf>,
    /// Set from outside: read the configuration again, and make what differs so.
    pub reload: Arc<AtomicBool>,
    /// Run on the emulated time of this clock file's conductor.
    pub clock: Option<PathBuf>,
    /// Wait so long for the server of a memif device of role client; as [`dpdk::DeviceOptions`] has it when none.
    pub patience: Option<Duration>,
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
    /// Its control can't be reached.
    #[cfg(feature = "control")]
    #[error(transparent)]
    Control(#[from] crate::admin::ServerError),
    /// No thread to follow a controller with.
    #[cfg(feature = "control")]
    #[error("the thread that follows the controller: {0}")]
    Follow(std::io::Error),
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
    /// Batch jobs beside workers that nobody can watch.
    #[cfg(feature = "admin")]
    #[error(
        "{}: `[cosched]` has {}, and workers that are threads of the agent's own process can't be watched from another one, so \
         none would run beside them; take `[cosched]` out, or have `wedjat agent` run this file and workers attach to it",
        path.display(),
        crate::quantity(*jobs, "batch job")
    )]
    JobsBesideThreads {
        /// The configuration.
        path: PathBuf,
        /// Jobs that it has.
        jobs: usize,
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

/// Ticks a second of the clock that nodes run on.
fn ticks_hz(clock: Option<&ClockFile>, eal: &Eal) -> u64 {
    clock.map_or(eal.ticks_hz(), |_| ClockFile::TICKS_HZ)
}

/// That clock.
fn ticks(clock: Option<&ClockFile>, eal: &Eal) -> Box<dyn Fn() -> u64> {
    match clock.cloned() {
        Some(clock) => Box::new(move || clock.now_ns()),
        None => {
            let eal = eal.clone();
            Box::new(move || eal.now())
        }
    }
}

/// Where a tap of a node with these cores and devices takes what it records.
fn tap_points(
    cores: Vec<TapCommands>,
    devices: &[Device],
    (clock, eal): (Option<&ClockFile>, &Eal),
    cpus: &[usize],
) -> TapPoints {
    TapPoints {
        cores,
        ports: devices.iter().map(|device| device.name().to_owned()).collect(),
        clock: ticks(clock, eal),
        ticks_hz: ticks_hz(clock, eal),
        cpus: cpus.to_vec(),
    }
}

/// A device's link has come up or gone down, or a memif peer has left, of which a peer that came at once may hide the rest:
/// then both are told of, first that it is down. That may be told twice of one peer: its link is down a moment before the
/// peer counts as gone. Called by the watching thread.
fn link_changed(port: usize, device: &Device, is_up: bool) {
    if device.is_removed() {
        return log::error!(
            "port {port}, {}: its interface was removed; the port stays down, and the other ports go on; make the interface again and \
             restart the node",
            device.name()
        );
    }
    log::info!("port {port}, {}: link {}", device.name(), if is_up { "up" } else { "down" });
}

/// What the watching thread has seen of the devices' links.
struct Links(Vec<LinkSeen>);

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
    fn of(devices: &[Device]) -> Self {
        Self(devices.iter().map(LinkSeen::of).collect())
    }

    /// Calls `changed` for each link that has changed since the last look, with its port and whether it is up.
    fn look(&mut self, devices: &[Device], changed: impl Fn(usize, &Device, bool)) {
        for (port, (seen, device)) in self.0.iter_mut().zip(devices).enumerate() {
            let now = LinkSeen::of(device);
            seen.until(&now).for_each(|is_up| changed(port, device, is_up));
            *seen = now;
        }
    }
}

/// How a node is changed and watched from outside while it runs.
struct Outside {
    reload: Arc<AtomicBool>,
    handle: Handle,
    #[cfg(feature = "control")]
    _server: Option<crate::admin::Server>,
}

impl Outside {
    /// By lines, signals, and as configured, beside the state file; on these CPUs.
    fn open<C: Cores>(
        requests: &Requests<C>,
        options: &Options,
        (config, state): (&ControlConfig, Option<&Path>),
        cpus: &[usize],
    ) -> Result<Self, LaunchError> {
        let (handle, reload) = (requests.handle(), Arc::clone(&options.reload));
        if let Some(path) = &options.changes {
            crate::admin::read_lines(path, handle.clone());
        }
        #[cfg(feature = "control")]
        let opened = {
            let server = crate::admin::Server::start(config, state, handle.clone(), cpus)?;
            Self { reload, handle, _server: server }
        };
        #[cfg(not(feature = "control"))]
        let opened = {
            let _ = (state, cpus);
            if *config != ControlConfig::default() {
                log::warn!("`[control]` is left out: built without the feature `control`");
            }
            Self { reload, handle }
        };
        Ok(opened)
    }

    /// Has the configuration read again if a signal asked for it.
    fn look(&self) {
        if self.reload.swap(false, AcqRel) {
            log::info!("told to read the configuration again");
            self.handle.reload(false, |_| {}); // what becomes of it is logged
        }
    }
}

/// Has the node behind this handle follow a controller, if it is to; on these CPUs.
#[cfg(feature = "control")]
fn follow(
    config: Option<&FollowConfig>,
    node: NodeId,
    handle: &Handle,
    newcomers: Option<Arc<ArrayQueue<Newcomer>>>,
    cpus: &[usize],
) -> Result<Option<Following>, LaunchError> {
    let Some(config) = config.cloned() else { return Ok(None) };
    let following = Following::start(config, node, handle.clone(), newcomers, cpus);
    following.map(Some).map_err(LaunchError::Follow)
}

fn check_cpus(cores: &[usize]) -> Result<(), LaunchError> {
    let usable = cpus::usable();
    match cores.iter().find(|cpu| !usable.contains(cpu)) {
        Some(&cpu) => Err(LaunchError::Cpu { cpu, usable }),
        None => Ok(()),
    }
}

/// A thread for a core: pinned to its CPU, and an lcore of EAL's.
type CoreThread<T> = JoinHandle<Result<T, String>>;

/// Starts a core's thread, which ends with what `work` gives, or with why it failed.
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
        let _lcore = eal.register_thread().map_err(|error| error.to_string())?;
        work()
    };
    std::thread::Builder::new()
        .name(cpus::thread_name(name, cpu, always_polls))
        .spawn(pinned)
        .map_err(|error| LaunchError::Core { cpu, reason: error.to_string() })
}

/// What a core's thread ended with.
fn join<T>(cpu: usize, thread: CoreThread<T>) -> Result<T, LaunchError> {
    let ended = thread.join().unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("a defect: {}", text.unwrap_or("panicked")))
    });
    ended.map_err(|reason| LaunchError::Core { cpu, reason })
}

/// The calling thread's part: it looks around for as long as `interval` at a time, tells the service manager if there is one,
/// and reports every second until the node is told to stop.
struct Watch<'a> {
    /// Stop by itself after so long.
    duration: Option<Duration>,
    stop: &'a AtomicBool,
    counters: &'a [Counters],
    /// CPUs of the cores; none when a conductor decides when they poll.
    cpus: &'a [usize],
    /// Of the cores' clock.
    ticks_hz: u64,
    interval: Duration,
    started: Instant,
}

impl Watch<'_> {
    /// Until a core has ended: they do when they are told to stop.
    fn until_ended<T>(
        &self,
        cores: &[&CoreThread<T>],
        mut look: impl FnMut(Duration),
        mut report: impl FnMut(&str),
    ) {
        let (mut before, mut reported) = (Totals::default(), self.started);
        let mut supervisor = Supervisor::of_the_environment();
        for poller in cpus::pollers(Path::new("/proc"), self.cpus) {
            log::warn!(
                "{poller}: both stall for the other's time slices; {}",
                cpus::SHARED_CPU_FIX
            );
        }
        let mut stalls = StallWatch::new(self.cpus, self.ticks_hz, self.started);
        while !cores.iter().any(|core| core.is_finished()) {
            let running = self.started.elapsed();
            let left = self.duration.map_or(self.interval, |all| all.saturating_sub(running));
            if left.is_zero() {
                self.stop.store(true, Release);
            }
            supervisor.look(self.counters, Instant::now());
            for line in stalls.look(self.counters, Instant::now()) {
                log::warn!("{line}");
            }
            if self.stop.load(Acquire) {
                supervisor.stopping();
            }
            look(if left.is_zero() { self.interval } else { left.min(self.interval) });
            let seconds = reported.elapsed().as_secs_f64();
            if seconds >= 1.0 && !self.stop.load(Acquire) {
                let now = Totals::read(self.counters);
                let time = CoreTime { cores: self.counters.len(), ticks_hz: self.ticks_hz };
                let line = stats::line(running.as_secs_f64(), &before, &now, seconds, time);
                if let Some(text) = stats::starvation(&before, &now, seconds, time) {
                    log::warn!("{text}");
                }
                supervisor.status(&line);
                report(&line);
                (before, reported) = (now, Instant::now());
            }
        }
        // Whatever one ended by, the others end, too; workers may die while those wait for them.
        self.stop.store(true, Release);
        supervisor.stopping();
        while !cores.iter().all(|core| core.is_finished()) {
            look(self.interval);
        }
        stalls.end(self.counters, Instant::now());
    }
}

/// What whoever asks while the node runs is told of its devices.
fn ports_seen(devices: &[Device]) -> Vec<PortStats> {
    let seen = |device: &Device| PortStats { xstats: device.xstats(), ..port_stats(device) };
    devices.iter().map(seen).collect()
}

fn port_stats(device: &Device) -> PortStats {
    let counted = device.stats();
    PortStats {
        device: device.name().to_owned(),
        driver: device.driver().to_owned(),
        rx_missed: counted.rx_missed,
        rx_partial: counted.rx_partial,
        rx_other_vlan: counted.rx_other_vlan,
        rx_no_mbuf: counted.rx_no_mbuf,
        rx_errors: counted.rx_errors,
        tx_errors: counted.tx_errors,
        peers_refused: counted.peers_refused,
        peers_left: device.disconnects(),
        interfaces_removed: u64::from(device.is_removed()),
        xstats: BTreeMap::new(),
    }
}

/// What a run was made of, of a configuration of this text.
fn manifest(config: &str, eal: &Eal, ticks_hz: u64) -> Manifest {
    Manifest {
        revision: crate::REVISION.to_owned(),
        rustc: crate::RUSTC.to_owned(),
        dpdk: dpdk::version().unwrap_or_default(),
        eal: eal.arguments().to_vec(),
        ticks_hz,
        config: config.to_owned(),
    }
}

/// Tells the workers and policies that were there last, the cores, and all seeds of a node, whose own seed has its kind's name.
fn describe(
    account: &mut LeafStats,
    kind: &str,
    membership: &Membership,
    cores: &[usize],
    seed: u64,
) {
    account.cores = cores.to_vec();
    account.seeds = [(kind.to_owned(), seed)].into();
    let mut names = Vec::new();
    for (at, pool) in membership.pools.iter().enumerate() {
        let Some(Pool { id, policy, .. }) = pool else { continue };
        for core in 0..cores.len() {
            account.seeds.insert(format!("core{core}.pool{id}"), stream_seed(seed, core, at));
        }
        names.push(policy.to_string());
        account.policies.insert(*id, policy.to_string());
    }
    names.dedup();
    account.policy = names.join(", ");
    account.workers = membership.workers().count();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_left_is_noticed_whether_or_not_another_came() {
        let seen = |is_up, disconnects| LinkSeen { is_up, disconnects };
        let between = |before: LinkSeen, now| before.until(&now).collect::<Vec<_>>();
        assert!(between(seen(true, 3), seen(true, 3)).is_empty());
        assert!(between(seen(false, 3), seen(false, 3)).is_empty());
        assert_eq!(between(seen(false, 0), seen(true, 0)), [true]);
        assert_eq!(between(seen(true, 0), seen(false, 0)), [false], "a cable");
        assert_eq!(between(seen(true, 0), seen(false, 1)), [false], "a peer");
        assert_eq!(between(seen(true, 1), seen(true, 3)), [false, true], "back at once");
        assert_eq!(between(seen(false, 1), seen(false, 2)), [false], "came and left");
    }
}
