//! Lost tasks of a central queue's members: how long a member with tasks may be silent, and what a member's report denies.
//!
//! Both are judged between bursts, so that replies and tasks pay nothing. Each check compares a member's counts with those of the
//! check before.

use super::measured::{Measured, SILENCE_LEAST_NS, SILENCE_MOST_NS};

/// Weight of one task in the share of lost tasks.
const SHARE_WEIGHT: f64 = 1.0 / 32.0;
/// Share of lost tasks from which on loss explains a member's silence better than a stall does.
const LOSSY: f64 = 1.0 / 16.0;
/// A member stalls if its silences in a row are less likely than this by loss alone.
const UNLIKELY: f64 = 1e-3;
/// Patience in mean services, where many tasks are lost.
const MEANS: f64 = 4.0;
/// Patience is `1 + UNSURE / replies` times as long while few replies are known.
const UNSURE: f64 = 16.0;
/// Weight of one silence in the mean.
const MEAN_WEIGHT: f64 = 1.0 / 64.0;
/// Part of the longest silence that remains after a window of replies.
const LONGEST_KEPT: f64 = 0.98;
/// Replies of a window, for each member.
const WINDOW_REPLIES: u64 = 64;
/// Write-offs in a row that double the patience, at most: a pool whose members all lost several tasks in a row must find out soon.
const DOUBLINGS_MOST: u32 = 5;

/// Silences of members with tasks that ended with a reply, and the share of lost tasks, over all members.
#[derive(Clone, Debug, Default)]
pub(super) struct Silences {
    longest_ns: f64,
    mean_ns: f64,
    replies: u64,
    /// Replies of this window.
    window: u64,
    lost_share: f64,
}

/// Limits for one check of all members.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// A member that is silent for longer lost its tasks.
    pub silence_ns: u64,
    /// Upper bound of the time from a task's sending to a report that counts it. `None`: reports tell nothing.
    pub trip_ns: Option<u64>,
    /// Write-offs of a member in a row that loss explains, so that they do not double the patience.
    pub explained: u32,
    /// Tasks that a member's reports may deny until it was idle.
    pub denials: u32,
    /// Dispatcher cores of the node.
    pub cores: usize,
}

impl Patience {
    /// Silence after so many write-offs in a row: twice as long for each that loss does not explain, since a stalled member must
    /// not collect tasks.
    fn after(self, losses: u32) -> u64 {
        let doublings = losses.saturating_sub(self.explained).min(DOUBLINGS_MOST);
        let patience_ns = self.silence_ns.saturating_mul(1 << doublings);
        patience_ns.min(SILENCE_MOST_NS.max(self.silence_ns))
    }
}

impl Silences {
    /// A member of `members` gave `replies` replies after it had been silent for so long.
    fn end(&mut self, silent_ns: u64, replies: u32, members: usize) {
        let silent = silent_ns as f64;
        self.longest_ns = self.longest_ns.max(silent);
        let weight = MEAN_WEIGHT.max(1.0 / (self.replies + 1) as f64);
        self.mean_ns += (silent - self.mean_ns) * weight;
        self.replies += u64::from(replies);
        self.window += u64::from(replies);
        if self.window >= WINDOW_REPLIES * members as u64 {
            (self.window, self.longest_ns) = (0, self.longest_ns * LONGEST_KEPT);
        }
    }

    fn answered(&mut self, tasks: u32) {
        self.lost_share *= (1.0 - SHARE_WEIGHT).powi(tasks.min(1 << 10).cast_signed());
    }

    fn lost(&mut self, tasks: u32) {
        let kept = (1.0 - SHARE_WEIGHT).powi(tasks.min(1 << 10).cast_signed());
        self.lost_share = 1.0 - (1.0 - self.lost_share) * kept;
    }

