//! Scheduling policies: values in, a member out.
//!
//! A policy sees a task's values, one core's [`View`] of the pool and a random source; never bytes, ports
//! or clocks. The simulator and the dataplane drive the same types through [`Dispatcher`]. Names and
//! parameters are in [`CATALOGUE`]; each policy's file cites its paper and states its deviations.

mod alias;
mod bounded;
mod catalogue;
mod forgotten;
mod horus;
mod horus_spine;
mod learned;
mod learner;
mod line;
mod lsq;
mod measured;
pub mod member;
mod ppot;
mod racksched;
mod random;
mod ranks;
mod recent;
mod round_robin;
mod shortest;
pub mod signals;
mod waterfill;

pub use alias::Alias;
pub use bounded::Bounded;
pub use catalogue::{CATALOGUE, Entry, PAIRS, Parameter, PolicyError, PolicySpec, Runs};
pub use horus::{Horus, HorusInflight};
pub use horus_spine::HorusSpine;
pub use learned::Learned;
pub use learner::{Learner, Window};
pub use lsq::Lsq;
pub use ppot::Ppot;
pub use racksched::RackSched;
pub use random::{Random, WeightedRandom};
pub use ranks::{Found, Rank, Ranking, Ranks, SpeedRanks};
pub use round_robin::RoundRobin;
pub use shortest::{Notified, Otherwise, Shortest, ShortestOf};
pub use waterfill::WaterFill;

use enum_dispatch::enum_dispatch;
use rand::{Rng as _, SeedableRng};

use crate::state::{Belief, Member, Report, View};

/// The random source of policies: seedable, and its stream never changes between releases.
pub type Rng = rand_xoshiro::Xoshiro256PlusPlus;

/// What a policy may know of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// Task type, 0 when unknown.
    pub class: u16,
}

/// A policy's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The member chosen.
    pub member: Member,
    /// It was believed idle (the task header's `qlen`, Horus's idleSelected).
    pub idle: bool,
}

/// Which of a node's dispatcher cores this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its number, from 0.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl Core {
    /// The only core.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// What one core does for each member, this one does for `member`.
    #[must_use]
    pub fn looks_after(self, member: Member) -> bool {
        member.index() % self.count == self.index
    }
}

/// A way to choose a member for a task. [`Policy::pick`] is the only hook that must be there.
///
/// The caller counts the task as sent ([`View::sent`], then [`Policy::on_sent`]) after each pick, and as
/// answered ([`View::answered`]) before each `on_reply`.
///
/// No pick means: no member may have the task now. Central queues answer so while all members are full;
/// their caller holds the task and offers it again after a reply or a tick.
#[enum_dispatch]
pub trait Policy {
    /// Chooses among the view's active members; none when no member may have the task now.
    fn pick(&mut self, task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick>;

    /// Chooses for a run of tasks, one after the other, each counted as sent before the next is
    /// looked at. One call per burst, so that the policy is known at compile time within the loop.
    fn pick_run(
        &mut self,
        tasks: &[Task],
        picks: &mut [Option<Pick>],
        view: &mut View,
        rng: &mut Rng,
    ) {
        let mut local = rng.clone(); // stays in registers over the run
        for (task, pick) in tasks.iter().zip(picks) {
            *pick = self.send(task, view, &mut local);
        }
        *rng = local;
    }

    /// Chooses and counts the task as sent; a policy that has looked at the member can do both in one.
    #[inline(always)]
    fn send(&mut self, task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        let pick = self.pick(task, view, rng);
        if let Some(pick) = pick {
            view.sent(pick.member);
            self.on_sent(pick.member, view);
        }
        pick
    }

    /// A task was sent to `member`; also for tasks that follow another one without a pick of their own.
    fn on_sent(&mut self, _member: Member, _view: &mut View) {}

    /// A member reported.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
    }

    /// Takes the reports of replies, one after the other, each counted as answered just before. One call a
    /// burst, as [`Policy::pick_run`]. Returns how many came from members that had no task outstanding.
    fn reply_run(&mut self, reports: &[Report], view: &mut View, rng: &mut Rng) -> usize {
        let mut surplus = 0;
        for report in reports {
            surplus += usize::from(!view.answered(report.member));
            self.on_reply(report, view, rng);
        }
        surplus
    }

    /// Tasks of `member` were written off: it has fewer than its answers told.
    fn on_written_off(&mut self, _member: Member, _view: &mut View) {}

    /// The active members changed, or the policy starts: what it derives from them is stale.
    fn on_members(&mut self, _core: Core, _view: &mut View) {}

