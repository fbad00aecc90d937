//! Configuration file of an agent, which hands tasks to the worker processes of a host.
//!
//! A *region* is memory that the agent shares with its workers. It has a *channel* for each worker: a ring with `slots`
//! tasks of at most `payload` bytes, and one for replies. A proof is a tag made with a pool's key; it authenticates a
//! worker's message.
//!
//! `FaultCollector` collects faults, so that one check finds all. `at` is a value of the file with its place in the
//! text.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::address::{self, UNSPECIFIED, is_edge, is_unicast, reaches};
use super::control::ControlConfig;
use super::controller::{self, FollowConfig};
use super::cosched::{self, Job};
use super::fault::ConfigFault;
use super::faults::{self, ConfigError, FaultCollector, UniqueKeys, quoted, state, state_group};
use super::peers::{self, PeersConfig};
use super::port::PortConfig;
use super::raw_agent::{PollMode, ReplyPath};
use super::read::{File, Table};
use super::settings::Settings;
use super::{control, ids, port, raw, raw_agent};
use wedjat_core::limits::{AGENT_LEAVES_MAX, POOLS_MAX, PORTS_MAX, SPEEDS, WORKER_ID_MAX};
use wedjat_core::policy::PolicySpec;
use wedjat_core::ring::layout::{CHANNELS_MAX, SLOTS_MAX};
use wedjat_core::ring::{RegionShape, WorkerIdentity, region};
use wedjat_core::stage::PortAddress;
use wedjat_core::state::files;
use wedjat_core::state::table::Limits;
use wedjat_core::wire::auth::{self, Key};
use wedjat_core::wire::ether::Mac;
use wedjat_core::wire::peer::VIA_LEN;
use wedjat_core::wire::task::{EXTENSION_LEN, LEN};
use wedjat_core::wire::{ipv4, ipv6};

use crate::state::{FixedSettings, Pool};

/// Maximum size of a task in bytes over IPv4. Its reply, with an extended header, fits into one Ethernet frame:
/// 1500 bytes without the headers of IPv4 (20) and UDP (8), the task header and its extension.
pub const PAYLOAD_MAX: usize = 1500 - 20 - 8 - LEN - EXTENSION_LEN;
/// Additional bytes of an IPv6 header compared to IPv4.
const V6_HEADER_EXTRA: usize = ipv6::LEN - ipv4::LEN;
/// Default maximum number of pools at run time, unless the file names more.
const POOLS: usize = 8;
/// Default room for workers beyond the named ones. Each worker takes memory for its ring.
const WORKERS_SPARE: usize = 8;
/// Default number of slots in a worker's ring.
const SLOTS: usize = 64;

/// Checked configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Path of the file.
    pub path: PathBuf,
    /// Text of the file, for a run's manifest.
    pub text: String,
    /// Workers, and the region that they attach to.
    pub host: HostConfig,
    /// CPU of the dispatcher core.
    pub core: usize,
    /// Id in the state file.
    pub id: u16,
    /// UDP port of tasks.
    pub udp_port: u16,
    /// State file; `None` for process memory.
    pub state: Option<PathBuf>,
    /// Group that may read the state file besides its owner.
    pub state_group: Option<u32>,
    /// Seed of all random streams; `None` to choose one at the start.
    pub seed: Option<u64>,
    /// Total number of packet buffers.
    pub mbufs: u32,
    /// Behaviour of the core without packets.
    pub poll: PollMode,
    /// Sender of replies of workers that are threads.
    pub sends: ReplyPath,
    /// Leaves to register with.
    pub leaves: Vec<LeafAddress>,
    /// `[peers]`: the rack without a leaf to which the agent belongs.
    pub peers: Option<PeersConfig>,
    /// `[[port]]`.
    pub ports: Vec<PortConfig>,
    /// `[control]`.
    pub control: ControlConfig,
    /// `[controller]`: the controller that it follows.
    pub controller: Option<FollowConfig>,
    /// `[cosched]`: batch jobs beside its workers.
    pub jobs: Vec<Job>,
    /// Values of all keys that can't change while the node runs.
    pub settings: Settings,
    /// Settings that are allowed and are probably mistakes, in order of lines. `allowed` names a better
    /// value.
    pub(super) warnings: Vec<ConfigFault>,
}

impl AgentConfig {
    /// Returns the address of each port. `macs` are the devices' MAC addresses.
    pub fn addresses(
        &self,
        macs: impl IntoIterator<Item = Mac>,
    ) -> impl Iterator<Item = PortAddress> {
        self.ports.iter().zip(macs).map(|(port, mac)| port.address(mac))
    }
}

/// Workers of a host and the region that they attach to.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Name of the region, by which workers find it.
    pub name: String,
    /// Address of the host: that of the agent's first port. On a leaf's core, the agent's address on its link to the
    /// leaf.
    pub ip: IpAddr,
    /// Number of slots in each worker's ring.
    pub slots: usize,
    /// Maximum size of a task or reply in bytes.
    pub payload: usize,
    /// Maximum size of a task or reply in bytes, without a proof, the tag that authenticates a worker's message. A pool
    /// can get a key at run time only if a reply of `payload` bytes leaves room for a proof below this maximum.
    pub payload_max: usize,
    /// Milliseconds after which the agent excludes a worker that has tasks and answers none; 0 for never.
    pub worker_timeout_ms: u64,
    /// `[[pool]]`, or `[[agent.pool]]` in a leaf's file, with their ids.
    pub pools: Vec<(u16, Pool)>,
    /// Workers in the order of the pools, each with its relative speed. Each has a core of its own.
    pub workers: Vec<(WorkerIdentity, f64)>,
    /// Maximum numbers at run time. Workers count over all pools.
    pub limits: Limits,
}

