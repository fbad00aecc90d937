//! Fast path: processes a burst's leading run of packets of one pool that match a template. Each step is a loop of its
//! own over the run.
//!
//! The first packet that the [`Template`] does not recognise ends the run. So do a task from an unreachable source and
//! a reply from a wrong sender. The packets from there on go to the stages (slow path), which know every drop reason. A
//! test checks that the fast path and the stages give the same results.
//!
//! A [`LeadingRun`] has the number of packets in the run and a bit for each reply among them. [`Fields`] has the values
//! read from these packets, and a [`BurstMask`] is a set of indices in the burst.
//!
//! The *vector* code recognises packets with AVX-512 or AVX2. The *scalar* code does the same without vectors, on
//! other machines and as the reference in tests. It also recognises a packet that is longer than its datagram.
//!
//! A single loop over all steps was tried first. It spilled most of its values to the stack.
//! docs/explanation/performance.md has the gain of each part.

mod run;
mod template;
#[cfg(test)]
pub(super) mod tests;
#[cfg(test)]
mod v6_tests;
#[cfg(target_arch = "x86_64")]
mod vector;

use arrayvec::ArrayVec;

use run::{BurstMask, Fields, LeadingRun};
use template::{CodeByte, CommonPackets, IP, Layout, Template};
#[cfg(target_arch = "x86_64")]
use vector::Vectors;

use super::auth::{self, ReplyAuthenticator};
use super::network::{Family, Network, Target};
use super::rewrite::{self, ReplyRewriter};
use super::spec::Side;
use super::unreachable::{Sources, UnreachableSource};
use super::{Stages, Verdict, Verdicts, classify};
use crate::io::Buf;
use crate::limits::BURST;
use crate::policy::{Pick, Task};
use crate::reason::DropReason;
use crate::state::neighbour::Host;
use crate::state::{Counter, Load, Neighbours, Report};
use crate::wire::address::Address;
use crate::wire::auth::SignedPacket;
use crate::wire::checksum::FoldedDelta;
use crate::wire::task::{self, Extension};
use crate::wire::{ipv4, ipv6};

/// Tables for recognising the packets of one address family (IPv4 or IPv6).
#[derive(Debug)]
pub struct Tables<A: Layout> {
    /// Number of pools.
    pools: usize,
    /// One per port and pool; empty if no port has this family.
    templates: Box<[Template<A>]>,
    /// Checksum changes from the removal of the tasks' destination address, per port and pool.
    removed: Box<[FoldedDelta]>,
    /// Source addresses of clients, and unreachable source addresses, by port.
    sources: Box<[Sources<A>]>,
}

impl<A: FastPath> Tables<A> {
    /// Builds the tables of a network.
    pub fn new(network: &Network) -> Self {
        let tables = network.family::<A>();
        let (ports, pools) = (network.ports().len(), network.pools());
        let sources: Box<[_]> = (0..ports).map(|port| tables.sources(port)).collect();
        let template = |port: usize, pool: usize| {
            // A spine's service address exists at each port, but its pool has one family. A port of the opposite family
            // takes no task for it.
            let is_served = network.takes::<A>(pool) && tables.port(port).is_some();
            let Some(task_address) = tables.task_address(port, pool).filter(|_| is_served) else {
                return Template::NOTHING;
            };
            let is_authenticated = network.authenticator(port, pool).is_some();
            let common = CommonPackets {
                pool: network.pool_id(pool).unwrap_or_default(),
                udp_port: network.udp_port,
                task_address,
                clients: sources[port].clients,
                least_ttl: network.least_ttl(pool),
                replies: (!network.is_spine()).then_some(is_authenticated),
            };
            Template::new(network.port(port), &common)
        };
        let is_used = (0..ports).any(|port| tables.port(port).is_some());
        let ports = (0..ports).filter(|_| is_used);
        let places = ports.flat_map(|port| (0..pools).map(move |pool| (port, pool)));
        let templates = places.clone().map(|(port, pool)| template(port, pool)).collect();
        let destination = |(port, pool)| tables.task_address(port, pool).unwrap_or_default();
        let removed = places.map(|place| rewrite::removed(destination(place))).collect();
        Self { pools, templates, removed, sources }
    }

