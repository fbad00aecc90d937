//! The shared objects that the build script linked with libdpdk: their bytes, and their functions once loaded.
//!
//! A program with libdpdk as an ordinary library does not start without it, not even to check a file. A table of
//! pointers into libdpdk is not enough: DPDK's inline functions need C that is compiled against DPDK's data. Two
//! programs, with and without DPDK, would concern systemd units, capabilities and every caller. A call through the
//! table costs one additional load.
//!
//! A second object has the functions for event devices. Only a benchmark uses it, so no package needs its libraries.

use core::ffi::{CStr, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::sync::OnceLock;

use super::{COUNT, wedjat_event_functions};

/// The object, for its length.
const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dpdk.so"));

/// The object, in its own section, so that packagers can extract it and see its dependencies.
#[unsafe(link_section = ".wedjat.dpdk")]
static OBJECT: [u8; BYTES.len()] = *include_bytes!(concat!(env!("OUT_DIR"), "/dpdk.so"));

/// The second object, with the functions of `events.c`.
const EVENTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/events.so"));

/// Table of the functions that the bindings call, `COUNT` in number. The build script generates the bindings, and the
/// object's own table with the same functions in the same order.
pub static FUNCTIONS: [AtomicPtr<c_void>; COUNT] =
    [const { AtomicPtr::new(unloaded as *const () as *mut c_void) }; COUNT];

/// Stands for every function while libdpdk is not loaded. It never returns, so its arguments do not matter.
extern "C" fn unloaded() {
    eprintln!("a defect: libdpdk is called before it is loaded");
    std::process::abort();
}

/// Loads libdpdk on the first call. Later calls return the first result.
///
/// # Errors
/// If it cannot be loaded. The system's text gives the cause, such as a library that is missing or does not fit.
pub fn load() -> Result<(), String> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    LOADED
        .get_or_init(|| open(&OBJECT, c"wedjat_functions").map(|table| fill(table.cast())))
        .clone()
}

/// Loads the functions of `events.c` on the first call. Later calls return the first result.
///
/// # Errors
/// Same as for [`load`].
pub fn event_functions() -> Result<&'static wedjat_event_functions, String> {
    static LOADED: OnceLock<Result<&wedjat_event_functions, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let functions: *const wedjat_event_functions =
            open(EVENTS, c"wedjat_event_functions")?.cast();
        // SAFETY: the object has a constant of this name, whose type is from the same header, and it stays loaded.
        Ok(unsafe { &*functions })
    });
    loaded.clone()
}

/// Loads an object and returns the address of its `symbol`. The object stays loaded, because DPDK's threads never end.
fn open(object: &[u8], symbol: &CStr) -> Result<*const c_void, String> {
    // SAFETY: a plain system call with a static name.
    let descriptor = unsafe { libc::memfd_create(c"wedjat-dpdk".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error().to_string());
    }
    // SAFETY: the descriptor is open and has no other owner.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(object).map_err(|error| error.to_string())?;
    let path = format!("/proc/self/fd/{}\0", file.as_raw_fd());
    // SAFETY: the path ends with a NUL byte and the object is our own. Libraries that it needs run their
    // initialisers, just like at the start of a program. The names are static.
    let address = unsafe {
        let object = libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        match object.is_null() {
            true => std::ptr::null_mut(),
            false => libc::dlsym(object, symbol.as_ptr()),
        }
    };
    if address.is_null() {
        return Err(reason());
    }
    // The descriptor stays open. The loader finds a loaded object by its path, which must not name another one later.
    let _ = file.into_raw_fd();
    Ok(address.cast_const())
}

/// Copies the object's table to `FUNCTIONS`. `Relaxed` suffices: other threads call a function only after `load`,
/// whose `OnceLock` orders the stores.
fn fill(table: *const *mut c_void) {
    for (index, function) in FUNCTIONS.iter().enumerate() {
        // SAFETY: the object's table has the same number of functions, none of them null.
        function.store(unsafe { *table.add(index) }, Relaxed);
    }
}

/// Returns the system's reason why `dlopen` or `dlsym` failed last.
fn reason() -> String {
    // SAFETY: the result is null or a thread-local string, which is copied at once.
    unsafe {
        let message = libc::dlerror();
        match message.is_null() {
            true => "the system does not say why".to_owned(),
            false => CStr::from_ptr(message).to_string_lossy().into_owned(),
        }
    }
}
