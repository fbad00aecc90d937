//! Driver of a policy, for nodes and the simulator. It counts sent and answered tasks, so both use the same counts.
//!
//! A dispatcher runs on one core for one pool. It counts the tasks that wait for a member; its caller stores
//! them. With reports in messages, some policies probe members for each task; the task waits for the answers
//! ([`super::asking`]).
//!
//! Under a central queue (`jbsq`, `cfcfs`) a member has a *place* for each task that it may hold. Cores of a node
//! exchange free places and idle members as *tokens* in shared memory; one core holds a token at a time. `eft` has no
//! places: its tasks wait by the cores' counts.

use std::collections::VecDeque;

use rand::{Rng as _, SeedableRng};

use super::asking::{Answer, PendingProbes, Probe};
use super::beliefs::ClassBeliefs;
use super::classes::{Classes, LANES, Lane, Lanes, ReserveUse, reserved_end};
use super::{
    AnyPolicy, Beliefs, Bounded, Caller, Candidates, Core, Pick, Picks, Policy, PolicySpec,
    Reports, Rng, SelectionBasis, Task,
};
use crate::limits::{BURST, QUEUE, QUEUE_MAX};
use crate::reason::DropReason;
use crate::state::broadcast::Sender;
use crate::state::{
    Exchange, Member, PoolExchange, PublishedState, RemoteUpdate, Report, Topic, View,
};

/// Treatment of a task that finds its pool's queue full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// Drops and counts it.
    #[default]
    Drop,
    /// Returns it undone to its client.
    Refuse,
}

/// Decision on a new task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// The task goes to this member.
    Sent(Pick),
    /// The task waits at the end of this lane.
    Waits(Lane),
}

#[cfg(test)]
impl Assignment {
    /// Returns the pick; `None` for a task that waits.
    #[must_use]
    pub const fn pick(self) -> Option<Pick> {
        match self {
            Self::Sent(pick) => Some(pick),
            Self::Waits(_) => None,
        }
    }
}

/// Count of the tasks that wait for a dispatcher's members. The caller stores the tasks themselves.
#[derive(Debug)]
struct Backlog {
    /// Number of waiting tasks.
    waiting: usize,
    /// Number of waiting tasks in each lane.
    of_lane: [u32; LANES],
    /// Maximum number of waiting tasks.
    bound: usize,
    /// Treatment of a task beyond the bound.
    overflow: Overflow,
    /// True if tasks may begin to wait while no member is active: a leaf's worker may only be silent. False in an
    /// agent, which knows that its workers have gone. In both, a task behind waiting tasks waits too.
    without_members: bool,
    /// Arrival times of waiting tasks by lane, from which the core computes the key that it publishes to other cores.
    /// At most [`QUEUE`] times for the first lane, and `QUEUE / LANES` for each other one. Empty on a single core.
    since_ns: [VecDeque<u64>; LANES],
}

impl Backlog {
    /// Returns the number of waiting tasks in these lanes.
    fn of(&self, lanes: Lanes) -> usize {
        Lane::all()
            .filter(|&lane| lanes.contains(lane))
            .map(|lane| self.of_lane[lane.index()] as usize)
            .sum()
    }
}

/// A policy that replaces another one between bursts, with all memory for its members. A control thread creates it,
/// because a polling core must not allocate.
#[derive(Debug)]
pub struct PreparedPolicy {
    policy: AnyPolicy,
    /// True if a task without a pick must wait.
    holds: bool,
    /// State that the policy publishes to remote cores.
    publishes: PublishedState,
    /// Classes of its tasks, if it distinguishes them.
    classes: Option<Box<Classes>>,
}

impl PreparedPolicy {
    /// Creates the policy for a core's view of `members` members.
    #[must_use]
    pub fn new(spec: &PolicySpec, members: usize, core: Core) -> Self {
        let mut policy = spec.build();
        // Lets the policy allocate here, over a throw-away view, and not on the polling core.
        if let Some(mut view) = View::heap(members, 1).pop() {
            policy.on_members(Caller::on(core), &mut view);
        }
        let classes = Classes::new(spec.classes());
        Self { policy, holds: spec.entry().holds(), publishes: spec.entry().publishes, classes }
    }
}

/// One core's scheduler of one pool: a policy, its view, its random source, and the count of waiting tasks.
/// Aligned to two cache lines, which the CPU prefetches in pairs, so that it shares none with other cores'
/// writes.
#[derive(Debug)]
#[repr(align(128))]
pub struct Dispatcher {
    policy: AnyPolicy,
    view: View,
    rng: Rng,
    caller: Caller,
    /// True if a task without a pick must wait.
    holds: bool,
    backlog: Backlog,
    /// Classes of tasks, if the policy distinguishes them.
    classes: Option<Box<Classes>>,
    /// True if the policy of [`Dispatcher::new`] can probe members by messages. Only [`Dispatcher::set_reports`] reads
    /// it.
    probes: bool,
    /// Probes of the waiting tasks, if probes are messages.
    pending: Option<Box<PendingProbes>>,
}

