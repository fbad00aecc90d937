//! The leaf (which schedules clients' tasks over workers) forwards only tasks that a Linux worker answers. Otherwise a
//! client could send tasks that occupy a worker in the leaf's counts, and that the worker's kernel silently drops.
//!
//! Each case goes to a kernel socket in a network namespace, as if it came through a leaf, and to the stages of a
//! leaf in memory. The leaf must refuse every case that the kernel drops. Tasks forwarded by the leaf go to the same
//! socket, as rewritten by the leaf, and must be answered. docs/explanation/security.md lists the cases in a table.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod rig;
mod timeouts;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use timeouts::TIMEOUT;
use wedjat::io::dpdk::{Device, DeviceOptions, Eal, MbufPool, QueuePort};
use wedjat::io::memory::FramePool;
use wedjat::io::{Buf, Burst, Pool, Port};
use wedjat::reason::DropReason as Reason;
use wedjat::stage::{Stages, Verdict};
use wedjat::wire::checksum::PartialChecksum;
use wedjat::wire::ether::Mac;
use wedjat::wire::task::{Code, Header, UDP_PORT};
use wedjat::wire::udp::{self, Flow};

/// Id of the pool.
const POOL: u16 = 5;
const LEAF_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 5]);
const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 2, 11]);
/// Addresses of leaf, server and client: 10.77.2.1, 10.77.2.11 and 10.77.1.5.
const V4: [u32; 3] = [0x0A4D_0201, 0x0A4D_020B, 0x0A4D_0105];
/// IPv6 addresses of leaf, server and client: fd00:77:2::1, fd00:77:2::b and fd00:77:1::5.
const V6: [u128; 3] =
    [0xFD00_0077_0002 << 80 | 1, 0xFD00_0077_0002 << 80 | 0xB, 0xFD00_0077_0001 << 80 | 5];
/// Offset of the IP header.
const IP: usize = 14;
/// Offset of the UDP header over IPv4 without options.
const UDP: usize = 34;
/// Offset of the UDP header over IPv6 without extension headers.
const UDP_V6: usize = 54;
// Offsets in the IPv4 header: 1 DSCP, 2 total length, 6 flags and fragment offset, 8 TTL, 9 protocol, 10 checksum,
// 12 source. In the IPv6 header: 4 payload length, 6 next header, 7 hop limit, 8 source. In the UDP header: 0 source
// port, 2 destination port, 4 length, 6 checksum.
/// Time to wait for answers to refused tasks. Unanswered ones then count as dropped by the kernel. Too short a time
/// only raises the number of dropped cases.
const QUIET: Duration = Duration::from_millis(200);

/// Change to the frame of a good task.
type Edit = fn(&mut Vec<u8>);
/// Changes nothing.
const NOTHING: Edit = |_| {};

/// A task that a client could send.
struct Case {
    /// Description for messages.
    name: &'static str,
    /// True over IPv6.
    is_v6: bool,
    /// Change before the checksums are computed.
    edit: Edit,
    /// Change after the checksums are computed.
    spoil: Edit,
    /// Reason why the leaf drops the task; `None` if it forwards it.
    refused: Option<Reason>,
}

/// Returns a case that the leaf forwards.
const fn good(name: &'static str, is_v6: bool, edit: Edit) -> Case {
    Case { name, is_v6, edit, spoil: NOTHING, refused: None }
}

/// Returns a case that the leaf drops, changed before its checksums are computed.
const fn bad(name: &'static str, is_v6: bool, edit: Edit, reason: Reason) -> Case {
    Case { name, is_v6, edit, spoil: NOTHING, refused: Some(reason) }
}

/// Returns a case that the leaf drops, changed after its checksums are computed.
const fn spoilt(name: &'static str, is_v6: bool, spoil: Edit, reason: Reason) -> Case {
    Case { name, is_v6, edit: NOTHING, spoil, refused: Some(reason) }
}

/// Overwrites bytes at an offset.
fn set(frame: &mut [u8], at: usize, bytes: &[u8]) {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Returns the number of two bytes at an offset.
fn number(frame: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]))
}

