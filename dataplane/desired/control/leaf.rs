//! Control of a leaf, a spine, or a scheduler embedded in another program: the network around it, and the update of
//! each core to the next membership (pools, servers and workers).
//!
//! The network maps members, which are workers by their place in a pool, to addresses. It pins their next hops: the
//! entries of these hosts stay in their slots of the table of neighbours until they are unpinned.

use std::net::IpAddr;
use std::sync::Arc;

use wedjat_core::limits::MEMBERS_MAX;
use wedjat_core::node::Commands;
use wedjat_core::policy::Core;
use wedjat_core::role::colocated;
use wedjat_core::stage::affinity::UnfinishedTasks;
use wedjat_core::stage::fabric::{Fabric, Shared};
use wedjat_core::stage::network::NetworkError;
use wedjat_core::stage::{Network, Recognition, Stages, Step, Update};
use wedjat_core::state::table::Limits;
use wedjat_core::state::{Member, Table};

use super::change::{invalid_text, refused};
use super::difference::{Difference, Differences};
use super::membership::{Membership, Pool};
use super::{Change, ChangeError, Cores, SettledState};
use crate::config::is_unicast;
use crate::state::{AutoRefusal, EMBEDDED_REFUSAL};

/// Time for which the slot of an unused next hop is not reused. Packets are held for a next hop for less time.
const HELD_NS: u64 = 2_000_000_000;

/// Cores of a leaf or an embedded scheduler.
#[derive(Debug)]
pub struct LeafCores {
    /// Network of the latest membership.
    network: Arc<Network>,
    /// Maximum number of waiting tasks on each core, for which it has memory.
    waiting: usize,
    /// Queue of updates to each core, and of applied updates back.
    cores: Vec<Commands>,
    /// State of the signals to and from spines, shared by all cores; `None` before the first link.
    fabric: Option<Arc<Shared>>,
    /// True if pools may be linked to spines.
    may_link: bool,
    /// True if next hops may be pinned that no network uses any more.
    has_old_hops: bool,
    /// Time since which no core uses them, in nanoseconds; `None` until `collect` sees them first.
    old_hops_since_ns: Option<u64>,
}

impl LeafCores {
    /// Creates the cores with these stages and commands.
    ///
    /// # Panics
    /// If there is no core.
    #[must_use]
    pub fn new(stages: &[Stages], cores: Vec<Commands>) -> Self {
        let first = stages.first().expect("a node has a core");
        Self {
            network: Arc::clone(first.network()),
            waiting: first.capacity().waiting,
            cores,
            fabric: first.fabric().map(|fabric| Arc::clone(fabric.shared())),
            may_link: true,
            has_old_hops: false,
            old_hops_since_ns: None,
        }
    }

    /// Returns the same cores, for a node that sends no signals to spines.
    #[must_use]
    pub fn without_spines(self) -> Self {
        Self { may_link: false, ..self }
    }
}

impl Cores for LeafCores {
    /// Network of the next membership.
    type PreparedChange = Arc<Network>;

    /// Log text for a change that all cores use.
    const DECIDE: &'static str = "all cores use it";
    const AUTO_REFUSAL: Option<AutoRefusal> = Some(EMBEDDED_REFUSAL);

    /// Checks addresses, queue and links of a change.
    fn check(&self, change: &Change) -> Result<(), ChangeError> {
        match *change {
            Change::MoveServer { ip, to, .. } => {
                check_is_remote(ip).and_then(|()| self.check_address(to))
            }
            Change::AddServer { ip, .. } => self.check_address(ip),
            Change::RemoveServer { ip } => check_is_remote(ip),
            Change::AddWorkers { server: None, .. } => {
                let allowed = "add-workers server=… pool=… workers=… [speed=…]";
                Err(invalid_text("no `server` in `add-workers`", allowed))
            }
            Change::AddPool { queue, .. } | Change::SetQueue { queue, .. } => {
                self.check_queue(queue.tasks)
            }
            Change::LinkPool { pool, .. } if !self.may_link || self.is_spine() => {
                let reason = if self.is_spine() {
                    "this node is a spine; only a leaf's pools are linked to one"
                } else {
                    "this program sends no packets of its own; only `wedjat leaf` tells spines of its pools"
                };
                refused(format!("link of pool {pool}"), reason)
            }
            Change::LinkPool { ip, .. } => self.check_host("spine", ip),
            Change::SetService { ip: Some(ip), .. } => self.check_host("service", ip),
            _ => Ok(()),
        }
    }

