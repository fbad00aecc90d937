//! Effects of commands. All decisions about a fabric are made here, by pure functions: the leading controller calls
//! [`Fabric::decide`] for each command and stores the result.
//!
//! A decision yields events, the smallest changes of a fabric. First the command makes its own events. Then
//! [`Draft::settle`] gives pools the workers that they lack, and links their racks to spines. A rack is a leaf with its
//! servers and workers. A link assigns a rack of a pool to the spine that sends it the pool's tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use wedjat_core::limits::MEMBERS_MAX;
use wedjat_core::policy::{PolicyChoice, Runs};
use wedjat_desired::config::is_unicast;

use super::command::{Command, CommandError, FABRIC_WORKERS_MAX};
use super::event::{Event, Ids};
use super::fabric::{Fabric, Leaf, PoolSettings, Server};
use super::place::{Rack, assign_spines, choose_workers};
use super::view::NodeId;

/// Fabric on its way to the next version, with the events so far. A refused command drops the draft.
struct Draft {
    /// Fabric after `events`.
    fabric: Fabric,
    events: Vec<Event>,
}

/// Result of a part of a decision.
type DecideResult<T = ()> = Result<T, CommandError>;

impl Fabric {
    /// Returns the events of a command, and the fabric after them. No events means no change.
    ///
    /// # Errors
    /// If the command is refused. The error is the reason.
    pub fn decide(&self, command: &Command) -> DecideResult<(Vec<Event>, Self)> {
        let mut draft = Draft { fabric: self.clone(), events: Vec::new() };
        draft.command(command)?;
        if !draft.events.is_empty() {
            draft.settle(self);
            draft.fabric.version += 1;
        }
        Ok((draft.events, draft.fabric))
    }
}

impl Fabric {
    /// Returns true if a spine should be marked as down, like by [`Command::FailSpine`]. The controller calls
    /// this after a leaf's report of a silent spine, when a spine or leaf connects or disconnects, and after a command.
    ///
    /// A node follows while it has a connection to the controller. `follows` returns true for such a node.
    /// `reports_silent` returns true for a leaf that reports the spine as silent. Four conditions must hold:
    ///
    /// - The spine is not marked as down yet.
    /// - It no longer follows. A spine that still follows has only lost its links to leaves, or stalls.
    /// - All following leaves linked to it, at least one, report it as silent.
    /// - Another spine that is up follows, and could replace it.
    ///
    /// The caution has a reason: a wrong guess would give two live spines the same service address. In exchange a spine
    /// that dies without a running controller is replaced later, by an operator's command.
    #[must_use]
    pub fn is_spine_down(
        &self,
        id: u16,
        follows: impl Fn(NodeId) -> bool,
        reports_silent: impl Fn(u16) -> bool,
    ) -> bool {
        let is_up = |spine: &u16| self.spines.get(spine).is_some_and(|spine| !spine.is_failed);
        let can_serve = |spine: &u16| is_up(spine) && follows(NodeId::Spine(*spine));
        if !is_up(&id) || can_serve(&id) || !self.spines.keys().any(can_serve) {
            return false;
        }
        let links = self.links.values().flat_map(|links| links.iter());
        let leaves = links.filter(|(_, spine)| **spine == id).map(|(&leaf, _)| leaf);
        let leaves: BTreeSet<u16> = leaves.filter(|&leaf| follows(NodeId::Leaf(leaf))).collect();
        !leaves.is_empty() && leaves.into_iter().all(reports_silent)
    }
}

/// Returns the error of an impossible command.
fn refused<T>(what: String, reason: impl Into<String>) -> DecideResult<T> {
    Err(CommandError::Refused { what, reason: reason.into() })
}

/// Returns the error for a missing object.
fn unknown(what: String) -> CommandError {
    CommandError::Unknown { what }
}

/// Checks that no object has this id. `kind` is their name in a message.
fn check_id<T>(objects: &BTreeMap<u16, T>, kind: &str, id: u16) -> DecideResult {
    if objects.contains_key(&id) {
        return Err(CommandError::Taken { what: format!("id {id}"), by: format!("{kind} {id}") });
    }
    Ok(())
}

