//! Benchmarks: of policies' decisions, of the hand-over to worker cores, of cache lines between dispatcher cores, of pools' keys,
//! of batch work beside a worker, and of a fabric's controller.

pub mod auth;
#[cfg(feature = "control")]
pub mod controller;
pub mod cosched;
#[cfg(feature = "dpdk")]
pub mod host;
pub mod lines;
pub mod policy;
