//! Fuzz body: arbitrary bytes as packets of a leaf, the process that schedules the tasks of a rack. The leaf's stages
//! parse, classify, schedule and rewrite each packet; this body checks every verdict and every changed byte. The leaf
//! has two ports and a few servers of IPv4, and the same of IPv6.
//!
//! An input is a script of bursts. Random bytes seldom have right checksums. Most packets therefore start as
//! a task, a reply, a server's message about a worker, an ARP packet, or a message of neighbour discovery, with fields
//! chosen by the input. The input may then damage a packet and may repair its checksums. Some packets carry a VLAN tag.
//! It is removed as by a port of that VLAN, or stays. A second implementation, written after the standard,
//! computes the checksums here.
//!
//! Offsets in frames: 12 EtherType (0x0806 ARP, 0x86DD IPv6); 14 IP header.
//! IPv4: 22 time to live, 24 checksum, 26 and 30 addresses.
//! IPv6: 18 length of the payload, 20 next header (17 UDP, 58 ICMPv6), 21 hop limit, 22 and 38 addresses.
//! 54 UDP or ICMPv6 (56 checksum of ICMPv6, 78 option of a neighbour message).
//! Offsets in task headers: 0 code and flags, 1 pool, 3 source, 5 destination, 7 queue length.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use wedjat::assembly;
use wedjat::config::Config;
use wedjat::control::Membership;
use wedjat::io::Buf;
use wedjat::policy::{Lane, PolicySpec};
use wedjat::reason::DropReason;
use wedjat::stage::{Network, QueuePlace, Stages, Verdict};
use wedjat::state::{Counter, Member, Table};
use wedjat::wire::ether::Mac;
use wedjat::wire::udp::{Flow, PAYLOAD, PAYLOAD_V6};
use wedjat::wire::{arp, ndp, vlan};

/// Maximum number of packets of a burst.
const BURST: usize = 8;
/// Scheduling policies; the first byte of the input selects one.
const POLICIES: [&str; 9] = [
    "horus",
    "horus-inflight",
    "racksched",
    "random",
    "round-robin",
    "jsq",
    "jbsq(k=1)",
    "jiq",
    "lsq-update",
];
/// Maximum number of queued tasks per pool.
const QUEUE: usize = 4;
/// Time after which a registered worker counts as silent.
const TIMEOUT_MS: u16 = 1;
/// The leaf's IPv4 addresses, by port: clients, workers.
const LEAF: [u32; 2] = [0x0A00_0101, 0x0A00_0201];
/// Number of ports: 0 clients and 1 workers of IPv4, 2 clients and 3 workers of IPv6.
const PORTS: usize = 4;
const LEAF_MACS: [Mac; PORTS] = [
    Mac([2, 0, 0, 0, 0, 1]),
    Mac([2, 0, 0, 0, 0, 2]),
    Mac([2, 0, 0, 0, 0, 3]),
    Mac([2, 0, 0, 0, 0, 4]),
];
const CLIENT: u32 = 0x0A00_0102;
/// Address outside the leaf's networks.
const ELSEWHERE: u32 = 0x0B00_0001;
/// Servers (worker hosts) of IPv4.
const SERVERS: [u32; 3] = [0x0A00_020B, 0x0A00_020C, 0x0A00_020D];
/// The leaf's IPv6 addresses: on port 2 and on port 3.
const LEAF_V6: [u128; 2] = [v6(1, 1), v6(2, 1)];
const CLIENT_V6: u128 = v6(1, 2);
const ELSEWHERE_V6: u128 = v6(3, 1);
const SERVERS_V6: [u128; 2] = [v6(2, 0xB), v6(2, 0xC)];
/// Id, server (IPv6 ones last) and pool (by index) of each worker.
const WORKERS: [(u16, usize, usize); 9] = [
    (10, 0, 0),
    (11, 0, 0),
    (12, 1, 0),
    (13, 1, 0),
    (20, 2, 1),
    (21, 2, 1),
    (30, 3, 2),
    (31, 3, 2),
    (32, 4, 2),
];
/// Ids of the pools (workers with one policy). The third has the IPv6 workers.
const POOLS: [u16; 3] = [7, 9, 11];
/// VLAN of the simulated port that removes tags.
const VLAN: u16 = 5;

/// Returns the address fd00:NETWORK::HOST.
const fn v6(network: u128, host: u128) -> u128 {
    0xFD00 << 112 | network << 96 | host
}
/// UDP port of the leaf's service and of the workers.
const UDP_PORT: u16 = 1234;

/// A packet in its own memory.
struct Frame(Vec<u8>);

impl Buf for Frame {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn resize(&mut self, len: usize) -> bool {
        self.0.resize(len, 0);
        true
    }
}

