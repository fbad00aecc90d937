//! Measurements of a pool's members: service time, round trip besides the service, and utilisation. A central
//! queue derives two values from them: the bound on a member's tasks, and the silence after which a member's
//! tasks count as lost. Utilisation is measured over windows of a number of replies.
//!
//! Means move with each reply. Means of whole windows, and their median, were tried: they cost a few ns less. With
//! delays of 50 to 100 us and many dispatchers, the bound then rose too late after a start. The backlog of the first
//! milliseconds stayed.

/// Minimum fraction of the spare capacity (1 - utilisation) that a bound must preserve.
const IDLE_SHARE_LEAST: f64 = 0.6;
/// Mean number of replies of a member in a window.
const WINDOW_REPLIES: u64 = 64;
/// Mean number of replies of a member in the first window. Each further window has twice the length of the last one, up
/// to [`WINDOW_REPLIES`].
const FIRST_WINDOW_REPLIES: u64 = 4;
/// Maximum bound. Beyond this, members hold as many tasks as under other policies.
const MOST: usize = 64;
/// Number of windows before utilisation counts: at first nothing is busy yet.
const WINDOWS_UNUSED: u32 = 2;
/// Maximum of the window counter.
const WINDOWS_MOST: u32 = 32;
/// Fraction of the utilisation possible under a bound. Members that exceed it in [`FULL_WINDOWS`] consecutive
/// windows have more work to do than the bound lets them.
const FULL: f64 = 0.98;
/// Number of such windows.
const FULL_WINDOWS: u32 = 3;
/// Maximum of a measured round trip, as a multiple of the mean; longer ones are cut to it. A stall of a host for a
/// millisecond then hardly changes the mean, and the mean still follows a lasting change.
const OUTLIER: f64 = 4.0;
/// Fraction of the longest service time that remains after each window: an old maximum fades out.
const LONGEST_KEPT: f64 = 0.98;
/// Minimum silence that counts: hosts stall for this long.
pub(super) const SILENCE_LEAST_NS: f64 = 1e6;
/// Silence after which tasks are lost, unless a longer one is configured; also the value without measurements.
pub(super) const SILENCE_MOST_NS: u64 = 1_000_000_000;

/// Values measured from each reply. A separate value, so that it stays in registers over a run of replies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyNotes {
    /// Moving mean of service times; 0 before the first.
    service_ns: f64,
    /// Longest service time in this window.
    longest_ns: u32,
    /// Sum of the service times in this window.
    work_ns: u64,
    /// Number of replies in this window.
    replies: u64,
    /// Moving mean of round trips besides the service; 0 before the first.
    round_trip_ns: f64,
}

impl ReplyNotes {
    /// Records a task of `service_ns`. For a task alone at its member, `trip_ns` is the time since its sending,
    /// without its service.
    #[inline(always)]
    pub(super) fn note(&mut self, service_ns: u32, trip_ns: Option<u64>) {
        let service = f64::from(service_ns);
        // The means follow about the last 1024 service times and the last 64 round trips.
        update_mean(&mut self.service_ns, service, 1.0 / 1024.0);
        self.note_longest(service_ns);
        if let Some(trip_ns) = trip_ns {
            let trip = trip_ns as f64;
            let most = match self.round_trip_ns {
                0.0 => f64::INFINITY, // the first measurement
                mean => mean * OUTLIER,
            };
            update_mean(&mut self.round_trip_ns, trip.min(most), 1.0 / 64.0);
        }
        self.work_ns += u64::from(service_ns);
        self.replies += 1;
    }

    /// Raises the longest service time only. With a fixed bound, most replies take this cheaper path: only the maximum
    /// needs all of them.
    #[inline(always)]
    pub(super) fn note_longest(&mut self, service_ns: u32) {
        self.longest_ns = self.longest_ns.max(service_ns);
    }

    /// Returns the number of replies in this window.
    #[inline(always)]
    pub(super) fn replies(&self) -> u64 {
        self.replies
    }
}

