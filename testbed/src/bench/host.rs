//! Benchmark of the hand-over: cost of sending a task to a worker core and receiving the credit. The credit is
//! the worker's notice of room for one more task. DPDK's own mechanisms are measured in the same run: rings, the
//! distributor, and the event devices dsw and sw. An agent is the process of a worker host that gives tasks to the
//! worker cores in this way.
//!
//! It uses two cores. This thread dispatches on the first, one worker thread replies on the second. The
//! subjects (measured mechanisms) take turns, so that a slow phase of the machine slows all of them. A result is
//! the median of the rounds; a ratio is the median of the rounds' ratios. The benchmark also measures the round
//! trip of a cache line between the two cores, the basis of all other costs.
//!
//! The event device sw needs a core for its scheduler. With two cores the dispatcher runs it between its bursts, like
//! the scheduler of the distributor. The threads of dsw schedule the events that they send.
//!
//! Two more parts follow: an agent under load (`loaded`), and workers killed under load (`killed`).

mod killed;
mod loaded;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use wedjat::io::dpdk::{Distributor, Eal, EventDevice, EventDeviceError, MbufPool, RingPair};
use wedjat::limits::BURST;
use wedjat::policy::{Core, Dispatcher, Overflow};
use wedjat::ring::{Channel, Notice, Outcome, TaskIds, WorkerEnd, WorkerIdentity, WorkerRegion};
use wedjat::role::agent::{Completion, Work, WorkerSet};
use wedjat::state::View;

use super::{median, pin, two_cpus};
use loaded::{LoadedResults, Loops};

/// Number of workers in the measurement of the dispatcher's throughput.
const WORKERS: u16 = 16;
/// Maximum number of tasks at each of these workers.
const BOUND: usize = 8;
/// DPDK's event devices that are measured, with the names of their results. They are software, so they need no
/// hardware.
const EVENT_DEVICES: [(&str, &str); 2] =
    [("event_dsw0", "event_dsw0_burst_depth_8"), ("event_sw0", "event_sw0_burst_depth_8")];

/// Arguments of `bench-host`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// CPUs of the dispatcher and of the worker
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub cpus: Vec<usize>,
    /// Rounds, each with one measurement per subject
    #[arg(long, default_value_t = 61)]
    pub rounds: usize,
    /// Tasks per measurement: a small number, so that occasional stalls of the machine spoil few measurements
    #[arg(long, default_value_t = 10_000)]
    pub tasks: u64,
    /// Seconds of load on an agent with 32 emulated workers; 0 leaves it out
    #[arg(long, default_value_t = 8)]
    pub load_seconds: u64,
    /// Worker processes killed with SIGKILL under load, one after another; 0 leaves it out
    #[arg(long, default_value_t = 11)]
    pub kills: u64,
}

/// One result.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Name of the result.
    pub name: &'static str,
    /// Median of the samples, or a value over all runs.
    pub value: f64,
    /// Unit.
    pub unit: &'static str,
    /// Ratio to the reference; below 1 is less than the reference. Median of the rounds' ratios, if the reference
    /// was measured in the same rounds.
    pub ratio: Option<f64>,
    /// Name of the reference.
    pub against: Option<&'static str>,
    /// All measurements, in order of the rounds or runs.
    pub samples: Vec<f64>,
    /// Condition that the name does not state, or the reason why there are no samples.
    pub note: Option<String>,
}

/// Reason why there are no figures.
pub type Failure = Box<dyn std::error::Error>;

/// A region (the memory between an agent and its workers), with the dispatcher's and the workers' ends of all
/// channels.
struct Rig {
    /// Owner of the memory that the ends use.
    _region: Arc<WorkerRegion>,
    /// The dispatcher's ends, by worker.
    channels: Vec<Channel>,
    /// The workers' ends, by worker.
    worker_ends: Vec<WorkerEnd>,
}

impl Rig {
    /// Creates a region with `slots` tasks per channel and payloads of up to 64 bytes. Each worker claims its channel.
    fn new(workers: u16, slots: usize) -> Result<Self, Failure> {
        let identities: Vec<_> = (0..workers).map(|id| WorkerIdentity { id, pool: 0 }).collect();
        let region = Arc::new(WorkerRegion::heap(&identities, slots, 64)?);
        let (mut channels, mut worker_ends) = (Vec::new(), Vec::new());
        for index in 0..identities.len() {
            channels.push(region.channel(index));
            worker_ends.extend(region.claim(index)?);
        }
        Ok(Self { _region: region, channels, worker_ends })
    }

