//! IPv6: tasks and replies, neighbour discovery in place of ARP, and refused packets.
//!
//! A `Rig` is one core of a leaf in memory; the test plays clients, router and servers at the far ends (`far`) of its
//! ports `CLIENTS` and `WORKERS`. Pool 7 has workers 10 to 17, which are its members 0 to 7. `through` sends a packet
//! to a port, polls the leaf 1 us later and returns all frames of the port `out`. `wait` polls after some nanoseconds.
//! `done(worker, tasks)` is the header of a worker's reply. `assert_accounted` ends the leaf, and checks that each
//! packet was sent on, consumed or dropped, and that every buffer is back.

use wedjat_core::io::Buf;
use wedjat_core::wire::ipv6;
use wedjat_core::wire::ndp::{self, Operation};

use super::*;
use std::net::Ipv6Addr;

/// Length of the Ethernet header, at which the IPv6 header begins.
const ETHER: usize = ether::LEN;
/// Offset of the UDP header.
const UDP: usize = ETHER + ipv6::LEN;
/// Addresses of the leaf at the clients' and the workers' port.
pub(super) const LEAF: [&str; 2] = ["fd00:1::1", "fd00:2::1"];
/// Client in the network of the leaf's port.
pub(super) const NEAR: &str = "fd00:1::5";
/// Client behind the router.
const FAR: &str = "2001:db8::77";
/// Addresses of the servers.
pub(super) const V6_SERVERS: [&str; 2] = ["fd00:2::b", "fd00:2::c"];
/// Link-local address of the router behind the clients' port.
const ROUTER: &str = "fe80::fe";
const ROUTER_MAC: Mac = Mac([2, 0, 0, 0, 1, 0xFE]);

/// Parses an IPv6 address into its 128 bits.
pub(super) fn bits(text: &str) -> u128 {
    text.parse::<Ipv6Addr>().unwrap().to_bits()
}

/// Returns the configuration of a leaf with two IPv6 servers of four workers each (10 to 17) in pool 7, followed by the
/// lines `more`.
pub(super) fn text(policy: &str, more: &str) -> String {
    let [clients, workers] = LEAF_MACS;
    format!(
        "[leaf]\nid = 9\ncores = [0]\nseed = 7\nconnections = 64\nconnection_timeout_ms = 1\nworker_timeout_ms = 0\n\
         [[pool]]\nid = 7\npolicy = '{policy}'\nqueue = 4\noverflow = 'refuse'\n\
         [[port]]\ndevice = 'net_ring0'\nside = 'clients'\nip = '{}/64'\nmac = '{clients}'\ngateway = '{ROUTER}'\n\
         [[port]]\ndevice = 'net_ring1'\nside = 'workers'\nip = '{}/64'\nmac = '{workers}'\n\
         [[server]]\nip = '{}'\npool = 7\nworkers = '10-13'\nregisters = false\n\
         [[server]]\nip = '{}'\npool = 7\nworkers = '14-17'\nregisters = false\n{more}",
        LEAF[0], LEAF[1], V6_SERVERS[0], V6_SERVERS[1],
    )
}

/// Builds a leaf over IPv6 that has resolved its servers.
fn rig6(policy: &str) -> Rig {
    // No pool key; the leaf does not know the client's MAC address; each port holds 256 packets.
    let mut rig = rigs_of(&text(policy, ""), None, false, 256).remove(0);
    rig.resolve_v6_servers();
    rig
}

/// Returns a flow from the client's to the leaf's MAC address, between these addresses and UDP ports.
pub(super) fn flow(src: &str, dst: &str, ports: (u16, u16)) -> Flow<u128> {
    Flow {
        src_mac: CLIENT_MAC,
        dst_mac: LEAF_MACS[CLIENTS],
        src: bits(src),
        dst: bits(dst),
        src_port: ports.0,
        dst_port: ports.1,
    }
}

/// Returns a packet with this header and nine further bytes.
fn frame6(flow: &Flow<u128>, header: Header) -> Vec<u8> {
    let mut payload = [0xAB; 40];
    header.emit(&mut payload);
    let len = header.len() + 9;
    let mut frame = vec![0; udp::PAYLOAD_V6 + len];
    frame[udp::PAYLOAD_V6..].copy_from_slice(&payload[..len]);
    flow.emit_v6(&mut frame, len);
    frame
}

