//! Emulated workers at an agent: one loop has a place for each, and answers a task when its worker would be done.
//!
//! As in the emulated rack, a worker's time never waits for this program. Its task starts when the one before was
//! due to end, if it was in the worker's ring by the time that this loop looked, and otherwise when the loop found
//! it. Answers that leave late are measured, and make a run invalid when they matter. A worker answers rightly
//! ([`crate::app::Emulated`]), whatever its workload.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;

use wedjat::reason::DropReason;
use wedjat::worker::{AttachError, Gone, Options, Task, Worker};
use wedjat_pktgen::mix::Workload;
use wedjat_pktgen::payload::Work;
use wedjat_pktgen::slices::Slices;

use crate::app::{App, Emulated};
use crate::rack::{Counts, Lateness, Report};

/// Emulated workers at one agent.
pub struct StandIns {
    workers: Vec<Worker>,
    /// Those that hold a task, the first to be done on top.
    busy: BinaryHeap<Reverse<Busy>>,
    /// The others, which alone are looked at at every poll.
    idle: Vec<usize>,
    app: Emulated,
    tick_ns: f64,
    counts: Counts,
    lateness: Lateness,
}

/// When a worker will be done with its task, and its index; in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Busy {
    done_at: u64,
    at: usize,
}

impl StandIns {
    /// Takes so many places at the agent of this name, for tasks of `workload`, on a clock of `hz` ticks a second.
    ///
    /// # Errors
    /// When there are not so many, or there is no such agent.
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

    /// Stand-ins for these workers, which are attached.
    #[must_use]
    pub fn new(workers: Vec<Worker>, workload: Workload, hz: f64) -> Self {
        Self {
            busy: BinaryHeap::with_capacity(workers.len()),
            idle: (0..workers.len()).collect(),
            workers,
            app: Emulated::new(workload),
            tick_ns: 1e9 / hz,
            counts: Counts::default(),
            lateness: Lateness::default(),
        }
    }

    /// Answers what is done by `now`, and takes what has come.
    #[inline]
    pub fn poll(&mut self, now: u64) {
        let mut place = 0;
        while let Some(&at) = self.idle.get(place) {
            match self.take(at, now) {
                true => drop(self.idle.swap_remove(place)),
                false => place += 1,
            }
        }
        while let Some(&Reverse(busy)) = self.busy.peek() {
            if busy.done_at > now {
                break;
            }
            self.busy.pop();
            self.answer(busy, now);
            if !self.take(busy.at, busy.done_at) {
                self.idle.push(busy.at);
            }
        }
    }

    /// Has a worker answer its task.
    #[inline]
    fn answer(&mut self, busy: Busy, now: u64) {
        if let Some(task) = self.workers[busy.at].resume() {
            task.reply_with(|work, reply| self.app.serve(work, reply));
        }
        let late = (now - busy.done_at) as f64 * self.tick_ns;
        self.lateness.record(busy.done_at, late as u64);
        self.counts.replies += 1;
    }

    /// Has a worker that is free since `free_at` take its next task, if one is there.
    #[inline]
    fn take(&mut self, at: usize, free_at: u64) -> bool {
        while let Some(task) = self.workers[at].poll() {
            if let Some(service_ns) = begin(task, &mut self.counts) {
                let done_at = free_at + (f64::from(service_ns) / self.tick_ns).round() as u64;
                self.busy.push(Reverse(Busy { done_at, at }));
                return true;
            }
        }
        false
    }

    /// Whether tasks may still come to all.
    ///
    /// # Errors
    /// Why they will not, for the first that has lost its agent.
    pub fn check(&self) -> Result<(), Gone> {
        self.workers.iter().try_for_each(Worker::check)
    }

    /// Takes memory for so many replies, so that those of calm slices can be told apart.
    pub fn log_replies(&mut self, replies: usize) {
        self.lateness.log(replies);
    }

    /// What there is to say about the run so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.report_in(None)
    }

    /// The same, judged by the replies of calm slices.
    #[must_use]
    pub fn report_in(&self, slices: Option<&Slices>) -> Report {
        let (workers, busy) = (self.workers.len() as u16, self.busy.len() as u64);
        Report::new(&self.counts, &self.lateness, workers, busy, slices)
    }
}

