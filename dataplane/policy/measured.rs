//! What a dispatcher measures of its members: how long tasks take there, how long a round trip is beside
//! that, and how busy they are; and what a central queue concludes.

use arrayvec::ArrayVec;

/// Share of the idle time that must remain for a bound to do.
const IDLE_SHARE_LEAST: f64 = 0.6;
/// Tasks of a member between two looks, on average; at first there are fewer, and each time twice as many.
const WINDOW_REPLIES: u64 = 64;
const FIRST_WINDOW_REPLIES: u64 = 4;
/// Most that the bound may become: beyond this, members hold as much as with any other policy.
const MOST: usize = 64;
/// Looks before utilisation counts: at first nothing is busy yet.
const LOOKS_UNUSED: u32 = 2;
/// Looks are counted up to here.
const LOOKS_MOST: u32 = 32;
/// Share of what a bound lets members do that they do, over so many windows in a row, when there is more to do.
const FULL: f64 = 0.98;
const FULL_WINDOWS: u32 = 3;
/// Answers that the mean service reaches back over.
const SERVICES: f64 = 1024.0;
/// Round trips that are measured in a window.
const TRIPS: u64 = 64;
/// Windows whose median is the round trip: a host that stalled for a millisecond says nothing of what a hand-over of two
/// microseconds takes, and one that has grown is followed all the same.
const TRIP_WINDOWS: usize = 5;
/// What is left of the longest service after each window, unless there is a longer one.
const LONGEST_KEPT: f64 = 0.98;
/// A member's silence means nothing below this: hosts stall for so long.
const SILENCE_LEAST_NS: f64 = 1e6;
/// Silence beyond which tasks are lost in any case, and as long as nothing is known.
pub(super) const SILENCE_MOST_NS: u64 = 1_000_000_000;

/// What the answers of a window tell: a value of its own, which stays in registers over a run of answers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Notes {
    longest_ns: u32,
    work_ns: u64,
    replies: u64,
    trips_ns: u64,
    trips: u64,
}

impl Notes {
    /// A task took `service_ns`, if that is told.
    #[inline(always)]
    pub(super) fn note(&mut self, service_ns: u32) {
        self.longest_ns = self.longest_ns.max(service_ns);
        self.work_ns += u64::from(service_ns);
        self.replies += u64::from(service_ns != 0);
    }

    /// This window has not seen as many round trips as it needs.
    #[inline(always)]
    pub(super) fn wants_trips(&self) -> bool {
        self.trips < TRIPS
    }

    /// It took `elapsed_ns` from when it was sent, which counts when it was alone at its member. Whether it was cannot
    /// be predicted.
    #[inline(always)]
    pub(super) fn note_trip(&mut self, service_ns: u32, elapsed_ns: u64, alone: bool) {
        let counts = u64::from(alone & (service_ns != 0));
        let trip_ns = elapsed_ns.saturating_sub(service_ns.into()).min(SILENCE_MOST_NS);
        self.trips_ns += trip_ns & counts.wrapping_neg();
        self.trips += counts;
    }

    /// The mean round trip, once there was one.
    fn round_trip_ns(&self) -> Option<f64> {
        (self.trips > 0).then(|| self.trips_ns as f64 / self.trips as f64)
    }

    /// Replies that told a service.
    #[inline(always)]
    pub(super) fn replies(&self) -> u64 {
        self.replies
    }
}

/// Means and extremes over all members.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) notes: Notes,
    round_trip_ns: f64,
    /// Of the last windows in which there were any.
    round_trips_ns: ArrayVec<f64, TRIP_WINDOWS>,
    service_ns: f64,
    /// Of some dozens of windows, but for this one.
    longest_ns: f64,
    utilisation: f64,
    window_start_ns: u64,
    looks: u32,
    /// Windows in a row in which members did about all that the bound lets them.
    full: u32,
}

impl Measured {
    fn longest_ns(&self) -> f64 {
        self.longest_ns.max(self.notes.longest_ns.into())
    }

    /// What a task takes beside its service, up to this window.
    pub(super) fn round_trip_ns(&self) -> f64 {
        self.round_trip_ns
    }

    /// After so many replies of `members` members by one of so many cores it is time for another look.
    pub(super) fn due(&self, members: usize, cores: usize) -> u64 {
        let each = (FIRST_WINDOW_REPLIES << self.looks).min(WINDOW_REPLIES);
        (each * members as u64).div_ceil(cores as u64)
    }

