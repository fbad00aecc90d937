//! Replacement for `ports.rs` in a build without the feature `dpdk`: the same functions, which cannot use devices.

use wedjat_desired::config::NodeConfig;

use super::{Device, Finding, Machine, Status};

/// Reports that this build has no DPDK. That is a failure for a node with devices, and a warning otherwise.
pub fn library(_: &Machine, devices: &[Device]) -> Vec<Finding> {
    let found = "this build has no DPDK: it runs on in-memory ports only";
    let fix = "install libdpdk-dev and build with default features: cargo build --release";
    let status = if devices.is_empty() { Status::Warn } else { Status::Fail };
    vec![Finding::new(status, "libdpdk", found, fix)]
}

/// Reports that this build cannot open ports.
pub fn probe(_: NodeConfig<'_>, _: &[String], _: Option<u16>) -> Vec<Finding> {
    vec![Finding::fail("ports", "this build has no DPDK, so it cannot open them", "")]
}

/// Checks no socket: this build has no memif, DPDK's device for packets in shared memory. [`library`] reports the
/// missing DPDK.
pub fn memif_socket(_: &Device, name: &str) -> Finding {
    Finding::ok(name, "EAL makes it with net_memif")
}
