//! Model `nodes`: nodes without a scheduler between clients and nodes. Each has a queue and workers. A client sends
//! each task to a random node. Nodes forward new tasks to each other (migration), and request tasks from each other
//! (stealing), as in Malcolm (POMACS 2022).
//!
//! The decisions are the dataplane's own ([`wedjat_core::peers`]). The model covers the network between nodes, and
//! workers that serve in order of arrival. A task's response time runs from its arrival at the first node to
//! the end of its service. A beat is a node's periodic work, in which it learns and sends its heartbeat. At
//! some beats it also sends its parameters, the learned weights that nodes share. Forwarded tasks, requests,
//! heartbeats and parameters take the delay. The nodes' beats are out of phase.
//!
//! A task is lost if its node's queue is full, or if its node dies or is down. Nodes detect a dead node by its
//! silence; clients never do.
//!
//! Tasks may share a worker's core ([`super::sharing`]). A node then gives each task to a worker with the fewest tasks,
//! by the agent's policy `jbsq`. A task waits while each worker has its maximum of tasks.

use std::ops::Range;

use rand::Rng as _;
use wedjat_core::peers::{PeerPolicy, Peers, Settings};
use wedjat_core::policy::fifo::Slab;
use wedjat_core::policy::{Core, Dispatcher, PolicySpec, Task, stream_seed};
use wedjat_core::state::{Load, Member, Report, View};
use wedjat_core::wire::peer::{Heartbeat, Parameters};
use wedjat_workload::arrival::{Arrivals, Schedule};
use wedjat_workload::results::Status;
use wedjat_workload::seed::{Stream, StreamSeed};
use wedjat_workload::service::Service;

use super::engine::{Engine, NextEvent, Setup, SimTask};
use super::events::event;
use super::hop::{Hop, TICK_PS, TICKS_PER_US, from_ns, to_ns};
use super::outcome::{ForwardedTasks, Outcome};
use super::script::{self, Action, Step};
use super::sharing::SharingTimes;
use super::stats::Observer;

/// Ticks per second.
const HZ: f64 = TICKS_PER_US * 1e6;
/// Ticks between samples of the queues: 50 us.
const SAMPLE_TICKS: u64 = 50 * TICKS_PER_US as u64;
/// A run overflows if full queues reject more than one task in this number. Rare bursts lose fewer.
pub const LOST_SHARE: u64 = 1000;
/// Default of the maximum number of tasks that share a core.
pub const SLOTS: usize = 8;

/// Kinds of events besides those of [`event`]. Simultaneous events happen in the order of these numbers. An event's
/// argument holds its nodes, its task, or the slot of its message.
pub mod kind {
    use super::event;

    /// A forwarded or stolen task arrives at its node.
    pub const AT_NODE: u64 = event::AT_WORKER;
    /// A request for a task arrives. The argument is thief << 16 | victim; the thief is the requesting node.
    pub const STEAL_REQUEST: u64 = 3;
    /// A heartbeat arrives at all nodes except its sender.
    pub const HEARTBEAT: u64 = 4;
    /// A part of a node's parameters arrives at all nodes except its sender.
    pub const PARAMETERS: u64 = 5;
    /// A node's beat is due. The argument is life << 16 | node; the life is the node's number of restarts.
    pub const BEAT: u64 = 6;
    /// All queues are sampled, after simultaneous steps of the script.
    pub const SAMPLE: u64 = event::SCRIPT + 1;
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of workers of each node.
    pub workers: Vec<usize>,
    /// Policy of the nodes.
    pub policy: PeerPolicy,
    /// Maximum number of tasks in a node's queue.
    pub queue: u32,
    /// Interval in nanoseconds between two beats of a node.
    pub beat_ns: u64,
    /// Delay in nanoseconds from one node to another.
    pub delay_ns: u64,
    /// Service times at speed 1.
    pub service: Service,
    /// Arrival process. Each task goes to a random node.
    pub arrivals: Arrivals,
    /// Offered work as a fraction of the workers' capacity.
    pub load: f64,
    /// Scripted events.
    pub script: Vec<Step>,
    /// Number of tasks.
    pub tasks: u64,
    /// Warm-up: fraction of the tasks, at the start of the run, that is not measured.
    pub warmup: f64,
    /// True to put a digest of all completed tasks into the outcome.
    pub digest: bool,
    /// Sharing of the workers' cores; `None` if workers serve in order of arrival.
    pub sharing: Option<SharingTimes>,
    /// True to measure classes and slowdowns.
    pub measures_classes: bool,
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

