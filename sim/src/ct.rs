//! Model `ct`: servers and dispatchers in continuous time, with or without a delay between them.
//!
//! The unit of reported times is the mean service time of an average server, which has 1e9 ticks. A task's
//! response time runs from its arrival at a dispatcher to the end of its service. Tasks, load reports and replies take
//! the delay. Probes ([`super::knowledge`]) and queue reports ([`QueueReports`]) take it too, unless configured to be
//! immediate.
//!
//! The dispatchers are cores of one leaf or independent leaves ([`DispatcherKind`]). All policies have the same
//! information about other dispatchers' tasks, which depends on the kind.
//!
//! Some policies request benchmark tasks ([`super::engine`]), which measure a server's speed and copy the dispatcher's
//! last task. Load reports exclude benchmark tasks.
//!
//! [`Dispatchers`] separates the decisions from the model. Implementations are policies driven by this model
//! ([`Policies`]), and leaves with their complete dataplane (lockstep).

use std::convert::Infallible;

use rand::Rng as _;
use wedjat_core::policy::member::{MemberSide, Notify};
use wedjat_core::policy::{
    self, ClassRules, Core, Dispatcher, Placement, PolicySpec, PreparedPolicy, QueueAccess,
    QueueingDispatcher, Rng, Task, stream_seed,
};
use wedjat_core::state::{DecisionNumber, Exchange, Load, Member, Report, View};
use wedjat_workload::arrival::{Arrivals, Schedule};
use wedjat_workload::seed::{Stream, StreamSeed};
use wedjat_workload::service::Service;

use super::engine::{BENCHMARK, Engine, NextEvent, Setup, SimTask};
use super::events::event;
use super::hop::Hop;
use super::knowledge::Knowledge;
use super::outcome::Outcome;
use super::reports::{QueueChange, QueueReports};
use super::script::{self, Step};
use super::sharing::SharingTimes;
use super::stats::Observer;

/// Ticks per mean service time.
const UNIT_TICKS: f64 = 1e9;
/// Ticks between samples of all queues.
const SAMPLE_TICKS: u64 = UNIT_TICKS as u64;

/// Role of the dispatchers, which decides what they know of each other's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatcherKind {
    /// Cores of one leaf. They exchange counts, loads and tokens without delay, as the dataplane's cores do. Probes
    /// read these counts at once.
    Cores,
    /// Independent leaves. Each has its own counts and the reports of replies to it. Policies that read all queues, or
    /// bound them, also receive each server's reports ([`QueueReports`]). Policies that probe some servers wait for the
    /// answers.
    Leaves,
}

impl DispatcherKind {
    /// Name in flags and rows.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Leaves => "leaves",
        }
    }
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Service rates, with mean 1.
    pub speeds: Vec<f64>,
    /// Mean service rate before it was scaled to 1. Speeds in the script are divided by it.
    pub speed_unit: f64,
    /// Number of dispatchers.
    pub dispatchers: usize,
    /// Role of the dispatchers.
    pub kind: DispatcherKind,
    /// Policy.
    pub policy: PolicySpec,
    /// Service times at rate 1. Their mean is the unit of time.
    pub service: Service,
    /// Arrival process. Each task goes to a random dispatcher.
    pub arrivals: Arrivals,
    /// Offered work as a fraction of the servers' capacity.
    pub load: f64,
    /// Delay in nanoseconds between dispatchers and servers, each way.
    pub delay_ns: f64,
    /// True if answers to probes (questions to servers for their queue length) and queue reports ([`QueueReports`])
    /// arrive immediately, regardless of the delay.
    pub probes_at_once: bool,
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

/// Decisions of all dispatchers, which have indices from 0 on. The model calls a method for each event.
pub trait Dispatchers {
    /// Error of the implementation.
    type Error;

    /// Advances the time of dispatcher `index`.
    ///
    /// # Errors
    /// If the implementation fails.
    fn tick(&mut self, index: usize, now_ns: u64) -> Result<(), Self::Error>;

    /// Sets the number of quanta that each server with a shared core has served to its current tasks. Leaves ignore
    /// them, because no message reports them.
    fn set_quanta(&mut self, _index: usize, _quanta: impl Iterator<Item = u32>) {}

    /// Returns the next server that should run a benchmark task of the dispatcher; `None` if there is no further one.
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

