//! DARC, the policy of Perséphone (SOSP 2021): workers reserved for short tasks, without preemption.
//!
//! A central dispatcher has a queue for each task type. It profiles the types in windows, groups those of similar
//! service times, and reserves workers for each group in proportion to its work. A group may also use the workers of
//! groups with longer tasks, never those of shorter ones. Queues of shorter tasks go first.
//!
//! The network has no delay, and dispatching has no cost. Baselines: central FCFS (c-FCFS), a random worker's own
//! queue (d-FCFS), a reservation set by hand, and time sharing as in Shinjuku (NSDI 2019).

use wedjat_core::policy::fifo::{Fifo, Slab};
use wedjat_workload::seed::{Stream, StreamSeed};
use wedjat_workload::service::Service;

use super::super::engine::{Engine, NextEvent, SimTask};
use super::super::events::event;
use super::super::hop::TICKS_PER_US;
use super::super::outcome::Outcome;
use super::experiment::{
    TaskType, largest_ratio, service_of, slowdown, stable, sustained_load, task_type, type_of,
    type_us,
};
use super::{Claim, Run, index, ticks_of};

/// Maximum difference (exclusive) between the mean service time of a group's type and that of its shortest type, as a
/// fraction of the latter.
const SIMILARITY: f64 = 0.2;
/// Relative change of a type's demand that causes a new reservation.
const DEMAND_CHANGE: f64 = 0.1;
/// Queueing delay beyond which a type permits a new reservation, in mean service times of the type. The paper's target
/// of slowdown; the authors' code uses 1.
const DELAY_LIMIT: f64 = 10.0;
/// Mean service time in ticks of a type without completions in the window: 1 s, longer than any other.
const UNSEEN: f64 = 1e6 * TICKS_PER_US;
/// Number of completions in a profiling window.
const WINDOW: u64 = 50_000;
/// Maximum number of workers, which are bits of a set.
const WORKERS_MAX: usize = 64;

/// Mean service time and share of a type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Mean service time in ticks.
    pub mean: f64,
    /// Fraction of the tasks.
    pub share: f64,
}

impl Profile {
    /// Returns the work of the type per task of any type, in ticks.
    #[must_use]
    pub fn work(&self) -> f64 {
        self.mean * self.share
    }

    /// Returns the exact profiles of a workload.
    #[must_use]
    pub fn exact(types: &[TaskType]) -> Vec<Self> {
        let profile = |&TaskType { us, share }: &TaskType| Self { mean: us * TICKS_PER_US, share };
        types.iter().map(profile).collect()
    }
}

/// Workers that a type may use, as bit sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lane {
    /// Index of the type.
    kind: usize,
    /// Workers reserved for the type's group.
    reserved: u64,
    /// Workers of groups with longer tasks, and unreserved workers.
    stealable: u64,
}

/// Reservation of a server's workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Types from the shortest tasks to the longest.
    lanes: Vec<Lane>,
}

/// Returns the number of workers for a group that demands this fraction of workers: rounded, at least one.
fn workers_for(demand: f64) -> u32 {
    let (whole, rest) = (demand.floor(), demand.fract());
    let workers = if rest <= 0.5 { whole } else { whole + 1.0 };
    workers.max(1.0) as u32
}

/// Returns the set of the first `workers` workers.
fn first(workers: usize) -> u64 {
    assert!((1..=WORKERS_MAX).contains(&workers), "a server has 1 to {WORKERS_MAX} workers");
    u64::MAX >> (WORKERS_MAX - workers)
}

/// Removes the `count` lowest workers from the set, or all, and returns them.
fn take(free: &mut u64, count: u32) -> u64 {
    let all = *free;
    for _ in 0..count.min(all.count_ones()) {
        *free &= *free - 1;
    }
    all & !*free
}

impl Reservation {
    /// Computes DARC's reservation for types with these profiles.
    #[must_use]
    pub fn new(profiles: &[Profile], workers: usize) -> Self {
        let mut order: Vec<_> = (0..profiles.len()).collect();
        order.sort_by(|&a, &b| profiles[a].mean.total_cmp(&profiles[b].mean));
        let total: f64 = profiles.iter().map(Profile::work).sum();
        let mut groups = Vec::new();
        let mut rest = &order[..];
        while let Some(&shortest) = rest.first() {
            let limit = profiles[shortest].mean * (1.0 + SIMILARITY);
            let similar = rest.iter().take_while(|&&kind| profiles[kind].mean < limit);
            let (members, longer) = rest.split_at(similar.count().max(1));
            let work: f64 = members.iter().map(|&kind| profiles[kind].work()).sum();
            groups.push((members.to_vec(), workers_for(work / total * workers as f64)));
            rest = longer;
        }
        Self::of_groups(&groups, workers)
    }

