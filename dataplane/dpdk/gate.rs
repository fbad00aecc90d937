//! Gate that keeps threads out of a device's bursts. It closes while the memif driver maps or unmaps the memory of
//! packets, and while this process closes or resets a NIC. A *burst* is one call of the driver, to receive or send
//! packets.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Interval of checks for a thread in the middle of a burst.
const CHECK_INTERVAL: Duration = Duration::from_micros(20);

/// Gate that threads pass for every burst: all threads of a memif device, and the outlets of a NIC. The polling cores
/// of a NIC acknowledge its removal instead (`DevicePresence`).
#[derive(Default)]
pub(super) struct Gate {
    /// Number of callers that currently keep it closed.
    closed: AtomicUsize,
    /// State of all passes.
    passes: Mutex<Vec<Arc<InBurst>>>,
}

/// True while the owner of a pass is in a burst. On its own cache lines, because it is written twice per
/// burst.
#[derive(Default)]
#[repr(align(128))]
struct InBurst(AtomicBool);

/// One thread's pass through a gate.
pub(super) struct Pass {
    /// Gate of the pass.
    gate: Arc<Gate>,
    /// State of this thread, which the gate's list shares.
    in_burst: Arc<InBurst>,
}

impl Gate {
    /// Creates a pass for a thread.
    pub(super) fn pass(self: &Arc<Self>) -> Pass {
        let in_burst = Arc::<InBurst>::default();
        self.passes().push(Arc::clone(&in_burst));
        Pass { gate: Arc::clone(self), in_burst }
    }

    /// Locks the list of passes. A panicked thread leaves it consistent.
    fn passes(&self) -> MutexGuard<'_, Vec<Arc<InBurst>>> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` while no thread is in a burst. Waits for bursts in progress. New ones return 0 at once.
    pub(super) fn while_closed(&self, work: impl FnOnce()) {
        self.closed.fetch_add(1, Relaxed);
        // Orders the store before the checks. Pairs with the fence in `Pass::burst`: either that thread reads the
        // closed gate, or this one reads its burst.
        fence(SeqCst);
        // A copy, so that the lock is free during the wait. A pass created from now on finds the gate closed.
        let passes = self.passes().clone();
        for in_burst in passes {
            while in_burst.0.load(Acquire) {
                thread::sleep(CHECK_INTERVAL);
            }
        }
        work();
        self.closed.fetch_sub(1, Release);
    }
}

impl Pass {
    /// Runs `burst` and returns its number of packets; returns 0 without a call while the gate is closed. Never waits.
    #[inline]
    pub(super) fn burst(&self, burst: impl FnOnce() -> usize) -> usize {
        self.in_burst.0.store(true, Relaxed);
        // Pairs with the fence in `Gate::while_closed`.
        fence(SeqCst);
        let count = match self.gate.closed.load(Acquire) {
            0 => burst(),
            _ => 0,
        };
        self.in_burst.0.store(false, Release);
        count
    }
}

impl Drop for Pass {
    /// Removes the pass from its gate.
    fn drop(&mut self) {
        self.gate.passes().retain(|in_burst| !Arc::ptr_eq(in_burst, &self.in_burst));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    // promise: ports.2
    #[test]
    fn closed_gate_excludes_bursts() {
        let (gate, stop) = (Arc::<Gate>::default(), AtomicBool::new(false));
        // Threads inside a burst now; bursts so far.
        let (in_burst, bursts) = (AtomicUsize::new(0), AtomicU64::new(0));
        let mut in_burst_while_closed = 0;
        thread::scope(|scope| {
            for _ in 0..2 {
                let pass = gate.pass();
                let (stop, in_burst, bursts) = (&stop, &in_burst, &bursts);
                scope.spawn(move || {
                    while !stop.load(Relaxed) {
                        let packets = pass.burst(|| {
                            in_burst.fetch_add(1, SeqCst);
                            std::hint::spin_loop();
                            in_burst.fetch_sub(1, SeqCst);
                            1
                        });
                        bursts.fetch_add(packets as u64, Relaxed);
                    }
                });
            }
            for _ in 0..200 {
                // Waits until a burst has run since the gate opened again.
                let before = bursts.load(Relaxed);
                while bursts.load(Relaxed) == before {
                    thread::yield_now();
                }
                gate.while_closed(|| {
                    in_burst_while_closed += (0..100).map(|_| in_burst.load(SeqCst)).sum::<usize>()
                });
            }
            stop.store(true, Relaxed);
        });
        assert_eq!(in_burst_while_closed, 0);
    }

    // promise: ports.2
    #[test]
    fn closed_gate_moves_nothing_and_ignores_dropped_passes() {
        let gate = Arc::<Gate>::default();
        let (pass, dropped) = (gate.pass(), gate.pass());
        dropped.in_burst.0.store(true, Relaxed);
        drop(dropped);
        gate.while_closed(|| assert_eq!(pass.burst(|| 7), 0));
        assert_eq!(pass.burst(|| 7), 7);
    }
}
