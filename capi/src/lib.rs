//! C interface of the scheduler: opaque handles, the caller's arrays, and error codes.
//!
//! A C program creates a scheduler from a configuration. A context is one core's part of it, for programs that
//! pass packets. A picker is one core's part, for programs that pass tasks as values. A worker is the end of an
//! agent's channel, in a process that serves tasks.
//!
//! Every function checks its arguments as far as possible, and catches panics of the library. No panic crosses
//! into C. The library prints nothing, except before a stack overflow of a task ends the process. The program may
//! request its log records. Only these functions use the allocator: creation, change and end of a scheduler,
//! wedjat_workers(), attach and detach of a worker, and wedjat_worker_serve().
#![allow(unsafe_code, reason = "takes and gives pointers")]

pub mod calls;
pub mod change;
pub mod code;
pub mod create;
mod handle;
pub mod log;
pub mod share;
pub mod tasks;
pub mod types;
pub mod worker;
