//! Reloads of the configuration file of a running node: computes the changes, or names the keys that cannot
//! change and the objects that must leave first.
//!
//! `started` is the configuration with which the node started. The current membership (pools, servers and workers) may
//! differ from it, because operators can change a running node.

use std::sync::Arc;

use wedjat_core::state::table::Role;
use wedjat_desired::config::{AgentConfig, Config, HostConfig, Settings};
use wedjat_desired::control::{Change, Membership};
use wedjat_desired::plan::{Obstacle, Plan};

/// Computes the changes that turn a node into a configuration that was read. The first membership is the node's, the
/// second that of the agent on its core, if there is one. Only the thread that watches the node knows them, so it calls
/// this after a [`Reader`] on another thread.
pub type Comparison =
    Box<dyn Fn(&Membership, Option<&Membership>) -> Result<Vec<Change>, String> + Send>;

/// Reads and checks the configuration file. It runs on its own thread, so that a stalled file system does not
/// delay other requests.
pub type Reader = Arc<dyn Fn() -> Result<Comparison, String> + Send + Sync>;

/// Returns the reader of the file that a leaf or spine started with.
#[must_use]
pub fn leaf_file_reader(started: &Config) -> Reader {
    let started = Arc::new(started.clone());
    Arc::new(move || {
        let wanted = Config::load(&started.path).map_err(|error| error.to_string())?;
        let started = Arc::clone(&started);
        Ok(Box::new(move |now, of_agent| leaf(&started, &wanted, now, of_agent)))
    })
}

/// Returns the reader of the file that an agent started with.
#[must_use]
pub fn agent_file_reader(started: &AgentConfig) -> Reader {
    let started = Arc::new(started.clone());
    Arc::new(move || {
        let wanted = AgentConfig::load(&started.path).map_err(|error| error.to_string())?;
        let (started, wanted_membership) =
            (Arc::clone(&started), wedjat_assembly::agent::membership(&wanted));
        Ok(Box::new(move |now, _| agent(&started, &wanted, now, &wanted_membership)))
    })
}

/// Computes the changes that turn the running configuration of a leaf or spine into `wanted`.
///
/// The node started with `started` and now has the membership `now`; the agent on its core has `of_agent`. A pool of
/// the agent that `wanted` lacks stays until its workers have left. A later reload removes it.
///
/// # Errors
/// Keys that cannot change at run time, and objects that must leave first, one per line.
pub fn leaf(
    started: &Config,
    wanted: &Config,
    now: &Membership,
    of_agent: Option<&Membership>,
) -> Result<Vec<Change>, String> {
    let settings = settings(&started.settings, &wanted.settings);
    let agent_plan = match (&wanted.agent, of_agent) {
        (Some(wanted), Some(now)) => pools_of_agent(wanted, now),
        _ => Plan::default(),
    };
    let leaf_plan = members(now, &Membership::of(wanted), started.role == Role::Spine);
    // The leaf's changes also remove the agent's workers, so they precede the removal of its pools.
    let changes = [leaf_plan.changes, agent_plan.changes].concat();
    let obstacles = [settings, agent_plan.obstacles, leaf_plan.obstacles].concat();
    Plan { changes, obstacles }.complete()
}

/// Computes the changes that turn the running configuration of an agent into `wanted`. The agent started with
/// `started` and now has the membership `now`; `wanted_membership` is the one of `wanted`.
///
/// # Errors
/// Keys that cannot change at run time, and objects that must leave first, one per line.
pub fn agent(
    started: &AgentConfig,
    wanted: &AgentConfig,
    now: &Membership,
    wanted_membership: &Membership,
) -> Result<Vec<Change>, String> {
    let settings = settings(&started.settings, &wanted.settings);
    let Plan { changes, obstacles } = members(now, wanted_membership, false);
    Plan { changes, obstacles: [settings, obstacles].concat() }.complete()
}

