//! Slices of the measured time: in which of them did a loop stand still, and what do the others say alone?
//!
//! On an ordinary machine the system takes a CPU away now and then, and every task that comes due meanwhile waits. That is
//! no property of the scheduler that is measured. So each loop notes when it stood still ([`Pauses`]), each task
//! leaves a short record (`Log`), and after the run the measured time is cut into equal slices, of which those count
//! as calm that no pause can have touched ([`Slices`]).
//!
//! The rule ([`Rule`]) sees nothing but the loops' own looks at the clock, never a response time: a rule that saw them would
//! throw away the slow tasks and flatter. A slice counts whole or not at all: all tasks that came due in a calm one
//! count, lost ones included, whenever they were answered.

use serde::Serialize;

use crate::latency::{Latency, LatencySummary, Micros, ci95_half_width};
use crate::report::Confidence;
use crate::tally::Ledger;

/// A slice has so many mean service times: of tasks with exponential service times, one in twenty thousand takes longer.
const SLICE_SERVICES: f64 = 10.0;
/// But it is no shorter and no longer than this.
const SLICE_S: std::ops::RangeInclusive<f64> = 1e-3..=0.05;
/// A loop stood still when it did not look for so many mean service times, but no less than [`PAUSE_MIN_S`].
const PAUSE_SERVICES: f64 = 0.25;
/// Nodes note pauses that are longer than this, so a rule can't go below it.
pub const PAUSE_MIN_S: f64 = wedjat::state::counters::PAUSE_NS as f64 / 1e9;
/// Share of the workers' capacity that is taken for offered where nobody says what the workers can do.
const UNKNOWN_SHARE: f64 = 0.9;
/// At this share and above a backlog is taken to be worked off as at this share.
const SHARE_MAX: f64 = 0.98;
/// A pause disturbs for at least so many times its own length afterwards.
const RECOVERY_MIN: f64 = 1.0;
/// A backlog has so many times the time in which it would be worked off in the mean.
const RECOVERY_MARGIN: f64 = 2.0;
/// Pauses of one loop for which there is room; what comes after the last is taken for disturbed.
const PAUSES_MAX: usize = 1 << 16;
/// Tasks of one core for which there is room; slices after the last are thrown away.
const TASKS_MAX: usize = 1 << 23;
/// Groups of calm slices for a confidence interval, and so the fewest slices of which anything is said.
pub const GROUPS: usize = 20;
/// Tasks beyond a percentile that make it one.
pub const BEYOND_MIN: f64 = 100.0;
/// Never answered.
const NEVER: u32 = u32::MAX;

/// Room for so many tasks and some more, since arrivals come by chance, within the memory that is meant for them.
pub(crate) fn tasks_max(tasks: f64) -> usize {
    ((tasks * 1.1) as usize).saturating_add(4096).min(TASKS_MAX)
}

/// When a loop stood still, by its own looks at the clock.
#[derive(Clone, Debug)]
pub struct Pauses {
    /// The last look; before the first one no time has passed since it.
    last: u64,
    limit: u64,
    found: Vec<Pause>,
    unknown_from: Option<u64>,
}

/// From the last look before to the first one after, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The last look before it.
    pub from: u64,
    /// The first look after it.
    pub to: u64,
}

impl Pauses {
    /// Pauses longer than `limit` ticks; takes all memory at once.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let found = Vec::with_capacity(PAUSES_MAX);
        Self { last: u64::MAX, limit, found, unknown_from: None }
    }

    /// Those that somebody else has noted, in order; from `unknown_from` on there may be others.
    #[must_use]
    pub fn noted(found: Vec<Pause>, unknown_from: Option<u64>) -> Self {
        Self { last: u64::MAX, limit: u64::MAX, found, unknown_from }
    }

    /// The loop is here at `now`.
    #[inline(always)]
    pub fn look(&mut self, now: u64) {
        if now.saturating_sub(self.last) > self.limit {
            self.note(self.last, now);
        }
        self.last = now;
    }

    #[cold]
    fn note(&mut self, from: u64, to: u64) {
        if self.found.len() < PAUSES_MAX {
            self.found.push(Pause { from, to });
        } else if self.unknown_from.is_none() {
            self.unknown_from = Some(from);
        }
    }

    /// From this tick on there may be others.
    #[must_use]
    pub fn unknown_from(&self) -> Option<u64> {
        self.unknown_from
    }

    /// The pauses, in order.
    #[must_use]
    pub fn found(&self) -> &[Pause] {
        &self.found
    }
}

