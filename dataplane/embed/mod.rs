//! The scheduler for other people's programs: bursts in, verdicts out, no ports, no clock.
//!
//! A [`Scheduler`] is made from a configuration, the same text that `wedjat leaf` takes; it hands out a [`Context`] for
//! each of `leaf.cores`, and a context decides on bursts that its owner received. What only a leaf with its own ports
//! needs is not looked at: `device` and `queue_slots` of a port, `mbufs`, and which CPUs `cores` names; only how many.
//!
//! Programs with a header of their own leave out the ports: a scheduler without `[[port]]` hands out a [`Picker`] for each core, which
//! is told of tasks and reports as values, and chooses workers. A server's `ip` only names its host then.
//!
//! After creation nothing that the program calls for packets allocates, calls the system, prints, or ends the process. With a `state`
//! in the configuration a scheduler has one thread, `wedjat-state`, which copies the state into that file every 50 ms. It
//! takes no signals and has only CPU time that nobody else wants, on the CPUs of the thread that makes the
//! scheduler: make it on a thread that is not pinned to a core that polls. Without `state` there is none.
//!
//! ```
//! use wedjat::embed::{Options, Scheduler, Verdict};
//!
//! # let text = std::fs::read_to_string("examples/leaf.toml")?.replace("state = ", "# ");
//! # let macs = ["02:00:00:00:00:01".parse()?, "02:00:00:00:00:02".parse()?];
//! let mut scheduler = Scheduler::from_toml(&text, &Options { ticks_hz: 1_000_000_000, macs: &macs })?;
//! let mut context = scheduler.context(0).ok_or("the configuration has one core")?;
//! let mut frame = [0; 64]; // what a port received
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

pub use crate::control::{Change, ChangeError};
pub use crate::limits::BURST;
pub use crate::reason::DropReason;
pub use crate::stage::{Choice, Rewrite, RewriteV6};
pub use crate::state::table::Snapshot;
pub use crate::state::{Presence, on_numa_node};
pub use context::{Context, Misuse, NO_WORKER, QUESTION_LEN, Question, Verdict};
pub use picker::{Picker, ReleasedTask, TaskDescription, WorkerReport};
pub use release::Released;

use crate::assembly;
use crate::config::{Config, ConfigError, PoolConfig};
use crate::control::{Control, Membership};
use crate::node::Timing;
use crate::policy::Reports;
use crate::stage::network::NetworkError;
use crate::state::table::{PoolSnapshot, Role};
use crate::state::{Counters, StateError, Table, Totals};
use crate::wire::ether::Mac;

/// What the configuration does not say.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Ticks a second of the clock whose readings the calls get as `now`.
    pub ticks_hz: u64,
    /// MAC addresses of the ports, in order, for those to which the configuration gives none.
    pub macs: &'a [Mac],
}

/// Why there is no scheduler.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The configuration has faults.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No state.
    #[error(transparent)]
    State(#[from] StateError),
    /// No network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A port without a MAC address.
    #[error(
        "port {0}: no MAC address; set `mac` in its [[port]], or give its device's with the options"
    )]
    Mac(usize),
    /// Worker cores of this host.
    #[error(
        "agent: found [agent], and the library has no rings to worker cores; allowed: a configuration without one, and \
         `wedjat agent` beside the program"
    )]
    Agent,
    /// Spines or leaves.
    #[error(
        "spine: found a spine's file, or one with [[spine]], and the library has no packets to make signals of; allowed: a \
         leaf's without one"
    )]
    Fabric,
    /// Questions to workers.
    #[error(
        "pool {0}: its policy asks workers in messages, and the library has no packets to ask with; allowed: `reports` left out"
    )]
    Asks(u16),
    /// A clock that stands.
    #[error("ticks_hz: found 0; allowed: the ticks a second of the clock that `now` is read from")]
    Ticks,
}

/// A node without ports.
#[derive(Debug)]
pub struct Scheduler {
    ports: usize,
    /// With ports.
    contexts: Vec<Option<Context>>,
    /// Without.
    pickers: Vec<Option<Picker>>,
    counters: Vec<Counters>,
    places: usize,
    seed: u64,
    timing: Timing,
    /// The state, which is published for as long as this lives.
    table: Arc<Table>,
    control: Mutex<Control>,
}

/// What is known of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerState {
    /// Its id.
    pub worker: u16,
    /// Id of its pool.
    pub pool: u16,
    /// How fast it is, relative to others.
    pub speed: f64,
    /// Whether it says itself that it is there, and whether it is silent.
    pub presence: Presence,
    /// It gets no new tasks until it is undrained.
    pub is_drained: bool,
    /// It gets no new tasks, and goes when it has answered those that it has.
    pub is_leaving: bool,
    /// Tasks in its last report.
    pub load: f64,
    /// Tasks sent to it since, by all cores.
    pub drift: f64,
    /// Tasks sent to it and not answered.
    pub outstanding: u64,
    /// Reports of its that were taken, modulo 2^32.
    pub reports: u32,
}

