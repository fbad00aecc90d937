//! Rewrites addresses, header fields and checksums of forwarded packets. Decides only the next hop.
//!
//! Each rewrite has two forms: one for any packet, and one for packets of the fast path, about which more is
//! known.

use std::slice;

use super::fast::template::{HEAD, IP, TASK, UDP};
use super::fast::template_v6 as fast;
use super::network::{Network, NextHop, Target};
use super::parse::{Packet, PacketKind};
use super::v6::TargetV6;
use super::{Stages, Verdict, Verdicts};
use crate::io::Buf;
use crate::policy::Dispatcher;
use crate::reason::DropReason;
use crate::state::Neighbours;
use crate::wire::checksum::{ChecksumDelta, FoldedDelta};
use crate::wire::ether::{self, Mac};
use crate::wire::task::Header;
use crate::wire::{ipv4, ipv6, task, udp};

/// Readdresses tasks to their worker's server, and replies to their client.
#[inline]
pub fn burst<B: Buf>(
    stages: &mut Stages,
    packets: &mut [B],
    parsed: &[Packet],
    verdicts: &mut [Verdict],
) {
    let (network, neighbours) = (&*stages.network, &stages.neighbours);
    for ((packet, parsed), verdict) in packets.iter_mut().zip(parsed).zip(verdicts) {
        match parsed.kind {
            PacketKind::Task | PacketKind::FirstOfSeveral | PacketKind::Continuation => {
                let (pool, member) = (usize::from(parsed.chosen.0), parsed.chosen.1);
                let frame = packet.bytes_mut();
                if parsed.is_v6 {
                    *verdict = towards_worker_v6(network, neighbours, frame, parsed);
                    continue;
                }
                let target = network.target(pool, member);
                let udp_at = usize::from(parsed.udp_at);
                towards_worker(neighbours, frame, udp_at, target, parsed.idle, verdict);
            }
            PacketKind::Reply => {
                let udp_at = usize::from(parsed.udp_at);
                let (now_ms, frame) = (stages.now_ms(), packet.bytes_mut());
                if parsed.is_v6 {
                    let pool = network.pool_index(parsed.pool);
                    *verdict =
                        towards_client_v6(network, neighbours, now_ms, frame, (udp_at, pool));
                    continue;
                }
                let pool = network.pool_index(parsed.pool);
                *verdict = towards_client(network, neighbours, now_ms, frame, (udp_at, pool));
            }
            PacketKind::Overflowing => refuse_task(stages, packet.bytes_mut(), parsed, verdict),
            PacketKind::Registration | PacketKind::KeepAlive => {}
            PacketKind::QueueReport | PacketKind::Signal | PacketKind::SpineAlive => {}
            PacketKind::Arp | PacketKind::NeighbourDiscovery => {}
            PacketKind::Waiting | PacketKind::Refused(_) => {}
        }
    }
}

/// Readdresses a scheduled task, whose UDP header is at `udp_at`, to its worker's server.
///
/// The verdict is written in place, here and below, so that its rarely needed parts are not assembled.
#[inline(always)]
pub fn towards_worker(
    neighbours: &Neighbours,
    frame: &mut [u8],
    udp_at: usize,
    target: &Target,
    idle: bool,
    verdict: &mut Verdict,
) {
    readdress_task(frame, udp_at, target, idle);
    out(neighbours, &target.next_hop, target.worker, frame, slice::from_mut(verdict), 0);
}

/// Like [`towards_worker`], for a task of the fast path at `index` of a burst. `removed` is the checksum
/// change of removing its old destination.
#[inline(always)]
pub fn fast_task(
    neighbours: &Neighbours,
    head: &mut [u8; HEAD],
    removed: FoldedDelta,
    target: &Target,
    idle: bool,
    (verdicts, index): (&mut (impl Verdicts + ?Sized), usize),
) {
    let old = task::rechoose(&mut head[TASK..], target.choice, idle);
    // The idle flag is the last byte of the choice, at an even offset; `udp_delta` assumes 0 there.
    let delta = removed.and(target.udp_delta).and(FoldedDelta::even_byte(u8::from(idle)));
    udp::update_checksum_folded(
        &mut head[UDP..],
        delta.and(FoldedDelta::straddling_double_word_removed(old)),
    );
    ipv4::replace_dst(&mut head[IP..], target.ip);
    ipv4::decrement_ttl_folded(&mut head[IP..], removed.and(target.ip_delta));
    out(neighbours, &target.next_hop, target.worker, head, verdicts, index);
}

