//! Several leaves over the same workers in emulated time, in this process: the simulator's model `ct` on packets, for policies
//! whose members tell their queues in messages.
//!
//! The loop is the model's own, with its streams, delays and servers, which know what each leaf believes of them
//! ([`wedjat::policy::member::MemberSide`]). Each leaf has clients of its own and the model's servers as its workers: tasks,
//! replies and queue reports reach it as packets at the times at which the model's dispatchers have them, and its timers have
//! their turns in between.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use wedjat::clock::Line;
use wedjat::config::Config as NodeConfig;
use wedjat::io::Buf as _;
use wedjat::io::memory::{Frame, FramePool};
use wedjat::limits::WORKER_ID_MAX;
use wedjat::policy::member::Notify;
use wedjat::policy::{Offered, Pick};
use wedjat::role::agent::emit_word;
use wedjat::state::{Counter, Load, Member, Report};
use wedjat::wire::ether::Mac;
use wedjat::wire::task::{Header, UDP_PORT};
use wedjat::wire::udp::{self, Flow};
use wedjat_pktgen::target::Target;
use wedjat_pktgen::template::Task;

use super::fabric::seed_of;
use super::local::Spread;
use super::workers::Packet;
use super::{Clients, Local, LockstepError, Scheduler, Workers};
use crate::rack::{Address, Layout, Servers};
use crate::sim::ct::{Config, Dispatchers, Sim};
use crate::sim::outcome::Outcome;

const POOL: u16 = 1;
const FRAMES: usize = 4096;
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 100);
const CLIENT_MAC: Mac = Mac([2, 9, 0, 0, 0, 1]);
const LEAF: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
/// The first server, and how many there may be in its network.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 101);
const SERVERS_MAX: usize = 150;
const SERVERS_MAC: Mac = Mac([2, 9, 0, 0, 0, 2]);
/// Leaves at most: each has an address in the servers' network.
const LEAVES_MAX: usize = 100;

/// What the model's outcome does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Queue reports that leaves were sent for tasks.
    pub reports: u64,
    /// Questions that leaves sent for queues; each was answered.
    pub probes: u64,
    /// What is wrong with their books.
    pub faults: Vec<String>,
}

/// Plays it: what the model tells of such a run, and what it does not.
///
/// # Errors
/// When a leaf does what it may not, or the arguments contradict each other.
pub fn run(config: &Config) -> Result<(Outcome, Told), LockstepError> {
    let refuse = LockstepError::Arguments;
    if !config.policy.takes_messages() {
        let policy = &config.policy;
        return Err(refuse(format!(
            "members of {policy} neither tell their queues alone nor are asked"
        )));
    }
    let mut leaves = Leaves::new(config).map_err(refuse)?;
    leaves.introduce(config)?;
    let mut sim = Sim::new(config, |_| leaves).map_err(refuse)?;
    sim.run()?;
    let (outcome, leaves) = sim.finish();
    Ok((outcome, leaves.finish()))
}

/// One leaf, its clients, and the workers as it has them.
struct Node {
    local: Local,
    clients: Clients<Spread, FramePool>,
    workers: Workers<Spread>,
    pool: FramePool,
    line: Line,
    /// Of each worker's last report to it.
    numbers: Vec<u16>,
    told: u64,
    probed: u64,
    answered: u64,
}

/// What came out of a leaf.
#[derive(Default)]
struct Came {
    /// Tasks: number, worker's place, packet.
    tasks: Vec<(u32, u16, Packet<Frame>)>,
    /// Numbers of tasks that were answered.
    answers: Vec<u32>,
}

/// Leaves on packets in the place of the dispatchers of the simulator's model `ct`.
struct Leaves {
    nodes: Vec<Node>,
    layout: Layout,
    /// Tasks at workers or on their way, by number.
    packets: HashMap<u64, Packet<Frame>>,
    /// Questions about tasks, by their number: the worker's place, its tasks when the question came there, and the packet.
    questions: HashMap<u64, Vec<(u16, u32, Packet<Frame>)>>,
    /// The leaves ask about each task.
    asks: bool,
    /// Sent before the first task.
    first: u64,
}

