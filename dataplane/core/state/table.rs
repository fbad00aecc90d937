//! Complete state of a node (leaf, spine or agent): its pools, members, cores and neighbours. The node creates it
//! and may publish copies of it in a file.
//!
//! Pools and members have fixed *places* (indices), so that a core finds their words without a search. The
//! *epoch* counts the changes of the membership. A member's *drift* is the load that a core sent since the member's
//! last report.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use serde::Serialize;

use super::counters::{self, Counter, Counters, PollPause};
use super::exchange::Exchange;
use super::files::{ExistingFile, NameError, NameLock, advice};
use super::histogram::HistogramSnapshot;
use super::layout::{
    CoreLayout, HEADER_WORDS, Layout, POOL_WORDS, TableShape, pool_word, read_text, write_text,
};
use super::member::{Load, Member, MemberPresence};
use super::neighbour::Neighbours;
use super::nodes::{Nodes, PeersSnapshot};
use super::publish::{self, CopyError, LEN_MAX, MAGIC, Publisher, VERSION};
use super::region::{Region, Slice};
use super::tokens::Tokens;
use super::view::{self, View};
use super::words::{LocalState, address_of, address_words};
use crate::limits::{CORES_MAX, MEMBERS_MAX, PLACES_MAX, POOLS_MAX, PORTS_MAX, SPINES_MAX};
use crate::wire::task::NO_MEMBER;

/// Indices of the header's words.
mod word {
    /// Number of dispatcher cores.
    pub const CORES: usize = 0;
    /// Number of places for pools.
    pub const POOLS: usize = 1;
    /// Number of places for servers.
    pub const SERVERS: usize = 2;
    /// Number of ports.
    pub const PORTS: usize = 3;
    /// Id of the node.
    pub const NODE: usize = 4;
    /// Number of its process.
    pub const PID: usize = 5;
    /// Start time, in seconds since 1970.
    pub const STARTED: usize = 6;
    /// Ticks per second of its clock.
    pub const TICKS_HZ: usize = 7;
    /// Seed of its random streams.
    pub const SEED: usize = 8;
    /// 1 until the node ends in an orderly way.
    pub const RUNNING: usize = 9;
    /// Kind of the node, a [`super::Role`].
    pub const ROLE: usize = 10;
    /// Number of places for next hops and gateways that the configuration names.
    pub const PINNED: usize = 11;
    /// Number of the membership.
    pub const EPOCH: usize = 12;
    /// Number of nodes of a rack without a leaf.
    pub const NODES: usize = 13;
}

/// Reason why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// System error.
    #[error("state file {path}: {error}{}", advice(error))]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// No file at the path.
    #[error(
        "state file {path}: does not exist; start the leaf or agent first, or name the `state` of its configuration"
    )]
    Missing {
        /// Path of the file.
        path: PathBuf,
    },
    /// In use by another node.
    #[error(
        "state file {path}: in use by another running leaf or agent{}; stop that one or set another `state`",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse {
        /// Path of the file.
        path: PathBuf,
        /// Process that uses it, if readable.
        pid: Option<u64>,
    },
    /// Not a state file.
    #[error(
        "state file {path}: not a wedjat state file but {found}; it is left alone, name another file"
    )]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        /// Kind and owner of the file found.
        found: String,
    },
    /// Written by another version.
    #[error(
        "state file {path}: layout version {found:x}, this program reads version {VERSION:x}; use the `wedjat` that wrote it"
    )]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file.
        found: u64,
    },
    /// Larger than readers accept.
    #[error(
        "state file {path}: a copy has {len} bytes, and readers accept at most {LEN_MAX}; \
         use fewer cores, a smaller `pools_max`, `workers_max` or `leaves_max`, or no `state`"
    )]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Size of the state in bytes.
        len: u64,
    },
    /// Too short, or with a contradictory header.
    #[error("state file {path}: damaged ({reason}); restart the leaf or agent that owns it")]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Description of the fault.
        reason: String,
    },
}

/// A worker as a state file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSpec {
    /// Global worker id.
    pub id: u16,
    /// Index of its server.
    pub server: u16,
}

impl WorkerSpec {
    /// Entry of a free place.
    pub const FREE_PLACE: Self = Self { id: NO_MEMBER, server: u16::MAX };

    /// Returns the word in a state file: the id in the upper half, the server in the lower half.
    fn to_word(self) -> u64 {
        u64::from(self.id) << 32 | u64::from(self.server)
    }

    /// Inverse of [`WorkerSpec::to_word`].
    fn of_word(word: u64) -> Self {
        Self { id: (word >> 32) as u16, server: word as u16 }
    }
}

/// A pool as a state file names it.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// Pool id on the wire.
    pub id: u16,
    /// Name of the policy that runs.
    pub policy: String,
    /// Objective by which the node chooses the policy; empty for a fixed policy.
    pub objective: String,
    /// Workers of its places, in order.
    pub workers: Vec<WorkerSpec>,
}

/// Numbers of places in a node's state: the maximum sizes of later memberships. In a [`Spec`] they are minima, because
/// the first membership may be larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Number of pools.
    pub pools: usize,
    /// Number of worker servers.
    pub servers: usize,
    /// Number of workers of each pool.
    pub workers: usize,
}

/// Membership of a node: its servers and pools from one epoch on. Each entry keeps its place while it exists; `None`
/// is a free place.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    /// Number of this membership.
    pub epoch: u64,
    /// Addresses of the servers.
    pub servers: Vec<Option<IpAddr>>,
    /// Pools.
    pub pools: Vec<Option<PoolSpec>>,
}

/// Id word of a free pool's place.
const NO_POOL: u64 = u64::MAX;

/// Kind of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A leaf.
    #[default]
    Leaf,
    /// Agent of a host.
    Agent,
    /// A spine.
    Spine,
}

impl Role {
    /// Returns the name for output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Leaf => "leaf",
            Self::Agent => "agent",
            Self::Spine => "spine",
        }
    }

    /// Decodes the header's word. A damaged one counts as a leaf.
    fn from_word(word: u64) -> Self {
        match word {
            1 => Self::Agent,
            2 => Self::Spine,
            _ => Self::Leaf,
        }
    }
}

/// Properties of a node for a new state.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// Kind of the node.
    pub role: Role,
    /// Id of the node.
    pub node: u16,
    /// Number of dispatcher cores.
    pub cores: usize,
    /// Number of ports with neighbours.
    pub ports: usize,
    /// Addresses of the servers.
    pub servers: Vec<IpAddr>,
    /// Number of a leaf's spines.
    pub spines: usize,
    /// Number of nodes of an agent's rack without a leaf, including itself.
    pub peers: usize,
    /// Pools.
    pub pools: Vec<PoolSpec>,
    /// Least numbers of places for pools, servers and workers, with room for later memberships.
    pub limits: Limits,
    /// Ticks per second of the node's clock.
    pub ticks_hz: u64,
    /// Seed of the node's random streams.
    pub seed: u64,
    /// Group that may read the state file; `None` for its owner only.
    pub group: Option<u32>,
}