    /// Reserves the given number of workers for each group of types, from the shortest tasks to the longest. A group
    /// for which too few workers are free also gets the last worker, the spillway.
    #[must_use]
    pub fn of_groups(groups: &[(Vec<usize>, u32)], workers: usize) -> Self {
        let all = first(workers);
        let spillway = 1 << (workers - 1);
        let mut free = all;
        let mut lanes = Vec::new();
        for (members, wanted) in groups {
            let mut reserved = take(&mut free, *wanted);
            if reserved.count_ones() < *wanted {
                reserved |= spillway;
            }
            let stealable = free;
            lanes.extend(members.iter().map(|&kind| Lane { kind, reserved, stealable }));
        }
        Self { lanes }
    }

    /// Adds a last lane on all workers for each type below `types` that has none.
    #[must_use]
    pub fn with_rest(mut self, types: usize, workers: usize) -> Self {
        let (reserved, stealable) = (0, first(workers));
        for kind in 0..types {
            if !self.lanes.iter().any(|lane| lane.kind == kind) {
                self.lanes.push(Lane { kind, reserved, stealable });
            }
        }
        self
    }

    /// Returns the number of workers reserved for a type's group; 0 for a type without a group.
    #[must_use]
    pub fn reserved(&self, kind: usize) -> u32 {
        let lane = self.lanes.iter().find(|lane| lane.kind == kind);
        lane.map_or(0, |lane| lane.reserved.count_ones())
    }
}

/// Profiler of a dispatcher.
#[derive(Clone, Debug)]
pub struct Profiler {
    /// Number of completions after which a window may end.
    window: u64,
    /// Number of completions in the current window.
    completed: u64,
    /// Sum of service times in ticks and number of tasks, by type, in the current window.
    sums: Vec<(u64, u64)>,
    /// Demand in workers at the last reservation, by type.
    demands: Vec<f64>,
    /// Limit of the queueing delay in ticks, by type; `None` before the first reservation.
    limits: Option<Vec<f64>>,
}

impl Profiler {
    /// Creates a profiler with this window.
    #[must_use]
    pub fn new(types: usize, window: u64) -> Self {
        let (sums, demands) = (vec![(0, 0); types], vec![0.0; types]);
        Self { window, completed: 0, sums, demands, limits: None }
    }

    /// Records a completed task.
    fn on_completion(&mut self, kind: usize, service: u64) {
        let sum = &mut self.sums[kind];
        *sum = (sum.0 + service, sum.1 + 1);
        self.completed += 1;
    }

    /// Returns true if the window is full, and `is_delayed` is true for a type and its limit of the delay. Before the
    /// first reservation, a full window suffices.
    fn is_due(&self, mut is_delayed: impl FnMut(usize, f64) -> bool) -> bool {
        let limits = self.limits.as_ref();
        self.completed > self.window
            && limits.is_none_or(|limits| (0..).zip(limits).any(|(kind, &l)| is_delayed(kind, l)))
    }

    /// Ends the window and returns its profiles.
    fn end_window(&mut self) -> Vec<Profile> {
        let total = std::mem::take(&mut self.completed) as f64;
        let profile = |sum: &mut (u64, u64)| match std::mem::take(sum) {
            (_, 0) => Profile { mean: UNSEEN, share: 0.0 },
            (ticks, count) => {
                Profile { mean: ticks as f64 / count as f64, share: count as f64 / total }
            }
        };
        self.sums.iter_mut().map(profile).collect()
    }

    /// Accepts the profiles if the demand of a type has changed enough. Returns the new reservation then.
    fn accept(&mut self, profiles: &[Profile], workers: usize) -> Option<Reservation> {
        let total: f64 = profiles.iter().map(Profile::work).sum();
        let demands = profiles.iter().map(|profile| profile.work() / total * workers as f64);
        let mut limits = self.limits.take().unwrap_or_else(|| vec![0.0; profiles.len()]);
        let mut has_changed = false;
        for ((demand, profile), (old, limit)) in
            demands.zip(profiles).zip(self.demands.iter_mut().zip(&mut limits))
        {
            // A type that appears or disappears changes its demand by all of it.
            if (demand - *old).abs() > DEMAND_CHANGE * *old {
                has_changed = true;
                (*old, *limit) = (demand, DELAY_LIMIT * profile.mean);
            }
        }
        self.limits = Some(limits);
        has_changed.then(|| Reservation::new(profiles, workers))
    }
}

/// Dispatcher of a server: a queue per type, and its idle workers. Serves in order of arrival without a reservation.
#[derive(Clone, Debug)]
pub struct TypedQueues {
    /// Waiting tasks by type.
    queues: Vec<Fifo>,
    /// Number of workers.
    workers: usize,
    /// Set of idle workers.
    idle: u64,
    /// Reservation; `None` for c-FCFS.
    reservation: Option<Reservation>,
    /// Profiler; `None` if the reservation never changes.
    profiler: Option<Profiler>,
}

impl TypedQueues {
    /// Creates a server that starts with this reservation, and updates it if it has a profiler.
    #[must_use]
    pub fn new(
        types: usize,
        workers: usize,
        reservation: Option<Reservation>,
        profiler: Option<Profiler>,
    ) -> Self {
        let queues = vec![Fifo::EMPTY; types];
        Self { queues, workers, idle: first(workers), reservation, profiler }
    }

