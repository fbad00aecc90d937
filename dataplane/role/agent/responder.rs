//! Answers tasks that are done: their replies, the counts by name that replies tell, and the counters.

use std::sync::Arc;

use super::PoolWorkers;
use super::named_load::NamedLoad;
use super::packet::{Packet, Signature};
use super::reports::QueueReports;
use super::response_times::ResponseTimes;
use super::signer::{Credential, Signer};
use super::worker_set::Completion;
use crate::io::Token;
use crate::io::{Buf, Port};
use crate::limits::WORKER_ID_MAX;
use crate::node::explain::{Fate, Moment};
use crate::node::outbox::Outbox;
use crate::reason::DropReason;
use crate::ring::{Outcome, Place};
use crate::state::counters::COUNT;
use crate::state::{Counter, Counters};
use crate::wire::task::NO_MEMBER;

/// Sends the replies to tasks that are done, and counts those that nobody did.
#[derive(Debug)]
pub struct Responder<P: Port> {
    pub out: Outbox<P>,
    /// By worker id.
    pub named: Box<[NamedWorker]>,
    /// What threads and this core share of that.
    pub named_load: Option<Arc<NamedLoad>>,
    /// What threads have counted, and how much of it this core has added to its own.
    pub threads: Box<[(Counters, [u64; COUNT])]>,
    /// Signs in the names of workers whose pool has a key.
    pub signer: Option<Arc<Signer>>,
    /// Has workers tell leaves of their queues, where their pools do.
    pub reports: Option<Box<QueueReports>>,
    /// Tells how long tasks take, where somebody may ask.
    pub response_times: Option<ResponseTimes>,
    /// The time of the poll, in ticks.
    pub now: u64,
    /// The one to be added next.
    thread: usize,
}

/// What goes by a worker's id.
#[derive(Clone, Copy, Debug)]
pub struct NamedWorker {
    /// Index of the worker's set, [`NO_SET`] when no worker here has the id.
    pub set: u16,
    /// Its number among all workers.
    pub name: u16,
    /// Tasks here that were sent to it by name, and of those that threads have, or had.
    pub tasks: u32,
    /// Its number among those that tell of their queues, [`NO_REPORTER`] when it is none of them.
    pub reporter: u16,
}

pub const NO_REPORTER: u16 = u16::MAX;
pub const NO_SET: u16 = u16::MAX;

/// Whose ids these workers' are.
pub fn named<B: Buf + Token>(
    places: &[Place],
    worker_sets: &[PoolWorkers<B>],
) -> Box<[NamedWorker]> {
    let nobody = NamedWorker { set: NO_SET, name: 0, tasks: 0, reporter: NO_REPORTER };
    let mut named = vec![nobody; usize::from(WORKER_ID_MAX) + 1];
    for (name, place) in places.iter().enumerate() {
        if let Some(set) = worker_sets.iter().position(|set| set.pool == Some(place.pool)) {
            let (set, name) = (set as u16, name as u16);
            named[usize::from(place.id)] = NamedWorker { set, name, ..nobody };
        }
    }
    named.into()
}

impl<P: Port<Buf: Token>> Responder<P> {
    pub fn new(out: Outbox<P>, named: Box<[NamedWorker]>) -> Self {
        Self {
            out,
            named,
            named_load: None,
            threads: Box::default(),
            signer: None,
            reports: None,
            response_times: None,
            now: 0,
            thread: 0,
        }
    }

    /// A worker may come, which tells of its queue if its pool's do.
    pub fn add_reporter(&mut self, place: Place) {
        let reporter = self.reports.as_mut().and_then(|reports| reports.add(place));
        self.named[usize::from(place.id)].reporter = reporter.unwrap_or(NO_REPORTER);
    }

    /// The worker comes no more.
    pub fn remove_reporter(&mut self, place: Place) {
        let named = &mut self.named[usize::from(place.id)];
        let reporter = std::mem::replace(&mut named.reporter, NO_REPORTER);
        if let Some(reports) = &mut self.reports {
            reports.remove(reporter);
        }
    }

