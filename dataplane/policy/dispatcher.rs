//! What a node and the simulator drive a policy by: it counts what is sent and answered, so the two cannot differ in that.

use std::collections::VecDeque;

use rand::{Rng as _, SeedableRng};

use super::asking::{Answer, Asking, Probe};
use super::{
    AnyPolicy, Basis, Bounded, Caller, Candidates, Core, Pick, Picks, Policy, PolicySpec, Rng, Task,
};
use crate::limits::{QUEUE, QUEUE_MAX};
use crate::reason::DropReason;
use crate::state::{Exchange, Heard, Member, Peers, Report, Sharing, Topic, View};

/// What becomes of a task that finds its pool's queue full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// It is dropped and counted.
    #[default]
    Drop,
    /// It is given back to its client, undone.
    Refuse,
}

/// How members tell their queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reports {
    /// With every reply.
    #[default]
    Replies,
    /// In messages of their own, when and to whom the policy has them tell ([`super::member::Notify`]), or when they are asked for
    /// the policy: replies tell nothing.
    Messages,
}

/// The tasks that wait for a dispatcher's members, which others keep.
#[derive(Clone, Debug)]
struct Backlog {
    waiting: usize,
    bound: usize,
    overflow: Overflow,
    /// Tasks wait also while no member is there.
    without_members: bool,
    /// Since when they wait, as far as there is memory for it, where other cores are to know.
    since_ns: VecDeque<u64>,
}

/// A policy that is to take another's place between bursts, with the memory that it needs for its members.
#[derive(Debug)]
pub struct Prepared {
    policy: AnyPolicy,
    holds: bool,
    sharing: Sharing,
}

impl Prepared {
    /// For a core's view of so many members.
    #[must_use]
    pub fn new(spec: &PolicySpec, members: usize, core: Core) -> Self {
        let mut policy = spec.build();
        if let Some(mut view) = View::heap(members, 1).pop() {
            policy.on_members(Caller::on(core), &mut view);
        }
        Self { policy, holds: spec.entry().holds(), sharing: spec.entry().sharing }
    }
}

/// One core's scheduler of one pool: a policy, what it decides on, its random source, and how many tasks wait. It shares no cache
/// lines with what other cores write; neighbouring ones are fetched in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub struct Dispatcher {
    policy: AnyPolicy,
    view: View,
    rng: Rng,
    caller: Caller,
    holds: bool,
    backlog: Backlog,
    /// The policy asks some members about each task.
    probes: bool,
    /// What it asks them, where that takes messages.
    asking: Option<Box<Asking>>,
}

impl Dispatcher {
    /// A dispatcher on `core`. Equal seeds and equal calls give equal choices.
    #[must_use]
    pub fn new(spec: &PolicySpec, mut view: View, core: Core, seed: u64) -> Self {
        view.set_sharing(spec.entry().sharing);
        let (caller, holds) = (Caller::on(core), spec.entry().holds());
        let (policy, rng) = (spec.build(), Rng::seed_from_u64(seed));
        let known = if view.peers().is_some() { QUEUE } else { 0 };
        let backlog = Backlog {
            waiting: 0,
            bound: QUEUE,
            overflow: Overflow::Drop,
            without_members: true,
            since_ns: VecDeque::with_capacity(known),
        };
        let probes = spec.probes();
        let mut dispatcher =
            Self { policy, view, rng, caller, holds, backlog, probes, asking: None };
        dispatcher.review_members();
        dispatcher
    }

    /// What the policy derives from the members, the view or its caller is stale.
    pub fn review_members(&mut self) {
        self.policy.on_members(self.caller, &mut self.view);
    }

    /// Says how members tell their queues; before the first task. Where they do so in messages, none is believed idle before it
    /// says so.
    pub fn set_reports(&mut self, reports: Reports) {
        self.caller.reports = reports;
        if reports == Reports::Messages {
            while self.view.idle_mut().take_last().is_some() {}
            if self.probes {
                self.ask_in_messages();
            }
        }
        self.review_members();
    }