    /// Creates a server with DARC that knows the profiles at its start.
    #[must_use]
    pub fn darc(profiles: &[Profile], workers: usize, window: u64) -> Self {
        let mut profiler = Profiler::new(profiles.len(), window);
        let reservation = profiler.accept(profiles, workers);
        Self::new(profiles.len(), workers, reservation, Some(profiler))
    }

    /// Replaces the reservation.
    pub fn set_reservation(&mut self, reservation: Option<Reservation>) {
        self.reservation = reservation;
    }

    /// Returns the reservation; `None` for c-FCFS.
    #[must_use]
    pub fn reservation(&self) -> Option<&Reservation> {
        self.reservation.as_ref()
    }

    /// Returns true if a worker is idle.
    #[must_use]
    pub fn has_idle(&self) -> bool {
        self.idle != 0
    }

    /// Returns the number of tasks that wait or run.
    #[must_use]
    pub fn tasks(&self) -> u32 {
        let busy = self.workers as u32 - self.idle.count_ones();
        self.queues.iter().map(Fifo::len).sum::<u32>() + busy
    }

    /// Queues a task of this type.
    pub fn push<T>(&mut self, kind: usize, task: u32, flights: &mut Slab<SimTask<T>>) {
        self.queues[kind].push(task, flights);
    }

    /// Removes and returns all waiting tasks of a type.
    pub fn drain<T>(&mut self, kind: usize, flights: &Slab<SimTask<T>>) -> Vec<u32> {
        std::iter::from_fn(|| self.queues[kind].pop(flights)).collect()
    }

    /// Reserves the lowest idle worker; `None` if all are busy.
    pub fn take_idle(&mut self) -> Option<usize> {
        let all = self.idle;
        self.take_of(all)
    }

    /// Reserves the lowest idle worker of a set.
    fn take_of(&mut self, set: u64) -> Option<usize> {
        let idle = self.idle & set;
        if idle == 0 {
            return None;
        }
        let worker = idle.trailing_zeros() as usize;
        self.idle &= !(1 << worker);
        Some(worker)
    }

    /// Returns the next task to start and its worker; `None` if no waiting task may start.
    pub fn next<T>(&mut self, flights: &Slab<SimTask<T>>) -> Option<(u32, usize)> {
        if self.idle == 0 {
            return None;
        }
        let Some(reservation) = &self.reservation else {
            let heads =
                self.queues.iter().enumerate().filter_map(|(kind, queue)| {
                    queue.first().map(|task| (flights[task].number, kind))
                });
            let (_, kind) = heads.min()?;
            let task = self.queues[kind].pop(flights)?;
            return self.take_idle().map(|worker| (task, worker));
        };
        let mut lanes = reservation.lanes.iter().filter(|lane| !self.queues[lane.kind].is_empty());
        let (kind, set) = lanes.find_map(|lane| {
            let sets = [lane.reserved, lane.stealable];
            sets.into_iter().find(|set| self.idle & set != 0).map(|set| (lane.kind, set))
        })?;
        let task = self.queues[kind].pop(flights)?;
        self.take_of(set).map(|worker| (task, worker))
    }

    /// Marks a worker as idle after a task of this type and service time in ticks.
    pub fn on_completion(&mut self, worker: usize, kind: usize, service: u64) {
        self.idle |= 1 << worker;
        if let Some(profiler) = &mut self.profiler {
            profiler.on_completion(kind, service);
        }
    }

    /// Updates the reservation if the profiler's window is full, a type's second waiting task is delayed, and demands
    /// have changed. Returns true for a new reservation.
    pub fn update<T>(&mut self, now: u64, flights: &Slab<SimTask<T>>) -> bool {
        let Self { queues, profiler, .. } = self;
        let Some(profiler) = profiler else { return false };
        // The authors' code compares the second waiting task, not the first one.
        let is_delayed = |kind: usize, limit: f64| {
            let second = flights.iter(queues[kind]).nth(1);
            second.is_some_and(|task| (now - task.arrived) as f64 > limit)
        };
        if !profiler.is_due(is_delayed) {
            return false;
        }
        let profiles = profiler.end_window();
        let reservation = profiler.accept(&profiles, self.workers);
        let has_changed = reservation.is_some();
        if has_changed {
            self.reservation = reservation;
        }
        has_changed
    }
}

/// Parameters of time sharing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slices {
    /// Time in nanoseconds after which a task yields to a waiting one.
    pub quantum_ns: f64,
    /// Time in nanoseconds that a worker loses per preemption.
    pub cost_ns: f64,
    /// True for a queue per type. Preempted tasks then go before new ones of their type. The queue whose first task has
    /// waited longest, in mean service times of its type, goes first.
    pub by_type: bool,
}

/// Queues of time sharing.
#[derive(Debug)]
struct TimeSharing {
    slices: Slices,
    /// Preempted tasks and new tasks, by type. Without types, preempted tasks join the end of the single queue of new
    /// ones.
    queues: Vec<[Fifo; 2]>,
    /// Mean service time in ticks, by type.
    means: Vec<f64>,
    /// Set of idle workers.
    idle: u64,
}

