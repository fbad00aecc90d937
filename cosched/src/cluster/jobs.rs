//! The paper's jobs: what each takes alone, by its tables 2 and section 4.4.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

/// The paper's four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Workflow {
    /// Bound by files: two parallel and two sequential stages.
    Montage,
    /// Bound by cores: a parallel stage, then a sequential one.
    Blast,
    /// Bound by files and the network: two sequential and two parallel stages.
    Statistics,
    /// Bound by cores and memory: a sequential stage, then a parallel one.
    Synthetic,
}

/// A part of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stage {
    /// Of the whole time that the job takes alone.
    pub part: f64,
    /// What it uses of its cores while it runs alone; a sequential stage uses one of them.
    pub cpu: Option<f64>,
}

const fn parallel(part: f64, cpu: f64) -> Stage {
    Stage { part, cpu: Some(cpu) }
}

const fn sequential(part: f64) -> Stage {
    Stage { part, cpu: None }
}

impl Workflow {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 4] = [Self::Montage, Self::Blast, Self::Statistics, Self::Synthetic];

    /// Its place among them.
    pub(super) fn index(self) -> usize {
        self as usize
    }

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Montage => "montage",
            Self::Blast => "blast",
            Self::Statistics => "statistics",
            Self::Synthetic => "synthetic",
        }
    }

    /// The cores of its jobs in a set of 15.
    fn widths(self) -> &'static [u32] {
        match self {
            Self::Synthetic => &[16, 32, 64],
            _ => &[8, 16, 32, 64],
        }
    }

    /// Hours that it takes alone: the mean over its widths, and the spread as a part of it. Table 2, Slurm on 64 cores.
    fn hours(self) -> (f64, f64) {
        match self {
            Self::Montage => (0.35, 0.04),
            Self::Blast => (0.71, 0.21),
            Self::Statistics => (0.69, 0.10),
            Self::Synthetic => (0.49, 0.15),
        }
    }

    /// What it uses of its cores' memory. Table 2, Slurm on 64 cores.
    pub(super) fn memory(self) -> f64 {
        match self {
            Self::Montage => 0.10,
            Self::Blast => 0.44,
            Self::Statistics => 0.05,
            Self::Synthetic => 0.95,
        }
    }

    /// Its stages (section 4.2), whose mean use of cores is about that of Table 2, Slurm on 64 cores: 45, 96, 26 and 99%.
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

    /// Hours that it takes alone with so many cores: a fixed time and one divided by the cores, so that mean and spread over its
    /// widths are those of the table.
    fn hours_alone(self, cores: u32) -> f64 {
        let (mean, spread) = self.hours();
        let each: Vec<_> = self.widths().iter().map(|cores| 1.0 / f64::from(*cores)).collect();
        let count = each.len() as f64;
        let inverse = each.iter().sum::<f64>() / count;
        let variance = each.iter().map(|each| (each - inverse).powi(2)).sum::<f64>() / count;
        let divided = mean * spread / variance.sqrt();
        mean - divided * inverse + divided / f64::from(cores)
    }
}

/// A job that was submitted.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub workflow: Workflow,
    pub cores: u32,
    /// Seconds that it takes alone.
    pub alone: f64,
    /// Seconds that its user asked for.
    pub wall: f64,
}

/// How often the set of 15 jobs is submitted.
const SETS: usize = 3;

/// Cores of the largest job.
pub(super) const WIDEST: u32 = 64;

/// All jobs in the order of the queue: set by set, each in an order of its own. Users ask for 1.2 to 2 times what a job takes.
pub(super) fn submitted(seed: u64) -> Vec<Job> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut jobs = Vec::new();
    for _ in 0..SETS {
        let start = jobs.len();
        for workflow in Workflow::ALL {
            for cores in workflow.widths() {
                let alone = workflow.hours_alone(*cores) * 3600.0;
                let asked = 1.2 + 0.8 * (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                jobs.push(Job { workflow, cores: *cores, alone, wall: alone * asked });
            }
        }
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
    fn jobs_are_those_of_the_paper() {
        let jobs = submitted(1);
        assert_eq!(jobs.len(), 45);
        let of = |workflow| jobs.iter().filter(move |job| job.workflow == workflow);
        assert_eq!(Workflow::ALL.map(|workflow| of(workflow).count()), [12, 12, 12, 9]);
        assert_eq!(jobs.iter().map(|job| job.cores).sum::<u32>(), 3 * 472);
        for workflow in Workflow::ALL {
            let hours: Vec<_> = of(workflow).map(|job| job.alone / 3600.0).collect();
            let count = hours.len() as f64;
            let mean = hours.iter().sum::<f64>() / count;
            let spread =
                (hours.iter().map(|hours| (hours - mean).powi(2)).sum::<f64>() / count).sqrt();
            let (said, spread_said) = workflow.hours();
            assert!((mean - said).abs() < 1e-9 && (spread / mean - spread_said).abs() < 1e-9);
            assert!(of(workflow).all(|job| job.wall > 1.19 * job.alone && job.cores <= WIDEST));
        }
        // Another seed, another order; the same seed, the same.
        let order =
            |seed| submitted(seed).iter().map(|job| (job.workflow, job.cores)).collect::<Vec<_>>();
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn stages_are_whole_jobs_and_use_their_cores_as_the_paper_says() {
        for (workflow, said) in Workflow::ALL.into_iter().zip([0.45, 0.96, 0.26, 0.99]) {
            let parts: f64 = workflow.stages().iter().map(|stage| stage.part).sum();
            assert!((parts - 1.0).abs() < 1e-9);
            let used = |stage: &Stage| stage.part * stage.cpu.unwrap_or(1.0 / 32.0);
            let used: f64 = workflow.stages().iter().map(used).sum();
            assert!((used - said).abs() < 0.03, "{}: {used}", workflow.name());
        }
    }
}
