#![no_main]
//! Fuzz target: reads arbitrary bytes as an offer. An agent (the process that gives tasks to worker processes)
//! sends the offer to a connecting worker; it describes their shared memory.
//!
//! libFuzzer supplies `main`. The checks are in tests/fuzz_bodies/offer.rs. tests/fuzz_regressions.rs runs the same
//! checks with stored inputs.

#[path = "../../tests/fuzz_bodies/offer.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::run(input);
});
