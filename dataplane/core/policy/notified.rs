//! Policies that prefer members which reported little work: JIQ (join the idle queue), JBT (join below threshold) and
//! similar ones. Each dispatcher core has a list of such members, in order of their reports. It takes the first one for
//! a task, and falls back to another choice if the list is empty. The view's idle list is the set of these members, and
//! a [`Line`] their order. Cores that share idle members use no order.

use super::beliefs::next_shared_idle;
use super::forgotten::LastSeen;
use super::member::Notify;
use super::sample::{sample_one, share_idle, take_shared};
use super::shortest::sample_distinct;
use super::structure::{Alias, Line};
use super::{
    AnyPolicy, Caller, Candidates, Core, Entry, Parameter, Pick, Picks, Policy, QueueAccess,
    Reports, Rng, SelectionBasis, Task,
};
use crate::state::{Member, Parts, PublishedState, Report, View};

/// `jiq`.
pub const JIQ: Entry = Entry {
    notify: |_| Notify::Below(1),
    publishes: PublishedState::NOTHING.with_idle(),
    ..Entry::new(
        "jiq",
        "a member that reported itself idle, else a random one",
        "JIQ, Performance Evaluation 2011",
        |_| build(1.0, Fallback::Random),
    )
};

/// `jiq-weighted`.
pub const JIQ_WEIGHTED: Entry = Entry {
    by_rate: true,
    notify: |_| Notify::Below(1),
    publishes: PublishedState::NOTHING.with_idle(),
    ..Entry::new(
        "jiq-weighted",
        "jiq that falls back on service rates",
        "JIQ, Performance Evaluation 2011",
        |_| build(1.0, Fallback::Weighted),
    )
};

/// `jbt`.
pub const JBT: Entry = Entry {
    parameters: &[Parameter::integer("r", 2.0, (1.0, 1000.0))],
    notify: |v| Notify::Below(v[0] as u32),
    publishes: PublishedState::NOTHING.with_idle(),
    ..Entry::new(
        "jbt",
        "a member that reported a queue below r, else a random one",
        "Malcolm, POMACS 2022, as its baseline",
        |v| build(v[0], Fallback::Random),
    )
};

/// `jbt-d`.
pub const JBT_D: Entry = Entry {
    parameters: &[
        Parameter::new("t", 1000.0, (1.0, 1e9)),
        Parameter::integer("d", 2.0, (1.0, 16.0)),
    ],
    notify: |_| Notify::Always,
    queue_access: |_| QueueAccess::Direct,
    ..Entry::new(
        "jbt-d",
        "jbt that learns its threshold from d random queues every t us",
        "Zhou et al., SIGMETRICS 2017",
        |v| AnyPolicy::from(ThresholdList::learning((v[0] * 1e3) as u64, v[1] as usize)),
    )
};

/// `pi`.
pub const PERSISTENT: Entry = Entry {
    notify: |_| Notify::Below(1),
    ..Entry::new(
        "pi",
        "an idle member, else the one that was the last to report itself idle",
        "Persistent Idle, Atar et al. 2020",
        |_| build(1.0, Fallback::Last),
    )
};

/// Builds the policy; see [`ThresholdList::new`].
fn build(below: f64, otherwise: Fallback) -> AnyPolicy {
    AnyPolicy::from(ThresholdList::new(below as u32, otherwise))
}

