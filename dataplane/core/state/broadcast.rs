//! Broadcast ring: cache lines in which one core of a node publishes member state to all other cores. Only
//! that core writes; each reader proceeds at its own pace. [`super::exchange`] holds a core's ends of all rings.
//!
//! A message is one word. A line has a header and carries up to 15 messages about one pool. Readers detect new
//! messages in the line itself, without a shared counter. The writer never waits. An overtaken reader detects
//! this and reads the last published value of each member ([`super::pool_exchange`]) instead. A *lap* is one pass of
//! the writer over all lines.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use super::member::Member;
use super::region::sealed::Sealed;
use super::region::{Pod, Slice};

/// Number of lines of a ring, a power of two.
pub const LINES: usize = 64;
/// Number of messages in a line.
const MESSAGES: usize = 15;
/// Size of a ring in bytes: a line for its head, and its lines.
pub const BYTES: usize = 64 * (LINES + 1);

/// A cache line: a `Header` and messages, each with a member (upper half) and a value (lower half).
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line {
    header: AtomicU32,
    messages: [AtomicU32; MESSAGES],
}

impl Sealed for Line {}
impl Pod for Line {}

/// Kind of value in a line's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Queue of the member as the writer estimates it, in sixteenths of a task.
    Loads = 0,
    /// Tasks that the writer sent to the member minus replies that it saw, modulo 2^16.
    Counts = 1,
}

/// Pool and topic of a line's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Index of the pool.
    pub pool: u16,
    /// Kind of value.
    pub topic: Topic,
}

/// Header of a line: lap of the ring (16 bits), pool (10), topic (1), closed flag (1), number of messages
/// (4). No more messages follow in a closed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    /// Value of [`lap`] for the line.
    lap: u16,
    subject: Subject,
    /// True if the writer has gone on to the next line.
    is_closed: bool,
    /// Number of messages.
    count: usize,
}

impl Header {
    /// Encodes the header.
    fn pack(self) -> u32 {
        u32::from(self.lap) << 16
            | u32::from(self.subject.pool) << 6
            | (self.subject.topic as u32) << 5
            | u32::from(self.is_closed) << 4
            | self.count as u32
    }

    /// Decodes the header.
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

/// Returns the lap of line number `line`. It is never 0, the value in unwritten memory.
fn lap(line: u64) -> u16 {
    (line / LINES as u64 % u64::from(u16::MAX)) as u16 + 1
}

/// Writing end of a ring.
#[derive(Debug)]
pub struct Sender {
    lines: Slice<Line>,
    /// Shared copy of `line`, at which overtaken readers continue. Set with the first message of the line.
    head: Slice<AtomicU64>,
    /// Number of the current line, over all laps.
    line: u64,
    /// Subject of the current line.
    subject: Subject,
    /// Number of messages in the line that readers see.
    visible: usize,
    /// Number of messages in the line, including unpublished ones.
    staged: usize,
    /// Messages of the current line: member (upper half) and value (lower half).
    messages: [u32; MESSAGES],
}

impl Sender {
    /// Creates the writer of an unused ring of [`BYTES`] bytes, aligned to a line.
    ///
    /// # Panics
    /// If the number of lines is not [`LINES`].
    #[must_use]
    pub fn new(lines: Slice<Line>, head: Slice<AtomicU64>) -> Self {
        assert_eq!(lines.len(), LINES);
        let subject = Subject { pool: 0, topic: Topic::Loads };
        Self { lines, head, line: 0, subject, visible: 0, staged: 0, messages: [0; MESSAGES] }
    }

