//! A node's clock, and what it does at which interval.

/// Times in ticks of the clock that a node's caller reads.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Ticks a second.
    pub ticks_hz: u64,
}

impl Timing {
    /// Between two looks at commands, neighbours and policies' clocks: 100 us.
    #[must_use]
    pub const fn tick(self) -> u64 {
        let tick = self.ticks_hz / 10_000;
        if tick > 0 { tick } else { 1 }
    }

    /// How late the next tick may be while nothing comes and nothing waits: 2 ms.
    pub(crate) const fn rest(self) -> u64 {
        self.ticks_hz / 500
    }

    /// Milliseconds between two ARP questions for one neighbour.
    pub(crate) const ASK_MS: u64 = 200;

    /// Between two looks for servers that have not answered and are not being asked for.
    pub(crate) fn servers(self) -> u64 {
        (self.ticks_hz / 5).max(1)
    }

    /// So many milliseconds.
    pub(crate) fn of_ms(self, ms: u64) -> u64 {
        self.ticks_hz / 1000 * ms
    }

    /// Milliseconds, for what need not be exact.
    pub(crate) fn to_ms(self, ticks: u64) -> u64 {
        self.to_ns(ticks) / 1_000_000
    }

    /// A product, not a quotient: policies that measure are told the time at every poll. Exact to two ticks for years.
    #[inline]
    pub(crate) fn to_ns(self, ticks: u64) -> u64 {
        (ticks as f64 * (1e9 / self.ticks_hz.max(1) as f64)) as u64
    }

    /// As many ticks as have passed when so many nanoseconds have.
    pub(crate) fn to_ticks(self, ns: u64) -> u64 {
        (ns as f64 * (self.ticks_hz as f64 / 1e9)).ceil() as u64
    }
}
