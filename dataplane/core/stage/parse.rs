//! Parser of a burst's packets: determines the kind of each packet, or the reason for refusing it. No state, no
//! panic. It is the first stage of packets that do not take the fast path.
//!
//! IPv4 and IPv6 differ only in their headers. One function reads the message behind them. Its type parameter is the
//! type of an address: `u32` for IPv4, `u128` for IPv6.
//!
//! The *side* of a port says if clients, workers or both are behind it. Each kind of packet is accepted only from
//! its own side.

use super::network::{Family, Network, PortAddress};
use crate::io::Buf;
use crate::reason::DropReason;
use crate::state::Member;
use crate::wire::ether::{self, Mac};
use crate::wire::task::{Code, Header};
use crate::wire::udp::{self, Datagram};
use crate::wire::{ipv4, vlan};

/// Distance of the prefetch in packets: while one packet is read, the one this far behind it is loaded into the cache.
pub(super) const PREFETCH_AHEAD: usize = 4;

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// A task for the node to schedule, whole in this packet.
    Task,
    /// First packet of a task with several packets.
    FirstOfSeveral,
    /// Further packet of a task.
    Continuation,
    /// Reply of a worker to a client.
    Reply,
    /// Registration of a worker; needs an answer.
    Registration,
    /// Keep-alive of a worker; needs no answer.
    KeepAlive,
    /// Queue report or probe answer of a worker; needs no answer.
    QueueReport,
    /// Completion report of a server; needs no answer.
    Completions,
    /// At a spine: signal of a leaf about a pool.
    Signal,
    /// At a leaf: heartbeat of a spine.
    SpineAlive,
    /// ARP.
    Arp,
    /// Neighbour discovery, the ARP of IPv6.
    NeighbourDiscovery,
    /// A task that waits for a member.
    Waiting,
    /// A task to be returned to its client.
    Overflowing,
    /// Refused.
    Refused(DropReason),
}

/// Values of a packet that later stages need. They read the rest from the frame.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Kind of the packet.
    pub kind: PacketKind,
    /// True if the task header has its extension.
    pub extended: bool,
    /// True if further packets of this task follow.
    pub more: bool,
    /// True for an IPv6 packet.
    pub is_v6: bool,
    /// True for a choice from the idle list. Before scheduling it is the spine's choice of this leaf, afterwards this
    /// node's choice of the member.
    pub idle: bool,
    /// Offset of the UDP header in the frame.
    pub udp_at: u16,
    /// Pool id in the header.
    pub pool: u16,
    /// Destination of a scheduled task: index of its pool, and member.
    pub chosen: (u16, Member),
}

impl Packet {
    /// A packet without values: the content of the buffer before a burst is read.
    pub const REFUSED: Self = Self {
        kind: PacketKind::Refused(DropReason::Runt),
        extended: false,
        more: false,
        is_v6: false,
        idle: false,
        udp_at: 0,
        pool: 0,
        chosen: (0, Member(0)),
    };

    /// Returns true for the first or only packet of a task.
    #[inline]
    #[must_use]
    pub const fn is_first(&self) -> bool {
        matches!(self.kind, PacketKind::Task | PacketKind::FirstOfSeveral)
    }

    /// Returns the UDP payload without the bytes behind it.
    #[inline]
    #[must_use]
    pub fn datagram<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let start = usize::from(self.udp_at);
        &frame[start + udp::LEN..start + udp::length(&frame[start..])]
    }

    /// Returns the UDP payload, which begins with the task header, and all bytes behind it.
    #[inline]
    #[must_use]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[usize::from(self.udp_at) + udp::LEN..]
    }
}

/// Kinds of packets in a burst, so that stages without work are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// True if the burst has anything except single-packet tasks.
    pub needs_classify: bool,
    /// True if a packet was refused because it has several segments.
    pub has_segmented: bool,
}

/// Reads every packet that port `port` received.
#[inline]
pub fn burst<B: Buf>(
    network: &Network,
    port: usize,
    packets: &[B],
    parsed: &mut [Packet],
) -> Kinds {
    for packet in packets.iter().take(PREFETCH_AHEAD) {
        packet.prefetch();
    }
    let mut kinds = Kinds::default();
    for (index, (packet, parsed)) in packets.iter().zip(parsed).enumerate() {
        if let Some(ahead) = packets.get(index + PREFETCH_AHEAD) {
            ahead.prefetch();
        }
        kinds.has_segmented |= packet.is_segmented();
        parsed.kind = packet_of(network, port, packet, parsed).unwrap_or_else(PacketKind::Refused);
        kinds.needs_classify |= parsed.kind != PacketKind::Task;
    }
    kinds
}