    /// Returns the arrival schedules of the initial load and of each load change in the script, by step.
    ///
    /// # Errors
    /// If arrivals and a load contradict each other.
    pub fn schedules(&self) -> Result<(Schedule, Vec<Option<Schedule>>), String> {
        script::schedules(&self.arrivals, self.load, &self.script, |load| self.rate(load), HZ)
    }

    /// Creates the engine of a run, which computes the tasks' digest if `has_digest`. A task's `worker` is its current
    /// or next node. The model and lockstep store different data `T` in a task's `route`.
    ///
    /// # Errors
    /// Same as for [`Self::schedules`].
    pub fn engine<T>(&self, has_digest: bool) -> Result<Engine<T>, String> {
        let setup = Setup {
            tasks: self.tasks,
            warmup: self.warmup,
            speeds: &vec![1.0; self.workers.len()],
            speed_unit: 1.0,
            schedules: self.schedules()?,
            hop: Hop::Const(from_ns(self.delay_ns)),
            node_delay: 0,
            loss: 0.0,
            sharing: self
                .sharing
                .map(|times| (self.workers.iter().sum(), times.sharing(ticks_of, SLOTS))),
            measures_classes: self.measures_classes,
            has_digest,
            tick_ps: TICK_PS,
            seed: self.seed,
            observer: &self.observer,
        };
        Ok(Engine::new(setup, self.script.iter().map(|step| from_ns(step.at_ns as u64))))
    }

    /// Returns the maximum number of tasks at a worker.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.sharing.map_or(1, |sharing| sharing.slots.unwrap_or(SLOTS))
    }

    /// Returns the mean number of tasks in this many seconds, with the script's load changes and shocks. Converts
    /// `--seconds`, because a run ends after a number of tasks. The steps must be in order of time.
    #[must_use]
    pub fn tasks_in(&self, seconds: f64) -> u64 {
        // Tasks before `load_start`, the load since then, and `load_start` in seconds.
        let (mut tasks, mut load, mut load_start) = (0.0, self.load, 0.0);
        for step in &self.script {
            let step_s = (step.at_ns / 1e9).min(seconds);
            match step.action {
                Action::Load(next) => {
                    tasks += self.rate(load) * (step_s - load_start).max(0.0);
                    (load, load_start) = (next, step_s.max(load_start));
                }
                Action::Shock { tasks: extra, .. } if step_s < seconds => tasks += extra as f64,
                _ => {}
            }
        }
        (tasks + self.rate(load) * (seconds - load_start)) as u64
    }
}

/// A node.
struct Node {
    /// Number of workers.
    workers: usize,
    /// Number of busy workers. With shared cores: number of tasks at workers.
    busy: usize,
    /// Index of its first core in the engine, if tasks share cores.
    first_core: usize,
    /// Dispatcher that chooses the worker of a task, if tasks share cores.
    dispatcher: Option<Dispatcher>,
    /// Learned state and decisions of the node.
    peers: Peers,
    is_up: bool,
    /// Number of restarts. Events from before the last restart do not apply.
    life: u32,
}

/// State of a run.
struct Sim<'a> {
    config: &'a Config,
    /// Engine with one worker for each node, which holds the node's waiting tasks. A task's `route` is the `life` of
    /// its node at the start of service. If the node has restarted since, the task is lost.
    engine: Engine<u32>,
    nodes: Vec<Node>,
    /// Heartbeats in flight, each to all other nodes.
    heartbeats: Slab<Heartbeat>,
    /// Parameters in flight, header and values, each to all other nodes.
    parameters: Slab<(Parameters, Vec<f32>)>,
    /// Range of nodes and the fraction of the tasks that they receive, if traffic is uneven.
    traffic: Option<(Range<usize>, f64)>,
    /// Stream of the clients' choices of a node.
    choice: Stream,
    /// Number of tasks lost because of full queues.
    refused: u64,
    /// Numbers of tasks and requests that nodes sent to each other.
    passed: ForwardedTasks,
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