/// State of a node, for its owner.
#[derive(Debug)]
pub struct Table {
    /// Memory of the state.
    region: Arc<Region>,
    /// Offsets of its sections.
    layout: Layout,
    /// Words of its first section; see the module `word`.
    header: Slice<AtomicU64>,
    /// Writer of its copies into a file; `None` for a state without a file.
    publisher: Option<Publisher>,
}

impl Table {
    /// Creates a state that no other process can read.
    #[must_use]
    pub fn heap(spec: &Spec) -> Self {
        let shape = shape(spec);
        let layout = Layout::new(&shape);
        let region = Region::heap(layout.len);
        let header = region.slice::<AtomicU64>(0, HEADER_WORDS);
        let table = Self { region, layout, header, publisher: None };
        table.fill(&shape, spec);
        table
    }

    /// Creates a state, and publishes it in the file at `path` for its lifetime: see [`publish`]. Replaces
    /// the file of a node that no longer runs. The new file takes its place when it is complete, so readers
    /// never see a part of it.
    ///
    /// # Errors
    /// For a file that another node uses, a path with another file, a state larger than readers accept, or a failed
    /// system call.
    pub fn create(path: &Path, spec: &Spec) -> Result<Self, StateError> {
        let io = |error| StateError::Io { path: path.to_owned(), error };
        let len = Layout::new(&shape(spec)).len as u64;
        if len > LEN_MAX {
            return Err(StateError::TooLarge { path: path.to_owned(), len });
        }
        // Before the lock, too: in a folder that takes no new file, the lock would fail with a less specific error.
        check_replaceable(path)?;
        let lock = NameLock::take(path).map_err(|error| lock_error(path, error))?;
        check_replaceable(path)?; // again: the path may have changed before this process had the lock
        let mut table = Self::heap(spec);
        let publisher = Publisher::new(path, spec.group, &table.region, lock).map_err(io)?;
        table.publisher = Some(publisher);
        Ok(table)
    }

    /// Writes the state into its file now, if it has one. The publisher's thread also writes it periodically.
    pub fn publish(&self) {
        self.publisher.iter().for_each(Publisher::publish);
    }

    /// Writes the header and the first entries.
    fn fill(&self, shape: &TableShape, spec: &Spec) {
        let header = &self.header;
        let words = [
            (word::CORES, shape.cores as u64),
            (word::POOLS, shape.pools.len() as u64),
            (word::SERVERS, shape.servers as u64),
            (word::PORTS, shape.ports as u64),
            (word::PINNED, shape.pinned as u64),
            (word::NODES, shape.nodes as u64),
            (word::NODE, u64::from(spec.node)),
            (word::PID, u64::from(std::process::id())),
            (word::STARTED, unix_seconds()),
            (word::TICKS_HZ, spec.ticks_hz),
            (word::SEED, spec.seed),
            (word::RUNNING, 1),
            (word::ROLE, spec.role as u64),
        ];
        for (pool, &places) in shape.pools.iter().enumerate() {
            // An entry begins with the id and the number of places.
            self.pool_entry(pool)[1].store(places as u64, Relaxed);
        }
        for (index, value) in words {
            header[index].store(value, Relaxed);
        }
        self.write(&Entries {
            epoch: 1,
            servers: spec.servers.iter().copied().map(Some).collect(),
            pools: spec.pools.iter().cloned().map(Some).collect(),
        });
    }

    /// Sets the entries of another epoch. No copy in the file mixes two epochs. A member in a formerly free place, or
    /// with another worker id, becomes `Configured`. A place that becomes free becomes `Absent`. The caller ensures
    /// that no core chooses any of these members meanwhile.
    ///
    /// # Panics
    /// If there are more entries than places.
    pub fn change(&self, entries: &Entries) {
        match &self.publisher {
            Some(publisher) => publisher.between_copies(|| self.write(entries)),
            None => self.write(entries),
        }
    }

    /// Publishes the node's last decision on the policy of this pool, and its number of switches so far. Ignores an
    /// unknown pool.
    pub fn note_decision(&self, pool: u16, decision: &str, switches: u64) {
        let pools = 0..self.layout.pools.len();
        let mut entries = pools.map(|index| self.pool_entry(index));
        let is_pool = |entry: &Slice<AtomicU64>| entry[0].load(Relaxed) == u64::from(pool);
        let Some(entry) = entries.find(is_pool) else { return };
        let write = || {
            write_text(&entry[pool_word::DECISION], decision);
            entry[pool_word::SWITCHES].store(switches, Relaxed);
        };
        match &self.publisher {
            Some(publisher) => publisher.between_copies(write),
            None => write(),
        }
    }

