#![no_main]
//! Fuzzes: any bytes as packets of a leaf.

#[path = "../../tests/fuzz_bodies/stages.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::run(input);
});