    /// Tasks wait for the answers of those that are asked about them.
    fn ask_in_messages(&mut self) {
        // Room for as many as usual, too: the bound may be raised while it runs.
        let waiting = self.backlog.bound.clamp(QUEUE, QUEUE_MAX);
        let asking = Asking::new(self.view.members(), waiting);
        self.view.set_queues(asking.queues());
        self.asking = Some(Box::new(asking));
        self.holds = true;
    }

    /// Members are asked about each task in messages ([`Dispatcher::next_probe`]), and each waits for their answers.
    #[inline]
    #[must_use]
    pub fn asks(&self) -> bool {
        self.asking.is_some()
    }

    /// The next member that is to be asked for its queue.
    #[inline]
    pub fn next_probe(&mut self) -> Option<Probe> {
        self.asking.as_mut()?.next_probe()
    }

    /// A member that was asked under this number had so many tasks.
    pub fn answer(&mut self, member: Member, number: u16, queue: u32) -> Answer {
        match &mut self.asking {
            Some(asking) => {
                self.view.note_heard(member);
                asking.answer(member, number, queue)
            }
            None => Answer::Late,
        }
    }

    /// Members that were asked and did not answer in time, since this was last asked.
    pub fn take_unanswered(&mut self) -> u64 {
        self.asking.as_mut().map_or(0, |asking| asking.take_unanswered())
    }

