//! Conductor: discrete-event loop of one run of several nodes, and the run's outcome.
//!
//! The loop takes the next event or timer, advances the emulated time, and gives the concerned node a turn. In a turn
//! the node polls until it is quiet. The conductor then puts the packets that the node sent on wires. All participants
//! (clients and nodes) have an index ([`Topology::index`](super::faults::Topology::index)); clients come first. An act
//! is an action of the node factory at a time of the plan, for example an operator's command. A violation (of an
//! invariant) ends the run.

mod inspect;

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::atomic::{AtomicBool, Ordering};

use wedjat::clock::Line;
use wedjat::policy::fifo::Slab;
use wedjat::wire::arp;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::{task, udp};
use wedjat_pktgen::arrival::Schedule;
use wedjat_pktgen::host::{FrameKind, Host};
use wedjat_pktgen::results::{self, RunDescription, RunTasks, Status};
use wedjat_pktgen::seed::{Stream, StreamSeed};
use wedjat_pktgen::template::{Task, Template};

use super::check::{self, PortCounts};
use super::faults::{FaultKind, FaultTarget};
use super::node::{Node, NodeFactory, Violation};
use super::packets::{
    Class, PacketContents, PacketEnd, PacketFaults, Wire, WireLedger, completed_by, flip,
};
use super::plan::{Plan, START_NS};
use super::workers::Worker;
use crate::lockstep::LockstepError;
use crate::sim::digest::Digest;
use crate::sim::engine::Streams;
use crate::sim::events::{Events, event};
use crate::sim::nodes::SLOTS;

/// Application id in the header extension of all tasks.
const APP: u32 = 1;
/// Maximum number of packets that wait in a node's port, for example during a pause. The conductor drops packets
/// beyond it, so that nodes in memory and in processes lose the same packets.
const PORT_DEPTH: u64 = 256;
/// Maximum number of turns and events at one time, in thousands. The run fails beyond it.
const TURNS_MAX: u32 = 1000;
/// Time until a worker tries to attach again after a failed attempt, a removal or a restart of its agent.
const ATTACH_NS: u64 = 1_000_000;
/// Time without an event of a task, fault or act after which a run is over. Nodes write off all lost tasks earlier.
const QUIET_NS: u64 = 15_000_000_000;
/// Like [`QUIET_NS`], for nodes in other processes, whose state is not visible.
const QUIET_PROCESSES_NS: u64 = 3_000_000_000;
/// Minimum interval between checks whether the run is over.
const CHECK_INTERVAL_NS: u64 = 10_000_000;

/// Kinds of events. Simultaneous events happen in this order, and events of one kind in the order of their numbers.
mod kind {
    /// Start or end of a fault.
    pub const FAULT: u64 = 0;
    /// A client's next task.
    pub const ARRIVE: u64 = 1;
    /// A packet at the end of its wire.
    pub const DELIVER: u64 = 2;
    /// Possible end of a task at its worker.
    pub const DONE: u64 = 3;
    /// End of a node's processing time.
    pub const WAKE: u64 = 4;
    /// A worker's attempt to attach to its agent.
    pub const ATTACH: u64 = 5;
    /// An action of the factory, for example an operator's command.
    pub const ACT: u64 = 6;
}

/// Number of low bits of an event's number that hold the packet's slot or the worker's index. The bits above hold
/// the packet's order or the worker's epoch.
const INDEX_BITS: u32 = 24;
/// Mask of these bits.
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// Offset of a task's payload in its frame, in bytes.
const BODY: usize = udp::PAYLOAD + task::LEN + task::EXTENSION_LEN;

/// Returns a hash of a task's payload. The answer must have the same one, because workers echo the payload.
fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Outcome of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskResult {
    /// Emulated time at which the client sent the task, in nanoseconds.
    pub sent_ns: u64,
    /// Emulated time of the first answer, in nanoseconds.
    pub answered_ns: Option<u64>,
    /// Reason for the loss of a task without answer or refusal: the node in which a packet ended, or else the reason
    /// for the loss of its last packet.
    pub lost: Option<String>,
    /// Leaf that a spine chose last, and the emulated time of the choice in nanoseconds.
    pub leaf: Option<(u16, u64)>,
    /// Worker that a leaf chose last.
    pub worker: Option<u16>,
}

/// Outcome of a run. If a violation ended the run, no task is accounted for: the numbers of answered, refused and lost
/// tasks are 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Number of tasks sent.
    pub tasks: u64,
    /// Number of tasks answered.
    pub answered: u64,
    /// Number of tasks refused and never answered.
    pub refused: u64,
    /// Number of tasks without answer or refusal, by the reason as in `TaskResult`.
    pub lost: BTreeMap<String, u64>,
    /// Number of answers and refusals of tasks that were already answered or refused.
    pub again: u64,
    /// Mean time to the first answer, in nanoseconds.
    pub mean_ns: f64,
    /// Sum of the packet ledgers of all wires.
    pub ledger: WireLedger,
    /// Number of packets dropped by nodes, by node and reason.
    pub drops: BTreeMap<String, BTreeMap<&'static str, u64>>,
    /// Digest of the arrivals of all task packets at the ends of their wires, in order.
    pub digest: String,
    /// Duration of the run in emulated nanoseconds.
    pub end_ns: u64,
    /// Number of turns given to nodes.
    pub turns: u64,
    /// Outcome of each task, in sending order; empty if a violation ended the run.
    pub ended: Vec<TaskResult>,
    /// Violated invariants.
    pub violations: Vec<Violation>,
}

