//! Test of three agents of a rack without a leaf, as processes in real time. One of the agents is killed.
//!
//! An agent gives tasks to the workers of its host. Without a leaf the agents are peers: a client sends a task to any
//! of them, and an agent with more load passes tasks to another. The peers exchange their loads in periodic heartbeats.
//! The test process is the switch between the agents (nodes), the client and the workers.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Extension, Header};
use wedjat::wire::udp::{self, Flow};
use wedjat::worker::{Detached, Options, Worker};

use super::echo::echo;
use super::family::{Family, as_v4};
use super::process::ChildProcess;
use super::timeouts::*;
use super::wires::Wires;

/// Number of agents.
const NODES: usize = 3;
/// Number of workers of each node.
const WORKERS: usize = 2;
/// The client's address, 10.0.2.100.
const CLIENT: u32 = 0x0A00_0264;
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 0x64]);
/// Maximum number of outstanding tasks of [`Switch::ask`], besides lost ones.
const WINDOW: usize = 32;

/// Returns a node's address, 10.0.2.11 for the first.
fn address(node: usize) -> u32 {
    0x0A00_020B + node as u32
}

/// Returns a node's MAC address.
fn mac(node: usize) -> Mac {
    Mac([2, 0, 0, 0, 2, 11 + node as u8])
}

/// Folder of the nodes' configurations, state files and logs.
struct Home {
    folder: tempfile::TempDir,
    /// Prefix of the names of this test's sockets.
    name: String,
    /// Family of the nodes and the client.
    family: Family,
}

impl Home {
    /// Creates the folder with a configuration for each node.
    fn new(family: Family) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = Self { folder, name: format!("wedjat-peers-{}", std::process::id()), family };
        let cpus = core_affinity::get_core_ids().unwrap();
        for node in 0..NODES {
            // The heartbeat interval is long and the worker timeout is off, so that a stall of the machine makes no
            // node or worker count as silent.
            let text = format!(
                "[agent]\nid = {node}\nname = '{}'\ncore = {}\nseed = 7\nworker_timeout_ms = 0\nstate = '{}'\n\
                 [peers]\nnodes = ['10.0.2.11', '10.0.2.12', '10.0.2.13']\npolicy = 'malcolm'\nbeat_us = 100000\n\
                 [[port]]\ndevice = 'net_memif0,role=server,id=0,socket=@{}-{node}'\nip = '10.0.2.{}/24'\nmac = '{}'\n\
                 [[pool]]\nid = 1\npolicy = 'jbsq(k=1)'\nworkers = '0-{}'\n",
                home.path(&format!("region{node}")).display(),
                cpus[node % cpus.len()].id,
                home.path(&format!("state{node}")).display(),
                home.name,
                11 + node,
                mac(node),
                WORKERS - 1,
            );
            fs::write(home.path(&format!("node{node}.toml")), family.text(&text)).unwrap();
        }
        home
    }

    /// Returns the path of a file in the folder.
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a node and waits until its state file exists.
    fn start(&self, node: usize) -> ChildProcess {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat"));
        command.args(["agent", "--config"]).arg(self.path(&format!("node{node}.toml")));
        command.args(["--duration", LIFETIME, "--stats", "-", "--", "--no-pci"]);
        let log = self.path(&format!("node{node}.log"));
        command.stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
        let mut running = ChildProcess::start(&mut command);
        wait_until(&format!("node {node} runs"), || {
            assert!(!running.has_ended(), "{}", fs::read_to_string(&log).unwrap());
            self.path(&format!("state{node}")).exists()
        });
        running
    }

    /// Starts a thread as a worker of a node. It echoes tasks until the node ends.
    fn worker(&self, node: usize) -> std::thread::JoinHandle<()> {
        let name = self.path(&format!("region{node}")).display().to_string();
        std::thread::spawn(move || {
            let options = Options { attach_timeout: TIMEOUT, ..Options::default() };
            let mut worker =
                Worker::attach(&name, &options).unwrap_or_else(|error| panic!("{error}"));
            match echo(&mut worker) {
                Some(Detached::Stopped | Detached::AgentDied) => {}
                Some(reason) => panic!("{reason}"),
                None => panic!("nothing came for {TIMEOUT:?}"),
            }
        })
    }

    /// Returns a node's state as `wedjat state` prints it; null if it cannot be read.
    fn state(&self, node: usize) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat"));
        let output = command.args(["state", "--json"]).arg(self.path(&format!("state{node}")));
        serde_json::from_slice(&output.output().unwrap().stdout).unwrap_or_default()
    }

    /// Returns the indices of the peers that a node regards as live.
    fn live(&self, node: usize) -> Vec<usize> {
        let state = self.state(node);
        let peers = state["peers"]["nodes"].as_array().cloned().unwrap_or_default();
        let is_live = |(at, peer): &(usize, &Value)| *at != node && peer["live"] == true;
        peers.iter().enumerate().filter(is_live).map(|(at, _)| at).collect()
    }
}

