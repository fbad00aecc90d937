//! Several leaves over the same workers in emulated time, in this process: the simulator's model `ct`
//! (servers and dispatchers in continuous time) on packets, for policies whose members send load reports in messages or
//! answer probes.
//!
//! The loop, its streams, delays and servers are those of the model. A server tracks each leaf's estimate of
//! its load ([`wedjat::policy::member::MemberSide`]). Each leaf has its own clients, and the model's servers
//! as its workers. Tasks, replies and load reports reach the leaf as packets, at the times at which the
//! model's dispatchers receive them. The leaf's timers get their turns in between. In a turn, a leaf polls until no
//! packet moves.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use wedjat::clock::Line;
use wedjat::config::Config as NodeConfig;
use wedjat::io::Buf as _;
use wedjat::io::memory::{Frame, FramePool};
use wedjat::limits::WORKER_ID_MAX;
use wedjat::policy::member::Notify;
use wedjat::policy::{Pick, Placement};
use wedjat::role::agent::emit_message;
use wedjat::state::{Counter, Load, Member, Report};
use wedjat::wire::ether::Mac;
use wedjat::wire::task::{Header, UDP_PORT};
use wedjat::wire::udp::{self, Flow};
use wedjat_pktgen::target::Target;
use wedjat_pktgen::template::Task;

use super::fabric::seed_of;
use super::local::SpreadingEnd;
use super::workers::Packet;
use super::{Clients, LocalLeaf, LockstepError, Scheduler, Workers};
use crate::rack::{Layout, RackPort, Servers};
use crate::sim::ct::{Config, Dispatchers, Sim, TaskLabel};
use crate::sim::outcome::Outcome;

/// Id of the only pool.
const POOL: u16 = 1;
/// Number of packet buffers of each leaf.
const FRAMES: usize = 4096;
/// Addresses of the clients. Each leaf has a clients' network of its own, so that all may use the same.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 100);
const CLIENT_MAC: Mac = Mac([2, 9, 0, 0, 0, 1]);
/// Address of each leaf in its clients' network.
const LEAF: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
/// Address of the first server, and maximum number of servers in its network.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 101);
const SERVERS_MAX: usize = 150;
/// MAC address of all servers.
const SERVERS_MAC: Mac = Mac([2, 9, 0, 0, 0, 2]);
/// Maximum number of leaves: each has an address in the servers' network.
const LEAVES_MAX: usize = 100;

/// Details of a run beyond the model's outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunDetails {
    /// Load reports sent to leaves, except those before the first task.
    pub reports: u64,
    /// Probes (questions for a worker's queue length) sent by leaves; each was answered.
    pub probes: u64,
    /// Differences between the leaves' counters and the delivered packets, ledgers that do not balance, and
    /// unanswered tasks.
    pub faults: Vec<String>,
}

/// Runs a configuration. Returns the model's outcome of such a run, and the details that the model lacks.
///
/// # Errors
/// If a leaf breaks a rule of the run, or the arguments contradict each other.
pub fn run(config: &Config) -> Result<(Outcome, RunDetails), LockstepError> {
    let refuse = LockstepError::Arguments;
    if !config.policy.takes_messages() {
        let policy = &config.policy;
        return Err(refuse(format!("{policy} uses no queue reports and no probes")));
    }
    let mut leaves = Leaves::new(config).map_err(refuse)?;
    leaves.resolve_and_report(config)?;
    let mut sim = Sim::new(config, |_| leaves).map_err(refuse)?;
    sim.run()?;
    let (outcome, leaves) = sim.finish();
    Ok((outcome, leaves.finish()))
}

/// A leaf, its clients, and its workers.
struct Node {
    local: LocalLeaf,
    clients: Clients<SpreadingEnd, FramePool>,
    workers: Workers<SpreadingEnd>,
    pool: FramePool,
    /// Progress after its last turn, with the time of its next timer.
    line: Line,
    /// Number of each worker's last report to this leaf.
    report_numbers: Vec<u16>,
    /// Load reports delivered to the leaf.
    reports: u64,
    /// Answers to probes delivered to the leaf.
    probe_answers: u64,
    /// Replies delivered to the leaf.
    answered: u64,
}

/// Packets that a leaf sent in a turn.
#[derive(Default)]
struct LeafOutput {
    /// Tasks: number, worker's place (its index in the layout), packet.
    tasks: Vec<(u32, u16, Packet<Frame>)>,
    /// Numbers of answered tasks.
    answers: Vec<u32>,
}

