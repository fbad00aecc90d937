//! A core's counters: what it did, and why it dropped what it dropped; and when it stood still.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

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

/// Events that are counted.
pub const COUNT: usize = Counter::ALL.len() + DropReason::COUNT;
/// Pauses that are kept, the newest.
pub const PAUSES: usize = 2048;
/// A core that did not poll for longer than this stood still.
pub const PAUSE_NS: u64 = 20_000;
/// u64 words of one core's counters and pauses: the events, how many pauses there were, and a ring of them.
pub const WORDS: usize = COUNT + 1 + PAUSES;
/// Pauses are kept in units of 2^10 ticks: when they began in the upper 40 bits, how long they were in the lower 24.
const UNIT: u32 = 10;
const LENGTH_BITS: u32 = 24;

/// A time at which a core did not poll, in ticks of its clock, to some hundred nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pause {
    /// Its last poll before that.
    pub from: u64,
    /// Its first one after.
    pub to: u64,
}

/// One core's counters. That core writes, anybody may read.
#[derive(Clone, Debug)]
pub struct Counters(Slice<AtomicU64>);

impl Counters {
    /// Counters over [`WORDS`] words.
    #[must_use]
    pub fn new(words: Slice<AtomicU64>) -> Self {
        assert_eq!(words.len(), WORDS);
        Self(words)
    }

    /// Counters in memory of their own.
    #[must_use]
    pub fn heap() -> Self {
        Self::new(Region::heap(8 * WORDS).slice(0, WORDS))
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

    /// The core did not poll between these ticks.
    #[cold]
    pub fn note_pause(&self, from: u64, to: u64) {
        let number = self.0[COUNT].load(Relaxed);
        // Rounded outwards: the pause lies within what is noted.
        let (first, last) = (from >> UNIT, to.div_ceil(1 << UNIT));
        let length = (last - first).min((1 << LENGTH_BITS) - 1);
        let at = COUNT + 1 + (number % PAUSES as u64) as usize;
        self.0[at].store(first << LENGTH_BITS | length, Relaxed);
        self.0[COUNT].store(number + 1, Release);
    }

    /// How often the core stood still, and the newest times of it, [`PAUSES`] at most, in no order.
    #[must_use]
    pub fn pauses(&self) -> (u64, Vec<Pause>) {
        let number = self.0[COUNT].load(Acquire);
        let pause = |word: &AtomicU64| {
            let word = word.load(Relaxed);
            let from = word >> LENGTH_BITS << UNIT;
            Pause { from, to: from + ((word & ((1 << LENGTH_BITS) - 1)) << UNIT) }
        };
        let kept = number.min(PAUSES as u64) as usize;
        (number, self.0[COUNT + 1..][..kept].iter().map(pause).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_pauses_are_kept_and_all_are_counted() {
        let counters = Counters::heap();
        assert_eq!(counters.pauses(), (0, Vec::new()));
        counters.note_pause(5_000_000_001, 5_000_100_001);
        let (count, found) = counters.pauses();
        let [Pause { from, to }] = found[..] else { panic!("{found:?}") };
        assert!(count == 1 && from <= 5_000_000_001 && to >= 5_000_100_001, "{found:?}");
        assert!(to - from < 100_000 + 2 * 1024, "{found:?}");
        for at in 0..PAUSES as u64 + 5 {
            counters.note_pause(at << 20, (at << 20) + 50_000);
        }
        let (count, mut found) = counters.pauses();
        found.sort_unstable();
        assert_eq!((count, found.len()), (PAUSES as u64 + 6, PAUSES));
        assert_eq!(found.first().map(|pause| pause.from), Some(5 << 20));
        // Longer than can be said: as long as can be.
        let forever = Counters::heap();
        forever.note_pause(0, u64::MAX >> 1);
        assert!(forever.pauses().1[0].to >= 1 << 33);
    }
}
