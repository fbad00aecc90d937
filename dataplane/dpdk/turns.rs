//! Work in EAL's interrupt thread, so that it never overlaps with the drivers' work there. EAL has one such thread,
//! which runs the callbacks of *interrupt sources*: descriptors that become readable.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::sync::{PoisonError, RwLock};
use std::thread;

use rustix::process::{Resource, getrlimit};
use wedjat_sys as sys;

/// Flag of an interrupt handle in memory that is not shared with secondary processes.
const PRIVATE: u32 = 0;

/// True once [`block_thread`] has begun. The cleanup of EAL follows. The threads of memif relays may outlive EAL. Each
/// turn holds the read lock until its work is done, so that the cleanup waits for it.
static IS_BLOCKED: RwLock<bool> = RwLock::new(false);

/// Work for the interrupt thread, with a channel for its completion.
struct Request<'a> {
    /// The work.
    work: &'a (dyn Fn() + Sync),
    /// Interrupt source whose callback runs the work.
    source: *mut sys::rte_intr_handle,
    /// Channel for the message that the work is done and the callback removed.
    done: Sender<()>,
}

/// Runs `work` in EAL's interrupt thread and waits for it. If that is impossible, runs it in the calling
/// thread.
///
/// The memif driver (DPDK 22.11) cleans up after a departed peer in that thread. When a device is stopped, it cleans
/// up in the caller's thread. It takes no lock. Both at once free the same memory twice ("Invalid memory"). That
/// happens if two ends in one process close one after another, or two processes end together.
///
/// Earlier events of that thread are handled before. A new source makes it rebuild its set of descriptors in
/// the order of registration, and it serves them in that order. So a caller with empty work waits for these events.
pub(super) fn take_turn(work: &(dyn Fn() + Sync)) {
    let is_blocked = IS_BLOCKED.read().unwrap_or_else(PoisonError::into_inner);
    if *is_blocked {
        return work();
    }
    let (done, is_done) = channel();
    let Some((source, _ready)) = source() else { return work() };
    let mut request = Request { work, source, done };
    let argument = std::ptr::from_mut(&mut request).cast();
    // SAFETY: EAL calls `run_request` once, and `signal_done` after it. The request lives until then.
    let is_registered =
        unsafe { sys::rte_intr_callback_register(source, Some(run_request), argument) } == 0;
    match is_registered {
        // `request` keeps a sender, so this waits for the completion.
        true => drop(is_done.recv()),
        false => work(),
    }
    // SAFETY: created by `source`. EAL has a copy of its own.
    unsafe { sys::rte_intr_instance_free(source) };
}

/// Runs the work of a request in EAL's interrupt thread. Then requests the removal of the callback, and with it of the
/// source.
extern "C" fn run_request(argument: *mut c_void) {
    // SAFETY: `take_turn` passes its request, and waits for the completion that `signal_done` sends.
    let request = unsafe { &*argument.cast::<Request<'_>>() };
    (request.work)();
    // SAFETY: this is the callback of that source during its call. EAL removes it after its return.
    unsafe {
        sys::rte_intr_callback_unregister_pending(
            request.source,
            Some(run_request),
            argument,
            Some(signal_done),
        );
    }
}

/// Signals the completion of a request. EAL calls it after it has removed the callback, and removes the source next.
extern "C" fn signal_done(_: *mut sys::rte_intr_handle, argument: *mut c_void) {
    // SAFETY: as in `run_request`. The clone outlives the request, which `take_turn` drops after the message.
    let done = unsafe { &*argument.cast::<Request<'_>>() }.done.clone();
    // The receiver is waiting.
    let _ = done.send(());
}

/// Smallest descriptor number of a source; three quarters of the descriptor limit if that is less.
const DESCRIPTOR_MIN: u64 = 4096;

/// Creates an interrupt source that is always ready, with its descriptor. Returns `None` if the system or EAL refuses.
///
/// The descriptor gets a high number, which no driver has used. EAL finds sources by number, and a driver may leave a
/// source with a closed descriptor (virtio-user, DPDK 22.11). EAL would add a callback under the same number to that
/// source and never run it.
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
    *IS_BLOCKED.write().unwrap_or_else(PoisonError::into_inner) = true;
    let Some((source, ready)) = source() else { return };
    std::mem::forget(ready);
    fill_gaps();
    let (parked, is_parked) = channel::<()>();
    let parked = Box::into_raw(Box::new(parked)).cast();
    // SAFETY: EAL calls `park_forever` once. It takes the box.
    if unsafe { sys::rte_intr_callback_register(source, Some(park_forever), parked) } == 0 {
        let _ = is_parked.recv();
    }
}

/// Opens the closed descriptors with the lowest numbers, at most `GAPS`, for the rest of the process. EAL panics if it
/// rebuilds its set while a source's descriptor is closed. virtio-user (DPDK 22.11) may leave such a source when its
/// peer disconnects. An eventfd that is never ready then takes the number of that descriptor.
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
    // SAFETY: `block_thread` gives the box away. This never returns, so EAL calls it once.
    let parked = unsafe { Box::from_raw(parked.cast::<Sender<()>>()) };
    // The receiver is waiting.
    let _ = parked.send(());
    loop {
        thread::park();
    }
}
