//! Tests of the rack on a fake clock: due times, queue lengths, order and buffers. Expected times come from
//! the recurrence end = max(arrival, previous end) + service. The module [`family`] converts frames between IPv4 and
//! IPv6, so that one test covers both.

use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use wedjat::io::memory::{self, Frame, FramePool, RingPort};
use wedjat::wire::arp;
use wedjat::wire::ether;
use wedjat::wire::ndp;
use wedjat::wire::task::{Code, Extension};
use wedjat::wire::udp::{self, Flow};

#[path = "../../../tests/family/mod.rs"]
mod family;

use family::{BOTH, Family, as_v4};

const RACK: Mac = Mac([2, 0, 0, 0, 2, 0x0B]);
const LEAF: Mac = Mac([2, 0, 0, 0, 2, 1]);
const CLIENT: u32 = 0x0A00_0163;
/// Ticks are nanoseconds.
const HZ: f64 = 1e9;

/// Returns the address of the server with this index.
fn server(number: u32) -> u32 {
    u32::from(Ipv4Addr::new(10, 0, 2, 11)) + number
}

/// A rack of 2 servers with 2 workers each, ids 8 to 11, and the leaf's end of the wire.
struct Bench {
    rack: Rack<RingPort>,
    leaf: RingPort,
    pool: FramePool,
}

/// Creates a rack with these options. `depth` is the capacity of its wire in packets, per direction.
fn bench_with(options: Options, depth: usize) -> Bench {
    let pool = FramePool::new(4096, 160);
    let (leaf, port) = memory::pair(depth, &pool);
    let layout = Layout::new("10.0.2.11+2".parse().unwrap(), 2, 8).unwrap();
    Bench { rack: Rack::new(port, RACK, layout, options, HZ), leaf, pool }
}

/// Creates a rack with the default options.
fn bench() -> Bench {
    bench_with(Options::default(), 2048)
}

/// Contents of a task's packet.
#[derive(Clone, Copy)]
struct TaskRequest {
    /// Address of the server.
    server: u32,
    seq: u16,
    service_ns: u32,
    header: Header,
}

/// Returns a task for worker `worker`. Workers 8 and 9 are on the first server, 10 and 11 on the second.
fn task_request(worker: u16, seq: u16, service_ns: u32) -> TaskRequest {
    let header = Header { extended: true, dst: worker, ..Header::new_task(1, seq) };
    TaskRequest { server: server(u32::from(worker - 8) / 2), seq, service_ns, header }
}

/// Builds the packet of a task.
fn frame(request: &TaskRequest) -> Vec<u8> {
    let len = request.header.len() + payload::LEN;
    let mut frame = vec![0; udp::PAYLOAD + len];
    request.header.emit(&mut frame[udp::PAYLOAD..]);
    let extension = Extension { app: 7, seq32: u32::from(request.seq), service_ns: 0, class: 2 };
    if request.header.extended {
        extension.emit(&mut frame[udp::PAYLOAD..]);
    }
    let work = payload::Work { service_ns: request.service_ns, ..Default::default() };
    work.emit(&mut frame[udp::PAYLOAD + request.header.len()..]);
    flow(request.server).emit(&mut frame, len);
    frame
}

/// Returns the MAC addresses, IP addresses and ports of a task for a server.
fn flow(server: u32) -> Flow {
    Flow {
        src_mac: LEAF,
        dst_mac: RACK,
        src: CLIENT,
        dst: server,
        src_port: 40_001,
        dst_port: 1234,
    }
}

/// Contents of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReceivedReply {
    worker: u16,
    seq: u16,
    qlen: u16,
    idle: bool,
    service_ns: u32,
}

impl Bench {
    /// Sends a task from the leaf.
    fn task(&mut self, worker: u16, seq: u16, service_ns: u32) {
        assert!(self.leaf.send(&frame(&task_request(worker, seq, service_ns))));
    }

    /// Sends a frame from the leaf, translated to the rack's address family.
    fn send(&mut self, frame: &[u8]) {
        let is_v6 = self.rack.address.layout.is_v6();
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        assert!(self.leaf.send(&family.frame(frame)));
    }

