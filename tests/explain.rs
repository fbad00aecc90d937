//! Explanations of packets (`wedjat explain`): their fate and its reason, from running leaves and agents and from
//! captures.
//!
//! A leaf schedules tasks over workers; an agent gives the tasks of a host to its workers. A node with an explainer
//! writes a record for each packet that passes a filter. A record of a task contains the beliefs of the policy before
//! its decision: estimates of the load of some workers. With a capture, the command runs the same code without a node.
#![cfg(feature = "admin")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod frames;
#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod process;
mod rig;
#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod running;
mod timeouts;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use serde_json::Value;
use wedjat::io::Buf as _;
use wedjat::io::memory::{FramePool, RingPort, pair};
use wedjat::io::pcap::{Capture, write_frames};
use wedjat::node::explain::{Explainer, Fate, Filter, Moment, Record, Records};
use wedjat::node::tap::{TapCommands, TapOrder};
use wedjat::policy::SelectionBasis;
use wedjat::reason::DropReason;
use wedjat::role::Leaf;
use wedjat::state::{Counter, Load};
use wedjat::wire::arp;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Header};
use wedjat::wire::{ndp, udp};

use frames::*;

const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");

/// Returns a leaf's configuration: workers 10 to 13 at the first server. ARP resolves the server's MAC address if
/// `asks`; otherwise the configuration has it.
fn config(policy: &str, asks: bool) -> String {
    let mac = if asks { "" } else { "mac = '02:00:00:00:02:0b'\n" };
    format!(
        "[leaf]\nid = 1\ncores = [0]\nseed = 7\n\
         [[port]]\ndevice = 'c'\nside = 'clients'\nip = '10.0.1.1/24'\nmac = '{}'\n\
         [[port]]\ndevice = 'w'\nside = 'workers'\nip = '10.0.2.1/24'\nmac = '{}'\n\
         [[pool]]\nid = {POOL}\npolicy = '{policy}'\nqueue = 2\n\
         [[server]]\nip = '10.0.2.11'\n{mac}workers = '10-13'\npool = {POOL}\n",
        LEAF_MACS[0], LEAF_MACS[1]
    )
}

/// A leaf that explains its packets, with the far ends of its ports.
struct Node {
    /// The leaf's only core.
    leaf: Leaf<RingPort, FramePool>,
    /// Far ends: towards clients, towards workers.
    far: Vec<RingPort>,
    /// Orders to start or stop the explanations.
    commands: TapCommands,
    /// Explanations not read yet.
    records: Arc<Records>,
    /// Time of the last poll, in ns.
    now: u64,
}

impl Node {
    /// Creates a leaf that explains the packets of this filter, or none.
    fn new(text: &str, filter: Option<Filter>) -> Self {
        let sizes = rig::Sizes { depth: 64, frames: 1024, bytes: 256 };
        let rig::CoreRig { leaf, far, .. } = rig::leaf(text, sizes);
        let (commands, records) = (TapCommands::default(), Arc::<Records>::default());
        let leaf = leaf.with_tap(commands.clone());
        let mut node = Self { leaf, far, commands, records, now: 1 };
        node.order(2, filter, u64::MAX);
        node
    }

    /// Replaces the explainer by one with this filter and at most `count` records, or by none. `number` is the
    /// order's: from 2 on, and higher than the last one, because the core's epoch begins with 1. Discards the
    /// packets that the leaf sent meanwhile.
    fn order(&mut self, number: u64, filter: Option<Filter>, count: u64) {
        let explainer = |filter| Explainer::new(filter, count, Arc::clone(&self.records));
        self.commands.push(TapOrder::explain(number, filter.map(explainer))).unwrap();
        self.poll();
        assert_eq!(self.commands.epoch(), number);
        self.sent();
    }

    /// Polls the leaf a millisecond later.
    fn poll(&mut self) {
        self.now += 1_000_000;
        self.leaf.poll(self.now);
    }

    /// Returns the packets sent by both ports since the last call.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        for port in &mut self.far {
            sent.extend(std::iter::from_fn(|| Some(port.receive()?.bytes().to_vec())));
        }
        sent
    }

    /// Sends frames to a port at once. Returns the explanations.
    fn explain_frames(&mut self, port: usize, frames: &[Vec<u8>]) -> Vec<Record> {
        assert!(frames.iter().all(|frame| self.far[port].send(frame)));
        self.poll();
        std::iter::from_fn(|| self.records.next()).collect()
    }
}

/// Creates a leaf that explains all packets.
fn explained(text: &str) -> Node {
    Node::new(text, Some(Filter::default()))
}

/// Returns this number of a client's tasks.
fn tasks(count: u16) -> Vec<Vec<u8>> {
    (0..count).map(|seq| task(Header::new_task(POOL, seq))).collect()
}

