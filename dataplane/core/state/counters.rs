//! Counters and gauges of a core: its actions, the packets and tasks that it holds, its drops by reason, its pauses
//! (times without a poll), and the time that its decisions take.
//!
//! A table in this file lists the numbers; [`crate::reason`] lists the drop reasons. Both determine the state file,
//! the accounts (reports at a process's end), the C library and docs/reference/counters.md. A *held* packet waits in
//! the node; an *originated* packet was made by the node.
//!
//! No counter ever falls. The result of sending appears after a packet counts as forwarded, in an embedding program
//! much later. Readers therefore compute the packets sent: `forwarded` minus `tx_full`.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::histogram::{self, Histogram, HistogramSnapshot};
use super::region::{Region, Slice};
use crate::reason::DropReason;

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Never falls while its node runs.
    Counter,
    /// Current amount.
    Gauge,
    /// Counts of durations by bucket, which never fall.
    Histogram,
}

impl CounterKind {
    /// Returns the name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Description of a number that each core keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Key under which it is reported.
    pub name: &'static str,
    /// Kind of the metric.
    pub kind: CounterKind,
    /// Unit of the metric.
    pub unit: &'static str,
    /// Meaning, in a sentence.
    pub help: &'static str,
}

/// A number that each core keeps: a [`Counter`], a [`Gauge`], or the packets dropped for a [`DropReason`].
pub trait CoreNumber: Copy {
    /// Returns the index of its word among a core's [`COUNT`].
    fn word(self) -> usize;
}

/// Generates an enum, its list and its metrics from one table. `$first` is the index of its first variant's word.
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
            /// All variants, in the order of their words.
            pub const ALL: [Self; [$($key),+].len()] = [$(Self::$name),+];

            /// Returns the metric's description.
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

            /// Returns the key under which it is reported.
            #[must_use]
            pub const fn name(self) -> &'static str {
                self.metric().name
            }
        }

        impl CoreNumber for $set {
            #[inline]
            fn word(self) -> usize {
                $first + self as usize
            }
        }
    };
}

