//! The whole state of a node: created by the node, opened read-only by anybody.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use serde::Serialize;

use super::counters::{self, Counter, Counters};
use super::layout::{HEADER_WORDS, Layout, POOL_WORDS, Shape, name_policy};
use super::neighbour::Neighbours;
use super::region::{Region, Slice, advice};
use super::view::{Load, Presence, View};
use super::words::Own;
use crate::limits::{CORES_MAX, MEMBERS_MAX, POOLS_MAX, PORTS_MAX};
use crate::reason::DropReason;

/// "WEDJAT" and the sign that the writer was little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"WEDJATle");
/// Version of the layout; any change of [`super::layout`] or of the counters raises it.
pub const VERSION: u64 = 5;

/// Numbers of the header's words.
mod word {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    pub const LEN: usize = 2;
    pub const CHECK: usize = 3;
    pub const CORES: usize = 4;
    pub const POOLS: usize = 5;
    pub const SERVERS: usize = 6;
    pub const PORTS: usize = 7;
    pub const NODE: usize = 8;
    pub const PID: usize = 9;
    pub const STARTED: usize = 10;
    pub const TICKS_HZ: usize = 11;
    pub const SEED: usize = 12;
    pub const RUNNING: usize = 13;
    pub const ROLE: usize = 14;
    pub const PINNED: usize = 15;
}

/// Why a state file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The system refused.
    #[error("state file {path}: {error}{}", advice(error))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// There is no such file.
    #[error(
        "state file {path}: there is none; start the leaf or agent first, or name the `state` of its configuration"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Another node runs on it.
    #[error(
        "state file {path}: in use by another running leaf or agent{}; stop that one or set another `state`",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// Who uses it, if that can be read.
        pid: Option<u64>,
    },
    /// Something else lies there.
    #[error("state file {path}: not a wedjat state file; remove it or name another file")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Written by another version.
    #[error(
        "state file {path}: layout version {found}, this program reads version {VERSION}; use the `wedjat` that wrote it"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// Too short, or its header contradicts itself.
    #[error("state file {path}: damaged ({reason}); restart the leaf or agent that owns it")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
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

/// A pool as a state file names it.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// Pool id on the wire.
    pub id: u16,
    /// Its policy's name.
    pub policy: String,
    /// Its members in order.
    pub workers: Vec<WorkerSpec>,
}

/// What a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A leaf.
    #[default]
    Leaf,
    /// A host's agent.
    Agent,
}

impl Role {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Leaf => "leaf",
            Self::Agent => "agent",
        }
    }
}

/// Everything a new state says of its node.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// What the node is.
    pub role: Role,
    /// Its id.
    pub node: u16,
    /// Dispatcher cores.
    pub cores: usize,
    /// Ports with neighbours.
    pub ports: usize,
    /// Servers' addresses.
    pub servers: Vec<u32>,
    /// Pools.
    pub pools: Vec<PoolSpec>,
    /// Ticks a second of the node's clock.
    pub ticks_hz: u64,
    /// Seed of the node's random streams.
    pub seed: u64,
}

/// A node's state, as its owner sees it.
#[derive(Debug)]
pub struct Table {
    region: Arc<Region>,
    layout: Layout,
    header: Slice<AtomicU64>,
    /// Holds the lock that keeps a second owner away.
    _file: Option<File>,
}

impl Table {
    /// A state in memory of this process only.
    #[must_use]
    pub fn heap(spec: &Spec) -> Self {
        let shape = shape(spec);
        let layout = Layout::new(&shape);
        Self::fill(Region::heap(layout.len), layout, &shape, spec, None)
    }

