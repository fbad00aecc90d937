//! Earliest finish time. A task goes to the member with the earliest expected end. The estimate uses the queue that
//! will be left when the task arrives there. The policy measures the mean work S of a task, the round trip R without
//! service, and the arrival rate ([`super::conditions`]). It needs no configuration.
//!
//! A member of rate r with q outstanding tasks serves a Poisson number N of them, with mean R r / S, before a new task
//! takes effect. It then has e(q) = E[max(q - N, 0)] tasks. The member's *time* is (e(q) + h) / r, with h = `HALF`. A
//! table for each rate has e(q). [`SpeedRanks`] orders the members by time.
//!
//! - A single core, and cores that exchange counts: the member with the least time, at random among equal ones.
//! - Both also *hold* tasks, if the round trip is short. A member with k tasks is full. The bound k is the least one
//!   that preserves most of the member's spare capacity. A task waits if all members are full. It also waits if the
//!   full members would end it sooner than the best member with room, even with all waiting tasks in their queues.
//! - Cores of a leaf publish their numbers of waiting tasks, and all use the largest bound of a core. The core whose
//!   task has the least key goes first ([`super::courtesy`]). No core holds tasks after too many had to wait, or if
//!   replies reach other cores than their tasks: round trips are wrong then, and bounds from them could keep members
//!   idle.
//! - Independent dispatchers: others have A tasks that no report shows yet. The policy assumes that these fill the
//!   queues to a common level, and draws a member with the probability that produces this level.
//!
//! Without configured speeds, the policy learns rates from the members' service times. Only a difference far beyond
//! chance changes a rate. Equal members thus stay in one class. With `reserve` it learns no rates.
//!
//! Only simulators have independent dispatchers: the cores of a leaf exchange counts and know no other leaves. The
//! policy finds lost tasks by the silence of members and by their reports ([`super::silence`]). Other policies find
//! them by the least number of tasks in flight ([`super::structure::Losses`]).

use arrayvec::ArrayVec;
use rand::Rng as _;

use super::classes::LONG_MOST;
use super::conditions::{Conditions, RunWork};
use super::courtesy::Courtesy;
use super::measured::MemberStatistics;
use super::silence::SilenceChecks;
use super::spec::{BOOST, RESERVE, SLO};
use super::structure::{Level, Rank, SpeedRanks, UNBOUNDED};
use super::{
    AnyPolicy, Caller, ClassRules, Entry, Pick, Picks, Policy, ReserveUse, Rng, Runs, Task,
};
use crate::state::{Member, MemberStates, Parts, PoolExchange, PublishedState, Report, View};

/// `eft`.
pub const ENTRY: Entry = Entry {
    by_rate: true,
    runs: Runs::LeafHolding,
    parameters: &[BOOST, RESERVE, SLO],
    publishes: PublishedState::COUNTS.with_backlog(),
    classes: ClassRules::from_values,
    ..Entry::new(
        "eft",
        "the earliest finish time by measured delay and load; with a short delay tasks wait while all members are full",
        "wedjat, after SED, SCD (SIGMETRICS 2021) and R2P2 (ATC 2019)",
        |v| AnyPolicy::from(Eft::new(v[1] as usize)),
    )
};

/// Added to the tasks left at a member, like `half` of `sed`.
const HALF: f64 = 0.35;
/// Longest round trip, in mean service times, with which the policy holds tasks: beyond it, holding gained nothing in
/// measurements.
const HELD_TRIPS: f64 = 0.5;
/// Minimum fraction of the spare capacity (1 - load) that a bound must preserve.
const IDLE_SHARE_LEAST: f64 = 0.97;
/// Maximum number of waiting tasks per member up to which several cores hold tasks. Several cores find lost tasks later
/// than a single core, and may measure wrong round trips. Both make bounds too low.
const WAITING_MOST: usize = 4;
/// Number of checks for lost tasks, at most 1 ms apart, for which several cores hold no tasks after too many had to
/// wait, or after a stray reply.
const SUSPENDED_CHECKS: u32 = 1000;
/// Largest load for which bounds are computed.
const LOAD_MOST: f64 = 0.99;
/// Load before the first measurement.
const LOAD_START: f64 = 0.9;
/// Bound before the first measurement.
const BOUND_START: u16 = 2;
/// Largest bound. A class of members that needs more tasks has no bound.
const BOUND_MOST: u16 = 64;
/// Expected number of unreported tasks below which the policy takes the member with the least time.
const UNSEEN_LEAST: f64 = 0.01;
/// Maximum number of levels over which unreported tasks are spread.
const LEVELS: usize = 128;
/// Relative change of the round trip after which the policy computes its tables again.
const TRIPS_CHANGE: f64 = 0.02;
/// Relative change of the spare load (1 - load) after which the policy computes its tables again.
const SPARE_CHANGE: f64 = 0.05;
/// Number of replies per member in a window. At its end the policy ages the longest service time and compares rates.
const WINDOW_REPLIES: usize = 16;
/// Maximum number of replies over which a member's service time is averaged.
const LEARNED_MOST: f64 = 512.0;
/// Number of a member's replies before its learned rate counts.
const LEARNED_LEAST: f64 = 8.0;
/// Number of standard deviations by which a learned rate must differ from the last one to replace it.
const DEVIATIONS: f64 = 5.0;
/// Natural logarithm of the ratio by which a learned rate must differ from the last one to replace it: 16%.
const LOG_RATIO: f64 = 0.15;
/// Steps of learned rates for each doubling of the rate.
const STEPS: f64 = 4.0;

/// Conditions for which the tables were computed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TableConditions {
    /// Round trip in mean service times at rate 1; `None` if unknown.
    trips: Option<f64>,
    /// Share of the members' capacity in use, at most [`LOAD_MOST`].
    load: f64,
    /// True if replies carry no service times. Then no member has a bound.
    is_untimed: bool,
    /// Bound of all members, which the cores have agreed on; `None` on a single core.
    common_bound: Option<u16>,
}

