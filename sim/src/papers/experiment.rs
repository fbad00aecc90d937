//! Common parts of experiments whose tasks have types: workloads, figures of a run, and the search for a sustained
//! load.

use hdrhistogram::Histogram;
use wedjat_workload::arrival::Arrivals;
use wedjat_workload::service::Service;

use super::super::ct::{self, DispatcherKind};
use super::super::engine::SimTask;
use super::super::hop::TICKS_PER_US;
use super::super::outcome::Outcome;
use super::super::stats::{Observer, histogram, record};
use super::WARMUP;

/// Step of the search for a sustained load.
const LOAD_STEP: f64 = 0.005;

/// Task type of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskType {
    /// Constant service time in microseconds.
    pub us: f64,
    /// Fraction of the tasks.
    pub share: f64,
}

/// Creates a task type.
pub(super) const fn task_type(us: f64, share: f64) -> TaskType {
    TaskType { us, share }
}

/// Returns the service times of a workload. The class of a type is its index plus one.
pub(super) fn service_of(types: &[TaskType]) -> Service {
    let parts = types.iter().map(|TaskType { us, share }| format!("{share}*fixed({us}us)"));
    let text = format!("mix({})", parts.collect::<Vec<_>>().join(", "));
    text.parse().expect("shares sum to 1, and times are above 0")
}

/// Returns the index of a task's type, for classes from 1 on.
#[inline]
pub(super) fn type_of<T>(task: &SimTask<T>) -> usize {
    usize::from(task.class).saturating_sub(1)
}

/// Scheduling delays of the measured tasks, from arrival to the start of the service.
#[derive(Clone, Debug)]
pub struct Delays {
    /// Histogram in ticks.
    ticks: Histogram<u64>,
    /// Warm-up: number of tasks, at the start of the run, that are not measured.
    warmup: u64,
}

impl Delays {
    /// Creates an empty histogram for a run of `tasks` tasks.
    pub(super) fn new(tasks: u64) -> Self {
        Self { ticks: histogram(), warmup: (tasks as f64 * WARMUP) as u64 }
    }

    /// Records the delay of a task that has started, unless it belongs to the warm-up.
    #[inline]
    pub(super) fn add<T>(&mut self, task: &SimTask<T>) {
        if task.number >= self.warmup {
            record(&mut self.ticks, task.started - task.arrived);
        }
    }

    /// Returns a quantile in microseconds.
    #[must_use]
    pub fn us(&self, quantile: f64) -> f64 {
        self.ticks.value_at_quantile(quantile) as f64 / TICKS_PER_US
    }

    /// Returns the number of measured tasks.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ticks.len()
    }
}

/// Run of `ct` with one leaf's policy `jbsq`: a central queue, and at most `k` tasks at each worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jbsq {
    /// Number of workers.
    pub workers: usize,
    /// Maximum number of tasks at a worker.
    pub k: u32,
    /// Delay in nanoseconds between leaf and workers, each way.
    pub delay_ns: f64,
    /// Offered work as a fraction of the workers' capacity.
    pub load: f64,
    /// Number of tasks.
    pub tasks: u64,
    /// Seed of all streams.
    pub seed: u64,
}

/// Runs `ct` with `jbsq`, and records all tasks.
///
/// # Errors
/// If the policy's parameters are invalid.
pub(super) fn jbsq(run: &Jbsq, service: &Service) -> Result<Outcome, String> {
    let &Jbsq { workers, k, delay_ns, load, tasks, seed } = run;
    let outcome = ct::run(&ct::Config {
        speeds: vec![1.0; workers],
        speed_unit: 1.0,
        dispatchers: 1,
        kind: DispatcherKind::Cores,
        policy: format!("jbsq(k={k})").parse().map_err(|error| format!("jbsq: {error}"))?,
        service: service.clone(),
        arrivals: Arrivals::Poisson,
        load,
        delay_ns,
        probes_at_once: false,
        script: Vec::new(),
        tasks,
        warmup: WARMUP,
        digest: false,
        sharing: None,
        measures_classes: true,
        seed,
        observer: Observer { records_tasks: true, ..Observer::hidden() },
    })?;
    // The model's unit is the mean service time; figures are in microseconds.
    let ticks_per_unit = outcome.ticks_per_unit / service.mean_ns() * 1e3;
    Ok(Outcome { ticks_per_unit, ..outcome })
}

