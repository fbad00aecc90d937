//! Log records of the library, given to the program.

use std::ffi::{CString, c_char, c_void};
use std::sync::{Mutex, Once, PoisonError};

use log::{LevelFilter, Log, Metadata, Record};

use crate::code::*;

/// Something has failed.
pub const WEDJAT_LOG_ERROR: i32 = 1;
/// Something may not be as it is meant.
pub const WEDJAT_LOG_WARN: i32 = 2;
/// Something has changed.
pub const WEDJAT_LOG_INFO: i32 = 3;
/// What is of use to whoever looks for a fault.
pub const WEDJAT_LOG_DEBUG: i32 = 4;

/// What is called for each record, or null: `user` as it was given, one of WEDJAT_LOG_..., and a text ended by a zero that lives as long as the
/// call.
pub type LogFunction =
    Option<unsafe extern "C" fn(user: *mut c_void, level: i32, text: *const c_char)>;

/// Who gets the records.
#[derive(Clone, Copy)]
struct Receiver {
    function: unsafe extern "C" fn(*mut c_void, i32, *const c_char),
    user: *mut c_void,
}

// SAFETY: the pointer is only handed back to the program, which says that any thread may have it.
unsafe impl Send for Receiver {}

static RECEIVER: Mutex<Option<Receiver>> = Mutex::new(None);

struct ToProgram;

impl Log for ToProgram {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let text = CString::new(record.args().to_string().replace('\0', " ")).unwrap_or_default();
        // Held during the call, so that nobody is called any more when the receiver has been replaced.
        let receiver = RECEIVER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Receiver { function, user }) = *receiver {
            // SAFETY: whoever gave the function vouches for it.
            unsafe { function(user, record.level() as i32, text.as_ptr()) };
        }
    }

    fn flush(&self) {}
}

/// Has `function` called, with `user` and a text, for each record of the library that is at least as important as `level`, one of
/// WEDJAT_LOG_...: changes that were made, why a state file could not be written, defects. For all schedulers and workers of the
/// process; a null `function` ends it. Once this returns, the function that was set before is called no more. No function that a
/// context or a picker is used with makes a record, unless it has a defect. Without a call of this the library says nothing.
///
/// # Return value
/// 0; or a code, and then nothing has changed.
///
/// # Errors
/// WEDJAT_ERROR_OPTIONS: No such level, or the program links another library that takes the records of Rust libraries.
///
/// # Called from
/// Any thread, lcore or not, of any process, also after fork(); not a signal handler, nor `function`.
///
/// # Safety
/// `function` may be called by any thread that calls the library, and by its own, and calls no function of the library itself.
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
    static LOGGER: ToProgram = ToProgram;
    BEGIN.call_once(|| {
        let _ = log::set_logger(&LOGGER); // looked at below
    });
    if !std::ptr::addr_eq(log::logger(), &raw const LOGGER) {
        return WEDJAT_ERROR_OPTIONS;
    }
    let receiver = function.map(|function| Receiver { function, user });
    *RECEIVER.lock().unwrap_or_else(PoisonError::into_inner) = receiver;
    log::set_max_level(if function.is_some() { filter } else { LevelFilter::Off });
    0
}
