//! Update of an agent's core at run time: workers, pools, policies, speeds and queues. An update leads from
//! one *membership* (pools and workers) to the next, which has a higher number, the *epoch*.
//!
//! A control thread creates an update with all memory that it needs, because the core must not allocate. The core
//! applies it between bursts and returns it with the replaced objects, which the control thread frees.
//! [`crate::stage::Update`] is its counterpart at a leaf.

use std::fmt;
use std::sync::Arc;

use super::Agent;
use super::packet::Packet;
use super::responder::{NO_SET, NamedWorker};
use super::signer::Signer;
use super::worker_set::{WorkerEntry, WorkerSet};
use crate::io::{Buf, Pool, Port, Token};
use crate::node::Commands;
use crate::policy::WaitingTask;
use crate::policy::fifo::Slab;
use crate::reason::DropReason;
use crate::ring::WorkerIdentity;
use crate::stage::DispatcherChange;
use crate::state::Member;

/// Commands to an agent's core.
pub type AgentCommands<B> = Commands<Box<Update<B>>>;

/// A worker's entry in its set.
pub type Entry<B> = WorkerEntry<Packet<B>>;

/// One step of an update; pools and members by index. Fields are as the control thread sets them; *afterwards* means
/// after the core has applied the step.
pub enum Step<B: Buf + Token> {
    /// A pool begins, at the next index or in place of an ended one.
    Begin {
        /// Its index.
        pool: usize,
        /// Its workers, at first an empty set; afterwards the ended pool's, if any.
        new: Box<Option<WorkerSet<Packet<B>>>>,
    },
    /// The pool accepts no new tasks, and its workers send no more registrations.
    Close {
        /// The pool.
        pool: usize,
    },
    /// The pool has ended: drops its waiting tasks.
    End {
        /// The pool.
        pool: usize,
    },
    /// A worker may attach.
    Add {
        /// The pool.
        pool: usize,
        /// Its member index.
        member: Member,
        /// Its identity.
        identity: WorkerIdentity,
        /// Its entry; `None` afterwards.
        entry: Box<Option<Entry<B>>>,
    },
    /// Drains or undrains a worker.
    Drain {
        /// The pool.
        pool: usize,
        /// The member.
        member: Member,
        /// True to drain.
        is_drained: bool,
    },
    /// The worker gets no new tasks, its channel accepts no other worker, and it is no longer registered.
    Retire {
        /// The pool.
        pool: usize,
        /// The member.
        member: Member,
    },
    /// Stops the worker, drops its tasks, and frees the member.
    Remove {
        /// The pool.
        pool: usize,
        /// The member.
        member: Member,
        /// Its former identity.
        identity: WorkerIdentity,
        /// `None`; afterwards its entry.
        entry: Box<Option<Entry<B>>>,
    },
    /// Changes the scheduling of a pool.
    Set {
        /// The pool.
        pool: usize,
        /// The change; afterwards the old policy, if it replaces the policy.
        change: DispatcherChange,
    },
    /// Replaces the memory for waiting tasks.
    Room {
        /// The pool.
        pool: usize,
        /// Memory for the bound and for all tasks that wait already; afterwards the old memory.
        memory: Slab<WaitingTask<Packet<B>>>,
    },
    /// Replaces the signer; afterwards the old one.
    Sign(Option<Arc<Signer>>),
}

impl<B: Buf + Token> fmt::Debug for Step<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, pool, member) = match self {
            Self::Begin { pool, .. } => ("Begin", Some(pool), None),
            Self::Close { pool } => ("Close", Some(pool), None),
            Self::End { pool } => ("End", Some(pool), None),
            Self::Add { pool, member, .. } => ("Add", Some(pool), Some(member)),
            Self::Drain { pool, member, .. } => ("Drain", Some(pool), Some(member)),
            Self::Retire { pool, member } => ("Retire", Some(pool), Some(member)),
            Self::Remove { pool, member, .. } => ("Remove", Some(pool), Some(member)),
            Self::Set { pool, .. } => ("Set", Some(pool), None),
            Self::Room { pool, .. } => ("Room", Some(pool), None),
            Self::Sign(_) => ("Sign", None, None),
        };
        f.debug_struct(name).field("pool", &pool).field("member", &member).finish_non_exhaustive()
    }
}

