//! Changes of a running node. Its membership is its set of pools, servers and workers. A requested change gives the
//! next membership, and each core gets an update to it. All memory is allocated and freed here, on a thread that does
//! not poll.
//!
//! Operators, reloads of the configuration file and controllers request changes. [`Control`] is common to all nodes.
//! An implementation of [`Cores`] has the parts of one kind: [`LeafCores`] for leaves and spines, [`AgentCores`], and
//! [`ColocatedCores`] for a leaf with an agent on its core.
//!
//! Each change has an epoch, the number of the membership that contains it. Once [`Control::acknowledged`] has
//! reached the epoch returned by [`Control::apply`], all cores use the change.
//!
//! Workers, servers and pools leave in two steps. First they get no new tasks. Once they have answered their tasks, or
//! a timeout has passed, their places become free; [`Control::tend`] does that. A place is an index by which cores
//! refer to an object.

mod agent;
mod change;
mod colocated;
mod difference;
mod invariants;
mod leaf;
mod membership;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

pub use agent::{AgentCores, AgentParts, signer};
use change::refused;
pub use change::{Change, ChangeError, overflow_name};
pub use change::{Values, Verbs, invalid_text, overflow_named};
pub use colocated::ColocatedCores;
pub use difference::{Difference, Differences};
pub use leaf::LeafCores;
pub use membership::{Membership, Pool, Server, Worker};

use wedjat_core::limits::SPINES_MAX;
use wedjat_core::policy::signals::Protocol;
use wedjat_core::policy::{PolicyChoice, PolicySpec, Reports, Runs};
use wedjat_core::state::table::Limits;
use wedjat_core::state::{Member, Table};
use wedjat_core::wire::auth::Key;

use crate::config::{KEY_FILE, UNSPECIFIED, read_key};
use crate::state::{self, AutoRefusal, FixedSettings, Spine};
use membership::settle;

/// Time after which unanswered tasks of a leaving worker count as lost, and its place becomes free. Also the limit of
/// the wait for a leaving pool's queue, and the time for which a moved server's former address stays valid.
pub const LEAVING_NS: u64 = 10_000_000_000;

/// Removal of a worker, a pool or an address that has begun. Its start time limits the wait for outstanding tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PendingRemoval {
    /// Id of the pool.
    Pool(u16),
    /// Ids of the pool and of the worker.
    Worker(u16, u16),
    /// A server's former address, by the server's index.
    /// Replies to tasks sent there are still in flight, so both addresses are valid for [`LEAVING_NS`].
    Address(usize),
}

/// Reason why a spine cannot choose a pool's policy, and the allowed setting.
const SPINE_REFUSAL: AutoRefusal =
    ("a spine sees no service times of workers", "one policy, as in horus-spine");

/// Cores of one kind of node, as driven by its control.
pub trait Cores {
    /// Objects created for a change before the node's state contains it; creation may fail.
    type PreparedChange;

    /// End of the log line for a change that all cores use, after "change `epoch`:".
    const DECIDE: &'static str;

    /// Reason why this kind of node cannot choose a pool's policy itself, for `auto`; `None` if it can.
    const AUTO_REFUSAL: Option<AutoRefusal>;

    /// Checks the conditions of a change that are specific to this kind of node.
    ///
    /// # Errors
    /// Reason why the change is impossible.
    fn check(&self, change: &Change) -> Result<(), ChangeError>;

    /// Checks changes of an agent on the same core, which apply together with this node's next membership.
    ///
    /// # Errors
    /// Reason why they are impossible, for instance because there is no agent.
    fn check_agent(&self, of_agent: &[Change], _next: &Membership) -> Result<(), ChangeError> {
        let reason = "this node's core has no agent; leave `agent` out";
        if of_agent.is_empty() { Ok(()) } else { refused("agent", reason) }
    }

    /// Returns the address of the host for workers without a server.
    fn own_host(&self) -> IpAddr {
        UNSPECIFIED
    }

    /// Returns true if members are leaves, each of which may be in several pools.
    fn is_spine(&self) -> bool {
        false
    }

