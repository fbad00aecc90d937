//! Loop of the dispatcher's core: open-loop load, the dispatcher and rings of an agent, and the status words. The
//! guard and the learners of the batch read the agent's latencies and waiting tasks from these words.
//!
//! The worker receives one task at a time, so that each hand-over finds it idle. The payload of a task is its
//! service time. The payload of the reply is the time at which the worker took the task. Both processes read
//! the same system clock.

use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use rand::SeedableRng;
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::time::{ClockId, clock_gettime};
use wedjat::policy::{Core, Dispatcher, Overflow};
use wedjat::ring::{AgentStatusWords, Outcome, TaskIds, WorkerIdentity, WorkerRegion};
use wedjat::role::agent::{Completion, Work, WorkerSet};
use wedjat::state::View;

use super::Failure;
use super::plan::{Load, Phase};
use crate::app::{App, Spin};

/// Maximum number of queued tasks, enough for one second of overload.
const QUEUE: usize = 1 << 14;
/// Interval between ticks of the workers and updates of the status words.
const TICK_NS: u64 = 1_000_000;
/// Time for the last tasks to finish.
const DRAIN_NS: u64 = 300_000_000;
/// Identity of the only worker.
const IDENTITY: WorkerIdentity = WorkerIdentity { id: 1, pool: 1 };
/// Time that was not measured, or is infinite.
pub const NEVER: u32 = u32::MAX;

/// Returns the time of the monotonic clock in nanoseconds. All processes of a machine share it, and it is
/// never set.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// App that serves tasks for the time in their payload and replies with the time at which it took them.
pub struct TimedTasks(pub Spin);

impl App for TimedTasks {
    fn serve(&self, work: &[u8], reply: &mut [u8], yield_point: &impl Fn()) -> usize {
        let taken_at = now_ns();
        self.0.busy(word(work) as f64, yield_point);
        reply[..8].copy_from_slice(&taken_at.to_le_bytes());
        8
    }
}

/// Decodes the first eight bytes, a payload or a reply, as a little-endian number; 0 if there are fewer.
fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Task whose payload is its service time, as the dispatcher holds it.
struct Timing {
    /// Index of its record in [`DispatchCounts::tasks`].
    seq: u32,
    /// Service time in nanoseconds.
    bytes: [u8; 8],
}

impl Work for Timing {
    type Parcel = Box<Self>;

    fn since_ns(&self) -> u64 {
        0 // only for the histogram of waits, which this benchmark does not read
    }

    fn ids(&self) -> TaskIds {
        TaskIds { app: 1, seq: self.seq, class: 1 }
    }

    fn payload(&self) -> &[u8] {
        &self.bytes
    }

    // A channel copies the payload. The worker set calls `pack` and `unpack` only for threads.
    fn pack(self) -> (Box<Self>, u32) {
        (Box::new(self), 0) // 0: no note for `unpack`
    }

    fn unpack(parcel: Box<Self>, _: u32) -> Option<Self> {
        Some(*parcel)
    }
}

/// Record of a task.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Due time.
    pub due_ns: u64,
    /// Time at which the dispatcher received it. Later than the due time if the dispatcher had no CPU.
    pub offered_ns: u64,
    /// Service time.
    pub service_ns: u32,
    /// Time from the offer to the dispatcher until an idle worker took the task; [`NEVER`] if the task queued behind
    /// another or was not answered.
    pub hand_over_ns: u32,
    /// Time from the due time to the reply; [`NEVER`] without a reply.
    pub response_ns: u32,
}

/// Results of the loop for one block.
#[derive(Clone, Debug, Default)]
pub struct DispatchCounts {
    /// All tasks in the order of their due times.
    pub tasks: Vec<Task>,
    /// Number of answered tasks.
    pub answered: u64,
    /// Number of tasks without a reply because the queue was full or the worker left.
    pub refused: u64,
    /// Number of tasks that the dispatcher or the worker still holds at the end of the drain.
    pub unanswered: u64,
    /// Number of tasks completed without a valid reply.
    pub wrong: u64,
    /// Start of each phase, and end of the last one.
    pub phases_ns: Vec<u64>,
}

impl DispatchCounts {
    /// Returns true if each task is in one account and no reply was invalid. Otherwise the block fails.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.tasks.len() as u64 == self.answered + self.refused + self.unanswered && self.wrong == 0
    }
}

