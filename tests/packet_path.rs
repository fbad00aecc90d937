//! Limits of the packet path: it neither allocates memory nor makes system calls, for a leaf (which schedules tasks
//! over workers), an agent (which gives tasks to the workers of its host), and the library. A counting allocator
//! and strace observe the polling threads.
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(unsafe_code, reason = "an allocator that counts")]

mod counting;
mod frames;
mod rig;
#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod timeouts;

use std::sync::Arc;

use wedjat::embed::{Context, Options, QUESTION_LEN, Rewrite, Scheduler, Verdict};
use wedjat::io::Buf as _;
use wedjat::io::memory::{FramePool, RingPort, pair};
use wedjat::node::explain::{Explainer, Filter, Records};
use wedjat::node::tap::{TapBuffers, TapCommands, TapOrder, TapRecorder, copies};
use wedjat::peers::{Peers, Settings};
use wedjat::policy::{CATALOGUE, Core, Dispatcher};
use wedjat::reason::DropReason;
use wedjat::ring::{WorkerEnd, WorkerIdentity, handover};
use wedjat::role::Leaf;
use wedjat::role::agent::{NamedLoad, ThreadWorker, WorkerLink};
use wedjat::state::{Counter, Counters, Gauge, Member, View};
use wedjat::wire::arp;
use wedjat::wire::completion::{Completion, ENTRY_LEN};
use wedjat::wire::ether::Mac;
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp::{self, Flow};

use frames::*;

/// A leaf of one core, with the far ends of its ports.
struct Rig {
    /// The leaf's core.
    leaf: Leaf<RingPort, FramePool>,
    /// Far ends: towards clients, towards workers.
    far: Vec<RingPort>,
    /// Time of the last poll, in ns.
    now: u64,
}

/// Returns the configuration of a leaf. ARP resolves one server's MAC address.
fn text(policy: &str) -> String {
    format!(
        "[leaf]\nid = 1\ncores = [0]\nseed = 7\nconnections = 64\nconnection_timeout_ms = 1\n\
         [[port]]\ndevice = 'c'\nside = 'clients'\nip = '10.0.1.1/24'\nmac = '{}'\n\
         [[port]]\ndevice = 'w'\nside = 'workers'\nip = '10.0.2.1/24'\nmac = '{}'\n\
         [[pool]]\nid = {POOL}\npolicy = '{policy}'\nqueue = 64\noverflow = 'refuse'\n\
         [[server]]\nip = '10.0.2.11'\nmac = '02:00:00:00:02:0b'\nworkers = '10-13'\npool = {POOL}\n\
         [[server]]\nip = '10.0.2.12'\nworkers = '14-17'\npool = {POOL}\n",
        LEAF_MACS[0], LEAF_MACS[1]
    )
}

/// Builds a leaf with this policy.
fn rig(policy: &str) -> Rig {
    let rig::CoreRig { leaf, far, .. } =
        rig::leaf(&text(policy), rig::Sizes { depth: 256, frames: 4096, bytes: 256 });
    Rig { leaf, far, now: 1 }
}

/// Creates a context of the scheduler as a library, with the leaf's configuration.
fn context(policy: &str) -> Context {
    let options = Options { ticks_hz: 1_000_000_000, macs: &LEAF_MACS };
    Scheduler::from_toml(&text(policy), &options).unwrap().context(0).unwrap()
}

/// Returns packets of all kinds, each with its port: 64 tasks and replies, a task of several packets, ARP, and
/// packets that a leaf drops.
fn packets() -> Vec<(usize, Vec<u8>)> {
    let mut packets = Vec::new();
    for seq in 0..64 {
        packets.push((0, task(Header::new_task(POOL, seq))));
        let worker = FIRST_WORKER + seq % 8;
        packets.push((1, reply(worker, seq % 3, LEAF_MACS[1])));
    }
    let several = Header { more: true, ..Header::new_task(POOL, 99) };
    let next = Header { code: Code::TaskContinuation, ..several };
    let last = Header { more: false, ..next };
    packets.extend([several, next, last].map(|header| (0, task(header))));
    for target in [LEAF_CLIENTS, 0x0A00_0163] {
        let mut question = vec![0; arp::FRAME_LEN];
        arp::Packet::request(CLIENT_MAC, CLIENT, target).emit(&mut question, Mac::BROADCAST);
        packets.push((0, question));
    }
    packets.push((0, vec![0; 20]));
    packets.push((0, task(Header::new_task(8, 1)))); // an unknown pool
    // A bit behind the UDP header, so that the UDP checksum is wrong.
    let mut damaged = task(Header::new_task(POOL, 1));
    damaged[50] ^= 1;
    packets.push((0, damaged));
    packets
}

