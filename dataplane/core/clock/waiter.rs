//! Waiting for a word that another process changes: spinning first, then sleeping in the kernel.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::time::Duration;

use rustix::thread::futex;

/// Reads of the word before sleeping: about 50 us, longer than waking a sleeper on another CPU takes. So two
/// processes that wait for each other in turn, each on its own CPU, soon need no wake-ups.
const SPINS: u32 = 1500;
/// Maximum exponent of the backoff: after n unsuccessful spins in a row, up to this number, only every 2^n-th wait
/// spins. On one CPU the writer cannot run while the reader spins.
const FAILURES_MAX: u32 = 7;

/// A word that one side changes and its peer waits for, with a flag for a sleeping waiter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signal<'a> {
    /// Awaited word.
    pub word: &'a AtomicU32,
    /// 1 while the waiter sleeps or is about to.
    pub asleep: &'a AtomicU32,
}

impl Signal<'_> {
    /// Sets the word, and wakes a sleeping waiter.
    #[inline]
    pub fn set(self, value: u32) {
        self.word.store(value, SeqCst);
        // SeqCst: either this thread sees the sleeper's flag, or the sleeper, which reads the word again after
        // setting its flag, sees the new value.
        if self.asleep.load(SeqCst) != 0 {
            self.wake();
        }
    }

    /// Wakes a sleeping waiter. Separate and cold, because the waiter mostly spins.
    #[cold]
    pub fn wake(self) {
        let _ = futex::wake(self.word, futex::Flags::empty(), 1);
    }
}

/// State of one waiting side.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiter {
    /// Consecutive unsuccessful attempts to spin.
    failures: u32,
    /// Remaining waits without spinning.
    skip: u32,
}

impl Waiter {
    /// Waits until the word differs from `old`: spins, except during the backoff, then sleeps once, at most `longest`.
    /// Returns false on timeout, and if it was woken without a change; callers loop.
    #[inline]
    pub fn wait(&mut self, signal: Signal<'_>, old: u32, longest: Duration) -> bool {
        let has_changed = || signal.word.load(Acquire) != old;
        if self.skip > 0 {
            self.skip -= 1;
        } else {
            for _ in 0..SPINS {
                if has_changed() {
                    self.failures = 0;
                    return true;
                }
                std::hint::spin_loop();
            }
            self.failures = (self.failures + 1).min(FAILURES_MAX);
            self.skip = (1 << self.failures) - 1;
        }
        sleep(signal, old, longest);
        has_changed()
    }
}

/// Sleeps once: until woken, at most `longest`, and not at all if the word differs from `old`.
fn sleep(signal: Signal<'_>, old: u32, longest: Duration) {
    signal.asleep.store(1, SeqCst);
    if signal.word.load(SeqCst) == old {
        let time = futex::Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: longest.subsec_nanos().into(),
        };
        // Changed, woken or timed out: the caller reads again in any case.
        let _ = futex::wait(signal.word, futex::Flags::empty(), old, Some(&time));
    }
    signal.asleep.store(0, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: emulated-time.1
    #[test]
    fn no_change_is_missed_however_the_two_meet() {
        let words: [AtomicU32; 4] = Default::default();
        let forth = Signal { word: &words[0], asleep: &words[1] };
        let back = Signal { word: &words[2], asleep: &words[3] };
        // Sleeps without spinning at the first 40 waits, as on a single CPU.
        let waiter = || Waiter { failures: FAILURES_MAX, skip: 40 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut waiter = waiter();
                for turn in 0..2000 {
                    while !waiter.wait(forth, turn, Duration::from_secs(3600)) {}
                    back.set(turn + 1);
                }
            });
            let mut waiter = waiter();
            for turn in 0..2000 {
                forth.set(turn + 1);
                while !waiter.wait(back, turn, Duration::from_secs(3600)) {}
            }
        });
    }

    #[test]
    fn a_wait_ends_in_time() {
        let words: [AtomicU32; 2] = Default::default();
        let signal = Signal { word: &words[0], asleep: &words[1] };
        assert!(!Waiter::default().wait(signal, 0, Duration::from_millis(1)));
        assert!(Waiter::default().wait(signal, 1, Duration::from_secs(3600)));
    }
}
