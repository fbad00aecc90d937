//! Tests of a leaf's and a spine's configuration: valid files, and files with faults.

use std::net::IpAddr;

use toml::Spanned;
use wedjat_core::policy::signals::Protocol;
use wedjat_core::policy::{Overflow, Reports};
use wedjat_core::stage::{IpOptions, Side};
use wedjat_core::wire::ether::Mac;
use wedjat_core::wire::{ipv4, ipv6};

use super::read::{Table, entry};
use super::*;
use crate::state::{ReplyPath, Spine};

/// Leaf's file without faults. Its line 1 is empty, so `[leaf]` is line 2. Tests expect line numbers in errors.
const GOOD: &str = r#"
[leaf]
id = 1
udp_port = 1234
cores = [1]
state = "/dev/shm/wedjat-leaf1"
seed = 7

[[port]]
device = "net_memif0"
side = "clients"
ip = "10.0.1.1/24"

[[port]]
device = "net_memif1"
side = "workers"
ip = "10.0.2.1/24"

[[pool]]
id = 1
policy = "horus"

[[server]]
ip = "10.0.2.11"
mac = "02:00:00:00:02:0b"
workers = "0-31"
pool = 1
"#;

/// Parses a leaf's file.
fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("leaf.toml"), text)
}

#[test]
fn the_reference_is_read() {
    let config = parse(GOOD).unwrap();
    assert_eq!((config.leaf.id, config.leaf.udp_port, &config.leaf.cores[..]), (1, 1234, &[1][..]));
    assert_eq!(config.leaf.seed, Some(7));
    assert_eq!((config.ports[0].ip, config.ports[0].prefix), (IpAddr::from([10, 0, 1, 1]), 24));
    assert_eq!(config.ports[1].side, Side::Workers);
    assert_eq!(config.pools[0].1.policy.to_string(), "horus");
    assert_eq!(
        (config.pools[0].1.queue.tasks, config.pools[0].1.queue.overflow),
        (4096, Overflow::Drop)
    );
    assert_eq!(config.servers[0].workers, (0..32).collect::<Vec<_>>());
    assert_eq!(config.servers[0].mac, Some(Mac([2, 0, 0, 0, 2, 11])));
    assert_eq!(config.servers[0].speed, 1.0);
    assert!(!config.servers[0].registers && !config.pools[0].1.fixed.shared_workers);
    assert_eq!(config.leaf.multi_packet_per_source, 256);
}

// promise: input.2
#[test]
fn trust_settings_are_explicit() {
    let text = GOOD.replace("\"horus\"", "\"horus\"\nshared_workers = true") + "registers = true\n";
    let config = parse(&text.replace("seed = 7", "multi_packet_per_source = 9")).unwrap();
    assert!(config.servers[0].registers && config.pools[0].1.fixed.shared_workers);
    assert_eq!(config.leaf.multi_packet_per_source, 9);
    let few = parse(&GOOD.replace("seed = 7", "connections = 64")).unwrap();
    assert_eq!(few.leaf.multi_packet_per_source, 64, "at most `connections`");
}

// promise: scheduling.6
#[test]
fn message_reports_require_a_suitable_policy() {
    let with_messages = |policy: &str| {
        let lines = format!("\"{policy}\"\nreports = \"messages\"");
        parse(&GOOD.replace("\"horus\"", &lines))
    };
    assert_eq!(parse(GOOD).unwrap().pools[0].1.fixed.reports, Reports::Replies);
    // Policies whose members choose the time of their reports.
    for policy in ["lsq-update", "lsq-smart(eps=0.1)", "hlsq-smart", "jiq", "jbt(r=3)", "pi"] {
        assert_eq!(
            with_messages(policy).unwrap().pools[0].1.fixed.reports,
            Reports::Messages,
            "{policy}"
        );
    }
    // Policies that probe members for each task.
    for policy in ["lsq-sample", "hlsq-sample(d=3)", "jsq(d=2)", "ppot", "ppot-ll"] {
        assert_eq!(
            with_messages(policy).unwrap().pools[0].1.fixed.reports,
            Reports::Messages,
            "{policy}"
        );
    }
    // With two cores, the answer to a probe could reach the core that did not send it.
    let lines = "\"jsq(d=2)\"\nreports = \"messages\"";
    let text = GOOD.replace("\"horus\"", lines).replace("cores = [1]", "cores = [1, 2]");
    let error = parse(&text).unwrap_err().to_string();
    assert!(error.contains("pool.reports") && error.contains("one core"), "{error}");
    // Policies that need a report in each reply.
    for policy in ["horus", "ppot-learned", "lsq-hybrid", "jbt-d", "jsq", "cfcfs"] {
        let error = with_messages(policy).unwrap_err().to_string();
        assert!(error.contains("leaf.toml:22: `pool.reports`"), "{policy}: {error}");
        assert!(error.contains("lsq-update") && error.contains("lsq-sample"), "{error}");
        assert!(error.contains(policy), "{error}");
    }
    let lines = "\"jiq\"\nreports = \"messages\"\nspine = 3";
    let text = GOOD.replace("\"horus\"", lines) + "[[spine]]\nid = 3\nip = \"10.0.1.9\"\n";
    let error = parse(&text).unwrap_err().to_string();
    assert!(error.contains("pool.reports") && error.contains("beside a `spine`"), "{error}");
}

