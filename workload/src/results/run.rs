//! Figures of runs, computed from their recorded tasks: counts, percentiles with confidence intervals, and time series.
//! A run may be repeated with several seeds of the random numbers. A run of one seed is cut into batches, whose
//! differences give the confidence intervals.

use hdrhistogram::Histogram;

use super::run_description::RunDescription;
use super::task::{RunTasks, Status, Task};
use crate::latency::ci95_half_width;

/// Number of batches of a run with one seed, cut in the order of due times. They give its confidence intervals.
const BATCHES: usize = 10;
/// Maximum number of intervals of a time series.
const INTERVALS_MAX: usize = 100;
/// Smallest mean number of tasks in an interval, so that its percentile means something.
const TASKS_PER_INTERVAL: usize = 200;
/// Picoseconds per microsecond.
const PS_PER_US: f64 = 1e6;

/// Response times of a set of tasks, with the resolution of the run's own report: nanoseconds of a measured
/// run, picoseconds of a simulation.
#[derive(Clone, Debug)]
pub struct Responses {
    /// Response times of answered tasks.
    histogram: Histogram<u64>,
    /// Exact sum in the histogram's unit.
    sum: f64,
    /// Number of unanswered tasks that count as infinite; 0 for a simulation.
    infinite: u64,
    /// Picoseconds per unit of the histogram.
    unit_ps: u64,
}

impl Responses {
    /// Creates an empty set for a run. Three significant digits, as in [`crate::latency::Latency`].
    fn new(subject: &RunDescription) -> Self {
        let histogram = Histogram::new(3).expect("digits that the histogram accepts");
        let unit_ps = if subject.is_measured() { 1000 } else { 1 };
        Self { histogram, sum: 0.0, infinite: 0, unit_ps }
    }

    /// Adds a task. A refused or lost task counts as infinite in measured runs, and not at all in simulations, as in
    /// the run's own report. An unsent task never counts.
    fn add(&mut self, task: &Task) {
        match task.response_ps {
            Some(ps) => {
                let value = ps / self.unit_ps;
                self.histogram.record(value).expect("a histogram that grows");
                self.sum += value as f64;
            }
            None => {
                let counts = matches!(task.status, Status::Refused | Status::Lost);
                // A unit of nanoseconds marks a measured run.
                self.infinite += u64::from(counts && self.unit_ps > 1);
            }
        }
    }

    /// Adds another set of tasks of the same run.
    fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("a histogram that grows");
        self.sum += other.sum;
        self.infinite += other.infinite;
    }

    /// Converts a value in the histogram's unit to microseconds.
    fn us(&self, value: f64) -> f64 {
        value * self.unit_ps as f64 / PS_PER_US
    }

    /// Returns the number of tasks that percentiles count: answered ones, and in measured runs also refused and lost
    /// ones.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.histogram.len() + self.infinite
    }

    /// Returns the response time of the task with this rank, from 1, in microseconds. Infinite beyond the
    /// answered tasks; NaN without tasks.
    #[must_use]
    pub fn of_rank(&self, rank: u64) -> f64 {
        let answered = self.histogram.len();
        match self.tasks() {
            0 => f64::NAN,
            tasks if rank.clamp(1, tasks) > answered => f64::INFINITY,
            // Half a rank less: the histogram rounds up, and rounding must not select the next rank.
            _ => {
                let quantile = (rank.max(1) as f64 - 0.5) / answered as f64;
                self.us(self.histogram.value_at_quantile(quantile) as f64)
            }
        }
    }

    /// Returns the response time at a quantile, in microseconds.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> f64 {
        self.of_rank((quantile * self.tasks() as f64).ceil() as u64)
    }

    /// Returns the mean of the answered tasks in microseconds; NaN if there are none. It equals that of the
    /// run's own report: simulations add up exact times, the generator uses its histogram.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match (self.histogram.len(), self.unit_ps) {
            (0, _) => f64::NAN,
            (answered, 1) => self.us(self.sum / answered as f64),
            _ => self.us(self.histogram.mean()),
        }
    }
}

/// Part of a time series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Middle of the interval, in milliseconds from the start of the run.
    pub at_ms: f64,
    /// Tasks due, per second.
    pub rate_pps: f64,
    /// 99th percentile of the response times of the answered tasks due in it, in microseconds; NaN without answers.
    /// Lost and refused tasks do not count, even in measured runs.
    pub p99_us: f64,
    /// Mean number of tasks that are due and not answered. Tasks without an answer do not count.
    pub in_flight: f64,
}

