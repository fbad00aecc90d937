//! Measured conditions of a pool: the work of a task, the round trip without service, and rates of arrivals. Policies
//! need no configuration for them. `eft` uses them, and `scd` with `unseen=measured`. The *work* of a task is its
//! service time at a member of rate 1. A member of rate 2 serves it in half that time.
//!
//! One task at a time is *marked*: its reply measures the round trip. A worker serves in order, so the reply to the
//! marked task follows the replies to this dispatcher's earlier tasks there. A task may also wait at its worker, so the
//! round trip is the least of several measurements. Lost tasks only lengthen a measurement.

use super::{Caller, Pick};
use crate::state::{Member, View};

/// Weight of a task in the mean work: about the last 2048 tasks count.
const WORK_WEIGHT: f64 = 1.0 / 2048.0;
/// Weight of a marked task in the mean square of the work: about the last 256 marked tasks count.
const SQUARE_WEIGHT: f64 = 1.0 / 256.0;
/// Number of measured round trips in a trip window, of which the shortest counts.
const TRIP_WINDOW: u64 = 64;
/// Longest wait for the reply to a marked task.
const MARK_MOST_NS: u64 = 100_000_000;
/// Number of picks in the first rate window.
const FIRST_RATE_WINDOW: u32 = 16;
/// Number of times that the rate window doubles: from 16 picks to 256.
const DOUBLINGS: u32 = 4;
/// Weight of a rate window in the mean rates, after the first `DOUBLINGS` + 1. Each of these replaces the rates.
const RATE_WINDOW_WEIGHT: f64 = 0.25;
/// Number of replies without service times after which the pool counts as one without them.
const UNTIMED: u32 = 64;

/// A task whose reply measures the round trip.
#[derive(Clone, Copy, Debug)]
struct Mark {
    member: Member,
    /// Number of the member's replies still expected before that of the task.
    ahead: i32,
    /// Time at which the task was sent.
    sent_ns: u64,
}

/// Measurements of one dispatcher: a core of a node, or one of several leaves that share members without an exchange.
#[derive(Clone, Debug, Default)]
pub(super) struct Conditions {
    /// Mean work of a task: its service time at rate 1; 0 before the first reply.
    work_ns: f64,
    /// Mean of (work / `work_ns`)^2 over the marked tasks; 0 before the first.
    relative_square: f64,
    /// Number of replies with a service time.
    timed: u32,
    /// Number of replies without a service time.
    untimed: u32,
    /// The marked task, if there is one.
    mark: Option<Mark>,
    /// Shortest round trip of the last trip window and of the current one so far.
    trip_ns: Option<f64>,
    /// Shortest round trip of the current trip window.
    window_trip_ns: f64,
    /// Number of all round trips measured so far. A trip window ends after each [`TRIP_WINDOW`] of them.
    measured_trips: u64,
    /// Arrivals per nanosecond at this dispatcher.
    own_rate: f64,
    /// Arrivals per nanosecond at the members from other dispatchers.
    other_rate: f64,
    /// Number of finished windows for both rates; stops at `DOUBLINGS` + 2.
    rate_windows: u32,
    /// Number of tasks in the dispatcher's queue at the last run of picks.
    queued: usize,
    /// Value of `queued` at the start of this rate window.
    queued_before: usize,
    /// Number of picks in this rate window.
    picked: u32,
    /// Number of other dispatchers' tasks that appeared at members in this rate window.
    remote_arrivals: u32,
    /// Start of this rate window. The first one starts at time 0.
    rate_window_start_ns: u64,
    /// Number of other dispatchers' tasks at each member, as last reported.
    remote: Vec<u32>,
    /// Number of other dispatchers whose tasks only the members' reports show. 0 if all cores exchange their counts, as
    /// on a node; only simulators have independent dispatchers.
    unshared_dispatchers: usize,
    /// Tasks minus replies of this core at each member when that was last idle. Not 0 if another core has written off
    /// tasks of this one, or the reverse.
    idle_counts: Vec<i32>,
}

