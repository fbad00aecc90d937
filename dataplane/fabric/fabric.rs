//! Desired state of a fabric at one version: spines, leaves, the servers of their racks, workers, pools, and
//! the spine of each pool's rack.
//!
//! The controller keeps this state and changes it by commands: of operators, and its own for registered workers and
//! silent spines. A rack is a leaf with its servers. A pool is a set of workers that serve one kind of task; its
//! workers may be in several racks. A link assigns a rack of a pool to the spine that sends it the pool's tasks.
//!
//! Versions share unchanged leaves and pools, so a new version costs only its differences.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wedjat_core::wire::ether::Mac;
use wedjat_desired::state::{self, QueueLimit};

use super::place::Placement;

/// Spine: process that schedules tasks over leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spine {
    /// Address towards leaves.
    pub ip: IpAddr,
    /// True if it is marked as down, by an operator or the controller: no rack is linked to it.
    pub is_failed: bool,
}

/// Host of workers, in the rack of one leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// MAC address; `None` if the leaf finds it by ARP.
    pub mac: Option<Mac>,
    /// True if its workers register themselves at the leaf. They get no task before.
    pub registers: bool,
    /// True if it is drained: its workers get no new tasks, and no pool takes them.
    pub is_drained: bool,
}

/// Worker: thread or process of a server that serves tasks. Its id is unique in its rack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worker {
    /// Address of its server.
    pub server: IpAddr,
    /// Pool that it serves; `None` if no pool has it.
    pub pool: Option<u16>,
    /// Relative speed; 1 is the usual one.
    pub speed: f64,
}

/// Leaf: process that schedules the tasks of one rack, with the servers and workers of that rack.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf {
    /// Address towards spines.
    pub ip: IpAddr,
    /// True if an operator marked it as down: no pool has workers there.
    pub is_failed: bool,
    /// Servers of the rack.
    pub servers: BTreeMap<IpAddr, Server>,
    /// Workers of the rack, by id.
    pub workers: BTreeMap<u16, Worker>,
    /// Number of workers that each pool has in this rack. Pools without workers are absent.
    pub pools: BTreeMap<u16, u32>,
}

impl Leaf {
    /// Creates a leaf with an empty rack.
    #[must_use]
    pub fn new(ip: IpAddr) -> Self {
        Self {
            ip,
            is_failed: false,
            servers: BTreeMap::new(),
            workers: BTreeMap::new(),
            pools: BTreeMap::new(),
        }
    }

    /// Returns the number of workers that a pool may take from this rack.
    #[must_use]
    pub fn free_count(&self) -> usize {
        // Without a drained server, a pool may take each worker that has no pool. So the counts suffice.
        if self.is_failed || self.servers.values().any(|server| server.is_drained) {
            return self.free().count();
        }
        self.workers.len() - self.pools.values().map(|&count| count as usize).sum::<usize>()
    }

    /// Returns the workers that a pool may take: without a pool, on servers that are not drained. None if the leaf is
    /// down.
    pub fn free(&self) -> impl Iterator<Item = (u16, &Worker)> {
        let drained: Vec<IpAddr> =
            self.servers.iter().filter(|(_, one)| one.is_drained).map(|(&ip, _)| ip).collect();
        let is_free =
            move |worker: &Worker| worker.pool.is_none() && !drained.contains(&worker.server);
        let workers = self.workers.iter().filter(|_| !self.is_failed);
        workers.filter(move |(_, worker)| is_free(worker)).map(|(&id, worker)| (id, worker))
    }

    /// Adds `more`, which may be negative, to the number of workers that a pool has in this rack. Does nothing without
    /// a pool. [`Fabric::apply`] counts the workers of all racks separately.
    pub(super) fn count(&mut self, pool: Option<u16>, more: i64) {
        let Some(pool) = pool else { return };
        let count = self.pools.entry(pool).or_default();
        *count = u32::try_from(i64::from(*count) + more).unwrap_or(0);
        if *count == 0 {
            self.pools.remove(&pool);
        }
    }
}

