//! Log records of the library, passed to a function of the C program. The Rust library writes them with the crate
//! `log`, which has one logger for the process.

use std::ffi::{CString, c_char, c_void};
use std::sync::{Mutex, Once, PoisonError};

use log::{LevelFilter, Log, Metadata, Record};

use crate::code::*;

/// A failure.
pub const WEDJAT_LOG_ERROR: i32 = 1;
/// A possible mistake.
pub const WEDJAT_LOG_WARN: i32 = 2;
/// A change.
pub const WEDJAT_LOG_INFO: i32 = 3;
/// Details for debugging.
pub const WEDJAT_LOG_DEBUG: i32 = 4;

/// Function called for each record, or null. Its arguments are the given `user`, one of WEDJAT_LOG_..., and a
/// zero-terminated text that is valid during the call.
pub type LogFunction =
    Option<unsafe extern "C" fn(user: *mut c_void, level: i32, text: *const c_char)>;

/// Receiver of the records: the C program's function, and the pointer to pass to it.
#[derive(Clone, Copy)]
struct Receiver {
    function: unsafe extern "C" fn(*mut c_void, i32, *const c_char),
    user: *mut c_void,
}

// SAFETY: the pointer is only passed back to the program, which permits any thread to have it.
unsafe impl Send for Receiver {}

/// Current receiver of the process; `None` if the program wants no records.
static RECEIVER: Mutex<Option<Receiver>> = Mutex::new(None);

/// Logger that passes records to the receiver.
struct CallbackLogger;

impl Log for CallbackLogger {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true // the macros of `log` have compared the level already
    }

    fn log(&self, record: &Record<'_>) {
        let text = CString::new(record.args().to_string().replace('\0', " ")).unwrap_or_default();
        // The lock is held during the call, so that wedjat_set_log() waits for it before it replaces the
        // receiver.
        let receiver = RECEIVER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Receiver { function, user }) = *receiver {
            // The levels of `log` have the numbers of WEDJAT_LOG_....
            // SAFETY: the caller of wedjat_set_log() vouches for the function.
            unsafe { function(user, record.level() as i32, text.as_ptr()) };
        }
    }

    fn flush(&self) {}
}

/// Sets the function that receives the library's log records. The library calls it with `user` and a text for
/// each record at least as important as `level`, one of WEDJAT_LOG_...: changes made, reasons why a state
/// file could not be written, defects. One function serves all schedulers and workers of the process; null
/// ends it. After the return of this call the previous function is not called any more. Functions that use a
/// context or a picker make no records, except for a defect. By default the library logs nothing.
///
/// # Return value
/// 0; or a code, and then nothing has changed.
///
/// # Errors
/// WEDJAT_ERROR_OPTIONS: The level does not exist, or another linked library takes the records of Rust libraries.
///
/// # Called from
/// Any thread (lcore or not) of any process. After fork() only if no other thread was in a call of the library.
/// Not a signal handler, nor `function`.
///
/// # Safety
/// `function` may be called by any thread that calls the library, and by the library's own. It calls no
/// function of the library itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_set_log(
    function: LogFunction,
    user: *mut c_void,
    level: i32,
) -> i32 {
    let filter = match level {
        WEDJAT_LOG_ERROR => LevelFilter::Error,
        WEDJAT_LOG_WARN => LevelFilter::Warn,
        WEDJAT_LOG_INFO => LevelFilter::Info,
        WEDJAT_LOG_DEBUG => LevelFilter::Debug,
        _ => return WEDJAT_ERROR_OPTIONS,
    };
    static BEGIN: Once = Once::new();
    static LOGGER: CallbackLogger = CallbackLogger;
    BEGIN.call_once(|| {
        let _ = log::set_logger(&LOGGER); // fails if another library has set one; checked below
    });
    if !std::ptr::addr_eq(log::logger(), &raw const LOGGER) {
        return WEDJAT_ERROR_OPTIONS;
    }
    // Sets both with the lock, so that concurrent calls do not mix them.
    let mut receiver = RECEIVER.lock().unwrap_or_else(PoisonError::into_inner);
    *receiver = function.map(|function| Receiver { function, user });
    log::set_max_level(if function.is_some() { filter } else { LevelFilter::Off });
    0
}