/// Checks that the policy exists, and that it can choose among racks, on a spine (`is_over_racks`), or among workers.
/// For `auto`, by which a leaf chooses its policy itself, checks the policy with which the leaf starts.
fn check_policy(name: &str, is_over_racks: bool) -> DecideResult {
    let policy: PolicyChoice = name.parse().map_err(wedjat_desired::control::ChangeError::from)?;
    let policy = policy.first();
    let entry = policy.entry();
    match is_over_racks {
        true if !entry.runs_on_spine() => refused(
            format!("spine-policy {name}"),
            "its members can't be racks; `horus-spine`, `random` can",
        ),
        false if entry.runs == Runs::Spine => refused(
            format!("policy {name}"),
            "it runs on a spine; name it as the spine policy, and another for leaves",
        ),
        _ => Ok(()),
    }
}

impl Draft {
    /// Applies an event and records it.
    fn push(&mut self, event: Event) {
        self.fabric.apply(&event);
        self.events.push(event);
    }

    /// Checks a command, applies its own events and records them. Refuses the command with the reason.
    fn command(&mut self, command: &Command) -> DecideResult {
        match *command {
            Command::AddSpine { id, ip } => {
                check_id(&self.fabric.spines, "spine", id)?;
                self.check_address(ip)?;
                self.push(Event::Spine { id, ip, is_failed: false });
            }
            Command::RemoveSpine { id } => {
                self.spine(id)?;
                self.push(Event::SpineGone { id });
            }
            Command::FailSpine { id } => self.set_spine_failed(id, true)?,
            Command::RestoreSpine { id } => self.set_spine_failed(id, false)?,
            Command::AddLeaf { id, ip } => {
                check_id(&self.fabric.leaves, "leaf", id)?;
                self.check_address(ip)?;
                self.push(Event::Leaf { id, ip, is_failed: false });
            }
            Command::RemoveLeaf { id } => {
                self.leaf(id)?;
                self.push(Event::LeafGone { id });
            }
            Command::FailLeaf { id, to } => self.fail_leaf(id, to)?,
            Command::RestoreLeaf { id } => {
                let leaf = self.leaf(id)?;
                if leaf.is_failed {
                    self.push(Event::Leaf { id, ip: leaf.ip, is_failed: false });
                }
            }
            Command::AddServer { ip, leaf, ref workers, mac, registers, speed } => {
                self.check_address(ip)?;
                self.check_workers(leaf, workers, workers.len())?;
                let server = Server { mac, registers, is_drained: false };
                self.push(Event::server(leaf, ip, &server));
                let ids = Ids(sorted(workers));
                self.push(Event::Workers { leaf, server: ip, ids, speed });
            }
            Command::RemoveServer { ip } => {
                let leaf = self.leaf_of_server(ip)?;
                self.push(Event::ServerGone { leaf, ip });
            }
            Command::DrainServer { ip } => self.drain(ip, true)?,
            Command::UndrainServer { ip } => self.drain(ip, false)?,
            Command::AddPool { id, ref settings } => self.add_pool(id, settings)?,
            Command::RemovePool { id } => {
                self.settings(id)?;
                self.push(Event::PoolGone { id });
            }
            Command::SetPolicy { pool, ref policy } => {
                check_policy(policy, false)?;
                let settings = PoolSettings { policy: policy.clone(), ..self.settings(pool)? };
                self.put_pool(pool, settings);
            }
            Command::SetQueue { pool, queue } => {
                let settings = PoolSettings { queue, ..self.settings(pool)? };
                self.put_pool(pool, settings);
            }
            // A pool that grows gets its workers from `settle`.
            Command::ResizePool { id, workers } => {
                let settings = PoolSettings { workers, ..self.settings(id)? };
                let (has, free) = (self.fabric.members(id), self.free_count());
                if workers > has + free {
                    return refused(format!("pool {id}"), shortage(workers - has, free));
                }
                self.put_pool(id, settings);
                self.shrink(id, workers);
            }
            Command::Register { leaf, ip, pool, ref workers } => {
                self.register((leaf, ip), pool, workers)?;
            }
        }
        Ok(())
    }

    /// Returns a spine, or the error for an unknown id.
    fn spine(&self, id: u16) -> DecideResult<super::fabric::Spine> {
        self.fabric.spines.get(&id).cloned().ok_or_else(|| unknown(format!("spine {id}")))
    }

