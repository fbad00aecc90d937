//! Nodes of a rack without a leaf in emulated time, in this process: the simulator's model `nodes` on
//! packets.
//!
//! Each node is an agent with its own port, packets, queue and timers; all agents of the rack are its peers. Its
//! workers attach to the agent's memory, take tasks, and answer after the model's service time. A packet from
//! one node reaches the next after the model's delay. The order of events, the streams and the nodes' settings
//! ([`crate::sim::nodes::settings`]) are those of the model.

use std::net::Ipv4Addr;
use std::path::Path;

use rand::Rng as _;
use wedjat::clock::Line;
use wedjat::config::AgentConfig;
use wedjat::io::Buf as _;
use wedjat::io::memory::{FramePool, RingPort};
use wedjat::peers::Peers;
use wedjat::policy::fifo::Slab;
use wedjat::reason::DropReason;
use wedjat::ring::WorkerEnd;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Extension, Header, UDP_PORT};
use wedjat::wire::udp::{self, Flow};
use wedjat_pktgen::seed::{Stream, StreamSeed};

use super::{LocalAgent, LockstepError, Scheduler};
use crate::sim::digest::{Digest, Record};
use crate::sim::events::{Events, event::pack, event::unpack};
use crate::sim::hop::{TICKS_PER_US, from_ns, to_ns};
use crate::sim::nodes::{Config, settings};
use crate::sim::outcome::ForwardedTasks;

/// Id of the only pool.
const POOL: u16 = 1;
/// Number of packet buffers of each node.
const FRAMES: usize = 4096;
/// Maximum number of bytes of a frame. The largest ones carry a part of the learned parameters.
const FRAME_BYTES: usize = 1200;
/// Addresses of the clients.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 200);
const CLIENT_MAC: Mac = Mac([2, 9, 0, 0, 0, 1]);
const CLIENT_PORT: u16 = 40_000;
/// Application number of all tasks.
const APP: u32 = 1;

/// Kinds of events, in the model's order. An event also carries its packet, or its finished task.
mod kind {
    /// A task from another node arrives.
    pub const TASK: u64 = 0;
    /// A worker completes a task.
    pub const DONE: u64 = 1;
    /// A request for a task arrives.
    pub const STEAL_REQUEST: u64 = 2;
    /// A heartbeat arrives.
    pub const HEARTBEAT: u64 = 3;
    /// A part of a node's learned parameters arrives.
    pub const PARAMETERS: u64 = 4;
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct RunDetails {
    /// Digest of the finished tasks.
    pub record: Record,
    /// Packets between nodes.
    pub messages: u64,
    /// Tasks dropped by full nodes.
    pub lost: u64,
    /// Tasks forwarded or stolen between nodes.
    pub passed: ForwardedTasks,
    /// Learned state of each node at the end.
    pub peers: Vec<Peers>,
    /// Errors in the nodes' ledgers.
    pub faults: Vec<String>,
}

/// Runs a configuration.
///
/// # Errors
/// If a node breaks a rule of the run, or the arguments contradict each other.
pub fn run(config: &Config) -> Result<RunDetails, LockstepError> {
    let mut run = Run::new(config).map_err(LockstepError::Arguments)?;
    run.attach_workers()?;
    run.run_events()?;
    Ok(run.finish())
}

/// A worker and its current task.
struct Worker {
    /// The worker's end of its channel to the agent.
    end: WorkerEnd,
    /// Number of the task that it serves.
    task: Option<u32>,
}

/// A node and its workers.
struct Node {
    local: LocalAgent,
    /// Far end of the agent's port.
    far: RingPort,
    workers: Vec<Worker>,
    /// Progress after its last turn.
    line: Line,
    /// Number of tasks dropped by its full queue so far.
    dropped: u64,
}

/// A task in flight.
#[derive(Clone, Copy)]
struct Flight {
    /// Time of its arrival at the first node, in ticks.
    arrived: u64,
    /// Start of its service.
    started: u64,
    /// Service time, in ticks.
    service: u64,
    /// Node that received the task from the client.
    origin: usize,
    /// Node that serves the task.
    node: usize,
}

/// State of a run.
struct Run<'a> {
    config: &'a Config,
    /// Current time in ticks.
    now: u64,
    /// Delay between two nodes in ticks.
    delay: u64,
    events: Events,
    nodes: Vec<Node>,
    /// Tasks, by number.
    flights: Vec<Flight>,
    /// Packets in flight between nodes, with their receivers.
    packets: Slab<(usize, Vec<u8>)>,
    /// Stream of the nodes that clients choose.
    choice: Stream,
    service: Stream,
    /// Tasks that no worker has finished.
    in_system: u64,
    lost: u64,
    /// Answers that reached the clients.
    answered: u64,
    /// Packets between nodes.
    messages: u64,
    passed: ForwardedTasks,
    digest: Digest,
}