    /// Grants the claims of all workers, for a measurement without a dispatcher. A dispatcher grants them itself.
    fn granted(mut self) -> Self {
        for (channel, worker_end) in self.channels.iter_mut().zip(&mut self.worker_ends) {
            let sender = channel.sender_mut();
            sender.grant(sender.claim());
            worker_end.start();
        }
        self
    }
}

/// Runs `serve` on the worker's CPU until `drive` on this CPU ends. Returns the time of `drive`. The clock starts
/// once the worker's thread runs.
fn serve_on_worker_cpu(
    cpu: usize,
    serve: impl FnOnce(&AtomicBool) + Send,
    drive: impl FnOnce(),
) -> Duration {
    let (stop, ready) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpu);
            ready.store(true, Release);
            serve(&stop);
        });
        while !ready.load(Acquire) {
            std::hint::spin_loop();
        }
        let began = Instant::now();
        drive();
        let elapsed = began.elapsed();
        stop.store(true, Release);
        elapsed
    })
}

/// A word that does not share its cache line, nor the adjacent line that the processor prefetches with it.
#[repr(align(128))]
struct Line(AtomicU64);

/// Measures the round trip of a cache line in nanoseconds, as the mean of `trips`. The threads write the line in turn:
/// this one odd numbers, the worker's the next even numbers. Acquire and Release order the writes as in a ring. `stop`
/// carries no data, so Relaxed suffices for it.
fn round_trip_ns(cpu: usize, trips: u64) -> f64 {
    let line = Line(AtomicU64::new(0));
    let serve = |stop: &AtomicBool| {
        let mut expected = 1;
        while !stop.load(Relaxed) {
            if line.0.load(Acquire) == expected {
                line.0.store(expected + 1, Release);
                expected += 2;
            }
        }
    };
    let drive = || {
        for trip in 0..trips {
            line.0.store(2 * trip + 1, Release);
            while line.0.load(Acquire) != 2 * trip + 2 {}
        }
    };
    nanoseconds_each(serve_on_worker_cpu(cpu, serve, drive), trips)
}

/// Returns the time per task in nanoseconds.
fn nanoseconds_each(elapsed: Duration, tasks: u64) -> f64 {
    elapsed.as_nanos() as f64 / tasks as f64
}

/// Measures the time per task over this project's ring in nanoseconds, with at most `depth` tasks in flight: up to 32,
/// the maximum of a burst. A task ends with the return of its credit. The worker takes at most `burst` tasks before it
/// returns their credits; a [`wedjat::worker::Worker`] takes one.
///
/// Like that worker, and like DPDK's loops in this benchmark, the loop pauses when the ring is empty: each
/// read of the ring takes the cache line from the core that is about to write it.
fn hand_over_ns(cpu: usize, depth: usize, burst: u64, tasks: u64) -> Result<f64, Failure> {
    let mut rig = Rig::new(1, 64)?.granted(); // 64 slots, more than any depth
    let (Some(mut channel), Some(worker_end)) = (rig.channels.pop(), rig.worker_ends.pop()) else {
        return Err("a rig without a worker".into());
    };
    let serve = move |stop: &AtomicBool| {
        let receiver = worker_end.receiver();
        while !stop.load(Relaxed) {
            // `next` is the position of the next task, which grows with each received one.
            let before = receiver.next();
            while receiver.next() - before < burst && receiver.receive().is_some() {}
            match receiver.next() != before {
                true => receiver.complete(0), // 0 ns of work
                false => std::hint::spin_loop(),
            }
        }
    };
    let mut ring_fault = None;
    let drive = || {
        let (sender, notices) = (channel.sender_mut(), [Notice::default(); 32]);
        let (mut sent, mut done) = (0, 0);
        while done < tasks {
            // The positions of the tasks whose credits have returned.
            match sender.collect() {
                Ok(completed) => done += completed.end - completed.start,
                Err(fault) => return ring_fault = Some(fault),
            }
            let room = (depth - sender.outstanding()).min((tasks - sent) as usize);
            if room > 0 {
                sent += sender.send_burst(&notices[..room]) as u64;
            }
        }
    };
    let elapsed = serve_on_worker_cpu(cpu, serve, drive);
    ring_fault.map_or(Ok(nanoseconds_each(elapsed, tasks)), |fault| Err(fault.into()))
}

