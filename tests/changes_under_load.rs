//! Thousands of changes on emulated time, in a rack at a load of 80%. No task is lost, every change is
//! answered, and all cores apply it within a millisecond.
//!
//! A change is one of the membership: the pools, servers and workers of a leaf (the scheduler of a rack). Each accepted
//! change begins an epoch, a number that grows. The test emulates the clients, the servers and the clock of a leaf with
//! two cores.
#![allow(clippy::unwrap_used, reason = "a test")]

mod changing;
mod frames;
mod rig;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::Write;
use std::path::Path;

use rand::{RngExt as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use wedjat::control::{Change, ChangeError, LEAVING_NS, LeafCores, Membership};
use wedjat::io::Buf as _;
use wedjat::io::memory::{FramePool, RingPort};
use wedjat::policy::{CATALOGUE, Dispatcher, Runs};
use wedjat::reason::DropReason;
use wedjat::role::Leaf;
use wedjat::state::{Counters, Gauge};
use wedjat::wire::arp;
use wedjat::wire::ether;
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp::{self, Flow};

use changing::ChangeRig;
use frames::{CLIENT, CLIENT_MAC, LEAF_MACS, arp_answer, mac_of};
use rig::{CoreRig, Sizes};

/// Number of the leaf's cores.
const CORES: usize = 2;
/// Index of the ports towards clients.
const CLIENTS: usize = 0;
/// Index of the ports towards workers.
const WORKERS: usize = 1;
/// Time between two polls of a core.
const POLL_NS: u64 = 2_000;
/// Mean service time.
const SERVICE_NS: f64 = 50_000.0;
/// Arrival rate of tasks, relative to the capacity of the active workers.
const LOAD: f64 = 0.8;
/// Time within which all cores apply a change.
const TAKEN_NS: u64 = 1_000_000;

/// Returns the leaf's configuration: 8 servers with workers 10 to 41, four each, in pool 7.
fn text(state: &Path) -> String {
    let servers: String = (0..8)
        .map(|at| {
            let (ip, first) = (11 + at, 10 + 4 * at);
            let workers = format!("'{first}-{}'", first + 3);
            format!("[[server]]\nip = '10.0.2.{ip}'\nworkers = {workers}\npool = 7\n")
        })
        .collect();
    format!(
        "[leaf]\nid = 1\ncores = [1, 2]\nseed = 7\nstate = '{}'\n\
         [[port]]\ndevice = 'clients'\nside = 'clients'\nip = '10.0.1.1/24'\n\
         [[port]]\ndevice = 'workers'\nside = 'workers'\nip = '10.0.2.1/24'\n\
         [[pool]]\nid = 7\npolicy = 'horus'\n{servers}",
        state.display()
    )
}

/// A task at a worker.
struct Work {
    /// Time of its completion.
    done: u64,
    /// The leaf's core that sent it.
    core: usize,
    /// Address of the worker's server.
    server: u32,
    /// Header of the task as the leaf sent it.
    header: Header,
}

/// A leaf of two cores with its clients and workers. Times are in nanoseconds.
struct Rack {
    /// The leaf's cores.
    cores: Vec<Leaf<RingPort, FramePool>>,
    /// Far ends of each core's ports.
    far: Vec<Vec<RingPort>>,
    /// The leaf's control, and checks of its state file.
    changing: ChangeRig<LeafCores>,
    /// Emulated time.
    now: u64,
    /// Source of arrivals and service times.
    rng: Xoshiro256PlusPlus,
    /// Time of the next task; `u64::MAX` without load.
    due: u64,
    /// Tasks of each worker, in order.
    work: BTreeMap<u16, VecDeque<Work>>,
    /// Send times of open tasks, by sequence number.
    open: HashMap<u16, u64>,
    /// Response times since a test last evaluated or cleared them.
    responses: Vec<u64>,
    /// Number of tasks sent.
    sent: u64,
    /// Sequence number of the last task.
    next: u16,
    /// Epochs of changes that some core has not yet applied, and the times of these changes.
    pending: VecDeque<(u64, u64)>,
}

impl Rack {
    /// Creates a rack and polls it for a millisecond without load, so that the leaf resolves its servers' addresses.
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let sizes = Sizes { depth: 256, frames: 4096, bytes: 256 };
        let (built, table, control) = rig::leaves(rig::stages(&text(&path), None), sizes);
        let (cores, far) = built.into_iter().map(|CoreRig { leaf, far, .. }| (leaf, far)).unzip();
        let mut rack = Self {
            cores,
            far,
            changing: ChangeRig::new(control, table, path, folder),
            now: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            due: u64::MAX,
            work: BTreeMap::new(),
            open: HashMap::new(),
            responses: Vec::new(),
            sent: 0,
            next: 0,
            pending: VecDeque::new(),
        };
        rack.run(1_000_000);
        rack.due = rack.now;
        rack
    }

    /// Returns the leaf's current membership.
    fn membership(&self) -> &Membership {
        self.changing.control.membership()
    }

    /// Returns the pools that take tasks, with their numbers of active workers.
    fn pools(&self) -> Vec<(u16, usize)> {
        let pools = self.membership().pools.iter().flatten().filter(|pool| !pool.is_leaving);
        let active = |members: &[Option<wedjat::control::Worker>]| {
            members.iter().flatten().filter(|worker| worker.is_active()).count()
        };
        let pools = pools.map(|pool| (pool.id, active(&pool.members)));
        pools.filter(|&(_, active)| active > 0).collect()
    }

    /// Draws from the exponential distribution with this mean, in ns.
    fn exponential(&mut self, mean: f64) -> u64 {
        let uniform: f64 = self.rng.random();
        (-mean * (1.0 - uniform).ln()) as u64
    }

    /// Sends the tasks that are due. The probability of a pool is proportional to its active workers. While a change
    /// is pending, all tasks go to pool 7.
    fn arrive(&mut self) {
        while self.due <= self.now {
            let pools = self.pools();
            let active: usize = pools.iter().map(|&(_, active)| active).sum();
            // Chooses the pool of a worker drawn uniformly from the active ones.
            let mut at = self.rng.random_range(0..active);
            let mut chosen = pools.iter().find(|&&(_, active)| {
                let is_here = at < active;
                at = at.saturating_sub(active);
                is_here
            });
            // Some core may not yet know a new pool, or its workers.
            if !self.pending.is_empty() {
                chosen = pools.iter().find(|&&(id, _)| id == 7);
            }
            self.next = self.next.wrapping_add(1);
            let header = Header::new_task(chosen.unwrap().0, self.next);
            let core = self.rng.random_range(0..CORES);
            assert!(self.far[core][CLIENTS].send(&frames::task(header)), "the ring has room");
            let before = self.open.insert(self.next, self.now);
            assert_eq!(
                before,
                None,
                "the last task of this number is still open at {} ns: {:?}",
                self.now,
                self.held()
            );
            self.sent += 1;
            self.due += 1 + self.exponential(SERVICE_NS / (LOAD * active as f64));
        }
    }

    /// Advances the time by one poll. Clients, workers and cores act, and every change older than a millisecond must
    /// be at all cores.
    fn poll(&mut self) {
        self.now += POLL_NS;
        if self.due != u64::MAX {
            self.arrive();
        }
        self.complete();
        for core in 0..CORES {
            self.cores[core].poll(self.now);
            while let Some(frame) = self.far[core][WORKERS].receive() {
                self.serve(core, frame.bytes());
            }
            while let Some(frame) = self.far[core][CLIENTS].receive() {
                self.take_at_client(core, frame.bytes());
            }
        }
        let acknowledged = self.changing.control.acknowledged();
        while let Some(&(epoch, since)) = self.pending.front() {
            if epoch > acknowledged {
                assert!(self.now - since <= TAKEN_NS, "change {epoch} is late");
                break;
            }
            self.pending.pop_front();
        }
    }

    /// Polls for this time.
    fn run(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end {
            self.poll();
        }
    }

    /// Sends the replies that are due, each to the core that sent the task.
    fn complete(&mut self) {
        for (&worker, work) in &mut self.work {
            while work.front().is_some_and(|task| task.done <= self.now) {
                let task = work.pop_front().unwrap();
                let left = work.len() as u16;
                let code = if left == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
                let reply = Header { code, src: worker, dst: 0, qlen: left, ..task.header };
                let flow = Flow {
                    src_mac: mac_of(task.server),
                    dst_mac: LEAF_MACS[WORKERS],
                    src: task.server,
                    dst: CLIENT,
                    src_port: 1234,
                    dst_port: 40_000,
                };
                // Nine bytes of data follow the header, as in the task.
                let len = reply.len() + 9;
                let mut bytes = vec![0; udp::PAYLOAD + len];
                reply.emit(&mut bytes[udp::PAYLOAD..]);
                flow.emit(&mut bytes, len);
                assert!(self.far[task.core][WORKERS].send(&bytes), "the ring has room");
            }
        }
    }

    /// Puts a task into its worker's queue, or answers an ARP request to a server.
    fn serve(&mut self, core: usize, frame: &[u8]) {
        if ether::ether_type(frame) == ether::ARP {
            let ask = arp::Packet::parse(frame).unwrap();
            self.far[core][WORKERS].send(&arp_answer(&ask, mac_of(ask.target)));
            return;
        }
        let datagram = udp::parse(frame, false).unwrap();
        let header = Header::parse(&frame[datagram.payload()..]).unwrap();
        let service = self.exponential(SERVICE_NS);
        let work = self.work.entry(header.dst).or_default();
        // A worker serves its tasks one after another.
        let begins = work.back().map_or(self.now, |last| last.done.max(self.now));
        let server = datagram.dst;
        work.push_back(Work { done: begins + service, core, server, header });
    }

    /// Records the response time of a reply, or answers an ARP request to the client.
    fn take_at_client(&mut self, core: usize, frame: &[u8]) {
        if let Ok(ask) = arp::Packet::parse(frame) {
            self.far[core][CLIENTS].send(&arp_answer(&ask, CLIENT_MAC));
            return;
        }
        let datagram = udp::parse(frame, false).unwrap();
        let header = Header::parse(&frame[datagram.payload()..]).unwrap();
        let sent = self.open.remove(&header.seq).expect("an answer to an open task, once");
        self.responses.push(self.now - sent);
    }

    /// Returns true if tasks of this pool wait for a worker at a core.
    fn waits(&self, id: u16) -> bool {
        let Some((at, _)) = self.membership().pool(id) else { return false };
        let dispatchers = self.cores.iter().filter_map(|core| core.stages().dispatcher(at));
        dispatchers.map(Dispatcher::waiting).sum::<usize>() > 0
    }

    /// Makes a change and returns its epoch, or the reason of its refusal. [`Rack::poll`] checks that the cores apply
    /// it in time.
    fn change(&mut self, text: &str) -> Result<u64, ChangeError> {
        let answer = self.changing.control.apply(&text.parse::<Change>()?);
        if let Ok(epoch) = answer {
            self.pending.push_back((epoch, self.now));
        }
        self.changing.expect();
        answer
    }

    /// Runs the periodic work of the control, which can begin a new epoch.
    fn poll_control(&mut self) {
        let before = self.membership().epoch;
        self.changing.control.tend(self.now);
        let after = self.membership().epoch;
        if after > before {
            self.pending.push_back((after, self.now));
        }
        self.changing.expect();
    }

    /// Describes held and dropped packets of the cores, and the longest queue of a worker.
    fn held(&self) -> String {
        let counters = self.cores.iter().map(|core| core.stages().counters());
        let held = counters.map(|counters| (counters.read(Gauge::Held), dropped(counters)));
        let most = self.work.iter().map(|(&worker, work)| (work.len(), worker)).max();
        format!("held and dropped {:?}, at a worker {most:?}", held.collect::<Vec<_>>())
    }

    /// Returns the 99th percentile of the recorded response times, in microseconds, and clears them.
    fn p99_us(&mut self) -> f64 {
        let mut responses = std::mem::take(&mut self.responses);
        responses.sort_unstable();
        responses[responses.len() * 99 / 100] as f64 / 1000.0
    }

    /// Ends the load, and advances the time until all removals are over. Checks that every task was answered. No packet
    /// may be dropped or left. Each snapshot of the state file must show the membership of its epoch.
    fn assert_nothing_is_lost(&mut self) {
        self.due = u64::MAX;
        self.run(20_000_000);
        for core in &self.cores {
            let counters = core.stages().counters();
            assert!(counters.balances());
            assert_eq!((counters.read(Gauge::Held), counters.dropped_total()), (0, 0));
        }
        assert_eq!(self.open.len(), 0, "of {} tasks", self.sent);
        self.now += LEAVING_NS; // after this time, the old addresses of moved servers are no longer valid
        self.poll_control();
        self.run(1_000_000);
        self.poll_control();
        self.run(1_000_000);
        assert!(self.changing.control.is_settled());
        self.changing.assert_shown();
    }
}