impl Outcome {
    /// Returns all tasks as the records of run 1 of model `model`, for the files of results. Times count from
    /// [`START_NS`]. A response time ends with the first answer.
    #[must_use]
    pub fn run_tasks(&self, model: &str, policy: String, load: f64, seed: u64) -> RunTasks {
        let task = |(number, end): (usize, &TaskResult)| {
            let sent_ps = end.sent_ns.saturating_sub(START_NS) * 1000;
            let response_ns = end.answered_ns.map(|answered| answered.saturating_sub(end.sent_ns));
            results::Task {
                number: number as u64,
                pool: 1,
                class: 0,
                worker: end.worker.filter(|_| response_ns.is_some()).map(u32::from),
                scheduled_ps: sent_ps,
                sent_ps: Some(sent_ps),
                service_ps: None,
                response_ps: response_ns.map(|ns| ns * 1000),
                status: match (response_ns, &end.lost) {
                    (Some(_), _) => Status::Answered,
                    (None, Some(_)) => Status::Lost,
                    (None, None) => Status::Refused,
                },
                measured: true,
                late: false,
            }
        };
        let (model, load) = (model.to_owned(), Some(load));
        let description = RunDescription { model, policy, load, ..RunDescription::default() };
        let tasks = self.ended.iter().enumerate().map(task).collect();
        RunTasks { run: 1, description, seed, tasks }
    }
}

/// A packet in flight.
#[derive(Clone, Debug)]
struct InFlightPacket {
    /// Index of the wire.
    wire: usize,
    /// Index of the receiver.
    to: usize,
    /// Port of the receiver.
    port: usize,
    /// Sequence number among all packets of the run.
    order: u64,
    /// Label of the packet as sent: its class, task and worker.
    contents: PacketContents,
    frame: Vec<u8>,
}

/// Conductor's record of a task. At the end, it proves that the task was answered, refused, or lost for a reason.
#[derive(Clone, Copy, Debug, Default)]
struct TaskState {
    /// Time at which the client sent it.
    sent_ns: u64,
    /// Hash of the expected answer.
    answer_hash: u64,
    /// Time at which a spine last chose a leaf.
    leaf_chosen_ns: u64,
    /// Leaf that a spine chose last.
    leaf: Option<u16>,
    /// Worker that a leaf chose last.
    worker: Option<u16>,
    /// Time of the first answer.
    answered_ns: Option<u64>,
    answers: u32,
    refusals: u32,
    /// Number of packets of the task on wires and in nodes.
    copies: i32,
    /// Reason for the task's most recent packet loss.
    last_loss: Option<PacketEnd>,
}

impl TaskState {
    /// Counts an answer or refusal. The first answer sets the time, also after a refusal.
    fn receive(&mut self, refused: bool, now: u64) {
        match refused {
            true => self.refusals += 1,
            false => {
                self.answers += 1;
                self.answered_ns.get_or_insert(now);
            }
        }
    }

    /// Returns the time to the first answer.
    fn response_ns(&self) -> Option<u64> {
        self.answered_ns.map(|answered_ns| answered_ns - self.sent_ns)
    }
}

/// Clients of a leaf or spine.
struct Client {
    /// Parser of received packets, which also writes the answers to ARP requests.
    host: Host,
    /// Packet of a task, without the task's own values.
    template: Template,
    /// Times of the tasks.
    schedule: Schedule,
    /// Stream of the gaps between tasks.
    stream: Stream,
}

/// Conductor's state of a spine, a leaf or an agent. Clients have a site too, which stays empty.
#[derive(Default)]
struct Site {
    /// The node; `None` while it is killed.
    node: Option<Box<dyn Node>>,
    /// Progress that the node reported after its last turn: numbers of received and sent packets, and its next timer.
    line: Line,
    /// Packets that passed the node's ports, as the conductor counts them.
    port_counts: PortCounts,
    paused: bool,
    /// End of the node's current processing, in nanoseconds. The node gets no packet and no turn of a timer before.
    busy_ns: u64,
    /// Tasks of a leaf that await a worker's reply or its completion report, with their workers.
    sent: Vec<(u32, u16)>,
    /// Hashes of the completion reports that the node received.
    reports: HashSet<u64>,
    /// At a leaf: start of each worker's idle time during which tasks waited at the leaf.
    idle_ns: Vec<Option<u64>>,
}

