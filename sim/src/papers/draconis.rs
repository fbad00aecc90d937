//! Draconis (EuroSys 2024): a central queue of tasks in the switch, from which idle executors pull.
//!
//! An executor is a core with room for one task. It requests the next task when the former one ends. The switch
//! returns the first task of the queue, or nothing. Then the executor asks again at once, so an idle executor polls
//! once per round trip. The engine simulates only those polls that may find a task.
//!
//! Polls of an empty queue move the switch's read counter past its write counter. The next submission repairs it by one
//! more pass through the switch, before which its task is invisible. Submissions in the meantime wait for the same
//! repair. Submissions to a full queue are rejected. Each submission has one task.
//!
//! The metric is the scheduling delay, from the arrival at the switch to the start of the service. Baselines: the same
//! queue in a server, which schedules a limited number of tasks per second and keeps the requests of idle executors;
//! RackSched ([`super::pallas`]) with a queue per server; R2P2 (ATC 2019), which sends at most k tasks to an executor
//! (`ct` with the leaf's policy `jbsq`). R2P2 sends a task to an idle executor at once, so it has the lower delay while
//! executors are idle.
//!
//! Only the paper's FCFS policy is modelled. Its policies for priorities, resources and locality have no public code.

use std::collections::BTreeSet;

use wedjat_core::policy::fifo::Fifo;
use wedjat_workload::results::Status;
use wedjat_workload::service::Service;

use super::super::engine::{Engine, NextEvent};
use super::super::events::event;
use super::super::hop::TICKS_PER_US;
use super::super::outcome::Outcome;
use super::experiment::{
    Delays, Jbsq, TaskType, delay_us, jbsq, service_of, stable, sustained_load, task_type,
};
use super::pallas::{self, ServerPolicy};
use super::{Claim, Run, ticks_of};

/// Kinds of events besides those of [`event`].
mod kind {
    /// An executor's request arrives at the scheduler.
    pub const PULL: u64 = 3;
    /// A task enters the queue.
    pub const QUEUED: u64 = 4;
}

/// Location of the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scheduler {
    /// A switch, with this duration of an additional pass in nanoseconds.
    Switch {
        /// Duration of a pass in nanoseconds.
        pass_ns: f64,
    },
    /// A server.
    Server {
        /// Maximum number of tasks that it schedules per second.
        tasks_per_s: f64,
    },
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of executors.
    pub executors: usize,
    /// Delay in nanoseconds between scheduler and executors, each way.
    pub delay_ns: f64,
    /// Location of the queue.
    pub scheduler: Scheduler,
    /// Maximum number of tasks in the queue.
    pub queue: u32,
    /// Service times.
    pub service: Service,
    /// Number of tasks per second.
    pub rate_pps: f64,
    /// Number of tasks.
    pub tasks: u64,
    /// Seed of all streams.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct FinishedRun {
    /// Outcome, with times in microseconds.
    pub outcome: Outcome,
    /// Scheduling delays.
    pub delays: Delays,
}

/// State of a run.
struct Sim<'a> {
    config: &'a Config,
    engine: Engine<()>,
    queue: Fifo,
    /// Idle executors without an event for their next poll: the time of their polls at the scheduler, modulo the round
    /// trip, and the executor. Under a server, the times are 0.
    idle: BTreeSet<(u64, u32)>,
    /// Delay between scheduler and executors in ticks, each way.
    delay: u64,
    /// Interval between two polls of an idle executor, in ticks.
    round_trip: u64,
    /// Time at which the scheduler has processed all submissions so far.
    ready_at: u64,
    delays: Delays,
}

/// Runs the model.
#[must_use]
pub fn run(config: &Config) -> FinishedRun {
    let mut sim = Sim::new(config);
    while let Some(next) = sim.engine.next(u64::MAX) {
        match next {
            NextEvent::Arrival => sim.arrive(),
            NextEvent::Event(event::AT_WORKER, task) => sim.start(task as u32),
            NextEvent::Event(event::DONE, task) => sim.done(task as u32),
            NextEvent::Event(kind::PULL, executor) => sim.pull(executor as u32),
            NextEvent::Event(_, task) => sim.enqueue(task as u32),
            NextEvent::Timer => {}
        }
    }
    FinishedRun { outcome: sim.engine.finish(TICKS_PER_US), delays: sim.delays }
}

