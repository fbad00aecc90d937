//! Roles: compositions of stages and ports.

pub mod leaf;
mod neighbourhood;

pub use leaf::{Command, Leaf};
