//! Conditions of a pool, measured from a log of tasks: rate and dispersion of arrivals, service times by class,
//! workers, and response times.
//!
//! A log may have several runs (sets of conditions), a run several seeds (repetitions), and a seed several pools. The
//! simulator of the advice gets these conditions, and its result is compared with the response times.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use wedjat_workload::arrival::Arrivals;
use wedjat_workload::results::run::Estimate;
use wedjat_workload::results::{Run, RunDescription, RunTasks, Task, task};

/// Smallest number of measured tasks: ten beyond the 99th percentile.
pub const TASKS_MIN: usize = 1000;
/// Largest number of samples of service times, apart from one more for each class. More times are averaged in groups of
/// neighbours.
const SAMPLES_MAX: usize = 1 << 14;
/// Mean number of tasks in a window of [`Gaps::dispersion`].
const WINDOW_TASKS: usize = 100;
/// Number of windows that a log of few tasks gets by shorter windows. Only the whole ones of each seed count.
const WINDOWS_MIN: usize = 20;
/// Picoseconds per nanosecond.
const PS_PER_NS: f64 = 1e3;
/// Picoseconds per second.
const PS_PER_S: f64 = 1e12;

/// Gaps between the due times of consecutive tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct Gaps {
    /// Number of gaps.
    pub count: usize,
    /// Tasks per second.
    pub rate_pps: f64,
    /// Squared coefficient of variation: variance over squared mean. 1 for Poisson arrivals.
    pub variation: f64,
    /// Index of dispersion: variance over mean of the number of tasks in windows of equal length. 1 for Poisson
    /// arrivals. Unlike `variation` it includes the correlation of gaps.
    pub dispersion: f64,
    /// Number of windows.
    windows: usize,
    /// All gaps in picoseconds, in ascending order.
    sorted_ps: Vec<u64>,
}

impl Gaps {
    /// Measures due times in picoseconds, one list for each seed of a run. No gap joins two lists. `None` if all tasks
    /// of each list are due at one time.
    #[must_use]
    pub fn new(runs: Vec<Vec<u64>>) -> Option<Self> {
        let mut runs = runs;
        runs.iter_mut().for_each(|due| due.sort_unstable());
        let gaps_of = |due: &[u64]| due.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mut gaps: Vec<u64> =
            runs.iter().flat_map(|due: &Vec<u64>| -> Vec<u64> { gaps_of(due) }).collect();
        gaps.sort_unstable();
        let (mean, variance) = moments(gaps.iter().map(|&gap| gap as f64));
        if gaps.is_empty() || mean == 0.0 {
            return None;
        }
        // Few tasks need shorter windows, so that about `WINDOWS_MIN` fit in. Many short lists need windows of at most
        // half a list, because a window lies within one list.
        let of_half_a_list = gaps.len() / runs.len() / 2;
        let tasks_per_window =
            WINDOW_TASKS.min(gaps.len() / WINDOWS_MIN).min(of_half_a_list).max(1);
        let window_ps = (mean * tasks_per_window as f64).ceil() as u64;
        let counts: Vec<f64> = runs.iter().flat_map(|due| window_counts(due, window_ps)).collect();
        let (mean_count, count_variance) = moments(counts.iter().copied());
        Some(Self {
            count: gaps.len(),
            rate_pps: PS_PER_S / mean,
            variation: variance / (mean * mean),
            dispersion: count_variance / mean_count,
            windows: counts.len(),
            sorted_ps: gaps,
        })
    }

