//! A core's part of a tap: while one is on, it copies what passes into buffers that another thread writes into a capture; and the
//! orders by which it begins that and ends it, or explains what becomes of packets ([`super::explain`]).
//!
//! The buffers are taken, and their pages written once, before the core gets them; they go back and forth over two queues with
//! one end each. What finds none is counted. While no tap is on, a burst costs one comparison.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crossbeam_queue::ArrayQueue;

use super::Commands;
use super::explain::{Explainer, Fate, Moment};
use crate::io::Buf;
use crate::limits::{BURST, SNAPLEN_MAX};

/// Bytes of a buffer: a burst of the longest copies.
const BUFFER: usize = 512 << 10;
/// Buffers of a core: 8 MiB, which is what passes in some milliseconds at most.
const BUFFERS: usize = 16;
/// Before each packet: its time in ticks, its length, and how many of its bytes follow.
const HEAD: usize = 16;

const _: () = assert!(BURST * (HEAD + SNAPLEN_MAX) <= BUFFER);

/// Copies on their way from one core to whoever writes them.
pub struct TapBuffers {
    filled: ArrayQueue<Vec<u8>>,
    empty: ArrayQueue<Vec<u8>>,
    lost: AtomicU64,
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
            let mut buffer = vec![1; BUFFER]; // so that its pages are there
            buffer.clear();
            let _ = empty.push(buffer);
        }
        Self { filled, empty, lost: AtomicU64::new(0), until: AtomicU64::new(0) }
    }
}

impl TapBuffers {
    /// The next buffer with copies, oldest first.
    pub fn next_filled(&self) -> Option<Vec<u8>> {
        self.filled.pop()
    }

    /// Gives a buffer back, of whose copies nothing is needed any more.
    pub fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let _ = self.empty.push(buffer); // there is room for all there are
    }

    /// Packets that there was no room for.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// What passed before this time, in ticks, has been handed over.
    #[must_use]
    pub fn until(&self) -> u64 {
        self.until.load(Acquire)
    }
}

/// A packet that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied<'a> {
    /// When the poll began in which it passed, in ticks of the core's clock.
    pub ticks: u64,
    /// Its length, in bytes.
    pub len: u32,
    /// Its first bytes.
    pub bytes: &'a [u8],
}

/// The copies in a buffer, in the order in which the packets passed.
pub fn copies(buffer: &[u8]) -> impl Iterator<Item = Copied<'_>> {
    let mut rest = buffer;
    std::iter::from_fn(move || {
        let (copied, after) = split(rest)?;
        rest = after;
        Some(copied)
    })
}

fn split(buffer: &[u8]) -> Option<(Copied<'_>, &[u8])> {
    let (ticks, rest) = buffer.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (kept, rest) = rest.split_first_chunk()?;
    let (bytes, rest) = rest.split_at_checked(u32::from_ne_bytes(*kept) as usize)?;
    let (ticks, len) = (u64::from_ne_bytes(*ticks), u32::from_ne_bytes(*len));
    Some((Copied { ticks, len, bytes }, rest))
}

/// What a core copies, and where to. What it has not handed over when it is dropped, it does then.
#[derive(Debug)]
pub struct TapRecorder {
    /// A bit for each port.
    ports: u32,
    snaplen: usize,
    buffers: Arc<TapBuffers>,
    /// The buffer being filled; one without memory while there is none.
    current: Vec<u8>,
    now: u64,
}

impl TapRecorder {
    /// Copies the first `snaplen` bytes, [`SNAPLEN_MAX`] at most, of each packet that the ports with these indices receive or
    /// send.
    #[must_use]
    pub fn new(ports: &[usize], snaplen: usize, buffers: Arc<TapBuffers>) -> Self {
        let ports = ports.iter().fold(0, |all, &port| all | 1 << port);
        let snaplen = snaplen.min(SNAPLEN_MAX);
        Self { ports, snaplen, buffers, current: Vec::new(), now: 0 }
    }

    /// Copies these packets; gives where their copies begin, or nothing when there is no room for all of them.
    fn copy<B: Buf>(&mut self, packets: &[B]) -> Option<usize> {
        let kept = |packet: &B| packet.bytes().len().min(self.snaplen);
        let needed: usize = packets.iter().map(|packet| HEAD + kept(packet)).sum();
        if self.current.capacity() - self.current.len() < needed {
            self.hand_over();
            if self.current.capacity() == 0 {
                self.current = self.buffers.empty.pop()?;
            }
        }
        let start = self.current.len();
        for packet in packets {
            let bytes = packet.bytes();
            let kept = bytes.len().min(self.snaplen);
            self.current.extend_from_slice(&self.now.to_ne_bytes());
            self.current.extend_from_slice(&(bytes.len() as u32).to_ne_bytes());
            self.current.extend_from_slice(&(kept as u32).to_ne_bytes());
            self.current.extend_from_slice(&bytes[..kept]);
        }
        Some(start)
    }

    /// Keeps the first `count` of the packets whose copies begin there.
    fn keep(&mut self, start: Option<usize>, count: usize) {
        let Some(start) = start else { return self.lose(count) };
        let kept: usize =
            copies(&self.current[start..]).take(count).map(|one| HEAD + one.bytes.len()).sum();
        self.current.truncate(start + kept);
    }

