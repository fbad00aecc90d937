//! Workers that register, fall silent and come back, and workers that claim a false identity. The presence of a worker
//! is its state at the leaf: configured (needs no registration), unregistered, registered, silent, or unreachable (its
//! server does not answer). The leaf sends tasks to configured and registered workers only. It excludes a worker after
//! 100 ms of silence.
//!
//! A `Rig` is one core of a leaf in memory; the test plays the client and the servers at the far ends (`far`) of its
//! ports `CLIENTS` and `WORKERS`. Pool 7 has workers 10 to 17, which are its members 0 to 7. Workers 10 to 13 are on
//! the first server, 14 to 17 on the second. `through` sends a packet to a port, polls the leaf 1 us later and
//! receives from another port, or from the same one. `one` does so for exactly one packet back, and returns its datagram, header and frame.
//! `wait` polls after some nanoseconds. `task(seq)` is a client's task with this sequence number, and
//! `reply(worker, tasks)` a worker's reply with its number of remaining tasks. `assert_accounted` checks the ledger and
//! the buffers at the end. `promise: ID` names the tested promise of SPECIFICATION.md.

use crossbeam_queue::ArrayQueue;
use wedjat_core::policy::{CATALOGUE, Runs};
use wedjat_core::stage::UnknownWorker;
use wedjat_core::state::MemberPresence;
use wedjat_core::wire::address::Address;

use super::*;

/// Returns a message with this header from a server's IP address to the leaf itself. Its source MAC address is always
/// the first server's.
pub fn message_from(server: u32, header: Header) -> Vec<u8> {
    let mut payload = vec![0xEF; header.len() + 3];
    header.emit(&mut payload);
    if header.extended {
        Extension { app: 4, seq32: 5, service_ns: 6, class: 7 }.emit(&mut payload);
    }
    let flow = Flow {
        src_mac: server_mac(0),
        dst_mac: LEAF_MACS[WORKERS],
        src: server,
        dst: LEAF_WORKERS,
        src_port: 5000,
        dst_port: 1234,
    };
    frame(&flow, &payload)
}

/// Returns the index in the pool of a worker of the configuration.
fn member_of(worker: u16) -> u16 {
    worker - 10
}

/// Returns the address of a worker's server; the first one's for worker 18, which the leaf does not know.
fn server_of(worker: u16) -> u32 {
    SERVERS[usize::from(member_of(worker)) / 4 % 2]
}

/// Returns a worker's registration with its number of tasks.
pub fn join(worker: u16, tasks: u16) -> Vec<u8> {
    message_from(server_of(worker), Header::worker_id(7, worker, tasks, 0x1234))
}

/// Returns a worker's keep-alive with its number of tasks.
pub fn alive(worker: u16, tasks: u16) -> Vec<u8> {
    message_from(server_of(worker), Header::keep_alive(7, worker, tasks, 0x1235))
}

/// Builds a leaf whose servers register their workers.
fn registering(policy: &str) -> Rig {
    registering_cores(policy, 1).remove(0)
}

/// Same as [`registering`], with several cores.
fn registering_cores(policy: &str, cores: usize) -> Vec<Rig> {
    let networks = Networks { sides: [Side::Clients, Side::Workers], registers: true, key: None };
    // Servers and client have known MAC addresses. A port holds 256 packets, and the queue 64 tasks.
    rigs_on(networks, policy, true, true, 256, cores, (64, Overflow::Drop))
}

impl Rig {
    /// Delivers a message at the workers' port, and drops the answer.
    fn send_message(&mut self, frame: &[u8]) {
        drop(self.through(WORKERS, frame, WORKERS));
    }

    /// Returns a worker's presence.
    fn presence(&self, worker: u16) -> MemberPresence {
        self.leaf.stages().dispatcher(0).unwrap().view().presence(Member(member_of(worker)))
    }

    /// Returns true if a worker may get tasks.
    fn is_active(&self, worker: u16) -> bool {
        self.leaf.stages().dispatcher(0).unwrap().view().is_active(Member(member_of(worker)))
    }

    /// Advances time by `ns` in steps of 10 ms, with keep-alives of these workers and silence of the rest.
    fn pass_with_keep_alives(&mut self, ns: u64, workers: &[u16]) {
        for _ in 0..ns / 10_000_000 {
            for &worker in workers {
                self.send_message(&alive(worker, 0));
            }
            self.wait(10_000_000);
        }
    }

