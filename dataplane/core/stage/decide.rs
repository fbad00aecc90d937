//! Computes the changes of [`super::rewrite`] without writing them. Programs that embed the library and write the
//! bytes themselves use it through [`Stages::decide`].

use std::net::IpAddr;

use super::network::{Family, NextHop};
use super::parse::{Packet, PacketKind};
use super::rewrite::ReplyRewriter;
use super::{Stages, Verdict};
use crate::io::Buf;
use crate::reason::DropReason;
use crate::state::Neighbours;
use crate::wire::ether::{self, Mac};
use crate::wire::ipv4::v4_bits;
use crate::wire::task::{Header, NO_MEMBER};

/// Changes to a forwarded packet. Its time to live also decreases by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Destination of the Ethernet header; zero for a held packet.
    pub dst_mac: Mac,
    /// Source of the Ethernet header.
    pub src_mac: Mac,
    /// Source of the IPv4 header.
    pub src: u32,
    /// Destination of the IPv4 header.
    pub dst: u32,
    /// Addresses of an IPv6 packet, instead of `src` and `dst`.
    pub v6: Option<RewriteV6>,
    /// Offset of the UDP header in the frame. The task header starts eight bytes later.
    pub udp_at: u16,
    /// Worker that receives the task (`dst` of its header) or sent the reply.
    pub worker: u16,
    /// Value of `qlen` in a task's header: 1 if set, otherwise 0.
    pub idle: bool,
    /// True for a packet of a task. The task header of a reply stays unchanged.
    pub task: bool,
}

impl Rewrite {
    /// Sets both addresses, which are of one family.
    fn readdress(&mut self, src: IpAddr, dst: IpAddr) {
        match (src, dst) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                self.v6 = Some(RewriteV6 { src: src.to_bits(), dst: dst.to_bits() });
            }
            _ => {
                (self.src, self.dst) =
                    (v4_bits(src).unwrap_or_default(), v4_bits(dst).unwrap_or_default());
            }
        }
    }
}

/// Addresses of a forwarded IPv6 packet. Its hop limit also decreases by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewriteV6 {
    /// The IPv6 header's source.
    pub src: u128,
    /// The IPv6 header's destination.
    pub dst: u128,
}

/// Computes the changes to the tasks and replies of a burst. Refused tasks become answers in place, as in
/// [`super::rewrite`]. Sets no mark of full workers: embedded nodes have no pools with direct return.
pub fn burst<B: Buf>(
    stages: &Stages,
    packets: &mut [B],
    parsed: &[Packet],
    verdicts: &mut [Verdict],
    rewrites: &mut [Rewrite],
) {
    let outputs = verdicts.iter_mut().zip(rewrites);
    for ((packet, parsed), (verdict, rewrite)) in packets.iter_mut().zip(parsed).zip(outputs) {
        *rewrite = Rewrite::default();
        match parsed.kind {
            PacketKind::Task | PacketKind::FirstOfSeveral | PacketKind::Continuation => {
                *verdict = match parsed.is_v6 {
                    false => towards_worker::<u32>(stages, packet.bytes(), parsed, rewrite),
                    true => towards_worker::<u128>(stages, packet.bytes(), parsed, rewrite),
                };
            }
            PacketKind::Reply => {
                *verdict = match parsed.is_v6 {
                    false => towards_client::<u32>(stages, packet.bytes(), parsed, rewrite),
                    true => towards_client::<u128>(stages, packet.bytes(), parsed, rewrite),
                };
            }
            // The refusal is an answer, written in place. It goes back to the client, because embedded nodes have no
            // spines.
            PacketKind::Overflowing => {
                super::rewrite::write_refusal(stages, packet.bytes_mut(), parsed);
            }
            PacketKind::Registration | PacketKind::KeepAlive => {}
            PacketKind::QueueReport | PacketKind::Completions => {}
            PacketKind::Signal | PacketKind::SpineAlive => {}
            PacketKind::Arp | PacketKind::NeighbourDiscovery => {}
            PacketKind::Waiting | PacketKind::Refused(_) => {}
        }
    }
}

/// Computes the changes that readdress a task to its worker's server.
fn towards_worker<A: Family>(
    stages: &Stages,
    frame: &[u8],
    parsed: &Packet,
    rewrite: &mut Rewrite,
) -> Verdict {
    let (pool, member) = (usize::from(parsed.chosen.0), parsed.chosen.1);
    let Some(target) = stages.network.family::<A>().member(pool, member) else {
        return Verdict::Drop(DropReason::AddressFamily);
    };
    *rewrite = Rewrite {
        udp_at: parsed.udp_at,
        worker: target.worker,
        idle: parsed.idle,
        task: true,
        ..Rewrite::default()
    };
    rewrite.readdress(A::src(&frame[ether::LEN..]).to_ip(), target.ip.into());
    set_next_hop(&stages.neighbours, &target.next_hop, rewrite)
}

/// Computes the changes that readdress a reply to its client. The new source is the address to which the client sent
/// its task.
fn towards_client<A: Family>(
    stages: &Stages,
    frame: &[u8],
    parsed: &Packet,
    rewrite: &mut Rewrite,
) -> Verdict {
    let client = A::dst(&frame[ether::LEN..]);
    let (network, neighbours) = (&stages.network, &stages.neighbours);
    let pool = network.answering_index(parsed.pool);
    let mut replies = ReplyRewriter::<A>::new(network, neighbours, stages.now_ms(), pool);
    let (ip, next_hop) = match replies.route_to(client) {
        Ok(route) => route,
        Err(reason) => return Verdict::Drop(reason),
    };
    *rewrite = Rewrite {
        udp_at: parsed.udp_at,
        worker: Header::parse(parsed.payload(frame)).map_or(NO_MEMBER, |header| header.src),
        ..Rewrite::default()
    };
    rewrite.readdress(ip.into(), client.to_ip());
    set_next_hop(neighbours, &next_hop, rewrite)
}

/// Sets the MAC addresses for the next hop. Returns the verdict: [`Verdict::Hold`] if its address is not known.
fn set_next_hop(neighbours: &Neighbours, next_hop: &NextHop, rewrite: &mut Rewrite) -> Verdict {
    let &NextHop { src_mac, port, slot } = next_hop;
    rewrite.src_mac = Mac::from_bits(src_mac);
    match neighbours.mac(slot) {
        Some(mac) => {
            rewrite.dst_mac = mac;
            Verdict::Forward { port, worker: rewrite.worker }
        }
        None => Verdict::Hold { port, worker: rewrite.worker, slot },
    }
}
