//! Local shortest queue (Vargaftik, Keslassy, Orda: LSQ, ToN 2020, V): every dispatcher sends to the shortest
//! queue in its own, possibly outdated, view, and counts its own tasks.
//!
//! The variants update views in different ways: the dispatcher samples (`lsq-sample`), members report
//! ([`super::member::Notify`]: `lsq-update`, `lsq-smart`), or both (`lsq-hybrid`, Example 3). The `hlsq`
//! forms (for heterogeneous members) rank by (queue + 1) / speed; they are not in the paper. To *sample* a member is
//! to probe its queue and to correct the local view.
//!
//! On a leaf every reply carries the queue and updates the core that receives it. With
//! [`super::Reports::Messages`] members report in messages, like in the paper.

use rand::Rng as _;

use super::beliefs::next_shared_idle;
use super::member::Notify;
use super::sample::{rank_of, share_idle, take_shared};
use super::shortest::sample_distinct;
use super::structure::{Front, Rank, RankedMember, Ranking};
use super::{
    AnyPolicy, Caller, Candidates, Entry, Parameter, Pick, Picks, Policy, ProbedMembers,
    QueueAccess, Rng, Task,
};
use crate::state::{Member, Parts, PublishedState, Report, View};

/// Probability of a report by a busy member, or share of the arrivals that sample.
const EPS: Parameter = Parameter::new("eps", 0.2, (0.0, 1.0));
/// Number of members that an arrival samples.
const D: Parameter = Parameter::integer("d", 2.0, (1.0, 16.0));

/// `lsq-sample`.
pub const SAMPLE: Entry = Entry {
    publishes: PublishedState::COUNTS.with_idle(),
    parameters: &[D],
    notify: |_| Notify::Never,
    queue_access: |_| QueueAccess::Probes,
    ..Entry::new(
        "lsq-sample",
        "the shortest queue of a local view, of which each arrival samples d",
        "LSQ, ToN 2020, Algorithm 1",
        |v| build(v[0], 1.0, false),
    )
};

/// `lsq-update`.
pub const UPDATE: Entry = Entry {
    publishes: PublishedState::LOADS.with_idle(),
    parameters: &[EPS],
    parameters_on_leaf: "eps changes nothing",
    notify: |v| Notify::Update(v[0]),
    ..Entry::new(
        "lsq-update",
        "the shortest queue of a local view; members report when idle, else with probability eps",
        "LSQ, ToN 2020, Algorithm 2",
        |_| build(0.0, 0.0, false),
    )
};

/// `lsq-smart`.
pub const SMART: Entry = Entry {
    publishes: PublishedState::LOADS.with_idle(),
    parameters: &[EPS],
    parameters_on_leaf: "eps changes nothing",
    notify: |v| Notify::Smart(v[0]),
    ..Entry::new(
        "lsq-smart",
        "as lsq-update, and members report to the dispatcher that is most wrong",
        "LSQ, ToN 2020, Algorithm 3",
        |_| build(0.0, 0.0, false),
    )
};

/// `lsq-hybrid`.
pub const HYBRID: Entry = Entry {
    publishes: PublishedState::COUNTS.with_idle(),
    parameters: &[EPS],
    parameters_on_leaf: "eps is the share that samples",
    notify: |_| Notify::Update(0.0),
    // The last known queues answer the samples, so that no task waits for one.
    queue_access: |_| QueueAccess::Direct,
    ..Entry::new(
        "lsq-hybrid",
        "the shortest queue of a local view; idle members report, a share eps of arrivals samples one",
        "LSQ, ToN 2020, Example 3",
        |v| build(1.0, v[0], false),
    )
};

/// `hlsq-sample`.
pub const SPEED_SAMPLE: Entry = Entry {
    publishes: PublishedState::COUNTS,
    parameters: &[D],
    by_rate: true,
    notify: |_| Notify::Never,
    queue_access: |_| QueueAccess::Probes,
    ..Entry::new(
        "hlsq-sample",
        "lsq-sample by (queue + 1) / speed",
        "wedjat, after LSQ, ToN 2020",
        |v| build(v[0], 1.0, true),
    )
};

/// `hlsq-update`.
pub const SPEED_UPDATE: Entry = Entry {
    publishes: PublishedState::LOADS,
    parameters: &[EPS],
    by_rate: true,
    parameters_on_leaf: "eps changes nothing",
    notify: |v| Notify::Update(v[0]),
    ..Entry::new(
        "hlsq-update",
        "lsq-update by (queue + 1) / speed",
        "wedjat, after LSQ, ToN 2020",
        |_| build(0.0, 0.0, true),
    )
};