metrics! {
    /// Counted events.
    Counter, Counter, 0 => {
        /// Packets received.
        RxPackets => "rx_packets", "packets";
        /// Packets received and sent to a port; rejected ones are dropped as `tx_full`.
        Forwarded => "forwarded", "packets";
        /// Packets received in several buffers that fitted into one. Others are dropped as `segmented`.
        Linearised => "linearised", "packets";
        /// Packets consumed here: ARP, signals, reports, probes, messages of peers.
        Consumed => "consumed", "packets";
        /// Tasks returned to clients by a full central queue: consumed and originated, or, below a spine,
        /// forwarded.
        Refused => "refused", "packets";
        /// Accepted WORKER_ID messages. Each is answered.
        Registrations => "registrations", "packets";
        /// Accepted KEEP_ALIVE messages.
        KeepAlives => "keep_alives", "packets";
        /// Silent or unreachable workers removed. A spine counts leaves, once per pool.
        WorkersLost => "workers_lost", "workers";
        /// Silent or unreachable workers that came back. A spine counts leaves, once per pool.
        WorkersBack => "workers_back", "workers";
        /// Tasks that will not be answered. At a spine, tasks of leaves that fell silent: those of the last
        /// message and those sent since. A program with its own header reports them itself.
        WrittenOff => "written_off", "tasks";
        /// At a spine, signals accepted from leaves; at a leaf, KEEP_ALIVE messages of spines.
        Signals => "signals", "packets";
        /// At a spine, ignored signals: newer ones came before.
        SignalsOld => "signals_old", "packets";
        /// Queue reports of workers: accepted by a leaf, sent by an agent.
        QueueReports => "queue_reports", "packets";
        /// At a leaf, ignored queue reports: newer ones came before.
        QueueReportsOld => "queue_reports_old", "packets";
        /// Completion reports of servers: accepted by a leaf, sent by an agent.
        CompletionReports => "completion_reports", "packets";
        /// At a leaf, tasks in these reports: their replies went straight to the clients.
        Completions => "completions", "tasks";
        /// At a leaf, ignored entries of these reports: the sender has no such worker in that pool.
        CompletionsUnknown => "completions_unknown", "tasks";
        /// Probes of workers' queues: sent by a leaf, answered by an agent.
        QueueProbes => "queue_probes", "packets";
        /// At a leaf, accepted answers to probes.
        ProbeAnswers => "probe_answers", "packets";
        /// At a leaf, ignored answers to probes: too late, or duplicates.
        ProbeAnswersLate => "probe_answers_late", "packets";
        /// At a leaf, probes without an answer in time.
        ProbesUnanswered => "probes_unanswered", "packets";
        /// At a leaf, spines that fell silent.
        SpinesLost => "spines_lost", "spines";
        /// At a leaf, silent spines that came back.
        SpinesBack => "spines_back", "spines";
        /// Packets made here: ARP, signals, reports, probes, returned tasks, messages to peers.
        Originated => "originated", "packets";
        /// Tasks given to a member.
        Scheduled => "scheduled", "tasks";
        /// Further packets of multi-packet tasks, sent after their first.
        Continuations => "continuations", "packets";
        /// Tasks given to a member of the idle list.
        IdlePicks => "idle_picks", "tasks";
        /// Tasks given to the better of two random members.
        Po2Picks => "po2_picks", "tasks";
        /// Picks that need a second pass through a switch's pipeline.
        Resubmits => "resubmits", "tasks";
        /// Replies of workers.
        Replies => "replies", "packets";
        /// Replies, also in `replies` or `completions`, of workers without an outstanding task: duplicates, or tasks of
        /// an earlier run.
        SurplusReplies => "surplus_replies", "packets";
        /// Originated packets lost for lack of a buffer or rejected by the port.
        OriginatedUnsent => "originated_unsent", "packets";
        /// With peers: clients' tasks passed on to a peer.
        TasksPassed => "tasks_passed", "tasks";
        /// With peers: waiting tasks given to a peer that asked for one.
        TasksGiven => "tasks_given", "tasks";
        /// With peers: tasks received from peers, passed on or given.
        TasksTaken => "tasks_taken", "tasks";
        /// With peers: requests for a task sent to peers.
        StealRequests => "steal_requests", "packets";
        /// With peers: requests of peers while no task waited.
        StealsFailed => "steals_failed", "packets";
        /// With peers: accepted heartbeats of peers.
        Heartbeats => "heartbeats", "packets";
        /// Polls with packets.
        BusyPolls => "busy_polls", "polls";
        /// Polls without packets.
        EmptyPolls => "empty_polls", "polls";
        /// Time spent on polls with packets.
        BusyTicks => "busy_ticks", "ticks";
        /// Pauses of at least 1 ms without a poll, in real time.
        Stalls => "stalls", "times";
        /// Total length of the pauses counted by `stalls`.
        StalledTicks => "stalled_ticks", "ticks";
        /// Sleeps of a core without packets, under `poll = "adaptive"`.
        Sleeps => "sleeps", "times";
        /// Sleeps, also in `sleeps`, that a device ended. Others end by their time limit.
        Wakes => "wakes", "times";
        /// Sleeps of more than 50 us, also in `sleeps`, after whose time limit packets were waiting, and no interrupt
        /// came for 10 ms: a device did not wake the core.
        LateWakes => "late_wakes", "times";
    }
}

metrics! {
    /// Current amounts.
    Gauge, Gauge, Counter::ALL.len() => {
        /// Packets that wait here: for a neighbour, in a central queue, or with a worker core.
        Held => "held", "packets";
        /// Held tasks in central queues.
        Queued => "queued", "tasks";
        /// At a leaf, silent spines.
        SpinesSilent => "spines_silent", "spines";
        /// With peers: live peers.
        PeersLive => "peers_live", "peers";
        /// With peers: waiting work in time per slot of the agent's workers.
        PeerLoadTicks => "peer_load_ticks", "ticks";
        /// Time without a poll in a current pause of at least 50 ms. `stalled_ticks` includes it at its end.
        StallTicks => "stall_ticks", "ticks";
    }
}