    /// Sends `tasks` tasks. Returns the workers that get them.
    fn chosen(&mut self, tasks: u16) -> std::collections::BTreeSet<u16> {
        (0..tasks).map(|seq| self.one(CLIENTS, &task(seq), WORKERS).1.dst).collect()
    }
}

// promise: membership.4
#[test]
fn a_registration_is_answered_to_its_sender() {
    let mut rig = registering("horus");
    for extended in [false, true] {
        let header = Header { extended, ..Header::worker_id(7, 14, 3, 0x1234) };
        let sent = message_from(SERVERS[1], header);
        let (datagram, answer, frame) = rig.one(WORKERS, &sent, WORKERS);
        assert_eq!((datagram.src, datagram.src_port), (LEAF_WORKERS, 1234));
        assert_eq!((datagram.dst, datagram.dst_port), (SERVERS[1], 5000));
        // Leaf 9, with a timeout of 100 ms.
        assert_eq!(answer, header.acknowledged_by(9, 100));
        assert_eq!(ether::dst(frame.bytes()), server_mac(0), "to the sender's MAC address");
        let (sent, frame) = (&sent[datagram.payload()..], &frame.bytes()[datagram.payload()..]);
        assert_eq!(sent[11..], frame[11..], "the bytes after the header are unchanged");
    }
    assert_eq!(
        (rig.presence(14), rig.presence(13)),
        (MemberPresence::Registered, MemberPresence::Unregistered)
    );
    // A load has 16 fractional bits.
    let view = rig.leaf.stages().dispatcher(0).unwrap().view();
    assert_eq!(view.estimated_load(Member(4)), 3 << 16, "its queue is known");
    assert_eq!((rig.count(Counter::Registrations), rig.count(Counter::Originated)), (2, 2));
    rig.send_message(&alive(14, 5));
    let view = rig.leaf.stages().dispatcher(0).unwrap().view();
    assert_eq!(view.estimated_load(Member(4)), 5 << 16, "a keep-alive refreshes it");
    assert_eq!((rig.count(Counter::KeepAlives), rig.count(Counter::Originated)), (1, 2));
    assert_eq!(rig.drops(), []);
    rig.assert_accounted();
}

// promise: scheduling.4
#[test]
fn lost_tasks_are_written_off_despite_keep_alives() {
    // Keep-alives without tasks contradict the tasks sent. The leaf doubts such a worker's reports for a second. Then
    // it writes off the tasks that no report counted. A policy that holds tasks would then send waiting ones, so the
    // test leaves those policies out.
    let workers: Vec<_> = (10..18).collect();
    for entry in CATALOGUE.iter().filter(|entry| entry.runs == Runs::Leaf) {
        let mut rig = registering(entry.name);
        workers.iter().for_each(|&worker| rig.send_message(&join(worker, 0)));
        for seq in 0..160 {
            drop(rig.through(CLIENTS, &task(seq), WORKERS)); // none of them arrives
        }
        rig.pass_with_keep_alives(5_000_000_000, &workers);
        let view = rig.leaf.stages().dispatcher(0).unwrap().view();
        let left: Vec<_> = (0..8).map(|member| view.outstanding(Member(member))).collect();
        assert_eq!(left, [0; 8], "{}", entry.name);
        rig.assert_accounted();
    }
}

// promise: membership.4
#[test]
fn golden_bytes_of_a_registration_on_the_wire() {
    let mut rig = registering("horus");
    // Code, pool 7, worker 14, no destination, three tasks, number 0x1234.
    let join = [0x0C, 0, 7, 0, 14, 0x7F, 0xFF, 0, 3, 0x12, 0x34];
    let flow = Flow {
        src_mac: server_mac(1),
        dst_mac: LEAF_MACS[WORKERS],
        src: SERVERS[1],
        dst: LEAF_WORKERS,
        src_port: 5000,
        dst_port: 1234,
    };
    let (.., answer) = rig.one(WORKERS, &frame(&flow, &join), WORKERS);
    // Code, pool 7, leaf 9, worker 14, timeout of 100 ms, the same number.
    assert_eq!(answer.bytes()[42..], [0x0D, 0, 7, 0, 9, 0, 14, 0, 100, 0x12, 0x34]);
    drop(answer);
    let alive = [0x0B, 0, 7, 0, 14, 0x7F, 0xFF, 0, 2, 0x12, 0x35];
    assert!(rig.through(WORKERS, &frame(&flow, &alive), WORKERS).is_empty());
    assert_eq!((rig.count(Counter::KeepAlives), rig.count(Counter::Consumed)), (1, 2));
}

