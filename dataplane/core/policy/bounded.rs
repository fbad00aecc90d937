//! Central queues: a member holds at most k tasks, and tasks wait at the dispatcher while all members are
//! full (JBSQ, Kogias et al.: R2P2, ATC 2019). With cFCFS, k is the smallest bound that keeps members busy.
//!
//! A member has k *places*, one for each task that it may hold. A task without a pick (`None`) waits at the
//! caller. The caller offers the first waiting task ([`super::classes`]) again after each reply, and from time to
//! time, because another core may have freed a place.
//!
//! Two structures find a free place. The only core of a node sorts its members by their tasks ([`Ranks`]). A run of
//! picks *opens* the *front* (the members with the fewest tasks), *takes* members from it, and *closes* it; a change
//! of another member's position in between needs a new front. Several cores of a node share the places in memory
//! ([`Slots`]). Independent dispatchers of a simulator, which see each other's counts, use `Ranks` too, and compare
//! each found member with the view.
//!
//! `cfcfs` chooses k itself: the smallest bound that keeps members busy enough ([`MemberStatistics::bound`]).
//! With one task at a time a member idles for a round trip R after each task of mean service time S. Each
//! further task hides some of that time. If R is nearly 0, k = 1 saves every task the wait behind a running
//! one.
//!
//! A lost task occupies a place of its member; with k = 1 it blocks the member. So this policy *writes off* lost
//! tasks: it subtracts them from the outstanding ones ([`super::silence`]). If a member is silent for much longer
//! than its tasks take, all of them are lost. So are tasks missing in the member's own reports. The tolerated
//! silence is the *silence limit*. It doubles with each write-off without packet loss as a likely cause, because a
//! stalled member must not collect tasks. In an agent no task can be lost in flight. There silence has no effect
//! without a configured time.

use rand::Rng as _;

use super::classes::{Reserve, reserved_end};
use super::measured::{MemberStatistics, ReplyNotes};
use super::silence::{SilenceChecks, SilenceLimits};
use super::slots::{self, Slots};
use super::spec::{BOOST, RESERVE, SLO};
use super::structure::{Front, Losses, Rank, RankedMember, Ranks};
use super::{
    AnyPolicy, Caller, ClassRules, Core, Entry, Parameter, Pick, Picks, Policy, ReserveUse, Rng,
    Runs, Task,
};
use crate::limits::BURST;
use crate::state::{Member, MemberStates, PublishedState, Report, View};

/// `jbsq`.
pub const FIXED_BOUND: Entry = Entry {
    parameters: &[Parameter::integer("k", 2.0, (1.0, 64.0)), SILENCE, BOOST, RESERVE, SLO],
    runs: Runs::LeafHolding,
    publishes: PublishedState::NOTHING.with_idle(),
    bound: |v| Some(v[0] as u32),
    classes: |v| ClassRules::from_values(&v[2..]),
    ..Entry::new(
        "jbsq",
        "at most k tasks at a member, the others wait at the dispatcher",
        "R2P2, ATC 2019",
        |v| AnyPolicy::from(Bounded::new(v[0] as usize, ms(v[1])).with_reserve(v[3] as usize)),
    )
};

/// `cfcfs`.
pub const ADAPTIVE_BOUND: Entry = Entry {
    parameters: &[SILENCE, BOOST, RESERVE, SLO],
    runs: Runs::LeafHolding,
    publishes: PublishedState::NOTHING.with_idle(),
    classes: |v| ClassRules::from_values(&v[1..]),
    ..Entry::new(
        "cfcfs",
        "one queue at the dispatcher, with the least bound that keeps members busy",
        "wedjat, after R2P2, ATC 2019",
        |v| AnyPolicy::from(Bounded::adaptive(ms(v[0])).with_reserve(v[2] as usize)),
    )
};

/// Milliseconds of silence after which a member's tasks are lost; 0 derives the time from service times.
const SILENCE: Parameter = Parameter::new("silence-ms", 0.0, (0.0, 1e6));

/// Converts milliseconds to nanoseconds; 0 to `None`.
fn ms(milliseconds: f64) -> Option<u64> {
    (milliseconds > 0.0).then_some((milliseconds * 1e6) as u64)
}

