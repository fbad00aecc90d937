//! Error codes, names of numbers, and the library's version.

use std::ffi::{CStr, c_char};

use wedjat::embed::Misuse;
use wedjat::reason::DropReason;
use wedjat::state::counters::{COUNT, METRICS};

/// Version of the interface. It grows when programs must be recompiled.
pub const WEDJAT_ABI: u32 = 0;
/// Maximum number of packets or tasks per call.
pub const WEDJAT_BURST: u32 = 32;
/// Bytes of a neighbour question (ARP) if no port has an IPv6 address.
pub const WEDJAT_QUESTION_SIZE: u32 = 42;
/// Maximum bytes of a neighbour question (neighbour discovery) if a port has an IPv6 address.
pub const WEDJAT_QUESTION_SIZE_V6: u32 = 86;
/// Worker id of a verdict without a worker.
pub const WEDJAT_NO_WORKER: u16 = 0x7FFF;

/// A required pointer is null. As errno: EFAULT.
pub const WEDJAT_ERROR_NULL: i32 = -1;
/// The pointer is no scheduler or worker, or it has been freed. As errno: EBADF.
pub const WEDJAT_ERROR_HANDLE: i32 = -2;
/// The context or picker is not the scheduler's, or has not been given out. As errno: EINVAL.
pub const WEDJAT_ERROR_CONTEXT: i32 = -3;
/// Another call uses the context, picker or worker. A scheduler with such
/// a context cannot be freed. As errno: EBUSY.
pub const WEDJAT_ERROR_BUSY: i32 = -4;
/// More than WEDJAT_BURST packets or tasks. As errno: E2BIG.
pub const WEDJAT_ERROR_BURST: i32 = -5;
/// The port does not exist. As errno: ENODEV.
pub const WEDJAT_ERROR_PORT: i32 = -6;
/// The worker does not exist. As errno: ESRCH.
pub const WEDJAT_ERROR_WORKER: i32 = -7;
/// An array is not aligned as its type requires. As errno: EFAULT.
pub const WEDJAT_ERROR_ALIGNMENT: i32 = -8;
/// The configuration is refused; the detail has the reason. As errno: EINVAL.
pub const WEDJAT_ERROR_CONFIG: i32 = -9;
/// The size of the options is unknown, or an option is invalid; the detail names it. As errno: EINVAL.
pub const WEDJAT_ERROR_OPTIONS: i32 = -10;
/// The core does not exist, or its context or picker has been given out. As errno: ENXIO.
pub const WEDJAT_ERROR_CORE: i32 = -11;
/// The caller's buffer is too small. As errno: ENOSPC.
pub const WEDJAT_ERROR_ROOM: i32 = -12;
/// A defect of the library; the context, picker or worker takes no more calls. As errno: ENOTRECOVERABLE.
pub const WEDJAT_ERROR_DEFECT: i32 = -13;

/// No agent granted a place to the worker; the detail has the reason. As errno: ECONNREFUSED.
pub const WEDJAT_ERROR_ATTACH: i32 = -14;
/// The agent has ended in order, or has removed this worker: no more tasks. As errno: ESHUTDOWN.
pub const WEDJAT_ERROR_STOPPED: i32 = -15;
/// The agent has excluded this worker: no more tasks. As errno: ETIMEDOUT.
pub const WEDJAT_ERROR_SHUT_OUT: i32 = -16;
/// The agent's process has died: no more tasks. As errno: EOWNERDEAD.
pub const WEDJAT_ERROR_AGENT_DIED: i32 = -17;
/// The worker holds no task. As errno: ENOMSG.
pub const WEDJAT_ERROR_NO_TASK: i32 = -18;
/// The answer is longer than the task's reply_max. As errno: EMSGSIZE.
pub const WEDJAT_ERROR_TOO_LONG: i32 = -19;
/// The agent's data is invalid: no more tasks. As errno: EPROTO.
pub const WEDJAT_ERROR_REGION: i32 = -20;
/// The change is refused; the detail has the reason. Nothing has changed. As errno: EINVAL.
pub const WEDJAT_ERROR_CHANGE: i32 = -21;
/// No memory is available on the NUMA node; the detail has the reason. As errno: EPERM.
pub const WEDJAT_ERROR_NODE: i32 = -22;
/// The port has an IPv6 address; use the call for IPv6. As errno: EAFNOSUPPORT.
pub const WEDJAT_ERROR_FAMILY: i32 = -23;

