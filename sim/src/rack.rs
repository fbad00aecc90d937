//! Model `rack`: one pool of workers under one spine, with racks of workers behind leaves. The spine chooses
//! a leaf for each task, and the leaf a worker.
//!
//! The spine and the leaves are the dataplane's own [`Dispatcher`]s and [`Signals`]. The model covers the
//! network between them, and workers that serve in order of arrival. A task's response time runs from its
//! arrival at the spine to the end of its service; the reply's way back does not count. Benchmark tasks work
//! as in [`super::ct`].

use wedjat_core::clock::ClockFile;
use wedjat_core::node::Timing;
use wedjat_core::policy::signals::{Latest, Protocol, Signal, Signals};
use wedjat_core::policy::{self, Core, Dispatcher, Placement, PolicySpec, Task, stream_seed};
use wedjat_core::state::{DecisionNumber, Exchange, Load, Member, Report, View};
use wedjat_workload::arrival::{Arrivals, Schedule};
use wedjat_workload::results::Status;
use wedjat_workload::service::Service;

use super::engine::{BENCHMARK, Engine, NextEvent, Setup, SimTask};
use super::events::event;
use super::hop::{Hop, Hops, TICK_PS, TICKS_PER_US, from_ns, to_ns};
use super::outcome::Outcome;
use super::script::{self, Action, Step};
use super::sharing::SharingTimes;
use super::stats::Observer;
use super::watched::{WatchedDispatcher, Watcher};

/// Ticks per second.
const HZ: f64 = TICKS_PER_US * 1e6;
/// Ticks between samples of the queues: 50 us, as in Horus 5.2.
const SAMPLE_TICKS: u64 = 50 * TICKS_PER_US as u64;
/// Interval at which leaves repeat their idleness signal, in case a signal was lost: 1 ms.
const REPEAT_TICKS: u64 = 1000 * TICKS_PER_US as u64;
/// Time from a failure until the controller has changed the tables: 1 ms. A failed node still receives tasks
/// meanwhile.
const DETECTION_TICKS: u64 = 1000 * TICKS_PER_US as u64;

/// Period of a leaf's timer, as in [`wedjat_core::node::Timing`] on a clock of nanoseconds.
const LEAF_TICK_NS: u64 = Timing { ticks_hz: ClockFile::TICKS_HZ }.tick_interval();

/// Poll interval of a core with waiting tasks: 1 us. The core checks whether other cores have released credits
/// of a worker. A credit is the right to send a worker one more task.
const POLL_TICKS: u64 = TICKS_PER_US as u64;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Workers of each rack.
    pub racks: Vec<usize>,
    /// Number of network hops between the levels.
    pub hops: Hops,
    /// Delay of a hop.
    pub hop: Hop,
    /// Processing time of a leaf per task, in ticks. Adds a delay, not a capacity limit.
    pub node_delay: u64,
    /// Policy of the leaves.
    pub leaf: PolicySpec,
    /// Policy of the spine.
    pub spine: PolicySpec,
    /// Rules for the signals (idleness and average load) from leaves to the spine.
    pub protocol: Protocol,
    /// Service times at speed 1.
    pub service: Service,
    /// Arrivals at the spine.
    pub arrivals: Arrivals,
    /// Offered work as a fraction of the workers' capacity.
    pub load: f64,
    /// Speed of each worker.
    pub speeds: Vec<f64>,
    /// Number of tasks.
    pub tasks: u64,
    /// Fraction of the tasks that is not measured.
    pub warmup: f64,
    /// Probability of losing a packet between two nodes.
    pub loss: f64,
    /// Scripted events.
    pub script: Vec<Step>,
    /// True if workers run benchmark tasks; behind the dataplane's leaf they do not.
    pub benchmarks: bool,
    /// Cores of the leaf, if there is one leaf.
    pub cores: Cores,
    /// True to model a single leaf like the process: its time advances when packets arrive (if its policy
    /// queues tasks) and every `LEAF_TICK_NS`. Each task is recorded.
    pub as_process: bool,
    /// Sharing of the workers' cores; `None` if workers serve in order of arrival.
    pub sharing: Option<SharingTimes>,
    /// True to measure classes and slowdowns.
    pub measures_classes: bool,
    /// Seed of all streams.
    pub seed: u64,
    /// Observer of the run.
    pub observer: Observer,
}