    /// Returns a leaf, or the error for an unknown id.
    fn leaf(&self, id: u16) -> DecideResult<&Leaf> {
        let leaf = self.fabric.leaves.get(&id).map(AsRef::as_ref);
        leaf.ok_or_else(|| unknown(format!("leaf {id}")))
    }

    /// Returns the id of a server's leaf, or the error for an unknown server.
    fn leaf_of_server(&self, ip: IpAddr) -> DecideResult<u16> {
        self.fabric.leaf_of(ip).ok_or_else(|| unknown(format!("server {ip}")))
    }

    /// Returns the settings of a pool, or the error for an unknown id.
    fn settings(&self, pool: u16) -> DecideResult<PoolSettings> {
        let settings = self.fabric.pools.get(&pool).cloned().map(Arc::unwrap_or_clone);
        settings.ok_or_else(|| unknown(format!("pool {pool}")))
    }

    /// Checks that an address is a host's, free, and of the fabric's IP version.
    fn check_address(&self, ip: IpAddr) -> DecideResult {
        if !is_unicast(ip) {
            return refused(format!("address {ip}"), "it is no host's; name one such as 10.0.2.11");
        }
        // All addresses have the same IP version, so one of them suffices.
        if self.fabric.addresses().next().is_some_and(|other| other.is_ipv4() != ip.is_ipv4()) {
            let reason =
                "the fabric has addresses of the other IP version; all of a fabric have the same";
            return refused(format!("address {ip}"), reason);
        }
        match self.fabric.owner_of(ip) {
            Some(by) => Err(CommandError::Taken { what: format!("address {ip}"), by }),
            None => Ok(()),
        }
    }

    /// Checks that a rack has none of these worker ids yet, and that the rack has room for the workers. Also checks
    /// that the fabric has room for `added` of them; the rest moves from another rack.
    fn check_workers(&self, leaf: u16, workers: &[u16], added: usize) -> DecideResult {
        let rack = self.leaf(leaf)?;
        if let Some((id, worker)) = workers.iter().find_map(|id| Some((id, rack.workers.get(id)?)))
        {
            let what = format!("worker {id} of leaf {leaf}");
            return Err(CommandError::Taken { what, by: format!("server {}", worker.server) });
        }
        let all = self.fabric.leaves.values().map(|leaf| leaf.workers.len()).sum::<usize>();
        if rack.workers.len() + workers.len() > MEMBERS_MAX || all + added > FABRIC_WORKERS_MAX {
            return refused(
                format!("leaf {leaf}"),
                format!(
                    "there is room for {MEMBERS_MAX} workers in a rack, {FABRIC_WORKERS_MAX} in all"
                ),
            );
        }
        Ok(())
    }

    /// Marks a spine as down or up.
    fn set_spine_failed(&mut self, id: u16, is_failed: bool) -> DecideResult {
        let spine = self.spine(id)?;
        if spine.is_failed != is_failed {
            self.push(Event::Spine { id, ip: spine.ip, is_failed });
        }
        Ok(())
    }

    /// Drains or undrains a server.
    fn drain(&mut self, ip: IpAddr, is_drained: bool) -> DecideResult {
        let leaf = self.leaf_of_server(ip)?;
        let server = self.leaf(leaf)?.servers.get(&ip).cloned();
        if let Some(server) = server.filter(|server| server.is_drained != is_drained) {
            self.push(Event::server(leaf, ip, &Server { is_drained, ..server }));
        }
        Ok(())
    }

    /// Marks a leaf as down. Moves its servers to the leaf `to`, where the workers keep their pools. Without `to`, the
    /// workers leave their pools.
    fn fail_leaf(&mut self, id: u16, to: Option<u16>) -> DecideResult {
        let leaf = self.leaf(id)?.clone();
        if let Some(to) = to {
            if to == id || self.leaf(to)?.is_failed {
                let reason = format!("leaf {to} can't take its servers over; name one that is up");
                return refused(format!("leaf {id}"), reason);
            }
            let workers: Vec<u16> = leaf.workers.keys().copied().collect();
            self.check_workers(to, &workers, 0)?;
        }
        if !leaf.is_failed {
            self.push(Event::Leaf { id, ip: leaf.ip, is_failed: true });
        }
        // Workers of a failed leaf have no pool, so they leave theirs before their servers move.
        self.assign(id, leaf.workers.keys().copied().collect(), None);
        let Some(to) = to else { return Ok(()) };
        for (&ip, server) in &leaf.servers {
            self.push(Event::ServerGone { leaf: id, ip });
            self.push(Event::server(to, ip, server));
        }
        // One event for each run of workers that differ only in their ids.
        let all: Vec<_> = leaf.workers.iter().collect();
        for run in all
            .chunk_by(|(_, a), (_, b)| (a.server, a.speed, a.pool) == (b.server, b.speed, b.pool))
        {
            let (_, first) = run[0];
            let ids = Ids(run.iter().map(|(id, _)| **id).collect());
            let (server, speed) = (first.server, first.speed);
            self.push(Event::Workers { leaf: to, server, ids: ids.clone(), speed });
            self.assign(to, ids.0, first.pool);
        }
        Ok(())
    }

