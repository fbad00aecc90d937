//! Nodes of a rack without a leaf in emulated time, in this process: the simulator's model `nodes` on packets.
//!
//! Each node is an agent with its own port, packets, queue and timers. All other agents of the rack are its peers. Its
//! workers attach to the agent's memory: each claims a channel, its pair of rings for tasks and answers. They take
//! tasks, and answer after the model's service time. A packet from one node reaches the next after the model's delay. A
//! node gets a turn for each packet, timer and answer. In a turn it polls until no packet moves. The order of events,
//! the streams of random numbers and the nodes' settings ([`crate::sim::nodes::settings`]) are those of the model.

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
use wedjat::ring::{TakenTask, WorkerEnd};
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Extension, Header, UDP_PORT};
use wedjat::wire::udp::{self, Flow};
use wedjat_pktgen::seed::{Stream, StreamSeed};

use super::{LocalAgent, LockstepError, Scheduler};
use crate::sim::engine::{Engine, NextEvent, SimTask};
use crate::sim::events::event;
use crate::sim::hop::{TICKS_PER_US, from_ns, to_ns};
use crate::sim::nodes::{Config, LOST_SHARE, kind, settings, ticks_of};
use crate::sim::outcome::{ForwardedTasks, Outcome};

/// Id of the only pool.
const POOL: u16 = 1;
/// Number of packet buffers of each node.
const FRAMES: usize = 4096;
/// Maximum number of bytes of a frame. The largest frames carry a part of the learned parameters.
const FRAME_BYTES: usize = 1200;
/// Address of all clients.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 200);
/// MAC address of all clients.
const CLIENT_MAC: Mac = Mac([2, 9, 0, 0, 0, 1]);
/// UDP port of all clients.
const CLIENT_PORT: u16 = 40_000;
/// Application id in the header extension of all tasks.
const APP: u32 = 1;

/// Result of a run.
#[derive(Clone, Debug)]
pub struct RunDetails {
    /// Outcome of the run, as the model computes it.
    pub outcome: Outcome,
    /// Learned state of each node at the end.
    pub peers: Vec<Peers>,
    /// Errors in the nodes' ledgers (their accounts of packets) and in the number of answers.
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

/// A worker and its current tasks.
struct Worker {
    /// The worker's end of its channel to the agent.
    end: WorkerEnd,
    /// Tasks that it serves, with their numbers. At most one, unless tasks share the core.
    tasks: Vec<(u32, TakenTask)>,
}

/// A node and its workers.
struct Node {
    /// The agent.
    local: LocalAgent,
    /// Other end of the agent's port.
    far: RingPort,
    workers: Vec<Worker>,
    /// Progress that the agent reported after its last turn, with its next timer.
    line: Line,
    /// Number of tasks dropped by its full queue so far.
    dropped: u64,
}

/// State of a run.
struct Run<'a> {
    config: &'a Config,
    /// Engine of the model. A task's `route` is the node that received it from the client. Its `worker` is the node
    /// that serves it. Its slot equals its number, because the run removes no task.
    engine: Engine<usize>,
    nodes: Vec<Node>,
    /// Packets in flight between nodes, each with its receiver.
    packets: Slab<(usize, Vec<u8>)>,
    /// Stream of the clients' choices of a node.
    choice: Stream,
    /// Numbers of tasks and requests that nodes sent to each other.
    passed: ForwardedTasks,
}

/// Returns a node's address.
fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 2, 1 + node as u8)
}

/// Returns a node's MAC address.
fn mac(node: usize) -> Mac {
    Mac([2, 7, 0, 0, 0, node as u8])
}

/// Returns the text of a node's configuration. A worker timeout of 0 means none.
fn text(config: &Config, index: usize) -> String {
    let nodes: Vec<_> =
        (0..config.workers.len()).map(|node| format!("'{}'", address(node))).collect();
    format!(
        "[agent]\nname = 'node'\ncore = 0\nslots = {}\nworker_timeout_ms = 0\n\
         [peers]\nnodes = [{}]\npolicy = '{}'\nbeat_us = {}\n\
         [[port]]\ndevice = 'memory'\nip = '{}/24'\nmac = '{}'\n\
         [[pool]]\nid = {POOL}\npolicy = 'jbsq(k={})'\nworkers = '0-{}'\nqueue = {}\n",
        // A ring's number of slots is a power of two from 2 on.
        config.slots().next_power_of_two().max(2),
        nodes.join(","),
        config.policy,
        config.beat_ns / 1000,
        address(index),
        mac(index),
        config.slots(),
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
        // The node starts at time 0, after 0 restarts.
        let settings = settings(config, index, 0, 0);
        agent.seed = Some(settings.seed);
        let pool = FramePool::new(FRAMES, FRAME_BYTES);
        let (local, far) = LocalAgent::with_pool(&agent, &pool, Some(settings))?;
        let attach = |channel| match local.region().claim(channel) {
            Ok(Some(end)) => Ok(Worker { end, tasks: Vec::new() }),
            _ => Err(format!("worker {channel} of node {index} has no free place")),
        };
        let workers = (0..config.workers[index]).map(attach).collect::<Result<_, _>>()?;
        Ok(Self { local, far, workers, line: Line::default(), dropped: 0 })
    }
}