/// Dispatcher cores of a leaf.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    /// Number of cores. Each task belongs to one core.
    pub count: usize,
    /// Delay in ticks of messages between cores. `None` means that the cores share their state in memory.
    pub delay: Option<u64>,
    /// Interval in ticks of each core's exchanges, as on an overloaded core. 0 lets a core exchange at every poll.
    pub interval: u64,
    /// True if a reply reaches the core that sent the task; otherwise any core.
    pub steered: bool,
}

impl Cores {
    /// A single core.
    pub const ONE: Self = Self { count: 1, delay: Some(0), interval: 0, steered: true };

    /// Returns the core that receives the task with this number.
    #[must_use]
    pub fn of_task(self, number: u64) -> usize {
        self.spread(number, 0x9E37_79B9_7F4A_7C15)
    }

    /// Returns the core that receives the reply to the task with this number.
    #[must_use]
    pub fn of_reply(self, number: u64) -> usize {
        if self.steered { self.of_task(number) } else { self.spread(number, 0xD1B5_4A32_D192_ED03) }
    }

    /// Returns a core for a number, as a device's hash spreads flows over cores. The mixing steps are like those of
    /// SplitMix64. Different factors give independent spreads.
    fn spread(self, number: u64, factor: u64) -> usize {
        if self.count == 1 {
            return 0;
        }
        let mixed = number.wrapping_add(1).wrapping_mul(factor);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed >> 33) as usize % self.count
    }
}

/// A packet for a leaf's core.
#[derive(Clone, Copy, Debug)]
enum Packet {
    /// A task, by its slot in the engine.
    Task(u32),
    /// A worker's report, and true if it answers a benchmark task.
    Reply(Report, bool),
}

/// Route of a task.
#[derive(Clone, Copy, Debug, Default)]
pub struct Route<P> {
    /// Rack of the task.
    pub rack: u16,
    /// True if the spine chose the rack from its idle list, the list of racks with idle workers.
    pub idle_selected: bool,
    /// Packet of the task in lockstep, which drives real leaf processes; `()` in this model.
    pub packet: P,
}

/// A leaf.
#[derive(Debug)]
struct Leaf<W> {
    /// Dispatcher of each core.
    dispatchers: Vec<WatchedDispatcher<W>>,
    /// Messages between cores; empty for a single core or shared memory.
    exchanges: Vec<Exchange>,
    /// Time of each core's next exchange, in ticks. Until then the core receives no messages. It sees places and keys of
    /// waiting tasks at once.
    exchange_at: Vec<u64>,
    /// Rule that decides which signals the leaf sends to the spine.
    signals: Signals,
    /// Number of signals sent, which numbers them.
    signals_sent: u16,
    /// Index of its first worker.
    first_worker: usize,
    /// Sum of the workers' loads as the leaf sees them. Load signals carry its average.
    total: u64,
    alive: bool,
    /// Service time of the last task, which benchmark tasks copy.
    last_service: u64,
}

/// Returns the task as the policy sees it. Benchmark tasks need no decision.
#[inline]
fn task_of<P>(flight: &SimTask<Route<P>>) -> Task {
    let decision = (flight.number != BENCHMARK).then(|| DecisionNumber::of(flight.number));
    Task { decision, ..Task::new(flight.class) }
}

/// Signals in flight as the argument of an event: rack (15 bits), number (16), kind (2), value (27). The value
/// has 16 bits after the point, so that averages up to 2047 tasks fit.
pub mod signal {
    use super::{Load, Signal};

    const VALUE_MAX: u32 = (1 << 27) - 1;

    /// Packs a signal with its rack and number. Larger loads become the largest value.
    pub fn pack(rack: usize, number: u16, signal: Signal) -> u64 {
        let (kind, value) = match signal {
            Signal::IdleAdd => (0, 0),
            Signal::IdleRemove => (1, 0),
            Signal::Load(load) => (2, load.0.min(VALUE_MAX)),
        };
        (rack as u64) << 45 | u64::from(number) << 29 | kind << 27 | u64::from(value)
    }