// promise: membership.4
#[test]
fn bad_registrations_are_counted_and_ignored() {
    let mut rig = registering("horus");
    let mut on_clients_side = join(10, 0);
    on_clients_side[..6].copy_from_slice(&LEAF_MACS[CLIENTS].0);
    let mut short = join(10, 0);
    short.truncate(50);
    let header = Header::worker_id(7, 10, 0, 1);
    // The same message to another IP address. Byte 33 is the last one of the address; 24 and 40 begin the checksums of
    // IPv4 and UDP. A UDP checksum of 0 means none.
    let elsewhere = |mut frame: Vec<u8>| {
        frame[33] ^= 0x40;
        frame[24..26].fill(0);
        let checksum = PartialChecksum::default().bytes(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        frame[40..42].fill(0);
        frame
    };
    let cases = [
        (WORKERS, "unknown_worker", message_from(SERVERS[0], Header { src: 9, ..header })),
        (WORKERS, "unknown_worker", message_from(SERVERS[0], Header { src: 0xFFFF, ..header })),
        (WORKERS, "spoofed_reply", message_from(SERVERS[1], header)),
        (WORKERS, "spoofed_reply", message_from(0x0A00_0263, header)),
        (WORKERS, "pool_mismatch", message_from(SERVERS[0], Header { pool: 8, ..header })),
        (
            WORKERS,
            "pool_mismatch",
            message_from(SERVERS[0], Header { pool: 8, code: Code::KeepAlive, ..header }),
        ),
        (CLIENTS, "wrong_side", on_clients_side),
        (WORKERS, "ipv4_header", short),
        (WORKERS, "other_address", elsewhere(join(10, 0))),
        (
            WORKERS,
            "task_role",
            message_from(SERVERS[0], Header { code: Code::WorkerIdAck, ..header }),
        ),
    ];
    let mut expected = std::collections::BTreeMap::new();
    for (port, reason, frame) in cases {
        // Sent twice, to check both ports for an answer.
        for out in [CLIENTS, WORKERS] {
            assert!(rig.through(port, &frame, out).is_empty(), "{reason}");
            *expected.entry(reason).or_insert(0) += 1;
        }
        let drops: std::collections::BTreeMap<_, _> = rig.drops().into_iter().collect();
        assert_eq!(drops, expected, "{reason}");
    }
    let view = rig.leaf.stages().dispatcher(0).unwrap().view();
    assert!((0..8).all(|member| view.reports(Member(member)) == 0));
    assert!((10..18).all(|worker| rig.presence(worker) == MemberPresence::Unregistered));
    rig.assert_accounted();
}

// promise: membership.4
#[test]
fn silent_worker_gets_no_tasks_until_it_returns() {
    for back in [join(12, 0), alive(12, 0), reply(12, 0)] {
        let mut rig = registering("racksched");
        rig.send_message(&join(12, 0));
        rig.send_message(&join(13, 0));
        rig.pass_with_keep_alives(150_000_000, &[12, 13]);
        assert!(rig.is_active(12) && rig.is_active(13));
        // Three unanswered tasks for worker 12.
        let before = rig.outstanding(member_of(12));
        while rig.outstanding(member_of(12)) < before + 3 {
            rig.chosen(1);
        }
        rig.pass_with_keep_alives(90_000_000, &[13]);
        assert!(rig.is_active(12), "its silence is shorter than the timeout");
        rig.pass_with_keep_alives(30_000_000, &[13]);
        assert_eq!(
            (rig.presence(12), rig.presence(13)),
            (MemberPresence::Silent, MemberPresence::Registered)
        );
        assert_eq!(rig.outstanding(member_of(12)), 0, "its tasks are written off");
        let chosen = rig.chosen(200);
        assert!(!chosen.contains(&12), "no task for a silent worker");
        assert!(!chosen.contains(&10), "nor for one that never registered");
        drop(rig.through(WORKERS, &back, WORKERS));
        rig.receive(CLIENTS);
        rig.pass_with_keep_alives(10_000_000, &[13]);
        assert_eq!(rig.presence(12), MemberPresence::Registered);
        assert!(rig.is_active(12) && rig.chosen(200).contains(&12));
        // The worker falls silent a second time.
        rig.pass_with_keep_alives(120_000_000, &[13]);
        assert_eq!((rig.presence(12), rig.outstanding(member_of(12))), (MemberPresence::Silent, 0));
        assert_eq!((rig.count(Counter::WorkersLost), rig.count(Counter::WorkersBack)), (2, 1));
        rig.assert_accounted();
    }
}

// promise: membership.4
#[test]
fn replies_are_signs_of_life() {
    let mut rig = registering("horus");
    rig.send_message(&join(12, 0));
    for _ in 0..40 {
        drop(rig.through(WORKERS, &reply(12, 1), CLIENTS));
        rig.wait(10_000_000);
    }
    assert!(rig.is_active(12));
    assert_eq!(rig.count(Counter::WorkersLost), 0);
    rig.assert_accounted();
}

// promise: membership.4
#[test]
fn stalled_leaf_excludes_no_worker() {
    let mut rig = registering("random");
    rig.send_message(&join(12, 0));
    rig.pass_with_keep_alives(50_000_000, &[12]);
    // The leaf is not polled for 500 ms.
    rig.wait(500_000_000);
    assert!(rig.is_active(12), "the leaf could not receive keep-alives meanwhile");
    rig.pass_with_keep_alives(90_000_000, &[]);
    assert!(rig.is_active(12));
    rig.pass_with_keep_alives(30_000_000, &[]);
    assert!(!rig.is_active(12), "now it is silent");
    rig.assert_accounted();
}

// promise: membership.4
#[test]
fn every_policy_skips_and_readmits_silent_workers() {
    for entry in CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine) {
        let mut rig = registering(entry.name);
        // Answers the tasks in these frames, and returns their workers.
        let answer = |rig: &mut Rig, frames: Vec<Frame>| {
            let mut workers = Vec::new();
            for frame in frames {
                let at = udp::parse(frame.bytes(), false).unwrap().payload();
                let worker = Header::parse(&frame.bytes()[at..]).unwrap().dst;
                workers.push(worker);
                assert!(rig.far[WORKERS].send(&reply(worker, 0)));
            }
            rig.poll();
            rig.receive(CLIENTS);
            workers
        };
        // Sends 300 tasks, each of which is answered, and returns their workers.
        let run = |rig: &mut Rig| {
            let mut workers = Vec::new();
            for seq in 0..300 {
                let frames = rig.through(CLIENTS, &task(seq), WORKERS);
                workers.extend(answer(rig, frames));
                let released = rig.receive(WORKERS);
                workers.extend(answer(rig, released));
            }
            assert_eq!(workers.len(), 300, "{}: no task is lost", entry.name);
            workers
        };
        let other_workers: Vec<_> = (10..18).filter(|&worker| worker != 15).collect();
        (10..18).for_each(|worker| rig.send_message(&join(worker, 0)));
        run(&mut rig);
        rig.pass_with_keep_alives(150_000_000, &other_workers);
        assert_eq!(rig.presence(15), MemberPresence::Silent);
        assert!(!run(&mut rig).contains(&15), "{}", entry.name);
        // All other workers report 40 tasks, so the policy prefers this one.
        for worker in other_workers {
            drop(rig.through(WORKERS, &reply(worker, 40), CLIENTS));
        }
        rig.send_message(&alive(15, 0));
        assert!(run(&mut rig).contains(&15), "{}", entry.name);
        assert_eq!(rig.drops(), [], "{}", entry.name);
        rig.assert_accounted();
    }
}

