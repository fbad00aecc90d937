//! Bindings to the installed libdpdk, generated at build time; safe owners live in `wedjat::io::dpdk`.
//!
//! The build script finds libdpdk (21.11 or later) through pkg-config, reads its headers with bindgen and compiles
//! C wrappers of its inline functions. `rte_mbuf` is opaque: the `WEDJAT_MBUF_*` constants are its field offsets as
//! the C compiler sees them.
//!
//! libdpdk is a shared library by default, which [`load`] loads, so that a program starts without it and says by itself what is
//! missing; EAL then loads the poll-mode drivers from [`WEDJAT_DRIVER_FOLDER`].
//! With the feature `static`, or with `WEDJAT_DPDK_STATIC=1` in the environment of the build, the archives of the
//! library and of every driver are linked whole, because drivers register themselves in constructors that nothing
//! refers to.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    reason = "generated from C headers"
)]

/// C's stdio stream; only its address is used.
pub type FILE = core::ffi::c_void;

/// Whether the archives were linked rather than the shared objects.
pub const LINKED_STATICALLY: bool = cfg!(dpdk_static);

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

#[cfg(not(dpdk_static))]
mod object;
#[cfg(not(dpdk_static))]
use object::FUNCTIONS;
#[cfg(not(dpdk_static))]
pub use object::load;

/// All is in the program.
///
/// # Errors
/// None.
#[cfg(dpdk_static)]
pub fn load() -> Result<(), String> {
    Ok(())
}