    /// Returns the template of a port and a pool; `None` if no port has this family.
    #[inline(always)]
    fn template(&self, port: usize, pool: usize) -> Option<&Template<A>> {
        self.templates.get(port * self.pools + pool)
    }
}

/// Parts of the fast path that differ between the address families.
pub trait FastPath: Family + Layout {
    /// Returns the tables of this family.
    fn tables(stages: &Stages) -> &Tables<Self>;

    /// Returns the run of matching packets at the front; a task from an unreachable source ends it. No reply to such a
    /// task would arrive, so under a bounded policy it would occupy its worker's credit. Uses vector instructions if
    /// the machine has them.
    fn recognise<B: Buf>(
        network: &Network,
        template: &Template<Self>,
        sources: &Sources<Self>,
        packets: &[B],
        fields: &mut Fields,
    ) -> LeadingRun;

    /// Verifies the authentication tags and sequence numbers of replies. Removes the reports of packets that fail, and
    /// their bits in `accepted`. Returns the index of each such packet in the burst, with the reason.
    fn check_proofs<B: Buf>(
        authenticator: &ReplyAuthenticator,
        packets: &[B],
        accepted: &mut BurstMask,
        reports: &mut ArrayVec<Report, BURST>,
    ) -> ArrayVec<(usize, DropReason), BURST>;
}

impl FastPath for u32 {
    #[inline(always)]
    fn tables(stages: &Stages) -> &Tables<Self> {
        &stages.fast.0
    }

    /// The vector code returns `None` after a wrong checksum; the scalar code then finds the packet.
    /// The template and the list of unreachable sources complement each other. Without a router to further clients, the
    /// template admits only sources in the port's network, and the list has only ranges that overlap it.
    #[inline(always)]
    fn recognise<B: Buf>(
        _: &Network,
        template: &Template<Self>,
        sources: &Sources<Self>,
        packets: &[B],
        fields: &mut Fields,
    ) -> LeadingRun {
        #[cfg(target_arch = "x86_64")]
        let run = Vectors::best()
            .and_then(|vectors| vector::recognise(vectors, template, packets, fields));
        #[cfg(not(target_arch = "x86_64"))]
        let run = None;
        let mut run = run.unwrap_or_else(|| recognise_scalar(template, packets, fields));
        let unreachable = match_unreachable(&fields.sources, &sources.unreachable);
        run.end_before(BurstMask(unreachable & !run.replies));
        run
    }

    #[inline(never)]
    fn check_proofs<B: Buf>(
        authenticator: &ReplyAuthenticator,
        packets: &[B],
        accepted: &mut BurstMask,
        reports: &mut ArrayVec<Report, BURST>,
    ) -> ArrayVec<(usize, DropReason), BURST> {
        let read = |frame: &[u8]| auth::signed_packet(frame, Self::PAYLOAD);
        check_signed((authenticator, read), packets, accepted, reports)
    }
}

/// Returns the run of matching packets at the front.
fn recognise_scalar<B: Buf>(
    template: &Template<u32>,
    packets: &[B],
    fields: &mut Fields,
) -> LeadingRun {
    LeadingRun::of::<u32, B>(packets, fields, |index, packet, frame, fields| {
        let code = template.recognise(frame, packet.checksums_verified())?;
        fields.sources[index % BURST] = ipv4::src(&frame[IP..]).to_be();
        Some(code)
    })
}

/// Returns one bit for each address (in network byte order), set if no reply reaches it. Uses vector instructions if
/// the machine has them.
#[inline(always)]
fn match_unreachable(addresses: &[u32; BURST], unreachable: &[UnreachableSource<u32>]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(vectors) = Vectors::best() {
        return vector::match_unreachable(vectors, addresses, unreachable);
    }
    match_unreachable_scalar(addresses, unreachable)
}