    /// Receives the next reply at the leaf, and checks its addresses.
    fn received(&mut self) -> Option<ReceivedReply> {
        let reply: Frame = self.leaf.receive()?;
        let datagram = udp::parse(reply.bytes(), false).expect("a reply is a valid packet");
        let payload = &reply.bytes()[datagram.payload()..];
        let header = Header::parse(payload).unwrap();
        assert_eq!(datagram.src, server(u32::from(header.src - 8) / 2));
        assert_eq!((datagram.dst, datagram.src_port, datagram.dst_port), (CLIENT, 1234, 40_001));
        assert_eq!((ether::src(reply.bytes()), ether::dst(reply.bytes())), (RACK, LEAF));
        Some(ReceivedReply {
            worker: header.src,
            seq: header.seq,
            qlen: header.qlen,
            idle: header.code == Code::TaskDoneIdle,
            service_ns: if header.extended { Extension::parse(payload).service_ns } else { 0 },
        })
    }

    /// Returns the number of packets that the rack dropped for a reason.
    fn dropped(&self, reason: DropReason) -> u64 {
        self.rack.counts().dropped[reason as usize]
    }
}

#[test]
fn due_replies_carry_the_remaining_queue_length() {
    let mut bench = bench();
    for seq in 0..3 {
        bench.task(9, seq, 1000);
    }
    bench.rack.poll(5_000);
    for (now, seq, qlen) in [(6_000, 0, 2), (7_000, 1, 1), (8_000, 2, 0)] {
        bench.rack.poll(now - 1);
        assert_eq!(bench.received(), None, "before {now}");
        bench.rack.poll(now);
        let expected = ReceivedReply { worker: 9, seq, qlen, idle: qlen == 0, service_ns: 1000 };
        assert_eq!(bench.received(), Some(expected));
    }
    assert_eq!((bench.rack.outstanding(), bench.pool.in_use()), (0, 0));
    let report = bench.rack.report();
    assert!(report.valid && report.balances(), "{report}");
    assert_eq!((report.tasks, report.replies), (3, 3));
}

/// Compares replies to random tasks with the recurrence. Expected queue lengths are counts from the expected times.
// promise: measurement.3
#[test]
fn times_and_queues_follow_the_recurrence() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut bench = bench();
    let mut expected: Vec<(u64, ReceivedReply)> = Vec::new();
    let mut ends = [0_u64; 4];
    let mut arrivals = Vec::new();
    let (mut now, mut found) = (0_u64, Vec::new());
    for seq in 0..3_000_u16 {
        now += random.random_range(1..900);
        let (worker, service_ns) = (random.random_range(8..12_u16), random.random_range(0..3_000));
        let place = usize::from(worker - 8);
        bench.task(worker, seq, service_ns);
        bench.rack.poll(now);
        ends[place] = ends[place].max(now) + u64::from(service_ns);
        arrivals.push((now, place, ends[place], worker, seq, service_ns));
        while let Some(received) = bench.received() {
            found.push((now, received));
        }
    }
    bench.rack.poll(u64::MAX / 4);
    found.extend(std::iter::from_fn(|| bench.received()).map(|received| (u64::MAX / 4, received)));
    for &(_, place, end, worker, seq, service_ns) in &arrivals {
        // Number of tasks left at its end: later tasks of its worker that arrived before its end.
        let left = arrivals
            .iter()
            .filter(|(arrival, other_place, _, _, other_seq, _)| {
                *other_place == place && *arrival < end && *other_seq > seq
            })
            .count() as u16;
        expected
            .push((end, ReceivedReply { worker, seq, qlen: left, idle: left == 0, service_ns }));
    }
    assert_eq!(found.len(), expected.len());
    let mut last = [0_u16; 4];
    for (polled, received) in found {
        let (end, exact) = expected[usize::from(received.seq)];
        assert_eq!(received, exact);
        assert!(end <= polled);
        let before = std::mem::replace(&mut last[usize::from(received.worker - 8)], received.seq);
        assert!(before <= received.seq, "first come, first served");
    }
    assert_eq!(bench.pool.in_use(), 0);
}

#[test]
fn late_polls_slow_no_worker_and_are_reported() {
    let mut bench = bench();
    for seq in 0..100 {
        bench.task(8, seq, 1_000);
        bench.task(10, seq, 1_000);
    }
    // Seven bursts of at most 32 packets take all 200 tasks.
    for _ in 0..7 {
        bench.rack.poll(0);
    }
    bench.rack.poll(1_000_000);
    let replies: Vec<_> = std::iter::from_fn(|| bench.received()).collect();
    assert_eq!(replies.len(), 200);
    let replies_of = |worker| replies.iter().filter(move |received| received.worker == worker);
    assert!(replies_of(8).map(|received| received.qlen).eq((0..100).rev()));
    // A task that arrives now also starts now: the worker has been idle since 100 us.
    bench.task(8, 100, 1_000);
    bench.rack.poll(1_000_000);
    bench.rack.poll(1_001_000);
    assert_eq!(bench.received().unwrap().seq, 100);
    let report = bench.rack.report();
    assert!(!report.valid && report.reasons[0].contains("late by"), "{report}");
    // The first replies were due at 1 us and left at 1 ms.
    assert_eq!(report.lateness_us.max.0.round(), 999.0);
}

