//! Control of an agent: channels of its region, and updates for its core. It is the agent's implementation of
//! [`Cores`].
//!
//! A *region* is memory shared with the workers. A *channel* is the part of it for one worker, with a ring of tasks
//! and one of replies. An *entry* is the core's state of a channel; it moves between the control and the core.
//!
//! A channel outlives its worker. Its entry keeps the numbers of tasks and claims, and the next worker continues them.
//! The control assigns a channel again only after no process holds its lock. A worker names itself in its claim, so one
//! with an outdated offer gets no tasks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use wedjat_core::io::{Buf, Token};
use wedjat_core::limits::MEMBERS_MAX;
use wedjat_core::policy::fifo::Slab;
use wedjat_core::policy::{Core, PolicySpec};
use wedjat_core::ring::{WorkerIdentity, WorkerRegion};
use wedjat_core::role::agent::{
    AgentCommands, Entry, Signer, Step, Update, WorkerEntry, WorkerSet,
};
use wedjat_core::state::{Member, Table};
use wedjat_core::wire::auth::{self, Key};
use wedjat_core::wire::task::NO_MEMBER;

use super::change::refused;
use super::difference::{Difference, Differences};
use super::membership::{Membership, Pool, Worker};
use super::{Change, ChangeError, Cores};
use crate::config::UNSPECIFIED;
use crate::state::AutoRefusal;

/// Time for which the id of a removed worker stays known. A leaf sends tasks to a silent worker until its timeout,
/// and other workers of the pool serve them meanwhile.
const KNOWN_NS: u64 = 1_000_000_000;

/// Parts of an agent's control, besides its state and its membership (pools and workers).
#[derive(Debug)]
pub struct AgentParts<B: Buf + Token> {
    /// Region that workers attach to; `None` for threads of this process, to which none can be added.
    pub region: Option<Arc<WorkerRegion>>,
    /// Queue of updates to the core, and of applied updates back.
    pub commands: AgentCommands<B>,
    /// Slots of each worker's ring.
    pub slots: usize,
    /// Maximum bytes of a task or a reply.
    pub payload: usize,
    /// Maximum bytes of a task or a reply without a proof in one frame. A proof is a tag made with a pool's key.
    pub payload_max: usize,
    /// True if the agent registers its workers with a leaf.
    pub has_leaf: bool,
    /// Clock ticks of silence after which a worker with tasks is excluded.
    pub timeout: u64,
    /// Signer of the workers' messages.
    pub signer: Option<Arc<Signer>>,
}

/// An agent's core as its control sees it: commands to the core, and the channels of its workers.
#[derive(Debug)]
pub struct AgentCores<B: Buf + Token> {
    parts: AgentParts<B>,
    /// Address of the agent, shared by all its workers.
    address: IpAddr,
    /// Channel of each worker, by id.
    channels: BTreeMap<u16, usize>,
    /// Entries of channels without a worker id.
    free: Vec<Entry<B>>,
    /// Capacity in tasks of each pool's queue memory, by index. It never shrinks while the pool lasts.
    rooms: Vec<usize>,
}

impl<B: Buf + Token> AgentCores<B> {
    /// Creates the control's part for the core of an agent that starts with `membership`. The region has already
    /// assigned the channels of its workers.
    #[must_use]
    pub fn new(parts: AgentParts<B>, membership: &Membership) -> Self {
        let (mut channels, mut free) = (BTreeMap::new(), Vec::new());
        for channel in parts.region.iter().flat_map(|region| 0..region.shape().channels) {
            let Some(region) = &parts.region else { break };
            match region.identity(channel) {
                Some(identity) => _ = channels.insert(identity.id, channel),
                None => free.push(WorkerEntry::new(NOBODY, region.channel(channel))),
            }
        }
        let server = membership.servers.first().copied().flatten();
        let address = server.map_or(UNSPECIFIED, |server| server.ip);
        let rooms =
            membership.pools.iter().flatten().map(|pool| pool.settings.queue.tasks).collect();
        Self { parts, address, channels, free, rooms }
    }
}

/// Identity in the entry of a channel without a worker.
const NOBODY: WorkerIdentity = WorkerIdentity { id: NO_MEMBER, pool: u16::MAX };