/// `hlsq-smart`.
pub const SPEED_SMART: Entry = Entry {
    publishes: PublishedState::LOADS,
    parameters: &[EPS],
    by_rate: true,
    parameters_on_leaf: "eps changes nothing",
    notify: |v| Notify::Smart(v[0]),
    ..Entry::new(
        "hlsq-smart",
        "lsq-smart by (queue + 1) / speed",
        "wedjat, after LSQ, ToN 2020",
        |_| build(0.0, 0.0, true),
    )
};

/// `hlsq-hybrid`.
pub const SPEED_HYBRID: Entry = Entry {
    publishes: PublishedState::COUNTS,
    parameters: &[EPS],
    by_rate: true,
    parameters_on_leaf: "eps is the share that samples",
    notify: |_| Notify::Update(0.0),
    queue_access: |_| QueueAccess::Direct,
    ..Entry::new(
        "hlsq-hybrid",
        "lsq-hybrid by (queue + 1) / speed",
        "wedjat, after LSQ, ToN 2020",
        |v| build(1.0, v[0], true),
    )
};

/// Builds the policy; see [`Lsq::new`].
fn build(samples: f64, chance: f64, by_speed: bool) -> AnyPolicy {
    AnyPolicy::from(Lsq::new(samples as usize, chance, by_speed))
}

/// Sampling of members on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Samples {
    /// Number of members that an arrival samples.
    count: usize,
    /// Threshold: an arrival samples if a random number is below it. With the maximum every arrival samples.
    below: u32,
}

impl Samples {
    /// No arrival samples.
    const NONE: Self = Self { count: 0, below: u32::MAX };
    /// Every arrival samples two members, the common case.
    const TWO: Self = Self { count: 2, below: u32::MAX };

    /// Draws whether the next arrival samples.
    #[inline(always)]
    fn are_due(self, rng: &mut Rng) -> bool {
        self.count > 0 && (self.below == u32::MAX || (rng.next_u64() as u32) < self.below)
    }

    /// Samples members if due, and sets their queues in the local view. Adds the number of probes to `messages`.
    /// Returns the new front.
    #[inline(always)]
    fn take<R: Rank>(
        self,
        queues: &mut R,
        mut front: R::Front,
        parts: &Parts<'_>,
        messages: &mut usize,
        rng: &mut Rng,
    ) -> R::Front {
        if !self.are_due(rng) {
            return front;
        }
        *messages += sample_distinct(
            self.count,
            parts.active,
            rng,
            #[inline(always)]
            |member| {
                let queue = parts.probe(member);
                if queue != queues.queue(member) {
                    front = queues.set_open(front, member, queue);
                }
            },
        );
        front
    }
}

/// Policy that picks the shortest queue of its local view.
#[derive(Clone, Debug)]
pub struct Lsq {
    /// The local view: the members in the order of their queues.
    queues: Ranking,
    samples: Samples,
}

impl Lsq {
    /// Creates the policy: a fraction `chance` of all arrivals samples `samples` members. Ranks by speed if
    /// `by_speed`.
    #[must_use]
    pub fn new(samples: usize, chance: f64, by_speed: bool) -> Self {
        let samples = Samples { count: samples, below: (chance * 32.0_f64.exp2()) as u32 };
        // By speed: (queue + 1) / speed.
        Self { queues: Ranking::new(by_speed.then_some(1.0)), samples }
    }

    /// Returns a member's queue by the dispatcher's view, for a new member of the local view, and after a write-off.
    /// The estimated load still counts written-off tasks, so the queue is at most the number of outstanding tasks.
    fn known_queue(&self, member: Member, view: &View) -> u32 {
        let outstanding = view.outstanding(member);
        match self.samples.count {
            0 => outstanding.min((view.estimated_load(member) >> 16) as u32), // whole tasks
            _ => outstanding,
        }
    }
}

/// Samples members if due. Returns the front (the members with the shortest queue in the local view) and a random one
/// of it; `None` without members.
#[inline(always)]
fn first<R: Rank>(
    queues: &mut R,
    front: R::Front,
    samples: Samples,
    parts: &Parts<'_>,
    messages: &mut usize,
    rng: &mut Rng,
) -> (R::Front, Option<RankedMember>) {
    let mut front = samples.take(queues, front, parts, messages, rng);
    if front.is_empty() {
        let Some(next) = queues.reopen(front) else { return (front, None) };
        front = next;
    }
    (front, queues.find(front, rng.next_u64() as u32))
}

/// Picks a member for each task, like [`super::one_by_one`], but finds and increments a member in one step.
#[inline(always)]
fn pick_run(
    queues: &mut impl Rank,
    samples: Samples,
    picks: Picks<'_>,
    parts: Parts<'_>,
    rng: &mut Rng,
) {
    let (mut front, mut messages) = (queues.open(), 0);
    for pick in picks {
        let found;
        (front, found) = first(queues, front, samples, &parts, &mut messages, rng);
        let Some(found) = found else {
            *pick = None;
            continue;
        };
        front = queues.take(front, found);
        parts.states.of(found.member).sent();
        *pick = Some(Pick { member: found.member, idle: found.queue == 0 });
    }
    queues.close(front);
    parts.picks.messages += messages as u64;
}

