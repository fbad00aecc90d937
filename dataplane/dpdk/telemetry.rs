//! Commands of DPDK's telemetry. Its own threads answer, one per client, never a core. DPDK's tools show the answers.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::catch_unwind;
use std::sync::OnceLock;

use wedjat_sys as sys;

use super::eal::{Eal, error_text};

/// Maximum length of a list; the rest is left out.
pub const LIST_MAX: usize = sys::RTE_TEL_MAX_ARRAY_ENTRIES as usize;

/// A value of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A text, of which telemetry keeps about 60 to 120 bytes.
    Text(String),
}

/// Answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A list of numbers, at most [`LIST_MAX`].
    Numbers(Vec<u64>),
    /// A list of texts, at most [`LIST_MAX`].
    Texts(Vec<String>),
    /// Values by name; names consist of lower-case letters, digits and underscores.
    Table(Vec<(String, Value)>),
}

/// Answers a command, given its path and the text after the first comma; `None` for an unknown one. Telemetry's threads
/// call it, several at a time.
pub type Answerer = fn(&str, &str) -> Option<Answer>;

/// Answerer of the registered commands.
static ANSWERER: OnceLock<Answerer> = OnceLock::new();

/// Registers commands, as pairs of path and help, for the rest of the process. The `answerer` of the first call answers
/// all commands; later calls ignore theirs. Logs commands that telemetry refuses, and skips those with a NUL byte.
pub fn register(_eal: &Eal, commands: &[(String, &str)], answerer: Answerer) {
    ANSWERER.get_or_init(|| answerer);
    for (path, help) in commands {
        let texts = CString::new(path.as_str()).ok().zip(CString::new(*help).ok());
        let Some((command, help)) = texts else { continue };
        // SAFETY: EAL runs; telemetry copies both texts, and the callback lives as long as the process.
        let result = unsafe {
            sys::rte_telemetry_register_cmd(command.as_ptr(), Some(answer), help.as_ptr())
        };
        if result < 0 {
            log::warn!("telemetry refuses {path}: {}", error_text(result));
        }
    }
}

/// Answers a command by the registered answerer. A telemetry thread calls it. A panic becomes an error.
unsafe extern "C" fn answer(
    command: *const c_char,
    parameters: *const c_char,
    data: *mut sys::rte_tel_data,
) -> c_int {
    let text = |text: *const c_char| {
        if text.is_null() {
            return String::new();
        }
        // SAFETY: telemetry passes a string that lives during the call, or null without parameters.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    let (command, parameters) = (text(command), text(parameters));
    let result =
        catch_unwind(|| ANSWERER.get().and_then(|answerer| answerer(&command, &parameters)));
    match result.ok().flatten() {
        Some(answer) => write(data, &answer),
        None => -libc::EINVAL,
    }
}

/// Writes an answer. Returns 0, which means success.
fn write(data: *mut sys::rte_tel_data, answer: &Answer) -> c_int {
    let c_string = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
    // SAFETY: `data` is the answer to fill, and telemetry copies each value. It refuses or truncates values
    // that do not fit, and the rest stays valid.
    unsafe {
        match answer {
            Answer::Numbers(numbers) => {
                sys::wedjat_tel_start_numbers(data);
                for &number in numbers {
                    sys::wedjat_tel_array_number(data, number);
                }
            }
            Answer::Texts(texts) => {
                sys::wedjat_tel_start_texts(data);
                for text in texts {
                    sys::rte_tel_data_add_array_string(data, c_string(text).as_ptr());
                }
            }
            Answer::Table(values) => {
                sys::rte_tel_data_start_dict(data);
                for (name, value) in values {
                    let name = c_string(name);
                    match value {
                        Value::Number(number) => {
                            sys::wedjat_tel_dict_number(data, name.as_ptr(), *number)
                        }
                        Value::Text(text) => sys::rte_tel_data_add_dict_string(
                            data,
                            name.as_ptr(),
                            c_string(text).as_ptr(),
                        ),
                    };
                }
            }
        }
    }
    0
}
