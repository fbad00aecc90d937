//! A worker's interface to its agent: attach by name, take tasks, answer them.
//!
//! ```no_run
//! use std::time::Duration;
//! use wedjat::worker::{Detached, Options, Worker};
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
//!         Ok(None) => {}                            // no task for a second
//!         Err(Detached::Stopped) => return Ok(()),  // the agent has ended in order
//!         Err(reason) => return Err(reason.into()), // attach again, or end
//!     }
//! }
//! # }
//! ```
//!
//! [`Worker::poll`] and [`Worker::recv`] give one task at a time, which is answered before the next one. `poll` never
//! waits; `recv` waits, first spinning, then asleep. With [`Worker::serve`] several tasks share the worker's core, so
//! that a long task does not delay short ones. A task that is dropped without an answer counts as completed without
//! one: its client receives nothing. The agent makes a system call for a task only if the worker sleeps.
//!
//! An agent knows its workers by their identities: global id and pool. Each worker has a channel in a *region*, the
//! memory that the agent shares with its workers. A worker claims a free channel there, and the agent then grants the
//! claim.
//!
//! A worker belongs to one thread at a time and may move to another. After a fork, the channel stays taken until
//! both processes have given it up.

mod overflow;
mod quantum;
mod sharing;
mod signals;

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cpus;
use crate::ring::region::path_of;
use crate::ring::{RegionError, TakenTask, WorkerEnd, WorkerRegion, attach};
use crate::state::files::raise_priority;

pub use crate::ring::TaskIds;
pub use sharing::{Cpu, CriticalSection, QuantumClock, Sharing, SharingError};

/// Longest sleep of a waiting worker. After it the worker checks whether its agent still lives, because a dead agent
/// wakes no worker.
const NAP: Duration = Duration::from_millis(50);
/// Interval at which an attaching worker checks for the agent's grant.
const GRANT_CHECK_INTERVAL: Duration = Duration::from_micros(100);

/// Options for attaching.
#[derive(Clone, Debug)]
pub struct Options {
    /// Global id to attach as; any free one if `None`.
    pub worker: Option<u16>,
    /// Pool to serve; any if `None`.
    pub pool: Option<u16>,
    /// CPU to pin the calling thread to.
    pub cpu: Option<usize>,
    /// Longest wait for the agent's grant. [`Worker::attach`] first waits as long, and at least 5 s, until the running
    /// agent sends its region.
    pub attach_timeout: Duration,
    /// Time that [`Worker::recv`] spins before it sleeps.
    pub spin: Duration,
    /// True to shorten the spinning, down to a sixteenth, while tasks are rare, and to lengthen it again when
    /// they are frequent. Leaves the core to other threads when its tasks do not need it.
    pub adaptive_spin: bool,
    /// True to put the calling thread into the real-time class `SCHED_FIFO`.
    pub real_time: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            worker: None,
            pool: None,
            cpu: None,
            attach_timeout: Duration::from_secs(5),
            spin: Duration::from_micros(50),
            adaptive_spin: false,
            real_time: false,
        }
    }
}

/// Reason why a worker cannot attach.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The region does not exist or cannot be used.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The region's agent no longer runs.
    #[error("agent `{0}` has stopped; start it")]
    NoAgent(String),
    /// The agent has no such worker.
    #[error("agent `{name}` has no worker {wanted}; it has {known:?}")]
    NoSuchWorker {
        /// Agent.
        name: String,
        /// Requested worker.
        wanted: String,
        /// Ids of its workers.
        known: Vec<u16>,
    },
    /// All requested channels are taken.
    #[error(
        "agent `{0}` has a process at every requested worker; end one, or configure more `workers`"
    )]
    Taken(String),
    /// The agent did not grant the claim.
    #[error(
        "agent `{name}` did not accept worker {id} within {timeout:?}; check that it is not suspended or overloaded"
    )]
    NotGranted {
        /// Agent.
        name: String,
        /// Worker.
        id: u16,
        /// Time waited.
        timeout: Duration,
    },
    /// The thread cannot be pinned.
    #[error("can't pin the worker to CPU {cpu}; this process may use {usable:?}")]
    Cpu {
        /// Requested CPU.
        cpu: usize,
        /// Usable CPUs.
        usable: Vec<usize>,
    },
    /// The thread cannot enter the real-time class.
    #[error(
        "cannot give the worker real-time priority: {0}; start it as root, give it CAP_SYS_NICE, or raise its limit (ulimit -r 1)"
    )]
    RealTime(std::io::Error),
    /// The system refused.
    #[error("agent `{name}`: {error}")]
    Io {
        /// Agent.
        name: String,
        /// Error of the system.
        error: std::io::Error,
    },
}

