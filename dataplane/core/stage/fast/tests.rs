//! Tests of the fast path over IPv4, against the stages.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::io::memory::FramePool;
use crate::policy::{LANES, Lane, Lanes, Overflow};
use crate::stage::fixture::{self, Fixture};
use crate::stage::{
    EXCHANGE_PACKETS, EXCHANGE_TICKS, IpOptions, PortAddress, QueuePlace, Side, Stages,
};
use crate::wire::auth::{KEY_LEN, Key, addresses};
use crate::wire::checksum::ChecksumDelta;
use crate::wire::completion::{COMPLETIONS_MAX, Completion, ENTRY_LEN};
use crate::wire::ether::Mac;
use crate::wire::task::{Code, Header};
use crate::wire::udp::{self, Flow};

// Addresses of the leaf (10.0.1.1) and of the workers' server (10.0.1.11). The client has 10.0.1.2.
const LEAF: u32 = 0x0A00_0101;
const LEAF_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const SERVER: u32 = 0x0A00_010B;
const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 1, 11]);

const UDP: usize = <u32 as Address>::UDP;
const TASK: usize = <u32 as Address>::PAYLOAD;

/// Key of the pool, for tests with authenticated replies.
fn key() -> Key {
    Key::new([9; KEY_LEN])
}

/// Builds stages with both sides behind the port.
fn stages() -> Stages {
    stages_of(Side::Both)
}

/// Builds stages with this side behind the port.
pub fn stages_of(side: Side) -> Stages {
    stages_with(side, None)
}

/// Builds stages with this side behind the receiving port. The workers are behind it or behind a second
/// port. With a key, the stages accept sequence numbers beyond the first window.
fn stages_with(side: Side, key: Option<Key>) -> Stages {
    stages_of_options(side, key, IpOptions::Refuse)
}

/// Like [`stages_with`], on a port that permits these IPv4 options in tasks.
fn stages_of_options(side: Side, key: Option<Key>, ip_options: IpOptions) -> Stages {
    stages_of_policy(side, key, ip_options, "horus")
}

/// Like [`stages_of_options`], with this policy. The pool has eight workers on one server.
fn stages_of_policy(
    side: Side,
    key: Option<Key>,
    ip_options: IpOptions,
    policy: &'static str,
) -> Stages {
    fixture::stages(fixture_of(side, key, ip_options, policy))
}

/// Returns the parameters of [`stages_of_policy`].
fn fixture_of(
    side: Side,
    key: Option<Key>,
    ip_options: IpOptions,
    policy: &'static str,
) -> Fixture {
    let server = if side == Side::Clients { [10, 0, 4, 11] } else { [10, 0, 1, 11] };
    let mut here = PortAddress::new(LEAF_MAC, LEAF.to_be_bytes().into(), 24, side);
    here.ip_options = ip_options;
    let there = PortAddress::new(Mac([2, 0, 0, 0, 0, 2]), [10, 0, 4, 1].into(), 24, Side::Both);
    Fixture {
        ports: vec![here, there],
        server: server.into(),
        mac: Some(SERVER_MAC),
        pool: 263, // 0x0107, as in `task` and `reply`
        policy,
        members: (0..8).collect(),
        key,
        service: None,
        is_direct: false,
    }
}

/// Builds a task to the leaf, or a reply through it.
pub fn frame(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; header.len()];
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    signed_frame(header, bytes, None)
}

/// Builds such a packet from these bytes, or a completion report. With a sequence number, signs it like a reply.
fn signed_frame(header: Header, mut bytes: Vec<u8>, sequence: Option<u64>) -> Vec<u8> {
    let (is_reply, is_report) = (header.code.is_reply(), header.code == Code::Completions);
    let from_server = is_reply || is_report;
    if let Some(sequence) = sequence {
        key().sign(&addresses(SERVER, 0x0A00_0102), &mut bytes, sequence);
    }
    let mut frame = vec![0; udp::PAYLOAD + bytes.len()];
    frame[udp::PAYLOAD..].copy_from_slice(&bytes);
    let flow = Flow {
        src_mac: if from_server { SERVER_MAC } else { Mac([2, 0, 0, 0, 1, 2]) },
        dst_mac: LEAF_MAC,
        src: if from_server { SERVER } else { 0x0A00_0102 },
        dst: if is_reply { 0x0A00_0102 } else { LEAF },
        src_port: if from_server { 1234 } else { 40_000 },
        dst_port: if is_reply { 40_000 } else { 1234 },
    };
    flow.emit(&mut frame, bytes.len());
    frame
}

/// Returns the header of a task.
pub fn task(seq: u16, extended: bool) -> Header {
    Header { extended, ..Header::new_task(0x0107, seq) }
}

/// Returns the header of a worker's reply with its queue length.
fn reply(worker: u16, qlen: u16) -> Header {
    let code = if qlen == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
    Header { code, src: worker, qlen, ..Header::new_task(0x0107, 0) }
}

/// Changes bytes of a frame, and truncates it at `cut`, if given.
pub fn damage(
    frame: &mut Vec<u8>,
    edits: &[(prop::sample::Index, u8)],
    cut: Option<prop::sample::Index>,
) {
    for (at, byte) in edits {
        let at = at.index(frame.len());
        frame[at] = *byte;
    }
    if let Some(cut) = cut {
        frame.truncate(cut.index(frame.len()));
    }
}