    /// Unpacks rack, number and signal.
    pub fn unpack(bits: u64) -> (usize, u16, Signal) {
        let signal = match bits >> 27 & 3 {
            0 => Signal::IdleAdd,
            1 => Signal::IdleRemove,
            _ => Signal::Load(Load(bits as u32 & VALUE_MAX)),
        };
        ((bits >> 45) as usize, (bits >> 29) as u16, signal)
    }
}

/// State of a run.
pub struct Sim<'a, W> {
    config: &'a Config,
    /// Engine with the workers of all racks.
    engine: Engine<Route<()>>,
    spine: Dispatcher,
    spine_alive: bool,
    /// Number of each leaf's latest signal, to ignore signals that arrive out of order.
    latest: Latest,
    leaves: Vec<Leaf<W>>,
    /// Next time of the leaf's periodic timer; `None` if the leaf is not modelled like the process.
    next_tick_ns: Option<u64>,
}

/// Runs the model.
///
/// # Errors
/// If arrivals and rate contradict each other.
pub fn run(config: &Config) -> Result<Outcome, String> {
    run_watched(config, ())
}

/// Runs the model with a watcher on the leaves' dispatchers. A test replays the events at the dataplane's leaf.
///
/// # Errors
/// Same as for [`run`].
pub fn run_watched(config: &Config, watch: impl Watcher) -> Result<Outcome, String> {
    let mut sim = Sim::new(config, watch)?;
    sim.run();
    Ok(sim.finish())
}

impl<'a, W: Watcher> Sim<'a, W> {
    /// Creates the spine, all leaves and workers, and schedules the first periodic events and the script.
    fn new(config: &'a Config, watch: W) -> Result<Self, String> {
        let spine_seed = stream_seed(config.seed, usize::MAX, 0);
        let view = View::heap(config.racks.len(), 1).remove(0);
        let mut spine = Dispatcher::new(&config.spine, view, Core::ONLY, spine_seed);
        let sizes: Vec<f64> = config.racks.iter().map(|&workers| workers as f64).collect();
        spine.set_rates(&sizes);
        let mut first_worker = 0;
        let leaves = config.racks.iter().enumerate().map(|(rack, &workers)| {
            let leaf = Leaf::new(config, rack, workers, first_worker, watch.clone());
            first_worker += workers;
            leaf
        });
        let leaves: Vec<_> = leaves.collect();
        let mut sim = Self {
            config,
            engine: config.engine(config.as_process)?,
            spine,
            spine_alive: true,
            latest: Latest::new(config.racks.len()),
            leaves,
            next_tick_ns: config.as_process.then_some(0),
        };
        sim.engine.after(SAMPLE_TICKS, event::SAMPLE, 0);
        // Only this protocol repeats signals. The offset by rack keeps the repetitions apart.
        if config.racks.len() > 1 && config.protocol == Protocol::Paper {
            for rack in 0..config.racks.len() as u64 {
                sim.engine.after(REPEAT_TICKS + rack, event::REPEAT, rack);
            }
        }
        Ok(sim)
    }

    /// Handles arrivals, events and the timer in order of time, until all tasks have ended; a recorded run also until
    /// all replies have arrived.
    fn run(&mut self) {
        while let Some(due) = self.engine.next(self.timer()) {
            match due {
                NextEvent::Arrival => self.arrive(),
                NextEvent::Timer => self.poll(0, None),
                NextEvent::Event(event::AT_LEAF, task) => self.at_leaf(task as u32),
                NextEvent::Event(event::AT_WORKER, task) => {
                    self.engine.arrive_at_worker(task as u32)
                }
                NextEvent::Event(event::DONE, task) => self.done(task as u32),
                NextEvent::Event(event::REPLY, task) => self.reply(task as u32),
                NextEvent::Event(event::SIGNAL, signal) => self.signal(signal),
                NextEvent::Event(event::SAMPLE, _) => self.sample(),
                NextEvent::Event(event::REPEAT, rack) => self.repeat(rack as usize),
                NextEvent::Event(event::EXCHANGE, core) => self.receive(core as usize),
                // `event::SCRIPT`
                NextEvent::Event(_, step) => self.act(step as usize),
            }
        }
    }

