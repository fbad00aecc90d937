//! Tasks without a possible answer, tasks that are never completed, and false reports. Honest clients are served beside
//! them, and no load estimate or count stays wrong for ever.
//!
//! A `Rig` is one core of a leaf in memory; the test plays the client and the servers at the far ends (`far`) of its
//! ports `CLIENTS` and `WORKERS`. Pool 7 has workers 10 to 17, which are its members 0 to 7. Workers 10 to 13 are on
//! the first server, 14 to 17 on the second. `through` sends a packet to a port, polls the leaf 1 us later and returns
//! all frames of another port. `one` expects one frame, and returns its datagram, header and bytes. `wait` polls after
//! some nanoseconds. `task(seq)` is a client's task with this sequence number, `reply(worker, tasks)` a worker's reply
//! with its number of remaining tasks. `assert_accounted` ends the leaf. Then it checks that each received packet was
//! sent on, consumed or dropped, and that every buffer is back.

use wedjat_core::policy::{CATALOGUE, Runs};
use wedjat_core::state::MemberPresence;
use wedjat_core::state::{Load, View};

use super::*;

/// A millisecond in nanoseconds.
const MS: u64 = 1_000_000;
/// Sequence number of other clients' tasks, whose answers are ignored.
const OTHERS: u16 = u16::MAX;

/// Eight workers with FIFO service, one millisecond per task.
struct Workers {
    /// Leaf that schedules their tasks.
    rig: Rig,
    /// Completion time, client and number of each worker's tasks.
    queues: Vec<std::collections::VecDeque<(u64, u32, u16)>>,
    /// Replies to the client: number and time.
    answered: Vec<(u16, u64)>,
    /// Queue length that worker 0 reports in place of its own, if any.
    false_queue: Option<u16>,
    /// Number of tasks that each worker received.
    task_counts: [usize; 8],
}

impl Workers {
    /// Creates idle workers at a leaf with this policy. The leaf permits 16 unfinished multi-packet tasks per
    /// source.
    fn new(policy: &str) -> Self {
        let networks =
            Networks { sides: [Side::Clients, Side::Workers], registers: false, key: None };
        let text = config_text(&networks, policy, true, 1, (64, Overflow::Drop)).replacen(
            "seed = 7",
            "seed = 7\nmulti_packet_per_source = 16",
            1,
        );
        // Without a pool key, with a known client; a port holds 256 packets.
        let rig = rigs_of(&text, None, true, 256).remove(0);
        let queues = vec![std::collections::VecDeque::new(); 8];
        Self { rig, queues, answered: Vec::new(), false_queue: None, task_counts: [0; 8] }
    }

    /// Returns the leaf's view of the workers.
    fn view(&self) -> &View {
        self.rig.leaf.stages().dispatcher(0).unwrap().view()
    }

    /// Delivers a client's packet, if any, and advances the time by 51 microseconds. Workers accept tasks and answer
    /// completed ones. The packets of a task that is not complete wait at the worker.
    fn step(&mut self, frame: Option<&[u8]>) {
        if let Some(frame) = frame {
            assert!(self.rig.far[CLIENTS].send(frame));
        }
        self.rig.wait(50_000);
        let now = self.rig.now;
        for frame in self.rig.receive(WORKERS) {
            let Ok(datagram) = udp::parse(frame.bytes(), false) else { continue };
            let header = Header::parse(&frame.bytes()[datagram.payload()..]).unwrap();
            if header.more {
                continue; // waits for the rest
            }
            self.task_counts[usize::from(header.dst - 10)] += 1;
            let queue = &mut self.queues[usize::from(header.dst - 10)];
            let start = queue.back().map_or(now, |last| last.0.max(now));
            queue.push_back((start + MS, datagram.src, header.seq));
        }
        for worker in 0..8 {
            while self.queues[worker].front().is_some_and(|first| first.0 <= now) {
                let (_, client, seq) = self.queues[worker].pop_front().unwrap();
                assert_eq!(client, CLIENT, "no other task is one that a worker can answer");
                let left = self
                    .false_queue
                    .filter(|_| worker == 0)
                    .unwrap_or(self.queues[worker].len() as u16);
                let header = Header { seq, ..done(10 + worker as u16, left) };
                assert!(self.rig.far[WORKERS].send(&reply_from(SERVERS[worker / 4], header)));
            }
        }
        self.rig.poll();
        for frame in self.rig.receive(CLIENTS) {
            let Ok(datagram) = udp::parse(frame.bytes(), false) else { continue };
            let header = Header::parse(&frame.bytes()[datagram.payload()..]).unwrap();
            self.answered.push((header.seq, self.rig.now));
        }
    }

