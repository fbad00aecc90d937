//! Sharing of a worker's core by several tasks. Each task is a coroutine with a stack of its own. Tasks run in turn,
//! each for a *quantum*, and change at yield points of the handler.
//!
//! Without sharing, a long task delays the short ones behind it by its whole length. With it, a short task waits for
//! about a quantum of each task in progress. Long tasks then take longer.
#![allow(unsafe_code, reason = "coroutines that borrow the worker and the handler")]

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use corosensei::stack::{DefaultStack, Stack as _};
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::overflow::{self, GuardPage, SignalStack};
use super::quantum::QuantumTimer;
use super::{Detached, Task, Worker, nanoseconds};
use crate::ring::TakenTask;

/// Longest wait of an idle worker before it calls `goes_on` of [`Worker::serve_while`] again.
const IDLE_CHECK: Duration = Duration::from_millis(20);
/// Target time between two readings of the clock at yield points, in nanoseconds. A reading takes about 25 ns, which is
/// 1% of it.
const READ_INTERVAL_NS: u64 = 2_500;
/// Maximum number of yield points for one reading of the clock. Bounds the delay when a handler changes from frequent
/// to rare yield points.
const CALLS_MAX: u32 = 128;

/// Source of the time at which a quantum ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuantumClock {
    /// Yield points read the clock, more rarely the more frequent they are.
    #[default]
    Readings,
    /// A timer of the kernel sends a signal to the thread, and yield points read a flag. For handlers whose yield
    /// points come at very different intervals. A quantum then costs a system call and a signal, about 2 us of the
    /// worker's time.
    Timer,
}

/// Parameters of [`Worker::serve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Time that a task runs before the next one gets the core: 1 us to 1 s. The task then continues after all others.
    pub quantum: Duration,
    /// Maximum number of tasks in progress, at least 1. More tasks wait in order. The slots of the worker's channel
    /// limit it, too.
    pub slots: usize,
    /// Bytes of each task's stack. Pages are allocated when a task first uses them.
    pub stack: usize,
    /// Source of the time at which a quantum ends.
    pub clock: QuantumClock,
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            quantum: Duration::from_micros(10),
            slots: 64,
            stack: 256 << 10,
            clock: QuantumClock::default(),
        }
    }
}

/// Reason why tasks cannot share the core.
#[derive(Debug, thiserror::Error)]
pub enum SharingError {
    /// The quantum is zero or too long.
    #[error("quantum: found {0:?}; allowed: 1us to 1s")]
    Quantum(Duration),
    /// There are no slots.
    #[error("slots: found 0; allowed: at least 1")]
    Slots,
    /// The stacks cannot be allocated.
    #[error(
        "cannot allocate a stack of {bytes} bytes: {error}; use fewer `slots` or a smaller `stack`"
    )]
    Stack {
        /// Bytes of the stack.
        bytes: usize,
        /// Error of the system.
        error: io::Error,
    },
    /// The signal handlers or the timer cannot be set up.
    #[error("cannot set up the signals of shared tasks: {0}")]
    Signal(#[from] io::Error),
}

/// State of a core that is shared by tasks.
pub(super) struct SharedCore {
    /// Calls of [`Cpu::yield_point`] until the next check for the end of the quantum.
    calls_left: Cell<u32>,
    /// Number of calls from the last check to the next one.
    calls: Cell<u32>,
    /// Length of a quantum.
    quantum_ns: u64,
    /// Target time between two readings of the clock: [`READ_INTERVAL_NS`], at most a quarter of the quantum.
    interval_ns: u64,
    /// Start of the present quantum.
    began: Cell<Instant>,
    /// Last reading of the clock.
    read_at: Cell<Instant>,
    /// Time that the current task worked before the present quantum, in nanoseconds.
    worked_before: Cell<u64>,
    /// Number of open critical sections of the current task, which may be nested.
    critical: Cell<u32>,
    /// True if other tasks in progress wait for the core.
    is_contended: Cell<bool>,
}

