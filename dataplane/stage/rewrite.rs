//! Addresses, header fields and checksums of packets that go on; decides nothing but the way.

use super::network::{Network, Side, Target, Way};
use super::parse::{Kind, Packet};
use super::{Stages, Verdict};
use crate::io::Buf;
use crate::reason::DropReason;
use crate::state::Neighbours;
use crate::wire::checksum::Delta;
use crate::wire::ether::{self, Mac};
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
    for ((packet, parsed), verdict) in packets.iter_mut().zip(parsed).zip(verdicts) {
        match parsed.kind {
            Kind::Task | Kind::FirstOfSeveral | Kind::Continuation => {
                let target = network.target(usize::from(parsed.chosen.0), parsed.chosen.1);
                let at = usize::from(parsed.at);
                *verdict = towards_worker(neighbours, packet.bytes_mut(), at, target, parsed.idle);
            }
            Kind::Reply => {
                let at = usize::from(parsed.at);
                *verdict = towards_client(network, neighbours, packet.bytes_mut(), at);
            }
            Kind::Arp | Kind::Refused(_) => {}
        }
    }
}

/// Bytes that a packet without IP options has at least: all that is rewritten lies in them.
const PLAIN: usize = udp::PAYLOAD + task::LEN;
/// Offset of its UDP header.
const PLAIN_AT: usize = udp::PAYLOAD - udp::LEN;

/// Turns a scheduled task, whose UDP header is at `at`, towards its worker's server.
#[inline(always)]
pub fn towards_worker(
    neighbours: &Neighbours,
    frame: &mut [u8],
    at: usize,
    target: &Target,
    idle: bool,
) -> Verdict {
    // With a fixed length and a fixed offset the compiler needs no check of bounds.
    match frame.first_chunk_mut::<PLAIN>() {
        Some(plain) if at == PLAIN_AT => task_to(neighbours, plain, PLAIN_AT, target, idle),
        _ => task_to(neighbours, frame, at, target, idle),
    }
}

#[inline(always)]
fn task_to(
    neighbours: &Neighbours,
    frame: &mut [u8],
    at: usize,
    target: &Target,
    idle: bool,
) -> Verdict {
    let (was, ip) = (ipv4::dst(&frame[ether::LEN..]), u32::from_be_bytes(target.ip));
    let segment = &mut frame[at..];
    let delta = task::choose(&mut segment[udp::LEN..], target.id, idle);
    udp::mend(segment, delta.double_word(was, ip));
    ipv4::forward_to(&mut frame[ether::LEN..], ip);
    out(neighbours, &target.way, frame)
}

/// Turns a reply, whose UDP header is at `at`, towards its client.
#[inline(always)]
pub fn towards_client(
    network: &Network,
    neighbours: &Neighbours,
    frame: &mut [u8],
    at: usize,
) -> Verdict {
    match frame.first_chunk_mut::<PLAIN>() {
        Some(plain) if at == PLAIN_AT => reply_on(network, neighbours, plain, PLAIN_AT),
        _ => reply_on(network, neighbours, frame, at),
    }
}

#[inline(always)]
fn reply_on(network: &Network, neighbours: &Neighbours, frame: &mut [u8], at: usize) -> Verdict {
    let packet = &frame[ether::LEN..];
    let (worker, client) = (ipv4::src(packet), ipv4::dst(packet));
    let Some((port, next_hop)) = network.route(client, Side::has_clients) else {
        return Verdict::Drop(DropReason::NoRoute);
    };
    let slot = neighbours.find(port, next_hop).or_else(|| neighbours.insert(port, next_hop));
    let Some(slot) = slot else {
        return Verdict::Drop(DropReason::NeighbourUnresolved);
    };
    // The client asked the leaf, so the leaf answers.
    let own = network.port(port);
    udp::mend(&mut frame[at..], Delta::default().double_word(worker, own.ip));
    ipv4::forward_from(&mut frame[ether::LEN..], own.ip);
    out(neighbours, &Way { mac: own.mac, port: port as u8, slot }, frame)
}

#[inline(always)]
fn out(neighbours: &Neighbours, way: &Way, frame: &mut [u8]) -> Verdict {
    let &Way { mac: own, port, slot } = way;
    match neighbours.mac(slot) {
        Some(mac) => {
            ether::emit_addresses(frame, mac, own);
            Verdict::Forward { port }
        }
        None => {
            ether::emit_addresses(frame, Mac::default(), own);
            Verdict::Hold { port, slot }
        }
    }
}
