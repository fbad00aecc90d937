//! What changes while a core runs: members, pools, policies, speeds and bounds, and the network that follows from them.
//!
//! An [`Update`] is made by a control thread with all the memory that it needs; a core takes it between two bursts, in time that
//! grows with what changes, and leaves in it what it replaced, so that memory is freed where it was taken.

use super::affinity::PoolQueue;
use super::fabric::Fabric;
use super::{Recognition, Stages};
use crate::limits::QUEUE_MAX;
use crate::policy::{Dispatcher, Overflow, Prepared};
use crate::state::Member;

/// A pool that a core has not had so far.
#[derive(Debug)]
pub struct NewPool {
    /// Its scheduler on this core.
    pub dispatcher: Dispatcher,
    /// Other schedulers send to its workers, too.
    pub shared_workers: bool,
    /// Where its unfinished tasks are kept.
    pub unfinished: PoolQueue,
}

/// What changes of a pool's scheduler, for every kind of node.
#[derive(Debug)]
pub enum Setting {
    /// Speeds of all members, by place, relative to each other.
    Rates(Box<[f64]>),
    /// Another policy, the old one afterwards; what is known of the members stays.
    Policy(Box<Prepared>),
    /// Another bound of its queue, and what becomes of tasks beyond; what waits does so on.
    Queue(usize, Overflow),
}

impl Setting {
    /// Changes it so.
    pub fn apply(&mut self, dispatcher: &mut Dispatcher) {
        match self {
            Self::Rates(rates) => dispatcher.view_mut().set_rates(rates),
            Self::Policy(policy) => dispatcher.exchange(policy),
            &mut Self::Queue(bound, overflow) => dispatcher.set_queue(bound, overflow),
        }
    }
}

/// One thing that changes; pools and members by index.
#[derive(Debug)]
pub enum Step {
    /// A pool begins: the next one by index, or where another has ended.
    Begin {
        /// The pool; the ended one's parts afterwards.
        new: Box<Option<NewPool>>,
        /// Its index.
        pool: usize,
    },
    /// Another worker has the member's place, or none, or its server is elsewhere now.
    Meet {
        /// The pool.
        pool: usize,
        /// The member.
        member: Member,
    },
    /// The member may be chosen, or no longer.
    Choose {
        /// The pool.
        pool: usize,
        /// The member.
        member: Member,
        /// It may be.
        active: bool,
    },
    /// The member is to get no new tasks, and stays; one that is left in a linked pool gets those that are under way from its spine.
    Drain {
        /// The pool.
        pool: usize,
        /// The member.
        member: Member,
    },
    /// The member is gone: what is known of it is forgotten, and so are tasks that it still has.
    Forget {
        /// The pool.
        pool: usize,
        /// The member.
        member: Member,
    },
    /// A pool is scheduled in another way.
    Set {
        /// The pool.
        pool: usize,
        /// What is other; the old policy afterwards.
        setting: Setting,
    },
}

/// What leads a core from one membership to the next.
#[derive(Debug, Default)]
pub struct Update {
    /// Number of that membership.
    pub epoch: u64,
    /// Its network; the old one afterwards. None when it is the same.
    pub recognition: Option<Recognition>,
    /// What spines are told, at a leaf that has had none so far.
    pub fabric: Option<Box<Fabric>>,
    /// What changes, in order.
    pub steps: Vec<Step>,
    /// Pools whose members, their speeds or their policy change: policies look at these anew, once.
    pub touched: Vec<usize>,
}

/// For how much a core's stages and what stands around them have memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Pools.
    pub pools: usize,
    /// Tasks that wait for workers, of all pools.
    pub waiting: usize,
}