impl Dispatcher {
    /// Creates a dispatcher on `core`. Equal seeds and equal calls give equal choices.
    #[must_use]
    pub fn new(spec: &PolicySpec, mut view: View, core: Core, seed: u64) -> Self {
        view.set_publishes(spec.entry().publishes);
        let (caller, holds) = (Caller::on(core), spec.entry().holds());
        let (policy, rng) = (spec.build(), Rng::seed_from_u64(seed));
        let is_shared = view.pool_exchange().is_some();
        let since_ns = std::array::from_fn(|lane| {
            let capacity = if lane == 0 { QUEUE } else { QUEUE / LANES };
            VecDeque::with_capacity(if is_shared { capacity } else { 0 })
        });
        let backlog = Backlog {
            waiting: 0,
            of_lane: [0; LANES],
            bound: QUEUE,
            overflow: Overflow::Drop,
            without_members: true,
            since_ns,
        };
        let (probes, pending) = (spec.can_probe_by_messages(), None);
        let classes = Classes::new(spec.classes());
        let mut dispatcher =
            Self { policy, view, rng, caller, holds, backlog, classes, probes, pending };
        dispatcher.review_members();
        dispatcher
    }

    /// Recomputes the policy's derived state after a change of members, view, caller or policy. Also reads the values
    /// of remote cores that changed to this policy earlier, because this core dropped their messages.
    pub fn review_members(&mut self) {
        self.policy.on_members(self.caller, &mut self.view);
        while let Some(remote) = self.view.take_missed() {
            self.resynchronize(remote);
        }
    }

    /// Sets the source of load reports; call it before the first task. With messages, a member counts as idle only
    /// after its first report.
    pub fn set_reports(&mut self, reports: Reports) {
        self.caller.reports = reports;
        if reports == Reports::Messages {
            // Empties the idle list, which the policy filled at its creation.
            while self.view.idle_mut().take_last().is_some() {}
            if self.probes {
                self.probe_by_messages();
            }
        }
        self.review_members();
    }

    /// Switches to probes in messages: each task waits for the answers to its probes.
    fn probe_by_messages(&mut self) {
        // Allocates for at least `QUEUE` tasks, because the bound may be raised later.
        let waiting = self.backlog.bound.clamp(QUEUE, QUEUE_MAX);
        let pending = PendingProbes::new(self.view.members(), waiting);
        self.view.set_queues(pending.queues());
        self.pending = Some(Box::new(pending));
        self.holds = true;
    }