/// No request of wedjat_worker_request(): continue.
pub const WEDJAT_REQUEST_NOTHING: i32 = 0;
/// Another task waits behind this one.
pub const WEDJAT_REQUEST_TASK_WAITS: i32 = 1;
/// The agent wants to end and waits for this task, or has excluded the worker.
pub const WEDJAT_REQUEST_STOP: i32 = 2;
/// Former name of WEDJAT_REQUEST_NOTHING, kept for one release.
pub const WEDJAT_WISH_NOTHING: i32 = 0;
/// Former name of WEDJAT_REQUEST_TASK_WAITS, kept for one release.
pub const WEDJAT_WISH_TASK_WAITS: i32 = 1;
/// Former name of WEDJAT_REQUEST_STOP, kept for one release.
pub const WEDJAT_WISH_STOP: i32 = 2;

const _: () = assert!(WEDJAT_BURST as usize == wedjat::limits::BURST);
const _: () = assert!(WEDJAT_QUESTION_SIZE as usize == wedjat::wire::arp::FRAME_LEN);
const _: () = assert!(WEDJAT_QUESTION_SIZE_V6 as usize == wedjat::embed::QUESTION_LEN);
const _: () = assert!(WEDJAT_NO_WORKER == wedjat::wire::task::NO_MEMBER);

/// Returns the code of a call that the scheduler refused.
pub(crate) fn of_misuse(misuse: Misuse) -> i32 {
    match misuse {
        Misuse::Port => WEDJAT_ERROR_PORT,
        Misuse::Burst => WEDJAT_ERROR_BURST,
        Misuse::Verdicts => WEDJAT_ERROR_ROOM,
        Misuse::Worker => WEDJAT_ERROR_WORKER,
    }
}

/// Returns the meaning of a code.
fn message(code: i32) -> &'static CStr {
    match code {
        0.. => c"no error",
        WEDJAT_ERROR_NULL => c"a required pointer is null",
        WEDJAT_ERROR_HANDLE => c"not a scheduler or worker, or already freed",
        WEDJAT_ERROR_CONTEXT => c"the context does not belong to this scheduler",
        WEDJAT_ERROR_BUSY => c"the context is in use by another call: one thread at a time",
        WEDJAT_ERROR_BURST => c"more than WEDJAT_BURST packets: split them over several calls",
        WEDJAT_ERROR_PORT => c"no such port: the configuration has fewer",
        WEDJAT_ERROR_WORKER => c"no such worker: the node has none with that id",
        WEDJAT_ERROR_ALIGNMENT => c"an array is not aligned for its type",
        WEDJAT_ERROR_CONFIG => c"the configuration is invalid: see the detail",
        WEDJAT_ERROR_OPTIONS => {
            c"options.size differs from this library's header, or an option is invalid: see the detail"
        }
        WEDJAT_ERROR_CORE => {
            c"no such core in leaf.cores, or its context is already taken"
        }
        WEDJAT_ERROR_ROOM => c"the buffer is too small",
        WEDJAT_ERROR_DEFECT => {
            c"a defect of the library: please report it; the context accepts no more calls"
        }
        WEDJAT_ERROR_ATTACH => c"no agent accepted the worker: see the detail",
        WEDJAT_ERROR_STOPPED => c"the agent has stopped normally or removed this worker: no more tasks",
        WEDJAT_ERROR_SHUT_OUT => c"the agent has excluded this worker: attach again, or exit",
        WEDJAT_ERROR_AGENT_DIED => c"the agent's process has died: attach again, or exit",
        WEDJAT_ERROR_NO_TASK => c"the worker has no current task",
        WEDJAT_ERROR_TOO_LONG => c"the answer is longer than the task's reply_max",
        WEDJAT_ERROR_REGION => c"the agent sent invalid data: check that it is of the same release",
        WEDJAT_ERROR_CHANGE => c"the change is invalid, and nothing has changed: see the detail",
        WEDJAT_ERROR_NODE => c"no memory is available on that NUMA node: see the detail",
        WEDJAT_ERROR_FAMILY => {
            c"the port has an IPv6 address, which does not fit: use the call for IPv6"
        }
        _ => c"not a code of this library",
    }
}

