//! Environments of attacks: a leaf in memory (`memory`) on emulated networks (`segment`), the packets sent to it, and
//! nodes in processes of their own.

pub mod memory;
pub mod packets;
pub mod processes;
pub mod segment;
