//! Members for tasks: one call into the pool's policy for each run of tasks of one pool.

use arrayvec::ArrayVec;

use super::connections::Key;
use super::parse::{Kind, Packet};
use super::{Stages, Verdict};
use crate::io::Buf;
use crate::limits::BURST;
use crate::policy::{Pick, Task};
use crate::reason::DropReason;
use crate::state::Counter;
use crate::wire::task::{Extension, Header};
use crate::wire::{ether, ipv4, udp};

/// Tasks of one pool that stand behind each other in a burst.
struct Run {
    pool: usize,
    /// Places in the burst.
    places: ArrayVec<u8, BURST>,
    tasks: ArrayVec<Task, BURST>,
}

/// Chooses a member for every task of a burst and writes it into the packet's values.
#[inline]
pub fn burst<B: Buf>(
    stages: &mut Stages,
    now: u64,
    packets: &[B],
    parsed: &mut [Packet],
    verdicts: &mut [Verdict],
) {
    let mut run = Run { pool: usize::MAX, places: ArrayVec::new(), tasks: ArrayVec::new() };
    let mut pool_id = None;
    for place in 0..parsed.len().min(packets.len()) {
        let packet = &mut parsed[place];
        if !matches!(packet.kind, Kind::Task | Kind::FirstOfSeveral | Kind::Continuation) {
            continue;
        }
        if pool_id != Some(packet.pool) {
            flush(stages, &mut run, parsed, verdicts);
            let packet = &mut parsed[place];
            let Some(pool) = stages.network.pool(packet.pool) else {
                refuse(packet, &mut verdicts[place], DropReason::UnknownPool);
                continue;
            };
            pool_id = Some(packet.pool);
            run.pool = pool;
        }
        let packet = &mut parsed[place];
        if packet.kind != Kind::Task {
            flush(stages, &mut run, parsed, verdicts);
            let frame = packets[place].bytes();
            connected(stages, run.pool, now, frame, &mut parsed[place], &mut verdicts[place]);
            continue;
        }
        let class = if packet.extended {
            Extension::parse(packet.payload(packets[place].bytes())).class
        } else {
            0
        };
        run.tasks.push(Task { class });
        run.places.push(place as u8);
    }
    flush(stages, &mut run, parsed, verdicts);
}

#[inline]
fn refuse(parsed: &mut Packet, verdict: &mut Verdict, reason: DropReason) {
    parsed.kind = Kind::Refused(reason);
    *verdict = Verdict::Drop(reason);
}

/// Has the run's tasks scheduled.
#[inline]
fn flush(stages: &mut Stages, run: &mut Run, parsed: &mut [Packet], verdicts: &mut [Verdict]) {
    let count = run.tasks.len();
    if count == 0 {
        return;
    }
    let mut picks: [Option<Pick>; BURST] = [None; BURST];
    stages.dispatchers[run.pool].schedule(&run.tasks, &mut picks[..count]);
    let mut scheduled = 0;
    for (&place, pick) in run.places.iter().zip(&picks) {
        let packet = &mut parsed[usize::from(place)];
        match pick {
            Some(pick) => {
                assign(run.pool, *pick, packet);
                scheduled += 1;
            }
            None => refuse(packet, &mut verdicts[usize::from(place)], DropReason::NoMember),
        }
    }
    stages.counters.add(Counter::Scheduled, scheduled);
    run.tasks.clear();
    run.places.clear();
}

#[inline]
fn assign(pool: usize, pick: Pick, packet: &mut Packet) {
    packet.chosen = (pool as u16, pick.member);
    packet.idle = pick.idle;
}

/// Packets of multi-packet tasks: the first is scheduled, the others follow it.
fn connected(
    stages: &mut Stages,
    pool: usize,
    now: u64,
    frame: &[u8],
    parsed: &mut Packet,
    verdict: &mut Verdict,
) {
    match follow(stages, pool, now, frame, parsed) {
        Ok(pick) => assign(pool, pick, parsed),
        Err(reason) => refuse(parsed, verdict, reason),
    }
}

fn follow(
    stages: &mut Stages,
    pool: usize,
    now: u64,
    frame: &[u8],
    parsed: &Packet,
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
        src_port: udp::src_port(&frame[usize::from(parsed.at)..]),
        src: ipv4::src(&frame[ether::LEN..]),
        app: extension.app,
        seq: extension.seq32,
    };
    // A first packet seen twice (a retransmission) keeps its member, too.
    if let Some(member) = stages.connections.find(key, !header.more, now) {
        stages.counters.add(Counter::Continuations, 1);
        return Ok(Pick { member, idle: false });
    }
    if parsed.kind == Kind::Continuation {
        return Err(DropReason::UnknownConnection);
    }
    if !stages.connections.has_room(key, now) {
        return Err(DropReason::ConnectionsFull);
    }
    let mut picks = [None];
    stages.dispatchers[pool].schedule(&[Task { class: extension.class }], &mut picks);
    let pick = picks[0].ok_or(DropReason::NoMember)?;
    stages.connections.insert(key, pick.member, now);
    stages.counters.add(Counter::Scheduled, 1);
    Ok(pick)
}