/// Returns a client's task for pool 7, with this sequence number.
fn task6(from: &str, seq: u16) -> Vec<u8> {
    frame6(&flow(from, LEAF[0], (40_000, 1234)), Header::new_task(7, seq))
}

/// Returns a server's packet with this header, to a client or to the leaf itself. Messages to the leaf go to UDP port
/// 1234, replies to the client's port 40000.
fn of_server(server: usize, to: &str, header: Header) -> Vec<u8> {
    let ports = (1234, if bits(to) == bits(LEAF[1]) { 1234 } else { 40_000 });
    let mac = (server_mac(server), LEAF_MACS[WORKERS]);
    let flow = Flow { src_mac: mac.0, dst_mac: mac.1, ..flow(V6_SERVERS[server], to, ports) };
    frame6(&flow, header)
}

/// Returns a worker's reply to the client `to`, which reports `qlen` tasks in its queue.
fn reply6(worker: u16, qlen: u16, to: &str) -> Vec<u8> {
    of_server(usize::from(worker - 10) / 4, to, done(worker, qlen))
}

/// Returns the frame of a neighbour discovery message to this MAC address, without the router flag.
fn message(message: ndp::Packet, to: Mac) -> Vec<u8> {
    let mut frame = vec![0; ndp::FRAME_LEN];
    message.emit(&mut frame, to, false);
    frame
}

/// Returns a host's solicited neighbour advertisement to the leaf's address `to` at a port, with the override flag.
fn advertisement(host: &str, mac: Mac, to: &str, port: usize) -> Vec<u8> {
    let (operation, dst) = (Operation::Advertisement, bits(to));
    let target = bits(host);
    message(ndp::Packet { operation, src: target, dst, target, mac: Some(mac) }, LEAF_MACS[port])
}

/// Returns a neighbour solicitation: the host `by` with this MAC address asks for that of `target`.
fn solicitation(by: &str, mac: Mac, target: &str) -> Vec<u8> {
    let (question, to) = ndp::Packet::question(mac, bits(by), bits(target), None);
    message(question, to)
}

impl Rig {
    /// Returns the neighbour solicitations that the leaf sent on a port: requested address and destination MAC address.
    /// Discards the port's other frames. Checks the leaf's addresses in each message.
    fn questions6(&mut self, port: usize) -> Vec<(u128, Mac)> {
        let frames = self.receive(port);
        let messages = frames.iter().filter_map(|frame| {
            let message = ndp::Packet::parse(frame.bytes()).ok()?;
            assert_eq!((message.mac, message.src), (Some(LEAF_MACS[port]), bits(LEAF[port])));
            (message.operation == Operation::Solicitation)
                .then(|| (message.target, ether::dst(frame.bytes())))
        });
        messages.collect()
    }

    /// Checks that the leaf solicits both servers by multicast, and answers. The leaf then sends them tasks.
    pub(super) fn resolve_v6_servers(&mut self) {
        self.poll();
        let questions = self.questions6(WORKERS);
        let groups = V6_SERVERS.map(|server| {
            let address = bits(server);
            (address, ipv6::group_mac(ipv6::solicited_node(address)))
        });
        assert_eq!(questions, groups);
        for (at, server) in V6_SERVERS.iter().enumerate() {
            let answer = advertisement(server, server_mac(at), LEAF[1], WORKERS);
            assert!(self.far[WORKERS].send(&answer));
        }
        self.poll();
    }

    /// Delivers `frame` to `port`, and polls. Returns addresses, task header and bytes of the one packet from the port
    /// `out`. Checks its UDP checksum.
    fn one6(
        &mut self,
        port: usize,
        frame: &[u8],
        out: usize,
    ) -> (udp::Datagram<u128>, Header, Vec<u8>) {
        let frames = self.through(port, frame, out);
        assert_eq!(frames.len(), 1, "drops: {:?}", self.drops());
        let bytes = frames[0].bytes().to_vec();
        let datagram = udp::parse_v6(&bytes, false).unwrap();
        let header = Header::parse(&bytes[datagram.payload()..]).unwrap();
        (datagram, header, bytes)
    }

