//! Wire within one core: packets sent by one role are received by another role of the same thread. It joins a leaf and
//! an agent on one core.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::{Buf, Burst, Port};

/// Packets on their way in one direction.
type Queue<B> = Rc<RefCell<VecDeque<B>>>;

/// One end of a wire. Both ends belong to the thread that created them.
#[derive(Debug)]
pub struct End<B> {
    incoming: Queue<B>,
    outgoing: Queue<B>,
    /// Maximum number of packets in each direction.
    depth: usize,
}

/// Creates two ends of a wire that holds up to `depth` packets each way. Allocates all memory now.
#[must_use]
pub fn pair<B>(depth: usize) -> (End<B>, End<B>) {
    let queue = || Rc::new(RefCell::new(VecDeque::with_capacity(depth)));
    let (forward, backward) = (queue(), queue());
    let left = End { incoming: Rc::clone(&backward), outgoing: Rc::clone(&forward), depth };
    (left, End { incoming: forward, outgoing: backward, depth })
}

impl<B> End<B> {
    /// Returns true if packets sent by this end wait for the peer end. A closing core then polls the peer end's role.
    #[must_use]
    pub fn has_unreceived(&self) -> bool {
        !self.outgoing.borrow().is_empty()
    }
}

impl<B: Buf> Port for End<B> {
    type Buf = B;

    #[inline]
    fn rx_burst(&mut self, burst: &mut Burst<B>) -> usize {
        let mut incoming = self.incoming.borrow_mut();
        let count = incoming.len().min(burst.remaining_capacity());
        burst.extend(incoming.drain(..count));
        count
    }

    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst<B>) -> usize {
        let mut outgoing = self.outgoing.borrow_mut();
        let count = burst.len().min(self.depth - outgoing.len());
        outgoing.extend(burst.drain(..count));
        count
    }
}

/// A device's port, or the end of a wire.
#[derive(Debug)]
pub enum DeviceOrWire<P: Port> {
    /// Leads out of this core.
    Device(P),
    /// Stays within this core.
    Link(End<P::Buf>),
}

impl<P: Port> Port for DeviceOrWire<P> {
    type Buf = P::Buf;

    #[inline]
    fn rx_burst(&mut self, burst: &mut Burst<P::Buf>) -> usize {
        match self {
            Self::Device(port) => port.rx_burst(burst),
            Self::Link(end) => end.rx_burst(burst),
        }
    }

    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst<P::Buf>) -> usize {
        match self {
            Self::Device(port) => port.tx_burst(burst),
            Self::Link(end) => end.tx_burst(burst),
        }
    }

    fn is_removed(&self) -> bool {
        match self {
            Self::Device(port) => port.is_removed(),
            Self::Link(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::memory::FramePool;

    #[test]
    fn wire_keeps_order_and_refuses_when_full() {
        let pool = FramePool::new(8, 8);
        let (mut left, mut right) = pair(3);
        let mut burst: Burst<_> = (0..5u8).map(|byte| pool.frame(&[byte]).unwrap()).collect();
        assert_eq!((left.tx_burst(&mut burst), burst.len()), (3, 2));
        let mut received = Burst::new();
        assert_eq!(left.rx_burst(&mut received), 0, "what it sent goes the other way");
        assert_eq!(right.rx_burst(&mut received), 3);
        assert_eq!(left.tx_burst(&mut burst), 2);
        assert_eq!(right.rx_burst(&mut received), 2);
        let bytes: Vec<_> = received.iter().map(|frame| frame.bytes()[0]).collect();
        assert_eq!(bytes, [0, 1, 2, 3, 4]);
        assert_eq!(right.tx_burst(&mut received), 3);
        drop((left, right, received));
        assert_eq!(pool.in_use(), 0);
    }
}
