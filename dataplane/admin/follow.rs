//! A node that is to be what a controller says: what leads there, as far as it can be done at once.

use std::collections::BTreeSet;

use super::reload::Kept;
use crate::control::{Change, Membership, Pool, Server, Worker};
use crate::policy::Reports;

/// What a node has made of what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// All cores decide by this version of the node's.
    pub version: u64,
    /// It is all that was told; otherwise something must leave first, and the same is to be told again.
    pub is_complete: bool,
}

/// What a node was told of so far, by ids: an agent has what its controller does not know yet besides, until it is told of that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Pools.
    pub pools: BTreeSet<u16>,
    /// Workers.
    pub workers: BTreeSet<u16>,
}

/// The kind of node that follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Follows {
    /// A leaf.
    Leaf,
    /// A spine, whose members may be in several pools.
    Spine,
    /// An agent: it gives up only what it was told of.
    Agent(Told),
}

/// What leads from one membership to another: now, and whether that is all. What must leave before it can come again, as a worker
/// that changes its pool, comes later.
///
/// # Errors
/// What can't be while the node runs, a line each.
pub fn changes(
    now: &Membership,
    wanted: &Membership,
    follows: &Follows,
) -> Result<(Vec<Change>, bool), String> {
    let mut is_complete = true;
    let mut next = wanted.clone();
    for pool in next.pools.iter_mut().flatten() {
        let was = now.pool(pool.id).map(|(_, was)| was);
        // What no change makes otherwise stays as the node's file has it.
        pool.shared_workers = was.is_some_and(|was| was.shared_workers);
        pool.reports = was.map_or(Reports::Replies, |was| was.reports);
        let may_stay = |worker: &Worker| {
            let ip = server_of(wanted, worker).map(|server| server.ip);
            let of_pool = (*follows == Follows::Spine).then_some(pool.id);
            let is_elsewhere = find(now, of_pool, worker.id).is_some_and(|(there, one)| {
                let at = server_of(now, one).map(|server| server.ip);
                one.is_leaving || there.id != pool.id || at != ip
            });
            !is_elsewhere && !is_leaving(now, ip)
        };
        for place in &mut pool.members {
            let is_late = place.as_ref().is_some_and(|worker| !may_stay(worker));
            if is_late || was.is_some_and(|was| was.is_leaving) {
                (*place, is_complete) = (None, false);
            }
        }
    }
    for place in &mut next.pools {
        let is_leaving = |id| now.pool(id).is_some_and(|(_, was)| was.is_leaving);
        if place.as_ref().is_some_and(|pool| is_leaving(pool.id)) {
            (*place, is_complete) = (None, false);
        }
    }
    for place in &mut next.servers {
        if place.is_some_and(|server| is_leaving(now, Some(server.ip))) {
            (*place, is_complete) = (None, false);
        }
    }
    if let Follows::Agent(told) = follows {
        keep_others(now, &mut next, told);
    }
    let mut changes = Kept::new(*follows == Follows::Spine).changes(now, &next)?;
    leave_in_peace(now, &mut changes);
    if *follows == Follows::Leaf {
        is_complete &= drains(now, &next, &mut changes);
    }
    Ok((changes, is_complete))
}

/// Takes out who leaves with its pool or server anyway.
fn leave_in_peace(now: &Membership, changes: &mut Vec<Change>) {
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

/// Adds what there is now and was never told of.
fn keep_others(now: &Membership, next: &mut Membership, told: &Told) {
    for pool in now.pools.iter().flatten() {
        let stays = |worker: &&Worker| !told.workers.contains(&worker.id) && !worker.is_leaving;
        let others: Vec<_> = pool.members.iter().flatten().filter(stays).copied().collect();
        let is_known = |worker: &Worker| next.worker(worker.id).is_some();
        let others: Vec<_> =
            others.into_iter().filter(|worker| !is_known(worker)).map(Some).collect();
        let there = next.pools.iter_mut().flatten().find(|there| there.id == pool.id);
        match there {
            Some(there) => there.members.extend(others),
            None if pool.is_leaving || others.is_empty() && told.pools.contains(&pool.id) => {}
            None => next.pools.push(Some(Pool { members: others, ..pool.clone() })),
        }
    }
}

fn server_of<'a>(of: &'a Membership, worker: &Worker) -> Option<&'a Server> {
    of.servers.get(usize::from(worker.server))?.as_ref()
}

/// A worker, of any pool or of one.
fn find(of: &Membership, pool: Option<u16>, id: u16) -> Option<(&Pool, &Worker)> {
    let (pool, place) = pool.map_or_else(|| of.worker(id), |pool| of.place(pool, id))?;
    let pool = of.pools[pool].as_ref()?;
    Some((pool, pool.members[place].as_ref()?))
}

fn is_leaving(now: &Membership, ip: Option<std::net::IpAddr>) -> bool {
    now.servers.iter().flatten().any(|server| Some(server.ip) == ip && server.is_leaving)
}

/// Adds who is to be drained or not; false when somebody must come first.
fn drains(now: &Membership, next: &Membership, changes: &mut Vec<Change>) -> bool {
    let (mut drained, mut undrained, mut is_complete) = (Vec::new(), Vec::new(), true);
    for (_, worker) in next.workers() {
        match find(now, None, worker.id) {
            Some((_, was)) if was.is_drained == worker.is_drained => {}
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

    use super::*;
    use crate::config::Config;

    fn membership(pools: &str) -> Membership {
        let head = "[leaf]\nid = 1\ncores = [1]\n[[port]]\ndevice = 'a'\nside = 'both'\nip = '10.0.2.1/24'\n";
        let config = Config::parse(Path::new("leaf.toml"), &format!("{head}{pools}"));
        Membership::of(&config.unwrap_or_else(|error| panic!("{error}")))
    }

    const ONE: &str = "[[pool]]\nid = 1\npolicy = 'sed'\n[[server]]\nip = '10.0.2.11'\nworkers = '0-3'\npool = 1\n";

    fn texts(now: &Membership, wanted: &Membership) -> (Vec<String>, bool) {
        let (changes, is_complete) = changes(now, wanted, &Follows::Leaf).unwrap();
        (changes.iter().map(ToString::to_string).collect(), is_complete)
    }

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
        // While it leaves, nothing more can be done.
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

    #[test]
    fn an_agent_gives_up_only_what_it_was_told_of() {
        let now = membership(ONE);
        let wanted = membership(&ONE.replace("0-3", "0-1"));
        let mut told = Told::default();
        let texts = |wanted: &Membership, told: &Told| {
            let (changes, is_complete) =
                changes(&now, wanted, &Follows::Agent(told.clone())).unwrap();
            assert!(is_complete);
            changes.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(texts(&wanted, &told).is_empty());
        told.workers.insert(3);
        assert_eq!(texts(&wanted, &told), ["remove-workers workers=3"]);
        let nothing = Membership { pools: Vec::new(), ..wanted };
        told.pools.insert(1);
        assert_eq!(texts(&nothing, &told), ["remove-workers workers=3"], "its pool has others");
        told.workers.extend(0..3);
        assert_eq!(texts(&nothing, &told), ["remove-pool id=1"]);
    }

    #[test]
    fn who_is_drained_is_told_and_what_leaves_is_waited_for() {
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
        // None of it is there yet: drained workers are drained once they are.
        let nobody =
            Membership { epoch: 1, servers: Vec::new(), spines: Vec::new(), pools: Vec::new() };
        let (changes, is_complete) = texts(&nobody, &wanted);
        assert_eq!((changes.len(), is_complete), (3, false));
    }
}
