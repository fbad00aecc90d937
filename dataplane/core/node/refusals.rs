//! Counts of packets dropped on arrival, by port and reason. The node's watching thread reads them and logs the likely
//! cause, such as a wrong setup. A *spoofed* reply names a worker but comes from another host than the worker's server.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crossbeam_queue::ArrayQueue;

use super::explain::PacketSummary;
use crate::limits::PORTS_MAX;
use crate::reason::DropReason;

/// Maximum number of spoofed replies of a core that wait for the log. Later ones are only counted.
const SPOOFED_REPLIES: usize = 16;

/// Source of a packet dropped as [`DropReason::SpoofedReply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpoofedReply {
    /// Source address.
    pub source: IpAddr,
    /// Worker id in its header.
    pub worker: u16,
}

/// Packets dropped on arrival by one core, readable by other threads.
#[derive(Clone, Debug)]
pub struct Refusals {
    /// Counts by port and reason. The core is the only writer.
    counts: Arc<[[AtomicU64; DropReason::COUNT]; PORTS_MAX]>,
    /// Spoofed replies that wait for the log.
    spoofed: Arc<ArrayQueue<SpoofedReply>>,
}

impl Default for Refusals {
    fn default() -> Self {
        let zeros = [const { [const { AtomicU64::new(0) }; DropReason::COUNT] }; PORTS_MAX];
        Self { counts: Arc::new(zeros), spoofed: Arc::new(ArrayQueue::new(SPOOFED_REPLIES)) }
    }
}

impl Refusals {
    /// Counts a dropped packet of this port.
    #[cold]
    pub fn note(&self, port: usize, reason: DropReason) {
        if let Some(counts) = self.counts.get(port) {
            // Single writer.
            let count = &counts[reason as usize];
            count.store(count.load(Relaxed) + 1, Relaxed);
        }
    }

    /// Returns a count.
    #[must_use]
    pub fn count(&self, port: usize, reason: DropReason) -> u64 {
        self.counts.get(port).map_or(0, |counts| counts[reason as usize].load(Relaxed))
    }

    /// Counts a dropped frame of this port. Keeps the source of a spoofed reply for the log.
    #[cold]
    pub fn note_frame(&self, port: usize, reason: DropReason, frame: &[u8]) {
        self.note(port, reason);
        if reason == DropReason::SpoofedReply
            && let PacketSummary::Task(datagram, header, _) = PacketSummary::in_frame(frame)
        {
            self.keep(SpoofedReply { source: datagram.src, worker: header.src });
        }
    }

    /// Keeps a spoofed reply for the log, if there is room.
    pub fn keep(&self, reply: SpoofedReply) {
        let _ = self.spoofed.push(reply);
    }

    /// Removes and returns the oldest spoofed reply that waits for the log.
    #[must_use]
    pub fn next_spoofed(&self) -> Option<SpoofedReply> {
        self.spoofed.pop()
    }
}
