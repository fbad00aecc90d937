//! Events: the smallest changes of a fabric. The controller turns each command into events, applies them to the fabric,
//! and stores them. A new leader applies the stored events again. Applying an event makes no decision, so each
//! decision is made only once. A later release with other rules of placement thus reads the same fabric from
//! the store.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wedjat_core::wire::ether::Mac;

use super::fabric::{Fabric, Leaf, PoolSettings, Server, Spine, Worker};

/// Ids, serialized as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u16, u16)>", into = "Vec<(u16, u16)>")]
pub struct Ids(pub Vec<u16>);

impl From<Vec<(u16, u16)>> for Ids {
    /// Expands ranges, each with its first and last id.
    fn from(ranges: Vec<(u16, u16)>) -> Self {
        Self(ranges.into_iter().flat_map(|(first, last)| first..=last).collect())
    }
}

impl From<Ids> for Vec<(u16, u16)> {
    /// Groups adjacent ids into ranges, each with its first and last id.
    fn from(ids: Ids) -> Self {
        let runs = ids.0.chunk_by(|one, next| one.checked_add(1) == Some(*next));
        runs.filter_map(|run| Some((*run.first()?, *run.last()?))).collect()
    }
}

/// Smallest change of a fabric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "ids, and the fields of what they name")]
pub enum Event {
    /// Adds or replaces a spine.
    Spine { id: u16, ip: IpAddr, is_failed: bool },
    /// Removes a spine.
    SpineGone { id: u16 },
    /// Adds or replaces a leaf. Its rack stays.
    Leaf { id: u16, ip: IpAddr, is_failed: bool },
    /// Removes a leaf with its rack.
    LeafGone { id: u16 },
    /// Adds or replaces a server in a leaf's rack. Its workers stay.
    Server { leaf: u16, ip: IpAddr, mac: Option<String>, registers: bool, is_drained: bool },
    /// Removes a server with its workers.
    ServerGone { leaf: u16, ip: IpAddr },
    /// Adds or replaces workers of a server. They have no pool then.
    Workers { leaf: u16, server: IpAddr, ids: Ids, speed: f64 },
    /// Assigns workers to a pool, or to none.
    Assign { leaf: u16, ids: Ids, pool: Option<u16> },
    /// Adds or replaces a pool. Its workers and links stay.
    Pool { id: u16, settings: PoolSettings },
    /// Removes a pool. Its workers have no pool then.
    PoolGone { id: u16 },
    /// Links a pool's rack to another spine, which then sends it the pool's tasks, or to none.
    Link { pool: u16, leaf: u16, spine: Option<u16> },
}

impl Event {
    /// Returns the event that adds or replaces this server.
    #[must_use]
    pub fn server(leaf: u16, ip: IpAddr, server: &Server) -> Self {
        let Server { mac, registers, is_drained } = *server;
        let mac = mac.map(|mac| mac.to_string());
        Self::Server { leaf, ip, mac, registers, is_drained }
    }
}

/// Updates `members`, the number of workers of each pool, for one worker that the pool gained or lost. Removes a
/// number that becomes 0. Does nothing without a pool.
fn count(members: &mut BTreeMap<u16, usize>, pool: Option<u16>, is_added: bool) {
    let Some(pool) = pool else { return };
    let all = members.entry(pool).or_default();
    *all = if is_added { *all + 1 } else { all.saturating_sub(1) };
    if *all == 0 {
        members.remove(&pool);
    }
}

impl Fabric {
    /// Applies an event. An event that changes or removes a missing object has no effect. Objects to which
    /// the changed one only refers are not checked.
    pub fn apply(&mut self, event: &Event) {
        // Updates `members` first, because the workers still have their old pools then.
        match event {
            Event::Assign { leaf, ids, pool } => self.count_assigned(*leaf, &ids.0, *pool),
            Event::LeafGone { id } => self.count_removed(*id, |_| true),
            Event::ServerGone { leaf, ip } => {
                self.count_removed(*leaf, |worker| worker.server == *ip)
            }
            // Existing workers with these ids lose their pool.
            Event::Workers { leaf, ids, .. } => self.count_assigned(*leaf, &ids.0, None),
            _ => {}
        }
        self.change(event);
    }

    /// Updates `members` for workers that change from their present pools to `pool`.
    fn count_assigned(&mut self, leaf: u16, ids: &[u16], pool: Option<u16>) {
        let Some(leaf) = self.leaves.get(&leaf) else { return };
        for worker in ids.iter().filter_map(|id| leaf.workers.get(id)) {
            count(&mut self.members, worker.pool, false);
            count(&mut self.members, pool, true);
        }
    }

    /// Updates `members` for the workers of a rack that `is_removed` selects.
    fn count_removed(&mut self, leaf: u16, is_removed: impl Fn(&Worker) -> bool) {
        let Some(leaf) = self.leaves.get(&leaf) else { return };
        for worker in leaf.workers.values().filter(|worker| is_removed(worker)) {
            count(&mut self.members, worker.pool, false);
        }
    }

