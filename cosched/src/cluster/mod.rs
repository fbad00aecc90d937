//! Event simulation of the evaluation in the ASA_X paper (arXiv 2401.09706): 45 jobs of four workflows on 64,
//! 128 and 256 cores. Schemes are space sharing with backfill, a static division, ASA_X, and one beyond the
//! paper: a guest gets the cores that its host leaves idle.
//!
//! A host is a job with cores of its own. A guest is a second job that shares a host's cores.
//!
//! Standalone run times are from the paper's tables. The paper does not say how jobs slow each other down;
//! [`Contention`] models that.

mod arm;
mod engine;
mod jobs;
mod report;
#[cfg(test)]
mod tests;

pub use arm::Arm;
pub use jobs::Workflow;
pub use report::{ClusterReport, Learner, MeanDeviation, PerWorkflow, RunResults, tables};

use crate::chooser::Chooser;
use crate::expert::Expert;
use crate::settings::SettingsError;

/// Slow-down of jobs that share cores, beyond dividing the cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contention {
    /// Relative slow-down of a parallel stage next to a job that keeps all cores busy, by shared caches and
    /// bandwidth. It is proportional to the busy cores.
    pub caches: f64,
    /// Relative slow-down of host and guest if their memory demand is twice the memory of the shared cores. It is
    /// proportional to the excess.
    pub paging: f64,
    /// Exponent of a parallel stage's speed: the speed is this power of the fraction of usable cores that it
    /// has. 1 is proportional; larger values model threads that wait for each other.
    pub barriers: f64,
}

impl Contention {
    /// No contention: jobs that share cores divide them, without further slow-down.
    pub const NONE: Self = Self { caches: 0.0, paging: 0.0, barriers: 1.0 };
}

impl Default for Contention {
    fn default() -> Self {
        Self { caches: 0.3, paging: 1.0, barriers: 1.3 }
    }
}

/// Parameters of one run.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Cores of the cluster.
    pub cores: u32,
    /// Sharing scheme.
    pub arm: Arm,
    /// Experts that advise the learners of ASA_X; other schemes ignore them.
    pub experts: Vec<Expert>,
    /// Slow-down by sharing.
    pub contention: Contention,
    /// Seconds for which a host gets no request after its learner refused a waiting job. They do not apply to a guest
    /// that loses its share: its host gets the next request after 60 s.
    pub refusal: f64,
    /// Seed of the job order, the users' estimates and all draws.
    pub seed: u64,
}

impl Experiment {
    /// Runs the experiment. In the schemes of ASA_X, each workflow has a learner, which decides for its hosts. `log`
    /// may return a writer for the log of a workflow's learner.
    pub fn run(
        &self,
        log: &mut dyn FnMut(Workflow) -> Option<Box<dyn std::io::Write>>,
    ) -> Result<RunResults, ClusterError> {
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
                    Ok(engine::WorkflowLearner::new(chooser, log)?)
                })
                .collect::<Result<Vec<_>, ClusterError>>()?,
            None => Vec::new(),
        };
        engine::Engine::new(self, jobs, learners)?.run()
    }
}

/// Reason why a run cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The cluster is smaller than the largest job.
    #[error("{cores} cores are too few: the largest jobs need {needed}")]
    Cores {
        /// Cores of the cluster.
        cores: u32,
        /// Cores of the largest job.
        needed: u32,
    },
    /// A contention parameter or `refusal` is out of range.
    #[error("{name} is {value}, but must be from {least} to 1000000")]
    Number {
        /// Name of the parameter.
        name: &'static str,
        /// Value of the parameter.
        value: f64,
        /// Smallest allowed value.
        least: f64,
    },
    /// The chooser's settings are invalid, or there are no experts.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A decision or learning from its outcome failed, or could not be logged.
    #[error(transparent)]
    Logged(#[from] crate::journal::LoggingError),
    /// The first line of the log could not be written, or the log not flushed.
    #[error("the log of decisions: {0}")]
    Log(#[from] std::io::Error),
}