/// Writes the new destination and choice of a task.
#[inline(always)]
fn readdress_task(frame: &mut [u8], udp_at: usize, target: &Target, idle: bool) {
    let (old_ip, ip) = (ipv4::dst(&frame[ether::LEN..]), u32::from_be_bytes(target.ip));
    let segment = &mut frame[udp_at..];
    let delta = task::choose(&mut segment[udp::LEN..], target.choice, idle);
    udp::update_checksum(segment, delta.double_word(old_ip, ip));
    ipv4::forward_to(&mut frame[ether::LEN..], ip);
}

/// Returns a task to its client as refused: the queue of its pool is full.
#[cold]
pub(super) fn refuse_task(
    stages: &Stages,
    frame: &mut [u8],
    parsed: &Packet,
    verdict: &mut Verdict,
) {
    let (network, neighbours) = (&*stages.network, &stages.neighbours);
    let pool = network.pool_index(parsed.pool);
    let waiting = stages.dispatchers.get(pool).map_or(0, Dispatcher::waiting);
    if let Ok(task) = Header::parse(parsed.payload(frame)) {
        let refusal = task.refused_by(network.node, waiting.min(usize::from(u16::MAX)) as u16);
        answer(frame, usize::from(parsed.udp_at), &refusal);
    }
    // The sender may be a spine instead of the client. So the refusal leaves like a reply, from the address
    // to which the client sent the task.
    if network.has_service(pool) && !network.is_spine() {
        let (reply, now_ms) = ((usize::from(parsed.udp_at), pool), stages.now_ms());
        *verdict = match parsed.is_v6 {
            false => towards_client(network, neighbours, now_ms, frame, reply),
            true => towards_client_v6(network, neighbours, now_ms, frame, reply),
        };
    }
}

/// Turns a packet, whose UDP header is at `udp_at`, into an answer to its source with another header.
pub fn answer(frame: &mut [u8], udp_at: usize, header: &Header) {
    let delta = task::replace(&mut frame[udp_at + udp::LEN..], header);
    udp::update_checksum(&mut frame[udp_at..], delta);
    udp::swap_endpoints(frame, udp_at);
}

/// Readdresses a reply of a pool (by index), whose UDP header is at `udp_at`, to its client.
#[inline]
fn towards_client(
    network: &Network,
    neighbours: &Neighbours,
    now_ms: u32,
    frame: &mut [u8],
    (udp_at, pool): (usize, usize),
) -> Verdict {
    let client = ipv4::dst(&frame[ether::LEN..]);
    let route = match ReplyRoute::to(network, neighbours, client, now_ms, pool) {
        Ok(route) => route,
        Err(reason) => return Verdict::Drop(reason),
    };
    readdress_reply(frame, udp_at, u32::from_be_bytes(route.ip));
    let worker = task::src(&frame[udp_at + udp::LEN..]);
    let mut verdict = Verdict::Consumed;
    out(neighbours, &route.next_hop, worker, frame, slice::from_mut(&mut verdict), 0);
    verdict
}

/// Route by which replies leave the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyRoute {
    /// Port and address of the next hop. The next reply often goes to the same router.
    key: (usize, u32),
    pub(super) next_hop: NextHop,
    /// Source address of the replies, in packet byte order: the pool's own if it has one, otherwise the
    /// node's on the port. The client sent its task there.
    pub(super) ip: [u8; 4],
    /// Effect of this address on a datagram's checksum.
    udp_delta: FoldedDelta,
    /// Effect of this address and the hop on an IPv4 header's checksum.
    ip_delta: FoldedDelta,
}

impl ReplyRoute {
    /// Returns the route to a client.
    ///
    /// # Errors
    /// If no port leads to the client.
    pub(super) fn to(
        network: &Network,
        neighbours: &Neighbours,
        client: u32,
        now_ms: u32,
        pool: usize,
    ) -> Result<Self, DropReason> {
        let key = network.client_route(client).ok_or(DropReason::NoRoute)?;
        Ok(Self::by(network, neighbours, key, now_ms, pool))
    }

    /// Returns the route by a port and next hop.
    fn by(
        network: &Network,
        neighbours: &Neighbours,
        key: (usize, u32),
        now_ms: u32,
        pool: usize,
    ) -> Self {
        let (port, address) = key;
        let found = neighbours.find(port, address);
        let slot = found.unwrap_or_else(|| neighbours.insert(port, address, now_ms));
        neighbours.note_use(slot, now_ms);
        let port_address = network.port(port);
        let ip = network.service(pool).unwrap_or(port_address.ip);
        let delta = ChecksumDelta::default().double_word(0, ip);
        Self {
            key,
            next_hop: NextHop { src_mac: port_address.mac.to_bits(), port: port as u8, slot },
            ip: ip.to_be_bytes(),
            udp_delta: FoldedDelta::fold(delta),
            ip_delta: FoldedDelta::fold(ipv4::hop(delta)),
        }
    }
}