/// Calls [`pick_run`], compiled for the frequent cases: no sampling, or two samples without remote cores.
#[inline(always)]
fn pick_any(
    queues: &mut impl Rank,
    samples: Samples,
    picks: Picks<'_>,
    parts: Parts<'_>,
    rng: &mut Rng,
) {
    if samples.count == 0 {
        pick_run(queues, Samples::NONE, picks, parts, rng);
    } else if samples == Samples::TWO && parts.are_alone() {
        pick_run(queues, Samples::TWO, picks, parts.alone(), rng);
    } else {
        pick_run(queues, samples, picks, parts, rng);
    }
}

impl Policy for Lsq {
    /// Takes this core's idle members first, if each belongs to one core. Then picks the shortest queue of the local
    /// view.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        let mut local = rng.clone(); // stays in registers over the run
        let count = tasks.len().min(picks.len());
        // If each idle member belongs to one core: first those of this core. The ranks already count a task at each
        // idle member, so these picks leave the ranks unchanged.
        let taken = if view.shares_idle() { take_shared(&mut picks[..count], view) } else { 0 };
        let (samples, picks) = (self.samples, &mut picks[taken..count]);
        let parts = view.parts();
        match &mut self.queues {
            Ranking::Queue(ranks) => pick_any(ranks, samples, picks, parts, &mut local),
            Ranking::Delay(ranks) => pick_any(ranks, samples, picks, parts, &mut local),
        }
        *rng = local;
    }

    /// Returns the members that the next pick samples, with the same draws; none for a pick without samples.
    fn ask(&self, view: &View, rng: &mut Rng) -> ProbedMembers {
        let mut probed = ProbedMembers::new();
        if self.samples.are_due(rng) {
            sample_distinct(self.samples.count, view.active(), rng, |member| probed.push(member));
        }
        if !view.active().is_empty() {
            rng.next_u64(); // `first` draws one among equal members; as many draws as for a pick
        }
        probed
    }

    /// All members are candidates, because samples only update queues before the best of all is chosen. Shared idle
    /// members come first.
    fn candidates(&self, view: &View, _rng: &mut Rng) -> Candidates {
        next_shared_idle(view).unwrap_or_else(Candidates::all)
    }

    /// Counts a task that was sent to a member without a pick.
    #[inline]
    fn on_follow(&mut self, member: Member, _view: &mut View) {
        self.queues.add(member);
    }

    /// Corrects the local view by a report.
    #[inline]
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
        let queue = report.load.whole_tasks();
        self.queues.set(report.member, rank_of(queue, view));
    }

    /// Corrects the local view by another core's update. Reads what a report or a sample would show, by the variant.
    fn on_remote_update(&mut self, member: Member, view: &mut View) {
        let queue = match self.samples.count {
            // Whole tasks: the member's last report to any core, plus the tasks sent since.
            0 => (view.estimated_load(member) >> 16) as u32,
            _ => view.outstanding(member), // same as a sample
        };
        self.queues.set(member, rank_of(queue, view));
    }

    /// Takes the lost tasks out of the local view. Otherwise a member that returns would get no task until its next
    /// report.
    fn on_written_off(&mut self, member: Member, view: &mut View) {
        let queue = self.known_queue(member, view);
        self.queues.set(member, rank_of(queue, view));
    }

    /// Counts answers, stores the loads, and ranks members by their reported queues. If each idle member belongs to one
    /// core, this core gets the members that become idle by these replies.
    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        let surplus = match view.shares_idle() {
            true => view.take_loads_and_idle(reports),
            false => view.take_loads(reports),
        };
        let least = rank_of(0, view); // the rank of an idle member
        let queue_of = |report: &Report| report.load.whole_tasks().max(least);
        match &mut self.queues {
            Ranking::Queue(ranks) => ranks.set_all(reports, view.members(), queue_of),
            Ranking::Delay(ranks) => ranks.set_all(reports, view.members(), queue_of),
        }
        surplus
    }

    /// Ranks all active members. Members with tasks in the local view keep their queues. If each idle member
    /// belongs to one core, takes all queues from the dispatcher's view instead.
    fn on_members(&mut self, caller: Caller, view: &mut View) {
        self.queues.rank(view);
        // The ranks of a new policy start at 0.
        for &member in view.active() {
            if self.queues.queue(member) == 0 {
                let queue = self.known_queue(member, view);
                self.queues.set(member, queue);
            }
        }
        if view.shares_idle() {
            share_idle(caller, view);
            // New ranks start at 0, but an idle member ranks as if it had a task: only its owner may prefer it.
            for place in 0..view.active().len() {
                self.on_remote_update(view.active()[place], view);
            }
        }
    }
}