impl Rig {
    /// Sends all packets through the leaf in groups of 40, with four polls 50 us apart after each group. Returns the
    /// number of allocator calls during polls.
    fn round(&mut self, packets: &[(usize, Vec<u8>)]) -> u64 {
        let mut calls = 0;
        for group in packets.chunks(40) {
            for (port, packet) in group {
                assert!(self.far[*port].send(packet));
            }
            for _ in 0..4 {
                self.now += 50_000;
                let before = counting::calls();
                self.leaf.poll(self.now);
                calls += counting::calls() - before;
            }
            for port in &mut self.far {
                while port.receive().is_some() {}
            }
        }
        calls
    }
}

// promise: library.3, speed.1
#[test]
fn calls_of_the_library_allocate_nothing() {
    let packets = packets();
    for policy in ["horus", "racksched", "random", "jsq", "jbsq(k=1)", "cfcfs"] {
        let (mut rewriting, mut deciding) = (context(policy), context(policy));
        let frames = FramePool::new(rewriting.places(), 256);
        let mut held: Vec<_> = (0..rewriting.places()).map(|_| None).collect();
        // Number of held packets.
        let mut waited = 0;
        let mut verdicts = [Verdict::Consumed; 1];
        let mut rewrites = [Rewrite::default(); 1];
        // Buffer for a neighbour question, and the number of questions.
        let (mut question, mut questions) = ([0; QUESTION_LEN], 0);
        for round in 0..20_000u64 {
            let (port, packet) = &packets[round as usize % packets.len()];
            let (mut first, mut second) = (packet.clone(), packet.clone());
            let now = round * 100_000;
            let before = counting::calls();
            while rewriting.release(now, &mut held).is_some() {}
            questions += usize::from(rewriting.question(now, &mut question).is_some());
            rewriting.process(*port, now, &mut [&mut first[..]], &mut verdicts).unwrap();
            if let Verdict::Hold { place, .. } = verdicts[0] {
                held[place as usize] = frames.frame(&first);
                waited += 1;
                rewriting.unsent(1);
                rewriting.set_active(12, round % 2 == 0).unwrap();
            }
            let burst = &mut [&mut second[..]];
            deciding.decide(*port, now, burst, &mut verdicts, &mut rewrites).unwrap();
            assert_eq!(counting::calls() - before, 0, "{policy}, {verdicts:?}");
        }
        assert!(questions > 3, "{policy}: neighbours are asked for: {questions}");
        assert!(waited > 3, "{policy}: packets are held: {waited}");
    }
}

