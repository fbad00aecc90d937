//! Keys of all configuration files: type or range, default and meaning.
//!
//! The reader of files accepts these keys and no others, and checks their types and words. The checks take ranges and
//! defaults of numbers from here. `wedjat check --keys` prints the keys, and the key tables of docs/reference/ are
//! generated from them. A reload refuses changes of keys that are not `live`.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use wedjat_core::limits::{self, CONNECTIONS, MBUFS, QUEUE_MAX, SPEEDS, WORKER_ID_MAX};
use wedjat_core::stage::fabric::SILENT_NS;
use wedjat_core::wire::task::UDP_PORT;
use wedjat_core::wire::vlan;

use DefaultValue::{Absent, Described, Is, Required, Says};
use Kind::{Count, Decimal, Flag, Id, Integer, Integers, Number, Numbers, Text, Texts, Word};

/// Key of a configuration file. The texts may have Markdown's backquotes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// Name in the file.
    pub name: &'static str,
    /// Type and allowed values.
    pub kind: Kind,
    /// Value without the key.
    pub default: DefaultValue,
    /// Meaning.
    pub meaning: &'static str,
    /// True if the membership of a running node (pools, servers, workers and spines) has the value. A reload then
    /// compares it with the membership, and refuses only changes that need a restart. A reload refuses each change of
    /// other keys.
    pub live: bool,
}

/// Type of a key's value. The text of a kind describes the allowed values. Code of the file's check enforces them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Whole number from the first to the second one.
    Integer(i64, i64),
    /// Whole number.
    Count(&'static str),
    /// Id of a pool, or of another object, from 0 to 65535.
    Id(&'static str),
    /// Number from the first to the second one.
    Number(f64, f64),
    /// Number.
    Decimal(&'static str),
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Text.
    Text(&'static str),
    /// List of texts.
    Texts(&'static str),
    /// List of whole numbers.
    Integers(&'static str),
    /// Table of numbers.
    Numbers(&'static str),
}

/// Value of an absent key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultValue {
    /// None: a file must have the key.
    Required,
    /// None: the key is optional.
    Absent,
    /// This number.
    Is(i64),
    /// This word or text.
    Says(&'static str),
    /// A value that depends on other keys or on the machine.
    Described(&'static str),
}

impl Key {
    /// Returns this key marked as live: the membership has its value, for example a pool's policy.
    const fn live(self) -> Self {
        Self { live: true, ..self }
    }

    /// Returns the type or range, for documents.
    #[must_use]
    pub fn values(&self) -> String {
        match self.kind {
            Integer(least, most) => format!("{least} to {most}"),
            Number(least, most) => format!("{least} to {most}"),
            Flag => "`true`, `false`".to_owned(),
            Word(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
            }
            Count(text) | Id(text) | Decimal(text) | Text(text) | Texts(text) | Integers(text)
            | Numbers(text) => text.to_owned(),
        }
    }

    /// Returns the default, for documents.
    #[must_use]
    pub fn default(&self) -> String {
        match self.default {
            Required => "required".to_owned(),
            Absent => "none".to_owned(),
            Says(word) => format!("`{word}`"),
            Is(number) => number.to_string(),
            Described(text) => text.to_owned(),
        }
    }

    /// Returns the value of the absent key as a reload compares it. `None` if there is none, or if it depends on other
    /// keys or the machine.
    #[must_use]
    pub fn default_value(&self) -> Option<String> {
        match self.default {
            Is(number) => Some(number.to_string()),
            Says(word) => Some(word.to_owned()),
            _ => None,
        }
    }
}

impl Serialize for Key {
    /// Serializes a key as `wedjat check --keys --json` prints it.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_struct("Key", 4)?;
        row.serialize_field("key", self.name)?;
        row.serialize_field("type", &self.values())?;
        row.serialize_field("default", &self.default())?;
        row.serialize_field("meaning", self.meaning)?;
        row.end()
    }
}

/// Table of a configuration file, or a list of tables.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Path, as in `cosched.job`.
    pub name: &'static str,
    /// True if the file may have several, as in `[[pool]]`.
    pub is_list: bool,
    /// Owners of the files that have it: leaf, spine, agent, controller.
    pub files: &'static [&'static str],
    /// Its keys. Sections share parts.
    pub parts: &'static [&'static [Key]],
}

impl Section {
    /// Returns the section's keys.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> {
        self.parts.iter().flat_map(|part| part.iter())
    }

    /// Returns the line that opens the section in a file.
    #[must_use]
    pub fn header(&self) -> String {
        if self.is_list { format!("[[{}]]", self.name) } else { format!("[{}]", self.name) }
    }
}

/// Default of other hosts' MAC addresses.
const DISCOVERED: DefaultValue = Described("discovered");

/// Creates a key that is not live.
const fn key(name: &'static str, kind: Kind, default: DefaultValue, meaning: &'static str) -> Key {
    Key { name, kind, default, meaning, live: false }
}

/// Marks all keys of an object as live. The object, such as a server, can change while the node runs.
const fn live<const COUNT: usize>(mut keys: [Key; COUNT]) -> [Key; COUNT] {
    // Constants allow no iterators.
    let mut index = 0;
    while index < COUNT {
        keys[index] = keys[index].live();
        index += 1;
    }
    keys
}

/// Creates a section that a file may have once.
const fn section(
    name: &'static str,
    files: &'static [&'static str],
    parts: &'static [&'static [Key]],
) -> Section {
    Section { name, is_list: false, files, parts }
}

