//! Embedded scheduler for other programs: bursts (up to 32 packets) in, verdicts out, without ports and clock. The
//! program receives and sends the packets, and passes the time, `now`, in ticks of its own clock.
//!
//! A [`Scheduler`] is created from a configuration, the same text that `wedjat leaf` reads. It hands out a
//! [`Context`] for each of `leaf.cores`, and a context decides on bursts that its owner received. Settings of
//! a leaf's own ports are ignored: `device` and `queue_slots` of a port, `mbufs`, and the CPUs named by
//! `cores` (only their number counts).
//!
//! Programs with their own header leave out the ports. A scheduler without `[[port]]` hands out a [`Picker`]
//! for each core. It takes tasks and reports as values and chooses workers. A server's `ip` is then only the
//! name of its host.
//!
//! Pools, servers and workers form the membership. [`Scheduler::apply`] changes it, and each change has a number, its
//! epoch.
//!
//! After creation no function for packets allocates, makes a system call, prints, or ends the process. With a
//! `state` in the configuration a scheduler has one thread, `wedjat-state`, which copies the state into that
//! file every 50 ms per started MiB. The thread blocks all signals and runs in the idle class, on the CPUs of
//! the thread that creates the scheduler. Create it on a thread that is not pinned to a polling core. Without
//! `state` there is no thread.
//!
//! ```
//! use wedjat::embed::{Options, Scheduler, Verdict};
//!
//! # let text = std::fs::read_to_string("../../examples/leaf.toml")?.replace("state = ", "# ");
//! # let macs = ["02:00:00:00:00:01".parse()?, "02:00:00:00:00:02".parse()?];
//! let mut scheduler = Scheduler::from_toml(&text, &Options { ticks_hz: 1_000_000_000, macs: &macs })?;
//! let mut context = scheduler.context(0).ok_or("the configuration has one core")?;
//! let mut frame = [0; 64]; // received by a port
//! let mut verdicts = [Verdict::Consumed; 1];
//! context.process(0, 1, &mut [&mut frame[..]], &mut verdicts)?;
//! match verdicts[0] {
//!     Verdict::Forward { port, worker } => println!("out of port {port}, to or from worker {worker}"),
//!     Verdict::Drop(reason) => println!("dropped: {}", reason.name()),
//!     other => println!("{other:?}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod context;
mod held;
mod picker;
mod release;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use context::{Context, Misuse, NO_WORKER, QUESTION_LEN, Question, Verdict};
pub use picker::{Picker, ReleasedTask, TaskDescription, WorkerReport};
pub use release::ReleasedPacket;
pub use wedjat_core::limits::BURST;
pub use wedjat_core::reason::DropReason;
pub use wedjat_core::stage::{Choice, Rewrite, RewriteV6};
pub use wedjat_core::state::table::Snapshot;
pub use wedjat_core::state::{MemberPresence, on_numa_node};
pub use wedjat_desired::control::{Change, ChangeError};

use wedjat_core::node::Timing;
use wedjat_core::policy::Reports;
use wedjat_core::stage::network::NetworkError;
use wedjat_core::state::table::{PoolSnapshot, Role};
use wedjat_core::state::{Counters, StateError, Table, Totals};
use wedjat_core::wire::ether::Mac;
use wedjat_desired::config::{Config, ConfigError};
use wedjat_desired::control::{Control, Membership};
use wedjat_desired::state::{Pool, ReplyPath};

/// Settings besides the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Ticks per second of the clock from which the program reads `now`.
    pub ticks_hz: u64,
    /// MAC addresses of all ports, in order. Used for ports without a configured one.
    pub macs: &'a [Mac],
}

/// Reason why no scheduler can be created.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The configuration has faults.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The state cannot be created.
    #[error(transparent)]
    State(#[from] StateError),
    /// The network is inconsistent.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A port has no MAC address.
    #[error(
        "port {0}: no MAC address; set `mac` in its [[port]], or give its device's with the options"
    )]
    Mac(usize),
    /// The configuration has local worker cores.
    #[error(
        "agent: found [agent], and the library has no rings to worker cores; allowed: a configuration without one, and \
         `wedjat agent` beside the program"
    )]
    Agent,
    /// The configuration is a spine's, or has spines.
    #[error(
        "spine: found a spine's file, or one with [[spine]], and the library cannot send \
         signals; allowed: a leaf's without one"
    )]
    Fabric,
    /// A policy needs probes to workers.
    #[error(
        "pool {0}: its policy probes workers, and the library cannot send probes; allowed: `reports` left out"
    )]
    Probes(u16),
    /// Servers of a pool answer the clients themselves.
    #[error(
        "pool {0}: found `replies = \"direct\"`, and only `wedjat leaf` has it so far; allowed: `replies` left out"
    )]
    Direct(u16),
    /// The clock has no ticks.
    #[error("ticks_hz: found 0; allowed: the ticks a second of the clock that `now` is read from")]
    Ticks,
}

