//! Scheduling policies: pure functions from a pool's state to a member.
//!
//! A *pool* is a set of workers that serve one kind of task. A *member* is one of these workers; for a spine, which
//! schedules over racks, a member is the leaf of a rack. A member's *load report* is the number of tasks at it. A
//! *tick* is a core's periodic work, every 100 us.
//!
//! A policy sees a task's class and size, one core's [`View`] of the pool, and a random source. It never sees
//! bytes, ports or clocks, so the simulator and the dataplane run the same code through [`Dispatcher`].
//! [`CATALOGUE`] lists names and parameters. Each policy's file cites its paper and states its deviations.

mod asking;
mod auto;
pub mod beliefs;
mod bounded;
pub mod classes;
mod conditions;
mod courtesy;
mod dispatcher;
mod eft;
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
mod most_served;
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
pub use auto::{Objective, PolicyChoice, fallback};
pub use beliefs::{Beliefs, Candidates, ClassBeliefs, SelectionBasis};
pub use bounded::Bounded;
pub use classes::{ClassRules, LANES, Lane, Lanes, ReserveUse};
pub use dispatcher::{Assignment, Dispatcher, Overflow, PreparedPolicy, exchange, stream_seed};
pub use eft::Eft;
pub use horus::{Horus, HorusInflight};
pub use horus_spine::HorusSpine;
pub use jsq_spine::JsqSpine;
pub use learned::LearnedRates;
pub use learner::{Learner, Window};
pub use lsq::Lsq;
pub use most_served::MostServed;
pub use notified::{Fallback, ThresholdList};
pub use ppot::Ppot;
pub use queue::{Placement, QueueingDispatcher, WaitingTask};
pub use racksched::RackSched;
pub use random::{Random, WeightedRandom};
pub use round_robin::RoundRobin;
pub use shortest::{Shortest, ShortestOf};
pub use spec::{
    Entry, LeafReports, Parameter, PolicyError, PolicySpec, QueueAccess, RackPolicy, Runs,
};
pub use structure::{Alias, Rank, RankedMember, Ranking, Ranks, SpeedRanks};
pub use waterfill::WaterFill;

use arrayvec::ArrayVec;
use enum_dispatch::enum_dispatch;

use crate::state::{DecisionNumber, Member, Report, View};

/// Random source of policies. It is seedable, and its stream never changes between releases.
pub type Rng = rand_xoshiro::Xoshiro256PlusPlus;

/// Input of a scheduling decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Task type; 0 if unknown.
    pub class: u16,
    /// Number of packets; 0 if the task spans several and the count is unknown.
    pub packets: u16,
    /// Number of this decision, which the report of the task's reply repeats ([`Report::decision`]). The
    /// simulator sets it. `None` on a leaf, whose packets do not carry it back.
    pub decision: Option<DecisionNumber>,
}

impl Task {
    /// Creates a task of one packet, without a decision number.
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

/// Decision of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The chosen member.
    pub member: Member,
    /// True if the member counted as idle. The header field `qlen` of the task carries this flag to the member (Horus's
    /// idleSelected).
    pub idle: bool,
}

/// Members that a decision probes (asks for their queue lengths) before it chooses.
pub type ProbedMembers = ArrayVec<Member, { shortest::SAMPLES_MAX }>;

/// Output for a run of tasks: at each task's position its pick, or `None`.
pub type Picks<'a> = &'a mut [Option<Pick>];

/// A dispatcher core of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Number of the core, from 0.
    pub index: usize,
    /// Number of cores.
    pub count: usize,
}

impl Core {
    /// The only core of a node.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Returns true if this core does the work for `member` that only one core of the node may do, for instance
    /// corrections of state in shared memory. The cores divide the members among them by number.
    #[must_use]
    pub fn is_responsible_for(self, member: Member) -> bool {
        member.index() % self.count == self.index
    }
}

/// Source of members' load reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reports {
    /// Every reply carries a report.
    #[default]
    Replies,
    /// Members send reports as messages, at times and to dispatchers chosen by the policy
    /// ([`member::Notify`]), or in answer to probes. Replies carry no report.
    Messages,
}

/// Properties of a policy's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Core of the caller.
    pub core: Core,
    /// True if no task is lost on its way to a member or back, for example with shared memory. A member that
    /// holds a task is slow, or its exit will be reported.
    pub lossless: bool,
    /// True if the caller carries out benchmark tasks. It asks for them after each tick
    /// ([`Policy::next_benchmark`]) and sends the member a copy of a recent task. The member runs it only
    /// when otherwise idle, and the caller forwards its report.
    pub benchmarks: bool,
    /// Way in which members report their queues. With messages, a member is busy until its first report.
    pub reports: Reports,
}

impl Caller {
    /// Returns the caller for a node's core: packets may be lost, and there are no benchmark tasks.
    #[must_use]
    pub const fn on(core: Core) -> Self {
        Self { core, lossless: false, benchmarks: false, reports: Reports::Replies }
    }
}

/// A scheduling policy. Only [`Policy::pick_run`] is mandatory.
///
/// [`View::now_ns`] is valid in every hook. Its resolution is one burst for pools that queue tasks, one tick
/// of the node otherwise. The caller counts a task as answered ([`View::answered`]) before the `on_reply` of its reply.
/// A report without a reply, for instance in a keep-alive, also leads to an `on_reply`.
///
/// `enum_dispatch` implements this trait for [`AnyPolicy`], by a `match` over its variants.
#[enum_dispatch]
pub trait Policy {
    /// Picks an active member for each task of a run, and counts each task as sent ([`View::sent`]) before
    /// the next pick. Called once per burst, so that the policy's type is known inside the loop.
    /// [`one_by_one`] is this loop for policies that decide task by task.
    ///
    /// `None` means that no member may take the task now. The tasks behind it in the run get `None` too. Central
    /// queues return it while all members are full. The caller queues the task and offers it again after a reply or a
    /// tick.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng);

