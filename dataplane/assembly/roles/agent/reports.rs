//! Tests of workers shared by several leaves. The workers register with all leaves, and answer through the leaf that
//! sent the task. Each report of a queue length goes to one leaf, which the leaves' policy chooses:
//! - `lsq-update`: an idle worker reports to a random leaf.
//! - `lsq-smart`: a worker reports to the leaf with the largest error, if that is at least its queue length.
//! - `jiq`: an idle worker reports to one leaf, which adds it to its idle list.
//! - `lsq-sample`: the leaves ask.
//!
//! Under the first two a worker also reports to each leaf that has registered it.
//!
//! A `Rig` is an agent with one port in memory, at whose far end (`wire`) the test plays the leaves. `send` delivers a
//! frame, and `after` polls the agent some microseconds later. `work` lets a worker serve a task in the test's thread.

use std::collections::BTreeMap;

use super::*;

/// IPv4 and MAC addresses of the leaves.
const LEAVES: [(u32, Mac); 3] = [
    (0x0A00_0201, Mac([2, 0, 0, 0, 0, 2])),
    (0x0A00_0202, Mac([2, 0, 0, 0, 0, 3])),
    (0x0A00_0203, Mac([2, 0, 0, 0, 0, 4])),
];

/// Agent with workers 10 and 11, registered with three leaves.
struct Shared {
    rig: Rig,
    /// Workers 10 and 11.
    worker_ends: [WorkerEnd; 2],
}

/// A message of the agent: destination MAC address and header.
type SentReport = (Mac, Header);

impl Shared {
    /// Creates the agent of three leaves with this policy, and attaches both workers.
    fn new(family: Family, policy: &str) -> Self {
        let leaves = LEAVES.map(|(ip, mac)| {
            format!("[[leaf]]\nip = '{}'\nmac = '{mac}'\n", std::net::Ipv4Addr::from_bits(ip))
        });
        let text = text("jbsq(k=8)", 2, 64, Overflow::Drop).replace("leaf = '10.0.2.1'\n", "");
        let text = format!("{text}leaf_policy = '{policy}'\n{}", leaves.concat());
        let text = family.text(&text);
        let frames = FramePool::new(256, 512);
        let (port, wire) = pair(128, &frames);
        let AgentRig { agent, handles, .. } = rig::agent(&text, HZ, (vec![port], &frames), None);
        let mut rig = Rig { agent, wire, frames, handles, family, now: 0 };
        let worker_ends = [rig.attach_worker(0), rig.attach_worker(1)];
        Self { rig, worker_ends }
    }

    /// Returns all messages from the wire.
    fn received(&mut self) -> Vec<SentReport> {
        let family = self.rig.family;
        let packets = std::iter::from_fn(|| self.rig.wire.receive());
        let read = |packet: Frame| {
            let datagram = family.parse(packet.bytes()).ok()?;
            let header = Header::parse(&packet.bytes()[datagram.payload()..]).unwrap();
            let to = ether::dst(packet.bytes());
            let leaf = LEAVES.iter().find(|(_, mac)| *mac == to).unwrap();
            assert!(header.code.is_reply() || datagram.dst == family.ip(leaf.0), "{header:?}");
            Some((to, header))
        };
        packets.filter_map(read).collect()
    }

    /// Advances the time by 8 ms. Each leaf acknowledges the registrations that it receives. Returns all further
    /// messages.
    fn register_with_leaves(&mut self) -> Vec<SentReport> {
        let mut messages = Vec::new();
        for _ in 0..8 {
            self.rig.after(HZ / 1000);
            for (to, header) in self.received() {
                let (ip, mac) = LEAVES.into_iter().find(|(_, mac)| *mac == to).unwrap();
                match header.code {
                    Code::WorkerId => {
                        let ids = (header.src, header.seq, 100);
                        let answer = acknowledgement(self.rig.family, (ip, mac), ids);
                        self.rig.send(&answer);
                    }
                    _ => messages.push((to, header)),
                }
            }
        }
        messages
    }

    /// Delivers a task of a leaf that names this worker.
    fn task_from(&mut self, leaf: usize, worker: u16, seq: u16) {
        let header = Header { dst: worker, src: 77, ..Header::new_task(POOL, seq) };
        let mut bytes = self.rig.family.frame(&header, &[]);
        ether::emit_addresses(&mut bytes, AGENT_MAC, LEAVES[leaf].1);
        self.rig.send(&bytes);
    }

    /// Serves one task by any worker: the agent may give a task to another worker than the named one. Returns the
    /// messages sent, which bear the named worker's id and number of tasks.
    fn work(&mut self) -> Vec<SentReport> {
        assert!(self.worker_ends.iter_mut().any(work));
        self.rig.after(1);
        self.received()
    }
}

