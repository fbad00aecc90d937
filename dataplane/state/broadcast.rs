//! What one core of a node tells the others of its pools' members: a ring of cache lines that it alone writes and the others
//! read, each at its own pace.
//!
//! A message is a word, and a line carries 15 of one pool under a header of its own, so that what has come is seen in the line
//! that carries it and nobody shares a count. The writer waits for nobody: a reader that is overtaken is told so and looks
//! at what the writer told last of each member ([`super::peers`]) instead.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use super::member::Member;
use super::region::sealed::Sealed;
use super::region::{Slice, Word};

/// Lines of a ring, a power of two.
pub const LINES: usize = 64;
/// Messages in a line.
const MESSAGES: usize = 15;
/// Bytes of a ring: a line for its head, and its lines.
pub const BYTES: usize = 64 * (LINES + 1);

/// A cache line: a header, and messages.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line {
    header: AtomicU32,
    messages: [AtomicU32; MESSAGES],
}

impl Sealed for Line {}
impl Word for Line {}

/// What the messages of a line tell of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The queue that the writer believes the member has, in sixteenths of a task.
    Loads = 0,
    /// Tasks that the writer has sent to the member less those that it saw answered, modulo 2^16.
    Counts = 1,
}

/// Of which pool, by its index, and what a line tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Index of the pool.
    pub pool: u16,
    /// What is told.
    pub topic: Topic,
}

/// A line's header: lap of the ring (16 bits), pool (10), topic (1), whether no more follows in this line (1), messages (4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    lap: u16,
    subject: Subject,
    is_closed: bool,
    count: usize,
}

impl Header {
    fn pack(self) -> u32 {
        u32::from(self.lap) << 16
            | u32::from(self.subject.pool) << 6
            | (self.subject.topic as u32) << 5
            | u32::from(self.is_closed) << 4
            | self.count as u32
    }

    fn unpack(word: u32) -> Self {
        let topic = if word >> 5 & 1 == 0 { Topic::Loads } else { Topic::Counts };
        Self {
            lap: (word >> 16) as u16,
            subject: Subject { pool: (word >> 6 & 0x3FF) as u16, topic },
            is_closed: word >> 4 & 1 == 1,
            count: (word & 15) as usize,
        }
    }
}

/// The lap in which a line is the `line`th one; none is 0, as in memory that was never written.
fn lap(line: u64) -> u16 {
    (line / LINES as u64 % u64::from(u16::MAX)) as u16 + 1
}

/// The writer's end.
#[derive(Debug)]
pub struct Sender {
    lines: Slice<Line>,
    /// Number of the line that is written, for readers that were overtaken.
    head: Slice<AtomicU64>,
    line: u64,
    subject: Subject,
    /// Messages of the line: those that are visible, and those that are not yet.
    visible: usize,
    staged: usize,
    messages: [u32; MESSAGES],
}

impl Sender {
    /// Over the memory of a ring that nobody has written: [`BYTES`] from a line's start.
    #[must_use]
    pub fn new(lines: Slice<Line>, head: Slice<AtomicU64>) -> Self {
        assert_eq!(lines.len(), LINES);
        let subject = Subject { pool: 0, topic: Topic::Loads };
        Self { lines, head, line: 0, subject, visible: 0, staged: 0, messages: [0; MESSAGES] }
    }

    /// Tells something of a member. The others see it when its line is full, or after [`Sender::publish`].
    #[inline]
    pub fn tell(&mut self, subject: Subject, member: Member, value: u16) {
        if subject != self.subject {
            self.close();
            self.subject = subject;
        }
        self.messages[self.staged] = u32::from(member.0) << 16 | u32::from(value);
        self.staged += 1;
        if self.staged == MESSAGES {
            self.close();
        }
    }

    /// Lets the others see what was told.
    #[inline]
    pub fn publish(&mut self) {
        if self.staged > self.visible {
            self.write(false);
        }
    }

