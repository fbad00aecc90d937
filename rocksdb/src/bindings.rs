//! Bindings of those C functions of RocksDB that `database` calls and wraps. The build script generates them from
//! `rocksdb/c.h`.
#![allow(
    missing_docs,
    non_camel_case_types,
    unsafe_code,
    clippy::all,
    clippy::pedantic,
    reason = "generated from C headers"
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