    /// Handles the arrival of a task's probes at the servers. `queue` returns each server's current queue length, for
    /// the answers. The implementation delivers these in the task's [`Dispatchers::offer`].
    fn on_probes(&mut self, _number: u64, _queue: impl Fn(Member) -> u32) {}

    /// Decides on a new task with this number and class, or queues it. `task` is the model's handle.
    ///
    /// # Errors
    /// If the implementation fails.
    fn offer(
        &mut self,
        index: usize,
        now_ns: u64,
        label: TaskLabel,
        task: u32,
    ) -> Result<Placement<u32>, Self::Error>;

    /// Delivers a report of a server's queue to all dispatchers. Implementations whose servers send reports as packets
    /// ignore it.
    fn on_report(&mut self, _change: QueueChange) {}

    /// Decides again on the first queued task, if any. `label` returns the label of a handle's task.
    ///
    /// # Errors
    /// If the implementation fails.
    fn next(
        &mut self,
        index: usize,
        now_ns: u64,
        label: impl Fn(u32) -> TaskLabel,
    ) -> Result<Placement<u32>, Self::Error>;

    /// Processes the reply to a task or benchmark task, which carries the server's queue length. `report.decision` is
    /// `None` for a benchmark task.
    ///
    /// # Errors
    /// If the implementation fails.
    fn reply(&mut self, index: usize, report: &Report) -> Result<(), Self::Error>;

    /// Processes the reply to this task without the queue length. Called for policies that do not learn it from
    /// replies, and for implementations that send probes. `report.load` only fills the reply's packet; the dispatcher
    /// must not use it.
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

    /// Returns the number of messages sent or requested by decisions, and the number of decisions that need two passes
    /// through a switch.
    fn picks(&self) -> (u64, u64);
}

/// The model's own decisions: policies with their views.
pub struct Policies {
    dispatchers: Vec<QueueingDispatcher<u32>>,
    /// Each core's end of the exchange between cores; empty for a single core and for independent leaves.
    exchanges: Vec<Exchange>,
    /// For each leaf, the tasks of all other leaves as it knows them. The leaf's view reads this view as if it belonged
    /// to a second dispatcher. Empty for cores and for a single leaf.
    remote_tasks: Vec<View>,
}

impl Policies {
    /// Changes the policy of all dispatchers, which keep their views and their waiting tasks. The model's rules of
    /// reports and probes stay those of the configured policy.
    pub fn change(&mut self, policy: &PolicySpec) {
        for dispatcher in &mut self.dispatchers {
            let (members, core) = (dispatcher.view().members(), dispatcher.core());
            dispatcher.swap_policy(&mut PreparedPolicy::new(policy, members, core));
            dispatcher.review_members(); // the new policy knows neither speeds nor absent members
        }
    }

    /// Creates the configured dispatchers, each with its view of the queues.
    pub fn new(config: &Config, knowledge: &Knowledge) -> Self {
        let (servers, count) = (config.speeds.len(), config.dispatchers);
        let (views, exchanges, remote_tasks) = match config.kind {
            _ if count == 1 => (View::heap(servers, 1), Vec::new(), Vec::new()),
            DispatcherKind::Cores => {
                let (views, exchanges) = View::of_cores(servers, count);
                (views, exchanges, Vec::new())
            }
            DispatcherKind::Leaves => {
                let pairs = (0..count).filter_map(|_| {
                    let mut pair = View::heap(servers, 2).into_iter();
                    pair.next().zip(pair.next())
                });
                let (views, remote_tasks): (Vec<_>, Vec<_>) = pairs.unzip();
                (views, Vec::new(), remote_tasks)
            }
        };
        let dispatcher = |(index, mut view): (usize, View)| {
            if config.waits_for_probes() {
                view.set_queues(knowledge.view_of(index));
            }
            let seed = stream_seed(config.seed, index, 0);
            let mut dispatcher = Dispatcher::new(&config.policy, view, Core { index, count }, seed);
            dispatcher.run_benchmarks();
            dispatcher.set_rates(&config.speeds);
            QueueingDispatcher::unbounded(dispatcher)
        };
        let dispatchers = views.into_iter().enumerate().map(dispatcher).collect();
        Self { dispatchers, exchanges, remote_tasks }
    }

    /// Lets a core publish its changes and receive those of all others.
    #[inline(always)]
    fn exchange(&mut self, index: usize) {
        if let Some(exchange) = self.exchanges.get_mut(index) {
            // `true`: a core of the model is never overloaded, so it publishes everything.
            policy::exchange(exchange, &mut self.dispatchers[index..=index], true);
        }
    }
}