impl<'a> Sim<'a> {
    /// Creates a run, in which the polls of the executors are evenly distributed at the start.
    fn new(config: &'a Config) -> Self {
        let &Config { executors, delay_ns, rate_pps, tasks, seed, .. } = config;
        let run = Run { tasks, rate_pps, workers: executors, seed };
        let delay = ticks_of(delay_ns);
        let round_trip = (2 * delay).max(1);
        let phase = |executor: u64| match config.scheduler {
            Scheduler::Switch { .. } => executor * round_trip / executors as u64,
            Scheduler::Server { .. } => 0,
        };
        Self {
            config,
            engine: run.engine(),
            queue: Fifo::EMPTY,
            idle: (0..executors as u32)
                .map(|executor| (phase(executor.into()), executor))
                .collect(),
            delay,
            round_trip,
            ready_at: 0,
            delays: Delays::new(tasks),
        }
    }

    /// Handles the arrival of a task, which enters the queue at once or after its processing.
    fn arrive(&mut self) {
        let task = self.engine.arrive(&self.config.service, ticks_of, ());
        let now = self.engine.now;
        self.ready_at = match self.config.scheduler {
            // While no task waits, idle executors have polled the empty queue. A repair is not repeated while it lasts.
            Scheduler::Switch { pass_ns }
                if self.ready_at <= now && self.queue.is_empty() && !self.idle.is_empty() =>
            {
                now + ticks_of(pass_ns)
            }
            // At least a tick after the last submission, so that they keep their order.
            Scheduler::Switch { .. } => now.max(self.ready_at + 1),
            Scheduler::Server { tasks_per_s } => {
                self.ready_at.max(now) + ticks_of(1e9 / tasks_per_s)
            }
        };
        match self.ready_at - now {
            0 => self.enqueue(task),
            wait => self.engine.after(wait, kind::QUEUED, task.into()),
        }
    }

    /// Adds a task to the queue, or rejects it. The idle executor with the next poll may find it.
    fn enqueue(&mut self, task: u32) {
        if self.queue.len() >= self.config.queue {
            self.engine.lose(task, Status::Lost);
            return;
        }
        self.queue.push(task, &mut self.engine.flights);
        let phase = self.engine.now % self.round_trip;
        let later = self.idle.range((phase, 0)..).next();
        let Some(&next) = later.or_else(|| self.idle.first()) else { return };
        self.idle.remove(&next);
        let wait = match self.config.scheduler {
            Scheduler::Switch { .. } => (next.0 + self.round_trip - phase) % self.round_trip,
            Scheduler::Server { .. } => 0,
        };
        self.engine.after(wait, kind::PULL, next.1.into());
    }

    /// Handles an executor's request: sends the first task, or nothing.
    fn pull(&mut self, executor: u32) {
        let Self { engine, queue, idle, delay, round_trip, .. } = self;
        if let Some(task) = queue.pop(&engine.flights) {
            engine.flights[task].worker = executor;
            engine.after(*delay, event::AT_WORKER, task.into());
            return;
        }
        let phase = match self.config.scheduler {
            Scheduler::Switch { .. } => engine.now % *round_trip,
            Scheduler::Server { .. } => 0,
        };
        idle.insert((phase, executor));
    }

    /// Starts a task at its executor.
    fn start(&mut self, task: u32) {
        self.engine.start(task);
        self.delays.add(&self.engine.flights[task]);
    }

    /// Ends a task at its executor, which requests the next one.
    fn done(&mut self, task: u32) {
        let executor = self.engine.flights[task].worker;
        self.engine.complete(task, executor as usize);
        self.engine.flights.remove(task);
        self.engine.after(self.delay, kind::PULL, executor.into());
    }
}

/// Name in claims.
const SYSTEM: &str = "draconis";
/// Servers with executors.
const SERVERS: usize = 10;
/// Executors of a server.
const CORES: usize = 16;
/// Slots of the switch's queue.
const QUEUE: u32 = 524_288;
/// Delay between switch and executors, assumed.
const DELAY_NS: f64 = 1e3;
/// Duration of a repair in the switch, assumed.
const PASS_NS: f64 = 800.0;
/// Delay between the scheduler's server and executors, assumed: through the switch, and the server's receive path.
const SERVER_DELAY_NS: f64 = 2.5e3;
/// Rate of the scheduler's server, assumed.
const SERVER_TASKS_PER_S: f64 = 1.1e6;
/// Service time of the tasks that measure the throughput.
const NO_OP_US: f64 = 0.1;

/// Workload of an experiment.
struct Bench {
    name: &'static str,
    types: Vec<TaskType>,
    /// Service times.
    service: Service,
    tasks: u64,
    seed: u64,
}

impl Bench {
    /// Creates an experiment with constant service times by type.
    fn of_types(name: &'static str, types: &[TaskType], tasks: u64, seed: u64) -> Self {
        Self { name, types: types.to_vec(), service: service_of(types), tasks, seed }
    }