impl<B: Buf + Token> Cores for AgentCores<B> {
    /// Entries for new workers, by id.
    type PreparedChange = BTreeMap<u16, Entry<B>>;

    /// Log text for a change that the core uses.
    const DECIDE: &'static str = "the core uses it";
    const AUTO_REFUSAL: Option<AutoRefusal> =
        Some(("an agent captures no tasks of its workers", "one policy, as in cfcfs"));

    /// Refuses changes of objects that an agent lacks: servers, links, service addresses, and workers of other hosts.
    /// Refuses shared workers as well, and more workers of an agent whose workers are threads. Checks that the region
    /// has room for a policy's bound and for proofs.
    fn check(&self, change: &Change) -> Result<(), ChangeError> {
        match *change {
            Change::AddServer { ip, .. }
            | Change::RemoveServer { ip }
            | Change::MoveServer { ip, .. } => {
                let reason = "an agent's workers are on its own host; servers are a leaf's";
                refused(format!("server {ip}"), reason)
            }
            Change::AddWorkers { server: Some(ip), .. } if ip != self.address => {
                let address = self.address;
                let reason = format!("an agent's workers are on its own host, {address}");
                refused(format!("server={ip}"), format!("{reason}; leave `server` out"))
            }
            Change::AddWorkers { .. } if self.parts.region.is_none() => {
                let reason =
                    "this agent's workers are threads of its own process, as many as it began with";
                refused("add-workers", format!("{reason}; restart it with more `workers`"))
            }
            Change::SetService { .. } | Change::LinkPool { .. } | Change::UnlinkPool { .. } => {
                refused(
                    change.to_string(),
                    "this node is an agent; leaves and spines have links and service addresses",
                )
            }
            Change::AddPool { shared_workers: true, .. } => {
                let reason = "only leaves read reports; leave it out here";
                refused("shared-workers=true", reason)
            }
            Change::AddPool { ref policy, ref key_file, .. } => {
                self.check_bound(&policy.first())?;
                key_file.as_ref().map_or(Ok(()), |_| self.check_proof())
            }
            Change::SetPolicy { ref policy, .. } => self.check_bound(&policy.first()),
            _ => Ok(()),
        }
    }

    /// Returns the address of the host for workers without a server.
    fn own_host(&self) -> IpAddr {
        self.address
    }

    /// Returns the maximum number of workers: one for each channel of the region.
    fn workers_max(&self) -> usize {
        self.parts.region.as_ref().map_or(MEMBERS_MAX, |region| region.shape().channels)
    }

    /// Returns the epoch, the number of a change, that the core has reached; never `None`.
    fn epoch(&self) -> Option<u64> {
        Some(self.parts.commands.epoch())
    }

    /// Returns true if the queue to the core has room for another update.
    fn has_room(&self) -> bool {
        self.parts.commands.has_room()
    }

    /// Takes back the updates that the core has applied. Entries of removed workers become free.
    fn free_replaced(&mut self) {
        while let Some(update) = self.parts.commands.next_done() {
            for step in update.steps {
                if let Step::Remove { entry, .. } = step
                    && self.parts.region.is_some()
                {
                    self.free.extend(*entry);
                }
            }
        }
    }

    /// Takes an entry for each new worker from the free ones, if no process is attached to the entry's channel.
    fn prepare(
        &mut self,
        _: &Table,
        next: &Membership,
        _of_agent: &[Change],
    ) -> Result<Self::PreparedChange, ChangeError> {
        let new = next.workers().map(|(_, worker)| worker.id);
        let new: Vec<_> = new.filter(|id| !self.channels.contains_key(id)).collect();
        let Some(region) = self.parts.region.as_ref().filter(|_| !new.is_empty()) else {
            return Ok(BTreeMap::new());
        };
        // A process of a removed worker may still be attached to its channel.
        let (usable, occupied): (Vec<_>, Vec<_>) =
            self.free.drain(..).partition(|entry| !region.has_worker(entry.channel()));
        self.free = occupied;
        let available = usable.len();
        if available < new.len() {
            self.free.extend(usable);
            if self.parts.commands.epoch() + 1 < next.epoch {
                return Err(ChangeError::Busy); // the core has entries to return, which may suffice
            }
            let reason = format!(
                "only {available} places are free; processes of released workers still hold others: end them"
            );
            return refused("add-workers", reason);
        }
        let mut usable = usable.into_iter();
        let ready = new.into_iter().zip(usable.by_ref()).collect();
        self.free.extend(usable);
        Ok(ready)
    }