/// State of a run.
struct System<'a> {
    plan: &'a Plan,
    factory: &'a mut dyn NodeFactory,
    /// Current time in nanoseconds.
    now: u64,
    events: Events,
    /// Packets on wires. Events refer to a packet by its slot.
    packets: Slab<InFlightPacket>,
    /// Sequence number of the last packet. Packets that arrive at the same time arrive in this order.
    order: u64,
    /// Wires between all pairs of participants. The wire from `a` to `b` has index `a * participants + b`.
    wires: Vec<Wire>,
    /// Sites by index of the node.
    sites: Vec<Site>,
    clients: Vec<Client>,
    workers: Vec<Worker>,
    /// Start of each worker's idle time during which tasks waited at its agent.
    idle_ns: Vec<Option<u64>>,
    /// Tasks by number.
    tasks: Vec<TaskState>,
    /// Number of packets of each task in each node, at index `task * participants + node`.
    held_packets: Vec<i16>,
    /// Stream of service times.
    services: Stream,
    /// Number of tasks that clients have not sent yet.
    remaining_tasks: u64,
    /// Number of task packets on wires.
    task_packets_in_flight: u64,
    /// Number of pending starts and ends of faults, and of pending acts.
    pending_changes: usize,
    /// Time of the last event of a task, a fault or an act.
    last_activity_ns: u64,
    /// Earliest time of the next check whether the run is over.
    next_check_ns: u64,
    /// Start of the nodes' current disagreement about members, after the last fault; `None` if they agree.
    disagreement_ns: Option<u64>,
    digest: Digest,
    outcome: Outcome,
    /// Buffer for the frames that a node sent in its turn, each with its port.
    frames: Vec<(usize, Vec<u8>)>,
}

/// Runs a plan on the nodes of `factory`.
///
/// # Errors
/// If a node cannot be created or does not become quiet, an act fails, or `stop` is set. Violations are part of
/// the outcome instead.
pub fn run(
    plan: &Plan,
    factory: &mut dyn NodeFactory,
    stop: &AtomicBool,
) -> Result<Outcome, LockstepError> {
    let mut system = System::new(plan, factory)?;
    system.start()?;
    system.run_events(stop)?;
    let mut outcome = system.finish();
    outcome.violations.extend(factory.violations());
    Ok(outcome)
}

impl<'a> System<'a> {
    /// Creates the wires, clients and workers. [`System::start`] creates the nodes.
    fn new(plan: &'a Plan, factory: &'a mut dyn NodeFactory) -> Result<Self, LockstepError> {
        let topology = plan.topology;
        let (count, workers) = (topology.nodes(), usize::from(topology.agents * topology.workers));
        let wires = (0..count * count).map(|index| {
            let (from, to) = (topology.target(index / count), topology.target(index % count));
            Wire::new(from, to, &plan.faults, plan.seed, index)
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
                plan.sharing.map(|times| times.sharing(|ns| ns as u64, SLOTS)),
            )
        };
        Ok(Self {
            plan,
            factory,
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
            held_packets: vec![0; plan.tasks as usize * count],
            services: Streams::new(plan.seed).service,
            remaining_tasks: plan.tasks,
            task_packets_in_flight: 0,
            pending_changes: 2 * plan.faults.intervals.len() + plan.acts.len(),
            last_activity_ns: 0,
            next_check_ns: 0,
            disagreement_ns: None,
            digest: Digest::default(),
            outcome: Outcome::default(),
            frames: Vec::new(),
        })
    }

    /// Returns the range of indices of spines, leaves and agents.
    fn nodes(&self) -> std::ops::Range<usize> {
        self.clients.len()..self.sites.len()
    }

    /// Creates all nodes, attaches the workers, and gives each node its first turn. Schedules the plan's faults and
    /// acts, and the first task of all clients.
    fn start(&mut self) -> Result<(), LockstepError> {
        for index in self.nodes() {
            self.make(index)?;
        }
        for worker in 0..self.workers.len() {
            self.attach(worker)?;
        }
        for index in self.nodes() {
            self.turn(index)?;
        }
        for (index, fault) in self.plan.faults.intervals.iter().enumerate() {
            let boundary = 2 * index as u64;
            self.events.push(START_NS + fault.from_ns, event::pack(kind::FAULT, boundary));
            self.events.push(START_NS + fault.to_ns, event::pack(kind::FAULT, boundary + 1));
        }
        for (number, at_ns) in self.plan.acts.iter().enumerate() {
            self.events.push(START_NS + at_ns, event::pack(kind::ACT, number as u64));
        }
        for client in 0..self.clients.len() {
            self.schedule(client);
        }
        Ok(())
    }

    /// Schedules a client's next task.
    fn schedule(&mut self, client: usize) {
        let Client { schedule, stream, .. } = &mut self.clients[client];
        let time = START_NS + schedule.advance(stream);
        self.events.push(time, event::pack(kind::ARRIVE, client as u64));
    }

    /// Creates a node, or a killed node's replacement, with new state at the conductor.
    fn make(&mut self, index: usize) -> Result<(), LockstepError> {
        let target = self.plan.topology.target(index);
        let node = self.factory.make(self.plan, target).map_err(LockstepError::Arguments)?;
        let idle_ns = vec![None; self.workers.len()];
        self.sites[index] =
            Site { node: Some(node), idle_ns, busy_ns: self.now, ..Site::default() };
        Ok(())
    }

