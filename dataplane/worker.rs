//! A worker core's way to its tasks: attach to an agent by name, take tasks, answer them.
//!
//! ```no_run
//! use std::time::Duration;
//! use wedjat::worker::{Gone, Options, Worker};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = Options { cpu: Some(3), ..Options::default() };
//! let mut worker = Worker::attach("host1", &options)?;
//! loop {
//!     match worker.recv(Duration::from_secs(1)) {
//!         Ok(Some(task)) => task.reply_with(|request, reply| {
//!             reply[..request.len()].copy_from_slice(request);
//!             request.len()
//!         }),
//!         Ok(None) => {}                        // nothing came in a second
//!         Err(Gone::Stopped) => return Ok(()),  // the agent has ended in order
//!         Err(gone) => return Err(gone.into()), // attach again, or end
//!     }
//! }
//! # }
//! ```
//!
//! A worker has one task at a time, and tasks are answered in the order in which they came. A task that is
//! dropped without an answer counts as completed without one: its client hears nothing. [`Worker::poll`]
//! never waits; [`Worker::recv`] waits, first spinning, then asleep. The agent makes no system call to
//! give a task unless the worker sleeps.
//!
//! A worker belongs to one thread at a time and may be moved to another. A process that attaches and then forks
//! keeps its place for as long as either process has it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cpus;
use crate::ring::region::path_of;
use crate::ring::{RegionError, WorkerEnd, WorkerRegion, attach};
use crate::state::files::come_before_others;

pub use crate::ring::TaskIds;

/// How long a sleeping worker may not notice that its agent died.
const NAP: Duration = Duration::from_millis(50);
/// Between two looks for the agent's grant.
const GRANT_LOOK: Duration = Duration::from_micros(100);

/// How to attach.
#[derive(Clone, Debug)]
pub struct Options {
    /// The worker to be, by its global id; any that is free when none.
    pub worker: Option<u16>,
    /// The pool to serve; any when none.
    pub pool: Option<u16>,
    /// Pin the calling thread to this CPU.
    pub cpu: Option<usize>,
    /// How long to wait for the agent to let the worker in; before that it has as long to answer at all, and 5 s at least.
    pub patience: Duration,
    /// How long [`Worker::recv`] spins before it sleeps.
    pub spin: Duration,
    /// Whether that becomes shorter while tasks come seldom, down to a sixteenth, and longer again when they come soon: so a core
    /// is left to others that its tasks do not need.
    pub adaptive_spin: bool,
    /// Whether the calling thread is to come before all that are not of real time (`SCHED_FIFO`).
    pub real_time: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            worker: None,
            pool: None,
            cpu: None,
            patience: Duration::from_secs(5),
            spin: Duration::from_micros(50),
            adaptive_spin: false,
            real_time: false,
        }
    }
}

/// Why a worker can't attach.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is no such region, or it can't be used.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The region's agent no longer runs.
    #[error("agent `{0}` does not run any more; start it")]
    NoAgent(String),
    /// The agent has no such worker.
    #[error("agent `{name}` has no worker {wanted}; it has {known:?}")]
    NoSuchWorker {
        /// The agent.
        name: String,
        /// What was asked for.
        wanted: String,
        /// Its workers' ids.
        known: Vec<u16>,
    },
    /// All places are taken.
    #[error(
        "agent `{0}` has a process at every worker asked for; end one, or configure more `workers`"
    )]
    Taken(String),
    /// The agent did not let the worker in.
    #[error(
        "agent `{name}` did not let worker {id} in within {patience:?}; is it stopped or overloaded?"
    )]
    NotGranted {
        /// The agent.
        name: String,
        /// The worker.
        id: u16,
        /// How long it was waited for.
        patience: Duration,
    },
    /// The thread can't be pinned.
    #[error("can't pin the worker to CPU {cpu}; this process may use {usable:?}")]
    Cpu {
        /// The CPU asked for.
        cpu: usize,
        /// Those there are.
        usable: Vec<usize>,
    },
    /// The thread can't be of real time.
    #[error(
        "the worker can't be of real time: {0}; start it as root, give it CAP_SYS_NICE, or raise its limit (ulimit -r 1)"
    )]
    RealTime(std::io::Error),
    /// The system refused.
    #[error("agent `{name}`: {error}")]
    Io {
        /// The agent.
        name: String,
        /// What the system said.
        error: std::io::Error,
    },
}