    /// Returns the next time of the leaf's timer. Only a leaf modelled like the process has one.
    #[inline]
    fn timer(&self) -> u64 {
        let next_tick_ns = self.next_tick_ns.filter(|_| self.leaves[0].alive);
        next_tick_ns.map_or(u64::MAX, from_ns)
    }

    /// Returns true if the leaf's timer is due, and re-arms it.
    #[inline]
    fn is_due(&mut self) -> bool {
        let now_ns = to_ns(self.engine.now);
        let is_due = self.next_tick_ns.is_some_and(|next_tick_ns| now_ns >= next_tick_ns);
        if is_due {
            self.next_tick_ns = Some(now_ns + LEAF_TICK_NS);
        }
        is_due
    }

    /// Polls a leaf's cores in turn; one of them receives the packet, if any.
    #[inline]
    fn poll(&mut self, rack: usize, packet: Option<(usize, Packet)>) {
        let Cores { count, delay, .. } = self.config.cores;
        let due = self.is_due();
        let receiver = packet.map_or(0, |(core, _)| core);
        // Without a delay of messages, all cores poll each time. With a delay, a core polls when its packet
        // or its messages arrive.
        let polls_all = count > 1 && delay == Some(0);
        let mut moved = false;
        for core in if polls_all || due { 0..count } else { receiver..receiver + 1 } {
            let packet = packet.filter(|(receiver, _)| *receiver == core).map(|(_, packet)| packet);
            match packet {
                Some(Packet::Task(task)) => self.task_at(rack, core, task),
                Some(Packet::Reply(report, benchmark)) => {
                    self.reply_at(rack, core, &report, benchmark);
                }
                None => {}
            }
            if due {
                self.leaves[rack].dispatchers[core].tick(to_ns(self.engine.now));
            }
            self.exchange(rack, core);
            // A reply frees a place at its worker. At the timer, the policy may have counted tasks as lost,
            // which frees places too. At other times only other cores can have released credits.
            moved |= match due || matches!(packet, Some(Packet::Reply(..))) {
                true => self.release_all(rack, core),
                false => self.release_freed(rack, core),
            };
        }
        if polls_all {
            // Polls until two polls in a row move nothing, as a turn in lockstep does. The poll above counts if
            // it had no packet and moved nothing.
            let mut quiet = u32::from(packet.is_none() && !moved);
            while quiet < 2 {
                quiet += 1;
                for core in 0..count {
                    self.exchange(rack, core);
                    if self.release_freed(rack, core) {
                        quiet = 0;
                    }
                }
            }
        } else if count > 1 {
            // All further cores see the changes of this one after the delay, or at their next poll.
            for core in (0..count).filter(|&core| core != receiver) {
                self.engine.after(delay.unwrap_or(POLL_TICKS), event::EXCHANGE, core as u64);
            }
        }
    }

    /// Starts the next task at the spine, which chooses a rack.
    fn arrive(&mut self) {
        let task = self.engine.arrive(&self.config.service, ticks_of, Route::default());
        let mut pick = None;
        if self.leaves.len() > 1 && self.spine_alive {
            let flight = &mut self.engine.flights[task];
            let mut picks = [None];
            self.spine.schedule(&[task_of(flight)], &mut picks);
            pick = picks[0];
            flight.route.rack = pick.map_or(0, |pick| pick.member.0);
            flight.route.idle_selected = pick.is_some_and(|pick| pick.idle);
        }
        // A single leaf needs no choice by the spine.
        if pick.is_none() && (self.leaves.len() > 1 || !self.spine_alive) {
            self.lose(task);
            return;
        }
        self.engine.send_task(self.config.hops.spine_leaf, event::AT_LEAF, task);
    }

    /// Removes a lost task.
    fn lose(&mut self, task: u32) {
        self.engine.lose(task, Status::Lost);
    }

    /// Delivers a task to its leaf, which may then signal the spine.
    #[inline]
    fn at_leaf(&mut self, task: u32) {
        let flight = self.engine.flights[task];
        let rack = usize::from(flight.route.rack);
        if !self.leaves[rack].alive {
            self.lose(task);
            return;
        }
        self.leaves[rack].last_service = flight.service;
        let core = self.config.cores.of_task(flight.number);
        self.poll(rack, Some((core, Packet::Task(task))));
        if self.leaves.len() > 1 {
            let leaf = &mut self.leaves[rack];
            let idle = leaf.dispatchers[0].view().idle().len();
            let signal = leaf.signals.on_task(flight.route.idle_selected, idle);
            self.publish(rack, signal);
        }
    }