/// Starts on a task: how long it takes. What asks for nothing is completed without an answer.
#[inline]
fn begin(task: Task<'_>, counts: &mut Counts) -> Option<u32> {
    let Some(work) = Work::parse(task.payload()) else {
        counts.dropped[DropReason::TaskShort as usize] += 1;
        return None;
    };
    mem::forget(task); // kept at the worker until it is done
    counts.tasks += 1;
    counts.service_ns += u64::from(work.service_ns);
    Some(work.service_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PATIENCE;
    use std::sync::Arc;
    use wedjat::ring::{Channel, Outcome, Place, TaskIds, WorkerRegion};
    use wedjat_pktgen::oracle::Oracle;
    use wedjat_pktgen::payload::{LEN, seed_of};

    const APP: u32 = 3;

    fn attached(workers: u16, workload: Workload) -> (Vec<Channel>, StandIns) {
        let places: Vec<_> = (0..workers).map(|id| Place { id, pool: 1 }).collect();
        let region = Arc::new(WorkerRegion::heap(&places, 4, 32).unwrap());
        let mut channels: Vec<_> = (0..places.len()).map(|at| region.channel(at)).collect();
        let attached = std::thread::scope(|scope| {
            let joining = scope.spawn(|| {
                let join = |_| {
                    Worker::join(
                        "here",
                        &region,
                        &Options { patience: PATIENCE, ..Options::default() },
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

    fn give(channel: &mut Channel, seq: u32, service_ns: u32) {
        let mut work = [0; LEN];
        Work { service_ns, operation: 1, seed: seed_of(APP, seq) }.emit(&mut work);
        assert!(channel.give(TaskIds { app: APP, seq, class: 1 }, &work));
    }

    #[test]
    fn tasks_are_done_when_their_worker_would_be_done() {
        let (mut channels, mut stand_ins) = attached(2, Workload::Spin);
        give(&mut channels[0], 0, 1_000);
        give(&mut channels[0], 1, 500);
        give(&mut channels[1], 2, 1_200);
        let mut done = |stand_ins: &mut StandIns, now| {
            stand_ins.poll(now);
            [0, 1].map(|at| channels[at].collect().unwrap().count())
        };
        assert_eq!(done(&mut stand_ins, 10_000), [0, 0]);
        assert_eq!(done(&mut stand_ins, 10_999), [0, 0]);
        // Late by 100: the second task began when the first was due to end all the same.
        assert_eq!(done(&mut stand_ins, 11_100), [1, 0]);
        assert_eq!(done(&mut stand_ins, 11_499), [0, 1]);
        assert_eq!(done(&mut stand_ins, 11_500), [1, 0]);
        let report = stand_ins.report();
        assert_eq!((report.tasks, report.replies, report.outstanding), (3, 3, 0));
        assert!(report.balances(), "{report}");
        assert!((report.lateness_us.max.0 - 0.299).abs() < 0.001, "{report}");
    }

    #[test]
    fn a_loop_that_stood_still_catches_up() {
        let (mut channels, mut stand_ins) = attached(1, Workload::Spin);
        (0..3).for_each(|seq| give(&mut channels[0], seq, 100));
        stand_ins.poll(1_000);
        stand_ins.poll(1_250);
        assert_eq!(channels[0].collect().unwrap().count(), 2);
        stand_ins.poll(1_300);
        assert_eq!(channels[0].collect().unwrap().count(), 1);
    }

    #[test]
    fn answers_are_right_whatever_the_workload() {
        for workload in [Workload::Spin, Workload::Tpcc, Workload::RocksDb, Workload::Echo] {
            let (mut channels, mut stand_ins) = attached(1, workload);
            give(&mut channels[0], 8, 0);
            stand_ins.poll(1);
            let number = channels[0].collect().unwrap().start;
            let Outcome::Reply { len, .. } = channels[0].outcome(number) else {
                panic!("no answer")
            };
            let mut reply = vec![0; len];
            channels[0].reply(number, &mut reply);
            assert_eq!(Oracle::new(workload, LEN).answered(APP, 8, &reply), Some(1));
        }
    }

    #[test]
    fn a_task_that_asks_for_nothing_is_counted_and_completed() {
        let (mut channels, mut stand_ins) = attached(1, Workload::Spin);
        assert!(channels[0].give(TaskIds::default(), &[1, 2]));
        stand_ins.poll(1);
        let number = channels[0].collect().unwrap().start;
        assert_eq!(channels[0].outcome(number), Outcome::Unanswered);
        assert_eq!(stand_ins.report().dropped["task_short"], 1);
        assert!(stand_ins.check().is_ok());
    }
}
