//! Desired state of a node: its configuration file, and the changes that it takes while it runs.
#![deny(unsafe_code)]
#![cfg_attr(
    not(all(feature = "batch", feature = "peers")),
    allow(dead_code, reason = "[cosched] or [peers] is read, and refused")
)]

pub mod config;
pub mod control;
pub mod plan;
pub mod state;