/// An embedded node, without devices and threads for packets.
#[derive(Debug)]
pub struct Scheduler {
    /// Number of configured ports.
    ports: usize,
    /// Context of each core until [`Scheduler::context`] returns it. Empty without ports in the
    /// configuration.
    contexts: Vec<Option<Context>>,
    /// Picker of each core until [`Scheduler::picker`] returns it. Empty with ports.
    pickers: Vec<Option<Picker>>,
    /// Counters of each core.
    counters: Vec<Counters>,
    /// Maximum number of packets or tasks that a core holds.
    places: usize,
    /// Seed of all random streams.
    seed: u64,
    /// Conversion of ticks to nanoseconds.
    timing: Timing,
    /// State (loads, counters, neighbours) of all cores. A thread copies it into the configured file, if any, until the
    /// scheduler is dropped.
    table: Arc<Table>,
    /// Applies changes of the membership. Locked, because any thread may request them.
    control: Mutex<Control>,
}

/// State of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerState {
    /// Id of the worker.
    pub worker: u16,
    /// Id of its pool.
    pub pool: u16,
    /// Relative speed.
    pub speed: f64,
    /// Presence: configured, registered, silent, unreachable or unregistered.
    pub presence: MemberPresence,
    /// True if it gets no new tasks until it is undrained.
    pub is_drained: bool,
    /// True if it gets no new tasks, and leaves once it has answered its tasks.
    pub is_leaving: bool,
    /// Tasks in its last report to the core with the most reports.
    pub load: f64,
    /// Tasks sent to it since that report, by all cores.
    pub drift: f64,
    /// Tasks sent to it and not answered.
    pub outstanding: u64,
    /// Number of accepted reports, modulo 2^32.
    pub reports: u32,
}

impl Scheduler {
    /// Creates a scheduler from the text of a configuration.
    ///
    /// # Errors
    /// All faults of the text; otherwise the same as for [`Scheduler::new`].
    pub fn from_toml(text: &str, options: &Options<'_>) -> Result<Self, EmbedError> {
        Self::new(&Config::parse_embedded(Path::new("configuration"), text)?, options)
    }

    /// Creates a scheduler from a checked configuration.
    ///
    /// # Errors
    /// If the state file cannot be created, a port has no MAC address, or no port leads to one of the servers. If a
    /// pool has servers of both address families, there are too many neighbours, or the clock has no ticks. Also for a
    /// configuration of a spine, or one with an agent, spines, a policy that sends probes, or servers that answer
    /// clients directly.
    pub fn new(config: &Config, options: &Options<'_>) -> Result<Self, EmbedError> {
        let ticks_hz = options.ticks_hz;
        if ticks_hz == 0 {
            return Err(EmbedError::Ticks);
        }
        if config.agent.is_some() {
            return Err(EmbedError::Agent);
        }
        if config.role == Role::Spine || !config.spines.is_empty() {
            return Err(EmbedError::Fabric);
        }
        // Such a policy asks workers for their queue lengths, and the library sends no packets of its own to workers.
        let needs_probes = |pool: &Pool| {
            pool.fixed.reports == Reports::Messages && pool.policy.can_probe_by_messages()
        };
        if let Some((id, _)) = config.pools.iter().find(|(_, pool)| needs_probes(pool)) {
            return Err(EmbedError::Probes(*id));
        }
        let is_direct = |pool: &Pool| pool.fixed.replies == ReplyPath::Direct;
        if let Some((id, _)) = config.pools.iter().find(|(_, pool)| is_direct(pool)) {
            return Err(EmbedError::Direct(*id));
        }
        let macs = macs(config, options.macs)?;
        let table = crate::table(config, ticks_hz)?;
        let membership = Membership::of(config);
        let stages = crate::stages(config, &membership, macs, &table)?;
        let (cores, commands) = crate::cores(&stages);
        // The library cannot send load signals to spines, so the control refuses changes that add a spine to a pool.
        let control = Control::of(Arc::clone(&table), membership, cores.without_spines());
        let counters = (0..stages.len()).map(|core| table.counters(core)).collect();
        let (mut contexts, mut pickers) = (Vec::new(), Vec::new());
        for (stages, commands) in stages.into_iter().zip(commands) {
            match config.ports.is_empty() {
                true => pickers.push(Some(Picker::new(stages, commands, ticks_hz))),
                false => contexts.push(Some(Context::new(stages, commands, ticks_hz))),
            }
        }
        let context_places = contexts.iter().flatten().map(Context::places);
        let picker_places = pickers.iter().flatten().map(Picker::places);
        Ok(Self {
            timing: Timing { ticks_hz },
            control: Mutex::new(control),
            places: context_places.chain(picker_places).max().unwrap_or(0),
            counters,
            contexts,
            pickers,
            ports: config.ports.len(),
            seed: table.seed(),
            table,
        })
    }