    /// Returns the arrival process of the simulator with this variation of gaps: constant, Poisson, bursts or
    /// log-normal gaps. At equal variation, bursts have about half the dispersion of independent log-normal gaps,
    /// because a long gap follows each burst. Bursts need a variation of at least 3, and must be nearer to the measured
    /// dispersion.
    #[must_use]
    pub fn process(&self) -> Arrivals {
        if self.variation < 0.01 {
            return Arrivals::Constant;
        }
        if self.is_poisson() {
            return Arrivals::Poisson;
        }
        // Ratio of a process's dispersion to the measured one, as a logarithm.
        let distance = |dispersion: f64| (self.dispersion / dispersion).ln().abs();
        // Bursts of n tasks have the dispersion n. Independent gaps have a dispersion equal to their variation.
        let burst = self.burst_tasks();
        if burst >= 2.0 && distance(burst) < distance(self.variation) {
            return Arrivals::Bursts {
                tasks: burst.round() as u32,
                mean_ns: self.gap_in_burst_ns(),
            };
        }
        // The variation of log-normal gaps is exp(sigma^2) - 1. The limit is far beyond real arrivals.
        Arrivals::LogNormal { sigma: self.variation.ln_1p().sqrt().min(10.0) }
    }

    /// Returns true if variation and dispersion differ from 1 by no more than chance: two standard errors and 5%.
    fn is_poisson(&self) -> bool {
        let near_one =
            |value: f64, variance: f64| (value - 1.0).abs() <= 0.05 + 2.0 * variance.sqrt();
        // Bounds of the variances of both estimates for Poisson arrivals.
        near_one(self.variation, 8.0 / self.count as f64)
            && near_one(self.dispersion, 2.0 / self.windows as f64)
    }

    /// Returns the number of tasks of a burst that gives the measured variation. Short bursts of n tasks have the
    /// variation 2n - 1.
    fn burst_tasks(&self) -> f64 {
        f64::midpoint(self.variation, 1.0)
    }

    /// Returns the mean gap within bursts in nanoseconds. The mean of exponential gaps is their median over ln 2.
    fn gap_in_burst_ns(&self) -> f64 {
        // Fraction of the gaps that are within bursts: n - 1 of n. These are the shortest, so that their median is in
        // the middle of the first part of the sorted gaps.
        let within = 1.0 - 1.0 / self.burst_tasks();
        let median = self.sorted_ps[(self.count as f64 * within / 2.0) as usize];
        let mean_ns = median as f64 / PS_PER_NS / std::f64::consts::LN_2;
        // Longer gaps than the mean of all gaps would contradict the rate.
        mean_ns.min(1e9 / self.rate_pps)
    }

    /// Returns true if the dispersion exceeds twice the value of independent gaps. The rate then changes over time.
    #[must_use]
    pub fn is_correlated(&self) -> bool {
        self.dispersion > 2.0 * self.variation.max(1.0)
    }
}

/// Returns the number of due times in each whole window from the first due time on.
fn window_counts(due: &[u64], window_ps: u64) -> Vec<f64> {
    let (Some(first), Some(last)) = (due.first(), due.last()) else { return Vec::new() };
    let mut counts = vec![0.0; ((last - first) / window_ps) as usize];
    for at in due {
        // The last window is not whole, and has no counter.
        if let Some(count) = counts.get_mut(((at - first) / window_ps) as usize) {
            *count += 1.0;
        }
    }
    counts
}

/// Returns mean and variance; NaN without values.
fn moments(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    (mean, values.map(|value| (value - mean).powi(2)).sum::<f64>() / count)
}

/// Service times of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceClass {
    /// Class; 0 if unknown.
    pub class: u16,
    /// Fraction of the tasks.
    pub share: f64,
    /// Mean in nanoseconds.
    pub mean_ns: f64,
    /// 99th percentile in nanoseconds.
    pub p99_ns: f64,
}

/// Distribution of service times, by class.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceTimes {
    /// Number of tasks.
    pub tasks: usize,
    /// Classes in ascending order.
    pub classes: Vec<ServiceClass>,
    /// Service times in nanoseconds with their classes. Each is the mean of equally many tasks, except the last one of
    /// each class, which may stand for fewer.
    pub samples: Vec<(f64, u16)>,
}