// promise: packets.2, input.2
#[test]
fn direct_replies_require_a_direct_path() {
    let text = GOOD.replace("\"horus\"", "\"horus\"\nreplies = \"direct\"");
    assert_eq!(parse(GOOD).unwrap().pools[0].1.fixed.replies, ReplyPath::Leaf);
    assert_eq!(parse(&text).unwrap().pools[0].1.fixed.replies, ReplyPath::Direct);
    let port = "[[port]]\ndevice = \"net_memif2\"\nside = \"clients\"\nip = \"10.0.3.1/24\"\n";
    let local =
        "[agent]\nname = \"a\"\n[[agent.pool]]\nid = 1\npolicy = \"jsq\"\nworkers = \"40\"\n";
    let routed = text.replace("10.0.2.1/24\"", "10.0.2.1/24\"\ngateway = \"10.0.2.254\"");
    let routed = routed.replace("10.0.2.11", "10.0.9.11");
    for (text, parts) in [
        (format!("{text}{port}"), ["2 ports for clients", "one such port"]),
        (format!("{text}{local}"), ["leaf's own core", "[[agent.pool]]"]),
        (routed, ["server 10.0.9.11 behind a router", "in the network of a port"]),
    ] {
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains("`pool.replies`: found \"direct\""), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    // A service address is the source of all replies, whatever the port.
    let service =
        format!("{text}{port}").replace("\"direct\"", "\"direct\"\nservice = \"10.0.1.9\"");
    assert!(parse(&service).is_ok());
}

// promise: input.2
#[test]
fn shared_port_is_warned_about() {
    assert_eq!(parse(GOOD).unwrap().warnings(), [""; 0]);
    let unsure = GOOD.replace("mac = ", "# mac = ");
    assert_eq!(parse(&unsure).unwrap().warnings(), [""; 0], "workers have a port of their own");
    // The port to the workers now also has clients. In `unsure`, ARP finds the server's MAC address.
    let share_port = |text: &str| text.replace("\"workers\"", "\"both\"");
    assert_eq!(
        parse(&share_port(GOOD)).unwrap().warnings(),
        [""; 0],
        "no ARP answer changes the `mac`"
    );
    let warnings = parse(&share_port(&unsure)).unwrap().warnings();
    assert_eq!(warnings.len(), 1);
    for part in ["leaf.toml:16: `port.side`: found \"both\"", "10.0.2.11", "; better: a `mac`"] {
        assert!(warnings[0].contains(part), "{part} is missing in {}", warnings[0]);
    }
    // Without servers behind it, a shared port gives no chance to forge replies.
    let clients = unsure.replace("\"clients\"", "\"both\"");
    assert_eq!(parse(&clients).unwrap().warnings(), [""; 0]);
    let short = GOOD.replace("seed = 7", "worker_timeout_ms = 9");
    let warnings = parse(&share_port(&short).replace("mac = ", "# mac = ")).unwrap().warnings();
    assert!(warnings[0].contains("leaf.toml:7: `leaf.worker_timeout_ms`: found 9; better: 0, or"));
    assert!(warnings.len() == 2 && warnings[1].contains("port.side"), "in order: {warnings:?}");
    // 0 means never, and 10 ms is the shortest timeout that agents honour.
    for kept in ["0", "10"] {
        let text = GOOD.replace("seed = 7", &format!("worker_timeout_ms = {kept}"));
        assert_eq!(parse(&text).unwrap().warnings(), [""; 0]);
    }
    let behind_gateway =
        share_port(&unsure).replace("10.0.2.1/24\"", "10.0.3.1/24\"\ngateway = \"10.0.3.2\"");
    assert_eq!(parse(&behind_gateway).unwrap().warnings().len(), 1, "behind a gateway as well");
}

#[test]
fn the_example_with_ipv6_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/ipv6.toml");
    let config = parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(config.ports.iter().all(|port| port.ip.is_ipv6()));
    assert_eq!(config.warnings(), [""; 0]);
}

/// Leaf's file with IPv6 on both sides.
const V6: &str = r#"
[leaf]
id = 1
cores = [0]
[[port]]
device = "net_memif0"
side = "clients"
ip = "fd00:1::1/64"
gateway = "fe80::1"
[[port]]
device = "net_memif1"
side = "workers"
ip = "fd00:2::1/64"
[[pool]]
id = 1
policy = "horus"
[[server]]
ip = "fd00:2::b"
workers = "0-3"
pool = 1
"#;

#[test]
fn ipv6_is_read_and_families_must_fit_together() {
    let config = parse(V6).unwrap();
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!((config.ports[0].ip, config.ports[0].prefix), (address("fd00:1::1"), 64));
    assert_eq!(config.ports[0].gateway, Some(address("fe80::1")));
    assert_eq!(config.servers[0].ip, address("fd00:2::b"));
    let port = config.ports[1].address(Mac([2, 0, 0, 0, 0, 7]));
    assert_eq!(port.v6.map(|v6| v6.prefix), Some(64));
    assert_eq!(config.warnings(), [""; 0]);
    let with_messages =
        parse(&V6.replacen("\"horus\"", "\"lsq-update\"\nreports = \"messages\"", 1)).unwrap();
    assert_eq!(with_messages.pools[0].1.fixed.reports, Reports::Messages);
    let linked =
        "[[spine]]\nid = 9\nip = \"fd00:1::9\"\n[[pool]]\nspine = 9\nservice = \"fd00:1::c8\"\n";
    let linked = parse(&V6.replacen("[[pool]]\n", linked, 1)).unwrap();
    assert_eq!(linked.spines, [Spine { id: 9, ip: address("fd00:1::9") }]);
    assert_eq!(linked.pools[0].1.service, Some(address("fd00:1::c8")));
    let second = "[[server]]\nip = \"10.0.2.11\"\nworkers = \"4\"\npool = 1\n";
    for (old, new, parts) in [
        ("fd00:1::1/64", "fe80::1/64", &["leaf.toml:8: `port.ip`", "fd00:1::1/64"][..]),
        ("fd00:1::1/64", "fd00:1::/64", &["`port.ip`"]),
        ("fd00:1::1/64", "fd00:1::1/129", &["`port.ip`"]),
        ("fd00:1::1/64", "::ffff:10.0.0.1/96", &["`port.ip`"]),
        ("fd00:2::1/64", "fd00:1::1/64", &["an address of its own"]),
        ("fe80::1", "10.0.1.254", &["`port.gateway`", "as `port.ip` is"]),
        ("fe80::1", "fd00:9::1", &["`port.gateway`", "in fd00:1::1/64"]),
        ("fd00:2::b", "ff02::1", &["`server.ip`", "IPv4 or IPv6"]),
        ("fd00:2::b", "fd00:2::", &["`server.ip`", "not the network's first"]),
        ("fd00:2::b", "fd00:3::b", &["`server.ip`", "network of a port on the workers' side"]),
        ("fd00:2::b", "fd00:2::1", &["not the leaf's own"]),
        ("[[pool]]", &format!("{second}[[pool]]"), &["`server.ip`", "10.0.2.11"]),
        ("\"horus\"", "\"horus\"\nservice = \"10.0.9.9\"", &["`pool.service`"]),
        ("\"fd00:1::1/64\"\ngateway = \"fe80::1\"", "\"10.0.1.1/24\"", &["`pool.id`", "no client"]),
        (
            "[[pool]]\nid = 1",
            "[[spine]]\nid = 9\nip = \"10.0.1.9\"\n[[pool]]\nid = 1\nspine = 9",
            &["`pool.spine`", "spine 9, which has 10.0.1.9", "family of fd00:2::b"],
        ),
    ] {
        assert!(V6.contains(old), "{old}");
        let error = parse(&V6.replacen(old, new, 1)).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{new}: `{part}` is missing in\n{error}");
        }
    }
}

/// Replaces one text of [`GOOD`] and expects the error to contain all `expected` parts: place, key, value found and
/// allowed values.
fn faulty(old: &str, new: &str, expected: &[&str]) {
    assert!(GOOD.contains(old), "{old}");
    let text = GOOD.replacen(old, new, 1);
    let error = parse(&text).unwrap_err().to_string();
    for part in expected {
        assert!(error.contains(part), "{new}: `{part}` is missing in\n{error}");
    }
}

