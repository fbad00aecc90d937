//! Invariants of a change, checked before any core gets it.
//!
//! A membership is a node's pools, servers and workers at one epoch, a number that grows with each change. Cores refer
//! to these objects by place, an index. A place that passed from one worker to another in one change would give the new
//! worker the tasks and the load of the old one. So a place must be empty in between.

use std::collections::BTreeSet;

use super::membership::Membership;

/// Checks the change from one membership to the next one. A spine's members are leaves, which may be in several pools.
///
/// # Panics
/// If the epoch does not grow by one, the list of pools becomes shorter, or a worker's server does not exist. Also if a
/// pool or a worker has two places, or a place passes directly from one pool or worker to another. All are defects of
/// the control.
pub(super) fn check(from: &Membership, to: &Membership, is_spine: bool) {
    assert_eq!(to.epoch, from.epoch + 1, "epoch of the next membership");
    assert!(to.pools.len() >= from.pools.len(), "a pool's place has disappeared");
    let (mut pools, mut workers) = (BTreeSet::new(), BTreeSet::new());
    for (index, pool) in to.pools.iter().enumerate() {
        let Some(pool) = pool else { continue };
        assert!(pools.insert(pool.id), "pool {} has two places", pool.id);
        let old = from.pools.get(index).and_then(Option::as_ref);
        if let Some(old) = old {
            assert_eq!(old.id, pool.id, "place {index} passes from one pool to another");
        }
        if is_spine {
            // Each pool of a spine may have the same leaves, so ids are unique only within a pool.
            workers.clear();
        }
        for (place, worker) in pool.members.iter().enumerate() {
            let Some(worker) = worker else { continue };
            assert!(workers.insert(worker.id), "worker {} has two places", worker.id);
            let old = old.and_then(|old| old.members.get(place).copied().flatten());
            if let Some(old) = old {
                assert_eq!(old.id, worker.id, "place {place} of pool {} passes on", pool.id);
            }
            let server = to.servers.get(usize::from(worker.server)).copied().flatten();
            assert!(server.is_some(), "worker {} has no server", worker.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Pool, Worker};
    use super::*;
    use crate::config::Config;

    /// Returns a leaf with the workers 0 to 3 in one pool, and the same leaf one epoch later.
    fn memberships() -> (Membership, Membership) {
        let text = "[leaf]\nid = 1\ncores = [1]\n[[port]]\ndevice = 'a'\nside = 'both'\nip = '10.0.2.1/24'\n\
                    [[pool]]\nid = 1\npolicy = 'sed'\n[[server]]\nip = '10.0.2.11'\nworkers = '0-3'\npool = 1\n";
        let config = Config::parse(Path::new("leaf.toml"), text);
        let from = Membership::of(&config.unwrap_or_else(|error| panic!("{error}")));
        let mut to = from.clone();
        to.epoch += 1;
        (from, to)
    }

    /// Returns the first pool.
    fn pool(membership: &mut Membership) -> &mut Pool {
        membership.pools[0].as_mut().unwrap()
    }

    /// Returns true if the change to the next membership violates an invariant. `change` modifies that membership.
    fn is_violated(is_spine: bool, change: impl Fn(&mut Membership)) -> bool {
        let (from, mut to) = memberships();
        change(&mut to);
        std::panic::catch_unwind(|| check(&from, &to, is_spine)).is_err()
    }

    #[test]
    fn invariants_of_a_change_are_checked() {
        assert!(!is_violated(false, |_| {}));
        assert!(is_violated(false, |to| to.epoch += 1));
        assert!(is_violated(false, |to| to.pools.clear()));
        assert!(is_violated(false, |to| pool(to).id = 2));
        assert!(is_violated(false, |to| pool(to).members.swap(0, 1)));
        // A second place for worker 3, and worker 9 of server 7, which does not exist.
        assert!(is_violated(false, |to| pool(to).members.push(Some(Worker::new(3, 0, 1.0)))));
        assert!(is_violated(false, |to| pool(to).members.push(Some(Worker::new(9, 7, 1.0)))));
        // A place may become empty, and an empty one may get any worker.
        assert!(!is_violated(false, |to| pool(to).members[1] = None));
        assert!(!is_violated(false, |to| pool(to).members.push(Some(Worker::new(9, 0, 1.0)))));
        // Adds pool 2, which also has worker 3. Only a spine's members may be in two pools.
        let add_second_pool = |to: &mut Membership| {
            let members = vec![Some(Worker::new(3, 0, 1.0))];
            let second = Pool { id: 2, members, ..pool(to).clone() };
            to.pools.push(Some(second));
        };
        assert!(is_violated(false, add_second_pool) && !is_violated(true, add_second_pool));
    }
}