/// Maximum number of outdated positions in the ranks that one pick corrects, so that its time is bounded.
const CORRECTIONS: usize = 8;
/// Maximum number of members to check in one step if all seem full, because other cores may have freed places.
/// The next step continues with the members after them.
const CHECKS: usize = 32;
/// Initial bound of `cfcfs`, kept in pools without service times in their replies.
const START: usize = 2;
/// With a fixed bound, one of this many replies is measured fully: measuring costs time, and serves only the
/// detection of lost tasks and statistics there.
const SAMPLE: u32 = 64;

/// Members with the shortest queue, taken out of the ranks for a run of picks.
type RankFront = <Ranks as Rank>::Front;

/// Policy that bounds the tasks at each member.
#[derive(Clone, Debug)]
pub struct Bounded {
    /// Checks for silent members.
    silence: SilenceChecks,
    /// Free places at members that are not reserved, unless cores share the places.
    free: FreePlaces,
    /// Free places at reserved members, unless cores share the places.
    reserved_free: FreePlaces,
    reserve: Reserve,
    /// Places that the cores of a node share, in pools with an exchange.
    slots: Slots,
    /// Bound agreed between the cores, if each would choose its own.
    agreed_bound: Option<usize>,
    measurements: ReplyMeasurements,
    /// Detection of lost tasks by the queues in members' replies.
    losses: Losses,
}

/// Time of a member's last reply, or of the first task sent to it while idle. The flag is true while this core knows of
/// no other task there. Only such a task measures a round trip. A wait behind an unknown task of another core adds to
/// the measured round trip, so several cores find larger bounds.
#[derive(Clone, Copy, Debug)]
struct LastActivity {
    /// Twice the time in nanoseconds, plus the flag: one word to write for each task.
    word: u64,
}

impl LastActivity {
    /// Packs a time and the flag.
    #[inline(always)]
    fn new(now_ns: u64, alone: bool) -> Self {
        Self { word: now_ns << 1 | u64::from(alone) }
    }

    /// Returns the time in nanoseconds.
    #[inline(always)]
    fn at_ns(self) -> u64 {
        self.word >> 1
    }

    /// Returns the flag: the member has one known task, sent at this time.
    #[inline(always)]
    fn is_alone(self) -> bool {
        self.word & 1 == 1
    }

    /// Records another task for a member that had `queue` tasks. `first` replaces the value of a member without tasks.
    #[inline(always)]
    fn record_task(&mut self, queue: u32, first: Self) {
        match queue {
            0 => *self = first,
            _ => self.word &= !1, // clears the flag and keeps the time
        }
    }
}

/// Bound on each member's tasks, and the measurements for its choice.
#[derive(Clone, Debug)]
struct Bound {
    /// Maximum number of tasks at a member.
    tasks: usize,
    /// True if the bound follows the measurements (`cfcfs`).
    adapts: bool,
    /// Number of members that share the tasks, without reserved ones.
    members: usize,
    /// Number of dispatcher cores that share the tasks.
    cores: usize,
    measured: MemberStatistics,
    /// Number of replies in a measurement window.
    window_replies: u64,
    /// Number of replies with a service time so far, modulo 2^32. Selects the fully measured ones ([`SAMPLE`]).
    answers: u32,
}

impl Bound {
    /// Sets the numbers of members and cores that share the tasks. The length of a measurement window depends on them.
    fn share(&mut self, members: usize, cores: usize) {
        (self.members, self.cores) = (members, cores);
        self.window_replies = self.measured.window_replies(members, cores);
    }

    /// Ends a window of replies, adapts the bound, and begins the next window.
    #[cold]
    #[inline(never)]
    fn end_window(&mut self, notes: ReplyNotes, now_ns: u64) -> ReplyNotes {
        self.measured.notes = notes;
        self.measured.end_window(now_ns, self.members, self.cores, self.tasks);
        if self.adapts && self.measured.is_warm() {
            self.tasks = self.measured.bound();
        }
        self.window_replies = self.measured.window_replies(self.members, self.cores);
        self.measured.notes
    }
}