impl ServiceTimes {
    /// Measures service times, given as class and nanoseconds. Averages neighbours in sorted order, so that the samples
    /// keep the tail of each class. `None` without a time above 0.
    #[must_use]
    pub fn new(times: &[(u16, f64)]) -> Option<Self> {
        let mut by_class = BTreeMap::<u16, Vec<f64>>::new();
        times.iter().for_each(|&(class, ns)| by_class.entry(class).or_default().push(ns));
        // Number of neighbouring times that one sample averages.
        let group = times.len().div_ceil(SAMPLES_MAX).max(1);
        let (mut classes, mut samples) = (Vec::new(), Vec::new());
        for (class, mut times_ns) in by_class {
            times_ns.sort_by(f64::total_cmp);
            let rank = (times_ns.len() * 99).div_ceil(100);
            classes.push(ServiceClass {
                class,
                share: times_ns.len() as f64 / times.len() as f64,
                mean_ns: mean(&times_ns),
                p99_ns: times_ns[rank - 1],
            });
            samples.extend(times_ns.chunks(group).map(|group| (mean(group), class)));
        }
        let is_busy = samples.iter().any(|(ns, _)| *ns > 0.0);
        is_busy.then_some(Self { tasks: times.len(), classes, samples })
    }
}

/// Returns the mean; NaN without values.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Measurement of a log of tasks.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Description of the run: its model or program, and its policy.
    pub subject: RunDescription,
    /// Number of measured tasks.
    pub tasks: usize,
    /// Arrivals.
    pub gaps: Gaps,
    /// Service times; `None` if the log has none above 0.
    pub service: Option<ServiceTimes>,
    /// Number of workers that answered; 0 if the log names none.
    pub workers: usize,
    /// Mean response time in microseconds.
    pub mean_us: Estimate,
    /// 99th percentile of the response time in microseconds.
    pub p99_us: Estimate,
}

impl Measurement {
    /// Reads a log and measures one pool of one run. A log of several runs or pools needs their numbers.
    ///
    /// # Errors
    /// The file, the reason and the fix.
    pub fn read(path: &Path, run: Option<usize>, pool: Option<u32>) -> Result<Self, String> {
        let runs = task::read(path)?;
        Self::of(runs, run, pool).map_err(|reason| format!("{}: {reason}", path.display()))
    }

    /// Measures one pool of one run, over all seeds of the run.
    ///
    /// # Errors
    /// If the run or pool is unclear or missing, or has too few tasks: the reason and the fix.
    pub(super) fn of(
        runs: Vec<RunTasks>,
        run: Option<usize>,
        pool: Option<u32>,
    ) -> Result<Self, String> {
        let run = only("run", run, runs.iter().map(|run| run.run).collect())?;
        let mut runs: Vec<_> = runs.into_iter().filter(|tasks| tasks.run == run).collect();
        let pools = runs.iter().flat_map(|run| &run.tasks).map(|task| task.pool).collect();
        let pool = only("pool", pool, pools)?;
        runs.iter_mut().for_each(|run| run.tasks.retain(|task| task.pool == pool && task.measured));
        let tasks = || runs.iter().flat_map(|run| &run.tasks);
        let count = tasks().count();
        if count < TASKS_MIN {
            return Err(format!(
                "{count} measured tasks; at least {TASKS_MIN} are needed for a 99th percentile; log a longer run"
            ));
        }
        let due = |run: &RunTasks| run.tasks.iter().map(|task| task.scheduled_ps).collect();
        let gaps = Gaps::new(runs.iter().map(due).collect()).ok_or(
            "all tasks are due at one time; the column scheduled_ns must have their due times",
        )?;
        let time = |task: &Task| Some((task.class, task.service_ps? as f64 / PS_PER_NS));
        let service = ServiceTimes::new(&tasks().filter_map(time).collect::<Vec<_>>());
        let workers = tasks().filter_map(|task| task.worker).collect::<BTreeSet<_>>().len();
        let subject = runs[0].description.clone();
        let merge = |mut all: Run, seed: Run| {
            all.add_seed(seed);
            all
        };
        let responses = runs.into_iter().map(Run::new).reduce(merge).ok_or("it has no run")?;
        let (mean_us, p99_us) = (responses.mean(), responses.p99());
        Ok(Self { subject, tasks: count, gaps, service, workers, mean_us, p99_us })
    }
}