    /// The next message begins a line.
    fn close(&mut self) {
        if self.staged > 0 {
            self.write(true);
            self.line += 1;
            (self.visible, self.staged) = (0, 0);
        }
    }

    fn write(&mut self, is_closed: bool) {
        let line = &self.lines[self.line as usize % LINES];
        let (lap, subject) = (lap(self.line), self.subject);
        let header = |count| Header { lap, subject, is_closed, count }.pack();
        if self.visible == 0 {
            // Whoever still reads the last lap's messages must not take these for them.
            self.head[0].store(self.line, Relaxed);
            line.header
                .store(Header { is_closed: false, ..Header::unpack(header(0)) }.pack(), Relaxed);
            fence(Release);
        }
        for at in self.visible..self.staged {
            line.messages[at].store(self.messages[at], Relaxed);
        }
        line.header.store(header(self.staged), Release);
        self.visible = self.staged;
    }
}

/// A reader's end.
#[derive(Debug)]
pub struct Receiver {
    lines: Slice<Line>,
    head: Slice<AtomicU64>,
    line: u64,
    taken: usize,
}

/// What a reader finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many messages, on this.
    Messages(Subject, usize),
    /// It was overtaken: messages are lost, and what was told last of each member is to be looked up. Those that come from
    /// now on were not lost.
    Overtaken,
}

/// Room for what a reader takes at once.
pub type Messages = [(Member, u16); MESSAGES];

/// Room that nothing was taken into yet.
pub const NO_MESSAGES: Messages = [(Member(0), 0); MESSAGES];

impl Receiver {
    /// Of the ring of a writer that has told nothing yet.
    #[must_use]
    pub fn new(lines: Slice<Line>, head: Slice<AtomicU64>) -> Self {
        assert_eq!(lines.len(), LINES);
        Self { lines, head, line: 0, taken: 0 }
    }

    /// The next messages; none when none have come.
    #[inline]
    pub fn receive(&mut self, messages: &mut Messages) -> Option<Received> {
        let word = self.lines[self.line as usize % LINES].header.load(Acquire);
        let header = Header::unpack(word);
        if header.lap == lap(self.line) && header.count == self.taken && !header.is_closed {
            return None;
        }
        self.take(header, messages)
    }

    #[cold]
    fn take(&mut self, mut header: Header, messages: &mut Messages) -> Option<Received> {
        loop {
            let expected = lap(self.line);
            let line = &self.lines[self.line as usize % LINES];
            if header.lap != expected {
                // That of the lap before, or nothing so far, unless the writer is ahead by a lap.
                let ahead = self.head[0].load(Acquire) >= self.line + LINES as u64;
                return ahead.then(|| self.catch_up());
            }
            let (first, count) = (self.taken, header.count);
            for (message, word) in messages.iter_mut().zip(&line.messages[first..count]) {
                let word = word.load(Relaxed);
                *message = (Member((word >> 16) as u16), word as u16);
            }
            fence(Acquire);
            if Header::unpack(line.header.load(Relaxed)).lap != expected {
                return Some(self.catch_up());
            }
            self.taken = count;
            if header.is_closed {
                (self.line, self.taken) = (self.line + 1, 0);
            }
            if count > first {
                return Some(Received::Messages(header.subject, count - first));
            }
            if !header.is_closed {
                return None;
            }
            header = Header::unpack(self.lines[self.line as usize % LINES].header.load(Acquire));
        }
    }

    fn catch_up(&mut self) -> Received {
        (self.line, self.taken) = (self.head[0].load(Acquire), 0);
        Received::Overtaken
    }
}

#[cfg(test)]
mod tests {
    use super::super::region::Region;
    use super::*;

    const LOADS: Subject = Subject { pool: 3, topic: Topic::Loads };
    const COUNTS: Subject = Subject { pool: 3, topic: Topic::Counts };

