//! Emulated workers at an agent (stand-ins for worker processes): one loop serves the rings of all of them
//! and replies when each task is due. An agent is the process of a host that gives tasks to workers through rings in
//! shared memory. The commands `drive` and `bench-host` use stand-ins, because their runs may have more workers than
//! the host has cores.
//!
//! Like in the emulated rack, service times never depend on delays of this program. A task that waits in the
//! ring when the loop checks its worker starts at the due time of the previous task. Any other task starts
//! when the loop finds it. The lateness of replies is measured; if it is significant, the run is invalid.
//! Replies are correct for every workload (see [`crate::app::EmulatedApp`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;

use wedjat::reason::DropReason;
use wedjat::worker::{AttachError, Detached, Options, Task, Worker};
use wedjat_pktgen::mix::Workload;
use wedjat_pktgen::payload::Work;
use wedjat_pktgen::slices::Slices;

use crate::app::{App, EmulatedApp};
use crate::rack::{Counts, Lateness, Report};

/// Emulated workers at one agent.
pub struct StandIns {
    workers: Vec<Worker>,
    /// Workers with a task, the earliest due time on top.
    busy: BinaryHeap<Reverse<Busy>>,
    /// Workers without a task. Each poll checks only these for new tasks.
    idle: Vec<usize>,
    app: EmulatedApp,
    /// Nanoseconds per tick of the clock.
    tick_ns: f64,
    counts: Counts,
    lateness: Lateness,
}

/// Due time of a task and the index of its worker, ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Busy {
    done_at: u64,
    worker: usize,
}

impl StandIns {
    /// Attaches `workers` workers to the agent `name`, for tasks of `workload`, on a clock of `hz` ticks per
    /// second.
    ///
    /// # Errors
    /// If the agent is missing or has fewer workers without a process.
    pub fn attach(
        name: &str,
        workers: u16,
        workload: Workload,
        hz: f64,
    ) -> Result<Self, AttachError> {
        let options = Options::default();
        let attached = (0..workers).map(|_| Worker::attach(name, &options));
        Ok(Self::new(attached.collect::<Result<_, _>>()?, workload, hz))
    }

    /// Creates stand-ins for attached workers, on a clock of `hz` ticks per second.
    #[must_use]
    pub fn new(workers: Vec<Worker>, workload: Workload, hz: f64) -> Self {
        Self {
            busy: BinaryHeap::with_capacity(workers.len()),
            idle: (0..workers.len()).collect(),
            workers,
            app: EmulatedApp::new(workload),
            tick_ns: 1e9 / hz,
            counts: Counts::default(),
            lateness: Lateness::default(),
        }
    }

    /// Replies to the tasks that are due by `now` (in ticks) and takes new ones.
    #[inline]
    pub fn poll(&mut self, now: u64) {
        // A worker that gets a task leaves the list; the last one takes its position, and is checked next.
        let mut position = 0;
        while let Some(&worker) = self.idle.get(position) {
            match self.take(worker, now) {
                true => drop(self.idle.swap_remove(position)),
                false => position += 1,
            }
        }
        while let Some(&Reverse(busy)) = self.busy.peek() {
            if busy.done_at > now {
                break;
            }
            self.busy.pop();
            self.answer(busy, now);
            // A waiting task starts at the due time of this one, however late the poll is.
            if !self.take(busy.worker, busy.done_at) {
                self.idle.push(busy.worker);
            }
        }
    }

    /// Replies to the task of a worker, and records the lateness.
    #[inline]
    fn answer(&mut self, busy: Busy, now: u64) {
        if let Some(task) = self.workers[busy.worker].resume() {
            task.reply_with(|work, reply| self.app.serve(work, reply, &|| {}));
        }
        let late = (now - busy.done_at) as f64 * self.tick_ns;
        self.lateness.record(busy.done_at, late as u64);
        self.counts.replies += 1;
    }

    /// Takes the next task of a worker that is free since `free_at`. Returns false if there is none.
    #[inline]
    fn take(&mut self, worker: usize, free_at: u64) -> bool {
        while let Some(task) = self.workers[worker].poll() {
            if let Some(service_ns) = begin(task, &mut self.counts) {
                let done_at = free_at + (f64::from(service_ns) / self.tick_ns).round() as u64;
                self.busy.push(Reverse(Busy { done_at, worker }));
                return true;
            }
        }
        false
    }

    /// Checks that all workers are still attached.
    ///
    /// # Errors
    /// If a worker lost its agent: the reason for the first one.
    pub fn check(&self) -> Result<(), Detached> {
        self.workers.iter().try_for_each(Worker::check)
    }

    /// Starts a log of the lateness of each reply, with memory for `replies` replies. The report needs the log to
    /// select the replies of undisturbed slices.
    pub fn log_replies(&mut self, replies: usize) {
        self.lateness.log(replies);
    }

    /// Returns the report of the run so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.report_judged_by(None)
    }

    /// Same as [`StandIns::report`], with a verdict over the replies of undisturbed slices only, if slices are given
    /// and all replies were logged ([`StandIns::log_replies`]). A slice is a short interval of the run. It is
    /// undisturbed if no pause of the machine can have affected its tasks.
    #[must_use]
    pub fn report_judged_by(&self, slices: Option<&Slices>) -> Report {
        let (workers, busy) = (self.workers.len() as u16, self.busy.len() as u64);
        Report::new(&self.counts, &self.lateness, workers, busy, slices)
    }
}

