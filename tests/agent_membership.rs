//! Membership changes of an agent under traffic: workers and pools come and go between bursts, and every lost
//! task is counted.
//!
//! An agent gives the tasks of a host to workers, through a region of shared memory. Each worker has a place in the
//! region, which it claims and the agent grants, and an index in its pool's tables. The agent registers its workers
//! with the leaf, which forwards clients' tasks. The agent's membership is its pools and workers; each change begins
//! an epoch, a number that grows. The test is the leaf, the clients, the workers and the clock.
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(unsafe_code, reason = "an allocator that counts")]

mod changing;
mod counting;
mod rig;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rand::RngExt as _;
use wedjat::control::{AgentCores, LEAVING_NS};
use wedjat::io::Buf as _;
use wedjat::io::memory::{Frame, FramePool, RingPort, pair};
use wedjat::reason::DropReason;
use wedjat::role::Agent;
use wedjat::state::{Counter, Gauge};
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp::{self, Flow};

use changing::{ChangeRig, TrafficRig, random_change};
use rig::{AgentHandles, AgentRig, Workers};

/// Ticks per second.
const HZ: u64 = 1_000_000_000;
/// Ticks between two polls of the core; one tick is one nanosecond.
const POLL_NS: u64 = 20_000;
/// The agent's address, 10.0.2.11.
const AGENT: u32 = 0x0A00_020B;
const AGENT_MAC: Mac = Mac([2, 0, 0, 0, 2, 11]);
/// The leaf's address, 10.0.2.1.
const LEAF: u32 = 0x0A00_0201;
const LEAF_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// The client's address, 10.0.1.2.
const CLIENT: u32 = 0x0A00_0102;

/// Returns the agent's configuration. `key` is a line of the pool, or empty.
fn text(state: &Path, key: &str) -> String {
    format!(
        r#"
[agent]
name = "memory"
core = 1
seed = 7
leaf = "10.0.2.1"
leaf_mac = "{LEAF_MAC}"
slots = 4
payload = 64
worker_timeout_ms = 0
pools_max = 3
workers_max = 10
state = "{}"
[[port]]
device = "memory"
ip = "10.0.2.11/24"
mac = "{AGENT_MAC}"
[[pool]]
id = 7
policy = "jbsq(k=2)"
queue = 64
workers = "10-13"
{key}
"#,
        state.display()
    )
}

/// An agent with its control, its workers, and the far end of its wire.
struct Rig {
    /// The agent's core.
    agent: Agent<RingPort, FramePool>,
    /// Far end of the agent's port.
    wire: RingPort,
    /// Pool of packet buffers.
    frames: FramePool,
    /// Path of a key file.
    key: String,
    /// The workers' side of the agent.
    handles: AgentHandles,
    /// The control, and checks of the agent's state file.
    changing: ChangeRig<AgentCores<Frame>>,
    /// Time of the last poll, in ns.
    now: u64,
    /// Attached workers (`attached`). The `stuck` ones neither serve tasks nor leave. `done` counts served tasks.
    workers: Workers,
    /// Tasks sent and not yet answered.
    open: BTreeSet<u16>,
    /// Number of tasks answered or refused.
    answered: u64,
    /// Number of acknowledgements sent.
    acknowledged: u64,
    /// Workers that registered or sent keep-alives since this set was last cleared.
    registrations: BTreeSet<u16>,
    /// Workers whose messages or replies were signed since this set was last cleared.
    signed: BTreeSet<u16>,
    /// Number of the last task.
    next: u16,
}

