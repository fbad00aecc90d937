//! Report of an emulated rack: its counts, and the verdict on its punctuality. A reply is late if the rack sends it
//! after the emulated end of its task, because the loop polled late.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use wedjat::reason::DropReason;
use wedjat_pktgen::latency::{Latency, LatencySummary};
use wedjat_pktgen::slices::Slices;

/// Maximum lateness of replies at the 99th percentile, as a fraction of the mean service time. Beyond it, the
/// lateness distorts the measurement.
pub const LATENESS_MAX: f64 = 0.05;

/// Counts of a rack.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Valid tasks for a worker of this rack.
    pub tasks: u64,
    /// Replies accepted by the device.
    pub replies: u64,
    /// Replies lost on purpose.
    pub lost_replies: u64,
    /// Tasks dropped because a worker's queue or the rack was full.
    pub overflow: u64,
    /// Tasks lost at dead workers: queued at the death, or received later.
    pub died: u64,
    /// Packets of multi-packet tasks, without each task's last one.
    pub parts: u64,
    /// Tasks marked as chosen from the idle list.
    pub idle_picks: u64,
    /// Answered requests for MAC addresses, of ARP and of neighbour discovery.
    pub arp_answers: u64,
    /// Number of times that the device did not accept all replies of a burst.
    pub tx_full: u64,
    /// Load reports to leaves accepted by the device.
    pub queue_reports: u64,
    /// Load reports to leaves that the device did not accept.
    pub queue_reports_unsent: u64,
    /// Answers to leaves' probes accepted by the device.
    pub probe_answers: u64,
    /// Sum of the service times of all `tasks`, including lost ones.
    pub service_ns: u64,
    /// Packets that the rack dropped before they counted as tasks, by reason.
    pub dropped: [u64; DropReason::COUNT],
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            tasks: 0,
            replies: 0,
            lost_replies: 0,
            overflow: 0,
            died: 0,
            parts: 0,
            idle_picks: 0,
            arp_answers: 0,
            tx_full: 0,
            queue_reports: 0,
            queue_reports_unsent: 0,
            probe_answers: 0,
            service_ns: 0,
            dropped: [0; DropReason::COUNT],
        }
    }
}

/// Delays of replies after their due times.
#[derive(Clone, Debug, Default)]
pub struct Lateness {
    /// Distribution over all replies.
    all: Latency,
    /// Due time of each reply in ticks, and its lateness in nanoseconds.
    log: Vec<(u64, u32)>,
    /// True if the log had no room for a reply.
    is_full: bool,
}

impl Lateness {
    /// Reserves and touches memory to log `replies` replies. A log of all replies allows a selection of those in
    /// undisturbed slices.
    pub fn log(&mut self, replies: usize) {
        // Writes each page once, so that no page fault delays the loop later. The allocator would not write zeros.
        self.log = vec![(1, 1); replies];
        self.log.clear();
    }

    /// Records a reply that was due at tick `due` and sent `ns` nanoseconds late.
    #[inline]
    pub fn record(&mut self, due: u64, ns: u64) {
        self.all.record(ns);
        if self.log.len() < self.log.capacity() {
            self.log.push((due, ns.min(u64::from(u32::MAX)) as u32));
        } else {
            self.is_full = true;
        }
    }

    /// Returns the lateness of the replies due in undisturbed slices. Returns `None` if the log did not hold
    /// all replies.
    fn undisturbed(&self, slices: &Slices) -> Option<Latency> {
        let mut undisturbed = Latency::default();
        let entries = self.log.iter().filter(|(due, _)| slices.is_undisturbed(*due));
        entries.for_each(|(_, ns)| undisturbed.record(u64::from(*ns)));
        (!self.is_full).then_some(undisturbed)
    }
}

/// A rack's report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Emulated workers.
    pub workers: u16,
    /// Valid tasks for a worker.
    pub tasks: u64,
    /// Replies sent.
    pub replies: u64,
    /// Replies lost on purpose.
    pub lost_replies: u64,
    /// Tasks dropped because a worker's queue or the rack was full.
    pub overflow: u64,
    /// Tasks lost at dead workers: queued at the death, or received later.
    pub died: u64,
    /// Tasks left at the end, and replies that the device has not accepted.
    pub outstanding: u64,
    /// Packets of multi-packet tasks, without each task's last one.
    pub parts: u64,
    /// Tasks marked as chosen from the idle list.
    pub idle_picks: u64,
    /// Answered requests for MAC addresses, of ARP and of neighbour discovery.
    pub arp_answers: u64,
    /// Number of times that the device did not accept all replies of a burst.
    pub tx_full: u64,
    /// Load reports to leaves: number accepted by the device, and number rejected. Absent if both are 0.
    #[serde(skip_serializing_if = "are_both_zero")]
    pub queue_reports: [u64; 2],
    /// Answers to leaves' probes; absent if no leaf probed.
    #[serde(skip_serializing_if = "is_zero")]
    pub probe_answers: u64,
    /// Packets that the rack dropped before they counted as tasks, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Mean service time of the tasks.
    pub service_mean_us: f64,
    /// Delay of replies after their due times.
    pub lateness_us: LatencySummary,
    /// Delay of the replies due in undisturbed slices (intervals in which the machine did not stop the loop), if slices
    /// are given and all replies were logged. The verdict then uses this one.
    pub undisturbed_lateness_us: Option<LatencySummary>,
    /// True if the 99th percentile of lateness is within [`LATENESS_MAX`], every task found room, and the ledger
    /// balances.
    pub valid: bool,
    /// Reasons why the run is invalid.
    pub reasons: Vec<String>,
}

