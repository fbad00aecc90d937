//! One core's part of a tap: a capture of packets at a running node. While a tap is on, the core copies packets
//! into buffers that another thread writes into a capture file. This file also defines the orders that start and
//! end a tap or the explanation of packets ([`super::explain`]).
//!
//! Buffers are allocated, and their pages touched, before the core gets them. They circulate over two
//! single-producer, single-consumer queues. Packets without a buffer are counted. Without a tap, a burst
//! costs one comparison.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crossbeam_queue::ArrayQueue;

use super::Commands;
use super::explain::{Explainer, Fate, Moment};
use crate::io::Buf;
use crate::limits::{BURST, SNAPLEN_MAX};

/// Size of a buffer: a burst of the longest copies.
const BUFFER: usize = 512 << 10;
/// Buffers per core: 8 MiB, about 7 ms of whole packets at 10 Gbit/s.
const BUFFERS: usize = 16;
/// Bytes before each copy: time in ticks (8), packet length (4), and copied length (4).
const HEAD: usize = 16;

const _: () = assert!(BURST * (HEAD + SNAPLEN_MAX) <= BUFFER);

/// Queues of buffers between one core and the writer of the capture.
pub struct TapBuffers {
    /// Buffers for the writer, oldest first.
    filled: ArrayQueue<Vec<u8>>,
    /// Buffers for the core.
    empty: ArrayQueue<Vec<u8>>,
    /// Number of packets without a buffer.
    lost: AtomicU64,
    /// Time in ticks up to which all packets have been handed over.
    until: AtomicU64,
}

impl fmt::Debug for TapBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TapBuffers").field("filled", &self.filled.len()).finish_non_exhaustive()
    }
}

impl Default for TapBuffers {
    fn default() -> Self {
        let (filled, empty) = (ArrayQueue::new(BUFFERS), ArrayQueue::new(BUFFERS));
        for _ in 0..BUFFERS {
            let mut buffer = vec![1; BUFFER]; // writes to all pages, so that the core causes no page faults
            buffer.clear();
            let _ = empty.push(buffer);
        }
        Self { filled, empty, lost: AtomicU64::new(0), until: AtomicU64::new(0) }
    }
}

impl TapBuffers {
    /// Returns the next filled buffer, oldest first.
    pub fn next_filled(&self) -> Option<Vec<u8>> {
        self.filled.pop()
    }

    /// Takes a buffer back after use, for the core.
    pub fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let _ = self.empty.push(buffer); // there is room for all buffers
    }

    /// Returns the number of packets without a buffer.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// Returns the time in ticks up to which all packets have been handed over. The writer sorts the packets of all
    /// cores by time, and so waits for the slowest core.
    #[must_use]
    pub fn until(&self) -> u64 {
        // Acquire: a reader that sees the time also finds all earlier packets in the queue.
        self.until.load(Acquire)
    }
}

/// A copied packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapPacket<'a> {
    /// Start of the poll in which it passed, in ticks of the core's clock.
    pub ticks: u64,
    /// Length in bytes.
    pub len: u32,
    /// First bytes.
    pub bytes: &'a [u8],
}

/// Iterates over the copies in a buffer, in order.
pub fn copies(buffer: &[u8]) -> impl Iterator<Item = TapPacket<'_>> {
    let mut remaining = buffer;
    std::iter::from_fn(move || {
        let (packet, rest) = split(remaining)?;
        remaining = rest;
        Some(packet)
    })
}

/// Splits the first copy off a buffer.
fn split(buffer: &[u8]) -> Option<(TapPacket<'_>, &[u8])> {
    let (ticks, rest) = buffer.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (copied_len, rest) = rest.split_first_chunk()?;
    let (bytes, rest) = rest.split_at_checked(u32::from_ne_bytes(*copied_len) as usize)?;
    let (ticks, len) = (u64::from_ne_bytes(*ticks), u32::from_ne_bytes(*len));
    Some((TapPacket { ticks, len, bytes }, rest))
}

/// Recorder of a core: copies packets into buffers for the writer of the capture. Hands over its current buffer on
/// drop.
#[derive(Debug)]
pub struct TapRecorder {
    /// Recorded ports, one bit each.
    ports: u32,
    /// Maximum number of bytes copied of each packet.
    snaplen: usize,
    /// Queues of empty and filled buffers.
    buffers: Arc<TapBuffers>,
    /// Buffer being filled; without memory if there is none.
    current: Vec<u8>,
    /// Start of the poll in ticks.
    now: u64,
}