/// Creates a section that a file may have several times.
const fn list(
    name: &'static str,
    files: &'static [&'static str],
    parts: &'static [&'static [Key]],
) -> Section {
    Section { is_list: true, ..section(name, files, parts) }
}

/// All sections of all files.
pub const SECTIONS: &[Section] = &[
    section("leaf", &["leaf"], &[NODE, COMMON, LEAF]),
    section("spine", &["spine"], &[NODE, COMMON, SPINE]),
    list("port", &["leaf", "spine"], &[PORT, NODE_PORT]),
    list("pool", &["leaf"], &[POOL, LEAF_POOL]),
    list("pool", &["spine"], &[POOL, SPINE_POOL]),
    list("server", &["leaf"], &[SERVER]),
    list("spine", &["leaf"], &[SPINE_ABOVE]),
    list("leaf", &["spine"], &[LEAF_BELOW]),
    section("agent", &["agent"], &[HOST, AGENT, COMMON]),
    section("agent", &["leaf"], &[HOST]),
    list("leaf", &["agent"], &[AGENT_LEAF]),
    list("port", &["agent"], &[PORT]),
    list("pool", &["agent"], &[AGENT_POOL, REMOTE_POOL]),
    list("agent.pool", &["leaf"], &[AGENT_POOL]),
    section("peers", &["agent"], &[PEERS]),
    section("cosched", &["agent"], &[COSCHED]),
    list("cosched.job", &["agent"], &[JOB]),
    section("control", &["leaf", "spine", "agent"], &[CONTROL, METRICS]),
    section("control", &["controller"], &[CONTROL]),
    section("controller", &["leaf", "spine", "agent"], &[FOLLOWER]),
    section("controller", &["controller"], &[CONTROLLER]),
];

/// Keys that a check refuses with a reason of its own, or warns of, because another file has them there: owner of the
/// file, header of the section, keys.
pub(super) const REFUSED: &[(&str, &str, &[Key])] = &[
    ("leaf", "[leaf]", SPINE),
    ("spine", "[spine]", LEAF),
    ("spine", "[[pool]]", LEAF_POOL),
    ("leaf", "[[agent.pool]]", REMOTE_POOL),
    ("controller", "[control]", METRICS),
];

/// Creates an array of keys that are not live. A row has the arguments of [`key`], or, behind a plus sign, a key of
/// several sections.
macro_rules! keys {
    ($($($name:literal, $kind:expr, $default:expr, $meaning:literal)? $(+ $key:expr)?;)*) => {
        [$($(key($name, $kind, $default, $meaning))? $($key)?),*]
    };
}

// Keys of several sections.

