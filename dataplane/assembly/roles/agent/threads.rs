//! Workers that are threads of the agent's process. The dispatcher, the agent's core, hands tasks over to them, and
//! they send their replies themselves, each by its own transmit queue. They run in the test's own thread unless stated
//! otherwise.
//!
//! A `Rig` is an agent with one port in memory, at whose far end (`wire`) the test plays leaf and clients. `task`
//! delivers a client's task that names a worker (`NO_MEMBER` for none), with a sequence number. `after` polls the agent
//! some microseconds later.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use wedjat_core::ring::handover;
use wedjat_core::wire::auth::{KEY_LEN, Key};

use super::*;

type Worker = ThreadWorker<RingPort>;

/// Agent whose workers are threads of its process, and the far ends of the workers' transmit queues.
struct Threads {
    rig: Rig,
    /// Workers by index; `None` once a worker has ended.
    workers: Vec<Option<Worker>>,
    /// Far end of each worker's transmit queue.
    wires: Vec<RingPort>,
}

impl Threads {
    /// Creates an agent over IPv4 whose workers are attached.
    fn new(policy: &str, workers: u16, queue: usize, overflow: Overflow) -> Self {
        Self::over(Family::V4, policy, workers, queue, overflow)
    }

    /// Same as [`Threads::new`], with addresses of this family.
    fn over(family: Family, policy: &str, workers: u16, queue: usize, overflow: Overflow) -> Self {
        // The test sends nothing to these ports, so their pool has a single buffer of one byte. Agent and workers share
        // `load`, the number of unfinished tasks by the worker that they name, because replies report it.
        let (frames, load) = (FramePool::new(1, 1), Arc::new(NamedLoad::new(workers.into())));
        let (mut links, mut threads, mut wires) = (Vec::new(), Vec::new(), Vec::new());
        for identity in identities(workers) {
            let (producer, consumer) = handover::pair(identity, 8).unwrap();
            let (port, wire) = pair(128, &frames);
            let counters = Counters::heap();
            let worker = Worker::new(consumer, vec![port], Arc::clone(&load), PAYLOAD, counters);
            links.push(producer.into());
            threads.push(Some(worker));
            wires.push(wire);
        }
        let mut rig = Rig::of((family, policy), Some(links), workers, queue, overflow);
        let counters = threads.iter().flatten().map(|worker| worker.counters().clone()).collect();
        rig.agent = rig.agent.with_threads(load, counters);
        rig.after(100);
        Self { rig, workers: threads, wires }
    }

    /// Lets the worker serve its next task and answer with its bytes. Returns false if it has none, or has ended.
    fn work(&mut self, at: usize) -> bool {
        let worker = self.workers[at].as_mut();
        worker.is_some_and(|worker| worker.poll(&mut |request, reply| Some(echo(request, reply))))
    }

    /// Lets the worker panic while it serves a task, which ends it.
    fn panic(&mut self, at: usize) {
        let mut worker = self.workers[at].take().expect("it is there");
        let panics =
            AssertUnwindSafe(move || worker.poll(&mut |_, _| panic!("a defect of the work")));
        assert!(catch_unwind(panics).is_err());
    }

    /// Returns the next frame that the worker sent.
    fn sent(&mut self, at: usize) -> Option<Vec<u8>> {
        self.wires[at].receive().map(|frame| frame.bytes().to_vec())
    }

    /// Returns the headers of all frames that the worker sent.
    fn headers(&mut self, at: usize) -> Vec<Header> {
        let sent: Vec<_> = std::iter::from_fn(|| self.sent(at)).collect();
        let at = self.rig.family.payload();
        sent.iter().map(|bytes| Header::parse(&bytes[at..]).unwrap()).collect()
    }

    /// Returns a counter of the agent, including its threads'.
    fn count(&mut self, counter: Counter) -> u64 {
        self.add_up();
        self.rig.agent.counters().read(counter)
    }

