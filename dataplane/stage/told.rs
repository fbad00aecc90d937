//! Tasks and reports that are told as values, by programs with a header of their own, and decided on as those in packets are.

use super::{Stages, Verdict, classify, schedule};
use crate::policy::Task;
use crate::reason::DropReason;
use crate::state::{Counter, Load};

/// What becomes of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It goes to this worker.
    Worker {
        /// The worker's id.
        worker: u16,
        /// It is believed to have nothing to do.
        idle: bool,
    },
    /// No worker may have it now: it waits in its pool's central queue.
    Held,
    /// It finds no room in its pool's queue, which gives tasks back: tell whoever sent it.
    Refused,
    /// It is given up; already counted.
    Dropped(DropReason),
}

impl Stages {
    /// Decides on at most [`BURST`](crate::limits::BURST) tasks of the pool of this id, in their order, and has `take` see each
    /// decision with the task's place among them. Those that are held have to be put last into their pool's queue, which is named
    /// by its index: what is returned; none when there is no such pool.
    pub fn pick(
        &mut self,
        pool_id: u16,
        tasks: &[Task],
        mut take: impl FnMut(usize, Choice),
    ) -> Option<usize> {
        self.received += tasks.len();
        let Some(pool) = self.network.pool(pool_id) else {
            self.counters.drop(DropReason::UnknownPool, tasks.len() as u64);
            (0..tasks.len()).for_each(|at| take(at, Choice::Dropped(DropReason::UnknownPool)));
            return None;
        };
        schedule::offer_run(self, pool, tasks, |stages, at, offered| {
            let choice = match offered {
                Ok(Some(pick)) => Choice::Worker {
                    worker: stages.network.target(pool, pick.member).worker,
                    idle: pick.idle,
                },
                Ok(None) => {
                    stages.waiting += 1;
                    Choice::Held
                }
                Err(DropReason::QueueFull) if stages.refuses(pool) => {
                    stages.counters.add(Counter::Refused, 1);
                    Choice::Refused
                }
                Err(reason) => {
                    stages.counters.drop(reason, 1);
                    Choice::Dropped(reason)
                }
            };
            take(at, choice);
        });
        Some(pool)
    }

    /// As [`Stages::offer`], of a task that was told.
    pub fn offer_told(&mut self, pool: usize, task: Task) -> Option<Verdict> {
        let verdict = match schedule::pick(self, pool, task) {
            Some(pick) => {
                let worker = self.network.target(pool, pick.member).worker;
                Verdict::Forward { port: 0, worker }
            }
            None if self.may_wait_on(pool) => return None,
            None => {
                self.counters.drop(DropReason::NoMember, 1);
                Verdict::Drop(DropReason::NoMember)
            }
        };
        self.leave(pool);
        Some(verdict)
    }

    /// A worker has done a task for `service_ns`, 0 when nobody knows, and has `load` left.
    ///
    /// # Errors
    /// When there is no such worker; it is counted.
    pub fn take_report(&mut self, id: u16, load: Load, service_ns: u32) -> Result<(), DropReason> {
        self.received += 1;
        let worker = self.told_worker(id)?;
        classify::take(self, &worker, load, service_ns);
        self.counters.add(Counter::Replies, 1);
        self.freed = true;
        Ok(())
    }

    /// A worker says that it is there and has `load`, without having done a task.
    ///
    /// # Errors
    /// When there is no such worker; it is counted.
    pub fn take_keep_alive(&mut self, id: u16, load: Load) -> Result<(), DropReason> {
        self.received += 1;
        let worker = self.told_worker(id)?;
        classify::note_alive(self, &worker, load, 0);
        self.counters.add(Counter::KeepAlives, 1);
        Ok(())
    }

    fn told_worker(&self, id: u16) -> Result<super::network::Worker, DropReason> {
        let unknown = || self.counters.drop(DropReason::UnknownWorker, 1);
        self.network.worker(id).ok_or(DropReason::UnknownWorker).inspect_err(|_| unknown())
    }

    /// A task was sent to a worker without a choice; false when there is no such worker.
    #[must_use]
    pub fn note_sent(&mut self, id: u16) -> bool {
        let Some(worker) = self.network.worker(id) else { return false };
        self.dispatchers[usize::from(worker.pool)].follow(worker.member);
        true
    }

    /// So many tasks that a worker was sent will never be answered; false when there is no such worker.
    #[must_use]
    pub fn note_lost(&mut self, id: u16, tasks: u32) -> bool {
        let Some(worker) = self.network.worker(id) else { return false };
        self.dispatchers[usize::from(worker.pool)].write_off(worker.member, tasks);
        self.counters.add(Counter::WrittenOff, tasks.into());
        self.freed = true;
        true
    }
}