impl fmt::Debug for SharedCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCore").finish_non_exhaustive()
    }
}

impl SharedCore {
    /// Creates the state before the first task.
    fn new(sharing: &Sharing) -> Result<Self, SharingError> {
        if !(Duration::from_micros(1)..=Duration::from_secs(1)).contains(&sharing.quantum) {
            return Err(SharingError::Quantum(sharing.quantum));
        }
        if sharing.slots == 0 {
            return Err(SharingError::Slots);
        }
        let quantum_ns = nanoseconds(sharing.quantum);
        let now = Instant::now();
        Ok(Self {
            calls_left: Cell::new(0),
            calls: Cell::new(1),
            quantum_ns,
            interval_ns: READ_INTERVAL_NS.min(quantum_ns / 4),
            began: Cell::new(now),
            read_at: Cell::new(now),
            worked_before: Cell::new(0),
            critical: Cell::new(0),
            is_contended: Cell::new(false),
        })
    }

    /// Returns the time worked on the current task, in nanoseconds.
    #[inline]
    pub(super) fn worked_ns(&self) -> u64 {
        self.worked_before.get() + nanoseconds(self.began.get().elapsed())
    }

    /// Starts a quantum of a task that has worked for `worked_ns` so far. Its first yield point is a check.
    fn start_quantum(&self, now: Instant, worked_ns: u64) {
        self.worked_before.set(worked_ns);
        self.began.set(now);
        self.read_at.set(now);
        self.calls.set(1);
        self.calls_left.set(0);
    }

    /// Adapts the number of yield points until the next check to the time since the last reading of the clock.
    fn adapt_calls(&self, now: Instant) {
        let interval_ns = nanoseconds(now - self.read_at.get());
        let calls = match self.calls.get() {
            calls if interval_ns < self.interval_ns => (2 * calls).min(CALLS_MAX),
            calls if interval_ns > 2 * self.interval_ns => (calls / 2).max(1),
            calls => calls,
        };
        self.read_at.set(now);
        self.calls.set(calls);
        self.calls_left.set(calls - 1);
    }
}

/// The core on which a task runs, for its handler.
#[derive(Clone, Copy)]
pub struct Cpu<'a> {
    /// Worker that serves the task.
    worker: &'a Worker,
    /// State of the core, with the present quantum.
    core: &'a SharedCore,
    /// Timer of [`QuantumClock::Timer`]; `None` to read the clock.
    timer: Option<&'a QuantumTimer>,
    /// Means to pause the task's coroutine.
    yielder: &'a Yielder<Resume, Pause>,
}

impl fmt::Debug for Cpu<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cpu").field(&self.worker.id()).finish()
    }
}

impl<'a> Cpu<'a> {
    /// Lets other tasks run if this task's quantum has ended and others wait. Otherwise takes about 1 ns on average.
    #[inline]
    pub fn yield_point(self) {
        match self.core.calls_left.get() {
            0 => self.check(),
            left => self.core.calls_left.set(left - 1),
        }
    }

    /// Checks whether the quantum has ended, and if so, lets other tasks run.
    #[inline(never)]
    fn check(self) {
        let core = self.core;
        if core.critical.get() > 0 {
            return; // the next yield point checks again
        }
        // With a timer, the clock is read only after its signal. A task that runs alone needs no timer.
        if self.timer.is_some_and(|timer| timer.is_pending() || !self.is_contended()) {
            return;
        }
        let now = Instant::now();
        let ran_ns = nanoseconds(now - core.began.get());
        if ran_ns < core.quantum_ns {
            return match self.timer {
                None => core.adapt_calls(now),
                // The timer was not armed, or its signal belonged to the quantum of another task.
                Some(timer) => timer.arm(Duration::from_nanos(core.quantum_ns - ran_ns)),
            };
        }
        let worked_ns = core.worked_before.get() + ran_ns;
        if self.is_contended() {
            core.worked_before.set(worked_ns);
            self.yielder.suspend(Pause::Quantum); // returns after the other tasks' quanta
        } else {
            // Nothing waits, so the task gets the next quantum, too.
            core.start_quantum(now, worked_ns);
        }
    }