fn leaf_inside(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 2, 1 + index as u8)
}

fn leaf_mac(index: usize, port: usize) -> Mac {
    Mac([2, 8, 0, 0, index as u8, port as u8])
}

/// A leaf's configuration.
#[must_use]
pub fn leaf_text(config: &Config, index: usize, layout: &Layout) -> String {
    let mut text = format!("[leaf]\nid = {}\ncores = [0]\n", index + 1);
    for (port, (side, ip)) in
        [("clients", LEAF), ("workers", leaf_inside(index))].iter().enumerate()
    {
        let mac = leaf_mac(index, port);
        text += &format!(
            "[[port]]\ndevice = \"net_memif{port}\"\nside = \"{side}\"\nip = \"{ip}/24\"\nmac = \"{mac}\"\n"
        );
    }
    let policy = &config.policy;
    text += &format!("[[pool]]\nid = {POOL}\npolicy = \"{policy}\"\nreports = \"messages\"\n");
    for (ip, first, last) in layout.servers() {
        let speed = config.speeds[usize::from(first)];
        text += &format!(
            "[[server]]\nip = \"{ip}\"\nmac = \"{SERVERS_MAC}\"\nworkers = \"{first}-{last}\"\npool = {POOL}\n\
             speed = {speed:?}\n"
        );
    }
    text
}

/// As many servers as are needed for the workers of each to have one speed.
fn layout(speeds: &[f64]) -> Result<Layout, String> {
    let alike = speeds.chunk_by(|a, b| a == b).map(<[f64]>::len);
    let each = alike.reduce(|a, b| if a == b { a } else { 1 }).unwrap_or(1);
    let count = speeds.len() / each;
    if count > SERVERS_MAX {
        return Err(format!(
            "{count} servers for workers of one speed each; at most {SERVERS_MAX}"
        ));
    }
    Layout::new(Servers { first: SERVER.into(), count: count as u16 }, each as u16, 0)
}

impl Leaves {
    fn new(config: &Config) -> Result<Self, String> {
        if config.dispatchers > LEAVES_MAX || config.speeds.len() > usize::from(WORKER_ID_MAX) {
            return Err(format!("at most {LEAVES_MAX} leaves over {WORKER_ID_MAX} workers"));
        }
        let layout = layout(&config.speeds)?;
        let node = |index| {
            let text = leaf_text(config, index, &layout);
            let mut node = NodeConfig::parse(Path::new("leaf.toml"), &text)
                .map_err(|error| error.to_string())?;
            node.leaf.seed = Some(seed_of(config.seed, index));
            let (local, ends) = Local::new(&node, FRAMES)?;
            let target =
                Target { pool: POOL, ..Target::new(CLIENT_MAC, CLIENT.to_bits(), LEAF.to_bits()) };
            let address = Address { mac: SERVERS_MAC, layout, udp_port: UDP_PORT };
            Ok(Node {
                local,
                clients: Clients::new(ends.clients, ends.pool.clone(), &target),
                workers: Workers::new(ends.workers, address),
                pool: ends.pool,
                line: Line::default(),
                numbers: vec![0; config.speeds.len()],
                told: 0,
                probed: 0,
                answered: 0,
            })
        };
        let nodes = (0..config.dispatchers).map(node).collect::<Result<_, String>>()?;
        let asks = config.policy.probes();
        let (packets, questions) = (HashMap::new(), HashMap::new());
        Ok(Self { nodes, layout, packets, questions, asks, first: 0 })
    }

    /// Before the first task, at time 0: clients learn their leaf's MAC address, and workers that are to be on one leaf's list
    /// tell the one that the model has them at.
    fn introduce(&mut self, config: &Config) -> Result<(), LockstepError> {
        for index in 0..self.nodes.len() {
            self.turn(index, 0)?;
            self.nodes[index].clients.ask(0)?;
            self.turn(index, 0)?;
            if !self.nodes[index].clients.is_resolved() {
                return Err(LockstepError::Unresolved(LEAF.into()));
            }
        }
        if matches!(config.policy.notify(), Notify::Below(_)) {
            for member in (0..config.speeds.len() as u16).map(Member) {
                let index = member.index() % self.nodes.len();
                self.report(index, 0, &Report::new(member, Load(0), 0))?;
                self.first += 1;
            }
        }
        Ok(())
    }