impl HostConfig {
    /// Returns all workers in the order of the pools.
    #[must_use]
    pub fn identities(&self) -> Vec<WorkerIdentity> {
        self.workers.iter().map(|(worker, _)| *worker).collect()
    }

    /// Returns the size of the region that workers attach to.
    #[must_use]
    pub fn shape(&self) -> RegionShape {
        let channels = self.limits.workers.max(self.workers.len());
        RegionShape { channels, slots: self.slots, payload: self.payload }
    }
}

/// Address of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafAddress {
    /// IP address.
    pub ip: IpAddr,
    /// MAC address; `None` to find it by ARP or neighbour discovery.
    pub mac: Option<Mac>,
    /// Index of the port that leads to the leaf.
    pub port: usize,
}

impl AgentConfig {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// If the file cannot be read, or has faults. The error holds all of them; it holds faults of values only if all
    /// keys and types are right.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(path, &faults::read(path)?)
    }

    /// Returns true if the file at `path` is an agent's: it has a table `agent` and no table `leaf`. It may have
    /// `[[leaf]]`, a list of tables.
    #[must_use]
    pub fn is_agents(path: &Path) -> bool {
        is_agents(&files::read_text(path).unwrap_or_default())
    }

    /// Checks `text`. `path` is the file's name in errors and warnings, and the file that a reload of the node reads.
    ///
    /// # Errors
    /// If the text has faults. The error holds all of them; it holds faults of values only if all keys and types are
    /// right.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let refuse = |faults| ConfigError { path: path.to_owned(), faults };
        // An agent's file may have the list `[[leaf]]`, but no table `[leaf]`.
        let other_role = text.parse::<toml::Table>().ok().and_then(|table| {
            let is_there = |name: &str| table.get(name).is_some_and(toml::Value::is_table);
            ["leaf", "spine"].into_iter().find(|name| is_there(name))
        });
        if let Some(role) = other_role {
            let allowed = format!("an agent's; `wedjat {role}` runs this one");
            return Err(refuse(vec![ConfigFault::of_file(&format!("a {role}'s file"), &allowed)]));
        }
        let file = File::read("agent", text).map_err(refuse)?;
        let raw = raw_agent::File::of(&file);
        let mut faults = FaultCollector::new(file, text);
        let config = agent(&mut faults, &raw, path, text);
        let (warnings, settings) = faults.none_or_all().map_err(refuse)?;
        Ok(AgentConfig { warnings, settings, ..config })
    }
}

/// Returns true if the text is an agent's file and not a leaf's, which may have a table `agent`, too.
pub(super) fn is_agents(text: &str) -> bool {
    let table = text.parse::<toml::Table>();
    let is_leafs = |table: &toml::Table| table.get("leaf").is_some_and(toml::Value::is_table);
    table.is_ok_and(|table| table.contains_key("agent") && !is_leafs(&table))
}

/// Returns the checked values of an agent's file, without `settings` and `warnings`.
fn agent(
    faults: &mut FaultCollector,
    raw: &raw_agent::File,
    path: &Path,
    text: &str,
) -> AgentConfig {
    let (entry, table) = (&raw.agent, raw.agent.table);
    let mut ports = ports(faults, &raw.port);
    // A longer list is already a fault. The checks below look at all ports for each leaf.
    ports.truncate(PORTS_MAX);
    let settings = HostSettings {
        table,
        name: &entry.name,
        pools: &raw.pool,
        key: "pool",
        forwards: raw.peers.is_some(),
        ip: ports.first().map_or(UNSPECIFIED, |port| port.ip),
        is_v6: ports.iter().any(|port| port.ip.is_ipv6()),
    };
    let (host, leaves) = (settings.check(faults), leaves(faults, raw, &ports));
    let peers = peers::peers(faults, raw, &ports);
    let sends = match peers {
        // Replies of tasks from peers leave by the agent's core.
        Some(_) => ReplyPath::Never,
        None => reply_path(faults, raw, &leaves),
    };
    let state = state(faults, table);
    faults.settings.set("agent.worker_sends", sends.name());
    AgentConfig {
        path: path.to_owned(),
        text: text.to_owned(),
        host,
        core: faults.count(table, "core").unwrap_or_default(),
        id: faults.number(table, "id"),
        udp_port: faults.number(table, "udp_port"),
        state_group: state_group(faults, table, state.is_some()),
        state,
        seed: faults.count(table, "seed"),
        mbufs: faults.number(table, "mbufs"),
        poll: faults.word(table, "poll"),
        sends,
        leaves,
        peers,
        ports,
        control: control::control(faults),
        controller: controller::follow(faults, raw.controller.as_ref()),
        jobs: cosched::jobs(faults, raw.cosched.as_ref(), entry.name.get_ref()),
        settings: Settings::default(),
        warnings: Vec::new(),
    }
}

/// Checks the workers of a leaf's own host. `ip` is the address of the agent on the leaf's core.
pub(super) fn local(
    faults: &mut FaultCollector,
    raw: &raw::LocalAgentSection,
    ip: IpAddr,
) -> HostConfig {
    let settings = HostSettings {
        table: raw.table,
        name: &raw.name,
        pools: &raw.pool,
        key: "agent.pool",
        forwards: false,
        ip,
        is_v6: ip.is_ipv6(),
    };
    settings.check(faults)
}