#[test]
fn invalid_packets_are_dropped_and_counted_by_reason() {
    let mut bench = bench();
    let good = task_request(9, 1, 1_000);
    let with = |change: &dyn Fn(&mut TaskRequest)| {
        let mut bad = good;
        change(&mut bad);
        frame(&bad)
    };
    // Flips a bit of byte `at`. Byte 5 is in the destination MAC address, 12 in the EtherType, 30 in the IPv4
    // destination address, whose change the header's checksum detects.
    let damaged = |at: usize| {
        let mut bytes = frame(&good);
        bytes[at] ^= 4;
        bytes
    };
    let bad = [
        (DropReason::Runt, vec![0; 9]),
        (DropReason::EtherType, damaged(12)),
        (DropReason::OtherMac, damaged(5)),
        (DropReason::Ipv4Checksum, damaged(30)),
        (DropReason::UdpChecksum, damaged(udp::PAYLOAD + 30)),
        (DropReason::OtherAddress, with(&|bad| bad.server = server(2))),
        (DropReason::UnknownWorker, with(&|bad| bad.server = server(1))),
        (DropReason::UnknownWorker, with(&|bad| bad.header.dst = 7)),
        (DropReason::UnknownWorker, with(&|bad| bad.header.dst = 12)),
        (DropReason::UnknownWorker, with(&|bad| bad.header.dst = task::NO_MEMBER)),
        (DropReason::TaskRole, with(&|bad| bad.header.code = Code::TaskDone)),
        (DropReason::ArpMalformed, {
            let mut arp = vec![0; 60];
            ether::emit(&mut arp, Mac::BROADCAST, LEAF, ether::ARP);
            arp
        }),
        (DropReason::TaskShort, {
            // Task header without the service time that must follow.
            let mut bytes = vec![0; udp::PAYLOAD + task::LEN];
            Header { dst: 9, ..Header::new_task(1, 1) }.emit(&mut bytes[udp::PAYLOAD..]);
            flow(server(0)).emit(&mut bytes, task::LEN);
            bytes
        }),
        (DropReason::UdpPort, {
            let mut bytes = frame(&good);
            let flow = Flow { dst_port: 1235, ..flow(server(0)) };
            flow.emit(&mut bytes, good.header.len() + payload::LEN);
            bytes
        }),
    ];
    for (reason, bytes) in &bad {
        let before = bench.dropped(*reason);
        assert!(bench.leaf.send(bytes));
        bench.rack.poll(0);
        assert_eq!(bench.dropped(*reason), before + 1, "{reason:?}");
    }
    assert_eq!(bench.rack.counts().dropped.iter().sum::<u64>(), bad.len() as u64);
    assert_eq!((bench.rack.outstanding(), bench.pool.in_use(), bench.received()), (0, 0, None));
    // None of these packets disturbed the rack.
    bench.task(9, 1, 1_000);
    bench.rack.poll(10);
    bench.rack.poll(1_010);
    assert_eq!(bench.received().unwrap().worker, 9);
}

#[test]
fn task_without_extension_gets_reply_without_extension() {
    let mut bench = bench();
    let mut short = task_request(11, 77, 500);
    short.header.extended = false;
    assert!(bench.leaf.send(&frame(&short)));
    bench.rack.poll(0);
    bench.rack.poll(500);
    let expected = ReceivedReply { worker: 11, seq: 77, qlen: 0, idle: true, service_ns: 0 };
    assert_eq!(bench.received(), Some(expected));
}

