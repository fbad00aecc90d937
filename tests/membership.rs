//! Membership changes of a leaf under traffic: its cores apply the changes between bursts, and every task is
//! answered or counted.
//!
//! A leaf schedules the tasks of a rack. Its membership is its pools, servers (worker hosts) and workers; each change
//! begins an epoch, a number that grows. Each worker has a place, its index in its pool's tables. The test is the
//! client, the servers and the clock of a leaf with two cores.
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(unsafe_code, reason = "an allocator that counts")]

mod changing;
mod counting;
mod frames;
mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rand::RngExt as _;
use wedjat::control::{LEAVING_NS, LeafCores};
use wedjat::io::Buf as _;
use wedjat::io::memory::{FramePool, RingPort};
use wedjat::role::Leaf;
use wedjat::state::Gauge;
use wedjat::wire::arp;
use wedjat::wire::ether;
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp::{self, Flow};

use changing::{ChangeRig, TrafficRig};
use frames::{CLIENT, CLIENT_MAC, LEAF_MACS, arp_answer, mac_of};
use rig::{CoreRig, Sizes};

/// Index of the port towards clients.
const CLIENTS: usize = 0;
/// Index of the port towards workers.
const WORKERS: usize = 1;
/// Time between two polls of a core.
const POLL_NS: u64 = 10_000;

/// Returns the leaf's configuration: two servers with workers 10 to 17 in pool 7.
fn text(state: &Path) -> String {
    format!(
        r#"
[leaf]
id = 1
cores = [1, 2]
seed = 7
pools_max = 6
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
policy = "horus"
[[server]]
ip = "10.0.2.11"
workers = "10-13"
pool = 7
[[server]]
ip = "10.0.2.12"
workers = "14-17"
pool = 7
"#,
        state.display()
    )
}

/// Two cores of a leaf, their control, and the far ends of their ports.
struct Rig {
    /// The leaf's cores.
    cores: Vec<Leaf<RingPort, FramePool>>,
    /// Far ends of the cores' ports, by core and port ([`CLIENTS`] or [`WORKERS`]).
    far: Vec<Vec<RingPort>>,
    /// The control, and checks of the leaf's state file.
    changing: ChangeRig<LeafCores>,
    /// Time of the last poll, in ns.
    now: u64,
    /// Answers of servers that are not sent yet: due time in ns, core and frame.
    pending_answers: Vec<(u64, usize, Vec<u8>)>,
    /// Tasks sent and not yet answered: sequence number and pool.
    open: BTreeMap<u16, u16>,
    /// Number of tasks answered.
    answered: u64,
    /// Number of tasks sent to each worker so far.
    given: BTreeMap<u16, u64>,
    /// Sequence number of the last task.
    last_seq: u16,
}

impl Rig {
    /// Creates a rig with the policy `horus`.
    fn new() -> Self {
        Self::of("\"horus\"")
    }

    /// Creates a rig whose pool has this policy, in quotes. Further lines of `policy` become lines of the pool. Polls
    /// the cores, so that they learn the servers' MAC addresses.
    fn of(policy: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let sizes = Sizes { depth: 256, frames: 4096, bytes: 256 };
        let text = text(&path).replace("\"horus\"", policy);
        let (built, table, control) = rig::leaves(rig::stages(&text, None), sizes);
        let (cores, far) = built.into_iter().map(|CoreRig { leaf, far, .. }| (leaf, far)).unzip();
        let mut rig = Self {
            cores,
            far,
            changing: ChangeRig::new(control, table, path, folder),
            now: 0,
            pending_answers: Vec::new(),
            open: BTreeMap::new(),
            answered: 0,
            given: BTreeMap::new(),
            last_seq: 0,
        };
        rig.polls(50);
        rig
    }

    /// Sends a client's task for a pool to one of the cores. Sends nothing if the port is full.
    fn send(&mut self, core: usize, pool: u16) {
        self.last_seq = self.last_seq.wrapping_add(1);
        let header = Header::new_task(pool, self.last_seq);
        if self.far[core][CLIENTS].send(&frames::task(header)) {
            self.open.insert(self.last_seq, pool);
        }
    }