/// Unread rest of the input. Yields zeros at its end.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// Reads a byte.
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Reads two bytes as a number.
    fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Reads `count` bytes, or fewer at the end.
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Returns one of the choices, selected by the next byte. A choice listed several times is more likely.
    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// Returns the next packet and the port that receives it. The bits of the first byte select the kind (1, 2, 4 and
    /// 128: IPv6), a changed byte (8), a shorter length (16), repaired checksums (32) and the unusual side (64): the
    /// port of the workers for a client's packet, and vice versa.
    fn packet(&mut self) -> (usize, Frame) {
        let selector = self.byte();
        let is_v6 = selector & 128 != 0;
        let mut frame = match (is_v6, selector & 7) {
            (false, 0) => self.raw(),
            (false, 1) => self.arp(),
            (false, 2 | 3) => self.task(),
            (false, 4) => self.presence(),
            (false, _) => self.reply(),
            (true, 0) => self.tagged(),
            (true, 1) => self.neighbour_discovery(),
            (true, 2 | 3) => self.task_v6(),
            (true, 4) => self.presence_v6(),
            (true, _) => self.reply_v6(),
        };
        if selector & 8 != 0 && !frame.is_empty() {
            // All headers lie within the first 96 bytes.
            let at = usize::from(self.word()) % frame.len().min(96);
            frame[at] ^= self.byte();
        }
        if selector & 16 != 0 && !frame.is_empty() {
            frame.truncate(usize::from(self.word()) % frame.len());
        }
        if selector & 32 != 0 {
            repair(&mut frame);
        }
        // Side 0: clients; side 1: workers, which send presence messages (kind 4) and replies (5 to 7).
        let usual = if selector & 7 >= 4 { 1 } else { 0 };
        let side = if selector & 64 != 0 { 1 - usual } else { usual };
        (if is_v6 { 2 + side } else { side }, Frame(frame))
    }

    /// Adds a VLAN tag to a frame, and may remove it again by [`untag`]. The stages get the frame as from a port in a
    /// VLAN (without the tag), or from a port without VLAN (with the tag). Checks the functions that write and remove
    /// the tag.
    fn tagged(&mut self) -> Vec<u8> {
        let inner = match self.byte() % 4 {
            0 => self.raw(),
            1 => self.neighbour_discovery(),
            2 => self.task(),
            _ => self.task_v6(),
        };
        let tag = self.one_of(&[VLAN, VLAN, VLAN + 1, 0, vlan::ID_MAX]);
        if inner.len() < 12 {
            return inner;
        }
        // Writes the tag between the addresses (12 bytes) and the EtherType. The frame grows at its front.
        let mut frame = [&[0; vlan::LEN], &inner[..]].concat();
        vlan::uncover(&mut frame, tag);
        assert_eq!((&frame[..12], &frame[16..]), (&inner[..12], &inner[12..]));
        assert_eq!(frame[12..16], [0x81, 0, (tag >> 8) as u8, tag as u8]);
        if self.byte() & 1 == 1 { untag(frame) } else { frame }
    }

    /// Returns a neighbour solicitation or advertisement.
    fn neighbour_discovery(&mut self) -> Vec<u8> {
        let sender = self.one_of(&[CLIENT_V6, SERVERS_V6[1], LEAF_V6[0], 0, SERVERS_V6[0]]);
        let target = self.one_of(&[LEAF_V6[0], LEAF_V6[1], SERVERS_V6[1], CLIENT_V6, 0xFF << 120]);
        let mac = Mac([2, 0, 0, 0, 9, self.byte()]);
        let to = self.one_of(&[LEAF_MACS[2], LEAF_MACS[3]]);
        let known = (self.byte() & 1 == 1).then_some(to);
        let (mut message, mut to) = ndp::Packet::question(mac, sender, target, known);
        if self.byte() & 1 == 1 {
            message.operation = ndp::Operation::Advertisement;
            (message.dst, to) = (LEAF_V6[1], LEAF_MACS[3]);
        }
        let mut frame = vec![0; ndp::FRAME_LEN];
        message.emit(&mut frame, to, false);
        // Removes the option with the MAC address at byte 78, or puts another option before it: type 14, with a length
        // in units of 8 bytes that may be wrong.
        match self.byte() % 4 {
            0 => frame.truncate(78),
            1 => {
                let units = self.byte() % 4;
                let option = frame.split_off(78);
                frame.extend([14, units, 0, 0, 0, 0, 0, 0]);
                frame.extend(option);
            }
            _ => {}
        }
        // Length of the IPv6 payload.
        let len = (frame.len() - 54) as u16;
        frame[18..20].copy_from_slice(&len.to_be_bytes());
        repair(&mut frame);
        frame
    }

    /// Like [`Script::payload`], for the pool and workers of IPv6.
    fn payload_v6(&mut self, codes: &[u8]) -> Vec<u8> {
        let mut payload = vec![self.one_of(codes) | (self.byte() & 0xA0)];
        payload.extend(self.one_of(&[POOLS[2], POOLS[2], POOLS[2], POOLS[0]]).to_be_bytes());
        payload.extend(self.one_of(&[30, 31, 32, 33, 10, 0x7FFF, 0xFFFF_u16]).to_be_bytes());
        let more = usize::from(self.byte() % 64);
        payload.extend(self.take(more));
        payload
    }

    /// Builds a frame over IPv6. The input may remove its UDP checksum, or change its next header or hop limit.
    fn frame_v6(&mut self, flow: &Flow<u128>, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; PAYLOAD_V6 + payload.len()];
        frame[PAYLOAD_V6..].copy_from_slice(payload);
        flow.emit_v6(&mut frame, payload.len());
        match self.byte() {
            0..16 => frame[PAYLOAD_V6 - 2..PAYLOAD_V6].fill(0), // no UDP checksum
            16..32 => frame[20] = self.byte(), // next header: an extension, known or unknown
            32..40 => frame[21] = self.byte() % 4, // remaining hops
            _ => {}
        }
        frame
    }

    /// Like [`Script::task`], over IPv6.
    fn task_v6(&mut self) -> Vec<u8> {
        let payload = self.payload_v6(&[0, 0, 16, 2, 6]);
        let flow = Flow {
            src_mac: Mac([2, 0, 0, 0, 1, 3]),
            dst_mac: LEAF_MACS[2],
            src: self.one_of(&[
                CLIENT_V6,
                CLIENT_V6,
                CLIENT_V6 + 1,
                ELSEWHERE_V6,
                SERVERS_V6[0],
                1,
            ]),
            dst: self.one_of(&[LEAF_V6[0], LEAF_V6[0], LEAF_V6[0], LEAF_V6[1], SERVERS_V6[0]]),
            src_port: 40_000 + u16::from(self.byte() & 1),
            dst_port: UDP_PORT,
        };
        self.frame_v6(&flow, &payload)
    }

    /// Returns the addresses of a packet from one of the IPv6 servers, or from elsewhere. `ports` are the UDP ports of
    /// source and destination.
    fn of_server_v6(&mut self, dst: u128, ports: (u16, u16)) -> Flow<u128> {
        Flow {
            src_mac: Mac([2, 0, 0, 0, 3, 11]),
            dst_mac: LEAF_MACS[3],
            src: self.one_of(&[SERVERS_V6[0], SERVERS_V6[0], SERVERS_V6[1], ELSEWHERE_V6]),
            dst,
            src_port: ports.0,
            dst_port: ports.1,
        }
    }

    /// Like [`Script::presence`], over IPv6.
    fn presence_v6(&mut self) -> Vec<u8> {
        let payload = self.payload_v6(&[12, 11, 13, 18]);
        let dst = self.one_of(&[LEAF_V6[1], LEAF_V6[1], LEAF_V6[0], SERVERS_V6[0]]);
        let flow = self.of_server_v6(dst, (5000, UDP_PORT));
        self.frame_v6(&flow, &payload)
    }

    /// Like [`Script::reply`], over IPv6.
    fn reply_v6(&mut self) -> Vec<u8> {
        let payload = self.payload_v6(&[2, 3, 0, 7]);
        let dst = self.one_of(&[CLIENT_V6, CLIENT_V6, CLIENT_V6 + 1, ELSEWHERE_V6, LEAF_V6[0]]);
        let flow = self.of_server_v6(dst, (UDP_PORT, 40_000));
        self.frame_v6(&flow, &payload)
    }

    /// Returns bytes of the input as a frame.
    fn raw(&mut self) -> Vec<u8> {
        let length = usize::from(self.word() % 1600);
        self.take(length).to_vec()
    }

    /// Returns an ARP request or reply.
    fn arp(&mut self) -> Vec<u8> {
        let mut frame = vec![0; arp::FRAME_LEN];
        let sender = self.one_of(&[CLIENT, SERVERS[1], LEAF[0], ELSEWHERE, SERVERS[0]]);
        let target = self.one_of(&[LEAF[0], LEAF[1], CLIENT, ELSEWHERE]);
        let mac = Mac([2, 0, 0, 0, 9, self.byte()]);
        let mut packet = arp::Packet::request(mac, sender, target);
        if self.byte() & 1 == 1 {
            packet.operation = arp::Operation::Reply;
        }
        packet.emit(&mut frame, self.one_of(&[Mac::BROADCAST, LEAF_MACS[0], LEAF_MACS[1]]));
        frame
    }

    /// Builds a payload: code, pool and source of a task header, then up to 63 bytes of the input. The flags
    /// extended and more (0xA0) come from the input.
    fn payload(&mut self, codes: &[u8]) -> Vec<u8> {
        let mut payload = vec![self.one_of(codes) | (self.byte() & 0xA0)];
        payload.extend(self.one_of(&[POOLS[0], POOLS[0], POOLS[1], 8]).to_be_bytes());
        payload
            .extend(self.one_of(&[10, 11, 12, 13, 20, 21, 22, 0x7FFF, 0xFFFF_u16]).to_be_bytes());
        let more = usize::from(self.byte() % 64);
        payload.extend(self.take(more));
        payload
    }

    /// Builds a frame over IPv4. The input may remove its UDP checksum.
    fn frame(&mut self, flow: &Flow, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; PAYLOAD + payload.len()];
        frame[PAYLOAD..].copy_from_slice(payload);
        flow.emit(&mut frame, payload.len());
        if self.byte() & 3 == 0 {
            frame[PAYLOAD - 2..PAYLOAD].fill(0); // no UDP checksum
        }
        frame
    }

    /// Returns a client's packet: mostly a task (0) or its continuation (16), or a code that no client sends.
    fn task(&mut self) -> Vec<u8> {
        let payload = self.payload(&[0, 0, 16, 2, 6]);
        let flow = Flow {
            src_mac: Mac([2, 0, 0, 0, 1, 2]),
            dst_mac: LEAF_MACS[0],
            src: self.one_of(&[CLIENT, ELSEWHERE]),
            dst: self.one_of(&[LEAF[0], LEAF[0], LEAF[1], SERVERS[0]]),
            src_port: 40_000 + u16::from(self.byte() & 1),
            dst_port: UDP_PORT,
        };
        self.frame(&flow, &payload)
    }

    /// Returns a server's message about a worker: a registration (12), keep-alive (11) or load report (18), or an
    /// acknowledgement (13), which no server sends.
    fn presence(&mut self) -> Vec<u8> {
        let payload = self.payload(&[12, 11, 13, 18]);
        let flow = Flow {
            src_mac: Mac([2, 0, 0, 0, 2, 11]),
            dst_mac: LEAF_MACS[1],
            src: self.one_of(&[SERVERS[0], SERVERS[1], SERVERS[2], ELSEWHERE]),
            dst: self.one_of(&[LEAF[1], LEAF[1], LEAF[0], SERVERS[0]]),
            src_port: 5000 + u16::from(self.byte() & 1),
            dst_port: UDP_PORT,
        };
        self.frame(&flow, &payload)
    }

    /// Returns a server's packet: a reply (2 or 3), or a code that no server sends.
    fn reply(&mut self) -> Vec<u8> {
        let payload = self.payload(&[2, 3, 0, 7]);
        let flow = Flow {
            src_mac: Mac([2, 0, 0, 0, 2, 11]),
            dst_mac: LEAF_MACS[1],
            src: self.one_of(&[SERVERS[0], SERVERS[1], SERVERS[2], ELSEWHERE]),
            dst: self.one_of(&[CLIENT, CLIENT, ELSEWHERE]),
            src_port: UDP_PORT,
            dst_port: 40_000,
        };
        self.frame(&flow, &payload)
    }
}