// promise: membership.4
#[test]
fn queued_tasks_survive_their_workers() {
    let mut rig = registering_cores("jbsq(k=1)", 1).remove(0);
    for worker in 10..18 {
        rig.send_message(&join(worker, 0));
    }
    for seq in 0..20 {
        assert!(rig.far[CLIENTS].send(&task(seq)));
    }
    rig.poll();
    assert_eq!(rig.receive(WORKERS).len(), 8);
    rig.pass_with_keep_alives(200_000_000, &[]);
    assert_eq!((rig.count(Counter::WorkersLost), rig.count(Gauge::Queued)), (8, 12));
    // One worker comes back without tasks, and gets the first waiting one.
    assert!(rig.far[WORKERS].send(&alive(16, 0)));
    rig.poll();
    rig.wait(200_000);
    let frames = rig.receive(WORKERS);
    assert_eq!(frames.len(), 1);
    let header = Header::parse(&frames[0].bytes()[42..]).unwrap();
    assert_eq!((header.dst, header.seq), (16, 8));
    drop(frames);
    rig.assert_accounted();
}

#[test]
fn unreachable_worker_is_back_once_it_registers() {
    for message in [join(12, 0), alive(12, 0)] {
        let mut rig = registering("random");
        rig.send_message(&join(12, 0));
        let view = rig.leaf.stages().dispatcher(0).unwrap().view();
        view.set_presence(Member(member_of(12)), MemberPresence::Unreachable);
        rig.send_message(&message);
        assert_eq!(rig.presence(12), MemberPresence::Registered);
        assert_eq!(rig.count(Counter::WorkersBack), 1);
    }
}