/// Work in the reports of a run of replies. A separate value, so that it stays in registers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunWork {
    /// Sum of the service times.
    service_ns: u64,
    /// Sum of the inverse rates of the members, one for each reply with a service time.
    inverse_rates: f64,
    /// Number of replies with a service time.
    timed: u32,
    /// Number of replies.
    replies: u32,
}

impl RunWork {
    /// Adds a reply of a member with this inverse rate.
    #[inline(always)]
    pub(super) fn add(&mut self, service_ns: u32, inverse_rate: f64) {
        let is_timed = service_ns > 0;
        self.service_ns += u64::from(service_ns);
        self.inverse_rates += if is_timed { inverse_rate } else { 0.0 };
        self.timed += u32::from(is_timed);
        self.replies += 1;
    }
}

impl Conditions {
    /// Adapts to changed members or another number of dispatchers. Measurements stay.
    pub(super) fn on_members(&mut self, caller: Caller, view: &View) {
        // Cores that exchange their counts know all tasks.
        self.unshared_dispatchers =
            if view.pool_exchange().is_some() { 0 } else { caller.core.count - 1 };
        self.remote.resize(view.members(), 0);
        self.idle_counts.resize(view.members(), 0);
    }

    /// Records a run of picks, which the caller has counted as sent. Marks the first task if no task is marked. A run
    /// measures the same as its tasks one by one.
    #[inline]
    pub(super) fn note_picks(&mut self, picks: &[Option<Pick>], view: &View) {
        let now_ns = view.now_ns();
        self.queued = view.waiting();
        if self.mark.is_none()
            && let Some(&Some(first)) = picks.first()
        {
            self.mark_first(first.member, picks, view);
        }
        // Picks of `None` come last in a run. If the last pick has a member, all have one.
        let count = match picks.last() {
            Some(Some(_)) => picks.len(),
            _ => picks.iter().flatten().count(),
        };
        self.picked += count as u32;
        if self.picked >= self.rate_window() && now_ns > self.rate_window_start_ns {
            self.end_rate_window(count as u32, now_ns);
        }
    }

    /// Marks the first task of a run of picks, which goes to this member.
    fn mark_first(&mut self, member: Member, picks: &[Option<Pick>], view: &View) {
        let of_run = picks.iter().flatten().filter(|pick| pick.member == member).count();
        let outstanding = view.of(member).own_outstanding() - self.idle_counts[member.index()];
        self.mark =
            Some(Mark { member, ahead: outstanding - of_run as i32, sent_ns: view.now_ns() });
    }

    /// Returns the length of this rate window in picks.
    #[inline]
    fn rate_window(&self) -> u32 {
        FIRST_RATE_WINDOW << self.rate_windows.min(DOUBLINGS)
    }

    /// Ends a rate window within the last `count` picks: updates both rates by its arrivals.
    #[cold]
    fn end_rate_window(&mut self, count: u32, now_ns: u64) {
        let before = self.picked - count;
        // The picks before these may already exceed the window. It then ends with the next pick.
        let last = self.rate_window().saturating_sub(before).max(1).min(count);
        let elapsed = (now_ns - self.rate_window_start_ns) as f64;
        let weight = if self.rate_windows <= DOUBLINGS { 1.0 } else { RATE_WINDOW_WEIGHT };
        // Arrivals are the picks, and the growth of the dispatcher's queue.
        let growth = self.queued as f64 - self.queued_before as f64;
        let arrived = (f64::from(before + last) + growth).max(0.0);
        self.own_rate += (arrived / elapsed - self.own_rate) * weight;
        self.queued_before = self.queued;
        self.other_rate += (f64::from(self.remote_arrivals) / elapsed - self.other_rate) * weight;
        self.rate_windows = (self.rate_windows + 1).min(DOUBLINGS + 2);
        (self.picked, self.remote_arrivals) = (count - last, 0);
        self.rate_window_start_ns = now_ns;
    }