/// Checks that the fast path and the stages give a packet the same verdict and the same bytes. `with` uses the fast
/// path, `without` only the stages; both get the packet on port 0 at tick 1.
pub fn assert_decided_equally(
    with: &mut Stages,
    without: &mut Stages,
    pool: &FramePool,
    frame: &[u8],
) -> Result<(), TestCaseError> {
    let mut fast = [pool.frame(frame).unwrap()];
    let mut slow = [pool.frame(frame).unwrap()];
    let (mut fast_verdicts, mut slow_verdicts) = ([Verdict::Consumed], [Verdict::Consumed]);
    with.process(0, 1, &mut fast, &mut fast_verdicts[..]);
    // `process` also learns MAC addresses from tasks, `process_in_stages` does not.
    without.learn(0, &slow);
    without.process_in_stages(0, 1, &mut slow, &mut slow_verdicts);
    prop_assert_eq!(fast_verdicts, slow_verdicts);
    prop_assert_eq!(fast[0].bytes(), slow[0].bytes());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The fast path and the stages give each packet the same verdict and the same bytes.
    // promise: packets.2, trust.3
    #[test]
    fn fast_path_and_stages_decide_equally(
        packets in proptest::collection::vec((
            any::<(u16, bool, bool)>(), 0..16_u16,
            proptest::collection::vec(any::<u8>(), 0..40),
            proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
            proptest::option::weighted(0.2, any::<prop::sample::Index>()),
        ), 1..40),
        unsummed: bool, keyed: bool,
        side in proptest::sample::select(vec![Side::Both, Side::Clients, Side::Workers]),
        source in proptest::option::of(proptest::sample::select(TASK_SOURCES.to_vec())),
    ) {
        let pool = FramePool::new(4, 256);
        let [mut with, mut without] = [(); 2].map(|()| stages_with(side, keyed.then(key)));
        for ((seq, extended, replies), kind, payload, edits, cut) in packets {
            // `kind` is the worker of a reply: 8 to 15 are unknown. One packet in 16 has the flag of a task with
            // further packets.
            let header = if replies { reply(kind, seq % 3) } else { task(seq, extended) };
            let header = Header { more: kind == 0, extended, ..header };
            // With a key, most replies are signed, and some sequences repeat.
            let signs = replies && keyed == (seq % 11 != 0);
            let header = Header { authenticated: signs, ..header };
            let mut bytes = vec![0; header.len()];
            header.emit(&mut bytes);
            bytes.extend_from_slice(&payload);
            let sequence = signs.then_some(5000 + u64::from(seq / 11) % 40);
            let mut frame = signed_frame(header, bytes, sequence);
            if unsummed {
                frame[UDP + 6..UDP + 8].fill(0); // no UDP checksum
            }
            if let Some(source) = source.filter(|_| seq % 4 == 0) {
                readdress(&mut frame, source);
            }
            damage(&mut frame, &edits, cut);
            assert_decided_equally(&mut with, &mut without, &pool, &frame)?;
        }
        prop_assert_eq!(with.counters.totals(), without.counters.totals());
    }
}