    /// Polls each core once and checks that it allocates and frees no memory. Servers answer ARP at the next poll and
    /// tasks after `work_ns`.
    fn poll(&mut self, work_ns: u64) {
        self.now += POLL_NS;
        for core in 0..self.cores.len() {
            while let Some(at) =
                self.pending_answers.iter().position(|&(due, to, _)| to == core && due <= self.now)
            {
                let (_, _, frame) = self.pending_answers.remove(at);
                self.far[core][WORKERS].send(&frame);
            }
            let before = counting::calls();
            self.cores[core].poll(self.now);
            assert_eq!(counting::calls() - before, 0, "a polling core takes and frees no memory");
            while let Some(frame) = self.far[core][WORKERS].receive() {
                self.serve(core, frame.bytes(), work_ns);
            }
            while let Some(frame) = self.far[core][CLIENTS].receive() {
                self.take_at_client(core, frame.bytes());
            }
        }
    }

    /// Handles a packet at a server. Schedules the reply to a task after `work_ns`, and the answer to an ARP request at
    /// the next poll.
    fn serve(&mut self, core: usize, frame: &[u8], work_ns: u64) {
        if ether::ether_type(frame) == ether::ARP {
            let ask = arp::Packet::parse(frame).unwrap();
            self.pending_answers.push((0, core, arp_answer(&ask, mac_of(ask.target))));
            return;
        }
        let datagram = udp::parse(frame, false).unwrap();
        let header = Header::parse(&frame[datagram.payload()..]).unwrap();
        let (worker, server) = (header.dst, datagram.dst);
        assert_eq!(ether::dst(frame), mac_of(server), "the MAC address is the server's");
        *self.given.entry(worker).or_default() += 1;
        let reply = Header { code: Code::TaskDoneIdle, src: worker, dst: 0, qlen: 0, ..header };
        let flow = Flow {
            src_mac: mac_of(server),
            dst_mac: LEAF_MACS[WORKERS],
            src: server,
            dst: CLIENT,
            src_port: 1234,
            dst_port: 40_000,
        };
        let len = reply.len() + 9;
        let mut bytes = vec![0; udp::PAYLOAD + len];
        reply.emit(&mut bytes[udp::PAYLOAD..]);
        flow.emit(&mut bytes, len);
        self.pending_answers.push((self.now + work_ns, core, bytes));
    }

    /// Handles a packet at the client: records a reply, or answers an ARP request.
    fn take_at_client(&mut self, core: usize, frame: &[u8]) {
        if let Ok(ask) = arp::Packet::parse(frame) {
            self.far[core][CLIENTS].send(&arp_answer(&ask, CLIENT_MAC));
            return;
        }
        let datagram = udp::parse(frame, false).unwrap();
        let header = Header::parse(&frame[datagram.payload()..]).unwrap();
        assert!(self.open.remove(&header.seq).is_some(), "an answer to an open task, once");
        self.answered += 1;
    }

    /// Returns the number of packets dropped by both cores.
    fn dropped(&self) -> u64 {
        self.cores.iter().map(|core| core.stages().counters().dropped_total()).sum()
    }

    /// Sends a multiple of 20 tasks, at least `tasks`, to a pool. Returns the workers that get some of them.
    fn workers_of(&mut self, pool: u16, tasks: usize) -> BTreeSet<u16> {
        let before = self.given.clone();
        // Tasks arrive in groups, so that the first idle worker does not get all of them.
        for _ in 0..tasks.div_ceil(20) {
            (0..20).for_each(|task| self.send(task % 2, pool));
            self.polls(10);
        }
        self.polls(300);
        let has_more = |(worker, count): (&u16, &u64)| before.get(worker) != Some(count);
        self.given.iter().filter(|&entry| has_more(entry)).map(|(&worker, _)| worker).collect()
    }

    /// Checks the end of a test: every task is answered or counted as dropped, and no packet is left.
    fn assert_accounted(&mut self) {
        let held = |core: &Leaf<_, _>| core.stages().counters().read(Gauge::Held) > 0;
        self.polls(200);
        for _ in 0..100 {
            if self.cores.iter().any(held) {
                self.polls(200);
            }
        }
        for core in &self.cores {
            let counters = core.stages().counters();
            assert!(counters.balances());
            assert_eq!(counters.read(Gauge::Held), 0);
        }
        assert_eq!(self.open.len() as u64, self.dropped(), "{:?}", self.open);
        self.changing.assert_shown();
    }
}

/// Gives the rig `change` (makes a valid change), `refused` (returns the error of an invalid one) and `settle` (polls
/// until all changes are complete).
impl TrafficRig for Rig {
    type Cores = LeafCores;

