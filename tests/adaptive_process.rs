//! Adaptive polling (`poll = 'adaptive'`): processes of a leaf and of an agent with four workers over memif (DPDK's
//! network device in shared memory). Both sleep while idle. The test is the client, and its threads are the workers.
//! Nothing is asserted about time: every task is answered and accounted for in both ledgers.
//!
//! The leaf schedules tasks over workers. The agent, on the workers' host, gives them the tasks through shared memory.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod echo;
mod frames;
mod process;
mod timeouts;
mod wires;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use wedjat::wire::arp::{self, Operation};
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::Header;
use wedjat::wire::udp::{self, Flow};
use wedjat::worker::{Detached, Options, Worker};

use echo::echo;
use frames::arp_answer;
use process::ChildProcess;
use timeouts::*;
use wires::Wires;

const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");
/// Number of workers.
const WORKERS: usize = 4;
/// The client's address, 10.0.1.100.
const CLIENT: u32 = 0x0A00_0164;
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 0x64]);
/// The leaf's address towards clients, 10.0.1.1.
const LEAF: u32 = 0x0A00_0101;
const LEAF_MAC: Mac = Mac([2, 0, 0, 0, 1, 1]);
/// Largest number of outstanding tasks.
const WINDOW: usize = 16;

/// Folder of the nodes' configurations, state files and logs.
struct Home {
    folder: tempfile::TempDir,
    /// Prefix of the names of this test's sockets.
    name: String,
}

impl Home {
    /// Writes the configurations of a leaf and of an agent with four workers.
    fn new() -> Self {
        let name = format!("wedjat-adaptive-{}", std::process::id());
        let home = Self { folder: tempfile::tempdir().unwrap(), name };
        let name = &home.name;
        let cpus = core_affinity::get_core_ids().unwrap();
        let cpu = |at: usize| cpus[at % cpus.len()].id;
        let leaf = format!(
            "[leaf]\nid = 1\ncores = [{}]\nseed = 7\npoll = 'adaptive'\nstate = '{}'\n\
             [[port]]\ndevice = 'net_memif0,role=server,id=0,socket=@{name}-clients'\nside = 'clients'\nip = '10.0.1.1/24'\nmac = '{LEAF_MAC}'\n\
             [[port]]\ndevice = 'net_memif1,role=server,id=0,socket=@{name}-workers'\nside = 'workers'\nip = '10.0.2.1/24'\n\
             [[pool]]\nid = 1\npolicy = 'jsq'\n\
             [[server]]\nip = '10.0.2.11'\nworkers = '0-3'\npool = 1\n",
            cpu(0),
            home.path("leaf").display(),
        );
        fs::write(home.path("leaf.toml"), leaf).unwrap();
        // Timeouts are off, so that the agent excludes no worker while the machine stalls.
        let agent = format!(
            "[agent]\nid = 2\nname = '{}'\ncore = {}\nseed = 7\npoll = 'adaptive'\nworker_timeout_ms = 0\nstate = '{}'\n\
             [[port]]\ndevice = 'net_memif0,role=client,id=0,socket=@{name}-workers'\nip = '10.0.2.11/24'\n\
             [[pool]]\nid = 1\npolicy = 'cfcfs'\nworkers = '0-3'\n",
            home.path("region").display(),
            cpu(1),
            home.path("agent").display(),
        );
        fs::write(home.path("agent.toml"), agent).unwrap();
        home
    }

    /// Returns the path of a file in the folder.
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a node and waits until its state file exists.
    fn start(&self, role: &str) -> ChildProcess {
        let mut command = Command::new(WEDJAT);
        command.args([role, "--config"]).arg(self.path(&format!("{role}.toml")));
        command.args(["--duration", LIFETIME, "--stats", "-", "--", "--no-pci"]);
        let log = self.path(&format!("{role}.log"));
        command.stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
        let mut running = ChildProcess::start(&mut command);
        wait_until(&format!("the {role} runs"), || {
            assert!(!running.has_ended(), "{}", fs::read_to_string(&log).unwrap());
            self.path(role).exists()
        });
        running
    }

    /// Returns a counter from a node's state file; 0 if it cannot be read.
    fn counter(&self, role: &str, name: &str) -> u64 {
        let mut command = Command::new(WEDJAT);
        let output = command.args(["state", "--json"]).arg(self.path(role)).output().unwrap();
        let state: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        state["cores"][0]["counters"][name].as_u64().unwrap_or(0)
    }