    /// Applies an event, except the changes of `members` that [`Fabric::apply`] has made.
    fn change(&mut self, event: &Event) {
        match event {
            &Event::Spine { id, ip, is_failed } => {
                self.spines.insert(id, Spine { ip, is_failed });
            }
            Event::SpineGone { id } => _ = self.spines.remove(id),
            &Event::Leaf { id, ip, is_failed } => {
                let leaf = self.leaves.entry(id).or_insert_with(|| Arc::new(Leaf::new(ip)));
                let leaf = Arc::make_mut(leaf);
                (leaf.ip, leaf.is_failed) = (ip, is_failed);
            }
            Event::LeafGone { id } => _ = self.leaves.remove(id),
            Event::Pool { id, settings } => {
                self.pools.insert(*id, Arc::new(settings.clone()));
            }
            Event::PoolGone { id } => self.end_pool(*id),
            &Event::Link { pool, leaf, spine } => {
                if !self.pools.contains_key(&pool) {
                    return;
                }
                let links = Arc::make_mut(self.links.entry(pool).or_default());
                match spine {
                    Some(spine) => _ = links.insert(leaf, spine),
                    None => _ = links.remove(&leaf),
                }
                if links.is_empty() {
                    self.links.remove(&pool);
                }
            }
            Event::Server { leaf, .. }
            | Event::ServerGone { leaf, .. }
            | Event::Workers { leaf, .. }
            | Event::Assign { leaf, .. } => {
                let Some(leaf) = self.leaves.get_mut(leaf) else { return };
                Arc::make_mut(leaf).apply(event);
            }
        }
    }

    /// Removes a pool, its links and its number in `members`. Its workers stay in their racks, without a pool.
    fn end_pool(&mut self, id: u16) {
        self.pools.remove(&id);
        self.links.remove(&id);
        self.members.remove(&id);
        for leaf in self.leaves.values_mut().filter(|leaf| leaf.pools.contains_key(&id)) {
            let leaf = Arc::make_mut(leaf);
            let members = leaf.workers.values_mut().filter(|worker| worker.pool == Some(id));
            members.for_each(|worker| worker.pool = None);
            leaf.pools.remove(&id);
        }
    }

    /// Returns the events that lead from an empty fabric to this one, except its version. Each event refers only to
    /// objects of earlier ones. A store writes a whole fabric as these events.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let spine = |(&id, spine): (&u16, &Spine)| Event::Spine {
            id,
            ip: spine.ip,
            is_failed: spine.is_failed,
        };
        let mut events: Vec<_> = self.spines.iter().map(spine).collect();
        for (&id, pool) in &self.pools {
            events.push(Event::Pool { id, settings: PoolSettings::clone(pool) });
        }
        self.leaves.iter().for_each(|(&id, leaf)| leaf.events(id, &mut events));
        for (&pool, links) in &self.links {
            let link = |(&leaf, &spine)| Event::Link { pool, leaf, spine: Some(spine) };
            events.extend(links.iter().map(link));
        }
        events
    }
}

impl Leaf {
    /// Applies an event of this rack. Ignores other events.
    fn apply(&mut self, event: &Event) {
        match event {
            &Event::Server { ip, ref mac, registers, is_drained, .. } => {
                let mac = mac.as_ref().and_then(|mac| mac.parse::<Mac>().ok());
                self.servers.insert(ip, Server { mac, registers, is_drained });
            }
            Event::ServerGone { ip, .. } => {
                self.servers.remove(ip);
                // Collects the pools, because `count` borrows the whole leaf.
                let pools: Vec<_> = { self.workers.extract_if(.., |_, one| one.server == *ip) }
                    .map(|(_, worker)| worker.pool)
                    .collect();
                pools.into_iter().for_each(|pool| self.count(pool, -1));
            }
            &Event::Workers { server, ref ids, speed, .. } => {
                for &id in &ids.0 {
                    let old = self.workers.insert(id, Worker { server, pool: None, speed });
                    self.count(old.and_then(|old| old.pool), -1);
                }
            }
            &Event::Assign { ref ids, pool, .. } => {
                for id in &ids.0 {
                    let Some(worker) = self.workers.get_mut(id) else { continue };
                    let old = std::mem::replace(&mut worker.pool, pool);
                    self.count(old, -1);
                    self.count(pool, 1);
                }
            }
            _ => {}
        }
    }

    /// Appends the events that create this leaf and its rack.
    fn events(&self, id: u16, events: &mut Vec<Event>) {
        events.push(Event::Leaf { id, ip: self.ip, is_failed: self.is_failed });
        for (&ip, server) in &self.servers {
            events.push(Event::server(id, ip, server));
        }
        let all: Vec<_> = self.workers.iter().collect();
        // One event for each run of workers that differ only in their ids.
        let is_same_kind = |(_, one): &(&u16, &Worker), (_, next): &(&u16, &Worker)| {
            (one.server, one.speed) == (next.server, next.speed)
        };
        for run in all.chunk_by(is_same_kind) {
            let Some((_, first)) = run.first() else { continue };
            let ids = Ids(run.iter().map(|(id, _)| **id).collect());
            events.push(Event::Workers { leaf: id, server: first.server, ids, speed: first.speed });
        }
        for &pool in self.pools.keys() {
            let members = all.iter().filter(|(_, worker)| worker.pool == Some(pool));
            let ids = Ids(members.map(|(id, _)| **id).collect());
            events.push(Event::Assign { leaf: id, ids, pool: Some(pool) });
        }
    }
}
