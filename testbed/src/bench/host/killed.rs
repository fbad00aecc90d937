//! Kill of a worker process with SIGKILL under load: time until replies resume, and a check that only its own
//! tasks are lost.
//!
//! The workers are processes (`wedjat-testbed worker`) on one CPU. They attach to the agent's region, a file of
//! shared memory. Agent and generator are one loop on a second CPU. The wire between them is in memory, so that
//! only the agent can lose tasks. The calling thread checks for dead workers in the same way as the watching thread of
//! `wedjat agent`. The load continues for 50 ms after replies resume.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use wedjat::config::AgentConfig;
use wedjat::io::memory::{FramePool, RingPort, pair};
use wedjat::reason::DropReason;
use wedjat::ring::WorkerRegion;
use wedjat::role::Agent;
use wedjat::role::agent::{AttachStats, Death};
use wedjat::run::workers;
use wedjat::state::{Counter, Counters};
use wedjat::wire::ether::Mac;
use wedjat_pktgen::engine::{Generator, Phase};
use wedjat_pktgen::load::Load;
use wedjat_pktgen::target::Target;

use super::Failure;
use crate::bench::{pin, setup};

/// Number of workers.
const WORKERS: u16 = 3;
/// Policy that bounds the tasks at each worker and thus the cost of a kill.
const POLICY: &str = "jbsq(k=2)";
/// Distribution of the service times.
const SERVICE: &str = "exp(50us)";
/// Mean of that distribution in nanoseconds.
const SERVICE_NS: f64 = 50e3;
/// Load as a fraction of the capacity of the workers' CPU.
const LOAD: f64 = 0.8;
/// Ticks per second of the clock, which counts nanoseconds.
const HZ: u64 = 1_000_000_000;
/// Time under load before the kill.
const BEFORE: Duration = Duration::from_millis(200);
/// Time under load after replies resume.
const AFTER_NS: u64 = 50_000_000;
/// Longest wait for a process, generous enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Number of frames, smaller than the agent's queue, so that the queue never overflows.
const FRAMES: usize = setup::QUEUE / 2;
/// MAC address of the generator.
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 2, 1]);

/// Result of a kill.
#[derive(Clone, Copy, Debug)]
pub struct KillResult {
    /// Milliseconds from the kill to the first reply after the agent accounted for the worker's tasks.
    pub resumed_ms: f64,
    /// Number of tasks lost: those at the killed worker.
    pub lost: u64,
}

/// Kills one of the workers that `program` runs on CPU `worker_cpu`. The agent runs on CPU `agent_cpu`.
///
/// # Errors
/// If the set-up fails, no reply comes after the kill, or any worker but the killed one loses a task.
pub fn kill_one(
    program: &Path,
    [agent_cpu, worker_cpu]: [usize; 2],
    seed: u64,
) -> Result<KillResult, Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("agent");
    let config = setup::config(POLICY, WORKERS)?;
    let region = WorkerRegion::create_for(&path, &config.host.identities(), config.host.shape())?;
    let signals = Signals::new();
    let (run, deaths) = Run::new(&config, &region, &signals, seed)?;
    let (result, workers) = std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            pin(agent_cpu);
            run.until_settled()
        });
        let start = |id| Process::start(program, &path, id, worker_cpu);
        let is_over = || running.is_finished();
        let workers = supervise(start, &signals, &region, is_over, || {
            workers::report_deaths(&region, &deaths);
        });
        signals.stop.store(true, Release);
        (running.join(), workers)
    });
    let (result, workers) = (result.map_err(|_| "the agent panicked"), workers?);
    let (ledger, resumed_ns) = result??;
    workers.into_iter().try_for_each(Process::wait_for_success)?;
    Ok(KillResult { resumed_ms: resumed_ns as f64 / 1e6, lost: ledger.check()? })
}

/// Returns the generator's load, which lasts until the run stops it.
fn load(seed: u64) -> Result<Load, Failure> {
    Ok(Load {
        warmup_s: 0.0,
        // The run stops earlier.
        duration_s: TIMEOUT.as_secs_f64(),
        drain_s: TIMEOUT.as_secs_f64(),
        seed,
        run: seed as u32,
        verify: true,
        ..Load::new(LOAD * 1e9 / SERVICE_NS, SERVICE.parse()?)
    })
}