/// Inserts IPv4 options. Their length must be a multiple of four.
fn insert_options(frame: &mut Vec<u8>, options: &[u8]) {
    let total = number(frame, IP + 2) + options.len();
    frame.splice(UDP..UDP, options.iter().copied());
    frame[IP] += (options.len() / 4) as u8;
    set(frame, IP + 2, &(total as u16).to_be_bytes());
}

/// Inserts an IPv6 extension header of type `next` and eight bytes. Its first byte becomes the type of the header
/// after it.
fn insert_extension(frame: &mut Vec<u8>, next: u8, mut header: [u8; 8]) {
    header[0] = std::mem::replace(&mut frame[IP + 6], next);
    let len = number(frame, IP + 4) + header.len();
    frame.splice(UDP_V6..UDP_V6, header);
    set(frame, IP + 4, &(len as u16).to_be_bytes());
}

/// Sets the source address over IPv4.
fn src_v4(frame: &mut [u8], address: [u8; 4]) {
    set(frame, IP + 12, &address);
}

/// Sets the source address over IPv6.
fn src_v6(frame: &mut [u8], address: &str) {
    let address: std::net::Ipv6Addr = address.parse().unwrap();
    set(frame, IP + 8, &address.octets());
}

/// All cases. docs/explanation/security.md names each of their drop reasons.
const CASES: &[Case] = &[
    good("a plain task", false, NOTHING),
    good("TTL 2", false, |frame| frame[IP + 8] = 2),
    good("TTL 255", false, |frame| frame[IP + 8] = 255),
    good("every bit of DSCP and ECN", false, |frame| frame[IP + 1] = 0xFF),
    good("the reserved flag", false, |frame| frame[IP + 6] |= 0x80),
    good("a packet that may be fragmented", false, |frame| frame[IP + 6] = 0),
    good("bytes behind the packet", false, |frame| frame.extend([0xAA; 9])),
    good("source port 1", false, |frame| set(frame, UDP, &[0, 1])),
    good("source port 256", false, |frame| set(frame, UDP, &[1, 0])),
    good("the workers' port as source port", false, |frame| {
        set(frame, UDP, &UDP_PORT.to_be_bytes());
    }),
    good("source port 65535", false, |frame| set(frame, UDP, &[0xFF; 2])),
    good("no UDP checksum", false, |frame| set(frame, UDP + 6, &[0; 2])),
    good("bytes between datagram and end of packet", false, |frame| {
        frame.extend([0xAA; 8]);
        let total = number(frame, IP + 2) as u16 + 8;
        set(frame, IP + 2, &total.to_be_bytes());
    }),
    bad("source port 0", false, |frame| set(frame, UDP, &[0; 2]), Reason::UdpSourcePort),
    bad(
        "a loose source route",
        false,
        |frame| {
            insert_options(frame, &[131, 7, 4, 10, 77, 2, 1, 0]);
        },
        Reason::Ipv4Options,
    ),
    bad(
        "a strict source route",
        false,
        |frame| {
            insert_options(frame, &[137, 7, 4, 10, 77, 2, 1, 0]);
        },
        Reason::Ipv4Options,
    ),
    bad(
        "a timestamp option of two bytes",
        false,
        |frame| {
            insert_options(frame, &[0x44, 2, 0, 0]);
        },
        Reason::Ipv4Options,
    ),
    bad(
        "a full timestamp option whose count overflows",
        false,
        |frame| {
            insert_options(frame, &[0x44, 4, 5, 0xF0]);
        },
        Reason::Ipv4Options,
    ),
    bad(
        "a record route option with a wrong pointer",
        false,
        |frame| {
            insert_options(frame, &[7, 7, 2, 0, 0, 0, 0, 0]);
        },
        Reason::Ipv4Options,
    ),
    bad(
        "an unknown option of length 0",
        false,
        |frame| {
            insert_options(frame, &[99, 0, 0, 0]);
        },
        Reason::Ipv4Options,
    ),
    bad(
        "an option beyond the header",
        false,
        |frame| {
            insert_options(frame, &[99, 40, 0, 0]);
        },
        Reason::Ipv4Options,
    ),
    bad(
        "a CIPSO option",
        false,
        |frame| {
            insert_options(frame, &[134, 6, 0, 0, 0, 1, 0, 0]);
        },
        Reason::Ipv4Options,
    ),
    bad(
        "a router alert of three bytes",
        false,
        |frame| {
            insert_options(frame, &[148, 3, 0, 0]);
        },
        Reason::Ipv4Options,
    ),
    bad(
        "a record route option",
        false,
        |frame| {
            insert_options(frame, &[7, 7, 4, 0, 0, 0, 0, 0]);
        },
        Reason::Ipv4Options,
    ),
    bad("padding", false, |frame| insert_options(frame, &[1, 1, 1, 1]), Reason::Ipv4Options),
    bad(
        "a router alert",
        false,
        |frame| {
            insert_options(frame, &[148, 4, 0, 0]);
        },
        Reason::Ipv4Options,
    ),
    bad("source 0.0.0.0", false, |frame| src_v4(frame, [0; 4]), Reason::SourceUnreachable),
    bad("source 0.1.2.3", false, |frame| src_v4(frame, [0, 1, 2, 3]), Reason::SourceUnreachable),
    bad(
        "source 127.0.0.1",
        false,
        |frame| {
            src_v4(frame, [127, 0, 0, 1]);
        },
        Reason::SourceUnreachable,
    ),
    bad(
        "source 224.0.0.5",
        false,
        |frame| {
            src_v4(frame, [224, 0, 0, 5]);
        },
        Reason::SourceUnreachable,
    ),
    bad(
        "source 240.0.0.1",
        false,
        |frame| {
            src_v4(frame, [240, 0, 0, 1]);
        },
        Reason::SourceUnreachable,
    ),
    bad(
        "source 255.255.255.255",
        false,
        |frame| {
            src_v4(frame, [255; 4]);
        },
        Reason::SourceUnreachable,
    ),
    bad(
        "the broadcast address of a network as source",
        false,
        |frame| {
            src_v4(frame, [10, 77, 2, 255]);
        },
        Reason::SourceUnreachable,
    ),
    bad(
        "the first address of a network as source",
        false,
        |frame| {
            src_v4(frame, [10, 77, 2, 0]);
        },
        Reason::SourceUnreachable,
    ),
    bad(
        "the server's own address as source",
        false,
        |frame| {
            src_v4(frame, [10, 77, 2, 11]);
        },
        Reason::SourceUnreachable,
    ),
    bad(
        "the leaf's own address as source",
        false,
        |frame| {
            src_v4(frame, [10, 77, 2, 1]);
        },
        Reason::SourceUnreachable,
    ),
    bad("TTL 0", false, |frame| frame[IP + 8] = 0, Reason::TtlExpired),
    bad("TTL 1", false, |frame| frame[IP + 8] = 1, Reason::TtlExpired),
    bad("a broadcast frame", false, |frame| set(frame, 0, &[0xFF; 6]), Reason::OtherMac),
    bad(
        "a group's frame",
        false,
        |frame| {
            set(frame, 0, &[1, 0, 0x5E, 0, 0, 1]);
        },
        Reason::OtherMac,
    ),
    bad(
        "another host's frame",
        false,
        |frame| {
            set(frame, 0, &[2, 9, 9, 9, 9, 9]);
        },
        Reason::OtherMac,
    ),
    bad("TCP", false, |frame| frame[IP + 9] = 6, Reason::NotUdp),
    bad("UDP-Lite", false, |frame| frame[IP + 9] = 136, Reason::NotUdp),
    bad("a first fragment", false, |frame| frame[IP + 6] = 0x20, Reason::Ipv4Fragment),
    bad("a last fragment", false, |frame| frame[IP + 7] = 4, Reason::Ipv4Fragment),
    bad("another port", false, |frame| set(frame, UDP + 2, &[0, 9]), Reason::UdpPort),
    spoilt("IP version 5", false, |frame| frame[IP] = 0x55, Reason::Ipv4Header),
    spoilt("a header of 16 bytes", false, |frame| frame[IP] = 0x44, Reason::Ipv4Header),
    spoilt(
        "a packet beyond its frame",
        false,
        |frame| {
            set(frame, IP + 2, &[5, 0]);
            renew_ip(frame);
        },
        Reason::Ipv4Header,
    ),
    spoilt(
        "a packet shorter than its header",
        false,
        |frame| {
            set(frame, IP + 2, &[0, 19]);
            renew_ip(frame);
        },
        Reason::Ipv4Header,
    ),
    spoilt("a wrong header checksum", false, |frame| frame[IP + 10] ^= 1, Reason::Ipv4Checksum),
    spoilt("a wrong UDP checksum", false, |frame| frame[UDP + 6] ^= 1, Reason::UdpChecksum),
    spoilt(
        "a datagram of 7 bytes",
        false,
        |frame| {
            set(frame, UDP + 4, &[0, 7]);
        },
        Reason::UdpLength,
    ),
    spoilt(
        "a datagram beyond its packet",
        false,
        |frame| {
            set(frame, UDP + 4, &[1, 0]);
        },
        Reason::UdpLength,
    ),
    spoilt("a frame cut off", false, |frame| frame.truncate(40), Reason::Ipv4Header),
    spoilt(
        "a VLAN tag",
        false,
        |frame| {
            frame.splice(12..12, [0x81, 0, 0, 7]);
        },
        Reason::VlanTag,
    ),
    good("a plain task over IPv6", true, NOTHING),
    good("hop limit 2", true, |frame| frame[IP + 7] = 2),
    good("every bit of traffic class and flow label", true, |frame| {
        set(frame, IP, &[0x6F, 0xFF, 0xFF, 0xFF]);
    }),
    good("bytes behind the packet over IPv6", true, |frame| frame.extend([0xAA; 9])),
    good("source port 1 over IPv6", true, |frame| set(frame, UDP_V6, &[0, 1])),
    bad(
        "source port 0 over IPv6",
        true,
        |frame| set(frame, UDP_V6, &[0; 2]),
        Reason::UdpSourcePort,
    ),
    spoilt(
        "no UDP checksum over IPv6",
        true,
        |frame| {
            set(frame, UDP_V6 + 6, &[0; 2]);
        },
        Reason::UdpNoChecksum,
    ),
    spoilt(
        "a wrong UDP checksum over IPv6",
        true,
        |frame| {
            frame[UDP_V6 + 6] ^= 1;
        },
        Reason::UdpChecksum,
    ),
    spoilt(
        "a datagram of 7 bytes over IPv6",
        true,
        |frame| {
            set(frame, UDP_V6 + 4, &[0, 7]);
        },
        Reason::UdpLength,
    ),
    spoilt(
        "a datagram of length 0 over IPv6",
        true,
        |frame| {
            set(frame, UDP_V6 + 4, &[0, 0]);
        },
        Reason::UdpLength,
    ),
    spoilt(
        "a payload of length 0",
        true,
        |frame| {
            set(frame, IP + 4, &[0; 2]);
        },
        Reason::Ipv6Header,
    ),
    spoilt(
        "a payload beyond its frame",
        true,
        |frame| {
            set(frame, IP + 4, &[5, 0]);
        },
        Reason::Ipv6Header,
    ),
    spoilt("IP version 5 over IPv6", true, |frame| frame[IP] = 0x50, Reason::Ipv6Header),
    bad("hop limit 0", true, |frame| frame[IP + 7] = 0, Reason::TtlExpired),
    bad("hop limit 1", true, |frame| frame[IP + 7] = 1, Reason::TtlExpired),
    bad(
        "hop-by-hop options",
        true,
        |frame| {
            insert_extension(frame, 0, [0, 0, 1, 4, 0, 0, 0, 0]);
        },
        Reason::Ipv6Extension,
    ),
    bad(
        "a jumbo payload option",
        true,
        |frame| {
            insert_extension(frame, 0, [0, 0, 0xC2, 4, 0, 1, 0, 0]);
        },
        Reason::Ipv6Extension,
    ),
    bad(
        "a routing header",
        true,
        |frame| {
            insert_extension(frame, 43, [0, 0, 0, 1, 0, 0, 0, 0]);
        },
        Reason::Ipv6Extension,
    ),
    bad(
        "a fragment header",
        true,
        |frame| {
            insert_extension(frame, 44, [0, 0, 0, 1, 0, 0, 0, 7]);
        },
        Reason::Ipv6Extension,
    ),
    bad(
        "unknown destination options",
        true,
        |frame| {
            insert_extension(frame, 60, [0, 0, 0x9E, 4, 0, 0, 0, 0]);
        },
        Reason::Ipv6Extension,
    ),
    bad("no next header", true, |frame| frame[IP + 6] = 59, Reason::NotUdp),
    bad("source ::", true, |frame| src_v6(frame, "::"), Reason::SourceUnreachable),
    bad("source ::1", true, |frame| src_v6(frame, "::1"), Reason::SourceUnreachable),
    bad("source ff02::1", true, |frame| src_v6(frame, "ff02::1"), Reason::SourceUnreachable),
    bad(
        "an IPv4 address as source",
        true,
        |frame| {
            src_v6(frame, "::ffff:10.77.1.5");
        },
        Reason::SourceUnreachable,
    ),
    bad(
        "an IPv4-compatible source",
        true,
        |frame| {
            src_v6(frame, "::10.77.1.5");
        },
        Reason::SourceUnreachable,
    ),
    bad("a link-local source", true, |frame| src_v6(frame, "fe80::5"), Reason::SourceUnreachable),
    bad(
        "the routers' address of a network as source",
        true,
        |frame| {
            src_v6(frame, "fd00:77:2::");
        },
        Reason::SourceUnreachable,
    ),
    bad(
        "the server's own address as source over IPv6",
        true,
        |frame| {
            src_v6(frame, "fd00:77:2::b");
        },
        Reason::SourceUnreachable,
    ),
    bad(
        "the leaf's own address as source over IPv6",
        true,
        |frame| {
            src_v6(frame, "fd00:77:2::1");
        },
        Reason::SourceUnreachable,
    ),
];

