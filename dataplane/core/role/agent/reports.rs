//! Queue reports of workers to leaves, in pools whose workers report by messages of their own, besides replies. The
//! agent sends them in the workers' names. The worker's side of the leaves' policy (`policy/member.rs`) determines time
//! and destination. It estimates a leaf's view of a worker from the last report to that leaf and the tasks received
//! from it since.
//!
//! A report contains a worker's id and queue length: the number of tasks at this agent that name the worker,
//! although another core may serve them.

use arrayvec::ArrayVec;

use crate::policy::Rng;
use crate::policy::member::{MemberSide, Notify};
use crate::ring::WorkerIdentity;
use crate::wire::task::Header;

/// Maximum number of reports waiting to be sent. More tasks rarely complete in one poll; their workers then
/// report with a later task.
const REPORTS_MAX: usize = 256;
/// Milliseconds after which an idle worker repeats its report: the last one may be lost, or its leaf may have
/// restarted.
const REPEAT_MS: u64 = 1000;

/// A report to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueReport {
    /// Index of the destination leaf.
    pub leaf: usize,
    /// The message.
    pub header: Header,
}

/// State of one worker.
#[derive(Debug)]
struct Reporter {
    /// Worker; `None` if free.
    identity: Option<WorkerIdentity>,
    /// Worker's side of the policy.
    side: MemberSide,
    /// Number of its last report, by which the leaf recognizes overtaken reports. Continues if another worker takes the
    /// entry.
    number: u16,
    /// Time in ticks of its last report, or of the last event at which it could have reported.
    reported_at: u64,
}

/// Time and destination of the reports of an agent's workers, and reports waiting to be sent.
#[derive(Debug)]
pub struct QueueReports {
    /// Workers that report, and free entries.
    reporters: Vec<Reporter>,
    /// Reporting rule of each pool, by its id; workers of other pools never report.
    pools: Vec<(u16, Notify)>,
    /// Random source for rules that choose the leaf at random.
    rng: Rng,
    /// Reports to be sent. Cleared when all are sent.
    reports: ArrayVec<QueueReport, REPORTS_MAX>,
    /// Number of `reports` already sent.
    sent: usize,
    /// Index of the next reporter to check.
    next: usize,
    /// Time in ticks.
    now: u64,
    /// [`REPEAT_MS`] in ticks.
    repeat_interval: u64,
}

impl QueueReports {
    /// Creates the reports to `leaves` leaves, for these pools and up to `workers` workers.
    #[must_use]
    pub fn new(
        pools: Vec<(u16, Notify)>,
        leaves: usize,
        workers: usize,
        rng: Rng,
        ticks_hz: u64,
    ) -> Self {
        let side = || MemberSide::new(Notify::Never, 0, leaves);
        let reporter = |_| Reporter { identity: None, side: side(), number: 0, reported_at: 0 };
        Self {
            reporters: (0..workers).map(reporter).collect(),
            pools,
            rng,
            reports: ArrayVec::new(),
            sent: 0,
            next: 0,
            now: 0,
            repeat_interval: REPEAT_MS * ticks_hz / 1000,
        }
    }

    /// Adds a worker. Returns its index, if its pool reports and there is room.
    pub fn add(&mut self, identity: WorkerIdentity) -> Option<u16> {
        let (_, notify) = self.pools.iter().find(|(pool, _)| *pool == identity.pool)?;
        let index = self.reporters.iter().position(|reporter| reporter.identity.is_none())?;
        let reporter = &mut self.reporters[index];
        reporter.side.replace(*notify);
        reporter.identity = Some(identity);
        Some(index as u16)
    }

    /// Removes the worker with this index.
    pub fn remove(&mut self, index: u16) {
        if let Some(reporter) = self.reporters.get_mut(usize::from(index)) {
            reporter.identity = None;
        }
    }

    /// Updates the time, in ticks.
    #[inline]
    pub fn note_time(&mut self, now: u64) {
        self.now = now;
    }

    /// Records a task for this worker from the leaf at this index.
    ///
    /// The caller finds the leaf by the source MAC address. The header has the client's id, and the leaf keeps the
    /// client's addresses.
    #[inline]
    pub fn on_task(&mut self, index: u16, leaf: usize) {
        if let Some(reporter) = self.reporters.get_mut(usize::from(index)) {
            reporter.side.on_tasks(leaf, 1);
        }
    }

    /// Records the completion of a task of this worker, with `queue` left.
    #[inline]
    pub fn on_done(&mut self, index: u16, queue: u16) {
        self.queue_report(index, queue, |side, rng| side.on_done(queue.into(), rng));
    }

    /// Records that the leaf at this index acknowledged the registration of this worker, which has `queue` tasks. The
    /// leaf may need a report, because it has none of this worker yet.
    pub fn on_leaf_acknowledged(&mut self, index: u16, leaf: usize, queue: u16) {
        self.queue_report(index, queue, |side, _| {
            side.on_dispatcher_joined(leaf, queue.into()).then_some(leaf)
        });
    }

    /// Checks one worker per call, in turn, and repeats its report if it is idle and has not reported recently.
    /// `queue` returns the number of tasks of an attached worker.
    pub fn tick(&mut self, queue: impl Fn(WorkerIdentity) -> Option<u16>) {
        let index = self.next;
        self.next = if index + 1 < self.reporters.len() { index + 1 } else { 0 };
        let Some(reporter) = self.reporters.get(index) else { return };
        let is_due = self.now.saturating_sub(reporter.reported_at) > self.repeat_interval;
        if is_due && reporter.identity.is_some_and(|identity| queue(identity) == Some(0)) {
            // `on_forgotten` returns the leaf to which an idle worker should report again.
            self.queue_report(index as u16, 0, MemberSide::on_forgotten);
        }
    }

    /// Queues a report of a worker's queue length to the leaf that `destination` returns, if any. Does nothing if
    /// too many reports wait already.
    #[inline]
    fn queue_report(
        &mut self,
        index: u16,
        queue: u16,
        destination: impl FnOnce(&mut MemberSide, &mut Rng) -> Option<usize>,
    ) {
        let Some(reporter) = self.reporters.get_mut(usize::from(index)) else { return };
        let Some(WorkerIdentity { id, pool }) =
            reporter.identity.filter(|_| !self.reports.is_full())
        else {
            return;
        };
        reporter.reported_at = self.now; // also if no leaf gets a report
        if let Some(leaf) = destination(&mut reporter.side, &mut self.rng) {
            reporter.number = reporter.number.wrapping_add(1);
            let header = Header::queue_report(pool, id, queue, reporter.number);
            self.reports.push(QueueReport { leaf, header });
        }
    }

    /// Returns the next report to send, if any.
    #[inline]
    pub fn next_report(&mut self) -> Option<QueueReport> {
        let report = self.reports.get(self.sent).copied();
        self.sent += 1;
        if report.is_none() {
            self.reports.clear();
            self.sent = 0;
        }
        report
    }
}
