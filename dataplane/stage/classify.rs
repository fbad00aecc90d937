//! Replies, what servers say of their workers, and ARP into the state; chooses nothing.

use super::network::{Network, Worker};
use super::parse::{Kind, Packet};
use super::{Stages, Verdict, rewrite};
use crate::io::Buf;
use crate::reason::DropReason;
use crate::state::{Counter, Load, Neighbours, Report};
use crate::wire::arp::{self, Operation};
use crate::wire::task::{Code, Extension, Header};
use crate::wire::{ether, ipv4};

/// Takes what replies, registrations and ARP packets say. Refused and used-up packets get their verdict here.
#[inline]
pub fn burst<B: Buf>(
    stages: &mut Stages,
    port: usize,
    packets: &mut [B],
    parsed: &mut [Packet],
    verdicts: &mut [Verdict],
) {
    let mut replies = 0;
    for ((packet, parsed), verdict) in packets.iter_mut().zip(parsed).zip(verdicts) {
        match parsed.kind {
            Kind::Task | Kind::FirstOfSeveral | Kind::Continuation => {}
            Kind::Waiting | Kind::Overflowing => {}
            Kind::Reply => match reply(stages, packet.bytes(), parsed) {
                Ok(()) => replies += 1,
                Err(reason) => {
                    parsed.kind = Kind::Refused(reason);
                    *verdict = Verdict::Drop(reason);
                }
            },
            Kind::Registration | Kind::KeepAlive => {
                *verdict =
                    presence(stages, packet.bytes_mut(), parsed).unwrap_or_else(Verdict::Drop);
            }
            Kind::Arp => {
                *verdict = arp(&stages.network, &stages.neighbours, port, packet.bytes_mut())
                    .unwrap_or_else(Verdict::Drop);
            }
            Kind::Refused(reason) => *verdict = Verdict::Drop(reason),
        }
    }
    if replies > 0 {
        stages.counters.add(Counter::Replies, replies);
        stages.freed = true;
    }
}

#[inline]
fn reply(stages: &mut Stages, frame: &[u8], parsed: &Packet) -> Result<(), DropReason> {
    let answer = Answer::read(ipv4::src(&frame[ether::LEN..]), parsed.payload(frame))?;
    take(stages, &answer)
}

/// What a reply says, and where it comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    src: u32,
    worker: u16,
    pool: u16,
    queue: u16,
    service_ns: u32,
}

impl Answer {
    /// Reads the reply in a UDP payload that came from `src`.
    ///
    /// # Errors
    /// When it is none.
    #[inline(always)]
    pub(super) fn read(src: u32, payload: &[u8]) -> Result<Self, DropReason> {
        let header = Header::parse(payload)?;
        Ok(Self {
            src,
            worker: header.src,
            pool: header.pool,
            queue: if header.code == Code::TaskDoneIdle { 0 } else { header.qlen },
            service_ns: if header.extended { Extension::parse(payload).service_ns } else { 0 },
        })
    }
}

/// Takes what a reply reports, once it is certain that its worker sent it.
#[inline]
fn take(stages: &mut Stages, answer: &Answer) -> Result<(), DropReason> {
    let worker = sender(&stages.network, answer)?;
    let (load, service_ns) = (Load::tasks(answer.queue), answer.service_ns);
    let report = Report { member: worker.member, load, service_ns };
    if !stages.dispatchers[usize::from(worker.pool)].reply(&report) {
        stages.counters.add(Counter::SurplusReplies, 1);
    }
    Ok(())
}

/// Takes a server's word that a worker is there and what it has to do, and answers if it is the first.
#[cold]
fn presence(stages: &mut Stages, frame: &mut [u8], parsed: &Packet) -> Result<Verdict, DropReason> {
    let answer = Answer::read(ipv4::src(&frame[ether::LEN..]), parsed.payload(frame))?;
    let worker = sender(&stages.network, &answer)?;
    let (pool, member) = (usize::from(worker.pool), worker.member);
    let dispatcher = &mut stages.dispatchers[pool];
    stages.supervision.welcome(pool, member, dispatcher, &stages.counters);
    let (load, service_ns) = (Load::tasks(answer.queue), answer.service_ns);
    dispatcher.refresh(&Report { member, load, service_ns });
    stages.freed = true;
    if parsed.kind == Kind::KeepAlive {
        stages.counters.add(Counter::KeepAlives, 1);
        return Ok(Verdict::Consumed);
    }
    stages.counters.add(Counter::Registrations, 1);
    let header = Header::parse(parsed.payload(frame))?;
    let timeout_ms = stages.supervision.timeout_ms();
    rewrite::answer(frame, parsed, &header.acknowledged_by(stages.network.node, timeout_ms));
    Ok(Verdict::Answer)
}

/// The worker that a reply comes from.
///
/// # Errors
/// The reason for which it is not believed.
#[inline(always)]
pub(super) fn sender(network: &Network, answer: &Answer) -> Result<Worker, DropReason> {
    let worker = network.worker(answer.worker).ok_or(DropReason::UnknownWorker)?;
    if worker.ip != answer.src {
        return Err(DropReason::SpoofedReply);
    }
    if network.pool_id(usize::from(worker.pool)) != answer.pool {
        return Err(DropReason::PoolMismatch);
    }
    Ok(worker)
}

/// Learns from an ARP packet and answers it, RFC 826: whoever speaks to us is noted, and whoever is
/// noted already is kept up to date.
#[cold]
fn arp(
    network: &Network,
    neighbours: &Neighbours,
    port: usize,
    frame: &mut [u8],
) -> Result<Verdict, DropReason> {
    let address = network.port(port);
    let packet = arp::Packet::parse(frame)?;
    let for_us = packet.target == address.ip;
    let credible = address.reaches(packet.sender) && !network.is_own(packet.sender);
    let known = if credible { neighbours.find(port, packet.sender) } else { None };
    let slot = if credible && for_us {
        known.or_else(|| neighbours.insert(port, packet.sender))
    } else {
        known
    };
    if let Some(slot) = slot {
        neighbours.learn(slot, packet.sender_mac);
    }
    if for_us && packet.operation == Operation::Request {
        packet.answer(address.mac).emit(frame, packet.sender_mac);
        return Ok(Verdict::Answer);
    }
    if slot.is_some() { Ok(Verdict::Consumed) } else { Err(DropReason::ArpOther) }
}
