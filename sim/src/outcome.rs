//! Outcome of a run, and the row that reports it. Each model returns an [`Outcome`] per seed; [`Row::new`] summarises
//! those of all seeds.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use wedjat_workload::results::{self, RunTasks, Task};

use super::digest::Record;
use super::stats::{Batch, ClassTimes, Recorder, Timeline, ci95, grows, histogram};

/// Tasks that nodes forwarded to and requested from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardedTasks {
    /// Tasks that their first node forwarded to another node.
    pub migrations: u64,
    /// Requests for a task of another node.
    pub steals: u64,
    /// Tasks received on request.
    pub stolen: u64,
}

/// Result of a run with one seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Response times of the measured tasks, in batches of equal size.
    pub batches: Vec<Batch>,
    /// Mean number of tasks in the system, in each fifth of the run.
    pub fifths: [f64; 5],
    /// Mean response times over the run.
    pub timeline: Timeline,
    /// Number of workers or servers.
    pub servers: usize,
    /// Ticks per unit of the report.
    pub ticks_per_unit: f64,
    /// Number of arrived tasks.
    pub tasks: u64,
    /// Messages besides clients' tasks and their replies: probes, reports, signals, benchmark tasks. In model `nodes`
    /// also forwarded tasks, requests for tasks, heartbeats and parameters.
    pub messages: u64,
    /// Decisions that would need two passes through a switch.
    pub resubmits: u64,
    /// Decisions of leaves and spines together.
    pub decisions: u64,
    /// Samples during the run of the longest queue divided by the mean queue, in thousandths.
    pub imbalance: Histogram<u64>,
    /// Lost tasks, including those that the run ended without completing.
    pub lost: u64,
    /// True if full queues rejected too many tasks for a stable run. [`grows`] does not detect this, because a full
    /// queue stops growing. Only model `nodes` sets it.
    pub overflows: bool,
    /// Traffic between nodes, in models with nodes.
    pub passed: Option<ForwardedTasks>,
    /// Response times by class, and slowdowns, if measured.
    pub classes: Option<ClassTimes>,
    /// Digest of the completed tasks and number of answered ones, if requested.
    pub record: Option<Record>,
    /// All tasks, if requested, in the order in which they ended; the tasks of a fabric by part.
    pub ended: Vec<Task>,
}

impl Outcome {
    /// Returns the outcome of a recorded run with one decision per task, and without messages and losses.
    #[must_use]
    pub fn from_recorder(mut recorder: Recorder, servers: usize, ticks_per_unit: f64) -> Self {
        let (tasks, ended) = (recorder.arrived(), recorder.take_ended());
        let classes = recorder.take_classes();
        let (batches, fifths, timeline) = recorder.finish();
        Self {
            batches,
            fifths,
            timeline,
            servers,
            ticks_per_unit,
            tasks,
            messages: 0,
            resubmits: 0,
            decisions: tasks,
            imbalance: histogram(),
            lost: 0,
            overflows: false,
            passed: None,
            classes,
            record: None,
            ended,
        }
    }

    /// Returns true if the queues grew or overflowed during the run.
    #[must_use]
    pub fn is_unstable(&self) -> bool {
        self.overflows || grows(&self.fifths, self.servers)
    }

    /// Adds another part of the same system over the same time, for example another pool. Does not add `record` and
    /// `passed`, which parts do not have.
    pub fn add(&mut self, mut other: Self) {
        self.ended.append(&mut other.ended);
        if let (Some(all), Some(classes)) = (&mut self.classes, &other.classes) {
            all.add(classes);
        }
        self.batches.iter_mut().zip(&other.batches).for_each(|(all, batch)| all.add(batch));
        self.fifths.iter_mut().zip(&other.fifths).for_each(|(all, fifth)| *all += fifth);
        self.timeline.add(&other.timeline);
        self.imbalance.add(&other.imbalance).expect("a histogram that grows");
        self.servers += other.servers;
        self.tasks += other.tasks;
        self.messages += other.messages;
        self.resubmits += other.resubmits;
        self.decisions += other.decisions;
        self.lost += other.lost;
        self.overflows |= other.overflows;
    }
}