/// Dispatcher of one worker, with a region (shared memory) to which the worker attaches. The batch's job treats it as
/// an agent and reads its status words.
pub struct Rig {
    /// Memory between the dispatcher and the worker.
    region: WorkerRegion,
    /// Dispatcher with the rings to the worker.
    workers: WorkerSet<Timing>,
    /// Words that the guard and the learners read: core, waiting tasks and latencies.
    status: AgentStatusWords,
}

impl Rig {
    /// Creates the region at `path`, for a dispatcher on CPU `core`. The batch must not run on that CPU.
    ///
    /// # Errors
    /// If the region cannot be created.
    pub fn new(path: &Path, core: usize) -> Result<Self, Failure> {
        // A ring of 4 tasks, with payloads of up to 64 bytes. The dispatcher has one member, seed 1 and no timeout.
        let region = WorkerRegion::create(path, &[IDENTITY], 4, 64)?;
        let view = View::heap(1, 1).remove(0);
        let dispatcher = Dispatcher::new(&"jbsq(k=1)".parse()?, view, Core::ONLY, 1)
            .with_queue(QUEUE, Overflow::Drop);
        let entries = vec![(IDENTITY, region.channel(0))];
        let workers = WorkerSet::new(IDENTITY.pool, dispatcher, entries, u64::MAX);
        let status = region.watch();
        status.set_core(core);
        Ok(Self { region, workers, status })
    }

    /// Returns true if the worker's claim was granted.
    #[must_use]
    pub fn has_worker(&self) -> bool {
        self.region.granted(0) != 0
    }

    /// Admits workers that attach.
    pub fn tick(&mut self) {
        // The worker set takes the time in ticks and in nanoseconds, which are equal here.
        let now = now_ns();
        self.workers.tick(now, now, &mut |_| {});
    }

    /// Tells the worker that no more tasks follow, so that it ends.
    pub fn stop(&self) {
        self.workers.stop();
    }
}

/// Loads in a block, phase by phase.
pub struct LoadProfile<'a> {
    /// Phases of the loads.
    pub phases: &'a [Phase],
    /// Length of a window.
    pub window: Duration,
    /// Mean of the exponentially distributed service times, in nanoseconds.
    pub service_ns: f64,
    /// Seed of service times and arrivals.
    pub seed: u64,
}

impl LoadProfile<'_> {
    /// Returns the start of each phase, and the end of the last one. The first phase starts at `began`.
    fn ends_ns(&self, began: u64) -> Vec<u64> {
        let mut end = began;
        let window = self.window.as_nanos() as u64;
        let ends = self.phases.iter().map(|phase| {
            end += phase.windows as u64 * window;
            end
        });
        std::iter::once(began).chain(ends).collect()
    }

    /// Returns an upper estimate of the number of tasks, to reserve their memory. Bursts count with their high load.
    fn tasks(&self) -> usize {
        let seconds = |phase: &Phase| phase.windows as f64 * self.window.as_secs_f64();
        let peak_load = |load| match load {
            Load::Steady(part) => part,
            Load::Bursts => Load::BURSTS[0].1,
        };
        let tasks: f64 = self
            .phases
            .iter()
            .map(|phase| seconds(phase) * peak_load(phase.load) * 1e9 / self.service_ns)
            .sum();
        (tasks * 1.1) as usize + 4096
    }
}

/// Sends the due tasks from time `began` until the end of the phases, then waits for their replies. The memory
/// for the records is reserved in advance, so that the loop does not stall in the allocator.
pub fn run(rig: &mut Rig, loads: &LoadProfile<'_>, began: u64) -> DispatchCounts {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(loads.seed);
    // Draws from the exponential distribution with mean 1, for service times and gaps.
    let mut unit = move || -> f64 { Exp1.sample(&mut random) };
    let phases_ns = loads.ends_ns(began);
    let mut counts =
        DispatchCounts { tasks: Vec::with_capacity(loads.tasks()), ..DispatchCounts::default() };
    let mut accounts = Accounts::default();
    let (mut phase, mut due, mut next_tick) = (0, began, began);
    let end = phases_ns[phases_ns.len() - 1];
    loop {
        let now = now_ns();
        while due <= now && due < end {
            while due >= phases_ns[phase + 1] {
                phase += 1;
            }
            let part = loads.phases[phase].load.at(due - phases_ns[phase]);
            if part <= 0.0 {
                // Skips a phase without load. The next task is due at its end.
                due = phases_ns[phase + 1];
                continue;
            }
            // The first round only draws the first task's due time.
            if due > began {
                let service_ns = unit() * loads.service_ns;
                offer(rig, &mut counts, due, service_ns as u32);
            }
            // The mean gap is the mean service time over the load.
            due += (unit() * loads.service_ns / part) as u64 + 1;
        }
        rig.workers.collect(now, &mut |completion| {
            accounts.count(&mut counts.tasks, &rig.status, &completion)
        });
        if now >= next_tick {
            next_tick = now + TICK_NS;
            rig.workers.tick(now, now, &mut |completion| {
                accounts.count(&mut counts.tasks, &rig.status, &completion);
            });
            rig.status.set_waiting(rig.workers.backlog() as u64);
            let is_drained = now >= end && rig.workers.held() == 0;
            if is_drained || now >= end + DRAIN_NS {
                break;
            }
        }
    }
    DispatchCounts {
        answered: accounts.answered,
        refused: counts.refused + accounts.refused,
        unanswered: rig.workers.held() as u64,
        wrong: accounts.wrong,
        phases_ns,
        ..counts
    }
}

