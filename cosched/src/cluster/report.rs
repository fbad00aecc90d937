//! What a run comes to: the paper's figures 3a and 3b, and its tables 2 and 3.

use serde::Serialize;

use crate::chooser::Round;

use super::jobs::Job;
use super::{Arm, Workflow};

/// What a job kept busy.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    seconds: f64,
    busy: f64,
    cpu: f64,
    memory: f64,
}

impl Usage {
    /// For so many seconds: its own cores, and what all had of its allocation.
    pub(super) fn add(&mut self, seconds: f64, busy: f64, cpu: f64, memory: f64) {
        self.seconds += seconds;
        self.busy += busy * seconds;
        self.cpu += cpu * seconds;
        self.memory += memory * seconds;
    }
}

/// A job that has ended.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    pub job: usize,
    pub started: f64,
    pub ended: f64,
    pub usage: Usage,
}

/// Mean and standard deviation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
}

impl Spread {
    /// Of these.
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
    /// Of which.
    pub workflow: Workflow,
    /// Hours from a job's start to its end.
    pub runtime_h: Spread,
    /// What was used of its cores, by it and by whoever shared them.
    pub cpu: f64,
    /// What was used of their memory.
    pub memory: f64,
}

/// What a learner has come to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Learner {
    /// For hosts of which workflow.
    pub workflow: Workflow,
    /// Decisions that it made.
    pub decisions: u64,
    /// Names of its experts.
    pub experts: Vec<String>,
    /// Its last round.
    pub last: Option<Round>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Of the cluster.
    pub cores: u32,
    /// How cores were shared.
    pub arm: Arm,
    /// Jobs that ended.
    pub jobs: usize,
    /// Mean hours from submission to start.
    pub waiting_h: f64,
    /// Mean hours from submission to end.
    pub response_h: f64,
    /// Hours until the last job ended.
    pub makespan_h: f64,
    /// The part of all cores' time that was used.
    pub core_use: f64,
    /// How much longer than alone a job took from its start on, as a part: the mean.
    pub overhead: f64,
    /// By workflow.
    pub workflows: Vec<PerWorkflow>,
    /// What was learnt.
    pub learners: Vec<Learner>,
}

const HOUR: f64 = 3600.0;

pub(super) fn figures(
    cores: u32,
    arm: Arm,
    jobs: &[Job],
    finished: &[Finished],
    learners: Vec<Learner>,
) -> Figures {
    let mean = |of: &dyn Fn(&Finished) -> f64| {
        Spread::of(&finished.iter().map(of).collect::<Vec<_>>()).mean
    };
    let makespan = finished.iter().map(|job| job.ended).fold(0.0, f64::max);
    let busy: f64 = finished.iter().map(|job| job.usage.busy).sum();
    let workflows = Workflow::ALL.into_iter().map(|workflow| {
        let of: Vec<_> = finished.iter().filter(|job| jobs[job.job].workflow == workflow).collect();
        let runtimes: Vec<_> = of.iter().map(|job| (job.ended - job.started) / HOUR).collect();
        let seconds: f64 = of.iter().map(|job| job.usage.seconds).sum();
        PerWorkflow {
            workflow,
            runtime_h: Spread::of(&runtimes),
            cpu: of.iter().map(|job| job.usage.cpu).sum::<f64>() / seconds,
            memory: of.iter().map(|job| job.usage.memory).sum::<f64>() / seconds,
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

/// Means over seeds of one arm on one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterReport {
    /// Of the cluster.
    pub cores: u32,
    /// How cores were shared.
    pub arm: Arm,
    /// Mean hours from submission to start.
    pub waiting_h: Spread,
    /// Mean hours from submission to end.
    pub response_h: Spread,
    /// Hours until the last job ended.
    pub makespan_h: Spread,
    /// The part of all cores' time that was used.
    pub core_use: Spread,
    /// How much longer than alone a job took, as a part.
    pub overhead: Spread,
    /// The runs.
    pub runs: Vec<Figures>,
}

impl ClusterReport {
    /// Of runs of one arm on one size; none of no run.
    #[must_use]
    pub fn of(runs: Vec<Figures>) -> Option<Self> {
        let spread = |of: fn(&Figures) -> f64| Spread::of(&runs.iter().map(of).collect::<Vec<_>>());
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

/// For people: a line for each, as the paper's table 3 and figure 3a, then as its table 2 and figure 3b.
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
        for at in 0..Workflow::ALL.len() {
            let mean = |of: fn(&PerWorkflow) -> f64| {
                Spread::of(
                    &report.runs.iter().map(|run| of(&run.workflows[at])).collect::<Vec<_>>(),
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
