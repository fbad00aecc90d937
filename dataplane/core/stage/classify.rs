//! Applies replies, messages of workers, signals of leaves, heartbeats of spines, ARP and neighbour discovery to the
//! state, and turns requests into answers. Picks no members for tasks.

use std::net::IpAddr;

use arrayvec::ArrayVec;

use super::fabric::{Age, set_idle};
use super::network::{Family, Network, PortAddress, Server, Side, Worker};
use super::parse::{Packet, PacketKind};
use super::{Stages, UnknownWorker, Verdict, rewrite};
use crate::io::Buf;
use crate::limits::WORKER_ID_MAX;
use crate::policy::{self, LANES, Reports};
use crate::reason::DropReason;
use crate::state::neighbour::LearnOutcome;
use crate::state::{Counter, Load, Neighbours, Report};
use crate::wire::address::Address;
use crate::wire::arp::{self, Operation};
use crate::wire::completion::{self, CLASS_LAST, COMPLETIONS_MAX, Completion};
use crate::wire::ether::{self, Mac};
use crate::wire::task::{self, Code, Extension, Header};
use crate::wire::{ipv4, ipv6, ndp, udp};

// The last class of a completion report stands for the same classes as the last lane.
const _: () = assert!(CLASS_LAST as usize == LANES - 1);

/// Applies all packets of a burst except tasks. Sets their verdicts, except those of accepted replies: the rewriting
/// stage sets these.
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
            PacketKind::Task | PacketKind::FirstOfSeveral | PacketKind::Continuation => {}
            PacketKind::Waiting | PacketKind::Overflowing => {}
            PacketKind::Reply => match reply(stages, port, packet.bytes(), parsed) {
                Ok(()) => replies += 1,
                Err(reason) => {
                    parsed.kind = PacketKind::Refused(reason);
                    *verdict = Verdict::Drop(reason);
                }
            },
            PacketKind::Registration | PacketKind::KeepAlive => {
                *verdict = presence(stages, port, packet.bytes_mut(), parsed)
                    .unwrap_or_else(Verdict::Drop);
            }
            PacketKind::QueueReport => {
                let result = queue_report(stages, port, packet.bytes(), parsed);
                *verdict = result.unwrap_or_else(Verdict::Drop);
            }
            PacketKind::Completions => {
                let result = completions(stages, port, packet.bytes(), parsed);
                *verdict = result.unwrap_or_else(Verdict::Drop);
            }
            PacketKind::Signal => {
                *verdict =
                    signal(stages, port, packet.bytes(), parsed).unwrap_or_else(Verdict::Drop);
            }
            PacketKind::SpineAlive => {
                *verdict =
                    spine_alive(stages, packet.bytes(), parsed).unwrap_or_else(Verdict::Drop);
            }
            PacketKind::Arp => {
                *verdict = arp(stages, port, packet.bytes_mut()).unwrap_or_else(Verdict::Drop);
            }
            PacketKind::NeighbourDiscovery => {
                *verdict = neighbour_discovery(stages, port, packet).unwrap_or_else(Verdict::Drop);
            }
            PacketKind::Refused(reason) => *verdict = Verdict::Drop(reason),
        }
    }
    if replies > 0 {
        stages.counters.add(Counter::Replies, replies);
        stages.freed = true;
    }
}

/// Checks a worker's reply and applies its load report.
#[inline]
fn reply(
    stages: &mut Stages,
    port: usize,
    frame: &[u8],
    parsed: &Packet,
) -> Result<(), DropReason> {
    let answer = Answer::read(parsed.payload(frame))?;
    let worker = sender(&stages.network, frame, parsed, &answer)?;
    is_from_server(&stages.network, &stages.neighbours, port, frame, &worker)?;
    verify((&stages.network, port), &worker, frame, parsed, &[])?;
    let report = Report::new(worker.member, Load::tasks(answer.queue), answer.service_ns)
        .with_class(answer.class);
    apply_reports(stages, usize::from(worker.pool), &mut [report]);
    Ok(())
}

