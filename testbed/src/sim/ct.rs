//! Servers and dispatchers in continuous time (the model `ct`), with or without a delay between them.
//!
//! Times are in mean service times of an average server. A task's response runs from its arrival at a
//! dispatcher to the end of its service. Tasks, reports and replies take the delay, and so do the answers to
//! probes ([`super::knowledge`]) unless they are asked to come at once.
//!
//! Benchmark tasks that a policy asks for are copies of its dispatcher's last task. A server does them when it
//! has nothing else to do, to their end, and keeps a few; they are no tasks in what is reported.

use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use rand::Rng as _;
use wedjat::policy::fifo::{Fifo, Slab};
use wedjat::policy::member::{MemberSide, Notify};
use wedjat::policy::{
    Asks, Core, Dispatcher, Offered, PolicySpec, QueueingDispatcher, Rng, Task, stream_seed,
};
use wedjat::state::{Decision, Load, Member, Report, View};
use wedjat_pktgen::arrival::{Arrivals, Schedule};
use wedjat_pktgen::seed::{Stream, StreamSeed};
use wedjat_pktgen::service::Service;

use super::events::Events;
use super::knowledge::Knowledge;
use super::outcome::Outcome;
use super::script::{self, Action, Step, shuffle};
use super::stats::{Recorder, histogram, record};

/// Ticks of the mean service time.
const UNIT_TICKS: f64 = 1e9;
/// Between two looks at all queues.
const SAMPLE_TICKS: u64 = UNIT_TICKS as u64;
/// The number of a benchmark task.
const BENCHMARK: u64 = u64::MAX;
/// Benchmark tasks that a server keeps; others are dropped.
const BENCHMARKS_KEPT: u32 = 8;

/// Everything that a run of this model is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Service rates, 1 being the mean.
    pub speeds: Vec<f64>,
    /// What the mean was before.
    pub speed_unit: f64,
    /// Dispatchers.
    pub dispatchers: usize,
    /// The policy.
    pub policy: PolicySpec,
    /// Service times at rate 1, of which the mean is the unit.
    pub service: Service,
    /// Arrivals, which go to random dispatchers.
    pub arrivals: Arrivals,
    /// Offered work as a share of the servers' capacity.
    pub load: f64,
    /// Between dispatchers and servers, each way.
    pub delay_ns: f64,
    /// Probes are answered at once, whatever the delay.
    pub probes_at_once: bool,
    /// What happens when.
    pub script: Vec<Step>,
    /// Tasks to run.
    pub tasks: u64,
    /// Share of them that is not measured.
    pub warmup: f64,
    /// Seed of all streams.
    pub seed: u64,
    /// Counts tasks that arrived.
    pub progress: ProgressBar,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    arrived: u64,
    service: u64,
    number: u64,
    dispatcher: u16,
    member: u16,
    /// Tasks at the server when this one was done.
    queue: u16,
}

struct Server {
    queue: Fifo,
    benchmarks: Fifo,
    runs_benchmark: bool,
    speed: f64,
    side: MemberSide,
}

struct Node {
    dispatcher: QueueingDispatcher<u32>,
    /// Service of the last task, which benchmark tasks copy.
    last_service: u64,
}

/// What policies may know of a task.
#[inline]
fn task_of(flight: &Flight) -> Task {
    Task { decision: Some(Decision::of(flight.number)), ..Task::default() }
}

mod event {
    pub const AT_SERVER: u64 = 0;
    pub const DONE: u64 = 1;
    pub const REPLY: u64 = 2;
    /// Dispatcher, member, queue.
    pub const REPORT: u64 = 3;
    pub const SAMPLE: u64 = 4;
    pub const SCRIPT: u64 = 5;
    /// The answers to a task's probes are there.
    pub const ANSWERED: u64 = 6;
    pub const KIND_SHIFT: u32 = 60;
}

struct Sim<'a> {
    config: &'a Config,
    now: u64,
    delay: u64,
    notify: Notify,
    events: Events,
    flights: Slab<Flight>,
    nodes: Vec<Node>,
    servers: Vec<Server>,
    knowledge: Knowledge,
    /// Tasks wait so long for the answers to their probes.
    wait: u64,
    schedule: Schedule,
    /// Those of the script's steps.
    changes: Vec<Option<Schedule>>,
    /// The schedule's time 0.
    schedule_start: u64,
    arrivals: Stream,
    service: Stream,
    choice: Stream,
    shuffles: Stream,
    members: Rng,
    recorder: Recorder,
    imbalance: Histogram<u64>,
    in_system: u64,
    /// Tasks that wait at dispatchers.
    waiting: u64,
    messages: u64,
}