/// Starts a task and returns its service time. A task too short to contain work is counted as dropped and completed
/// without a reply; the result is then `None`.
#[inline]
fn begin(task: Task<'_>, counts: &mut Counts) -> Option<u32> {
    let Some(work) = Work::parse(task.payload()) else {
        counts.dropped[DropReason::TaskShort as usize] += 1;
        return None;
    };
    // Drop would complete the task. It stays at the worker until it is due, when `answer` resumes it.
    mem::forget(task);
    counts.tasks += 1;
    counts.service_ns += u64::from(work.service_ns);
    Some(work.service_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TIMEOUT;
    use std::sync::Arc;
    use wedjat::ring::{Channel, Outcome, TaskIds, WorkerIdentity, WorkerRegion};
    use wedjat_pktgen::oracle::Oracle;
    use wedjat_pktgen::payload::{LEN, seed_of};

    /// Number of the client in its task ids.
    const APP: u32 = 3;

    /// Attaches stand-ins to a region in memory. The test is the agent: it grants each worker's claim, and
    /// returns the agent's ends of the workers' channels.
    fn attached(workers: u16, workload: Workload) -> (Vec<Channel>, StandIns) {
        let identities: Vec<_> = (0..workers).map(|id| WorkerIdentity { id, pool: 1 }).collect();
        // Each worker's ring has 4 slots of 32 bytes.
        let region = Arc::new(WorkerRegion::heap(&identities, 4, 32).unwrap());
        let mut channels: Vec<_> = (0..identities.len()).map(|at| region.channel(at)).collect();
        let attached = std::thread::scope(|scope| {
            let joining = scope.spawn(|| {
                let join = |_| {
                    Worker::join(
                        "here",
                        &region,
                        &Options { attach_timeout: TIMEOUT, ..Options::default() },
                    )
                    .unwrap()
                };
                (0..workers).map(join).collect::<Vec<_>>()
            });
            while !joining.is_finished() {
                for channel in &mut channels {
                    let claim = channel.sender().claim();
                    if claim != channel.sender().granted() {
                        channel.sender_mut().grant(claim);
                    }
                }
                std::thread::yield_now();
            }
            joining.join().unwrap()
        });
        (channels, StandIns::new(attached, workload, 1e9))
    }

    /// Gives a task with this service time to a worker, as its agent does.
    fn give(channel: &mut Channel, seq: u32, service_ns: u32) {
        let mut work = [0; LEN];
        Work { service_ns, operation: 1, seed: seed_of(APP, seq) }.emit(&mut work);
        assert!(channel.send(TaskIds { app: APP, seq, class: 1 }, &work));
    }

    // promise: measurement.3
    #[test]
    fn tasks_complete_at_their_workers_times() {
        let (mut channels, mut stand_ins) = attached(2, Workload::Spin);
        give(&mut channels[0], 0, 1_000);
        give(&mut channels[0], 1, 500);
        give(&mut channels[1], 2, 1_200);
        // Polls at `now` and returns the number of completed tasks of each worker.
        let mut done = |stand_ins: &mut StandIns, now| {
            stand_ins.poll(now);
            [0, 1].map(|at| channels[at].collect().unwrap().count())
        };
        assert_eq!(done(&mut stand_ins, 10_000), [0, 0]);
        assert_eq!(done(&mut stand_ins, 10_999), [0, 0]);
        // The poll is late by 100. The second task still starts at the due time of the first.
        assert_eq!(done(&mut stand_ins, 11_100), [1, 0]);
        assert_eq!(done(&mut stand_ins, 11_499), [0, 1]);
        assert_eq!(done(&mut stand_ins, 11_500), [1, 0]);
        let report = stand_ins.report();
        assert_eq!((report.tasks, report.replies, report.outstanding), (3, 3, 0));
        assert!(report.balances(), "{report}");
        // The second worker's task was due at 11,200 and ended at 11,499.
        assert!((report.lateness_us.max.0 - 0.299).abs() < 0.001, "{report}");
    }

    #[test]
    fn stalled_loop_catches_up() {
        let (mut channels, mut stand_ins) = attached(1, Workload::Spin);
        (0..3).for_each(|seq| give(&mut channels[0], seq, 100));
        // Tasks end at 1100, 1200 and 1300.
        stand_ins.poll(1_000);
        stand_ins.poll(1_250);
        assert_eq!(channels[0].collect().unwrap().count(), 2);
        stand_ins.poll(1_300);
        assert_eq!(channels[0].collect().unwrap().count(), 1);
    }

    // promise: measurement.3
    #[test]
    fn answers_are_right_for_every_workload() {
        for workload in [Workload::Spin, Workload::Tpcc, Workload::RocksDb, Workload::Echo] {
            let (mut channels, mut stand_ins) = attached(1, workload);
            give(&mut channels[0], 8, 0);
            stand_ins.poll(1);
            // Number of the first completion since the last call, which identifies the completed task.
            let count = channels[0].collect().unwrap().start;
            let task = channels[0].sender().completed(count);
            let Outcome::Reply { len, .. } = channels[0].outcome(task) else { panic!("no answer") };
            let mut reply = vec![0; len];
            channels[0].reply(task, &mut reply);
            // The oracle returns the operation to which this is the right answer.
            assert_eq!(Oracle::new(workload, LEN).answered(APP, 8, &reply), Some(1));
        }
    }

    #[test]
    fn empty_task_is_counted_and_completed() {
        let (mut channels, mut stand_ins) = attached(1, Workload::Spin);
        assert!(channels[0].send(TaskIds::default(), &[1, 2]));
        stand_ins.poll(1);
        let count = channels[0].collect().unwrap().start;
        let task = channels[0].sender().completed(count);
        assert_eq!(channels[0].outcome(task), Outcome::Unanswered);
        assert_eq!(stand_ins.report().dropped["task_short"], 1);
        assert!(stand_ins.check().is_ok());
    }
}
