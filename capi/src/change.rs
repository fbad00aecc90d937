//! Changes while packets flow: members, servers, pools, policies, speeds and bounds. These take memory and may wait for each other;
//! contexts wait for none of them.

use std::ffi::{CStr, c_char};

use wedjat::embed::Change;

use crate::code::*;
use crate::create::tell;
use crate::handle::{Scheduler, with_scheduler};

/// Has all contexts go over to what a change leads to, each at its next wedjat_release(). `change` is a text ended by a zero, as
/// in "add-workers server=10.0.2.13 pool=1 workers=8-11"; docs/changes.md lists them. Puts the change's epoch into
/// `*epoch`, which may be null. Returns 0; or WEDJAT_ERROR_CHANGE and into the `detail_size` bytes at `detail`, which may be
/// null, a text that says what to mend, cut to fit and ended by a zero: nothing has changed then.
///
/// # Called from
/// Any thread that polls no context, lcore or not, of the process that made the scheduler, primary or secondary; after fork()
/// of parent or child, not both; not a signal handler.
///
/// # Safety
/// `scheduler` is null or comes from wedjat_create(); `change` is null or leads to a zero at last; the others are null or lead to
/// memory of their type, or of so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_apply(
    scheduler: *const Scheduler,
    change: *const c_char,
    epoch: *mut u64,
    detail: *mut c_char,
    detail_size: usize,
) -> i32 {
    with_scheduler(scheduler, |_, body| {
        if change.is_null() {
            return Err(WEDJAT_ERROR_NULL);
        }
        if !epoch.is_aligned() {
            return Err(WEDJAT_ERROR_ALIGNMENT);
        }
        // SAFETY: the caller vouches for the zero.
        let text = unsafe { CStr::from_ptr(change) }.to_string_lossy();
        let made = text.parse().and_then(|change: Change| body.scheduler.apply(&change));
        let (code, number, why) = match made {
            Ok(number) => {
                log::info!("change {number}: {text}");
                (Ok(0), number, String::new())
            }
            Err(error) => (Err(WEDJAT_ERROR_CHANGE), 0, error.to_string()),
        };
        // SAFETY: the caller vouches for the memory; `epoch` is aligned.
        unsafe {
            tell(&why, detail, detail_size);
            if !epoch.is_null() && code.is_ok() {
                epoch.write(number);
            }
        }
        code
    })
}

/// Puts the epoch into `*epoch` that all contexts have reached: they decide by that change and all before it. Returns 0 or a
/// code.
///
/// # Called from
/// Any thread, lcore or not, of the process that made the scheduler, primary or secondary; after fork() of parent or
/// child, not both; not a signal handler.
///
/// # Safety
/// `scheduler` is null or comes from wedjat_create(); `epoch` is null or leads to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_acknowledged(scheduler: *const Scheduler, epoch: *mut u64) -> i32 {
    with_scheduler(scheduler, |_, body| {
        if epoch.is_null() {
            return Err(WEDJAT_ERROR_NULL);
        }
        if !epoch.is_aligned() {
            return Err(WEDJAT_ERROR_ALIGNMENT);
        }
        // SAFETY: checked above; the caller vouches for the rest.
        unsafe { epoch.write(body.scheduler.acknowledged()) };
        Ok(0)
    })
}

/// Frees what contexts have replaced, and lets go of workers, servers and pools that have left, at `now` ticks. To be called now
/// and then while changes are made. Returns 1 when every change has been taken and nothing is leaving any more, else 0; or a
/// code.
///
/// # Called from
/// Any thread that polls no context, lcore or not, of the process that made the scheduler, primary or secondary; after fork()
/// of parent or child, not both; not a signal handler.
///
/// # Safety
/// `scheduler` is null or comes from wedjat_create().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_tend(scheduler: *const Scheduler, now: u64) -> i32 {
    with_scheduler(scheduler, |_, body| {
        body.scheduler.tend(now);
        Ok(i32::from(body.scheduler.is_settled()))
    })
}
