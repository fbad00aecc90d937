//! Changes to a running core: members, pools, policies, speeds and bounds, and the network that follows from
//! them.
//!
//! A control thread makes an [`Update`] with all the memory that it needs. A core applies it between two
//! bursts, in time proportional to the changes. The core leaves the replaced parts in it, so that the
//! allocating thread also frees the memory.
//!
//! A *linked* pool of a leaf gets its tasks from a spine. If all its members are drained, they *linger* for a
//! time: they still receive the tasks that were in flight from the spine.

use super::affinity::UnfinishedTasks;
use super::fabric::Fabric;
use super::{Recognition, Stages};
use crate::limits::QUEUE_MAX;
use crate::policy::{Dispatcher, Overflow, PreparedPolicy};
use crate::state::Member;

/// Change to a pool's dispatcher, on a leaf, a spine or an agent.
#[derive(Debug)]
pub enum DispatcherChange {
    /// Speeds of all members, by place, relative to each other.
    Rates(Box<[f64]>),
    /// Another policy; afterwards, the old one. The estimates of the members stay.
    Policy(Box<PreparedPolicy>),
    /// Another bound of its queue, and the treatment of tasks beyond it. Waiting tasks keep waiting.
    Queue(usize, Overflow),
}

impl DispatcherChange {
    /// Applies the change to a dispatcher.
    pub fn apply(&mut self, dispatcher: &mut Dispatcher) {
        match self {
            Self::Rates(rates) => dispatcher.view_mut().set_rates(rates),
            Self::Policy(policy) => dispatcher.swap_policy(policy),
            &mut Self::Queue(bound, overflow) => dispatcher.set_queue(bound, overflow),
        }
    }
}

/// One change. Pools and members are given by index.
#[derive(Debug)]
pub enum Step {
    /// Adds a pool: at the next index, or in the place of an ended one.
    Begin {
        /// Index of the pool.
        pool: usize,
        /// Its dispatcher on this core; afterwards, the ended pool's, or `None`.
        dispatcher: Box<Option<Dispatcher>>,
        /// True if other schedulers also send tasks to its workers.
        shared_workers: bool,
        /// Queue of its unfinished tasks; afterwards `None`, or the unused queue.
        unfinished: Option<UnfinishedTasks>,
    },
    /// Changes the worker at the member's place: another one, none, or the same one on a moved server.
    Register {
        /// Index of the pool.
        pool: usize,
        /// The member.
        member: Member,
    },
    /// Allows or forbids the policy to choose the member.
    Choose {
        /// Index of the pool.
        pool: usize,
        /// The member.
        member: Member,
        /// True if it may be chosen.
        active: bool,
    },
    /// Gives the member no new tasks; the member stays. If a linked pool has no other members left, the
    /// drained ones still receive in-flight tasks from its spine.
    Drain {
        /// Index of the pool.
        pool: usize,
        /// The member.
        member: Member,
    },
    /// Removes the member with all estimates of it, and with the tasks that it still has.
    Forget {
        /// Index of the pool.
        pool: usize,
        /// The member.
        member: Member,
    },
    /// Changes the scheduling of a pool.
    Set {
        /// Index of the pool.
        pool: usize,
        /// The change; afterwards, the old policy if it changed the policy.
        change: DispatcherChange,
    },
}

/// Changes from one membership of a core to the next.
#[derive(Debug, Default)]
pub struct Update {
    /// Epoch of the new membership.
    pub epoch: u64,
    /// Network of the new membership; afterwards, the old one. `None` if it is the same.
    pub recognition: Option<Recognition>,
    /// Messages to spines, at a leaf that had none so far.
    pub fabric: Option<Box<Fabric>>,
    /// Changes, in order.
    pub steps: Vec<Step>,
    /// Pools with changed members, speeds or policy, and new pools with members. Their policies review these once.
    pub changed_pools: Vec<usize>,
}

/// Sizes of a core's memory. The node allocates its task queues for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Number of pools.
    pub pools: usize,
    /// Maximum number of tasks that wait for workers, in all pools.
    pub waiting: usize,
}

