//! Observation of a leaf (the scheduler of a rack) under traffic. A tap copies packets of a running node into a pcap
//! file. The file holds all packets that pass during the tap, invalid taps are rejected, and the counts per worker are
//! right.
//!
//! The leaf's cores run in a thread of the test over ports in memory, with the client and the workers at their far
//! ends. A second thread serves the node's control, which a client reaches over gRPC.
#![cfg(feature = "admin")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod frames;
mod rig;
mod timeouts;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tonic::Code;
use wedjat::admin::generated::{StartTapRequest, Tap};
use wedjat::admin::{
    Access, ClientError, Connection, Handle, Requests, Server, TapOwner, TapPoints, TapSpec,
};
use wedjat::config::{Config, ControlConfig};
use wedjat::io::Buf as _;
use wedjat::io::memory::{FramePool, RingPort, pair};
use wedjat::io::pcap::read_frames;
use wedjat::node::tap::{TapBuffers, TapCommands, TapOrder, TapRecorder, copies};
use wedjat::role::Leaf;
use wedjat::wire::arp;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code as TaskCode, Header};
use wedjat::wire::udp;

use frames::*;
use rig::{CoreRig, Sizes};
use timeouts::wait_until;

/// Returns the leaf's configuration: two cores, and workers 10 to 13.
fn text(state: &Path) -> String {
    format!(
        "[leaf]\nid = 1\ncores = [1, 2]\nseed = 7\nstate = '{}'\n\
         [[port]]\ndevice = 'clients'\nside = 'clients'\nip = '10.0.1.1/24'\nmac = '{}'\n\
         [[port]]\ndevice = 'workers'\nside = 'workers'\nip = '10.0.2.1/24'\nmac = '{}'\n\
         [[pool]]\nid = {POOL}\npolicy = 'random'\n\
         [[server]]\nip = '10.0.2.11'\nmac = '02:00:00:00:02:0b'\nworkers = '10-13'\npool = {POOL}\n",
        state.display(),
        LEAF_MACS[0],
        LEAF_MACS[1]
    )
}

/// Traffic to and from the cores.
#[derive(Default)]
struct Traffic {
    /// Number of tasks still to be sent.
    wanted: AtomicU64,
    /// Number of replies received by clients.
    answered: AtomicU64,
    /// Packets of tasks and replies that the leaf received or sent, by port: clients, workers.
    passed: [Mutex<Vec<Vec<u8>>>; 2],
}

/// One core with its client and workers.
struct Core {
    /// The leaf's core.
    leaf: Leaf<RingPort, FramePool>,
    /// Test ends of its ports: clients, workers.
    far: Vec<RingPort>,
    /// Sequence number of the last task.
    seq: u16,
}

impl Core {
    /// Sends a frame to the leaf. Records it in `traffic` unless it is ARP.
    fn send(&mut self, port: usize, frame: Vec<u8>, traffic: &Traffic) {
        assert!(self.far[port].send(&frame), "the ring has room");
        if ether::ether_type(&frame) == ether::IPV4 {
            traffic.passed[port].lock().unwrap().push(frame);
        }
    }

    /// Sends a task if one is wanted, polls the leaf, and answers its packets.
    fn step(&mut self, now: u64, traffic: &Traffic) {
        let wanted = traffic.wanted.load(Acquire);
        if wanted > 0 {
            traffic.wanted.store(wanted - 1, Release);
            self.seq += 1;
            self.send(0, task(Header::new_task(POOL, self.seq)), traffic);
        }
        self.leaf.poll(now);
        for port in 0..2 {
            while let Some(frame) = self.far[port].receive() {
                self.respond(port, frame.bytes().to_vec(), traffic);
            }
        }
    }

