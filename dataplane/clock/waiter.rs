//! Waiting for a word that another process changes: spinning first, then sleeping in the kernel.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::time::Duration;

use rustix::thread::futex;

/// Reads of the word before sleeping: about 50 us, longer than waking a sleeper on another CPU takes. So two
/// processes that wait for each other in turn, each on its own CPU, soon need no wake-ups.
const LOOKS: u32 = 1500;
/// log2 of the waits per attempt to spin, after this many unsuccessful attempts in a row. On one CPU the
/// writer cannot run while the reader spins.
const VAIN_MOST: u32 = 7;

/// A word that one side changes and the other side waits for, with a flag that the waiter sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signal<'a> {
    pub word: &'a AtomicU32,
    pub asleep: &'a AtomicU32,
}

impl Signal<'_> {
    /// Sets the word, and wakes a sleeping waiter.
    #[inline]
    pub fn give(self, value: u32) {
        self.word.store(value, SeqCst);
        // Either this thread sees the sleeper, or the sleeper, which reads again after setting its flag, sees
        // the new value.
        if self.asleep.load(SeqCst) != 0 {
            self.wake();
        }
    }

    /// Makes a sleeper read again.
    #[cold]
    pub fn wake(self) {
        let _ = futex::wake(self.word, futex::Flags::empty(), 1);
    }
}

/// State of one waiting side.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiter {
    /// Consecutive unsuccessful attempts to spin.
    vain: u32,
    /// Remaining waits without spinning.
    skip: u32,
}

impl Waiter {
    /// Waits at most `longest` until the word differs from `seen`. Returns false on timeout.
    #[inline]
    pub fn wait(&mut self, signal: Signal<'_>, seen: u32, longest: Duration) -> bool {
        let changed = || signal.word.load(Acquire) != seen;
        if self.skip > 0 {
            self.skip -= 1;
        } else {
            for _ in 0..LOOKS {
                if changed() {
                    self.vain = 0;
                    return true;
                }
                std::hint::spin_loop();
            }
            self.vain = (self.vain + 1).min(VAIN_MOST);
            self.skip = (1 << self.vain) - 1;
        }
        sleep(signal, seen, longest);
        changed()
    }
}

/// Sleeps until woken, once.
fn sleep(signal: Signal<'_>, seen: u32, longest: Duration) {
    signal.asleep.store(1, SeqCst);
    if signal.word.load(SeqCst) == seen {
        let time = futex::Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: longest.subsec_nanos().into(),
        };
        // Changed, woken or timed out: the caller reads again in any case.
        let _ = futex::wait(signal.word, futex::Flags::empty(), seen, Some(&time));
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
        let there = Signal { word: &words[0], asleep: &words[1] };
        let back = Signal { word: &words[2], asleep: &words[3] };
        // Skips spinning most of the time, as on a single CPU.
        let waiter = || Waiter { vain: VAIN_MOST, skip: 40 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut waiter = waiter();
                for turn in 0..2000 {
                    while !waiter.wait(there, turn, Duration::from_secs(3600)) {}
                    back.give(turn + 1);
                }
            });
            let mut waiter = waiter();
            for turn in 0..2000 {
                there.give(turn + 1);
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
