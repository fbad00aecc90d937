//! Conductor's side of a clock file: advances the time and gives turns to nodes. In its *turn* a node polls until it
//! is quiet: two polls in a row without packets. A node's words in the file are its *line*.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use super::file::{ClockError, ClockFile, ClockWords, Node, state};
use super::waiter::Waiter;

/// Interval of checks whether a node with a long turn is alive.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Longest turn of a node. Generous, because the machine may stall for seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Panic message for the number of a node that has left for good.
const NO_SUCH_NODE: &str = "the node has left for good";

/// A node's published state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Number of polls.
    pub polls: u64,
    /// Received packets.
    pub received: u64,
    /// Sent packets.
    pub sent: u64,
    /// Earliest timer.
    pub timer_ns: u64,
}

/// Reason why a turn did not end.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TurnError {
    /// The node's process or core has ended.
    #[error("{node} (pid {pid}) ended during its turn at {now_ns} ns")]
    Gone {
        /// The node.
        node: Node,
        /// Its process.
        pid: u64,
        /// The time.
        now_ns: u64,
    },
    /// The node did not become quiet in time, or did not poll.
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
        /// Time that the conductor waited, without the first `CHECK_INTERVAL` of the turn.
        waited: Duration,
        /// Polls in that time.
        polls: u64,
        /// Packets received in it.
        received: u64,
        /// Packets sent in it.
        sent: u64,
        /// Advice on the cause.
        advice: &'static str,
    },
}

/// Owner of a clock file; removes it on drop. Nodes that still run then end with an error, unless
/// [`Conductor::end`] was called.
#[derive(Debug)]
pub struct Conductor {
    clock: ClockFile,
    /// Lock that marks the conductor as alive.
    _lock: File,
    /// Longest turn of a node.
    timeout: Duration,
    /// The nodes by their numbers; `None` after a node has left for good.
    participants: Vec<Option<Participant>>,
}

/// A joined node.
#[derive(Debug)]
struct Participant {
    node: Node,
    /// Number of its line.
    line: usize,
    words: ClockWords,
    waiter: Waiter,
    /// Number of its last turn.
    turn: u32,
}

impl Conductor {
    /// Creates a new file with a clock at time 0 for at most `nodes` nodes (limited to 1 to 256). Replaces the file
    /// of a conductor that no longer runs.
    ///
    /// # Errors
    /// If another conductor uses the file, it is no valid clock of this version, or the system refuses.
    pub fn create(path: &Path, nodes: usize) -> Result<Self, ClockError> {
        let (clock, lock) = ClockFile::create(path, nodes)?;
        Ok(Self { clock, _lock: lock, timeout: TIMEOUT, participants: Vec::new() })
    }

    /// Sets the longest turn of a node.
    #[cfg(test)]
    pub(super) fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the time.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Sets the time.
    #[inline]
    pub fn set_now_ns(&mut self, now_ns: u64) {
        self.clock.set_now_ns(now_ns);
    }

    /// Accepts a node that has joined. Returns its number for [`Conductor::turn`], or `None` if no node of this name
    /// waits for that.
    pub fn take(&mut self, node: Node) -> Option<usize> {
        let line = (0..self.clock.nodes()).find(|&line| {
            let is_taken = self.participants.iter().flatten().any(|joined| joined.line == line);
            // A joining node stores its name last, with Release.
            let name = self.clock.words(line).state[state::NODE].load(Acquire);
            !is_taken && self.clock.has_node(line) && name == node.word()
        })?;
        let words = self.clock.words(line);
        let turn = words.turn().word.load(Relaxed);
        let waiter = Waiter::default();
        self.participants.push(Some(Participant { node, line, words, waiter, turn }));
        Some(self.participants.len() - 1)
    }

    /// Removes a node that has left for good. Another node of the same name may join later and gets its own
    /// number.
    ///
    /// # Panics
    /// If no node has ever had that number.
    pub fn forget(&mut self, node: usize) {
        self.participants[node] = None;
    }

    /// Lets a node poll until it is quiet. Returns its published state.
    ///
    /// # Errors
    /// If it does not become quiet, or has ended.
    ///
    /// # Panics
    /// If there is no node with that number.
    #[inline]
    pub fn turn(&mut self, node: usize) -> Result<Line, TurnError> {
        let participant = self.participants[node].as_mut().expect(NO_SUCH_NODE);
        participant.turn = participant.turn.wrapping_add(1);
        participant.words.turn().set(participant.turn);
        if !participant.wait() {
            participant.wait_long(&self.clock, self.timeout)?;
        }
        Ok(participant.line())
    }

    /// Returns a node's published state.
    ///
    /// # Panics
    /// If there is no node with that number.
    #[must_use]
    pub fn line(&self, node: usize) -> Line {
        self.participants[node].as_ref().expect(NO_SUCH_NODE).line()
    }

    /// Ends the run. All nodes then end without an error. A last turn wakes the nodes that wait for one.
    pub fn end(&mut self) {
        self.clock.end();
        for participant in self.participants.iter_mut().flatten() {
            participant.turn = participant.turn.wrapping_add(1);
            participant.words.turn().set(participant.turn);
        }
    }
}

impl Drop for Conductor {
    fn drop(&mut self) {
        // This conductor still holds the lock, so no successor has replaced the file.
        let _ = std::fs::remove_file(&self.clock.path);
    }
}

impl Participant {
    /// Returns its published state.
    fn line(&self) -> Line {
        let word = |index: usize| self.words.state[index].load(Relaxed);
        Line {
            polls: word(state::POLLS),
            received: word(state::RECEIVED),
            sent: word(state::SENT),
            timer_ns: word(state::TIMER_NS),
        }
    }

    /// Waits for the end of the turn, until a check of the node is due. Returns false if the turn continues.
    #[inline]
    fn wait(&mut self) -> bool {
        loop {
            let done = self.words.done();
            let ended_turn = done.word.load(Acquire);
            if ended_turn == self.turn {
                return true;
            }
            if !self.waiter.wait(done, ended_turn, CHECK_INTERVAL) {
                return false;
            }
        }
    }

    /// Waits until the turn ends, the node dies, or `timeout` is over.
    #[cold]
    fn wait_long(&mut self, clock: &ClockFile, timeout: Duration) -> Result<(), TurnError> {
        let (start, before) = (Instant::now(), self.line());
        let (node, now_ns) = (self.node, clock.now_ns());
        let pid = self.words.state[state::PID].load(Relaxed);
        while !self.wait() {
            if !clock.has_node(self.line) {
                // The line must not count as the dead node's once another process claims it.
                self.words.state[state::NODE].store(0, Relaxed);
                return Err(TurnError::Gone { node, pid, now_ns });
            }
            let waited = start.elapsed();
            if waited >= timeout {
                let line = self.line();
                let polls = line.polls - before.polls;
                let advice = match polls {
                    0 => "it does not poll: check that its process is not stopped",
                    _ => "check that it does not receive or send packets in an endless loop",
                };
                let (received, sent) = (line.received - before.received, line.sent - before.sent);
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
