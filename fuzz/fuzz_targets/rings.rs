#![no_main]
//! Fuzz target: overwrites words of the shared memory in which a dispatcher and two workers exchange tasks by
//! rings, while both sides use it.
//!
//! libFuzzer supplies `main`. The checks are in tests/fuzz_bodies/rings.rs. tests/fuzz_regressions.rs runs the same
//! checks with stored inputs.

#[path = "../../tests/fuzz_bodies/rings.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::run(input);
});
