//! Roles: compositions of stages and ports.

pub mod agent;
#[cfg(test)]
mod fixtures;
pub mod host;
pub mod leaf;

pub use agent::Agent;
pub use host::Host;
pub use leaf::Leaf;
