//! The scheduler as a library in another program (an application): decisions and bytes equal those of a leaf, ledgers
//! balance, and invalid calls fail.
//!
//! A program with packets uses a [`Context`], one core's part of the scheduler. `process` rewrites packets and
//! returns a verdict for each; `decide` returns the changes instead. The context holds a packet that waits for a
//! worker or for a next hop's MAC address; the application keeps it until `release` returns it. A question asks for
//! such an address. A program with packets of its own format uses a [`Picker`], which chooses a worker for each
//! described task.
#![allow(clippy::unwrap_used, reason = "a test")]

mod embed_v6;
mod frames;
mod rig;

use std::collections::BTreeSet;

use wedjat::embed::{
    Change, Choice, Context, DropReason, Misuse, NO_WORKER, Options, Picker, QUESTION_LEN,
    ReleasedPacket, ReleasedTask, Rewrite, Scheduler, TaskDescription, Verdict, WorkerReport,
};
use wedjat::io::Buf;
use wedjat::io::memory::{Frame, FramePool, RingPort, pair};
use wedjat::limits::{BURST, QUEUE, UNRESOLVED_HELD_MAX};
use wedjat::state::{Counter, Gauge, Totals};
use wedjat::wire::arp::{self, Operation};
use wedjat::wire::checksum::PartialChecksum;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Header};
use wedjat::wire::{ipv4, udp};

use frames::*;
use rig::{Sizes, TICKS_HZ};

/// MAC address of the first server, as in its configuration.
const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 2, 11]);

/// Returns a configuration with two ports and two servers. ARP resolves the second server's MAC address.
fn text(policy: &str) -> String {
    format!(
        "[leaf]\nid = 1\ncores = [0]\nseed = 7\nconnections = 64\n\
         [[port]]\ndevice = 'c'\nside = 'clients'\nip = '10.0.1.1/24'\n\
         [[port]]\ndevice = 'w'\nside = 'workers'\nip = '10.0.2.1/24'\nmac = '{}'\n\
         [[pool]]\nid = {POOL}\npolicy = '{policy}'\n\
         [[server]]\nip = '10.0.2.11'\nmac = '{SERVER_MAC}'\nworkers = '10-13'\npool = {POOL}\n\
         [[server]]\nip = '10.0.2.12'\nworkers = '14-17'\npool = {POOL}\n",
        LEAF_MACS[1]
    )
}

/// Creates a scheduler with this policy.
fn scheduler(policy: &str) -> Scheduler {
    let options = Options { ticks_hz: TICKS_HZ, macs: &LEAF_MACS };
    Scheduler::from_toml(&text(policy), &options).unwrap()
}

/// Creates a scheduler with this policy, and returns the context of its only core.
fn context(policy: &str) -> Context {
    scheduler(policy).context(0).unwrap()
}

/// Checks that the library requires proofs like the leaf, if the configuration has a `key_file`. A proof is an
/// authentication tag with a sequence number, behind the header of a worker's reply. `text` is a configuration
/// without a key, `bare` a reply without a proof, and `signed` returns a reply with a proof of this sequence number.
fn check_proof(text: &str, bare: &[u8], signed: impl Fn(u64) -> Vec<u8>) {
    use std::os::unix::fs::PermissionsExt;
    use wedjat::wire::auth::sequence_at;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, "05".repeat(16)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let pool = format!("[[pool]]\nid = {POOL}\n");
    let text = text.replace(&pool, &format!("{pool}key_file = '{}'\n", path.display()));
    let options = Options { ticks_hz: TICKS_HZ, macs: &LEAF_MACS };
    let mut context = Scheduler::from_toml(&text, &options).unwrap().context(0).unwrap();
    let now = sequence_at(std::time::SystemTime::now());
    // Sequences advance by 16 per microsecond.
    let minutes = |minutes: u64| minutes * 60 * 1_000_000 * 16;
    // Returns the verdict on a reply.
    let mut judge = |frame: &[u8]| {
        let mut verdicts = [Verdict::Consumed; 1];
        context.process(1, 1, &mut [&mut frame.to_vec()[..]], &mut verdicts).unwrap();
        verdicts[0]
    };
    assert_eq!(judge(bare), Verdict::Drop(DropReason::AuthMissing));
    // Packets signed long before the start (by more than clocks may differ) may be replays of packets that an earlier
    // scheduler accepted.
    assert_eq!(judge(&signed(now - minutes(6))), Verdict::Drop(DropReason::AuthReplay));
    // An accepted reply waits for the client's MAC address.
    assert!(matches!(judge(&signed(now)), Verdict::Hold { .. }));
    assert_eq!(judge(&signed(now)), Verdict::Drop(DropReason::AuthReplay));
}

// promise: trust.3
#[test]
fn replies_of_a_keyed_pool_are_proved() {
    use wedjat::wire::auth::{Key, addresses};
    let bare = reply(10, 2, LEAF_MACS[1]);
    let signed = |sequence| {
        let mut frame = bare.clone();
        let header = Header::parse(&frame[udp::PAYLOAD..]).unwrap();
        let header = Header { authenticated: true, ..header };
        frame.resize(udp::PAYLOAD + header.len() + 9, 0);
        header.emit(&mut frame[udp::PAYLOAD..]);
        let key = Key::new([5; 16]);
        key.sign(&addresses(SERVERS[0], CLIENT), &mut frame[udp::PAYLOAD..], sequence);
        let flow = udp::Flow {
            src_mac: SERVER_MAC,
            dst_mac: LEAF_MACS[1],
            src: SERVERS[0],
            dst: CLIENT,
            src_port: 1234,
            dst_port: 40_000,
        };
        flow.emit(&mut frame, header.len() + 9);
        frame
    };
    check_proof(&text("horus"), &bare, signed);
}