#[test]
fn arp_is_answered_for_every_server_only() {
    let mut bench = bench();
    let mut ask = |target: u32| {
        let mut question = [0; arp::FRAME_LEN];
        arp::Packet::request(LEAF, 0x0A00_0201, target).emit(&mut question, Mac::BROADCAST);
        assert!(bench.leaf.send(&question));
        bench.rack.poll(0);
        let answer = bench.leaf.receive()?;
        let packet = arp::Packet::parse(answer.bytes()).unwrap();
        Some((packet.sender, packet.sender_mac, ether::dst(answer.bytes())))
    };
    assert_eq!(ask(server(0)), Some((server(0), RACK, LEAF)));
    assert_eq!(ask(server(1)), Some((server(1), RACK, LEAF)));
    assert_eq!(ask(server(2)), None);
    assert_eq!(bench.rack.counts().arp_answers, 2);
    assert_eq!(bench.dropped(DropReason::ArpOther), 1);
}

#[test]
fn multi_packet_task_runs_when_last_packet_arrives() {
    let mut bench = bench();
    let mut part = task_request(8, 5, 1_000);
    part.header.more = true;
    assert!(bench.leaf.send(&frame(&part)));
    part.header.code = Code::TaskContinuation;
    assert!(bench.leaf.send(&frame(&part)));
    part.header.more = false;
    assert!(bench.leaf.send(&frame(&part)));
    bench.rack.poll(0);
    assert_eq!((bench.rack.counts().parts, bench.rack.outstanding()), (2, 1));
    bench.rack.poll(1_000);
    assert_eq!((bench.received().unwrap().seq, bench.received()), (5, None));
}

#[test]
fn overflow_is_counted_and_invalidates_the_run() {
    for options in [
        Options { outstanding_max: 3, ..Options::default() },
        Options { queue_max: 3, ..Options::default() },
    ] {
        let mut bench = bench_with(options, 64);
        for seq in 0..5 {
            bench.task(8, seq, 10);
        }
        bench.rack.poll(0);
        bench.rack.poll(100);
        let report = bench.rack.report();
        assert_eq!((report.overflow, report.replies), (2, 3));
        assert!(report.balances() && !report.valid);
        assert_eq!(std::iter::from_fn(|| bench.received()).count(), 3);
        assert_eq!(bench.pool.in_use(), 0);
    }
}

#[test]
fn a_full_device_delays_replies_and_loses_none() {
    // The wire holds eight packets, less than the replies that are due at once.
    let mut bench = bench_with(Options::default(), 8);
    for round in 0..5 {
        for seq in 0..8 {
            bench.task(8, round * 8 + seq, 10);
        }
        bench.rack.poll(0);
    }
    bench.rack.poll(1_000);
    let mut seqs = Vec::new();
    for now in 1_001..1_010 {
        seqs.extend(std::iter::from_fn(|| bench.received()).map(|received| received.seq));
        bench.rack.poll(now);
    }
    assert!(seqs.iter().copied().eq(0..40), "{seqs:?}");
    assert!(bench.rack.counts().tx_full > 0 && bench.rack.report().balances());
    assert_eq!(bench.pool.in_use(), 0);
}

#[test]
fn dead_worker_is_silent_until_revived() {
    let mut bench = bench();
    for worker in [8, 8, 9] {
        bench.task(worker, 1, 1_000);
    }
    bench.rack.poll(0);
    bench.rack.kill(8, 0, 0);
    bench.task(8, 2, 1_000);
    bench.rack.poll(10);
    bench.rack.poll(5_000);
    assert_eq!(
        std::iter::from_fn(|| bench.received()).map(|received| received.worker).collect::<Vec<_>>(),
        [9]
    );
    bench.rack.revive(8);
    bench.task(8, 3, 1_000);
    bench.rack.poll(6_000);
    bench.rack.poll(7_000);
    assert_eq!(bench.received().unwrap().seq, 3);
    let report = bench.rack.report();
    assert_eq!((report.died, report.replies), (3, 2));
    assert!(report.balances());
    assert_eq!(bench.pool.in_use(), 0);
}

#[test]
fn late_poll_answers_tasks_completed_before_death() {
    let mut bench = bench();
    for seq in [1, 2] {
        bench.task(8, seq, 1_000);
    }
    bench.rack.poll(0);
    let outage = Outage { worker: 8, from_s: 1.5e-6, until_s: 9e-6 };
    let mut outages = Outages::new(&[outage], 0, HZ);
    outages.apply(&mut bench.rack, 5_000);
    bench.rack.poll(5_000);
    assert_eq!(
        std::iter::from_fn(|| bench.received()).map(|reply| reply.seq).collect::<Vec<_>>(),
        [1]
    );
    let report = bench.rack.report();
    assert_eq!((report.died, report.replies), (1, 1));
    assert!(report.balances());
}

