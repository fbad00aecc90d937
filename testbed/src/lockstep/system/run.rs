//! One run of several nodes: its events and its outcome.

mod inspect;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::atomic::{AtomicBool, Ordering};

use wedjat::clock::Line;
use wedjat::policy::fifo::Slab;
use wedjat::wire::arp;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::{task, udp};
use wedjat_pktgen::arrival::Schedule;
use wedjat_pktgen::host::{FrameKind, Host};
use wedjat_pktgen::seed::{Stream, StreamSeed};
use wedjat_pktgen::template::{Task, Template};

use super::check::{self, PortCounts, Violation};
use super::faults::{FaultKind, FaultTarget};
use super::node::{Maker, Node};
use super::packets::{Class, Label, PacketEnd, Wire, WireLedger, flip};
use super::plan::{Plan, START_NS};
use super::workers::{Worker, WorkerAction};
use crate::lockstep::LockstepError;
use crate::sim::digest::Digest;
use crate::sim::events::{Events, event};
use crate::sim::rack::Streams;

/// Application number of all tasks.
const APP: u32 = 1;
/// Maximum number of packets that wait in a node's port, for example during a pause.
const PORT_DEPTH: u64 = 256;
/// Bound on turns without progress of the time, in thousands. The run fails beyond it.
const TURNS_MAX: u32 = 1000;
/// Time after which a worker attaches, once it lost its place or its agent is back.
const ATTACH_NS: u64 = 1_000_000;
/// Time without any task in flight after which a run is over: all lost tasks are written off by then.
const QUIET_NS: u64 = 15_000_000_000;
/// The same time for nodes in other processes, whose state is not visible.
const QUIET_OUTSIDE_NS: u64 = 3_000_000_000;
/// Interval between checks for outstanding tasks.
const LOOK_NS: u64 = 10_000_000;

/// Kinds of events. Simultaneous events happen in this order, and within a kind in the order of their
/// numbers.
mod kind {
    pub const SPELL: u64 = 0;
    pub const ARRIVE: u64 = 1;
    pub const DELIVER: u64 = 2;
    pub const DONE: u64 = 3;
    pub const WAKE: u64 = 4;
    pub const ATTACH: u64 = 5;
    pub const ACT: u64 = 6;
}

/// Number of low bits of an event's number that name the packet or worker. The bits above hold its order.
const ABOUT_BITS: u32 = 24;
const ABOUT: u64 = (1 << ABOUT_BITS) - 1;

/// Offset of a task's payload in its frame.
const BODY: usize = udp::PAYLOAD + task::LEN + task::EXTENSION_LEN;

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Outcome of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskEnd {
    /// Time at which the client sent the task, in nanoseconds.
    pub sent_ns: u64,
    /// Time of the first answer.
    pub answered_ns: Option<u64>,
    /// Reason for the loss of the last packet of a task without answer or refusal.
    pub lost: Option<String>,
    /// Leaf that a spine chose last, and the time of the choice.
    pub leaf: Option<(u16, u64)>,
    /// Worker that a leaf chose last.
    pub worker: Option<u16>,
}

/// Outcome of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Tasks sent.
    pub tasks: u64,
    /// Tasks answered.
    pub answered: u64,
    /// Tasks refused.
    pub refused: u64,
    /// Tasks without answer or refusal, by the reason for the loss of their last packet.
    pub lost: BTreeMap<String, u64>,
    /// Answers to tasks that were already answered.
    pub again: u64,
    /// Mean time to the first answer, in nanoseconds.
    pub mean_ns: f64,
    /// Sum of all wires' ledgers.
    pub ledger: WireLedger,
    /// Packets dropped by nodes, by node and reason.
    pub drops: BTreeMap<String, BTreeMap<&'static str, u64>>,
    /// Digest of everything that happened to tasks, in order.
    pub digest: String,
    /// Duration of the run in emulated nanoseconds.
    pub end_ns: u64,
    /// Number of turns given to nodes.
    pub turns: u64,
    /// Outcome of each task, in sending order; empty after a violation.
    pub ended: Vec<TaskEnd>,
    /// Violated invariants.
    pub violations: Vec<Violation>,
}

