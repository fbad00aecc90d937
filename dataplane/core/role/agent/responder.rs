//! Completion of tasks: replies, the named worker's number of tasks for the replies, and counters.
//!
//! A task *names* the worker whose id a leaf wrote into its header; any core may serve it. A reply reports the
//! unfinished tasks of the named worker, because the leaf counts by that id. Tasks that come directly from clients name
//! none (`NO_MEMBER`).
//!
//! A *queue report* is a message with a worker's number of tasks, besides replies; workers that send them are
//! *reporters*. Under *direct return* a reply goes straight to the client, and the leaf gets a *completion report*.

use std::sync::Arc;

use super::direct::{Completions, DirectRoute};
use super::named_load::NamedLoad;
use super::packet::{Packet, ReplyFields};
use super::reports::QueueReports;
use super::response_times::ResponseTimes;
use super::signer::{Credential, Signer};
use super::worker_set::{Completion, WorkerSet};
use crate::io::Token;
use crate::io::{Buf, Port};
use crate::limits::WORKER_ID_MAX;
use crate::node::Timing;
use crate::node::explain::{Fate, Moment};
use crate::node::outbox::Outbox;
use crate::reason::DropReason;
use crate::ring::{Outcome, WorkerIdentity};
use crate::state::counters::COUNT;
use crate::state::{Counter, Counters};
use crate::wire::completion::Completion as CompletionEntry;
use crate::wire::task::NO_MEMBER;

/// Sends the replies to completed tasks, and counts dropped ones.
#[derive(Debug)]
pub struct Responder<P: Port> {
    /// Ports with queued packets, and the agent's counters.
    pub out: Outbox<P>,
    /// Workers by the id that tasks name.
    pub named: Box<[NamedWorker]>,
    /// Counts shared with threads.
    pub named_load: Option<Arc<NamedLoad>>,
    /// Counters of each thread, and the values already added to the agent's.
    pub threads: Box<[(Counters, [u64; COUNT])]>,
    /// Signer of workers whose pool has a key.
    pub signer: Option<Arc<Signer>>,
    /// Queue reports to leaves, if pools send any.
    pub reports: Option<Box<QueueReports>>,
    /// Completions to report to leaves.
    pub completions: Completions,
    /// Response times for observers in other processes, such as a batch job on the workers' cores; `None` if they are
    /// not configured.
    pub response_times: Option<ResponseTimes>,
    /// Time of the poll in ticks.
    pub now: u64,
    /// Time of the poll in nanoseconds.
    pub now_ns: u64,
    /// Index of the worker thread whose counters were added last.
    thread: usize,
}

/// State of one worker id that tasks may name.
#[derive(Clone, Copy, Debug)]
pub struct NamedWorker {
    /// Index of the worker's set; [`NO_SET`] if no worker here has the id.
    pub set: u16,
    /// Index among all workers at the start, as in [`NamedLoad`]. Unused for workers added later: an agent with threads
    /// adds none.
    pub index: u16,
    /// Number of tasks at this agent that name it. Includes tasks that threads have already answered.
    pub tasks: u32,
    /// Index among the reporters; [`NO_REPORTER`] if it is none.
    pub reporter: u16,
    /// True if its leaf may hold tasks back until the worker's next completion, under direct return.
    pub is_full: bool,
}

/// Index of a worker that is no reporter.
pub const NO_REPORTER: u16 = u16::MAX;
/// Set of an unused id.
pub const NO_SET: u16 = u16::MAX;

/// Returns the table of these workers by id, with an entry for every possible id.
pub fn named<B: Buf + Token>(
    identities: &[WorkerIdentity],
    worker_sets: &[WorkerSet<Packet<B>>],
) -> Box<[NamedWorker]> {
    let unused =
        NamedWorker { set: NO_SET, index: 0, tasks: 0, reporter: NO_REPORTER, is_full: false };
    let mut named = vec![unused; usize::from(WORKER_ID_MAX) + 1];
    for (index, identity) in identities.iter().enumerate() {
        if let Some(set) = worker_sets.iter().position(|set| set.pool == Some(identity.pool)) {
            let (set, index) = (set as u16, index as u16);
            named[usize::from(identity.id)] = NamedWorker { set, index, ..unused };
        }
    }
    named.into()
}