/// Figures of one run with one seed.
#[derive(Clone, Debug)]
struct Sample {
    /// Response times of the measured tasks.
    responses: Responses,
    /// Mean and 99th percentile of each batch that has tasks.
    batches: Vec<(f64, f64)>,
    /// Number of measured tasks by the index of their status.
    counts: [u64; Status::ALL.len()],
    /// Number of tasks, warm-up included.
    tasks: u64,
    /// Figures over the time of the run, warm-up included.
    series: Vec<Interval>,
    /// Start of the measurement in milliseconds.
    measured_from_ms: f64,
}

impl Sample {
    /// Computes the figures of one run from its tasks.
    fn new(subject: &RunDescription, mut tasks: Vec<Task>) -> Self {
        let mut responses = Responses::new(subject);
        let mut counts = [0; Status::ALL.len()];
        let measured = || tasks.iter().filter(|task| task.measured);
        for task in measured() {
            responses.add(task);
            counts[task.status.index()] += 1;
        }
        let from_ps = measured().map(|task| task.scheduled_ps).min().unwrap_or(0);
        let series = series(&tasks);
        // Each pool of a fabric is cut into batches of its own. Batches of one number form one batch of all pools.
        tasks.sort_by_key(|task| (task.pool, task.scheduled_ps, task.number));
        let mut batches = vec![Responses::new(subject); BATCHES];
        for pool in tasks.chunk_by(|a, b| a.pool == b.pool) {
            let count = pool.iter().filter(|task| task.measured).count();
            for (index, task) in pool.iter().filter(|task| task.measured).enumerate() {
                batches[index * BATCHES / count].add(task);
            }
        }
        let batches = batches.iter().filter(|batch| batch.tasks() > 0);
        let batches = batches.map(|batch| (batch.mean(), batch.quantile(0.99))).collect();
        let tasks = tasks.len() as u64;
        let measured_from_ms = from_ps as f64 / 1e9;
        Self { responses, batches, counts, tasks, series, measured_from_ms }
    }
}

/// Computes the time series of a run: cuts it, warm-up included, into equal intervals of the due times.
fn series(tasks: &[Task]) -> Vec<Interval> {
    let end = tasks.iter().map(|task| task.scheduled_ps).max().unwrap_or(0) + 1;
    let count = (tasks.len() / TASKS_PER_INTERVAL).clamp(1, INTERVALS_MAX);
    let length = end.div_ceil(count as u64);
    let mut responses: Vec<Vec<u64>> = vec![Vec::new(); count];
    // Tasks due in each interval, and the sum of the times that tasks spend in it, in picoseconds. That sum
    // over the interval's length is the mean number of tasks in flight.
    let (mut due, mut in_system) = (vec![0_u64; count], vec![0_u128; count]);
    for task in tasks {
        let index = (task.scheduled_ps / length) as usize;
        due[index] += 1;
        let Some(response) = task.response_ps else { continue };
        responses[index].push(response);
        // Adds the time that the task spends in each interval.
        let (mut from, to) = (task.scheduled_ps, (task.scheduled_ps + response).min(end));
        while from < to {
            let index = (from / length) as usize;
            let until = ((index as u64 + 1) * length).min(to);
            in_system[index] += u128::from(until - from);
            from = until;
        }
    }
    let interval = |(index, responses): (usize, &mut Vec<u64>)| {
        responses.sort_unstable();
        let rank = (responses.len() * 99).div_ceil(100).max(1);
        let p99 = responses.get(rank - 1).map_or(f64::NAN, |ps| *ps as f64 / PS_PER_US);
        Interval {
            at_ms: (index as f64 + 0.5) * length as f64 / 1e9,
            rate_pps: due[index] as f64 / (length as f64 / 1e12),
            p99_us: p99,
            in_flight: in_system[index] as f64 / length as f64,
        }
    };
    responses.iter_mut().enumerate().map(interval).collect()
}

/// A figure with half the width of its 95% confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The figure.
    pub value: f64,
    /// Half width of the interval; NaN without one, infinite if a seed or batch has an infinite value.
    pub half: f64,
}