    /// Handles a frame of the leaf: answers an ARP request, counts a reply at the client, or answers a task as its
    /// worker.
    fn respond(&mut self, port: usize, frame: Vec<u8>, traffic: &Traffic) {
        if ether::ether_type(&frame) == ether::ARP {
            let ask = arp::Packet::parse(&frame).unwrap();
            if ask.operation == arp::Operation::Request {
                let mac = if port == 0 { CLIENT_MAC } else { mac_of(ask.target) };
                self.send(port, arp_answer(&ask, mac), traffic);
            }
            return;
        }
        traffic.passed[port].lock().unwrap().push(frame.clone());
        let header = Header::parse(&frame[udp::PAYLOAD..]).unwrap();
        match port {
            0 => _ = traffic.answered.fetch_add(1, Release),
            _ => {
                let (src, dst) = (header.dst, header.src);
                let header = Header { code: TaskCode::TaskDoneIdle, src, dst, qlen: 0, ..header };
                self.send(1, reply_to(header, LEAF_MACS[1]), traffic);
            }
        }
    }
}

/// A leaf of two cores, polled by one thread.
struct Node {
    /// Folder of the state file and of captures.
    folder: tempfile::TempDir,
    /// Traffic of all cores.
    traffic: Arc<Traffic>,
    /// True while the cores must not poll.
    pause: Arc<AtomicBool>,
    /// True when the thread of the cores, or that of the control, should end.
    stop: [Arc<AtomicBool>; 2],
    /// Threads of the cores and of the control.
    threads: Vec<JoinHandle<()>>,
    /// Handle for requests to the control.
    handle: Option<Handle>,
    /// The control's gRPC server.
    server: Option<Server>,
}

