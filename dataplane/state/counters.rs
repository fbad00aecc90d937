//! A core's counters: what it did, and why it dropped what it dropped.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::region::{Region, Slice};
use crate::reason::DropReason;

/// Events counted, each in packets unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Received.
    RxPackets,
    /// Received and sent on.
    TxPackets,
    /// Received and used up here: ARP, signals.
    Consumed,
    /// Received and waiting here now (for a neighbour, or in a central queue).
    Held,
    /// Of those held, tasks in central queues.
    Queued,
    /// Received and given back to their clients, for want of room in a central queue; also consumed and originated.
    Refused,
    /// WORKER_ID taken; each is answered.
    Registrations,
    /// KEEP_ALIVE taken.
    KeepAlives,
    /// Times a registered worker fell silent and was taken out, in workers.
    WorkersLost,
    /// Times a silent worker came back, in workers.
    WorkersBack,
    /// Made here and sent: ARP, signals.
    Originated,
    /// Tasks given to a member.
    Scheduled,
    /// Further packets of multi-packet tasks sent after their first.
    Continuations,
    /// Tasks given to a member of the idle list.
    IdlePicks,
    /// Tasks given to the better of two random members.
    Po2Picks,
    /// Picks for which a switch would have used its pipeline twice.
    Resubmits,
    /// Replies of workers.
    Replies,
    /// Replies, among them, of workers that had no task outstanding: duplicates, or tasks of an earlier run.
    SurplusReplies,
    /// Packets made here that could not be sent.
    OriginatedUnsent,
    /// Polls that brought packets.
    BusyPolls,
    /// Polls that brought none.
    EmptyPolls,
    /// Ticks spent on polls that brought packets.
    BusyTicks,
}

impl Counter {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::RxPackets,
        Self::TxPackets,
        Self::Consumed,
        Self::Held,
        Self::Queued,
        Self::Refused,
        Self::Registrations,
        Self::KeepAlives,
        Self::WorkersLost,
        Self::WorkersBack,
        Self::Originated,
        Self::Scheduled,
        Self::Continuations,
        Self::IdlePicks,
        Self::Po2Picks,
        Self::Resubmits,
        Self::Replies,
        Self::SurplusReplies,
        Self::OriginatedUnsent,
        Self::BusyPolls,
        Self::EmptyPolls,
        Self::BusyTicks,
    ];

    /// The key under which it is reported.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RxPackets => "rx_packets",
            Self::TxPackets => "tx_packets",
            Self::Consumed => "consumed",
            Self::Held => "held",
            Self::Queued => "queued",
            Self::Refused => "refused",
            Self::Registrations => "registrations",
            Self::KeepAlives => "keep_alives",
            Self::WorkersLost => "workers_lost",
            Self::WorkersBack => "workers_back",
            Self::Originated => "originated",
            Self::Scheduled => "scheduled",
            Self::Continuations => "continuations",
            Self::IdlePicks => "idle_picks",
            Self::Po2Picks => "po2_picks",
            Self::Resubmits => "resubmits",
            Self::Replies => "replies",
            Self::SurplusReplies => "surplus_replies",
            Self::OriginatedUnsent => "originated_unsent",
            Self::BusyPolls => "busy_polls",
            Self::EmptyPolls => "empty_polls",
            Self::BusyTicks => "busy_ticks",
        }
    }
}

/// u64 words of one core's counters.
pub const COUNT: usize = Counter::ALL.len() + DropReason::COUNT;

/// One core's counters. That core writes, anybody may read.
#[derive(Clone, Debug)]
pub struct Counters(Slice<AtomicU64>);

impl Counters {
    /// Counters over [`COUNT`] words.
    #[must_use]
    pub fn new(words: Slice<AtomicU64>) -> Self {
        assert_eq!(words.len(), COUNT);
        Self(words)
    }

    /// Counters in memory of their own.
    #[must_use]
    pub fn heap() -> Self {
        Self::new(Region::heap(8 * COUNT).slice(0, COUNT))
    }

    #[inline]
    fn bump(&self, at: usize, by: u64) {
        // One writer: a plain load and store, no locked instruction.
        let word = &self.0[at];
        word.store(word.load(Relaxed).saturating_add(by), Relaxed);
    }

    /// Counts `by` events.
    #[inline]
    pub fn add(&self, counter: Counter, by: u64) {
        self.bump(counter as usize, by);
    }

    /// Sets a counter that tells a present number, such as [`Counter::Held`].
    #[inline]
    pub fn set(&self, counter: Counter, value: u64) {
        self.0[counter as usize].store(value, Relaxed);
    }

    /// Counts `by` dropped packets.
    #[inline]
    pub fn drop(&self, reason: DropReason, by: u64) {
        self.bump(Counter::ALL.len() + reason as usize, by);
    }

    /// Events counted.
    #[must_use]
    pub fn read(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Relaxed)
    }

    /// Packets dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.0[Counter::ALL.len() + reason as usize].load(Relaxed)
    }

    /// Packets dropped for any reason.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        DropReason::ALL.iter().map(|&reason| self.dropped(reason)).sum()
    }

    /// Adds what `others` have counted since they were last folded in; `folded` keeps how far that went.
    pub fn fold(&self, others: &Self, folded: &mut [u64; COUNT]) {
        for (at, folded) in folded.iter_mut().enumerate() {
            let now = others.0[at].load(Relaxed);
            self.bump(at, now - *folded);
            *folded = now;
        }
    }

    /// What came in equals what went out, was used up, was dropped, or waits here.
    /// Exact when its core is between bursts.
    #[must_use]
    pub fn balances(&self) -> bool {
        let out = self.read(Counter::TxPackets)
            + self.read(Counter::Consumed)
            + self.read(Counter::Held)
            + self.dropped_total();
        self.read(Counter::RxPackets) == out
    }
}

const _: () = {
    // A counter's number is the index of its word.
    let mut i = 0;
    while i < Counter::ALL.len() {
        assert!(Counter::ALL[i] as usize == i);
        i += 1;
    }
};