/// Deterministic random numbers.
struct Dice(u64);

impl Dice {
    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// Returns the frame of the client's ARP request for the address `target`, with the Ethernet destination `to`.
fn who_is(target: u32, to: Mac) -> Vec<u8> {
    let mut frame = vec![0; arp::FRAME_LEN];
    let question = arp::Packet::request(CLIENT_MAC, CLIENT, target);
    question.emit(&mut frame, to);
    frame
}

/// Returns the answer of the server at this index to the leaf's ARP request. Its MAC address is always that of the
/// second server, the only one that the configuration omits.
fn server_answer(server: usize) -> Vec<u8> {
    let answer = arp::Packet {
        operation: Operation::Reply,
        sender_mac: Mac([2, 0, 0, 0, 2, 12]),
        sender: SERVERS[server],
        target_mac: LEAF_MACS[1],
        target: 0x0A00_0201,
    };
    let mut frame = vec![0; arp::FRAME_LEN];
    answer.emit(&mut frame, LEAF_MACS[1]);
    frame
}

/// Returns a random packet with the port that receives it: tasks, replies and ARP requests. A quarter of the packets
/// are damaged.
fn any_packet(dice: &mut Dice, seq: u16) -> (usize, Vec<u8>) {
    let header = Header {
        extended: dice.below(3) == 0,
        more: dice.below(6) == 0,
        ..Header::new_task(POOL, seq % 40)
    };
    let (port, packet) = match dice.below(10) {
        0..5 => (0, task(header)),
        5 => (0, task(Header { code: Code::TaskContinuation, ..header })),
        6..9 => (1, reply(FIRST_WORKER + dice.below(8) as u16, dice.below(3) as u16, LEAF_MACS[1])),
        _ => (0, who_is(if dice.below(2) == 0 { LEAF_CLIENTS } else { 9 }, Mac::BROADCAST)),
    };
    (port, damaged(dice, packet))
}

/// Returns the packet, in a quarter of the cases with a flipped bit, truncated or extended.
fn damaged(dice: &mut Dice, mut packet: Vec<u8>) -> Vec<u8> {
    match dice.below(12) {
        0 => {
            let at = dice.below(packet.len());
            packet[at] ^= 1 << dice.below(8);
        }
        1 => packet.truncate(dice.below(packet.len() + 1)),
        2 => packet.resize(packet.len() + dice.below(20), 0xEE),
        _ => {}
    }
    packet
}

/// Bursts, each with its port.
type Bursts = Vec<(usize, Vec<Vec<u8>>)>;

/// Returns the client's ARP request, the second server's answer, and `count` random bursts.
fn bursts(seed: u64, count: usize) -> Bursts {
    let first = vec![(0, vec![who_is(LEAF_CLIENTS, Mac::BROADCAST)]), (1, vec![server_answer(1)])];
    bursts_of(first, seed, count, any_packet)
}

/// Returns these bursts, followed by `count` random ones of alternating ports, of packets that `any_packet` makes.
fn bursts_of(
    mut bursts: Bursts,
    seed: u64,
    count: usize,
    any_packet: fn(&mut Dice, u16) -> (usize, Vec<u8>),
) -> Bursts {
    let mut dice = Dice(seed);
    for seq in 0..count {
        let len = 1 + dice.below(BURST);
        let mut burst = (seq % 2, Vec::new());
        while burst.1.len() < len {
            let (port, packet) = any_packet(&mut dice, seq as u16);
            if port == burst.0 {
                burst.1.push(packet);
            }
        }
        bursts.push(burst);
    }
    bursts
}

/// Processes a burst and truncates its packets to their new lengths. Checks that the ledger balances.
fn process(context: &mut Context, port: usize, now: u64, burst: &mut [Vec<u8>]) -> Vec<Verdict> {
    let mut verdicts = [Verdict::Consumed; BURST];
    let mut slices: Vec<&mut [u8]> = burst.iter_mut().map(|packet| &mut packet[..]).collect();
    context.process(port, now, &mut slices, &mut verdicts).unwrap();
    let lengths = slices.iter().map(|packet| packet.len()).collect();
    shorten(burst, lengths);
    assert!(context.counters().balances(), "{verdicts:?}");
    verdicts[..burst.len()].to_vec()
}

/// Truncates packets to these lengths: an answer may be shorter than its request.
fn shorten(burst: &mut [Vec<u8>], lengths: Vec<usize>) {
    burst.iter_mut().zip(lengths).for_each(|(packet, length)| packet.truncate(length));
}

/// An application: a context, and the packets that it holds but the application keeps.
struct Application {
    /// One core's part of the scheduler.
    context: Context,
    /// Buffers for held packets.
    pool: FramePool,
    /// Held packets by place, the number that the context assigns to each.
    held: Vec<Option<Frame>>,
}

impl Application {
    /// Creates an application without held packets.
    fn new(context: Context) -> Self {
        let held = (0..context.places()).map(|_| None).collect();
        Self { context, pool: FramePool::new(16_384, 256), held }
    }

    /// Processes a burst like [`process`], and keeps copies of the packets to be held.
    fn process(&mut self, port: usize, now: u64, burst: &mut [Vec<u8>]) -> Vec<Verdict> {
        let verdicts = process(&mut self.context, port, now, burst);
        for (packet, verdict) in burst.iter().zip(&verdicts) {
            if let Verdict::Hold { place, .. } = *verdict {
                let replaced = self.held[place as usize].replace(self.pool.frame(packet).unwrap());
                assert!(replaced.is_none(), "the place {place} is free");
            }
        }
        assert_eq!(self.held().len() as u64, self.context.counters().read(Gauge::Held));
        verdicts
    }

