//! The conductor's side of a clock file: it moves the time, and gives turns.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use super::file::{ClockError, ClockFile, Node, Words, does};
use super::waiter::Waiter;

/// Between two looks whether a node that has not ended its turn lives.
const LOOK: Duration = Duration::from_millis(100);
/// A node's turn may take so long; a machine that stands still for seconds is none of its faults.
const PATIENCE: Duration = Duration::from_secs(60);

/// The line of a node that has gone for good.
const NOWHERE: usize = usize::MAX;

/// What a node has told of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Polls.
    pub polls: u64,
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Its earliest timer.
    pub timer_ns: u64,
}

/// A turn that did not end.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TurnError {
    /// The node's process has ended, or its core has.
    #[error("{node} (pid {pid}) has gone in the middle of its turn at {now_ns} ns")]
    Gone {
        /// The node.
        node: Node,
        /// Its process.
        pid: u64,
        /// The time.
        now_ns: u64,
    },
    /// It goes on and on.
    #[error(
        "{node} (pid {pid}) does not become quiet at {now_ns} ns: in {waited:?} it polled {polls} times, received {received} \
         packets and sent {sent}; {advice}"
    )]
    Restless {
        /// The node.
        node: Node,
        /// Its process.
        pid: u64,
        /// The time.
        now_ns: u64,
        /// The conductor's patience.
        waited: Duration,
        /// Polls in this turn.
        polls: u64,
        /// Packets received in it.
        received: u64,
        /// Packets sent in it.
        sent: u64,
        /// What to look for.
        advice: &'static str,
    },
}

/// The owner of a clock file. It goes with this; nodes that still run then end with an error, unless [`Conductor::end`] told
/// them before.
#[derive(Debug)]
pub struct Conductor {
    clock: ClockFile,
    /// Tells that the conductor lives.
    _lock: File,
    patience: Duration,
    participants: Vec<Participant>,
}

/// A node that takes part.
#[derive(Debug)]
struct Participant {
    node: Node,
    line: usize,
    words: Words,
    waiter: Waiter,
    turn: u32,
}

impl Conductor {
    /// A clock at time 0 for at most `nodes` nodes, in a new file. One whose conductor no longer runs is replaced.
    ///
    /// # Errors
    /// When another conductor runs on it, when it is something else, or when the system refuses.
    pub fn create(path: &Path, nodes: usize) -> Result<Self, ClockError> {
        let (clock, lock) = ClockFile::create(path, nodes)?;
        Ok(Self { clock, _lock: lock, patience: PATIENCE, participants: Vec::new() })
    }

    /// The same, but a node that does not become quiet is given up after so long.
    #[cfg(test)]
    pub(super) fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The time.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Moves the time.
    #[inline]
    pub fn set_now_ns(&mut self, now_ns: u64) {
        self.clock.set_now_ns(now_ns);
    }

    /// Takes a node that has joined; its number for [`Conductor::turn`]. None while it has not.
    pub fn take(&mut self, node: Node) -> Option<usize> {
        let line = (0..self.clock.nodes()).find(|&line| {
            let taken = self.participants.iter().any(|participant| participant.line == line);
            let who = self.clock.words(line).does[does::WHO].load(Acquire);
            !taken && self.clock.has_node(line) && who == node.word()
        })?;
        let words = self.clock.words(line);
        let turn = words.turn().word.load(Relaxed);
        self.participants.push(Participant { node, line, words, waiter: Waiter::default(), turn });
        Some(self.participants.len() - 1)
    }

    /// A node has gone for good: another of its name may join and be taken, and has a number of its own.
    ///
    /// # Panics
    /// When there is no node of that number.
    pub fn forget(&mut self, node: usize) {
        self.participants[node].line = NOWHERE;
    }

    /// Has a node poll until it is quiet; what it has done so far.
    ///
    /// # Errors
    /// When it does not become quiet, or has gone.
    ///
    /// # Panics
    /// When there is no node of that number.
    #[inline]
    pub fn turn(&mut self, node: usize) -> Result<Line, TurnError> {
        let participant = &mut self.participants[node];
        participant.turn = participant.turn.wrapping_add(1);
        participant.words.turn().give(participant.turn);
        if !participant.wait() {
            participant.wait_on(&self.clock, self.patience)?;
        }
        Ok(participant.line())
    }

    /// What a node has told of itself.
    ///
    /// # Panics
    /// When there is no node of that number.
    #[must_use]
    pub fn line(&self, node: usize) -> Line {
        self.participants[node].line()
    }

    /// Ends the run: all nodes end in order.
    pub fn end(&mut self) {
        self.clock.end();
        for participant in &mut self.participants {
            participant.turn = participant.turn.wrapping_add(1);
            participant.words.turn().give(participant.turn);
        }
    }
}

impl Drop for Conductor {
    fn drop(&mut self) {
        // Its lock is still held, so it is ours.
        let _ = std::fs::remove_file(&self.clock.path);
    }
}

impl Participant {
    fn line(&self) -> Line {
        let word = |at: usize| self.words.does[at].load(Relaxed);
        Line {
            polls: word(does::POLLS),
            received: word(does::RECEIVED),
            sent: word(does::SENT),
            timer_ns: word(does::TIMER_NS),
        }
    }

    /// Waits until the turn is over, but not for long; false when it is not.
    #[inline]
    fn wait(&mut self) -> bool {
        loop {
            let done = self.words.done();
            let seen = done.word.load(Acquire);
            if seen == self.turn {
                return true;
            }
            if !self.waiter.wait(done, seen, LOOK) {
                return false;
            }
        }
    }

    /// Waits for as long as there is hope.
    #[cold]
    fn wait_on(&mut self, clock: &ClockFile, patience: Duration) -> Result<(), TurnError> {
        let (began, first) = (Instant::now(), self.line());
        let (node, now_ns) = (self.node, clock.now_ns());
        let pid = self.words.does[does::PID].load(Relaxed);
        while !self.wait() {
            if !clock.has_node(self.line) {
                self.words.does[does::WHO].store(0, Relaxed);
                return Err(TurnError::Gone { node, pid, now_ns });
            }
            let waited = began.elapsed();
            if waited >= patience {
                let line = self.line();
                let polls = line.polls - first.polls;
                let advice = match polls {
                    0 => "it does not poll at all: is its process stopped?",
                    _ => "does something send to it, or does it send to itself, without end?",
                };
                let (received, sent) = (line.received - first.received, line.sent - first.sent);
                return Err(TurnError::Restless {
                    node,
                    pid,
                    now_ns,
                    waited,
                    polls,
                    received,
                    sent,
                    advice,
                });
            }
        }
        Ok(())
    }
}
