//! Model `rack`: one pool of workers under one spine, with racks of workers behind leaves. The spine chooses
//! a leaf for each task, and the leaf a worker.
//!
//! The spine and the leaves are the dataplane's own [`Dispatcher`]s and [`Signals`]. The model covers the
//! network between them, and workers that serve in order of arrival. A task's response time runs from its
//! arrival at the spine to the end of its service; the reply's way back does not count. Benchmark tasks,
//! which measure a worker's speed, work as in [`super::ct`].

use hdrhistogram::Histogram;
use rand::Rng as _;
use wedjat::clock::ClockFile;
use wedjat::node::Timing;
use wedjat::policy::fifo::{Fifo, Slab};
use wedjat::policy::signals::{Latest, Protocol, Signal, Signals};
use wedjat::policy::{self, Core, Dispatcher, Placement, PolicySpec, Task, stream_seed};
use wedjat::state::{Decision, Exchange, Load, Member, Report, View};
use wedjat_pktgen::arrival::{Arrivals, Schedule};
use wedjat_pktgen::results::Status;
use wedjat_pktgen::seed::{Stream, StreamSeed};
use wedjat_pktgen::service::Service;

use super::digest::{Digest, Record};
use super::events::{Events, event};
use super::hop::{Hop, Hops, TICK_PS, TICKS_PER_US, from_ns, to_ns};
use super::outcome::Outcome;
use super::script::{self, Action, Step, shuffle};
use super::stats::{Observer, Recorder, TaskEnd, histogram, record};
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

/// Period of a leaf's timer, as in [`wedjat::node::Timing`] on a clock of nanoseconds.
const LEAF_TICK_NS: u64 = Timing { ticks_hz: ClockFile::TICKS_HZ }.tick();

/// Poll interval of a core with waiting tasks: 1 us. The core checks whether other cores have released credits
/// of a worker. A credit is the right to send a worker one more task.
const POLL_TICKS: u64 = TICKS_PER_US as u64;

/// Number that marks benchmark tasks; no other task has it.
const BENCHMARK: u64 = u64::MAX;
/// Maximum number of benchmark tasks in a worker's queue. The worker drops further ones.
const BENCHMARKS_MAX: u32 = 8;

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
    /// True if a reply reaches the core that sent the task; otherwise any core.
    pub steered: bool,
}

impl Cores {
    /// A single core.
    pub const ONE: Self = Self { count: 1, delay: Some(0), steered: true };

    /// Returns the core that receives the task with this number.
    #[must_use]
    pub fn of_task(self, number: u64) -> usize {
        self.of(number, 0x9E37_79B9_7F4A_7C15)
    }

    /// Returns the core that receives the reply to the task with this number.
    #[must_use]
    pub fn of_reply(self, number: u64) -> usize {
        if self.steered { self.of_task(number) } else { self.of(number, 0xD1B5_4A32_D192_ED03) }
    }

    /// Spreads numbers over cores, as a device's hash spreads flows. The mixing steps are like SplitMix64's.
    /// Different factors give independent spreads.
    fn of(self, number: u64, factor: u64) -> usize {
        let mixed = number.wrapping_add(1).wrapping_mul(factor);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed >> 33) as usize % self.count
    }
}

/// A packet for a leaf's core.
#[derive(Clone, Copy, Debug)]
enum Packet {
    /// A task.
    Task(u32),
    /// A worker's report, and true if it answers a benchmark task.
    Reply(Report, bool),
}

/// A task in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// Time of its arrival at the spine, in ticks.
    arrived: u64,
    /// Start of its service.
    started: u64,
    /// Service time at speed 1, in ticks.
    service: u64,
    number: u64,
    rack: u16,
    /// Index of its worker in the rack.
    member: u16,
    class: u16,
    /// Tasks at the worker when it answered.
    queue: u16,
    /// True if the spine chose the rack from its idle list, the list of racks with idle workers.
    idle_selected: bool,
}

/// A worker.
#[derive(Clone, Debug)]
struct Worker {
    /// Tasks in order; the first one runs.
    queue: Fifo,
    /// Benchmark tasks that wait.
    benchmarks: Fifo,
    runs_benchmark: bool,
    speed: f64,
}

