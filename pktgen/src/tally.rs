//! Counts of a run: ledger of tasks, and latencies by window and class. Each core's generator fills one [`Tally`]. The
//! report takes the merged one.
//!
//! Windows are few and equal parts of the measured time, for confidence intervals and the trend. Slices are many and
//! short parts, which count only if no poll loop stalled in them ([`crate::slices`]).

use serde::{Deserialize, Serialize};

use crate::latency::Latency;
use crate::ledger::Ledger;
use crate::outstanding::InFlightTask;
use crate::results::{Status, Task};
use crate::slices::{Log, LoopWatch, Pauses, Rule, Slices, TaskOutcome, UndisturbedTasks};
use crate::stamps::StampStats;
use crate::tasks::TaskRecords;

/// Packets that are not the first answer to a task in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strays {
    /// Further answers to an answered task.
    pub duplicates: u64,
    /// Answers to tasks that already counted as lost, and answers after many later tasks.
    pub late_answers: u64,
    /// Answers to tasks that were never sent, or sent by another client.
    pub unknown: u64,
    /// All other received packets, except requests for our MAC address and announcements of the next hop's.
    pub foreign: u64,
}

impl Strays {
    /// Adds the counts of another core.
    fn merge(&mut self, other: &Self) {
        self.duplicates += other.duplicates;
        self.late_answers += other.late_answers;
        self.unknown += other.unknown;
        self.foreign += other.foreign;
    }
}

/// Counts of a class.
#[derive(Clone, Debug, Default)]
pub struct ClassTally {
    /// Ledger of tasks due in the measured time.
    pub ledger: Ledger,
    /// Latency from the due time.
    pub response: Latency,
    /// Latency from the send time.
    pub service: Latency,
}

/// Counts of a core. Counts of several cores merge.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Ledger of tasks due before the measured time.
    pub warmup: Ledger,
    /// Ledger of tasks due in the measured time.
    pub measured: Ledger,
    /// Measured seconds; fewer than requested after an early stop.
    pub measured_s: f64,
    /// Received packets that are not the first answer to a task in flight.
    pub strays: Strays,
    /// Bursts that the device did not accept completely.
    pub tx_full: u64,
    /// Number of times that no packet buffer was left.
    pub pool_empty: u64,
    /// Statistics of receive timestamps, if they were requested.
    pub stamps: Option<StampStats>,
    /// Response latencies of the measured time, in equal windows by due time.
    pub windows: Vec<Latency>,
    /// Counts by class, index 0 for class 1; empty if there is one class only.
    pub classes: Vec<ClassTally>,
    /// Latencies from the send time of all measured tasks.
    pub service: Latency,
    /// Compact records of this core's measured tasks, to judge slices of the run afterwards.
    log: Log,
    /// All tasks of this core, warm-up included, if they are recorded.
    records: Option<TaskRecords>,
    /// Stalls of this core's loop.
    pauses: Pauses,
    /// Records and stalls of merged cores.
    other_cores: Vec<(Log, Pauses)>,
    /// Records of the tasks of merged cores.
    other_records: Vec<TaskRecords>,
    /// Tick at which the measured time ended.
    end: u64,
    /// Start, windows and units of the measured time.
    clock: Clock,
    /// Nanoseconds per tick, in units of 2^-32, so that conversions need only integers.
    tick_ns: u64,
    /// Window used last: its index and its range of due times. The next task is usually in the same one.
    window: (usize, std::ops::Range<u64>),
}

/// Measured time on the core's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// First tick of the measured time.
    pub(crate) start: u64,
    /// Ticks per window, at least 1.
    pub(crate) window_ticks: u64,
    /// Nanoseconds per tick.
    pub(crate) tick_ns: f64,
    /// Delay in ticks from which a sent task is late.
    pub(crate) late_ticks: u64,
}

impl Tally {
    /// Allocates all memory except that of [`Tally::record_tasks`]. [`Tally::begin`] sets the measured time.
    pub(crate) fn new(windows: usize, classes: usize, log: Log, pauses: Pauses) -> Self {
        // Before the start is known, every task belongs to the warm-up.
        let clock = Clock { start: u64::MAX, window_ticks: 1, tick_ns: 1.0, late_ticks: 0 };
        let classes = if classes > 1 { classes } else { 0 };
        Self {
            warmup: Ledger::default(),
            measured: Ledger::default(),
            measured_s: 0.0,
            strays: Strays::default(),
            tx_full: 0,
            pool_empty: 0,
            stamps: None,
            windows: vec![Latency::default(); windows.max(1)],
            classes: vec![ClassTally::default(); classes],
            service: Latency::default(),
            log,
            records: None,
            pauses,
            other_cores: Vec::new(),
            other_records: Vec::new(),
            end: 0,
            clock,
            tick_ns: 0,
            window: (0, 0..0),
        }
    }

