//! Slices of the measured time, to separate time in which a loop stalled from undisturbed time.
//!
//! On an ordinary machine the system preempts a CPU now and then, and every task due in that time waits. Such
//! waits say nothing about the scheduler under test. Therefore each poll loop records its stalls
//! ([`Pauses`]), and each task leaves a short record (`Log`). After the run the measured time is cut into
//! equal slices ([`Slices`]). A slice is undisturbed if no stall can have affected it.
//!
//! The rule ([`Rule`]) uses only the loops' own clock readings, never a response time. A rule that used
//! response times would exclude slow tasks and flatter the result. A slice counts as a whole or not at all.
//! All tasks due in an undisturbed slice count, including lost ones, at whatever time they were answered.
//!
//! The leaf's stalls are known only after the run. So each task leaves 12 bytes in memory allocated before the run, and
//! nothing is sorted meanwhile. A histogram per slice would take 30 KB or more each.
//!
//! *Pause* is another word for a stall, in type names and report keys. The counters of leaves and agents also call it
//! a pause, and reserve *stall* for one of at least 1 ms.

use serde::Serialize;

use crate::latency::{Confidence, Latency, LatencySummary, Micros, ci95_half_width};
use crate::ledger::Ledger;

/// Slice length in mean service times. One in twenty thousand exponential service times is longer.
const SLICE_SERVICES: f64 = 10.0;
/// Bounds of the slice length in seconds.
const SLICE_S: std::ops::RangeInclusive<f64> = 1e-3..=0.05;
/// Longest time without a clock reading that is no stall (pause), in mean service times; at least
/// [`PAUSE_MIN_S`].
const PAUSE_SERVICES: f64 = 0.25;
/// Smallest stall in seconds that leaves and agents record. [`Rule::new`] uses no smaller one.
pub const PAUSE_MIN_S: f64 = wedjat::state::counters::PAUSE_NS as f64 / 1e9;
/// Load as a fraction of the workers' capacity, assumed if the capacity is unknown.
const UNKNOWN_SHARE: f64 = 0.9;
/// Largest such fraction in the estimate of the time in which a backlog drains. At 1 it would never drain.
const SHARE_MAX: f64 = 0.98;
/// Shortest disturbance after a stall, in multiples of its length.
const RECOVERY_MIN: f64 = 1.0;
/// Safety factor on the mean time in which a backlog drains.
const RECOVERY_MARGIN: f64 = 2.0;
/// Capacity for stalls of one loop, 1 MiB. Time from the first stall without a record counts as disturbed.
const PAUSES_MAX: usize = 1 << 16;
/// Capacity for tasks of one core, 96 MiB. Slices from the first task without a record on are excluded.
const TASKS_MAX: usize = 1 << 23;
/// Number of groups of undisturbed slices for a confidence interval, and thus the minimum number of undisturbed slices
/// of a valid run.
pub const GROUPS: usize = 20;
/// Minimum number of tasks beyond a percentile, so that single tasks do not decide it.
pub const BEYOND_MIN: f64 = 100.0;
/// Largest response time in a [`Record`], and that of an unanswered task.
const NEVER: u32 = u32::MAX;

/// Returns the capacity for `tasks` expected tasks, with a margin for random arrivals, within the memory
/// limit.
pub(crate) fn tasks_max(tasks: f64) -> usize {
    ((tasks * 1.1) as usize).saturating_add(4096).min(TASKS_MAX)
}

/// Stalls of a loop, from its own clock readings.
#[derive(Clone, Debug)]
pub struct Pauses {
    /// Last reading; `u64::MAX` before the first, which therefore ends no stall.
    last: u64,
    /// Longest time between readings that is no stall.
    limit: u64,
    /// Stalls in order.
    stalls: Vec<Pause>,
    /// Tick from which stalls may be missing.
    unknown_from: Option<u64>,
}