/// Update of an agent's core from one membership to the next.
#[derive(Debug)]
pub struct Update<B: Buf + Token> {
    /// Epoch of the next membership.
    pub epoch: u64,
    /// Steps in order.
    pub steps: Vec<Step<B>>,
    /// Pools with changed members, speeds or policy, and new pools with members. Their policies recompute their state
    /// once.
    pub changed_pools: Vec<usize>,
}

impl<P, A> Agent<P, A>
where
    P: Port<Buf: Token>,
    A: Pool<Buf = P::Buf>,
{
    /// Applies pending commands.
    pub(super) fn apply_commands(&mut self) {
        while let Some(mut update) = self.commands.next() {
            for step in &mut update.steps {
                self.step(step);
            }
            for &pool in &update.changed_pools {
                self.worker_sets[pool].review_members();
            }
            self.note_held(); // before the control thread, which reads it, sees the acknowledgement
            self.commands.acknowledge(update.epoch, update);
        }
    }

    /// Applies one step, and leaves the replaced object in it.
    fn step(&mut self, step: &mut Step<P::Buf>) {
        match step {
            Step::Begin { pool, new } => self.begin(*pool, new),
            &mut Step::Close { pool } => self.worker_sets[pool].pool = None,
            &mut Step::End { pool } => {
                self.worker_sets[pool].pool = None;
                while let Some(task) = self.worker_sets[pool].next_waiting() {
                    self.responder.give_up(task, DropReason::NoMember);
                }
            }
            Step::Add { pool, member, identity, entry } => {
                self.add(*pool, *member, *identity, entry)
            }
            &mut Step::Drain { pool, member, is_drained } => {
                self.worker_sets[pool].drain(member, is_drained);
            }
            &mut Step::Retire { pool, member } => {
                let retired = self.worker_sets[pool].retire(member);
                if let Some(identity) = retired {
                    self.registrars.iter_mut().for_each(|registrar| registrar.remove(identity));
                }
            }
            Step::Remove { pool, member, identity, entry } => {
                let (worker_sets, mut messenger) = self.split();
                let workers = &mut worker_sets[*pool];
                **entry = workers.remove(*member, &mut |done| messenger.finish(done));
                self.responder.named[usize::from(identity.id)].set = NO_SET;
                self.responder.remove_reporter(*identity);
                self.registrars.iter_mut().for_each(|registrar| registrar.remove(*identity));
            }
            Step::Set { pool, change } => {
                self.worker_sets[*pool].change_scheduling(change);
            }
            Step::Room { pool, memory } => self.worker_sets[*pool].exchange_memory(memory),
            Step::Sign(signer) => std::mem::swap(&mut self.responder.signer, signer),
        }
    }

    /// Begins the pool in `slot` at an index. Leaves the ended pool that it replaces in `slot`.
    fn begin(&mut self, pool: usize, slot: &mut Option<WorkerSet<Packet<P::Buf>>>) {
        let Some(mut new) = slot.take() else { return };
        let Some(ended) = self.worker_sets.get_mut(pool) else {
            return self.worker_sets.push(new);
        };
        std::mem::swap(ended, &mut new);
        // `new` is now the ended pool. `former` keeps its attachments in the agent's statistics. Its completed tasks
        // leave `ended`, because the next poll compares `ended` with a sum over the current pools.
        self.former = self.former.and(new.attach_stats());
        self.ended -= new.ended();
        *slot = Some(new);
    }

    /// Adds a worker as a member of a pool. Tasks may then name its id, and its registrations and queue reports begin.
    fn add(
        &mut self,
        pool: usize,
        member: Member,
        identity: WorkerIdentity,
        entry: &mut Option<Entry<P::Buf>>,
    ) {
        let Some(entry) = entry.take() else { return };
        self.worker_sets[pool].add(member, entry);
        let named = &mut self.responder.named[usize::from(identity.id)];
        *named = NamedWorker { set: pool as u16, ..*named };
        self.responder.add_reporter(identity);
        self.registrars.iter_mut().for_each(|registrar| registrar.add(identity));
    }
}