// promise: speed.1
#[test]
fn polls_allocate_nothing() {
    let before = counting::calls();
    drop(std::hint::black_box(Box::new(1)));
    // One allocation and one release.
    assert_eq!(counting::calls() - before, 2, "the allocator counts");
    let packets = packets();
    let policies = [
        "horus",
        "horus-inflight",
        "racksched",
        "random",
        "round-robin",
        "jsq",
        "jbsq(k=1)",
        "cfcfs",
    ];
    for policy in policies {
        let mut rig = rig(policy);
        // A constant clock, because only the number of samples counts here.
        rig.leaf = rig.leaf.with_stopwatch(Some(|| 7));
        for round in 0..200 {
            assert_eq!(rig.round(&packets), 0, "{policy}, round {round}");
        }
        // 200 rounds, each with 64 tasks for 8 workers, 64 replies, and a task of several packets.
        let counters = rig.leaf.stages().counters();
        assert!(counters.balances(), "{policy}");
        assert!(counters.decision_time().count > 0, "{policy}: a burst was sampled");
        let decided = counters.read(Counter::Scheduled) + counters.read(Counter::Refused);
        let tasks = decided + counters.read(Gauge::Queued);
        assert!(tasks > 200 * 64, "{policy}: tasks were scheduled, or waited, or were refused");
        assert!(counters.read(Counter::Scheduled) > 200 * 8, "{policy}: tasks were scheduled");
        assert!(counters.read(Counter::Replies) >= 200 * 64, "{policy}: replies came");
        assert!(counters.read(Counter::Continuations) > 0, "{policy}: tasks had several packets");
        assert!(counters.read(Counter::Originated) > 0, "{policy}: the leaf sent ARP");
        assert!(counters.dropped_total() > 0, "{policy}: packets were refused");
    }
}

/// Returns a server's completion report for this worker with `entries` entries, or one that lacks the last of them.
fn completion_report(worker: u16, entries: u16, is_whole: bool) -> Vec<u8> {
    let header = Header::completions(POOL, worker, entries, 1);
    let entries =
        vec![Completion { worker, class: 0, left: 0, service_ns: 50_000 }; entries.into()];
    let mut payload = vec![0; header.len() + entries.len() * ENTRY_LEN];
    header.emit(&mut payload);
    Completion::emit_all(&entries, &header, &mut payload);
    payload.truncate(payload.len() - ENTRY_LEN * usize::from(!is_whole));
    let mut frame = vec![0; udp::PAYLOAD];
    frame.extend_from_slice(&payload);
    let flow = Flow {
        src_mac: mac_of(SERVERS[0]),
        dst_mac: LEAF_MACS[0],
        src: SERVERS[0],
        dst: LEAF_CLIENTS,
        src_port: 1234,
        dst_port: 1234,
    };
    flow.emit(&mut frame, payload.len());
    frame
}

/// A leaf takes the completion reports out of a burst, counts them, and sends the tasks between them in order.
// promise: packets.2, speed.1
#[test]
fn completion_reports_leave_their_bursts_without_allocating() {
    let text = format!(
        "[leaf]\nid = 1\ncores = [0]\nseed = 7\n\
         [[port]]\ndevice = 'c'\nside = 'both'\nip = '10.0.1.1/16'\nmac = '{}'\n\
         [[pool]]\nid = {POOL}\npolicy = 'jsq'\nreplies = 'direct'\n\
         [[server]]\nip = '10.0.2.11'\nmac = '02:00:00:00:02:0b'\nworkers = '10-13'\npool = {POOL}\n",
        LEAF_MACS[0],
    );
    let rig::CoreRig { mut leaf, mut far, .. } =
        rig::leaf(&text, rig::Sizes { depth: 64, frames: 256, bytes: 256 });
    let tasks = |from| (from..from + 8).map(|seq| task(Header::new_task(POOL, seq)));
    for frame in tasks(0)
        .chain([completion_report(10, 1, true), completion_report(11, 2, false)])
        .chain(tasks(8))
        .chain([completion_report(12, 2, true)])
    {
        assert!(far[0].send(&frame));
    }
    let before = counting::calls();
    leaf.poll(50_000);
    assert_eq!(counting::calls() - before, 0);
    let sent = std::iter::from_fn(|| far[0].receive());
    let sent: Vec<_> =
        sent.map(|frame| Header::parse(&frame.bytes()[udp::PAYLOAD..]).unwrap().seq).collect();
    assert_eq!(sent, (0..16).collect::<Vec<_>>());
    let counters = leaf.stages().counters();
    let count = |counter| counters.read(counter);
    assert_eq!((count(Counter::RxPackets), count(Counter::Scheduled)), (19, 16));
    assert_eq!((count(Counter::CompletionReports), count(Counter::Completions)), (2, 3));
    assert_eq!(count(Counter::Consumed), 2);
    // Reports come first: their workers have no tasks yet.
    assert_eq!(count(Counter::SurplusReplies), 3);
    assert_eq!(counters.dropped(DropReason::CompletionsMalformed), 1);
    assert!(counters.balances());
}