impl Rig {
    /// Creates a rig without attached workers. `has_key` gives pool 7 a key.
    fn new(has_key: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [path, key] = ["state", "key"].map(|name| folder.path().join(name));
        std::fs::write(&key, "5a".repeat(16)).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let line = format!("key_file = '{}'", key.display());
        let text = text(&path, if has_key { &line } else { "" });
        let frames = FramePool::new(1024, 256);
        let (near, wire) = pair(256, &frames);
        let AgentRig { agent, handles, table, control } =
            rig::agent(&text, HZ, (vec![near], &frames), None);
        Self {
            agent,
            wire,
            frames,
            key: key.display().to_string(),
            handles,
            changing: ChangeRig::new(control, table, path, folder),
            now: 0,
            workers: Workers::default(),
            open: BTreeSet::new(),
            answered: 0,
            acknowledged: 0,
            registrations: BTreeSet::new(),
            signed: BTreeSet::new(),
            next: 0,
        }
    }

    /// Creates a rig with the configured workers attached.
    fn with_workers() -> Self {
        let mut rig = Self::new(false);
        (10..14).for_each(|id| assert!(rig.attach(id)));
        rig.polls(50);
        rig
    }

    /// Attaches a worker. Returns false if it has no place.
    fn attach(&mut self, id: u16) -> bool {
        self.workers.attach(&self.handles, id)
    }

    /// Sends a client's task to a pool, with the id of a worker if one is given. A full wire discards the task.
    fn send(&mut self, pool: u16, worker: Option<u16>) {
        self.next = self.next.wrapping_add(1);
        let header = Header::new_task(pool, self.next);
        let dst = worker.unwrap_or(header.dst);
        if self.wire.send(&frame((CLIENT, 40_000), &Header { dst, ..header })) {
            self.open.insert(self.next);
        }
    }

    /// Polls the core once and checks that it allocates and frees no memory. Each worker then serves one of its
    /// tasks if `chance` returns true.
    fn poll(&mut self, chance: impl FnMut() -> bool) {
        self.now += POLL_NS;
        let before = counting::calls();
        self.agent.poll(self.now);
        assert_eq!(counting::calls() - before, 0, "a polling core takes and frees no memory");
        self.workers.work(chance);
        while let Some(packet) = self.wire.receive() {
            self.take_packet(packet.bytes());
        }
    }

    /// Handles a packet of the agent to its leaf or a client. Acknowledges registrations as leaf 9, with a silence
    /// of 100 ms after which the leaf excludes a worker. Ignores ARP.
    fn take_packet(&mut self, bytes: &[u8]) {
        if ether::ether_type(bytes) == ether::ARP {
            return;
        }
        let datagram = udp::parse(bytes, false).unwrap();
        let header = Header::parse(&bytes[datagram.payload()..]).unwrap();
        self.signed.extend(header.authenticated.then_some(header.src));
        match header.code {
            Code::WorkerId => {
                self.registrations.insert(header.src);
                self.acknowledged += 1;
                let answer = header.acknowledged_by(9, 100);
                assert!(self.wire.send(&frame((LEAF, 1234), &answer)));
            }
            Code::KeepAlive => _ = self.registrations.insert(header.src),
            code => {
                assert!(code.is_reply() || code == Code::TaskRefused, "{code:?}");
                assert!(self.open.remove(&header.seq), "an answer to an open task, once");
                self.answered += 1;
            }
        }
    }

    /// Returns the number of dropped tasks. Acknowledgements that the agent dropped do not count.
    fn dropped(&self) -> u64 {
        let counters = self.agent.counters();
        counters.dropped_total() - (self.acknowledged - counters.read(Counter::Consumed))
    }

    /// Sends a multiple of 20 tasks, at least `tasks`, to a pool. Returns the workers that serve them.
    fn workers_of(&mut self, pool: u16, tasks: usize) -> BTreeSet<u16> {
        self.workers.done.clear();
        for _ in 0..tasks.div_ceil(20) {
            (0..20).for_each(|_| self.send(pool, None));
            self.polls(20);
        }
        self.polls(100);
        self.workers.done.keys().copied().collect()
    }

    /// Advances the time by 1 s, and returns the workers that register or send keep-alives in the next 0.4 s. These are
    /// many keep-alive intervals, so the set contains every registered worker.
    fn registered(&mut self) -> BTreeSet<u16> {
        self.now += HZ;
        self.polls(20);
        self.registrations.clear();
        for _ in 0..20 {
            self.now += HZ / 50;
            self.polls(20);
        }
        self.registrations.clone()
    }