    /// Gives a leaf its turns for the timers that are due before a time.
    fn advance(&mut self, index: usize, now_ns: u64) -> Result<(), LockstepError> {
        while self.nodes[index].line.timer_ns < now_ns {
            let timer_ns = self.nodes[index].line.timer_ns;
            let came = self.turn(index, timer_ns)?;
            if let Some(&(number, ..)) = came.tasks.first() {
                return Err(LockstepError::Stray { what: "task", number, now_ns: timer_ns });
            }
            if self.nodes[index].line.timer_ns <= timer_ns {
                return Err(LockstepError::Timer { timer_ns, now_ns });
            }
        }
        Ok(())
    }

    /// Gives a leaf a turn, and takes what comes out of it.
    fn turn(&mut self, index: usize, now_ns: u64) -> Result<Came, LockstepError> {
        let (node, mut came) = (&mut self.nodes[index], Came::default());
        loop {
            node.line = node.local.turn(now_ns)?;
            let (tasks, _) = node.workers.receive(now_ns, |number, place, packet| {
                came.tasks.push((number, place, packet));
                Ok(())
            })?;
            let (answers, _) = node.clients.receive(now_ns, |number, _| {
                came.answers.push(number);
                Ok(())
            })?;
            if tasks + answers == 0 {
                return Ok(came);
            }
        }
    }

    /// A client sends a task.
    fn send(&mut self, index: usize, now_ns: u64, number: u64) -> Result<(), LockstepError> {
        self.advance(index, now_ns)?;
        let task = Task { seq: number as u32, service_ns: 0, class: 0 };
        self.nodes[index].clients.send(task, now_ns)
    }

    /// The answers of those who were asked about a task come to its leaf.
    fn answer_probes(
        &mut self,
        index: usize,
        now_ns: u64,
        number: u64,
    ) -> Result<(), LockstepError> {
        self.advance(index, now_ns)?;
        for (_, tasks, mut packet) in self.questions.remove(&number).into_iter().flatten() {
            Workers::<Spread>::answer_probe(&mut packet, tasks);
            self.nodes[index].workers.send(packet, now_ns)?;
            self.nodes[index].probed += 1;
        }
        Ok(())
    }

    fn finish(self) -> Told {
        let told: u64 = self.nodes.iter().map(|node| node.told).sum();
        let mut faults = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let counters = node.local.leaf().stages().counters();
            let heard = [Counter::QueueReports, Counter::ProbeAnswers, Counter::Replies]
                .map(|counter| counters.read(counter));
            let passed_over = [Counter::QueueReportsOld, Counter::ProbeAnswersLate]
                .map(|counter| counters.read(counter));
            let is_right = heard == [node.told, node.probed, node.answered];
            if !is_right || passed_over != [0; 2] || counters.dropped_total() > 0 {
                faults.push(format!(
                    "leaf {index} counted {heard:?} reports, answers to probes and replies, and passed over {passed_over:?}"
                ));
            }
            if !counters.balances() {
                faults.push(format!("the books of leaf {index} do not balance"));
            }
        }
        if !self.packets.is_empty() {
            faults.push(format!("{} tasks were not answered", self.packets.len()));
        }
        let probes = self.nodes.iter().map(|node| node.probed).sum();
        Told { reports: told - self.first, probes, faults }
    }
}

impl Dispatchers for Leaves {
    type Error = LockstepError;

    fn tick(&mut self, _index: usize, _now_ns: u64) -> Result<(), LockstepError> {
        Ok(()) // a leaf has a clock of its own
    }

    fn next_benchmark(&mut self, _index: usize) -> Option<Member> {
        None
    }

