//! Membership changes of a leaf with an agent on its core, under traffic. Workers of the local host come and
//! go on both sides, and every lost task is counted.
//!
//! A leaf schedules tasks over workers; an agent gives a host's tasks to its workers through shared memory. On one
//! core, the leaf sends tasks for local workers to its agent by a link in memory. A change of local workers concerns
//! the memberships (pools and workers) of both. Each change begins an epoch, a number that grows. The test plays the
//! clients, the local workers, a remote server and the clock.
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(unsafe_code, reason = "an allocator that counts")]

mod changing;
mod counting;
mod family;
mod frames;
mod rig;

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;

use rand::RngExt as _;
use wedjat::control::{ColocatedCores, LEAVING_NS, Membership};
use wedjat::io::Buf as _;
use wedjat::io::memory::{Frame, FramePool, RingPort};
use wedjat::reason::DropReason;
use wedjat::role::Colocated;
use wedjat::role::colocated::WireNetwork;
use wedjat::state::{Gauge, Member};
use wedjat::wire::arp;
use wedjat::wire::ether;
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp;

use changing::{ChangeRig, TrafficRig, random_change};
use family::{BOTH, Family, as_v4};
use frames::{CLIENT_MAC, LEAF_MACS};
use rig::{AgentHandles, ColocatedRig, Sizes, Workers};

/// Index of the port towards clients.
const CLIENTS: usize = 0;
/// Index of the port towards workers.
const WORKERS: usize = 1;
/// Time between two polls of the core.
const POLL_NS: u64 = 20_000;
/// Id of the remote server's worker, in pool 7.
const ELSEWHERE: u16 = 10;

/// Returns the configuration of the leaf and its agent: pool 7 with a remote worker and three workers of the agent.
fn text(state: &Path) -> String {
    format!(
        r#"
[leaf]
id = 1
cores = [1]
seed = 7
pools_max = 3
state = "{}"
[[port]]
device = "clients"
side = "clients"
ip = "10.0.1.1/24"
[[port]]
device = "workers"
side = "workers"
ip = "10.0.2.1/24"
[[pool]]
id = 7
policy = "round-robin"
[[server]]
ip = "10.0.2.11"
mac = "02:00:00:00:02:0b"
workers = "{ELSEWHERE}"
pool = 7
[agent]
name = "memory"
slots = 4
payload = 64
worker_timeout_ms = 0
pools_max = 3
workers_max = 8
[[agent.pool]]
id = 7
policy = "jbsq(k=2)"
queue = 64
workers = "20-22"
"#,
        state.display()
    )
}

/// A core that is leaf and agent, its control, its workers, and the far ends of its ports.
struct Rig {
    /// Family of the leaf's ports, clients and servers.
    family: Family,
    /// The leaf and its agent.
    role: Colocated<RingPort, FramePool>,
    /// Far ends of the leaf's ports.
    far: Vec<RingPort>,
    /// Pool of packet buffers.
    frames: FramePool,
    /// The workers' side of the agent.
    handles: AgentHandles,
    /// The control, and checks of the leaf's state file.
    changing: ChangeRig<ColocatedCores<Frame>>,
    /// Emulated time in ns. Each poll advances it.
    now: u64,
    /// Attached workers (`attached`). The `stuck` ones neither serve tasks nor leave. `done` counts served tasks.
    workers: Workers,
    /// Frames that the remote server has not answered.
    elsewhere: VecDeque<Vec<u8>>,
    /// Tasks sent and not yet answered.
    open: BTreeSet<u16>,
    /// Number of tasks answered.
    answered: u64,
    /// Number of the last task.
    next: u16,
}

