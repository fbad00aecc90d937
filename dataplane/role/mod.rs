//! Roles: compositions of stages and ports.

pub mod leaf;
pub(crate) mod neighbourhood;

pub use leaf::{Command, Leaf};
