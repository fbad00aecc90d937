//! The fast path over IPv6: a burst's leading run of common tasks and replies of one pool, as [`super`] has it for IPv4. A packet is
//! recognised by its first bytes under a mask, and its checksum is changed by what is known beforehand of addresses and workers.
//!
//! What is not recognised, or not believed, ends the run: the stages know every reason.

use arrayvec::ArrayVec;

use super::BurstMask;
use super::template_v6::{IP, TASK, UDP};
use crate::io::Buf;
use crate::limits::BURST;
use crate::policy::{Pick, Task};
use crate::reason::DropReason;
use crate::stage::network::{Network, Side};
use crate::stage::parse::PREFETCH_AHEAD;
use crate::stage::rewrite::{self, ReplyRewriterV6};
use crate::stage::v6::Network6;
use crate::stage::{Stages, Verdict, Verdicts, classify};
use crate::state::{Counter, Load, Neighbours, Report};
use crate::wire::ipv6;
use crate::wire::task::{self, Extension};

/// A burst's leading run.
struct Run {
    len: usize,
    /// A bit for each reply.
    replies: u32,
    tasks: ArrayVec<Task, BURST>,
    reports: ArrayVec<Report, BURST>,
}

/// Decides on the packets at the front of a burst that match; returns how many it has dealt with.
#[inline(never)]
pub fn burst<B: Buf>(
    stages: &mut Stages,
    port: usize,
    packets: &mut [B],
    verdicts: &mut (impl Verdicts + ?Sized),
) -> usize {
    let network = &*stages.network;
    let Some(v6) = network.v6().filter(|_| network.port(port).v6.is_some()) else {
        return 0;
    };
    let first = packets.first().and_then(|first| first.bytes().get(TASK + 1..TASK + 3));
    let Some(&[high, low]) = first else {
        return 0;
    };
    let Some(pool) = network.pool(u16::from_be_bytes([high, low])) else {
        return 0;
    };
    if !v6.has_pool(pool) || stages.holds(pool) || stages.is_linked(pool) {
        return 0;
    }
    let run = recognise((network, v6), &stages.neighbours, (port, pool), packets);
    let Run { len, replies, tasks, mut reports } = run;
    if !reports.is_empty() {
        stages.liveness.bound(pool, &stages.dispatchers[pool], &mut reports);
        let surplus = stages.dispatchers[pool].reply_run(&reports);
        if surplus > 0 {
            stages.counters.add(Counter::SurplusReplies, surplus as u64);
        }
        stages.counters.add(Counter::Replies, reports.len() as u64);
        let (neighbours, now_ms) = (&stages.neighbours, stages.now_ms);
        let mut rewriter = ReplyRewriterV6::new(&stages.network, neighbours, now_ms, pool);
        for at in BurstMask(replies) {
            let Some(packet) = packets.get_mut(at) else { break };
            if let Err(reason) = rewriter.send(packet.bytes_mut(), UDP, verdicts, at) {
                stages.counters.drop(reason, 1);
                verdicts.other(at, Verdict::Drop(reason));
            }
        }
    }
    if !tasks.is_empty() {
        let places = BurstMask(!replies & BurstMask::first(len as u32).0);
        self::tasks(stages, (port, pool), places, &tasks, packets, verdicts);
    }
    len
}

/// The packets at the front that match, and what they say.
#[inline(always)]
fn recognise<B: Buf>(
    (network, v6): (&Network, &Network6),
    neighbours: &Neighbours,
    (port, pool): (usize, usize),
    packets: &[B],
) -> Run {
    let (tasks, reports) = (ArrayVec::new(), ArrayVec::new());
    let mut run = Run { len: 0, replies: 0, tasks, reports };
    let Some(template) = v6.template(port, pool) else { return run };
    let is_shared = network.port(port).side == Side::Both;
    for packet in packets.iter().take(PREFETCH_AHEAD) {
        packet.prefetch();
    }
    for (at, packet) in packets.iter().enumerate().take(BURST) {
        if let Some(ahead) = packets.get(at + PREFETCH_AHEAD) {
            ahead.prefetch();
        }
        if packet.is_segmented() {
            break;
        }
        let frame = packet.bytes();
        let Some(code) = template.recognise(frame, packet.checksums_verified()) else { break };
        let source = ipv6::src(&frame[IP..]);
        if code.is_reply() {
            let Some(worker) = network.worker(task::src(&frame[TASK..])) else { break };
            let server = network.server(worker.server);
            let is_sent = v6.is_at(worker.server, source)
                && usize::from(worker.pool) == pool
                && !v6.is_own(ipv6::dst(&frame[IP..]))
                && (!is_shared || classify::is_sent_by(server, neighbours, port, frame));
            if !is_sent {
                break;
            }
            let service_ns = match code.is_extended() {
                true => Extension::parse(&frame[TASK..]).service_ns,
                false => 0,
            };
            let load = Load::tasks(task::reported_queue(&frame[TASK..]));
            run.reports.push(Report::new(worker.member, load, service_ns));
            run.replies |= 1 << at;
        } else {
            if !v6.is_client(source) {
                break;
            }
            let class = match code.is_extended() {
                true => Extension::parse(&frame[TASK..]).class,
                false => 0,
            };
            run.tasks.push(Task::new(class));
        }
        run.len = at + 1;
    }
    run
}