impl TableConditions {
    /// Conditions before the first measurement.
    const START: Self =
        Self { trips: None, load: LOAD_START, is_untimed: false, common_bound: None };

    /// Returns true if the tables for `self` suffice for `now`.
    fn suffices(self, now: Self) -> bool {
        is_near(1.0 - self.load, 1.0 - now.load, SPARE_CHANGE)
            && self.is_trip_near(now)
            && (self.is_untimed, self.common_bound) == (now.is_untimed, now.common_bound)
    }

    /// Returns true if the round trips differ little.
    fn is_trip_near(self, now: Self) -> bool {
        match (self.trips, now.trips) {
            (Some(a), Some(b)) => is_near(a, b, TRIPS_CHANGE),
            (a, b) => a == b,
        }
    }
}

/// Returns true if two values differ by at most this share of the larger one.
fn is_near(a: f64, b: f64, share: f64) -> bool {
    (a - b).abs() <= share * a.max(b)
}

/// Service time of one member, by its replies.
#[derive(Clone, Copy, Debug, Default)]
struct MemberService {
    /// Mean service time of the last [`LEARNED_MOST`] replies or so.
    mean_ns: f64,
    /// Number of replies, at most [`LEARNED_MOST`].
    replies: f64,
}

impl MemberService {
    /// Adds a reply, unless it carries no service time.
    #[inline(always)]
    fn add(&mut self, service_ns: u32) {
        if service_ns > 0 {
            self.replies = (self.replies + 1.0).min(LEARNED_MOST);
            self.mean_ns += (f64::from(service_ns) - self.mean_ns) / self.replies;
        }
    }

    /// Returns the member's rate for tasks of this mean work.
    fn rate(self, work_ns: f64) -> f64 {
        work_ns / self.mean_ns
    }
}

/// Rates of members without configured speeds, learned from their service times.
#[derive(Clone, Debug, Default)]
struct LearnedRates {
    /// True if all configured speeds are equal. The policy then learns rates.
    is_used: bool,
    /// Service time of each member.
    services: Vec<MemberService>,
    /// Rate of each member, rounded; 1 until a first update.
    rates: Vec<f64>,
}

impl LearnedRates {
    /// Adapts to changed members. Resets inactive members, because another worker may take their index. With reserved
    /// members the policy learns no rates: these get shorter tasks than others, and would seem faster.
    fn on_members(&mut self, view: &View, has_reserve: bool) {
        let mut configured = view.active().iter().map(|&member| view.rate(member));
        let first = configured.next();
        self.is_used = !has_reserve && configured.all(|rate| Some(rate) == first);
        self.services.resize(view.members(), MemberService::default());
        self.rates.resize(view.members(), 1.0);
        for member in (0..view.members() as u16).map(Member) {
            if !self.is_used || !view.is_active(member) {
                self.services[member.index()] = MemberService::default();
                self.rates[member.index()] = 1.0;
            }
        }
    }

    /// Updates the rates, for tasks of this mean work whose standard deviation is `variation` means. If one rate
    /// differs from its estimate by more than chance explains, all rates get new values. They are rounded, so that
    /// equal members rarely differ. Returns true if rates changed.
    fn update(&mut self, work_ns: f64, variation: f64) -> bool {
        let differs = |(service, rate): (&MemberService, &f64)| {
            // The mean of n replies has 1 / sqrt(n) of the deviation of one.
            let chance = DEVIATIONS * variation / service.replies.sqrt();
            (service.rate(work_ns) / rate).ln().abs() > chance.max(LOG_RATIO)
        };
        let mut members = self.services.iter().zip(&self.rates);
        let has_changed = work_ns > 0.0
            && members.any(|member| member.0.replies >= LEARNED_LEAST && differs(member));
        if has_changed {
            let members = self.services.iter().zip(&mut self.rates);
            for (service, rate) in members.filter(|(service, _)| service.replies >= LEARNED_LEAST) {
                *rate = ((service.rate(work_ns).log2() * STEPS).round() / STEPS).exp2();
            }
        }
        has_changed
    }
}

/// Policy of the earliest finish time.
#[derive(Clone, Debug)]
pub struct Eft {
    /// Order of the members by time, with tables and bounds by rate.
    ranks: SpeedRanks,
    /// Measurements of work, round trip and arrivals.
    conditions: Box<Conditions>,
    /// True if tasks may wait: this is the only core, or the cores exchange their counts.
    holds: bool,
    /// Order of waiting tasks between cores.
    courtesy: Courtesy,
    /// Number of further checks for lost tasks for which this core lets no core hold tasks.
    suspended_checks: u32,
    /// Rate of the fastest active member.
    fastest: f64,
    /// Number of members that long classes may not take.
    reserve: usize,
    /// Conditions for which the current tables were computed.
    computed_for: TableConditions,
    learned: LearnedRates,
    /// Sum of the rates of active members.
    rates: f64,
    /// Time of a member of mean rate with [`LONG_MOST`] tasks, multiplied by `rates`.
    backlog_times: f64,
    /// Inverse rate of each member.
    inverse_rates: Vec<f64>,
    /// Detection of lost tasks.
    silence: Box<SilenceChecks>,
    /// Time at which a silence check last found a change of the counts, by member.
    touched_ns: Vec<u64>,
    /// Service times and round trips, from which the silence checks derive their limits.
    measured: MemberStatistics,
    /// Number of replies in the window of the longest service time.
    window_replies: usize,
    /// Levels of the last decision with unreported tasks.
    levels: Box<ArrayVec<Level, LEVELS>>,
}