/// Statistics over all members of a pool, from the replies that one core receives.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberStatistics {
    /// Values of this window. A policy works on a copy during a run of replies.
    pub(super) notes: ReplyNotes,
    /// Longest service time before this window, reduced to [`LONGEST_KEPT`] of it by each window since.
    longest_ns: f64,
    /// Mean fraction of time that members work. Valid only if each reply is measured, as under an adaptive bound.
    utilisation: f64,
    /// Start of this window.
    window_start_ns: u64,
    /// Number of finished windows, at most [`WINDOWS_MOST`].
    windows: u32,
    /// Number of consecutive windows in which members did nearly all work possible under the bound.
    full: u32,
}

impl MemberStatistics {
    /// Returns the longest recent service time.
    pub(super) fn longest_ns(&self) -> f64 {
        self.longest_ns.max(self.notes.longest_ns.into())
    }

    /// Returns the mean time of a task besides its service.
    pub(super) fn round_trip_ns(&self) -> f64 {
        self.notes.round_trip_ns
    }

    /// Returns the mean service time; `None` before the first reply that carries one.
    pub(super) fn service_ns(&self) -> Option<f64> {
        let service_ns = self.notes.service_ns;
        (service_ns > 0.0).then_some(service_ns)
    }

    /// Returns the number of replies after which one of `cores` cores ends the current window. It receives its share
    /// of the replies of `members` members. Without members no window ends: it would have no utilisation.
    pub(super) fn window_replies(&self, members: usize, cores: usize) -> u64 {
        if members == 0 {
            return u64::MAX;
        }
        let per_member = (FIRST_WINDOW_REPLIES << self.windows).min(WINDOW_REPLIES);
        (per_member * members as u64).div_ceil(cores as u64)
    }

    /// Ends a window and begins the next one: updates the mean utilisation and the longest service time. `bound` was in
    /// force during the window. This core received its share (1 / `cores`) of the replies of `members` members.
    pub(super) fn end_window(&mut self, now_ns: u64, members: usize, cores: usize, bound: usize) {
        let elapsed = now_ns.saturating_sub(self.window_start_ns) as f64;
        // Work in nanoseconds that busy members would have reported to this core.
        let capacity = elapsed * members as f64 / cores as f64;
        let utilisation = (self.notes.work_ns as f64 / capacity).min(1.0);
        self.note_utilisation(utilisation, bound);
        self.longest_ns = self.longest_ns() * LONGEST_KEPT;
        self.windows = (self.windows + 1).min(WINDOWS_MOST);
        self.window_start_ns = now_ns;
        self.notes = ReplyNotes { longest_ns: 0, work_ns: 0, replies: 0, ..self.notes };
    }

    /// Returns true after enough windows for a valid utilisation, and so for a valid [`Self::bound`].
    pub(super) fn is_warm(&self) -> bool {
        self.windows > WINDOWS_UNUSED
    }

    /// Updates the mean utilisation with that of a window. Raises it if several windows in a row reached the
    /// utilisation possible under the bound.
    fn note_utilisation(&mut self, utilisation: f64, bound: usize) {
        if self.windows < WINDOWS_UNUSED {
            return;
        }
        // The plain mean of the first 16 windows, then a moving one.
        let weight = f64::from(1 + self.windows - WINDOWS_UNUSED).recip().max(1.0 / 16.0);
        self.utilisation += (utilisation - self.utilisation) * weight;
        let most = 1.0 - self.idle_share(bound); // utilisation that the bound allows
        self.full = if utilisation > FULL * most { self.full + 1 } else { 0 };
        if self.full >= FULL_WINDOWS {
            // Only a greater bound can show the amount of further work. Assumes meanwhile a quarter of the idle
            // time under this bound.
            self.utilisation = self.utilisation.max(1.0 - (1.0 - most) / 4.0);
            self.full = 0;
        }
    }

    /// Returns the fraction of time that a member idles under a bound although tasks wait: Erlang's B, see
    /// [`Self::bound`], by its recursion over the number of places.
    fn idle_share(&self, bound: usize) -> f64 {
        let trips = self.notes.round_trip_ns / self.notes.service_ns; // R/S
        (1..=bound).fold(1.0, |idle, places| trips * idle / (places as f64 + trips * idle))
    }