impl Rig {
    /// Creates a rig without attached workers, and polls it.
    fn new(family: Family) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let sizes = Sizes { depth: 256, frames: 4096, bytes: 256 };
        let built = rig::colocated(rig::stages(&family.text(&text(&path)), None), sizes);
        let ColocatedRig { role, far, frames, handles, table, control } = built;
        let changing = ChangeRig::new(control, table, path, folder);
        let mut rig = Self {
            family,
            role,
            far,
            frames,
            handles,
            changing,
            now: 0,
            workers: Workers::default(),
            elsewhere: VecDeque::new(),
            open: BTreeSet::new(),
            answered: 0,
            next: 0,
        };
        rig.polls(50);
        rig
    }

    /// Creates a rig over IPv4 with the configured workers attached.
    fn with_workers() -> Self {
        Self::of(Family::V4)
    }

    /// Creates a rig of this family with the configured workers attached.
    fn of(family: Family) -> Self {
        let mut rig = Self::new(family);
        (20..23).for_each(|id| assert!(rig.attach(id)));
        rig.polls(50);
        rig
    }

    /// Claims the worker's place at the agent. Returns false if the agent has no place for it, or the place is taken.
    fn attach(&mut self, id: u16) -> bool {
        self.workers.attach(&self.handles, id)
    }

    /// Sends a client's task to a pool.
    fn send(&mut self, pool: u16) {
        self.next = self.next.wrapping_add(1);
        let task = frames::task(Header::new_task(pool, self.next));
        if self.far[CLIENTS].send(&self.family.frame(&task)) {
            self.open.insert(self.next);
        }
    }

    /// Polls the core once and checks that it allocates and frees no memory. Then each local worker serves one task,
    /// and the remote server all of its tasks, if a call of `chance` for it returns true.
    fn poll(&mut self, mut chance: impl FnMut() -> bool) {
        self.now += POLL_NS;
        let before = counting::calls();
        self.role.poll(self.now);
        assert_eq!(counting::calls() - before, 0, "a polling core takes and frees no memory");
        self.workers.work(&mut chance);
        while let Some(frame) = self.far[WORKERS].receive() {
            self.elsewhere.push_back(as_v4(frame.bytes()));
        }
        if chance() {
            std::mem::take(&mut self.elsewhere).iter().for_each(|frame| self.serve(frame));
        }
        while let Some(frame) = self.far[CLIENTS].receive() {
            self.take_at_client(&as_v4(frame.bytes()));
        }
    }

    /// Serves a task at the remote server.
    fn serve(&mut self, frame: &[u8]) {
        let Ok(datagram) = udp::parse(frame, false) else { return };
        let header = Header::parse(&frame[datagram.payload()..]).unwrap();
        assert_eq!(header.dst, ELSEWHERE);
        *self.workers.done.entry(ELSEWHERE).or_default() += 1;
        let reply = Header { code: Code::TaskDoneIdle, src: ELSEWHERE, dst: 0, qlen: 0, ..header };
        let reply = frames::reply_to(reply, LEAF_MACS[WORKERS]);
        assert!(self.far[WORKERS].send(&self.family.frame(&reply)));
    }

    /// Records a reply, which must be the only one to an open task, or answers an ARP request to the client.
    fn take_at_client(&mut self, frame: &[u8]) {
        if let Ok(ask) = arp::Packet::parse(frame) {
            let mut bytes = [0; arp::FRAME_LEN];
            ask.answer(CLIENT_MAC).emit(&mut bytes, ask.sender_mac);
            assert!(self.far[CLIENTS].send(&self.family.frame(&bytes)));
            return;
        }
        assert_eq!(ether::dst(frame), CLIENT_MAC);
        let datagram = udp::parse(frame, false).unwrap();
        let header = Header::parse(&frame[datagram.payload()..]).unwrap();
        assert!(self.open.remove(&header.seq), "an answer to an open task, once");
        self.answered += 1;
    }

    /// Sends a multiple of 20 tasks, at least `tasks`, to a pool. Returns the workers that serve them.
    fn workers_of(&mut self, pool: u16, tasks: usize) -> BTreeSet<u16> {
        self.workers.done.clear();
        for _ in 0..tasks.div_ceil(20) {
            (0..20).for_each(|_| self.send(pool));
            self.polls(20);
        }
        self.polls(100);
        self.workers.done.keys().copied().collect()
    }

    /// Returns the drops for this reason: the leaf's, then the agent's.
    fn dropped(&self, reason: DropReason) -> [u64; 2] {
        let leaf = self.role.leaf().stages().counters();
        [leaf, self.role.agent().counters()].map(|counters| counters.dropped(reason))
    }

    /// Returns the drops of leaf and agent together.
    fn dropped_total(&self) -> u64 {
        let leaf = self.role.leaf().stages().counters();
        leaf.dropped_total() + self.role.agent().counters().dropped_total()
    }

    /// Returns the agent's membership.
    fn agents(&self) -> &Membership {
        self.changing.control.of_agent().unwrap()
    }

    /// Returns the ids of the agent's workers, including leaving ones.
    fn agents_workers(&self) -> BTreeSet<u16> {
        self.agents().workers().map(|(_, worker)| worker.id).collect()
    }

    /// Returns the number of tasks that the leaf holds or counts as outstanding.
    fn leaf_has(&self) -> u64 {
        let stages = self.role.leaf().stages();
        let pools = (0..stages.network().pools()).filter_map(|pool| stages.dispatcher(pool));
        let at_workers = pools.map(|pool| {
            let members = (0..pool.view().members() as u16).map(Member);
            members.map(|member| u64::from(pool.view().outstanding(member))).sum::<u64>()
        });
        stages.counters().read(Gauge::Held) + at_workers.sum::<u64>()
    }

    /// Checks the end of a test: every task is answered or counted as dropped, no packet is left, and the state file
    /// showed the membership of each epoch.
    fn assert_accounted(&mut self) {
        // Tasks dropped at the agent stay outstanding at the leaf until it writes them off. That takes time, so each
        // round skips 10 ms.
        for _ in 0..1000 {
            self.polls(20);
            if self.role.held() == 0 && self.leaf_has() == 0 {
                break;
            }
            self.now += rig::TICKS_HZ / 100;
        }
        self.polls(20);
        for counters in [self.role.leaf().stages().counters(), self.role.agent().counters()] {
            assert!(counters.balances());
            assert_eq!(counters.read(Gauge::Held), 0);
        }
        assert_eq!(self.frames.in_use(), 0);
        assert_eq!(self.open.len() as u64, self.dropped_total(), "{:?}", self.open);
        self.changing.assert_shown();
    }
}