    /// Records a change of other dispatchers' tasks at a member, which the view already contains.
    #[inline]
    pub(super) fn note_remote(&mut self, member: Member, view: &View) {
        if self.unshared_dispatchers == 0 {
            return;
        }
        let own = view.of(member).own_outstanding().max(0).cast_unsigned();
        let remote = view.outstanding(member).saturating_sub(own);
        let before = std::mem::replace(&mut self.remote[member.index()], remote);
        self.remote_arrivals += remote.saturating_sub(before);
    }

    /// Returns true if this core has received a member's replies to tasks of other cores. Its count of the member's
    /// tasks is then lower than while the member was idle.
    pub(super) fn receives_strays(&mut self, member: Member, view: &View) -> bool {
        let (own, idle) =
            (view.of(member).own_outstanding(), &mut self.idle_counts[member.index()]);
        if view.outstanding(member) == 0 {
            *idle = own;
        }
        own < *idle
    }

    /// Returns the member of the marked task.
    #[inline(always)]
    pub(super) fn marked_member(&self) -> Option<Member> {
        self.mark.map(|mark| mark.member)
    }

    /// Records a reply of [`Self::marked_member`]. Returns the round trip in nanoseconds if the reply answers the
    /// marked task and carries a usable service time.
    #[cold]
    #[inline(never)]
    pub(super) fn note_reply_of_marked_member(
        &mut self,
        service_ns: u32,
        inverse_rate: f64,
        now_ns: u64,
    ) -> Option<f64> {
        let mark = self.mark.as_mut()?;
        mark.ahead -= 1;
        if mark.ahead >= 0 {
            return None;
        }
        let elapsed = now_ns.saturating_sub(mark.sent_ns);
        self.mark = None;
        // A reply after less than the service time belongs to another core's task, and voids the measurement.
        let trip = elapsed.checked_sub(service_ns.into()).filter(|_| service_ns > 0)? as f64;
        if self.work_ns > 0.0 {
            let work = f64::from(service_ns) / inverse_rate / self.work_ns;
            let weight = SQUARE_WEIGHT.max(1.0 / (self.measured_trips + 1) as f64);
            self.relative_square += (work * work - self.relative_square) * weight;
        }
        // Keeps the shortest trip of the window. The last trip of a window replaces the earlier windows' shortest one,
        // so that a round trip that has grown counts.
        let is_first = self.measured_trips.is_multiple_of(TRIP_WINDOW);
        self.window_trip_ns = if is_first { trip } else { self.window_trip_ns.min(trip) };
        self.measured_trips += 1;
        let ends = self.measured_trips.is_multiple_of(TRIP_WINDOW);
        let known = self.trip_ns.filter(|_| !ends).unwrap_or(f64::INFINITY);
        self.trip_ns = Some(known.min(self.window_trip_ns));
        Some(trip)
    }

    /// Forgets the marked task if it was at this member. The member's outstanding tasks were corrected, so the number
    /// of replies before that of the marked task is wrong.
    pub(super) fn forget(&mut self, member: Member) {
        self.mark = self.mark.filter(|mark| mark.member != member);
    }

    /// Forgets a marked task whose reply takes too long: it may be lost, and would block further measurements.
    pub(super) fn on_tick(&mut self, now_ns: u64) {
        self.mark = self.mark.filter(|mark| now_ns.saturating_sub(mark.sent_ns) < MARK_MOST_NS);
    }

    /// Records the work of a run of replies: moves the mean work towards the mean of the run.
    #[inline]
    pub(super) fn note_work(&mut self, run: RunWork) {
        self.untimed = self.untimed.saturating_add(run.replies - run.timed);
        if run.timed == 0 {
            return;
        }
        self.timed = self.timed.saturating_add(run.timed);
        // A plain mean of the first replies, then a moving one.
        let weight = f64::from(run.timed) * WORK_WEIGHT.max(1.0 / f64::from(self.timed));
        let work = run.service_ns as f64 / run.inverse_rates;
        self.work_ns += (work - self.work_ns) * weight.min(1.0);
    }

