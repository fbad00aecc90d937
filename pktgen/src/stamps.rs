//! When packets came, by their device or the kernel: whose clock is compared with the generator's.
//!
//! A device stamps by a counter of its own, of which nobody says how fast it is. So both clocks are read together, again and again: how fast
//! the one is by the other follows from the first such look and the last, which are ever further apart, and a stamp is told from the last,
//! which is never long ago. A look that was interrupted is known by how long it took, and not used.
//!
//! The kernel stamps by its time of day, which may be set while it runs. So both clocks are read after each burst, and a clock that is
//! not where it should be by its rate was set: which of the two times a packet has that came about then can't be told, and stamps are not
//! believed until no such packet can come any more.

use std::time::{SystemTime, UNIX_EPOCH};

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
/// How far apart looks are from which a rate is told.
const RATE_S: f64 = 0.02;
/// The kernel's clock is made faster or slower by less than such a part, to correct it: what is more was set.
const SLEW: f64 = 1e-3;
/// Looks at the kernel's clock for one that is not interrupted.
const TRIES: usize = 4;

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
    /// Answers whose time is the device's or the kernel's.
    pub stamped: u64,
    /// Answers without a stamp, or with one that can't be: their time is that of the poll that saw them.
    pub unstamped: u64,
    /// Ticks a second of the device's clock, as found; 0 when none was. Of the kernel's, its units.
    pub device_hz: f64,
    /// What a stamp is a multiple of.
    pub resolution_ns: f64,
    /// By so much a stamp may be off: half of what the shortest look at both clocks took (of the kernel's, the longest that is used), and
    /// the resolution.
    pub uncertainty_ns: f64,
    /// How long after its stamp the poll began that saw an answer, on average; negative where answers come while a poll goes on.
    pub mean_wait_ns: f64,
    /// How often the kernel's clock was set meanwhile.
    pub clock_steps: u64,
}

impl StampStats {
    /// Those of several cores.
    pub fn merge(&mut self, other: &Self) {
        let waited = |one: &Self| one.mean_wait_ns * one.stamped as f64;
        let waited = waited(self) + waited(other);
        self.stamped += other.stamped;
        self.mean_wait_ns = waited / self.stamped.max(1) as f64;
        self.unstamped += other.unstamped;
        self.device_hz = self.device_hz.max(other.device_hz);
        self.resolution_ns = self.resolution_ns.max(other.resolution_ns);
        self.uncertainty_ns = self.uncertainty_ns.max(other.uncertainty_ns);
        // Every core sees the same steps, if it hears anything meanwhile.
        self.clock_steps = self.clock_steps.max(other.clock_steps);
    }

    /// Part of the answers whose time is a stamp.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.stamped as f64 / (self.stamped + self.unstamped).max(1) as f64
    }
}

/// A clock that may be set while it runs.
#[derive(Clone, Copy, Debug)]
struct Settable {
    /// Stamps count by so many of the clock's units, as which it is read.
    unit: u64,
    /// How often it was set.
    steps: u64,
    /// Stamps are not believed before this, since the clock was set.
    doubted_until: u64,
    /// Nor now, since every look at the clock was interrupted.
    is_unknown: bool,
}

/// One core's look at the clock that its packets are stamped by.
pub struct Stamps {
    /// None in tests of the clocks alone.
    field: Option<StampField>,
    look: Box<dyn FnMut() -> Option<Look> + Send>,
    /// Of the kernel's clock alone.
    settable: Option<Settable>,
    hz: f64,
    first: Anchor,
    last: Anchor,
    /// Ticks of ours for one of the device's.
    rate: f64,
    next_look: u64,
    shortest: u64,
    stamped: u64,
    unstamped: u64,
    /// Ticks from stamps to the polls that saw their packets.
    waited: i64,
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

    /// Stamps in this field by the kernel's time of day, in units of `unit_ns` nanoseconds; `now` is our clock, of `hz` ticks a second.
    /// None when the time of day stands still.
    pub fn of_kernel(
        field: StampField,
        unit_ns: u32,
        hz: f64,
        now: impl Fn() -> u64 + Send + 'static,
    ) -> Option<Self> {
        let look = move || {
            let before = now();
            let time = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
            Some((before, u64::try_from(time.as_nanos()).ok()?, now()))
        };
        let stamps = Self::with(hz, look)?.set_by_the_kernel(unit_ns);
        Some(Self { field: Some(field), ..stamps })
    }

