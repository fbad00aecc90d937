//! What holds a batch on worker cores: a cgroup of its own, in which it starts and with which it ends, and the ways in which it is
//! given a share of these cores.
//!
//! Controllers of cgroups are found where this machine has them, of version 1 or 2, and those that it lacks are told. Nothing is
//! changed that was not made here: a batch gets folders of its own, whose names are written down before they are made
//! ([`Made`]), so that whoever starts next can take away what a killed process left.

mod actuator;
mod group;
mod hierarchy;
mod launch;
mod made;
mod process;
#[cfg(test)]
mod tests;

pub use actuator::{Actuator, Quota, Unlimited, Weight};
pub use group::{Group, GroupError, Limits, PREFIX};
pub use hierarchy::{Controller, Hierarchies, Place, System, Version};
pub use launch::{Class, in_group, set_class};
pub use made::Made;
pub use process::{Process, Scheduling, threads_of};
