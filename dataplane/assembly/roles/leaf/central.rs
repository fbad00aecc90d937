//! Central queues in the leaf: order, overflow, changes of policy and members, shutdown, and random input. Under
//! `jbsq(k=n)` a worker has at most n unanswered tasks, and further tasks wait in the pool's central queue. `cfcfs`
//! finds the least such bound itself.
//!
//! A `Rig` is one core of a leaf in memory; the test plays the client and the servers at the far ends (`far`) of its
//! ports `CLIENTS` and `WORKERS`. Pool 7 has workers 10 to 17, which are its members 0 to 7. Workers 10 to 13 are on
//! the first server, 14 to 17 on the second. `through` sends a packet to a port, polls the leaf 1 us later and returns
//! all frames of another port. `one` expects one frame, and returns its datagram, header and bytes. `wait` polls after
//! some nanoseconds. `task(seq)` is a client's task with this sequence number, `reply(worker, tasks)` a worker's reply
//! with its number of remaining tasks. `assert_accounted` ends the leaf. Then it checks that each received packet was
//! sent on, consumed or dropped, and that every buffer is back.

use super::*;

/// Bound of the pool's queue.
const QUEUE: usize = 64;
/// Id of the leaf in the configuration of the rig.
const LEAF_ID: u16 = 9;

/// Builds a leaf whose pool queues up to [`QUEUE`] tasks. Tasks beyond are dropped, or refused to their client.
fn holding_with(policy: &str, overflow: Overflow) -> Rig {
    // Servers and client have known MAC addresses. A port holds 256 packets, and the leaf has one core.
    let mut rigs = rigs_with(policy, true, true, 256, 1, (QUEUE, overflow));
    rigs.remove(0)
}

/// Same as [`holding_with`], and drops tasks beyond the queue.
fn holding(policy: &str) -> Rig {
    holding_with(policy, Overflow::Drop)
}

/// Returns worker and sequence number of each packet that the leaf sent to workers.
fn tasks_out(rig: &mut Rig) -> Vec<(u16, u16)> {
    let parse = |frame: Frame| {
        let datagram = udp::parse(frame.bytes(), false).unwrap();
        let header = Header::parse(&frame.bytes()[datagram.payload()..]).unwrap();
        (header.dst, header.seq)
    };
    rig.receive(WORKERS).into_iter().map(parse).collect()
}

/// Delivers tasks with these numbers, at most 128: a poll receives at most 32 packets (`BURST`) from a port.
fn send_tasks(rig: &mut Rig, seqs: std::ops::Range<u16>) {
    for seq in seqs {
        assert!(rig.far[CLIENTS].send(&task(seq)));
    }
    for _ in 0..4 {
        rig.poll();
    }
}

/// Delivers a worker's reply, which frees one place. It reports no remaining tasks. This frees no other place, because
/// the policy counts further unanswered tasks as in flight.
fn send_reply(rig: &mut Rig, worker: u16) {
    assert!(rig.far[WORKERS].send(&reply(worker, 0)));
    rig.poll();
}

/// Checks the number of packets in the pool's queue by all gauges and the view. `Queued` counts packets in
/// queues; `Held` also those that wait for a neighbour, here none.
fn assert_held_packets(rig: &Rig, packets: u64) {
    assert_eq!((rig.count(Gauge::Queued), rig.count(Gauge::Held)), (packets, packets));
    assert_eq!(rig.leaf.stages().dispatcher(0).unwrap().view().queued(), packets, "by pool");
    assert!(rig.leaf.stages().counters().balances(), "{:?}", rig.drops());
}

// promise: scheduling.3
#[test]
fn tasks_wait_in_order_for_workers_with_room() {
    let mut rig = holding("jbsq(k=2)");
    send_tasks(&mut rig, 0..40);
    let first = tasks_out(&mut rig);
    let seqs: Vec<_> = first.iter().map(|task| task.1).collect();
    assert_eq!(seqs, (0..16).collect::<Vec<_>>(), "two for each of eight workers");
    for worker in 10..18 {
        assert_eq!(first.iter().filter(|task| task.0 == worker).count(), 2);
    }
    assert_held_packets(&rig, 24);
    for seq in 16..24 {
        let worker = 10 + seq % 8;
        send_reply(&mut rig, worker);
        assert_eq!(
            tasks_out(&mut rig),
            [(worker, seq)],
            "the oldest waiting task goes to the worker with room"
        );
    }
    // Later tasks queue behind.
    send_tasks(&mut rig, 40..41);
    assert_held_packets(&rig, 17);
    for seq in 24..41 {
        send_reply(&mut rig, 12);
        assert_eq!(tasks_out(&mut rig), [(12, seq)]);
    }
    assert_held_packets(&rig, 0);
    assert_eq!((rig.count(Counter::Scheduled), rig.drops()), (41, vec![]));
    rig.assert_accounted();
}

