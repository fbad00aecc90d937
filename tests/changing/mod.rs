//! A control driven by tests, with checks of its node's state file: at each epoch the file shows that epoch's
//! membership, never a mixture.
//!
//! The control changes a node's membership (its pools, servers and workers) while cores poll. Each change begins an
//! epoch, a number that grows. The state file holds copies of the node's state for other processes.
#![allow(dead_code, reason = "no test uses all of it")]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use tempfile::TempDir;
use wedjat::control::{Change, Control, Cores, LEAVING_NS, Membership};
use wedjat::state::Table;
use wedjat::state::table::Snapshot;

/// Policy and workers of each pool, by pool id. The key of a worker is its index in the pool, the value its id and its
/// server's address.
type NamedPools = BTreeMap<u16, (String, BTreeMap<u16, (u16, IpAddr)>)>;

/// A control, and the state file of its node.
pub struct ChangeRig<C> {
    /// The control.
    pub control: Control<C>,
    /// State of the node, which the state file copies.
    table: Arc<Table>,
    /// Path of the state file.
    path: PathBuf,
    _folder: TempDir,
    /// Expected state, by epoch.
    expected: BTreeMap<u64, NamedPools>,
    /// All snapshots read so far.
    seen: Vec<Snapshot>,
    /// Index of each worker's pool, and of the worker in it, at the last check, by worker id.
    indices: BTreeMap<u16, (usize, usize)>,
}

impl<C: Cores> ChangeRig<C> {
    /// Creates a rig for a node whose state file is `path` in `folder`.
    pub fn new(control: Control<C>, table: Arc<Table>, path: PathBuf, folder: TempDir) -> Self {
        let (expected, seen, indices) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let mut changing = Self { control, table, path, _folder: folder, expected, seen, indices };
        changing.expect();
        changing
    }

    /// Records the current membership as the expected state of its epoch.
    pub fn expect(&mut self) {
        let membership = self.control.membership();
        self.expected.insert(membership.epoch, named(membership));
    }

    /// Makes a valid change and returns its epoch.
    pub fn change(&mut self, text: &str) -> u64 {
        let change: Change = text.parse().unwrap();
        let epoch = self.control.apply(&change).unwrap_or_else(|error| panic!("{text}: {error}"));
        self.expect();
        epoch
    }

    /// Returns the error of an invalid change. Checks that the membership stays unchanged.
    pub fn refused(&mut self, text: &str) -> String {
        let before = named(self.control.membership());
        let error = text.parse().and_then(|change: Change| self.control.apply(&change));
        assert_eq!(named(self.control.membership()), before);
        error.unwrap_err().to_string()
    }

    /// Writes the node's state to the state file, and returns the snapshot that readers see.
    pub fn look(&mut self) -> &Snapshot {
        self.table.publish();
        self.seen.push(Snapshot::open(&self.path).unwrap());
        self.seen.last().unwrap()
    }

    /// Checks that each worker present at the last check kept its index, and records the indices for the next check.
    /// The cores' tables refer to workers by index.
    pub fn assert_in_place(&mut self) {
        let membership = self.control.membership();
        let ids = membership.workers().map(|(_, worker)| worker.id);
        let now: BTreeMap<_, _> = ids.map(|id| (id, membership.worker(id).unwrap())).collect();
        let moved = now.iter().find(|(id, at)| self.indices.get(id).is_some_and(|was| was != *at));
        assert_eq!(moved, None);
        self.indices = now;
    }

    /// Checks that no worker has an unanswered task, and that all snapshots show the expected state of their epochs.
    pub fn assert_shown(&mut self) {
        for member in self.look().pools.iter().flat_map(|pool| &pool.members) {
            assert_eq!(member.outstanding, 0, "{member:?}");
        }
        for snapshot in &self.seen {
            let expected = &self.expected[&snapshot.epoch];
            assert_eq!(shown(snapshot), *expected, "epoch {}", snapshot.epoch);
        }
    }
}

/// A node under traffic, with a control driven by a test. The tests of each kind of node (leaf, agent, leaf with an
/// agent) implement it.
pub trait TrafficRig {
    /// Cores behind the control.
    type Cores: Cores;

    /// Rounds of [`TrafficRig::settle`] after which each further round also skips [`LEAVING_NS`] / 100. The control
    /// frees the place of a leaving worker with lost tasks only after [`LEAVING_NS`].
    const ROUNDS_BEFORE_JUMPS: usize;

    /// Returns the rig of its control.
    fn changing(&mut self) -> &mut ChangeRig<Self::Cores>;

    /// Returns its emulated time in ns. Each poll first advances it.
    fn now(&mut self) -> &mut u64;

    /// Polls `count` times. Workers serve tasks in between.
    fn polls(&mut self, count: usize);

    /// Makes a valid change and returns its epoch.
    fn change(&mut self, text: &str) -> u64 {
        self.changing().change(text)
    }