    /// Takes the next held packet that the context releases.
    fn release(&mut self, now: u64) -> Option<ReleasedPacket<Frame>> {
        let released = self.context.release(now, &mut self.held);
        assert!(self.context.counters().balances());
        released
    }

    /// Returns the packets held now.
    fn held(&self) -> Vec<&Frame> {
        self.held.iter().flatten().collect()
    }
}

/// Returns the outgoing packets of each port in a leaf's order: forwarded packets of the burst, then released ones,
/// then answers.
fn sent(
    burst: &[Vec<u8>],
    verdicts: &[Verdict],
    released: &[ReleasedPacket<Frame>],
) -> [Vec<Vec<u8>>; 2] {
    let mut out = [vec![], vec![]];
    let passing = burst.iter().map(Vec::as_slice).zip(verdicts.iter().copied());
    let released = released.iter().map(|one| (one.packet.bytes(), one.verdict));
    for (packet, verdict) in passing.clone().chain(released) {
        if let Verdict::Forward { port, .. } = verdict {
            out[usize::from(port)].push(packet.to_vec());
        }
    }
    for (packet, verdict) in passing {
        if let Verdict::Answer { port } = verdict {
            out[usize::from(port)].push(packet.to_vec());
        }
    }
    out
}

/// Takes the next packet that arrives at a port.
fn next(port: &mut RingPort) -> Option<Vec<u8>> {
    port.receive().map(|frame| frame.bytes().to_vec())
}

// promise: library.1
#[test]
fn it_sends_the_bytes_that_the_leaf_sends() {
    let policies =
        ["horus", "racksched", "random", "round-robin", "jsq", "jbsq(k=2)", "jbsq(k=1)", "cfcfs"];
    for policy in policies {
        compare_with_leaf(policy, &text(policy), bursts(3, 400));
    }
}

/// Compares a context with a leaf of the same configuration over ports in memory: both send the same bytes and have the
/// same counts.
fn compare_with_leaf(policy: &str, text: &str, bursts: Bursts) {
    let sizes = Sizes { depth: 256, frames: 4096, bytes: 256 };
    let rig::CoreRig { mut leaf, mut far, .. } = rig::leaf(text, sizes);
    let options = Options { ticks_hz: TICKS_HZ, macs: &LEAF_MACS };
    let context = Scheduler::from_toml(text, &options).unwrap().context(0).unwrap();
    let mut application = Application::new(context);
    leaf.poll(1); // requests the second server's MAC address
    far.iter_mut().for_each(|port| while port.receive().is_some() {});
    assert!(application.release(1).is_none());
    let (mut forwarded, mut waited) = (0, 0);
    for (at, (port, mut burst)) in bursts.into_iter().enumerate() {
        let now = 2 + 30_000 * at as u64;
        assert!(burst.iter().all(|packet| far[port].send(packet)));
        leaf.poll(now);
        let verdicts = application.process(port, now, &mut burst);
        // At most one burst at a time, like the leaf.
        let released: Vec<_> =
            std::iter::from_fn(|| application.release(now)).take(BURST).collect();
        waited += released.len();
        let expected = sent(&burst, &verdicts, &released);
        for (far, expected) in far.iter_mut().zip(&expected) {
            for packet in expected {
                assert_eq!(next(far).as_ref(), Some(packet), "{policy}, burst {at}");
                forwarded += 1;
            }
            assert_eq!(next(far), None, "{policy}, burst {at}");
        }
        let ours = application.context.counters();
        let theirs = leaf.stages().counters();
        assert_eq!(theirs.read(Counter::Scheduled), ours.read(Counter::Scheduled), "{policy}");
        for gauge in Gauge::ALL {
            assert_eq!(theirs.read(gauge), ours.read(gauge), "{policy}");
        }
    }
    assert!(forwarded > 3_000, "{policy}: {forwarded}");
    // Bounded policies queue tasks. Under all remaining ones, packets wait for next hops only.
    let holds = policy.contains("cfs") || policy.contains("jbsq");
    assert!((waited > 500) == holds, "{policy}: {waited}");
    let ours = application.context.counters();
    for counter in [Counter::Replies, Counter::Consumed] {
        assert_eq!(leaf.stages().counters().read(counter), ours.read(counter), "{policy}");
    }
    assert_eq!(leaf.stages().counters().dropped_total(), ours.dropped_total(), "{policy}");
}

/// Applies a rewrite of `decide` to an IPv4 packet, as an application must: addresses, one hop less, the worker and its
/// idle flag in a task's header, and new checksums. An absent UDP checksum stays absent.
fn apply(rewrite: &Rewrite, frame: &mut [u8]) {
    ether::emit_addresses(frame, rewrite.dst_mac, rewrite.src_mac);
    let at = usize::from(rewrite.udp_at);
    let (head, segment) = frame.split_at_mut(at);
    let ip = &mut head[ether::LEN..];
    ip[12..16].copy_from_slice(&rewrite.src.to_be_bytes());
    ip[16..20].copy_from_slice(&rewrite.dst.to_be_bytes());
    ip[8] -= 1;
    ip[10..12].fill(0);
    let sum = PartialChecksum::default().bytes(ip).checksum();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    // Bytes 5 and 6 of the task header are the worker; 7 and 8 are 1 if it is idle.
    if rewrite.task {
        segment[udp::LEN + 5..][..2].copy_from_slice(&rewrite.worker.to_be_bytes());
        segment[udp::LEN + 7..][..2].copy_from_slice(&u16::from(rewrite.idle).to_be_bytes());
    }
    if segment[6..8] != [0, 0] {
        segment[6..8].fill(0);
        let len = u16::from_be_bytes([segment[4], segment[5]]);
        let pseudo =
            PartialChecksum::default().bytes(&ip[12..20]).number(u16::from(ipv4::UDP)).number(len);
        let sum = pseudo.bytes(&segment[..usize::from(len)]).checksum();
        let sum = if sum == 0 { u16::MAX } else { sum };
        segment[6..8].copy_from_slice(&sum.to_be_bytes());
    }
}

// promise: library.1
#[test]
fn deciding_and_rewriting_agree() {
    for policy in ["horus", "random", "jsq"] {
        let passed = compare_decisions(context(policy), context(policy), bursts(5, 400), apply);
        assert!(passed > 3_000, "{policy}: {passed}");
    }
}

#[test]
fn refused_task_is_an_answer_despite_a_service() {
    let pool = "policy = 'jbsq(k=1)'\n";
    let more = format!("{pool}queue = 3\noverflow = 'refuse'\nservice = '10.0.9.1'\n");
    let options = Options { ticks_hz: TICKS_HZ, macs: &LEAF_MACS };
    let text = text("jbsq(k=1)").replace(pool, &more);
    let mut context = Scheduler::from_toml(&text, &options).unwrap().context(0).unwrap();
    // A task for each of eight workers, three that wait, and one too many.
    let mut packets: Vec<_> = (0..12).map(|seq| task(Header::new_task(POOL, seq))).collect();
    let mut slices: Vec<&mut [u8]> = packets.iter_mut().map(|packet| &mut packet[..]).collect();
    let (mut verdicts, mut rewrites) = ([Verdict::Consumed; 12], [Rewrite::default(); 12]);
    context.decide(0, 1, &mut slices, &mut verdicts, &mut rewrites).unwrap();
    assert_eq!((verdicts[11], rewrites[11]), (Verdict::Answer { port: 0 }, Rewrite::default()));
    let datagram = udp::parse(&packets[11], false).unwrap();
    assert_eq!((datagram.src, datagram.dst), (LEAF_CLIENTS, CLIENT));
    assert!(context.counters().balances());
}

/// Compares two contexts: packets rewritten by the first equal those rewritten by `apply` after the second's
/// decisions. Returns the number of packets that are forwarded or held.
fn compare_decisions(
    mut rewriting: Context,
    mut deciding: Context,
    bursts: Bursts,
    apply: impl Fn(&Rewrite, &mut [u8]),
) -> usize {
    let mut passed = 0;
    for (at, (port, burst)) in bursts.into_iter().enumerate() {
        let (now, mut processed, mut decided) = (1 + at as u64, burst.clone(), burst.clone());
        let expected = process(&mut rewriting, port, now, &mut processed);
        let mut verdicts = [Verdict::Consumed; BURST];
        let mut rewrites = [Rewrite::default(); BURST];
        let mut slices: Vec<&mut [u8]> = decided.iter_mut().map(|packet| &mut packet[..]).collect();
        deciding.decide(port, now, &mut slices, &mut verdicts, &mut rewrites).unwrap();
        let lengths = slices.iter().map(|packet| packet.len()).collect();
        shorten(&mut decided, lengths);
        assert_eq!(verdicts[..burst.len()], expected, "burst {at}");
        for (place, verdict) in expected.iter().enumerate() {
            let untouched = decided[place] == burst[place];
            match verdict {
                Verdict::Forward { worker, .. } | Verdict::Hold { worker, .. } => {
                    assert!(untouched, "burst {at}");
                    assert_eq!(rewrites[place].worker, *worker);
                    apply(&rewrites[place], &mut decided[place]);
                    passed += 1;
                }
                Verdict::Answer { .. } => {}
                Verdict::Consumed | Verdict::Drop(_) => assert!(untouched),
            }
            assert_eq!(decided[place], processed[place], "burst {at}: {verdict:?}");
        }
        assert!(deciding.counters().balances());
    }
    passed
}

// promise: library.2
#[test]
fn packet_is_held_until_its_next_hop_answers() {
    let mut application = Application::new(context("round-robin"));
    // Places for packets that wait for a next hop, for a burst of displaced ones, and for queued tasks. The
    // last are there for a later change to a policy that queues.
    assert_eq!(application.context.places(), UNRESOLVED_HELD_MAX + BURST + QUEUE);
    // One task for each worker. Workers 14 to 17 are at the second server, whose MAC address is unknown.
    let mut burst: Vec<_> = (0..8).map(|seq| task(Header::new_task(POOL, seq))).collect();
    let verdicts = application.process(0, 1, &mut burst);
    let held = |verdict: &&Verdict| matches!(verdict, Verdict::Hold { worker: 14..18, .. });
    assert_eq!(verdicts.iter().filter(held).count(), 4, "{verdicts:?}");
    assert!(application.release(2).is_none());
    let mut frame = [0; QUESTION_LEN];
    let question = application.context.question(2, &mut frame).unwrap();
    assert_eq!((question.port, question.len), (1, arp::FRAME_LEN));
    let asked = arp::Packet::parse(&frame[..question.len]).unwrap();
    assert_eq!((asked.operation, asked.target), (Operation::Request, SERVERS[1]));
    assert_eq!(application.context.question(2, &mut frame), None, "asked once");
    assert_eq!(application.context.counters().read(Gauge::Held), 4);

    assert_eq!(application.process(1, 3, &mut [server_answer(1)]), [Verdict::Consumed]);
    for verdict in verdicts.iter().filter(held) {
        let released = application.release(3).unwrap();
        let Verdict::Hold { place, worker } = *verdict else { unreachable!() };
        assert_eq!(released.place, place, "in order");
        assert_eq!(released.verdict, Verdict::Forward { port: 1, worker });
        assert_eq!(ether::dst(released.packet.bytes()), Mac([2, 0, 0, 0, 2, 12]));
    }
    assert!(application.release(3).is_none());
    let counters = application.context.counters();
    assert_eq!((counters.read(Gauge::Held), counters.read(Counter::Forwarded)), (0, 8));
    assert_eq!(application.context.question(4, &mut frame), None);
}

#[test]
fn questions_are_asked_in_buffers_of_a_pool() {
    let mut application = Application::new(context("round-robin"));
    assert!(application.release(1).is_none());
    let mut pool = FramePool::new(1, 64);
    let (question, port) = application.context.ask(1, &mut pool).unwrap();
    assert_eq!(arp::Packet::parse(question.bytes()).unwrap().target, SERVERS[1]);
    assert_eq!((port, question.bytes().len()), (1, arp::FRAME_LEN));
    assert!(application.context.ask(1, &mut pool).is_none(), "asked once");
    // No request is sent while the pool is empty. It is repeated later.
    assert!(application.context.ask(200_000_001, &mut pool).is_none());
    let own = [Counter::Originated, Counter::OriginatedUnsent];
    assert_eq!(own.map(|counter| application.context.counters().read(counter)), [2, 1]);
    drop(question);
    assert!(application.context.ask(400_000_001, &mut pool).is_some());
    application.context.unsent_own(100);
    let counts = own.map(|counter| application.context.counters().read(counter));
    assert_eq!(counts, [3, 3], "no more than was made");
}

// promise: library.2
#[test]
fn held_packets_expire_and_are_bounded() {
    let mut application = Application::new(context("round-robin"));
    let (mut held, mut refused) = (0, 0);
    // 320 of the 640 tasks are for the second server. Its MAC address stays unknown.
    for now in 0..20 {
        let mut burst: Vec<_> = (0..32).map(|seq| task(Header::new_task(POOL, seq))).collect();
        for verdict in application.process(0, now, &mut burst) {
            match verdict {
                Verdict::Hold { .. } => held += 1,
                Verdict::Drop(reason) => {
                    assert_eq!(reason, DropReason::NeighbourQueueFull);
                    refused += 1;
                }
                _ => {}
            }
        }
    }
    // A new packet displaces the oldest. After a burst of displaced packets, the owner must take these back
    // first.
    assert_eq!((held, refused), (UNRESOLVED_HELD_MAX + BURST, 320 - UNRESOLVED_HELD_MAX - BURST));
    application.held[7] = None; // lost by its owner
    let mut frame = [0; QUESTION_LEN];
    let (mut questions, mut expired, mut displaced) = (0, 0, 0);
    for now in (20..900_000_000).step_by(1_000_000) {
        while let Some(released) = application.release(now) {
            if released.verdict == Verdict::Drop(DropReason::NeighbourQueueFull) {
                displaced += 1;
                continue;
            }
            assert_eq!(released.verdict, Verdict::Drop(DropReason::NeighbourUnresolved));
            assert_eq!(questions, 3, "asked for in vain");
            expired += 1;
        }
        questions += usize::from(application.context.question(now, &mut frame).is_some());
    }
    // One of the displaced packets was lost.
    assert_eq!((expired, displaced), (UNRESOLVED_HELD_MAX, BURST - 1));
    assert!(application.held().is_empty());
    let counters = application.context.counters();
    assert_eq!(counters.read(Gauge::Held), 0);
    assert!(counters.balances());
}

/// Random tasks and replies, then the shutdown: every packet is accounted for.
// promise: input.1, library.2
#[test]
fn queued_tasks_stay_bounded_through_a_storm() {
    for (policy, seed) in [("jbsq(k=1)", 1), ("jbsq(k=3)", 2), ("cfcfs", 3), ("jbsq(k=2)", 4)] {
        let text = text(policy).replace("policy =", "queue = 20\npolicy =");
        let options = Options { ticks_hz: TICKS_HZ, macs: &LEAF_MACS };
        let mut scheduler = Scheduler::from_toml(&text, &options).unwrap();
        let mut application = Application::new(scheduler.context(0).unwrap());
        assert_eq!(application.context.places(), UNRESOLVED_HELD_MAX + BURST + 20);
        let mut dice = Dice(seed);
        let (mut now, mut waited, mut full) = (0, 0, 0);
        // `decreased` has the names of all metrics that have decreased.
        let (mut before, mut decreased) = (Totals::default(), BTreeSet::new());
        for (port, mut burst) in bursts(seed, 3_000) {
            now += dice.below(300_000) as u64;
            if dice.below(8) == 0 {
                application.context.unsent(dice.below(5) as u64);
            }
            let totals = application.context.counters().totals();
            decreased.extend(totals.decreased_since(&before).map(|metric| metric.name));
            before = totals;
            for verdict in application.process(port, now, &mut burst) {
                waited += usize::from(matches!(verdict, Verdict::Hold { worker: NO_WORKER, .. }));
                full += usize::from(verdict == Verdict::Drop(DropReason::QueueFull));
            }
            assert!(application.context.counters().read(Gauge::Queued) <= 20);
            for _ in 0..dice.below(40) {
                let Some(released) = application.release(now) else { break };
                // Later packets of a task are dropped if its first one was.
                let orphaned = Verdict::Drop(DropReason::UnknownConnection);
                let is_sent = matches!(released.verdict, Verdict::Forward { worker: 10..18, .. });
                assert!(is_sent || released.verdict == orphaned, "{:?}", released.verdict);
            }
        }
        assert!(waited > 500 && full > 0, "{policy}: {waited} waited, {full} found no room");
        assert!(before.count(DropReason::TxFull) > 500, "{policy}: ports were full");
        assert_eq!(
            decreased,
            BTreeSet::from(["held", "queued"]),
            "{policy}: gauges fall, counters do not"
        );
        for seq in 0..4 {
            let mut burst = vec![task(Header::new_task(POOL, seq)); BURST];
            application.process(0, now, &mut burst);
        }
        let left = application.held().len();
        assert!(left > 0, "{policy}: some wait at the end");
        application.context.abandon();
        for _ in 0..left {
            let released = application.release(now).unwrap();
            assert_eq!(released.verdict, Verdict::Drop(DropReason::Shutdown));
        }
        assert!(application.release(now).is_none() && application.held().is_empty());
        let counters = application.context.counters();
        assert_eq!((counters.read(Gauge::Held), counters.read(Gauge::Queued)), (0, 0));
        assert_eq!(counters.dropped(DropReason::Shutdown), left as u64);
        assert!(counters.balances());
    }
}

// promise: library.2
#[test]
fn impossible_calls_do_nothing() {
    let mut context = context("horus");
    let mut packets = vec![task(Header::new_task(POOL, 1)); BURST + 1];
    let mut slices: Vec<&mut [u8]> = packets.iter_mut().map(|packet| &mut packet[..]).collect();
    let mut verdicts = [Verdict::Consumed; BURST + 1];
    let mut rewrites = [Rewrite::default(); BURST + 1];
    assert_eq!(context.process(0, 1, &mut slices, &mut verdicts), Err(Misuse::Burst));
    assert_eq!(context.process(2, 1, &mut slices[..1], &mut verdicts), Err(Misuse::Port));
    assert_eq!(context.process(0, 1, &mut slices[..2], &mut verdicts[..1]), Err(Misuse::Verdicts));
    let refused = context.decide(0, 1, &mut slices, &mut verdicts, &mut rewrites);
    assert_eq!(refused, Err(Misuse::Burst));
    let refused = context.decide(0, 1, &mut slices[..2], &mut verdicts, &mut rewrites[..1]);
    assert_eq!(refused, Err(Misuse::Verdicts));
    assert_eq!(context.set_active(9, false), Err(Misuse::Worker));
    assert_eq!(context.set_active(u16::MAX, false), Err(Misuse::Worker));
    let none: &mut [&mut [u8]] = &mut [];
    assert_eq!(context.process(0, 1, none, &mut []), Ok(()));
    assert_eq!(context.counters().read(Counter::RxPackets), 0);
    assert!(packets.iter().all(|packet| *packet == task(Header::new_task(POOL, 1))));
    let none: &mut [Option<&mut [u8]>] = &mut [];
    assert!(context.release(1, none).is_none());
}

// promise: library.2
#[test]
fn packets_of_any_shorter_length_are_dropped() {
    let mut context = context("horus");
    let whole = task(Header::new_task(POOL, 1));
    for len in 0..whole.len() {
        let verdicts = process(&mut context, 0, 1, &mut [whole[..len].to_vec()]);
        assert!(matches!(verdicts[0], Verdict::Drop(_)), "{len}: {verdicts:?}");
    }
    assert!(!matches!(process(&mut context, 0, 1, &mut [whole])[0], Verdict::Drop(_)));
}

#[test]
fn workers_leave_and_return_with_unsent_counted() {
    let mut context = context("random");
    for worker in (10..18).filter(|worker| *worker != 12) {
        context.set_active(worker, false).unwrap();
    }
    let mut burst: Vec<_> = (0..32).map(|seq| task(Header::new_task(POOL, seq))).collect();
    let verdicts = process(&mut context, 0, 1, &mut burst);
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Forward { port: 1, worker: 12 }));
    context.unsent(5);
    context.unsent(100);
    assert_eq!(context.counters().dropped(DropReason::TxFull), 32, "no more than was sent");
    assert!(context.counters().balances());
    context.set_active(12, false).unwrap();
    let mut burst = [task(Header::new_task(POOL, 1))];
    assert_eq!(process(&mut context, 0, 2, &mut burst), [Verdict::Drop(DropReason::NoMember)]);
    context.set_active(13, true).unwrap();
    let mut burst = [task(Header::new_task(POOL, 1))];
    let only = [Verdict::Forward { port: 1, worker: 13 }];
    assert_eq!(process(&mut context, 0, 3, &mut burst), only);
}

