//! Pool of a running or ended node (leaf or agent), as a source of conditions for the advice.
//!
//! A state file holds copies of a node's state, and stays after the node's end.

use std::path::Path;

use wedjat_core::state::{MemberPresence, Snapshot};

use super::capture::Speeds;
use super::measure::only;

/// Quantities of a pool that its node knows. They come from the state file, or from the running node's reply to
/// `wedjat advise`. The node does not know arrivals, service times and delay, which a capture shows.
#[derive(Clone, Debug, PartialEq)]
pub struct NodePool {
    /// Id of the pool.
    pub id: u32,
    /// Number of workers that may get tasks. From a state file, it includes drained workers, which the file does not
    /// mark.
    pub workers: usize,
    /// Number of dispatcher cores.
    pub dispatchers: usize,
    /// Policy of the pool.
    pub policy: String,
    /// Configured speeds of the workers; `None` if unknown, as in a state file.
    pub speeds: Option<Speeds>,
}

impl NodePool {
    /// Reads a pool from a state file. `pool` is its id, and may be `None` if the node has only one pool.
    ///
    /// # Errors
    /// The file, the reason and the fix.
    pub fn read(path: &Path, pool: Option<u32>) -> Result<Self, String> {
        let snapshot = Snapshot::open(path).map_err(|error| error.to_string())?;
        let fault = |reason| format!("state file {}: {reason}", path.display());
        let ids = snapshot.pools.iter().map(|pool| u32::from(pool.id)).collect();
        let id = only("pool", pool, ids).map_err(fault)?;
        let pool = snapshot.pools.iter().find(|pool| u32::from(pool.id) == id);
        let pool = pool.ok_or_else(|| fault("it has no pool".to_owned()))?;
        // Silent, unreachable and unregistered workers get no tasks.
        let is_active =
            |presence| matches!(presence, MemberPresence::Configured | MemberPresence::Registered);
        let workers = pool.members.iter().filter(|member| is_active(member.presence)).count();
        if workers == 0 {
            return Err(fault(format!(
                "no worker of pool {id} may get tasks; start the workers first"
            )));
        }
        let (dispatchers, policy) = (snapshot.cores.len(), pool.policy.clone());
        Ok(Self { id, workers, dispatchers, policy, speeds: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wedjat_core::state::Table;
    use wedjat_core::state::table::{PoolSpec, Spec, WorkerSpec};

    /// Creates the state file of a leaf with two cores, and with a pool of 3 workers for each id in `pools`.
    fn state(path: &Path, pools: &[u16]) -> Table {
        let server = std::net::IpAddr::from([10, 0, 2, 11]);
        let worker = |id| WorkerSpec { id, server: 0 };
        let pool = |&id: &u16| PoolSpec {
            id,
            policy: "jbsq(k=2)".to_owned(),
            objective: String::new(),
            workers: (10 * id..10 * id + 3).map(worker).collect(),
        };
        let pools = pools.iter().map(pool).collect();
        let spec =
            Spec { node: 1, cores: 2, ports: 1, servers: vec![server], pools, ..Spec::default() };
        Table::create(path, &spec).unwrap()
    }

    #[test]
    fn state_file_gives_workers_cores_and_policy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let table = state(&path, &[1, 2]);
        table.publish();
        let pool = NodePool::read(&path, Some(2)).unwrap();
        let policy = "jbsq(k=2)".to_owned();
        let expected = NodePool { id: 2, workers: 3, dispatchers: 2, policy, speeds: None };
        assert_eq!(pool, expected);
        let error = NodePool::read(&path, None).unwrap_err();
        assert!(error.contains("2 pools; give one of 1, 2 as --pool"), "{error}");
        let missing = NodePool::read(&folder.path().join("none"), None).unwrap_err();
        assert!(missing.contains("does not exist"), "{missing}");
    }

    #[test]
    fn silent_workers_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let table = state(&path, &[1]);
        // Core 0's view of the first pool. Member 1 is the second of its 3 workers.
        let view = table.view(0, 0);
        view.set_presence(wedjat_core::state::Member(1), MemberPresence::Silent);
        table.publish();
        assert_eq!(NodePool::read(&path, None).unwrap().workers, 2);
    }
}