/// Why there will be no more tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// The agent ends in order, or has no place for this worker any more, and all tasks are done.
    #[error("the agent has stopped, or let go of this worker")]
    Stopped,
    /// The agent has given this worker up: it was silent for too long, or answered what it was not asked.
    #[error("the agent has shut this worker out; attach again")]
    ShutOut,
    /// The agent's process has ended otherwise.
    #[error("the agent has died; attach again once it runs")]
    AgentDied,
    /// A task's place lies beyond the region.
    #[error("the agent gave a task that can't be; is its region damaged?")]
    BadNotice,
}

/// What the dispatcher and the queue would like of a worker that is in the middle of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing: go on.
    Nothing,
    /// Another task waits behind this one.
    TaskWaits,
    /// The agent wants to end, and waits for this task.
    Stop,
}

/// A worker core at its agent.
#[derive(Debug)]
pub struct Worker {
    end: WorkerEnd,
    region: Arc<WorkerRegion>,
    spin: Spin,
    /// When the current task was taken.
    began: Instant,
    bad_notice: bool,
}

impl Worker {
    /// Attaches to the agent of this name (`name` in its configuration; a path when it holds a slash).
    ///
    /// # Errors
    /// When the agent does not run, is of another version, has no free place, or does not answer.
    pub fn attach(name: &str, options: &Options) -> Result<Self, AttachError> {
        let patience = options.patience.max(attach::PATIENCE);
        let open = || WorkerRegion::open_within(&path_of(name), patience).map(Arc::new);
        let joined = Self::join(name, &open()?, options);
        if matches!(joined, Err(AttachError::NotGranted { .. })) {
            // Its place may have gone since it was told of it.
            let region = open()?;
            wanted(name, &region, options)?;
        }
        joined
    }

    /// Becomes a worker of an agent in the same process.
    ///
    /// # Errors
    /// As [`Worker::attach`].
    pub fn join(
        name: &str,
        region: &Arc<WorkerRegion>,
        options: &Options,
    ) -> Result<Self, AttachError> {
        let mut end = claim(name, region, options)?;
        let (id, patience) = (end.place().id, options.patience);
        let began = Instant::now();
        while !end.receiver().is_granted() {
            if !region.has_agent() {
                return Err(AttachError::NoAgent(name.to_owned()));
            }
            if began.elapsed() >= patience {
                return Err(AttachError::NotGranted { name: name.to_owned(), id, patience });
            }
            std::thread::sleep(GRANT_LOOK);
        }
        end.start();
        if let Some(cpu) = options.cpu {
            pin(cpu)?;
        }
        if options.real_time {
            come_before_others().map_err(AttachError::RealTime)?;
        }
        let region = Arc::clone(region);
        let spin = Spin::new(options.spin, options.adaptive_spin);
        Ok(Self { end, region, spin, began, bad_notice: false })
    }

