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

// Unit tests share a rig with those in tests/, which name the crate.
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

/// Tests wait so long for what must come, whatever else the machine does: it ends only those that fail.
#[cfg(test)]
pub(crate) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(300);

/// The revision of the sources, as git describes it; `unknown` outside a repository.
pub const REVISION: &str = env!("WEDJAT_REVISION");
/// Version, revision, and the release of DPDK that it was built against: what `--version` says.
pub const VERSION: &str = env!("WEDJAT_VERSION");
/// The compiler.
pub const RUSTC: &str = env!("WEDJAT_RUSTC");