// promise: library.2
#[test]
fn packets_rejected_by_a_port_are_counted() {
    let mut context = context("random");
    (14..18).for_each(|worker| context.set_active(worker, false).unwrap());
    let pool = FramePool::new(64, 256);
    let (mut port, mut wire) = pair(40, &pool);
    // More than a burst, and more than the port can take.
    let mut tasks: Vec<_> = (0..50).map(|seq| task(Header::new_task(POOL, seq))).collect();
    tasks.chunks_mut(BURST).for_each(|burst| _ = process(&mut context, 0, 1, burst));
    context.send(&mut port, tasks.iter().map(|packet| pool.frame(packet).unwrap()));
    let count = |context: &Context, counter| context.counters().read(counter);
    assert_eq!((count(&context, Counter::Forwarded), pool.in_use()), (50, 40));
    assert_eq!(context.counters().dropped(DropReason::TxFull), 10);
    assert!(context.counters().balances());

    process(&mut context, 0, 3, &mut [who_is(LEAF_CLIENTS, Mac::BROADCAST)]);
    let own = [Counter::Originated, Counter::OriginatedUnsent];
    assert_eq!(own.map(|counter| count(&context, counter)), [1, 0]);
    context.send_own(&mut port, pool.frame(&[0; 42]).unwrap());
    assert_eq!(own.map(|counter| count(&context, counter)), [1, 1]);
    let sent: Vec<_> = std::iter::from_fn(|| next(&mut wire)).collect();
    assert_eq!(sent.len(), 40);
    assert!(sent.iter().zip(&tasks).all(|(sent, packet)| sent == packet), "in order");
    process(&mut context, 0, 4, &mut [who_is(LEAF_CLIENTS, Mac::BROADCAST)]);
    context.send_own(&mut port, pool.frame(&[7; 42]).unwrap());
    assert_eq!(next(&mut wire), Some(vec![7; 42]));
    assert_eq!((own.map(|counter| count(&context, counter)), pool.in_use()), ([2, 1], 0));
    assert_eq!(context.counters().totals().sent(), 40);
    assert!(context.counters().balances());
}

