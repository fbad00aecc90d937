#![no_main]
//! Fuzzes packets of a leaf with arbitrary bytes.

#[path = "../../tests/fuzz_bodies/stages.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::run(input);
});
