//! Tests of a channel's two ends. Submodules test misbehaving peers, regions in files, and memory orderings.

#[cfg(not(miri))]
mod files;
mod misbehaviour;
#[cfg(not(miri))]
mod orderings;

use std::sync::Arc;

use proptest::prelude::*;

use super::protocol::CreditError;
use super::*;

/// Creates a region on the heap with one channel, and returns both ends of the channel. The worker has the grant.
/// `payload` is the maximum length of a task or an answer in bytes.
fn joined(slots: usize, payload: usize) -> (Arc<WorkerRegion>, Channel, WorkerEnd) {
    let identities = [WorkerIdentity { id: 7, pool: 1 }];
    let region = Arc::new(WorkerRegion::heap(&identities, slots, payload).unwrap());
    let mut channel = region.channel(0);
    let worker_end = attach_worker(&region, &mut channel);
    (region, channel, worker_end)
}

/// Attaches a worker and grants it the channel.
fn attach_worker(region: &Arc<WorkerRegion>, channel: &mut Channel) -> WorkerEnd {
    let worker_end = region.claim(0).unwrap().expect("the place is free");
    assert!(!worker_end.receiver().is_granted());
    let sender = channel.sender_mut();
    sender.grant(sender.claim());
    assert!(worker_end.receiver().is_granted());
    worker_end.start();
    worker_end
}

/// Returns the ids of a task with this sequence number.
fn ids(seq: u32) -> TaskIds {
    TaskIds { app: 5, seq, class: 3 }
}

/// Takes the next task.
fn take(worker_end: &WorkerEnd) -> TakenTask {
    worker_end.take().unwrap().expect("a task")
}

/// Takes a task and answers with its own bytes, after 40 ns of work. Returns them.
fn echo(worker_end: &WorkerEnd) -> Vec<u8> {
    answer(worker_end, take(worker_end))
}

/// Answers a task with its own bytes, after 40 ns of work. Returns them.
fn answer(worker_end: &WorkerEnd, task: TakenTask) -> Vec<u8> {
    let bytes = worker_end.payload(&task).to_vec();
    let write = |request: &[u8], reply: &mut [u8]| {
        reply[..request.len()].copy_from_slice(request);
        request.len()
    };
    worker_end.answer(task, write, || 40).unwrap();
    bytes
}

/// Returns the position of the task with this number, in a channel with 4 slots whose worker completes tasks in order.
fn task(number: u64) -> TaskPosition {
    TaskPosition { number, slot: number as usize % 4 }
}

#[test]
fn reply_returns_for_a_given_task() {
    let (_region, mut channel, worker_end) = joined(4, 100);
    assert_eq!(worker_end.identity(), WorkerIdentity { id: 7, pool: 1 });
    assert!(worker_end.take().unwrap().is_none());
    assert!(channel.send(ids(9), b"some task"));
    assert_eq!(channel.sender().outstanding(), 1);
    let taken = take(&worker_end);
    assert_eq!((worker_end.payload(&taken), worker_end.ids(&taken)), (&b"some task"[..], ids(9)));
    assert_eq!(channel.collect(), Ok(0..0));
    answer(&worker_end, taken);
    assert_eq!(channel.collect(), Ok(0..1));
    assert_eq!(channel.outcome(task(0)), Outcome::Reply { len: 9, service_ns: 40 });
    let mut reply = [0; 9];
    channel.reply(task(0), &mut reply);
    assert_eq!(&reply, b"some task");
    assert_eq!((channel.sender_mut().worked_ns(), channel.sender().outstanding()), (40, 0));
}

#[test]
fn full_ring_waits_for_a_credit() {
    let (_region, mut channel, worker_end) = joined(4, 16);
    assert!((0..4).all(|seq| channel.send(ids(seq), &[])));
    assert!(!channel.send(ids(4), &[]));
    let taken = take(&worker_end);
    assert!(!channel.send(ids(4), &[]), "a taken task keeps its slot");
    worker_end.end_without_reply(taken, 0);
    assert_eq!(channel.collect(), Ok(0..1));
    assert_eq!(channel.outcome(task(0)), Outcome::Unanswered);
    assert!(channel.send(ids(4), &[]));
    assert!(!channel.send(ids(5), &[0; 17]), "the payload exceeds 16 bytes");
}