    /// Assigns workers to a pool, or to none. Skips workers that have it already.
    fn assign(&mut self, leaf: u16, workers: Vec<u16>, pool: Option<u16>) {
        let Some(rack) = self.fabric.leaves.get(&leaf) else { return };
        let changes_pool =
            |id: &u16| rack.workers.get(id).is_some_and(|worker| worker.pool != pool);
        let ids = Ids(workers.into_iter().filter(changes_pool).collect());
        if !ids.0.is_empty() {
            self.push(Event::Assign { leaf, ids, pool });
        }
    }

    /// Adds or replaces a pool, unless it has these settings already.
    fn put_pool(&mut self, id: u16, settings: PoolSettings) {
        if self.fabric.pools.get(&id).is_none_or(|old| **old != settings) {
            self.push(Event::Pool { id, settings });
        }
    }

    /// Checks and adds a pool. Without an `id`, takes the first free one from 1. The pool gets its workers from
    /// `settle`.
    fn add_pool(&mut self, id: Option<u16>, settings: &PoolSettings) -> DecideResult {
        check_policy(&settings.policy, false)?;
        check_policy(&settings.agent_policy, false)?;
        check_policy(&settings.spine_policy, true)?;
        let mut free_ids = (1..=u16::MAX).filter(|id| !self.fabric.pools.contains_key(id));
        let id = id.or_else(|| free_ids.next());
        let Some(id) = id else {
            return refused("add-pool".to_owned(), "all ids are used; remove a pool");
        };
        check_id(&self.fabric.pools, "pool", id)?;
        settings.address.map_or(Ok(()), |ip| self.check_address(ip))?;
        let up = self.fabric.spine_links().len();
        if settings.spines > up {
            let reason = format!(
                "{} spines are wanted, and {up} are up; add spines, or ask for fewer",
                settings.spines
            );
            return refused(format!("pool {id}"), reason);
        }
        let free = self.free_count();
        if settings.workers > free {
            return refused(format!("pool {id}"), shortage(settings.workers, free));
        }
        self.put_pool(id, settings.clone());
        Ok(())
    }

    /// Returns the number of workers that a pool may take, in all racks.
    fn free_count(&self) -> usize {
        self.fabric.leaves.values().map(|leaf| leaf.free_count()).sum()
    }

    /// Frees workers until `remaining` are left. Takes from the racks with the most workers of the pool, highest ids
    /// first.
    fn shrink(&mut self, pool: u16, remaining: usize) {
        let mut racks: BTreeMap<u16, u32> = self.fabric.racks(pool).collect();
        let mut excess = self.fabric.members(pool).saturating_sub(remaining);
        let before = racks.clone();
        // Each round takes one worker from the rack that has most at that moment. `racks` gets the remaining numbers.
        while excess > 0 {
            let largest = racks.iter().max_by_key(|(_, count)| **count).map(|(&leaf, _)| leaf);
            let Some(count) = largest.and_then(|leaf| racks.get_mut(&leaf)) else { break };
            *count -= 1;
            excess -= 1;
        }
        for (leaf, count) in racks {
            let Some(rack) = self.fabric.leaves.get(&leaf) else { continue };
            let members = rack.workers.iter().filter(|(_, worker)| worker.pool == Some(pool));
            let mut ids: Vec<u16> = members.map(|(&id, _)| id).collect();
            if count < before[&leaf] {
                // The ids are in order. The first `count` stay in the pool.
                ids.drain(..count as usize);
                self.assign(leaf, ids, None);
            }
        }
    }

