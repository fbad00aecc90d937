//! Three agents of a rack without a leaf, as processes in real time, over IPv4. An agent gives tasks to the workers of
//! its host; without a leaf, the agents are peers and pass tasks to each other. tests/peering/mod.rs contains the test,
//! for both address families. Each family has a program of its own, because DPDK starts once per process.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod echo;
mod family;
mod peering;
mod process;
mod timeouts;
mod wires;

// promise: agent.4
#[test]
fn killed_peer_loses_only_its_tasks() {
    peering::lose_only_tasks_of_the_killed_peer(family::Family::V4);
}