    /// Its global id.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.end.place().id
    }

    /// The pool it serves.
    #[must_use]
    pub fn pool(&self) -> u16 {
        self.end.place().pool
    }

    /// Bytes that a task or a reply may have.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        self.region.shape().payload
    }

    /// The next task, if one is there. Never waits and makes no system call. A task that was forgotten
    /// (`mem::forget`) and not answered counts as dropped.
    ///
    /// Nobody may ever come again: ask [`Worker::check`] now and then.
    #[inline]
    pub fn poll(&mut self) -> Option<Task<'_>> {
        self.forgotten();
        if self.bad_notice {
            return None;
        }
        match self.end.take() {
            Ok(true) => {
                self.began = Instant::now();
                Some(Task { worker: self })
            }
            Ok(false) => None,
            Err(_) => {
                self.bad_notice = true;
                None
            }
        }
    }

    #[inline]
    fn forgotten(&mut self) {
        if self.end.has_task() {
            self.end.give_up(nanoseconds(self.began.elapsed()));
        }
    }

    /// The next task, waiting for it for at most `timeout`: spinning first, then asleep.
    ///
    /// # Errors
    /// When there will be no more tasks.
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<Task<'_>>, Gone> {
        self.forgotten();
        Ok(if self.wait(timeout)? { self.poll() } else { None })
    }

    /// The task that was taken and then forgotten (`mem::forget`), to be answered now: what an interface
    /// that can't keep a borrow between two calls needs.
    #[inline]
    pub fn resume(&mut self) -> Option<Task<'_>> {
        self.end.has_task().then_some(Task { worker: self })
    }

    /// Whether tasks may still come.
    ///
    /// # Errors
    /// Why they will not.
    pub fn check(&self) -> Result<(), Gone> {
        let receiver = self.end.receiver();
        if self.bad_notice {
            return Err(Gone::BadNotice);
        }
        // In this order: tasks given before the word to stop are seen by whoever sees that word.
        if receiver.is_stopped() && !receiver.is_ready() {
            return Err(Gone::Stopped);
        }
        if !receiver.is_granted() {
            return Err(if self.region.has_agent() { Gone::ShutOut } else { Gone::AgentDied });
        }
        if self.region.has_agent() { Ok(()) } else { Err(Gone::AgentDied) }
    }

    /// Waits until a task is there (true) or the time is over (false).
    fn wait(&mut self, timeout: Duration) -> Result<bool, Gone> {
        if self.end.receiver().is_ready() && !self.bad_notice {
            return Ok(true);
        }
        let began = Instant::now();
        let waited = self.wait_since(began, timeout);
        self.spin.learn(began.elapsed());
        waited
    }

    fn wait_since(&self, began: Instant, timeout: Duration) -> Result<bool, Gone> {
        let receiver = self.end.receiver();
        while began.elapsed() < self.spin.now.min(timeout) {
            if receiver.is_ready() {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        loop {
            self.check()?;
            if receiver.is_ready() {
                return Ok(true);
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            self.end.sleep(left.min(NAP));
        }
    }
}

/// How long a worker spins before it sleeps.
#[derive(Clone, Copy, Debug)]
struct Spin {
    now: Duration,
    longest: Duration,
    is_adaptive: bool,
}

/// The longest spin is at most so many times the shortest.
const SPIN_RANGE: u32 = 16;

impl Spin {
    fn new(longest: Duration, is_adaptive: bool) -> Self {
        Self { now: longest, longest, is_adaptive }
    }

    /// A wait took so long: spinning would have met what came within the longest spin, and would have been in vain otherwise.
    fn learn(&mut self, waited: Duration) {
        if self.is_adaptive {
            self.now = match waited <= self.longest {
                true => (self.now * 2).min(self.longest),
                false => (self.now / 2).max(self.longest / SPIN_RANGE),
            };
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// The channels of those workers that one is asked to be.
fn wanted(name: &str, region: &WorkerRegion, options: &Options) -> Result<Vec<usize>, AttachError> {
    let channels = 0..region.shape().channels;
    let places = channels.filter_map(|channel| Some((channel, region.place(channel)?)));
    let fits = |id: u16, pool: u16| {
        options.worker.is_none_or(|worker| worker == id)
            && options.pool.is_none_or(|wanted| wanted == pool)
    };
    let (mut wanted, mut known) = (Vec::new(), Vec::new());
    for (channel, place) in places {
        known.push(place.id);
        if fits(place.id, place.pool) {
            wanted.push(channel);
        }
    }
    if wanted.is_empty() {
        let worker = options.worker.map_or("at all".to_owned(), |id| format!("with id {id}"));
        let pool = options.pool.map_or(String::new(), |pool| format!(" in pool {pool}"));
        let (name, wanted) = (name.to_owned(), format!("{worker}{pool}"));
        return Err(AttachError::NoSuchWorker { name, wanted, known });
    }
    Ok(wanted)
}

/// A place for the worker that was asked for.
fn claim(
    name: &str,
    region: &Arc<WorkerRegion>,
    options: &Options,
) -> Result<WorkerEnd, AttachError> {
    let owned = || name.to_owned();
    if !region.has_agent() {
        return Err(AttachError::NoAgent(owned()));
    }
    for channel in wanted(name, region, options)? {
        let claimed =
            region.claim(channel).map_err(|error| AttachError::Io { name: owned(), error })?;
        if let Some(claimed) = claimed {
            return Ok(claimed);
        }
    }
    Err(AttachError::Taken(owned()))
}

fn pin(cpu: usize) -> Result<(), AttachError> {
    let usable = cpus::usable();
    let known = usable.contains(&cpu);
    if known && cpus::pin(cpu) {
        return Ok(());
    }
    Err(AttachError::Cpu { cpu, usable })
}

/// A task in the worker's hands.
#[derive(Debug)]
pub struct Task<'a> {
    worker: &'a mut Worker,
}

impl Task<'_> {
    /// What the client sent behind the task header.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.worker.end.payload()
    }

    /// Its ids and type.
    #[inline]
    #[must_use]
    pub fn ids(&self) -> TaskIds {
        self.worker.end.ids()
    }

    /// Task type, 0 when unknown.
    #[inline]
    #[must_use]
    pub fn class(&self) -> u16 {
        self.ids().class
    }

    /// When it was taken.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.worker.began
    }

    /// Bytes that a reply may have.
    #[inline]
    #[must_use]
    pub fn reply_max(&self) -> usize {
        self.worker.payload_max()
    }

    /// What is wished of the worker meanwhile. Long tasks ask now and then, and may answer early, give up, or
    /// do their housekeeping later.
    #[inline]
    #[must_use]
    pub fn yield_point(&self) -> Wish {
        let receiver = self.worker.end.receiver();
        if receiver.is_stopped() || !receiver.is_granted() {
            Wish::Stop
        } else if receiver.is_ready() {
            Wish::TaskWaits
        } else {
            Wish::Nothing
        }
    }

    /// Answers with these bytes.
    ///
    /// # Errors
    /// When they are more than a reply may have: the task is completed without an answer then.
    #[inline]
    pub fn reply(self, answer: &[u8]) -> Result<(), TooLong> {
        let most = self.reply_max();
        if answer.len() > most {
            return Err(TooLong { len: answer.len(), most });
        }
        self.reply_with(|_, reply| {
            reply[..answer.len()].copy_from_slice(answer);
            answer.len()
        });
        Ok(())
    }

    /// Answers with what `write` puts into its second argument, given the task's bytes as its first; it returns
    /// how many bytes the answer has.
    ///
    /// # Panics
    /// When it returns more than it was given room for.
    #[inline]
    pub fn reply_with(self, write: impl FnOnce(&[u8], &mut [u8]) -> usize) {
        let began = self.worker.began;
        self.worker.end.answer(write, || nanoseconds(began.elapsed()));
    }
}

impl Drop for Task<'_> {
    #[inline]
    fn drop(&mut self) {
        // Answered already unless it is given up.
        self.worker.forgotten();
    }
}

/// A reply that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a reply of {len} bytes, where at most {most} fit; the agent's `payload` sets that")]
pub struct TooLong {
    /// Its bytes.
    pub len: usize,
    /// Bytes that fit.
    pub most: usize,
}

#[cfg(test)]
mod tests;