#[test]
fn lost_replies_follow_from_the_seed() {
    let lost = |seed| {
        let mut bench = bench_with(Options { lose_share: 0.2, seed, ..Options::default() }, 1024);
        for seq in 0..1_000 {
            bench.task(8 + seq % 4, seq, 10);
        }
        for now in 0..40 {
            bench.rack.poll(now * 1_000);
        }
        let report = bench.rack.report();
        assert!(report.balances() && bench.rack.outstanding() == 0);
        let received: Vec<_> =
            std::iter::from_fn(|| bench.received()).map(|received| received.seq).collect();
        assert_eq!(received.len() as u64, report.replies);
        assert_eq!(bench.pool.in_use(), 0);
        // 200 of 1000 are expected.
        assert!((100..300).contains(&report.lost_replies), "{}", report.lost_replies);
        received
    };
    assert_eq!(lost(1), lost(1));
    assert_ne!(lost(1), lost(2));
}

#[test]
fn outage_kills_and_revives_its_worker_in_time() {
    let mut bench = bench();
    let outage = Outage { worker: 8, from_s: 1e-6, until_s: 3e-6 };
    // The run starts at 500 ns, so the worker is dead from 1500 to 3500 ns.
    let mut outages = Outages::new(&[outage], 500, HZ);
    let mut answered = Vec::new();
    for now in (0..5_000).step_by(500) {
        outages.apply(&mut bench.rack, now);
        bench.task(8, now as u16, 0);
        bench.rack.poll(now);
        bench.rack.poll(now);
        answered.extend(bench.received().map(|received| received.seq));
    }
    assert_eq!(answered, [0, 500, 1_000, 3_500, 4_000, 4_500]);
    assert_eq!(bench.rack.counts().died, 4);
}

/// MAC address of a second leaf.
const OTHER_LEAF: Mac = Mac([2, 0, 0, 0, 2, 2]);
/// IP and MAC addresses of the leaves that share the workers.
const LEAVES: [(Ipv4Addr, Mac); 2] =
    [(Ipv4Addr::new(10, 0, 2, 1), LEAF), (Ipv4Addr::new(10, 0, 2, 2), OTHER_LEAF)];

/// Returns the rack's messages to leaves in order: destination MAC address, source address and header. Answers the
/// rack's requests for the leaves' MAC addresses. Translates IPv6 frames to IPv4 ([`family`]).
fn messages(bench: &mut Bench) -> Vec<(Mac, u32, Header)> {
    let frames: Vec<Frame> = std::iter::from_fn(|| bench.leaf.receive()).collect();
    let mut sent_messages = Vec::new();
    for frame in frames {
        let bytes = as_v4(frame.bytes());
        if let Ok(question) = arp::Packet::parse(&bytes) {
            let leaf = LEAVES.iter().find(|(ip, _)| ip.to_bits() == question.target).unwrap();
            let mut answer = [0; arp::FRAME_LEN];
            question.answer(leaf.1).emit(&mut answer, RACK);
            bench.send(&answer);
            continue;
        }
        let datagram = udp::parse(&bytes, false).unwrap();
        let header = Header::parse(&bytes[datagram.payload()..]).unwrap();
        sent_messages.push((ether::dst(&bytes), datagram.src, header));
    }
    sent_messages
}

// promise: scheduling.6
#[test]
fn workers_register_at_each_leaf_and_report() {
    BOTH.into_iter().for_each(workers_register_and_report);
}

