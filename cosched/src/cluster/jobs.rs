//! Jobs of the ASA_X paper (arXiv 2401.09706), with their standalone run times (table 2, section 4.4): those of a job
//! that shares its cores with no other.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

/// Workflows of the paper. All jobs of a workflow have the same stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Workflow {
    /// Bound by file access: two parallel and two sequential stages.
    Montage,
    /// Bound by the CPU: a parallel stage, then a sequential one.
    Blast,
    /// Bound by files and network: two sequential and two parallel stages.
    Statistics,
    /// Bound by CPU and memory: a sequential stage, then a parallel one.
    Synthetic,
}

/// Stage of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stage {
    /// Fraction of the job's standalone time.
    pub part: f64,
    /// Used fraction of the job's cores without a second job; `None` for a sequential stage, which uses one core.
    pub cpu: Option<f64>,
}

/// Creates a parallel stage.
const fn parallel(part: f64, cpu: f64) -> Stage {
    Stage { part, cpu: Some(cpu) }
}

/// Creates a sequential stage.
const fn sequential(part: f64) -> Stage {
    Stage { part, cpu: None }
}

impl Workflow {
    /// All workflows, in the order of tables.
    pub const ALL: [Self; 4] = [Self::Montage, Self::Blast, Self::Statistics, Self::Synthetic];

    /// Returns the index in [`Workflow::ALL`].
    pub(super) fn index(self) -> usize {
        self as usize
    }

    /// Returns the name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Montage => "montage",
            Self::Blast => "blast",
            Self::Statistics => "statistics",
            Self::Synthetic => "synthetic",
        }
    }

    /// Returns the core counts of its jobs. The paper's set of 15 jobs has each workflow once with each of its core
    /// counts.
    fn widths(self) -> &'static [u32] {
        match self {
            Self::Synthetic => &[16, 32, 64],
            _ => &[8, 16, 32, 64],
        }
    }

    /// Returns the mean standalone hours over its core counts, and their standard deviation divided by the mean. Table
    /// 2, row of Slurm on a cluster of 64 cores.
    fn hours(self) -> (f64, f64) {
        match self {
            Self::Montage => (0.35, 0.04),
            Self::Blast => (0.71, 0.21),
            Self::Statistics => (0.69, 0.10),
            Self::Synthetic => (0.49, 0.15),
        }
    }

    /// Returns the used fraction of the memory of its cores. Table 2, row of Slurm on a cluster of 64 cores.
    pub(super) fn memory(self) -> f64 {
        match self {
            Self::Montage => 0.10,
            Self::Blast => 0.44,
            Self::Statistics => 0.05,
            Self::Synthetic => 0.95,
        }
    }

    /// Returns the stages (section 4.2). With these parts and CPU uses, the mean CPU use is about that of table 2, row
    /// of Slurm on a cluster of 64 cores: 45, 96, 26 and 99%.
    pub(super) fn stages(self) -> &'static [Stage] {
        const MONTAGE: [Stage; 4] =
            [parallel(0.35, 0.7), sequential(0.2), parallel(0.25, 0.7), sequential(0.2)];
        const BLAST: [Stage; 2] = [parallel(0.97, 0.99), sequential(0.03)];
        const STATISTICS: [Stage; 4] =
            [sequential(0.2), parallel(0.3, 0.4), sequential(0.2), parallel(0.3, 0.4)];
        const SYNTHETIC: [Stage; 2] = [sequential(0.02), parallel(0.98, 1.0)];
        match self {
            Self::Montage => &MONTAGE,
            Self::Blast => &BLAST,
            Self::Statistics => &STATISTICS,
            Self::Synthetic => &SYNTHETIC,
        }
    }

    /// Returns the standalone hours on `cores` cores: a constant plus a term inversely proportional to the
    /// cores. Mean and spread over the core counts match the table.
    fn hours_alone(self, cores: u32) -> f64 {
        // hours = constant + core_hours / cores. The spread gives `core_hours`, and then the mean the constant.
        let (mean, spread) = self.hours();
        let inverses: Vec<_> = self.widths().iter().map(|cores| 1.0 / f64::from(*cores)).collect();
        let count = inverses.len() as f64;
        let mean_inverse = inverses.iter().sum::<f64>() / count;
        let variance =
            inverses.iter().map(|value| (value - mean_inverse).powi(2)).sum::<f64>() / count;
        let core_hours = mean * spread / variance.sqrt();
        mean - core_hours * mean_inverse + core_hours / f64::from(cores)
    }
}