/// Settings of a host's workers as the file has them: `[agent]` of an agent's file, or of a leaf's.
struct HostSettings<'a> {
    /// `[agent]`.
    table: Table,
    name: &'a Spanned<String>,
    pools: &'a [raw::Pool],
    /// Name of the pools' tables: `pool`, or `agent.pool` in a leaf's file. Tells the checks of a pool which file has
    /// it.
    key: &'a str,
    /// True if the agent and its peers forward tasks to each other, with additional bytes in each packet.
    forwards: bool,
    /// Address of the host.
    ip: IpAddr,
    /// True if tasks may arrive over IPv6, whose longer header leaves less room for them.
    is_v6: bool,
}

impl HostSettings<'_> {
    /// Checks the settings and the pools.
    fn check(&self, faults: &mut FaultCollector) -> HostConfig {
        // A Unix socket has the name's path, so its length is limited.
        let name = self.name.get_ref();
        let is_long = region::path_of(name).as_os_str().len() > region::PATH_MAX;
        if name.is_empty() || is_long || name.chars().any(char::is_whitespace) {
            let allowed = "a name such as host1, or a path of at most 107 bytes";
            faults.note(self.name, "agent.name", quoted(self.name), allowed);
        }
        let pools = self.pools.iter().filter_map(|entry| pool_of(faults, entry, self.key));
        let pools: Vec<_> = pools.collect();
        let mut seen = UniqueKeys::new();
        let workers = self.pools.iter().flat_map(|pool| workers(faults, pool, self.key, &mut seen));
        let workers: Vec<_> = workers.collect();
        let slots = faults.number_in(self.table, "slots", SLOTS, (2, SLOTS_MAX));
        if let Some(at) = faults.at(self.table, "slots").filter(|_| !slots.is_power_of_two()) {
            faults.note(&at, "agent.slots", slots, "a power of two");
        }
        // A proof makes a reply longer, and a trailer makes a forwarded task longer.
        let proof =
            if pools.iter().any(|(_, pool)| pool.fixed.key.is_some()) { auth::LEN } else { 0 };
        let payload_max = PAYLOAD_MAX - if self.is_v6 { V6_HEADER_EXTRA } else { 0 };
        let most = payload_max - proof - if self.forwards { VIA_LEN } else { 0 };
        let payload = faults.number_in(self.table, "payload", most, (1, most));
        let named = RegionShape { channels: workers.len(), slots, payload };
        let limits = self.limits(faults, pools.len(), named);
        let shape = RegionShape { channels: limits.workers, slots, payload };
        pools_together(faults, self.pools, self.key, &shape);
        bounds(faults, self.pools, self.key, slots);
        let worker_timeout_ms = faults.number(self.table, "worker_timeout_ms");
        faults.settings.set("agent.payload", payload);
        let (name, ip) = (name.clone(), self.ip);
        HostConfig {
            name,
            ip,
            slots,
            payload,
            payload_max,
            worker_timeout_ms,
            pools,
            workers,
            limits,
        }
    }

    /// Returns the limits. By default they leave room for some more workers than the file names, if their
    /// rings fit.
    fn limits(&self, faults: &mut FaultCollector, pools: usize, named: RegionShape) -> Limits {
        // Least numbers of pools and workers, which the file names. Then, for each, the default with the permitted
        // range.
        let least = (pools.max(1), named.channels.max(1));
        let pools = (least.0.max(POOLS), (least.0, POOLS_MAX));
        let more = RegionShape { channels: named.channels + WORKERS_SPARE, ..named };
        let workers = if more.is_possible() { more.channels } else { least.1 };
        let workers = (workers, (least.1, CHANNELS_MAX.max(least.1)));
        let pools = faults.number_in(self.table, "pools_max", pools.0, pools.1);
        let workers = faults.number_in(self.table, "workers_max", workers.0, workers.1);
        // Each pool has places for all workers. More workers than channels are a fault already.
        let places = workers.min(CHANNELS_MAX);
        faults.check_places(self.table, pools, places, "a smaller `workers_max`");
        Limits { pools, servers: 1, workers } // one server: this host
    }
}

/// Returns the leaves with which workers register: one from `[agent]`, or several from `[[leaf]]`.
fn leaves(
    faults: &mut FaultCollector,
    raw: &raw_agent::File,
    ports: &[PortConfig],
) -> Vec<LeafAddress> {
    let entry = &raw.agent;
    if let (None, Some(at)) = (&entry.leaf, &entry.leaf_mac) {
        faults.note(at, "agent.leaf_mac", quoted(at), "`leaf` beside it");
    }
    if let (Some(at), false) = (&entry.leaf, raw.leaf.is_empty()) {
        let allowed = "`leaf` for the only one, or a [[leaf]] for each of several";
        faults.note(at, "agent.leaf", "`leaf` beside [[leaf]]", allowed);
    }
    if let Some(at) = raw.leaf.get(AGENT_LEAVES_MAX) {
        let allowed = format!("at most {AGENT_LEAVES_MAX}");
        faults.note(&at.ip, "leaf", format!("{} leaves", raw.leaf.len()), &allowed);
    }
    let only = entry.leaf.iter().map(|ip| (ip, &entry.leaf_mac, ["agent.leaf", "agent.leaf_mac"]));
    let several = raw.leaf.iter().map(|leaf| (&leaf.ip, &leaf.mac, ["leaf.ip", "leaf.mac"]));
    let mut leaves = Vec::<LeafAddress>::new();
    let mut addresses = UniqueKeys::new();
    for (at, mac, keys) in only.chain(several) {
        let mac = faults.mac(mac.as_ref(), keys[1]);
        let Some(leaf) = leaf(faults, (at, keys[0]), mac, ports) else { continue };
        if addresses.is_again(leaf.ip) {
            faults.note(at, keys[0], quoted(at), "each address once");
        }
        leaves.push(leaf);
    }
    leaves
}

