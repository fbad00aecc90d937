//! `wedjat spine` and two `wedjat leaf` below it, as processes in real time. This test is the switch between them, their clients and
//! their workers. Nothing is asserted of time: every task is answered, and accounted for in the books of all.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod frames;
mod patience;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wedjat::io::dpdk::{Device, DeviceOptions, Eal, MbufPool, QueuePort};
use wedjat::io::{Buf, Burst, Pool, Port};
use wedjat::wire::arp;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp::{self, Flow};

use frames::arp_answer;
use patience::*;

const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");
const CLIENT: u32 = 0x0A00_0164;
const SERVICE: u32 = 0x0A00_01C8;
const SPINES: [u32; 2] = [0x0A00_0301, 0x0A00_0302];
const LEAVES: [u32; 2] = [0x0A00_030B, 0x0A00_030C];
const SERVERS: [u32; 2] = [0x0A00_040B, 0x0A00_040C];
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 0x64]);
/// Towards clients, and towards leaves.
const SPINE_MACS: [[Mac; 2]; 2] = [
    [Mac([2, 0, 0, 0, 9, 1]), Mac([2, 0, 0, 0, 9, 2])],
    [Mac([2, 0, 0, 0, 9, 3]), Mac([2, 0, 0, 0, 9, 4])],
];
const WINDOW: usize = 16;
/// Places of the switch's devices.
const UP: [usize; 2] = [0, 1];
const CLIENTS: [usize; 2] = [2, 4];
const DOWN: [usize; 2] = [3, 5];
const ENDS: [&str; 6] = ["leaf1", "leaf2", "clients90", "leaves90", "clients91", "leaves91"];

fn leaf_mac(leaf: usize) -> Mac {
    Mac([2, 0, 0, 0, 3, 11 + leaf as u8])
}

fn server_mac(leaf: usize) -> Mac {
    Mac([2, 0, 0, 0, 4, 11 + leaf as u8])
}

struct Home {
    folder: tempfile::TempDir,
    name: String,
}

impl Home {
    /// Nodes whose files say what there is.
    fn new() -> Self {
        Self::with(None)
    }

    /// Nodes that a controller tells what there is.
    fn followed() -> Self {
        Self::with(Some("fabric"))
    }