/// Returns the number of drops by reason.
fn dropped(counters: &Counters) -> Vec<(&'static str, u64)> {
    let each = DropReason::ALL.iter().map(|&reason| (reason.name(), counters.dropped(reason)));
    each.filter(|&(_, count)| count > 0).collect()
}

/// Returns the policies that run on a leaf.
fn policies() -> Vec<&'static str> {
    let on_leaf = CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine);
    on_leaf.map(|entry| entry.name).collect()
}

/// Returns a random change, valid or invalid. It never drains or removes workers 10 to 17 of pool 7, so that this pool
/// can always take tasks.
fn random_change(rng: &mut Xoshiro256PlusPlus, policies: &[&str]) -> String {
    // Returns a number from 0 to `bound` - 1.
    let mut pick = |bound: u16| rng.random_range(0..bound);
    let policy = policies[usize::from(pick(policies.len() as u16))];
    // Servers 11 and 12, and their workers 10 to 17, stay.
    let (ip, pool, first) = (13 + pick(10), 7 + pick(3), 18 + 4 * pick(10));
    let last = first + pick(4);
    match pick(16) {
        0 | 1 => format!("add-server ip=10.0.2.{ip}"),
        2 => format!("remove-server ip=10.0.2.{ip}"),
        3 => format!("move-server ip=10.0.2.{ip} to=10.0.2.{}", 13 + pick(20)),
        4..=6 => format!("add-workers server=10.0.2.{ip} pool={pool} workers={first}-{last}"),
        7 => format!("remove-workers workers={first}-{last}"),
        8 | 9 => format!("drain workers={first}-{last}"),
        10 | 11 => format!("undrain workers={first}-{last}"),
        12 => format!("add-pool id={pool} policy={policy}"),
        13 => format!("remove-pool id={}", 8 + pick(2)),
        14 => format!("set-policy pool={pool} policy={policy}"),
        // Speeds stay near the real ones, so that policies that use them overload no worker.
        _ => format!("set-speed workers={first}-{last} speed=1.0{}", pick(10)),
    }
}