    /// Adds workers that registered at a leaf, and assigns them to the pool. Adds their server, too, if it is new. A
    /// repeated registration changes nothing: workers that have a pool already do not join.
    fn register(&mut self, (leaf, ip): (u16, IpAddr), pool: u16, workers: &[u16]) -> DecideResult {
        let what = || format!("workers of {ip} at leaf {leaf}");
        // `settings.admits` is the size up to which the pool admits registering workers.
        let settings = self.settings(pool)?;
        let rack = self.leaf(leaf)?;
        if rack.is_failed {
            return refused(
                what(),
                format!("leaf {leaf} is down by an operator's word: restore it first"),
            );
        }
        let server = rack.servers.get(&ip).cloned();
        let is_drained = server.as_ref().is_some_and(|server| server.is_drained);
        if server.as_ref().is_some_and(|server| !server.registers) || is_drained {
            let reason =
                "its server is drained, or was added without `registers`; change that first";
            return refused(what(), reason);
        }
        if server.is_none() {
            self.check_address(ip)?;
        }
        let has_other_server = |id: &&u16| rack.workers.get(id).is_some_and(|one| one.server != ip);
        if let Some(id) = workers.iter().find(has_other_server) {
            let (what, by) = (format!("worker {id} of leaf {leaf}"), "another server".to_owned());
            return Err(CommandError::Taken { what, by });
        }
        let is_unassigned = |id: &&u16| rack.workers.get(id).is_none_or(|one| one.pool.is_none());
        let joining: Vec<u16> = sorted(workers).iter().filter(is_unassigned).copied().collect();
        let room = settings.admits.saturating_sub(self.fabric.members(pool));
        if joining.len() > room {
            let max = settings.admits;
            let reason = format!(
                "pool {pool} admits workers up to {max}, which leaves room for {room}; add it with more"
            );
            return refused(what(), reason);
        }
        let new: Vec<u16> =
            { joining.iter() }.filter(|id| !rack.workers.contains_key(id)).copied().collect();
        self.check_workers(leaf, &new, new.len())?;
        if server.is_none() && !new.is_empty() {
            let server = Server { mac: None, registers: true, is_drained: false };
            self.push(Event::server(leaf, ip, &server));
        }
        if !new.is_empty() {
            self.push(Event::Workers { leaf, server: ip, ids: Ids(new), speed: 1.0 });
        }
        self.assign(leaf, joining, Some(pool));
        Ok(())
    }

    /// Fills pools that lack workers with free ones, and links racks to spines. `before` is the fabric before the
    /// command. Only pools whose racks, number of spines or spines differ from `before` need new links.
    fn settle(&mut self, before: &Fabric) {
        let fabric = &self.fabric;
        let is_short = |id: &u16| fabric.members(*id) < fabric.pools[id].workers;
        let short: Vec<u16> = fabric.pools.keys().copied().filter(is_short).collect();
        let mut free = if short.is_empty() { 0 } else { self.free_count() };
        for pool in short {
            if free == 0 {
                break;
            }
            free -= self.fill(pool).min(free);
        }
        let affected = self.pools_to_link(before);
        if affected.is_empty() {
            return;
        }
        let mut spines = self.fabric.spine_links();
        for pool in affected {
            self.link(pool, &mut spines);
        }
    }

    /// Returns the pools whose links must be computed again: their racks, their number of spines, or the spines differ
    /// from `before`.
    fn pools_to_link(&self, before: &Fabric) -> BTreeSet<u16> {
        let fabric = &self.fabric;
        if fabric.spines != before.spines {
            return fabric.pools.keys().copied().collect();
        }
        let has_other_spine_count = |id: &u16| {
            let (pool, old) = (&fabric.pools[id], before.pools.get(id));
            old.is_none_or(|old| old.spines != pool.spines)
        };
        let mut affected: BTreeSet<u16> =
            fabric.pools.keys().copied().filter(has_other_spine_count).collect();
        // A pool's links depend on the racks in which it has workers, not on their number.
        let leaves = fabric.leaves.keys().chain(before.leaves.keys());
        for leaf in leaves {
            let (current, old) = (fabric.leaves.get(leaf), before.leaves.get(leaf));
            // Versions share unchanged leaves.
            if current.zip(old).is_some_and(|(current, old)| Arc::ptr_eq(current, old)) {
                continue;
            }
            let has_members = |leaf: Option<&Arc<Leaf>>, pool| {
                leaf.is_some_and(|leaf| leaf.pools.contains_key(pool))
            };
            let pools = current.into_iter().chain(old).flat_map(|leaf| leaf.pools.keys());
            let changed =
                pools.filter(|pool| has_members(current, *pool) != has_members(old, *pool));
            affected.extend(changed.filter(|pool| fabric.pools.contains_key(pool)));
        }
        affected
    }