/// Measurements from members' replies.
#[derive(Clone, Debug)]
struct ReplyMeasurements {
    /// Last activity of each member.
    activity: Vec<LastActivity>,
    bound: Bound,
}

impl ReplyMeasurements {
    /// Starts the measurement of a run of replies, all received at `now_ns`, in a pool of `members` members.
    #[inline(always)]
    fn begin_run(
        &mut self,
        now_ns: u64,
        members: usize,
        reserve: Reserve,
        adapts: bool,
    ) -> ReplyRun<'_> {
        let activity = &mut self.activity[..members];
        let (notes, answers) = (self.bound.measured.notes, self.bound.answers);
        ReplyRun { adapts, reserve, notes, answers, now_ns, activity, bound: &mut self.bound }
    }
}

/// Measurements during a run of replies. `notes` and `answers` are copies of the fields in [`Bound`], which stay in
/// registers until the run ends.
struct ReplyRun<'a> {
    /// Copy of [`Bound::adapts`].
    adapts: bool,
    /// Reserved members, of which only the longest service time is measured. They are rarely busy, and would hide that
    /// the bound keeps other members idle.
    reserve: Reserve,
    /// Sums over the replies of the current window.
    notes: ReplyNotes,
    answers: u32,
    now_ns: u64,
    activity: &'a mut [LastActivity],
    bound: &'a mut Bound,
}

impl ReplyRun<'_> {
    /// Records a reply as the member's last activity, and measures its service time and round trip. Of reserved members
    /// it measures only the longest service time. Under a fixed bound it does so, too, except for one reply in
    /// [`SAMPLE`].
    #[inline(always)]
    fn record(&mut self, report: &Report) {
        let activity = &mut self.activity[report.member.index()];
        let previous = std::mem::replace(activity, LastActivity::new(self.now_ns, false));
        if report.service_ns == 0 {
            return;
        }
        self.answers = self.answers.wrapping_add(1);
        let is_left_out = !self.adapts && self.answers % SAMPLE != 1;
        if is_left_out || self.reserve.has(report.member) {
            return self.notes.note_longest(report.service_ns);
        }
        // A task sent while the member had no other one: the time since then, without its service, is its round trip.
        let trip_ns = || {
            self.now_ns.saturating_sub(previous.at_ns()).saturating_sub(report.service_ns.into())
        };
        self.notes.note(report.service_ns, previous.is_alone().then(trip_ns));
        if self.notes.replies() >= self.bound.window_replies {
            self.notes = self.bound.end_window(self.notes, self.now_ns);
        }
    }

    /// Ends the run: stores the copies back, which stayed in registers meanwhile.
    #[inline(always)]
    fn end(self) {
        (self.bound.measured.notes, self.bound.answers) = (self.notes, self.answers);
    }
}

/// Members ranked by their tasks. This core's tasks and replies update the ranks. Comparisons with the view's counts
/// over all cores add the changes by other cores.
#[derive(Clone, Debug)]
struct FreePlaces {
    ranks: Ranks,
    core: Core,
    /// Position of the next check for changes by other cores.
    cursor: usize,
}

impl FreePlaces {
    /// Returns true if each member holds at least `bound` tasks by the ranks.
    #[inline(always)]
    fn is_full(&self, bound: usize) -> bool {
        self.ranks.least() >= bound
    }

    /// Updates the ranks of some members, whose counts other cores may have changed.
    #[cold]
    fn refresh_some(&mut self, view: &View) {
        let active = view.active();
        for _ in 0..active.len().min(CHECKS) {
            self.cursor = if self.cursor + 1 < active.len() { self.cursor + 1 } else { 0 };
            let member = active[self.cursor];
            self.ranks.set(member, view.outstanding(member));
        }
    }

    /// Calls [`Self::refresh_some`] during a run, unless this is the only core. Returns the new front.
    #[cold]
    #[inline(never)]
    fn refresh_if_shared(&mut self, front: RankFront, view: &View) -> RankFront {
        if self.core.count == 1 {
            return front;
        }
        self.ranks.close(front);
        self.refresh_some(view);
        self.ranks.open()
    }

