//! Membership of a node: pools, servers and workers as one value with an epoch, a number that grows with each
//! change. Network, state entries and the cores' dispatchers derive from it.
//!
//! A *place* is an index into a list of pools, servers or members. An object keeps its place, because cores refer to
//! it by place. A removed object leaves `None` there.
//!
//! All places exist from the start (`workers_max` and similar keys). A free one is an inactive member, so policies need
//! no rule for it. The alternative, a new state for each membership, would make every core move its estimates.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use wedjat_core::limits::SPINES_MAX;
use wedjat_core::policy::signals::Protocol;
use wedjat_core::policy::{Core, Dispatcher, stream_seed};
use wedjat_core::ring::WorkerIdentity;
use wedjat_core::role::colocated;
use wedjat_core::stage::Network;
use wedjat_core::stage::auth::{ReplyAuthenticator, first_accepted};
use wedjat_core::stage::network::{FixedNetwork, Host, NetworkError, NetworkPool, SpineLink};
use wedjat_core::state::table::{Entries, Limits, PoolSpec, WorkerSpec};
use wedjat_core::state::{Neighbours, Table};
use wedjat_core::wire::ether::Mac;

use crate::config::{Config, HostConfig, ServerConfig};
use crate::state::{self, Desired, ReplyPath, Spine, WorkerKey};

/// A worker host, as one `[[server]]` entry of the configuration describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Address.
    pub ip: IpAddr,
    /// MAC address; `None` if it is resolved.
    pub mac: Option<Mac>,
    /// True if its workers register themselves.
    pub registers: bool,
    /// True if it is removed with its last worker.
    pub is_leaving: bool,
    /// Former address, for a short time after a move: replies may still come from it.
    pub former_ip: Option<IpAddr>,
}

/// A worker; at a spine a leaf, which may be in several pools.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worker {
    /// Global worker id.
    pub id: u16,
    /// Index of its server.
    pub server: u16,
    /// Relative speed; for a leaf its initial number of workers.
    pub speed: f64,
    /// True if it gets no new tasks until it is undrained.
    pub is_drained: bool,
    /// True if it gets no new tasks, and leaves once it has answered its tasks.
    pub is_leaving: bool,
}

impl Worker {
    /// Creates a new worker.
    #[must_use]
    pub const fn new(id: u16, server: u16, speed: f64) -> Self {
        Self { id, server, speed, is_drained: false, is_leaving: false }
    }

    /// Returns true if it may get tasks.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        !self.is_drained && !self.is_leaving
    }
}

/// A pool.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Id in packets.
    pub id: u16,
    /// Settings.
    pub settings: state::Pool,
    /// At a leaf: check of the proofs, tags made with a key, in its workers' messages.
    pub authenticator: Option<Arc<ReplyAuthenticator>>,
    /// True if it accepts no new tasks, and ends once its tasks are answered.
    pub is_leaving: bool,
    /// Members by place.
    pub members: Vec<Option<Worker>>,
}

impl Pool {
    /// Creates a pool without members. With a key, messages of its workers need a proof.
    pub(super) fn new(id: u16, settings: state::Pool, limits: Limits) -> Self {
        // Proofs have sequence numbers that follow the clock. Older ones may be replays from before the pool's start.
        let first = first_accepted(SystemTime::now());
        let key = settings.fixed.key.clone();
        let authenticator = key.map(|key| ReplyAuthenticator::new(key, limits.workers, first));
        let (authenticator, members) = (authenticator.map(Arc::new), Vec::new());
        Self { id, settings, authenticator, is_leaving: false, members }
    }

    /// Creates the dispatcher of the pool at this index on a core, with its queue and its members' speeds. Each
    /// dispatcher has its own random stream, so that the cores choose independently.
    #[must_use]
    pub fn dispatcher(&self, index: usize, table: &Table, core: Core) -> Dispatcher {
        let (view, seed) = (table.view(core.index, index), table.seed());
        let seed = stream_seed(seed, core.index, index);
        let mut dispatcher = Dispatcher::new(&self.settings.policy, view, core, seed)
            .with_queue(self.settings.queue.tasks, self.settings.queue.overflow);
        if let Some(speeds) = self.speeds(dispatcher.view().members()) {
            dispatcher.set_rates(&speeds);
        }
        dispatcher
    }

    /// Returns the members' speeds by place; `None` if all are equal.
    #[must_use]
    pub fn speeds(&self, places: usize) -> Option<Box<[f64]>> {
        self.has_speeds().then(|| self.speeds_of_all(places))
    }