/// Returns packets that a leaf drops, each with its reason.
fn refused() -> Vec<(DropReason, Vec<u8>)> {
    // A task with a changed bit behind its UDP header, and one with a time to live of 1.
    let (mut damaged, mut last_hop) = (tasks(1).remove(0), tasks(1).remove(0));
    damaged[50] ^= 1;
    last_hop[ether::LEN + 8] = 1;
    let sum = u16::from_be_bytes([last_hop[24], last_hop[25]]);
    // The time to live, 64, is the upper half of a word. It is reduced by 63: the complement in the checksum grows
    // by the same amount.
    let (sum, carry) = sum.overflowing_add(63 << 8);
    last_hop[24..26].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
    vec![
        (DropReason::UdpChecksum, damaged),
        (DropReason::TtlExpired, last_hop),
        (DropReason::UnknownPool, task(Header::new_task(99, 3))),
        (DropReason::EtherType, vec![0xFF; 60]),
        (DropReason::Runt, vec![1; 10]),
    ]
}

// promise: control.3
#[test]
fn each_task_is_explained_with_its_decision() {
    let mut node = explained(&config("horus", false));
    let explanations = node.explain_frames(0, &tasks(6));
    assert_eq!(explanations.len(), 6);
    for (at, record) in explanations.iter().enumerate() {
        let Fate::Sent { port: 1, worker } = record.fate else { panic!("{record:?}") };
        let beliefs = record.beliefs.as_ref().unwrap();
        assert_eq!(
            (record.port, record.moment, record.worker),
            (Some(0), Moment::Arrived, Some(worker))
        );
        assert_eq!((beliefs.active, record.follows), (4, false));
        // The policy picks the four idle workers first, and then the better of two drawn workers.
        let idle = 4_usize.saturating_sub(at);
        assert_eq!((beliefs.idle, record.idle), (idle, idle > 0), "{at}");
        let basis = if idle > 0 { SelectionBasis::Idle } else { SelectionBasis::Drawn };
        assert_eq!(beliefs.basis, basis, "{at}");
        let chosen = record.chosen.unwrap();
        let known = beliefs.workers.iter().position(|&id| id == worker).unwrap();
        let before = beliefs.estimates[known];
        assert!(before.is_considered && before.member == chosen.member, "{record:?}");
        assert_eq!(chosen.outstanding, before.outstanding + 1, "{at}");
        assert_eq!(chosen.drift.0, before.drift.0 + Load::ONE.0, "{at}");
    }
    assert_eq!(node.sent().len(), 6);
    // A reply, and the estimates after it.
    let explanations = node.explain_frames(1, &[reply(12, 3, LEAF_MACS[1])]);
    assert_eq!(explanations[0].fate, Fate::Sent { port: 0, worker: 12 });
    let mut node = explained(&config("jsq", false));
    node.explain_frames(0, &tasks(1));
    let first = node.sent().pop().unwrap();
    let worker = Header::parse(&first[udp::PAYLOAD..]).unwrap().dst;
    node.explain_frames(1, &[reply(worker, 5, LEAF_MACS[1])]);
    let explanations = node.explain_frames(0, &tasks(1));
    let beliefs = explanations[0].beliefs.as_ref().unwrap();
    let known = beliefs.workers.iter().position(|&id| id == worker).unwrap();
    assert_eq!(beliefs.estimates[known].load, Load::tasks(5));
    assert_eq!(beliefs.basis, SelectionBasis::Best);
}

// promise: control.3
#[test]
fn drops_are_explained_and_filters_apply() {
    let (reasons, frames): (Vec<_>, Vec<_>) = refused().into_iter().unzip();
    let all: Vec<_> = tasks(3).into_iter().chain(frames).collect();
    let fates =
        |explanations: &[Record]| explanations.iter().map(|one| one.fate).collect::<Vec<_>>();
    let dropped: Vec<_> = reasons.iter().map(|&reason| Fate::Dropped(reason)).collect();
    let mut node = explained(&config("random", false));
    let explanations = node.explain_frames(0, &all);
    assert_eq!(fates(&explanations)[3..], dropped);
    assert!(explanations[..3].iter().all(|one| matches!(one.fate, Fate::Sent { .. })));
    assert!(explanations[3..].iter().all(|one| one.chosen.is_none()));
    let drops = Filter { drops: true, ..Filter::default() };
    assert_eq!(
        fates(&Node::new(&config("random", false), Some(drops)).explain_frames(0, &all)),
        dropped
    );
    // Returns the number of explanations under a filter.
    let counted =
        |filter| Node::new(&config("random", false), Some(filter)).explain_frames(0, &all).len();
    let all = Filter::default();
    // The three tasks and the first two refused packets are of the pool. The task of pool 99 is also the client's.
    assert_eq!(counted(Filter { reason: Some(DropReason::Runt), ..all }), 1);
    assert_eq!(counted(Filter { pool: Some(99), ..all }), 1);
    assert_eq!(counted(Filter { pool: Some(POOL), ..all }), 5);
    let host = |bits| IpAddr::V4(Ipv4Addr::from_bits(bits));
    assert_eq!(counted(Filter { host: Some(host(CLIENT)), ..all }), 6);
    assert_eq!(counted(Filter { host: Some(host(CLIENT + 1)), ..all }), 0);
    // Bit 1: only the port towards workers.
    assert_eq!(counted(Filter { ports: 2, ..all }), 0);
    let of_each: Vec<_> = (10..14).map(|id| counted(Filter { worker: Some(id), ..all })).collect();
    assert_eq!(of_each.iter().sum::<usize>(), 3, "{of_each:?}");
}

