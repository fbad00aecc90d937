//! Ports carry bursts of buffers and never look inside them.
//!
//! A [`Port`] is one queue pair of one device, owned by one core. [`memory`] joins two ends in memory, [`link`] two of one core,
//! [`pcap`] wraps any port, [`vdev`] reads devices' texts, and `dpdk` (feature `dpdk`) is the real thing.

use arrayvec::ArrayVec;

use crate::limits::BURST;

#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod link;
pub mod memif_control;
pub mod memory;
#[cfg(feature = "admin")]
pub mod pcap;
mod token;
pub mod vdev;

pub use token::Token;

/// One packet's memory. Dropping it gives the memory back to its pool.
pub trait Buf: Sized {
    /// The packet's bytes, from the Ethernet header on.
    fn bytes(&self) -> &[u8];

    /// The packet's bytes, to be changed in place.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Sets the packet's length; new bytes are unspecified. False when the buffer is too small,
    /// and then nothing has changed.
    fn resize(&mut self, len: usize) -> bool;

    /// The packet continues in further segments that [`Buf::bytes`] does not show.
    fn is_segmented(&self) -> bool {
        false
    }

    /// The device has checked the IPv4 and UDP checksums and found them good.
    fn checksums_verified(&self) -> bool {
        false
    }

    /// The device has verified the UDP checksum. An IPv6 packet has no other.
    fn udp_checksum_verified(&self) -> bool {
        self.checksums_verified()
    }

    /// When the packet was received, by the device's own clock or the kernel's, if that is said in this field.
    #[inline]
    fn stamp(&self, _field: StampField) -> Option<u64> {
        None
    }

    /// Asks the cache for the first line of the packet.
    #[inline]
    fn prefetch(&self) {}
}

/// Where a buffer has the time at which its packet was received, and the flag that says that it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampField {
    /// Bytes from the buffer's start.
    pub(in crate::io) offset: u16,
    pub(in crate::io) flag: u64,
}

/// Memory of somebody else's; nothing is freed.
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
        let fits = len <= self.len();
        if fits {
            *self = &mut std::mem::take(self)[..len];
        }
        fits
    }
}

/// Up to [`BURST`] packets; a contiguous array of buffers.
pub type Burst<B> = ArrayVec<B, BURST>;

/// One queue pair of a device.
pub trait Port {
    /// The buffers this port carries.
    type Buf: Buf;

    /// Appends received packets to `burst` until it is full or none is left; returns how many came.
    fn rx_burst(&mut self, burst: &mut Burst<Self::Buf>) -> usize;

    /// Sends from the front of `burst` and removes what was sent; the rest stays, in order.
    /// Returns how many were sent.
    fn tx_burst(&mut self, burst: &mut Burst<Self::Buf>) -> usize;
}

/// Where new buffers come from: one core's handle on a pool that was filled at start-up.
pub trait Pool {
    /// The buffers of this pool.
    type Buf: Buf;

    /// An empty buffer, or none when the pool is exhausted.
    fn take(&mut self) -> Option<Self::Buf>;
}
