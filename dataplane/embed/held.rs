//! Packets that their owner keeps for a context: the places that the owner keeps them at.

use arrayvec::ArrayVec;

use crate::io::Buf;
use crate::limits::{BURST, UNRESOLVED_HELD_MAX};
use crate::node::Keeper;
use crate::reason::DropReason;

/// HeldPlaces of packets. All memory is taken when it is made.
#[derive(Debug)]
pub struct HeldPlaces {
    /// Those where nothing is kept.
    free: Vec<u32>,
    count: usize,
    /// Those whose packets had to make room for others, to be given back and counted as dropped, and why.
    pub pushed_out: ArrayVec<(u32, DropReason), BURST>,
}

impl HeldPlaces {
    /// As many as packets may wait for their next hop, and beside them `queued` for workers.
    pub fn new(queued: usize) -> Self {
        let count = UNRESOLVED_HELD_MAX + BURST + queued;
        // Low places are given out first.
        let free = (0..count as u32).rev().collect();
        Self { free, count, pushed_out: ArrayVec::new() }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// A place where nothing is kept.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Nothing is kept there any more.
    pub fn leave(&mut self, place: u32) {
        self.free.push(place);
    }
}

/// The packets that an owner keeps, by place.
pub struct Kept<'a, B>(pub &'a mut [Option<B>]);

impl<B: Buf> Keeper<u32> for Kept<'_, B> {
    fn frame<'a>(&'a mut self, place: &'a mut u32) -> Option<&'a mut [u8]> {
        Some(self.0.get_mut(*place as usize)?.as_mut()?.bytes_mut())
    }
}