    /// Returns the members' speeds by place; 1.0 for an empty place.
    #[must_use]
    pub fn speeds_of_all(&self, places: usize) -> Box<[f64]> {
        let speed =
            |place: usize| self.members.get(place).copied().flatten().map_or(1.0, |one| one.speed);
        (0..places).map(speed).collect()
    }

    /// Returns the members' speeds by place, or 1.0 for each if all are equal. A running policy gets these, because it
    /// may still have earlier speeds that differed.
    #[must_use]
    pub fn rates(&self, places: usize) -> Box<[f64]> {
        self.speeds(places).unwrap_or_else(|| vec![1.0; places].into_boxed_slice())
    }

    /// Returns true if the members' speeds differ.
    #[must_use]
    pub fn has_speeds(&self) -> bool {
        let mut speeds = self.members.iter().flatten().map(|worker| worker.speed);
        let first = speeds.next();
        speeds.any(|speed| Some(speed) != first)
    }
}

/// Membership at one epoch. Pools, servers and members keep their places.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Epoch: 1 at the start, incremented by each change.
    pub epoch: u64,
    /// Servers by index.
    pub servers: Vec<Option<Server>>,
    /// Spines of a leaf by place.
    pub spines: Vec<Option<Spine>>,
    /// Pools by index.
    pub pools: Vec<Option<Pool>>,
}

/// Stores a value at the first place that is free and that `is_usable` accepts, or appends it. Places are reused,
/// because their number is limited.
pub(super) fn settle<T>(places: &mut Vec<Option<T>>, value: T, is_usable: impl Fn(usize) -> bool) {
    let free_place = (0..places.len()).find(|&place| places[place].is_none() && is_usable(place));
    match free_place {
        Some(free_place) => places[free_place] = Some(value),
        None => places.push(Some(value)),
    }
}