    /// Silence beyond which a member lost its tasks, for one of `cores` cores.
    ///
    /// Where one core sees all tasks and replies, service times tell it if replies carry them. One of several cores can't tell a
    /// round trip from another core's lost task, so it goes by the silences as well.
    pub fn patience_ns(&self, measured: &Measured, cores: usize) -> u64 {
        let (cautious, mean) = match measured.service_ns() {
            Some(service) if cores == 1 => {
                (measured.silence_ns() as f64, service + 2.0 * measured.round_trip_ns())
            }
            Some(service) => {
                let longest = 2.0 * measured.longest_ns();
                (longest.max(self.cautious_ns()), service.max(self.mean_ns))
            }
            None => (self.cautious_ns(), self.mean_ns),
        };
        let patience = if self.lost_share > LOSSY { cautious.min(MEANS * mean) } else { cautious };
        patience.clamp(SILENCE_LEAST_NS, SILENCE_MOST_NS as f64) as u64
    }

    /// Upper bound of a round trip, for one of `cores` cores.
    pub fn trip_ns(&self, measured: &Measured, cores: usize) -> u64 {
        let trip = match measured.service_ns() {
            Some(_) if cores == 1 => 8.0 * measured.round_trip_ns(),
            _ => self.cautious_ns(),
        };
        trip.clamp(SILENCE_LEAST_NS, SILENCE_MOST_NS as f64) as u64
    }

    fn cautious_ns(&self) -> f64 {
        if self.replies == 0 {
            return SILENCE_MOST_NS as f64;
        }
        (2.0 * self.longest_ns).max(SILENCE_LEAST_NS) * (1.0 + UNSURE / self.replies as f64)
    }

    /// See [`Patience::explained`].
    pub fn explained(&self) -> u32 {
        if self.lost_share > LOSSY { (UNLIKELY.ln() / self.lost_share.ln()) as u32 } else { 0 }
    }
}

/// Counts of a member at one moment, over all cores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub now_ns: u64,
    /// Reports so far, modulo 2^32. Read before `outstanding`: a reply between the two then makes fewer tasks seem lost, not more.
    pub reports: u32,
    pub outstanding: u32,
    /// Reports to this core, modulo 2^32.
    pub own_reports: u32,
    /// More tasks were answered than sent: some that were written off had not been lost.
    pub is_surplus: bool,
    /// When this core last had a reply, or sent a task to the idle member.
    pub touched_ns: u64,
}

/// Tasks that had left for a member at some time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at_ns: u64,
    /// Tasks sent until then: reports and outstanding tasks.
    sent: u32,
    /// Reports when a round trip had passed. A later report counts all tasks of the mark that are there.
    ripe: Option<u32>,
}

/// A member's counts at the last check.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watched {
    reports: u32,
    own_reports: u32,
    outstanding: u32,
    silent_ns: u64,
    /// Write-offs since it last reported.
    losses: u32,
    /// Tasks written off since it last reported.
    written_off: u32,
    /// Tasks that its reports denied since it was last idle.
    denied: u32,
    mark: Option<Mark>,
}

impl Watched {
    /// Its counts changed by something that is neither a task nor a reply.
    pub fn recounted(&mut self) {
        self.mark = None;
    }

    /// It reported to this core without a reply.
    pub fn reported(&mut self) {
        self.reports = self.reports.wrapping_add(1);
        self.own_reports = self.own_reports.wrapping_add(1);
    }

    /// Nothing came or went since the last check.
    pub fn is_quiet(&self, counts: &Counts) -> bool {
        (self.reports, self.outstanding) == (counts.reports, counts.outstanding)
    }