    /// Returns true if each task waits for probes sent as messages ([`Dispatcher::next_probe`]).
    #[inline]
    #[must_use]
    pub fn sends_probes(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns the next member to probe, if probes are messages and one is left to send.
    #[inline]
    pub fn next_probe(&mut self) -> Option<Probe> {
        self.pending.as_mut()?.next_probe()
    }

    /// Processes a member's answer to the probe with this number. `queue` is the member's queue length.
    pub fn answer(&mut self, member: Member, number: u16, queue: u32) -> Answer {
        match &mut self.pending {
            Some(pending) => {
                self.view.note_sign_of_life(member);
                pending.answer(member, number, queue)
            }
            None => Answer::Late,
        }
    }

    /// Returns the number of probes without a timely answer since the last call.
    pub fn take_unanswered(&mut self) -> u64 {
        self.pending.as_mut().map_or(0, |pending| pending.take_unanswered())
    }

    /// Returns the source of load reports.
    #[must_use]
    pub fn reports(&self) -> Reports {
        self.caller.reports
    }

    /// Declares that no task is lost in transit, as in shared memory, see [`Caller`].
    pub fn set_lossless(&mut self) {
        self.caller.lossless = true;
        self.review_members();
    }

    /// Declares that the caller runs benchmark tasks, see [`Caller`]. Some policies learn the members' speeds from
    /// them. Simulators call it; nodes send no benchmark tasks.
    pub fn run_benchmarks(&mut self) {
        self.caller.benchmarks = true;
        self.review_members();
    }

    /// Returns the next member for which the policy requests a benchmark task, if any.
    #[inline]
    pub fn next_benchmark(&mut self) -> Option<Member> {
        self.policy.next_benchmark()
    }

    /// Returns the members that the next decision considers. See [`Candidates`] for the meaning of an empty list.
    #[must_use]
    pub fn candidates(&self) -> Candidates {
        if self.pending.is_some() {
            return Candidates::new(SelectionBasis::Asked, []);
        }
        self.policy.candidates(&self.view, &mut self.rng.clone())
    }

    /// Returns the inputs of the next decision.
    #[must_use]
    pub fn beliefs(&self) -> Beliefs {
        let queue = (self.waiting(), self.queue().0);
        Beliefs::new(&self.view, self.candidates(), queue, self.bound())
    }

    /// Returns the rules for this task's class at the next decision; `None` for a policy without such rules. `since_ns`
    /// as in [`Dispatcher::next_lane`].
    #[must_use]
    pub fn class_beliefs(
        &self,
        task: Task,
        since_ns: impl Fn(Lane) -> Option<u64>,
    ) -> Option<ClassBeliefs> {
        let (classes, view) = (self.classes.as_ref()?, &self.view);
        let lane = classes.lane(task);
        // This task arrives now. So do tasks of its burst that are counted, but not in their queue yet.
        let arrives = |one: Lane| one == lane || self.backlog.of_lane[one.index()] > 0;
        let first_ns = |one| since_ns(one).or_else(|| arrives(one).then(|| view.now_ns()));
        let reserved_end = reserved_end(view.members(), view.active(), classes.reserve());
        let reserved = view.active().iter().filter(|member| member.index() < reserved_end);
        let reserve_use = classes.reserve_use(lane);
        let reserve_use = match &self.policy {
            AnyPolicy::Eft(eft) => eft.reserve_use(reserve_use),
            _ => reserve_use,
        };
        let is_full = self.fullness();
        let has_room =
            |member: &&Member| !is_full.as_ref().is_some_and(|is_full| is_full(**member));
        Some(ClassBeliefs {
            lane,
            waiting: self.backlog.of_lane[lane.index()] as usize,
            delay_ns: classes.delay_ns(lane),
            next: self.least_key(Lane::all(), first_ns)?,
            is_long: classes.long().contains(lane),
            avoids_reserve: reserve_use == ReserveUse::Never,
            reserved: reserved.clone().count(),
            reserved_with_room: reserved.filter(has_room).count(),
            reserved_end,
        })
    }

    /// Returns the maximum number of tasks at a member, if the policy has one.
    fn bound(&self) -> Option<usize> {
        match &self.policy {
            AnyPolicy::Eft(eft) => eft.bound(),
            _ => self.bounded().map(Bounded::bound),
        }
    }

    /// Returns a test for members at the policy's bound of tasks; `None` without a bound. With direct return, the leaf
    /// marks a task that fills its worker, so that the server reports the next completion at once. Tasks of another
    /// core may count late.
    #[inline]
    pub(crate) fn fullness(&self) -> Option<impl Fn(Member) -> bool + '_> {
        let bound = self.bound()? as u32;
        Some(move |member| self.view.outstanding(member) >= bound)
    }

    /// Chooses a member for each task of a run, and counts each as sent.
    #[inline]
    pub fn schedule(&mut self, tasks: &[Task], picks: Picks<'_>) {
        self.view.set_waiting(self.backlog.waiting);
        self.policy.pick_run(tasks, picks, &mut self.view, &mut self.rng);
        self.view.touch_all(picks.iter().flatten().map(|pick| pick.member));
    }

    /// Publishes the changes of the pool with this index to remote cores. After an overload, lowers
    /// the counts of their tasks to the published ones.
    #[inline]
    fn publish(&mut self, pool: usize, sender: &mut Sender, keeps_up: bool) {
        let missed_tasks = self.view.misses_tasks();
        self.view.exchange_backlog(self.backlog.waiting);
        self.view.publish(pool, self.backlog.waiting, sender, keeps_up);
        if missed_tasks && !self.view.misses_tasks() {
            for member in (0..self.view.members() as u16).map(Member) {
                if self.view.forget_report(member) {
                    self.policy.on_remote_update(member, &mut self.view);
                }
            }
        }
    }

    /// Processes messages of a remote core: a value for each member, whose meaning `topic` gives (task count or load).
    /// Informs the policy of members whose estimate changed.
    fn receive_update(&mut self, remote: usize, topic: Topic, messages: &[(Member, u16)]) {
        for &(member, value) in messages {
            if self.view.receive(remote, topic, member, value) {
                self.policy.on_remote_update(member, &mut self.view);
            }
        }
    }

    /// Informs the policy that another dispatcher's tasks at a member changed. For simulators, whose dispatchers share
    /// counts, so that the view already contains the change.
    #[inline]
    pub fn on_remote_update(&mut self, member: Member) {
        self.policy.on_remote_update(member, &mut self.view);
    }

    /// Re-reads the values that a remote core last published for all members, after some of its messages were
    /// lost.
    #[cold]
    fn resynchronize(&mut self, remote: usize) {
        let Some(topic) =
            self.view.pool_exchange().and_then(|pool_exchange| pool_exchange.publishes().topic)
        else {
            return;
        };
        for member in (0..self.view.members() as u16).map(Member) {
            let value = self.view.last_published(remote, member);
            self.receive_update(remote, topic, &[(member, value)]);
        }
    }

