//! A RocksDB database as the workload needs it: filled once, then read by key and from end to end.
//!
//! Published crates bind one RocksDB each, which they bring along and compile for many minutes; this one binds the
//! library that is installed.
#![deny(unsafe_code)]

mod bindings;
mod database;

pub use database::{Database, Error, fill};
