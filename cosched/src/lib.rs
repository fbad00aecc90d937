//! How much of its time a pool of worker cores gives to a batch job: what ASA_X ("A HPC Co-Scheduler with Reinforcement
//! Learning", arXiv 2401.09706) does for jobs of a cluster, for worker cores.
//!
//! Two layers decide, each usable alone. A [`Guard`] sees what the workers do and says how much the batch may have at most, now. A
//! [`Chooser`] takes one of the ten [`Share`]s up to that by a mixture of [`Expert`]s, hears what it cost, and learns which experts to
//! follow; a [`Logged`] one writes down each decision with all that went into it, and [`replay()`] does a log again, under the same
//! mode or another one. [`cluster`] simulates the paper's own evaluation, with the same chooser.
//!
//! Of these, time, observations and random numbers are arguments: they read no clock, no counter and no file that they are not
//! given. Below them is the [`mechanism`]: the cgroups that hold a batch, how its processes are started in them and ended, and what
//! gives it a share.
#![deny(unsafe_code)]

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

pub use chooser::{Chooser, Decision, Learnt, Round};
pub use expert::{Expert, Metric, Plan};
pub use file::{FileError, Setup};
pub use guard::{Guard, GuardSettings, GuardSettingsError, Observation};
pub use journal::{Logged, LoggedError, Record};
pub use replay::{Overrides, ReplayError, Replayed, replay};
pub use settings::{Happiness, Mode, Settings, SettingsError};
pub use share::{Distribution, SHARES, Share};
pub use state::{Outcome, Progress, State, StateError};
