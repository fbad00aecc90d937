#![no_main]
//! Fuzzes writes into the rings of a dispatcher and two workers.

#[path = "../../tests/fuzz_bodies/rings.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::run(input);
});