    /// A state in the file at `path`, which others may open. A file left by a leaf that no longer runs is
    /// replaced; the new file takes the old one's place when it is complete, so that readers never see
    /// half of it.
    ///
    /// # Errors
    /// When another leaf runs on the file, when it is no state file, or when the system refuses.
    pub fn create(path: &Path, spec: &Spec) -> Result<Self, StateError> {
        let io = |error| StateError::Io { path: path.to_owned(), error };
        let _old = take_over(path)?;
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".new-{}", std::process::id()));
        let new = PathBuf::from(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&new)
            .map_err(io)?;
        let made = (|| {
            let shape = shape(spec);
            let layout = Layout::new(&shape);
            file.try_lock().map_err(|error| io(error.into()))?;
            file.set_len(layout.len as u64).map_err(io)?;
            let region = Region::map(&file, layout.len).map_err(io)?;
            let table = Self::fill(region, layout, &shape, spec, Some(file));
            std::fs::rename(&new, path).map_err(io)?;
            Ok(table)
        })();
        if made.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        made
    }

    fn fill(
        region: Arc<Region>,
        layout: Layout,
        shape: &Shape,
        spec: &Spec,
        file: Option<File>,
    ) -> Self {
        let header = region.slice::<AtomicU64>(0, HEADER_WORDS);
        let words = [
            (word::VERSION, VERSION),
            (word::LEN, layout.len as u64),
            (word::CORES, shape.cores as u64),
            (word::POOLS, shape.pools.len() as u64),
            (word::SERVERS, shape.servers as u64),
            (word::PORTS, shape.ports as u64),
            (word::PINNED, shape.pinned as u64),
            (word::NODE, u64::from(spec.node)),
            (word::PID, u64::from(std::process::id())),
            (word::STARTED, unix_seconds()),
            (word::TICKS_HZ, spec.ticks_hz),
            (word::SEED, spec.seed),
            (word::RUNNING, 1),
            (word::ROLE, spec.role as u64),
        ];
        for (at, value) in words {
            header[at].store(value, Relaxed);
        }
        let servers = region.slice::<AtomicU64>(layout.servers, spec.servers.len());
        for (word, &address) in servers.iter().zip(&spec.servers) {
            word.store(u64::from(address), Relaxed);
        }
        let workers = region.slice::<AtomicU64>(layout.workers, layout.members);
        let all = spec.pools.iter().flat_map(|pool| &pool.workers);
        for (word, worker) in workers.iter().zip(all) {
            word.store(u64::from(worker.id) << 32 | u64::from(worker.server), Relaxed);
        }
        let table = Self { region, layout, header, _file: file };
        for (index, pool) in spec.pools.iter().enumerate() {
            let entry = table.pool_entry(index);
            entry[0].store(u64::from(pool.id), Relaxed);
            entry[1].store(pool.workers.len() as u64, Relaxed);
            name_policy(&entry, &pool.policy);
        }
        let pools = table.pool_words();
        table.header[word::CHECK].store(check(&table.header, &pools), Relaxed);
        table.header[word::MAGIC].store(MAGIC, Release);
        table
    }

    fn pool_words(&self) -> Slice<AtomicU64> {
        self.region.slice(self.layout.pool_entries, POOL_WORDS * self.layout.pools.len())
    }

    fn pool_entry(&self, pool: usize) -> Slice<AtomicU64> {
        self.region.slice(self.layout.pool_entry(pool), POOL_WORDS)
    }

    /// `core`'s view of `pool` (an index, not an id).
    #[must_use]
    pub fn view(&self, core: usize, pool: usize) -> View {
        View::new(&self.region, &self.layout, core, pool)
    }

    /// `core`'s counters.
    #[must_use]
    pub fn counters(&self, core: usize) -> Counters {
        Counters::new(self.region.slice(self.layout.cores[core].counters, counters::COUNT))
    }

    /// The neighbours, shared by all cores.
    #[must_use]
    pub fn neighbours(&self) -> Neighbours {
        neighbours_of(&self.region, &self.layout, &self.header)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.header[word::RUNNING].store(0, Relaxed);
    }
}

fn neighbours_of(region: &Arc<Region>, layout: &Layout, header: &[AtomicU64]) -> Neighbours {
    let value = |at: usize| header[at].load(Relaxed);
    let (ports, pinned) = (value(word::PORTS) as usize, value(word::PINNED) as usize);
    let words = Neighbours::words(ports, pinned);
    Neighbours::new(region.slice(layout.neighbours, words), ports, pinned, value(word::SEED))
}

fn shape(spec: &Spec) -> Shape {
    Shape {
        cores: spec.cores,
        pools: spec.pools.iter().map(|pool| pool.workers.len()).collect(),
        servers: spec.servers.len(),
        ports: spec.ports,
        // The next hop to each server, and a gateway behind each port.
        pinned: spec.servers.len() + spec.ports,
    }
}

