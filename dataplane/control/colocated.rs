//! Control of a leaf with an agent on its core: updates of the leaf, and with it of the agent.
//!
//! The leaf's membership includes the agent's workers, at an address of their own. The agent adds a worker
//! before the leaf sends tasks to it. The leaf removes a worker first; the agent follows once no task for it
//! can arrive. Drains work the same way. The agent gives any task sent to its workers to any of them, and
//! continues with a drained one while such tasks exist and no other worker can serve them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::agent::AgentCores;
use super::change::refused;
use super::difference::Differences;
use super::leaf::LeafCores;
use super::membership::{Membership, Pool, Worker};
use super::{Change, ChangeError, Control, Cores, LEAVING_NS, LocalWorker, Moment};
use crate::io::{Buf, Token};
use crate::role::colocated::AGENT_IP;
use crate::stage::Network;
use crate::state::{Member, Table};

/// Cores of a leaf, with an optional agent on the first one.
#[derive(Debug)]
pub struct ColocatedCores<B: Buf + Token> {
    leaf: LeafCores,
    agent: Option<Control<AgentCores<B>>>,
    /// Epoch of the leaf that is reached only with this epoch of the agent.
    awaited: (u64, u64),
}

impl<B: Buf + Token> ColocatedCores<B> {
    /// Creates the cores of a leaf that start with the same workers as its agent.
    #[must_use]
    pub fn new(leaf: LeafCores, agent: Option<Control<AgentCores<B>>>) -> Self {
        Self { leaf, agent, awaited: (0, 0) }
    }

    fn has_agents(&self) -> bool {
        let (_, agents) = self.awaited;
        self.agent.as_ref().is_none_or(|agent| agent.acknowledged() >= agents)
    }
}

impl<B: Buf + Token> Cores for ColocatedCores<B> {
    type PreparedChange = Arc<Network>;

    const DECIDE: &'static str = LeafCores::DECIDE;

    fn check(&self, change: &Change) -> Result<(), ChangeError> {
        match change {
            Change::AddWorkers { server: None, .. } if self.agent.is_some() => Ok(()),
            _ => self.leaf.check(change),
        }
    }

    fn check_agent(&self, of_agent: &[Change], next: &Membership) -> Result<(), ChangeError> {
        let Some(agent) = &self.agent else { return self.leaf.check_agent(of_agent, next) };
        of_agent.iter().try_for_each(|change| check_of_agent(agent, change, next))?;
        agent.after(&ahead(agent, next, of_agent)?).map(|_| ())
    }

    fn own_host(&self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(AGENT_IP))
    }

    fn is_spine(&self) -> bool {
        self.leaf.is_spine()
    }

    fn is_spine_silent(&self, place: usize) -> bool {
        self.leaf.is_spine_silent(place)
    }

    fn workers_max(&self) -> usize {
        self.leaf.workers_max()
    }

    fn epoch(&self) -> Option<u64> {
        let (leafs, _) = self.awaited;
        self.leaf.epoch().map(|epoch| if self.has_agents() { epoch } else { epoch.min(leafs - 1) })
    }

    fn has_room(&self) -> bool {
        self.leaf.has_room() && self.agent.as_ref().is_none_or(|agent| agent.cores.has_room())
    }

    fn free_replaced(&mut self) {
        self.leaf.free_replaced();
        self.agent.iter_mut().for_each(|agent| agent.cores.free_replaced());
    }

    fn prepare(
        &mut self,
        table: &Table,
        next: &Membership,
        of_agent: &[Change],
    ) -> Result<Self::PreparedChange, ChangeError> {
        let network = self.leaf.prepare(table, next, &[])?;
        if let Some(agent) = &mut self.agent {
            agent.apply_all(&ahead(agent, next, of_agent)?)?;
        }
        Ok(network)
    }

    fn issue(
        &mut self,
        table: &Table,
        differences: &Differences<'_>,
        network: Arc<Network>,
    ) -> Result<(), ChangeError> {
        if let Some(agent) = &self.agent {
            let epoch = agent.membership().epoch;
            // The earlier pair of epochs remains awaited.
            let leafs = if self.has_agents() { differences.to.epoch } else { self.awaited.0 };
            self.awaited = (leafs, epoch);
        }
        self.leaf.issue(table, differences, network)
    }

    fn collect(&mut self, now: &Moment<'_>) {
        self.leaf.collect(now);
        if let Some(agent) = &mut self.agent {
            // Tried again at the next call if a core is busy.
            let _ = follow(agent, now);
            agent.tend(now.now_ns);
        }
    }

    fn is_settled(&self) -> bool {
        self.agent.as_ref().is_none_or(Control::is_settled)
    }

    fn of_agent(&self) -> Option<&Membership> {
        self.agent.as_ref().map(Control::membership)
    }

    fn local_workers(&self) -> BTreeMap<u16, LocalWorker> {
        let agent = self.agent.iter();
        agent
            .flat_map(|agent| members(agent.membership()).map(|one| local_worker(agent, one)))
            .collect()
    }

    /// The agent must not send messages for a worker that the leaf has forgotten.
    fn linger_ns(&self, worker: u16) -> u64 {
        let agents = self.agent.iter().flat_map(|agent| agent.membership().workers());
        let stays = { agents }.any(|(_, there)| there.id == worker && !there.is_leaving);
        if stays { u64::MAX } else { 0 }
    }
}

