//! Detection of lost tasks for central queues: by the silence of a member with tasks, and by reports that do
//! not count them.
//!
//! Both checks run between bursts, so that replies and tasks pay nothing. Each check compares a member's
//! counts with those of the last check. A *trip* is a round trip: from a task's sending to a report that could
//! count it. A report *denies* a task if it does not count the task, although the task was sent a trip before. The
//! *silence limit* is the silence after which a member's tasks count as lost. To *write off* a task is to subtract it
//! from the member's outstanding tasks.
//!
//! [`SilenceChecks`] is the policy's interface. It has a [`SilenceWatch`] for each member and one [`SilenceTracker`]
//! for all.

use super::measured::{MemberStatistics, SILENCE_LEAST_NS, SILENCE_MOST_NS};
use super::{Caller, Core, Reports};
use crate::state::{Member, View};

/// Weight of one task in the share of lost tasks: the share follows about the last 32 tasks.
const SHARE_WEIGHT: f64 = 1.0 / 32.0;
/// Share of lost tasks above which loss is a likelier cause of a silence than a stall.
const LOSSY: f64 = 1.0 / 16.0;
/// Probability of a member's consecutive silences by loss alone below which it must have stalled.
const UNLIKELY: f64 = 1e-3;
/// Maximum silence limit while many tasks are lost, as a multiple of the mean time of a task or silence.
const MEANS: f64 = 4.0;
/// Factor of the silence limit while few replies are known: `1 + UNSURE / replies`, which is 17 after the first reply
/// and 2 after the sixteenth.
const UNSURE: f64 = 16.0;
/// Weight of one silence in the mean.
const MEAN_WEIGHT: f64 = 1.0 / 64.0;
/// Fraction of the longest silence that remains after a window of replies; it halves in 34 windows.
const LONGEST_KEPT: f64 = 0.98;
/// Number of replies in a window, for each member.
const WINDOW_REPLIES: u64 = 64;
/// Maximum number of consecutive write-offs that double the silence limit. Even after many losses in a row, a pool thus
/// detects the next loss soon.
const DOUBLINGS_MOST: u32 = 5;
/// Maximum interval between checks for silent members, unless [`REMOTE_NS`] asks for a longer one.
const CHECK_MOST_NS: u64 = 1_000_000;
/// Part of the minimum interval between checks, for each member and remote core. A check reads the member's counts of all cores: about
/// 0.4 cache lines a core, or 20 ns. So checks take some 2% of a core's time at most.
const REMOTE_NS: u64 = 1_000;

/// Silences of members with tasks that ended with a reply, and the share of lost tasks, over all members.
#[derive(Clone, Debug, Default)]
pub(super) struct SilenceTracker {
    /// Longest recent silence; multiplied by [`LONGEST_KEPT`] after each window.
    longest_ns: f64,
    /// Mean of the recent silences.
    mean_ns: f64,
    /// Number of replies so far.
    replies: u64,
    /// Number of replies since the last window ended.
    window: u64,
    /// Share of lost tasks among the recent ones, as an exponentially weighted mean.
    lost_share: f64,
}

/// Limits for one check of all members.
#[derive(Clone, Copy, Debug)]
pub(super) struct SilenceLimits {
    /// Silence after which a member's tasks are lost.
    pub silence_ns: u64,
    /// Maximum time from a task's sending to a report that counts it. `None` if replies carry no reports, or no task
    /// can be lost: then reports deny no task, and the policy learns no silences.
    pub trip_ns: Option<u64>,
    /// Number of consecutive write-offs of a member that loss explains. They do not double the silence limit.
    pub explained: u32,
    /// Maximum number of tasks that a member's reports may deny before it has been idle for a silence limit.
    pub denials: u32,
    /// Dispatcher cores of the node.
    pub cores: usize,
}

impl SilenceLimits {
    /// Returns the silence limit after `losses` consecutive write-offs. It doubles with each one not explained by
    /// loss, because a stalled member must not collect tasks.
    fn after(self, losses: u32) -> u64 {
        let doublings = losses.saturating_sub(self.explained).min(DOUBLINGS_MOST);
        let silence_limit_ns = self.silence_ns.saturating_mul(1 << doublings);
        silence_limit_ns.min(SILENCE_MOST_NS.max(self.silence_ns))
    }
}