impl<P: Port<Buf: Token>> Responder<P> {
    /// Creates a responder of these ports and worker ids, without threads, keys and reports.
    pub fn new(out: Outbox<P>, named: Box<[NamedWorker]>, timing: Timing) -> Self {
        Self {
            out,
            named,
            named_load: None,
            threads: Box::default(),
            signer: None,
            reports: None,
            completions: Completions::new(timing),
            response_times: None,
            now: 0,
            now_ns: 0,
            thread: 0,
        }
    }

    /// Adds a worker to the reporters, if its pool sends queue reports.
    pub fn add_reporter(&mut self, identity: WorkerIdentity) {
        let reporter = self.reports.as_mut().and_then(|reports| reports.add(identity));
        self.named[usize::from(identity.id)].reporter = reporter.unwrap_or(NO_REPORTER);
    }

    /// Removes a worker from the reporters. Does nothing if it is none.
    pub fn remove_reporter(&mut self, identity: WorkerIdentity) {
        let named = &mut self.named[usize::from(identity.id)];
        let reporter = std::mem::replace(&mut named.reporter, NO_REPORTER);
        if let Some(reports) = &mut self.reports {
            reports.remove(reporter);
        }
    }

    /// Handles a leaf's acknowledgement of a worker. The leaf is new to the worker, which may trigger a queue report.
    pub fn report_to(&mut self, leaf: usize, worker: u16) {
        let tasks = self.named_tasks(worker);
        if let Some(reports) = &mut self.reports {
            reports.on_leaf_acknowledged(self.named[usize::from(worker)].reporter, leaf, tasks);
        }
    }

