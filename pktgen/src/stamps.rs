//! When packets came, by their device: its clock against the generator's.
//!
//! A device stamps by a counter of its own, of which nobody says how fast it is. So both clocks are read together, again and again: how fast
//! the one is by the other follows from the first such look and the last, which are ever further apart, and a stamp is told from the last,
//! which is never long ago. A look that was interrupted is known by how long it took, and not used.

use serde::{Deserialize, Serialize};
use wedjat::io::{Buf, StampField};

/// A look at both clocks: the generator's before, the device's, and the generator's after.
pub type Look = (u64, u64, u64);

/// Between two looks: so long is a stamp told from the last one.
const LOOK_S: f64 = 0.001;
/// Looks that take so many times as long as the shortest are not used, unless none has been for long.
const SLOW: u64 = 4;
/// For so many looks.
const PATIENCE: f64 = 50.0;
/// A stamp that is further from the time at which its packet was seen is not believed.
const FAR_S: f64 = 0.1;

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    ticks: u64,
    device: u64,
    /// Ticks that the look took.
    width: u64,
}

impl Anchor {
    fn of((before, device, after): Look) -> Self {
        let width = after.saturating_sub(before);
        Self { ticks: before + width / 2, device, width }
    }
}

/// What the stamps of a run were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StampStats {
    /// Answers whose time is the device's.
    pub stamped: u64,
    /// Answers without a stamp, or with one that can't be: their time is that of the poll that saw them.
    pub unstamped: u64,
    /// Ticks a second of the device's clock, as found; 0 when none was.
    pub device_hz: f64,
    /// By so much a stamp may be off: half of what the shortest look at both clocks took, and a tick of the device's.
    pub uncertainty_ns: f64,
}

impl StampStats {
    /// Those of several cores.
    pub fn merge(&mut self, other: &Self) {
        self.stamped += other.stamped;
        self.unstamped += other.unstamped;
        self.device_hz = self.device_hz.max(other.device_hz);
        self.uncertainty_ns = self.uncertainty_ns.max(other.uncertainty_ns);
    }
}

/// One core's clock of a device.
pub struct Stamps {
    /// None in tests of the clocks alone.
    field: Option<StampField>,
    look: Box<dyn FnMut() -> Option<Look> + Send>,
    hz: f64,
    first: Anchor,
    last: Anchor,
    /// Ticks of ours for one of the device's.
    rate: f64,
    next_look: u64,
    shortest: u64,
    stamped: u64,
    unstamped: u64,
}

impl std::fmt::Debug for Stamps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stamps").field("last", &self.last).finish_non_exhaustive()
    }
}

impl Stamps {
    /// Stamps in this field, of a device whose clock and ours, of `hz` ticks a second, `look` reads. Looks twice, some milliseconds apart;
    /// none when the device's clock can't be read or stands still.
    pub fn new(
        field: StampField,
        hz: f64,
        look: impl FnMut() -> Option<Look> + Send + 'static,
    ) -> Option<Self> {
        Some(Self { field: Some(field), ..Self::with(hz, look)? })
    }

    /// Without a field in which there are any.
    fn with(hz: f64, mut look: impl FnMut() -> Option<Look> + Send + 'static) -> Option<Self> {
        let first = Anchor::of(look()?);
        let mut last = first;
        while (last.ticks.saturating_sub(first.ticks) as f64) < hz * 0.02 {
            last = Anchor::of(look()?);
        }
        let rate = rate(first, last)?;
        Some(Self {
            field: None,
            look: Box::new(look),
            hz,
            first,
            last,
            rate,
            next_look: 0,
            shortest: first.width.min(last.width).max(1),
            stamped: 0,
            unstamped: 0,
        })
    }

    /// Looks at both clocks again if it is time for that.
    #[inline]
    pub fn tend(&mut self, now: u64) {
        if now >= self.next_look {
            self.look_again(now);
        }
    }

    #[cold]
    fn look_again(&mut self, now: u64) {
        self.next_look = now + (self.hz * LOOK_S) as u64;
        let Some(look) = (self.look)() else { return };
        let found = Anchor::of(look);
        let is_late =
            found.ticks.saturating_sub(self.last.ticks) as f64 > self.hz * LOOK_S * PATIENCE;
        if found.width > SLOW * self.shortest && !is_late {
            return;
        }
        self.shortest = self.shortest.min(found.width.max(1));
        if let Some(rate) = rate(self.first, found) {
            (self.last, self.rate) = (found, rate);
        }
    }