/// A row of the report. All fields except `wall_s` and `tasks_per_s` follow from the seed.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // fields are explained in docs/explanation/performance.md
pub struct Row {
    pub model: &'static str,
    pub policy: String,
    pub load: f64,
    pub tasks: u64,
    /// Mean and percentiles of the response time, in `unit`.
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    /// Half width of the 95% confidence interval, over seeds, or over ten batches of a single seed.
    pub mean_ci95: f64,
    pub p99_ci95: f64,
    pub unit: &'static str,
    pub messages_per_task: f64,
    /// Fraction of the decisions that would need two passes through a switch. A task has one decision, or two if a
    /// spine chooses a rack first.
    pub resubmit_fraction: f64,
    /// 99th percentile of the longest queue over the mean queue. Sampled every 50 us, in `ct` every mean
    /// service time, and in `slots` every ten slots.
    pub imbalance_p99: Option<f64>,
    pub lost: u64,
    /// True if most runs are unstable: see [`Outcome::is_unstable`].
    pub unstable: bool,
    pub seeds: usize,
    /// Sum over the runs of all seeds, some of which ran in parallel.
    pub wall_s: Option<f64>,
    /// Simulated tasks per second of `wall_s`.
    pub tasks_per_s: Option<f64>,
    /// See [`ForwardedTasks`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrations_per_task: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steals_per_task: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stolen_per_task: Option<f64>,
    /// See [`Record`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// 99.9th percentile of the slowdown: response time divided by own service time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown_p999: Option<f64>,
    /// 99th percentile of the response time of each class that has tasks, by number of the class. The report has one
    /// key for each.
    #[serde(skip)]
    pub class_p99: Vec<(usize, f64)>,
    /// See [`RowLabels::swept`]; the report has one key for each.
    #[serde(skip)]
    pub swept: Vec<(&'static str, String)>,
}

/// Labels of a row.
#[derive(Clone, Debug)]
pub struct RowLabels {
    /// Name of the model.
    pub model: &'static str,
    /// Name of the policy.
    pub policy: String,
    /// Offered load.
    pub load: f64,
    /// Unit of times.
    pub unit: &'static str,
    /// Flags varied by a sweep, with their values.
    pub swept: Vec<(&'static str, String)>,
}

impl RowLabels {
    /// Returns the tasks of run number `run` for the results.
    #[must_use]
    pub fn run_tasks(&self, run: usize, seed: u64, tasks: Vec<Task>) -> RunTasks {
        let setting = self.swept.iter().map(|(flag, value)| format!("{flag}={value}"));
        let description = results::RunDescription {
            model: self.model.to_owned(),
            policy: self.policy.clone(),
            load: Some(self.load),
            offered_pps: None,
            setting: setting.collect::<Vec<_>>().join(";"),
        };
        RunTasks { run, description, seed, tasks }
    }
}

impl Row {
    /// Summarises the runs of all seeds, which took `wall` together. Panics without a run.
    #[must_use]
    pub fn new(subject: RowLabels, mut outcomes: Vec<Outcome>, wall: Option<Duration>) -> Self {
        let seeds = outcomes.len();
        let unit = outcomes[0].ticks_per_unit;
        // The row is unstable if most of its runs are.
        let unstable = outcomes.iter().filter(|o| o.is_unstable()).count() * 2 > seeds;
        let sum = |field: fn(&Outcome) -> u64| outcomes.iter().map(field).sum::<u64>();
        let (tasks, messages) = (sum(|o| o.tasks), sum(|o| o.messages));
        let (resubmits, decisions) = (sum(|o| o.resubmits), sum(|o| o.decisions));
        let lost = sum(|o| o.lost);
        // The simulator refuses a digest for several seeds, so a record belongs to the only run.
        let record = outcomes[0].record;
        let forwards = outcomes[0].passed.is_some();
        // Returns a number of forwarded tasks divided by the number of all tasks; `None` in models without nodes.
        let per_task = |field: fn(&ForwardedTasks) -> u64| {
            let all: u64 = outcomes.iter().filter_map(|o| o.passed.as_ref()).map(field).sum();
            forwards.then(|| round(all as f64 / tasks.max(1) as f64))
        };
        let migrations_per_task = per_task(|passed| passed.migrations);
        let steals_per_task = per_task(|passed| passed.steals);
        let stolen_per_task = per_task(|passed| passed.stolen);
        let mut imbalance = outcomes[0].imbalance.clone();
        for outcome in &outcomes[1..] {
            imbalance.add(&outcome.imbalance).expect("a histogram that grows");
        }
        let mut classes: Option<ClassTimes> = None;
        for times in outcomes.iter_mut().filter_map(|outcome| outcome.classes.take()) {
            match &mut classes {
                None => classes = Some(times),
                Some(classes) => classes.add(&times),
            }
        }
        let slowdown_p999 = classes
            .as_ref()
            .map(|classes| round(classes.slowdowns.value_at_quantile(0.999) as f64 / 1e3));
        let responses = classes.iter().flat_map(|classes| classes.responses.iter().enumerate());
        let class_p99 = responses.filter(|(_, responses)| !responses.is_empty());
        let class_p99 = class_p99.map(|(class, responses)| {
            (class, round(responses.value_at_quantile(0.99) as f64 / unit))
        });
        let class_p99 = class_p99.collect();
        // Samples for the confidence intervals: the runs of several seeds, or the batches of a single run.
        let samples: Vec<Batch> = match outcomes.len() {
            1 => std::mem::take(&mut outcomes[0].batches),
            _ => outcomes.into_iter().filter_map(|outcome| total(&outcome.batches)).collect(),
        };
        let samples: Vec<_> = samples.into_iter().filter(|b| !b.responses.is_empty()).collect();
        let all = total(&samples);
        let quantile = |q: f64| {
            all.as_ref().map_or(f64::NAN, |all| all.responses.value_at_quantile(q) as f64 / unit)
        };
        let means: Vec<_> = samples.iter().map(|batch| batch.mean() / unit).collect();
        let tails: Vec<_> =
            samples.iter().map(|b| b.responses.value_at_quantile(0.99) as f64 / unit).collect();
        let wall_s = wall.map(|wall| round(wall.as_secs_f64()));
        Self {
            model: subject.model,
            policy: subject.policy,
            load: subject.load,
            tasks,
            mean: round(all.as_ref().map_or(f64::NAN, |all| all.mean() / unit)),
            p50: round(quantile(0.5)),
            p90: round(quantile(0.9)),
            p99: round(quantile(0.99)),
            p999: round(quantile(0.999)),
            mean_ci95: round(ci95(&means)),
            p99_ci95: round(ci95(&tails)),
            unit: subject.unit,
            messages_per_task: round(messages as f64 / tasks.max(1) as f64),
            resubmit_fraction: round(resubmits as f64 / decisions.max(1) as f64),
            imbalance_p99: (!imbalance.is_empty())
                .then(|| round(imbalance.value_at_quantile(0.99) as f64 / 1e3)),
            lost,
            unstable,
            seeds,
            wall_s,
            tasks_per_s: wall.map(|wall| (tasks as f64 / wall.as_secs_f64()).round()),
            migrations_per_task,
            steals_per_task,
            stolen_per_task,
            answered: record.map(|record| record.answered),
            digest: record.map(|record| record.digest.to_string()),
            slowdown_p999,
            class_p99,
            swept: subject.swept,
        }
    }
}

/// Returns the sum of all batches; `None` if there is none.
fn total(batches: &[Batch]) -> Option<Batch> {
    let (first, rest) = batches.split_first()?;
    let mut sum = first.clone();
    rest.iter().for_each(|batch| sum.add(batch));
    Some(sum)
}

/// Rounds to six significant digits.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10.0_f64.powf(5.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}
