#![no_main]
//! Fuzzes: any bytes as what an agent offers to a worker.

#[path = "../../tests/fuzz_bodies/offer.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::run(input);
});
