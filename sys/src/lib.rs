//! Bindings to the installed libdpdk, generated at build time; safe owners live in `wedjat::io::dpdk`.
//!
//! The build script finds libdpdk (21.11 or later) through pkg-config, reads its headers with bindgen and compiles
//! C wrappers of its inline functions. `rte_mbuf` is opaque: the `WEDJAT_MBUF_*` constants are its field offsets as
//! the C compiler sees them.
//!
//! Linking is shared by default, and EAL then loads the poll-mode drivers at run time from [`WEDJAT_DRIVER_FOLDER`].
//! With the feature `static`, or with `WEDJAT_DPDK_STATIC=1` in the environment of the build, the archives of the
//! library and of every driver are linked whole, because drivers register themselves in constructors that nothing
//! refers to.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    clippy::all,
    clippy::pedantic,
    reason = "generated from C headers"
)]

/// C's stdio stream; only its address is used.
pub type FILE = core::ffi::c_void;

/// Whether the archives were linked rather than the shared objects.
pub const LINKED_STATICALLY: bool = cfg!(dpdk_static);

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
