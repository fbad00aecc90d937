//! Leaf over in-memory ports: guarantees about single packets, and its ledger under a storm of them. Also the fixtures
//! of the submodules' tests.
//!
//! A leaf schedules the tasks of a rack. A `Rig` is one core of it; the test plays the client and the servers at the
//! far ends of its ports. Pool 7 has workers 10 to 17, which are its members 0 to 7. The ledger is the accounting of
//! packets: received ones equal those sent on, consumed, dropped and held.

use std::sync::Arc;

use proptest::prelude::*;
use wedjat_core::io::Buf;
use wedjat_core::io::memory::{Frame, FramePool, RingPort, pair};
use wedjat_core::limits::BURST;
use wedjat_core::node::Commands;
use wedjat_core::policy::{Overflow, PreparedPolicy};
use wedjat_core::reason::DropReason;
use wedjat_core::role::Leaf;
use wedjat_core::stage::{DispatcherChange, Side, Step, Update};
use wedjat_core::state::counters::{CoreNumber, CounterKind};
use wedjat_core::state::neighbour::Slot;
use wedjat_core::state::{Counter, Gauge, Load, Member, Neighbours};
use wedjat_core::wire::auth::Key;
use wedjat_core::wire::checksum::PartialChecksum;
use wedjat_core::wire::ether::{self, Mac};
use wedjat_core::wire::task::{Code, Extension, Header};
use wedjat_core::wire::udp::{self, Flow};
use wedjat_core::wire::{arp, ipv4, ipv6};
use wedjat_desired::control::Control;

use crate::rig::{self, CoreRig, Sizes};

mod blackhole;
mod central;
mod direct;
mod explained;
mod family;
mod forged;
mod histograms;
mod links;
mod neighbours;
mod presence;
mod probes;
mod proof;
mod reports;
mod shared;
mod spine;
mod v6;

use family::{BOTH, Family};

/// Address of the leaf at the clients' port, 10.0.1.1.
const LEAF_CLIENTS: u32 = 0x0A00_0101;
/// Address of the leaf at the workers' port, 10.0.2.1.
const LEAF_WORKERS: u32 = 0x0A00_0201;
/// Address of the client, 10.0.1.2.
const CLIENT: u32 = 0x0A00_0102;
/// Addresses of the servers, 10.0.2.11 and 10.0.2.12.
const SERVERS: [u32; 2] = [0x0A00_020B, 0x0A00_020C];
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 2]);
/// MAC addresses of the leaf, by port.
const LEAF_MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
/// Index of the clients' port.
const CLIENTS: usize = 0;
/// Index of the workers' port.
const WORKERS: usize = 1;
/// Number of buffers in the pool.
const FRAMES: usize = 2048;

/// Returns the MAC address of a server.
fn server_mac(server: usize) -> Mac {
    Mac([2, 0, 0, 0, 2, 11 + server as u8])
}

/// One core of a leaf or spine, and the far ends of its ports. Unless a test has its own configuration, pool 7 has
/// workers 10 to 17 on two servers.
struct Rig {
    leaf: Leaf<RingPort, FramePool>,
    /// Far ends of the ports.
    far: Vec<RingPort>,
    /// Pool of the leaf's packet buffers.
    pool: FramePool,
    /// Queue of commands to the core, by which the control changes its configuration.
    commands: Commands,
    /// Time in nanoseconds, one per tick.
    now: u64,
}

/// Builds a leaf of one core with this policy. It knows the MAC addresses of the servers or the client from the start,
/// or must resolve them. `depth` is the number of packets that a port holds.
fn rig_with(policy: &str, servers_known: bool, client_known: bool, depth: usize) -> Rig {
    rigs(policy, servers_known, client_known, depth, 1).remove(0)
}

/// Builds a leaf that knows all MAC addresses.
fn rig(policy: &str) -> Rig {
    rig_with(policy, true, true, 256)
}

/// Builds a leaf over IPv4 or IPv6.
fn rig_of(family: Family, policy: &str) -> Rig {
    rig_with_registration(family, policy, false)
}

/// Same as [`rig_of`], with servers that register their workers or do not.
fn rig_with_registration(family: Family, policy: &str, registers: bool) -> Rig {
    let networks = Networks { sides: [Side::Clients, Side::Workers], registers, key: None };
    let text = config_text(&networks, policy, true, 1, (64, Overflow::Drop));
    rigs_of(&family.text(&text), None, true, 256).remove(0)
}

/// Same as [`rig_with`], with several cores.
fn rigs(
    policy: &str,
    servers_known: bool,
    client_known: bool,
    depth: usize,
    cores: usize,
) -> Vec<Rig> {
    let backlog = (64, Overflow::Drop);
    rigs_with(policy, servers_known, client_known, depth, cores, backlog)
}