impl Eft {
    /// Creates the policy, without measurements. Long classes may not take `reserve` of the members.
    #[must_use]
    pub fn new(reserve: usize) -> Self {
        Self {
            ranks: SpeedRanks::new(HALF),
            conditions: Box::default(),
            holds: false,
            courtesy: Courtesy::default(),
            suspended_checks: 0,
            fastest: 1.0,
            reserve,
            computed_for: TableConditions::START,
            learned: LearnedRates::default(),
            rates: 0.0,
            backlog_times: 0.0,
            inverse_rates: Vec::new(),
            silence: Box::new(SilenceChecks::new(None)),
            touched_ns: Vec::new(),
            measured: MemberStatistics::default(),
            window_replies: 0,
            levels: Box::default(),
        }
    }

    /// Returns the largest bound on a member's tasks over all rates; `None` if some members have none.
    #[must_use]
    pub fn bound(&self) -> Option<usize> {
        self.ranks.bound()
    }

    /// Returns the use of reserved members by a task for which the rules for classes give `reserve_use`, as
    /// [`Policy::set_reserve_use`] sets it. Only `wedjat explain` uses it.
    #[must_use]
    pub fn reserve_use(&self, reserve_use: ReserveUse) -> ReserveUse {
        match reserve_use {
            ReserveUse::Never if self.has_backlog(self.ranks.soonest_unreserved()) => {
                ReserveUse::Last
            }
            _ => reserve_use,
        }
    }

    /// Returns true if the queues of all unreserved members show a backlog, and no member has a bound. `soonest` is the
    /// earliest time of an unreserved member.
    fn has_backlog(&self, soonest: f64) -> bool {
        self.ranks.bound().is_none() && soonest * self.rates > self.backlog_times
    }

    /// Returns true if a task that waits on this core may find a member now. `waiting` is the number of such tasks.
    #[must_use]
    pub fn may_release(&self, waiting: usize, view: &View) -> bool {
        let all = waiting + view.remote_backlog().tasks;
        // With reserved members, the order shows only those for the class of the last decision.
        self.reserve > 0 || self.has_room(all) || Self::are_too_many(all, view)
    }

    /// Returns true if some member should take a task now, with this number of waiting tasks on all cores.
    #[inline]
    fn has_room(&self, waiting: usize) -> bool {
        self.ranks.soonest().is_finite() && !Self::is_sooner_at_full(&self.ranks, waiting as f64)
    }

    /// Returns true if more tasks wait on all cores than [`WAITING_MOST`] allows: the bounds may keep members idle.
    /// False without members.
    #[inline]
    fn are_too_many(waiting: usize, view: &View) -> bool {
        let members = view.active().len();
        members > 0 && waiting > WAITING_MOST * members
    }

    /// Returns the conditions for which tables should be computed now, from the measurements in the field of this
    /// name.
    fn conditions(&self, view: &View) -> TableConditions {
        let load = match self.conditions.is_backlogged(view.active().len()) {
            // Bounds must never keep members idle while many tasks wait.
            true => LOAD_MOST,
            false => self.conditions.own_utilization(self.rates).unwrap_or(LOAD_START),
        };
        let conditions = TableConditions {
            trips: self.conditions.trip_in_services(),
            load: load.clamp(0.0, LOAD_MOST),
            is_untimed: self.conditions.is_untimed(),
            common_bound: None,
        };
        match view.pool_exchange() {
            Some(shared) => self.shared_conditions(conditions, shared),
            None => conditions,
        }
    }

    /// Returns the conditions on one of several cores: with a bound that all cores and members have. A core with a
    /// lower bound than others would find all members full, and its tasks would wait too long. The bound suffices for
    /// the fastest members and the largest load, because a core knows only its own arrivals.
    fn shared_conditions(&self, own: TableConditions, shared: &PoolExchange) -> TableConditions {
        let own = TableConditions { load: LOAD_MOST, ..own };
        let trips =
            if self.computed_for.is_trip_near(own) { self.computed_for.trips } else { own.trips };
        let own_bound = match trips {
            _ if self.suspended_checks > 0 || own.is_untimed => Some(UNBOUNDED),
            Some(trips) if trips > HELD_TRIPS => Some(UNBOUNDED),
            trips => trips.map(|trips| bound(trips * self.fastest, LOAD_MOST)),
        };
        // A published bound above the largest one stands for no bound.
        let common = shared.largest_bound(own_bound.map(|bound| bound.min(BOUND_MOST + 1).into()));
        let common = common.map_or(BOUND_START, |bound| bound as u16);
        let common_bound = Some(if common > BOUND_MOST { UNBOUNDED } else { common });
        TableConditions { common_bound, ..own }
    }

    /// Computes the table and the bound of each rate for the conditions in `computed_for`. Members have no bound if
    /// the policy holds no tasks, or without service times, or with a long round trip.
    #[cold]
    fn set_tables(&mut self) {
        let TableConditions { trips, load, is_untimed, common_bound } = self.computed_for;
        let holds = self.holds;
        self.ranks.set_tables(|rate, table| {
            let trips_of_rate = trips.map(|trips| trips * rate);
            fill(table, trips_of_rate.unwrap_or(0.0));
            if let Some(bound) = common_bound {
                return bound;
            }
            match trips_of_rate {
                _ if !holds || is_untimed => UNBOUNDED,
                Some(_) if trips > Some(HELD_TRIPS) => UNBOUNDED,
                Some(trips) => bound(trips, load),
                None => BOUND_START,
            }
        });
    }

