//! Work in EAL's interrupt thread, so that it never overlaps with the drivers' work there. EAL has one such thread,
//! which runs the callbacks of *interrupt sources*: descriptors that become readable.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use rustix::process::{Resource, getrlimit};
use wedjat_sys as sys;

/// Flag of an interrupt handle in memory that is not shared with secondary processes.
const PRIVATE: u32 = 0;

/// Work for the interrupt thread, with a channel for its completion.
struct Request<'a> {
    /// The work.
    work: &'a (dyn Fn() + Sync),
    /// Interrupt source whose callback runs the work.
    source: *mut sys::rte_intr_handle,
    /// Channel for the message that the work is done and the source removed.
    done: Sender<()>,
}

/// Runs `work` in EAL's interrupt thread and waits for it. If that is impossible, runs it in the calling
/// thread.
///
/// The memif driver (DPDK 22.11) cleans up after a departed peer in that thread, and when a device is stopped
/// in the caller's, without a lock. Both at once free the same memory twice ("Invalid memory"). That happens
/// if two ends in one process close one after another, or two processes end together.
///
/// Earlier events of that thread are handled before. A new source makes it rebuild its set of descriptors in
/// the order of registration, and it serves them in that order.
pub(super) fn take_turn(work: &(dyn Fn() + Sync)) {
    let (done, is_done) = channel();
    let Some((source, _ready)) = source() else { return work() };
    let mut request = Request { work, source, done };
    let argument = std::ptr::from_mut(&mut request).cast();
    // SAFETY: called once. The request lives until the last call, of `signal_done`.
    let is_registered =
        unsafe { sys::rte_intr_callback_register(source, Some(run_request), argument) } == 0;
    match is_registered {
        // `request` keeps a sender, so this waits for the completion.
        true => drop(is_done.recv()),
        false => work(),
    }
    // SAFETY: created by `source`; EAL's copy is gone.
    unsafe { sys::rte_intr_instance_free(source) };
}

/// Runs the work of a request in EAL's interrupt thread, and removes the source.
extern "C" fn run_request(argument: *mut c_void) {
    // SAFETY: `take_turn` passes its request, and waits for the completion that `signal_done` sends.
    let request = unsafe { &*argument.cast::<Request<'_>>() };
    (request.work)();
    // SAFETY: this is the callback of that source during its call, so it is removed when the callback
    // returns.
    unsafe {
        sys::rte_intr_callback_unregister_pending(
            request.source,
            Some(run_request),
            argument,
            Some(signal_done),
        );
    }
}

/// Signals the completion of a request. EAL calls it after it has removed the source.
extern "C" fn signal_done(_: *mut sys::rte_intr_handle, argument: *mut c_void) {
    // SAFETY: as in `run_request`; after the completion the request is not used.
    let done = unsafe { &*argument.cast::<Request<'_>>() }.done.clone();
    // The receiver is waiting.
    let _ = done.send(());
}

/// Smallest descriptor number of a source; three quarters of the descriptor limit if that is less.
const DESCRIPTOR_MIN: u64 = 4096;

/// Creates an interrupt source that is always ready, with its descriptor. Returns `None` if the system or EAL refuses.
///
/// The descriptor has a number that no driver used. EAL finds sources by number, and a driver may leave a
/// source with a closed descriptor (virtio-user, DPDK 22.11). A callback under the same number would be added
/// to that source and never run.
fn source() -> Option<(*mut sys::rte_intr_handle, OwnedFd)> {
    let (ready, _) = UnixStream::pair().ok()?; // at the end of its stream at once
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let lowest = DESCRIPTOR_MIN.min(limit / 4 * 3) as i32;
    let ready = rustix::io::fcntl_dupfd_cloexec(&ready, lowest).unwrap_or_else(|_| ready.into());
    // SAFETY: a new instance, or null, which the next calls refuse.
    unsafe {
        let source = sys::rte_intr_instance_alloc(PRIVATE);
        let set = sys::rte_intr_fd_set(source, ready.as_raw_fd()) == 0
            && sys::rte_intr_type_set(source, sys::RTE_INTR_HANDLE_EXT) == 0;
        set.then_some((source, ready))
    }
}

/// Blocks EAL's interrupt thread at a safe point until the process ends. Does nothing if that is impossible.
///
/// The thread walks its list of interrupt sources on every change. A memif server (DPDK 22.11) leaves its
/// listener in the list when it closes, in memory that EAL's cleanup unmaps, and the cleanup itself changes
/// the list.
pub(super) fn block_thread() {
    let Some((source, ready)) = source() else { return };
    std::mem::forget(ready);
    fill_gaps();
    let (parked, is_parked) = channel::<()>();
    let parked = Box::into_raw(Box::new(parked)).cast();
    // SAFETY: called once, and takes the box.
    if unsafe { sys::rte_intr_callback_register(source, Some(park_forever), parked) } == 0 {
        let _ = is_parked.recv();
    }
}

/// Opens the closed descriptors with the lowest numbers, at most `GAPS`, for the rest of the process. EAL panics if it
/// rebuilds its set while a source's descriptor is closed. virtio-user (DPDK 22.11) may leave such a source when its
/// peer disconnects.
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

/// Signals that the thread is blocked, and blocks it forever.
extern "C" fn park_forever(parked: *mut c_void) {
    // SAFETY: `block_thread` gives it away, and this never returns, so it is called once.
    let parked = unsafe { Box::from_raw(parked.cast::<Sender<()>>()) };
    // The receiver is waiting.
    let _ = parked.send(());
    loop {
        thread::park();
    }
}
