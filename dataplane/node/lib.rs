//! A leaf or an agent as a process: the checks before its start, its threads, and its orderly end.
#![deny(unsafe_code)]

pub mod doctor;
#[cfg(feature = "dpdk")]
pub mod run;
