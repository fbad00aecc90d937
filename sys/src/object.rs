//! The shared object that the build script has linked with libdpdk: its bytes, and the functions in it when it is loaded.

use core::ffi::{CStr, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::OnceLock;

use super::COUNT;

const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dpdk.so"));

/// In a section of its own, from which whoever makes a package can take it to see what it needs.
#[unsafe(link_section = ".wedjat.dpdk")]
static OBJECT: [u8; BYTES.len()] = *include_bytes!(concat!(env!("OUT_DIR"), "/dpdk.so"));

/// What the bindings call. The build script's C has the same functions in the same order.
pub static FUNCTIONS: [AtomicPtr<c_void>; COUNT] =
    [const { AtomicPtr::new(unloaded as *const () as *mut c_void) }; COUNT];

/// Called in the place of a function while libdpdk is not loaded. It never returns, so it does not matter what it was given.
extern "C" fn unloaded() {
    eprintln!("a defect: libdpdk is called before it is loaded");
    std::process::abort();
}

/// Loads libdpdk, if that has not been done, and tells what keeps it from being loaded.
///
/// # Errors
/// The system's words, which name the library that is missing or does not fit.
pub fn load() -> Result<(), String> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    LOADED.get_or_init(|| open().map(fill)).clone()
}

/// The table of a loaded object, which stays loaded: DPDK's threads never end.
fn open() -> Result<*const *mut c_void, String> {
    // SAFETY: a plain system call with a static name.
    let descriptor = unsafe { libc::memfd_create(c"wedjat-dpdk".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error().to_string());
    }
    // SAFETY: the descriptor is open and nobody else's.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(&OBJECT).map_err(|error| error.to_string())?;
    let path = format!("/proc/self/fd/{}\0", file.as_raw_fd());
    // SAFETY: the path ends with a NUL byte and the object is ours; libraries that it needs run their initialisers, as they would at
    // a program's start. The names are static.
    let table = unsafe {
        let object = libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        match object.is_null() {
            true => std::ptr::null_mut(),
            false => libc::dlsym(object, c"wedjat_functions".as_ptr()),
        }
    };
    if table.is_null() {
        return Err(reason());
    }
    Ok(table.cast_const().cast())
}

fn fill(table: *const *mut c_void) {
    for (at, function) in FUNCTIONS.iter().enumerate() {
        // SAFETY: the object's table has as many functions, none of which is null.
        function.store(unsafe { *table.add(at) }, Relaxed);
    }
}

/// Why the last call of the loader failed.
fn reason() -> String {
    // SAFETY: what it returns is a string of this thread's that is copied at once, or null.
    unsafe {
        let said = libc::dlerror();
        match said.is_null() {
            true => "the system does not say why".to_owned(),
            false => CStr::from_ptr(said).to_string_lossy().into_owned(),
        }
    }
}