/// Pool: its settings, in the fabric and in views. The workers themselves name their pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSettings {
    /// Policy of the leaves, over workers.
    pub policy: String,
    /// Policy of the spines, over racks.
    pub spine_policy: String,
    /// Policy of the agents, over the workers of a host.
    pub agent_policy: String,
    /// Limit of its queue on each core of a leaf.
    #[serde(flatten)]
    pub queue: QueueLimit,
    /// Desired number of workers.
    pub workers: usize,
    /// Placement of the workers among racks.
    pub placement: Placement,
    /// Desired number of spines that its racks are linked to; 0 if clients send to leaves.
    pub spines: usize,
    /// Address for the pool's tasks at all its spines.
    pub address: Option<IpAddr>,
    /// Maximum size, in workers, to which the pool grows by workers that register for it; 0 if it admits none.
    pub admits: usize,
    /// In a leaf's view: spine that this rack of the pool is linked to. `None` for a pool without spines, in other
    /// views, and in the fabric, which has `links`.
    #[serde(skip)]
    pub spine: Option<state::Spine>,
}

/// Links of a pool: the id of the spine of each of its racks, by leaf.
pub type Links = BTreeMap<u16, u16>;

/// Whole fabric at one version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fabric {
    /// Version. Each command with an effect raises it by one; a restore of an old store raises it above the nodes'.
    pub version: u64,
    /// Spines, by id.
    pub spines: BTreeMap<u16, Spine>,
    /// Leaves, by id.
    pub leaves: BTreeMap<u16, Arc<Leaf>>,
    /// Pools, by id.
    pub pools: BTreeMap<u16, Arc<PoolSettings>>,
    /// Links of the pools, by id. Pools whose clients send to leaves are absent.
    pub links: BTreeMap<u16, Arc<Links>>,
    /// Number of workers that each pool has in all racks. Pools without workers are absent.
    pub(super) members: BTreeMap<u16, usize>,
}

impl Fabric {
    /// Returns the leaf that has this server in its rack; `None` for an unknown server.
    #[must_use]
    pub fn leaf_of(&self, server: IpAddr) -> Option<u16> {
        let mut leaves = self.leaves.iter();
        leaves.find(|(_, leaf)| leaf.servers.contains_key(&server)).map(|(&id, _)| id)
    }

    /// Returns the racks in which a pool has workers, with their number.
    pub fn racks(&self, pool: u16) -> impl Iterator<Item = (u16, u32)> {
        let count = move |(&id, leaf): (&u16, &Arc<Leaf>)| Some((id, *leaf.pools.get(&pool)?));
        self.leaves.iter().filter_map(count)
    }

    /// Returns the number of workers that a pool has.
    #[must_use]
    pub fn members(&self, pool: u16) -> usize {
        self.members.get(&pool).copied().unwrap_or_default()
    }

    /// Returns the spines that are up, to which racks may be linked, with the number of links of each.
    #[must_use]
    pub fn spine_links(&self) -> BTreeMap<u16, usize> {
        let up = self.spines.iter().filter(|(_, spine)| !spine.is_failed);
        let mut links: BTreeMap<u16, usize> = up.map(|(&id, _)| (id, 0)).collect();
        for spine in self.links.values().flat_map(|links| links.values()) {
            links.entry(*spine).and_modify(|count| *count += 1);
        }
        links
    }

