//! Places for held packets. An embedded scheduler stores no packets: the owner of a context stores each held packet
//! at the numbered place that the scheduler assigned.

use arrayvec::ArrayVec;

use wedjat_core::io::Buf;
use wedjat_core::limits::{BURST, UNRESOLVED_HELD_MAX};
use wedjat_core::node::PacketStore;
use wedjat_core::reason::DropReason;

/// Places for held packets. All memory is allocated on creation.
#[derive(Debug)]
pub struct HeldPlaces {
    /// Free places.
    free: Vec<u32>,
    /// Number of places, free or not.
    count: usize,
    /// Places of packets that made room for others, with the reasons. [`Context::release`](super::Context::release)
    /// returns them as dropped.
    pub pushed_out: ArrayVec<(u32, DropReason), BURST>,
}

impl HeldPlaces {
    /// Creates places for packets without a MAC address, for a burst of such packets that made room for others, and for
    /// `queued` tasks without a worker.
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

    /// Returns a free place, if any.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Frees a place.
    pub fn release(&mut self, place: u32) {
        self.free.push(place);
    }
}

/// Packets that an owner keeps, by place.
pub struct PlaceStore<'a, B>(pub &'a mut [Option<B>]);

impl<B: Buf> PacketStore<u32> for PlaceStore<'_, B> {
    fn frame<'a>(&'a mut self, place: &'a mut u32) -> Option<&'a mut [u8]> {
        Some(self.0.get_mut(*place as usize)?.as_mut()?.bytes_mut())
    }
}
