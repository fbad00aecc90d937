//! Results of simulated runs, as in figures 3a and 3b and in tables 2 and 3 of ASA_X's paper (arXiv 2401.09706).
//!
//! A host is a job with cores of its own. A guest is a second job that shares a host's cores. An allocation is the
//! cores that a host has, alone or with its guest, and their memory. A run simulates all jobs under one scheme with one
//! seed.

use serde::Serialize;

use crate::chooser::Round;

use super::jobs::Job;
use super::{Arm, Workflow};

/// CPU and memory use of a job over time, for the means of table 2.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    /// Run time in seconds. A guest's own suspension does not count.
    seconds: f64,
    /// Integral over time of the job's own busy cores, in core seconds.
    busy: f64,
    /// Integral over time of the fraction of the allocation's cores that host and guest use together, in seconds.
    cpu: f64,
    /// Integral over time of the fraction of the allocation's memory that host and guest use together, in seconds.
    memory: f64,
}

impl Usage {
    /// Adds `seconds` in which the job itself had `busy` busy cores, and the whole allocation used these
    /// fractions of CPU and memory.
    pub(super) fn add(&mut self, seconds: f64, busy: f64, cpu: f64, memory: f64) {
        self.seconds += seconds;
        self.busy += busy * seconds;
        self.cpu += cpu * seconds;
        self.memory += memory * seconds;
    }
}

/// A completed job.
#[derive(Clone, Debug)]
pub(super) struct JobRecord {
    /// Index of the job in the list of submitted jobs.
    pub job: usize,
    /// Start, in seconds after the start of the run.
    pub started: f64,
    /// End, in seconds after the start of the run.
    pub ended: f64,
    /// Its use of CPU and memory.
    pub usage: Usage,
}

/// Mean and standard deviation of a population.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MeanDeviation {
    /// The mean.
    pub mean: f64,
    /// The standard deviation: of these values, not an estimate for others.
    pub deviation: f64,
}

impl MeanDeviation {
    /// Computes both over `values`. Without values, both are 0.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        Self { mean, deviation: variance.sqrt() }
    }
}

/// Results of a workflow's jobs in a run: a row of table 2. Without completed jobs, all numbers are 0.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PerWorkflow {
    /// The workflow.
    pub workflow: Workflow,
    /// Hours from start to end of a job, over the jobs. They include the time for which a guest is suspended.
    pub runtime_h: MeanDeviation,
    /// Used fraction of the cores of its jobs' allocations, by hosts and guests together. A mean weighted by the jobs'
    /// run times, without suspension.
    pub cpu: f64,
    /// Used fraction of the memory of these allocations, with the same weights.
    pub memory: f64,
}

/// Final state of a learner of ASA_X. It draws the share of a guest on the hosts of one workflow, from the advice of
/// experts. At the end of each learning round it changes the experts' weights.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Learner {
    /// Workflow of the hosts whose guests it admits.
    pub workflow: Workflow,
    /// Number of decisions.
    pub decisions: u64,
    /// Names of the experts.
    pub experts: Vec<String>,
    /// Last completed learning round.
    pub last: Option<Round>,
}

/// Results of one run, with means over its completed jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunResults {
    /// Cores of the cluster.
    pub cores: u32,
    /// Sharing scheme, one arm of the experiment.
    pub arm: Arm,
    /// Number of completed jobs.
    pub jobs: usize,
    /// Mean hours from submission to start.
    pub waiting_h: f64,
    /// Mean hours from submission to end.
    pub response_h: f64,
    /// Hours until the last job ended.
    pub makespan_h: f64,
    /// Used fraction of the core time of the whole cluster until the last job ended.
    pub core_use: f64,
    /// Mean relative increase of a job's time from start to end over its standalone run time.
    pub overhead: f64,
    /// Results by workflow.
    pub workflows: Vec<PerWorkflow>,
    /// Final states of the learners; none in schemes without ASA_X.
    pub learners: Vec<Learner>,
}

/// Seconds in an hour.
const HOUR: f64 = 3600.0;