// promise: scheduling.3
#[test]
fn burst_with_replies_keeps_task_order() {
    let mut rig = holding("jbsq(k=1)");
    send_tasks(&mut rig, 0..10);
    tasks_out(&mut rig);
    // Tasks 8 and 9 wait. Three workers reply while tasks 10, 11 and 12 arrive.
    for (worker, seq) in (10..13).zip(10..13) {
        assert!(rig.far[WORKERS].send(&reply(worker, 0)));
        assert!(rig.far[CLIENTS].send(&task(seq)));
    }
    rig.poll();
    rig.poll();
    let seqs: Vec<_> = tasks_out(&mut rig).iter().map(|task| task.1).collect();
    // The three free places go to the two oldest tasks and the first new one.
    assert_eq!(seqs, [8, 9, 10]);
    assert_held_packets(&rig, 2);
    rig.assert_accounted();
}

// promise: scheduling.3
#[test]
fn tasks_beyond_the_queue_are_counted() {
    let mut rig = holding("jbsq(k=1)");
    send_tasks(&mut rig, 0..8 + QUEUE as u16 + 5);
    assert_eq!(tasks_out(&mut rig).len(), 8);
    assert_held_packets(&rig, QUEUE as u64);
    assert_eq!(rig.drops(), [("queue_full", 5)]);
    rig.assert_accounted();
}

#[test]
fn queue_gauge_follows_unresolved_servers() {
    // With rules for classes, waiting tasks leave one by one.
    for policy in ["jbsq(k=1)", "jbsq(k=1, boost=1)"] {
        let mut rig = rigs_with(policy, false, true, 256, 1, (QUEUE, Overflow::Drop)).remove(0);
        send_tasks(&mut rig, 0..9);
        let queued = |rig: &Rig| {
            let of_pool = rig.leaf.stages().dispatcher(0).unwrap().view().queued();
            (rig.count(Gauge::Queued), of_pool, rig.count(Gauge::Held))
        };
        assert_eq!(queued(&rig), (1, 1, 9), "{policy}");
        send_reply(&mut rig, 10);
        assert_eq!(queued(&rig), (0, 0, 9), "{policy}: it waits for the MAC address of its server");
        rig.assert_accounted();
    }
}

// promise: scheduling.3
#[test]
fn excess_tasks_return_to_their_client() {
    let mut rig = holding_with("jbsq(k=1)", Overflow::Refuse);
    send_tasks(&mut rig, 0..8 + QUEUE as u16);
    let header = Header { extended: true, src: 77, ..Header::new_task(7, 99) };
    let (datagram, refusal, frame) = rig.one(CLIENTS, &task_of(header), CLIENTS);
    assert_eq!((datagram.src, datagram.src_port), (LEAF_CLIENTS, 1234));
    assert_eq!((datagram.dst, datagram.dst_port), (CLIENT, 40_000));
    // The refusal has the leaf's id and its number of waiting tasks.
    assert_eq!(refusal, header.refused_by(LEAF_ID, QUEUE as u16));
    assert_eq!((ether::dst(frame.bytes()), ether::src(frame.bytes())), (CLIENT_MAC, LEAF_MACS[0]));
    assert_eq!(ipv4::ttl(&frame.bytes()[ether::LEN..]), 64);
    // The refusal repeats the extension that `task_of` writes.
    let extension = Extension::parse(&frame.bytes()[datagram.payload()..]);
    assert_eq!(extension, Extension { app: 3, seq32: 99, service_ns: 0, class: 2 });
    drop(frame);
    // The leaf consumes the task and originates the refusal.
    assert_eq!((rig.count(Counter::Refused), rig.count(Counter::Originated)), (1, 1));
    assert_eq!(rig.count(Counter::Consumed), 1);
    // A further packet of a task is not refused again.
    let further = Header { code: Code::TaskContinuation, ..header };
    assert!(rig.through(CLIENTS, &task_of(further), CLIENTS).is_empty());
    assert_eq!(rig.drops(), [("queue_full", 1)]);
    assert_held_packets(&rig, QUEUE as u64);
    rig.receive(WORKERS);
    rig.assert_accounted();
}

