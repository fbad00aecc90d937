//! A RocksDB database as the workload needs it: filled once, then read by key and from end to end.
//!
//! Published crates bind one RocksDB each, which they bring along and compile for many minutes; this one binds the
//! library that is installed. Without the feature `library` it is empty.
#![deny(unsafe_code)]

#[cfg(feature = "library")]
mod bindings;
#[cfg(feature = "library")]
mod database;

#[cfg(feature = "library")]
pub use database::{Database, Error, fill};