impl TimeSharing {
    /// Returns true if a task waits.
    fn has_waiting(&self) -> bool {
        self.queues.iter().flatten().any(|queue| !queue.is_empty())
    }

    /// Queues a new or a preempted task.
    fn push(&mut self, task: u32, is_preempted: bool, flights: &mut Slab<SimTask<u64>>) {
        let kind = if self.slices.by_type { type_of(&flights[task]) } else { 0 };
        let queue = usize::from(!(is_preempted && self.slices.by_type));
        self.queues[kind][queue].push(task, flights);
    }

    /// Removes the next task.
    fn pop(&mut self, now: u64, flights: &Slab<SimTask<u64>>) -> Option<u32> {
        let urgency = |(kind, queues): (usize, &[Fifo; 2])| {
            let task = queues.iter().find_map(Fifo::first)?;
            Some(((now - flights[task].arrived) as f64 / self.means[kind], kind))
        };
        let urgencies = self.queues.iter().enumerate().filter_map(urgency);
        let (_, kind) = urgencies.max_by(|a, b| a.0.total_cmp(&b.0))?;
        self.queues[kind].iter_mut().find_map(|queue| queue.pop(flights))
    }
}

/// Policy of the dispatcher.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// DARC, which knows the service times at the start if `true`. Otherwise it begins as c-FCFS.
    Darc(bool),
    /// Fixed reservation of this number of workers for the first type, which may also use all further workers.
    Static(u32),
    /// Central queue, first come first served.
    CFcfs,
    /// Queue at each worker, chosen at random.
    DFcfs,
    /// Time sharing over a central queue.
    Slices(Slices),
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of workers.
    pub workers: usize,
    /// Types of the tasks.
    pub types: Vec<TaskType>,
    /// Types of the tasks in the second half of the run, in the same order; `None` if they stay the same.
    pub later: Option<Vec<TaskType>>,
    /// Policy.
    pub policy: Policy,
    /// Offered work as a fraction of the workers' capacity.
    pub load: f64,
    /// Number of tasks.
    pub tasks: u64,
    /// Seed of all streams.
    pub seed: u64,
}

impl Config {
    /// Returns the length of a profiling window in completions: the paper's, or 1/20 of a short run's tasks.
    fn window(&self) -> u64 {
        WINDOW.min(self.tasks / 20)
    }
}

/// Server with its policy.
#[derive(Debug)]
enum Server {
    /// Queues by type.
    Typed(TypedQueues),
    /// A queue at each worker. The stream draws the worker of each task.
    Random(Stream),
    /// Queues of time sharing.
    Shared(TimeSharing),
}

/// State of a run.
struct Sim<'a> {
    config: &'a Config,
    /// Engine. A task's `route` is its remaining service time in ticks, used by time sharing.
    engine: Engine<u64>,
    /// Service times of the first and of the second half of the tasks.
    services: [Service; 2],
    server: Server,
    /// Number of reservations that the profiler caused.
    updates: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct FinishedRun {
    /// Outcome, with times in microseconds.
    pub outcome: Outcome,
    /// Last reservation of the dispatcher; `None` for policies without one.
    pub reservation: Option<Reservation>,
    /// Number of reservations that the profiler caused.
    pub updates: u64,
}

/// Runs the model.
#[must_use]
pub fn run(config: &Config) -> FinishedRun {
    let mut sim = Sim::new(config);
    while let Some(next) = sim.engine.next(u64::MAX) {
        match next {
            NextEvent::Arrival => sim.arrive(),
            NextEvent::Event(_, task) => sim.done(task as u32),
            NextEvent::Timer => {}
        }
    }
    let reservation = match &sim.server {
        Server::Typed(queues) => queues.reservation().cloned(),
        Server::Random(_) | Server::Shared(_) => None,
    };
    FinishedRun { outcome: sim.engine.finish(TICKS_PER_US), reservation, updates: sim.updates }
}

impl<'a> Sim<'a> {
    /// Creates a run.
    fn new(config: &'a Config) -> Self {
        let &Config { workers, ref types, policy, load, tasks, seed, .. } = config;
        let service = service_of(types);
        let later = config.later.as_deref().map_or_else(|| service.clone(), service_of);
        let run =
            Run { tasks, rate_pps: load * workers as f64 / service.mean_ns() * 1e9, workers, seed };
        let mut engine = run.engine();
        engine.recorder.measure_classes();
        let profiles = Profile::exact(types);
        let typed = |reservation, profiler| {
            Server::Typed(TypedQueues::new(types.len(), workers, reservation, profiler))
        };
        let server = match policy {
            Policy::Darc(true) => {
                Server::Typed(TypedQueues::darc(&profiles, workers, config.window()))
            }
            Policy::Darc(false) => typed(None, Some(Profiler::new(types.len(), config.window()))),
            Policy::Static(short) => {
                let rest = (1..types.len()).collect();
                let groups = [(vec![0], short), (rest, workers as u32 - short)];
                typed(Some(Reservation::of_groups(&groups, workers)), None)
            }
            Policy::CFcfs => typed(None, None),
            Policy::DFcfs => Server::Random(StreamSeed::derive(seed, "workers", 0).stream()),
            Policy::Slices(slices) => {
                let count = if slices.by_type { types.len() } else { 1 };
                let queues = vec![[Fifo::EMPTY; 2]; count];
                let means = profiles.iter().map(|profile| profile.mean).collect();
                Server::Shared(TimeSharing { slices, queues, means, idle: first(workers) })
            }
        };
        Self { config, engine, services: [service, later], server, updates: 0 }
    }