/// Removes the tag of a frame in the VLAN [`VLAN`], like a port in that VLAN. Returns any other frame unchanged; such a
/// port would drop it.
fn untag(mut frame: Vec<u8>) -> Vec<u8> {
    let expected = [&frame[..12], &frame[16..]].concat();
    if vlan::id(&frame) != Some(VLAN) {
        return frame;
    }
    // Moves the addresses over the tag, so that the untagged frame begins later.
    vlan::cover(&mut frame);
    frame.drain(..vlan::LEN);
    assert_eq!(frame, expected);
    frame
}

/// Returns the sum of RFC 1071, word by word, without carries added back.
fn sum(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    bytes.chunks(2).map(word).sum()
}

/// Adds the carries of a sum back to its lower 16 bits.
fn folded(mut sum: u32) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

/// Returns the number of two bytes at an offset.
fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Returns true if the EtherType is IPv6.
fn is_v6(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x86, 0xDD])
}

/// Returns true for ICMPv6, such as neighbour discovery.
fn is_icmp(frame: &[u8]) -> bool {
    is_v6(frame) && frame.get(20) == Some(&58)
}

/// Returns an address as its number.
fn bits(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |bits, &byte| bits << 8 | u128::from(byte))
}

/// Returns source and destination of a whole frame. An IPv4 address is returned as its number.
fn addresses(frame: &[u8]) -> (u128, u128) {
    match is_v6(frame) {
        true => (bits(&frame[22..38]), bits(&frame[38..54])),
        false => (bits(&frame[26..30]), bits(&frame[30..34])),
    }
}

