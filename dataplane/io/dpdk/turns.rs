//! Work that takes turns with what drivers do in EAL's interrupt thread.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use rustix::process::{Resource, getrlimit};
use wedjat_sys as sys;

/// The flag of an interrupt handle that is not in memory shared with secondary processes.
const PRIVATE: u32 = 0;

/// What the interrupt thread is to do, and whom to tell.
struct Request<'a> {
    work: &'a (dyn Fn() + Sync),
    source: *mut sys::rte_intr_handle,
    done: Sender<()>,
}

/// Has EAL's interrupt thread do `work`, and waits until it has. Where that can't be asked the calling thread does it.
///
/// The memif driver (DPDK 22.11) cleans up in that thread after a peer that has left, and in the caller's when a device is
/// stopped, without a lock: both at once free the same memory twice ("Invalid memory"). Two ends in one process do just
/// that when they close one after the other, and so do two processes that end together.
///
/// What that thread was told of before is done before: a source that is new makes it build its set of descriptors again, in
/// the order of their registration, and it serves them in that order.
pub(super) fn take_turn(work: &(dyn Fn() + Sync)) {
    let (done, is_done) = channel();
    let Some((source, _ready)) = source() else { return work() };
    let mut request = Request { work, source, done };
    let argument = std::ptr::from_mut(&mut request).cast();
    // SAFETY: called once, with a request that lives until `over` has been called, which is the last use of it.
    let asked = unsafe { sys::rte_intr_callback_register(source, Some(carry_out), argument) } == 0;
    match asked {
        // `request` keeps a sender, so this waits for the word.
        true => drop(is_done.recv()),
        false => work(),
    }
    // SAFETY: `source` made it; EAL has a copy of its own, which is gone.
    unsafe { sys::rte_intr_instance_free(source) };
}

extern "C" fn carry_out(argument: *mut c_void) {
    // SAFETY: `take_turn` passes its request, and waits for the word that `over` sends.
    let request = unsafe { &*argument.cast::<Request<'_>>() };
    (request.work)();
    // SAFETY: this is the callback of that source, in the middle of its call, so it is taken out when it returns.
    unsafe {
        sys::rte_intr_callback_unregister_pending(
            request.source,
            Some(carry_out),
            argument,
            Some(over),
        );
    }
}

extern "C" fn over(_: *mut sys::rte_intr_handle, argument: *mut c_void) {
    // SAFETY: as in `carry_out`; after the word nothing of the request is used.
    let done = unsafe { &*argument.cast::<Request<'_>>() }.done.clone();
    // Somebody waits.
    let _ = done.send(());
}

/// The lowest number that the descriptor of a source gets, where the limit of descriptors allows for it.
const HIGH: u64 = 4096;

/// An interrupt source that is ready for good, and what makes it so.
///
/// Its descriptor has a number that no driver's had. EAL finds sources by this number, and a driver may leave one there whose
/// descriptor is closed (virtio-user, DPDK 22.11): under the same number a callback would be added to that, of which the
/// interrupt thread hears no more.
fn source() -> Option<(*mut sys::rte_intr_handle, OwnedFd)> {
    let (ready, _) = UnixStream::pair().ok()?; // at the end of its stream at once
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let lowest = HIGH.min(limit / 4 * 3) as i32;
    let ready = rustix::io::fcntl_dupfd_cloexec(&ready, lowest).unwrap_or_else(|_| ready.into());
    // SAFETY: a new instance, or null, which the calls after it refuse.
    unsafe {
        let source = sys::rte_intr_instance_alloc(PRIVATE);
        let set = sys::rte_intr_fd_set(source, ready.as_raw_fd()) == 0
            && sys::rte_intr_type_set(source, sys::RTE_INTR_HANDLE_EXT) == 0;
        set.then_some((source, ready))
    }
}

/// Keeps EAL's interrupt thread where it touches nothing, until the process ends; where that can't be asked, nothing happens.
///
/// The thread goes through its list of interrupt sources whenever that changes. A memif server (DPDK 22.11) leaves its
/// listener there when it closes, in memory that EAL's cleanup unmaps, and the cleanup changes the list itself.
pub(super) fn end() {
    let Some((source, ready)) = source() else { return };
    std::mem::forget(ready);
    fill_gaps();
    let (held, is_held) = channel::<()>();
    let held = Box::into_raw(Box::new(held)).cast();
    // SAFETY: called once, and takes the box.
    if unsafe { sys::rte_intr_callback_register(source, Some(stand_still), held) } == 0 {
        let _ = is_held.recv();
    }
}

/// Opens the lowest numbers of descriptors that are closed, for the rest of the process. EAL panics when it builds its set again
/// and a source's descriptor is closed, as virtio-user (DPDK 22.11) leaves one when its peer goes at a bad moment.
fn fill_gaps() {
    const GAPS: usize = 64;
    let Ok(silent) = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC) else {
        return;
    };
    for _ in 0..GAPS {
        let Ok(filler) = rustix::io::fcntl_dupfd_cloexec(&silent, 0) else { break };
        std::mem::forget(filler);
    }
    std::mem::forget(silent);
}

extern "C" fn stand_still(held: *mut c_void) {
    // SAFETY: `end` gives it away, and this never returns, so it is called once.
    let held = unsafe { Box::from_raw(held.cast::<Sender<()>>()) };
    // Somebody waits.
    let _ = held.send(());
    loop {
        thread::park();
    }
}