impl CoreNumber for DropReason {
    #[inline]
    fn word(self) -> usize {
        Counter::ALL.len() + Gauge::ALL.len() + self as usize
    }
}

/// Number of numbers that a core keeps.
pub const COUNT: usize = Counter::ALL.len() + Gauge::ALL.len() + DropReason::COUNT;

/// Descriptions of these numbers, in the order of their words.
pub const METRICS: [Metric; COUNT] = {
    let mut metrics = [Counter::RxPackets.metric(); COUNT];
    let mut index = 0;
    while index < Counter::ALL.len() {
        metrics[index] = Counter::ALL[index].metric();
        index += 1;
    }
    let gauges = index; // index of the first gauge
    while index < gauges + Gauge::ALL.len() {
        metrics[index] = Gauge::ALL[index - gauges].metric();
        index += 1;
    }
    let reasons = index; // index of the first drop reason
    while index < COUNT {
        let reason = DropReason::ALL[index - reasons];
        let (name, help) = (reason.name(), reason.help());
        metrics[index] = Metric { name, kind: CounterKind::Counter, unit: "packets", help };
        index += 1;
    }
    metrics
};

/// Checksum of the metrics' names, each followed by a zero byte. It differs, almost certainly, if the words have
/// other meanings. Part of the state file's version.
pub const TABLE: u32 = {
    // FNV-1a.
    let (mut hash, mut index) = (0x811c_9dc5_u32, 0);
    while index < COUNT {
        let (name, mut byte) = (METRICS[index].name.as_bytes(), 0);
        while byte <= name.len() {
            let next = if byte < name.len() { name[byte] } else { 0 };
            hash = (hash ^ next as u32).wrapping_mul(0x0100_0193);
            byte += 1;
        }
        index += 1;
    }
    hash
};

/// Number of pauses kept: the newest.
pub const PAUSES: usize = 2048;
/// Time without a poll above which a pause is recorded.
pub const PAUSE_NS: u64 = 20_000;
/// Time without a poll from which a pause also counts as one of [`Counter::Stalls`].
pub const STALL_NS: u64 = 1_000_000;
/// Index of the first word of the histogram of decision times.
const DECISION_TIME: usize = COUNT + 1 + PAUSES;
/// Number of u64 words of one core's counters: the numbers, the count of pauses, a ring of them, and the histogram
/// of decision times.
pub const WORDS: usize = DECISION_TIME + histogram::WORDS;
/// Binary logarithm of a pause word's unit, 2^10 ticks. The start is in the word's upper 40 bits, the length in the
/// lower 24.
const UNIT_BITS: u32 = 10;
/// Number of a pause word's bits that hold the length.
const LENGTH_BITS: u32 = 24;
/// Mask of the bits of a pause's start that its word holds. The word with the number of pauses has the remaining bits
/// of the newest start, above the number.
const START_MASK: u64 = (1 << (64 - LENGTH_BITS + UNIT_BITS)) - 1;
/// Maximum number of ticks by which a pause may begin after the newest counted one. A core may record such a pause
/// during the reading.
const LATER_MOST: u64 = 1 << 40;

/// Interval in which a core did not poll, in ticks of its clock, accurate to some hundred nanoseconds. Load generators
/// exclude the tasks that it delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PollPause {
    /// Last poll before the pause, or the planned end of a sleep.
    pub from: u64,
    /// First poll after it, or the core's end.
    pub to: u64,
}

/// Minimum number of packets that a node has received before a core without any counts as idle. After fewer, a core may
/// have got none by chance, or the network carries nothing.
const SPREAD_AFTER: u64 = 10_000;

/// Returns the cores without received packets, once their node has received `SPREAD_AFTER`. Such cores show that the
/// devices do not spread packets over their queues. `received` has one number per core.
pub fn idle_cores(received: impl Iterator<Item = u64> + Clone) -> Vec<usize> {
    match received.clone().sum::<u64>() {
        SPREAD_AFTER.. => {
            received.enumerate().filter(|(_, count)| *count == 0).map(|(core, _)| core).collect()
        }
        _ => Vec::new(),
    }
}