/// A stall: the time between two clock readings, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Last reading before the stall.
    pub from: u64,
    /// First reading after it.
    pub to: u64,
}

impl Pauses {
    /// Creates a record of stalls longer than `limit` ticks. Allocates all memory at once.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let stalls = Vec::with_capacity(PAUSES_MAX);
        Self { last: u64::MAX, limit, stalls, unknown_from: None }
    }

    /// Creates the record from the stalls of a leaf or an agent, in order. Stalls from `unknown_from` on may be
    /// missing.
    #[must_use]
    pub fn from_stalls(stalls: Vec<Pause>, unknown_from: Option<u64>) -> Self {
        Self { last: u64::MAX, limit: u64::MAX, stalls, unknown_from }
    }

    /// Records a clock reading of the loop, and a stall if the reading before is too long ago.
    #[inline(always)]
    pub fn look(&mut self, now: u64) {
        if now.saturating_sub(self.last) > self.limit {
            self.push(self.last, now);
        }
        self.last = now;
    }

    /// Records a stall, or the start of the time without records if there is no room.
    #[cold]
    fn push(&mut self, from: u64, to: u64) {
        if self.stalls.len() < PAUSES_MAX {
            self.stalls.push(Pause { from, to });
        } else if self.unknown_from.is_none() {
            self.unknown_from = Some(from);
        }
    }

    /// Returns the tick from which stalls may be missing.
    #[must_use]
    pub fn unknown_from(&self) -> Option<u64> {
        self.unknown_from
    }
}

/// A poll loop other than the generator's, such as a core of a leaf, and its stalls.
#[derive(Clone, Debug)]
pub struct LoopWatch {
    /// Name of the loop.
    pub name: String,
    /// Its stalls, on the generator's clock.
    pub pauses: Pauses,
}

/// Compact record of one task.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Due time since the start of the measured time, in units of [`Log::shift`].
    due: u32,
    /// Response time, limited to 4.29 s (32 bits); [`NEVER`] without an answer.
    response_ns: u32,
    /// Class of the task.
    class: u16,
    outcome: TaskOutcome,
    /// True if the task was sent late.
    late: bool,
}

/// Outcome of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskOutcome {
    /// Never handed to the device.
    Unsent,
    /// Answered by a worker, and correctly if answers are checked.
    Answered,
    /// Answered with a wrong answer.
    Wrong,
    /// Returned undone by the scheduler.
    Refused,
    /// Not answered by the end of the drain.
    Lost,
}

/// Records of the measured tasks of one core. All memory is allocated and touched before the run.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    records: Vec<Record>,
    /// A unit of due times is 2^shift ticks.
    shift: u32,
    /// Start of the measured time on this core, in ticks.
    start: u64,
    /// Earliest due time of a task without a record, in units of [`Log::shift`].
    full_from: Option<u32>,
}

impl Log {
    /// Creates a log for `tasks` tasks due within `ticks` ticks of a clock with `hz` ticks per second.
    pub(crate) fn new(tasks: f64, ticks: u64, hz: f64) -> Self {
        // A unit is about a microsecond, or longer if the due times would not fit into 31 bits.
        let microsecond_bits = (hz / 1e6).max(1.0).log2() as u32;
        let needed_bits = 64_u32.saturating_sub(ticks.leading_zeros()).saturating_sub(31);
        // Not all zero, because the system maps zeroed memory only at the first access.
        let none =
            Record { due: 1, response_ns: 1, class: 1, outcome: TaskOutcome::Lost, late: true };
        let mut records = vec![none; tasks_max(tasks)];
        records.clear(); // keeps the capacity
        let shift = microsecond_bits.max(needed_bits);
        Self { records, shift, start: u64::MAX, full_from: None }
    }

    /// Sets the start of the measured time.
    pub(crate) fn begin(&mut self, start: u64) {
        self.start = start;
    }

