//! What changes while an agent's core runs: workers, pools, policies, speeds and queues.
//!
//! As [`crate::stage::Update`]: made by a control thread with all the memory that it needs, taken between bursts, and given back
//! with what it replaced.

use std::fmt;
use std::sync::Arc;

use super::packet::Packet;
use super::responder::{NO_SET, NamedWorker};
use super::signer::Signer;
use super::worker_set::WorkerEntry;
use super::{Agent, PoolWorkers};
use crate::io::{Buf, Pool, Port, Token};
use crate::node::Commands;
use crate::policy::fifo::Slab;
use crate::reason::DropReason;
use crate::ring::Place;
use crate::stage::Setting;
use crate::state::Member;

/// How an agent's core is told of changes.
pub type AgentCommands<B> = Commands<Box<Update<B>>>;

/// A worker's entry in its set.
pub type Entry<B> = WorkerEntry<Packet<B>>;

/// One thing that changes; pools and members by index.
pub enum Step<B: Buf + Token> {
    /// A pool begins: the next one by index, or where another has ended.
    Begin {
        /// Its index.
        pool: usize,
        /// Its workers, of whom there are none yet; those of the ended one afterwards.
        new: Box<Option<PoolWorkers<B>>>,
    },
    /// The pool takes no new tasks, and the leaf hears of its workers no more.
    Close {
        /// The pool.
        pool: usize,
    },
    /// The pool has ended: tasks that wait still are given up.
    End {
        /// The pool.
        pool: usize,
    },
    /// A worker may come.
    Add {
        /// The pool.
        pool: usize,
        /// The member that it is.
        member: Member,
        /// Who it is.
        place: Place,
        /// Its entry; none afterwards.
        entry: Box<Option<Entry<B>>>,
    },
    /// The worker gets no new tasks, or gets them again.
    Drain {
        /// The pool.
        pool: usize,
        /// The member.
        member: Member,
        /// It gets none.
        is_drained: bool,
    },
    /// The worker gets no new tasks, nobody attaches in its place, and the leaf hears of it no more.
    Retire {
        /// The pool.
        pool: usize,
        /// The member.
        member: Member,
    },
    /// The worker is told to end, what it still has is lost, and the member is nobody.
    Remove {
        /// The pool.
        pool: usize,
        /// The member.
        member: Member,
        /// Who it was.
        place: Place,
        /// What is left of it afterwards, in this memory.
        entry: Box<Option<Entry<B>>>,
    },
    /// A pool is scheduled in another way.
    Set {
        /// The pool.
        pool: usize,
        /// What is other; the old policy afterwards.
        setting: Setting,
    },
    /// Other memory for tasks that wait.
    Room {
        /// The pool.
        pool: usize,
        /// For as many as may wait, and all that may wait already; the old memory afterwards.
        memory: Slab<Packet<B>>,
    },
    /// Who signs in the workers' names; the one before afterwards.
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

/// What leads an agent's core from one membership to the next.
#[derive(Debug)]
pub struct Update<B: Buf + Token> {
    /// Number of that membership.
    pub epoch: u64,
    /// What changes, in order.
    pub steps: Vec<Step<B>>,
    /// Pools whose members, their speeds or their policy change: policies look at these anew, once.
    pub touched: Vec<usize>,
}

impl<P, A> Agent<P, A>
where
    P: Port<Buf: Token>,
    A: Pool<Buf = P::Buf>,
{
    /// Does what was asked for since.
    pub(super) fn apply_commands(&mut self) {
        while let Some(mut update) = self.commands.next() {
            for step in &mut update.steps {
                self.step(step);
            }
            for &pool in &update.touched {
                self.worker_sets[pool].workers.review_members();
            }
            self.note_held(); // before its control looks
            self.commands.acknowledge(update.epoch, update);
        }
    }

    fn step(&mut self, step: &mut Step<P::Buf>) {
        match step {
            Step::Begin { pool, new } => self.begin(*pool, new),
            &mut Step::Close { pool } => self.worker_sets[pool].pool = None,
            &mut Step::End { pool } => {
                self.worker_sets[pool].pool = None;
                while let Some(task) = self.worker_sets[pool].workers.next_waiting() {
                    self.responder.give_up(task, DropReason::NoMember);
                }
            }
            Step::Add { pool, member, place, entry } => self.add(*pool, *member, *place, entry),
            &mut Step::Drain { pool, member, is_drained } => {
                self.worker_sets[pool].workers.drain(member, is_drained);
            }
            &mut Step::Retire { pool, member } => {
                let retired = self.worker_sets[pool].workers.retire(member);
                if let Some(place) = retired {
                    self.registrars.iter_mut().for_each(|registrar| registrar.remove(place));
                }
            }
            Step::Remove { pool, member, place, entry } => {
                let responder = &mut self.responder;
                let workers = &mut self.worker_sets[*pool].workers;
                **entry = workers.remove(*member, &mut |done| responder.finish(done));
                responder.named[usize::from(place.id)].set = NO_SET;
                responder.remove_reporter(*place);
                self.registrars.iter_mut().for_each(|registrar| registrar.remove(*place));
            }
            Step::Set { pool, setting } => self.worker_sets[*pool].workers.set(setting),
            Step::Room { pool, memory } => self.worker_sets[*pool].workers.exchange_memory(memory),
            Step::Sign(signer) => std::mem::swap(&mut self.responder.signer, signer),
        }
    }

    fn begin(&mut self, pool: usize, place: &mut Option<PoolWorkers<P::Buf>>) {
        let Some(mut new) = place.take() else { return };
        let Some(ended) = self.worker_sets.get_mut(pool) else {
            return self.worker_sets.push(new);
        };
        std::mem::swap(ended, &mut new);
        // What it did is not forgotten.
        self.former = self.former.and(new.workers.attach_stats());
        self.ended -= new.workers.ended();
        *place = Some(new);
    }

    fn add(
        &mut self,
        pool: usize,
        member: Member,
        place: Place,
        entry: &mut Option<Entry<P::Buf>>,
    ) {
        let Some(entry) = entry.take() else { return };
        self.worker_sets[pool].workers.add(member, entry);
        let named = &mut self.responder.named[usize::from(place.id)];
        *named = NamedWorker { set: pool as u16, ..*named };
        self.responder.add_reporter(place);
        self.registrars.iter_mut().for_each(|registrar| registrar.add(place));
    }
}