// promise: control.3
#[test]
fn waiting_is_explained_at_both_ends() {
    let mut node = explained(&config("jbsq(k=1)", false));
    let explanations = node.explain_frames(0, &tasks(7));
    let fates: Vec<_> = explanations.iter().map(|one| one.fate).collect();
    assert!(fates[..4].iter().all(|fate| matches!(fate, Fate::Sent { .. })), "{fates:?}");
    let full = Fate::Dropped(DropReason::QueueFull);
    assert_eq!(fates[4..], [Fate::Queued, Fate::Queued, full]);
    // The second queued task found one of two places taken.
    let beliefs = explanations[5].beliefs.as_ref().unwrap();
    assert_eq!((beliefs.queue, beliefs.bound), ((1, 2), Some(1)));
    assert!(beliefs.estimates.iter().all(|one| one.outstanding == 1));
    let explanations = node.explain_frames(1, &[reply(12, 0, LEAF_MACS[1])]);
    let waited: Vec<_> = explanations.iter().filter(|one| one.moment == Moment::Waited).collect();
    assert_eq!(waited.len(), 1, "{explanations:?}");
    assert_eq!(waited[0].fate, Fate::Sent { port: 1, worker: 12 });
    assert_eq!(waited[0].seen.header().unwrap().seq, 4, "the first that waits");
    // Packets that wait for a next hop are explained on arrival and on departure.
    let mut node = explained(&config("random", true));
    let explanations = node.explain_frames(0, &tasks(2));
    assert!(
        explanations.iter().all(|one| matches!(one.fate, Fate::Held { port: 1, .. })),
        "{explanations:?}"
    );
    let question = node.sent().into_iter().find_map(|frame| arp::Packet::parse(&frame).ok());
    let question =
        question.unwrap_or_else(|| arp::Packet::request(LEAF_MACS[1], 0x0A00_0201, SERVERS[0]));
    let explanations = node.explain_frames(1, &[arp_answer(&question, mac_of(SERVERS[0]))]);
    let waited = explanations.iter().filter(|one| one.moment == Moment::Waited).count();
    assert_eq!((explanations[0].fate, waited), (Fate::Consumed, 2), "{explanations:?}");
    assert!(
        explanations[1..].iter().all(|one| matches!(one.fate, Fate::Sent { port: 1, .. })),
        "{explanations:?}"
    );
}

// promise: control.3
#[test]
fn later_packets_of_a_task_follow_the_first() {
    let mut node = explained(&config("random", false));
    let first = Header { more: true, ..Header::new_task(POOL, 9) };
    let next = Header { code: Code::TaskContinuation, ..first };
    let last = Header { more: false, ..next };
    let explanations = node.explain_frames(0, &[first, next, last].map(task));
    let follows: Vec<_> = explanations.iter().map(|one| one.follows).collect();
    assert_eq!(follows, [false, true, true]);
    assert!(
        explanations.iter().all(|one| one.worker == explanations[0].worker && one.worker.is_some())
    );
    let explanations = node.explain_frames(0, &[task(Header { seq: 10, ..last })]);
    assert_eq!(explanations[0].fate, Fate::Dropped(DropReason::UnknownConnection));
}

// promise: control.3
#[test]
fn explaining_changes_no_decision_and_counts_overruns() {
    for policy in ["horus", "jsq", "racksched", "round-robin", "lsq-update"] {
        let mut nodes =
            [None, Some(Filter::default())].map(|filter| Node::new(&config(policy, false), filter));
        for round in 0..60_u16 {
            let sent = nodes.each_mut().map(|node| {
                node.explain_frames(0, &tasks(5));
                let report = reply(10 + round % 4, round % 3, LEAF_MACS[1]);
                node.explain_frames(1, &[report]);
                node.sent()
            });
            assert!(!sent[0].is_empty() && sent[0] == sent[1], "{policy}, {round}");
        }
    }
    let mut node = explained(&config("random", false));
    for _ in 0..200 {
        let frames = tasks(32);
        assert!(frames.iter().all(|frame| node.far[0].send(frame)));
        node.poll();
        node.sent();
    }
    // The records are not read meanwhile. Their queue has room for 4096.
    let read = std::iter::from_fn(|| node.records.next()).count() as u64;
    assert!(read >= 4096 && node.records.lost() > 0, "{read}");
    assert_eq!(read + node.records.lost(), 200 * 32);
    assert_eq!(node.leaf.stages().counters().read(Counter::Scheduled), 200 * 32);
    // At most this number of records, and none after the end.
    node.order(3, Some(Filter::default()), 5);
    assert_eq!(node.explain_frames(0, &tasks(8)).len(), 5);
    node.order(4, Some(Filter::default()), 5);
    node.order(5, None, 0);
    assert!(node.explain_frames(0, &tasks(8)).is_empty());
}