/// Reason why no more tasks will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Detached {
    /// The agent ends in order, or has removed this worker, and all tasks are done.
    #[error("the agent has stopped, or has released this worker")]
    Stopped,
    /// The agent has excluded this worker: it was silent for too long, or answered a task that it did not
    /// get.
    #[error("the agent has excluded this worker; attach again")]
    Excluded,
    /// The agent's process has ended unexpectedly.
    #[error("the agent has died; attach again once it runs")]
    AgentDied,
    /// The position or length of a task's bytes is impossible.
    #[error("the agent sent an invalid task; its region may be damaged")]
    BadNotice,
}

/// Request to a worker in the middle of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerRequest {
    /// No request: continue.
    Nothing,
    /// Another task waits behind this one.
    TaskWaits,
    /// The agent wants to end and waits for this task, or has excluded the worker.
    Stop,
}

/// A worker attached to its agent.
pub struct Worker {
    /// This worker's end of its channel.
    end: WorkerEnd,
    /// Region of the agent. Shows whether the agent runs.
    region: Arc<WorkerRegion>,
    /// Spin time before each sleep.
    spin: Cell<Spin>,
    /// The current task of [`Worker::poll`] and [`Worker::recv`], so that a forgotten one (`mem::forget`) is completed.
    current: Cell<Option<TakenTask>>,
    /// Time at which the current task was taken.
    began: Cell<Instant>,
    /// State of the shared core during [`Worker::serve`].
    core: Option<Box<sharing::SharedCore>>,
    /// True after an invalid task from the agent.
    bad_notice: Cell<bool>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("end", &self.end).finish_non_exhaustive()
    }
}

impl Worker {
    /// Attaches to the agent with this name (`name` in its configuration; a path if it contains a slash).
    ///
    /// # Errors
    /// If the agent does not run or answer, is of another user or version, or has no such worker or no free channel.
    /// Also if the thread cannot be pinned or made real-time.
    pub fn attach(name: &str, options: &Options) -> Result<Self, AttachError> {
        let timeout = options.attach_timeout.max(attach::OFFER_TIMEOUT);
        let open = || WorkerRegion::open_within(&path_of(name), timeout).map(Arc::new);
        let result = Self::join(name, &open()?, options);
        if matches!(result, Err(AttachError::NotGranted { .. })) {
            // The agent may have removed the worker meanwhile. A new view of the region then gives `NoSuchWorker`, the
            // better error.
            let region = open()?;
            requested_channels(name, &region, options)?;
        }
        result
    }

    /// Attaches to an open region, for example that of an agent in the same process. `name` is the agent's, for errors.
    ///
    /// # Errors
    /// Same as for [`Worker::attach`].
    pub fn join(
        name: &str,
        region: &Arc<WorkerRegion>,
        options: &Options,
    ) -> Result<Self, AttachError> {
        let end = claim(name, region, options)?;
        let (id, timeout) = (end.identity().id, options.attach_timeout);
        let began = Instant::now();
        while !end.receiver().is_granted() {
            if !region.has_agent() {
                return Err(AttachError::NoAgent(name.to_owned()));
            }
            if began.elapsed() >= timeout {
                return Err(AttachError::NotGranted { name: name.to_owned(), id, timeout });
            }
            std::thread::sleep(GRANT_CHECK_INTERVAL);
        }
        // Skips the tasks of the channel's former worker.
        end.start();
        if let Some(cpu) = options.cpu {
            pin(cpu)?;
        }
        if options.real_time {
            raise_priority().map_err(AttachError::RealTime)?;
        }
        let region = Arc::clone(region);
        Ok(Self {
            end,
            region,
            spin: Cell::new(Spin::new(options.spin, options.adaptive_spin)),
            current: Cell::new(None),
            began: Cell::new(began),
            core: None,
            bad_notice: Cell::new(false),
        })
    }