    /// Returns the maximum number of workers.
    fn workers_max(&self) -> usize;

    /// Returns the epoch that all cores have reached; `None` without cores.
    fn epoch(&self) -> Option<u64>;

    /// Returns true if each core has room for another change.
    fn has_room(&self) -> bool;

    /// Frees objects that cores have replaced.
    fn free_replaced(&mut self);

    /// Creates the objects for the next membership, and applies the changes of an agent on the same core. Nothing
    /// has changed if this fails.
    ///
    /// # Errors
    /// Reason why the change is impossible.
    fn prepare(
        &mut self,
        table: &Table,
        next: &Membership,
        of_agent: &[Change],
    ) -> Result<Self::PreparedChange, ChangeError>;

    /// Sends each core its update to the next membership, which the state already contains.
    ///
    /// # Errors
    /// If a core has no room.
    fn issue(
        &mut self,
        table: &Table,
        differences: &Differences<'_>,
        ready: Self::PreparedChange,
    ) -> Result<(), ChangeError>;

    /// Does periodic work. The control calls it only while all cores have reached the latest change.
    fn collect(&mut self, _now: &SettledState<'_>) {}

    /// Returns true if changes outside this membership, as those of an agent on the same core, are applied and
    /// nothing of them is leaving.
    fn is_settled(&self) -> bool {
        true
    }

    /// Returns the minimum time in nanoseconds for which the id of a leaving worker stays known, from the start of its
    /// removal. Tasks and messages for it may still arrive.
    fn linger_ns(&self, _worker: u16) -> u64 {
        0
    }

    /// Returns the latest membership of an agent on the node's own core; `None` without an agent.
    fn of_agent(&self) -> Option<&Membership> {
        None
    }

    /// Returns the local workers, by id: those of an agent on the node's own core. The leaf counts the tasks that it
    /// sent for each worker; only the agent knows which worker holds them.
    fn local_workers(&self) -> BTreeMap<u16, LocalWorker> {
        BTreeMap::new()
    }

    /// Returns true if the leaf's spine at this place is silent.
    fn is_spine_silent(&self, _place: usize) -> bool {
        false
    }

    /// Returns true if unanswered tasks of a leaving worker count as lost after [`LEAVING_NS`]. False if workers are
    /// threads of this process, which lose no tasks.
    fn gives_up(&self) -> bool {
        true
    }
}

/// State of a node at a time when all cores have reached the latest change.
#[derive(Debug)]
pub struct SettledState<'a> {
    /// State of the node.
    pub table: &'a Table,
    /// Membership used by the cores.
    pub membership: &'a Membership,
    /// Current time in nanoseconds of a monotonic clock.
    pub now_ns: u64,
    /// Start times of pending removals, in the clock of `now_ns`.
    leaving_since_ns: &'a BTreeMap<PendingRemoval, u64>,
}

/// State of a local worker, whose agent runs on the leaf's own core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalWorker {
    /// Number of tasks that it holds. The leaf may have counted them for other local workers, since the agent gives a
    /// task to any of them.
    pub held: u64,
    /// True if it gets no more tasks until it is undrained.
    pub is_drained: bool,
}

impl SettledState<'_> {
    /// Returns the time since a worker began to leave, in nanoseconds; 0 for other workers.
    fn leaving_ns(&self, worker: u16) -> u64 {
        let is_worker =
            |one: &PendingRemoval| matches!(one, PendingRemoval::Worker(_, id) if *id == worker);
        let since_ns = self.leaving_since_ns.iter().find(|(one, _)| is_worker(one));
        since_ns.map_or(0, |(_, since_ns)| self.now_ns.saturating_sub(*since_ns))
    }
}

/// Control of one node: a leaf or embedded scheduler by default. It holds the latest membership and changes it. One
/// thread uses it at a time, and none that polls.
#[derive(Debug)]
pub struct Control<C = LeafCores> {
    table: Arc<Table>,
    membership: Membership,
    /// Maximum numbers of pools, servers and workers, for which memory was reserved at the start.
    limits: Limits,
    cores: C,
    /// Start times of pending removals.
    leaving_since_ns: BTreeMap<PendingRemoval, u64>,
}