    /// Executes events and timers in order until the run is over or an invariant is violated. At equal times, events
    /// come before timers.
    fn run_events(&mut self, stop: &AtomicBool) -> Result<(), LockstepError> {
        // Number of turns and events at `time`.
        let (mut steps, mut time) = (0, 0);
        while self.outcome.violations.is_empty() && !self.is_over() {
            let timer = self.nodes().filter_map(|index| Some((self.timer_ns(index)?, index))).min();
            let next = self.events.next_time();
            steps = if self.now > time { 0 } else { steps + 1 };
            time = self.now;
            if steps > 1000 * TURNS_MAX {
                let timer_ns = timer.map_or(u64::MAX, |(timer, _)| timer);
                return Err(LockstepError::Timer { timer_ns, now_ns: self.now });
            }
            match timer {
                Some((timer, index)) if timer < next => {
                    self.now = timer.max(self.now);
                    self.turn(index)?;
                    continue;
                }
                _ => {}
            }
            let Some((time, event)) = self.events.pop() else { break };
            self.now = time;
            let (kind, number) = event::unpack(event);
            let index = (number & INDEX_MASK) as usize;
            match kind {
                kind::FAULT => self.change_fault(number as usize)?,
                kind::ARRIVE => self.send_task(number as usize),
                kind::DELIVER => self.deliver(index as u32)?,
                kind::DONE => self.end_task(index, number >> INDEX_BITS)?,
                kind::WAKE => self.wake(index)?,
                kind::ACT => self.act(index)?,
                _ => self.attach(index)?,
            }
            if stop.load(Ordering::Relaxed) {
                return Err(LockstepError::Stopped);
            }
        }
        Ok(())
    }

    /// Lets the factory execute act number `number`, and wakes all nodes.
    fn act(&mut self, number: usize) -> Result<(), LockstepError> {
        self.pending_changes -= 1;
        self.last_activity_ns = self.now;
        self.factory.act(number, self.now).map_err(LockstepError::Arguments)?;
        for index in self.nodes() {
            self.wake(index)?;
        }
        Ok(())
    }

    /// Returns the time of a node's next turn by its own timer, at the earliest after its current processing; `None`
    /// while it is killed or paused.
    fn timer_ns(&self, index: usize) -> Option<u64> {
        let site = &self.sites[index];
        (site.node.is_some() && !site.paused).then(|| site.line.timer_ns.max(site.busy_ns))
    }

    /// Returns true if no task has further events, the nodes agree about members, and no node counts a task as
    /// outstanding. After [`QUIET_NS`] the run is over even with outstanding tasks, which [`System::finish`] reports.
    fn is_over(&mut self) -> bool {
        let busy =
            self.remaining_tasks > 0 || self.task_packets_in_flight > 0 || self.pending_changes > 0;
        if busy || self.now < self.next_check_ns || self.workers.iter().any(Worker::is_serving) {
            return false;
        }
        self.next_check_ns = self.now + CHECK_INTERVAL_NS;
        if self.differ() {
            return false;
        }
        // A node in another process does not show its state. Then the run is over after a quiet time.
        let mut states = self.nodes().map(|index| self.sites[index].node.as_ref()?.local_state());
        if states.any(|state| state.is_none()) {
            return self.now > self.last_activity_ns + QUIET_PROCESSES_NS;
        }
        let outstanding = |index: usize| {
            let target = self.plan.topology.target(index);
            let state = self.sites[index].node.as_ref()?.local_state()?;
            check::outstanding(target, &state)
        };
        self.now > self.last_activity_ns + QUIET_NS
            || self.nodes().all(|index| outstanding(index).is_none())
    }

    /// Records a violation, which ends the run.
    fn violate(&mut self, target: FaultTarget, description: String) {
        self.outcome.violations.push(Violation {
            at_ns: self.now,
            node: target.to_string(),
            description,
        });
    }

    /// Gives a node a turn, handles the packets that it sends, lets its workers take tasks, and checks the invariants.
    fn turn(&mut self, index: usize) -> Result<(), LockstepError> {
        let site = &mut self.sites[index];
        let Some(node) = &mut site.node else { return Ok(()) };
        let before = (site.line.received, site.line.sent);
        site.line = node.turn(self.now)?;
        self.outcome.turns += 1;
        if before != (site.line.received, site.line.sent) {
            site.busy_ns = self.now + self.plan.node_delay_ns;
        }
        // Agents have one port, all other nodes two. Reads until the ports are empty, or until all sent packets by the
        // node's own count have arrived.
        let mut frames = std::mem::take(&mut self.frames);
        let ports =
            if matches!(self.plan.topology.target(index), FaultTarget::Agent(_)) { 1 } else { 2 };
        loop {
            let before = frames.len();
            for port in 0..ports {
                node.take(port, &mut |frame| frames.push((port, frame.to_vec())));
            }
            if frames.len() == before
                || site.port_counts.sent_total() + frames.len() as u64 >= site.line.sent
            {
                break;
            }
        }
        for (port, frame) in frames.drain(..) {
            self.on_frame(index, port, frame);
        }
        self.frames = frames;
        self.poll_workers(index)?;
        self.inspect(index);
        Ok(())
    }