    /// Returns the worker's global id.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.end.identity().id
    }

    /// Returns the id of the worker's pool.
    #[must_use]
    pub fn pool(&self) -> u16 {
        self.end.identity().pool
    }

    /// Returns the maximum bytes of a task or a reply.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        self.region.shape().payload
    }

    /// Returns the next task, if one is available. Never waits and makes no system call. A task that was
    /// forgotten (`mem::forget`) and not answered counts as dropped.
    ///
    /// Does not detect the end of the agent: call [`Worker::check`] now and then.
    #[inline]
    pub fn poll(&mut self) -> Option<Task<'_>> {
        self.drop_forgotten();
        let taken = self.take()?;
        // A copy, by which a task that is forgotten (`mem::forget`) can still be completed.
        self.current.set(Some(taken.duplicate()));
        self.began.set(Instant::now());
        Some(Task { worker: self, taken: Some(taken) })
    }

    /// Takes the next task; `None` if none is available, or if the agent has sent an invalid one.
    #[inline]
    fn take(&self) -> Option<TakenTask> {
        if self.bad_notice.get() {
            return None;
        }
        self.end.take().unwrap_or_else(|_| {
            self.bad_notice.set(true);
            None
        })
    }

    /// Completes a task that was taken and not answered, without an answer.
    #[inline]
    fn drop_forgotten(&self) {
        if let Some(taken) = self.current.take() {
            self.end.end_without_reply(taken, self.worked_ns());
        }
    }

    /// Returns the time worked on the current task, in nanoseconds.
    #[inline]
    fn worked_ns(&self) -> u64 {
        match &self.core {
            None => nanoseconds(self.began.get().elapsed()),
            Some(core) => core.worked_ns(),
        }
    }

    /// Returns the next task, waiting for at most `timeout`: first spinning, then asleep. Returns `None` after the
    /// timeout, or at once for an invalid task, which [`Worker::check`] reports.
    ///
    /// # Errors
    /// If no more tasks will come.
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<Task<'_>>, Detached> {
        self.drop_forgotten();
        Ok(if self.wait(timeout)? { self.poll() } else { None })
    }

    /// Returns the task that was taken and then forgotten (`mem::forget`), so that the caller can answer it; `None` if
    /// there is no such task. For interfaces that cannot keep a borrow between two calls.
    #[inline]
    pub fn resume(&mut self) -> Option<Task<'_>> {
        let taken = self.current.take()?;
        self.current.set(Some(taken.duplicate()));
        Some(Task { worker: self, taken: Some(taken) })
    }

    /// Checks whether tasks may still come.
    ///
    /// # Errors
    /// Reason why no more tasks will come.
    pub fn check(&self) -> Result<(), Detached> {
        let receiver = self.end.receiver();
        if self.bad_notice.get() {
            return Err(Detached::BadNotice);
        }
        // Reads the stop request before the tasks: a worker that sees the request sees all tasks given before it.
        if receiver.is_stopped() && !receiver.is_ready() {
            return Err(Detached::Stopped);
        }
        // A worker has no grant if the agent has excluded it, or if the agent has ended.
        if !receiver.is_granted() {
            return Err(if self.region.has_agent() {
                Detached::Excluded
            } else {
                Detached::AgentDied
            });
        }
        if self.region.has_agent() { Ok(()) } else { Err(Detached::AgentDied) }
    }

    /// Waits for a task (true) or the timeout (false), and adapts the spin time to the wait.
    fn wait(&self, timeout: Duration) -> Result<bool, Detached> {
        // Other notices may be ready behind an invalid one.
        if self.bad_notice.get() {
            return Err(Detached::BadNotice);
        }
        if self.end.receiver().is_ready() {
            return Ok(true);
        }
        let began = Instant::now();
        let waited = self.wait_since(began, timeout);
        let mut spin = self.spin.get();
        spin.learn(began.elapsed());
        self.spin.set(spin);
        waited
    }

    /// Waits for a task (true) until `began` plus `timeout` (false), first spinning, then asleep.
    fn wait_since(&self, began: Instant, timeout: Duration) -> Result<bool, Detached> {
        let receiver = self.end.receiver();
        while began.elapsed() < self.spin.get().current.min(timeout) {
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
            let remaining = timeout.saturating_sub(began.elapsed());
            if remaining.is_zero() {
                return Ok(false);
            }
            self.end.sleep(remaining.min(NAP));
        }
    }
}

