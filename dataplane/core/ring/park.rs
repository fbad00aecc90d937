//! Sleep of an idle worker, and its wake-up by the dispatcher.
//!
//! The worker stores in a word that it sleeps, checks once more for a task, and waits in the kernel. The
//! dispatcher reads that word at each poll while the worker has outstanding tasks. So it sees a sleeper at a later
//! poll at the latest: it needs no fence after giving a task, and makes a system call only for a sleeping worker.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};
use std::time::Duration;

use rustix::thread::futex;

/// Value of the word while the worker runs.
const AWAKE: u32 = 0;
/// Value of the word while the worker sleeps or is about to.
const ASLEEP: u32 = 1;

/// Sleeps until woken, or for at most `longest`, unless `is_ready` returns true. May return earlier, so the caller
/// checks for a task afterwards. A change that precedes a call of [`wake`] ends the sleep if `is_ready` reads it.
pub fn sleep(word: &AtomicU32, longest: Duration, is_ready: impl Fn() -> bool) {
    word.store(ASLEEP, Release);
    // Pairs with the fence in `wake`: either that call reads `ASLEEP`, or `is_ready` reads the change before it.
    fence(SeqCst);
    // The dispatcher reads the word while a task is outstanding, so a task that arrives after this check
    // wakes the worker.
    if !is_ready() {
        let time = futex::Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: longest.subsec_nanos().into(),
        };
        // Ignores the result: woken, woken before sleeping, or timed out.
        let _ = futex::wait(word, futex::Flags::empty(), ASLEEP, Some(&time));
    }
    word.store(AWAKE, Relaxed);
}

/// Returns true if the worker sleeps or is about to.
#[inline]
pub fn is_asleep(word: &AtomicU32) -> bool {
    word.load(Relaxed) == ASLEEP
}

/// Wakes a sleeping worker, or keeps one awake that is about to sleep. Without effect unless [`is_asleep`].
#[cold]
pub fn wake(word: &AtomicU32) {
    fence(SeqCst);
    if word.swap(AWAKE, Acquire) == ASLEEP {
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn sleeper_is_woken_and_needless_sleep_avoided() {
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
            // The word was already `ASLEEP`, so one call suffices.
            wake(&word);
        });
    }
}
