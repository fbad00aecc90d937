//! Places for held packets. An embedded scheduler stores no packets. Its caller, the owner of a context (one core's
//! part), stores each held packet at the numbered place from the context. A packet is held while the MAC
//! address of its next hop is unknown, or while its task waits for a worker.

use arrayvec::ArrayVec;

use wedjat_core::io::Buf;
use wedjat_core::limits::{BURST, UNRESOLVED_HELD_MAX};
use wedjat_core::node::PacketStore;
use wedjat_core::reason::DropReason;

/// Numbers of the places for held packets, free and in use. All memory is allocated on creation.
#[derive(Debug)]
pub struct HeldPlaces {
    /// Free places.
    free: Vec<u32>,
    /// Number of places, free or not.
    count: usize,
    /// Places of packets that made room for others, with the reasons. [`Context::release`](super::Context::release)
    /// returns them as dropped, and frees the places.
    pub pushed_out: ArrayVec<(u32, DropReason), BURST>,
}

impl HeldPlaces {
    /// Creates places for packets whose next hop's MAC address is unknown, for a burst of such packets that made room
    /// for others, and for `queued` tasks without a worker.
    pub fn new(queued: usize) -> Self {
        let count = UNRESOLVED_HELD_MAX + BURST + queued;
        // In descending order: `take` removes the last, so low places are used first.
        let free = (0..count as u32).rev().collect();
        Self { free, count, pushed_out: ArrayVec::new() }
    }

    /// Returns the number of places.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Takes a free place, if any. The caller returns it by `release`.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Frees a place.
    pub fn release(&mut self, place: u32) {
        self.free.push(place);
    }
}

/// Packets kept by an owner, by place. The node reads and rewrites a held packet through it.
pub struct PlaceStore<'a, B>(pub &'a mut [Option<B>]);

impl<B: Buf> PacketStore<u32> for PlaceStore<'_, B> {
    fn frame<'a>(&'a mut self, place: &'a mut u32) -> Option<&'a mut [u8]> {
        Some(self.0.get_mut(*place as usize)?.as_mut()?.bytes_mut())
    }
}
