//! Benchmarks: policy decisions, hand-over to worker cores, cache lines between dispatcher cores, pool keys,
//! batch work beside a worker, and a fabric's controller.

pub mod auth;
pub mod controller;
pub mod cosched;
#[cfg(feature = "dpdk")]
pub mod host;
pub mod lines;
pub mod policy;