    /// Writes the entries. The publisher must not copy the state meanwhile: the copy would mix two epochs.
    fn write(&self, entries: &Entries) {
        let Self { region, layout, header, .. } = self;
        let places = self.limits().servers;
        let servers = region.slice::<AtomicU64>(layout.servers, 2 * places);
        assert!(entries.servers.len() <= places && entries.pools.len() <= layout.pools.len());
        for (index, words) in servers.chunks_exact(2).enumerate() {
            let address = entries.servers.get(index).copied().flatten();
            let address = address_words(address.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)));
            words.iter().zip(address).for_each(|(place, word)| place.store(word, Relaxed));
        }
        for pool in 0..layout.pools.len() {
            self.write_pool(pool, entries.pools.get(pool).and_then(Option::as_ref));
        }
        header[word::EPOCH].store(entries.epoch, Relaxed);
    }

    /// Writes a pool's entry, by its index. Resets the presence of each free place, and of each member whose worker id
    /// changed. A change of only its server keeps a member's presence.
    fn write_pool(&self, pool: usize, spec: Option<&PoolSpec>) {
        let place = &self.layout.pools[pool];
        let entry = self.pool_entry(pool);
        entry[0].store(spec.map_or(NO_POOL, |spec| u64::from(spec.id)), Relaxed);
        write_text(&entry[pool_word::POLICY], spec.map_or("", |spec| &spec.policy));
        let objective = spec.map_or("", |spec| &spec.objective);
        if read_text(&entry[pool_word::OBJECTIVE]) != objective {
            write_text(&entry[pool_word::OBJECTIVE], objective);
            // A node that begins to choose has decided nothing yet.
            write_text(&entry[pool_word::DECISION], "");
            entry[pool_word::SWITCHES].store(0, Relaxed);
        }
        let workers = self.layout.workers + 8 * place.first_member;
        let workers = self.region.slice::<AtomicU64>(workers, place.members);
        let presence = self.region.slice::<AtomicU32>(place.presence, place.members);
        let listed = spec.map_or(&[][..], |spec| &spec.workers);
        assert!(listed.len() <= place.members, "more workers than places");
        for member in 0..place.members {
            let worker = listed.get(member).copied().unwrap_or(WorkerSpec::FREE_PLACE);
            let previous = WorkerSpec::of_word(workers[member].swap(worker.to_word(), Relaxed));
            if worker == WorkerSpec::FREE_PLACE {
                presence[member].store(MemberPresence::Absent as u32, Relaxed);
            } else if previous == WorkerSpec::FREE_PLACE || previous.id != worker.id {
                presence[member].store(MemberPresence::Configured as u32, Relaxed);
            }
        }
    }

    /// Returns the sections' names and their addresses in this process, for tools that trace memory accesses:
    /// see [`Layout::sections`].
    #[must_use]
    pub fn sections(&self) -> Vec<(&'static str, Range<usize>)> {
        let base = self.region.address();
        let sections = self.layout.sections().into_iter();
        sections.map(|(name, bytes)| (name, base + bytes.start..base + bytes.end)).collect()
    }

    /// Returns the numbers of places reserved at the start, which later memberships must not exceed. Every pool has
    /// places for that number of workers, some pools for more.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            pools: self.layout.pools.len(),
            servers: self.header[word::SERVERS].load(Relaxed) as usize,
            workers: self.layout.pools.iter().map(|pool| pool.members).min().unwrap_or(0),
        }
    }

    /// Returns the number of dispatcher cores.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.layout.cores.len()
    }

    /// Returns the ticks per second of the node's clock.
    #[must_use]
    pub fn ticks_hz(&self) -> u64 {
        self.header[word::TICKS_HZ].load(Relaxed)
    }

    /// Returns the seed of the node's random streams.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.header[word::SEED].load(Relaxed)
    }

    /// Returns the published number of a pool's tasks that wait on a core. The control thread waits for 0 before a
    /// removed pool ends.
    #[must_use]
    pub fn queued(&self, core: usize, pool: usize) -> u64 {
        queued(&self.region, &self.layout, core, pool)
    }

    /// Returns the number of tasks outstanding at a pool's member, over all cores. Each core counts for itself, so a
    /// value read while they work may be a few tasks off, or negative.
    #[must_use]
    pub fn outstanding(&self, pool: usize, member: Member) -> i64 {
        let index = self.layout.pools[pool].first_member + member.index();
        outstanding(&self.region, &self.layout, index)
    }

    /// Returns the number of the state's membership.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.header[word::EPOCH].load(Relaxed)
    }

    /// Returns the state as a reader of the state file would see it now. It may be a few packets off. It is
    /// of one epoch, unless [`Table::change`] runs meanwhile.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::read(&self.region, &self.layout)
    }

    /// Returns the words of a pool's entry: id, number of places, and those of [`pool_word`].
    fn pool_entry(&self, pool: usize) -> Slice<AtomicU64> {
        self.region.slice(self.layout.pool_entry(pool), POOL_WORDS)
    }

    /// Returns `core`'s view of `pool` (an index, not an id).
    #[must_use]
    pub fn view(&self, core: usize, pool: usize) -> View {
        View::new(&self.region, &self.layout, core, pool)
    }

    /// Returns `core`'s exchange with remote cores; `None` on a node with one core.
    #[must_use]
    pub fn exchange(&self, core: usize) -> Option<Exchange> {
        (self.cores() > 1).then(|| Exchange::new(&self.region, &self.layout, core))
    }

    /// Returns `core`'s counters.
    #[must_use]
    pub fn counters(&self, core: usize) -> Counters {
        Counters::new(self.region.slice(self.layout.cores[core].counters, counters::WORDS))
    }

    /// Returns the nodes of an agent's rack without a leaf, if it is in one.
    #[must_use]
    pub fn peers(&self) -> Option<Nodes> {
        nodes_of(&self.region, &self.layout, &self.header)
    }

    /// Returns the neighbours, which all cores share.
    #[must_use]
    pub fn neighbours(&self) -> Neighbours {
        neighbours_of(&self.region, &self.layout, &self.header)
    }
}

impl Drop for Table {
    /// Records the orderly end.
    fn drop(&mut self) {
        // The publisher is dropped next. Its last copy then shows readers that the node ended in an orderly way.
        self.header[word::RUNNING].store(0, Relaxed);
    }
}

/// Returns the neighbour table of a region, whose size its header holds.
fn neighbours_of(region: &Arc<Region>, layout: &Layout, header: &[AtomicU64]) -> Neighbours {
    let value = |index: usize| header[index].load(Relaxed);
    let (ports, pinned) = (value(word::PORTS) as usize, value(word::PINNED) as usize);
    let words = Neighbours::words(ports, pinned);
    Neighbours::new(region.slice(layout.neighbours, words), ports, pinned, value(word::SEED))
}

/// Returns the nodes of a rack without a leaf; `None` if the region has none.
fn nodes_of(region: &Arc<Region>, layout: &Layout, header: &[AtomicU64]) -> Option<Nodes> {
    let nodes = header[word::NODES].load(Relaxed) as usize;
    (nodes > 0).then(|| Nodes::new(region, layout.nodes, nodes))
}

/// Returns the sizes of a new state.
fn shape(spec: &Spec) -> TableShape {
    let workers = |pool: usize| spec.pools.get(pool).map_or(0, |pool| pool.workers.len());
    let servers = spec.servers.len().max(spec.limits.servers);
    TableShape {
        cores: spec.cores,
        pools: (0..spec.pools.len().max(spec.limits.pools))
            .map(|pool| workers(pool).max(spec.limits.workers))
            .collect(),
        servers,
        ports: spec.ports,
        // The next hop to each server and each spine, and a gateway behind each port.
        pinned: servers + spec.spines + spec.ports,
        nodes: spec.peers,
    }
}

/// Returns the seconds since 1970.
fn unix_seconds() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |duration| duration.as_secs())
}

/// Converts the error of a path's lock.
fn lock_error(path: &Path, error: NameError) -> StateError {
    match error {
        NameError::Held(pid) => StateError::InUse { path: path.to_owned(), pid },
        NameError::Foreign(path, found) => StateError::Foreign { path, found },
        NameError::Io(error) => StateError::Io { path: path.to_owned(), error },
    }
}

/// Checks that `path` holds no foreign file and no running node's state file, for a check of the machine before a node
/// starts. Creates nothing, so [`Table::create`] may still fail.
///
/// # Errors
/// For a file that another node uses, a path with another file or one that this user may not replace, or a failed
/// system call.
pub fn check_free(path: &Path) -> Result<(), StateError> {
    check_replaceable(path)?;
    NameLock::look(path).map_err(|error| lock_error(path, error))
}