/// Checks the authentication tag of a packet in a worker's name. Pools without a key require none, and refuse packets
/// that have one. The same holds for the port to workers inside this process. `entries` are those of a completion
/// report, and empty in other messages.
///
/// # Errors
/// The reason for the refusal.
#[inline]
fn verify(
    (network, port): (&Network, usize),
    worker: &Worker,
    frame: &[u8],
    parsed: &Packet,
    entries: &[u8],
) -> Result<(), DropReason> {
    let payload_at = usize::from(parsed.udp_at) + udp::LEN;
    let authenticated = frame[payload_at] & task::AUTHENTICATION_BIT != 0;
    match network.authenticator(port, usize::from(worker.pool)) {
        None if authenticated => Err(DropReason::TaskReservedBit),
        None => Ok(()),
        Some(_) if !authenticated => Err(DropReason::AuthMissing),
        Some(authenticator) => {
            authenticator.admit_frame(worker.member, frame, payload_at, parsed.is_v6, entries)
        }
    }
}

/// Header values of a worker's reply or message.
#[derive(Clone, Copy, Debug)]
struct Answer {
    /// Worker id.
    worker: u16,
    /// Pool id.
    pool: u16,
    /// Number of tasks at the worker. Meaningless in a completion report, whose header has the number of entries there.
    queue: u16,
    /// Service time of the answered task; 0 if unknown.
    service_ns: u32,
    /// Class of the answered task; 0 if unknown.
    class: u16,
}

impl Answer {
    /// Reads the values from the task header in a UDP payload.
    ///
    /// # Errors
    /// If the payload has no valid header.
    #[inline(always)]
    fn read(payload: &[u8]) -> Result<Self, DropReason> {
        let header = Header::parse(payload)?;
        let extension = match header.extended {
            true => Extension::parse(payload),
            false => Extension::default(),
        };
        Ok(Self {
            worker: header.src,
            pool: header.pool,
            queue: if header.code == Code::TaskDoneIdle { 0 } else { header.qlen },
            service_ns: extension.service_ns,
            class: extension.class,
        })
    }
}

/// Applies the load reports of answered tasks of one pool (by index), in order. Counts reports of workers without
/// outstanding tasks as surplus.
#[inline]
pub(super) fn apply_reports(stages: &mut Stages, pool: usize, reports: &mut [Report]) {
    // Replaces loads that contradict the number of tasks sent.
    stages.liveness.bound(pool, &stages.dispatchers[pool], reports);
    let Stages { dispatchers, fabric, counters, burst_ns, .. } = stages;
    let dispatcher = &mut dispatchers[pool];
    dispatcher.note_burst(*burst_ns);
    let surplus = match fabric {
        None => dispatcher.reply_run(reports),
        // Signals to spines derive from the sum of the workers' loads.
        Some(fabric) => reports.iter().fold(0, |surplus, report| {
            let is_surplus = !dispatcher.reply(report);
            fabric.note_reply(pool, dispatcher, report.member);
            surplus + usize::from(is_surplus)
        }),
    };
    if surplus > 0 {
        counters.add(Counter::SurplusReplies, surplus as u64);
    }
}

/// Checks that a server's packet comes from the server's MAC address, on a port with clients and workers. Any
/// host there can forge the server's IP address. Does not check packets on other ports.
///
/// # Errors
/// If the packet comes from another MAC address or port, or the server's MAC address is not known.
#[inline]
pub(super) fn is_from_server(
    network: &Network,
    neighbours: &Neighbours,
    port: usize,
    frame: &[u8],
    worker: &Worker,
) -> Result<(), DropReason> {
    if network.port(port).side != Side::Both {
        return Ok(());
    }
    match is_sent_by(network.server(worker.server), neighbours, port, frame) {
        true => Ok(()),
        false => Err(DropReason::SpoofedReply),
    }
}

