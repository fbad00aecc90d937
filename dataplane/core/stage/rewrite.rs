//! Rewrites addresses, header fields and checksums of forwarded packets. Decides only the next hop.
//!
//! Checksums are updated by their *change* (RFC 1624), not recomputed. The change has two parts. The part of the new
//! values is computed once per worker or route. The part of the removed values is computed per packet and added.
//!
//! The fast path uses the same functions, with offsets that are known beforehand.

use std::slice;

use super::network::{Family, Network, NextHop, Target};
use super::parse::{Packet, PacketKind};
use super::{Stages, Verdict, Verdicts};
use crate::io::Buf;
use crate::policy::Dispatcher;
use crate::reason::DropReason;
use crate::state::Neighbours;
use crate::state::neighbour::{Host, Slot};
use crate::wire::checksum::{ChecksumDelta, FoldedDelta};
use crate::wire::ether::{self, Mac};
use crate::wire::task::Header;
use crate::wire::{ipv4, task, udp};

/// Readdresses scheduled tasks to their worker's server, and replies to their client. Sends tasks that a full queue
/// refuses back to their client.
#[inline]
pub fn burst<B: Buf>(
    stages: &mut Stages,
    packets: &mut [B],
    parsed: &[Packet],
    verdicts: &mut [Verdict],
) {
    let (network, neighbours) = (&*stages.network, &stages.neighbours);
    for ((packet, parsed), verdict) in packets.iter_mut().zip(parsed).zip(verdicts) {
        let is_v6 = parsed.is_v6;
        match parsed.kind {
            PacketKind::Task | PacketKind::FirstOfSeveral | PacketKind::Continuation => {
                *verdict = match is_v6 {
                    false => towards_worker::<u32>(stages, packet.bytes_mut(), parsed),
                    true => towards_worker::<u128>(stages, packet.bytes_mut(), parsed),
                };
            }
            PacketKind::Reply => {
                let (now_ms, frame) = (stages.now_ms(), packet.bytes_mut());
                *verdict = match is_v6 {
                    false => towards_client::<u32>(network, neighbours, now_ms, frame, parsed),
                    true => towards_client::<u128>(network, neighbours, now_ms, frame, parsed),
                };
            }
            PacketKind::Overflowing => refuse_task(stages, packet.bytes_mut(), parsed, verdict),
            PacketKind::Registration | PacketKind::KeepAlive => {}
            PacketKind::QueueReport | PacketKind::Completions => {}
            PacketKind::Signal | PacketKind::SpineAlive => {}
            PacketKind::Arp | PacketKind::NeighbourDiscovery => {}
            PacketKind::Waiting | PacketKind::Refused(_) => {}
        }
    }
}

/// Readdresses a scheduled task to its worker's server.
#[inline]
pub fn towards_worker<A: Family>(stages: &Stages, frame: &mut [u8], parsed: &Packet) -> Verdict {
    let (pool, member) = (usize::from(parsed.chosen.0), parsed.chosen.1);
    let Some(target) = stages.network.family::<A>().member(pool, member) else {
        return Verdict::Drop(DropReason::AddressFamily);
    };
    let removed = removed(A::dst(&frame[ether::LEN..]));
    let (udp_at, mut verdict) = (usize::from(parsed.udp_at), Verdict::Consumed);
    // The packet as a burst of one.
    let place = (slice::from_mut(&mut verdict), 0);
    let is_full = stages.fullness(pool).is_some_and(|is_full| is_full(member));
    let flags = task::flags(parsed.idle, is_full);
    readdress_task(&stages.neighbours, (frame, udp_at), removed, target, flags, place);
    verdict
}

/// Returns the checksum change of replacing an address by zero. With the change from zero to the new address, it makes
/// the whole change.
pub(super) fn removed<A: Family>(address: A) -> FoldedDelta {
    FoldedDelta::fold(A::replace(ChecksumDelta::default(), address, A::default()))
}

/// Readdresses a task, whose UDP header is at an offset, to its member. Writes the choice and the flags into its task
/// header. Sets the verdict at `index` of a burst. `removed` is the checksum change of removing its old destination.
#[inline(always)]
pub(super) fn readdress_task<A: Family>(
    neighbours: &Neighbours,
    (frame, udp_at): (&mut [u8], usize),
    removed: FoldedDelta,
    target: &Target<A>,
    flags: u8,
    (verdicts, index): (&mut (impl Verdicts + ?Sized), usize),
) {
    let old = task::choose(&mut frame[udp_at + udp::LEN..], target.choice, flags);
    // The choice is at an odd offset, so the old one straddles words of the checksum. The flags are its last byte, at
    // an even offset; `udp_delta` assumes 0 there.
    let delta = removed.and(target.udp_delta).and(FoldedDelta::even_byte(flags));
    udp::update_checksum_folded(
        &mut frame[udp_at..],
        delta.and(FoldedDelta::straddling_double_word_removed(old)),
    );
    A::forward_to(&mut frame[ether::LEN..], target.ip, removed.and(target.ip_delta));
    write_next_hop(neighbours, &target.next_hop, target.worker, frame, verdicts, index);
}

