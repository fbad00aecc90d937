//! wedjat: a software leaf scheduler for microsecond tasks. A leaf sends each task of a rack to one of its
//! workers.
//!
//! The main modules, lowest layer first:
//! - `wire`: packet formats; `io`: ports, packet buffers and captures; `ring`: memory shared by agent and
//!   workers; `clock`: time of the poll loop.
//! - `state`: load, neighbours and counters that cores share; `policy`: choice of a worker; `peers`: racks
//!   without a leaf.
//! - `stage`: steps of the packet path; `node`: one core's work around them; `role`: poll loops of leaf and
//!   agent.
//! - `config`, `control`, `controller`: configuration, changes at run time, and a fabric's desired state.
//! - `assembly`, `run`: construction and execution of a node; `admin`, `stats`: requests to it and its
//!   account.
//! - `worker`, `embed`: interfaces for worker programs, and for programs with a scheduler inside.
#![deny(unsafe_code)]

#[cfg(feature = "admin")]
pub mod admin;
pub mod assembly;
pub mod clock;
pub mod config;
pub mod control;
#[cfg(feature = "control")]
pub mod controller;
#[cfg(feature = "admin")]
pub mod cosched;
pub mod cpus;
#[cfg(feature = "admin")]
pub mod doctor;
pub mod embed;
pub mod io;
pub mod limits;
pub mod nearest;
pub mod node;
mod outage;
#[cfg(feature = "peers")]
pub mod peers;
pub mod policy;
mod quantity;
pub mod reason;
pub mod ring;
pub mod role;
#[cfg(feature = "dpdk")]
pub mod run;
pub mod stage;
pub mod state;
pub mod stats;
pub mod wire;
pub mod worker;

pub use quantity::quantity;

// Unit tests share helpers with the tests in tests/, which name the crate `wedjat`.
#[cfg(test)]
extern crate self as wedjat;
#[cfg(all(test, feature = "control"))]
#[path = "../tests/etcd/mod.rs"]
mod etcd;
#[cfg(all(test, feature = "control"))]
#[path = "../tests/patience/mod.rs"]
mod patience;
#[cfg(test)]
#[path = "../tests/rig/mod.rs"]
mod rig;

/// Time for which a test waits for an event. It is long because other work may slow the machine; only failing
/// tests reach it.
#[cfg(test)]
pub(crate) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(300);

/// Revision of the sources, as git describes it; `unknown` outside a repository.
pub const REVISION: &str = env!("WEDJAT_REVISION");
/// Output of `--version`: version, revision, and the release of DPDK at build time.
pub const VERSION: &str = env!("WEDJAT_VERSION");
/// Version of the compiler.
pub const RUSTC: &str = env!("WEDJAT_RUSTC");