    /// Returns the smallest bound that preserves [`IDLE_SHARE_LEAST`] of the members' spare capacity.
    ///
    /// While tasks wait, each of a member's k places holds a task or a round trip. The member idles while all
    /// are round trips. This takes a fraction B(R/S, k) of the time, by Erlang's loss formula for k lines
    /// (for exponential service times and round trips of any kind). So the member can be busy for 1 - B of
    /// the time.
    pub(super) fn bound(&self) -> usize {
        let suffices = |bound: &usize| {
            let idle_left = 1.0 - self.utilisation / (1.0 - self.idle_share(*bound));
            idle_left >= IDLE_SHARE_LEAST * (1.0 - self.utilisation)
        };
        (1..MOST).find(suffices).unwrap_or(MOST)
    }

    /// Returns the silence after which a member's tasks are lost: twice the longest recent service time, plus
    /// some round trips.
    pub(super) fn silence_ns(&self) -> u64 {
        if self.notes.service_ns == 0.0 {
            return SILENCE_MOST_NS;
        }
        let silence_ns = 2.0 * self.longest_ns() + 8.0 * self.notes.round_trip_ns;
        silence_ns.clamp(SILENCE_LEAST_NS, SILENCE_MOST_NS as f64) as u64
    }
}

/// Updates an exponentially weighted mean; the first value initializes it.
fn update_mean(mean: &mut f64, value: f64, weight: f64) {
    *mean = if *mean == 0.0 { value } else { *mean + (value - *mean) * weight };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates statistics with these means.
    fn measured(round_trip_ns: f64, service_ns: f64, utilisation: f64) -> MemberStatistics {
        let notes = ReplyNotes { round_trip_ns, service_ns, ..ReplyNotes::default() };
        MemberStatistics { notes, utilisation, ..MemberStatistics::default() }
    }

    // promise: scheduling.3
    #[test]
    fn the_bound_hides_the_round_trip() {
        // Round trip, service time, utilisation, and the smallest bound that preserves 0.6 of the spare capacity.
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

    // promise: scheduling.3
    #[test]
    fn low_bound_lowers_utilisation_and_recovers() {
        // Members with more work are busy for all the time that their bound allows, in each window.
        let mut measured = measured(200.0, 100.0, 0.3);
        measured.windows = WINDOWS_MOST;
        let mut bound = measured.bound();
        assert_eq!(bound, 2);
        for _ in 0..12 {
            measured.note_utilisation(0.95_f64.min(1.0 - measured.idle_share(bound)), bound);
            bound = measured.bound();
        }
        assert!(bound >= 5 && measured.idle_share(bound) < 0.05, "{bound}");
        // A few busy windows do not change the estimate much.
        (0..20).for_each(|_| measured.note_utilisation(0.3, bound));
        (0..2).for_each(|_| measured.note_utilisation(0.99, 64));
        assert!(measured.utilisation < 0.6);
    }

    // promise: scheduling.3
    #[test]
    fn short_stalls_are_ignored_long_ones_followed() {
        let mut measured = MemberStatistics::default();
        (0..200).for_each(|_| measured.notes.note(50_000, Some(2_000)));
        let before = measured.round_trip_ns();
        // Limited to 4 times the mean, with weight 1/64: raises the mean by less than 5%.
        measured.notes.note(50_000, Some(10_000_000));
        assert!(measured.round_trip_ns() < 1.05 * before, "{}", measured.round_trip_ns());
        (0..500).for_each(|_| measured.notes.note(50_000, Some(100_000)));
        assert!((measured.round_trip_ns() - 100_000.0).abs() < 5_000.0);
    }

    #[test]
    fn no_window_ends_without_members() {
        let measured = MemberStatistics::default();
        assert_eq!(measured.window_replies(0, 2), u64::MAX);
        assert_eq!(measured.window_replies(3, 2), 6);
    }

    #[test]
    fn silence_is_judged_by_the_longest_services() {
        // Twice the longest service time plus 8 round trips of 10 us, at least 1 ms and at most 1 s.
        let mut measured = MemberStatistics::default();
        assert_eq!(measured.silence_ns(), SILENCE_MOST_NS);
        measured.notes.note(50_000, Some(10_000));
        assert_eq!(measured.silence_ns(), 1_000_000);
        measured.notes.note(5_000_000, None);
        assert_eq!(measured.silence_ns(), 10_080_000);
        (0..500).for_each(|window| measured.end_window(window, 1, 1, 1));
        assert_eq!(measured.silence_ns(), 1_000_000);
        measured.notes.note(u32::MAX, None);
        assert_eq!(measured.silence_ns(), SILENCE_MOST_NS);
    }
}
