//! A worker that has nothing to do sleeps, and its dispatcher wakes it.
//!
//! The worker stores that it sleeps, looks once more for a task, and waits in the system. The dispatcher, which
//! polls anyway, looks at that word while the worker has tasks outstanding, so it needs no fence after
//! giving a task, and calls the system only for a worker that does sleep.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use rustix::thread::futex;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// Sleeps until woken or for so long, unless `is_ready` says that there is no need.
pub fn sleep(word: &AtomicU32, longest: Duration, is_ready: impl Fn() -> bool) {
    word.store(ASLEEP, Release);
    // The dispatcher keeps looking while a task is outstanding, so a task that comes after this look wakes us.
    if !is_ready() {
        let time = futex::Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: longest.subsec_nanos().into(),
        };
        // Woken, woken before it slept, or the time is over: the caller looks in any case.
        let _ = futex::wait(word, futex::Flags::empty(), ASLEEP, Some(&time));
    }
    word.store(AWAKE, Relaxed);
}

/// The worker sleeps, or is about to.
#[inline]
pub fn is_asleep(word: &AtomicU32) -> bool {
    word.load(Relaxed) == ASLEEP
}

/// Wakes a sleeping worker.
#[cold]
pub fn wake(word: &AtomicU32) {
    if word.swap(AWAKE, Acquire) == ASLEEP {
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_sleeper_is_woken_and_a_needless_sleep_is_not_begun() {
        let word = AtomicU32::new(AWAKE);
        sleep(&word, Duration::from_secs(3600), || true);
        let ready = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ready.load(Acquire) {
                    sleep(&word, Duration::from_secs(3600), || ready.load(Acquire));
                }
            });
            while !is_asleep(&word) {
                std::thread::yield_now();
            }
            ready.store(true, Release);
            // As a dispatcher does: it looks until the worker has answered.
            wake(&word);
        });
    }
}
