//! A spine and its leaves in emulated time, in this process: the simulator's model `rack` with several racks,
//! on packets.
//!
//! The conductor (this code) emulates clients, hops and workers as in [`super::run()`]. It gives nodes their
//! turns, in which they poll until they are quiet. It draws tasks from the simulator's streams in the simulator's
//! order. Leaves repeat signals and send heartbeats at other times than in the model, so a run equals the model
//! only with a constant hop delay and without loss. Tasks go from the clients to the spine without a hop, because
//! the model has them arrive there. The spine's heartbeats reach the leaves at once.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::path::Path;

use wedjat::clock::Line;
use wedjat::config::Config as NodeConfig;
use wedjat::io::Buf;
use wedjat::io::memory::RingPort;
use wedjat::policy::signals::{Protocol, Signal};
use wedjat::policy::stream_seed;
use wedjat::role::Leaf;
use wedjat::state::{Counter, Load};
use wedjat::wire::arp;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Extension, Header};
use wedjat::wire::udp::{self, Datagram};
use wedjat_pktgen::host::{FrameKind, Host};
use wedjat_pktgen::results::Status;
use wedjat_pktgen::target::Target;
use wedjat_pktgen::template::{Task, Template};

use super::{LocalLeaf, LockstepError, Scheduler};
use crate::rack::Reply;
use crate::sim::engine::{Engine, NextEvent, SimTask};
use crate::sim::events::event;
use crate::sim::hop::{TICKS_PER_US, from_ns, to_ns};
use crate::sim::outcome::Outcome;
use crate::sim::rack::{Config, Route, reported_ns, signal, ticks_of};
use crate::sim::script::Action;

/// Id of the only pool.
const POOL: u16 = 1;
/// Id of the spine, larger than the leaves' ids.
const SPINE_ID: u16 = 900;
/// Application number of all tasks.
const APP: u32 = 1;
/// Number of packet buffers of each node.
const FRAMES: usize = 8192;
/// Address of the clients.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 100);
/// Address of the pool, to which the clients send tasks.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 200);
const CLIENT_MAC: Mac = Mac([2, 9, 0, 0, 0, 1]);
/// MAC address of all servers.
const SERVERS_MAC: Mac = Mac([2, 9, 0, 0, 0, 2]);
/// Index of a node's port towards the clients, or of a leaf's port towards the spine.
const UP: usize = 0;
/// Index of a node's port towards the leaves or workers.
const DOWN: usize = 1;
/// Time for which nodes continue after the last task: packets in flight arrive, and nodes notice silences.
const AFTER_NS: u64 = 60_000_000;
/// Time without the end of any task after which the rest counts as kept, once all tasks have arrived. An ended leaf
/// never serves its queue.
const STALL_NS: u64 = 1_000_000_000;

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Tasks answered to their clients, each once.
    pub answered: u64,
    /// Tasks refused to their clients.
    pub refused: u64,
    /// Lost tasks, by the place of the loss.
    pub lost: BTreeMap<&'static str, u64>,
    /// Time from a leaf's end to the last task that the spine still sent to it, in nanoseconds, by rack.
    pub chosen_after_ns: BTreeMap<usize, u64>,
    /// Signals (idleness and average load) sent by leaves, without keep-alives. Under [`Protocol::Silent`] the
    /// heartbeats are load signals, and count.
    pub signals: u64,
    /// Number of idle signals among them, which say that a leaf now has idle workers or no longer has any; and number
    /// of idle signals that repeat the leaf's previous one.
    pub idle_signals: (u64, u64),
    /// Counters of each node: the spine first, then the leaves. Empty for an ended leaf.
    pub counted: Vec<BTreeMap<&'static str, u64>>,
    /// Errors: ledgers of live nodes that do not balance, and answers from a wrong source address.
    pub faults: Vec<String>,
}

/// Packet of a task.
#[derive(Default)]
struct Packet {
    /// The packet, on its way to a leaf or at a worker.
    frame: Vec<u8>,
    /// Headers of the packet that the leaf sent to the worker; the reply needs them.
    headers: Option<(Datagram, Header)>,
}

