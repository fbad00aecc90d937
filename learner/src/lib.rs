//! Actor-critic learner for nodes that schedule tasks without a scheduler (Malcolm, POMACS 2022): chooses the
//! node that gets a fresh task, and the node that an idle node asks for one.
//!
//! Each node has two actors, migration and stealing. An actor is a softmax policy: it computes a probability for each
//! node from the loads of all nodes. The node's critic estimates the value of a state, and its error trains critic and
//! actors. Nodes average their critics' parameters from time to time. A beat is one step of learning, at a fixed
//! interval. A draw is one random choice of a node, by the probabilities of a policy: for each fresh task, and each
//! time the node is idle. The caller drives a [`Learner`] with one call per beat: [`Learner::beat`] takes the loads of
//! all nodes, the reward (from [`Reward`]), and the number of draws of each destination. Then [`Learner::migration`]
//! and [`Learner::stealing`] return the probabilities until the next beat, and [`Choice`] draws from them.
//!
//! All arithmetic is in `f32`, eight values at a time, in vectors where the machine has them; [`pulp`] selects
//! them at run time. Equal inputs give equal outputs on machines with the same vectors; other machines differ
//! by rounding. Nothing allocates after construction.
//!
//! The "released program" is the implementation that Malcolm's authors published. Deviations from it: the largest logit
//! is subtracted before the softmax, values of tiny magnitude become 0, absent nodes are excluded from features and
//! choices, and a single node works.

mod choice;
mod features;
mod history;
mod learner;
mod optimizer;
mod reward;
#[cfg(test)]
mod tests;
mod vec8;

pub use choice::Choice;
pub use features::NODES_MAX;
pub use learner::{Beat, BeatError, Counts, Learner, Settings};
pub use optimizer::{AdamW, Optimizer, Schedule};
pub use reward::{Costs, Events, Reward, Utility, imbalance};