/// Runs the model, and also returns each node's final state, for comparison with lockstep.
///
/// # Errors
/// If arrivals and a load contradict each other.
pub fn run_with_peers(config: &Config) -> Result<(Outcome, Vec<Peers>), String> {
    let mut sim = Sim::new(config)?;
    sim.run();
    let peers = sim.nodes.iter().map(|node| node.peers.clone()).collect();
    Ok((sim.finish(), peers))
}

/// Returns a service time in ticks.
#[inline]
#[must_use]
pub fn ticks_of(service_ns: f64) -> u64 {
    (service_ns * TICKS_PER_US / 1e3) as u64
}

/// Returns the settings of node `index` for its start at `now_ns` after `life` restarts.
#[must_use]
pub fn settings(config: &Config, index: usize, life: u32, now_ns: u64) -> Settings {
    // Random phase within a beat: scales 64 random bits to nanoseconds.
    let phase = StreamSeed::derive(config.seed, "beats", index as u32).stream().next_u64();
    let phase = (u128::from(phase) * u128::from(config.beat_ns)) >> 64;
    Settings {
        nodes: config.workers.len(),
        own: index,
        policy: config.policy,
        slots: (config.workers[index] * config.slots()) as u32,
        beat_ns: config.beat_ns,
        first_beat_ns: now_ns + 1 + phase as u64,
        born: now_ns,
        seed: StreamSeed::derive(config.seed, "peers", life).seed,
    }
}

/// Chooses a worker for a task; `None` if each worker has its maximum of tasks.
fn choose(dispatcher: &mut Dispatcher) -> Option<Member> {
    let mut picks = [None];
    dispatcher.schedule(&[Task::default()], &mut picks);
    picks[0].map(|pick| pick.member)
}

/// Returns the dispatcher of a node's agent over its workers, after `life` restarts; `None` if tasks do not share
/// cores.
fn dispatcher(config: &Config, index: usize, life: u32) -> Result<Option<Dispatcher>, String> {
    if config.sharing.is_none() {
        return Ok(None);
    }
    let policy = format!("jbsq(k={})", config.slots()).parse::<PolicySpec>();
    let policy = policy.map_err(|error| error.to_string())?;
    let view = View::heap(config.workers[index], 1).remove(0);
    let seed = stream_seed(settings(config, index, life, 0).seed, 0, 0);
    let mut dispatcher = Dispatcher::new(&policy, view, Core::ONLY, seed);
    // No task is lost between an agent and its workers.
    dispatcher.set_lossless();
    Ok(Some(dispatcher))
}

impl<'a> Sim<'a> {
    /// Creates all nodes. Schedules their first beats and the first sample; the engine schedules the script.
    fn new(config: &'a Config) -> Result<Self, String> {
        let mut core_count = 0;
        let node = |(index, &workers): (usize, &usize)| {
            core_count += workers;
            Ok(Node {
                workers,
                busy: 0,
                first_core: core_count - workers,
                dispatcher: dispatcher(config, index, 0)?,
                peers: Peers::new(settings(config, index, 0, 0)),
                is_up: true,
                life: 0,
            })
        };
        let nodes = config.workers.iter().enumerate().map(node);
        let nodes = nodes.collect::<Result<_, String>>()?;
        let mut sim = Self {
            config,
            engine: config.engine(config.digest)?,
            nodes,
            heartbeats: Slab::default(),
            parameters: Slab::default(),
            traffic: None,
            choice: StreamSeed::derive(config.seed, "nodes", 0).stream(),
            refused: 0,
            passed: ForwardedTasks::default(),
        };
        sim.engine.after(SAMPLE_TICKS, kind::SAMPLE, 0);
        for node in 0..sim.nodes.len() {
            sim.await_beat(node);
        }
        Ok(sim)
    }

    /// Runs all arrivals and events in order until all tasks have ended.
    fn run(&mut self) {
        while let Some(due) = self.engine.next(u64::MAX) {
            match due {
                NextEvent::Arrival => {
                    let node = self.draw_node();
                    self.arrive(node);
                }
                NextEvent::Event(kind::AT_NODE, task) => self.at_node(task as u32),
                NextEvent::Event(event::DONE, task) => self.done(task as u32),
                NextEvent::Event(kind::STEAL_REQUEST, request) => {
                    self.steal((request >> 16) as usize, request as u16 as usize);
                }
                NextEvent::Event(kind::HEARTBEAT, slot) => self.heartbeat(slot as u32),
                NextEvent::Event(kind::PARAMETERS, slot) => self.receive_parameters(slot as u32),
                NextEvent::Event(kind::BEAT, beat) => {
                    self.beat(beat as u16 as usize, (beat >> 16) as u32)
                }
                NextEvent::Event(event::SCRIPT, step) => self.act(step as usize),
                // `kind::SAMPLE`. There is no timer.
                NextEvent::Event(..) | NextEvent::Timer => self.sample(),
            }
        }
    }