    /// The clock that is looked at counts nanoseconds and may be set; stamps are in units of so many.
    fn set_by_the_kernel(self, unit_ns: u32) -> Self {
        let unit = u64::from(unit_ns);
        let settable = Settable { unit, steps: 0, doubted_until: 0, is_unknown: false };
        Self { settable: Some(settable), ..self }
    }

    /// Without a field in which there are any.
    fn with(hz: f64, mut look: impl FnMut() -> Option<Look> + Send + 'static) -> Option<Self> {
        let mut narrowest = || {
            let looks = std::iter::repeat_with(&mut look).take(TRIES);
            looks.flatten().map(Anchor::of).min_by_key(|one| one.width)
        };
        let first = narrowest()?;
        let mut last = first;
        while (last.ticks.saturating_sub(first.ticks) as f64) < hz * RATE_S {
            last = narrowest()?;
        }
        let rate = rate(first, last)?;
        Some(Self {
            field: None,
            look: Box::new(look),
            settable: None,
            hz,
            first,
            last,
            rate,
            next_look: 0,
            shortest: first.width.min(last.width).max(1),
            stamped: 0,
            unstamped: 0,
            waited: 0,
        })
    }

    /// Looks at both clocks again if it is time for that: at each burst, where the other one may be set.
    #[inline]
    pub fn tend(&mut self, now: u64) {
        if let Some(settable) = self.settable {
            self.settable = Some(self.look_for_steps(settable));
        } else if now >= self.next_look {
            self.look_again(now);
        }
    }

    #[cold]
    fn look_for_steps(&mut self, settable: Settable) -> Settable {
        let looks = std::iter::repeat_with(&mut self.look).take(TRIES);
        let narrow = SLOW * self.shortest;
        let found = looks.flatten().map(Anchor::of).find(|one| one.width <= narrow);
        let Some(found) = found else { return Settable { is_unknown: true, ..settable } };
        let settable = Settable { is_unknown: false, ..settable };
        self.shortest = self.shortest.min(found.width.max(1));
        let off = self.off(found);
        let last = std::mem::replace(&mut self.last, found);
        let elapsed = found.ticks.saturating_sub(last.ticks) as f64;
        let looks_off = (last.width + found.width) as f64 / 2.0;
        if off.abs() > elapsed * SLEW + looks_off + 2.0 * self.rate {
            self.first = found;
            let doubted_until = found.ticks + (self.hz * FAR_S) as u64;
            return Settable { steps: settable.steps + 1, doubted_until, ..settable };
        }
        if found.ticks.saturating_sub(self.first.ticks) as f64 >= self.hz * RATE_S {
            self.rate = rate(self.first, found).unwrap_or(self.rate);
        }
        settable
    }