/// A spine or a leaf.
struct Node {
    /// The node; `None` after its end.
    local: Option<LocalLeaf>,
    /// Far ends of its ports.
    ports: Vec<RingPort>,
    /// Progress after its last turn.
    line: Line,
    /// Time at which the node ended.
    ended: Option<u64>,
}

/// State of a run.
struct Run<'a> {
    config: &'a Config,
    /// The spine first, then the leaves: the leaf of rack `r` has index `r + 1`.
    nodes: Vec<Node>,
    /// Index of the first worker of each rack.
    first_worker: Vec<usize>,
    /// Clients: receives their packets.
    host: Host,
    /// Packet of a client's task.
    template: Template,
    /// Engine of the model.
    engine: Engine<Route<Packet>>,
    /// Slot of each task in flight, by task number.
    slots: Vec<Option<u32>>,
    /// Packets of signals in flight, by the event's packed signal.
    signals: HashMap<u64, Vec<u8>>,
    /// Code of the last idle signal of each rack.
    last_idle_signal: HashMap<usize, u8>,
    report: Report,
}

/// Runs a configuration. Returns the simulator's outcome of such a run, and the details that the simulator
/// lacks.
///
/// # Errors
/// If a node breaks a rule of the run, or the arguments contradict each other.
pub fn run(config: &Config) -> Result<(Outcome, Report), LockstepError> {
    let mut run = Run::new(config).map_err(LockstepError::Arguments)?;
    run.run_events()?;
    Ok(run.finish())
}

/// Returns the seed of a one-pool node whose policy stream equals that of the model's node `place`: a rack's
/// index, or `usize::MAX` for the spine.
pub(super) fn seed_of(seed: u64, place: usize) -> u64 {
    let model_seed = stream_seed(seed, place, 0);
    // Inverts one step of SplitMix64 (Steele, Lea and Flood 2014). The multipliers are the inverses of the
    // step's multipliers modulo 2^64.
    let invert = |output: u64| {
        // Inverts `x ^ x >> by`: each pass recovers `by` more bits.
        let unshift = |value: u64, by: u32| {
            let mut input = value;
            for _ in 0..64 / by {
                input = value ^ input >> by;
            }
            input
        };
        let z = unshift(output, 31).wrapping_mul(0x3196_42B2_D24D_8EC3);
        let z = unshift(z, 27).wrapping_mul(0x96DE_1B17_3F11_9089);
        unshift(z, 30).wrapping_sub(0x9E37_79B9_7F4A_7C15)
    };
    // A node derives its policy's stream from its seed in two steps.
    let node_seed = invert(invert(model_seed));
    debug_assert_eq!(stream_seed(node_seed, 0, 0), model_seed);
    node_seed
}

/// Returns the MAC address of a node's port.
fn mac(node: usize, port: usize) -> Mac {
    Mac([2, 8, 0, 0, node as u8, port as u8])
}

/// Returns a leaf's address towards the spine.
fn leaf_ip(rack: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 3, 10 + rack as u8)
}

/// Returns the configuration of one port.
fn port_text(port: usize, side: &str, ip: Ipv4Addr, prefix: u8, node: usize) -> String {
    let mac = mac(node, port);
    format!(
        "[[port]]\ndevice = \"net_memif{port}\"\nside = \"{side}\"\nip = \"{ip}/{prefix}\"\nmac = \"{mac}\"\n"
    )
}

