//! Benchmarks: of policies' decisions, of the hand-over to worker cores, of cache lines between dispatcher cores, and of
//! pools' keys.

pub mod auth;
#[cfg(feature = "dpdk")]
pub mod host;
pub mod lines;
pub mod policy;