    /// Checks the end of a test: every task is answered or counted as dropped, and the agent holds no packet.
    fn assert_accounted(&mut self) {
        for _ in 0..100 {
            self.polls(20);
            if self.agent.held() == 0 {
                break;
            }
        }
        self.polls(20);
        let counters = self.agent.counters();
        assert!(counters.balances());
        assert_eq!((self.agent.held(), counters.read(Gauge::Held)), (0, 0));
        assert_eq!(self.frames.in_use(), 0);
        assert_eq!(self.open.len() as u64, self.dropped(), "{:?}", self.open);
        self.changing.assert_shown();
    }
}

/// Rig of an agent whose workers serve a task at each poll.
impl TrafficRig for Rig {
    type Cores = AgentCores<Frame>;

    /// Workers that serve their tasks leave within these rounds. Later rounds advance the time, until the agent writes
    /// off the tasks of a stuck worker.
    const ROUNDS_BEFORE_JUMPS: usize = 20;

    fn changing(&mut self) -> &mut ChangeRig<AgentCores<Frame>> {
        &mut self.changing
    }

    fn now(&mut self) -> &mut u64 {
        &mut self.now
    }

    fn polls(&mut self, count: usize) {
        (0..count).for_each(|_| self.poll(|| true));
    }
}

/// Returns a packet to the agent from this address and UDP port, as the leaf forwards it.
fn frame((src, src_port): (u32, u16), header: &Header) -> Vec<u8> {
    let flow =
        Flow { src_mac: LEAF_MAC, dst_mac: AGENT_MAC, src, dst: AGENT, src_port, dst_port: 1234 };
    let mut bytes = vec![0; udp::PAYLOAD + header.len()];
    header.emit(&mut bytes[udp::PAYLOAD..]);
    flow.emit(&mut bytes, header.len());
    bytes
}

/// Returns the ids as a set.
fn range(ids: std::ops::RangeInclusive<u16>) -> BTreeSet<u16> {
    ids.collect()
}

// promise: membership.1
#[test]
fn membership_changes_keep_other_indices() {
    let mut rig = Rig::with_workers();
    assert_eq!(rig.workers_of(7, 200), range(10..=13));
    assert_eq!(rig.registered(), range(10..=13));
    assert!(!rig.attach(20), "no place has this id yet");
    let epoch = rig.change("add-workers pool=7 workers=20-23");
    assert!(rig.changing.control.acknowledged() < epoch);
    assert!([20, 22].into_iter().all(|id| rig.attach(id)), "before the core knows the change");
    rig.settle();
    assert_eq!(rig.changing.control.acknowledged(), epoch);
    let attached: BTreeSet<_> = [10, 11, 12, 13, 20, 22].into();
    assert_eq!(rig.workers_of(7, 400), attached);
    assert_eq!(rig.registered(), attached);
    // Leaving workers get the signal to stop, and no worker can attach in their places.
    rig.change("remove-workers workers=10-11,22");
    assert!(!rig.attach(10));
    rig.polls(20);
    assert_eq!(rig.workers_of(7, 400), [12, 13, 20].into());
    // Until a worker has left, another one serves the tasks to its id.
    assert!(rig.changing.control.membership().worker(10).is_some(), "the id is still known");
    rig.send(7, Some(10));
    rig.polls(20);
    assert!(rig.open.is_empty(), "another worker answers the task");
    rig.settle();
    assert_eq!(rig.registered(), [12, 13, 20].into());
    assert_eq!(rig.workers.ids(), [12, 13, 20].into());
    rig.send(7, Some(10));
    rig.polls(20);
    assert_eq!(rig.agent.counters().dropped(DropReason::UnknownWorker), 1);
    // New workers get the free indices and places: those of 10, 11 and 22, and the first unused ones.
    rig.change("add-workers server=10.0.2.11 pool=7 workers=30-34 speed=2");
    assert!((30..35).all(|id| rig.attach(id)));
    rig.settle();
    // The never attached workers 21 and 23 have the indices 5 and 7.
    let indices = [12, 13, 20, 30, 31, 32, 33].map(|id| rig.index_of(id));
    assert_eq!(indices, [2, 3, 4, 0, 1, 6, 8]);
    assert!(rig.workers_of(7, 600).is_superset(&range(30..=34)));
    assert_eq!((rig.dropped(), rig.open.len()), (1, 1));
    rig.assert_accounted();
}