/// A packet in flight.
#[derive(Clone, Debug)]
struct InFlightPacket {
    wire: usize,
    to: usize,
    /// The receiver's port.
    port: usize,
    order: u64,
    /// Label of the packet as sent.
    label: Label,
    frame: Vec<u8>,
}

/// State of a client's task.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    sent_ns: u64,
    /// Hash of the expected answer.
    answer: u64,
    /// Time at which a spine last forwarded the task, the chosen leaf, and the worker chosen by a leaf.
    passed_ns: u64,
    leaf: Option<u16>,
    worker: Option<u16>,
    answered_ns: Option<u64>,
    answers: u32,
    refusals: u32,
    /// Packets of the task, on wires and in nodes.
    copies: i32,
    /// Reason for the loss of its last packet that was lost.
    taken: Option<PacketEnd>,
}

/// Clients of a leaf or spine.
struct Client {
    host: Host,
    template: Template,
    schedule: Schedule,
    stream: Stream,
}

/// A spine, a leaf or an agent, or the place of one that is not running.
#[derive(Default)]
struct Site {
    node: Option<Box<dyn Node>>,
    line: Line,
    passed: PortCounts,
    paused: bool,
    /// End of the node's current processing.
    busy_ns: u64,
    /// Tasks that a leaf sent to workers without a reply yet, with their workers.
    sent: Vec<(u32, u16)>,
    /// Start of each worker's needless idle time, at a leaf.
    idle_ns: Vec<Option<u64>>,
}

/// State of a run.
struct System<'a> {
    plan: &'a Plan,
    maker: &'a mut dyn Maker,
    now: u64,
    events: Events,
    packets: Slab<InFlightPacket>,
    order: u64,
    wires: Vec<Wire>,
    sites: Vec<Site>,
    clients: Vec<Client>,
    workers: Vec<Worker>,
    /// Start of each worker's idle time beside tasks that wait at its agent.
    idle_ns: Vec<Option<u64>>,
    tasks: Vec<Fate>,
    /// Packets of each task in each node.
    inside: Vec<i16>,
    services: Stream,
    /// Number of tasks still to send.
    left: u64,
    /// Packets of tasks on wires.
    flying: u64,
    /// Number of starts and ends of faults, and of acts, still to come.
    spells: usize,
    /// Time of the last event of a task.
    moved_ns: u64,
    look_ns: u64,
    /// Start of the nodes' disagreement about members, after the last fault.
    differ_ns: Option<u64>,
    digest: Digest,
    response_ns: f64,
    outcome: Outcome,
    frames: Vec<(usize, Vec<u8>)>,
}

/// Runs a plan on the nodes of `maker`. The run ends early if `stop` is set.
///
/// # Errors
/// If a node cannot be created, or does not become quiet. Violations are part of the outcome instead.
pub fn run(
    plan: &Plan,
    maker: &mut dyn Maker,
    stop: &AtomicBool,
) -> Result<Outcome, LockstepError> {
    let mut system = System::new(plan, maker)?;
    system.start()?;
    system.play(stop)?;
    let mut outcome = system.finish();
    outcome.violations.extend(maker.violations());
    Ok(outcome)
}