    /// Ends a window of replies of so many members under a bound; this core sees its share of them.
    pub(super) fn look(&mut self, now_ns: u64, members: usize, cores: usize, bound: usize) {
        let elapsed = now_ns.saturating_sub(self.window_start_ns) as f64;
        let capacity = elapsed * members as f64 / cores as f64;
        let utilisation = (self.notes.work_ns as f64 / capacity).min(1.0);
        self.see(utilisation, bound);
        self.note_service();
        self.note_round_trip();
        self.longest_ns = self.longest_ns() * LONGEST_KEPT;
        self.looks = (self.looks + 1).min(LOOKS_MOST);
        self.window_start_ns = now_ns;
        self.notes = Notes::default();
    }

    /// Of a window: it weighs by its answers in a mean that reaches back over some.
    fn note_service(&mut self) {
        let Notes { work_ns, replies: replies @ 1.., .. } = self.notes else { return };
        let mean = work_ns as f64 / replies as f64;
        let kept = (1.0 - 1.0 / SERVICES).powf(replies as f64);
        self.service_ns = match self.service_ns {
            0.0 => mean,
            before => before * kept + mean * (1.0 - kept),
        };
    }

    /// Of a window.
    fn note_round_trip(&mut self) {
        let Some(mean) = self.notes.round_trip_ns() else { return };
        if self.round_trips_ns.is_full() {
            self.round_trips_ns.remove(0);
        }
        self.round_trips_ns.push(mean);
        let mut sorted = self.round_trips_ns.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        self.round_trip_ns = sorted[(sorted.len() - 1) / 2];
    }

    /// Utilisation counts by now.
    pub(super) fn is_known(&self) -> bool {
        self.looks > LOOKS_UNUSED
    }

    /// Takes the utilisation of a window.
    fn see(&mut self, utilisation: f64, bound: usize) {
        if self.looks < LOOKS_UNUSED {
            return;
        }
        let weight = f64::from(1 + self.looks - LOOKS_UNUSED).recip().max(1.0 / 16.0);
        self.utilisation += (utilisation - self.utilisation) * weight;
        let most = 1.0 - self.idle_share(bound);
        self.full = if utilisation > FULL * most { self.full + 1 } else { 0 };
        if self.full >= FULL_WINDOWS {
            // How much more there is to do shows only under a greater bound.
            self.utilisation = self.utilisation.max(1.0 - (1.0 - most) / 4.0);
            self.full = 0;
        }
    }

    /// The share of time that a member idles under a bound though tasks wait.
    fn idle_share(&self, bound: usize) -> f64 {
        let trips = self.round_trip_ns / self.service_ns;
        (1..=bound).fold(1.0, |idle, places| trips * idle / (places as f64 + trips * idle))
    }

    /// The least bound that leaves members as much idle time as they have, but for a small part.
    ///
    /// While tasks wait, the k places of a member are tasks that it has or round trips under way, and it
    /// idles while all are round trips: a share B(R/S, k) of the time, which is Erlang's loss of k lines (for
    /// exponential services; round trips may be of any kind). So it can be busy for 1 - B of the time.
    pub(super) fn bound(&self) -> usize {
        let enough = |bound: &usize| {
            let idle_left = 1.0 - self.utilisation / (1.0 - self.idle_share(*bound));
            idle_left >= IDLE_SHARE_LEAST * (1.0 - self.utilisation)
        };
        (1..MOST).find(enough).unwrap_or(MOST)
    }

