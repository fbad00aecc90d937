//! Picks members for tasks: one call of the pool's policy for each run of tasks of one pool. Under a policy with rules
//! for classes, it is one call for each task.
//!
//! A task of several packets is no part of a run. Its first packet gets a member, and the affinity table
//! ([`super::affinity`]) leads the further ones there.

use arrayvec::ArrayVec;

use super::affinity::{Key, TrackRefusal};
use super::parse::{Packet, PacketKind};
use super::{Stages, Verdict, parse, rewrite};
use crate::io::Buf;
use crate::limits::BURST;
use crate::policy::{Assignment, Lane, Overflow, Pick, Task};
use crate::reason::DropReason;
use crate::state::{Counter, Member};
use crate::wire::task::{Extension, Header};
use crate::wire::{ether, ipv4, ipv6, udp};

/// Consecutive tasks of one pool in a burst.
struct Run {
    /// Index of the pool.
    pool: usize,
    /// Index of each task in the burst.
    indices: ArrayVec<u8, BURST>,
    /// The tasks, as the policy sees them.
    tasks: ArrayVec<Task, BURST>,
}

/// Picks a member for each task of a burst and writes it into the packet's values, lets the task wait, or refuses it.
#[inline]
pub fn burst<B: Buf>(
    stages: &mut Stages,
    now: u64,
    packets: &[B],
    parsed: &mut [Packet],
    verdicts: &mut [Verdict],
) {
    // A task of another pool, or of several packets, ends a run: the policy decides in the order of arrival.
    let mut run = Run { pool: usize::MAX, indices: ArrayVec::new(), tasks: ArrayVec::new() };
    let mut pool_id = None;
    for index in 0..parsed.len().min(packets.len()) {
        let packet = &mut parsed[index];
        if !matches!(
            packet.kind,
            PacketKind::Task | PacketKind::FirstOfSeveral | PacketKind::Continuation
        ) {
            continue;
        }
        if pool_id != Some(packet.pool) {
            flush(stages, &mut run, parsed, verdicts);
            let packet = &mut parsed[index]; // again, because `flush` has used the list
            let Some(pool) = stages.network.pool(packet.pool) else {
                refuse(packet, &mut verdicts[index], DropReason::UnknownPool);
                continue;
            };
            pool_id = Some(packet.pool);
            run.pool = pool;
        }
        let packet = &mut parsed[index];
        if packet.kind != PacketKind::Task {
            flush(stages, &mut run, parsed, verdicts);
            let frame = packets[index].bytes();
            if parsed[index].is_first() {
                stages.note_task(run.pool, parsed[index].idle);
            }
            place_packet(stages, run.pool, now, frame, &mut parsed[index], &mut verdicts[index]);
            continue;
        }
        let class = class(packet, packets[index].bytes());
        stages.note_task(run.pool, packet.idle);
        run.tasks.push(Task::new(class));
        run.indices.push(index as u8);
    }
    flush(stages, &mut run, parsed, verdicts);
}

/// Refuses a packet for this reason: later stages skip it.
#[inline]
fn refuse(parsed: &mut Packet, verdict: &mut Verdict, reason: DropReason) {
    parsed.kind = PacketKind::Refused(reason);
    *verdict = Verdict::Drop(reason);
}

/// Schedules the tasks of the run, writes the results into their packets' values, and empties the run.
#[inline]
fn flush(stages: &mut Stages, run: &mut Run, parsed: &mut [Packet], verdicts: &mut [Verdict]) {
    let (pool, indices) = (run.pool, &run.indices);
    offer_run(stages, pool, &run.tasks, |stages, task, placement| {
        let index = usize::from(indices[task]);
        settle(stages, pool, placement, &mut parsed[index], &mut verdicts[index]);
    });
    run.tasks.clear();
    run.indices.clear();
}

/// Decision on a new task, or the reason for refusing it.
pub(super) type Placement = Result<Assignment, DropReason>;