    /// Handles the arrival of a task.
    fn arrive(&mut self) {
        let is_later = self.engine.remaining < self.config.tasks / 2;
        let task = self.engine.arrive(&self.services[usize::from(is_later)], ticks_of, 0);
        let Self { engine, server, .. } = self;
        match server {
            Server::Typed(queues) => {
                queues.push(type_of(&engine.flights[task]), task, &mut engine.flights);
                self.start_all();
            }
            Server::Random(stream) => {
                engine.flights[task].worker = index(stream, self.config.workers) as u32;
                engine.arrive_at_worker(task);
            }
            Server::Shared(sharing) => {
                let flight = &mut engine.flights[task];
                flight.route = flight.service;
                sharing.push(task, false, &mut engine.flights);
                if sharing.idle != 0 {
                    let worker = take(&mut sharing.idle, 1).trailing_zeros();
                    self.start_slice(worker, 0);
                }
            }
        }
    }

    /// Starts all tasks that may start on queues by type.
    fn start_all(&mut self) {
        let Self { engine, server: Server::Typed(queues), updates, .. } = self else { return };
        *updates += u64::from(queues.update(engine.now, &engine.flights));
        while let Some((task, worker)) = queues.next(&engine.flights) {
            engine.flights[task].worker = worker as u32;
            engine.start(task);
        }
    }

    /// Starts the next slice on a worker after `delay` ticks, or makes the worker idle if no task waits.
    fn start_slice(&mut self, worker: u32, delay: u64) {
        let Self { engine, server: Server::Shared(sharing), .. } = self else { return };
        let Some(task) = sharing.pop(engine.now, &engine.flights) else {
            sharing.idle |= 1 << worker;
            return;
        };
        let flight = &mut engine.flights[task];
        flight.worker = worker;
        let slice = flight.route.min(ticks_of(sharing.slices.quantum_ns));
        engine.after(delay + slice, event::DONE, task.into());
    }

    /// Handles the end of a task or of its slice.
    fn done(&mut self, task: u32) {
        let SimTask { worker, service, .. } = self.engine.flights[task];
        let kind = type_of(&self.engine.flights[task]);
        let Self { engine, server, .. } = self;
        match server {
            Server::Typed(queues) => {
                queues.on_completion(worker as usize, kind, service);
                engine.complete(task, worker as usize);
                engine.flights.remove(task);
                self.start_all();
            }
            Server::Random(_) => {
                engine.done(task, worker as usize);
                engine.flights.remove(task);
            }
            Server::Shared(sharing) => {
                let Slices { quantum_ns, cost_ns, .. } = sharing.slices;
                let flight = &mut engine.flights[task];
                flight.route -= flight.route.min(ticks_of(quantum_ns));
                let left = flight.route;
                if left == 0 {
                    engine.complete(task, worker as usize);
                    engine.flights.remove(task);
                    self.start_slice(worker, 0);
                } else if sharing.has_waiting() {
                    sharing.push(task, true, &mut engine.flights);
                    self.start_slice(worker, ticks_of(cost_ns));
                } else {
                    engine.after(left.min(ticks_of(quantum_ns)), event::DONE, task.into());
                }
            }
        }
    }
}

/// Name in claims.
const SYSTEM: &str = "darc";
/// Workers of the paper's server.
const WORKERS: usize = 14;
/// Workers of the paper's first simulation.
const SIMULATED_WORKERS: usize = 16;
/// Half of the tasks short, half long.
const HIGH_BIMODAL: [TaskType; 2] = [task_type(1.0, 0.5), task_type(100.0, 0.5)];
/// Short tasks, and a few that take a thousand times as long.
const EXTREME_BIMODAL: [TaskType; 2] = [task_type(0.5, 0.995), task_type(500.0, 0.005)];
/// Transactions of TPC-C: payment, order status, new order, delivery, stock level.
const TPCC: [TaskType; 5] = [
    task_type(5.7, 0.44),
    task_type(6.0, 0.04),
    task_type(20.0, 0.44),
    task_type(88.0, 0.04),
    task_type(100.0, 0.04),
];
/// GET and SCAN of RocksDB.
const ROCKSDB: [TaskType; 2] = [task_type(1.5, 0.5), task_type(635.0, 0.5)];
/// Cost of a preemption in the paper's simulation.
const PREEMPTION_NS: f64 = 1e3;

/// Returns time sharing with this quantum in microseconds and the paper's cost of a preemption.
const fn shinjuku(quantum_us: f64, by_type: bool) -> Policy {
    Policy::Slices(Slices { quantum_ns: quantum_us * 1e3, cost_ns: PREEMPTION_NS, by_type })
}