/// Number and class of a task.
#[derive(Clone, Copy, Debug)]
pub struct TaskLabel {
    /// Number in the order of arrival.
    pub number: u64,
    /// Class; 0 if the workload has none.
    pub class: u16,
}

impl TaskLabel {
    /// Describes a task in flight.
    #[inline]
    fn of<T>(flight: &SimTask<T>) -> Self {
        Self { number: flight.number, class: flight.class }
    }

    /// Returns the policy's input.
    #[inline]
    fn to_task(self) -> Task {
        Task { decision: Some(DecisionNumber::of(self.number)), ..Task::new(self.class) }
    }
}

impl Dispatchers for Policies {
    type Error = Infallible;

    #[inline]
    fn tick(&mut self, index: usize, now_ns: u64) -> Result<(), Infallible> {
        self.exchange(index);
        self.dispatchers[index].tick(now_ns);
        Ok(())
    }

    fn set_quanta(&mut self, index: usize, quanta: impl Iterator<Item = u32>) {
        let view = self.dispatchers[index].view();
        (0..).map(Member).zip(quanta).for_each(|(member, quanta)| view.set_quanta(member, quanta));
    }

    #[inline]
    fn next_benchmark(&mut self, index: usize) -> Option<Member> {
        self.dispatchers[index].next_benchmark()
    }

    #[inline]
    fn offer(
        &mut self,
        index: usize,
        _now_ns: u64,
        label: TaskLabel,
        task: u32,
    ) -> Result<Placement<u32>, Infallible> {
        let placement = self.dispatchers[index].offer(label.to_task(), task);
        self.exchange(index);
        Ok(placement)
    }

    #[inline]
    fn on_report(&mut self, change: QueueChange) {
        let member = Member(change.member);
        for (index, remote_tasks) in self.remote_tasks.iter_mut().enumerate() {
            if index == usize::from(change.dispatcher) {
                continue;
            }
            match change.arrived {
                true => remote_tasks.sent(member),
                // Never fails: the report of the task's arrival came first.
                false => _ = remote_tasks.answered(member),
            }
            self.dispatchers[index].on_remote_update(member);
        }
    }

    #[inline]
    fn next(
        &mut self,
        index: usize,
        now_ns: u64,
        label: impl Fn(u32) -> TaskLabel,
    ) -> Result<Placement<u32>, Infallible> {
        if self.dispatchers[index].waiting() == 0 {
            return Ok(Ok(None));
        }
        if !self.exchanges.is_empty() {
            // The tick receives the places that other cores have released, and sets the time at which the core takes
            // one.
            self.tick(index, now_ns)?;
        }
        let placement = self.dispatchers[index].next(|&task| label(task).to_task());
        self.exchange(index);
        Ok(placement)
    }

    #[inline]
    fn reply(&mut self, index: usize, report: &Report) -> Result<(), Infallible> {
        match report.decision {
            // A benchmark task does not count as outstanding.
            None => self.dispatchers[index].refresh(report),
            Some(_) => _ = self.dispatchers[index].reply(report),
        }
        self.exchange(index);
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
        self.dispatchers[index].view_mut().answered(report.member);
        self.dispatchers[index].view_mut().touch(report.member);
        self.exchange(index);
        Ok(())
    }

    #[inline]
    fn report(&mut self, index: usize, _now_ns: u64, report: &Report) -> Result<(), Infallible> {
        self.dispatchers[index].refresh(report);
        self.exchange(index);
        Ok(())
    }

    fn picks(&self) -> (u64, u64) {
        let picks = self.dispatchers.iter().map(|dispatcher| dispatcher.view().picks);
        picks.fold((0, 0), |sum, picks| (sum.0 + picks.messages, sum.1 + picks.resubmits))
    }
}