/// Two leaves acknowledge each worker's registration, and each worker reports to both. After that, a worker
/// that becomes idle reports to one random leaf (`lsq-update(eps=0)`).
fn workers_register_and_report(family: Family) {
    let mut bench = if family == Family::V6 { bench_v6() } else { bench() };
    let leaf_ip = |(ip, _): (Ipv4Addr, Mac)| match family {
        Family::V4 => ip.into(),
        Family::V6 => Ipv6Addr::from_bits(family::v6(ip.to_bits())).into(),
    };
    let options = LeafOptions {
        leaves: LEAVES.map(leaf_ip).to_vec(),
        pool: 1,
        policy: "lsq-update(eps=0)".parse().unwrap(),
        seed: 7,
    };
    bench.rack = bench.rack.with_leaves(&options, bench.pool.clone());
    let (mut now, mut queue_reports) = (0, Vec::new());
    for _ in 0..40 {
        now += 1_000_000;
        bench.rack.poll(now);
        for (to, from, header) in messages(&mut bench) {
            assert_eq!((from, header.pool), (server(u32::from(header.src - 8) / 2), 1));
            match header.code {
                Code::WorkerId => {
                    let (ip, mac) = LEAVES.into_iter().find(|(_, mac)| *mac == to).unwrap();
                    let flow = Flow {
                        src_mac: mac,
                        dst_mac: RACK,
                        src: ip.to_bits(),
                        dst: from,
                        src_port: 1234,
                        dst_port: 1234,
                    };
                    // Leaf 9 excludes the worker after a silence of 100 ms.
                    let answer = header.acknowledged_by(9, 100);
                    let mut frame = vec![0; udp::PAYLOAD + answer.len()];
                    answer.emit(&mut frame[udp::PAYLOAD..]);
                    flow.emit(&mut frame, answer.len());
                    bench.send(&frame);
                }
                Code::QueueReport => queue_reports.push((to, header.src, header.qlen)),
                code => assert_eq!(code, Code::KeepAlive),
            }
        }
    }
    queue_reports.sort_unstable_by_key(|(to, worker, _)| (to.0, *worker));
    let expected = |(_, mac): &(Ipv4Addr, Mac)| (8..12).map(|worker| (*mac, worker, 0)).collect();
    assert_eq!(queue_reports, LEAVES.iter().flat_map::<Vec<_>, _>(expected).collect::<Vec<_>>());
    // Both leaves send one task to worker 9. Each receives the reply to its own task, and one of them the report that
    // the worker is idle.
    let mut idle_reports = [0; 2];
    for seq in 0..100 {
        let mut tasks = [task_request(9, 2 * seq, 1000), task_request(9, 2 * seq + 1, 1000)]
            .map(|task| frame(&task));
        ether::emit_addresses(&mut tasks[1], RACK, OTHER_LEAF);
        tasks.iter().for_each(|task| bench.send(task));
        for _ in 0..4 {
            now += 1000;
            bench.rack.poll(now);
        }
        let sent_messages = messages(&mut bench);
        let replies: Vec<_> =
            sent_messages.iter().filter(|(.., header)| header.code.is_reply()).collect();
        assert_eq!(replies.iter().map(|(to, ..)| *to).collect::<Vec<_>>(), [LEAF, OTHER_LEAF]);
        let mut reports =
            sent_messages.iter().filter(|(.., header)| header.code == Code::QueueReport);
        let (to, _, header) = reports.next().unwrap();
        assert_eq!((header.src, header.qlen, reports.next()), (9, 0, None));
        idle_reports[usize::from(*to == OTHER_LEAF)] += 1;
    }
    // Each leaf receives about half of the 100 reports.
    assert!(idle_reports.iter().all(|&count| count > 25), "{idle_reports:?}");
    // Four workers to two leaves at first, then one for each of the 100 rounds.
    assert_eq!(bench.rack.counts().queue_reports, 108);
    let report = bench.rack.report();
    assert!(report.valid && report.to_string().contains("queue reports 108"), "{report}");
}

// promise: scheduling.6
#[test]
fn probe_answer_carries_the_queue_length() {
    let mut bench = bench();
    let mut now = 0;
    // Three long tasks at worker 9, none at worker 8.
    for seq in 0..3 {
        assert!(bench.leaf.send(&frame(&task_request(9, seq, 1_000_000))));
    }
    now += 1000;
    bench.rack.poll(now);
    for (worker, tasks) in [(9, 3), (8, 0)] {
        // Probe 77 of leaf 9 for pool 1.
        let probe = Header::queue_probe(1, 9, worker, 77);
        let flow = Flow {
            src_mac: OTHER_LEAF,
            dst_mac: RACK,
            src: Ipv4Addr::new(10, 0, 2, 2).to_bits(),
            dst: server(0),
            src_port: 1234,
            dst_port: 1234,
        };
        let mut bytes = vec![0; udp::PAYLOAD + probe.len()];
        probe.emit(&mut bytes[udp::PAYLOAD..]);
        flow.emit(&mut bytes, probe.len());
        assert!(bench.leaf.send(&bytes));
        now += 1000;
        bench.rack.poll(now);
        assert_eq!(messages(&mut bench), [(OTHER_LEAF, server(0), probe.answered_with(tasks))]);
    }
    assert_eq!((bench.rack.counts().probe_answers, bench.rack.counts().arp_answers), (2, 0));
    let report = bench.rack.report();
    assert!(report.valid && report.to_string().contains("probes answered 2"), "{report}");
}

