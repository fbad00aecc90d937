//! Gate that keeps threads out of a device's bursts while memory that they access is mapped or unmapped.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Interval of checks for a thread in the middle of a burst.
const LOOK: Duration = Duration::from_micros(20);

/// Gate that polling threads pass for every burst.
#[derive(Default)]
pub(super) struct Gate {
    /// Number of callers that currently keep it closed.
    closed: AtomicUsize,
    passes: Mutex<Vec<Arc<InBurst>>>,
}

/// True while the owner of a pass is in a burst. On its own cache lines, because it is written twice per
/// burst.
#[derive(Default)]
#[repr(align(128))]
struct InBurst(AtomicBool);

/// One thread's pass through a gate.
pub(super) struct Pass {
    gate: Arc<Gate>,
    inside: Arc<InBurst>,
}

impl Gate {
    pub(super) fn pass(self: &Arc<Self>) -> Pass {
        let inside = Arc::<InBurst>::default();
        self.passes().push(Arc::clone(&inside));
        Pass { gate: Arc::clone(self), inside }
    }

    /// A panicked thread leaves the list consistent.
    fn passes(&self) -> MutexGuard<'_, Vec<Arc<InBurst>>> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` while no thread is in a burst: waits for bursts in progress, and blocks new ones.
    pub(super) fn while_closed(&self, work: impl FnOnce()) {
        self.closed.fetch_add(1, Relaxed);
        // Before the checks: a thread that misses the closed gate is seen inside. Pairs with the fence in
        // `Pass::burst`.
        fence(SeqCst);
        // Passes are created before their threads poll, and never during a long wait here.
        let passes = self.passes().clone();
        for inside in passes {
            while inside.0.load(Acquire) {
                thread::sleep(LOOK);
            }
        }
        work();
        self.closed.fetch_sub(1, Release);
    }
}

impl Pass {
    /// Runs `burst`, unless the gate is closed.
    #[inline]
    pub(super) fn burst(&self, burst: impl FnOnce() -> usize) -> usize {
        self.inside.0.store(true, Relaxed);
        fence(SeqCst);
        let done = match self.gate.closed.load(Acquire) {
            0 => burst(),
            _ => 0,
        };
        self.inside.0.store(false, Release);
        done
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.passes().retain(|inside| !Arc::ptr_eq(inside, &self.inside));
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
        let (inside, bursts) = (AtomicUsize::new(0), AtomicU64::new(0));
        let mut seen = 0;
        thread::scope(|scope| {
            for _ in 0..2 {
                let pass = gate.pass();
                let (stop, inside, bursts) = (&stop, &inside, &bursts);
                scope.spawn(move || {
                    while !stop.load(Relaxed) {
                        let done = pass.burst(|| {
                            inside.fetch_add(1, SeqCst);
                            std::hint::spin_loop();
                            inside.fetch_sub(1, SeqCst);
                            1
                        });
                        bursts.fetch_add(done as u64, Relaxed);
                    }
                });
            }
            for _ in 0..200 {
                let before = bursts.load(Relaxed);
                while bursts.load(Relaxed) == before {
                    thread::yield_now();
                }
                gate.while_closed(|| seen += (0..100).map(|_| inside.load(SeqCst)).sum::<usize>());
            }
            stop.store(true, Relaxed);
        });
        assert_eq!(seen, 0);
    }

    // promise: ports.2
    #[test]
    fn closed_gate_moves_nothing_and_ignores_dropped_passes() {
        let gate = Arc::<Gate>::default();
        let (pass, gone) = (gate.pass(), gate.pass());
        gone.inside.0.store(true, Relaxed);
        drop(gone);
        gate.while_closed(|| assert_eq!(pass.burst(|| 7), 0));
        assert_eq!(pass.burst(|| 7), 7);
    }
}
