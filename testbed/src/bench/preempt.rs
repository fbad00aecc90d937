//! Benchmark of core sharing at a worker: response times of short tasks, throughput at saturation, and the costs of a
//! switch and of a yield point.
//!
//! With sharing, several tasks are in progress on a worker's core, each for a *quantum* in turn, so that a short task
//! need not wait for a long one. A *yield point* is a call in a task's handler at which the worker may switch to
//! another task.
//!
//! It uses two CPUs: generator and agent on the first, in one loop, and one worker with a real workload on the second.
//! The wire between generator and agent is a pair of rings in memory. Runs with and without sharing take turns.

use std::cell::Cell;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use wedjat::io::memory::{FramePool, pair};
use wedjat::ring::{Channel, TaskIds, WorkerIdentity, WorkerRegion};
use wedjat::wire::ether::Mac;
use wedjat::worker::{Cpu, Options, QuantumClock, Sharing, Task, Worker};
use wedjat_pktgen::engine::Generator;
use wedjat_pktgen::load::Load;
use wedjat_pktgen::mix::Workload;
use wedjat_pktgen::results::task;
use wedjat_pktgen::service::Service;
use wedjat_pktgen::target::Target;

use super::{median, pin, setup, two_cpus};
use crate::app::{AnyApp, RocksDb, Spin, Tpcc};
use crate::drive;
use crate::worker::serve;

/// Maximum number of packets in each direction of the wire.
const DEPTH: usize = 4096;
/// Number of packet buffers that generator and agent share.
const FRAMES: usize = 8192;
/// Maximum number of bytes of a frame.
const FRAME_BYTES: usize = 256;
/// MAC address of the generator.
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 2, 1]);
/// Number of tasks of a run at saturation. All are due within [`BURST_S`], so that the worker always has a backlog.
const SATURATING: f64 = 500.0;
/// Seconds in which all tasks of a run at saturation are due.
const BURST_S: f64 = 0.001;
/// Number of yield points in one measurement of a yield point.
const CALLS: u32 = 50_000_000;
/// Number of measurements of a yield point.
const SAMPLES: usize = 5;
/// Duration of the measurement of a switch, in which two tasks take turns.
const TURNS: Duration = Duration::from_millis(200);

/// Arguments of `bench-preempt`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// CPUs of generator and agent, and of the worker
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub cpus: Vec<usize>,
    /// Services, such as rocksdb-50-50, tpcc, or mix(.995*fixed(5us),.005*fixed(500us))
    #[arg(long = "service", default_values = ["rocksdb-50-50", "rocksdb-995-5"])]
    pub services: Vec<Service>,
    /// Offered load as a fraction of the worker's capacity, which is measured first
    #[arg(long, default_value_t = 0.7)]
    pub load: f64,
    /// Quantum in us
    #[arg(long, default_value_t = 10.0)]
    pub quantum_us: f64,
    /// End quanta by a timer signal
    #[arg(long)]
    pub timer: bool,
    /// Rounds, each with one run without and one with sharing
    #[arg(long, default_value_t = 25)]
    pub rounds: u64,
    /// Seconds of each run
    #[arg(long, default_value_t = 0.5)]
    pub seconds: f64,
}

/// Reason why there are no figures.
pub type Failure = Box<dyn std::error::Error>;

/// Medians of the rounds of one service. Each pair has the value without sharing, then the value with it.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Service.
    pub service: String,
    /// 99th percentile of each class's response times in us.
    pub p99_us: Vec<ClassFigure>,
    /// 99.9th percentile of the slowdown: response time divided by the class's median service time, measured at
    /// saturation.
    pub slowdown_p999: [f64; 2],
    /// 99th percentile of all response times in us.
    pub all_p99_us: [f64; 2],
    /// Tasks a second at saturation.
    pub saturated_per_s: [f64; 2],
    /// Ratio of the rates at saturation, with sharing to without: median of the rounds' ratios.
    pub saturated_ratio: f64,
}