/// Figures of one run, of one or several seeds. Times are in microseconds.
#[derive(Clone, Debug)]
pub struct Run {
    /// Description.
    pub subject: RunDescription,
    /// Figures of each seed.
    samples: Vec<Sample>,
    /// Response times of all seeds.
    responses: Responses,
    /// False if the run's own report called it invalid. True for a run from a task log, which does not record it.
    pub valid: bool,
}

impl Run {
    /// Computes the figures of one seed.
    #[must_use]
    pub fn new(tasks: RunTasks) -> Self {
        let RunTasks { description: subject, tasks, .. } = tasks;
        let sample = Sample::new(&subject, tasks);
        Self { responses: sample.responses.clone(), subject, samples: vec![sample], valid: true }
    }

    /// Adds another seed of the same run.
    pub fn add_seed(&mut self, other: Self) {
        self.responses.merge(&other.responses);
        self.samples.extend(other.samples);
        self.valid &= other.valid;
    }

    /// Returns the response times of all seeds.
    #[must_use]
    pub fn responses(&self) -> &Responses {
        &self.responses
    }

    /// Returns the number of seeds.
    #[must_use]
    pub fn seeds(&self) -> usize {
        self.samples.len()
    }

    /// Returns the number of tasks of all seeds, warm-up included.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.samples.iter().map(|sample| sample.tasks).sum()
    }

    /// Returns the number of measured tasks with this status.
    #[must_use]
    pub fn count(&self, status: Status) -> u64 {
        self.samples.iter().map(|sample| sample.counts[status.index()]).sum()
    }

    /// Returns the mean.
    #[must_use]
    pub fn mean(&self) -> Estimate {
        self.estimate(Responses::mean, |(mean, _)| *mean)
    }

    /// Returns the 99th percentile.
    #[must_use]
    pub fn p99(&self) -> Estimate {
        self.estimate(|responses| responses.quantile(0.99), |(_, p99)| *p99)
    }

    /// Returns a figure of all tasks; `of_batch` selects it from a batch. Its interval comes from the seeds,
    /// or from the batches of a single seed.
    fn estimate(
        &self,
        figure: impl Fn(&Responses) -> f64,
        of_batch: impl Fn(&(f64, f64)) -> f64,
    ) -> Estimate {
        let mut values: Vec<f64> = match &self.samples[..] {
            [sample] => sample.batches.iter().map(of_batch).collect(),
            samples => samples.iter().map(|sample| figure(&sample.responses)).collect(),
        };
        // A batch or seed without an answered task has no mean.
        values.retain(|value| !value.is_nan());
        Estimate { value: figure(&self.responses), half: ci95_half_width(&values) }
    }

    /// Returns the time series of the first seed. The intervals of other seeds may have other lengths.
    #[must_use]
    pub fn series(&self) -> &[Interval] {
        &self.samples[0].series
    }

    /// Returns the start of the measurement of the first seed, in milliseconds.
    #[must_use]
    pub fn measured_from_ms(&self) -> f64 {
        self.samples[0].measured_from_ms
    }
}

/// Headings of the table of runs.
pub const COLUMNS: [&str; 13] = [
    "run", "load", "seeds", "tasks", "answered", "refused", "lost", "unsent", "mean us", "p50 us",
    "p90 us", "p99 us", "p99.9 us",
];

