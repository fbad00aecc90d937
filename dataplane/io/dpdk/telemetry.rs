//! Commands of DPDK's telemetry: its own thread asks, never a core, and its own tools show the answers.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::catch_unwind;
use std::sync::OnceLock;

use wedjat_sys as sys;

use super::eal::{Eal, error_text};

/// Numbers or texts that a list has at most; of longer ones the rest is left out.
pub const LIST_MAX: usize = sys::RTE_TEL_MAX_ARRAY_ENTRIES as usize;

/// A value of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A text, of which telemetry keeps some 60 to 120 bytes.
    Text(String),
}

/// What a command answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A list of numbers, at most [`LIST_MAX`].
    Numbers(Vec<u64>),
    /// A list of texts, as many.
    Texts(Vec<String>),
    /// Values by name; names are of small letters, digits and underscores.
    Table(Vec<(String, Value)>),
}

/// Answers a command, given its whole path and what follows the first comma; none when there is nothing of that name. It is
/// called on telemetry's thread.
pub type Answerer = fn(&str, &str) -> Option<Answer>;

static ANSWERER: OnceLock<Answerer> = OnceLock::new();

/// Registers commands, pairs of path and help, for as long as the process runs: all are answered by the first `answerer`.
/// A command that is refused is told of in the log.
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

/// Called by telemetry's thread. A panic becomes an error.
unsafe extern "C" fn answer(
    command: *const c_char,
    parameters: *const c_char,
    data: *mut sys::rte_tel_data,
) -> c_int {
    let text = |text: *const c_char| {
        if text.is_null() {
            return String::new();
        }
        // SAFETY: telemetry gives a string that lives during the call, or null for no parameters.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    let (command, parameters) = (text(command), text(parameters));
    let answered =
        catch_unwind(|| ANSWERER.get().and_then(|answerer| answerer(&command, &parameters)));
    match answered.ok().flatten() {
        Some(answer) => write(data, &answer),
        None => -libc::EINVAL,
    }
}

fn write(data: *mut sys::rte_tel_data, answer: &Answer) -> c_int {
    let c_string = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
    // SAFETY: `data` is the answer that telemetry wants filled, and copies what it is given. A value too many or too long is
    // refused or cut off by telemetry, and what is there stays right.
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