/// Chooses members for the tasks, and turns them towards these.
#[inline(always)]
fn tasks<B: Buf>(
    stages: &mut Stages,
    (port, pool): (usize, usize),
    places: BurstMask,
    tasks: &[Task],
    packets: &mut [B],
    verdicts: &mut (impl Verdicts + ?Sized),
) {
    let mut picks: [Option<Pick>; BURST] = [None; BURST];
    let picks = &mut picks[..tasks.len()];
    stages.dispatchers[pool].schedule(tasks, picks);
    let network = &*stages.network;
    let (Some(v6), targets) = (network.v6(), network.members(pool)) else { return };
    let (removed, mut sent) = (v6.removed(port, pool), 0);
    for (at, pick) in places.zip(picks) {
        let frame = packets.get_mut(at).map(Buf::bytes_mut);
        let head = frame.and_then(<[u8]>::first_chunk_mut);
        let member = pick.and_then(|pick| v6.target(pool, pick.member));
        let (Some(pick), Some(member), Some(head)) = (*pick, member, head) else {
            verdicts.other(at, Verdict::Drop(DropReason::NoMember));
            continue;
        };
        let target = (&targets[pick.member.index()], member);
        let place = (&mut *verdicts, at);
        rewrite::fast_task_v6(&stages.neighbours, head, removed, target, pick.idle, place);
        sent += 1;
    }
    let refused = tasks.len() as u64 - sent;
    stages.counters.add(Counter::Scheduled, sent);
    if refused > 0 {
        stages.counters.drop(DropReason::NoMember, refused);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::io::memory::FramePool;
    use crate::stage::fast::tests::{damage, decide_alike};
    use crate::wire::ether::Mac;
    use crate::wire::task::{Code, Header};
    use crate::wire::udp::{self, Flow};

    const LEAF: u128 = 0xFD00_0001_0000_0000_0000_0000_0000_0001;
    const CLIENT: u128 = LEAF + 1;
    const SERVER: u128 = LEAF + 0xA;
    const LEAF_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 1, 11]);
    const POOL: u16 = 0x0107;

    /// With that side behind the port at which packets come, and workers behind it or another one.
    fn stages(side: &str) -> Stages {
        let server = if side == "clients" { "fd00:4::b" } else { "fd00:1::b" };
        let text = format!(
            "[leaf]\nid = 0\ncores = [0]\nseed = 7\nworker_timeout_ms = 0\nconnection_timeout_ms = 1\n\
             [[port]]\ndevice = 'here'\nside = '{side}'\nip = 'fd00:1::1/64'\nmac = '{LEAF_MAC}'\n\
             [[port]]\ndevice = 'there'\nside = 'both'\nip = 'fd00:4::1/64'\ngateway = 'fe80::1'\n\
             [[pool]]\nid = {POOL}\npolicy = 'horus'\n\
             [[server]]\nip = '{server}'\nmac = '{SERVER_MAC}'\nworkers = '0-7'\npool = {POOL}\n"
        );
        crate::rig::stages(&text, None).stages.remove(0)
    }

    fn frame(header: Header, source: Option<u128>, payload: &[u8]) -> Vec<u8> {
        let is_reply = header.code.is_reply();
        let len = header.len() + payload.len();
        let mut frame = vec![0; udp::PAYLOAD_V6 + len];
        header.emit(&mut frame[udp::PAYLOAD_V6..]);
        frame[udp::PAYLOAD_V6 + header.len()..].copy_from_slice(payload);
        let flow = Flow {
            src_mac: if is_reply { SERVER_MAC } else { Mac([2, 0, 0, 0, 1, 2]) },
            dst_mac: LEAF_MAC,
            src: source.unwrap_or(if is_reply { SERVER } else { CLIENT }),
            dst: if is_reply { CLIENT } else { LEAF },
            src_port: if is_reply { 1234 } else { 40_000 },
            dst_port: if is_reply { 40_000 } else { 1234 },
        };
        flow.emit_v6(&mut frame, len);
        frame
    }

    fn task(seq: u16) -> Header {
        Header::new_task(POOL, seq)
    }

    fn reply(worker: u16, qlen: u16) -> Header {
        let code = if qlen == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
        Header { code, src: worker, qlen, ..Header::new_task(POOL, 0) }
    }

    #[test]
    fn packets_that_match_take_the_fast_path() {
        let pool = FramePool::new(8, 256);
        let headers = [task(1), reply(3, 2), task(2), reply(2, 0), task(3)];
        let packets = headers.map(|header| pool.frame(&frame(header, None, &[1; 8])).unwrap());
        let mut stages = stages("both");
        let mut verdicts = [Verdict::Consumed; 5];
        assert_eq!(burst(&mut stages, 0, &mut { packets }, &mut verdicts[..]), 5);
        assert!(verdicts.iter().all(|verdict| match verdict {
            Verdict::Forward { port, .. } | Verdict::Hold { port, .. } => *port == 0,
            _ => false,
        }));
        let count = |counter| stages.counters.read(counter);
        assert_eq!((count(Counter::Scheduled), count(Counter::Replies)), (3, 2));
    }

    #[test]
    fn a_spines_tasks_take_the_fast_path_to_the_service_address_alone() {
        let text = format!(
            "[spine]\nid = 90\ncores = [0]\nseed = 7\n\
             [[port]]\ndevice = 'here'\nside = 'both'\nip = 'fd00:1::1/64'\nmac = '{LEAF_MAC}'\n\
             [[pool]]\nid = {POOL}\npolicy = 'horus-spine'\nservice = 'fd00:1::c8'\n\
             [[leaf]]\nid = 40\nip = 'fd00:1::b'\nmac = '{SERVER_MAC}'\nworkers = 4\npool = {POOL}\n"
        );
        let pool = FramePool::new(8, 256);
        let mut stages = crate::rig::stages(&text, None).stages.remove(0);
        let to = |address: u128, header: Header| {
            let mut frame = frame(header, Some(CLIENT), &[1; 8]);
            frame[IP + 24..IP + 40].copy_from_slice(&address.to_be_bytes());
            frame[UDP + 6..UDP + 8].fill(0);
            let sum = ipv6::pseudo_header(&frame[IP..], ipv6::UDP, (frame.len() - UDP) as u16);
            let checksum = sum.bytes(&frame[UDP..]).checksum();
            frame[UDP + 6..UDP + 8].copy_from_slice(&checksum.to_be_bytes());
            pool.frame(&frame).unwrap()
        };
        let service = LEAF - 1 + 0xC8;
        let mut packets = [to(service, task(1)), to(service, task(2)), to(LEAF, task(3))];
        let mut verdicts = [Verdict::Consumed; 3];
        assert_eq!(burst(&mut stages, 0, &mut packets, &mut verdicts[..]), 2);
        let sent = udp::parse_v6(packets[0].bytes(), false).unwrap();
        assert_eq!((sent.src, sent.dst), (CLIENT, SERVER));
        assert_eq!(Header::parse(&packets[0].bytes()[TASK..]).unwrap().dst, 40);
        // Whoever answers does so at its client, and a spine takes no answers.
        let mut packets = [to(CLIENT, reply(40, 0))];
        assert_eq!(burst(&mut stages, 0, &mut packets, &mut verdicts[..]), 0);
        assert_eq!(stages.counters.read(Counter::Scheduled), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Packet for packet, the fast path and the stages decide alike and write the same bytes.
        #[test]
        fn the_fast_path_does_what_the_stages_do(
            packets in proptest::collection::vec((
                any::<(u16, bool, bool)>(), 0..16_u16,
                proptest::collection::vec(any::<u8>(), 0..40),
                proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
                proptest::option::weighted(0.2, any::<prop::sample::Index>()),
                proptest::option::weighted(0.3, proptest::sample::select(vec![
                    0, 1, LEAF, SERVER, CLIENT + 1, 0xFE80 << 112 | 5, 0xFF02 << 112 | 1, 0x2001_0DB8 << 96 | 7,
                ])),
            ), 1..40),
            side in proptest::sample::select(vec!["both", "clients", "workers"]),
        ) {
            let pool = FramePool::new(4, 256);
            let [mut with, mut without] = [(); 2].map(|()| stages(side));
            for ((seq, extended, replies), kind, payload, edits, cut, source) in packets {
                let header = if replies { reply(kind, seq % 3) } else { task(seq) };
                let header = Header { more: kind == 0, extended, ..header };
                let mut frame = frame(header, source, &payload);
                damage(&mut frame, &edits, cut);
                decide_alike(&mut with, &mut without, &pool, &frame)?;
            }
            prop_assert_eq!(with.counters.totals(), without.counters.totals());
        }
    }
}
