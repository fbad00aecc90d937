//! Roles: compositions of stages and ports.

pub mod agent;
#[cfg(test)]
mod fixtures;
pub mod host;
pub mod leaf;
pub(crate) mod outbox;
pub(crate) mod resolver;

pub use agent::Agent;
pub use host::Host;
pub use leaf::{Command, Leaf};
