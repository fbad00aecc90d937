//! Model `ct`: servers and dispatchers in continuous time, with or without a delay between them.
//!
//! Times are in mean service times of an average server. A task's response time runs from its arrival at a
//! dispatcher to the end of its service. Tasks, reports and replies take the delay. Answers to probes
//! ([`super::knowledge`]) take it too, unless configured to be immediate.
//!
//! Some policies request benchmark tasks, which measure a server's speed. They are copies of the dispatcher's last
//! task. A server runs them when idle, without interruption, and queues only a few. Reports exclude them.
//!
//! The decisions are a separate part ([`Dispatchers`]): either policies driven by this model, or leaves with
//! their complete dataplane ([`crate::lockstep::leaves`]).

use std::convert::Infallible;

use hdrhistogram::Histogram;
use rand::Rng as _;
use wedjat::policy::fifo::{Fifo, Slab};
use wedjat::policy::member::{MemberSide, Notify};
use wedjat::policy::{
    Core, Dispatcher, Placement, PolicySpec, ProbeKind, QueueingDispatcher, Rng, Task, stream_seed,
};
use wedjat::state::{Decision, Load, Member, Report, View};
use wedjat_pktgen::arrival::{Arrivals, Schedule};
use wedjat_pktgen::seed::{Stream, StreamSeed};
use wedjat_pktgen::service::Service;

use super::digest::{Digest, Record};
use super::events::Events;
use super::knowledge::Knowledge;
use super::outcome::Outcome;
use super::script::{self, Action, Step, shuffle};
use super::stats::{Observer, Recorder, TaskEnd, histogram, record};

/// Ticks per mean service time.
const UNIT_TICKS: f64 = 1e9;
/// Ticks between samples of all queues.
const SAMPLE_TICKS: u64 = UNIT_TICKS as u64;
/// Number that marks benchmark tasks; no other task has it.
const BENCHMARK: u64 = u64::MAX;
/// Maximum number of benchmark tasks in a server's queue. The server drops further ones.
const BENCHMARKS_MAX: u32 = 8;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Service rates, with mean 1.
    pub speeds: Vec<f64>,
    /// Mean rate before it was scaled to 1; the script's speeds are divided by it.
    pub speed_unit: f64,
    /// Number of dispatchers.
    pub dispatchers: usize,
    /// Policy.
    pub policy: PolicySpec,
    /// Service times at rate 1. Their mean is the unit of time.
    pub service: Service,
    /// Arrivals; each goes to a random dispatcher.
    pub arrivals: Arrivals,
    /// Offered work as a fraction of the servers' capacity.
    pub load: f64,
    /// Delay between dispatchers and servers, each way.
    pub delay_ns: f64,
    /// True if probes (questions to servers for their queue length) are answered immediately, regardless of
    /// the delay.
    pub probes_at_once: bool,
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

/// Decides on each dispatcher's tasks and receives the servers' reports. An implementation may fail.
pub trait Dispatchers {
    /// Error of an implementation.
    type Error;

    /// Advances the time of dispatcher `index`.
    ///
    /// # Errors
    /// If the implementation fails.
    fn tick(&mut self, index: usize, now_ns: u64) -> Result<(), Self::Error>;

    /// Returns the next server that should run a benchmark task.
    fn next_benchmark(&mut self, index: usize) -> Option<Member>;

    /// Returns true if the implementation sends probes as messages before it decides. Otherwise the model supplies
    /// the answers to probes.
    fn sends_probes(&self) -> bool {
        false
    }

