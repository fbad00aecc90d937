#![no_main]
//! Fuzz target: reads arbitrary bytes as a state file (the file with copies of a node's state), and a valid state
//! file with arbitrary changed words.
//!
//! libFuzzer supplies `main`. The checks are in tests/fuzz_bodies/state_file.rs. tests/fuzz_regressions.rs runs the
//! same checks with stored inputs.

#[path = "../../tests/fuzz_bodies/state_file.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::run(input);
});