/// Leaves on packets, in the role of the dispatchers of the simulator's model `ct`.
struct Leaves {
    nodes: Vec<Node>,
    layout: Layout,
    /// Tasks at workers or on their way, by number.
    packets: HashMap<u64, Packet<Frame>>,
    /// Probes, by number of their task: the worker's place, its number of tasks when the probe arrived, and the
    /// packet.
    probes: HashMap<u64, Vec<(u16, u32, Packet<Frame>)>>,
    /// True if the leaves send probes for each task.
    sends_probes: bool,
    /// Number of load reports sent before the first task.
    initial_reports: u64,
}

/// Returns a leaf's address in the servers' network.
fn leaf_worker_side_ip(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 2, 1 + index as u8)
}

/// Returns the MAC address of a leaf's port: 0 towards the clients, 1 towards the servers.
fn leaf_mac(index: usize, port: usize) -> Mac {
    Mac([2, 8, 0, 0, index as u8, port as u8])
}

/// Returns a leaf's configuration.
#[must_use]
pub fn leaf_text(config: &Config, index: usize, layout: &Layout) -> String {
    let mut text = format!("[leaf]\nid = {}\ncores = [0]\n", index + 1);
    for (port, (side, ip)) in
        [("clients", LEAF), ("workers", leaf_worker_side_ip(index))].iter().enumerate()
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

/// Returns a layout in which the workers of each server have one speed. Servers have one worker each if the
/// runs of workers with one speed differ in length, since all servers of a layout have the same size.
fn layout(speeds: &[f64]) -> Result<Layout, String> {
    let groups = speeds.chunk_by(|a, b| a == b).map(<[f64]>::len);
    let each = groups.reduce(|a, b| if a == b { a } else { 1 }).unwrap_or(1);
    let count = speeds.len() / each;
    if count > SERVERS_MAX {
        return Err(format!(
            "workers of one speed need {count} servers; at most {SERVERS_MAX} are allowed"
        ));
    }
    Layout::new(Servers { first: SERVER.into(), count: count as u16 }, each as u16, 0)
}

impl Leaves {
    /// Creates all leaves, each with its own clients and workers.
    fn new(config: &Config) -> Result<Self, String> {
        if config.dispatchers > LEAVES_MAX || config.speeds.len() > usize::from(WORKER_ID_MAX) {
            return Err(format!("at most {LEAVES_MAX} leaves for {WORKER_ID_MAX} workers"));
        }
        let layout = layout(&config.speeds)?;
        let node = |index| {
            let text = leaf_text(config, index, &layout);
            let mut node = NodeConfig::parse(Path::new("leaf.toml"), &text)
                .map_err(|error| error.to_string())?;
            node.leaf.seed = Some(seed_of(config.seed, index));
            let (local, ends) = LocalLeaf::new(&node, FRAMES)?;
            let target =
                Target { pool: POOL, ..Target::new(CLIENT_MAC, CLIENT.to_bits(), LEAF.to_bits()) };
            let address = RackPort { mac: SERVERS_MAC, layout, udp_port: UDP_PORT };
            Ok(Node {
                local,
                clients: Clients::new(ends.clients, ends.pool.clone(), &target),
                workers: Workers::new(ends.workers, address),
                pool: ends.pool,
                line: Line::default(),
                report_numbers: vec![0; config.speeds.len()],
                reports: 0,
                probe_answers: 0,
                answered: 0,
            })
        };
        let nodes = (0..config.dispatchers).map(node).collect::<Result<_, String>>()?;
        let sends_probes = config.policy.can_probe_by_messages();
        let (packets, probes) = (HashMap::new(), HashMap::new());
        Ok(Self { nodes, layout, packets, probes, sends_probes, initial_reports: 0 })
    }

    /// Prepares the run at time 0, before the first task. Clients resolve their leaf's MAC address. Under
    /// policies with lists of idle workers, each worker reports to the leaf whose list holds it in the model.
    fn resolve_and_report(&mut self, config: &Config) -> Result<(), LockstepError> {
        for index in 0..self.nodes.len() {
            self.turn(index, 0)?;
            self.nodes[index].clients.request_mac(0)?;
            self.turn(index, 0)?;
            if !self.nodes[index].clients.is_resolved() {
                return Err(LockstepError::Unresolved(LEAF.into()));
            }
        }
        if matches!(config.policy.notify(), Notify::Below(_)) {
            for member in (0..config.speeds.len() as u16).map(Member) {
                let index = member.index() % self.nodes.len();
                self.report(index, 0, &Report::new(member, Load(0), 0))?;
                self.initial_reports += 1;
            }
        }
        Ok(())
    }

    /// Gives a leaf its turns for the timers that are due before `now_ns`. The model sends no task at a timer, so a
    /// task in such a turn is an error.
    fn advance(&mut self, index: usize, now_ns: u64) -> Result<(), LockstepError> {
        while self.nodes[index].line.timer_ns < now_ns {
            let timer_ns = self.nodes[index].line.timer_ns;
            let output = self.turn(index, timer_ns)?;
            if let Some(&(number, ..)) = output.tasks.first() {
                return Err(LockstepError::Stray { packet: "task", number, now_ns: timer_ns });
            }
            if self.nodes[index].line.timer_ns <= timer_ns {
                return Err(LockstepError::Timer { timer_ns, now_ns });
            }
        }
        Ok(())
    }

    /// Gives a leaf a turn and collects its output. Repeats the turn while the leaf sends packets, so that it receives
    /// the answers to its ARP requests.
    fn turn(&mut self, index: usize, now_ns: u64) -> Result<LeafOutput, LockstepError> {
        let (node, mut output) = (&mut self.nodes[index], LeafOutput::default());
        loop {
            node.line = node.local.turn(now_ns)?;
            let (tasks, _) = node.workers.receive(now_ns, |number, place, packet| {
                output.tasks.push((number, place, packet));
                Ok(())
            })?;
            let (answers, _) = node.clients.receive(now_ns, |number, _| {
                output.answers.push(number);
                Ok(())
            })?;
            if tasks + answers == 0 {
                return Ok(output);
            }
        }
    }

    /// Gives a leaf its due timers and sends it a client's task. The caller gives the turn that receives the task.
    fn send(&mut self, index: usize, now_ns: u64, number: u64) -> Result<(), LockstepError> {
        self.advance(index, now_ns)?;
        let task = Task { seq: number as u32, service_ns: 0, class: 0 };
        self.nodes[index].clients.send(task, now_ns)
    }

    /// Delivers the answers to a task's probes to its leaf.
    fn answer_probes(
        &mut self,
        index: usize,
        now_ns: u64,
        number: u64,
    ) -> Result<(), LockstepError> {
        self.advance(index, now_ns)?;
        for (_, tasks, mut packet) in self.probes.remove(&number).into_iter().flatten() {
            Workers::<SpreadingEnd>::answer_probe(&mut packet, tasks);
            self.nodes[index].workers.send(packet, now_ns)?;
            self.nodes[index].probe_answers += 1;
        }
        Ok(())
    }

    /// Compares the leaves' counters with the packets delivered to them. Returns the details of the run, with all
    /// differences.
    fn finish(self) -> RunDetails {
        let reports: u64 = self.nodes.iter().map(|node| node.reports).sum();
        let mut faults = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let counters = node.local.leaf().stages().counters();
            let counted = [Counter::QueueReports, Counter::ProbeAnswers, Counter::Replies]
                .map(|counter| counters.read(counter));
            let ignored = [Counter::QueueReportsOld, Counter::ProbeAnswersLate]
                .map(|counter| counters.read(counter));
            let is_complete = counted == [node.reports, node.probe_answers, node.answered];
            if !is_complete || ignored != [0; 2] || counters.dropped_total() > 0 {
                faults.push(format!(
                    "leaf {index} counted {counted:?} reports, probe answers and replies, and ignored {ignored:?}"
                ));
            }
            if !counters.balances() {
                faults.push(format!("the ledger of leaf {index} does not balance"));
            }
        }
        if !self.packets.is_empty() {
            faults.push(format!("{} tasks were not answered", self.packets.len()));
        }
        let probes = self.nodes.iter().map(|node| node.probe_answers).sum();
        RunDetails { reports: reports - self.initial_reports, probes, faults }
    }
}