/// Returns the spine's configuration.
#[must_use]
pub fn spine_text(config: &Config) -> String {
    let mut text = format!("[spine]\nid = {SPINE_ID}\ncores = [0]\n");
    text += &port_text(UP, "clients", Ipv4Addr::new(10, 0, 1, 1), 24, 0);
    text += &port_text(DOWN, "workers", Ipv4Addr::new(10, 0, 3, 1), 24, 0);
    let policy = &config.spine;
    text += &format!("[[pool]]\nid = {POOL}\npolicy = \"{policy}\"\nservice = \"{SERVICE}\"\n");
    for (rack, workers) in config.racks.iter().enumerate() {
        text += &format!(
            "[[leaf]]\nid = {}\nip = \"{}\"\nmac = \"{}\"\npool = {POOL}\nworkers = {workers}\n",
            rack + 1,
            leaf_ip(rack),
            mac(rack + 1, UP)
        );
    }
    text
}

/// Returns a leaf's configuration. Its queue exceeds any backlog of a stable run. Like the simulator's leaf, it
/// does not compare workers' reports with its own counts of sent tasks (`shared_workers`).
#[must_use]
pub fn leaf_text(config: &Config, rack: usize) -> String {
    let signals = match config.protocol {
        Protocol::EveryReply => "every-reply",
        Protocol::Silent => "none",
        _ => "horus",
    };
    let mut text = format!("[leaf]\nid = {}\ncores = [0]\n", rack + 1);
    text += &format!("[[spine]]\nid = {SPINE_ID}\nip = \"10.0.3.1\"\n");
    text += &port_text(UP, "clients", leaf_ip(rack), 16, rack + 1);
    text += &port_text(DOWN, "workers", Ipv4Addr::new(10, 1, rack as u8, 1), 24, rack + 1);
    text += &format!(
        "[[pool]]\nid = {POOL}\npolicy = \"{}\"\nqueue = 32768\nshared_workers = true\n\
         spine = {SPINE_ID}\nsignals = \"{signals}\"\nservice = \"{SERVICE}\"\n",
        config.leaf
    );
    text + &format!(
        "[[server]]\nip = \"10.1.{rack}.11\"\nmac = \"{SERVERS_MAC}\"\nworkers = \"0-{}\"\npool = {POOL}\n",
        config.racks[rack] - 1
    )
}

/// Creates the node of a configuration.
fn node(text: &str, seed: u64) -> Result<Node, String> {
    let mut config =
        NodeConfig::parse(Path::new("node.toml"), text).map_err(|error| error.to_string())?;
    config.leaf.seed = Some(seed);
    let (local, ends) = LocalLeaf::new(&config, FRAMES)?;
    let ports =
        [ends.clients, ends.workers].into_iter().flat_map(super::local::SpreadingEnd::into_queues);
    Ok(Node { local: Some(local), ports: ports.collect(), line: Line::default(), ended: None })
}

impl<'a> Run<'a> {
    /// Creates all nodes, and the engine, whose calendar contains the script. At most 200 racks fit into the leaves'
    /// addresses.
    fn new(config: &'a Config) -> Result<Self, String> {
        if config.tasks >= u64::from(u32::MAX) || config.racks.len() > 200 {
            return Err("too many tasks or racks".to_owned());
        }
        let mut nodes = vec![node(&spine_text(config), seed_of(config.seed, usize::MAX))?];
        for rack in 0..config.racks.len() {
            nodes.push(node(&leaf_text(config, rack), seed_of(config.seed, rack))?);
        }
        let target = Target {
            pool: POOL,
            next_hop_mac: Some(mac(0, UP)),
            ..Target::new(CLIENT_MAC, CLIENT.to_bits(), SERVICE.to_bits())
        };
        let first_worker = |rack| config.racks[..rack].iter().sum();
        Ok(Self {
            config,
            nodes,
            first_worker: (0..config.racks.len()).map(first_worker).collect(),
            host: target.host(),
            template: Template::new(&target.frame(APP)),
            // Recorded: with a digest of all tasks, until all replies have arrived.
            engine: config.engine(true)?,
            slots: vec![None; config.tasks as usize],
            signals: HashMap::new(),
            last_idle_signal: HashMap::new(),
            report: Report::default(),
        })
    }