    /// Returns the time in nanoseconds.
    #[inline]
    fn now_ns(&self) -> u64 {
        to_ns(self.engine.now)
    }

    /// Draws the node that receives the next client task. Under uneven traffic, the lower 32 bits decide between the
    /// favoured group of nodes and the rest. The upper 32 bits pick a node of that part.
    #[inline]
    fn draw_node(&mut self) -> usize {
        let bits = self.choice.next_u64();
        let any = |count: usize| (((bits >> 32) * count as u64) >> 32) as usize;
        let Some((nodes, share)) = &self.traffic else { return any(self.nodes.len()) };
        let unit = f64::from(bits as u32) / 4_294_967_296.0; // 2^32
        if unit < *share {
            return nodes.start + any(nodes.len());
        }
        // The rest: indices from the start of the group on skip the group.
        match any(self.nodes.len() - nodes.len()) {
            index if index < nodes.start => index,
            index => index + nodes.len(),
        }
    }

    /// Sends a client's task to a node, which accepts or forwards it. The task is lost if the node is down.
    #[inline]
    fn arrive(&mut self, node: usize) {
        let task = self.engine.arrive(&self.config.service, ticks_of, 0);
        let flight = &mut self.engine.flights[task];
        flight.worker = node as u32;
        if !self.config.measures_classes {
            flight.class = 0; // the model has no classes
        }
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
        self.engine.flights[task].worker = to as u32;
        self.send_message(kind::AT_NODE, task.into());
    }

    /// Sends a message to another node.
    #[inline]
    fn send_message(&mut self, kind: u64, argument: u64) {
        self.engine.messages += 1;
        self.engine.send(1, kind, argument);
    }

    /// Delivers a forwarded or stolen task. The task is lost if the node is down.
    fn at_node(&mut self, task: u32) {
        if self.nodes[self.engine.flights[task].worker as usize].is_up {
            self.accept(task);
        } else {
            self.lose(task);
        }
    }

    /// Starts a task at its node, or queues it if no worker may take it. The task is lost if the queue is full.
    #[inline]
    fn accept(&mut self, task: u32) {
        let index = self.engine.flights[task].worker as usize;
        let (node, queue) = (&mut self.nodes[index], &mut self.engine.workers[index].queue);
        match &mut node.dispatcher {
            None if node.busy < node.workers => {
                node.busy += 1;
                return self.start(task);
            }
            Some(dispatcher) if queue.is_empty() => {
                if let Some(member) = choose(dispatcher) {
                    return self.share(task, member);
                }
            }
            _ => {}
        }
        if queue.len() >= self.config.queue {
            // The node learns from its dropped tasks.
            node.peers.count_failed_task();
            self.refused += 1;
            return self.lose(task);
        }
        queue.push(task, &mut self.engine.flights);
        node.peers.set_waiting(queue.len());
    }

    /// Records a task as lost and removes it.
    fn lose(&mut self, task: u32) {
        self.engine.lose(task, Status::Lost);
    }

    /// Starts a task at a worker of its node.
    #[inline]
    fn start(&mut self, task: u32) {
        let flight = &mut self.engine.flights[task];
        flight.route = self.nodes[flight.worker as usize].life;
        self.engine.start(task);
    }

    /// Adds a task to the shared core of worker `member` of its node.
    fn share(&mut self, task: u32, member: Member) {
        let flight = &mut self.engine.flights[task];
        let node = &mut self.nodes[flight.worker as usize];
        node.busy += 1;
        flight.route = node.life;
        self.engine.join_core(node.first_core + member.index(), task);
    }

