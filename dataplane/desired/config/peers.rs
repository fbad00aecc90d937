//! `[peers]` of an agent's file: the nodes of a rack without a leaf, including this agent. In each beat, an
//! interval of fixed length, a node reports its load to its peers. Clients send tasks to any node, and nodes pass tasks
//! to each other as the policy decides.
//!
//! `FaultCollector` collects faults, so that one check finds all. `at` is a value of the file with its place in the
//! text.

use std::net::IpAddr;
use std::time::Duration;

use wedjat_core::peers::{NODES_MAX, PeerPolicy};
use wedjat_core::policy::PolicySpec;

use super::address::{is_edge, is_unicast, reaches};
use super::faults::{FaultCollector, HOST, UniqueKeys, quoted};
use super::port::PortConfig;
use super::raw_agent::{self, ReplyPath};

/// Rack without a leaf, and this agent's number in it.
#[derive(Clone, Debug, PartialEq)]
pub struct PeersConfig {
    /// Policy that chooses nodes for tasks.
    pub policy: PeerPolicy,
    /// Addresses of all nodes, by number.
    pub nodes: Vec<IpAddr>,
    /// Number of this node.
    pub own: usize,
    /// Interval at which a node reports its load to its peers.
    pub beat: Duration,
}

impl PeersConfig {
    /// Returns the number of nodes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the length of a beat in nanoseconds.
    #[must_use]
    pub fn beat_ns(&self) -> u64 {
        self.beat.as_nanos() as u64
    }
}

/// Checks the table, and refuses settings of other tables that contradict it. Returns `None` without the table or a
/// `[[port]]`, for an invalid policy, and if the port's address is none of the nodes.
pub(super) fn peers(
    faults: &mut FaultCollector,
    raw: &raw_agent::File,
    ports: &[PortConfig],
) -> Option<PeersConfig> {
    let entry = raw.peers.as_ref()?;
    refuse_conflicts(faults, raw, entry);
    let policy = entry.policy.as_ref().map_or("malcolm", |at| at.get_ref()).parse::<PeerPolicy>();
    let policy = policy.map_err(|error| {
        let allowed = "a policy of nodes without a leaf (docs/reference/agent.md)";
        entry.policy.iter().for_each(|at| faults.note(at, "peers.policy", &error, allowed));
    });
    let beat = faults.number(entry.table, "beat_us");
    if let (Some(at), Ok(policy)) = (&entry.policy, &policy) {
        faults.record(at, Some(policy.to_string()));
    }
    let nodes = nodes(faults, entry, ports);
    let port = ports.first()?;
    let own = nodes.iter().position(|node| *node == port.ip);
    if own.is_none() {
        let found = format!("none of them {}, the address of this agent's [[port]]", port.ip);
        let allowed =
            "all nodes of the rack, this one among them, in the same order in each node's file";
        faults.note(&entry.nodes, "peers.nodes", found, allowed);
    }
    Some(PeersConfig { policy: policy.ok()?, nodes, own: own?, beat: Duration::from_micros(beat) })
}

/// Returns the addresses of the nodes, and records faults of the list. An invalid address becomes 0.0.0.0, which the
/// later checks skip.
fn nodes(
    faults: &mut FaultCollector,
    entry: &raw_agent::Peers,
    ports: &[PortConfig],
) -> Vec<IpAddr> {
    let key = "peers.nodes";
    let listed = entry.nodes.get_ref();
    if !(1..=NODES_MAX).contains(&listed.len()) {
        let found = format!("{} nodes", listed.len());
        faults.note(&entry.nodes, key, found, &format!("1 to {NODES_MAX}"));
    }
    let (mut nodes, mut seen) = (Vec::new(), UniqueKeys::new());
    for at in listed {
        let ip = faults.host(at, key, is_unicast, HOST);
        let port = ports.first().filter(|_| !ip.is_unspecified());
        if port.is_some_and(|port| !reaches(port.ip, port.prefix, ip)) {
            faults.note(at, key, quoted(at), "hosts in the network of the [[port]]");
        }
        if port.is_some_and(|port| is_edge(ip, port.prefix)) {
            faults.note(at, key, quoted(at), "a host's address: not the network's first or last");
        }
        if !ip.is_unspecified() && seen.is_again(ip) {
            faults.note(at, key, format!("{} again", quoted(at)), "each node once");
        }
        nodes.push(ip);
    }
    nodes
}

