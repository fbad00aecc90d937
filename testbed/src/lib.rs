//! Emulated rack, workloads and workers, simulator, demo and comparisons.
#![forbid(unsafe_code)]

pub mod app;
pub mod attack;
pub mod bench_auth;
#[cfg(feature = "dpdk")]
pub mod bench_host;
pub mod bench_policy;
pub mod demo;
pub mod drive;
pub mod figures;
pub mod lockstep;
pub mod rack;
pub mod sim;
pub mod stand_ins;
pub mod worker;