/// Experiment on one workload.
struct Bench<'a> {
    workers: usize,
    types: &'a [TaskType],
    tasks: u64,
    seed: u64,
}

impl Bench<'_> {
    /// Runs a policy at a load.
    fn run(&self, policy: Policy, load: f64) -> Outcome {
        let &Self { workers, types, tasks, seed } = self;
        let types = types.to_vec();
        run(&Config { workers, types, later: None, policy, load, tasks, seed }).outcome
    }

    /// Returns the highest load at which the slowdown is at most `target` at the 99.9th percentile.
    fn load_at_slowdown(&self, policy: Policy, target: f64) -> f64 {
        sustained_load(target, |load| {
            let outcome = self.run(policy, load);
            stable(&outcome, slowdown(&outcome, 0.999))
        })
    }

    /// Returns the highest load at which the response time of the first type is at most `target` microseconds at the
    /// 99.9th percentile.
    fn load_at_response(&self, policy: Policy, target: f64) -> f64 {
        sustained_load(target, |load| {
            let outcome = self.run(policy, load);
            stable(&outcome, type_us(&outcome, 0, 0.999))
        })
    }

    /// Returns the slowdowns of two policies at the 99.9th percentile.
    fn slowdowns(&self, policies: [Policy; 2], load: f64) -> (f64, f64) {
        let [a, b] = policies.map(|policy| {
            let outcome = self.run(policy, load);
            stable(&outcome, slowdown(&outcome, 0.999))
        });
        (a, b)
    }

    /// Returns the response times of a type under two policies at the 99.9th percentile.
    fn responses(&self, policies: [Policy; 2], kind: usize, load: f64) -> (f64, f64) {
        let [a, b] = policies.map(|policy| {
            let outcome = self.run(policy, load);
            stable(&outcome, type_us(&outcome, kind, 0.999))
        });
        (a, b)
    }
}

/// DARC that knows the service times, as the authors' scripts configure it.
const DARC: Policy = Policy::Darc(true);
/// Loads to try where the paper states the highest ratio over all loads.
const LOADS: [f64; 8] = [0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98];

/// Runs the paper's experiments.
pub(super) fn claims(tasks: u64, seed: u64) -> Vec<Claim> {
    let bench = |workers, types| Bench { workers, types, tasks, seed };
    let mut claims = motivation(&bench(SIMULATED_WORKERS, &EXTREME_BIMODAL));
    claims.extend(high_bimodal(&bench(WORKERS, &HIGH_BIMODAL)));
    claims.extend(reservations(&bench(WORKERS, &HIGH_BIMODAL), "High Bimodal"));
    claims.extend(reservations(&bench(WORKERS, &EXTREME_BIMODAL), "Extreme Bimodal"));
    claims.extend(extreme_bimodal(&bench(WORKERS, &EXTREME_BIMODAL)));
    claims.extend(tpcc(&bench(WORKERS, &TPCC)));
    claims.extend(rocksdb(&bench(WORKERS, &ROCKSDB)));
    claims
}

/// Creates a claim of this system.
fn claim(
    compared: &'static str,
    conditions: impl Into<String>,
    claimed: impl Into<Option<f64>>,
    values: (f64, f64),
    source: &'static str,
) -> Claim {
    let (conditions, claimed) = (conditions.into(), claimed.into());
    Claim { system: SYSTEM, compared, conditions, claimed, values, source }
}

/// Source of claims whose figures are from memory.
const RECALLED: &str =
    "Perséphone, SOSP'21, evaluation (ratio recalled, not checked against the text)";
/// Source of claims about c-FCFS of another system.
const SHENANGO: &str = "Perséphone, SOSP'21, evaluation (ratio recalled, not checked; the paper's c-FCFS is Shenango \
                        on a test bed, here a central queue without costs)";
/// Source of claims about Shinjuku.
const SHINJUKU: &str = "Perséphone, SOSP'21, evaluation (ratio recalled, not checked; here a preemption costs 1 us, \
                        and nothing else has a cost)";

/// Runs the simulation that motivates the paper.
fn motivation(bench: &Bench<'_>) -> Vec<Claim> {
    let load = |policy| bench.load_at_slowdown(policy, 10.0);
    let (darc, shared) = (load(DARC), load(shinjuku(5.0, false)));
    let central = load(Policy::CFcfs);
    let slowdowns = bench.slowdowns([Policy::DFcfs, Policy::CFcfs], 0.5);
    let conditions = "Extreme Bimodal, 16 workers, slowdown p99.9 at most 10";
    let at = "Extreme Bimodal, 16 workers, load 0.5";
    let recalled = "Perséphone, SOSP'21, Fig. 1 (loads of DARC and c-FCFS recalled, not checked)";
    let text = "Perséphone, SOSP'21, Fig. 1 (load of time sharing from notes on the paper)";
    vec![
        claim("sustained load, 5 us time sharing / peak", conditions, 0.70, (shared, 1.0), text),
        claim("sustained load, DARC / peak", conditions, 0.95, (darc, 1.0), recalled),
        claim("sustained load, DARC / c-FCFS", conditions, 5.1 / 2.1, (darc, central), recalled),
        claim("slowdown p99.9, d-FCFS / c-FCFS", at, None, slowdowns, recalled),
    ]
}

