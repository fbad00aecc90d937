//! A RocksDB database for the testbed's workload of that name: filled once, then read by key and by full scans.
//!
//! Each published crate binds its own copy of RocksDB, which takes many minutes to compile. This one binds
//! the installed library. Without the feature `library` it is empty.

#[cfg(feature = "library")]
mod bindings;
#[cfg(feature = "library")]
mod database;

#[cfg(feature = "library")]
pub use database::{Database, Error, fill};