    /// Returns the members that the next decision on one task probes, in order. Leaves `rng` in the
    /// state after that decision. The caller needs it where a probe is a message: it sends the probes and makes the
    /// decision after their answers. Empty for policies other than [`QueueAccess::Probes`].
    fn ask(&self, _view: &View, _rng: &mut Rng) -> ProbedMembers {
        ProbedMembers::new()
    }

    /// Returns the members between which the next decision on one task chooses. `rng` must have the state
    /// before that decision. For a policy that prefers idle members, the result holds for the current idle
    /// list. Only `wedjat explain` uses it; it is too slow for each task.
    fn candidates(&self, view: &View, rng: &mut Rng) -> Candidates {
        let probed = self.ask(view, rng);
        if probed.is_empty() {
            Candidates::all()
        } else {
            Candidates::new(SelectionBasis::Drawn, probed)
        }
    }

    /// Sets the use of reserved members by the next picks ([`ClassRules::reserve`]).
    fn set_reserve_use(&mut self, _reserve_use: ReserveUse) {}

    /// Handles a task that the caller sent to `member` and counted, without a pick. Such a task must go to the same
    /// member as an earlier one.
    fn on_follow(&mut self, _member: Member, _view: &mut View) {}

    /// Handles a member's load report.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
    }

    /// Handles the reports of a run of replies, and counts each as answered before its report. Called once
    /// per burst, like [`Policy::pick_run`]. Returns the number of replies from members without an
    /// outstanding task.
    fn reply_run(&mut self, reports: &[Report], view: &mut View, rng: &mut Rng) -> usize {
        let mut surplus = 0;
        for report in reports {
            surplus += usize::from(!view.of(report.member).answered_with(report.load));
            self.on_reply(report, view, rng);
        }
        surplus
    }

    /// Handles a change in the view of `member` by an update from another core of the node. Policies with an order of
    /// the members correct the member's position.
    fn on_remote_update(&mut self, _member: Member, _view: &mut View) {}

    /// Handles a change of the tasks outstanding at `member` without a task or a reply: lost tasks were written
    /// off, or surplus answers taken back.
    fn on_written_off(&mut self, _member: Member, _view: &mut View) {}

    /// Rebuilds derived state after the active members, their rates or the caller changed, and at the start.
    /// Runs on a polling core: must not allocate after the first call for a given number of members
    /// ([`View::members`]).
    fn on_members(&mut self, _caller: Caller, _view: &mut View) {}

    /// Returns the next member for a benchmark task, if the caller carries these out. Its report shows the member's
    /// speed to policies that learn rates.
    fn next_benchmark(&mut self) -> Option<Member> {
        None
    }

    /// Updates time-dependent state. Called about once per tick, and before each burst for pools that queue tasks.
    fn on_tick(&mut self, _view: &mut View, _rng: &mut Rng) {}

    /// Returns the round trip of a task without its service, if the policy has measured it.
    fn round_trip_ns(&self) -> Option<u64> {
        None
    }
}

/// Implements [`Policy::pick_run`] for a policy that decides task by task: `choose` picks a member for each,
/// and the loop counts the task as sent to it.
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

/// One of the policies. A `match` once per burst selects the variant, so that the loop over the tasks makes no
/// indirect calls.
#[enum_dispatch(Policy)]
#[repr(u8)] // a separate tag byte: a tag inside a policy's unused bits takes longer to read
#[derive(Clone, Debug)]
pub enum AnyPolicy {
    /// Idle list, then power of two on load plus drift (the tasks sent since the load report).
    Horus,
    /// Like Horus, but never forgets tasks in flight.
    HorusInflight,
    /// Horus over racks.
    HorusSpine,
    /// Shortest queue over racks.
    JsqSpine,
    /// Power of two on reported loads.
    RackSched,
    /// Uniform random choice.
    Random,
    /// Members in turn.
    RoundRobin,
    /// Random choice in proportion to service rates.
    WeightedRandom,
    /// Shortest queue, or shortest expected delay.
    Shortest,
    /// Shortest of a few queues.
    ShortestOf,
    /// Shortest queue, with ties by served quanta.
    MostServed,
    /// Members that reported a load below a threshold.
    ThresholdList,
    /// Shortest queue of a local view.
    Lsq,
    /// Proportional power of two.
    Ppot,
    /// Proportional power of two with learned rates.
    LearnedRates,
    /// Stochastic coordination.
    WaterFill,
    /// Central queue.
    Bounded,
    /// Earliest finish time.
    Eft,
}

/// All policies, each by the entry in its own file.
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
    bounded::FIXED_BOUND,
    bounded::ADAPTIVE_BOUND,
    eft::ENTRY,
    random::UNIFORM,
    random::WEIGHTED,
    round_robin::ENTRY,
    shortest::BY_QUEUE,
    shortest::BY_DELAY,
    most_served::ENTRY,
    notified::JIQ,
    notified::JIQ_WEIGHTED,
    notified::JBT,
    notified::JBT_D,
    notified::PERSISTENT,
    waterfill::BY_RATE,
    waterfill::EQUAL,
];

/// Pairs of a leaf policy and a spine policy that a paper evaluates under one name. Each entry has the name, the leaf
/// policy, the spine policy, a summary, and the source.
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
