//! Bytes to values and back: no state, no I/O, no unsafe.
pub mod task;
