//! Tests of the fast path over IPv6.

use proptest::prelude::*;

use std::net::{IpAddr, Ipv6Addr};

use super::template::IP;
use super::*;
use crate::io::memory::FramePool;
use crate::stage::PortAddress;
use crate::stage::fast::tests::{all_vectors, assert_decided_equally, damage};
use crate::stage::fixture::{self, Fixture};
use crate::stage::network::PortNetwork;
use crate::wire::auth::{KEY_LEN, Key, addresses_v6};
use crate::wire::ether::Mac;
use crate::wire::task::{Code, Header};
use crate::wire::udp::{self, Flow};

// Addresses of the leaf, of a client and of the workers' server.
const LEAF: u128 = 0xFD00_0001_0000_0000_0000_0000_0000_0001;
const CLIENT: u128 = LEAF + 1;
const SERVER: u128 = LEAF + 0xA;
const LEAF_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 1, 11]);
const UDP: usize = <u128 as Address>::UDP;
const TASK: usize = <u128 as Address>::PAYLOAD;
const POOL: u16 = 0x0107;

/// Key of the pool, for tests with authenticated replies.
fn key() -> Key {
    Key::new([9; KEY_LEN])
}

/// Builds stages with this side behind the receiving port. The workers are behind it or behind a second
/// port, which leads to a router. With a key, the stages accept sequence numbers beyond the first window.
fn stages(side: Side, key: Option<Key>) -> Stages {
    stages_with(side, key, Some("fe80::1"))
}

/// Like `stages`, with this router behind the second port, or none.
fn stages_with(side: Side, key: Option<Key>, gateway: Option<&str>) -> Stages {
    let address = |text: &str| text.parse::<Ipv6Addr>().unwrap();
    let server = if side == Side::Clients { "fd00:4::b" } else { "fd00:1::b" };
    let here = PortAddress::new(LEAF_MAC, Ipv6Addr::from_bits(LEAF).into(), 64, side);
    let mac = Mac([2, 0, 0, 0, 0, 2]);
    let mut there = PortAddress::new(mac, address("fd00:4::1").into(), 64, Side::Both);
    let gateway = gateway.map(|text| address(text).to_bits());
    there.v6 = there.v6.map(|v6| PortNetwork { gateway, ..v6 });
    fixture::stages(Fixture {
        ports: vec![here, there],
        server: address(server).into(),
        mac: Some(SERVER_MAC),
        pool: POOL,
        policy: "horus",
        members: (0..8).collect(),
        key,
        service: None,
        is_direct: false,
    })
}

/// Builds a task to the leaf or a reply to the client. The default source is the client or the server. Signs the packet
/// with the sequence number if its header is authenticated.
fn frame(header: Header, source: Option<u128>, payload: &[u8], sequence: u64) -> Vec<u8> {
    let is_reply = header.code.is_reply();
    let len = header.len() + payload.len();
    let mut frame = vec![0; udp::PAYLOAD_V6 + len];
    header.emit(&mut frame[udp::PAYLOAD_V6..]);
    frame[udp::PAYLOAD_V6 + header.len()..].copy_from_slice(payload);
    if header.authenticated {
        let addresses = addresses_v6(source.unwrap_or(SERVER), CLIENT);
        key().sign(&addresses, &mut frame[udp::PAYLOAD_V6..], sequence);
    }
    let flow = Flow {
        src_mac: if is_reply { SERVER_MAC } else { Mac([2, 0, 0, 0, 1, 2]) },
        dst_mac: LEAF_MAC,
        src: source.unwrap_or(if is_reply { SERVER } else { CLIENT }),
        dst: if is_reply { CLIENT } else { LEAF },
        src_port: if is_reply { 1234 } else { 40_000 },
        dst_port: if is_reply { 40_000 } else { 1234 },
    };
    flow.emit_v6(&mut frame, len);
    frame
}

/// Returns the header of a task.
fn task(seq: u16) -> Header {
    Header::new_task(POOL, seq)
}

/// Returns the header of a worker's reply with its queue length.
fn reply(worker: u16, qlen: u16) -> Header {
    let code = if qlen == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
    Header { code, src: worker, qlen, ..Header::new_task(POOL, 0) }
}