/// Returns a task to its client as refused: the queue of its pool is full.
#[cold]
fn refuse_task(stages: &Stages, frame: &mut [u8], parsed: &Packet, verdict: &mut Verdict) {
    write_refusal(stages, frame, parsed);
    let (network, neighbours) = (&*stages.network, &stages.neighbours);
    let pool = network.pool_index(parsed.pool);
    // The sender may be a spine instead of the client. So the refusal leaves like a reply, from the address
    // to which the client sent the task.
    if network.has_service(pool) && !network.is_spine() {
        let now_ms = stages.now_ms();
        *verdict = match parsed.is_v6 {
            false => towards_client::<u32>(network, neighbours, now_ms, frame, parsed),
            true => towards_client::<u128>(network, neighbours, now_ms, frame, parsed),
        };
    }
}

/// Turns a task into its refusal, an answer to its sender.
pub(super) fn write_refusal(stages: &Stages, frame: &mut [u8], parsed: &Packet) {
    let network = &*stages.network;
    let pool = network.pool_index(parsed.pool);
    let waiting = stages.dispatchers.get(pool).map_or(0, Dispatcher::waiting);
    if let Ok(task) = Header::parse(parsed.payload(frame)) {
        let refusal = task.refused_by(network.node, waiting.min(usize::from(u16::MAX)) as u16);
        answer(frame, usize::from(parsed.udp_at), &refusal);
    }
}

/// Turns a packet, whose UDP header is at `udp_at`, into an answer to its source with another header.
pub fn answer(frame: &mut [u8], udp_at: usize, header: &Header) {
    let delta = task::replace(&mut frame[udp_at + udp::LEN..], header);
    udp::update_checksum(&mut frame[udp_at..], delta);
    udp::swap_endpoints(frame, udp_at);
}

/// Readdresses a reply to its client.
#[inline]
fn towards_client<A: Family>(
    network: &Network,
    neighbours: &Neighbours,
    now_ms: u32,
    frame: &mut [u8],
    parsed: &Packet,
) -> Verdict {
    let pool = network.answering_index(parsed.pool);
    let udp_at = usize::from(parsed.udp_at);
    let mut verdict = Verdict::Consumed;
    let mut rewriter = ReplyRewriter::<A>::new(network, neighbours, now_ms, pool);
    match rewriter.hop_to(A::dst(&frame[ether::LEN..])) {
        Ok(hop) => {
            rewriter.send(&hop, (frame, udp_at), slice::from_mut(&mut verdict), 0);
            verdict
        }
        Err(reason) => Verdict::Drop(reason),
    }
}

/// Port by which replies leave the node, with the values for the replies of one pool.
#[derive(Clone, Copy, Debug)]
struct ReplyExit<A: Family> {
    /// Index of the port.
    port: usize,
    /// Bits of the port's MAC address.
    src_mac: u64,
    /// Source address of the replies, in packet byte order: the pool's own if it has one, otherwise the
    /// node's on the port. The client sent its task there.
    ip: A::Bytes,
    /// Effect of this address on a datagram's checksum.
    udp_delta: FoldedDelta,
    /// Effect of this address and the hop on an IPv4 header's checksum.
    ip_delta: FoldedDelta,
}

/// Rewriter that readdresses the replies of a burst to their clients.
pub(super) struct ReplyRewriter<'a, A: Family> {
    network: &'a Network,
    neighbours: &'a Neighbours,
    /// Time of the last tick.
    now_ms: u32,
    /// Index of the replies' pool.
    pool: usize,
    /// Exit of the last reply, as a cache: the next reply often has the same one.
    exit: ReplyExit<A>,
    /// Next hop of the last reply and its slot, as a cache: the router to many clients.
    last: (A, Slot),
}

impl<'a, A: Family> ReplyRewriter<'a, A> {
    /// Creates the rewriter for replies of a pool (by index).
    #[inline(always)]
    pub(super) fn new(
        network: &'a Network,
        neighbours: &'a Neighbours,
        now_ms: u32,
        pool: usize,
    ) -> Self {
        let (none, ip) = (FoldedDelta::default(), A::default().to_bytes());
        // No port has this index, so the first reply computes its exit.
        let exit = ReplyExit { port: usize::MAX, src_mac: 0, ip, udp_delta: none, ip_delta: none };
        Self { network, neighbours, now_ms, pool, exit, last: (A::default(), Slot::NONE) }
    }

