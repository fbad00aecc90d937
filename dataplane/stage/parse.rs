//! Bytes to values: what each packet of a burst is, or why it is refused. No state, no panic.

use super::network::{Network, PortAddress};
use crate::io::Buf;
use crate::reason::DropReason;
use crate::wire::ether::{self, Mac};
use crate::wire::ipv4;
use crate::wire::task::{Code, Header};
use crate::wire::udp::{self, Datagram};

/// Packets ahead for which the cache is asked.
const PREFETCH_AHEAD: usize = 4;

/// What a packet is to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A task for the node to schedule.
    Task,
    /// A further packet of a task.
    Continuation,
    /// A worker's reply on its way to a client.
    Reply,
    /// ARP.
    Arp,
    /// Not to be had.
    Refused(DropReason),
}

/// A packet's values; datagram and header are meaningful for tasks, continuations and replies.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// What it is.
    pub kind: Kind,
    /// Its addresses and place.
    pub datagram: Datagram,
    /// Its task header.
    pub header: Header,
    /// Index of its pool, of its worker's pool member, and of that worker's server, once known.
    pub place: super::network::Worker,
}

impl Packet {
    /// A packet of which nothing is known.
    pub const REFUSED: Self = Self {
        kind: Kind::Refused(DropReason::Runt),
        datagram: Datagram { src: 0, dst: 0, src_port: 0, dst_port: 0, at: 0, end: 0 },
        header: Header::new_task(0, 0),
        place: super::network::Worker { pool: 0, member: crate::state::Member(0), server: 0 },
    };
}

/// Reads every packet that port `port` received.
#[inline]
pub fn burst<B: Buf>(network: &Network, port: usize, packets: &[B], parsed: &mut [Packet]) {
    let address = network.port(port);
    for packet in packets.iter().take(PREFETCH_AHEAD) {
        packet.prefetch();
    }
    for (at, (packet, parsed)) in packets.iter().zip(parsed).enumerate() {
        if let Some(ahead) = packets.get(at + PREFETCH_AHEAD) {
            ahead.prefetch();
        }
        if packet.is_segmented() {
            parsed.kind = Kind::Refused(DropReason::Segmented);
        } else if let Err(reason) =
            one(network, address, packet.bytes(), packet.checksums_verified(), parsed)
        {
            parsed.kind = Kind::Refused(reason);
        }
    }
}

/// Reads one frame into `parsed`.
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
) -> Result<(), DropReason> {
    if frame.len() < ether::LEN {
        return Err(DropReason::Runt);
    }
    match ether::ether_type(frame) {
        ether::IPV4 => {}
        ether::ARP => return arp(address, frame, parsed),
        _ => return Err(DropReason::EtherType),
    }
    if ether::dst(frame) != address.mac {
        return Err(DropReason::OtherMac);
    }
    let datagram = udp::parse(frame, verified)?;
    parsed.datagram = datagram;
    let payload = &frame[datagram.payload()..usize::from(datagram.end)];
    let to_us = datagram.dst == address.ip || network.is_own(datagram.dst);
    parsed.kind = if to_us {
        if datagram.dst_port != network.udp_port {
            return Err(DropReason::UdpPort);
        }
        parsed.header = Header::parse(payload)?;
        match parsed.header.code {
            Code::NewTask => Kind::Task,
            Code::TaskContinuation => Kind::Continuation,
            _ => return Err(DropReason::TaskRole),
        }
    } else {
        // A worker answers to the client; the leaf is its next hop.
        if datagram.src_port != network.udp_port {
            return Err(DropReason::OtherAddress);
        }
        parsed.header = Header::parse(payload)?;
        if !parsed.header.code.is_reply() {
            return Err(DropReason::TaskRole);
        }
        Kind::Reply
    };
    let side = address.side;
    if if to_us { !side.has_clients() } else { !side.has_workers() } {
        return Err(DropReason::WrongSide);
    }
    if ipv4::ttl(&frame[ether::LEN..]) < 2 {
        return Err(DropReason::TtlExpired);
    }
    Ok(())
}

#[cold]
fn arp(address: &PortAddress, frame: &[u8], parsed: &mut Packet) -> Result<(), DropReason> {
    let to = ether::dst(frame);
    if to != address.mac && to != Mac::BROADCAST {
        return Err(DropReason::OtherMac);
    }
    parsed.kind = Kind::Arp;
    Ok(())
}