/// The core records what it decides on each packet, for `wedjat explain`.
// promise: control.3
#[test]
fn to_explain_packets_allocates_nothing_on_the_core() {
    let packets = packets();
    for policy in ["horus", "jsq", "jbsq(k=1)"] {
        let (commands, records) = (TapCommands::default(), Arc::<Records>::default());
        let Rig { leaf, far, now } = rig(policy);
        let mut rig = Rig { leaf: leaf.with_tap(commands.clone()), far, now };
        let mut explained = 0;
        for round in 0..300 {
            // Explanations restart every 50 rounds, and are off from round 100 to 150. No reader takes them from
            // round 150 to 250.
            if round % 50 == 0 {
                let explainer = Explainer::new(Filter::default(), u64::MAX, Arc::clone(&records));
                let explainer = (round != 100).then_some(explainer);
                commands.push(TapOrder::explain(2 + round, explainer)).unwrap();
            }
            assert_eq!(rig.round(&packets), 0, "{policy}, round {round}");
            if !(150..250).contains(&round) {
                explained += std::iter::from_fn(|| records.next()).count();
            }
            while commands.next_done().is_some() {}
        }
        assert!(explained > 50 * packets.len(), "{policy}: {explained}");
        assert!(records.lost() > 0, "{policy}: the queue was full");
        assert!(rig.leaf.stages().counters().balances(), "{policy}");
    }
}

/// A tap copies packets into buffers, which a writer empties.
// promise: control.3
#[test]
fn a_tap_allocates_nothing_on_the_core() {
    let packets = packets();
    let (commands, buffers) = (TapCommands::default(), Arc::<TapBuffers>::default());
    let Rig { leaf, far, now } = rig("horus");
    let mut rig = Rig { leaf: leaf.with_tap(commands.clone()), far, now };
    let (mut recorded, mut done) = (0, 0);
    for round in 0..1000 {
        // The tap restarts every 50 rounds, and is off from round 100 to 150. No reader takes its records from
        // round 150 to 950.
        if round % 50 == 0 {
            let recorder = TapRecorder::new(&[0, 1], 256, Arc::clone(&buffers));
            let recorder = (round != 100).then_some(recorder);
            commands.push(TapOrder::record(2 + round, recorder)).unwrap();
        }
        assert_eq!(rig.round(&packets), 0, "round {round}");
        if !(150..950).contains(&round) {
            while let Some(buffer) = buffers.next_filled() {
                recorded += copies(&buffer).count();
                buffers.give_back(buffer);
            }
        }
        done += std::iter::from_fn(|| commands.next_done()).count();
    }
    // An order every 50 of 1000 rounds, the last with the number 2 + 950.
    assert_eq!((commands.epoch(), done), (952, 20));
    assert!(buffers.lost() > 0, "the buffers were full");
    assert!(recorded > 150 * packets.len(), "{recorded} were recorded");
    assert!(rig.leaf.stages().counters().balances());
}

/// The agent's address, 10.0.2.11.
const AGENT: u32 = 0x0A00_020B;
const AGENT_MAC: Mac = Mac([2, 0, 0, 0, 2, 11]);

/// Returns the configuration of an agent with workers 10 and 11. `further` holds lines of `[agent]`.
fn agent_text(policy: &str, further: &str) -> String {
    format!(
        "[agent]\nname = 'memory'\ncore = 0\nseed = 7\nslots = 8\npayload = 64\nworker_timeout_ms = 0\n{further}\n\
         [[port]]\ndevice = 'memory'\nip = '10.0.2.11/24'\nmac = '{AGENT_MAC}'\n\
         [[pool]]\nid = {POOL}\npolicy = '{policy}'\nworkers = '10-11'\nqueue = 16\noverflow = 'refuse'\n"
    )
}

