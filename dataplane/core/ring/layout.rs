//! Layout of a worker region: offsets of its sections. Both ends compute it from the region's shape, which a worker
//! receives on attaching.
//!
//! A *region* is the memory that a dispatcher shares with its workers. It has a *channel* for each worker, with a slot
//! for each task in flight. A worker requests a channel by a number, its *claim*; the dispatcher grants the claim.
//!
//! | section | words | written by |
//! |---|---|---|
//! | per channel: control | u64: granted claim, first task, requests | dispatcher |
//! | per channel: claim | u64: claim, process, last orderly departure, name, thread | worker on attaching and leaving |
//! | per channel: sleep | u32: whether the worker sleeps | worker; dispatcher to wake it |
//! | per channel: credit | u64: tasks completed, time worked, start of list, quanta | worker; dispatcher on a grant |
//! | per channel: slots | two u64 per slot: one of number and length, one of position and class | dispatcher |
//! | per channel: completed | u64 per slot: slots of tasks completed in any order; threads: class and time | worker |
//! | per channel: area | per slot: ids, bytes of the task; number, length, time, bytes of the reply | both in turn |
//! | watch | u64: see [`super::watch`] | dispatcher, observers |
//!
//! Sections start at multiples of [`ALIGN`], because the CPU prefetches adjacent lines in pairs.

use super::protocol::SLOT_WORDS;
use super::watch;
use crate::state::region::ALIGN;

/// Bytes at the start of a task's part (its ids) and of a reply's part (number, length and service time). The payload
/// follows. A *part* is the memory of one task, or of one reply, in the area.
pub const HEAD: usize = 16;
/// Alignment of a task's and a reply's part in bytes.
const LINE: usize = 64;

/// Dimensions of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionShape {
    /// Number of channels, one per possible worker.
    pub channels: usize,
    /// Slots per channel, a power of two.
    pub slots: usize,
    /// Maximum bytes of a task or a reply.
    pub payload: usize,
}

/// Maximum number of channels.
pub const CHANNELS_MAX: usize = 1024;
/// Maximum number of slots per channel.
pub const SLOTS_MAX: usize = 1 << 14;
/// Maximum bytes of a task or a reply.
pub const PAYLOAD_MAX: usize = 1 << 16;

impl RegionShape {
    /// Returns true if all dimensions are within bounds and the areas of all channels together are below 4 GiB. Then no
    /// sum overflows, and a slot's 32-bit position reaches each task of its channel's area.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        (1..=CHANNELS_MAX).contains(&self.channels)
            && (2..=SLOTS_MAX).contains(&self.slots)
            && self.slots.is_power_of_two()
            && (1..=PAYLOAD_MAX).contains(&self.payload)
            && self.channels * self.slots * self.stride() <= u32::MAX as usize
    }

    /// Returns the bytes of a task's part, which equal those of a reply's part.
    #[must_use]
    pub fn part(&self) -> usize {
        (HEAD + self.payload).next_multiple_of(LINE)
    }

    /// Returns the bytes from one task's part to the next one's.
    #[must_use]
    pub fn stride(&self) -> usize {
        2 * self.part()
    }
}

/// Offsets of a channel's sections in bytes, from the region's start; the table above describes the sections.
#[derive(Clone, Copy, Debug)]
pub struct ChannelLayout {
    /// Offset of the control line.
    pub control: usize,
    /// Offset of the claim line.
    pub claim: usize,
    /// Offset of the sleep word.
    pub sleep: usize,
    /// Offset of the credit line.
    pub credit: usize,
    /// Offset of the slots.
    pub slots: usize,
    /// Offset of the list of completed tasks.
    pub completed: usize,
    /// Offset of the area, which holds the bytes of tasks and replies.
    pub area: usize,
}

/// Offsets of a region's sections, in bytes from its start.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Length of the region in bytes.
    pub len: usize,
    /// Offset of the state published to observers.
    pub watch: usize,
    /// Offsets of the first channel.
    channel: ChannelLayout,
    /// Bytes of a channel.
    channel_len: usize,
}

impl Layout {
    /// Computes the layout of a valid shape.
    #[must_use]
    pub fn new(shape: &RegionShape) -> Self {
        let round = |bytes: usize| bytes.next_multiple_of(ALIGN);
        let slots = 4 * ALIGN; // after the control, claim, sleep and credit lines
        let completed = slots + round(8 * SLOT_WORDS * shape.slots);
        let area = completed + round(8 * shape.slots);
        let channel = ChannelLayout {
            control: 0,
            claim: ALIGN,
            sleep: 2 * ALIGN,
            credit: 3 * ALIGN,
            slots,
            completed,
            area,
        };
        let channel_len = area + round(shape.slots * shape.stride());
        let watch = shape.channels * channel_len;
        Self { len: watch + round(8 * watch::WORDS), watch, channel, channel_len }
    }

    /// Returns the offsets of a channel.
    #[must_use]
    pub fn channel(&self, index: usize) -> ChannelLayout {
        let start = index * self.channel_len;
        let channel = self.channel;
        ChannelLayout {
            control: start + channel.control,
            claim: start + channel.claim,
            sleep: start + channel.sleep,
            credit: start + channel.credit,
            slots: start + channel.slots,
            completed: start + channel.completed,
            area: start + channel.area,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_disjoint_aligned_and_within() {
        let shape = RegionShape { channels: 3, slots: 8, payload: 100 };
        let layout = Layout::new(&shape);
        let mut sections = Vec::new();
        for index in 0..3 {
            let channel = layout.channel(index);
            sections.push((channel.control, 64));
            sections.push((channel.claim, 64));
            sections.push((channel.sleep, 64));
            sections.push((channel.credit, 64));
            sections.push((channel.slots, 8 * SLOT_WORDS * 8));
            sections.push((channel.completed, 8 * 8));
            sections.push((channel.area, 8 * shape.stride()));
        }
        sections.push((layout.watch, 8 * watch::WORDS));
        sections.sort_unstable();
        for pair in sections.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            assert!(pair[1].0.is_multiple_of(ALIGN));
        }
        let last = sections[sections.len() - 1];
        assert!(last.0 + last.1 <= layout.len);
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let possible = RegionShape { channels: 1, slots: 2, payload: 1 };
        assert!(possible.is_possible());
        let impossible = [
            RegionShape { channels: 0, ..possible },
            RegionShape { channels: usize::MAX, ..possible },
            RegionShape { slots: 3, ..possible },
            RegionShape { slots: 1 << 40, ..possible },
            RegionShape { payload: 0, ..possible },
            RegionShape { payload: usize::MAX, ..possible },
            // Each dimension is allowed, but the areas exceed 4 GiB.
            RegionShape { channels: CHANNELS_MAX, slots: SLOTS_MAX, payload: PAYLOAD_MAX },
        ];
        assert!(impossible.iter().all(|shape| !shape.is_possible()));
    }
}