/// Returns the address of the server with this index, in the form of [`addresses`].
fn server(index: usize) -> u128 {
    match SERVERS.get(index) {
        Some(&address) => address.into(),
        None => SERVERS_V6[index - SERVERS.len()],
    }
}

/// Returns the leaf's address on a port, in the form of [`addresses`].
fn leaf(port: usize) -> u128 {
    if port < 2 { LEAF[port].into() } else { LEAF_V6[port - 2] }
}

/// Returns the offset of the time to live or hop limit.
fn hops_at(frame: &[u8]) -> usize {
    if is_v6(frame) { 21 } else { 22 }
}

/// Returns the offsets of the UDP header and of the datagram's end, if both lie within the frame.
fn udp_of(frame: &[u8]) -> Option<(usize, usize)> {
    if is_v6(frame) {
        let end = 54 + usize::from(word(frame.get(54..62)?, 4));
        return (end >= 62 && end <= frame.len() && frame[20] == 17).then_some((54, end));
    }
    let head = frame.get(14..34)?;
    let at = 14 + usize::from(head[0] & 15) * 4;
    let end = at + usize::from(word(frame.get(at..at + 8)?, 4));
    (at >= 34 && end >= at + 8 && end <= frame.len()).then_some((at, end))
}

/// Returns the sum of the UDP checksum, over pseudo header (addresses, protocol 17, length) and the datagram from `at`
/// to `end`. With a right checksum in the datagram it folds to 0xFFFF.
fn udp_sum(frame: &[u8], at: usize, end: usize) -> u32 {
    let addresses = if is_v6(frame) { &frame[22..54] } else { &frame[26..34] };
    sum(addresses) + 17 + (end - at) as u32 + sum(&frame[at..end])
}

