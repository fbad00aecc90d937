//! Open-loop load generator for microsecond tasks that reports when its own results are invalid.
//!
//! A run goes through these modules: [`load`] describes the offered load, [`arrival`], [`service`] and [`replay`] give
//! due times and service times, [`send`] the schedule of a core, and [`template`] the frames. [`engine`] sends and
//! receives on one core. [`outstanding`] matches answers with tasks, [`tally`] counts, [`slices`] excludes disturbed
//! time, and [`report`] gives the verdict. [`results`] draws plots and writes task logs, also for the simulator.
//!
//! The scheduler under test is a leaf (for a rack) or an agent (for a worker host). The command is in `main.rs`.
#![forbid(unsafe_code)]

pub mod address;
pub mod engine;
pub mod exchange;
pub mod floor;
pub mod host;
pub mod ledger;
pub mod load;
pub mod manifest;
pub mod neighbour;
pub mod nodes;
pub mod objects;
pub mod oracle;
pub mod outstanding;
pub mod payload;
pub mod process;
pub mod rate;
pub mod reflector;
pub mod replay;
pub mod report;
pub mod selftest;
pub mod send;
pub mod slices;
pub mod stamps;
pub mod stationary;
pub mod tally;
pub mod target;
pub mod tasks;
pub mod template;
pub mod trace;

pub use wedjat_workload::{arrival, grammar, latency, mix, results, seed, service};
