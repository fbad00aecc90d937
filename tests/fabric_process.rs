//! Two spines, two leaves and their controller as processes in real time, over IPv4. The nodes follow the controller:
//! it sends them their pools, servers and workers. tests/following/mod.rs contains the test, for both address families.
//! Each family has a program of its own: the test process is the switch between the nodes, and DPDK starts only once
//! per process.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod family;
mod following;
mod frames;
mod process;
mod switch;
mod timeouts;
mod wires;

// promise: fabric.3
#[test]
fn followed_fabric_survives_spine_and_controller_loss() {
    following::survive_spine_and_controller_loss(family::Family::V4);
}