// promise: membership.4
#[test]
fn silence_and_return_reach_all_cores() {
    let mut cores = registering_cores("random", 2);
    let [first, second] = &mut cores[..] else { unreachable!() };
    second.send_message(&join(12, 0));
    second.send_message(&join(13, 0));
    first.wait(1_000_000);
    while first.outstanding(member_of(12)) < 3 {
        first.chosen(1);
        second.chosen(1);
    }
    for _ in 0..15 {
        second.send_message(&alive(13, 0));
        first.wait(10_000_000);
        second.wait(10_000_000);
    }
    assert!(!first.is_active(12) && !second.is_active(12));
    assert_eq!(first.outstanding(member_of(12)), 0, "written off once, over all cores");
    let lost = |rig: &Rig| rig.count(Counter::WorkersLost);
    assert_eq!(lost(first) + lost(second), 1, "and counted once");
    assert!(!first.chosen(100).contains(&12) && !second.chosen(100).contains(&12));
    // A reply that passes the first core brings it back on both.
    drop(first.through(WORKERS, &reply(12, 0), CLIENTS));
    first.wait(1_000_000);
    second.wait(1_000_000);
    assert!(first.chosen(100).contains(&12) && second.chosen(100).contains(&12));
    let back = |rig: &Rig| rig.count(Counter::WorkersBack);
    assert_eq!(back(first) + back(second), 1);
    first.assert_accounted();
    second.assert_accounted();
}

// promise: membership.4
#[test]
fn disabled_worker_stays_disabled() {
    let mut rig = registering("random");
    rig.send_message(&join(12, 0));
    rig.pass_with_keep_alives(150_000_000, &[]);
    // Silent, then deactivated: a message does not bring it back.
    rig.set_active(member_of(12), false);
    rig.wait(1_000_000);
    rig.pass_with_keep_alives(50_000_000, &[12]);
    assert_eq!(rig.presence(12), MemberPresence::Registered);
    assert!(!rig.is_active(12));
    rig.set_active(member_of(12), true);
    rig.wait(1_000_000);
    assert!(rig.is_active(12));
    // Silent, then activated: a message brings it back.
    rig.pass_with_keep_alives(150_000_000, &[]);
    rig.set_active(member_of(12), true);
    rig.wait(1_000_000);
    assert!(!rig.is_active(12));
    rig.pass_with_keep_alives(10_000_000, &[12]);
    assert!(rig.is_active(12));
    rig.assert_accounted();
}

#[test]
fn no_timeout_means_no_silence() {
    let mut rig = registering("random");
    rig.leaf.stages_mut().set_worker_timeout(0);
    // The acknowledgement carries the timeout in the field of the queue length.
    let (_, answer, _) = rig.one(WORKERS, &join(12, 0), WORKERS);
    assert_eq!(answer.qlen, 0, "the acknowledgement says so");
    rig.pass_with_keep_alives(10_000_000_000, &[]);
    assert!(rig.is_active(12));
    rig.assert_accounted();
}

