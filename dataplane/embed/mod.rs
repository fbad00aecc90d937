//! The scheduler for other people's programs: bursts in, verdicts out, no ports, no clock.
//!
//! A [`Scheduler`] is made from a configuration, the same text that `wedjat leaf` takes; it hands out a [`Context`] for
//! each of `leaf.cores`, and a context decides on bursts that its owner received. What only a leaf with its own ports
//! needs is not looked at: `device` and `queue_slots` of a port, `mbufs`, and which CPUs `cores` names; only how many.
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
mod release;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use crate::control::{Change, ChangeError};
pub use crate::limits::BURST;
pub use crate::reason::DropReason;
pub use crate::stage::Rewrite;
pub use context::{Context, Misuse, NO_WORKER, Question, Verdict};
pub use release::Released;

use crate::assembly;
use crate::config::{Config, ConfigError};
use crate::control::{Control, Membership};
use crate::node::Timing;
use crate::stage::network::NetworkError;
use crate::state::Totals;
use crate::state::table::Role;
use crate::state::{Counters, StateError};
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
    /// A clock that stands.
    #[error("ticks_hz: found 0; allowed: the ticks a second of the clock that `now` is read from")]
    Ticks,
}

/// A node without ports.
#[derive(Debug)]
pub struct Scheduler {
    ports: usize,
    contexts: Vec<Option<Context>>,
    counters: Vec<Counters>,
    places: usize,
    seed: u64,
    timing: Timing,
    /// Has the state, which publishes it for as long as it lives.
    control: Mutex<Control>,
}

impl Scheduler {
    /// A scheduler from a configuration's text.
    ///
    /// # Errors
    /// All faults of the text, or what else is missing.
    pub fn from_toml(text: &str, options: &Options<'_>) -> Result<Self, EmbedError> {
        Self::new(&Config::parse(Path::new("configuration"), text)?, options)
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
        let macs = macs(config, options.macs)?;
        let table = assembly::table(config, ticks_hz)?;
        let membership = Membership::of(config);
        let stages = assembly::stages(config, &membership, macs, &table)?;
        let (cores, commands) = assembly::cores(&stages, &table);
        let control = Control::of(Arc::clone(&table), membership, cores.without_spines());
        let context = |(stages, commands)| Some(Context::new(stages, commands, ticks_hz));
        let contexts: Vec<_> = stages.into_iter().zip(commands).map(context).collect();
        Ok(Self {
            timing: Timing { ticks_hz },
            control: Mutex::new(control),
            places: contexts.iter().flatten().map(Context::places).max().unwrap_or(0),
            counters: (0..contexts.len()).map(|core| table.counters(core)).collect(),
            contexts,
            ports: config.ports.len(),
            seed: table.seed(),
        })
    }

    /// How many contexts there are: as many as the configuration has cores.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.contexts.len()
    }

    /// The context of a core, once; it may be sent to the thread that is to use it.
    pub fn context(&mut self, core: usize) -> Option<Context> {
        self.contexts.get_mut(core)?.take()
    }

    /// How many packets the owner of a context may have to keep at once, see [`Verdict::Hold`].
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