impl<C: Cores> Control<C> {
    /// Creates the control of a node with this state, whose cores start at `membership`.
    #[must_use]
    pub fn of(table: Arc<Table>, membership: Membership, cores: C) -> Self {
        let limits = table.limits();
        Self { table, membership, limits, cores, leaving_since_ns: BTreeMap::new() }
    }

    /// Returns the latest membership, including leaving members.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Returns the epoch that all cores have reached; the latest one without cores.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.cores.epoch().unwrap_or(self.membership.epoch)
    }

    /// Returns true if all cores have reached the latest change and nothing is leaving. Former addresses of moved
    /// servers do not count.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let is_current = self.acknowledged() == self.membership.epoch;
        is_current && !self.is_leaving() && self.cores.is_settled()
    }

    /// Returns the latest membership of an agent on a leaf's own core; `None` without an agent.
    #[must_use]
    pub fn of_agent(&self) -> Option<&Membership> {
        self.cores.of_agent()
    }

    /// Returns the local workers of a leaf, by id: those of an agent on its core.
    #[must_use]
    pub fn workers_here(&self) -> BTreeMap<u16, LocalWorker> {
        self.cores.local_workers()
    }

    /// Returns the ids of silent spines.
    #[must_use]
    pub fn silent_spines(&self) -> Vec<u16> {
        let spines = self.membership.spines.iter().enumerate();
        let silent = spines.filter(|(place, _)| self.cores.is_spine_silent(*place));
        silent.filter_map(|(_, spine)| Some((*spine)?.id)).collect()
    }

    /// Returns true if a pool, a worker or a server is leaving.
    fn is_leaving(&self) -> bool {
        let pools = || self.membership.pools.iter().flatten();
        pools().any(|pool| pool.is_leaving)
            || pools().flat_map(|pool| pool.members.iter().flatten()).any(|one| one.is_leaving)
            || self.membership.servers.iter().flatten().any(|server| server.is_leaving)
    }

    /// Applies a change. Returns its epoch.
    ///
    /// # Errors
    /// Reason for refusal. Nothing has changed then.
    pub fn apply(&mut self, change: &Change) -> Result<u64, ChangeError> {
        self.apply_all(std::slice::from_ref(change))
    }

    /// Applies changes in order and atomically. Returns their epoch, or the current one for an empty list.
    ///
    /// # Errors
    /// Reason why one is impossible, or that a core is busy. Nothing has changed then.
    pub fn apply_all(&mut self, changes: &[Change]) -> Result<u64, ChangeError> {
        if changes.is_empty() {
            return Ok(self.membership.epoch);
        }
        let next = self.after(changes)?;
        self.issue(next, &of_agent(changes))
    }

    /// Returns the membership after these changes, as far as it can be checked without applying them.
    ///
    /// # Errors
    /// Reason why one is impossible.
    pub fn after(&self, changes: &[Change]) -> Result<Membership, ChangeError> {
        let mut next = self.membership.clone();
        next.epoch += 1;
        for change in changes {
            self.cores.check(change)?;
            self.change(&mut next, change)?;
        }
        check_services(&next)?;
        self.cores.check_agent(&of_agent(changes), &next)?;
        Ok(next)
    }

    /// Returns the parts specific to this kind of node.
    #[must_use]
    pub fn cores(&self) -> &C {
        &self.cores
    }

    /// Checks one change and applies it to `next`. Neither the state nor the cores change.
    fn change(&self, next: &mut Membership, change: &Change) -> Result<(), ChangeError> {
        match *change {
            Change::AddServer { ip, mac, registers } => {
                if let Some(server) = next.servers.iter().flatten().find(|one| one.ip == ip) {
                    let (what, is_leaving) = (format!("server {ip}"), server.is_leaving);
                    return Err(ChangeError::Taken { what, is_leaving });
                }
                // Stores it at the first free place, or at a new one.
                settle(
                    &mut next.servers,
                    Server { ip, mac, registers, is_leaving: false, former_ip: None },
                    |_| true,
                );
                check_limit(next.servers.len(), self.limits.servers, "server", "servers_max")
            }
            Change::RemoveServer { ip } => {
                let servers = servers_at(next, ip)?;
                let leave = |pool: &mut Pool| {
                    let members = pool.members.iter_mut().flatten();
                    let affected = members.filter(|one| servers.contains(&usize::from(one.server)));
                    affected.for_each(|worker| worker.is_leaving = true);
                };
                next.pools.iter_mut().flatten().for_each(leave);
                for &server in &servers {
                    next.servers[server].iter_mut().for_each(|one| one.is_leaving = true);
                }
                Ok(())
            }
            Change::MoveServer { ip, to, mac } => {
                let servers = servers_at(next, ip)?;
                let is_taken = next.servers.iter().flatten().any(|one| one.ip == to);
                if to != ip && is_taken {
                    return Err(ChangeError::Taken {
                        what: format!("server {to}"),
                        is_leaving: false,
                    });
                }
                if servers
                    .iter()
                    .any(|&index| next.servers[index].is_some_and(|one| one.former_ip.is_some()))
                {
                    let seconds = LEAVING_NS / 1_000_000_000;
                    let reason = "it moved recently, and replies may still come from its old place";
                    let reason = format!("{reason}; try again after {seconds} s");
                    return refused(format!("server {ip}"), reason);
                }
                for &server in &servers {
                    // A move to the same address only changes the MAC address.
                    let former = (to != ip).then_some(ip);
                    let relocate =
                        |one: &mut Server| (one.ip, one.mac, one.former_ip) = (to, mac, former);
                    next.servers[server].iter_mut().for_each(relocate);
                }
                Ok(())
            }
            Change::AddWorkers { server, pool, ref workers, speed } => {
                let server = server.unwrap_or_else(|| self.cores.own_host());
                self.add_workers(next, (server, pool), workers, speed)
            }
            Change::OfAgent(_) => Ok(()), // the leaf's own membership stays
            Change::RemoveWorkers { pool, ref workers } => {
                for &id in workers {
                    workers_of(next, pool, id)?.into_iter().for_each(|one| one.is_leaving = true);
                }
                Ok(())
            }
            Change::Drain { ref workers } => drain(next, workers, true),
            Change::Undrain { ref workers } => drain(next, workers, false),
            Change::AddPool { id, ref policy, queue, shared_workers, ref key_file } => {
                if let Some((_, pool)) = next.pool(id) {
                    let (what, is_leaving) = (format!("pool {id}"), pool.is_leaving);
                    return Err(ChangeError::Taken { what, is_leaving });
                }
                let settings = state::Pool::new(policy.clone(), queue);
                let key = key_file.as_deref().map(key_in).transpose()?;
                let fixed = FixedSettings { shared_workers, key, ..FixedSettings::default() };
                let settings = state::Pool { fixed, ..settings };
                self.check_choice(policy, &settings)?;
                let pool = Pool::new(id, settings, self.limits);
                // Tasks that waited for the ended pool may not have been dropped yet.
                settle(&mut next.pools, pool, |index| self.queued(index) == 0);
                check_limit(next.pools.len(), self.limits.pools, "pool", "pools_max")
            }
            Change::RemovePool { id } => {
                pool_of(next, id)?.is_leaving = true;
                Ok(())
            }
            Change::SetPolicy { pool, ref policy } => {
                let changed = &mut pool_of(next, pool)?.settings;
                self.check_choice(policy, changed)?;
                if changed.fixed.reports == Reports::Messages && changed.choice() != *policy {
                    let reason = "its workers report their queues as their own policy requires";
                    let reason = format!("{reason}; restart leaves and agents with the other one");
                    return refused(format!("policy of pool {pool}"), reason);
                }
                // The same choice again keeps the policy that the node has chosen.
                if changed.choice() != *policy {
                    (changed.policy, changed.auto) = (policy.first(), policy.objective());
                }
                Ok(())
            }
            Change::SwitchPolicy { pool, ref policy } => {
                check_policy(policy, self.cores.is_spine())?;
                let changed = &mut pool_of(next, pool)?.settings;
                if changed.auto.is_none() {
                    let reason = "its policy is fixed; change it by set-policy";
                    return refused(format!("running policy of pool {pool}"), reason);
                }
                if !policy.entry().is_eligible() {
                    let reason = "the simulator cannot predict it at a leaf; set it by set-policy";
                    return refused(format!("policy {policy} under auto"), reason);
                }
                changed.policy = policy.clone();
                Ok(())
            }
            Change::SetQueue { pool, queue } => {
                pool_of(next, pool)?.settings.queue = queue;
                Ok(())
            }
            Change::SetSpeed { pool, ref workers, speed } => {
                for &id in workers {
                    workers_of(next, pool, id)?.into_iter().for_each(|one| one.speed = speed);
                }
                Ok(())
            }
            Change::SetService { pool, ip } => set_service(next, pool, ip),
            Change::LinkPool { pool, spine: id, ip, signals } => {
                self.link(next, pool, Some((Spine { id, ip }, signals)))
            }
            Change::UnlinkPool { pool } => self.link(next, pool, None),
        }
    }

    /// Checks that a policy, or the choice by the node, suits this kind of node and this pool.
    fn check_choice(&self, policy: &PolicyChoice, pool: &state::Pool) -> Result<(), ChangeError> {
        let is_spine = self.cores.is_spine();
        let reason = match policy {
            PolicyChoice::Fixed(policy) => return check_policy(policy, is_spine),
            _ if is_spine => Some(SPINE_REFUSAL),
            _ => C::AUTO_REFUSAL.or_else(|| pool.auto_refusal()),
        };
        reason.map_or(Ok(()), |(reason, allowed)| {
            refused(format!("policy {policy}"), format!("{reason}; allowed: {allowed}"))
        })
    }

    /// Links a pool to a spine in `next`, or removes its link.
    fn link(
        &self,
        next: &mut Membership,
        pool: u16,
        to: Option<(Spine, Protocol)>,
    ) -> Result<(), ChangeError> {
        let by_messages = pool_of(next, pool)?.settings.fixed.reports == Reports::Messages;
        if let Some((spine, _)) = to {
            if by_messages {
                let reason = "a leaf's signals repeat what replies report, and this pool's replies report nothing";
                return refused(format!("a spine for pool {pool}"), reason);
            }
            let mut other_spines = next.spines.iter().flatten().filter(|one| one.id != spine.id);
            if let Some(other) = other_spines.find(|one| one.ip == spine.ip) {
                let reason = format!("spine {} has that address", other.id);
                return refused(format!("spine {} at {}", spine.id, spine.ip), reason);
            }
        }
        // The pool exists: `pool_of` has found it above.
        let index = next.pool(pool).map_or(usize::MAX, |(index, _)| index);
        if !next.link(index, to) {
            let reason =
                format!("a leaf is linked to at most {SPINES_MAX} spines; unlink a pool first");
            return refused("spine", reason);
        }
        Ok(())
    }

    /// Adds workers of the server with address `ip` to the pool `id` in `next`. Of several entries with the address,
    /// they get the one that the pool's other workers there have, or the first.
    fn add_workers(
        &self,
        next: &mut Membership,
        (ip, id): (IpAddr, u16),
        workers: &[u16],
        speed: f64,
    ) -> Result<(), ChangeError> {
        let servers = servers_at(next, ip)?;
        let members = next.pool(id).into_iter().flat_map(|(_, pool)| pool.members.iter().flatten());
        let mut entries = members.map(|worker| usize::from(worker.server));
        let server = entries.find(|server| servers.contains(server)).unwrap_or(servers[0]);
        if let Some(Server { ip, is_leaving: true, .. }) = next.servers[server] {
            return Err(ChangeError::Taken { what: format!("server {ip}"), is_leaving: true });
        }
        let server = server as u16;
        for &worker in workers {
            // A spine's leaf may be in other pools, too.
            let known = next.worker(worker).and_then(|(pool, place)| match self.cores.is_spine() {
                true => next.place(id, worker),
                false => Some((pool, place)),
            });
            if let Some((pool, place)) = known {
                let existing = next.pools[pool].as_ref().and_then(|pool| pool.members[place]);
                let (what, is_leaving) =
                    (format!("worker {worker}"), existing.is_some_and(|w| w.is_leaving));
                return Err(ChangeError::Taken { what, is_leaving });
            }
        }
        let all = next.workers().count() + workers.len();
        check_limit(all, self.cores.workers_max(), "worker", "workers_max")?;
        let pool = pool_of(next, id)?;
        if pool.is_leaving {
            return Err(ChangeError::Taken { what: format!("pool {id}"), is_leaving: true });
        }
        for &id in workers {
            settle(&mut pool.members, Worker::new(id, server, speed), |_| true);
        }
        check_limit(pool.members.len(), self.limits.workers, "worker of a pool", "workers_max")
    }

    /// Frees replaced objects, and checks that each core has room for an update.
    ///
    /// # Errors
    /// If a core has not finished the previous changes.
    fn make_ready(&mut self) -> Result<(), ChangeError> {
        self.cores.free_replaced();
        self.cores.has_room().then_some(()).ok_or(ChangeError::Busy)
    }

    /// Moves all cores to another membership: prepares the objects, changes the state, and sends the updates. Returns
    /// the epoch. Nothing has changed after an error.
    fn issue(&mut self, next: Membership, of_agent: &[Change]) -> Result<u64, ChangeError> {
        self.make_ready()?;
        invariants::check(&self.membership, &next, self.cores.is_spine());
        let ready = self.cores.prepare(&self.table, &next, of_agent)?;
        // The state precedes the updates, which refer to its new entries.
        self.table.change(&next.entries());
        let differences = Differences { from: &self.membership, to: &next };
        // Does not fail: `make_ready` has found room at each core.
        self.cores.issue(&self.table, &differences, ready)?;
        self.membership = next;
        Ok(self.membership.epoch)
    }

    /// Frees replaced objects and the places of departed members. Call it periodically; `now_ns` is any
    /// monotonic clock's.
    pub fn tend(&mut self, now_ns: u64) {
        self.cores.free_replaced();
        // While a core lags, it may still use departed members.
        if self.acknowledged() < self.membership.epoch {
            return;
        }
        self.note_leaving(now_ns);
        let (table, membership, leaving_since_ns) =
            (&*self.table, &self.membership, &self.leaving_since_ns);
        self.cores.collect(&SettledState { table, membership, leaving_since_ns, now_ns });
        if self.leaving_since_ns.is_empty() && !self.is_leaving() {
            return;
        }
        let mut next = self.membership.clone();
        if self.advance_departures(&mut next, now_ns) {
            next.epoch += 1;
            let _ = self.issue(next, &[]); // tried again at the next call if a core is busy
        }
    }

    /// Records the start times of new pending removals, and forgets finished ones.
    fn note_leaving(&mut self, now_ns: u64) {
        let pools = self.membership.pools.iter().flatten().filter(|pool| pool.is_leaving);
        let workers = self.membership.workers().filter(|(_, worker)| worker.is_leaving);
        let pools = pools.map(|pool| PendingRemoval::Pool(pool.id));
        let servers = self.membership.servers.iter().enumerate();
        let moved = servers.filter(|(_, server)| server.is_some_and(|one| one.former_ip.is_some()));
        let addresses = moved.map(|(index, _)| PendingRemoval::Address(index));
        let pool_id =
            |index: usize| self.membership.pools[index].as_ref().map_or(0, |pool| pool.id);
        let workers =
            workers.map(|(index, worker)| PendingRemoval::Worker(pool_id(index), worker.id));
        let all = pools.chain(workers).chain(addresses);
        let with_start =
            |removal| (removal, self.leaving_since_ns.get(&removal).copied().unwrap_or(now_ns));
        self.leaving_since_ns = all.map(with_start).collect();
    }

    /// Takes the due steps of departures, such as freeing the places of departed members. Returns true if `next`
    /// changed.
    ///
    /// A leaving pool first empties its queue, then its workers leave, and then it ends. The wait for the queue ends
    /// after [`LEAVING_NS`], and so does the wait for unanswered tasks if [`Cores::gives_up`].
    fn advance_departures(&self, next: &mut Membership, now_ns: u64) -> bool {
        let mut has_changed = false;
        let leaving_ns = |removal| {
            let since_ns = self.leaving_since_ns.get(&removal).copied().unwrap_or(now_ns);
            now_ns.saturating_sub(since_ns)
        };
        let is_over = |removal| leaving_ns(removal) > LEAVING_NS;
        for (index, place) in next.pools.iter_mut().enumerate() {
            let Some(pool) = place else { continue };
            let id = pool.id;
            if pool.is_leaving && (is_over(PendingRemoval::Pool(id)) || self.queued(index) == 0) {
                let staying = pool.members.iter_mut().flatten().filter(|one| !one.is_leaving);
                for worker in staying {
                    (worker.is_leaving, has_changed) = (true, true);
                }
            }
            for (member, place) in pool.members.iter_mut().enumerate() {
                // Members that begin to leave in `next` are still chosen by the cores.
                let current =
                    self.membership.pools[index].as_ref().and_then(|pool| pool.members[member]);
                let Some(worker) = current.filter(|worker| worker.is_leaving) else { continue };
                let removal = PendingRemoval::Worker(id, worker.id);
                // A member without tasks leaves once the time for which its id stays known has passed.
                let is_done = match self.outstanding(index, member) {
                    ..=0 => leaving_ns(removal) >= self.cores.linger_ns(worker.id),
                    _ => self.cores.gives_up() && is_over(removal),
                };
                if is_done {
                    (*place, has_changed) = (None, true);
                }
            }
            if pool.is_leaving && pool.members.iter().all(Option::is_none) {
                (*place, has_changed) = (None, true);
            }
        }
        // A leaving server stays while it has workers.
        let used: Vec<_> = next.workers().map(|(_, worker)| worker.server).collect();
        for (index, place) in next.servers.iter_mut().enumerate() {
            if let Some(server) = place
                && server.former_ip.is_some()
                && is_over(PendingRemoval::Address(index))
            {
                // Replies from the former address are no longer accepted.
                (server.former_ip, has_changed) = (None, true);
            }
            let is_leaving = place.is_some_and(|server| server.is_leaving);
            if is_leaving && !used.contains(&(index as u16)) {
                (*place, has_changed) = (None, true);
            }
        }
        has_changed
    }

    /// Returns the number of tasks in a pool's queues on all cores.
    fn queued(&self, pool: usize) -> u64 {
        (0..self.table.cores()).map(|core| self.table.queued(core, pool)).sum()
    }

    /// Returns the number of unanswered tasks of a member, over all cores.
    fn outstanding(&self, pool: usize, member: usize) -> i64 {
        self.table.outstanding(pool, Member(member as u16))
    }
}