#[test]
fn missing_parts_are_reported() {
    let create = |text: &str, options| match Scheduler::from_toml(text, &options) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    };
    let options = Options { ticks_hz: TICKS_HZ, macs: &LEAF_MACS };
    let no_macs = create(&text("horus"), Options { macs: &[], ..options });
    assert!(no_macs.contains("port 0") && no_macs.contains("mac"), "{no_macs}");
    let no_clock = create(&text("horus"), Options { ticks_hz: 0, ..options });
    assert!(no_clock.contains("ticks_hz"), "{no_clock}");
    let fault = create(&text("fastest"), options);
    assert!(fault.contains("configuration:17: `pool.policy`: found"), "{fault}");
    let mut scheduler = scheduler("horus");
    assert_eq!((scheduler.cores(), scheduler.ports(), scheduler.seed()), (1, 2, 7));
    assert!(scheduler.context(1).is_none());
    assert!(scheduler.context(0).is_some());
    assert!(scheduler.context(0).is_none(), "once");
}

/// Creates a scheduler without ports, for programs with a task header of their own. Pool 7 has the workers 10
/// and 11, and the further lines `more`.
fn portless_config(policy: &str, more: &str) -> Scheduler {
    let text = format!(
        "[leaf]\nid = 1\ncores = [0]\nseed = 7\nworkers_max = 8\n\
         [[pool]]\nid = {POOL}\npolicy = '{policy}'\n{more}\n\
         [[server]]\nip = '10.0.2.11'\nworkers = '10-11'\npool = {POOL}\n"
    );
    Scheduler::from_toml(&text, &Options { ticks_hz: TICKS_HZ, macs: &[] }).unwrap()
}

