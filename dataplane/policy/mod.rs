//! Scheduling policies: values in, a member out.
//!
//! A policy sees a task's values, one core's [`View`] of the pool and a random source; never bytes, ports
//! or clocks. The simulator and the dataplane drive the same types through [`Dispatcher`]. Names and
//! parameters are in [`CATALOGUE`]; each policy's file cites its paper and states its deviations.

mod asking;
pub mod beliefs;
mod bounded;
mod dispatcher;
pub mod fifo;
mod forgotten;
mod horus;
mod horus_spine;
mod jsq_spine;
mod learned;
mod learner;
mod lsq;
mod measured;
pub mod member;
mod notified;
mod ppot;
mod queue;
mod racksched;
mod random;
mod round_robin;
mod sample;
mod shortest;
pub mod signals;
mod silence;
mod slots;
mod spec;
mod structure;
mod waterfill;

pub use asking::{Answer, Probe};
pub use beliefs::{Basis, Beliefs, Candidates};
pub use bounded::Bounded;
pub use dispatcher::{Dispatcher, Overflow, Prepared, Reports, exchange, stream_seed};
pub use horus::{Horus, HorusInflight};
pub use horus_spine::HorusSpine;
pub use jsq_spine::JsqSpine;
pub use learned::Learned;
pub use learner::{Learner, Window};
pub use lsq::Lsq;
pub use notified::{Notified, Otherwise};
pub use ppot::Ppot;
pub use queue::{Offered, QueueingDispatcher};
pub use racksched::RackSched;
pub use random::{Random, WeightedRandom};
pub use round_robin::RoundRobin;
pub use shortest::{Shortest, ShortestOf};
pub use spec::{Asks, Entry, LeafReports, OverRacks, Parameter, PolicyError, PolicySpec, Runs};
pub use structure::{Alias, Found, Rank, Ranking, Ranks, SpeedRanks};
pub use waterfill::WaterFill;

use arrayvec::ArrayVec;
use enum_dispatch::enum_dispatch;

use crate::state::{Decision, Member, Report, View};

/// The random source of policies: seedable, and its stream never changes between releases.
pub type Rng = rand_xoshiro::Xoshiro256PlusPlus;

/// What a policy may know of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Task type, 0 when unknown.
    pub class: u16,
    /// Packets that it consists of; 0 when there are several and nobody told how many, as in packets.
    pub packets: u16,
    /// The number of this decision, which the report of the task's reply names ([`Report::decision`]). The simulator tells
    /// it; on a leaf, where packets do not carry it back, there is none.
    pub decision: Option<Decision>,
}

impl Task {
    /// Of one packet and that class, without a number.
    #[inline(always)]
    #[must_use]
    pub const fn new(class: u16) -> Self {
        Self { class, packets: 1, decision: None }
    }
}

impl Default for Task {
    #[inline(always)]
    fn default() -> Self {
        Self::new(0)
    }
}

/// A policy's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The member chosen.
    pub member: Member,
    /// It was believed idle (the task header's `qlen`, Horus's idleSelected).
    pub idle: bool,
}

/// The members that a decision asks for their queues.
pub type Asked = ArrayVec<Member, { shortest::SAMPLES_MAX }>;

/// Where the choices for a run of tasks go: to each task's place its pick, or none.
pub type Picks<'a> = &'a mut [Option<Pick>];

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

/// What a policy knows of whoever drives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The core that it is on.
    pub core: Core,
    /// No task is lost on its way to a member or back, as where memory is shared: whoever holds one is slow, or its end
    /// will be told.
    pub lossless: bool,
    /// Benchmark tasks are carried out: the caller asks for them after each tick ([`Policy::next_benchmark`]), sends that
    /// member a copy of a recent task that it does only when it has nothing else to do, and passes the report on by itself.
    pub benchmarks: bool,
    /// How members tell their queues: where in messages, nobody is idle before it says so.
    pub reports: Reports,
}

impl Caller {
    /// A node's core: packets may be lost, and there are no benchmark tasks.
    #[must_use]
    pub const fn on(core: Core) -> Self {
        Self { core, lossless: false, benchmarks: false, reports: Reports::Replies }
    }
}

/// A way to choose members for tasks. [`Policy::pick_run`] is the only hook that must be there.
///
/// What the view tells of time ([`View::now_ns`]) is true for every hook: each burst's where tasks may wait, else that of
/// the node's last tick. The caller counts a task as answered ([`View::answered`]) before each `on_reply`.
#[enum_dispatch]
pub trait Policy {
    /// Chooses among the view's active members for a run of tasks, one after the other, and counts each as sent
    /// ([`View::sent`]) before it looks at the next. One call a burst, so that the policy is known at compile time within
    /// the loop; [`one_by_one`] is that loop for policies that look at one task at a time.
    ///
    /// No pick means: no member may have the task now. Central queues answer so while all members are full; their caller
    /// holds the task and offers it again after a reply or a tick.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng);