// promise: membership.3
#[test]
fn drained_workers_get_no_tasks_until_undrained() {
    let mut rig = Rig::with_workers();
    rig.change("drain workers=10-11");
    rig.settle();
    assert_eq!(rig.workers_of(7, 200), range(12..=13));
    // Drained workers stay members.
    assert_eq!(rig.changing.control.membership().workers().count(), 4);
    rig.change("add-workers pool=7 workers=20");
    rig.change("drain workers=20");
    assert!(rig.attach(20));
    rig.settle();
    assert_eq!(rig.workers_of(7, 200), range(12..=13));
    rig.change("undrain workers=10,20");
    rig.settle();
    assert_eq!(rig.workers_of(7, 400), [10, 12, 13, 20].into());
    rig.change("remove-workers workers=11");
    let error = rig.refused("undrain workers=11");
    assert!(error.contains("worker 11: it is leaving"), "{error}");
    rig.settle();
    assert_eq!((rig.dropped(), rig.open.len()), (0, 0));
    rig.assert_accounted();
}

// promise: membership.2
#[test]
fn a_pool_comes_with_its_workers_at_once() {
    let mut rig = Rig::with_workers();
    let texts = [
        "add-pool id=9 policy=sed",
        "add-workers pool=9 workers=20",
        "add-workers pool=9 workers=21 speed=2",
    ];
    let changes = texts.map(|text| text.parse().unwrap());
    let epoch = rig.changing.control.membership().epoch;
    assert_eq!(rig.changing.control.apply_all(&changes).unwrap(), epoch + 1);
    rig.changing.expect();
    assert!([20, 21].into_iter().all(|id| rig.attach(id)));
    rig.settle();
    assert_eq!(rig.workers_of(9, 100), range(20..=21));
    rig.assert_accounted();
}

#[test]
fn absent_workers_of_a_new_pool_get_nothing() {
    let mut rig = Rig::with_workers();
    let texts = [
        "add-pool id=9 policy=jsq",
        "add-workers pool=9 workers=20-23",
        "drain workers=21",
        "remove-workers workers=22",
    ];
    let changes = texts.map(|text| text.parse().unwrap());
    rig.changing.control.apply_all(&changes).unwrap();
    rig.changing.expect();
    // No worker attaches in the place of 22, which leaves at once, and none comes for 23.
    assert!([20, 21].into_iter().all(|id| rig.attach(id)) && !rig.attach(22));
    rig.settle();
    assert!(rig.changing.control.membership().worker(22).is_none());
    rig.workers.done.clear();
    for _ in 0..40 {
        rig.send(9, None);
        rig.polls(5);
    }
    assert_eq!((rig.dropped(), rig.open.len()), (0, 0));
    let served: BTreeSet<_> = rig.workers.done.keys().copied().collect();
    assert_eq!(served, [20].into());
    rig.change("undrain workers=21");
    rig.settle();
    assert_eq!(rig.workers_of(9, 100), range(20..=21));
    rig.assert_accounted();
}