/// A loop, and when it stood still.
#[derive(Clone, Debug)]
pub struct Watched {
    /// What the loop is.
    pub name: String,
    /// When it stood still, on the generator's clock.
    pub pauses: Pauses,
}

/// What became of one task, in few bytes.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// When it came due, in units from the start of the measured time.
    due: u32,
    /// Response time, or [`NEVER`].
    response_ns: u32,
    class: u16,
    fate: Fate,
    late: bool,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Unsent,
    Answered,
    /// Answered, and not with what it should be.
    Wrong,
    Refused,
    Lost,
}

/// A record of each measured task of one core. All memory is taken, and touched, before the run.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    records: Vec<Record>,
    /// A unit is 2^shift ticks.
    shift: u32,
    start: u64,
    /// The earliest task for which there was no room, in units.
    full_from: Option<u32>,
}

impl Log {
    /// Room for so many tasks that come due within `ticks` ticks, of which a second has `hz`.
    pub(crate) fn new(tasks: f64, ticks: u64, hz: f64) -> Self {
        let microsecond = (hz / 1e6).max(1.0).log2() as u32;
        let needed = 64_u32.saturating_sub(ticks.leading_zeros()).saturating_sub(31);
        let none = Record { due: 1, response_ns: 1, class: 1, fate: Fate::Lost, late: true };
        let mut records = vec![none; tasks_max(tasks)];
        records.clear();
        Self { records, shift: microsecond.max(needed), start: u64::MAX, full_from: None }
    }

    pub(crate) fn begin(&mut self, start: u64) {
        self.start = start;
    }

    /// A task has ended: `late` if it was sent late.
    #[inline(always)]
    pub(crate) fn end(&mut self, due: u64, class: u16, response_ns: u64, fate: Fate, late: bool) {
        let due = ((due - self.start) >> self.shift) as u32;
        let response_ns = response_ns.min(u64::from(NEVER)) as u32;
        if self.records.len() < self.records.capacity() {
            self.records.push(Record { due, response_ns, class, fate, late });
        } else {
            self.full_from = Some(self.full_from.map_or(due, |first| first.min(due)));
        }
    }

    /// A task has ended without an answer.
    pub(crate) fn end_without(&mut self, due: u64, class: u16, fate: Fate, late: bool) {
        self.end(due, class, u64::MAX, fate, late);
    }
}

/// Which slices are calm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rule {
    /// Length of a slice.
    pub slice_s: f64,
    /// A loop that did not look at the clock for longer than this stood still.
    pub pause_s: f64,
    /// A pause disturbs for so many times its own length after its end: what came meanwhile must be worked off.
    pub recovery: f64,
    /// A pause disturbs the slices that end so long or less before it: their tasks may still be under way.
    pub cover_s: f64,
    /// The percentile that a run is to tell, as a share.
    pub quantile: f64,
}

impl Rule {
    /// The rule for tasks of this mean service time, when `share` of what the workers can do is offered.
    ///
    /// A pause of length d leaves a backlog that is worked off in share / (1 - share) times d in the mean; twice that is allowed.
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

    /// The same for another percentile.
    #[must_use]
    pub fn telling(self, quantile: f64) -> Self {
        Self { quantile, ..self }
    }

    /// Calm tasks that the percentile needs.
    #[must_use]
    pub fn tasks_min(&self) -> u64 {
        (BEYOND_MIN / (1.0 - self.quantile)).round() as u64
    }