/// Returns an obstacle for each setting that differs. All of them are fixed at the start.
fn settings(started: &Settings, wanted: &Settings) -> Vec<Obstacle> {
    started.differences(wanted).into_iter().map(Obstacle::Fixed).collect()
}

/// Computes the changes from one membership to another. Workers stay drained or active, because a file does not say
/// which ones are drained.
fn members(now: &Membership, wanted: &Membership, is_spine: bool) -> Plan {
    let mut wanted = wanted.desired(is_spine);
    wanted.keep_drains(&now.desired(is_spine));
    Plan::new(now, &wanted, is_spine)
}

/// Computes the changes of the pools of an agent on a leaf's core. Their workers change with the leaf's. A pool
/// that still has workers is not removed yet.
fn pools_of_agent(wanted: &HostConfig, now: &Membership) -> Plan {
    let wanted = Membership::of_host(wanted).desired(false);
    let mut next = now.desired(false);
    // `workers` gives the index of each worker's pool, and `pool` the index of the pool with this id.
    let has_workers = |id: &u16| {
        now.workers().any(|(owner, _)| now.pool(*id).is_some_and(|(pool, _)| pool == owner))
    };
    next.pools.retain(|id, _| has_workers(id));
    next.pools.extend(wanted.pools);
    let Plan { mut changes, obstacles } = Plan::new(now, &next, false);
    changes.iter_mut().for_each(|change| *change = Change::OfAgent(Box::new(change.clone())));
    Plan { changes, obstacles }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A leaf with two pools and a server in both.
    const LEAF: &str = "[leaf]\nid = 1\ncores = [1]\n\
        [[port]]\ndevice = 'net_memif0'\nside = 'both'\nip = '10.0.2.1/24'\n\
        [[pool]]\nid = 1\npolicy = 'horus'\n[[pool]]\nid = 2\npolicy = 'sed'\n\
        [[server]]\nip = '10.0.2.11'\nworkers = '0-3'\npool = 1\n\
        [[server]]\nip = '10.0.2.11'\nworkers = '4-5'\npool = 2\nregisters = true\n";

    /// Parses a leaf's file.
    fn parse(text: &str) -> Config {
        let config = Config::parse(Path::new("leaf.toml"), text);
        config.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the changes from the file [`LEAF`] to another file.
    fn changes(text: &str) -> Result<Vec<String>, String> {
        let (started, wanted) = (parse(LEAF), parse(text));
        let now = Membership::of(&started);
        let changes = leaf(&started, &wanted, &now, None)?;
        Ok(changes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn pool_is_never_added_without_its_key() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "00112233445566778899aabbccddeeff\n").unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        let leaf_with = |key: &str| {
            let server =
                "[[server]]\nip = '10.0.2.12'\nworkers = '8-9'\npool = 3\nregisters = true\n";
            parse(&format!("{LEAF}[[pool]]\nid = 3\npolicy = 'sed'\n{key}{server}"))
        };
        let key = format!("key_file = '{}'\n", key.display());
        let (with_key, without) = (leaf_with(&key), parse(LEAF));
        // The pool was removed since the start, or added again without a key.
        for now in [&without, &leaf_with("")].map(Membership::of) {
            let error = leaf(&with_key, &with_key, &now, None).unwrap_err();
            let expected = "`pool.key_file` of pool 3 can't change at run time: restart the node";
            assert_eq!(error, expected);
        }
        let error = leaf(&without, &with_key, &Membership::of(&without), None).unwrap_err();
        assert_eq!(error.matches("key_file").count(), 1, "{error}");
        let now = Membership::of(&with_key);
        assert_eq!(leaf(&with_key, &with_key, &now, None), Ok(Vec::new()));
    }

    #[test]
    fn nothing_changes_for_the_same_file() {
        assert_eq!(changes(LEAF), Ok(Vec::new()));
        assert_eq!(changes(&format!("# The same.\n{LEAF}")), Ok(Vec::new()));
    }

    #[test]
    fn a_server_of_two_pools_is_one_server() {
        let more = "[[server]]\nip = '10.0.2.12'\nworkers = '6'\npool = 1\n\
                    [[server]]\nip = '10.0.2.12'\nworkers = '7-9'\npool = 2\n";
        let expected = [
            "add-server ip=10.0.2.12",
            "add-workers server=10.0.2.12 pool=1 workers=6",
            "add-workers server=10.0.2.12 pool=2 workers=7-9",
        ];
        assert_eq!(changes(&format!("{LEAF}{more}")).unwrap(), expected);
        let moved = LEAF.replace("10.0.2.11'\n", "10.0.2.11'\nmac = '02:00:00:00:02:0b'\n");
        let expected = ["move-server ip=10.0.2.11 to=10.0.2.11 mac=02:00:00:00:02:0b"];
        assert_eq!(changes(&moved).unwrap(), expected);
    }

    #[test]
    fn removals_take_their_workers_along() {
        // The file without pool 2 and without its entry of the server.
        let (first, rest) = LEAF.split_once("[[pool]]\nid = 2").unwrap();
        let (_, rest) = rest.split_once("'sed'\n").unwrap();
        let (rest, _) = rest.rsplit_once("[[server]]").unwrap();
        assert_eq!(changes(&format!("{first}{rest}")).unwrap(), ["remove-pool id=2"]);
        // A server is replaced by another one, which has other workers.
        let elsewhere = LEAF.replace("10.0.2.11", "10.0.2.12").replace("0-3", "10-13");
        let expected = [
            "add-server ip=10.0.2.12",
            "remove-server ip=10.0.2.11",
            "add-workers server=10.0.2.12 pool=1 workers=10-13",
            "add-workers server=10.0.2.12 pool=2 workers=14-15",
        ];
        let elsewhere = elsewhere.replace("4-5", "14-15");
        assert_eq!(changes(&elsewhere.replace("registers = true\n", "")).unwrap(), expected);
        // Only one of the new server's two entries has `registers = true`.
        let error = changes(&elsewhere).unwrap_err();
        assert!(error.contains("entries of server 10.0.2.12 that differ can't change"), "{error}");
    }

    #[test]
    fn colocated_agent_changes_with_its_leaf() {
        // The leaf with an agent of these pools.
        let agent = |pools: &str| {
            let text = format!("{LEAF}[agent]\nname = 'memory'\n{pools}");
            parse(&text.replace("cores = [1]", "cores = [1]\nworkers_max = 64"))
        };
        let pool = |id, policy, workers| {
            format!("[[agent.pool]]\nid = {id}\npolicy = '{policy}'\nworkers = '{workers}'\n")
        };
        let first = pool(1, "jsq", "20-22");
        let started = agent(&first);
        let of_agent = Membership::of_host(started.agent.as_ref().unwrap());
        // Memberships of the leaf and of the agent.
        let now = (Membership::of(&started), of_agent);
        let changes = |wanted: &str| {
            let changes = leaf(&started, &agent(wanted), &now.0, Some(&now.1)).unwrap();
            changes.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(changes(&first).is_empty());
        // 169.254.77.2 is the agent's address on the link to its leaf.
        let wanted = pool(1, "jbsq(k=2)", "20-21,23-24") + "queue = 9\n" + &pool(2, "sed", "30");
        let expected = [
            "remove-workers workers=22",
            "add-workers server=169.254.77.2 pool=1 workers=23-24",
            "add-workers server=169.254.77.2 pool=2 workers=30",
            "agent set-policy pool=1 policy=jbsq(k=2, silence-ms=0)",
            "agent set-queue pool=1 queue=9 overflow=drop",
            "agent add-pool id=2 policy=sed(half=0.5) queue=4096 overflow=drop",
        ];
        assert_eq!(changes(&wanted), expected);
        // The agent's pool goes after its workers.
        let other = pool(2, "sed", "30");
        assert!(!changes(&other).iter().any(|change| change.starts_with("agent remove-pool")));
        let now = (now.0, {
            let mut emptied = now.1.clone();
            emptied.pools[0].as_mut().unwrap().members.clear();
            emptied
        });
        let changes = leaf(&started, &agent(&other), &now.0, Some(&now.1)).unwrap();
        assert!(changes.iter().any(|change| change.to_string() == "agent remove-pool id=1"));
        let fixed = agent(&format!("slots = 2\n{first}"));
        let error = leaf(&started, &fixed, &now.0, Some(&now.1)).unwrap_err();
        assert!(error.contains("`agent.slots` can't change at run time"), "{error}");
    }

    #[test]
    fn controller_changes_are_refused() {
        // Sets the number of packet buffers, whose default depends on whether the node has a controller.
        let alone = LEAF.replace("cores = [1]", "cores = [1]\nmbufs = 99999");
        let following = format!("{alone}[controller]\naddresses = ['unix:/run/fabric.ctl']\n");
        let now = Membership::of(&parse(LEAF));
        let error = leaf(&parse(&alone), &parse(&following), &now, None).unwrap_err();
        assert_eq!(error, "`controller` can't change at run time: restart the node");
        let (started, wanted) = (parse(&following), parse(&following.replace("fabric", "other")));
        let error = leaf(&started, &wanted, &now, None).unwrap_err();
        assert_eq!(error, "`controller.addresses` can't change at run time: restart the node");
    }

    #[test]
    fn all_immutable_keys_are_named_at_once() {
        let wanted = LEAF
            .replace("id = 1\ncores = [1]", "id = 2\ncores = [1, 2]\nworkers_max = 99")
            .replace("workers = '0-3'", "workers = '0-2'")
            .replace("4-5", "3-5")
            .replace("policy = 'horus'", "policy = 'jiq'\nreports = 'messages'\nreplies = 'direct'")
            .replace("policy = 'sed'", "policy = 'sed'\nshared_workers = true");
        let error = changes(&wanted).unwrap_err();
        for says in [
            "`leaf.id` can't change at run time: restart the node",
            "`leaf.cores`",
            "`leaf.workers_max`",
            "`pool.reports` of pool 1",
            "`pool.replies` of pool 1",
            "`pool.shared_workers` of pool 2",
            "worker 3 is in pool 1 at 10.0.2.11 and can't move to pool 2",
        ] {
            assert!(error.contains(says), "{says}: {error}");
        }
        assert_eq!(error.lines().count(), 7, "{error}");
    }

    // promise: batch.2
    #[test]
    fn batch_job_change_is_refused_while_running() {
        let file = |jobs: &str| {
            let text = format!(
                "[agent]\nname = 'memory'\ncore = 0\n[[port]]\ndevice = 'memory'\nip = '10.0.2.11/24'\n\
                 [[pool]]\nid = 1\npolicy = 'cfcfs'\nworkers = '0-1'\n{jobs}"
            );
            AgentConfig::parse(Path::new("agent"), &text).unwrap()
        };
        let jobs = "[cosched]\npolicy = 'idle'\n[[cosched.job]]\ncommand = ['true']\n";
        let started = file(jobs);
        let now = Membership::of_host(&started.host);
        let changes = |jobs: &str| agent(&started, &file(jobs), &now, &now);
        assert_eq!(changes(jobs), Ok(Vec::new()));
        for (other, name) in [
            ("", "`cosched`"),
            (&jobs.replace("idle", "guard"), "`cosched.policy`"),
            (&jobs.replace("true", "false"), "`cosched.job.command` of job 1"),
        ] {
            let error = changes(other).unwrap_err();
            assert_eq!(error, format!("{name} can't change at run time: restart the node"));
        }
    }
}