impl SilenceTracker {
    /// Records the end of a silence: one of `members` members sent `replies` replies after `silent_ns` without one.
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

    /// Records `tasks` answered tasks. More than 1024 at once count as 1024: these already outweigh the past.
    fn add_answered(&mut self, tasks: u32) {
        self.lost_share *= (1.0 - SHARE_WEIGHT).powi(tasks.min(1 << 10).cast_signed());
    }

    /// Records `tasks` lost tasks, like [`Self::add_answered`].
    fn add_lost(&mut self, tasks: u32) {
        let past_weight = (1.0 - SHARE_WEIGHT).powi(tasks.min(1 << 10).cast_signed());
        self.lost_share = 1.0 - (1.0 - self.lost_share) * past_weight;
    }

    /// Returns the silence after which a member's tasks are lost, for one of `cores` cores.
    ///
    /// A single core sees all tasks and replies, so service times suffice if replies carry them. One of
    /// several cores cannot distinguish a round trip from another core's lost task, so it also uses the
    /// silences.
    pub fn silence_limit_ns(&self, measured: &MemberStatistics, cores: usize) -> u64 {
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
        let limits = if self.lost_share > LOSSY { cautious.min(MEANS * mean) } else { cautious };
        limits.clamp(SILENCE_LEAST_NS, SILENCE_MOST_NS as f64) as u64
    }

    /// Returns an upper bound of a round trip, for one of `cores` cores.
    pub fn trip_ns(&self, measured: &MemberStatistics, cores: usize) -> u64 {
        let trip = match measured.service_ns() {
            // Eight mean round trips: an upper bound, not an estimate.
            Some(_) if cores == 1 => 8.0 * measured.round_trip_ns(),
            _ => self.cautious_ns(),
        };
        trip.clamp(SILENCE_LEAST_NS, SILENCE_MOST_NS as f64) as u64
    }

    /// Returns twice the longest silence, increased while few replies are known.
    fn cautious_ns(&self) -> f64 {
        if self.replies == 0 {
            return SILENCE_MOST_NS as f64;
        }
        (2.0 * self.longest_ns).max(SILENCE_LEAST_NS) * (1.0 + UNSURE / self.replies as f64)
    }

    /// Returns [`SilenceLimits::explained`]. Each silence by loss alone has probability `lost_share`; this many in a
    /// row have probability [`UNLIKELY`].
    pub fn explained(&self) -> u32 {
        if self.lost_share > LOSSY { (UNLIKELY.ln() / self.lost_share.ln()) as u32 } else { 0 }
    }
}

/// Counts of a member at one moment, over all cores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// The moment.
    pub now_ns: u64,
    /// Number of reports, modulo 2^32. Read before `outstanding`: a reply between the two reads then makes
    /// fewer tasks seem lost, not more.
    pub reports: u32,
    /// Number of tasks sent and not answered.
    pub outstanding: u32,
    /// Number of reports to this core, modulo 2^32.
    pub own_reports: u32,
    /// True if the number of answered tasks exceeds the sent ones: some written-off tasks had not been lost.
    pub is_surplus: bool,
    /// Start of the member's silence, from the policy: last reply to this core, first task to the idle member, or last
    /// check that found changed counts. The time of other cores' tasks and replies is unknown.
    pub touched_ns: u64,
}

/// Number of tasks sent to a member until one moment. A report a trip later must count those that are not answered.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The moment.
    at_ns: u64,
    /// Tasks sent until then: reports plus outstanding tasks. Reports without a reply count, too.
    sent: u32,
    /// Number of reports one round trip after the mark. A later report counts all tasks of the mark that
    /// arrived.
    ripe: Option<u32>,
}

/// Counts of a member at the last check.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SilenceWatch {
    /// Value of [`Counts::reports`].
    reports: u32,
    /// Value of [`Counts::own_reports`].
    own_reports: u32,
    /// Value of [`Counts::outstanding`].
    outstanding: u32,
    /// Silence at the last check; 0 if the member had no task or was written off.
    silent_ns: u64,
    /// Write-offs for silence since its last reply.
    losses: u32,
    /// Tasks written off for silence since its last reply.
    written_off: u32,
    /// Tasks denied by its reports since it was last idle for a silence limit.
    denied: u32,
    /// Mark of the tasks for which the next denial is sought.
    mark: Option<Mark>,
}