/// A leaf.
#[derive(Debug)]
struct Leaf<W> {
    /// Dispatcher of each core.
    dispatchers: Vec<WatchedDispatcher<W>>,
    /// Messages between cores; empty for a single core or shared memory.
    exchanges: Vec<Exchange>,
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
fn task_of(flight: &Flight) -> Task {
    let decision = (flight.number != BENCHMARK).then(|| Decision::of(flight.number));
    Task { decision, ..Task::new(flight.class) }
}

/// Signals in flight as the argument of an event: rack (15 bits), number (16), kind (2), value (27). The value
/// has 16 bits after the point, so that averages up to 2047 tasks fit.
pub(crate) mod signal {
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

/// Random streams of a run, one per purpose.
#[derive(Clone, Debug)]
pub struct Streams {
    /// Gaps of arrivals.
    pub arrivals: Stream,
    /// Service times, drawn at arrival.
    pub service: Stream,
    /// Delays of hops, drawn when packets are sent.
    pub hops: Stream,
    /// Losses of packets, drawn when they are sent.
    pub loss: Stream,
    /// Shuffles of the speeds.
    pub shuffles: Stream,
}

impl Streams {
    /// Creates the streams of a run with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let stream = |purpose| StreamSeed::derive(seed, purpose, 0).stream();
        Self {
            arrivals: stream("arrivals"),
            service: stream("service"),
            hops: stream("hops"),
            loss: stream("loss"),
            shuffles: stream("shuffles"),
        }
    }
}

/// Additional state for a leaf that is modelled like the process.
#[derive(Clone, Debug, Default)]
struct Process {
    /// Next time of the leaf's periodic timer.
    next_tick_ns: u64,
    /// Replies in flight.
    replies: u64,
    /// Replies that reached the leaf.
    answered: u64,
    /// Digest of the completed tasks, to compare with a run of the process.
    digest: Digest,
}

/// State of a run.
pub struct Sim<'a, W> {
    config: &'a Config,
    /// Current time in ticks.
    now: u64,
    events: Events,
    /// Tasks in flight. Events and queues refer to them by slot.
    flights: Slab<Flight>,
    spine: Dispatcher,
    spine_alive: bool,
    /// Number of each leaf's latest signal, to ignore signals that arrive out of order.
    latest: Latest,
    leaves: Vec<Leaf<W>>,
    workers: Vec<Worker>,
    schedule: Schedule,
    /// Schedules of the script's load changes, by step; `None` for other steps.
    changes: Vec<Option<Schedule>>,
    /// Time at which the current schedule began: its arrivals count from there.
    schedule_start: u64,
    streams: Streams,
    recorder: Recorder,
    /// Tasks that no worker has finished.
    in_system: u64,
    /// Samples of the longest queue over the mean queue, in thousandths.
    imbalance: Histogram<u64>,
    /// Messages besides tasks and replies: signals and benchmark tasks.
    messages: u64,
    lost: u64,
    /// A packet is lost if a random number is below this.
    loss_below: u64,
    /// State of the leaf's timer and of the record; `None` if the leaf is not modelled like the process.
    process: Option<Process>,
}

/// Runs the model.
///
/// # Errors
/// If arrivals and rate contradict each other.
pub fn run(config: &Config) -> Result<Outcome, String> {
    run_watched(config, ())
}