/// Checks a leaf's address, and finds the port that leads to it. Returns `None` if there is no such port.
fn leaf(
    faults: &mut FaultCollector,
    (at, key): (&Spanned<String>, &str),
    mac: Option<Mac>,
    ports: &[PortConfig],
) -> Option<LeafAddress> {
    let allowed = "a host's address such as 10.0.2.1 or fd00:2::1";
    let ip = faults.host(at, key, is_unicast, allowed);
    let is_own = ports.iter().any(|port| port.ip == ip);
    let port = ports.iter().position(|port| reaches(port.ip, port.prefix, ip) && !is_own);
    if port.is_none() && !ip.is_unspecified() {
        faults.note(at, key, quoted(at), "another host in the network of a [[port]]");
    }
    let PortConfig { ip: port_ip, prefix, .. } = ports[port?];
    if is_edge(ip, prefix) {
        faults.note(at, key, quoted(at), &address::allowed_hosts(port_ip, prefix));
    }
    Some(LeafAddress { ip, mac, port: port? })
}

/// Returns the sender of replies. If workers report their queues in messages, it is the agent's core, because
/// the core must see each reply.
fn reply_path(
    faults: &mut FaultCollector,
    raw: &raw_agent::File,
    leaves: &[LeafAddress],
) -> ReplyPath {
    let configured = faults.word(raw.agent.table, "worker_sends");
    let Some(at) = raw.pool.iter().find_map(|pool| pool.leaf_policy.as_ref()) else {
        return configured;
    };
    if leaves.is_empty() {
        let allowed = "none without a leaf: `leaf`, or [[leaf]] for each of several";
        faults.note(at, "pool.leaf_policy", quoted(at), allowed);
    }
    if configured == ReplyPath::Must {
        let found = "a `leaf_policy` with `worker_sends = \"must\"`";
        faults.note(
            at,
            "pool.leaf_policy",
            found,
            "one of them: its replies leave by the agent's core",
        );
    }
    ReplyPath::Never
}

/// Returns the checked ports.
fn ports(faults: &mut FaultCollector, raw: &[raw::Port]) -> Vec<PortConfig> {
    if raw.is_empty() {
        faults.note_in_file("port", "no [[port]]", "at least one");
    }
    port::check_together(faults, raw);
    raw.iter().map(|port| PortConfig::read(faults, port)).collect()
}

/// Returns the checked pool; `None` if its policy is invalid. `key` is the name of the pools' tables.
fn pool_of(faults: &mut FaultCollector, raw: &raw::Pool, key: &str) -> Option<(u16, Pool)> {
    let key = |last: &str| format!("{key}.{last}");
    let policy = faults.policy(&raw.policy, &key("policy"))?;
    unused(faults, raw, &policy, &key);
    let queue = faults.queue(raw.table);
    let fixed = FixedSettings {
        key: key_of(faults, raw, key("key_file").as_str()),
        leaf_policy: leaf_policy(faults, raw, key("leaf_policy").as_str()),
        ..FixedSettings::default()
    };
    Some((*raw.id.get_ref(), Pool { fixed, ..Pool::new(policy, queue) }))
}

/// Returns the workers of a pool with their speeds. `key` is the name of the pools' tables, and `seen` has the workers
/// of earlier pools.
fn workers(
    faults: &mut FaultCollector,
    raw: &raw::Pool,
    key: &str,
    seen: &mut UniqueKeys<u16>,
) -> Vec<(WorkerIdentity, f64)> {
    let key = |last: &str| format!("{key}.{last}");
    let Some(at) = &raw.workers else { return Vec::new() };
    let (pool, workers) = (*raw.id.get_ref(), faults.workers(at, &key("workers")));
    if let Some(duplicate) = workers.iter().find(|id| seen.is_again(**id)) {
        let found = format!("worker {duplicate} again");
        faults.note(at, &key("workers"), found, "each worker id once");
    }
    let speeds = speeds(faults, raw, &workers, &key("speeds"));
    let identities = workers.into_iter().map(|id| WorkerIdentity { id, pool });
    identities.zip(speeds).collect()
}

/// Warns of keys without effect under this policy. In a leaf's file, the leaf also uses the speeds. `overflow` has an
/// effect under each policy: it also applies to a task whose worker has a full ring.
fn unused(
    faults: &mut FaultCollector,
    raw: &raw::Pool,
    policy: &PolicySpec,
    key: &dyn Fn(&str) -> String,
) {
    if !policy.entry().holds() {
        let reason = format!("under {policy} no task waits in a queue for all workers");
        let better = "none, or a policy that queues tasks (see `wedjat policies`)";
        let queue = faults.at(raw.table, "queue");
        faults.unused(queue.as_ref(), &key("queue"), &reason, better);
    }
    if !policy.entry().by_rate && key("speeds") == "pool.speeds" {
        let reason = format!("{policy} does not decide by speeds");
        let better = "none, or a policy that decides by rates (see `wedjat policies`)";
        faults.unused(raw.speeds.as_ref(), "pool.speeds", &reason, better);
    }
}

