//! A state file as it was read: what is in its newest copy, and when that was written.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use wedjat::cosched::{Note, jobs_beside};
use wedjat::state::table::{Role, agents_file};
use wedjat::state::{Snapshot, StateError};

/// A copy may be written between the look at its time and at its content; then both are looked at again.
const TRIES: usize = 5;

/// A node at a moment.
pub struct NodeReading {
    pub snapshot: Snapshot,
    /// When the copy was written: rates are over the time between two copies.
    pub written: Option<SystemTime>,
    /// Batch jobs beside its workers.
    pub jobs: Vec<Note>,
}

/// The node of a state file, and the agent on its core if there is one.
pub struct Reading(pub Vec<NodeReading>);

impl Reading {
    /// Reads the state file.
    ///
    /// # Errors
    /// As [`Snapshot::open`].
    pub fn of(path: &Path) -> Result<Self, StateError> {
        let beside = agents_file(path);
        let times =
            || [path, &beside].map(|path| fs::metadata(path).and_then(|file| file.modified()).ok());
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
                Role::Agent => jobs_beside(snapshot.pid),
                _ => Vec::new(),
            };
            Some(NodeReading { snapshot, written, jobs })
        };
        Ok(Self(nodes.filter_map(node).collect()))
    }
}
