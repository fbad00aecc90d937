#![no_main]
//! Fuzzes configurations with arbitrary bytes.

#[path = "../../tests/fuzz_bodies/config.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