    /// Records the outcome of a task due at tick `due`; `late` if it was sent late.
    #[inline(always)]
    pub(crate) fn record(
        &mut self,
        due: u64,
        class: u16,
        response_ns: u64,
        outcome: TaskOutcome,
        late: bool,
    ) {
        let due = ((due - self.start) >> self.shift) as u32;
        let response_ns = response_ns.min(u64::from(NEVER)) as u32;
        if self.records.len() < self.records.capacity() {
            self.records.push(Record { due, response_ns, class, outcome, late });
        } else {
            // Tasks end out of order, so a later one may have an earlier due time.
            self.full_from = Some(self.full_from.map_or(due, |first| first.min(due)));
        }
    }

    /// Records a task that was refused, lost or not sent.
    pub(crate) fn record_unanswered(
        &mut self,
        due: u64,
        class: u16,
        outcome: TaskOutcome,
        late: bool,
    ) {
        self.record(due, class, u64::MAX, outcome, late);
    }
}

/// Parameters that decide which slices are undisturbed, and the requested percentile. Part of the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rule {
    /// Length of a slice.
    pub slice_s: f64,
    /// Longest time without a clock reading that is no stall.
    pub pause_s: f64,
    /// Disturbance after a stall, in multiples of its length, until the backlog has drained.
    pub recovery: f64,
    /// A stall also disturbs slices that end at most this long before it, since their tasks may still be in
    /// flight.
    pub cover_s: f64,
    /// Requested percentile, as a fraction.
    pub quantile: f64,
}

impl Rule {
    /// Creates the rule for tasks with this mean service time, at load `share` of the capacity. A stall of
    /// length d leaves a backlog that drains in share / (1 - share) * d on average. The rule allows twice
    /// that.
    #[must_use]
    pub fn new(service_mean_s: f64, share: Option<f64>) -> Self {
        let slice_s = (SLICE_SERVICES * service_mean_s).clamp(*SLICE_S.start(), *SLICE_S.end());
        let share = share.unwrap_or(UNKNOWN_SHARE).clamp(0.0, SHARE_MAX);
        Self {
            slice_s,
            pause_s: (PAUSE_SERVICES * service_mean_s).max(PAUSE_MIN_S),
            recovery: (RECOVERY_MARGIN * share / (1.0 - share)).max(RECOVERY_MIN),
            cover_s: slice_s,
            quantile: 0.99,
        }
    }

    /// Sets another percentile.
    #[must_use]
    pub fn with_percentile(self, quantile: f64) -> Self {
        Self { quantile, ..self }
    }

    /// Returns the number of undisturbed tasks that the percentile needs.
    #[must_use]
    pub fn tasks_min(&self) -> u64 {
        (BEYOND_MIN / (1.0 - self.quantile)).round() as u64
    }