// promise: control.3
#[test]
fn packets_rejected_by_a_device_are_explained() {
    // The ring to the workers has room for 64 packets.
    let mut node = explained(&config("random", false));
    for _ in 0..2 {
        assert!(tasks(32).iter().all(|frame| node.far[0].send(frame)));
        node.poll();
    }
    while node.records.next().is_some() {}
    let explanations = node.explain_frames(0, &tasks(3));
    let unsent: Vec<_> = explanations.iter().filter(|one| one.moment == Moment::Leaving).collect();
    assert_eq!(unsent.len(), 3, "{explanations:?}");
    assert!(unsent.iter().all(|one| one.fate == Fate::Dropped(DropReason::TxFull)));
    assert!(unsent.iter().all(|one| one.port == Some(1)));
}

// promise: control.3
#[test]
fn agent_explains_assignment_and_outcome() {
    let text = "[agent]\nname = 'explained'\ncore = 1\nseed = 7\nslots = 4\npayload = 64\n\
                [[port]]\ndevice = 'memory'\nip = '10.0.2.11/24'\nmac = '02:00:00:00:02:0b'\n\
                [[pool]]\nid = 7\npolicy = 'jbsq(k=1)'\nqueue = 64\nworkers = '10-11'\n";
    let pool = FramePool::new(64, 2048);
    let (near, mut far) = pair(16, &pool);
    let built = rig::agent(text, rig::TICKS_HZ, (vec![near], &pool), None);
    let rig::AgentRig { agent, handles, .. } = built;
    let (commands, records) = (TapCommands::default(), Arc::<Records>::default());
    let mut agent = agent.with_tap(commands.clone());
    let mut workers = rig::Workers::default();
    assert!(workers.attach(&handles, 10));
    let explainer = Explainer::new(Filter::default(), u64::MAX, Arc::clone(&records));
    commands.push(TapOrder::explain(2, Some(explainer))).unwrap();
    let mut now = 0;
    let mut poll = |agent: &mut wedjat::role::Agent<RingPort, FramePool>| {
        now += 1_000_000;
        agent.poll(now);
    };
    poll(&mut agent);
    workers.work(|| false); // the agent grants the worker
    let to_agent = |seq| {
        let flow = udp::Flow {
            src_mac: CLIENT_MAC,
            dst_mac: mac_of(SERVERS[0]),
            src: CLIENT,
            dst: SERVERS[0],
            src_port: 40_000,
            dst_port: 1234,
        };
        let header = Header::new_task(POOL, seq);
        let mut frame = vec![0; udp::PAYLOAD + header.len()];
        header.emit(&mut frame[udp::PAYLOAD..]);
        flow.emit(&mut frame, header.len());
        frame
    };
    let mut question = vec![0; arp::FRAME_LEN];
    arp::Packet::request(CLIENT_MAC, CLIENT, SERVERS[0]).emit(&mut question, Mac::BROADCAST);
    for frame in [to_agent(1), to_agent(2), question, task(Header::new_task(POOL, 3))] {
        assert!(far.send(&frame));
    }
    poll(&mut agent);
    let explanations: Vec<_> = std::iter::from_fn(|| records.next()).collect();
    let fates: Vec<_> = explanations.iter().map(|one| (one.fate, one.worker)).collect();
    let other = Fate::Dropped(DropReason::OtherMac);
    assert!(matches!(fates[0], (Fate::Given { .. }, Some(10))), "{fates:?}");
    assert_eq!(fates[1..], [(Fate::Queued, None), (Fate::Answered, None), (other, None)]);
    let beliefs = explanations[1].beliefs.as_ref().unwrap();
    // Worker 11 is not attached, so the policy may not choose it. `excluded` counts silent, unreachable and other
    // members.
    assert_eq!((beliefs.active, beliefs.bound, beliefs.excluded), (1, Some(1), [0, 0, 1]));
    let mut explanations = Vec::new();
    for _ in 0..8 {
        workers.work(|| true);
        poll(&mut agent);
        explanations.extend(std::iter::from_fn(|| records.next()));
    }
    let ended: Vec<_> = explanations.iter().map(|one| (one.moment, one.fate)).collect();
    let answered = (Moment::Ended, Fate::Sent { port: 0, worker: 10 });
    assert_eq!(ended, [answered, answered]);
}