/// Returns true if this port leads to the server, and the frame comes from the server's MAC address. Returns
/// false for an unknown MAC address.
#[inline(always)]
pub(super) fn is_sent_by(
    server: &Server,
    neighbours: &Neighbours,
    port: usize,
    frame: &[u8],
) -> bool {
    let mac = neighbours.mac(server.slot);
    usize::from(server.port) == port && mac.is_some_and(|mac| ether::is_from(frame, mac))
}

/// Handles a worker's registration or keep-alive and its load. Turns a registration into its acknowledgement, signed if
/// the pool has a key. Queues an unknown sender for the controller.
#[cold]
fn presence(
    stages: &mut Stages,
    port: usize,
    frame: &mut [u8],
    parsed: &Packet,
) -> Result<Verdict, DropReason> {
    let answer = Answer::read(parsed.payload(frame))?;
    let worker = sender(&stages.network, frame, parsed, &answer).inspect_err(|reason| {
        if *reason == DropReason::UnknownWorker {
            note_unknown_worker(stages, source(frame, parsed), &answer);
        }
    })?;
    is_from_server(&stages.network, &stages.neighbours, port, frame, &worker)?;
    if !stages.network.server(worker.server).registers {
        return Err(DropReason::RegistrationOff);
    }
    verify((&stages.network, port), &worker, frame, parsed, &[])?;
    note_alive(stages, &worker, Load::tasks(answer.queue), answer.service_ns);
    if parsed.kind == PacketKind::KeepAlive {
        stages.counters.add(Counter::KeepAlives, 1);
        return Ok(Verdict::Consumed);
    }
    stages.counters.add(Counter::Registrations, 1);
    let header = Header::parse(parsed.payload(frame))?;
    let timeout_ms = stages.liveness.timeout_ms();
    rewrite::answer(
        frame,
        usize::from(parsed.udp_at),
        &header.acknowledged_by(stages.network.node, timeout_ms),
    );
    if let Some(authenticator) = stages.network.authenticator(port, usize::from(worker.pool)) {
        authenticator.sign_answer(frame, usize::from(parsed.udp_at));
    }
    Ok(Verdict::Answer)
}

/// Records that a worker is alive, and its load. Registers the worker if its server's workers register.
pub(super) fn note_alive(stages: &mut Stages, worker: &Worker, load: Load, service_ns: u32) {
    let (pool, member) = (usize::from(worker.pool), worker.member);
    let dispatcher = &mut stages.dispatchers[pool];
    if stages.network.server(worker.server).registers {
        stages.liveness.note_registered(pool, member, dispatcher, &stages.counters);
    }
    let mut report = [Report::new(member, load, service_ns)];
    stages.liveness.bound(pool, dispatcher, &mut report);
    dispatcher.note_alive(&report[0]);
    stages.freed = true;
}

/// Handles a worker's queue report or probe answer. Ignores reports older than an accepted one, and answers for which
/// no task waits. Refuses both in a pool with queue lengths in replies. Refuses answers under a policy without probes.
#[cold]
fn queue_report(
    stages: &mut Stages,
    port: usize,
    frame: &[u8],
    parsed: &Packet,
) -> Result<Verdict, DropReason> {
    let answer = Answer::read(parsed.payload(frame))?;
    let worker = sender(&stages.network, frame, parsed, &answer)?;
    is_from_server(&stages.network, &stages.neighbours, port, frame, &worker)?;
    let (pool, member) = (usize::from(worker.pool), worker.member);
    if stages.dispatchers[pool].reports() == Reports::Replies {
        return Err(DropReason::QueueReportOff);
    }
    let Header { code, seq: number, .. } = Header::parse(parsed.payload(frame))?;
    let is_probe_answer = code == Code::ProbeAnswer;
    if is_probe_answer && !stages.dispatchers[pool].sends_probes() {
        return Err(DropReason::QueueReportOff);
    }
    verify((&stages.network, port), &worker, frame, parsed, &[])?;
    if is_probe_answer {
        let answer = stages.dispatchers[pool].answer(member, number, answer.queue.into());
        let is_late = answer == policy::Answer::Late;
        let counter = if is_late { Counter::ProbeAnswersLate } else { Counter::ProbeAnswers };
        stages.counters.add(counter, 1);
        stages.freed |= answer == policy::Answer::Ready;
        return Ok(Verdict::Consumed);
    }
    let now_ns = stages.now_ns();
    let numbers = stages.report_numbers.get_mut(pool).and_then(Option::as_mut);
    if numbers.is_none_or(|numbers| numbers.age_of(member, number, now_ns) == Age::Old) {
        stages.counters.add(Counter::QueueReportsOld, 1);
        return Ok(Verdict::Consumed);
    }
    stages.counters.add(Counter::QueueReports, 1);
    stages.dispatchers[pool].refresh(&Report::new(member, Load::tasks(answer.queue), 0));
    stages.freed = true;
    Ok(Verdict::Consumed)
}

