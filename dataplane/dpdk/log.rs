//! DPDK's log as records with the target `dpdk` in wedjat's own log.
#![allow(unsafe_code, reason = "a stream of C's stdio whose writing is ours")]

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use wedjat_sys as sys;

/// Target of the records.
const TARGET: &str = "dpdk";

/// `cookie_io_functions_t` of stdio.h: functions of a C stream that the program implements itself.
#[repr(C)]
struct CookieFunctions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut libc::off64_t, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    /// glibc's function that opens a C stream on such functions.
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: CookieFunctions,
    ) -> *mut libc::FILE;
}

/// Redirects DPDK's log to wedjat's, or to standard error if the system gives no stream. EAL flushes after
/// each message, so each arrives in one piece.
pub(super) fn redirect() {
    /// Address of the stream, which is never closed: any thread of EAL may be writing to it.
    static STREAM: OnceLock<usize> = OnceLock::new();
    let stream = *STREAM.get_or_init(|| {
        let functions = CookieFunctions { read: None, write: Some(write), seek: None, close: None };
        // SAFETY: the mode is a string, the cookie is unused, and `write` keeps the contract of stdio.
        unsafe { fopencookie(std::ptr::null_mut(), c"w".as_ptr(), functions) as usize }
    });
    // SAFETY: the stream is never closed. A null pointer selects DPDK's default.
    unsafe { sys::rte_openlog_stream((stream as *mut libc::FILE).cast()) };
}

/// Starts of the harmless warnings of each normal start. The second concerns devices that a primary process shares with
/// secondary ones; wedjat shares none.
const HARMLESS: [&str; 2] = [
    "TELEMETRY: No legacy callbacks",
    "rte_pmd_memif_probe(): Failed to register mp action callback: Operation not supported",
];

/// Returns the level for a line that DPDK logs at `level`.
fn level_of_line(line: &str, level: log::Level) -> log::Level {
    if HARMLESS.iter().any(|start| line.starts_with(start)) { log::Level::Debug } else { level }
}

/// Logs the lines captured while EAL started or a device was opened. Their levels are lost. EAL starts with
/// `--log-level warning` by default, so they count as warnings, except `HARMLESS` ones.
pub(super) fn log_captured(text: &str) {
    for line in text.lines() {
        log::log!(target: TARGET, level_of_line(line, log::Level::Warn), "{line}");
    }
}

/// Writes bytes of the stream to wedjat's log, with the level of DPDK's current message. Accepts all bytes in any case;
/// stdio would repeat the call otherwise.
unsafe extern "C" fn write(_: *mut c_void, text: *const c_char, len: usize) -> isize {
    // SAFETY: stdio passes `len` bytes that live during the call.
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: reads a thread-local variable.
        let level = level(unsafe { sys::rte_log_cur_msg_loglevel() });
        log_message(&String::from_utf8_lossy(text), level);
    }));
    len as isize
}

/// Logs a message. Without a logger prints it to standard error, as DPDK's own stream would.
fn log_message(text: &str, level: log::Level) {
    if log::max_level() == log::LevelFilter::Off {
        eprint!("{text}");
        return;
    }
    let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    lines.for_each(|line| log::log!(target: TARGET, level_of_line(line, level), "{line}"));
}

/// Converts DPDK's log level: `RTE_LOG_ERR` is 4, `RTE_LOG_DEBUG` 8.
fn level(dpdk_level: c_int) -> log::Level {
    match dpdk_level {
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
    fn dpdk_levels_are_converted() {
        let levels = [4, 5, 6, 7, 8].map(level);
        use log::Level::{Debug, Error, Info, Warn};
        assert_eq!(levels, [Error, Warn, Info, Info, Debug]);
        assert_eq!(level_of_line(&format!("{}\r", HARMLESS[1]), Warn), Debug);
        let other = "rte_pmd_memif_probe(): Failed to register mp action callback: No space";
        assert_eq!(level_of_line(other, Warn), Warn);
    }
}