/// Configuration of an agent with workers 10 and 11, at most one task per worker, and a queue of two.
const AGENT: &str = "[agent]\nname = 'explained'\ncore = 1\nseed = 7\nslots = 4\npayload = 64\n\
     [[port]]\ndevice = 'memory'\nip = '10.0.2.11/24'\nmac = '02:00:00:00:02:0b'\n\
     [[pool]]\nid = 7\npolicy = 'jbsq(k=1)'\nqueue = 2\nworkers = '10-11'\n";

/// Returns the frame of a task to the agent; with `reply_of`, the agent's reply to that task by this worker.
fn at_agent(seq: u16, reply_of: Option<u16>) -> Vec<u8> {
    let (client, agent) = ((CLIENT_MAC, CLIENT, 40_000), (mac_of(SERVERS[0]), SERVERS[0], 1234));
    let (from, to) = if reply_of.is_some() { (agent, client) } else { (client, agent) };
    let task = Header::new_task(POOL, seq);
    let done = |src| Header { code: Code::TaskDone, src, ..task };
    let header = reply_of.map_or(task, done);
    let mut frame = vec![0; udp::PAYLOAD + header.len()];
    header.emit(&mut frame[udp::PAYLOAD..]);
    let flow = udp::Flow {
        src_mac: from.0,
        dst_mac: to.0,
        src: from.1,
        dst: to.1,
        src_port: from.2,
        dst_port: to.2,
    };
    flow.emit(&mut frame, header.len());
    frame
}

// promise: control.3
#[test]
fn agent_capture_is_explained_without_workers() {
    // Two tasks go to the workers, two wait, and one finds the queue full. The capture then holds the replies
    // to 2 and 1.
    let tasks = (1..=5).map(|seq| at_agent(seq, None));
    let all: Vec<_> =
        tasks.chain([(2, 11), (1, 10)].map(|(seq, by)| at_agent(seq, Some(by)))).collect();
    let home = Home::new(AGENT, &all);
    let output = home.explain("in.pcap", &["--format", "json"]);
    let (_, error) = texts(&output);
    assert!(error.contains("note: assumes that all 2 workers are attached"), "{error}");
    assert!(error.contains("the capture has 2 replies"), "{error}");
    let explanations = json(&output);
    let moment_and_fate = |record: &Value| {
        let text = |key: &str| record[key].as_str().unwrap().to_owned();
        (text("moment"), text("fate"))
    };
    let arrived: Vec<_> =
        explanations.iter().filter(|one| one["moment"] == "arrived").map(moment_and_fate).collect();
    let fates: Vec<_> = arrived.iter().map(|(_, fate)| fate.as_str()).collect();
    assert_eq!(fates, ["given", "given", "queued", "queued", "dropped"], "{explanations:?}");
    assert_eq!(explanations[4]["reason"], "queue_full");
    assert_eq!(explanations[2]["beliefs"]["bound"], 1);
    let first: Vec<_> =
        explanations[..2].iter().map(|one| one["worker"].as_u64().unwrap()).collect();
    let ended: Vec<_> = explanations.iter().filter(|one| one["moment"] == "ended").collect();
    // The worker with the task ends it, even if another had the task in the capture.
    let by: Vec<_> = ended.iter().map(|one| one["worker"].as_u64().unwrap()).collect();
    assert_eq!(by, [first[1], first[0]], "{explanations:?}");
    assert!(ended.iter().all(|one| one["fate"] == "sent"), "{explanations:?}");
    let (out, _) = texts(&home.explain("in.pcap", &[]));
    assert!(
        out.contains("memory: task 1 of pool 7 from 10.0.1.2:40000 is given to worker 1"),
        "{out}"
    );
    assert!(out.contains("was served by worker 1"), "{out}");
    // Without replies no task ends.
    let home = Home::new(AGENT, &all[..3]);
    let (out, error) = texts(&home.explain("in.pcap", &[]));
    assert!(
        error.contains("the capture has 0 replies") && !out.contains("is done"),
        "{out}{error}"
    );
}

/// A folder with a configuration and a capture.
struct Home(tempfile::TempDir);

impl Home {
    /// Writes the configuration to `node.toml`, and the frames to `in.pcap`.
    fn new(config: &str, frames: &[Vec<u8>]) -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        fs::write(home.path("node.toml"), config).unwrap();
        write_frames(&home.path("in.pcap"), frames).unwrap();
        home
    }

    /// Returns the path of a file in the folder.
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Explains a capture of this name, with additional arguments.
    fn explain(&self, capture: &str, more: &[&str]) -> Output {
        let (capture, config) = (self.path(capture), self.path("node.toml"));
        let (capture, config) = (capture.to_str().unwrap(), config.to_str().unwrap());
        wedjat(&[&["explain", "--file", capture, config], more].concat())
    }
}