/// Same as [`match_unreachable`], without vectors.
fn match_unreachable_scalar(
    addresses: &[u32; BURST],
    unreachable: &[UnreachableSource<u32>],
) -> u32 {
    let is_unreachable = |&address: &u32| unreachable.iter().any(|range| range.contains(address));
    let addresses = addresses.iter().enumerate();
    let bits = addresses.map(|(index, address)| u32::from(is_unreachable(address)) << index);
    bits.fold(0, |all, bit| all | bit)
}

/// Maximum number of unreachable IPv6 sources for the vector code, which searches the list for each packet.
const UNREACHABLE_MAX: usize = 16;

impl FastPath for u128 {
    #[inline(always)]
    fn tables(stages: &Stages) -> &Tables<Self> {
        &stages.fast.1
    }

    #[inline(always)]
    fn recognise<B: Buf>(
        network: &Network,
        template: &Template<Self>,
        sources: &Sources<Self>,
        packets: &[B],
        fields: &mut Fields,
    ) -> LeadingRun {
        #[cfg(target_arch = "x86_64")]
        if sources.unreachable.len() <= UNREACHABLE_MAX
            && let Some(vectors) = Vectors::best()
            && let Some(run) =
                vector::recognise_v6(vectors, template, &sources.unreachable, packets, fields)
        {
            return run;
        }
        recognise_scalar_v6(network, template, packets, fields)
    }

    #[inline(never)]
    fn check_proofs<B: Buf>(
        authenticator: &ReplyAuthenticator,
        packets: &[B],
        accepted: &mut BurstMask,
        reports: &mut ArrayVec<Report, BURST>,
    ) -> ArrayVec<(usize, DropReason), BURST> {
        let read = |frame: &[u8]| auth::signed_packet_v6(frame, Self::PAYLOAD);
        check_signed((authenticator, read), packets, accepted, reports)
    }
}

/// Like [`recognise_scalar`], over IPv6. A task from an unreachable source does not match.
#[inline(never)]
fn recognise_scalar_v6<B: Buf>(
    network: &Network,
    template: &Template<u128>,
    packets: &[B],
    fields: &mut Fields,
) -> LeadingRun {
    let tables = network.family::<u128>();
    LeadingRun::of::<u128, B>(packets, fields, |_, packet, frame, _| {
        let code = template.recognise(frame, packet.udp_checksum_verified())?;
        let accepts = code.is_reply() || tables.is_client(ipv6::src(&frame[IP..]));
        accepts.then_some(code)
    })
}

/// Same as [`burst`] over IPv6. Not inlined, so that it costs IPv4 packets nothing.
#[inline(never)]
pub fn burst_v6<B: Buf>(
    stages: &mut Stages,
    port: usize,
    packets: &mut [B],
    verdicts: &mut (impl Verdicts + ?Sized),
) -> usize {
    burst::<u128, B>(stages, port, packets, verdicts)
}

/// Handles the matching packets at the front of a burst and writes their verdicts. Returns their number, which may be
/// 0.
#[inline]
pub fn burst<A: FastPath, B: Buf>(
    stages: &mut Stages,
    port: usize,
    packets: &mut [B],
    verdicts: &mut (impl Verdicts + ?Sized),
) -> usize {
    // The pool id of the first packet, bytes 1 and 2 of the task header, selects the template.
    let first = packets.first().and_then(|first| first.bytes().get(A::PAYLOAD + 1..A::PAYLOAD + 3));
    let Some(&[high, low]) = first else {
        return 0;
    };
    let Some(pool) = stages.network.pool(u16::from_be_bytes([high, low])) else {
        return 0;
    };
    // Tasks and replies of a pool that reports to a spine need the stages, which record them for its signals. So do
    // tasks that the node may return to their clients.
    if stages.is_linked(pool) || stages.may_refuse(pool, packets.len()) {
        return 0;
    }
    let tables = <A as FastPath>::tables(stages);
    let Some(template) = tables.template(port, pool) else {
        return 0;
    };
    let mut fields = Fields::new();
    let sources = &tables.sources[port];
    let mut run = A::recognise(&stages.network, template, sources, packets, &mut fields);
    if run.replies().len() > 0 {
        replies::<A, B>(stages, (port, pool), &mut run, packets, verdicts);
    }
    if run.tasks().len() > 0 {
        tasks::<A, B>(stages, (port, pool), run, &fields, packets, verdicts);
    }
    run.len as usize
}