impl TapRecorder {
    /// Records the first `snaplen` bytes, at most [`SNAPLEN_MAX`], of each packet that these ports receive or
    /// send.
    #[must_use]
    pub fn new(ports: &[usize], snaplen: usize, buffers: Arc<TapBuffers>) -> Self {
        let ports = ports.iter().fold(0, |bits, &port| bits | 1 << port);
        let snaplen = snaplen.min(SNAPLEN_MAX);
        Self { ports, snaplen, buffers, current: Vec::new(), now: 0 }
    }

    /// Copies packets into one buffer: the current one, or an empty one if they do not fit. Returns the offset of the
    /// first copy, or `None` without an empty buffer.
    fn copy<B: Buf>(&mut self, packets: &[B]) -> Option<usize> {
        let copied_len = |packet: &B| packet.bytes().len().min(self.snaplen);
        let needed: usize = packets.iter().map(|packet| HEAD + copied_len(packet)).sum();
        if self.current.capacity() - self.current.len() < needed {
            self.hand_over(); // leaves a buffer without memory
            if self.current.capacity() == 0 {
                self.current = self.buffers.empty.pop()?;
            }
        }
        let start = self.current.len();
        for packet in packets {
            let bytes = packet.bytes();
            let copied_len = bytes.len().min(self.snaplen);
            self.current.extend_from_slice(&self.now.to_ne_bytes());
            self.current.extend_from_slice(&(bytes.len() as u32).to_ne_bytes());
            self.current.extend_from_slice(&(copied_len as u32).to_ne_bytes());
            self.current.extend_from_slice(&bytes[..copied_len]);
        }
        Some(start)
    }

    /// Keeps the first `count` copies from `start` on, and discards the rest. Without copies (`None`), counts the
    /// packets as lost.
    fn keep(&mut self, start: Option<usize>, count: usize) {
        let Some(start) = start else { return self.lose(count) };
        let first_copies = copies(&self.current[start..]).take(count);
        let kept_len: usize = first_copies.map(|packet| HEAD + packet.bytes.len()).sum();
        self.current.truncate(start + kept_len);
    }

    /// Counts packets that found no buffer.
    fn lose(&self, count: usize) {
        let lost = self.buffers.lost() + count as u64; // single writer
        self.buffers.lost.store(lost, Relaxed);
    }

    /// Hands over the current buffer unless it is empty.
    fn hand_over(&mut self) {
        if !self.current.is_empty() {
            // There is room for all buffers.
            let _ = self.buffers.filled.push(std::mem::take(&mut self.current));
        }
    }

    /// Hands over the current buffer, with all copies made before `now`, if the reader has taken the previous one. If
    /// no copy stays behind, publishes `now`: the reader has all earlier packets.
    fn tick(&mut self, now: u64) {
        if self.buffers.filled.is_empty() {
            self.hand_over();
        }
        if self.current.is_empty() {
            self.buffers.until.store(now, Release);
        }
    }
}

impl Drop for TapRecorder {
    fn drop(&mut self) {
        self.hand_over();
    }
}

/// Order to a core. It returns to its sender with the replaced recorder or explainer, because a core frees no memory.
#[derive(Debug)]
pub struct TapOrder {
    /// Number that the core acknowledges.
    pub number: u64,
    /// The change.
    pub change: TapChange,
}

/// Change of a core's recording.
#[derive(Debug)]
pub enum TapChange {
    /// Replaces the recorder; `None` ends the tap.
    Record(Option<TapRecorder>),
    /// Replaces the explainer; `None` ends the explanation.
    Explain(Option<Box<Explainer>>),
}

impl TapOrder {
    /// Orders a change of the recorder.
    #[must_use]
    pub fn record(number: u64, recorder: Option<TapRecorder>) -> Self {
        Self { number, change: TapChange::Record(recorder) }
    }

    /// Orders a change of the explainer.
    #[must_use]
    pub fn explain(number: u64, explainer: Option<Box<Explainer>>) -> Self {
        Self { number, change: TapChange::Explain(explainer) }
    }
}

/// Orders to a core.
pub type TapCommands = Commands<TapOrder>;

/// Tap of one core; off by default.
#[derive(Debug, Default)]
pub struct TapCore {
    /// Recorded ports, one bit each; 0 without a tap.
    ports: u32,
    /// Ports whose output is recorded or explained.
    watched: u32,
    /// True if packets are explained.
    explains: bool,
    /// Copies packets, while a tap is on.
    recorder: Option<TapRecorder>,
    /// Records packets with their outcomes, while `wedjat explain` runs.
    explainer: Option<Box<Explainer>>,
    /// Orders of other threads; `None` for a core without taps.
    commands: Option<TapCommands>,
}