impl Node {
    /// Starts the threads and the control's server.
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let config = Config::parse(Path::new("leaf.toml"), &text(&state)).unwrap();
        let mut node = Self {
            folder,
            traffic: Arc::default(),
            pause: Arc::default(),
            stop: Default::default(),
            threads: Vec::new(),
            handle: None,
            server: None,
        };
        let handle = node.run(&config);
        node.handle = Some(handle.clone());
        node.server = Server::start(&ControlConfig::default(), Some(&state), handle, &[]).unwrap();
        node
    }

    /// Starts the threads of the cores and of the control. Returns the handle for requests to the control.
    fn run(&mut self, config: &Config) -> Handle {
        let sizes = Sizes { depth: 64, frames: 256, bytes: 256 };
        let (built, table, control) = rig::leaves(rig::stages(&config.text, None), sizes);
        let taps: Vec<_> = built.iter().map(|_| TapCommands::default()).collect();
        let core = |(CoreRig { leaf, far, .. }, tap): (CoreRig, TapCommands)| {
            let leaf = leaf.with_tap(tap);
            Core { leaf, far, seq: 0 }
        };
        let mut cores: Vec<_> = built.into_iter().zip(taps.clone()).map(core).collect();
        let began = Instant::now();
        let now = move || began.elapsed().as_nanos() as u64;
        let (traffic, pause) = (Arc::clone(&self.traffic), Arc::clone(&self.pause));
        let stop = self.stop.clone().map(|stop| move || stop.load(Acquire));
        let [cores_stop, control_stop] = stop;
        self.threads.push(std::thread::spawn(move || {
            while !cores_stop() {
                if !pause.load(Acquire) {
                    cores.iter_mut().for_each(|core| core.step(now(), &traffic));
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }));
        // The control's thread sends the handle, by which the server passes requests to it.
        let (made, handle) = mpsc::channel();
        self.threads.push(std::thread::spawn(move || {
            let points = TapPoints {
                cores: taps,
                ports: vec!["clients".to_owned(), "workers".to_owned()],
                clock: Box::new(now),
                ticks_hz: rig::TICKS_HZ,
                cpus: Vec::new(),
            };
            // There is no configuration file to reload.
            let reader = Arc::new(|| Err("no file".to_owned()));
            let mut requests = Requests::new(control, table, reader).with_taps(points);
            made.send(requests.handle()).unwrap();
            while !control_stop() {
                requests.serve_for(Duration::from_millis(5), &Vec::new);
            }
        }));
        handle.recv().unwrap()
    }

    /// Returns the path of a file in the folder.
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Opens a client of the control.
    fn connect(&self) -> Connection {
        Connection::open(&Access::State(self.path("state"))).unwrap()
    }

    /// Sends this number of tasks through the leaf and waits until each is answered.
    fn pass(&self, tasks: u64) {
        let answered = self.traffic.answered.load(Acquire) + tasks;
        self.traffic.wanted.store(tasks, Release);
        wait_until("all tasks are answered", || self.traffic.answered.load(Acquire) >= answered);
    }

    /// Removes the recorded packets of all ports from `traffic`. Returns those of these ports, sorted.
    fn passed(&self, ports: &[usize]) -> Vec<Vec<u8>> {
        let all: Vec<_> = self
            .traffic
            .passed
            .iter()
            .map(|passed| std::mem::take(&mut *passed.lock().unwrap()))
            .collect();
        sorted(ports.iter().flat_map(|&port| all[port].clone()).collect())
    }

    /// Ends the threads in a leaf's order: the cores first.
    fn end(&mut self) {
        drop(self.server.take());
        for (stop, thread) in self.stop.iter().zip(self.threads.drain(..)) {
            stop.store(true, Release);
            thread.join().unwrap();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.server.take());
        self.stop.iter().for_each(|stop| stop.store(true, Release));
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

/// Sorts frames, because two cores pass them in any order.
fn sorted(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.sort();
    frames
}

/// Returns the packets of tasks and replies in a capture, sorted.
fn captured(path: &Path) -> Vec<Vec<u8>> {
    let frames = read_frames(path).unwrap();
    sorted(frames.into_iter().filter(|one| ether::ether_type(one) == ether::IPV4).collect())
}

/// Returns the request for a tap of all packets into a file.
fn into(file: &Path) -> StartTapRequest {
    StartTapRequest { file: file.display().to_string(), ..StartTapRequest::default() }
}

// promise: control.3
#[test]
fn active_tap_records_all_packets() {
    let node = Node::start();
    let mut connection = node.connect();
    // Packets before and after the tap do not count.
    node.pass(10);
    node.passed(&[]);
    let file = node.path("all.pcap");
    let tap = connection.start_tap(into(&file)).unwrap();
    assert_eq!(
        (&tap.ports[..], tap.snaplen, tap.ended),
        (&["clients".to_owned(), "workers".to_owned()][..], 16_000, false)
    );
    node.pass(300);
    let shown = connection.show().unwrap();
    assert_eq!(shown.tap.map(|tap| tap.file), Some(file.display().to_string()));
    let tap = connection.stop_tap().unwrap();
    let passed = node.passed(&[0, 1]);
    node.pass(10);
    assert_eq!(passed.len(), 4 * 300, "each task and each reply is received and sent");
    let frames = captured(&file);
    assert!(frames == passed, "{} of {}", frames.len(), passed.len());
    // The file also has ARP.
    assert_eq!((tap.lost, tap.written), (0, read_frames(&file).unwrap().len() as u64));
    let mode = fs::symlink_metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let shown = connection.show().unwrap();
    assert_eq!(shown.tap, None);
    for core in &shown.cores {
        let count = |name: &str| core.counters[name];
        let out = count("forwarded") + count("consumed") + count("held");
        assert_eq!(count("rx_packets"), out + core.drops.values().sum::<u64>(), "{core:?}");
        assert!(count("scheduled") >= 100, "both cores had tasks");
    }
}

// promise: control.3
#[test]
fn capture_timestamps_are_current_and_ascending() {
    use pcap_file::pcap::PcapReader;

    let node = Node::start();
    let mut connection = node.connect();
    let file = node.path("order.pcap");
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let began = now();
    connection.start_tap(into(&file)).unwrap();
    node.pass(300);
    connection.stop_tap().unwrap();
    let ended = now();
    let mut reader = PcapReader::new(fs::File::open(&file).unwrap()).unwrap();
    let packets = std::iter::from_fn(|| reader.next_packet().map(|one| one.unwrap().timestamp));
    let stamps: Vec<_> = packets.collect();
    assert!(stamps.len() >= 1200 && stamps.is_sorted());
    // Tolerance for the conversion from the cores' ticks to wall-clock time. A step of the wall clock fails the test.
    let slack = Duration::from_millis(1);
    assert!(began <= stamps[0] + slack && *stamps.last().unwrap() <= ended + slack);
}

// promise: control.3
#[test]
fn tap_limits_port_length_and_count() {
    let node = Node::start();
    let mut connection = node.connect();
    // A port's name or number; at most 48 bytes of each packet.
    for (port, at) in [("workers", 1), ("0", 0)] {
        let file = node.path(port);
        let tap = connection.start_tap(StartTapRequest {
            port: port.to_owned(),
            snaplen: Some(48),
            ..into(&file)
        });
        assert_eq!(tap.unwrap().ports, [["clients", "workers"][at]]);
        node.passed(&[]);
        node.pass(20);
        connection.stop_tap().unwrap();
        let passed = node.passed(&[at]).into_iter().map(|frame| frame[..48].to_vec());
        assert_eq!(captured(&file), sorted(passed.collect()));
    }
    let file = node.path("some.pcap");
    connection.start_tap(StartTapRequest { packets: Some(7), ..into(&file) }).unwrap();
    node.pass(50);
    wait_until("the tap has ended", || connection.show().unwrap().tap.is_none());
    assert_eq!(read_frames(&file).unwrap().len(), 7);
    let Tap { written, lost, ended, .. } = connection.stop_tap().unwrap();
    assert_eq!((written, lost, ended), (7, 0, true));
    // A node gives the result of an ended tap once.
    assert_eq!(connection.stop_tap().unwrap_err().to_string(), "no tap is on", "told once");
    // The result of an ended tap is discarded when the next one begins.
    connection.start_tap(StartTapRequest { packets: Some(1), ..into(&node.path("1")) }).unwrap();
    node.pass(5);
    wait_until("the tap has ended", || connection.show().unwrap().tap.is_none());
    connection.start_tap(into(&node.path("2"))).unwrap();
    assert!(connection.stop_tap().unwrap().file.ends_with("/2"));
}

// promise: control.3
#[test]
fn capture_ends_with_its_client() {
    let node = Node::start();
    let (mut connection, mut other) = (node.connect(), node.connect());
    // The node removes the file of a client that leaves during its capture, or after the last packet.
    for packets in [None, Some(1)] {
        let file = node.path("left");
        let call = connection.capture(StartTapRequest { packets, ..into(&file) }).unwrap();
        node.pass(5);
        assert!(file.exists());
        if packets.is_some() {
            wait_until("the tap has ended", || other.show().unwrap().tap.is_none());
        }
        drop((call, connection));
        wait_until("the tap has ended", || other.show().unwrap().tap.is_none());
        wait_until("the file is removed", || !file.exists());
        assert_eq!(other.stop_tap().unwrap_err().to_string(), "no tap is on");
        connection = node.connect();
    }
    // A client that asks for the result keeps its file.
    let file = node.path("kept");
    let call = connection.capture(into(&file)).unwrap();
    node.pass(5);
    connection.stop_tap().unwrap();
    drop((call, connection));
    // Another tap gives the node time to handle the end of the call.
    other.start_tap(into(&node.path("next"))).unwrap();
    other.stop_tap().unwrap();
    assert!(file.exists());
}

// promise: control.3
#[test]
fn nodes_own_capture_yields_to_a_client() {
    let node = Node::start();
    let mut connection = node.connect();
    let (sender, receiver) = mpsc::channel();
    let spec = TapSpec { file: node.path("own"), owner: TapOwner::Node, ..TapSpec::default() };
    node.handle.as_ref().unwrap().capture(spec, move |session| _ = sender.send(session));
    let session = receiver.recv().unwrap().unwrap();
    // Clients neither see nor end the node's own capture, from which it chooses a policy.
    assert_eq!(connection.show().unwrap().tap, None);
    assert_eq!(connection.stop_tap().unwrap_err().to_string(), "no tap is on");
    assert!(node.path("own").exists());
    connection.start_tap(into(&node.path("client"))).unwrap();
    assert!(!node.path("own").exists());
    node.pass(5);
    drop(session);
    assert!(connection.stop_tap().unwrap().written > 0);
}

// promise: control.3
#[test]
fn invalid_tap_is_refused_and_overwrites_nothing() {
    let node = Node::start();
    let mut connection = node.connect();
    let (existing, link, target) = (node.path("there"), node.path("link"), node.path("target"));
    fs::write(&existing, "mine").unwrap();
    symlink(&target, &link).unwrap();
    let into_file = |name: &str| into(&node.path(name));
    let mut refused = |request: StartTapRequest| {
        let shown = format!("{request:?}");
        match connection.start_tap(request) {
            Err(ClientError::Refused(status)) => (status.code(), status.message().to_owned()),
            other => panic!("{shown}: {other:?}"),
        }
    };
    let file = |file: &str| StartTapRequest { file: file.to_owned(), ..Default::default() };
    let long = "x".repeat(10_000);
    for (request, code, says) in [
        (file(""), Code::InvalidArgument, "an absolute path"),
        (file("a.pcap"), Code::InvalidArgument, "file \"a.pcap\"; allowed: an absolute path"),
        (file(&long), Code::InvalidArgument, "an absolute path"),
        (file("/a\0b"), Code::FailedPrecondition, ""),
        (file("/no/such/folder/a"), Code::FailedPrecondition, "make its folder first"),
        (file("/"), Code::AlreadyExists, "a folder of user 0 exists there"),
        (into_file("there"), Code::AlreadyExists, "a regular file"),
        (into_file("link"), Code::AlreadyExists, "a symbolic link"),
        (
            StartTapRequest { port: "2".to_owned(), ..into_file("a") },
            Code::NotFound,
            "0 (clients), 1 (",
        ),
        (StartTapRequest { port: long.clone(), ..into_file("a") }, Code::NotFound, "no such port"),
        (
            StartTapRequest { snaplen: Some(0), ..into_file("a") },
            Code::InvalidArgument,
            "1 to 16000",
        ),
        (
            StartTapRequest { snaplen: Some(16_001), ..into_file("a") },
            Code::InvalidArgument,
            "1 to 16000",
        ),
        (
            StartTapRequest { packets: Some(0), ..into_file("a") },
            Code::InvalidArgument,
            "1 or more",
        ),
    ] {
        let (found, message) = refused(request);
        assert_eq!(found, code, "{message}");
        assert!(message.contains(says) && message.len() < 500, "{says}: {message}");
    }
    assert_eq!(fs::read_to_string(&existing).unwrap(), "mine");
    assert!(!target.exists() && !node.path("a").exists());
    let mut other = node.connect();
    other.start_tap(into_file("first")).unwrap();
    let (code, message) = refused(into_file("second"));
    assert_eq!(code, Code::FailedPrecondition, "{message}");
    assert!(message.contains("a tap into ") && !node.path("second").exists(), "{message}");
    other.stop_tap().unwrap();
    let error = other.stop_tap().unwrap_err().to_string();
    assert_eq!(error, "no tap is on");
}

// promise: control.3
#[test]
fn records_are_whole_after_an_end_or_stall() {
    let mut node = Node::start();
    let mut connection = node.connect();
    // Cores that do not poll cannot start the tap. The request fails after 5 s.
    node.pause.store(true, Release);
    let late = connection.start_tap(into(&node.path("late"))).unwrap_err();
    assert!(late.to_string().contains("has not started it for 5 s"), "{late}");
    node.pause.store(false, Release);
    // The cores still start the tap. It records at least half of the 80 packets of 20 tasks and their replies.
    node.pass(20);
    assert!(connection.stop_tap().unwrap().written >= 40, "the tap has started late");
    connection.start_tap(into(&node.path("last"))).unwrap();
    node.passed(&[]);
    node.pass(20);
    drop(connection);
    node.end();
    assert_eq!(captured(&node.path("last")), node.passed(&[0, 1]));
}

// promise: control.3
#[test]
fn the_command_begins_and_ends_a_tap() {
    let node = Node::start();
    let ctl = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat"));
        command.args(["ctl", "--node"]).arg(node.path("state")).args(["tap"]).args(arguments);
        let output = command.current_dir(node.folder.path()).output().unwrap();
        let message = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), message)
    };
    let (done, message) = ctl(&["start", "--file", "here.pcap", "--port", "clients"]);
    assert!(done && message.ends_with("/here.pcap: records clients\n"), "{message}");
    node.pass(10);
    let (done, message) = ctl(&["start", "--file", "other.pcap"]);
    assert!(!done && message.contains("a tap into"), "{message}");
    let (done, message) = ctl(&["stop", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&message).unwrap();
    // The clients' port has passed 10 tasks and 10 replies.
    let frames = read_frames(&node.path("here.pcap")).unwrap();
    assert!(done && frames.len() >= 20, "{message}");
    assert_eq!((&json["written"], &json["lost"]), (&frames.len().into(), &0.into()));
    let (done, message) = ctl(&["stop"]);
    assert!(!done && message.contains("no tap is on"), "{message}");
    let (done, _) = ctl(&["start", "--file", "x", "--packets", "3", "--snaplen", "64"]);
    node.pass(10);
    let mut connection = node.connect();
    wait_until("the tap has ended", || connection.show().unwrap().tap.is_none());
    let (stopped, message) = ctl(&["stop"]);
    assert!(
        done && stopped && message.ends_with(": 3 packets, 0 lost; it had ended by itself\n"),
        "{message}"
    );
}

// promise: input.1
#[test]
fn pool_count_includes_removed_workers() {
    let node = Node::start();
    let mut connection = node.connect();
    node.pass(200);
    let pool = |connection: &mut Connection| connection.show().unwrap().pools.remove(0);
    let shown = pool(&mut connection);
    let tasks: Vec<_> = shown.workers.iter().map(|one| (one.sent, one.answered)).collect();
    assert_eq!((tasks.len(), tasks.iter().map(|(sent, _)| sent).sum()), (4, 200));
    assert!(tasks.iter().all(|&(sent, answered)| sent == answered && sent > 20), "{tasks:?}");
    assert_eq!(shown.scheduled, 200);
    connection.change(&["remove-workers workers=10-11".parse().unwrap()], None).unwrap();
    wait_until("workers 10 and 11 have left", || pool(&mut connection).workers.len() == 2);
    assert_eq!(pool(&mut connection).scheduled, 200);
    let add = format!("add-workers server=10.0.2.11 pool={POOL} workers=10");
    connection.change(&[add.parse().unwrap()], None).unwrap();
    node.pass(100);
    let shown = pool(&mut connection);
    let back = shown.workers.iter().find(|one| one.id == 10).unwrap();
    assert!((1..100).contains(&back.sent) && back.sent == back.answered, "{back:?}");
    assert_eq!(shown.scheduled, 300);
}

// promise: control.3
#[test]
fn an_agent_is_tapped_as_a_leaf_is() {
    let text = "[agent]\nname = 'tapped'\ncore = 1\nseed = 7\nslots = 4\npayload = 64\n\
                [[port]]\ndevice = 'memory'\nip = '10.0.2.11/24'\nmac = '02:00:00:00:02:0b'\n\
                [[pool]]\nid = 7\npolicy = 'jbsq(k=2)'\nqueue = 64\nworkers = '10-13'\n";
    let pool = FramePool::new(16, 2048);
    let (near, mut far) = pair(8, &pool);
    let built = rig::agent(text, rig::TICKS_HZ, (vec![near], &pool), None);
    let rig::AgentRig { agent, handles: _handles, .. } = built;
    let (commands, buffers) = (TapCommands::default(), Arc::<TapBuffers>::default());
    let mut agent = agent.with_tap(commands.clone());
    let recorder = Some(TapRecorder::new(&[0], 100, Arc::clone(&buffers)));
    commands.push(TapOrder::record(2, recorder)).unwrap();
    agent.poll(1_000_000);
    assert_eq!(commands.epoch(), 2);
    let mut question = vec![0; arp::FRAME_LEN];
    arp::Packet::request(CLIENT_MAC, 0x0A00_0263, SERVERS[0]).emit(&mut question, Mac::BROADCAST);
    assert!(far.send(&question));
    agent.poll(2_000_000);
    let answer = far.receive().unwrap().bytes().to_vec();
    agent.poll(3_000_000);
    let mut recorded = Vec::new();
    // The agent hands over a filled buffer at a later poll.
    for now in [4_000_000, 5_000_000] {
        while let Some(buffer) = buffers.next_filled() {
            recorded.extend(copies(&buffer).map(|copy| (copy.ticks, copy.bytes.to_vec())));
        }
        agent.poll(now);
    }
    assert_eq!(recorded, [(2_000_000, question), (2_000_000, answer)]);
}