    /// By how many of our ticks the other clock is further than by its last look and its rate.
    fn off(&self, found: Anchor) -> f64 {
        let device = found.device.wrapping_sub(self.last.device).cast_signed();
        device as f64 * self.rate - found.ticks.wrapping_sub(self.last.ticks).cast_signed() as f64
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

    /// When a packet came that was seen at `now`: by its stamp, else then.
    #[inline]
    pub fn time_of<B: Buf>(&mut self, packet: &B, now: u64) -> u64 {
        let stamp = self.field.and_then(|field| packet.stamp(field));
        let time = stamp.and_then(|stamp| match self.settable {
            Some(settable) => self.ticks_of_kernel(settable, stamp),
            None => self.ticks(stamp, now),
        });
        match time {
            Some(time) => {
                self.stamped += 1;
                self.waited += now.wrapping_sub(time).cast_signed();
            }
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

    /// The same of a clock that may be set. It was read after the packet had come, which may have been after the poll began.
    fn ticks_of_kernel(&self, settable: Settable, stamp: u64) -> Option<u64> {
        let is_doubted = settable.is_unknown || self.last.ticks < settable.doubted_until;
        let stamp = stamp.checked_mul(settable.unit)?;
        if is_doubted { None } else { self.ticks(stamp, self.last.ticks) }
    }

    /// What the stamps were so far.
    #[must_use]
    pub fn stats(&self) -> StampStats {
        let tick_ns = 1e9 / self.hz;
        let (unit, longest) = self.settable.map_or((1, 1), |one| (one.unit, SLOW));
        let resolution = self.rate * unit as f64;
        StampStats {
            stamped: self.stamped,
            unstamped: self.unstamped,
            device_hz: self.hz / resolution,
            resolution_ns: resolution * tick_ns,
            uncertainty_ns: ((self.shortest * longest) as f64 / 2.0 + resolution) * tick_ns,
            mean_wait_ns: self.waited as f64 / self.stamped.max(1) as f64 * tick_ns,
            clock_steps: self.settable.map_or(0, |one| one.steps),
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

    /// The time of day, which is set now and then; ours counts nanoseconds.
    #[derive(Default)]
    struct TimeOfDay {
        ours: AtomicU64,
        ahead: AtomicU64,
        look_ns: AtomicU64,
    }

    impl TimeOfDay {
        fn at(&self, ours: u64) -> u64 {
            1_700_000_000_000_000_000 + self.ahead.load(Relaxed) + ours
        }

        fn stamps() -> (Stamps, Arc<Self>) {
            let day = Arc::new(Self::default());
            day.ahead.store(5_000_000_000, Relaxed);
            day.look_ns.store(100, Relaxed);
            let of = Arc::clone(&day);
            let look = move || {
                let took = of.look_ns.load(Relaxed);
                let before = of.ours.fetch_add(1_000 + took, Relaxed);
                Some((before, of.at(before + took / 2), before + took))
            };
            let stamps = Stamps::with(1e9, look).unwrap().set_by_the_kernel(1000);
            (stamps, day)
        }

        /// What is told of a packet that came `ago` ns before a burst is looked at, and when it came; it is stamped by `by`.
        fn burst(&self, stamps: &mut Stamps, ago: u64, by: u64) -> (Option<u64>, u64) {
            let now = self.ours.fetch_add(300_000, Relaxed) + 300_000;
            stamps.tend(now);
            let settable = stamps.settable.unwrap();
            (stamps.ticks_of_kernel(settable, (by - ago) / 1000), now - ago)
        }

        fn next_burst(&self, stamps: &mut Stamps, ago: u64) -> (Option<u64>, u64) {
            let by = self.at(self.ours.load(Relaxed) + 300_000);
            self.burst(stamps, ago, by)
        }
    }

    #[test]
    fn the_kernels_stamps_are_told_to_their_resolution() {
        let (mut stamps, day) = TimeOfDay::stamps();
        for step in 0..2000_u64 {
            // Slewed by half a thousandth, as the kernel does to correct it.
            day.ahead.fetch_add(150, Relaxed);
            let (told, came) = day.next_burst(&mut stamps, step * 37 % 900_000);
            let told = told.unwrap();
            assert!(told <= came + 600 && came <= told + 1_600, "{told} {came}");
        }
        let stats = stamps.stats();
        assert_eq!(stats.clock_steps, 0);
        assert!((stats.resolution_ns / 1e3 - 1.0).abs() < 1e-2, "{stats:?}");
        assert!((1_100.0..1_300.0).contains(&stats.uncertainty_ns), "{stats:?}");
    }

    #[test]
    fn a_step_of_the_time_of_day_is_noticed_and_told() {
        for ahead in [5_003_000_000, 4_997_000_000, 9_000_000_000] {
            let (mut stamps, day) = TimeOfDay::stamps();
            assert!(day.next_burst(&mut stamps, 9_000).0.is_some());
            let before = day.at(day.ours.load(Relaxed) + 300_000);
            day.ahead.store(ahead, Relaxed);
            assert_eq!(day.burst(&mut stamps, 9_000, before).0, None, "stamped before the step");
            assert_eq!(day.next_burst(&mut stamps, 9_000).0, None, "who knows");
            day.ours.fetch_add(100_000_000, Relaxed);
            let (told, came) = day.next_burst(&mut stamps, 9_000);
            assert!(told.unwrap().abs_diff(came) < 2_000, "{told:?} {came}");
            assert_eq!(stamps.stats().clock_steps, 1);
        }
    }

    #[test]
    fn while_every_look_is_interrupted_no_stamp_is_believed() {
        let (mut stamps, day) = TimeOfDay::stamps();
        day.look_ns.store(50_000, Relaxed);
        assert_eq!(day.next_burst(&mut stamps, 9_000).0, None);
        day.look_ns.store(120, Relaxed);
        assert!(day.next_burst(&mut stamps, 9_000).0.is_some());
        assert_eq!(stamps.stats().clock_steps, 0);
    }

    #[test]
    fn a_clock_that_stands_still_or_is_not_told_is_none() {
        let now = AtomicU64::new(START);
        let still = move || Some((now.fetch_add(1_000_000, Relaxed), 5, START));
        assert!(Stamps::with(1e9, still).is_none());
        assert!(Stamps::with(1e9, || None).is_none());
    }
}
