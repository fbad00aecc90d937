//! A node's clock, and the intervals of its periodic work.

/// Conversions for the ticks of a node's clock.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Ticks per second.
    pub ticks_hz: u64,
}

impl Timing {
    /// Returns the interval of periodic work (commands, neighbours, policies' timers) in ticks of the clock: 100 us.
    #[must_use]
    pub const fn tick(self) -> u64 {
        let tick = self.ticks_hz / 10_000;
        if tick > 0 { tick } else { 1 }
    }

    /// Returns the longest delay of periodic work while no packets arrive or wait: 2 ms in ticks.
    pub(crate) const fn rest(self) -> u64 {
        self.ticks_hz / 500
    }

    /// Interval of questions for one neighbour's MAC address, in milliseconds.
    pub(crate) const ASK_MS: u64 = 200;

    /// Returns the interval of checks for servers with unknown MAC addresses: 200 ms in ticks.
    pub(crate) fn servers(self) -> u64 {
        (self.ticks_hz / 5).max(1)
    }

    /// Converts milliseconds to ticks.
    pub(crate) fn of_ms(self, ms: u64) -> u64 {
        self.ticks_hz / 1000 * ms
    }

    /// Converts ticks to milliseconds, approximately.
    #[must_use]
    pub fn to_ms(self, ticks: u64) -> u64 {
        self.to_ns(ticks) / 1_000_000
    }

    /// Converts ticks to nanoseconds. Multiplies by a factor instead of dividing, because some policies need the time
    /// at every poll. The relative error stays below 4e-16: about 12 ns after a year.
    #[inline]
    #[must_use]
    pub fn to_ns(self, ticks: u64) -> u64 {
        (ticks as f64 * (1e9 / self.ticks_hz.max(1) as f64)) as u64
    }

    /// Converts nanoseconds to ticks, rounded up.
    pub(crate) fn to_ticks(self, ns: u64) -> u64 {
        (ns as f64 * (self.ticks_hz as f64 / 1e9)).ceil() as u64
    }
}