impl Run {
    /// Returns the cells of the run's row in the table, in the order of [`COLUMNS`]. Only `tasks` includes the warm-up.
    /// `answered` includes wrong answers. `±` precedes half the width of a 95% confidence interval.
    #[must_use]
    pub fn cells(&self) -> [String; COLUMNS.len()] {
        let us = |us: f64| match us {
            us if us.is_nan() => "-".to_owned(),
            us if us.is_infinite() => "inf".to_owned(),
            us => format!("{us:.3}"),
        };
        let estimate = |Estimate { value, half }: Estimate| match half.is_finite() {
            true => format!("{} ±{half:.2}", us(value)),
            false => us(value),
        };
        let answered = self.count(Status::Answered) + self.count(Status::Wrong);
        [
            self.subject.series(),
            self.subject.load_text(),
            self.seeds().to_string(),
            self.tasks().to_string(),
            answered.to_string(),
            self.count(Status::Refused).to_string(),
            self.count(Status::Lost).to_string(),
            self.count(Status::Unsent).to_string(),
            estimate(self.mean()),
            us(self.responses.quantile(0.5)),
            us(self.responses.quantile(0.9)),
            estimate(self.p99()),
            us(self.responses.quantile(0.999)),
        ]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::latency::Latency;

    /// Creates a run whose task `n` is due at `n` us and takes `response_us(n)`; `None` is lost. The first tenth of
    /// the tasks is warm-up.
    pub fn run(
        model: &str,
        policy: &str,
        load: f64,
        tasks: u64,
        response_us: impl Fn(u64) -> Option<u64>,
    ) -> RunTasks {
        let task = |number| {
            let response = response_us(number);
            Task {
                number,
                pool: 1,
                class: 1,
                worker: None,
                scheduled_ps: number * 1_000_000,
                sent_ps: Some(number * 1_000_000),
                service_ps: None,
                response_ps: response.map(|us| us * 1_000_000),
                status: if response.is_some() { Status::Answered } else { Status::Lost },
                measured: number >= tasks / 10,
                late: false,
            }
        };
        let (model, policy, load) = (model.to_owned(), policy.to_owned(), Some(load));
        let description = RunDescription { model, policy, load, ..RunDescription::default() };
        RunTasks { run: 1, description, seed: 1, tasks: (0..tasks).map(task).collect() }
    }

    #[test]
    fn percentiles_equal_those_of_the_generator() {
        // The first `lost` of each thousand tasks are lost; 1000 loses none.
        for lost in [0, 50, 1000] {
            let response = |n: u64| (n % 1000 >= lost || lost == 1000).then_some(n % 700 + 1);
            let run = Run::new(run("pktgen", "", 0.5, 5000, response));
            let mut latency = Latency::default();
            // Leaves out the warm-up.
            for number in 500..5000 {
                match response(number) {
                    Some(us) => latency.record(us * 1000),
                    None => latency.record_infinite(1),
                }
            }
            for quantile in [0.1, 0.5, 0.9, 0.94, 0.99, 0.999] {
                let value = run.responses().quantile(quantile);
                assert_eq!(value, latency.quantile_ns(quantile) / 1e3, "{lost} {quantile}");
            }
        }
    }

    #[test]
    fn lost_tasks_of_simulations_have_no_response() {
        let run = Run::new(run("rack", "horus", 0.5, 100, |n| (n % 2 == 0).then_some(10)));
        // 90 of 100 tasks are measured.
        assert_eq!((run.count(Status::Answered), run.count(Status::Lost)), (45, 45));
        assert_eq!(run.tasks(), 100);
        assert!((run.p99().value - 10.0).abs() < 0.01 && run.p99().half.abs() < 1e-9);
    }

    #[test]
    fn intervals_come_from_seeds_or_batches() {
        let run_of = |us: u64| Run::new(run("rack", "horus", 0.5, 100, |_| Some(us)));
        let mut two = run_of(10);
        assert_eq!(two.mean(), Estimate { value: 10.0, half: 0.0 });
        two.add_seed(run_of(12));
        let Estimate { value, half } = two.mean();
        // Student's t with one degree of freedom: 12.706 times half the difference.
        assert!(value == 11.0 && (half - 12.706).abs() < 1e-9, "{half}");
        assert_eq!(two.seeds(), 2);
        let cells = two.cells();
        assert!(cells[8] == "11.000 ±12.71" && cells[1] == "50%", "{cells:?}");
    }

    #[test]
    fn series_follow_littles_law() {
        // One task per microsecond, each for 5 us: a million tasks per second, five in flight.
        let run = Run::new(run("rack", "horus", 0.5, 4000, |_| Some(5)));
        assert_eq!(run.series().len(), 20);
        for interval in &run.series()[1..19] {
            assert!((interval.rate_pps / 1e6 - 1.0).abs() < 0.01, "{interval:?}");
            assert!((interval.in_flight - 5.0).abs() < 0.05, "{interval:?}");
            assert!((interval.p99_us - 5.0).abs() < 1e-9, "{interval:?}");
        }
        assert!((run.measured_from_ms() - 0.4).abs() < 1e-9);
    }

    #[test]
    fn labels_name_policy_setting_and_load() {
        let mut description = run("pktgen", "", 0.875, 1, |_| None).description;
        assert_eq!(description.label(), "pktgen at 87.5%");
        (description.load, description.offered_pps) = (None, Some(2e5));
        (description.policy, description.setting) = ("jsq".to_owned(), "hop=5us".to_owned());
        assert_eq!(description.label(), "jsq, hop=5us at 200000/s");
        assert_eq!(RunDescription::default().label(), "");
    }
}