    /// Sends the probes of task `_number`. The decision follows after the servers' answers.
    ///
    /// # Errors
    /// If the implementation fails.
    fn send_probes(
        &mut self,
        _index: usize,
        _now_ns: u64,
        _number: u64,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Handles the arrival of a task's probes at the servers: `queue` returns each server's current queue length.
    fn on_probes(&mut self, _number: u64, _queue: impl Fn(Member) -> u32) {}

    /// Decides on a new task with this number; `task` is the model's handle.
    ///
    /// # Errors
    /// If the implementation fails.
    fn offer(
        &mut self,
        index: usize,
        now_ns: u64,
        number: u64,
        task: u32,
    ) -> Result<Placement<u32>, Self::Error>;

    /// Decides on the first queued task, if any; `number` returns the number of a handle.
    ///
    /// # Errors
    /// If the implementation fails.
    fn next(
        &mut self,
        index: usize,
        number: impl Fn(u32) -> u64,
    ) -> Result<Placement<u32>, Self::Error>;

    /// Processes the reply to a task, or to a benchmark task, with the server's queue. Reports of benchmark
    /// tasks have no decision.
    ///
    /// # Errors
    /// If the implementation fails.
    fn reply(&mut self, index: usize, report: &Report) -> Result<(), Self::Error>;

    /// Processes the reply to this task, for policies that ignore the queue length in replies.
    ///
    /// # Errors
    /// If the implementation fails.
    fn answered(
        &mut self,
        index: usize,
        now_ns: u64,
        number: u64,
        report: &Report,
    ) -> Result<(), Self::Error>;

    /// Processes a server's load report.
    ///
    /// # Errors
    /// If the implementation fails.
    fn report(&mut self, index: usize, now_ns: u64, report: &Report) -> Result<(), Self::Error>;

    /// Returns the number of messages sent or requested, and of decisions that need two passes on a switch.
    fn picks(&self) -> (u64, u64);
}

/// The model's own decisions: policies with their views.
pub struct Policies(Vec<QueueingDispatcher<u32>>);

impl Policies {
    /// Creates the configured dispatchers, each with its view of the queues.
    fn new(config: &Config, knowledge: &Knowledge) -> Self {
        let views = View::heap(config.speeds.len(), config.dispatchers).into_iter().enumerate();
        let node = |(index, mut view): (usize, View)| {
            // Policies that probe read the queues here.
            view.set_queues(knowledge.of(index));
            let core = Core { index, count: config.dispatchers };
            let seed = stream_seed(config.seed, index, 0);
            let mut dispatcher = Dispatcher::new(&config.policy, view, core, seed);
            dispatcher.run_benchmarks();
            dispatcher.set_rates(&config.speeds);
            QueueingDispatcher::unbounded(dispatcher)
        };
        Self(views.map(node).collect())
    }
}

/// Returns the task as the policy sees it.
#[inline]
fn task_of(number: u64) -> Task {
    Task { decision: Some(Decision::of(number)), ..Task::default() }
}

impl Dispatchers for Policies {
    type Error = Infallible;

    #[inline]
    fn tick(&mut self, index: usize, now_ns: u64) -> Result<(), Infallible> {
        self.0[index].tick(now_ns);
        Ok(())
    }

    #[inline]
    fn next_benchmark(&mut self, index: usize) -> Option<Member> {
        self.0[index].next_benchmark()
    }

    #[inline]
    fn offer(
        &mut self,
        index: usize,
        _now_ns: u64,
        number: u64,
        task: u32,
    ) -> Result<Placement<u32>, Infallible> {
        Ok(self.0[index].offer(task_of(number), task))
    }

    #[inline]
    fn next(
        &mut self,
        index: usize,
        number: impl Fn(u32) -> u64,
    ) -> Result<Placement<u32>, Infallible> {
        Ok(self.0[index].next(|&task| task_of(number(task))))
    }

    #[inline]
    fn reply(&mut self, index: usize, report: &Report) -> Result<(), Infallible> {
        match report.decision {
            // The reply to a benchmark task, which is not outstanding.
            None => self.0[index].refresh(report),
            Some(_) => _ = self.0[index].reply(report),
        }
        Ok(())
    }

    #[inline]
    fn answered(
        &mut self,
        index: usize,
        _now_ns: u64,
        _number: u64,
        report: &Report,
    ) -> Result<(), Infallible> {
        self.0[index].view_mut().answered(report.member);
        Ok(())
    }

    #[inline]
    fn report(&mut self, index: usize, _now_ns: u64, report: &Report) -> Result<(), Infallible> {
        self.0[index].refresh(report);
        Ok(())
    }