/// Checks the header checksum of IPv4. IPv6 has none.
fn assert_header_checksum(frame: &[u8], at: usize) {
    assert!(is_v6(frame) || folded(sum(&frame[14..at])) == 0xFFFF, "IPv4 checksum");
}

/// Writes right checksums at the positions given by the frame's own fields: of ICMPv6, or of UDP and the IPv4 header.
/// Leaves a frame alone that is neither.
fn repair(frame: &mut [u8]) {
    if is_icmp(frame) && frame.len() >= 58 {
        frame[56..58].fill(0);
        let (len, message) = (u32::from(word(frame, 18)), sum(&frame[54..]));
        let checksum = !folded(sum(&frame[22..54]) + 58 + len + message);
        return frame[56..58].copy_from_slice(&checksum.to_be_bytes());
    }
    let Some((at, end)) = udp_of(frame) else { return };
    if !is_v6(frame) {
        frame[24..26].fill(0);
        let checksum = !folded(sum(&frame[14..at]));
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    }
    frame[at + 6..at + 8].fill(0);
    let checksum = !folded(udp_sum(frame, at, end));
    // UDP sends 0 as 0xFFFF, because 0 means no checksum.
    let present = if checksum == 0 { 0xFFFF } else { checksum };
    frame[at + 6..at + 8].copy_from_slice(&present.to_be_bytes());
}

/// A leaf under test: its stages, and the queues of tasks that its core would keep.
struct Rig {
    /// Packet path of the leaf's only core.
    stages: Stages,
    /// Queued tasks of each pool, with the ports that received them.
    queues: [VecDeque<(usize, Frame)>; POOLS.len()],
    /// Time in ticks.
    now: u64,
    /// Numbers of packets to workers and to clients, by family.
    forwarded: [(u64, u64); 2],
}

/// Ticks per second: one tick is a microsecond.
const TICKS_HZ: u64 = 1_000_000;

/// Returns the text of the leaf's configuration, with one policy for all pools.
fn text(policy: &str) -> String {
    let server = |(index, pool, workers, further): (usize, u16, &str, &str)| {
        let ip: std::net::IpAddr = match SERVERS.get(index) {
            Some(&ip) => std::net::Ipv4Addr::from_bits(ip).into(),
            None => std::net::Ipv6Addr::from_bits(server(index)).into(),
        };
        format!("[[server]]\nip = '{ip}'\nworkers = '{workers}'\npool = {pool}\n{further}\n")
    };
    // Some policies take load reports as messages of their own, instead of in replies.
    let takes_messages = policy.parse::<PolicySpec>().is_ok_and(|policy| policy.takes_messages());
    let pool = |(id, overflow): (u16, &str)| {
        let reports = if takes_messages && id != POOLS[2] { "messages" } else { "replies" };
        format!(
            "[[pool]]\nid = {id}\npolicy = '{policy}'\nqueue = {QUEUE}\noverflow = '{overflow}'\nreports = '{reports}'\n"
        )
    };
    let [first, second, third] = POOLS;
    let servers = [
        (0, first, "10-11", "registers = true\nmac = '02:00:00:00:02:0b'"),
        (1, first, "12-13", ""), // resolved by ARP
        (2, second, "20-21", "mac = '02:00:00:00:02:0d'"),
        (3, third, "30-31", "registers = true\nmac = '02:00:00:00:03:0b'"),
        (4, third, "32", ""), // resolved by neighbour discovery
    ];
    format!(
        "[leaf]\nid = 1\ncores = [0]\nseed = 7\nconnections = 8\nconnection_timeout_ms = 1\n\
         worker_timeout_ms = {TIMEOUT_MS}\npools_max = 3\nservers_max = 5\nworkers_max = 4\n\
         [[port]]\ndevice = 'c'\nside = 'clients'\nip = '10.0.1.1/24'\n\
         [[port]]\ndevice = 'w'\nside = 'workers'\nip = '10.0.2.1/24'\n\
         [[port]]\ndevice = 'c6'\nside = 'clients'\nip = 'fd00:1::1/64'\n\
         [[port]]\ndevice = 'w6'\nside = 'workers'\nip = 'fd00:2::1/64'\n{}{}",
        [(first, "drop"), (second, "refuse"), (third, "refuse")].map(pool).concat(),
        servers.map(server).concat()
    )
}

/// The network's tables, which all runs share. They are large and equal in all runs.
static NETWORK: OnceLock<Arc<Network>> = OnceLock::new();
/// Configuration for each policy.
static CONFIGS: OnceLock<Vec<Config>> = OnceLock::new();