    /// Returns the new front, and a member with a free place; `None` if it finds none. Compares the member's queue with
    /// the view, unless this is the only core: a different queue means that another core's task or reply changed it,
    /// and the member gets its right position. Contains only the frequent cases; `find_checked` has the rest.
    #[inline(always)]
    fn find(
        &mut self,
        front: RankFront,
        bound: usize,
        states: MemberStates<'_>,
        view: &View,
        rng: &mut Rng,
    ) -> (RankFront, Option<RankedMember>) {
        let (mut front, mut checks) = (front, CORRECTIONS);
        if !front.is_empty() {
            if self.is_full(bound) {
                front = self.refresh_if_shared(front, view);
                if self.is_full(bound) {
                    return (front, None);
                }
            }
            if let Some(found) = self.ranks.find(front, rng.next_u64() as u32) {
                if states.are_alone() {
                    // No other core changes the counts.
                    return (front, Some(found));
                }
                let queue = states.of(found.member).outstanding();
                if queue == found.queue {
                    return (front, Some(found));
                }
                front = self.ranks.set_open(front, found.member, queue);
                checks -= 1;
            }
        }
        let mut local = rng.clone(); // copied, because a borrowed value lives in memory
        let found = self.find_checked(checks, front, bound, view, &mut local);
        *rng = local;
        found
    }

    /// Same as [`Self::find`], with up to `checks` comparisons with the view; returns `None` if all of these fail. Also
    /// continues with the next front after all members of `front` have received a task.
    #[cold]
    #[inline(never)]
    fn find_checked(
        &mut self,
        checks: usize,
        mut front: RankFront,
        bound: usize,
        view: &View,
        rng: &mut Rng,
    ) -> (RankFront, Option<RankedMember>) {
        for _ in 0..checks {
            if front.is_empty() {
                let Some(next) = self.ranks.reopen(front) else { break };
                front = next;
            }
            if self.is_full(bound) {
                front = self.refresh_if_shared(front, view);
                if self.is_full(bound) {
                    break;
                }
            }
            let Some(found) = self.ranks.find(front, rng.next_u64() as u32) else { break };
            let queue = view.outstanding(found.member);
            if queue == found.queue {
                return (front, Some(found));
            }
            front = self.ranks.set_open(front, found.member, queue);
        }
        (front, None)
    }
}

impl Bounded {
    /// Creates a policy with at most `bound` tasks at a member. The tasks of a member that is silent for `silence_ns`
    /// count as lost; `None` derives the time from service times.
    #[must_use]
    pub fn new(bound: usize, silence_ns: Option<u64>) -> Self {
        let free = || FreePlaces { ranks: Ranks::default(), core: Core::ONLY, cursor: 0 };
        let measured = MemberStatistics::default();
        let bound = Bound {
            tasks: bound,
            adapts: false,
            members: 0,
            cores: 1,
            measured,
            window_replies: 0,
            answers: 0,
        };
        let measurements = ReplyMeasurements { activity: Vec::new(), bound };
        let losses = Losses::default();
        Self {
            silence: SilenceChecks::new(silence_ns),
            free: free(),
            reserved_free: free(),
            reserve: Reserve::default(),
            slots: Slots::default(),
            agreed_bound: None,
            measurements,
            losses,
        }
    }

    /// Creates a policy that chooses its bound. `silence_ns` as in [`Self::new`].
    #[must_use]
    pub fn adaptive(silence_ns: Option<u64>) -> Self {
        let mut adaptive = Self::new(START, silence_ns);
        adaptive.measurements.bound.adapts = true;
        adaptive
    }

    /// Returns the policy with `members` reserved members, which long classes may not take.
    #[must_use]
    pub fn with_reserve(self, members: usize) -> Self {
        Self { reserve: Reserve::new(members), ..self }
    }