impl SilenceWatch {
    /// Handles a write-off or correction of the member's counts by the dispatcher. Drops the mark: its number of sent
    /// tasks is wrong then.
    pub fn recounted(&mut self) {
        self.mark = None;
    }

    /// Counts a report to this core without a reply, so that the next check does not count it as a reply.
    pub fn reported(&mut self) {
        self.reports = self.reports.wrapping_add(1);
        self.own_reports = self.own_reports.wrapping_add(1);
    }

    /// Returns true if the counts are those of the last check: no task, reply or report to another core came.
    pub fn is_quiet(&self, counts: &Counts) -> bool {
        (self.reports, self.outstanding) == (counts.reports, counts.outstanding)
    }

    /// Processes the counts of a check. `reported` is the longest queue in the member's reports, and
    /// `estimated` the largest number of tasks that these allow. Returns the number of lost tasks, for the
    /// caller to write off; 0 unless this core looks after the member (`is_ours`).
    ///
    /// There are three steps: after a reply, learn from the silence that it ended; write off all tasks of a member
    /// that has been silent for too long; write off tasks that a report denies.
    pub fn check(
        &mut self,
        counts: Counts,
        (reported, estimated): (u32, u32),
        limits: SilenceLimits,
        (silences, members): (&mut SilenceTracker, usize),
        is_ours: bool,
    ) -> u32 {
        let answers = counts.reports.wrapping_sub(self.reports); // replies since the last check
        if answers != 0 {
            // A lost task lengthens a silence up to the next task's reply, so the check learns only from silences
            // without a lost task. No task is lost if none is outstanding, or if the reports allow for all outstanding
            // ones. With several cores the reports are too old to show that.
            let is_alone = limits.cores == 1;
            let counts_agree = is_alone && estimated >= counts.outstanding;
            // After half the silence limit, another core that looks after the member may have written off its
            // tasks.
            let is_known = is_ours || self.silent_ns <= limits.silence_ns / 2;
            let own_answers = counts.own_reports.wrapping_sub(self.own_reports); // replies to this core
            if (counts.outstanding == 0 || counts_agree)
                && is_known
                && own_answers > 0
                && limits.trip_ns.is_some()
            {
                silences.end(self.silent_ns, own_answers, members);
            }
            if is_ours {
                // A member with more answered or reported tasks than sent ones was slow: it still had tasks that were
                // written off. Its answers count twice, so that the share of lost tasks falls sooner.
                let was_slow = counts.is_surplus || is_alone && estimated > counts.outstanding;
                silences.add_answered(if was_slow { answers.saturating_mul(2) } else { answers });
                silences.add_lost(if was_slow { 0 } else { self.written_off });
            }
            (self.losses, self.written_off) = (0, 0);
        }
        let previous_silent_ns = std::mem::take(&mut self.silent_ns);
        (self.reports, self.own_reports) = (counts.reports, counts.own_reports);
        self.outstanding = counts.outstanding;
        let quiet_ns = counts.now_ns.saturating_sub(counts.touched_ns);
        if counts.outstanding == 0 {
            // An idle member may be denied tasks again.
            if quiet_ns > limits.silence_ns {
                self.denied = 0;
            }
            self.mark = None;
            return 0;
        }
        self.silent_ns = quiet_ns;
        if !is_ours {
            return 0;
        }
        let silence_limit_ns = limits.after(self.losses);
        // The member must be silent at two checks: after a stall of this core, replies may still wait in its device.
        if quiet_ns > silence_limit_ns && previous_silent_ns > silence_limit_ns / 2 {
            self.losses = self.losses.saturating_add(1);
            self.written_off = self.written_off.saturating_add(counts.outstanding);
            return self.write_off(counts.outstanding);
        }
        let Some(trip_ns) = limits.trip_ns else { return 0 };
        // The bound protects a member whose reports never count some of its tasks: it would seem to lose all of these.
        let lost = self.denied_now(counts, reported, trip_ns);
        if lost == 0 || self.denied + lost > limits.denials {
            return 0;
        }
        self.denied += lost;
        silences.add_lost(lost);
        self.write_off(lost)
    }