/// Signals between the two threads. A load with Acquire sees everything that happened before the store with
/// Release.
struct Signals {
    /// Start of the run, the origin of its clock.
    began: Instant,
    /// True once all workers are attached.
    go: AtomicBool,
    /// True at the end of the supervision. A run that still waits for `go` then fails.
    stop: AtomicBool,
    /// Time of the kill in nanoseconds; 0 before it.
    killed: AtomicU64,
}

impl Signals {
    /// Creates the signals of a run that starts now.
    fn new() -> Self {
        let (go, stop, killed) = Default::default();
        Self { began: Instant::now(), go, stop, killed }
    }

    /// Returns the time in nanoseconds.
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

/// Starts the workers, kills one, and checks for deaths until the run is over. Returns the remaining workers.
fn supervise(
    start: impl Fn(u16) -> Result<Process, Failure>,
    signals: &Signals,
    region: &WorkerRegion,
    is_over: impl Fn() -> bool,
    check_deaths: impl Fn(),
) -> Result<Vec<Process>, Failure> {
    let mut workers = Vec::new();
    // One by one, so that each has the CPU alone while it calibrates its work.
    for id in 0..WORKERS {
        let process = start(id)?;
        workers.push(process.wait_until(|| region.granted(usize::from(id)) != 0)?);
    }
    signals.go.store(true, Release);
    std::thread::sleep(BEFORE);
    let killed = workers.remove(0);
    signals.killed.store(signals.now(), Release);
    // The drop sends SIGKILL.
    drop(killed);
    while !is_over() {
        check_deaths();
        std::thread::sleep(workers::WATCH_INTERVAL);
    }
    Ok(workers)
}

/// Worker process, killed on drop.
struct Process(Option<Child>);

impl Process {
    /// Starts worker `id` of `agent` on a CPU.
    fn start(program: &Path, agent: &Path, id: u16, cpu: usize) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        command.args(["worker", "--app", "spin", "--worker", &id.to_string()]);
        command.arg("--peer-timeout").arg(format!("{}s", TIMEOUT.as_secs()));
        command.arg("--core").arg(cpu.to_string()).arg("--attach").arg(agent);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        Ok(Self(Some(child)))
    }

