//! wedjat: a software leaf scheduler for microsecond tasks.
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

// Unit tests share a rig with those in tests/, which use the crate's name.
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