const POOLS_MAX: Key = key(
    "pools_max",
    Count("pools of the file to 1024"),
    Described("8, at least the pools of the file"),
    "Room for pools at run time.",
);
const QUEUE: Key = key(
    "queue",
    Integer(1, QUEUE_MAX as i64),
    Is(limits::QUEUE as i64),
    "Tasks that may wait on each core, for policies that queue tasks (`jbsq`, `cfcfs`, `eft`).",
);
const OVERFLOW: Key = key(
    "overflow",
    Word(&["drop", "refuse"]),
    Says("drop"),
    "A task beyond `queue` is dropped as `queue_full`, or returned to its client.",
);

/// Keys of each node.
pub const COMMON: &[Key] = &keys! {
    "udp_port", Integer(1, 65_535), Is(UDP_PORT as i64), "UDP port of tasks.";
    "state", Text("path"), Absent,
        "State file, best in `/dev/shm`, for `wedjat state`, `wedjat ctl`, `wedjat-pktgen --state` and \
         `wedjat-testbed drive --state`. The node writes it every 50 ms per started MiB. During the run `PATH.lock` \
         is beside it.";
    "state_group", Text("group"), Absent,
        "Name or number of a group that, besides the owner, may read the state file with the seed. A node that does \
         not run as root must be in it.";
    "seed", Count("integer from 0"), Described("chosen at start"),
        "Seed of all random streams. The node logs and reports it.";
    "mbufs", Integer(1023, 4_194_304), Is(MBUFS as i64),
        "Packet buffers of all ports together, about 2.4 KiB each.";
    "poll", Word(&["busy", "adaptive"]), Says("busy"),
        "Core without packets: polls, or sleeps until a packet arrives. A change needs a restart.";
};

/// Keys of a leaf and of a spine.
pub const NODE: &[Key] = &keys! {
    "id", Integer(0, WORKER_ID_MAX as i64), Required, "Id of the leaf or spine.";
    "cores", Integers("list of 1 to 64 CPU numbers"), Required,
        "Dispatcher cores: pinned threads, each with a queue pair of every port.";
    "connections", Integer(8, 16_777_216), Is(CONNECTIONS as i64),
        "Multi-packet tasks that each core tracks, rounded up to a power of two.";
    "multi_packet_per_source", Count("1 to `connections`"), Described("256, at most `connections`"),
        "Incomplete multi-packet tasks of one source address on each core.";
    "connection_timeout_ms", Integer(1, 3_600_000), Is(100),
        "Time without a packet until a core forgets a multi-packet task.";
    + POOLS_MAX;
};

/// Keys of a leaf only.
pub const LEAF: &[Key] = &keys! {
    "worker_timeout_ms", Integer(0, 65_535), Is(100),
        "Silence after which the leaf removes a registered worker, at most an eighth later. 0: never.";
    "servers_max", Count("servers of the file to 32767"), Described("64, at least the entries of the file"),
        "Room for `[[server]]` entries at run time.";
    "workers_max", Count("workers of the largest pool to 32767"), Described("64, at least the largest pool"),
        "Room for workers of each pool. `pools_max` times `workers_max` is at most 262136.";
};

/// Keys of a spine only.
pub const SPINE: &[Key] = &keys! {
    "leaf_timeout_ms", Integer(0, 65_535), Is((SILENT_NS / 1_000_000) as i64),
        "Silence after which the spine removes a leaf, at most an eighth later. 0: never.";
    "leaves_max", Count("entries of the file to 32767"), Described("64, at least the entries of the file"),
        "Room for `[[leaf]]` entries in all, and for leaves of each pool.";
};

/// Keys of each port.
pub const PORT: &[Key] = &keys! {
    "device", Text("text"), Required,
        "PCI address (`0000:03:00.0`), EAL name of a `--vdev`, or name and arguments of a new device \
         (`net_memif0,role=server,id=0,socket=wedjat`).";
    "ip", Text("address/prefix"), Required, "Address of the node on this port, IPv4 or IPv6.";
    "mac", Text("unicast MAC"), Described("the device's"),
        "MAC address of the node on this port. The device then becomes promiscuous.";
    "gateway", Text("address"), Absent,
        "Next hop to other networks, in the port's own network. An IPv6 router may also have an address of \
         fe80::/10. At an agent only for direct replies.";
    "queue_slots", Integer(64, 32_768), Is(1024), "Slots of each receive and transmit queue.";
    "vlan", Integer(1, vlan::ID_MAX as i64), Absent,
        "VLAN of the port (802.1Q). The node removes and adds the tag. It frees other packets, also untagged ones, \
         and counts `rx_other_vlan`.";
    "checksums", Word(&["verify", "trust"]), Says("verify"),
        "IPv4 and UDP checksums that the device has not verified: verify them, or accept and forward them.";
};