    /// Returns true if other tasks wait for the core.
    #[inline]
    fn is_contended(self) -> bool {
        self.core.is_contended.get() || self.worker.end.receiver().is_ready()
    }

    /// Starts a section in which yield points do nothing, for example around a lock shared by tasks of this worker. The
    /// section ends when the result is dropped. Sections may be nested.
    #[must_use = "the section ends when this is dropped"]
    pub fn critical(self) -> CriticalSection<'a> {
        self.core.critical.set(self.core.critical.get() + 1);
        CriticalSection { core: self.core }
    }

    /// Returns the time worked on this task so far, without the time that other tasks had the core.
    #[must_use]
    pub fn worked(self) -> Duration {
        Duration::from_nanos(self.core.worked_ns())
    }

    /// Ends a section that [`Cpu::critical`] started and the caller forgot (`mem::forget`). For interfaces without
    /// destructors.
    pub fn end_critical(self) {
        drop(CriticalSection { core: self.core });
    }

    /// Returns a pointer to the number of calls of [`Cpu::yield_point`] until the next check. An interface in another
    /// language decrements the number, and calls `yield_point` at 0. The pointer is valid while the worker serves.
    #[must_use]
    pub fn calls_left(self) -> *mut u32 {
        self.core.calls_left.as_ptr()
    }
}

/// Section of a handler in which its task keeps the core.
#[derive(Debug)]
pub struct CriticalSection<'a> {
    /// Core whose count of open sections falls on drop.
    core: &'a SharedCore,
}

impl Drop for CriticalSection<'_> {
    /// Ends the section.
    fn drop(&mut self) {
        self.core.critical.set(self.core.critical.get().saturating_sub(1));
    }
}

/// Value passed to a coroutine that is resumed.
enum Resume {
    /// Begin this task.
    Begin(TakenTask),
    /// Continue the current task.
    Continue,
    /// End: there are no more tasks.
    End,
}

/// Reason why a coroutine pauses.
enum Pause {
    /// The quantum of its task has ended.
    Quantum,
    /// Its task has ended.
    Done,
}

/// Coroutine that serves one task after another on its own stack.
struct TaskCoroutine {
    /// Coroutine that runs the handler.
    coroutine: Coroutine<Resume, Pause, ()>,
    /// Page below its stack.
    guard: GuardPage,
    /// Task to begin at the next run; `None` once it has begun.
    next: Option<TakenTask>,
    /// Class of its task.
    class: u16,
    /// Time worked on its task in nanoseconds, without the present quantum.
    worked_ns: u64,
    /// Quanta that its task has received.
    quanta: u32,
    /// True between the start and the end of a task.
    is_serving: bool,
}