// promise: controller.1
#[test]
fn unknown_workers_are_reported_on_request() {
    let mut rig = registering("horus");
    let newcomers = Arc::new(ArrayQueue::new(2));
    let header = Header::worker_id(7, 9, 0, 1);
    // Worker 9 is not configured. Without a queue the leaf only drops its registration.
    rig.through(WORKERS, &message_from(SERVERS[0], header), WORKERS);
    rig.leaf.stages_mut().set_unknown_workers(Arc::clone(&newcomers));
    rig.through(WORKERS, &message_from(SERVERS[0], header), WORKERS);
    assert_eq!(
        newcomers.pop(),
        Some(UnknownWorker { server: SERVERS[0].to_ip(), worker: 9, pool: 7 })
    );
    rig.through(WORKERS, &join(10, 0), WORKERS); // known
    rig.through(WORKERS, &message_from(SERVERS[0], Header { src: 0xFFFF, ..header }), WORKERS);
    let mut on_clients_side = message_from(SERVERS[0], header);
    on_clients_side[..6].copy_from_slice(&LEAF_MACS[CLIENTS].0);
    rig.through(CLIENTS, &on_clients_side, CLIENTS);
    assert_eq!(newcomers.pop(), None);
    // The leaf also reports workers of an unknown server, up to the capacity of the queue, 2.
    for worker in 100..110 {
        rig.through(WORKERS, &message_from(0x0A00_0263, Header { src: worker, ..header }), WORKERS);
    }
    let reported = [newcomers.pop(), newcomers.pop(), newcomers.pop()];
    let newcomer = |worker| Some(UnknownWorker { server: [10, 0, 2, 99].into(), worker, pool: 7 });
    assert_eq!(reported, [newcomer(100), newcomer(101), None]);
    rig.assert_accounted();
}

// promise: membership.4
#[test]
fn unregistered_worker_gets_no_task() {
    for entry in CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine) {
        let mut rig = registering(entry.name);
        assert!((10..18).all(|worker| rig.presence(worker) == MemberPresence::Unregistered));
        assert!(rig.through(CLIENTS, &task(0), WORKERS).is_empty(), "{}", entry.name);
        // Number of waiting tasks, 0 or 1.
        let waits = rig.count(Gauge::Queued);
        let dropped = if waits == 0 { vec![("no_member", 1)] } else { Vec::new() };
        assert_eq!(rig.drops(), dropped, "{}", entry.name);
        assert_eq!(
            waits == 1,
            entry.holds(),
            "{}: the task waits if the policy holds tasks",
            entry.name
        );
        // Two workers register, one by a keep-alive as after a restart of the leaf.
        rig.send_message(&join(12, 0));
        rig.send_message(&alive(15, 0));
        let mut workers = std::collections::BTreeSet::new();
        for seq in 1..200 {
            rig.wait(200_000);
            for frame in rig.through(CLIENTS, &task(seq), WORKERS) {
                let at = udp::parse(frame.bytes(), false).unwrap().payload();
                let worker = Header::parse(&frame.bytes()[at..]).unwrap().dst;
                workers.insert(worker);
                drop(rig.through(WORKERS, &reply(worker, 0), CLIENTS));
            }
        }
        assert!(
            workers.iter().all(|worker| [12, 15].contains(worker)),
            "{} {workers:?}",
            entry.name
        );
        assert!(!workers.is_empty(), "{}", entry.name);
        assert_eq!(rig.drops(), dropped, "{}", entry.name);
        rig.assert_accounted();
    }
}

// promise: membership.4
#[test]
fn added_worker_waits_for_its_registration() {
    let networks = Networks { sides: [Side::Clients, Side::Workers], registers: true, key: None };
    // The rig of `registering`, with the control.
    let text = config_text(&networks, "random", true, 1, (64, Overflow::Drop));
    let (mut rigs, mut control) = rigs_with_control(&text, None, true, 256);
    let rig = &mut rigs[0];
    rig.send_message(&join(10, 0));
    rig.change(&mut control, &["add-workers pool=7 workers=20 server=10.0.2.11"]);
    // Worker 20 has index 8 in the pool. `presence` and `is_active` know this index as that of worker 18.
    assert_eq!((rig.presence(18), rig.is_active(18)), (MemberPresence::Unregistered, false));
    assert_eq!(rig.chosen(50), [10].into());
    let late_join = message_from(SERVERS[0], Header::worker_id(7, 20, 0, 1));
    rig.send_message(&late_join);
    assert_eq!(rig.chosen(50), [10, 20].into());
    // Worker 20 departs with unanswered tasks, so its place is free 10 s later. Then another worker gets the place.
    rig.change(&mut control, &["remove-workers workers=20"]);
    rig.wait(11_000_000_000);
    control.tend(rig.now); // frees the place
    rig.send_message(&alive(10, 0));
    rig.change(&mut control, &["add-workers pool=7 workers=21 server=10.0.2.11"]);
    assert_eq!(rig.chosen(50), [10].into());
    rig.assert_accounted();
}