/// Recomputes the checksum of an IPv4 header, of the length in its first byte, but at least 20 bytes and within the
/// frame.
fn renew_ip(frame: &mut [u8]) {
    let header = IP..UDP.max(IP + 4 * usize::from(frame[IP] & 0xF)).min(frame.len());
    set(frame, IP + 10, &[0; 2]);
    let sum = PartialChecksum::default().bytes(&frame[header]).checksum();
    set(frame, IP + 10, &sum.to_be_bytes());
}

/// Recomputes both checksums of an IPv4 task, or the only one of an IPv6 task. An IPv4 UDP checksum of 0
/// stays.
fn renew(frame: &mut [u8], is_v6: bool) {
    let addresses = if is_v6 { IP + 8..IP + 40 } else { IP + 12..IP + 20 };
    let mut at = UDP_V6;
    if is_v6 {
        // Any next header except UDP (17) and none (59) is an extension header of eight bytes.
        let extends = ![17, 59].contains(&frame[IP + 6]);
        at += if extends { 8 } else { 0 };
    } else {
        renew_ip(frame);
        at = IP + 4 * usize::from(frame[IP] & 0xF);
        if number(frame, at + 6) == 0 {
            return;
        }
    }
    let len = number(frame, at + 4);
    set(frame, at + 6, &[0; 2]);
    let pseudo = PartialChecksum::default().bytes(&frame[addresses]).number(17).number(len as u16);
    let sum = match pseudo.bytes(&frame[at..at + len]).checksum() {
        0 => 0xFFFF,
        sum => sum,
    };
    set(frame, at + 6, &sum.to_be_bytes());
}