    /// The percentile as it is usually written, as in p99.9.
    #[must_use]
    pub fn percentile(&self) -> String {
        let percent = format!("{:.3}", 100.0 * self.quantile);
        format!("p{}", percent.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// A percentile as users write it: 99, p99 or p99.9; as a share.
///
/// # Errors
/// When it is none from 1 to 99.99.
pub fn quantile(text: &str) -> Result<f64, String> {
    match text.strip_prefix('p').unwrap_or(text).parse::<f64>() {
        Ok(percent) if (1.0..=99.99).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("`{text}` is no percentile; write 1 to 99.99, as in 99 or p99.9")),
    }
}

/// The measured time, cut.
#[derive(Clone, Debug)]
pub struct Slices {
    rule: Rule,
    start: u64,
    end: u64,
    slice: u64,
    tick_ns: f64,
    calm: Vec<bool>,
    loops: Vec<String>,
    pauses: usize,
    longest: u64,
    paused: u64,
}

impl Slices {
    /// Cuts the time from `start` to `end` by `rule`, on a clock whose ticks take `tick_ns`.
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
            calm: vec![true; count],
            loops: Vec::new(),
            pauses: 0,
            longest: 0,
            paused: 0,
        };
        for (name, pauses) in loops {
            slices.loops.push(name.to_owned());
            pauses.found.iter().for_each(|pause| slices.disturb(*pause));
            if let Some(from) = pauses.unknown_from {
                slices.throw_between(from.saturating_sub(ticks(rule.cover_s)), u64::MAX);
            }
        }
        slices
    }

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
        self.throw_between(from.saturating_sub(ticks(self.rule.cover_s)), recovered);
    }

    /// Throws away each slice that has some of the time from one tick to another in it.
    fn throw_between(&mut self, from: u64, to: u64) {
        if to < self.start || from >= self.end {
            return;
        }
        let first = (from.saturating_sub(self.start) / self.slice) as usize;
        let last = ((to - self.start) / self.slice).min(self.calm.len() as u64) as usize;
        let last = (last + 1).min(self.calm.len());
        if let Some(disturbed) = self.calm.get_mut(first..last) {
            disturbed.fill(false);
        }
    }

    /// What came due at this tick counts.
    #[must_use]
    pub fn is_calm(&self, at: u64) -> bool {
        let slice = at.checked_sub(self.start).map(|ticks| (ticks / self.slice) as usize);
        slice.is_some_and(|slice| self.calm.get(slice) == Some(&true))
    }

    /// How many there are.
    #[must_use]
    pub fn all(&self) -> usize {
        self.calm.len()
    }

    /// How many are calm.
    #[must_use]
    pub fn calm(&self) -> usize {
        self.calm.iter().filter(|calm| **calm).count()
    }

    /// The longest pause within the measured time, in nanoseconds.
    #[must_use]
    pub fn longest_pause_ns(&self) -> f64 {
        self.longest as f64 * self.tick_ns
    }

    /// The rule.
    #[must_use]
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Slices from the first task on that the log had no room for can't be told.
    pub(crate) fn throw_unlogged(&mut self, log: &Log) {
        if let Some(full_from) = log.full_from {
            self.throw_between(self.start + (u64::from(full_from) << log.shift), u64::MAX);
        }
    }

    /// What the logs say of the tasks that came due in calm slices. `classes` is 0 where there is one class only.
    pub(crate) fn count<'a>(&self, logs: impl Iterator<Item = &'a Log>, classes: usize) -> Calm {
        let calm_slices = self.calm();
        let groups = calm_slices.min(GROUPS);
        // The calm slices in order, in groups that hold nearly as many each.
        let mut nth = 0;
        let group = self.calm.iter().map(|calm| {
            nth += usize::from(*calm);
            calm.then(|| (nth - 1) * groups / calm_slices)
        });
        let group: Vec<Option<usize>> = group.collect();
        let mut calm = Calm {
            ledger: Ledger::default(),
            thrown: 0,
            groups: vec![Latency::default(); groups],
            classes: vec![(Ledger::default(), Latency::default()); classes],
        };
        for log in logs {
            for record in &log.records {
                // A core's own start: cores begin one after the other.
                let due = log.start + (u64::from(record.due) << log.shift);
                let slice = (due.saturating_sub(self.start) / self.slice) as usize;
                let Some(group) = group.get(slice).copied().flatten() else {
                    calm.thrown += 1;
                    continue;
                };
                record.count(&mut calm.ledger);
                record.time(&mut calm.groups[group]);
                let class = usize::from(record.class).wrapping_sub(1);
                if let Some((ledger, latency)) = calm.classes.get_mut(class) {
                    record.count(ledger);
                    record.time(latency);
                }
            }
        }
        calm
    }

    /// What a report says of them; `thrown` tasks were in those that are not calm.
    #[must_use]
    pub fn report(&self, thrown: u64) -> SlicesReport {
        let us = |ticks: u64| Micros(ticks as f64 * self.tick_ns / 1e3);
        let (all, calm) = (self.all(), self.calm());
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        SlicesReport {
            all,
            calm,
            calm_share: share(calm as f64, all as f64),
            thrown_slices: all - calm,
            thrown_tasks: thrown,
            pauses: self.pauses,
            longest_pause_us: us(self.longest),
            paused_share: share(self.paused as f64, self.end.saturating_sub(self.start) as f64),
            loops: self.loops.clone(),
        }
    }
}

