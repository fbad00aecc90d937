//! What a node and the simulator drive a policy by: it counts what is sent and answered, so the two cannot differ in that.

use rand::{Rng as _, SeedableRng};

use super::{AnyPolicy, Bounded, Caller, Core, Pick, Policy, PolicySpec, Rng, Task};
use crate::state::{Member, Report, View};

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
            policy.on_members(Caller::on(core), &mut view);
        }
        Self { policy, holds: spec.entry().holds() }
    }
}

/// One core's scheduler of one pool: a policy, what it decides on, and its random source.
#[derive(Debug)]
pub struct Dispatcher {
    policy: AnyPolicy,
    view: View,
    rng: Rng,
    caller: Caller,
    holds: bool,
}

impl Dispatcher {
    /// A dispatcher on `core`. Equal seeds and equal calls give equal choices.
    #[must_use]
    pub fn new(spec: &PolicySpec, view: View, core: Core, seed: u64) -> Self {
        let (caller, holds) = (Caller::on(core), spec.entry().holds());
        let (policy, rng) = (spec.build(), Rng::seed_from_u64(seed));
        let mut dispatcher = Self { policy, view, rng, caller, holds };
        dispatcher.review_members();
        dispatcher
    }

    /// What the policy derives from the members, the view or its caller is stale.
    pub fn review_members(&mut self) {
        self.policy.on_members(self.caller, &mut self.view);
    }

    /// No task is lost on its way, see [`Caller`].
    pub fn set_lossless(&mut self) {
        self.caller.lossless = true;
        self.review_members();
    }

    /// The caller carries out benchmark tasks, see [`Caller`].
    pub fn run_benchmarks(&mut self) {
        self.caller.benchmarks = true;
        self.review_members();
    }

    /// The next member that the policy wants a benchmark task for.
    #[inline]
    pub fn next_benchmark(&mut self) -> Option<Member> {
        self.policy.next_benchmark()
    }

    /// Chooses for a run of tasks, counting each as sent.
    #[inline]
    pub fn schedule(&mut self, tasks: &[Task], picks: &mut [Option<Pick>]) {
        self.policy.pick_run(tasks, picks, &mut self.view, &mut self.rng);
    }

    /// Sends one more task after `member`'s last, without a choice.
    pub fn follow(&mut self, member: Member) {
        self.view.sent(member);
        self.policy.on_follow(member, &mut self.view);
    }

    /// Takes `lost` tasks off those outstanding at `member`: nobody will answer them.
    pub fn write_off(&mut self, member: Member, lost: u32) {
        self.view.write_off(member, lost);
        self.policy.on_written_off(member, &mut self.view);
    }

    /// The core that it is on.
    #[must_use]
    pub fn core(&self) -> Core {
        self.caller.core
    }

    /// Tells the members' service rates.
    pub fn set_rates(&mut self, rates: &[f64]) {
        self.view.set_rates(rates);
        self.review_members();
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
            self.review_members();
        }
    }

    /// Replaces the policy between bursts, and leaves the old one in its place; what is known of the members stays.
    /// [`Dispatcher::review_members`] is to follow.
    pub fn exchange(&mut self, prepared: &mut Prepared) {
        std::mem::swap(&mut self.policy, &mut prepared.policy);
        std::mem::swap(&mut self.holds, &mut prepared.holds);
    }

    /// A task without a pick is to wait, and to be offered again.
    #[inline]
    #[must_use]
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// Lets the policy see time pass.
    pub fn tick(&mut self, now_ns: u64) {
        self.view.note_time(now_ns);
        self.policy.on_tick(&mut self.view, &mut self.rng);
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