/// Returns a node's address.
fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 2, 1 + node as u8)
}

/// Returns a node's MAC address.
fn mac(node: usize) -> Mac {
    Mac([2, 7, 0, 0, 0, node as u8])
}

/// Returns a node's configuration.
fn text(config: &Config, index: usize) -> String {
    let nodes: Vec<_> =
        (0..config.workers.len()).map(|node| format!("'{}'", address(node))).collect();
    format!(
        "[agent]\nname = 'node'\ncore = 0\nslots = 2\nworker_timeout_ms = 0\n\
         [peers]\nnodes = [{}]\npolicy = '{}'\nbeat_us = {}\n\
         [[port]]\ndevice = 'memory'\nip = '{}/24'\nmac = '{}'\n\
         [[pool]]\nid = {POOL}\npolicy = 'jbsq(k=1)'\nworkers = '0-{}'\nqueue = {}\n",
        nodes.join(","),
        config.policy,
        config.beat_ns / 1000,
        address(index),
        mac(index),
        config.workers[index] - 1,
        config.queue,
    )
}

impl Node {
    /// Creates an agent, and workers that claim its channels. The agent admits them in its first turn.
    fn new(config: &Config, index: usize) -> Result<Self, String> {
        let text = text(config, index);
        let mut agent = AgentConfig::parse(Path::new("agent.toml"), &text)
            .map_err(|error| error.to_string())?;
        let settings = settings(config, index, 0, 0);
        agent.seed = Some(settings.seed);
        let pool = FramePool::new(FRAMES, FRAME_BYTES);
        let (local, far) = LocalAgent::of(&agent, &pool, Some(settings))?;
        let attach = |channel| match local.region().claim(channel) {
            Ok(Some(end)) => Ok(Worker { end, task: None }),
            _ => Err(format!("worker {channel} of node {index} has no free place")),
        };
        let workers = (0..config.workers[index]).map(attach).collect::<Result<_, _>>()?;
        Ok(Self { local, far, workers, line: Line::default(), dropped: 0 })
    }
}

impl<'a> Run<'a> {
    /// Creates all nodes. A script is not supported, and an agent's configuration has whole microseconds.
    fn new(config: &'a Config) -> Result<Self, String> {
        if !config.script.is_empty() || !config.beat_ns.is_multiple_of(1000) {
            return Err(
                "nodes in lockstep: omit --at, and give --beat in whole microseconds".to_owned()
            );
        }
        let stream = |purpose| StreamSeed::derive(config.seed, purpose, 0).stream();
        let nodes = (0..config.workers.len()).map(|index| Node::new(config, index));
        Ok(Self {
            config,
            now: 0,
            delay: from_ns(config.delay_ns),
            events: Events::default(),
            nodes: nodes.collect::<Result<_, _>>()?,
            flights: Vec::new(),
            packets: Slab::default(),
            choice: stream("nodes"),
            service: stream("service"),
            in_system: 0,
            lost: 0,
            answered: 0,
            messages: 0,
            passed: ForwardedTasks::default(),
            digest: Digest::default(),
        })
    }

    /// Gives each node a turn at time 0, in which the nodes resolve each other's MAC addresses, and starts the
    /// workers.
    fn attach_workers(&mut self) -> Result<(), LockstepError> {
        for node in 0..self.nodes.len() {
            self.turn(node)?;
        }
        for Node { workers, .. } in &mut self.nodes {
            for worker in workers {
                if !worker.end.receiver().is_granted() {
                    return Err(LockstepError::Arguments("a worker could not attach".to_owned()));
                }
                worker.end.start();
            }
        }
        Ok(())
    }

