//! Roles: compositions of stages and ports.

pub mod agent;
pub mod leaf;
pub(crate) mod neighbourhood;
mod outbox;

pub use agent::Agent;
pub use leaf::{Command, Leaf};