    /// Sends a task of an honest client every 5.1 ms. `attack` may send a frame in each of the 99 steps in between; its
    /// argument is the number of the step, 100 per task. Returns the response times in ascending order.
    fn serve(&mut self, tasks: u16, mut attack: impl FnMut(u32) -> Option<Vec<u8>>) -> Vec<u64> {
        let mut sent = Vec::new();
        for seq in 0..tasks {
            sent.push(self.rig.now);
            self.step(Some(&task(seq)));
            for step in 0..99 {
                let frame = attack(u32::from(seq) * 100 + step);
                self.step(frame.as_deref());
            }
        }
        // About 20 ms, in which all answers arrive.
        (0..400).for_each(|_| self.step(None));
        let honest = self.answered.iter().filter(|&&(seq, _)| seq < tasks);
        let mut times: Vec<_> = honest.map(|&(seq, at)| at - sent[usize::from(seq)]).collect();
        times.sort_unstable();
        times
    }

    /// Returns the number of tasks that the leaf counts as unanswered.
    fn outstanding(&self) -> u32 {
        (0..8).map(|member| self.view().outstanding(Member(member))).sum()
    }
}

/// Returns the first packet of a task from this source, whose further packets never follow.
fn unfinished_task(source: u32, seq: u16) -> Vec<u8> {
    let mut payload = [0; 20];
    Header { more: true, ..Header::new_task(7, seq) }.emit(&mut payload);
    frame(&Flow { src: source, ..client_flow() }, &payload)
}

/// Returns a complete task from this source, which no reply can reach.
fn unanswerable_task(source: u32, seq: u16) -> Vec<u8> {
    let mut payload = [0; 20];
    Header::new_task(7, seq).emit(&mut payload);
    frame(&Flow { src: source, ..client_flow() }, &payload)
}

/// Returns the names of all policies of leaves.
fn policies() -> impl Iterator<Item = &'static str> {
    CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine).map(|entry| entry.name)
}

// promise: trust.2
#[test]
fn unanswerable_and_incomplete_tasks_block_no_client() {
    // The leaf, a server, a host of the workers' network, a host beyond all networks, no address, and broadcast.
    let unreachable = [LEAF_CLIENTS, SERVERS[1], LEAF_WORKERS | 0x77, 0x0808_0808, 0, u32::MAX];
    for policy in policies() {
        let alone = Workers::new(policy).serve(40, |_| None);
        assert_eq!(alone.len(), 40, "{policy}");
        let mut workers = Workers::new(policy);
        // About 10,000 packets per second: half from unreachable sources, a quarter from one source, and a quarter from
        // a whole network.
        let times = workers.serve(40, |at| {
            (at % 2 == 0).then(|| match at / 2 % 4 {
                0 | 1 => unanswerable_task(unreachable[at as usize / 8 % 6], at as u16),
                2 => unfinished_task(CLIENT, at as u16),
                _ => unfinished_task(0x0A00_0110 + at / 8 % 200, at as u16),
            })
        });
        assert_eq!(times.len(), 40, "{policy}: {:?}", workers.rig.drops());
        // The longest response time.
        assert!(times[39] <= 2 * alone[39], "{policy}: {} instead of {}", times[39], alone[39]);
        assert_eq!(workers.outstanding(), 0, "{policy}: no count leaks");
        assert_eq!(workers.rig.count(Gauge::Queued), 0, "{policy}");
        let drops = workers.rig.drops();
        assert!(drops.iter().any(|&(name, _)| name == "source_unreachable"), "{policy} {drops:?}");
        workers.rig.assert_accounted();
    }
}