// promise: scheduling.3
#[test]
fn a_multi_packet_task_waits_as_a_whole() {
    let mut rig = holding("jbsq(k=1)");
    send_tasks(&mut rig, 0..8);
    tasks_out(&mut rig);
    let first = Header { more: true, ..Header::new_task(7, 50) };
    let next = Header { code: Code::TaskContinuation, ..first };
    let last = Header { more: false, ..next };
    for header in [first, next, last, Header::new_task(7, 51)] {
        assert!(rig.through(CLIENTS, &task_of(header), WORKERS).is_empty());
    }
    assert_held_packets(&rig, 4);
    send_reply(&mut rig, 15);
    assert_eq!(tasks_out(&mut rig), [(15, 50), (15, 50), (15, 50)]);
    assert_eq!(rig.outstanding(5), 1, "one task, however many packets");
    assert_held_packets(&rig, 1);
    rig.assert_accounted();
}

// promise: scheduling.3
#[test]
fn poll_releases_as_many_tasks_as_it_receives() {
    let mut rig = holding("jbsq(k=1)");
    send_tasks(&mut rig, 0..56);
    assert_eq!(tasks_out(&mut rig).len(), 8);
    // With 8 places for each worker, all 64 waiting tasks could go. The poll receives 16 tasks and 32 replies.
    rig.set_policy("jbsq(k=8)");
    for seq in 56..72 {
        assert!(rig.far[CLIENTS].send(&task(seq)));
    }
    for number in 0..32 {
        assert!(rig.far[WORKERS].send(&reply(10 + number % 8, 0)));
    }
    rig.wait(1_000_000);
    let seqs: Vec<_> = tasks_out(&mut rig).iter().map(|task| task.1).collect();
    assert_eq!(seqs, (8..56).collect::<Vec<_>>());
    assert_held_packets(&rig, 16);
    rig.poll();
    assert_held_packets(&rig, 0);
    rig.receive(WORKERS);
    rig.assert_accounted();
}

// promise: scheduling.3
#[test]
fn unqueued_policy_schedules_all_waiting_tasks() {
    let mut rig = holding("jbsq(k=1)");
    send_tasks(&mut rig, 0..60);
    tasks_out(&mut rig);
    assert_held_packets(&rig, 52);
    rig.set_policy("round-robin");
    rig.wait(1_000_000);
    // A poll that receives less releases at most 32 (`BURST`) of the 52 tasks. The next task queues behind the rest.
    send_tasks(&mut rig, 60..61);
    let seqs: Vec<_> = tasks_out(&mut rig).iter().map(|task| task.1).collect();
    assert_eq!(seqs, (8..61).collect::<Vec<_>>());
    assert_held_packets(&rig, 0);
    assert_eq!(rig.drops(), []);
    // The pool has a queue again. Each of 8 workers now has 8 places. No task was answered, so 61 of the 64 places are
    // taken.
    rig.set_policy("jbsq(k=8)");
    rig.wait(1_000_000);
    send_tasks(&mut rig, 100..120);
    assert_eq!(tasks_out(&mut rig).len(), 3, "places that the workers have left");
    assert_held_packets(&rig, 17);
    rig.assert_accounted();
}

// promise: scheduling.3
#[test]
fn policy_without_classes_keeps_order_of_arrival() {
    let mut rig = holding("jbsq(k=1, boost=1)");
    send_tasks(&mut rig, 0..8);
    tasks_out(&mut rig);
    // Tasks 8 and 9 have class 2, so they wait in another lane than tasks 10 and 11.
    for seq in 8..10 {
        let header = Header { extended: true, ..Header::new_task(7, seq) };
        assert!(rig.through(CLIENTS, &task_of(header), WORKERS).is_empty());
    }
    rig.set_policy("jbsq(k=1)");
    rig.wait(1_000_000);
    send_tasks(&mut rig, 10..12);
    assert_held_packets(&rig, 4);
    for seq in 8..12 {
        send_reply(&mut rig, 10);
        assert_eq!(tasks_out(&mut rig), [(10, seq)]);
    }
    assert_held_packets(&rig, 0);
    rig.assert_accounted();
}

