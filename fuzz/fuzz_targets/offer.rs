#![no_main]
//! Fuzzes an agent's offer to a worker with arbitrary bytes.

#[path = "../../tests/fuzz_bodies/offer.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::run(input);
});
