//! Tests of leaf, agent and both on one core, built from configurations.

mod agent;
mod colocated;
mod fixtures;
mod leaf;
#[path = "../../../tests/family/mod.rs"]
mod translated;