    /// Returns the number of packets dropped for this reason, by the agent and its threads.
    fn dropped(&mut self, reason: DropReason) -> u64 {
        self.add_up();
        self.rig.dropped(reason)
    }

    /// Polls until the agent has added each thread's counters to its own, one thread's per tick.
    fn add_up(&mut self) {
        (0..self.workers.len().max(self.wires.len())).for_each(|_| self.rig.after(200));
    }

    /// Checks that packets of agent and threads are accounted for, and every buffer except held ones is back.
    fn assert_balanced(&mut self) {
        for wire in &mut self.wires {
            while wire.receive().is_some() {}
        }
        self.add_up();
        self.rig.assert_balanced();
    }
}

/// Answers with the request's bytes.
fn echo(request: &Request<'_>, reply: &mut [u8]) -> usize {
    reply[..request.payload.len()].copy_from_slice(request.payload);
    request.payload.len()
}

// promise: agent.1
#[test]
fn thread_replies_equal_dispatcher_replies() {
    FAMILIES.into_iter().for_each(|family| sends_the_same(family, None));
}

// promise: trust.3
#[test]
fn a_thread_signs_as_the_dispatcher_would() {
    FAMILIES.into_iter().for_each(|family| sends_the_same(family, Some(Key::new([3; KEY_LEN]))));
}

/// Checks that a thread's reply has the bytes of the dispatcher's reply to the same task, with a pool key if given.
fn sends_the_same(family: Family, key: Option<Key>) {
    // One signer for each way, so that both use the same sequences.
    let signer = || {
        let keys = key.iter().flat_map(|key| [10, 11].map(|worker| (worker, key.clone())));
        Signer::new(keys, || 1_000_000).map(Arc::new) // a constant instead of the clock's sequence
    };
    // `copied` copies tasks to workers of a region and sends their replies. `handed` hands tasks over to threads.
    let mut copied = Rig::over(family, "jbsq(k=2)", 2, 16, Overflow::Drop);
    copied.agent = copied.agent.with_signer(signer());
    let mut worker_ends = [copied.attach_worker(0), copied.attach_worker(1)];
    while copied.wire.receive().is_some() {}
    let mut handed = Threads::over(family, "jbsq(k=2)", 2, 16, Overflow::Drop);
    let shared = signer();
    handed.rig.agent = handed.rig.agent.with_signer(shared.clone());
    let workers = handed
        .workers
        .iter_mut()
        .map(|worker| worker.take().map(|worker| worker.with_signer(shared.clone())));
    handed.workers = workers.collect();
    let mut seq = 0;
    for round in 0..40_usize {
        for _ in 0..round % 4 {
            // With and without a named worker, and with payloads of different lengths.
            let dst = [NO_MEMBER, 10, 11][usize::from(seq) % 3];
            let bytes = vec![seq as u8; usize::from(seq) % (PAYLOAD + 1)];
            copied.task(dst, seq, &bytes);
            handed.rig.task(dst, seq, &bytes);
            seq += 1;
        }
        let at = round % 2;
        assert_eq!(work(&mut worker_ends[at]), handed.work(at));
        copied.after(1);
        handed.rig.after(1);
        let by_dispatcher = copied.wire.receive().map(|frame| frame.bytes().to_vec());
        let header = |frame: &Vec<u8>| Header::parse(&frame[family.payload()..]).unwrap();
        let signed = |frame: &Vec<u8>| header(frame).authenticated;
        assert!(by_dispatcher.iter().all(|frame| signed(frame) == key.is_some()));
        assert_eq!(by_dispatcher, handed.sent(at), "round {round}");
    }
    assert!(handed.rig.wire.receive().is_some(), "registrations leave by the dispatcher");
    let by_dispatcher = std::iter::from_fn(|| handed.rig.wire.receive());
    let messages = by_dispatcher.filter(|frame| family.parse(frame.bytes()).is_ok());
    let codes =
        messages.map(|frame| Header::parse(&frame.bytes()[family.payload()..]).unwrap().code);
    assert!(codes.into_iter().all(|code| !code.is_reply()), "no reply does");
    assert!(handed.count(Counter::Replies) > 30);
    assert_eq!(handed.count(Counter::Replies), copied.agent.counters().read(Counter::Replies));
    copied.assert_balanced();
    handed.assert_balanced();
}

