//! A network segment in memory: a node's port on one side, several hosts on the far side, and a switch
//! between them that forwards by MAC address.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use wedjat::io::memory::{Frame, FramePool, RingPort, pair};
use wedjat::io::{Buf, Burst, Port};
use wedjat::wire::ether::{self, Mac};

/// Number of frames that a host's wire (a pair of rings between host and switch) holds in each direction.
const DEPTH: usize = 1 << 13;

/// A host's end at the switch.
struct Host {
    mac: Mac,
    wire: RingPort,
    kernel: HostKernel,
}

/// Emulated kernel of a host: called with each frame that the host hands to its wire, returns true if the frame
/// leaves. A kernel sends some frames elsewhere or not at all. A lying worker's kernel changes the worker's replies.
pub type HostKernel = fn(&mut [u8]) -> bool;

/// Counters of the frames that the node sent, delivered or not, by a number below [`Tap::NUMBERS`] read from the frame.
/// Shared, because the node owns the segment, and the rig reads the counters.
#[derive(Clone)]
pub struct Tap(Arc<[AtomicU64]>);

impl Tap {
    /// Number of counters.
    pub const NUMBERS: usize = 64;

    /// Creates counters of 0.
    fn new() -> Self {
        Self((0..Self::NUMBERS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts a frame with this number. Numbers beyond the counters do not count.
    fn count(&self, number: usize) {
        if let Some(count) = self.0.get(number) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Returns the number of frames with this number.
    ///
    /// # Panics
    /// If the number is not below [`Tap::NUMBERS`].
    #[must_use]
    pub fn read(&self, number: usize) -> u64 {
        self.0[number].load(Relaxed)
    }
}

/// The node's end of the segment.
pub struct Segment {
    hosts: Vec<Host>,
    /// Reads the number from a frame; see [`Tap`].
    number: fn(&[u8]) -> Option<usize>,
    tap: Tap,
    /// Index of the host whose frames came first in the last call of `rx_burst`.
    first: usize,
}

impl Segment {
    /// Creates a segment without hosts. Also returns the counters of frames that the node sends there, by the
    /// number that `number` reads.
    #[must_use]
    pub fn new(number: fn(&[u8]) -> Option<usize>) -> (Self, Tap) {
        let tap = Tap::new();
        (Self { hosts: Vec::new(), number, tap: tap.clone(), first: 0 }, tap)
    }

    /// Adds a host with this MAC address and returns its end of the wire. Its frames are copied into buffers
    /// of `pool`. `kernel` decides which frames leave.
    pub fn join(&mut self, mac: Mac, pool: &FramePool, kernel: HostKernel) -> RingPort {
        let (wire, host_end) = pair(DEPTH, pool);
        self.hosts.push(Host { mac, wire, kernel });
        host_end
    }

    /// Counts a frame from the node, and forwards it to the host with its MAC address, or to all hosts if it
    /// is broadcast or multicast. Drops a frame for an unknown address.
    fn deliver(&mut self, frame: Frame) {
        if let Some(number) = (self.number)(frame.bytes()) {
            self.tap.count(number);
        }
        let dst = ether::dst(frame.bytes());
        if dst.is_group() {
            // A host with a full wire misses the frame, as at a switch.
            for host in &mut self.hosts {
                let _ = host.wire.send(frame.bytes());
            }
        } else if let Some(host) = self.hosts.iter_mut().find(|host| host.mac == dst) {
            host.wire.tx_burst(&mut Burst::from_iter([frame]));
        }
    }
}

impl Port for Segment {
    type Buf = Frame;

    /// Receives the frames that the hosts sent. Each call starts with the next host, so that a flood of one
    /// host does not starve the rest.
    fn rx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        let (before, count) = (burst.len(), self.hosts.len());
        self.first = (self.first + 1) % count.max(1);
        for step in 0..count {
            let host = &mut self.hosts[(self.first + step) % count];
            while !burst.is_full() {
                let Some(mut frame) = host.wire.receive() else { break };
                if (host.kernel)(frame.bytes_mut()) {
                    burst.push(frame);
                }
            }
        }
        burst.len() - before
    }

    /// Delivers all frames. Always takes the whole burst, as a switch does.
    fn tx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        let sent = burst.len();
        burst.drain(..).for_each(|frame| self.deliver(frame));
        sent
    }
}
