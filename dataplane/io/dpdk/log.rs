//! What DPDK logs, as records of ours with the target `dpdk`: one log with one form and one place.
#![allow(unsafe_code, reason = "a stream of C's stdio whose writing is ours")]

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use wedjat_sys as sys;

/// Target of the records.
const TARGET: &str = "dpdk";

/// `cookie_io_functions_t` of stdio.h.
#[repr(C)]
struct CookieFunctions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut libc::off64_t, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: CookieFunctions,
    ) -> *mut libc::FILE;
}

/// Has DPDK write to our log, or to standard error where the system gives no stream. EAL flushes it after each message, so
/// that each comes in one piece.
pub(super) fn redirect() {
    /// The stream's address; it is never closed, because any thread of EAL may be writing to it.
    static STREAM: OnceLock<usize> = OnceLock::new();
    let stream = *STREAM.get_or_init(|| {
        let functions = CookieFunctions { read: None, write: Some(write), seek: None, close: None };
        // SAFETY: the mode is a string, the cookie is not used, and `write` keeps to what is asked of it.
        unsafe { fopencookie(std::ptr::null_mut(), c"w".as_ptr(), functions) as usize }
    });
    // SAFETY: a stream that is never closed; a null one means DPDK's default.
    unsafe { sys::rte_openlog_stream((stream as *mut libc::FILE).cast()) };
}

/// Warnings of every ordinary start, without consequence: no primary process shares its devices with secondary ones.
const USUAL: [&str; 2] = [
    "TELEMETRY: No legacy callbacks",
    "rte_pmd_memif_probe(): Failed to register mp action callback: Operation not supported",
];

/// Level of a line that DPDK logs at `level`.
fn level_of_line(line: &str, level: log::Level) -> log::Level {
    if USUAL.iter().any(|usual| line.starts_with(usual)) { log::Level::Debug } else { level }
}

/// Logs what DPDK said while it was listened to. It says nothing below a warning unless it is told to.
pub(super) fn note(said: &str) {
    for line in said.lines() {
        log::log!(target: TARGET, level_of_line(line, log::Level::Warn), "{line}");
    }
}

/// Takes everything, whatever becomes of it: stdio would try again otherwise.
unsafe extern "C" fn write(_: *mut c_void, text: *const c_char, len: usize) -> isize {
    // SAFETY: stdio gives `len` bytes that are there during the call.
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: reads a variable of this thread.
        let level = level(unsafe { sys::rte_log_cur_msg_loglevel() });
        take(&String::from_utf8_lossy(text), level);
    }));
    len as isize
}

/// Where nobody keeps a log it goes to standard error, as DPDK's own stream would.
fn take(text: &str, level: log::Level) {
    if log::max_level() == log::LevelFilter::Off {
        eprint!("{text}");
        return;
    }
    let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    lines.for_each(|line| log::log!(target: TARGET, level_of_line(line, level), "{line}"));
}

/// DPDK's level of a message as one of ours.
fn level(of_dpdk: c_int) -> log::Level {
    match of_dpdk {
        ..=4 => log::Level::Error,
        5 => log::Level::Warn,
        6 | 7 => log::Level::Info,
        _ => log::Level::Debug,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_dpdk_are_ours() {
        let levels = [4, 5, 6, 7, 8].map(level);
        use log::Level::{Debug, Error, Info, Warn};
        assert_eq!(levels, [Error, Warn, Info, Info, Debug]);
        assert_eq!(level_of_line(&format!("{}\r", USUAL[1]), Warn), Debug);
        let other = "rte_pmd_memif_probe(): Failed to register mp action callback: No space";
        assert_eq!(level_of_line(other, Warn), Warn);
    }
}