    /// Time passed; called now and then.
    fn on_tick(&mut self, _now_ns: u64, _view: &mut View, _rng: &mut Rng) {}
}

/// Every policy, so that a pool's is chosen when it starts and known within a burst.
#[enum_dispatch(Policy)]
#[repr(u8)] // a tag of its own: one in a niche takes longer to read
#[derive(Clone, Debug)]
pub enum AnyPolicy {
    /// Idle list, then power of two on load plus drift.
    Horus,
    /// As Horus, never forgetting tasks in flight.
    HorusInflight,
    /// Horus over racks.
    HorusSpine,
    /// Power of two on reported loads.
    RackSched,
    /// Uniform.
    Random,
    /// One after the other.
    RoundRobin,
    /// In proportion to service rates.
    WeightedRandom,
    /// The shortest queue, or the shortest expected delay.
    Shortest,
    /// The shortest of a few queues.
    ShortestOf,
    /// Members that told they have little to do.
    Notified,
    /// The shortest queue of a local view.
    Lsq,
    /// Proportional power of two.
    Ppot,
    /// Proportional power of two with learned rates.
    Learned,
    /// Stochastic coordination.
    WaterFill,
    /// A central queue.
    Bounded,
}

/// A policy that is to take another's place between bursts, with the memory that it needs for its members.
#[derive(Debug)]
pub struct Prepared {
    policy: AnyPolicy,
    holds: bool,
}

impl Prepared {
    /// For a core's view of so many members.
    #[must_use]
    pub fn new(spec: &PolicySpec, members: usize, core: Core) -> Self {
        let mut policy = spec.build();
        if let Some(mut view) = View::heap(members, 1).pop() {
            policy.on_members(core, &mut view);
        }
        Self { policy, holds: spec.entry().runs == Runs::LeafHolding }
    }
}

/// One core's scheduler of one pool: a policy, what it decides on, and its random source.
#[derive(Debug)]
pub struct Dispatcher {
    policy: AnyPolicy,
    view: View,
    rng: Rng,
    core: Core,
    holds: bool,
}

impl Dispatcher {
    /// A dispatcher on `core`. Equal seeds and equal calls give equal choices.
    #[must_use]
    pub fn new(spec: &PolicySpec, view: View, core: Core, seed: u64) -> Self {
        let holds = spec.entry().runs == Runs::LeafHolding;
        let mut dispatcher =
            Self { policy: spec.build(), view, rng: Rng::seed_from_u64(seed), core, holds };
        dispatcher.policy.on_members(core, &mut dispatcher.view);
        dispatcher
    }

    /// Chooses for a run of tasks, counting each as sent.
    #[inline]
    pub fn schedule(&mut self, tasks: &[Task], picks: &mut [Option<Pick>]) {
        self.policy.pick_run(tasks, picks, &mut self.view, &mut self.rng);
    }

    /// Sends one more task after `member`'s last, without a choice.
    pub fn follow(&mut self, member: Member) {
        self.view.sent(member);
        self.policy.on_sent(member, &mut self.view);
    }

    /// Takes `lost` tasks off those outstanding at `member`: nobody will answer them.
    pub fn write_off(&mut self, member: Member, lost: u32) {
        self.view.write_off(member, lost);
        self.policy.on_written_off(member, &mut self.view);
    }

    /// The core that it is on.
    #[must_use]
    pub fn core(&self) -> Core {
        self.core
    }

    /// Tells the members' service rates.
    pub fn set_rates(&mut self, rates: &[f64]) {
        self.view.set_rates(rates);
        self.policy.on_members(self.core, &mut self.view);
    }

    /// Takes the reports that came with replies, in this order; returns how many came from members that had
    /// no task outstanding.
    #[inline]
    pub fn reply_run(&mut self, reports: &[Report]) -> usize {
        self.policy.reply_run(reports, &mut self.view, &mut self.rng)
    }

    /// Takes the report that came with a reply; false when the member had no task outstanding.
    #[inline]
    pub fn reply(&mut self, report: &Report) -> bool {
        self.reply_run(std::slice::from_ref(report)) == 0
    }

    /// Takes a report that came without a reply, in a keep-alive for instance.
    pub fn refresh(&mut self, report: &Report) {
        self.policy.on_reply(report, &mut self.view, &mut self.rng);
    }

    /// Lets a member be chosen, or no longer.
    pub fn set_active(&mut self, member: Member, active: bool) {
        if self.view.is_active(member) != active {
            self.view.set_active(member, active);
            self.policy.on_members(self.core, &mut self.view);
        }
    }