/// Returns the changes that are for an agent on the node's own core, without their marker [`Change::OfAgent`].
fn of_agent(changes: &[Change]) -> Vec<Change> {
    let of_agent = changes.iter().filter_map(|change| match change {
        Change::OfAgent(change) => Some(Change::clone(change)),
        _ => None,
    });
    of_agent.collect()
}

/// Checks a number against its limit. The error names the object and the setting.
fn check_limit(
    count: usize,
    most: usize,
    what: &'static str,
    setting: &'static str,
) -> Result<(), ChangeError> {
    if count <= most { Ok(()) } else { Err(ChangeError::Full { what, most, setting }) }
}

/// Drains or undrains workers in all pools in which they stay. Refuses a worker that is leaving all its pools.
fn drain(
    membership: &mut Membership,
    workers: &[u16],
    is_drained: bool,
) -> Result<(), ChangeError> {
    for &id in workers {
        let workers = workers_of(membership, None, id)?.into_iter();
        let staying: Vec<_> = workers.filter(|worker| !worker.is_leaving).collect();
        if staying.is_empty() {
            let reason = "it is leaving, and receives no more tasks".to_owned();
            return Err(ChangeError::Refused { what: format!("worker {id}"), reason });
        }
        staying.into_iter().for_each(|worker| worker.is_drained = is_drained);
    }
    Ok(())
}