impl TapCore {
    /// Creates a tap that executes these commands.
    #[must_use]
    pub fn new(commands: TapCommands) -> Self {
        Self { commands: Some(commands), ..Self::default() }
    }

    /// Returns true if a tap is on at any port.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.ports != 0
    }

    /// Returns true if a tap is on at this port.
    #[inline]
    pub fn covers(&self, port: usize) -> bool {
        self.ports >> port & 1 != 0
    }

    /// Returns true if the output of this port is recorded or explained.
    #[inline]
    pub fn watches(&self, port: usize) -> bool {
        self.watched >> port & 1 != 0
    }

    /// Returns true if packets are explained.
    #[inline]
    pub fn explains(&self) -> bool {
        self.explains
    }

    /// Returns the explainer, if any.
    #[cold]
    pub fn explainer(&mut self) -> Option<&mut Explainer> {
        self.explainer.as_deref_mut()
    }

    /// Records the outcome of a packet that has waited, unless the decision on it has already recorded it.
    #[cold]
    pub fn explain_released(&mut self, now: u64, frame: &[u8], fate: Fate) {
        let Some(explainer) = &mut self.explainer else { return };
        if !explainer.take_explained() {
            explainer.draft(None, now, frame, |_, _| None);
            explainer.settle(Moment::Waited, fate, |_| ());
        }
    }

    /// Records packets received by a port, in a poll that began at `now` ticks. Copies of packets sent in this poll get
    /// the same time.
    #[cold]
    pub fn received<B: Buf>(&mut self, port: usize, now: u64, packets: &[B]) {
        let covers = self.covers(port);
        let Some(recorder) = &mut self.recorder else { return };
        recorder.now = now;
        if covers && !packets.is_empty() && recorder.copy(packets).is_none() {
            recorder.lose(packets.len());
        }
    }

    /// Copies packets before a port sends them, because the port takes the sent ones. [`TapCore::keep`] then discards
    /// the copies of rejected packets. Returns the start of the copies, or `None` without room.
    pub fn copy<B: Buf>(&mut self, packets: &[B]) -> Option<usize> {
        self.recorder.as_mut()?.copy(packets)
    }

    /// Keeps the first `count` copies from `start` on, and discards the rest. Without copies (`None`), counts the
    /// packets as lost.
    pub fn keep(&mut self, start: Option<usize>, count: usize) {
        self.recorder.iter_mut().for_each(|recorder| recorder.keep(start, count));
    }

    /// Executes orders, and hands over copies made before `now` ticks; due at each tick of the node.
    #[inline]
    pub fn tick(&mut self, now: u64) {
        while let Some(mut order) = self.commands.as_ref().and_then(Commands::next) {
            self.execute(&mut order, now);
            if let Some(commands) = &self.commands {
                commands.acknowledge(order.number, order);
            }
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.tick(now);
        }
        if self.explains && self.explainer.as_ref().is_none_or(|explainer| explainer.has_ended()) {
            self.review();
        }
    }

    /// Executes an order.
    #[cold]
    fn execute(&mut self, order: &mut TapOrder, now: u64) {
        match &mut order.change {
            TapChange::Record(recorder) => {
                self.recorder.iter_mut().for_each(TapRecorder::hand_over);
                std::mem::swap(&mut self.recorder, recorder);
                self.recorder.iter_mut().for_each(|recorder| recorder.now = now);
            }
            TapChange::Explain(explainer) => std::mem::swap(&mut self.explainer, explainer),
        }
        self.review();
    }

    /// Recomputes the port masks after an order, or after the explainer has ended.
    fn review(&mut self) {
        self.ports = self.recorder.as_ref().map_or(0, |recorder| recorder.ports);
        self.explains = self.explainer.as_ref().is_some_and(|explainer| !explainer.has_ended());
        self.watched = if self.explains { u32::MAX } else { self.ports };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::memory::{Frame, FramePool, RingPort, pair};
    use crate::io::{Burst, Port};

    /// Tap of one core, between two connected ports.
    struct Rig {
        tap: TapCore,
        commands: TapCommands,
        buffers: Arc<TapBuffers>,
        pool: FramePool,
        near: RingPort,
        far: RingPort,
    }

    impl Rig {
        /// Connects ports with queues of `depth` packets. The tap records the first 20 bytes of each packet at both.
        fn new(depth: usize) -> Self {
            let pool = FramePool::new(64, 2048);
            let (near, far) = pair(depth, &pool);
            let (commands, buffers) = (TapCommands::default(), Arc::<TapBuffers>::default());
            let mut rig =
                Self { tap: TapCore::new(commands.clone()), commands, buffers, pool, near, far };
            let recorder = TapRecorder::new(&[0, 1], 20, Arc::clone(&rig.buffers));
            rig.order(2, Some(recorder));
            rig
        }

        /// Orders a recorder, and checks that the tap has executed the order.
        fn order(&mut self, number: u64, recorder: Option<TapRecorder>) {
            self.commands.push(TapOrder::record(number, recorder)).unwrap();
            self.tap.tick(1);
            assert_eq!(self.commands.epoch(), number);
        }

        /// Returns a burst of packets with these lengths. Each byte of a packet is its length.
        fn burst(&self, lengths: &[usize]) -> Burst<Frame> {
            lengths.iter().map(|&len| self.pool.frame(&vec![len as u8; len]).unwrap()).collect()
        }

        /// Returns time, length and stored bytes of all copies handed over.
        fn handed_over(&self) -> Vec<(u64, u32, usize)> {
            let mut all = Vec::new();
            while let Some(buffer) = self.buffers.next_filled() {
                let summary =
                    |packet: TapPacket<'_>| (packet.ticks, packet.len, packet.bytes.len());
                all.extend(copies(&buffer).map(summary));
                self.buffers.give_back(buffer);
            }
            all
        }
    }

    // promise: control.3
    #[test]
    fn tap_copies_received_and_sent_packets() {
        let mut rig = Rig::new(2);
        let incoming = rig.burst(&[60, 14]);
        rig.tap.received(0, 5, &incoming);
        let mut outgoing = rig.burst(&[70, 15, 80, 90]);
        let start = rig.tap.copy(&outgoing);
        let sent = rig.near.tx_burst(&mut outgoing);
        rig.tap.keep(start, sent);
        assert_eq!(sent, 2, "the port has room for two");
        assert!(rig.handed_over().is_empty(), "between ticks");
        rig.tap.tick(6);
        assert_eq!(rig.handed_over(), [(5, 60, 20), (5, 14, 14), (5, 70, 20), (5, 15, 15)]);
        assert_eq!((rig.buffers.until(), rig.buffers.lost()), (6, 0));
        assert_eq!(rig.far.receive().unwrap().bytes()[0], 70);
    }

    // promise: control.3
    #[test]
    fn tap_records_ordered_ports_until_its_end() {
        let mut rig = Rig::new(4);
        let recorder = TapRecorder::new(&[1], 5, Arc::clone(&rig.buffers));
        rig.order(3, Some(recorder));
        assert!(rig.tap.covers(1) && !rig.tap.covers(0));
        let incoming = rig.burst(&[60]);
        rig.tap.received(0, 5, &incoming);
        rig.tap.received(1, 5, &incoming);
        rig.order(4, None);
        assert!(!rig.tap.is_on());
        rig.tap.received(1, 6, &incoming);
        assert_eq!(rig.handed_over(), [(5, 60, 5)], "what was copied is handed over at the end");
        // Each order returns with the recorder that it replaced, and the first one replaced none.
        let executed = std::iter::from_fn(|| rig.commands.next_done());
        assert_eq!(
            executed
                .map(|order| matches!(order.change, TapChange::Record(Some(_))))
                .collect::<Vec<_>>(),
            [false, true, true]
        );
    }

    // promise: control.3
    #[test]
    fn dropped_tap_packets_are_counted() {
        let mut rig = Rig::new(4);
        let recorder = TapRecorder::new(&[0], SNAPLEN_MAX, Arc::clone(&rig.buffers));
        rig.order(3, Some(recorder));
        let incoming = rig.burst(&[2000; 32]);
        // The first buffer is handed over with one burst, because the reader has none. Later ones are handed over when
        // they are full. A burst has 32 packets of 2000 bytes.
        let (fits, all) = (1 + BUFFER / (32 * (2000 + HEAD)) * (BUFFERS - 1), 1000);
        for now in 0..all {
            rig.tap.received(0, now, &incoming);
            rig.tap.tick(now); // no buffer is read
        }
        assert_eq!(rig.buffers.lost(), 32 * (all - fits as u64));
        assert!(rig.buffers.until() < all, "the last copies are not handed over yet");
        rig.order(4, None);
        let copies = rig.handed_over();
        assert_eq!(copies.len(), 32 * fits);
        assert!(copies.iter().all(|&(_, len, copied_len)| (len, copied_len) == (2000, 2000)));
        let recorder = TapRecorder::new(&[0], 64, Arc::clone(&rig.buffers));
        rig.order(5, Some(recorder));
        rig.tap.received(0, all, &incoming);
        rig.tap.tick(all);
        assert_eq!(rig.handed_over().len(), 32, "there is room again");
    }
}