/// Refuses settings that contradict `[peers]`: a leaf, a controller, several ports or pools, replies that
/// workers send, policies of leaves, and key files. Also refuses policies that queue nothing at the agent: nodes pass
/// queued tasks on.
fn refuse_conflicts(faults: &mut FaultCollector, raw: &raw_agent::File, entry: &raw_agent::Peers) {
    let key = "peers";
    let sends = faults.word::<ReplyPath>(raw.agent.table, "worker_sends");
    let mut refuse = |found: &str, allowed: &str| faults.note(&entry.nodes, key, found, allowed);
    if raw.agent.leaf.is_some() || !raw.leaf.is_empty() {
        refuse("[peers] beside a leaf", "one of them: clients send to nodes with peers themselves");
    }
    if raw.controller.is_some() {
        refuse(
            "[peers] beside [controller]",
            "one of them: a controller configures agents behind leaves",
        );
    }
    if raw.port.len() > 1 {
        let found = format!("[peers] beside {} [[port]]", raw.port.len());
        refuse(&found, "one: clients and peers are behind the same port");
    }
    if raw.pool.len() > 1 {
        let found = format!("[peers] beside {} [[pool]]", raw.pool.len());
        refuse(&found, "one: the tasks that nodes pass to each other");
    }
    if sends == ReplyPath::Must {
        let found = "[peers] beside `worker_sends = \"must\"`";
        refuse(found, "one of them: replies of passed tasks leave by the agent's core");
    }
    for pool in &raw.pool {
        let policy = pool.policy.get_ref().parse::<PolicySpec>().ok();
        if policy.is_some_and(|policy| !policy.entry().holds()) {
            let found = format!("{} beside [peers]", quoted(&pool.policy));
            let allowed = "a policy that queues tasks at the agent, such as cfcfs or jbsq(k=2)";
            faults.note(&pool.policy, "pool.policy", found, allowed);
        }
        if let Some(at) = &pool.leaf_policy {
            let found = format!("{} beside [peers]", quoted(at));
            faults.note(at, "pool.leaf_policy", found, "none: no leaf gets reports of workers");
        }
        if let Some(at) = &pool.key_file {
            let found = format!("{} beside [peers]", quoted(at));
            faults.note(at, "pool.key_file", found, "none: no leaf checks proofs");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use wedjat_core::peers::BEAT_NS;

    use super::super::{AgentConfig, ConfigError};
    use super::*;

    /// File without faults.
    const GOOD: &str = r#"
[agent]
name = "host2"
core = 1

[peers]
nodes = ["10.0.2.11", "10.0.2.12", "10.0.2.13"]
policy = "malcolm(steal=off)"
beat_us = 200

[[port]]
device = "net_memif0"
ip = "10.0.2.12/24"

[[pool]]
id = 1
policy = "cfcfs"
workers = "0-3"
"#;

    /// Parses the text of an agent's file.
    fn parse(text: &str) -> Result<AgentConfig, ConfigError> {
        AgentConfig::parse(Path::new("agent.toml"), text)
    }

    #[test]
    fn node_finds_itself_by_address() {
        let config = parse(GOOD).unwrap();
        let peers = config.peers.as_ref().unwrap();
        assert_eq!((peers.own, peers.nodes.len(), peers.beat_ns()), (1, 3, 200_000));
        assert_eq!(peers.policy.to_string(), "malcolm(steal=off)");
        assert_eq!(
            config.sends,
            ReplyPath::Never,
            "replies of passed tasks leave by the agent's core"
        );
        assert_eq!(config.node().warnings(), [""; 0]);
        let usual = GOOD.replace("policy = \"malcolm(steal=off)\"\nbeat_us = 200\n", "");
        let peers = parse(&usual).unwrap().peers.unwrap();
        assert_eq!((peers.policy.to_string(), peers.beat_ns()), ("malcolm".to_owned(), BEAT_NS));
        // The same rack with IPv6 addresses.
        let over_v6 = GOOD.replace("10.0.2.12/24", "fd00:2::12/64").replace("10.0.2.", "fd00:2::");
        let peers = parse(&over_v6).unwrap_or_else(|error| panic!("{error}")).peers.unwrap();
        assert_eq!((peers.own, peers.nodes[1]), (1, "fd00:2::12".parse().unwrap()));
        // The table is found by its name: another name is a fault.
        let without_peers = GOOD.replacen("[peers]", "[[nothing]]", 1);
        assert!(parse(&without_peers).is_err());
    }

    #[test]
    fn the_example_is_right() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/peers.toml");
        let config = AgentConfig::load(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.peers.map(|peers| (peers.own, peers.nodes.len())), Some((0, 3)));
    }

    // promise: input.2
    #[test]
    fn every_fault_names_place_and_allowed_values() {
        let many = (1..=65).map(|host| format!("\"10.0.2.{host}\"")).collect::<Vec<_>>().join(", ");
        let list = "\"10.0.2.11\", \"10.0.2.12\", \"10.0.2.13\"";
        // Text of the file, its replacement, and parts of the error.
        for (old, new, parts) in [
            (list, &many[..], ["agent.toml:7", "65 nodes", "1 to 64"]),
            (list, "", ["peers.nodes", "0 nodes", "1 to 64"]),
            (
                list,
                "\"10.0.2.11\", \"10.0.2.13\"",
                ["10.0.2.12", "none of them", "in the same order"],
            ),
            ("2.13", "2.11", ["peers.nodes", "again", "each node once"]),
            ("2.13", "3.13", ["peers.nodes", "10.0.3.13", "network of the [[port]]"]),
            ("2.13", "2.255", ["peers.nodes", "10.0.2.255", "a host's address"]),
            ("10.0.2.13", "x", ["peers.nodes", "`x`", "address"]),
            (
                "malcolm(",
                "malcom(",
                ["peers.policy", "did you mean `malcolm`", "docs/reference/agent.md"],
            ),
            ("steal=off", "steal=maybe", ["peers.policy", "steal=maybe", "steal=on|off"]),
            ("beat_us = 200", "beat_us = 9", ["peers.beat_us", "found 9", "10 to 1000000"]),
            ("beat_us = 200", "beats = 9", ["agent.toml:9", "beats", "beat_us"]),
            (
                "core = 1",
                "core = 1\nleaf = '10.0.2.1'",
                ["[peers] beside a leaf", "peers", "one of them"],
            ),
            ("cfcfs", "jsq", ["pool.policy", "`jsq` beside [peers]", "jbsq(k=2)"]),
            ("core = 1", "core = 1\nworker_sends = 'must'", ["peers", "worker_sends", "core"]),
            (
                "\"cfcfs\"",
                "\"cfcfs\"\nleaf_policy = \"jiq\"",
                ["pool.leaf_policy", "`jiq` beside [peers]", "no leaf"],
            ),
        ] {
            assert!(GOOD.contains(old), "{old}");
            let error = parse(&GOOD.replacen(old, new, 1)).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
        }
        // Tables that do not fit `[peers]`, and a part of the error.
        for (more, part) in [
            ("[[pool]]\nid = 2\npolicy = 'cfcfs'\nworkers = '9'\n", "2 [[pool]]"),
            ("[[port]]\ndevice = 'net_memif1'\nip = '10.0.3.1/24'\n", "2 [[port]]"),
            ("[[leaf]]\nip = '10.0.2.1'\n", "beside a leaf"),
        ] {
            let error = parse(&format!("{GOOD}{more}")).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