/// Returns the queue reports among these messages.
fn reports(messages: &[SentReport]) -> Vec<SentReport> {
    messages.iter().copied().filter(|(_, header)| header.code == Code::QueueReport).collect()
}

// promise: scheduling.6
#[test]
fn workers_register_with_and_report_to_all_leaves() {
    for family in FAMILIES {
        let mut shared = Shared::new(family, "lsq-update(eps=0)");
        let messages = shared.register_with_leaves();
        assert_eq!(shared.rig.agent.registered(), 2);
        let mut counts = BTreeMap::new();
        for (to, header) in reports(&messages) {
            assert_eq!((header.pool, header.qlen, header.dst), (POOL, 0, task::NO_MEMBER));
            *counts.entry((to.0, header.src)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6, "each of two tells each of three once: {counts:?}");
        assert!(counts.values().all(|&times| times == 1));
        assert_eq!(shared.rig.agent.counters().read(Counter::QueueReports), 6);
        // All are kept alive.
        for _ in 0..1000 {
            shared.rig.after(HZ / 5000);
        }
        let alive =
            shared.received().into_iter().filter(|(_, header)| header.code == Code::KeepAlive);
        let alive: std::collections::BTreeSet<_> =
            alive.map(|(to, header)| (to.0, header.src)).collect();
        assert_eq!(alive.len(), 6, "{alive:?}");
        shared.rig.assert_balanced();
    }
}

// promise: scheduling.6
#[test]
fn answers_use_their_leaf_and_idle_reports_one() {
    for family in FAMILIES {
        let mut shared = Shared::new(family, "lsq-update(eps=0)");
        shared.register_with_leaves();
        let mut counts = BTreeMap::new();
        for seq in 0..120 {
            let leaf = usize::from(seq) % 3;
            shared.task_from(leaf, 10, seq);
            shared.task_from((leaf + 1) % 3, 10, seq + 1000);
            // Both tasks name worker 10, which the reports count by. The agent may give them to both its workers, so
            // either is answered first. The numbers of the second leaf's tasks begin at 1000.
            let asked_by = |header: &Header| (leaf + usize::from(header.seq >= 1000)) % 3;
            let first = shared.work();
            assert_eq!(first.len(), 1, "it has another task and sends no report: {first:?}");
            assert_eq!((first[0].0, first[0].1.qlen), (LEAVES[asked_by(&first[0].1)].1, 1));
            let second = shared.work();
            assert_eq!((second.len(), second[0].0), (2, LEAVES[asked_by(&second[0].1)].1));
            assert_ne!(first[0].0, second[0].0);
            let [(to, header)] = reports(&second)[..] else { panic!("{second:?}") };
            assert_eq!((header.src, header.qlen), (10, 0));
            *counts.entry(to.0).or_insert(0) += 1;
        }
        // 40 of the 120 reports are expected at each leaf.
        assert!(counts.len() == 3 && counts.values().all(|&times| times > 20), "{counts:?}");
        shared.rig.assert_balanced();
    }
}

// promise: scheduling.6
#[test]
fn smart_worker_reports_to_the_most_wrong_leaf() {
    for family in FAMILIES {
        let mut shared = Shared::new(family, "lsq-smart(eps=0)");
        shared.register_with_leaves();
        // The last leaf sends worker 11 four tasks, each other leaf one. The agent tracks each leaf's estimate of the
        // worker's queue. Tasks raise the estimate of their leaf, and only reports to it lower it.
        for (seq, leaf) in [2, 2, 2, 2, 0, 1].into_iter().enumerate() {
            shared.task_from(leaf, 11, seq as u16);
        }
        // Five tasks are left. The first two leaves estimate one and are off by four, which is less than five.
        assert_eq!(reports(&shared.work()), []);
        // Four are left, and their error of three is less. Then three are left, and their error of two is less.
        assert_eq!(reports(&shared.work()), []);
        assert_eq!(reports(&shared.work()), []);
        // Two are left. The last leaf estimates four, an error of two.
        let [(to, header)] = reports(&shared.work())[..] else { panic!("nobody was told") };
        assert_eq!((to, header.src, header.qlen), (LEAVES[2].1, 11, 2));
        // One is left. The last leaf estimates two since its report, an error of one, which equals the queue.
        let [(to, header)] = reports(&shared.work())[..] else { panic!("nobody was told") };
        assert_eq!((to, header.qlen), (LEAVES[2].1, 1));
        assert_eq!(reports(&shared.work()).len(), 1, "idle");
        shared.rig.assert_balanced();
    }
}

// promise: scheduling.6
#[test]
fn unused_idle_report_is_repeated_every_second() {
    for family in FAMILIES {
        let mut shared = Shared::new(family, "jiq");
        let messages = shared.register_with_leaves();
        assert_eq!(reports(&messages).len(), 2, "each is on one leaf's list");
        let (listed, _) = reports(&messages)[0];
        let worker = reports(&messages)[0].1.src;
        let listing = LEAVES.iter().position(|(_, mac)| *mac == listed).unwrap();
        // The worker's entry on that leaf's idle list is used up by a task of that leaf, not by another leaf's. Only
        // then the worker reports again.
        shared.task_from((listing + 1) % 3, worker, 1);
        assert_eq!(reports(&shared.work()), []);
        shared.task_from(listing, worker, 2);
        assert_eq!(reports(&shared.work()).len(), 1);
        shared.received();
        // A report may be lost, so each worker repeats it every second: two or three times in 2.5 s.
        let mut repeated = 0;
        for _ in 0..2500 {
            shared.rig.after(HZ / 1000);
            repeated += reports(&shared.received()).len();
        }
        assert!((4..=6).contains(&repeated), "two workers, once a second: {repeated}");
        shared.rig.assert_balanced();
    }
}

// promise: scheduling.6
#[test]
fn returning_worker_reports_again() {
    for family in FAMILIES {
        let mut shared = Shared::new(family, "lsq-smart");
        shared.register_with_leaves();
        let [first, second] = shared.worker_ends;
        drop(first);
        let mut rig = shared.rig;
        for _ in 0..20 {
            rig.after(HZ / 1000);
        }
        while rig.wire.receive().is_some() {}
        let worker_ends = [rig.attach_worker(0), second];
        let mut shared = Shared { rig, worker_ends };
        let mut messages = Vec::new();
        for _ in 0..30 {
            messages.extend(shared.register_with_leaves());
        }
        let destinations: std::collections::BTreeSet<_> =
            reports(&messages).iter().map(|(to, header)| (to.0, header.src)).collect();
        assert_eq!(destinations.len(), 3, "{destinations:?}");
        assert!(destinations.iter().all(|(_, worker)| *worker == 10), "{destinations:?}");
        shared.rig.assert_balanced();
    }
}

// promise: scheduling.6
#[test]
fn probing_leaf_gets_the_queue_length() {
    for family in FAMILIES {
        let mut shared = Shared::new(family, "lsq-sample");
        let messages = shared.register_with_leaves();
        assert_eq!(reports(&messages), [], "nobody is told without having asked");
        for seq in 0..3 {
            shared.task_from(0, 11, seq);
        }
        let probe = |shared: &mut Shared, from: (u32, Mac), header: Header| {
            shared.rig.send(&family.packet(from, (AGENT, 1234, 1234), &header, &[]));
            shared.received()
        };
        let probe_of = |worker| Header::queue_probe(POOL, 9, worker, 0x1234);
        for (leaf, worker, tasks) in [(1, 11, 3), (0, 11, 3), (2, 10, 0)] {
            let answer = probe_of(worker).answered_with(tasks);
            let messages = probe(&mut shared, LEAVES[leaf], probe_of(worker));
            assert_eq!(messages, [(LEAVES[leaf].1, answer)]);
        }
        assert_eq!(shared.rig.agent.counters().read(Counter::QueueProbes), 3);
        // An unknown worker, another pool, and a sender that is not one of its leaves.
        for (from, header, reason) in [
            (LEAVES[0], probe_of(12), DropReason::UnknownWorker),
            (LEAVES[0], probe_of(0xFFFF), DropReason::UnknownWorker),
            (LEAVES[0], Header { pool: POOL + 1, ..probe_of(11) }, DropReason::PoolMismatch),
            ((CLIENT, LEAVES[0].1), probe_of(11), DropReason::UnknownPeer),
        ] {
            let before = shared.rig.agent.counters().dropped(reason);
            assert_eq!(probe(&mut shared, from, header), []);
            assert_eq!(shared.rig.agent.counters().dropped(reason), before + 1, "{reason:?}");
        }
        (0..3).for_each(|_| drop(shared.work()));
        assert_eq!(shared.rig.agent.counters().read(Counter::QueueProbes), 3);
        assert!(shared.rig.agent.counters().balances());
    }
}

#[test]
fn probe_without_an_answer_is_not_counted() {
    for family in FAMILIES {
        // The agent has not resolved its leaf yet.
        let mut rig = Rig::over(family, "jbsq(k=8)", 1, 64, Overflow::Drop);
        let probe = Header::queue_probe(POOL, 9, 10, 1);
        rig.send(&family.packet((LEAF, LEAF_MAC), (AGENT, 1234, 1234), &probe, &[]));
        assert_eq!(rig.agent.counters().read(Counter::Consumed), 1);
        assert_eq!(rig.agent.counters().read(Counter::QueueProbes), 0);
        assert!(rig.agent.counters().balances());
    }
}
