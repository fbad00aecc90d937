#![no_main]
//! Fuzzes: any bytes as a state file, and any words within one.

#[path = "../../tests/fuzz_bodies/state_file.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::run(input);
});
