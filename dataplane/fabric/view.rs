//! View of one node: its part of a fabric. The controller sends a node its view, then the deltas between the views of
//! successive versions.
//!
//! A spine sees its pools and the racks linked to it. A leaf sees the pools, servers and workers of its rack. An
//! agent sees the pools and workers of its host. A view has only workers with a pool. A pool's rack is linked to the
//! spine that sends it the pool's tasks.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use wedjat_desired::state::{Delta, Desired, Server, Spine, Worker};

use super::fabric::{Fabric, Leaf, PoolSettings};

/// Node of a fabric: a process that follows the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeId {
    /// Spine, by id.
    Spine(u16),
    /// Leaf, by id.
    Leaf(u16),
    /// Agent of a server, by address.
    Agent(IpAddr),
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spine(id) => write!(f, "spine {id}"),
            Self::Leaf(id) => write!(f, "leaf {id}"),
            Self::Agent(ip) => write!(f, "the agent of {ip}"),
        }
    }
}

/// Position of a fabric in its history. The store holds a version durably before any node receives it, so a later term
/// never begins with an earlier version. Therefore versions order fabrics, and terms order equal versions. A node
/// refuses a position before its own. The derived order relies on the order of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Version of the fabric.
    pub version: u64,
    /// Term of the leader that sent or loaded the version.
    pub term: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {} of term {}", self.version, self.term)
    }
}

/// Part of a fabric that one node receives. `Desired` has the pools, servers and workers of a node. The key of a worker
/// is `(None, worker)`. The workers of a spine's pool are racks, with key `(Some(pool), leaf)`; the speed of a rack is
/// its number of workers in the pool.
pub type View = Desired<PoolSettings>;

impl Fabric {
    /// Returns true if the fabric has this node. The controller refuses to serve other nodes.
    #[must_use]
    pub fn has(&self, node: NodeId) -> bool {
        match node {
            NodeId::Spine(id) => self.spines.contains_key(&id),
            NodeId::Leaf(id) => self.leaves.contains_key(&id),
            NodeId::Agent(ip) => self.leaf_of(ip).is_some(),
        }
    }

    /// Returns a node's view. It is empty for an unknown node.
    #[must_use]
    pub fn view(&self, node: NodeId) -> View {
        match node {
            NodeId::Spine(id) => self.view_of_spine(id),
            NodeId::Leaf(id) => {
                let all = |leaf: &Arc<Leaf>| self.view_of_rack(id, leaf, |_| true);
                self.leaves.get(&id).map(all).unwrap_or_default()
            }
            NodeId::Agent(ip) => {
                let leaf = self.leaf_of(ip).and_then(|id| Some((id, self.leaves.get(&id)?)));
                let view_of_agent = |(id, leaf): (u16, &Arc<Leaf>)| {
                    self.view_of_rack(id, leaf, |server| server == ip)
                };
                let mut view = leaf.map(view_of_agent).unwrap_or_default();
                view.servers.clear(); // an agent needs none: its workers are on its host
                // The leaf sends no more tasks to a drained server. Its workers still serve the tasks in
                // flight and in the queue.
                view.workers.values_mut().for_each(|worker| worker.is_drained = false);
                // Only leaves exchange heartbeats with spines.
                view.pools.values_mut().for_each(|pool| pool.spine = None);
                view
            }
        }
    }