    /// Delivers a packet to this port, and polls. Returns its drop reason, if it was dropped. Unlike `through`, it does
    /// not translate IPv4 frames to the port's family.
    fn dropped(&mut self, port: usize, frame: &[u8]) -> Option<&'static str> {
        let before = self.drops();
        assert!(self.far[port].send(frame));
        self.poll();
        let after = self.drops();
        after.iter().find(|(name, count)| !before.contains(&(*name, *count))).map(|one| one.0)
    }
}

// promise: packets.2
#[test]
fn task_round_trip_works() {
    for from in [NEAR, FAR] {
        let mut rig = rig6("horus");
        let (datagram, header, frame) = rig.one6(CLIENTS, &task6(from, 5), WORKERS);
        assert_eq!(
            (datagram.src, datagram.src_port, datagram.dst_port),
            (bits(from), 40_000, 1234)
        );
        let server = usize::from(header.dst - 10) / 4;
        assert_eq!(datagram.dst, bits(V6_SERVERS[server]));
        // `qlen` is 1 in a task whose worker the leaf chose from its list of idle workers.
        assert_eq!((header.code, header.qlen, header.seq), (Code::NewTask, 1, 5));
        assert_eq!(
            (ether::dst(&frame), ether::src(&frame)),
            (server_mac(server), LEAF_MACS[WORKERS])
        );
        assert_eq!(ipv6::hop_limit(&frame[ETHER..]), 63);
        assert_eq!(&frame[datagram.payload() + 11..], [0xAB; 9]);
        assert_eq!(rig.outstanding(header.dst - 10), 1);

        // The leaf learns the MAC address of a client on its network from the task. It asks for that of the router.
        let reply = reply6(header.dst, 0, from);
        let (mac, frame) = if from == NEAR {
            (CLIENT_MAC, rig.one6(WORKERS, &reply, CLIENTS).2)
        } else {
            assert!(rig.far[WORKERS].send(&reply));
            rig.poll();
            rig.poll();
            let group = ipv6::group_mac(ipv6::solicited_node(bits(ROUTER)));
            assert_eq!(rig.questions6(CLIENTS), [(bits(ROUTER), group)]);
            let answer = advertisement(ROUTER, ROUTER_MAC, LEAF[0], CLIENTS);
            let mut frames = rig.through(CLIENTS, &answer, CLIENTS);
            rig.wait(1_000_000);
            frames.extend(rig.receive(CLIENTS));
            assert_eq!(frames.len(), 1, "drops: {:?}", rig.drops());
            (ROUTER_MAC, frames[0].bytes().to_vec())
        };
        let datagram = udp::parse_v6(&frame, false).unwrap();
        assert_eq!((datagram.src, datagram.dst), (bits(LEAF[0]), bits(from)));
        assert_eq!((datagram.src_port, datagram.dst_port), (1234, 40_000));
        assert_eq!((ether::dst(&frame), ipv6::hop_limit(&frame[ETHER..])), (mac, 63));
        assert_eq!(rig.outstanding(header.dst - 10), 0);
        assert_eq!((rig.count(Counter::Scheduled), rig.count(Counter::Replies)), (1, 1));
        rig.assert_accounted();
    }
}

#[test]
fn common_policies_run_over_ipv6() {
    for policy in ["random", "round-robin", "jsq", "ppot", "jbsq(k=1)", "horus-inflight"] {
        let mut rig = rig6(policy);
        for seq in 0..50 {
            let (_, header, _) = rig.one6(CLIENTS, &task6(NEAR, seq), WORKERS);
            rig.one6(WORKERS, &reply6(header.dst, 0, NEAR), CLIENTS);
        }
        assert_eq!((0..8).map(|at| rig.outstanding(at)).sum::<u32>(), 0, "{policy}");
        rig.assert_accounted();
    }
}