/// Task without payload. The dispatcher keeps it until the worker's answer, like an agent its packets.
struct EmptyTask;

impl Work for EmptyTask {
    type Parcel = Box<Self>;

    fn since_ns(&self) -> u64 {
        0 // start of the task's wait, only for a histogram that this benchmark does not read
    }

    fn ids(&self) -> TaskIds {
        TaskIds::default()
    }

    fn payload(&self) -> &[u8] {
        &[]
    }

    // A channel copies the payload. The worker set calls `pack` and `unpack` only for threads without a copy.
    fn pack(self) -> (Box<Self>, u32) {
        (Box::new(self), 0)
    }

    fn unpack(parcel: Box<Self>, _: u32) -> Option<Self> {
        Some(*parcel)
    }
}

/// Measures the throughput of a whole dispatcher in million tasks per second: central queue, policy, rings,
/// credits and outcomes. The 16 emulated workers run on one core and do no work.
fn dispatched_mtps(cpu: usize, tasks: u64) -> Result<f64, Failure> {
    let rig = Rig::new(WORKERS, 64)?;
    let policy = format!("jbsq(k={BOUND})").parse()?;
    let view = View::heap(usize::from(WORKERS), 1).remove(0);
    // Seed 1; central queue of 256 tasks, far more than the 32 that this function keeps in it.
    let dispatcher = Dispatcher::new(&policy, view, Core::ONLY, 1).with_queue(256, Overflow::Drop);
    let entries = (0..WORKERS).map(|id| WorkerIdentity { id, pool: 0 }).zip(rig.channels).collect();
    // `u64::MAX`: no worker times out. The tick grants the claims.
    let mut workers = WorkerSet::new(0, dispatcher, entries, u64::MAX);
    let worker_ends = rig.worker_ends;
    workers.tick(0, 0, &mut |_| {});
    worker_ends.iter().for_each(WorkerEnd::start);
    let serve = move |stop: &AtomicBool| {
        while !stop.load(Relaxed) {
            for worker_end in &worker_ends {
                while let Ok(Some(task)) = worker_end.take() {
                    let _ = worker_end.answer(task, |_, _| 0, || 0);
                }
            }
        }
    };
    let (mut sent, mut done, mut unanswered) = (0, 0, 0_u64);
    let drive = || {
        while done < tasks {
            workers.collect(0, &mut |completion: Completion<'_, EmptyTask>| {
                done += 1;
                unanswered += u64::from(!matches!(completion.outcome, Ok(Outcome::Reply { .. })));
            });
            // Keeps up to a burst of tasks in the central queue. Submits bursts of tasks, like an agent.
            while sent < tasks && workers.waiting() < BURST {
                let count = (BURST - workers.waiting()).min((tasks - sent) as usize);
                let mut burst = [const { Some(EmptyTask) }; BURST];
                let settled =
                    &mut |result: Result<_, _>, _| assert!(result.is_ok(), "the queue has room");
                workers.submit_run(&mut burst[..count], 0, settled);
                sent += count as u64;
            }
        }
    };
    let elapsed = serve_on_worker_cpu(cpu, serve, drive);
    if unanswered > 0 {
        return Err(format!("{unanswered} of {tasks} tasks were not answered").into());
    }
    Ok(tasks as f64 / elapsed.as_secs_f64() / 1e6)
}

/// Measurements of one subject.
#[derive(Default)]
struct Samples(Vec<f64>);

impl Samples {
    /// Builds the figure of the median, without a reference.
    fn figure(self, name: &'static str, unit: &'static str) -> Figure {
        let value = median(self.0.clone());
        Figure { name, value, unit, ratio: None, against: None, samples: self.0, note: None }
    }

    /// Builds the figure with its ratio to a reference that was measured in the same rounds.
    fn against(self, name: &'static str, reference: &Figure) -> Figure {
        let ratios =
            self.0.iter().zip(&reference.samples).map(|(value, base)| value / base).collect();
        let ratio = Some(median(ratios));
        Figure { ratio, against: Some(reference.name), ..self.figure(name, reference.unit) }
    }
}

