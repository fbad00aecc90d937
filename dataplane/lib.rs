//! wedjat: a software leaf scheduler for microsecond tasks. A leaf is the process that sends each task of a rack to one
//! of the rack's workers.
//!
//! This crate has no logic of its own. It collects the crates of the scheduler under one name. Programs that embed the
//! scheduler need [`embed`] alone; it builds without the default features.

pub use wedjat_assembly as assembly;
pub use wedjat_assembly::embed;
pub use wedjat_core::{
    clock, cpus, limits, nearest, node, policy, program, quantity, reason, ring, role, stage,
    state, stats, wire, worker,
};
pub use wedjat_desired::{config, control};
#[cfg(feature = "dpdk")]
pub use wedjat_node::run;
#[cfg(feature = "admin")]
pub use {
    wedjat_admin as admin, wedjat_batch as cosched,
    wedjat_core::peers,
    wedjat_fabric as controller,
    wedjat_node::{advice, doctor},
};

/// Ports: devices that receive and send bursts of buffers. They do not read the contents.
pub mod io {
    #[cfg(feature = "admin")]
    pub use wedjat_admin::pcap;
    pub use wedjat_core::io::*;
    #[cfg(feature = "dpdk")]
    pub use wedjat_dpdk as dpdk;
}

/// Revision of the sources, as git describes it; `unknown` outside a repository.
pub const REVISION: &str = env!("WEDJAT_REVISION");
/// Output of `--version`: version, revision, and the release of DPDK at build time.
pub const VERSION: &str = env!("WEDJAT_VERSION");
/// Version of the compiler.
pub const RUSTC: &str = env!("WEDJAT_RUSTC");

/// Makes revision, version and compiler of this build the identity of the running program, which metrics and reports
/// contain. Each program of the project calls it first.
pub fn identify() {
    program::Program { revision: REVISION, version: VERSION, rustc: RUSTC }.identify();
}
