//! Bytes to values: what each packet of a burst is, or why it is refused. No state, no panic.
//!
//! IPv4 and IPv6 differ in their headers alone: what a task header means on which side is one function.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::network::{Network, PortAddress};
use super::v6::Network6;
use crate::io::Buf;
use crate::reason::DropReason;
use crate::state::Member;
use crate::wire::ether::{self, Mac};
use crate::wire::task::{Code, Header};
use crate::wire::{ipv4, ipv6, udp, vlan};

/// Packets ahead for which the cache is asked.
pub(super) const PREFETCH_AHEAD: usize = 4;

/// What a packet is to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// A task for the node to schedule, whole in this packet.
    Task,
    /// The first packet of a task that has more.
    FirstOfSeveral,
    /// A further packet of a task.
    Continuation,
    /// A worker's reply on its way to a client.
    Reply,
    /// A server's word that a worker is there, to be answered.
    Registration,
    /// The same, not to be answered.
    KeepAlive,
    /// A server's word on a worker's queue, asked for or not; not to be answered.
    QueueReport,
    /// At a spine, a leaf's word about a pool.
    Signal,
    /// At a leaf, a spine's word that it is alive.
    SpineAlive,
    /// ARP.
    Arp,
    /// Neighbour discovery, which is to IPv6 what ARP is to IPv4.
    NeighbourDiscovery,
    /// A task that waits for a member.
    Waiting,
    /// A task to be given back to its client.
    Overflowing,
    /// Not to be had.
    Refused(DropReason),
}

/// A packet's values: those that later stages need; they read the rest where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// What it is.
    pub kind: PacketKind,
    /// The task header's extension is there.
    pub extended: bool,
    /// Further packets of this task follow.
    pub more: bool,
    /// It is one of IPv6.
    pub is_v6: bool,
    /// The member was chosen from the idle list (a task, once scheduled; before that: by whoever sent it here).
    pub idle: bool,
    /// Offset of the UDP header in the frame.
    pub at: u16,
    /// Pool id in the header.
    pub pool: u16,
    /// Where a task goes (once scheduled): index of its pool, and member.
    pub chosen: (u16, Member),
}

impl Packet {
    /// A packet of which nothing is known.
    pub const REFUSED: Self = Self {
        kind: PacketKind::Refused(DropReason::Runt),
        extended: false,
        more: false,
        is_v6: false,
        idle: false,
        at: 0,
        pool: 0,
        chosen: (0, Member(0)),
    };

    /// It is a task's first packet, or its only one.
    #[inline]
    #[must_use]
    pub const fn is_first(&self) -> bool {
        matches!(self.kind, PacketKind::Task | PacketKind::FirstOfSeveral)
    }

    /// The UDP payload, task header first, and what follows it.
    #[inline]
    #[must_use]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[usize::from(self.at) + udp::LEN..]
    }
}

/// Which kinds a burst holds, so that stages without work are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Anything but single-packet tasks.
    pub others: bool,
}

/// Reads every packet that port `port` received.
#[inline]
pub fn burst<B: Buf>(
    network: &Network,
    port: usize,
    packets: &[B],
    parsed: &mut [Packet],
) -> Kinds {
    let address = network.port(port);
    for packet in packets.iter().take(PREFETCH_AHEAD) {
        packet.prefetch();
    }
    let mut kinds = Kinds::default();
    for (at, (packet, parsed)) in packets.iter().zip(parsed).enumerate() {
        if let Some(ahead) = packets.get(at + PREFETCH_AHEAD) {
            ahead.prefetch();
        }
        let read = if packet.is_segmented() {
            Err(DropReason::Segmented)
        } else {
            one(network, address, packet.bytes(), packet.checksums_verified(), parsed)
        };
        parsed.kind = read.unwrap_or_else(PacketKind::Refused);
        kinds.others |= parsed.kind != PacketKind::Task;
    }
    kinds
}

/// Reads one frame into `parsed` and says what it is.
///
/// # Errors
/// The reason for which it must be dropped.
#[inline]
pub fn one(
    network: &Network,
    address: &PortAddress,
    frame: &[u8],
    verified: bool,
    parsed: &mut Packet,
) -> Result<PacketKind, DropReason> {
    if frame.len() < ether::LEN {
        return Err(DropReason::Runt);
    }
    if ether::ether_type(frame) != ether::IPV4 || address.v6.is_some() {
        return other_ether_type(network, address, frame, verified, parsed);
    }
    if !ether::is_to(frame, address.mac) {
        return Err(DropReason::OtherMac);
    }
    let datagram = udp::parse(frame, verified)?;
    let to_us = datagram.dst == address.ip
        || network.is_own(datagram.dst)
        || network.is_service(Ipv4Addr::from_bits(datagram.dst).into());
    // A worker answers to the client; the leaf is its next hop.
    if to_us && datagram.dst_port != network.udp_port {
        return Err(DropReason::UdpPort);
    }
    if !to_us && datagram.src_port != network.udp_port {
        return Err(DropReason::OtherAddress);
    }
    let header = Header::parse(&frame[datagram.payload()..usize::from(datagram.end)])?;
    let from_spine = || network.has_spine_at(Ipv4Addr::from_bits(datagram.src).into());
    let kind = kind(network, address, to_us, header.code, from_spine)?;
    if !network.takes_v4(network.pool_index(header.pool)) && !kind.is_of_fabric() {
        return Err(DropReason::AddressFamily);
    }
    if header.code.is_task() {
        let options = &frame[ether::LEN + ipv4::LEN..usize::from(datagram.at)];
        if !address.ip_options.permit(options) {
            return Err(DropReason::Ipv4Options);
        }
        can_be_answered(datagram.src_port, network.is_client(datagram.src))?;
    }
    if ipv4::ttl(&frame[ether::LEN..]) < least_ttl(network, &header) {
        return Err(DropReason::TtlExpired);
    }
    parsed.is_v6 = false;
    Ok(parsed.take(kind, &header, datagram.at))
}