    /// Sets the measured time.
    pub(crate) fn begin(&mut self, clock: Clock) {
        self.tick_ns = (clock.tick_ns * 32_f64.exp2()) as u64;
        self.window = (0, clock.start..clock.start.saturating_add(clock.window_ticks));
        self.log.begin(clock.start);
        self.clock = clock;
    }

    /// Records a clock reading of the loop. A long gap between two readings is a stall.
    #[inline(always)]
    pub(crate) fn record_reading(&mut self, now: u64) {
        self.pauses.look(now);
    }

    /// Converts ticks to nanoseconds.
    #[inline]
    fn ns(&self, ticks: u64) -> u64 {
        // The product has 32 fraction bits.
        ((u128::from(ticks) * u128::from(self.tick_ns)) >> 32) as u64
    }

    /// Applies `change` to the ledgers of a task due at tick `due`: to that of the warm-up, or to those of the measured
    /// time and of the task's class.
    #[inline(always)]
    fn count(&mut self, due: u64, class: u16, change: impl Fn(&mut Ledger)) {
        if due < self.clock.start {
            return change(&mut self.warmup);
        }
        change(&mut self.measured);
        if let Some(class) = self.class(class) {
            change(&mut class.ledger);
        }
    }

    /// Ends the measured time at tick `end`.
    pub(crate) fn end(&mut self, end: u64) {
        self.end = end;
        self.measured_s = end.saturating_sub(self.clock.start) as f64 * self.clock.tick_ns / 1e9;
    }

    /// Returns the first tick of the measured time.
    #[inline]
    #[must_use]
    pub fn measured_from(&self) -> u64 {
        self.clock.start
    }

    /// Counts a due task.
    #[inline(always)]
    pub(crate) fn schedule(&mut self, due: u64, class: u16) {
        self.count(due, class, |ledger| ledger.scheduled += 1);
    }

    /// Counts a task handed to the device.
    #[inline(always)]
    pub(crate) fn send(&mut self, flight: &InFlightTask) {
        let late = self.is_late(flight);
        self.count(flight.due, flight.class, |ledger| {
            ledger.sent += 1;
            ledger.late += u64::from(late);
        });
    }

    /// Returns true if the task was sent late.
    #[inline(always)]
    fn is_late(&self, flight: &InFlightTask) -> bool {
        flight.sent > flight.due + self.clock.late_ticks
    }

    /// Makes the tally record all tasks. Allocates the memory for this number of tasks now.
    pub(crate) fn record_tasks(&mut self, tasks: usize) {
        self.records = Some(TaskRecords::new(tasks));
    }

    /// Counts a task that will not be sent. Unlike a lost task, it has no latency.
    pub(crate) fn count_unsent(&mut self, due: u64, service_ns: u32, class: u16) {
        self.count(due, class, |ledger| ledger.unsent += 1);
        if let Some(records) = &mut self.records {
            // The send time is a placeholder, which the record of an unsent task does not show.
            records.push(&InFlightTask { due, sent: due, service_ns, class }, None, Status::Unsent);
        }
        if due >= self.clock.start {
            self.log.record_unanswered(due, class, TaskOutcome::Unsent, false);
        }
    }

    /// Counts a task answered at tick `now` by `worker`; `wrong` if the answer's content is.
    #[inline(always)]
    pub(crate) fn answer(&mut self, flight: &InFlightTask, now: u64, wrong: bool, worker: u16) {
        if let Some(records) = &mut self.records {
            let status = if wrong { Status::Wrong } else { Status::Answered };
            records.push(flight, Some((now, worker)), status);
        }
        self.count(flight.due, flight.class, |ledger| {
            ledger.answered += 1;
            ledger.wrong += u64::from(wrong);
        });
        if flight.due < self.clock.start {
            return;
        }
        let response_ns = self.ns(now.saturating_sub(flight.due));
        let service_ns = self.ns(now.saturating_sub(flight.sent));
        let (outcome, late) =
            (if wrong { TaskOutcome::Wrong } else { TaskOutcome::Answered }, self.is_late(flight));
        self.log.record(flight.due, flight.class, response_ns, outcome, late);
        self.window(flight.due).record(response_ns);
        self.service.record(service_ns);
        if let Some(class) = self.class(flight.class) {
            class.response.record(response_ns);
            class.service.record(service_ns);
        }
    }

    /// Counts a task returned undone, with infinite latency. It is rare and never inlined, so that the path
    /// of answers stays short.
    #[inline(never)]
    pub(crate) fn refuse(&mut self, flight: &InFlightTask) {
        self.count(flight.due, flight.class, |ledger| ledger.refused += 1);
        self.record_unanswered(flight, Status::Refused);
        self.record_infinite(flight, TaskOutcome::Refused);
    }

