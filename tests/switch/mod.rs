//! Two spines and two leaves as processes over memif (DPDK's network device in shared memory), and the switch between
//! them, their clients and their workers. The test process is the switch, the client and the workers.
//!
//! A client sends a task to the service address of its pool, which one of the spines holds. The spine forwards it to a
//! leaf, and the leaf to a worker. The worker's reply goes through the leaf straight to the client. The switch
//! translates frames to IPv4 on arrival, so that the same code handles both families.
#![allow(dead_code, reason = "no test uses all of it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wedjat::wire::arp;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp::{self, Flow};

use super::family::{Family, as_v4};
use super::frames::arp_answer;
use super::process::ChildProcess;
use super::timeouts::*;
use super::wires::Wires;

pub const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");
/// The client's address, 10.0.1.100.
pub const CLIENT: u32 = 0x0A00_0164;
/// Service address of pool 1, 10.0.1.200.
pub const SERVICE: u32 = 0x0A00_01C8;
/// Addresses of the spines towards the leaves.
pub const SPINES: [u32; 2] = [0x0A00_0301, 0x0A00_0302];
/// Addresses of the leaves.
pub const LEAVES: [u32; 2] = [0x0A00_030B, 0x0A00_030C];
/// Addresses of the servers, one behind each leaf.
pub const SERVERS: [u32; 2] = [0x0A00_040B, 0x0A00_040C];
pub const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 0x64]);
/// MAC addresses of each spine: towards clients, and towards leaves.
pub const SPINE_MACS: [[Mac; 2]; 2] = [
    [Mac([2, 0, 0, 0, 9, 1]), Mac([2, 0, 0, 0, 9, 2])],
    [Mac([2, 0, 0, 0, 9, 3]), Mac([2, 0, 0, 0, 9, 4])],
];
/// Largest number of outstanding tasks of the client.
pub const WINDOW: usize = 16;
/// Indices in [`ENDS`] of the leaves' devices.
pub const UP: [usize; 2] = [0, 1];
/// Indices in [`ENDS`] of the spines' devices towards clients.
pub const CLIENTS: [usize; 2] = [2, 4];
/// Indices in [`ENDS`] of the spines' devices towards leaves.
pub const DOWN: [usize; 2] = [3, 5];
/// Wires of the switch: the ends of their sockets' names. The spines have the ids 90 and 91.
pub const ENDS: [&str; 6] = ["leaf1", "leaf2", "clients90", "leaves90", "clients91", "leaves91"];

/// Returns the MAC address of a leaf, by index in [`LEAVES`].
pub fn leaf_mac(leaf: usize) -> Mac {
    Mac([2, 0, 0, 0, 3, 11 + leaf as u8])
}

/// Returns the MAC address of the server behind a leaf, by index in [`SERVERS`].
pub fn server_mac(leaf: usize) -> Mac {
    Mac([2, 0, 0, 0, 4, 11 + leaf as u8])
}

/// Folder of the nodes' configurations, state files and logs.
pub struct Home {
    pub folder: tempfile::TempDir,
    /// Prefix of the names of this test's sockets.
    pub name: String,
    /// Address family of nodes, clients and servers.
    pub family: Family,
}

impl Home {
    /// Writes configurations with all pools and members.
    pub fn new(family: Family) -> Self {
        Self::with(None, family)
    }

    /// Writes configurations of nodes that follow a controller, and that of the controller.
    pub fn followed(family: Family) -> Self {
        Self::with(Some("fabric"), family)
    }

    /// Writes configurations. `store` is the name of the file in which a controller stores the desired state;
    /// without it, there is no controller.
    pub fn with(store: Option<&str>, family: Family) -> Self {
        let home = Self {
            folder: tempfile::tempdir().unwrap(),
            name: format!("wedjat-{}-{}", store.unwrap_or("files"), std::process::id()),
            family,
        };
        let follows = store.map(|store| {
            let (store, text) = (home.path(store), "[controller]\nid = 1\nstore");
            fs::write(home.path("controller.toml"), format!("{text} = '{}'\n", store.display()))
                .unwrap();
            format!("[controller]\naddresses = ['unix:{}.ctl']\n", store.display())
        });
        for spine in 0..2 {
            home.write_spine(spine, follows.as_deref());
        }
        for leaf in 0..2 {
            home.write_leaf(leaf, follows.as_deref());
        }
        home
    }

    /// Returns the DPDK device string of a node's memif device with number `at`. `end` is its wire, one of [`ENDS`].
    pub fn device(&self, at: usize, end: &str) -> String {
        format!("net_memif{at},role=server,id=0,socket=@{}-{end}", self.name)
    }