// promise: packets.2
#[test]
fn tasks_wait_and_those_beyond_are_given_back() {
    // Each of the 8 workers takes one task. The queue holds four more, and the next one goes back to its client.
    let mut rig = rig6("jbsq(k=1)");
    let sent: Vec<u16> =
        (0..8).map(|seq| rig.one6(CLIENTS, &task6(NEAR, seq), WORKERS).1.dst).collect();
    for seq in 8..12 {
        assert_eq!(rig.through(CLIENTS, &task6(NEAR, seq), WORKERS).len(), 0);
    }
    let (datagram, header, frame) = rig.one6(CLIENTS, &task6(NEAR, 12), CLIENTS);
    assert_eq!((datagram.src, datagram.dst), (bits(LEAF[0]), bits(NEAR)));
    assert_eq!((datagram.src_port, header.seq, ether::dst(&frame)), (1234, 12, CLIENT_MAC));
    assert!(header.code.is_reply());
    // A waiting task is sent when a worker is free.
    let frames = rig.through(WORKERS, &reply6(sent[0], 0, NEAR), WORKERS);
    assert_eq!(frames.len(), 1);
    let datagram = udp::parse_v6(frames[0].bytes(), false).unwrap();
    let header = Header::parse(&frames[0].bytes()[datagram.payload()..]).unwrap();
    assert_eq!((header.seq, header.dst), (8, sent[0]));
    drop(frames);
    rig.assert_accounted();
}

// promise: packets.2
#[test]
fn packets_of_one_task_go_to_one_worker() {
    let mut rig = rig6("round-robin");
    let packet = |from: &str, code: Code, more: bool| {
        let header = Header { code, more, ..Header::new_task(7, 3) };
        frame6(&flow(from, LEAF[0], (40_000, 1234)), header)
    };
    let first = rig.one6(CLIENTS, &packet(NEAR, Code::NewTask, true), WORKERS).1.dst;
    let other = rig.one6(CLIENTS, &packet(FAR, Code::NewTask, true), WORKERS).1.dst;
    assert_ne!(first, other, "two clients");
    let next = |rig: &mut Rig, from, more| {
        rig.one6(CLIENTS, &packet(from, Code::TaskContinuation, more), WORKERS).1.dst
    };
    assert_eq!(next(&mut rig, NEAR, true), first);
    assert_eq!(next(&mut rig, FAR, false), other);
    assert_eq!(next(&mut rig, NEAR, false), first);
    assert_eq!(rig.outstanding(first - 10), 1);
    rig.assert_accounted();
}

// promise: packets.2
#[test]
fn workers_register() {
    let text = text("horus", "").replace("registers = false", "registers = true");
    let mut rig = rigs_of(&text, None, false, 256).remove(0);
    rig.resolve_v6_servers();
    let header = Header { code: Code::WorkerId, src: 14, ..Header::new_task(7, 9) };
    let (datagram, answer, frame) = rig.one6(WORKERS, &of_server(1, LEAF[1], header), WORKERS);
    assert_eq!((datagram.src, datagram.dst), (bits(LEAF[1]), bits(V6_SERVERS[1])));
    assert_eq!((answer.code, answer.seq), (Code::WorkerIdAck, 9));
    assert_eq!(ether::dst(&frame), server_mac(1));
    let spoofed = of_server(0, LEAF[1], header);
    assert_eq!(rig.dropped(WORKERS, &spoofed), Some("spoofed_reply"));
    rig.assert_accounted();
}

// promise: trust.1
#[test]
fn questions_are_answered() {
    let mut rig = rig6("horus");
    let answer = |rig: &mut Rig, question: &[u8]| {
        let frames = rig.through(CLIENTS, question, CLIENTS);
        assert_eq!(frames.len(), 1, "{:?}", rig.drops());
        let read = ndp::Packet::parse(frames[0].bytes()).unwrap();
        assert_eq!((read.operation, read.mac), (Operation::Advertisement, Some(LEAF_MACS[0])));
        assert_eq!((read.src, read.target), (bits(LEAF[0]), bits(LEAF[0])));
        (read.dst, ether::dst(frames[0].bytes()))
    };
    let to = answer(&mut rig, &solicitation(NEAR, CLIENT_MAC, LEAF[0]));
    assert_eq!(to, (bits(NEAR), CLIENT_MAC));
    let to = answer(&mut rig, &solicitation("fe80::5", CLIENT_MAC, LEAF[0]));
    assert_eq!(to, (bits("fe80::5"), CLIENT_MAC));
    // From a host that tests the address for duplicates (RFC 4862).
    let alone = ndp::Packet {
        operation: Operation::Solicitation,
        src: 0,
        dst: ipv6::solicited_node(bits(LEAF[0])),
        target: bits(LEAF[0]),
        mac: None,
    };
    let mut frame = message(alone, ipv6::group_mac(alone.dst));
    // Without the option for the sender's MAC address: 8 bytes shorter, with another checksum.
    frame.truncate(frame.len() - 8);
    frame[ETHER + 5] = 24;
    frame[UDP + 2..UDP + 4].fill(0);
    let sum = ipv6::pseudo_header(&frame[ETHER..], ipv6::ICMP, 24).bytes(&frame[UDP..]);
    frame[UDP + 2..UDP + 4].copy_from_slice(&sum.checksum().to_be_bytes());
    let to = answer(&mut rig, &frame);
    assert_eq!(to, (ipv6::ALL_NODES, ipv6::group_mac(ipv6::ALL_NODES)));
    // A host that only asks gets no entry.
    let neighbours = rig.leaf.stages().neighbours();
    assert_eq!(neighbours.find(CLIENTS, bits(NEAR)), None);
    assert_eq!(
        rig.dropped(CLIENTS, &solicitation(NEAR, CLIENT_MAC, "fd00:1::99")),
        Some("nd_other")
    );
    let (announcement, to) = ndp::Packet::announcement(CLIENT_MAC, bits(NEAR));
    assert_eq!(rig.dropped(CLIENTS, &message(announcement, to)), None);
    rig.assert_accounted();
}