/// Returns the addresses of a packet from the client to the agent.
fn flow() -> Flow {
    Flow {
        src_mac: CLIENT_MAC,
        dst_mac: AGENT_MAC,
        src: CLIENT,
        dst: AGENT,
        src_port: 40_000,
        dst_port: 1234,
    }
}

/// The agent's workers are threads that reply through ports of their own, instead of processes.
// promise: speed.1
#[test]
fn threads_of_an_agent_allocate_nothing() {
    let identities = [WorkerIdentity { id: 10, pool: POOL }, WorkerIdentity { id: 11, pool: POOL }];
    let (load, pool) = (Arc::new(NamedLoad::new(identities.len())), FramePool::new(1024, 256));
    let (mut links, mut workers, mut wires) = (Vec::new(), Vec::new(), Vec::new());
    for identity in identities {
        let (producer, consumer) = handover::pair(identity, 8).unwrap();
        let (port, wire) = pair(256, &pool);
        let (load, counters) = (Arc::clone(&load), Counters::heap());
        workers.push(ThreadWorker::new(consumer, vec![port], load, 64, counters));
        links.push(producer);
        wires.push(wire);
    }
    let counters = workers.iter().map(|worker| worker.counters().clone()).collect();
    let (near, mut far) = pair(256, &pool);
    let (text, links) = (agent_text("jbsq(k=2)", ""), links.into_iter().map(WorkerLink::from));
    let rig::AgentRig { agent, .. } =
        rig::agent(&text, rig::TICKS_HZ, (vec![near], &pool), Some(links.collect()));
    let mut agent = agent.with_threads(load, counters);
    let mut now = 1_000_000;
    let mut calls = 0;
    // Runs a step, and adds its allocator calls to `calls`.
    let mut counted = |step: &mut dyn FnMut()| {
        let before = counting::calls();
        step();
        calls += counting::calls() - before;
    };
    counted(&mut || _ = agent.poll(now));
    for seq in 0..500_u16 {
        for number in 0..32 {
            let header = Header { dst: 10 + number % 2, ..Header::new_task(POOL, seq) };
            let mut frame = task(header);
            let len = frame.len() - udp::PAYLOAD;
            flow().emit(&mut frame, len);
            assert!(far.send(&frame));
        }
        for _ in 0..4 {
            now += 50_000;
            counted(&mut || _ = agent.poll(now));
            for worker in &mut workers {
                counted(&mut || while worker.poll(&mut |_, _| Some(8)) {});
            }
        }
        if seq == 250 {
            // A worker leaves with its tasks. Its end frees its memory.
            workers.pop();
        }
        wires.iter_mut().for_each(|wire| while wire.receive().is_some() {});
        while far.receive().is_some() {}
    }
    workers.clear();
    (0..8).for_each(|_| {
        now += 200_000;
        counted(&mut || _ = agent.poll(now));
    });
    assert_eq!(calls, 0);
    let counters = agent.counters();
    assert!(counters.balances(), "{} dropped", counters.dropped_total());
    let replies = counters.read(Counter::Replies);
    assert!(replies > 2000, "tasks were done");
    assert!(counters.read(Counter::Forwarded) > replies + 500, "tasks were given back");
}