    /// Takes the counts of a check. `believed` is the most that the member can have by its reports, `reported` the longest queue
    /// in them. Returns the tasks that are lost; the caller writes them off if it looks after the member (`is_ours`).
    pub fn check(
        &mut self,
        counts: Counts,
        (reported, believed): (u32, u32),
        patience: Patience,
        (silences, members): (&mut Silences, usize),
        is_ours: bool,
    ) -> u32 {
        let answers = counts.reports.wrapping_sub(self.reports);
        if answers != 0 {
            // A lost task would lengthen the silence up to the next task's reply. Other cores' beliefs are too old to exclude it.
            let is_alone = patience.cores == 1;
            let counts_agree = is_alone && believed >= counts.outstanding;
            // After half the patience the tasks of another core's member may have been written off.
            let is_known = is_ours || self.silent_ns <= patience.silence_ns / 2;
            let own_answers = counts.own_reports.wrapping_sub(self.own_reports);
            if (counts.outstanding == 0 || counts_agree)
                && is_known
                && own_answers > 0
                && patience.trip_ns.is_some()
            {
                silences.end(self.silent_ns, own_answers, members);
            }
            if is_ours {
                // A member that answers or reports more than it was sent was slow: it still had the tasks.
                let was_slow = counts.is_surplus || is_alone && believed > counts.outstanding;
                silences.answered(if was_slow { answers.saturating_mul(2) } else { answers });
                silences.lost(if was_slow { 0 } else { self.written_off });
            }
            (self.losses, self.written_off) = (0, 0);
        }
        let before_ns = std::mem::take(&mut self.silent_ns);
        (self.reports, self.own_reports) = (counts.reports, counts.own_reports);
        self.outstanding = counts.outstanding;
        let quiet_ns = counts.now_ns.saturating_sub(counts.touched_ns);
        if counts.outstanding == 0 {
            if quiet_ns > patience.silence_ns {
                self.denied = 0;
            }
            self.mark = None;
            return 0;
        }
        self.silent_ns = quiet_ns;
        if !is_ours {
            return 0;
        }
        let patience_ns = patience.after(self.losses);
        // Silent at two checks: after a stall of its own the core has not yet taken the replies that wait.
        if quiet_ns > patience_ns && before_ns > patience_ns / 2 {
            self.losses = self.losses.saturating_add(1);
            self.written_off = self.written_off.saturating_add(counts.outstanding);
            return self.write_off(counts.outstanding);
        }
        let Some(trip_ns) = patience.trip_ns else { return 0 };
        let lost = self.denied_now(counts, reported, trip_ns);
        if lost == 0 || self.denied + lost > patience.denials {
            return 0;
        }
        self.denied += lost;
        silences.lost(lost);
        self.write_off(lost)
    }

    fn write_off(&mut self, lost: u32) -> u32 {
        (self.mark, self.silent_ns) = (None, 0);
        self.outstanding -= lost;
        lost
    }

