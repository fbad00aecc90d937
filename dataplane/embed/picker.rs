//! One core's part of an embedded scheduler that is told of tasks and reports as values, for programs with a header of their own.

use crate::limits::BURST;
use crate::node::{Commands, Egress, Keeper, Node, Timing};
use crate::policy::Task;
use crate::reason::DropReason;
use crate::stage::{Choice, Stages, Verdict};
use crate::state::{Counter, Counters, Load};

use super::context::Misuse;

/// A task of the caller's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskDescription {
    /// What the caller knows it by, as the address of its packet; given back when it is held no longer.
    pub id: u64,
    /// Its type, 0 when unknown.
    pub class: u16,
}

/// What a worker reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerReport {
    /// The worker's id.
    pub worker: u16,
    /// Tasks that it has left.
    pub queue: u16,
    /// For how long it did the task that this answers, in nanoseconds; 0 when nobody knows.
    pub service_ns: u32,
    /// It answers a task. Otherwise the worker says that it is there, and what it has.
    pub answers: bool,
}

/// A task that is held no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasedTask {
    /// What the caller knows it by.
    pub id: u64,
    /// The worker that it goes to; or why it is given up, already counted.
    pub outcome: Result<u16, DropReason>,
}

/// A task that waits for a worker.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: u64,
    task: Task,
}

/// Tasks that wait have no bytes: what was told of them is what is decided on.
struct Told;

impl Keeper<Waiting> for Told {
    fn frame<'a>(&'a mut self, _task: &'a mut Waiting) -> Option<&'a mut [u8]> {
        None
    }

    fn offer(
        &mut self,
        stages: &mut Stages,
        (pool, _port): (usize, usize),
        _now: u64,
        waiting: &mut Waiting,
    ) -> Option<Verdict> {
        stages.offer_told(pool, waiting.task)
    }
}

/// One core's scheduler of tasks that are told. Used by one thread at a time.
///
/// It decides as a leaf does to which the same comes in packets: with the same policies, seeds and looks at what workers report.
/// Tasks and reports count as received packets, so that received = sent + consumed + dropped + held holds of its counters after
/// every call.
#[derive(Debug)]
pub struct Picker {
    node: Node<Waiting>,
    /// The owner stops: all tasks that are held are given up.
    is_abandoned: bool,
}

impl Picker {
    pub(super) fn new(stages: Stages, commands: Commands, ticks_hz: u64) -> Self {
        Self { node: Node::new(stages, commands, Timing { ticks_hz }), is_abandoned: false }
    }

    /// How many tasks it may hold at once.
    #[must_use]
    pub fn places(&self) -> usize {
        self.node.queue_bound()
    }

    /// Chooses workers at `now` ticks for at most [`BURST`] tasks of the pool of this id, in their order, and puts what becomes of
    /// each into `choices`. A task that goes counts as one more that its worker has.
    ///
    /// # Errors
    /// When there are too many tasks, or fewer choices than tasks; nothing is done then.
    pub fn pick(
        &mut self,
        pool: u16,
        now: u64,
        tasks: &[TaskDescription],
        choices: &mut [Choice],
    ) -> Result<(), Misuse> {
        if tasks.len() > BURST {
            return Err(Misuse::Burst);
        }
        let Some(choices) = choices.get_mut(..tasks.len()) else {
            return Err(Misuse::Verdicts);
        };
        if tasks.is_empty() {
            return Ok(());
        }
        self.node.note_time(now);
        let mut described = [Task::default(); BURST];
        for (to, task) in described.iter_mut().zip(tasks) {
            to.class = task.class;
        }
        let described = &described[..tasks.len()];
        let (mut sent, mut refused, mut held) = (0, 0, false);
        let pool = self.node.stages.pick(pool, described, |at, choice| {
            match choice {
                Choice::Worker { .. } => sent += 1,
                Choice::Refused => refused += 1,
                Choice::Held => held = true,
                Choice::Dropped(_) => {}
            }
            choices[at] = choice;
        });
        if let Some(pool) = pool.filter(|_| held) {
            self.hold(pool, tasks, described, choices);
        }
        let counters = self.node.stages.counters();
        counters.add(Counter::RxPackets, tasks.len() as u64);
        counters.add(Counter::Forwarded, sent);
        counters.add(Counter::Consumed, refused);
        Ok(())
    }

