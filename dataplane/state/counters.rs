//! A core's counters and gauges: what it did, what it holds, why it dropped what it dropped; and when it stood still.
//!
//! What there is of them stands in the table of this file, and drop reasons in that of [`crate::reason`]. The state file,
//! accounts, the C library and docs/counters.md are made from the two.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::region::{Region, Slice};
use crate::reason::DropReason;

/// How a metric changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// It never goes down while its node runs.
    Counter,
    /// It tells how much there is now.
    Gauge,
}

impl CounterKind {
    /// As documents have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// What is to be known of a number that each core keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The key under which it is reported.
    pub name: &'static str,
    /// How it changes.
    pub kind: CounterKind,
    /// What it is a number of.
    pub unit: &'static str,
    /// What it tells, in a sentence.
    pub help: &'static str,
}

/// A number that each core keeps: a [`Counter`], a [`Gauge`], or the packets dropped for a [`DropReason`].
pub trait Kept: Copy {
    /// Index of its word among a core's [`COUNT`].
    fn word(self) -> usize;
}

/// Makes an enum, its list and its metrics of one table.
macro_rules! metrics {
    ($(#[doc = $about:literal])+ $set:ident, $kind:ident, $first:expr => {
        $($(#[doc = $help:literal])+ $name:ident => $key:literal, $unit:literal;)+
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $set {
            $($(#[doc = $help])+ $name,)+
        }

        impl $set {
            /// All of them, in the order of their words.
            pub const ALL: [Self; [$($key),+].len()] = [$(Self::$name),+];

            /// What is to be known of it.
            #[must_use]
            pub const fn metric(self) -> Metric {
                match self {
                    $(Self::$name => Metric {
                        name: $key,
                        kind: CounterKind::$kind,
                        unit: $unit,
                        help: concat!($($help),+).trim_ascii(),
                    },)+
                }
            }

            /// The key under which it is reported.
            #[must_use]
            pub const fn name(self) -> &'static str {
                self.metric().name
            }
        }

        impl Kept for $set {
            #[inline]
            fn word(self) -> usize {
                $first + self as usize
            }
        }
    };
}

metrics! {
    /// Events counted.
    Counter, Counter, 0 => {
        /// Received.
        RxPackets => "rx_packets", "packets";
        /// Received and let go out of a port; those that it did not take were dropped as `tx_full`.
        Forwarded => "forwarded", "packets";
        /// Received and used up here: ARP, signals, queue reports, probes, words of peers.
        Consumed => "consumed", "packets";
        /// Given back to clients for want of room in a central queue: consumed and originated, or below a spine forwarded.
        Refused => "refused", "packets";
        /// WORKER_ID taken; each is answered.
        Registrations => "registrations", "packets";
        /// KEEP_ALIVE taken.
        KeepAlives => "keep_alives", "packets";
        /// Registered workers that fell silent and were taken out; at a spine leaves, once a pool.
        WorkersLost => "workers_lost", "workers";
        /// Silent workers that came back; at a spine leaves, once a pool.
        WorkersBack => "workers_back", "workers";
        /// Tasks that will not be answered: at a spine those that leaves had when they fell silent, by what they told last and were
        /// sent since; in a program with a header of its own those that it told of.
        WrittenOff => "written_off", "tasks";
        /// At a spine, signals of leaves taken; at a leaf, KEEP_ALIVE of spines.
        Signals => "signals", "packets";
        /// At a spine, signals passed over, for newer ones of their leaf had come before.
        SignalsOld => "signals_old", "packets";
        /// Queue reports of workers: at a leaf taken, at an agent sent.
        QueueReports => "queue_reports", "packets";
        /// At a leaf, queue reports passed over, for newer ones of their worker had come before.
        QueueReportsOld => "queue_reports_old", "packets";
        /// Probes, which ask workers for their queues: at a leaf sent, at an agent answered.
        QueueProbes => "queue_probes", "packets";
        /// At a leaf, answers to probes taken.
        ProbeAnswers => "probe_answers", "packets";
        /// At a leaf, answers to probes passed over: their task did not wait for them any longer, or they came twice.
        ProbeAnswersLate => "probe_answers_late", "packets";
        /// At a leaf, probes whose task went without their answer, which did not come in time.
        ProbesUnanswered => "probes_unanswered", "packets";
        /// At a leaf, spines that fell silent.
        SpinesLost => "spines_lost", "spines";
        /// At a leaf, silent spines that were heard of again.
        SpinesBack => "spines_back", "spines";
        /// Made here to be sent: ARP, signals, queue reports, probes, tasks given back, words to peers.
        Originated => "originated", "packets";
        /// Tasks given to a member.
        Scheduled => "scheduled", "tasks";
        /// Further packets of multi-packet tasks sent after their first.
        Continuations => "continuations", "packets";
        /// Tasks given to a member of the idle list.
        IdlePicks => "idle_picks", "tasks";
        /// Tasks given to the better of two random members.
        Po2Picks => "po2_picks", "tasks";
        /// Picks for which a switch would have used its pipeline twice.
        Resubmits => "resubmits", "tasks";
        /// Replies of workers.
        Replies => "replies", "packets";
        /// Replies, among them, of workers that had no task outstanding: duplicates, or tasks of an earlier run.
        SurplusReplies => "surplus_replies", "packets";
        /// Of those originated, what no buffer was left for or no port took.
        OriginatedUnsent => "originated_unsent", "packets";
        /// At an agent with peers, clients' tasks passed on to a peer.
        TasksPassed => "tasks_passed", "tasks";
        /// At an agent with peers, tasks that waited and were given to a peer that asked for one.
        TasksGiven => "tasks_given", "tasks";
        /// At an agent with peers, tasks that came from peers, passed on or given.
        TasksTaken => "tasks_taken", "tasks";
        /// At an agent with peers, requests for a task sent to peers.
        StealRequests => "steal_requests", "packets";
        /// At an agent with peers, requests of peers that came when no task waited.
        StealsFailed => "steals_failed", "packets";
        /// At an agent with peers, heartbeats of peers taken.
        Heartbeats => "heartbeats", "packets";
        /// Polls that brought packets.
        BusyPolls => "busy_polls", "polls";
        /// Polls that brought none.
        EmptyPolls => "empty_polls", "polls";
        /// Time spent on polls that brought packets.
        BusyTicks => "busy_ticks", "ticks";
        /// Times at which a core that runs in real time did not poll for a millisecond or longer.
        Stalls => "stalls", "times";
        /// How long it did not poll then, in all.
        StalledTicks => "stalled_ticks", "ticks";
        /// Times that a core slept since nothing came, under `poll = "adaptive"`.
        Sleeps => "sleeps", "times";
        /// Sleeps, among them, that a device ended since something came; others end when it is time.
        Wakes => "wakes", "times";
    }
}

metrics! {
    /// How much there is at the moment.
    Gauge, Gauge, Counter::ALL.len() => {
        /// Received and waiting here: for a neighbour, in a central queue, or with a worker core.
        Held => "held", "packets";
        /// Of those held, tasks in central queues.
        Queued => "queued", "tasks";
        /// At a leaf, spines that are silent.
        SpinesSilent => "spines_silent", "spines";
        /// At an agent with peers, peers that are there.
        PeersLive => "peers_live", "peers";
        /// At an agent with peers, its load: how long what waits there takes each slot of its workers.
        PeerLoadTicks => "peer_load_ticks", "ticks";
        /// How long a core has not polled, of a stall of 50 ms or longer that lasts; `stalled_ticks` has it once it is over.
        StallTicks => "stall_ticks", "ticks";
    }
}

impl Kept for DropReason {
    #[inline]
    fn word(self) -> usize {
        Counter::ALL.len() + Gauge::ALL.len() + self as usize
    }
}

/// How many numbers a core keeps.
pub const COUNT: usize = Counter::ALL.len() + Gauge::ALL.len() + DropReason::COUNT;

/// What is to be known of them, in the order of their words.
pub const METRICS: [Metric; COUNT] = {
    let mut metrics = [Counter::RxPackets.metric(); COUNT];
    let mut at = 0;
    while at < Counter::ALL.len() {
        metrics[at] = Counter::ALL[at].metric();
        at += 1;
    }
    let gauges = at;
    while at < gauges + Gauge::ALL.len() {
        metrics[at] = Gauge::ALL[at - gauges].metric();
        at += 1;
    }
    let reasons = at;
    while at < COUNT {
        let reason = DropReason::ALL[at - reasons];
        let (name, help) = (reason.name(), reason.help());
        metrics[at] = Metric { name, kind: CounterKind::Counter, unit: "packets", help };
        at += 1;
    }
    metrics
};

/// A number that is another one, all but certainly, when the words mean anything else: part of the state file's version.
pub const TABLE: u32 = {
    // FNV-1a.
    let (mut hash, mut at) = (0x811c_9dc5_u32, 0);
    while at < COUNT {
        let (name, mut byte) = (METRICS[at].name.as_bytes(), 0);
        while byte <= name.len() {
            let next = if byte < name.len() { name[byte] } else { 0 };
            hash = (hash ^ next as u32).wrapping_mul(0x0100_0193);
            byte += 1;
        }
        at += 1;
    }
    hash
};

/// Pauses that are kept, the newest.
pub const PAUSES: usize = 2048;
/// A core that did not poll for longer than this stood still.
pub const PAUSE_NS: u64 = 20_000;
/// One that did not for as long as this counts among [`Counter::Stalls`] besides.
pub const STALL_NS: u64 = 1_000_000;
/// u64 words of one core's counters and pauses: the numbers, how many pauses there were, and a ring of them.
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

/// Packets after which a core that has received none counts as idle. An emulated or idle network has fewer.
const SPREAD_AFTER: u64 = 10_000;

/// Cores that have received nothing while the others of their node received thousands of packets: the devices do not spread packets over
/// their queues. `received` has one figure for each core.
pub fn idle_cores(received: impl Iterator<Item = u64> + Clone) -> Vec<usize> {
    match received.clone().sum::<u64>() {
        SPREAD_AFTER.. => {
            received.enumerate().filter(|(_, count)| *count == 0).map(|(core, _)| core).collect()
        }
        _ => Vec::new(),
    }
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
        self.bump(counter.word(), by);
    }

    /// Tells how much there is.
    #[inline]
    pub fn set(&self, gauge: Gauge, value: u64) {
        self.0[gauge.word()].store(value, Relaxed);
    }

    /// Counts `by` dropped packets.
    #[inline]
    pub fn drop(&self, reason: DropReason, by: u64) {
        self.bump(reason.word(), by);
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

    /// The number as it is now.
    #[must_use]
    pub fn read(&self, of: impl Kept) -> u64 {
        self.0[of.word()].load(Relaxed)
    }

    /// Packets dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.read(reason)
    }

    /// Packets dropped for any reason.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.totals().dropped()
    }

    /// Adds what `others` have counted since they were last folded in; `folded` keeps how far that went. Gauges are left alone.
    pub fn fold(&self, others: &Self, folded: &mut [u64; COUNT]) {
        for (at, folded) in folded.iter_mut().enumerate() {
            if METRICS[at].kind == CounterKind::Counter {
                let now = others.0[at].load(Relaxed);
                self.bump(at, now - *folded);
                *folded = now;
            }
        }
    }

    /// All numbers as they are now.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals::read(std::slice::from_ref(self))
    }

    /// As [`Totals::balances`], of this core.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.totals().balances()
    }
}