    /// Adds a message. Readers see it after [`Sender::publish`], or when its line is full or another subject
    /// follows.
    #[inline]
    pub fn send(&mut self, subject: Subject, member: Member, value: u16) {
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

    /// Publishes the messages added so far.
    #[inline]
    pub fn publish(&mut self) {
        if self.staged > self.visible {
            self.write(false);
        }
    }

    /// Closes the line. The next message begins a new one.
    fn close(&mut self) {
        if self.staged > 0 {
            self.write(true);
            self.line += 1;
            (self.visible, self.staged) = (0, 0);
        }
    }

    /// Writes the staged messages and the header of the current line.
    fn write(&mut self, is_closed: bool) {
        let line = &self.lines[self.line as usize % LINES];
        let (lap, subject) = (lap(self.line), self.subject);
        let header = |count| Header { lap, subject, is_closed, count }.pack();
        if self.visible == 0 {
            // A reader of the previous lap must not mistake new messages for old ones. So the new lap becomes
            // visible before the first new message: the fence pairs with the one in `Receiver::take`.
            self.head[0].store(self.line, Relaxed);
            // An open line of the new lap without messages.
            line.header
                .store(Header { is_closed: false, ..Header::unpack(header(0)) }.pack(), Relaxed);
            fence(Release);
        }
        for index in self.visible..self.staged {
            line.messages[index].store(self.messages[index], Relaxed);
        }
        // `Release`: a reader of this header also reads its messages.
        line.header.store(header(self.staged), Release);
        self.visible = self.staged;
    }
}

/// Reading end of a ring.
#[derive(Debug)]
pub struct Receiver {
    lines: Slice<Line>,
    /// Number of the last line that the writer has begun.
    head: Slice<AtomicU64>,
    /// Number of the line to read next, over all laps.
    line: u64,
    /// Number of messages already read from it.
    read: usize,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadResult {
    /// New messages: their subject and their number.
    Messages(Subject, usize),
    /// The writer overtook the reader: messages are lost. The caller must look up the last published value of
    /// each member. Later messages are complete.
    Overtaken,
}

/// Buffer for the messages of one read.
pub type Messages = [(Member, u16); MESSAGES];

/// Empty buffer.
pub const NO_MESSAGES: Messages = [(Member(0), 0); MESSAGES];

impl Receiver {
    /// Creates the reader of a ring without messages so far.
    ///
    /// # Panics
    /// If the number of lines is not [`LINES`].
    #[must_use]
    pub fn new(lines: Slice<Line>, head: Slice<AtomicU64>) -> Self {
        assert_eq!(lines.len(), LINES);
        Self { lines, head, line: 0, read: 0 }
    }

    /// Reads the next messages into `messages`. Returns their subject and number, or that the writer overtook this
    /// reader. Returns `None` if there are no new messages.
    #[inline]
    pub fn receive(&mut self, messages: &mut Messages) -> Option<ReadResult> {
        let word = self.lines[self.line as usize % LINES].header.load(Acquire);
        let header = Header::unpack(word);
        // The frequent case: the line is current and open, and all its messages have been read.
        if header.lap == lap(self.line) && header.count == self.read && !header.is_closed {
            return None;
        }
        self.take(header, messages)
    }

    /// Reads the new messages of the current line, or of the next one if the current line is closed and has none.
    /// Checks after the read that the writer has not begun to overwrite the line.
    #[cold]
    fn take(&mut self, mut header: Header, messages: &mut Messages) -> Option<ReadResult> {
        loop {
            let expected = lap(self.line);
            let line = &self.lines[self.line as usize % LINES];
            if header.lap != expected {
                // The line is from the previous lap or unwritten, unless the writer is a lap ahead.
                let is_overtaken = self.head[0].load(Acquire) >= self.line + LINES as u64;
                return is_overtaken.then(|| self.catch_up());
            }
            let (first, count) = (self.read, header.count);
            for (message, word) in messages.iter_mut().zip(&line.messages[first..count]) {
                let word = word.load(Relaxed);
                *message = (Member((word >> 16) as u16), word as u16);
            }
            fence(Acquire);
            if Header::unpack(line.header.load(Relaxed)).lap != expected {
                return Some(self.catch_up());
            }
            self.read = count;
            if header.is_closed {
                (self.line, self.read) = (self.line + 1, 0);
            }
            if count > first {
                return Some(ReadResult::Messages(header.subject, count - first));
            }
            if !header.is_closed {
                return None;
            }
            header = Header::unpack(self.lines[self.line as usize % LINES].header.load(Acquire));
        }
    }

    /// Continues at the start of the writer's current line.
    fn catch_up(&mut self) -> ReadResult {
        (self.line, self.read) = (self.head[0].load(Acquire), 0);
        ReadResult::Overtaken
    }
}

#[cfg(test)]
mod tests {
    use super::super::region::Region;
    use super::*;

