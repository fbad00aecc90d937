//! Evidence that a device's receive interrupts wake a core. Some drivers accept them and never deliver one (e1000 and
//! e1000e of DPDK 22.11 on emulated devices). So a core takes only naps, which are short sleeps, until the first
//! interrupt has come. After a miss, see [`MISSES_MAX`], it takes only naps again until the next interrupt.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Number of misses after which the interrupts count as broken. A *miss* is a sleep that ended without an interrupt
/// although packets were waiting, and no interrupt has come shortly afterwards. A packet that arrives between the end
/// of a sleep and the check may also look like a miss, and so may a slow interrupt. Eight of them without a single
/// interrupt are unlikely.
const MISSES_MAX: u32 = 8;

/// Evidence for one device, shared by its cores. Holds [`PROVEN`], or the number of misses since the last interrupt.
#[derive(Debug, Default)]
pub(super) struct InterruptEvidence(AtomicU32);

/// Value after an interrupt.
const PROVEN: u32 = u32::MAX;

impl InterruptEvidence {
    /// Records an interrupt.
    pub(super) fn note_interrupt(&self) {
        if self.0.load(Relaxed) != PROVEN {
            self.0.store(PROVEN, Relaxed);
        }
    }

    /// Records a miss of one queue, see [`MISSES_MAX`]. Each interrupt restarts their count.
    pub(super) fn note_miss(&self) {
        let next = match self.0.load(Relaxed) {
            PROVEN => 1,
            misses => misses.saturating_add(1).min(MISSES_MAX),
        };
        self.0.store(next, Relaxed);
    }

    /// Returns true if an interrupt has come, and no miss since. Cores may then sleep longer than a nap.
    pub(super) fn is_proven(&self) -> bool {
        self.0.load(Relaxed) == PROVEN
    }

    /// Returns true after [`MISSES_MAX`] misses without an interrupt. The node then logs a warning. Cores go on with
    /// naps, and look for no further misses.
    pub(super) fn is_broken(&self) -> bool {
        self.0.load(Relaxed) == MISSES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: ports.1
    #[test]
    fn silent_interrupts_are_found_after_misses() {
        let evidence = InterruptEvidence::default();
        assert!(!evidence.is_proven() && !evidence.is_broken());
        for _ in 1..MISSES_MAX {
            evidence.note_miss();
        }
        assert!(!evidence.is_proven() && !evidence.is_broken());
        evidence.note_miss();
        evidence.note_miss();
        assert!(!evidence.is_proven() && evidence.is_broken());
        evidence.note_interrupt();
        assert!(evidence.is_proven() && !evidence.is_broken());
        evidence.note_miss();
        assert!(!evidence.is_proven() && !evidence.is_broken(), "naps until the next interrupt");
    }
}
