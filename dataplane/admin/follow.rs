//! Node that follows a controller: changes from its current to the desired membership, as far as they can be
//! made at once.
//!
//! A membership is the set of a node's pools, servers and workers. A removed object is *leaving* until its tasks
//! are answered, and it blocks changes that conflict with it.

use std::collections::BTreeSet;

use wedjat_core::policy::Reports;
use wedjat_desired::control::{Change, Membership, Pool, Server, Worker};

use super::reload::ImmutableKeys;

/// Result of applying a desired membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowResult {
    /// Version of the node's membership that all cores use.
    pub version: u64,
    /// True if the desired membership is reached. Otherwise something must leave first, and the caller must
    /// repeat the request.
    pub is_complete: bool,
}

/// Connection of a node to the controller that it follows.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ControllerLink {
    /// Address of the controller.
    pub address: String,
    /// True while the node is connected to it.
    pub connected: bool,
}

/// Pools and workers that ever came from the controller, by id. An agent keeps others, which its file or an
/// operator added, until the controller includes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownState {
    /// Pools.
    pub pools: BTreeSet<u16>,
    /// Workers.
    pub workers: BTreeSet<u16>,
}

/// Kind of the following node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowerKind {
    /// A leaf.
    Leaf,
    /// A spine, whose members may be in several pools.
    Spine,
    /// An agent, which removes only parts that came from the controller.
    Agent(KnownState),
}

/// Returns the changes from `now` to `wanted` that are possible at once, and true if these are all. A worker that
/// changes its pool or server must leave first, so a later call adds it.
///
/// # Errors
/// Settings that cannot change at run time, one line each.
pub fn changes(
    now: &Membership,
    wanted: &Membership,
    follows: &FollowerKind,
) -> Result<(Vec<Change>, bool), String> {
    let mut is_complete = true;
    let mut next = wanted.clone();
    for pool in next.pools.iter_mut().flatten() {
        let old_pool = now.pool(pool.id).map(|(_, old)| old);
        // Settings that a controller does not know stay as in the node's file.
        pool.shared_workers = old_pool.is_some_and(|old| old.shared_workers);
        pool.reports = old_pool.map_or(Reports::Replies, |old| old.reports);
        // True unless the worker is still elsewhere or its server is leaving.
        let is_possible_now = |worker: &Worker| {
            let ip = server_of(wanted, worker).map(|server| server.ip);
            // A spine's member is a leaf, which may be in several pools.
            let of_pool = (*follows == FollowerKind::Spine).then_some(pool.id);
            let is_elsewhere = find(now, of_pool, worker.id).is_some_and(|(old_pool, old)| {
                let old_ip = server_of(now, old).map(|server| server.ip);
                old.is_leaving || old_pool.id != pool.id || old_ip != ip
            });
            !is_elsewhere && !is_leaving(now, ip)
        };
        for place in &mut pool.members {
            let must_wait = place.as_ref().is_some_and(|worker| !is_possible_now(worker));
            if must_wait || old_pool.is_some_and(|old| old.is_leaving) {
                (*place, is_complete) = (None, false);
            }
        }
    }
    // A pool or server cannot be added again before it has left.
    for place in &mut next.pools {
        let is_leaving = |id| now.pool(id).is_some_and(|(_, old)| old.is_leaving);
        if place.as_ref().is_some_and(|pool| is_leaving(pool.id)) {
            (*place, is_complete) = (None, false);
        }
    }
    for place in &mut next.servers {
        if place.is_some_and(|server| is_leaving(now, Some(server.ip))) {
            (*place, is_complete) = (None, false);
        }
    }
    if let FollowerKind::Agent(known) = follows {
        keep_unknown(now, &mut next, known);
    }
    let mut changes = ImmutableKeys::new(*follows == FollowerKind::Spine).changes(now, &next)?;
    drop_implied_removals(now, &mut changes);
    if *follows == FollowerKind::Leaf {
        is_complete &= drains(now, &next, &mut changes);
    }
    Ok((changes, is_complete))
}

