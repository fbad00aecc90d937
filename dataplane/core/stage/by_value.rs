//! Tasks and reports passed as values instead of packets, for embedding programs with a message format of their own.
//! The policies and the checks of the workers are the same as for packets.

use super::{Stages, Verdict, classify, schedule};
use crate::policy::{Assignment, Lane, Task};
use crate::reason::DropReason;
use crate::state::{Counter, Load, Report};

/// Decision on a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The task goes to this worker.
    Worker {
        /// Worker id.
        worker: u16,
        /// True if the worker is estimated to be idle.
        idle: bool,
    },
    /// No worker may receive the task now. The caller keeps it in its pool's central queue.
    Held,
    /// The pool's queue is full, and the pool refuses tasks. The caller notifies the task's sender.
    Refused,
    /// The task is dropped. The drop is already counted.
    Dropped(DropReason),
}

impl Stages {
    /// Decides on at most [`BURST`](crate::limits::BURST) tasks of the pool with this id, in order. Calls
    /// `take` with each decision and the index of its task. Returns the index of the pool, or `None` if there
    /// is no such pool. The caller must append held tasks to the queue of that pool.
    pub fn pick(
        &mut self,
        pool_id: u16,
        tasks: &[Task],
        mut take: impl FnMut(usize, Choice),
    ) -> Option<usize> {
        self.received += tasks.len();
        let Some(pool) = self.network.pool(pool_id) else {
            self.counters.drop(DropReason::UnknownPool, tasks.len() as u64);
            (0..tasks.len())
                .for_each(|index| take(index, Choice::Dropped(DropReason::UnknownPool)));
            return None;
        };
        schedule::offer_run(self, pool, tasks, |stages, index, placement| {
            let choice = match placement {
                Ok(Assignment::Sent(pick)) => Choice::Worker {
                    worker: stages.network.target(pool, pick.member).worker,
                    idle: pick.idle,
                },
                Ok(Assignment::Waits(_)) => Choice::Held,
                Err(DropReason::QueueFull) if stages.refuses(pool) => {
                    stages.counters.add(Counter::Refused, 1);
                    Choice::Refused
                }
                Err(reason) => {
                    stages.counters.drop(reason, 1);
                    Choice::Dropped(reason)
                }
            };
            take(index, choice);
        });
        Some(pool)
    }

    /// Offers a waiting task of a pool, passed by value, to the pool's workers again. Returns `None` if it must keep
    /// waiting, else the verdict; the task leaves the queue then. [`Stages::offer`] does this for a packet.
    pub fn offer_by_value(&mut self, pool: usize, lane: Lane, task: Task) -> Option<Verdict> {
        let verdict = match schedule::pick(self, pool, task) {
            Some(pick) => {
                let worker = self.network.target(pool, pick.member).worker;
                Verdict::Forward { port: 0, worker } // no packet, so no port
            }
            None if self.may_keep_waiting(pool) => return None,
            None => {
                self.counters.drop(DropReason::NoMember, 1);
                Verdict::Drop(DropReason::NoMember)
            }
        };
        self.leave(pool, lane);
        Some(verdict)
    }

    /// Applies a worker's report: it completed a task of this class (0 if unknown) in `service_ns` (0 if unknown), and
    /// has `load` left.
    ///
    /// # Errors
    /// If there is no such worker; this is counted.
    pub fn take_report(
        &mut self,
        id: u16,
        load: Load,
        (class, service_ns): (u16, u32),
    ) -> Result<(), DropReason> {
        self.received += 1;
        let worker = self.reported_worker(id)?;
        let report = Report::new(worker.member, load, service_ns).with_class(class);
        classify::apply_reports(self, usize::from(worker.pool), &mut [report]);
        self.counters.add(Counter::Replies, 1);
        self.freed = true; // a worker may have room for a waiting task
        Ok(())
    }

    /// Applies a worker's keep-alive with its `load`, without a completed task. Registers the worker if its server's
    /// workers register.
    ///
    /// # Errors
    /// If there is no such worker; this is counted.
    pub fn take_keep_alive(&mut self, id: u16, load: Load) -> Result<(), DropReason> {
        self.received += 1;
        let worker = self.reported_worker(id)?;
        classify::note_alive(self, &worker, load, 0); // 0: no service time
        self.counters.add(Counter::KeepAlives, 1);
        Ok(())
    }

    /// Returns the worker with this id. Counts a drop if there is none.
    fn reported_worker(&self, id: u16) -> Result<super::network::Worker, DropReason> {
        let count_drop = || self.counters.drop(DropReason::UnknownWorker, 1);
        self.network.worker(id).ok_or(DropReason::UnknownWorker).inspect_err(|_| count_drop())
    }

    /// Records a task that the caller sent to a worker of its own choice, so that the worker's load includes the task.
    /// Returns false for an unknown worker.
    #[must_use]
    pub fn note_sent(&mut self, id: u16) -> bool {
        let Some(worker) = self.network.worker(id) else { return false };
        self.dispatchers[usize::from(worker.pool)].count_placed(worker.member);
        true
    }

    /// Writes off `tasks` tasks that a worker will never answer, at most those outstanding there: they no longer count.
    /// Returns false for an unknown worker.
    #[must_use]
    pub fn note_lost(&mut self, id: u16, tasks: u32) -> bool {
        let Some(worker) = self.network.worker(id) else { return false };
        let written_off =
            self.dispatchers[usize::from(worker.pool)].write_off(worker.member, tasks);
        self.counters.add(Counter::WrittenOff, written_off.into());
        self.freed = true;
        true
    }
}