// promise: packets.2
#[test]
fn packets_that_match_take_the_fast_path() {
    for key in [None, Some(key())] {
        let pool = FramePool::new(8, 256);
        let reply = |worker, qlen| Header { authenticated: key.is_some(), ..reply(worker, qlen) };
        let headers = [task(1), reply(3, 2), task(2), reply(2, 0), task(3)];
        let packets =
            headers.map(|header| pool.frame(&frame(header, None, &[1; 8], 5000)).unwrap());
        let mut stages = stages(Side::Both, key);
        let mut verdicts = [Verdict::Consumed; 5];
        assert_eq!(burst_v6(&mut stages, 0, &mut { packets }, &mut verdicts[..]), 5);
        assert!(verdicts.iter().all(|verdict| match verdict {
            Verdict::Forward { port, .. } | Verdict::Hold { port, .. } => *port == 0,
            _ => false,
        }));
        let count = |counter| stages.counters.read(counter);
        assert_eq!((count(Counter::Scheduled), count(Counter::Replies)), (3, 2));
    }
}

// promise: trust.3
#[test]
fn unproved_replies_are_dropped_among_proved_ones() {
    let pool = FramePool::new(8, 256);
    let signed = |worker| Header { authenticated: true, ..reply(worker, 1) };
    let mut altered = frame(signed(4), None, &[1; 8], 5000);
    altered[TASK + 8] ^= 1; // low byte of the queue length, which the tag covers
    udp::renew_checksum_v6(&mut altered);
    let frames = [
        frame(signed(1), None, &[1; 8], 5000),
        altered,
        frame(task(2), None, &[1; 8], 0),
        frame(signed(1), None, &[1; 8], 5000),
        frame(signed(2), None, &[1; 8], 5000),
    ];
    let mut stages = stages(Side::Both, Some(key()));
    let mut verdicts = [Verdict::Consumed; 5];
    let mut packets = frames.map(|frame| pool.frame(&frame).unwrap());
    assert_eq!(burst_v6(&mut stages, 0, &mut packets, &mut verdicts[..]), 5);
    assert_eq!(verdicts[1], Verdict::Drop(DropReason::AuthTag));
    assert_eq!(verdicts[3], Verdict::Drop(DropReason::AuthReplay));
    assert!([0, 2, 4].iter().all(|&at: &usize| !matches!(verdicts[at], Verdict::Drop(_))));
    let count = |counter| stages.counters.read(counter);
    assert_eq!((count(Counter::Scheduled), count(Counter::Replies)), (1, 2));
}

/// Sources that are clients of a leaf with these networks, and others that are not.
const SOURCES: [u128; 13] = [
    LEAF - 1,                   // first address of the port's network
    0,                          // unspecified
    1,                          // loopback
    0x0A00_0001,                // 10.0.0.1, IPv4-compatible
    0xFFFF << 32 | 0x0A00_0001, // 10.0.0.1, IPv4-mapped
    LEAF,                       // the leaf's address on the port
    LEAF + (3 << 96),           // fd00:4::1, the leaf's address on the second port
    SERVER,                     // the server, if it is behind the port
    CLIENT + 1,                 // in the port's network
    LEAF + (1 << 64),           // fd00:1:0:1::1, in no network of the leaf
    0xFE80 << 112 | 5,          // link-local
    0xFF02 << 112 | 1,          // multicast
    0x2001_0DB8 << 96 | 7,      // 2001:db8::7, in no network of the leaf
];

/// The list of unreachable sources agrees with the check of the network, with and without a router.
#[test]
fn unreachable_list_agrees_with_client_check() {
    let cases = [(Side::Both, Some("fe80::1")), (Side::Clients, None), (Side::Both, None)];
    for (side, gateway) in cases {
        let stages = stages_with(side, None, gateway);
        let sources = &stages.fast.1.sources[0];
        for source in SOURCES {
            let is_listed = sources.unreachable.iter().any(|range| range.contains(source.to_be()));
            let is_near = sources.clients.is_none_or(|(net, mask)| (source ^ net) & mask == 0);
            assert_eq!(
                is_near && !is_listed,
                stages.network.family::<u128>().is_client(source),
                "{source:#x} at {side:?}, {gateway:?}"
            );
        }
    }
}

