//! Measurements of a run: response times in batches for confidence intervals, times by class, a timeline, and growth of
//! queues.

use std::collections::HashSet;

use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use wedjat_workload::results::{Status, Task};

/// Number of batches of a run. Their means give the confidence interval of a single run.
const BATCHES: usize = 10;

/// Creates an empty histogram with a resolution of 0.1% (three digits), whose range grows as needed.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("histograms allow three digits")
}

/// Records a value in a histogram of [`histogram`], which accepts every value.
#[inline]
pub fn record(histogram: &mut Histogram<u64>, value: u64) {
    histogram.record(value).expect("the histogram grows as needed");
}

/// Receiver of a run's progress, and choice of its records.
#[derive(Clone, Debug)]
pub struct Observer {
    /// Progress bar, whose unit is an arrived task.
    pub progress: ProgressBar,
    /// True to record each task in [`super::outcome::Outcome::ended`].
    pub records_tasks: bool,
    /// Pool id in the recorded tasks.
    pub pool: u32,
}

impl Observer {
    /// Creates an observer without progress bar and records, with pool 1.
    #[must_use]
    pub fn hidden() -> Self {
        Self { progress: ProgressBar::hidden(), records_tasks: false, pool: 1 }
    }
}

/// End of a task, with times in ticks.
#[derive(Clone, Copy, Debug)]
pub struct FinishedTask {
    /// Number of the task.
    pub number: u64,
    /// Class; 0 if the model has none.
    pub class: u16,
    /// Worker or node that completed the task; `None` for a lost task.
    pub worker: Option<usize>,
    /// Time of its arrival.
    pub arrived: u64,
    /// Service time at speed 1, if the model knows it for each task.
    pub service: Option<u64>,
    /// Response time, or the status of a task without an answer.
    pub response: Result<u64, Status>,
}

/// Response times of consecutive tasks, in ticks.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Histogram of the response times.
    pub responses: Histogram<u64>,
    /// Sum of the response times, without the histogram's rounding.
    pub sum: f64,
}

impl Batch {
    fn new() -> Self {
        Self { responses: histogram(), sum: 0.0 }
    }

    /// Returns the mean in ticks; NaN without tasks.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum / self.responses.len() as f64
    }

    /// Adds another batch.
    pub fn add(&mut self, other: &Self) {
        self.responses.add(&other.responses).expect("the histogram grows as needed");
        self.sum += other.sum;
    }
}

/// Response times by class, and slowdowns.
#[derive(Clone, Debug)]
pub struct ClassTimes {
    /// Histogram of the response times of each class, in ticks, by class number.
    pub responses: Vec<Histogram<u64>>,
    /// Histogram of all slowdowns (response time divided by own service time), in thousandths.
    pub slowdowns: Histogram<u64>,
}

impl ClassTimes {
    fn new() -> Self {
        Self { responses: Vec::new(), slowdowns: histogram() }
    }

    /// Records a task with its response time and service time in ticks.
    fn record(&mut self, class: u16, ticks: u64, service: u64) {
        let class = usize::from(class);
        if class >= self.responses.len() {
            self.responses.resize(class + 1, histogram());
        }
        record(&mut self.responses[class], ticks);
        record(&mut self.slowdowns, (ticks as f64 * 1e3 / service.max(1) as f64) as u64);
    }

    /// Adds the times of another run.
    pub fn add(&mut self, other: &Self) {
        if self.responses.len() < other.responses.len() {
            self.responses.resize(other.responses.len(), histogram());
        }
        for (all, class) in self.responses.iter_mut().zip(&other.responses) {
            all.add(class).expect("the histogram grows as needed");
        }
        self.slowdowns.add(&other.slowdowns).expect("the histogram grows as needed");
    }
}

/// Recorder of a run with a known number of tasks. Batches, classes and slowdowns exclude the warm-up.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// Measured tasks, in batches of equal size in the order of arrival.
    batches: Vec<Batch>,
    /// Expected number of tasks.
    tasks: u64,
    /// Warm-up: number of tasks, at the start of the run, that are not measured.
    warmup: u64,
    /// For each fifth of the run: sum, over its arriving tasks, of the number of tasks in the system.
    fifths: [f64; 5],
    /// Number of arrived tasks.
    arrived: u64,
    timeline: Timeline,
    /// Number of tasks in each stretch of the timeline.
    stretch_tasks: u64,
    /// Picoseconds per tick.
    tick_ps: f64,
    observer: Observer,
    /// Times by class; `None` if not measured.
    classes: Option<ClassTimes>,
    /// Records of ended tasks, if the observer wants them.
    ended: Vec<Task>,
}

