//! Workers tell leaves of their queues, in pools whose leaves learn of queues from messages: when and whom, the leaves' policy
//! says (`policy/member.rs`). What a worker knows of a leaf's belief is what it told it last, and what came from there since.
//!
//! A worker is told of by its id, as leaves know it: its queue is the tasks here that were sent to it, whichever core does them.

use arrayvec::ArrayVec;

use crate::policy::Rng;
use crate::policy::member::{MemberSide, Notify};
use crate::ring::Place;
use crate::wire::task::Header;

/// Reports that may wait to be sent: more tasks end in a poll seldom, and then the workers tell later.
const WORDS_MAX: usize = 256;
/// Milliseconds after which an idle worker that has told nobody anything tells again: its report was lost, or its leaf has gone.
const REMIND_MS: u64 = 1000;

/// A report on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueReport {
    /// Index of the leaf that is told.
    pub leaf: usize,
    /// What it is told.
    pub header: Header,
}

/// One worker's part of it.
#[derive(Debug)]
struct Reporter {
    /// None while it is nobody's.
    place: Option<Place>,
    side: MemberSide,
    /// Of its last report.
    number: u16,
    /// Ticks when it told somebody something, or could have.
    told: u64,
}

/// When the workers of an agent tell leaves of their queues, and whom; and the reports that wait to be sent.
#[derive(Debug)]
pub struct QueueReports {
    reporters: Vec<Reporter>,
    /// When workers of each pool tell, by the pool's id; those of others never do.
    pools: Vec<(u16, Notify)>,
    rng: Rng,
    words: ArrayVec<QueueReport, WORDS_MAX>,
    /// How many of them have been sent.
    sent: usize,
    /// The one to be looked at next.
    next: usize,
    now: u64,
    /// Ticks of [`REMIND_MS`].
    patience: u64,
}

impl QueueReports {
    /// To so many leaves, of workers of these pools, of whom there may be so many. No worker is there yet.
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

    /// A worker may come; its number here, if those of its pool tell of their queues and there is room.
    pub fn add(&mut self, place: Place) -> Option<u16> {
        let (_, notify) = self.pools.iter().find(|(pool, _)| *pool == place.pool)?;
        let at = self.reporters.iter().position(|reporter| reporter.place.is_none())?;
        let reporter = &mut self.reporters[at];
        reporter.side.replace(*notify);
        reporter.place = Some(place);
        Some(at as u16)
    }

    /// The worker of this number comes no more.
    pub fn remove(&mut self, number: u16) {
        if let Some(reporter) = self.reporters.get_mut(usize::from(number)) {
            reporter.place = None;
        }
    }

    /// Tells the time, in ticks.
    #[inline]
    pub fn note_time(&mut self, now: u64) {
        self.now = now;
    }

    /// A task for this worker came from a leaf, by its index.
    #[inline]
    pub fn on_task(&mut self, number: u16, leaf: usize) {
        if let Some(reporter) = self.reporters.get_mut(usize::from(number)) {
            reporter.side.on_tasks(leaf, 1);
        }
    }

    /// A task of this worker has ended, and so many are left.
    #[inline]
    pub fn on_done(&mut self, number: u16, queue: u16) {
        self.tell(number, queue, |side, rng| side.on_done(queue.into(), rng));
    }

    /// A leaf, by its index, has acknowledged this worker, which has so many tasks.
    pub fn on_met(&mut self, number: u16, leaf: usize, queue: u16) {
        self.tell(number, queue, |side, _| side.on_met(leaf, queue.into()).then_some(leaf));
    }

    /// Looks at one worker, each in turn: one that is idle and has told nobody anything for long tells again. `queue` says what a
    /// worker that is there has.
    pub fn tick(&mut self, queue: impl Fn(Place) -> Option<u16>) {
        let number = self.next;
        self.next = if number + 1 < self.reporters.len() { number + 1 } else { 0 };
        let Some(reporter) = self.reporters.get(number) else { return };
        let is_due = self.now.saturating_sub(reporter.told) > self.patience;
        if is_due && reporter.place.is_some_and(|place| queue(place) == Some(0)) {
            self.tell(number as u16, 0, MemberSide::on_forgotten);
        }
    }

    /// Has a worker with so many tasks tell the leaf that is named, if one is. While no more words can wait it tells nobody.
    #[inline]
    fn tell(
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

    /// The next report that is to be sent.
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