/// Returns the frame of a good task with this number from the client, to the server itself or to the leaf.
fn task(is_v6: bool, to_server: bool, seq: u16) -> Vec<u8> {
    let to = usize::from(to_server);
    let (dst_mac, src_port) = ([LEAF_MAC, SERVER_MAC][to], 40_000);
    let header = Header::new_task(POOL, seq);
    let offset = if is_v6 { udp::PAYLOAD_V6 } else { udp::PAYLOAD };
    let len = header.len() + 24;
    let mut frame = vec![0x5A; offset + len];
    header.emit(&mut frame[offset..]);
    let src_mac = CLIENT_MAC;
    if is_v6 {
        let flow = Flow { src_mac, dst_mac, src: V6[2], dst: V6[to], src_port, dst_port: UDP_PORT };
        flow.emit_v6(&mut frame, len);
    } else {
        let flow = Flow { src_mac, dst_mac, src: V4[2], dst: V4[to], src_port, dst_port: UDP_PORT };
        flow.emit(&mut frame, len);
    }
    frame
}

impl Case {
    /// Returns the case's frame with this task number, to the server or to the leaf.
    fn frame(&self, to_server: bool, seq: u16) -> Vec<u8> {
        let mut frame = task(self.is_v6, to_server, seq);
        (self.edit)(&mut frame);
        renew(&mut frame, self.is_v6);
        (self.spoil)(&mut frame);
        frame
    }
}