// promise: speed.1
#[test]
fn polls_of_an_agent_allocate_nothing() {
    for policy in ["cfcfs", "jbsq(k=2)", "horus", "jsq", "random"] {
        let pool = FramePool::new(1024, 256);
        let (near, mut far) = pair(256, &pool);
        let text = agent_text(policy, &format!("leaf = '10.0.2.1'\nleaf_mac = '{CLIENT_MAC}'"));
        let rig::AgentRig { mut agent, handles, .. } =
            rig::agent(&text, rig::TICKS_HZ, (vec![near], &pool), None);
        let (mut now, mut calls) = (1, 0);
        let mut poll = |now: &mut u64| {
            *now += 50_000;
            let before = counting::calls();
            agent.poll(*now);
            calls += counting::calls() - before;
        };
        let mut worker_ends: Vec<_> = (0..2).map(|at| handles.claim(at)).collect();
        (0..4).for_each(|_| poll(&mut now));
        worker_ends.iter().for_each(WorkerEnd::start);
        for seq in 0..1_000u16 {
            // More tasks than ring and queue hold, so that some are refused.
            for number in 0..40 {
                // The last task is of an unknown pool.
                let mut frame = task(Header::new_task(POOL + u16::from(number == 39), seq));
                let len = frame.len() - udp::PAYLOAD;
                flow().emit(&mut frame, len);
                assert!(far.send(&frame));
            }
            for worker_end in &worker_ends {
                while let Ok(Some(task)) = worker_end.take() {
                    worker_end.answer(task, |_, _| 0, || 1000).unwrap(); // an empty answer after 1000 ns of work
                }
            }
            (0..2).for_each(|_| poll(&mut now));
            while far.receive().is_some() {}
            if seq == 500 {
                // A worker leaves with its tasks.
                worker_ends.pop();
            }
        }
        // The agent updates the gauge of held packets at each tick, here at every other poll.
        (0..4).for_each(|_| poll(&mut now));
        assert_eq!(calls, 0, "{policy}");
        let counters = agent.counters();
        let counts: Vec<_> =
            Counter::ALL.iter().map(|&counter| (counter, counters.read(counter))).collect();
        assert!(counters.balances(), "{policy}: {counts:?} {}", counters.dropped_total());
        assert!(counters.read(Counter::Replies) > 500, "{policy}: tasks were done");
        assert!(counters.read(Counter::Originated) >= 2, "{policy}: workers were registered");
        assert!(counters.dropped(DropReason::UnknownPool) > 10, "{policy}: packets were refused");
    }
}