    /// Runs all arrivals, timers and events in order. At equal times, an arrival comes before events, and events
    /// before timers.
    fn run_events(&mut self) -> Result<(), LockstepError> {
        let (mut schedule, _) = self.config.schedules().map_err(LockstepError::Arguments)?;
        let mut arrivals = StreamSeed::derive(self.config.seed, "arrivals", 0).stream();
        let mut remaining = self.config.tasks;
        let mut arrival = schedule.advance(&mut arrivals);
        while remaining > 0 || self.in_system > 0 {
            let due = |node: &Node| from_ns(node.line.timer_ns);
            let timers = self.nodes.iter().map(due).zip(0..);
            let (timer, node) = timers.min().unwrap_or((u64::MAX, 0));
            let next = self.events.next_time();
            if remaining > 0 && arrival <= next.min(timer) {
                self.now = arrival;
                remaining -= 1;
                self.arrive()?;
                arrival = schedule.advance(&mut arrivals);
            } else if timer < next {
                if timer < self.now {
                    let (timer_ns, now_ns) = (to_ns(timer), to_ns(self.now));
                    return Err(LockstepError::Timer { timer_ns, now_ns });
                }
                self.now = timer;
                self.turn(node)?;
            } else {
                let Some((time, event)) = self.events.pop() else { break };
                self.now = time;
                match unpack(event) {
                    (kind::DONE, number) => self.done(number as u32)?,
                    (_, slot) => self.deliver(slot as u32)?,
                }
            }
        }
        Ok(())
    }

    /// Sends a client's next task to a random node.
    fn arrive(&mut self) -> Result<(), LockstepError> {
        let nodes = self.nodes.len() as u64;
        let origin = (((self.choice.next_u64() >> 32) * nodes) >> 32) as usize;
        let (service_ns, _) = self.config.service.sample_ns(&mut self.service);
        let number = self.flights.len();
        let service = (service_ns * TICKS_PER_US / 1e3) as u64;
        self.flights.push(Flight { arrived: self.now, started: 0, service, origin, node: origin });
        self.in_system += 1;
        let header = Header { extended: true, ..Header::new_task(POOL, number as u16) };
        let mut frame = vec![0; udp::PAYLOAD + header.len()];
        header.emit(&mut frame[udp::PAYLOAD..]);
        let extension = Extension { app: APP, seq32: number as u32, ..Extension::default() };
        extension.emit(&mut frame[udp::PAYLOAD..]);
        let flow = Flow {
            src_mac: CLIENT_MAC,
            dst_mac: mac(origin),
            src: CLIENT.to_bits(),
            dst: address(origin).to_bits(),
            src_port: CLIENT_PORT,
            dst_port: UDP_PORT,
        };
        flow.emit(&mut frame, header.len());
        self.put_frame(origin, &frame)
    }

    /// Delivers a packet to its node.
    fn deliver(&mut self, slot: u32) -> Result<(), LockstepError> {
        let Some((node, frame)) = self.packets.remove(slot) else { return Ok(()) };
        self.put_frame(node, &frame)
    }

    /// Puts a frame into a node's port and gives the node a turn.
    fn put_frame(&mut self, node: usize, frame: &[u8]) -> Result<(), LockstepError> {
        if !self.nodes[node].far.send(frame) {
            return Err(LockstepError::Full { side: "nodes", now_ns: to_ns(self.now) });
        }
        self.turn(node)
    }

    /// Lets a worker answer the task that it has finished, and wakes its node.
    fn done(&mut self, number: u32) -> Result<(), LockstepError> {
        let Flight { arrived, started, node, .. } = self.flights[number as usize];
        let service_ns = to_ns(self.now - started);
        let stray = LockstepError::Stray { packet: "task", number, now_ns: to_ns(self.now) };
        let mut workers = self.nodes[node].workers.iter_mut();
        let worker = workers.find(|worker| worker.task == Some(number)).ok_or(stray)?;
        worker.task = None;
        worker.end.answer(|_, _| 0, || service_ns);
        self.digest.add([u64::from(number), node as u64, started, self.now - arrived]);
        self.in_system -= 1;
        self.turn(node)
    }