/// Reads one packet into `parsed` and returns its kind.
///
/// # Errors
/// The reason for dropping it.
#[inline]
pub fn packet_of<B: Buf>(
    network: &Network,
    port: usize,
    packet: &B,
    parsed: &mut Packet,
) -> Result<PacketKind, DropReason> {
    if packet.is_segmented() {
        return Err(DropReason::Segmented);
    }
    one(network, network.port(port), packet.bytes(), is_verified(packet), parsed)
}

/// Moves each segmented packet of a burst into one segment, and reads it again. Returns their number. A packet that
/// does not fit stays refused.
#[cold]
pub fn join_segments<B: Buf>(
    network: &Network,
    port: usize,
    packets: &mut [B],
    parsed: &mut [Packet],
    kinds: &mut Kinds,
) -> u64 {
    let mut joined = 0;
    for (packet, parsed) in packets.iter_mut().zip(parsed) {
        if packet.is_segmented() && packet.linearise() {
            joined += 1;
            let read = packet_of(network, port, packet, parsed);
            parsed.kind = read.unwrap_or_else(PacketKind::Refused);
            kinds.needs_classify |= parsed.kind != PacketKind::Task;
        }
    }
    joined
}

/// Returns true if the checksums of the IPv4 and UDP headers are known to be right. A device may verify the UDP
/// checksum alone; that of the IPv4 header is then verified here. An IPv6 header has none.
#[inline]
fn is_verified<B: Buf>(packet: &B) -> bool {
    packet.checksums_verified()
        || packet.udp_checksum_verified() && udp::ip_header_is_valid(packet.bytes())
}

/// Reads one frame into `parsed` and returns its kind. `verified` is true if the device has verified its
/// checksums.
///
/// # Errors
/// The reason for dropping it.
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
    parsed.is_v6 = false;
    let datagram = udp::parse(frame, verified)?;
    message(network, address, frame, &datagram, parsed)
}

/// Reads the message in a datagram of either family.
#[inline]
fn message<A: Family>(
    network: &Network,
    address: &PortAddress,
    frame: &[u8],
    datagram: &Datagram<A>,
    parsed: &mut Packet,
) -> Result<PacketKind, DropReason> {
    let tables = network.family::<A>();
    let to_us = tables.is_own(datagram.dst) || network.is_service(datagram.dst.to_ip());
    // Packets to the node have its UDP port. All other packets are replies: a worker sends them to the client's
    // address, with the leaf as its next hop.
    if to_us && datagram.dst_port != network.udp_port {
        return Err(DropReason::UdpPort);
    }
    if !to_us && datagram.src_port != network.udp_port {
        return Err(DropReason::OtherAddress);
    }
    let header = Header::parse(&frame[datagram.payload()..usize::from(datagram.end)])?;
    let from_spine = || network.has_spine_at(datagram.src.to_ip());
    let kind = kind(network, address, to_us, header.code, from_spine)?;
    // All servers of a pool have one IP version, and a packet of the opposite one cannot concern them.
    if !network.takes::<A>(network.pool_index(header.pool)) && !kind.is_of_fabric() {
        return Err(DropReason::AddressFamily);
    }
    if header.code.is_task() {
        // An IPv6 packet with extension headers was refused before.
        if !address
            .ip_options
            .permit(&frame[ether::LEN + A::IP_LEN..usize::from(datagram.udp_offset)])
        {
            return Err(DropReason::Ipv4Options);
        }
        can_be_answered(datagram.src_port, tables.is_client(datagram.src))?;
    }
    if A::ttl(&frame[ether::LEN..]) < least_ttl(network, &header) {
        return Err(DropReason::TtlExpired);
    }
    Ok(parsed.copy_header(kind, &header, datagram.udp_offset))
}

/// Checks that a worker can reply to this source port, and that the reply reaches the client.
#[inline]
fn can_be_answered(src_port: u16, is_client: bool) -> Result<(), DropReason> {
    if src_port == 0 {
        return Err(DropReason::UdpSourcePort);
    }
    if is_client { Ok(()) } else { Err(DropReason::SourceUnreachable) }
}