/// Applies the load reports of the run's replies, and readdresses the replies to their clients. A reply from a wrong
/// sender, or to a client without a route, ends the run. Drops replies with a wrong tag or a repeated sequence number.
#[inline(always)]
fn replies<A: FastPath, B: Buf>(
    stages: &mut Stages,
    (port, pool): (usize, usize),
    run: &mut LeadingRun,
    packets: &mut [B],
    verdicts: &mut (impl Verdicts + ?Sized),
) {
    let network = &*stages.network;
    let mut reports: ArrayVec<Report, BURST> = ArrayVec::new();
    let mut hops: ArrayVec<Host<A>, BURST> = ArrayVec::new();
    let neighbours = &stages.neighbours;
    // On a port for both sides, a client could forge a reply. There `report` checks the sender's MAC address.
    let shared = (network.port(port).side == Side::Both).then_some((neighbours, port));
    let mut rewriter = ReplyRewriter::<A>::new(network, neighbours, stages.now_ms, pool);
    for index in run.replies() {
        let Some(packet) = packets.get(index) else {
            return;
        };
        let report = report::<A>(network, pool, shared, packet.bytes());
        let hop = |report| Some((report, rewriter.hop_to(A::dst(&packet.bytes()[IP..])).ok()?));
        let Some((report, hop)) = report.and_then(hop) else {
            run.len = index as u32; // this also takes the later replies out of the run
            break;
        };
        reports.push(report);
        hops.push(hop);
    }
    let mut accepted = run.replies();
    if let Some(authenticator) = network.authenticator(port, pool) {
        for (index, reason) in A::check_proofs(authenticator, packets, &mut accepted, &mut reports)
        {
            stages.counters.drop(reason, 1);
            verdicts.other(index, Verdict::Drop(reason));
        }
    }
    if reports.is_empty() {
        return; // the policy sees no reply, as in the stages
    }
    // Replaces loads that contradict the number of tasks sent, before `reply_run` counts the replies as answered and
    // passes the loads to the policy.
    stages.liveness.bound(pool, &stages.dispatchers[pool], &mut reports);
    let dispatcher = &mut stages.dispatchers[pool];
    dispatcher.note_burst(stages.burst_ns);
    let surplus = dispatcher.reply_run(&reports);
    if surplus > 0 {
        stages.counters.add(Counter::SurplusReplies, surplus as u64);
    }
    stages.counters.add(Counter::Replies, reports.len() as u64);
    stages.freed = true; // a worker may have room for a waiting task
    for (index, hop) in run.replies().zip(&hops) {
        let Some(packet) = packets.get_mut(index) else {
            return;
        };
        let frame = packet.bytes_mut();
        if frame.len() < A::HEAD {
            return;
        }
        if accepted.contains(index) {
            rewriter.send(hop, (&mut frame[..A::HEAD], A::UDP), verdicts, index);
        }
    }
}

/// Returns the load report of a reply; `None` unless one of the pool's workers sent it to a client. On a port `shared`
/// with clients, it must come from the MAC address of the worker's server.
#[inline(always)]
fn report<A: FastPath>(
    network: &Network,
    pool: usize,
    shared: Option<(&Neighbours, usize)>,
    frame: &[u8],
) -> Option<Report> {
    if frame.len() < A::HEAD {
        return None;
    }
    let head = &frame[..A::HEAD];
    let tables = network.family::<A>();
    let entry = tables.worker(task::src(&head[A::PAYLOAD..]))?;
    let worker = entry.worker;
    let accepted = tables.is_at(&entry, A::src(&head[IP..]))
        && usize::from(worker.pool) == pool
        && !tables.is_own(A::dst(&head[IP..]))
        && match shared {
            None => true,
            Some((neighbours, port)) => {
                classify::is_sent_by(network.server(worker.server), neighbours, port, head)
            }
        };
    let (service_ns, class) = match CodeByte::at(head[A::PAYLOAD]).is_extended() {
        true => {
            let Extension { service_ns, class, .. } = Extension::parse(&frame[A::PAYLOAD..]);
            (service_ns, class)
        }
        false => (0, 0),
    };
    let load = Load::tasks(task::reported_queue(&head[A::PAYLOAD..]));
    accepted.then_some(Report::new(worker.member, load, service_ns).with_class(class))
}