/// Offers a due task to the dispatcher and records it.
fn offer(rig: &mut Rig, counts: &mut DispatchCounts, due_ns: u64, service_ns: u32) {
    let seq = counts.tasks.len() as u32;
    let offered_ns = now_ns();
    let bytes = u64::from(service_ns).to_le_bytes();
    let task = Task { due_ns, offered_ns, service_ns, hand_over_ns: NEVER, response_ns: NEVER };
    counts.tasks.push(task);
    let mut task = [Some(Timing { seq, bytes })];
    rig.workers.submit_run(&mut task, offered_ns, &mut |result, _| match result {
        Err(_) => counts.refused += 1,
        // The idle worker received the task at once: 0 marks this until the reply brings the time of the
        // hand-over.
        Ok(Some(_)) => counts.tasks[seq as usize].hand_over_ns = 0,
        Ok(None) => {}
    });
}

/// Counts of completed tasks. Separate from [`DispatchCounts`]: `count` borrows both its tasks and these counts.
#[derive(Default)]
struct Accounts {
    answered: u64,
    /// Number of accepted tasks that the dispatcher dropped because the worker left.
    refused: u64,
    /// Number of tasks without a valid reply.
    wrong: u64,
}

impl Accounts {
    /// Counts a completed task. If it was answered, records its times and publishes its latency.
    fn count(
        &mut self,
        tasks: &mut [Task],
        status: &AgentStatusWords,
        completion: &Completion<'_, Timing>,
    ) {
        let task = &mut tasks[completion.task.seq as usize];
        let was_sent_at_once = task.hand_over_ns != NEVER;
        task.hand_over_ns = NEVER;
        match completion.outcome {
            // The reply is the time at which the worker took the task, in eight bytes.
            Ok(Outcome::Reply { len: 8, .. }) => {
                let (now, mut taken_at) = (now_ns(), [0; 8]);
                completion.channel.reply(completion.position, &mut taken_at);
                let nanoseconds = |from: u64, to: u64| {
                    u32::try_from(to.saturating_sub(from)).unwrap_or(NEVER - 1).min(NEVER - 1)
                };
                if was_sent_at_once {
                    task.hand_over_ns = nanoseconds(task.offered_ns, word(&taken_at));
                }
                task.response_ns = nanoseconds(task.due_ns, now);
                // Publishes the latency. Like an agent, measures from the task's arrival at the dispatcher.
                status.note(now.saturating_sub(task.offered_ns));
                self.answered += 1;
            }
            Ok(_) => self.wrong += 1,
            Err(_) => self.refused += 1,
        }
    }
}

/// Admits the worker once it has attached. Returns false if `is_over` becomes true first.
pub fn admit(rig: &mut Rig, is_over: impl Fn() -> bool) -> bool {
    while !rig.has_worker() {
        if is_over() {
            return false;
        }
        rig.tick();
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

/// Waits until 1 ms before the start, which may still be unknown, and returns its time. The loop of [`run`] then
/// already polls at the start. Returns `None` if `stop` is set while the start is unknown.
pub fn wait_for(rig: &mut Rig, begin_ns: &AtomicU64, stop: &AtomicBool) -> Option<u64> {
    loop {
        rig.tick();
        rig.status.set_waiting(0);
        match begin_ns.load(Acquire) {
            0 if stop.load(Relaxed) => return None,
            begin if begin != 0 && now_ns() + 1_000_000 >= begin => return Some(begin),
            _ => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}
