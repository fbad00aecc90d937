//! One core's part of an embedded scheduler that takes tasks and reports as values, for programs with their
//! own header. Such a program receives and sends the packets itself, and only asks which worker gets a task. A task is
//! *held* while no worker may take one more. The *stages* decide on tasks; the *node* around them adds queues and
//! periodic work.

use wedjat_core::limits::BURST;
use wedjat_core::node::{Commands, Egress, Node, PacketStore, Timing};
use wedjat_core::policy::{Lane, Task};
use wedjat_core::reason::DropReason;
use wedjat_core::stage::{Choice, QueuePlace, Stages, Verdict};
use wedjat_core::state::{Counter, Counters, Load};

use super::context::Misuse;

/// A task of the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskDescription {
    /// Caller's id, such as the address of its packet; returned when the task is released.
    pub id: u64,
    /// Class; 0 for unknown.
    pub class: u16,
}

/// Report of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerReport {
    /// Id of the worker.
    pub worker: u16,
    /// Tasks left at the worker.
    pub queue: u16,
    /// Service time of the answered task in nanoseconds; 0 for unknown.
    pub service_ns: u32,
    /// Class of the answered task; 0 for unknown.
    pub class: u16,
    /// True if the report answers a task. Otherwise it is a sign of life with the current queue.
    pub answers: bool,
}

/// A released task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasedTask {
    /// Caller's id.
    pub id: u64,
    /// Worker that it goes to, or reason of its drop, which is already counted.
    pub outcome: Result<u16, DropReason>,
}

/// A waiting task.
#[derive(Clone, Copy, Debug)]
struct QueuedTask {
    /// Caller's id.
    id: u64,
    /// Task as the policy sees it.
    task: Task,
}

/// Packet store of a picker. Its tasks have no bytes, so it offers a waiting task to the policy by its
/// description.
struct PickerStore;

impl PacketStore<QueuedTask> for PickerStore {
    fn frame<'a>(&'a mut self, _task: &'a mut QueuedTask) -> Option<&'a mut [u8]> {
        None
    }

    fn offer(
        &mut self,
        stages: &mut Stages,
        first: QueuePlace,
        _now: u64,
        waiting: &mut QueuedTask,
    ) -> Option<Verdict> {
        stages.offer_by_value(first.pool, first.lane, waiting.task)
    }
}

/// One core's scheduler of tasks passed as values. Used by one thread at a time.
///
/// Decides like a leaf that receives the same tasks and reports in packets: with the same policies, seeds and
/// checks of reports. Tasks and reports count as received packets, so after every call its counters satisfy
/// received = sent + consumed + dropped + held.
#[derive(Debug)]
pub struct Picker {
    /// The node, with the waiting tasks.
    node: Node<QueuedTask>,
    /// True from [`Picker::abandon`] to the end of the drops by [`Picker::release`].
    is_abandoned: bool,
}

impl Picker {
    /// Creates a picker without waiting tasks. `commands` delivers changes of the configuration.
    pub(super) fn new(stages: Stages, commands: Commands, ticks_hz: u64) -> Self {
        Self { node: Node::new(stages, commands, Timing { ticks_hz }), is_abandoned: false }
    }

    /// Returns the maximum number of tasks held at a time.
    #[must_use]
    pub fn places(&self) -> usize {
        self.node.queue_bound()
    }