impl Stages {
    /// Returns the sizes for which there is memory. An update may change any pool's policy to one that lets tasks wait,
    /// so there is room for them even if no policy does so far.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        let bounds = |counts: &dyn Fn(&Dispatcher) -> bool| {
            self.dispatchers
                .iter()
                .filter(|dispatcher| counts(dispatcher))
                .map(|dispatcher| dispatcher.queue().0)
                .sum::<usize>()
        };
        // The bounds of all queues that may hold tasks now; at least those of all queues, up to `QUEUE_MAX`.
        let waiting = bounds(&Dispatcher::holds_tasks).max(bounds(&|_| true).min(QUEUE_MAX));
        let waiting = waiting.max(self.waiting_least);
        Capacity { pools: self.dispatchers.capacity(), waiting }
    }

    /// Sets the minimum number of waiting tasks for which there is memory, because pools may be added later.
    /// Must be called before the node is created.
    pub fn set_waiting_least(&mut self, tasks: usize) {
        self.waiting_least = tasks;
    }

    /// Reserves memory for updates: `pools` pools, `places` places for members in all of them, and `servers`
    /// servers.
    pub fn make_room(&mut self, pools: usize, places: usize, servers: usize) {
        let more = pools.saturating_sub(self.dispatchers.len());
        self.dispatchers.reserve(more);
        self.affinity.make_room(pools);
        self.liveness.make_room(pools, places, servers);
    }

    /// Applies an update, and leaves the replaced parts in it.
    pub fn update(&mut self, update: &mut Update) {
        if let Some(new) = &mut update.recognition {
            self.exchange_network(new);
        }
        if update.fabric.is_some() {
            std::mem::swap(&mut self.fabric, &mut update.fabric);
        }
        for step in &mut update.steps {
            self.step(step);
        }
        for &pool in &update.changed_pools {
            self.settle_drained(pool);
            self.dispatchers[pool].review_members();
        }
        self.freed = true; // other members or another policy may take waiting tasks
    }

    /// Swaps the network and the tables that depend on it.
    fn exchange_network(&mut self, new: &mut Recognition) {
        std::mem::swap(&mut self.network, &mut new.network);
        std::mem::swap(&mut self.fast, &mut new.fast);
        if let Some(fabric) = &mut self.fabric {
            fabric.apply_network(&self.network);
        }
    }

    /// Applies one change.
    fn step(&mut self, step: &mut Step) {
        match step {
            Step::Begin { pool, dispatcher, shared_workers, unfinished } => {
                self.begin(*pool, dispatcher, unfinished);
                self.liveness.set_shared(*pool, *shared_workers);
            }
            // The watch follows the network, which has the change already.
            &mut Step::Register { pool, member } => {
                let dispatcher = &mut self.dispatchers[pool];
                self.liveness.watch_worker(pool, member, &self.network, dispatcher);
            }
            &mut Step::Choose { pool, member, active } => {
                let active = self.liveness.note_drained(pool, member, !active);
                self.dispatchers[pool].view_mut().set_active(member, active);
            }
            &mut Step::Drain { pool, member } => {
                let active = self.liveness.note_drained(pool, member, true);
                if !self.is_linked(pool) {
                    self.dispatchers[pool].view_mut().set_active(member, active);
                }
            }
            &mut Step::Forget { pool, member } => {
                self.affinity.forget_member(pool, member);
                if let Some(fabric) = &mut self.fabric {
                    fabric.forget(pool, member);
                }
                if let Some(Some(numbers)) = self.report_numbers.get_mut(pool) {
                    numbers.forget(member);
                }
                self.dispatchers[pool].view_mut().forget(member);
            }
            Step::Set { pool, change } => change.apply(&mut self.dispatchers[*pool]),
        }
    }

    /// Takes the drained members of a linked pool out of the choice. Without other members, the drained ones
    /// stay while tasks may be in flight to them.
    fn settle_drained(&mut self, pool: usize) {
        let Some(fabric) = self.fabric.as_mut().filter(|fabric| fabric.is_linked(pool)) else {
            return;
        };
        let mut active = self.dispatchers[pool].view().active().iter();
        // The pool has active members, and all of them are drained.
        let lingers =
            active.len() > 0 && !active.any(|&member| self.liveness.may_be_chosen(pool, member));
        fabric.linger(pool, lingers);
        if !lingers {
            self.take_out_drained(pool);
        }
    }

    /// Takes the drained members of a pool out of the choice.
    fn take_out_drained(&mut self, pool: usize) {
        let dispatcher = &mut self.dispatchers[pool];
        // Backwards, because each removal changes the list behind its place.
        for place in (0..dispatcher.view().active().len()).rev() {
            let member = dispatcher.view().active()[place];
            if !self.liveness.may_be_chosen(pool, member) {
                dispatcher.set_active(member, false);
            }
        }
    }

    /// Takes drained members of linked pools out of the choice, once the time for in-flight tasks to them is
    /// over and no task of the pool waits.
    #[cold]
    pub(super) fn end_lingering(&mut self) {
        for pool in 0..self.dispatchers.len() {
            let has_waiting = self.dispatchers[pool].waiting() > 0;
            if let Some(fabric) = self.fabric.as_mut().filter(|fabric| fabric.has_lingered(pool))
                && !has_waiting
            {
                fabric.linger(pool, false);
                self.take_out_drained(pool);
            }
        }
    }

    /// Adds a pool, or puts it in the place of an ended one and leaves that one's dispatcher in `place`. The place's
    /// queue of unfinished tasks stays: the tasks of the ended pool are no longer in the affinity table.
    fn begin(
        &mut self,
        pool: usize,
        place: &mut Option<Dispatcher>,
        unfinished: &mut Option<UnfinishedTasks>,
    ) {
        if let (Some(ended), Some(new)) = (self.dispatchers.get_mut(pool), place.as_mut()) {
            std::mem::swap(ended, new);
        } else if let (Some(mut new), Some(unfinished)) = (place.take(), unfinished.take()) {
            self.liveness.add_pool(&self.network, &mut new);
            self.dispatchers.push(new);
            self.affinity.add_pool(unfinished);
        }
    }
}
