#![no_main]
//! Fuzz target: reads arbitrary bytes as the text of a leaf's or spine's configuration file.
//!
//! libFuzzer supplies `main`. The checks are in tests/fuzz_bodies/config.rs. tests/fuzz_regressions.rs runs the
//! same checks with stored inputs.

#[path = "../../tests/fuzz_bodies/config.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