    /// Counts a lost task, with infinite latency. Like [`Tally::refuse`], it is rare and never inlined.
    #[inline(never)]
    pub(crate) fn lose(&mut self, flight: &InFlightTask) {
        self.count(flight.due, flight.class, |ledger| ledger.lost += 1);
        self.record_unanswered(flight, Status::Lost);
        self.record_infinite(flight, TaskOutcome::Lost);
    }

    /// Records a task without an answer, if tasks are recorded.
    fn record_unanswered(&mut self, flight: &InFlightTask, status: Status) {
        if let Some(records) = &mut self.records {
            records.push(flight, None, status);
        }
    }

    /// Returns all recorded tasks of all cores in the order of their due times, and the number of tasks for
    /// which there was no room. The load started `warmup_s` seconds before the measured time.
    #[must_use]
    pub fn tasks(&self, warmup_s: f64) -> (Vec<Task>, u64) {
        let records = || self.records.iter().chain(&self.other_records);
        let warmup_ticks = (warmup_s * 1e9 / self.clock.tick_ns).round() as u64;
        let start = self.clock.start.saturating_sub(warmup_ticks);
        let ns = |ticks| self.ns(ticks);
        let task = |(number, record): (usize, crate::tasks::TaskRecord)| Task {
            number: number as u64,
            measured: record.due >= self.clock.start,
            late: record.sent > record.due + self.clock.late_ticks,
            ..record.task(start, ns)
        };
        let mut all: Vec<_> = records().flat_map(|records| records.all()).copied().collect();
        all.sort_by_key(|record| record.due);
        let missing = records().map(TaskRecords::missing).sum();
        (all.into_iter().enumerate().map(task).collect(), missing)
    }

    /// Records an infinite latency, unless the task belongs to the warm-up.
    fn record_infinite(&mut self, flight: &InFlightTask, outcome: TaskOutcome) {
        if flight.due < self.clock.start {
            return;
        }
        self.log.record_unanswered(flight.due, flight.class, outcome, self.is_late(flight));
        self.window(flight.due).record_infinite(1);
        self.service.record_infinite(1);
        if let Some(class) = self.class(flight.class) {
            class.response.record_infinite(1);
            class.service.record_infinite(1);
        }
    }

    /// Returns the latencies of the window of a due time.
    #[inline]
    fn window(&mut self, due: u64) -> &mut Latency {
        if !self.window.1.contains(&due) {
            self.find_window(due);
        }
        &mut self.windows[self.window.0]
    }

    /// Makes the window of a due time the window used last.
    #[cold]
    fn find_window(&mut self, due: u64) {
        // The final window has no end, so that it also holds the remainder of the division into windows.
        let (ticks, last) = (self.clock.window_ticks, self.windows.len() - 1);
        let window = ((due - self.clock.start) / ticks).min(last as u64);
        let from = self.clock.start + window * ticks;
        let to = if window == last as u64 { u64::MAX } else { from + ticks };
        self.window = (window as usize, from..to);
    }

    /// Returns the counts of a class, if classes are counted.
    #[inline]
    fn class(&mut self, class: u16) -> Option<&mut ClassTally> {
        // Class 0 wraps around to an index beyond the list.
        self.classes.get_mut(usize::from(class).wrapping_sub(1))
    }

    /// Returns the response latencies of the whole measured time.
    #[must_use]
    pub fn response(&self) -> Latency {
        let mut all = Latency::default();
        self.windows.iter().for_each(|window| all.merge(window));
        all
    }

    /// Cuts the measured time into slices by `rule`. A slice is undisturbed if neither the generator's loops
    /// nor those in `watched` stalled.
    #[must_use]
    pub fn slices(&self, rule: &Rule, watched: &[LoopWatch]) -> Slices {
        let generator =
            [&self.pauses].into_iter().chain(self.other_cores.iter().map(|(_, pauses)| pauses));
        let generator = generator.map(|pauses| ("the generator", pauses));
        let watched = watched.iter().map(|watched| (&*watched.name, &watched.pauses));
        let (start, tick_ns) = (self.clock.start, self.clock.tick_ns);
        let mut slices = Slices::cut(*rule, start, self.end, tick_ns, generator.chain(watched));
        // A full log misses tasks, so the slices from there on cannot be judged.
        self.logs().for_each(|log| slices.exclude_unlogged(log));
        slices
    }

    /// Returns the response times of tasks due in undisturbed slices.
    #[must_use]
    pub fn undisturbed_response(&self, slices: &Slices) -> Latency {
        self.undisturbed(slices).response()
    }