#[test]
fn bursts_stay_ordered_over_many_laps() {
    let (_region, mut channel, worker_end) = joined(8, 8);
    let notices: Vec<_> = (0..3).map(|class| Notice { offset: 0, len: 0, class }).collect();
    for lap in 0..100 {
        assert_eq!(channel.sender_mut().send_burst(&notices), 3);
        for notice in &notices {
            // Receives the notices directly: `WorkerEnd::take` would refuse their offsets.
            assert_eq!(worker_end.receiver().receive(), Some(*notice), "lap {lap}");
        }
        assert_eq!(worker_end.receiver().receive(), None);
        worker_end.receiver().complete(1); // completes all received ones, after 1 ns of work
        assert_eq!(channel.collect(), Ok(3 * lap..3 * lap + 3));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }) })]

    /// In any order of steps, a worker gets exactly the published tasks, in order and with their bytes. A task is
    /// refused if and only if all slots are in use. A worker that dies loses its unfinished tasks only.
    // promise: agent.1
    #[test]
    fn runs_arrive_whole_and_in_order(steps in proptest::collection::vec((0..8_u8, 1..6_u32), 1..80)) {
        let (region, mut channel, mut worker_end) = joined(4, 16);
        // Numbers of the next task to give, the first unpublished one, the next one to take, and the first unfinished
        // one.
        let (mut next, mut published, mut taken, mut done) = (0_u32, 0_u32, 0_u32, 0_u32);
        for (step, count) in steps {
            match step {
                // Appends a run, perhaps longer than the room, and publishes it at once or later.
                0..4 => {
                    for _ in 0..count {
                        let has_room = next - done < 4;
                        prop_assert_eq!(channel.append(ids(next), &[next as u8; 9]), has_room);
                        next += u32::from(has_room);
                    }
                    if step < 2 {
                        channel.sender_mut().publish();
                        published = next;
                    }
                }
                4 => {
                    channel.sender_mut().publish();
                    published = next;
                }
                5 | 6 => {
                    for _ in 0..count.min(published - taken) {
                        prop_assert_eq!(echo(&worker_end), vec![taken as u8; 9]);
                        taken += 1;
                    }
                    prop_assert!(taken < published || worker_end.take().unwrap().is_none());
                    prop_assert_eq!(channel.collect(), Ok(u64::from(done)..u64::from(taken)));
                    done = taken;
                }
                _ => {
                    worker_end.die();
                    prop_assert_eq!(channel.sender_mut().revoke(), u64::from(done)..u64::from(next));
                    worker_end = attach_worker(&region, &mut channel);
                    (published, taken, done) = (next, next, next);
                }
            }
            prop_assert_eq!(channel.sender().outstanding(), (next - done) as usize);
        }
    }
}