    /// Handles a task at a leaf's core.
    #[inline]
    fn task_at(&mut self, rack: usize, core: usize, task: u32) {
        self.tick(rack, core);
        let task_seen = task_of(&self.engine.flights[task]);
        self.leaves[rack].dispatchers[core].note_arrival(task_seen);
        self.offer(rack, core, task);
    }

    /// Handles a worker's report at a leaf's core, and updates the leaf's total load.
    #[inline]
    fn reply_at(&mut self, rack: usize, core: usize, report: &Report, benchmark: bool) {
        self.tick(rack, core);
        let has_spine = self.leaves.len() > 1;
        let leaf = &mut self.leaves[rack];
        let load = |leaf: &Leaf<W>| match has_spine {
            true => leaf.signals.load_of(leaf.dispatchers[core].view(), report.member),
            false => 0,
        };
        let before = load(leaf);
        leaf.dispatchers[core].note_burst(to_ns(self.engine.now));
        if benchmark {
            leaf.dispatchers[core].refresh(report);
        } else {
            leaf.dispatchers[core].reply(report);
        }
        leaf.total = leaf.total + load(leaf) - before;
    }

    /// Advances a leaf's time, and sends the benchmark tasks that it requests. A leaf modelled like the process
    /// has no benchmark tasks, and needs the time here only if its policy queues tasks.
    #[inline]
    fn tick(&mut self, rack: usize, core: usize) {
        let now_ns = to_ns(self.engine.now);
        let dispatcher = &mut self.leaves[rack].dispatchers[core];
        if self.config.as_process {
            if dispatcher.holds_tasks() {
                dispatcher.tick(now_ns);
            }
            return;
        }
        dispatcher.tick(now_ns);
        while let Some(member) = self.leaves[rack].dispatchers[core].next_benchmark() {
            let leaf = &self.leaves[rack];
            let route = Route { rack: rack as u16, ..Route::default() };
            let worker = leaf.first_worker + member.index();
            let task = self.engine.add_benchmark(worker, leaf.last_service, route);
            self.engine.send_task(self.config.hops.leaf_worker, event::AT_WORKER, task);
        }
    }

    /// Offers a task to a dispatcher, which sends it to a worker or queues it.
    #[inline]
    fn offer(&mut self, rack: usize, core: usize, task: u32) {
        let placement =
            self.leaves[rack].dispatchers[core].offer(task_of(&self.engine.flights[task]), task);
        self.dispatch(rack, placement);
    }

    /// Executes a dispatcher's decision: sends the task to its worker, or drops it if no worker is available.
    /// Returns false if the task waits or there was none.
    #[inline]
    fn dispatch(&mut self, rack: usize, placement: Placement<u32>) -> bool {
        match placement {
            Ok(Some((task, pick))) => {
                let leaf = &mut self.leaves[rack];
                leaf.total += leaf.signals.load_of_task();
                let worker = leaf.first_worker + pick.member.index();
                self.engine.flights[task].worker = worker as u32;
                self.engine.send_task(self.config.hops.leaf_worker, event::AT_WORKER, task);
            }
            Ok(None) => return false,
            Err((task, _)) => self.lose(task),
        }
        true
    }

    /// Ends a task at its worker, and sends the reply.
    #[inline]
    fn done(&mut self, task: u32) {
        let SimTask { worker, route, .. } = self.engine.flights[task];
        let first_worker = self.leaves[usize::from(route.rack)].first_worker;
        self.engine.done(task, worker as usize - first_worker);
        self.engine.reply(self.config.hops.worker_leaf, task);
    }

