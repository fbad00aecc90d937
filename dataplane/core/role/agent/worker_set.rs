//! Workers of one pool on this host: the dispatcher, a channel per worker, and the tasks that they have not completed.
//!
//! Independent of packets: a task is anything with bytes. The agent's loop and the ring benchmark use the
//! same code. Times named `now` are in ticks of the agent's clock.
//!
//! A worker attaches by writing a *claim*, a number, into its channel; the agent *grants* it. Completed tasks come back
//! as *credits*: the worker publishes how many tasks it has completed in all. A worker process gets copies of its
//! tasks. A thread of this process gets the tasks themselves, so only it can complete them. A dispatcher *holds* tasks
//! if its policy is bounded: it queues tasks while every worker is full. A *member* is a worker's index in the pool. A
//! *report* informs the policy about a member's load.

use arrayvec::ArrayVec;

use super::link::{Work, WorkerLink};
use crate::limits::BURST;
use crate::policy::fifo::Slab;
use crate::policy::{
    ClassBeliefs, Dispatcher, Overflow, Pick, QueueingDispatcher, Task, WaitingTask,
};
use crate::reason::DropReason;
use crate::ring::{Channel, Holder, Outcome, TaskPosition, WorkerIdentity};
use crate::stage::DispatcherChange;
use crate::state::{Load, Member, Report};

/// A completed task.
#[derive(Debug)]
pub struct Completion<'a, T> {
    /// The task.
    pub task: T,
    /// Its worker.
    pub identity: WorkerIdentity,
    /// Number of tasks outstanding at this worker, after the last completion of the same call.
    pub left: usize,
    /// Result of the task, or the reason why the agent dropped it.
    pub outcome: Result<Outcome, DropReason>,
    /// Channel to copy the reply from.
    pub channel: &'a Channel,
    /// Position of the task in the channel; meaningless for a dropped task, which has no reply there.
    pub position: TaskPosition,
}

/// Reason why a worker was detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum DetachReason {
    /// The worker left in order, or was removed.
    Left,
    /// Its process ended without notice, or its thread panicked.
    Died,
    /// It completed none of its tasks within the timeout.
    Silent,
    /// It published an impossible number of completed tasks.
    AtFault,
}

/// Numbers of attached and detached workers so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AttachStats {
    /// Workers that were granted their claim.
    pub joined: u64,
    /// Workers that left in order or were removed.
    pub left: u64,
    /// Workers whose process ended without notice, or whose thread panicked.
    pub died: u64,
    /// Processes excluded, and threads suspended, for silence.
    pub silent: u64,
    /// Workers excluded for an impossible number of completed tasks.
    pub at_fault: u64,
}

impl AttachStats {
    /// Returns the sum of both, field by field.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            joined: self.joined + other.joined,
            left: self.left + other.left,
            died: self.died + other.died,
            silent: self.silent + other.silent,
            at_fault: self.at_fault + other.at_fault,
        }
    }
}

/// A worker, attached or not.
#[derive(Debug)]
pub struct WorkerEntry<T: Work> {
    /// Identity of the worker.
    identity: WorkerIdentity,
    /// Index of the worker in the pool.
    member: Member,
    /// Agent's end of the channel, with the tasks outstanding there.
    link: WorkerLink<T>,
    /// Last claim that was checked. Each claim is checked once.
    last_claim: u64,
    /// Time in ticks of its attachment, its last completion, or its first task after idleness: the latest of these.
    last_active: u64,
    /// True for a thread that was silent for too long. It keeps its tasks, and gets no new ones until it answers.
    suspended: bool,
    /// Index of its first task in a run of tasks; [`NO_TASK`] between runs.
    first_in_run: u8,
    /// True if it gets no new tasks until it is undrained. A new worker that attaches here is drained, too.
    is_drained: bool,
    /// True after [`WorkerSet::retire`]: it gets no new tasks, and its channel accepts no other worker.
    is_leaving: bool,
}