    /// Returns the number of tasks per second at a load.
    fn rate_pps(&self, load: f64) -> f64 {
        load * (SERVERS * CORES) as f64 / self.service.mean_ns() * 1e9
    }

    /// Returns the run of Draconis with this scheduler.
    fn config(&self, scheduler: Scheduler, rate_pps: f64) -> Config {
        let delay_ns = match scheduler {
            Scheduler::Switch { .. } => DELAY_NS,
            Scheduler::Server { .. } => SERVER_DELAY_NS,
        };
        Config {
            executors: SERVERS * CORES,
            delay_ns,
            scheduler,
            queue: QUEUE,
            service: self.service.clone(),
            rate_pps,
            tasks: self.tasks,
            seed: self.seed,
        }
    }

    /// Returns the scheduling delay of Draconis at the 99th percentile, in microseconds; infinity in overload.
    fn draconis(&self, scheduler: Scheduler, rate_pps: f64) -> f64 {
        let finished = run(&self.config(scheduler, rate_pps));
        stable(&finished.outcome, finished.delays.us(0.99))
    }

    /// Returns the scheduling delay of RackSched with c-FCFS in the servers, as [`Bench::draconis`] does.
    fn racksched(&self, load: f64) -> f64 {
        let config = pallas::Config {
            servers: SERVERS,
            cores: CORES,
            delay_ns: DELAY_NS,
            types: self.types.clone(),
            service: Some(self.service.clone()),
            later: None,
            burstiness: None,
            policy: pallas::Policy::RackSched(ServerPolicy::CFcfs),
            load,
            tasks: self.tasks,
            seed: self.seed,
        };
        pallas::run(&config).delays.us(0.99)
    }

    /// Returns the scheduling delay of R2P2 with at most `k` tasks per executor; NaN if the run fails.
    fn r2p2(&self, k: u32, load: f64) -> f64 {
        let (workers, tasks, seed) = (SERVERS * CORES, self.tasks, self.seed);
        let jbsq = jbsq(&Jbsq { workers, k, delay_ns: DELAY_NS, load, tasks, seed }, &self.service);
        jbsq.map_or(f64::NAN, |outcome| delay_us(&outcome, 0.99))
    }
}

/// The paper's switch.
const SWITCH: Scheduler = Scheduler::Switch { pass_ns: PASS_NS };
/// The scheduler's server.
const SERVER: Scheduler = Scheduler::Server { tasks_per_s: SERVER_TASKS_PER_S };

/// Runs the paper's experiments.
pub(super) fn claims(tasks: u64, seed: u64) -> Vec<Claim> {
    let exp = Bench {
        name: "exponential 250 us",
        types: vec![task_type(250.0, 1.0)],
        service: Service::exp(250e3),
        tasks,
        seed,
    };
    let benches = [
        Bench::of_types("fixed 100 us", &[task_type(100.0, 1.0)], tasks, seed),
        Bench::of_types(
            "half 100 us, half 500 us",
            &[task_type(100.0, 0.5), task_type(500.0, 0.5)],
            tasks,
            seed,
        ),
        exp,
    ];
    let delays = benches
        .iter()
        .flat_map(|bench| [0.8, 0.95].into_iter().flat_map(|load| delay_claims(bench, load)));
    delays.chain([throughput(tasks, seed)]).collect()
}

/// Compares scheduling delays on a workload at a load.
fn delay_claims(bench: &Bench, load: f64) -> Vec<Claim> {
    let rate_pps = bench.rate_pps(load);
    let draconis = bench.draconis(SWITCH, rate_pps);
    let source = "Draconis, EuroSys'24, abstract: 3 to 200 times; 3 for RackSched is recalled, not checked; loads, \
                  delays and number of executors assumed";
    let r2p2 = "Draconis, EuroSys'24: ratio from a brief, not confirmed; the abstract has 3 to 200; loads, delays and \
                number of executors assumed; our R2P2 has no cost in the switch";
    let direction = "Draconis, EuroSys'24, abstract: 3 to 200 times; no ratio known for this baseline; in a server: \
                     1.1 million tasks/s assumed";
    let rows = [
        ("scheduling delay p99, RackSched / Draconis", Some(3.0), bench.racksched(load), source),
        ("scheduling delay p99, R2P2 with k = 3 / Draconis", Some(20.0), bench.r2p2(3, load), r2p2),
        ("scheduling delay p99, R2P2 with k = 1 / Draconis", None, bench.r2p2(1, load), direction),
        (
            "scheduling delay p99, same queue in a server / Draconis",
            None,
            bench.draconis(SERVER, rate_pps),
            direction,
        ),
    ];
    let conditions = format!("{}, load {load}, 10 servers with 16 executors", bench.name);
    let claim = |(compared, claimed, value, source)| Claim {
        system: SYSTEM,
        compared,
        conditions: conditions.clone(),
        claimed,
        values: (value, draconis),
        source,
    };
    rows.into_iter().map(claim).collect()
}

