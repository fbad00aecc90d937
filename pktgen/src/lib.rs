//! An open-loop load generator for microsecond tasks that says when not to believe it.
#![forbid(unsafe_code)]

pub mod arrival;
pub mod grammar;
pub mod latency;
pub mod rate;
pub mod seed;
pub mod service;
pub mod stationary;
