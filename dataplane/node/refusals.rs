//! Counts of packets dropped on arrival, by port and reason. `run` derives hints about the cause from them.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::limits::PORTS_MAX;
use crate::reason::DropReason;

/// Counts of one core, readable by other threads.
#[derive(Clone, Debug)]
pub struct Refusals(Arc<[[AtomicU64; DropReason::COUNT]; PORTS_MAX]>);

impl Default for Refusals {
    fn default() -> Self {
        Self(Arc::new([const { [const { AtomicU64::new(0) }; DropReason::COUNT] }; PORTS_MAX]))
    }
}

impl Refusals {
    /// Counts a dropped packet of this port.
    #[cold]
    pub fn note(&self, port: usize, reason: DropReason) {
        if let Some(counts) = self.0.get(port) {
            // Single writer.
            let count = &counts[reason as usize];
            count.store(count.load(Relaxed) + 1, Relaxed);
        }
    }

    /// Returns a count.
    #[must_use]
    pub fn count(&self, port: usize, reason: DropReason) -> u64 {
        self.0.get(port).map_or(0, |counts| counts[reason as usize].load(Relaxed))
    }
}