/// Checks that `path` holds no file, or an empty file or state file of this user or root that this user may replace.
/// The state file may belong to a running node.
///
/// # Errors
/// If it holds something else, this user may not replace it, or a system call fails.
pub fn check_replaceable(path: &Path) -> Result<(), StateError> {
    let io = |error| StateError::Io { path: path.to_owned(), error };
    let Some(found) = ExistingFile::at(path).map_err(io)? else {
        return Ok(());
    };
    let foreign = |found| Err(StateError::Foreign { path: path.to_owned(), found });
    if !found.is_file() || !found.is_own_or_roots() {
        return foreign(found.describe());
    }
    let mut magic = [0; 8];
    let file = found.open(false).map_err(io)?;
    let is_empty = file.metadata().map_err(io)?.len() == 0;
    let is_ours = file.read_exact_at(&mut magic, 0).is_ok() && magic == MAGIC.to_le_bytes();
    if !is_empty && !is_ours {
        return foreign("a file of another kind".to_owned());
    }
    if found.is_protected_from_us(path).map_err(io)? {
        let text = format!("{}, which only that user may replace there", found.describe());
        return Err(io(io::Error::new(io::ErrorKind::PermissionDenied, text)));
    }
    Ok(())
}

/// Decoded state of a node, from its state file or, in its own process, from its memory. The node ran on during the
/// copy: each number is whole, but two numbers may be a few packets apart.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// Kind of the node.
    pub role: Role,
    /// Id of the node.
    pub node: u16,
    /// Number of its process.
    pub pid: u64,
    /// True until the node ends in an orderly way.
    pub running: bool,
    /// Start time, in seconds since 1970.
    pub started: u64,
    /// Seed of its random streams. The status page omits it, because it lets clients foresee picks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Ticks per second of its clock.
    pub ticks_hz: u64,
    /// Membership: 1 at the start, one more after each change.
    pub epoch: u64,
    /// Pools of the node.
    pub pools: Vec<PoolSnapshot>,
    /// Dispatcher cores of the node.
    pub cores: Vec<CoreSnapshot>,
    /// Hosts on its networks.
    pub neighbours: Vec<NeighbourSnapshot>,
    /// Indices of its ports without a link, or with a removed interface.
    pub ports_without_link: Vec<usize>,
    /// Rack without a leaf.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeersSnapshot>,
    /// Agent on a leaf's core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Box<Snapshot>>,
}

/// A pool in a [`Snapshot`].
#[derive(Clone, Debug, Serialize)]
pub struct PoolSnapshot {
    /// Pool id on the wire.
    pub id: u16,
    /// Name of the policy that runs.
    pub policy: String,
    /// Choice of the policy by the node; none if the policy is fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<AutoSnapshot>,
    /// Members in order.
    pub members: Vec<MemberSnapshot>,
    /// Worker ids on the idle list of each core, in order.
    pub idle: Vec<Vec<u16>>,
    /// Worker ids that any core may take: idle workers, or, under a bound on tasks, one per free place.
    pub idle_for_all: Vec<u16>,
    /// Tasks of each core that wait for a member.
    pub queued: Vec<u64>,
    /// Times from a worker's last report to a decision for it, sampled for one worker at a time, between two
    /// of its reports.
    pub report_age: HistogramSnapshot,
    /// Times from arrival to assignment, of tasks that waited in the pool's queue.
    pub queue_wait: HistogramSnapshot,
}

impl PoolSnapshot {
    /// Returns the policy that runs, and the choice by the node, if there is one.
    #[must_use]
    pub fn policy_text(&self) -> String {
        let auto = self.auto.as_ref();
        auto.map_or_else(
            || self.policy.clone(),
            |auto| format!("{} by {}", self.policy, auto.text()),
        )
    }
}

/// Choice of a pool's policy by its node, in a [`PoolSnapshot`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AutoSnapshot {
    /// Objective.
    pub objective: String,
    /// Last decision with its reason, after a word for its kind, as in `best: no policy is better`. Empty before the
    /// first.
    pub decision: String,
    /// Number of switches of the running policy.
    pub switches: u64,
}

impl AutoSnapshot {
    /// Returns the kind of the last decision; `none` before the first.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.decision.split_once(':').map_or("none", |(kind, _)| kind)
    }

    /// Returns the objective, the number of switches and the last decision.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { objective, decision, switches } = self;
        let switches = crate::quantity(*switches, "change");
        let decision = if decision.is_empty() { "none yet" } else { decision };
        format!("auto(objective={objective}), {switches}, last decision: {decision}")
    }
}

/// A member in a [`Snapshot`].
#[derive(Clone, Debug, Serialize)]
pub struct MemberSnapshot {
    /// Constant index of the member in the pool.
    pub member: u16,
    /// Worker id.
    pub worker: u16,
    /// Address of its server.
    pub server: IpAddr,
    /// Presence: configured, registered, silent, unreachable or unregistered.
    pub presence: MemberPresence,
    /// Load last reported to the core with the most reports: tasks at a worker, average tasks per worker at a rack. It
    /// is a remote core's estimate if that one is newer.
    pub load: f64,
    /// Load sent by each core since the last report that it knows.
    pub drift: Vec<f64>,
    /// Tasks sent and not answered, over all cores.
    pub outstanding: i64,
    /// Tasks written off as lost, modulo 2^32.
    pub lost: u32,
    /// Reports and other signs of life received, modulo 2^32.
    pub reports: u32,
}

/// A core in a [`Snapshot`].
#[derive(Clone, Debug, Serialize)]
pub struct CoreSnapshot {
    /// Counted events.
    pub counters: std::collections::BTreeMap<&'static str, u64>,
    /// Dropped packets by reason, without reasons that never occurred.
    pub drops: std::collections::BTreeMap<&'static str, u64>,
    /// Pauses of more than 20 us without a poll; 0 in emulated time.
    pub pauses: u64,
    /// Times per task of the stages, for one burst in 1024; none in emulated time.
    pub decision_time: HistogramSnapshot,
    /// Newest of these pauses.
    #[serde(skip)]
    pub newest_pauses: Vec<PollPause>,
}

/// A host in a [`Snapshot`].
#[derive(Clone, Debug, Serialize)]
pub struct NeighbourSnapshot {
    /// Port to its network.
    pub port: usize,
    /// Address of the host.
    pub address: IpAddr,
    /// MAC address of the host, once known.
    pub mac: Option<String>,
}