    /// Chooses a member for a task regardless of waiting tasks, and counts it as sent. With probes in messages, the
    /// task must be the first waiting one. If no member has a free place, `reclaim` gives up an incomplete task (some
    /// of its packets have not arrived) and returns its member. This function writes that task off, which frees its
    /// place, and tries again.
    #[inline]
    pub(crate) fn choose(
        &mut self,
        task: Task,
        mut reclaim: impl FnMut() -> Option<Member>,
    ) -> Option<Pick> {
        if self.pending.is_some() {
            return self.choose_answered(task);
        }
        let avoids_reserve = self.apply_classes(task) == ReserveUse::Never;
        loop {
            let mut picks = [None];
            self.schedule(&[task], &mut picks);
            // A long task that avoids the reserve reclaims no place: it may be at a reserved member.
            if picks[0].is_some() || !self.holds || avoids_reserve {
                return picks[0];
            }
            self.write_off(reclaim()?, 1);
        }
    }

    /// Applies the rules for a task's class to the next pick. Returns the task's use of reserved members.
    #[inline]
    fn apply_classes(&mut self, task: Task) -> ReserveUse {
        let Some(classes) = &self.classes else { return ReserveUse::default() };
        let lane = classes.lane(task);
        self.view.set_key_delay(classes.delay_ns(lane));
        let reserve_use = classes.reserve_use(lane);
        self.policy.set_reserve_use(reserve_use);
        reserve_use
    }

    /// Chooses a member for the first waiting task once its probes are answered, and counts it as sent.
    fn choose_answered(&mut self, task: Task) -> Option<Pick> {
        let pending = self.pending.as_mut()?;
        let mut rng = pending.ready(self.view.now_ns())?;
        let mut picks = [None];
        self.policy.pick_run(&[task], &mut picks, &mut self.view, &mut rng);
        let pick = picks[0]?;
        pending.sent(pick.member);
        self.view.touch(pick.member);
        Some(pick)
    }

    /// Decides on a run of new tasks, in order. A task without a pick must wait or is refused: [`Dispatcher::wait`]
    /// decides which. In a pool whose tasks may wait, such a task blocks the tasks behind it, in all lanes of
    /// [`Dispatcher::blocked_by`]. `reclaim` as in [`Dispatcher::choose`].
    #[inline]
    pub(crate) fn offer_run(
        &mut self,
        tasks: &[Task],
        picks: Picks<'_>,
        reclaim: impl FnMut() -> Option<Member>,
    ) {
        if self.classes.is_some() {
            return self.offer_by_class(tasks, picks, reclaim);
        }
        // With probes in messages every task waits, at least for their answers.
        if self.backlog.waiting > 0 || self.pending.is_some() {
            return picks.fill(None);
        }
        match self.holds {
            false => self.schedule(tasks, picks),
            true => _ = self.place_run(tasks, picks, reclaim),
        }
    }

    /// Chooses a member for each task of a run, up to the first task without one. Returns the number of tasks before
    /// it. `reclaim` as in [`Dispatcher::choose`].
    #[inline]
    fn place_run(
        &mut self,
        tasks: &[Task],
        picks: Picks<'_>,
        mut reclaim: impl FnMut() -> Option<Member>,
    ) -> usize {
        let mut next = 0;
        loop {
            self.schedule(&tasks[next..], &mut picks[next..]);
            next += picks[next..].iter().take_while(|pick| pick.is_some()).count();
            debug_assert!(
                picks[next..].iter().all(Option::is_none),
                "a pick behind a task without one"
            );
            if next == tasks.len() {
                return next;
            }
            let Some(member) = reclaim() else { return next };
            self.write_off(member, 1);
        }
    }

    /// Chooses members for the first waiting tasks of the first lane, in order, and counts those with a pick as no
    /// longer waiting. Returns their number. For policies that hold tasks, without probes in messages and without
    /// classes.
    #[inline]
    pub(crate) fn release_run(
        &mut self,
        picks: Picks<'_>,
        mut reclaim: impl FnMut() -> Option<Member>,
    ) -> usize {
        // `eft` reads the number of waiting tasks before each pick; a central queue does not.
        let is_central = matches!(self.policy, AnyPolicy::Bounded(_));
        let tasks = [Task::default(); BURST];
        let mut released = 0;
        while released < picks.len() {
            let step = if is_central { self.waiting_with_first(picks.len() - released) } else { 1 };
            let run = &mut picks[released..released + step];
            let placed = self.place_run(&tasks[..step], run, &mut reclaim);
            self.leave_run(Lane::FIRST, placed);
            released += placed;
            if placed < step {
                break;
            }
        }
        released
    }