/// Lets the picker choose workers for tasks with these numbers. Returns its choices.
fn pick(picker: &mut Picker, now: u64, ids: std::ops::Range<u64>) -> Vec<Choice> {
    let tasks: Vec<_> = ids.map(|id| TaskDescription { id, class: 0 }).collect();
    let mut choices = vec![Choice::Refused; tasks.len()];
    picker.pick(POOL, now, &tasks, &mut choices).unwrap();
    choices
}

/// Returns a worker's report of an answered task, with the number of tasks that it has left.
fn done(worker: u16, queue: u16) -> WorkerReport {
    WorkerReport { worker, queue, service_ns: 0, class: 0, answers: true }
}

// promise: library.2
#[test]
fn reported_tasks_wait_in_order() {
    let mut scheduler = portless_config("jbsq(k=1)", "queue = 3\noverflow = 'refuse'");
    assert!(scheduler.context(0).is_none() && scheduler.ports() == 0);
    let mut picker = scheduler.picker(0).unwrap();
    assert!(scheduler.picker(0).is_none());
    let choices = pick(&mut picker, 1, 0..6);
    let chosen: BTreeSet<_> = choices[..2].iter().map(|choice| format!("{choice:?}")).collect();
    assert_eq!(chosen.len(), 2, "one task for each worker: {choices:?}");
    assert_eq!(choices[2..], [Choice::Held, Choice::Held, Choice::Held, Choice::Refused]);
    assert_eq!(picker.release(1), None);
    // The first queued task goes to the worker that becomes free. A task reported as lost frees a place too.
    assert_eq!(picker.report(&[done(11, 0), done(99, 0)]), 1);
    assert_eq!(picker.release(2), Some(ReleasedTask { id: 2, outcome: Ok(11) }));
    assert_eq!(picker.release(2), None);
    picker.lost(10, 1).unwrap();
    assert_eq!(picker.release(3), Some(ReleasedTask { id: 3, outcome: Ok(10) }));
    // A task sent by the program itself takes a place.
    assert_eq!(picker.report(&[done(10, 0)]), 1);
    picker.sent(10).unwrap();
    assert_eq!(picker.release(4), None);
    assert_eq!((picker.sent(12), picker.lost(12, 1)), (Err(Misuse::Worker), Err(Misuse::Worker)));
    picker.abandon();
    let given_up = ReleasedTask { id: 4, outcome: Err(DropReason::Shutdown) };
    assert_eq!((picker.release(5), picker.release(5)), (Some(given_up), None));
    let totals = scheduler.totals();
    let read = |counter| totals.count(counter);
    // Six tasks and three reports, one of them of an unknown worker.
    assert_eq!((read(Counter::RxPackets), read(Counter::Forwarded)), (6 + 3, 4));
    assert_eq!((read(Counter::Refused), read(Counter::WrittenOff)), (1, 1));
    assert_eq!(totals.count(DropReason::UnknownWorker), 1);
    assert!(totals.balances());
}