fn unix_seconds() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Makes sure that what lies at `path` may be replaced, and keeps it locked until that is done.
fn take_over(path: &Path) -> Result<Option<File>, StateError> {
    let io = |error| StateError::Io { path: path.to_owned(), error };
    let mut file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mut head = [0; 16];
    let mut filled = 0;
    while filled < head.len() {
        match file.read(&mut head[filled..]).map_err(io)? {
            0 => break,
            count => filled += count,
        }
    }
    if filled > 0 && head[..8] != MAGIC.to_le_bytes() {
        return Err(StateError::Foreign { path: path.to_owned() });
    }
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            let pid = Snapshot::open(path).ok().map(|snapshot| snapshot.pid);
            Err(StateError::InUse { path: path.to_owned(), pid })
        }
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

/// FNV-1a over what fixes the layout: the header's shape, and the pools' ids and sizes.
fn check(header: &[AtomicU64], pools: &[AtomicU64]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let shape =
        header[word::CORES..=word::PORTS].iter().chain(&header[word::PINNED..=word::PINNED]);
    let fixed = pools.chunks_exact(POOL_WORDS).flat_map(|entry| &entry[..2]);
    for word in shape.chain(fixed).chain(&header[word::VERSION..=word::LEN]) {
        for byte in word.load(Relaxed).to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

/// A state file as read at one moment. Its owner may run on meanwhile: each number is whole, but two
/// numbers may be a few packets apart.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// What the node is.
    pub role: Role,
    /// Its id.
    pub node: u16,
    /// Its process.
    pub pid: u64,
    /// It has not ended in an orderly way.
    pub running: bool,
    /// When it started, seconds since 1970.
    pub started: u64,
    /// Seed of its random streams.
    pub seed: u64,
    /// Ticks a second of its clock.
    pub ticks_hz: u64,
    /// Its pools.
    pub pools: Vec<PoolSnapshot>,
    /// Its dispatcher cores.
    pub cores: Vec<CoreSnapshot>,
    /// Hosts on its networks.
    pub neighbours: Vec<NeighbourSnapshot>,
    /// The agent on a leaf's core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Box<Snapshot>>,
}

/// A pool in a [`Snapshot`].
#[derive(Clone, Debug, Serialize)]
pub struct PoolSnapshot {
    /// Pool id on the wire.
    pub id: u16,
    /// Its policy.
    pub policy: String,
    /// Its members in order.
    pub members: Vec<MemberSnapshot>,
    /// For each core, the worker ids on its idle list in order.
    pub idle: Vec<Vec<u16>>,
    /// For each core, tasks that wait for a member.
    pub queued: Vec<u64>,
}

/// A member in a [`Snapshot`].
#[derive(Clone, Debug, Serialize)]
pub struct MemberSnapshot {
    /// Worker id.
    pub worker: u16,
    /// Its server.
    pub server: Ipv4Addr,
    /// Whether it registered, and is silent.
    pub presence: Presence,
    /// Tasks in its last report.
    pub load: f64,
    /// For each core, tasks sent since that report.
    pub drift: Vec<f64>,
    /// Tasks sent and not answered, over all cores.
    pub outstanding: i64,
    /// Reports taken, modulo 2^32.
    pub reports: u32,
}

/// A core in a [`Snapshot`].
#[derive(Clone, Debug, Serialize)]
pub struct CoreSnapshot {
    /// Events counted.
    pub counters: std::collections::BTreeMap<&'static str, u64>,
    /// Packets dropped, by reason; reasons that never occurred are left out.
    pub drops: std::collections::BTreeMap<&'static str, u64>,
}

/// A host in a [`Snapshot`].
#[derive(Clone, Debug, Serialize)]
pub struct NeighbourSnapshot {
    /// Index of the port behind which it is.
    pub port: usize,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its MAC address, once known.
    pub mac: Option<String>,
}

impl Snapshot {
    /// Reads the state file at `path`, mapped read-only; its owner may be running.
    ///
    /// # Errors
    /// When it is no state file, of another version, damaged, or can't be read.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let (region, layout) = open(path)?;
        let mut snapshot = Self::read(&region, &layout);
        // One that an earlier process left is not this leaf's.
        let beside = open(&agents_file(path)).map(|(region, layout)| Self::read(&region, &layout));
        let own = beside.ok().filter(|agent| agent.pid == snapshot.pid);
        snapshot.agent = own.map(Box::new);
        Ok(snapshot)
    }

    fn read(region: &Arc<Region>, layout: &Layout) -> Self {
        let header = region.slice::<AtomicU64>(0, HEADER_WORDS);
        let value = |at: usize| header[at].load(Relaxed);
        let neighbours = neighbours_of(region, layout, &header);
        Self {
            role: if value(word::ROLE) == Role::Agent as u64 { Role::Agent } else { Role::Leaf },
            node: value(word::NODE) as u16,
            pid: value(word::PID),
            running: value(word::RUNNING) != 0,
            started: value(word::STARTED),
            seed: value(word::SEED),
            ticks_hz: value(word::TICKS_HZ),
            pools: (0..layout.pools.len()).map(|pool| read_pool(region, layout, pool)).collect(),
            cores: (0..layout.cores.len()).map(|core| read_core(region, layout, core)).collect(),
            neighbours: neighbours
                .iter()
                .map(|(port, address, mac)| NeighbourSnapshot {
                    port,
                    address: Ipv4Addr::from_bits(address),
                    mac: mac.map(|mac| mac.to_string()),
                })
                .collect(),
            agent: None,
        }
    }
}