    /// Returns the percentile in its usual form, as in p99.9.
    #[must_use]
    pub fn percentile(&self) -> String {
        let percent = format!("{:.3}", 100.0 * self.quantile);
        format!("p{}", percent.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Parses a percentile such as 99, p99 or p99.9; returns a fraction.
///
/// # Errors
/// If it is not between 1 and 99.99.
pub fn quantile(text: &str) -> Result<f64, String> {
    match text.strip_prefix('p').unwrap_or(text).parse::<f64>() {
        Ok(percent) if (1.0..=99.99).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("`{text}` is not a percentile; write 1 to 99.99, as in 99 or p99.9")),
    }
}

/// Slices of the measured time.
#[derive(Clone, Debug)]
pub struct Slices {
    rule: Rule,
    /// First tick of the measured time.
    start: u64,
    /// Tick after the measured time.
    end: u64,
    /// Length of a slice in ticks.
    slice: u64,
    /// Nanoseconds per tick.
    tick_ns: f64,
    /// True for each undisturbed slice.
    is_undisturbed: Vec<bool>,
    /// Names of the loops.
    loops: Vec<String>,
    /// Number of stalls in the measured time.
    pauses: usize,
    /// Longest of them, in ticks.
    longest: u64,
    /// Their total length within the measured time, in ticks.
    paused: u64,
}

impl Slices {
    /// Cuts the time from `start` to `end` into slices, and excludes those that the stalls of `loops` disturb by
    /// `rule`. The clock has ticks of `tick_ns`.
    #[must_use]
    pub fn cut<'a>(
        rule: Rule,
        start: u64,
        end: u64,
        tick_ns: f64,
        loops: impl IntoIterator<Item = (&'a str, &'a Pauses)>,
    ) -> Self {
        let ticks = |seconds: f64| (seconds * 1e9 / tick_ns).round() as u64;
        let slice = ticks(rule.slice_s).max(1);
        let count = end.saturating_sub(start).div_ceil(slice) as usize;
        let mut slices = Self {
            rule,
            start,
            end,
            slice,
            tick_ns,
            is_undisturbed: vec![true; count],
            loops: Vec::new(),
            pauses: 0,
            longest: 0,
            paused: 0,
        };
        for (name, pauses) in loops {
            slices.loops.push(name.to_owned());
            pauses.stalls.iter().for_each(|pause| slices.disturb(*pause));
            if let Some(from) = pauses.unknown_from {
                slices.exclude_between(from.saturating_sub(ticks(rule.cover_s)), u64::MAX);
            }
        }
        slices
    }

    /// Excludes the slices that a stall can have affected: from the tasks in flight at its start to the end
    /// of the recovery. Ignores stalls that are too short for the rule.
    fn disturb(&mut self, Pause { from, to }: Pause) {
        let ticks = |seconds: f64| (seconds * 1e9 / self.tick_ns).round() as u64;
        let length = to.saturating_sub(from);
        if length <= ticks(self.rule.pause_s) {
            return;
        }
        if to > self.start && from < self.end {
            self.pauses += 1;
            self.longest = self.longest.max(length);
            self.paused += to.min(self.end) - from.max(self.start);
        }
        let recovered = to.saturating_add((self.rule.recovery * length as f64) as u64);
        self.exclude_between(from.saturating_sub(ticks(self.rule.cover_s)), recovered);
    }

    /// Excludes each slice that overlaps the time between two ticks.
    fn exclude_between(&mut self, from: u64, to: u64) {
        if to < self.start || from >= self.end {
            return;
        }
        // `last` becomes the index after the slice of `to`, at most the number of slices.
        let first = (from.saturating_sub(self.start) / self.slice) as usize;
        let last = ((to - self.start) / self.slice).min(self.is_undisturbed.len() as u64) as usize;
        let last = (last + 1).min(self.is_undisturbed.len());
        if let Some(disturbed) = self.is_undisturbed.get_mut(first..last) {
            disturbed.fill(false);
        }
    }

    /// Returns true if this tick is in an undisturbed slice.
    #[must_use]
    pub fn is_undisturbed(&self, at: u64) -> bool {
        let slice = at.checked_sub(self.start).map(|ticks| (ticks / self.slice) as usize);
        slice.is_some_and(|slice| self.is_undisturbed.get(slice) == Some(&true))
    }

    /// Returns the number of slices.
    #[must_use]
    pub fn all(&self) -> usize {
        self.is_undisturbed.len()
    }

    /// Returns the number of undisturbed slices.
    #[must_use]
    pub fn undisturbed(&self) -> usize {
        self.is_undisturbed.iter().filter(|is_undisturbed| **is_undisturbed).count()
    }

    /// Returns the longest stall in the measured time, in nanoseconds. Benchmarks report it.
    #[must_use]
    pub fn longest_pause_ns(&self) -> f64 {
        self.longest as f64 * self.tick_ns
    }

    /// Returns the rule.
    #[must_use]
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Excludes slices from the first task without a record on.
    pub(crate) fn exclude_unlogged(&mut self, log: &Log) {
        if let Some(full_from) = log.full_from {
            // Due times of a log count from the start of its own core.
            self.exclude_between(log.start + (u64::from(full_from) << log.shift), u64::MAX);
        }
    }

    /// Summarises the tasks due in undisturbed slices. `classes` is 0 if there is one class only.
    pub(crate) fn count<'a>(
        &self,
        logs: impl Iterator<Item = &'a Log>,
        classes: usize,
    ) -> UndisturbedTasks {
        let undisturbed_slices = self.undisturbed();
        let groups = undisturbed_slices.min(GROUPS);
        // Group of each undisturbed slice. Groups are consecutive and of nearly equal size. `number` counts the
        // undisturbed slices so far.
        let mut number = 0;
        let group_of_slice = self.is_undisturbed.iter().map(|is_undisturbed| {
            number += usize::from(*is_undisturbed);
            is_undisturbed.then(|| (number - 1) * groups / undisturbed_slices)
        });
        let group_of_slice: Vec<Option<usize>> = group_of_slice.collect();
        let mut tasks = UndisturbedTasks {
            ledger: Ledger::default(),
            excluded: 0,
            groups: vec![Latency::default(); groups],
            classes: vec![(Ledger::default(), Latency::default()); classes],
        };
        for log in logs {
            for record in &log.records {
                // Each core has its own start, because cores begin one after another.
                let due = log.start + (u64::from(record.due) << log.shift);
                let slice = (due.saturating_sub(self.start) / self.slice) as usize;
                let Some(group) = group_of_slice.get(slice).copied().flatten() else {
                    tasks.excluded += 1;
                    continue;
                };
                record.count(&mut tasks.ledger);
                record.add_response(&mut tasks.groups[group]);
                let class = usize::from(record.class).wrapping_sub(1);
                if let Some((ledger, latency)) = tasks.classes.get_mut(class) {
                    record.count(ledger);
                    record.add_response(latency);
                }
            }
        }
        tasks
    }