    /// Returns true if the members are leaves.
    fn is_spine(&self) -> bool {
        self.network.is_spine()
    }

    /// Returns the maximum number of workers over all pools.
    fn workers_max(&self) -> usize {
        MEMBERS_MAX
    }

    /// Returns true if the leaf's spine at this place is silent. The controller may then mark the spine as down.
    fn is_spine_silent(&self, place: usize) -> bool {
        self.fabric.as_ref().is_some_and(|fabric| fabric.is_silent(place))
    }

    /// Returns the epoch, the number of a change, that all cores have reached; `None` without cores.
    fn epoch(&self) -> Option<u64> {
        self.cores.iter().map(Commands::epoch).min()
    }

    /// Returns true if the queue to each core has room for another update.
    fn has_room(&self) -> bool {
        self.cores.iter().all(Commands::has_room)
    }

    /// Frees the updates that cores have applied, with the objects that they replaced.
    fn free_replaced(&mut self) {
        for core in &self.cores {
            while let Some(update) = core.next_done() {
                drop(update);
            }
        }
    }

    /// Creates the network of the next membership.
    fn prepare(
        &mut self,
        table: &Table,
        next: &Membership,
        _of_agent: &[Change],
    ) -> Result<Self::PreparedChange, ChangeError> {
        // The new network pins next hops. It may lack those of the old one, or of a change that fails here.
        (self.has_old_hops, self.old_hops_since_ns) = (true, None);
        let network = next.network(self.network.base(), table.limits(), &table.neighbours());
        network.map_err(|error| {
            let what = match error {
                NetworkError::Unreachable(ip) => format!("server {ip}"),
                NetworkError::UnreachableSpine(ip) => format!("spine {ip}"),
                NetworkError::TooManyNeighbours => "server".to_owned(),
                NetworkError::MixedFamilies(pool)
                | NetworkError::OtherFamily(pool, ..)
                | NetworkError::DirectRouted(pool, _)
                | NetworkError::DirectAddresses(pool, _)
                | NetworkError::DirectLocal(pool) => format!("pool {pool}"),
            };
            ChangeError::Refused { what, reason: error.to_string() }
        })
    }

    /// Sends each core its update. The first link to a spine also creates the state of the signals.
    fn issue(
        &mut self,
        table: &Table,
        differences: &Differences<'_>,
        network: Arc<Network>,
    ) -> Result<(), ChangeError> {
        let updates = Updates { differences, network: &network };
        // Signals to spines report the load of the rack. All cores share their state.
        let starts_signals = self.fabric.is_none() && differences.to.has_links();
        let shared = || Shared::new(self.cores.len(), table.limits().pools);
        let new_fabric = starts_signals.then(shared);
        for (index, commands) in self.cores.iter().enumerate() {
            let mut update = updates.of_core(table, (index, self.cores.len()));
            update.fabric = new_fabric.as_ref().map(|shared| {
                let core = Core { index, count: self.cores.len() };
                let Limits { pools, workers, .. } = table.limits();
                Box::new(Fabric::new(&network, core, Arc::clone(shared), pools, workers))
            });
            // There was room for each, and no other thread sends commands that fill it.
            commands.push(Box::new(update)).map_err(|_| ChangeError::Busy)?;
        }
        self.network = network;
        self.fabric = self.fabric.take().or(new_fabric);
        Ok(())
    }

    /// Unpins old next hops after no packet can wait for them any more. All cores use the latest network.
    fn collect(&mut self, &SettledState { table, now_ns, .. }: &SettledState<'_>) {
        if !self.has_old_hops {
            return;
        }
        let since_ns = *self.old_hops_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) > HELD_NS {
            self.unpin_old_hops(table);
            self.has_old_hops = false;
        }
    }
}

impl LeafCores {
    /// Checks that the address may be a server's.
    fn check_address(&self, ip: IpAddr) -> Result<(), ChangeError> {
        self.check_host("server", ip).and_then(|()| check_is_remote(ip))
    }

    /// Checks that the address is a host's, and not the node's own.
    fn check_host(&self, what: &str, ip: IpAddr) -> Result<(), ChangeError> {
        match () {
            () if self.network.is_own_address(ip) => {
                refused(format!("{what} {ip}"), "it is the node's own address")
            }
            () if !is_unicast(ip) => refused(format!("{what} {ip}"), "it is not a host's address"),
            () => Ok(()),
        }
    }