/// IPv6 address of the first server.
const SERVER_V6: u128 = 0xFD00_0002 << 96 | 0x0B;
/// IPv6 address of a client. The leaf's own packets also have it as their source.
const CLIENT_V6: u128 = 0xFD00_0001 << 96 | 0x100;

/// Creates a rack over IPv6 with the default options.
fn bench_v6() -> Bench {
    let pool = FramePool::new(4096, 160);
    let (leaf, port) = memory::pair(2048, &pool);
    let layout = Layout::new("fd00:2::b+2".parse().unwrap(), 2, 8).unwrap();
    Bench { rack: Rack::new(port, RACK, layout, Options::default(), HZ), leaf, pool }
}

/// Builds the packet of a task over IPv6 for the server with index `server`.
fn frame_v6(request: &TaskRequest, server: u128) -> Vec<u8> {
    let over_v4 = frame(request);
    let payload = &over_v4[udp::PAYLOAD..];
    let mut bytes = [&[0; udp::PAYLOAD_V6][..], payload].concat();
    let (src_mac, dst_mac, src_port, dst_port) = (LEAF, RACK, 40_001, 1234);
    let (src, dst) = (CLIENT_V6, SERVER_V6 + server);
    let flow = Flow { src_mac, dst_mac, src, dst, src_port, dst_port };
    flow.emit_v6(&mut bytes, payload.len());
    bytes
}

#[test]
fn ipv6_tasks_are_answered_when_due() {
    let mut bench = bench_v6();
    for (worker, seq) in [(8, 1), (8, 2), (11, 3)] {
        let server = u128::from(worker > 9);
        assert!(bench.leaf.send(&frame_v6(&task_request(worker, seq, 1_000), server)));
    }
    bench.rack.poll(0);
    bench.rack.poll(999);
    assert!(bench.leaf.receive().is_none(), "no worker is done yet");
    bench.rack.poll(2_000);
    let mut answers = Vec::new();
    while let Some(reply) = bench.leaf.receive() {
        let datagram = udp::parse_v6(reply.bytes(), false).expect("a reply is a valid packet");
        let header = Header::parse(&reply.bytes()[datagram.payload()..]).unwrap();
        assert_eq!((datagram.dst, datagram.src_port, datagram.dst_port), (CLIENT_V6, 1234, 40_001));
        assert_eq!((ether::src(reply.bytes()), ether::dst(reply.bytes())), (RACK, LEAF));
        answers.push((datagram.src - SERVER_V6, header.src, header.seq, header.qlen));
    }
    answers.sort_unstable();
    assert_eq!(answers, [(0, 8, 1, 1), (0, 8, 2, 0), (1, 11, 3, 0)]);
    let report = bench.rack.report();
    assert!(report.balances() && (report.tasks, report.replies) == (3, 3), "{report}");
    assert_eq!(bench.pool.in_use(), 0);
}

#[test]
fn ipv6_queue_probes_are_answered() {
    let mut bench = bench_v6();
    assert!(bench.leaf.send(&frame_v6(&task_request(8, 1, 1_000_000), 0)));
    // Probe 77 of leaf 9 for worker 8 of pool 1.
    let probe = Header::queue_probe(1, 9, 8, 77);
    let mut bytes = vec![0; udp::PAYLOAD_V6 + probe.len()];
    probe.emit(&mut bytes[udp::PAYLOAD_V6..]);
    let (src_mac, dst_mac, src_port, dst_port) = (LEAF, RACK, 1234, 1234);
    let flow = Flow { src_mac, dst_mac, src: CLIENT_V6, dst: SERVER_V6, src_port, dst_port };
    flow.emit_v6(&mut bytes, probe.len());
    assert!(bench.leaf.send(&bytes));
    bench.rack.poll(0);
    let answer = bench.leaf.receive().unwrap();
    let datagram = udp::parse_v6(answer.bytes(), false).unwrap();
    assert_eq!((datagram.src, datagram.dst), (SERVER_V6, CLIENT_V6));
    let header = Header::parse(&answer.bytes()[datagram.payload()..]).unwrap();
    assert_eq!(header, probe.answered_with(1));
}