// promise: trust.3
#[test]
fn new_worker_signs_with_its_pools_key() {
    let mut rig = Rig::new(true);
    assert!((10..12).all(|id| rig.attach(id)));
    rig.change("add-pool id=9 policy=jsq");
    rig.change("add-workers pool=7 workers=20");
    rig.change("add-workers pool=9 workers=30");
    // A new pool has its given key, or none.
    rig.change(&format!("add-pool id=11 policy=jsq key-file={}", rig.key));
    rig.change("add-workers pool=11 workers=40");
    assert!([20, 30, 40].into_iter().all(|id| rig.attach(id)));
    rig.settle();
    assert_eq!(rig.workers_of(7, 60), [10, 11, 20].into());
    assert_eq!(rig.workers_of(9, 20), [30].into());
    assert_eq!(rig.workers_of(11, 20), [40].into());
    assert_eq!(rig.registered(), [10, 11, 20, 30, 40].into());
    // Pool 9 has no key.
    assert_eq!(rig.signed, [10, 11, 20, 40].into());
    rig.change("remove-workers workers=10-11");
    rig.settle();
    rig.signed.clear();
    rig.workers_of(7, 60);
    assert_eq!(rig.signed, [20].into());
    // The acknowledgements carry no valid tags and are rejected.
    assert!(rig.agent.counters().dropped(DropReason::AuthTag) > 0);
    rig.assert_accounted();
}

// promise: membership.1
#[test]
fn unresponsive_worker_is_removed_and_its_place_reused() {
    let mut rig = Rig::with_workers();
    rig.workers.stuck.insert(10);
    (0..8).for_each(|_| rig.send(7, None));
    rig.polls(20);
    assert_eq!(rig.open.len(), 2, "the stuck worker has k = 2 tasks");
    rig.change("remove-workers workers=10");
    rig.now += LEAVING_NS / 2;
    rig.polls(20);
    rig.poll_control();
    rig.poll_control();
    assert!(!rig.changing.control.is_settled());
    rig.settle();
    assert_eq!(rig.agent.counters().dropped(DropReason::WorkerLost), 2);
    assert!(
        rig.workers.attached[&10].0.receiver().is_stopped(),
        "the worker has the signal to stop"
    );
    // The new workers take all free places. The stuck worker still holds the tenth.
    rig.change("add-workers pool=7 workers=20-25");
    rig.polls(20);
    let error = rig.refused("add-workers pool=7 workers=26");
    assert!(error.contains("still hold others: end them"), "{error}");
    rig.workers.stuck.clear();
    rig.polls(20);
    assert!(!rig.workers.attached.contains_key(&10));
    rig.change("add-workers pool=7 workers=26");
    assert!((20..27).all(|id| rig.attach(id)));
    rig.settle();
    assert_eq!(rig.workers_of(7, 600), &range(11..=13) | &range(20..=26));
    rig.assert_accounted();
}

// promise: membership.1
#[test]
fn pools_come_and_go_under_their_own_policies() {
    let mut rig = Rig::with_workers();
    rig.send(9, None);
    rig.polls(20);
    assert_eq!(rig.agent.counters().dropped(DropReason::UnknownPool), 1);
    rig.change("add-pool id=9 policy=jbsq(k=1) queue=64");
    rig.change("add-workers pool=9 workers=40-41");
    assert!((40..42).all(|id| rig.attach(id)));
    rig.settle();
    assert_eq!(rig.workers_of(9, 40), range(40..=41));
    assert_eq!(rig.workers_of(7, 200), range(10..=13));
    assert!(rig.registered().contains(&40));
    // A leaving pool still serves its queued tasks.
    (0..20).for_each(|_| rig.send(9, None));
    rig.poll(|| false);
    rig.change("remove-pool id=9");
    rig.settle();
    assert_eq!((rig.dropped(), rig.open.len()), (1, 1));
    assert!(rig.changing.control.membership().pool(9).is_none());
    assert_eq!(rig.workers.ids(), range(10..=13));
    assert_eq!(rig.agent.attach_stats().map(|stats| stats.left).sum::<u64>(), 2);
    // A new pool takes the free index. Of the attached workers, 4 are of pool 7, 2 of pool 9 and 3 of pool 11.
    rig.change("add-pool id=11 policy=round-robin");
    rig.change("add-workers pool=11 workers=40-42");
    assert!((40..43).all(|id| rig.attach(id)));
    rig.settle();
    assert_eq!(rig.changing.control.membership().pool(11).unwrap().0, 1);
    assert_eq!(rig.workers_of(11, 40), range(40..=42));
    assert_eq!(rig.agent.attach_stats().map(|stats| stats.joined).sum::<u64>(), 4 + 2 + 3);
    // Tasks that wait for a stuck worker are dropped with their pool.
    rig.change("add-pool id=12 policy=cfcfs");
    rig.change("add-workers pool=12 workers=50");
    assert!(rig.attach(50));
    rig.workers.stuck.insert(50);
    rig.settle();
    let before = rig.dropped();
    (0..12).for_each(|_| rig.send(12, None));
    rig.change("remove-pool id=12");
    rig.now += 1;
    rig.settle();
    assert_eq!(rig.dropped(), before + 12);
    rig.workers.stuck.clear();
    rig.assert_accounted();
}