/// Returns a quantile of the scheduling delays of the recorded tasks, in microseconds. Assumes that response times end
/// with the service.
pub(super) fn delay_us(outcome: &Outcome, quantile: f64) -> f64 {
    let mut delays = histogram();
    for task in outcome.ended.iter().filter(|task| task.measured) {
        if let (Some(response), Some(service)) = (task.response_ps, task.service_ps) {
            record(&mut delays, response.saturating_sub(service));
        }
    }
    delays.value_at_quantile(quantile) as f64 / TICKS_PER_US
}

/// Returns a quantile of the slowdowns; NaN if the run did not measure them.
pub(super) fn slowdown(outcome: &Outcome, quantile: f64) -> f64 {
    let classes = outcome.classes.as_ref();
    classes.map_or(f64::NAN, |classes| classes.slowdowns.value_at_quantile(quantile) as f64 / 1e3)
}

/// Returns `figure` if the run was stable; infinity if its queues grew.
pub(super) fn stable(outcome: &Outcome, figure: f64) -> f64 {
    if outcome.is_unstable() { f64::INFINITY } else { figure }
}

/// Returns a quantile of the response times of a type, in microseconds; NaN if it has no task.
pub(super) fn type_us(outcome: &Outcome, kind: usize, quantile: f64) -> f64 {
    let classes = outcome.classes.as_ref();
    let responses = classes.and_then(|classes| classes.responses.get(kind + 1));
    let responses = responses.filter(|responses| !responses.is_empty());
    responses.map_or(f64::NAN, |responses| {
        responses.value_at_quantile(quantile) as f64 / outcome.ticks_per_unit
    })
}

/// Returns the highest load, in steps of half a per cent up to 1, at which `figure` is at most `target`. Assumes that
/// the figure grows with the load. Returns 0 if no load meets the target.
pub(super) fn sustained_load(target: f64, figure: impl Fn(f64) -> f64) -> f64 {
    let load = |step: u32| f64::from(step) * LOAD_STEP;
    let (mut low, mut high) = (0, (1.0 / LOAD_STEP).round() as u32 + 1);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if figure(load(middle)) <= target {
            low = middle;
        } else {
            high = middle;
        }
    }
    load(low)
}

/// Returns the pair with the highest ratio of its first to its second value, with its load. Excludes pairs with a value
/// that is not finite.
pub(super) fn largest_ratio(loads: &[f64], pair: impl Fn(f64) -> (f64, f64)) -> (f64, (f64, f64)) {
    let pairs = loads.iter().map(|&load| (load, pair(load)));
    let pairs = pairs.filter(|(_, (first, second))| first.is_finite() && second.is_finite());
    let ratio = |(_, (first, second)): &(f64, (f64, f64))| first / second;
    let best = pairs.max_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    best.unwrap_or((f64::NAN, (f64::NAN, f64::NAN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_finds_the_highest_load() {
        assert!((sustained_load(3.0, |load| 10.0 * load) - 0.3).abs() < 1e-9);
        assert!((sustained_load(20.0, |load| load) - 1.0).abs() < 1e-9);
        assert!(sustained_load(0.0, |load| load) < 1e-9);
    }

    #[test]
    fn largest_ratio_keeps_its_load() {
        let (load, pair) = largest_ratio(&[0.1, 0.5, 0.9], |load| (load * (1.0 - load), 0.5));
        assert!((load - 0.5).abs() < 1e-9 && (pair.0 - 0.25).abs() < 1e-9);
    }
}