// promise: measurement.3
#[test]
fn neighbour_discovery_is_answered_for_every_server_only() {
    let mut bench = bench_v6();
    let mut ask = |target: u128, known: Option<Mac>| {
        let mut question = [0; ndp::FRAME_LEN];
        let (message, to) = ndp::Packet::question(LEAF, CLIENT_V6, target, known);
        message.emit(&mut question, to, true);
        assert!(bench.leaf.send(&question));
        bench.rack.poll(0);
        let answer = bench.leaf.receive()?;
        let packet = ndp::Packet::parse(answer.bytes()).unwrap();
        assert_eq!(packet.dst, CLIENT_V6);
        Some((packet.target, packet.mac, ether::dst(answer.bytes())))
    };
    for (server, known) in [(0, None), (1, None), (1, Some(RACK))] {
        let target = SERVER_V6 + server;
        assert_eq!(ask(target, known), Some((target, Some(RACK), LEAF)));
    }
    assert_eq!(ask(SERVER_V6 + 2, None), None);
    assert_eq!(ask(u128::from(server(0)), None), None);
    assert_eq!(bench.rack.counts().arp_answers, 3);
    assert_eq!(bench.dropped(DropReason::NdOther), 2);
    // An IPv6 rack ignores ARP.
    let mut question = [0; arp::FRAME_LEN];
    arp::Packet::request(LEAF, 1, server(0)).emit(&mut question, Mac::BROADCAST);
    assert!(bench.leaf.send(&question));
    bench.rack.poll(0);
    assert_eq!(bench.dropped(DropReason::ArpOther), 1);
}

// promise: measurement.1
#[test]
fn invalid_ipv6_packets_are_counted_by_reason() {
    let mut bench = bench_v6();
    let good = task_request(9, 1, 1_000);
    // Overwrites bytes from `at` on. The IPv6 header has the payload's length at offset 4 and the next header at
    // 6. Before the payload, the UDP header ends with its length and checksum of 2 bytes each.
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = frame_v6(&good, 0);
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    // Neighbour discovery must arrive with a hop limit of 255.
    let mut low_hop_limit = vec![0; ndp::FRAME_LEN];
    let (message, to) = ndp::Packet::question(LEAF, CLIENT_V6, SERVER_V6, None);
    message.emit(&mut low_hop_limit, to, true);
    low_hop_limit[21] = 254; // byte 21 of the frame is the hop limit
    let mut empty_option = low_hop_limit.clone();
    (empty_option[21], empty_option[79]) = (255, 0); // byte 79 is the length of an option
    let mut acknowledgement = vec![0; udp::PAYLOAD_V6 + task::LEN];
    let header = Header { code: Code::WorkerIdAck, dst: 9, ..Header::new_task(1, 1) };
    header.emit(&mut acknowledgement[udp::PAYLOAD_V6..]);
    let (src_mac, dst_mac, src_port, dst_port) = (LEAF, RACK, 1234, 1234);
    let flow = Flow { src_mac, dst_mac, src: CLIENT_V6, dst: SERVER_V6, src_port, dst_port };
    flow.emit_v6(&mut acknowledgement, task::LEN);
    for (reason, bytes) in [
        (DropReason::OtherMac, with(5, &[9])),
        (DropReason::OtherAddress, frame_v6(&good, 2)),
        (DropReason::UnknownWorker, frame_v6(&good, 1)),
        (DropReason::UdpChecksum, with(udp::PAYLOAD_V6 + 20, &[0xEE])),
        (DropReason::UdpNoChecksum, with(udp::PAYLOAD_V6 - 2, &[0, 0])),
        (DropReason::UdpLength, with(udp::PAYLOAD_V6 - 4, &[0, 7])),
        (DropReason::Ipv6Header, with(ether::LEN + 4, &[0, 0])),
        (DropReason::Ipv6Header, with(ether::LEN + 4, &[9, 0])),
        (DropReason::Ipv6Extension, with(ether::LEN + 6, &[0])),
        (DropReason::NotUdp, with(ether::LEN + 6, &[6])),
        (DropReason::Runt, frame_v6(&good, 0)[..40].to_vec()),
        (DropReason::OtherAddress, frame(&good)),
        (DropReason::NdMalformed, low_hop_limit),
        (DropReason::NdMalformed, empty_option),
        (DropReason::NotAsked, acknowledgement),
    ] {
        let before = bench.dropped(reason);
        assert!(bench.leaf.send(&bytes));
        bench.rack.poll(0);
        assert_eq!(bench.dropped(reason), before + 1, "{reason:?}");
    }
    assert_eq!((bench.rack.outstanding(), bench.pool.in_use()), (0, 0));
}
