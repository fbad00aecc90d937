//! Ports, which receive and send bursts of packet buffers, and the buffers.
//!
//! A [`Port`] is one queue pair of one device, owned by one core. [`memory`] connects two ports in memory,
//! and [`link`] two ports of one core. [`vdev`] parses device names with arguments. [`memif_control`] checks the
//! messages by which two processes set up a memif device. A [`Token`] is a packet as a word, which a ring carries to
//! another thread. Ports on real devices are in `wedjat-dpdk`, captures in `wedjat-admin`.

use arrayvec::ArrayVec;

use crate::limits::BURST;

pub mod link;
pub mod memif_control;
pub mod memory;
mod token;
pub mod vdev;

pub use token::Token;

/// Memory of one packet. Dropping it returns the memory to its pool.
pub trait Buf: Sized {
    /// Returns the packet's bytes from the Ethernet header on.
    fn bytes(&self) -> &[u8];

    /// Returns the packet's bytes for changes in place.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Sets the packet's length; new bytes are unspecified. Returns false, without a change, if the buffer is
    /// too small or the packet is segmented.
    fn resize(&mut self, len: usize) -> bool;

    /// Returns true if the packet continues in further segments. [`Buf::bytes`] does not include these.
    fn is_segmented(&self) -> bool {
        false
    }

    /// Moves all segments of a segmented packet into the first one, the only one that [`Buf::bytes`] returns. Returns
    /// false, without a change, if they do not fit or the type cannot join segments (the default).
    fn linearise(&mut self) -> bool {
        false
    }

    /// Returns true if the IPv4 and UDP checksums need no check: the device or the port has verified them, or the
    /// operator trusts them.
    fn checksums_verified(&self) -> bool {
        false
    }

    /// Returns true if the UDP checksum needs no check, whatever the state of the IPv4 checksum. Some devices verify
    /// only this one, and an IPv6 packet has no other.
    fn udp_checksum_verified(&self) -> bool {
        self.checksums_verified()
    }

    /// Returns the receive time, in units of the device's or kernel's clock, if the buffer has one at this position.
    #[inline]
    fn stamp(&self, _field: StampField) -> Option<u64> {
        None
    }

    /// Prefetches the first cache line of the packet.
    #[inline]
    fn prefetch(&self) {}

    /// Prefetches a buffer that has left the caches: its metadata, and the cache line at which packets usually begin.
    /// Does not read the metadata, which would stall, to find the packet's true start.
    #[inline]
    fn prefetch_all(&self) {}
}

/// Position of the receive time in a buffer, and the flag for its presence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampField {
    /// Offset in bytes from the buffer's start.
    pub offset: u16,
    /// Bit of the buffer's flags that is set when the time is present.
    pub flag: u64,
}

/// Borrowed memory, for programs that embed the scheduler and call its stages ([`crate::stage`]) on their own frames. A
/// drop frees nothing.
impl Buf for &mut [u8] {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    fn resize(&mut self, len: usize) -> bool {
        let fits = len <= self.len(); // the rest is lost, so a packet cannot grow again
        if fits {
            *self = &mut std::mem::take(self)[..len];
        }
        fits
    }
}

/// Up to [`BURST`] packets: a contiguous array of buffers.
pub type Burst<B> = ArrayVec<B, BURST>;

/// One queue pair of a device.
pub trait Port {
    /// Buffer type of this port.
    type Buf: Buf;

    /// Appends received packets to `burst` until it is full or none is left. Returns their number.
    fn rx_burst(&mut self, burst: &mut Burst<Self::Buf>) -> usize;

    /// Sends from the front of `burst` and removes the sent packets; the rest stays, in order. Returns the
    /// number of packets sent.
    fn tx_burst(&mut self, burst: &mut Burst<Self::Buf>) -> usize;

    /// Returns true while the device is unplugged or in a reset. It then receives and sends nothing; the port works
    /// again once the device is back.
    fn is_removed(&self) -> bool {
        false
    }
}

/// Source of new buffers: one core's handle to a pool that was filled at start-up.
pub trait Pool {
    /// Buffer type of this pool.
    type Buf: Buf;

    /// Returns an empty buffer, or `None` if the pool is exhausted.
    fn take(&mut self) -> Option<Self::Buf>;
}