/// [`TrafficRig::settle`] polls until the core has applied all changes and no member is leaving.
impl TrafficRig for Rig {
    type Cores = ColocatedCores<Frame>;

    /// Rounds of settling after which each further round also skips [`LEAVING_NS`] / 100.
    const ROUNDS_BEFORE_JUMPS: usize = 20;

    fn changing(&mut self) -> &mut ChangeRig<ColocatedCores<Frame>> {
        &mut self.changing
    }

    fn now(&mut self) -> &mut u64 {
        &mut self.now
    }

    fn polls(&mut self, count: usize) {
        (0..count).for_each(|_| self.poll(|| true));
    }
}

// promise: membership.1
#[test]
fn local_workers_change_at_leaf_and_agent() {
    for family in BOTH {
        change_local_workers(family);
    }
}

/// Adds and removes workers of the leaf's own core, under tasks of this family.
fn change_local_workers(family: Family) {
    let mut rig = Rig::of(family);
    assert_eq!(rig.workers_of(7, 200), [10, 20, 21, 22].into());
    let epoch = rig.change("add-workers pool=7 workers=30-31 speed=2");
    assert!(rig.changing.control.acknowledged() < epoch);
    assert!(rig.attach(30), "before the core knows the change");
    rig.settle();
    assert_eq!(rig.changing.control.acknowledged(), epoch);
    assert_eq!(rig.agents_workers(), [20, 21, 22, 30, 31].into());
    // One worker has a place but is not attached.
    assert_eq!(rig.workers_of(7, 400), [10, 20, 21, 22, 30].into());
    assert_eq!(rig.role.agent().registered(), 4);
    assert!(rig.attach(31));
    rig.polls(20);
    assert_eq!(rig.workers_of(7, 400), [10, 20, 21, 22, 30, 31].into());
    // The leaf stops sending to the workers first. The agent releases them after they have answered.
    rig.workers.stuck.extend([20, 21, 22, 30, 31]); // any worker may have the leaf's tasks for worker 20
    (0..12).for_each(|_| rig.send(7));
    rig.polls(5);
    rig.change("remove-workers workers=20,30");
    rig.polls(20);
    rig.poll_control();
    assert!(rig.agents().workers().any(|(_, worker)| worker.id == 20 && !worker.is_leaving));
    rig.workers.stuck.clear();
    rig.settle();
    assert_eq!(rig.agents_workers(), [21, 22, 31].into());
    assert_eq!(rig.workers.ids(), [21, 22, 31].into(), "removed workers got the signal to stop");
    assert_eq!(rig.workers_of(7, 400), [10, 21, 22, 31].into());
    // New workers get free places on both sides. At the leaf, the indices 1 and 4 of workers 20 and 30 are free. The
    // change names the agent as its server, by the address that stands for this host's own workers.
    let own_host = WireNetwork::of(family == Family::V6).agent;
    rig.change(&format!("add-workers server={own_host} pool=7 workers=40-44"));
    assert!((40..45).all(|id| rig.attach(id)));
    rig.settle();
    assert_eq!([40, 41, 42].map(|id| rig.index_of(id)), [1, 4, 6]);
    assert!(rig.workers_of(7, 600).is_superset(&(40..45).collect()));
    assert_eq!((rig.dropped_total(), rig.open.len()), (0, 0));
    rig.assert_accounted();
}