    /// Returns the description for reports; `excluded` is the number of tasks in excluded slices.
    #[must_use]
    pub fn report(&self, excluded: u64) -> SlicesReport {
        let us = |ticks: u64| Micros(ticks as f64 * self.tick_ns / 1e3);
        let (all, undisturbed) = (self.all(), self.undisturbed());
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        SlicesReport {
            all,
            undisturbed,
            undisturbed_share: share(undisturbed as f64, all as f64),
            excluded_slices: all - undisturbed,
            excluded_tasks: excluded,
            pauses: self.pauses,
            longest_pause_us: us(self.longest),
            paused_share: share(self.paused as f64, self.end.saturating_sub(self.start) as f64),
            loops: self.loops.clone(),
        }
    }
}

impl Record {
    /// Adds the task to a ledger.
    fn count(&self, ledger: &mut Ledger) {
        let one_if = |condition: bool| u64::from(condition);
        ledger.scheduled += 1;
        ledger.sent += one_if(self.outcome != TaskOutcome::Unsent);
        ledger.late += one_if(self.late);
        ledger.unsent += one_if(self.outcome == TaskOutcome::Unsent);
        ledger.answered +=
            one_if(matches!(self.outcome, TaskOutcome::Answered | TaskOutcome::Wrong));
        ledger.wrong += one_if(self.outcome == TaskOutcome::Wrong);
        ledger.refused += one_if(self.outcome == TaskOutcome::Refused);
        ledger.lost += one_if(self.outcome == TaskOutcome::Lost);
    }

    /// Adds the task's response time. Unsent tasks have none, in the whole run as in its slices.
    fn add_response(&self, latency: &mut Latency) {
        match self.outcome {
            TaskOutcome::Answered | TaskOutcome::Wrong => {
                latency.record(u64::from(self.response_ns))
            }
            TaskOutcome::Refused | TaskOutcome::Lost => latency.record_infinite(1),
            TaskOutcome::Unsent => {}
        }
    }
}