/// Compares the throughput of switch and server with tasks that take almost no time.
fn throughput(tasks: u64, seed: u64) -> Claim {
    const TARGET_US: f64 = 50.0;
    let bench = Bench::of_types("no-op", &[task_type(NO_OP_US, 1.0)], tasks, seed);
    let limit = (SERVERS * CORES) as f64 / (NO_OP_US + 2e-3 * DELAY_NS) * 1e6;
    let sustained = |scheduler, limit: f64| {
        limit * sustained_load(TARGET_US, |part| bench.draconis(scheduler, part * limit))
    };
    let values = (sustained(SWITCH, limit), sustained(SERVER, SERVER_TASKS_PER_S));
    Claim {
        system: SYSTEM,
        compared: "tasks per second, Draconis / same queue in a server",
        conditions: format!(
            "tasks of {NO_OP_US} us, 160 executors, scheduling delay p99 at most {TARGET_US} us"
        ),
        claimed: Some(52.0),
        values,
        source: "Draconis, EuroSys'24, abstract; in our simulation the executors limit the switch, and the server's \
                 rate (1.1 million tasks/s) is assumed",
    }
}

#[cfg(test)]
mod tests {
    use super::super::measured;
    use super::*;

    /// Returns an experiment with tasks of 100 us.
    fn bench(tasks: u64) -> Bench {
        Bench::of_types("fixed 100 us", &[task_type(100.0, 1.0)], tasks, 3)
    }

    #[test]
    fn each_task_is_answered_once() {
        let bench = bench(20_000);
        for scheduler in [SWITCH, SERVER] {
            let finished = run(&bench.config(scheduler, bench.rate_pps(0.6)));
            assert_eq!((finished.outcome.tasks, finished.outcome.lost), (20_000, 0));
            assert_eq!(finished.delays.count(), 18_000);
        }
    }

    #[test]
    fn delay_has_pass_poll_and_way() {
        // Few tasks: each finds idle executors that poll every two microseconds.
        let bench = bench(2_000);
        let delays = run(&bench.config(SWITCH, bench.rate_pps(0.01))).delays;
        let shortest = (PASS_NS + DELAY_NS) / 1e3;
        // Some tasks arrive during the repair for another one, and wait for less than a pass.
        assert!(delays.us(0.1) >= 0.999 * shortest, "{}", delays.us(0.1));
        assert!(delays.us(1.0) <= 1.001 * shortest + 2.0 * DELAY_NS / 1e3, "{}", delays.us(1.0));
    }

    #[test]
    fn full_queue_rejects_tasks() {
        let bench = bench(20_000);
        let config = Config { queue: 10, ..bench.config(SWITCH, bench.rate_pps(1.5)) };
        let finished = run(&config);
        let answered = measured(&finished.outcome);
        assert!(finished.outcome.lost > 5_000, "{}", finished.outcome.lost);
        assert!(answered > 10_000 && answered + finished.outcome.lost <= 20_000);
        // At most ten tasks wait, so the delay is short.
        assert!(finished.delays.us(1.0) < 50.0, "{}", finished.delays.us(1.0));
    }

    #[test]
    fn pulling_agrees_with_queues_of_one() {
        let bench = bench(40_000);
        let (pulled, pushed) = (bench.draconis(SWITCH, bench.rate_pps(0.95)), bench.r2p2(1, 0.95));
        assert!((pulled / pushed - 1.0).abs() < 0.2, "{pulled} {pushed}");
    }

    #[test]
    fn deeper_queues_delay_tasks() {
        let bench = bench(40_000);
        assert!(bench.r2p2(3, 0.97) > bench.draconis(SWITCH, bench.rate_pps(0.97)));
    }

    #[test]
    fn server_limits_the_rate() {
        let bench = bench(40_000);
        let rate_pps = bench.rate_pps(0.8);
        assert!(rate_pps > SERVER_TASKS_PER_S);
        assert!(bench.draconis(SERVER, rate_pps) > 100.0 * bench.draconis(SWITCH, rate_pps));
    }

    #[test]
    fn central_queue_beats_a_queue_per_server() {
        let bench = bench(40_000);
        assert!(bench.racksched(0.8) > bench.draconis(SWITCH, bench.rate_pps(0.8)));
    }
}