/// Runs it.
///
/// # Errors
/// When arrivals and rate contradict each other.
pub fn run(config: &Config) -> Result<Outcome, String> {
    let mut sim = Sim::new(config)?;
    sim.run();
    Ok(sim.finish())
}

impl<'a> Sim<'a> {
    fn new(config: &'a Config) -> Result<Self, String> {
        let servers = config.speeds.len();
        let notify = config.policy.notify();
        let delay = (config.delay_ns / config.service.mean_ns() * UNIT_TICKS) as u64;
        let asks = config.policy.asks();
        let probe_delay = if config.probes_at_once { 0 } else { delay };
        let knowledge = Knowledge::new(servers, config.dispatchers, probe_delay, asks);
        let views = View::heap(servers, config.dispatchers).into_iter().enumerate();
        let node = |(index, mut view): (usize, View)| {
            view.set_queues(knowledge.of(index));
            let core = Core { index, count: config.dispatchers };
            let seed = stream_seed(config.seed, index, 0);
            let mut dispatcher = Dispatcher::new(&config.policy, view, core, seed);
            dispatcher.run_benchmarks();
            dispatcher.set_rates(&config.speeds);
            let dispatcher = QueueingDispatcher::unbounded(dispatcher);
            Node { dispatcher, last_service: 0 }
        };
        let server = |(number, &speed): (usize, &f64)| Server {
            queue: Fifo::EMPTY,
            benchmarks: Fifo::EMPTY,
            runs_benchmark: false,
            speed,
            side: MemberSide::new(notify, number, config.dispatchers),
        };
        let (schedule, changes) = config.schedules()?;
        let nodes = views.map(node).collect();
        let stream = |purpose| StreamSeed::derive(config.seed, purpose, 0).stream();
        let mut sim = Self {
            config,
            now: 0,
            delay,
            notify,
            events: Events::default(),
            flights: Slab::default(),
            nodes,
            servers: config.speeds.iter().enumerate().map(server).collect(),
            knowledge,
            wait: if asks == Asks::Some { 2 * probe_delay } else { 0 },
            schedule,
            changes,
            schedule_start: 0,
            arrivals: stream("arrivals"),
            service: stream("service"),
            choice: stream("dispatchers"),
            shuffles: stream("shuffles"),
            members: stream("members"),
            recorder: Recorder::new(config.tasks, config.warmup, &config.progress),
            imbalance: histogram(),
            in_system: 0,
            waiting: 0,
            messages: 0,
        };
        sim.events.push(SAMPLE_TICKS, event::SAMPLE << event::KIND_SHIFT);
        for (number, step) in config.script.iter().enumerate() {
            let ticks = (step.at_ns / config.service.mean_ns() * UNIT_TICKS) as u64;
            sim.events.push(ticks, event::SCRIPT << event::KIND_SHIFT | number as u64);
        }
        Ok(sim)
    }

    fn run(&mut self) {
        let mut left = self.config.tasks;
        let mut arrival = self.schedule.advance(&mut self.arrivals);
        while left > 0 || self.in_system > 0 {
            if left > 0 && arrival + self.schedule_start <= self.events.next_time() {
                self.now = arrival + self.schedule_start;
                self.arrive();
                left -= 1;
                arrival = self.schedule.advance(&mut self.arrivals);
                continue;
            }
            let Some((time, event)) = self.events.pop() else { break };
            self.now = time;
            match event >> event::KIND_SHIFT {
                event::AT_SERVER => self.at_server(event as u32),
                event::DONE => self.done(event as u32),
                event::REPLY => self.reply(event as u32),
                event::REPORT => self.report(event),
                event::ANSWERED => self.decide(event as u32),
                event::SCRIPT => {
                    if self.act(event as u32 as usize) {
                        arrival = self.schedule.advance(&mut self.arrivals);
                    }
                }
                _ => self.sample(),
            }
        }
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        (self.now as f64 / UNIT_TICKS * self.config.service.mean_ns()) as u64
    }

    /// Has something happen after the delay: at once when there is none.
    #[inline]
    fn after_delay(&mut self, kind: u64, about: u64) {
        if self.delay > 0 {
            self.events.push(self.now + self.delay, kind << event::KIND_SHIFT | about);
            return;
        }
        match kind {
            event::AT_SERVER => self.at_server(about as u32),
            event::REPLY => self.reply(about as u32),
            _ => self.report(about),
        }
    }

    fn arrive(&mut self) {
        let (service_ns, _) = self.config.service.sample_ns(&mut self.service);
        let number = self.recorder.arrive(self.in_system);
        self.in_system += 1;
        let bits = u64::from(self.choice.next_u64() as u32);
        let index = (bits * self.nodes.len() as u64) >> 32;
        let task = self.flights.add(Flight {
            arrived: self.now,
            service: (service_ns / self.config.service.mean_ns() * UNIT_TICKS) as u64,
            number,
            dispatcher: index as u16,
            member: 0,
            queue: 0,
        });
        if self.wait > 0 {
            let event = event::ANSWERED << event::KIND_SHIFT | u64::from(task);
            self.events.push(self.now + self.wait, event);
        } else {
            self.decide(task);
        }
    }