/// Tasks due in undisturbed slices.
#[derive(Clone, Debug)]
pub(crate) struct UndisturbedTasks {
    /// Counts of the tasks.
    pub(crate) ledger: Ledger,
    /// Tasks due in excluded slices.
    pub(crate) excluded: u64,
    /// Response times by group of slices.
    groups: Vec<Latency>,
    /// Results by class.
    pub(crate) classes: Vec<(Ledger, Latency)>,
}

impl UndisturbedTasks {
    /// Returns the response times of all classes.
    pub(crate) fn response(&self) -> Latency {
        let mut all = Latency::default();
        self.groups.iter().for_each(|group| all.merge(group));
        all
    }

    /// Returns half the width of a figure's 95% confidence interval, from [`GROUPS`] groups of slices. NaN if
    /// there are fewer slices.
    fn ci95_ns(&self, figure: impl Fn(&Latency) -> f64) -> f64 {
        if self.groups.len() < GROUPS {
            return f64::NAN;
        }
        let values: Vec<_> = self.groups.iter().map(figure).filter(|ns| !ns.is_nan()).collect();
        ci95_half_width(&values)
    }

    /// Returns the figures for reports.
    pub(crate) fn report(&self) -> UndisturbedReport {
        let ci95 = |figure: fn(&Latency) -> f64| Micros(self.ci95_ns(figure) / 1e3);
        UndisturbedReport {
            ledger: self.ledger,
            adherence: self.ledger.adherence(),
            response_us: self.response().summary(),
            response_ci95_us: Confidence {
                p50: ci95(|group| group.quantile_ns(0.5)),
                p99: ci95(|group| group.quantile_ns(0.99)),
                mean: ci95(Latency::mean_ns),
            },
        }
    }
}

/// Description of slices in reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlicesReport {
    /// Slices of the measured time.
    pub all: usize,
    /// Undisturbed slices.
    pub undisturbed: usize,
    /// Fraction of undisturbed slices.
    pub undisturbed_share: f64,
    /// Excluded slices.
    pub excluded_slices: usize,
    /// Tasks due in excluded slices.
    pub excluded_tasks: u64,
    /// Number of stalls in the measured time.
    pub pauses: usize,
    /// Longest stall.
    pub longest_pause_us: Micros,
    /// Total length of the stalls as a fraction of the measured time; stalls of several loops add up.
    pub paused_share: f64,
    /// Loops whose stalls were recorded, one name for each.
    pub loops: Vec<String>,
}

impl std::fmt::Display for SlicesReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            all,
            undisturbed,
            excluded_slices,
            excluded_tasks,
            pauses,
            longest_pause_us,
            ..
        } = self;
        write!(
            f,
            "{undisturbed} of {all} slices undisturbed ({:.1}%); excluded: {excluded_slices} slices with {excluded_tasks} tasks, for \
             {pauses} pauses of {}, longest {longest_pause_us} us, {:.2}% of the time",
            100.0 * self.undisturbed_share,
            self.loops.join(" and "),
            100.0 * self.paused_share
        )
    }
}

/// Figures of undisturbed slices only.
#[derive(Clone, Debug, Serialize)]
pub struct UndisturbedReport {
    /// Ledger of their tasks.
    #[serde(flatten)]
    pub ledger: Ledger,
    /// Fraction of their tasks that were sent on time.
    pub adherence: f64,
    /// Latency from the due time. Unanswered tasks count as infinite (null) in the percentiles.
    pub response_us: LatencySummary,
    /// Half widths of 95% confidence intervals, from groups of undisturbed slices.
    pub response_ci95_us: Confidence,
}

/// Results of a class in undisturbed slices only.
#[derive(Clone, Debug, Serialize)]
pub struct UndisturbedClass {
    /// Ledger of its tasks.
    #[serde(flatten)]
    pub ledger: Ledger,
    /// Latency from the due time.
    pub response_us: LatencySummary,
}