/// The state file of the agent on a leaf's core, beside the leaf's own.
#[must_use]
pub fn agents_file(leafs: &Path) -> PathBuf {
    let mut name = leafs.as_os_str().to_owned();
    name.push(".agent");
    PathBuf::from(name)
}

fn open(path: &Path) -> Result<(Arc<Region>, Layout), StateError> {
    let io = |error| StateError::Io { path: path.to_owned(), error };
    let damaged =
        |reason: &str| StateError::Damaged { path: path.to_owned(), reason: reason.to_owned() };
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StateError::Missing { path: path.to_owned() },
        _ => io(error),
    })?;
    let len = usize::try_from(file.metadata().map_err(io)?.len()).unwrap_or(usize::MAX);
    if len < Layout::POOL_ENTRIES {
        return Err(if len < 8 {
            StateError::Foreign { path: path.to_owned() }
        } else {
            damaged("shorter than its header")
        });
    }
    let region = Region::map_read_only(&file, len).map_err(io)?;
    let header = region.slice::<AtomicU64>(0, HEADER_WORDS);
    if header[word::MAGIC].load(Acquire) != MAGIC {
        return Err(StateError::Foreign { path: path.to_owned() });
    }
    let value = |at: usize| header[at].load(Relaxed);
    if value(word::VERSION) != VERSION {
        return Err(StateError::Version { path: path.to_owned(), found: value(word::VERSION) });
    }
    let within =
        |at: usize, max: usize| usize::try_from(value(at)).ok().filter(|&count| count <= max);
    let (Some(cores), Some(pools), Some(servers), Some(ports), Some(pinned)) = (
        within(word::CORES, CORES_MAX),
        within(word::POOLS, POOLS_MAX),
        within(word::SERVERS, MEMBERS_MAX),
        within(word::PORTS, PORTS_MAX),
        within(word::PINNED, MEMBERS_MAX + PORTS_MAX),
    ) else {
        return Err(damaged("its header names impossible sizes"));
    };
    if len < Layout::POOL_ENTRIES + 8 * POOL_WORDS * pools {
        return Err(damaged("shorter than its list of pools"));
    }
    let entries = region.slice::<AtomicU64>(Layout::POOL_ENTRIES, POOL_WORDS * pools);
    if check(&header, &entries) != value(word::CHECK) {
        return Err(damaged("its header's check sum is wrong"));
    }
    let members = entries.chunks_exact(POOL_WORDS).map(|entry| entry[1].load(Relaxed) as usize);
    let members: Vec<usize> = members.collect();
    if members.iter().any(|&members| members > MEMBERS_MAX) {
        return Err(damaged("its header names impossible sizes"));
    }
    let layout = Layout::new(&Shape { cores, pools: members, servers, ports, pinned });
    if layout.len as u64 != value(word::LEN) || layout.len > len {
        return Err(damaged(&format!("{len} bytes long instead of {}", layout.len)));
    }
    Ok((region, layout))
}