/// Checks that a policy suits the kind of node.
fn check_policy(policy: &PolicySpec, is_spine: bool) -> Result<(), ChangeError> {
    let entry = policy.entry();
    // A leaf's policy may name the spine's policy that goes with it. A spine's policy names itself.
    let is_over_racks = entry.over_racks.is_some_and(|over| over.policy == entry.name);
    let reason = match is_spine {
        true if !is_over_racks => "its members are workers; a spine's are leaves",
        false if entry.runs == Runs::Spine => {
            "it runs on a spine; `wedjat policies` lists those of a leaf"
        }
        _ => return Ok(()),
    };
    refused(format!("policy {policy}"), reason)
}

/// Reads a key file.
fn key_in(path: &Path) -> Result<Key, ChangeError> {
    let what = || format!("key-file={}", path.display());
    read_key(path).or_else(|reason| refused(what(), format!("{reason}; allowed: {KEY_FILE}")))
}

/// Returns the indices of the servers with this address: one, or one for each `[[server]]` entry of the
/// configuration.
fn servers_at(membership: &Membership, ip: IpAddr) -> Result<Vec<usize>, ChangeError> {
    let servers = membership.servers.iter().enumerate();
    let servers = servers.filter(|(_, server)| server.is_some_and(|server| server.ip == ip));
    let indices: Vec<_> = servers.map(|(index, _)| index).collect();
    let unknown = || ChangeError::Unknown { what: format!("server {ip}") };
    if indices.is_empty() { Err(unknown()) } else { Ok(indices) }
}