impl Dispatchers for Leaves {
    type Error = LockstepError;

    fn tick(&mut self, _index: usize, _now_ns: u64) -> Result<(), LockstepError> {
        Ok(()) // a leaf has its own timers, see `advance`
    }

    fn next_benchmark(&mut self, _index: usize) -> Option<Member> {
        None // leaves request no benchmark tasks
    }

    /// Delivers the task, or the answers to its probes. In the turn that follows, the leaf must send exactly this
    /// task. `task` is the model's handle, returned with the choice.
    fn offer(
        &mut self,
        index: usize,
        now_ns: u64,
        TaskLabel { number, .. }: TaskLabel,
        task: u32,
    ) -> Result<Placement<u32>, LockstepError> {
        if self.sends_probes {
            self.answer_probes(index, now_ns, number)?;
        } else {
            self.send(index, now_ns, number)?;
        }
        let mut output = self.turn(index, now_ns)?;
        match (output.tasks.pop(), output.tasks.len()) {
            (Some((sent_number, place, packet)), 0) if u64::from(sent_number) == number => {
                self.packets.insert(number, packet);
                // The model does not use `idle`.
                Ok(Ok(Some((task, Pick { member: Member(place), idle: false }))))
            }
            _ => Err(LockstepError::Stray { packet: "task", number: number as u32, now_ns }),
        }
    }