/// Decides on at most [`BURST`] new tasks of one pool (by index). Calls `take` with each decision and the
/// index of its task, in order. In pools with waiting tasks, once a task must wait, those behind it wait too, except
/// short ones behind a long one that may not take reserved members.
#[inline]
pub(super) fn offer_run(
    stages: &mut Stages,
    pool: usize,
    tasks: &[Task],
    mut take: impl FnMut(&mut Stages, usize, Placement),
) {
    if tasks.is_empty() {
        return;
    }
    let mut picks: [Option<Pick>; BURST] = [None; BURST];
    let Stages { dispatchers, affinity, .. } = stages;
    dispatchers[pool].offer_run(tasks, &mut picks[..tasks.len()], || affinity.reclaim(pool));
    for (index, (task, pick)) in tasks.iter().zip(picks).enumerate() {
        let placement = match pick {
            Some(pick) => Ok(Assignment::Sent(pick)),
            None => stages.wait(pool, *task).map(Assignment::Waits),
        };
        if let Some(pick) = pick {
            stages.note_pick(pool, pick.member);
        }
        take(stages, index, placement);
    }
}

/// Picks a member for the next task of its pool; `None` if no member may take it now. A pool whose members are all full
/// may take the credit of its oldest unfinished multi-packet task.
pub(super) fn pick(stages: &mut Stages, pool: usize, task: Task) -> Option<Pick> {
    let Stages { dispatchers, affinity, .. } = stages;
    let pick = dispatchers[pool].choose(task, || affinity.reclaim(pool));
    if let Some(pick) = pick {
        stages.note_pick(pool, pick.member);
    }
    pick
}

impl Stages {
    /// Records for signals to spines that a task of a pool (by index) arrived. `idle_selected` is true if its header
    /// says that the spine took this rack for idle.
    #[inline]
    fn note_task(&mut self, pool: usize, idle_selected: bool) {
        if let Some(fabric) = &mut self.fabric {
            fabric.note_task(pool, idle_selected);
        }
    }

    /// Records that a member was picked for a task of a pool (by index).
    #[inline]
    fn note_pick(&mut self, pool: usize, member: Member) {
        self.counters.add(Counter::Scheduled, 1);
        if let Some(fabric) = &mut self.fabric {
            fabric.note_pick(pool, member);
        }
    }

    /// Lets a task without a pick wait in its pool's queue (by index), if it may, and counts it there.
    ///
    /// # Errors
    /// Reason why it may not wait.
    #[inline]
    pub(super) fn wait(&mut self, pool: usize, task: Task) -> Result<Lane, DropReason> {
        let lane = self.dispatchers[pool].wait(task)?;
        self.waiting += 1;
        Ok(lane)
    }

    /// Returns true if a task of a pool (by index) without a member may keep waiting. It may not if meanwhile its pool
    /// has ended, or got a policy whose tasks never wait.
    pub(super) fn may_keep_waiting(&self, pool: usize) -> bool {
        self.dispatchers[pool].holds_tasks() && self.network.pool_id(pool).is_some()
    }

    /// Returns true if a pool (by index) returns tasks to their clients when its queue is full.
    pub(super) fn refuses(&self, pool: usize) -> bool {
        self.dispatchers[pool].queue().1 == Overflow::Refuse
    }
}

/// Applies the decision on a packet of a task: assigns the packet to the task's member, queues it, or refuses it.
/// Packets of one task have one member.
fn settle(
    stages: &mut Stages,
    pool: usize,
    placement: Placement,
    packet: &mut Packet,
    verdict: &mut Verdict,
) {
    match placement {
        Ok(Assignment::Sent(pick)) => assign(pool, pick, packet),
        Ok(Assignment::Waits(lane)) => {
            packet.kind = PacketKind::Waiting;
            *verdict = Verdict::Queue { pool: pool as u16, lane, is_recognised: false };
        }
        // Only the first packet of a task is returned, so that its client is notified once.
        Err(DropReason::QueueFull) if packet.is_first() && stages.refuses(pool) => {
            stages.counters.add(Counter::Refused, 1);
            packet.kind = PacketKind::Overflowing;
            *verdict = Verdict::Answer;
        }
        Err(reason) => refuse(packet, verdict, reason),
    }
}