impl Record {
    fn count(&self, ledger: &mut Ledger) {
        let of = |is: bool| u64::from(is);
        ledger.scheduled += 1;
        ledger.sent += of(self.fate != Fate::Unsent);
        ledger.late += of(self.late);
        ledger.unsent += of(self.fate == Fate::Unsent);
        ledger.answered += of(matches!(self.fate, Fate::Answered | Fate::Wrong));
        ledger.wrong += of(self.fate == Fate::Wrong);
        ledger.refused += of(self.fate == Fate::Refused);
        ledger.lost += of(self.fate == Fate::Lost);
    }

    /// As in the whole run: tasks that were never sent have no response time.
    fn time(&self, latency: &mut Latency) {
        match self.fate {
            Fate::Answered | Fate::Wrong => latency.record(u64::from(self.response_ns)),
            Fate::Refused | Fate::Lost => latency.record_infinite(1),
            Fate::Unsent => {}
        }
    }
}

/// What became of the tasks of calm slices.
#[derive(Clone, Debug)]
pub(crate) struct Calm {
    pub(crate) ledger: Ledger,
    /// Tasks of the others.
    pub(crate) thrown: u64,
    groups: Vec<Latency>,
    /// By class.
    pub(crate) classes: Vec<(Ledger, Latency)>,
}

impl Calm {
    /// Response times of all.
    pub(crate) fn response(&self) -> Latency {
        let mut all = Latency::default();
        self.groups.iter().for_each(|group| all.merge(group));
        all
    }

    /// Half the width of a figure's 95% confidence interval, from [`GROUPS`] groups of slices; not a number when
    /// there are fewer slices.
    fn ci95_ns(&self, figure: impl Fn(&Latency) -> f64) -> f64 {
        if self.groups.len() < GROUPS {
            return f64::NAN;
        }
        let values: Vec<_> = self.groups.iter().map(figure).filter(|ns| !ns.is_nan()).collect();
        ci95_half_width(&values)
    }

    pub(crate) fn report(&self) -> CalmReport {
        let of = |figure: fn(&Latency) -> f64| Micros(self.ci95_ns(figure) / 1e3);
        CalmReport {
            ledger: self.ledger,
            adherence: self.ledger.adherence(),
            response_us: self.response().summary(),
            response_ci95_us: Confidence {
                p50: of(|group| group.quantile_ns(0.5)),
                p99: of(|group| group.quantile_ns(0.99)),
                mean: of(Latency::mean_ns),
            },
        }
    }
}

/// How the measured time was cut, and what is thrown away.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlicesReport {
    /// Slices of the measured time.
    pub all: usize,
    /// Those that no pause can have touched.
    pub calm: usize,
    /// Their share.
    pub calm_share: f64,
    /// The others.
    pub thrown_slices: usize,
    /// Tasks that came due in those.
    pub thrown_tasks: u64,
    /// Times that a loop stood still within the measured time.
    pub pauses: usize,
    /// The longest of these.
    pub longest_pause_us: Micros,
    /// All of them together, as a share of the measured time; two loops' add up.
    pub paused_share: f64,
    /// The loops whose pauses are known.
    pub loops: Vec<String>,
}

impl std::fmt::Display for SlicesReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { all, calm, thrown_slices, thrown_tasks, pauses, longest_pause_us, .. } = self;
        write!(
            f,
            "{calm} of {all} slices calm ({:.1}%); thrown away: {thrown_slices} slices with {thrown_tasks} tasks, for \
             {pauses} pauses of {}, {longest_pause_us} us at the longest, {:.2}% of the time",
            100.0 * self.calm_share,
            self.loops.join(" and "),
            100.0 * self.paused_share
        )
    }
}

/// The figures of the calm slices alone.
#[derive(Clone, Debug, Serialize)]
pub struct CalmReport {
    /// Their tasks.
    #[serde(flatten)]
    pub ledger: Ledger,
    /// Share of these that were sent on time.
    pub adherence: f64,
    /// From the due time; unanswered tasks count as infinite (null) in the percentiles.
    pub response_us: LatencySummary,
    /// Half widths of 95% confidence intervals, from groups of calm slices.
    pub response_ci95_us: Confidence,
}

/// One class in the calm slices alone.
#[derive(Clone, Debug, Serialize)]
pub struct CalmClass {
    /// Its tasks.
    #[serde(flatten)]
    pub ledger: Ledger,
    /// From the due time.
    pub response_us: LatencySummary,
}