    /// Returns the mean work of a task, and its coefficient of variation (standard deviation / mean). The latter is at
    /// least 1 in the first trip window, because it is not yet reliable.
    pub(super) fn work(&self) -> (f64, f64) {
        let variation = (self.relative_square - 1.0).max(0.0).sqrt();
        (
            self.work_ns,
            if self.measured_trips < TRIP_WINDOW { variation.max(1.0) } else { variation },
        )
    }

    /// Returns the round trip without service in nanoseconds; `None` before the first measurement.
    pub(super) fn trip_ns(&self) -> Option<u64> {
        self.trip_ns.map(|trip_ns| trip_ns as u64)
    }

    /// Returns the round trip in mean service times of a member of rate 1; `None` before the first measurement.
    #[inline]
    pub(super) fn trip_in_services(&self) -> Option<f64> {
        self.trip_ns.filter(|_| self.work_ns > 0.0).map(|trip_ns| trip_ns / self.work_ns)
    }

    /// Returns the share of the members' capacity that this dispatcher's tasks use; `rates` is the sum of the members'
    /// rates. `None` until two rate windows have ended: the first starts at time 0, so its rate may be far too low.
    #[inline]
    pub(super) fn own_utilization(&self, rates: f64) -> Option<f64> {
        (self.rate_windows > 1 && rates > 0.0).then(|| self.own_rate * self.work_ns / rates)
    }

    /// Returns true if the dispatcher's queue has at least one task for each of `members` members.
    #[inline]
    pub(super) fn is_backlogged(&self, members: usize) -> bool {
        self.queued > 0 && self.queued >= members
    }

    /// Returns the expected number of other dispatchers' tasks that no report shows yet.
    #[inline]
    pub(super) fn unseen(&self) -> f64 {
        match self.trip_ns {
            _ if self.unshared_dispatchers == 0 => 0.0,
            Some(trip_ns) if self.rate_windows > 0 => self.other_rate * trip_ns,
            // Before the first measurement: one unseen task of each other dispatcher.
            _ => self.unshared_dispatchers as f64,
        }
    }