/// Words with a tolerance: on both sides of their bounds, vectors, scalar code and stages agree.
// promise: trust.2
#[test]
fn bounds_hold_in_each_path() {
    let pool = FramePool::new(4, 256);
    let hops = [0, 1, 2, 3, 64, 254, 255].map(|hops| (IP + 7, vec![hops], hops >= 2));
    let next = [0, 16, 18, 255].map(|next| (IP + 6, vec![next], false));
    let ports = [0, 1, 0xFF, 0x100, 0xFF00, 0xFFFE, 0xFFFF];
    let ports = ports.map(|port: u16| (UDP, port.to_be_bytes().to_vec(), port > 0));
    let sums = [(UDP + 6, vec![0, 0], false)];
    let cases = hops.into_iter().chain(next).chain(ports).chain(sums);
    for (at, bytes, passes) in cases {
        let mut frame = frame(task(1), Some(CLIENT), &[1; 9], 0);
        frame[at..at + bytes.len()].copy_from_slice(&bytes);
        if at != UDP + 6 {
            udp::renew_checksum_v6(&mut frame);
        }
        let burst = [pool.frame(&frame).unwrap()];
        let stages = || stages(Side::Both, None);
        let recognising = stages();
        let (network, template) =
            (&recognising.network, recognising.fast.1.template(0, 0).unwrap());
        let recognised = recognise_scalar_v6(network, template, &burst, &mut Fields::new()).len;
        assert_eq!(recognised == 1, passes, "{at}: {bytes:?}");
        #[cfg(target_arch = "x86_64")]
        for vectors in all_vectors() {
            let run = vector::recognise_v6(vectors, template, &[], &burst, &mut Fields::new());
            assert_eq!(run.map_or(0, |run| run.len), recognised, "{at}: {bytes:?}");
        }
        drop(burst);
        assert_decided_equally(&mut stages(), &mut stages(), &pool, &frame).unwrap();
    }
}

#[cfg(target_arch = "x86_64")]
proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Vectors recognise the same packets as scalar code, of any length and with single bytes changed.
    #[test]
    fn vectors_recognise_what_scalars_do(
        packets in proptest::collection::vec((
            any::<(u16, bool, bool)>(), proptest::collection::vec(any::<u8>(), 0..150),
            proptest::option::weighted(0.05, any::<(prop::sample::Index, u8)>()), 0..9_usize,
            proptest::option::weighted(0.1, proptest::sample::select(SOURCES.to_vec())),
        ), 1..BURST), keyed: bool,
    ) {
        let pool = FramePool::new(BURST, 512);
        let key = keyed.then(key);
        let stages = stages(Side::Both, key);
        let (network, tables) = (&stages.network, &stages.fast.1);
        let burst: Vec<_> = packets.into_iter().map(|((seq, extended, replies), payload, edit, padding, source)| {
            let header = if replies { reply(seq % 8, seq % 3) } else { task(seq) };
            let authenticated = replies && keyed;
            let mut frame = frame(Header { extended, authenticated, ..header }, source, &payload, 0);
            if let Some((at, byte)) = edit {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            frame.resize(frame.len() + padding, 0xAA); // not part of the datagram
            pool.frame(&frame).unwrap()
        }).collect();
        let template = tables.template(0, 0).unwrap();
        // A datagram that does not fill its packet ends a run of the vector code.
        let exact = |frame: &[u8]| frame[IP + 4..IP + 6] == frame[UDP + 4..UDP + 6];
        let exact = burst.iter().take_while(|packet| exact(packet.bytes())).count();
        let mut of_words = Fields::new();
        let words = recognise_scalar_v6(network, template, &burst[..exact], &mut of_words);
        let unreachable = &tables.sources[0].unreachable;
        for vectors in all_vectors() {
            let mut fields = Fields::new();
            let run = vector::recognise_v6(vectors, template, unreachable, &burst[..exact], &mut fields);
            // `None` means a wrong checksum. Such a packet also ends the run of the scalar code.
            prop_assert!(run.is_some() || (words.len as usize) < exact);
            if let Some(run) = run {
                prop_assert_eq!((run.len, run.replies), (words.len, words.replies));
                prop_assert_eq!(fields.tasks, of_words.tasks);
            }
        }
    }
}