/// Returns the minimum time to live of a packet with this header. Routers between the node and a worker decrement it
/// further, so tasks for such a worker need more than other packets.
#[inline]
fn least_ttl(network: &Network, header: &Header) -> u8 {
    match header.code.is_task() {
        true => network.least_ttl(network.pool_index(header.pool)),
        false => ipv4::TTL_MIN,
    }
}

/// Returns the kind of a packet with this code at this port, or the reason for refusing it there.
/// `from_spine` returns true if a spine of the node sent the packet.
#[inline(always)]
fn kind(
    network: &Network,
    address: &PortAddress,
    to_us: bool,
    code: Code,
    from_spine: impl FnOnce() -> bool,
) -> Result<PacketKind, DropReason> {
    let (has_clients, has_workers) = (address.side.has_clients(), address.side.has_workers());
    let (kind, is_right_side) = match (to_us, code) {
        (true, Code::NewTask) => (PacketKind::Task, has_clients),
        (true, Code::TaskContinuation) => (PacketKind::Continuation, has_clients),
        // Leaves reply to clients without the spine, and track their workers themselves.
        (to_us, code) if network.is_spine() => match to_us && code.is_signal() {
            true => (PacketKind::Signal, has_workers),
            false => return Err(DropReason::TaskRole),
        },
        (false, code) if code.is_reply() => (PacketKind::Reply, has_workers),
        (true, Code::WorkerId) => (PacketKind::Registration, has_workers),
        (true, Code::QueueReport | Code::ProbeAnswer) => (PacketKind::QueueReport, has_workers),
        (true, Code::Completions) => (PacketKind::Completions, has_workers),
        (true, Code::KeepAlive) if from_spine() => (PacketKind::SpineAlive, true),
        // Only spines send heartbeats to a port without workers, and this sender is no spine of the node.
        (true, Code::KeepAlive) if !has_workers && network.spines().next().is_some() => {
            return Err(DropReason::UnknownPeer);
        }
        (true, Code::KeepAlive) => (PacketKind::KeepAlive, has_workers),
        _ => return Err(DropReason::TaskRole),
    };
    if is_right_side { Ok(kind) } else { Err(DropReason::WrongSide) }
}

impl Packet {
    /// Copies the values of a header and returns the packet's kind.
    #[inline(always)]
    fn copy_header(&mut self, kind: PacketKind, header: &Header, udp_at: u16) -> PacketKind {
        self.extended = header.extended;
        self.more = header.more;
        // A spine sends 1 in `qlen` with a task for a leaf that it believes idle. Other packets do not use `idle`.
        self.idle = header.qlen != 0;
        self.udp_at = udp_at;
        self.pool = header.pool;
        // The packets of such a task are scheduled one by one, outside the runs of whole tasks.
        if header.more { kind.of_several() } else { kind }
    }
}

impl PacketKind {
    /// Returns true for messages between spines and leaves. They may be about any pool.
    #[inline]
    const fn is_of_fabric(self) -> bool {
        matches!(self, Self::Signal | Self::SpineAlive)
    }

    /// Returns this kind for a packet that is followed by others of its task.
    #[inline]
    const fn of_several(self) -> Self {
        if matches!(self, Self::Task) { Self::FirstOfSeveral } else { self }
    }
}

/// Reads a frame that is not IPv4, or arrives on an IPv6 port: IPv6 there, or ARP on an IPv4 port. Other frames are
/// refused, with a reason of their own for frames with a VLAN tag.
#[inline(never)]
fn other_ether_type(
    network: &Network,
    address: &PortAddress,
    frame: &[u8],
    verified: bool,
    parsed: &mut Packet,
) -> Result<PacketKind, DropReason> {
    match (address.v6.is_some(), ether::ether_type(frame)) {
        (true, ether::IPV6) => {
            let Some(datagram) = udp::parse_v6_at(address.mac, frame, verified)? else {
                return Ok(PacketKind::NeighbourDiscovery);
            };
            parsed.is_v6 = true;
            return message(network, address, frame, &datagram, parsed);
        }
        (false, ether::ARP) => {}
        _ => return Err(vlan::reason(frame)),
    }
    let dst_mac = ether::dst(frame);
    if dst_mac != address.mac && dst_mac != Mac::BROADCAST {
        return Err(DropReason::OtherMac);
    }
    Ok(PacketKind::Arp)
}