    /// Waits until `is_reached` returns true. Fails if the process exits earlier. After [`TIMEOUT`], kills it and
    /// fails.
    fn wait_until(mut self, is_reached: impl Fn() -> bool) -> Result<Self, Failure> {
        let began = Instant::now();
        while !is_reached() {
            let has_ended = self.0.as_mut().map(Child::try_wait).transpose()?.flatten().is_some();
            if !has_ended && began.elapsed() > TIMEOUT {
                // The drop kills the process.
                return Err(format!("a worker did not attach within {TIMEOUT:?}").into());
            }
            if has_ended {
                return Err(self
                    .wait_for_success()
                    .err()
                    .unwrap_or("a worker ended too early".into()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(self)
    }

    /// Waits for a successful exit: the remaining workers end once the agent closes its region. The error of another
    /// exit has the process's error output.
    fn wait_for_success(mut self) -> Result<(), Failure> {
        let Some(child) = self.0.take() else { return Ok(()) };
        let output = child.wait_with_output()?;
        if output.status.success() {
            return Ok(());
        }
        let printed = String::from_utf8_lossy(&output.stderr);
        Err(format!("a worker ended with {}: {}", output.status, printed.trim_end()).into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // Sends SIGKILL. The process may already have exited.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Agent and generator, polled in one loop.
struct Run<'a> {
    agent: Agent<RingPort, FramePool>,
    generator: Generator<RingPort, FramePool>,
    /// Clock and signals of the supervising thread.
    signals: &'a Signals,
    /// Number of replies when the agent accounted for the death; `None` before.
    replies: Option<u64>,
    /// Time of the next reply after that; `None` before.
    resumed: Option<u64>,
}

impl<'a> Run<'a> {
    /// Creates agent and generator. Also returns the queue through which the agent learns of deaths.
    fn new(
        config: &AgentConfig,
        region: &WorkerRegion,
        signals: &'a Signals,
        seed: u64,
    ) -> Result<(Self, Arc<ArrayQueue<Death>>), Failure> {
        let frames = FramePool::new(FRAMES, 256);
        let (near, far) = pair(FRAMES, &frames);
        let (agent, deaths) = setup::agent(config, near, frames.clone(), region, HZ)?;
        let target = Target::new(CLIENT_MAC, setup::CLIENT_IP, setup::IP);
        // Core 0 of the load, its only one.
        let generator = Generator::new(&load(seed)?, &target, 0, HZ as f64, far, frames)?;
        Ok((Self { agent, generator, signals, replies: None, resumed: None }, deaths))
    }

    /// Runs until every task is accounted for. Returns the ledger, and the time from the kill until replies
    /// resumed, in nanoseconds.
    fn until_settled(mut self) -> Result<(TaskLedger, u64), String> {
        while !self.signals.go.load(Acquire) {
            if self.signals.stop.load(Acquire) {
                return Err("the workers did not attach".to_owned());
            }
            self.agent.poll(self.signals.now());
        }
        while !self.generator.phase().is_over() && !self.is_settled() {
            self.generator.transmit(self.signals.now());
            self.agent.poll(self.signals.now());
            self.observe();
            self.generator.receive(self.signals.now());
        }
        let resumed = self.resumed.ok_or("no reply came after a worker was killed")?;
        let counters = self.agent.counters().clone();
        self.agent.close();
        let ledger = TaskLedger::collect(&self.generator, &counters);
        Ok((ledger, resumed - self.signals.killed.load(Acquire)))
    }

    /// Detects when replies resume after the agent has accounted for the death, and later ends the load.
    fn observe(&mut self) {
        let now = self.signals.now();
        let replies = self.agent.counters().read(Counter::Replies);
        match (self.replies, self.resumed) {
            (None, _)
                if self
                    .agent
                    .attach_stats()
                    .fold(AttachStats::default(), AttachStats::and)
                    .died
                    > 0 =>
            {
                self.replies = Some(replies);
            }
            (Some(before), None) if replies > before => self.resumed = Some(now),
            (_, Some(resumed)) if now > resumed + AFTER_NS => self.generator.stop(now),
            _ => {}
        }
    }

    /// Returns true if the load has ended and no task is in flight: the generator misses only the lost tasks.
    fn is_settled(&self) -> bool {
        let lost = self.agent.counters().dropped(DropReason::WorkerLost);
        self.generator.phase() == Phase::Draining
            && self.agent.held() == 0
            && self.generator.outstanding() as u64 == lost
    }
}

/// Counts of generator and agent after the run, to check that only the killed worker's tasks are lost.
#[derive(Clone, Copy, Debug, Default)]
struct TaskLedger {
    /// Tasks without a reply, counted by the generator.
    unanswered: u64,
    /// Tasks answered wrongly or returned.
    wrong: u64,
    /// Replies without a task.
    strays: u64,
    /// Tasks lost with the killed worker, counted by the agent.
    worker_lost: u64,
    /// Tasks dropped for any reason, counted by the agent.
    dropped: u64,
    /// True if the agent's packet counters balance.
    balanced: bool,
}

impl TaskLedger {
    /// Collects the counts of generator and agent.
    fn collect(generator: &Generator<RingPort, FramePool>, counters: &Counters) -> Self {
        let tally = generator.tally();
        Self {
            unanswered: tally.measured.lost + generator.outstanding() as u64,
            wrong: tally.measured.wrong + tally.measured.refused,
            strays: tally.strays.duplicates + tally.strays.late_answers + tally.strays.unknown,
            worker_lost: counters.dropped(DropReason::WorkerLost),
            dropped: counters.dropped_total(),
            balanced: counters.balances(),
        }
    }

    /// Returns the number of tasks at the killed worker if only these are lost, and an error otherwise.
    fn check(&self) -> Result<u64, Failure> {
        let only_its_tasks =
            self.unanswered == self.worker_lost && self.dropped == self.worker_lost;
        if only_its_tasks && self.wrong == 0 && self.strays == 0 && self.balanced {
            return Ok(self.worker_lost);
        }
        Err(format!("a killed worker cost more than its own tasks: {self:?}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ledger accepts only losses of the killed worker's own tasks.
    #[test]
    fn only_the_killed_workers_tasks_are_missing() {
        let ledger =
            TaskLedger { worker_lost: 2, unanswered: 2, dropped: 2, ..TaskLedger::default() };
        let right = TaskLedger { balanced: true, ..ledger };
        assert_eq!(right.check().unwrap(), 2);
        let wrongs = [
            // The agent's counters do not balance.
            ledger,
            TaskLedger { unanswered: 3, ..right },
            TaskLedger { unanswered: 1, ..right },
            TaskLedger { dropped: 3, unanswered: 3, ..right },
            TaskLedger { wrong: 1, ..right },
            TaskLedger { strays: 1, ..right },
        ];
        for wrong in wrongs {
            assert!(wrong.check().unwrap_err().to_string().contains("more than its own"));
        }
    }
}
