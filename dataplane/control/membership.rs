//! What a node schedules for: pools, worker servers and workers, as one value with an epoch. Everything else follows from it: the
//! network, what the state names, and each core's dispatchers.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::config::{AgentPool, Config, HostConfig, v4_bits};
use crate::limits::SPINES_MAX;
use crate::policy::signals::Protocol;
use crate::policy::{Overflow, PolicySpec, Reports};
use crate::role::colocated;
use crate::stage::Network;
use crate::stage::auth::ReplyAuthenticator;
use crate::stage::network::{Base, Host, NetworkError, NetworkPool, SpineLink};
use crate::state::Neighbours;
use crate::state::table::{Entries, Limits, PoolSpec, WorkerSpec};
use crate::wire::auth::{self, Key};
use crate::wire::ether::Mac;

/// A host that workers run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its address.
    pub ip: IpAddr,
    /// Its MAC address, unless ARP finds it.
    pub mac: Option<Mac>,
    /// Its workers register themselves.
    pub registers: bool,
    /// It goes when its last worker has gone.
    pub is_leaving: bool,
    /// The address that it had until a short time ago.
    pub was: Option<IpAddr>,
}

/// A spine over a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spine {
    /// Its id.
    pub id: u16,
    /// Its address.
    pub ip: IpAddr,
}

/// A worker; at a spine a leaf, which may be in several pools.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worker {
    /// Global worker id.
    pub id: u16,
    /// Index of its server.
    pub server: u16,
    /// How fast it is, relative to others; of a leaf how many workers it has at the start.
    pub speed: f64,
    /// It gets no new tasks until it is undrained.
    pub is_drained: bool,
    /// It gets no new tasks, and goes when it has answered those that it has.
    pub is_leaving: bool,
}

impl Worker {
    /// One that comes.
    #[must_use]
    pub const fn new(id: u16, server: u16, speed: f64) -> Self {
        Self { id, server, speed, is_drained: false, is_leaving: false }
    }

    /// It may be given tasks.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        !self.is_drained && !self.is_leaving
    }
}

/// A pool.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its id in packets.
    pub id: u16,
    /// Its policy.
    pub policy: PolicySpec,
    /// Tasks that may wait for a member on each core, under policies that let them wait.
    pub queue: usize,
    /// What becomes of those beyond.
    pub overflow: Overflow,
    /// Other schedulers send tasks to its workers, too.
    pub shared_workers: bool,
    /// How its workers tell their queues, at a leaf.
    pub reports: Reports,
    /// What asks for proof of what its workers say, at a leaf.
    pub authenticator: Option<Arc<ReplyAuthenticator>>,
    /// What its workers sign with, at an agent.
    pub key: Option<Key>,
    /// The address that clients ask, where it is not the node's own.
    pub service: Option<IpAddr>,
    /// The spine that is told of it, at a leaf, and what.
    pub link: Option<SpineLink>,
    /// It takes no new tasks, and goes when those that it has are answered.
    pub is_leaving: bool,
    /// Its members, each at the place that it keeps.
    pub members: Vec<Option<Worker>>,
}

impl Pool {
    /// The members' speeds, by place; none when all are equally fast.
    #[must_use]
    pub fn speeds(&self, places: usize) -> Option<Box<[f64]>> {
        self.has_speeds().then(|| self.speeds_of_all(places))
    }

    /// The members' speeds, by place.
    #[must_use]
    pub fn speeds_of_all(&self, places: usize) -> Box<[f64]> {
        let speed =
            |at: usize| self.members.get(at).copied().flatten().map_or(1.0, |one| one.speed);
        (0..places).map(speed).collect()
    }

    /// The same, where a policy may know others already: all equal when all are equally fast.
    #[must_use]
    pub fn rates(&self, places: usize) -> Box<[f64]> {
        self.speeds(places).unwrap_or_else(|| vec![1.0; places].into_boxed_slice())
    }

    /// Not all its members are equally fast.
    #[must_use]
    pub fn has_speeds(&self) -> bool {
        let mut known = self.members.iter().flatten().map(|worker| worker.speed);
        let first = known.next();
        known.any(|speed| Some(speed) != first)
    }
}

/// Everything at one epoch. Pools, servers and members keep their places for as long as they are there.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Its number: 1 at the start, one more with each change.
    pub epoch: u64,
    /// Servers, by index.
    pub servers: Vec<Option<Server>>,
    /// A leaf's spines, by the place that each keeps.
    pub spines: Vec<Option<Spine>>,
    /// Pools, by index.
    pub pools: Vec<Option<Pool>>,
}

/// What was sent so long before a pool is there is not believed, if a key is to prove it: an earlier leaf may have.
const BEFORE_START: Duration = Duration::from_secs(300);

/// The first sequence that a leaf believes of pools that are there from now on.
pub(crate) fn first_believed() -> u64 {
    auth::sequence_at(SystemTime::now().checked_sub(BEFORE_START).unwrap_or(UNIX_EPOCH))
}