/// Applies a server's completion report: each entry like the load report of a reply. Servers with direct return send
/// it, because their replies bypass the leaf. Ignores and counts entries of workers that the server does not have in
/// that pool, for example removed ones. The first worker, named in the header, determines the pool and the server.
#[inline]
pub(super) fn completions(
    stages: &mut Stages,
    port: usize,
    frame: &[u8],
    parsed: &Packet,
) -> Result<Verdict, DropReason> {
    let payload = parsed.datagram(frame);
    let header = Header::parse(payload)?;
    let entries = completion::entries(&header, payload)?;
    let first = sender(&stages.network, frame, parsed, &Answer::read(payload)?)?;
    is_from_server(&stages.network, &stages.neighbours, port, frame, &first)?;
    verify((&stages.network, port), &first, frame, parsed, entries)?;
    let mut reports = ArrayVec::<_, COMPLETIONS_MAX>::new();
    for Completion { worker, class, left, service_ns } in completion::parse_entries(entries) {
        let known = stages.network.worker(worker);
        let known = known.filter(|known| (known.pool, known.server) == (first.pool, first.server));
        let report = |member| Report::new(member, Load::tasks(left), service_ns).with_class(class);
        reports.extend(known.map(|known| report(known.member)));
    }
    let (all, known) = (u64::from(header.qlen), reports.len() as u64);
    stages.counters.add(Counter::CompletionReports, 1);
    stages.counters.add(Counter::Completions, known);
    stages.counters.add(Counter::CompletionsUnknown, all - known);
    apply_reports(stages, usize::from(first.pool), &mut reports);
    stages.freed = true;
    Ok(Verdict::Consumed)
}

/// Queues an unknown worker that registers or sends a keep-alive, if the queue is set and has room. A control thread
/// reads the queue and reports the worker to the controller. Skips ids that no worker can have.
fn note_unknown_worker(stages: &Stages, server: IpAddr, answer: &Answer) {
    if let Some(queue) = &stages.unknown_workers
        && answer.worker <= WORKER_ID_MAX
    {
        let Answer { worker, pool, .. } = *answer;
        let _ = queue.push(UnknownWorker { server, worker, pool });
    }
}

/// Returns the worker that sent a reply or message: its id and pool are in the header, and the source address must be
/// its server's.
///
/// # Errors
/// The reason for the refusal.
#[inline]
fn sender(
    network: &Network,
    frame: &[u8],
    parsed: &Packet,
    answer: &Answer,
) -> Result<Worker, DropReason> {
    let worker = match parsed.is_v6 {
        false => worker_at::<u32>(network, frame, answer.worker),
        true => worker_at::<u128>(network, frame, answer.worker),
    }?;
    if network.pool_id(usize::from(worker.pool)) != Some(answer.pool) {
        return Err(DropReason::PoolMismatch);
    }
    Ok(worker)
}

/// Returns the worker with this id, if the frame comes from the address of its server.
#[inline]
fn worker_at<A: Family>(network: &Network, frame: &[u8], id: u16) -> Result<Worker, DropReason> {
    let tables = network.family::<A>();
    match tables.worker(id) {
        Some(entry) if tables.is_at(&entry, A::src(&frame[ether::LEN..])) => Ok(entry.worker),
        None if network.worker(id).is_none() => Err(DropReason::UnknownWorker),
        _ => Err(DropReason::SpoofedReply),
    }
}

