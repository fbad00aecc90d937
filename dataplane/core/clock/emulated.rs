//! Node's side of a clock file. The conductor, which advances emulated time, gives a node *turns*. A turn ends after
//! two consecutive polls without packets. A node's words in the file are its *line*.

use std::fs::File;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use super::file::{ClockError, ClockFile, ClockWords, Node, state};
use super::waiter::Waiter;
use super::{Clock, Progress};

/// Consecutive polls without work that end a turn.
const QUIET_POLLS: u32 = 2;
/// Interval of checks for a dead conductor and for a stop request.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of polls after the end. Time no longer advances, so a node that waits for a timer stays busy.
const LAST_POLLS: u32 = 4096;

/// Clock of a node in emulated time.
#[derive(Debug)]
pub struct EmulatedClock {
    clock: ClockFile,
    /// The node's line.
    words: ClockWords,
    /// Lock that marks the node as alive.
    _lock: File,
    waiter: Waiter,
    /// Number of the current turn, or of the last one.
    turn: u32,
    /// Consecutive polls without work.
    quiet: u32,
    /// Number of polls.
    polls: u64,
    /// Progress at the last poll.
    last: Progress,
    /// Error that ended the loop.
    error: Option<ClockError>,
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
        // Starts after the last ended turn. The line's last node may have died during a later one. The conductor then
        // still waits for that turn, and this node takes it over.
        let turn = words.done().word.load(Acquire);
        for (index, value) in
            [(state::POLLS, 0), (state::RECEIVED, 0), (state::SENT, 0), (state::TIMER_NS, 0)]
        {
            words.state[index].store(value, Relaxed);
        }
        words.state[state::PID].store(u64::from(std::process::id()), Relaxed);
        words.state[state::NODE].store(node.word(), Release);
        Ok(EmulatedClock {
            clock: self.clone(),
            words,
            _lock: lock,
            waiter: Waiter::default(),
            turn,
            quiet: QUIET_POLLS, // as after a turn: the node waits for its first one
            polls: 0,
            last: Progress::default(),
            error: None,
        })
    }
}

impl EmulatedClock {
    /// Waits for the next turn. Returns false if the node must stop, the run has ended, or the conductor is dead.
    #[inline]
    fn wait(&mut self, stop: &AtomicBool) -> bool {
        while !self.waiter.wait(self.words.turn(), self.turn, CHECK_INTERVAL) {
            if stop.load(Relaxed) || self.clock.has_ended() {
                return false;
            }
            if !self.clock.has_conductor() {
                self.error = Some(self.clock.without_conductor());
                return false;
            }
        }
        self.turn = self.words.turn().word.load(Acquire);
        self.quiet = 0;
        !self.clock.has_ended()
    }
}

impl Drop for EmulatedClock {
    /// Removes the name while the lock still excludes other nodes. The line must not count as this node's once another
    /// process claims it.
    fn drop(&mut self) {
        self.words.state[state::NODE].store(0, Relaxed);
    }
}

impl Clock for EmulatedClock {
    fn ticks_hz(&self) -> u64 {
        ClockFile::TICKS_HZ
    }

    /// Returns the file's time; first waits for a turn if the last one has ended.
    #[inline]
    fn next(&mut self, stop: &AtomicBool) -> Option<u64> {
        if stop.load(Relaxed) || self.quiet >= QUIET_POLLS && !self.wait(stop) {
            return None;
        }
        Some(self.clock.now_ns())
    }

    /// Publishes the node's progress, and ends the turn after `QUIET_POLLS` polls without packets.
    #[inline]
    fn polled(&mut self, progress: impl FnOnce() -> Progress) {
        let progress = progress();
        let has_worked = (progress.received, progress.sent) != (self.last.received, self.last.sent);
        self.polls += 1;
        self.quiet = if has_worked { 0 } else { self.quiet + 1 };
        self.last = progress;
        let state = &self.words.state;
        // The conductor's error on a turn that does not end has the number of polls.
        state[state::POLLS].store(self.polls, Relaxed);
        // Skips three stores: the first quiet poll changes no packet count, and the second one stores the timer.
        if self.quiet < QUIET_POLLS && !has_worked {
            return;
        }
        state[state::RECEIVED].store(progress.received, Relaxed);
        state[state::SENT].store(progress.sent, Relaxed);
        state[state::TIMER_NS].store(progress.timer, Relaxed);
        if self.quiet == QUIET_POLLS {
            self.words.done().set(self.turn);
        }
    }

    /// Counts quiet polls instead of time, which no longer advances.
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
        self.error.clone().map_or(Ok(()), Err)
    }
}