// promise: trust.1
#[test]
fn known_server_is_probed_before_a_change() {
    const OTHER: Mac = Mac([2, 0, 0, 0, 9, 9]);
    let mut rig = rig6("round-robin");
    let known = |rig: &Rig| {
        let neighbours = rig.leaf.stages().neighbours();
        neighbours.find(WORKERS, bits(V6_SERVERS[0])).and_then(|slot| neighbours.mac(slot))
    };
    // The first server has moved to another MAC address. The leaf asks the known one, which stays silent, and then a
    // multicast group, where the new one answers.
    assert_eq!(known(&rig), Some(server_mac(0)));
    let claim = advertisement(V6_SERVERS[0], OTHER, LEAF[1], WORKERS);
    assert_eq!(rig.dropped(WORKERS, &claim), Some("arp_conflict"));
    let mut questions = Vec::new();
    for seq in 0..300 {
        let _ = rig.through(CLIENTS, &task6(NEAR, seq), CLIENTS);
        rig.wait(1_000_000);
        for (target, to) in rig.questions6(WORKERS) {
            questions.push((target, to));
            if to != server_mac(0) && to != server_mac(1) && target == bits(V6_SERVERS[0]) {
                assert!(rig.far[WORKERS].send(&claim));
            }
        }
    }
    // Questions for the first server.
    let of_first: Vec<_> = questions.iter().filter(|one| one.0 == bits(V6_SERVERS[0])).collect();
    assert_eq!(of_first[0].1, server_mac(0), "the known one is asked first: {questions:?}");
    assert_eq!(known(&rig), Some(OTHER), "which was silent");
    rig.assert_accounted();
}

