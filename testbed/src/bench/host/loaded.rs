//! An agent with 32 emulated workers at 90% of their capacity, beside the simulator's p99 for the same.
//!
//! The agent has one core; generator and workers share the other. The wire between is two rings of pointers in this
//! process's memory, which copy nothing: the second core has a generator and 32 workers to be, and what a driver's copies
//! took of it would be counted as the agent's hand-over. A machine that stands still
//! for a millisecond makes a queue of hundreds of tasks, which no agent can help, so the figure is that of the calm slices, as
//! in every run in real time ([`wedjat_pktgen::slices`]); that of all is beside it.

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
use wedjat_pktgen::slices::{Pauses, Rule, Watched};
use wedjat_pktgen::tally::Tally;
use wedjat_pktgen::target::Target;

use super::{Failure, median, pin, setup};
use crate::drive;
use crate::figures::arguments;
use crate::sim;
use crate::stand_ins::StandIns;

const WORKERS: u16 = 32;
const LOAD: f64 = 0.9;
const SERVICE: &str = "exp(50us)";
const SERVICE_NS: f64 = 50e3;
/// Of one run.
const MEASURED_S: f64 = 1.0;
/// The percentile of the figure.
const QUANTILE: f64 = 0.99;
/// Readings of the clock in a round of [`drive::run`].
const LOOKS_A_ROUND: f64 = 3.0;
/// Looks at the bound, one a millisecond, for which there is room.
const BOUNDS: usize = 1 << 12;
/// Workers have so long to be let in.
const PATIENCE: Duration = Duration::from_secs(300);
/// Packets on the wire each way, and frames for them: few enough to stay in a core's cache. Tasks for which there is
/// none are late, and their response counts from when they were due all the same.
const DEPTH: usize = 1024;
const FRAMES: usize = 2048;
const FRAME_BYTES: usize = 256;
/// The generator's.
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 2, 1]);

/// What the runs so far came to.
#[derive(Default)]
pub struct Loaded {
    /// Slices.
    pub slices: usize,
    /// Those that are calm.
    pub calm: usize,
    /// Tasks that came due in the others.
    pub thrown: u64,
    /// The longest pause of either loop, us.
    pub longest_pause_us: f64,
    /// Response times of the tasks that came due in calm slices.
    pub response: Latency,
    /// Those of all.
    pub all: Latency,
    /// Each run's 99th percentile over the calm slices, us.
    pub samples: Vec<f64>,
    /// What each run's loops did.
    pub loops: Vec<Loops>,
}

/// What the loops of a run did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loops {
    /// What `cfcfs` measured from a task's sending to its answer, less its service, us.
    pub hand_over_us: f64,
    /// The bound that it chose by that, for the median of the run's milliseconds.
    pub bound: f64,
    /// A round of the agent's loop, in the mean, us.
    pub agent_us: f64,
    /// A round of the loop that is generator and workers, us.
    pub driver_us: f64,
}

/// What a loop's looks at the clock tell.
struct Looks {
    pauses: Pauses,
    count: u64,
    first: u64,
    last: u64,
}

impl Looks {
    fn new(hz: f64) -> Self {
        let pauses = Pauses::new((rule().pause_s * hz) as u64);
        Self { pauses, count: 0, first: 0, last: 0 }
    }

    /// The loop is here at `now`.
    #[inline]
    fn look(&mut self, now: u64) -> u64 {
        self.pauses.look(now);
        if self.count == 0 {
            self.first = now;
        }
        self.count += 1;
        self.last = now;
        now
    }

    /// Ticks from one look to the next, in the mean.
    fn mean(&self) -> f64 {
        self.last.saturating_sub(self.first) as f64 / self.count.saturating_sub(1).max(1) as f64
    }
}

/// Which slices are calm.
pub fn rule() -> Rule {
    Rule::new(SERVICE_NS / 1e9, Some(LOAD)).telling(QUANTILE)
}

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

/// The simulator's 99th percentile, us: the same policy in front of the same workers, and no network between.
///
/// # Errors
/// When it refuses what is asked of it.
pub fn simulated_us() -> Result<f64, Failure> {
    let (workers, load) = (WORKERS.to_string(), LOAD.to_string());
    let keys = [
        ("model", "rack"),
        ("racks", &workers[..]),
        ("policy", "cfcfs"),
        ("service", SERVICE),
        ("load", &load[..]),
        ("hops", "spine-leaf=0,leaf-worker=0,worker-leaf=0,leaf-spine=0"),
        ("tasks", "1000000"),
    ];
    let rows = sim::rows(&arguments(&keys)?)?;
    Ok(rows.first().ok_or("the simulator has no result")?.p99)
}

/// A port that receives what it sends.
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