    /// Gives a node a turn now, or as soon as its processing time is over. Ignores a killed or paused node.
    fn wake(&mut self, index: usize) -> Result<(), LockstepError> {
        let site = &self.sites[index];
        if site.node.is_none() || site.paused {
            return Ok(());
        }
        if site.busy_ns > self.now {
            self.events.push(site.busy_ns, event::pack(kind::WAKE, index as u64));
            return Ok(());
        }
        self.turn(index)
    }

    /// Handles a packet that a node sent from one of its ports, and puts it on its wire. A node must hold each packet
    /// of a task that it sends.
    fn on_frame(&mut self, index: usize, port: usize, frame: Vec<u8>) {
        let contents = PacketContents::read(&frame, None);
        self.sites[index].port_counts.sent[contents.class as usize] += 1;
        let target = self.plan.topology.target(index);
        if contents.class.is_of_task() {
            let count = self.sites.len();
            match self.held_packets.get_mut(contents.task as usize * count + index) {
                Some(packets) if *packets > 0 => *packets -= 1,
                _ => self.violate(
                    target,
                    format!("it sent a packet of task {}, which it does not hold", contents.task),
                ),
            }
            if let Some(task) = self.tasks.get_mut(contents.task as usize) {
                task.copies -= 1;
            }
        }
        if contents.class == Class::Task {
            self.note_choice(index, contents);
        }
        self.route(index, port, contents, frame);
    }

    /// Records a spine's choice of a leaf, or a leaf's choice of a worker.
    fn note_choice(&mut self, index: usize, contents: PacketContents) {
        let (now, task) = (self.now, self.tasks.get_mut(contents.task as usize));
        match self.plan.topology.target(index) {
            FaultTarget::Spine(_) => {
                let task = task.into_iter();
                task.for_each(|task| {
                    (task.leaf_chosen_ns, task.leaf) = (now, Some(contents.worker))
                });
            }
            FaultTarget::Leaf(_) => {
                self.sites[index].sent.push((contents.task, contents.worker));
                task.into_iter().for_each(|task| task.worker = Some(contents.worker));
            }
            _ => {}
        }
    }

    /// Puts a packet on the port's only wire, or on the wire to the host with its MAC address. A broadcast goes on all
    /// wires of the port.
    fn route(&mut self, from: usize, port: usize, contents: PacketContents, frame: Vec<u8>) {
        let (topology, target) = (self.plan.topology, self.plan.topology.target(from));
        let has_one_wire = topology.spines == 0
            && !topology.is_direct
            && (matches!(target, FaultTarget::Clients(_))
                || matches!(target, FaultTarget::Leaf(_)) && port == 0);
        let (dst, mut found) = (ether::dst(&frame), false);
        for to in 0..self.sites.len() {
            let receiver = topology.target(to);
            let Some(port) = topology.leads_to(target, port, receiver) else { continue };
            if has_one_wire || dst == Mac::BROADCAST || dst == self.plan.mac(receiver, port) {
                found = true;
                self.transmit(from, (to, port), contents, frame.clone());
            }
        }
        if !found {
            // The network floods the packet, but no host accepts it. It counts in the ledger of the sender's wire to
            // itself, which carries no packets.
            let ledger = &mut self.wires[from * self.sites.len() + from].ledger;
            ledger.sent[contents.class as usize] += 1;
            ledger.taken[PacketEnd::NoReceiver as usize][contents.class as usize] += 1;
            self.count_copy(contents);
            self.drop_packet(contents, PacketEnd::NoReceiver);
        }
    }

    /// Counts one more packet at its task. Ignores packets without a task.
    fn count_copy(&mut self, contents: PacketContents) {
        if let Some(task) =
            self.tasks.get_mut(contents.task as usize).filter(|_| contents.class.is_of_task())
        {
            task.copies += 1;
        }
    }

    /// Records the loss of a packet at its task; the caller updates the wire's ledger. Ignores packets without a task.
    fn drop_packet(&mut self, contents: PacketContents, reason: PacketEnd) {
        if let Some(task) =
            self.tasks.get_mut(contents.task as usize).filter(|_| contents.class.is_of_task())
        {
            (task.copies, task.last_loss) = (task.copies - 1, Some(reason));
        }
    }