#[test]
fn added_worker_registers_as_its_pools_entry_says() {
    let networks = Networks { sides: [Side::Clients, Side::Workers], registers: false, key: None };
    let text = config_text(&networks, "random", false, 1, (64, Overflow::Drop));
    let entry = "[[pool]]\nid = 8\npolicy = 'random'\n\
        [[server]]\nip = '10.0.2.11'\npool = 8\nworkers = '30'\nregisters = true\n";
    let (mut rigs, mut control) = rigs_with_control(&(text + entry), None, true, 256);
    let changes = [
        "add-workers pool=8 workers=31 server=10.0.2.11",
        "add-workers pool=7 workers=20 server=10.0.2.11",
    ];
    rigs[0].change(&mut control, &changes);
    let membership = control.membership();
    let registers = |id: u16| {
        let (pool, place) = membership.worker(id).unwrap();
        let worker = membership.pools[pool].as_ref().unwrap().members[place].unwrap();
        membership.servers[usize::from(worker.server)].unwrap().registers
    };
    assert_eq!([20, 30, 31].map(registers), [false, true, true]);
}

// promise: membership.4
#[test]
fn worker_of_a_returned_host_stays_silent() {
    let mut rig = registering("random");
    // Without a timeout, workers become silent only by the loss of their host.
    rig.leaf.stages_mut().set_worker_timeout(0);
    let neighbours = rig.leaf.stages().neighbours().clone();
    (10..18).for_each(|worker| rig.send_message(&join(worker, 0)));
    // After one round of the leaf's checks the servers count as up. Then a single loss of the next hop suffices.
    rig.pass_with_keep_alives(30_000_000, &[]);
    // Slot of the second server in the neighbour table.
    let slot = rig.leaf.stages().network().servers().nth(1).unwrap().slot;
    rig.leaf.stages_mut().lose_next_hop(slot);
    assert!((14..18).all(|worker| rig.presence(worker) == MemberPresence::Unreachable));
    // The MAC address is configured, so it stays known, and the next check takes the host back.
    assert!(neighbours.mac(slot).is_some(), "the host counts as resolved");
    rig.wait(10_000_000);
    assert!((14..18).all(|worker| rig.presence(worker) == MemberPresence::Silent));
    assert!(rig.chosen(100).iter().all(|&worker| worker < 14));
    rig.send_message(&alive(16, 0));
    assert_eq!(
        (rig.presence(16), rig.presence(17)),
        (MemberPresence::Registered, MemberPresence::Silent)
    );
    assert!(rig.chosen(200).contains(&16));
    rig.assert_accounted();
}

// promise: membership.4
#[test]
fn tasks_wait_for_the_first_registration() {
    // With a link-up delay, the leaf leaves tasks in the device for up to 250 ms while it has no worker.
    let mut rig = registering("horus");
    rig.leaf = rig.leaf.with_link_up_delay();
    for seq in 0..20 {
        rig.send(CLIENTS, &task(seq));
    }
    for _ in 0..100 {
        rig.wait(1_000_000);
    }
    assert_eq!(rig.count(Counter::RxPackets), 0);
    rig.send_message(&join(12, 0));
    // The tick in the first poll ends the delay, and the second poll receives the tasks.
    rig.wait(1_000_000);
    rig.wait(1_000_000);
    assert_eq!((rig.receive(WORKERS).len(), rig.drops()), (20, vec![]));
    rig.assert_accounted();
    // Without a registration, tasks are dropped in the end.
    let mut rig = registering("horus");
    rig.leaf = rig.leaf.with_link_up_delay();
    rig.send(CLIENTS, &task(0));
    for _ in 0..300 {
        rig.wait(1_000_000);
    }
    assert_eq!(rig.drops(), [("no_member", 1)]);
    rig.assert_accounted();
}