    // Number of rounds of `settle` after which each round also advances the time.
    const ROUNDS_BEFORE_JUMPS: usize = 200;

    fn changing(&mut self) -> &mut ChangeRig<LeafCores> {
        &mut self.changing
    }

    fn now(&mut self) -> &mut u64 {
        &mut self.now
    }

    fn polls(&mut self, count: usize) {
        (0..count).for_each(|_| self.poll(50_000));
    }
}

/// Returns the ids as a set.
fn range(ids: std::ops::RangeInclusive<u16>) -> BTreeSet<u16> {
    ids.collect()
}

// promise: membership.1
#[test]
fn membership_changes_keep_other_places() {
    let mut rig = Rig::new();
    assert_eq!(rig.workers_of(7, 200), range(10..=17));
    rig.change("add-server ip=10.0.2.13");
    let epoch = rig.change("add-workers server=10.0.2.13 pool=7 workers=20-23");
    assert!(rig.changing.control.acknowledged() < epoch);
    rig.settle();
    assert_eq!(rig.changing.control.acknowledged(), epoch);
    assert_eq!(rig.workers_of(7, 400), &range(10..=17) | &range(20..=23));
    rig.change("remove-server ip=10.0.2.11");
    rig.settle();
    assert_eq!(rig.workers_of(7, 400), &range(14..=17) | &range(20..=23));
    // The first eight indices were those of 10 to 17, and the next four those of 20 to 23.
    assert_eq!([14, 17, 20, 23].map(|worker| rig.index_of(worker)), [4, 7, 8, 11]);
    // New workers get free places, those of 10 to 13 first, and ARP resolves their server.
    rig.change("add-server ip=10.0.2.14");
    rig.change("add-workers server=10.0.2.14 pool=7 workers=30-34");
    rig.settle();
    assert_eq!([30, 33, 34].map(|worker| rig.index_of(worker)), [0, 3, 12]);
    assert!(rig.workers_of(7, 600).is_superset(&range(30..=34)));
    assert_eq!((rig.dropped(), rig.open.len()), (0, 0));
    rig.assert_accounted();
}

// promise: membership.1
#[test]
fn leaving_worker_finishes_and_dead_one_is_removed() {
    let mut rig = Rig::new();
    // Service takes 5 ms, so that all tasks are still at workers.
    for task in 0..16 {
        rig.send(task % 2, 7);
        rig.poll(5_000_000);
    }
    assert_eq!(rig.open.len(), 16);
    rig.change("remove-workers workers=10-13");
    rig.polls(100);
    rig.poll_control();
    assert!(!rig.changing.control.is_settled(), "the leaving workers have tasks");
    assert!(rig.changing.control.membership().worker(10).is_some());
    rig.polls(500);
    rig.settle();
    assert!(rig.changing.control.membership().worker(10).is_none());
    assert_eq!((rig.dropped(), rig.open.len()), (0, 0));
    // The next worker answers after twice `LEAVING_NS`, the time after which the leaf removes a leaving worker.
    rig.send(0, 7);
    rig.poll(2 * LEAVING_NS);
    rig.change("remove-server ip=10.0.2.12");
    rig.polls(100);
    rig.poll_control();
    assert!(!rig.changing.control.is_settled());
    rig.now += LEAVING_NS + 1;
    rig.settle();
    assert_eq!(rig.changing.control.membership().workers().count(), 0);
    // The leaf drops the late reply of the removed worker.
    rig.now += LEAVING_NS;
    rig.polls(10);
    assert_eq!((rig.dropped(), rig.open.len()), (1, 1));
    rig.assert_accounted();
}

// promise: membership.1
#[test]
fn moved_server_keeps_its_workers_and_their_places() {
    let mut rig = Rig::new();
    rig.workers_of(7, 50);
    rig.change("move-server ip=10.0.2.12 to=10.0.2.77");
    rig.settle();
    assert_eq!(rig.workers_of(7, 200), range(10..=17));
    assert_eq!(rig.changing.control.membership().worker(14), Some((0, 4)));
    assert_eq!((rig.dropped(), rig.open.len()), (0, 0));
    rig.assert_accounted();
}