    /// Silence after which what a member has is lost: it takes twice the longest service of late, and some
    /// round trips, as they were or are in this window.
    pub(super) fn silence_ns(&self) -> u64 {
        if self.longest_ns() == 0.0 {
            return SILENCE_MOST_NS;
        }
        let round_trip_ns = self.round_trip_ns.max(self.notes.round_trip_ns().unwrap_or(0.0));
        let silence = 2.0 * self.longest_ns() + 8.0 * round_trip_ns;
        silence.clamp(SILENCE_LEAST_NS, SILENCE_MOST_NS as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(round_trip_ns: f64, service_ns: f64, utilisation: f64) -> Measured {
        Measured { round_trip_ns, service_ns, utilisation, ..Measured::default() }
    }

    /// An answer, of a task that was alone or not.
    fn note(measured: &mut Measured, service_ns: u32, elapsed_ns: u64, alone: bool) {
        measured.notes.note(service_ns);
        measured.notes.note_trip(service_ns, elapsed_ns, alone);
    }

    /// A window of answers of tasks that were alone; how long the round trip is after it.
    fn window(measured: &mut Measured, replies: u32, service_ns: u32, elapsed_ns: u64) -> f64 {
        (0..replies).for_each(|_| note(measured, service_ns, elapsed_ns, true));
        measured.look(1, 1, 1, 1);
        measured.round_trip_ns()
    }

    #[test]
    fn the_bound_hides_the_round_trip() {
        // Round trip, service, utilisation, and the least bound with which members keep 0.6 of their idle time.
        for (round_trip, service, utilisation, bound) in [
            (0.0, 100.0, 0.95, 1),
            (2.0, 50.0, 0.9, 1), // a hand-over
            (10.0, 100.0, 0.95, 2),
            (10.0, 1850.0, 0.95, 1),
            (40.0, 100.0, 0.95, 3),
            (100.0, 100.0, 0.9, 4),
            (100.0, 100.0, 0.5, 2),
            (2000.0, 100.0, 0.9, 26),
            (1e6, 1.0, 0.9, MOST),
        ] {
            let found = measured(round_trip, service, utilisation).bound();
            assert_eq!(found, bound, "{round_trip} {service} {utilisation}");
        }
    }

    #[test]
    fn too_small_a_bound_shows_as_utilisation_and_mends_itself() {
        // Members that could do more are seen busy for as long as their bound lets them, window after window.
        let mut measured = measured(200.0, 100.0, 0.3);
        measured.looks = LOOKS_MOST;
        let mut bound = measured.bound();
        assert_eq!(bound, 2);
        for _ in 0..12 {
            measured.see(0.95_f64.min(1.0 - measured.idle_share(bound)), bound);
            bound = measured.bound();
        }
        assert!(bound >= 5 && measured.idle_share(bound) < 0.05, "{bound}");
        // It is not judged by a few busy windows.
        (0..20).for_each(|_| measured.see(0.3, bound));
        (0..2).for_each(|_| measured.see(0.99, 64));
        assert!(measured.utilisation < 0.6);
    }

    #[test]
    fn a_stall_says_nothing_of_the_round_trip_and_a_longer_one_is_followed() {
        let mut measured = Measured::default();
        // The first window is all there is; what began with a stall is forgotten with the third.
        assert_eq!(window(&mut measured, 200, 50_000, 90_000), 40_000.0);
        assert_eq!(window(&mut measured, 200, 50_000, 52_000), 2_000.0);
        assert_eq!(window(&mut measured, 200, 50_000, 52_000), 2_000.0);
        note(&mut measured, 50_000, 10_050_000, true);
        assert_eq!(window(&mut measured, 199, 50_000, 52_000), 2_000.0);
        // What was not alone, or does not tell its service, says nothing.
        note(&mut measured, 50_000, 70_000, false);
        note(&mut measured, 0, 70_000, true);
        assert_eq!(window(&mut measured, 0, 0, 0), 2_000.0);
        assert_eq!(window(&mut measured, 200, 50_000, 52_000), 2_000.0);
        // That of the stalled window lies between before and after.
        for round_trip_ns in [2_000.0, 51_990.0, 100_000.0, 100_000.0] {
            assert_eq!(window(&mut measured, 200, 50_000, 150_000), round_trip_ns);
        }
    }

    #[test]
    fn the_mean_service_reaches_back_over_some_windows() {
        let mut measured = Measured::default();
        for (replies, service_ns, mean) in [
            (4, 1000, 1000.0),
            (1024, 3000, 2264.2), // 1000 by 1/e
            (4096, 3000, 2986.5), // by 1/e to the fifth
            (1, 0, 2986.5),       // a worker that does not tell
        ] {
            window(&mut measured, replies, service_ns, 0);
            assert!((measured.service_ns - mean).abs() < 1.0, "{}", measured.service_ns);
        }
    }

    #[test]
    fn silence_is_judged_by_the_longest_services() {
        let mut measured = Measured::default();
        assert_eq!(measured.silence_ns(), SILENCE_MOST_NS);
        note(&mut measured, 50_000, 60_000, true);
        assert_eq!(measured.silence_ns(), 1_000_000);
        note(&mut measured, 5_000_000, 0, false);
        assert_eq!(measured.silence_ns(), 10_080_000);
        (0..500).for_each(|window| measured.look(window, 1, 1, 1));
        assert_eq!(measured.silence_ns(), 1_000_000);
        // A round trip that has grown counts before its window ends.
        let mut far = Measured::default();
        window(&mut far, 100, 50_000, 350_000);
        assert_eq!(far.silence_ns(), 2 * 49_000 + 8 * 300_000);
        (0..9).for_each(|_| note(&mut far, 50_000, 9_000_000, true));
        assert_eq!(far.silence_ns(), 2 * 50_000 + 8 * 8_950_000);
        note(&mut measured, u32::MAX, 0, false);
        assert_eq!(measured.silence_ns(), SILENCE_MOST_NS);
    }
}