// promise: membership.1
#[test]
fn removing_all_local_workers_loses_nothing() {
    let mut rig = Rig::with_workers();
    (0..40).for_each(|_| rig.send(7));
    rig.poll(|| false);
    rig.change("remove-workers workers=20-22");
    for _ in 0..40 {
        rig.send(7);
        rig.poll(|| false);
        rig.poll_control();
    }
    rig.settle();
    assert_eq!((rig.agents_workers().len(), rig.workers.attached.len()), (0, 0));
    assert_eq!(rig.workers_of(7, 40), [10].into());
    assert_eq!((rig.dropped_total(), rig.open.len()), (0, 0));
    rig.assert_accounted();
}

// promise: membership.1
#[test]
fn leaf_does_not_choose_a_returned_leaving_worker() {
    let mut rig = Rig::with_workers();
    rig.workers.stuck.insert(21);
    (0..8).for_each(|_| rig.send(7));
    rig.polls(5);
    rig.change("remove-workers workers=20-21");
    rig.polls(10);
    // One worker's process ends and a new one takes its place, while worker 21 still has tasks.
    drop(rig.workers.attached.remove(&20));
    rig.polls(10);
    // While worker 20 is leaving, its place is free again, but the leaf must not choose it.
    let is_back = rig.attach(20);
    rig.polls(10);
    assert!(is_back);
    (0..40).for_each(|_| rig.send(7));
    rig.polls(20);
    let leaf = rig.role.leaf().stages();
    let given = leaf.network().worker(20).unwrap();
    let view = leaf.dispatcher(usize::from(given.pool)).unwrap().view();
    assert!(!view.is_active(given.member), "the leaf sends no task to worker 20");
    rig.workers.stuck.clear();
    rig.settle();
    rig.assert_accounted();
}

// promise: membership.3
#[test]
fn drained_local_workers_serve_only_their_own_tasks() {
    let mut rig = Rig::with_workers();
    let is_drained = |rig: &Rig, id| rig.changing.control.workers_here()[&id].is_drained;
    // The remaining workers serve the agent's tasks. The drained worker gets no more.
    (0..40).for_each(|_| rig.send(7));
    rig.poll(|| false);
    rig.change("drain workers=20");
    rig.settle();
    assert!(is_drained(&rig, 20));
    assert_eq!(rig.changing.control.workers_here()[&20].held, 0);
    assert_eq!(rig.workers_of(7, 200), [10, 21, 22].into());
    // A new process in the place of a drained worker gets no task.
    drop(rig.workers.attached.remove(&20));
    rig.polls(20);
    assert!(rig.attach(20));
    assert_eq!(rig.workers_of(7, 200), [10, 21, 22].into());
    // The last active workers are drained. They still serve their own tasks and those of workers drained
    // before.
    rig.workers.stuck.extend([21, 22]);
    (0..20).for_each(|_| rig.send(7));
    rig.polls(5);
    rig.change("drain workers=21-22");
    rig.polls(20);
    rig.poll_control();
    assert!(!is_drained(&rig, 21) && rig.changing.control.workers_here()[&21].held > 0);
    rig.workers.stuck.clear();
    rig.settle();
    rig.polls(20);
    rig.settle();
    assert!(is_drained(&rig, 21) && is_drained(&rig, 22));
    assert_eq!(rig.workers_of(7, 60), [10].into());
    rig.change("undrain workers=20-22");
    rig.settle();
    assert_eq!(rig.workers_of(7, 200), [10, 20, 21, 22].into());
    assert_eq!((rig.dropped_total(), rig.open.len()), (0, 0));
    rig.assert_accounted();
}

#[test]
fn drained_local_worker_serves_after_others_left() {
    let mut rig = Rig::with_workers();
    rig.workers.stuck.extend([21, 22]);
    (0..40).for_each(|_| rig.send(7));
    rig.polls(5);
    rig.change("drain workers=20");
    rig.polls(20);
    rig.poll_control();
    // The workers that could serve the queued tasks leave. No worker but the drained one remains for these.
    (21..23).for_each(|id| drop(rig.workers.attached.remove(&id)));
    rig.workers.stuck.clear();
    rig.polls(20);
    rig.settle();
    rig.polls(50);
    rig.settle();
    // Only the tasks in the rings of 21 and 22 are lost.
    let [_, lost] = rig.dropped(DropReason::WorkerLost);
    assert!(lost > 0 && rig.dropped_total() == lost && rig.open.len() as u64 == lost, "{lost}");
    rig.assert_accounted();
    rig.settle();
    assert!(rig.changing.control.workers_here()[&20].is_drained, "the queue is empty");
}