/// Runs a `wedjat` command.
fn wedjat(arguments: &[&str]) -> Output {
    Command::new(WEDJAT).args(arguments).env_remove("WEDJAT_STATE").output().unwrap()
}

/// Returns standard output and standard error.
fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// Checks that the command failed with a message that contains these words.
fn fails(output: &Output, words: &[&str]) {
    let (_, stderr) = texts(output);
    assert!(!output.status.success() && !stderr.contains("panicked"), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in: {stderr}");
    }
}

/// Returns the JSON values, one per line, of a command that must have succeeded.
fn json(output: &Output) -> Vec<Value> {
    let (out, error) = texts(output);
    assert!(output.status.success(), "{error}");
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

// promise: control.3
#[test]
fn a_capture_is_explained_without_a_node() {
    let (reasons, frames): (Vec<_>, Vec<_>) = refused().into_iter().unzip();
    let all: Vec<_> = tasks(2).into_iter().chain(frames).collect();
    // The capture gives port 0's missing MAC address. ARP finds that of the server: its requests are answered.
    let text = config("horus", true).replace(&format!("mac = '{}'\n", LEAF_MACS[0]), "");
    let home = Home::new(&text, &all);
    let explanations = json(&home.explain("in.pcap", &["--format", "json"]));
    assert_eq!(explanations.len(), all.len());
    for one in &explanations[..2] {
        assert_eq!(
            (&one["fate"], &one["port"], &one["out"]),
            (&"sent".into(), &"c".into(), &"w".into())
        );
        assert_eq!(one["server"], "10.0.2.11", "{one}");
        let beliefs = &one["beliefs"];
        assert_eq!((&beliefs["policy"], &beliefs["basis"]), (&"horus".into(), &"idle".into()));
        let chosen =
            beliefs["candidates"].as_array().unwrap().iter().find(|one| one["chosen"] == true);
        assert_eq!(chosen.unwrap()["worker"], one["worker"]);
    }
    for (one, reason) in explanations[2..].iter().zip(&reasons) {
        assert_eq!((&one["fate"], &one["reason"]), (&"dropped".into(), &reason.name().into()));
        assert_eq!(one["look_at"], reason.look_at());
    }
    let (out, error) = texts(&home.explain("in.pcap", &["--drops", "--count", "3"]));
    let lines: Vec<_> = out.lines().collect();
    assert!(error.contains("note: port 0 (c) is assumed to have 02:00:00:00:00:01"), "{error}");
    assert!(error.ends_with("3 packets explained\n"), "{error}");
    assert!(
        lines[0].ends_with(
            "c: task 0 of pool 7 from 10.0.1.2:40000 is dropped, udp_checksum: UDP checksum present and wrong; look at: the \
             sender, the link; `port.checksums`"
        ),
        "{out}"
    );
    assert!(lines[2].contains("task 3 of pool 99") && lines[2].contains("unknown_pool"), "{out}");
    assert_eq!(lines.len(), 3);
    let (out, _) = texts(&home.explain("in.pcap", &["--count", "1"]));
    assert!(
        out.contains(
            "goes to worker 13 (10.0.2.11) by w: horus, one of 4 idle workers, of 4; 13 reported 0"
        ),
        "{out}"
    );
    assert_eq!(json(&home.explain("in.pcap", &["--pool", "99", "--format", "json"])).len(), 1);
}

/// Repeats [`a_capture_is_explained_without_a_node`] over IPv6, with neighbour discovery.
#[test]
fn a_capture_of_ipv6_is_explained() {
    let text = config("horus", true).replace("'10.0.1.1/24'", "'fd00:1::1/64'");
    let text =
        text.replace("'10.0.2.1/24'", "'fd00:2::1/64'").replace("'10.0.2.11'", "'fd00:2::b'");
    let bits = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().to_bits();
    let (src, dst) = (bits("fd00:1::9"), bits("fd00:1::1"));
    let (src_mac, dst_mac) = (CLIENT_MAC, LEAF_MACS[0]);
    let flow = udp::Flow { src_mac, dst_mac, src, dst, src_port: 40_000, dst_port: 1234 };
    let mut task = vec![0; udp::PAYLOAD_V6 + 20];
    Header::new_task(POOL, 0).emit(&mut task[udp::PAYLOAD_V6..]);
    flow.emit_v6(&mut task, 20);
    let mut damaged = task.clone();
    damaged[udp::PAYLOAD_V6 + 15] ^= 1;
    // A hop limit of 1.
    let mut last_hop = task.clone();
    last_hop[ether::LEN + 7] = 1;
    // A next header of 0: hop-by-hop options.
    let mut extended = task.clone();
    extended[ether::LEN + 6] = 0;
    let mut asks = vec![0; ndp::FRAME_LEN];
    let (question, to) = ndp::Packet::question(CLIENT_MAC, src, dst, None);
    question.emit(&mut asks, to, false);
    let home = Home::new(&text, &[asks, task.clone(), damaged, last_hop, extended]);
    let explanations = json(&home.explain("in.pcap", &["--format", "json"]));
    let what: Vec<_> = explanations.iter().map(|one| (&one["fate"], &one["reason"])).collect();
    let dropped = |reason: &str| ("dropped".to_owned(), reason.to_owned());
    let text = |(fate, reason): &(&Value, &Value)| {
        (fate.as_str().unwrap().to_owned(), reason.as_str().unwrap_or_default().to_owned())
    };
    let sent = ("sent".to_owned(), String::new());
    assert_eq!(what.len(), 5, "{explanations:?}");
    assert_eq!(text(&what[1]), sent, "{explanations:?}");
    assert_eq!(explanations[1]["server"], "fd00:2::b");
    for (at, reason) in [(2, "udp_checksum"), (3, "ttl_expired"), (4, "ipv6_extension")] {
        assert_eq!(text(&what[at]), dropped(reason));
    }
    let (out, error) = texts(&home.explain("in.pcap", &["--host", "fd00:1::9"]));
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[0].contains("neighbour solicitation of fd00:1::9 for fd00:1::1"), "{out}");
    assert!(lines[1].contains("task 0 of pool 7 from [fd00:1::9]:40000 goes to worker"), "{out}");
    assert!(lines[4].contains("IPv6 from fd00:1::9 to fd00:1::1 of protocol 0"), "{out}");
    assert!(error.ends_with("5 packets explained\n"), "{error}");
    // A truncated packet's checksum counts as right.
    let file = fs::File::create(home.path("cut.pcap")).unwrap();
    let mut capture = Capture::in_file(file, &home.path("cut.pcap")).unwrap();
    capture.write(std::time::Duration::ZERO, task.len() as u32, &task[..75]).unwrap();
    capture.finish().unwrap();
    assert_eq!(json(&home.explain("cut.pcap", &["--format", "json"]))[0]["fate"], "sent");
}