#[test]
fn task_has_ids_and_reply_has_service_time() {
    let mut threads = Threads::new("cfcfs", 1, 16, Overflow::Drop);
    let header = Header { extended: true, src: 77, ..Header::new_task(POOL, 6) };
    threads.rig.send(&frame(&header, b"question"));
    let worker = threads.workers[0].as_mut().unwrap();
    assert!(worker.poll(&mut |request, reply| {
        assert_eq!(request.payload, b"question");
        assert_eq!(request.ids, wedjat_core::ring::TaskIds { app: 5, seq: 0xABCD_0006, class: 4 });
        std::thread::sleep(Duration::from_millis(2));
        reply[..6].copy_from_slice(b"answer");
        Some(6)
    }));
    let bytes = threads.sent(0).unwrap();
    let datagram = udp::parse(&bytes, false).unwrap();
    let payload = &bytes[datagram.payload()..];
    let header = Header::parse(payload).unwrap();
    assert_eq!((header.code, header.src, header.qlen), (Code::TaskDoneIdle, 10, 0));
    let extension = Extension::parse(payload);
    assert!(extension.service_ns >= 2_000_000 && extension.class == 4, "{extension:?}");
    assert_eq!(&payload[header.len()..], b"answer");
    threads.assert_balanced();
}

/// Tasks of class 4 take a millisecond, and those without a class almost no time. The dispatcher always sees the
/// completions of one of each at once.
// promise: scheduling.3
#[test]
fn short_task_overtakes_a_long_one_at_threads() {
    let mut threads = Threads::new("jbsq(k=2, boost=1)", 1, 16, Overflow::Drop);
    let send = |threads: &mut Threads, extended: bool, seq| {
        // The fixture's extension has class 4.
        let header = Header { extended, src: 77, ..Header::new_task(POOL, seq) };
        threads.rig.send(&frame(&header, &[]));
    };
    // Answers the worker's tasks, and returns their classes.
    let answer = |threads: &mut Threads| {
        let mut classes = Vec::new();
        let worker = threads.workers[0].as_mut().unwrap();
        while worker.poll(&mut |request, _| {
            classes.push(request.ids.class);
            if request.ids.class == 4 {
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(0)
        }) {}
        while threads.sent(0).is_some() {}
        threads.rig.after(1);
        classes
    };
    for seq in 0..100 {
        send(&mut threads, true, seq);
        send(&mut threads, false, seq);
        assert_eq!(answer(&mut threads), [4, 0]);
    }
    for (extended, seq) in [(true, 200), (true, 201), (true, 202), (true, 203), (false, 204)] {
        send(&mut threads, extended, seq);
    }
    let order = [(); 3].map(|()| answer(&mut threads));
    assert_eq!(order, [vec![4, 4], vec![0, 4], vec![4]]);
    threads.assert_balanced();
}

// promise: agent.1
#[test]
fn queue_lengths_are_exact_at_the_answer() {
    let mut threads = Threads::new("random", 1, 16, Overflow::Drop);
    (0..3).for_each(|seq| threads.rig.task(NO_MEMBER, seq, &[]));
    assert!(threads.work(0));
    // Another task arrives before the dispatcher has read the first answer. The thread's own count includes the task,
    // so its second reply reports two tasks again.
    threads.rig.task(NO_MEMBER, 3, &[]);
    while threads.work(0) {}
    let lengths: Vec<_> = threads.headers(0).iter().map(|header| header.qlen).collect();
    assert_eq!(lengths, [2, 2, 1, 0]);
    threads.assert_balanced();

    // All tasks name worker 10. Worker 11 helps, and the rest waits in the central queue. A reply reports the
    // unfinished tasks that name worker 10, of both workers.
    let mut threads = Threads::new("jbsq(k=1)", 2, 16, Overflow::Drop);
    (0..4).for_each(|seq| threads.rig.task(10, seq, &[]));
    assert!(threads.work(0) && threads.work(1));
    let lengths = [0, 1].map(|at| threads.headers(at)[0]);
    assert!(lengths.iter().all(|header| header.src == 10));
    assert_eq!(lengths.map(|header| header.qlen), [3, 2]);
    threads.rig.after(1);
    assert!(threads.work(1) && threads.work(0));
    let last = [1, 0].map(|at| threads.headers(at)[0]);
    assert_eq!(
        last.map(|header| (header.qlen, header.code)),
        [(1, Code::TaskDone), (0, Code::TaskDoneIdle)]
    );
    threads.assert_balanced();
}

// promise: agent.2
#[test]
fn panicked_thread_loses_only_its_tasks() {
    let mut threads = Threads::new("jbsq(k=2)", 2, 16, Overflow::Drop);
    for seq in 0..8 {
        threads.rig.task(10, seq, &[]);
    }
    threads.panic(0);
    threads.rig.after(100);
    let attach_stats = threads.rig.attach_stats();
    assert_eq!((attach_stats.joined, attach_stats.died, attach_stats.left), (2, 1, 0));
    while threads.work(1) {
        threads.rig.after(1);
    }
    assert_eq!(
        threads.dropped(DropReason::WorkerLost),
        2,
        "the one in hand, and the one behind it"
    );
    let headers = threads.headers(1);
    assert_eq!((headers.len(), headers[5].qlen), (6, 0), "lost tasks are not in the queue length");
    threads.rig.task(10, 8, &[]);
    threads.rig.task(11, 9, &[]);
    assert!(threads.work(1) && threads.work(1), "the other goes on");
    threads.assert_balanced();
    threads.workers.clear();
    threads.rig.after(100);
    assert_eq!(threads.rig.attach_stats().left, 1);
    threads.rig.task(NO_MEMBER, 10, &[]);
    assert_eq!(threads.dropped(DropReason::NoMember), 1);
    threads.assert_balanced();
}

// promise: agent.2
#[test]
fn silent_thread_gets_no_new_tasks() {
    let mut threads = Threads::new("jbsq(k=2)", 2, 16, Overflow::Drop);
    for seq in 0..6 {
        threads.rig.task(NO_MEMBER, seq, &[]);
    }
    for _ in 0..8 {
        threads.rig.after(TIMEOUT / 4);
        while threads.work(1) {
            threads.rig.after(1);
        }
    }
    assert_eq!((threads.rig.attach_stats().silent, threads.headers(1).len()), (1, 4));
    assert_eq!((threads.dropped(DropReason::WorkerLost), threads.rig.agent.held()), (0, 2));
    threads.assert_balanced();
    assert!(threads.work(0) && threads.work(0), "its tasks are still its own");
    threads.rig.after(100);
    (6..10).for_each(|seq| threads.rig.task(NO_MEMBER, seq, &[]));
    assert!(threads.work(0), "it is back");
    threads.assert_balanced();
}

#[test]
fn thread_tasks_are_counted_once_at_the_end() {
    let mut threads = Threads::new("jbsq(k=2)", 2, 16, Overflow::Drop);
    for seq in 0..7 {
        threads.rig.task(NO_MEMBER, seq, &[]);
    }
    threads.workers[0] = None;
    threads.rig.after(100);
    assert_eq!(threads.dropped(DropReason::WorkerLost), 2);
    assert_eq!(threads.rig.agent.held(), 5, "two with a thread, three in the queue");
    assert!(threads.rig.agent.has_threads());
    assert!(threads.work(1), "the agent has not yet read this completion");
    let Threads { rig, workers, .. } = threads;
    let counters = rig.agent.counters().clone();
    drop(rig.agent.close());
    assert_eq!(counters.dropped(DropReason::Shutdown), 4);
    assert_eq!((counters.read(Counter::Forwarded), counters.balances()), (1, true));
    drop(workers);
}

#[test]
fn oversized_and_missing_answers_are_counted() {
    let mut threads = Threads::new("random", 1, 16, Overflow::Drop);
    (0..3).for_each(|seq| threads.rig.task(10, seq, &[]));
    let worker = threads.workers[0].as_mut().unwrap();
    let mut answers = [None, Some(PAYLOAD + 1), Some(PAYLOAD)].into_iter();
    for _ in 0..3 {
        assert!(worker.poll(&mut |_, _| answers.next().flatten()));
    }
    assert_eq!(threads.dropped(DropReason::Unanswered), 1);
    assert_eq!(threads.dropped(DropReason::BadReply), 1);
    assert_eq!(threads.headers(0).len(), 1);
    threads.assert_balanced();
}

/// Real threads that sleep now and then: every task is answered once. Replies of a worker that are read together are in
/// order.
#[test]
fn threads_answer_every_task_beside_their_agent() {
    let tasks: u16 = if cfg!(miri) { 60 } else { 4000 };
    let mut threads = Threads::new("jbsq(k=2)", 2, 64, Overflow::Drop);
    let workers: Vec<_> = threads.workers.drain(..).flatten().collect();
    std::thread::scope(|scope| {
        for mut worker in workers {
            scope.spawn(move || {
                worker.run(Duration::ZERO, |request, reply| Some(echo(request, reply)));
            });
        }
        let mut answered = vec![0_u8; usize::from(tasks)];
        let mut sent = 0;
        while answered.contains(&0) {
            if sent < tasks && threads.rig.agent.held() < 32 {
                threads.rig.task(
                    [10, 11, NO_MEMBER][usize::from(sent) % 3],
                    sent,
                    &sent.to_be_bytes(),
                );
                sent += 1;
            }
            threads.rig.after(1);
            for at in 0..2 {
                // Number of the last reply of those read together. Tasks without a named worker may wait in the pool's
                // queue, so there is no order over the run.
                let mut last = None;
                while let Some(bytes) = threads.sent(at) {
                    let header = Header::parse(&bytes[udp::PAYLOAD..]).unwrap();
                    assert_eq!(bytes[udp::PAYLOAD + header.len()..], header.seq.to_be_bytes());
                    assert!(last < Some(header.seq), "in order");
                    last = Some(header.seq);
                    answered[usize::from(header.seq)] += 1;
                }
            }
            std::thread::yield_now();
        }
        assert!(answered.iter().all(|&times| times == 1));
        threads.rig.agent.stop();
    });
    threads.rig.after(200);
    assert_eq!(threads.rig.attach_stats().left, 2);
    assert_eq!(threads.count(Counter::Replies), u64::from(tasks));
    threads.assert_balanced();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any input and any threads, the ledgers balance together and no buffer is lost. Steps 0 to 4 send a task,
    /// damaged or not. In steps 5 to 7 a thread serves a task, and in 8 it may end. Otherwise only time passes.
    // promise: agent.2
    #[test]
    fn a_storm_of_threads_is_accounted_for(
        family in proptest::sample::select(FAMILIES.to_vec()),
        steps in proptest::collection::vec((
            0..10_u8, any::<u16>(),
            proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
        ), 1..120),
    ) {
        let mut threads = Threads::over(family, "jbsq(k=2)", 3, 8, Overflow::Refuse);
        for (step, value, edits) in steps {
            let at = usize::from(value) % 3;
            match step {
                0..=4 => {
                    let dst = [NO_MEMBER, 10, 11, 12][usize::from(step) % 4];
                    let header = Header { extended: step == 0, dst, ..Header::new_task(POOL, value) };
                    let bytes = family.frame(&header, &vec![1; usize::from(value) % 120]);
                    threads.rig.send(&damaged(bytes, &edits, value));
                }
                5..=7 => drop(threads.work(at)),
                8 if value % 8 == 1 => threads.workers[at] = None,
                _ => threads.rig.after(u64::from(value)),
            }
        }
        threads.assert_balanced();
    }
}