/// Returns a pool's key. Workers in the leaf's own process need no key.
fn key_of(faults: &mut FaultCollector, raw: &raw::Pool, key: &str) -> Option<Key> {
    let at = raw.key_file.as_ref()?;
    if key != "pool.key_file" {
        let allowed =
            "none: messages inside a process need no proof; [[pool]] has the other servers' key";
        faults.note(at, key, quoted(at), allowed);
        return None;
    }
    faults.key(Some(at), key)
}

/// Returns the leaves' policy if its members send load reports without being probed. Its rule determines when the agent
/// sends the reports of its workers. A policy that probes needs no rule: the agent answers each probe.
fn leaf_policy(faults: &mut FaultCollector, raw: &raw::Pool, key: &str) -> Option<PolicySpec> {
    let at = raw.leaf_policy.as_ref()?;
    if key != "pool.leaf_policy" {
        let allowed = "none: the leaf on this core sees each completed task";
        faults.note(at, key, quoted(at), allowed);
        return None;
    }
    let policy = faults.policy(at, key)?;
    if !policy.takes_messages() {
        let found = format!("{}, whose members neither send reports nor are probed", quoted(at));
        let allowed = "none, or the policy of leaves whose pool has `reports = \"messages\"`";
        faults.note(at, key, found, allowed);
    }
    let policy = Some(policy).filter(PolicySpec::uses_member_reports);
    faults.record(at, policy.as_ref());
    policy
}

/// Checks that each policy's bound fits into a worker's ring.
fn bounds(faults: &mut FaultCollector, pools: &[raw::Pool], key: &str, slots: usize) {
    for pool in pools {
        let policy = pool.policy.get_ref().parse::<PolicySpec>().ok();
        if policy.and_then(|policy| policy.bound()).is_some_and(|most| most as usize > slots) {
            let allowed = format!("k of at most {slots}, the `slots` of each worker's ring");
            faults.note(&pool.policy, &format!("{key}.policy"), quoted(&pool.policy), &allowed);
        }
    }
}

/// Returns the workers' speeds in the order of `workers`. The default is 1. The file has a table from lists of ids to
/// speeds.
fn speeds(faults: &mut FaultCollector, raw: &raw::Pool, workers: &[u16], key: &str) -> Vec<f64> {
    let mut speeds = vec![1.0; workers.len()];
    let Some(at) = &raw.speeds else {
        return speeds;
    };
    let (least, most) = SPEEDS;
    let mut is_set = vec![false; workers.len()];
    let places: HashMap<_, _> =
        workers.iter().enumerate().map(|(place, id)| (*id, place)).collect();
    let mut lists = ids::Lists::default();
    for (ids, &speed) in at.get_ref() {
        if !(least <= speed && speed <= most) {
            faults.note(at, key, speed, &format!("{least} to {most}"));
        }
        let ids_in_key = lists.parse(ids, 0..=WORKER_ID_MAX).unwrap_or_default();
        let places: Vec<_> = ids_in_key.iter().filter_map(|id| places.get(id).copied()).collect();
        if places.is_empty() || places.len() < ids_in_key.len() {
            let allowed = "ids of the pool's workers, as in { \"0-3,8\" = 2.0 }";
            faults.note(at, key, format!("`{ids}`"), allowed);
        }
        if let Some(place) = places.iter().find(|&&place| is_set[place]) {
            let found = format!("worker {} twice", workers[*place]);
            faults.note(at, key, found, "each worker once");
        }
        for place in places {
            (speeds[place], is_set[place]) = (speed, true);
        }
    }
    speeds
}

/// Checks the pools together: their ids, and the size of the region for `shape`. `key` is the name of the pools'
/// tables.
fn pools_together(
    faults: &mut FaultCollector,
    pools: &[raw::Pool],
    key: &str,
    shape: &RegionShape,
) {
    if pools.is_empty() {
        faults.note_in_file(key, &format!("no [[{key}]]"), "at least one");
    }
    faults.pool_ids(pools.iter().map(|pool| &pool.id), &format!("{key}.id"));
    if shape.channels > CHANNELS_MAX {
        let found = format!("{} workers", shape.channels);
        faults.note_in_file(&format!("{key}.workers"), &found, &format!("at most {CHANNELS_MAX}"));
    } else if shape.channels > 0 && shape.slots.is_power_of_two() && !shape.is_possible() {
        let found = format!("{} bytes", shape.channels * shape.slots * shape.stride());
        let allowed = "at most 4 GiB for workers x slots x payload";
        faults.note_in_file("agent.slots", &found, allowed);
    }
}

#[cfg(test)]
mod tests {
    use wedjat_core::policy::Overflow;

    use super::*;
    use crate::config::v4_bits;

    /// File without faults. Its line 1 is empty, so `[agent]` is line 2.
    const GOOD: &str = r#"
[agent]
name = "host1"
core = 1
leaf = "10.0.2.1"
slots = 32

[[port]]
device = "net_memif0"
ip = "10.0.2.11/24"

[[pool]]
id = 1
policy = "cfcfs"
workers = "0-3"

[[pool]]
id = 2
policy = "jbsq(k=3)"
workers = "8"
overflow = "refuse"
"#;