/// Implements [`FastPath::check_proofs`]. `read` reads the signed blocks of a frame.
#[inline(always)]
fn check_signed<B: Buf, const BLOCKS: usize>(
    (authenticator, read): (&ReplyAuthenticator, impl Fn(&[u8]) -> Option<SignedPacket<BLOCKS>>),
    packets: &[B],
    accepted: &mut BurstMask,
    reports: &mut ArrayVec<Report, BURST>,
) -> ArrayVec<(usize, DropReason), BURST> {
    // Each frame has signed blocks: the template requires room for a proof.
    let signed_packets = (*accepted).zip(&*reports).map_while(|(index, report)| {
        read(packets.get(index)?.bytes()).map(|signed| (report.member, signed))
    });
    let signed_packets: ArrayVec<_, BURST> = signed_packets.collect();
    let mut refused = authenticator.check(&signed_packets);
    // Refuses a report without signed blocks, and all reports behind it. The template makes this case impossible.
    refused
        .extend((signed_packets.len()..reports.len()).map(|index| (index, DropReason::TaskShort)));
    // Removes refused reports from the back, so that earlier indices stay valid.
    for (index, _) in refused.iter_mut().rev() {
        reports.remove(*index);
        // From the index among the reports to the index in the burst.
        let mut indices = *accepted; // a copy, because `nth` consumes it
        *index = indices.nth(*index).unwrap_or_default();
        accepted.0 &= !(1 << *index);
    }
    refused
}

/// Picks members for the tasks of the run, and readdresses the tasks to them. Tasks without a member wait, or are
/// dropped. If all members are full, a task may take the credit of the pool's oldest unfinished multi-packet task.
#[inline(always)]
fn tasks<A: FastPath, B: Buf>(
    stages: &mut Stages,
    (port, pool): (usize, usize),
    run: LeadingRun,
    fields: &Fields,
    packets: &mut [B],
    verdicts: &mut (impl Verdicts + ?Sized),
) {
    let indices = run.tasks();
    let mut picks: [Option<Pick>; BURST] = [None; BURST];
    let picks = &mut picks[..indices.len()];
    let Stages { dispatchers, affinity, .. } = stages;
    dispatchers[pool].offer_run(&fields.tasks[..indices.len()], picks, || affinity.reclaim(pool));
    let sent = send::<A, B>(stages, (port, pool), indices, picks, packets, verdicts);
    if sent < indices.len() as u64 {
        let tasks = indices.zip(&*picks).zip(fields.tasks.iter().copied());
        hold::<A, B>(stages, pool, tasks, packets, verdicts);
    }
}

/// Readdresses tasks from the pool's queue to their picked members.
#[inline(never)]
pub fn release<A: FastPath, B: Buf>(
    stages: &Stages,
    place: (usize, usize),
    packets: &mut [B],
    picks: &[Option<Pick>],
    verdicts: &mut (impl Verdicts + ?Sized),
) {
    let indices = BurstMask::first(packets.len() as u32);
    send::<A, B>(stages, place, indices, picks, packets, verdicts);
}

/// Readdresses tasks to their picked members. `picks` has an entry for each task, `indices` its index in the burst.
/// Returns the number of tasks with a pick.
#[inline(always)]
fn send<A: FastPath, B: Buf>(
    stages: &Stages,
    (port, pool): (usize, usize),
    indices: BurstMask,
    picks: &[Option<Pick>],
    packets: &mut [B],
    verdicts: &mut (impl Verdicts + ?Sized),
) -> u64 {
    let fast = <A as FastPath>::tables(stages);
    let rewriter = TaskRewriter::<A> {
        neighbours: &stages.neighbours,
        targets: stages.network.family::<A>().members(pool),
        removed: fast.removed[port * fast.pools + pool],
    };
    let mut full = full_tasks(stages, pool, picks);
    let mut sent = 0;
    // Faster loop for a run without replies. A task's index in the run is then its packet's index in the burst.
    if indices.is_prefix() {
        for (index, (packet, pick)) in packets.iter_mut().zip(picks).enumerate() {
            sent += rewriter.send(packet, *pick, full & 1 == 1, verdicts, index);
            full >>= 1;
        }
    } else {
        for (index, pick) in indices.zip(picks) {
            if let Some(packet) = packets.get_mut(index) {
                sent += rewriter.send(packet, *pick, full & 1 == 1, verdicts, index);
            }
            full >>= 1;
        }
    }
    stages.counters.add(Counter::Scheduled, sent);
    sent
}

