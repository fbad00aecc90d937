#![no_main]
//! Fuzzes a state file with arbitrary bytes, and words within a valid one.

#[path = "../../tests/fuzz_bodies/state_file.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::run(input);
});