    /// Replaces the policy between bursts, and leaves the old one in its place; what is known of the members stays.
    /// [`Dispatcher::look_at_members`] is to follow.
    pub fn exchange(&mut self, prepared: &mut Prepared) {
        std::mem::swap(&mut self.policy, &mut prepared.policy);
        std::mem::swap(&mut self.holds, &mut prepared.holds);
    }

    /// Who may be chosen, or how fast they are, has changed in the view, or the policy has.
    pub fn look_at_members(&mut self) {
        self.policy.on_members(self.core, &mut self.view);
    }

    /// A task without a pick is to wait, and to be offered again.
    #[inline]
    #[must_use]
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// Lets the policy see time pass.
    pub fn tick(&mut self, now_ns: u64) {
        self.policy.on_tick(now_ns, &mut self.view, &mut self.rng);
    }

    /// The central queue's bound and what it has measured, when it has one.
    #[must_use]
    pub fn bounded(&self) -> Option<&Bounded> {
        match &self.policy {
            AnyPolicy::Bounded(bounded) => Some(bounded),
            _ => None,
        }
    }

    /// What it decides on.
    #[inline]
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// What it decides on, to be changed.
    #[inline]
    pub fn view_mut(&mut self) -> &mut View {
        &mut self.view
    }
}

/// The seed of one random stream of a node, from the node's seed and the stream's place.
#[must_use]
pub fn stream_seed(seed: u64, core: usize, pool: usize) -> u64 {
    // Two steps of SplitMix64, so that neighbouring places have unrelated seeds.
    let place = (core as u64) << 32 | pool as u64;
    let mut mix = rand_xoshiro::SplitMix64::seed_from_u64(seed);
    rand_xoshiro::SplitMix64::seed_from_u64(mix.next_u64() ^ place).next_u64()
}

/// A uniform number below `n` (at most 2^32 of them), by multiplication (Lemire 2019 without the
/// rejection: the bias is below n / 2^32).
#[inline]
fn below(n: usize, bits: u32) -> usize {
    ((u64::from(bits) * n as u64) >> 32) as usize
}

/// A uniform member, none when there are no members.
#[inline]
fn sample_one(view: &View, rng: &mut Rng) -> Option<Member> {
    let active = view.active();
    active.get(below(active.len(), rng.next_u64() as u32)).copied()
}

/// Two distinct members in random order; a lone member twice.
#[inline(always)]
fn sample_two(active: &[Member], rng: &mut Rng) -> Option<(Member, Member)> {
    let n = active.len();
    if n < 2 {
        return active.first().map(|&only| (only, only));
    }
    let bits = rng.next_u64();
    let first = below(n, bits as u32);
    let second = below(n - 1, (bits >> 32) as u32);
    let second = second + usize::from(second >= first);
    Some((active[first], active[second]))
}

/// Puts this core's share of the active members, believed idle, on its idle list: a node that starts
/// knows of no load, and two cores must not both believe a worker to be theirs (JIQ).
fn share_idle(core: Core, view: &mut View) {
    for place in 0..view.active().len() {
        let member = view.active()[place];
        let fresh = view.reports(member) == 0 && view.outstanding(member) == 0;
        if fresh && member.index() % core.count == core.index {
            view.idle_mut().insert(member);
        }
    }
}

/// One of a pair, chosen without a branch: the outcome is a coin toss, and a mispredicted branch costs
/// as much as the rest of the decision.
#[inline]
fn select<T>(second: bool, a: T, b: T) -> T {
    std::hint::select_unpredictable(second, b, a)
}

/// The second of two members is the better one by load plus drift; and whether a switch would have passed the
/// packet through its pipeline again: when the drift of the member with the smaller *load* exceeds the
/// difference of the loads (Horus 3.3), so that it may be the worse one. A switch then folds drift into
/// load, which makes the next such packet rarer; here it does not, so that their number is an upper bound.
#[inline(always)]
fn compare(a: Belief, b: Belief) -> (bool, bool) {
    let (load_a, load_b) = (a.load().0, b.load().0);
    let lazy = select(load_b < load_a, a.total(), b.total());
    (b.total() < a.total(), lazy > u64::from(load_a.max(load_b)))
}

/// The better of two random members by load plus drift, counted as one that was found so.
#[inline(always)]
fn better_of_two(view: &mut View, rng: &mut Rng) -> Option<Member> {
    let (a, b) = sample_two(view.active(), rng)?;
    let (second, resubmit) = compare(view.belief(a), view.belief(b));
    view.picks.po2 += 1;
    view.picks.resubmits += u64::from(resubmit);
    Some(select(second, a, b))
}

#[cfg(test)]
mod tests;