/// Returns the shared network, built by the first run. `table` belongs to this run, and with it the cache of
/// neighbours' MAC addresses. The network refers to its entries by number. Therefore each run pins its servers in the
/// same order, with their port (1 for IPv4, 3 for IPv6).
fn network(config: &Config, table: &Table) -> Arc<Network> {
    let neighbours = table.neighbours();
    for server in &config.servers {
        let slot = match server.ip {
            std::net::IpAddr::V4(ip) => neighbours.pin(1, ip.to_bits()),
            std::net::IpAddr::V6(ip) => neighbours.pin(3, ip.to_bits()),
        };
        let slot = slot.expect("room for all");
        if let Some(mac) = server.mac {
            neighbours.set_static(slot, mac);
        }
    }
    let build = || assembly::network(config, &Membership::of(config), LEAF_MACS, table);
    Arc::clone(NETWORK.get_or_init(|| build().expect("every server has a port")))
}

/// Builds a leaf with the policy of this index. Parses all configurations once.
fn rig(policy: usize) -> Rig {
    let parse = |policy: &&str| Config::parse(Path::new("leaf.toml"), &text(policy));
    let configs = || POLICIES.iter().map(|policy| parse(policy).expect("no fault")).collect();
    let config = &CONFIGS.get_or_init(configs)[policy];
    let table = assembly::table(config, TICKS_HZ).expect("in memory");
    let network = network(config, &table);
    let stages = assembly::stages_of_core(config, &Membership::of(config), &network, &table, 0);
    Rig { stages, queues: Default::default(), now: 1, forwarded: Default::default() }
}

/// Estimated load, outstanding tasks, number of reports and idle flag of a member.
type MemberEstimate = (u64, u32, u32, bool);

impl Rig {
    /// Returns the estimates about all members (workers) of all pools.
    fn beliefs(&mut self) -> Vec<MemberEstimate> {
        let mut beliefs = Vec::new();
        for pool in 0..POOLS.len() {
            let view = self.stages.dispatcher_mut(pool).expect("three pools").view();
            for member in (0..view.members() as u16).map(Member) {
                let idle = view.idle().contains(member);
                beliefs.push((
                    view.estimated_load(member),
                    view.outstanding(member),
                    view.reports(member),
                    idle,
                ));
            }
        }
        beliefs
    }

    /// Returns the number of drops for each reason.
    fn drops(&self) -> [u64; DropReason::COUNT] {
        DropReason::ALL.map(|reason| self.stages.counters().dropped(reason))
    }

    /// Returns the value of a counter.
    fn count(&self, counter: Counter) -> u64 {
        self.stages.counters().read(counter)
    }

    /// Returns the number of accepted server messages about workers, without replies.
    fn accepted_messages(&self) -> u64 {
        let counters = [
            Counter::Registrations,
            Counter::KeepAlives,
            Counter::QueueReports,
            Counter::ProbeAnswers,
            Counter::CompletionReports,
        ];
        counters.map(|counter| self.count(counter)).iter().sum()
    }

    /// Processes a burst after a pause in ticks. Checks each verdict and changed packet, the counters, and that a
    /// burst without accepted packets changes no estimate. Then offers queued tasks again, does the core's
    /// periodic work, and collects the policies' counts of their choices.
    fn burst(&mut self, port: usize, frames: &mut [Frame], pause: u64) {
        self.now += pause;
        let before: Vec<Vec<u8>> = frames.iter().map(|frame| frame.0.clone()).collect();
        let beliefs = self.beliefs();
        let mut drops = self.drops();
        let tasks = self.count(Counter::Scheduled) + self.count(Counter::Continuations);
        let replies = self.count(Counter::Replies);
        let messages = self.accepted_messages();
        let mut verdicts = [Verdict::Consumed; BURST];
        self.stages.process(port, self.now, frames, &mut verdicts[..]);
        let verdicts = &verdicts[..frames.len()];

        let (mut to_workers, mut to_clients, mut lost_replies) = (0, 0, 0);
        for ((frame, before), verdict) in frames.iter().zip(&before).zip(verdicts) {
            match *verdict {
                // A held packet is rewritten, too; it waits for the next hop's MAC address. Odd ports lead to workers.
                Verdict::Forward { port, .. } | Verdict::Hold { port, .. } => {
                    assert_forwarded(before, &frame.0, usize::from(port));
                    to_workers += u64::from(port % 2 == 1);
                    to_clients += u64::from(port.is_multiple_of(2));
                }
                Verdict::Drop(reason) => {
                    drops[reason as usize] += 1;
                    // Only a reply can have no route. It counts as a reply, because the worker has answered.
                    lost_replies += u64::from(reason == DropReason::NoRoute);
                }
                Verdict::Queue { pool, lane, .. } => {
                    assert_eq!(lane, Lane::FIRST, "no policy here distinguishes classes");
                    assert_eq!(&frame.0, before, "a queued task is unchanged");
                    let queue = &mut self.queues[usize::from(pool)];
                    queue.push_back((port, Frame(before.clone())));
                    assert!(queue.len() <= QUEUE, "the queue is bounded");
                }
                Verdict::Answer if word(before, 12) == 0x0806 => assert_arp_answer(&frame.0, port),
                Verdict::Answer if is_icmp(before) => {
                    assert_neighbour_answer(before, &frame.0, port)
                }
                // Answers on even ports go to clients, and on odd ones to servers.
                Verdict::Answer if port.is_multiple_of(2) => assert_refused(before, &frame.0),
                Verdict::Answer => assert_acknowledged(before, &frame.0),
                Verdict::Consumed if word(before, 12) == 0x0806 || is_icmp(before) => {}
                // Keep-alive, load report or completion report.
                Verdict::Consumed => assert_own_worker(before, &[11, 18, 25]),
            }
        }
        assert_eq!(self.drops(), drops, "every drop is counted once, under its reason");
        let now_tasks = self.count(Counter::Scheduled) + self.count(Counter::Continuations);
        assert_eq!(now_tasks - tasks, to_workers);
        assert_eq!(self.count(Counter::Replies) - replies, to_clients + lost_replies);
        let after = self.beliefs();
        let messages = self.accepted_messages() - messages;
        if to_workers + to_clients + lost_replies + messages == 0 {
            assert_eq!(after, beliefs, "refused packets change no load");
        }
        for (_, outstanding, ..) in after {
            assert!(u64::from(outstanding) <= now_tasks, "counts of tasks do not wrap");
        }
        let forwarded = &mut self.forwarded[port / 2];
        (forwarded.0, forwarded.1) = (forwarded.0 + to_workers, forwarded.1 + to_clients);
        self.release();
        self.stages.tick(self.now, self.now * 1000);
        self.stages.collect_picks();
    }
}

