//! Installation of the signal handlers of a worker whose tasks share its core: one for stack overflows of tasks, one
//! for the timer that ends a task's quantum.
#![allow(unsafe_code, reason = "signal handlers of the system")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// Signal handler that gets the signal's number, its description (`SA_SIGINFO`) and the interrupted context.
pub(super) type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Returns the last error of the system for a result other than 0.
pub(super) fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the present action for a signal. The handler of stack overflows applies it to faults of other causes.
pub(super) fn action_of(signal: i32) -> io::Result<libc::sigaction> {
    // SAFETY: all-zero bytes are a valid action, and the pointer is valid during the call.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        check(libc::sigaction(signal, ptr::null(), &raw mut action)).map(|()| action)
    }
}

/// Installs a handler, which runs on the thread's signal stack if it has one. `flags` are further flags of the action.
///
/// # Safety
/// The handler calls only functions that are allowed in signal handlers.
pub(super) unsafe fn install(signal: i32, handler: Handler, flags: i32) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid action, and the pointer is valid during the call.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | flags;
        check(libc::sigaction(signal, &raw const action, ptr::null_mut()))
    }
}