/// Policy with a list of members that have few tasks: JIQ, JBT and similar ones.
///
/// A report puts its member on the list if it has fewer tasks than the threshold, and takes it off otherwise. Each task
/// takes the first member off the list. If the list is empty, the [`Fallback`] chooses the member. The list is a queue,
/// as in JIQ: members leave it in the order in which they joined. (Newest first would be faster, because old entries
/// would remain as a reserve.)
///
/// Sources: JIQ, Lu et al., Performance Evaluation 2011; JBT, a baseline in the paper on Malcolm; JBT-d, Zhou et al.,
/// SIGMETRICS 2017; Persistent Idle, Atar et al., 2020.
///
/// Deviations: under `jbt-d` a new threshold triggers no probes; after an increase, members below it join the list with
/// their next report. On a node with several cores, `jiq`, `jiq-weighted` and `jbt` keep each member on the list of at
/// most one core; under `jbt-d` and `pi` it may be on several. `pi` never picks at random, so it searches for members that no list
/// contains by mistake (`policy/forgotten.rs`).
#[derive(Clone, Debug)]
pub struct ThresholdList {
    /// Members with fewer tasks than this are on the list.
    below: u32,
    /// Choice if the list is empty.
    otherwise: Fallback,
    /// Interval of learning the threshold; 0: never.
    period_ns: u64,
    /// Number of members to probe for it.
    probes: usize,
    /// Time of the next learning.
    next_ns: u64,
    /// Last member that reported to be below the threshold. Only [`Fallback::Last`] sets it.
    last: Option<Member>,
    /// The members on the view's idle list, in order. Empty if cores share idle members.
    line: Line,
    /// Memory for rebuilding `line`.
    spare: Line,
    /// Members by service rate, for [`Fallback::Weighted`].
    alias: Alias,
    /// Search for members that no list contains by mistake, for [`Fallback::Last`].
    forgotten: LastSeen,
    /// Properties of the caller, from the last `on_members`.
    caller: Caller,
}

/// Choice without a member below the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// A uniform member.
    Random,
    /// A random member by service rate.
    Weighted,
    /// The last member that reported to be below.
    Last,
}

impl ThresholdList {
    /// Creates a policy with a fixed threshold: members with fewer than `below` tasks come first.
    #[must_use]
    pub fn new(below: u32, otherwise: Fallback) -> Self {
        Self {
            below,
            otherwise,
            period_ns: 0,
            probes: 0,
            next_ns: 0,
            last: None,
            line: Line::default(),
            spare: Line::default(),
            alias: Alias::default(),
            forgotten: LastSeen::default(),
            caller: Caller::on(Core::ONLY),
        }
    }

    /// Creates a policy that learns its threshold (`jbt-d`). Every `period_ns` it probes `probes` random queues. Then
    /// members with at most the shortest of these queues come first.
    #[must_use]
    pub fn learning(period_ns: u64, probes: usize) -> Self {
        Self { period_ns, probes, ..Self::new(1, Fallback::Random) }
    }

    /// Picks a member for one task, and removes it from the list. Returns `None` without members.
    #[inline(always)]
    fn pick(&mut self, parts: &mut Parts<'_>, rng: &mut Rng) -> Option<Pick> {
        if let Some(member) = self.line.first() {
            self.line.leave(member);
            parts.idle.remove(member);
            parts.picks.idle += 1;
            return Some(Pick { member, idle: true });
        }
        let member = match (self.otherwise, self.last) {
            (Fallback::Last, Some(last)) if parts.is_active(last) => Some(last),
            (Fallback::Weighted, _) => self.alias.sample(rng),
            _ => sample_one(parts.active, rng),
        };
        member.map(|member| Pick { member, idle: false })
    }

    /// Processes a member's report: stores the load, and puts the member on the list or takes it off.
    #[inline(always)]
    fn receive_report(&mut self, report: &Report, parts: &mut Parts<'_>) {
        let (member, state) = (report.member, parts.states.of(report.member));
        state.set_load(report.load);
        let mut is_below = report.load.0 >> 16 < self.below; // whole tasks
        if self.otherwise == Fallback::Last {
            // A member without outstanding tasks is idle, even if its report counts a task: that task's reply overtook
            // the report, or the task was written off. This does not hold if other dispatchers send to the member.
            is_below |= self.caller.reports == Reports::Replies && state.outstanding() == 0;
            self.last = if is_below { Some(member) } else { self.last };
            self.forgotten.note();
        }
        let was_listed = parts.idle.contains(member);
        parts.idle.note(member, is_below);
        // `line` has the order of the list. Cores that share idle members use no order.
        match parts.idle.contains(member) && !parts.shares_idle() {
            true => self.line.join(member),
            false => self.line.leave(member),
        }
        // Counts the messages of the original policy, whose members know the threshold and report once when their
        // queue falls below it.
        parts.picks.messages += u64::from(self.period_ns > 0 && is_below && !was_listed);
    }

