//! Desired state of a node (leaf, spine or agent): its configuration file, and the changes that it takes while it runs.
//!
//! [`config`] reads and checks files. [`state`] is the form of a desired state that files and controllers share.
//! [`plan`] computes the changes that lead a running node to it, and [`control`] applies them to the node's cores.
// A build without a feature still reads the feature's table, to refuse it by name.
#![cfg_attr(
    not(all(feature = "batch", feature = "peers")),
    allow(dead_code, reason = "[cosched] or [peers] is read, and refused")
)]

pub mod config;
pub mod control;
pub mod plan;
pub mod state;