    fn picks(&self) -> (u64, u64) {
        let picks = self.0.iter().map(|dispatcher| dispatcher.view().picks);
        picks.fold((0, 0), |sum, picks| (sum.0 + picks.messages, sum.1 + picks.resubmits))
    }
}

/// A task in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// Time of its arrival at the dispatcher, in ticks.
    arrived: u64,
    /// Start of its service.
    started: u64,
    /// Service time at rate 1, in ticks.
    service: u64,
    number: u64,
    dispatcher: u16,
    /// Index of its server.
    member: u16,
    /// Tasks at the server when this one completed.
    queue: u16,
}

/// A server.
struct Server {
    /// Tasks in order of arrival; the first one runs, unless a benchmark task does.
    queue: Fifo,
    /// Benchmark tasks that wait.
    benchmarks: Fifo,
    runs_benchmark: bool,
    speed: f64,
    /// Rule that decides when the server sends load reports.
    side: MemberSide,
}

/// Kinds of events: the top bits of an event's number. The task or another argument follows.
mod event {
    /// A task arrives at its server.
    pub const AT_SERVER: u64 = 0;
    /// A server completes a task.
    pub const DONE: u64 = 1;
    /// A reply arrives at its dispatcher.
    pub const REPLY: u64 = 2;
    /// A load report arrives at its dispatcher. The argument packs dispatcher, member and queue.
    pub const REPORT: u64 = 3;
    /// All queues are sampled.
    pub const SAMPLE: u64 = 4;
    /// A step of the script.
    pub const SCRIPT: u64 = 5;
    /// The answers to a task's probes have arrived.
    pub const ANSWERED: u64 = 6;
    /// A task's probes have arrived at the servers.
    pub const PROBES: u64 = 7;
    /// Number of bits of the argument.
    pub const KIND_SHIFT: u32 = 60;
}

/// State of a run.
pub struct Sim<'a, D> {
    config: &'a Config,
    /// Current time in ticks.
    now: u64,
    /// Delay between dispatchers and servers in ticks.
    delay: u64,
    /// Rule by which servers send load reports.
    notify: Notify,
    events: Events,
    /// Tasks in flight. Events and queues refer to them by slot.
    flights: Slab<Flight>,
    dispatchers: D,
    /// Service time of each dispatcher's last task, which benchmark tasks copy.
    last_services: Vec<u64>,
    servers: Vec<Server>,
    knowledge: Knowledge,
    /// Time for which a task waits for the answers to its probes; 0 if its dispatcher decides at once.
    probe_round_trip: u64,
    schedule: Schedule,
    /// Schedules of the script's load changes, by step; `None` for other steps.
    changes: Vec<Option<Schedule>>,
    /// Time at which the current schedule began: its arrivals count from there.
    schedule_start: u64,
    arrivals: Stream,
    service: Stream,
    /// Stream of the dispatchers that tasks go to.
    choice: Stream,
    shuffles: Stream,
    /// Random numbers of the servers, for example of the dispatcher that a report goes to.
    members: Rng,
    recorder: Recorder,
    /// Samples of the longest queue over the mean queue, in thousandths.
    imbalance: Histogram<u64>,
    /// Tasks that no server has finished.
    in_system: u64,
    /// Number of tasks that wait at dispatchers.
    waiting: u64,
    /// Load reports and benchmark tasks.
    messages: u64,
    digest: Digest,
    /// Replies that reached their dispatcher.
    answered: u64,
    /// Replies and reports in flight. A recorded run ends once none is left.
    in_flight: u64,
}

/// Runs the model.
///
/// # Errors
/// If arrivals and rate contradict each other.
pub fn run(config: &Config) -> Result<Outcome, String> {
    let mut sim = Sim::new(config, |knowledge| Policies::new(config, knowledge))?;
    match sim.run() {
        Ok(()) => Ok(sim.finish().0),
        Err(never) => match never {},
    }
}