    /// Takes free workers for a pool that lacks workers, by its placement. Returns the number of workers taken.
    fn fill(&mut self, pool: u16) -> usize {
        let Some(settings) = self.fabric.pools.get(&pool) else { return 0 };
        let (wanted, placement) = (settings.workers, settings.placement);
        let wanted = wanted.saturating_sub(self.fabric.members(pool));
        if wanted == 0 {
            return 0;
        }
        let racks = self.fabric.leaves.iter().map(|(&leaf, rack)| Rack {
            leaf,
            free: rack.free_count(),
            has: rack.pools.get(&pool).copied().unwrap_or_default() as usize,
            size: rack.workers.len(),
        });
        let taken = choose_workers(&racks.collect::<Vec<_>>(), wanted, placement);
        for (&leaf, &count) in &taken {
            let ids = self.choose(leaf, count);
            self.assign(leaf, ids, Some(pool));
        }
        taken.values().sum()
    }

    /// Chooses `count` free workers of a rack, from its servers in turn. Returns their ids in order.
    fn choose(&self, leaf: u16, count: usize) -> Vec<u16> {
        let Some(rack) = self.fabric.leaves.get(&leaf) else { return Vec::new() };
        // Each free worker gets its rank among those of its server. The first `count` by rank then take one worker
        // of each server, then a second one, and so on. `counts` holds the number of workers so far of each
        // server. Workers of one server mostly have adjacent ids, so the last `index` is tried first.
        let (mut counts, mut index) = (Vec::<(IpAddr, usize)>::new(), 0);
        let mut free = Vec::new();
        for (id, worker) in rack.free() {
            if counts.get(index).is_none_or(|(server, _)| *server != worker.server) {
                index = counts
                    .iter()
                    .position(|(server, _)| *server == worker.server)
                    .unwrap_or(counts.len());
                if index == counts.len() {
                    counts.push((worker.server, 0));
                }
            }
            free.push((counts[index].1, worker.server, id));
            counts[index].1 += 1;
        }
        // Partitions by (rank, server, id), so that the `count` smallest come first.
        if count < free.len() {
            free.select_nth_unstable(count);
            free.truncate(count);
        }
        let mut ids: Vec<u16> = free.into_iter().map(|(.., id)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// Links a pool's racks to spines, with one event for each link that differs from the current one. `spines` holds
    /// the number of links of each spine that is up, and is updated.
    fn link(&mut self, pool: u16, spines: &mut BTreeMap<u16, usize>) {
        let Some(settings) = self.fabric.pools.get(&pool) else { return };
        let current = self.fabric.links.get(&pool).cloned().unwrap_or_default();
        let racks: Vec<_> = self.fabric.racks(pool).map(|(leaf, _)| leaf).collect();
        let links = assign_spines(&racks, &current, settings.spines, spines);
        // Counts one link of a spine more or less. A spine that is down has no number.
        let mut count = |spine: Option<u16>, more: bool| {
            let links = spine.and_then(|spine| spines.get_mut(&spine));
            links.into_iter().for_each(|links| *links = if more { *links + 1 } else { *links - 1 });
        };
        // Racks without a link in the result.
        for (&leaf, &old) in current.iter().filter(|(leaf, _)| !links.contains_key(leaf)) {
            count(Some(old), false);
            self.push(Event::Link { pool, leaf, spine: None });
        }
        for (leaf, spine) in links {
            let old = current.get(&leaf).copied();
            if old != Some(spine) {
                count(old, false);
                count(Some(spine), true);
                self.push(Event::Link { pool, leaf, spine: Some(spine) });
            }
        }
    }
}

/// Returns the ids in order, each once.
fn sorted(ids: &[u16]) -> Vec<u16> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Returns the reason of a refusal for a lack of free workers.
fn shortage(wanted: usize, free: usize) -> String {
    format!("{wanted} workers are wanted, and {free} are free; add servers, or ask for fewer")
}