    /// Sends the core the steps of the change. New entries move to the core with them.
    fn issue(
        &mut self,
        table: &Table,
        differences: &Differences<'_>,
        mut ready: Self::PreparedChange,
    ) -> Result<(), ChangeError> {
        let mut steps = Vec::new();
        for (pool, difference) in differences.all() {
            let from = differences.from.pools.get(pool).and_then(Option::as_ref);
            match (difference, &differences.to.pools[pool]) {
                (Difference::Begin, Some(to)) => self.begin(&mut steps, (pool, to), table),
                (Difference::Close, _) => steps.push(Step::Close { pool }),
                (Difference::End, _) => steps.push(Step::End { pool }),
                (Difference::Join(member), Some(to)) => {
                    let Some((identity, entry)) = self.join(to, member, &mut ready) else {
                        continue;
                    };
                    steps.push(Step::Add { pool, member, identity, entry: Box::new(Some(entry)) });
                    // The same update may drain or remove the worker, which no other difference says.
                    let worker = to.members.get(member.index()).copied().flatten();
                    if worker.is_some_and(|worker| worker.is_leaving) {
                        self.withdraw_channel(to, member);
                        steps.push(Step::Retire { pool, member });
                    } else if worker.is_some_and(|worker| worker.is_drained) {
                        steps.push(Step::Drain { pool, member, is_drained: true });
                    }
                }
                (Difference::Leave(member), Some(to)) => {
                    self.withdraw_channel(to, member);
                    steps.push(Step::Retire { pool, member });
                }
                (Difference::Drain(member), _) => {
                    steps.push(Step::Drain { pool, member, is_drained: true });
                }
                (Difference::Undrain(member), _) => {
                    steps.push(Step::Drain { pool, member, is_drained: false });
                }
                (Difference::Forget(member), _) => {
                    // The core puts the worker's entry into the step. `free_replaced` takes it from there.
                    let Some(identity) = from.and_then(|from| identity_of(from, member)) else {
                        continue;
                    };
                    self.channels.remove(&identity.id);
                    steps.push(Step::Remove { pool, member, identity, entry: Box::new(None) });
                }
                (difference, Some(to)) => {
                    if difference == Difference::Queue {
                        // The core must not allocate, so it gets memory for the larger queue. Waiting tasks move there.
                        let room = &mut self.rooms[pool];
                        *room = to.settings.queue.tasks.max(*room);
                        steps.push(Step::Room { pool, memory: Slab::with_room(*room) });
                    }
                    let change = difference.change(to, table.limits().workers, Core::ONLY);
                    steps.extend(change.map(|change| Step::Set { pool, change }));
                }
                _ => {}
            }
        }
        steps.extend(self.next_signer(differences).map(Step::Sign));
        let (epoch, changed_pools) = (differences.to.epoch, differences.changed_pools());
        let update = Box::new(Update { epoch, steps, changed_pools });
        // Never busy: there was room, and no other thread sends commands.
        self.parts.commands.push(update).map_err(|_| ChangeError::Busy)
    }

    /// Returns the time for which the id of a removed worker stays known; 0 without a leaf that may still send tasks.
    fn linger_ns(&self, _: u16) -> u64 {
        if self.parts.has_leaf { KNOWN_NS } else { 0 }
    }

    /// Returns true if unanswered tasks of a leaving worker count as lost after a timeout.
    fn gives_up(&self) -> bool {
        // Tasks of a thread of this process are never lost.
        self.parts.region.is_some()
    }
}

impl<B: Buf + Token> AgentCores<B> {
    /// Returns true if a worker's process is attached; always for threads of this process.
    pub(super) fn is_attached(&self, worker: u16) -> bool {
        let Some(region) = &self.parts.region else { return true };
        self.channels.get(&worker).is_some_and(|&channel| region.has_worker(channel))
    }