// promise: input.2
#[test]
fn every_fault_names_place_and_allowed_values() {
    faulty("id = 1\nudp", "id = 40000\nudp", &["leaf.toml:3", "leaf.id", "40000", "0 to 32766"]);
    faulty("id = 1\nudp", "id = -1\nudp", &["leaf.toml:3", "leaf.id", "-1", "0 to 32766"]);
    faulty("udp_port = 1234", "udp_port = 0", &["leaf.toml:4", "leaf.udp_port", "1 to 65535"]);
    faulty("udp_port = 1234", "udpport = 1234", &["leaf.toml:4", "udpport", "udp_port"]);
    faulty(
        "seed = 7",
        "worker_timeout_ms = 70000",
        &["leaf.toml:7", "leaf.worker_timeout_ms", "70000", "0 to 65535"],
    );
    faulty(
        "seed = 7",
        "connections = 8\nmulti_packet_per_source = 9",
        &["leaf.toml:8", "leaf.multi_packet_per_source", "found 9", "1 to 8"],
    );
    faulty(
        "seed = 7",
        "multi_packet_per_source = 0",
        &["leaf.multi_packet_per_source", "found 0", "1 to 65536"],
    );
    faulty("seed = 7", "workers_max = 1", &["leaf.toml:7", "leaf.workers_max", "found 1"]);
    faulty("seed = 7", "pools_max = 0", &["leaf.toml:7", "leaf.pools_max", "found 0"]);
    // All pools together have 262,136 places, so each of 1000 pools has 262.
    faulty(
        "seed = 7",
        "pools_max = 1000\nworkers_max = 300",
        &["leaf.toml:8", "leaf.workers_max", "found 300", "to 262"],
    );
    faulty("pool = 1\n", "pool = 1\nregisters = 1\n", &["leaf.toml:28", "server.registers"]);
    faulty(
        "policy = \"horus\"",
        "policy = \"horus\"\nshared_workers = \"no\"",
        &["leaf.toml:22", "pool.shared_workers"],
    );
    faulty("cores = [1]", "cores = []", &["leaf.toml:5", "leaf.cores", "0 cores", "1 to 64"]);
    faulty("cores = [1]", "cores = [1, 1]", &["leaf.cores", "1 twice", "each CPU once"]);
    faulty("cores = [1]", "cores = \"1\"", &["leaf.toml:5", "leaf.cores", "found \"1\"", "a list"]);
    faulty("cores = [1]\n", "", &["cores", "no key"]);
    faulty("\"clients\"", "\"client\"", &["leaf.toml:11", "port.side", "client", "workers"]);
    faulty("10.0.1.1/24", "10.0.1.1", &["leaf.toml:12", "port.ip", "10.0.1.1/24"]);
    faulty(
        "pool = 1\n",
        "pool = 1\nspeed = 0\n",
        &["leaf.toml:28", "server.speed", "0.001 to 1000"],
    );
    faulty("pool = 1\n", "pool = 1\nspeed = nan\n", &["leaf.toml:28", "server.speed", "NaN"]);
    faulty("pool = 1\n", "pool = 1\nspeed = \"fast\"\n", &["leaf.toml:28", "fast"]);
    faulty("10.0.1.1/24", "10.0.1.255/24", &["leaf.toml:12", "port.ip", "a host's address"]);
    faulty("10.0.1.1/24", "10.0.1.0/24", &["leaf.toml:12", "port.ip", "a host's address"]);
    faulty("10.0.1.1/24", "10.0.1.1/33", &["leaf.toml:12", "port.ip", "/33"]);
    faulty("10.0.2.1/24", "10.0.1.1/24", &["leaf.toml:17", "port.ip", "address of its own"]);
    faulty("net_memif1", "net_memif0", &["leaf.toml:15", "port.device", "each device once"]);
    faulty("\"workers\"", "\"clients\"", &["port.side", "no port on the workers' side"]);
    faulty(
        "policy = \"horus\"",
        "policy = \"hours\"",
        &["leaf.toml:21", "pool.policy", "hours", "horus,"],
    );
    for (policy, says) in [
        (
            "'auto(objective=foo)'",
            &["leaf.toml:21", "pool.policy", "unknown objective `foo`", "p99.9"],
        ),
        (
            "'auto(goal=p99)'",
            &["leaf.toml:21", "pool.policy", "no parameter `goal`", "`objective`"],
        ),
        (
            "'auto'\nreports = 'messages'",
            &["leaf.toml:22", "pool.reports", "auto(objective=p99)", "replies"],
        ),
        ("'auto'\nreplies = 'direct'", &["leaf.toml:21", "pool.policy", "no replies", "\"leaf\""]),
        (
            "'auto'\nshared_workers = true",
            &["leaf.toml:21", "pool.policy", "not see all tasks", "horus"],
        ),
    ] {
        faulty("policy = \"horus\"", &format!("policy = {policy}"), says);
    }
    let spine = &["leaf.toml:21", "pool.policy", "horus-spine", "racks", "for a leaf"];
    faulty("policy = \"horus\"", "policy = \"horus-spine\"", spine);
    faulty(
        "policy = \"horus\"",
        "policy = \"horus\"\nqueue = 0",
        &["leaf.toml:22", "pool.queue", "found 0", "1 to 65536"],
    );
    faulty(
        "policy = \"horus\"",
        "policy = \"horus\"\noverflow = \"lose\"",
        &["leaf.toml:22", "pool.overflow", "lose", "drop", "refuse"],
    );
    faulty("10.0.2.11", "10.0.2", &["leaf.toml:24", "server.ip", "10.0.2`", "host's IPv4"]);
    faulty("10.0.2.11", "10.0.3.11", &["leaf.toml:24", "server.ip", "10.0.3.11", "gateway"]);
    faulty("10.0.2.11", "10.0.2.1", &["leaf.toml:24", "server.ip", "leaf's own"]);
    faulty("02:00:00:00:02:0b", "02:00", &["leaf.toml:25", "server.mac", "02:00", "MAC"]);
    faulty("02:00:00:00:02:0b", "ff:ff:ff:ff:ff:ff", &["server.mac", "unicast"]);
    faulty("\"0-31\"", "\"0-40000\"", &["leaf.toml:26", "server.workers", "0 to 32766"]);
    faulty("\"0-31\"", "\"31-0\"", &["server.workers", "backwards"]);
    faulty("pool = 1\n", "pool = 2\n", &["leaf.toml:27", "server.pool", "2", "a [[pool]]'s id: 1"]);
    faulty("pool = 1\n", "", &["server", "no key `pool`"]);
    faulty(
        "id = 1\npolicy",
        "id = 1\ncolour = 3\npolicy",
        &["leaf.toml:21", "pool", "colour", "`id`"],
    );
    faulty("seed = 7", "seed = ", &["leaf.toml:7"]);
    faulty("[leaf]", "[leaf", &["leaf.toml:2"]);
}

entry! {
    /// An entry with a field that is no key.
    #[allow(dead_code, reason = "the test only creates it")]
    Misspelt {
        id: Spanned<u16>,
        key_fil: Option<Spanned<String>>,
    }
}

