//! Members for tasks: one call into the pool's policy for each run of tasks of one pool.

use super::connections::Key;
use super::network::Worker;
use super::parse::{Kind, Packet};
use super::{Stages, Verdict};
use crate::io::Buf;
use crate::limits::BURST;
use crate::policy::{Pick, Task};
use crate::reason::DropReason;
use crate::state::{Counter, Member};
use crate::wire::task::Extension;

/// Tasks of one pool that stand behind each other in a burst.
struct Run {
    pool: usize,
    count: usize,
    /// Places in the burst.
    places: [u8; BURST],
    tasks: [Task; BURST],
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
    let mut run = Run { pool: 0, count: 0, places: [0; BURST], tasks: [Task::default(); BURST] };
    for place in 0..parsed.len() {
        let kind = parsed[place].kind;
        if !matches!(kind, Kind::Task | Kind::Continuation) {
            continue;
        }
        let header = parsed[place].header;
        let Some(pool) = stages.network.pool(header.pool) else {
            refuse(&mut parsed[place], &mut verdicts[place], DropReason::UnknownPool);
            continue;
        };
        if kind == Kind::Continuation || header.more {
            flush(stages, &mut run, parsed, verdicts);
            let frame = packets[place].bytes();
            connected(stages, pool, now, frame, &mut parsed[place], &mut verdicts[place]);
            continue;
        }
        if pool != run.pool {
            flush(stages, &mut run, parsed, verdicts);
            run.pool = pool;
        }
        let class = if header.extended {
            Extension::parse(&packets[place].bytes()[parsed[place].datagram.payload()..]).class
        } else {
            0
        };
        run.tasks[run.count] = Task { class };
        run.places[run.count] = place as u8;
        run.count += 1;
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
    let count = std::mem::take(&mut run.count);
    if count == 0 {
        return;
    }
    let mut picks: [Option<Pick>; BURST] = [None; BURST];
    stages.dispatchers[run.pool].schedule(&run.tasks[..count], &mut picks[..count]);
    let mut scheduled = 0;
    for (place, pick) in run.places[..count].iter().zip(&picks[..count]) {
        let place = usize::from(*place);
        match pick {
            Some(pick) => {
                assign(stages, run.pool, *pick, &mut parsed[place]);
                scheduled += 1;
            }
            None => refuse(&mut parsed[place], &mut verdicts[place], DropReason::NoMember),
        }
    }
    stages.counters.add(Counter::Scheduled, scheduled);
}

#[inline]
fn assign(stages: &Stages, pool: usize, pick: Pick, parsed: &mut Packet) {
    parsed.header.dst = stages.network.worker_id(pool, pick.member);
    parsed.header.qlen = u16::from(pick.idle);
    parsed.place = place(stages, pool, pick.member);
}

#[inline]
fn place(stages: &Stages, pool: usize, member: Member) -> Worker {
    let id = stages.network.worker_id(pool, member);
    // Every member has a worker: the tables are built from the same list.
    stages.network.worker(id).unwrap_or(Worker { pool: pool as u16, member, server: 0 })
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
        Ok(pick) => assign(stages, pool, pick, parsed),
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
    let header = &parsed.header;
    let extension = if header.extended {
        Extension::parse(&frame[parsed.datagram.payload()..])
    } else {
        Extension { seq32: u32::from(header.seq), ..Extension::default() }
    };
    let key = Key {
        pool: header.pool,
        src_port: parsed.datagram.src_port,
        src: parsed.datagram.src,
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