/// Runs the experiments with High Bimodal.
fn high_bimodal(bench: &Bench<'_>) -> Vec<Claim> {
    let (best, slowdowns) =
        largest_ratio(&LOADS, |load| bench.slowdowns([Policy::CFcfs, DARC], load));
    let (worst, longs) =
        largest_ratio(&LOADS, |load| bench.responses([DARC, Policy::CFcfs], 1, load));
    let load = |policy| bench.load_at_response(policy, 20.0);
    let (darc, central, shared) = (load(DARC), load(Policy::CFcfs), load(shinjuku(5.0, true)));
    let at = |load: f64| format!("High Bimodal, 14 workers, load {load} (highest ratio)");
    let target = "High Bimodal, 14 workers, p99.9 of short tasks at most 20 us";
    vec![
        claim("slowdown p99.9, c-FCFS / DARC", at(best), 15.7, slowdowns, RECALLED),
        claim("p99.9 of long tasks, DARC / c-FCFS", at(worst), 4.2, longs, RECALLED),
        claim("sustained load, DARC / c-FCFS", target, 2.3, (darc, central), RECALLED),
        claim("sustained load, DARC / Shinjuku (5 us)", target, 1.3, (darc, shared), SHINJUKU),
    ]
}

/// Compares the best fixed reservation with DARC's at 90% load.
fn reservations(bench: &Bench<'_>, name: &str) -> Vec<Claim> {
    let figure = |policy| {
        let outcome = bench.run(policy, 0.9);
        stable(&outcome, slowdown(&outcome, 0.999))
    };
    let by_hand = (0..=5).map(|short| (figure(Policy::Static(short)), short));
    let best = by_hand.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::NAN, 0));
    let darc = Reservation::new(&Profile::exact(bench.types), bench.workers).reserved(0);
    let slowdowns = (figure(DARC), best.0);
    let conditions = format!("{name}, 14 workers, load 0.9");
    let source = "Perséphone, SOSP'21, Fig. 4 (reserved workers computed, equality recalled)";
    let counts = (f64::from(best.1), f64::from(darc));
    let compared = "workers for short tasks, best by hand / DARC";
    vec![
        claim(compared, conditions.clone(), 1.0, counts, source),
        claim("slowdown p99.9, DARC / best by hand", conditions, 1.0, slowdowns, source),
    ]
}

/// Runs the experiments with Extreme Bimodal.
fn extreme_bimodal(bench: &Bench<'_>) -> Vec<Claim> {
    let load = |policy| bench.load_at_slowdown(policy, 50.0);
    let (darc, central, shared) = (load(DARC), load(Policy::CFcfs), load(shinjuku(5.0, false)));
    let target = "Extreme Bimodal, 14 workers, slowdown p99.9 at most 50";
    vec![
        claim("sustained load, DARC / c-FCFS", target, 1.4, (darc, central), SHENANGO),
        claim("sustained load, DARC / Shinjuku (5 us)", target, 1.25, (darc, shared), SHINJUKU),
    ]
}

/// Runs the experiments with TPC-C.
fn tpcc(bench: &Bench<'_>) -> Vec<Claim> {
    const LOAD: f64 = 0.85;
    let outcomes =
        [Policy::CFcfs, shinjuku(10.0, true), DARC].map(|policy| bench.run(policy, LOAD));
    let [central, shared, darc] = &outcomes;
    let responses = |kind| (type_us(central, kind, 0.999), type_us(darc, kind, 0.999));
    let load = |policy| bench.load_at_slowdown(policy, 10.0);
    let [of_darc, of_central, of_shared] = [DARC, Policy::CFcfs, shinjuku(10.0, true)].map(load);
    let loads = |other: f64| (of_darc, other);
    let slowdowns = |other| (slowdown(other, 0.999), slowdown(darc, 0.999));
    let at = "TPC-C, 14 workers, load 0.85";
    let target = "TPC-C, 14 workers, slowdown p99.9 at most 10";
    vec![
        claim("p99.9 of Payment, c-FCFS / DARC", at, 9.2, responses(0), SHENANGO),
        claim("p99.9 of OrderStatus, c-FCFS / DARC", at, 7.0, responses(1), SHENANGO),
        claim("p99.9 of NewOrder, c-FCFS / DARC", at, 3.6, responses(2), SHENANGO),
        claim("slowdown p99.9, c-FCFS / DARC", at, 4.6, slowdowns(central), SHENANGO),
        claim("slowdown p99.9, Shinjuku (10 us) / DARC", at, 3.1, slowdowns(shared), SHINJUKU),
        claim("sustained load, DARC / c-FCFS", target, 1.2, loads(of_central), SHENANGO),
        claim("sustained load, DARC / Shinjuku (10 us)", target, 1.05, loads(of_shared), SHINJUKU),
    ]
}