/// Returns the number `selected`, or else the only one of `numbers`. `flag` is the kind of number (`run` or `pool`),
/// and the option that selects one.
///
/// # Errors
/// If the number does not exist, or there are several and none is selected.
pub fn only<T: Copy + Ord + std::fmt::Display>(
    flag: &str,
    selected: Option<T>,
    numbers: BTreeSet<T>,
) -> Result<T, String> {
    let list = || numbers.iter().map(T::to_string).collect::<Vec<_>>().join(", ");
    match (selected, numbers.first()) {
        (Some(number), _) if numbers.contains(&number) => Ok(number),
        (Some(number), _) => Err(format!("it has no {flag} {number}; --{flag} may be {}", list())),
        (None, Some(number)) if numbers.len() == 1 => Ok(*number),
        _ => Err(format!("it has {} {flag}s; give one of {} as --{flag}", numbers.len(), list())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wedjat_workload::arrival::Schedule;
    use wedjat_workload::results::Status;
    use wedjat_workload::seed::StreamSeed;

    /// Returns due times in picoseconds of an arrival process with a million tasks a second.
    fn due(arrivals: &str, tasks: usize) -> Vec<u64> {
        let arrivals: Arrivals = arrivals.parse().unwrap();
        let mut schedule = Schedule::new(&arrivals, 1e6, PS_PER_S).unwrap();
        let mut stream = StreamSeed::derive(3, "test", 0).stream();
        (0..tasks).map(|_| schedule.advance(&mut stream)).collect()
    }

    /// Returns the gaps of 50,000 tasks of an arrival process.
    fn gaps(arrivals: &str) -> Gaps {
        Gaps::new(vec![due(arrivals, 50_000)]).unwrap()
    }

    #[test]
    fn dispersion_tells_arrivals_apart() {
        for (arrivals, variation, dispersion) in [
            ("poisson", 1.0, 1.0),
            ("constant", 0.0, 0.0),
            // Bursts of n: variation 2n - 1, dispersion n.
            ("bursts(8,1ns)", 15.0, 8.0),
            // A log-normal gap has the variation exp(sigma^2) - 1.
            ("lognormal(0.8)", 0.896, 0.896),
        ] {
            let gaps = gaps(arrivals);
            assert!((gaps.rate_pps / 1e6 - 1.0).abs() < 0.02, "{arrivals}: {}", gaps.rate_pps);
            let near = |found: f64, value: f64| (found - value).abs() <= 0.15 * value + 0.02;
            assert!(near(gaps.variation, variation), "{arrivals}: {}", gaps.variation);
            assert!(near(gaps.dispersion, dispersion), "{arrivals}: {}", gaps.dispersion);
        }
    }

    #[test]
    fn measured_process_equals_the_given_one() {
        assert_eq!(gaps("poisson").process(), Arrivals::Poisson);
        assert_eq!(gaps("constant").process(), Arrivals::Constant);
        let Arrivals::Bursts { tasks, mean_ns } = gaps("bursts(8,20ns)").process() else {
            panic!()
        };
        assert!(
            (7..=9).contains(&tasks) && (mean_ns / 20.0 - 1.0).abs() < 0.1,
            "{tasks} {mean_ns}"
        );
        let Arrivals::LogNormal { sigma } = gaps("lognormal(1.3)").process() else { panic!() };
        assert!((sigma - 1.3).abs() < 0.1, "{sigma}");
    }

    #[test]
    fn correlated_arrivals_are_detected() {
        // Every 500 tasks, the gaps become 9 times as long or return to their length. Within each part they are
        // exponential.
        let (mut now, mut last, mut slow) = (0, 0, Vec::new());
        for (index, at) in due("poisson", 50_000).into_iter().enumerate() {
            now += (at - last) * if index / 500 % 2 == 0 { 9 } else { 1 };
            last = at;
            slow.push(now);
        }
        assert!(Gaps::new(vec![slow]).unwrap().is_correlated());
        assert!(!gaps("poisson").is_correlated() && !gaps("bursts(8,1ns)").is_correlated());
    }

    #[test]
    fn short_seeds_still_have_windows() {
        // 40 seeds of 30 tasks have 1160 gaps. A window of a twentieth of them is longer than a seed.
        let due = due("poisson", 1200);
        let seeds = due.chunks(30).map(<[u64]>::to_vec).collect();
        let gaps = Gaps::new(seeds).unwrap();
        assert!(gaps.windows >= 20 && gaps.dispersion.is_finite(), "{gaps:?}");
    }

    #[test]
    fn service_times_keep_classes_and_tail() {
        // 90% of the tasks have class 1 and 10 us, 10% class 2 and 101 to 200 us.
        let time = |n: u32| match n % 10 {
            0 => (2, f64::from(101 + n / 10 % 100) * 1e3),
            _ => (1, 1e4),
        };
        let times: Vec<_> = (0..100_000).map(time).collect();
        let measured = ServiceTimes::new(&times).unwrap();
        // The times of class 2 are spread evenly over 101 to 200 us: 99% take at most 199 us.
        let [short, long] = &measured.classes[..] else { panic!("{measured:?}") };
        assert_eq!((short.class, short.share, short.mean_ns), (1, 0.9, 1e4));
        assert_eq!((long.class, long.p99_ns), (2, 199e3));
        assert!(measured.samples.len() <= SAMPLES_MAX + measured.classes.len());
        let sampled = mean(&measured.samples.iter().map(|(ns, _)| *ns).collect::<Vec<_>>());
        let of_all = mean(&times.iter().map(|(_, ns)| *ns).collect::<Vec<_>>());
        assert!((sampled / of_all - 1.0).abs() < 1e-3, "{sampled} {of_all}");
        assert!(measured.samples.iter().any(|(ns, _)| *ns > 199e3), "the longest times are kept");
        assert_eq!(ServiceTimes::new(&[(1, 0.0)]), None);
    }

    /// Returns a log with `tasks` tasks, one each microsecond, with a response time of 3 us. The first tenth is the
    /// warm-up and is not measured.
    fn log(run: usize, seed: u64, pool: u32, tasks: u64) -> RunTasks {
        let task = |number| Task {
            number,
            pool,
            class: 1,
            worker: Some((number % 4) as u32),
            scheduled_ps: number * 1_000_000,
            sent_ps: Some(number * 1_000_000),
            service_ps: Some(2_000_000),
            response_ps: Some(3_000_000),
            status: Status::Answered,
            measured: number >= tasks / 10,
            late: false,
        };
        let tasks = (0..tasks).map(task).collect();
        RunTasks { run, description: RunDescription::default(), seed, tasks }
    }

    #[test]
    fn seeds_of_a_run_are_pooled() {
        let runs = vec![log(1, 1, 1, 2000), log(1, 2, 1, 2000), log(2, 1, 1, 9000)];
        let measured = Measurement::of(runs, Some(1), None).unwrap();
        // Run 1 has two seeds with 1800 measured tasks each. No gap joins two seeds.
        assert_eq!((measured.tasks, measured.gaps.count, measured.workers), (3600, 3598, 4));
        assert!((measured.gaps.rate_pps - 1e6).abs() < 1.0 && measured.gaps.variation == 0.0);
        assert!((measured.p99_us.value - 3.0).abs() < 0.01);
    }

    #[test]
    fn ambiguous_and_short_logs_are_refused() {
        let refusal = |runs, run, pool| Measurement::of(runs, run, pool).unwrap_err();
        let two = || vec![log(1, 1, 1, 2000), log(3, 1, 1, 2000)];
        assert!(refusal(two(), None, None).contains("2 runs; give one of 1, 3 as --run"));
        assert!(refusal(two(), Some(2), None).contains("no run 2"));
        let mut pools = log(1, 1, 1, 2000);
        pools.tasks.extend(log(1, 1, 2, 2000).tasks);
        assert!(refusal(vec![pools], None, None).contains("--pool"));
        assert!(refusal(vec![log(1, 1, 1, 900)], None, None).contains("810 measured tasks"));
    }
}