#[test]
#[should_panic(expected = "entry Misspelt: key `key_fil` is none of [\"id\", \"policy\", ")]
fn entry_with_misspelt_field_is_refused() {
    let file = super::read::File::read("leaf", GOOD).map_err(|_| ()).unwrap();
    drop(file.entries("pool", Misspelt::of));
}

// promise: input.2
#[test]
fn unknown_key_suggests_the_nearest() {
    faulty("udp_port = 1234", "udpport = 1234", &["`udpport` (did you mean `udp_port`?)"]);
    faulty("cores = [1]", "core = [1]", &["the unknown key `core` (did you mean `cores`?)"]);
    faulty("\"clients\"", "\"client\"", &["`client` (did you mean `clients`?)"]);
    faulty("\"horus\"", "\"hours\"", &["unknown policy `hours` (did you mean `horus`?)"]);
    let misspelt = "\"lsq-smart(esp=0.2)\"";
    faulty("\"horus\"", misspelt, &["no parameter `esp` (did you mean `eps`?); it has eps"]);
    let device = "\"net_memif0,id=0,rolle=server\"";
    let parts =
        ["leaf.toml:10: `port.device`", "`rolle`", "did you mean `role`?", "allowed: role,"];
    faulty("\"net_memif0\"", device, &parts);
    let text = GOOD.replacen("seed = 7", "colour = 7", 1);
    assert!(!parse(&text).unwrap_err().to_string().contains("mean"), "nothing is alike");
    // A newer driver may have this argument. It gives a warning, not a fault.
    let text = GOOD.replacen("net_memif1", "net_af_packet1,iface=veth0,fancout=2", 1);
    let warnings = parse(&text).unwrap().warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("`fancout`"), "{warnings:?}");
}

#[test]
fn port_permits_ip_options_if_configured() {
    let with = |line: &str| parse(&GOOD.replacen("side = \"clients\"", line, 1));
    assert_eq!(parse(GOOD).unwrap().ports[0].ip_options, IpOptions::Refuse);
    let permits = with("side = \"clients\"\nip_options = \"harmless\"").unwrap();
    let options = [permits.ports[0].ip_options, permits.ports[1].ip_options];
    assert_eq!(options, [IpOptions::Harmless, IpOptions::Refuse]);
    let line = "\"clients\"\nip_options = \"harmles\"";
    faulty("\"clients\"", line, &["port.ip_options", "did you mean `harmless`", "refuse"]);
}

#[test]
fn a_port_may_trust_checksums() {
    let with = |line: &str| parse(&GOOD.replacen("side = \"clients\"", line, 1));
    assert!(!parse(GOOD).unwrap().ports[0].trust_checksums);
    let trusts = with("side = \"clients\"\nchecksums = \"trust\"").unwrap();
    assert!(trusts.ports[0].trust_checksums && !trusts.ports[1].trust_checksums);
    assert!(!with("side = \"clients\"\nchecksums = \"verify\"").unwrap().ports[0].trust_checksums);
    let line = "\"clients\"\nchecksums = \"thrust\"";
    faulty("\"clients\"", line, &["port.checksums", "did you mean `trust`", "verify"]);
}

#[test]
fn a_port_may_be_in_a_vlan() {
    let with = |line: &str| parse(&GOOD.replacen("side = \"clients\"", line, 1));
    let config = with("side = \"clients\"\nvlan = 4094").unwrap();
    assert_eq!((config.ports[0].vlan, config.ports[1].vlan), (Some(4094), None));
    for id in ["0", "4095", "-1"] {
        let line = format!("\"clients\"\nvlan = {id}");
        faulty("\"clients\"", &line, &["port.vlan", id, "1 to 4094"]);
    }
}

#[test]
fn cores_poll_unless_adaptive() {
    let with = |line: &str| parse(&GOOD.replacen("id = 1", &format!("id = 1\n{line}"), 1));
    assert_eq!(with("").unwrap().leaf.poll, PollMode::Busy);
    assert_eq!(with("poll = \"adaptive\"").unwrap().leaf.poll, PollMode::Adaptive);
    faulty(
        "id = 1",
        "id = 1\npoll = \"adaptiv\"",
        &["leaf.poll", "did you mean `adaptive`", "busy"],
    );
}

// promise: input.2
#[test]
fn keys_that_change_nothing_are_warned_of() {
    let warned = |old: &str, new: &str, expected: &[&str]| {
        assert!(GOOD.contains(old), "{old}");
        let warnings = parse(&GOOD.replacen(old, new, 1)).unwrap().warnings();
        assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
        for (warning, part) in warnings.iter().zip(expected) {
            assert!(warning.contains(part), "{part} is missing in {warning}");
        }
    };
    let keys = "\nqueue = 9\noverflow = \"drop\"";
    warned(
        "\"horus\"",
        &format!("\"horus\"{keys}"),
        &[
            "leaf.toml:22: `pool.queue`: found a key that changes nothing: under horus no task waits",
            "leaf.toml:23: `pool.overflow`",
        ],
    );
    warned("\"horus\"", &format!("\"cfcfs\"{keys}"), &[]);
    let asks = format!("\"jsq(d=2)\"\nreports = \"messages\"{keys}");
    warned("\"horus\"", &asks, &[]);
    warned("pool = 1\n", "pool = 1\nspeed = 2.0\n", &["`server.speed`"]);
    let sed = GOOD.replacen("\"horus\"", "\"sed\"", 1).replacen(
        "pool = 1\n",
        "pool = 1\nspeed = 2.0\n",
        1,
    );
    assert_eq!(parse(&sed).unwrap().warnings(), [""; 0]);
    let group = "state_group = \"0\"";
    warned("state = \"/dev/shm/wedjat-leaf1\"", group, &["`leaf.state_group`: found a key"]);
}

/// Each range in the tables of docs/reference/configuration.md is enforced, and its message names it.
// promise: input.2
#[test]
fn documented_ranges_are_enforced_and_reported() {
    use super::keys::Kind;
    use super::keys::tests::{all, check, sample, with};
    let mut checked = 0;
    for (file, header, key) in all() {
        let (least, most) = match key.kind {
            Kind::Integer(least, most) => (least as f64, most as f64),
            Kind::Number(least, most) => (least, most),
            Kind::Id("0 to 65535") => (0.0, 65_535.0),
            _ => continue,
        };
        let name = format!("{file}: {} of {header}", key.name);
        let text = sample(file, &header);
        let check =
            |value: f64| check(file, &with(&text, &header, key.name, Some(&value.to_string())));
        for value in [least, most] {
            if let Err(error) = check(value) {
                panic!("{name} = {value}: {error}");
            }
        }
        for value in [least - 1.0, most + 1.0] {
            let error = check(value).unwrap_err();
            let texts = [format!("allowed: {least} to {most}"), format!("from {least} to {most}")];
            assert!(texts.iter().any(|text| error.contains(text)), "{name} = {value}: {error}");
        }
        checked += 1;
    }
    // The loop must not have skipped most keys.
    assert!(checked >= 40, "{checked} ranges are found");
}