/// Same as [`rigs`], with this bound of the pool's central queue, and treatment of tasks beyond it (dropped, or refused
/// to their client).
fn rigs_with(
    policy: &str,
    servers_known: bool,
    client_known: bool,
    depth: usize,
    cores: usize,
    (bound, overflow): (usize, Overflow),
) -> Vec<Rig> {
    let networks = Networks { sides: [Side::Clients, Side::Workers], registers: false, key: None };
    rigs_on(networks, policy, servers_known, client_known, depth, cores, (bound, overflow))
}

/// Networks behind the two ports.
#[derive(Clone)]
struct Networks {
    /// Hosts behind each port: clients, workers, or both.
    sides: [Side; 2],
    /// True if servers are configured to register their workers.
    registers: bool,
    /// Key of the pool, with which workers sign their packets; `None` for unsigned packets.
    key: Option<Key>,
}

/// Same as [`rigs_with`], on these networks.
fn rigs_on(
    networks: Networks,
    policy: &str,
    servers_known: bool,
    client_known: bool,
    depth: usize,
    cores: usize,
    queue: (usize, Overflow),
) -> Vec<Rig> {
    let text = config_text(&networks, policy, servers_known, cores, queue);
    rigs_of(&text, networks.key, client_known, depth)
}

/// Returns the configuration of leaf 9 on these networks, over IPv4. Pool 7 has workers 10 to 13 on the first server,
/// and 14 to 17 on the second. The leaf excludes a registered worker after 100 ms of silence, and forgets an incomplete
/// task after 1 ms. The pool's key is not part of the configuration: [`rigs_of`] takes it.
fn config_text(
    &Networks { sides, registers, .. }: &Networks,
    policy: &str,
    servers_known: bool,
    cores: usize,
    (bound, overflow): (usize, Overflow),
) -> String {
    // Line of a known MAC address; nothing for one that the leaf must resolve.
    let mac =
        |known: bool, mac: Mac| if known { format!("mac = '{mac}'\n") } else { String::new() };
    let overflow = if overflow == Overflow::Refuse { "refuse" } else { "drop" };
    let numbers: Vec<_> = (0..cores).collect();
    let mut text = format!(
        "[leaf]\nid = 9\ncores = {numbers:?}\nseed = 7\nconnections = 64\nconnection_timeout_ms = 1\nworker_timeout_ms = 100\n\
         [[pool]]\nid = 7\npolicy = '{policy}'\nqueue = {}\noverflow = '{overflow}'\n",
        bound
    );
    for (port, side) in sides.iter().enumerate() {
        let side = format!("{side:?}").to_lowercase();
        text += &format!(
            "[[port]]\ndevice = 'net_ring{port}'\nside = '{side}'\nip = '10.0.{}.1/24'\nmac = '{}'\n",
            port + 1,
            LEAF_MACS[port]
        );
    }
    for (server, workers) in ["10-13", "14-17"].iter().enumerate() {
        text += &format!(
            "[[server]]\nip = '{}'\npool = 7\nworkers = '{workers}'\nregisters = {registers}\n{}",
            std::net::Ipv4Addr::from_bits(SERVERS[server]),
            mac(servers_known, server_mac(server))
        );
    }
    text
}

/// Builds the cores of the node with this configuration and pool key.
fn rigs_of(text: &str, key: Option<Key>, client_known: bool, depth: usize) -> Vec<Rig> {
    rigs_with_control(text, key, client_known, depth).0
}

/// Same as [`rigs_of`], with the control that changes the cores' configuration.
fn rigs_with_control(
    text: &str,
    key: Option<Key>,
    client_known: bool,
    depth: usize,
) -> (Vec<Rig>, Control) {
    let sizes = Sizes { depth, frames: FRAMES, bytes: 256 };
    let (built, table, control) = rig::leaves(rig::stages(text, key), sizes);
    if client_known {
        family::introduce(&table.neighbours(), Family::of(text));
    }
    let core =
        |CoreRig { leaf, far, frames, commands }| Rig { leaf, far, pool: frames, commands, now: 1 };
    (built.into_iter().map(core).collect(), control)
}

impl Rig {
    /// Makes changes of the membership, and polls every 100 us until the core, the only one, has applied them. Then
    /// lets the control free replaced objects and continue departures.
    fn change(&mut self, control: &mut Control, changes: &[&str]) {
        let family = self.family(CLIENTS);
        let changes = changes.iter().map(|text| family.text(text).parse().unwrap());
        let changes: Vec<_> = changes.collect();
        let epoch = control.apply_all(&changes).unwrap_or_else(|error| panic!("{error}"));
        while control.acknowledged() < epoch {
            self.wait(100_000);
        }
        control.tend(self.now);
    }

    /// Polls once, a microsecond later.
    fn poll(&mut self) {
        self.now += 1_000;
        self.leaf.poll(self.now);
    }

