//! Shares of worker cores for a batch job. Adapts ASA_X ("A HPC Co-Scheduler with Reinforcement Learning",
//! arXiv 2401.09706) from jobs of a cluster to worker cores.
//!
//! The workers serve short tasks with a latency objective. A batch job is background work that uses the rest of their
//! cores' time.
//!
//! There are two layers. Each can be used alone. A [`Guard`] observes the workers and limits the batch's share. A
//! [`Chooser`] draws one of the ten [`Share`]s within that limit from a mixture of [`Expert`]s. It computes the loss
//! from the outcome, and learns which experts to follow. The loss is the harm to the workers; in mode balanced, the
//! batch's risk to miss its deadline adds to it. A [`LoggingChooser`] records each decision with all its inputs, and
//! [`replay()`] repeats a log in the same mode or another one. [`cluster`] simulates the paper's evaluation with the
//! same chooser.
//!
//! Time, observations and random numbers are arguments of both layers: they read no clock, counter or file on
//! their own. Below them is the [`mechanism`]: cgroups that hold a batch, start and end of its processes, and
//! the ways to give it a share.

mod chooser;
pub mod cluster;
mod expert;
mod file;
mod guard;
mod journal;
pub mod mechanism;
mod replay;
mod settings;
mod share;
mod state;
#[cfg(test)]
mod tests;

pub use chooser::{Chooser, Decision, LearningUpdate, Round};
pub use expert::{Expert, Metric, Plan};
pub use file::{FileError, Setup};
pub use guard::{Guard, GuardSettings, GuardSettingsError, Observation};
pub use journal::{LoggingChooser, LoggingError, Record};
pub use replay::{Overrides, ReplayError, ReplayResult, replay};
pub use settings::{HappinessFormula, Mode, Settings, SettingsError};
pub use share::{Distribution, SHARES, Share};
pub use state::{Outcome, Progress, State, StateError};