/// Decides on the first task of a pool's queue. Returns `None` if it must keep waiting. Parses it again: the queue
/// keeps only its bytes.
pub fn offered(
    stages: &mut Stages,
    pool: usize,
    port: usize,
    now: u64,
    frame: &mut [u8],
) -> Option<Verdict> {
    let mut packet = Packet::REFUSED;
    let address = stages.network.port(port);
    // Its checksums were verified on arrival.
    packet.kind = match parse::one(&stages.network, address, frame, true, &mut packet) {
        Ok(kind) => kind,
        Err(reason) => return Some(Verdict::Drop(reason)),
    };
    let pick = if packet.kind == PacketKind::Task {
        let class = class(&packet, frame);
        pick(stages, pool, Task::new(class)).ok_or(DropReason::NoMember)
    } else {
        find_or_pick(stages, pool, now, frame, &packet, true)
    };
    match pick {
        Err(DropReason::NoMember) if stages.may_keep_waiting(pool) => None,
        Err(reason) => Some(Verdict::Drop(reason)),
        Ok(pick) => {
            assign(pool, pick, &mut packet);
            Some(match packet.is_v6 {
                false => rewrite::towards_worker::<u32>(stages, frame, &packet),
                true => rewrite::towards_worker::<u128>(stages, frame, &packet),
            })
        }
    }
}

/// Returns the class of a task; 0 without the extension.
#[inline]
fn class(packet: &Packet, frame: &[u8]) -> u16 {
    if packet.extended { Extension::parse(packet.payload(frame)).class } else { 0 }
}

/// Writes a task's pick into the packet's values.
#[inline]
fn assign(pool: usize, pick: Pick, packet: &mut Packet) {
    packet.chosen = (pool as u16, pick.member);
    packet.idle = pick.idle;
}

/// Handles packets of multi-packet tasks: the first is scheduled, and the rest follow it.
fn place_packet(
    stages: &mut Stages,
    pool: usize,
    now: u64,
    frame: &[u8],
    parsed: &mut Packet,
    verdict: &mut Verdict,
) {
    // The first packet of the task may be among the waiting ones. Under a policy that probes workers by messages, each
    // task waits.
    let task = Task::new(class(parsed, frame));
    let is_next = !stages.dispatchers[pool].must_wait(task);
    let placement = match find_or_pick(stages, pool, now, frame, parsed, is_next) {
        Err(DropReason::NoMember) => stages.wait(pool, task).map(Assignment::Waits),
        result => result.map(Assignment::Sent),
    };
    settle(stages, pool, placement, parsed, verdict);
}

/// Returns the member of a multi-packet task. Picks one if this is its first packet and `is_next` is true: no
/// other task waits before it.
///
/// # Errors
/// The reason for dropping the packet. `NoMember` means that the packet may wait instead, if the pool lets tasks wait.
fn find_or_pick(
    stages: &mut Stages,
    pool: usize,
    now: u64,
    frame: &[u8],
    parsed: &Packet,
    is_next: bool,
) -> Result<Pick, DropReason> {
    let payload = parsed.payload(frame);
    let header = Header::parse(payload)?;
    let extension = if header.extended {
        Extension::parse(payload)
    } else {
        Extension { seq32: u32::from(header.seq), ..Extension::default() }
    };
    let key = Key {
        pool: header.pool,
        src_port: udp::src_port(&frame[usize::from(parsed.udp_at)..]),
        src: match parsed.is_v6 {
            false => ipv4::src(&frame[ether::LEN..]),
            true => stages.neighbours.digest(ipv6::src(&frame[ether::LEN..])),
        },
        app: extension.app,
        seq: extension.seq32,
    };
    // A first packet that arrives twice (a retransmission) also keeps its member.
    if let Some(found) = stages.affinity.find(key, !header.more, now) {
        stages.counters.add(Counter::Continuations, 1);
        if found.replaced {
            // Another task had taken this task's credit. This packet completes the task, which counts as outstanding
            // again.
            stages.dispatchers[pool].count_placed(found.member);
        }
        return Ok(Pick { member: found.member, idle: false });
    }
    if !is_next {
        return Err(DropReason::NoMember);
    }
    if parsed.kind == PacketKind::Continuation {
        return Err(DropReason::UnknownConnection);
    }
    stages.affinity.check_room(key, now).map_err(|refusal| match refusal {
        TrackRefusal::Full => DropReason::ConnectionsFull,
        TrackRefusal::Source => DropReason::MultiPacketBound,
    })?;
    let task = Task { packets: 0, ..Task::new(extension.class) }; // 0: the number of packets is unknown
    let pick = pick(stages, pool, task).ok_or(DropReason::NoMember)?;
    stages.affinity.insert(key, pool, pick.member, now);
    Ok(pick)
}