    fn sends_probes(&self) -> bool {
        self.sends_probes
    }

    /// Delivers the task. The leaf must answer with probes only, and hold the task until their answers.
    fn send_probes(&mut self, index: usize, now_ns: u64, number: u64) -> Result<(), LockstepError> {
        self.send(index, now_ns, number)?;
        if let Some(&(number, ..)) = self.turn(index, now_ns)?.tasks.first() {
            return Err(LockstepError::Stray { packet: "task", number, now_ns });
        }
        let probes = self.nodes[index].workers.take_probes();
        // `on_probes` sets the number of tasks.
        let probes = probes.into_iter().map(|(place, packet)| (place, 0, packet)).collect();
        self.probes.insert(number, probes);
        Ok(())
    }

    fn on_probes(&mut self, number: u64, queue: impl Fn(Member) -> u32) {
        for (place, tasks, _) in self.probes.get_mut(&number).into_iter().flatten() {
            *tasks = queue(Member(*place));
        }
    }

    fn next(
        &mut self,
        _index: usize,
        _now_ns: u64,
        _label: impl Fn(u32) -> TaskLabel,
    ) -> Result<Placement<u32>, LockstepError> {
        Ok(Ok(None)) // no task waits
    }

    /// Fails: [`run`] accepts only policies whose servers report in messages or answer probes.
    fn reply(&mut self, _index: usize, _report: &Report) -> Result<(), LockstepError> {
        Err(LockstepError::Arguments("replies with queue lengths".to_owned()))
    }

    /// Delivers the reply, which the leaf must forward to its client in the same turn.
    fn answered(
        &mut self,
        index: usize,
        now_ns: u64,
        number: u64,
        report: &Report,
    ) -> Result<(), LockstepError> {
        self.advance(index, now_ns)?;
        let stray = |packet| LockstepError::Stray { packet, number: number as u32, now_ns };
        let mut packet = self.packets.remove(&number).ok_or(stray("the answer to task"))?;
        let workers = &mut self.nodes[index].workers;
        // The reply carries the number of remaining tasks, but the leaf must not use it.
        workers.write_reply(&mut packet, report.member.0, report.load.whole_tasks(), 0);
        workers.send(packet, now_ns)?;
        self.nodes[index].answered += 1;
        match self.turn(index, now_ns)?.answers[..] {
            [answered] if u64::from(answered) == number => Ok(()),
            _ => Err(stray("the answer to task")),
        }
    }

    /// Sends a worker's load report to the leaf as a packet.
    fn report(&mut self, index: usize, now_ns: u64, report: &Report) -> Result<(), LockstepError> {
        self.advance(index, now_ns)?;
        let (layout, worker) = (self.layout, report.member.0);
        let node = &mut self.nodes[index];
        let number = &mut node.report_numbers[report.member.index()];
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
            dst: leaf_worker_side_ip(index).to_bits(),
            src_port: UDP_PORT,
            dst_port: UDP_PORT,
        };
        let mut buf = node.pool.frame(&vec![0; udp::PAYLOAD + header.len()]);
        let mut buf = buf.take().ok_or(LockstepError::Buffers)?;
        emit_message(&header, &flow, buf.bytes_mut(), |_| {});
        node.workers.send_buffer(buf, now_ns)?;
        node.reports += 1;
        self.turn(index, now_ns).map(|_| ())
    }

    /// Returns the costs of the decisions: their messages, and those with a second pass through a switch.
    fn picks(&self) -> (u64, u64) {
        // The model counts the servers' reports itself, so that only probes are left. No switch takes part, so no
        // decision needs a second pass through one.
        (self.nodes.iter().map(|node| node.probe_answers).sum(), 0)
    }
}
