//! What the fuzz targets do with an input: shared by `fuzz/`, where a fuzzer invents inputs, and by the test that
//! feeds kept ones.

pub mod config;
pub mod memif_control;
pub mod offer;
pub mod rings;
pub mod stages;
pub mod state_file;
pub mod task_header;
