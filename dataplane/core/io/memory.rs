//! Two ports joined in memory, and the counted pool of their frames: a wire for tests and small machines.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::{Buf, Burst, Pool, Port};

/// Pool of frames, all allocated on creation; a handle is cheap to clone and may go to any thread.
#[derive(Clone)]
pub struct FramePool {
    free: FreeFrames,
}

/// Free frames of a pool.
type FreeFrames = Arc<ArrayQueue<Box<Memory>>>;

/// Bytes of a frame, and its pool while it is in use.
pub(crate) struct Memory {
    bytes: Box<[u8]>,
    /// Number of bytes of the packet.
    len: usize,
    /// Free frames to which the frame returns; `None` while it is among them.
    home: Option<FreeFrames>,
}

impl FramePool {
    /// Creates `frames` frames of at most `frame_bytes` bytes each.
    ///
    /// # Panics
    /// If `frames` is 0.
    pub fn new(frames: usize, frame_bytes: usize) -> Self {
        let free = ArrayQueue::new(frames);
        for _ in 0..frames {
            let memory = Memory { bytes: vec![0; frame_bytes].into(), len: 0, home: None };
            let pushed = free.push(Box::new(memory));
            debug_assert!(pushed.is_ok());
        }
        Self { free: Arc::new(free) }
    }

    /// Returns the total number of frames.
    pub fn size(&self) -> usize {
        self.free.capacity()
    }

    /// Returns the number of free frames.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of frames in use; 0 when every buffer is back.
    pub fn in_use(&self) -> usize {
        self.size() - self.available()
    }

    /// Returns a frame with a copy of `bytes`, or `None` if the pool is empty or its frames are too small.
    pub fn frame(&self, bytes: &[u8]) -> Option<Frame> {
        let mut frame = self.take_frame()?;
        if !frame.resize(bytes.len()) {
            return None;
        }
        frame.bytes_mut().copy_from_slice(bytes);
        Some(frame)
    }

    /// Takes an empty frame; `None` if the pool is empty.
    fn take_frame(&self) -> Option<Frame> {
        let mut memory = self.free.pop()?;
        (memory.len, memory.home) = (0, Some(Arc::clone(&self.free)));
        Some(Frame(Some(memory)))
    }
}

impl Pool for FramePool {
    type Buf = Frame;

    #[inline]
    fn take(&mut self) -> Option<Frame> {
        self.take_frame()
    }
}

/// A packet in memory of a [`FramePool`], to which it returns on drop.
pub struct Frame(Option<Box<Memory>>);

impl Frame {
    /// Releases the memory from the frame's ownership: it does not return to its pool. For [`super::Token`].
    pub(crate) fn into_memory(mut self) -> Option<Box<Memory>> {
        self.0.take()
    }

    /// Restores the frame of this memory, after [`Frame::into_memory`].
    pub(crate) fn of_memory(memory: Option<Box<Memory>>) -> Self {
        Self(memory)
    }
}

impl Buf for Frame {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |memory| &memory.bytes[..memory.len])
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut().map_or(&mut [], |memory| &mut memory.bytes[..memory.len])
    }

    #[inline]
    fn resize(&mut self, len: usize) -> bool {
        let memory = self.0.as_mut().filter(|memory| len <= memory.bytes.len());
        memory.map(|memory| memory.len = len).is_some()
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let Some(mut memory) = self.0.take() else { return };
        if let Some(home) = memory.home.take() {
            // The queue has a slot for every frame of the pool, so there is always room.
            let pushed = home.push(memory);
            debug_assert!(pushed.is_ok());
        }
    }
}

/// One end of a wire; each end belongs to one thread at a time.
pub struct RingPort {
    incoming: Arc<ArrayQueue<Frame>>,
    outgoing: Arc<ArrayQueue<Frame>>,
    /// Frames for [`RingPort::send`].
    pool: FramePool,
}

/// Creates two ends of a wire that holds up to `depth` frames each way. A full wire rejects frames, like a
/// NIC's full queue.
///
/// `pool` serves [`RingPort::send`] of both ends; frames of other pools may pass as well.
///
/// # Panics
/// If `depth` is 0.
pub fn pair(depth: usize, pool: &FramePool) -> (RingPort, RingPort) {
    let (forward, backward) = (Arc::new(ArrayQueue::new(depth)), Arc::new(ArrayQueue::new(depth)));
    let left = RingPort {
        incoming: Arc::clone(&backward),
        outgoing: Arc::clone(&forward),
        pool: pool.clone(),
    };
    let right = RingPort { incoming: forward, outgoing: backward, pool: pool.clone() };
    (left, right)
}

