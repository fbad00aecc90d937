//! Environments of attacks: a leaf in memory among its networks, the packets sent there, and nodes in
//! processes of their own.

pub mod memory;
pub mod packets;
pub mod processes;
pub mod segment;