// promise: membership.1
#[test]
fn pools_come_and_leave_under_their_own_policies() {
    let mut rig = Rig::new();
    rig.send(0, 9);
    rig.polls(10);
    assert_eq!(rig.dropped(), 1, "no such pool");
    rig.change("add-pool id=9 policy=jbsq(k=1) queue=64");
    rig.change("add-server ip=10.0.2.13");
    rig.change("add-workers server=10.0.2.13 pool=9 workers=40-41");
    rig.settle();
    assert_eq!(rig.workers_of(9, 40), range(40..=41));
    assert_eq!(rig.workers_of(7, 200), range(10..=17));
    // A leaving pool still serves its queued tasks.
    for task in 0..20 {
        rig.send(task % 2, 9);
    }
    rig.polls(1);
    rig.change("remove-pool id=9");
    rig.settle();
    assert_eq!((rig.dropped(), rig.open.len()), (1, 1));
    assert!(rig.changing.control.membership().pool(9).is_none());
    // A new pool takes the place of the removed one, index 1.
    rig.change("add-pool id=11 policy=round-robin");
    rig.change("add-workers server=10.0.2.13 pool=11 workers=40-42");
    rig.settle();
    assert_eq!(rig.changing.control.membership().pool(11).unwrap().0, 1);
    assert_eq!(rig.workers_of(11, 40), range(40..=42));
    rig.assert_accounted();
}

#[test]
fn members_drained_with_their_new_pool_get_nothing() {
    let mut rig = Rig::new();
    // One epoch has all of these changes.
    let texts = [
        "add-pool id=9 policy=jsq",
        "add-server ip=10.0.2.13",
        "add-workers server=10.0.2.13 pool=9 workers=40-43",
        "drain workers=41-42",
    ];
    let changes = texts.map(|text| text.parse().unwrap());
    rig.changing.control.apply_all(&changes).unwrap();
    rig.changing.expect();
    rig.settle();
    assert_eq!(rig.workers_of(9, 200), [40, 43].into());
    rig.change("undrain workers=42");
    rig.settle();
    assert_eq!(rig.workers_of(9, 200), [40, 42, 43].into());
    rig.assert_accounted();
}

// promise: membership.1
#[test]
fn policy_speed_and_queue_limit_change() {
    let mut rig = Rig::new();
    rig.change("set-policy pool=7 policy=weighted-random");
    rig.change("set-speed workers=10 speed=100");
    rig.settle();
    rig.given.clear();
    rig.workers_of(7, 600);
    // Seven workers have speed 1. So the share of worker 10 is 100 of 107, or 560 of 600 tasks.
    assert!(rig.given[&10] > 450, "{:?}", rig.given);
    rig.change("set-policy pool=7 policy=jbsq(k=1)");
    rig.change("set-queue pool=7 queue=4");
    rig.settle();
    for _ in 0..40 {
        rig.send(0, 7);
    }
    rig.polls(100);
    // jbsq(k=1) gives each of the 8 workers one task.
    assert_eq!(rig.dropped(), 40 - 8 - 4, "8 tasks at workers and 4 in the queue remain");
    assert!(rig.changing.look().pools[0].policy.starts_with("jbsq(k=1"));
    rig.assert_accounted();
}

// promise: membership.2
#[test]
fn invalid_change_is_refused() {
    let mut rig = Rig::new();
    for (change, says) in [
        ("remove-server ip=10.0.2.99", "server 10.0.2.99: does not exist"),
        ("add-server ip=10.0.2.11", "server 10.0.2.11: exists already"),
        ("add-server ip=10.0.2.1", "the node's own address"),
        ("add-server ip=224.0.0.1", "not a host's address"),
        ("add-server ip=192.168.7.7", "no port on the workers' side reaches server 192.168.7.7"),
        ("move-server ip=10.0.2.11 to=10.0.2.12", "server 10.0.2.12: exists already"),
        ("add-workers server=10.0.2.11 pool=7 workers=17", "worker 17: exists already"),
        ("add-workers server=10.0.2.11 pool=8 workers=18", "pool 8: does not exist"),
        (
            "add-workers pool=7 workers=18",
            "no `server` in `add-workers`; allowed: add-workers server=…",
        ),
        (
            "add-workers server=10.0.2.11 pool=7 workers=100-160",
            "limit is 64; restart with a larger `workers_max`",
        ),
        ("remove-workers workers=9", "worker 9: does not exist"),
        ("set-policy pool=7 policy=horus-spine", "runs on a spine"),
        ("set-policy pool=7 policy=jbsq(k=0)", "k"),
        ("set-queue pool=7 queue=60000", "restart with a larger `queue`"),
        ("add-pool id=7 policy=horus", "pool 7: exists already"),
    ] {
        let error = rig.refused(change);
        assert!(error.contains(says), "{change}: {error}");
    }
    // With pool 7, these are six pools, the limit.
    for id in 100..105 {
        rig.change(&format!("add-pool id={id} policy=random"));
    }
    rig.settle();
    let error = rig.refused("add-pool id=107 policy=random");
    assert!(error.contains("limit is 6; restart with a larger `pools_max`"), "{error}");
    rig.change("remove-workers workers=10");
    let error = rig.refused("add-workers server=10.0.2.11 pool=7 workers=10");
    assert!(error.contains("leaving: wait until it has left"), "{error}");
    rig.settle();
    rig.assert_accounted();
}