/// Drops removals of workers whose pool or server is leaving already.
fn drop_implied_removals(now: &Membership, changes: &mut Vec<Change>) {
    let stays = |pool: Option<u16>, id: u16| {
        let found = find(now, pool, id);
        let ip = found.and_then(|(_, worker)| Some(server_of(now, worker)?.ip));
        found.is_some_and(|(pool, _)| !pool.is_leaving) && !is_leaving(now, ip)
    };
    changes.retain_mut(|change| match change {
        &mut Change::RemoveWorkers { pool, ref mut workers } => {
            workers.retain(|id| stays(pool, *id));
            !workers.is_empty()
        }
        _ => true,
    });
}

/// Adds the agent's workers and pools that did not come from the controller to `next`, so that they stay.
fn keep_unknown(now: &Membership, next: &mut Membership, known: &KnownState) {
    for pool in now.pools.iter().flatten() {
        let stays = |worker: &&Worker| !known.workers.contains(&worker.id) && !worker.is_leaving;
        let kept_workers: Vec<_> = pool.members.iter().flatten().filter(stays).copied().collect();
        let is_wanted = |worker: &Worker| next.worker(worker.id).is_some();
        let kept_workers: Vec<_> =
            kept_workers.into_iter().filter(|worker| !is_wanted(worker)).map(Some).collect();
        let wanted_pool =
            next.pools.iter_mut().flatten().find(|wanted_pool| wanted_pool.id == pool.id);
        match wanted_pool {
            Some(wanted_pool) => wanted_pool.members.extend(kept_workers),
            None if pool.is_leaving
                || kept_workers.is_empty() && known.pools.contains(&pool.id) => {}
            None => next.pools.push(Some(Pool { members: kept_workers, ..pool.clone() })),
        }
    }
}

/// Returns a worker's server.
fn server_of<'a>(of: &'a Membership, worker: &Worker) -> Option<&'a Server> {
    of.servers.get(usize::from(worker.server))?.as_ref()
}

/// Finds a worker in any pool or in one.
fn find(of: &Membership, pool: Option<u16>, id: u16) -> Option<(&Pool, &Worker)> {
    let (pool, place) = pool.map_or_else(|| of.worker(id), |pool| of.place(pool, id))?;
    let pool = of.pools[pool].as_ref()?;
    Some((pool, pool.members[place].as_ref()?))
}

/// Returns true if the server with this address is leaving.
fn is_leaving(now: &Membership, ip: Option<std::net::IpAddr>) -> bool {
    now.servers.iter().flatten().any(|server| Some(server.ip) == ip && server.is_leaving)
}