/// Returns one bit for each pick, set if the pick's member is at the policy's bound ([`Stages::fullness`]). Compares
/// after the whole run: several tasks of one worker may get the mark, with the same effect.
#[inline(always)]
fn full_tasks(stages: &Stages, pool: usize, picks: &[Option<Pick>]) -> u32 {
    let Some(is_full) = stages.fullness(pool) else { return 0 };
    let is_full = |pick: &Option<Pick>| pick.is_some_and(|pick| is_full(pick.member));
    picks.iter().rev().fold(0, |bits, pick| bits << 1 | u32::from(is_full(pick)))
}

/// Returns the code of a message in a frame over IPv6 or IPv4; any byte in another frame. Checks nothing: the stages verify
/// the packet.
#[inline]
pub fn code(is_v6: bool, frame: &[u8]) -> Option<u8> {
    let first = frame.get(if is_v6 { u128::PAYLOAD } else { u32::PAYLOAD });
    first.map(|first| first & task::CODE_BITS)
}

/// Queues the tasks without a pick in the pool's central queue, or drops them if they may not wait. Drops tasks too
/// short to send. `tasks` has all tasks of the run, by index in the burst, with their picks.
#[cold]
fn hold<'a, A: FastPath, B: Buf>(
    stages: &mut Stages,
    pool: usize,
    tasks: impl Iterator<Item = ((usize, &'a Option<Pick>), Task)>,
    packets: &[B],
    verdicts: &mut (impl Verdicts + ?Sized),
) {
    for ((index, pick), task) in tasks {
        let placement = match pick {
            None => stages.wait(pool, task),
            Some(_) if packets[index].bytes().len() < A::HEAD => Err(DropReason::TaskShort),
            Some(_) => continue,
        };
        let verdict = match placement {
            Ok(lane) => {
                let is_recognised = packets[index].bytes().len() >= A::HEAD;
                Verdict::Queue { pool: pool as u16, lane, is_recognised }
            }
            Err(reason) => {
                stages.counters.drop(reason, 1);
                Verdict::Drop(reason)
            }
        };
        verdicts.other(index, verdict);
    }
}

/// Rewriter that readdresses tasks to their members.
struct TaskRewriter<'a, A: Family> {
    neighbours: &'a Neighbours,
    /// Destination of each member, by its index.
    targets: &'a [Target<A>],
    /// Checksum change of removing the tasks' destination: the address of the port or pool.
    removed: FoldedDelta,
}

impl<A: Family> TaskRewriter<'_, A> {
    /// Readdresses a task to the picked member, if there is one. `is_full` is true if the task fills that member.
    /// Returns the number of tasks sent, 0 or 1. A task whose next hop is not resolved counts as sent.
    #[inline(always)]
    fn send<B: Buf>(
        &self,
        packet: &mut B,
        pick: Option<Pick>,
        is_full: bool,
        verdicts: &mut (impl Verdicts + ?Sized),
        index: usize,
    ) -> u64 {
        let frame = packet.bytes_mut();
        if let Some(pick) = pick
            && frame.len() >= A::HEAD
        {
            let target = &self.targets[pick.member.index()];
            // A slice, because the compiler would add a conditional move for the address of an array in an `Option`.
            let (place, head) = ((verdicts, index), (&mut frame[..A::HEAD], A::UDP));
            let flags = task::flags(pick.idle, is_full);
            rewrite::readdress_task(self.neighbours, head, self.removed, target, flags, place);
            return 1;
        }
        0
    }
}
