//! What was refused on each port, by reason, as far as packets are dropped when they come: for those who look for a cause. Only
//! dropped packets are counted here, so the others pay nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::limits::PORTS_MAX;
use crate::reason::DropReason;

/// One core's counts, which others read.
#[derive(Clone, Debug)]
pub struct Refusals(Arc<[[AtomicU64; DropReason::COUNT]; PORTS_MAX]>);

impl Default for Refusals {
    fn default() -> Self {
        Self(Arc::new([const { [const { AtomicU64::new(0) }; DropReason::COUNT] }; PORTS_MAX]))
    }
}

impl Refusals {
    /// A packet that this port received was dropped.
    #[cold]
    pub fn note(&self, port: usize, reason: DropReason) {
        if let Some(counts) = self.0.get(port) {
            // One writer.
            let count = &counts[reason as usize];
            count.store(count.load(Relaxed) + 1, Relaxed);
        }
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self, port: usize, reason: DropReason) -> u64 {
        self.0.get(port).map_or(0, |counts| counts[reason as usize].load(Relaxed))
    }
}
