//! The paper's evaluation by event simulation: 45 jobs of four workflows on 64, 128 and 256 cores, under space sharing with
//! backfill, a static division, and ASA_X; and a division that the paper does not have, in which a guest gets what its host
//! leaves idle.
//!
//! What jobs take alone is from the paper's tables. What they do to each other is not in it: see [`Contention`].

mod arm;
mod engine;
mod jobs;
mod report;
#[cfg(test)]
mod tests;

pub use arm::Arm;
pub use jobs::Workflow;
pub use report::{ClusterReport, Figures, Learner, PerWorkflow, Spread, tables};

use crate::chooser::Chooser;
use crate::expert::Expert;
use crate::settings::SettingsError;

/// What jobs that share cores do to each other, beyond dividing them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contention {
    /// How much longer a parallel stage takes, as a part, beside a job that uses as many cores fully: caches and bandwidth.
    pub caches: f64,
    /// How much longer it takes for each part by which both together want more memory than there is.
    pub paging: f64,
    /// How a parallel stage's speed falls with what it gets of what it wants: 1 in proportion, more where threads wait for each other.
    pub barriers: f64,
}

impl Contention {
    /// Cores are divided, and that is all.
    pub const NONE: Self = Self { caches: 0.0, paging: 0.0, barriers: 1.0 };
}

impl Default for Contention {
    fn default() -> Self {
        Self { caches: 0.3, paging: 1.0, barriers: 1.3 }
    }
}

/// A run.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Of the cluster.
    pub cores: u32,
    /// How cores are shared.
    pub arm: Arm,
    /// Whose advice ASA_X takes.
    pub experts: Vec<Expert>,
    /// What sharing costs.
    pub contention: Contention,
    /// Seconds for which a host that was asked for a share and gave none is not asked again.
    pub refusal: f64,
    /// Of the order of jobs, of their users' estimates and of all draws.
    pub seed: u64,
}

impl Experiment {
    /// Runs it. Each learner's log goes to what `log` gives for its workflow, if it gives anything.
    pub fn run(
        &self,
        log: &mut dyn FnMut(Workflow) -> Option<Box<dyn std::io::Write>>,
    ) -> Result<Figures, ClusterError> {
        let Contention { caches, paging, barriers } = self.contention;
        for (name, value, least) in [
            ("caches", caches, 0.0),
            ("paging", paging, 0.0),
            ("barriers", barriers, 1.0),
            ("refusal", self.refusal, 1.0),
        ] {
            if !(least..=1e6).contains(&value) {
                return Err(ClusterError::Number { name, value, least });
            }
        }
        let jobs = jobs::submitted(self.seed);
        let learners = match self.arm.settings(self.seed) {
            Some(settings) => Workflow::ALL
                .into_iter()
                .map(|workflow| {
                    let chooser = Chooser::new(settings.clone(), self.experts.clone())?;
                    let log = log(workflow).unwrap_or_else(|| Box::new(std::io::sink()));
                    Ok(engine::Learning::new(chooser, log)?)
                })
                .collect::<Result<Vec<_>, ClusterError>>()?,
            None => Vec::new(),
        };
        engine::Engine::new(self, jobs, learners)?.run()
    }
}

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Too small.
    #[error("{cores} cores are too few: the largest jobs have {needed}")]
    Cores {
        /// What there are.
        cores: u32,
        /// Of the largest job.
        needed: u32,
    },
    /// No cost of sharing.
    #[error("{name} is {value}, and must be from {least} to a million")]
    Number {
        /// Which.
        name: &'static str,
        /// What it was.
        value: f64,
        /// What it is at least.
        least: f64,
    },
    /// The experts can't be asked.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A decision was not made or not written down.
    #[error(transparent)]
    Logged(#[from] crate::journal::LoggedError),
    /// A log can't be begun or ended.
    #[error("the log of decisions: {0}")]
    Log(#[from] std::io::Error),
}