    /// Picks the members with the least times, for tasks of a run. `waiting` is the number of tasks in the
    /// dispatcher's queue. Without `HOLDS`, no member is ever full, and the compiler omits the check for full members.
    #[inline(always)]
    fn pick_some<const HOLDS: bool>(
        ranks: &mut SpeedRanks,
        mut picks: Picks<'_>,
        waiting: f64,
        states: MemberStates<'_>,
        rng: &mut Rng,
    ) {
        while !picks.is_empty() {
            let Some(mut front) = ranks.open_class() else { break };
            // Leaves the tasks to the full members if these end them sooner. One check suffices for the whole front: a
            // member that these picks fill has a later time than the front, so it does not make the condition true.
            if HOLDS && Self::is_sooner_at_full(ranks, waiting) {
                break;
            }
            let count = (front.members as usize).min(picks.len());
            let (now, rest) = picks.split_at_mut(count);
            let idle = front.queue == 0;
            for pick in now {
                let member = ranks.take_of_class(&mut front, rng.next_u64() as u32);
                states.of(member).sent();
                *pick = Some(Pick { member, idle });
            }
            ranks.close_class(front);
            picks = rest;
        }
        picks.fill(None);
    }

    /// Picks members on one of several cores of a leaf. A task on another core with a lower key goes first.
    #[inline]
    fn pick_shared(&mut self, picks: Picks<'_>, shared: &PoolExchange, view: &View, rng: &mut Rng) {
        let remote = view.remote_backlog();
        let waiting = view.waiting() + remote.tasks;
        if Self::are_too_many(waiting, view) {
            self.suspended_checks = SUSPENDED_CHECKS;
            self.review(view);
        }
        // `is_first` is called only while a member has room: its time limit then starts with the room.
        if self.has_room(waiting) && self.courtesy.is_first(shared, (remote.oldest, 0), view) {
            Self::pick_some::<true>(&mut self.ranks, picks, waiting as f64, view.states(), rng);
        } else {
            picks.fill(None);
        }
    }

    /// Returns true if the full members, with the waiting tasks in their queues, would end a task sooner than the best
    /// member with room. False without full members, whose totals are 0.
    #[inline(always)]
    fn is_sooner_at_full(ranks: &SpeedRanks, waiting: f64) -> bool {
        let full = ranks.full_members();
        // Their time is (tasks + waiting) / speed. The product avoids a division by 0.
        ranks.soonest() * full.speed > full.tasks + waiting
    }

    /// Picks members so that their queues reach a common level, with `unseen` unreported tasks of other dispatchers.
    /// Otherwise all dispatchers would send to the same shortest queue.
    #[inline(never)]
    fn pick_levels(&mut self, picks: Picks<'_>, unseen: f64, view: &View, rng: &mut Rng) {
        for pick in picks {
            let member = self.draw(unseen, rng);
            *pick = member.map(|member| {
                let idle = self.ranks.queue(member) == 0;
                self.ranks.add(member);
                view.of(member).sent();
                Pick { member, idle }
            });
        }
    }

    /// Draws the member for one task, with `unseen` unreported tasks of other dispatchers; `None` without members.
    ///
    /// The policy assumes that all dispatchers fill the shortest queues together, up to a common height (tasks divided
    /// by speed). A member's probability is its part of the tasks that lift the queues to this height.
    fn draw(&mut self, unseen: f64, rng: &mut Rng) -> Option<Member> {
        let (ranks, levels) = (&self.ranks, &mut *self.levels);
        levels.clear();
        // Totals over the levels so far, and the height that `unseen` more tasks would reach over them.
        let (mut tasks, mut speed, mut height) = (0.0, 0.0, 0.0);
        // Adds levels, the lowest first, until the common height lies below the next one.
        ranks.levels(|level| {
            if speed > 0.0 && height <= level.tasks / level.speed {
                return false;
            }
            let members = level.members as f64;
            tasks += members * level.tasks;
            speed += members * level.speed;
            height = (unseen + tasks) / speed;
            levels.try_push(level).is_ok()
        });
        let bits = rng.next_u64(); // the low 32 bits choose a member of the level
        // Uniform below `unseen`, the sum of the tasks that lift all levels to the height, by the high 32 bits.
        let mut point = f64::from((bits >> 32) as u32) * (-32.0_f64).exp2() * unseen;
        let mut chosen = levels.first()?;
        for level in levels.iter() {
            chosen = level;
            // Tasks that lift the members of this level to the common height.
            point -= level.members as f64 * (level.speed * height - level.tasks);
            if point < 0.0 {
                break;
            }
        }
        Some(ranks.member_of(chosen, bits as u32))
    }

    /// Processes the reports of replies. Returns the number of replies from members without outstanding tasks.
    #[inline(always)]
    fn reply_some(&mut self, reports: &[Report], mut parts: Parts<'_>, now_ns: u64) -> usize {
        let members = parts.states.members();
        let (conditions, measured) = (&mut *self.conditions, &mut self.measured);
        let inverse_rates = &self.inverse_rates[..members];
        let (learns, services) = (self.learned.is_used, &mut self.learned.services[..members]);
        let mut run = RunWork::default();
        let mut notes = measured.notes;
        self.ranks.set_all(
            reports,
            members,
            #[inline(always)]
            |report| {
                run.add(report.service_ns, inverse_rates[report.member.index()]);
                notes.note_longest(report.service_ns);
                if learns {
                    services[report.member.index()].add(report.service_ns);
                }
                // The reply may answer the marked task, which measures the round trip.
                if conditions.marked_member() == Some(report.member) {
                    let inverse_rate = inverse_rates[report.member.index()];
                    let trip = conditions.note_reply_of_marked_member(
                        report.service_ns,
                        inverse_rate,
                        now_ns,
                    );
                    if let Some(trip_ns) = trip {
                        notes.note(report.service_ns, Some(trip_ns as u64));
                    }
                }
                let state = parts.states.of(report.member);
                parts.surplus += usize::from(!state.answered_with(report.load));
                state.set_load(report.load);
                state.outstanding()
            },
        );
        measured.notes = notes;
        conditions.note_work(run);
        self.window_replies += reports.len();
        parts.surplus
    }