    /// Returns the time of the poll in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.now_ns / 1_000_000
    }

    /// Adds one thread's new counts to the agent's counters; the next call takes the next thread.
    pub fn add_up(&mut self) {
        self.thread += 1;
        if self.thread >= self.threads.len() {
            self.thread = 0;
        }
        if let Some((counters, added)) = self.threads.get_mut(self.thread) {
            self.out.counters.fold(counters, added);
        }
    }

    /// Adds `change` to the number of tasks at this agent that name the worker, and publishes it to threads.
    #[inline]
    pub fn count(&mut self, worker: u16, change: i32) {
        let named = &mut self.named[usize::from(worker)];
        named.tasks = named.tasks.wrapping_add_signed(change);
        if let Some(named_load) = &self.named_load {
            named_load.publish(usize::from(named.index), named.tasks);
        }
    }

    /// Returns the number of unfinished tasks at this agent that name the worker.
    #[inline]
    pub fn named_tasks(&self, worker: u16) -> u16 {
        let named = self.named[usize::from(worker)];
        let left = match &self.named_load {
            Some(named_load) => named_load.unanswered(usize::from(named.index), named.tasks),
            None => named.tasks,
        };
        left.min(u32::from(u16::MAX)) as u16
    }

    /// Returns this worker's credential, if its pool has a key.
    #[inline]
    pub fn credential(&self, worker: u16) -> Option<&Credential> {
        self.signer.as_ref()?.of(worker)
    }

    /// Sends the reply of a completed task, or counts its drop. The caller has made room in the next report to its
    /// leaf.
    #[inline]
    pub fn finish(&mut self, done: Completion<'_, Packet<P::Buf>>) {
        match self.out.tap.explains() {
            false => _ = self.end(done),
            true => self.explain(done),
        }
    }

    /// Same as [`Responder::finish`], and explains the task's outcome.
    #[cold]
    fn explain(&mut self, done: Completion<'_, Packet<P::Buf>>) {
        if let Some(explainer) = self.out.tap.explainer() {
            explainer.draft(Some(done.task.port), self.now, done.task.frame(), |_, _| None);
        }
        let fate = self.end(done);
        if let Some(explainer) = self.out.tap.explainer() {
            explainer.settle(Moment::Ended, fate, |_| ());
        }
    }

    /// Sends the reply of a completed task, or counts its drop. Returns the task's outcome.
    #[inline(always)]
    fn end(&mut self, done: Completion<'_, Packet<P::Buf>>) -> Fate {
        // `server` served the task. `worker` and `left` go into the reply: the named worker and its tasks, if any.
        let (port, (_, named), server) = (done.task.port, done.task.addressed(), done.identity.id);
        let (mut worker, mut left) = (done.identity.id, done.left);
        if named != NO_MEMBER {
            // The sender counts by the worker that it named, not by the core that served the task.
            self.count(named, -1);
            let tasks = self.named_tasks(named);
            (worker, left) = (named, usize::from(tasks));
            if let Some(reports) = &mut self.reports {
                reports.on_done(self.named[usize::from(named)].reporter, tasks);
            }
        }
        if let Some(times) = &self.response_times {
            times.note(self.now_ns.saturating_sub(done.task.since_ns));
        }
        let reason = match done.outcome {
            Ok(Outcome::Reply { len, service_ns }) => {
                self.out.counters.add(Counter::Replies, 1);
                let (route, kind) = (done.task.direct_route(), done.task.pool_and_class());
                let credential = self.reply_credential(worker, route);
                let fields = ReplyFields { worker, left, service_ns, credential };
                let fill = |into: &mut [u8]| done.channel.reply(done.position, into);
                match done.task.into_reply(fields, len, fill) {
                    Ok(reply) => {
                        if let Some(route) = route {
                            self.note_completion(route, kind, (worker, left), service_ns);
                        }
                        self.out.forward(reply, usize::from(port));
                        return Fate::Sent { port, worker: server };
                    }
                    Err(_) => DropReason::BadReply,
                }
            }
            Ok(Outcome::Unanswered) => DropReason::Unanswered,
            Ok(Outcome::Refused) => DropReason::BadReply,
            Err(reason) => reason,
        };
        self.out.counters.drop(reason, 1);
        Fate::Dropped(reason)
    }

    /// Returns the credential that signs a reply in this worker's name. A client needs no proof.
    #[inline]
    fn reply_credential(&self, worker: u16, route: Option<DirectRoute>) -> Option<&Credential> {
        self.credential(worker).filter(|_| route.is_none())
    }

    /// Adds a task of this pool and class that was answered directly to the next report to its leaf, in which the
    /// caller has made room. The report is urgent if tasks may wait at the leaf for this worker.
    #[inline]
    fn note_completion(
        &mut self,
        route: DirectRoute,
        (pool, class): (u16, u16),
        (worker, left): (u16, usize),
        service_ns: u32,
    ) {
        let named = self.named.get_mut(usize::from(worker));
        let is_urgent = named.is_some_and(|named| std::mem::take(&mut named.is_full));
        let left = left.min(usize::from(u16::MAX)) as u16;
        let completion = CompletionEntry { worker, class, left, service_ns };
        self.completions.push(route.leaf, pool, completion, is_urgent, self.now);
    }

    /// Handles a task that fills its worker up to the policy's bound. Tasks may now wait at the leaf for the worker's
    /// next completion, or for one that is not reported yet.
    #[inline]
    pub fn note_full(&mut self, worker: u16, route: DirectRoute) {
        if let Some(named) = self.named.get_mut(usize::from(worker)) {
            named.is_full = true;
        }
        self.completions.hurry(route.leaf);
    }

    /// Drops and counts a task that waited in its pool's queue. Called if the pool ends, or if no worker is
    /// active and the policy does not queue.
    #[cold]
    pub fn give_up(&mut self, task: Packet<P::Buf>, reason: DropReason) {
        let (_, named) = task.addressed();
        if named != NO_MEMBER {
            self.count(named, -1);
        }
        self.out.counters.drop(reason, 1);
        if self.out.tap.explains() {
            self.out.tap.explain_released(self.now, task.frame(), Fate::Dropped(reason));
        }
    }

    /// Refuses a task that the queue has no room for: sends it back to its sender, or drops it if its packet cannot
    /// carry a refusal. The caller no longer counts it for the worker that it names. `waiting` is the pool's queue
    /// length, reported if the task names no worker.
    #[cold]
    pub fn refuse(&mut self, task: Packet<P::Buf>, waiting: usize) -> Fate {
        let (port, (_, named)) = (task.port, task.addressed());
        let tasks = match named {
            NO_MEMBER => waiting.min(usize::from(u16::MAX)) as u16,
            named => self.named_tasks(named),
        };
        let (route, kind) = (task.direct_route(), task.pool_and_class());
        let credential = self.reply_credential(named, route);
        match task.into_refusal(named, tasks, credential) {
            Ok(refusal) => {
                if let Some(route) = route {
                    self.note_completion(route, kind, (named, tasks.into()), 0);
                }
                self.out.counters.add(Counter::Refused, 1);
                self.out.forward(refusal, usize::from(port));
                Fate::Answered
            }
            Err(_) => {
                self.out.counters.drop(DropReason::QueueFull, 1);
                Fate::Dropped(DropReason::QueueFull)
            }
        }
    }
}
