//! Workloads of load generator and simulator: arrival processes, service times, seeds, latencies, logs of
//! tasks, and frames of captures.
#![forbid(unsafe_code)]

pub mod arrival;
pub mod capture;
pub mod grammar;
pub mod latency;
pub mod mix;
pub mod results;
pub mod seed;
pub mod service;
