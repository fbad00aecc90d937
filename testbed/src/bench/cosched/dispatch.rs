//! The dispatcher's core: tasks that come due whatever becomes of those before them, an agent's own dispatcher with its rings, and
//! what is told to those who watch it, in one loop.
//!
//! The worker is given one task at a time, so that each task that is handed over finds it idle. A task's bytes are how long it
//! takes; the answer's are when the worker took it. Both ends read the same clock of the system.

use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use rand::SeedableRng;
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::time::{ClockId, clock_gettime};
use wedjat::policy::{Core, Dispatcher, Overflow};
use wedjat::ring::{Outcome, Place, TaskIds, Watch, WorkerRegion};
use wedjat::role::agent::{Completion, Work, WorkerSet};
use wedjat::state::View;

use super::Failure;
use super::plan::{Load, Phase};
use crate::app::{App, Spin};

/// Tasks that may wait: those of a second of overload.
const QUEUE: usize = 1 << 14;
/// Between two looks at who came or went, and two words to those who watch.
const TICK_NS: u64 = 1_000_000;
/// How long the last tasks may take.
const DRAIN_NS: u64 = 300_000_000;
/// The worker's place.
const PLACE: Place = Place { id: 1, pool: 1 };
/// A time that nobody has measured, or that has no end.
pub const NEVER: u32 = u32::MAX;

/// Nanoseconds on a clock that all processes of a machine share, and that nobody sets.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Serves tasks that say how long they take, and answers when they were taken.
pub struct Timed(pub Spin);

impl App for Timed {
    fn serve(&mut self, work: &[u8], reply: &mut [u8]) -> usize {
        let taken = now_ns();
        self.0.busy(word(work) as f64);
        reply[..8].copy_from_slice(&taken.to_le_bytes());
        8
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// A task.
struct Timing {
    seq: u32,
    /// How long it takes.
    bytes: [u8; 8],
}

impl Work for Timing {
    type Parcel = Box<Self>;

    fn ids(&self) -> TaskIds {
        TaskIds { app: 1, seq: self.seq, class: 1 }
    }

    fn payload(&self) -> &[u8] {
        &self.bytes
    }

    fn pack(self) -> (Box<Self>, u32) {
        (Box::new(self), 0)
    }

    fn unpack(parcel: Box<Self>, _: u32) -> Option<Self> {
        Some(*parcel)
    }
}

/// What became of a task.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// When it came due.
    pub due_ns: u64,
    /// When the dispatcher took it up; later than due when it had no CPU.
    pub offered_ns: u64,
    /// How long it takes.
    pub service_ns: u32,
    /// From its being put into the ring of a worker that waited for it to its being taken; [`NEVER`] for those that waited for
    /// the task before, or were not answered.
    pub hand_over_ns: u32,
    /// From its coming due to its answer; [`NEVER`] when there was none.
    pub response_ns: u32,
}

/// What the loop has done.
#[derive(Clone, Debug, Default)]
pub struct Dispatched {
    /// All tasks, in the order in which they came due.
    pub tasks: Vec<Task>,
    /// Those answered.
    pub answered: u64,
    /// Those for which there was no room.
    pub refused: u64,
    /// Those that were not answered when the drain ended.
    pub left: u64,
    /// Answers that were none.
    pub wrong: u64,
    /// When each phase began, and when the last one ended.
    pub phases_ns: Vec<u64>,
}

impl Dispatched {
    /// Each task is in one of the accounts, and none was answered wrongly.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.tasks.len() as u64 == self.answered + self.refused + self.left && self.wrong == 0
    }
}

/// A dispatcher of one worker, which may attach at a path.
pub struct Rig {
    region: WorkerRegion,
    workers: WorkerSet<Timing>,
    watch: Watch,
}

impl Rig {
    /// At this path, from the CPU `core`.
    ///
    /// # Errors
    /// When there can be no region there.
    pub fn new(path: &Path, core: usize) -> Result<Self, Failure> {
        let region = WorkerRegion::create(path, &[PLACE], 4, 64)?;
        let view = View::heap(1, 1).remove(0);
        let dispatcher = Dispatcher::new(&"jbsq(k=1)".parse()?, view, Core::ONLY, 1)
            .with_queue(QUEUE, Overflow::Drop);
        let entries = vec![(PLACE, region.channel(0))];
        let workers = WorkerSet::new(dispatcher, entries, u64::MAX);
        let watch = region.watch();
        watch.set_core(core);
        Ok(Self { region, workers, watch })
    }

    /// The worker's claim has been granted.
    #[must_use]
    pub fn has_worker(&self) -> bool {
        self.region.granted(0) != 0
    }

    /// Lets workers in.
    pub fn tick(&mut self) {
        let now = now_ns();
        self.workers.tick(now, now, &mut |_| {});
    }

    /// The worker is told that no more tasks will come.
    pub fn stop(&self) {
        self.workers.stop();
    }
}

/// What comes when.
pub struct Course<'a> {
    /// The phases.
    pub phases: &'a [Phase],
    /// Of one window.
    pub window: Duration,
    /// The mean of the tasks' exponential times, in nanoseconds.
    pub service_ns: f64,
    /// Of times and arrivals.
    pub seed: u64,
}

