//! Addresses, header fields and checksums of packets that go on; decides nothing but the way.

use super::network::{Network, Side, Target, Way};
use super::parse::{Kind, Packet};
use super::plain::{HEAD, IP, TASK, UDP};
use super::{Stages, Verdict};
use crate::io::Buf;
use crate::reason::DropReason;
use crate::state::Neighbours;
use crate::state::neighbour::Slot;
use crate::wire::checksum::{Delta, Mend};
use crate::wire::ether::{self, Mac};
use crate::wire::task::Header;
use crate::wire::{ipv4, task, udp};

/// Turns tasks towards their worker's server and replies towards their client.
#[inline]
pub fn burst<B: Buf>(
    stages: &mut Stages,
    packets: &mut [B],
    parsed: &[Packet],
    verdicts: &mut [Verdict],
) {
    let (network, neighbours) = (&*stages.network, &stages.neighbours);
    let mut last = None;
    for ((packet, parsed), verdict) in packets.iter_mut().zip(parsed).zip(verdicts) {
        match parsed.kind {
            Kind::Task | Kind::FirstOfSeveral | Kind::Continuation => {
                let target = network.target(usize::from(parsed.chosen.0), parsed.chosen.1);
                let at = usize::from(parsed.at);
                let frame = packet.bytes_mut();
                towards_worker(neighbours, frame, at, target, parsed.idle, verdict);
            }
            Kind::Reply => {
                let at = usize::from(parsed.at);
                towards_client(network, neighbours, packet.bytes_mut(), at, &mut last, verdict);
            }
            Kind::Overflowing => give_back(stages, packet.bytes_mut(), parsed),
            Kind::Registration | Kind::KeepAlive => {}
            Kind::Arp | Kind::Waiting | Kind::Refused(_) => {}
        }
    }
}

/// Turns a scheduled task, whose UDP header is at `at`, towards its worker's server.
///
/// The verdict is written in place, here and below: what is hardly ever needed of it is then not put together.
#[inline(always)]
pub fn towards_worker(
    neighbours: &Neighbours,
    frame: &mut [u8],
    at: usize,
    target: &Target,
    idle: bool,
    verdict: &mut Verdict,
) {
    readdress_task(frame, at, target, idle);
    out(neighbours, &target.way, frame, verdict);
}

/// As [`towards_worker`], for a plain task; `gone` is what its old destination was to a checksum.
#[inline(always)]
pub fn plain_task(
    neighbours: &Neighbours,
    plain: &mut [u8; HEAD],
    gone: Mend,
    target: &Target,
    idle: bool,
    verdict: &mut Verdict,
) {
    let old = task::rechoose(&mut plain[TASK..], target.choice, idle);
    let mend = gone.and(target.udp_mend).and(Mend::even_byte(u8::from(idle)));
    udp::mend_by(&mut plain[UDP..], mend.and(Mend::straddling_double_word_gone(old)));
    if let Some(packet) = plain[IP..].first_chunk_mut() {
        ipv4::redirect(packet, target.ip, gone.and(target.ip_mend));
    }
    out(neighbours, &target.way, plain, verdict);
}

#[inline(always)]
fn readdress_task(frame: &mut [u8], at: usize, target: &Target, idle: bool) {
    let (was, ip) = (ipv4::dst(&frame[ether::LEN..]), u32::from_be_bytes(target.ip));
    let segment = &mut frame[at..];
    let delta = task::choose(&mut segment[udp::LEN..], target.choice, idle);
    udp::mend(segment, delta.double_word(was, ip));
    ipv4::forward_to(&mut frame[ether::LEN..], ip);
}

/// Turns a task that finds its pool's queue full back to its client, undone.
#[cold]
pub(super) fn give_back(stages: &Stages, frame: &mut [u8], parsed: &Packet) {
    let waiting =
        stages.network.pool(parsed.pool).map_or(0, |pool| stages.backlogs[pool].waiting());
    if let Ok(task) = Header::parse(parsed.payload(frame)) {
        let refusal =
            task.refused_by(stages.network.node, waiting.min(usize::from(u16::MAX)) as u16);
        answer(frame, parsed, &refusal);
    }
}

/// Sends a packet back to where it came from, with another header.
pub fn answer(frame: &mut [u8], parsed: &Packet, header: &Header) {
    let at = usize::from(parsed.at);
    let delta = task::replace(&mut frame[at + udp::LEN..], header);
    udp::mend(&mut frame[at..], delta);
    udp::turn_back(frame, at);
}

/// Where a reply went: the next one often goes to the same router.
#[derive(Clone, Copy, Debug)]
pub struct NextHop {
    port: usize,
    address: u32,
    slot: Slot,
}

/// Turns a reply, whose UDP header is at `at`, towards its client. `last` is kept from one reply to the next.
#[inline(always)]
pub fn towards_client(
    network: &Network,
    neighbours: &Neighbours,
    frame: &mut [u8],
    at: usize,
    last: &mut Option<NextHop>,
    verdict: &mut Verdict,
) {
    let Some((port, next_hop)) = network.route(ipv4::dst(&frame[ether::LEN..]), Side::has_clients)
    else {
        *verdict = Verdict::Drop(DropReason::NoRoute);
        return;
    };
    let known = last.filter(|last| (last.port, last.address) == (port, next_hop));
    let slot = known.map(|last| last.slot).or_else(|| neighbours.find(port, next_hop));
    let Some(slot) = slot.or_else(|| neighbours.insert(port, next_hop)) else {
        *verdict = Verdict::Drop(DropReason::NeighbourUnresolved);
        return;
    };
    *last = Some(NextHop { port, address: next_hop, slot });
    // The client asked the leaf, so the leaf answers.
    let own = network.port(port);
    let way = Way { mac: own.mac.to_bits(), port: port as u8, slot };
    // With a fixed length and a fixed offset the compiler needs no check of bounds.
    match frame.first_chunk_mut::<HEAD>() {
        Some(plain) if at == UDP => {
            readdress_reply(plain, UDP, own.ip);
            out(neighbours, &way, plain, verdict);
        }
        _ => {
            readdress_reply(frame, at, own.ip);
            out(neighbours, &way, frame, verdict);
        }
    }
}

#[inline(always)]
fn readdress_reply(frame: &mut [u8], at: usize, own: u32) {
    let worker = ipv4::src(&frame[ether::LEN..]);
    udp::mend(&mut frame[at..], Delta::default().double_word(worker, own));
    ipv4::forward_from(&mut frame[ether::LEN..], own);
}

#[inline(always)]
fn out(neighbours: &Neighbours, way: &Way, frame: &mut [u8], verdict: &mut Verdict) {
    match neighbours.mac(way.slot) {
        Some(mac) => {
            ether::emit_bits(frame, mac.to_bits(), way.mac);
            *verdict = Verdict::Forward { port: way.port };
        }
        None => hold(way, frame, verdict),
    }
}

#[cold]
fn hold(way: &Way, frame: &mut [u8], verdict: &mut Verdict) {
    ether::emit_bits(frame, Mac::default().to_bits(), way.mac);
    *verdict = Verdict::Hold { port: way.port, slot: way.slot };
}