    fn lose(&self, count: usize) {
        let lost = self.buffers.lost() + count as u64; // which nobody else counts
        self.buffers.lost.store(lost, Relaxed);
    }

    /// Hands over what was copied, if anything was.
    fn hand_over(&mut self) {
        if !self.current.is_empty() {
            // There is room for all there are.
            let _ = self.buffers.filled.push(std::mem::take(&mut self.current));
        }
    }

    /// Hands over what was copied before `now`, once what was handed over before has been taken.
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

/// What a core is to record from now on; it comes back with what it recorded with before.
#[derive(Debug)]
pub struct TapOrder {
    /// Its number, which the core acknowledges.
    pub number: u64,
    /// What it is to do so with.
    pub what: TapChange,
}

/// What a core is to do otherwise from now on.
#[derive(Debug)]
pub enum TapChange {
    /// Copies what passes with this; none ends a tap.
    Record(Option<TapRecorder>),
    /// Tells by this what becomes of packets; none ends that.
    Explain(Option<Box<Explainer>>),
}

impl TapOrder {
    /// Copies what passes from now on, or no longer.
    #[must_use]
    pub fn record(number: u64, recorder: Option<TapRecorder>) -> Self {
        Self { number, what: TapChange::Record(recorder) }
    }

    /// Tells what becomes of packets from now on, or no longer.
    #[must_use]
    pub fn explain(number: u64, explainer: Option<Box<Explainer>>) -> Self {
        Self { number, what: TapChange::Explain(explainer) }
    }
}

/// A core's orders.
pub type TapCommands = Commands<TapOrder>;

/// The tap of one core, off unless it is ordered.
#[derive(Debug, Default)]
pub struct TapCore {
    /// A bit for each port that is copied; none while no tap is on.
    ports: u32,
    /// What leaves by these ports is looked at: the same, or all while packets are explained.
    watched: u32,
    explains: bool,
    recorder: Option<TapRecorder>,
    explainer: Option<Box<Explainer>>,
    commands: Option<TapCommands>,
}

impl TapCore {
    /// One that takes orders.
    #[must_use]
    pub fn new(commands: TapCommands) -> Self {
        Self { commands: Some(commands), ..Self::default() }
    }

    /// A tap is on, at whatever port.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.ports != 0
    }

    /// A tap is on at this port.
    #[inline]
    pub fn covers(&self, port: usize) -> bool {
        self.ports >> port & 1 != 0
    }

    /// What leaves by this port is copied or explained.
    #[inline]
    pub fn watches(&self, port: usize) -> bool {
        self.watched >> port & 1 != 0
    }

    /// What becomes of packets is written down.
    #[inline]
    pub fn explains(&self) -> bool {
        self.explains
    }

    /// What writes it down while that is so.
    #[cold]
    pub fn explainer(&mut self) -> Option<&mut Explainer> {
        self.explainer.as_deref_mut()
    }

    /// Tells of a packet that has waited, unless whoever decided on it did.
    #[cold]
    pub fn explain_released(&mut self, now: u64, frame: &[u8], fate: Fate) {
        let Some(explainer) = &mut self.explainer else { return };
        if !explainer.take_told() {
            explainer.draft(None, now, frame, |_| None);
            explainer.settle(Moment::Waited, fate, |_| ());
        }
    }

    /// A port has received these packets, of a poll that began at `now` ticks.
    #[cold]
    pub fn received<B: Buf>(&mut self, port: usize, now: u64, packets: &[B]) {
        let covers = self.covers(port);
        let Some(recorder) = &mut self.recorder else { return };
        recorder.now = now;
        if covers && !packets.is_empty() && recorder.copy(packets).is_none() {
            recorder.lose(packets.len());
        }
    }

    /// Copies what a port is about to send, of which [`TapCore::keep`] is to be told how much it took; gives where the copies
    /// begin, or nothing when there is no room.
    pub fn copy<B: Buf>(&mut self, packets: &[B]) -> Option<usize> {
        self.recorder.as_mut()?.copy(packets)
    }

    /// The first `count` of the packets whose copies begin there were sent; forgets the others.
    pub fn keep(&mut self, start: Option<usize>, count: usize) {
        self.recorder.iter_mut().for_each(|recorder| recorder.keep(start, count));
    }

    /// Takes orders, and hands over what was recorded before `now` ticks; due at each tick of the node.
    #[inline]
    pub fn tick(&mut self, now: u64) {
        while let Some(mut order) = self.commands.as_ref().and_then(Commands::next) {
            self.take(&mut order, now);
            if let Some(commands) = &self.commands {
                commands.acknowledge(order.number, order);
            }
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.tick(now);
        }
        if self.explains && self.explainer.as_ref().is_none_or(|one| one.has_ended()) {
            self.review();
        }
    }