/// Runs the experiments with RocksDB.
fn rocksdb(bench: &Bench<'_>) -> Vec<Claim> {
    let load = |policy| bench.load_at_slowdown(policy, 20.0);
    let (darc, central, shared) = (load(DARC), load(Policy::CFcfs), load(shinjuku(15.0, true)));
    let target = "RocksDB, 14 workers, slowdown p99.9 at most 20";
    vec![
        claim("sustained load, DARC / c-FCFS", target, 2.3, (darc, central), SHENANGO),
        claim("sustained load, DARC / Shinjuku (15 us)", target, 1.3, (darc, shared), SHINJUKU),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::measured;
    use super::*;

    /// Returns the reserved workers of each type on the paper's server.
    fn reserved(types: &[TaskType]) -> Vec<u32> {
        let reservation = Reservation::new(&Profile::exact(types), WORKERS);
        (0..types.len()).map(|kind| reservation.reserved(kind)).collect()
    }

    /// Returns a short run on the paper's server.
    fn config(types: &[TaskType], policy: Policy, load: f64) -> Config {
        let types = types.to_vec();
        Config { workers: WORKERS, types, later: None, policy, load, tasks: 40_000, seed: 3 }
    }

    /// Returns the 99.9th percentile of the first type's response times, in microseconds.
    fn short_p999(types: &[TaskType], policy: Policy, load: f64) -> f64 {
        type_us(&run(&config(types, policy, load)).outcome, 0, 0.999)
    }

    #[test]
    fn reservations_match_the_workloads() {
        // Demands: 0.14 and 13.86; 2.32 and 11.68; 2.02, 6.46 and 5.52; 0.03 and 13.97 workers.
        assert_eq!(reserved(&HIGH_BIMODAL), [1, 13]);
        assert_eq!(reserved(&EXTREME_BIMODAL), [2, 12]);
        assert_eq!(reserved(&TPCC), [2, 2, 6, 6, 6]);
        assert_eq!(reserved(&ROCKSDB), [1, 13]);
    }

    #[test]
    fn group_steals_from_longer_ones_only() {
        let reservation = Reservation::of_groups(&[(vec![0], 1), (vec![1], 2), (vec![2], 3)], 4);
        let [short, middle, long] = reservation.lanes[..] else { panic!("{reservation:?}") };
        assert_eq!((short.reserved, short.stealable), (0b0001, 0b1110));
        assert_eq!((middle.reserved, middle.stealable), (0b0110, 0b1000));
        // Three workers are wanted, and only the last one is free. It is the spillway, too.
        assert_eq!((long.reserved, long.stealable), (0b1000, 0));
    }

    #[test]
    fn group_without_free_worker_gets_spillway() {
        let reservation = Reservation::of_groups(&[(vec![0], 2), (vec![1], 1)], 2);
        assert_eq!(reservation.lanes[1].reserved, 0b10);
    }

    #[test]
    fn demand_is_rounded_half_down() {
        let demands = [0.1, 0.9, 1.5, 1.51, 3.0];
        assert_eq!(demands.map(workers_for), [1, 1, 1, 2, 3]);
    }

    #[test]
    fn each_task_is_answered_once() {
        let sliced = [false, true].map(|by_type| shinjuku(5.0, by_type));
        let policies = [DARC, Policy::Darc(false), Policy::Static(2), Policy::CFcfs, Policy::DFcfs];
        for policy in policies.into_iter().chain(sliced) {
            let outcome = run(&config(&TPCC, policy, 0.7)).outcome;
            let measured = measured(&outcome);
            assert_eq!((outcome.tasks, outcome.lost, measured), (40_000, 0, 36_000), "{policy:?}");
        }
    }

    #[test]
    fn learnt_reservation_equals_the_exact_one() {
        let finished = run(&config(&HIGH_BIMODAL, Policy::Darc(false), 0.7));
        let exact = Reservation::new(&Profile::exact(&HIGH_BIMODAL), WORKERS);
        assert_eq!((finished.reservation, finished.updates), (Some(exact), 1));
    }

    #[test]
    fn reservation_follows_swapped_types() {
        let [short, long] = HIGH_BIMODAL;
        let later = Some(vec![long, short]);
        let finished = run(&Config { later, ..config(&HIGH_BIMODAL, DARC, 0.7) });
        let reservation = finished.reservation.unwrap();
        assert_eq!((reservation.reserved(0), reservation.reserved(1)), (13, 1));
        assert!(finished.updates >= 1);
    }

    #[test]
    fn reserved_workers_serve_short_tasks_sooner() {
        let [darc, central, random] =
            [DARC, Policy::CFcfs, Policy::DFcfs].map(|p| short_p999(&HIGH_BIMODAL, p, 0.8));
        assert!(darc < central && central < random, "{darc} {central} {random}");
    }

    #[test]
    fn time_sharing_serves_short_tasks_sooner() {
        let [sliced, central] =
            [shinjuku(5.0, true), Policy::CFcfs].map(|p| short_p999(&EXTREME_BIMODAL, p, 0.5));
        assert!(sliced < central, "{sliced} {central}");
    }
}
