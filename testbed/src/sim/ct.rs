//! Model `ct`: servers and dispatchers in continuous time, with or without a delay between them.
//!
//! Times are in mean service times of an average server. A task's response time runs from its arrival at a
//! dispatcher to the end of its service. Tasks, reports and replies take the delay. Answers to probes
//! ([`super::knowledge`]) take it too, unless configured to be immediate.
//!
//! Some policies request benchmark tasks ([`super::engine`]). They are copies of the dispatcher's last task. Reports
//! exclude them.
//!
//! The decisions are a separate part ([`Dispatchers`]): either policies driven by this model, or leaves with
//! their complete dataplane ([`crate::lockstep::leaves`]).

use std::convert::Infallible;

use rand::Rng as _;
use wedjat::policy::member::{MemberSide, Notify};
use wedjat::policy::{
    Core, Dispatcher, Placement, PolicySpec, ProbeKind, QueueingDispatcher, Rng, Task, stream_seed,
};
use wedjat::state::{Decision, Load, Member, Report, View};
use wedjat_pktgen::arrival::{Arrivals, Schedule};
use wedjat_pktgen::seed::{Stream, StreamSeed};
use wedjat_pktgen::service::Service;

use super::engine::{BENCHMARK, Engine, Flight, NextEvent, Setup};
use super::events::event;
use super::hop::Hop;
use super::knowledge::Knowledge;
use super::outcome::Outcome;
use super::script::{self, Step};
use super::stats::Observer;

/// Ticks per mean service time.
const UNIT_TICKS: f64 = 1e9;
/// Ticks between samples of all queues.
const SAMPLE_TICKS: u64 = UNIT_TICKS as u64;

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

    /// Processes the reply to this task without its queue length, for policies that do not learn it from replies, and
    /// for implementations that send probes.
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