/// A leaf in memory, for one family.
struct InMemory {
    /// Packet path of the leaf's only core.
    stages: Stages,
    /// Packet buffers.
    frames: FramePool,
    /// Keeps the tables alive that the stages use.
    _staged: rig::StagesRig,
}

impl InMemory {
    /// Creates a leaf. `port` holds further configuration lines of its port.
    fn new(is_v6: bool, port: &str) -> Self {
        let [network, server] = match is_v6 {
            false => ["ip = '10.77.2.1/24'\ngateway = '10.77.2.254'", "10.77.2.11"],
            true => ["ip = 'fd00:77:2::1/64'\ngateway = 'fd00:77:2::fe'", "fd00:77:2::b"],
        };
        let text = format!(
            "[leaf]\nid = 0\ncores = [0]\nseed = 7\n\
             [[port]]\ndevice = 'here'\nside = 'both'\n{network}\nmac = '{LEAF_MAC}'\n{port}\n\
             [[pool]]\nid = {POOL}\npolicy = 'random'\n\
             [[server]]\nip = '{server}'\nmac = '{SERVER_MAC}'\nworkers = '0-3'\npool = {POOL}\n"
        );
        let mut staged = rig::stages(&text, None);
        let stages = staged.stages.remove(0);
        Self { stages, frames: FramePool::new(4, 2048), _staged: staged }
    }