/// Spin time of a worker before it sleeps.
#[derive(Clone, Copy, Debug)]
struct Spin {
    /// Spin time now; at most `longest`.
    current: Duration,
    /// Spin time that the options allow.
    longest: Duration,
    /// True to adapt `current` to the length of waits.
    is_adaptive: bool,
}

/// Ratio of the longest to the shortest spin time.
const SPIN_RANGE: u32 = 16;

impl Spin {
    /// Creates the state of a worker that spins for `longest` at first.
    fn new(longest: Duration, is_adaptive: bool) -> Self {
        Self { current: longest, longest, is_adaptive }
    }

    /// Adapts to the length of a wait that a task or the timeout ended. Doubles the spin time if spinning for
    /// `longest` would have covered the wait. Otherwise spinning was useless, so halves it.
    fn learn(&mut self, waited: Duration) {
        if self.is_adaptive {
            self.current = match waited <= self.longest {
                true => (self.current * 2).min(self.longest),
                false => (self.current / 2).max(self.longest / SPIN_RANGE),
            };
        }
    }
}

/// Returns a time in nanoseconds.
fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Returns the indices of the channels whose worker fits the requested id and pool, or
/// [`AttachError::NoSuchWorker`] if there are none.
fn requested_channels(
    name: &str,
    region: &WorkerRegion,
    options: &Options,
) -> Result<Vec<usize>, AttachError> {
    let channels = 0..region.shape().channels;
    let identities = channels.filter_map(|channel| Some((channel, region.identity(channel)?)));
    let fits = |id: u16, pool: u16| {
        options.worker.is_none_or(|worker| worker == id)
            && options.pool.is_none_or(|wanted| wanted == pool)
    };
    let (mut wanted, mut known) = (Vec::new(), Vec::new());
    for (channel, identity) in identities {
        known.push(identity.id);
        if fits(identity.id, identity.pool) {
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

/// Claims the first free channel that fits the options. The agent must still grant the claim.
fn claim(
    name: &str,
    region: &Arc<WorkerRegion>,
    options: &Options,
) -> Result<WorkerEnd, AttachError> {
    let owned = || name.to_owned();
    if !region.has_agent() {
        return Err(AttachError::NoAgent(owned()));
    }
    for channel in requested_channels(name, region, options)? {
        let claimed =
            region.claim(channel).map_err(|error| AttachError::Io { name: owned(), error })?;
        if let Some(claimed) = claimed {
            return Ok(claimed);
        }
    }
    Err(AttachError::Taken(owned()))
}

/// Pins the calling thread to a CPU. The error has the usable CPUs.
fn pin(cpu: usize) -> Result<(), AttachError> {
    let usable = cpus::usable();
    let is_usable = usable.contains(&cpu);
    if is_usable && cpus::pin(cpu) {
        return Ok(());
    }
    Err(AttachError::Cpu { cpu, usable })
}

/// A task that the worker has taken. Dropping it completes it without an answer.
#[derive(Debug)]
pub struct Task<'a> {
    worker: &'a Worker,
    /// `None` once it is completed.
    taken: Option<TakenTask>,
}

impl Task<'_> {
    /// Returns the client's bytes after the task header.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.taken.as_ref().map_or(&[], |taken| self.worker.end.payload(taken))
    }

    /// Returns the task's ids and class.
    #[inline]
    #[must_use]
    pub fn ids(&self) -> TaskIds {
        self.taken.as_ref().map_or_else(TaskIds::default, |taken| self.worker.end.ids(taken))
    }

    /// Returns the task's class; 0 if unknown.
    #[inline]
    #[must_use]
    pub fn class(&self) -> u16 {
        self.ids().class
    }

    /// Returns the time worked on the task so far, without the time that other tasks had the core.
    #[must_use]
    pub fn worked(&self) -> Duration {
        Duration::from_nanos(self.worker.worked_ns())
    }

    /// Returns the maximum bytes of a reply.
    #[inline]
    #[must_use]
    pub fn reply_max(&self) -> usize {
        self.worker.payload_max()
    }

    /// Returns the current request to the worker. Long tasks check it now and then, and may answer early,
    /// give up, or postpone housekeeping.
    #[inline]
    #[must_use]
    pub fn request(&self) -> WorkerRequest {
        let receiver = self.worker.end.receiver();
        if receiver.is_stopped() || !receiver.is_granted() {
            WorkerRequest::Stop
        } else if receiver.is_ready() {
            WorkerRequest::TaskWaits
        } else {
            WorkerRequest::Nothing
        }
    }

    /// Answers with these bytes.
    ///
    /// # Errors
    /// If they exceed [`Task::reply_max`]. The task is then completed without an answer.
    #[inline]
    pub fn reply(self, answer: &[u8]) -> Result<(), ReplyTooLong> {
        let max = self.reply_max();
        if answer.len() > max {
            return Err(ReplyTooLong { len: answer.len(), most: max });
        }
        self.reply_with(|_, reply| {
            reply[..answer.len()].copy_from_slice(answer);
            answer.len()
        });
        Ok(())
    }

    /// Answers with the bytes that `write` puts into its second argument, given the task's bytes as its
    /// first; `write` returns the answer's length.
    ///
    /// # Panics
    /// If `write` returns more than the buffer's length. The task is then completed without an answer.
    #[inline]
    pub fn reply_with(self, write: impl FnOnce(&[u8], &mut [u8]) -> usize) {
        self.answer_with(|bytes, reply| Some(write(bytes, reply)));
    }

    /// Same as [`Task::reply_with`], but without an answer if `write` returns `None`.
    ///
    /// # Panics
    /// Same as for [`Task::reply_with`].
    #[inline]
    pub fn answer_with(mut self, write: impl FnOnce(&[u8], &mut [u8]) -> Option<usize>) {
        let worker = self.worker;
        let Some(taken) = self.taken.take() else { return };
        let answered = worker.end.answer_if(taken, write, || worker.worked_ns());
        if let Err(taken) = answered {
            self.taken = Some(taken);
            panic!("a reply is longer than the {} bytes that fit", self.reply_max());
        }
        worker.current.set(None);
    }
}

impl Drop for Task<'_> {
    #[inline]
    fn drop(&mut self) {
        // A forgotten task (`mem::forget`) skips this. The next poll, or the end of its handler, completes it.
        if let Some(taken) = self.taken.take() {
            self.worker.current.set(None);
            self.worker.end.end_without_reply(taken, self.worker.worked_ns());
        }
    }
}

/// A reply that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a reply of {len} bytes, where at most {most} fit; the agent's `payload` sets that")]
pub struct ReplyTooLong {
    /// Length of the reply in bytes.
    pub len: usize,
    /// Maximum length in bytes.
    pub most: usize,
}

#[cfg(test)]
mod tests;