impl Snapshot {
    /// Reads the newest copy in the state file at `path`, and in the file of the agent on its core, if any.
    /// The owner may run meanwhile, and other processes may change the file in any way.
    ///
    /// # Errors
    /// If it is not a state file, of another version, damaged, or unreadable.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let mut snapshot = open(path)?;
        // The file of an earlier process's agent does not belong to this leaf.
        let agent = open(&agents_file(path)).ok().filter(|agent| agent.pid == snapshot.pid);
        snapshot.agent = agent.map(Box::new);
        Ok(snapshot)
    }

    /// Reads the newest copy in a state file's bytes, for tests and fuzzing.
    ///
    /// # Errors
    /// If there is no readable copy.
    pub fn of(bytes: &[u8]) -> Result<Self, CopyError> {
        let read_at = |buffer: &mut [u8], offset: u64| {
            let start = usize::try_from(offset).ok();
            let source = start.and_then(|start| bytes.get(start..)?.get(..buffer.len()));
            buffer.copy_from_slice(source.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        };
        let region = publish::newest(bytes.len() as u64, read_at)?;
        let layout = layout_of(&region).map_err(CopyError::Damaged)?;
        Ok(Self::read(&region, &layout))
    }

    /// Returns the cores without received packets, see [`super::counters::idle_cores`].
    #[must_use]
    pub fn idle_cores(&self) -> Vec<usize> {
        let received = |core: &CoreSnapshot| core.counters.get(Counter::RxPackets.name()).copied();
        super::counters::idle_cores(self.cores.iter().map(|core| received(core).unwrap_or(0)))
    }

    /// Reads the state in a region of this layout.
    fn read(region: &Arc<Region>, layout: &Layout) -> Self {
        let header = region.slice::<AtomicU64>(0, HEADER_WORDS);
        let value = |index: usize| header[index].load(Relaxed);
        let neighbours = neighbours_of(region, layout, &header);
        Self {
            role: Role::from_word(value(word::ROLE)),
            node: value(word::NODE) as u16,
            pid: value(word::PID),
            running: value(word::RUNNING) != 0,
            started: value(word::STARTED),
            seed: Some(value(word::SEED)),
            ticks_hz: value(word::TICKS_HZ),
            epoch: value(word::EPOCH),
            pools: (0..layout.pools.len())
                .filter_map(|pool| read_pool(region, layout, pool))
                .collect(),
            cores: (0..layout.cores.len()).map(|core| read_core(region, layout, core)).collect(),
            neighbours: neighbours
                .iter()
                .map(|(port, address, mac)| NeighbourSnapshot {
                    port,
                    address,
                    mac: mac.map(|mac| mac.to_string()),
                })
                .collect(),
            ports_without_link: neighbours.without_link().collect(),
            peers: nodes_of(region, layout, &header).map(|nodes| nodes.snapshot()),
            agent: None,
        }
    }
}

/// Returns the path of the state file of the agent on a leaf's core, in the folder of the leaf's own file.
#[must_use]
pub fn agents_file(leaf_file: &Path) -> PathBuf {
    let mut name = leaf_file.as_os_str().to_owned();
    name.push(".agent");
    PathBuf::from(name)
}

/// Reads the newest copy in one state file.
fn open(path: &Path) -> Result<Snapshot, StateError> {
    let io = |error| StateError::Io { path: path.to_owned(), error };
    let missing = || StateError::Missing { path: path.to_owned() };
    let found = ExistingFile::behind(path).map_err(io)?.ok_or_else(missing)?;
    if !found.is_file() {
        return Err(StateError::Foreign { path: path.to_owned(), found: found.describe() });
    }
    let file = found.open(false).map_err(io)?;
    let len = file.metadata().map_err(io)?.len();
    let newest = publish::newest(len, |buffer, offset| file.read_exact_at(buffer, offset));
    let damaged = |reason| StateError::Damaged { path: path.to_owned(), reason };
    let region = newest.map_err(|error| match error {
        CopyError::Io(error) => io(error),
        CopyError::Foreign => {
            StateError::Foreign { path: path.to_owned(), found: "a file of another kind".into() }
        }
        CopyError::Version(found) => StateError::Version { path: path.to_owned(), found },
        CopyError::Damaged(reason) => damaged(reason),
    })?;
    let layout = layout_of(&region).map_err(damaged)?;
    Ok(Snapshot::read(&region, &layout))
}

/// Returns the layout of a copy by its header, or a description of the header's fault. The limits on the header's
/// sizes keep a damaged header from a huge allocation, an overflow or an access beyond the copy.
fn layout_of(region: &Arc<Region>) -> Result<Layout, String> {
    let impossible = || "its header names impossible sizes".to_owned();
    if region.len() < Layout::POOL_ENTRIES {
        return Err("shorter than its header".to_owned());
    }
    let header = region.slice::<AtomicU64>(0, HEADER_WORDS);
    let within = |index: usize, max: usize| {
        let count = usize::try_from(header[index].load(Relaxed)).ok();
        count.filter(|&count| count <= max).ok_or_else(impossible)
    };
    let (cores, pools) = (within(word::CORES, CORES_MAX)?, within(word::POOLS, POOLS_MAX)?);
    if cores == 0 {
        return Err(impossible());
    }
    let servers = within(word::SERVERS, MEMBERS_MAX)?;
    let ports = within(word::PORTS, PORTS_MAX)?;
    let pinned = within(word::PINNED, MEMBERS_MAX + SPINES_MAX + PORTS_MAX)?;
    let nodes = within(word::NODES, MEMBERS_MAX)?;
    if region.len() < Layout::POOL_ENTRIES + 8 * POOL_WORDS * pools {
        return Err(impossible());
    }
    let entries = region.slice::<AtomicU64>(Layout::POOL_ENTRIES, POOL_WORDS * pools);
    let members = entries.chunks_exact(POOL_WORDS).map(|entry| entry[1].load(Relaxed));
    // A damaged number may be huge: it is capped, and the sum saturates.
    let members: Vec<_> = members.map(|members| members.min(u64::MAX >> 16) as usize).collect();
    if members.iter().fold(0, |sum: usize, &members| sum.saturating_add(members)) > PLACES_MAX {
        return Err(impossible());
    }
    let layout = Layout::new(&TableShape { cores, pools: members, servers, ports, pinned, nodes });
    if layout.len > region.len() {
        return Err(format!("{} bytes long instead of {}", region.len(), layout.len));
    }
    Ok(layout)
}