// promise: library.2, scheduling.3
#[test]
fn reported_short_class_overtakes_a_long_one() {
    let mut scheduler = portless_config("jbsq(k=1, boost=1)", "queue = 3");
    let mut picker = scheduler.picker(0).unwrap();
    // Tasks of class 2 take 1 ms, and those of class 1 take 10 us.
    let report = |worker, class| {
        let service_ns = if class == 2 { 1_000_000 } else { 10_000 };
        WorkerReport { class, service_ns, ..done(worker, 0) }
    };
    let pick = |picker: &mut Picker, id, class| {
        let mut choices = [Choice::Refused];
        picker.pick(POOL, id, &[TaskDescription { id, class }], &mut choices).unwrap();
        choices[0]
    };
    for id in 0..200 {
        let class = 1 + id as u16 % 2;
        let Choice::Worker { worker, .. } = pick(&mut picker, id, class) else { panic!("{id}") };
        assert_eq!(picker.report(&[report(worker, class)]), 1);
    }
    for (id, class) in [(200, 2), (201, 2)] {
        assert!(matches!(pick(&mut picker, id, class), Choice::Worker { .. }));
    }
    for (id, class) in [(202, 2), (203, 2), (204, 1)] {
        assert_eq!(pick(&mut picker, id, class), Choice::Held);
    }
    let order = [10, 11, 10].map(|worker| {
        assert_eq!(picker.report(&[report(worker, 2)]), 1);
        picker.release(205).map(|released| released.id)
    });
    assert_eq!(order, [204, 202, 203].map(Some));
}