impl<T: Work> WorkerEntry<T> {
    /// Creates an entry with a link that no worker has used.
    pub fn new(identity: WorkerIdentity, link: impl Into<WorkerLink<T>>) -> Self {
        Self {
            identity,
            member: Member(0),
            link: link.into(),
            last_claim: 0,
            last_active: 0,
            first_in_run: NO_TASK,
            suspended: false,
            is_drained: false,
            is_leaving: false,
        }
    }

    /// Reuses the entry for another worker after the former one has gone. Keeps the last claim, so that the former
    /// worker's claim is not granted again.
    #[must_use]
    pub fn renamed(self, identity: WorkerIdentity) -> Self {
        self.link.channel().sender().reopen(); // withdraws the stop request to the former worker
        Self { identity, suspended: false, is_drained: false, is_leaving: false, ..self }
    }

    /// Returns true if it is attached and may get new tasks.
    fn is_active(&self) -> bool {
        let is_excluded = self.suspended || self.is_drained || self.is_leaving;
        self.link.sender().is_granted() && !is_excluded
    }

    /// Returns the index of its channel in the region.
    #[must_use]
    pub fn channel(&self) -> usize {
        self.link.channel().index()
    }
}

/// Completed task of a worker that gets copies, not yet processed: index of the worker's entry, number of tasks
/// outstanding there after the last completion (saturating), and position of the task in the channel.
type EndedTask = (u16, u16, TaskPosition);

/// Index of no task in a run.
const NO_TASK: u8 = u8::MAX;

/// Entry index of a free member.
const NOWHERE: u16 = u16::MAX;

/// Workers of one pool on this host, with their dispatcher.
#[derive(Debug)]
pub struct WorkerSet<T: Work> {
    /// Id of the pool; `None` once it accepts no tasks.
    pub pool: Option<u16>,
    /// The policy, with the waiting tasks.
    dispatcher: QueueingDispatcher<T>,
    /// The workers, in any order.
    entries: Vec<WorkerEntry<T>>,
    /// Index of each member's entry; [`NOWHERE`] for a free member.
    entry_of: Box<[u16]>,
    /// Ticks of silence after which a worker with tasks is excluded.
    timeout: u64,
    /// Numbers of attached and detached workers so far.
    attach_stats: AttachStats,
    /// Number of tasks that threads completed and replied to themselves.
    ended: u64,
}

impl<T: Work> WorkerSet<T> {
    /// Creates the set of the pool with this id and these workers, none attached, as the dispatcher's first members in
    /// this order. More may be added while members are free. Allocates memory for the dispatcher's current queue bound.
    /// `timeout` is in ticks.
    ///
    /// # Panics
    /// If there are more workers than the dispatcher has members.
    #[must_use]
    pub fn new(
        pool: u16,
        mut dispatcher: Dispatcher,
        entries: Vec<(WorkerIdentity, impl Into<WorkerLink<T>>)>,
        timeout: u64,
    ) -> Self {
        // Rings lose no task, unlike a network.
        dispatcher.set_lossless();
        // Without an active worker, no task starts to wait, even if the policy queues.
        dispatcher.refuse_without_members();
        for member in 0..entries.len() {
            dispatcher.set_active(Member(member as u16), false);
        }
        let members = dispatcher.view().members();
        let mut set = Self {
            pool: Some(pool),
            dispatcher: QueueingDispatcher::new(dispatcher),
            entries: Vec::with_capacity(members),
            entry_of: vec![NOWHERE; members].into(),
            timeout,
            attach_stats: AttachStats::default(),
            ended: 0,
        };
        for (member, (identity, link)) in entries.into_iter().enumerate() {
            set.add(Member(member as u16), WorkerEntry::new(identity, link));
        }
        set
    }

    /// Adds a worker under a free member. It gets no tasks before it is attached. Call [`WorkerSet::review_members`]
    /// afterwards.
    ///
    /// # Panics
    /// If the dispatcher has no such member.
    pub fn add(&mut self, member: Member, entry: WorkerEntry<T>) {
        // The members of a new pool are active in its view.
        self.dispatcher.view_mut().set_active(member, entry.is_active());
        self.entry_of[member.index()] = self.entries.len() as u16;
        self.entries.push(WorkerEntry { member, ..entry });
    }