impl Rig {
    /// Offers the queued tasks of each pool to the scheduler, until one must keep waiting.
    fn release(&mut self) {
        // Clears the flag. A real core offers tasks when it is set, and periodically; the rig does so after each burst.
        self.stages.take_freed();
        for (pool, queue) in self.queues.iter_mut().enumerate() {
            while let Some((port, frame)) = queue.front_mut() {
                let before = frame.0.clone();
                let first = QueuePlace { pool, lane: Lane::FIRST, port: *port };
                match self.stages.offer(first, self.now, &mut frame.0) {
                    None => break,
                    Some(Verdict::Forward { port, .. } | Verdict::Hold { port, .. }) => {
                        assert_forwarded(&before, &frame.0, usize::from(port));
                        self.forwarded[usize::from(port) / 2].0 += 1;
                    }
                    Some(verdict) => assert!(
                        matches!(verdict, Verdict::Drop(_)),
                        "a task is sent or dropped, not {verdict:?}"
                    ),
                }
                queue.pop_front();
            }
            let dispatcher = self.stages.dispatcher(pool).expect("three pools");
            assert_eq!(dispatcher.waiting(), queue.len());
        }
    }
}

/// Checks a refused task (code 17): unchanged except for swapped addresses and the header's fields about the
/// refusal. The header's source becomes its destination, and its queue length is that of the full queue.
fn assert_refused(before: &[u8], after: &[u8]) {
    let (before, after) = turned(before, after);
    // Code, and the flag of an extended header.
    assert_eq!((after[0] & 0x1F, after[0] & 0x20), (17, before[0] & 0x20));
    assert_eq!((&after[1..3], &after[5..7]), (&before[1..3], &before[3..5]));
    assert_eq!(word(after, 7), QUEUE as u16);
    assert_eq!(after[9..], before[9..]);
}

/// Checks an acknowledgement (code 13): the registration (12) comes back, with the worker's id as destination and
/// the timeout as queue length.
fn assert_acknowledged(before: &[u8], after: &[u8]) {
    assert_own_worker(before, &[12]);
    let (before, after) = turned(before, after);
    assert_eq!((after[0] & 0x1F, after[0] & 0x20), (13, before[0] & 0x20));
    assert_eq!((&after[1..3], &after[5..7]), (&before[1..3], &before[3..5]));
    assert_eq!(word(after, 7), TIMEOUT_MS);
    assert_eq!(after[9..], before[9..]);
}

/// Checks an accepted message about a worker: it has one of these codes, and the worker belongs to the server that
/// sent it and to the pool that it names.
fn assert_own_worker(frame: &[u8], codes: &[u8]) {
    let (at, _) = udp_of(frame).expect("whole");
    let payload = &frame[at + 8..];
    let worker =
        WORKERS.iter().find(|worker| worker.0 == word(payload, 3)).expect("a known worker");
    assert!(codes.contains(&(payload[0] & 0x1F)));
    assert_eq!(addresses(frame).0, server(worker.1));
    assert_eq!(word(payload, 1), POOLS[worker.2]);
}

