//! Desired state of a node: its configuration file, and the changes that it takes while it runs.
#![deny(unsafe_code)]

pub mod config;
pub mod control;
