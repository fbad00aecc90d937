#![no_main]
//! Fuzzes sequences of memif control messages.

#[path = "../../tests/fuzz_bodies/memif_control.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::run(input);
});
