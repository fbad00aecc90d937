//! Whom a node passes a fresh task to, and whom it takes one from when it runs dry: an actor-critic learner for nodes that schedule
//! without a scheduler (Malcolm, POMACS 2022).
//!
//! Each node has an actor of two softmax policies, migration and stealing, over what all nodes told of their loads; and a critic
//! whose parameters nodes average now and then. A [`Learner`] is driven by its caller, one call a beat: [`Learner::beat`] takes the
//! loads of all nodes, the reward, and how often each destination was drawn; then [`Learner::migration`] and
//! [`Learner::stealing`] have the probabilities until the next one, and [`Choice`] draws from them.
//!
//! All arithmetic is in `f32`, eight lanes at a time, in vectors where the machine has them: [`pulp`] chooses when the program runs.
//! Equal inputs have equal outputs on machines with the same vectors; between others they differ by roundings. Nothing allocates
//! after the start.
//!
//! Deviations from the released program: probabilities are computed with the largest logit taken off, values that have decayed to
//! almost nothing are set to 0, nodes that are not live are left out of features and of choices, and one node alone works.

mod choice;
mod features;
mod history;
mod lanes;
mod learner;
mod optimizer;
mod reward;
#[cfg(test)]
mod tests;

pub use choice::Choice;
pub use learner::{Beat, BeatError, Counts, Learner, NODES_MAX, Settings};
pub use optimizer::{AdamW, Optimizer, Schedule};
pub use reward::{Costs, Events, Reward, Utility, imbalance};
