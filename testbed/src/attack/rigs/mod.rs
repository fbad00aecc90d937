//! What attacks run on: a leaf in memory among its networks, and the packets that go there.

pub mod memory;
pub mod packets;
pub mod segment;
