//! Model `nodes`: nodes without a scheduler between them. Each has a queue and workers. Clients send to any
//! node. Nodes forward new tasks to each other (migration), and request tasks from each other (stealing), as
//! in Malcolm (POMACS 2022).
//!
//! The decisions are the dataplane's own ([`wedjat::peers`]). The model covers the network between nodes, and
//! workers that serve in order of arrival. A task's response time runs from its arrival at the first node to
//! the end of its service. A beat is a node's periodic work, in which it learns and sends its heartbeat. At
//! some beats it also sends its parameters, the learned weights that nodes share. Forwarded tasks, requests,
//! heartbeats and parameters take the delay. The nodes' beats are out of phase.
//!
//! A task is lost if a node's queue is full, or if its node dies or is down. Nodes detect a dead node by its
//! silence; clients never do.

use std::ops::Range;

use hdrhistogram::Histogram;
use rand::Rng as _;
use wedjat::peers::{PeerPolicy, Peers, Settings};
use wedjat::policy::fifo::{Fifo, Slab};
use wedjat::wire::peer::{Heartbeat, Parameters};
use wedjat_pktgen::arrival::{Arrivals, Schedule};
use wedjat_pktgen::results::Status;
use wedjat_pktgen::seed::{Stream, StreamSeed};
use wedjat_pktgen::service::Service;

use super::digest::{Digest, Record};
use super::events::{Events, event::pack, event::unpack};
use super::hop::{TICK_PS, TICKS_PER_US, from_ns, to_ns};
use super::outcome::{ForwardedTasks, Outcome};
use super::script::{self, Action, Step};
use super::stats::{Observer, Recorder, TaskEnd, histogram, record};

/// Ticks per second.
const HZ: f64 = TICKS_PER_US * 1e6;
/// Ticks between samples of the queues: 50 us.
const SAMPLE_TICKS: u64 = 50 * TICKS_PER_US as u64;
/// Queues count as overflowing above one lost task in this number. Rare bursts lose fewer.
const LOST_SHARE: u64 = 1000;

/// Kinds of events, in the order of simultaneous events. An event's number also holds its node or task.
mod kind {
    /// A task from another node arrives.
    pub const AT_NODE: u64 = 0;
    /// A worker completes a task.
    pub const DONE: u64 = 1;
    /// A request for a task arrives.
    pub const STEAL_REQUEST: u64 = 2;
    /// A heartbeat arrives at all nodes.
    pub const HEARTBEAT: u64 = 3;
    /// A part of a node's parameters arrives at all nodes.
    pub const PARAMETERS: u64 = 4;
    /// A node's beat is due.
    pub const BEAT: u64 = 5;
    /// A step of the script.
    pub const SCRIPT: u64 = 6;
    /// All queues are sampled.
    pub const SAMPLE: u64 = 7;
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Workers of each node.
    pub workers: Vec<usize>,
    /// Policy of the nodes.
    pub policy: PeerPolicy,
    /// Capacity of a node's queue.
    pub queue: u32,
    /// Interval between two beats of a node.
    pub beat_ns: u64,
    /// Delay between two nodes, each way.
    pub delay_ns: u64,
    /// Service times at speed 1.
    pub service: Service,
    /// Arrivals; each goes to a random node.
    pub arrivals: Arrivals,
    /// Offered work as a fraction of the workers' capacity.
    pub load: f64,
    /// Scripted events.
    pub script: Vec<Step>,
    /// Number of tasks.
    pub tasks: u64,
    /// Fraction of the tasks that is not measured.
    pub warmup: f64,
    /// True to put a digest of all completed tasks into the outcome.
    pub digest: bool,
    /// Seed of all streams.
    pub seed: u64,
    /// Observer of the run.
    pub observer: Observer,
}

impl Config {
    /// Returns the tasks per second of a load.
    #[must_use]
    pub fn rate(&self, load: f64) -> f64 {
        load * self.workers.iter().sum::<usize>() as f64 / self.service.mean_ns() * 1e9
    }

    /// Returns the arrivals of the load, and of each load change in the script.
    ///
    /// # Errors
    /// If arrivals and a load contradict each other.
    pub fn schedules(&self) -> Result<(Schedule, Vec<Option<Schedule>>), String> {
        script::schedules(&self.arrivals, self.load, &self.script, |load| self.rate(load), HZ)
    }