impl Scheduler {
    /// A scheduler from a configuration's text.
    ///
    /// # Errors
    /// All faults of the text, or what else is missing.
    pub fn from_toml(text: &str, options: &Options<'_>) -> Result<Self, EmbedError> {
        Self::new(&Config::parse_embedded(Path::new("configuration"), text)?, options)
    }

    /// A scheduler from a checked configuration.
    ///
    /// # Errors
    /// When the state file can't be had, or a port has no MAC address.
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
        let asks = |pool: &&PoolConfig| pool.reports == Reports::Messages && pool.policy.probes();
        if let Some(pool) = config.pools.iter().find(asks) {
            return Err(EmbedError::Asks(pool.id));
        }
        let macs = macs(config, options.macs)?;
        let table = assembly::table(config, ticks_hz)?;
        let membership = Membership::of(config);
        let stages = assembly::stages(config, &membership, macs, &table)?;
        let (cores, commands) = assembly::cores(&stages, &table);
        let control = Control::of(Arc::clone(&table), membership, cores.without_spines());
        let counters = (0..stages.len()).map(|core| table.counters(core)).collect();
        let (mut contexts, mut pickers) = (Vec::new(), Vec::new());
        for (stages, commands) in stages.into_iter().zip(commands) {
            match config.ports.is_empty() {
                true => pickers.push(Some(Picker::new(stages, commands, ticks_hz))),
                false => contexts.push(Some(Context::new(stages, commands, ticks_hz))),
            }
        }
        let of_contexts = contexts.iter().flatten().map(Context::places);
        let of_pickers = pickers.iter().flatten().map(Picker::places);
        Ok(Self {
            timing: Timing { ticks_hz },
            control: Mutex::new(control),
            places: of_contexts.chain(of_pickers).max().unwrap_or(0),
            counters,
            contexts,
            pickers,
            ports: config.ports.len(),
            seed: table.seed(),
            table,
        })
    }

    /// How many contexts or pickers there are: as many as the configuration has cores.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.counters.len()
    }

    /// The context of a core, once; it may be sent to the thread that is to use it. None, too, if the configuration has no ports.
    pub fn context(&mut self, core: usize) -> Option<Context> {
        self.contexts.get_mut(core)?.take()
    }

    /// The picker of a core, once; it may be sent to the thread that is to use it. None, too, if the configuration has ports.
    pub fn picker(&mut self, core: usize) -> Option<Picker> {
        self.pickers.get_mut(core)?.take()
    }

    /// How many packets the owner of a context may have to keep at once, see [`Verdict::Hold`]; how many tasks a picker may hold.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places
    }

    /// How many ports there are.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.ports
    }

    /// What all contexts have counted so far; any thread may ask at any time.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals::read(&self.counters)
    }

    /// What is known of each worker at this moment, pool by pool; any thread that polls nothing may ask at any time.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerState> {
        let membership = self.control().membership().clone();
        let pools = self.snapshot().pools.into_iter();
        let of_pool = |PoolSnapshot { id: pool, members, .. }: PoolSnapshot| {
            let membership = &membership;
            members.into_iter().filter_map(move |found| {
                let (at, place) = membership.place(pool, found.worker)?;
                let worker = membership.pools[at].as_ref()?.members[place]?;
                Some(WorkerState {
                    worker: found.worker,
                    pool,
                    speed: worker.speed,
                    presence: found.presence,
                    is_drained: worker.is_drained,
                    is_leaving: worker.is_leaving,
                    load: found.load,
                    drift: found.drift.iter().sum(),
                    outstanding: found.outstanding.max(0).cast_unsigned(),
                    reports: found.reports,
                })
            })
        };
        pools.flat_map(of_pool).collect()
    }

    /// All that the state file would tell at this moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.table.snapshot()
    }

    /// Has all contexts go over to what a change leads to, each at its next [`Context::release`]; returns the change's epoch.
    /// Takes and frees memory, and may wait for another thread that does the same; contexts never wait for it.
    ///
    /// # Errors
    /// Why the change can't be; nothing has changed then.
    pub fn apply(&self, change: &Change) -> Result<u64, ChangeError> {
        self.control().apply(change)
    }

    /// All contexts decide by the change of this epoch and all before it.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.control().acknowledged()
    }

    /// Frees what contexts have replaced, and lets go of workers, servers and pools that have left; to be called now and then
    /// while changes are made, at `now` ticks.
    pub fn tend(&self, now: u64) {
        self.control().tend(self.timing.to_ns(now));
    }

    /// Every change has been taken by all contexts, and nothing is leaving any more.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.control().is_settled()
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The seed that all random streams follow from.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

fn macs(config: &Config, given: &[Mac]) -> Result<Vec<Mac>, EmbedError> {
    let ports = config.ports.iter().enumerate();
    ports.map(|(at, port)| port.mac.or(given.get(at).copied()).ok_or(EmbedError::Mac(at))).collect()
}