/// Sums over cores at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals([u64; COUNT]);

impl Default for Totals {
    fn default() -> Self {
        Self([0; COUNT])
    }
}

impl Totals {
    /// The sums over `cores`.
    #[must_use]
    pub fn read(cores: &[Counters]) -> Self {
        Self(std::array::from_fn(|at| cores.iter().map(|core| core.0[at].load(Relaxed)).sum()))
    }

    /// One of the sums.
    #[must_use]
    pub fn count(&self, of: impl Kept) -> u64 {
        self.0[of.word()]
    }

    /// All of them, in the order of [`METRICS`].
    #[must_use]
    pub fn values(&self) -> &[u64; COUNT] {
        &self.0
    }

    /// What is lower than it was `before`: gauges only, while a node runs.
    pub fn fallen_since(&self, before: &Self) -> impl Iterator<Item = &'static Metric> {
        let words = METRICS.iter().zip(self.0.iter().zip(&before.0));
        words.filter(|(_, (now, before))| now < before).map(|(metric, _)| metric)
    }

    /// Ticks since `before` in which cores did not poll: of stalls that are over, and of those that last.
    #[must_use]
    pub fn stalled_since(&self, before: &Self) -> u64 {
        let all =
            |totals: &Self| totals.count(Counter::StalledTicks) + totals.count(Gauge::StallTicks);
        all(self).saturating_sub(all(before))
    }

    /// Counters and gauges, by name.
    #[must_use]
    pub fn named(&self) -> BTreeMap<&'static str, u64> {
        let words = METRICS.iter().zip(self.0).take(DropReason::ALL[0].word());
        words.map(|(metric, value)| (metric.name, value)).collect()
    }

    /// Packets dropped, by reason; reasons that never occurred are left out.
    #[must_use]
    pub fn drops(&self) -> BTreeMap<&'static str, u64> {
        let reasons = DropReason::ALL.iter().map(|&reason| (reason.name(), self.count(reason)));
        reasons.filter(|&(_, count)| count > 0).collect()
    }

    /// Packets dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        DropReason::ALL.iter().map(|&reason| self.count(reason)).sum()
    }

    /// Packets received and sent on: those let go out of a port but for those that it did not take.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.count(Counter::Forwarded).saturating_sub(self.count(DropReason::TxFull))
    }

    /// Packets made here and sent.
    #[must_use]
    pub fn originated_sent(&self) -> u64 {
        let unsent = self.count(Counter::OriginatedUnsent);
        self.count(Counter::Originated).saturating_sub(unsent)
    }

    /// What came in equals what was sent on, was used up, was dropped, or waits here.
    /// Exact when the cores are between bursts.
    #[must_use]
    pub fn balances(&self) -> bool {
        let out = self.sent() + self.count(Counter::Consumed) + self.count(Gauge::Held);
        self.count(Counter::RxPackets) == out + self.dropped()
    }
}

