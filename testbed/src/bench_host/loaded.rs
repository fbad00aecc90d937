//! An agent with 32 emulated workers at 90% of their capacity, beside the simulator's p99 for the same.
//!
//! The agent has one core; generator and workers share the other. The wire between is two rings of pointers in this
//! process's memory, which copy nothing: the second core has a generator and 32 workers to be, and what a driver's copies
//! took of it would be counted as the agent's hand-over. A machine that stalls
//! for a millisecond makes a queue of hundreds of tasks, which no agent can help, so the time is cut into short windows
//! and only those count in which, and in the one before which, neither core stood still for longer than [`STALL_NS`],
//! nor worked off what such a stall had left. The rule sees the two loops' own clocks and nothing of what tasks
//! experienced.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use wedjat::io::dpdk::Eal;
use wedjat::io::ring::{Frame, FramePool, RingPort, pair};
use wedjat::io::{Burst, Port};
use wedjat::policy::Dispatcher;
use wedjat::ring::WorkerRegion;
use wedjat::role::Agent;
use wedjat::wire::ether::Mac;
use wedjat::worker::{Options, Worker};
use wedjat_pktgen::engine::Generator;
use wedjat_pktgen::latency::Latency;
use wedjat_pktgen::load::Load;
use wedjat_pktgen::tally::Tally;
use wedjat_pktgen::target::Target;

use super::{Failure, host, median, pin};
use crate::drive;
use crate::figures::arguments;
use crate::sim;
use crate::stand_ins::StandIns;

const WORKERS: u16 = 32;
const LOAD: f64 = 0.9;
const SERVICE: &str = "exp(50us)";
const SERVICE_NS: f64 = 50e3;
/// Half a mean service time.
pub const STALL_NS: f64 = 25e3;
/// Some twenty times as long as a queue takes to forget at this load.
pub const WINDOW_S: f64 = 0.01;
const WINDOWS: usize = 100;
/// What a stall leaves takes LOAD / (1 - LOAD) = 9 times as long to be worked off, in the mean; twice that is allowed.
pub const RECOVERY: u64 = 18;
/// Readings of the clock in a round of [`drive::run`].
const LOOKS_A_ROUND: f64 = 3.0;
/// Stalls that one loop may have in a run; the windows after the last that has room do not count.
const STALLS: usize = 1 << 16;

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
    /// Windows.
    pub windows: usize,
    /// Those that count.
    pub valid: usize,
    /// Response times of the tasks that came due in these.
    pub response: Latency,
    /// Each run's 99th percentile over the windows that count, us.
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

/// When a loop stood still: from when to when, in ticks.
struct Stalls {
    last: u64,
    longest: u64,
    looks: u64,
    /// When the first look was.
    began: u64,
    found: Vec<(u64, u64)>,
}

impl Stalls {
    fn new(hz: f64) -> Self {
        let longest = (STALL_NS * hz / 1e9) as u64;
        let found = Vec::with_capacity(STALLS);
        Self { last: u64::MAX, longest, looks: 0, began: 0, found }
    }

    /// The loop is here at `now`.
    #[inline]
    fn look(&mut self, now: u64) -> u64 {
        if now.saturating_sub(self.last) > self.longest && self.found.len() < STALLS {
            self.found.push((self.last, now));
        }
        if self.looks == 0 {
            self.began = now;
        }
        self.looks += 1;
        self.last = now;
        now
    }

    /// Ticks from one look to the next, in the mean.
    fn mean(&self) -> f64 {
        self.last.saturating_sub(self.began) as f64 / self.looks.saturating_sub(1).max(1) as f64
    }

    /// None of the time between these ticks was lost, nor went to what lost time had left.
    fn clear(&self, from: u64, to: u64) -> bool {
        let known = self.found.len() < STALLS || self.found[STALLS - 1].0 > to;
        let over = |start: u64, end: u64| end + RECOVERY * (end - start);
        known && !self.found.iter().any(|&(start, end)| start < to && over(start, end) > from)
    }
}

fn load(seed: u64) -> Result<Load, Failure> {
    let rate = f64::from(WORKERS) * LOAD * 1e9 / SERVICE_NS;
    Ok(Load {
        duration_s: WINDOW_S * WINDOWS as f64,
        windows: WINDOWS,
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
        let region = Arc::new(WorkerRegion::heap(&host::places(WORKERS), 64, host::PAYLOAD)?);
        let (pool, nobody_dies) = (frames.clone(), Arc::new(ArrayQueue::new(1)));
        let agent = host::agent(near, pool, "cfcfs", &region, nobody_dies, eal.ticks_hz())?;
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
            agent_us: us(served.stalls.mean()),
            driver_us: us(own.mean()) * LOOKS_A_ROUND,
        });
        self.take(&tally, &[served.stalls, own], eal);
        Ok(())
    }

    /// Adds the windows that count.
    fn take(&mut self, tally: &Tally, stalls: &[Stalls], eal: &Eal) {
        let length = (WINDOW_S * eal.ticks_hz() as f64) as u64;
        let mut run = Latency::default();
        for (at, window) in tally.windows.iter().enumerate() {
            let from = tally.measured_from() + at as u64 * length;
            self.windows += 1;
            if stalls.iter().all(|stalls| stalls.clear(from - length, from + length)) {
                self.valid += 1;
                run.merge(window);
            }
        }
        if run.tasks() > 0 {
            self.samples.push(run.summary().p99.0);
            self.response.merge(&run);
        }
    }
}

/// What the agent leaves.
struct Served {
    stalls: Stalls,
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
    let mut stalls = Stalls::new(eal.ticks_hz() as f64);
    let (mut bounds, mut next) = (Vec::with_capacity(BOUNDS), 0);
    while !stop.load(Relaxed) {
        let now = stalls.look(eal.now());
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
    Ok(Served { stalls, hand_over_us, bound: median(bounds) })
}

fn drive(
    port: RingPort,
    frames: FramePool,
    region: &Arc<WorkerRegion>,
    eal: &Eal,
    seed: u64,
) -> Result<(Tally, Stalls), Failure> {
    let (load, hz) = (load(seed)?, eal.ticks_hz() as f64);
    let options = Options { patience: PATIENCE, ..Options::default() };
    let join = |_| Worker::join("bench-host", region, &options);
    let workers = (0..WORKERS).map(join).collect::<Result<_, _>>()?;
    let mut stand_ins = StandIns::new(workers, load.service.workload(), hz);
    let target = Target::new(CLIENT_MAC, host::CLIENT_IP, host::IP);
    let mut generator = Generator::new(&load, &target, 0, hz, port, frames)?;
    let stalls = RefCell::new(Stalls::new(hz));
    let now = || stalls.borrow_mut().look(eal.now());
    drive::run(&mut generator, |at| stand_ins.poll(at), now, &AtomicBool::new(false));
    let (_, _, tally) = generator.into_parts();
    Ok((tally, stalls.into_inner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_with_a_stall_in_them_do_not_count() {
        let mut stalls = Stalls::new(1e9);
        for now in [10, 20_000, 44_000, 70_000, 80_000] {
            stalls.look(now);
        }
        assert_eq!(stalls.found, [(44_000, 70_000)]);
        let recovered = 70_000 + RECOVERY * 26_000;
        assert!(stalls.clear(0, 44_000) && stalls.clear(recovered, recovered + 9000));
        assert!(!stalls.clear(0, 50_000) && !stalls.clear(60_000, 65_000));
        assert!(!stalls.clear(recovered - 1, recovered + 9000));
    }
}