impl TaskCoroutine {
    /// Creates a coroutine that serves tasks of `worker` with `handler` on a stack of `bytes` bytes.
    ///
    /// # Safety
    /// All references must stay valid until it is dropped.
    unsafe fn new<F>(
        worker: &Worker,
        core: &SharedCore,
        timer: Option<&QuantumTimer>,
        handler: &F,
        bytes: usize,
    ) -> Result<Self, SharingError>
    where
        F: Fn(Task<'_>, Cpu<'_>),
    {
        let stack = DefaultStack::new(bytes);
        let stack = stack.map_err(|error| SharingError::Stack { bytes, error })?;
        let guard = GuardPage::at(stack.limit().get());
        // Each turn of the loop serves one task, and hands the core back until the next one.
        let body = move |yielder: &Yielder<Resume, Pause>, mut resume: Resume| {
            while let Resume::Begin(taken) = resume {
                let held = taken.duplicate();
                let task = Task { worker, taken: Some(taken) };
                let cpu = Cpu { worker, core, timer, yielder };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| handler(task, cpu))) {
                    std::mem::forget(panic); // its destructor may panic, too
                }
                // The handler may have forgotten the task (`mem::forget`).
                if worker.end.is_in_progress(&held) {
                    worker.end.end_without_reply(held, core.worked_ns());
                }
                core.critical.set(0);
                resume = yielder.suspend(Pause::Done);
            }
        };
        // SAFETY: the caller keeps all borrowed data until this is dropped.
        let coroutine = unsafe { Coroutine::with_stack_unchecked(stack, body) };
        let (next, class, worked_ns, quanta) = (None, 0, 0, 0);
        Ok(Self { coroutine, guard, next, class, worked_ns, quanta, is_serving: false })
    }

    /// Runs its task for a quantum. Returns the reason of the pause. `bytes` is the size of its stack.
    fn run(&mut self, core: &SharedCore, timer: Option<&QuantumTimer>, bytes: usize) -> Pause {
        overflow::enter(self.guard, self.class, bytes);
        core.start_quantum(Instant::now(), self.worked_ns);
        if let Some(timer) = timer.filter(|timer| core.is_contended.get() && !timer.is_pending()) {
            timer.arm(Duration::from_nanos(core.quantum_ns));
        }
        self.is_serving = true;
        let resume = self.next.take().map_or(Resume::Continue, Resume::Begin);
        let pause = match self.coroutine.resume(resume) {
            CoroutineResult::Yield(pause) => pause,
            CoroutineResult::Return(()) => Pause::Done, // impossible: only `Resume::End` ends it
        };
        self.is_serving = matches!(pause, Pause::Quantum);
        self.worked_ns = core.worked_before.get(); // `check` has added the quantum
        pause
    }
}

impl Drop for TaskCoroutine {
    /// Ends the coroutine, so that its stack is unwound. Aborts the process in the middle of a task.
    fn drop(&mut self) {
        // In the middle of a task, this would unwind frames of the handler, which may not allow it. It happens only if
        // the serving loop panics, for example in `goes_on` of `Worker::serve_while`.
        if self.is_serving {
            std::process::abort();
        }
        if self.coroutine.started() {
            self.coroutine.resume(Resume::End);
        }
    }
}

impl Worker {
    /// Serves tasks until no more will come, and returns the reason. Several tasks share the core: each begins when it
    /// arrives, and runs for a quantum in turn. An answer leaves when the handler gives it, so answers leave in any
    /// order.
    ///
    /// `handler` gets each task and the core. Its calls of [`Cpu::yield_point`] let other tasks run. A handler that
    /// panics ends its task without an answer; the worker continues. A stack that overflows ends the process, with a
    /// message that names the task's class.
    ///
    /// ```no_run
    /// # use wedjat::worker::{Detached, Options, Sharing, Worker};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut worker = Worker::attach("host1", &Options::default())?;
    /// let reason = worker.serve(&Sharing::default(), |task, cpu| {
    ///     let mut sum = 0_u64;
    ///     for part in task.payload().chunks(64) {
    ///         sum += part.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    ///         cpu.yield_point();
    ///     }
    ///     let _ = task.reply(&sum.to_be_bytes());
    /// })?;
    /// # match reason {
    /// #     Detached::Stopped => Ok(()),
    /// #     reason => Err(reason.into()),
    /// # }
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the parameters are outside their bounds, or the system refuses the first stack, signal handlers or the timer.
    /// If it refuses a further stack, the worker continues with as many slots as it has stacks.
    pub fn serve(
        &mut self,
        sharing: &Sharing,
        handler: impl Fn(Task<'_>, Cpu<'_>),
    ) -> Result<Detached, SharingError> {
        loop {
            if let Some(reason) = self.serve_while(sharing, || true, &handler)? {
                return Ok(reason);
            }
        }
    }

