//! An agent with 32 emulated workers at 90% of their capacity, beside the simulator's p99 for the same.
//!
//! The agent has one core; generator and workers share the other, and the wire between is memif. A machine that stalls
//! for a millisecond makes a queue of hundreds of tasks, which no agent can help, so the time is cut into short windows
//! and only those count in which, and in the one before which, neither core stood still for longer than [`STALL_NS`],
//! nor worked off what such a stall had left. The rule sees the two loops' own clocks and nothing of what tasks
//! experienced.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use wedjat::io::dpdk::{Device, DeviceOptions, Eal, MbufPool, PoolHandle, QueuePort};
use wedjat::io::ring::{Frame, FramePool, RingPort, pair};
use wedjat::io::{Burst, Port};
use wedjat::ring::WorkerRegion;
use wedjat::role::Agent;
use wedjat::wire::ether::Mac;
use wedjat::worker::{Options, Worker};
use wedjat_pktgen::engine::Generator;
use wedjat_pktgen::latency::Latency;
use wedjat_pktgen::load::Load;
use wedjat_pktgen::tally::Tally;
use wedjat_pktgen::target::Target;

use super::{Failure, host, pin};
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
/// Stalls that one loop may have in a run; the windows after the last that has room do not count.
const STALLS: usize = 1 << 16;

/// Links have so long to come up.
const PATIENCE: Duration = Duration::from_secs(10);
const MBUFS: u32 = 32_767;

/// The two ends of the wire, for EAL to make.
#[must_use]
pub fn devices() -> [String; 2] {
    let socket = format!("socket=@wedjat-bench-host-{}", std::process::id());
    ["net_memif0,role=server", "net_memif1,role=client"].map(|end| format!("{end},id=0,{socket}"))
}

/// The wire, open.
pub struct Wire {
    // Ports before their devices, those before the pool.
    near: Option<QueuePort>,
    far: Option<QueuePort>,
    far_mac: Mac,
    _devices: [Device; 2],
    pool: MbufPool,
}

impl Wire {
    /// Opens the devices that EAL has made.
    ///
    /// # Errors
    /// When it can't, or they don't find each other.
    pub fn open(eal: &Eal) -> Result<Self, Failure> {
        let pool = MbufPool::new(eal, "loaded", MBUFS)?;
        let [near, far] = devices();
        let (near, mut near_ports) = Device::open(eal, &near, &pool, &DeviceOptions::default())?;
        let (far, mut far_ports) = Device::open(eal, &far, &pool, &DeviceOptions::default())?;
        let began = Instant::now();
        while !(near.link().up && far.link().up) {
            if began.elapsed() > PATIENCE {
                return Err("two memif devices of one process do not find each other".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let far_mac = Mac(far.mac());
        let (near_port, far_port) = (near_ports.pop(), far_ports.pop());
        Ok(Self { near: near_port, far: far_port, far_mac, _devices: [near, far], pool })
    }
}

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
}

/// When a loop stood still: from when to when, in ticks.
struct Stalls {
    last: u64,
    longest: u64,
    found: Vec<(u64, u64)>,
}

impl Stalls {
    fn new(hz: f64) -> Self {
        let longest = (STALL_NS * hz / 1e9) as u64;
        Self { last: u64::MAX, longest, found: Vec::with_capacity(STALLS) }
    }

    /// The loop is here at `now`.
    #[inline]
    fn look(&mut self, now: u64) -> u64 {
        if now.saturating_sub(self.last) > self.longest && self.found.len() < STALLS {
            self.found.push((self.last, now));
        }
        self.last = now;
        now
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
    pub fn run(
        &mut self,
        wire: &mut Wire,
        eal: &Eal,
        here: usize,
        seed: u64,
    ) -> Result<(), Failure> {
        let gone = "an earlier run has not given its ports back";
        let (near, far) = (wire.near.take().ok_or(gone)?, wire.far.take().ok_or(gone)?);
        let region = Arc::new(WorkerRegion::heap(&host::places(WORKERS), 64, host::PAYLOAD)?);
        let (pool, nobody_dies) = (wire.pool.handle(), Arc::new(ArrayQueue::new(1)));
        let agent = host::agent(near, pool, "cfcfs", &region, nobody_dies, eal.ticks_hz())?;
        let stop = AtomicBool::new(false);
        let (served, driven) = std::thread::scope(|scope| {
            let serving = scope.spawn(|| serve(agent, here, eal, &stop));
            let driven = drive(far, wire, &region, eal, seed);
            stop.store(true, Release);
            (serving.join(), driven)
        });
        let (near, stalls) = served.map_err(|_| "the agent has panicked")??;
        let (far, tally, own) = driven?;
        (wire.near, wire.far) = (near, Some(far));
        if tally.measured.wrong > 0 {
            return Err(format!("answers are wrong: {:?}", tally.measured).into());
        }
        self.take(&tally, &[stalls, own], eal);
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

type Served = Agent<QueuePort, PoolHandle>;
type Ended = Result<(Option<QueuePort>, Stalls), String>;

fn serve(mut agent: Served, cpu: usize, eal: &Eal, stop: &AtomicBool) -> Ended {
    pin(cpu);
    let _lcore = eal.register_thread().map_err(|error| error.to_string())?;
    let mut stalls = Stalls::new(eal.ticks_hz() as f64);
    while !stop.load(Relaxed) {
        agent.poll(stalls.look(eal.now()));
    }
    Ok((agent.close().pop(), stalls))
}

fn drive(
    port: QueuePort,
    wire: &Wire,
    region: &Arc<WorkerRegion>,
    eal: &Eal,
    seed: u64,
) -> Result<(QueuePort, Tally, Stalls), Failure> {
    let (load, hz) = (load(seed)?, eal.ticks_hz() as f64);
    let options = Options { patience: PATIENCE, ..Options::default() };
    let join = |_| Worker::join("bench-host", region, &options);
    let workers = (0..WORKERS).map(join).collect::<Result<_, _>>()?;
    let mut stand_ins = StandIns::new(workers, load.service.workload(), hz);
    let target = Target::new(wire.far_mac, host::CLIENT_IP, host::IP);
    let mut generator = Generator::new(&load, &target, 0, hz, port, wire.pool.handle())?;
    let stalls = RefCell::new(Stalls::new(hz));
    let now = || stalls.borrow_mut().look(eal.now());
    drive::run(&mut generator, |at| stand_ins.poll(at), now, &AtomicBool::new(false));
    let (port, _, tally) = generator.into_parts();
    Ok((port, tally, stalls.into_inner()))
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