/// An address that no host can have is refused in the keys of ports and servers.
// promise: input.2
#[test]
fn every_address_is_a_hosts() {
    let text = GOOD.replace("10.0.2.1/24\"", "10.0.2.1/24\"\ngateway = \"10.0.2.254\"");
    assert!(parse(&text).is_ok());
    let keys = [
        ("10.0.1.1/24", "leaf.toml:12: `port.ip`"),
        ("10.0.2.254", "leaf.toml:18: `port.gateway`"),
        ("10.0.2.11", "leaf.toml:25: `server.ip`"),
    ];
    // Unspecified, loopback, multicast, reserved and broadcast addresses.
    let nobodys = ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.9", "240.0.0.1", "255.255.255.255"];
    for (old, place) in keys {
        let (address, prefix) = old.split_at(old.find('/').unwrap_or(old.len()));
        let edges = ["0", "255"].map(|last| match address.rsplit_once('.') {
            Some((network, _)) => format!("{network}.{last}"),
            None => panic!("{address} has no dots"),
        });
        for bad in nobodys.map(str::to_owned).iter().chain(&edges) {
            let error = parse(&text.replacen(old, &format!("{bad}{prefix}"), 1)).unwrap_err();
            let all = error.to_string();
            assert!(
                all.starts_with(&format!("{place}: found `{bad}{prefix}`; allowed: a host's")),
                "{all}"
            );
            let once = error.faults.iter().filter(|fault| fault.found.contains(bad)).count();
            assert_eq!(once, 1, "reported once: {all}");
        }
    }
    // A network of two addresses has no network or broadcast address. Behind a gateway the network's size is
    // unknown.
    let pair = text.replace("10.0.2.1/24", "10.0.2.254/31").replace("10.0.2.254\"", "10.0.2.255\"");
    assert!(parse(&pair).is_ok(), "{}", parse(&pair).unwrap_err());
    faulty("02:00:00:00:02:0b", "00:00:00:00:00:00", &["leaf.toml:25", "server.mac", "unicast"]);
}

// promise: trust.3
#[test]
fn a_pool_may_have_a_key() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool1.key");
    std::fs::write(&path, "000102030405060708090a0b0c0d0e0f\n").unwrap();
    let line = format!("policy = \"horus\"\nkey_file = \"{}\"", path.display());
    let text = GOOD.replace("policy = \"horus\"", &line);
    let mode = |mode| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o600);
    let config = parse(&text).unwrap();
    assert!(
        config.pools[0].1.fixed.key.is_some()
            && parse(GOOD).unwrap().pools[0].1.fixed.key.is_none()
    );
    assert!(config.servers[0].registers, "servers of a pool with a key register by default");
    let v6 = parse(&V6.replace("policy = \"horus\"", &line)).unwrap();
    assert!(v6.pools[0].1.fixed.key.is_some() && v6.servers[0].registers);
    assert!(!parse(&(text.clone() + "registers = false\n")).unwrap().servers[0].registers);
    let shown = format!("{config:?}");
    assert!(!shown.contains("0001020304"), "a configuration does not show it: {shown}");
    mode(0o644);
    let error = parse(&text).unwrap_err().to_string();
    for part in ["leaf.toml:22", "pool.key_file", "pool1.key", "mode 0644", "0600", "openssl rand"]
    {
        assert!(error.contains(part), "`{part}` is missing in\n{error}");
    }
    assert!(!error.contains("0001020304"), "{error}");
    faulty(
        "policy = \"horus\"",
        "policy = \"horus\"\nkey_file = \"/no/such.key\"",
        &["/no/such.key", "read"],
    );
}

#[test]
fn central_queues_need_buffers() {
    let central = GOOD.replace("\"horus\"", "\"jbsq(k=3)\"\nqueue = 20000\noverflow = \"refuse\"");
    let config = parse(&central).unwrap();
    assert_eq!(
        (config.pools[0].1.queue.tasks, config.pools[0].1.queue.overflow),
        (20_000, Overflow::Refuse)
    );
    // The queue, and twice the 1024 slots of each of the two ports.
    assert_eq!(config.leaf.mbufs, 20_000 + 4 * 1024, "the default suffices");
    let with = |mbufs: u32| central.replace("seed = 7", &format!("mbufs = {mbufs}"));
    assert!(parse(&with(24_096)).is_ok());
    let error = parse(&with(24_095)).unwrap_err().to_string();
    for part in ["leaf.toml:7", "leaf.mbufs", "24095", "at least 24096"] {
        assert!(error.contains(part), "{error}");
    }
}

// promise: input.2
#[test]
fn all_faults_are_reported_in_order() {
    let text = GOOD.replace("udp_port = 1234", "udp_port = 0").replace("0-31", "x");
    let error = parse(&text).unwrap_err();
    let lines: Vec<_> = error.faults.iter().map(|fault| fault.line).collect();
    assert_eq!(lines, [4, 26]);
}

#[test]
fn workers_are_unique_over_servers() {
    // First worker 31 at two servers, then one server twice in a pool.
    let second = "\n[[server]]\nip = \"10.0.2.12\"\nworkers = \"31-40\"\npool = 1\n";
    let error = parse(&format!("{GOOD}{second}")).unwrap_err().to_string();
    assert!(error.contains("worker 31, which server 10.0.2.11 has"), "{error}");
    let same_server = "\n[[server]]\nip = \"10.0.2.11\"\nworkers = \"32\"\npool = 1\n";
    assert!(parse(&format!("{GOOD}{same_server}")).is_err());
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = Config::load(Path::new("no/such/leaf.toml")).unwrap_err().to_string();
    assert!(error.contains("no/such/leaf.toml") && error.contains("can't be read"), "{error}");
}