    /// Waits until both nodes have slept at least four more times: they are idle, and the next task has to wake them.
    fn wait_for_sleep(&self) {
        let sleeps = || ["leaf", "agent"].map(|role| self.counter(role, "sleeps"));
        // A counter that cannot be read is 0.
        let mut before = [0; 2];
        wait_until("both have slept", || {
            before = sleeps();
            before.iter().all(|sleeps| *sleeps > 0)
        });
        wait_until("both sleep", || {
            sleeps().into_iter().zip(before).all(|(now, before)| now > before + 3)
        });
    }

    /// Starts a worker that attaches to the agent and echoes tasks until the agent stops it.
    fn worker(&self) -> std::thread::JoinHandle<()> {
        let name = self.path("region").display().to_string();
        std::thread::spawn(move || {
            let options = Options { attach_timeout: TIMEOUT, ..Options::default() };
            let mut worker =
                Worker::attach(&name, &options).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(echo(&mut worker), Some(Detached::Stopped));
        })
    }
}

/// Client that records the worker of each answer.
struct Client {
    /// Wire 0 leads to the leaf's port for clients.
    wires: Wires,
    /// Worker of each answered task, by the task's number.
    answered: BTreeMap<u16, u16>,
}

impl Client {
    /// Sends a task of pool 1 with 40 bytes of data.
    fn task(&mut self, seq: u16) {
        let header = Header::new_task(1, seq);
        let mut frame = vec![0; udp::PAYLOAD + header.len() + 40];
        header.emit(&mut frame[udp::PAYLOAD..]);
        let flow = Flow {
            src_mac: CLIENT_MAC,
            dst_mac: LEAF_MAC,
            src: CLIENT,
            dst: LEAF,
            src_port: 40_000,
            dst_port: 1234,
        };
        flow.emit(&mut frame, header.len() + 40);
        self.wires.send(0, &frame);
    }

    /// Records the replies received, and answers ARP requests for the client.
    fn poll(&mut self) {
        let frames = self.wires.receive(0);
        if frames.is_empty() {
            std::thread::yield_now();
        }
        for frame in frames {
            if ether::ether_type(&frame) == ether::ARP {
                let ask = arp::Packet::parse(&frame).unwrap();
                if ask.operation == Operation::Request && ask.target == CLIENT {
                    self.wires.send(0, &arp_answer(&ask, CLIENT_MAC));
                }
                continue;
            }
            let datagram = udp::parse(&frame, false).unwrap();
            let header = Header::parse(&frame[datagram.payload()..]).unwrap();
            assert!(header.code.is_reply() && datagram.dst == CLIENT, "{header:?}");
            assert_eq!(self.answered.insert(header.seq, header.src), None, "{}", header.seq);
        }
    }

    /// Sends these tasks, with at most `window` outstanding, until all are answered.
    fn ask(&mut self, tasks: std::ops::Range<u16>, window: usize) {
        let (start, before) = (Instant::now(), self.answered.len());
        let all = tasks.len();
        let mut sent = 0;
        while self.answered.len() < before + all {
            if sent < all && sent < self.answered.len() - before + window {
                self.task(tasks.start + sent as u16);
                sent += 1;
            }
            self.poll();
            assert!(start.elapsed() < TIMEOUT, "{} of {sent}", self.answered.len() - before);
        }
    }
}

// promise: ports.1
#[test]
fn tasks_and_workers_wake_sleeping_nodes() {
    let home = Home::new();
    let leaf = home.start("leaf");
    let agent = home.start("agent");
    let workers: Vec<_> = (0..WORKERS).map(|_| home.worker()).collect();
    let wires = Wires::open([format!("{}-clients", home.name)]);
    let mut client = Client { wires, answered: BTreeMap::new() };
    for round in 0..5 {
        home.wait_for_sleep();
        // One task that wakes leaf, agent and worker, then 199 more.
        let first = round * 200;
        client.ask(first..first + 1, 1);
        client.ask(first + 1..first + 200, WINDOW);
    }
    home.wait_for_sleep();
    for worker in 0..WORKERS as u16 {
        assert!(client.answered.values().any(|&id| id == worker), "worker {worker}");
    }
    let (leaf, agent) = (leaf.account(), agent.account());
    for account in [&leaf, &agent] {
        // Five rounds of 200 tasks.
        for counter in ["scheduled", "replies"] {
            assert_eq!(account[counter], 1000, "{account}");
        }
        assert_eq!(account["drops"], serde_json::json!({}), "{account}");
    }
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}