    /// The members whose queues its next decision on one task will ask for, in the order in which it will; `rng` is then as that
    /// decision will leave it. Of those that ask some ([`Asks::Some`]), where asking takes time.
    fn ask(&self, _view: &View, _rng: &mut Rng) -> Asked {
        Asked::new()
    }

    /// The members that its next decision on one task is between; `rng` is as that decision will find it. Of one that begins with
    /// idle members, as things are now. For those who ask why a member was chosen, not for each task.
    fn candidates(&self, view: &View, rng: &mut Rng) -> Candidates {
        let asked = self.ask(view, rng);
        if asked.is_empty() { Candidates::all() } else { Candidates::new(Basis::Drawn, asked) }
    }

    /// A task was sent to `member`, and counted, without a pick of its own: it follows another one.
    fn on_follow(&mut self, _member: Member, _view: &mut View) {}

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

    /// Another core of the node told something of `member`: what the view has of it may have changed.
    fn on_told(&mut self, _member: Member, _view: &mut View) {}

    /// Tasks of `member` were written off: it has fewer than its answers told.
    fn on_written_off(&mut self, _member: Member, _view: &mut View) {}

    /// The active members, their rates or the caller changed, or the policy starts: what it derives from them is stale.
    /// Called on a polling core, so it must not allocate but the first time for so many members ([`View::members`]).
    fn on_members(&mut self, _caller: Caller, _view: &mut View) {}

    /// The next member that it wants a benchmark task for, where its caller carries those out.
    fn next_benchmark(&mut self) -> Option<Member> {
        None
    }

    /// Time passed; called now and then, and before each burst where tasks may wait.
    fn on_tick(&mut self, _view: &mut View, _rng: &mut Rng) {}
}

/// [`Policy::pick_run`] of a policy that looks at one task at a time: has `choose` name a member for each, and counts it
/// as sent.
#[inline(always)]
pub fn one_by_one(
    tasks: &[Task],
    picks: Picks<'_>,
    view: &mut View,
    rng: &mut Rng,
    mut choose: impl FnMut(&Task, &mut View, &mut Rng) -> Option<Pick>,
) {
    let mut local = rng.clone(); // stays in registers over the run
    for (task, pick) in tasks.iter().zip(picks) {
        *pick = choose(task, view, &mut local);
        if let Some(pick) = pick {
            view.sent(pick.member);
        }
    }
    *rng = local;
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
    /// The shortest queue over racks.
    JsqSpine,
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

/// Every policy, each by the entry in its own file.
pub const CATALOGUE: &[Entry] = &[
    horus::HORUS,
    horus::INFLIGHT,
    horus_spine::PLAIN,
    horus_spine::WEIGHTED,
    jsq_spine::ENTRY,
    racksched::ENTRY,
    lsq::SAMPLE,
    lsq::UPDATE,
    lsq::SMART,
    lsq::HYBRID,
    lsq::SPEED_SAMPLE,
    lsq::SPEED_UPDATE,
    lsq::SPEED_SMART,
    lsq::SPEED_HYBRID,
    ppot::BY_QUEUE,
    ppot::BY_TIME,
    learned::BY_QUEUE,
    learned::BY_QUEUE_EWMA,
    learned::BY_TIME,
    learned::BY_TIME_EWMA,
    bounded::GIVEN,
    bounded::CHOSEN,
    random::UNIFORM,
    random::WEIGHTED,
    round_robin::ENTRY,
    shortest::BY_QUEUE,
    shortest::BY_DELAY,
    notified::JIQ,
    notified::JIQ_WEIGHTED,
    notified::JBT,
    notified::JBT_D,
    notified::PERSISTENT,
    waterfill::BY_RATE,
    waterfill::EQUAL,
];

/// Pairs of policies for leaf and spine that have a name of their own: name, leaf's, spine's, summary, source.
pub const PAIRS: &[(&str, &str, &str, &str, &str)] = &[
    (
        "rs-lb",
        "racksched",
        "random",
        "a uniform rack, then racksched",
        "Horus, NSDI 2024, 4 (RackSched with a load balancer)",
    ),
    (
        "rs-h",
        "racksched",
        "racksched",
        "racksched over racks, then over workers",
        "Horus, NSDI 2024, 4 (RackSched in a hierarchy)",
    ),
];

#[cfg(test)]
mod tests;