    /// Returns the number of contexts or pickers: one per configured core.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.counters.len()
    }

    /// Returns the context of a core, once; it may be sent to another thread. `None` for a missing core, at a second
    /// call for a core, and for a configuration without ports.
    pub fn context(&mut self, core: usize) -> Option<Context> {
        self.contexts.get_mut(core)?.take()
    }

    /// Returns the picker of a core, once; it may be sent to another thread. `None` for a missing core, at a second
    /// call for a core, and for a configuration with ports.
    pub fn picker(&mut self, core: usize) -> Option<Picker> {
        self.pickers.get_mut(core)?.take()
    }

    /// Returns the maximum number of packets that the owner of a context keeps at a time, see [`Verdict::Hold`], or of
    /// tasks that a picker holds. It is the maximum over all cores.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places
    }

    /// Returns the number of ports.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.ports
    }

    /// Returns the sum of all cores' counters. Any thread may call it at any time.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals::read(&self.counters)
    }

    /// Returns the current state of each worker, pool by pool. Any thread that does not poll may call it at
    /// any time.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerState> {
        let membership = self.control().membership().clone();
        let pools = self.snapshot().pools.into_iter();
        let states_of_pool = |PoolSnapshot { id: pool, members, .. }: PoolSnapshot| {
            let membership = &membership;
            // The membership was read before the snapshot. A worker that joined in between is left out.
            members.into_iter().filter_map(move |member| {
                let (index, place) = membership.place(pool, member.worker)?;
                let worker = membership.pools[index].as_ref()?.members[place]?;
                Some(WorkerState {
                    worker: member.worker,
                    pool,
                    speed: worker.speed,
                    presence: member.presence,
                    is_drained: worker.is_drained,
                    is_leaving: worker.is_leaving,
                    load: member.load,
                    drift: member.drift.iter().sum(),
                    outstanding: member.outstanding.max(0).cast_unsigned(),
                    reports: member.reports,
                })
            })
        };
        pools.flat_map(states_of_pool).collect()
    }

    /// Returns the current state, as a state file has it.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.table.snapshot()
    }

    /// Applies a change of the membership. Each context or picker adopts it in `release`, when that next does periodic
    /// work. Returns the epoch of the change. Allocates and frees memory, and may wait for another thread that
    /// changes or reads the membership. Contexts never wait for it.
    ///
    /// # Errors
    /// Reason why the change is impossible. Nothing has changed then.
    pub fn apply(&self, change: &Change) -> Result<u64, ChangeError> {
        self.control().apply(change)
    }

    /// Returns the epoch up to which all contexts or pickers have adopted the changes.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.control().acknowledged()
    }

    /// Frees objects that a change replaced, and the places of workers, servers and pools that have left. Polling
    /// threads free no memory, so they leave it to this call. Call it periodically during changes; `now` is in ticks.
    pub fn collect(&self, now: u64) {
        self.control().tend(self.timing.to_ns(now));
    }

    /// Returns true after all contexts or pickers have adopted every change and no worker, server or pool is leaving.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.control().is_settled()
    }

    /// Locks the control. A panic of another thread with the lock does not block later changes.
    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the seed of all random streams.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

/// Returns the MAC address of each port: the configured one, or else that of `options` at the port's index.
fn macs(config: &Config, options: &[Mac]) -> Result<Vec<Mac>, EmbedError> {
    let ports = config.ports.iter().enumerate();
    ports
        .map(|(index, port)| port.mac.or(options.get(index).copied()).ok_or(EmbedError::Mac(index)))
        .collect()
}