// promise: trust.2
#[test]
fn source_is_bounded_in_unfinished_tasks() {
    let mut workers = Workers::new("horus");
    for at in 0..40 {
        drop(workers.rig.through(CLIENTS, &unfinished_task(CLIENT, at), WORKERS));
    }
    // 40 tasks, of which 16 are permitted (`multi_packet_per_source`).
    assert_eq!(workers.rig.drops(), [("multi_packet_bound", 24)]);
    workers.rig.assert_accounted();
}

// promise: trust.2
#[test]
fn completed_task_regains_its_place() {
    // Each worker has one place. A complete task may take the place of an incomplete one, which is then over the bound
    // if its rest arrives after all.
    let mut workers = Workers::new("jbsq(k=1)");
    for at in 0..8 {
        workers.step(Some(&unfinished_task(CLIENT, at)));
    }
    assert_eq!(workers.outstanding(), 8, "all places are taken");
    workers.step(Some(&task(100)));
    assert_eq!(
        workers.task_counts.iter().sum::<usize>(),
        1,
        "and one is given up for a whole task"
    );
    assert_eq!(workers.outstanding(), 8);
    let mut rest = [0; 20];
    Header { code: Code::TaskContinuation, ..Header::new_task(7, 0) }.emit(&mut rest);
    workers.step(Some(&frame(&client_flow(), &rest)));
    assert_eq!(workers.outstanding(), 9, "the first task is complete: it is served, too");
    (0..400).for_each(|_| workers.step(None));
    assert_eq!(workers.answered.len(), 2);
    assert_eq!(workers.outstanding(), 0, "the others timed out");
    workers.rig.assert_accounted();
}

// promise: trust.2
#[test]
fn excessive_load_report_expires() {
    for policy in ["horus", "racksched", "lsq-update", "jbsq", "sed"] {
        let mut workers = Workers::new(policy);
        // Worker 0 answers tasks that it did not get, and reports far too many tasks, or slightly too many.
        for qlen in [u16::MAX, 40] {
            drop(workers.rig.through(WORKERS, &reply(10, qlen), CLIENTS));
            (0..600).for_each(|_| workers.step(None));
            let believed = workers.view().estimated_load(Member(0));
            assert_eq!(believed, 0, "{policy}: nothing was sent to it");
        }
        workers.serve(60, |at| (at % 10 == 0).then(|| task(OTHERS)));
        // 60 tasks of the client and 600 of others. Worker 0's fair part of them is 82.
        assert!(workers.task_counts[0] > 20, "{policy}: {:?}", workers.task_counts);
        workers.rig.assert_accounted();
    }
}

// promise: trust.2
#[test]
fn constantly_idle_worker_does_not_attract_all_tasks() {
    for policy in ["horus", "racksched", "lsq-update", "jiq", "ppot"] {
        let mut workers = Workers::new(policy);
        workers.false_queue = Some(0);
        // About 6000 tasks per second, of 8000 that the workers can serve.
        workers.serve(200, |at| (at % 10 < 3).then(|| task(OTHERS)));
        // An eighth of the tasks is its fair part. Less than three times that is permitted.
        let all: usize = workers.task_counts.iter().sum();
        assert!(workers.task_counts[0] * 8 < 3 * all, "{policy}: {:?}", workers.task_counts);
        workers.rig.assert_accounted();
    }
}

// promise: trust.2
#[test]
fn unconfigured_registration_is_refused() {
    let networks = Networks { sides: [Side::Clients, Side::Workers], registers: false, key: None };
    let backlog = (64, Overflow::Drop);
    // Servers and client have known MAC addresses. A port holds 256 packets, and the leaf has one core.
    let mut rig = rigs_on(networks, "horus", true, true, 256, 1, backlog).remove(0);
    for message in [presence::join(12, 0), presence::alive(12, 0)] {
        assert!(rig.through(WORKERS, &message, WORKERS).is_empty());
    }
    assert_eq!(rig.drops(), [("registration_off", 2)]);
    let presence = |rig: &Rig| {
        let view = rig.leaf.stages().dispatcher(0).unwrap().view();
        (view.presence(Member(2)), view.is_active(Member(2)))
    };
    for _ in 0..50 {
        rig.wait(10 * MS);
    }
    assert_eq!(presence(&rig), (MemberPresence::Configured, true));
    rig.assert_accounted();
}