// promise: membership.1
#[test]
fn ten_thousand_random_changes_lose_nothing() {
    let (mut rack, policies) = (Rack::new(15), policies());
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(16);
    let (mut made, mut refused) = (0_u32, 0_u32);
    while made < 10_000 {
        rack.run(60_000);
        let text = random_change(&mut rng, &policies);
        // In a pool without workers, a removal and a policy without a queue drop the tasks that wait. The test makes
        // neither while tasks wait in such a pool. Pool 7 always has workers.
        let new_policy =
            text.strip_prefix("set-policy pool=").filter(|rest| !rest.starts_with('7'));
        let ends = text.strip_prefix("remove-pool id=").or(new_policy);
        let id = ends.map(|rest| rest.split(' ').next().unwrap_or_default().parse().unwrap());
        if id.is_some_and(|id| rack.waits(id)) {
            continue;
        }
        let before = rack.membership().epoch;
        match rack.change(&text) {
            Ok(epoch) => {
                assert_eq!(epoch, before + 1, "{text}");
                made += 1;
            }
            Err(ChangeError::Busy) => panic!("{text}: a core has not applied an earlier change"),
            Err(error) => {
                // A refusal gives a reason, not only a name.
                assert!(error.to_string().len() > 20, "{text}: {error}");
                assert_eq!(rack.membership().epoch, before, "{text}");
                refused += 1;
            }
        }
        rack.run(20_000);
        rack.poll_control();
        if (made + refused) % 50 == 0 {
            let epoch = rack.membership().epoch;
            assert_eq!(rack.changing.look().epoch, epoch);
        }
    }
    assert!(refused > 1_000, "{refused} refused");
    assert!(rack.sent > 500_000, "{} tasks", rack.sent);
    rack.assert_nothing_is_lost();
}

