//! A control that tests drive, and what its node's state is to show: at each epoch that epoch's membership, and never a mixture.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;
use wedjat::control::{Change, Control, Cores, Membership};
use wedjat::state::Table;
use wedjat::state::table::Snapshot;

/// Pools by id: their policies, and workers with their servers, by index.
type Named = BTreeMap<u16, (String, BTreeMap<u16, (u16, Ipv4Addr)>)>;

/// A control, and the state file of its node.
pub struct Changing<C> {
    /// The control.
    pub control: Control<C>,
    table: Arc<Table>,
    path: PathBuf,
    _folder: TempDir,
    /// What each epoch's state is to show.
    expected: BTreeMap<u64, Named>,
    seen: Vec<Snapshot>,
}

impl<C: Cores> Changing<C> {
    /// Of a node whose state is the file at `path`, which lies in `folder`.
    pub fn new(control: Control<C>, table: Arc<Table>, path: PathBuf, folder: TempDir) -> Self {
        let (expected, seen) = (BTreeMap::new(), Vec::new());
        let mut changing = Self { control, table, path, _folder: folder, expected, seen };
        changing.expect();
        changing
    }

    /// The membership is now what its epoch is to show.
    pub fn expect(&mut self) {
        let membership = self.control.membership();
        self.expected.insert(membership.epoch, named(membership));
    }

    /// Makes a change, which must be one; returns its epoch.
    pub fn change(&mut self, text: &str) -> u64 {
        let change: Change = text.parse().unwrap();
        let epoch = self.control.apply(&change).unwrap_or_else(|error| panic!("{text}: {error}"));
        self.expect();
        epoch
    }

    /// Why a change can't be made; nothing has changed.
    pub fn refused(&mut self, text: &str) -> String {
        let before = named(self.control.membership());
        let error = text.parse().and_then(|change: Change| self.control.apply(&change));
        assert_eq!(named(self.control.membership()), before);
        error.unwrap_err().to_string()
    }

    /// What the state's readers see now.
    pub fn look(&mut self) -> &Snapshot {
        self.table.publish();
        self.seen.push(Snapshot::open(&self.path).unwrap());
        self.seen.last().unwrap()
    }

    /// No task is at a worker, and all that was seen is what was to be shown.
    pub fn assert_shown(&mut self) {
        for one in self.look().pools.iter().flat_map(|pool| &pool.members) {
            assert_eq!(one.outstanding, 0, "{one:?}");
        }
        for snapshot in &self.seen {
            let expected = &self.expected[&snapshot.epoch];
            assert_eq!(shown(snapshot), *expected, "epoch {}", snapshot.epoch);
        }
    }
}

fn named(membership: &Membership) -> Named {
    let pools = membership.pools.iter().flatten().map(|pool| {
        let workers = pool.members.iter().enumerate().filter_map(|(at, worker)| {
            let worker = (*worker)?;
            let server = membership.servers[usize::from(worker.server)].unwrap();
            Some((at as u16, (worker.id, server.ip)))
        });
        // A state keeps 32 bytes of a policy's name.
        let policy = pool.policy.to_string().chars().take(32).collect();
        (pool.id, (policy, workers.collect()))
    });
    pools.collect()
}

fn shown(snapshot: &Snapshot) -> Named {
    let pools = snapshot.pools.iter().map(|pool| {
        let workers = pool.members.iter().map(|one| (one.member, (one.worker, one.server)));
        (pool.id, (pool.policy.clone(), workers.collect()))
    });
    pools.collect()
}