    /// Runs all arrivals, timers and events in order. At equal times, an arrival comes before events, and events
    /// before timers. Nodes continue for [`AFTER_NS`] after the last task.
    fn run_events(&mut self) -> Result<(), LockstepError> {
        for index in 0..self.nodes.len() {
            self.turn(index)?;
        }
        let mut end = u64::MAX;
        // Number of tasks that have not ended, and the time of its last change.
        let mut open = (u64::MAX, 0);
        loop {
            let Engine { remaining, in_system, now, .. } = self.engine;
            if open.0 != remaining + in_system {
                open = (remaining + in_system, now);
            }
            // The run ends a fixed time after the last task, or after a stall.
            let has_stalled = remaining == 0 && now - open.1 >= from_ns(STALL_NS);
            let timers = self.nodes.iter().filter(|node| node.local.is_some());
            let timer = timers.map(|node| from_ns(node.line.timer_ns)).min().unwrap_or(u64::MAX);
            if (self.engine.is_over() || has_stalled) && end == u64::MAX {
                end = now + from_ns(AFTER_NS);
            }
            if self.engine.events.next_time().min(timer) > end {
                return Ok(());
            }
            match self.engine.advance(timer) {
                None => return Ok(()),
                Some(NextEvent::Arrival) => self.arrive()?,
                Some(NextEvent::Timer) => {
                    let is_due =
                        |node: &Node| node.local.is_some() && from_ns(node.line.timer_ns) <= timer;
                    let due = self.nodes.iter().position(is_due).unwrap_or(0);
                    self.turn(due)?;
                }
                Some(NextEvent::Event(event::AT_LEAF, slot)) => self.at_leaf(slot as u32)?,
                Some(NextEvent::Event(event::AT_WORKER, slot)) => {
                    self.engine.arrive_at_worker(slot as u32)
                }
                Some(NextEvent::Event(event::DONE, slot)) => self.done(slot as u32),
                Some(NextEvent::Event(event::REPLY, slot)) => self.reply(slot as u32)?,
                // Signals in flight belong to their packets in `signals`.
                Some(NextEvent::Event(event::SIGNAL, signal)) => {
                    if let Some(frame) = self.signals.remove(&signal) {
                        self.deliver(0, DOWN, &frame)?;
                    }
                }
                Some(NextEvent::Event(_, step)) => self.act(step as usize),
            }
        }
    }

    /// Executes a step of the script: ends a leaf without notice to any other node. Ignores all other steps, also
    /// the controller's reaction: the spine itself must notice the leaf's silence.
    fn act(&mut self, step: usize) {
        if let Action::FailLeaf(rack) = self.config.script[step].action {
            let node = &mut self.nodes[rack + 1];
            node.ended = Some(self.engine.now);
            let cores = node.local.take().into_iter().flat_map(LocalLeaf::into_cores);
            cores.for_each(|core| drop(core.close()));
        }
    }

    /// Forwards a task, unless its packet is lost.
    fn send_task(&mut self, hops: u32, kind: u64, slot: u32) {
        match self.engine.loses() {
            true => self.lose(slot, "task"),
            false => self.engine.send(hops, kind, slot.into()),
        }
    }

    /// Removes a task that was lost at this place, and counts it.
    fn lose(&mut self, slot: u32, place: &'static str) {
        *self.report.lost.entry(place).or_default() += 1;
        self.slots[self.engine.flights[slot].number as usize] = None;
        self.engine.lose(slot, Status::Lost);
    }

    /// Sends a client's next task to the spine.
    fn arrive(&mut self) -> Result<(), LockstepError> {
        let slot = self.engine.arrive(&self.config.service, ticks_of, Route::default());
        let SimTask { number, service, class, .. } = self.engine.flights[slot];
        let task = Task { seq: number as u32, service_ns: reported_ns(service, 1.0), class };
        self.slots[number as usize] = Some(slot);
        let mut frame = vec![0; self.template.frame_len()];
        self.template.write(&mut frame, task);
        self.deliver(0, UP, &frame)?;
        // The spine does not queue: it dropped any task that it did not forward.
        if self.slots[number as usize]
            .is_some_and(|slot| self.engine.flights[slot].route.packet.frame.is_empty())
        {
            self.lose(slot, "no leaf");
        }
        Ok(())
    }