    /// Returns the length, from 1 to `most`, of the longest prefix of the first lane whose tasks all have the first
    /// one's priority over tasks on other cores. Without other cores this is `most`.
    #[inline]
    fn waiting_with_first(&self, most: usize) -> usize {
        let Some(pool_exchange) = self.view.pool_exchange() else { return most };
        let since_ns = &self.backlog.since_ns[Lane::FIRST.index()];
        let first_ns = since_ns.front().copied().unwrap_or_default();
        let last_ns = pool_exchange.yield_key().max(first_ns);
        since_ns.iter().take(most).take_while(|&&ns| ns <= last_ns).count().max(1)
    }

    /// Same as [`Dispatcher::offer_run`], for a policy with rules for classes. A task waits if its lane is blocked, or
    /// if no member may take it.
    #[cold]
    fn offer_by_class(
        &mut self,
        tasks: &[Task],
        picks: Picks<'_>,
        mut reclaim: impl FnMut() -> Option<Member>,
    ) {
        let mut blocked = self.blocked();
        picks.fill(None);
        for (task, pick) in tasks.iter().zip(picks) {
            let lane = self.lane(*task);
            if !blocked.contains(lane) {
                *pick = self.choose(*task, &mut reclaim);
                blocked =
                    if pick.is_some() { blocked } else { blocked.union(self.blocked_by(lane)) };
            }
        }
    }

    /// Returns the lanes blocked by waiting tasks. New tasks of these lanes must wait, too.
    fn blocked(&self) -> Lanes {
        let waiting = Lane::all().filter(|lane| self.backlog.of_lane[lane.index()] > 0);
        waiting.fold(Lanes::NONE, |lanes, lane| lanes.union(self.blocked_by(lane)))
    }

    /// Returns true if a new task must wait: for its probes, or behind other tasks.
    pub(crate) fn must_wait(&self, task: Task) -> bool {
        self.pending.is_some() || self.blocked().contains(self.lane(task))
    }

    /// Returns true if the policy has rules for classes of tasks.
    #[inline]
    #[must_use]
    pub fn has_classes(&self) -> bool {
        self.classes.is_some()
    }

    /// Returns the lane in which a task waits.
    #[inline]
    #[must_use]
    pub fn lane(&self, task: Task) -> Lane {
        self.classes.as_ref().map_or(Lane::FIRST, |classes| classes.lane(task))
    }

    /// Returns the lanes whose tasks must wait while the first task of `lane` finds no member: the long ones, if it is
    /// long itself and members are reserved; otherwise all.
    #[inline]
    #[must_use]
    pub fn blocked_by(&self, lane: Lane) -> Lanes {
        let long = self.classes.as_ref().map_or(Lanes::NONE, |classes| classes.long());
        if long.contains(lane) { long } else { Lanes::ALL }
    }

    /// Returns the lane whose first task is the next to be offered, outside the `blocked` lanes; `None` if no task
    /// waits there. `since_ns` returns the arrival time of a lane's first task; `None` for an empty lane.
    #[inline]
    pub fn next_lane(
        &self,
        blocked: Lanes,
        since_ns: impl Fn(Lane) -> Option<u64>,
    ) -> Option<Lane> {
        if blocked == Lanes::NONE && self.has_only_first_lane() {
            return (self.backlog.waiting > 0).then_some(Lane::FIRST);
        }
        self.least_key(Lane::all().filter(|&lane| !blocked.contains(lane)), since_ns)
    }

    /// Returns the lane with the least key, out of `lanes`. `since_ns` as in [`Dispatcher::next_lane`].
    #[inline]
    fn least_key(
        &self,
        lanes: impl Iterator<Item = Lane>,
        since_ns: impl Fn(Lane) -> Option<u64>,
    ) -> Option<Lane> {
        let keys = lanes.filter_map(|lane| Some((self.key(lane, since_ns(lane)?), lane)));
        keys.min_by_key(|&(key, _)| key).map(|(_, lane)| lane)
    }

    /// Returns true if no task waits in another lane than the first. This is usual without classes.
    #[inline]
    pub(crate) fn has_only_first_lane(&self) -> bool {
        self.backlog.of_lane[0] as usize == self.backlog.waiting
    }

    /// Returns the key of a waiting task: tasks with lower ones go first.
    pub(crate) fn key(&self, lane: Lane, since_ns: u64) -> u64 {
        self.classes.as_ref().map_or(since_ns, |classes| classes.key(lane, since_ns))
    }

    /// Decides on one new task, like [`Dispatcher::offer_run`]. The caller appends a task that waits to its queue.
    ///
    /// # Errors
    /// Returns the drop reason of a task that can neither be sent nor wait.
    #[inline]
    pub(crate) fn offer(
        &mut self,
        task: Task,
        reclaim: impl FnMut() -> Option<Member>,
    ) -> Result<Assignment, DropReason> {
        let mut picks = [None];
        self.offer_run(&[task], &mut picks, reclaim);
        match picks[0] {
            Some(pick) => Ok(Assignment::Sent(pick)),
            None => self.wait(task).map(Assignment::Waits),
        }
    }

