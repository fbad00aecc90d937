//! Results of a run: figures 3a and 3b, and tables 2 and 3 of ASA_X's paper (arXiv 2401.09706).
//!
//! A host is a job with cores of its own. A guest is a second job that shares a host's cores. An allocation is the
//! cores of a host and its guest.

use serde::Serialize;

use crate::chooser::Round;

use super::jobs::Job;
use super::{Arm, Workflow};

/// CPU and memory use of a job over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    /// Run time in seconds.
    seconds: f64,
    /// Sum of the job's own busy cores times seconds.
    busy: f64,
    /// Sum of the used CPU fraction of the allocation, times seconds.
    cpu: f64,
    /// Sum of the used memory fraction of the allocation, times seconds.
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
    /// Index of the job.
    pub job: usize,
    /// Start in seconds.
    pub started: f64,
    /// End in seconds.
    pub ended: f64,
    /// Its use of CPU and memory.
    pub usage: Usage,
}

/// Mean and standard deviation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MeanDeviation {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
}

impl MeanDeviation {
    /// Computes both over `values`.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        Self { mean, deviation: variance.sqrt() }
    }
}

/// A row of table 2.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PerWorkflow {
    /// The workflow.
    pub workflow: Workflow,
    /// Hours from start to end of a job.
    pub runtime_h: MeanDeviation,
    /// Used fraction of its jobs' cores over time, by hosts and guests together.
    pub cpu: f64,
    /// Used fraction of the memory of these cores over time, by hosts and guests together.
    pub memory: f64,
}

/// Final state of a learner.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Learner {
    /// Workflow of the hosts for which it decides.
    pub workflow: Workflow,
    /// Number of decisions.
    pub decisions: u64,
    /// Names of the experts.
    pub experts: Vec<String>,
    /// Last completed round.
    pub last: Option<Round>,
}

/// Results of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Cores of the cluster.
    pub cores: u32,
    /// Sharing scheme.
    pub arm: Arm,
    /// Number of completed jobs.
    pub jobs: usize,
    /// Mean hours from submission to start.
    pub waiting_h: f64,
    /// Mean hours from submission to end.
    pub response_h: f64,
    /// Hours until the last job ended.
    pub makespan_h: f64,
    /// Used fraction of all core time.
    pub core_use: f64,
    /// Mean relative increase of run time over standalone.
    pub overhead: f64,
    /// Results by workflow.
    pub workflows: Vec<PerWorkflow>,
    /// Final states of the learners.
    pub learners: Vec<Learner>,
}

/// Seconds in an hour.
const HOUR: f64 = 3600.0;

/// Computes the results of one run from the completed jobs and the final learners.
pub(super) fn figures(
    cores: u32,
    arm: Arm,
    jobs: &[Job],
    finished: &[JobRecord],
    learners: Vec<Learner>,
) -> Figures {
    let mean = |value_of: &dyn Fn(&JobRecord) -> f64| {
        MeanDeviation::of(&finished.iter().map(value_of).collect::<Vec<_>>()).mean
    };
    // All jobs are submitted at time 0.
    let makespan = finished.iter().map(|job| job.ended).fold(0.0, f64::max);
    let busy: f64 = finished.iter().map(|job| job.usage.busy).sum();
    let workflows = Workflow::ALL.into_iter().map(|workflow| {
        let records: Vec<_> =
            finished.iter().filter(|job| jobs[job.job].workflow == workflow).collect();
        let runtimes: Vec<_> = records.iter().map(|job| (job.ended - job.started) / HOUR).collect();
        let seconds: f64 = records.iter().map(|job| job.usage.seconds).sum();
        PerWorkflow {
            workflow,
            runtime_h: MeanDeviation::of(&runtimes),
            cpu: records.iter().map(|job| job.usage.cpu).sum::<f64>() / seconds,
            memory: records.iter().map(|job| job.usage.memory).sum::<f64>() / seconds,
        }
    });
    Figures {
        cores,
        arm,
        jobs: finished.len(),
        waiting_h: mean(&|job| job.started / HOUR),
        response_h: mean(&|job| job.ended / HOUR),
        makespan_h: makespan / HOUR,
        core_use: busy / (f64::from(cores) * makespan),
        overhead: mean(&|job| (job.ended - job.started) / jobs[job.job].alone - 1.0),
        workflows: workflows.collect(),
        learners,
    }
}

/// Means over seeds, for one scheme and one cluster size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterReport {
    /// Cores of the cluster.
    pub cores: u32,
    /// Sharing scheme.
    pub arm: Arm,
    /// Mean hours from submission to start.
    pub waiting_h: MeanDeviation,
    /// Mean hours from submission to end.
    pub response_h: MeanDeviation,
    /// Hours until the last job ended.
    pub makespan_h: MeanDeviation,
    /// Used fraction of all core time.
    pub core_use: MeanDeviation,
    /// Mean relative increase of run time over standalone.
    pub overhead: MeanDeviation,
    /// The runs.
    pub runs: Vec<Figures>,
}

impl ClusterReport {
    /// Summarises runs of one scheme and size. Returns `None` without runs.
    #[must_use]
    pub fn of(runs: Vec<Figures>) -> Option<Self> {
        let spread = |value_of: fn(&Figures) -> f64| {
            MeanDeviation::of(&runs.iter().map(value_of).collect::<Vec<_>>())
        };
        let first = runs.first()?;
        Some(Self {
            cores: first.cores,
            arm: first.arm,
            waiting_h: spread(|run| run.waiting_h),
            response_h: spread(|run| run.response_h),
            makespan_h: spread(|run| run.makespan_h),
            core_use: spread(|run| run.core_use),
            overhead: spread(|run| run.overhead),
            runs,
        })
    }
}

/// Formats the reports as text: table 3 with figure 3a, then table 2 with figure 3b.
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
            // Mean of a column over the runs, for this workflow.
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