    /// Checks that the memory reserved at the start suffices for a queue.
    fn check_queue(&self, queue: usize) -> Result<(), ChangeError> {
        if queue <= self.waiting {
            return Ok(());
        }
        let reason = format!("each core has memory for {} tasks that wait", self.waiting);
        refused(format!("queue={queue}"), format!("{reason}; restart with a larger `queue`"))
    }

    /// Unpins next hops that the network does not use. No core reads them any more, and no packet waits for them.
    fn unpin_old_hops(&self, table: &Table) {
        let neighbours = table.neighbours();
        let gateways = self.network.gateways().map(|gateway| gateway.slot);
        let servers = self.network.servers().map(|server| server.slot);
        let spines = self.network.spines().map(|spine| spine.slot);
        let used: Vec<_> = servers.chain(spines).chain(gateways).collect();
        let old: Vec<_> = neighbours.pinned_slots().filter(|slot| !used.contains(slot)).collect();
        old.into_iter().for_each(|slot| neighbours.unpin(slot));
    }
}

/// Refuses the address that stands for this host's own workers.
fn check_is_remote(ip: IpAddr) -> Result<(), ChangeError> {
    if colocated::is_agent(ip) {
        return refused(format!("server {ip}"), "it stands for this host's own workers");
    }
    Ok(())
}

/// Source of the cores' updates: two memberships, and the network of the second one.
struct Updates<'a> {
    differences: &'a Differences<'a>,
    network: &'a Arc<Network>,
}

impl Updates<'_> {
    /// Returns the update of the core at `index` out of `count`.
    fn of_core(&self, table: &Table, (index, count): (usize, usize)) -> Update {
        let core = Core { index, count };
        let mut steps = Vec::new();
        for (pool, difference) in self.differences.all() {
            // An ended pool needs no step, except to forget its members.
            let Some(to) = &self.differences.to.pools[pool] else {
                push_forgotten(&mut steps, pool, difference);
                continue;
            };
            match difference {
                Difference::Begin => begin(&mut steps, (pool, to), table, core),
                _ => self.step(&mut steps, (pool, to), difference, core),
            }
        }
        Update {
            epoch: self.differences.to.epoch,
            fabric: None,
            recognition: Some(Recognition::new(Arc::clone(self.network))),
            steps,
            changed_pools: self.differences.changed_pools(),
        }
    }

    /// Adds the steps of a difference of a pool in the next membership.
    fn step(
        &self,
        steps: &mut Vec<Step>,
        (pool, to): (usize, &Pool),
        difference: Difference,
        core: Core,
    ) {
        // The number of members for which the pool's dispatcher has room.
        let places = self.network.members(pool).len();
        match difference {
            Difference::Join(member) => {
                let worker = to.members.get(member.index()).copied().flatten();
                let is_local = worker.is_some_and(|worker| self.differences.to.is_local(&worker));
                steps.push(Step::Register { pool, member });
                // A local worker becomes eligible when the agent reports it.
                let active = worker.is_some_and(|worker| worker.is_active());
                if !(is_local && active) {
                    steps.push(Step::Choose { pool, member, active });
                }
            }
            Difference::Move(member) => steps.push(Step::Register { pool, member }),
            Difference::Leave(member) => {
                steps.push(Step::Choose { pool, member, active: false });
            }
            Difference::Drain(member) => steps.push(Step::Drain { pool, member }),
            Difference::Undrain(member) => steps.push(Step::Choose { pool, member, active: true }),
            difference => {
                let change = difference.change(to, places, core);
                steps.extend(change.map(|change| Step::Set { pool, change }));
                // Closing a pool needs no step: the network knows which pools accept no tasks.
                push_forgotten(steps, pool, difference);
            }
        }
    }
}

/// Adds the steps for a member that has left; none for other differences. The second step empties its place.
fn push_forgotten(steps: &mut Vec<Step>, pool: usize, difference: Difference) {
    if let Difference::Forget(member) = difference {
        steps.push(Step::Forget { pool, member });
        steps.push(Step::Register { pool, member });
    }
}

/// Adds the steps of a new pool: its dispatcher, and the registration of each place, with or without a worker.
fn begin(steps: &mut Vec<Step>, (pool, to): (usize, &Pool), table: &Table, core: Core) {
    let dispatcher = to.dispatcher(pool, table, core);
    let places = dispatcher.view().members();
    steps.push(Step::Begin {
        pool,
        dispatcher: Box::new(Some(dispatcher)),
        shared_workers: to.settings.fixed.shared_workers,
        unfinished: Some(UnfinishedTasks::of_new_pool()),
    });
    let places = (0..places as u16).map(Member);
    steps.extend(places.map(|member| Step::Register { pool, member }));
}