// promise: scheduling.6
#[test]
fn message_reporting_pool_refuses_policy_change_and_spine() {
    let mut rig = Rig::of("\"jiq\"\nreports = \"messages\"");
    for (change, says) in [
        ("set-policy pool=7 policy=horus", "restart leaves and agents with the other one"),
        ("set-policy pool=7 policy=jbt", "restart leaves and agents with the other one"),
        ("link-pool pool=7 spine=3 ip=10.0.1.9", "signals repeat what replies report"),
    ] {
        let error = rig.refused(change);
        assert!(error.contains(says), "{change}: {error}");
    }
    // A pool whose workers report in replies may change its policy.
    rig.change("add-pool id=8 policy=horus");
    rig.change("set-policy pool=8 policy=random");
    rig.settle();
    rig.assert_accounted();
}

/// Returns a random change, valid or invalid, of servers 11 to 15, pools 7 to 9, and workers from 10 on.
fn random_change(rng: &mut rand_xoshiro::Xoshiro256PlusPlus) -> String {
    // Returns a number from 0 to `bound` - 1.
    let mut pick = |bound: u16| rng.random_range(0..bound);
    let (ip, pool, first) = (11 + pick(5), 7 + pick(3), 10 + 4 * pick(8));
    let policies = ["horus", "jbsq(k=2)", "cfcfs", "jsq", "lsq-update", "racksched", "scd", "ppot"];
    match pick(13) {
        0 => format!("add-server ip=10.0.2.{ip}"),
        1 => format!("remove-server ip=10.0.2.{ip}"),
        2 => format!("move-server ip=10.0.2.{ip} to=10.0.2.{}", 11 + pick(5)),
        3..=5 => format!(
            "add-workers server=10.0.2.{ip} pool={pool} workers={first}-{}",
            first + pick(4)
        ),
        6 => format!("remove-workers workers={first}-{}", first + pick(2)),
        7 => format!("add-pool id={pool} policy={}", policies[usize::from(pick(8))]),
        8 => format!("remove-pool id={}", 8 + pick(2)),
        9 => format!("set-policy pool={pool} policy={}", policies[usize::from(pick(8))]),
        10 => format!("drain workers={first}-{}", first + pick(4)),
        11 => format!("undrain workers={first}-{}", first + pick(4)),
        _ => format!("set-speed workers={first} speed={}", 1 + pick(9)),
    }
}

// promise: membership.1
#[test]
fn random_changes_under_load_are_accounted_for() {
    for seed in 0..4 {
        let mut rig = Rig::new();
        // Each of 600 rounds tries a change with probability 1/3; more than 20 changes must succeed.
        rig.change_at_random(seed, (600, 3, 20), random_change, |rig, rng| {
            for core in 0..2 {
                for _ in 0..rng.random_range(0..4) {
                    rig.send(core, 7 + rng.random_range(0..3));
                }
            }
            rig.poll(rng.random_range(10_000..400_000));
        });
        // Tasks may wait in pools 8 and 9 without workers. The removal of a pool drops its waiting tasks.
        (8..10).for_each(|id| _ = rig.try_change(&format!("remove-pool id={id}")));
        // Pool 7 is never removed, but may have lost all workers. New ones serve its waiting tasks.
        rig.try_change("add-server ip=10.0.2.30");
        rig.settle();
        rig.try_change("add-workers server=10.0.2.30 pool=7 workers=90-91");
        rig.settle();
        rig.polls(500);
        assert!(rig.answered > 50, "seed {seed}: {} answered", rig.answered);
        rig.assert_accounted();
    }
}