    /// A leaf, by its index, has taken a worker for there, and is told of its queue if it is to be.
    pub fn report_to(&mut self, leaf: usize, worker: u16) {
        let tasks = self.named_tasks(worker);
        if let Some(reports) = &mut self.reports {
            reports.on_met(self.named[usize::from(worker)].reporter, leaf, tasks);
        }
    }

    /// Adds what one of the threads has counted, each in turn.
    pub fn add_up(&mut self) {
        self.thread += 1;
        if self.thread >= self.threads.len() {
            self.thread = 0;
        }
        if let Some((counters, added)) = self.threads.get_mut(self.thread) {
            self.out.counters.fold(counters, added);
        }
    }

    /// So many more tasks are here that were sent to this worker by name.
    #[inline]
    pub fn count(&mut self, worker: u16, more: i32) {
        let named = &mut self.named[usize::from(worker)];
        named.tasks = named.tasks.wrapping_add_signed(more);
        if let Some(named_load) = &self.named_load {
            named_load.publish(usize::from(named.name), named.tasks);
        }
    }

    /// Tasks here that were sent to this worker by name.
    #[inline]
    pub fn named_tasks(&self, worker: u16) -> u16 {
        let named = self.named[usize::from(worker)];
        let left = match &self.named_load {
            Some(named_load) => named_load.left(usize::from(named.name), named.tasks),
            None => named.tasks,
        };
        left.min(u32::from(u16::MAX)) as u16
    }

    /// What signs in this worker's name, if its pool has a key.
    #[inline]
    pub fn credential(&self, worker: u16) -> Option<&Credential> {
        self.signer.as_ref()?.of(worker)
    }

    /// A task has ended: its reply goes out, or it is counted.
    #[inline]
    pub fn finish(&mut self, done: Completion<'_, Packet<P::Buf>>) {
        match self.out.tap.explains() {
            false => _ = self.end(done),
            true => self.explain(done),
        }
    }

    /// The same, and tells what became of the task.
    #[cold]
    fn explain(&mut self, done: Completion<'_, Packet<P::Buf>>) {
        if let Some(explainer) = self.out.tap.explainer() {
            explainer.draft(Some(done.task.port), self.now, done.task.frame(), |_| None);
        }
        let fate = self.end(done);
        if let Some(explainer) = self.out.tap.explainer() {
            explainer.settle(Moment::Ended, fate, |_| ());
        }
    }

    #[inline(always)]
    fn end(&mut self, done: Completion<'_, Packet<P::Buf>>) -> Fate {
        let (port, (_, named), by) = (done.task.port, done.task.addressed(), done.place.id);
        let (mut worker, mut left) = (done.place.id, done.left);
        if named != NO_MEMBER {
            // The sender counts by the name that it used, whichever core did the task.
            self.count(named, -1);
            let tasks = self.named_tasks(named);
            (worker, left) = (named, usize::from(tasks));
            if let Some(reports) = &mut self.reports {
                reports.on_done(self.named[usize::from(named)].reporter, tasks);
            }
        }
        if let Some(times) = &self.response_times {
            times.note(done.task.since, self.now);
        }
        let reason = match done.outcome {
            Ok(Outcome::Reply { len, service_ns }) => {
                self.out.counters.add(Counter::Replies, 1);
                let credential = self.signer.as_deref().and_then(|signer| signer.of(worker));
                let signature = Signature { worker, left, service_ns, credential };
                let fill = |into: &mut [u8]| done.channel.reply(done.number, into);
                match done.task.into_reply(signature, len, fill) {
                    Ok(reply) => {
                        self.out.forward(reply, usize::from(port));
                        return Fate::Sent { port, worker: by };
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

    /// A task that no worker had is given up.
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

    /// Gives a task back to whoever sent it, undone.
    #[cold]
    pub fn refuse(&mut self, task: Packet<P::Buf>, waiting: usize) -> Fate {
        let (port, (_, named)) = (task.port, task.addressed());
        let tasks = match named {
            NO_MEMBER => waiting.min(usize::from(u16::MAX)) as u16,
            named => self.named_tasks(named),
        };
        let credential = self.signer.as_deref().and_then(|signer| signer.of(named));
        match task.into_refusal(named, tasks, credential) {
            Ok(refusal) => {
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