// promise: control.3
#[test]
fn complete_and_truncated_captures_are_explained() {
    // A capture of both directions: packets sent by the leaf itself are skipped.
    let mut node = Node::new(&config("random", false), None);
    let mut captured = tasks(3);
    node.explain_frames(0, &captured.clone());
    let sent = node.sent();
    assert_eq!(sent.len(), 3);
    captured.extend(sent);
    captured.push(reply(10, 0, LEAF_MACS[1]));
    let home = Home::new(&config("random", false), &captured);
    let explanations = json(&home.explain("in.pcap", &["--format", "json"]));
    let fates: Vec<_> = explanations
        .iter()
        .map(|one| (one["port"].as_str().unwrap(), one["moment"].as_str().unwrap()))
        .collect();
    assert_eq!(
        fates[..4],
        [("c", "arrived"), ("c", "arrived"), ("c", "arrived"), ("w", "arrived")]
    );
    assert!(
        explanations[3]["packet"].as_str().unwrap().contains("reply of worker 10"),
        "{}",
        explanations[3]
    );
    // ARP resolves the client, and the reply is sent.
    assert!(
        explanations[3]["fate"] == "sent" || explanations[4]["fate"] == "sent",
        "{explanations:?}"
    );
    // Truncated packets, as `tap start --snaplen` writes them.
    let file = fs::File::create(home.path("cut.pcap")).unwrap();
    let mut capture = Capture::in_file(file, &home.path("cut.pcap")).unwrap();
    for (at, frame) in tasks(4).iter().enumerate() {
        let time = std::time::Duration::from_millis(at as u64);
        capture.write(time, frame.len() as u32, &frame[..56]).unwrap();
    }
    capture.finish().unwrap();
    let output = home.explain("cut.pcap", &["--format", "json"]);
    assert!(texts(&output).1.contains("4 packets are truncated"), "{output:?}");
    assert!(json(&output).iter().all(|one| one["fate"] == "sent"));
}

