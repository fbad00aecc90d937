//! The bindings that the build script generates from `rocksdb/c.h`.
#![allow(
    missing_docs,
    non_camel_case_types,
    unsafe_code,
    clippy::all,
    clippy::pedantic,
    reason = "generated from C headers"
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