impl<'a, D: Dispatchers> Sim<'a, D> {
    /// Creates a run. `dispatchers` may read the modelled knowledge of queues.
    ///
    /// # Errors
    /// If arrivals and rate contradict each other.
    pub fn new(
        config: &'a Config,
        dispatchers: impl FnOnce(&Knowledge) -> D,
    ) -> Result<Self, String> {
        let servers = config.speeds.len();
        let notify = config.policy.notify();
        let delay = (config.delay_ns / config.service.mean_ns() * UNIT_TICKS) as u64;
        let probe_kind = config.policy.asks();
        let probe_delay = if config.probes_at_once { 0 } else { delay };
        let knowledge = Knowledge::new(servers, config.dispatchers, probe_delay, probe_kind);
        let server = |(number, &speed): (usize, &f64)| Server {
            queue: Fifo::EMPTY,
            benchmarks: Fifo::EMPTY,
            runs_benchmark: false,
            speed,
            side: MemberSide::new(notify, number, config.dispatchers),
        };
        let (schedule, changes) = config.schedules()?;
        let stream = |purpose| StreamSeed::derive(config.seed, purpose, 0).stream();
        let mut sim = Self {
            config,
            now: 0,
            delay,
            notify,
            events: Events::default(),
            flights: Slab::default(),
            dispatchers: dispatchers(&knowledge),
            last_services: vec![0; config.dispatchers],
            servers: config.speeds.iter().enumerate().map(server).collect(),
            knowledge,
            probe_round_trip: if probe_kind == ProbeKind::Some { 2 * probe_delay } else { 0 },
            schedule,
            changes,
            schedule_start: 0,
            arrivals: stream("arrivals"),
            service: stream("service"),
            choice: stream("dispatchers"),
            shuffles: stream("shuffles"),
            members: stream("members"),
            recorder: Recorder::new(config.tasks, config.warmup, &config.observer),
            imbalance: histogram(),
            in_system: 0,
            waiting: 0,
            messages: 0,
            digest: Digest::default(),
            answered: 0,
            in_flight: 0,
        };
        sim.events.push(SAMPLE_TICKS, event::SAMPLE << event::KIND_SHIFT);
        for (number, step) in config.script.iter().enumerate() {
            let ticks = (step.at_ns / config.service.mean_ns() * UNIT_TICKS) as u64;
            sim.events.push(ticks, event::SCRIPT << event::KIND_SHIFT | number as u64);
        }
        Ok(sim)
    }

    /// Runs until all tasks have ended; a recorded run also until all replies have arrived. At equal times an
    /// arrival comes first.
    ///
    /// # Errors
    /// If a dispatcher fails.
    pub fn run(&mut self) -> Result<(), D::Error> {
        let mut remaining = self.config.tasks;
        let mut arrival = self.schedule.advance(&mut self.arrivals);
        while remaining > 0 || self.in_system > 0 || self.config.digest && self.in_flight > 0 {
            if remaining > 0 && arrival + self.schedule_start <= self.events.next_time() {
                self.now = arrival + self.schedule_start;
                self.arrive()?;
                remaining -= 1;
                arrival = self.schedule.advance(&mut self.arrivals);
                continue;
            }
            let Some((time, event)) = self.events.pop() else { return Ok(()) };
            self.now = time;
            match event >> event::KIND_SHIFT {
                event::AT_SERVER => self.at_server(event as u32)?,
                event::DONE => self.done(event as u32)?,
                event::REPLY => {
                    self.in_flight -= 1;
                    self.reply(event as u32)?;
                }
                event::REPORT => {
                    self.in_flight -= 1;
                    self.report(event)?;
                }
                event::ANSWERED => self.decide(event as u32)?,
                event::PROBES => self.on_probes(event as u32),
                event::SCRIPT => {
                    if self.act(event as u32 as usize) {
                        arrival = self.schedule.advance(&mut self.arrivals);
                    }
                }
                _ => self.sample()?,
            }
        }
        Ok(())
    }

    /// Returns the time in nanoseconds, which the policies' timers count.
    #[inline]
    fn now_ns(&self) -> u64 {
        (self.now as f64 / UNIT_TICKS * self.config.service.mean_ns()) as u64
    }