/// Counters of one core. Each word has one writer: the core, or for [`Gauge::StallTicks`] the thread that watches the
/// cores. Any thread may read.
#[derive(Clone, Debug)]
pub struct Counters(Slice<AtomicU64>);

impl Counters {
    /// Creates counters over [`WORDS`] words.
    ///
    /// # Panics
    /// If the number of words differs.
    #[must_use]
    pub fn new(words: Slice<AtomicU64>) -> Self {
        assert_eq!(words.len(), WORDS);
        Self(words)
    }

    /// Returns the number of polls of this core, with and without packets. It shows whether the core still polls.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.read(Counter::BusyPolls) + self.read(Counter::EmptyPolls)
    }

    /// Creates counters in memory of their own, for a worker thread or a test.
    #[must_use]
    pub fn heap() -> Self {
        Self::new(Region::heap(8 * WORDS).slice(0, WORDS))
    }

    /// Adds to the number with this word.
    #[inline]
    fn bump(&self, index: usize, by: u64) {
        // One writer: a plain load and store, no locked instruction.
        let word = &self.0[index];
        word.store(word.load(Relaxed).saturating_add(by), Relaxed);
    }

    /// Counts `by` events.
    #[inline]
    pub fn add(&self, counter: Counter, by: u64) {
        self.bump(counter.word(), by);
    }

    /// Sets a gauge.
    #[inline]
    pub fn set(&self, gauge: Gauge, value: u64) {
        self.0[gauge.word()].store(value, Relaxed);
    }

    /// Counts `by` dropped packets.
    #[inline]
    pub fn drop(&self, reason: DropReason, by: u64) {
        self.bump(reason.word(), by);
    }

    /// Records that the core did not poll between these ticks.
    #[cold]
    pub fn note_pause(&self, from: u64, to: u64) {
        let number = self.0[COUNT].load(Relaxed) & START_MASK;
        // Rounded outwards: the recorded interval contains the pause.
        let (first, last) = (from >> UNIT_BITS, to.div_ceil(1 << UNIT_BITS));
        let length = (last - first).min((1 << LENGTH_BITS) - 1);
        let index = COUNT + 1 + (number % PAUSES as u64) as usize;
        self.0[index].store(first << LENGTH_BITS | length, Relaxed);
        // A reader of the new number also reads the pause.
        self.0[COUNT].store(from & !START_MASK | (number + 1), Release);
    }

    /// Returns the number of pauses, and the newest ones, at most [`PAUSES`], in no order.
    #[must_use]
    pub fn pauses(&self) -> (u64, Vec<PollPause>) {
        let counted = self.0[COUNT].load(Acquire);
        let number = counted & START_MASK;
        let start_of = |word: u64| word >> LENGTH_BITS << UNIT_BITS;
        let last = COUNT + 1 + (number.saturating_sub(1) % PAUSES as u64) as usize;
        let newest = counted & !START_MASK | start_of(self.0[last].load(Relaxed));
        let pause = |word: &AtomicU64| {
            let word = word.load(Relaxed);
            // The lower bits of the start, as the ticks since the newest pause. Most pauses are older: these are one
            // period of the lower bits earlier.
            let since = start_of(word).wrapping_sub(newest) & START_MASK;
            let later = newest.wrapping_add(since);
            let earlier = later.checked_sub(START_MASK + 1).filter(|_| since > LATER_MOST);
            let from = earlier.unwrap_or(later);
            let length = (word & ((1 << LENGTH_BITS) - 1)) << UNIT_BITS;
            PollPause { from, to: from.saturating_add(length) }
        };
        let stored = number.min(PAUSES as u64) as usize;
        (number, self.0[COUNT + 1..][..stored].iter().map(pause).collect())
    }

    /// Counts `tasks` decisions that took `ns` nanoseconds each.
    pub fn note_decisions(&self, ns: u64, tasks: u64) {
        self.decision_times().record(ns, tasks);
    }

    /// Returns the times of the sampled decisions.
    #[must_use]
    pub fn decision_time(&self) -> HistogramSnapshot {
        self.decision_times().read()
    }

    /// Returns the histogram of decision times.
    fn decision_times(&self) -> Histogram<'_> {
        Histogram(&self.0[DECISION_TIME..])
    }

    /// Returns the current number.
    #[must_use]
    pub fn read(&self, of: impl CoreNumber) -> u64 {
        self.0[of.word()].load(Relaxed)
    }

    /// Returns the number of packets dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.read(reason)
    }

    /// Returns the number of packets dropped for any reason.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.totals().dropped()
    }

    /// Adds the counts of `source`, a worker thread's counters, since the last call. `folded` holds the values of that
    /// call and gets the new ones. Ignores gauges.
    pub fn fold(&self, source: &Self, folded: &mut [u64; COUNT]) {
        for (index, folded) in folded.iter_mut().enumerate() {
            if METRICS[index].kind == CounterKind::Counter {
                let now = source.0[index].load(Relaxed);
                self.bump(index, now - *folded);
                *folded = now;
            }
        }
    }

    /// Returns all current numbers.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals::read(std::slice::from_ref(self))
    }

    /// Checks the ledger of this core between two bursts, in debug builds: the packets received equal the sum of those
    /// sent on, consumed, dropped and held. `held` counts the packets held now, because the gauge is set later.
    ///
    /// # Panics
    /// In debug builds, if the ledger does not balance.
    #[inline]
    pub fn check_ledger(&self, held: impl FnOnce() -> usize) {
        if cfg!(debug_assertions) {
            let (totals, held) = (self.totals(), held() as u64);
            let received = totals.count(Counter::RxPackets);
            assert!(
                received == totals.released() + held,
                "ledger: {held} held, {:?}",
                totals.named()
            );
        }
    }

    /// Same as [`Totals::balances`], for this core.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.totals().balances()
    }
}

