//! Testbed of wedjat, for the command `wedjat-testbed` and the tests: emulated rack, workloads and workers, simulator,
//! real nodes in emulated time, controllers under faults, advice on policies, demo, attacks, benchmarks, and
//! comparisons with the papers.
#![forbid(unsafe_code)]

pub mod app;
pub mod attack;
pub mod batch;
pub mod bench;
pub mod demo;
pub mod drive;
pub mod figures;
mod free_address;
pub mod histories;
pub mod learner;
pub mod lockstep;
pub mod rack;
pub mod stand_ins;
pub mod worker;

pub use wedjat_sim as sim;
pub use wedjat_sim::advise;

/// Time after which a waiting test fails. It is long because the machine may be busy; only failing tests take
/// it.
#[cfg(test)]
pub(crate) const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(300);