/// Rewriter that readdresses fast-path replies to their clients.
pub(super) struct ReplyRewriter<'a> {
    network: &'a Network,
    neighbours: &'a Neighbours,
    now_ms: u32,
    /// Index of the replies' pool.
    pool: usize,
    /// Route of the last reply. The next one often has the same route.
    last: Option<ReplyRoute>,
}

impl<'a> ReplyRewriter<'a> {
    /// Creates the rewriter for replies of a pool (by index).
    pub(super) fn new(
        network: &'a Network,
        neighbours: &'a Neighbours,
        now_ms: u32,
        pool: usize,
    ) -> Self {
        Self { network, neighbours, now_ms, pool, last: None }
    }

    /// Returns the route by a port and next hop, if it is not that of the last reply.
    #[inline(never)]
    fn route(&self, key: (usize, u32)) -> ReplyRoute {
        ReplyRoute::by(self.network, self.neighbours, key, self.now_ms, self.pool)
    }

    /// Readdresses the reply at `index` of a burst.
    #[inline(always)]
    pub(super) fn send(
        &mut self,
        head: &mut [u8; HEAD],
        verdicts: &mut (impl Verdicts + ?Sized),
        index: usize,
    ) -> Result<(), DropReason> {
        let client = ipv4::dst(&head[IP..]);
        let key = self.network.client_route(client).ok_or(DropReason::NoRoute)?;
        let route = match self.last {
            Some(last) if last.key == key => last,
            _ => {
                let route = self.route(key);
                *self.last.insert(route)
            }
        };
        let removed = ipv4::replace_src(&mut head[IP..], route.ip);
        let removed = FoldedDelta::double_word_removed(removed);
        udp::update_checksum_folded(&mut head[UDP..], removed.and(route.udp_delta));
        ipv4::decrement_ttl_folded(&mut head[IP..], removed.and(route.ip_delta));
        let worker = task::src(&head[TASK..]);
        out(self.neighbours, &route.next_hop, worker, head, verdicts, index);
        Ok(())
    }
}

/// Writes the new source of a reply.
#[inline(always)]
fn readdress_reply(frame: &mut [u8], udp_at: usize, src: u32) {
    let worker = ipv4::src(&frame[ether::LEN..]);
    udp::update_checksum(&mut frame[udp_at..], ChecksumDelta::default().double_word(worker, src));
    ipv4::forward_from(&mut frame[ether::LEN..], src);
}

/// Like [`towards_worker`], for a task that [`super::parse`] recognised as IPv6.
pub(super) fn towards_worker_v6(
    network: &Network,
    neighbours: &Neighbours,
    frame: &mut [u8],
    parsed: &Packet,
) -> Verdict {
    let (pool, member) = (usize::from(parsed.chosen.0), parsed.chosen.1);
    let Some(ip) = network.v6().and_then(|v6| v6.member(pool, member)) else {
        return Verdict::Drop(DropReason::AddressFamily);
    };
    let target = network.target(pool, member);
    let old_ip = ipv6::dst(&frame[ether::LEN..]);
    let segment = &mut frame[usize::from(parsed.udp_at)..];
    let delta = task::choose(&mut segment[udp::LEN..], target.choice, parsed.idle);
    udp::update_checksum(segment, delta.address(old_ip, ip));
    ipv6::forward_to(&mut frame[ether::LEN..], ip);
    let mut verdict = Verdict::Consumed;
    let verdicts = slice::from_mut(&mut verdict);
    out(neighbours, &target.next_hop, target.worker, frame, verdicts, 0);
    verdict
}

/// Like [`fast_task`], over IPv6, for a member of the pool and its address.
#[inline(always)]
pub(super) fn fast_task_v6(
    neighbours: &Neighbours,
    head: &mut [u8; fast::HEAD],
    removed: FoldedDelta,
    (target, member): (&Target, &TargetV6),
    idle: bool,
    (verdicts, index): (&mut (impl Verdicts + ?Sized), usize),
) {
    let old = task::rechoose(&mut head[fast::TASK..], target.choice, idle);
    let delta = removed.and(member.udp_delta).and(FoldedDelta::even_byte(u8::from(idle)));
    udp::update_checksum_folded(
        &mut head[fast::UDP..],
        delta.and(FoldedDelta::straddling_double_word_removed(old)),
    );
    ipv6::forward_to(&mut head[fast::IP..], member.ip);
    out(neighbours, &target.next_hop, target.worker, head, verdicts, index);
}