impl Stages {
    /// For how much there is memory. Tasks of any pool may wait once its policy lets them, so there is room for them if no
    /// policy does so far.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        let bounds = |of: &dyn Fn(&Dispatcher) -> bool| {
            self.dispatchers.iter().filter(|one| of(one)).map(|one| one.queue().0).sum::<usize>()
        };
        let waiting = bounds(&Dispatcher::holds).max(bounds(&|_| true).min(QUEUE_MAX));
        let waiting = waiting.max(self.waiting_least);
        Capacity { pools: self.dispatchers.capacity(), waiting }
    }

    /// There is to be memory for so many tasks that wait, since pools are to come. For before the node is made.
    pub fn set_waiting_least(&mut self, tasks: usize) {
        self.waiting_least = tasks;
    }

    /// Takes memory for what updates may bring: so many pools, places for members in all of them, and servers.
    pub fn make_room(&mut self, pools: usize, places: usize, servers: usize) {
        let more = pools.saturating_sub(self.dispatchers.len());
        self.dispatchers.reserve(more);
        self.affinity.make_room(pools);
        self.liveness.make_room(pools, places, servers);
    }

    /// Takes an update, and leaves in it what it replaces.
    pub fn update(&mut self, update: &mut Update) {
        if let Some(new) = &mut update.recognition {
            self.recognise(new);
        }
        if update.fabric.is_some() {
            std::mem::swap(&mut self.fabric, &mut update.fabric);
        }
        for step in &mut update.steps {
            self.step(step);
        }
        for &pool in &update.touched {
            self.settle_drained(pool);
            self.dispatchers[pool].review_members();
        }
        self.freed = true;
    }

    fn recognise(&mut self, new: &mut Recognition) {
        std::mem::swap(&mut self.network, &mut new.network);
        std::mem::swap(&mut self.templates, &mut new.templates);
        std::mem::swap(&mut self.unreachable, &mut new.unreachable);
        if let Some(fabric) = &mut self.fabric {
            fabric.follow(&self.network);
        }
    }

    fn step(&mut self, step: &mut Step) {
        match step {
            Step::Begin { new, pool } => self.begin(*pool, new),
            &mut Step::Meet { pool, member } => {
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
                self.dispatchers[pool].view_mut().forget(member);
            }
            Step::Set { pool, setting } => setting.apply(&mut self.dispatchers[*pool]),
        }
    }

    /// Drained members of a linked pool are not chosen any more, unless nobody else is there: then they go on for as long as tasks
    /// may be under way to them.
    fn settle_drained(&mut self, pool: usize) {
        let Some(fabric) = self.fabric.as_mut().filter(|fabric| fabric.is_linked(pool)) else {
            return;
        };
        let mut active = self.dispatchers[pool].view().active().iter();
        let lingers =
            active.len() > 0 && !active.any(|&member| self.liveness.may_be_chosen(pool, member));
        fabric.linger(pool, lingers);
        if !lingers {
            self.take_out_drained(pool);
        }
    }

    fn take_out_drained(&mut self, pool: usize) {
        let dispatcher = &mut self.dispatchers[pool];
        for place in (0..dispatcher.view().active().len()).rev() {
            let member = dispatcher.view().active()[place];
            if !self.liveness.may_be_chosen(pool, member) {
                dispatcher.set_active(member, false);
            }
        }
    }

    /// Drained members of linked pools, to whom tasks may have been under way, are chosen no more once that is over.
    #[cold]
    pub(super) fn end_lingering(&mut self) {
        for pool in 0..self.dispatchers.len() {
            let waits = self.dispatchers[pool].waiting() > 0;
            if let Some(fabric) = self.fabric.as_mut().filter(|fabric| fabric.has_lingered(pool))
                && !waits
            {
                fabric.linger(pool, false);
                self.take_out_drained(pool);
            }
        }
    }

    fn begin(&mut self, pool: usize, place: &mut Option<NewPool>) {
        let Some(mut new) = place.take() else { return };
        if pool < self.dispatchers.len() {
            std::mem::swap(&mut self.dispatchers[pool], &mut new.dispatcher);
            self.liveness.set_shared(pool, new.shared_workers);
            *place = Some(new);
            return;
        }
        self.liveness.add_pool(&self.network, &mut new.dispatcher);
        self.liveness.set_shared(pool, new.shared_workers);
        self.dispatchers.push(new.dispatcher);
        self.affinity.add_pool(new.unfinished);
    }
}