impl RingPort {
    /// Sends a copy of `bytes`. Returns false if the pool is empty, its frames are too small, or the wire is
    /// full.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.pool.frame(bytes).is_some_and(|frame| self.outgoing.push(frame).is_ok())
    }

    /// Returns the next received frame, if any.
    pub fn receive(&mut self) -> Option<Frame> {
        self.incoming.pop()
    }
}

impl Port for RingPort {
    type Buf = Frame;

    #[inline]
    fn rx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        let before = burst.len();
        while !burst.is_full() {
            let Some(frame) = self.incoming.pop() else {
                break;
            };
            burst.push(frame);
        }
        burst.len() - before
    }

    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        // This end is the only producer, so a free slot stays free.
        let room = self.outgoing.capacity() - self.outgoing.len();
        let sent = room.min(burst.len());
        for frame in burst.drain(..sent) {
            let pushed = self.outgoing.push(frame);
            debug_assert!(pushed.is_ok());
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_in_order_and_come_back() {
        let pool = FramePool::new(8, 64);
        let (mut left, mut right) = pair(8, &pool);
        for byte in 0..5u8 {
            assert!(left.send(&[byte; 20]));
        }
        assert_eq!(pool.in_use(), 5);
        let mut burst = Burst::new();
        assert_eq!(right.rx_burst(&mut burst), 5);
        assert_eq!(right.rx_burst(&mut burst), 0);
        for (byte, frame) in (0..5u8).zip(&burst) {
            assert_eq!(frame.bytes(), [byte; 20]);
        }
        assert_eq!(right.tx_burst(&mut burst), 5);
        assert_eq!(left.receive().unwrap().bytes(), [0; 20]);
        drop((left, right));
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn full_wire_returns_the_rest() {
        let pool = FramePool::new(8, 64);
        let (mut left, mut right) = pair(3, &pool);
        let mut burst: Burst<Frame> = (0..5u8).map(|byte| pool.frame(&[byte]).unwrap()).collect();
        assert_eq!(left.tx_burst(&mut burst), 3);
        assert_eq!(burst.iter().map(|frame| frame.bytes()[0]).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(left.tx_burst(&mut burst), 0);
        assert_eq!(right.receive().unwrap().bytes(), [0]);
        assert_eq!(left.tx_burst(&mut burst), 1);
        assert_eq!(burst.len(), 1);
    }

    #[test]
    fn rx_stops_when_the_burst_is_full() {
        let pool = FramePool::new(64, 64);
        let (mut left, mut right) = pair(64, &pool);
        for _ in 0..40 {
            assert!(left.send(&[0]));
        }
        let mut burst = Burst::new();
        assert_eq!(right.rx_burst(&mut burst), crate::limits::BURST);
        burst.clear();
        assert_eq!(right.rx_burst(&mut burst), 40 - crate::limits::BURST);
    }

    #[test]
    fn exhausted_pool_serves_returned_frames() {
        let mut pool = FramePool::new(1, 4);
        let mut frame = pool.take().unwrap();
        assert!(pool.take().is_none());
        assert!(frame.resize(4));
        assert!(!frame.resize(5));
        assert_eq!(frame.bytes().len(), 4);
        drop(frame);
        assert!(pool.take().is_some());
        assert!(pool.frame(&[0; 5]).is_none());
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn two_threads_pass_every_frame_once() {
        const FRAMES: u32 = 20_000;
        let pool = FramePool::new(64, 8);
        let (mut left, mut right) = pair(32, &pool);
        let sender = std::thread::spawn(move || {
            for number in 0..FRAMES {
                while !left.send(&number.to_be_bytes()) {
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        let mut burst = Burst::new();
        while expected < FRAMES {
            if right.rx_burst(&mut burst) == 0 {
                std::thread::yield_now();
            }
            for frame in burst.drain(..) {
                assert_eq!(frame.bytes(), expected.to_be_bytes());
                expected += 1;
            }
        }
        sender.join().unwrap();
        drop(right);
        assert_eq!(pool.in_use(), 0);
    }
}
