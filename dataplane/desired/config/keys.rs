//! Keys of all configuration files: type or range, default and meaning.
//!
//! `wedjat check --keys` prints them. The key tables of docs/reference/ are generated from them, and a test compares them with the
//! fields that the files' readers accept.

use serde::Serialize;

/// Key of a configuration file. The texts may have Markdown's backquotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Key {
    /// Name in the file.
    #[serde(rename = "key")]
    pub name: &'static str,
    /// Type or range.
    #[serde(rename = "type")]
    pub values: &'static str,
    /// Default; [`REQUIRED`] if the file must have the key, [`NONE`] if its absence is the default.
    pub default: &'static str,
    /// Meaning.
    pub meaning: &'static str,
    /// True if the membership of a running node has the value. A reload then compares it with the membership, and
    /// refuses a change only if that object can't change it. A reload refuses any change of all other keys.
    #[serde(skip)]
    pub live: bool,
}

impl Key {
    /// Returns the key of an object that can change while the node runs.
    const fn live(self) -> Self {
        Self { live: true, ..self }
    }

    /// Returns the value that a file without this key has. `None` if there is none, or if it depends on other keys.
    #[must_use]
    pub fn default_value(&self) -> Option<&'static str> {
        let quoted = self.default.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        let number = Some(self.default).filter(|default| default.parse::<f64>().is_ok());
        quoted.filter(|word| !word.contains('`')).or(number)
    }
}

/// Table of a configuration file.
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

/// Default of a key that the file must have.
pub const REQUIRED: &str = "required";
/// Default of a key whose absence is the default.
pub const NONE: &str = "none";
/// Default of MAC addresses.
const DISCOVERED: &str = "discovered";

/// Creates a key.
const fn key(
    name: &'static str,
    values: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { name, values, default, meaning, live: false }
}