    /// Tasks that were sent a round trip before a report and that the report does not count.
    fn denied_now(&mut self, counts: Counts, reported: u32, trip_ns: u64) -> u32 {
        let Counts { now_ns, reports, outstanding, .. } = counts;
        let sent = reports.wrapping_add(outstanding);
        let fresh = Mark { at_ns: now_ns, sent, ripe: None };
        let mark = self.mark.get_or_insert(fresh);
        let since = sent.wrapping_sub(mark.sent);
        if since >= outstanding {
            // All may be on their way.
            *mark = fresh;
            return 0;
        }
        match mark.ripe {
            None if now_ns.saturating_sub(mark.at_ns) >= trip_ns => mark.ripe = Some(reports),
            Some(ripe) if ripe != reports => {
                *mark = fresh;
                return (outstanding - since).saturating_sub(reported);
            }
            _ => {}
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PATIENCE: Patience =
        Patience { silence_ns: 100 * MS, trip_ns: Some(MS), explained: 0, denials: 4, cores: 1 };

    fn counts(now_ns: u64, reports: u32, outstanding: u32) -> Counts {
        Counts {
            now_ns,
            reports,
            outstanding,
            own_reports: reports,
            is_surplus: false,
            touched_ns: now_ns,
        }
    }

    fn check(watched: &mut Watched, counts: Counts, reported: u32) -> u32 {
        let mut silences = Silences::default();
        watched.check(counts, (reported, reported), PATIENCE, (&mut silences, 1), true)
    }

    #[test]
    fn report_denies_only_tasks_sent_before_the_trip() {
        let mut watched = Watched::default();
        assert_eq!(check(&mut watched, counts(0, 0, 2), 0), 0);
        // A reply within the trip proves nothing: the other task may not have arrived.
        assert_eq!(check(&mut watched, counts(MS / 2, 1, 1), 0), 0);
        assert_eq!(check(&mut watched, counts(MS, 1, 1), 0), 0);
        // One more task is sent and answered: the report of an empty queue comes a trip after the first.
        assert_eq!(check(&mut watched, counts(2 * MS, 1, 2), 0), 0);
        assert_eq!(check(&mut watched, counts(3 * MS, 2, 1), 0), 0, "it may be the second task");
        assert_eq!(check(&mut watched, counts(5 * MS, 2, 1), 0), 0);
        assert_eq!(check(&mut watched, counts(6 * MS, 3, 1), 0), 0, "as may this one");
    }

    #[test]
    fn empty_queue_denies_what_is_left() {
        let mut watched = Watched::default();
        check(&mut watched, counts(0, 0, 3), 0);
        check(&mut watched, counts(MS, 0, 3), 0);
        assert_eq!(check(&mut watched, counts(2 * MS, 1, 2), 0), 2);
    }

    #[test]
    fn queue_that_a_report_counts_is_not_lost() {
        let mut watched = Watched::default();
        check(&mut watched, counts(0, 0, 4), 0);
        check(&mut watched, counts(MS, 0, 4), 0);
        assert_eq!(check(&mut watched, counts(2 * MS, 1, 3), 2), 1);
    }

    #[test]
    fn denials_end_at_their_bound_until_the_member_is_idle() {
        let mut watched = Watched::default();
        let mut deny = |from_ms: u64, reports: u32| {
            check(&mut watched, counts(from_ms * MS, reports, 4), 0);
            check(&mut watched, counts((from_ms + 1) * MS, reports, 4), 0);
            check(&mut watched, counts((from_ms + 2) * MS, reports + 1, 3), 0)
        };
        assert_eq!((deny(0, 0), deny(10, 9)), (3, 0));
        let idle = Counts { touched_ns: 0, ..counts(500 * MS, 20, 0) };
        check(&mut watched, idle, 0);
        let mut deny = |from_ms: u64, reports: u32| {
            check(&mut watched, counts(from_ms * MS, reports, 4), 0);
            check(&mut watched, counts((from_ms + 1) * MS, reports, 4), 0);
            check(&mut watched, counts((from_ms + 2) * MS, reports + 1, 3), 0)
        };
        assert_eq!(deny(600, 30), 3);
    }

    #[test]
    fn loss_that_is_known_does_not_double_patience() {
        let mut silences = Silences::default();
        assert_eq!(silences.explained(), 0);
        for _ in 0..100 {
            silences.answered(1);
            silences.lost(3);
        }
        assert!((15..60).contains(&silences.explained()), "{}", silences.explained());
        let patience = Patience { explained: silences.explained(), ..PATIENCE };
        assert_eq!(patience.after(10), PATIENCE.silence_ns);
        assert_eq!(PATIENCE.after(2), 4 * PATIENCE.silence_ns);
        (0..200).for_each(|_| silences.answered(1));
        assert_eq!(silences.explained(), 0);
    }

    #[test]
    fn silences_tell_the_patience_where_no_service_is_known() {
        let (mut silences, measured) = (Silences::default(), Measured::default());
        assert_eq!(silences.patience_ns(&measured, 1), SILENCE_MOST_NS);
        silences.end(10_000, 1, 1);
        assert_eq!(silences.patience_ns(&measured, 1), 17 * MS);
        (0..1000).for_each(|_| silences.end(10_000, 1, 1));
        assert!(silences.patience_ns(&measured, 1) < 11 * MS / 10);
        (0..100).for_each(|_| silences.end(3 * MS, 1, 1));
        assert!(silences.patience_ns(&measured, 1) > 6 * MS);
    }
}
