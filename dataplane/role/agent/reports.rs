//! Queue reports of workers to leaves, in pools with reports in messages. The leaves' policy
//! (`policy/member.rs`) determines time and destination. A worker estimates a leaf's view from its last
//! report to it and the tasks that came from there since.
//!
//! Reports name a worker by its id, as leaves know it: its queue consists of the tasks here that were sent to
//! it, whichever core serves them.

use arrayvec::ArrayVec;

use crate::policy::Rng;
use crate::policy::member::{MemberSide, Notify};
use crate::ring::Place;
use crate::wire::task::Header;

/// Capacity for reports waiting to be sent. More tasks rarely complete in one poll; the workers then report
/// later.
const WORDS_MAX: usize = 256;
/// Milliseconds after which an idle worker without recent reports reports again: its report was lost, or its
/// leaf has gone.
const REMIND_MS: u64 = 1000;

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
    place: Option<Place>,
    side: MemberSide,
    /// Number of its last report.
    number: u16,
    /// Time in ticks of its last report, or of the last chance for one.
    told: u64,
}

/// Time and destination of the reports of an agent's workers, and reports waiting to be sent.
#[derive(Debug)]
pub struct QueueReports {
    reporters: Vec<Reporter>,
    /// Reporting rule of each pool, by its id; workers of other pools never report.
    pools: Vec<(u16, Notify)>,
    rng: Rng,
    words: ArrayVec<QueueReport, WORDS_MAX>,
    /// Number of reports already sent.
    sent: usize,
    /// Index of the next reporter to check.
    next: usize,
    now: u64,
    /// [`REMIND_MS`] in ticks.
    patience: u64,
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
        let reporter = |_| Reporter { place: None, side: side(), number: 0, told: 0 };
        Self {
            reporters: (0..workers).map(reporter).collect(),
            pools,
            rng,
            words: ArrayVec::new(),
            sent: 0,
            next: 0,
            now: 0,
            patience: REMIND_MS * ticks_hz / 1000,
        }
    }

    /// Adds a worker. Returns its index, if its pool reports and there is room.
    pub fn add(&mut self, place: Place) -> Option<u16> {
        let (_, notify) = self.pools.iter().find(|(pool, _)| *pool == place.pool)?;
        let at = self.reporters.iter().position(|reporter| reporter.place.is_none())?;
        let reporter = &mut self.reporters[at];
        reporter.side.replace(*notify);
        reporter.place = Some(place);
        Some(at as u16)
    }

    /// Removes the worker with this index.
    pub fn remove(&mut self, number: u16) {
        if let Some(reporter) = self.reporters.get_mut(usize::from(number)) {
            reporter.place = None;
        }
    }

    /// Updates the time, in ticks.
    #[inline]
    pub fn note_time(&mut self, now: u64) {
        self.now = now;
    }

    /// Records a task for this worker from the leaf at this index.
    #[inline]
    pub fn on_task(&mut self, number: u16, leaf: usize) {
        if let Some(reporter) = self.reporters.get_mut(usize::from(number)) {
            reporter.side.on_tasks(leaf, 1);
        }
    }

    /// Records the completion of a task of this worker, with `queue` left.
    #[inline]
    pub fn on_done(&mut self, number: u16, queue: u16) {
        self.queue_report(number, queue, |side, rng| side.on_done(queue.into(), rng));
    }

    /// Records that the leaf at this index acknowledged this worker, which has `queue` tasks.
    pub fn on_leaf_acknowledged(&mut self, number: u16, leaf: usize, queue: u16) {
        self.queue_report(number, queue, |side, _| {
            side.on_dispatcher_joined(leaf, queue.into()).then_some(leaf)
        });
    }

    /// Checks one worker, each in turn: an idle one without recent reports reports again. `queue` returns the
    /// tasks of an attached worker.
    pub fn tick(&mut self, queue: impl Fn(Place) -> Option<u16>) {
        let number = self.next;
        self.next = if number + 1 < self.reporters.len() { number + 1 } else { 0 };
        let Some(reporter) = self.reporters.get(number) else { return };
        let is_due = self.now.saturating_sub(reporter.told) > self.patience;
        if is_due && reporter.place.is_some_and(|place| queue(place) == Some(0)) {
            self.queue_report(number as u16, 0, MemberSide::on_forgotten);
        }
    }

    /// Queues a report of a worker's queue to `leaf`, if any. Skips it if the queue of reports is full.
    #[inline]
    fn queue_report(
        &mut self,
        number: u16,
        queue: u16,
        whom: impl FnOnce(&mut MemberSide, &mut Rng) -> Option<usize>,
    ) {
        let Some(reporter) = self.reporters.get_mut(usize::from(number)) else { return };
        let Some(Place { id, pool }) = reporter.place.filter(|_| !self.words.is_full()) else {
            return;
        };
        reporter.told = self.now;
        if let Some(leaf) = whom(&mut reporter.side, &mut self.rng) {
            reporter.number = reporter.number.wrapping_add(1);
            let header = Header::queue_report(pool, id, queue, reporter.number);
            self.words.push(QueueReport { leaf, header });
        }
    }

    /// Returns the next report to send.
    #[inline]
    pub fn next_word(&mut self) -> Option<QueueReport> {
        let word = self.words.get(self.sent).copied();
        self.sent += 1;
        if word.is_none() {
            self.words.clear();
            self.sent = 0;
        }
        word
    }
}