/// Reads a pool by its index; `None` for a free place.
fn read_pool(region: &Arc<Region>, layout: &Layout, pool: usize) -> Option<PoolSnapshot> {
    let entry = region.slice::<AtomicU64>(layout.pool_entry(pool), POOL_WORDS);
    let id = entry[0].load(Relaxed);
    if id == NO_POOL {
        return None;
    }
    let objective = read_text(&entry[pool_word::OBJECTIVE]);
    let auto = (!objective.is_empty()).then(|| AutoSnapshot {
        objective,
        decision: read_text(&entry[pool_word::DECISION]),
        switches: entry[pool_word::SWITCHES].load(Relaxed),
    });
    let members = layout.pools[pool].members;
    let first = layout.pools[pool].first_member;
    let workers = region.slice::<AtomicU64>(layout.workers + 8 * first, members);
    let worker = |member: usize| WorkerSpec::of_word(workers[member].load(Relaxed)).id;
    // Workers on a core's idle list.
    let idle = |core: usize| {
        let place = &layout.cores[core].idle[pool];
        let count = region.slice::<AtomicU16>(place.count, 1)[0].load(Relaxed);
        let list = region.slice::<AtomicU16>(place.members, members);
        let listed = list.iter().take(usize::from(count));
        // The owner may change the list during the read. A member out of range is left out.
        listed
            .map(|member| usize::from(member.load(Relaxed)))
            .filter(|&member| member < members)
            .map(worker)
            .collect()
    };
    // A node with one core has no tokens.
    let tokens = (layout.cores.len() > 1).then(|| {
        let words = region.slice(layout.pools[pool].tokens, Tokens::words(members));
        Tokens::new(words, members)
    });
    // The member's worker, once for each of its free tokens.
    let for_all = |member: usize| {
        let count = tokens.as_ref().map_or(0, |tokens| tokens.count(Member(member as u16)));
        std::iter::repeat_n(worker(member), count)
    };
    // Each core has histograms of its own; the snapshot has their sums.
    let of_core = |core| view::read_histograms(&view::histograms(region, layout, core, pool));
    let histograms = (0..layout.cores.len()).map(of_core);
    let [report_age, queue_wait] = histograms
        .fold(<[_; 2]>::default(), |[ages, waits], [age, wait]| {
            [HistogramSnapshot::and(ages, age), waits.and(wait)]
        });
    Some(PoolSnapshot {
        id: id as u16,
        policy: read_text(&entry[pool_word::POLICY]),
        auto,
        members: (0..members)
            .filter_map(|member| read_member(region, layout, pool, member))
            .collect(),
        idle: (0..layout.cores.len()).map(idle).collect(),
        idle_for_all: (0..members).flat_map(for_all).collect(),
        queued: (0..layout.cores.len()).map(|core| queued(region, layout, core, pool)).collect(),
        report_age,
        queue_wait,
    })
}

/// Reads a member of a pool; `None` for a free place.
fn read_member(
    region: &Arc<Region>,
    layout: &Layout,
    pool: usize,
    member: usize,
) -> Option<MemberSnapshot> {
    let index = layout.pools[pool].first_member + member;
    let worker = region.slice::<AtomicU64>(layout.workers + 8 * index, 1)[0].load(Relaxed);
    let worker = WorkerSpec::of_word(worker);
    if worker == WorkerSpec::FREE_PLACE {
        return None;
    }
    let servers = region.slice::<AtomicU64>(layout.servers, (layout.workers - layout.servers) / 8);
    // Two words hold the address. A server number out of range, in a damaged file, reads as the address `::`.
    let half = |index| servers.get(index).map_or(0, |word: &AtomicU64| word.load(Relaxed));
    let server = 2 * usize::from(worker.server);
    let server = address_of([half(server), half(server + 1)]);
    let reported = |core: usize| {
        region.slice::<AtomicU64>(layout.cores[core].reported + 8 * index, 1)[0].load(Relaxed)
    };
    let local = |core: usize| {
        region.slice::<LocalState>(layout.cores[core].own + size_of::<LocalState>() * index, 1)
    };
    // Drift since an older report is void: the newer report includes it.
    let drift = |core: usize| {
        let local = &local(core)[0];
        let is_current = local.since.load(Relaxed) == reported(core);
        if is_current { Load(local.drift.load(Relaxed)).as_f64() } else { 0.0 }
    };
    let cores = 0..layout.cores.len();
    let reports = |core| (reported(core) >> 32) as u32;
    // Each core counts only the reports that it received itself. The core with the most has the best estimate.
    let best = cores.clone().max_by_key(|&core| reports(core)).unwrap_or(0);
    let presence = layout.pools[pool].presence + 4 * member;
    let presence = region.slice::<AtomicU32>(presence, 1)[0].load(Relaxed);
    let lost = region.slice::<AtomicU32>(layout.pools[pool].lost + 4 * member, 1);
    Some(MemberSnapshot {
        member: member as u16,
        worker: worker.id,
        server,
        presence: MemberPresence::from_word(presence),
        load: Load(reported(best) as u32).as_f64(),
        drift: cores.clone().map(drift).collect(),
        outstanding: outstanding(region, layout, index),
        lost: lost[0].load(Relaxed),
        reports: cores.map(reports).fold(0, u32::wrapping_add),
    })
}

/// Returns the number of a pool's tasks that wait on a core.
fn queued(region: &Arc<Region>, layout: &Layout, core: usize, pool: usize) -> u64 {
    region.slice::<AtomicU64>(layout.cores[core].queued + 8 * pool, 1)[0].load(Relaxed)
}

/// Returns the tasks outstanding at a member, over all cores. `index` is the member's index among those of all
/// pools.
fn outstanding(region: &Arc<Region>, layout: &Layout, index: usize) -> i64 {
    let local = |core: &CoreLayout| {
        region.slice::<LocalState>(core.own + size_of::<LocalState>() * index, 1)
    };
    // One core's count is negative if it saw more replies than tasks. Only the sum has a meaning, so it wraps.
    let outstanding = |core| local(core)[0].outstanding.load(Relaxed);
    i64::from(layout.cores.iter().map(outstanding).fold(0, u32::wrapping_add) as i32)
}