// promise: control.3
#[test]
fn inexplicable_input_names_the_cause() {
    let home = Home::new(&config("random", false), &tasks(1));
    let absent = home.path("absent");
    let absent = absent.to_str().unwrap();
    fails(&home.explain("absent", &[]), &["cannot read the capture", "No such file"]);
    fs::write(home.path("text"), "no capture at all, but some text in a file").unwrap();
    fails(&home.explain("text", &[]), &["is not a whole pcap file"]);
    let capture = home.path("in.pcap");
    let capture = capture.to_str().unwrap();
    fails(&wedjat(&["explain", "--file", capture, absent]), &["absent", "No such file"]);
    let wrong = home.path("wrong.toml");
    fs::write(&wrong, config("horos", false)).unwrap();
    fails(
        &wedjat(&["explain", "--file", capture, wrong.to_str().unwrap()]),
        &["wrong.toml", "horos"],
    );
    let other = home.path("other.toml");
    let node = "[agent]\nname = 'a'\ncore = 0\n[[port]]\ndevice = 'p'\nip = '10.0.2.11/24'\n\
                [[pool]]\nid = 7\npolicy = 'jbsq(k=1)'\nworkers = '10'\n\
                [peers]\nnodes = ['10.0.2.11', '10.0.2.12']\n";
    fs::write(&other, node).unwrap();
    fails(
        &wedjat(&["explain", "--file", capture, other.to_str().unwrap()]),
        &["other.toml: this agent has [peers]", "--node"],
    );
    fails(&home.explain("in.pcap", &["--port", "3"]), &["port 3: no such port", "0 (c), 1 (w)"]);
    fails(&home.explain("in.pcap", &["--reason", "udp_chksum"]), &["udp_chksum", "udp_checksum"]);
    fails(&home.explain("in.pcap", &["--host", "here"]), &["host here", "an address"]);
    fails(&home.explain("in.pcap", &["--pool", "70000"]), &["pool 70000", "0 to 65535"]);
    fails(&home.explain("in.pcap", &["--worker", "32767"]), &["worker 32767"]);
    fails(&wedjat(&["explain", "--file", capture]), &["CONFIG"]);
    fails(&wedjat(&["explain", "node.toml"]), &["--file"]);
    fails(&wedjat(&["explain", "--node", absent]), &["no node answers"]);
}

// promise: control.3
#[cfg(all(feature = "dpdk", target_os = "linux"))]
#[test]
fn a_running_leaf_explains_its_packets() {
    use timeouts::wait_until;

    let (_, frames): (Vec<_>, Vec<_>) = refused().into_iter().unzip();
    let home = running::Home::given(&tasks(20).into_iter().chain(frames).collect::<Vec<_>>());
    let leaf = home.start(home.leaf(&[]));
    let state = home.state();
    let state = state.to_str().unwrap();
    let explain = |more: &[&str]| wedjat(&[&["explain", "--node", state], more].concat());
    let explanations = json(&explain(&["--count", "200", "--format", "json"]));
    assert_eq!(explanations.len(), 200);
    // Returns the number of records with this value of a key.
    let of = |key: &str, value: &str| explanations.iter().filter(|one| one[key] == value).count();
    assert_eq!(of("fate", "sent") + of("fate", "dropped"), 200, "{explanations:?}");
    assert_eq!(of("port", "net_pcap0"), 200, "{}", explanations[0]);
    for reason in ["udp_checksum", "ttl_expired", "unknown_pool", "ether_type", "runt"] {
        // Each is one of 25 packets in the capture: 8 of 200 on average.
        let count = of("reason", reason);
        assert!((4..=12).contains(&count), "{reason}: {count}");
    }
    for one in explanations.iter().filter(|one| one["fate"] == "sent") {
        assert_eq!((&one["server"], &one["pool"]), (&"10.0.2.11".into(), &POOL.into()));
        let candidates = one["beliefs"]["candidates"].as_array().unwrap();
        assert!(
            candidates.iter().any(|one| one["drawn"] == true && one["chosen"] == true),
            "{one}"
        );
    }
    let times: Vec<_> = explanations.iter().map(|one| one["time_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted());
    let (out, error) = texts(&explain(&["--reason", "unknown_pool", "--count", "3"]));
    assert_eq!(out.lines().count(), 3, "{error}");
    let line = "net_pcap0: task 3 of pool 99 from 10.0.1.2:40000 is dropped, unknown_pool: Unknown pool id; look at: `[[pool]]`, `[[server]]`";
    assert!(out.lines().all(|one| one.ends_with(line)), "{out}");
    let (out, error) = texts(&explain(&["--host", "10.9.9.9", "--for", "200ms"]));
    assert!(out.is_empty() && error.contains("0 packets explained"), "{out}{error}");
    assert!(explain(&["--port", "net_pcap0", "--count", "1"]).status.success());
    fails(&explain(&["--port", "net_pcap7"]), &["port net_pcap7: no such port", "net_pcap0"]);
    fails(&explain(&["--reason", "rnt"]), &["reason rnt"]);
    // Only one client at a time is served, and its end is noticed.
    let mut other = Command::new(WEDJAT)
        .args(["explain", "--node", state, "--count", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(other.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("net_pcap0: "), "{line}");
    fails(&explain(&["--count", "1"]), &["another `wedjat explain` is running"]);
    other.kill().unwrap();
    other.wait().unwrap();
    wait_until("the leaf notices the end", || explain(&["--count", "1"]).status.success());
    leaf.ended_by("-TERM");
}