    /// Schedules an event after the delay; without a delay it happens immediately.
    #[inline]
    fn after_delay(&mut self, kind: u64, argument: u64) -> Result<(), D::Error> {
        if self.delay > 0 {
            self.in_flight += u64::from(kind != event::AT_SERVER);
            self.events.push(self.now + self.delay, kind << event::KIND_SHIFT | argument);
            return Ok(());
        }
        match kind {
            event::AT_SERVER => self.at_server(argument as u32),
            event::REPLY => self.reply(argument as u32),
            _ => self.report(argument),
        }
    }

    /// Starts the next task at a random dispatcher, which decides at once or after the answers to its probes.
    fn arrive(&mut self) -> Result<(), D::Error> {
        let (service_ns, _) = self.config.service.sample_ns(&mut self.service);
        let number = self.recorder.arrive(self.in_system);
        self.in_system += 1;
        let bits = u64::from(self.choice.next_u64() as u32);
        let index = (bits * self.config.dispatchers as u64) >> 32;
        let task = self.flights.add(Flight {
            arrived: self.now,
            started: 0,
            service: (service_ns / self.config.service.mean_ns() * UNIT_TICKS) as u64,
            number,
            dispatcher: index as u16,
            member: 0,
            queue: 0,
        });
        // Probes arrive at the servers halfway through the round trip.
        let sends_probes = self.dispatchers.sends_probes();
        if sends_probes {
            self.dispatchers.send_probes(index as usize, self.now_ns(), number)?;
        }
        if self.probe_round_trip > 0 {
            let event = event::ANSWERED << event::KIND_SHIFT | u64::from(task);
            self.events.push(self.now + self.probe_round_trip, event);
            if sends_probes {
                let event = event::PROBES << event::KIND_SHIFT | u64::from(task);
                self.events.push(self.now + self.probe_round_trip / 2, event);
            }
            return Ok(());
        }
        if sends_probes {
            self.on_probes(task);
        }
        self.decide(task)
    }

    /// Passes the servers' queue lengths to the probes of a task.
    fn on_probes(&mut self, task: u32) {
        let servers = &self.servers;
        let queue = |member: Member| servers[member.index()].queue.len();
        self.dispatchers.on_probes(self.flights[task].number, queue);
    }

    /// Lets the task's dispatcher decide, with its current knowledge of the queues.
    #[inline]
    fn decide(&mut self, task: u32) -> Result<(), D::Error> {
        let (index, number) =
            (usize::from(self.flights[task].dispatcher), self.flights[task].number);
        self.last_services[index] = self.flights[task].service;
        self.tick(index)?;
        self.knowledge.advance(self.now);
        let placement = self.dispatchers.offer(index, self.now_ns(), number, task)?;
        if !self.dispatch(placement)? {
            self.waiting += 1;
        }
        Ok(())
    }

    /// Advances a dispatcher's time, and sends the benchmark tasks that it requests.
    #[inline]
    fn tick(&mut self, index: usize) -> Result<(), D::Error> {
        self.dispatchers.tick(index, self.now_ns())?;
        while let Some(member) = self.dispatchers.next_benchmark(index) {
            let task = self.flights.add(Flight {
                arrived: self.now,
                started: 0,
                service: self.last_services[index],
                number: BENCHMARK,
                dispatcher: index as u16,
                member: member.0,
                queue: 0,
            });
            self.messages += 1;
            self.after_delay(event::AT_SERVER, u64::from(task))?;
        }
        Ok(())
    }

    /// Executes a decision: sends the task to its server. Returns false if the task waits or there was none.
    #[inline]
    fn dispatch(&mut self, placement: Placement<u32>) -> Result<bool, D::Error> {
        let placement = placement.unwrap_or_else(|_| unreachable!("all servers are there"));
        let Some((task, pick)) = placement else { return Ok(false) };
        let flight = &mut self.flights[task];
        flight.member = pick.member.0;
        self.knowledge.on_send(flight.dispatcher, flight.member);
        self.after_delay(event::AT_SERVER, u64::from(task)).map(|()| true)
    }