    /// Returns the bound: the agreed one if cores share the places, else this core's own.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.agreed_bound.unwrap_or(self.measurements.bound.tasks)
    }

    /// Returns the mean hand-over time: from a task's sending to its reply, minus its service time. 0 before the first
    /// measurement.
    #[must_use]
    pub fn round_trip_ns(&self) -> f64 {
        self.measurements.bound.measured.round_trip_ns()
    }

    /// Picks a member for each task, like [`super::one_by_one`], but finds and increments a member in one step. Ends at
    /// the first task without a place.
    #[inline(always)]
    fn pick_some(
        free: &mut FreePlaces,
        measurements: &mut ReplyMeasurements,
        picks: Picks<'_>,
        states: MemberStates<'_>,
        view: &View,
        rng: &mut Rng,
    ) {
        let (bound, activity) = (measurements.bound.tasks, &mut measurements.activity[..]);
        let first = LastActivity::new(view.now_ns(), true); // for a member without other tasks
        let mut front = free.ranks.open();
        for pick in picks {
            let found;
            (front, found) = free.find(front, bound, states, view, rng);
            let Some(found) = found else { break };
            front = free.ranks.take(front, found);
            states.of(found.member).sent();
            activity[found.member.index()].record_task(found.queue, first);
            *pick = Some(Pick { member: found.member, idle: found.queue == 0 });
        }
        free.ranks.close(front);
    }

    /// Picks a member for each task, in a pool with reserved members. Ends at the first task without a place.
    #[cold]
    #[inline(never)]
    fn pick_with_reserve(&mut self, picks: Picks<'_>, view: &View, rng: &mut Rng) {
        let measurements = &mut self.measurements;
        for pick in picks.chunks_mut(1) {
            let (reserved, others) = (&mut self.reserved_free, &mut self.free);
            let (least_reserved, least) = (reserved.ranks.least(), others.ranks.least());
            let (first, second) = match self.reserve.usage {
                ReserveUse::Never => (others, None),
                ReserveUse::First if least_reserved <= least => (reserved, Some(others)),
                ReserveUse::Last if least_reserved < least => (reserved, Some(others)),
                _ => (others, Some(reserved)),
            };
            // The order by the ranks may be outdated: other cores may have filled the members of the first set.
            for free in [Some(first), second].into_iter().flatten() {
                if pick[0].is_none() {
                    Self::pick_some(free, measurements, pick, view.states(), view, rng);
                }
            }
            if pick[0].is_none() {
                break;
            }
        }
    }

    /// Sets the number of a member's tasks in the ranks.
    #[inline]
    fn rank(&mut self, member: Member, queue: u32) {
        self.free.ranks.set(member, queue);
        if self.reserve.has(member) {
            self.reserved_free.ranks.set(member, queue);
        }
    }

    /// Picks a member for each task, for cores that share the members' places ([`Slots`]). Ends at the first task
    /// without a place.
    fn pick_shared(&mut self, picks: Picks<'_>, view: &mut View) {
        let first = LastActivity::new(view.now_ns(), true);
        let bound = self.bound();
        for picks in picks.chunks_mut(BURST) {
            let places = self.slots.take(bound, &self.reserve, picks.len(), view);
            let (states, activity) = (view.states(), &mut self.measurements.activity[..]);
            for (&(member, idle), pick) in places.iter().zip(picks.iter_mut()) {
                states.of(member).sent();
                // It matters only whether the member had a task, not how many.
                activity[member.index()].record_task(u32::from(!idle), first);
                *pick = Some(Pick { member, idle });
            }
            if places.len() < picks.len() {
                break;
            }
        }
    }

    /// Processes reports of replies, for cores that share the members' places. Returns the number of replies
    /// from members without outstanding tasks.
    fn reply_shared(&mut self, reports: &[Report], view: &mut View) -> usize {
        let (now_ns, adapts) = (view.now_ns(), self.measurements.bound.adapts);
        let mut parts = view.parts();
        let mut run =
            self.measurements.begin_run(now_ns, parts.states.members(), self.reserve, adapts);
        let mut watch = self.losses.watch(parts.states.members(), now_ns);
        for report in reports {
            watch.answer(report, &mut parts);
            run.record(report);
        }
        run.end();
        parts.give(reports);
        parts.surplus
    }

    /// If the bound adapts and cores share the places, publishes this core's bound and adopts the common one. Places
    /// belong to all cores, so their number must not differ by core.
    fn agree(&mut self, view: &View) {
        let Bound { adapts, tasks, ref measured, .. } = self.measurements.bound;
        let own_bound = measured.is_warm().then(|| tasks.min(slots::MOST));
        self.agreed_bound = match (adapts, view.pool_exchange()) {
            (true, Some(pool_exchange)) => {
                // `eft` may have published a larger one, on a core that changes its policy later.
                let bound = pool_exchange.bound(own_bound).filter(|bound| *bound <= slots::MOST);
                Some(bound.unwrap_or(START))
            }
            _ => None,
        };
    }

    /// Returns the maximum number of places of a member. In shared memory each place has a row of token bits.
    fn rows(&self) -> usize {
        if self.measurements.bound.adapts { slots::MOST } else { self.measurements.bound.tasks }
    }

    /// Processes reports of replies. Returns the number of replies from members without outstanding tasks.
    /// `ALONE` is true if no other core sends to these members, `ADAPTS` if the bound adapts. A separate function
    /// for each case, so that the loop's values stay in registers.
    #[inline(never)]
    fn reply_some<const ALONE: bool, const ADAPTS: bool>(
        &mut self,
        reports: &[Report],
        view: &mut View,
    ) -> usize {
        let (now_ns, parts) = (view.now_ns(), view.parts());
        let mut parts = if ALONE { parts.alone() } else { parts };
        let members = parts.states.members();
        let mut run = self.measurements.begin_run(now_ns, members, self.reserve, ADAPTS);
        let mut watch = self.losses.watch(members, now_ns);
        self.free.ranks.set_all(
            reports,
            members,
            #[inline(always)]
            |report| {
                let remaining = watch.answer(report, &mut parts);
                run.record(report);
                remaining
            },
        );
        run.end();
        let surplus = parts.surplus;
        if self.reserve.end > 0 {
            let reserved = reports.iter().filter(|report| self.reserve.has(report.member));
            for Report { member, .. } in reserved {
                self.reserved_free.ranks.set(*member, self.free.ranks.queue(*member));
            }
        }
        surplus
    }

    /// Checks a member for lost tasks, by its silence and by its reports, and writes them off. Returns true if there
    /// were any.
    fn watch(&mut self, member: Member, limits: SilenceLimits, view: &mut View) -> bool {
        let now_ns = view.now_ns();
        let (activity, cores) =
            (&mut self.measurements.activity[member.index()], self.free.core.count);
        self.silence.check(member, limits, view, |is_quiet| {
            if cores > 1 && !is_quiet {
                // Another core's task or reply changed the counts at an unknown time. Uses the current time.
                *activity = LastActivity::new(now_ns, activity.is_alone());
            }
            activity.at_ns()
        })
    }
}