    /// Returns the pools that are new, or whose settings or links differ from those of `before`. Compares pointers,
    /// because versions share unchanged ones. Omits removed pools.
    #[must_use]
    pub fn changed_pools(&self, before: &Self) -> Vec<u16> {
        fn differ<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
            one.map(Arc::as_ptr) != other.map(Arc::as_ptr)
        }
        let is_changed = |id: &u16| {
            differ(self.pools.get(id), before.pools.get(id))
                || differ(self.links.get(id), before.links.get(id))
        };
        self.pools.keys().copied().filter(is_changed).collect()
    }

    /// Returns the delta from `old_view`, the leaf's view of the fabric `before`, to its view of this fabric. Compares
    /// only the pools `changed`, the result of [`Self::changed_pools`]. Most changes are of pools, so this spares the
    /// controller the whole views of many leaves. Removed pools need no entry: the removal of a pool with workers in
    /// the rack changes the rack, and the view never has other pools.
    ///
    /// `None`: the caller must compare the whole views. That is so for spines and agents, for a leaf that is not in
    /// both fabrics, and after a change of the rack or of the spines.
    #[must_use]
    pub fn delta_of_pools(
        &self,
        before: &Self,
        node: NodeId,
        old_view: &View,
        changed: &[u16],
    ) -> Option<Delta<PoolSettings>> {
        let NodeId::Leaf(id) = node else { return None };
        let (leaf, old) = (self.leaves.get(&id)?, before.leaves.get(&id)?);
        if !Arc::ptr_eq(leaf, old) || self.spines != before.spines {
            return None;
        }
        let mut delta = Delta::default();
        for pool in changed.iter().filter(|pool| leaf.pools.contains_key(pool)) {
            let entry = self.pool_view(id, *pool)?;
            if old_view.pools.get(pool) != Some(&entry) {
                delta.put.pools.insert(*pool, entry);
            }
        }
        Some(delta)
    }

    /// Returns a pool in this leaf's view, with the spine that it is linked to; `None` for an unknown pool.
    fn pool_view(&self, leaf: u16, pool: u16) -> Option<PoolSettings> {
        let settings = PoolSettings::clone(self.pools.get(&pool)?);
        let spine = |&id| Some(Spine { id, ip: self.spines.get(&id)?.ip });
        let spine = self.links.get(&pool).and_then(|links| links.get(&leaf)).and_then(spine);
        Some(PoolSettings { spine, ..settings })
    }

    /// Returns the view of the rack of leaf `id`, restricted to the workers of a pool on the servers that `is_wanted`
    /// accepts. Omits servers and pools that have none of these workers.
    fn view_of_rack(&self, id: u16, leaf: &Leaf, is_wanted: impl Fn(IpAddr) -> bool) -> View {
        let (mut view, mut last_server) = (View::default(), None);
        for (&worker, state) in leaf.workers.iter().filter(|(_, state)| is_wanted(state.server)) {
            let (Some(pool), Some(server)) = (state.pool, leaf.servers.get(&state.server)) else {
                continue;
            };
            let (ip, is_drained) = (state.server, server.is_drained);
            let entry = Worker { server: ip, pool, speed: state.speed, is_drained };
            view.workers.insert((None, worker), entry);
            // Workers of one server mostly have adjacent ids, so this adds most servers only once.
            if last_server != Some(state.server) {
                let entry = Server { mac: server.mac, registers: server.registers };
                view.servers.insert(ip, [entry].into()); // one entry; a configuration file may have several
                last_server = Some(state.server);
            }
        }
        let pools: BTreeSet<u16> = view.workers.values().map(|one| one.pool).collect();
        for pool in pools {
            let Some(entry) = self.pool_view(id, pool) else { continue };
            view.pools.insert(pool, entry);
        }
        view
    }

    /// Returns the view of a spine: the pools and racks linked to it.
    fn view_of_spine(&self, id: u16) -> View {
        let mut view = View::default();
        for (&pool, links) in &self.links {
            let Some(settings) = self.pools.get(&pool) else { continue };
            for (&leaf, _) in links.iter().filter(|(_, spine)| **spine == id) {
                let Some(rack) = self.leaves.get(&leaf) else { continue };
                let workers = rack.pools.get(&pool).copied().unwrap_or_default();
                let (server, speed) = (rack.ip, f64::from(workers));
                let entry_of_rack = Worker { server, pool, speed, is_drained: false };
                view.workers.insert((Some(pool), leaf), entry_of_rack);
                view.pools.entry(pool).or_insert_with(|| PoolSettings::clone(settings));
            }
        }
        view
    }
}