#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod system_calls {
    use std::fs;
    use std::io::{self, BufRead, BufReader, Write};
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};

    use tempfile::TempDir;
    use wedjat::io::pcap::write_frames;
    use wedjat::state::Snapshot;
    use wedjat::wire::task::Header;
    use wedjat::worker::{Options, Worker};

    use super::frames::*;
    use super::timeouts::*;

    /// A leaf or an agent with its files, killed when dropped.
    struct Node {
        /// The running process.
        process: Child,
        /// Folder of its files.
        folder: TempDir,
    }

    impl Drop for Node {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    impl Node {
        /// Starts `wedjat` in this role. The configuration's port replays the packets endlessly. FOLDER in
        /// its text stands for the folder of its files.
        fn start(role: &str, packets: &[Vec<u8>], configuration: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            write_frames(&folder.path().join("in.pcap"), packets).unwrap();
            let text = configuration.replace("FOLDER", folder.path().to_str().unwrap());
            let config = folder.path().join("node.toml");
            fs::write(&config, text).unwrap();
            let mut node = Command::new(env!("CARGO_BIN_EXE_wedjat"));
            node.args([role, "--duration", LIFETIME, "--config"]).arg(config);
            Self { process: node.stdout(Stdio::null()).spawn().unwrap(), folder }
        }

        /// Returns the path of a file in the folder.
        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// Returns the id of the thread with this name, if it exists.
        fn thread(&self, name: &str) -> Option<String> {
            let threads = fs::read_dir(format!("/proc/{}/task", self.process.id())).ok()?.flatten();
            let named = |entry: &fs::DirEntry| {
                fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
            };
            let found = threads.into_iter().find(named)?;
            Some(found.file_name().to_string_lossy().into_owned())
        }

        /// Returns a counter from the state file; 0 if it cannot be read.
        fn counter(&self, name: &str) -> u64 {
            let snapshot = Snapshot::open(&self.path("state"));
            snapshot.map_or(0, |snapshot| snapshot.cores[0].counters[name])
        }

        /// Traces a thread with strace until a million packets have been received, a thousand replies sent,
        /// and `seen` is true for strace's output. Returns the traced calls, or `None` if strace is missing
        /// or may not attach.
        fn traced(&self, thread: &str, seen: impl Fn(&str) -> bool) -> Option<Vec<String>> {
            let file = self.path("strace");
            let mut strace = Command::new("strace")
                .args(["-p", thread, "-o"])
                .arg(&file)
                .stderr(Stdio::piped())
                .spawn()
                .ok()?;
            // The first line reports success, or the reason why strace cannot attach.
            let mut messages = BufReader::new(strace.stderr.take().unwrap());
            let mut first = String::new();
            messages.read_line(&mut first).unwrap();
            if !first.contains("attached") {
                strace.wait().unwrap();
                return None;
            }
            let counted = || ["rx_packets", "replies"].map(|name| self.counter(name));
            let begun = counted();
            wait_until("packets passed", || {
                assert!(strace.try_wait().unwrap().is_none(), "strace has ended");
                let [received, replies] = counted();
                let enough = received > begun[0] + 1_000_000 && replies > begun[1] + 1_000;
                enough && seen(&fs::read_to_string(&file).unwrap())
            });
            // strace detaches when interrupted.
            let interrupt = Command::new("kill").args(["-INT", &strace.id().to_string()]).status();
            assert!(interrupt.unwrap().success());
            strace.wait().unwrap();
            let text = fs::read_to_string(file).unwrap();
            // Lines about strace itself, such as "strace: Process 7 detached", are not calls.
            Some(text.lines().filter(|line| line.contains('(')).map(str::to_owned).collect())
        }

        /// Checks that the polling thread of this name makes no system call under traffic, while the watching
        /// thread of the same process does.
        fn assert_polls_without_calls(&self, polls: &str) {
            wait_until("replies pass", || self.counter("replies") > 0);
            // Control measurement: strace sees the next calls of the watching thread.
            let process = self.process.id().to_string();
            let Some(control) = self.traced(&process, |seen| seen.contains('(')) else {
                // Written directly to standard error, because the output of passing tests is hidden.
                let why = "strace is missing or may not look";
                let _ = writeln!(io::stderr(), "system calls of {polls}: SKIPPED, {why}");
                return;
            };
            let thread = self.thread(polls).expect("the thread that polls");
            let calls = self.traced(&thread, |_| true).unwrap();
            assert!(calls.is_empty(), "{} calls, such as {}", calls.len(), calls[0]);
            assert!(!control.is_empty(), "strace sees the calls of the thread that watches");
        }
    }

    /// Returns the configuration of a port that replays the packets.
    fn port() -> String {
        let mac = LEAF_MACS[0];
        format!(
            "[[port]]\ndevice = 'net_pcap0,rx_pcap=FOLDER/in.pcap,infinite_rx=1'\nip = '10.0.1.1/16'\nmac = '{mac}'\n"
        )
    }

    // promise: speed.1
    #[test]
    fn the_poll_loop_makes_no_system_call() {
        let mut packets = Vec::new();
        for seq in 0..256 {
            packets.push(task(Header::new_task(POOL, seq)));
            packets.push(reply(FIRST_WORKER + seq % 8, 0, LEAF_MACS[0]));
        }
        let configuration = format!(
            "[leaf]\nid = 1\ncores = [0]\nstate = 'FOLDER/state'\n{}side = 'both'\n\
             [[pool]]\nid = {POOL}\npolicy = 'horus'\n\
             [[server]]\nip = '10.0.2.11'\nmac = '02:00:00:00:02:0b'\nworkers = '10-13'\npool = {POOL}\n\
             [[server]]\nip = '10.0.2.12'\nmac = '02:00:00:00:02:0c'\nworkers = '14-17'\npool = {POOL}\n",
            port()
        );
        let leaf = Node::start("leaf", &packets, &configuration);
        leaf.assert_polls_without_calls("dispatch-0");
    }

    // promise: speed.1
    #[test]
    fn an_agents_poll_loop_makes_no_system_call() {
        let packets: Vec<_> = (0..256).map(|seq| task(Header::new_task(POOL, seq))).collect();
        let configuration = format!(
            "[agent]\nname = 'FOLDER/workers'\ncore = 0\nworker_timeout_ms = 0\nstate = 'FOLDER/state'\n{}\
             [[pool]]\nid = {POOL}\npolicy = 'jbsq(k=2)'\nworkers = '10-11'\n",
            port()
        );
        let agent = Node::start("agent", &packets, &configuration);
        wait_until("the agent runs", || agent.path("workers").exists());
        let name = agent.path("workers").display().to_string();
        let mut workers = [10, 11].map(|id| {
            let options =
                Options { worker: Some(id), attach_timeout: TIMEOUT, ..Options::default() };
            Worker::attach(&name, &options).unwrap()
        });
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // The workers never sleep, because waking a worker takes a system call.
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for worker in &mut workers {
                        if let Some(task) = worker.poll() {
                            task.reply_with(|_, _| 0);
                        }
                    }
                }
            });
            let ends = Ends(&over);
            agent.assert_polls_without_calls("agent-0");
            drop(ends);
        });
    }

    /// Sets a flag when dropped, also by a panic, so that no thread is left running.
    struct Ends<'a>(&'a AtomicBool);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