    /// Checks that a policy's bound fits into the workers' rings.
    fn check_bound(&self, policy: &PolicySpec) -> Result<(), ChangeError> {
        let slots = self.parts.slots;
        if policy.bound().is_none_or(|limit| limit as usize <= slots) {
            return Ok(());
        }
        let reason = format!("k of at most {slots}, the `slots` of each worker's ring");
        refused(format!("policy {policy}"), reason)
    }

    /// Checks that a reply has room for its proof.
    fn check_proof(&self) -> Result<(), ChangeError> {
        let (payload, limit) = (self.parts.payload, self.parts.payload_max - auth::LEN);
        if payload <= limit {
            return Ok(());
        }
        let reason = format!("replies of {payload} bytes leave no room for a proof; restart with");
        refused("key-file", format!("{reason} a `payload` of at most {limit}"))
    }

    /// Adds the step that begins a pool, without workers.
    fn begin(&mut self, steps: &mut Vec<Step<B>>, (pool, to): (usize, &Pool), table: &Table) {
        let dispatcher = to.dispatcher(pool, table, Core::ONLY);
        let nobody = Vec::<(WorkerIdentity, wedjat_core::ring::Channel)>::new();
        let new = WorkerSet::new(to.id, dispatcher, nobody, self.parts.timeout);
        self.rooms.resize(self.rooms.len().max(pool + 1), 0);
        self.rooms[pool] = to.settings.queue.tasks;
        steps.push(Step::Begin { pool, new: Box::new(Some(new)) });
    }

    /// Returns the identity and the entry of a new worker, and offers its channel to processes. Returns `None` if no
    /// entry is ready for it.
    fn join(
        &mut self,
        to: &Pool,
        member: Member,
        ready: &mut BTreeMap<u16, Entry<B>>,
    ) -> Option<(WorkerIdentity, Entry<B>)> {
        let identity = identity_of(to, member)?;
        let entry = ready.remove(&identity.id)?.renamed(identity);
        self.channels.insert(identity.id, entry.channel());
        let region = self.parts.region.as_ref()?;
        region.offer(entry.channel(), Some(identity));
        Some((identity, entry))
    }

    /// Withdraws the channel of a leaving worker, so that no process attaches to it.
    fn withdraw_channel(&self, pool: &Pool, member: Member) {
        let channel =
            identity_of(pool, member).and_then(|identity| self.channels.get(&identity.id));
        if let (Some(&channel), Some(region)) = (channel, &self.parts.region) {
            region.offer(channel, None); // an attached process stays
        }
    }

    /// Returns the new signer, or `Some(None)` to remove it. Returns `None` if the workers of pools with keys are
    /// the same, or there is no region.
    fn next_signer(&mut self, differences: &Differences<'_>) -> Option<Option<Arc<Signer>>> {
        let ids = |membership: &Membership| {
            keys(membership).into_iter().map(|(worker, _)| worker).collect::<Vec<_>>()
        };
        self.parts.region.as_ref()?;
        if ids(differences.from) == ids(differences.to) {
            return None;
        }
        let signer = signer(differences.to, self.parts.signer.as_deref()).map(Arc::new);
        self.parts.signer.clone_from(&signer);
        Some(signer)
    }
}

/// Creates the signer of workers in pools with a key; `None` without such workers. It continues the sequence numbers of
/// `before`.
#[must_use]
pub fn signer(membership: &Membership, before: Option<&Signer>) -> Option<Signer> {
    let clock = || auth::sequence_at(SystemTime::now());
    Signer::following(before, keys(membership), clock)
}

/// Returns the workers of pools with a key, each with its key.
fn keys(membership: &Membership) -> Vec<(u16, Key)> {
    let keyed = |pool: &Pool| {
        let workers = pool.members.iter().flatten().map(|worker: &Worker| worker.id);
        let key = pool.settings.fixed.key.clone();
        workers.filter_map(|worker| Some((worker, key.clone()?))).collect::<Vec<_>>()
    };
    membership.pools.iter().flatten().flat_map(keyed).collect()
}

/// Returns the identity of a member; `None` for an unused index.
fn identity_of(pool: &Pool, member: Member) -> Option<WorkerIdentity> {
    let worker = pool.members.get(member.index()).copied().flatten()?;
    Some(WorkerIdentity { id: worker.id, pool: pool.id })
}