// promise: membership.1
#[test]
fn pools_policies_and_queues_change_on_both_sides() {
    let mut rig = Rig::with_workers();
    rig.change("agent set-policy pool=7 policy=jbsq(k=1)");
    let epoch = rig.change("agent set-queue pool=7 queue=4 overflow=refuse");
    rig.change("set-policy pool=7 policy=random");
    rig.settle();
    assert!(rig.changing.control.acknowledged() > epoch);
    let pool = rig.agents().pool(7).unwrap().1;
    let settings = &pool.settings;
    assert!(settings.policy.to_string().starts_with("jbsq(k=1") && settings.queue.tasks == 4);
    assert!(rig.changing.look().pools[0].policy.starts_with("random"));
    rig.change("agent set-queue pool=7 queue=64");
    // A pool with local workers only.
    rig.change("add-pool id=9 policy=jsq");
    let error = rig.refused("add-workers pool=9 workers=50");
    assert!(error.contains("`agent add-pool id=9 policy=…` adds it"), "{error}");
    rig.change("agent add-pool id=9 policy=cfcfs");
    rig.change("add-workers pool=9 workers=50-51");
    assert!([50, 51].into_iter().all(|id| rig.attach(id)));
    rig.settle();
    assert_eq!(rig.workers_of(9, 60), [50, 51].into());
    assert_eq!(rig.workers_of(7, 200), [10, 20, 21, 22].into());
    rig.change("set-policy pool=7 policy=weighted-random");
    rig.change("set-speed workers=20 speed=100");
    rig.settle();
    let speed = |membership: &Membership| {
        membership.workers().find(|(_, worker)| worker.id == 20).unwrap().1.speed
    };
    assert_eq!([speed(rig.changing.control.membership()), speed(rig.agents())], [100.0; 2]);
    // A leaving pool still serves its queued tasks. The agent's pool is removed with the leaf's.
    (0..20).for_each(|_| rig.send(9));
    rig.poll(|| false);
    rig.change("remove-pool id=9");
    rig.settle();
    assert!(rig.agents().pool(9).is_none());
    assert_eq!(rig.workers.ids(), [20, 21, 22].into());
    assert_eq!((rig.dropped_total(), rig.open.len()), (0, 0));
    // A new pool takes the same id and place.
    rig.change("add-pool id=9 policy=jsq");
    rig.change("agent add-pool id=9 policy=jbsq(k=1)");
    rig.change("add-workers pool=9 workers=50");
    assert!(rig.attach(50));
    rig.settle();
    assert_eq!(rig.workers_of(9, 20), [50].into());
    rig.assert_accounted();
}

// promise: membership.1
#[test]
fn unresponsive_worker_is_removed_on_both_sides() {
    let mut rig = Rig::with_workers();
    rig.workers.stuck.insert(20);
    (0..8).for_each(|_| rig.send(7));
    rig.polls(20);
    rig.change("remove-workers workers=20");
    rig.now += LEAVING_NS / 2;
    rig.polls(20);
    rig.poll_control();
    rig.poll_control();
    assert!(!rig.changing.control.is_settled());
    rig.settle();
    assert_eq!(rig.agents_workers(), [21, 22].into());
    assert!(
        rig.workers.attached[&20].0.receiver().is_stopped(),
        "the worker has the signal to stop"
    );
    let [_, lost] = rig.dropped(DropReason::WorkerLost);
    assert!(lost > 0 && rig.dropped_total() == lost, "{lost} of {}", rig.dropped_total());
    rig.workers.stuck.clear();
    rig.assert_accounted();
}

