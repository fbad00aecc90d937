//! Control of a leaf with an agent on its core: updates of the leaf, and with it of the agent. Both run
//! in one process, and the agent's workers are on the same host.
//!
//! The leaf's membership includes the agent's workers, at an address of their own. The agent adds a worker
//! first; the leaf sends it tasks once it is attached. The leaf removes a worker first; the agent follows once no
//! task for it can arrive. Drains work the same way. The agent gives any task sent to its workers to any of them, and
//! continues with a drained one while such tasks exist and no other worker can serve them.
//!
//! Leaf and agent each have a membership of their own, with its own epoch, the number of the change.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use wedjat_core::io::{Buf, Token};
use wedjat_core::stage::Network;
use wedjat_core::state::{Member, Table};

use super::agent::AgentCores;
use super::change::refused;
use super::difference::Differences;
use super::leaf::LeafCores;
use super::membership::{Membership, Pool, Worker};
use super::{Change, ChangeError, Control, Cores, LEAVING_NS, LocalWorker, SettledState};
use crate::config::UNSPECIFIED;
use crate::state::AutoRefusal;

/// Cores of a leaf, with an optional agent on the first one.
#[derive(Debug)]
pub struct ColocatedCores<B: Buf + Token> {
    leaf: LeafCores,
    agent: Option<Control<AgentCores<B>>>,
    /// First epoch of the leaf that waits for the agent, and the epoch that the agent must reach. Until then only
    /// earlier epochs of the leaf count as reached.
    awaited_epochs: (u64, u64),
}

impl<B: Buf + Token> ColocatedCores<B> {
    /// Creates the cores of a leaf that start with the same workers as its agent.
    #[must_use]
    pub fn new(leaf: LeafCores, agent: Option<Control<AgentCores<B>>>) -> Self {
        Self { leaf, agent, awaited_epochs: (0, 0) }
    }

    /// Returns true if the agent has reached its awaited epoch.
    fn agent_is_ready(&self) -> bool {
        let (_, agent_epoch) = self.awaited_epochs;
        self.agent.as_ref().is_none_or(|agent| agent.acknowledged() >= agent_epoch)
    }
}

impl<B: Buf + Token> Cores for ColocatedCores<B> {
    /// Network of the leaf's next membership.
    type PreparedChange = Arc<Network>;

    /// Log text for a change that all cores use.
    const DECIDE: &'static str = LeafCores::DECIDE;
    // A leaf as a process captures its packets, so it can choose policies.
    const AUTO_REFUSAL: Option<AutoRefusal> = None;

    /// Checks a change of the leaf. Accepts workers without a server for the agent; a leaf alone refuses them.
    fn check(&self, change: &Change) -> Result<(), ChangeError> {
        match change {
            Change::AddWorkers { server: None, .. } if self.agent.is_some() => Ok(()),
            _ => self.leaf.check(change),
        }
    }

    /// Checks the agent's own changes, together with those that follow from the leaf's next membership.
    fn check_agent(&self, of_agent: &[Change], next: &Membership) -> Result<(), ChangeError> {
        let Some(agent) = &self.agent else { return self.leaf.check_agent(of_agent, next) };
        of_agent.iter().try_for_each(|change| check_of_agent(agent, change, next))?;
        agent.after(&changes_before_leaf(agent, next, of_agent)?).map(|_| ())
    }

    /// Returns the address that stands for the agent's host in the leaf's membership.
    fn own_host(&self) -> IpAddr {
        let agent = self.agent.as_ref().map(|agent| agent.membership());
        let host = agent.and_then(|agent| agent.servers.first().copied().flatten());
        host.map_or(UNSPECIFIED, |host| host.ip)
    }

    fn is_spine(&self) -> bool {
        self.leaf.is_spine()
    }

    /// Returns true if the leaf's spine at this place is silent.
    fn is_spine_silent(&self, place: usize) -> bool {
        self.leaf.is_spine_silent(place)
    }

    /// Returns the maximum number of workers, the agent's included.
    fn workers_max(&self) -> usize {
        self.leaf.workers_max()
    }

    /// Returns the epoch that leaf and agent have reached; `None` without cores.
    fn epoch(&self) -> Option<u64> {
        // Until the agent is ready, only epochs before the awaited one count.
        let (leaf_epoch, _) = self.awaited_epochs;
        self.leaf
            .epoch()
            .map(|epoch| if self.agent_is_ready() { epoch } else { epoch.min(leaf_epoch - 1) })
    }

    /// Returns true if leaf and agent have room for another update.
    fn has_room(&self) -> bool {
        self.leaf.has_room() && self.agent.as_ref().is_none_or(|agent| agent.cores.has_room())
    }

    /// Frees the objects that leaf and agent have replaced.
    fn free_replaced(&mut self) {
        self.leaf.free_replaced();
        self.agent.iter_mut().for_each(|agent| agent.cores.free_replaced());
    }