    /// Ends a task at its shared core. Returns the worker that takes the next waiting task; `None` if no task waits or
    /// no worker may take it.
    fn leave_core(&mut self, task: u32) -> Option<Member> {
        self.engine.leave_core(task);
        let SimTask { worker, core, .. } = self.engine.flights[task];
        let service = self.engine.service_of(task);
        let Node { dispatcher, first_core, busy, .. } = &mut self.nodes[worker as usize];
        *busy -= 1;
        let load = Load::tasks(self.engine.cores[core as usize].len() as u16);
        let member = Member((core as usize - *first_core) as u16);
        let dispatcher = dispatcher.as_mut()?;
        dispatcher.reply(&Report::new(member, load, to_ns(service) as u32));
        let is_waiting = !self.engine.workers[worker as usize].queue.is_empty();
        is_waiting.then(|| choose(dispatcher)).flatten()
    }

    /// Ends a task and starts the next waiting one, if any. The node may then request a task from another node, its
    /// victim. The ended task is lost if its node died during its service.
    #[inline]
    fn done(&mut self, task: u32) {
        let SimTask { worker, route, started, .. } = self.engine.flights[task];
        let index = worker as usize;
        let node = &self.nodes[index];
        if route != node.life || !node.is_up {
            return self.lose(task);
        }
        let is_shared = node.dispatcher.is_some();
        // Worker of the next task, if cores are shared. Otherwise the ended task's own worker takes it.
        let member = if is_shared { self.leave_core(task) } else { None };
        let node = &mut self.nodes[index];
        let queue = &mut self.engine.workers[index].queue;
        let may_start = !is_shared || member.is_some();
        let next = if may_start { queue.pop(&self.engine.flights) } else { None };
        match next {
            Some(_) => node.peers.set_waiting(queue.len()),
            None if is_shared => {}
            None => node.busy -= 1,
        }
        // A worker with a shared core reports a task's own time, without the quanta of other tasks.
        let served =
            if is_shared { self.engine.service_of(task) } else { self.engine.now - started };
        let victim = node.peers.done(to_ns(served));
        self.engine.complete(task, index);
        self.engine.flights.remove(task);
        match (next, member) {
            (Some(next), Some(member)) => self.share(next, member),
            (Some(next), None) => self.start(next),
            (None, _) => {}
        }
        if let Some(victim) = victim {
            self.passed.steals += 1;
            self.send_message(kind::STEAL_REQUEST, (index as u64) << 16 | victim as u64);
        }
    }

    /// Handles a request of node `thief` for a task of node `victim`, which sends its first waiting task, if any.
    fn steal(&mut self, thief: usize, victim: usize) {
        let node = &mut self.nodes[victim];
        if !node.is_up || !node.peers.handle_steal_request() {
            return;
        }
        // `handle_steal_request` has counted the request. It returns true only if a task waits.
        let queue = &mut self.engine.workers[victim].queue;
        if let Some(task) = queue.pop(&self.engine.flights) {
            node.peers.set_waiting(queue.len());
            self.passed.stolen += 1;
            self.send(task, thief);
        }
    }

    /// Schedules a node's next beat.
    fn await_beat(&mut self, index: usize) {
        let node = &self.nodes[index];
        let argument = u64::from(node.life) << 16 | index as u64;
        let time = from_ns(node.peers.next_beat_ns());
        self.engine.events.push(time, event::pack(kind::BEAT, argument));
    }

    /// Executes a node's beat, and sends its heartbeat and its new parameters to all other nodes. Ignores a beat of a
    /// dead node, or from before its last restart.
    fn beat(&mut self, index: usize, life: u32) {
        let now_ns = self.now_ns();
        let receivers = self.nodes.len() as u64 - 1;
        let node = &mut self.nodes[index];
        if !node.is_up || node.life != life {
            return;
        }
        let heartbeat = node.peers.beat(now_ns);
        if receivers > 0 {
            let slot = self.heartbeats.add(heartbeat);
            self.engine.messages += receivers;
            self.engine.send(1, kind::HEARTBEAT, slot.into());
            for (head, values) in node.peers.parameters() {
                let slot = self.parameters.add((head, values.to_vec()));
                self.engine.messages += receivers;
                self.engine.send(1, kind::PARAMETERS, slot.into());
            }
        }
        self.await_beat(index);
    }

