//! Conversion of a node's ticks to wall-clock time, for captures and explanations of packets. A tick is a count of the
//! cores' clock, such as the TSC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Number of reads of both clocks for one conversion.
const READS: usize = 8;

/// Conversion from ticks to time since the Unix epoch.
#[derive(Clone, Copy, Debug)]
pub struct Stamps {
    /// Tick that the clock had at `time`.
    ticks: u64,
    /// Time since the Unix epoch.
    time: Duration,
    ticks_hz: u64,
}

impl Stamps {
    /// Creates the conversion for the current time of a clock.
    pub fn from_now(clock: impl Fn() -> u64, ticks_hz: u64) -> Self {
        // The system may stop the thread between two reads. Of several reads, the quickest has the smallest error.
        let read = |_| {
            let before = clock();
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            (clock().wrapping_sub(before), before, time)
        };
        let (_, ticks, time) = (0..READS).map(read).min().unwrap_or_default();
        Self::from(ticks, time, ticks_hz)
    }

    /// Creates the conversion for a clock with `ticks` ticks at `time`, a duration since the Unix epoch.
    pub fn from(ticks: u64, time: Duration, ticks_hz: u64) -> Self {
        Self { ticks, time, ticks_hz: ticks_hz.max(1) }
    }

    /// Returns the time of a tick, since the Unix epoch. Ticks before the reference are valid, too.
    pub fn time_of(&self, ticks: u64) -> Duration {
        // 128 bits: the difference may be negative, and the product exceeds 64 bits.
        let since = i128::from(ticks) - i128::from(self.ticks);
        let ns = since * 1_000_000_000 / i128::from(self.ticks_hz);
        let ns = (self.time.as_nanos() as i128).saturating_add(ns).max(0);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_wall_clock_time() {
        let stamps = Stamps::from(5_000, Duration::from_secs(100), 1_000);
        assert_eq!(stamps.time_of(5_000), Duration::from_secs(100));
        assert_eq!(stamps.time_of(5_001), Duration::from_millis(100_001));
        assert_eq!(stamps.time_of(3_000), Duration::from_secs(98), "tick before the reference");
        assert_eq!(stamps.time_of(u64::MAX), Duration::from_nanos(u64::MAX), "saturates");
    }
}
