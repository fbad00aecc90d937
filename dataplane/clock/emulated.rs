//! Node's side of a clock file.

use std::fs::File;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use super::file::{ClockError, ClockFile, ClockWords, Node, does};
use super::waiter::Waiter;
use super::{Clock, Progress};

/// Consecutive polls without work that end a turn.
const QUIET_POLLS: u32 = 2;
/// Interval of checks for a dead conductor and for a stop request.
const LOOK: Duration = Duration::from_millis(20);
/// Maximum number of polls after the end. Tasks that wait for time to pass would wait for ever.
const LAST_POLLS: u32 = 4096;

/// Clock of a node in emulated time.
#[derive(Debug)]
pub struct EmulatedClock {
    clock: ClockFile,
    words: ClockWords,
    /// Lock that marks the node as alive.
    _lock: File,
    waiter: Waiter,
    turn: u32,
    /// Consecutive polls without work.
    quiet: u32,
    polls: u64,
    last: Progress,
    ended: Option<ClockError>,
}

impl ClockFile {
    /// Ticks per second of a node's clock: the file counts nanoseconds.
    pub const TICKS_HZ: u64 = 1_000_000_000;

    /// Claims a line of the file for this node.
    ///
    /// # Errors
    /// If no line is free, or the system refuses.
    pub fn join(&self, node: Node) -> Result<EmulatedClock, ClockError> {
        let (line, lock) = self.claim()?;
        let words = self.words(line);
        // If a predecessor died during a turn, this node takes over that turn.
        let turn = words.done().word.load(Acquire);
        for (at, value) in
            [(does::POLLS, 0), (does::RECEIVED, 0), (does::SENT, 0), (does::TIMER_NS, 0)]
        {
            words.does[at].store(value, Relaxed);
        }
        words.does[does::PID].store(u64::from(std::process::id()), Relaxed);
        words.does[does::WHO].store(node.word(), Release);
        Ok(EmulatedClock {
            clock: self.clone(),
            words,
            _lock: lock,
            waiter: Waiter::default(),
            turn,
            quiet: QUIET_POLLS,
            polls: 0,
            last: Progress::default(),
            ended: None,
        })
    }
}

impl EmulatedClock {
    /// Waits for the next turn. Returns false if there will be none.
    #[inline]
    fn wait(&mut self, stop: &AtomicBool) -> bool {
        while !self.waiter.wait(self.words.turn(), self.turn, LOOK) {
            if stop.load(Relaxed) || self.clock.has_ended() {
                return false;
            }
            if !self.clock.has_conductor() {
                self.ended = Some(self.clock.without_conductor());
                return false;
            }
        }
        self.turn = self.words.turn().word.load(Acquire);
        self.quiet = 0;
        !self.clock.has_ended()
    }
}

impl Clock for EmulatedClock {
    fn ticks_hz(&self) -> u64 {
        ClockFile::TICKS_HZ
    }

    #[inline]
    fn next(&mut self, stop: &AtomicBool) -> Option<u64> {
        if stop.load(Relaxed) || self.quiet >= QUIET_POLLS && !self.wait(stop) {
            return None;
        }
        Some(self.clock.now_ns())
    }

    #[inline]
    fn polled(&mut self, progress: impl FnOnce() -> Progress) {
        let progress = progress();
        let moved = (progress.received, progress.sent) != (self.last.received, self.last.sent);
        self.polls += 1;
        self.quiet = if moved { 0 } else { self.quiet + 1 };
        self.last = progress;
        let does = &self.words.does;
        does[does::POLLS].store(self.polls, Relaxed);
        if self.quiet < QUIET_POLLS && !moved {
            return;
        }
        does[does::RECEIVED].store(progress.received, Relaxed);
        does[does::SENT].store(progress.sent, Relaxed);
        does[does::TIMER_NS].store(progress.timer, Relaxed);
        if self.quiet == QUIET_POLLS {
            self.words.done().give(self.turn);
        }
    }

    fn drain(&mut self, _: Duration, _: Duration, mut is_busy: impl FnMut(u64) -> bool) {
        let now_ns = self.clock.now_ns();
        let mut quiet = 0;
        for _ in 0..LAST_POLLS {
            quiet = if is_busy(now_ns) { 0 } else { quiet + 1 };
            if quiet == QUIET_POLLS {
                return;
            }
        }
    }

    fn ended(&self) -> Result<(), ClockError> {
        self.ended.clone().map_or(Ok(()), Err)
    }
}