    /// Updates the counts for `lost` tasks, which the caller writes off, and returns their number.
    fn write_off(&mut self, lost: u32) -> u32 {
        (self.mark, self.silent_ns) = (None, 0);
        self.outstanding -= lost;
        lost
    }

    /// Returns the number of tasks sent a round trip before a report that does not count them. The first call
    /// marks the tasks sent so far. After a trip the mark is ripe; the next report then settles it.
    fn denied_now(&mut self, counts: Counts, reported: u32, trip_ns: u64) -> u32 {
        let Counts { now_ns, reports, outstanding, .. } = counts;
        // Each reply is one report. Reports without a reply also count as tasks sent; they only delay a denial.
        let sent = reports.wrapping_add(outstanding);
        let fresh = Mark { at_ns: now_ns, sent, ripe: None };
        let mark = self.mark.get_or_insert(fresh);
        let sent_since = sent.wrapping_sub(mark.sent);
        if sent_since >= outstanding {
            // All outstanding tasks may be newer than the mark, and in flight.
            *mark = fresh;
            return 0;
        }
        match mark.ripe {
            None if now_ns.saturating_sub(mark.at_ns) >= trip_ns => mark.ripe = Some(reports),
            Some(ripe) if ripe != reports => {
                *mark = fresh;
                return (outstanding - sent_since).saturating_sub(reported);
            }
            _ => {}
        }
        0
    }
}

/// Checks of all members for lost tasks, for a policy that bounds the tasks at a member. Without them a member full of
/// lost tasks would never get a task and so never reply.
#[derive(Clone, Debug)]
pub(super) struct SilenceChecks {
    /// Silence after which a member's tasks are lost; `None` takes the time from [`SilenceTracker`].
    configured_ns: Option<u64>,
    /// True if no task is lost in flight, as in an agent: a silent worker is slow, or the agent will report its exit.
    lossless: bool,
    /// True if replies carry the member's queue.
    replies_report: bool,
    core: Core,
    /// Minimum interval between checks, by [`REMOTE_NS`].
    least_ns: u64,
    /// Time of the next check.
    next_ns: u64,
    /// Counts of each member at the last check.
    watches: Vec<SilenceWatch>,
    /// Silences of all members that ended with a reply.
    silences: SilenceTracker,
}

impl SilenceChecks {
    /// Creates the checks. The tasks of a member that is silent for `configured_ns` count as lost; `None` derives the
    /// time from service times and earlier silences.
    pub fn new(configured_ns: Option<u64>) -> Self {
        Self {
            configured_ns,
            lossless: false,
            replies_report: true,
            core: Core::ONLY,
            least_ns: 0,
            next_ns: 0,
            watches: Vec::new(),
            silences: SilenceTracker::default(),
        }
    }

    /// Adapts to changed members or another caller.
    pub fn on_members(&mut self, caller: Caller, view: &View) {
        self.core = caller.core;
        self.lossless = caller.lossless;
        self.replies_report = caller.reports == Reports::Replies;
        self.watches.resize(view.members(), SilenceWatch::default());
        // Only cores of a node pay for these reads. Independent dispatchers are simulated.
        let remote_cores = view.pool_exchange().map_or(0, |_| caller.core.count - 1);
        self.least_ns = (view.active().len() * remote_cores) as u64 * REMOTE_NS;
    }

    /// Returns `None` until the next check is due. Then returns the limits that `limits` computes, and schedules the
    /// next check. The inner `None` means that silence has no effect.
    pub fn due(
        &mut self,
        now_ns: u64,
        limits: impl FnOnce(&Self) -> Option<SilenceLimits>,
    ) -> Option<Option<SilenceLimits>> {
        if now_ns < self.next_ns {
            return None;
        }
        let limits = limits(self);
        // Several checks within the silence limit: a silence must last over two of them.
        let pause_ns = limits.map_or(CHECK_MOST_NS, |limits| limits.silence_ns / 4);
        self.next_ns = now_ns.saturating_add(pause_ns.min(CHECK_MOST_NS).max(self.least_ns));
        Some(limits)
    }