    /// Counts a task without a pick as waiting, if the policy holds tasks or other tasks wait. Returns its lane.
    ///
    /// # Errors
    /// Returns the drop reason of a task that may not wait.
    #[inline]
    pub(crate) fn wait(&mut self, task: Task) -> Result<Lane, DropReason> {
        let has_no_member = || !self.backlog.without_members && self.view.active().is_empty();
        if self.backlog.waiting == 0 && (!self.holds || has_no_member()) {
            return Err(DropReason::NoMember);
        }
        self.join(self.lane(task))
    }

    /// Counts a task as waiting in this lane, which it returns, and chooses the members to probe for it.
    ///
    /// # Errors
    /// If the queue is full.
    #[inline]
    pub(super) fn join(&mut self, lane: Lane) -> Result<Lane, DropReason> {
        let has_room = |pending: &PendingProbes| pending.has_room();
        if self.backlog.waiting >= self.backlog.bound
            || !self.pending.as_deref().is_none_or(has_room)
        {
            return Err(DropReason::QueueFull);
        }
        if let Some(pending) = &mut self.pending {
            let rng = self.rng.clone(); // the decision repeats the draws of `ask` from this state
            let probed = self.policy.ask(&self.view, &mut self.rng);
            pending.push(rng, &probed, self.view.now_ns());
        }
        self.backlog.waiting += 1;
        self.backlog.of_lane[lane.index()] += 1;
        if self.view.pool_exchange().is_some() {
            let since_ns = &mut self.backlog.since_ns[lane.index()];
            if since_ns.len() < since_ns.capacity() {
                since_ns.push_back(self.view.now_ns().max(1)); // 0 means that no task waits
            }
            // Without classes, only the first task of the lane determines a key.
            if since_ns.len() == 1 || self.classes.is_some() {
                self.publish_oldest();
            }
        }
        Ok(lane)
    }

    /// Removes the first waiting task of a lane from the count.
    #[inline]
    pub(crate) fn leave(&mut self, lane: Lane) {
        self.leave_run(lane, 1);
    }

    /// Removes the first `tasks` waiting tasks of a lane from the count.
    #[inline]
    fn leave_run(&mut self, lane: Lane, tasks: usize) {
        self.discount(lane, tasks);
        if let Some(pending) = &mut self.pending {
            (0..tasks).for_each(|_| pending.pop());
        }
        if self.view.pool_exchange().is_some() && tasks > 0 {
            let since_ns = &mut self.backlog.since_ns[lane.index()];
            since_ns.drain(..tasks.min(since_ns.len()));
            self.publish_oldest();
        }
    }

    /// Removes the last waiting task of a lane from the count, because the caller has no room to store it.
    pub(crate) fn leave_last(&mut self, lane: Lane) {
        if let Some(pending) = &mut self.pending {
            pending.pop_last();
        }
        self.discount(lane, 1);
        if self.view.pool_exchange().is_some() {
            let since_ns = &mut self.backlog.since_ns[lane.index()];
            if since_ns.len() > self.backlog.of_lane[lane.index()] as usize {
                since_ns.pop_back();
            }
            self.publish_oldest();
        }
    }

    /// Subtracts `tasks` from the waiting tasks of a lane.
    #[inline]
    fn discount(&mut self, lane: Lane, tasks: usize) {
        self.backlog.waiting = self.backlog.waiting.saturating_sub(tasks);
        let waiting = &mut self.backlog.of_lane[lane.index()];
        *waiting = waiting.saturating_sub(tasks as u32);
    }

    /// Publishes the least key of the waiting tasks to all cores.
    #[inline]
    fn publish_oldest(&self) {
        let Some(pool_exchange) = self.view.pool_exchange() else { return };
        // A long lane has times of its first tasks only. If no time is left, the oldest task counts as new. 0 means
        // that no task waits.
        let default_ns = if self.backlog.waiting > 0 { self.view.now_ns().max(1) } else { 0 };
        // Without classes all tasks are in the first lane.
        let lanes = if self.has_only_first_lane() { 1 } else { LANES };
        let times = Lane::all().zip(&self.backlog.since_ns).take(lanes);
        let keys = times.filter_map(|(lane, since)| Some(self.key(lane, *since.front()?)));
        pool_exchange.note_oldest(keys.min().unwrap_or(default_ns));
    }

    /// Returns true if tasks wait here and another core may have made room for them. The caller then offers the first
    /// waiting task again.
    #[inline]
    #[must_use]
    pub fn may_release(&self) -> bool {
        let pool_exchange = self.view.pool_exchange().filter(|_| self.backlog.waiting > 0);
        pool_exchange.is_some_and(|pool_exchange| match &self.policy {
            AnyPolicy::Eft(eft) => eft.may_release(self.backlog.waiting, &self.view),
            _ => pool_exchange.has_tokens(),
        })
    }