/// Number of tasks between updates of the progress bar.
const PROGRESS: u64 = 1 << 14;
/// Number of stretches of a timeline: equal parts of a run, in the order of arrival.
pub const STRETCHES: usize = 200;

/// Response times over the run, including the warm-up: their sum in ticks and their count for each stretch.
#[derive(Clone, Debug)]
pub struct Timeline(Vec<(f64, u64)>);

impl Timeline {
    fn new() -> Self {
        Self(vec![(0.0, 0); STRETCHES])
    }

    /// Adds another timeline.
    pub fn add(&mut self, other: &Self) {
        for (all, stretch) in self.0.iter_mut().zip(&other.0) {
            *all = (all.0 + stretch.0, all.1 + stretch.1);
        }
    }

    /// Returns the mean response time of each stretch, in ticks; NaN for a stretch without tasks.
    pub fn means(&self) -> impl Iterator<Item = f64> {
        self.0.iter().map(|(sum, count)| sum / *count as f64)
    }
}

impl Recorder {
    /// Creates a recorder for `tasks` tasks, of which the fraction `warmup` is the warm-up. A tick has `tick_ps`
    /// picoseconds.
    #[must_use]
    pub fn new(tasks: u64, warmup: f64, tick_ps: f64, observer: &Observer) -> Self {
        let warmup = (tasks as f64 * warmup) as u64;
        let (batches, timeline) = (vec![Batch::new(); BATCHES], Timeline::new());
        let stretch_tasks = tasks.div_ceil(STRETCHES as u64).max(1);
        Self {
            batches,
            tasks,
            warmup,
            fifths: [0.0; 5],
            arrived: 0,
            timeline,
            stretch_tasks,
            tick_ps,
            observer: observer.clone(),
            classes: None,
            ended: Vec::new(),
        }
    }

    /// Records the arrival of a task that finds `in_system` tasks in the system. Returns the task's number.
    #[inline]
    pub fn arrive(&mut self, in_system: u64) -> u64 {
        let number = self.arrived;
        self.fifths[((number * 5 / self.tasks) as usize).min(4)] += in_system as f64;
        self.arrived += 1;
        if self.arrived.is_multiple_of(PROGRESS) {
            self.observer.progress.inc(PROGRESS);
        }
        number
    }

    /// Records that task `number` had a response time of `ticks`.
    #[inline]
    pub fn done(&mut self, number: u64, ticks: u64) {
        let index = ((number / self.stretch_tasks) as usize).min(STRETCHES - 1);
        let stretch = &mut self.timeline.0[index];
        *stretch = (stretch.0 + ticks as f64, stretch.1 + 1);
        if number < self.warmup {
            return;
        }
        let batch = (number - self.warmup) * BATCHES as u64 / (self.tasks - self.warmup).max(1);
        let batch = &mut self.batches[(batch as usize).min(BATCHES - 1)];
        record(&mut batch.responses, ticks);
        batch.sum += ticks as f64;
    }

    /// Starts to measure classes and slowdowns.
    pub fn measure_classes(&mut self) {
        self.classes = Some(ClassTimes::new());
    }

    /// Records that task `number` had a response time of `ticks`, if classes are measured. `service` is its service
    /// time in ticks at speed 1.
    #[inline]
    pub fn done_of_class(&mut self, number: u64, class: u16, ticks: u64, service: u64) {
        if let Some(classes) = &mut self.classes
            && number >= self.warmup
        {
            classes.record(class, ticks, service);
        }
    }

    /// Takes the times by class; `None` if not measured.
    pub fn take_classes(&mut self) -> Option<ClassTimes> {
        self.classes.take()
    }

    /// Records the end of a task, if the observer wants records. Only then calls `end`.
    #[inline]
    pub fn end(&mut self, end: impl FnOnce() -> FinishedTask) {
        if self.observer.records_tasks {
            self.push(end());
        }
    }

    /// Adds the record of a task, with its times in picoseconds.
    #[cold]
    fn push(&mut self, end: FinishedTask) {
        let FinishedTask { number, class, worker, arrived, service, response } = end;
        let ps = |ticks: u64| match self.tick_ps {
            1.0 => ticks,
            _ => (ticks as f64 * self.tick_ps).round() as u64,
        };
        self.ended.push(Task {
            number,
            pool: self.observer.pool,
            class,
            worker: worker.map(|worker| worker as u32),
            scheduled_ps: ps(arrived),
            sent_ps: Some(ps(arrived)),
            service_ps: service.map(ps),
            response_ps: response.ok().map(ps),
            status: response.err().unwrap_or(Status::Answered),
            measured: number >= self.warmup,
            late: false, // a simulated task is always sent when it is due
        });
    }