    /// Gives a node a turn, handles the packets that it sends, and lets its workers take tasks.
    fn turn(&mut self, node: usize) -> Result<(), LockstepError> {
        let now_ns = to_ns(self.now);
        self.nodes[node].line = self.nodes[node].local.turn(now_ns)?;
        while let Some(frame) = self.nodes[node].far.receive() {
            self.on_frame(node, frame.bytes())?;
        }
        let Node { local, workers, dropped, .. } = &mut self.nodes[node];
        for worker in workers.iter_mut().filter(|worker| worker.task.is_none()) {
            // A worker that is not admitted yet takes no task.
            if worker.end.receiver().is_granted() && worker.end.take() == Ok(true) {
                let number = worker.end.ids().seq;
                worker.task = Some(number);
                let flight = &mut self.flights[number as usize];
                (flight.started, flight.node) = (self.now, node);
                self.events.push(self.now + flight.service, pack(kind::DONE, u64::from(number)));
            }
        }
        // Tasks dropped since the last turn end here.
        let lost = local.agent().counters().dropped(DropReason::QueueFull) - *dropped;
        *dropped += lost;
        self.in_system -= lost;
        self.lost += lost;
        Ok(())
    }

    /// Handles a packet that a node sent: an answer to a client, or a message to another node, which arrives
    /// after the delay.
    fn on_frame(&mut self, from: usize, frame: &[u8]) -> Result<(), LockstepError> {
        if ether::ether_type(frame) == ether::ARP {
            return self.resolve(from, frame);
        }
        let now_ns = to_ns(self.now);
        let invalid = |reason| LockstepError::Packet { side: "nodes", now_ns, reason };
        let datagram = udp::parse(frame, false).map_err(invalid)?;
        let payload = &frame[datagram.payload()..usize::from(datagram.end)];
        let header = Header::parse(payload).map_err(invalid)?;
        if header.code.is_reply() {
            let number = Extension::parse(payload).seq32;
            let origin =
                self.flights.get(number as usize).map(|flight| address(flight.origin).to_bits());
            // The answer must come from the node that received the task.
            let is_right = (ether::dst(frame), datagram.dst, datagram.dst_port, Some(datagram.src))
                == (CLIENT_MAC, CLIENT.to_bits(), CLIENT_PORT, origin);
            self.answered += 1;
            let stray = LockstepError::Stray { packet: "the answer to task", number, now_ns };
            return if is_right { Ok(()) } else { Err(stray) };
        }
        let nodes = 0..self.nodes.len();
        let receiver = nodes.into_iter().find(|&node| mac(node) == ether::dst(frame));
        let receiver = receiver.ok_or_else(|| invalid(DropReason::OtherMac))?;
        let kind = match header.code {
            Code::PassedTask => kind::TASK,
            Code::StealRequest => kind::STEAL_REQUEST,
            Code::Heartbeat => kind::HEARTBEAT,
            Code::Parameters => kind::PARAMETERS,
            _ => return Err(invalid(DropReason::TaskRole)),
        };
        self.messages += 1;
        self.passed.steals += u64::from(kind == kind::STEAL_REQUEST);
        let slot = self.packets.add((receiver, frame.to_vec()));
        self.events.push(self.now + self.delay, pack(kind, u64::from(slot)));
        Ok(())
    }

    /// Delivers ARP requests and answers at once, without a delay: the model has none.
    fn resolve(&mut self, from: usize, frame: &[u8]) -> Result<(), LockstepError> {
        for node in (0..self.nodes.len()).filter(|&node| node != from) {
            if [Mac::BROADCAST, mac(node)].contains(&ether::dst(frame)) {
                self.put_frame(node, frame)?;
            }
        }
        Ok(())
    }

    /// Checks the nodes' ledgers and returns the result.
    fn finish(mut self) -> RunDetails {
        use wedjat::state::Counter;
        let (mut faults, mut peers) = (Vec::new(), Vec::new());
        for (index, node) in self.nodes.into_iter().enumerate() {
            let agent = node.local.into_agent();
            let counters = agent.counters().clone();
            peers.extend(agent.peers().cloned());
            agent.close();
            self.passed.migrations += counters.read(Counter::TasksPassed);
            self.passed.stolen += counters.read(Counter::TasksGiven);
            let unexpected_drops =
                counters.dropped_total() - counters.dropped(DropReason::QueueFull);
            if !counters.balances()
                || unexpected_drops > 0
                || counters.read(Counter::OriginatedUnsent) > 0
            {
                faults.push(format!(
                    "unexpected drops at node {index}: {:?}",
                    counters.totals().drops()
                ));
            }
        }
        if self.answered + self.lost != self.config.tasks {
            faults.push(format!("{} answers to {} tasks", self.answered, self.config.tasks));
        }
        RunDetails {
            record: Record { digest: self.digest, answered: self.config.tasks - self.lost },
            messages: self.messages,
            lost: self.lost,
            passed: self.passed,
            peers,
            faults,
        }
    }
}