/// State of a run.
pub struct Sim<'a, D> {
    config: &'a Config,
    /// Engine with the servers as its workers. A task's route is its dispatcher.
    engine: Engine<u16>,
    /// Delay between dispatchers and servers in ticks.
    delay: u64,
    /// Rule by which servers send load reports.
    notify: Notify,
    dispatchers: D,
    /// Service time of each dispatcher's last task, which benchmark tasks copy.
    last_services: Vec<u64>,
    /// Rule of each server that decides when it sends load reports.
    sides: Vec<MemberSide>,
    knowledge: Knowledge,
    /// Time for which a task waits for the answers to its probes; 0 if its dispatcher decides at once.
    probe_round_trip: u64,
    /// Stream of the dispatchers that tasks go to.
    choice: Stream,
    /// Random numbers of the servers, for example of the dispatcher that a report goes to.
    members: Rng,
    /// Number of tasks that wait at dispatchers.
    waiting: u64,
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
        let side = |number| MemberSide::new(notify, number, config.dispatchers);
        let stream = |purpose| StreamSeed::derive(config.seed, purpose, 0).stream();
        let mut sim = Self {
            config,
            engine: config.engine()?,
            delay,
            notify,
            dispatchers: dispatchers(&knowledge),
            last_services: vec![0; config.dispatchers],
            sides: (0..servers).map(side).collect(),
            knowledge,
            probe_round_trip: if probe_kind == ProbeKind::Some { 2 * probe_delay } else { 0 },
            choice: stream("dispatchers"),
            members: stream("members"),
            waiting: 0,
        };
        sim.engine.after(SAMPLE_TICKS, event::SAMPLE, 0);
        Ok(sim)
    }

    /// Runs until all tasks have ended; a recorded run also until all replies and reports have arrived. At equal
    /// times an arrival comes first.
    ///
    /// # Errors
    /// If a dispatcher fails.
    pub fn run(&mut self) -> Result<(), D::Error> {
        while let Some(due) = self.engine.next(u64::MAX) {
            match due {
                NextEvent::Arrival => self.arrive()?,
                NextEvent::Event(event::AT_WORKER, task) => self.at_server(task as u32),
                NextEvent::Event(event::DONE, task) => self.done(task as u32)?,
                NextEvent::Event(event::REPLY, task) => {
                    self.engine.end_await();
                    self.reply(task as u32)?;
                }
                NextEvent::Event(event::REPORT, report) => {
                    self.engine.end_await();
                    self.report(report)?;
                }
                NextEvent::Event(event::ANSWERED, task) => self.decide(task as u32)?,
                NextEvent::Event(event::PROBES, task) => self.on_probes(task as u32),
                NextEvent::Event(event::SCRIPT, step) => {
                    self.engine.act(step as usize, &self.config.script[step as usize].action);
                }
                // `event::SAMPLE`. There is no timer.
                NextEvent::Event(..) | NextEvent::Timer => self.sample()?,
            }
        }
        Ok(())
    }

    /// Returns the time in nanoseconds, which the policies' timers count.
    #[inline]
    fn now_ns(&self) -> u64 {
        (self.engine.now as f64 / UNIT_TICKS * self.config.service.mean_ns()) as u64
    }

    /// Schedules an event after the delay; without a delay it happens immediately.
    #[inline]
    fn after_delay(&mut self, kind: u64, argument: u64) -> Result<(), D::Error> {
        if self.delay > 0 {
            if kind != event::AT_WORKER {
                self.engine.await_reply();
            }
            self.engine.after(self.delay, kind, argument);
            return Ok(());
        }
        match kind {
            event::AT_WORKER => {
                self.at_server(argument as u32);
                Ok(())
            }
            event::REPLY => self.reply(argument as u32),
            _ => self.report(argument),
        }
    }

    /// Starts the next task at a random dispatcher, which decides at once or after the answers to its probes.
    fn arrive(&mut self) -> Result<(), D::Error> {
        let service = &self.config.service;
        let ticks = |ns| (ns / service.mean_ns() * UNIT_TICKS) as u64;
        // Scales 32 random bits to an index.
        let bits = u64::from(self.choice.next_u64() as u32);
        let index = (bits * self.config.dispatchers as u64) >> 32;
        let task = self.engine.arrive(service, ticks, index as u16);
        self.engine.flights[task].class = 0; // the model has no classes
        // Probes arrive at the servers halfway through the round trip.
        let sends_probes = self.dispatchers.sends_probes();
        if sends_probes {
            let (now_ns, number) = (self.now_ns(), self.engine.flights[task].number);
            self.dispatchers.send_probes(index as usize, now_ns, number)?;
        }
        if self.probe_round_trip > 0 {
            self.engine.after(self.probe_round_trip, event::ANSWERED, task.into());
            if sends_probes {
                self.engine.after(self.probe_round_trip / 2, event::PROBES, task.into());
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
        let Engine { workers, flights, .. } = &self.engine;
        let queue = |member: Member| workers[member.index()].queue.len();
        self.dispatchers.on_probes(flights[task].number, queue);
    }

    /// Lets the task's dispatcher decide, with its current knowledge of the queues.
    #[inline]
    fn decide(&mut self, task: u32) -> Result<(), D::Error> {
        let Flight { route, number, service, .. } = self.engine.flights[task];
        let index = usize::from(route);
        self.last_services[index] = service;
        self.tick(index)?;
        self.knowledge.advance(self.engine.now);
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
            let service = self.last_services[index];
            let task = self.engine.add_benchmark(member.index(), service, index as u16);
            self.after_delay(event::AT_WORKER, u64::from(task))?;
        }
        Ok(())
    }

    /// Executes a decision: sends the task to its server. Returns false if the task waits or there was none.
    #[inline]
    fn dispatch(&mut self, placement: Placement<u32>) -> Result<bool, D::Error> {
        let placement = placement.unwrap_or_else(|_| unreachable!("all servers are there"));
        let Some((task, pick)) = placement else { return Ok(false) };
        let flight = &mut self.engine.flights[task];
        flight.worker = pick.member.0.into();
        self.knowledge.on_send(flight.route, pick.member.0);
        self.after_delay(event::AT_WORKER, u64::from(task)).map(|()| true)
    }

    /// Queues a task at its server.
    #[inline]
    fn at_server(&mut self, task: u32) {
        let Flight { number, worker, route, .. } = self.engine.flights[task];
        self.engine.at_worker(task);
        if number != BENCHMARK {
            let queue = self.engine.workers[worker as usize].queue.len();
            self.sides[worker as usize].on_tasks(route.into(), 1);
            self.knowledge.on_arrival(self.engine.now, route, worker as u16, queue);
        }
    }

    /// Ends a task at its server, and sends the reply and a load report if one is due.
    #[inline]
    fn done(&mut self, task: u32) -> Result<(), D::Error> {
        let member = self.engine.flights[task].worker as usize;
        if !self.engine.done(task, member) {
            // A benchmark task has a reply, but causes no load report.
            return self.after_delay(event::REPLY, task.into());
        }
        let queue = self.engine.workers[member].queue.len();
        let dispatcher = self.sides[member].on_done(queue, &mut self.members);
        self.knowledge.on_departure(self.engine.now, member as u16, queue);
        let queue = self.engine.flights[task].queue;
        self.after_delay(event::REPLY, task.into())?;
        if let Some(dispatcher) = dispatcher {
            // Dispatchers that process only some of the reports count these themselves.
            self.engine.messages += u64::from(self.notify != Notify::Always);
            let argument = (dispatcher as u64) << 32 | (member as u64) << 16 | u64::from(queue);
            self.after_delay(event::REPORT, argument)?;
        }
        Ok(())
    }

    /// Delivers a reply to the dispatcher. The reply carries the queue length only by rule [`Notify::Reply`], and not
    /// for dispatchers that send probes as messages.
    #[inline]
    fn reply(&mut self, task: u32) -> Result<(), D::Error> {
        let flight = self.engine.flights[task];
        self.engine.flights.remove(task);
        let index = usize::from(flight.route);
        let (member, load) = (Member(flight.worker as u16), Load::tasks(flight.queue));
        if self.notify == Notify::Reply && !self.dispatchers.sends_probes() {
            let service_ns = flight.service as f64 / UNIT_TICKS * self.config.service.mean_ns()
                / self.engine.workers[member.index()].speed;
            let decision = (flight.number != BENCHMARK).then(|| Decision::of(flight.number));
            let report = Report { member, load, service_ns: service_ns as u32, decision };
            self.tick(index)?;
            self.dispatchers.reply(index, &report)?;
        } else {
            let report = Report::new(member, load, 0);
            self.dispatchers.answered(index, self.now_ns(), flight.number, &report)?;
        }
        self.engine.answered += u64::from(flight.number != BENCHMARK);
        self.release()
    }

    /// Offers waiting tasks again at every dispatcher: a reply to one dispatcher may free a place at a server
    /// for a task of another.
    #[inline]
    fn release(&mut self) -> Result<(), D::Error> {
        if self.waiting == 0 {
            return Ok(());
        }
        self.knowledge.advance(self.engine.now);
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
        let flights = &self.engine.flights;
        let next = self.dispatchers.next(index, |task| flights[task].number)?;
        self.dispatch(next)
    }

    /// Delivers a load report to its dispatcher.
    fn report(&mut self, argument: u64) -> Result<(), D::Error> {
        let dispatcher = (argument >> 32 & 0xFFFF) as usize;
        let (member, load) = (Member((argument >> 16) as u16), Load::tasks(argument as u16));
        self.dispatchers.report(dispatcher, self.now_ns(), &Report::new(member, load, 0))
    }

    /// Samples the imbalance of the queues. Also gives each dispatcher a tick, for policies with timers.
    fn sample(&mut self) -> Result<(), D::Error> {
        (0..self.config.dispatchers).try_for_each(|index| self.tick(index))?;
        let workers = &self.engine.workers;
        let longest = workers.iter().map(|server| server.queue.len()).max().unwrap_or(0);
        let mean = self.engine.in_system as f64 / workers.len() as f64;
        self.engine.sample(longest.into(), mean);
        self.engine.after(SAMPLE_TICKS, event::SAMPLE, 0);
        Ok(())
    }

    /// Returns the outcome and the dispatchers.
    #[must_use]
    pub fn finish(self) -> (Outcome, D) {
        let (probes, resubmits) = self.dispatchers.picks();
        let outcome = self.engine.finish(UNIT_TICKS);
        let outcome = Outcome { messages: outcome.messages + probes, resubmits, ..outcome };
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

    /// Creates the engine of a run.
    fn engine(&self) -> Result<Engine<u16>, String> {
        let setup = Setup {
            tasks: self.tasks,
            warmup: self.warmup,
            speeds: &self.speeds,
            speed_unit: self.speed_unit,
            schedules: self.schedules()?,
            hop: Hop::Zero,
            node_delay: 0,
            loss: 0.0,
            is_recorded: self.digest,
            tick_ps: self.service.mean_ns() * 1e3 / UNIT_TICKS,
            seed: self.seed,
            observer: &self.observer,
        };
        let ticks = |step: &Step| (step.at_ns / self.service.mean_ns() * UNIT_TICKS) as u64;
        Ok(Engine::new(setup, self.script.iter().map(ticks)))
    }
}