impl<'a> Run<'a> {
    /// Creates all nodes. Refuses a script, because lockstep does not support scripts. Refuses a beat that is not in
    /// whole microseconds, because an agent's configuration has no other unit.
    fn new(config: &'a Config) -> Result<Self, String> {
        if !config.script.is_empty() || !config.beat_ns.is_multiple_of(1000) {
            return Err(
                "nodes in lockstep: omit --at, and give --beat in whole microseconds".to_owned()
            );
        }
        let nodes = (0..config.workers.len()).map(|index| Node::new(config, index));
        Ok(Self {
            config,
            // `true`: computes a digest of all tasks.
            engine: config.engine(true)?,
            nodes: nodes.collect::<Result<_, _>>()?,
            packets: Slab::default(),
            choice: StreamSeed::derive(config.seed, "nodes", 0).stream(),
            passed: ForwardedTasks::default(),
        })
    }

    /// Gives each node a turn at time 0, in which it admits its workers and resolves the MAC addresses of its peers.
    /// Then starts the workers.
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
                if self.config.sharing.is_some() {
                    worker.end.complete_in_any_order();
                }
            }
        }
        Ok(())
    }

    /// Runs all arrivals, timers and events in order, as the simulator does.
    fn run_events(&mut self) -> Result<(), LockstepError> {
        loop {
            let timer = |node: &Node| from_ns(node.line.timer_ns);
            let timers = self.nodes.iter().map(timer).zip(0..);
            let (timer, node) = timers.min().unwrap_or((u64::MAX, 0));
            match self.engine.next(timer) {
                None => return Ok(()),
                Some(NextEvent::Arrival) => self.arrive()?,
                Some(NextEvent::Timer) if timer < self.engine.now => {
                    let (timer_ns, now_ns) = (to_ns(timer), to_ns(self.engine.now));
                    return Err(LockstepError::Timer { timer_ns, now_ns });
                }
                Some(NextEvent::Timer) => self.turn(node)?,
                Some(NextEvent::Event(event::DONE, number)) => self.done(number as u32)?,
                // All other events are packets that reach their node.
                Some(NextEvent::Event(_, slot)) => self.deliver(slot as u32)?,
            }
        }
    }

    /// Sends a client's next task to a random node.
    fn arrive(&mut self) -> Result<(), LockstepError> {
        let nodes = self.nodes.len() as u64;
        // Scales 32 random bits to an index, as the model does.
        let origin = (((self.choice.next_u64() >> 32) * nodes) >> 32) as usize;
        let number = self.engine.arrive(&self.config.service, ticks_of, origin);
        let header = Header { extended: true, ..Header::new_task(POOL, number as u16) };
        let mut frame = vec![0; udp::PAYLOAD + header.len()];
        header.emit(&mut frame[udp::PAYLOAD..]);
        let extension = Extension { app: APP, seq32: number, ..Extension::default() };
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

    /// Delivers a packet to its node. Each slot has one event, so it holds a packet.
    fn deliver(&mut self, slot: u32) -> Result<(), LockstepError> {
        let Some((node, frame)) = self.packets.remove(slot) else { return Ok(()) };
        self.put_frame(node, &frame)
    }

    /// Puts a frame into a node's port and gives the node a turn.
    fn put_frame(&mut self, node: usize, frame: &[u8]) -> Result<(), LockstepError> {
        if !self.nodes[node].far.send(frame) {
            return Err(LockstepError::Full { side: "nodes", now_ns: to_ns(self.engine.now) });
        }
        self.turn(node)
    }

    /// Lets a worker answer the task that it has finished, and gives its node a turn.
    fn done(&mut self, number: u32) -> Result<(), LockstepError> {
        let is_shared = self.config.sharing.is_some();
        if is_shared {
            self.engine.leave_core(number);
        }
        let SimTask { worker: node, started, .. } = self.engine.flights[number];
        let (node, now) = (node as usize, self.engine.now);
        // The worker reports a task's own time, without the quanta of tasks that share its core, as in the model.
        let service_ns =
            to_ns(if is_shared { self.engine.service_of(number) } else { now - started });
        // The error if no worker of the node has the task.
        let stray = LockstepError::Stray { packet: "task", number, now_ns: to_ns(now) };
        let taken = self.nodes[node].workers.iter_mut().find_map(|Worker { end, tasks }| {
            let place = tasks.iter().position(|(taken, _)| *taken == number)?;
            Some((end, tasks.swap_remove(place).1))
        });
        let Some((end, task)) = taken else { return Err(stray) };
        // The answer has no payload.
        let _ = end.answer(task, |_, _| 0, || service_ns);
        self.engine.complete(number, node);
        self.turn(node)
    }

    /// Gives a node a turn, handles the packets that it sends, and lets its workers take tasks.
    fn turn(&mut self, node: usize) -> Result<(), LockstepError> {
        let now_ns = to_ns(self.engine.now);
        self.nodes[node].line = self.nodes[node].local.turn(now_ns)?;
        while let Some(frame) = self.nodes[node].far.receive() {
            self.on_frame(node, frame.bytes())?;
        }
        let first_core: usize = self.config.workers[..node].iter().sum();
        let Node { local, workers, dropped, .. } = &mut self.nodes[node];
        for (index, Worker { end, tasks }) in workers.iter_mut().enumerate() {
            // A worker takes no task before the agent admits it.
            while tasks.len() < self.config.slots()
                && end.receiver().is_granted()
                && let Ok(Some(task)) = end.take()
            {
                let number = end.ids(&task).seq;
                tasks.push((number, task));
                self.engine.flights[number].worker = node as u32;
                match self.config.sharing {
                    None => self.engine.start(number),
                    Some(_) => self.engine.join_core(first_core + index, number),
                }
            }
        }
        // Tasks dropped since the last turn end here.
        let lost = local.agent().counters().dropped(DropReason::QueueFull) - *dropped;
        *dropped += lost;
        self.engine.in_system -= lost;
        self.engine.lost += lost;
        Ok(())
    }

    /// Handles a packet that a node sent: an answer to a client, which arrives at once, or a message to another node,
    /// which arrives after the delay.
    fn on_frame(&mut self, from: usize, frame: &[u8]) -> Result<(), LockstepError> {
        if ether::ether_type(frame) == ether::ARP {
            return self.resolve(from, frame);
        }
        let now_ns = to_ns(self.engine.now);
        let invalid = |reason| LockstepError::Packet { side: "nodes", now_ns, reason };
        let datagram = udp::parse(frame, false).map_err(invalid)?;
        let payload = &frame[datagram.payload()..usize::from(datagram.end)];
        let header = Header::parse(payload).map_err(invalid)?;
        if header.code.is_reply() {
            let number = Extension::parse(payload).seq32;
            let flight = self.engine.flights.get(number);
            let origin = flight.map(|flight| address(flight.route).to_bits());
            // The answer must come from the node that received the task.
            let is_right = (ether::dst(frame), datagram.dst, datagram.dst_port, Some(datagram.src))
                == (CLIENT_MAC, CLIENT.to_bits(), CLIENT_PORT, origin);
            self.engine.answered += 1;
            let stray = LockstepError::Stray { packet: "the answer to task", number, now_ns };
            return if is_right { Ok(()) } else { Err(stray) };
        }
        let nodes = 0..self.nodes.len();
        let receiver = nodes.into_iter().find(|&node| mac(node) == ether::dst(frame));
        let receiver = receiver.ok_or_else(|| invalid(DropReason::OtherMac))?;
        let kind = match header.code {
            Code::PassedTask => kind::AT_NODE,
            Code::StealRequest => kind::STEAL_REQUEST,
            Code::Heartbeat => kind::HEARTBEAT,
            Code::Parameters => kind::PARAMETERS,
            _ => return Err(invalid(DropReason::TaskRole)),
        };
        self.passed.steals += u64::from(kind == kind::STEAL_REQUEST);
        let slot = self.packets.add((receiver, frame.to_vec()));
        self.engine.messages += 1;
        self.engine.send(1, kind, slot.into());
        Ok(())
    }

    /// Delivers an ARP packet at once: the model has no ARP, and so no delay for it.
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
            if !counters.balances() {
                faults.push(format!("the ledger of node {index} does not balance"));
            }
            if unexpected_drops > 0 {
                let drops = counters.totals().drops();
                faults.push(format!("unexpected drops at node {index}: {drops:?}"));
            }
            let unsent = counters.read(Counter::OriginatedUnsent);
            if unsent > 0 {
                faults.push(format!("node {index} did not send {unsent} packets of its own"));
            }
        }
        let (answered, lost, tasks) = (self.engine.answered, self.engine.lost, self.config.tasks);
        if answered + lost != tasks {
            faults.push(format!("{answered} answers to {tasks} tasks"));
        }
        let outcome = Outcome {
            // Only full queues lose tasks.
            overflows: lost > tasks / LOST_SHARE,
            passed: Some(self.passed),
            servers: self.config.workers.iter().sum(),
            ..self.engine.finish(TICKS_PER_US)
        };
        RunDetails { outcome, peers, faults }
    }
}