    /// Sends the core another policy for its first pool, without a control. The core applies it at its next tick.
    fn set_policy(&self, name: &str) {
        let dispatcher = self.leaf.stages().dispatcher(0).unwrap();
        let members = dispatcher.view().members();
        let policy = PreparedPolicy::new(&name.parse().unwrap(), members, dispatcher.core());
        let steps = vec![Step::Set { pool: 0, change: DispatcherChange::Policy(Box::new(policy)) }];
        let update = Update { epoch: 1, steps, changed_pools: vec![0], ..Update::default() };
        self.commands.push(Box::new(update)).unwrap();
    }

    /// Activates or deactivates a member of its first pool.
    fn set_active(&mut self, member: u16, active: bool) {
        self.leaf.stages_mut().set_active(0, Member(member), active);
    }

    /// Polls once, after `ns`.
    fn wait(&mut self, ns: u64) {
        self.now += ns;
        self.leaf.poll(self.now);
    }

    /// Sends an IPv4 or ARP frame to `port`, translated to its family, and polls a microsecond later. Returns the
    /// packets from the port `out`.
    fn through(&mut self, port: usize, frame: &[u8], out: usize) -> Vec<Frame> {
        self.send(port, frame);
        self.poll();
        self.receive(out)
    }

    /// Returns all packets from a port.
    fn receive(&mut self, port: usize) -> Vec<Frame> {
        std::iter::from_fn(|| self.far[port].receive()).collect()
    }

    /// Same as [`Rig::through`] for exactly one packet from the port `out`. Returns its addresses, translated to IPv4,
    /// its task header and the frame. Checks its checksums.
    fn one(&mut self, port: usize, frame: &[u8], out: usize) -> (udp::Datagram, Header, Frame) {
        let mut frames = self.through(port, frame, out);
        assert_eq!(frames.len(), 1, "drops: {:?}", self.drops());
        let frame = frames.remove(0);
        let (datagram, header) = family::read(&frame).unwrap();
        (datagram, header, frame)
    }

    /// Returns the drops by reason.
    fn drops(&self) -> Vec<(&'static str, u64)> {
        let counters = self.leaf.stages().counters();
        DropReason::ALL
            .iter()
            .map(|&reason| (reason.name(), counters.dropped(reason)))
            .filter(|drop| drop.1 > 0)
            .collect()
    }

    /// Returns a counter or gauge.
    fn count(&self, number: impl CoreNumber) -> u64 {
        self.leaf.stages().counters().read(number)
    }

    /// Returns the number of tasks sent to a member and not answered, over all cores. On several cores it wraps below
    /// 0 after more replies than tasks.
    fn outstanding(&mut self, member: u16) -> u32 {
        let dispatcher = self.leaf.stages_mut().dispatcher_mut(0).unwrap();
        dispatcher.view().outstanding_now(Member(member)).cast_unsigned()
    }

    /// Ends the leaf, and checks that the ledger balances and every buffer is back.
    fn assert_accounted(&mut self) {
        self.leaf.abandon();
        for port in 0..2 {
            self.receive(port);
        }
        assert!(self.leaf.stages().counters().balances(), "{:?}", self.drops());
        assert_eq!(self.pool.in_use(), 0, "every buffer came back");
    }
}

/// Returns an IPv4 UDP packet with this payload.
fn frame(flow: &Flow, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; udp::PAYLOAD + payload.len()];
    frame[udp::PAYLOAD..].copy_from_slice(payload);
    flow.emit(&mut frame, payload.len());
    frame
}

/// Returns the flow from the client to the leaf.
fn client_flow() -> Flow {
    Flow {
        src_mac: CLIENT_MAC,
        dst_mac: LEAF_MACS[CLIENTS],
        src: CLIENT,
        dst: LEAF_CLIENTS,
        src_port: 40_000,
        dst_port: 1234,
    }
}

/// Returns a client's packet with this header and nine further bytes; 13 after an extension.
fn task_of(header: Header) -> Vec<u8> {
    let mut payload = [0xAB; 40];
    header.emit(&mut payload);
    if header.extended {
        let seq32 = u32::from(header.seq);
        Extension { app: 3, seq32, service_ns: 0, class: 2 }.emit(&mut payload);
    }
    frame(&client_flow(), &payload[..if header.extended { 40 } else { 20 }])
}

/// Returns a client's task of one packet for pool 7, with this sequence number.
fn task(seq: u16) -> Vec<u8> {
    task_of(Header::new_task(7, seq))
}

/// Returns a packet with this header from a server's IP address to the client. Its source MAC address is always the
/// first server's, which the leaf does not check on a port for workers only.
fn reply_from(server: u32, header: Header) -> Vec<u8> {
    let mut payload = [0xCD; 20];
    header.emit(&mut payload);
    let flow = Flow {
        src_mac: server_mac(0),
        dst_mac: LEAF_MACS[WORKERS],
        src: server,
        dst: CLIENT,
        src_port: 1234,
        dst_port: 40_000,
    };
    frame(&flow, &payload)
}