impl Course<'_> {
    fn ends_ns(&self, began: u64) -> Vec<u64> {
        let mut at = began;
        let window = self.window.as_nanos() as u64;
        let ends = self.phases.iter().map(|phase| {
            at += phase.windows as u64 * window;
            at
        });
        std::iter::once(began).chain(ends).collect()
    }

    /// Tasks that are to be expected.
    fn tasks(&self) -> usize {
        let seconds = |phase: &Phase| phase.windows as f64 * self.window.as_secs_f64();
        let most = |load| match load {
            Load::Steady(part) => part,
            Load::Bursts => Load::BURSTS[0].1,
        };
        let tasks: f64 =
            self.phases.iter().map(|it| seconds(it) * most(it.load) * 1e9 / self.service_ns).sum();
        (tasks * 1.1) as usize + 4096
    }
}

/// Sends what comes due from `began` on until the phases are over. What is measured is in memory from the start.
pub fn run(rig: &mut Rig, course: &Course<'_>, began: u64) -> Dispatched {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(course.seed);
    let mut unit = move || -> f64 { Exp1.sample(&mut random) };
    let phases_ns = course.ends_ns(began);
    let mut done =
        Dispatched { tasks: Vec::with_capacity(course.tasks()), ..Dispatched::default() };
    let mut accounts = Accounts::default();
    let (mut phase, mut due, mut next_tick) = (0, began, began);
    let end = phases_ns[phases_ns.len() - 1];
    loop {
        let now = now_ns();
        while due <= now && due < end {
            while due >= phases_ns[phase + 1] {
                phase += 1;
            }
            let part = course.phases[phase].load.at(due - phases_ns[phase]);
            if part <= 0.0 {
                // Nothing comes for as long as it is so.
                due = phases_ns[phase + 1];
                continue;
            }
            if due > began {
                let service_ns = unit() * course.service_ns;
                offer(rig, &mut done, due, service_ns as u32);
            }
            due += (unit() * course.service_ns / part) as u64 + 1;
        }
        rig.workers.collect(now, &mut |ended| accounts.take(&mut done.tasks, &rig.watch, &ended));
        if now >= next_tick {
            next_tick = now + TICK_NS;
            rig.workers.tick(now, now, &mut |ended| {
                accounts.take(&mut done.tasks, &rig.watch, &ended);
            });
            rig.watch.set_waiting(rig.workers.backlog() as u64);
            let is_drained = now >= end && rig.workers.held() == 0;
            if is_drained || now >= end + DRAIN_NS {
                break;
            }
        }
    }
    let refused = done.refused + accounts.refused;
    let left = done.tasks.len() as u64 - accounts.answered - refused - accounts.wrong;
    Dispatched {
        answered: accounts.answered,
        refused,
        left,
        wrong: accounts.wrong,
        phases_ns,
        ..done
    }
}

fn offer(rig: &mut Rig, done: &mut Dispatched, due_ns: u64, service_ns: u32) {
    let seq = done.tasks.len() as u32;
    let offered_ns = now_ns();
    let bytes = u64::from(service_ns).to_le_bytes();
    let task = Task { due_ns, offered_ns, service_ns, hand_over_ns: NEVER, response_ns: NEVER };
    done.tasks.push(task);
    match rig.workers.submit(Timing { seq, bytes }, offered_ns) {
        Err(_) => done.refused += 1,
        // It was given at once: how long that takes is known when the answer comes.
        Ok(Some(_)) => done.tasks[seq as usize].hand_over_ns = 0,
        Ok(None) => {}
    }
}

/// Tasks that ended.
#[derive(Default)]
struct Accounts {
    answered: u64,
    refused: u64,
    wrong: u64,
}

impl Accounts {
    fn take(&mut self, tasks: &mut [Task], watch: &Watch, ended: &Completion<'_, Timing>) {
        let task = &mut tasks[ended.task.seq as usize];
        let was_given_at_once = task.hand_over_ns != NEVER;
        task.hand_over_ns = NEVER;
        match ended.outcome {
            Ok(Outcome::Reply { len: 8, .. }) => {
                let (now, mut taken) = (now_ns(), [0; 8]);
                ended.channel.reply(ended.number, &mut taken);
                let nanoseconds = |from: u64, to: u64| {
                    u32::try_from(to.saturating_sub(from)).unwrap_or(NEVER - 1).min(NEVER - 1)
                };
                if was_given_at_once {
                    task.hand_over_ns = nanoseconds(task.offered_ns, word(&taken));
                }
                task.response_ns = nanoseconds(task.due_ns, now);
                // As an agent, from its arrival here.
                watch.note(now.saturating_sub(task.offered_ns));
                self.answered += 1;
            }
            Ok(_) => self.wrong += 1,
            Err(_) => self.refused += 1,
        }
    }
}

/// Lets a worker in that is to attach to the rig, until it is there or `is_over`.
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

/// Waits until it is known when to begin, and until that time; none where it is to stop instead.
pub fn wait_for(rig: &mut Rig, begin_ns: &AtomicU64, stop: &AtomicBool) -> Option<u64> {
    loop {
        rig.tick();
        rig.watch.set_waiting(0);
        match begin_ns.load(Acquire) {
            0 if stop.load(Relaxed) => return None,
            begin if begin != 0 && now_ns() + 1_000_000 >= begin => return Some(begin),
            _ => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}