    /// Returns the error of an invalid change. Checks that the membership stays unchanged.
    fn refused(&mut self, text: &str) -> String {
        self.changing().refused(text)
    }

    /// Tries a change, which must parse but may be refused. Returns true if it was made.
    fn try_change(&mut self, text: &str) -> bool {
        let change: Change = text.parse().unwrap();
        let is_made = self.changing().control.apply(&change).is_ok();
        self.changing().expect();
        is_made
    }

    /// Runs the periodic work of the node's watching thread, which can begin a new epoch.
    fn poll_control(&mut self) {
        let now = *self.now();
        self.changing().control.tend(now);
        self.changing().expect();
    }

    /// Polls node and control until the cores have applied every change and no pool, server or worker is leaving.
    /// Panics after 1000 rounds.
    fn settle(&mut self) {
        for round in 0..1000 {
            *self.now() += if round > Self::ROUNDS_BEFORE_JUMPS { LEAVING_NS / 100 } else { 0 };
            self.polls(20);
            self.poll_control();
            if self.changing().control.is_settled() {
                self.polls(20);
                return self.poll_control();
            }
        }
        panic!("not settled: {:?}", self.changing().control.membership());
    }

    /// Runs `rounds` rounds of load. Each round tries the change that `random` returns, with probability 1 /
    /// `one_in`. `random` and `load` draw from one generator, so that a seed repeats a run. Checks that present
    /// workers keep their indices. More than `least` changes must succeed.
    fn change_at_random(
        &mut self,
        seed: u64,
        (rounds, one_in, least): (u32, u32, usize),
        random: impl Fn(&mut Xoshiro256PlusPlus) -> String,
        mut load: impl FnMut(&mut Self, &mut Xoshiro256PlusPlus),
    ) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut made = 0;
        for round in 0..rounds {
            if rng.random_range(0..one_in) == 0 {
                made += usize::from(self.try_change(&random(&mut rng)));
            }
            load(self, &mut rng);
            if round % 4 == 0 {
                self.poll_control();
            }
            if round % 16 == 0 {
                self.changing().look();
            }
            self.changing().assert_in_place();
        }
        assert!(made > least, "seed {seed}: {made} changes");
    }

    /// Returns a worker's index in its pool.
    fn index_of(&mut self, worker: u16) -> usize {
        self.changing().control.membership().worker(worker).unwrap().1
    }
}

/// Returns a random change, valid or invalid, of pools 7 to 9 and of an agent's workers. Pool 7 is never removed.
/// The workers' ids are `first` and the next 17. A change of a pool begins with one of the prefixes `whose`: empty for
/// a pool of the node itself, or `agent ` for a pool of the agent on its core.
pub fn random_change(rng: &mut Xoshiro256PlusPlus, first: u16, whose: &[&str]) -> String {
    // Returns a number from 0 to `bound` - 1.
    let mut pick = |bound: u16| rng.random_range(0..bound);
    let (pool, first) = (7 + pick(3), first + 2 * pick(8));
    let policies =
        ["horus", "jbsq(k=2)", "cfcfs", "jsq", "lsq-update", "racksched", "scd", "random"];
    let policy = policies[usize::from(pick(8))];
    let whose = whose[usize::from(pick(whose.len() as u16))];
    match pick(14) {
        0..=3 => format!("add-workers pool={pool} workers={first}-{}", first + pick(4)),
        4..=5 => format!("remove-workers workers={first}-{}", first + pick(2)),
        6 => format!("{whose}add-pool id={pool} policy={policy}"),
        7 => format!("{whose}remove-pool id={}", 8 + pick(2)),
        8..=9 => format!("{whose}set-policy pool={pool} policy={policy}"),
        10 => format!("{whose}set-queue pool={pool} queue={}", 1 + pick(80)),
        11 => format!("drain workers={first}-{}", first + pick(2)),
        12 => format!("undrain workers={first}-{}", first + pick(3)),
        _ => format!("set-speed workers={first} speed={}", 1 + pick(9)),
    }
}

/// Returns the pools of a membership, in the form of the state file's pools for a comparison.
fn named(membership: &Membership) -> NamedPools {
    let pools = membership.pools.iter().flatten().map(|pool| {
        let workers = pool.members.iter().enumerate().filter_map(|(at, worker)| {
            let worker = (*worker)?;
            let server = membership.servers[usize::from(worker.server)].unwrap();
            Some((at as u16, (worker.id, server.ip)))
        });
        // The state file keeps 32 bytes of a policy's name.
        let policy = pool.settings.policy.to_string().chars().take(32).collect();
        (pool.id, (policy, workers.collect()))
    });
    pools.collect()
}

/// Returns the pools of a snapshot of the state file.
fn shown(snapshot: &Snapshot) -> NamedPools {
    let pools = snapshot.pools.iter().map(|pool| {
        let workers =
            pool.members.iter().map(|member| (member.member, (member.worker, member.server)));
        (pool.id, (pool.policy.clone(), workers.collect()))
    });
    pools.collect()
}