fn read_pool(region: &Arc<Region>, layout: &Layout, pool: usize) -> PoolSnapshot {
    let entry = region.slice::<AtomicU64>(layout.pool_entry(pool), POOL_WORDS);
    let name: Vec<u8> =
        entry[2..].iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let members = layout.pools[pool].members;
    let first = layout.pools[pool].first_member;
    let workers = region.slice::<AtomicU64>(layout.workers + 8 * first, members);
    let worker = |member: usize| (workers[member].load(Relaxed) >> 32) as u16;
    let idle = |core: usize| {
        let place = &layout.cores[core].idle[pool];
        let count = region.slice::<AtomicU16>(place.count, 1)[0].load(Relaxed);
        let list = region.slice::<AtomicU16>(place.members, members);
        let listed = list.iter().take(usize::from(count));
        // The owner may change the list while it is read; a member out of range is not shown.
        listed
            .map(|member| usize::from(member.load(Relaxed)))
            .filter(|&member| member < members)
            .map(worker)
            .collect()
    };
    let queued = |core: usize| {
        let word = layout.cores[core].queued + 8 * pool;
        region.slice::<AtomicU64>(word, 1)[0].load(Relaxed)
    };
    PoolSnapshot {
        id: entry[0].load(Relaxed) as u16,
        policy: String::from_utf8_lossy(name).into_owned(),
        members: (0..members).map(|member| read_member(region, layout, pool, member)).collect(),
        idle: (0..layout.cores.len()).map(idle).collect(),
        queued: (0..layout.cores.len()).map(queued).collect(),
    }
}

fn read_member(
    region: &Arc<Region>,
    layout: &Layout,
    pool: usize,
    member: usize,
) -> MemberSnapshot {
    let at = layout.pools[pool].first_member + member;
    let worker = region.slice::<AtomicU64>(layout.workers + 8 * at, 1)[0].load(Relaxed);
    let servers = region.slice::<AtomicU64>(layout.servers, (layout.workers - layout.servers) / 8);
    let server = servers.get((worker as u16) as usize).map_or(0, |word| word.load(Relaxed) as u32);
    let reported =
        region.slice::<AtomicU64>(layout.pools[pool].reported + 8 * member, 1)[0].load(Relaxed);
    let own = |core: usize| region.slice::<Own>(layout.cores[core].own + size_of::<Own>() * at, 1);
    let drift = |core: usize| {
        let own = &own(core)[0];
        let current = own.since.load(Relaxed) == reported;
        if current { Load(own.drift.load(Relaxed)).as_f64() } else { 0.0 }
    };
    let outstanding = |core: usize| own(core)[0].outstanding.load(Relaxed);
    let cores = 0..layout.cores.len();
    let presence = layout.pools[pool].presence + 4 * member;
    let presence = region.slice::<AtomicU32>(presence, 1)[0].load(Relaxed);
    MemberSnapshot {
        worker: (worker >> 32) as u16,
        server: Ipv4Addr::from_bits(server),
        presence: Presence::from_word(presence),
        load: Load(reported as u32).as_f64(),
        drift: cores.clone().map(drift).collect(),
        outstanding: i64::from(cores.map(outstanding).fold(0, u32::wrapping_add) as i32),
        reports: (reported >> 32) as u32,
    }
}