    /// Returns the next hop to a client, and prefetches its neighbour entry.
    ///
    /// # Errors
    /// If no port leads to the client.
    #[inline(always)]
    pub(super) fn hop_to(&self, client: A) -> Result<Host<A>, DropReason> {
        let route = self.network.family::<A>().client_route(client);
        let (port, address) = route.ok_or(DropReason::NoRoute)?;
        let host = self.neighbours.host(port, address);
        self.neighbours.prefetch(&host);
        Ok(host)
    }

    /// Computes the exit at a port.
    #[inline(never)]
    fn exit_at(&self, port: usize) -> ReplyExit<A> {
        let tables = self.network.family::<A>();
        let ip = tables.service(self.pool).or_else(|| Some(tables.port(port)?.ip));
        let ip = ip.unwrap_or_default(); // never: routes lead to ports of their family
        let delta = A::replace(ChecksumDelta::default(), A::default(), ip);
        ReplyExit {
            port,
            src_mac: self.network.port(port).mac.to_bits(),
            ip: ip.to_bytes(),
            udp_delta: FoldedDelta::fold(delta),
            ip_delta: FoldedDelta::fold(ipv4::hop(delta)),
        }
    }

    /// Returns the values for packets to a next hop. Adds the next hop to the neighbour table if it is unknown. Records
    /// the use, so that the entry stays in the table and its host is probed.
    #[inline(always)]
    fn towards(&mut self, hop: &Host<A>) -> NextHop {
        let slot = match self.last {
            (address, slot) if address == hop.address && self.exit.port == hop.port => slot,
            _ => self.slot_of(hop),
        };
        self.last = (hop.address, slot);
        if self.exit.port != hop.port {
            self.exit = self.exit_at(hop.port);
        }
        NextHop { src_mac: self.exit.src_mac, port: hop.port as u8, slot }
    }

    /// Returns the slot of a next hop, and records the use.
    #[inline(always)]
    fn slot_of(&self, hop: &Host<A>) -> Slot {
        let found = self.neighbours.find_host(hop);
        let slot =
            found.unwrap_or_else(|| self.neighbours.insert(hop.port, hop.address, self.now_ms));
        self.neighbours.note_use(slot, self.now_ms);
        slot
    }

    /// Returns the source address of a reply to a client, and the values for packets to its next hop.
    ///
    /// # Errors
    /// If no port leads to the client.
    pub(super) fn route_to(&mut self, client: A) -> Result<(A::Bytes, NextHop), DropReason> {
        let next_hop = self.towards(&self.hop_to(client)?);
        Ok((self.exit.ip, next_hop))
    }

    /// Readdresses the reply at `index` of a burst, whose UDP header is at an offset, to its client behind `hop`.
    #[inline(always)]
    pub(super) fn send(
        &mut self,
        hop: &Host<A>,
        (frame, udp_at): (&mut [u8], usize),
        verdicts: &mut (impl Verdicts + ?Sized),
        index: usize,
    ) {
        let next_hop = self.towards(hop);
        let exit = &self.exit;
        let removed = A::removed_src(&frame[ether::LEN..]);
        udp::update_checksum_folded(&mut frame[udp_at..], removed.and(exit.udp_delta));
        A::forward_from(&mut frame[ether::LEN..], exit.ip, removed.and(exit.ip_delta));
        let worker = task::src(&frame[udp_at + udp::LEN..]);
        write_next_hop(self.neighbours, &next_hop, worker, frame, verdicts, index);
    }
}

/// Writes the MAC addresses for the next hop, and the verdict on a packet that is a task or reply of
/// `worker`.
#[inline(always)]
fn write_next_hop(
    neighbours: &Neighbours,
    next_hop: &NextHop,
    worker: u16,
    frame: &mut [u8],
    verdicts: &mut (impl Verdicts + ?Sized),
    index: usize,
) {
    match neighbours.mac(next_hop.slot) {
        Some(mac) => {
            ether::emit_bits(frame, mac.to_bits(), next_hop.src_mac);
            verdicts.forward(index, next_hop.port, worker);
        }
        None => verdicts.other(index, hold(next_hop, worker, frame)),
    }
}

/// Writes the source MAC address of a packet whose next hop is not resolved, and zeros for the destination. Returns its
/// verdict. The caller holds the packet and writes the destination once it is known.
#[cold]
fn hold(next_hop: &NextHop, worker: u16, frame: &mut [u8]) -> Verdict {
    ether::emit_bits(frame, Mac::default().to_bits(), next_hop.src_mac);
    Verdict::Hold { port: next_hop.port, worker, slot: next_hop.slot }
}
