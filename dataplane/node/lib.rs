//! A leaf, a spine or an agent as a process: the checks before its start, its threads, and its orderly end.
//!
//! A leaf schedules the tasks of one rack, a spine schedules tasks over leaves, and an agent gives tasks to the worker
//! cores of its host.

pub mod advice;
pub mod doctor;
#[cfg(feature = "dpdk")]
pub mod run;