fn read_core(region: &Arc<Region>, layout: &Layout, core: usize) -> CoreSnapshot {
    let counters = Counters::new(region.slice(layout.cores[core].counters, counters::COUNT));
    CoreSnapshot {
        counters: Counter::ALL.iter().map(|&c| (c.name(), counters.read(c))).collect(),
        drops: DropReason::ALL
            .iter()
            .map(|&reason| (reason.name(), counters.dropped(reason)))
            .filter(|&(_, count)| count > 0)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Member;

    fn spec() -> Spec {
        let workers = (0..4).map(|id| WorkerSpec { id: 10 + id, server: id / 2 }).collect();
        Spec {
            node: 3,
            cores: 2,
            ports: 1,
            servers: vec![0x0A00_020B, 0x0A00_020C],
            pools: vec![PoolSpec { id: 7, policy: "horus".into(), workers }],
            ticks_hz: 1_000_000_000,
            seed: 42,
            ..Spec::default()
        }
    }

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
        view.set_presence(Member(2), Presence::Registered);
        view.note_queued(6);
        table.counters(1).add(Counter::Scheduled, 2);
        table.counters(0).drop(DropReason::Runt, 1);
        let snapshot = Snapshot::open(&path).unwrap();
        assert_eq!((snapshot.node, snapshot.seed, snapshot.running), (3, 42, true));
        let pool = &snapshot.pools[0];
        assert_eq!((pool.id, pool.policy.as_str()), (7, "horus"));
        assert_eq!((&pool.idle[..], &pool.queued[..]), (&[vec![], vec![13]][..], &[0, 6][..]));
        let member = &pool.members[2];
        assert_eq!((member.worker, member.server), (12, Ipv4Addr::new(10, 0, 2, 12)));
        assert_eq!(member.presence, Presence::Registered);
        assert_eq!(pool.members[1].presence, Presence::Configured);
        assert_eq!((member.load, &member.drift[..], member.outstanding), (5.0, &[0.0, 1.0][..], 2));
        assert_eq!(snapshot.cores[1].counters["scheduled"], 2);
        assert_eq!(snapshot.cores[0].drops["runt"], 1);
        drop(table);
        assert!(!Snapshot::open(&path).unwrap().running);
    }

    #[test]
    fn the_agent_on_a_leafs_core_is_read_with_the_leaf() {
        let (_folder, path, _table) = created();
        assert!(Snapshot::open(&path).unwrap().agent.is_none());
        let beside = agents_file(&path);
        let agent = Table::create(&beside, &Spec { role: Role::Agent, ..spec() }).unwrap();
        agent.counters(0).add(Counter::Replies, 5);
        let both = Snapshot::open(&path).unwrap();
        let read = both.agent.expect("its process is the leaf's");
        assert_eq!((both.role, read.role), (Role::Leaf, Role::Agent));
        assert_eq!(read.cores[0].counters["replies"], 5);
        // One that an earlier process left is not this leaf's.
        agent.header[word::PID].fetch_add(1, Relaxed);
        assert!(Snapshot::open(&path).unwrap().agent.is_none());
    }

    #[test]
    fn a_second_owner_is_refused_and_a_dead_ones_file_replaced() {
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
        assert_eq!(std::fs::read_dir(_folder.path()).unwrap().count(), 1, "no scratch file stays");
        drop(table);
    }

    #[test]
    fn what_is_not_there_or_has_no_folder_is_told_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Snapshot::open(&folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("there is none; start"), "{missing}");
        let path = folder.path().join("none").join("state");
        let error = Table::create(&path, &spec()).unwrap_err().to_string();
        assert!(error.contains("No such file") && error.contains("make its folder"), "{error}");
    }

    #[test]
    fn what_is_no_state_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "the only copy of something").unwrap();
        assert!(matches!(Table::create(&path, &spec()), Err(StateError::Foreign { .. })));
        assert!(matches!(
            Snapshot::open(&path),
            Err(StateError::Foreign { .. }) | Err(StateError::Damaged { .. })
        ));
        assert_eq!(std::fs::read(&path).unwrap(), b"the only copy of something");
    }

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

    #[test]
    fn other_versions_and_damaged_headers_are_refused() {
        let (_folder, path, table) = created();
        drop(table);
        let whole = std::fs::read(&path).unwrap();
        let with = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] ^= byte;
            std::fs::write(&path, &bytes).unwrap();
            Snapshot::open(&path)
        };
        assert!(matches!(with(8 * word::VERSION, 0x01), Err(StateError::Version { found: 4, .. })));
        for at in [
            word::LEN,
            word::CHECK,
            word::CORES,
            word::POOLS,
            word::SERVERS,
            word::PORTS,
            word::PINNED,
        ] {
            for byte in 0..8 {
                assert!(with(8 * at + byte, 0x41).is_err(), "header word {at}");
            }
        }
        assert!(with(Layout::POOL_ENTRIES + 8, 1).is_err(), "members of a pool");
    }
}
