//! A spine and two leaves over IPv6, as processes. A spine schedules tasks over leaves, and a leaf over the workers
//! of its rack. tests/serving/mod.rs contains the test, for both address families. Each family has a program of its
//! own, because DPDK starts once per process.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod family;
mod frames;
mod process;
mod serving;
mod switch;
mod timeouts;
mod wires;

// promise: fabric.3
#[test]
fn ipv6_spine_serves_clients_after_losing_a_leaf() {
    serving::serve_and_lose_a_leaf(family::Family::V6);
}
