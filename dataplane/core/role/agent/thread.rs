//! Worker as a thread of the agent's process with its own transmit queue. It takes a task's packet, turns it
//! into its reply in place, and sends it. The dispatcher never sees the reply: it reads the number of completed
//! tasks and the time worked, and under a policy with rules for classes the class and time of each task.
//!
//! Each reply is sent immediately, because the next task's duration is unknown and the reply must not wait
//! for it.
//!
//! A dispatcher that hands tasks over needs 1116 instructions per task of 20 bytes, and 1452 at 512 bytes. One that
//! copies tasks and replies needs 1814 and 2758 (16 workers, `jbsq(k=2)`, ports in memory).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::link::Work;
use super::named_load::NamedLoad;
use super::packet::{Packet, ReplyFields};
use super::signer::Signer;
use crate::io::Port;
use crate::io::Token;
use crate::node::outbox::Outbox;
use crate::reason::DropReason;
use crate::ring::{Consumer, TaskIds, WorkerIdentity};
use crate::state::{Counter, Counters};
use crate::wire::task::NO_MEMBER;

/// Longest sleep. After it the thread checks whether the agent has ended.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// Task as the serving function of [`ThreadWorker::run`] sees it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Ids and class of the task.
    pub ids: TaskIds,
    /// The client's bytes after the task header.
    pub payload: &'a [u8],
}

/// Worker that is a thread of the agent's process. It serves tasks, turns their packets into replies and sends these.
pub struct ThreadWorker<P: Port<Buf: Token>> {
    /// Thread's end of the channel from the dispatcher.
    consumer: Consumer<P::Buf>,
    /// Own transmit queues, one per port.
    out: Outbox<P>,
    /// Number of unfinished tasks addressed to each worker. A reply reports that of the worker it names.
    load: Arc<NamedLoad>,
    /// Signer of workers whose pool has a key.
    signer: Option<Arc<Signer>>,
    /// Buffer for answers, so that the task's bytes stay readable.
    answer: Box<[u8]>,
    /// Task being served.
    current: Option<Packet<P::Buf>>,
}

impl<P: Port<Buf: Token>> fmt::Debug for ThreadWorker<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadWorker")
            .field("identity", &self.consumer.identity())
            .finish_non_exhaustive()
    }
}

impl<P: Port<Buf: Token>> ThreadWorker<P> {
    /// Creates a worker that sends through its own `queues`, one per port of its agent, in their order. Its answers
    /// have at most `payload` bytes.
    #[must_use]
    pub fn new(
        consumer: Consumer<P::Buf>,
        queues: Vec<P>,
        load: Arc<NamedLoad>,
        payload: usize,
        counters: Counters,
    ) -> Self {
        let answer = vec![0; payload].into();
        let out = Outbox::new(queues, counters);
        Self { consumer, out, load, signer: None, answer, current: None }
    }

    /// Signs replies of workers whose pool has a key.
    #[must_use]
    pub fn with_signer(mut self, signer: Option<Arc<Signer>>) -> Self {
        self.signer = signer;
        self
    }

    /// Returns the worker's identity.
    #[must_use]
    pub fn identity(&self) -> WorkerIdentity {
        self.consumer.identity()
    }

    /// Returns its counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.out.counters
    }

    /// Serves tasks until the agent ends. An idle thread spins for `spin` and then sleeps.
    ///
    /// `serve` writes the answer and returns its length. If it returns `None`, the client gets no reply.
    pub fn run(
        &mut self,
        spin: Duration,
        mut serve: impl FnMut(&Request<'_>, &mut [u8]) -> Option<usize>,
    ) {
        let mut idle_since = None;
        while !self.consumer.is_stopped() {
            if self.poll(&mut serve) {
                idle_since = None;
            } else if idle_since.get_or_insert_with(Instant::now).elapsed() < spin {
                std::hint::spin_loop();
            } else {
                self.consumer.sleep(SLEEP_MAX);
            }
        }
    }

    /// Serves the next task. Returns false if there is none. Makes no system call itself; `serve` and the port's driver
    /// may.
    #[inline]
    pub fn poll(
        &mut self,
        serve: &mut impl FnMut(&Request<'_>, &mut [u8]) -> Option<usize>,
    ) -> bool {
        let Some((buf, note)) = self.consumer.take() else {
            return false;
        };
        self.current = Packet::parse_again(buf, note);
        let Some(task) = &self.current else {
            // Impossible: its bytes have not changed since the agent parsed them. Counted, so that the ledger is
            // exact in any case.
            self.out.counters.drop(DropReason::BadReply, 1);
            self.consumer.complete(0, 0);
            return true;
        };
        let (ids, start) = (task.ids(), Instant::now());
        let answer_len = serve(&Request { ids, payload: task.payload() }, &mut self.answer);
        let worked_ns = start.elapsed().as_nanos() as u64;
        if let Some(task) = self.current.take() {
            self.end(task, answer_len, worked_ns.min(u64::from(u32::MAX)) as u32);
        }
        self.consumer.complete(ids.class, worked_ns);
        true
    }

    /// Sends the reply, or counts its drop.
    #[inline]
    fn end(&mut self, task: Packet<P::Buf>, answer_len: Option<usize>, service_ns: u32) {
        let (worker, left) = self.account(&task);
        let counters = &self.out.counters;
        let Some(len) = answer_len else {
            return counters.drop(DropReason::Unanswered, 1);
        };
        let port = usize::from(task.port);
        let credential = self.signer.as_ref().and_then(|signer| signer.of(worker));
        let reply = self.answer.get(..len).and_then(|answer| {
            let fields = ReplyFields { worker, left, service_ns, credential };
            task.into_reply(fields, len, |into| into.copy_from_slice(answer)).ok()
        });
        let Some(reply) = reply else {
            return counters.drop(DropReason::BadReply, 1);
        };
        counters.add(Counter::Replies, 1);
        self.out.forward(reply, port);
        self.out.flush(); // the next task may take long
    }

    /// Returns the worker that the reply names, and its unfinished tasks. This is the worker to which the task was
    /// addressed, even if the agent gave the task to this one. It is this worker if the task named none. Counts the
    /// answer for an addressed worker, so call it once per task.
    #[inline]
    fn account(&mut self, task: &Packet<P::Buf>) -> (u16, usize) {
        match task.addressed() {
            (_, NO_MEMBER) => (self.consumer.identity().id, self.consumer.waiting()),
            (_, named) => (named, self.load.answer(task.worker_index()) as usize),
        }
    }
}

impl<P: Port<Buf: Token>> Drop for ThreadWorker<P> {
    /// Counts the task of a service that panicked.
    fn drop(&mut self) {
        // A current task means that its service panicked: the task is lost.
        if let Some(task) = self.current.take() {
            // Counted as answered, so that the named worker's load falls.
            let _ = self.account(&task);
            self.out.counters.drop(DropReason::WorkerLost, 1);
        }
    }
}