    /// Returns the number of packets between two exchanges of an overloaded core that this pool needs.
    pub(crate) fn packets_per_exchange(&self) -> usize {
        let shared = self.view.pool_exchange();
        shared.map_or(0, |shared| self.view.members() * shared.packets_per_member())
    }

    /// Releases places to all cores between two exchanges of an overloaded core, see [`View::share_idle`]: a task that
    /// waits elsewhere may need them. Does nothing for policies that publish loads or counts of members.
    #[inline]
    pub fn share_places(&mut self) {
        let shared = self.view.pool_exchange().filter(|shared| shared.publishes().topic.is_none());
        if shared.is_some() {
            self.view.share_idle(self.backlog.waiting);
        }
    }

    /// Returns true if the policy needs the number of waiting tasks on each core.
    #[inline]
    pub(crate) fn shares_backlog(&self) -> bool {
        self.view.pool_exchange().is_some_and(|shared| shared.publishes().backlog)
    }

    /// Returns true if tasks wait on this core or a remote one, and the policy needs their number.
    #[inline]
    pub(crate) fn has_shared_backlog(&self) -> bool {
        let shared = self.view.pool_exchange().filter(|shared| shared.publishes().backlog);
        shared.is_some_and(|shared| self.backlog.waiting > 0 || shared.remote_backlog().tasks > 0)
    }

    /// Sets the bound of the queue and the treatment of excess tasks. Tasks that wait already stay.
    pub fn set_queue(&mut self, bound: usize, overflow: Overflow) {
        (self.backlog.bound, self.backlog.overflow) = (bound, overflow);
    }

    /// Returns the dispatcher with this queue, see [`Dispatcher::set_queue`].
    #[must_use]
    pub fn with_queue(mut self, bound: usize, overflow: Overflow) -> Self {
        self.set_queue(bound, overflow);
        self
    }

    /// Returns the bound of the queue and the treatment of excess tasks.
    #[inline]
    #[must_use]
    pub fn queue(&self) -> (usize, Overflow) {
        (self.backlog.bound, self.backlog.overflow)
    }

    /// Refuses tasks while no member is present and no other task waits, so that the sender learns of it at once.
    pub fn refuse_without_members(&mut self) {
        self.backlog.without_members = false;
    }