impl<'a> System<'a> {
    fn new(plan: &'a Plan, maker: &'a mut dyn Maker) -> Result<Self, LockstepError> {
        let topology = plan.topology;
        let (count, workers) = (topology.nodes(), usize::from(topology.agents * topology.workers));
        let wires = (0..count * count).map(|at| {
            let (from, to) = (topology.target(at / count), topology.target(at % count));
            Wire::new(from, to, &plan.faults, plan.seed, at)
        });
        let client = |number: u16| {
            let target = plan.target(number);
            let stream = StreamSeed::derive(plan.seed, "arrivals", u32::from(number)).stream();
            let schedule = plan.schedule().map_err(LockstepError::Arguments)?;
            Ok(Client {
                host: target.host(),
                template: Template::new(&target.frame(APP)),
                schedule,
                stream,
            })
        };
        let clients =
            (1..=topology.clients()).map(client).collect::<Result<Vec<_>, LockstepError>>()?;
        let site = |_| Site { idle_ns: vec![None; workers], ..Site::default() };
        let worker = |id: u16| {
            Worker::new(
                id,
                topology.index(FaultTarget::Worker(id)),
                usize::from(id % topology.workers),
            )
        };
        Ok(Self {
            plan,
            maker,
            now: 0,
            events: Events::default(),
            packets: Slab::default(),
            order: 0,
            wires: wires.collect(),
            sites: (0..count).map(site).collect(),
            clients,
            workers: (0..workers as u16).map(worker).collect(),
            idle_ns: vec![None; workers],
            tasks: Vec::with_capacity(plan.tasks as usize),
            inside: vec![0; plan.tasks as usize * count],
            services: Streams::new(plan.seed).service,
            left: plan.tasks,
            flying: 0,
            spells: 2 * plan.faults.spells.len() + plan.acts.len(),
            moved_ns: 0,
            look_ns: 0,
            differ_ns: None,
            digest: Digest::default(),
            response_ns: 0.0,
            outcome: Outcome::default(),
            frames: Vec::new(),
        })
    }

    fn nodes(&self) -> std::ops::Range<usize> {
        self.clients.len()..self.sites.len()
    }

    /// Creates all nodes and workers, and schedules the plan's events.
    fn start(&mut self) -> Result<(), LockstepError> {
        for at in self.nodes() {
            self.make(at)?;
        }
        for worker in 0..self.workers.len() {
            self.attach(worker)?;
        }
        for at in self.nodes() {
            self.turn(at)?;
        }
        for (at, spell) in self.plan.faults.spells.iter().enumerate() {
            let about = 2 * at as u64;
            self.events.push(START_NS + spell.from_ns, event::pack(kind::SPELL, about));
            self.events.push(START_NS + spell.to_ns, event::pack(kind::SPELL, about + 1));
        }
        for (number, at_ns) in self.plan.acts.iter().enumerate() {
            self.events.push(START_NS + at_ns, event::pack(kind::ACT, number as u64));
        }
        for client in 0..self.clients.len() {
            self.schedule(client);
        }
        Ok(())
    }

    fn schedule(&mut self, client: usize) {
        let Client { schedule, stream, .. } = &mut self.clients[client];
        let time = START_NS + schedule.advance(stream);
        self.events.push(time, event::pack(kind::ARRIVE, client as u64));
    }

    fn make(&mut self, at: usize) -> Result<(), LockstepError> {
        let who = self.plan.topology.target(at);
        let node = self.maker.make(self.plan, who).map_err(LockstepError::Arguments)?;
        let idle_ns = vec![None; self.workers.len()];
        self.sites[at] = Site { node: Some(node), idle_ns, busy_ns: self.now, ..Site::default() };
        Ok(())
    }

    fn play(&mut self, stop: &AtomicBool) -> Result<(), LockstepError> {
        let (mut turns, mut time) = (0, 0);
        while self.outcome.violations.is_empty() && !self.is_over() {
            let timer = self.nodes().filter_map(|at| Some((self.timer_ns(at)?, at))).min();
            let next = self.events.next_time();
            turns = if self.now > time { 0 } else { turns + 1 };
            time = self.now;
            if turns > 1000 * TURNS_MAX {
                let timer_ns = timer.map_or(u64::MAX, |(timer, _)| timer);
                return Err(LockstepError::Timer { timer_ns, now_ns: self.now });
            }
            match timer {
                Some((timer, at)) if timer < next => {
                    self.now = timer.max(self.now);
                    self.turn(at)?;
                    continue;
                }
                _ => {}
            }
            let Some((time, event)) = self.events.pop() else { break };
            self.now = time;
            let (kind, about) = event::unpack(event);
            let place = (about & ABOUT) as usize;
            match kind {
                kind::SPELL => self.spell(about as usize)?,
                kind::ARRIVE => self.arrive(about as usize),
                kind::DELIVER => self.deliver(place as u32)?,
                kind::DONE => self.done(place, about >> ABOUT_BITS)?,
                kind::WAKE => self.wake(place)?,
                kind::ACT => self.act(place)?,
                _ => self.attach(place)?,
            }
            if stop.load(Ordering::Relaxed) {
                return Err(LockstepError::Stopped);
            }
        }
        Ok(())
    }