/// Returns the header of a worker's reply to task 1, with its number of remaining tasks (`qlen`).
fn done(worker: u16, qlen: u16) -> Header {
    let code = if qlen == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
    Header { code, src: worker, dst: 0, qlen, ..Header::new_task(7, 1) }
}

/// Returns a worker's reply from its own server, with its number of remaining tasks (`qlen`).
fn reply(worker: u16, qlen: u16) -> Vec<u8> {
    reply_from(SERVERS[usize::from(worker - 10) / 4], done(worker, qlen))
}

// promise: packets.2
#[test]
fn task_round_trip_ends_at_the_leafs_address() {
    let mut rig = rig("horus");
    let (datagram, header, frame) = rig.one(CLIENTS, &task(5), WORKERS);
    assert_eq!((datagram.src, datagram.src_port, datagram.dst_port), (CLIENT, 40_000, 1234));
    assert!((10..18).contains(&header.dst));
    let server = usize::from(header.dst - 10) / 4;
    assert_eq!(datagram.dst, SERVERS[server]);
    // `qlen` is 1 in a task whose worker the leaf chose from its list of idle workers.
    assert_eq!((header.code, header.qlen, header.seq), (Code::NewTask, 1, 5));
    assert_eq!(ether::dst(frame.bytes()), server_mac(server));
    assert_eq!(ether::src(frame.bytes()), LEAF_MACS[WORKERS]);
    // One hop less than 64.
    assert_eq!(ipv4::ttl(&frame.bytes()[ether::LEN..]), 63);
    // The nine bytes after the header of 11 bytes are unchanged.
    assert_eq!(&frame.bytes()[datagram.payload() + 11..], [0xAB; 9]);
    drop(frame);
    assert_eq!(rig.outstanding(header.dst - 10), 1);

    let (datagram, reply_header, frame) = rig.one(WORKERS, &reply(header.dst, 0), CLIENTS);
    assert_eq!((datagram.src, datagram.src_port), (LEAF_CLIENTS, 1234));
    assert_eq!((datagram.dst, datagram.dst_port), (CLIENT, 40_000));
    assert_eq!(reply_header, done(header.dst, 0));
    assert_eq!(ether::dst(frame.bytes()), CLIENT_MAC);
    assert_eq!(ipv4::ttl(&frame.bytes()[ether::LEN..]), 63);
    drop(frame);
    assert_eq!(rig.outstanding(header.dst - 10), 0);
    assert_eq!((rig.count(Counter::Scheduled), rig.count(Counter::Replies)), (1, 1));
    assert_eq!(rig.count(Counter::IdlePicks), 1);
    rig.assert_accounted();
}

// promise: packets.1
#[test]
fn absent_udp_checksums_stay_absent() {
    let mut rig = rig("horus");
    // Bytes 40 and 41 are the UDP checksum.
    let mut task = task(1);
    task[40..42].fill(0);
    let (.., frame) = rig.one(CLIENTS, &task, WORKERS);
    assert_eq!(frame.bytes()[40..42], [0, 0]);
    drop(frame);
    rig.assert_accounted();
}

#[test]
fn harmless_options_and_padding_pass_where_permitted() {
    let networks = Networks { sides: [Side::Clients, Side::Workers], registers: false, key: None };
    let text = config_text(&networks, "random", true, 1, (16, Overflow::Drop));
    let permitting = "side = 'clients'\nip_options = 'harmless'\n";
    let text = text.replacen("side = 'clients'\n", permitting, 1);
    let mut rig = rigs_of(&text, None, true, 256).remove(0);
    let mut with_options = task(1);
    with_options.splice(34..34, [1, 1, 1, 1]); // four times "no operation"
    with_options[14] = 0x46; // IPv4 with a header of six words
    let total_len = (with_options.len() - 14) as u16;
    with_options[16..18].copy_from_slice(&total_len.to_be_bytes());
    with_options[24..26].fill(0);
    let checksum = PartialChecksum::default().bytes(&with_options[14..38]).checksum();
    with_options[24..26].copy_from_slice(&checksum.to_be_bytes());
    with_options.extend([0; 6]); // padding
    let (datagram, header, _) = rig.one(CLIENTS, &with_options, WORKERS);
    assert_eq!((datagram.udp_offset, header.seq), (38, 1));
}

#[test]
fn the_extension_passes_untouched() {
    let mut rig = rig("horus");
    let header = Header { extended: true, ..Header::new_task(7, 9) };
    let (datagram, _, frame) = rig.one(CLIENTS, &task_of(header), WORKERS);
    let extension = Extension::parse(&frame.bytes()[datagram.payload()..]);
    assert_eq!(extension, Extension { app: 3, seq32: 9, service_ns: 0, class: 2 });
}