/// Marks both copies of a task as filling its worker, if one is marked.
fn mark_alike(one: &mut [u8], other: &mut [u8]) {
    let is_marked = |frame: &[u8]| {
        let header = Header::parse(&frame[TASK..]).unwrap();
        header.code.is_task() && header.qlen & u16::from(task::FULL) != 0
    };
    let mark = |frame: &mut [u8]| {
        frame[TASK + 8] |= task::FULL; // the lower byte of `qlen`
        udp::update_checksum_folded(&mut frame[UDP..], FoldedDelta::even_byte(task::FULL));
    };
    match (is_marked(one), is_marked(other)) {
        (true, false) => mark(other),
        (false, true) => mark(one),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The fast path gives each packet of a burst the same verdict and the same bytes as the stages in pools with
    /// waiting tasks. The same tasks wait. Waiting tasks that the fast path recognised are released in runs as in
    /// single steps. With direct return, each run also marks earlier tasks of a worker that it fills.
    // promise: packets.2
    #[test]
    fn waiting_tasks_are_decided_as_in_stages(
        bursts in proptest::collection::vec((
            0..3_usize,
            proptest::collection::vec((any::<bool>(), 0..8_u16, any::<u16>()), 1..=BURST),
        ), 1..12),
        policy in proptest::sample::select(vec!["jbsq(k=1)", "jbsq(k=3)", "cfcfs", "eft"]),
        bound in 0..40_usize,
        overflow in proptest::sample::select(vec![Overflow::Drop, Overflow::Refuse]),
        run_most in 1..=BURST,
        cores in 1..=3_usize,
        is_resolved: bool,
        is_direct: bool,
    ) {
        let pool = FramePool::new(3 * BURST, 256);
        let mut both = [(); 2].map(|()| {
            let mut node = fixture_of(Side::Both, None, IpOptions::Refuse, policy);
            if is_direct {
                node.ports[1].side = Side::Workers; // with direct return one port has all clients
            }
            let mac = node.mac.filter(|_| is_resolved);
            let mut cores = fixture::cores(Fixture { mac, is_direct, ..node }, cores);
            for stages in &mut cores {
                stages.dispatchers[0].set_queue(bound, overflow);
            }
            cores
        });
        let mut queues = vec![std::collections::VecDeque::new(); cores];
        for (number, (core, burst)) in (1..).zip(bursts) {
            let frames = burst.into_iter().map(|(replies, worker, seq)| {
                frame(if replies { reply(worker, seq % 3) } else { task(seq, false) }, &[])
            });
            let frames: Vec<_> = frames.collect();
            let queue = &mut queues[core % cores];
            let [with, without] = both.each_mut().map(|node| &mut node[core % cores]);
            for stages in [&mut *with, &mut *without] {
                stages.note_burst(10_000 * number);
                stages.tick_holding(10_000 * number);
            }
            let [mut fast, mut slow] = [(); 2].map(|()| {
                frames.iter().map(|frame| pool.frame(frame).unwrap()).collect::<Vec<_>>()
            });
            let [mut fast_verdicts, mut slow_verdicts] = [[Verdict::Consumed; BURST]; 2];
            with.process(0, 1, &mut fast, &mut fast_verdicts[..]);
            without.learn(0, &slow);
            let count = slow.len();
            without.process_in_stages(0, 1, &mut slow, &mut slow_verdicts[..count]);
            without.received += count; // as `process` does
            for (index, frame) in frames.into_iter().enumerate() {
                mark_alike(fast[index].bytes_mut(), slow[index].bytes_mut());
                prop_assert_eq!(fast[index].bytes(), slow[index].bytes());
                let Verdict::Queue { is_recognised, .. } = fast_verdicts[index] else {
                    prop_assert_eq!(fast_verdicts[index], slow_verdicts[index]);
                    continue;
                };
                let waits = Verdict::Queue { pool: 0, lane: Lane::FIRST, is_recognised: false };
                prop_assert_eq!(slow_verdicts[index], waits);
                queue.push_back((frame, is_recognised));
            }
            prop_assert_eq!((with.waiting(), without.waiting()), (queue.len(), queue.len()));
            with.exchange();
            without.exchange();
            let first = QueuePlace { pool: 0, lane: Lane::FIRST, port: 0 };
            let mut may_go = with.take_freed();
            prop_assert_eq!(may_go, without.take_freed());
            while let Some((frame, is_recognised)) = queue.front_mut().filter(|_| may_go) {
                if !*is_recognised {
                    let mut other = frame.clone();
                    let verdict = with.offer(first, 1, frame);
                    prop_assert_eq!(verdict, without.offer(first, 1, &mut other));
                    prop_assert_eq!(&*frame, &other);
                    may_go = verdict.is_some();
                    queue.drain(..usize::from(may_go));
                    continue;
                }
                prop_assert!(with.releases_runs(0));
                let run = queue.iter().take(run_most).take_while(|(_, recognised)| *recognised);
                let mut fast: Vec<_> =
                    run.map(|(frame, _)| pool.frame(frame).unwrap()).collect();
                let mut picks = [None; BURST];
                let released = with.pick_waiting(0, &mut picks[..fast.len()]);
                may_go = released == fast.len();
                fast.truncate(released);
                let mut verdicts = [Verdict::Consumed; BURST];
                with.send_waiting((0, 0), &mut fast, &picks[..released], &mut verdicts);
                for ((mut frame, _), (fast, verdict)) in
                    queue.drain(..released).zip(fast.iter_mut().zip(verdicts))
                {
                    prop_assert_eq!(without.offer(first, 1, &mut frame), Some(verdict));
                    mark_alike(fast.bytes_mut(), &mut frame);
                    prop_assert_eq!(fast.bytes(), &frame);
                }
                if !may_go {
                    prop_assert_eq!(without.offer(first, 1, &mut queue[0].0.clone()), None);
                }
            }
        }
        for (with, without) in both[0].iter().zip(&both[1]) {
            prop_assert_eq!(with.counters.totals(), without.counters.totals());
        }
    }
}

/// Builds a task or reply with this class and service time.
fn classed(header: Header, class: u16, service_ns: u32) -> Vec<u8> {
    let header = Header { extended: true, ..header };
    let mut bytes = vec![0; header.len()];
    header.emit(&mut bytes);
    Extension { class, service_ns, ..Extension::default() }.emit(&mut bytes);
    signed_frame(header, bytes, None)
}

/// Builds a completion report.
fn completions(entries: &[Completion]) -> Vec<u8> {
    let header = Header::completions(0x0107, entries[0].worker, entries.len() as u16, 0);
    let mut bytes = vec![0; header.len() + entries.len() * ENTRY_LEN];
    header.emit(&mut bytes);
    Completion::emit_all(entries, &header, &mut bytes);
    signed_frame(header, bytes, None)
}

/// Returns random completions of the pool's workers.
fn some_completion() -> impl Strategy<Value = Completion> {
    (0..8_u16, 0..10_u16, 0..3_u16, 1..1_000_000_u32).prop_map(
        |(worker, class, left, service_ns)| Completion { worker, class, left, service_ns },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// The fast path and the stages learn the same service times of classes from completion reports and replies,
    /// and the same as from replies alone. So the same tasks wait, and leave in the same order.
    // promise: packets.2, scheduling.3
    #[test]
    fn completions_teach_classes_as_replies_do(
        bursts in proptest::collection::vec((
            proptest::collection::vec(
                proptest::collection::vec(some_completion(), 1..=COMPLETIONS_MAX), 0..3,
            ),
            proptest::collection::vec((any::<bool>(), some_completion()), 1..=28),
        ), 1..8),
        policy in proptest::sample::select(
            vec!["jbsq(k=1, boost=1)", "cfcfs(boost=3)", "eft(boost=1, reserve=2)"]
        ),
    ) {
        let pool = FramePool::new(BURST, 512);
        let mut all = [(); 3].map(|()| {
            let mut stages = stages_of_policy(Side::Both, None, IpOptions::Refuse, policy);
            stages.dispatchers[0].set_queue(1024, Overflow::Drop);
            stages
        });
        for stages in &mut all {
            // Teaches the client's MAC address.
            process(stages, &pool, &[classed(task(0, true), 0, 0)], true);
        }
        // Waiting tasks by lane, with their numbers in place of times.
        let mut queues = [(); LANES].map(|()| std::collections::VecDeque::new());
        let mut number = 0;
        for (reports, others) in bursts {
            let reply = |done: &Completion| {
                classed(reply(done.worker, done.left), done.class, done.service_ns)
            };
            let others = others.iter().map(|(replies, done)| match replies {
                true => reply(done),
                false => classed(task(0, true), done.class, 0),
            });
            let others: Vec<_> = others.collect();
            for report in &reports {
                let replies: Vec<_> = report.iter().map(reply).collect();
                process(&mut all[2], &pool, &replies, true);
            }
            // Reports come first: the fast path decides on a task before a later report, and the stages after it.
            let frames: Vec<_> =
                reports.iter().map(|report| completions(report)).chain(others.clone()).collect();
            let [fast, slow, by_replies] = &mut all;
            let expected = process(fast, &pool, &frames, true);
            prop_assert_eq!(&process(slow, &pool, &frames, false), &expected);
            let expected = &expected[reports.len()..];
            prop_assert_eq!(process(by_replies, &pool, &others, true), expected);
            for (frame, (verdict, _)) in others.into_iter().zip(expected) {
                if let Verdict::Queue { lane, .. } = verdict {
                    number += 1;
                    queues[lane.index()].push_back((1000 * number, frame));
                }
            }
            let keys = all.each_ref().map(|stages| {
                [0, 1, 2, 3, 4, 5, 6, 7, 9].map(|class| {
                    let dispatcher = &stages.dispatchers[0];
                    dispatcher.key(dispatcher.lane(Task::new(class)), 0)
                })
            });
            prop_assert_eq!(keys, [keys[0]; 3]);
            loop {
                let first = all.each_ref().map(|stages| {
                    let since = |lane: Lane| queues[lane.index()].front().map(|first| first.0);
                    stages.dispatchers[0].next_lane(Lanes::NONE, since)
                });
                prop_assert_eq!(first, [first[0]; 3]);
                let Some(lane) = first[0] else { break };
                let place = QueuePlace { pool: 0, lane, port: 0 };
                let frame = &queues[lane.index()][0].1;
                let sent = all.each_mut().map(|stages| {
                    let mut frame = frame.clone();
                    (stages.offer(place, 1, &mut frame), frame)
                });
                prop_assert!(sent[0] == sent[1] && sent[0] == sent[2], "{:?}", sent);
                if sent[0].0.is_none() {
                    break;
                }
                queues[lane.index()].pop_front();
            }
        }
        let count = |stages: &Stages| {
            let counters = [Counter::Replies, Counter::Completions];
            let scheduled = stages.counters.read(Counter::Scheduled);
            (counters.map(|counter| stages.counters.read(counter)).iter().sum::<u64>(), scheduled)
        };
        let counts = all.each_ref().map(count);
        prop_assert_eq!(counts, [counts[0]; 3]);
    }
}

/// Passes a burst through the fast path or the stages. Returns each packet's verdict and bytes, with no difference
/// between waiting tasks that the fast path recognised and others.
fn process(
    stages: &mut Stages,
    pool: &FramePool,
    frames: &[Vec<u8>],
    is_fast: bool,
) -> Vec<(Verdict, Vec<u8>)> {
    let mut packets: Vec<_> = frames.iter().map(|frame| pool.frame(frame).unwrap()).collect();
    let mut verdicts = [Verdict::Consumed; BURST];
    let verdicts = &mut verdicts[..packets.len()];
    match is_fast {
        true => stages.process(0, 1, &mut packets, verdicts),
        false => {
            stages.learn(0, &packets);
            stages.process_in_stages(0, 1, &mut packets, verdicts);
        }
    }
    let same = |verdict: &Verdict| match *verdict {
        Verdict::Queue { pool, lane, .. } => Verdict::Queue { pool, lane, is_recognised: false },
        verdict => verdict,
    };
    let packets = packets.iter().map(|packet| packet.bytes().to_vec());
    verdicts.iter().map(same).zip(packets).collect()
}

/// Returns all vectors that the machine has. Reports the missing ones once. Writes straight to standard error, because
/// the test harness hides the captured output of a passing test.
#[cfg(target_arch = "x86_64")]
pub fn all_vectors() -> impl Iterator<Item = Vectors> {
    static NOTED: std::sync::Once = std::sync::Once::new();
    let all = [("AVX2", Vectors::avx2()), ("AVX-512", Vectors::avx512())];
    NOTED.call_once(|| {
        for (name, _) in all.iter().filter(|(_, vectors)| vectors.is_none()) {
            let skipped = format!("SKIPPED: this machine has no {name} to compare with words\n");
            _ = std::io::Write::write_all(&mut std::io::stderr(), skipped.as_bytes());
        }
    });
    all.into_iter().filter_map(|(_, vectors)| vectors)
}

#[cfg(target_arch = "x86_64")]
proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Vectors recognise the same packets as scalar code, of any length and with single bytes changed.
    #[test]
    fn vectors_recognise_what_scalars_do(
        packets in proptest::collection::vec((
            any::<(u16, bool, bool, bool)>(), proptest::collection::vec(any::<u8>(), 0..150),
            proptest::option::weighted(0.05, any::<(prop::sample::Index, u8)>()), 0..9_usize,
        ), 1..BURST),
    ) {
        let pool = FramePool::new(BURST, 512);
        let stages = stages();
        let burst: Vec<_> = packets.into_iter().map(|(header, payload, edit, padding)| {
            let (seq, extended, replies, unsummed) = header;
            let header = if replies { reply(seq % 8, seq % 3) } else { task(seq, false) };
            let mut frame = frame(Header { extended, ..header }, &payload);
            if unsummed {
                frame[UDP + 6..UDP + 8].fill(0);
            }
            if let Some((at, byte)) = edit {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            frame.resize(frame.len() + padding, 0xAA); // not part of the datagram
            pool.frame(&frame).unwrap()
        }).collect();
        let template = *stages.fast.0.template(0, 0).unwrap();
        // A datagram that does not fill its packet ends a run of the vector code.
        let exact = |frame: &[u8]| {
            let number = |at: usize| usize::from(frame[at]) << 8 | usize::from(frame[at + 1]);
            number(IP + 2) == ipv4::LEN + number(UDP + 4)
        };
        let exact = burst.iter().take_while(|packet| exact(packet.bytes())).count();
        let mut of_words = Fields::new();
        let words = recognise_scalar(&template, &burst[..exact], &mut of_words);
        for vectors in all_vectors() {
            let mut fields = Fields::new();
            let run = vector::recognise(vectors, &template, &burst[..exact], &mut fields);
            // `None` means a wrong checksum. The scalar run then ends early.
            prop_assert!(run.is_some() || (words.len as usize) < exact);
            if let Some(run) = run {
                prop_assert_eq!((run.len, run.replies), (words.len, words.replies));
                prop_assert_eq!(fields.tasks, of_words.tasks);
                prop_assert_eq!(fields.sources, of_words.sources);
            }
        }
    }
}

// promise: packets.2
#[test]
fn packets_that_match_take_the_fast_path() {
    let pool = FramePool::new(8, 256);
    let headers = [task(1, false), reply(3, 2), task(2, true), reply(2, 0), task(3, false)];
    let packets = headers.map(|header| pool.frame(&frame(header, &[1; 8])).unwrap());
    let mut stages = stages();
    let mut verdicts = [Verdict::Consumed; 5];
    assert_eq!(super::burst::<u32, _>(&mut stages, 0, &mut { packets }, &mut verdicts[..]), 5);
    // The MAC address of the replies' client is not known yet.
    assert!(verdicts.iter().all(|verdict| match verdict {
        Verdict::Forward { port, .. } | Verdict::Hold { port, .. } => *port == 0,
        _ => false,
    }));
    let count = |counter| stages.counters.read(counter);
    assert_eq!((count(Counter::Scheduled), count(Counter::Replies)), (3, 2));
}

/// Sources of tasks for the leaf of [`stages_of`], with the networks 10.0.1.0/24 and 10.0.4.0/24 and no
/// router. The first twelve are not clients, the last two are.
const TASK_SOURCES: [u32; 14] = [
    0x0A00_0100,     // first address of the port's network
    0x0A00_01FF,     // its broadcast address
    LEAF,            // the leaf's address on the port
    0x0A00_0401,     // the leaf's address on the second port
    SERVER,          // the server, if it is behind the port
    0x0A00_030B,     // 10.0.3.11, in no network of the leaf
    0xE000_0001,     // multicast
    0x0000_0007,     // in 0.0.0.0/8, "this network"
    0x0A00_0305,     // 10.0.3.5, in no network of the leaf
    0x0808_0808,     // 8.8.8.8, in no network of the leaf
    0x7F00_0001,     // loopback
    0xFFFF_FFFF,     // broadcast
    0x0A00_0199,     // client
    0x0A00_0101 + 1, // client
];

/// Gives the packet another source.
fn readdress(frame: &mut [u8], source: u32) {
    let delta = ChecksumDelta::default().double_word(ipv4::src(&frame[IP..]), source);
    if frame[UDP + 6..UDP + 8] != [0, 0] {
        udp::update_checksum(&mut frame[UDP..], delta);
    }
    let sum = u16::from_be_bytes([frame[IP + 10], frame[IP + 11]]);
    frame[IP + 10..IP + 12].copy_from_slice(&delta.apply(sum).to_be_bytes());
    frame[IP + 12..IP + 16].copy_from_slice(&source.to_be_bytes());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn vectors_compare_sources_as_scalars_do() {
    let unreachable = stages().fast.0.sources[0].unreachable.clone();
    // The list has only addresses within the port's network: the template matches no task from another source.
    // The first address and the node's own form one range of two addresses.
    assert_eq!(unreachable.len(), 3, "ranges: first and own address, last address, server");
    let addresses: [u32; BURST] =
        std::array::from_fn(|at| TASK_SOURCES.get(at).map_or(at as u32, |one| one.to_be()));
    let expected = match_unreachable_scalar(&addresses, &unreachable);
    assert!(expected != 0 && expected != u32::MAX);
    for vectors in all_vectors() {
        assert_eq!(vector::match_unreachable(vectors, &addresses, &unreachable), expected);
    }
}

// promise: trust.2
#[test]
fn tasks_that_no_reply_would_reach_are_refused() {
    let pool = FramePool::new(4, 256);
    for side in [Side::Both, Side::Clients] {
        for (at, &source) in TASK_SOURCES.iter().enumerate() {
            // The server has the address at index 4 only if both sides are behind the port. Otherwise a
            // client may have it.
            let is_client = at >= 12 || (at == 4 && side == Side::Clients);
            let mut stages = stages_of(side);
            let mut frame = frame(task(at as u16, false), &[1; 8]);
            readdress(&mut frame, source);
            let mut burst = [pool.frame(&frame).unwrap()];
            let mut verdicts = [Verdict::Consumed];
            stages.process(0, 1, &mut burst, &mut verdicts[..]);
            let forwarded = matches!(verdicts[0], Verdict::Forward { .. });
            assert_eq!(forwarded, is_client, "{source:#x} {side:?} {verdicts:?}");
            let refused = stages.counters.dropped(DropReason::SourceUnreachable);
            assert_eq!(refused, u64::from(!is_client));
        }
    }
}

/// In a burst of replies to stages with a key, each fault affects only its own reply. The replies before the unknown
/// worker's take the fast path.
// promise: trust.3
#[test]
fn proved_replies_are_accepted_once() {
    let pool = FramePool::new(16, 256);
    let mut stages = stages_with(Side::Both, Some(key()));
    let from = |worker, sequence| {
        let header = Header { authenticated: true, ..reply(worker, 3) };
        let mut bytes = vec![0; header.len() + 4];
        header.emit(&mut bytes);
        signed_frame(header, bytes, Some(sequence))
    };
    let mut altered = from(1, 7000);
    altered[TASK + 8] ^= 1; // the queue length; the packet has no checksum then
    altered[UDP + 6..UDP + 8].fill(0);
    let first = [from(1, 7001), altered, from(1, 7001), from(2, 7001), from(9, 7001)];
    let mut burst = first.map(|frame| pool.frame(&frame).unwrap());
    let mut verdicts = [Verdict::Consumed; 5];
    let (proved, unknown) = burst.split_at_mut(4);
    assert_eq!(super::burst::<u32, _>(&mut stages, 0, proved, &mut verdicts[..4]), 4);
    stages.process(0, 1, unknown, &mut verdicts[4..]);
    assert_eq!(verdicts[1], Verdict::Drop(DropReason::AuthTag));
    assert_eq!(verdicts[2], Verdict::Drop(DropReason::AuthReplay));
    assert_eq!(verdicts[4], Verdict::Drop(DropReason::UnknownWorker));
    for at in [0, 3] {
        assert!(matches!(verdicts[at], Verdict::Hold { .. }), "{:?}", verdicts[at]);
    }
    // A reply without proof does not match, and the stages give the reason for refusing it.
    let bare = frame(reply(1, 3), &[]);
    let mut burst = [pool.frame(&bare).unwrap()];
    stages.process(0, 1, &mut burst, &mut verdicts[..1]);
    assert_eq!(verdicts[0], Verdict::Drop(DropReason::AuthMissing));
    let count = |reason| stages.counters.dropped(reason);
    let refused = [DropReason::AuthTag, DropReason::AuthReplay, DropReason::AuthMissing];
    assert_eq!(refused.map(count), [1; 3]);
    assert_eq!(stages.counters.read(Counter::Replies), 2);
    // A pool without a key refuses a reply with proof.
    let mut burst = [pool.frame(&from(1, 7002)).unwrap()];
    let mut stages = super::tests::stages();
    stages.process(0, 1, &mut burst, &mut verdicts[..1]);
    assert_eq!(verdicts[0], Verdict::Drop(DropReason::TaskReservedBit));
}

/// Builds a reply that is addressed to the leaf.
fn reply_to_the_leaf() -> Vec<u8> {
    let mut frame = frame(reply(3, 2), &[]);
    let delta = ChecksumDelta::default().double_word(ipv4::dst(&frame[IP..]), LEAF);
    udp::update_checksum(&mut frame[UDP..], delta);
    let sum = u16::from_be_bytes([frame[IP + 10], frame[IP + 11]]);
    frame[IP + 10..IP + 12].copy_from_slice(&delta.apply(sum).to_be_bytes());
    frame[IP + 16..IP + 20].copy_from_slice(&LEAF.to_be_bytes());
    frame
}

#[test]
fn reply_addressed_to_the_leaf_is_refused() {
    let pool = FramePool::new(4, 256);
    let mut verdicts = [Verdict::Consumed; 2];
    let mut burst =
        [reply_to_the_leaf(), reply_to_the_leaf()].map(|frame| pool.frame(&frame).unwrap());
    let (mut with, mut without) = (stages(), stages());
    with.process(0, 1, &mut burst[..1], &mut verdicts[..1]);
    without.process_in_stages(0, 1, &mut burst[1..], &mut verdicts[1..]);
    assert_eq!(verdicts, [Verdict::Drop(DropReason::UdpPort); 2]);
    for stages in [with, without] {
        assert_eq!(stages.counters.dropped(DropReason::UdpPort), 1);
        assert_eq!(stages.counters.read(Counter::Replies), 0);
    }
}

/// Builds a task with these bytes changed, as offset and new bytes. Updates the checksum of the IP or UDP header
/// that contains them.
fn task_with(changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut frame = frame(task(1, false), &[1; 9]);
    for &(at, bytes) in changes {
        let end = at + bytes.len();
        // The 16-bit words that contain the changed bytes.
        let (words_start, words_end) = (at & !1, end.next_multiple_of(2));
        let words = |frame: &[u8]| {
            let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
            (words_start..words_end).step_by(2).map(word).collect::<Vec<_>>()
        };
        let old = words(&frame);
        frame[at..end].copy_from_slice(bytes);
        let delta = old
            .iter()
            .zip(words(&frame))
            .fold(ChecksumDelta::default(), |delta, (&old, new)| delta.word(old, new));
        if at < UDP {
            let sum = u16::from_be_bytes([frame[IP + 10], frame[IP + 11]]);
            frame[IP + 10..IP + 12].copy_from_slice(&delta.apply(sum).to_be_bytes());
        } else {
            udp::update_checksum(&mut frame[UDP..], delta);
        }
    }
    frame
}

/// The template compares some words of the headers with a bound, or ignores bits. Vectors, scalar code and
/// stages agree about values on both sides: a time to live from 2 on, any source port except 0, and any
/// value of the flag "don't fragment" and of the reserved flag. The protocol, in the word of the time to
/// live, must be UDP.
// promise: trust.2
#[test]
fn bounds_hold_in_each_path() {
    let pool = FramePool::new(4, 256);
    let ttls = [0, 1, 2, 3, 64, 254, 255].map(|ttl| (IP + 8, vec![ttl], ttl >= 2));
    let protocols = [0, 16, 18, 255].map(|protocol| (IP + 9, vec![protocol], false));
    let ports = [0, 1, 0xFF, 0x100, 0xFF00, 0xFFFE, 0xFFFF];
    let ports = ports.map(|port: u16| (UDP, port.to_be_bytes().to_vec(), port > 0));
    let flags = [0, 0x40, 0x80].map(|flags| (IP + 6, vec![flags], true));
    let cases = ttls.into_iter().chain(protocols).chain(ports).chain(flags);
    for (at, bytes, passes) in cases {
        let frame = task_with(&[(at, &bytes)]);
        let burst = [pool.frame(&frame).unwrap()];
        let template = *stages().fast.0.template(0, 0).unwrap();
        let recognised = recognise_scalar(&template, &burst, &mut Fields::new()).len;
        assert_eq!(recognised == 1, passes, "{at}: {bytes:?}");
        #[cfg(target_arch = "x86_64")]
        for vectors in all_vectors() {
            let run = vector::recognise(vectors, &template, &burst, &mut Fields::new());
            assert_eq!(run.map_or(0, |run| run.len), recognised, "{at}: {bytes:?}");
        }
        drop(burst);
        assert_decided_equally(&mut stages(), &mut stages(), &pool, &frame).unwrap();
    }
}

/// Each of these packets, if accepted, would occupy a worker until the leaf writes its task off. The exception
/// is `harmless`: its options are refused by default like all others, but a port may permit them.
// promise: trust.2
#[test]
fn tasks_that_no_socket_answers_are_refused() {
    let pool = FramePool::new(4, 256);
    let with_options = |options: &[u8]| {
        let words = (options.len() / 4) as u8;
        let total = (frame(task(1, false), &[1; 9]).len() - IP + options.len()) as u16;
        let head = [0x45 + words, 0];
        let mut frame = task_with(&[(IP, &head), (IP + 2, &total.to_be_bytes())]);
        frame.splice(UDP..UDP, options.iter().copied());
        frame[IP + 10..IP + 12].fill(0);
        let header = IP..UDP + options.len();
        let sum =
            crate::wire::checksum::PartialChecksum::default().bytes(&frame[header]).checksum();
        frame[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    // Two paddings, a router alert, and the end of the options.
    let harmless = with_options(&[1, 1, 148, 4, 0, 0, 0, 0]);
    // Source port 0, a loose source route, and a timestamp option that is too short.
    for (frame, reason) in [
        (task_with(&[(UDP, &[0, 0])]), DropReason::UdpSourcePort),
        (with_options(&[131, 7, 4, 10, 0, 0, 1, 0]), DropReason::Ipv4Options),
        (with_options(&[0x44, 2, 0, 0]), DropReason::Ipv4Options),
        (harmless.clone(), DropReason::Ipv4Options),
    ] {
        let mut stages = stages();
        let mut verdicts = [Verdict::Consumed];
        stages.process(0, 1, &mut [pool.frame(&frame).unwrap()], &mut verdicts[..]);
        assert_eq!(verdicts[0], Verdict::Drop(reason));
        assert_eq!(stages.counters.read(Counter::Scheduled), 0);
        assert_eq!(stages.counters.dropped(reason), 1);
    }
    let mut stages = stages_of_options(Side::Both, None, IpOptions::Harmless);
    let mut verdicts = [Verdict::Consumed];
    stages.process(0, 1, &mut [pool.frame(&harmless).unwrap()], &mut verdicts[..]);
    assert!(matches!(verdicts[0], Verdict::Forward { .. }), "{verdicts:?}");
}

#[test]
fn unmatched_packet_ends_the_fast_path() {
    let pool = FramePool::new(8, 256);
    let several = Header { more: true, ..task(2, false) };
    let frames = [task(1, false), several, reply(1, 1)].map(|header| frame(header, &[]));
    let mut burst = frames.map(|frame| pool.frame(&frame).unwrap());
    let mut verdicts = [Verdict::Consumed; 3];
    assert_eq!(super::burst::<u32, _>(&mut stages(), 0, &mut burst, &mut verdicts[..]), 1);
    assert_eq!(verdicts[1..], [Verdict::Consumed; 2]);
}

// promise: trust.2
#[test]
fn port_of_another_family_takes_no_service_task() {
    let pool = FramePool::new(4, 256);
    let v6 = "fd00::1".parse::<IpAddr>().unwrap();
    let mut stages = fixture::stages(Fixture {
        ports: vec![
            PortAddress::new(LEAF_MAC, [10, 0, 1, 9].into(), 24, Side::Both),
            PortAddress::new(LEAF_MAC, v6, 64, Side::Both),
        ],
        server: SERVER.to_be_bytes().into(),
        mac: Some(SERVER_MAC),
        pool: 263, // 0x0107, as in `task`
        policy: "horus-spine",
        members: (0..8).collect(),
        key: None,
        service: Some(LEAF.to_be_bytes().into()),
        is_direct: false,
    });
    let mut handled = |port| {
        let mut burst = [pool.frame(&frame(task(1, false), &[])).unwrap()];
        let verdicts = &mut [Verdict::Consumed][..];
        super::burst::<u32, _>(&mut stages, port, &mut burst, verdicts)
    };
    assert_eq!((handled(0), handled(1)), (1, 0));
}

/// An overloaded core exchanges its counts after many packets, or after some ticks.
#[test]
fn overloaded_core_exchanges_at_times() {
    let pool = FramePool::new(BURST, 256);
    let node = fixture_of(Side::Both, None, IpOptions::Refuse, "jsq");
    let [mut busy, mut other] = <[_; 2]>::try_from(fixture::cores(node, 2)).ok().unwrap();
    let receive_burst = |busy: &mut Stages| {
        let tasks = (0..BURST as u16).map(|seq| pool.frame(&frame(task(seq, false), &[])).unwrap());
        let mut tasks: Vec<_> = tasks.collect();
        busy.process(0, 1, &mut tasks, &mut [Verdict::Consumed; BURST][..]);
        busy.exchange();
    };
    let mut received_tasks = || {
        other.exchange();
        let view = other.dispatchers[0].view();
        view.active().iter().map(|&member| view.outstanding(member)).sum::<u32>()
    };
    let burst = BURST as u32;
    receive_burst(&mut busy);
    assert_eq!(received_tasks(), burst, "the first burst");
    for ticks in 1..EXCHANGE_TICKS {
        busy.tick(0, u64::from(ticks));
        receive_burst(&mut busy);
        assert_eq!(received_tasks(), burst, "{ticks} ticks");
    }
    busy.tick(0, EXCHANGE_TICKS.into());
    receive_burst(&mut busy);
    let mut sent = (EXCHANGE_TICKS + 1) * burst;
    assert_eq!(received_tasks(), sent);
    // Eight members: the least number of packets applies.
    let bursts = EXCHANGE_PACKETS.0 / BURST;
    for number in 1..bursts {
        receive_burst(&mut busy);
        assert_eq!(received_tasks(), sent, "{number} bursts");
    }
    receive_burst(&mut busy);
    sent += bursts as u32 * burst;
    assert_eq!(received_tasks(), sent);
}
