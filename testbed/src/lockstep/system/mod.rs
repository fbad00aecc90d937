//! Several nodes in emulated time: spines, leaves, agents with emulated workers, clients and the wires between them, with faults that
//! follow from a seed, and a check of what must be so whatever goes wrong.
//!
//! A run follows from its [`Plan`] alone, to the last packet: the same plan on nodes in memory or in processes of their own
//! does the same to the same tasks at the same times. What is looked at stands in [`check`].

pub mod check;
pub mod faults;
pub mod node;
pub mod packets;
pub mod plan;
mod run;
#[cfg(feature = "control")]
pub mod told;
mod workers;

pub use check::Violation;
pub use faults::{Faults, Topology, Who};
pub use node::{InMemory, Inside, Maker, Node};
pub use plan::{Given, Plan};
pub use run::{Ended, Outcome, run};