// promise: scheduling.3, membership.1
#[test]
fn policies_speeds_and_queues_change() {
    let mut rig = Rig::with_workers();
    // More tasks wait than the new queue can hold. All of them keep waiting. The four workers have 8 tasks (k = 2).
    (0..60).for_each(|_| rig.send(7, None));
    rig.poll(|| false);
    rig.poll(|| false);
    rig.change("set-queue pool=7 queue=4");
    (0..10).for_each(|_| rig.poll(|| false));
    assert_eq!(rig.agent.waiting(), 60 - 8);
    rig.send(7, None);
    rig.poll(|| false);
    assert_eq!(rig.agent.counters().dropped(DropReason::QueueFull), 1);
    rig.change("set-queue pool=7 queue=100 overflow=refuse");
    rig.change("set-policy pool=7 policy=random");
    (0..10).for_each(|_| rig.poll(|| false));
    assert!(rig.agent.waiting() >= 60 - 16, "at most the workers' 16 slots are used");
    rig.settle();
    assert_eq!((rig.open.len(), rig.dropped()), (1, 1), "all other tasks are answered");
    // A policy that uses speeds.
    rig.change("set-policy pool=7 policy=weighted-random");
    rig.change("set-speed workers=10 speed=100");
    rig.settle();
    rig.workers.done.clear();
    for _ in 0..600 {
        rig.send(7, None);
        rig.polls(2);
    }
    // The worker's share is 100 of 103, or 580 of 600 tasks.
    assert!(rig.workers.done[&10] > 450, "{:?}", rig.workers.done);
    // A policy that queues tasks again: of 120 tasks, 4 are at workers, 100 wait and 16 are refused.
    rig.change("set-policy pool=7 policy=jbsq(k=1)");
    rig.settle();
    (0..120).for_each(|_| rig.send(7, None));
    (0..10).for_each(|_| rig.poll(|| false));
    assert_eq!((rig.agent.waiting(), rig.agent.counters().read(Counter::Refused)), (100, 16));
    assert!(rig.changing.look().pools[0].policy.starts_with("jbsq(k=1"));
    rig.settle();
    assert_eq!((rig.open.len(), rig.dropped()), (1, 1));
    rig.assert_accounted();
}

// promise: scheduling.3
#[test]
fn unqueued_tasks_are_dropped_without_workers() {
    let mut rig = Rig::with_workers();
    (0..60).for_each(|_| rig.send(7, None));
    rig.poll(|| false);
    rig.poll(|| false);
    rig.change("set-policy pool=7 policy=random");
    // The workers leave while tasks still wait and before the agent can give them more. Of the 60 tasks, at most
    // 16 are in the workers' slots.
    rig.workers.attached.clear();
    rig.polls(20);
    assert_eq!((rig.agent.waiting(), rig.agent.held()), (0, 0));
    let drops = [DropReason::NoMember, DropReason::WorkerLost];
    let [waited, given] = drops.map(|reason| rig.agent.counters().dropped(reason));
    assert!(waited >= 60 - 16 && waited + given == 60, "{waited} and {given}");
    rig.assert_accounted();
}