/// Keys of ports of a leaf or spine.
pub const NODE_PORT: &[Key] = &keys! {
    "side", Word(&["clients", "workers", "both"]), Required,
        "Hosts on this port: sources of tasks, of replies, or of both. Each side needs at least one port.";
    "ip_options", Word(&["refuse", "harmless"]), Says("refuse"),
        "IPv4 options allowed in tasks: none, or padding (NOP, end of list) and router alert; others are dropped as \
         `ipv4_options`. IPv4 ports only.";
};

/// Keys of pools of a leaf or spine.
pub const POOL: &[Key] = &live(keys! {
    "id", Id("0 to 65535"), Required, "Pool id in tasks.";
    "policy", Text("text"), Required,
        "Name from `wedjat policies`, with parameters if needed: `\"lsq-smart(eps=0.2)\"`. At a leaf also \
         `\"auto(objective=p99)\"`: the node chooses the policy.";
    "shared_workers", Flag, Says("false"),
        "Set `true` if other schedulers also send tasks to these workers. `false` caps reported queue lengths at \
         the node's own sent tasks.";
});

/// Keys of pools of a leaf only.
pub const LEAF_POOL: &[Key] = &live(keys! {
    + QUEUE;
    + OVERFLOW;
    "reports", Word(&["replies", "messages"]), Says("replies"),
        "Carrier of load reports: each reply, or messages of the agents.";
    "replies", Word(&["leaf", "direct"]), Says("leaf"),
        "Way of replies: through the leaf, or from the server straight to the client. Needs one port for clients or \
         `service`, and servers in the network of a port.";
    "key_file", Text("path"), Absent,
        "File with the pool's key. The leaf then accepts replies and registrations only with proof.";
    "spine", Id("id of a `[[spine]]`"), Absent, "Spine that receives the load of this pool.";
    "signals", Text("`horus`, `every-reply`, `none`"), Says("horus"),
        "Load signals to the spine. Needs `spine`.";
    "service", Text("address"), Absent,
        "Address for clients; source of replies and refusals. No server may have it.";
});

/// Keys of pools of a spine only.
pub const SPINE_POOL: &[Key] = &live(keys! {
    "service", Text("address"), Described("the ports' own"),
        "Address of the pool's tasks, on the clients' side. The pool's leaves have the same `service`.";
});

/// Keys of a server behind a leaf.
pub const SERVER: &[Key] = &live(keys! {
    "ip", Text("address"), Required,
        "Address of the server, in the network of a port on the workers' side or behind its gateway.";
    "mac", Text("unicast MAC"), DISCOVERED,
        "MAC address of the server. ARP and neighbour discovery never change a configured one.";
    "workers", Text("ids and ranges"), Required,
        "Worker ids, 0 to 32766. Each id belongs to one server.";
    "pool", Id("pool id"), Required,
        "Pool of these workers. A server in two pools has two entries with the same `ip`.";
    "speed", Number(SPEEDS.0, SPEEDS.1), Is(1),
        "Relative speed of each worker, for policies that decide by rates (`wedjat policies`).";
    "registers", Flag, Described("`true` if the pool has a key, else `false`"),
        "`true`: the workers register, like those of `wedjat agent` with `leaf`, and receive no tasks before. \
         `false`: the leaf assumes that they are alive and refuses registrations.";
});

/// Keys of a spine above a leaf.
pub const SPINE_ABOVE: &[Key] = &live(keys! {
    "id", Integer(0, WORKER_ID_MAX as i64), Required, "Id of the spine.";
    "ip", Text("address"), Required,
        "Address of the spine, in the network of a port on the clients' side or behind its gateway.";
});