    /// Returns the number of waiting tasks.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.backlog.waiting
    }

    /// Counts a task as sent to `member` without a choice by the policy. The caller placed the task, or it is part of a
    /// batch, or `reclaim` gave it up before its missing packets arrived.
    pub fn count_placed(&mut self, member: Member) {
        self.view.sent(member);
        self.view.touch(member);
        if let Some(pending) = &mut self.pending {
            pending.sent(member);
        }
        self.policy.on_follow(member, &mut self.view);
    }

    /// Writes off `lost` of the tasks outstanding at `member`, or all if there are fewer. Returns their number.
    pub fn write_off(&mut self, member: Member, lost: u32) -> u32 {
        let written_off = self.view.write_off(member, lost);
        self.policy.on_written_off(member, &mut self.view);
        written_off
    }

    /// Adds `surplus` tasks to the outstanding ones of `member`: the number of its replies, over all cores, that
    /// answered no task of this node. On a node with several cores, each of these was subtracted when it arrived.
    pub fn take_back(&mut self, member: Member, surplus: u32) {
        self.view.take_back(member, surplus);
        self.policy.on_written_off(member, &mut self.view);
    }

    /// Returns the dispatcher's core.
    #[must_use]
    pub fn core(&self) -> Core {
        self.caller.core
    }

    /// Sets the members' service rates.
    pub fn set_rates(&mut self, rates: &[f64]) {
        self.view.set_rates(rates);
        self.review_members();
    }

    /// Processes the reports of replies, in this order. Returns the number of replies from members without
    /// outstanding tasks. If members report in messages, only counts the tasks as answered.
    #[inline]
    pub fn reply_run(&mut self, reports: &[Report]) -> usize {
        if let Some(classes) = &mut self.classes {
            classes.learn(reports, &self.view);
            self.note_long_tasks();
        }
        let surplus = match self.caller.reports {
            Reports::Replies => self.policy.reply_run(reports, &mut self.view, &mut self.rng),
            Reports::Messages => self.view.take_answers(reports),
        };
        self.view.touch_all(reports.iter().map(|report| report.member));
        surplus
    }

    /// Ends or restores the reserve, by the number of waiting long tasks ([`Classes::note_waiting`]).
    fn note_long_tasks(&mut self) {
        if let Some(classes) = &mut self.classes {
            let (waiting, members) = (self.backlog.of(classes.long()), self.view.active().len());
            classes.note_waiting(waiting, members, self.caller.core.count);
        }
    }

    /// Processes the report of a reply. Returns false if the member had no outstanding task.
    #[inline]
    pub fn reply(&mut self, report: &Report) -> bool {
        self.reply_run(std::slice::from_ref(report)) == 0
    }

    /// Processes a report without a reply, for instance from a keep-alive.
    pub fn refresh(&mut self, report: &Report) {
        _ = self.view.of(report.member).count_reported(report.load, 0);
        self.policy.on_reply(report, &mut self.view, &mut self.rng);
        self.view.touch(report.member);
    }

    /// Processes a member's sign of life with its load. The load counts unless members report in messages.
    pub fn note_alive(&mut self, report: &Report) {
        match self.caller.reports {
            Reports::Replies => self.refresh(report),
            Reports::Messages => self.view.note_sign_of_life(report.member),
        }
    }

    /// Allows or forbids the policy to choose a member.
    pub fn set_active(&mut self, member: Member, active: bool) {
        if self.view.is_active(member) != active {
            self.view.set_active(member, active);
            self.review_members();
        }
    }

    /// Swaps the policy between bursts and leaves the old one in `prepared`; the view stays. Call
    /// [`Dispatcher::review_members`] afterwards. Probes do not change, so a pool with reports in messages must keep
    /// its policy.
    pub fn swap_policy(&mut self, prepared: &mut PreparedPolicy) {
        // The caller frees the old policy outside the polling core.
        std::mem::swap(&mut self.policy, &mut prepared.policy);
        std::mem::swap(&mut self.holds, &mut prepared.holds);
        std::mem::swap(&mut self.classes, &mut prepared.classes);
        if let (Some(classes), Some(old)) = (&mut self.classes, &prepared.classes) {
            classes.adopt(old);
        }
        self.view.set_key_delay(0);
        let shared = self.view.pool_exchange().map(PoolExchange::publishes);
        self.view.set_publishes(prepared.publishes);
        prepared.publishes = shared.unwrap_or(prepared.publishes);
    }

    /// Returns true if a task without a pick must wait and be offered again.
    #[inline]
    #[must_use]
    pub fn holds_tasks(&self) -> bool {
        self.holds
    }

    /// Sets the time of a burst of replies, before the dispatcher processes them.
    #[inline]
    pub fn note_burst(&mut self, now_ns: u64) {
        self.view.note_burst(now_ns);
    }

    /// Advances the policy's time.
    pub fn tick(&mut self, now_ns: u64) {
        self.view.note_time(now_ns);
        self.policy.on_tick(&mut self.view, &mut self.rng);
        // Other cores may receive all replies to this core's tasks.
        if self.caller.core.count > 1 {
            self.note_long_tasks();
        }
    }

    /// Returns the round trip of a task without its service, if the policy has measured it.
    #[must_use]
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.policy.round_trip_ns()
    }

    /// Returns the central queue's bound and measurements, if there is one.
    #[must_use]
    pub fn bounded(&self) -> Option<&Bounded> {
        match &self.policy {
            AnyPolicy::Bounded(bounded) => Some(bounded),
            _ => None,
        }
    }

    /// Returns the view.
    #[inline]
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns the view for changes.
    #[inline]
    pub fn view_mut(&mut self) -> &mut View {
        &mut self.view
    }
}

// For `exchange`, which accepts dispatchers and types that contain one.
impl AsMut<Self> for Dispatcher {
    #[inline]
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

/// Publishes the changes of these dispatchers, one per pool, to the node's other cores, and processes theirs. An
/// overloaded core (`keeps_up` is false) publishes only its larger changes.
pub fn exchange<D>(exchange: &mut Exchange, dispatchers: &mut [D], keeps_up: bool)
where
    D: AsMut<Dispatcher>,
{
    for (pool, dispatcher) in dispatchers.iter_mut().enumerate() {
        dispatcher.as_mut().publish(pool, &mut exchange.sender, keeps_up);
    }
    exchange.sender.publish();
    while let Some(update) = exchange.receive() {
        match update {
            RemoteUpdate::Messages(remote, subject, messages) => {
                if let Some(dispatcher) = dispatchers.get_mut(usize::from(subject.pool)) {
                    dispatcher.as_mut().receive_update(remote, subject.topic, messages);
                }
            }
            // Messages of this core were overwritten before they were read.
            RemoteUpdate::Lost(remote) => {
                dispatchers
                    .iter_mut()
                    .for_each(|dispatcher| dispatcher.as_mut().resynchronize(remote));
            }
        }
    }
}

/// Returns the seed of one random stream of a node, from the node's seed and the stream's core and pool.
#[must_use]
pub fn stream_seed(seed: u64, core: usize, pool: usize) -> u64 {
    // Two steps of SplitMix64, so that neighbouring inputs give unrelated seeds.
    let stream = (core as u64) << 32 | pool as u64;
    let mut mix = rand_xoshiro::SplitMix64::seed_from_u64(seed);
    rand_xoshiro::SplitMix64::seed_from_u64(mix.next_u64() ^ stream).next_u64()
}