    /// Writes a spine's configuration. `follows` is the section of its controller, instead of pools and leaves.
    pub fn write_spine(&self, spine: usize, follows: Option<&str>) {
        let (cpu, id) = (core_affinity::get_core_ids().unwrap()[0].id, 90 + spine);
        // The timeout is long, so that a short stall of the machine makes no leaf silent.
        let mut text = format!(
            "[spine]\nid = {id}\ncores = [{cpu}]\nseed = 7\nstate = '{}'\nleaf_timeout_ms = 5000\n\
             [[port]]\ndevice = '{}'\nside = 'clients'\nip = '10.0.1.{}/24'\nmac = '{}'\n\
             [[port]]\ndevice = '{}'\nside = 'workers'\nip = '10.0.3.{}/24'\nmac = '{}'\n",
            self.path(&format!("spine{id}")).display(),
            self.device(0, &format!("clients{id}")),
            1 + spine,
            SPINE_MACS[spine][0],
            self.device(1, &format!("leaves{id}")),
            1 + spine,
            SPINE_MACS[spine][1],
        );
        text +=
            follows.unwrap_or("[[pool]]\nid = 1\npolicy = 'horus-spine'\nservice = '10.0.1.200'\n");
        for leaf in (0..2).filter(|_| follows.is_none()) {
            let (id, at) = (leaf + 1, 11 + leaf);
            let mac = leaf_mac(leaf);
            let ip = format!("10.0.3.{at}");
            text += &format!(
                "[[leaf]]\nid = {id}\nip = '{ip}'\nmac = '{mac}'\npool = 1\nworkers = 4\n"
            );
        }
        fs::write(self.path(&format!("spine{id}.toml")), self.family.text(&text)).unwrap();
    }

    /// Writes a leaf's configuration. `follows` is the section of its controller, instead of the members.
    pub fn write_leaf(&self, leaf: usize, follows: Option<&str>) {
        let (cpu, id, at) = (core_affinity::get_core_ids().unwrap()[0].id, leaf + 1, 11 + leaf);
        let mut text = format!(
            "[leaf]\nid = {id}\ncores = [{cpu}]\nseed = 7\nstate = '{}'\n\
             [[port]]\ndevice = '{}'\nside = 'both'\nip = '10.0.3.{at}/16'\nmac = '{}'\n",
            self.path(&format!("leaf{id}")).display(),
            self.device(0, &format!("leaf{id}")),
            leaf_mac(leaf),
        );
        text += &follows.map_or_else(
            || {
                format!(
                    "[[spine]]\nid = 90\nip = '10.0.3.1'\n\
                     [[pool]]\nid = 1\npolicy = 'horus'\nspine = 90\nservice = '10.0.1.200'\n\
                     [[server]]\nip = '10.0.4.{at}'\nmac = '{}'\nworkers = '0-3'\npool = 1\n",
                    server_mac(leaf)
                )
            },
            str::to_owned,
        );
        fs::write(self.path(&format!("leaf{id}.toml")), self.family.text(&text)).unwrap();
    }

    /// Returns the path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a node with the configuration `name` and waits until its state file exists.
    pub fn start(&self, role: &str, name: &str) -> ChildProcess {
        let mut command = Command::new(WEDJAT);
        command.arg(role).arg("--config").arg(self.path(&format!("{name}.toml")));
        command.args(["--duration", LIFETIME, "--stats", "-", "--", "--no-pci"]);
        let file = fs::File::create(self.path(&format!("{name}.log"))).unwrap();
        command.stdout(Stdio::piped()).stderr(file);
        let mut running = ChildProcess::start(&mut command);
        wait_until(&format!("{name} runs"), || {
            let log = self.path(&format!("{name}.log"));
            assert!(!running.has_ended(), "{}", fs::read_to_string(log).unwrap());
            self.path(name).exists()
        });
        running
    }