    /// Returns true if replies carry no service times, so that nothing can be measured.
    pub(super) fn is_untimed(&self) -> bool {
        self.timed == 0 && self.untimed >= UNTIMED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Core;

    const A: Member = Member(0);

    /// Creates the conditions of the only dispatcher, and its view of one member.
    fn one() -> (Conditions, View) {
        let (mut conditions, view) = (Conditions::default(), View::heap(1, 1).remove(0));
        conditions.on_members(Caller::on(Core::ONLY), &view);
        (conditions, view)
    }

    /// Sends a task at `sent_ns` to a member of rate 2, with a reply after `elapsed_ns` and this service time.
    fn serve(
        (conditions, view): &mut (Conditions, View),
        sent_ns: u64,
        elapsed_ns: u64,
        service_ns: u32,
    ) {
        view.sent(A);
        view.note_time(sent_ns);
        conditions.note_picks(&[Some(Pick { member: A, idle: true })], view);
        assert!(view.answered(A));
        let mut run = RunWork::default();
        run.add(service_ns, 0.5);
        conditions.note_work(run);
        conditions.note_reply_of_marked_member(service_ns, 0.5, sent_ns + elapsed_ns);
    }

    #[test]
    fn shortest_trip_of_a_window_counts() {
        let mut rig = one();
        // Waits of 0 to 900 ns behind other tasks, a trip of 500 ns, and a service time of 1000 ns at rate 2: a work of
        // 2000 ns.
        for round in 0..100 {
            serve(&mut rig, 10_000 * round, 1500 + 100 * (round % 10), 1000);
        }
        assert_eq!((rig.0.trip_ns, rig.0.work_ns), (Some(500.0), 2000.0));
        assert_eq!(rig.0.trip_in_services(), Some(0.25));
        // A longer trip counts after two trip windows.
        for round in 100..100 + 2 * TRIP_WINDOW {
            serve(&mut rig, 10_000 * round, 4000, 1000);
        }
        assert_eq!(rig.0.trip_ns, Some(3000.0));
    }

    #[test]
    fn windows_end_after_any_number_of_trips() {
        let mut rig = one();
        serve(&mut rig, 0, 1500, 1000);
        rig.0.measured_trips = u64::from(u32::MAX);
        for round in 1..=2 * TRIP_WINDOW {
            serve(&mut rig, 10_000 * round, 4000, 1000);
        }
        assert_eq!((rig.0.trip_ns, rig.0.work().1.is_finite()), (Some(3000.0), true));
    }

    #[test]
    fn replies_ahead_do_not_measure() {
        let (mut conditions, mut view) = one();
        (0..3).for_each(|_| view.sent(A));
        let pick = Some(Pick { member: A, idle: false });
        conditions.note_picks(&[pick, pick], &view);
        assert_eq!(conditions.note_reply_of_marked_member(100, 1.0, 150), None);
        assert_eq!(conditions.note_reply_of_marked_member(100, 1.0, 350), Some(250.0));
    }

    #[test]
    fn run_measures_as_its_tasks() {
        let (one_by_one, by_run) = (&mut one(), &mut one());
        let pick = Some(Pick { member: A, idle: false });
        for round in 1..200_u64 {
            for (_, view) in [&mut *one_by_one, by_run] {
                view.note_time(1000 * round);
            }
            // The last task of each run finds no member.
            let mut picks = vec![pick; (round % 23) as usize];
            picks.push(None);
            for pick in &picks {
                let (conditions, view) = &mut *one_by_one;
                (0..pick.iter().count()).for_each(|_| view.sent(A));
                conditions.note_picks(&[*pick], view);
            }
            let (conditions, view) = &mut *by_run;
            (1..picks.len()).for_each(|_| view.sent(A));
            conditions.note_picks(&picks, view);
            let [one, other] = [&one_by_one.0, &by_run.0];
            let measured = |conditions: &Conditions| {
                let mark = conditions.mark.map(|mark| (mark.ahead, mark.sent_ns));
                (mark, conditions.picked, conditions.own_rate, conditions.rate_windows)
            };
            assert_eq!(measured(one), measured(other), "{round}");
            for (conditions, view) in [&mut *one_by_one, by_run] {
                for _ in 0..round % 29 {
                    view.answered(A);
                    conditions.note_reply_of_marked_member(100, 1.0, 1000 * round + 500);
                }
            }
        }
    }

    #[test]
    fn utilization_follows_the_arrivals() {
        let mut rig = one();
        for round in 0..500 {
            serve(&mut rig, 4000 * round, 1000, 1000);
        }
        // Work of 2000 ns every 4000 ns, at a rate of 2.
        let utilization = rig.0.own_utilization(2.0).unwrap();
        assert!((utilization - 0.25).abs() < 0.01, "{utilization}");
        assert_eq!(rig.0.unseen(), 0.0);
    }

    #[test]
    fn unreported_tasks_of_others_are_expected() {
        let mut pair = View::heap(1, 2);
        let (other, mut view) = (pair.pop().unwrap(), pair.pop().unwrap());
        let mut conditions = Conditions::default();
        conditions.on_members(Caller::on(Core { index: 0, count: 3 }), &view);
        assert_eq!(conditions.unseen(), 2.0, "one of each before any measurement");
        for round in 0..200 {
            for _ in 0..4 {
                other.of(A).sent();
                conditions.note_remote(A, &view);
            }
            for _ in 0..4 {
                assert!(other.of(A).answered());
                conditions.note_remote(A, &view);
            }
            view.sent(A);
            let pick = Some(Pick { member: A, idle: true });
            view.note_time(1000 * round);
            conditions.note_picks(&[pick], &view);
            assert!(view.answered(A));
            let mut run = RunWork::default();
            run.add(100, 1.0);
            conditions.note_work(run);
            conditions.note_reply_of_marked_member(100, 1.0, 1000 * round + 600);
        }
        // Four tasks a microsecond, each unseen for a round trip of 500 ns.
        assert!((conditions.unseen() - 2.0).abs() < 0.05, "{}", conditions.unseen());
    }
}