    /// How members tell their queues.
    #[must_use]
    pub fn reports(&self) -> Reports {
        self.caller.reports
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

    /// The members that the next decision is between, as far as the policy looks at some alone.
    #[must_use]
    pub fn candidates(&self) -> Candidates {
        if self.asking.is_some() {
            return Candidates::new(Basis::Asked, []);
        }
        self.policy.candidates(&self.view, &mut self.rng.clone())
    }

    /// Chooses for a run of tasks, counting each as sent.
    #[inline]
    pub fn schedule(&mut self, tasks: &[Task], picks: Picks<'_>) {
        self.policy.pick_run(tasks, picks, &mut self.view, &mut self.rng);
        if self.view.peers().is_some() {
            picks.iter().flatten().for_each(|pick| self.view.touch(pick.member));
        }
    }

    /// Takes what another core (the `other`th of them) told.
    fn hear(&mut self, other: usize, topic: Topic, messages: &[(Member, u16)]) {
        for &(member, value) in messages {
            if self.view.hear(other, topic, member, value) {
                self.policy.on_told(member, &mut self.view);
            }
        }
    }

    /// Some of what another core told was lost: looks up what it told last of every member.
    #[cold]
    fn hear_again(&mut self, other: usize) {
        let Some(topic) = self.view.peers().and_then(|peers| peers.sharing().topic) else { return };
        for member in (0..self.view.members() as u16).map(Member) {
            let told = self.view.told_by(other, member);
            self.hear(other, topic, &[(member, told)]);
        }
    }

    /// Chooses for a task, counting it as sent. While no member may have it, a task that is not complete has to make room:
    /// `reclaim` takes one's place away and names its member.
    #[inline]
    pub(crate) fn choose(
        &mut self,
        task: Task,
        mut reclaim: impl FnMut() -> Option<Member>,
    ) -> Option<Pick> {
        if self.asking.is_some() {
            return self.choose_answered(task);
        }
        loop {
            let mut picks = [None];
            self.schedule(&[task], &mut picks);
            if picks[0].is_some() || !self.holds {
                return picks[0];
            }
            self.write_off(reclaim()?, 1);
        }
    }

    /// Chooses for the first task that waits, when those that it asked have answered, counting it as sent.
    fn choose_answered(&mut self, task: Task) -> Option<Pick> {
        let asking = self.asking.as_mut()?;
        let mut rng = asking.ready(self.view.now_ns())?;
        let mut picks = [None];
        self.policy.pick_run(&[task], &mut picks, &mut self.view, &mut rng);
        let pick = picks[0]?;
        asking.sent(pick.member);
        self.view.touch(pick.member);
        Some(pick)
    }

    /// Decides on a new task: it waits when others wait, else the policy chooses, else it waits. None when it waits: its caller
    /// puts it last. `reclaim` is as in [`Dispatcher::choose`].
    ///
    /// # Errors
    /// Why it neither goes nor waits.
    #[inline]
    pub(crate) fn offer(
        &mut self,
        task: Task,
        reclaim: impl FnMut() -> Option<Member>,
    ) -> Result<Option<Pick>, DropReason> {
        if self.backlog.waiting == 0
            && self.asking.is_none()
            && let Some(pick) = self.choose(task, reclaim)
        {
            return Ok(Some(pick));
        }
        self.wait().map(|()| None)
    }

    /// A task that can't go now waits, if its policy lets it or others wait.
    ///
    /// # Errors
    /// Why it may not.
    #[inline]
    pub(crate) fn wait(&mut self) -> Result<(), DropReason> {
        let nobody = || !self.backlog.without_members && self.view.active().is_empty();
        if self.backlog.waiting == 0 && (!self.holds || nobody()) {
            return Err(DropReason::NoMember);
        }
        self.join()
    }

    /// A task waits.
    ///
    /// # Errors
    /// That no more may.
    #[inline]
    pub(super) fn join(&mut self) -> Result<(), DropReason> {
        let has_room = |asking: &Asking| asking.has_room();
        if self.backlog.waiting >= self.backlog.bound
            || !self.asking.as_deref().is_none_or(has_room)
        {
            return Err(DropReason::QueueFull);
        }
        if let Some(asking) = &mut self.asking {
            let rng = self.rng.clone();
            let asked = self.policy.ask(&self.view, &mut self.rng);
            asking.push(rng, &asked, self.view.now_ns());
        }
        self.backlog.waiting += 1;
        if let Some(peers) = self.view.peers() {
            let since_ns = &mut self.backlog.since_ns;
            if since_ns.len() < QUEUE {
                since_ns.push_back(self.view.now_ns().max(1));
            }
            peers.note_oldest(since_ns[0]);
        }
        Ok(())
    }

    /// The first task that waits does so no longer.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.backlog.waiting = self.backlog.waiting.saturating_sub(1);
        if let Some(asking) = &mut self.asking {
            asking.pop();
        }
        if let Some(peers) = self.view.peers() {
            self.backlog.since_ns.pop_front();
            let known = self.backlog.since_ns.front().copied();
            let unknown = if self.backlog.waiting > 0 { self.view.now_ns().max(1) } else { 0 };
            peers.note_oldest(known.unwrap_or(unknown));
        }
    }

    /// The last task that waits does so no longer: there is no room for it.
    pub(crate) fn leave_last(&mut self) {
        if let Some(asking) = &mut self.asking {
            asking.pop_last();
        }
        self.backlog.waiting = self.backlog.waiting.saturating_sub(1);
        if let Some(peers) = self.view.peers() {
            if self.backlog.since_ns.len() > self.backlog.waiting {
                self.backlog.since_ns.pop_back();
            }
            peers.note_oldest(self.backlog.since_ns.front().copied().unwrap_or(0));
        }
    }

    /// A task that waits may go by what another core gave away.
    #[inline]
    #[must_use]
    pub fn may_release(&self) -> bool {
        let peers = self.view.peers().filter(|_| self.backlog.waiting > 0);
        peers.is_some_and(|peers| peers.has_tokens())
    }

    /// Says how many tasks may wait, and what becomes of others; those that wait do so on.
    pub fn set_queue(&mut self, bound: usize, overflow: Overflow) {
        (self.backlog.bound, self.backlog.overflow) = (bound, overflow);
    }