/// The switch between the nodes, with the client behind it.
struct Switch {
    /// Links to the nodes, by node.
    wires: Wires,
    /// Unanswered tasks, each with the last node that it was sent or passed to.
    open: BTreeMap<u16, usize>,
    /// Number of tasks answered by each node.
    answered: [u64; NODES],
    family: Family,
}

impl Switch {
    /// Opens a wire to each node, and waits for the nodes.
    fn open(home: &Home) -> Self {
        let wires = Wires::open((0..NODES).map(|node| format!("{}-{node}", home.name)));
        let (open, answered) = (BTreeMap::new(), [0; NODES]);
        Self { wires, open, answered, family: home.family }
    }

    /// Forwards the frames received from all nodes, and records replies to the client.
    fn poll(&mut self) {
        let mut has_received = false;
        for from in 0..NODES {
            let frames = self.wires.receive(from);
            has_received |= !frames.is_empty();
            frames.iter().for_each(|frame| self.carry(from, frame));
        }
        if !has_received {
            std::thread::yield_now();
        }
    }

    /// Handles a frame of the node `from`. Records a reply to the client, and forwards any other frame by its
    /// destination MAC address. Records the new node of a passed task.
    fn carry(&mut self, from: usize, frame: &[u8]) {
        let to = ether::dst(frame);
        assert_eq!(ether::src(frame), mac(from));
        let translated = as_v4(frame);
        if ether::ether_type(&translated) != ether::ARP {
            let datagram = udp::parse(&translated, false).unwrap();
            let header = Header::parse(&translated[datagram.payload()..]).unwrap();
            if to == CLIENT_MAC {
                assert!(header.code.is_reply());
                assert_eq!((datagram.dst, datagram.dst_port), (CLIENT, 40_000));
                assert_eq!(
                    (datagram.src, datagram.src_port),
                    (address(0), 1234),
                    "the reply comes from the node that the client asked"
                );
                assert!(self.open.remove(&header.seq).is_some(), "task {} again", header.seq);
                return self.answered[from] += 1;
            }
            if header.code == Code::PassedTask {
                let node = (0..NODES).find(|&node| mac(node) == to).unwrap();
                assert!(self.open.insert(header.seq, node).is_some());
            }
        }
        // Broadcasts and multicasts go to all other nodes.
        for node in (0..NODES).filter(|&node| node != from) {
            if to.is_group() || to == mac(node) {
                self.wires.send(node, frame);
            }
        }
    }

    /// Sends a task from the client to the first node. The data is 40 zero bytes.
    fn task(&mut self, seq: u16) {
        let header = Header { extended: true, ..Header::new_task(1, seq) };
        let mut frame = vec![0; udp::PAYLOAD + header.len() + 40];
        header.emit(&mut frame[udp::PAYLOAD..]);
        let extension = Extension { app: 1, seq32: seq.into(), ..Extension::default() };
        extension.emit(&mut frame[udp::PAYLOAD..]);
        let flow = Flow {
            src_mac: CLIENT_MAC,
            dst_mac: mac(0),
            src: CLIENT,
            dst: address(0),
            src_port: 40_000,
            dst_port: 1234,
        };
        flow.emit(&mut frame, header.len() + 40);
        self.open.insert(seq, 0);
        self.wires.send(0, &self.family.frame(&frame));
    }