    /// Drains or undrains a member, which continues its current tasks. Changes nothing for a free member.
    pub fn drain(&mut self, member: Member, is_drained: bool) {
        let index = usize::from(self.entry_of[member.index()]);
        let Some(entry) = self.entries.get_mut(index) else { return };
        entry.is_drained = is_drained;
        let is_active = entry.is_active();
        self.dispatcher.set_active(member, is_active);
    }

    /// Retires a member: no new tasks, and no other worker in its channel. Returns its identity; `None` for a free
    /// member.
    pub fn retire(&mut self, member: Member) -> Option<WorkerIdentity> {
        let index = usize::from(self.entry_of[member.index()]);
        let entry = self.entries.get_mut(index)?;
        entry.is_leaving = true;
        self.dispatcher.set_active(member, false);
        Some(entry.identity)
    }

    /// Removes a member: stops its worker and drops its tasks, each passed to `done`. A thread that is still attached
    /// keeps its tasks. Returns the entry for reuse; `None` for a free member.
    pub fn remove(
        &mut self,
        member: Member,
        done: &mut impl FnMut(Completion<'_, T>),
    ) -> Option<WorkerEntry<T>> {
        let index = usize::from(self.entry_of[member.index()]);
        let entry = self.entries.get(index)?;
        // Requests the worker's end before its grant ends, so that the worker does not take this for an exclusion.
        entry.link.channel().stop();
        if entry.link.sender().is_granted() {
            self.detach(index, DetachReason::Left, done);
        }
        self.dispatcher.view_mut().forget(member);
        self.entry_of[member.index()] = NOWHERE;
        let entry = self.entries.remove(index);
        // Updates the indices of the entries that moved.
        for (moved, entry) in self.entries.iter().enumerate().skip(index) {
            self.entry_of[entry.member.index()] = moved as u16;
        }
        Some(entry)
    }

    /// Applies a change of the pool's scheduling. After a new policy or new speeds, call
    /// [`WorkerSet::review_members`].
    pub fn change_scheduling(&mut self, change: &mut DispatcherChange) {
        change.apply(&mut self.dispatcher);
    }

    /// Exchanges the memory for waiting tasks with `memory`, which must have room for all of them.
    pub fn exchange_memory(&mut self, memory: &mut Slab<WaitingTask<T>>) {
        self.dispatcher.exchange_memory(memory);
    }

    /// Recomputes derived state after changes of members, speeds or policy.
    pub fn review_members(&mut self) {
        self.dispatcher.review_members();
    }

    /// Removes the next waiting task, if any, to drop or forward it.
    pub fn next_waiting(&mut self) -> Option<T> {
        self.dispatcher.pop()
    }

    /// Removes the next waiting task, for the caller to drop, if no worker is active and the policy holds no tasks. The
    /// task remains from an earlier policy that held tasks.
    pub fn next_without_workers(&mut self) -> Option<T> {
        let has_no_worker = self.dispatcher.view().active().is_empty();
        let is_lost = self.waiting() > 0 && has_no_worker && !self.dispatcher.holds_tasks();
        is_lost.then(|| self.dispatcher.pop()).flatten()
    }

    /// Returns the number of tasks waiting or with workers.
    #[must_use]
    pub fn held(&self) -> usize {
        let outstanding = self.entries.iter().map(|entry| entry.link.sender().outstanding());
        self.waiting() + outstanding.sum::<usize>()
    }

    /// Returns the number of tasks that no worker serves yet: they wait in the pool's queue, or behind another
    /// task in a worker's channel.
    #[must_use]
    pub fn backlog(&self) -> usize {
        let outstanding = self.entries.iter().map(|entry| entry.link.sender().outstanding());
        self.waiting() + outstanding.map(|tasks| tasks.saturating_sub(1)).sum::<usize>()
    }

    /// Returns the number of tasks waiting for a worker.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.dispatcher.waiting()
    }

    /// Returns the treatment of tasks that exceed the queue's bound.
    #[inline]
    #[must_use]
    pub fn overflow(&self) -> Overflow {
        self.dispatcher.queue().1
    }