    fn with(store: Option<&str>) -> Self {
        let home = Self {
            folder: tempfile::tempdir().unwrap(),
            name: format!("wedjat-{}-{}", store.unwrap_or("files"), std::process::id()),
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

    fn device(&self, at: usize, end: &str) -> String {
        format!("net_memif{at},role=server,id=0,socket=@{}-{end}", self.name)
    }

    fn write_spine(&self, spine: usize, follows: Option<&str>) {
        let (cpu, id) = (core_affinity::get_core_ids().unwrap()[0].id, 90 + spine);
        // A machine that stands still for some time makes no leaf silent.
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
        fs::write(self.path(&format!("spine{id}.toml")), text).unwrap();
    }

    fn write_leaf(&self, leaf: usize, follows: Option<&str>) {
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
        fs::write(self.path(&format!("leaf{id}.toml")), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&self, role: &str, name: &str) -> Running {
        let mut command = Command::new(WEDJAT);
        command.arg(role).arg("--config").arg(self.path(&format!("{name}.toml")));
        command.args(["--duration", LIFETIME, "--stats", "-", "--", "--no-pci"]);
        let file = fs::File::create(self.path(&format!("{name}.log"))).unwrap();
        command.stdout(Stdio::piped()).stderr(file);
        let mut running = Running(Some(command.spawn().unwrap()));
        wait_until(&format!("{name} runs"), || {
            let ended = running.0.as_mut().unwrap().try_wait().unwrap();
            let log = self.path(&format!("{name}.log"));
            assert!(ended.is_none(), "{}", fs::read_to_string(log).unwrap());
            self.path(name).exists()
        });
        running
    }

    fn said(&self, arguments: &[&str], name: &str) -> Output {
        let mut command = Command::new(WEDJAT);
        let output = command.args(arguments).arg(self.path(name)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn state(&self, name: &str) -> Value {
        let output = self.said(&["state", "--json"], name);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn counter(&self, node: &str, name: &str) -> u64 {
        self.state(node)["cores"][0]["counters"][name].as_u64().unwrap_or(0)
    }
}

/// A process, killed when dropped.
struct Running(Option<Child>);

impl Running {
    fn kill(mut self, signal: &str) -> Output {
        let child = self.0.take().unwrap();
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        child.wait_with_output().unwrap()
    }

    fn account(self) -> Value {
        let output = self.kill("-TERM");
        assert!(output.status.success());
        let account: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(account["balanced"], true, "{account}");
        account
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// All that is between and around the nodes.
struct Switch {
    ports: Vec<QueuePort>,
    pool: MbufPool,
    /// Tasks that are answered, and by which leaf.
    answered: BTreeMap<u16, usize>,
    signals: usize,
    /// Whoever was there has died.
    dead: Vec<usize>,
    /// The spine that has the service address, as it was announced.
    serving: usize,
}

impl Switch {
    /// Joined to these ends.
    fn open(home: &Home, ends: &[&str]) -> (Vec<Device>, Self) {
        let device = |(at, end): (usize, &&str)| {
            format!("net_memif{at},role=client,id=0,socket=@{}-{end}", home.name)
        };
        let devices: Vec<_> = ends.iter().enumerate().map(device).collect();
        let names: Vec<_> = devices.iter().map(String::as_str).collect();
        let eal = Eal::init(&["--no-pci".to_owned()], &names).unwrap();
        let pool = MbufPool::new(&eal, "switch", 8191).unwrap();
        let options = DeviceOptions::patient(Some(PATIENCE));
        let (mut opened, mut ports) = (Vec::new(), Vec::new());
        for name in &names {
            let (device, mut queues) = Device::open(&eal, name, &pool, &options).unwrap();
            opened.push(device);
            ports.push(queues.remove(0));
        }
        let (answered, signals, dead, serving) = (BTreeMap::new(), 0, Vec::new(), 0);
        (opened, Self { ports, pool, answered, signals, dead, serving })
    }

    fn send(&mut self, port: usize, frame: &[u8]) {
        if self.dead.contains(&port) {
            return;
        }
        let mut mbuf = self.pool.handle().take().unwrap();
        assert!(mbuf.resize(frame.len()));
        mbuf.bytes_mut().copy_from_slice(frame);
        let mut burst: Burst<_> = [mbuf].into_iter().collect();
        let start = Instant::now();
        while self.ports[port].tx_burst(&mut burst) == 0 && start.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
    }

    fn poll(&mut self) {
        for at in 0..self.ports.len() {
            let mut burst = Burst::new();
            self.ports[at].rx_burst(&mut burst);
            let frames: Vec<_> = burst.iter().map(|mbuf| mbuf.bytes().to_vec()).collect();
            drop(burst);
            frames.into_iter().for_each(|frame| self.come(at, frame));
        }
    }

    fn come(&mut self, at: usize, frame: Vec<u8>) {
        if ether::ether_type(&frame) == ether::ARP {
            let ask = arp::Packet::parse(&frame).unwrap();
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
            assert_eq!((datagram.dst, datagram.src), (CLIENT, SERVICE), "from where it was asked");
            assert_eq!(ether::dst(&frame), CLIENT_MAC, "without the spine");
            let leaf = UP.iter().position(|&up| up == at).unwrap();
            assert_eq!(self.answered.insert(header.seq, leaf), None, "task {}", header.seq);
        }
    }

    /// A worker answers at once.
    fn work(&mut self, leaf: usize, task: &[u8], header: &Header) {
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

    /// Clients ask for these tasks, some at a time, until all are answered.
    fn ask(&mut self, tasks: std::ops::Range<u16>) {
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
            assert!(start.elapsed() < PATIENCE, "{} of {sent}", self.answered.len() - before);
        }
    }

    /// Passes on what there is until that is met.
    fn poll_until(&mut self, what: &str, mut met: impl FnMut() -> bool) {
        let (start, mut looked) = (Instant::now(), Instant::now());
        loop {
            self.poll();
            if looked.elapsed() > Duration::from_millis(100) {
                looked = Instant::now();
                if met() {
                    return;
                }
            }
            assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        }
    }
}

#[test]
fn a_spine_and_its_leaves_serve_clients_and_one_leaf_goes_on_alone() {
    let home = Home::new();
    for name in ["spine90.toml", "leaf1.toml"] {
        home.said(&["check", "--config"], name);
    }
    let spine = home.start("spine", "spine90");
    let first = home.start("leaf", "leaf1");
    let second = home.start("leaf", "leaf2");
    let (opened, mut switch) = Switch::open(&home, &ENDS[..4]);
    switch.poll_until("they hear of each other", || {
        let leaves = ["leaf1", "leaf2"].map(|leaf| home.counter(leaf, "signals"));
        home.counter("spine90", "signals") > 10 && leaves.iter().all(|heard| *heard > 0)
    });
    switch.ask(0..1000);
    for leaf in 0..2 {
        let by = switch.answered.values().filter(|&&by| by == leaf).count();
        assert!(by > 100, "{by} of leaf {leaf}");
    }
    let state = home.state("spine90");
    assert_eq!((state["role"].as_str(), state["node"].as_u64()), (Some("spine"), Some(90)));
    assert_eq!(state["pools"][0]["members"].as_array().map(Vec::len), Some(2), "{state}");

    // One of them dies: the other has all, once the spine has noticed.
    drop(first.kill("-KILL"));
    switch.dead.push(UP[0]);
    switch.poll_until("the spine notices", || home.counter("spine90", "workers_lost") == 1);
    let before = switch.answered.len() as u16;
    switch.ask(before..before + 200);
    assert!(switch.answered.range(before..).all(|(_, &leaf)| leaf == 1));
    assert!(switch.signals > 0);

    let (spine, leaf) = (spine.account(), second.account());
    let count = |account: &Value, name: &str| account[name].as_u64().unwrap();
    assert_eq!(count(&spine, "scheduled"), 1200, "{spine}");
    let by_second = switch.answered.values().filter(|&&leaf| leaf == 1).count() as u64;
    assert_eq!(
        (count(&leaf, "scheduled"), count(&leaf, "replies")),
        (by_second, by_second),
        "{leaf}"
    );
    drop(switch);
    drop(opened);
}

#[test]
fn a_fabric_that_a_controller_tells_of_itself_loses_a_spine_and_the_controller() {
    let home = Home::followed();
    let mut command = Command::new(WEDJAT);
    command
        .args(["controller", "--duration", LIFETIME, "--config"])
        .arg(home.path("controller.toml"));
    let log = fs::File::create(home.path("controller.log")).unwrap();
    let controller = Running(Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap()));
    let ctl = |arguments: &[&str]| {
        let mut command = Command::new(WEDJAT);
        command.env("WEDJAT_CONTROLLER", home.path("fabric"));
        command.args(["ctl", "--json"]).args(arguments).output().unwrap()
    };
    let told = |arguments: &[&str]| {
        let output = ctl(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    wait_until("the controller leads", || ctl(&["topology"]).status.success());
    for (spine, ip) in [("90", "10.0.3.1"), ("91", "10.0.3.2")] {
        told(&["add-spine", spine, ip]);
    }
    for leaf in 0..2 {
        let (id, mac) = ((leaf + 1).to_string(), server_mac(leaf).to_string());
        told(&["add-leaf", &id, &format!("10.0.3.{}", 11 + leaf)]);
        let ip = format!("10.0.4.{}", 11 + leaf);
        told(&["add-server", &ip, "--leaf", &id, "--workers", "0-3", "--mac", &mac]);
    }
    let spine = home.start("spine", "spine90");
    let standby = home.start("spine", "spine91");
    let leaves = [home.start("leaf", "leaf1"), home.start("leaf", "leaf2")];
    let (opened, mut switch) = Switch::open(&home, &ENDS);
    let pool = ["pool", "create", "1", "--workers", "8", "--policy", "horus"];
    told(&[&pool[..], &["--spines", "1", "--address", "10.0.1.200"]].concat());
    let linked = |spine: u64| {
        let topology = told(&["topology"]);
        let racks = topology["pools"][0]["racks"].as_array().unwrap().clone();
        racks.len() == 2 && racks.iter().all(|rack| rack["spine"] == spine)
    };
    assert!(linked(90));
    let members = |home: &Home, node: &str| {
        let members = home.state(node)["pools"][0]["members"].clone();
        members.as_array().map_or(0, Vec::len)
    };
    switch.poll_until("all have what they are to have", || {
        let leaves = ["leaf1", "leaf2"]
            .map(|leaf| (members(&home, leaf), home.counter(leaf, "signals") > 0));
        leaves == [(4, true); 2]
            && members(&home, "spine90") == 2
            && home.counter("spine90", "signals") > 10
    });
    switch.ask(0..500);

    // The spine dies. The other, which had nothing to do, has the racks and the address, and nobody said so.
    drop(spine.kill("-KILL"));
    switch.dead.extend([CLIENTS[0], DOWN[0]]);
    let died = Instant::now();
    while switch.serving == 0 {
        switch.poll();
        assert!(died.elapsed() < PATIENCE, "the standby has not announced the address");
    }
    eprintln!("the standby has the address after {:?}", died.elapsed());
    switch.poll_until("the leaves are linked to it", || {
        linked(91) && home.counter("spine91", "signals") > 10
    });
    switch.ask(500..1000);

    // Without the controller all goes on.
    drop(controller.kill("-KILL"));
    switch.ask(1000..1500);
    let (standby, leaves) = (standby.account(), leaves.map(Running::account));
    assert_eq!(standby["scheduled"], 1000, "{standby}");
    let scheduled: u64 = leaves.iter().map(|leaf| leaf["scheduled"].as_u64().unwrap()).sum();
    assert_eq!(scheduled, 1500, "{leaves:?}");
    drop(switch);
    drop(opened);
}