    /// Orders the members by rates, configured or learned, and computes the tables.
    fn rank(&mut self, view: &View) {
        let learned = &self.learned;
        let rate = |member: Member| match learned.is_used {
            true => learned.rates[member.index()],
            false => view.rate(member),
        };
        self.ranks.rank_with_reserve(view.members(), view.active(), self.reserve, rate);
        let all = (0..view.members() as u16).map(Member);
        self.inverse_rates.clear();
        self.inverse_rates.extend(all.map(|member| self.ranks.speed(member).recip()));
        let rates = || view.active().iter().map(|&member| self.ranks.speed(member));
        (self.rates, self.fastest) = (rates().sum(), rates().fold(0.0, f64::max));
        self.backlog_times = (LONG_MOST as f64 + HALF) * view.active().len() as f64;
        self.computed_for = self.conditions(view);
        self.set_tables();
    }

    /// Adapts the tables to changed conditions, and the order to learned rates. Cheap if neither changed.
    #[inline]
    fn review(&mut self, view: &View) {
        let now = self.conditions(view);
        if !self.computed_for.suffices(now) {
            self.computed_for = now;
            self.set_tables();
        }
        if self.window_replies >= WINDOW_REPLIES * view.active().len().max(1) {
            self.end_window(view);
        }
    }

    /// Ends a window of replies: ages the longest service time, and compares the members' service times.
    #[cold]
    fn end_window(&mut self, view: &View) {
        self.window_replies = 0;
        // The numbers of members and cores and the bound affect only the utilisation, which this policy does not use.
        self.measured.end_window(view.now_ns(), view.active().len().max(1), 1, 1);
        let (work_ns, variation) = self.conditions.work();
        if self.learned.is_used && self.learned.update(work_ns, variation) {
            self.rank(view);
        }
    }

    /// Writes off lost tasks: all tasks of a member that is silent for too long, and tasks that its reports *deny* (do
    /// not count a round trip after the sending).
    fn check_silence(&mut self, view: &mut View) {
        let (measured, now_ns) = (&self.measured, view.now_ns());
        // Maximum number of tasks that reports may deny: as many as a member can hold.
        let denials = self.ranks.bound().unwrap_or(BOUND_MOST.into());
        let limits = |silence: &SilenceChecks| silence.limits(measured, denials);
        let Some(limits) = self.silence.due(now_ns, limits) else { return };
        let is_shared = view.pool_exchange().is_some();
        let mut has_strays = false;
        for index in 0..view.active().len() {
            let member = view.active()[index];
            has_strays |= is_shared && self.conditions.receives_strays(member, view);
            let touched_ns = &mut self.touched_ns[member.index()];
            let lost = limits.is_some_and(|limits| {
                self.silence.check(member, limits, view, |is_quiet| {
                    *touched_ns = if is_quiet { *touched_ns } else { now_ns };
                    *touched_ns
                })
            });
            if lost {
                self.conditions.forget(member);
                self.ranks.set(member, view.outstanding(member));
            }
        }
        if is_shared {
            self.suspended_checks = match has_strays {
                true => SUSPENDED_CHECKS,
                false => self.suspended_checks.saturating_sub(1),
            };
            self.review(view); // another core may have changed the bound
        }
    }
}

/// Fills a table with e(q) at index q: the expected number of q tasks that are left after `trips` mean service times.
fn fill(table: &mut [f64], trips: f64) {
    // One more task adds the probability that at most `count` tasks have ended. Their number has a Poisson
    // distribution, with mean `trips`. `chance` is the probability of exactly `count`, `fewer` that of at most `count`,
    // and `left` the expected number left.
    let (mut chance, mut fewer, mut left) = ((-trips).exp(), 0.0_f64, 0.0);
    for (count, value) in table.iter_mut().enumerate() {
        *value = left;
        fewer += chance;
        left += fewer.min(1.0);
        chance *= trips / (count + 1) as f64;
    }
}

/// Returns the least bound that preserves [`IDLE_SHARE_LEAST`] of the members' spare capacity at this load.
///
/// A member with bound k has k places. While tasks wait, each place holds a task at the member or one on its round
/// trip. The member idles only while all places are on round trips. By Erlang's loss formula this is a fraction B of
/// the time ([`MemberStatistics::bound`] explains it). The loop computes B(k), in `idle`, from B(k - 1).
fn bound(trips: f64, load: f64) -> u16 {
    let mut idle = 1.0;
    for places in 1..=BOUND_MOST {
        idle = trips * idle / (f64::from(places) + trips * idle);
        if 1.0 - load / (1.0 - idle) >= IDLE_SHARE_LEAST * (1.0 - load) {
            return places;
        }
    }
    UNBOUNDED
}