    /// Delivers a task to its leaf. An ended leaf loses it.
    fn at_leaf(&mut self, slot: u32) -> Result<(), LockstepError> {
        let route = &mut self.engine.flights[slot].route;
        let rack = usize::from(route.rack);
        if self.nodes[rack + 1].ended.is_some() {
            self.lose(slot, "leaf");
            return Ok(());
        }
        let frame = std::mem::take(&mut route.packet.frame);
        self.deliver(rack + 1, UP, &frame)
    }

    /// Ends a task at its worker, and sends the reply.
    fn done(&mut self, slot: u32) {
        let SimTask { number, worker, route: Route { rack, .. }, .. } = self.engine.flights[slot];
        self.engine.done(slot, worker as usize - self.first_worker[usize::from(rack)]);
        if !self.engine.reply(self.config.hops.worker_leaf, slot) {
            *self.report.lost.entry("reply").or_default() += 1;
            self.slots[number as usize] = None;
        }
    }

    /// Delivers a reply to its leaf.
    fn reply(&mut self, slot: u32) -> Result<(), LockstepError> {
        self.engine.end_await();
        // Frees the slot at the same point as the simulator, so that both reuse slots in the same order.
        let Some(flight) = self.engine.flights.remove(slot) else { return Ok(()) };
        let SimTask { number, worker, left_at_worker, service, .. } = flight;
        let (rack, mut packet) = (usize::from(flight.route.rack), flight.route.packet);
        if self.nodes[rack + 1].ended.is_some() {
            *self.report.lost.entry("reply at leaf").or_default() += 1;
            self.slots[number as usize] = None;
            return Ok(());
        }
        if let Some((datagram, header)) = &packet.headers {
            let reply = Reply {
                worker: (worker as usize - self.first_worker[rack]) as u16,
                left: left_at_worker.into(),
                service_ns: reported_ns(service, self.config.speeds[worker as usize]),
            };
            reply.write(&mut packet.frame, datagram.udp_offset.into(), header, SERVERS_MAC);
        }
        self.deliver(rack + 1, DOWN, &packet.frame)
    }

    /// Delivers a frame to a node's port and gives the node a turn. A frame for an ended node vanishes; callers
    /// count lost tasks themselves.
    fn deliver(&mut self, index: usize, port: usize, frame: &[u8]) -> Result<(), LockstepError> {
        if self.nodes[index].local.is_none() {
            return Ok(());
        }
        if !self.nodes[index].ports[port].send(frame) {
            return Err(LockstepError::Full { side: "nodes", now_ns: to_ns(self.engine.now) });
        }
        self.turn(index)
    }

    /// Gives a node a turn and handles the frames that it sends.
    fn turn(&mut self, index: usize) -> Result<(), LockstepError> {
        let now_ns = to_ns(self.engine.now);
        let node = &mut self.nodes[index];
        let Some(local) = &mut node.local else { return Ok(()) };
        node.line = local.turn(now_ns)?;
        let mut frames = Vec::new();
        for (port, end) in node.ports.iter_mut().enumerate() {
            frames.extend(
                std::iter::from_fn(|| end.receive()).map(|frame| (port, frame.bytes().to_vec())),
            );
        }
        for (port, frame) in frames {
            self.on_frame(index, port, frame)?;
        }
        Ok(())
    }

