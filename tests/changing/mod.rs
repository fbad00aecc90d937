//! A control that tests drive, and what its node's state is to show: at each epoch that epoch's membership, and never a mixture.
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

/// Pools by id: their policies, and workers with their servers, by index.
type Named = BTreeMap<u16, (String, BTreeMap<u16, (u16, IpAddr)>)>;

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
    /// Where workers were at the last look, by id: index of the pool, and theirs.
    indices: BTreeMap<u16, (usize, usize)>,
}

impl<C: Cores> Changing<C> {
    /// Of a node whose state is the file at `path`, which lies in `folder`.
    pub fn new(control: Control<C>, table: Arc<Table>, path: PathBuf, folder: TempDir) -> Self {
        let (expected, seen, indices) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let mut changing = Self { control, table, path, _folder: folder, expected, seen, indices };
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

    /// Who has stayed since the last look has kept its index.
    pub fn assert_in_place(&mut self) {
        let membership = self.control.membership();
        let ids = membership.workers().map(|(_, worker)| worker.id);
        let now: BTreeMap<_, _> = ids.map(|id| (id, membership.worker(id).unwrap())).collect();
        let moved = now.iter().find(|(id, at)| self.indices.get(id).is_some_and(|was| was != *at));
        assert_eq!(moved, None);
        self.indices = now;
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

/// A node under traffic, whose control a test drives.
pub trait Driven {
    /// What its control drives.
    type Cores: Cores;

    /// After so many rounds of settling, seconds pass between them: what is lost is let go of after seconds.
    const SOON: usize;

    /// Its control.
    fn changing(&mut self) -> &mut Changing<Self::Cores>;

    /// The time of its next poll, in ns.
    fn now(&mut self) -> &mut u64;

    /// So many polls, between which tasks are done.
    fn polls(&mut self, count: usize);

    /// Makes a change, which must be one; returns its epoch.
    fn change(&mut self, text: &str) -> u64 {
        self.changing().change(text)
    }

    /// Why a change can't be made; nothing has changed.
    fn refused(&mut self, text: &str) -> String {
        self.changing().refused(text)
    }

    /// What becomes of a change that may be none; true when it was one.
    fn try_change(&mut self, text: &str) -> bool {
        let change: Change = text.parse().unwrap();
        let is_made = self.changing().control.apply(&change).is_ok();
        self.changing().expect();
        is_made
    }

    /// What its watching thread does now and then.
    fn tend(&mut self) {
        let now = *self.now();
        self.changing().control.tend(now);
        self.changing().expect();
    }

    /// Until the cores have taken every change and nothing is leaving.
    fn settle(&mut self) {
        for round in 0..1000 {
            *self.now() += if round > Self::SOON { LEAVING_NS / 100 } else { 0 };
            self.polls(20);
            self.tend();
            if self.changing().control.is_settled() {
                self.polls(20);
                return self.tend();
            }
        }
        panic!("not settled: {:?}", self.changing().control.membership());
    }

    /// So many rounds of load, between which changes that `random` makes are tried, in one of so many of them; what the load
    /// takes is drawn from the seed, too. More than `least` changes must have been made.
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
                self.tend();
            }
            if round % 16 == 0 {
                self.changing().look();
            }
            self.changing().assert_in_place();
        }
        assert!(made > least, "seed {seed}: {made} changes");
    }

    /// A worker's index in its pool.
    fn index_of(&mut self, worker: u16) -> usize {
        self.changing().control.membership().worker(worker).unwrap().1
    }
}

/// Some change that may or may not be one, of pools 7 to 9 and of workers that an agent has, whose ids are `first` and the next
/// 17. What is said of pools begins with one of `whose`.
pub fn random_change(rng: &mut Xoshiro256PlusPlus, first: u16, whose: &[&str]) -> String {
    let mut pick = |most: u16| rng.random_range(0..most);
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