    /// Records the ends of those tasks of `rest` that have no record yet, if the observer wants records.
    pub fn end_rest(&mut self, rest: impl Iterator<Item = FinishedTask>) {
        if self.observer.records_tasks {
            let numbers: HashSet<u64> = self.ended.iter().map(|task| task.number).collect();
            rest.filter(|end| !numbers.contains(&end.number)).for_each(|end| self.push(end));
        }
    }

    /// Takes the records of tasks.
    pub fn take_ended(&mut self) -> Vec<Task> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the number of arrived tasks.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Returns the batches, the mean number of tasks in the system in each fifth of the run, and the timeline.
    #[must_use]
    pub fn finish(self) -> (Vec<Batch>, [f64; 5], Timeline) {
        self.observer.progress.inc(self.arrived % PROGRESS);
        let fifth = (self.tasks as f64 / 5.0).max(1.0);
        (self.batches, self.fifths.map(|sum| sum / fifth), self.timeline)
    }
}

/// Returns true if queues grew, judged by the mean number of tasks in the system in each fifth of a run. The first
/// fifth does not count. The number must have grown at each step from the second to the last fifth. In addition, one of
/// two conditions must hold between these two:
/// - The number more than doubled, and grew by more than one task per server. Steady growth triples it.
/// - The number grew by more than half, and by more than ten tasks per server. At the edge of stability it is a random
///   walk, which grows 1.7 times.
#[must_use]
pub fn grows(fifths: &[f64; 5], servers: usize) -> bool {
    let always_grew = fifths[1..].windows(2).all(|pair| pair[1] > pair[0]);
    let (ratio, grown) = (fifths[4] / fifths[1], (fifths[4] - fifths[1]) / servers as f64);
    always_grew && (ratio > 2.0 && grown > 1.0 || ratio > 1.5 && grown > 10.0)
}

/// Returns half the width of the 95% confidence interval (Student's t) of the mean of independent `values`; NaN for
/// fewer than two values.
#[must_use]
pub fn ci95(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    if values.len() < 2 {
        return f64::NAN;
    }
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    student_975(values.len() - 1) * (variance / n).sqrt()
}

/// Returns the 97.5% quantile of Student's t distribution with `freedom` degrees of freedom, to 0.8%.
fn student_975(freedom: usize) -> f64 {
    const TABLE: [f64; 12] =
        [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179];
    // Beyond the table, the approximation 1.96 + 2.4 / freedom is off by at most 0.8%.
    TABLE.get(freedom.max(1) - 1).copied().unwrap_or(1.96 + 2.4 / freedom as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_is_excluded_and_batches_equal() {
        let mut recorder = Recorder::new(1000, 0.1, 1.0, &Observer::hidden());
        for _ in 0..1000 {
            let number = recorder.arrive(0);
            recorder.done(number, 1 + number);
        }
        let (batches, _, timeline) = recorder.finish();
        assert!(batches.iter().all(|batch| batch.responses.len() == 90));
        assert_eq!(batches[0].sum, (101..=190).sum::<u64>() as f64);
        assert_eq!(timeline.means().nth(1), Some(8.0)); // tasks 5 to 9 took 6 to 10
    }

    #[test]
    fn growth_is_distinguished_from_noise() {
        // Steady growth from an empty system.
        assert!(grows(&[50.0, 150.0, 250.0, 350.0, 450.0], 100));
        // A random walk, whose mean grows as the square root of time: from the second to the last fifth by 1.27 times
        // the scale (a factor of sqrt(3)). With the first scale this is more than ten tasks per server, then fewer.
        let walk = [1.0, 3.0, 5.0, 7.0, 9.0].map(f64::sqrt);
        assert!(grows(&walk.map(|tasks| 1000.0 * tasks), 100));
        assert!(!grows(&walk.map(|tasks| 100.0 * tasks), 100));
        // Noise, and growth by less than one task per server.
        assert!(!grows(&[80.0, 100.0, 99.0, 101.0, 102.0], 100));
        assert!(!grows(&[0.0, 1.0, 2.0, 3.0, 4.0], 100));
    }

    #[test]
    fn interval_follows_students_t() {
        assert!((ci95(&[1.0, 3.0]) - 12.706).abs() < 1e-9);
        assert!(ci95(&[1.0]).is_nan());
    }
}