    /// Handles a frame that a node sent from one of its ports.
    fn on_frame(
        &mut self,
        index: usize,
        port: usize,
        mut frame: Vec<u8>,
    ) -> Result<(), LockstepError> {
        if ether::ether_type(&frame) == ether::ARP {
            return self.resolve(index, port, frame);
        }
        let invalid = |reason| LockstepError::Packet {
            side: "nodes",
            now_ns: to_ns(self.engine.now),
            reason,
        };
        let datagram = udp::parse(&frame, false).map_err(invalid)?;
        let payload = &frame[datagram.payload()..];
        let header = Header::parse(payload).map_err(invalid)?;
        let Extension { seq32, service_ns, .. } = Extension::parse(payload);
        match (index, port, header.code) {
            // A heartbeat of the spine to a leaf, which takes no time.
            (0, DOWN, Code::KeepAlive) => {
                let is_destination = |rack: &usize| leaf_ip(*rack).to_bits() == datagram.dst;
                match (0..self.config.racks.len()).find(is_destination) {
                    Some(rack) => self.deliver(rack + 1, UP, &frame),
                    None => Ok(()),
                }
            }
            // A task from the spine to the leaf that it chose.
            (0, DOWN, Code::NewTask) => {
                let rack = usize::from(header.dst) - 1;
                if let Some(ended) = self.nodes[rack + 1].ended {
                    self.report.chosen_after_ns.insert(rack, to_ns(self.engine.now - ended));
                }
                let slot = self.slot("task", seq32)?;
                let route = &mut self.engine.flights[slot].route;
                (route.rack, route.packet.frame) = (rack as u16, frame);
                self.send_task(self.config.hops.spine_leaf, event::AT_LEAF, slot);
                Ok(())
            }
            // A task from a leaf to the worker that it chose.
            (1.., DOWN, Code::NewTask) => {
                let slot = self.slot("task", seq32)?;
                let flight = &mut self.engine.flights[slot];
                let worker = self.first_worker[index - 1] + usize::from(header.dst);
                flight.worker = worker as u32;
                flight.route.packet = Packet { frame, headers: Some((datagram, header)) };
                self.send_task(self.config.hops.leaf_worker, event::AT_WORKER, slot);
                Ok(())
            }
            // A leaf's signal to the spine.
            (1.., UP, code) if code.is_signal() => {
                self.send_signal(index - 1, &header, service_ns, frame);
                Ok(())
            }
            // An answer to a client.
            _ => self.receive_at_clients(&mut frame),
        }
    }

    /// Returns the slot of a task in flight.
    fn slot(&self, packet: &'static str, number: u32) -> Result<u32, LockstepError> {
        let slot = self.slots.get(number as usize).copied().flatten();
        slot.ok_or(LockstepError::Stray { packet, number, now_ns: to_ns(self.engine.now) })
    }

    /// Counts a leaf's signal and sends it on its way to the spine. `average` is the load in a load signal.
    fn send_signal(&mut self, rack: usize, header: &Header, average: u32, frame: Vec<u8>) {
        let signal = match header.code {
            Code::IdleAdd => Signal::IdleAdd,
            Code::IdleRemove => Signal::IdleRemove,
            // Also a heartbeat: its packed form is only a key in `signals`.
            _ => Signal::Load(Load(average)),
        };
        self.report.signals += u64::from(header.code != Code::KeepAlive);
        if let Signal::IdleAdd | Signal::IdleRemove = signal {
            let (all, repeated) = &mut self.report.idle_signals;
            *all += 1;
            let last = self.last_idle_signal.insert(rack, header.code as u8);
            *repeated += u64::from(last == Some(header.code as u8));
        }
        let packed = signal::pack(rack, header.seq, signal);
        if !self.engine.loses() {
            self.signals.insert(packed, frame);
            self.engine.send(self.config.hops.leaf_spine, event::SIGNAL, packed);
        }
    }