    /// Chooses workers at `now` ticks for up to [`BURST`] tasks of the pool with this id, in order, and writes the
    /// results to `choices`. A chosen worker's count includes the task. Tasks of an unknown pool are dropped.
    /// The picker queues tasks with the choice `Held`, and [`Picker::release`] returns their ids later. The caller
    /// notifies the sender of a refused task.
    ///
    /// # Errors
    /// If there are too many tasks, or fewer choices than tasks. Nothing is done then.
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
        let mut policy_tasks = [Task::default(); BURST];
        for (policy_task, task) in policy_tasks.iter_mut().zip(tasks) {
            policy_task.class = task.class;
        }
        let policy_tasks = &policy_tasks[..tasks.len()];
        let (mut sent, mut refused, mut held) = (0, 0, false);
        let pool = self.node.stages.pick(pool, policy_tasks, |index, choice| {
            match choice {
                Choice::Worker { .. } => sent += 1,
                Choice::Refused => refused += 1,
                Choice::Held => held = true,
                Choice::Dropped(_) => {} // the stages have counted it
            }
            choices[index] = choice;
        });
        if let Some(pool) = pool.filter(|_| held) {
            self.hold((pool, now), tasks, policy_tasks, choices);
        }
        let counters = self.node.stages.counters();
        counters.add(Counter::RxPackets, tasks.len() as u64);
        counters.add(Counter::Forwarded, sent);
        // The caller sends a refused task back itself.
        counters.add(Counter::Consumed, refused);
        Ok(())
    }

    /// Appends the tasks with the choice `Held` to the queue of the pool at index `pool`, at `now` ticks.
    /// `policy_tasks` are the same tasks as the policy sees them. Turns the choice into a drop if there is no room.
    fn hold(
        &mut self,
        (pool, now): (usize, u64),
        tasks: &[TaskDescription],
        policy_tasks: &[Task],
        choices: &mut [Choice],
    ) {
        for ((choice, policy_task), task) in choices.iter_mut().zip(policy_tasks).zip(tasks) {
            if *choice == Choice::Held {
                let waiting = QueuedTask { id: task.id, task: *policy_task };
                let dispatcher = self.node.stages.dispatcher(pool);
                let lane = dispatcher.map_or(Lane::FIRST, |it| it.lane(*policy_task));
                // 0: the receiving port, which a task by value does not have. The node counts the drop.
                let place = QueuePlace { pool, lane, port: 0 };
                if self.node.enqueue(waiting, place, false, now).is_err() {
                    *choice = Choice::Dropped(DropReason::QueueFull);
                }
            }
        }
        // 0: all waiting tasks are in the node's queues, and none beside it.
        self.node.note_held(0);
    }

    /// Processes workers' reports in order, each of which updates the worker's estimated load. Returns the number of
    /// accepted reports. Reports of unknown workers count as dropped.
    pub fn report(&mut self, reports: &[WorkerReport]) -> usize {
        let mut accepted = 0;
        for &WorkerReport { worker, queue, service_ns, class, answers } in reports {
            let (stages, load) = (&mut self.node.stages, Load::tasks(queue));
            let result = match answers {
                true => stages.take_report(worker, load, (class, service_ns)),
                false => stages.take_keep_alive(worker, load),
            };
            accepted += usize::from(result.is_ok());
        }
        let counters = self.node.stages.counters();
        counters.add(Counter::RxPackets, reports.len() as u64);
        counters.add(Counter::Consumed, accepted as u64);
        accepted
    }

    /// Counts a task that the caller sent to a worker by its own choice, such as a further packet or a retry.
    /// The worker's load then includes it.
    ///
    /// # Errors
    /// If the worker does not exist.
    pub fn sent(&mut self, worker: u16) -> Result<(), Misuse> {
        self.node.stages.note_sent(worker).then_some(()).ok_or(Misuse::Worker)
    }

    /// Writes off tasks that a worker will not answer: they no longer count in its load, and other tasks may take their
    /// places. Missing reports reveal unreported losses later.
    ///
    /// # Errors
    /// If the worker does not exist.
    pub fn lost(&mut self, worker: u16, tasks: u32) -> Result<(), Misuse> {
        self.node.stages.note_lost(worker, tasks).then_some(()).ok_or(Misuse::Worker)
    }

    /// Returns the next task that is no longer held: it has a worker, or is dropped. Call it in every
    /// iteration of the caller's loop, after [`Picker::pick`] and [`Picker::report`], until it returns
    /// `None`, even if nothing is held. `now` is the time in ticks. The call also does the periodic work that is due,
    /// and adopts changes of members and policies.
    ///
    /// Tasks of each pool leave in the order of their arrival at this core.
    pub fn release(&mut self, now: u64) -> Option<ReleasedTask> {
        if now >= self.node.next_tick() {
            self.node.tick(now);
            // Adds the policies' own counts to the counters.
            self.node.stages.collect_picks();
        }
        let Some(released) = self.next_released(now) else {
            // Nothing is left to do: exchanges due loads with the node's other cores.
            self.node.stages.exchange();
            return None;
        };
        self.node.note_held(0);
        self.node.stages.counters().add(Counter::Forwarded, u64::from(released.outcome.is_ok()));
        Some(released)
    }

    /// Returns the next task that is no longer held, or `None`: every task at the owner's end, otherwise a task that
    /// has a worker or is dropped.
    fn next_released(&mut self, now: u64) -> Option<ReleasedTask> {
        if self.is_abandoned {
            if let Some(QueuedTask { id, .. }) = self.node.abandon() {
                return Some(ReleasedTask { id, outcome: Err(DropReason::Shutdown) });
            }
            self.is_abandoned = false;
        }
        let (QueuedTask { id, .. }, outcome) = self.node.next_released(now, &mut PickerStore)?;
        Some(ReleasedTask { id, outcome: outcome.map(|Egress { worker, .. }| worker) })
    }

    /// Makes the next calls of [`Picker::release`] return all held tasks as dropped, before their owner ends.
    pub fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Returns the picker's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.node.stages.counters()
    }
}
