//! The scheduler for programs in C: opaque handles, arrays of the caller's, errors as codes.
//!
//! Every function checks what it is given as far as that can be checked, and contains what goes wrong behind it: no panic
//! crosses into C, and nothing is printed: records go to the program, if it asks for them. Only what begins and ends a scheduler
//! or a worker, or changes a scheduler, uses the allocator.
#![allow(unsafe_code, reason = "takes and gives pointers")]

pub mod calls;
pub mod change;
pub mod code;
pub mod create;
mod handle;
pub mod log;
pub mod tasks;
pub mod types;
pub mod worker;
