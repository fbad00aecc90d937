//! Node that follows a controller: changes from its membership (pools, servers and workers) to the controller's desired
//! state, as far as they can be made at once.

use std::collections::BTreeSet;

use wedjat_desired::control::{Change, Membership};
use wedjat_desired::plan::Plan;
use wedjat_desired::state::Desired;

/// Result of applying a desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowResult {
    /// Version of the node's membership that all cores use.
    pub version: u64,
    /// True if the desired state is reached. Otherwise a server, pool or worker must leave or join first, and the
    /// caller must repeat the request.
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

/// Returns the changes from `now` to `wanted` that are possible at once, and true if these are all. Later calls add a
/// worker that changes its pool or server, after it has left, and drain a new worker, after it has joined.
///
/// # Errors
/// Settings that cannot change at run time, one line each.
pub fn changes(
    now: &Membership,
    wanted: &Desired,
    follows: &FollowerKind,
) -> Result<(Vec<Change>, bool), String> {
    let is_spine = *follows == FollowerKind::Spine;
    let (current, mut wanted) = (now.desired(is_spine), wanted.clone());
    for (id, pool) in &mut wanted.pools {
        // Settings that a controller does not know stay as in the node's file.
        pool.fixed = current.pools.get(id).map(|old| old.fixed.clone()).unwrap_or_default();
    }
    if let FollowerKind::Agent(known) = follows {
        keep_unknown(&current, &mut wanted, known);
    }
    // A controller drains servers only at leaves. A drained server's agent still serves the tasks that it has. Agents
    // and spines keep the drains that their operators requested.
    if *follows != FollowerKind::Leaf {
        wanted.keep_drains(&current);
    }
    Plan::new(now, &wanted, is_spine).possible()
}

/// Adds the agent's workers and pools that did not come from the controller to `wanted`, so that they stay.
fn keep_unknown(current: &Desired, wanted: &mut Desired, known: &KnownState) {
    let workers = current.workers.iter().filter(|((_, id), _)| !known.workers.contains(id));
    for (key, worker) in workers {
        wanted.workers.entry(*key).or_insert(*worker);
    }
    for (id, pool) in &current.pools {
        // A pool stays while it has workers, even one that came from the controller.
        let has_workers = wanted.workers.values().any(|worker| worker.pool == *id);
        if has_workers || !known.pools.contains(id) {
            wanted.pools.entry(*id).or_insert_with(|| pool.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use wedjat_desired::config::Config;
    use wedjat_desired::control::Worker;

    use super::*;

    /// Returns the membership of a leaf with these pools and servers.
    fn membership(pools: &str) -> Membership {
        let head = "[leaf]\nid = 1\ncores = [1]\n[[port]]\ndevice = 'a'\nside = 'both'\nip = '10.0.2.1/24'\n";
        let config = Config::parse(Path::new("leaf.toml"), &format!("{head}{pools}"));
        Membership::of(&config.unwrap_or_else(|error| panic!("{error}")))
    }

    /// Pool 1 with workers 0 to 3 on one server.
    const POOL: &str = "[[pool]]\nid = 1\npolicy = 'sed'\n[[server]]\nip = '10.0.2.11'\nworkers = '0-3'\npool = 1\n";

    /// Returns the changes of a leaf as text, and true if they are complete.
    fn texts(now: &Membership, wanted: &Membership) -> (Vec<String>, bool) {
        let (changes, is_complete) =
            changes(now, &wanted.desired(false), &FollowerKind::Leaf).unwrap();
        (changes.iter().map(ToString::to_string).collect(), is_complete)
    }

    // promise: controller.2
    #[test]
    fn a_worker_that_changes_its_pool_leaves_first() {
        let now = membership(POOL);
        let two = "[[pool]]\nid = 2\npolicy = 'sed'\n[[server]]\nip = '10.0.2.11'\nworkers = '3'\npool = 2\n";
        let wanted = membership(&format!("{}{two}", POOL.replace("0-3", "0-2")));
        let expected = vec![
            "add-pool id=2 policy=sed(half=0.5) queue=4096 overflow=drop".to_owned(),
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
        let now = membership(POOL);
        let wanted = membership(&POOL.replace("0-3", "0-1"));
        let mut known = KnownState::default();
        let texts = |wanted: &Membership, known: &KnownState| {
            let (changes, is_complete) =
                changes(&now, &wanted.desired(false), &FollowerKind::Agent(known.clone())).unwrap();
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
    fn drains_become_changes_and_removals_are_awaited() {
        let now = membership(POOL);
        let mut wanted = now.clone();
        for worker in wanted.pools[0].as_mut().unwrap().members.iter_mut().flatten().take(2) {
            worker.is_drained = true;
        }
        assert_eq!(texts(&now, &wanted), (vec!["drain workers=0-1".to_owned()], true));
        assert_eq!(texts(&wanted, &now), (vec!["undrain workers=0-1".to_owned()], true));
        // A pool, and then a server, that is being removed must be gone before it can be added again.
        let mut ending = now.clone();
        ending.pools[0].as_mut().unwrap().is_leaving = true;
        assert_eq!(texts(&ending, &now), (Vec::new(), false));
        let mut ending = now.clone();
        ending.servers[0].as_mut().unwrap().is_leaving = true;
        let (_, is_complete) = texts(&ending, &now);
        assert!(!is_complete);
        // Nothing exists yet: the changes add the pool, the server and the workers. A later call drains two of them.
        let empty =
            Membership { epoch: 1, servers: Vec::new(), spines: Vec::new(), pools: Vec::new() };
        let (changes, is_complete) = texts(&empty, &wanted);
        assert_eq!((changes.len(), is_complete), (3, false));
    }
}