    /// Lets the maker act, and wakes all nodes.
    fn act(&mut self, number: usize) -> Result<(), LockstepError> {
        self.spells -= 1;
        self.moved_ns = self.now;
        self.maker.act(number, self.now).map_err(LockstepError::Arguments)?;
        for at in self.nodes() {
            self.wake(at)?;
        }
        Ok(())
    }

    fn timer_ns(&self, at: usize) -> Option<u64> {
        let site = &self.sites[at];
        (site.node.is_some() && !site.paused).then(|| site.line.timer_ns.max(site.busy_ns))
    }

    /// Returns true if no task has further events.
    fn is_over(&mut self) -> bool {
        let busy = self.left > 0 || self.flying > 0 || self.spells > 0;
        if busy || self.now < self.look_ns || self.workers.iter().any(Worker::is_serving) {
            return false;
        }
        self.look_ns = self.now + LOOK_NS;
        if self.differ() {
            return false;
        }
        let mut insides = self.nodes().map(|at| self.sites[at].node.as_ref()?.inside());
        if insides.any(|inside| inside.is_none()) {
            return self.now > self.moved_ns + QUIET_OUTSIDE_NS;
        }
        let unsettled = |at: usize| {
            let who = self.plan.topology.target(at);
            let inside = self.sites[at].node.as_ref()?.inside()?;
            check::outstanding(who, &inside)
        };
        self.now > self.moved_ns + QUIET_NS || self.nodes().all(|at| unsettled(at).is_none())
    }

    fn violate(&mut self, who: FaultTarget, what: String) {
        self.outcome.violations.push(Violation { at_ns: self.now, who: who.to_string(), what });
    }

    /// Gives a node a turn, handles the packets that it sends, and checks its ledger.
    fn turn(&mut self, at: usize) -> Result<(), LockstepError> {
        let site = &mut self.sites[at];
        let Some(node) = &mut site.node else { return Ok(()) };
        let before = (site.line.received, site.line.sent);
        site.line = node.turn(self.now)?;
        self.outcome.turns += 1;
        if before != (site.line.received, site.line.sent) {
            site.busy_ns = self.now + self.plan.node_delay_ns;
        }
        let mut frames = std::mem::take(&mut self.frames);
        let ports =
            if matches!(self.plan.topology.target(at), FaultTarget::Agent(_)) { 1 } else { 2 };
        loop {
            let before = frames.len();
            for port in 0..ports {
                node.take(port, &mut |frame| frames.push((port, frame.to_vec())));
            }
            if frames.len() == before || site.passed.taken() + frames.len() as u64 >= site.line.sent
            {
                break;
            }
        }
        for (port, frame) in frames.drain(..) {
            self.on_frame(at, port, frame);
        }
        self.frames = frames;
        self.serve(at)?;
        self.inspect(at);
        Ok(())
    }

    /// Gives a node a turn as soon as its processing time is over.
    fn wake(&mut self, at: usize) -> Result<(), LockstepError> {
        let site = &self.sites[at];
        if site.node.is_none() || site.paused {
            return Ok(());
        }
        if site.busy_ns > self.now {
            self.events.push(site.busy_ns, event::pack(kind::WAKE, at as u64));
            return Ok(());
        }
        self.turn(at)
    }