    /// Returns the mean number of tasks in this many seconds, with the script's load changes and shocks.
    #[must_use]
    pub fn tasks_in(&self, seconds: f64) -> u64 {
        let (mut tasks, mut load, mut from) = (0.0, self.load, 0.0);
        for step in &self.script {
            let at = (step.at_ns / 1e9).min(seconds);
            match step.action {
                Action::Load(next) => {
                    tasks += self.rate(load) * (at - from).max(0.0);
                    (load, from) = (next, at.max(from));
                }
                Action::Shock { tasks: extra, .. } if at < seconds => tasks += extra as f64,
                _ => {}
            }
        }
        (tasks + self.rate(load) * (seconds - from)) as u64
    }
}

/// A task in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// Time of its arrival at the first node, in ticks.
    arrived: u64,
    /// Start of its service.
    started: u64,
    /// Service time at speed 1, in ticks.
    service: u64,
    number: u64,
    /// Current or next node.
    node: u16,
    /// `life` of that node at the start of service: a node that restarted has lost the task.
    life: u32,
}

/// A node.
struct Node {
    queue: Fifo,
    workers: usize,
    /// Number of busy workers.
    busy: usize,
    speed: f64,
    /// Learned state and decisions of the node.
    peers: Peers,
    is_up: bool,
    /// Number of restarts. Events of an earlier life do not apply.
    life: u32,
}

/// State of a run.
struct Sim<'a> {
    config: &'a Config,
    /// Current time in ticks.
    now: u64,
    /// Delay between two nodes in ticks.
    delay: u64,
    events: Events,
    /// Tasks in flight. Events and queues refer to them by slot.
    flights: Slab<Flight>,
    nodes: Vec<Node>,
    /// Heartbeats in flight, each to all nodes.
    beats: Slab<Heartbeat>,
    /// Parameters in flight, each to all nodes.
    parameters: Slab<(Parameters, Vec<f32>)>,
    /// Fraction of the tasks for these nodes, if traffic is uneven.
    traffic: Option<(Range<usize>, f64)>,
    schedule: Schedule,
    /// Schedules of the script's load changes, by step; `None` for other steps.
    changes: Vec<Option<Schedule>>,
    /// Time at which the current schedule began: its arrivals count from there.
    schedule_start: u64,
    /// Number of tasks that clients have not sent yet.
    remaining: u64,
    arrivals: Stream,
    service: Stream,
    /// Stream of the nodes that clients choose.
    choice: Stream,
    recorder: Recorder,
    /// Samples of the longest queue over the mean queue, in thousandths.
    imbalance: Histogram<u64>,
    /// Tasks that no worker has finished.
    in_system: u64,
    lost: u64,
    /// Tasks lost because of full queues.
    refused: u64,
    /// Packets between nodes.
    messages: u64,
    passed: ForwardedTasks,
    digest: Digest,
}

/// Runs the model.
///
/// # Errors
/// If arrivals and a load contradict each other.
pub fn run(config: &Config) -> Result<Outcome, String> {
    let mut sim = Sim::new(config)?;
    sim.run();
    Ok(sim.finish())
}

/// Runs the model, and also returns each node's final state.
///
/// # Errors
/// If arrivals and a load contradict each other.
pub fn run_with_peers(config: &Config) -> Result<(Outcome, Vec<Peers>), String> {
    let mut sim = Sim::new(config)?;
    sim.run();
    let peers = sim.nodes.iter().map(|node| node.peers.clone()).collect();
    Ok((sim.finish(), peers))
}

/// Returns the settings of node `index` for its start at `now_ns` after `life` restarts.
#[must_use]
pub fn settings(config: &Config, index: usize, life: u32, now_ns: u64) -> Settings {
    // Random phase within a beat.
    let phase = StreamSeed::derive(config.seed, "beats", index as u32).stream().next_u64();
    let phase = (u128::from(phase) * u128::from(config.beat_ns)) >> 64;
    Settings {
        nodes: config.workers.len(),
        own: index,
        policy: config.policy,
        slots: config.workers[index] as u32,
        beat_ns: config.beat_ns,
        first_beat_ns: now_ns + 1 + phase as u64,
        born: now_ns,
        seed: StreamSeed::derive(config.seed, "peers", life).seed,
    }
}

