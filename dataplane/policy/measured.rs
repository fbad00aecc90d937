//! What a dispatcher measures of its members: how long tasks take there, how long a round trip is beside
//! that, and how busy they are; and what a central queue concludes.

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
/// A round trip counts as this many times the mean at most: a host that stalled for a millisecond says nothing of what
/// a hand-over of two microseconds takes, and one that has grown is followed all the same.
const OUTLIER: f64 = 4.0;
/// What is left of the longest service after each window, unless there is a longer one.
const LONGEST_KEPT: f64 = 0.98;
/// A member's silence means nothing below this: hosts stall for so long.
pub(super) const SILENCE_LEAST_NS: f64 = 1e6;
/// Silence beyond which tasks are lost in any case, and as long as nothing is known.
pub(super) const SILENCE_MOST_NS: u64 = 1_000_000_000;

/// What answers tell one by one: a value of its own, which stays in registers over a run of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Notes {
    service_ns: f64,
    /// Of this window, as are the work and the replies.
    longest_ns: u32,
    work_ns: u64,
    replies: u64,
    round_trip_ns: f64,
}

impl Notes {
    /// A task took `service_ns`, and `elapsed_ns` from when it was sent if it was alone at its member.
    #[inline(always)]
    pub(super) fn note(&mut self, service_ns: u32, elapsed_ns: Option<u64>) {
        let service = f64::from(service_ns);
        follow(&mut self.service_ns, service, 1.0 / 1024.0);
        self.note_longest(service_ns);
        if let Some(elapsed) = elapsed_ns {
            let trip = (elapsed as f64 - service).max(0.0);
            let most = match self.round_trip_ns {
                0.0 => f64::INFINITY,
                mean => mean * OUTLIER,
            };
            follow(&mut self.round_trip_ns, trip.min(most), 1.0 / 64.0);
        }
        self.work_ns += u64::from(service_ns);
        self.replies += 1;
    }

    /// A task took `service_ns`, and nothing else is told.
    #[inline(always)]
    pub(super) fn note_longest(&mut self, service_ns: u32) {
        self.longest_ns = self.longest_ns.max(service_ns);
    }

    /// Replies of this window.
    #[inline(always)]
    pub(super) fn replies(&self) -> u64 {
        self.replies
    }
}

/// Means and extremes over all members.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) notes: Notes,
    /// Of some dozens of windows, but for this one.
    longest_ns: f64,
    utilisation: f64,
    window_start_ns: u64,
    looks: u32,
    /// Windows in a row in which members did about all that the bound lets them.
    full: u32,
}

impl Measured {
    /// The longest service of late.
    pub(super) fn longest_ns(&self) -> f64 {
        self.longest_ns.max(self.notes.longest_ns.into())
    }

    /// What a task takes beside its service.
    pub(super) fn round_trip_ns(&self) -> f64 {
        self.notes.round_trip_ns
    }

    /// Mean service time; `None` until a reply told one.
    pub(super) fn service_ns(&self) -> Option<f64> {
        let service_ns = self.notes.service_ns;
        (service_ns > 0.0).then_some(service_ns)
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
        self.longest_ns = self.longest_ns() * LONGEST_KEPT;
        self.looks = (self.looks + 1).min(LOOKS_MOST);
        self.window_start_ns = now_ns;
        self.notes = Notes { longest_ns: 0, work_ns: 0, replies: 0, ..self.notes };
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
        let trips = self.notes.round_trip_ns / self.notes.service_ns;
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
    /// round trips.
    pub(super) fn silence_ns(&self) -> u64 {
        if self.notes.service_ns == 0.0 {
            return SILENCE_MOST_NS;
        }
        let silence = 2.0 * self.longest_ns() + 8.0 * self.notes.round_trip_ns;
        silence.clamp(SILENCE_LEAST_NS, SILENCE_MOST_NS as f64) as u64
    }
}

/// Moves an exponentially weighted mean; the first value starts it.
fn follow(mean: &mut f64, value: f64, weight: f64) {
    *mean = if *mean == 0.0 { value } else { *mean + (value - *mean) * weight };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(round_trip_ns: f64, service_ns: f64, utilisation: f64) -> Measured {
        let notes = Notes { round_trip_ns, service_ns, ..Notes::default() };
        Measured { notes, utilisation, ..Measured::default() }
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
    fn a_stall_says_little_of_the_round_trip_and_a_longer_one_is_followed() {
        let mut measured = Measured::default();
        (0..200).for_each(|_| measured.notes.note(50_000, Some(52_000)));
        let before = measured.round_trip_ns();
        measured.notes.note(50_000, Some(10_050_000));
        assert!(measured.round_trip_ns() < 1.05 * before, "{}", measured.round_trip_ns());
        (0..500).for_each(|_| measured.notes.note(50_000, Some(150_000)));
        assert!((measured.round_trip_ns() - 100_000.0).abs() < 5_000.0);
    }

    #[test]
    fn silence_is_judged_by_the_longest_services() {
        let mut measured = Measured::default();
        assert_eq!(measured.silence_ns(), SILENCE_MOST_NS);
        measured.notes.note(50_000, Some(60_000));
        assert_eq!(measured.silence_ns(), 1_000_000);
        measured.notes.note(5_000_000, None);
        assert_eq!(measured.silence_ns(), 10_080_000);
        (0..500).for_each(|window| measured.look(window, 1, 1, 1));
        assert_eq!(measured.silence_ns(), 1_000_000);
        measured.notes.note(u32::MAX, None);
        assert_eq!(measured.silence_ns(), SILENCE_MOST_NS);
    }
}
