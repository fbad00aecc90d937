//! wedjat: a software leaf scheduler for microsecond tasks. A leaf sends each task of a rack to one of its
//! workers.
//!
//! This crate collects the crates of the scheduler under one name. Programs that embed the scheduler need [`embed`]
//! alone; it builds without the default features.
#![deny(unsafe_code)]

#[cfg(feature = "admin")]
pub use wedjat_admin as admin;
pub use wedjat_assembly as assembly;
pub use wedjat_assembly::embed;
#[cfg(feature = "admin")]
pub use wedjat_batch as cosched;
#[cfg(feature = "admin")]
pub use wedjat_core::peers;
pub use wedjat_core::{
    cpus, limits, nearest, node, policy, program, quantity, reason, ring, role, stage, state,
    stats, wire, worker,
};
pub use wedjat_desired::{config, control};
#[cfg(feature = "admin")]
pub use wedjat_fabric as controller;
#[cfg(feature = "admin")]
pub use wedjat_node::doctor;
#[cfg(feature = "dpdk")]
pub use wedjat_node::run;

/// Ports: devices that carry bursts of buffers, without a look inside.
pub mod io {
    #[cfg(feature = "admin")]
    pub use wedjat_admin::pcap;
    pub use wedjat_core::io::*;
    #[cfg(feature = "dpdk")]
    pub use wedjat_dpdk as dpdk;
}

/// Clocks of poll loops.
pub mod clock {
    pub use wedjat_core::clock::*;
    #[cfg(feature = "dpdk")]
    pub use wedjat_dpdk::{Adaptive, StallCounter};
}

/// Revision of the sources, as git describes it; `unknown` outside a repository.
pub const REVISION: &str = env!("WEDJAT_REVISION");
/// Output of `--version`: version, revision, and the release of DPDK at build time.
pub const VERSION: &str = env!("WEDJAT_VERSION");
/// Version of the compiler.
pub const RUSTC: &str = env!("WEDJAT_RUSTC");

/// Makes revision and compiler of this build the identity of the running program.
pub fn identify() {
    program::Program { revision: REVISION, rustc: RUSTC }.identify();
}