/// Checks a packet that goes back to its source: swapped addresses and ports, right checksums. Returns its payload
/// before and after.
fn turned<'a>(before: &'a [u8], after: &'a [u8]) -> (&'a [u8], &'a [u8]) {
    let (at, end) = udp_of(after).expect("whole");
    assert_header_checksum(after, at);
    if word(before, at + 6) == 0 {
        assert!(!is_v6(before), "IPv6 requires the checksum");
        assert_eq!(word(after, at + 6), 0, "an absent checksum stays absent");
    } else {
        assert_eq!(folded(udp_sum(after, at, end)), 0xFFFF, "UDP checksum");
    }
    assert_eq!((&after[..6], &after[6..12]), (&before[6..12], &before[..6]));
    let (source, destination) = addresses(before);
    assert_eq!(addresses(after), (destination, source));
    assert_eq!((word(after, at), word(after, at + 2)), (word(before, at + 2), word(before, at)));
    (&before[at + 8..], &after[at + 8..])
}

/// Checks a forwarded packet: right addresses and checksums, one hop less, the chosen worker in a task, and no other
/// change.
fn assert_forwarded(before: &[u8], after: &[u8], port: usize) {
    assert_eq!(before.len(), after.len());
    let (at, end) = udp_of(after).expect("whole");
    assert_header_checksum(after, at);
    assert_eq!(after[hops_at(after)], before[hops_at(before)] - 1, "hops");
    assert_eq!((is_v6(before), is_v6(after)), (port >= 2, port >= 2), "a port of its family");
    match (word(before, at + 6), word(after, at + 6)) {
        (0, checksum) => {
            assert_eq!(checksum, 0, "an absent checksum stays absent");
            assert!(!is_v6(before), "IPv6 requires the checksum");
        }
        (_, 0) => panic!("the checksum is lost"),
        _ => assert_eq!(folded(udp_sum(after, at, end)), 0xFFFF, "UDP checksum"),
    }
    assert_eq!(after[6..12], LEAF_MACS[port].0, "the leaf sends");
    let payload = at + 8;
    let worker = |id: u16| WORKERS.iter().find(|worker| worker.0 == id).expect("a known worker");
    let (source, destination) = addresses(after);
    if port % 2 == 1 {
        let chosen = worker(word(after, payload + 5));
        assert_eq!(destination, server(chosen.1), "to the server of the worker chosen");
        assert_eq!(word(after, payload + 1), POOLS[chosen.2], "which serves the task's pool");
        assert_eq!(source, addresses(before).0, "from the client");
        // Queue length of a task: 1 if the policy chose the worker from the idle list, otherwise 0.
        assert!(word(after, payload + 7) <= 1);
        assert_eq!(after[payload..payload + 5], before[payload..payload + 5]);
        assert_eq!(after[payload + 9..], before[payload + 9..]);
    } else {
        let sender = worker(word(before, payload + 3));
        assert_eq!(addresses(before).0, server(sender.1), "a worker's own server answers");
        assert_eq!(source, leaf(port), "the leaf answers");
        assert_eq!(destination, addresses(before).1);
        assert_eq!(after[payload..], before[payload..]);
    }
    assert_eq!(after[at..at + 6], before[at..at + 6], "UDP ports and length");
}

/// Checks the answer to an ARP request.
fn assert_arp_answer(frame: &[u8], port: usize) {
    let answer = arp::Packet::parse(frame).expect("an ARP answer");
    assert_eq!((answer.sender_mac, answer.sender), (LEAF_MACS[port], LEAF[port]));
    assert_eq!(answer.operation, arp::Operation::Reply);
}

/// Checks the answer to a neighbour solicitation (type 135): an advertisement (type 136) of 32 bytes in a frame of 86.
/// It goes to the host that asked, or to all nodes if the host has no address yet.
fn assert_neighbour_answer(before: &[u8], after: &[u8], port: usize) {
    let mac = LEAF_MACS[port].0;
    assert_eq!((before[54], after[54], after.len()), (135, 136, 86));
    assert_eq!((&after[6..12], &after[62..78]), (&mac[..], &before[62..78]));
    assert_eq!(after[78..], [&[2, 1][..], &mac].concat());
    let ((asker, _), (source, destination)) = (addresses(before), addresses(after));
    let all_nodes = 0xFF02 << 112 | 1;
    assert_eq!(source, leaf(port));
    assert_eq!(destination, if asker == 0 { all_nodes } else { asker });
    assert_eq!(folded(sum(&after[22..54]) + 58 + 32 + sum(&after[54..])), 0xFFFF, "checksum");
    assert_eq!(after[21], 255, "hop limit");
}

/// Runs one input: first a byte for the policy, then bursts. A burst begins with a byte for the pause (in units of 16
/// ticks) and one for the number of packets. The pause precedes the packets of each port.
/// Returns the numbers of packets to workers and to clients, by family, which show that inputs pass all stages.
pub fn run(input: &[u8]) -> [(u64, u64); 2] {
    let mut script = Script(input);
    let mut rig = rig(usize::from(script.byte()) % POLICIES.len());
    while !script.0.is_empty() {
        let pause = u64::from(script.byte()) * 16;
        let count = 1 + usize::from(script.byte()) % BURST;
        let mut ports: [Vec<Frame>; PORTS] = Default::default();
        for _ in 0..count {
            let (port, frame) = script.packet();
            ports[port].push(frame);
        }
        for (port, frames) in ports.iter_mut().enumerate() {
            rig.burst(port, frames, pause);
        }
    }
    rig.forwarded
}