impl Membership {
    /// Returns the membership of a configuration: servers in its order, and last an entry of this host for each pool of
    /// its `[agent]`.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let mut membership = Self::of_pools(&config.pools, config.leaf.limits);
        membership.spines = config.spines.iter().copied().map(Some).collect();
        for &ServerConfig { ip, mac, ref workers, pool, speed, registers } in &config.servers {
            let workers = workers.iter().map(|&id| (WorkerIdentity { id, pool }, speed));
            membership.add((ip, mac, registers), workers);
        }
        if let Some(host) = &config.agent {
            // The link to the agent inside the process has fixed addresses.
            let local_server = (host.ip, Some(colocated::AGENT_MAC), true);
            for (id, _) in &host.pools {
                let workers = host.workers.iter().filter(|(worker, _)| worker.pool == *id);
                membership.add(local_server, workers.copied());
            }
        }
        membership
    }

    /// Returns the address of a worker's server; `None` for an unknown worker.
    #[must_use]
    pub fn server_of(&self, worker: u16) -> Option<IpAddr> {
        let mut workers =
            self.pools.iter().flatten().flat_map(|pool| pool.members.iter().flatten());
        let server = workers.find(|one| one.id == worker)?.server;
        Some(self.servers.get(usize::from(server)).copied().flatten()?.ip)
    }

    /// Returns the membership of an agent: the workers of a host, its only server.
    #[must_use]
    pub fn of_host(host: &HostConfig) -> Self {
        let mut membership = Self::of_pools(&host.pools, host.limits);
        membership.add((host.ip, None, true), host.workers.iter().copied());
        membership
    }

    /// Returns the first membership with these pools, and without servers.
    fn of_pools(pools: &[(u16, state::Pool)], limits: Limits) -> Self {
        let pools = pools.iter().map(|(id, pool)| Some(Pool::new(*id, pool.clone(), limits)));
        Self { epoch: 1, servers: Vec::new(), spines: Vec::new(), pools: pools.collect() }
    }

    /// Adds a server, and its workers with their speeds to their pools.
    fn add(
        &mut self,
        (ip, mac, registers): (IpAddr, Option<Mac>, bool),
        workers: impl Iterator<Item = (WorkerIdentity, f64)>,
    ) {
        let server = self.servers.len() as u16;
        self.servers.push(Some(Server { ip, mac, registers, is_leaving: false, former_ip: None }));
        for (WorkerIdentity { id, pool }, speed) in workers {
            let pool = self.pools.iter_mut().flatten().find(|one| one.id == pool);
            let worker = Some(Worker::new(id, server, speed));
            pool.into_iter().for_each(|pool| pool.members.push(worker));
        }
    }

    /// Returns the entries of the state file: epoch, and the ids of servers, pools and workers by place.
    #[must_use]
    pub fn entries(&self) -> Entries {
        let worker = |worker: &Option<Worker>| {
            worker
                .map_or(WorkerSpec::FREE_PLACE, |one| WorkerSpec { id: one.id, server: one.server })
        };
        let pool = |pool: &Pool| PoolSpec {
            id: pool.id,
            policy: pool.settings.policy.to_string(),
            objective: pool.settings.auto.map_or_else(String::new, |auto| auto.to_string()),
            workers: pool.members.iter().map(worker).collect(),
        };
        Entries {
            epoch: self.epoch,
            servers: self.servers.iter().map(|one| one.map(|one| one.ip)).collect(),
            pools: self.pools.iter().map(|one| one.as_ref().map(pool)).collect(),
        }
    }

    /// Returns true if any pool is linked to a spine.
    #[must_use]
    pub fn has_links(&self) -> bool {
        self.pools.iter().flatten().any(|pool| pool.settings.link.is_some())
    }

    /// Links the pool at index `pool` to a spine, or to none. Removes a spine without linked pools. Returns false if
    /// there are too many spines; the membership is invalid then.
    #[must_use]
    pub(super) fn link(&mut self, pool: usize, to: Option<(Spine, Protocol)>) -> bool {
        // Without such a pool there is nothing to link.
        let Some(Some(linked_pool)) = self.pools.get_mut(pool) else { return true };
        let old = std::mem::replace(&mut linked_pool.settings.link, to);
        let old_place = old.and_then(|(spine, _)| self.spine_place(spine.id));
        if let (Some((old, _)), Some(place)) = (old, old_place)
            && !self.links().any(|(spine, _)| spine.id == old.id)
        {
            self.spines[place] = None;
        }
        let Some((spine, _)) = to else { return true };
        // Its own place; else the former spine's if that is free now, the first free one, or a new one.
        let place = self.spine_place(spine.id).unwrap_or_else(|| {
            old_place
                .filter(|&place| self.spines[place].is_none())
                .or_else(|| self.spines.iter().position(Option::is_none))
                .unwrap_or(self.spines.len())
        });
        if place == self.spines.len() {
            self.spines.push(None);
        }
        self.spines[place] = Some(spine);
        // Other pools may be linked to the spine at its former address.
        for (linked, _) in self.links() {
            if linked.id == spine.id {
                *linked = spine;
            }
        }
        self.spines.len() <= SPINES_MAX
    }

    /// Iterates over the links of all pools.
    fn links(&mut self) -> impl Iterator<Item = &mut (Spine, Protocol)> {
        self.pools.iter_mut().flatten().filter_map(|pool| pool.settings.link.as_mut())
    }

    /// Returns the place of a spine; `None` for an unknown spine.
    fn spine_place(&self, id: u16) -> Option<usize> {
        self.spines.iter().position(|one| one.is_some_and(|one| one.id == id))
    }

    /// Creates the network around a node: the map from packets to pools and members, and from members to addresses.
    /// `base` is its fixed part. Each pool gets at least `limits.workers` places. The next hops of members are
    /// pinned, which keeps their entries in `neighbours`.
    ///
    /// # Errors
    /// If no port leads to a server or spine, there are too many neighbours, or a pool has addresses of both families.
    pub fn network(
        &self,
        base: FixedNetwork,
        limits: Limits,
        neighbours: &Neighbours,
    ) -> Result<Arc<Network>, NetworkError> {
        let (hosts, pools) = self.places(limits);
        let spine = |spine: &Option<Spine>| spine.map(|spine| (spine.id, spine.ip));
        let spines: Vec<_> = self.spines.iter().map(spine).collect();
        Network::with_places(base, &hosts, &spines, &pools, neighbours).map(Arc::new)
    }

    /// Returns servers and pools as the network needs them.
    fn places(&self, limits: Limits) -> (Vec<Option<Host>>, Vec<NetworkPool>) {
        let host = |server: Server| Host {
            ip: server.ip,
            mac: server.mac,
            registers: server.registers,
            former_ip: server.former_ip,
        };
        let members = |pool: &Pool| {
            let places = pool.members.len().max(limits.workers);
            let member_at = |place| pool.members.get(place).copied().flatten();
            (0..places).map(|place| member_at(place).map(|one| (one.id, one.server))).collect()
        };
        let pools = self.pools.iter().map(|pool| match pool {
            Some(pool) => NetworkPool {
                id: Some(pool.id),
                is_closed: pool.is_leaving,
                members: members(pool),
                authenticator: pool.authenticator.clone(),
                service: pool.settings.service,
                link: pool.settings.link.and_then(|(spine, protocol)| {
                    Some(SpineLink { spine: self.spine_place(spine.id)? as u16, protocol })
                }),
                is_direct: pool.settings.fixed.replies == ReplyPath::Direct,
            },
            None => NetworkPool { members: vec![None; limits.workers], ..NetworkPool::default() },
        });
        (self.servers.iter().map(|one| one.map(host)).collect(), pools.collect())
    }

    /// Returns the pool with this id, and its index; `None` for an unknown id.
    #[must_use]
    pub fn pool(&self, id: u16) -> Option<(usize, &Pool)> {
        let mut pools = self.pools.iter().enumerate();
        pools.find_map(|(index, pool)| Some((index, pool.as_ref().filter(|pool| pool.id == id)?)))
    }

    /// Returns the pool's index and the place of a worker; `None` for an unknown worker. At a spine, these are of the
    /// first pool with the leaf.
    #[must_use]
    pub fn worker(&self, id: u16) -> Option<(usize, usize)> {
        let place_in = |pool: &Pool| {
            pool.members.iter().position(|one| one.is_some_and(|worker| worker.id == id))
        };
        let mut pools = self.pools.iter().enumerate();
        pools.find_map(|(index, pool)| Some((index, place_in(pool.as_ref()?)?)))
    }

    /// Returns the pool's index and the place of a worker in the pool with this id; `None` if one of them is unknown.
    #[must_use]
    pub fn place(&self, pool: u16, worker: u16) -> Option<(usize, usize)> {
        let (index, pool) = self.pool(pool)?;
        let is_worker = |one: &Option<Worker>| one.is_some_and(|one| one.id == worker);
        Some((index, pool.members.iter().position(is_worker)?))
    }

    /// Returns true if a worker is on the leaf's own core, behind its agent.
    #[must_use]
    pub fn is_local(&self, worker: &Worker) -> bool {
        let server = self.servers[usize::from(worker.server)];
        server.is_some_and(|server| colocated::is_agent(server.ip))
    }

    /// Iterates over all workers, with the index of their pools.
    pub fn workers(&self) -> impl Iterator<Item = (usize, &Worker)> {
        let pools = self.pools.iter().enumerate();
        pools.flat_map(|(index, pool)| {
            pool.iter().flat_map(|pool| pool.members.iter().flatten()).map(move |one| (index, one))
        })
    }

    /// Iterates over all workers by key, each with its pool and server, and true if it is leaving. At a spine, the key
    /// includes the pool.
    pub fn placed(
        &self,
        is_spine: bool,
    ) -> impl Iterator<Item = (WorkerKey, (state::Worker, bool))> {
        self.workers().filter_map(move |(pool, worker)| {
            let pool = self.pools[pool].as_ref()?.id;
            let server = self.servers.get(usize::from(worker.server)).copied().flatten()?.ip;
            let Worker { id, speed, is_drained, is_leaving, .. } = *worker;
            let placed = state::Worker { server, pool, speed, is_drained };
            Some(((is_spine.then_some(pool), id), (placed, is_leaving)))
        })
    }

    /// Returns the membership as a desired state. Leaving objects are absent, and so are workers of leaving pools and
    /// servers.
    #[must_use]
    pub fn desired(&self, is_spine: bool) -> Desired {
        let pools = self.pools.iter().flatten().filter(|pool| !pool.is_leaving);
        let pools: BTreeMap<_, _> = pools.map(|pool| (pool.id, pool.settings.clone())).collect();
        let mut servers = BTreeMap::<_, BTreeSet<_>>::new();
        for server in self.servers.iter().flatten().filter(|server| !server.is_leaving) {
            let entry = state::Server { mac: server.mac, registers: server.registers };
            servers.entry(server.ip).or_default().insert(entry);
        }
        let has_owners = |one: &state::Worker| {
            pools.contains_key(&one.pool) && servers.contains_key(&one.server)
        };
        let workers =
            self.placed(is_spine).filter(|(_, (one, is_leaving))| !is_leaving && has_owners(one));
        let workers = workers.map(|(key, (worker, _))| (key, worker)).collect();
        Desired { pools, servers, workers }
    }
}