    /// Puts tasks that are to be held last into their pool's queue.
    fn hold(
        &mut self,
        pool: usize,
        tasks: &[TaskDescription],
        described: &[Task],
        choices: &mut [Choice],
    ) {
        for ((choice, described), task) in choices.iter_mut().zip(described).zip(tasks) {
            if *choice == Choice::Held {
                let waiting = Waiting { id: task.id, task: *described };
                if self.node.enqueue(waiting, pool, 0).is_err() {
                    *choice = Choice::Dropped(DropReason::QueueFull);
                }
            }
        }
        self.node.note_held(0);
    }

    /// Takes what workers report, in this order; returns how many reports were taken. One of a worker that is not known is counted
    /// as dropped.
    pub fn report(&mut self, reports: &[WorkerReport]) -> usize {
        let mut taken = 0;
        for &WorkerReport { worker, queue, service_ns, answers } in reports {
            let (stages, load) = (&mut self.node.stages, Load::tasks(queue));
            let result = match answers {
                true => stages.take_report(worker, load, service_ns),
                false => stages.take_keep_alive(worker, load),
            };
            taken += usize::from(result.is_ok());
        }
        let counters = self.node.stages.counters();
        counters.add(Counter::RxPackets, reports.len() as u64);
        counters.add(Counter::Consumed, taken as u64);
        taken
    }

    /// Tells of a task that the caller sent to a worker by its own choice, as one more packet of a task that it has, or again.
    ///
    /// # Errors
    /// When there is no such worker.
    pub fn sent(&mut self, worker: u16) -> Result<(), Misuse> {
        self.node.stages.note_sent(worker).then_some(()).ok_or(Misuse::Worker)
    }

    /// Tells of so many tasks that a worker was sent and will not answer: they count no longer as what it has, and other tasks may
    /// have their places. Tasks that are lost without anybody telling are found in time, since the worker does not report them.
    ///
    /// # Errors
    /// When there is no such worker.
    pub fn lost(&mut self, worker: u16, tasks: u32) -> Result<(), Misuse> {
        self.node.stages.note_lost(worker, tasks).then_some(()).ok_or(Misuse::Worker)
    }

    /// The next task that need not be held any longer: it has a worker, or is given up. To be called at every turn of the
    /// caller's loop, after [`Picker::pick`] and [`Picker::report`], until there is none, also while nothing is held: it looks
    /// after what time changes, too, and takes changes of members and policies.
    ///
    /// Tasks leave in the order in which they came to this core, each pool's by itself.
    pub fn release(&mut self, now: u64) -> Option<ReleasedTask> {
        if now >= self.node.next_tick() {
            self.node.tick(now);
            self.node.stages.collect_picks();
        }
        let Some(released) = self.next_released(now) else {
            self.node.stages.exchange();
            return None;
        };
        self.node.note_held(0);
        self.node.stages.counters().add(Counter::Forwarded, u64::from(released.outcome.is_ok()));
        Some(released)
    }

    fn next_released(&mut self, now: u64) -> Option<ReleasedTask> {
        if self.is_abandoned {
            if let Some(Waiting { id, .. }) = self.node.abandon() {
                return Some(ReleasedTask { id, outcome: Err(DropReason::Shutdown) });
            }
            self.is_abandoned = false;
        }
        let (Waiting { id, .. }, outcome) = self.node.next_released(now, &mut Told)?;
        Some(ReleasedTask { id, outcome: outcome.map(|Egress { worker, .. }| worker) })
    }

    /// Gives up all tasks that are held, because their owner stops: [`Picker::release`] gives them back.
    pub fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// What this picker has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.node.stages.counters()
    }
}
