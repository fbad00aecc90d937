//! wedjat: a software leaf scheduler for microsecond tasks.
#![deny(unsafe_code)]

pub mod io;
pub mod limits;
pub mod policy;
pub mod reason;
pub mod state;
pub mod wire;
