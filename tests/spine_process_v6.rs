//! A spine and two leaves over IPv6, as processes.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod family;
mod frames;
mod patience;
mod process;
mod serving;
mod switch;
mod wires;

#[test]
fn over_ipv6_a_spine_and_its_leaves_serve_clients_and_one_leaf_goes_on_alone() {
    serving::serve_and_lose_a_leaf(family::Family::V6);
}