    const LOADS: Subject = Subject { pool: 3, topic: Topic::Loads };
    const COUNTS: Subject = Subject { pool: 3, topic: Topic::Counts };

    /// Creates both ends of an empty ring.
    fn ring() -> (Sender, Receiver) {
        let region = Region::heap(BYTES);
        let (lines, head) = (region.slice(64, LINES), region.slice(0, 1));
        (Sender::new(lines.clone(), head.clone()), Receiver::new(lines, head))
    }

    /// Reads all messages since the last loss: subject, member and value.
    fn all(receiver: &mut Receiver) -> Vec<(Subject, u16, u16)> {
        let mut messages = [(Member(0), 0); MESSAGES];
        let mut all = Vec::new();
        while let Some(received) = receiver.receive(&mut messages) {
            match received {
                ReadResult::Messages(subject, count) => {
                    all.extend(messages[..count].iter().map(|&(m, v)| (subject, m.0, v)));
                }
                ReadResult::Overtaken => all.clear(),
            }
        }
        all
    }

    #[test]
    fn published_messages_arrive_in_order() {
        let (mut sender, mut receiver) = ring();
        assert_eq!(all(&mut receiver), []);
        sender.send(LOADS, Member(7), 9);
        assert_eq!(all(&mut receiver), []);
        sender.publish();
        assert_eq!(all(&mut receiver), [(LOADS, 7, 9)]);
        sender.publish();
        assert_eq!(all(&mut receiver), []);
        sender.send(LOADS, Member(8), 1);
        sender.send(COUNTS, Member(0x7FFF), u16::MAX);
        assert_eq!(all(&mut receiver), [(LOADS, 8, 1)], "another subject closes a line");
        sender.publish();
        assert_eq!(all(&mut receiver), [(COUNTS, 0x7FFF, u16::MAX)]);
    }

    #[test]
    fn full_lines_publish_themselves_over_laps() {
        let (mut sender, mut receiver) = ring();
        let mut sent = Vec::new();
        for number in 0..(3 * LINES * MESSAGES) as u16 {
            sender.send(LOADS, Member(number % 100), number);
            sent.push((LOADS, number % 100, number));
            // Each 15th message fills a line.
            if number % 15 == 14 {
                assert_eq!(all(&mut receiver), sent.split_off(0));
            }
        }
    }

    #[test]
    fn overtaken_reader_resumes_at_the_newest() {
        let (mut sender, mut receiver) = ring();
        // Five laps of full lines, and four messages in the line after them.
        for number in 0..(5 * LINES * MESSAGES + 4) as u16 {
            sender.send(COUNTS, Member(1), number);
        }
        sender.publish();
        let mut messages = [(Member(0), 0); MESSAGES];
        assert_eq!(receiver.receive(&mut messages), Some(ReadResult::Overtaken));
        let last = (5 * LINES * MESSAGES) as u16;
        let values: Vec<u16> = all(&mut receiver).iter().map(|message| message.2).collect();
        assert_eq!(values, [last, last + 1, last + 2, last + 3]);
    }

    /// The writer sometimes overtakes its reader. Messages between two losses are in order and complete, and no message
    /// is a mixture of two.
    // promise: scheduling.2
    #[test]
    fn threads_hear_no_mixture() {
        let (mut sender, mut receiver) = ring();
        let rounds = if cfg!(miri) { 3_000 } else { 1_000_000_u32 };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..rounds {
                    // Member and value are equal, so a mixture of two messages shows.
                    sender.send(LOADS, Member(number as u16 & 0x7FFF), number as u16 & 0x7FFF);
                    if number % 7 == 0 {
                        sender.publish();
                    }
                }
                sender.send(COUNTS, Member(1), 1);
                sender.publish();
            });
            let (mut expected, mut messages) = (None, [(Member(0), 0); MESSAGES]);
            loop {
                match receiver.receive(&mut messages) {
                    None => std::hint::spin_loop(),
                    Some(ReadResult::Overtaken) => expected = None,
                    Some(ReadResult::Messages(COUNTS, _)) => break,
                    Some(ReadResult::Messages(_, count)) => {
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
