//! Demo: a real leaf process (the scheduler of a rack) under several policies and loads, with a report to share. Its
//! time is emulated ([`emulated`]) or real ([`row`], [`page`]). The demo of a whole fabric ([`fabric`]) has a
//! controller, spines, leaves and agents, always in emulated time.

pub mod emulated;
pub mod fabric;
pub mod leaf;
pub mod machine;
pub mod page;
pub mod row;

pub use leaf::{LeafConfig, NodeProcess, ProcessError};
pub use row::Row;
