//! Membership changes in real time. The agent's workers are threads that come and go, gRPC calls change the
//! agent, and a client sends tasks. Each call is answered, and each task is answered or counted. All threads
//! stall now and then, as on real machines. WEDJAT_SECONDS sets the length, 3 if unset.
//!
//! An agent gives the tasks of a pool to workers, through a region of shared memory with a place for each worker. Its
//! membership is its pools and workers. Threads of the test: the core with the client, the watching thread (which
//! serves requests and changes the membership), the workers, and the operator.
#![cfg(feature = "admin")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod rig;
mod timeouts;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rand::{RngExt as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tonic::Code as Status;
use wedjat::admin::{Access, ClientError, Connection, Handle, Requests, Server};
use wedjat::config::ControlConfig;
use wedjat::control::{AgentCores, Change, Control};
use wedjat::io::Buf as _;
use wedjat::io::memory::{Frame, FramePool, RingPort, pair};
use wedjat::ring::WorkerRegion;
use wedjat::role::Agent;
use wedjat::role::agent::AttachStats;
use wedjat::state::{Gauge, Table};
use wedjat::wire::ether::Mac;
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp::{self, Flow};
use wedjat::worker::{Options, Worker};

use rig::AgentRig;
use timeouts::wait_until;

/// Ids of possible workers.
const WORKERS: std::ops::Range<u16> = 10..18;
/// Maximum number of the client's outstanding tasks.
const OPEN_MAX: usize = 100;
/// Length of an artificial stall.
const PAUSE: Duration = Duration::from_millis(50);
/// Configuration of the agent.
const TEXT: &str = "[agent]\nname = 'real'\ncore = 1\nseed = 7\nslots = 4\npayload = 64\nworker_timeout_ms = 0\n\
                    pools_max = 3\nworkers_max = 8\n\
                    [[port]]\ndevice = 'memory'\nip = '10.0.2.11/24'\nmac = '02:00:00:00:02:0b'\n\
                    [[pool]]\nid = 7\npolicy = 'jbsq(k=2)'\nqueue = 64\nworkers = '10-13'\n";

/// Random generator of each thread, with a fixed seed.
type Rng = Xoshiro256PlusPlus;

/// Stalls the thread with probability `chance`.
fn pause(rng: &mut Rng, chance: f64) {
    if rng.random_bool(chance) {
        std::thread::sleep(PAUSE);
    }
}

/// State shared between threads.
#[derive(Default)]
struct Shared {
    /// True while the client sends.
    sends: AtomicBool,
    /// True when the core and the watching thread should end.
    ends: AtomicBool,
    /// True when workers should end.
    leave: AtomicBool,
    /// Number of tasks answered or refused.
    answered: AtomicU64,
    /// Number of packets at the agent, plus the client's tasks that are neither answered nor counted as
    /// dropped.
    left: AtomicU64,
}

/// The core, with the client at the far end of its wire.
struct Core {
    /// The agent, polled by this thread.
    agent: Agent<RingPort, FramePool>,
    /// Far end of the agent's port.
    wire: RingPort,
    /// Tasks sent and not answered. Dropped tasks stay in it.
    open: BTreeSet<u16>,
    /// Number of the last task.
    next: u16,
}

impl Core {
    /// Sends a task with a number that no open task has.
    fn send(&mut self) {
        self.next = self.next.wrapping_add(1);
        while self.open.contains(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let flow = Flow {
            src_mac: Mac([2, 0, 0, 0, 1, 2]),
            dst_mac: Mac([2, 0, 0, 0, 2, 11]),
            src: 0x0A00_0102,
            dst: 0x0A00_020B,
            src_port: 40_000,
            dst_port: 1234,
        };
        let header = Header::new_task(7, self.next);
        let mut bytes = vec![0; udp::PAYLOAD + header.len()];
        header.emit(&mut bytes[udp::PAYLOAD..]);
        flow.emit(&mut bytes, header.len());
        if self.wire.send(&bytes) {
            assert!(self.open.insert(self.next));
        }
    }

    /// Counts the answers and refusals received. Each must be of an open task.
    fn receive(&mut self, shared: &Shared) {
        while let Some(packet) = self.wire.receive() {
            let datagram = udp::parse(packet.bytes(), false).unwrap();
            let header = Header::parse(&packet.bytes()[datagram.payload()..]).unwrap();
            assert!(header.code.is_reply() || header.code == Code::TaskRefused, "{header:?}");
            assert!(self.open.remove(&header.seq), "an answer to an open task, once");
            shared.answered.fetch_add(1, Relaxed);
        }
    }

    /// Runs client and agent until `ends`. Then checks that every task is answered, refused or counted as dropped.
    /// Returns the agent's counts of attached and departed workers.
    fn run(mut self, shared: &Shared, began: Instant) -> AttachStats {
        let mut rng = Rng::seed_from_u64(1);
        let dropped = |core: &Self| core.agent.counters().dropped_total();
        while !shared.ends.load(Acquire) {
            // `open` also has the dropped tasks. It stays below 60,000, so that `send` finds a free number.
            let in_flight = self.open.len() as u64 - dropped(&self).min(self.open.len() as u64);
            if shared.sends.load(Acquire) && in_flight < OPEN_MAX as u64 && self.open.len() < 60_000
            {
                self.send();
            }
            self.agent.poll(began.elapsed().as_nanos() as u64);
            self.receive(shared);
            let open = self.open.len() as u64 - dropped(&self).min(self.open.len() as u64);
            shared.left.store(self.agent.held() as u64 + open, Release);
            std::thread::sleep(Duration::from_micros(20));
            pause(&mut rng, 0.0002);
        }
        let counters = self.agent.counters();
        assert!(counters.balances());
        assert_eq!((self.agent.held(), counters.read(Gauge::Held)), (0, 0));
        assert_eq!(self.open.len() as u64, counters.dropped_total(), "all else is answered");
        self.agent.attach_stats().fold(AttachStats::default(), AttachStats::and)
    }
}

/// Runs a worker that attaches whenever it has a place, serves tasks for a while and leaves. Returns the
/// number of times it attached.
fn work(region: &Arc<WorkerRegion>, id: u16, shared: &Shared) -> u64 {
    let mut rng = Rng::seed_from_u64(id.into());
    let options = Options {
        worker: Some(id),
        attach_timeout: Duration::from_secs(2), // the agent may withdraw its place before granting it
        spin: Duration::ZERO,
        ..Options::default()
    };
    let mut attached = 0;
    while !shared.leave.load(Acquire) {
        let has_place = (0..region.shape().channels)
            .any(|at| region.identity(at).is_some_and(|identity| identity.id == id));
        let Some(mut worker) =
            has_place.then(|| Worker::join("real", region, &options).ok()).flatten()
        else {
            std::thread::sleep(Duration::from_millis(2));
            continue;
        };
        attached += 1;
        let stays = Duration::from_millis(rng.random_range(20..300));
        let since = Instant::now();
        while since.elapsed() < stays && !shared.leave.load(Acquire) {
            match worker.recv(Duration::from_millis(5)) {
                Ok(Some(task)) => task.reply(&[]).unwrap(),
                Ok(None) => {}
                Err(_) => break, // the agent stopped the worker
            }
            pause(&mut rng, 0.001);
        }
    }
    attached
}

/// Runs the watching thread of the node: sends the handle by which the server passes requests, and serves these
/// requests until `ends`.
fn watch(
    (control, table): (Control<AgentCores<Frame>>, Arc<Table>),
    handle: &mpsc::Sender<Handle>,
    shared: &Shared,
) {
    let mut rng = Rng::seed_from_u64(2);
    let reader = Arc::new(|| Err("no file".to_owned()));
    let mut requests = Requests::new(control, table, reader);
    handle.send(requests.handle()).unwrap();
    while !shared.ends.load(Acquire) {
        requests.serve_for(Duration::from_millis(5), &Vec::new);
        pause(&mut rng, 0.01);
    }
}

/// Returns a random change. Workers 10 and 11 stay, so that all tasks are served in the end.
fn random_change(rng: &mut Rng) -> Change {
    let worker = rng.random_range(WORKERS.start + 2..WORKERS.end);
    let policies = ["jbsq(k=2)", "cfcfs", "horus", "random", "round-robin", "jsq"];
    let text = match rng.random_range(0..9) {
        0 | 1 => format!("add-workers pool=7 workers={worker}"),
        2 | 3 => format!("remove-workers workers={worker}"),
        4 => format!("drain workers={worker}"),
        5 => format!("undrain workers={worker}"),
        6 => format!("set-policy pool=7 policy={}", policies[rng.random_range(0..policies.len())]),
        7 => format!("set-queue pool=7 queue={}", rng.random_range(1..128)),
        _ => format!("set-speed workers={worker} speed={}", rng.random_range(1..5)),
    };
    text.parse().unwrap()
}

/// Makes changes in sequence for `time`, as an operator would by gRPC, and checks each answer: an accepted change has a
/// greater version than the last. Then stops the client and waits until every task is answered or counted. Returns the
/// number of accepted changes, and the status codes of rejected ones.
fn change(state: &Path, time: Duration, shared: &Shared) -> (u64, BTreeMap<String, u64>) {
    let mut connection = Connection::open(&Access::State(state.to_owned())).unwrap();
    let mut rng = Rng::seed_from_u64(3);
    let (mut made, mut refused, mut version) = (0, BTreeMap::new(), 1);
    let began = Instant::now();
    while began.elapsed() < time {
        let change = random_change(&mut rng);
        match connection.change(std::slice::from_ref(&change), None) {
            Ok(newer) => {
                assert!(newer > version, "{change}: {newer} after {version}");
                (made, version) = (made + 1, newer);
            }
            Err(ClientError::Refused(status)) => {
                let may_be = [
                    Status::NotFound,
                    Status::AlreadyExists,
                    Status::ResourceExhausted,
                    Status::FailedPrecondition,
                ];
                assert!(may_be.contains(&status.code()), "{change}: {status}");
                *refused.entry(format!("{:?}", status.code())).or_default() += 1;
            }
            Err(error) => panic!("{change}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(rng.random_range(0..10)));
    }
    shared.sends.store(false, Release);
    wait_until("all is answered or counted", || shared.left.load(Acquire) == 0);
    (made, refused)
}

// promise: membership.1
#[test]
fn every_task_is_accounted_for_during_changes() {
    let seconds = std::env::var("WEDJAT_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(3));
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let frames = FramePool::new(1024, 256);
    let (near, wire) = pair(256, &frames);
    let AgentRig { agent, handles, table, control } =
        rig::agent(TEXT, rig::TICKS_HZ, (vec![near], &frames), None);
    let (began, shared) = (Instant::now(), Arc::<Shared>::default());
    shared.sends.store(true, Release);
    std::thread::scope(|scope| {
        let shared = &*shared;
        let core = Core { agent, wire, open: BTreeSet::new(), next: 0 };
        let core = scope.spawn(move || core.run(shared, began));
        let (made, handle) = mpsc::channel();
        scope.spawn(move || watch((control, table), &made, shared));
        let region = &handles.region;
        let workers: Vec<_> =
            WORKERS.map(|id| scope.spawn(move || work(region, id, shared))).collect();
        let handle = handle.recv().unwrap();
        let server = Server::start(&ControlConfig::default(), Some(&state), handle, &[]).unwrap();
        let changed = std::panic::catch_unwind(|| change(&state, time, shared));
        shared.leave.store(true, Release);
        let attached: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        shared.ends.store(true, Release);
        let attach = core.join().unwrap();
        drop(server);
        let (changes, refused) = changed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let answered = shared.answered.load(Acquire);
        let what = format!(
            "{changes} changes, {refused:?}, {answered} answered, {attached} came, {attach:?}"
        );
        // Enough of everything happened.
        assert!(changes >= 10 && answered >= 100 && attached >= 10, "{what}");
        assert!(attach.joined >= attached, "{what}");
        assert_eq!((attach.silent, attach.at_fault), (0, 0), "{what}");
    });
    assert_eq!(frames.in_use(), 0);
}
