//! Workers that register, fall silent and come back; and those that claim to be what they are not.

use crossbeam_queue::ArrayQueue;

use super::*;
use crate::policy::{CATALOGUE, Runs};
use crate::stage::Newcomer;
use crate::state::Presence;

/// What a server sends to the leaf itself.
pub fn word_from(server: u32, header: Header) -> Vec<u8> {
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

fn server_of(worker: u16) -> u32 {
    SERVERS[usize::from(worker - 10) / 4 % 2]
}

pub fn join(worker: u16, tasks: u16) -> Vec<u8> {
    word_from(server_of(worker), Header::worker_id(7, worker, tasks, 0x1234))
}

pub fn alive(worker: u16, tasks: u16) -> Vec<u8> {
    word_from(server_of(worker), Header::keep_alive(7, worker, tasks, 0x1235))
}

impl Rig {
    fn say(&mut self, frame: &[u8]) {
        drop(self.through(WORKERS, frame, WORKERS));
    }

    fn presence(&self, worker: u16) -> Presence {
        self.leaf.stages().dispatcher(0).unwrap().view().presence(Member(worker - 10))
    }

    fn is_active(&self, worker: u16) -> bool {
        self.leaf.stages().dispatcher(0).unwrap().view().is_active(Member(worker - 10))
    }

    /// Lets time pass in steps, while these workers are kept alive.
    fn live(&mut self, ns: u64, workers: &[u16]) {
        for _ in 0..ns / 10_000_000 {
            for &worker in workers {
                self.say(&alive(worker, 0));
            }
            self.wait(10_000_000);
        }
    }

    /// The workers that get so many tasks.
    fn chosen(&mut self, tasks: u16) -> std::collections::BTreeSet<u16> {
        (0..tasks).map(|seq| self.one(CLIENTS, &task(seq), WORKERS).1.dst).collect()
    }
}

#[test]
fn a_registration_is_answered_to_its_sender() {
    let mut rig = rig("horus");
    for extended in [false, true] {
        let header = Header { extended, ..Header::worker_id(7, 14, 3, 0x1234) };
        let sent = word_from(SERVERS[1], header);
        let (datagram, answer, frame) = rig.one(WORKERS, &sent, WORKERS);
        assert_eq!((datagram.src, datagram.src_port), (LEAF_WORKERS, 1234));
        assert_eq!((datagram.dst, datagram.dst_port), (SERVERS[1], 5000));
        assert_eq!(answer, header.acknowledged_by(9, 100));
        assert_eq!(ether::dst(frame.bytes()), server_mac(0), "back to where it came from");
        let (sent, frame) = (&sent[datagram.payload()..], &frame.bytes()[datagram.payload()..]);
        assert_eq!(sent[11..], frame[11..], "what follows the header comes back as it was");
    }
    assert_eq!((rig.presence(14), rig.presence(13)), (Presence::Registered, Presence::Configured));
    let view = rig.leaf.stages().dispatcher(0).unwrap().view();
    assert_eq!(view.estimate(Member(4)), 3 << 16, "its queue is known");
    assert_eq!((rig.count(Counter::Registrations), rig.count(Counter::Originated)), (2, 2));
    rig.say(&alive(14, 5));
    let view = rig.leaf.stages().dispatcher(0).unwrap().view();
    assert_eq!(view.estimate(Member(4)), 5 << 16, "a keep-alive refreshes it");
    assert_eq!((rig.count(Counter::KeepAlives), rig.count(Counter::Originated)), (1, 2));
    assert_eq!(rig.drops(), []);
    rig.assert_accounted();
}

#[test]
fn tasks_that_are_lost_at_once_are_written_off_though_they_make_their_workers_doubtful() {
    let workers: Vec<_> = (10..18).collect();
    for entry in CATALOGUE.iter().filter(|entry| entry.runs == Runs::Leaf) {
        let mut rig = rig(entry.name);
        workers.iter().for_each(|&worker| rig.say(&join(worker, 0)));
        for seq in 0..160 {
            drop(rig.through(CLIENTS, &task(seq), WORKERS)); // none of them arrives
        }
        rig.live(5_000_000_000, &workers);
        let view = rig.leaf.stages().dispatcher(0).unwrap().view();
        let left: Vec<_> = (0..8).map(|member| view.outstanding(Member(member))).collect();
        assert_eq!(left, [0; 8], "{}", entry.name);
        rig.assert_accounted();
    }
}

#[test]
fn golden_bytes_of_a_registration_on_the_wire() {
    let mut rig = rig("horus");
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
    assert_eq!(answer.bytes()[42..], [0x0D, 0, 7, 0, 9, 0, 14, 0, 100, 0x12, 0x34]);
    drop(answer);
    let alive = [0x0B, 0, 7, 0, 14, 0x7F, 0xFF, 0, 2, 0x12, 0x35];
    assert!(rig.through(WORKERS, &frame(&flow, &alive), WORKERS).is_empty());
    assert_eq!((rig.count(Counter::KeepAlives), rig.count(Counter::Consumed)), (1, 2));
}

#[test]
fn what_is_no_word_of_a_configured_worker_is_counted_and_changes_nothing() {
    let mut rig = rig("horus");
    let mut on_clients_side = join(10, 0);
    on_clients_side[..6].copy_from_slice(&LEAF_MACS[CLIENTS].0);
    let mut short = join(10, 0);
    short.truncate(50);
    let header = Header::worker_id(7, 10, 0, 1);
    let elsewhere = |mut frame: Vec<u8>| {
        frame[33] ^= 0x40; // to somebody else
        frame[24..26].fill(0);
        let checksum = Sum::default().bytes(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        frame[40..42].fill(0);
        frame
    };
    let cases = [
        (WORKERS, "unknown_worker", word_from(SERVERS[0], Header { src: 9, ..header })),
        (WORKERS, "unknown_worker", word_from(SERVERS[0], Header { src: 0xFFFF, ..header })),
        (WORKERS, "spoofed_reply", word_from(SERVERS[1], header)),
        (WORKERS, "spoofed_reply", word_from(0x0A00_0263, header)),
        (WORKERS, "pool_mismatch", word_from(SERVERS[0], Header { pool: 8, ..header })),
        (
            WORKERS,
            "pool_mismatch",
            word_from(SERVERS[0], Header { pool: 8, code: Code::KeepAlive, ..header }),
        ),
        (CLIENTS, "wrong_side", on_clients_side),
        (WORKERS, "ipv4_header", short),
        (WORKERS, "other_address", elsewhere(join(10, 0))),
        (WORKERS, "task_role", word_from(SERVERS[0], Header { code: Code::WorkerIdAck, ..header })),
    ];
    let mut expected = std::collections::BTreeMap::new();
    for (port, reason, frame) in cases {
        for out in [CLIENTS, WORKERS] {
            assert!(rig.through(port, &frame, out).is_empty(), "{reason}");
            *expected.entry(reason).or_insert(0) += 1;
        }
        let drops: std::collections::BTreeMap<_, _> = rig.drops().into_iter().collect();
        assert_eq!(drops, expected, "{reason}");
    }
    let view = rig.leaf.stages().dispatcher(0).unwrap().view();
    assert!((0..8).all(|member| view.reports(Member(member)) == 0));
    assert!((10..18).all(|worker| rig.presence(worker) == Presence::Configured));
    rig.assert_accounted();
}

#[test]
fn a_silent_worker_gets_no_tasks_until_it_is_heard_of() {
    for back in [join(12, 0), alive(12, 0), reply(12, 0)] {
        let mut rig = rig("racksched");
        rig.say(&join(12, 0));
        rig.say(&join(13, 0));
        rig.live(150_000_000, &[12, 13]);
        assert!(rig.is_active(12) && rig.is_active(13));
        let before = rig.outstanding(2);
        while rig.outstanding(2) < before + 3 {
            rig.chosen(1);
        }
        rig.live(90_000_000, &[13]);
        assert!(rig.is_active(12), "not yet");
        rig.live(30_000_000, &[13]);
        assert_eq!((rig.presence(12), rig.presence(13)), (Presence::Silent, Presence::Registered));
        assert_eq!(rig.outstanding(2), 0, "what it had is written off");
        let chosen = rig.chosen(200);
        assert!(!chosen.contains(&12), "no task for who is silent");
        assert!(chosen.contains(&10), "who never registered is there always");
        drop(rig.through(WORKERS, &back, WORKERS));
        rig.receive(CLIENTS);
        rig.live(10_000_000, &[13]);
        assert_eq!(rig.presence(12), Presence::Registered);
        assert!(rig.is_active(12) && rig.chosen(200).contains(&12));
        // And again.
        rig.live(120_000_000, &[13]);
        assert_eq!((rig.presence(12), rig.outstanding(2)), (Presence::Silent, 0));
        assert_eq!((rig.count(Counter::WorkersLost), rig.count(Counter::WorkersBack)), (2, 1));
        rig.assert_accounted();
    }
}

#[test]
fn replies_are_signs_of_life() {
    let mut rig = rig("horus");
    rig.say(&join(12, 0));
    for _ in 0..40 {
        drop(rig.through(WORKERS, &reply(12, 1), CLIENTS));
        rig.wait(10_000_000);
    }
    assert!(rig.is_active(12));
    assert_eq!(rig.count(Counter::WorkersLost), 0);
    rig.assert_accounted();
}

#[test]
fn a_leaf_that_was_held_up_blames_nobody() {
    let mut rig = rig("random");
    rig.say(&join(12, 0));
    rig.live(50_000_000, &[12]);
    rig.wait(500_000_000);
    assert!(rig.is_active(12), "nobody could be heard of");
    rig.live(90_000_000, &[]);
    assert!(rig.is_active(12));
    rig.live(30_000_000, &[]);
    assert!(!rig.is_active(12), "now it is silent");
    rig.assert_accounted();
}

#[test]
fn every_policy_leaves_silent_workers_out_and_takes_them_back() {
    for entry in CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine) {
        let mut rig = rig(entry.name);
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
        let run = |rig: &mut Rig| {
            let mut workers = Vec::new();
            for seq in 0..300 {
                let frames = rig.through(CLIENTS, &task(seq), WORKERS);
                workers.extend(answer(rig, frames));
                let released = rig.receive(WORKERS);
                workers.extend(answer(rig, released));
            }
            assert_eq!(workers.len(), 300, "{}: none went lost", entry.name);
            workers
        };
        run(&mut rig);
        rig.say(&join(15, 0));
        rig.live(150_000_000, &[]);
        assert_eq!(rig.presence(15), Presence::Silent);
        assert!(!run(&mut rig).contains(&15), "{}", entry.name);
        // The others are busy by what they say, so it will be wanted.
        for worker in (10..18).filter(|&worker| worker != 15) {
            drop(rig.through(WORKERS, &reply(worker, 40), CLIENTS));
        }
        rig.say(&alive(15, 0));
        assert!(run(&mut rig).contains(&15), "{}", entry.name);
        assert_eq!(rig.drops(), [], "{}", entry.name);
        rig.assert_accounted();
    }
}

#[test]
fn tasks_that_wait_are_not_lost_with_their_workers() {
    let backlog = (64, Overflow::Drop);
    let mut rig = rigs_with("jbsq(k=1)", true, true, 256, 1, backlog).remove(0);
    for worker in 10..18 {
        rig.say(&join(worker, 0));
    }
    for seq in 0..20 {
        assert!(rig.far[CLIENTS].send(&task(seq)));
    }
    rig.poll();
    assert_eq!(rig.receive(WORKERS).len(), 8);
    rig.live(200_000_000, &[]);
    assert_eq!((rig.count(Counter::WorkersLost), rig.count(Gauge::Queued)), (8, 12));
    // One comes back, with nothing to do, and gets the first that waits.
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
fn silence_and_return_reach_all_cores() {
    let mut cores = rigs("random", true, true, 256, 2);
    let [first, second] = &mut cores[..] else { unreachable!() };
    second.say(&join(12, 0));
    while first.outstanding(2) < 3 {
        first.chosen(1);
        second.chosen(1);
    }
    for _ in 0..15 {
        first.wait(10_000_000);
        second.wait(10_000_000);
    }
    assert!(!first.is_active(12) && !second.is_active(12));
    assert_eq!(first.outstanding(2), 0, "written off once, over all cores");
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

#[test]
fn who_is_taken_out_by_command_stays_out() {
    let mut rig = rig("random");
    rig.say(&join(12, 0));
    rig.live(150_000_000, &[]);
    // Silent, and then told to stay away: being heard of does not help.
    rig.set_active(2, false);
    rig.wait(1_000_000);
    rig.live(50_000_000, &[12]);
    assert_eq!(rig.presence(12), Presence::Registered);
    assert!(!rig.is_active(12));
    rig.set_active(2, true);
    rig.wait(1_000_000);
    assert!(rig.is_active(12));
    // Silent, and told to come: it does when it is heard of.
    rig.live(150_000_000, &[]);
    rig.set_active(2, true);
    rig.wait(1_000_000);
    assert!(!rig.is_active(12));
    rig.live(10_000_000, &[12]);
    assert!(rig.is_active(12));
    rig.assert_accounted();
}

#[test]
fn without_a_timeout_nobody_is_silent() {
    let mut rig = rig("random");
    rig.leaf.stages_mut().set_worker_timeout(0);
    let (_, answer, _) = rig.one(WORKERS, &join(12, 0), WORKERS);
    assert_eq!(answer.qlen, 0, "the server is told");
    rig.live(10_000_000_000, &[]);
    assert!(rig.is_active(12));
    rig.assert_accounted();
}

#[test]
fn workers_that_nobody_knows_are_told_to_who_wants_to_know_and_no_others() {
    let mut rig = rig("horus");
    let newcomers = Arc::new(ArrayQueue::new(2));
    let header = Header::worker_id(7, 9, 0, 1);
    rig.through(WORKERS, &word_from(SERVERS[0], header), WORKERS);
    rig.leaf.stages_mut().set_newcomers(Arc::clone(&newcomers));
    rig.through(WORKERS, &word_from(SERVERS[0], header), WORKERS);
    assert_eq!(newcomers.pop(), Some(Newcomer { server: SERVERS[0], worker: 9, pool: 7 }));
    rig.through(WORKERS, &join(10, 0), WORKERS); // known
    rig.through(WORKERS, &word_from(SERVERS[0], Header { src: 0xFFFF, ..header }), WORKERS);
    let mut on_clients_side = word_from(SERVERS[0], header);
    on_clients_side[..6].copy_from_slice(&LEAF_MACS[CLIENTS].0);
    rig.through(CLIENTS, &on_clients_side, CLIENTS);
    assert_eq!(newcomers.pop(), None);
    // A server that nobody knows either; and no more than there is room for.
    for worker in 100..110 {
        rig.through(WORKERS, &word_from(0x0A00_0263, Header { src: worker, ..header }), WORKERS);
    }
    let told = [newcomers.pop(), newcomers.pop(), newcomers.pop()];
    let newcomer = |worker| Some(Newcomer { server: 0x0A00_0263, worker, pool: 7 });
    assert_eq!(told, [newcomer(100), newcomer(101), None]);
    rig.assert_accounted();
}