    fn offer(
        &mut self,
        index: usize,
        now_ns: u64,
        number: u64,
        task: u32,
    ) -> Result<Offered<u32>, LockstepError> {
        if self.asks {
            self.answer_probes(index, now_ns, number)?;
        } else {
            self.send(index, now_ns, number)?;
        }
        let mut came = self.turn(index, now_ns)?;
        match (came.tasks.pop(), came.tasks.len()) {
            (Some((came, place, packet)), 0) if u64::from(came) == number => {
                self.packets.insert(number, packet);
                Ok(Ok(Some((task, Pick { member: Member(place), idle: false }))))
            }
            _ => Err(LockstepError::Stray { what: "task", number: number as u32, now_ns }),
        }
    }

    fn asks(&self) -> bool {
        self.asks
    }

    fn ask(&mut self, index: usize, now_ns: u64, number: u64) -> Result<(), LockstepError> {
        self.send(index, now_ns, number)?;
        if let Some(&(number, ..)) = self.turn(index, now_ns)?.tasks.first() {
            return Err(LockstepError::Stray { what: "task", number, now_ns });
        }
        let probes = self.nodes[index].workers.take_probes();
        let asked = probes.into_iter().map(|(place, packet)| (place, 0, packet)).collect();
        self.questions.insert(number, asked);
        Ok(())
    }

    fn asked(&mut self, number: u64, queue: impl Fn(Member) -> u32) {
        for (place, tasks, _) in self.questions.get_mut(&number).into_iter().flatten() {
            *tasks = queue(Member(*place));
        }
    }

    fn next(
        &mut self,
        _index: usize,
        _number: impl Fn(u32) -> u64,
    ) -> Result<Offered<u32>, LockstepError> {
        Ok(Ok(None)) // none waits
    }

    fn reply(&mut self, _index: usize, _report: &Report) -> Result<(), LockstepError> {
        Err(LockstepError::Arguments("replies that tell queues".to_owned()))
    }

    fn answered(
        &mut self,
        index: usize,
        now_ns: u64,
        number: u64,
        report: &Report,
    ) -> Result<(), LockstepError> {
        self.advance(index, now_ns)?;
        let stray = |what| LockstepError::Stray { what, number: number as u32, now_ns };
        let mut packet = self.packets.remove(&number).ok_or(stray("the answer to task"))?;
        let workers = &mut self.nodes[index].workers;
        // It says how many are left, and nobody is to believe it.
        workers.turn_around(&mut packet, report.member.0, report.load.whole_tasks(), 0);
        workers.send(packet, now_ns)?;
        self.nodes[index].answered += 1;
        match self.turn(index, now_ns)?.answers[..] {
            [answered] if u64::from(answered) == number => Ok(()),
            _ => Err(stray("the answer to task")),
        }
    }

    fn report(&mut self, index: usize, now_ns: u64, report: &Report) -> Result<(), LockstepError> {
        self.advance(index, now_ns)?;
        let (layout, worker) = (self.layout, report.member.0);
        let node = &mut self.nodes[index];
        let number = &mut node.numbers[report.member.index()];
        *number = number.wrapping_add(1);
        let tasks = report.load.whole_tasks() as u16;
        let header = Header::queue_report(POOL, worker, tasks, *number);
        let Some(IpAddr::V4(ip)) = layout.server_of(worker) else {
            return Err(LockstepError::Arguments("no such worker".to_owned()));
        };
        let flow = Flow {
            src_mac: SERVERS_MAC,
            dst_mac: leaf_mac(index, 1),
            src: ip.to_bits(),
            dst: leaf_inside(index).to_bits(),
            src_port: UDP_PORT,
            dst_port: UDP_PORT,
        };
        let mut buf = node.pool.frame(&vec![0; udp::PAYLOAD + header.len()]);
        let mut buf = buf.take().ok_or(LockstepError::Buffers)?;
        emit_word(&header, &flow, buf.bytes_mut(), |_| {});
        node.workers.send_buffer(buf, now_ns)?;
        node.told += 1;
        self.turn(index, now_ns).map(|_| ())
    }

    fn picks(&self) -> (u64, u64) {
        // The model counts what servers send.
        (self.nodes.iter().map(|node| node.probed).sum(), 0)
    }
}