/// Returns true if the count is 0, so that the JSON omits its key.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Returns true if both counts are 0, so that the JSON omits their key.
fn are_both_zero(reports: &[u64; 2]) -> bool {
    *reports == [0; 2]
}

impl Report {
    /// Creates the report of a run and judges it. `outstanding` is the number of unfinished tasks. With
    /// `slices`, the verdict uses only replies due in undisturbed ones, if all replies were logged.
    pub(crate) fn new(
        counts: &Counts,
        lateness: &Lateness,
        workers: u16,
        outstanding: u64,
        slices: Option<&Slices>,
    ) -> Self {
        let named =
            DropReason::ALL.iter().map(|reason| (reason.name(), counts.dropped[*reason as usize]));
        let service_mean_us = match counts.tasks {
            0 => 0.0,
            tasks => counts.service_ns as f64 / tasks as f64 / 1e3,
        };
        let lateness_us = lateness.all.summary();
        let undisturbed = slices.and_then(|slices| lateness.undisturbed(slices));
        let mut report = Self {
            workers,
            tasks: counts.tasks,
            replies: counts.replies,
            lost_replies: counts.lost_replies,
            overflow: counts.overflow,
            died: counts.died,
            outstanding,
            parts: counts.parts,
            idle_picks: counts.idle_picks,
            arp_answers: counts.arp_answers,
            tx_full: counts.tx_full,
            queue_reports: [counts.queue_reports, counts.queue_reports_unsent],
            probe_answers: counts.probe_answers,
            dropped: named.filter(|(_, count)| *count > 0).collect(),
            service_mean_us,
            lateness_us,
            undisturbed_lateness_us: undisturbed.map(|latency| latency.summary()),
            valid: true,
            reasons: Vec::new(),
        };
        report.judge();
        report
    }

    /// Returns true if the ledger balances: every task is accounted for once.
    #[must_use]
    pub fn balances(&self) -> bool {
        let ended = self.replies + self.lost_replies + self.overflow + self.died;
        self.tasks == ended + self.outstanding
    }

    /// Decides whether the run is valid, and records the reasons if it is not.
    fn judge(&mut self) {
        let (late, condition) = match &self.undisturbed_lateness_us {
            Some(lateness) => (lateness, " in undisturbed slices"),
            None => (&self.lateness_us, ""),
        };
        let (late_us, limit_us) = (late.p99.0, LATENESS_MAX * self.service_mean_us);
        if self.replies > 0 && late_us > limit_us {
            self.reasons.push(format!(
                "1% of the rack's replies{condition} were late by {late_us:.2} us or more ({limit_us:.2} us are allowed, \
                 {:.0}% of the mean service time); give it its own core, or use longer tasks",
                LATENESS_MAX * 100.0
            ));
        }
        if self.overflow > 0 {
            self.reasons.push(format!(
                "the rack had no room for {} tasks; allow more outstanding tasks, or lower the load",
                self.overflow
            ));
        }
        if !self.balances() {
            self.reasons.push(
                "the rack's ledger does not balance; please report this bug of the rack".to_owned(),
            );
        }
        self.valid = self.reasons.is_empty();
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "rack of {}, mean service time {:.2} us",
            wedjat::quantity(self.workers, "worker"),
            self.service_mean_us
        )?;
        writeln!(
            f,
            "  tasks {} = replies {} + lost on purpose {} + overflow {} + dead workers' {} + outstanding {}",
            self.tasks, self.replies, self.lost_replies, self.overflow, self.died, self.outstanding
        )?;
        for (reason, count) in &self.dropped {
            writeln!(f, "  dropped, {reason}: {count}")?;
        }
        if !are_both_zero(&self.queue_reports) {
            let [sent, unsent] = self.queue_reports;
            writeln!(f, "  queue reports {sent}, and {unsent} rejected by the device")?;
        }
        if self.probe_answers > 0 {
            writeln!(f, "  probes answered {}", self.probe_answers)?;
        }
        let late = &self.lateness_us;
        writeln!(
            f,
            "  replies late by, us: p50 {}  p99 {}  p99.9 {}  max {}",
            late.p50, late.p99, late.p999, late.max
        )?;
        if let Some(late) = &self.undisturbed_lateness_us {
            writeln!(
                f,
                "  undisturbed, us:     p50 {}  p99 {}  p99.9 {}  max {}",
                late.p50, late.p99, late.p999, late.max
            )?;
        }
        match self.valid {
            true => write!(f, "  VALID"),
            false => write!(f, "  INVALID: {}", self.reasons.join("; ")),
        }
    }
}
