//! Effects of commands. All decisions about a fabric are made here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::command::{Command, CommandError, FABRIC_WORKERS_MAX};
use super::event::{Event, Ids};
use super::fabric::{Fabric, Leaf, PoolSettings, Server};
use super::place::{Rack, link, take};
use super::view::NodeId;
use crate::config::is_unicast;
use crate::limits::MEMBERS_MAX;
use crate::policy::{PolicySpec, Runs};

/// Fabric on its way to the next version, with the events so far.
struct Draft {
    fabric: Fabric,
    events: Vec<Event>,
}

type Decided<T = ()> = Result<T, CommandError>;

impl Fabric {
    /// Returns the events of a command, and the fabric after them. No events means no change.
    ///
    /// # Errors
    /// If the command is refused. The error is the reason.
    pub fn decide(&self, command: &Command) -> Decided<(Vec<Event>, Self)> {
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
    /// Returns true if a spine should be marked as down, like by [`Command::FailSpine`].
    ///
    /// Three conditions must hold. The spine no longer follows. All following leaves linked to it, at least
    /// one, report it as silent. Another following spine could replace it. A spine that still follows has
    /// only lost its links, or stalls. `follows` returns true for a node that follows. `hears_nothing`
    /// returns true for a leaf that reports the spine as silent.
    #[must_use]
    pub fn is_spine_down(
        &self,
        id: u16,
        follows: impl Fn(NodeId) -> bool,
        hears_nothing: impl Fn(u16) -> bool,
    ) -> bool {
        let is_up = |spine: &u16| self.spines.get(spine).is_some_and(|spine| !spine.is_failed);
        let could = |spine: &u16| is_up(spine) && follows(NodeId::Spine(*spine));
        if !is_up(&id) || could(&id) || !self.spines.keys().any(could) {
            return false;
        }
        let links = self.pools.values().flat_map(|pool| &pool.links);
        let leaves = links.filter(|(_, spine)| **spine == id).map(|(&leaf, _)| leaf);
        let leaves: BTreeSet<u16> = leaves.filter(|&leaf| follows(NodeId::Leaf(leaf))).collect();
        !leaves.is_empty() && leaves.into_iter().all(hears_nothing)
    }
}

fn refused<T>(what: String, reason: impl Into<String>) -> Decided<T> {
    Err(CommandError::Refused { what, reason: reason.into() })
}

fn unknown(what: String) -> CommandError {
    CommandError::Unknown { what }
}

fn check_policy(name: &str, is_over_racks: bool) -> Decided {
    let policy: PolicySpec = name.parse().map_err(crate::control::ChangeError::from)?;
    let entry = policy.entry();
    match is_over_racks {
        true if entry.over_racks.is_none() => refused(
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
    fn push(&mut self, event: Event) {
        self.fabric.take(&event);
        self.events.push(event);
    }

    fn command(&mut self, command: &Command) -> Decided {
        match *command {
            Command::AddSpine { id, ip } => {
                if self.fabric.spines.contains_key(&id) {
                    return Err(CommandError::Taken {
                        what: format!("id {id}"),
                        by: format!("spine {id}"),
                    });
                }
                self.check_address(ip)?;
                self.push(Event::Spine { id, ip, is_failed: false });
            }
            Command::RemoveSpine { id } => {
                self.spine(id)?;
                self.push(Event::SpineGone { id });
            }
            Command::FailSpine { id } => self.turn_spine(id, true)?,
            Command::RestoreSpine { id } => self.turn_spine(id, false)?,
            Command::AddLeaf { id, ip } => {
                if self.fabric.leaves.contains_key(&id) {
                    return Err(CommandError::Taken {
                        what: format!("id {id}"),
                        by: format!("leaf {id}"),
                    });
                }
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
                self.check_workers(leaf, workers)?;
                let server = Server { mac, registers, is_drained: false };
                self.put_server(leaf, ip, &server);
                let ids = Ids(sorted(workers));
                self.push(Event::Workers { leaf, server: ip, ids, speed });
            }
            Command::RemoveServer { ip } => {
                let leaf = self.server(ip)?;
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
            Command::SetQueue { pool, queue, overflow } => {
                let settings = PoolSettings { queue, overflow, ..self.settings(pool)? };
                self.put_pool(pool, settings);
            }
            Command::ResizePool { id, workers } => {
                let settings = PoolSettings { workers, ..self.settings(id)? };
                let (has, free) = (self.fabric.members(id), self.free());
                if workers > has + free {
                    return refused(format!("pool {id}"), short(workers - has, free));
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

    fn spine(&self, id: u16) -> Decided<super::fabric::Spine> {
        self.fabric.spines.get(&id).cloned().ok_or_else(|| unknown(format!("spine {id}")))
    }

    fn leaf(&self, id: u16) -> Decided<&Leaf> {
        let leaf = self.fabric.leaves.get(&id).map(AsRef::as_ref);
        leaf.ok_or_else(|| unknown(format!("leaf {id}")))
    }

    fn server(&self, ip: Ipv4Addr) -> Decided<u16> {
        self.fabric.leaf_of(ip).ok_or_else(|| unknown(format!("server {ip}")))
    }

    fn settings(&self, pool: u16) -> Decided<PoolSettings> {
        let there = self.fabric.pools.get(&pool).map(|pool| pool.settings.clone());
        there.ok_or_else(|| unknown(format!("pool {pool}")))
    }

    fn check_address(&self, ip: Ipv4Addr) -> Decided {
        if !is_unicast(ip.into()) {
            return refused(format!("address {ip}"), "it is no host's; name one such as 10.0.2.11");
        }
        match self.fabric.owner_of(ip) {
            Some(by) => Err(CommandError::Taken { what: format!("address {ip}"), by }),
            None => Ok(()),
        }
    }

    fn check_workers(&self, leaf: u16, workers: &[u16]) -> Decided {
        let rack = self.leaf(leaf)?;
        if let Some((id, there)) = workers.iter().find_map(|id| Some((id, rack.workers.get(id)?))) {
            let what = format!("worker {id} of leaf {leaf}");
            return Err(CommandError::Taken { what, by: format!("server {}", there.server) });
        }
        let all = self.fabric.leaves.values().map(|leaf| leaf.workers.len()).sum::<usize>();
        if rack.workers.len() + workers.len() > MEMBERS_MAX
            || all + workers.len() > FABRIC_WORKERS_MAX
        {
            return refused(
                format!("leaf {leaf}"),
                format!(
                    "there is room for {MEMBERS_MAX} workers in a rack, {FABRIC_WORKERS_MAX} in all"
                ),
            );
        }
        Ok(())
    }

    fn turn_spine(&mut self, id: u16, is_failed: bool) -> Decided {
        let spine = self.spine(id)?;
        if spine.is_failed != is_failed {
            self.push(Event::Spine { id, ip: spine.ip, is_failed });
        }
        Ok(())
    }

    fn put_server(&mut self, leaf: u16, ip: Ipv4Addr, server: &Server) {
        let Server { mac, registers, is_drained } = *server;
        let mac = mac.map(|mac| mac.to_string());
        self.push(Event::Server { leaf, ip, mac, registers, is_drained });
    }

    fn drain(&mut self, ip: Ipv4Addr, is_drained: bool) -> Decided {
        let leaf = self.server(ip)?;
        let server = self.leaf(leaf)?.servers.get(&ip).cloned();
        if let Some(server) = server.filter(|server| server.is_drained != is_drained) {
            self.put_server(leaf, ip, &Server { is_drained, ..server });
        }
        Ok(())
    }

    fn fail_leaf(&mut self, id: u16, to: Option<u16>) -> Decided {
        let leaf = self.leaf(id)?.clone();
        if let Some(to) = to {
            if to == id || self.leaf(to)?.is_failed {
                let reason = format!("leaf {to} can't take its servers over; name one that is up");
                return refused(format!("leaf {id}"), reason);
            }
            let workers: Vec<u16> = leaf.workers.keys().copied().collect();
            self.check_workers(to, &workers)?;
        }
        if !leaf.is_failed {
            self.push(Event::Leaf { id, ip: leaf.ip, is_failed: true });
        }
        self.assign(id, leaf.workers.keys().copied().collect(), None);
        let Some(to) = to else { return Ok(()) };
        for (&ip, server) in &leaf.servers {
            self.push(Event::ServerGone { leaf: id, ip });
            self.put_server(to, ip, server);
        }
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

    /// Assigns workers to a pool, or to none. Skips workers that are there already.
    fn assign(&mut self, leaf: u16, workers: Vec<u16>, pool: Option<u16>) {
        let Some(rack) = self.fabric.leaves.get(&leaf) else { return };
        let other = |id: &u16| rack.workers.get(id).is_some_and(|worker| worker.pool != pool);
        let ids = Ids(workers.into_iter().filter(other).collect());
        if !ids.0.is_empty() {
            self.push(Event::Assign { leaf, ids, pool });
        }
    }

    fn put_pool(&mut self, id: u16, settings: PoolSettings) {
        if self.fabric.pools.get(&id).is_none_or(|pool| pool.settings != settings) {
            self.push(Event::Pool { id, settings });
        }
    }

    fn add_pool(&mut self, id: Option<u16>, settings: &PoolSettings) -> Decided {
        check_policy(&settings.policy, false)?;
        check_policy(&settings.agent_policy, false)?;
        check_policy(&settings.spine_policy, true)?;
        let mut free_ids = (1..=u16::MAX).filter(|id| !self.fabric.pools.contains_key(id));
        let id = id.or_else(|| free_ids.next());
        let Some(id) = id else {
            return refused("add-pool".to_owned(), "all ids are used; remove a pool");
        };
        if self.fabric.pools.contains_key(&id) {
            return Err(CommandError::Taken { what: format!("id {id}"), by: format!("pool {id}") });
        }
        settings.address.map_or(Ok(()), |ip| self.check_address(ip))?;
        let up = self.fabric.spine_links().len();
        if settings.spines > up {
            let reason = format!(
                "{} spines are wanted, and {up} are up; add spines, or ask for fewer",
                settings.spines
            );
            return refused(format!("pool {id}"), reason);
        }
        let free = self.free();
        if settings.workers > free {
            return refused(format!("pool {id}"), short(settings.workers, free));
        }
        self.put_pool(id, settings.clone());
        Ok(())
    }

    /// Returns the number of workers that a pool may take.
    fn free(&self) -> usize {
        self.fabric.leaves.values().map(|leaf| leaf.free_count()).sum()
    }

    /// Frees workers until `left` remain. Takes from the racks with the most workers of the pool, highest ids
    /// first.
    fn shrink(&mut self, pool: u16, left: usize) {
        let mut racks: BTreeMap<u16, u32> = self.fabric.racks(pool).collect();
        let mut more = self.fabric.members(pool).saturating_sub(left);
        let before = racks.clone();
        while more > 0 {
            let most = racks.iter().max_by_key(|(_, count)| **count).map(|(&leaf, _)| leaf);
            let Some(count) = most.and_then(|leaf| racks.get_mut(&leaf)) else { break };
            *count -= 1;
            more -= 1;
        }
        for (leaf, count) in racks {
            let Some(rack) = self.fabric.leaves.get(&leaf) else { continue };
            let members = rack.workers.iter().filter(|(_, worker)| worker.pool == Some(pool));
            let mut ids: Vec<u16> = members.map(|(&id, _)| id).collect();
            if count < before[&leaf] {
                ids.drain(..count as usize);
                self.assign(leaf, ids, None);
            }
        }
    }

    fn register(&mut self, (leaf, ip): (u16, Ipv4Addr), pool: u16, workers: &[u16]) -> Decided {
        let what = || format!("workers of {ip} at leaf {leaf}");
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
        let is_others = |id: &&u16| rack.workers.get(id).is_some_and(|one| one.server != ip);
        if let Some(id) = workers.iter().find(is_others) {
            let (what, by) = (format!("worker {id} of leaf {leaf}"), "another server".to_owned());
            return Err(CommandError::Taken { what, by });
        }
        let comes = |id: &&u16| rack.workers.get(id).is_none_or(|one| one.pool.is_none());
        let coming: Vec<u16> = sorted(workers).iter().filter(comes).copied().collect();
        let room = settings.admits.saturating_sub(self.fabric.members(pool));
        if coming.len() > room {
            let most = settings.admits;
            let reason = format!(
                "pool {pool} admits workers up to {most}, which leaves room for {room}; add it with more"
            );
            return refused(what(), reason);
        }
        let new: Vec<u16> =
            { coming.iter() }.filter(|id| !rack.workers.contains_key(id)).copied().collect();
        self.check_workers(leaf, &new)?;
        if server.is_none() && !new.is_empty() {
            self.put_server(leaf, ip, &Server { mac: None, registers: true, is_drained: false });
        }
        if !new.is_empty() {
            self.push(Event::Workers { leaf, server: ip, ids: Ids(new), speed: 1.0 });
        }
        self.assign(leaf, coming, Some(pool));
        Ok(())
    }

    /// Fills pools that lack workers with free ones, and links racks to spines.
    fn settle(&mut self, before: &Fabric) {
        let fabric = &self.fabric;
        let is_short = |id: &u16| fabric.members(*id) < fabric.pools[id].settings.workers;
        let short: Vec<u16> = fabric.pools.keys().copied().filter(is_short).collect();
        let mut free = if short.is_empty() { 0 } else { self.free() };
        for pool in short {
            if free == 0 {
                break;
            }
            free -= self.fill(pool).min(free);
        }
        let touched = self.touched(before);
        if touched.is_empty() {
            return;
        }
        let mut spines = self.fabric.spine_links();
        for pool in touched {
            self.link(pool, &mut spines);
        }
    }

    /// Returns the pools whose racks may have changed, or the inputs of their links.
    fn touched(&self, before: &Fabric) -> BTreeSet<u16> {
        let fabric = &self.fabric;
        if fabric.spines != before.spines {
            return fabric.pools.keys().copied().collect();
        }
        let is_other = |id: &u16| {
            let (is, was) = (&fabric.pools[id], before.pools.get(id));
            was.is_none_or(|was| was.settings.spines != is.settings.spines)
        };
        let mut touched: BTreeSet<u16> = fabric.pools.keys().copied().filter(is_other).collect();
        let leaves = fabric.leaves.keys().chain(before.leaves.keys());
        for leaf in leaves {
            let (is, was) = (fabric.leaves.get(leaf), before.leaves.get(leaf));
            if is.zip(was).is_some_and(|(is, was)| Arc::ptr_eq(is, was)) {
                continue;
            }
            let has =
                |of: Option<&Arc<Leaf>>, pool| of.is_some_and(|leaf| leaf.pools.contains_key(pool));
            let both = is.into_iter().chain(was).flat_map(|leaf| leaf.pools.keys());
            let changed = both.filter(|pool| has(is, *pool) != has(was, *pool));
            touched.extend(changed.filter(|pool| fabric.pools.contains_key(pool)));
        }
        touched
    }

    /// Takes free workers for a pool that lacks workers. Returns their number.
    fn fill(&mut self, pool: u16) -> usize {
        let Some(settings) = self.fabric.pools.get(&pool).map(|pool| &pool.settings) else {
            return 0;
        };
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
        let taken = take(&racks.collect::<Vec<_>>(), wanted, placement);
        for (&leaf, &count) in &taken {
            let ids = self.choose(leaf, count);
            self.assign(leaf, ids, Some(pool));
        }
        taken.values().sum()
    }

    /// Chooses `count` free workers of a rack, from its servers in turn.
    fn choose(&self, leaf: u16, count: usize) -> Vec<u16> {
        let Some(rack) = self.fabric.leaves.get(&leaf) else { return Vec::new() };
        // Workers of one server mostly have adjacent ids.
        let (mut turns, mut at) = (Vec::<(Ipv4Addr, usize)>::new(), 0);
        let mut free = Vec::new();
        for (id, worker) in rack.free() {
            if turns.get(at).is_none_or(|(server, _)| *server != worker.server) {
                at = turns
                    .iter()
                    .position(|(server, _)| *server == worker.server)
                    .unwrap_or(turns.len());
                if at == turns.len() {
                    turns.push((worker.server, 0));
                }
            }
            free.push((turns[at].1, worker.server, id));
            turns[at].1 += 1;
        }
        if count < free.len() {
            free.select_nth_unstable(count);
            free.truncate(count);
        }
        let mut ids: Vec<u16> = free.into_iter().map(|(.., id)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// Links a pool's racks to spines. `spines` holds the number of links of each spine that is up.
    fn link(&mut self, pool: u16, spines: &mut BTreeMap<u16, usize>) {
        let Some(there) = self.fabric.pools.get(&pool).cloned() else { return };
        let racks: Vec<_> = self.fabric.racks(pool).map(|(leaf, _)| leaf).collect();
        let links = link(&racks, &there.links, there.settings.spines, spines);
        let mut count = |spine: Option<u16>, more: bool| {
            let links = spine.and_then(|spine| spines.get_mut(&spine));
            links.into_iter().for_each(|links| *links = if more { *links + 1 } else { *links - 1 });
        };
        for (&leaf, &was) in there.links.iter().filter(|(leaf, _)| !links.contains_key(leaf)) {
            count(Some(was), false);
            self.push(Event::Link { pool, leaf, spine: None });
        }
        for (leaf, spine) in links {
            let was = there.links.get(&leaf).copied();
            if was != Some(spine) {
                count(was, false);
                count(Some(spine), true);
                self.push(Event::Link { pool, leaf, spine: Some(spine) });
            }
        }
    }
}

fn sorted(ids: &[u16]) -> Vec<u16> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn short(wanted: usize, free: usize) -> String {
    format!("{wanted} workers are wanted, and {free} are free; add servers, or ask for fewer")
}