    /// Queues a task at its server.
    #[inline]
    fn at_server(&mut self, task: u32) -> Result<(), D::Error> {
        let flight = self.flights[task];
        if flight.number == BENCHMARK {
            self.benchmark_at_server(task);
            return Ok(());
        }
        let server = &mut self.servers[usize::from(flight.member)];
        server.queue.push(task, &mut self.flights);
        server.side.on_tasks(usize::from(flight.dispatcher), 1);
        self.knowledge.on_arrival(self.now, flight.dispatcher, flight.member, server.queue.len());
        if server.queue.len() == 1 && !server.runs_benchmark {
            self.start(task);
        }
        Ok(())
    }

    /// Queues a benchmark task at its server, which runs it when no other task waits.
    fn benchmark_at_server(&mut self, task: u32) {
        let member = usize::from(self.flights[task].member);
        let server = &mut self.servers[member];
        if server.benchmarks.len() == BENCHMARKS_MAX {
            self.flights.remove(task);
            return;
        }
        server.benchmarks.push(task, &mut self.flights);
        if server.queue.is_empty() && !server.runs_benchmark {
            self.start_benchmark(member);
        }
    }

    /// Starts a benchmark task at an idle server, if it has one.
    #[inline]
    fn start_benchmark(&mut self, member: usize) {
        let server = &mut self.servers[member];
        if let Some(task) = server.benchmarks.pop(&self.flights) {
            server.runs_benchmark = true;
            self.start(task);
        }
    }

    /// Ends a benchmark task, starts the server's next task, and sends the reply.
    fn benchmark_done(&mut self, task: u32) -> Result<(), D::Error> {
        let member = usize::from(self.flights[task].member);
        let server = &mut self.servers[member];
        server.runs_benchmark = false;
        self.flights[task].queue = server.queue.len().min(u32::from(u16::MAX)) as u16;
        match server.queue.first() {
            None => self.start_benchmark(member),
            Some(next) => self.start(next),
        }
        self.after_delay(event::REPLY, u64::from(task))
    }

    /// Starts a task at its server.
    #[inline]
    fn start(&mut self, task: u32) {
        let flight = &mut self.flights[task];
        flight.started = self.now;
        let speed = self.servers[usize::from(flight.member)].speed;
        let ticks = (flight.service as f64 / speed) as u64;
        self.events.push(self.now + ticks, event::DONE << event::KIND_SHIFT | u64::from(task));
    }

    /// Ends a task at its server, starts the next one, and sends the reply and a load report if one is due.
    #[inline]
    fn done(&mut self, task: u32) -> Result<(), D::Error> {
        if self.flights[task].number == BENCHMARK {
            return self.benchmark_done(task);
        }
        let member = usize::from(self.flights[task].member);
        let server = &mut self.servers[member];
        server.queue.pop(&self.flights);
        let (queue, next) = (server.queue.len(), server.queue.first());
        let dispatcher = server.side.on_done(queue, &mut self.members);
        self.knowledge.on_departure(self.now, member as u16, queue);
        match next {
            None => self.start_benchmark(member),
            Some(next) => self.start(next),
        }
        let queue = queue.min(u32::from(u16::MAX)) as u16;
        let flight = &mut self.flights[task];
        flight.queue = queue;
        let flight = *flight;
        let ticks = self.now - flight.arrived;
        self.recorder.done(flight.number, ticks);
        self.recorder.end(self.config.service.mean_ns() * 1e3 / UNIT_TICKS, || TaskEnd {
            number: flight.number,
            class: 0,
            worker: Some(member),
            arrived: flight.arrived,
            service: Some(flight.service),
            response: Ok(ticks),
        });
        if self.config.digest {
            self.digest.add([flight.number, member as u64, flight.started, ticks]);
        }
        self.in_system -= 1;
        self.after_delay(event::REPLY, u64::from(task))?;
        if let Some(dispatcher) = dispatcher {
            // Dispatchers that process only some of the reports count these themselves.
            self.messages += u64::from(self.notify != Notify::Always);
            let argument = (dispatcher as u64) << 32 | (member as u64) << 16 | u64::from(queue);
            self.after_delay(event::REPORT, argument)?;
        }
        Ok(())
    }

