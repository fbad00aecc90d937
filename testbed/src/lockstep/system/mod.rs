//! Several nodes in emulated time: spines, leaves, agents with emulated workers, clients, and the wires
//! between them. The conductor ([`run()`]) advances the time, gives nodes turns in which they poll until they are
//! quiet, and carries their packets, with the plan's faults.
//! [`check`] verifies the invariants of every run.
//!
//! A run is a function of its [`Plan`], to the last packet. Nodes in memory and nodes in processes of their own
//! therefore give the same outcome for the same plan.

pub mod check;
pub mod controlled;
pub mod faults;
pub mod node;
pub mod packets;
pub mod plan;
mod run;
mod workers;

pub use faults::{FaultPlan, FaultTarget, Topology};
pub use node::{InMemory, LocalNodeState, Node, NodeFactory, Violation};
pub use plan::{Plan, PlanOptions};
pub use run::{Outcome, TaskResult, run};
