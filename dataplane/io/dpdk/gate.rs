//! Keeps threads out of a device's bursts while what they read and write there comes or goes.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How often a thread is looked at that is in the middle of a burst.
const LOOK: Duration = Duration::from_micros(20);

/// What the threads that poll a device go through for every burst.
#[derive(Default)]
pub(super) struct Gate {
    /// How many want it closed at the moment.
    closed: AtomicUsize,
    passes: Mutex<Vec<Arc<Inside>>>,
}

/// True while the owner of a pass is in a burst. On a cache line of its own: it is written twice a burst.
#[derive(Default)]
#[repr(align(128))]
struct Inside(AtomicBool);

/// One thread's way through a gate.
pub(super) struct Pass {
    gate: Arc<Gate>,
    inside: Arc<Inside>,
}

impl Gate {
    pub(super) fn pass(self: &Arc<Self>) -> Pass {
        let inside = Arc::<Inside>::default();
        self.passes().push(Arc::clone(&inside));
        Pass { gate: Arc::clone(self), inside }
    }

    /// What a thread that panicked has left of it is whole.
    fn passes(&self) -> MutexGuard<'_, Vec<Arc<Inside>>> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work` while no thread is in a burst: waits for the bursts that have begun, and none begins until it is done.
    pub(super) fn while_closed(&self, work: impl FnOnce()) {
        self.closed.fetch_add(1, Relaxed);
        // Before the looks: whoever does not see the gate closed is seen inside. Its pair is in `Pass::burst`.
        fence(SeqCst);
        // Passes are made before their threads poll, and not while somebody waits here for long.
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
    /// Does `burst`, unless the gate is closed.
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

    #[test]
    fn nobody_is_in_a_burst_while_the_gate_is_closed() {
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

    #[test]
    fn a_closed_gate_says_that_nothing_was_moved_and_a_pass_that_is_gone_is_not_waited_for() {
        let gate = Arc::<Gate>::default();
        let (pass, gone) = (gate.pass(), gate.pass());
        gone.inside.0.store(true, Relaxed);
        drop(gone);
        gate.while_closed(|| assert_eq!(pass.burst(|| 7), 0));
        assert_eq!(pass.burst(|| 7), 7);
    }
}