impl<'a> Sim<'a> {
    /// Creates all nodes, and schedules their first beats, the first sample and the script.
    fn new(config: &'a Config) -> Result<Self, String> {
        let (schedule, changes) = config.schedules()?;
        let stream = |purpose| StreamSeed::derive(config.seed, purpose, 0).stream();
        let node = |(index, &workers): (usize, &usize)| Node {
            queue: Fifo::EMPTY,
            workers,
            busy: 0,
            speed: 1.0,
            peers: Peers::new(settings(config, index, 0, 0)),
            is_up: true,
            life: 0,
        };
        let mut sim = Self {
            config,
            now: 0,
            delay: from_ns(config.delay_ns),
            events: Events::default(),
            flights: Slab::default(),
            nodes: config.workers.iter().enumerate().map(node).collect(),
            beats: Slab::default(),
            parameters: Slab::default(),
            traffic: None,
            schedule,
            changes,
            schedule_start: 0,
            remaining: config.tasks,
            arrivals: stream("arrivals"),
            service: stream("service"),
            choice: stream("nodes"),
            recorder: Recorder::new(config.tasks, config.warmup, &config.observer),
            imbalance: histogram(),
            in_system: 0,
            lost: 0,
            refused: 0,
            messages: 0,
            passed: ForwardedTasks::default(),
            digest: Digest::default(),
        };
        sim.events.push(SAMPLE_TICKS, pack(kind::SAMPLE, 0));
        for node in 0..sim.nodes.len() {
            sim.await_beat(node);
        }
        for (number, step) in config.script.iter().enumerate() {
            sim.events.push(from_ns(step.at_ns as u64), pack(kind::SCRIPT, number as u64));
        }
        Ok(sim)
    }

    /// Runs all arrivals and events in order until all tasks have ended. At equal times an arrival comes first.
    fn run(&mut self) {
        let mut arrival = self.schedule.advance(&mut self.arrivals);
        while self.remaining > 0 || self.in_system > 0 {
            if self.remaining > 0 && arrival + self.schedule_start <= self.events.next_time() {
                self.now = arrival + self.schedule_start;
                let node = self.draw_node();
                self.arrive(node);
                arrival = self.schedule.advance(&mut self.arrivals);
                continue;
            }
            let Some((time, event)) = self.events.pop() else { return };
            self.now = time;
            let (kind, argument) = unpack(event);
            match kind {
                kind::AT_NODE => self.at_node(argument as u32),
                kind::DONE => self.done(argument as u32),
                kind::STEAL_REQUEST => {
                    self.steal((argument >> 16) as usize, argument as u16 as usize)
                }
                kind::HEARTBEAT => self.heartbeat(argument as u32),
                kind::PARAMETERS => self.receive_parameters(argument as u32),
                kind::BEAT => self.beat(argument as u16 as usize, (argument >> 16) as u32),
                kind::SCRIPT => {
                    if self.act(argument as usize) {
                        arrival = self.schedule.advance(&mut self.arrivals);
                    }
                }
                _ => self.sample(),
            }
        }
    }

    /// Returns the time in nanoseconds.
    #[inline]
    fn now_ns(&self) -> u64 {
        to_ns(self.now)
    }

    /// Draws the node that receives the next client task. Under uneven traffic, the lower half of the bits
    /// decides between the two groups of nodes; the upper half picks a node in the group.
    #[inline]
    fn draw_node(&mut self) -> usize {
        let bits = self.choice.next_u64();
        let any = |count: usize| (((bits >> 32) * count as u64) >> 32) as usize;
        let Some((nodes, share)) = &self.traffic else { return any(self.nodes.len()) };
        let unit = f64::from(bits as u32) / 4_294_967_296.0;
        if unit < *share {
            return nodes.start + any(nodes.len());
        }
        // Nodes outside the group: indices from the group on move up by its size.
        match any(self.nodes.len() - nodes.len()) {
            index if index < nodes.start => index,
            index => index + nodes.len(),
        }
    }

    /// Sends a client's task to a node, which accepts or forwards it.
    #[inline]
    fn arrive(&mut self, node: usize) {
        self.remaining -= 1;
        let (service_ns, _) = self.config.service.sample_ns(&mut self.service);
        let number = self.recorder.arrive(self.in_system);
        self.in_system += 1;
        let task = self.flights.add(Flight {
            arrived: self.now,
            started: 0,
            service: (service_ns * TICKS_PER_US / 1e3) as u64,
            number,
            node: node as u16,
            life: 0,
        });
        if !self.nodes[node].is_up {
            return self.lose(task);
        }
        match self.nodes[node].peers.destination() {
            None => self.accept(task),
            Some(destination) => {
                self.passed.migrations += 1;
                self.send(task, destination);
            }
        }
    }