    /// Handles a packet that a node sent from one of its ports.
    fn on_frame(&mut self, at: usize, port: usize, frame: Vec<u8>) {
        let label = Label::read(&frame, None);
        self.sites[at].passed.out[label.class as usize] += 1;
        let who = self.plan.topology.target(at);
        if label.class.is_of_task() {
            let count = self.sites.len();
            match self.inside.get_mut(label.task as usize * count + at) {
                Some(inside) if *inside > 0 => *inside -= 1,
                _ => self.violate(
                    who,
                    format!("it sent a packet of task {}, which it does not hold", label.task),
                ),
            }
            if let Some(task) = self.tasks.get_mut(label.task as usize) {
                task.copies -= 1;
            }
        }
        if label.class == Class::Task {
            self.note_choice(at, label);
        }
        self.route(at, port, label, frame);
    }

    /// Records a spine's choice of a leaf, or a leaf's choice of a worker.
    fn note_choice(&mut self, at: usize, label: Label) {
        let (now, task) = (self.now, self.tasks.get_mut(label.task as usize));
        match self.plan.topology.target(at) {
            FaultTarget::Spine(_) => {
                let task = task.into_iter();
                task.for_each(|task| (task.passed_ns, task.leaf) = (now, Some(label.worker)));
            }
            FaultTarget::Leaf(_) => {
                self.sites[at].sent.push((label.task, label.worker));
                task.into_iter().for_each(|task| task.worker = Some(label.worker));
            }
            _ => {}
        }
    }

    /// Forwards a packet over the port's only wire, over the wire to its MAC address, or over all wires.
    fn route(&mut self, from: usize, port: usize, label: Label, frame: Vec<u8>) {
        let (topology, who) = (self.plan.topology, self.plan.topology.target(from));
        let has_one_wire = topology.spines == 0
            && (matches!(who, FaultTarget::Clients(_))
                || matches!(who, FaultTarget::Leaf(_)) && port == 0);
        let (dst, mut found) = (ether::dst(&frame), false);
        for to in 0..self.sites.len() {
            let receiver = topology.target(to);
            let Some(port) = topology.leads_to(who, port, receiver) else { continue };
            if has_one_wire || dst == Mac::BROADCAST || dst == self.plan.mac(receiver, port) {
                found = true;
                self.hop(from, (to, port), label, frame.clone());
            }
        }
        if !found {
            // The network floods the packet, but no host accepts it. The ledger of the sender's wire to
            // itself, which leads nowhere, counts it.
            let ledger = &mut self.wires[from * self.sites.len() + from].ledger;
            ledger.sent[label.class as usize] += 1;
            ledger.taken[PacketEnd::NoReceiver as usize][label.class as usize] += 1;
            self.copy_made(label);
            self.drop_packet(label, PacketEnd::NoReceiver);
        }
    }

    fn copy_made(&mut self, label: Label) {
        if let Some(task) =
            self.tasks.get_mut(label.task as usize).filter(|_| label.class.is_of_task())
        {
            task.copies += 1;
        }
    }

    /// Records the end of a packet.
    fn drop_packet(&mut self, label: Label, why: PacketEnd) {
        if let Some(task) =
            self.tasks.get_mut(label.task as usize).filter(|_| label.class.is_of_task())
        {
            (task.copies, task.taken) = (task.copies - 1, Some(why));
        }
    }

