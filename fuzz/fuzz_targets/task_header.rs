#![no_main]
//! Fuzzes task headers with arbitrary bytes.

#[path = "../../tests/fuzz_bodies/task_header.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