/// 99th percentile of one class's response times.
#[derive(Clone, Debug, Serialize)]
pub struct ClassFigure {
    /// Name of the class.
    pub class: String,
    /// Values in us: without sharing, then with it.
    pub us: [f64; 2],
    /// Ratio of the value without sharing to that with it: median of the rounds' ratios.
    pub times_lower: f64,
}

/// All figures.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// One entry for each service.
    pub services: Vec<Comparison>,
    /// Time of a yield point that does not switch to another task, in ns.
    pub yield_point_ns: f64,
    /// Time of a switch to another task, without the quantum, in ns.
    pub switch_ns: f64,
    /// Quantum in us.
    pub quantum_us: f64,
}

/// Returns the smallest sample that is no less than this fraction of the samples (nearest rank); NaN without samples.
fn percentile(mut samples: Vec<f64>, fraction: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let rank = (fraction * samples.len() as f64).ceil() as usize;
    samples.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Set-up for the measurements of one service.
struct Bench<'a> {
    /// Service times of the tasks, by class.
    service: &'a Service,
    /// Workload of the worker.
    app: AnyApp,
    /// CPU of generator and agent, and CPU of the worker.
    cpus: [usize; 2],
    /// Sharing of the worker's core in the runs with sharing.
    sharing: Sharing,
}

/// Class and response time in us of a run's measured tasks. The time of an unanswered task is infinite.
type Responses = Vec<(u16, f64)>;

