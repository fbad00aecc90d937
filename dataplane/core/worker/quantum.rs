//! Timer that ends quanta. A *quantum* is the time that a task runs before the next one gets the shared core.
//!
//! The kernel sends a signal to the serving thread, and the handler only counts it. Yield points of the task compare
//! the count.
#![allow(unsafe_code, reason = "timers and signal handlers of the system")]

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::signals::{self, check};

thread_local! {
    /// Number of signals that this thread received.
    static SIGNALS: AtomicU32 = const { AtomicU32::new(0) };
}

/// Timer of the thread that created it. Sends one signal each time it is armed: a periodic timer could send signals
/// faster than a slow machine handles them, and the task would then make no progress.
pub(super) struct QuantumTimer {
    /// Timer of the kernel.
    timer: libc::timer_t,
    /// True from [`QuantumTimer::arm`] to [`QuantumTimer::stop`], also after its signal.
    is_armed: Cell<bool>,
    /// Number of signals received when it was last armed.
    armed_at: Cell<u32>,
}

/// Returns the number of the signal: a real-time signal that no common library uses.
fn signal() -> i32 {
    libc::SIGRTMIN() + 7
}

/// Handles the timer's signal: counts it.
extern "C" fn count(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    SIGNALS.with(|signals| signals.fetch_add(1, Relaxed));
}

impl QuantumTimer {
    /// Creates a timer for the calling thread, not armed, and installs the signal's handler.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: the handler only changes an atomic of its thread.
        unsafe { signals::install(signal(), count, libc::SA_RESTART) }?;
        // SAFETY: all-zero bytes are a valid event.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal();
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer = MaybeUninit::uninit();
        // SAFETY: both pointers are valid during the call.
        check(unsafe {
            libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, timer.as_mut_ptr())
        })?;
        // SAFETY: the call has succeeded.
        let timer = unsafe { timer.assume_init() };
        Ok(Self { timer, is_armed: Cell::new(false), armed_at: Cell::new(0) })
    }

    /// Returns true if it is armed and this thread has received no signal since. Until the signal, a yield point need
    /// not read the clock, and the next task's quantum need not arm it again.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        let signals = SIGNALS.with(|signals| signals.load(Relaxed));
        self.is_armed.get() && signals == self.armed_at.get()
    }

    /// Requests a signal after `time`, which must not be zero.
    pub(super) fn arm(&self, time: Duration) {
        self.is_armed.set(true);
        self.armed_at.set(SIGNALS.with(|signals| signals.load(Relaxed)));
        self.set(time);
    }

    /// Cancels the signal, so that it does not wake an idle worker.
    pub(super) fn stop(&self) {
        if self.is_pending() {
            self.set(Duration::ZERO);
        }
        self.is_armed.set(false);
    }

    /// Sets the time until the signal; zero to cancel it.
    fn set(&self, time: Duration) {
        let it_value = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos().into(),
        };
        let it_interval = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = libc::itimerspec { it_interval, it_value };
        // SAFETY: the timer exists, and the setting is valid during the call. It cannot fail then.
        unsafe { libc::timer_settime(self.timer, 0, &raw const setting, ptr::null_mut()) };
    }
}

impl Drop for QuantumTimer {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and is not used afterwards.
        unsafe { libc::timer_delete(self.timer) };
    }
}