    /// Sends a task to another node.
    #[inline]
    fn send(&mut self, task: u32, to: usize) {
        self.messages += 1;
        self.flights[task].node = to as u16;
        self.events.push(self.now + self.delay, pack(kind::AT_NODE, u64::from(task)));
    }

    /// Delivers a forwarded or stolen task.
    fn at_node(&mut self, task: u32) {
        if self.nodes[usize::from(self.flights[task].node)].is_up {
            self.accept(task);
        } else {
            self.lose(task);
        }
    }

    /// Starts a task at its node, or queues it if all workers are busy. Drops it if the queue is full.
    #[inline]
    fn accept(&mut self, task: u32) {
        let node = &mut self.nodes[usize::from(self.flights[task].node)];
        if node.busy < node.workers {
            node.busy += 1;
            return self.start(task);
        }
        if node.queue.len() >= self.config.queue {
            node.peers.failed();
            self.refused += 1;
            return self.lose(task);
        }
        node.queue.push(task, &mut self.flights);
        node.peers.set_waiting(node.queue.len());
    }

    /// Removes a lost task.
    fn lose(&mut self, task: u32) {
        self.end(task, None, Err(Status::Lost));
        self.flights.remove(task);
        self.in_system -= 1;
        self.lost += 1;
    }

    /// Records the end of a task.
    #[inline]
    fn end(&mut self, task: u32, worker: Option<usize>, response: Result<u64, Status>) {
        let Flight { number, arrived, service, .. } = self.flights[task];
        let (class, service) = (0, Some(service));
        self.recorder.end(TICK_PS, || TaskEnd {
            number,
            class,
            worker,
            arrived,
            service,
            response,
        });
    }

    /// Starts a task at a worker of its node.
    #[inline]
    fn start(&mut self, task: u32) {
        let flight = &mut self.flights[task];
        let node = &self.nodes[usize::from(flight.node)];
        (flight.started, flight.life) = (self.now, node.life);
        let ticks = (flight.service as f64 / node.speed) as u64;
        self.events.push(self.now + ticks, pack(kind::DONE, u64::from(task)));
    }

    /// Ends a task. Its worker takes the next waiting task, if any. If no further task waits, the node may
    /// request one from another node.
    #[inline]
    fn done(&mut self, task: u32) {
        let flight = self.flights[task];
        let index = usize::from(flight.node);
        let node = &mut self.nodes[index];
        if flight.life != node.life || !node.is_up {
            return self.lose(task);
        }
        let next = node.queue.pop(&self.flights);
        match next {
            Some(_) => node.peers.set_waiting(node.queue.len()),
            None => node.busy -= 1,
        }
        let victim = node.peers.done(to_ns(self.now - flight.started));
        let ticks = self.now - flight.arrived;
        self.recorder.done(flight.number, ticks);
        self.end(task, Some(index), Ok(ticks));
        if self.config.digest {
            self.digest.add([flight.number, index as u64, flight.started, ticks]);
        }
        self.flights.remove(task);
        self.in_system -= 1;
        if let Some(next) = next {
            self.start(next);
        }
        if let Some(victim) = victim {
            self.passed.steals += 1;
            self.messages += 1;
            let argument = (index as u64) << 16 | victim as u64;
            self.events.push(self.now + self.delay, pack(kind::STEAL_REQUEST, argument));
        }
    }

    /// Handles a request of node `thief` for a task of node `victim`, which sends its first waiting task.
    fn steal(&mut self, thief: usize, victim: usize) {
        let node = &mut self.nodes[victim];
        if !node.is_up || !node.peers.asked() {
            return;
        }
        if let Some(task) = node.queue.pop(&self.flights) {
            node.peers.set_waiting(node.queue.len());
            self.passed.stolen += 1;
            self.send(task, thief);
        }
    }

    /// Schedules a node's next beat.
    fn await_beat(&mut self, index: usize) {
        let node = &self.nodes[index];
        let argument = u64::from(node.life) << 16 | index as u64;
        self.events.push(from_ns(node.peers.next_beat_ns()), pack(kind::BEAT, argument));
    }

