//! Several nodes in emulated time: spines, leaves, agents with emulated workers, clients, and the wires
//! between them. Faults follow from a seed. A checker verifies the invariants of every run.
//!
//! A run is a function of its [`Plan`], to the last packet. The same plan on nodes in memory and on nodes in
//! processes of their own does the same to the same tasks at the same times. [`check`] lists the invariants.

pub mod check;
#[cfg(feature = "control")]
pub mod controlled;
pub mod faults;
pub mod node;
pub mod packets;
pub mod plan;
mod run;
mod workers;

pub use check::Violation;
pub use faults::{FaultTarget, Faults, Topology};
pub use node::{InMemory, LocalNodeState, Maker, Node};
pub use plan::{Plan, PlanOptions};
pub use run::{Outcome, TaskEnd, run};