/// Returns the source address of a frame's packet.
fn source(frame: &[u8], parsed: &Packet) -> IpAddr {
    let packet = &frame[ether::LEN..];
    match parsed.is_v6 {
        false => ipv4::src(packet).to_ip(),
        true => ipv6::src(packet).to_ip(),
    }
}

/// Handles a leaf's signal about a pool, at a spine: the leaf's load, its number of workers, and changes of its idle
/// state. Ignores signals older than an accepted one.
#[cold]
fn signal(
    stages: &mut Stages,
    port: usize,
    frame: &[u8],
    parsed: &Packet,
) -> Result<Verdict, DropReason> {
    let payload = parsed.payload(frame);
    let header = Header::parse(payload)?;
    if !header.extended {
        return Err(DropReason::SignalShort);
    }
    let network = &*stages.network;
    let leaf = network.leaf(header.src, network.answering_pool(header.pool))?;
    if !network.is_at(&leaf, source(frame, parsed)) {
        return Err(DropReason::SpoofedSignal);
    }
    is_from_server(network, &stages.neighbours, port, frame, &leaf)
        .map_err(|_| DropReason::SpoofedSignal)?;
    let (pool, member) = (usize::from(leaf.pool), leaf.member);
    let Some(fabric) = &mut stages.fabric else { return Err(DropReason::TaskRole) };
    let age = fabric.age_of(pool, member, header.seq);
    if age == Age::Old {
        stages.counters.add(Counter::SignalsOld, 1);
        return Ok(Verdict::Consumed);
    }
    stages.counters.add(Counter::Signals, 1);
    let Extension { service_ns, class, .. } = Extension::parse(payload);
    let dispatcher = &mut stages.dispatchers[pool];
    dispatcher.view().note_signal(member, class);
    // A signal carries the leaf's average load in `service_ns` (16.16 fixed point) and its number of workers in
    // `class`. Their product, rounded to whole tasks and limited to a sane count, is the number of tasks there.
    let tasks = (u64::from(service_ns) * u64::from(class) + (1 << 15)) >> 16;
    dispatcher.view_mut().set_outstanding(member, tasks.min(1 << 30) as u32);
    // The estimate of a starting spine may be too low: the leaf still has earlier tasks. A higher estimate
    // stays, because it counts tasks in flight to the leaf. A leaf that is back after a silence may have restarted, so
    // its load replaces any estimate.
    let is_more = || u64::from(service_ns) > dispatcher.view().estimated_load(member);
    if header.code == Code::LoadUpdate || age == Age::Back || age == Age::First && is_more() {
        dispatcher.refresh(&Report::new(member, Load(service_ns), 0));
    }
    match header.code {
        Code::IdleAdd | Code::IdleRemove => {
            let is_idle = header.code == Code::IdleAdd;
            set_idle(dispatcher, member, is_idle);
            fabric.publish_idle(pool, member, is_idle);
        }
        _ => {}
    }
    Ok(Verdict::Consumed)
}

/// Handles a spine's heartbeat, at a leaf. Without heartbeats, the leaf reports the spine to the controller as silent.
#[cold]
fn spine_alive(stages: &mut Stages, frame: &[u8], parsed: &Packet) -> Result<Verdict, DropReason> {
    let header = Header::parse(parsed.payload(frame))?;
    let spine = stages.network.spine_at(source(frame, parsed), header.src);
    let spine = spine.ok_or(DropReason::SpoofedSignal)?;
    if let Some(fabric) = &stages.fabric {
        fabric.note_spine(spine);
    }
    stages.counters.add(Counter::Signals, 1);
    Ok(Verdict::Consumed)
}