impl Policy for Bounded {
    /// Picks members with a free place, until none has one. Cores of a node take shared places; otherwise the ranks
    /// give the member with the fewest tasks.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        let count = tasks.len().min(picks.len());
        let picks = &mut picks[..count];
        picks.fill(None); // a run ends at the first task without a place, and does not write the remaining picks
        if view.pool_exchange().is_some() {
            return self.pick_shared(picks, view);
        }
        if self.reserve.end > 0 {
            return self.pick_with_reserve(picks, view, rng);
        }
        let (view, states) = (&*view, view.states());
        let (free, measurements) = (&mut self.free, &mut self.measurements);
        let mut local = rng.clone(); // stays in registers over the run
        // Compiled for both cases; without other cores, the loop looks up no remote counts.
        match states.are_alone() {
            true => Self::pick_some(free, measurements, picks, states.alone(), view, &mut local),
            false => Self::pick_some(free, measurements, picks, states, view, &mut local),
        }
        *rng = local;
    }

    fn set_reserve_use(&mut self, reserve_use: ReserveUse) {
        self.reserve.usage = reserve_use;
    }

    /// Counts answers, frees places, detects lost tasks, and measures service times and round trips.
    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        if view.pool_exchange().is_some() {
            return self.reply_shared(reports, view);
        }
        // Alone: no other core sends to these members, so the loop looks up no remote counts.
        match (view.parts().are_alone(), self.measurements.bound.adapts) {
            (true, true) => self.reply_some::<true, true>(reports, view),
            (true, false) => self.reply_some::<true, false>(reports, view),
            (false, true) => self.reply_some::<false, true>(reports, view),
            (false, false) => self.reply_some::<false, false>(reports, view),
        }
    }

    /// Counts a task that the caller sent to a member without a pick, even above the bound. Takes no shared place: the
    /// next checks remove the surplus place.
    fn on_follow(&mut self, member: Member, view: &mut View) {
        self.free.ranks.add(member);
        if self.reserve.has(member) {
            self.reserved_free.ranks.add(member);
        }
        let first = LastActivity::new(view.now_ns(), true);
        // The view already contains this task. With shared places the ranks are up to date only after a check.
        let queue = view.outstanding(member).saturating_sub(1);
        self.measurements.activity[member.index()].record_task(queue, first);
    }

    /// Processes a report without a reply: writes lost tasks off, and measures the service time if it has one. The
    /// report ends no silence.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        let remaining = self.losses.take(report, view);
        if report.service_ns > 0 {
            let adapts = self.measurements.bound.adapts;
            let (now_ns, members) = (view.now_ns(), view.members());
            let mut run = self.measurements.begin_run(now_ns, members, self.reserve, adapts);
            run.record(report);
            run.end();
        }
        self.rank(report.member, remaining);
        self.silence.reported(report.member);
    }

    /// Corrects the member's position and frees the places of written-off tasks.
    fn on_written_off(&mut self, member: Member, view: &mut View) {
        self.silence.recounted(member);
        self.rank(member, view.outstanding(member));
        self.slots.settle(member, self.bound(), true, self.free.core, view);
    }

    /// Adopts the caller's properties, the set of active members and the common bound. Takes all queues from the view:
    /// the ranks of a new policy start at 0.
    fn on_members(&mut self, caller: Caller, view: &mut View) {
        (self.free.core, self.reserved_free.core) = (caller.core, caller.core);
        self.silence.on_members(caller, view);
        self.losses.resize(view);
        self.measurements.activity.resize(view.members(), LastActivity::new(view.now_ns(), false));
        self.reserve.end = reserved_end(view.members(), view.active(), self.reserve.members);
        let reserve = self.reserve;
        let active = || view.active().iter().copied();
        self.free.ranks.rank(view.members(), active().filter(|&member| !reserve.has(member)));
        self.reserved_free
            .ranks
            .rank(view.members(), active().filter(|&member| reserve.has(member)));
        self.measurements.bound.share(self.free.ranks.len(), caller.core.count);
        self.agree(view);
        self.slots.resize(view.members(), self.rows());
        view.set_tokens(self.rows(), self.bound());
        if let Some(pool_exchange) = view.pool_exchange() {
            // An earlier policy with more rows has left tokens behind these, which no search finds.
            pool_exchange.tokens().clear_from(self.rows());
        }
        for index in 0..view.active().len() {
            let member = view.active()[index];
            self.rank(member, view.outstanding(member));
            self.slots.settle(member, self.bound(), true, caller.core, view);
        }
    }

    fn round_trip_ns(&self) -> Option<u64> {
        self.losses.round_trip_ns()
    }

    /// If a check is due, agrees on the bound, writes lost tasks off, and corrects positions and places.
    fn on_tick(&mut self, view: &mut View, _rng: &mut Rng) {
        let (measured, bound) = (&self.measurements.bound.measured, self.bound());
        let limits = |silence: &SilenceChecks| silence.limits(measured, bound);
        let Some(limits) = self.silence.due(view.now_ns(), limits) else { return };
        let round_trip_ns = measured.round_trip_ns();
        self.losses.on_tick(view);
        if round_trip_ns > 0.0 {
            self.losses.note_round_trip(round_trip_ns as u64);
        }
        self.agree(view);
        view.set_tokens(self.rows(), self.bound());
        for index in 0..view.active().len() {
            let member = view.active()[index];
            let lost = limits.is_some_and(|limits| self.watch(member, limits, view));
            self.rank(member, view.outstanding(member));
            self.slots.settle(member, self.bound(), lost, self.free.core, view);
        }
    }
}