    /// Returns the packet that the leaf sends to the server for this frame, or the drop reason.
    fn forward(&mut self, frame: &[u8]) -> Result<Vec<u8>, Reason> {
        let mut burst = [self.frames.frame(frame).unwrap()];
        let mut verdicts = [Verdict::Consumed];
        self.stages.process(0, 1, &mut burst, &mut verdicts[..]);
        match verdicts[0] {
            Verdict::Forward { .. } => Ok(burst[0].bytes().to_vec()),
            Verdict::Drop(reason) => Err(reason),
            other => panic!("{other:?}"),
        }
    }
}

/// Runs `ip`, which must succeed.
fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// A worker on kernel sockets in a network namespace, and the far end of its wire.
struct Worker {
    /// Name of the namespace. With a letter appended, name of an interface.
    name: String,
    /// Family (true for IPv6) and number of each answered task.
    answered: Receiver<(bool, u16)>,
    /// True when the threads should end.
    stop: Arc<AtomicBool>,
}

impl Worker {
    /// Creates the namespace, a veth pair into it, and a thread for each family that echoes tasks.
    fn new() -> Self {
        let name = format!("ka{}", std::process::id());
        let (near, far) = (format!("{name}a"), format!("{name}b"));
        ip(&format!("netns add {name}"));
        ip(&format!("link add {near} type veth peer name {far} netns {name}"));
        let (sender, answered) = channel();
        let worker = Self { name: name.clone(), answered, stop: Arc::default() };
        ip(&format!("link set {near} addrgenmode none up"));
        let within = |arguments: String| ip(&format!("-n {name} {arguments}"));
        within("link set lo up".to_owned());
        within(format!("link set {far} address {SERVER_MAC} addrgenmode none up"));
        within(format!("address add 10.77.2.11/24 dev {far}"));
        within(format!("-6 address add fd00:77:2::b/64 dev {far} nodad"));
        within("route add default via 10.77.2.1".to_owned());
        within("-6 route add default via fd00:77:2::1".to_owned());
        for leaf in ["10.77.2.1", "fd00:77:2::1"] {
            within(format!("neigh add {leaf} lladdr {LEAF_MAC} dev {far}"));
        }
        for (is_v6, address) in [(false, "10.77.2.11"), (true, "fd00:77:2::b")] {
            let (name, stop) = (name.clone(), Arc::clone(&worker.stop));
            let (sender, (ready, is_ready)) = (sender.clone(), channel());
            std::thread::spawn(move || {
                let space = File::open(format!("/run/netns/{name}")).unwrap();
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                let socket = UdpSocket::bind((address, UDP_PORT)).unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                ready.send(()).unwrap();
                let mut packet = [0; 2048];
                while !stop.load(Ordering::Relaxed) {
                    let Ok((len, client)) = socket.recv_from(&mut packet) else { continue };
                    // Codes 0 and 16 (first and later packets of a task), with or without the extension (0x20).
                    let is_task = len >= 11 && packet[0] & !0x30 == Code::NewTask as u8;
                    if is_task && socket.send_to(&packet[..len], client).is_ok() {
                        let seq = u16::from_be_bytes([packet[9], packet[10]]);
                        let _ = sender.send((is_v6, seq));
                    }
                }
            });
            is_ready.recv_timeout(TIMEOUT).unwrap();
        }
        worker
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for arguments in [["link", "del", &format!("{}a", self.name)], ["netns", "del", &self.name]]
        {
            let _ = Command::new("ip").args(arguments).status();
        }
    }
}

