//! Work that takes turns with what drivers do in EAL's interrupt thread.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::c_void;
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread;

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

/// Keeps EAL's interrupt thread where it touches nothing, until the process ends; where that can't be asked, nothing happens.
///
/// The thread goes through its list of interrupt sources whenever that changes. A memif server (DPDK 22.11) leaves its
/// listener there when it closes, in memory that EAL's cleanup unmaps, and the cleanup changes the list itself. It waits for
/// alarms that are being carried out, so this is an interrupt source of its own.
pub(super) fn end() {
    let Ok((ready, other_end)) = UnixStream::pair() else { return };
    // At the end of its stream a socket is ready for good.
    drop(other_end);
    let (held, is_held) = channel::<()>();
    // SAFETY: a new instance, or null, which the two calls after it refuse.
    let asked = unsafe {
        let source = sys::rte_intr_instance_alloc(PRIVATE);
        sys::rte_intr_fd_set(source, ready.into_raw_fd()) == 0
            && sys::rte_intr_type_set(source, sys::RTE_INTR_HANDLE_EXT) == 0
            && {
                let held = Box::into_raw(Box::new(held));
                sys::rte_intr_callback_register(source, Some(stand_still), held.cast()) == 0
            }
    };
    if asked {
        let _ = is_held.recv();
    }
}

/// The flag of an interrupt handle that is not in memory shared with secondary processes.
const PRIVATE: u32 = 0;

extern "C" fn stand_still(held: *mut c_void) {
    // SAFETY: `end` gives it away, and this never returns, so it is called once.
    let held = unsafe { Box::from_raw(held.cast::<Sender<()>>()) };
    // Somebody waits.
    let _ = held.send(());
    loop {
        thread::park();
    }
}