    /// Puts a packet on a wire.
    fn hop(&mut self, from: usize, (to, port): (usize, usize), label: Label, mut frame: Vec<u8>) {
        let number = from * self.sites.len() + to;
        let (class, wire) = (label.class as usize, &mut self.wires[number]);
        wire.ledger.sent[class] += 1;
        let fate = if self.now >= START_NS { wire.draw() } else { super::packets::Fate::default() };
        let taken = match fate.lost {
            _ if wire.cuts > 0 => Some(PacketEnd::Cut),
            // ARP has no checksum. Leaves find spines by ARP, so the frame's own checksum has to drop the
            // packet, as on a network.
            _ if fate.flip.is_some()
                && label.class == Class::Arp
                && self.plan.topology.spines > 0 =>
            {
                Some(PacketEnd::Corrupted)
            }
            true => Some(PacketEnd::Lost),
            false => None,
        };
        if let Some(why) = taken {
            wire.ledger.taken[why as usize][class] += 1;
            self.copy_made(label);
            return self.drop_packet(label, why);
        }
        wire.ledger.duplicated[class] += u64::from(fate.copy.is_some());
        wire.ledger.held_back += u64::from(fate.late > 0);
        wire.ledger.in_flight[class] += 1 + u64::from(fate.copy.is_some());
        let own = if from < self.clients.len() { 0 } else { self.plan.node_delay_ns };
        let soon = self.now + own + self.plan.hop_ns;
        if let Some(hops) = fate.copy {
            self.fly(
                InFlightPacket { wire: number, to, port, order: 0, label, frame: frame.clone() },
                soon + hops * self.plan.hop_ns,
            );
        }
        if let Some(bit) = fate.flip {
            flip(&mut frame, bit);
        }
        self.fly(
            InFlightPacket { wire: number, to, port, order: 0, label, frame },
            soon + fate.late * self.plan.hop_ns,
        );
    }

    fn fly(&mut self, packet: InFlightPacket, time: u64) {
        self.order += 1;
        if packet.label.class.is_of_task() {
            self.flying += 1;
            self.copy_made(packet.label);
        }
        let place = self.packets.add(InFlightPacket { order: self.order, ..packet });
        self.events
            .push(time, event::pack(kind::DELIVER, self.order << ABOUT_BITS | u64::from(place)));
    }

    /// Delivers a packet at the end of its wire.
    fn deliver(&mut self, place: u32) -> Result<(), LockstepError> {
        let to = self.packets[place].to;
        let site = &self.sites[to];
        if site.node.is_some() && !site.paused && site.busy_ns > self.now {
            let about = self.packets[place].order << ABOUT_BITS | u64::from(place);
            self.events.push(site.busy_ns, event::pack(kind::DELIVER, about));
            return Ok(());
        }
        let Some(InFlightPacket { wire, port, label, frame, .. }) = self.packets.remove(place)
        else {
            return Ok(());
        };
        self.wires[wire].ledger.in_flight[label.class as usize] -= 1;
        if label.class.is_of_task() {
            (self.flying, self.moved_ns) = (self.flying - 1, self.now);
            let (task, class) = (u64::from(label.task), label.class as u64);
            self.digest.add([self.now, wire as u64, task, class << 16 | u64::from(label.worker)]);
        }
        if to < self.clients.len() {
            self.wires[wire].ledger.delivered[label.class as usize] += 1;
            self.receive(to, label, frame);
            return Ok(());
        }
        let mac = self.plan.mac(self.plan.topology.target(to), port);
        let site = &mut self.sites[to];
        let why = match &mut site.node {
            None => Some(PacketEnd::NotRunning),
            Some(_) if site.passed.given >= site.line.received + PORT_DEPTH => {
                Some(PacketEnd::PortFull)
            }
            Some(node) => (!node.give(port, &frame)).then_some(PacketEnd::PortFull),
        };
        if let Some(why) = why {
            self.wires[wire].ledger.taken[why as usize][label.class as usize] += 1;
            self.drop_packet(label, why);
            return Ok(());
        }
        self.wires[wire].ledger.delivered[label.class as usize] += 1;
        site.passed.given += 1;
        let read = Label::read(&frame, Some(mac));
        if read == label && label.class.is_of_task() {
            self.inside[label.task as usize * self.sites.len() + to] += 1;
            if label.class != Class::Task {
                let sent = &mut self.sites[to].sent;
                let answered = sent.iter().position(|&sent| sent == (label.task, label.worker));
                answered.into_iter().for_each(|at| _ = sent.swap_remove(at));
            }
        } else if label.class.is_of_task() {
            self.drop_packet(label, PacketEnd::Corrupted);
        }
        if self.sites[to].paused { Ok(()) } else { self.turn(to) }
    }