    /// Returns the counts of tasks due in undisturbed slices.
    pub(crate) fn undisturbed(&self, slices: &Slices) -> UndisturbedTasks {
        slices.count(self.logs(), self.classes.len())
    }

    /// Iterates over the records of all cores.
    fn logs(&self) -> impl Iterator<Item = &Log> {
        [&self.log].into_iter().chain(self.other_cores.iter().map(|(log, _)| log))
    }

    /// Adds the counts of another core over the same time.
    pub fn merge(&mut self, other: &Self) {
        self.warmup.merge(&other.warmup);
        self.measured.merge(&other.measured);
        self.measured_s = self.measured_s.max(other.measured_s);
        self.strays.merge(&other.strays);
        self.tx_full += other.tx_full;
        self.pool_empty += other.pool_empty;
        match (&mut self.stamps, &other.stamps) {
            (Some(stamps), Some(other)) => stamps.merge(other),
            (stamps, other) => *stamps = stamps.or(*other),
        }
        self.windows.iter_mut().zip(&other.windows).for_each(|(window, other)| window.merge(other));
        self.service.merge(&other.service);
        self.other_cores.push((other.log.clone(), other.pauses.clone()));
        self.other_cores.extend(other.other_cores.iter().cloned());
        self.other_records.extend(other.records.clone());
        self.other_records.extend(other.other_records.iter().cloned());
        for (class, other) in self.classes.iter_mut().zip(&other.classes) {
            class.ledger.merge(&other.ledger);
            class.response.merge(&other.response);
            class.service.merge(&other.service);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a tally of three windows of 100 ticks from tick 1000, with ticks of 2 ns.
    fn tally() -> Tally {
        let clock = Clock { start: 1000, window_ticks: 100, tick_ns: 2.0, late_ticks: 10 };
        // For 10 expected tasks due within 10,000 ticks, at 5e8 ticks per second. Stalls are longer than 1000 ticks.
        let (log, pauses) = (Log::new(10.0, 10_000, 5e8), Pauses::new(1000));
        let mut tally = Tally::new(3, 2, log, pauses);
        tally.begin(clock);
        tally
    }

    /// Counts a task of class 2 that is answered at this tick, or lost. An answer at an odd tick is wrong.
    fn count_task(tally: &mut Tally, due: u64, sent: u64, answered: Option<u64>) {
        let flight = InFlightTask { due, sent, service_ns: 9, class: 2 };
        tally.schedule(due, flight.class);
        tally.send(&flight);
        match answered {
            Some(now) => tally.answer(&flight, now, now % 2 == 1, 7),
            None => tally.lose(&flight),
        }
    }

    #[test]
    fn warm_up_is_separate_from_the_measurement() {
        let mut tally = tally();
        // One task of the warm-up. Then three measured ones: answered, lost after it was sent late (by more than
        // 10 ticks), and unsent.
        count_task(&mut tally, 999, 999, Some(2000));
        count_task(&mut tally, 1000, 1010, Some(1110));
        count_task(&mut tally, 1250, 1270, None);
        tally.schedule(1299, 1);
        tally.count_unsent(1299, 9, 1);
        assert_eq!((tally.warmup.answered, tally.measured.answered), (1, 1));
        assert!(tally.warmup.balances() && tally.measured.balances());
        assert_eq!((tally.measured.late, tally.measured.unsent, tally.measured.lost), (1, 1, 1));
        assert!((tally.measured.adherence() - 1.0 / 3.0).abs() < 1e-9);
        // The answered task took 110 ticks from its due time and 100 from its send time, of 2 ns each. The lost
        // task counts as infinite.
        assert_eq!(tally.response().quantile_ns(0.5), 220.0);
        assert_eq!(tally.service.quantile_ns(0.5), 200.0);
        assert_eq!(tally.windows[2].quantile_ns(0.5), f64::INFINITY);
        assert_eq!(tally.classes[1].response.tasks(), 2);
        assert_eq!(tally.classes[0].response.tasks(), 0);
        let [one, two] = [0, 1].map(|i| tally.classes[i].ledger);
        assert!(one.balances() && two.balances());
        assert_eq!((one.unsent, two.sent, two.answered, two.lost), (1, 2, 1, 1));
    }

    #[test]
    fn cores_merge() {
        // One answer at an odd tick, which is wrong, and one lost task.
        let (mut a, mut b) = (tally(), tally());
        count_task(&mut a, 1000, 1000, Some(1101));
        count_task(&mut b, 1000, 1000, None);
        a.merge(&b);
        assert_eq!((a.measured.sent, a.measured.lost, a.measured.wrong), (2, 1, 1));
        assert_eq!(a.classes[1].ledger, a.measured);
        assert_eq!(a.response().tasks(), 2);
        assert!(a.measured.balances());
    }
}