// promise: membership.1
#[test]
fn policies_take_changes_of_membership_without_allocating() {
    const MEMBERS: u16 = 40;
    for entry in CATALOGUE {
        let mut view = View::heap(MEMBERS.into(), 1).remove(0);
        (0..MEMBERS).for_each(|member| view.set_active(Member(member), false));
        let mut dispatcher = Dispatcher::new(&entry.name.parse().unwrap(), view, Core::ONLY, 7);
        // Rates: all different, all zero, all equal, and all different again.
        let equal = [1.0; MEMBERS as usize];
        let many: Vec<f64> = (0..MEMBERS).map(|member| f64::from(1 + member)).collect();
        let before = counting::calls();
        for rates in [&many[..], &[0.0; MEMBERS as usize], &equal, &many] {
            dispatcher.set_rates(rates);
            for active in [true, false] {
                (0..MEMBERS).for_each(|member| dispatcher.set_active(Member(member), active));
            }
        }
        assert_eq!(counting::calls() - before, 0, "{} allocates", entry.name);
    }
}

/// Agents without a leaf are peers: each sends a heartbeat with its load at every beat, and passes tasks to others.
/// Some policies learn parameters, which nodes exchange and agree on in a consensus round.
// promise: agent.4, speed.1
#[test]
fn peer_nodes_decide_and_learn_without_allocating() {
    for policy in
        ["malcolm", "malcolm(optimizer=sgd)", "frozen", "rsteal", "jsq", "po2", "jbt", "random"]
    {
        let node = |own| {
            Peers::new(Settings {
                nodes: 24,
                own,
                policy: policy.parse().unwrap(),
                slots: 3,
                beat_ns: 1000,
                first_beat_ns: 1000,
                born: own as u64,
                seed: 7,
            })
        };
        let mut nodes: Vec<_> = (0..24).map(node).collect();
        let before = counting::calls();
        // Runs beyond one consensus round, which begins every 2000 beats. The last node is silent for a while and
        // returns.
        for beat in 1..2010_u64 {
            for own in 0..24 {
                nodes[own].set_waiting((beat % 3) as u32);
                _ = (
                    nodes[own].destination(),
                    nodes[own].done(500),
                    nodes[own].handle_steal_request(),
                );
                let heartbeat = nodes[own].beat(beat * 1000);
                if own == 23 && (500..600).contains(&beat) {
                    continue;
                }
                let (before_own, rest) = nodes.split_at_mut(own);
                let Some((sender, rest)) = rest.split_first_mut() else { continue };
                for other in before_own.iter_mut().chain(rest) {
                    _ = other.receive_heartbeat(&heartbeat);
                    for (head, values) in sender.parameters() {
                        _ = other.receive_parameters(&head, values.iter().copied());
                    }
                }
            }
        }
        assert_eq!(counting::calls() - before, 0, "{policy} allocates");
        // Each policy with learned parameters reaches one consensus.
        let agreed = nodes[0].totals().agreed;
        assert_eq!(
            agreed,
            u64::from(policy.starts_with("malcolm")) + u64::from(policy == "frozen")
        );
    }
}