    /// Puts a packet on a wire, with the faults drawn for it: it may be lost, copied, delayed or corrupted.
    fn transmit(
        &mut self,
        from: usize,
        (to, port): (usize, usize),
        contents: PacketContents,
        mut frame: Vec<u8>,
    ) {
        let wire_index = from * self.sites.len() + to;
        let (class, wire) = (contents.class as usize, &mut self.wires[wire_index]);
        wire.ledger.sent[class] += 1;
        // Wires have no faults while the nodes discover each other.
        let faults = if self.now >= START_NS { wire.draw() } else { PacketFaults::default() };
        let loss = match faults.lost {
            _ if wire.cuts > 0 => Some(PacketEnd::Cut),
            // ARP has no checksum. Leaves find spines by ARP, and agents find clients. On a real network, the
            // receiver drops a corrupted ARP packet because of Ethernet's checksum.
            _ if faults.flip.is_some()
                && contents.class == Class::Arp
                && (self.plan.topology.spines > 0 || self.plan.topology.is_direct) =>
            {
                Some(PacketEnd::Corrupted)
            }
            true => Some(PacketEnd::Lost),
            false => None,
        };
        if let Some(reason) = loss {
            wire.ledger.taken[reason as usize][class] += 1;
            self.count_copy(contents);
            return self.drop_packet(contents, reason);
        }
        wire.ledger.duplicated[class] += u64::from(faults.copy.is_some());
        wire.ledger.held_back += u64::from(faults.late > 0);
        wire.ledger.in_flight[class] += 1 + u64::from(faults.copy.is_some());
        // Clients have no processing time.
        let processing_ns = if from < self.clients.len() { 0 } else { self.plan.node_delay_ns };
        let arrival_ns = self.now + processing_ns + self.plan.hop_ns;
        if let Some(hops) = faults.copy {
            self.schedule_delivery(
                InFlightPacket {
                    wire: wire_index,
                    to,
                    port,
                    order: 0,
                    contents,
                    frame: frame.clone(),
                },
                arrival_ns + hops * self.plan.hop_ns,
            );
        }
        if let Some(bit) = faults.flip {
            flip(&mut frame, bit);
        }
        self.schedule_delivery(
            InFlightPacket { wire: wire_index, to, port, order: 0, contents, frame },
            arrival_ns + faults.late * self.plan.hop_ns,
        );
    }

    /// Gives a packet its sequence number and schedules its delivery at `time`.
    fn schedule_delivery(&mut self, packet: InFlightPacket, time: u64) {
        self.order += 1;
        if packet.contents.class.is_of_task() {
            self.task_packets_in_flight += 1;
            self.count_copy(packet.contents);
        }
        let slot = self.packets.add(InFlightPacket { order: self.order, ..packet });
        self.events
            .push(time, event::pack(kind::DELIVER, self.order << INDEX_BITS | u64::from(slot)));
    }

    /// Delivers a packet at the end of its wire, or later if its receiver is still busy. A node that receives a packet
    /// of a task unchanged holds it from now on. The node then gets a turn, unless it is paused.
    fn deliver(&mut self, slot: u32) -> Result<(), LockstepError> {
        let to = self.packets[slot].to;
        let site = &self.sites[to];
        if site.node.is_some() && !site.paused && site.busy_ns > self.now {
            let number = self.packets[slot].order << INDEX_BITS | u64::from(slot);
            self.events.push(site.busy_ns, event::pack(kind::DELIVER, number));
            return Ok(());
        }
        let Some(InFlightPacket { wire, port, contents, frame, .. }) = self.packets.remove(slot)
        else {
            return Ok(());
        };
        self.wires[wire].ledger.in_flight[contents.class as usize] -= 1;
        if contents.class.is_of_task() {
            (self.task_packets_in_flight, self.last_activity_ns) =
                (self.task_packets_in_flight - 1, self.now);
            let (task, class) = (u64::from(contents.task), contents.class as u64);
            self.digest.add([
                self.now,
                wire as u64,
                task,
                class << 16 | u64::from(contents.worker),
            ]);
        }
        if to < self.clients.len() {
            self.wires[wire].ledger.delivered[contents.class as usize] += 1;
            self.receive(to, contents, frame);
            return Ok(());
        }
        let mac = self.plan.mac(self.plan.topology.target(to), port);
        let site = &mut self.sites[to];
        let reason = match &mut site.node {
            None => Some(PacketEnd::NotRunning),
            Some(_) if site.port_counts.delivered >= site.line.received + PORT_DEPTH => {
                Some(PacketEnd::PortFull)
            }
            Some(node) => (!node.give(port, &frame)).then_some(PacketEnd::PortFull),
        };
        if let Some(reason) = reason {
            self.wires[wire].ledger.taken[reason as usize][contents.class as usize] += 1;
            self.drop_packet(contents, reason);
            return Ok(());
        }
        self.wires[wire].ledger.delivered[contents.class as usize] += 1;
        site.port_counts.delivered += 1;
        // Compares the packet as the node reads it with the packet as sent.
        let read = PacketContents::read(&frame, Some(mac));
        if read == contents && contents.class.is_of_task() {
            self.held_packets[contents.task as usize * self.sites.len() + to] += 1;
            if contents.class != Class::Task {
                let sent = &mut self.sites[to].sent;
                let answered =
                    sent.iter().position(|&sent| sent == (contents.task, contents.worker));
                answered.into_iter().for_each(|index| _ = sent.swap_remove(index));
            }
        } else if contents.class.is_of_task() {
            self.drop_packet(contents, PacketEnd::Corrupted);
        } else if read == contents && contents.class == Class::Completions {
            self.note_completions(to, &frame);
        }
        if self.sites[to].paused { Ok(()) } else { self.turn(to) }
    }

