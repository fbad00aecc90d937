//! Agent with 32 emulated workers at 90% of their capacity, with the simulator's p99 for the same load as
//! reference. An agent is the process of a worker host that gives tasks to worker cores.
//!
//! The agent has one core; generator and workers share a second one. The wire between them is a pair of
//! pointer rings in this process's memory, without copies. The second core already runs a generator and 32
//! workers; the time of a driver's copies would count as hand-over time of the agent.
//!
//! If the machine stalls for a millisecond, hundreds of tasks queue up, whatever the agent does. The figure is
//! therefore that of undisturbed slices, as in every run in real time ([`wedjat_pktgen::slices`]). A slice is a
//! short interval of the run; a pause of either loop disturbs it. The figure of all slices is reported as well.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use wedjat::io::dpdk::Eal;
use wedjat::io::memory::{Frame, FramePool, RingPort, pair};
use wedjat::io::{Burst, Port};
use wedjat::policy::Dispatcher;
use wedjat::ring::WorkerRegion;
use wedjat::role::Agent;
use wedjat::wire::ether::Mac;
use wedjat::worker::{Options, Worker};
use wedjat_pktgen::engine::Generator;
use wedjat_pktgen::latency::Latency;
use wedjat_pktgen::load::Load;
use wedjat_pktgen::slices::{LoopWatch, Pauses, Rule};
use wedjat_pktgen::tally::Tally;
use wedjat_pktgen::target::Target;

use super::Failure;
use crate::bench::{median, pin, setup};
use crate::drive;
use crate::figures::arguments;
use crate::sim;
use crate::stand_ins::StandIns;

/// Number of emulated workers.
const WORKERS: u16 = 32;
/// Offered load as a fraction of the workers' capacity.
const LOAD: f64 = 0.9;
/// Distribution of the service times.
const SERVICE: &str = "exp(50us)";
/// Mean of that distribution in nanoseconds.
const SERVICE_NS: f64 = 50e3;
/// Duration of one run.
const MEASURED_S: f64 = 1.0;
/// Percentile of the figure.
const QUANTILE: f64 = 0.99;
/// Clock readings per round of [`drive::run`].
const READINGS_PER_ROUND: f64 = 3.0;
/// Capacity for samples of the bound, one per millisecond.
const BOUNDS: usize = 1 << 12;
/// Longest wait of a worker for its admission.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Packets in each direction of the wire. The packets and their [`FRAMES`] frames fit into a core's cache.
/// Tasks without a free frame are sent late. Their response time still counts from the due time.
const DEPTH: usize = 1024;
/// Number of frames that generator and agent share.
const FRAMES: usize = 2048;
/// Maximum number of bytes of a frame.
const FRAME_BYTES: usize = 256;
/// MAC address of the generator.
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 2, 1]);

/// Results of the runs so far.
#[derive(Default)]
pub struct LoadedResults {
    /// Number of slices.
    pub slices: usize,
    /// Number of undisturbed slices.
    pub undisturbed: usize,
    /// Number of tasks due in disturbed slices.
    pub excluded: u64,
    /// Longest pause of either loop, in us.
    pub longest_pause_us: f64,
    /// Response times of tasks due in undisturbed slices.
    pub response: Latency,
    /// Response times of all tasks.
    pub all: Latency,
    /// 99th percentile over the undisturbed slices of each run, in us.
    pub samples: Vec<f64>,
    /// Measurements of each run's loops.
    pub loops: Vec<Loops>,
}

/// Measurements of a run's loops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loops {
    /// Hand-over time measured by `cfcfs` (the policy with a central queue): time from sending a task to its
    /// reply, minus its service time, in us.
    pub hand_over_us: f64,
    /// Bound on the tasks at each worker, chosen by `cfcfs` from it: median of one sample per millisecond.
    pub bound: f64,
    /// Mean time per round of the agent's loop, in us.
    pub agent_us: f64,
    /// Mean time per round of the loop of generator and workers, in us.
    pub driver_us: f64,
}

/// Statistics of a loop's clock readings.
struct LoopTimes {
    /// Long intervals between readings.
    pauses: Pauses,
    /// Number of readings.
    count: u64,
    /// First and last reading, in ticks.
    first: u64,
    last: u64,
}

