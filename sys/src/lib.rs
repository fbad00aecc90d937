//! Bindings to the installed libdpdk, generated at build time. Safe owners are in the crate `wedjat-dpdk`.
//!
//! The build script finds libdpdk (21.11 or later) through pkg-config, reads its headers with bindgen and
//! compiles C wrappers of its inline functions. `rte_mbuf` is opaque: the `WEDJAT_MBUF_*` constants are its
//! field offsets as the C compiler sees them.
//!
//! By default libdpdk is a shared library that [`load`] loads. So a program starts without it and can report
//! missing parts itself. EAL then loads the poll-mode drivers from [`WEDJAT_DRIVER_FOLDER`]. With the feature
//! `static`, or with `WEDJAT_DPDK_STATIC=1` in the build's environment, the archives of the library and of
//! every driver are linked whole. This is needed because drivers register themselves in constructors without
//! any reference to them.
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

/// Release of libdpdk at build time, for instance 22.11.4.
pub const VERSION: &str = env!("WEDJAT_DPDK_VERSION");
/// True if the archives were linked instead of the shared objects.
pub const LINKED_STATICALLY: bool = cfg!(dpdk_static);

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

// The bindings call the functions of the shared object through this table.
#[cfg(not(dpdk_static))]
mod object;
#[cfg(not(dpdk_static))]
use object::FUNCTIONS;
#[cfg(not(dpdk_static))]
pub use object::{event_functions, load};

/// Does nothing: the program contains the library.
///
/// # Errors
/// Never fails.
#[cfg(dpdk_static)]
pub fn load() -> Result<(), String> {
    Ok(())
}

/// Returns the functions of `events.c`, which the program contains.
///
/// # Errors
/// Never fails.
#[cfg(dpdk_static)]
pub fn event_functions() -> Result<&'static wedjat_event_functions, String> {
    unsafe extern "C" {
        #[link_name = "wedjat_event_functions"]
        static FUNCTIONS: wedjat_event_functions;
    }
    // SAFETY: `events.c` defines this constant, with the type from the same header.
    Ok(unsafe { &FUNCTIONS })
}