// promise: membership.2
#[test]
fn invalid_change_is_refused() {
    let mut rig = Rig::with_workers();
    for (change, says) in [
        ("add-server ip=10.0.2.12", "server 10.0.2.12: an agent's workers are on its own host"),
        ("remove-server ip=10.0.2.11", "servers are a leaf's"),
        ("move-server ip=10.0.2.11 to=10.0.2.12", "servers are a leaf's"),
        (
            "add-workers server=10.0.2.12 pool=7 workers=20",
            "own host, 10.0.2.11; leave `server` out",
        ),
        ("add-workers pool=7 workers=13", "worker 13: exists already"),
        ("add-workers pool=8 workers=20", "pool 8: does not exist"),
        ("add-workers pool=7 workers=20-26", "limit is 10; restart with a larger `workers_max`"),
        ("remove-workers workers=9", "worker 9: does not exist"),
        ("set-policy pool=7 policy=horus-spine", "runs on a spine"),
        ("set-policy pool=7 policy=jbsq(k=5)", "k of at most 4, the `slots` of each worker's ring"),
        ("add-pool id=8 policy=jbsq(k=5)", "k of at most 4"),
        ("add-pool id=8 policy=horus shared-workers=true", "leave it out here"),
        ("add-pool id=7 policy=horus", "pool 7: exists already"),
        ("set-queue pool=8 queue=4", "pool 8: does not exist"),
        ("add-pool id=8 policy=horus key-file=/nowhere", "key-file=/nowhere: which can't be read"),
        ("agent set-queue pool=7 queue=4", "this node's core has no agent; leave `agent` out"),
    ] {
        let error = rig.refused(change);
        assert!(error.contains(says), "{change}: {error}");
    }
    rig.change("add-pool id=100 policy=random");
    rig.change("add-pool id=101 policy=random");
    let error = rig.refused("add-pool id=102 policy=random");
    assert!(error.contains("limit is 3; restart with a larger `pools_max`"), "{error}");
    rig.change("remove-workers workers=10");
    let error = rig.refused("add-workers pool=7 workers=10");
    assert!(error.contains("leaving: wait until it has left"), "{error}");
    rig.settle();
    assert_eq!(rig.workers_of(7, 200), range(11..=13));
    rig.assert_accounted();
}

// promise: membership.1
#[test]
fn random_changes_under_load_are_accounted_for() {
    for seed in 0..6 {
        let mut rig = Rig::with_workers();
        // Worker ids are 10 to 27. 1500 rounds try a change in one of six; more than 40 changes must be made.
        let random = |rng: &mut _| random_change(rng, 10, &[""]);
        rig.change_at_random(seed, (1500, 6, 40), random, |rig, rng| {
            for _ in 0..rng.random_range(0..4) {
                let worker = rng.random_bool(0.3).then(|| rng.random_range(10..26));
                rig.send(7 + rng.random_range(0..3), worker);
            }
            match rng.random_range(0..20) {
                0..=7 => _ = rig.attach(rng.random_range(10..26)),
                8 => _ = rig.workers.attached.pop_first(),
                9 => rig.now += HZ / 4,
                _ => {}
            }
            rig.poll(|| rng.random_bool(0.7));
        });
        rig.settle();
        // Pool 7 never leaves, but all of its workers may have left, and some of its members never attached.
        if rig.changing.control.membership().pool(7).unwrap().1.members.iter().flatten().count()
            == 0
        {
            rig.change("add-workers pool=7 workers=90");
        }
        let all: Vec<_> =
            rig.changing.control.membership().workers().map(|(_, worker)| worker.id).collect();
        all.into_iter().for_each(|id| _ = rig.attach(id));
        rig.settle();
        assert!(rig.answered > 200, "seed {seed}: {} answered", rig.answered);
        rig.assert_accounted();
    }
}