// promise: membership.2
#[test]
fn combined_changes_reach_the_agent_per_worker() {
    let mut rig = Rig::with_workers();
    rig.change("add-pool id=8 policy=jsq");
    rig.change("agent add-pool id=8 policy=jsq");
    rig.settle();
    // Returns id, pool and speed of each of the agent's workers.
    let speeds = |rig: &Rig| -> Vec<_> {
        let agents = rig.agents();
        let mut speeds: Vec<_> = agents
            .workers()
            .map(|(pool, worker)| {
                (worker.id, agents.pools[pool].as_ref().unwrap().id, worker.speed)
            })
            .collect();
        speeds.sort_by_key(|&(id, ..)| id);
        speeds
    };
    let texts = [
        "add-workers pool=7 workers=30 speed=2",
        "add-workers pool=8 workers=31 speed=3",
        "set-speed workers=20 speed=4",
    ];
    let changes = texts.map(|text| text.parse().unwrap());
    let bad = [&changes[..], &["add-workers pool=9 workers=32".parse().unwrap()]].concat();
    let before = speeds(&rig);
    assert!(rig.changing.control.apply_all(&bad).is_err());
    assert_eq!(speeds(&rig), before);
    rig.changing.control.apply_all(&changes).unwrap();
    rig.changing.expect();
    let expected = [(20, 7, 4.0), (21, 7, 1.0), (22, 7, 1.0), (30, 7, 2.0), (31, 8, 3.0)];
    assert_eq!(speeds(&rig), expected);
    assert!([30, 31].into_iter().all(|id| rig.attach(id)));
    rig.settle();
    assert_eq!(rig.workers_of(8, 100), [31].into());
    rig.assert_accounted();
}

// promise: membership.2
#[test]
fn invalid_change_is_refused() {
    let mut rig = Rig::with_workers();
    for (change, says) in [
        ("add-workers pool=7 workers=22", "worker 22: exists already"),
        ("add-workers pool=7 workers=10", "worker 10: exists already"),
        ("add-workers pool=8 workers=30", "pool 8: does not exist"),
        ("add-workers pool=7 workers=30-35", "limit is 8; restart with a larger `workers_max`"),
        ("remove-server ip=169.254.77.2", "it stands for this host's own workers"),
        ("move-server ip=169.254.77.2 to=10.0.2.77", "it stands for this host's own workers"),
        ("agent add-workers pool=7 workers=30", "leave `agent` out"),
        ("agent remove-workers workers=20", "leave `agent` out"),
        ("agent set-speed workers=20 speed=2", "leave `agent` out"),
        ("agent add-pool id=9 policy=jsq", "agent: pool 9: add it to the leaf first"),
        ("agent add-pool id=7 policy=jsq key-file=/k", "messages inside a process need no proof"),
        ("agent remove-pool id=7", "agent: pool 7: it has workers; remove them first"),
        ("agent set-policy pool=7 policy=jbsq(k=5)", "k of at most 4"),
        ("agent agent set-queue pool=7 queue=4", "`agent`; allowed: add-server"),
        ("drain workers=60", "worker 60: does not exist"),
        ("agent drain workers=20", "leave `agent` out"),
    ] {
        let (before, error) = (rig.agents().epoch, rig.refused(change));
        assert!(error.contains(says), "{change}: {error}");
        assert_eq!(rig.agents().epoch, before, "{change}");
    }
    rig.settle();
    assert_eq!(rig.workers_of(7, 200), [10, 20, 21, 22].into());
    rig.assert_accounted();
}

// promise: membership.1
#[test]
fn random_changes_under_load_are_accounted_for() {
    for seed in 0..6 {
        let mut rig = Rig::with_workers();
        // Worker ids are 20 to 37. 1500 rounds try a change in one of six; more than 40 changes must be made.
        let random = |rng: &mut _| random_change(rng, 20, &["", "agent "]);
        rig.change_at_random(seed, (1500, 6, 40), random, |rig, rng| {
            for _ in 0..rng.random_range(0..4) {
                rig.send(7 + rng.random_range(0..3));
            }
            match rng.random_range(0..20) {
                0..=7 => _ = rig.attach(rng.random_range(20..36)),
                8 => _ = rig.workers.attached.pop_first(),
                9 => rig.now += rig::TICKS_HZ / 4,
                _ => {}
            }
            rig.poll(|| rng.random_bool(0.7));
        });
        // Tasks may wait in pools without workers. The removal of the pools drops these tasks.
        (8..10).for_each(|id| _ = rig.try_change(&format!("remove-pool id={id}")));
        rig.settle();
        let of_leaf = rig.changing.control.membership().workers().map(|(_, worker)| worker.id);
        let local: BTreeSet<_> = of_leaf.filter(|&id| id != ELSEWHERE).collect();
        assert_eq!(local, rig.agents_workers(), "leaf and agent have the same local workers");
        local.into_iter().for_each(|id| _ = rig.attach(id));
        rig.settle();
        assert!(rig.answered > 200, "seed {seed}: {} answered", rig.answered);
        rig.assert_accounted();
    }
}