// promise: input.1
#[test]
fn every_bad_packet_has_its_drop_reason() {
    let edited = |at: usize, bytes: &[u8]| {
        let mut frame = task6(NEAR, 1);
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let task_from = |src: &str| task6(src, 1);
    // Hosts accept only messages with hop limit 255, which no router has forwarded (RFC 4861).
    let mut unlimited = solicitation(NEAR, CLIENT_MAC, LEAF[0]);
    unlimited[ETHER + 7] = 64;
    let mut short = task6(NEAR, 1);
    short.truncate(UDP + 3);
    let to = |dst: &str, ports| frame6(&flow(NEAR, dst, ports), Header::new_task(7, 1));
    // IPv6 header: version at 0, payload length at 4, next header at 6 (0 and 44 are extensions, 6 is TCP), hop limit
    // at 7. UDP header: length at 4, checksum at 6.
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("ipv6_header", edited(ETHER, &[0x40])),
        ("ipv6_header", edited(ETHER + 4, &[0, 0])),
        ("ipv6_header", edited(ETHER + 4, &[0xFF, 0])),
        ("ipv6_header", short),
        ("ipv6_extension", edited(ETHER + 6, &[0])),
        ("ipv6_extension", edited(ETHER + 6, &[44])),
        ("not_udp", edited(ETHER + 6, &[6])),
        ("runt", task6(NEAR, 1)[..40].to_vec()),
        ("udp_length", edited(UDP + 4, &[0, 200])),
        ("udp_no_checksum", edited(UDP + 6, &[0, 0])),
        ("udp_checksum", edited(UDP + 6, &[1, 2])),
        ("other_mac", edited(0, &[2, 9, 9, 9, 9, 9])),
        ("udp_port", to(LEAF[0], (40_000, 99))),
        ("other_address", to("fd00:1::99", (40_000, 1234))),
        ("ttl_expired", edited(ETHER + 7, &[1])),
        ("ttl_expired", edited(ETHER + 7, &[0])),
        ("source_unreachable", task_from("ff02::1")),
        ("source_unreachable", task_from("::")),
        ("source_unreachable", task_from("::1")),
        ("source_unreachable", task_from("fe80::5")),
        ("source_unreachable", task_from("::ffff:10.0.0.1")),
        ("source_unreachable", task_from(V6_SERVERS[0])),
        ("source_unreachable", task_from(LEAF[1])),
        ("unknown_pool", frame6(&flow(NEAR, LEAF[0], (40_000, 1234)), Header::new_task(8, 1))),
        ("wrong_side", frame6(&flow(NEAR, FAR, (1234, 40_000)), done(10, 0))),
        ("nd_malformed", unlimited),
        ("ether_type", task(1)),
        ("ether_type", {
            let mut frame = vec![0; arp::FRAME_LEN];
            arp::Packet::request(CLIENT_MAC, CLIENT, LEAF_CLIENTS).emit(&mut frame, Mac::BROADCAST);
            frame
        }),
    ];
    let mut rig = rig6("horus");
    for (at, (reason, frame)) in cases.iter().enumerate() {
        assert_eq!(rig.dropped(CLIENTS, frame), Some(*reason), "case {at}");
    }
    let spoofed = of_server(0, NEAR, done(14, 0));
    assert_eq!(rig.dropped(WORKERS, &spoofed), Some("spoofed_reply"));
    let unknown = of_server(0, NEAR, done(99, 0));
    assert_eq!(rig.dropped(WORKERS, &unknown), Some("unknown_worker"));
    assert_eq!(rig.count(Counter::Scheduled), 0);
    rig.assert_accounted();
}

// promise: packets.2
#[test]
fn pools_of_both_families_stand_side_by_side() {
    let more = "[[port]]\ndevice = 'net_ring2'\nside = 'both'\nip = '10.0.1.1/24'\nmac = '02:00:00:00:00:01'\n\
                [[pool]]\nid = 8\npolicy = 'horus'\n\
                [[server]]\nip = '10.0.1.11'\npool = 8\nworkers = '20'\nmac = '02:00:00:00:03:0b'\nregisters = false\n";
    let mut rig = rigs_of(&text("horus", more), None, false, 256).remove(0);
    rig.resolve_v6_servers();
    let to_pool = |pool| {
        let mut payload = [0xAB; 20];
        Header::new_task(pool, 1).emit(&mut payload);
        frame(&client_flow(), &payload)
    };
    let (datagram, header, packet) = rig.one(2, &to_pool(8), 2);
    assert_eq!((datagram.dst, header.dst), (0x0A00_010B, 20));
    drop(packet);
    assert_eq!(rig.one6(CLIENTS, &task6(NEAR, 1), WORKERS).1.pool, 7);
    assert_eq!(rig.dropped(2, &to_pool(7)), Some("address_family"));
    let other = frame6(&flow(NEAR, LEAF[0], (40_000, 1234)), Header::new_task(8, 1));
    assert_eq!(rig.dropped(CLIENTS, &other), Some("address_family"));
    // IPv4 replies and tasks never reach the pool over IPv6, whatever their addresses.
    // The lowest address, the lowest reserved one, and broadcast.
    for number in [0, 0xF000_0000, u32::MAX] {
        let flow = Flow { src: number, dst: CLIENT, src_port: 1234, dst_port: 9, ..client_flow() };
        let mut payload = [0; 20];
        done(10, 0).emit(&mut payload);
        assert_eq!(rig.dropped(2, &frame(&flow, &payload)), Some("address_family"));
        let flow = Flow { dst: number, ..client_flow() };
        let mut payload = [0; 20];
        Header::new_task(7, 1).emit(&mut payload);
        assert_eq!(rig.dropped(2, &frame(&flow, &payload)), Some("other_address"));
    }
    rig.receive(2);
    rig.assert_accounted();
}