/// Keys of a leaf below a spine, in one pool.
pub const LEAF_BELOW: &[Key] = &live(keys! {
    "id", Integer(0, WORKER_ID_MAX as i64), Required, "Id of the leaf.";
    "ip", Text("address"), Required,
        "Address of the leaf, in the network of a port on the workers' side or behind its gateway.";
    "mac", Text("unicast MAC"), DISCOVERED, "MAC address of the leaf.";
    "pool", Id("pool id"), Required, "Pool.";
    "workers", Integer(1, WORKER_ID_MAX as i64), Required,
        "Workers of the leaf in that pool, until the leaf reports their number.";
});

/// Keys of an agent, also of one on a leaf's core.
pub const HOST: &[Key] = &keys! {
    "name", Text("text"), Required,
        "Name to which workers attach: socket `/dev/shm/wedjat-NAME`, or with a slash a path.";
    "slots", Count("power of two, 2 to 16384"), Is(64),
        "Tasks in each worker's ring. At least the policy's `k`.";
    "payload", Integer(1, 1445), Described("the maximum"),
        "Bytes of a task or reply behind the task header. The maximum is 20 lower with an IPv6 port, 16 with a key, \
         12 with `[peers]`.";
    + POOLS_MAX;
    "workers_max", Count("workers of the file to 1024"), Described("8 more than the file has"),
        "Room for workers of all pools. Each takes `slots` times twice `payload` bytes, 190 KiB by default; all \
         together at most 4 GiB. `pools_max` times `workers_max` is at most 262136.";
    "worker_timeout_ms", Integer(0, 3_600_000), Is(10_000),
        "Time until the agent excludes a worker that answers none of its tasks. 0: never.";
};

/// Keys of an agent with ports.
pub const AGENT: &[Key] = &keys! {
    "id", Integer(0, WORKER_ID_MAX as i64), Is(0), "Id in the state file.";
    "core", Count("CPU number"), Required,
        "CPU of the only dispatcher core. Run one agent for each group of worker cores.";
    "leaf", Text("address"), Absent,
        "Leaf with which the workers register, in the network of a port. Its `[[server]]` has `registers = true`.";
    "leaf_mac", Text("MAC address"), DISCOVERED,
        "MAC address of the leaf; a configured one never changes.";
    "worker_sends", Word(&["try", "must", "never"]), Says("try"),
        "Sender of replies of worker threads: the worker if it has a transmit queue; the worker, or no start; the \
         agent's core.";
};

/// Keys of one of an agent's leaves.
pub const AGENT_LEAF: &[Key] = &keys! {
    "ip", Text("address"), Required, "Address of the leaf, in the network of a port.";
    "mac", Text("MAC address"), DISCOVERED, "MAC address of the leaf.";
};

/// Keys of an agent's pool, also on a leaf's core.
pub const AGENT_POOL: &[Key] = &live(keys! {
    "id", Id("0 to 65535"), Required, "Pool id in tasks.";
    "policy", Text("text"), Required,
        "Any policy of `wedjat policies`, except a spine's. `cfcfs` is one queue for all workers; measured \
         hand-over and service times set the bound on each ring. `jbsq(k=3)` fixes it.";
    "workers", Text("ids and ranges"), Required,
        "Worker ids, as in `\"0-3,8\"`: places for one worker each. More may come at run time.";
    "speeds", Numbers("table"), Described("all 1"),
        "Relative speeds by id: `{ \"0-3,8\" = 2.0, 9 = 0.5 }`, each 0.001 to 1000. For policies that decide by \
         rates. On a leaf's core the leaf uses them too.";
    + QUEUE;
    + OVERFLOW;
});

/// Keys of an agent's pool behind leaves in the network.
pub const REMOTE_POOL: &[Key] = &[
    key(
        "key_file",
        Text("path"),
        Absent,
        "File with the pool's key, the leaf's. The agent signs its workers' messages and accepts \
         acknowledgements only with proof.",
    )
    .live(),
    key(
        "leaf_policy",
        Text("text"),
        Absent,
        "Policy of the leaves, for `reports = \"messages\"`: it decides when workers report. \
         `worker_sends` becomes `never`. A change needs a restart.",
    ),
];