/// A worker can answer a task from this source port, and the answer reaches the client.
#[inline]
fn can_be_answered(src_port: u16, is_client: bool) -> Result<(), DropReason> {
    if src_port == 0 {
        return Err(DropReason::UdpSourcePort);
    }
    if is_client { Ok(()) } else { Err(DropReason::SourceUnreachable) }
}

/// Least time to live of a packet of this header.
#[inline]
fn least_ttl(network: &Network, header: &Header) -> u8 {
    match header.code.is_task() {
        true => network.least_ttl(network.pool_index(header.pool)),
        false => ipv4::TTL_MIN,
    }
}

/// What a header says to the node at this port, or that it may not come there. `from_spine` says whether one of its spines sent it.
#[inline(always)]
fn kind(
    network: &Network,
    address: &PortAddress,
    to_us: bool,
    code: Code,
    from_spine: impl FnOnce() -> bool,
) -> Result<PacketKind, DropReason> {
    let (has_clients, has_workers) = (address.side.has_clients(), address.side.has_workers());
    let (kind, right_side) = match (to_us, code) {
        (true, Code::NewTask) => (PacketKind::Task, has_clients),
        (true, Code::TaskContinuation) => (PacketKind::Continuation, has_clients),
        // Leaves answer clients without it, and know their workers themselves.
        (to_us, code) if network.is_spine() => match to_us && code.is_signal() {
            true => (PacketKind::Signal, has_workers),
            false => return Err(DropReason::TaskRole),
        },
        (false, code) if code.is_reply() => (PacketKind::Reply, has_workers),
        (true, Code::WorkerId) => (PacketKind::Registration, has_workers),
        (true, Code::QueueReport | Code::ProbeAnswer) => (PacketKind::QueueReport, has_workers),
        (true, Code::KeepAlive) if from_spine() => (PacketKind::SpineAlive, true),
        (true, Code::KeepAlive) if !has_workers && network.spines().next().is_some() => {
            return Err(DropReason::UnknownPeer);
        }
        (true, Code::KeepAlive) => (PacketKind::KeepAlive, has_workers),
        _ => return Err(DropReason::TaskRole),
    };
    if right_side { Ok(kind) } else { Err(DropReason::WrongSide) }
}

impl Packet {
    /// Takes what a header says of a packet of this kind, whose UDP header is at `at`.
    #[inline(always)]
    fn take(&mut self, kind: PacketKind, header: &Header, at: u16) -> PacketKind {
        self.extended = header.extended;
        self.more = header.more;
        self.idle = header.qlen != 0;
        self.at = at;
        self.pool = header.pool;
        // A task in several packets is scheduled packet by packet, as its continuations are.
        if header.more { kind.of_several() } else { kind }
    }
}

impl PacketKind {
    /// What spines and leaves tell each other, about any pool.
    #[inline]
    const fn is_of_fabric(self) -> bool {
        matches!(self, Self::Signal | Self::SpineAlive)
    }

    /// This kind for a packet that others of its task follow.
    #[inline]
    const fn of_several(self) -> Self {
        if matches!(self, Self::Task) { Self::FirstOfSeveral } else { self }
    }
}

#[inline(never)]
fn other_ether_type(
    network: &Network,
    address: &PortAddress,
    frame: &[u8],
    verified: bool,
    parsed: &mut Packet,
) -> Result<PacketKind, DropReason> {
    let to = ether::dst(frame);
    match (network.v6().filter(|_| address.v6.is_some()), ether::ether_type(frame)) {
        (Some(v6), ether::IPV6) => return one_v6((network, v6), address, frame, verified, parsed),
        (None, ether::ARP) => {}
        _ => return Err(vlan::reason(frame)),
    }
    if to != address.mac && to != Mac::BROADCAST {
        return Err(DropReason::OtherMac);
    }
    Ok(PacketKind::Arp)
}

/// As [`one`], of a frame with an IPv6 header.
fn one_v6(
    (network, v6): (&Network, &Network6),
    address: &PortAddress,
    frame: &[u8],
    verified: bool,
    parsed: &mut Packet,
) -> Result<PacketKind, DropReason> {
    let Some(datagram) = udp::parse_v6_at(address.mac, frame, verified)? else {
        return Ok(PacketKind::NeighbourDiscovery);
    };
    let to_us =
        v6.is_own(datagram.dst) || network.is_service(Ipv6Addr::from_bits(datagram.dst).into());
    if to_us && datagram.dst_port != network.udp_port {
        return Err(DropReason::UdpPort);
    }
    if !to_us && datagram.src_port != network.udp_port {
        return Err(DropReason::OtherAddress);
    }
    let header = Header::parse(&frame[datagram.payload()..usize::from(datagram.end)])?;
    let from_spine = || network.has_spine_at(Ipv6Addr::from_bits(datagram.src).into());
    let kind = kind(network, address, to_us, header.code, from_spine)?;
    if !v6.takes(network.pool_index(header.pool)) && !kind.is_of_fabric() {
        return Err(DropReason::AddressFamily);
    }
    if header.code.is_task() {
        can_be_answered(datagram.src_port, v6.is_client(datagram.src))?;
    }
    if ipv6::hop_limit(&frame[ether::LEN..]) < least_ttl(network, &header) {
        return Err(DropReason::TtlExpired);
    }
    parsed.is_v6 = true;
    Ok(parsed.take(kind, &header, datagram.at))
}