// promise: agent.1
#[test]
fn two_threads_pass_every_task_once() {
    let tasks: u32 = if cfg!(miri) { 60 } else { 50_000 };
    // The task with number `seq` has `seq` modulo 65 bytes, each with that number: 64 is the maximum length.
    let (_region, mut channel, worker_end) = joined(8, 64);
    let worker = std::thread::spawn(move || {
        for seq in 0..tasks {
            let taken = loop {
                match worker_end.take().unwrap() {
                    Some(taken) => break taken,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(worker_end.ids(&taken).seq, seq);
            assert_eq!(answer(&worker_end, taken), vec![seq as u8; seq as usize % 65]);
        }
        worker_end
    });
    let (mut given, mut answered) = (0, 0);
    while answered < tasks {
        while given < tasks && channel.send(ids(given), &vec![given as u8; given as usize % 65]) {
            given += 1;
        }
        for number in channel.collect().unwrap() {
            let len = answered as usize % 65;
            assert_eq!(number, u64::from(answered));
            let position = channel.sender().completed(number);
            assert_eq!(channel.outcome(position), Outcome::Reply { len, service_ns: 40 });
            let mut reply = vec![0; len];
            channel.reply(position, &mut reply);
            assert_eq!(reply, vec![answered as u8; len]);
            answered += 1;
        }
        std::thread::yield_now();
    }
    drop(worker.join().unwrap());
}

#[test]
fn departed_worker_can_be_replaced() {
    let (region, mut channel, worker_end) = joined(4, 16);
    let first = channel.sender().granted();
    assert!((0..3).all(|seq| channel.send(ids(seq), &[seq as u8])));
    worker_end.end_without_reply(take(&worker_end), 0);
    assert!(region.claim(0).unwrap().is_none(), "one worker at a time");
    drop(worker_end);
    assert_eq!(channel.sender().claim(), 0, "the worker has left");
    assert_eq!(channel.collect(), Ok(0..1));
    assert_eq!(channel.sender_mut().revoke(), 1..3, "the tasks without a result are lost");
    assert!(!channel.send(ids(3), &[]), "no worker is attached");
    let worker_end = attach_worker(&region, &mut channel);
    assert_ne!(channel.sender().granted(), first);
    assert!(worker_end.take().unwrap().is_none(), "the new worker gets no task of its predecessor");
    assert!(channel.send(ids(3), b"new"));
    assert_eq!(echo(&worker_end), b"new");
    assert_eq!(channel.collect(), Ok(3..4));
}

// promise: agent.1
#[test]
fn tasks_complete_in_any_order() {
    let (_region, mut channel, mut worker_end) = joined(4, 16);
    // Completes one task in order first, so that the number of the task in slot 0 is not 0 later.
    assert!(channel.send(ids(0), b"a"));
    echo(&worker_end);
    worker_end.complete_in_any_order();
    assert!((1..5).all(|seq| channel.collect().is_ok() && channel.send(ids(seq), &[seq as u8])));
    let mut taken: Vec<_> = (0..4).map(|_| take(&worker_end)).collect();
    // The oldest task stays, while 40 others pass it.
    let mut oldest = Some(taken.remove(0));
    for seq in 5..45 {
        let newest = taken.pop().unwrap();
        let payload = answer(&worker_end, newest);
        let done = channel.collect().unwrap();
        assert_eq!(done.end - done.start, 1);
        let position = channel.sender().completed(done.start);
        assert_eq!(channel.outcome(position), Outcome::Reply { len: 1, service_ns: 40 });
        let mut reply = [0];
        channel.reply(position, &mut reply);
        assert_eq!(reply, payload[..]);
        assert!(channel.send(ids(seq), &[seq as u8]));
        assert!(!channel.send(ids(seq), &[0]), "four tasks are outstanding");
        taken.push(take(&worker_end));
    }
    assert_eq!(answer(&worker_end, oldest.take().unwrap()), [1]);
    taken.into_iter().for_each(|task| worker_end.end_without_reply(task, 0));
    let done = channel.collect().unwrap();
    assert_eq!((done.end - done.start, channel.sender().outstanding()), (4, 0));
    let outcomes: Vec<_> =
        done.map(|count| channel.outcome(channel.sender().completed(count))).collect();
    assert!(matches!(outcomes[0], Outcome::Reply { .. }));
    assert_eq!(outcomes[1..], [Outcome::Unanswered; 3]);
}

// promise: agent.2
#[test]
fn next_worker_starts_in_order() {
    let (region, mut channel, mut worker_end) = joined(4, 16);
    worker_end.complete_in_any_order();
    assert!((0..4).all(|seq| channel.send(ids(seq), &[])));
    let taken: Vec<_> = (0..3).map(|_| take(&worker_end)).collect();
    taken.into_iter().rev().take(2).for_each(|task| worker_end.end_without_reply(task, 0));
    assert_eq!(channel.collect(), Ok(0..2));
    worker_end.die();
    assert_eq!(channel.sender_mut().revoke(), 2..4, "two of four are lost");
    let worker_end = attach_worker(&region, &mut channel);
    for seq in 4..20 {
        assert!(channel.send(ids(seq), &[seq as u8]));
        assert_eq!(echo(&worker_end), [seq as u8]);
        assert_eq!(channel.collect(), Ok(u64::from(seq)..u64::from(seq) + 1));
        assert!(matches!(channel.outcome(task(seq.into())), Outcome::Reply { len: 1, .. }));
    }
}