    /// Prepares the leaf's change, and applies the changes that the agent makes before it.
    fn prepare(
        &mut self,
        table: &Table,
        next: &Membership,
        of_agent: &[Change],
    ) -> Result<Self::PreparedChange, ChangeError> {
        let network = self.leaf.prepare(table, next, &[])?;
        // Last, because the agent's changes cannot be undone.
        if let Some(agent) = &mut self.agent {
            agent.apply_all(&changes_before_leaf(agent, next, of_agent)?)?;
        }
        Ok(network)
    }

    /// Sends the leaf's cores their updates, and notes the epochs to wait for.
    fn issue(
        &mut self,
        table: &Table,
        differences: &Differences<'_>,
        network: Arc<Network>,
    ) -> Result<(), ChangeError> {
        if let Some(agent) = &self.agent {
            let epoch = agent.membership().epoch;
            // While the agent lags, the leaf's earlier epoch stays the awaited one.
            let leaf_epoch =
                if self.agent_is_ready() { differences.to.epoch } else { self.awaited_epochs.0 };
            self.awaited_epochs = (leaf_epoch, epoch);
        }
        self.leaf.issue(table, differences, network)
    }

    /// Does the leaf's periodic work, makes the agent follow the leaf, and frees the agent's departed members.
    fn collect(&mut self, now: &SettledState<'_>) {
        self.leaf.collect(now);
        if let Some(agent) = &mut self.agent {
            // Tried again at the next call if a core is busy.
            let _ = follow(agent, now);
            agent.tend(now.now_ns);
        }
    }

    /// Returns true if the agent has applied all changes and nothing of it is leaving.
    fn is_settled(&self) -> bool {
        self.agent.as_ref().is_none_or(Control::is_settled)
    }

    /// Returns the agent's latest membership; `None` without an agent.
    fn of_agent(&self) -> Option<&Membership> {
        self.agent.as_ref().map(Control::membership)
    }

    /// Returns the agent's workers, by id.
    fn local_workers(&self) -> BTreeMap<u16, LocalWorker> {
        let agent = self.agent.iter();
        agent
            .flat_map(|agent| members(agent.membership()).map(|one| local_worker(agent, one)))
            .collect()
    }

    /// Returns `u64::MAX` until the worker begins to leave the agent, then 0. The agent must not send messages for a
    /// worker that the leaf has forgotten.
    fn linger_ns(&self, worker: u16) -> u64 {
        let workers = self.agent.iter().flat_map(|agent| agent.membership().workers());
        // The braces move the iterator, which `any` needs to modify.
        let stays = { workers }.any(|(_, one)| one.id == worker && !one.is_leaving);
        if stays { u64::MAX } else { 0 }
    }
}

/// Returns true if the agent's pool with this id has workers.
fn has_workers(membership: &Membership, pool: u16) -> bool {
    membership.pool(pool).is_some_and(|(_, pool)| pool.members.iter().any(Option::is_some))
}

/// A worker with its pool, the pool's index, and its place in the pool.
type MemberPlace<'a> = (&'a Pool, usize, Member, &'a Worker);

/// Iterates over all workers of a membership.
fn members(membership: &Membership) -> impl Iterator<Item = MemberPlace<'_>> {
    let pools =
        membership.pools.iter().enumerate().filter_map(|(at, pool)| Some((at, pool.as_ref()?)));
    pools.flat_map(|(at, pool)| {
        let members = pool.members.iter().enumerate();
        members.filter_map(move |(place, worker)| {
            Some((pool, at, Member(place as u16), worker.as_ref()?))
        })
    })
}

/// Iterates over the agent's workers in the leaf's membership.
fn local_members(membership: &Membership) -> impl Iterator<Item = MemberPlace<'_>> {
    members(membership).filter(|(_, _, _, worker)| membership.is_local(worker))
}

/// Returns the id and the state of a worker of the agent. It counts as drained once the agent's core drains it.
fn local_worker<B: Buf + Token>(
    agent: &Control<AgentCores<B>>,
    (_, pool, member, worker): MemberPlace<'_>,
) -> (u16, LocalWorker) {
    let held = agent.table.outstanding(pool, member).max(0).cast_unsigned();
    let is_current = agent.acknowledged() == agent.membership().epoch;
    (worker.id, LocalWorker { held, is_drained: worker.is_drained && is_current })
}

/// Returns the worker with this id in the agent's membership; `None` if there is none.
fn worker_at_agent<B: Buf + Token>(agent: &Control<AgentCores<B>>, id: u16) -> Option<Worker> {
    let mut workers = agent.membership().workers().map(|(_, worker)| *worker);
    workers.find(|worker| worker.id == id)
}

/// Checks a change of the agent, together with the leaf's next membership. Only the agent's pools change without
/// the leaf.
fn check_of_agent<B: Buf + Token>(
    agent: &Control<AgentCores<B>>,
    change: &Change,
    next: &Membership,
) -> Result<(), ChangeError> {
    match *change {
        Change::AddPool { id, .. } if next.pool(id).is_none_or(|(_, pool)| pool.is_leaving) => {
            refused(format!("agent: pool {id}"), "add it to the leaf first, without `agent`")
        }
        Change::AddPool { key_file: Some(_), .. } => {
            refused("key-file", "messages inside a process need no proof; leave it out here")
        }
        Change::RemovePool { id } if has_workers(agent.membership(), id) => {
            refused(format!("agent: pool {id}"), "it has workers; remove them first")
        }
        Change::AddPool { .. }
        | Change::RemovePool { .. }
        | Change::SetPolicy { .. }
        | Change::SetQueue { .. } => Ok(()),
        _ => {
            let reason = "workers and speeds of both change together; leave `agent` out";
            refused("agent", format!("{reason}, and `server` for workers of this host"))
        }
    }
}