/// Marks keys of an object that can change while the node runs.
const fn live<const COUNT: usize>(mut keys: [Key; COUNT]) -> [Key; COUNT] {
    let mut at = 0;
    while at < COUNT {
        keys[at] = keys[at].live();
        at += 1;
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

// Keys of several sections.

const POOLS_MAX: Key = key(
    "pools_max",
    "pools of the file to 1024",
    "8, at least the pools of the file",
    "Room for pools at run time.",
);
const QUEUE: Key = key(
    "queue",
    "1 to 65536",
    "4096",
    "Tasks that may wait on each core, for policies that queue tasks (`jbsq`, `cfcfs`).",
);
const OVERFLOW: Key = key(
    "overflow",
    "`drop`, `refuse`",
    "`drop`",
    "A task beyond `queue` is dropped as `queue_full`, or returned to its client.",
);

/// Keys of each node.
pub const COMMON: &[Key] = &[
    key("udp_port", "1 to 65535", "1234", "UDP port of tasks."),
    key(
        "state",
        "path",
        NONE,
        "State file, best in `/dev/shm`, for `wedjat state`, `wedjat ctl`, `wedjat-pktgen --state` \
         and `wedjat-testbed drive --state`. The node writes it every 50 ms per started MiB. \
         During the run `PATH.lock` is beside it.",
    ),
    key(
        "state_group",
        "group",
        NONE,
        "Name or number of a group that, besides the owner, may read the state file with the seed. \
         A node that does not run as root must be in it.",
    ),
    key(
        "seed",
        "integer from 0",
        "chosen at start",
        "Seed of all random streams. The node logs and reports it.",
    ),
    key(
        "mbufs",
        "1023 to 4194304",
        "16383",
        "Packet buffers of all ports together, about 2.4 KiB each.",
    ),
    key(
        "poll",
        "`busy`, `adaptive`",
        "`busy`",
        "Core without packets: polls, or sleeps until a packet arrives. A change needs a restart.",
    ),
];

/// Keys of a leaf and of a spine.
pub const NODE: &[Key] = &[
    key("id", "0 to 32766", REQUIRED, "Id of the leaf or spine."),
    key(
        "cores",
        "list of 1 to 64 CPU numbers",
        REQUIRED,
        "Dispatcher cores: pinned threads, each with a queue pair of every port.",
    ),
    key(
        "connections",
        "8 to 16777216",
        "65536",
        "Multi-packet tasks that each core tracks, rounded up to a power of two.",
    ),
    key(
        "multi_packet_per_source",
        "1 to `connections`",
        "256, at most `connections`",
        "Incomplete multi-packet tasks of one source address on each core.",
    ),
    key(
        "connection_timeout_ms",
        "1 to 3600000",
        "100",
        "Time without a packet until a core forgets a multi-packet task.",
    ),
    POOLS_MAX,
];

/// Keys of a leaf only.
pub const LEAF: &[Key] = &[
    key(
        "worker_timeout_ms",
        "0 to 65535",
        "100",
        "Silence after which the leaf removes a registered worker, at most an eighth later. 0: \
         never.",
    ),
    key(
        "servers_max",
        "servers of the file to 32767",
        "64, at least the entries of the file",
        "Room for `[[server]]` entries at run time.",
    ),
    key(
        "workers_max",
        "workers of the largest pool to 32767",
        "64, at least the largest pool",
        "Room for workers of each pool. `pools_max` times `workers_max` is at most 262136.",
    ),
];

/// Keys of a spine only.
pub const SPINE: &[Key] = &[
    key(
        "leaf_timeout_ms",
        "0 to 65535",
        "30",
        "Silence after which the spine removes a leaf, at most an eighth later. 0: never.",
    ),
    key(
        "leaves_max",
        "entries of the file to 32767",
        "64, at least the entries of the file",
        "Room for `[[leaf]]` entries in all, and for leaves of each pool.",
    ),
];

/// Keys of each port.
pub const PORT: &[Key] = &[
    key(
        "device",
        "text",
        REQUIRED,
        "PCI address (`0000:03:00.0`), EAL name of a `--vdev`, or name and arguments of a new \
         device (`net_memif0,role=server,id=0,socket=wedjat`).",
    ),
    key("ip", "address/prefix", REQUIRED, "Address of the node on this port, IPv4 or IPv6."),
    key(
        "mac",
        "unicast MAC",
        "the device's",
        "MAC address of the node on this port. The device then becomes promiscuous.",
    ),
    key("queue_slots", "64 to 32768", "1024", "Slots of each receive and transmit queue."),
    key(
        "vlan",
        "1 to 4094",
        NONE,
        "VLAN of the port (802.1Q). The node removes and adds the tag. It frees other packets, \
         also untagged ones, and counts `rx_other_vlan`.",
    ),
    key(
        "checksums",
        "`verify`, `trust`",
        "`verify`",
        "IPv4 and UDP checksums that the device has not verified: verify them, or accept and \
         forward them.",
    ),
];

/// Keys of ports of a leaf or spine.
pub const NODE_PORT: &[Key] = &[
    key(
        "side",
        "`clients`, `workers`, `both`",
        REQUIRED,
        "Hosts on this port: sources of tasks, of replies, or of both. Each side needs at least \
         one port.",
    ),
    key(
        "gateway",
        "address",
        NONE,
        "Next hop to other networks, in the port's own network. An IPv6 router may also have an \
         address of fe80::/10.",
    ),
    key(
        "ip_options",
        "`refuse`, `harmless`",
        "`refuse`",
        "IPv4 options allowed in tasks: none, or padding (NOP, end of list) and router alert; \
         others are dropped as `ipv4_options`. IPv4 ports only.",
    ),
];

/// Keys of pools of a leaf or spine.
pub const POOL: &[Key] = &live([
    key("id", "0 to 65535", REQUIRED, "Pool id in tasks."),
    key(
        "policy",
        "text",
        REQUIRED,
        "Name from `wedjat policies`, with parameters if needed: `\"lsq-smart(eps=0.2)\"`.",
    ),
    key(
        "shared_workers",
        "`true`, `false`",
        "`false`",
        "Set `true` if other schedulers also send tasks to these workers. `false` caps reported \
         queue lengths at the node's own sent tasks.",
    ),
]);

/// Keys of pools of a leaf only.
pub const LEAF_POOL: &[Key] = &[
    QUEUE.live(),
    OVERFLOW.live(),
    key(
        "reports",
        "`replies`, `messages`",
        "`replies`",
        "Carrier of load reports: each reply, or messages of the agents.",
    )
    .live(),
    key(
        "key_file",
        "path",
        NONE,
        "File with the pool's key. The leaf then accepts replies and registrations only with \
         proof.",
    ),
    key("spine", "id of a `[[spine]]`", NONE, "Spine that receives the load of this pool.").live(),
    key(
        "signals",
        "`horus`, `every-reply`, `none`",
        "`horus`",
        "Load signals to the spine. Needs `spine`.",
    )
    .live(),
    key(
        "service",
        "address",
        NONE,
        "Address for clients; source of replies and refusals. No server may have it.",
    )
    .live(),
];

/// Keys of pools of a spine only.
pub const SPINE_POOL: &[Key] = &live([key(
    "service",
    "address",
    "the ports' own",
    "Address of the pool's tasks, on the clients' side. The pool's leaves have the same `service`.",
)]);

/// Keys of a server behind a leaf.
pub const SERVER: &[Key] = &live([
    key(
        "ip",
        "address",
        REQUIRED,
        "Address of the server, in the network of a port on the workers' side or behind its \
         gateway.",
    ),
    key(
        "mac",
        "unicast MAC",
        DISCOVERED,
        "MAC address of the server. ARP and neighbour discovery never change a configured one.",
    ),
    key(
        "workers",
        "ids and ranges",
        REQUIRED,
        "Worker ids, 0 to 32766. Each id belongs to one server.",
    ),
    key(
        "pool",
        "pool id",
        REQUIRED,
        "Pool of these workers. A server in two pools has two entries with the same `ip`.",
    ),
    key(
        "speed",
        "0.001 to 1000",
        "1",
        "Relative speed of each worker, for policies that decide by rates (`wedjat policies`).",
    ),
    key(
        "registers",
        "`true`, `false`",
        "`true` if the pool has a key, else `false`",
        "`true`: the workers register, like those of `wedjat agent` with `leaf`, and receive no \
         tasks before. `false`: the leaf assumes that they are alive and refuses registrations.",
    ),
]);

/// Keys of a spine above a leaf.
pub const SPINE_ABOVE: &[Key] = &live([
    key("id", "0 to 32766", REQUIRED, "Id of the spine."),
    key(
        "ip",
        "address",
        REQUIRED,
        "Address of the spine, in the network of a port on the clients' side or behind its \
         gateway.",
    ),
]);

/// Keys of a leaf below a spine, in one pool.
pub const LEAF_BELOW: &[Key] = &live([
    key("id", "0 to 32766", REQUIRED, "Id of the leaf."),
    key(
        "ip",
        "address",
        REQUIRED,
        "Address of the leaf, in the network of a port on the workers' side or behind its gateway.",
    ),
    key("mac", "unicast MAC", DISCOVERED, "MAC address of the leaf."),
    key("pool", "pool id", REQUIRED, "Pool."),
    key(
        "workers",
        "1 to 32766",
        REQUIRED,
        "Workers of the leaf in that pool, until the leaf reports their number.",
    ),
]);

/// Keys of an agent, also of one on a leaf's core.
pub const HOST: &[Key] = &[
    key(
        "name",
        "text",
        REQUIRED,
        "Name to which workers attach: socket `/dev/shm/wedjat-NAME`, or with a slash a path.",
    ),
    key(
        "slots",
        "power of two, 2 to 16384",
        "64",
        "Tasks in each worker's ring. At least the policy's `k`.",
    ),
    key(
        "payload",
        "1 to 1445",
        "the maximum",
        "Bytes of a task or reply behind the task header. The maximum is 20 lower with an IPv6 \
         port, 16 with a key, 12 with `[peers]`.",
    ),
    POOLS_MAX,
    key(
        "workers_max",
        "workers of the file to 1024",
        "8 more than the file has",
        "Room for workers of all pools. Each takes `slots` times twice `payload` bytes, 190 KiB \
         by default; all together at most 4 GiB.",
    ),
    key(
        "worker_timeout_ms",
        "0 to 3600000",
        "10000",
        "Time until the agent excludes a worker that answers none of its tasks. 0: never.",
    ),
];

/// Keys of an agent with ports.
pub const AGENT: &[Key] = &[
    key("id", "0 to 32766", "0", "Id in the state file."),
    key(
        "core",
        "CPU number",
        REQUIRED,
        "CPU of the only dispatcher core. Run one agent for each group of worker cores.",
    ),
    key(
        "leaf",
        "address",
        NONE,
        "Leaf with which the workers register, in the network of a port. Its `[[server]]` has \
         `registers = true`.",
    ),
    key(
        "leaf_mac",
        "MAC address",
        DISCOVERED,
        "MAC address of the leaf; a configured one never changes.",
    ),
    key(
        "worker_sends",
        "`try`, `must`, `never`",
        "`try`",
        "Sender of replies of worker threads: the worker if it has a transmit queue; the worker, \
         or no start; the agent's core.",
    ),
];

/// Keys of one of an agent's leaves.
pub const AGENT_LEAF: &[Key] = &[
    key("ip", "address", REQUIRED, "Address of the leaf, in the network of a port."),
    key("mac", "MAC address", DISCOVERED, "MAC address of the leaf."),
];

/// Keys of an agent's pool, also on a leaf's core.
pub const AGENT_POOL: &[Key] = &live([
    key("id", "0 to 65535", REQUIRED, "Pool id in tasks."),
    key(
        "policy",
        "text",
        REQUIRED,
        "Any policy of `wedjat policies`, except a spine's. `cfcfs` is one queue for all workers; \
         measured hand-over and service times set the bound on each ring. `jbsq(k=3)` fixes it.",
    ),
    key(
        "workers",
        "ids and ranges",
        REQUIRED,
        "Worker ids, as in `\"0-3,8\"`: places for one worker each. More may come at run time.",
    ),
    key(
        "speeds",
        "table",
        "all 1",
        "Relative speeds by id: `{ \"0-3,8\" = 2.0, 9 = 0.5 }`, each 0.001 to 1000. For \
         policies that decide by rates. On a leaf's core the leaf uses them too.",
    ),
    QUEUE,
    OVERFLOW,
]);

/// Keys of an agent's pool behind leaves in the network.
pub const REMOTE_POOL: &[Key] = &[
    key(
        "key_file",
        "path",
        NONE,
        "File with the pool's key, the leaf's. The agent signs its workers' messages and accepts \
         acknowledgements only with proof.",
    ),
    key(
        "leaf_policy",
        "text",
        NONE,
        "Policy of the leaves, for `reports = \"messages\"`: it decides when workers report. \
         `worker_sends` becomes `never`. A change needs a restart.",
    ),
];

/// Keys of a rack without a leaf.
pub const PEERS: &[Key] = &[
    key(
        "nodes",
        "list of 1 to 64 addresses",
        REQUIRED,
        "All nodes of the rack, including this agent's `port.ip`. The list has the same order \
         in each node's file.",
    ),
    key("policy", "text", "`malcolm`", "Policy between nodes."),
    key(
        "beat_us",
        "10 to 1000000",
        "100",
        "Interval of a node's heartbeats to its peers, in microseconds.",
    ),
];

/// Keys of batch jobs beside an agent's workers.
pub const COSCHED: &[Key] = &[
    key(
        "policy",
        "text",
        "`guard`",
        "Policy of the batch's share: `asax`, `static(50%)`, `aimd`, `guard`, `idle`, `shares`.",
    ),
    key(
        "objective",
        "text",
        "p99.9 of the file's time, 500 us in the built-in one",
        "Latency objective of tasks, as in `\"p99.9=500us\"`.",
    ),
    key("experts", "path", "built in", "File of chooser, guard and experts."),
    key("class", "`idle`, `normal`", "`idle`", "Scheduling class of the batch's threads."),
    key("cgroup", "path", "`/`", "Parent of the batch's cgroup, in each hierarchy."),
    key(
        "processes",
        "1 to 4194304",
        "1024",
        "Maximum number of the batch's processes and threads.",
    ),
];

/// Keys of a batch job.
pub const JOB: &[Key] = &[
    key("command", "list of texts", REQUIRED, "Program and arguments."),
    key("wall", "time", NONE, "Maximum run time, as in `\"10m\"`."),
    key("progress", "`cpu`, `lines=TEXT`, `counter`", "`cpu`", "Measure of progress."),
    key("work", "number above 0", NONE, "Total work, in that measure."),
    key("log", "path", NONE, "File of the chooser's decisions, for `asax` and `aimd`."),
];

/// Keys of a control listener.
pub const CONTROL: &[Key] = &[
    key(
        "listen",
        "address and port",
        NONE,
        "Address of the gRPC service. Without the next three keys a loopback address, to which \
         every user of the host can connect.",
    ),
    key("certificate", "path", NONE, "Certificate of this process with its chain, in PEM."),
    key(
        "key",
        "path",
        NONE,
        "Its private key. The file has mode 0600 or 0400 and belongs to this user or root.",
    ),
    key(
        "clients_ca",
        "path",
        NONE,
        "Authority of client certificates, in PEM. Its clients may change everything.",
    ),
];

/// Key of a node's metrics.
pub const METRICS: &[Key] = &[key(
    "metrics",
    "address and port",
    NONE,
    "Address of `/metrics` and the status page at `/`, without TLS or access control. It differs \
     from `listen`.",
)];

/// Keys of a node that follows a controller.
pub const FOLLOWER: &[Key] = &[
    key(
        "addresses",
        "list",
        REQUIRED,
        "Addresses of the controllers: `unix:/PATH`, `https://HOST:PORT`, or `http://` on a \
         loopback address.",
    ),
    key(
        "ca",
        "path",
        NONE,
        "Authority of the controllers, in PEM. Needed for `https`, with the next two keys.",
    ),
    key("certificate", "path", NONE, "Certificate of the node, in PEM."),
    key("key", "path", NONE, "Private key of the node."),
];

/// Keys of a controller.
pub const CONTROLLER: &[Key] = &[
    key("id", "0 to 32766", REQUIRED, "Id of the controller."),
    key(
        "store",
        "path",
        NONE,
        "File with the desired state, mode 0600, for one controller. Needed without `etcd`.",
    ),
    key(
        "etcd",
        "list of URLs",
        NONE,
        "Members of etcd 3.4 or later, for several controllers. Instead of `store`.",
    ),
    key(
        "etcd_ca",
        "path",
        NONE,
        "Authority of etcd, in PEM. Needed for `https`, with the next two keys.",
    ),
    key("etcd_certificate", "path", NONE, "Certificate of this controller for etcd, in PEM."),
    key("etcd_key", "path", NONE, "Private key of this controller for etcd, in PEM."),
    key("prefix", "text", "`/wedjat`", "Prefix of all keys in etcd."),
    key("lease_s", "1 to 3600", "5", "Lease of the leader in seconds. etcd grants at least 2."),
    key(
        "socket",
        "path",
        "`STORE.ctl`; none with `etcd`",
        "Control socket for this user and root.",
    ),
];

#[cfg(test)]
pub(super) mod tests;