/// The leaf's end of the wire.
struct Wire<'a> {
    /// Device at this end.
    port: &'a mut QueuePort,
    /// Packet buffers.
    pool: &'a MbufPool,
    /// The worker at the far end.
    worker: &'a Worker,
    /// Family and number of each answered task.
    answered: BTreeSet<(bool, u16)>,
}

impl Wire<'_> {
    /// Sends a frame to the kernel.
    fn send(&mut self, frame: &[u8]) {
        let mut burst = Burst::new();
        let mut mbuf = self.pool.handle().take().unwrap();
        assert!(mbuf.resize(frame.len()));
        mbuf.bytes_mut().copy_from_slice(frame);
        burst.push(mbuf);
        let start = Instant::now();
        while self.port.tx_burst(&mut burst) == 0 {
            assert!(start.elapsed() < TIMEOUT, "the wire takes nothing");
        }
        // Discards answers and the kernel's own packets. The worker's threads report the answers.
        self.port.rx_burst(&mut burst);
    }

    /// Waits until these tasks are answered, or until the timeout. Returns the numbers of the unanswered ones.
    fn unanswered(&mut self, tasks: &BTreeSet<(bool, u16)>, timeout: Duration) -> Vec<u16> {
        let start = Instant::now();
        while !tasks.is_subset(&self.answered) && start.elapsed() < timeout {
            self.answered.extend(self.worker.answered.recv_timeout(Duration::from_millis(20)));
        }
        tasks.difference(&self.answered).map(|(_, seq)| *seq).collect()
    }
}

// promise: trust.2
#[test]
fn leaf_forwards_only_tasks_that_a_kernel_answers() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("SKIPPED: making network namespaces and raw sockets needs root");
        return;
    }
    let worker = Worker::new();
    let name = format!("net_af_packet0,iface={}a", worker.name);
    let eal = Eal::init(&[], &[&name]).unwrap();
    let pool = MbufPool::new(&eal, "packets", 2047).unwrap();
    let (_device, mut ports) = Device::open(&eal, &name, &pool, &DeviceOptions::default()).unwrap();
    let mut wire =
        Wire { port: &mut ports[0], pool: &pool, worker: &worker, answered: BTreeSet::new() };
    each_case(&mut wire);
    wire.answered.clear();
    random_options(&mut wire);
    for is_v6 in [false, true] {
        wire.answered.clear();
        random_headers(&mut wire, is_v6);
    }
}