impl Bench<'_> {
    /// Offers tasks to an agent with one worker, at `rate` tasks a second. Returns the records of all tasks. Fails if
    /// an answer is wrong.
    fn run(
        &self,
        shares: bool,
        rate: f64,
        seconds: f64,
        seed: u64,
    ) -> Result<Vec<task::Task>, Failure> {
        let load = Load {
            duration_s: seconds,
            // A run at saturation measures all tasks.
            warmup_s: if seconds > BURST_S { 0.1 } else { 0.0 },
            drain_s: 5.0,
            seed,
            // Gives runs with and without sharing different application ids, which also differ by round, so that late
            // answers of another run do not count.
            run: 2 * seed as u32 + u32::from(shares),
            verify: true,
            records_tasks: true,
            ..Load::new(rate, self.service.clone())
        };
        let frames = FramePool::new(FRAMES, FRAME_BYTES);
        let (near, far) = pair(DEPTH, &frames);
        let config = setup::config("jbsq(k=32)", 1)?;
        let region =
            Arc::new(WorkerRegion::heap_for(&config.host.identities(), config.host.shape())?);
        // Frequency of the clock of generator and agent: a tick is 1 ns.
        let hz = 1_000_000_000;
        let (mut agent, _) = setup::agent(&config, near, frames.clone(), &region, hz)?;
        let began = Instant::now();
        let now = || began.elapsed().as_nanos() as u64;
        let stop = AtomicBool::new(false);
        let sharing = shares.then_some(&self.sharing);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                pin(self.cpus[1]);
                let mut worker = Worker::join("bench-preempt", &region, &Options::default())
                    .map_err(|error| error.to_string())?;
                serve(&mut worker, &self.app, sharing, &stop).map_err(|error| error.to_string())
            });
            // Until the agent has admitted the worker, or the worker has failed.
            while !agent.is_present(WorkerIdentity { id: 0, pool: 1 }) && !worker.is_finished() {
                agent.poll(now());
            }
            let target = Target::new(CLIENT_MAC, setup::CLIENT_IP, setup::IP);
            let generator = Generator::new(&load, &target, 0, hz as f64, far, frames);
            let tally = generator.map(|mut generator| {
                // Polls generator and agent in turn until the load is over.
                drive::run(&mut generator, |at| _ = agent.poll(at), now, &AtomicBool::new(false));
                generator.into_parts().2
            });
            stop.store(true, Release);
            worker.join().map_err(|_| "the worker panicked")??;
            let (tasks, missing) = tally?.tasks(load.warmup_s);
            if missing > 0 || tasks.iter().any(|task| task.status == task::Status::Wrong) {
                return Err("answers are wrong, or tasks have no record".into());
            }
            Ok(tasks)
        })
    }

    /// Measures the worker at saturation. Returns the tasks completed a second, and for each class the median time in
    /// us from the previous answer to an answer of the class. Without sharing, this is the class's service time.
    fn saturated(&self, shares: bool, seed: u64) -> Result<(f64, Vec<f64>), Failure> {
        let tasks = self.run(shares, SATURATING / BURST_S, BURST_S, seed)?;
        let mut ends = Vec::new();
        for task in &tasks {
            let response = task.response_ps.ok_or("a task at saturation was not answered")?;
            ends.push((task.scheduled_ps + response, task.class));
        }
        ends.sort_unstable();
        let (Some(first), Some(last)) = (tasks.first(), ends.last()) else {
            return Err("no task was due at saturation".into());
        };
        let seconds = (last.0 - first.scheduled_ps) as f64 / 1e12;
        let class_us = |class| {
            let pairs = ends.windows(2).filter(|ends| ends[1].1 == class);
            median(pairs.map(|ends| (ends[1].0 - ends[0].0) as f64 / 1e6).collect())
        };
        let classes = 1..=self.service.classes().max(1) as u16;
        Ok((ends.len() as f64 / seconds, classes.map(class_us).collect()))
    }

    /// Offers tasks at this rate and returns their response times.
    fn responses(
        &self,
        shares: bool,
        rate: f64,
        seconds: f64,
        seed: u64,
    ) -> Result<Responses, Failure> {
        let tasks = self.run(shares, rate, seconds, seed)?;
        let measured = tasks.iter().filter(|task| task.measured);
        let us = |ps: Option<u64>| ps.map_or(f64::INFINITY, |ps| ps as f64 / 1e6);
        Ok(measured.map(|task| (task.class, us(task.response_ps))).collect())
    }

    /// Measures all rounds, each without and with sharing. The offered rate is a fraction of the rate that the worker
    /// without sharing reaches at saturation in the same round.
    fn compare(&self, arguments: &Arguments) -> Result<Comparison, Failure> {
        let classes = self.service.classes().max(1);
        // Samples without sharing (index 0) and with it (index 1).
        let mut p99 = vec![[Vec::new(), Vec::new()]; classes];
        let (mut slowdown, mut all, mut saturated) =
            (<[Vec<f64>; 2]>::default(), <[Vec<f64>; 2]>::default(), <[Vec<f64>; 2]>::default());
        for seed in 1..=arguments.rounds.max(1) {
            let (rate, class_us) = self.saturated(false, seed)?;
            saturated[0].push(rate);
            saturated[1].push(self.saturated(true, seed)?.0);
            for (index, shares) in [false, true].into_iter().enumerate() {
                let offered = rate * arguments.load;
                let responses = self.responses(shares, offered, arguments.seconds, seed)?;
                for (class, samples) in p99.iter_mut().enumerate() {
                    let of_class = |&&(found, _): &&(u16, f64)| {
                        classes == 1 || usize::from(found) == class + 1
                    };
                    let us: Vec<_> = responses.iter().filter(of_class).map(|(_, us)| *us).collect();
                    if us.is_empty() {
                        let name = self.service.class_name(class as u16 + 1);
                        let seconds = arguments.seconds;
                        return Err(format!(
                            "no task of class {name} in {seconds} s; give more --seconds"
                        )
                        .into());
                    }
                    samples[index].push(percentile(us, 0.99));
                }
                let service_us = |class: u16| class_us[usize::from(class).saturating_sub(1)];
                let slowdowns =
                    responses.iter().map(|(class, us)| us / service_us(*class)).collect();
                slowdown[index].push(percentile(slowdowns, 0.999));
                all[index].push(percentile(responses.iter().map(|(_, us)| *us).collect(), 0.99));
            }
        }
        // Median of the rounds' ratios.
        let ratios = |above: &[f64], below: &[f64]| {
            median(above.iter().zip(below).map(|(above, below)| above / below).collect())
        };
        let p99_us = p99.into_iter().zip(1..).map(|([without, with], class)| ClassFigure {
            class: self.service.class_name(class),
            times_lower: ratios(&without, &with),
            us: [median(without), median(with)],
        });
        Ok(Comparison {
            service: self.service.to_string(),
            p99_us: p99_us.collect(),
            slowdown_p999: slowdown.map(median),
            all_p99_us: all.map(median),
            saturated_ratio: ratios(&saturated[1], &saturated[0]),
            saturated_per_s: saturated.map(median),
        })
    }
}