/// Sums over cores. Cores may count on during the reading, so the sums may be of slightly different moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals([u64; COUNT]);

impl Default for Totals {
    fn default() -> Self {
        Self([0; COUNT])
    }
}

impl Totals {
    /// Returns the sums over `cores`.
    #[must_use]
    pub fn read(cores: &[Counters]) -> Self {
        // Plain loops: in debug builds, each turn of a node reads its totals to check the ledger.
        let mut sums = [0; COUNT];
        for core in cores {
            let words: &[AtomicU64] = &core.0;
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum += word.load(Relaxed);
            }
        }
        Self(sums)
    }

    /// Returns one of the sums.
    #[must_use]
    pub fn count(&self, of: impl CoreNumber) -> u64 {
        self.0[of.word()]
    }

    /// Returns all sums, in the order of [`METRICS`].
    #[must_use]
    pub fn values(&self) -> &[u64; COUNT] {
        &self.0
    }

    /// Returns the metrics with lower values than `before`, for tests: while a node runs, only gauges fall.
    pub fn decreased_since(&self, before: &Self) -> impl Iterator<Item = &'static Metric> {
        let words = METRICS.iter().zip(self.0.iter().zip(&before.0));
        words.filter(|(_, (now, before))| now < before).map(|(metric, _)| metric)
    }

    /// Returns the ticks since `before` in which cores did not poll, in finished and current stalls.
    #[must_use]
    pub fn stalled_since(&self, before: &Self) -> u64 {
        let all =
            |totals: &Self| totals.count(Counter::StalledTicks) + totals.count(Gauge::StallTicks);
        all(self).saturating_sub(all(before))
    }

    /// Returns counters and gauges by name.
    #[must_use]
    pub fn named(&self) -> BTreeMap<&'static str, u64> {
        let words = METRICS.iter().zip(self.0).take(DropReason::ALL[0].word());
        words.map(|(metric, value)| (metric.name, value)).collect()
    }

    /// Returns the numbers of dropped packets by reason, without reasons that never occurred.
    #[must_use]
    pub fn drops(&self) -> BTreeMap<&'static str, u64> {
        let reasons = DropReason::ALL.iter().map(|&reason| (reason.name(), self.count(reason)));
        reasons.filter(|&(_, count)| count > 0).collect()
    }

    /// Returns the number of packets dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let mut sum = 0;
        for count in &self.0[DropReason::ALL[0].word()..] {
            sum += count;
        }
        sum
    }

    /// Returns the number of packets received and sent on: those sent to a port minus those that it rejected.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.count(Counter::Forwarded).saturating_sub(self.count(DropReason::TxFull))
    }

    /// Returns the number of packets made here and sent.
    #[must_use]
    pub fn originated_sent(&self) -> u64 {
        let unsent = self.count(Counter::OriginatedUnsent);
        self.count(Counter::Originated).saturating_sub(unsent)
    }

    /// Returns the number of received packets that the node no longer holds: sent on, consumed or dropped.
    fn released(&self) -> u64 {
        self.sent() + self.count(Counter::Consumed) + self.dropped()
    }

    /// Returns true if the packets received equal the sum of those sent on, consumed, dropped and held. Exact
    /// only between bursts of the cores.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.count(Counter::RxPackets) == self.released() + self.count(Gauge::Held)
    }
}