/// Counters and gauges are keys of an account; dropped packets stand under `drops`, those reasons that occurred.
impl Serialize for Totals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.named() {
            map.serialize_entry(name, &value)?;
        }
        map.serialize_entry("drops", &self.drops())?;
        map.end()
    }
}

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

    #[test]
    fn the_table_has_each_name_once_and_each_word_its_own_metric() {
        let mut names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names[Gauge::Held.word()], "held");
        assert_eq!(names[Counter::BusyTicks.word()], "busy_ticks");
        assert_eq!(names[DropReason::TxFull.word()], "tx_full");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COUNT);
        for Metric { name, kind, unit, help } in METRICS {
            assert!(
                help.ends_with('.') && !help.starts_with(' ') && !unit.is_empty(),
                "{name}: {help}"
            );
            let gauges =
                ["held", "queued", "spines_silent", "peers_live", "peer_load_ticks", "stall_ticks"];
            assert_eq!(kind == CounterKind::Gauge, gauges.contains(&name), "{name}");
        }
    }

    #[test]
    fn what_is_folded_in_is_counted_once_and_gauges_are_not() {
        let (all, thread) = (Counters::heap(), Counters::heap());
        let mut folded = [0; COUNT];
        for round in 1..4 {
            thread.add(Counter::Replies, 2);
            thread.drop(DropReason::TxFull, 1);
            thread.set(Gauge::Held, 7);
            all.fold(&thread, &mut folded);
            assert_eq!((all.read(Counter::Replies), all.read(Gauge::Held)), (2 * round, 0));
            assert_eq!(all.dropped(DropReason::TxFull), round);
        }
    }

    #[test]
    fn an_account_has_a_key_for_each_counter_and_gauge() {
        let counters = Counters::heap();
        counters.add(Counter::Forwarded, 5);
        counters.drop(DropReason::TxFull, 2);
        let account = serde_json::to_value(counters.totals()).unwrap();
        assert_eq!((&account["forwarded"], &account["held"]), (&5.into(), &0.into()));
        assert_eq!(account["drops"], serde_json::json!({ "tx_full": 2 }));
        assert_eq!(counters.totals().sent(), 3);
    }
}