    /// Same as [`Worker::serve`], but takes no more tasks once `goes_on` returns false, and returns `None` after the
    /// tasks in progress have ended. Calls `goes_on` before each quantum, and at least every 20 ms on an idle worker.
    ///
    /// # Errors
    /// Same as for [`Worker::serve`].
    pub fn serve_while(
        &mut self,
        sharing: &Sharing,
        mut goes_on: impl FnMut() -> bool,
        handler: impl Fn(Task<'_>, Cpu<'_>),
    ) -> Result<Option<Detached>, SharingError> {
        self.drop_forgotten();
        let core = SharedCore::new(sharing)?;
        let timer = match sharing.clock {
            QuantumClock::Readings => None,
            QuantumClock::Timer => Some(QuantumTimer::new()?),
        };
        let _signal_stack = SignalStack::install()?;
        self.end.complete_in_any_order();
        self.core = Some(Box::new(core));
        let slots = sharing.slots.min(self.region.shape().slots);
        let parameters = Sharing { slots, ..*sharing };
        let reason = self.share(&parameters, timer.as_ref(), &mut goes_on, &handler);
        overflow::leave();
        self.core = None;
        reason
    }

    /// Runs tasks in turn; see [`Worker::serve_while`]. Publishes the quanta of the tasks in progress, so that a policy
    /// of the agent can break ties between workers.
    fn share<F>(
        &self,
        &Sharing { mut slots, stack, .. }: &Sharing,
        timer: Option<&QuantumTimer>,
        goes_on: &mut impl FnMut() -> bool,
        handler: &F,
    ) -> Result<Option<Detached>, SharingError>
    where
        F: Fn(Task<'_>, Cpu<'_>),
    {
        let Some(core) = self.core.as_deref() else { return Ok(None) };
        let receiver = self.end.receiver();
        // Creates a coroutine with its stack.
        let new = || {
            // SAFETY: the coroutines are dropped at the end of this function, which borrows the rest.
            unsafe { TaskCoroutine::new(self, core, timer, handler, stack) }
        };
        // Creates one in advance, so that an impossible stack size is an error before the first task.
        let mut idle = Vec::with_capacity(slots);
        idle.push(new()?);
        // Tasks in progress; the first one gets the next quantum.
        let mut active = VecDeque::with_capacity(slots);
        // Quanta that the tasks in progress have received.
        let mut quanta = 0_u32;
        loop {
            let may_take = goes_on();
            while may_take && active.len() < slots && receiver.is_ready() {
                // Gets a coroutine before it takes the task, so that an error does not lose the task.
                let mut coroutine = match idle.pop() {
                    Some(coroutine) => coroutine,
                    None => match new() {
                        Ok(coroutine) => coroutine,
                        // The tasks in progress go on, from now on with as many slots as there are stacks.
                        Err(_) if !active.is_empty() => {
                            slots = active.len();
                            break;
                        }
                        Err(error) => return Err(error),
                    },
                };
                let Some(taken) = self.take() else {
                    idle.push(coroutine);
                    break;
                };
                coroutine.class = taken.class();
                coroutine.next = Some(taken);
                (coroutine.worked_ns, coroutine.quanta) = (0, 0);
                active.push_back(coroutine);
            }
            let Some(mut coroutine) = active.pop_front() else {
                if !may_take {
                    return Ok(None);
                }
                if let Some(timer) = timer {
                    timer.stop();
                }
                match self.wait(IDLE_CHECK) {
                    Ok(_) => continue,
                    Err(reason) => return Ok(Some(reason)),
                }
            };
            core.is_contended.set(!active.is_empty()); // the running task is not in `active`
            match coroutine.run(core, timer, stack) {
                Pause::Quantum => {
                    coroutine.quanta += 1;
                    quanta += 1;
                    receiver.set_quanta(quanta);
                    active.push_back(coroutine);
                }
                Pause::Done => {
                    // The published sum covers tasks in progress only.
                    if coroutine.quanta > 0 {
                        quanta -= coroutine.quanta;
                        receiver.set_quanta(quanta);
                    }
                    idle.push(coroutine);
                }
            }
        }
    }
}