    #[inline]
    fn decide(&mut self, task: u32) {
        let index = usize::from(self.flights[task].dispatcher);
        self.nodes[index].last_service = self.flights[task].service;
        self.tick(index);
        self.knowledge.advance(self.now);
        let offered = self.nodes[index].dispatcher.offer(task_of(&self.flights[task]), task);
        if !self.dispatch(offered) {
            self.waiting += 1;
        }
    }

    /// Lets a dispatcher see time pass, and sends the benchmark tasks that it wants.
    #[inline]
    fn tick(&mut self, index: usize) {
        let now_ns = self.now_ns();
        self.nodes[index].dispatcher.tick(now_ns);
        while let Some(member) = self.nodes[index].dispatcher.next_benchmark() {
            let task = self.flights.add(Flight {
                arrived: self.now,
                service: self.nodes[index].last_service,
                number: BENCHMARK,
                dispatcher: index as u16,
                member: member.0,
                queue: 0,
            });
            self.messages += 1;
            self.after_delay(event::AT_SERVER, u64::from(task));
        }
    }

    /// Does what was decided; false when the task waits, or there was none.
    #[inline]
    fn dispatch(&mut self, offered: Offered<u32>) -> bool {
        let offered = offered.unwrap_or_else(|_| unreachable!("all servers are there"));
        let Some((task, pick)) = offered else { return false };
        let flight = &mut self.flights[task];
        flight.member = pick.member.0;
        self.knowledge.sent(flight.dispatcher, flight.member);
        self.after_delay(event::AT_SERVER, u64::from(task));
        true
    }

    #[inline]
    fn at_server(&mut self, task: u32) {
        let flight = self.flights[task];
        if flight.number == BENCHMARK {
            return self.benchmark_at_server(task);
        }
        let server = &mut self.servers[usize::from(flight.member)];
        server.queue.push(task, &mut self.flights);
        server.side.on_tasks(usize::from(flight.dispatcher), 1);
        self.knowledge.came(self.now, flight.dispatcher, flight.member, server.queue.len());
        if server.queue.len() == 1 && !server.runs_benchmark {
            self.start(task);
        }
    }

    fn benchmark_at_server(&mut self, task: u32) {
        let member = usize::from(self.flights[task].member);
        let server = &mut self.servers[member];
        if server.benchmarks.len() == BENCHMARKS_KEPT {
            self.flights.remove(task);
            return;
        }
        server.benchmarks.push(task, &mut self.flights);
        if server.queue.is_empty() && !server.runs_benchmark {
            self.start_benchmark(member);
        }
    }

    /// A server with nothing else to do does a benchmark task, if it has one.
    #[inline]
    fn start_benchmark(&mut self, member: usize) {
        let server = &mut self.servers[member];
        if let Some(task) = server.benchmarks.pop(&self.flights) {
            server.runs_benchmark = true;
            self.start(task);
        }
    }

    fn benchmark_done(&mut self, task: u32) {
        let member = usize::from(self.flights[task].member);
        let server = &mut self.servers[member];
        server.runs_benchmark = false;
        self.flights[task].queue = server.queue.len().min(u32::from(u16::MAX)) as u16;
        match server.queue.first() {
            None => self.start_benchmark(member),
            Some(next) => self.start(next),
        }
        self.after_delay(event::REPLY, u64::from(task));
    }

    #[inline]
    fn start(&mut self, task: u32) {
        let flight = &self.flights[task];
        let speed = self.servers[usize::from(flight.member)].speed;
        let ticks = (flight.service as f64 / speed) as u64;
        self.events.push(self.now + ticks, event::DONE << event::KIND_SHIFT | u64::from(task));
    }

    #[inline]
    fn done(&mut self, task: u32) {
        if self.flights[task].number == BENCHMARK {
            return self.benchmark_done(task);
        }
        let member = usize::from(self.flights[task].member);
        let server = &mut self.servers[member];
        server.queue.pop(&self.flights);
        let (queue, next) = (server.queue.len(), server.queue.first());
        let told = server.side.on_done(queue, &mut self.members);
        self.knowledge.left(self.now, member as u16, queue);
        match next {
            None => self.start_benchmark(member),
            Some(next) => self.start(next),
        }
        let queue = queue.min(u32::from(u16::MAX)) as u16;
        let flight = &mut self.flights[task];
        flight.queue = queue;
        self.recorder.done(flight.number, self.now - flight.arrived);
        self.in_system -= 1;
        self.after_delay(event::REPLY, u64::from(task));
        if let Some(told) = told {
            // Dispatchers that take only some of the reports count those themselves.
            self.messages += u64::from(self.notify != Notify::Always);
            let about = (told as u64) << 32 | (member as u64) << 16 | u64::from(queue);
            self.after_delay(event::REPORT, about);
        }
    }

