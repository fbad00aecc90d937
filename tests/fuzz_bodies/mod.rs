//! Bodies of the fuzz targets. `fuzz/` runs them with a fuzzer, and a regression test with stored inputs.

pub mod config;
pub mod memif_control;
pub mod offer;
pub mod rings;
pub mod stages;
pub mod state_file;
pub mod task_header;