    fn ring() -> (Sender, Receiver) {
        let region = Region::heap(BYTES);
        let (lines, head) = (region.slice(64, LINES), region.slice(0, 1));
        (Sender::new(lines.clone(), head.clone()), Receiver::new(lines, head))
    }

    fn all(receiver: &mut Receiver) -> Vec<(Subject, u16, u16)> {
        let mut messages = [(Member(0), 0); MESSAGES];
        let mut all = Vec::new();
        while let Some(received) = receiver.receive(&mut messages) {
            match received {
                Received::Messages(subject, count) => {
                    all.extend(messages[..count].iter().map(|&(m, v)| (subject, m.0, v)));
                }
                Received::Overtaken => all.clear(),
            }
        }
        all
    }

    #[test]
    fn what_is_told_is_heard_in_order_once_it_is_published() {
        let (mut sender, mut receiver) = ring();
        assert_eq!(all(&mut receiver), []);
        sender.tell(LOADS, Member(7), 9);
        assert_eq!(all(&mut receiver), []);
        sender.publish();
        assert_eq!(all(&mut receiver), [(LOADS, 7, 9)]);
        sender.publish();
        assert_eq!(all(&mut receiver), []);
        sender.tell(LOADS, Member(8), 1);
        sender.tell(COUNTS, Member(0x7FFF), u16::MAX);
        assert_eq!(all(&mut receiver), [(LOADS, 8, 1)], "another subject closes a line");
        sender.publish();
        assert_eq!(all(&mut receiver), [(COUNTS, 0x7FFF, u16::MAX)]);
    }

    #[test]
    fn a_full_line_needs_no_publishing_and_laps_follow_each_other() {
        let (mut sender, mut receiver) = ring();
        let mut told = Vec::new();
        for number in 0..(3 * LINES * MESSAGES) as u16 {
            sender.tell(LOADS, Member(number % 100), number);
            told.push((LOADS, number % 100, number));
            if number % 15 == 14 {
                assert_eq!(all(&mut receiver), told.split_off(0));
            }
        }
    }

    #[test]
    fn a_reader_that_is_overtaken_learns_so_and_goes_on_from_there() {
        let (mut sender, mut receiver) = ring();
        for number in 0..(5 * LINES * MESSAGES + 4) as u16 {
            sender.tell(COUNTS, Member(1), number);
        }
        sender.publish();
        let mut messages = [(Member(0), 0); MESSAGES];
        assert_eq!(receiver.receive(&mut messages), Some(Received::Overtaken));
        let last = (5 * LINES * MESSAGES) as u16;
        let heard: Vec<u16> = all(&mut receiver).iter().map(|one| one.2).collect();
        assert_eq!(heard, [last, last + 1, last + 2, last + 3]);
    }

    /// A writer that overtakes its reader now and then: what is heard between two losses is in order and complete.
    #[test]
    fn threads_hear_no_mixture() {
        let (mut sender, mut receiver) = ring();
        let rounds = if cfg!(miri) { 3_000 } else { 1_000_000_u32 };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..rounds {
                    // Both halves say the same.
                    sender.tell(LOADS, Member(number as u16 & 0x7FFF), number as u16 & 0x7FFF);
                    if number % 7 == 0 {
                        sender.publish();
                    }
                }
                sender.tell(COUNTS, Member(1), 1);
                sender.publish();
            });
            let (mut expected, mut messages) = (None, [(Member(0), 0); MESSAGES]);
            loop {
                match receiver.receive(&mut messages) {
                    None => std::hint::spin_loop(),
                    Some(Received::Overtaken) => expected = None,
                    Some(Received::Messages(COUNTS, _)) => break,
                    Some(Received::Messages(_, count)) => {
                        for &(member, value) in &messages[..count] {
                            assert_eq!(member.0, value);
                            assert!(expected.is_none_or(|expected| expected == value), "{value}");
                            expected = Some(value.wrapping_add(1) & 0x7FFF);
                        }
                    }
                }
            }
        });
    }
}
