//! Leading run of a burst: the packets at its front that match a template, and the values read from them.

use super::template::CodeByte;
use crate::io::Buf;
use crate::limits::BURST;
use crate::policy::Task;
use crate::stage::parse::PREFETCH_AHEAD;
use crate::wire::address::Address;
use crate::wire::task::Extension;

/// Indices of packets in a burst, one bit each.
#[derive(Clone, Copy)]
pub struct BurstMask(pub u32);
const _: () = assert!(BURST <= 32);

impl BurstMask {
    /// Returns the mask of the first `len` packets.
    pub const fn first(len: u32) -> Self {
        Self(((1_u64 << len) - 1) as u32)
    }

    /// Returns true if the packets are the first ones of the burst, without a gap.
    pub const fn is_prefix(self) -> bool {
        self.0 & self.0.wrapping_add(1) == 0
    }

    /// Returns true if the packet at an index, below 32, is one of them.
    #[inline(always)]
    pub const fn contains(self, index: usize) -> bool {
        self.0 >> (index % 32) & 1 != 0
    }

    /// Returns the number of packets.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

impl Iterator for BurstMask {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let first = self.0.trailing_zeros();
        let has_next = self.0 != 0;
        self.0 &= self.0.wrapping_sub(1); // clears the lowest bit that is set
        has_next.then_some(first as usize)
    }
}

/// Values read from the packets of a run.
pub struct Fields {
    /// Values that policies may use, one entry for each task of the run. Replies have none.
    pub tasks: [Task; BURST],
    /// IPv4 source address of each packet of the run, in network byte order. Unused over IPv6.
    pub sources: [u32; BURST],
}

impl Fields {
    #[inline(always)]
    pub fn new() -> Self {
        Self { tasks: [Task::default(); BURST], sources: [0; BURST] }
    }
}

/// Leading run of matching packets in a burst. Small, so that it stays in registers while the packets are
/// read.
#[derive(Clone, Copy, Default)]
pub struct LeadingRun {
    /// Number of packets in the run.
    pub len: u32,
    /// Mask of the replies among the packets read. A shortened run leaves bits behind its end.
    pub replies: u32,
}

impl LeadingRun {
    /// Returns the run of packets at the front that `recognise` accepts. It gets a packet's index, the packet, its
    /// frame and the fields to fill, and returns the packet's code. A segmented packet ends the run.
    #[inline(always)]
    pub fn of<A: Address, B: Buf>(
        packets: &[B],
        fields: &mut Fields,
        mut recognise: impl FnMut(usize, &B, &[u8], &mut Fields) -> Option<CodeByte>,
    ) -> Self {
        let packets = &packets[..packets.len().min(BURST)];
        let mut run = Self::default();
        for packet in packets.iter().take(PREFETCH_AHEAD) {
            packet.prefetch();
        }
        for (index, packet) in packets.iter().enumerate() {
            if let Some(ahead) = packets.get(index + PREFETCH_AHEAD) {
                ahead.prefetch();
            }
            if packet.is_segmented() {
                break;
            }
            let frame = packet.bytes();
            let Some(code) = recognise(index, packet, frame, fields) else {
                break;
            };
            run.push(index, code, &frame[A::PAYLOAD..], fields);
        }
        run
    }

    /// Adds the packet at `index`, the next one, with this payload. Copies the class of an extended task; other tasks
    /// have class 0.
    #[inline(always)]
    fn push(&mut self, index: usize, code: CodeByte, payload: &[u8], fields: &mut Fields) {
        if code.is_extended() && !code.is_reply() {
            // All packets before this one are tasks or replies.
            let task = index - self.replies.count_ones() as usize;
            // The remainder changes nothing; it spares the bounds check.
            fields.tasks[task % BURST].class = Extension::parse(payload).class;
        }
        self.replies |= u32::from(code.is_reply()) << index;
        self.len = index as u32 + 1;
    }

    /// Ends the run before the first of these packets, if it has any of them. The slow path handles that packet.
    #[inline(always)]
    pub fn end_before(&mut self, packets: BurstMask) {
        let refused = packets.0 & BurstMask::first(self.len).0;
        if refused != 0 {
            self.len = refused.trailing_zeros();
        }
    }

    /// Returns the indices of the replies.
    pub fn replies(&self) -> BurstMask {
        BurstMask(self.replies & BurstMask::first(self.len).0)
    }

    /// Returns the indices of the tasks.
    pub fn tasks(&self) -> BurstMask {
        BurstMask(!self.replies & BurstMask::first(self.len).0)
    }
}