    /// Delivers a packet to the clients.
    fn receive(&mut self, client: usize, label: Label, mut frame: Vec<u8>) {
        let number = label.task as usize;
        match self.clients[client].host.receive(&mut frame.as_mut_slice(), false) {
            FrameKind::Answer(answer)
                if answer.id == Some((APP, label.task)) && number < self.tasks.len() =>
            {
                let is_its = hash(&frame[answer.body.into()..answer.end.into()]);
                let task = &mut self.tasks[number];
                let is_its = answer.refused || is_its == task.answer;
                task.copies -= 1;
                match answer.refused {
                    true => task.refusals += 1,
                    false => task.answers += 1,
                }
                if task.answers + task.refusals > 1 {
                    self.outcome.again += 1;
                } else if !answer.refused {
                    self.response_ns += (self.now - task.sent_ns) as f64;
                    task.answered_ns = Some(self.now);
                }
                if !is_its {
                    let who = self.plan.topology.target(client);
                    self.violate(who, format!("task {number} got a wrong answer"));
                }
            }
            FrameKind::NeighbourAnswer => {
                let label = Label::read(&frame, None);
                self.route(client, 0, label, frame);
            }
            // Without a controller each spine has its own clients, as if by routes, although all spines have
            // the same address.
            FrameKind::NextHop(_) if self.plan.topology.spines > 0 && !self.plan.has_controller => {
            }
            FrameKind::NextHop(mac) => self.clients[client].template.set_next_hop(mac),
            FrameKind::Answer(_) => self.drop_packet(label, PacketEnd::Corrupted),
            FrameKind::Nothing(_) => {
                let why = if Label::read(&frame, None) == label {
                    PacketEnd::Client
                } else {
                    PacketEnd::Corrupted
                };
                self.drop_packet(label, why);
            }
        }
    }