    /// Returns the attach statistics.
    #[must_use]
    pub fn attach_stats(&self) -> AttachStats {
        self.attach_stats
    }

    /// Returns the dispatcher.
    #[must_use]
    pub fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    /// Returns the rules for a task's class ([`Dispatcher::class_beliefs`]).
    pub fn class_beliefs(&self, task: Task) -> Option<ClassBeliefs> {
        self.dispatcher.class_beliefs(task)
    }

    /// Iterates over the identities of all workers, attached or not.
    pub fn identities(&self) -> impl Iterator<Item = WorkerIdentity> + '_ {
        self.entries.iter().map(|entry| entry.identity)
    }

    /// Iterates over the identities of attached workers.
    pub fn present(&self) -> impl Iterator<Item = WorkerIdentity> + '_ {
        let attached = self.entries.iter().filter(|entry| entry.link.sender().is_granted());
        attached.map(|entry| entry.identity)
    }

    /// Returns the claim by which the worker with this identity is attached; `None` if it is not attached. Each
    /// attachment has another claim.
    #[must_use]
    pub fn claim_of(&self, identity: WorkerIdentity) -> Option<u64> {
        let mut attached = self.entries.iter().filter(|entry| entry.link.sender().is_granted());
        attached.find(|entry| entry.identity == identity).map(|entry| entry.last_claim)
    }

    /// Gives each task of a run (at most a burst) to a worker, or queues it, in order. Each worker sees all its tasks
    /// of the run at once. Takes all tasks out of `tasks`; the caller passes no `None`. Passes each result to
    /// `settled`, with the number of waiting tasks. A result is the worker's member, or `None` for a queued task. An
    /// error is the task with the reason for its refusal.
    #[inline]
    pub fn submit_run(
        &mut self,
        tasks: &mut [Option<T>],
        now: u64,
        settled: &mut impl FnMut(Result<Option<Member>, (T, DropReason)>, usize),
    ) {
        let (mut kinds, mut picks) = ([Task::new(0); BURST], [None; BURST]);
        let (kinds, picks) = (&mut kinds[..tasks.len()], &mut picks[..tasks.len()]);
        if self.dispatcher.has_classes() {
            for (kind, task) in kinds.iter_mut().zip(tasks.iter().flatten()) {
                kind.class = task.ids().class;
            }
        }
        self.dispatcher.offer_run(kinds, picks, || None);
        self.give_run(tasks, picks, now);
        for ((task, pick), kind) in tasks.iter_mut().zip(&*picks).zip(&*kinds) {
            let member = pick.map(|pick| pick.member);
            let result = match (task.take(), member) {
                (None, member) => Ok(member),
                (Some(task), Some(member)) => Err((task, self.write_off(member))),
                (Some(task), None) => self.dispatcher.enqueue(*kind, task).map(|()| None),
            };
            settled(result, self.waiting());
        }
    }

    /// Returns the id of the member's worker; `None` if the member is free.
    #[must_use]
    pub fn id_of(&self, member: Member) -> Option<u16> {
        let index = usize::from(self.entry_of[member.index()]);
        self.entries.get(index).map(|entry| entry.identity.id)
    }

    /// Gives the picked tasks of a run to their members, and takes them out of `tasks`. Leaves those for which a
    /// channel has no room. Writes all tasks of one member together, so that each cache line moves once.
    #[inline]
    fn give_run(&mut self, tasks: &mut [Option<T>], picks: &[Option<Pick>], now: u64) {
        // Linked list of each member's tasks, by index. The entry has the first one.
        let mut next = [NO_TASK; BURST];
        for (index, pick) in picks.iter().enumerate().rev() {
            if let Some(pick) = pick {
                let entry = &mut self.entries[usize::from(self.entry_of[pick.member.index()])];
                next[index] = std::mem::replace(&mut entry.first_in_run, index as u8);
            }
        }
        for (index, pick) in picks.iter().enumerate() {
            let Some(pick) = pick else { continue };
            let entry = &mut self.entries[usize::from(self.entry_of[pick.member.index()])];
            if usize::from(entry.first_in_run) != index {
                continue; // given with an earlier one
            }
            entry.first_in_run = NO_TASK;
            let is_idle = entry.link.sender().outstanding() == 0;
            let follow =
                |&index: &usize| Some(usize::from(next[index])).filter(|&next| next < BURST);
            entry.link.give(tasks, std::iter::successors(Some(index), follow));
            if is_idle {
                entry.last_active = now;
            }
        }
    }

    /// Reverts the policy's count of a task for which the member's ring has no room, because the policy's bound may
    /// exceed the ring. Returns the reason for the task's refusal.
    #[cold]
    fn write_off(&mut self, member: Member) -> DropReason {
        self.dispatcher.write_off(member, 1);
        DropReason::QueueFull
    }

    /// Processes the workers' completions since the last call, and passes each to `done`. Then gives waiting tasks to
    /// workers with room.
    #[inline]
    pub fn collect(&mut self, now: u64, done: &mut impl FnMut(Completion<'_, T>)) {
        let (mut completed, mut ends, mut are_shared) = (0, ArrayVec::new(), false);
        for index in 0..self.entries.len() {
            // The next worker's credits are in memory that another CPU has written.
            if let Some(next) = self.entries.get(index + 1) {
                next.link.sender().prefetch_credits();
            }
            if self.entries[index].link.sender().outstanding() > 0 {
                completed += self.collect_from(index, now, &mut ends, done);
                are_shared |= self.entries[index].link.sender().completes_in_any_order();
            }
        }
        self.end_run(&mut ends, done);
        if are_shared {
            for entry in
                self.entries.iter().filter(|entry| entry.link.sender().completes_in_any_order())
            {
                let sender = entry.link.sender();
                // Such a worker shares its core between its tasks, and reports the quanta that it has served to them.
                let quanta = if sender.outstanding() > 0 { sender.quanta() } else { 0 };
                self.dispatcher.view().set_quanta(entry.member, quanta);
            }
        }
        // All workers were full, so about as many waiting tasks can go now as were completed. Further ones are tried
        // one by one.
        while self.waiting() > 0 && self.advance(completed.clamp(1, BURST), now, done) {
            completed = completed.saturating_sub(BURST);
        }
    }

    /// Collects the completions of the worker at this index. Returns their number. If the worker gets copies, its
    /// completions are appended to `ends`, which [`WorkerSet::end_run`] processes.
    #[inline]
    fn collect_from(
        &mut self,
        index: usize,
        now: u64,
        ends: &mut ArrayVec<EndedTask, BURST>,
        done: &mut impl FnMut(Completion<'_, T>),
    ) -> usize {
        let entry = &mut self.entries[index];
        let mut counts = match entry.link.collect() {
            Ok(counts) => counts,
            Err(_) => {
                self.detach(index, DetachReason::AtFault, done);
                return 0;
            }
        };
        let count = (counts.end - counts.start) as usize;
        if count == 0 {
            return 0;
        }
        entry.last_active = now;
        // The reports of all these completions carry the worker's load after the last completion.
        let left = entry.link.sender().outstanding().min(usize::from(u16::MAX)) as u16;
        let member = entry.member;
        if let WorkerLink::Handed(producer) = &mut entry.link {
            // Class and service time of each task are in another cache line than the sum of all service times. Only a
            // policy with rules for classes reads them; otherwise each task gets the mean.
            let mean_ns = producer.worked_ns() / count as u64;
            let mean_ns = mean_ns.min(u64::from(u32::MAX)) as u32;
            let has_classes = self.dispatcher.has_classes();
            self.ended += count as u64;
            for number in counts {
                let (class, service_ns) =
                    if has_classes { producer.measured(number) } else { (0, mean_ns) };
                let report = Report::new(member, Load::tasks(left), service_ns).with_class(class);
                self.dispatcher.reply(&report);
            }
            // Checked here and not only at ticks, so that a departed worker gets no more tasks.
            match producer.is_left() {
                true => self.detach(index, DetachReason::Left, done),
                false => self.resume(index),
            }
            return count;
        }
        while !counts.is_empty() {
            if ends.is_full() {
                self.end_run(ends, done);
            }
            let sender = self.entries[index].link.sender();
            let run = counts.start..counts.end.min(counts.start + ends.remaining_capacity() as u64);
            counts.start = run.end;
            ends.extend(run.map(|count| (index as u16, left, sender.completed(count))));
        }
        count
    }

    /// Processes completed tasks of workers that get copies: reports all of them to the policy, then passes each to
    /// `done`.
    #[inline]
    fn end_run(
        &mut self,
        ends: &mut ArrayVec<EndedTask, BURST>,
        done: &mut impl FnMut(Completion<'_, T>),
    ) {
        let mut outcomes = ArrayVec::<_, BURST>::new();
        let mut reports = ArrayVec::<_, BURST>::new();
        let has_classes = self.dispatcher.has_classes();
        for &(entry, left, position) in &*ends {
            let entry = &self.entries[usize::from(entry)];
            let WorkerLink::Copied { channel, held } = &entry.link else { continue };
            let outcome = channel.outcome(position);
            let service_ns = match outcome {
                Outcome::Reply { service_ns, .. } => service_ns,
                _ => 0,
            };
            let mut report = Report::new(entry.member, Load::tasks(left), service_ns);
            if has_classes {
                report.class = held[position.slot].as_ref().map_or(0, |task| task.ids().class);
            }
            reports.push(report);
            outcomes.push(outcome);
        }
        self.dispatcher.reply_run(&reports);
        for ((entry, left, position), &outcome) in ends.drain(..).zip(&outcomes) {
            let entry = &mut self.entries[usize::from(entry)];
            let WorkerLink::Copied { channel, held } = &mut entry.link else { continue };
            let Some(task) = held[position.slot].take() else {
                continue; // impossible: each outstanding task is in `held`
            };
            let (identity, left) = (entry.identity, usize::from(left));
            done(Completion { task, identity, left, outcome: Ok(outcome), channel, position });
        }
    }

    /// Ends the suspension of a thread that has answered.
    fn resume(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        if std::mem::take(&mut entry.suspended) && entry.is_active() {
            self.dispatcher.set_active(entry.member, true);
        }
    }

    /// Gives the first `most` waiting tasks (at least one; only one if the policy has rules for classes) to workers.
    /// Returns false if some of them must keep waiting.
    #[inline]
    fn advance(&mut self, most: usize, now: u64, done: &mut impl FnMut(Completion<'_, T>)) -> bool {
        if self.dispatcher.has_classes() {
            // The order depends on each decision. A policy with classes holds tasks, so that none is refused here.
            let next = self.dispatcher.next(|task| Task::new(task.ids().class));
            let Ok(Some((task, pick))) = next else { return false };
            self.give_waiting(&mut [Some(task)], &[Some(pick)], now, done);
            return true;
        }
        // Tasks that remain from an earlier, bounded policy go one by one to workers with room in their channels: the
        // present policy has no bound that limits its picks.
        let most = if self.dispatcher.holds_tasks() { most } else { 1 };
        let (kinds, mut picks) = ([Task::new(0); BURST], [None; BURST]);
        let picks = &mut picks[..most.min(self.waiting())];
        self.dispatcher.schedule(&kinds[..picks.len()], picks);
        if let (false, [Some(Pick { member, .. })]) = (self.dispatcher.holds_tasks(), &*picks) {
            let entry = &self.entries[usize::from(self.entry_of[member.index()])];
            if entry.link.sender().room() == 0 {
                self.dispatcher.write_off(*member, 1);
                return false;
            }
        }
        // Each pick reserves room at a worker for the first waiting task. The picks may be fewer than the tasks.
        let mut tasks = ArrayVec::<_, BURST>::new();
        tasks.extend(
            picks.iter().map_while(|pick| pick.and_then(|_| self.dispatcher.pop())).map(Some),
        );
        let given = &picks[..tasks.len()];
        self.give_waiting(&mut tasks, given, now, done);
        given.len() == picks.len()
    }

    /// Gives tasks from the queue to the picked members. Drops a task if the member's channel has no room.
    #[inline]
    fn give_waiting(
        &mut self,
        tasks: &mut [Option<T>],
        picks: &[Option<Pick>],
        now: u64,
        done: &mut impl FnMut(Completion<'_, T>),
    ) {
        let view = self.dispatcher.view();
        for task in tasks.iter().flatten() {
            view.note_waits(view.now_ns().saturating_sub(task.since_ns()), 1);
        }
        self.give_run(tasks, picks, now);
        for (task, pick) in tasks.iter_mut().zip(picks) {
            let (Some(task), Some(pick)) = (task.take(), pick) else { continue };
            // The channel has fewer slots than the policy's bound.
            let outcome = Err(self.write_off(pick.member));
            let entry = &self.entries[usize::from(self.entry_of[pick.member.index()])];
            let (identity, left) = (entry.identity, entry.link.sender().outstanding());
            let (channel, position) = (entry.link.channel(), TaskPosition::default());
            done(Completion { task, identity, left, outcome, channel, position });
        }
    }

    /// Sets the time of the next reports. Also advances a policy that queues tasks; other policies advance at ticks.
    #[inline]
    pub fn note_time(&mut self, now_ns: u64) {
        self.dispatcher.note_burst(now_ns);
        if self.dispatcher.holds_tasks() {
            self.dispatcher.tick(now_ns);
        }
    }

    /// Grants attaching workers, detaches departed or silent ones, and advances the policy's time. `now` is in ticks.
    pub fn tick(&mut self, now: u64, now_ns: u64, done: &mut impl FnMut(Completion<'_, T>)) {
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            let sender = entry.link.sender();
            let (claim, granted) = (sender.claim(), sender.granted());
            let is_silent = now.saturating_sub(entry.last_active) > self.timeout;
            match sender.holder() {
                _ if granted == 0 => {}
                Holder::Left => self.detach(index, DetachReason::Left, done),
                Holder::Died => self.detach(index, DetachReason::Died, done),
                Holder::Attached if sender.outstanding() > 0 && is_silent => {
                    self.exclude(index, done);
                }
                Holder::Attached => {}
            }
            // A new worker may claim the channel while its former worker still has the grant. The new one gets it only
            // after the former one is detached, above or at a later tick.
            let entry = &self.entries[index];
            let is_new = claim != 0 && claim != entry.last_claim;
            if is_new && !entry.is_leaving && !entry.link.sender().is_granted() {
                self.attach(index, claim, now);
            }
        }
        self.dispatcher.tick(now_ns);
    }

    /// Excludes a silent worker. A process loses its grant, and its tasks count as lost. A thread owns its tasks, so it
    /// is only suspended: it gets no new tasks until it answers.
    fn exclude(&mut self, index: usize, done: &mut impl FnMut(Completion<'_, T>)) {
        let entry = &mut self.entries[index];
        if matches!(entry.link, WorkerLink::Copied { .. }) {
            return self.detach(index, DetachReason::Silent, done);
        }
        if !std::mem::replace(&mut entry.suspended, true) {
            self.attach_stats.silent += 1;
            self.dispatcher.set_active(entry.member, false);
        }
    }

    /// Grants a new claim, and activates its worker unless it is drained. Refuses a worker of another identity.
    fn attach(&mut self, index: usize, claim: u64, now: u64) {
        let entry = &mut self.entries[index];
        (entry.last_claim, entry.last_active) = (claim, now);
        // The agent may have reassigned the channel after it offered it to this worker.
        let is_assigned = entry.link.sender().claimed_name() == entry.identity.word();
        if !is_assigned || !entry.link.grant(claim) {
            return;
        }
        let (member, is_active) = (entry.member, entry.is_active());
        self.dispatcher.set_active(member, is_active);
        // Idle lists contain only members that have reported idleness, so the agent reports it in the worker's name.
        self.dispatcher.refresh(&Report::new(member, Load(0), 0));
        self.attach_stats.joined += 1;
    }

    /// Handles the death of the worker process at this channel, detected by its lock; `claim` is the claim at
    /// that time.
    pub fn died(&mut self, channel: usize, claim: u64, done: &mut impl FnMut(Completion<'_, T>)) {
        let has_channel = |entry: &WorkerEntry<T>| match &entry.link {
            WorkerLink::Copied { channel: of_entry, .. } => of_entry.index() == channel,
            WorkerLink::Handed(_) => false,
        };
        let Some(index) = self.entries.iter().position(has_channel) else { return };
        let sender = self.entries[index].link.sender();
        if sender.is_granted() && sender.granted() == claim {
            // A worker that left in order releases its lock, too. The agent may see the lock first.
            let has_left = sender.holder() == Holder::Left;
            let reason = if has_left { DetachReason::Left } else { DetachReason::Died };
            self.detach(index, reason, done);
        }
    }

    /// Detaches a departed or excluded worker: processes its completions (not those of a worker at fault), drops its
    /// remaining tasks, and counts the reason.
    fn detach(
        &mut self,
        index: usize,
        reason: DetachReason,
        done: &mut impl FnMut(Completion<'_, T>),
    ) {
        // The credits of a worker at fault are wrong. Time 0 is harmless: it sets `last_active`, which `attach` resets.
        if reason != DetachReason::AtFault {
            let mut ends = ArrayVec::new();
            self.collect_from(index, 0, &mut ends, done);
            self.end_run(&mut ends, done);
            if !self.entries[index].link.sender().is_granted() {
                return; // already detached: its last credits were impossible, or a thread had left
            }
        }
        // A thread leaves as well when it panics; that counts as a death.
        let panicked = matches!(&self.entries[index].link, WorkerLink::Handed(producer) if producer.has_panicked());
        match reason {
            DetachReason::Left if !panicked => self.attach_stats.left += 1,
            DetachReason::Left | DetachReason::Died => self.attach_stats.died += 1,
            DetachReason::Silent => self.attach_stats.silent += 1,
            DetachReason::AtFault => self.attach_stats.at_fault += 1,
        }
        // Drops the remaining tasks.
        let entry = &mut self.entries[index];
        let member = entry.member;
        self.dispatcher.set_active(member, false);
        let identity = entry.identity;
        let lost = entry.link.revoke(|task, channel| {
            let outcome = Err(DropReason::WorkerLost);
            let position = TaskPosition::default();
            done(Completion { task, identity, left: 0, outcome, channel, position });
        });
        self.dispatcher.write_off(member, lost);
    }

    /// Removes and returns the next task that no worker will serve, because the agent ends: first waiting ones, then
    /// those with workers. Attached threads keep their tasks. Returns `None` once no other task is left.
    pub fn abandon(&mut self) -> Option<T> {
        let next_held = |entry: &mut WorkerEntry<T>| match &mut entry.link {
            WorkerLink::Copied { held, .. } => held.iter_mut().find_map(Option::take),
            WorkerLink::Handed(producer) => {
                let _ = producer.collect();
                producer.take_back().and_then(|(parcel, note)| T::unpack(parcel, note))
            }
        };
        self.dispatcher.pop().or_else(|| self.entries.iter_mut().find_map(next_held))
    }

    /// Returns the number of tasks handed over to threads and not completed, taken by them or not.
    #[must_use]
    pub fn handed(&self) -> usize {
        let handed =
            self.entries.iter().filter(|entry| matches!(entry.link, WorkerLink::Handed(_)));
        handed.map(|entry| entry.link.sender().outstanding()).sum()
    }

    /// Returns the number of tasks that threads completed and replied to themselves so far.
    #[inline]
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Returns true if a thread that gets tasks handed over is attached.
    #[must_use]
    pub fn has_threads(&self) -> bool {
        let is_thread = |link: &WorkerLink<T>| matches!(link, WorkerLink::Handed(producer) if producer.is_attached());
        self.entries.iter().any(|entry| is_thread(&entry.link))
    }

    /// Signals to all workers that no more tasks will come.
    pub fn stop(&self) {
        self.entries.iter().for_each(|entry| entry.link.channel().stop());
    }
}

#[cfg(test)]
mod tests;