    /// Delivers a reply to its leaf, which may then signal the spine.
    #[inline]
    fn reply(&mut self, task: u32) {
        let flight = self.engine.flights[task];
        self.engine.flights.remove(task);
        let rack = usize::from(flight.route.rack);
        let has_spine = self.leaves.len() > 1;
        self.engine.end_await();
        if !self.leaves[rack].alive {
            return;
        }
        self.engine.answered += 1;
        let core = self.config.cores.of_reply(flight.number);
        let worker = flight.worker as usize;
        let report = Report {
            member: Member((worker - self.leaves[rack].first_worker) as u16),
            load: Load::tasks(flight.left_at_worker),
            service_ns: reported_ns(flight.service, self.engine.workers[worker].speed),
            class: flight.class,
            decision: task_of(&flight).decision,
        };
        self.poll(rack, Some((core, Packet::Reply(report, flight.number == BENCHMARK))));
        if has_spine {
            let leaf = &mut self.leaves[rack];
            let (idle, total) = (leaf.dispatchers[0].view().idle().len(), leaf.total);
            for signal in leaf.signals.on_reply(idle, || total) {
                self.publish(rack, signal);
            }
        }
    }

    /// Offers a core's waiting tasks until one must wait. Returns true if at least one left.
    #[inline]
    fn release_all(&mut self, rack: usize, core: usize) -> bool {
        let mut moved = false;
        loop {
            let (leaf, flights) = (&mut self.leaves[rack], &self.engine.flights);
            let next = leaf.dispatchers[core].next(|&task| task_of(&flights[task]));
            if !self.dispatch(rack, next) {
                return moved;
            }
            moved = true;
        }
    }

    /// Lets a core receive messages of other cores, and send waiting tasks for which these released a credit.
    fn receive(&mut self, core: usize) {
        self.exchange(0, core);
        // Cores with shared memory have no messages that announce released credits.
        if self.config.cores.delay.is_none() {
            self.release_all(0, core);
            return;
        }
        self.release_freed(0, core);
        // Polls again while tasks wait for other cores' credits.
        if self.leaves[0].dispatchers[core].may_release() {
            let delay = self.config.cores.delay.unwrap_or(0).max(POLL_TICKS);
            self.engine.after(delay, event::EXCHANGE, core as u64);
        }
    }

    /// Lets a core publish its changes and receive those of other cores. If its next exchange is not due, it only
    /// releases places. Does nothing if cores share memory.
    #[inline]
    fn exchange(&mut self, rack: usize, core: usize) {
        let (now, interval) = (self.engine.now, self.config.cores.interval);
        let Leaf { dispatchers, exchanges, exchange_at, .. } = &mut self.leaves[rack];
        match exchanges.get_mut(core).filter(|_| now >= exchange_at[core]) {
            Some(exchange) => {
                exchange_at[core] = now + interval;
                // An overloaded core publishes only larger changes.
                policy::exchange(exchange, &mut dispatchers[core..=core], interval == 0);
            }
            None => AsMut::<Dispatcher>::as_mut(&mut dispatchers[core]).share_places(),
        }
    }

    /// Sends waiting tasks of a core, if other cores have released credits. Returns true if at least one
    /// left.
    fn release_freed(&mut self, rack: usize, core: usize) -> bool {
        let may_release = self.leaves[rack].dispatchers[core].may_release();
        if may_release {
            let now_ns = to_ns(self.engine.now);
            self.leaves[rack].dispatchers[core].tick(now_ns);
        }
        may_release && self.release_all(rack, core)
    }

    /// Sends a leaf's signal to the spine, if there is one.
    #[inline]
    fn publish(&mut self, rack: usize, signal: Option<Signal>) {
        let Some(signal) = signal else { return };
        self.engine.messages += 1;
        let signals_sent = &mut self.leaves[rack].signals_sent;
        *signals_sent = signals_sent.wrapping_add(1);
        let bits = signal::pack(rack, *signals_sent, signal);
        if !self.engine.loses() {
            self.engine.send(self.config.hops.leaf_spine, event::SIGNAL, bits);
        }
    }

    /// Lets a leaf repeat its idleness signal, and schedules the next repetition, unless the leaf has failed.
    fn repeat(&mut self, rack: usize) {
        let leaf = &mut self.leaves[rack];
        if leaf.alive {
            let signal = leaf.signals.repeat(true); // `on_task` saw the tasks of all cores
            self.publish(rack, signal);
            self.engine.after(REPEAT_TICKS, event::REPEAT, rack as u64);
        }
    }

