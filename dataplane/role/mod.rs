//! Roles: compositions of stages and ports.

pub mod agent;
pub mod colocated;
#[cfg(test)]
mod fixtures;
pub mod leaf;

pub use agent::Agent;
pub use colocated::Colocated;
pub use leaf::Leaf;