/// Counters and gauges are keys of an account. Its key `drops` holds the dropped packets by reason that
/// occurred.
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

    // promise: measurement.2
    #[test]
    fn newest_stalls_are_kept_and_all_counted() {
        let counters = Counters::heap();
        assert_eq!(counters.pauses(), (0, Vec::new()));
        counters.note_pause(5_000_000_001, 5_000_100_001);
        let (count, found) = counters.pauses();
        let [PollPause { from, to }] = found[..] else { panic!("{found:?}") };
        assert!(count == 1 && from <= 5_000_000_001 && to >= 5_000_100_001, "{found:?}");
        // Both ends are rounded to units of 1024 ticks.
        assert!(to - from < 100_000 + 2 * 1024, "{found:?}");
        for number in 0..PAUSES as u64 + 5 {
            counters.note_pause(number << 20, (number << 20) + 50_000);
        }
        let (count, mut found) = counters.pauses();
        found.sort_unstable();
        // The newest pauses have replaced six: the first one above, and those that begin at 0 to 4 << 20.
        assert_eq!((count, found.len()), (PAUSES as u64 + 6, PAUSES));
        assert_eq!(found.first().map(|pause| pause.from), Some(5 << 20));
        // A pause too long for its field gets the maximum length: 2^24 - 1 units of 2^10 ticks, almost 2^34 ticks.
        let forever = Counters::heap();
        forever.note_pause(0, u64::MAX >> 1);
        assert!(forever.pauses().1[0].to >= 1 << 33);
    }

    #[test]
    fn pauses_keep_all_bits_of_their_start() {
        let counters = Counters::heap();
        // A pause word holds 50 bits of the start. The clock exceeds them before and after the first pause.
        let starts: [u64; 3] = [(5 << 50) - (1 << 20), 5 << 50, (5 << 50) + (1 << 20)];
        for from in starts {
            counters.note_pause(from, from + 50_000);
        }
        let (count, found) = counters.pauses();
        assert_eq!(count, 3);
        assert_eq!(found.iter().map(|pause| pause.from).collect::<Vec<_>>(), starts);
    }

    #[test]
    fn table_has_unique_names_and_words() {
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
    fn folded_counters_are_summed_once_without_gauges() {
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
    fn account_has_every_counter_and_gauge() {
        let counters = Counters::heap();
        counters.add(Counter::Forwarded, 5);
        counters.drop(DropReason::TxFull, 2);
        let account = serde_json::to_value(counters.totals()).unwrap();
        assert_eq!((&account["forwarded"], &account["held"]), (&5.into(), &0.into()));
        assert_eq!(account["drops"], serde_json::json!({ "tx_full": 2 }));
        assert_eq!(counters.totals().sent(), 3);
    }
}