/// Answers an ARP request for an address of the node or a pool, and learns the sender's MAC address (RFC 826). Learns
/// only hosts with an entry in the neighbour table: the node answers other senders without recording them.
#[cold]
fn arp(stages: &Stages, port: usize, frame: &mut [u8]) -> Result<Verdict, DropReason> {
    let address = stages.network.port(port);
    let packet = arp::Packet::parse(frame)?;
    let is_near = address.network().is_some_and(|network| network.reaches(packet.sender));
    let outcome =
        if is_near { learn(stages, port, packet.sender, packet.sender_mac) } else { None };
    let is_own =
        packet.target == address.ip || is_service_address(stages, address, packet.target.to_ip());
    if is_own && packet.operation == Operation::Request {
        packet.answer(address.mac).emit(frame, packet.sender_mac);
        return Ok(Verdict::Answer);
    }
    unanswered(outcome, packet.is_announcement(), DropReason::ArpOther)
}

/// Returns the verdict on a message about a neighbour that needs no answer. `other` is the reason to drop one of a host
/// without an entry in the neighbour table.
fn unanswered(
    outcome: Option<LearnOutcome>,
    is_announcement: bool,
    other: DropReason,
) -> Result<Verdict, DropReason> {
    match outcome {
        Some(LearnOutcome::Conflict) => Err(DropReason::ArpConflict),
        Some(LearnOutcome::Learnt | LearnOutcome::Confirmed) => Ok(Verdict::Consumed),
        // Nodes announce themselves when a link comes up, also to hosts that do not need them.
        None if is_announcement => Ok(Verdict::Consumed),
        None => Err(other),
    }
}

/// Returns true if hosts behind this port may resolve the address: the port has clients, and the address is a
/// service address of the node.
fn is_service_address(stages: &Stages, port: &PortAddress, address: IpAddr) -> bool {
    port.side.has_clients() && stages.network.is_service(address)
}

/// Learns a host on a port's network, if it has an entry in the neighbour table. Returns `None` if it has none. Also
/// for the node's own IP address, and for a MAC address of no other host.
fn learn<A: Family>(stages: &Stages, port: usize, host: A, mac: Mac) -> Option<LearnOutcome> {
    let (network, neighbours) = (&stages.network, &stages.neighbours);
    let is_credible = !network.family::<A>().is_own(host) && network.may_be_host_mac(mac);
    let slot = neighbours.find(port, host).filter(|_| is_credible)?;
    Some(neighbours.learn(slot, mac, stages.now_ms()))
}

/// Answers a neighbour solicitation, and learns from any neighbour message (RFC 4861), like [`arp()`].
#[cold]
fn neighbour_discovery<B: Buf>(
    stages: &Stages,
    port: usize,
    packet: &mut B,
) -> Result<Verdict, DropReason> {
    let address = stages.network.port(port);
    let own_address = address.v6.ok_or(DropReason::EtherType)?;
    let frame = packet.bytes();
    let (message, from) = (ndp::Packet::parse(frame)?, ether::src(frame));
    let outcome = learn_host(stages, port, &message, from);
    let is_own = message.target == own_address.ip
        || is_service_address(stages, address, message.target.to_ip());
    if is_own && message.operation == ndp::Operation::Solicitation {
        let (answer, to) = message.answer(address.mac, from);
        // A solicitation may be shorter than the answer. Resizing fails only in a buffer too small for any answer.
        if !packet.resize(ndp::FRAME_LEN) {
            return Err(DropReason::NdMalformed);
        }
        answer.emit(packet.bytes_mut(), to, address.side.has_workers());
        return Ok(Verdict::Answer);
    }
    unanswered(outcome, message.is_announcement(), DropReason::NdOther)
}

/// Learns the sender of a solicitation or the host of an advertisement, if it has an entry in the neighbour
/// table.
fn learn_host(
    stages: &Stages,
    port: usize,
    message: &ndp::Packet,
    from: Mac,
) -> Option<LearnOutcome> {
    let (host, mac) = match message.operation {
        // A sender that omits the option expects to be known already.
        ndp::Operation::Solicitation => (message.src, message.mac?),
        ndp::Operation::Advertisement => (message.target, message.mac.unwrap_or(from)),
    };
    learn(stages, port, host, mac)
}