    /// Sends a client's next task.
    fn arrive(&mut self, client: usize) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let (service_ns, class) = self.plan.service.sample_ns(&mut self.services);
        let number = self.tasks.len() as u32;
        let Client { template, .. } = &mut self.clients[client];
        let mut frame = vec![0; template.frame_len().max(arp::FRAME_LEN)];
        frame.truncate(template.frame_len());
        template.write(&mut frame, Task { seq: number, service_ns: service_ns as u32, class });
        let answer = hash(&frame[BODY..]);
        self.tasks.push(Fate { sent_ns: self.now, answer, ..Fate::default() });
        let label = Label::read(&frame, None);
        self.moved_ns = self.now;
        self.route(client, 0, label, frame);
        self.schedule(client);
    }

    fn attach(&mut self, at: usize) -> Result<(), LockstepError> {
        let worker = &mut self.workers[at];
        let Some(node) = self.sites[worker.agent].node.as_ref().filter(|_| !worker.away) else {
            return Ok(()); // attaches with its agent, or on its return
        };
        let region =
            node.region().ok_or(LockstepError::Arguments("a leaf has no workers".to_owned()))?;
        if !worker.attach(&region, self.now).map_err(LockstepError::Arguments)? {
            self.events.push(self.now + ATTACH_NS, event::pack(kind::ATTACH, at as u64));
        }
        Ok(())
    }

    /// Lets the workers of an agent look for tasks.
    fn serve(&mut self, agent: usize) -> Result<(), LockstepError> {
        for at in 0..self.workers.len() {
            let worker = &mut self.workers[at];
            if worker.agent != agent {
                continue;
            }
            match worker.look(self.now) {
                Ok(WorkerAction::Nothing) => {}
                Ok(WorkerAction::Task(service_ns)) => {
                    let about = u64::from(worker.epoch) << ABOUT_BITS | at as u64;
                    self.events.push(self.now + service_ns, event::pack(kind::DONE, about));
                }
                Ok(WorkerAction::Attach) => {
                    worker.leave();
                    self.events.push(self.now + ATTACH_NS, event::pack(kind::ATTACH, at as u64));
                }
                Err(what) => {
                    let who = FaultTarget::Worker(worker.id);
                    self.violate(who, what);
                }
            }
        }
        Ok(())
    }

    /// Ends a worker's task.
    fn done(&mut self, at: usize, epoch: u64) -> Result<(), LockstepError> {
        let worker = &mut self.workers[at];
        if u64::from(worker.epoch) != epoch || !worker.is_serving() {
            return Ok(());
        }
        if worker.paused {
            worker.due = true;
            return Ok(());
        }
        worker.answer();
        self.moved_ns = self.now;
        let agent = worker.agent;
        // The worker continues with its waiting tasks, whether its agent polls or not.
        self.serve(agent)?;
        self.wake(agent)
    }

    /// Starts or ends a fault.
    fn spell(&mut self, about: usize) -> Result<(), LockstepError> {
        let (spell, begins) = (self.plan.faults.spells[about / 2], about.is_multiple_of(2));
        self.spells -= 1;
        self.moved_ns = self.now;
        match spell.what {
            FaultKind::Cut(cut) => {
                for wire in self.wires.iter_mut().filter(|wire| cut.carries(wire.from, wire.to)) {
                    wire.cuts = if begins { wire.cuts + 1 } else { wire.cuts - 1 };
                }
                Ok(())
            }
            FaultKind::Pause(FaultTarget::Worker(id)) => {
                let worker = &mut self.workers[usize::from(id)];
                worker.paused = begins;
                match worker.due && !begins {
                    true => {
                        self.done(usize::from(id), u64::from(self.workers[usize::from(id)].epoch))
                    }
                    false => self.serve(self.workers[usize::from(id)].agent),
                }
            }
            FaultKind::Leave(who) => self.leave(who, begins),
            FaultKind::Pause(who) => {
                let at = self.plan.topology.index(who);
                let site = &mut self.sites[at];
                site.paused = begins;
                if let Some(node) = &mut site.node {
                    node.pause(begins).map_err(LockstepError::Arguments)?;
                }
                if begins { Ok(()) } else { self.turn(at) }
            }
            FaultKind::Kill(who) if begins => {
                self.kill(who);
                Ok(())
            }
            FaultKind::Kill(who) => {
                let at = self.plan.topology.index(who);
                self.make(at)?;
                for worker in
                    (0..self.workers.len()).filter(|&worker| self.workers[worker].agent == at)
                {
                    self.events
                        .push(self.now + ATTACH_NS, event::pack(kind::ATTACH, worker as u64));
                }
                self.turn(at)
            }
        }
    }

    fn leave(&mut self, who: FaultTarget, begins: bool) -> Result<(), LockstepError> {
        let FaultTarget::Worker(id) = who else { return Ok(()) };
        let at = usize::from(id);
        self.workers[at].away = begins;
        if begins {
            self.workers[at].leave();
            return Ok(());
        }
        self.attach(at)
    }

    /// Kills a node, which loses its packets like a killed process.
    fn kill(&mut self, who: FaultTarget) {
        let (at, count) = (self.plan.topology.index(who), self.sites.len());
        for worker in self.workers.iter_mut().filter(|worker| worker.agent == at) {
            worker.leave();
        }
        self.note_drops(at);
        if let Some(node) = self.sites[at].node.take()
            && let Err(what) = node.end(true)
        {
            self.violate(who, format!("killed: {what}"));
        }
        for (number, task) in self.tasks.iter_mut().enumerate() {
            let inside = std::mem::take(&mut self.inside[number * count + at]);
            if inside > 0 {
                (task.copies, task.taken) =
                    (task.copies - i32::from(inside), Some(PacketEnd::Killed));
            }
        }
        self.sites[at].sent.clear();
    }
}
