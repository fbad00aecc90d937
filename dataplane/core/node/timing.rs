//! Conversions between the ticks of a node's clock and time, and the intervals of the node's periodic work. A *tick* of
//! the clock is its unit; the periodic work itself is also called a tick.

/// Frequency of a node's clock, with conversions and intervals in its ticks.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Ticks per second.
    pub ticks_hz: u64,
}

impl Timing {
    /// Returns the interval of periodic work (commands, neighbours, policies' timers) in ticks of the clock: 100 us.
    #[must_use]
    pub const fn tick_interval(self) -> u64 {
        let interval = self.ticks_hz / 10_000;
        if interval > 0 { interval } else { 1 } // `max` is not const
    }

    /// Returns the time by which an idle core may delay the periodic work to sleep longer: 2 ms in ticks of the clock.
    /// A core is idle while no packets arrive or wait.
    pub(crate) const fn max_tick_delay(self) -> u64 {
        self.ticks_hz / 500
    }

    /// Interval in milliseconds at which a question for a neighbour's MAC address is repeated until it is answered or
    /// given up ([`super::arp`]). Packets held for the neighbour cause additional ones in between.
    pub(crate) const QUESTION_INTERVAL_MS: u64 = 200;

    /// Returns the interval at which a node looks for servers and spines without a MAC address and starts questions for
    /// them, so that their first packet need not wait: 200 ms in ticks of the clock.
    pub(crate) fn server_check_interval(self) -> u64 {
        (self.ticks_hz / 5).max(1)
    }

    /// Converts milliseconds to ticks. Uses whole ticks per millisecond, rounded down.
    pub(crate) fn ticks_of_ms(self, ms: u64) -> u64 {
        self.ticks_hz / 1000 * ms
    }

    /// Converts ticks to milliseconds, rounded down.
    #[must_use]
    pub fn to_ms(self, ticks: u64) -> u64 {
        self.to_ns(ticks) / 1_000_000
    }

    /// Converts ticks to nanoseconds, rounded down, in floating point. An exact result would need a slow division of
    /// 128-bit integers, and some policies need the time at every poll. The relative error stays below 4e-16: about
    /// 12 ns after a year.
    #[inline]
    #[must_use]
    pub fn to_ns(self, ticks: u64) -> u64 {
        (ticks as f64 * (1e9 / self.ticks_hz.max(1) as f64)) as u64
    }

    /// Converts nanoseconds to ticks, rounded up.
    pub(crate) fn ticks_of_ns(self, ns: u64) -> u64 {
        (ns as f64 * (self.ticks_hz as f64 / 1e9)).ceil() as u64
    }
}