/// What asks the workers of a pool for proof with this key.
pub(super) fn authenticator(key: &Key, limits: Limits, first: u64) -> Arc<ReplyAuthenticator> {
    Arc::new(ReplyAuthenticator::new(key.clone(), limits.workers, first))
}

/// Puts something at the first place that is free and may be used, or behind the last.
pub(super) fn settle<T>(places: &mut Vec<Option<T>>, one: T, is_usable: impl Fn(usize) -> bool) {
    let free = (0..places.len()).find(|&at| places[at].is_none() && is_usable(at));
    match free {
        Some(free) => places[free] = Some(one),
        None => places.push(Some(one)),
    }
}

impl Membership {
    /// As the configuration has it: servers in its order, this host last when it has workers of its own.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let (limits, first) = (config.leaf.limits, first_believed());
        let spines = config.spines.iter().map(|&(id, ip)| Some(Spine { id, ip })).collect();
        let mut membership = Self { epoch: 1, servers: Vec::new(), spines, pools: Vec::new() };
        for pool in &config.pools {
            membership.pools.push(Some(Pool {
                id: pool.id,
                policy: pool.policy.clone(),
                queue: pool.queue,
                overflow: pool.overflow,
                shared_workers: pool.shared_workers,
                reports: pool.reports,
                authenticator: pool.key.as_ref().map(|key| authenticator(key, limits, first)),
                key: None,
                service: pool.service,
                link: pool.link,
                is_leaving: false,
                members: Vec::new(),
            }));
        }
        for server in &config.servers {
            let &crate::config::ServerConfig { ip, mac, registers, speed, .. } = server;
            let speeds = vec![speed; server.workers.len()];
            membership.add((ip, mac, registers), server.pool, &server.workers, &speeds);
        }
        for pool in config.agent.iter().flat_map(|agent| &agent.pools) {
            let here = (
                IpAddr::V4(Ipv4Addr::from_bits(colocated::AGENT_IP)),
                Some(colocated::AGENT_MAC),
                true,
            );
            membership.add(here, pool.id, &pool.workers, &pool.speeds);
        }
        membership
    }

    /// That of an agent: the workers of a host with this address, its only server.
    #[must_use]
    pub fn of_host(host: &HostConfig, ip: IpAddr) -> Self {
        let here = Server { ip, mac: None, registers: true, is_leaving: false, was: None };
        let pool = |pool: &AgentPool| {
            let workers = pool.workers.iter().zip(&pool.speeds);
            let member = |(&id, &speed)| Some(Worker::new(id, 0, speed));
            Some(Pool {
                id: pool.id,
                policy: pool.policy.clone(),
                queue: pool.queue,
                overflow: pool.overflow,
                shared_workers: false,
                reports: Reports::Replies,
                authenticator: None,
                key: pool.key.clone(),
                service: None,
                link: None,
                is_leaving: false,
                members: workers.map(member).collect(),
            })
        };
        let pools = host.pools.iter().map(pool).collect();
        Self { epoch: 1, servers: vec![Some(here)], spines: Vec::new(), pools }
    }

    /// That of an agent on a leaf's core.
    #[must_use]
    pub fn beside_leaf(host: &HostConfig) -> Self {
        Self::of_host(host, IpAddr::V4(Ipv4Addr::from_bits(colocated::AGENT_IP)))
    }

    fn add(
        &mut self,
        (ip, mac, registers): (IpAddr, Option<Mac>, bool),
        pool: u16,
        workers: &[u16],
        speeds: &[f64],
    ) {
        let server = self.servers.len() as u16;
        self.servers.push(Some(Server { ip, mac, registers, is_leaving: false, was: None }));
        let pool = self.pools.iter_mut().flatten().find(|one| one.id == pool);
        let workers =
            workers.iter().zip(speeds).map(|(&id, &speed)| Some(Worker::new(id, server, speed)));
        pool.into_iter().for_each(|pool| pool.members.extend(workers.clone()));
    }

    /// What a state names.
    #[must_use]
    pub fn entries(&self) -> Entries {
        let worker = |worker: &Option<Worker>| {
            worker.map_or(WorkerSpec::NOBODY, |one| WorkerSpec { id: one.id, server: one.server })
        };
        let pool = |pool: &Pool| PoolSpec {
            id: pool.id,
            policy: pool.policy.to_string(),
            workers: pool.members.iter().map(worker).collect(),
        };
        Entries {
            epoch: self.epoch,
            servers: self.servers.iter().map(|one| one.map(|one| one.ip)).collect(),
            pools: self.pools.iter().map(|one| one.as_ref().map(pool)).collect(),
        }
    }

    /// The spine that is told of a pool, and what.
    #[must_use]
    pub fn link_of(&self, pool: &Pool) -> Option<(Spine, Protocol)> {
        let SpineLink { spine, protocol } = pool.link?;
        Some((self.spines.get(usize::from(spine)).copied().flatten()?, protocol))
    }

    /// Spines are told of some pool.
    #[must_use]
    pub fn has_links(&self) -> bool {
        self.pools.iter().flatten().any(|pool| pool.link.is_some())
    }

    /// Links a pool of a leaf to a spine, whose address from now on is this one, or to none. Spines that no pool is linked to any
    /// more go; false when there is no room.
    #[must_use]
    pub(super) fn link(&mut self, pool: usize, to: Option<(Spine, Protocol)>) -> bool {
        let Some(Some(there)) = self.pools.get_mut(pool) else { return true };
        let was = there.link.take();
        if let Some(was) = was.map(|was| was.spine)
            && !self
                .pools
                .iter()
                .flatten()
                .any(|pool| pool.link.is_some_and(|one| one.spine == was))
        {
            self.spines[usize::from(was)] = None;
        }
        let Some((spine, protocol)) = to else { return true };
        let known = |one: &Option<Spine>| one.is_some_and(|one| one.id == spine.id);
        let at = self.spines.iter().position(known).unwrap_or_else(|| {
            // Where it was, if it has only another address.
            let old = was.map(|was| usize::from(was.spine));
            old.filter(|&at| self.spines[at].is_none())
                .or_else(|| self.spines.iter().position(Option::is_none))
                .unwrap_or(self.spines.len())
        });
        if at == self.spines.len() {
            self.spines.push(None);
        }
        self.spines[at] = Some(spine);
        if let Some(Some(pool)) = self.pools.get_mut(pool) {
            pool.link = Some(SpineLink { spine: at as u16, protocol });
        }
        self.spines.len() <= SPINES_MAX
    }

    /// The network around a node, with so many places for members in each pool; next hops are pinned.
    ///
    /// # Errors
    /// When no port leads to a server or spine.
    pub fn network(
        &self,
        base: Base,
        limits: Limits,
        neighbours: &Neighbours,
    ) -> Result<Arc<Network>, NetworkError> {
        let (hosts, pools) = self.places(limits);
        let spine = |spine: &Option<Spine>| spine.map(|spine| (spine.id, spine.ip));
        let spines: Vec<_> = self.spines.iter().map(spine).collect();
        Network::with_places(base, &hosts, &spines, &pools, neighbours).map(Arc::new)
    }

    fn places(&self, limits: Limits) -> (Vec<Option<Host>>, Vec<NetworkPool>) {
        let host = |server: Server| Host {
            ip: server.ip,
            mac: server.mac,
            registers: server.registers,
            was: server.was,
        };
        let members = |pool: &Pool| {
            let places = pool.members.len().max(limits.workers);
            let place = |at| pool.members.get(at).copied().flatten();
            (0..places).map(|at| place(at).map(|one| (one.id, one.server))).collect()
        };
        let pools = self.pools.iter().map(|pool| match pool {
            Some(pool) => NetworkPool {
                id: Some(pool.id),
                is_closed: pool.is_leaving,
                members: members(pool),
                authenticator: pool.authenticator.clone(),
                service: pool.service,
                link: pool.link,
            },
            None => NetworkPool { members: vec![None; limits.workers], ..NetworkPool::default() },
        });
        (self.servers.iter().map(|one| one.map(host)).collect(), pools.collect())
    }

    /// The pool with this id, with its index.
    #[must_use]
    pub fn pool(&self, id: u16) -> Option<(usize, &Pool)> {
        let mut pools = self.pools.iter().enumerate();
        pools.find_map(|(at, pool)| Some((at, pool.as_ref().filter(|pool| pool.id == id)?)))
    }

    /// Where a worker is: index of its pool, and its place.
    #[must_use]
    pub fn worker(&self, id: u16) -> Option<(usize, usize)> {
        let at = |pool: &Pool| {
            pool.members.iter().position(|one| one.is_some_and(|worker| worker.id == id))
        };
        let mut pools = self.pools.iter().enumerate();
        pools.find_map(|(index, pool)| Some((index, at(pool.as_ref()?)?)))
    }

    /// Where a worker is in the pool of this id: the pool's index, and its place.
    #[must_use]
    pub fn place(&self, pool: u16, worker: u16) -> Option<(usize, usize)> {
        let (at, pool) = self.pool(pool)?;
        let is_there = |one: &Option<Worker>| one.is_some_and(|one| one.id == worker);
        Some((at, pool.members.iter().position(is_there)?))
    }

    /// A worker is on the leaf's own core, behind the agent there.
    #[must_use]
    pub fn is_local(&self, worker: &Worker) -> bool {
        let server = self.servers[usize::from(worker.server)];
        server.is_some_and(|server| v4_bits(server.ip) == Some(colocated::AGENT_IP))
    }

    /// All workers, with the index of their pools.
    pub fn workers(&self) -> impl Iterator<Item = (usize, &Worker)> {
        let pools = self.pools.iter().enumerate();
        pools.flat_map(|(at, pool)| {
            pool.iter().flat_map(|pool| pool.members.iter().flatten()).map(move |one| (at, one))
        })
    }
}
