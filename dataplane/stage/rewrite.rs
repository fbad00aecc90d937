//! Addresses, header fields and checksums of packets that go on; decides nothing but the way.

use super::network::{Network, Side};
use super::parse::{Kind, Packet};
use super::{Stages, Verdict};
use crate::io::Buf;
use crate::reason::DropReason;
use crate::state::Neighbours;
use crate::state::neighbour::Slot;
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
                *verdict = towards_worker(network, neighbours, packet.bytes_mut(), parsed);
            }
            Kind::Reply => {
                *verdict = towards_client(network, neighbours, packet.bytes_mut(), parsed);
            }
            Kind::Arp | Kind::Refused(_) => {}
        }
    }
}

/// Bytes that a task without IP options has at least: all that is rewritten lies in them.
const PLAIN: usize = udp::PAYLOAD + task::LEN;
/// Offset of its UDP header.
const PLAIN_AT: usize = udp::PAYLOAD - udp::LEN;

/// Turns a scheduled task towards its worker's server.
#[inline(always)]
pub fn towards_worker(
    network: &Network,
    neighbours: &Neighbours,
    frame: &mut [u8],
    parsed: &Packet,
) -> Verdict {
    let server = network.server(parsed.server);
    let at = usize::from(parsed.at);
    // With a fixed length and a fixed offset the compiler needs no check of bounds.
    match frame.first_chunk_mut::<PLAIN>() {
        Some(plain) if at == PLAIN_AT => readdress_task(plain, PLAIN_AT, server.ip, parsed),
        _ => readdress_task(frame, at, server.ip, parsed),
    }
    let port = usize::from(server.port);
    out(network, neighbours, port, server.slot, server.next_hop, frame)
}

#[inline(always)]
fn readdress_task(frame: &mut [u8], at: usize, server: u32, parsed: &Packet) {
    let was = ipv4::dst(&frame[ether::LEN..]);
    let segment = &mut frame[at..];
    let delta = task::choose(&mut segment[udp::LEN..], parsed.worker, u16::from(parsed.idle));
    udp::mend(segment, delta.double_word(was, server));
    ipv4::forward_to(&mut frame[ether::LEN..], server);
}

#[inline]
fn towards_client(
    network: &Network,
    neighbours: &Neighbours,
    frame: &mut [u8],
    parsed: &Packet,
) -> Verdict {
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
    let own = network.port(port).ip;
    let at = usize::from(parsed.at);
    udp::mend(&mut frame[at..], Delta::default().double_word(worker, own));
    ipv4::forward_from(&mut frame[ether::LEN..], own);
    out(network, neighbours, port, slot, next_hop, frame)
}

#[inline(always)]
fn out(
    network: &Network,
    neighbours: &Neighbours,
    port: usize,
    slot: Slot,
    next_hop: u32,
    frame: &mut [u8],
) -> Verdict {
    let src = network.port(port).mac;
    let port = port as u8;
    match neighbours.mac(slot) {
        Some(mac) => {
            ether::emit_addresses(frame, mac, src);
            Verdict::Forward { port }
        }
        None => {
            ether::emit_addresses(frame, Mac::default(), src);
            Verdict::Hold { port, slot, next_hop }
        }
    }
}