/// Keys of a rack without a leaf.
pub const PEERS: &[Key] = &keys! {
    "nodes", Texts("list of 1 to 64 addresses"), Required,
        "All nodes of the rack, including this agent's `port.ip`. The list has the same order in each node's file.";
    "policy", Text("text"), Says("malcolm"), "Policy between nodes.";
    "beat_us", Integer(10, 1_000_000), Is(100),
        "Interval of a node's heartbeats to its peers, in microseconds.";
};

/// Keys of batch jobs beside an agent's workers.
pub const COSCHED: &[Key] = &keys! {
    "policy", Text("text"), Says("guard"),
        "Policy of the batch's share: `asax`, `static(50%)`, `aimd`, `guard`, `idle`, `shares`.";
    "objective", Text("text"), Described("p99.9 of the file's time, 500 us in the built-in one"),
        "Latency objective of tasks, as in `\"p99.9=500us\"`.";
    "experts", Text("path"), Described("built in"), "File of chooser, guard and experts.";
    "class", Text("`idle`, `normal`"), Says("idle"), "Scheduling class of the batch's threads.";
    "cgroup", Text("path"), Says("/"), "Parent of the batch's cgroup, in each hierarchy.";
    "processes", Integer(1, 4_194_304), Is(1024),
        "Maximum number of the batch's processes and threads.";
};

/// Keys of a batch job.
pub const JOB: &[Key] = &keys! {
    "command", Texts("list of texts"), Required, "Program and arguments.";
    "wall", Text("time"), Absent, "Maximum run time, as in `\"10m\"`.";
    "progress", Text("`cpu`, `lines=TEXT`, `counter`"), Says("cpu"), "Measure of progress.";
    "work", Decimal("number above 0"), Absent, "Total work, in that measure.";
    "log", Text("path"), Absent, "File of the chooser's decisions, for `asax` and `aimd`.";
};

/// Keys of a control listener.
pub const CONTROL: &[Key] = &keys! {
    "listen", Text("address and port"), Absent,
        "Address of the gRPC service. Without the next three keys a loopback address, to which every user of the \
         host can connect.";
    "certificate", Text("path"), Absent, "Certificate of this process with its chain, in PEM.";
    "key", Text("path"), Absent,
        "Its private key. The file has mode 0600 or 0400 and belongs to this user or root.";
    "clients_ca", Text("path"), Absent,
        "Authority of client certificates, in PEM. Its clients may change everything.";
};

/// Key of a node's metrics.
pub const METRICS: &[Key] = &keys! {
    "metrics", Text("address and port"), Absent,
        "Address of `/metrics` and the status page at `/`, without TLS or access control. It differs from \
         `listen`.";
};

/// Keys of a node that follows a controller.
pub const FOLLOWER: &[Key] = &keys! {
    "addresses", Texts("list"), Required,
        "Addresses of the controllers: `unix:/PATH`, `https://HOST:PORT`, or `http://` on a loopback address.";
    "ca", Text("path"), Absent,
        "Authority of the controllers, in PEM. Needed for `https`, with the next two keys.";
    "certificate", Text("path"), Absent, "Certificate of the node, in PEM.";
    "key", Text("path"), Absent, "Private key of the node.";
};

/// Keys of a controller.
pub const CONTROLLER: &[Key] = &keys! {
    "id", Integer(0, WORKER_ID_MAX as i64), Required, "Id of the controller.";
    "store", Text("path"), Absent,
        "File with the desired state, mode 0600, for one controller. Needed without `etcd`.";
    "etcd", Texts("list of URLs"), Absent,
        "Members of etcd 3.4 or later, for several controllers. Instead of `store`.";
    "etcd_ca", Text("path"), Absent,
        "Authority of etcd, in PEM. Needed for `https`, with the next two keys.";
    "etcd_certificate", Text("path"), Absent, "Certificate of this controller for etcd, in PEM.";
    "etcd_key", Text("path"), Absent, "Private key of this controller for etcd, in PEM.";
    "prefix", Text("text"), Says("/wedjat"), "Prefix of all keys in etcd.";
    "lease_s", Integer(1, 3600), Is(5), "Lease of the leader in seconds. etcd grants at least 2.";
    "socket", Text("path"), Described("`STORE.ctl`; none with `etcd`"),
        "Control socket for this user and root.";
};

#[cfg(test)]
pub(super) mod tests;