// promise: trust.1
#[test]
fn leaf_answers_arp_for_its_addresses_only() {
    let mut rig = rig_with("horus", true, false, 256);
    let mut frame = [0; arp::FRAME_LEN];
    arp::Packet::request(CLIENT_MAC, CLIENT, LEAF_CLIENTS).emit(&mut frame, Mac::BROADCAST);
    let answers = rig.through(CLIENTS, &frame, CLIENTS);
    let answer = arp::Packet::parse(answers[0].bytes()).unwrap();
    assert_eq!((answer.sender_mac, answer.sender), (LEAF_MACS[CLIENTS], LEAF_CLIENTS));
    assert_eq!((answer.target_mac, ether::dst(answers[0].bytes())), (CLIENT_MAC, CLIENT_MAC));
    drop(answers);
    // For 10.0.1.99, another host.
    arp::Packet::request(CLIENT_MAC, CLIENT, 0x0A00_0163).emit(&mut frame, Mac::BROADCAST);
    assert!(rig.through(CLIENTS, &frame, CLIENTS).is_empty());
    assert_eq!((rig.count(Counter::Consumed), rig.count(Counter::Originated)), (1, 1));
    assert_eq!(rig.drops(), [("arp_other", 1)]);
    // Sender and target are equal: the client announces itself (gratuitous ARP).
    arp::Packet::request(CLIENT_MAC, CLIENT, CLIENT).emit(&mut frame, Mac::BROADCAST);
    assert!(rig.through(CLIENTS, &frame, CLIENTS).is_empty());
    assert_eq!((rig.count(Counter::Consumed), rig.count(Counter::Originated)), (2, 1));
    assert_eq!(rig.drops(), [("arp_other", 1)], "an announcement is no question");
    let neighbours = rig.leaf.stages().neighbours();
    assert_eq!(neighbours.find(CLIENTS, CLIENT), None, "a request alone does not teach an address");
    rig.assert_accounted();
}

#[test]
fn tasks_wait_for_the_servers_mac_address() {
    let mut rig = rig_with("horus", false, true, 256);
    let frames = rig.through(CLIENTS, &task(1), WORKERS);
    let questions: Vec<_> =
        frames.iter().map(|frame| arp::Packet::parse(frame.bytes()).unwrap()).collect();
    let mut targets: Vec<_> = questions.iter().map(|question| question.target).collect();
    targets.sort_unstable();
    assert_eq!(targets, SERVERS);
    drop(frames);
    assert_eq!(rig.count(Gauge::Held), 1);
    assert!(rig.leaf.stages().counters().balances());
    for question in &questions {
        let mut frame = [0; arp::FRAME_LEN];
        // Questions come in any order.
        let server = SERVERS.iter().position(|&ip| ip == question.target).unwrap();
        question.answer(server_mac(server)).emit(&mut frame, LEAF_MACS[WORKERS]);
        assert!(rig.far[WORKERS].send(&frame));
    }
    rig.poll();
    rig.wait(1_000_000);
    let out = rig.receive(WORKERS);
    assert_eq!(out.len(), 1);
    let datagram = udp::parse(out[0].bytes(), false).unwrap();
    let server = SERVERS.iter().position(|&ip| ip == datagram.dst).unwrap();
    assert_eq!(ether::dst(out[0].bytes()), server_mac(server));
    drop(out);
    assert_eq!(rig.count(Gauge::Held), 0);
    rig.assert_accounted();
}

#[test]
fn tasks_for_an_unresolved_server_are_counted() {
    let mut rig = rig_with("horus", false, true, 256);
    rig.through(CLIENTS, &task(1), WORKERS);
    // 2 s, longer than the leaf's questions for a MAC address.
    for _ in 0..10 {
        rig.wait(200_000_000);
    }
    assert_eq!(rig.drops(), [("neighbour_unresolved", 1)]);
    rig.assert_accounted();
}

#[test]
fn reply_waits_for_the_clients_mac_address() {
    let mut rig = rig_with("horus", true, false, 256);
    let out = rig.through(WORKERS, &reply(10, 0), CLIENTS);
    let question = arp::Packet::parse(out[0].bytes()).unwrap();
    assert_eq!((question.target, question.sender), (CLIENT, LEAF_CLIENTS));
    let mut frame = [0; arp::FRAME_LEN];
    question.answer(CLIENT_MAC).emit(&mut frame, LEAF_MACS[CLIENTS]);
    drop(out);
    rig.through(CLIENTS, &frame, CLIENTS);
    rig.wait(1_000_000);
    // Either poll may have sent it, so the test reads the counter, not the port.
    assert_eq!(rig.count(Counter::Forwarded), 1);
    rig.assert_accounted();
}