    /// Executes a node's beat, and sends its heartbeat and its new parameters to all nodes. Ignores the beat of
    /// an earlier life.
    fn beat(&mut self, index: usize, life: u32) {
        let now_ns = self.now_ns();
        let receivers = self.nodes.len() as u64 - 1;
        let node = &mut self.nodes[index];
        if !node.is_up || node.life != life {
            return;
        }
        let beat = node.peers.beat(now_ns);
        if receivers > 0 {
            self.messages += receivers;
            let slot = self.beats.add(beat);
            self.events.push(self.now + self.delay, pack(kind::HEARTBEAT, u64::from(slot)));
            for (head, values) in node.peers.parameters() {
                self.messages += receivers;
                let slot = self.parameters.add((head, values.to_vec()));
                self.events.push(self.now + self.delay, pack(kind::PARAMETERS, u64::from(slot)));
            }
        }
        self.await_beat(index);
    }

    /// Delivers a heartbeat to all other nodes.
    fn heartbeat(&mut self, slot: u32) {
        let Some(beat) = self.beats.remove(slot) else { return };
        let from = usize::from(beat.origin.id);
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if index != from && node.is_up {
                // The node counts refused heartbeats, such as those of an earlier life.
                _ = node.peers.receive_heartbeat(&beat);
            }
        }
    }

    /// Delivers a node's parameters to all other nodes.
    fn receive_parameters(&mut self, slot: u32) {
        let Some((head, values)) = self.parameters.remove(slot) else { return };
        let from = usize::from(head.origin.id);
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if index != from && node.is_up {
                // The node counts refused parameters too.
                _ = node.peers.receive_parameters(&head, values.iter().copied());
            }
        }
    }

    /// Executes a scripted event. Returns true if the arrivals changed.
    fn act(&mut self, number: usize) -> bool {
        match self.config.script[number].action.clone() {
            Action::Speed { workers: nodes, speed } => {
                self.nodes[nodes].iter_mut().for_each(|node| node.speed = speed);
            }
            Action::Traffic { nodes, share } => {
                // Traffic to all nodes is even again.
                let all = nodes.len() == self.nodes.len();
                self.traffic = (!all).then_some((nodes, share));
            }
            Action::Shock { nodes, tasks } => {
                for task in 0..tasks.min(self.remaining) as usize {
                    self.arrive(nodes.start + task % nodes.len());
                }
            }
            Action::Down(nodes) => nodes.for_each(|node| self.die(node)),
            Action::Up(nodes) => nodes.for_each(|node| self.restore(node)),
            Action::Load(_) => {
                if let Some(schedule) = self.changes[number].take() {
                    (self.schedule, self.schedule_start) = (schedule, self.now);
                    return true;
                }
            }
            // The parser of the script refuses actions of other models.
            _ => {}
        }
        false
    }

    /// Ends a node. Its queued tasks are lost.
    fn die(&mut self, index: usize) {
        self.nodes[index].is_up = false;
        while let Some(task) = self.nodes[index].queue.pop(&self.flights) {
            self.lose(task);
        }
        // The tasks of its workers count as lost at their completion times.
    }

    /// Restarts a node, with empty state.
    fn restore(&mut self, index: usize) {
        let now_ns = self.now_ns();
        let node = &mut self.nodes[index];
        if node.is_up {
            return;
        }
        (node.is_up, node.busy, node.life) = (true, 0, node.life + 1);
        node.peers = Peers::new(settings(self.config, index, node.life, now_ns));
        self.await_beat(index);
    }

    /// Samples the imbalance of the queues, per worker, with the tasks in service.
    fn sample(&mut self) {
        let tasks = |node: &Node| node.busy as f64 + f64::from(node.queue.len());
        let per_worker = self.nodes.iter().map(|node| tasks(node) / node.workers as f64);
        let longest = per_worker.fold(0.0, f64::max);
        let workers: usize = self.config.workers.iter().sum();
        let mean = self.nodes.iter().map(tasks).sum::<f64>() / workers as f64;
        if mean > 0.0 {
            record(&mut self.imbalance, (longest / mean * 1e3) as u64);
        }
        self.events.push(self.now + SAMPLE_TICKS, pack(kind::SAMPLE, 0));
    }

    /// Returns the outcome.
    fn finish(self) -> Outcome {
        let record = Record { digest: self.digest, answered: self.config.tasks - self.lost };
        Outcome {
            messages: self.messages,
            lost: self.lost,
            overflows: self.refused > self.config.tasks / LOST_SHARE,
            imbalance: self.imbalance,
            passed: Some(self.passed),
            record: self.config.digest.then_some(record),
            ..Outcome::of(self.recorder, self.config.workers.iter().sum(), TICKS_PER_US)
        }
    }
}
