//! Tests of leaf, agent and both on one core. Each is built from a configuration, over ports in memory. The test polls
//! it and sets its clock. `translated` lets a test with IPv4 addresses also run over IPv6.

mod agent;
mod colocated;
mod fixtures;
mod leaf;
#[path = "../../../tests/family/mod.rs"]
mod translated;