/// Reads a core's counters.
fn read_core(region: &Arc<Region>, layout: &Layout, core: usize) -> CoreSnapshot {
    let counters = Counters::new(region.slice(layout.cores[core].counters, counters::WORDS));
    let (totals, (pauses, newest_pauses)) = (counters.totals(), counters.pauses());
    CoreSnapshot {
        counters: totals.named(),
        drops: totals.drops(),
        pauses,
        decision_time: counters.decision_time(),
        newest_pauses,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::DropReason;
    use crate::state::Counter;

    /// Returns a leaf with one pool of four workers, ids 10 to 13, on two servers.
    fn spec() -> Spec {
        let workers = (0..4).map(|id| WorkerSpec { id: 10 + id, server: id / 2 }).collect();
        Spec {
            node: 3,
            cores: 2,
            ports: 1,
            servers: [11, 12].map(|last| std::net::Ipv4Addr::new(10, 0, 2, last).into()).to_vec(),
            pools: vec![PoolSpec {
                id: 7,
                policy: "horus".into(),
                objective: String::new(),
                workers,
            }],
            ticks_hz: 1_000_000_000,
            seed: 42,
            ..Spec::default()
        }
    }

    /// Creates that leaf's state with a file in a new folder.
    fn created() -> (tempfile::TempDir, PathBuf, Table) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let table = Table::create(&path, &spec()).unwrap();
        (folder, path, table)
    }

    #[test]
    fn a_reader_sees_what_the_cores_do() {
        let (_folder, path, table) = created();
        let mut view = table.view(1, 0);
        view.sent(Member(2));
        view.set_load(Member(2), Load::tasks(5));
        view.sent(Member(2));
        view.idle_mut().insert(Member(3));
        view.pool_exchange().unwrap().tokens().put(Member(1), 1);
        view.set_presence(Member(2), MemberPresence::Registered);
        view.note_queued(6);
        table.counters(1).add(Counter::Scheduled, 2);
        table.counters(0).drop(DropReason::Runt, 1);
        table.publish();
        let snapshot = Snapshot::open(&path).unwrap();
        assert_eq!((snapshot.node, snapshot.seed, snapshot.running), (3, Some(42), true));
        let pool = &snapshot.pools[0];
        assert_eq!((pool.id, pool.policy.as_str()), (7, "horus"));
        assert_eq!((&pool.idle[..], &pool.queued[..]), (&[vec![], vec![13]][..], &[0, 6][..]));
        assert_eq!(pool.idle_for_all, [11]);
        let member = &pool.members[2];
        assert_eq!((member.worker, member.server), (12, IpAddr::from([10, 0, 2, 12])));
        assert_eq!(member.presence, MemberPresence::Registered);
        assert_eq!(pool.members[1].presence, MemberPresence::Configured);
        assert_eq!((member.load, &member.drift[..], member.outstanding), (5.0, &[0.0, 1.0][..], 2));
        assert_eq!(snapshot.cores[1].counters["scheduled"], 2);
        assert_eq!(snapshot.cores[0].drops["runt"], 1);
        drop(table);
        assert!(!Snapshot::open(&path).unwrap().running);
    }

    #[test]
    fn colocated_agent_is_read_with_its_leaf() {
        let (_folder, path, _table) = created();
        assert!(Snapshot::open(&path).unwrap().agent.is_none());
        let agent_path = agents_file(&path);
        let agent = Table::create(&agent_path, &Spec { role: Role::Agent, ..spec() }).unwrap();
        agent.counters(0).add(Counter::Replies, 5);
        agent.publish();
        let both = Snapshot::open(&path).unwrap();
        let read = both.agent.expect("its process is the leaf's");
        assert_eq!((both.role, read.role), (Role::Leaf, Role::Agent));
        assert_eq!(read.cores[0].counters["replies"], 5);
        // The file of an earlier process's agent does not belong to this leaf.
        agent.header[word::PID].fetch_add(1, Relaxed);
        agent.publish();
        assert!(Snapshot::open(&path).unwrap().agent.is_none());
    }

    // promise: input.3
    #[test]
    fn second_owner_is_refused_dead_owner_replaced() {
        let (_folder, path, table) = created();
        let error = Table::create(&path, &spec()).unwrap_err();
        assert!(
            matches!(error, StateError::InUse { pid: Some(pid), .. } if pid == u64::from(std::process::id())),
            "{error}"
        );
        let old = Snapshot::open(&path).unwrap();
        drop(table);
        let table = Table::create(&path, &spec()).unwrap();
        assert!(Snapshot::open(&path).unwrap().started >= old.started);
        drop(table);
        assert_eq!(std::fs::read_dir(_folder.path()).unwrap().count(), 1, "no other file stays");
    }

    #[test]
    fn missing_file_or_folder_names_the_fix() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Snapshot::open(&folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("does not exist; start"), "{missing}");
        let path = folder.path().join("none").join("state");
        let error = Table::create(&path, &spec()).unwrap_err().to_string();
        assert!(error.contains("No such file") && error.contains("make its folder"), "{error}");
    }

    // promise: input.3
    #[test]
    fn foreign_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        for text in ["the only copy of something", "short"] {
            std::fs::write(&path, text).unwrap();
            let created = Table::create(&path, &spec()).unwrap_err();
            let opened = Snapshot::open(&path).unwrap_err();
            for error in [created, opened] {
                let text = error.to_string();
                assert!(matches!(error, StateError::Foreign { .. }), "{text}");
                assert!(text.contains("left alone") && !text.contains("remove"), "{text}");
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    // promise: input.3
    #[test]
    fn irregular_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        for (path, kind) in crate::state::files::tests::specials(folder.path()) {
            let before = ExistingFile::at(&path).unwrap().unwrap().identity();
            let error = Table::create(&path, &spec()).unwrap_err().to_string();
            assert!(error.contains(kind) && error.contains("name another file"), "{error}");
            // A reader follows a link, so its error describes the target.
            if kind != "a symbolic link" {
                let error = Snapshot::open(&path).unwrap_err().to_string();
                assert!(error.contains(kind), "{error}");
            }
            assert_eq!(ExistingFile::at(&path).unwrap().unwrap().identity(), before, "{kind}");
        }
        let precious = std::fs::read_to_string(folder.path().join("precious")).unwrap();
        assert_eq!(precious, "the only copy of something");
        assert!(!folder.path().join("nowhere").exists());
    }

    /// Other processes change the file in many ways while its owner runs. An owner that worked in memory mapped
    /// from the file would die of SIGBUS.
    // promise: input.3
    #[test]
    fn file_tampering_never_ends_the_owner() {
        use std::fs::{File, Permissions, remove_file, rename, set_permissions, write};
        use std::os::unix::fs::PermissionsExt;

        let (folder, path, table) = created();
        let elsewhere = folder.path().join("elsewhere");
        let shorten = |len| File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
        let changes: [(&str, &dyn Fn()); 8] = [
            ("truncated to nothing", &|| shorten(0)),
            ("truncated within its head", &|| shorten(20)),
            ("truncated within a copy", &|| shorten(publish::HEAD as u64 + 1)),
            ("lengthened", &|| shorten(1 << 24)),
            ("overwritten", &|| write(&path, "x".repeat(10_000)).unwrap()),
            ("closed to everybody", &|| {
                set_permissions(&path, Permissions::from_mode(0o0)).unwrap()
            }),
            ("moved away", &|| rename(&path, &elsewhere).unwrap()),
            ("removed", &|| remove_file(&elsewhere).unwrap()),
        ];
        for (number, (change, act)) in changes.into_iter().enumerate() {
            act();
            let _ = Snapshot::open(&path); // with any result
            for core in 0..2 {
                let mut view = table.view(core, 0);
                view.sent(Member(3));
                view.set_load(Member(3), Load::tasks(2));
                table.counters(core).add(Counter::Scheduled, 1);
            }
            table.publish();
            table.publish();
            // The first five changes leave the file at its path, where the next copy repairs it.
            if number < 5 {
                let scheduled = Snapshot::open(&path).unwrap().cores[1].counters["scheduled"];
                assert_eq!(scheduled, 1 + number as u64, "published again after it was {change}");
            }
        }
        drop(table);
        assert!(Table::create(&path, &spec()).is_ok());
    }

    // promise: input.3
    #[test]
    fn full_disk_is_reported_at_start() {
        // A limit on file sizes stands for the full disk.
        let (folder, path, table) = created();
        drop(table);
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "state::table::tests::starts_on_a_full_disk", "--nocapture"])
            .env("WEDJAT_FULL_DISK", &path)
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && output.contains("as it should"), "{output}");
        assert!(!Snapshot::open(&path).unwrap().running, "the previous file is unchanged");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "and nothing else");
    }

    /// Child process of the previous test; passes at once without it.
    #[test]
    fn starts_on_a_full_disk() {
        use rustix::process::{Resource, Rlimit, setrlimit};

        let Some(path) = std::env::var_os("WEDJAT_FULL_DISK") else { return };
        let path = Path::new(&path);
        let limit = |current| {
            setrlimit(Resource::Fsize, Rlimit { current, maximum: None }).unwrap();
        };
        limit(Some(10_000)); // less than the state file needs
        let error = Table::create(path, &spec()).unwrap_err().to_string();
        assert!(error.contains("File too large") && error.contains("ulimit"), "{error}");
        // Full later: the node goes on, and its file shows the previous state.
        limit(None);
        let second = path.with_extension("beside");
        let table = Table::create(&second, &spec()).unwrap();
        limit(Some(10_000));
        table.counters(0).add(Counter::Scheduled, 9);
        table.publish();
        assert_eq!(Snapshot::open(&second).unwrap().cores[0].counters["scheduled"], 0);
        limit(None);
        table.publish();
        assert_eq!(Snapshot::open(&second).unwrap().cores[0].counters["scheduled"], 9);
        drop(table);
        std::fs::remove_file(second).unwrap();
        println!("as it should");
    }

    // promise: input.3
    #[test]
    fn reader_gets_a_whole_copy_during_writes() {
        let (_folder, path, table) = created();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    // The two counters lie far apart in the file, and are equal at each publication.
                    for core in 0..2 {
                        table.counters(core).add(Counter::Scheduled, 1);
                    }
                    table.publish();
                }
            });
            let counted = |core: &CoreSnapshot| core.counters["scheduled"];
            let mut last = 0;
            while last < 300 {
                let read = Snapshot::open(&path);
                let read = read.inspect_err(|_| is_over.store(true, Relaxed)).unwrap();
                let [first, second] = [counted(&read.cores[0]), counted(&read.cores[1])];
                if first.abs_diff(second) > 1 || first < last {
                    is_over.store(true, Relaxed);
                    panic!("{first} and {second} after {last}");
                }
                last = first;
            }
            is_over.store(true, Relaxed);
        });
    }

    // promise: input.3
    #[test]
    fn the_file_is_written_without_being_asked_for() {
        let (_folder, path, table) = created();
        table.counters(0).add(Counter::Scheduled, 4);
        let began = std::time::Instant::now();
        while Snapshot::open(&path).unwrap().cores[0].counters["scheduled"] != 4 {
            assert!(began.elapsed() < crate::TIMEOUT, "nothing was written");
            std::thread::sleep(publish::PERIOD);
        }
    }

    // promise: input.3
    #[test]
    fn a_group_may_read_if_it_is_given() {
        use std::os::unix::fs::MetadataExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        for (group, mode) in [(None, 0o600), (Some(rustix::process::getegid().as_raw()), 0o640)] {
            let table = Table::create(&path, &Spec { group, ..spec() }).unwrap();
            let found = std::fs::metadata(&path).unwrap();
            assert_eq!(found.mode() & 0o777, mode);
            assert_eq!(found.gid(), group.unwrap_or(found.gid()));
            drop(table);
        }
    }

    // promise: input.3
    #[test]
    fn truncated_files_are_refused_at_every_length() {
        let (_folder, path, table) = created();
        drop(table);
        let whole = std::fs::read(&path).unwrap();
        for len in (0..whole.len()).step_by(97) {
            std::fs::write(&path, &whole[..len]).unwrap();
            let error = Snapshot::open(&path).unwrap_err();
            assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
        }
        std::fs::write(&path, &whole).unwrap();
        assert!(Snapshot::open(&path).is_ok());
    }

    // promise: input.3
    #[test]
    fn other_versions_and_damaged_files_are_refused() {
        let (_folder, path, table) = created();
        drop(table);
        let whole = std::fs::read(&path).unwrap();
        // Opens the file after a change of these bits of one byte.
        let with = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] ^= byte;
            std::fs::write(&path, &bytes).unwrap();
            Snapshot::open(&path)
        };
        let version = with(8 * publish::word::VERSION, 0x10);
        assert!(
            matches!(version, Err(StateError::Version { found, .. }) if found == VERSION ^ 0x10)
        );
        for at in 0..8 * publish::word::COUNT {
            assert!(with(at, 0x41).is_err(), "byte {at} of the head");
        }
        // Each tested byte of the newest copy; the second copy does not matter.
        let number = whole[8 * publish::word::NUMBER];
        let copy = (whole.len() - publish::HEAD) / 2;
        let newest = publish::HEAD + usize::from(number & 1) * copy;
        for at in (newest..newest + table_len()).step_by(61) {
            assert!(matches!(with(at, 1), Err(StateError::Damaged { .. })), "byte {at}");
        }
    }

    /// Returns the size of one copy of the state in bytes.
    fn table_len() -> usize {
        Layout::new(&shape(&spec())).len
    }

    #[test]
    fn largest_numbers_of_neighbours_are_readable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let limits = Limits { servers: MEMBERS_MAX, ..Limits::default() };
        let largest = Spec { ports: PORTS_MAX, spines: SPINES_MAX, limits, ..spec() };
        let _table = Table::create(&path, &largest).unwrap();
        assert_eq!(Snapshot::open(&path).unwrap().pools.len(), 1);
    }

    #[test]
    fn state_larger_than_readers_accept_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let limits = Limits { pools: 8, servers: 1, workers: MEMBERS_MAX };
        let error = Table::create(&path, &Spec { cores: CORES_MAX, limits, ..spec() }).unwrap_err();
        assert!(matches!(error, StateError::TooLarge { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("at most 268435456; use fewer cores"), "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no file stays");
    }

    // promise: input.3
    #[test]
    fn sizes_that_can_not_be_are_refused() {
        // Returns the layout of a state with this value in one word.
        let make = |at: usize, value: u64| {
            let table = Table::heap(&spec());
            table.region.slice::<AtomicU64>(8 * at, 1)[0].store(value, Relaxed);
            layout_of(&table.region)
        };
        assert!(make(word::RUNNING, 7).is_ok());
        let members = Layout::POOL_ENTRIES / 8 + 1; // number of places of the first pool
        for at in [word::CORES, word::POOLS, word::SERVERS, word::PORTS, word::PINNED, members] {
            for value in [u64::MAX, 1 << 40, 0x7FFF_FFFF, 1 << 15] {
                assert!(make(at, value).is_err(), "word {at} is {value}");
            }
        }
        assert!(layout_of(&Region::heap(Layout::POOL_ENTRIES - 8)).is_err());
        assert!(layout_of(&Region::heap(0)).is_err());
    }
}