/// Compares the kernel's verdict with the leaf's in each case. The kernel may answer a task that the leaf drops, but
/// not the reverse.
fn each_case(wire: &mut Wire<'_>) {
    let mut leaves = [InMemory::new(false, ""), InMemory::new(true, "")];
    let all = || CASES.iter().zip(0_u16..);
    for (case, seq) in all() {
        // The kernel gets the frame with a leaf's source MAC address. A frame for another MAC address, or of at most
        // 60 bytes, keeps the client's.
        let mut frame = case.frame(true, seq);
        if frame.len() > 60 && frame[0..6] == SERVER_MAC.0 {
            frame[6..12].copy_from_slice(&LEAF_MAC.0);
        }
        wire.send(&frame);
    }
    let wanted: BTreeSet<_> = all()
        .filter(|(case, _)| case.refused.is_none())
        .map(|(case, seq)| (case.is_v6, seq))
        .collect();
    let missing = wire.unanswered(&wanted, TIMEOUT);
    let missing: Vec<_> = missing.iter().map(|&seq| CASES[usize::from(seq)].name).collect();
    assert!(missing.is_empty(), "the kernel answers none of {missing:?}");
    // Collects further answers: no task has this number.
    wire.unanswered(&BTreeSet::from([(false, u16::MAX)]), QUIET);
    let mut dropped = 0;
    for (case, seq) in all() {
        let decided = leaves[usize::from(case.is_v6)].forward(&case.frame(false, seq));
        assert_eq!(decided.as_ref().err(), case.refused.as_ref(), "{}", case.name);
        let is_answered = wire.answered.contains(&(case.is_v6, seq));
        assert!(is_answered || decided.is_err(), "{}: dropped by the kernel", case.name);
        dropped += u32::from(!is_answered);
    }
    assert!(dropped >= 40, "the kernel drops {dropped} cases only");
}

/// Passes 4000 frames, which `frame` makes, through a leaf in memory and sends the forwarded ones to the kernel, which
/// must answer each. The leaf must forward more than 50 frames and refuse more than 50. `port` holds further
/// configuration lines of its port.
fn answers_all(
    wire: &mut Wire<'_>,
    is_v6: bool,
    port: &str,
    mut frame: impl FnMut(u16) -> Vec<u8>,
) {
    let mut leaf = InMemory::new(is_v6, port);
    let (mut sent, mut wanted) = (BTreeMap::new(), BTreeSet::new());
    let mut refused = 0;
    for seq in 0..4000 {
        let frame = frame(seq);
        let Ok(forwarded) = leaf.forward(&frame) else {
            refused += 1;
            continue;
        };
        wire.send(&forwarded);
        sent.insert(seq, frame);
        wanted.insert((is_v6, seq));
        // Waits for answers after every 32 tasks, which fit the socket's receive buffer.
        if wanted.len() % 32 == 0 {
            wire.unanswered(&wanted, Duration::from_secs(20));
        }
    }
    let missing = wire.unanswered(&wanted, Duration::from_secs(20));
    let frames: Vec<_> = missing.iter().take(3).map(|seq| &sent[seq]).collect();
    assert!(missing.is_empty(), "{} are not answered: {frames:02x?}", missing.len());
    assert!(wanted.len() > 50 && refused > 50, "{} forwarded, {refused} refused", wanted.len());
}

/// Sends options of random kinds and lengths through a port that permits harmless ones.
fn random_options(wire: &mut Wire<'_>) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(33);
    answers_all(wire, false, "ip_options = 'harmless'", |seq| {
        let mut frame = task(false, false, seq);
        let words = rng.random_range(1..=10);
        let mut options = Vec::new();
        while options.len() < 4 * words {
            // End of options, no operation, router alert, or an option of any kind and a length below 12.
            match rng.random_range(0..8) {
                0 => options.push(0),
                1..4 => options.push(1),
                4..7 => options.extend([148, 4, 0, rng.random()]),
                _ => options.extend([rng.random(), rng.random_range(0..12)]),
            }
        }
        options.truncate(4 * words);
        insert_options(&mut frame, &options);
        renew(&mut frame, false);
        frame
    });
}

/// Sends frames with one to three changed bytes in their headers. Half of the frames with possible lengths get right
/// checksums again.
fn random_headers(wire: &mut Wire<'_>, is_v6: bool) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(34);
    let end = if is_v6 { UDP_V6 + 8 } else { UDP + 8 };
    answers_all(wire, is_v6, "", |seq| {
        let mut frame = task(is_v6, false, seq);
        for _ in 0..rng.random_range(1..=3) {
            let at = rng.random_range(0..end);
            // Half of the values are random, half are limits of fields.
            frame[at] = if rng.random() { rng.random() } else { [0, 1, 2, 0xFF][at % 4] };
        }
        let udp = end - 8;
        let whole = frame[IP] == task(is_v6, false, seq)[IP]
            && number(&frame, udp + 4) <= frame.len() - udp
            && (!is_v6 || frame[IP + 6] == 17);
        if whole && rng.random() {
            renew(&mut frame, is_v6);
        }
        frame
    });
}