/// Returns the changes that the agent makes before the leaf: its own, and workers that the leaf will add or
/// undrain, with their speeds.
fn changes_before_leaf<B: Buf + Token>(
    agent: &Control<AgentCores<B>>,
    next: &Membership,
    of_agent: &[Change],
) -> Result<Vec<Change>, ChangeError> {
    let mut changes = of_agent.to_vec();
    let is_added = |pool| of_agent.iter().any(|change| adds_pool(change, pool));
    for (pool, _, _, worker) in local_members(next).filter(|(_, _, _, worker)| !worker.is_leaving) {
        let (pool, workers, speed) = (pool.id, vec![worker.id], worker.speed);
        match worker_at_agent(agent, worker.id).filter(|at_agent| !at_agent.is_leaving) {
            Some(at_agent) => {
                if at_agent.is_drained && !worker.is_drained {
                    changes.push(Change::Undrain { workers: workers.clone() });
                }
                if at_agent.speed != speed {
                    changes.push(Change::SetSpeed { pool: None, workers, speed });
                }
            }
            None if agent.membership().pool(pool).is_none() && !is_added(pool) => {
                let add = format!("does not exist; `agent add-pool id={pool} policy=…` adds it");
                return refused(format!("agent: pool {pool}"), add);
            }
            None => changes.push(Change::AddWorkers { server: None, pool, workers, speed }),
        }
    }
    Ok(changes)
}

/// Returns true if a change adds this pool.
fn adds_pool(change: &Change, pool: u16) -> bool {
    matches!(change, Change::AddPool { id, .. } if *id == pool)
}

/// Returns a drain and an undrain for the agent, each perhaps without workers. The agent drains workers that the leaf
/// has drained, except while no other worker of the pool can serve the remaining tasks.
fn to_drain<B: Buf + Token>(agent: &Control<AgentCores<B>>, now: &SettledState<'_>) -> [Change; 2] {
    let can_serve = |worker: &Worker| worker.is_active() && agent.cores.is_attached(worker.id);
    // Workers to drain, and to undrain.
    let mut workers = [Vec::new(), Vec::new()];
    for (pool, index, _, worker) in
        local_members(now.membership).filter(|(_, _, _, one)| one.is_drained)
    {
        let of_pool = || local_members(now.membership).filter(|(other, ..)| other.id == pool.id);
        let is_served = of_pool().any(|(_, _, _, worker)| can_serve(worker));
        let has_tasks = of_pool().any(|(_, _, member, _)| now.table.outstanding(index, member) > 0);
        let should_drain = is_served || !has_tasks;
        let at_agent = worker_at_agent(agent, worker.id).filter(|one| !one.is_leaving);
        if at_agent.is_some_and(|one| one.is_drained != should_drain) {
            // Index 0 drains, index 1 undrains.
            workers[usize::from(!should_drain)].push(worker.id);
        }
    }
    let [drain, undrain] = workers;
    [Change::Drain { workers: drain }, Change::Undrain { workers: undrain }]
}

/// Removes workers and pools at the agent that the leaf no longer uses, once all their tasks are answered or
/// lost. Drains and undrains workers as [`to_drain`] says.
fn follow<B: Buf + Token>(
    agent: &mut Control<AgentCores<B>>,
    now: &SettledState<'_>,
) -> Result<(), ChangeError> {
    let is_needed = |id| {
        // Half the time limit: the agent must remove the worker before the leaf forgets it.
        let is_lost = now.leaving_ns(id) > LEAVING_NS / 2;
        let has_tasks = |pool, member| !is_lost && now.table.outstanding(pool, member) > 0;
        let mut members = local_members(now.membership).filter(|(_, _, _, worker)| worker.id == id);
        members.any(|(_, pool, member, worker)| !worker.is_leaving || has_tasks(pool, member))
    };
    let workers = agent.membership().workers().map(|(_, worker)| worker);
    let departing = workers.filter(|worker| !worker.is_leaving && !is_needed(worker.id));
    let workers: Vec<_> = departing.map(|worker| worker.id).collect();
    if !workers.is_empty() {
        agent.apply(&Change::RemoveWorkers { pool: None, workers })?;
    }
    for change in to_drain(agent, now) {
        if let Change::Drain { workers } | Change::Undrain { workers } = &change
            && !workers.is_empty()
        {
            agent.apply(&change)?;
        }
    }
    let pools = agent.membership().pools.iter().flatten().filter(|pool| !pool.is_leaving);
    let removed_pools: Vec<_> =
        pools.map(|pool| pool.id).filter(|&id| now.membership.pool(id).is_none()).collect();
    for id in removed_pools {
        agent.apply(&Change::RemovePool { id })?;
    }
    Ok(())
}