// promise: fabric.1
#[test]
fn spine_fast_path_serves_service_addresses_only() {
    let pool = FramePool::new(8, 256);
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let mut stages = fixture::stages(Fixture {
        ports: vec![PortAddress::new(LEAF_MAC, address("fd00:1::1"), 64, Side::Both)],
        server: address("fd00:1::b"),
        mac: Some(SERVER_MAC),
        pool: POOL,
        policy: "horus-spine",
        members: vec![40],
        key: None,
        service: Some(address("fd00:1::c8")),
        is_direct: false,
    });
    let to = |address: u128, header: Header| {
        let mut frame = frame(header, Some(CLIENT), &[1; 8], 0);
        frame[IP + 24..IP + 40].copy_from_slice(&address.to_be_bytes());
        frame[UDP + 6..UDP + 8].fill(0);
        let sum = ipv6::pseudo_header(&frame[IP..], ipv6::UDP, (frame.len() - UDP) as u16);
        let checksum = sum.bytes(&frame[UDP..]).checksum();
        frame[UDP + 6..UDP + 8].copy_from_slice(&checksum.to_be_bytes());
        pool.frame(&frame).unwrap()
    };
    let service = LEAF - 1 + 0xC8;
    let mut packets = [to(service, task(1)), to(service, task(2)), to(LEAF, task(3))];
    let mut verdicts = [Verdict::Consumed; 3];
    assert_eq!(burst_v6(&mut stages, 0, &mut packets, &mut verdicts[..]), 2);
    let sent = udp::parse_v6(packets[0].bytes(), false).unwrap();
    assert_eq!((sent.src, sent.dst), (CLIENT, SERVER));
    assert_eq!(Header::parse(&packets[0].bytes()[TASK..]).unwrap().dst, 40);
    // A worker replies to the client itself, and a spine accepts no replies.
    let mut packets = [to(CLIENT, reply(40, 0))];
    assert_eq!(burst_v6(&mut stages, 0, &mut packets, &mut verdicts[..]), 0);
    assert_eq!(stages.counters.read(Counter::Scheduled), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The fast path and the stages give each packet the same verdict and the same bytes.
    // promise: packets.2, trust.3
    #[test]
    fn fast_path_and_stages_decide_equally(
        packets in proptest::collection::vec((
            any::<(u16, bool, bool)>(), 0..16_u16,
            proptest::collection::vec(any::<u8>(), 0..40),
            proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
            proptest::option::weighted(0.2, any::<prop::sample::Index>()),
            proptest::option::weighted(0.3, proptest::sample::select(SOURCES.to_vec())),
        ), 1..40),
        side in proptest::sample::select(vec![Side::Both, Side::Clients, Side::Workers]), keyed: bool,
    ) {
        let pool = FramePool::new(4, 256);
        let [mut with, mut without] = [(); 2].map(|()| stages(side, keyed.then(key)));
        for ((seq, extended, replies), worker, payload, edits, cut, source) in packets {
            // Workers 8 to 15 are unknown. One packet in 16 has the flag of a task with further packets.
            let header = if replies { reply(worker, seq % 3) } else { task(seq) };
            // With a key, ten of eleven replies are signed; without one, one of eleven. Some sequences repeat.
            let authenticated = replies && keyed == (seq % 11 != 0);
            let header = Header { more: worker == 0, extended, authenticated, ..header };
            let sequence = 5000 + u64::from(seq / 11) % 40;
            let mut frame = frame(header, source, &payload, sequence);
            damage(&mut frame, &edits, cut);
            assert_decided_equally(&mut with, &mut without, &pool, &frame)?;
        }
        prop_assert_eq!(with.counters.totals(), without.counters.totals());
    }
}