// promise: library.2
#[test]
fn wrong_calls_are_refused_unknown_pools_dropped() {
    let mut scheduler = portless_config("random", "");
    let mut picker = scheduler.picker(0).unwrap();
    let tasks = [TaskDescription::default(); BURST + 1];
    let mut choices = [Choice::Held; BURST + 1];
    assert_eq!(picker.pick(POOL, 1, &tasks, &mut choices), Err(Misuse::Burst));
    assert_eq!(picker.pick(POOL, 1, &tasks[..2], &mut choices[..1]), Err(Misuse::Verdicts));
    assert_eq!(choices, [Choice::Held; BURST + 1]);
    picker.pick(POOL + 1, 1, &tasks[..2], &mut choices).unwrap();
    assert_eq!(choices[..2], [Choice::Dropped(DropReason::UnknownPool); 2]);
    // A report of more tasks than the worker can have counts, as on a leaf. Its load becomes that of the tasks sent and
    // not answered.
    assert_eq!(pick(&mut picker, 1, 0..4).len(), 4);
    assert_eq!(picker.report(&[done(10, 60_000)]), 1);
    let worker = scheduler.workers().into_iter().find(|one| one.worker == 10).unwrap();
    assert!(worker.load < 4.0, "{worker:?}");
    assert!(scheduler.totals().balances());
}

// promise: library.2
#[test]
fn policy_that_sends_probes_is_refused() {
    // With reports in messages, `jsq(2)` probes two workers for each task. The library sends no probes.
    let pools = "[[pool]]\nid = 1\npolicy = 'jsq(2)'\nreports = 'messages'\n[[server]]\nip = '10.0.2.11'\nworkers = '1'\npool = 1\n";
    let options = Options { ticks_hz: TICKS_HZ, macs: &[] };
    let config = format!("[leaf]\nid = 1\ncores = [0]\n{pools}");
    let text = Scheduler::from_toml(&config, &options).unwrap_err().to_string();
    assert!(text.contains("probes workers"), "{text}");
}

// promise: library.2
#[test]
fn members_and_policies_change_during_reported_tasks() {
    let mut scheduler = portless_config("round-robin", "");
    let mut picker = scheduler.picker(0).unwrap();
    let ms = TICKS_HZ / 1000;
    let mut now = 0;
    // Makes a change and calls the picker until it has applied the change. Returns the time.
    let mut apply = |scheduler: &Scheduler, picker: &mut Picker, change: &str| {
        let epoch = scheduler.apply(&change.parse::<Change>().unwrap()).unwrap();
        while scheduler.acknowledged() < epoch {
            now += ms;
            assert_eq!(picker.release(now), None);
            assert!(now < 1000 * ms, "the picker takes {change}");
        }
        scheduler.collect(now);
        now
    };
    let workers = |choices: Vec<Choice>| -> BTreeSet<u16> {
        choices
            .into_iter()
            .map(|choice| match choice {
                Choice::Worker { worker, .. } => worker,
                other => panic!("{other:?}"),
            })
            .collect()
    };
    let now = apply(
        &scheduler,
        &mut picker,
        &format!("add-workers server=10.0.2.11 pool={POOL} workers=12 speed=2"),
    );
    assert_eq!(workers(pick(&mut picker, now, 0..6)), BTreeSet::from([10, 11, 12]));
    let now = apply(&scheduler, &mut picker, "drain workers=10");
    assert_eq!(workers(pick(&mut picker, now, 0..6)), BTreeSet::from([11, 12]));
    let found = scheduler.workers();
    let worker = |id: u16| found.iter().find(|one| one.worker == id).unwrap();
    assert_eq!(
        (found.len(), worker(10).pool, worker(10).is_drained, worker(11).is_drained),
        (3, POOL, true, false)
    );
    // Six tasks over three workers, then six over two.
    assert_eq!((worker(10).outstanding, worker(11).outstanding, worker(12).outstanding), (2, 5, 5));
    assert_eq!((worker(11).speed, worker(12).speed), (1.0, 2.0));
    let now = apply(&scheduler, &mut picker, &format!("set-policy pool={POOL} policy=jbsq(k=1)"));
    assert_eq!(pick(&mut picker, now, 0..1), [Choice::Held], "both have more than one");
    assert!(scheduler.snapshot().pools[0].policy.starts_with("jbsq(k=1"));
}

#[path = "../examples/own_header.rs"]
mod example;
mod own_header;

// promise: library.1
#[test]
fn own_header_example_serves() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (address, over) = (socket.local_addr().unwrap(), std::sync::atomic::AtomicBool::new(false));
    let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            example::serve(own_header::TEXT, &socket, is_over).map_err(|error| error.to_string())
        });
        let done = std::panic::catch_unwind(|| own_header::tasks_are_done(address));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(serving.join().unwrap(), Ok(()));
        done.unwrap();
    });
}