    /// Returns the limits for the next check, for members with at most `bound` tasks. `None` if no task can be lost and
    /// no time is configured.
    pub fn limits(&self, measured: &MemberStatistics, bound: usize) -> Option<SilenceLimits> {
        let (silences, cores) = (&self.silences, self.core.count);
        let derived_ns = || (!self.lossless).then(|| silences.silence_limit_ns(measured, cores));
        let silence_ns = self.configured_ns.or_else(derived_ns)?;
        let reports = self.replies_report && !self.lossless;
        let trip_ns = reports.then(|| silences.trip_ns(measured, cores));
        let (explained, denials) = (silences.explained(), bound as u32);
        Some(SilenceLimits { silence_ns, trip_ns, explained, denials, cores })
    }

    /// Handles a report without a reply to this core, such as a keep-alive. It does not end a silence: the worker may
    /// be alive, and its task lost. The checks cannot distinguish such a report to another core from a reply.
    pub fn reported(&mut self, member: Member) {
        self.watches[member.index()].reported();
    }

    /// Handles a write-off or correction of a member's counts by the dispatcher.
    pub fn recounted(&mut self, member: Member) {
        self.watches[member.index()].recounted();
    }

    /// Checks a member for lost tasks. Writes them off on the core that looks after the member. Returns true if
    /// there were any. The caller's `touched_ns` returns [`Counts::touched_ns`]. Its argument is
    /// [`SilenceWatch::is_quiet`]: if false, another core may have changed the counts since the last check.
    pub fn check(
        &mut self,
        member: Member,
        limits: SilenceLimits,
        view: &mut View,
        touched_ns: impl FnOnce(bool) -> u64,
    ) -> bool {
        let reports = view.reports(member);
        let outstanding = view.outstanding_now(member);
        let watch = &mut self.watches[member.index()];
        let mut counts = Counts {
            now_ns: view.now_ns(),
            reports,
            own_reports: view.of(member).reports(),
            outstanding: outstanding.max(0).cast_unsigned(),
            is_surplus: outstanding < 0,
            touched_ns: 0,
        };
        counts.touched_ns = touched_ns(watch.is_quiet(&counts));
        let reported_and_estimated =
            (view.reported_most(member).whole_tasks(), view.largest_estimate(member).whole_tasks());
        let silences_and_members = (&mut self.silences, view.members());
        let is_ours = self.core.is_responsible_for(member);
        let lost =
            watch.check(counts, reported_and_estimated, limits, silences_and_members, is_ours);
        if lost > 0 {
            view.write_off(member, lost);
        }
        lost > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A millisecond, in nanoseconds.
    const MS: u64 = 1_000_000;
    /// Limits of a single core: a silence of 100 ms, and a trip of 1 ms.
    const LIMITS: SilenceLimits = SilenceLimits {
        silence_ns: 100 * MS,
        trip_ns: Some(MS),
        explained: 0,
        denials: 4,
        cores: 1,
    };

    /// Counts of a member whose last reply came just now, so that it is not silent.
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

    /// Checks the only member of a pool, whose reports show `reported` tasks. Returns the number of lost tasks.
    fn check(watch: &mut SilenceWatch, counts: Counts, reported: u32) -> u32 {
        let mut silences = SilenceTracker::default();
        watch.check(counts, (reported, reported), LIMITS, (&mut silences, 1), true)
    }

    // promise: scheduling.4
    #[test]
    fn reads_of_many_remote_counts_are_rarer() {
        let interval_ns = |view: &View| {
            let mut checks = SilenceChecks::new(None);
            checks.on_members(Caller::on(Core { index: 0, count: 8 }), view);
            assert!(checks.due(1, |_| None).is_some());
            checks.next_ns - 1
        };
        assert_eq!(interval_ns(&View::of_cores(8, 8).0[0]), CHECK_MOST_NS);
        assert_eq!(interval_ns(&View::of_cores(1024, 8).0[0]), 7 * 1024 * REMOTE_NS);
        assert_eq!(interval_ns(&View::heap(1024, 8)[0]), CHECK_MOST_NS);
    }

    #[test]
    fn report_denies_only_tasks_sent_before_the_trip() {
        let mut watch = SilenceWatch::default();
        assert_eq!(check(&mut watch, counts(0, 0, 2), 0), 0);
        // A reply within the trip proves nothing: the second task may not have arrived.
        assert_eq!(check(&mut watch, counts(MS / 2, 1, 1), 0), 0);
        assert_eq!(check(&mut watch, counts(MS, 1, 1), 0), 0);
        // One more task is sent and answered. The report of an empty queue comes a trip after the first task.
        assert_eq!(check(&mut watch, counts(2 * MS, 1, 2), 0), 0);
        assert_eq!(check(&mut watch, counts(3 * MS, 2, 1), 0), 0, "it may be the newest task");
        assert_eq!(check(&mut watch, counts(5 * MS, 2, 1), 0), 0);
        assert_eq!(check(&mut watch, counts(6 * MS, 3, 1), 0), 0, "it may be the newest task");
    }

    #[test]
    fn empty_queue_denies_what_is_left() {
        let mut watch = SilenceWatch::default();
        check(&mut watch, counts(0, 0, 3), 0); // sets the mark
        check(&mut watch, counts(MS, 0, 3), 0); // a trip later
        assert_eq!(check(&mut watch, counts(2 * MS, 1, 2), 0), 2);
    }

    #[test]
    fn queue_that_a_report_counts_is_not_lost() {
        let mut watch = SilenceWatch::default();
        check(&mut watch, counts(0, 0, 4), 0);
        check(&mut watch, counts(MS, 0, 4), 0);
        // Three tasks are outstanding and the report counts two, so one is lost.
        assert_eq!(check(&mut watch, counts(2 * MS, 1, 3), 2), 1);
    }

    #[test]
    fn denials_end_at_their_bound_until_idle() {
        let mut watch = SilenceWatch::default();
        // Sends four tasks. One is answered after a trip, and its report denies the remaining three.
        let mut deny = |from_ms: u64, reports: u32| {
            check(&mut watch, counts(from_ms * MS, reports, 4), 0);
            check(&mut watch, counts((from_ms + 1) * MS, reports, 4), 0);
            check(&mut watch, counts((from_ms + 2) * MS, reports + 1, 3), 0)
        };
        // Each report denies three tasks, and the bound is four.
        assert_eq!((deny(0, 0), deny(10, 9)), (3, 0));
        let idle = Counts { touched_ns: 0, ..counts(500 * MS, 20, 0) };
        check(&mut watch, idle, 0);
        let mut deny = |from_ms: u64, reports: u32| {
            check(&mut watch, counts(from_ms * MS, reports, 4), 0);
            check(&mut watch, counts((from_ms + 1) * MS, reports, 4), 0);
            check(&mut watch, counts((from_ms + 2) * MS, reports + 1, 3), 0)
        };
        assert_eq!(deny(600, 30), 3);
    }

    // promise: scheduling.4
    #[test]
    fn known_loss_does_not_double_the_limit() {
        let mut silences = SilenceTracker::default();
        assert_eq!(silences.explained(), 0);
        for _ in 0..100 {
            silences.add_answered(1);
            silences.add_lost(3);
        }
        // Three of four tasks are lost: ln(0.001) / ln(0.75) is 24.
        assert!((15..60).contains(&silences.explained()), "{}", silences.explained());
        let limits = SilenceLimits { explained: silences.explained(), ..LIMITS };
        assert_eq!(limits.after(10), LIMITS.silence_ns);
        assert_eq!(LIMITS.after(2), 4 * LIMITS.silence_ns);
        (0..200).for_each(|_| silences.add_answered(1));
        assert_eq!(silences.explained(), 0);
    }

    #[test]
    fn silences_set_the_limit_without_service_times() {
        let (mut silences, measured) = (SilenceTracker::default(), MemberStatistics::default());
        assert_eq!(silences.silence_limit_ns(&measured, 1), SILENCE_MOST_NS);
        silences.end(10_000, 1, 1);
        // The minimum of 1 ms, times 17 after the first reply.
        assert_eq!(silences.silence_limit_ns(&measured, 1), 17 * MS);
        (0..1000).for_each(|_| silences.end(10_000, 1, 1));
        assert!(silences.silence_limit_ns(&measured, 1) < 11 * MS / 10);
        (0..100).for_each(|_| silences.end(3 * MS, 1, 1));
        assert!(silences.silence_limit_ns(&measured, 1) > 6 * MS);
    }
}