// promise: input.1
#[test]
fn every_refusal_is_counted_and_changes_no_load() {
    let mut rig = rig("horus");
    // The packet with other bytes at this offset.
    let edit = |mut frame: Vec<u8>, at: usize, bytes: &[u8]| {
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let header = |header: Header| task_of(header);
    let new = Header::new_task(7, 1);
    // Without a UDP checksum, so that no checksum detects a changed byte.
    let mut unsummed = task(1);
    unsummed[40..42].fill(0);
    // TTL 1, with the right header checksum.
    let mut old = task(1);
    old[22] = 1;
    old[24..26].fill(0);
    let checksum = PartialChecksum::default().bytes(&old[14..34]).checksum();
    old[24..26].copy_from_slice(&checksum.to_be_bytes());
    // To 10.0.1.85, which is not the leaf, and to another UDP port of the leaf.
    let to_other_host = Flow { dst: 0x0A00_0155, ..client_flow() };
    let to_other_port = Flow { dst_port: 53, ..client_flow() };
    // Each case has the receiving port, the expected drop reason, and the packet. 0x20 announces an extension, for
    // which 20 bytes are too short. Byte 42 is the first of the task header: flags and code.
    let cases = [
        (CLIENTS, "runt", task(1)[..13].to_vec()),
        (CLIENTS, "other_mac", edit(task(1), 0, &[2, 9, 9, 9, 9, 9])),
        (CLIENTS, "ether_type", edit(task(1), 12, &[0x86, 0xDD])),
        (CLIENTS, "ipv4_header", edit(task(1), 14, &[0x65])),
        (CLIENTS, "ipv4_header", task(1)[..50].to_vec()),
        (CLIENTS, "ipv4_checksum", edit(task(1), 24, &[0xBA, 0xD0])),
        (CLIENTS, "udp_checksum", edit(task(1), 60, &[1])),
        (CLIENTS, "other_address", frame(&to_other_host, &[0; 20])),
        (CLIENTS, "udp_port", frame(&to_other_port, &[0; 20])),
        (CLIENTS, "task_short", frame(&client_flow(), &[0; 10])),
        (CLIENTS, "task_short", frame(&client_flow(), &[0x20; 20])),
        (CLIENTS, "task_reserved_bit", edit(unsummed.clone(), 42, &[0x40])),
        (CLIENTS, "task_code", edit(unsummed.clone(), 42, &[5])),
        (CLIENTS, "task_role", header(Header { code: Code::LoadUpdate, ..new })),
        (CLIENTS, "task_role", header(done(10, 0))),
        (CLIENTS, "ttl_expired", old),
        (CLIENTS, "unknown_pool", header(Header { pool: 8, ..new })),
        (CLIENTS, "unknown_connection", header(Header { code: Code::TaskContinuation, ..new })),
        (CLIENTS, "other_mac", edit(reply(10, 3), 0, &LEAF_MACS[WORKERS].0)),
        (CLIENTS, "wrong_side", edit(reply(10, 3), 0, &LEAF_MACS[CLIENTS].0)),
        (WORKERS, "wrong_side", edit(task(1), 0, &LEAF_MACS[WORKERS].0)),
        (WORKERS, "unknown_worker", reply_from(SERVERS[0], done(9, 3))),
        (WORKERS, "unknown_worker", reply_from(SERVERS[0], done(u16::MAX, 3))),
        (WORKERS, "spoofed_reply", reply_from(SERVERS[1], done(10, 3))),
        (WORKERS, "spoofed_reply", reply_from(0x0A00_0263, done(10, 3))),
        (WORKERS, "pool_mismatch", reply_from(SERVERS[0], Header { pool: 8, ..done(10, 3) })),
        (WORKERS, "arp_malformed", edit(vec![0xFF; 60], 12, &[8, 6])),
    ];
    let mut expected = std::collections::BTreeMap::new();
    for (port, reason, frame) in cases {
        *expected.entry(reason).or_insert(0) += 1;
        assert!(rig.far[port].send(&frame));
        rig.poll();
        let drops: std::collections::BTreeMap<_, _> = rig.drops().into_iter().collect();
        assert_eq!(drops, expected, "after {reason}");
    }
    assert_eq!(rig.count(Counter::Forwarded), 0);
    let view = rig.leaf.stages_mut().dispatcher_mut(0).unwrap().view();
    assert_eq!(view.idle().len(), 8);
    assert!(
        (0..8)
            .map(Member)
            .all(|member| view.estimated_load(member) == 0 && view.reports(member) == 0)
    );
    rig.assert_accounted();
}

// promise: input.1
#[test]
fn replies_without_tasks_are_counted_and_passed_on() {
    let mut rig = rig("horus");
    rig.one(WORKERS, &reply(12, 4), CLIENTS);
    assert_eq!(rig.count(Counter::SurplusReplies), 1);
    assert_eq!(rig.outstanding(2), 0);
    rig.assert_accounted();
}

// promise: packets.2
#[test]
fn a_multi_packet_task_keeps_its_worker() {
    let mut rig = rig("round-robin");
    let first = Header { more: true, ..Header::new_task(7, 1) };
    let next = Header { code: Code::TaskContinuation, ..first };
    let last = Header { more: false, ..next };
    let worker = rig.one(CLIENTS, &task_of(first), WORKERS).1.dst;
    rig.one(CLIENTS, &task(2), WORKERS);
    let other = rig.one(CLIENTS, &task_of(Header { seq: 3, ..first }), WORKERS).1.dst;
    assert_ne!(other, worker);
    for header in [next, first, last, next] {
        assert_eq!(rig.one(CLIENTS, &task_of(header), WORKERS).1.dst, worker);
    }
    assert_eq!(rig.outstanding(worker - 10), 1, "one task, however many packets");
    // The leaf forgets the task after 1 ms, its `connection_timeout_ms`.
    rig.wait(10_000_000);
    rig.through(CLIENTS, &task_of(next), WORKERS);
    assert_eq!(rig.drops(), [("unknown_connection", 1)]);
    rig.assert_accounted();
}

#[test]
fn packets_rejected_by_a_device_are_counted() {
    // A port holds 8 packets. The test does not receive any, so the workers' port rejects all further ones.
    let mut rig = rig_with("random", true, true, 8);
    for round in 0..4 {
        for seq in 0..8 {
            assert!(rig.far[CLIENTS].send(&task(8 * round + seq)));
        }
        rig.poll();
    }
    assert_eq!(rig.leaf.stages().counters().totals().sent(), 8);
    assert_eq!(rig.drops(), [("tx_full", 24)]);
    rig.assert_accounted();
}

// promise: membership.1
#[test]
fn commands_change_members_and_policy_between_bursts() {
    let mut rig = rig("round-robin");
    for member in 1..8 {
        rig.set_active(member, false);
    }
    rig.wait(1_000_000);
    for seq in 0..4 {
        assert_eq!(rig.one(CLIENTS, &task(seq), WORKERS).1.dst, 10);
    }
    // Now no member is active.
    rig.set_policy("horus");
    rig.set_active(0, false);
    rig.leaf.stages_mut().set_active(9, Member(0), false); // no such pool: changes nothing
    rig.wait(1_000_000);
    assert!(rig.through(CLIENTS, &task(9), WORKERS).is_empty());
    assert_eq!(rig.drops(), [("no_member", 1)]);
    rig.assert_accounted();
}

// promise: scheduling.2
#[test]
fn cores_share_reports_but_not_drift() {
    let mut cores = rigs("racksched", true, true, 256, 2);
    let [first, second] = &mut cores[..] else { unreachable!() };
    for worker in 10..18 {
        first.one(WORKERS, &reply(worker, if worker == 13 { 1 } else { 9 }), CLIENTS);
    }
    // Only the first core received the replies. The second core has their loads by the exchange.
    let mut chosen = [0; 8];
    for seq in 0..200 {
        let (_, header, _) = second.one(CLIENTS, &task(seq), WORKERS);
        chosen[usize::from(header.dst - 10)] += 1;
    }
    // Worker 13, member 3, is the least loaded. It gets more than the mean, which is 25 of 200 tasks.
    assert!(chosen[3] > 30 && chosen.iter().all(|&count| count <= chosen[3]), "{chosen:?}");
    // One less than the tasks sent. Before, the first core received a reply of worker 13 to no task.
    assert_eq!(second.outstanding(3), chosen[3] - 1);
    assert_eq!(first.outstanding(3), chosen[3] - 1);
    first.assert_accounted();
    second.assert_accounted();
}

// promise: scheduling.2
#[test]
fn surplus_replies_are_found_over_all_cores() {
    // A surplus reply answers no task that a core sent.
    let mut cores = rigs("horus", true, true, 256, 2);
    let [first, second] = &mut cores[..] else { unreachable!() };
    for worker in 10..18 {
        first.one(WORKERS, &reply(worker, 0), CLIENTS);
    }
    // The surplus does not count at once: another core may have sent the tasks. Each core checks half of the
    // workers for a surplus, every 10 ms, and counts it after three checks.
    for _ in 0..10 {
        first.wait(11_000_000);
        second.wait(11_000_000);
    }
    let surplus = |rig: &Rig| rig.leaf.stages().counters().read(Counter::SurplusReplies);
    assert_eq!(surplus(first) + surplus(second), 8);
    assert!((0..8).all(|member| first.outstanding(member) == 0));
    // A reply to another core's task is not a surplus reply.
    let (_, header, _) = first.one(CLIENTS, &task(1), WORKERS);
    second.one(WORKERS, &reply(header.dst, 0), CLIENTS);
    for _ in 0..10 {
        first.wait(11_000_000);
        second.wait(11_000_000);
    }
    assert_eq!(surplus(first) + surplus(second), 8);
    first.assert_accounted();
    second.assert_accounted();
}

// promise: scheduling.2
#[test]
fn overloaded_core_exchanges_after_1024_packets() {
    // A core that receives more than a quarter of a burst at a poll is overloaded. It exchanges loads with the node's
    // other cores less often.
    let mut cores = rigs("jsq", true, true, 256, 2);
    let [first, second] = &mut cores[..] else { unreachable!() };
    // Sum of the outstanding tasks that the second core knows, after each burst of the first.
    let outstanding = (0..33).map(|_| {
        (0..BURST).for_each(|seq| first.send(CLIENTS, &task(seq as u16)));
        first.poll();
        assert_eq!(first.receive(WORKERS).len(), BURST);
        second.poll();
        let view = second.leaf.stages().dispatcher(0).unwrap().view();
        (0..8).map(|member| view.outstanding(Member(member))).sum()
    });
    let outstanding: Vec<u32> = outstanding.collect();
    // The overloaded first core publishes its first burst at once, and the next 32 bursts (1024 packets) together. The
    // second core is not overloaded, and exchanges at every poll.
    assert_eq!(outstanding[..32], [32; 32]);
    assert_eq!(outstanding[32], 33 * 32);
    first.assert_accounted();
    second.assert_accounted();
}

// promise: scheduling.2
#[test]
fn all_cores_doubt_a_contradicting_worker() {
    // A worker contradicts itself if it reports an empty queue while tasks sent to it are unanswered. The cores then
    // doubt it: they ignore its reports, and use the number of its outstanding tasks as its load.
    let mut cores = rigs("round-robin", true, true, 256, 2);
    let [first, second] = &mut cores[..] else { unreachable!() };
    for seq in 0..8 * 8 {
        first.one(CLIENTS, &task(seq), WORKERS); // eight tasks for each of eight workers
    }
    // Each worker reports an empty queue five times. Each core compares the reports of half of the workers
    // with their tasks. It must find the contradiction at three checks.
    for _ in 0..5 {
        for worker in 10..18 {
            first.one(WORKERS, &reply(worker, 0), CLIENTS);
        }
        first.wait(11_000_000);
        second.wait(11_000_000);
    }
    // Two more checks bring the doubt to both cores.
    for _ in 0..2 {
        first.wait(11_000_000);
        second.wait(11_000_000);
    }
    for worker in 10..18 {
        second.one(WORKERS, &reply(worker, 0), CLIENTS);
    }
    let load = |member| second.leaf.stages().dispatcher(0).unwrap().view().load(Member(member));
    // Eight tasks less six replies.
    assert!((0..8).all(|member| load(member) == Load::tasks(2)), "{:?}", [0, 1].map(load));
    first.assert_accounted();
    second.assert_accounted();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For random packets at either port, all are accounted for, every buffer is returned, and only gauges decrease. A
    /// step sends a packet of a `kind` with a random `value`. It may overwrite some bytes and truncate the packet.
    // promise: input.1
    #[test]
    fn a_storm_of_mutated_packets_is_accounted_for(
        storm in proptest::collection::vec((
            0..10_u8, any::<bool>(), any::<u16>(),
            proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            proptest::option::of(any::<prop::sample::Index>()),
        ), 1..150),
    ) {
        let mut rig = rig_with("horus", false, false, 64);
        let mut before = rig.leaf.stages().counters().totals();
        for (kind, at_workers, value, edits, cut) in storm {
            let mut frame = match kind {
                0 | 1 => task(value),
                2 => reply(10 + value % 8, value),
                3 => task_of(Header { more: true, extended: value & 1 == 1, ..Header::new_task(7, value) }),
                4 => task_of(Header { code: Code::TaskContinuation, ..Header::new_task(7, value) }),
                5 => {
                    let mut frame = vec![0; arp::FRAME_LEN];
                    let server = usize::from(value & 1);
                    arp::Packet::request(server_mac(server), SERVERS[server], LEAF_WORKERS)
                        .emit(&mut frame, Mac::BROADCAST);
                    frame
                }
                6 => {
                    let mut frame = vec![0; arp::FRAME_LEN];
                    arp::Packet::request(CLIENT_MAC, CLIENT, LEAF_CLIENTS)
                        .emit(&mut frame, Mac::BROADCAST);
                    frame
                }
                7 => presence::join(10 + value % 9, value),
                8 => presence::alive(10 + value % 8, value),
                _ => value.to_le_bytes().repeat(usize::from(value % 60)),
            };
            for (at, byte) in edits {
                if !frame.is_empty() {
                    let at = at.index(frame.len());
                    frame[at] = byte;
                }
            }
            if let Some(cut) = cut {
                frame.truncate(cut.index(frame.len() + 1));
            }
            let port = if at_workers { WORKERS } else { CLIENTS };
            rig.far[port].send(&frame);
            if value % 3 == 0 {
                rig.wait(u64::from(value) * 10_000);
            }
            if value % 5 == 0 {
                rig.receive(CLIENTS);
                rig.receive(WORKERS);
            }
            let now = rig.leaf.stages().counters().totals();
            prop_assert!(now.decreased_since(&before).all(|metric| metric.kind == CounterKind::Gauge));
            before = now;
        }
        for _ in 0..12 {
            rig.wait(300_000_000);
            rig.receive(CLIENTS);
            rig.receive(WORKERS);
        }
        rig.assert_accounted();
    }
}
