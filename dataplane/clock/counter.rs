//! Real time: the processor's counter.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{Clock, ClockError, Progress};
use crate::io::dpdk::Eal;

impl Clock for Eal {
    fn ticks_hz(&self) -> u64 {
        Self::ticks_hz(self)
    }

    #[inline(always)]
    fn next(&mut self, stop: &AtomicBool) -> Option<u64> {
        if stop.load(Relaxed) { None } else { Some(self.now()) }
    }

    #[inline(always)]
    fn polled(&mut self, _: impl FnOnce() -> Progress) {}

    fn drain(&mut self, quiet: Duration, longest: Duration, mut is_busy: impl FnMut(u64) -> bool) {
        let hz = u128::from(Self::ticks_hz(self));
        let ticks = |time: Duration| (time.as_nanos() * hz / 1_000_000_000) as u64;
        let end = self.now() + ticks(longest);
        let mut quiet_at = self.now() + ticks(quiet);
        loop {
            let now = self.now();
            if is_busy(now) {
                quiet_at = now + ticks(quiet);
            }
            if now >= end || now >= quiet_at {
                break;
            }
        }
    }

    fn ended(&self) -> Result<(), ClockError> {
        Ok(())
    }
}