    /// Follows a change of the view's list: members that stay keep their place, new ones come last.
    fn follow_list(&mut self, view: &View) {
        let idle = view.idle();
        self.spare.clear(view.members());
        while let Some(member) = self.line.first() {
            self.line.leave(member);
            if idle.contains(member) {
                self.spare.join(member);
            }
        }
        (0..idle.len()).for_each(|place| self.spare.join(idle.at(place)));
        std::mem::swap(&mut self.line, &mut self.spare);
        self.spare.clear(view.members()); // has room for all after the first time
    }
}

impl Policy for ThresholdList {
    /// Takes shared idle members first, then members of the list, then those of the fallback.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        let count = tasks.len().min(picks.len());
        // First the idle members that belong to this core, or that any core may take.
        let taken = if view.shares_idle() { take_shared(&mut picks[..count], view) } else { 0 };
        let (mut parts, mut local) = (view.parts(), rng.clone());
        for pick in &mut picks[taken..count] {
            *pick = self.pick(&mut parts, &mut local);
            pick.iter().for_each(|pick| parts.states.of(pick.member).sent());
        }
        *rng = local;
    }

    /// Returns the member that the next pick takes, for `wedjat explain`. For an idle member that another core
    /// released, the result names no member: any core may take it first.
    fn candidates(&self, view: &View, rng: &mut Rng) -> Candidates {
        if let Some(shared) = next_shared_idle(view) {
            return shared;
        }
        if let Some(first) = self.line.first() {
            return Candidates::new(SelectionBasis::Idle, [first]);
        }
        match (self.otherwise, self.last) {
            (Fallback::Last, Some(last)) if view.is_active(last) => {
                Candidates::new(SelectionBasis::Turn, [last])
            }
            (Fallback::Weighted, _) => {
                Candidates::new(SelectionBasis::Drawn, self.alias.sample(rng))
            }
            _ => Candidates::new(SelectionBasis::Drawn, sample_one(view.active(), rng)),
        }
    }

    /// Processes a report, for example a member's message. The caller has counted its task as answered, if it has one.
    #[inline]
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        let mut parts = view.parts();
        self.receive_report(report, &mut parts);
    }

    /// Counts answers, and processes their reports. Returns the number of replies from members without outstanding
    /// tasks.
    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        let mut parts = view.parts();
        for report in reports {
            parts.surplus += usize::from(!parts.states.of(report.member).answered());
            self.receive_report(report, &mut parts);
        }
        parts.surplus
    }

    /// Updates the list and the table of draws for the active members.
    fn on_members(&mut self, caller: Caller, view: &mut View) {
        share_idle(caller, view); // extends the view's idle list, which `line` then follows
        self.caller = caller;
        self.forgotten.resize(view.members());
        self.follow_list(view);
        if view.shares_idle() {
            self.line.clear(view.members()); // the idle members are shared by all cores, without an order
        }
        if self.otherwise == Fallback::Weighted {
            self.alias.rebuild(view.members(), view.active(), |member| view.rate(member));
        }
    }

    /// Searches for forgotten members under [`Fallback::Last`], and learns the threshold if that is due.
    fn on_tick(&mut self, view: &mut View, rng: &mut Rng) {
        let now_ns = view.now_ns();
        // If other dispatchers send to the members too, their reports and outstanding tasks here prove nothing.
        if self.otherwise == Fallback::Last && self.caller.reports == Reports::Replies {
            self.forgotten.check(self.caller.core, &mut self.line, view);
        }
        if self.period_ns == 0 || now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns.saturating_add(self.period_ns);
        let mut least = u32::MAX - 1; // leaves room for the 1 added below
        let probed = sample_distinct(self.probes, view.active(), rng, |member| {
            least = least.min(view.probe(member));
        });
        view.picks.messages += probed as u64;
        self.below = least + 1;
    }
}