/// An event device as a subject.
struct EventSubject {
    /// Name of its result.
    name: &'static str,
    /// The device, or the reason why it is not available.
    device: Result<EventDevice, EventDeviceError>,
    /// Its measurements.
    samples: Samples,
}

impl EventSubject {
    /// Creates the device `device`, whose result has the name `name`.
    fn new(eal: &Eal, (device, name): (&str, &'static str)) -> Self {
        Self { name, device: EventDevice::new(eal, device), samples: Samples::default() }
    }

    /// Takes one measurement. Does nothing without the device.
    fn measure(&mut self, worker_cpu: usize, tasks: u64) -> Result<(), Failure> {
        if let Ok(device) = &mut self.device {
            let elapsed = device.measure(tasks, || pin(worker_cpu))?;
            self.samples.0.push(nanoseconds_each(elapsed, tasks));
        }
        Ok(())
    }

    /// Builds the figure, with its ratio to a reference that was measured in the same rounds.
    fn against(self, reference: &Figure) -> Figure {
        match self.device {
            Ok(device) => {
                let note = "the dispatcher's core also runs the device's scheduler";
                let note = device.needs_scheduler().then(|| note.to_owned());
                Figure { note, ..self.samples.against(self.name, reference) }
            }
            Err(error) => {
                let note = Some(error.to_string());
                Figure { note, ..self.samples.figure(self.name, reference.unit) }
            }
        }
    }
}

/// Measures all subjects.
///
/// # Errors
/// If `--cpus` does not name two different usable CPUs, EAL does not start, or a measurement fails.
pub fn measure(arguments: &Arguments) -> Result<Vec<Figure>, Failure> {
    let [dispatcher_cpu, worker_cpu] = two_cpus(&arguments.cpus, "the dispatcher")?;
    let eal = Eal::init_excluding(&["--no-pci".to_owned()], &[], &arguments.cpus)?;
    let pool = MbufPool::new(&eal, "yardsticks", 1023)?;
    let mut rings = RingPair::new(&eal)?;
    let mut distributor = Distributor::new(&eal, &pool)?;
    let mut events = EVENT_DEVICES.map(|names| EventSubject::new(&eal, names));
    pin(dispatcher_cpu);

    // Each round measures all subjects once.
    let mut samples: [Samples; 7] = Default::default();
    for _ in 0..arguments.rounds.max(1) {
        let tasks = arguments.tasks;
        let [trip, depth_two, rings_two, depth_eight, rings_eight, distributed, dispatched] =
            &mut samples;
        let pin_worker = || pin(worker_cpu);
        // Converts nanoseconds to TSC cycles.
        trip.0.push(round_trip_ns(worker_cpu, tasks / 4) * eal.ticks_hz() as f64 / 1e9);
        depth_two.0.push(hand_over_ns(worker_cpu, 2, 1, tasks)?);
        rings_two.0.push(nanoseconds_each(rings.measure(2, tasks, pin_worker), tasks));
        depth_eight.0.push(hand_over_ns(worker_cpu, 8, 8, tasks)?);
        rings_eight.0.push(nanoseconds_each(rings.measure(8, tasks, pin_worker), tasks));
        distributed.0.push(nanoseconds_each(distributor.measure(tasks, pin_worker), tasks));
        events.iter_mut().try_for_each(|events| events.measure(worker_cpu, tasks))?;
        dispatched.0.push(dispatched_mtps(worker_cpu, tasks)?);
    }
    let [trip, depth_two, rings_two, depth_eight, rings_eight, distributed, dispatched] = samples;
    let rings_two = rings_two.figure("rte_ring_pair_depth_2", "ns a task");
    let rings_eight = rings_eight.figure("rte_ring_pair_depth_8", "ns a task");
    let distributed = distributed.figure("rte_distributor_burst_depth_8", "ns a task");
    let depth_eight = depth_eight.against("hand_over_depth_8_burst_8", &distributed);
    let [dsw, sw] = events.map(|events| events.against(&depth_eight));
    let mut figures = vec![
        trip.figure("cache_line_round_trip", "cycles"),
        depth_two.against("hand_over_depth_2", &rings_two),
        rings_two,
        depth_eight,
        distributed,
        dsw,
        sw,
        rings_eight,
        dispatched.figure("dispatcher_16_workers", "million tasks a second"),
    ];
    if arguments.load_seconds > 0 {
        figures.extend(under_load(arguments, &eal, [dispatcher_cpu, worker_cpu])?);
    }
    if arguments.kills > 0 {
        figures.extend(kills(arguments, [dispatcher_cpu, worker_cpu])?);
    }
    Ok(figures)
}

/// Kills workers under load, one per run. Returns the maximum and median time until replies resume, and the median
/// number of tasks lost with a killed worker.
fn kills(arguments: &Arguments, cpus: [usize; 2]) -> Result<Vec<Figure>, Failure> {
    let program = std::env::current_exe()?;
    let (mut resumption, mut lost) = (Samples::default(), Samples::default());
    // This thread, which checks for dead workers, shares the second CPU with the workers.
    pin(cpus[1]);
    for seed in 1..=arguments.kills {
        let kill = killed::kill_one(&program, cpus, seed)?;
        resumption.0.push(kill.resumed_ms);
        lost.0.push(kill.lost as f64);
    }
    pin(cpus[0]);
    let longest = resumption.0.iter().copied().fold(0.0, f64::max);
    let resumption = resumption.figure("killed_worker_replies_resume", "ms");
    let name = "killed_worker_replies_resume_worst";
    Ok(vec![
        Figure { name, value: longest, ..resumption.clone() },
        resumption,
        lost.figure("killed_worker_tasks_lost", "of its own"),
    ])
}

/// Measures an agent under load for `load_seconds` runs of one second each. This thread is the load generator. The
/// reference is the simulated 99th percentile. The ratio excludes the floor: the response time of a loopback without an
/// agent.
fn under_load(
    arguments: &Arguments,
    eal: &Eal,
    [agent_cpu, load_cpu]: [usize; 2],
) -> Result<Vec<Figure>, Failure> {
    let (simulated, floor) = (loaded::simulated_us()?, loaded::floor_us(eal)?);
    pin(load_cpu);
    let mut loaded = LoadedResults::default();
    for seed in 1..=arguments.load_seconds {
        loaded.run(eal, agent_cpu, seed)?;
    }
    pin(agent_cpu);
    let p99 = loaded.response.summary().p99.0;
    let per_run = |name, unit, value: fn(&Loops) -> f64| {
        Samples(loaded.loops.iter().map(value).collect()).figure(name, unit)
    };
    let loops = [
        per_run("cfcfs_hand_over_measured", "us", |run| run.hand_over_us),
        per_run("cfcfs_bound_chosen", "tasks at a worker", |run| run.bound),
        per_run("agent_loop_round", "us", |run| run.agent_us),
        per_run("generator_and_workers_loop_round", "us", |run| run.driver_us),
    ];
    let single = |name, value, unit| Figure { value, ..Samples(vec![value]).figure(name, unit) };
    // Percentage of undisturbed time slices.
    let share = 100.0 * loaded.undisturbed as f64 / loaded.slices.max(1) as f64;
    let all_p99 = loaded.all.summary().p99.0;
    let undisturbed_tasks = loaded.response.tasks() as f64;
    let mut figures = vec![
        Figure {
            value: p99,
            ratio: Some((p99 - floor) / simulated),
            against: Some("simulated_p99_32_workers_load_90"),
            ..Samples(loaded.samples).figure("agent_cfcfs_p99_32_workers_load_90", "us")
        },
        single("simulated_p99_32_workers_load_90", simulated, "us"),
        single("loopback_floor_p50", floor, "us"),
        single("undisturbed_slices", share, "per cent"),
        single("agent_cfcfs_p99_all_slices", all_p99, "us"),
        single("undisturbed_tasks", undisturbed_tasks, "tasks"),
        single("excluded_tasks", loaded.excluded as f64, "tasks"),
        single("longest_pause", loaded.longest_pause_us, "us"),
    ];
    figures.extend(loops);
    Ok(figures)
}

/// Measures and writes the figures. Returns false if the measurement under load is invalid, which the text also states.
///
/// # Errors
/// If [`measure`] or the output fails.
pub fn report(arguments: &Arguments, json: bool, out: &mut impl Write) -> Result<bool, Failure> {
    let figures = measure(arguments)?;
    let rule = loaded::rule();
    let tasks = figures.iter().find(|figure| figure.name == "undisturbed_tasks");
    let is_valid = arguments.load_seconds == 0
        || tasks.is_some_and(|tasks| tasks.value >= rule.tasks_min() as f64);
    if json {
        serde_json::to_writer_pretty(&mut *out, &figures)?;
        writeln!(out)?;
        return Ok(is_valid);
    }
    figures.iter().try_for_each(|figure| line(figure, out))?;
    if arguments.load_seconds > 0 {
        if !is_valid {
            let (percentile, needed) = (rule.percentile(), rule.tasks_min());
            let fix = "keep other work off the CPUs, or give more --load-seconds";
            writeln!(
                out,
                "INVALID under load: {percentile} needs {needed} tasks in undisturbed slices; {fix}"
            )?;
        }
        let (slice, pause) = (rule.slice_s * 1e3, rule.pause_s * 1e6);
        writeln!(
            out,
            "only undisturbed slices of {slice} ms count: those that no pause of more than {pause} us of either core can have \
             affected"
        )?;
        writeln!(out, "the load's wire is a pair of rings in memory, without copies")?;
    }
    Ok(is_valid)
}

/// Writes a figure as one line.
fn line(figure: &Figure, out: &mut impl Write) -> io::Result<()> {
    let note = figure.note.as_ref().map(|note| format!("; {note}")).unwrap_or_default();
    if figure.value.is_nan() {
        return writeln!(out, "{:32} no valid sample{note}", figure.name);
    }
    write!(out, "{:32} {:9.2} {}", figure.name, figure.value, figure.unit)?;
    if let (Some(ratio), Some(against)) = (figure.ratio, figure.against) {
        write!(out, ", {ratio:.2} x {against}")?;
    }
    writeln!(out, "{note}")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn ratios_are_medians_of_the_rounds() {
        let other = Samples(vec![10.0, 20.0, 40.0]).figure("other", "ns");
        let own = Samples(vec![5.0, 5.0, 5.0]).against("own", &other);
        // The rounds' ratios are 0.5, 0.25 and 0.125.
        assert_eq!((own.value, own.ratio, own.against), (5.0, Some(0.25), Some("other")));
        assert_eq!((own.unit, other.value), ("ns", 20.0));
    }

    /// Returns the line of a figure.
    fn text(figure: &Figure) -> String {
        let mut text = Vec::new();
        line(figure, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn absent_event_device_names_its_package() {
        let (device, reason) = ("event_dsw0".to_owned(), "no such driver".to_owned());
        let error = EventDeviceError::Missing { device, reason, package: "event-dsw".to_owned() };
        let samples = Samples::default();
        let subject =
            EventSubject { name: "event_dsw0_burst_depth_8", device: Err(error), samples };
        let figure = subject.against(&Samples(vec![90.0]).figure("hand_over", "ns a task"));
        assert_eq!(
            text(&figure),
            "event_dsw0_burst_depth_8         no valid sample; event_dsw0 is not available: no such driver; \
             install its driver (Debian, Ubuntu: apt-get install 'librte-event-dsw*')\n"
        );
        let json = serde_json::to_value(&figure).unwrap();
        assert_eq!((&json["value"], &json["ratio"]), (&Value::Null, &Value::Null));
        assert!(json["note"].as_str().unwrap().contains("librte-event-dsw"), "{json}");
    }

    #[test]
    fn note_ends_the_line_of_a_figure() {
        let figure = Samples(vec![500.0]).figure("event_sw0_burst_depth_8", "ns a task");
        let figure = Figure { note: Some("a scheduler runs".to_owned()), ..figure };
        assert_eq!(
            text(&figure),
            "event_sw0_burst_depth_8             500.00 ns a task; a scheduler runs\n"
        );
    }

    /// Both measurements return only after all tasks are answered.
    #[test]
    fn every_task_is_answered() {
        let cpu = core_affinity::get_core_ids().unwrap().last().unwrap().id;
        assert!(hand_over_ns(cpu, 2, 1, 200).unwrap() > 0.0);
        assert!(dispatched_mtps(cpu, 2000).unwrap() > 0.0);
    }
}