impl LoopTimes {
    /// Creates statistics without readings, for a clock of `hz`.
    fn new(hz: f64) -> Self {
        let pauses = Pauses::new((rule().pause_s * hz) as u64);
        Self { pauses, count: 0, first: 0, last: 0 }
    }

    /// Records a clock reading of the loop, and returns it.
    #[inline]
    fn record(&mut self, now: u64) -> u64 {
        self.pauses.look(now);
        if self.count == 0 {
            self.first = now;
        }
        self.count += 1;
        self.last = now;
        now
    }

    /// Returns the mean number of ticks between readings.
    fn mean(&self) -> f64 {
        self.last.saturating_sub(self.first) as f64 / self.count.saturating_sub(1).max(1) as f64
    }
}

/// Returns the rule for undisturbed slices.
pub fn rule() -> Rule {
    Rule::new(SERVICE_NS / 1e9, Some(LOAD)).with_percentile(QUANTILE)
}

/// Returns the generator's load for one run.
fn load(seed: u64) -> Result<Load, Failure> {
    let rate = f64::from(WORKERS) * LOAD * 1e9 / SERVICE_NS;
    Ok(Load {
        duration_s: MEASURED_S,
        rule: rule(),
        warmup_s: 0.05,
        seed,
        run: seed as u32,
        verify: true,
        ..Load::new(rate, SERVICE.parse()?)
    })
}

/// Simulates the 99th percentile in us, for the same policy and workers without a network: the reference.
///
/// # Errors
/// If the simulator refuses the set-up.
pub fn simulated_us() -> Result<f64, Failure> {
    let (workers, load) = (WORKERS.to_string(), LOAD.to_string());
    let keys = [
        ("model", "rack"),
        ("racks", &workers[..]), // one rack with all workers
        ("policy", "cfcfs"),
        ("service", SERVICE),
        ("load", &load[..]),
        ("hops", "spine-leaf=0,leaf-worker=0,worker-leaf=0,leaf-spine=0"),
        ("tasks", "1000000"),
    ];
    let rows = sim::rows(&arguments(&keys)?)?;
    Ok(rows.first().ok_or("the simulator has no result")?.p99)
}

/// Loopback port: receives at its second end the packets that it sends at its first.
struct Loop(RingPort, RingPort);

impl Port for Loop {
    type Buf = Frame;

    fn rx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        self.1.rx_burst(burst)
    }

    fn tx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        self.0.tx_burst(burst)
    }
}

/// Measures the floor: the median response time in us of a loopback without an agent. The ratio to the reference
/// excludes it.
///
/// # Errors
/// If the load cannot be set up.
pub fn floor_us(eal: &Eal) -> Result<f64, Failure> {
    // 4096 frames of 256 bytes, and wires of 1024 packets.
    let frames = FramePool::new(4096, 256);
    let (left, right) = pair(1024, &frames);
    let (mut port, hz) = (Loop(left, right), eal.ticks_hz() as f64);
    let measure = wedjat_pktgen::floor::measure;
    // A quarter of a second of the load.
    let tally = measure(&load(1)?, 0.25, &mut port, frames, hz, || eal.now())?;
    Ok(tally.response().summary().p50.0)
}

impl LoadedResults {
    /// Adds one run: the agent on CPU `agent_cpu`, generator and workers on the CPU of this thread.
    ///
    /// # Errors
    /// If the set-up fails, or a reply is wrong.
    pub fn run(&mut self, eal: &Eal, agent_cpu: usize, seed: u64) -> Result<(), Failure> {
        let frames = FramePool::new(FRAMES, FRAME_BYTES);
        let (near, far) = pair(DEPTH, &frames);
        let config = setup::config("cfcfs", WORKERS)?;
        let region = WorkerRegion::heap_for(&config.host.identities(), config.host.shape())?;
        let region = Arc::new(region);
        let (agent, _) = setup::agent(&config, near, frames.clone(), &region, eal.ticks_hz())?;
        let stop = AtomicBool::new(false);
        let (agent_summary, result) = std::thread::scope(|scope| {
            let serving = scope.spawn(|| serve(agent, agent_cpu, eal, &stop));
            let result = run_load(far, frames, &region, eal, seed);
            stop.store(true, Release);
            (serving.join(), result)
        });
        let (tally, driver_times) = result?;
        let agent_summary = agent_summary.map_err(|_| "the agent panicked")??;
        if tally.measured.wrong > 0 {
            return Err(format!("answers are wrong: {:?}", tally.measured).into());
        }
        let us = |ticks| ticks * 1e6 / eal.ticks_hz() as f64;
        self.loops.push(Loops {
            hand_over_us: agent_summary.hand_over_us,
            bound: agent_summary.bound,
            agent_us: us(agent_summary.readings.mean()),
            driver_us: us(driver_times.mean()) * READINGS_PER_ROUND,
        });
        self.add(&tally, agent_summary.readings.pauses);
        Ok(())
    }

