//! Emulated rack, simulator, demo and comparisons.
#![forbid(unsafe_code)]

pub mod app;
pub mod bench_policy;
pub mod crew;
pub mod demo;
pub mod drive;
pub mod figures;
pub mod rack;
pub mod sim;
pub mod worker;