    /// Runs the program `wedjat` with these arguments and the path of the file `name`. Checks that it succeeds, and
    /// returns its output.
    pub fn received(&self, arguments: &[&str], name: &str) -> Output {
        let mut command = Command::new(WEDJAT);
        let output = command.args(arguments).arg(self.path(name)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// Returns a node's state as `wedjat state` prints it.
    pub fn state(&self, name: &str) -> Value {
        let output = self.received(&["state", "--json"], name);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Returns a counter of a node's first core; 0 if it cannot be read yet.
    pub fn counter(&self, node: &str, name: &str) -> u64 {
        self.state(node)["cores"][0]["counters"][name].as_u64().unwrap_or(0)
    }
}

/// Switch between the nodes, with their clients and workers.
pub struct Switch {
    /// Links to the nodes, by index in [`ENDS`].
    pub wires: Wires,
    /// Answered tasks, each with its leaf.
    pub answered: BTreeMap<u16, usize>,
    /// Number of the leaves' signals forwarded to spines.
    pub signals: usize,
    /// Index of the spine that announced the service address last. The client sends its tasks there.
    pub serving: usize,
    /// Address family of the nodes.
    family: Family,
}

impl Switch {
    /// Opens a switch joined to these ends.
    pub fn open(home: &Home, ends: &[&str]) -> Self {
        let wires = Wires::open(ends.iter().map(|end| format!("{}-{end}", home.name)));
        let (answered, signals, serving) = (BTreeMap::new(), 0, 0);
        Self { wires, answered, signals, serving, family: home.family }
    }

    /// Sends an IPv4 or ARP frame in the nodes' family.
    fn send(&mut self, wire: usize, frame: &[u8]) {
        let frame = self.family.frame(frame);
        self.wires.send(wire, &frame);
    }

    /// Forwards or answers the frames that have arrived.
    pub fn poll(&mut self) {
        for at in 0..self.wires.count() {
            let frames = self.wires.receive(at);
            frames.iter().for_each(|frame| self.arrive(at, as_v4(frame)));
        }
    }

    /// Forwards a frame from the wire with index `at`, translated to IPv4, by its destination address. Answers ARP
    /// requests for all hosts. Serves tasks as the workers, and records replies as the client.
    pub fn arrive(&mut self, at: usize, frame: Vec<u8>) {
        if ether::ether_type(&frame) == ether::ARP {
            let ask = arp::Packet::parse(&frame).unwrap();
            // A gratuitous ARP announces the service address.
            if ask.sender == SERVICE && ask.target == SERVICE {
                self.serving = CLIENTS.iter().position(|&clients| clients == at).unwrap();
                assert_eq!(ask.sender_mac, SPINE_MACS[self.serving][0]);
                return;
            }
            let spines = (0..2).map(|spine| (SPINES[spine], SPINE_MACS[spine][1]));
            let hosts = [(CLIENT, CLIENT_MAC)].into_iter().chain(spines);
            let servers = (0..2).flat_map(|leaf| {
                [(LEAVES[leaf], leaf_mac(leaf)), (SERVERS[leaf], server_mac(leaf))]
            });
            let found = hosts.chain(servers).find(|(ip, _)| *ip == ask.target);
            if let Some((_, mac)) = found.filter(|_| ask.operation == arp::Operation::Request) {
                self.send(at, &arp_answer(&ask, mac));
            }
            return;
        }
        let datagram = udp::parse(&frame, false).unwrap();
        let header = Header::parse(&frame[datagram.payload()..]).unwrap();
        if let Some(leaf) = LEAVES.iter().position(|&ip| ip == datagram.dst) {
            assert!(DOWN.contains(&at) && ether::dst(&frame) == leaf_mac(leaf));
            self.send(UP[leaf], &frame);
        } else if let Some(spine) = SPINES.iter().position(|&ip| ip == datagram.dst) {
            assert!(header.code.is_signal());
            self.signals += 1;
            self.send(DOWN[spine], &frame);
        } else if let Some(leaf) = SERVERS.iter().position(|&ip| ip == datagram.dst) {
            self.work(leaf, &frame, &header);
        } else {
            assert_eq!((datagram.dst, datagram.src), (CLIENT, SERVICE), "reply to the client");
            assert_eq!(ether::dst(&frame), CLIENT_MAC, "the reply does not pass a spine");
            let leaf = UP.iter().position(|&up| up == at).unwrap();
            assert_eq!(self.answered.insert(header.seq, leaf), None, "task {}", header.seq);
        }
    }

    /// Answers a task at once, as a worker of the server behind a leaf.
    pub fn work(&mut self, leaf: usize, task: &[u8], header: &Header) {
        let reply =
            Header { code: Code::TaskDoneIdle, src: header.dst, dst: 0, qlen: 0, ..*header };
        let mut frame = vec![0; udp::PAYLOAD + reply.len()];
        reply.emit(&mut frame[udp::PAYLOAD..]);
        let asked = udp::parse(task, false).unwrap();
        let flow = Flow {
            src_mac: server_mac(leaf),
            dst_mac: leaf_mac(leaf),
            src: SERVERS[leaf],
            dst: asked.src,
            src_port: 1234,
            dst_port: asked.src_port,
        };
        flow.emit(&mut frame, reply.len());
        self.send(UP[leaf], &frame);
    }

    /// Sends these tasks with at most [`WINDOW`] outstanding, and forwards frames until all are answered.
    pub fn ask(&mut self, tasks: std::ops::Range<u16>) {
        let (start, before) = (Instant::now(), self.answered.len());
        let mut sent = 0;
        while self.answered.len() < before + tasks.len() {
            if sent < tasks.len() && sent < self.answered.len() - before + WINDOW {
                let header = Header::new_task(1, tasks.start + sent as u16);
                let mut frame = vec![0; udp::PAYLOAD + header.len()];
                header.emit(&mut frame[udp::PAYLOAD..]);
                let flow = Flow {
                    src_mac: CLIENT_MAC,
                    dst_mac: SPINE_MACS[self.serving][0],
                    src: CLIENT,
                    dst: SERVICE,
                    src_port: 40_000,
                    dst_port: 1234,
                };
                flow.emit(&mut frame, header.len());
                self.send(CLIENTS[self.serving], &frame);
                sent += 1;
            }
            self.poll();
            assert!(start.elapsed() < TIMEOUT, "{} of {sent}", self.answered.len() - before);
        }
    }

    /// Forwards frames until a condition holds, which is checked every 100 ms.
    pub fn poll_until(&mut self, what: &str, mut condition: impl FnMut() -> bool) {
        let (start, mut last_check) = (Instant::now(), Instant::now());
        loop {
            self.poll();
            if last_check.elapsed() > Duration::from_millis(100) {
                last_check = Instant::now();
                if condition() {
                    return;
                }
            }
            assert!(start.elapsed() < TIMEOUT, "waited in vain until {what}");
        }
    }
}