#[test]
fn servers_come_and_move_while_it_runs() {
    let (mut rigs, mut control) = rigs_with_control(&text("round-robin", ""), None, false, 256);
    let mut rig = rigs.remove(0);
    rig.resolve_v6_servers();
    rig.change(
        &mut control,
        &[
            "add-server ip=fd00:2::d mac=02:00:00:00:02:0d",
            "add-workers server=fd00:2::d pool=7 workers=30",
        ],
    );
    let mut chosen = std::collections::BTreeMap::new();
    for seq in 0..9 {
        let (datagram, header, _) = rig.one6(CLIENTS, &task6(NEAR, seq), WORKERS);
        chosen.insert(header.dst, datagram.dst);
    }
    assert_eq!(chosen.get(&30), Some(&bits("fd00:2::d")));
    rig.change(&mut control, &["move-server ip=fd00:2::d to=fd00:2::e mac=02:00:00:00:02:0d"]);
    // Replies from its old address are accepted for a while, from a stranger's never.
    let from = |src: &str| {
        let flow = Flow {
            src_mac: server_mac(2),
            dst_mac: LEAF_MACS[WORKERS],
            ..flow(src, NEAR, (1234, 40_000))
        };
        frame6(&flow, done(30, 0))
    };
    rig.one6(WORKERS, &from("fd00:2::d"), CLIENTS);
    rig.one6(WORKERS, &from("fd00:2::e"), CLIENTS);
    assert_eq!(rig.dropped(WORKERS, &from("fd00:2::f")), Some("spoofed_reply"));
    // A pool's servers are of one family. A server has a host's address, and not the node's own.
    let refused = |control: &mut Control, change: &[&str]| {
        let changes: Vec<_> = change.iter().map(|text| text.parse().unwrap()).collect();
        control.apply_all(&changes).unwrap_err().to_string()
    };
    let mixed = ["add-server ip=10.0.2.13", "add-workers server=10.0.2.13 pool=7 workers=40"];
    let error = refused(&mut control, &mixed);
    assert!(error.contains("10.0.2.13"), "{error}");
    let error = refused(&mut control, &["add-server ip=fd00:2::1"]);
    assert!(error.contains("own address"), "{error}");
    let error = refused(&mut control, &["add-server ip=fe80::7"]);
    assert!(error.contains("not a host's address"), "{error}");
    rig.assert_accounted();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For random packets, nothing panics and every packet is accounted for. A step sends a packet of a `kind`, of
    /// which some bytes are overwritten or cut off.
    // promise: input.1
    #[test]
    fn the_ledger_balances_whatever_comes(
        packets in proptest::collection::vec((
            0..6_u8, 0..2_usize, 8..20_u16,
            proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            proptest::option::weighted(0.2, any::<prop::sample::Index>()),
        ), 1..60),
        policy in proptest::sample::select(vec!["horus", "jbsq(k=1)"]),
    ) {
        let mut rig = rig6(policy);
        for (kind, port, number, edits, cut) in packets {
            let worker = 10 + number % 8;
            let mut frame = match kind {
                0 => task6(NEAR, number),
                1 => task6(FAR, number),
                2 => reply6(worker, number % 3, NEAR),
                3 => solicitation(NEAR, CLIENT_MAC, LEAF[port]),
                4 => advertisement(V6_SERVERS[0], server_mac(usize::from(number % 3)), LEAF[port], port),
                _ => {
                    let code = if number % 2 == 0 { Code::NewTask } else { Code::TaskContinuation };
                    let header = Header { code, more: number % 3 > 0, ..Header::new_task(7, number % 4) };
                    frame6(&flow(NEAR, LEAF[0], (40_000, 1234)), header)
                }
            };
            for (at, byte) in edits {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            if let Some(cut) = cut {
                frame.truncate(cut.index(frame.len()));
            }
            prop_assert!(rig.far[port].send(&frame));
            rig.poll();
            rig.receive(CLIENTS);
            rig.receive(WORKERS);
        }
        rig.wait(1_000_000_000);
        rig.assert_accounted();
    }
}
