//! How much waits at a node: its own load, as heartbeats tell it.

/// A service time's weight in the moving mean of service times.
const SERVICE_SHARE: f64 = 1.0 / 64.0;
/// What is kept of the smoothed queue from one poll to the next.
const KEPT: f64 = 0.95;
/// A poll of the queue. Smoothing goes by time and not by how often somebody looks, so that all who drive a node see the same.
const POLL_NS: u64 = 1000;
/// Polls after which nothing is left of what was.
const POLLS: usize = 512;
/// Load is at most this, in microseconds: more is not believed of anybody.
pub const LOAD_MAX: f32 = 1e6;

/// A moving mean of service times, and the smoothed number of tasks that wait.
#[derive(Clone, Debug)]
pub struct OwnLoad {
    /// Slots of all workers.
    slots: f64,
    service_us: f64,
    waiting: u32,
    smoothed: f64,
    poll: u64,
    /// What is kept after so many polls.
    kept: Box<[f64]>,
}

impl OwnLoad {
    pub fn new(slots: u32) -> Self {
        let powers = std::iter::successors(Some(1.0), |kept| Some(kept * KEPT));
        Self {
            slots: f64::from(slots.max(1)),
            service_us: 0.0,
            waiting: 0,
            smoothed: 0.0,
            poll: 0,
            kept: powers.take(POLLS).collect(),
        }
    }

    /// Time passes.
    #[inline]
    pub fn advance(&mut self, now_ns: u64) {
        let poll = now_ns / POLL_NS;
        let passed = poll.saturating_sub(self.poll);
        if passed > 0 {
            let kept = self.kept.get(passed as usize).copied().unwrap_or(0.0);
            let waiting = f64::from(self.waiting);
            self.smoothed = waiting + (self.smoothed - waiting) * kept;
            self.poll = poll;
        }
    }

    /// So many tasks wait from now on.
    #[inline]
    pub fn set_waiting(&mut self, now_ns: u64, waiting: u32) {
        self.advance(now_ns);
        self.waiting = waiting;
    }

    /// A task was done, and took so long.
    #[inline]
    pub fn served(&mut self, service_ns: u64) {
        let us = service_ns as f64 / 1e3;
        self.service_us = match self.service_us {
            0.0 => us,
            mean => mean + SERVICE_SHARE * (us - mean),
        };
    }

    /// So many slots from now on.
    pub fn set_slots(&mut self, slots: u32) {
        self.slots = f64::from(slots.max(1));
    }

    /// Tasks that wait.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// The same, smoothed, as of the last time told.
    #[inline]
    pub fn smoothed(&self) -> f64 {
        self.smoothed
    }

    /// Work that waits, in microseconds for each slot.
    pub fn load(&self) -> f32 {
        ((self.smoothed * self.service_us / self.slots) as f32).min(LOAD_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_the_smoothed_queue_times_the_mean_service_time_over_the_slots() {
        let mut load = OwnLoad::new(4);
        load.set_waiting(0, 8);
        assert_eq!(load.smoothed(), 0.0, "no time has passed");
        load.advance(POLL_NS);
        assert!((load.smoothed() - 0.4).abs() < 1e-12);
        load.advance(2 * POLL_NS);
        assert!((load.smoothed() - (0.95 * 0.4 + 0.05 * 8.0)).abs() < 1e-12);
        load.advance(600 * POLL_NS);
        assert_eq!(load.smoothed(), 8.0);
        assert_eq!(load.load(), 0.0, "nothing was done yet");
        load.served(100_000);
        assert_eq!(load.load(), 8.0 * 100.0 / 4.0);
        load.served(164_000);
        assert_eq!(load.load(), 8.0 * 101.0 / 4.0);
        load.set_slots(8);
        assert_eq!(load.load(), 101.0);
    }

    #[test]
    fn looking_often_changes_nothing() {
        let (mut seldom, mut often) = (OwnLoad::new(1), OwnLoad::new(1));
        for (now, waiting) in [(0, 3), (7_300, 9), (7_900, 0), (40_001, 2)] {
            seldom.set_waiting(now, waiting);
            (0..now).step_by(100).for_each(|then| often.advance(then));
            often.set_waiting(now, waiting);
            assert!((seldom.smoothed() - often.smoothed()).abs() < 1e-12);
        }
    }

    #[test]
    fn it_is_never_more_than_others_believe() {
        let mut load = OwnLoad::new(1);
        load.set_waiting(0, u32::MAX);
        load.served(u64::from(u32::MAX));
        load.advance(1_000_000_000);
        assert_eq!(load.load(), LOAD_MAX);
    }
}