/// Median of what the generator measures when nobody is between, us.
///
/// # Errors
/// When the load can't be set up.
pub fn floor_us(eal: &Eal) -> Result<f64, Failure> {
    let frames = FramePool::new(4096, 256);
    let (left, right) = pair(1024, &frames);
    let (mut port, hz) = (Loop(left, right), eal.ticks_hz() as f64);
    let measure = wedjat_pktgen::floor::measure;
    let tally = measure(&load(1)?, 0.25, &mut port, frames, hz, || eal.now())?;
    Ok(tally.response().summary().p50.0)
}

impl Loaded {
    /// One more run: the agent on the CPU `here`, generator and workers on this thread's.
    ///
    /// # Errors
    /// When it can't be set up, or an answer was wrong.
    pub fn run(&mut self, eal: &Eal, here: usize, seed: u64) -> Result<(), Failure> {
        let frames = FramePool::new(FRAMES, FRAME_BYTES);
        let (near, far) = pair(DEPTH, &frames);
        let config = setup::config("cfcfs", WORKERS)?;
        let region = WorkerRegion::heap_for(&config.host.places(), config.host.shape())?;
        let region = Arc::new(region);
        let (agent, _) = setup::agent(&config, near, frames.clone(), &region, eal.ticks_hz())?;
        let stop = AtomicBool::new(false);
        let (served, driven) = std::thread::scope(|scope| {
            let serving = scope.spawn(|| serve(agent, here, eal, &stop));
            let driven = drive(far, frames, &region, eal, seed);
            stop.store(true, Release);
            (serving.join(), driven)
        });
        let (tally, own) = driven?;
        let served = served.map_err(|_| "the agent has panicked")??;
        if tally.measured.wrong > 0 {
            return Err(format!("answers are wrong: {:?}", tally.measured).into());
        }
        let us = |ticks| ticks * 1e6 / eal.ticks_hz() as f64;
        self.loops.push(Loops {
            hand_over_us: served.hand_over_us,
            bound: served.bound,
            agent_us: us(served.looks.mean()),
            driver_us: us(own.mean()) * LOOKS_A_ROUND,
        });
        self.take(&tally, served.looks.pauses);
        Ok(())
    }

    /// Adds a run.
    fn take(&mut self, tally: &Tally, pauses: Pauses) {
        let slices = tally.slices(&rule(), &[Watched { name: "the agent".to_owned(), pauses }]);
        let (calm, all) = (tally.calm_response(&slices), tally.response());
        self.slices += slices.all();
        self.calm += slices.calm();
        self.thrown += all.tasks().saturating_sub(calm.tasks());
        self.longest_pause_us = self.longest_pause_us.max(slices.longest_pause_ns() / 1e3);
        self.all.merge(&all);
        if calm.tasks() > 0 {
            self.samples.push(calm.summary().p99.0);
            self.response.merge(&calm);
        }
    }
}

/// What the agent leaves.
struct Served {
    looks: Looks,
    hand_over_us: f64,
    bound: f64,
}

fn serve(
    mut agent: Agent<RingPort, FramePool>,
    cpu: usize,
    eal: &Eal,
    stop: &AtomicBool,
) -> Result<Served, String> {
    pin(cpu);
    let mut looks = Looks::new(eal.ticks_hz() as f64);
    let (mut bounds, mut next) = (Vec::with_capacity(BOUNDS), 0);
    while !stop.load(Relaxed) {
        let now = looks.look(eal.now());
        agent.poll(now);
        if now >= next && bounds.len() < BOUNDS {
            next = now + eal.ticks_hz() / 1000;
            let central = agent.dispatchers().find_map(Dispatcher::bounded);
            bounds.extend(central.map(|central| central.bound() as f64));
        }
    }
    let central = agent.dispatchers().find_map(Dispatcher::bounded);
    let hand_over_us = central.ok_or("the agent has no central queue")?.round_trip_ns() / 1e3;
    agent.close();
    Ok(Served { looks, hand_over_us, bound: median(bounds) })
}

fn drive(
    port: RingPort,
    frames: FramePool,
    region: &Arc<WorkerRegion>,
    eal: &Eal,
    seed: u64,
) -> Result<(Tally, Looks), Failure> {
    let (load, hz) = (load(seed)?, eal.ticks_hz() as f64);
    let options = Options { patience: PATIENCE, ..Options::default() };
    let join = |_| Worker::join("bench-host", region, &options);
    let workers = (0..WORKERS).map(join).collect::<Result<_, _>>()?;
    let mut stand_ins = StandIns::new(workers, load.service.workload(), hz);
    let target = Target::new(CLIENT_MAC, setup::CLIENT_IP, setup::IP);
    let mut generator = Generator::new(&load, &target, 0, hz, port, frames)?;
    let looks = RefCell::new(Looks::new(hz));
    let now = || looks.borrow_mut().look(eal.now());
    drive::run(&mut generator, |at| stand_ins.poll(at), now, &AtomicBool::new(false));
    let (_, _, tally) = generator.into_parts();
    Ok((tally, looks.into_inner()))
}
