//! A network segment in memory: a node's port on one side, several hosts on the other, and a switch between that knows
//! where each MAC address is.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use wedjat::io::memory::{Frame, FramePool, RingPort, pair};
use wedjat::io::{Buf, Burst, Port};
use wedjat::wire::ether::{self, Mac};

/// Frames that a host's wire holds each way.
const DEPTH: usize = 1 << 13;

/// A host's end at the switch.
struct Host {
    mac: Mac,
    wire: RingPort,
    sends: Sends,
}

/// What becomes of a frame that a host hands to its wire: it may be changed, and leaves only when this says so.
pub type Sends = fn(&mut [u8]) -> bool;

/// Frames that the node sent to a host, by a number below [`Tap::NUMBERS`] that is read in them.
#[derive(Clone)]
pub struct Tap(Arc<[AtomicU64]>);

impl Tap {
    /// How many numbers there are.
    pub const NUMBERS: usize = 64;

    fn new() -> Self {
        Self((0..Self::NUMBERS).map(|_| AtomicU64::new(0)).collect())
    }

    fn count(&self, number: usize) {
        if let Some(count) = self.0.get(number) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// How many frames had this number.
    #[must_use]
    pub fn read(&self, number: usize) -> u64 {
        self.0[number].load(Relaxed)
    }
}

/// The node's end of the segment.
pub struct Segment {
    hosts: Vec<Host>,
    /// Reads the number in a frame, see [`Tap`].
    number: fn(&[u8]) -> Option<usize>,
    tap: Tap,
    /// The host whose frames come first next time.
    next: usize,
}

impl Segment {
    /// A segment without hosts, and what counts the frames that the node sends there, by the number that `number` reads.
    #[must_use]
    pub fn new(number: fn(&[u8]) -> Option<usize>) -> (Self, Tap) {
        let tap = Tap::new();
        (Self { hosts: Vec::new(), number, tap: tap.clone(), next: 0 }, tap)
    }

    /// Adds a host with this MAC address, whose frames are copied into those of `pool`; its end of the wire. What it hands
    /// to the wire leaves it as `sends` says.
    pub fn join(&mut self, mac: Mac, pool: &FramePool, sends: Sends) -> RingPort {
        let (wire, far) = pair(DEPTH, pool);
        self.hosts.push(Host { mac, wire, sends });
        far
    }

    fn deliver(&mut self, frame: Frame) {
        if let Some(number) = (self.number)(frame.bytes()) {
            self.tap.count(number);
        }
        let to = ether::dst(frame.bytes());
        if to.is_group() {
            // A host whose wire is full misses it, as at a switch.
            for host in &mut self.hosts {
                let _ = host.wire.send(frame.bytes());
            }
        } else if let Some(host) = self.hosts.iter_mut().find(|host| host.mac == to) {
            host.wire.tx_burst(&mut Burst::from_iter([frame]));
        }
    }
}

impl Port for Segment {
    type Buf = Frame;

    fn rx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        let (before, count) = (burst.len(), self.hosts.len());
        self.next = (self.next + 1) % count.max(1);
        for step in 0..count {
            let host = &mut self.hosts[(self.next + step) % count];
            while !burst.is_full() {
                let Some(mut frame) = host.wire.receive() else { break };
                if (host.sends)(frame.bytes_mut()) {
                    burst.push(frame);
                }
            }
        }
        burst.len() - before
    }

    fn tx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        let sent = burst.len();
        burst.drain(..).for_each(|frame| self.deliver(frame));
        sent
    }
}