#[test]
fn pool_can_gain_a_queue() {
    let mut rig = holding("random");
    rig.set_policy("jbsq(k=1)");
    rig.wait(1_000_000);
    send_tasks(&mut rig, 0..12);
    assert_eq!(tasks_out(&mut rig).len(), 8);
    assert_held_packets(&rig, 4);
    rig.assert_accounted();
}

// promise: scheduling.3
#[test]
fn tasks_wait_while_no_worker_is_there() {
    let mut rig = holding("jbsq(k=1)");
    for member in 0..8 {
        rig.set_active(member, false);
    }
    rig.wait(1_000_000);
    send_tasks(&mut rig, 0..10);
    assert_held_packets(&rig, 10);
    rig.set_active(3, true);
    rig.wait(1_000_000);
    assert_eq!(tasks_out(&mut rig), [(13, 0)]);
    // Worker 13 is deactivated. The next task goes to another one.
    rig.set_active(3, false);
    rig.set_active(5, true);
    rig.wait(1_000_000);
    assert_eq!(tasks_out(&mut rig), [(15, 1)]);
    assert_held_packets(&rig, 8);
    assert_eq!(rig.drops(), []);
    rig.assert_accounted();
}

// promise: scheduling.3
#[test]
fn replies_at_another_core_release_tasks() {
    // The rig of `holding`, with two cores. The first core finds the freed place at its next tick, within 100 us.
    let queue_settings = (QUEUE, Overflow::Drop);
    let mut cores = rigs_with("jbsq(k=1)", true, true, 256, 2, queue_settings);
    let [first, second] = &mut cores[..] else { unreachable!() };
    send_tasks(first, 0..12);
    assert_eq!(tasks_out(first).len(), 8);
    send_reply(second, 14);
    first.wait(1_000_000);
    assert_eq!(tasks_out(first), [(14, 8)]);
    assert_held_packets(first, 3);
    first.assert_accounted();
    second.assert_accounted();
}

// promise: scheduling.3
#[test]
fn queued_tasks_are_counted_at_shutdown() {
    let mut rig = holding("cfcfs");
    send_tasks(&mut rig, 0..30);
    tasks_out(&mut rig);
    // cfcfs begins with a bound of two tasks for each of the eight workers.
    assert_held_packets(&rig, 14);
    rig.leaf.abandon();
    assert_eq!(rig.drops(), [("shutdown", 14)]);
    assert_held_packets(&rig, 0);
    rig.assert_accounted();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any input, tasks leave in the order of arrival, nothing is lost, and every buffer comes back.
    // promise: scheduling.3
    #[test]
    fn central_queue_storm_keeps_order_and_ledger(
        refuse: bool, cfcfs: bool,
        storm in proptest::collection::vec((0..10_u8, 0..8_u16, 0..5_u64), 1..300),
    ) {
        let overflow = if refuse { Overflow::Refuse } else { Overflow::Drop };
        let mut rig = holding_with(if cfcfs { "cfcfs" } else { "jbsq(k=2)" }, overflow);
        // Sequence numbers of the last task that arrived, and of the last one that left.
        let (mut seq, mut last) = (0, None);
        // By kind, `value` sets the number of tasks, the replying worker, the member, or the policy.
        for (kind, value, pause) in storm {
            match kind {
                0..=5 => for _ in 0..=value {
                    seq += 1;
                    rig.far[CLIENTS].send(&task(seq));
                },
                6 | 7 => { rig.far[WORKERS].send(&reply(10 + value, value % 3)); }
                8 => rig.set_active(value, pause % 2 == 0),
                _ => {
                    let name = ["jbsq(k=1)", "cfcfs", "random", "jbsq(k=3)"][usize::from(value) % 4];
                    rig.set_policy(name);
                }
            }
            rig.wait(pause * 40_000);
            for (_, seq) in tasks_out(&mut rig) {
                prop_assert!(last < Some(seq), "{seq} behind {last:?}");
                last = Some(seq);
            }
            rig.receive(CLIENTS);
            rig.wait(1);
            let held = rig.count(Gauge::Queued);
            prop_assert_eq!(held, rig.leaf.stages().waiting() as u64);
            for (_, seq) in tasks_out(&mut rig) {
                prop_assert!(last < Some(seq), "{seq} behind {last:?}");
                last = Some(seq);
            }
            rig.receive(CLIENTS);
            prop_assert!(rig.leaf.stages().counters().balances());
        }
        rig.assert_accounted();
    }
}