    /// Removes the tasks of a completion report from those that await an answer of a leaf's workers. A report does not
    /// name its tasks: prefers a task of which no packet exists. The leaf counts a copy of a report again; here it has
    /// no effect, because the tasks of later reports are still due.
    fn note_completions(&mut self, leaf: usize, frame: &[u8]) {
        let (tasks, site) = (&self.tasks, &mut self.sites[leaf]);
        if !site.reports.insert(hash(frame)) {
            return;
        }
        for worker in completed_by(frame) {
            let is_over = |task: u32| tasks.get(task as usize).is_none_or(|task| task.copies <= 0);
            let over = site.sent.iter().position(|&(task, to)| to == worker && is_over(task));
            let found = over.or_else(|| site.sent.iter().position(|&(_, to)| to == worker));
            found.into_iter().for_each(|index| _ = site.sent.swap_remove(index));
        }
    }

    /// Delivers a packet to clients. Each answer, except a refusal, must have the payload of its task.
    fn receive(&mut self, client: usize, contents: PacketContents, mut frame: Vec<u8>) {
        let number = contents.task as usize;
        match self.clients[client].host.receive(&mut frame.as_mut_slice(), false) {
            FrameKind::Answer(answer)
                if answer.id == Some((APP, contents.task)) && number < self.tasks.len() =>
            {
                let answer_hash = hash(&frame[answer.body.into()..answer.end.into()]);
                let task = &mut self.tasks[number];
                let is_expected = answer.refused || answer_hash == task.answer_hash;
                task.copies -= 1;
                task.receive(answer.refused, self.now);
                self.outcome.again += u64::from(task.answers + task.refusals > 1);
                if !is_expected {
                    let target = self.plan.topology.target(client);
                    self.violate(target, format!("task {number} got a wrong answer"));
                }
            }
            FrameKind::NeighbourAnswer => {
                let contents = PacketContents::read(&frame, None);
                self.route(client, 0, contents, frame);
            }
            // Without a controller, clients keep the next hop of their own spine, although all spines have the same
            // address. On a real network, a route selects the spine.
            FrameKind::NextHop(_) if self.plan.topology.spines > 0 && !self.plan.has_controller => {
            }
            FrameKind::NextHop(mac) => self.clients[client].template.set_next_hop(mac),
            // No client has sent this task: a fault corrupted its number.
            FrameKind::Answer(_) => self.drop_packet(contents, PacketEnd::Corrupted),
            FrameKind::Nothing(_) => {
                let reason = if PacketContents::read(&frame, None) == contents {
                    PacketEnd::Client
                } else {
                    PacketEnd::Corrupted
                };
                self.drop_packet(contents, reason);
            }
        }
    }

    /// Sends the run's next task from a client, if one remains, and schedules the client's next one.
    fn send_task(&mut self, client: usize) {
        if self.remaining_tasks == 0 {
            return;
        }
        self.remaining_tasks -= 1;
        let (service_ns, class) = self.plan.service.sample_ns(&mut self.services);
        let number = self.tasks.len() as u32;
        let Client { template, .. } = &mut self.clients[client];
        // The capacity also suffices for an ARP packet.
        let mut frame = vec![0; template.frame_len().max(arp::FRAME_LEN)];
        frame.truncate(template.frame_len());
        template.write(&mut frame, Task { seq: number, service_ns: service_ns as u32, class });
        let answer_hash = hash(&frame[BODY..]);
        self.tasks.push(TaskState { sent_ns: self.now, answer_hash, ..TaskState::default() });
        let contents = PacketContents::read(&frame, None);
        self.last_activity_ns = self.now;
        self.route(client, 0, contents, frame);
        self.schedule(client);
    }

    /// Attaches a worker to its agent, or schedules another attempt. Ignores a worker that has left, or whose agent is
    /// killed.
    fn attach(&mut self, index: usize) -> Result<(), LockstepError> {
        let worker = &mut self.workers[index];
        let Some(node) = self.sites[worker.agent].node.as_ref().filter(|_| !worker.has_left) else {
            return Ok(()); // attaches after its agent's restart, or on its return
        };
        let region =
            node.region().ok_or(LockstepError::Arguments("a leaf has no workers".to_owned()))?;
        if !worker.attach(&region, self.now).map_err(LockstepError::Arguments)? {
            self.events.push(self.now + ATTACH_NS, event::pack(kind::ATTACH, index as u64));
        }
        Ok(())
    }

