//! Changes of members, servers, pools, policies, speeds and bounds while packets flow. These functions
//! allocate memory and may wait for each other; contexts and pickers never wait for them.
//!
//! Each change has an epoch, a number that grows. Contexts and pickers may take a change after wedjat_apply()
//! returns. wedjat_acknowledged() returns the epoch that all of them have reached.

use std::ffi::{CStr, c_char};

use wedjat::embed::Change;

use crate::code::*;
use crate::create::write_text;
use crate::handle::{Scheduler, with_scheduler};

/// Applies a change. Each context takes it in wedjat_release(), and each picker in wedjat_release_tasks(): in the
/// first call of a period of 100 us. `change` is a zero-terminated text such as
/// "add-workers server=10.0.2.13 pool=1 workers=8-11"; docs/howto/change-a-running-node.md lists them. Puts the
/// change's epoch into `*epoch`, which may be null. Returns 0. Returns WEDJAT_ERROR_CHANGE if the change is
/// refused, and the reason with its fix in the `detail_size` bytes at `detail`, which may be null; the text
/// is cut to fit and zero-terminated, and nothing has changed.
///
/// # Called from
/// Any thread (lcore or not) that polls no context, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// `scheduler` is null or comes from wedjat_create(); `change` is null or zero-terminated; further pointers
/// are null or lead to memory of their type or of the given size.
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
        let result = text.parse().and_then(|change: Change| body.scheduler.apply(&change));
        let (code, number, reason) = match result {
            Ok(number) => {
                log::info!("change {number}: {text}");
                (Ok(0), number, String::new())
            }
            Err(error) => (Err(WEDJAT_ERROR_CHANGE), 0, error.to_string()),
        };
        // SAFETY: the caller vouches for the memory; `epoch` is aligned.
        unsafe {
            write_text(&reason, detail, detail_size);
            if !epoch.is_null() && code.is_ok() {
                epoch.write(number);
            }
        }
        code
    })
}

/// Reads the epoch that all contexts or pickers have reached into `*epoch`. They decide by that change and all
/// before it. Returns 0 or a code.
///
/// # Called from
/// Any thread (lcore or not) of the process that created the scheduler, primary or secondary. After fork(),
/// parent or child, not both. Not a signal handler.
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

/// Frees objects that changes have replaced, and the places of departed workers, servers and pools, at `now`
/// ticks. Contexts and pickers free no memory. Call it periodically during changes. Returns 1 if all contexts or
/// pickers have taken every change and no worker, server or pool is leaving, otherwise 0; or a code.
///
/// # Called from
/// Any thread (lcore or not) that polls no context, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// `scheduler` is null or comes from wedjat_create().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_tend(scheduler: *const Scheduler, now: u64) -> i32 {
    with_scheduler(scheduler, |_, body| {
        body.scheduler.collect(now);
        Ok(i32::from(body.scheduler.is_settled()))
    })
}
