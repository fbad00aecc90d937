//! Bodies of the fuzz targets: each `run` feeds one input to a parser or state machine, and panics if a check fails.
//! The programs in fuzz/ call them with a fuzzer's inputs, and tests/fuzz_regressions.rs with stored inputs.

pub mod config;
pub mod memif_control;
pub mod offer;
pub mod rings;
pub mod stages;
pub mod state_file;
pub mod task_header;