    /// Adds the results of a run.
    fn add(&mut self, tally: &Tally, pauses: Pauses) {
        let slices = tally.slices(&rule(), &[LoopWatch { name: "the agent".to_owned(), pauses }]);
        let (undisturbed, all) = (tally.undisturbed_response(&slices), tally.response());
        self.slices += slices.all();
        self.undisturbed += slices.undisturbed();
        self.excluded += all.tasks().saturating_sub(undisturbed.tasks());
        self.longest_pause_us = self.longest_pause_us.max(slices.longest_pause_ns() / 1e3);
        self.all.merge(&all);
        if undisturbed.tasks() > 0 {
            self.samples.push(undisturbed.summary().p99.0);
            self.response.merge(&undisturbed);
        }
    }
}

/// Results of the agent's loop; see [`Loops`].
struct AgentSummary {
    readings: LoopTimes,
    hand_over_us: f64,
    bound: f64,
}

/// Polls the agent on CPU `cpu` until `stop` is set.
fn serve(
    mut agent: Agent<RingPort, FramePool>,
    cpu: usize,
    eal: &Eal,
    stop: &AtomicBool,
) -> Result<AgentSummary, String> {
    pin(cpu);
    let mut readings = LoopTimes::new(eal.ticks_hz() as f64);
    let (mut bounds, mut next) = (Vec::with_capacity(BOUNDS), 0);
    while !stop.load(Relaxed) {
        let now = readings.record(eal.now());
        agent.poll(now);
        // The capacity bounds the samples, so that the loop never allocates.
        if now >= next && bounds.len() < BOUNDS {
            next = now + eal.ticks_hz() / 1000;
            let central = agent.dispatchers().find_map(Dispatcher::bounded);
            bounds.extend(central.map(|central| central.bound() as f64));
        }
    }
    let central = agent.dispatchers().find_map(Dispatcher::bounded);
    let hand_over_us = central.ok_or("the agent has no central queue")?.round_trip_ns() / 1e3;
    agent.close();
    Ok(AgentSummary { readings, hand_over_us, bound: median(bounds) })
}

/// Runs the generator and the emulated workers until the load is over.
fn run_load(
    port: RingPort,
    frames: FramePool,
    region: &Arc<WorkerRegion>,
    eal: &Eal,
    seed: u64,
) -> Result<(Tally, LoopTimes), Failure> {
    let (load, hz) = (load(seed)?, eal.ticks_hz() as f64);
    let options = Options { attach_timeout: TIMEOUT, ..Options::default() };
    let join = |_| Worker::join("bench-host", region, &options);
    let workers = (0..WORKERS).map(join).collect::<Result<_, _>>()?;
    // The emulated workers.
    let mut stand_ins = StandIns::new(workers, load.service.workload(), hz);
    let target = Target::new(CLIENT_MAC, setup::CLIENT_IP, setup::IP);
    // Core 0 of the load, its only one.
    let mut generator = Generator::new(&load, &target, 0, hz, port, frames)?;
    let readings = RefCell::new(LoopTimes::new(hz));
    let now = || readings.borrow_mut().record(eal.now());
    drive::run(&mut generator, |at| stand_ins.poll(at), now, &AtomicBool::new(false));
    let (_, _, tally) = generator.into_parts();
    Ok((tally, readings.into_inner()))
}