fn has_workers(agents: &Membership, pool: u16) -> bool {
    agents.pool(pool).is_some_and(|(_, pool)| pool.members.iter().any(Option::is_some))
}

/// A worker with its pool and its place.
type MemberPlace<'a> = (&'a Pool, usize, Member, &'a Worker);

/// Iterates over all workers of a membership.
fn members(of: &Membership) -> impl Iterator<Item = MemberPlace<'_>> {
    let pools = of.pools.iter().enumerate().filter_map(|(at, pool)| Some((at, pool.as_ref()?)));
    pools.flat_map(|(at, pool)| {
        let members = pool.members.iter().enumerate();
        members.filter_map(move |(place, worker)| {
            Some((pool, at, Member(place as u16), worker.as_ref()?))
        })
    })
}

/// Iterates over the agent's workers in the leaf's membership.
fn locals(of: &Membership) -> impl Iterator<Item = MemberPlace<'_>> {
    members(of).filter(|(_, _, _, worker)| of.is_local(worker))
}

/// Returns a worker of the agent.
fn local_worker<B: Buf + Token>(
    agent: &Control<AgentCores<B>>,
    (_, pool, member, worker): MemberPlace<'_>,
) -> (u16, LocalWorker) {
    let held = agent.table.outstanding(pool, member).max(0).cast_unsigned();
    let has_heard = agent.acknowledged() == agent.membership().epoch;
    (worker.id, LocalWorker { held, is_drained: worker.is_drained && has_heard })
}

fn at_agent<B: Buf + Token>(agent: &Control<AgentCores<B>>, id: u16) -> Option<Worker> {
    let mut workers = agent.membership().workers().map(|(_, worker)| *worker);
    workers.find(|worker| worker.id == id)
}

/// Checks a change of the agent, together with the leaf's next membership.
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
fn ahead<B: Buf + Token>(
    agent: &Control<AgentCores<B>>,
    next: &Membership,
    of_agent: &[Change],
) -> Result<Vec<Change>, ChangeError> {
    let mut changes = of_agent.to_vec();
    let is_new = |pool| of_agent.iter().any(|change| adds(change, pool));
    for (pool, _, _, worker) in locals(next).filter(|(_, _, _, worker)| !worker.is_leaving) {
        let (pool, workers, speed) = (pool.id, vec![worker.id], worker.speed);
        match at_agent(agent, worker.id).filter(|there| !there.is_leaving) {
            Some(there) => {
                if there.is_drained && !worker.is_drained {
                    changes.push(Change::Undrain { workers: workers.clone() });
                }
                if there.speed != speed {
                    changes.push(Change::SetSpeed { pool: None, workers, speed });
                }
            }
            None if agent.membership().pool(pool).is_none() && !is_new(pool) => {
                let add = format!("does not exist; `agent add-pool id={pool} policy=…` adds it");
                return refused(format!("agent: pool {pool}"), add);
            }
            None => changes.push(Change::AddWorkers { server: None, pool, workers, speed }),
        }
    }
    Ok(changes)
}

fn adds(change: &Change, pool: u16) -> bool {
    matches!(change, Change::AddPool { id, .. } if *id == pool)
}

/// Returns the workers that the agent must drain because the leaf did, and those it must undrain because no
/// other worker can serve the remaining tasks.
fn to_drain<B: Buf + Token>(agent: &Control<AgentCores<B>>, now: &Moment<'_>) -> [Change; 2] {
    let is_other = |worker: &Worker| worker.is_active() && agent.cores.is_attached(worker.id);
    let mut found = [Vec::new(), Vec::new()];
    for (pool, at, _, worker) in locals(now.membership).filter(|(_, _, _, one)| one.is_drained) {
        let here = || locals(now.membership).filter(|(other, ..)| other.id == pool.id);
        let has_others = here().any(|(_, _, _, other)| is_other(other));
        let has_tasks = here().any(|(_, _, member, _)| now.table.outstanding(at, member) > 0);
        let is_due = has_others || !has_tasks;
        let there = at_agent(agent, worker.id).filter(|there| !there.is_leaving);
        if there.is_some_and(|there| there.is_drained != is_due) {
            found[usize::from(!is_due)].push(worker.id);
        }
    }
    let [drain, undrain] = found;
    [Change::Drain { workers: drain }, Change::Undrain { workers: undrain }]
}

/// Removes workers and pools at the agent that the leaf no longer uses, once everything is answered or lost.
/// Drains workers that the leaf has drained.
fn follow<B: Buf + Token>(
    agent: &mut Control<AgentCores<B>>,
    now: &Moment<'_>,
) -> Result<(), ChangeError> {
    let stays = |id| {
        // Before the leaf forgets the worker.
        let is_lost = now.has_left_ns(id) > LEAVING_NS / 2;
        let has_tasks = |pool, member| !is_lost && now.table.outstanding(pool, member) > 0;
        let mut there = locals(now.membership).filter(|(_, _, _, worker)| worker.id == id);
        there.any(|(_, at, member, worker)| !worker.is_leaving || has_tasks(at, member))
    };
    let agents = agent.membership().workers().map(|(_, worker)| worker);
    let leave = agents.filter(|worker| !worker.is_leaving && !stays(worker.id));
    let workers: Vec<_> = leave.map(|worker| worker.id).collect();
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
    let gone: Vec<_> =
        pools.map(|pool| pool.id).filter(|&id| now.membership.pool(id).is_none()).collect();
    for id in gone {
        agent.apply(&Change::RemovePool { id })?;
    }
    Ok(())
}