    /// Delivers a frame to the clients. An answer or refusal must belong to a task in flight.
    fn receive_at_clients(&mut self, mut frame: &mut [u8]) -> Result<(), LockstepError> {
        let now_ns = to_ns(self.engine.now);
        let source = udp::parse(frame, false).map(|datagram| datagram.src);
        match self.host.receive(&mut frame, false) {
            FrameKind::Answer(answer) => {
                let number = answer.id.map_or(u32::MAX, |(_, number)| number);
                if source != Ok(SERVICE.to_bits()) {
                    self.report
                        .faults
                        .push(format!("task {number} is answered from a wrong source address"));
                }
                if answer.refused {
                    let slot = self.slot("the refusal of task", number)?;
                    self.report.refused += 1;
                    self.slots[number as usize] = None;
                    self.engine.lose(slot, Status::Refused);
                    return Ok(());
                }
                // The slot is taken, so that a second answer is an error.
                let first = self.slots.get_mut(number as usize).and_then(Option::take);
                first.ok_or(LockstepError::Stray {
                    packet: "the answer to task",
                    number,
                    now_ns,
                })?;
                self.report.answered += 1;
                Ok(())
            }
            FrameKind::Nothing(reason) => {
                Err(LockstepError::Packet { side: "clients", now_ns, reason })
            }
            FrameKind::NeighbourAnswer | FrameKind::NextHop(_) => Ok(()),
        }
    }

    /// Delivers ARP requests and answers at once, without a delay.
    fn resolve(
        &mut self,
        index: usize,
        port: usize,
        mut frame: Vec<u8>,
    ) -> Result<(), LockstepError> {
        let invalid = |reason| LockstepError::Packet {
            side: "nodes",
            now_ns: to_ns(self.engine.now),
            reason,
        };
        let packet = arp::Packet::parse(&frame).map_err(invalid)?;
        // A leaf's request for a server.
        if port == DOWN && index > 0 {
            packet.answer(SERVERS_MAC).emit(&mut frame, packet.sender_mac);
            return self.deliver(index, port, &frame);
        }
        if packet.target == CLIENT.to_bits() {
            return match self.host.receive(&mut frame.as_mut_slice(), false) {
                FrameKind::NeighbourAnswer => self.deliver(index, port, &frame),
                _ => Ok(()),
            };
        }
        // The network of the spine and its leaves: the target is a leaf, or else the spine.
        let is_target = |rack: &usize| leaf_ip(*rack).to_bits() == packet.target;
        match (0..self.config.racks.len()).find(is_target) {
            Some(rack) => self.deliver(rack + 1, UP, &frame),
            None => self.deliver(0, DOWN, &frame),
        }
    }

    /// Checks the ledgers of the live nodes, counts the remaining tasks as lost, and returns the outcome and the
    /// report.
    fn finish(mut self) -> (Outcome, Report) {
        let counters_of = |node: &Node| {
            let cores = node.local.iter().flat_map(LocalLeaf::cores);
            let counters = cores.map(|core: &Leaf<_, _>| core.stages().counters().clone());
            counters.collect::<Vec<_>>()
        };
        for index in 0..self.nodes.len() {
            let mut counted = BTreeMap::new();
            for counters in counters_of(&self.nodes[index]) {
                for counter in Counter::ALL {
                    *counted.entry(counter.name()).or_default() += counters.read(counter);
                }
                for reason in wedjat::reason::DropReason::ALL {
                    *counted.entry(reason.name()).or_default() += counters.dropped(reason);
                }
                if !counters.balances() {
                    self.report.faults.push(format!("the ledger of node {index} does not balance"));
                }
            }
            self.report.counted.push(counted);
        }
        self.engine.end_rest(&self.slots);
        // Tasks that a live node kept or dropped, or whose reply it dropped, and those queued at an ended leaf.
        let stranded = self.slots.iter().flatten().count() as u64;
        if stranded > 0 {
            *self.report.lost.entry("kept").or_default() += stranded;
        }
        self.engine.answered = self.report.answered;
        let outcome = Outcome {
            lost: self.report.lost.values().sum(),
            messages: self.report.signals,
            ..self.engine.finish(TICKS_PER_US)
        };
        (outcome, self.report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node with the inverted seed draws from the same stream as the model's node.
    #[test]
    fn a_nodes_seed_gives_the_models_stream() {
        for (seed, place) in [(7, usize::MAX), (1, 0), (u64::MAX >> 1, 3)] {
            assert_eq!(stream_seed(seed_of(seed, place), 0, 0), stream_seed(seed, place, 0));
        }
    }
}