/// Number of errno.h nearest to a code: 0 for no error, EINVAL for an unknown code. For programs whose own
/// functions return errno's numbers. Does not set errno.
///
/// # Called from
/// Any thread (lcore or not) of any process, also after fork(), and signal handlers.
#[unsafe(no_mangle)]
pub extern "C" fn wedjat_errno(code: i32) -> i32 {
    match code {
        0.. => 0,
        WEDJAT_ERROR_NULL => libc::EFAULT,
        WEDJAT_ERROR_HANDLE => libc::EBADF,
        WEDJAT_ERROR_CONTEXT => libc::EINVAL,
        WEDJAT_ERROR_BUSY => libc::EBUSY,
        WEDJAT_ERROR_BURST => libc::E2BIG,
        WEDJAT_ERROR_PORT => libc::ENODEV,
        WEDJAT_ERROR_WORKER => libc::ESRCH,
        WEDJAT_ERROR_ALIGNMENT => libc::EFAULT,
        WEDJAT_ERROR_CONFIG => libc::EINVAL,
        WEDJAT_ERROR_OPTIONS => libc::EINVAL,
        WEDJAT_ERROR_CORE => libc::ENXIO,
        WEDJAT_ERROR_ROOM => libc::ENOSPC,
        WEDJAT_ERROR_DEFECT => libc::ENOTRECOVERABLE,
        WEDJAT_ERROR_ATTACH => libc::ECONNREFUSED,
        WEDJAT_ERROR_STOPPED => libc::ESHUTDOWN,
        WEDJAT_ERROR_SHUT_OUT => libc::ETIMEDOUT,
        WEDJAT_ERROR_AGENT_DIED => libc::EOWNERDEAD,
        WEDJAT_ERROR_NO_TASK => libc::ENOMSG,
        WEDJAT_ERROR_TOO_LONG => libc::EMSGSIZE,
        WEDJAT_ERROR_REGION => libc::EPROTO,
        WEDJAT_ERROR_CHANGE => libc::EINVAL,
        WEDJAT_ERROR_NODE => libc::EPERM,
        WEDJAT_ERROR_FAMILY => libc::EAFNOSUPPORT,
        _ => libc::EINVAL,
    }
}

/// Meaning of a code in English, as static text.
///
/// # Called from
/// Any thread (lcore or not) of any process, also after fork(), and signal handlers.
#[unsafe(no_mangle)]
pub extern "C" fn wedjat_error_message(code: i32) -> *const c_char {
    message(code).as_ptr()
}

/// Version of the library, as static text.
///
/// # Called from
/// Any thread (lcore or not) of any process, also after fork(), and signal handlers.
#[unsafe(no_mangle)]
pub extern "C" fn wedjat_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Version of the loaded library's interface, for comparison with WEDJAT_ABI.
///
/// # Called from
/// Any thread (lcore or not) of any process, also after fork(), and signal handlers.
#[unsafe(no_mangle)]
pub extern "C" fn wedjat_abi_version() -> u32 {
    WEDJAT_ABI
}

/// Name of a drop reason, as static text; null for an unknown number.
///
/// # Called from
/// Any thread (lcore or not) of any process, also after fork(), and signal handlers.
#[unsafe(no_mangle)]
pub extern "C" fn wedjat_reason_name(reason: u16) -> *const c_char {
    // Each drop reason has a counter, named after it. These are the last counters, in the order of the
    // reasons.
    let reasons = &COUNTERS[COUNT - DropReason::COUNT..];
    reasons.get(usize::from(reason)).map_or(std::ptr::null(), |name| name.as_ptr().cast())
}

