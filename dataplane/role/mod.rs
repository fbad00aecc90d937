//! Roles: compositions of stages and ports.

pub mod agent;
#[cfg(test)]
mod fixtures;
pub mod host;
pub mod leaf;
pub(crate) mod neighbourhood;
pub(crate) mod outbox;

pub use agent::Agent;
pub use host::Host;
pub use leaf::{Command, Leaf};