/// A submitted job.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub workflow: Workflow,
    /// Number of requested cores.
    pub cores: u32,
    /// Standalone run time in seconds.
    pub alone: f64,
    /// Requested wall time in seconds: the user's estimate, which is too long.
    pub wall: f64,
}

/// Number of times that the set of 15 jobs is submitted.
const SETS: usize = 3;

/// Cores of the largest job.
pub(super) const WIDEST: u32 = 64;

/// Returns all jobs in queue order: set by set, each shuffled. The requested wall time is 1.2 to 2 times the
/// standalone time.
pub(super) fn submitted(seed: u64) -> Vec<Job> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut jobs = Vec::new();
    for _ in 0..SETS {
        let start = jobs.len();
        for workflow in Workflow::ALL {
            for cores in workflow.widths() {
                let alone = workflow.hours_alone(*cores) * 3600.0;
                // The upper 53 bits of the random number, as a fraction of 1.
                let wall_factor =
                    1.2 + 0.8 * (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                jobs.push(Job { workflow, cores: *cores, alone, wall: alone * wall_factor });
            }
        }
        // Fisher-Yates shuffle of this set.
        let set = &mut jobs[start..];
        for last in (1..set.len()).rev() {
            set.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
        }
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_equal_those_of_the_paper() {
        let jobs = submitted(1);
        assert_eq!(jobs.len(), 45);
        let jobs_of = |workflow| jobs.iter().filter(move |job| job.workflow == workflow);
        // Three sets, with four core counts of each workflow, and three of the last one.
        assert_eq!(Workflow::ALL.map(|workflow| jobs_of(workflow).count()), [12, 12, 12, 9]);
        // The jobs of a set have 3 * (8 + 16 + 32 + 64) + 16 + 32 + 64 = 472 cores.
        assert_eq!(jobs.iter().map(|job| job.cores).sum::<u32>(), 3 * 472);
        for workflow in Workflow::ALL {
            let hours: Vec<_> = jobs_of(workflow).map(|job| job.alone / 3600.0).collect();
            let count = hours.len() as f64;
            let mean = hours.iter().sum::<f64>() / count;
            let spread =
                (hours.iter().map(|hours| (hours - mean).powi(2)).sum::<f64>() / count).sqrt();
            let (published, published_spread) = workflow.hours();
            assert!(
                (mean - published).abs() < 1e-9 && (spread / mean - published_spread).abs() < 1e-9
            );
            assert!(
                jobs_of(workflow).all(|job| job.wall > 1.19 * job.alone && job.cores <= WIDEST)
            );
        }
        // Equal seeds give equal orders; other seeds give other orders.
        let order =
            |seed| submitted(seed).iter().map(|job| (job.workflow, job.cores)).collect::<Vec<_>>();
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn stages_use_cores_as_in_the_paper() {
        for (workflow, published) in Workflow::ALL.into_iter().zip([0.45, 0.96, 0.26, 0.99]) {
            let parts: f64 = workflow.stages().iter().map(|stage| stage.part).sum();
            assert!((parts - 1.0).abs() < 1e-9);
            // A sequential stage uses one core of about 32, the mean of the jobs.
            let used = |stage: &Stage| stage.part * stage.cpu.unwrap_or(1.0 / 32.0);
            let used: f64 = workflow.stages().iter().map(used).sum();
            assert!((used - published).abs() < 0.03, "{}: {used}", workflow.name());
        }
    }
}
