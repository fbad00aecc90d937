#![no_main]
//! Fuzz target: sends packets with arbitrary bytes through the stages (parse, classify, schedule, rewrite) of a
//! leaf, the process that schedules the tasks of a rack.
//!
//! libFuzzer supplies `main`. The checks are in tests/fuzz_bodies/stages.rs. tests/fuzz_regressions.rs runs the same
//! checks with stored inputs.

#[path = "../../tests/fuzz_bodies/stages.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::run(input);
});