    /// Delivers a signal to the spine. The spine ignores removed racks and, by most protocols, old signals.
    fn signal(&mut self, bits: u64) {
        let (rack, number, signal) = signal::unpack(bits);
        let member = Member(rack as u16);
        if !self.spine_alive || !self.spine.view().is_active(member) {
            return;
        }
        // The released simulator and the paper's text accept signals in any order.
        let is_ordered = !matches!(self.config.protocol, Protocol::Simulator | Protocol::Text);
        if is_ordered && !self.latest.accepts(member, number) {
            return;
        }
        match signal {
            Signal::IdleAdd => {
                self.spine.view_mut().idle_mut().insert(member);
            }
            Signal::IdleRemove => {
                self.spine.view_mut().idle_mut().remove(member);
            }
            Signal::Load(load) => self.spine.refresh(&Report::new(member, load, 0)),
        }
    }

    /// Samples all queues (Horus, Fig. 12a: the longest over the mean). Also gives the leaves their periodic
    /// timer, unless a leaf is modelled like the process, which has its own.
    fn sample(&mut self) {
        for rack in 0..self.leaves.len() {
            if self.leaves[rack].alive && !self.config.as_process {
                for core in 0..self.config.cores.count {
                    self.tick(rack, core);
                    // After losses of tasks or replies, only time releases credits.
                    self.release_all(rack, core);
                }
            }
        }
        let (mut longest, mut sum) = (0, 0_u64);
        for worker in 0..self.engine.workers.len() {
            let tasks = self.engine.tasks_at(worker);
            longest = longest.max(tasks);
            sum += u64::from(tasks);
        }
        let mean = sum as f64 / self.engine.workers.len() as f64;
        self.engine.sample(longest.into(), mean);
        self.engine.after(SAMPLE_TICKS, event::SAMPLE, 0);
    }

    /// Executes a step of the script.
    fn act(&mut self, step: usize) {
        match &self.config.script[step].action {
            Action::FailLeaf(rack) => self.fail_leaf(*rack),
            Action::LeaveOut(rack) => self.spine.set_active(Member(*rack as u16), false),
            Action::FailSpine => self.spine_alive = false,
            Action::ReplaceSpine => self.replace_spine(),
            action => self.engine.act(step, action),
        }
    }

    /// Fails a leaf. Its queued tasks are lost.
    fn fail_leaf(&mut self, rack: usize) {
        self.leaves[rack].alive = false;
        for core in 0..self.leaves[rack].dispatchers.len() {
            while let Some(task) = self.leaves[rack].dispatchers[core].pop() {
                self.lose(task);
            }
        }
    }

    /// Replaces the spine by a backup, which has no loads yet and knows only which racks are alive.
    fn replace_spine(&mut self) {
        let config = self.config;
        let view = View::heap(config.racks.len(), 1).remove(0);
        let seed = stream_seed(config.seed, usize::MAX, 1);
        let mut spine = Dispatcher::new(&config.spine, view, Core::ONLY, seed);
        let sizes: Vec<f64> = config.racks.iter().map(|&workers| workers as f64).collect();
        spine.set_rates(&sizes);
        for (rack, leaf) in self.leaves.iter().enumerate() {
            spine.set_active(Member(rack as u16), leaf.alive);
        }
        (self.spine, self.spine_alive) = (spine, true);
        self.latest = Latest::new(config.racks.len());
    }

    /// Returns the outcome. Each task counts as two decisions if a spine chose its leaf.
    fn finish(self) -> Outcome {
        let views =
            self.leaves.iter().flat_map(|leaf| &leaf.dispatchers).map(WatchedDispatcher::view);
        let picks = views.chain([self.spine.view()]).map(|view| view.picks);
        let (probes, resubmits) = picks.fold((0, 0), |(probes, resubmits), picks| {
            (probes + picks.messages, resubmits + picks.resubmits)
        });
        let outcome = self.engine.finish(TICKS_PER_US);
        let decisions = outcome.tasks * if self.leaves.len() > 1 { 2 } else { 1 };
        Outcome { messages: outcome.messages + probes, resubmits, decisions, ..outcome }
    }
}

