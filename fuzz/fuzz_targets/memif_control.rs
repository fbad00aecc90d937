#![no_main]
//! Fuzz target: interprets arbitrary bytes as a sequence of memif control messages, the handshake of DPDK's
//! shared-memory network device.
//!
//! libFuzzer supplies `main`. The checks are in tests/fuzz_bodies/memif_control.rs. tests/fuzz_regressions.rs runs
//! the same checks with stored inputs.

#[path = "../../tests/fuzz_bodies/memif_control.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::run(input);
});