/// Name of the value at this index of wedjat_counters(), as static text; null after the last.
///
/// # Called from
/// Any thread (lcore or not) of any process, also after fork(), and signal handlers.
#[unsafe(no_mangle)]
pub extern "C" fn wedjat_counter_name(index: usize) -> *const c_char {
    let name = COUNTERS.iter().chain([&BAD_CALLS]).nth(index);
    name.map_or(std::ptr::null(), |name| name.as_ptr().cast())
}

/// Name with a terminating zero for C.
type Name = [u8; 32];

/// Name of the counter of refused calls.
const BAD_CALLS: Name = name("bad_calls");
/// Version of the package as C text.
const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"unknown",
    };

/// Returns a text with a terminating zero. Panics at compile time if the text is too long.
const fn name(text: &str) -> Name {
    let mut name = [0; 32];
    let (bytes, mut at) = (text.as_bytes(), 0);
    assert!(bytes.len() < name.len());
    while at < bytes.len() {
        name[at] = bytes[at];
        at += 1;
    }
    name
}

/// Names of the counters of a core, drop reasons last.
static COUNTERS: [Name; COUNT] = {
    let mut names = [[0; 32]; COUNT];
    let mut at = 0;
    while at < names.len() {
        names[at] = name(METRICS[at].name);
        at += 1;
    }
    names
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_message_of_its_own() {
        // Success, the 23 errors, of which the last is WEDJAT_ERROR_FAMILY, and one number that is no code.
        let mut messages: Vec<_> = (WEDJAT_ERROR_FAMILY - 1..=0).map(message).collect();
        messages.sort_unstable();
        messages.dedup();
        assert_eq!(messages.len(), 25);
        assert_eq!(message(5), message(0));
    }

    #[test]
    fn code_has_the_documented_errno() {
        let names = std::collections::BTreeMap::from([
            ("E2BIG", libc::E2BIG),
            ("EAFNOSUPPORT", libc::EAFNOSUPPORT),
            ("EBADF", libc::EBADF),
            ("EBUSY", libc::EBUSY),
            ("ECONNREFUSED", libc::ECONNREFUSED),
            ("EFAULT", libc::EFAULT),
            ("EINVAL", libc::EINVAL),
            ("EMSGSIZE", libc::EMSGSIZE),
            ("ENODEV", libc::ENODEV),
            ("ENOMSG", libc::ENOMSG),
            ("ENOSPC", libc::ENOSPC),
            ("ENOTRECOVERABLE", libc::ENOTRECOVERABLE),
            ("ENXIO", libc::ENXIO),
            ("EOWNERDEAD", libc::EOWNERDEAD),
            ("EPERM", libc::EPERM),
            ("EPROTO", libc::EPROTO),
            ("ESHUTDOWN", libc::ESHUTDOWN),
            ("ESRCH", libc::ESRCH),
            ("ETIMEDOUT", libc::ETIMEDOUT),
        ]);
        let mut codes = 0;
        // Each comment of an error code ends with the name of its errno; the constant follows.
        for (errno, rest) in include_str!("code.rs")
            .split(" As errno: ")
            .skip(1)
            .filter_map(|one| one.split_once(".\n"))
        {
            let Some(rest) = rest.strip_prefix("pub const WEDJAT_ERROR_") else { continue };
            let (_, number) = rest.split_once(": i32 = ").unwrap();
            let code: i32 = number.split(';').next().unwrap().parse().unwrap();
            assert_eq!(wedjat_errno(code), names[errno], "{code}");
            codes += 1;
        }
        assert_eq!(codes, -WEDJAT_ERROR_FAMILY);
        assert_eq!((wedjat_errno(7), wedjat_errno(-1000)), (0, libc::EINVAL));
    }
}
