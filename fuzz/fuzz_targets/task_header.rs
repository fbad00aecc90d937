#![no_main]
//! Fuzz target: parses arbitrary bytes as a task header, the header behind UDP of each task and reply.
//!
//! libFuzzer supplies `main`. The checks are in tests/fuzz_bodies/task_header.rs. tests/fuzz_regressions.rs runs the
//! same checks with stored inputs.

#[path = "../../tests/fuzz_bodies/task_header.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
