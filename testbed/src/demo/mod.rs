//! Demo: a real leaf process under several policies and loads, with a report to share.

pub mod emulated;
pub mod fabric;
pub mod leaf;
pub mod machine;
pub mod page;
pub mod row;

pub use leaf::{LeafConfig, NodeProcess, ProcessError};
pub use row::Row;