impl Policy for Eft {
    /// Picks by levels if other dispatchers have unreported tasks. Otherwise takes the members with the least times.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        let count = tasks.len().min(picks.len());
        let (picks, view) = (&mut picks[..count], &*view);
        let (states, unseen) = (view.states(), self.conditions.unseen());
        let mut local = rng.clone(); // stays in registers over the run
        if unseen >= UNSEEN_LEAST {
            self.pick_levels(picks, unseen, view, &mut local);
        } else if self.holds {
            match view.pool_exchange() {
                Some(shared) => self.pick_shared(picks, shared, view, &mut local),
                None => {
                    let waiting = view.waiting() as f64;
                    Self::pick_some::<true>(&mut self.ranks, picks, waiting, states, &mut local);
                }
            }
        } else {
            Self::pick_some::<false>(&mut self.ranks, picks, 0.0, states, &mut local);
        }
        *rng = local;
        self.conditions.note_picks(picks, view);
    }

    /// Sets the use of reserved members. Without bounds of members, long tasks wait at the members. If the queues of
    /// all unreserved members show a backlog, a long task takes reserved members, too.
    fn set_reserve_use(&mut self, reserve_use: ReserveUse) {
        self.ranks.set_reserve_use(reserve_use);
        if reserve_use == ReserveUse::Never && self.has_backlog(self.ranks.soonest()) {
            self.ranks.set_reserve_use(ReserveUse::Last);
        }
    }

    /// Adds a task that the caller sent to a member without a pick to the member's queue in the order.
    fn on_follow(&mut self, member: Member, _view: &mut View) {
        self.ranks.add(member);
    }

    /// Counts answers, measures them, and adapts the tables.
    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        let (now_ns, parts) = (view.now_ns(), view.parts());
        let surplus = match parts.are_alone() {
            true => self.reply_some(reports, parts.alone(), now_ns),
            false => self.reply_some(reports, parts, now_ns),
        };
        // Here and not in `on_tick`, because a new bound may make room. The caller offers waiting tasks again after
        // replies, but not after each tick.
        self.review(view);
        surplus
    }

    /// Processes a report without a reply. It measures nothing, and does not end a silence.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
        self.silence.reported(report.member);
        self.ranks.set(report.member, view.outstanding(report.member));
    }

    /// Moves the member to the position of its current tasks, and counts other dispatchers' arrivals.
    fn on_remote_update(&mut self, member: Member, view: &mut View) {
        self.conditions.note_remote(member, view);
        self.ranks.set(member, view.outstanding(member));
    }

    /// Moves the member to the position of its current tasks after the caller corrected them. A marked task there may
    /// have been written off.
    fn on_written_off(&mut self, member: Member, view: &mut View) {
        self.silence.recounted(member);
        self.conditions.forget(member);
        self.ranks.set(member, view.outstanding(member));
    }

    /// Adopts the caller's properties, and orders all members by their current tasks.
    fn on_members(&mut self, caller: Caller, view: &mut View) {
        self.holds = caller.core.count == 1 || view.pool_exchange().is_some();
        self.silence.on_members(caller, view);
        self.touched_ns.resize(view.members(), view.now_ns());
        self.conditions.on_members(caller, view);
        self.learned.on_members(view, self.reserve > 0);
        self.rank(view);
        for index in 0..view.active().len() {
            let member = view.active()[index];
            self.ranks.set(member, view.outstanding(member));
        }
    }

    fn round_trip_ns(&self) -> Option<u64> {
        self.conditions.trip_ns()
    }

    /// Gives up a marked task without a reply, and checks for lost tasks.
    fn on_tick(&mut self, view: &mut View, _rng: &mut Rng) {
        self.conditions.on_tick(view.now_ns());
        self.check_silence(view);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Core, Dispatcher, Lane, exchange};
    use crate::state::{Exchange, Load};
    use rand::SeedableRng as _;

    #[test]
    fn service_is_subtracted_once() {
        let (mut policy, mut view) = (Eft::new(0), View::heap(1, 1).remove(0));
        let mut rng = Rng::seed_from_u64(1);
        policy.on_members(Caller::on(Core::ONLY), &mut view);
        policy.pick_run(&[Task::default()], &mut [None], &mut view, &mut rng);
        view.note_time(140_000);
        let report = Report::new(Member(0), Load(0), 100_000);
        assert_eq!(policy.reply_run(&[report], &mut view, &mut rng), 0);
        assert_eq!(policy.measured.round_trip_ns(), 40_000.0);
    }

    #[test]
    fn tables_hold_what_is_left() {
        let mut table = [0.0; 6];
        fill(&mut table, 0.0);
        assert_eq!(table, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        fill(&mut table, 2.0);
        // Two tasks are left with probability exp(-2), and one with probability 2 exp(-2).
        assert!((table[2] - 4.0 * (-2.0_f64).exp()).abs() < 1e-12, "{table:?}");
        // Two of five tasks end in the mean.
        assert!((table[5] - 3.0).abs() < 0.1, "{table:?}");
    }

    // promise: scheduling.3
    #[test]
    fn bound_hides_the_round_trip() {
        assert_eq!((bound(0.0, 0.9), bound(0.02, 0.5)), (1, 1));
        let bounds = [0.1, 0.4, 2.0, 20.0].map(|trips| bound(trips, 0.9));
        assert!(bounds.is_sorted() && bounds[0] > 1 && bounds[3] > 20, "{bounds:?}");
        assert_eq!(bound(1000.0, 0.9), UNBOUNDED);
    }

    /// Dispatcher of two members, the second ten times as fast, that has measured tasks of 100 us at rate 1 and no
    /// round trip.
    fn measured() -> Dispatcher {
        let view = View::heap(2, 1).remove(0);
        let mut dispatcher = Dispatcher::new(&"eft".parse().unwrap(), view, Core::ONLY, 7);
        dispatcher.set_rates(&[1.0, 10.0]);
        for round in 0..100 {
            dispatcher.tick(20_000 * round);
            assert_eq!(members(&mut dispatcher, 1), [Some(1)]);
            dispatcher.tick(20_000 * round + 10_000);
            reply(&mut dispatcher, 1, 10_000);
        }
        dispatcher.tick(2_000_000);
        dispatcher
    }

    /// Schedules this number of tasks. Returns the index of the member that each goes to.
    fn members(dispatcher: &mut Dispatcher, tasks: usize) -> Vec<Option<u16>> {
        let mut picks = vec![None; tasks];
        dispatcher.schedule(&vec![Task::default(); tasks], &mut picks);
        picks.iter().map(|pick| pick.map(|pick| pick.member.0)).collect()
    }

    /// Processes a reply of a member without further tasks.
    fn reply(dispatcher: &mut Dispatcher, member: u16, service_ns: u32) {
        dispatcher.reply(&Report::new(Member(member), Load(0), service_ns));
    }

    // promise: scheduling.3
    #[test]
    fn tasks_wait_for_a_faster_member() {
        let mut dispatcher = measured();
        // The slow member's time is 0.35 / 1, which is 3.5 mean service times of the fast one. The full fast member
        // ends the second task sooner, so that task waits.
        assert_eq!(members(&mut dispatcher, 2), [Some(1), None]);
        for _ in 0..3 {
            dispatcher.join(Lane::FIRST).unwrap();
        }
        // With three waiting tasks, the fast member would end the first task later.
        assert_eq!(members(&mut dispatcher, 2), [Some(0), None]);
        reply(&mut dispatcher, 1, 10_000);
        assert_eq!(members(&mut dispatcher, 1), [Some(1)]);
    }

    /// The policy computes bounds from the arrivals, not from the tasks that the bounds let pass. Places without an
    /// active member do not count.
    #[test]
    fn low_bound_ends_when_tasks_wait() {
        let view = View::heap(20, 1).remove(0);
        let mut dispatcher = Dispatcher::new(&"eft".parse().unwrap(), view, Core::ONLY, 7);
        (1..20).for_each(|member| dispatcher.set_active(Member(member), false));
        // A member at a tenth of its capacity, with a round trip of 0.4 service times.
        for round in 0..200 {
            dispatcher.tick(1_000_000 * round);
            assert_eq!(members(&mut dispatcher, 1), [Some(0)]);
            dispatcher.tick(1_000_000 * round + 140_000);
            reply(&mut dispatcher, 0, 100_000);
        }
        dispatcher.tick(200_000_000);
        let low = dispatcher.beliefs().bound.unwrap();
        (0..10).for_each(|_| _ = dispatcher.join(Lane::FIRST).unwrap());
        members(&mut dispatcher, 1);
        reply(&mut dispatcher, 0, 100_000);
        assert!(dispatcher.beliefs().bound.unwrap() > low + 1, "{low}");
    }

    #[test]
    fn speeds_are_learned() {
        let view = View::heap(4, 1).remove(0);
        let mut dispatcher = Dispatcher::new(&"eft".parse().unwrap(), view, Core::ONLY, 7);
        let mut counts = [0_usize; 4];
        for round in 0..1000 {
            dispatcher.tick(100_000 * round);
            let sent = members(&mut dispatcher, 2);
            dispatcher.tick(100_000 * round + 90_000);
            for member in sent.into_iter().flatten() {
                counts[usize::from(member)] += usize::from(round >= 500);
                // 40 to 59 us: less variation than with exponential times. The last member is four times as fast.
                let service_ns = 40_000 + 1000 * (round as u32 % 20);
                reply(
                    &mut dispatcher,
                    member,
                    if member == 3 { service_ns / 4 } else { service_ns },
                );
            }
        }
        // The fast member gets at least the first of two tasks.
        assert!(counts[3] >= 500, "{counts:?}");
        // Equal members stay equal.
        assert!(counts[..3].iter().all(|count| count.abs_diff(counts[0]) < 60), "{counts:?}");
    }

    #[test]
    fn chance_makes_no_speeds() {
        let mut learned = LearnedRates { is_used: true, ..LearnedRates::default() };
        let mut service = MemberService::default();
        (0..100).for_each(|_| service.add(1500));
        (learned.services, learned.rates) = (vec![service], vec![1.0]);
        // After 100 replies, a mean that is 1.5 times as long is chance for bursty service times only.
        assert!(!learned.update(1000.0, 1.0));
        assert!(learned.update(1000.0, 0.1) && learned.rates[0] < 0.75);
        assert!(!learned.update(1000.0, 0.1));
    }

    #[test]
    fn pool_without_service_times_holds_no_tasks() {
        let view = View::heap(1, 1).remove(0);
        let mut dispatcher = Dispatcher::new(&"eft".parse().unwrap(), view, Core::ONLY, 7);
        assert_eq!(members(&mut dispatcher, 3), [Some(0), Some(0), None]);
        for _ in 0..100 {
            reply(&mut dispatcher, 0, 0);
            members(&mut dispatcher, 1);
        }
        dispatcher.tick(1000);
        assert_eq!(members(&mut dispatcher, 3), [Some(0); 3]);
    }

    #[test]
    fn unreported_tasks_spread_the_picks() {
        let mut pair = View::heap(4, 2);
        let (_other, view) = (pair.pop(), pair.pop().unwrap());
        let core = Core { index: 0, count: 3 };
        let mut dispatcher = Dispatcher::new(&"eft".parse().unwrap(), view, core, 7);
        for member in [2, 3] {
            (0..9).for_each(|_| dispatcher.count_placed(Member(member)));
        }
        let mut counts = [0_usize; 4];
        for _ in 0..1000 {
            let member = members(&mut dispatcher, 1)[0].unwrap();
            counts[usize::from(member)] += 1;
            reply(&mut dispatcher, member, 0);
        }
        // Two unreported tasks cannot reach the level of nine tasks.
        assert!(counts[0].abs_diff(500) < 100 && counts[2..] == [0, 0], "{counts:?}");
    }

    /// Cores of one leaf with a pool of two members. The second one is ten times as fast as the first.
    struct Cores {
        dispatchers: Vec<Dispatcher>,
        exchanges: Vec<Exchange>,
    }

    impl Cores {
        /// Creates two cores, which have both measured tasks of 100 us at rate 1 and no round trip. The time is 2 ms.
        fn measured() -> Self {
            let (views, exchanges) = View::of_cores(2, 2);
            let core = |(index, view)| {
                let core = Core { index, count: 2 };
                let mut dispatcher = Dispatcher::new(&"eft".parse().unwrap(), view, core, 7);
                dispatcher.set_rates(&[1.0, 10.0]);
                dispatcher
            };
            let dispatchers = views.into_iter().enumerate().map(core).collect();
            let mut cores = Self { dispatchers, exchanges };
            for round in 0..100 {
                let core = round as usize % 2;
                cores.tick(20_000 * round);
                assert_eq!(cores.members(core, 1), [Some(1)]);
                cores.tick(20_000 * round + 10_000);
                reply(&mut cores.dispatchers[core], 1, 10_000);
            }
            cores.tick(2_000_000);
            cores
        }

        /// Advances the time of all cores, after they have exchanged their changes.
        fn tick(&mut self, now_ns: u64) {
            for _ in 0..2 {
                let cores = self.exchanges.iter_mut().zip(self.dispatchers.chunks_mut(1));
                cores.for_each(|(own, dispatchers)| exchange(own, dispatchers, true));
            }
            self.dispatchers.iter_mut().for_each(|core| core.tick(now_ns));
        }

        /// Schedules tasks on a core. Returns the index of the member that each goes to.
        fn members(&mut self, core: usize, tasks: usize) -> Vec<Option<u16>> {
            members(&mut self.dispatchers[core], tasks)
        }
    }

    // promise: scheduling.3
    #[test]
    fn cores_of_a_leaf_hold_in_order() {
        let mut cores = Cores::measured();
        assert_eq!(cores.dispatchers[1].beliefs().bound, Some(1));
        assert_eq!(cores.members(0, 1), [Some(1)]);
        cores.tick(2_001_000);
        // The full fast member ends another task of either core sooner than the slow member.
        for (core, now_ns) in [(1, 2_002_000), (0, 2_003_000)] {
            assert_eq!(cores.members(core, 1), [None]);
            cores.dispatchers[core].join(Lane::FIRST).unwrap();
            cores.tick(now_ns);
        }
        assert!(cores.dispatchers.iter().all(|core| !core.may_release()));
        reply(&mut cores.dispatchers[0], 1, 10_000);
        cores.tick(2_004_000);
        // The task of the second core has waited longer.
        assert!(cores.dispatchers.iter().all(Dispatcher::may_release));
        assert_eq!(cores.members(0, 1), [None]);
        assert_eq!(cores.members(1, 1), [Some(1)]);
        cores.dispatchers[1].leave(Lane::FIRST);
        cores.tick(2_005_000);
        assert!(!cores.dispatchers[0].may_release());
        // The second core's reply makes room for the first core's task.
        reply(&mut cores.dispatchers[1], 1, 10_000);
        cores.tick(2_006_000);
        assert!(cores.dispatchers[0].may_release());
        assert_eq!(cores.members(0, 1), [Some(1)]);
    }

    #[test]
    fn waiting_tasks_of_all_cores_count() {
        let mut cores = Cores::measured();
        assert_eq!(cores.members(0, 1), [Some(1)]);
        cores.tick(2_001_000);
        for core in [0, 1, 1] {
            cores.dispatchers[core].join(Lane::FIRST).unwrap();
        }
        cores.tick(2_002_000);
        // With three waiting tasks, the fast member would end the first task later than the slow one.
        assert!(cores.dispatchers.iter().all(Dispatcher::may_release));
        assert_eq!(cores.members(0, 1), [Some(0)]);
        cores.dispatchers[0].leave(Lane::FIRST);
        cores.tick(2_003_000);
        assert_eq!(cores.dispatchers[0].view().remote_backlog().tasks, 2);
        assert_eq!(cores.dispatchers[1].view().remote_backlog().tasks, 0);
    }

    #[test]
    fn stalled_core_blocks_no_other_core() {
        let mut cores = Cores::measured();
        cores.dispatchers[1].join(Lane::FIRST).unwrap();
        cores.tick(2_001_000);
        assert_eq!(cores.members(0, 1), [None]);
        cores.dispatchers[0].join(Lane::FIRST).unwrap();
        cores.tick(2_005_000);
        assert_eq!(cores.members(0, 1), [None]);
        cores.tick(2_007_000);
        assert!(cores.dispatchers[0].may_release());
        assert_eq!(cores.members(0, 1), [Some(1)]);
    }

    #[test]
    fn excess_of_waiting_tasks_goes_to_full_members() {
        let mut cores = Cores::measured();
        assert_eq!(cores.members(0, 1), [Some(1)]);
        cores.dispatchers[0].count_placed(Member(0));
        (0..2 * WAITING_MOST).for_each(|_| _ = cores.dispatchers[1].join(Lane::FIRST).unwrap());
        cores.tick(2_001_000);
        assert!(!cores.dispatchers[1].may_release());
        assert_eq!(cores.members(1, 1), [None]);
        cores.dispatchers[0].join(Lane::FIRST).unwrap();
        cores.tick(2_002_000);
        assert!(cores.dispatchers[1].may_release());
        assert_eq!(cores.members(1, 1), [Some(1)]);
    }

    /// Tasks that wait only for the return of the members show no wrong bound.
    #[test]
    fn absent_members_end_no_holding() {
        let mut cores = Cores::measured();
        let set_active = |cores: &mut Cores, active| {
            for core in &mut cores.dispatchers {
                [0, 1].into_iter().for_each(|member| core.set_active(Member(member), active));
            }
        };
        set_active(&mut cores, false);
        cores.dispatchers[0].join(Lane::FIRST).unwrap();
        cores.tick(2_001_000);
        assert_eq!(cores.members(0, 1), [None]);
        assert!(!cores.dispatchers[0].may_release());
        set_active(&mut cores, true);
        assert_eq!(cores.dispatchers[0].beliefs().bound, Some(1));
    }

    /// With replies on any core, round trips are wrong. A bound from them could keep members idle.
    #[test]
    fn unsteered_replies_end_the_holding() {
        let mut cores = Cores::measured();
        (0..2).for_each(|_| cores.dispatchers[1].count_placed(Member(1)));
        reply(&mut cores.dispatchers[0], 1, 10_000);
        cores.tick(4_000_000);
        cores.tick(6_000_000);
        assert!(cores.dispatchers.iter().all(|core| core.beliefs().bound.is_none()));
        assert_eq!(cores.members(0, 3), [Some(1); 3]);
    }
}