// promise: scheduling.4
#[test]
fn lost_tasks_are_written_off_under_every_policy() {
    for policy in policies() {
        let mut workers = Workers::new(policy);
        for at in 0..24 {
            workers.rig.through(CLIENTS, &task(at), WORKERS); // not delivered
        }
        workers.serve(40, |at| (at % 7 == 0).then(|| task(OTHERS)));
        // 11.5 s: after 10 s, tasks of a worker without reports count as lost.
        (0..2_300).for_each(|_| workers.rig.wait(5 * MS));
        assert_eq!(workers.outstanding(), 0, "{policy}");
        workers.rig.assert_accounted();
    }
}

// promise: scheduling.4
#[test]
fn tasks_always_in_flight_are_not_written_off() {
    // Each worker gets a task every 40 us and answers it after 90 or 500 us, so that two or twelve of its tasks are
    // always in flight. Only `round-robin` does not measure the round trip. In the last case, the pool is idle first.
    for (policy, trip_us, idle_ms) in
        [("round-robin", 90, 0), ("jsq", 90, 0), ("jsq", 500, 0), ("jsq", 500, 1000)]
    {
        let mut rig = rig(policy);
        (0..idle_ms).for_each(|_| rig.wait(MS));
        let mut replies = std::collections::VecDeque::new();
        // 0.8 s. The leaf checks each worker every 10 ms, and decides after 64 checks.
        for seq in 0..160_000_u32 {
            rig.now += 3_000;
            let (_, header, _) = rig.one(CLIENTS, &task(seq as u16), WORKERS);
            replies.push_back((rig.now + 1000 * trip_us, header.dst));
            match replies.front() {
                Some(&(due, worker)) if due <= rig.now => {
                    replies.pop_front();
                    rig.one(WORKERS, &reply(worker, 0), CLIENTS);
                }
                _ => rig.poll(),
            }
        }
        let outstanding = (0..8).map(|member| rig.outstanding(member)).sum::<u32>();
        assert_eq!(outstanding as usize, replies.len(), "{policy}, {trip_us}, {idle_ms}");
        assert_eq!(rig.count(Counter::SurplusReplies), 0, "{policy}, {trip_us}, {idle_ms}");
        rig.assert_accounted();
    }
}

#[test]
fn many_doubted_workers_count_their_sent_tasks() {
    // 1024 workers, and six tasks for each.
    let networks = Networks { sides: [Side::Clients, Side::Workers], registers: false, key: None };
    let text = config_text(&networks, "round-robin", true, 1, (64, Overflow::Drop));
    let text = text.replace("'10-13'", "'10-521'").replace("'14-17'", "'522-1033'");
    let mut rig = rigs_of(&text, None, true, 256).remove(0);
    for at in 0..6 * 1024 {
        rig.through(CLIENTS, &task(at as u16), WORKERS);
    }
    // Each worker reports an empty queue again and again, although tasks sent to it are unanswered.
    for _ in 0..5 {
        for worker in 0..1024_u16 {
            let server = SERVERS[usize::from(worker / 512)];
            rig.through(WORKERS, &reply_from(server, done(10 + worker, 0)), CLIENTS);
        }
        for _ in 0..12 {
            rig.wait(MS);
        }
    }
    // After three checks that find such reports, the leaf doubts the worker and no longer believes its replies. It then
    // counts the tasks sent without a reply: six tasks less five replies.
    let view = rig.leaf.stages().dispatcher(0).unwrap().view();
    let bounded = (0..1024).filter(|&at| view.load(Member(at)) == Load::ONE);
    assert_eq!(bounded.count(), 1024);
    rig.assert_accounted();
}