/// Runs the model with a watcher on the leaves' dispatchers.
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
        let (queue, benchmarks, runs_benchmark) = (Fifo::EMPTY, Fifo::EMPTY, false);
        let worker = |&speed: &f64| Worker { queue, benchmarks, runs_benchmark, speed };
        let workers: Vec<_> = config.speeds.iter().map(worker).collect();
        let (schedule, changes) = config.schedules()?;
        let mut sim = Self {
            config,
            now: 0,
            events: Events::default(),
            flights: Slab::default(),
            spine,
            spine_alive: true,
            latest: Latest::new(config.racks.len()),
            leaves,
            workers,
            schedule,
            changes,
            schedule_start: 0,
            streams: Streams::new(config.seed),
            recorder: Recorder::new(config.tasks, config.warmup, &config.observer),
            in_system: 0,
            imbalance: histogram(),
            messages: 0,
            lost: 0,
            loss_below: loss_below(config.loss),
            process: config.as_process.then(Process::default),
        };
        sim.events.push(SAMPLE_TICKS, event::pack(event::SAMPLE, 0));
        // Only this protocol repeats signals. The offset by rack keeps the repetitions apart.
        if config.racks.len() > 1 && config.protocol == Protocol::Paper {
            for rack in 0..config.racks.len() as u64 {
                sim.events.push(REPEAT_TICKS + rack, event::pack(event::REPEAT, rack));
            }
        }
        for (number, step) in config.script.iter().enumerate() {
            let ticks = (step.at_ns * TICKS_PER_US / 1e3) as u64;
            sim.events.push(ticks, event::pack(event::SCRIPT, number as u64));
        }
        Ok(sim)
    }

    /// Handles arrivals, events and the timer in order of time, until all tasks have ended. At equal times, an
    /// arrival comes before events, and events before the timer.
    fn run(&mut self) {
        let mut remaining = self.config.tasks;
        let mut arrival = self.schedule.advance(&mut self.streams.arrivals);
        while remaining > 0 || self.in_system > 0 || self.awaits_replies() {
            let (timer, next) = (self.timer(), self.events.next_time());
            if remaining > 0 && arrival + self.schedule_start <= next.min(timer) {
                self.now = arrival + self.schedule_start;
                self.arrive();
                remaining -= 1;
                arrival = self.schedule.advance(&mut self.streams.arrivals);
                continue;
            }
            if timer < next {
                self.now = timer;
                self.poll(0, None);
                continue;
            }
            let Some((time, event)) = self.events.pop() else { break };
            self.now = time;
            let (kind, argument) = event::unpack(event);
            match kind {
                event::AT_LEAF => self.at_leaf(argument as u32),
                event::AT_WORKER => self.at_worker(argument as u32),
                event::DONE => self.done(argument as u32),
                event::REPLY => self.reply(argument as u32),
                event::SIGNAL => self.signal(argument),
                event::SAMPLE => self.sample(),
                event::REPEAT => self.repeat(argument as usize),
                event::EXCHANGE => self.receive(argument as usize),
                // `event::SCRIPT`
                _ => {
                    if self.act(argument as usize) {
                        arrival = self.schedule.advance(&mut self.streams.arrivals);
                    }
                }
            }
        }
    }

    /// Returns the next time of the leaf's timer. Only a leaf modelled like the process has one.
    #[inline]
    fn timer(&self) -> u64 {
        let alive = || self.leaves[0].alive;
        let process = self.process.as_ref().filter(|_| alive());
        process.map_or(u64::MAX, |process| from_ns(process.next_tick_ns))
    }

    /// Returns true if the leaf's timer is due, and re-arms it.
    #[inline]
    fn is_due(&mut self) -> bool {
        let now_ns = to_ns(self.now);
        let process = self.process.as_mut().filter(|process| now_ns >= process.next_tick_ns);
        process.map(|process| process.next_tick_ns = now_ns + LEAF_TICK_NS).is_some()
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
                self.leaves[rack].dispatchers[core].tick(to_ns(self.now));
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
            let later = self.now + delay.unwrap_or(POLL_TICKS);
            for core in (0..count).filter(|&core| core != receiver) {
                self.events.push(later, event::pack(event::EXCHANGE, core as u64));
            }
        }
    }

    /// Returns true if replies are in flight that must arrive before the end of the run.
    fn awaits_replies(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.replies > 0)
    }

    /// Draws whether a packet sent now is lost.
    #[inline]
    fn loses(&mut self) -> bool {
        self.loss_below > 0 && self.streams.loss.next_u64() < self.loss_below
    }

    /// Schedules the arrival of a packet after this many hops. A leaf also needs time to process a task before
    /// it sends the task to a worker.
    #[inline]
    fn send(&mut self, hops: u32, kind: u64, argument: u64) {
        let time = self.now + self.config.hop.sample(hops, &mut self.streams.hops);
        let processing = if kind == event::AT_WORKER { self.config.node_delay } else { 0 };
        self.events.push(time + processing, event::pack(kind, argument));
    }

    /// Sends a task on, unless its packet is lost.
    #[inline]
    fn send_task(&mut self, hops: u32, kind: u64, task: u32) {
        if self.loses() {
            self.lose(task);
        } else {
            self.send(hops, kind, u64::from(task));
        }
    }

    /// Removes a lost task. Lost benchmark tasks do not count.
    fn lose(&mut self, task: u32) {
        if self.flights[task].number != BENCHMARK {
            self.lost += 1;
            self.in_system -= 1;
            self.end(task, None, Err(Status::Lost));
        }
        self.flights.remove(task);
    }

    /// Records the end of a task.
    #[inline]
    fn end(&mut self, task: u32, worker: Option<usize>, response: Result<u64, Status>) {
        let Flight { number, class, arrived, service, .. } = self.flights[task];
        let service = Some(service);
        self.recorder.end(TICK_PS, || TaskEnd {
            number,
            class,
            worker,
            arrived,
            service,
            response,
        });
    }

    /// Starts the next task at the spine, which chooses a rack.
    fn arrive(&mut self) {
        let (service_ns, class) = self.config.service.sample_ns(&mut self.streams.service);
        let number = self.recorder.arrive(self.in_system);
        let mut flight = Flight {
            arrived: self.now,
            started: 0,
            service: (service_ns * (TICKS_PER_US / 1e3)) as u64,
            number,
            rack: 0,
            member: 0,
            class,
            queue: 0,
            idle_selected: false,
        };
        self.in_system += 1;
        let mut pick = None;
        if self.leaves.len() > 1 && self.spine_alive {
            let mut picks = [None];
            self.spine.schedule(&[task_of(&flight)], &mut picks);
            pick = picks[0];
            flight.rack = pick.map_or(0, |pick| pick.member.0);
            flight.idle_selected = pick.is_some_and(|pick| pick.idle);
        }
        let task = self.flights.add(flight);
        // A single leaf needs no choice by the spine.
        if pick.is_none() && (self.leaves.len() > 1 || !self.spine_alive) {
            self.lose(task);
            return;
        }
        self.send_task(self.config.hops.spine_leaf, event::AT_LEAF, task);
    }

    /// Delivers a task to its leaf, which may then signal the spine.
    #[inline]
    fn at_leaf(&mut self, task: u32) {
        let flight = self.flights[task];
        let rack = usize::from(flight.rack);
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
            let signal = leaf.signals.on_task(flight.idle_selected, idle);
            self.publish(rack, signal);
        }
    }

    /// Handles a task at a leaf's core.
    #[inline]
    fn task_at(&mut self, rack: usize, core: usize, task: u32) {
        let flight = self.flights[task];
        self.tick(rack, core);
        self.leaves[rack].dispatchers[core].note_arrival(task_of(&flight));
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
        let now_ns = to_ns(self.now);
        let dispatcher = &mut self.leaves[rack].dispatchers[core];
        if self.process.is_some() {
            if dispatcher.holds() {
                dispatcher.tick(now_ns);
            }
            return;
        }
        dispatcher.tick(now_ns);
        while let Some(member) = self.leaves[rack].dispatchers[core].next_benchmark() {
            let task = self.flights.add(Flight {
                arrived: self.now,
                started: 0,
                service: self.leaves[rack].last_service,
                number: BENCHMARK,
                rack: rack as u16,
                member: member.0,
                class: 0,
                queue: 0,
                idle_selected: false,
            });
            self.messages += 1;
            self.send_task(self.config.hops.leaf_worker, event::AT_WORKER, task);
        }
    }

    /// Offers a task to a dispatcher, which sends it to a worker or queues it.
    #[inline]
    fn offer(&mut self, rack: usize, core: usize, task: u32) {
        let placement =
            self.leaves[rack].dispatchers[core].offer(task_of(&self.flights[task]), task);
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
                self.flights[task].member = pick.member.0;
                self.send_task(self.config.hops.leaf_worker, event::AT_WORKER, task);
            }
            Ok(None) => return false,
            Err((task, _)) => self.lose(task),
        }
        true
    }

    /// Returns the index of a task's worker.
    #[inline]
    fn worker_of(&self, task: u32) -> usize {
        let flight = &self.flights[task];
        self.leaves[usize::from(flight.rack)].first_worker + usize::from(flight.member)
    }

    /// Queues a task at its worker.
    #[inline]
    fn at_worker(&mut self, task: u32) {
        let worker = self.worker_of(task);
        if self.flights[task].number == BENCHMARK {
            return self.benchmark_at_worker(worker, task);
        }
        self.workers[worker].queue.push(task, &mut self.flights);
        if self.workers[worker].queue.len() == 1 && !self.workers[worker].runs_benchmark {
            self.start(worker, task);
        }
    }

    /// Queues a benchmark task at its worker, which runs it when no other task waits.
    fn benchmark_at_worker(&mut self, number: usize, task: u32) {
        let worker = &mut self.workers[number];
        if worker.benchmarks.len() == BENCHMARKS_MAX {
            self.flights.remove(task);
            return;
        }
        worker.benchmarks.push(task, &mut self.flights);
        if worker.queue.is_empty() && !worker.runs_benchmark {
            self.start_benchmark(number);
        }
    }

    /// Starts a benchmark task at an idle worker, if it has one.
    #[inline]
    fn start_benchmark(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        if let Some(task) = worker.benchmarks.pop(&self.flights) {
            worker.runs_benchmark = true;
            self.start(number, task);
        }
    }

    /// Ends a benchmark task, starts the worker's next task, and sends the reply.
    fn benchmark_done(&mut self, number: usize, task: u32) {
        let worker = &mut self.workers[number];
        worker.runs_benchmark = false;
        self.flights[task].queue = worker.queue.len().min(u32::from(u16::MAX)) as u16;
        match worker.queue.first() {
            None => self.start_benchmark(number),
            Some(next) => self.start(number, next),
        }
        self.answer(task);
    }

    /// Sends a reply, unless its packet is lost.
    #[inline]
    fn answer(&mut self, task: u32) {
        if self.loses() {
            self.flights.remove(task);
        } else {
            self.send(self.config.hops.worker_leaf, event::REPLY, u64::from(task));
            self.process.iter_mut().for_each(|process| process.replies += 1);
        }
    }

    /// Starts a task at its worker.
    #[inline]
    fn start(&mut self, worker: usize, task: u32) {
        self.flights[task].started = self.now;
        let ticks = service_at(self.flights[task].service, self.workers[worker].speed);
        self.events.push(self.now + ticks, event::pack(event::DONE, u64::from(task)));
    }

    /// Ends a task at its worker, starts the worker's next one, and sends the reply.
    #[inline]
    fn done(&mut self, task: u32) {
        let worker = self.worker_of(task);
        if self.flights[task].number == BENCHMARK {
            return self.benchmark_done(worker, task);
        }
        let queue = &mut self.workers[worker].queue;
        queue.pop(&self.flights);
        let (next, remaining) = (queue.first(), queue.len());
        match next {
            None => self.start_benchmark(worker),
            Some(next) => self.start(worker, next),
        }
        let flight = &mut self.flights[task];
        flight.queue = remaining.min(u32::from(u16::MAX)) as u16;
        let flight = *flight;
        let (number, ticks) = (flight.number, self.now - flight.arrived);
        self.recorder.done(number, ticks);
        self.end(task, Some(worker), Ok(ticks));
        if let Some(process) = &mut self.process {
            process.digest.add([number, u64::from(flight.member), flight.started, ticks]);
        }
        self.in_system -= 1;
        self.answer(task);
    }

    /// Delivers a reply to its leaf, which may then signal the spine.
    #[inline]
    fn reply(&mut self, task: u32) {
        let flight = self.flights[task];
        self.flights.remove(task);
        let rack = usize::from(flight.rack);
        let has_spine = self.leaves.len() > 1;
        self.process.iter_mut().for_each(|process| process.replies -= 1);
        if !self.leaves[rack].alive {
            return;
        }
        self.process.iter_mut().for_each(|process| process.answered += 1);
        let core = self.config.cores.of_reply(flight.number);
        let leaf = &self.leaves[rack];
        let member = Member(flight.member);
        let speed = self.workers[leaf.first_worker + member.index()].speed;
        let report = Report {
            member,
            load: Load::tasks(flight.queue),
            service_ns: reported_ns(flight.service, speed),
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
            let (leaf, flights) = (&mut self.leaves[rack], &self.flights);
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
            let later = self.now + self.config.cores.delay.unwrap_or(0).max(POLL_TICKS);
            self.events.push(later, event::pack(event::EXCHANGE, core as u64));
        }
    }

    /// Lets a core publish its changes and receive those of other cores. Does nothing if cores share memory.
    #[inline]
    fn exchange(&mut self, rack: usize, core: usize) {
        let Leaf { dispatchers, exchanges, .. } = &mut self.leaves[rack];
        if let Some(exchange) = exchanges.get_mut(core) {
            policy::exchange(exchange, &mut dispatchers[core..=core], true);
        }
    }

    /// Sends waiting tasks of a core, if other cores have released credits. Returns true if at least one
    /// left.
    fn release_freed(&mut self, rack: usize, core: usize) -> bool {
        let may_release = self.leaves[rack].dispatchers[core].may_release();
        if may_release {
            let now_ns = to_ns(self.now);
            self.leaves[rack].dispatchers[core].tick(now_ns);
        }
        may_release && self.release_all(rack, core)
    }

    /// Sends a leaf's signal to the spine, if there is one.
    #[inline]
    fn publish(&mut self, rack: usize, signal: Option<Signal>) {
        let Some(signal) = signal else { return };
        self.messages += 1;
        let signals_sent = &mut self.leaves[rack].signals_sent;
        *signals_sent = signals_sent.wrapping_add(1);
        let bits = signal::pack(rack, *signals_sent, signal);
        if !self.loses() {
            self.send(self.config.hops.leaf_spine, event::SIGNAL, bits);
        }
    }

    /// Lets a leaf repeat its idleness signal, and schedules the next repetition.
    fn repeat(&mut self, rack: usize) {
        let leaf = &mut self.leaves[rack];
        if leaf.alive {
            let signal = leaf.signals.repeat();
            self.publish(rack, signal);
            self.events.push(self.now + REPEAT_TICKS, event::pack(event::REPEAT, rack as u64));
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
            if self.leaves[rack].alive && self.process.is_none() {
                for core in 0..self.config.cores.count {
                    self.tick(rack, core);
                    // After losses of tasks or replies, only time releases credits.
                    self.release_all(rack, core);
                }
            }
        }
        let (mut longest, mut sum) = (0, 0_u64);
        for worker in &self.workers {
            longest = longest.max(worker.queue.len());
            sum += u64::from(worker.queue.len());
        }
        if sum > 0 {
            let mean = sum as f64 / self.workers.len() as f64;
            record(&mut self.imbalance, (f64::from(longest) / mean * 1e3) as u64);
        }
        self.events.push(self.now + SAMPLE_TICKS, event::pack(event::SAMPLE, 0));
    }

    /// Executes a scripted event. Returns true if the arrivals changed.
    fn act(&mut self, number: usize) -> bool {
        let config = self.config;
        match &config.script[number].action {
            Action::Speed { workers, speed } => {
                for worker in workers.clone() {
                    self.workers[worker].speed = *speed;
                }
            }
            Action::Shuffle => {
                let mut speeds: Vec<_> = self.workers.iter().map(|worker| worker.speed).collect();
                shuffle(&mut speeds, &mut self.streams.shuffles);
                let workers = self.workers.iter_mut().zip(speeds);
                workers.for_each(|(worker, speed)| worker.speed = speed);
            }
            Action::Load(_) => {
                if let Some(schedule) = self.changes[number].take() {
                    (self.schedule, self.schedule_start) = (schedule, self.now);
                    return true;
                }
            }
            Action::FailLeaf(rack) => self.fail_leaf(*rack),
            Action::LeaveOut(rack) => self.spine.set_active(Member(*rack as u16), false),
            Action::FailSpine => self.spine_alive = false,
            Action::ReplaceSpine => self.replace_spine(),
            // The parser of the script refuses events of model `nodes`.
            Action::Traffic { .. } | Action::Shock { .. } | Action::Down(_) | Action::Up(_) => {}
        }
        false
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
        let tasks = self.recorder.arrived();
        Outcome {
            messages: self.messages + probes,
            resubmits,
            decisions: tasks * if self.leaves.len() > 1 { 2 } else { 1 },
            imbalance: self.imbalance,
            lost: self.lost,
            record: self
                .process
                .map(|process| Record { digest: process.digest, answered: process.answered }),
            ..Outcome::of(self.recorder, self.workers.len(), TICKS_PER_US)
        }
    }
}

impl<W: Watcher> Leaf<W> {
    /// Creates the leaf of a rack whose workers begin at index `first_worker`.
    fn new(config: &Config, rack: usize, workers: usize, first_worker: usize, watch: W) -> Self {
        let Cores { count, delay, .. } = config.cores;
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
            // A leaf in lockstep (see `crate::lockstep`) has configured speeds only if they differ. This must
            // make the same decisions.
            if count == 1 || speeds.iter().any(|speed| *speed != speeds[0]) {
                dispatcher.set_rates(speeds);
            }
            WatchedDispatcher::new(dispatcher, watch.clone())
        };
        let signals = Signals::new(config.protocol, workers);
        Self {
            dispatchers: views.into_iter().enumerate().map(dispatcher).collect(),
            exchanges,
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
}

/// Returns the threshold for this loss probability: a random number of 64 bits below it means a loss.
#[must_use]
pub fn loss_below(probability: f64) -> u64 {
    (probability * 64.0_f64.exp2()) as u64
}

/// Returns the service time, in ticks, of a worker of this speed for a service time at speed 1.
#[inline]
#[must_use]
pub fn service_at(service: u64, speed: f64) -> u64 {
    if speed == 1.0 { service } else { (service as f64 / speed) as u64 }
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
