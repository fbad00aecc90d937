//! Demo: a real leaf process (the scheduler of a rack) under several policies and loads, with a report to share. The
//! demo of a fabric has spines, leaves and agents in emulated time.

pub mod emulated;
pub mod fabric;
pub mod leaf;
pub mod machine;
pub mod page;
pub mod row;

pub use leaf::{LeafConfig, NodeProcess, ProcessError};
pub use row::Row;