    /// Parses an agent's file.
    fn parse(text: &str) -> Result<AgentConfig, ConfigError> {
        AgentConfig::parse(Path::new("agent.toml"), text)
    }

    #[test]
    fn the_reference_is_read() {
        let config = parse(GOOD).unwrap();
        assert_eq!((&config.host.name[..], config.core, config.host.slots), ("host1", 1, 32));
        assert_eq!((config.udp_port, config.host.payload), (1234, PAYLOAD_MAX));
        let leaf = config.leaves[0];
        // UDP port, payload, sender of replies and queue have their defaults.
        assert_eq!(config.sends, ReplyPath::Try);
        assert_eq!((leaf.ip, leaf.port, leaf.mac), (IpAddr::from([10, 0, 2, 1]), 0, None));
        let ids = |pool| config.host.workers.iter().filter(move |(one, _)| one.pool == pool);
        assert_eq!(ids(1).map(|(one, _)| one.id).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(
            (config.host.pools[1].1.queue.tasks, config.host.pools[1].1.queue.overflow),
            (4096, Overflow::Refuse)
        );
    }

    /// Returns the text of a file with IPv6 addresses in place of those of [`GOOD`] and [`LEAVES`].
    fn over_ipv6(text: &str) -> String {
        text.replace("10.0.2.11/24", "fd00:2::b/64").replace("10.0.2.", "fd00:2::")
    }

    // promise: input.2
    #[test]
    fn ipv6_is_read_and_families_must_fit_together() {
        let good = over_ipv6(GOOD);
        let config = parse(&good).unwrap();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!((config.ports[0].ip, config.ports[0].prefix), (address("fd00:2::b"), 64));
        assert_eq!((config.leaves[0].ip, config.leaves[0].port), (address("fd00:2::1"), 0));
        assert_eq!(config.host.payload, PAYLOAD_MAX - 20, "an IPv6 header has 20 bytes more");
        assert_eq!(config.node().warnings(), [""; 0]);
        let several = over_ipv6(&(GOOD.replacen("leaf = \"10.0.2.1\"\n", "", 1) + LEAVES));
        assert_eq!(parse(&several).unwrap().leaves[1].ip, address("fd00:2::2"));
        // One port of each family.
        let other = "[[port]]\ndevice = \"net_memif1\"\nip = \"10.0.3.11/24\"\n";
        let two_families =
            parse(&(several.clone() + other + "[[leaf]]\nip = \"10.0.3.1\"\n")).unwrap();
        let ports: Vec<_> = two_families.leaves.iter().map(|leaf| leaf.port).collect();
        assert_eq!(ports, [0, 0, 1]);
        let follows = "[controller]\naddresses = [\"unix:/run/fabric.ctl\"]\n";
        let peers = "[peers]\nnodes = [\"10.0.2.11\", \"10.0.2.12\"]\n";
        assert!(
            parse(&format!("{good}{follows}")).is_ok(),
            "controllers have nodes of both families"
        );
        for (text, parts) in [
            (good.replace("fd00:2::b/64", "fe80::b/64"), ["`port.ip`", "fd00:1::1/64"]),
            (good.replace("fd00:2::b/64", "fd00:2::/64"), ["`port.ip`", "with its prefix"]),
            (
                good.replace("fd00:2::b/64", "10.0.2.11/24"),
                ["`agent.leaf`", "network of a [[port]]"],
            ),
            (
                good.replace("\"fd00:2::1\"", "\"10.0.2.1\""),
                ["`agent.leaf`", "network of a [[port]]"],
            ),
            (good.replace("\"fd00:2::1\"", "\"fe80::1\""), ["`agent.leaf`", "a host's address"]),
            (
                good.replace("\"fd00:2::1\"", "\"fd00:2::\""),
                ["`agent.leaf`", "not the network's first"],
            ),
            // 1445 bytes over IPv4, less the 20 more bytes of an IPv6 header.
            (good.replace("slots = 32", "payload = 1426"), ["`agent.payload`", "1 to 1425"]),
            (format!("{good}{peers}"), ["`peers.nodes`", "network of the [[port]]"]),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
        }
    }

    #[test]
    fn the_example_is_right() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/agent.toml");
        let config = AgentConfig::load(&path).unwrap_or_else(|error| panic!("{error}"));
        assert!(!config.host.pools.is_empty());
    }