/// State of a run. Emulated pools (`advise::emulation`) run it in steps and change policy or workload in between.
pub struct Sim<'a, D> {
    config: &'a Config,
    /// Mean service time of the configuration in nanoseconds: the unit of time.
    unit_ns: f64,
    /// True if tasks keep their class. Without measured classes and rules for them, all have class 0.
    has_classes: bool,
    /// Engine with the servers as its workers. A task's `route` is its dispatcher.
    engine: Engine<u16>,
    /// Delay between dispatchers and servers in ticks.
    delay: u64,
    /// Rule by which servers send load reports.
    notify: Notify,
    dispatchers: D,
    /// True if dispatchers read the quanta that servers have served to their current tasks.
    reports_quanta: bool,
    /// Service time in ticks of each dispatcher's last task, which benchmark tasks copy.
    last_services: Vec<u64>,
    /// Each server's state of the rule by which it sends load reports.
    sides: Vec<MemberSide>,
    knowledge: Knowledge,
    /// Reports of servers' queues to independent leaves, in flight.
    reports: QueueReports,
    /// Time in ticks for which a task waits for the answers to its probes; 0 if its dispatcher decides at once.
    probe_round_trip: u64,
    /// Service times of the next tasks. The unit of time stays that of the configuration.
    service: Service,
    /// Number of dispatchers that receive tasks, from the first on.
    active_dispatchers: usize,
    /// Stream of the choices of a dispatcher for each task.
    choice: Stream,
    /// Random numbers of the servers, for example for the choice of the dispatcher that receives a report.
    members: Rng,
    /// Number of tasks that wait at dispatchers.
    waiting: u64,
    /// Dispatcher whose waiting tasks the model offered first at the last reply. The next reply starts with the next
    /// dispatcher, so that none has precedence.
    first_offered: usize,
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
    /// Creates a run. `dispatchers` creates the dispatchers, which may read the modelled knowledge of queues.
    ///
    /// # Errors
    /// If arrivals and rate contradict each other.
    pub fn new(
        config: &'a Config,
        dispatchers: impl FnOnce(&Knowledge) -> D,
    ) -> Result<Self, String> {
        let servers = config.speeds.len();
        let notify = config.policy.notify();
        let unit_ns = config.service.mean_ns();
        let delay = (config.delay_ns / unit_ns * UNIT_TICKS) as u64;
        let probe_delay = if config.probes_at_once { 0 } else { delay };
        let waits_for_probes = config.waits_for_probes();
        let knowledge = Knowledge::new(servers, config.dispatchers, probe_delay, waits_for_probes);
        let side = |server| MemberSide::new(notify, server, config.dispatchers);
        let stream = |purpose| StreamSeed::derive(config.seed, purpose, 0).stream();
        let mut sim = Self {
            config,
            unit_ns,
            has_classes: config.measures_classes
                || config.policy.classes() != ClassRules::default(),
            engine: config.engine()?,
            delay,
            notify,
            dispatchers: dispatchers(&knowledge),
            reports_quanta: config.reports_quanta(),
            last_services: vec![0; config.dispatchers],
            sides: (0..servers).map(side).collect(),
            knowledge,
            reports: QueueReports::new(config.receives_reports().then_some(probe_delay)),
            probe_round_trip: if waits_for_probes { 2 * probe_delay } else { 0 },
            service: config.service.clone(),
            active_dispatchers: config.dispatchers,
            choice: stream("dispatchers"),
            members: stream("members"),
            waiting: 0,
            first_offered: 0,
        };
        sim.engine.after(SAMPLE_TICKS, event::SAMPLE, 0);
        Ok(sim)
    }

    /// Runs until all tasks have ended; with a digest, also until all replies and load reports have arrived. At equal
    /// times an arrival comes first.
    ///
    /// # Errors
    /// If a dispatcher fails.
    pub fn run(&mut self) -> Result<(), D::Error> {
        self.run_until(u64::MAX)
    }

    /// Like [`Sim::run`], but stops before the first event after this time in ticks.
    ///
    /// # Errors
    /// If a dispatcher fails.
    pub fn run_until(&mut self, end: u64) -> Result<(), D::Error> {
        while let Some(due) = self.engine.next(end) {
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
                NextEvent::Timer => return Ok(()),
                // `event::SAMPLE`.
                NextEvent::Event(..) => self.sample()?,
            }
        }
        Ok(())
    }

    /// Returns the time in nanoseconds, the unit of the policies' timers.
    #[inline]
    fn now_ns(&self) -> u64 {
        (self.engine.now as f64 / UNIT_TICKS * self.unit_ns) as u64
    }

    /// Sends a task to its server, which it reaches after the delay.
    #[inline]
    fn send_to_server(&mut self, task: u32) {
        match self.delay {
            0 => self.at_server(task),
            delay => self.engine.after_constant(delay, event::AT_WORKER, task.into()),
        }
    }

    /// Sends a message (`REPLY` or `REPORT`) to a dispatcher, which it reaches after the delay.
    #[inline]
    fn send_to_dispatcher(&mut self, kind: u64, argument: u64) -> Result<(), D::Error> {
        if self.delay > 0 {
            self.engine.await_reply();
            self.engine.after_constant(self.delay, kind, argument);
            return Ok(());
        }
        match kind {
            event::REPLY => self.reply(argument as u32),
            _ => self.report(argument),
        }
    }

    /// Draws the dispatcher of the next task, which decides at once or after the answers to its probes.
    fn arrive(&mut self) -> Result<(), D::Error> {
        let unit_ns = self.unit_ns;
        let ticks = |ns| (ns / unit_ns * UNIT_TICKS) as u64;
        // Scales 32 random bits to an index.
        let bits = u64::from(self.choice.next_u64() as u32);
        let index = (bits * self.active_dispatchers as u64) >> 32;
        let task = self.engine.arrive(&self.service, ticks, index as u16);
        if !self.has_classes {
            self.engine.flights[task].class = 0;
        }
        let sends_probes = self.dispatchers.sends_probes();
        if sends_probes {
            let (now_ns, number) = (self.now_ns(), self.engine.flights[task].number);
            self.dispatchers.send_probes(index as usize, now_ns, number)?;
        }
        if self.probe_round_trip > 0 {
            self.engine.after(self.probe_round_trip, event::ANSWERED, task.into());
            if sends_probes {
                // Probes arrive at the servers after half the round trip.
                self.engine.after(self.probe_round_trip / 2, event::PROBES, task.into());
            }
            return Ok(());
        }
        if sends_probes {
            self.on_probes(task);
        }
        self.decide(task)
    }

    /// Delivers the probes of a task to the servers, with their current queue lengths.
    fn on_probes(&mut self, task: u32) {
        let queue = |member: Member| self.engine.tasks_at(member.index());
        self.dispatchers.on_probes(self.engine.flights[task].number, queue);
    }

    /// Lets the task's dispatcher decide, with its current knowledge of the queues.
    #[inline]
    fn decide(&mut self, task: u32) -> Result<(), D::Error> {
        let flight = &self.engine.flights[task];
        let (label, service) = (TaskLabel::of(flight), flight.service);
        let index = usize::from(flight.route);
        self.last_services[index] = service;
        self.receive_reports();
        let now_ns = self.now_ns();
        self.tick(index, now_ns)?;
        let placement = self.dispatchers.offer(index, now_ns, label, task)?;
        if !self.dispatch(placement)? {
            self.waiting += 1;
        }
        Ok(())
    }

    /// Delivers the reports and the changes of knowledge that have arrived by now.
    #[inline]
    fn receive_reports(&mut self) {
        self.knowledge.advance(self.engine.now);
        while let Some(change) = self.reports.receive(self.engine.now) {
            self.dispatchers.on_report(change);
        }
    }

    /// Advances a dispatcher's time, and sends the benchmark tasks that it requests.
    #[inline]
    fn tick(&mut self, index: usize, now_ns: u64) -> Result<(), D::Error> {
        if self.reports_quanta {
            let Engine { cores, now, .. } = &mut self.engine;
            let quanta = cores.iter_mut().map(|core| core.quanta(*now) as u32);
            self.dispatchers.set_quanta(index, quanta);
        }
        self.dispatchers.tick(index, now_ns)?;
        while let Some(member) = self.dispatchers.next_benchmark(index) {
            let service = self.last_services[index];
            let task = self.engine.add_benchmark(member.index(), service, index as u16);
            self.send_to_server(task);
        }
        Ok(())
    }

    /// Sends a placed task to its server. Returns false if the decision placed none.
    #[inline]
    fn dispatch(&mut self, placement: Placement<u32>) -> Result<bool, D::Error> {
        let placement =
            placement.unwrap_or_else(|_| unreachable!("servers never leave a pool of this model"));
        let Some((task, pick)) = placement else { return Ok(false) };
        let flight = &mut self.engine.flights[task];
        flight.worker = pick.member.0.into();
        self.knowledge.on_send(flight.route, pick.member.0);
        self.send_to_server(task);
        Ok(true)
    }

    /// Queues a task at its server.
    #[inline]
    fn at_server(&mut self, task: u32) {
        let SimTask { number, worker, route, .. } = self.engine.flights[task];
        self.engine.arrive_at_worker(task);
        if number != BENCHMARK {
            let queue = self.engine.tasks_at(worker as usize);
            self.sides[worker as usize].on_tasks(route.into(), 1);
            self.knowledge.on_arrival(self.engine.now, route, worker as u16, queue);
            self.send_report(route, worker as u16, true);
        }
    }

    /// Sends a report of a change of a server's queue to all dispatchers.
    #[inline]
    fn send_report(&mut self, dispatcher: u16, member: u16, arrived: bool) {
        let change = QueueChange { member, dispatcher, arrived };
        self.reports.send(self.engine.now, change);
    }

    /// Ends a task at its server, and sends the reply and a load report if one is due.
    #[inline]
    fn done(&mut self, task: u32) -> Result<(), D::Error> {
        let member = self.engine.flights[task].worker as usize;
        if !self.engine.done(task, member) {
            // A benchmark task has a reply, but causes no load report.
            return self.send_to_dispatcher(event::REPLY, task.into());
        }
        let queue = self.engine.tasks_at(member);
        let dispatcher = self.sides[member].on_done(queue, &mut self.members);
        self.knowledge.on_departure(self.engine.now, member as u16, queue);
        self.send_report(self.engine.flights[task].route, member as u16, false);
        let queue = self.engine.flights[task].left_at_worker;
        self.send_to_dispatcher(event::REPLY, task.into())?;
        if let Some(dispatcher) = dispatcher {
            // Under `Notify::Always` the policy counts the messages of its paper instead, in its view's picks.
            self.engine.messages += u64::from(self.notify != Notify::Always);
            // Dispatcher, server and queue length, from the high bits on.
            let argument = (dispatcher as u64) << 32 | (member as u64) << 16 | u64::from(queue);
            self.send_to_dispatcher(event::REPORT, argument)?;
        }
        Ok(())
    }

    /// Delivers a reply to its dispatcher. The reply carries the queue length under the rule [`Notify::Reply`], except
    /// for dispatchers that send probes as messages.
    #[inline]
    fn reply(&mut self, task: u32) -> Result<(), D::Error> {
        let SimTask { number, service, worker, class, left_at_worker, route, .. } =
            self.engine.flights[task];
        self.engine.flights.remove(task);
        let index = usize::from(route);
        let (member, load) = (Member(worker as u16), Load::tasks(left_at_worker));
        if self.notify == Notify::Reply && !self.dispatchers.sends_probes() {
            let service_ns = service as f64 / UNIT_TICKS * self.unit_ns
                / self.engine.workers[member.index()].speed;
            let decision = (number != BENCHMARK).then(|| DecisionNumber::of(number));
            let report = Report { member, load, service_ns: service_ns as u32, class, decision };
            self.receive_reports();
            self.tick(index, self.now_ns())?;
            self.dispatchers.reply(index, &report)?;
        } else {
            let report = Report::new(member, load, 0);
            self.dispatchers.answered(index, self.now_ns(), number, &report)?;
        }
        self.engine.answered += u64::from(number != BENCHMARK);
        self.release()
    }

    /// Offers waiting tasks again at every dispatcher: a reply to one dispatcher may free a place at a server
    /// for a task of another.
    #[inline]
    fn release(&mut self) -> Result<(), D::Error> {
        if self.waiting == 0 {
            return Ok(());
        }
        let count = self.config.dispatchers;
        self.first_offered = (self.first_offered + 1) % count;
        loop {
            let before = self.waiting;
            for offset in 0..count {
                let index = (self.first_offered + offset) % count;
                while self.release_at(index)? {
                    self.waiting -= 1;
                }
            }
            // A core leaves a free place to another core whose task goes first. Further passes let it take the
            // next place, until a pass sends no task. Leaves do not wait for each other, so one pass suffices.
            if self.config.kind == DispatcherKind::Leaves || self.waiting == before {
                return Ok(());
            }
        }
    }

    /// Offers a dispatcher's first waiting task again. Returns false if it still waits or there is none.
    #[inline]
    fn release_at(&mut self, index: usize) -> Result<bool, D::Error> {
        self.receive_reports();
        let (now_ns, flights) = (self.now_ns(), &self.engine.flights);
        let next = self.dispatchers.next(index, now_ns, |task| TaskLabel::of(&flights[task]))?;
        self.dispatch(next)
    }

    /// Delivers a load report to its dispatcher. The argument has dispatcher, server and queue length.
    fn report(&mut self, argument: u64) -> Result<(), D::Error> {
        let dispatcher = (argument >> 32 & 0xFFFF) as usize;
        let (member, load) = (Member((argument >> 16) as u16), Load::tasks(argument as u16));
        self.dispatchers.report(dispatcher, self.now_ns(), &Report::new(member, load, 0))
    }

    /// Samples the imbalance: the longest queue of a server over the mean queue. Tasks at dispatchers and in transit do
    /// not count. Also gives each dispatcher a tick, for policies with timers.
    fn sample(&mut self) -> Result<(), D::Error> {
        self.receive_reports();
        let now_ns = self.now_ns();
        (0..self.config.dispatchers).try_for_each(|index| self.tick(index, now_ns))?;
        let servers = self.engine.workers.len();
        let queues = || (0..servers).map(|server| self.engine.tasks_at(server));
        let longest = queues().max().unwrap_or(0);
        let mean = queues().map(u64::from).sum::<u64>() as f64 / servers as f64;
        self.engine.sample(longest.into(), mean);
        self.engine.after(SAMPLE_TICKS, event::SAMPLE, 0);
        Ok(())
    }

    /// Sets the service times of the next tasks.
    pub fn set_service(&mut self, service: Service) {
        self.service = service;
    }

    /// Sets the number of dispatchers that receive tasks, at most that of the configuration.
    pub fn set_active_dispatchers(&mut self, count: usize) {
        self.active_dispatchers = count.min(self.config.dispatchers);
    }

    /// Ends the arrivals, so that [`Sim::run`] only waits for the tasks in flight.
    pub fn end_arrivals(&mut self) {
        self.engine.remaining = 0;
    }

    /// Takes the records of the tasks that have ended since the last call. Empty without an observer of records.
    pub fn take_ended(&mut self) -> Vec<wedjat_workload::results::Task> {
        self.engine.recorder.take_ended()
    }

    /// Returns the numbers of arrived tasks, and of those that no worker has finished.
    #[must_use]
    pub fn tasks(&self) -> (u64, u64) {
        (self.engine.recorder.arrived(), self.engine.in_system)
    }

    /// Returns the speeds of the servers, relative to the mean at the start.
    pub fn speeds(&self) -> impl Iterator<Item = f64> {
        self.engine.workers.iter().map(|worker| worker.speed)
    }

    /// Returns the dispatchers.
    pub fn dispatchers_mut(&mut self) -> &mut D {
        &mut self.dispatchers
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
    /// Returns true if dispatchers probe servers for each task, which then waits for late answers. Cores of a leaf read
    /// their counts instead of sending probes.
    fn waits_for_probes(&self) -> bool {
        self.kind == DispatcherKind::Leaves && self.policy.queue_access() == QueueAccess::Probes
    }

    /// Returns true if dispatchers read the served quanta. Only cores of one host can, from their workers' memory.
    fn reports_quanta(&self) -> bool {
        let uses_quanta = self.policy.entry().name == "jsq-msq";
        self.sharing.is_some() && self.kind == DispatcherKind::Cores && uses_quanta
    }

    /// Returns true if each dispatcher receives the reports of every server's queue. Policies that read or bound all
    /// queues need them.
    fn receives_reports(&self) -> bool {
        let policy = &self.policy;
        self.kind == DispatcherKind::Leaves
            && self.dispatchers > 1
            && (policy.queue_access() == QueueAccess::Direct || policy.entry().holds())
    }

    /// Returns the arrival schedules of the initial load and of each load change in the script, by step.
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
            sharing: self.sharing.map(|times| {
                let ticks = |ns| (ns / self.service.mean_ns() * UNIT_TICKS) as u64;
                (self.speeds.len(), times.sharing(ticks, usize::MAX))
            }),
            measures_classes: self.measures_classes,
            has_digest: self.digest,
            tick_ps: self.service.mean_ns() * 1e3 / UNIT_TICKS,
            seed: self.seed,
            observer: &self.observer,
        };
        let ticks = |step: &Step| (step.at_ns / self.service.mean_ns() * UNIT_TICKS) as u64;
        Ok(Engine::new(setup, self.script.iter().map(ticks)))
    }
}