impl<W: Watcher> Leaf<W> {
    /// Creates the leaf of a rack whose workers begin at index `first_worker`.
    fn new(config: &Config, rack: usize, workers: usize, first_worker: usize, watch: W) -> Self {
        let Cores { count, delay, interval, .. } = config.cores;
        let (views, exchanges) = match delay {
            Some(_) if count > 1 => View::of_cores(workers, count),
            _ => (View::heap(workers, count), Vec::new()),
        };
        let dispatcher = |(index, view)| {
            // A leaf has several cores only if it is the only one, so `rack + index` is unique.
            let seed = stream_seed(config.seed, rack + index, 0);
            let mut dispatcher = Dispatcher::new(&config.leaf, view, Core { index, count }, seed);
            if config.benchmarks {
                dispatcher.run_benchmarks();
            }
            let speeds = &config.speeds[first_worker..first_worker + workers];
            // A leaf in lockstep has configured speeds only if they differ. This must
            // make the same decisions. On one core, equal speeds change none.
            if count == 1 || speeds.iter().any(|speed| *speed != speeds[0]) {
                dispatcher.set_rates(speeds);
            }
            WatchedDispatcher::new(dispatcher, watch.clone())
        };
        let signals = Signals::new(config.protocol, workers);
        Self {
            dispatchers: views.into_iter().enumerate().map(dispatcher).collect(),
            exchanges,
            // The cores take turns.
            exchange_at: (0..count as u64).map(|core| core * interval / count as u64).collect(),
            signals,
            signals_sent: 0,
            first_worker,
            total: 0,
            alive: true,
            last_service: 0,
        }
    }
}

impl Config {
    /// Returns the arrivals of the load, and of each load change in the script.
    ///
    /// # Errors
    /// If arrivals and a load contradict each other.
    pub fn schedules(&self) -> Result<(Schedule, Vec<Option<Schedule>>), String> {
        let capacity: f64 = self.speeds.iter().sum();
        let rate = |load| load * capacity / (self.service.mean_ns() / 1e9);
        script::schedules(&self.arrivals, self.load, &self.script, rate, HZ)
    }

    /// Creates the engine of a run, which computes the tasks' digest if `has_digest`.
    ///
    /// # Errors
    /// Same as for [`Self::schedules`].
    pub fn engine<P>(&self, has_digest: bool) -> Result<Engine<Route<P>>, String> {
        let setup = Setup {
            tasks: self.tasks,
            warmup: self.warmup,
            speeds: &self.speeds,
            speed_unit: 1.0,
            schedules: self.schedules()?,
            hop: self.hop.clone(),
            node_delay: self.node_delay,
            loss: self.loss,
            sharing: self
                .sharing
                .map(|times| (self.speeds.len(), times.sharing(ticks_of, usize::MAX))),
            measures_classes: self.measures_classes,
            has_digest,
            tick_ps: TICK_PS,
            seed: self.seed,
            observer: &self.observer,
        };
        let ticks = |step: &Step| (step.at_ns * TICKS_PER_US / 1e3) as u64;
        Ok(Engine::new(setup, self.script.iter().map(ticks)))
    }
}

/// Returns a service time in ticks.
#[inline]
#[must_use]
pub fn ticks_of(service_ns: f64) -> u64 {
    (service_ns * (TICKS_PER_US / 1e3)) as u64
}

/// Returns the service time in nanoseconds that a worker of this speed reports, from ticks at speed 1.
#[inline]
#[must_use]
pub fn reported_ns(service: u64, speed: f64) -> u32 {
    (service as f64 * 1e3 / TICKS_PER_US / speed) as u32
}

/// Adds the controller's reaction to each failure: it removes the rack, or starts another spine.
#[must_use]
pub fn with_detection(script: Vec<Step>) -> Vec<Step> {
    let mut all = script.clone();
    for step in script {
        let action = match step.action {
            Action::FailLeaf(rack) => Action::LeaveOut(rack),
            Action::FailSpine => Action::ReplaceSpine,
            _ => continue,
        };
        let at_ns = step.at_ns + DETECTION_TICKS as f64 * 1e3 / TICKS_PER_US;
        all.push(Step { at_ns, action });
    }
    all
}
