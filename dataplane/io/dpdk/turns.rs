//! Work that takes turns with what drivers do in EAL's interrupt thread.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::c_void;
use std::sync::mpsc::{Sender, channel};

use wedjat_sys as sys;

/// What the interrupt thread is to do, and whom to tell.
struct Request<'a> {
    work: &'a (dyn Fn() + Sync),
    done: Sender<()>,
}

extern "C" fn carry_out(argument: *mut c_void) {
    // SAFETY: `take_turn` passes its request, and waits for the word that is sent below. After that nothing of it is used.
    let request = unsafe { &*argument.cast::<Request<'_>>() };
    let done = request.done.clone();
    (request.work)();
    // Somebody waits.
    let _ = done.send(());
}

/// Has EAL's interrupt thread do `work`, and waits until it has. Where that can't be asked the calling thread does it.
///
/// The memif driver (DPDK 22.11) cleans up in that thread after a peer that has left, and in the caller's when a device is
/// stopped, without a lock: both at once free the same memory twice ("Invalid memory"). Two ends in one process do just
/// that when they close one after the other, and so do two processes that end together.
pub(super) fn take_turn(work: &(dyn Fn() + Sync)) {
    let (done, is_done) = channel();
    let mut request = Request { work, done };
    let argument = std::ptr::from_mut(&mut request).cast();
    // SAFETY: the alarm is called once, with a request that lives until it has been carried out.
    let asked = unsafe { sys::rte_eal_alarm_set(1, Some(carry_out), argument) } == 0;
    match asked {
        // `request` keeps a sender, so this waits for the word.
        true => drop(is_done.recv()),
        false => work(),
    }
}