    /// Returns the addresses of all leaves, servers, spines and pools.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let leaves = self.leaves.values().map(|leaf| leaf.ip);
        let servers = self.leaves.values().flat_map(|leaf| leaf.servers.keys().copied());
        let spines = self.spines.values().map(|spine| spine.ip);
        let pools = self.pools.values().filter_map(|pool| pool.address);
        leaves.chain(servers).chain(spines).chain(pools)
    }

    /// Describes the current owner of an address, for messages; `None` for a free address.
    #[must_use]
    pub fn owner_of(&self, ip: IpAddr) -> Option<String> {
        let spine = self.spines.iter().find(|(_, spine)| spine.ip == ip);
        let leaf = || self.leaves.iter().find(|(_, leaf)| leaf.ip == ip);
        let pool = || self.pools.iter().find(|(_, pool)| pool.address == Some(ip));
        spine
            .map(|(id, _)| format!("spine {id}"))
            .or_else(|| leaf().map(|(id, _)| format!("leaf {id}")))
            .or_else(|| pool().map(|(id, _)| format!("pool {id}")))
            .or_else(|| self.leaf_of(ip).map(|leaf| format!("a server of leaf {leaf}")))
    }

    /// Returns the inconsistencies of the fabric, one line each. No sequence of commands causes any, and tests check
    /// that.
    #[must_use]
    pub fn contradictions(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut addresses = BTreeSet::new();
        for ip in self.addresses() {
            if !addresses.insert(ip) {
                faults.push(format!("{ip} is the address of two"));
            }
        }
        self.leaves.iter().for_each(|(&id, leaf)| self.check_leaf(&mut faults, id, leaf));
        self.pools.iter().for_each(|(&id, pool)| self.check_pool(&mut faults, id, pool));
        faults
    }

    /// Adds the inconsistencies of a leaf. Counts its workers by pool and compares that with the stored numbers.
    fn check_leaf(&self, faults: &mut Vec<String>, id: u16, leaf: &Leaf) {
        let mut pools = BTreeMap::<u16, u32>::new();
        for (worker, entry) in &leaf.workers {
            if !leaf.servers.contains_key(&entry.server) {
                faults.push(format!("worker {worker} of leaf {id} has no server"));
            }
            let Some(pool) = entry.pool else { continue };
            *pools.entry(pool).or_default() += 1;
            if !self.pools.contains_key(&pool) || leaf.is_failed {
                faults.push(format!("worker {worker} of leaf {id} can't be in pool {pool}"));
            }
        }
        if pools != leaf.pools {
            faults.push(format!("leaf {id} counts {:?}, and has {pools:?}", leaf.pools));
        }
    }

    /// Adds the inconsistencies of a pool in its links, its number of workers and its size. Its links must be even: the
    /// spines' numbers of links differ by at most one.
    fn check_pool(&self, faults: &mut Vec<String>, id: u16, pool: &PoolSettings) {
        let racks: BTreeSet<u16> = self.racks(id).map(|(leaf, _)| leaf).collect();
        let up = self.spines.values().filter(|spine| !spine.is_failed).count();
        // Number of spines that must have a link. Each rack has one spine, so it is at most the number of racks.
        let spines = pool.spines.min(racks.len()).min(up);
        let links = self.links.get(&id).cloned().unwrap_or_default();
        let linked: BTreeSet<u16> = links.keys().copied().collect();
        if linked != if spines == 0 { BTreeSet::new() } else { racks } {
            faults.push(format!("pool {id} has other racks than links {links:?}"));
        }
        let mut links_per_spine = BTreeMap::<u16, usize>::new();
        for spine in links.values() {
            *links_per_spine.entry(*spine).or_default() += 1;
            if self.spines.get(spine).is_none_or(|spine| spine.is_failed) {
                faults.push(format!("pool {id} is linked to spine {spine}, which is not up"));
            }
        }
        let (least, most) = (links_per_spine.values().min(), links_per_spine.values().max());
        if links_per_spine.len() != spines
            || least.zip(most).is_some_and(|(least, most)| most - least > 1)
        {
            faults.push(format!(
                "pool {id} is linked unevenly to {spines} spines: {links_per_spine:?}"
            ));
        }
        let members: usize = self.racks(id).map(|(_, workers)| workers as usize).sum();
        if self.members(id) != members {
            faults.push(format!("pool {id} counts {}, and has {members}", self.members(id)));
        }
        let wanted = pool.workers.max(pool.admits);
        if self.members(id) > wanted {
            faults.push(format!("pool {id} has more than {wanted} workers"));
        }
    }
}