    /// Lets the workers of an agent take tasks. A worker that must attach again leaves, and tries after [`ATTACH_NS`].
    fn poll_workers(&mut self, agent: usize) -> Result<(), LockstepError> {
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            if worker.agent != agent {
                continue;
            }
            match worker.poll(self.now) {
                Ok(true) => self.schedule_end(index),
                Ok(false) => {
                    worker.leave();
                    self.events.push(self.now + ATTACH_NS, event::pack(kind::ATTACH, index as u64));
                }
                Err(error) => {
                    let target = FaultTarget::Worker(worker.id);
                    self.violate(target, error);
                }
            }
        }
        Ok(())
    }

    /// Schedules the next end of a task at a worker, if the end has changed.
    fn schedule_end(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let number = u64::from(worker.epoch) << INDEX_BITS | index as u64;
        if let Some(end_ns) = worker.next_end_ns() {
            self.events.push(end_ns, event::pack(kind::DONE, number));
        }
    }

    /// Lets a worker answer a task that ends now, and wakes its agent. Ignores an outdated event: the worker has left,
    /// or another task on its core has delayed the end. A paused worker answers after the pause.
    fn end_task(&mut self, index: usize, epoch: u64) -> Result<(), LockstepError> {
        let worker = &mut self.workers[index];
        if u64::from(worker.epoch) != epoch || !worker.answer(self.now) {
            return Ok(());
        }
        self.last_activity_ns = self.now;
        let agent = worker.agent;
        // The worker takes its next tasks even if its agent does not poll.
        self.poll_workers(agent)?;
        self.wake(agent)
    }

    /// Starts a fault, or ends it. Boundary `2 * i` is the start of fault `i`, and `2 * i + 1` its end.
    fn change_fault(&mut self, boundary: usize) -> Result<(), LockstepError> {
        let (fault, begins) =
            (self.plan.faults.intervals[boundary / 2], boundary.is_multiple_of(2));
        self.pending_changes -= 1;
        self.last_activity_ns = self.now;
        match fault.kind {
            FaultKind::Cut(cut) => {
                for wire in self.wires.iter_mut().filter(|wire| cut.carries(wire.from, wire.to)) {
                    wire.cuts = if begins { wire.cuts + 1 } else { wire.cuts - 1 };
                }
                Ok(())
            }
            FaultKind::Pause(FaultTarget::Worker(id)) => {
                let index = usize::from(id);
                let worker = &mut self.workers[index];
                worker.paused = begins;
                let (epoch, agent) = (u64::from(worker.epoch), worker.agent);
                // After a pause, answers a task that ended during it.
                self.end_task(index, epoch)?;
                self.poll_workers(agent)
            }
            FaultKind::Leave(target) => self.leave(target, begins),
            FaultKind::Pause(target) => {
                let index = self.plan.topology.index(target);
                let site = &mut self.sites[index];
                site.paused = begins;
                if let Some(node) = &mut site.node {
                    node.pause(begins).map_err(LockstepError::Arguments)?;
                }
                // After a pause, the node handles the packets that arrived during it.
                if begins { Ok(()) } else { self.turn(index) }
            }
            FaultKind::Kill(target) if begins => {
                self.kill(target);
                Ok(())
            }
            // At the end of a kill, a new node starts, and its workers attach again.
            FaultKind::Kill(target) => {
                let index = self.plan.topology.index(target);
                self.make(index)?;
                for worker in
                    (0..self.workers.len()).filter(|&worker| self.workers[worker].agent == index)
                {
                    self.events
                        .push(self.now + ATTACH_NS, event::pack(kind::ATTACH, worker as u64));
                }
                self.turn(index)
            }
        }
    }

    /// Detaches a worker that leaves, or attaches its replacement.
    fn leave(&mut self, target: FaultTarget, begins: bool) -> Result<(), LockstepError> {
        let FaultTarget::Worker(id) = target else { return Ok(()) };
        let index = usize::from(id);
        self.workers[index].has_left = begins;
        if begins {
            self.workers[index].leave();
            return Ok(());
        }
        self.attach(index)
    }

    /// Kills a node. Its packets are lost, as with a killed process, and its workers detach.
    fn kill(&mut self, target: FaultTarget) {
        let (index, count) = (self.plan.topology.index(target), self.sites.len());
        for worker in self.workers.iter_mut().filter(|worker| worker.agent == index) {
            worker.leave();
        }
        self.note_drops(index);
        if let Some(node) = self.sites[index].node.take()
            && let Err(error) = node.end(true)
        {
            self.violate(target, format!("killed: {error}"));
        }
        for (number, task) in self.tasks.iter_mut().enumerate() {
            let packets = std::mem::take(&mut self.held_packets[number * count + index]);
            if packets > 0 {
                (task.copies, task.last_loss) =
                    (task.copies - i32::from(packets), Some(PacketEnd::Killed));
            }
        }
        self.sites[index].sent.clear();
        // A restarted agent numbers its reports from the start. A report equal to an earlier one is then no copy.
        self.sites.iter_mut().for_each(|site| site.reports.clear());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_after_a_refusal_has_a_time() {
        let mut task = TaskState { sent_ns: 10, ..TaskState::default() };
        task.receive(true, 20);
        assert_eq!((task.refusals, task.answers, task.response_ns()), (1, 0, None));
        task.receive(false, 40);
        task.receive(false, 70);
        assert_eq!((task.refusals, task.answers, task.response_ns()), (1, 2, Some(30)));
    }
}