// promise: membership.3
#[test]
fn draining_the_busiest_of_eight_servers_loses_nothing() {
    let mut rack = Rack::new(3);
    rack.run(20_000_000);
    rack.responses.clear();
    rack.run(100_000_000);
    let before = rack.p99_us();
    // Returns the number of tasks at a server. Servers count from 0.
    let has = |rack: &Rack, server: u16| -> usize {
        (10 + 4 * server..14 + 4 * server)
            .map(|id| rack.work.get(&id).map_or(0, VecDeque::len))
            .sum()
    };
    let busiest = (0..8).max_by_key(|&server| has(&rack, server)).unwrap();
    let (first, had) = (10 + 4 * busiest, has(&rack, busiest));
    assert!(had > 0);
    rack.change(&format!("drain workers={first}-{}", first + 3)).unwrap();
    let began = rack.now;
    let mut empty = None;
    while rack.now - began < 20_000_000 {
        rack.poll();
        if empty.is_none() && rack.pending.is_empty() && has(&rack, busiest) == 0 {
            empty = Some(rack.now - began);
        }
    }
    let empty = empty.expect("the drained server becomes empty");
    rack.run(100_000_000);
    assert_eq!(has(&rack, busiest), 0, "the drained server stays empty");
    let during = rack.p99_us();
    rack.change(&format!("undrain workers={first}-{}", first + 3)).unwrap();
    rack.run(20_000_000);
    rack.responses.clear();
    rack.run(100_000_000);
    let after = rack.p99_us();
    assert!(rack.work[&first].iter().len() + has(&rack, busiest) > 0, "the server has tasks again");
    let _ = writeln!(
        std::io::stderr(),
        "draining the busiest of 8 servers at load {LOAD}: {had} tasks, empty after {:.3} ms; p99 {before:.0} us before, \
         {during:.0} us while drained, {after:.0} us after",
        empty as f64 / 1e6
    );
    rack.assert_nothing_is_lost();
}
