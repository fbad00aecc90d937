//! Confinement of a batch on worker cores: a cgroup in which it starts and ends, and ways to give it a share
//! of the cores. A batch is a job that runs in the background, on the cores of workers that serve short tasks.
//!
//! Finds the controllers of cgroup version 1 or 2, and reports those that the machine lacks. Changes only
//! cgroups that it created, and in version 2 enables controllers in their parent. The caller saves the names of the
//! cgroups before it creates them ([`CgroupFolders`]), so that a later process can remove those of a killed one.

mod actuator;
mod folders;
mod group;
mod hierarchy;
mod launch;
mod process;
#[cfg(test)]
mod tests;

pub use actuator::{Actuator, Quota, Unlimited, Weight};
pub use folders::{CgroupFolders, PREFIX};
pub use group::{Group, GroupError, Limits};
pub use hierarchy::{Controller, FolderFunctions, Hierarchies, MountPoint, Version};
pub use launch::{Class, in_group, set_class};
pub use process::{Process, Scheduling, cpu_list, threads_of};