    /// Forwards frames until a condition holds. Checks it at most every 50 ms, because each check takes time.
    fn poll_until(&mut self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        let (start, mut last_check) = (Instant::now(), None::<Instant>);
        loop {
            self.poll();
            if last_check.is_none_or(|last_check| last_check.elapsed() > Duration::from_millis(50))
            {
                if condition(self) {
                    return;
                }
                last_check = Some(Instant::now());
            }
            assert!(
                start.elapsed() < TIMEOUT,
                "waited in vain until {what}; open: {:?}",
                self.open
            );
        }
    }

    /// Sends these tasks, at most [`WINDOW`] outstanding at a time, and waits for their answers. Tasks that are open at
    /// the call count as lost and stay open.
    fn ask(&mut self, tasks: std::ops::Range<u16>) {
        let (start, lost) = (Instant::now(), self.open.len());
        for seq in tasks {
            while self.open.len() >= lost + WINDOW {
                self.poll();
                assert!(start.elapsed() < TIMEOUT, "before task {seq}; open: {:?}", self.open);
            }
            self.task(seq);
        }
        while self.open.len() > lost {
            self.poll();
            assert!(start.elapsed() < TIMEOUT, "open: {:?}", self.open);
        }
    }
}

/// Returns a number of an account.
fn count(account: &Value, key: &str) -> u64 {
    account[key].as_u64().unwrap()
}

/// Serves tasks in a rack of three nodes over this family of addresses, and kills one node. Only tasks at that
/// node may be lost. Each surviving node must account for all its tasks.
pub fn lose_only_tasks_of_the_killed_peer(family: Family) {
    let home = Home::new(family);
    let mut nodes: Vec<_> = (0..NODES).map(|node| Some(home.start(node))).collect();
    let workers: Vec<_> =
        (0..NODES * WORKERS).map(|worker| home.worker(worker / WORKERS)).collect();
    let mut switch = Switch::open(&home);
    switch.poll_until("all nodes have heard each other", |_| {
        (0..NODES).all(|node| home.live(node).len() == NODES - 1)
    });
    switch.ask(0..2000);
    let answered = switch.answered;
    assert!(answered.iter().all(|answered| *answered > 0), "{answered:?}");
    // `migration` is the probability with which the agent passes a task to that node.
    let state = home.state(0);
    for node in state["peers"]["nodes"].as_array().unwrap() {
        assert!(node["migration"].as_f64().unwrap() > 0.0, "{state}");
    }

    // The node dies while all nodes have tasks, and further tasks are in flight.
    (2000..2200).for_each(|seq| switch.task(seq));
    drop(nodes[2].take());
    switch.wires.dead.push(2);
    switch.poll_until("the peers have noticed", |_| home.live(0) == [1] && home.live(1) == [0]);
    switch.poll_until("only the dead node has open tasks", |switch| {
        switch.open.values().all(|node| *node == 2)
    });
    let lost = switch.open.len();
    println!("{lost} of 200 tasks were at the node that was killed or on their way there");
    switch.ask(2200..4000);
    assert_eq!(switch.open.len(), lost, "nothing else is lost");

    let accounts: Vec<_> = nodes.into_iter().flatten().map(ChildProcess::account).collect();
    for (node, account) in accounts.iter().enumerate() {
        assert_eq!(count(account, "replies"), switch.answered[node], "{account}");
        // A node schedules a task to its own worker, or gives it to a peer that requests one.
        let scheduled = count(account, "scheduled");
        assert_eq!(
            scheduled,
            count(account, "replies") + count(account, "tasks_given"),
            "{account}"
        );
        assert_eq!(account["drops"], serde_json::json!({}), "{account}");
    }
    assert_eq!(switch.answered.iter().sum::<u64>() as usize + lost, 4000);
    assert!(count(&accounts[0], "tasks_passed") > 0 && count(&accounts[1], "tasks_taken") > 0);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}