/// Adds drains and undrains of workers whose state differs. Returns false if a drained worker must join first: it
/// joins undrained.
fn drains(now: &Membership, next: &Membership, changes: &mut Vec<Change>) -> bool {
    let (mut drained, mut undrained, mut is_complete) = (Vec::new(), Vec::new(), true);
    for (_, worker) in next.workers() {
        match find(now, None, worker.id) {
            Some((_, old)) if old.is_drained == worker.is_drained => {}
            Some(_) if worker.is_drained => drained.push(worker.id),
            Some(_) => undrained.push(worker.id),
            None => is_complete &= !worker.is_drained,
        }
    }
    if !drained.is_empty() {
        changes.push(Change::Drain { workers: drained });
    }
    if !undrained.is_empty() {
        changes.push(Change::Undrain { workers: undrained });
    }
    is_complete
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use wedjat_desired::config::Config;

    use super::*;

    /// Returns the membership of a leaf with these pools and servers.
    fn membership(pools: &str) -> Membership {
        let head = "[leaf]\nid = 1\ncores = [1]\n[[port]]\ndevice = 'a'\nside = 'both'\nip = '10.0.2.1/24'\n";
        let config = Config::parse(Path::new("leaf.toml"), &format!("{head}{pools}"));
        Membership::of(&config.unwrap_or_else(|error| panic!("{error}")))
    }

    /// One pool with four workers.
    const ONE: &str = "[[pool]]\nid = 1\npolicy = 'sed'\n[[server]]\nip = '10.0.2.11'\nworkers = '0-3'\npool = 1\n";

    /// Returns the changes of a leaf as text, and true if they are complete.
    fn texts(now: &Membership, wanted: &Membership) -> (Vec<String>, bool) {
        let (changes, is_complete) = changes(now, wanted, &FollowerKind::Leaf).unwrap();
        (changes.iter().map(ToString::to_string).collect(), is_complete)
    }

    // promise: controller.2
    #[test]
    fn a_worker_that_changes_its_pool_leaves_first() {
        let now = membership(ONE);
        let two = "[[pool]]\nid = 2\npolicy = 'sed'\n[[server]]\nip = '10.0.2.11'\nworkers = '3'\npool = 2\n";
        let wanted = membership(&format!("{}{two}", ONE.replace("0-3", "0-2")));
        let expected = vec![
            "add-pool id=2 policy=sed queue=4096 overflow=drop".to_owned(),
            "remove-workers workers=3".to_owned(),
        ];
        assert_eq!(texts(&now, &wanted), (expected, false));
        // Nothing more can change while it leaves.
        let mut leaving = wanted.clone();
        leaving.pools[1].as_mut().unwrap().members.clear();
        let one = Worker { is_leaving: true, ..Worker::new(3, 0, 1.0) };
        leaving.pools[0].as_mut().unwrap().members.push(Some(one));
        assert_eq!(texts(&leaving, &wanted), (Vec::new(), false));
        leaving.pools[0].as_mut().unwrap().members.pop();
        let expected = vec!["add-workers server=10.0.2.11 pool=2 workers=3".to_owned()];
        assert_eq!(texts(&leaving, &wanted), (expected, true));
        assert_eq!(texts(&wanted, &wanted), (Vec::new(), true));
    }

    // promise: controller.2
    #[test]
    fn agent_removes_only_controller_state() {
        let now = membership(ONE);
        let wanted = membership(&ONE.replace("0-3", "0-1"));
        let mut known = KnownState::default();
        let texts = |wanted: &Membership, known: &KnownState| {
            let (changes, is_complete) =
                changes(&now, wanted, &FollowerKind::Agent(known.clone())).unwrap();
            assert!(is_complete);
            changes.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(texts(&wanted, &known).is_empty());
        known.workers.insert(3);
        assert_eq!(texts(&wanted, &known), ["remove-workers workers=3"]);
        let nothing = Membership { pools: Vec::new(), ..wanted };
        known.pools.insert(1);
        assert_eq!(texts(&nothing, &known), ["remove-workers workers=3"], "its pool has others");
        known.workers.extend(0..3);
        assert_eq!(texts(&nothing, &known), ["remove-pool id=1"]);
    }

    #[test]
    fn drained_workers_are_reported_and_removals_awaited() {
        let now = membership(ONE);
        let mut wanted = now.clone();
        for worker in wanted.pools[0].as_mut().unwrap().members.iter_mut().flatten().take(2) {
            worker.is_drained = true;
        }
        assert_eq!(texts(&now, &wanted), (vec!["drain workers=0-1".to_owned()], true));
        assert_eq!(texts(&wanted, &now), (vec!["undrain workers=0-1".to_owned()], true));
        let mut ending = now.clone();
        ending.pools[0].as_mut().unwrap().is_leaving = true;
        assert_eq!(texts(&ending, &now), (Vec::new(), false));
        let mut ending = now.clone();
        ending.servers[0].as_mut().unwrap().is_leaving = true;
        let (_, is_complete) = texts(&ending, &now);
        assert!(!is_complete);
        // None exists yet: drained workers are drained once they join.
        let nobody =
            Membership { epoch: 1, servers: Vec::new(), spines: Vec::new(), pools: Vec::new() };
        let (changes, is_complete) = texts(&nobody, &wanted);
        assert_eq!((changes.len(), is_complete), (3, false));
    }
}
