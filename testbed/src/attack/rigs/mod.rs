//! What attacks run on: a leaf in memory among its networks, the packets that go there, and nodes that are processes.

pub mod memory;
pub mod packets;
#[cfg(feature = "dpdk")]
pub mod processes;
pub mod segment;