/// Runs `handler` for `tasks` tasks, all sent at once, on a worker thread whose tasks share the core. `tasks` is at
/// most 16, the number of slots of the ring.
fn serve_tasks(
    cpu: usize,
    tasks: u32,
    sharing: &Sharing,
    handler: impl Fn(Task<'_>, Cpu<'_>) + Send,
) -> Result<(), Failure> {
    let region = Arc::new(WorkerRegion::heap(&[WorkerIdentity { id: 0, pool: 0 }], 16, 64)?);
    let mut channel: Channel = region.channel(0);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            pin(cpu);
            let mut worker = Worker::join("bench-preempt", &region, &Options::default())
                .map_err(|error| error.to_string())?;
            worker.serve(sharing, handler).map_err(|error| error.to_string())
        });
        // Admits the worker, as an agent does.
        while !channel.sender().is_granted() && !worker.is_finished() {
            let claim = channel.sender().claim();
            if claim != 0 {
                channel.sender_mut().grant(claim);
            }
        }
        for seq in 0..tasks {
            channel.send(TaskIds { seq, ..TaskIds::default() }, &[]);
        }
        channel.stop();
        worker.join().map_err(|_| "the worker panicked")??;
        Ok(())
    })
}

/// Measures a yield point that does not switch to another task, in ns. Subtracts the time of an empty loop.
fn yield_point_ns(cpu: usize, sharing: &Sharing) -> Result<f64, Failure> {
    let samples = std::sync::Mutex::new(Vec::new());
    // A single task, so that no other one waits for the core.
    serve_tasks(cpu, 1, sharing, |_, cpu| {
        let timed = |call: &dyn Fn()| {
            let began = Instant::now();
            call();
            began.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        };
        for _ in 0..SAMPLES {
            let with = timed(&|| {
                for round in 0..CALLS {
                    std::hint::black_box(round);
                    cpu.yield_point();
                }
            });
            let without = timed(&|| {
                for round in 0..CALLS {
                    std::hint::black_box(round);
                }
            });
            if let Ok(mut samples) = samples.lock() {
                samples.push(with - without);
            }
        }
    })?;
    Ok(median(samples.into_inner().unwrap_or_default()))
}

/// Measures a switch to another task without the quantum, in ns: two tasks take turns for [`TURNS`].
fn switch_ns(cpu: usize) -> Result<f64, Failure> {
    let quantum = Duration::from_micros(1);
    let sharing = Sharing { quantum, ..Sharing::default() };
    let (result, is_over) = (std::sync::Mutex::new(f64::NAN), AtomicBool::new(false));
    // Number of turns of both tasks, and the task that runs.
    let turns = std::sync::atomic::AtomicU64::new(0);
    let current = std::sync::atomic::AtomicU32::new(u32::MAX);
    serve_tasks(cpu, 2, &sharing, |task, cpu| {
        let seq = task.ids().seq;
        let began = Cell::new(Instant::now());
        while !is_over.load(Acquire) {
            // A changed value means that this task has just got the core.
            if current.swap(seq, Relaxed) != seq {
                turns.fetch_add(1, Relaxed);
                // The first task ends the measurement for both.
                if seq == 0 && began.get().elapsed() > TURNS {
                    let ns = began.get().elapsed().as_secs_f64() * 1e9;
                    let each = ns / turns.load(Relaxed) as f64;
                    if let Ok(mut result) = result.lock() {
                        *result = each - quantum.as_secs_f64() * 1e9;
                    }
                    is_over.store(true, Release);
                }
            }
            cpu.yield_point();
        }
    })?;
    Ok(result.into_inner().unwrap_or(f64::NAN))
}