    // promise: input.2
    #[test]
    fn keys_that_change_nothing_are_warned_of() {
        assert_eq!(parse(GOOD).unwrap().node().warnings(), [""; 0]);
        let lines = "policy = \"jsq\"\nqueue = 9\nspeeds = { 0 = 2.0 }";
        let warnings =
            parse(&GOOD.replacen("policy = \"cfcfs\"", lines, 1)).unwrap().node().warnings();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("agent.toml:15: `pool.queue`: found a key"), "{warnings:?}");
        assert!(warnings[1].contains("`pool.speeds`"), "{warnings:?}");
        let group = GOOD.replacen("slots = 32", "state_group = \"0\"", 1);
        assert!(parse(&group).unwrap().node().warnings()[0].contains("agent.state_group"));
    }

    #[test]
    fn there_is_room_for_more_than_is_named() {
        let limits = |line: &str| {
            parse(&GOOD.replacen("slots = 32", line, 1)).map(|config| config.host.limits)
        };
        let limits_of = |pools, workers| Limits { pools, servers: 1, workers };
        // By default 8 pools, and 8 more workers than the 5 named.
        assert_eq!(limits("slots = 32").unwrap(), limits_of(8, 5 + 8));
        assert_eq!(limits("pools_max = 2\nworkers_max = 5").unwrap(), limits_of(2, 5));
        let config = parse(GOOD).unwrap();
        assert_eq!((config.host.shape().channels, config.host.identities().len()), (13, 5));
        // The file names 2 pools and 5 workers.
        for (line, allowed) in [("pools_max = 1", "2 to 1024"), ("workers_max = 4", "5 to 1024")] {
            let error = limits(line).unwrap_err().to_string();
            assert!(error.contains(allowed), "{error}");
        }
        // The state has 262136 places. Each of 1024 pools may have 255 of them.
        assert_eq!(limits("pools_max = 1024\nworkers_max = 255").unwrap(), limits_of(1024, 255));
        let error = limits("pools_max = 1024\nworkers_max = 256").unwrap_err().to_string();
        for part in ["`agent.pools_max`", "262144 in all", "262136", "`workers_max`"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        // Rings of the maximum size: no workers fit beyond the named ones. 16384 slots of 2944 bytes a worker let 89
        // workers fit into 4 GiB.
        let long = GOOD.replacen("slots = 32", "slots = 16384", 1);
        // The first pool has 4 workers, and the ids 8 to 90 are 83.
        let many = parse(&long.replace("\"8\"", "\"8-90\"")).unwrap().host;
        assert_eq!(many.limits.workers, 4 + 83);
        // The ids 8 to 99 are 92, and 96 workers do not fit.
        assert!(parse(&long.replace("\"8\"", "\"8-99\"")).is_err());
    }

    // promise: scheduling.5
    #[test]
    fn workers_have_speeds() {
        let speeds = "policy = \"sed\"\nspeeds = { \"0,2\" = 2, 3 = 0.5 }";
        let config = parse(&GOOD.replacen("policy = \"cfcfs\"", speeds, 1)).unwrap();
        let speeds: Vec<_> = config.host.workers.iter().map(|(_, speed)| *speed).collect();
        assert_eq!(speeds, [2.0, 1.0, 2.0, 0.5, 1.0]);
    }

    /// Two leaves in place of `leaf`.
    const LEAVES: &str =
        "\n[[leaf]]\nip = '10.0.2.1'\n[[leaf]]\nip = '10.0.2.2'\nmac = '02:00:00:00:00:02'\n";

    // promise: scheduling.6
    #[test]
    fn agent_may_register_with_several_leaves() {
        let policies = "policy = \"cfcfs\"\nleaf_policy = \"lsq-smart(eps=0.1)\"";
        let text = GOOD.replacen("policy = \"cfcfs\"", policies, 1);
        let several = text.replacen("leaf = \"10.0.2.1\"\n", "", 1) + LEAVES;
        assert!(is_agents(&several), "its leaves do not make it a leaf's");
        let config = parse(&several).unwrap();
        let leaves: Vec<_> = config
            .leaves
            .iter()
            .map(|leaf| (v4_bits(leaf.ip).unwrap() & 0xFF, leaf.port))
            .collect();
        assert_eq!(leaves, [(1, 0), (2, 0)]);
        assert_eq!(config.leaves[1].mac, Some(Mac([2, 0, 0, 0, 0, 2])));
        let policies = config.host.pools.iter().map(|(_, pool)| pool.fixed.leaf_policy.is_some());
        assert_eq!(
            (policies.collect::<Vec<_>>(), config.sends),
            (vec![true, false], ReplyPath::Never)
        );
        assert_eq!(parse(&text).unwrap().leaves.len(), 1, "one leaf will do");
        for (text, parts) in [
            (text.clone() + LEAVES, ["agent.leaf", "a [[leaf]] for each of several"]),
            (several.replace("10.0.2.2", "10.0.2.1"), ["leaf.ip", "each address once"]),
            (several.replace("10.0.2.2", "10.0.3.1"), ["leaf.ip", "network of a [[port]]"]),
            (several.replace("'02:", "'03:"), ["leaf.mac", "unicast"]),
            (text.replace("leaf = \"10.0.2.1\"\n", ""), ["pool.leaf_policy", "without a leaf"]),
            (text.replace("lsq-smart(eps=0.1)", "horus"), ["pool.leaf_policy", "`horus`"]),
            (text.replace("slots", "worker_sends = \"must\"\nslots"), ["pool.leaf_policy", "must"]),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
        }
    }

    #[test]
    fn pool_key_reserves_room_for_the_tag() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "ff".repeat(16)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
        let line = format!("id = 2\nkey_file = \"{}\"", path.display());
        let text = GOOD.replacen("id = 2", &line, 1);
        let config = parse(&text).unwrap();
        let keys = config.host.pools.iter().map(|(_, pool)| pool.fixed.key.is_some());
        assert_eq!(keys.collect::<Vec<_>>(), [false, true]);
        assert_eq!(config.host.payload, PAYLOAD_MAX - auth::LEN);
        let most = |payload| text.replacen("slots = 32", &format!("payload = {payload}"), 1);
        assert!(parse(&most(PAYLOAD_MAX - auth::LEN)).is_ok());
        // 1445 bytes without a proof, less 16 for one.
        let error = parse(&most(PAYLOAD_MAX)).unwrap_err().to_string();
        assert!(error.contains("agent.payload") && error.contains("1 to 1429"), "{error}");
    }

    // promise: input.2
    #[test]
    fn every_fault_names_place_and_allowed_values() {
        // Text of the file, its replacement, and parts of the error.
        let cases: [(&str, &str, &[&str]); 27] = [
            ("core = 1", "core = \"1\"", &["agent.toml:4", "agent.core", "a whole number"]),
            ("workers = \"8\"", "workers = \"\"", &["pool.workers", "found no ids"]),
            ("jbsq(k=3)", "jbsq(k=33)", &["pool.policy", "k=33", "at most 32", "slots"]),
            ("[agent]", "[leaf]\n[agent]", &["a leaf's file", "`wedjat leaf` runs"]),
            ("name = \"host1\"", "name = \"\"", &["agent.toml:3", "agent.name", "host1"]),
            // `/dev/shm/wedjat-` and 92 letters are 108 bytes.
            (
                "name = \"host1\"",
                &format!("name = \"{}\"", "h".repeat(92)),
                &["agent.name", "107 bytes"],
            ),
            ("core = 1", "core = 1\ncolour = 3", &["colour", "unknown key"]),
            ("slots = 32", "slots = 33", &["agent.slots", "found 33", "power of two"]),
            ("slots = 32", "slots = 1", &["agent.slots", "found 1", "2 to 16384"]),
            ("slots = 32", "payload = 9000", &["agent.payload", "found 9000", "1 to 1445"]),
            ("slots = 32", "leaf_mac = 'x'", &["agent.leaf_mac", "`x`", "unicast"]),
            (
                "leaf = \"10.0.2.1\"",
                "leaf = \"10.0.3.1\"",
                &["agent.leaf", "network of a [[port]]"],
            ),
            ("leaf = \"10.0.2.1\"", "leaf = \"10.0.2.11\"", &["agent.leaf", "another host"]),
            ("leaf = \"10.0.2.1\"", "leaf_mac = \"02:00:00:00:00:01\"", &["`leaf` beside it"]),
            ("ip = \"10.0.2.11/24\"", "ip = \"10.0.2.11\"", &["port.ip", "with its prefix"]),
            ("device = \"net_memif0\"", "device = \"\"", &["port.device", "nothing"]),
            ("policy = \"cfcfs\"", "policy = \"best\"", &["pool.policy", "wedjat policies"]),
            (
                "policy = \"cfcfs\"",
                "policy = \"auto(p99)\"",
                &["pool.policy", "only a pool of a leaf"],
            ),
            ("policy = \"cfcfs\"", "policy = \"horus-spine\"", &["pool.policy", "spine"]),
            ("workers = \"0-3\"", "workers = \"3-0\"", &["agent.toml:15", "pool.workers"]),
            ("workers = \"8\"", "workers = \"2\"", &["worker 2 again", "once"]),
            ("overflow", "speeds = { 8 = 0 }\noverflow", &["pool.speeds", "found 0", "1000"]),
            (
                "overflow",
                "speeds = { 9 = 2 }\noverflow",
                &["pool.speeds", "`9`", "the pool's workers"],
            ),
            (
                "overflow",
                "speeds = { x = 2 }\noverflow",
                &["pool.speeds", "`x`", "the pool's workers"],
            ),
            (
                "workers = \"8\"",
                "workers = \"8,9\"\nspeeds = { 8 = 2, \"8-9\" = 3 }",
                &["worker 8 twice"],
            ),
            ("id = 2", "id = 1", &["pool.id", "1 again"]),
            ("overflow = \"refuse\"", "overflow = \"lose\"", &["pool.overflow", "lose"]),
        ];
        for (old, new, expected) in cases {
            assert!(GOOD.contains(old), "{old}");
            let error = parse(&GOOD.replacen(old, new, 1)).unwrap_err().to_string();
            for part in expected {
                assert!(error.contains(part), "{new}: `{part}` is missing in\n{error}");
            }
        }
        // Addresses that no host can have, and the network's own and broadcast addresses, in each key.
        let (port, leaf) = ("10.0.2.11/24", "10.0.2.1\"");
        for (address, key) in [(port, "port.ip"), (leaf, "agent.leaf")] {
            for none in
                ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.9", "240.0.0.1", "255.255.255.255"]
            {
                // `address` has one of the two.
                let bad = address.replace("10.0.2.11", none).replace("10.0.2.1", none);
                let error = parse(&GOOD.replacen(address, &bad, 1)).unwrap_err();
                let found: Vec<_> = error.faults.iter().map(|fault| &fault.key[..]).collect();
                assert!(found.contains(&key), "{bad}: {error}");
                assert!(error.to_string().contains(none) && error.to_string().contains("a host's"));
            }
            for edge in ["10.0.2.0", "10.0.2.255"] {
                let bad = address.replace("10.0.2.11", edge).replace("10.0.2.1", edge);
                let error = parse(&GOOD.replacen(address, &bad, 1)).unwrap_err().to_string();
                assert!(
                    error.contains(key) && error.contains("a host's address"),
                    "{bad}: {error}"
                );
            }
        }
        // A bad name, bad slots, no port and no pool.
        let all = parse("[agent]\nname = ''\ncore = 0\nslots = 3\n").unwrap_err();
        assert_eq!(all.faults.len(), 4, "{all}");
    }
}