#[test]
fn leaf_may_have_local_workers() {
    let text = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/host.toml"),
    );
    let text = text.unwrap();
    let read = |text: &str| Config::parse(Path::new("host.toml"), text);
    let config = read(&text).unwrap_or_else(|error| panic!("{error}"));
    let agent = config.agent.unwrap();
    assert_eq!((&agent.name[..], agent.identities().len()), ("host1", 4));
    // Text of the file, its replacement, and parts of the error.
    let cases: [(&str, &str, &[&str]); 9] = [
        ("cores = [0]", "cores = [0, 1]", &["leaf.cores", "2 cores", "one"]),
        ("name = \"host1\"", "name = \"\"", &["agent.name"]),
        ("slots = 64", "slots = 65", &["agent.slots", "power of two"]),
        (
            "workers = \"0-3\"",
            "workers = \"0-4\"",
            &["agent.pool.workers", "worker 4", "10.0.2.11"],
        ),
        ("[[agent.pool]]\nid = 1", "[[agent.pool]]\nid = 9", &["agent.pool.id", "a [[pool]]"]),
        ("policy = \"cfcfs\"", "policy = \"horus-spine\"", &["agent.pool.policy", "spine"]),
        ("10.0.2.1/24", "169.254.1.1/16", &["port.ip", "leads to the [agent]"]),
        ("[[agent.pool]]\nid = 1", "[[agent.pool]]\ncolour = 1\nid = 1", &["colour"]),
        (
            "[[agent.pool]]\nid = 1",
            "[[agent.pool]]\nkey_file = \"x\"\nid = 1",
            &["agent.pool.key_file", "`x`", "inside a process"],
        ),
    ];
    for (old, new, expected) in cases {
        assert!(text.contains(old), "{old}");
        let error = read(&text.replacen(old, new, 1)).unwrap_err().to_string();
        for part in expected {
            assert!(error.contains(part), "{new}: `{part}` is missing in\n{error}");
        }
    }
    // All workers may be on this host. Then no port needs to lead to workers.
    let alone = text.replace("side = \"workers\"", "side = \"clients\"");
    let (before, rest) = alone.split_once("[[server]]").unwrap();
    let (_, after) = rest.split_once("[agent]").unwrap();
    read(&format!("{before}[agent]{after}")).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn own_workers_have_the_family_of_all_ports() {
    let workers =
        "[agent]\nname = 'a'\n[[agent.pool]]\nid = 1\npolicy = 'cfcfs'\nworkers = '120-121'\n";
    let text = format!("{V6}{workers}");
    let host = parse(&text).unwrap_or_else(|error| panic!("{error}")).agent.unwrap();
    assert!(host.ip.is_ipv6());
    let over_v4 = parse(&format!("{GOOD}{workers}")).unwrap_or_else(|error| panic!("{error}"));
    assert!(over_v4.agent.unwrap().ip.is_ipv4());
    // A larger header leaves less room for a task.
    assert_eq!(host.payload, agent::PAYLOAD_MAX - (ipv6::LEN - ipv4::LEN));
    let port = "[[port]]\ndevice = 'c'\nside = 'clients'\nip = '10.0.1.1/24'\n[[pool]]";
    for (old, new, parts) in [
        ("[[pool]]", port, ["pool 1 with IPv6 servers", "IPv6 addresses for all [[port]]s"]),
        ("fd00:2::1/64", "fd5c:9e1b:7ad4:77::9/64", ["port.ip", "leads to the [agent]"]),
    ] {
        let error = parse(&text.replacen(old, new, 1)).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn refused_port_address_gives_one_fault() {
    let workers =
        "[agent]\nname = 'a'\n[[agent.pool]]\nid = 1\npolicy = 'cfcfs'\nworkers = '120-121'\n";
    for (text, address) in [(GOOD, "10.0.1.1/24"), (V6, "fd00:1::1/64")] {
        assert!(text.contains(address));
        let text = format!("{text}{workers}").replacen(address, "10.0.1.256/24", 1);
        let error = parse(&text).unwrap_err();
        assert_eq!(error.faults.len(), 1, "{error}");
        assert!(error.to_string().contains("`port.ip`: found `10.0.1.256/24`"), "{error}");
    }
}

/// Spine's file without faults. Its line 1 is empty.
const SPINE: &str = r#"
[spine]
id = 90
cores = [1]
[[port]]
device = "net_memif0"
side = "clients"
ip = "10.0.1.1/24"
[[port]]
device = "net_memif1"
side = "workers"
ip = "10.0.3.1/24"
[[pool]]
id = 1
policy = "horus-spine"
service = "10.0.1.100"
[[leaf]]
id = 7
ip = "10.0.3.11"
pool = 1
workers = 32
[[leaf]]
id = 8
ip = "10.0.3.12"
pool = 1
workers = 16
"#;

// promise: input.2
#[test]
fn a_spines_file_has_leaves_for_workers() {
    let config = Config::parse(Path::new("spine.toml"), SPINE).unwrap();
    // A leaf counts as silent after 30 ms by default.
    assert_eq!((config.role, config.leaf.id, config.leaf.worker_timeout_ms), (Role::Spine, 90, 30));
    assert_eq!(config.pools[0].1.service, Some(IpAddr::from([10, 0, 1, 100])));
    let leaves: Vec<_> = config.servers.iter().map(|one| (&one.workers[..], one.speed)).collect();
    assert_eq!(leaves, [(&[7][..], 32.0), (&[8][..], 16.0)]);
    // The default of `leaves_max`, for leaves and for members of a pool.
    assert_eq!((config.leaf.limits.servers, config.leaf.limits.workers), (64, 64));
    let over_v6 = [("10.0.1.1/24", "fd00:1::1/64"), ("10.0.3.1/24", "fd00:3::1/64")];
    let over_v6 = over_v6.into_iter().chain([
        ("10.0.1.100", "fd00:1::100"),
        ("10.0.3.11", "fd00:3::11"),
        ("10.0.3.12", "fd00:3::12"),
    ]);
    let text = over_v6.fold(SPINE.to_owned(), |text, (old, new)| text.replace(old, new));
    let v6 = Config::parse(Path::new("spine.toml"), &text).unwrap();
    assert_eq!(v6.pools[0].1.service.map(|ip| ip.to_string()).as_deref(), Some("fd00:1::100"));
    assert!(v6.servers.iter().all(|leaf| leaf.ip.is_ipv6()));
    for (old, new, part) in [
        ("fd00:3::12", "10.0.3.12", "`leaf.ip`"),
        ("fd00:1::100", "10.0.1.100", "an address of the family of fd00:3::11"),
        ("fd00:1::1/64", "10.0.1.1/24", "no clients of that family"),
        ("fd00:3::11", "fe80::11", "`leaf.ip`"),
    ] {
        let error = Config::parse(Path::new("spine.toml"), &text.replace(old, new)).unwrap_err();
        assert!(error.to_string().contains(part), "{new}: {error}");
    }
    let error = config.of(Role::Leaf).unwrap_err().to_string();
    for part in ["spine.toml: found a spine's file", "a leaf's; `wedjat spine` runs this one"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(Config::parse(Path::new("leaf.toml"), GOOD).unwrap().of(Role::Spine).is_err());
}

// promise: input.2
#[test]
fn every_spine_fault_names_its_place() {
    // Text of the file, its replacement, and parts of the error.
    let cases: [(&str, &str, &[&str]); 12] = [
        ("id = 90", "id = 40000", &["spine.toml:3", "spine.id", "40000"]),
        ("cores = [1]", "cores = [1]\nworkers_max = 4", &["spine.toml:5", "spine.workers_max"]),
        ("cores = [1]", "cores = [1]\nleaves_max = 1", &["spine.toml:5", "spine.leaves_max", "2"]),
        (
            "\"horus-spine\"",
            "\"horus\"",
            &["spine.toml:15", "pool.policy", "horus-spine, horus-spine-weighted"],
        ),
        ("\"10.0.1.100\"", "\"10.0.3.11\"", &["spine.toml:16", "pool.service", "[[leaf]]"]),
        (
            "\"10.0.1.100\"",
            "\"10.0.1.1\"",
            &["spine.toml:16", "pool.service", "other than the ports'"],
        ),
        ("\"10.0.1.100\"", "\"10.0.1.100\"\nspine = 90", &["spine.toml:17", "pool.spine"]),
        ("\"10.0.1.100\"", "\"10.0.1.100\"\nqueue = 9", &["spine.toml:17", "pool.queue"]),
        ("workers = 32", "workers = 0", &["spine.toml:21", "leaf.workers", "1 to 32766"]),
        ("10.0.3.12", "10.0.3.11", &["spine.toml:24", "leaf.ip", "which leaf 7 has"]),
        ("id = 8", "id = 7", &["spine.toml:24", "leaf.ip", "one address for each leaf"]),
        ("pool = 1\nworkers = 16", "pool = 2\nworkers = 16", &["spine.toml:25", "leaf.pool", "2"]),
    ];
    for (old, new, parts) in cases {
        let text = SPINE.replacen(old, new, 1);
        assert_ne!(text, SPINE, "{old}");
        let error = Config::parse(Path::new("spine.toml"), &text).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{new}: {error}");
    }
}

// promise: input.2
#[test]
fn leaf_names_spines_and_signal_settings() {
    let spines = "[[spine]]\nid = 90\nip = \"10.0.1.3\"\n";
    let linked = |keys: &str| {
        let policy = "policy = \"horus\"";
        GOOD.replacen(policy, &format!("{policy}\n{keys}"), 1) + spines
    };
    let parse = |keys: &str| Config::parse(Path::new("leaf.toml"), &linked(keys));
    let config = parse("spine = 90\nservice = \"10.0.9.1\"").unwrap();
    let link = (Spine { id: 90, ip: IpAddr::from([10, 0, 1, 3]) }, Protocol::Paper);
    assert_eq!((config.spines.len(), config.pools[0].1.link), (1, Some(link)));
    let protocol_for = |signals: &str| {
        let config = parse(&format!("spine = 90\nsignals = \"{signals}\"")).unwrap();
        config.pools[0].1.link.unwrap().1
    };
    assert_eq!(
        (protocol_for("every-reply"), protocol_for("none")),
        (Protocol::EveryReply, Protocol::Silent)
    );
    for (keys, part) in [
        ("spine = 91", "the id of a [[spine]]"),
        ("signals = \"horus\"", "a `spine` beside them"),
        ("service = \"10.0.2.11\"", "[[server]]"),
        ("service = \"127.0.0.1\"", "a host's IPv4 or IPv6 address"),
        ("service = \"fd00:9::1\"", "an address of the family of 10.0.2.11"),
    ] {
        let error = parse(keys).unwrap_err().to_string();
        assert!(error.contains(part), "{keys}: {error}");
    }
    let twice = GOOD.to_owned() + spines + spines;
    let error = Config::parse(Path::new("leaf.toml"), &twice).unwrap_err().to_string();
    assert!(error.contains("90 again") && error.contains("each address once"), "{error}");
}

/// Leaf's file with most keys of a leaf.
const MOST_KEYS: &str = r#"
[leaf]
id = 1
udp_port = 1234
cores = [1]
state = "/dev/shm/s"
state_group = "0"
seed = 7
mbufs = 16383
poll = "busy"
connections = 64
multi_packet_per_source = 8
connection_timeout_ms = 100
worker_timeout_ms = 100
pools_max = 8
servers_max = 64
workers_max = 64
[[port]]
device = "net_memif0"
side = "both"
ip = "10.0.1.1/24"
mac = "02:00:00:00:00:01"
gateway = "10.0.1.2"
queue_slots = 64
vlan = 5
checksums = "trust"
[[pool]]
id = 1
policy = "jbsq(k=2)"
queue = 16
overflow = "refuse"
shared_workers = true
reports = "replies"
service = "10.0.9.9"
spine = 3
signals = "horus"
[[server]]
ip = "10.0.1.11"
mac = "02:00:00:00:02:0b"
workers = "0-31"
pool = 1
speed = 1.0
registers = true
[[spine]]
id = 3
ip = "10.0.1.9"
[control]
listen = "127.0.0.1:7070"
metrics = "127.0.0.1:7071"
"#;

/// Terms of the TOML reader and of serde that users must not see.
const READERS_WORDS: [&str; 14] = [
    "invalid type",
    "invalid value",
    "unknown variant",
    "unknown field",
    "missing field",
    "expected",
    "i64",
    "u16",
    "u64",
    "usize",
    "f64",
    "struct ",
    "sequence",
    "boolean",
];

// promise: input.2
#[test]
fn wrong_types_are_reported_as_wrong_values() {
    parse(MOST_KEYS).unwrap();
    let lines: Vec<_> = MOST_KEYS.lines().collect();
    let wrong = ["true", "\"x\"", "5", "-1", "1.5", "[true]", "{ a = 1 }", "1979-05-27", "[[1]]"];
    let mut table = "";
    let mut messages = std::collections::BTreeSet::new();
    for (index, line) in lines.iter().enumerate() {
        if line.starts_with('[') {
            table = line.trim_matches(['[', ']']);
        }
        let Some((key, _)) = line.split_once(" = ") else { continue };
        for value in wrong {
            let changed = format!("{key} = {value}");
            let mut lines = lines.clone();
            lines[index] = &changed;
            let Err(error) = parse(&lines.join("\n")) else { continue };
            let message = error.to_string();
            messages.insert(message.split_once("found").unwrap().1.to_owned());
            let (line, key) = (index + 1, format!("{table}.{key}"));
            let is_named = error.faults.iter().any(|fault| fault.line == line && fault.key == key);
            // 5 is an id of the right type that other entries do not name. A value of [leaf] may be at fault at
            // another key, which depends on it.
            assert!(is_named || table == "leaf" || value == "5", "{changed}: {message}");
            for word in READERS_WORDS {
                assert!(!message.contains(word), "{word} in {message}");
            }
        }
    }
    // The loop must have tried most keys.
    assert!(messages.len() > 50);
    messages.iter().for_each(|message| println!("found{message}"));
}

#[test]
fn more_places_than_the_state_has_are_refused() {
    // 262,136 places in all: 873 pools of 300 workers are 261,900, and 874 are 262,200.
    let with = |pools: usize| {
        let text = GOOD.replace("\"0-31\"", "\"0-299\"");
        parse(&text.replace("seed = 7", &format!("pools_max = {pools}")))
    };
    assert_eq!(with(873).unwrap().leaf.limits.workers, 300);
    let error = with(874).unwrap_err().to_string();
    for part in ["leaf.toml:7", "`leaf.pools_max`", "262200 in all", "262136", "fewer workers"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

// promise: input.2
#[test]
fn key_of_a_multi_line_list_is_named() {
    let text = GOOD.replace("cores = [1]", "cores = [\n  1,\n  # two\n  \"x\",\n]");
    let fault = &parse(&text).unwrap_err().faults[0];
    assert_eq!((&fault.key[..], &fault.found[..]), ("leaf.cores", "\"x\""));
    assert_eq!(fault.allowed, "a whole number from 0");
    let negative = GOOD.replace("cores = [1]", "cores = [-1]");
    assert_eq!(parse(&negative).unwrap_err().faults[0].allowed, "a whole number from 0");
}

#[test]
fn brackets_in_comments_open_no_list() {
    let text = GOOD.replace("cores = [1]", "# [an open bracket\ncores = [1]");
    let error = parse(&text.replace("seed = 7", "seed = = 7")).unwrap_err();
    assert_eq!(error.faults[0].key, "leaf.seed");
}

// promise: input.2
#[test]
fn listener_and_metrics_need_two_addresses() {
    let with = |listen: &str, metrics: &str| {
        parse(&format!("{GOOD}[control]\nlisten = \"{listen}\"\nmetrics = \"{metrics}\"\n"))
    };
    // Pairs of addresses that overlap.
    for (listen, metrics) in [
        ("127.0.0.1:7070", "127.0.0.1:7070"),
        ("127.0.0.1:7070", "0.0.0.0:7070"),
        ("127.0.0.1:7070", "[::]:7070"),
        ("[::1]:7070", "[::]:7070"),
        ("127.0.0.1:7070", "[::ffff:127.0.0.1]:7070"),
    ] {
        let error = with(listen, metrics).unwrap_err().to_string();
        let expected = format!("`control.metrics`: found `{metrics}`, and {listen} for `listen`");
        assert!(error.contains(&expected) && error.contains("another port"), "{error}");
    }
    // Pairs that do not overlap. Port 0 lets the system pick a free one.
    for (listen, metrics) in [
        ("127.0.0.1:7070", "127.0.0.1:7071"),
        ("127.0.0.1:7070", "127.0.0.2:7070"),
        ("[::1]:7070", "0.0.0.0:7070"),
        ("127.0.0.1:0", "127.0.0.1:0"),
    ] {
        assert!(with(listen, metrics).is_ok(), "{listen} {metrics}");
    }
}

// promise: input.2
#[test]
fn only_regular_files_of_bounded_size_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let big = folder.path().join("big");
    std::fs::File::create(&big).unwrap().set_len((16 << 20) + 1).unwrap();
    for (path, found) in [
        (Path::new("/dev/zero"), "a character device"),
        (&fifo, "a FIFO"),
        (folder.path(), "a folder"),
        (&big, "more than 16777216 bytes"),
    ] {
        let leafs = Config::load(path).unwrap_err().to_string();
        let agents = AgentConfig::load(path).unwrap_err().to_string();
        let controllers = ControllerConfig::load(path).unwrap_err().to_string();
        for error in [leafs, agents, controllers] {
            assert!(error.contains(found) && error.contains("at most 16 MiB"), "{error}");
        }
        assert!(!AgentConfig::is_agents(path) && !ControllerConfig::is_controllers(path));
    }
    let missing = Config::load(&folder.path().join("none")).unwrap_err().to_string();
    assert!(missing.contains("No such file"), "{missing}");
}

/// Runs a check on a thread. Panics after five minutes, far more than a check of linear time takes.
fn within_five_minutes(check: impl FnOnce() + Send + 'static) {
    let (done, is_done) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        check();
        let _ = done.send(());
    });
    match is_done.recv_timeout(std::time::Duration::from_secs(300)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("the check is not linear"),
        _ => thread.join().unwrap_or_else(|failure| std::panic::resume_unwind(failure)),
    }
}

// promise: input.2
#[test]
fn faults_take_linear_time_and_hundred_are_printed() {
    const ENTRIES: usize = 50_000;
    within_five_minutes(|| {
        // Checks a file of `head` and 50,000 entries, most with faults: 100 are printed, and the number of the rest.
        let check = |head: &str, entry: &dyn Fn(usize) -> String| {
            let text = head.to_owned() + &(0..ENTRIES).map(entry).collect::<String>();
            let error = match head.contains("[agent]\nname") && !head.contains("[leaf]") {
                true => AgentConfig::parse(Path::new("x.toml"), &text).unwrap_err(),
                false => Config::parse(Path::new("x.toml"), &text).unwrap_err(),
            };
            assert!(error.faults.len() > ENTRIES / 2, "{} faults", error.faults.len());
            let printed = error.to_string();
            assert_eq!(printed.lines().count(), 101);
            let rest = format!("x.toml: {} more faults not printed", error.faults.len() - 100);
            assert_eq!(printed.lines().last(), Some(&rest[..]));
        };
        let server = |index: usize, rest: &str| {
            let [_, a, b, c] = (index as u32).to_be_bytes();
            format!("[[server]]\nip = \"11.{a}.{b}.{c}\"\n{rest}\n")
        };
        // A missing pool, the same workers, an address that no port leads to, and a key without effect.
        check(GOOD, &|index| server(index, "workers = \"0-32000\"\npool = 9\nspeed = 2.0"));
        // The server and worker of the first entry again.
        check(GOOD, &|_| "[[server]]\nip = \"10.0.2.11\"\nworkers = \"1\"\npool = 1\n".to_owned());
        // Pools with a missing spine, and with a server's address.
        check(GOOD, &|index| {
            let id = index % 60_000;
            format!(
                "[[pool]]\nid = {id}\npolicy = \"horus\"\nqueue = 9\nspine = 5\nservice = \"10.0.2.11\"\n"
            )
        });
        // The same device, and 200 addresses.
        check(GOOD, &|index| {
            format!(
                "[[port]]\ndevice = \"d\"\nside = \"both\"\nip = \"10.{}.2.1/24\"\n",
                index % 200
            )
        });
        // One address for all spines.
        check(GOOD, &|index| format!("[[spine]]\nid = {}\nip = \"10.0.1.9\"\n", index % 30_000));
        let spine = "[spine]\nid = 1\ncores = [1]\n[[port]]\ndevice = \"d\"\nside = \"both\"\nip = \"10.0.1.1/24\"\n\
                     [[pool]]\nid = 1\npolicy = \"horus-spine\"\n";
        // Leaves that share 250 addresses, most in pools that do not exist.
        check(spine, &|index| {
            let id = index % 30_000;
            format!(
                "[[leaf]]\nid = {id}\nip = \"10.0.1.{}\"\npool = {}\nworkers = 4\n",
                index % 250,
                index % 9
            )
        });
        let agent = "[agent]\nname = \"a\"\ncore = 1\nleaf = \"10.0.2.1\"\n[[port]]\ndevice = \"d\"\nip = \"10.0.2.11/24\"\n";
        // Pools with the same ids and workers, and a queue of 0.
        check(agent, &|index| {
            format!(
                "[[pool]]\nid = {}\npolicy = \"jsq\"\nworkers = \"0-32000\"\nqueue = 0\n",
                index % 9
            )
        });
        // Leaves that share 99 addresses, to which no port leads.
        check(agent, &|index| format!("[[leaf]]\nip = \"10.0.3.{}\"\n", index % 99));
    });
}