    /// When a packet came that was seen at `now`: by its device, else then.
    #[inline]
    pub fn time_of<B: Buf>(&mut self, packet: &B, now: u64) -> u64 {
        let stamp = self.field.and_then(|field| packet.stamp(field));
        let time = stamp.and_then(|stamp| self.ticks(stamp, now));
        match time {
            Some(_) => self.stamped += 1,
            None => self.unstamped += 1,
        }
        time.unwrap_or(now)
    }

    /// The time of a stamp in our ticks; none of one that is not from shortly before `now`.
    fn ticks(&self, stamp: u64, now: u64) -> Option<u64> {
        let since = stamp.wrapping_sub(self.last.device).cast_signed() as f64 * self.rate;
        let ago = now.wrapping_sub(self.last.ticks).cast_signed() as f64 - since;
        // A little later than now is within what both clocks are known to.
        let slack = self.shortest as f64 * SLOW as f64;
        (-slack..self.hz * FAR_S).contains(&ago).then(|| now - (ago.max(0.0) as u64).min(now))
    }

    /// What the stamps were so far.
    #[must_use]
    pub fn stats(&self) -> StampStats {
        let tick_ns = 1e9 / self.hz;
        StampStats {
            stamped: self.stamped,
            unstamped: self.unstamped,
            device_hz: self.hz / self.rate,
            uncertainty_ns: (self.shortest as f64 / 2.0 + self.rate) * tick_ns,
        }
    }
}

/// Ticks of ours for one of the device's; none of a clock that stands still or goes back.
fn rate(first: Anchor, last: Anchor) -> Option<f64> {
    let device = last.device.wrapping_sub(first.device).cast_signed();
    (device > 0).then(|| (last.ticks - first.ticks) as f64 / device as f64)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    /// Our clock counts nanoseconds, and the device's ticks of `tick` ns, from somewhere else; some looks are interrupted.
    struct Clocks(Arc<AtomicU64>);

    const START: u64 = 1_000_000_000;
    const FROM: u64 = u64::MAX - 12_345; // goes around

    fn device(ns: u64, tick: f64) -> u64 {
        FROM.wrapping_add_signed((ns.wrapping_sub(START).cast_signed() as f64 / tick) as i64)
    }

    impl Clocks {
        fn look(&self, tick: f64) -> impl FnMut() -> Option<Look> + Send + 'static {
            let (now, mut looks) = (Arc::clone(&self.0), 0);
            move || {
                looks += 1;
                let before = now.fetch_add(300_000, Relaxed);
                // The device is read early in an interrupted look.
                let long = if looks % 3 == 0 { 80_000 } else { 0 };
                Some((before, device(before + 400, tick), before + 800 + long))
            }
        }
    }

    fn stamps(tick: f64) -> (Stamps, Clocks) {
        let clocks = Clocks(Arc::new(AtomicU64::new(START)));
        let stamps = Stamps::with(1e9, clocks.look(tick)).unwrap();
        (stamps, clocks)
    }

    #[test]
    fn stamps_are_told_in_our_time_whatever_the_device_counts() {
        for tick in [1.0, 6.4, 0.4, 3.000_3] {
            let (mut stamps, clocks) = stamps(tick);
            for step in 1..2000 {
                let now = clocks.0.fetch_add(1_000_000, Relaxed) + 1_000_000;
                stamps.tend(now);
                let now = clocks.0.load(Relaxed);
                let came = now - step * 7 % 500_000;
                let told = stamps.ticks(device(came, tick), now).unwrap();
                assert!(told.abs_diff(came) < 20, "{tick}: {told} {came}");
            }
            let found = stamps.stats();
            assert!((found.device_hz * tick / 1e9 - 1.0).abs() < 1e-6, "{found:?}");
            assert!((400.0..420.0).contains(&found.uncertainty_ns), "{found:?}");
        }
    }

    #[test]
    fn stamps_that_can_not_be_are_not_believed() {
        let (stamps, clocks) = stamps(1.0);
        let now = clocks.0.load(Relaxed);
        assert_eq!(stamps.ticks(device(now - 200_000_000, 1.0), now), None, "long ago");
        assert_eq!(stamps.ticks(device(now + 1_000_000, 1.0), now), None, "in the future");
        assert_eq!(stamps.ticks(device(now + 100, 1.0), now), Some(now), "as good as now");
        assert_eq!(stamps.ticks(1 << 62, now), None);
    }

    #[test]
    fn a_clock_that_stands_still_or_is_not_told_is_none() {
        let now = AtomicU64::new(START);
        let still = move || Some((now.fetch_add(1_000_000, Relaxed), 5, START));
        assert!(Stamps::with(1e9, still).is_none());
        assert!(Stamps::with(1e9, || None).is_none());
    }
}
