//! A spine and two leaves over IPv4, as processes.
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
fn spine_serves_clients_after_losing_a_leaf() {
    serving::serve_and_lose_a_leaf(family::Family::V4);
}