/// Like [`towards_client`], for a reply over IPv6.
fn towards_client_v6(
    network: &Network,
    neighbours: &Neighbours,
    now_ms: u32,
    frame: &mut [u8],
    (udp_at, pool): (usize, usize),
) -> Verdict {
    let mut verdict = Verdict::Consumed;
    let mut rewriter = ReplyRewriterV6::new(network, neighbours, now_ms, pool);
    match rewriter.send(frame, udp_at, slice::from_mut(&mut verdict), 0) {
        Ok(()) => verdict,
        Err(reason) => Verdict::Drop(reason),
    }
}

/// Rewriter that readdresses replies over IPv6 to their clients.
pub(super) struct ReplyRewriterV6<'a> {
    network: &'a Network,
    neighbours: &'a Neighbours,
    now_ms: u32,
    /// Index of the replies' pool.
    pool: usize,
    /// Route of the last reply. The next one often has the same route.
    last: Option<ReplyRouteV6>,
}

/// Route by which replies over IPv6 leave the node.
#[derive(Clone, Copy, Debug)]
struct ReplyRouteV6 {
    /// Port and address of the next hop.
    key: (usize, u128),
    next_hop: NextHop,
    /// Source address of the replies: the pool's service address, or the node's on the port. The client sent
    /// its task there.
    ip: u128,
    /// Effect of this address on a datagram's checksum.
    udp_delta: ChecksumDelta,
}

impl<'a> ReplyRewriterV6<'a> {
    /// Creates the rewriter for replies of a pool (by index).
    pub(super) fn new(
        network: &'a Network,
        neighbours: &'a Neighbours,
        now_ms: u32,
        pool: usize,
    ) -> Self {
        Self { network, neighbours, now_ms, pool, last: None }
    }

    /// Returns the route by a port and next hop, if it is not that of the last reply.
    #[inline(never)]
    fn route(&self, key: (usize, u128)) -> Option<ReplyRouteV6> {
        let (port, address) = key;
        let port_address = self.network.port(port);
        let found = self.neighbours.find_v6(port, address);
        let slot = found.unwrap_or_else(|| self.neighbours.insert_v6(port, address, self.now_ms));
        self.neighbours.note_use(slot, self.now_ms);
        let next_hop = NextHop { src_mac: port_address.mac.to_bits(), port: port as u8, slot };
        let ip = self.network.v6()?.service(self.pool).or(port_address.v6.map(|v6| v6.ip))?;
        Some(ReplyRouteV6 { key, next_hop, ip, udp_delta: ChecksumDelta::default().address(0, ip) })
    }

    /// Returns the next hop of a reply to this client, and the source address of the reply.
    #[inline(always)]
    pub(super) fn route_to(&mut self, client: u128) -> Result<(NextHop, u128), DropReason> {
        self.route_of(client).map(|route| (route.next_hop, route.ip))
    }

    /// Returns the route to this client; the last one if it has the same port and next hop.
    #[inline(always)]
    fn route_of(&mut self, client: u128) -> Result<&ReplyRouteV6, DropReason> {
        let v6 = self.network.v6().ok_or(DropReason::NoRoute)?;
        let key = v6.client_route(client).ok_or(DropReason::NoRoute)?;
        if self.last.is_none_or(|last| last.key != key) {
            self.last = self.route(key);
        }
        self.last.as_ref().ok_or(DropReason::NoRoute)
    }

    /// Readdresses the reply at `index` of a burst, whose UDP header is at `udp_at`.
    #[inline(always)]
    pub(super) fn send(
        &mut self,
        frame: &mut [u8],
        udp_at: usize,
        verdicts: &mut (impl Verdicts + ?Sized),
        index: usize,
    ) -> Result<(), DropReason> {
        let neighbours = self.neighbours;
        let route = self.route_of(ipv6::dst(&frame[ether::LEN..]))?;
        let delta = route.udp_delta.address_removed(ipv6::src_bytes(&frame[ether::LEN..]));
        udp::update_checksum(&mut frame[udp_at..], delta);
        ipv6::forward_from(&mut frame[ether::LEN..], route.ip);
        let worker = task::src(&frame[udp_at + udp::LEN..]);
        out(neighbours, &route.next_hop, worker, frame, verdicts, index);
        Ok(())
    }
}

/// Writes the MAC addresses for the next hop, and the verdict on a packet that is a task or reply of
/// `worker`.
#[inline(always)]
fn out(
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

/// Writes the source MAC address of a packet whose next hop is not resolved. Returns its verdict.
#[cold]
fn hold(next_hop: &NextHop, worker: u16, frame: &mut [u8]) -> Verdict {
    ether::emit_bits(frame, Mac::default().to_bits(), next_hop.src_mac);
    Verdict::Hold { port: next_hop.port, worker, slot: next_hop.slot }
}
