//! Differences between two memberships, common to all kinds of nodes. Each kind (leaf or spine, agent) derives its
//! cores' updates from them. A membership is the set of a node's pools, servers and workers; a member is a worker by
//! its index in a pool, its place.

use wedjat_core::policy::{Core, PreparedPolicy};
use wedjat_core::stage::DispatcherChange;
use wedjat_core::state::Member;

use super::membership::{Membership, Pool, Server, Worker};
use crate::state::QueueLimit;

/// One difference, with pools and members by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A pool begins, without members; its members join it.
    Begin,
    /// The pool accepts no new tasks.
    Close,
    /// The pool has ended.
    End,
    /// The member is a new worker. It may already be drained or leaving: no other difference says so.
    Join(Member),
    /// The member's server has changed: for instance its address, or it is leaving now.
    Move(Member),
    /// The member leaves: it may not be chosen.
    Leave(Member),
    /// The member is drained: it may not be chosen. A core may delay this if all members are drained.
    Drain(Member),
    /// The member may be chosen again.
    Undrain(Member),
    /// The member has left: its place is empty.
    Forget(Member),
    /// A member changed, and the pool's speeds are unequal before or after. The dispatcher gets all speeds again.
    Rates,
    /// The policy changed.
    Policy,
    /// The queue's limit changed.
    Queue,
}

impl Difference {
    /// Creates the change of the pool's dispatcher (speeds, policy or queue) on this core; `None` for other
    /// differences. `members` is the number of members for which the dispatcher has room.
    pub(super) fn change(self, to: &Pool, members: usize, core: Core) -> Option<DispatcherChange> {
        Some(match self {
            Self::Rates => DispatcherChange::Rates(to.rates(members)),
            Self::Policy => DispatcherChange::Policy(Box::new(PreparedPolicy::new(
                &to.settings.policy,
                members,
                core,
            ))),
            Self::Queue => {
                let QueueLimit { tasks, overflow } = to.settings.queue;
                DispatcherChange::Queue(tasks, overflow)
            }
            _ => return None,
        })
    }
}

/// Two memberships to compare.
#[derive(Clone, Copy, Debug)]
pub struct Differences<'a> {
    /// Current membership.
    pub from: &'a Membership,
    /// Next membership.
    pub to: &'a Membership,
}

impl Differences<'_> {
    /// Returns all differences in order, with the index of their pool.
    pub fn all(&self) -> Vec<(usize, Difference)> {
        (0..self.to.pools.len())
            .flat_map(|pool| self.of_pool(pool).into_iter().map(move |one| (pool, one)))
            .collect()
    }

    /// Returns the indices of pools with a changed policy, members or speeds, and of new pools with members. Their
    /// policies recompute derived state once, after all other steps of the update. A new pool's policy does so at its
    /// creation, too, but later steps may forbid the choice of members.
    pub fn changed_pools(&self) -> Vec<usize> {
        let has_changed = |&pool: &usize| {
            let from = self.from.pools.get(pool).and_then(Option::as_ref);
            match (from, &self.to.pools[pool]) {
                (Some(from), Some(to)) => {
                    from.settings.policy != to.settings.policy || from.members != to.members
                }
                (None, Some(to)) => !to.members.is_empty(),
                (_, None) => false,
            }
        };
        (0..self.to.pools.len()).filter(has_changed).collect()
    }

    /// Returns the differences of the pool at this index.
    fn of_pool(&self, pool: usize) -> Vec<Difference> {
        let from = self.from.pools.get(pool).and_then(Option::as_ref);
        let mut differences = Vec::new();
        match (from, &self.to.pools[pool]) {
            (None, Some(to)) => {
                differences.push(Difference::Begin);
                self.members(&mut differences, &[], &to.members);
                if to.has_speeds() {
                    differences.push(Difference::Rates);
                }
            }
            (Some(from), None) => {
                self.members(&mut differences, &from.members, &[]);
                differences.push(Difference::End);
            }
            (Some(from), Some(to)) => self.change(&mut differences, from, to),
            (None, None) => {}
        }
        differences
    }

    /// Adds the differences of a pool in both memberships.
    fn change(&self, differences: &mut Vec<Difference>, from: &Pool, to: &Pool) {
        if to.is_leaving && !from.is_leaving {
            differences.push(Difference::Close);
        }
        self.members(differences, &from.members, &to.members);
        // Speeds are given by place for all members at once.
        if from.members != to.members && (from.has_speeds() || to.has_speeds()) {
            differences.push(Difference::Rates);
        }
        let (from, to) = (&from.settings, &to.settings);
        if from.policy != to.policy {
            differences.push(Difference::Policy);
        }
        if from.queue != to.queue {
            differences.push(Difference::Queue);
        }
    }

    /// Adds the differences of a pool's members, place by place. No place passes directly from one worker to another.
    fn members(
        &self,
        differences: &mut Vec<Difference>,
        from: &[Option<Worker>],
        to: &[Option<Worker>],
    ) {
        for place in 0..from.len().max(to.len()) {
            let member = Member(place as u16);
            let member_at = |members: &[Option<Worker>]| members.get(place).copied().flatten();
            match (member_at(from), member_at(to)) {
                (None, Some(_)) => differences.push(Difference::Join(member)),
                (Some(_), None) => differences.push(Difference::Forget(member)),
                (Some(from), Some(to)) => {
                    if server(self.from, from) != server(self.to, to) {
                        differences.push(Difference::Move(member));
                    }
                    if to.is_leaving && !from.is_leaving {
                        differences.push(Difference::Leave(member));
                    } else if to.is_drained != from.is_drained {
                        let [drain, undrain] = [Difference::Drain, Difference::Undrain];
                        differences.push(if to.is_drained { drain } else { undrain }(member));
                    }
                }
                (None, None) => {}
            }
        }
    }
}

/// Returns the server of a worker in its membership; `None` if the server's place is empty.
fn server(membership: &Membership, worker: Worker) -> Option<Server> {
    membership.servers.get(usize::from(worker.server)).copied().flatten()
}