/// Creates the workload of a service, and the temporary folder that must outlive it.
fn app(service: &Service) -> Result<(AnyApp, Option<tempfile::TempDir>), Failure> {
    let began = Instant::now();
    let spin = || Spin::calibrate(|| began.elapsed().as_nanos() as u64).spin;
    Ok(match service.workload() {
        Workload::Spin => (AnyApp::Spin(spin()), None),
        Workload::Tpcc => (AnyApp::Tpcc(Tpcc::new(spin())), None),
        Workload::Echo => (AnyApp::Echo(crate::app::Echo), None),
        Workload::RocksDb => {
            let folder = RocksDb::scratch()?;
            (AnyApp::RocksDb(RocksDb::open(folder.path())?), Some(folder))
        }
    })
}

/// Measures all services, then a yield point and a switch on the worker's CPU.
///
/// # Errors
/// If `--cpus` does not name two different usable CPUs, or a measurement fails.
pub fn measure(arguments: &Arguments) -> Result<Figures, Failure> {
    let [load_cpu, worker_cpu] = two_cpus(&arguments.cpus, "the agent")?;
    if !(arguments.load > 0.0 && arguments.load < 1.0) {
        return Err(format!("--load {}: must be between 0 and 1", arguments.load).into());
    }
    let quantum = Duration::try_from_secs_f64(arguments.quantum_us / 1e6)
        .map_err(|error| format!("--quantum-us {}: {error}", arguments.quantum_us))?;
    let clock = if arguments.timer { QuantumClock::Timer } else { QuantumClock::Readings };
    let sharing = Sharing { quantum, clock, ..Sharing::default() };
    pin(load_cpu);
    let mut services = Vec::new();
    for service in &arguments.services {
        let (app, _folder) = app(service)?;
        let bench = Bench { service, app, cpus: [load_cpu, worker_cpu], sharing };
        services.push(bench.compare(arguments)?);
    }
    Ok(Figures {
        services,
        yield_point_ns: yield_point_ns(worker_cpu, &sharing)?,
        switch_ns: switch_ns(worker_cpu)?,
        quantum_us: arguments.quantum_us,
    })
}

/// Measures and writes the figures.
///
/// # Errors
/// If [`measure`] or the output fails.
pub fn report(arguments: &Arguments, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let figures = measure(arguments)?;
    if json {
        serde_json::to_writer_pretty(&mut *out, &figures)?;
        return Ok(writeln!(out)?);
    }
    let percent = arguments.load * 100.0;
    for comparison in &figures.services {
        let Comparison { service, .. } = comparison;
        writeln!(out, "{service} at {percent:.0}% load, one task at a time | shared")?;
        for ClassFigure { class, us: [without, with], times_lower } in &comparison.p99_us {
            writeln!(
                out,
                "  {class:8} p99 {without:9.1} | {with:9.1} us, {times_lower:.2} x lower"
            )?;
        }
        let [without, with] = comparison.all_p99_us;
        writeln!(out, "  all      p99 {without:9.1} | {with:9.1} us")?;
        let [without, with] = comparison.slowdown_p999;
        writeln!(out, "  slowdown p99.9 {without:7.1} | {with:9.1}")?;
        let ([without, with], ratio) = (comparison.saturated_per_s, comparison.saturated_ratio);
        writeln!(out, "  saturated    {without:9.0} | {with:9.0} tasks a second, {ratio:.3} x")?;
    }
    writeln!(out, "yield point  {:9.2} ns", figures.yield_point_ns)?;
    writeln!(out, "switch       {:9.1} ns beside a quantum of 1 us", figures.switch_ns)?;
    writeln!(
        out,
        "medians of {} rounds of {} s; quantum {} us",
        arguments.rounds, arguments.seconds, figures.quantum_us
    )?;
    Ok(())
}