    #[cold]
    fn take(&mut self, order: &mut TapOrder, now: u64) {
        match &mut order.what {
            TapChange::Record(recorder) => {
                self.recorder.iter_mut().for_each(TapRecorder::hand_over);
                std::mem::swap(&mut self.recorder, recorder);
                self.recorder.iter_mut().for_each(|recorder| recorder.now = now);
            }
            TapChange::Explain(explainer) => std::mem::swap(&mut self.explainer, explainer),
        }
        self.review();
    }

    /// What it does, by what it was ordered.
    fn review(&mut self) {
        self.ports = self.recorder.as_ref().map_or(0, |recorder| recorder.ports);
        self.explains = self.explainer.as_ref().is_some_and(|one| !one.has_ended());
        self.watched = if self.explains { u32::MAX } else { self.ports };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::memory::{Frame, FramePool, RingPort, pair};
    use crate::io::{Burst, Port};

    struct Rig {
        tap: TapCore,
        commands: TapCommands,
        buffers: Arc<TapBuffers>,
        pool: FramePool,
        near: RingPort,
        far: RingPort,
    }

    impl Rig {
        /// Both ports of a core are recorded, but the first 20 bytes of each packet alone.
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

        fn order(&mut self, number: u64, recorder: Option<TapRecorder>) {
            self.commands.push(TapOrder::record(number, recorder)).unwrap();
            self.tap.tick(1);
            assert_eq!(self.commands.epoch(), number);
        }

        fn burst(&self, lengths: &[usize]) -> Burst<Frame> {
            lengths.iter().map(|&len| self.pool.frame(&vec![len as u8; len]).unwrap()).collect()
        }

        /// Time, length and bytes kept of all copies handed over.
        fn handed_over(&self) -> Vec<(u64, u32, usize)> {
            let mut all = Vec::new();
            while let Some(buffer) = self.buffers.next_filled() {
                let kept = |one: Copied<'_>| (one.ticks, one.len, one.bytes.len());
                all.extend(copies(&buffer).map(kept));
                self.buffers.give_back(buffer);
            }
            all
        }
    }

    #[test]
    fn what_came_and_what_was_sent_is_copied_but_nothing_that_stayed() {
        let mut rig = Rig::new(2);
        let came = rig.burst(&[60, 14]);
        rig.tap.received(0, 5, &came);
        let mut goes = rig.burst(&[70, 15, 80, 90]);
        let start = rig.tap.copy(&goes);
        let sent = rig.near.tx_burst(&mut goes);
        rig.tap.keep(start, sent);
        assert_eq!(sent, 2, "the port has room for two");
        assert!(rig.handed_over().is_empty(), "between ticks");
        rig.tap.tick(6);
        assert_eq!(rig.handed_over(), [(5, 60, 20), (5, 14, 14), (5, 70, 20), (5, 15, 15)]);
        assert_eq!((rig.buffers.until(), rig.buffers.lost()), (6, 0));
        assert_eq!(rig.far.receive().unwrap().bytes()[0], 70);
    }

    #[test]
    fn only_the_ports_that_were_ordered_are_recorded_and_none_after_the_end() {
        let mut rig = Rig::new(4);
        let recorder = TapRecorder::new(&[1], 5, Arc::clone(&rig.buffers));
        rig.order(3, Some(recorder));
        assert!(rig.tap.covers(1) && !rig.tap.covers(0));
        let came = rig.burst(&[60]);
        rig.tap.received(0, 5, &came);
        rig.tap.received(1, 5, &came);
        rig.order(4, None);
        assert!(!rig.tap.is_on());
        rig.tap.received(1, 6, &came);
        assert_eq!(rig.handed_over(), [(5, 60, 5)], "what was copied is handed over at the end");
        let done = std::iter::from_fn(|| rig.commands.next_done());
        assert_eq!(
            done.map(|order| matches!(order.what, TapChange::Record(Some(_)))).collect::<Vec<_>>(),
            [false, true, true]
        );
    }

    #[test]
    fn what_finds_no_room_is_counted_and_what_did_is_whole() {
        let mut rig = Rig::new(4);
        let recorder = TapRecorder::new(&[0], SNAPLEN_MAX, Arc::clone(&rig.buffers));
        rig.order(3, Some(recorder));
        let came = rig.burst(&[2000; 32]);
        // The first goes at once, with one burst; the others when they are full.
        let (fits, all) = (1 + BUFFER / (32 * (2000 + HEAD)) * (BUFFERS - 1), 1000);
        for now in 0..all {
            rig.tap.received(0, now, &came);
            rig.tap.tick(now); // nobody takes what is handed over
        }
        assert_eq!(rig.buffers.lost(), 32 * (all - fits as u64));
        assert!(rig.buffers.until() < all, "what is not handed over yet is not told to be");
        rig.order(4, None);
        let kept = rig.handed_over();
        assert_eq!(kept.len(), 32 * fits);
        assert!(kept.iter().all(|&(_, len, kept)| (len, kept) == (2000, 2000)));
        let recorder = TapRecorder::new(&[0], 64, Arc::clone(&rig.buffers));
        rig.order(5, Some(recorder));
        rig.tap.received(0, all, &came);
        rig.tap.tick(all);
        assert_eq!(rig.handed_over().len(), 32, "there is room again");
    }
}