    #[inline]
    fn reply(&mut self, task: u32) {
        let flight = self.flights[task];
        self.flights.remove(task);
        let index = usize::from(flight.dispatcher);
        let member = Member(flight.member);
        if self.notify == Notify::Reply {
            let service_ns = flight.service as f64 / UNIT_TICKS * self.config.service.mean_ns()
                / self.servers[member.index()].speed;
            let load = Load::tasks(flight.queue);
            let decision = (flight.number != BENCHMARK).then(|| Decision::of(flight.number));
            let report = Report { member, load, service_ns: service_ns as u32, decision };
            self.tick(index);
            let dispatcher = &mut self.nodes[index].dispatcher;
            match flight.number {
                BENCHMARK => dispatcher.refresh(&report),
                _ => {
                    dispatcher.reply(&report);
                }
            }
        } else {
            self.nodes[index].dispatcher.view_mut().answered(member);
        }
        self.release();
    }

    /// Offers waiting tasks again, at every dispatcher: replies to one may make room for another's.
    #[inline]
    fn release(&mut self) {
        if self.waiting == 0 {
            return;
        }
        self.knowledge.advance(self.now);
        for index in 0..self.nodes.len() {
            while self.release_at(index) {
                self.waiting -= 1;
            }
        }
    }

    /// Offers a dispatcher's first waiting task again; false when it waits on, or there is none.
    #[inline]
    fn release_at(&mut self, index: usize) -> bool {
        let (node, flights) = (&mut self.nodes[index], &self.flights);
        let next = node.dispatcher.next(|&task| task_of(&flights[task]));
        self.dispatch(next)
    }

    fn report(&mut self, about: u64) {
        let told = (about >> 32 & 0xFFFF) as usize;
        let (member, load) = (Member((about >> 16) as u16), Load::tasks(about as u16));
        self.nodes[told].dispatcher.refresh(&Report::new(member, load, 0));
    }

    /// Does what the script says; true when the arrivals changed.
    fn act(&mut self, number: usize) -> bool {
        match &self.config.script[number].action {
            Action::Speed { workers, speed } => {
                for server in &mut self.servers[workers.clone()] {
                    server.speed = *speed / self.config.speed_unit;
                }
            }
            Action::Shuffle => {
                let mut speeds: Vec<_> = self.servers.iter().map(|server| server.speed).collect();
                shuffle(&mut speeds, &mut self.shuffles);
                let servers = self.servers.iter_mut().zip(speeds);
                servers.for_each(|(server, speed)| server.speed = speed);
            }
            Action::Load(_) => {
                if let Some(schedule) = self.changes[number].take() {
                    (self.schedule, self.schedule_start) = (schedule, self.now);
                    return true;
                }
            }
            // What fails is a leaf or a spine, and there are none here.
            _ => {}
        }
        false
    }

    fn sample(&mut self) {
        (0..self.nodes.len()).for_each(|index| self.tick(index));
        let most = self.servers.iter().map(|server| server.queue.len()).max().unwrap_or(0);
        if self.in_system > 0 {
            let mean = self.in_system as f64 / self.servers.len() as f64;
            record(&mut self.imbalance, (f64::from(most) / mean * 1e3) as u64);
        }
        self.events.push(self.now + SAMPLE_TICKS, event::SAMPLE << event::KIND_SHIFT);
    }

    fn finish(self) -> Outcome {
        let picks = self.nodes.iter().map(|node| node.dispatcher.view().picks);
        let (probes, resubmits) =
            picks.fold((0, 0), |sum, picks| (sum.0 + picks.messages, sum.1 + picks.resubmits));
        Outcome {
            messages: self.messages + probes,
            resubmits,
            imbalance: self.imbalance,
            ..Outcome::of(self.recorder, self.servers.len(), UNIT_TICKS)
        }
    }
}

impl Config {
    /// Arrivals of the load, and of each load that the script changes to.
    ///
    /// # Errors
    /// When arrivals and a load contradict each other.
    pub fn schedules(&self) -> Result<(Schedule, Vec<Option<Schedule>>), String> {
        let capacity: f64 = self.speeds.iter().sum();
        let rate = |load| load * capacity;
        script::schedules(&self.arrivals, self.load, &self.script, rate, UNIT_TICKS)
    }
}