/// Returns the pool with this id.
fn pool_of(membership: &mut Membership, id: u16) -> Result<&mut Pool, ChangeError> {
    let pool = membership.pools.iter_mut().flatten().find(|pool| pool.id == id);
    pool.ok_or_else(|| ChangeError::Unknown { what: format!("pool {id}") })
}

/// Sets the address at which clients reach a pool; `None` means the node's own.
fn set_service(
    membership: &mut Membership,
    id: u16,
    ip: Option<IpAddr>,
) -> Result<(), ChangeError> {
    let what = |ip: IpAddr| format!("service {ip}");
    let is_taken = |ip| membership.servers.iter().flatten().any(|server| server.ip == ip);
    if let Some(ip) = ip.filter(|&ip| is_taken(ip)) {
        return refused(what(ip), "a server has that address");
    }
    pool_of(membership, id)?.settings.service = ip;
    Ok(())
}

/// Checks that no server has the service address of a pool. It sees the result of all changes, because one may free an
/// address for another.
fn check_services(membership: &Membership) -> Result<(), ChangeError> {
    let pools = membership.pools.iter().flatten();
    let services: BTreeSet<_> = pools.filter_map(|pool| pool.settings.service).collect();
    let mut servers = membership.servers.iter().flatten();
    match servers.find(|server| services.contains(&server.ip)) {
        Some(Server { ip, .. }) => {
            refused(format!("server {ip}"), "it is a service address of the node's")
        }
        None => Ok(()),
    }
}

/// Returns the worker with this id; for a spine's leaf, in each of its pools or in a given one.
fn workers_of(
    membership: &mut Membership,
    pool: Option<u16>,
    id: u16,
) -> Result<Vec<&mut Worker>, ChangeError> {
    let is_included = |one: &&mut Pool| pool.is_none_or(|pool| one.id == pool);
    let pools = membership.pools.iter_mut().flatten().filter(is_included);
    let members = pools.flat_map(|pool| &mut pool.members);
    let workers: Vec<_> = members.flatten().filter(|worker| worker.id == id).collect();
    let of_pool = || pool.map_or_else(String::new, |pool| format!(" of pool {pool}"));
    let unknown = || ChangeError::Unknown { what: format!("worker {id}{}", of_pool()) };
    if workers.is_empty() { Err(unknown()) } else { Ok(workers) }
}