/// Returns `part` divided by `whole`; 0 if `whole` is 0, as without completed jobs.
fn fraction(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Computes the results of one run from the submitted jobs, the records of the completed ones, and the final learners.
pub(super) fn run_results(
    cores: u32,
    arm: Arm,
    jobs: &[Job],
    finished: &[JobRecord],
    learners: Vec<Learner>,
) -> RunResults {
    let mean = |value_of: &dyn Fn(&JobRecord) -> f64| {
        MeanDeviation::of(&finished.iter().map(value_of).collect::<Vec<_>>()).mean
    };
    // All jobs are submitted at time 0.
    let makespan = finished.iter().map(|record| record.ended).fold(0.0, f64::max);
    let busy: f64 = finished.iter().map(|record| record.usage.busy).sum();
    let workflows = Workflow::ALL.into_iter().map(|workflow| {
        let records: Vec<_> =
            finished.iter().filter(|record| jobs[record.job].workflow == workflow).collect();
        let runtimes: Vec<_> =
            records.iter().map(|record| (record.ended - record.started) / HOUR).collect();
        let total = |value_of: fn(&Usage) -> f64| -> f64 {
            records.iter().map(|record| value_of(&record.usage)).sum()
        };
        let seconds = total(|usage| usage.seconds);
        PerWorkflow {
            workflow,
            runtime_h: MeanDeviation::of(&runtimes),
            cpu: fraction(total(|usage| usage.cpu), seconds),
            memory: fraction(total(|usage| usage.memory), seconds),
        }
    });
    RunResults {
        cores,
        arm,
        jobs: finished.len(),
        waiting_h: mean(&|record| record.started / HOUR),
        response_h: mean(&|record| record.ended / HOUR),
        makespan_h: makespan / HOUR,
        core_use: fraction(busy, f64::from(cores) * makespan),
        overhead: mean(&|record| (record.ended - record.started) / jobs[record.job].alone - 1.0),
        workflows: workflows.collect(),
        learners,
    }
}

/// Runs of one scheme and one cluster size with several seeds. The numbers are means and standard deviations over the
/// runs, of the runs' own results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterReport {
    /// Cores of the cluster.
    pub cores: u32,
    /// Sharing scheme, one arm of the experiment.
    pub arm: Arm,
    /// Mean hours from submission to start.
    pub waiting_h: MeanDeviation,
    /// Mean hours from submission to end.
    pub response_h: MeanDeviation,
    /// Hours until the last job ended.
    pub makespan_h: MeanDeviation,
    /// Used fraction of the core time of the whole cluster until the last job ended.
    pub core_use: MeanDeviation,
    /// Mean relative increase of a job's time from start to end over its standalone run time.
    pub overhead: MeanDeviation,
    /// Results of the runs, in the order of the seeds.
    pub runs: Vec<RunResults>,
}

impl ClusterReport {
    /// Summarises runs of one scheme and size. Returns `None` without runs.
    #[must_use]
    pub fn of(runs: Vec<RunResults>) -> Option<Self> {
        let over_runs = |value_of: fn(&RunResults) -> f64| {
            MeanDeviation::of(&runs.iter().map(value_of).collect::<Vec<_>>())
        };
        let first = runs.first()?;
        Some(Self {
            cores: first.cores,
            arm: first.arm,
            waiting_h: over_runs(|run| run.waiting_h),
            response_h: over_runs(|run| run.response_h),
            makespan_h: over_runs(|run| run.makespan_h),
            core_use: over_runs(|run| run.core_use),
            overhead: over_runs(|run| run.overhead),
            runs,
        })
    }
}

/// Formats the reports as text: the numbers of table 3 and figure 3a, then those of table 2 and figure 3b. All are
/// means over the runs.
#[must_use]
pub fn tables(reports: &[ClusterReport]) -> String {
    let mut text = format!(
        "{:>5} {:14} {:>9} {:>10} {:>10} {:>8} {:>8}\n",
        "cores", "arm", "waiting h", "response h", "makespan h", "core use", "overhead"
    );
    for report in reports {
        text += &format!(
            "{:5} {:14} {:9.2} {:10.2} {:10.2} {:7.0}% {:7.0}%\n",
            report.cores,
            report.arm.name(),
            report.waiting_h.mean,
            report.response_h.mean,
            report.makespan_h.mean,
            100.0 * report.core_use.mean,
            100.0 * report.overhead.mean,
        );
    }
    text += &format!("\n{:>5} {:14}", "cores", "arm");
    for workflow in Workflow::ALL {
        text += &format!(" {:>22}", format!("{} h, cpu, mem", workflow.name()));
    }
    text.push('\n');
    for report in reports {
        text += &format!("{:5} {:14}", report.cores, report.arm.name());
        for index in 0..Workflow::ALL.len() {
            // The workflows of each run are in the order of `Workflow::ALL`.
            let mean = |value_of: fn(&PerWorkflow) -> f64| {
                MeanDeviation::of(
                    &report
                        .runs
                        .iter()
                        .map(|run| value_of(&run.workflows[index]))
                        .collect::<Vec<_>>(),
                )
                .mean
            };
            let runtime = mean(|row| row.runtime_h.mean);
            let (cpu, memory) = (100.0 * mean(|row| row.cpu), 100.0 * mean(|row| row.memory));
            text += &format!(" {:>22}", format!("{runtime:.2} {cpu:.0}% {memory:.0}%"));
        }
        text.push('\n');
    }
    text
}