    /// Delivers a reply to the dispatcher. The reply carries the queue length only by rule [`Notify::Reply`].
    #[inline]
    fn reply(&mut self, task: u32) -> Result<(), D::Error> {
        let flight = self.flights[task];
        self.flights.remove(task);
        let index = usize::from(flight.dispatcher);
        let (member, load) = (Member(flight.member), Load::tasks(flight.queue));
        if self.notify == Notify::Reply && !self.dispatchers.sends_probes() {
            let service_ns = flight.service as f64 / UNIT_TICKS * self.config.service.mean_ns()
                / self.servers[member.index()].speed;
            let decision = (flight.number != BENCHMARK).then(|| Decision::of(flight.number));
            let report = Report { member, load, service_ns: service_ns as u32, decision };
            self.tick(index)?;
            self.dispatchers.reply(index, &report)?;
        } else {
            let report = Report::new(member, load, 0);
            self.dispatchers.answered(index, self.now_ns(), flight.number, &report)?;
        }
        self.answered += u64::from(flight.number != BENCHMARK);
        self.release()
    }

    /// Offers waiting tasks again at every dispatcher: a reply to one dispatcher may free a place at a server
    /// for a task of another.
    #[inline]
    fn release(&mut self) -> Result<(), D::Error> {
        if self.waiting == 0 {
            return Ok(());
        }
        self.knowledge.advance(self.now);
        for index in 0..self.config.dispatchers {
            while self.release_at(index)? {
                self.waiting -= 1;
            }
        }
        Ok(())
    }

    /// Offers a dispatcher's first waiting task again. Returns false if it still waits or there is none.
    #[inline]
    fn release_at(&mut self, index: usize) -> Result<bool, D::Error> {
        let flights = &self.flights;
        let next = self.dispatchers.next(index, |task| flights[task].number)?;
        self.dispatch(next)
    }

    /// Delivers a load report to its dispatcher.
    fn report(&mut self, argument: u64) -> Result<(), D::Error> {
        let dispatcher = (argument >> 32 & 0xFFFF) as usize;
        let (member, load) = (Member((argument >> 16) as u16), Load::tasks(argument as u16));
        self.dispatchers.report(dispatcher, self.now_ns(), &Report::new(member, load, 0))
    }

    /// Executes a scripted event. Returns true if the arrivals changed.
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
            // Failures of leaves and spines do not apply to this model.
            _ => {}
        }
        false
    }

    /// Samples the imbalance of the queues. Also gives each dispatcher a tick, for policies with timers.
    fn sample(&mut self) -> Result<(), D::Error> {
        (0..self.config.dispatchers).try_for_each(|index| self.tick(index))?;
        let longest = self.servers.iter().map(|server| server.queue.len()).max().unwrap_or(0);
        if self.in_system > 0 {
            let mean = self.in_system as f64 / self.servers.len() as f64;
            record(&mut self.imbalance, (f64::from(longest) / mean * 1e3) as u64);
        }
        self.events.push(self.now + SAMPLE_TICKS, event::SAMPLE << event::KIND_SHIFT);
        Ok(())
    }

    /// Returns the outcome and the dispatchers.
    #[must_use]
    pub fn finish(self) -> (Outcome, D) {
        let (probes, resubmits) = self.dispatchers.picks();
        let record = Record { digest: self.digest, answered: self.answered };
        let outcome = Outcome {
            messages: self.messages + probes,
            resubmits,
            imbalance: self.imbalance,
            record: self.config.digest.then_some(record),
            ..Outcome::of(self.recorder, self.servers.len(), UNIT_TICKS)
        };
        (outcome, self.dispatchers)
    }
}

impl Config {
    /// Returns the arrivals of the load, and of each load change in the script.
    ///
    /// # Errors
    /// If arrivals and a load contradict each other.
    pub fn schedules(&self) -> Result<(Schedule, Vec<Option<Schedule>>), String> {
        let capacity: f64 = self.speeds.iter().sum();
        let rate = |load| load * capacity;
        script::schedules(&self.arrivals, self.load, &self.script, rate, UNIT_TICKS)
    }
}