    /// Delivers a heartbeat to all other nodes.
    fn heartbeat(&mut self, slot: u32) {
        let Some(heartbeat) = self.heartbeats.remove(slot) else { return };
        let from = usize::from(heartbeat.origin.id);
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if index != from && node.is_up {
                // The node refuses some heartbeats, such as those from before the sender's restart, and counts these
                // itself.
                _ = node.peers.receive_heartbeat(&heartbeat);
            }
        }
    }

    /// Delivers a node's parameters to all other nodes.
    fn receive_parameters(&mut self, slot: u32) {
        let Some((head, values)) = self.parameters.remove(slot) else { return };
        let from = usize::from(head.origin.id);
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if index != from && node.is_up {
                // The node also counts refused parameters.
                _ = node.peers.receive_parameters(&head, values.iter().copied());
            }
        }
    }

    /// Executes a step of the script.
    fn act(&mut self, step: usize) {
        match self.config.script[step].action.clone() {
            Action::Traffic { nodes, share } => {
                // Traffic to the range of all nodes is even.
                let all = nodes.len() == self.nodes.len();
                self.traffic = (!all).then_some((nodes, share));
            }
            Action::Shock { nodes, tasks } => {
                let tasks = tasks.min(self.engine.remaining);
                self.engine.remaining -= tasks;
                for task in 0..tasks as usize {
                    self.arrive(nodes.start + task % nodes.len());
                }
            }
            Action::Down(nodes) => nodes.for_each(|node| self.die(node)),
            Action::Up(nodes) => nodes.for_each(|node| self.restore(node)),
            action => self.engine.act(step, &action),
        }
    }

    /// Kills a node. Its tasks are lost.
    fn die(&mut self, index: usize) {
        (self.nodes[index].is_up, self.nodes[index].busy) = (false, 0);
        while let Some(task) = self.engine.workers[index].queue.pop(&self.engine.flights) {
            self.lose(task);
        }
        if self.nodes[index].dispatcher.is_none() {
            // The tasks of its workers count as lost at their scheduled completions, see `done`.
            return;
        }
        let first_core = self.nodes[index].first_core;
        for core in first_core..first_core + self.nodes[index].workers {
            for task in self.engine.clear_core(core) {
                self.lose(task);
            }
        }
    }

    /// Restarts a dead node with empty state.
    fn restore(&mut self, index: usize) {
        let now_ns = self.now_ns();
        let node = &mut self.nodes[index];
        if node.is_up {
            return;
        }
        (node.is_up, node.busy, node.life) = (true, 0, node.life + 1);
        // Never fails, because `new` has parsed the same policy.
        if let Ok(dispatcher) = dispatcher(self.config, index, node.life) {
            node.dispatcher = dispatcher;
        }
        node.peers = Peers::new(settings(self.config, index, node.life, now_ns));
        self.await_beat(index);
    }

    /// Samples the imbalance of the nodes' tasks per worker, including the tasks in service.
    fn sample(&mut self) {
        let mut all = 0.0;
        let mut longest = 0.0_f64;
        for (node, worker) in self.nodes.iter().zip(&self.engine.workers) {
            let tasks = node.busy as f64 + f64::from(worker.queue.len());
            longest = longest.max(tasks / node.workers as f64);
            all += tasks;
        }
        let workers: usize = self.config.workers.iter().sum();
        self.engine.sample(longest, all / workers as f64);
        self.engine.after(SAMPLE_TICKS, kind::SAMPLE, 0);
    }

    /// Returns the outcome.
    fn finish(mut self) -> Outcome {
        // At the end of the run each task is either lost or completed. A completed one counts as answered.
        self.engine.answered = self.config.tasks - self.engine.lost;
        Outcome {
            overflows: self.refused > self.config.tasks / LOST_SHARE,
            passed: Some(self.passed),
            servers: self.config.workers.iter().sum(),
            ..self.engine.finish(TICKS_PER_US)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::{SimArgs, plan};

    #[test]
    fn dead_node_has_no_busy_worker() {
        let text = |text: &str| Some(text.to_owned());
        let args = SimArgs {
            model: text("nodes"),
            policy: text("random"),
            load: text("0.5"),
            nodes: text("2x2"),
            tasks: text("2000"),
            // The tasks of the shock take 2.5 ms, so both workers are busy at 1 ms.
            at: text("900us shock 1=50; 1ms down 1"),
            ..SimArgs::default()
        };
        let cells = plan::cells(&args).unwrap();
        let Model::Nodes(config) = &cells[0].model else { panic!("not the model nodes") };
        let mut sim = Sim::new(config).unwrap();
        sim.run();
        assert!(!sim.nodes[1].is_up && sim.engine.lost > 0);
        assert_eq!(sim.nodes[1].busy, 0);
    }
}
