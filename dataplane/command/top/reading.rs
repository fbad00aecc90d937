//! Reading of a state file: the content and time of its newest copy.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use wedjat::cosched::{Note, jobs_of_agent};
use wedjat::state::table::{Role, agents_file};
use wedjat::state::{Snapshot, StateError};

/// Maximum number of attempts. The node may write a new copy between the readings of the file's time and content. Both
/// are read again then.
const TRIES: usize = 5;

/// State of a node at one moment.
pub struct NodeReading {
    pub snapshot: Snapshot,
    /// State file of the process.
    pub path: PathBuf,
    /// Time at which the copy was written. Rates use the time between two copies.
    pub written: Option<SystemTime>,
    /// Batch jobs beside its workers.
    pub jobs: Vec<Note>,
}

/// Node of a state file, and the agent on its core if there is one.
pub struct Reading(pub Vec<NodeReading>);

impl Reading {
    /// Reads the state file until its time stays the same during a reading, or until the last attempt.
    ///
    /// # Errors
    /// Like [`Snapshot::open`].
    pub fn of(path: &Path) -> Result<Self, StateError> {
        let agent_path = agents_file(path);
        // Times of the node's file and of the agent's.
        let times = || {
            [path, &agent_path].map(|path| fs::metadata(path).and_then(|file| file.modified()).ok())
        };
        let (mut before, mut snapshot) = (times(), Snapshot::open(path)?);
        for _ in 1..TRIES {
            let now = times();
            if now == before {
                break;
            }
            (before, snapshot) = (now, Snapshot::open(path)?);
        }
        let agent = snapshot.agent.take().map(|agent| *agent);
        let nodes = [Some(snapshot), agent].into_iter().zip(before);
        let node = |(snapshot, written): (Option<Snapshot>, _)| {
            let snapshot = snapshot?;
            let jobs = match snapshot.role {
                Role::Agent => jobs_of_agent(snapshot.pid),
                _ => Vec::new(),
            };
            Some(NodeReading { snapshot, path: path.to_owned(), written, jobs })
        };
        Ok(Self(nodes.filter_map(node).collect()))
    }
}
