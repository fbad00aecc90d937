//! What [`super::rewrite`] would write, as values, for callers that keep the bytes to themselves.

use super::network::{Network, NextHop};
use super::parse::{Packet, PacketKind};
use super::rewrite::{ReplyRewriterV6, ReplyRoute};
use super::{Stages, Verdict, rewrite};
use crate::io::Buf;
use crate::reason::DropReason;
use crate::state::Neighbours;
use crate::wire::ether::{self, Mac};
use crate::wire::task::{Header, NO_MEMBER};
use crate::wire::{ipv4, ipv6};

/// The values of a packet that goes on. Its time to live becomes one less besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The Ethernet header's destination; zero for a packet to be held.
    pub dst_mac: Mac,
    /// The Ethernet header's source.
    pub src_mac: Mac,
    /// The IPv4 header's source.
    pub src: u32,
    /// The IPv4 header's destination.
    pub dst: u32,
    /// The addresses of a packet over IPv6, in place of these.
    pub v6: Option<RewriteV6>,
    /// Offset of the UDP header in the frame; the task header starts eight bytes later.
    pub udp_at: u16,
    /// The worker that a task goes to, for its header's `dst`, or that a reply comes from.
    pub worker: u16,
    /// For a task's header: `qlen` is 1 when this is set, 0 otherwise.
    pub idle: bool,
    /// The packet belongs to a task; a reply's header stays as it is.
    pub task: bool,
}

/// The addresses of a packet over IPv6 that goes on. Its hop limit becomes one less besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewriteV6 {
    /// The IPv6 header's source.
    pub src: u128,
    /// The IPv6 header's destination.
    pub dst: u128,
}

/// Says where tasks and replies go.
pub fn burst<B: Buf>(
    stages: &Stages,
    packets: &mut [B],
    parsed: &[Packet],
    verdicts: &mut [Verdict],
    rewrites: &mut [Rewrite],
) {
    let (network, neighbours) = (&*stages.network, &stages.neighbours);
    let places = verdicts.iter_mut().zip(rewrites);
    for ((packet, parsed), (verdict, values)) in packets.iter_mut().zip(parsed).zip(places) {
        *values = Rewrite::default();
        match parsed.kind {
            PacketKind::Task | PacketKind::FirstOfSeveral | PacketKind::Continuation => {
                *verdict = towards_worker(network, neighbours, packet.bytes(), parsed, values);
            }
            PacketKind::Reply if parsed.is_v6 => {
                *verdict = towards_client_v6(stages, packet.bytes(), parsed, values);
            }
            PacketKind::Reply => {
                *verdict = towards_client(stages, packet.bytes(), parsed, values);
            }
            // An answer, which goes out of here as it is.
            PacketKind::Overflowing => {
                rewrite::give_back(stages, packet.bytes_mut(), parsed, verdict);
            }
            PacketKind::Registration | PacketKind::KeepAlive => {}
            PacketKind::QueueReport | PacketKind::Signal | PacketKind::SpineAlive => {}
            PacketKind::Arp | PacketKind::NeighbourDiscovery => {}
            PacketKind::Waiting | PacketKind::Refused(_) => {}
        }
    }
}

fn towards_worker(
    network: &Network,
    neighbours: &Neighbours,
    frame: &[u8],
    parsed: &Packet,
    rewrite: &mut Rewrite,
) -> Verdict {
    let (pool, member) = (usize::from(parsed.chosen.0), parsed.chosen.1);
    let (target, packet) = (network.target(pool, member), &frame[ether::LEN..]);
    let (src, dst, v6) = match parsed.is_v6 {
        false => (ipv4::src(packet), u32::from_be_bytes(target.ip), None),
        true => match network.v6().and_then(|v6| v6.member(pool, member)) {
            Some(dst) => (0, 0, Some(RewriteV6 { src: ipv6::src(packet), dst })),
            None => return Verdict::Drop(DropReason::AddressFamily),
        },
    };
    *rewrite = Rewrite {
        src,
        dst,
        v6,
        udp_at: parsed.at,
        worker: target.worker,
        idle: parsed.idle,
        task: true,
        ..Rewrite::default()
    };
    out(neighbours, &target.next_hop, rewrite)
}

fn towards_client(
    stages: &Stages,
    frame: &[u8],
    parsed: &Packet,
    rewrite: &mut Rewrite,
) -> Verdict {
    let client = ipv4::dst(&frame[ether::LEN..]);
    let (network, neighbours) = (&stages.network, &stages.neighbours);
    let pool = network.pool_index(parsed.pool);
    let route = match ReplyRoute::to(network, neighbours, client, stages.now_ms(), pool) {
        Ok(route) => route,
        Err(reason) => return Verdict::Drop(reason),
    };
    *rewrite = Rewrite {
        src: u32::from_be_bytes(route.ip),
        dst: client,
        udp_at: parsed.at,
        worker: Header::parse(parsed.payload(frame)).map_or(NO_MEMBER, |header| header.src),
        ..Rewrite::default()
    };
    out(neighbours, &route.next_hop, rewrite)
}

/// As [`towards_client`], of a reply over IPv6.
fn towards_client_v6(
    stages: &Stages,
    frame: &[u8],
    parsed: &Packet,
    rewrite: &mut Rewrite,
) -> Verdict {
    let client = ipv6::dst(&frame[ether::LEN..]);
    let (network, neighbours) = (&stages.network, &stages.neighbours);
    let pool = network.pool_index(parsed.pool);
    let mut replies = ReplyRewriterV6::new(network, neighbours, stages.now_ms(), pool);
    let (next_hop, own) = match replies.route_to(client) {
        Ok(route) => route,
        Err(reason) => return Verdict::Drop(reason),
    };
    *rewrite = Rewrite {
        v6: Some(RewriteV6 { src: own, dst: client }),
        udp_at: parsed.at,
        worker: Header::parse(parsed.payload(frame)).map_or(NO_MEMBER, |header| header.src),
        ..Rewrite::default()
    };
    out(neighbours, &next_hop, rewrite)
}

fn out(neighbours: &Neighbours, next_hop: &NextHop, rewrite: &mut Rewrite) -> Verdict {
    let &NextHop { src_mac: own, port, slot } = next_hop;
    rewrite.src_mac = Mac::from_bits(own);
    match neighbours.mac(slot) {
        Some(mac) => {
            rewrite.dst_mac = mac;
            Verdict::Forward { port, worker: rewrite.worker }
        }
        None => Verdict::Hold { port, worker: rewrite.worker, slot },
    }
}