    /// With such a queue, see [`Dispatcher::set_queue`].
    #[must_use]
    pub fn with_queue(mut self, bound: usize, overflow: Overflow) -> Self {
        self.set_queue(bound, overflow);
        self
    }

    /// How many tasks may wait, and what becomes of others.
    #[inline]
    #[must_use]
    pub fn queue(&self) -> (usize, Overflow) {
        (self.backlog.bound, self.backlog.overflow)
    }

    /// No task begins to wait while no member is there: whoever sent it learns of that at once.
    pub fn refuse_without_members(&mut self) {
        self.backlog.without_members = false;
    }

    /// How many tasks wait.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.backlog.waiting
    }

    /// Sends one more task after `member`'s last, without a choice.
    pub fn follow(&mut self, member: Member) {
        self.view.sent(member);
        self.view.touch(member);
        if let Some(asking) = &mut self.asking {
            asking.sent(member);
        }
        self.policy.on_follow(member, &mut self.view);
    }

    /// Takes `lost` tasks off those outstanding at `member`: nobody will answer them.
    pub fn write_off(&mut self, member: Member, lost: u32) {
        self.view.write_off(member, lost);
        self.policy.on_written_off(member, &mut self.view);
    }

    /// `surplus` of the answers of `member`, over all cores, were to no task of this node.
    pub fn take_back(&mut self, member: Member, surplus: u32) {
        self.view.take_back(member, surplus);
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
    /// no task outstanding. Where members tell their queues otherwise, tasks are counted as answered and no more.
    #[inline]
    pub fn reply_run(&mut self, reports: &[Report]) -> usize {
        let surplus = match self.caller.reports {
            Reports::Replies => self.policy.reply_run(reports, &mut self.view, &mut self.rng),
            Reports::Messages => self.view.take_answers(reports),
        };
        if self.view.peers().is_some() {
            reports.iter().for_each(|report| self.view.touch(report.member));
        }
        surplus
    }

    /// Takes the report that came with a reply; false when the member had no task outstanding.
    #[inline]
    pub fn reply(&mut self, report: &Report) -> bool {
        self.reply_run(std::slice::from_ref(report)) == 0
    }

    /// Takes a report that came without a reply, in a keep-alive for instance.
    pub fn refresh(&mut self, report: &Report) {
        self.policy.on_reply(report, &mut self.view, &mut self.rng);
        self.view.touch(report.member);
    }

    /// A member says that it is there, and what it has: believed, unless members tell their queues otherwise.
    pub fn note_alive(&mut self, report: &Report) {
        match self.caller.reports {
            Reports::Replies => self.refresh(report),
            Reports::Messages => self.view.note_heard(report.member),
        }
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
        let shared = self.view.peers().map(Peers::sharing);
        self.view.set_sharing(prepared.sharing);
        prepared.sharing = shared.unwrap_or(prepared.sharing);
    }

    /// A task without a pick is to wait, and to be offered again; the first that waits is to wait on.
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

impl AsMut<Self> for Dispatcher {
    #[inline]
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

/// Tells a node's other cores what has changed at these dispatchers, one for each pool, and hears what has changed there; all is
/// told if the core keeps up with what comes.
pub fn exchange<D>(exchange: &mut Exchange, dispatchers: &mut [D], keeps_up: bool)
where
    D: AsMut<Dispatcher>,
{
    for (pool, dispatcher) in dispatchers.iter_mut().enumerate() {
        dispatcher.as_mut().view.tell(pool, &mut exchange.sender, keeps_up);
    }
    exchange.publish(keeps_up);
    while let Some(heard) = exchange.receive() {
        match heard {
            Heard::Messages(other, subject, messages) => {
                if let Some(dispatcher) = dispatchers.get_mut(usize::from(subject.pool)) {
                    dispatcher.as_mut().hear(other, subject.topic, messages);
                }
            }
            Heard::Lost(other) => {
                dispatchers.iter_mut().for_each(|dispatcher| dispatcher.as_mut().hear_again(other));
            }
        }
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
