//! A worker process killed with SIGKILL under load: how long until replies go on, and that only its own tasks are lost.
//!
//! The workers are processes (`wedjat-testbed worker`) on one CPU. Agent and generator are one loop on the other,
//! with a wire in memory between them, so that tasks can be lost nowhere but at the agent; the calling thread looks
//! for deaths as that of `wedjat agent` does. The load goes on for as long as it takes.

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
use wedjat::run::agent;
use wedjat::state::{Counter, Counters};
use wedjat::wire::ether::Mac;
use wedjat_pktgen::engine::{Generator, Phase};
use wedjat_pktgen::load::Load;
use wedjat_pktgen::target::Target;

use super::{Failure, pin, setup};

const WORKERS: u16 = 3;
/// Bounds what each of them may have, so what a kill may cost.
const POLICY: &str = "jbsq(k=2)";
const SERVICE: &str = "exp(50us)";
const SERVICE_NS: f64 = 50e3;
/// Of what the workers' CPU can do.
const LOAD: f64 = 0.8;
/// The clock counts nanoseconds.
const HZ: u64 = 1_000_000_000;
/// Under load before the kill.
const BEFORE: Duration = Duration::from_millis(200);
/// Under load once replies have come again.
const AFTER_NS: u64 = 50_000_000;
/// Whatever a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(300);
/// No more tasks than may wait at the agent.
const FRAMES: usize = setup::QUEUE / 2;
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 2, 1]);

/// What a kill came to.
#[derive(Clone, Copy, Debug)]
pub struct Killed {
    /// From the kill to the first reply after the agent had accounted for the worker's tasks, in milliseconds.
    pub resumed_ms: f64,
    /// Tasks that the worker had.
    pub lost: u64,
}

/// Kills one of the workers that `program` runs on the CPU `there`; the agent has the CPU `here`.
///
/// # Errors
/// When it can't be set up, or when a task is lost that the killed worker did not have.
pub fn once(program: &Path, [here, there]: [usize; 2], seed: u64) -> Result<Killed, Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("agent");
    let config = setup::config(POLICY, WORKERS)?;
    let region = WorkerRegion::create_for(&path, &config.host.places(), config.host.shape())?;
    let signals = Signals::new();
    let (run, deaths) = Run::new(&config, &region, &signals, seed)?;
    let (ended, workers) = std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            pin(here);
            run.until_settled()
        });
        let worker = |at| Process::start(program, &path, at, there);
        let is_over = || running.is_finished();
        let workers = attend(worker, &signals, &region, is_over, || {
            agent::look_for_deaths(&region, &deaths);
        });
        signals.stop.store(true, Release);
        (running.join(), workers)
    });
    let (ended, workers) = (ended.map_err(|_| "the agent has panicked"), workers?);
    let (books, resumed_ns) = ended??;
    workers.into_iter().try_for_each(Process::ends)?;
    Ok(Killed { resumed_ms: resumed_ns as f64 / 1e6, lost: books.check()? })
}

fn load(seed: u64) -> Result<Load, Failure> {
    Ok(Load {
        warmup_s: 0.0,
        // It is stopped before.
        duration_s: PATIENCE.as_secs_f64(),
        drain_s: PATIENCE.as_secs_f64(),
        seed,
        run: seed as u32,
        verify: true,
        ..Load::new(LOAD * 1e9 / SERVICE_NS, SERVICE.parse()?)
    })
}

/// What the two threads tell each other.
struct Signals {
    began: Instant,
    /// All workers are there.
    go: AtomicBool,
    /// There is no use in going on.
    stop: AtomicBool,
    /// When the worker was killed; 0 until then.
    killed: AtomicU64,
}

impl Signals {
    fn new() -> Self {
        let (go, stop, killed) = Default::default();
        Self { began: Instant::now(), go, stop, killed }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

/// The calling thread's part: starts the workers, kills one, and watches until the run is over. Gives the others.
fn attend(
    worker: impl Fn(u16) -> Result<Process, Failure>,
    signals: &Signals,
    region: &WorkerRegion,
    is_over: impl Fn() -> bool,
    look: impl Fn(),
) -> Result<Vec<Process>, Failure> {
    let mut workers = Vec::new();
    // One after the other, so that each has the CPU to itself while it calibrates its work.
    for at in 0..WORKERS {
        let process = worker(at)?;
        workers.push(process.once(|| region.granted(usize::from(at)) != 0)?);
    }
    signals.go.store(true, Release);
    std::thread::sleep(BEFORE);
    let killed = workers.remove(0);
    signals.killed.store(signals.now(), Release);
    drop(killed);
    while !is_over() {
        look();
        std::thread::sleep(agent::WATCH);
    }
    Ok(workers)
}

/// A worker process, killed when dropped.
struct Process(Option<Child>);

impl Process {
    fn start(program: &Path, agent: &Path, id: u16, cpu: usize) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        command.args(["worker", "--app", "spin", "--worker", &id.to_string()]);
        command.arg("--patience").arg(format!("{}s", PATIENCE.as_secs()));
        command.arg("--core").arg(cpu.to_string()).arg("--attach").arg(agent);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        Ok(Self(Some(child)))
    }

    /// Itself, once this is so.
    fn once(mut self, is_so: impl Fn() -> bool) -> Result<Self, Failure> {
        let began = Instant::now();
        while !is_so() {
            let has_ended = self.0.as_mut().map(Child::try_wait).transpose()?.flatten().is_some();
            if has_ended || began.elapsed() > PATIENCE {
                self.0.iter_mut().try_for_each(Child::kill)?;
                return Err(self.ends().err().unwrap_or("a worker ended before its time".into()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(self)
    }

    /// Waits for its end, which should be in order.
    fn ends(mut self) -> Result<(), Failure> {
        let Some(child) = self.0.take() else { return Ok(()) };
        let output = child.wait_with_output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("a worker ended with {}: {}", output.status, said.trim_end()).into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // SIGKILL. That it may have ended by itself is no matter.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Agent and generator.
struct Run<'a> {
    agent: Agent<RingPort, FramePool>,
    generator: Generator<RingPort, FramePool>,
    signals: &'a Signals,
    /// Replies that there had been when the death was accounted for.
    replies: Option<u64>,
    /// When the next came.
    resumed: Option<u64>,
}

impl<'a> Run<'a> {
    /// Also gives what tells the agent whose process has ended.
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
        let generator = Generator::new(&load(seed)?, &target, 0, HZ as f64, far, frames)?;
        Ok((Self { agent, generator, signals, replies: None, resumed: None }, deaths))
    }

    /// Runs until every task is accounted for; the books, and how long it took from the kill until replies came.
    fn until_settled(mut self) -> Result<(Books, u64), String> {
        while !self.signals.go.load(Acquire) {
            if self.signals.stop.load(Acquire) {
                return Err("the workers did not come".to_owned());
            }
            self.agent.poll(self.signals.now());
        }
        while !self.generator.phase().is_over() && !self.is_settled() {
            self.generator.transmit(self.signals.now());
            self.agent.poll(self.signals.now());
            self.look();
            self.generator.receive(self.signals.now());
        }
        let resumed = self.resumed.ok_or("no reply came after a worker was killed")?;
        let counters = self.agent.counters().clone();
        self.agent.close();
        let books = Books::of(&self.generator, &counters);
        Ok((books, resumed - self.signals.killed.load(Acquire)))
    }

    /// Notes when replies go on, and ends the load after that.
    fn look(&mut self) {
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

    /// Nothing is under way.
    fn is_settled(&self) -> bool {
        let lost = self.agent.counters().dropped(DropReason::WorkerLost);
        self.generator.phase() == Phase::Draining
            && self.agent.held() == 0
            && self.generator.outstanding() as u64 == lost
    }
}

/// What became of the tasks that were not simply answered.
#[derive(Clone, Copy, Debug, Default)]
struct Books {
    /// By the generator's count.
    unanswered: u64,
    /// Answered wrongly, or given back.
    wrong: u64,
    /// Answers to nothing.
    strays: u64,
    /// By the agent's count, with the worker that was killed.
    worker_lost: u64,
    /// By the agent's count, for any reason.
    dropped: u64,
    /// The agent's count of packets.
    balanced: bool,
}

impl Books {
    fn of(generator: &Generator<RingPort, FramePool>, counters: &Counters) -> Self {
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

    /// How many tasks the killed worker had.
    fn check(&self) -> Result<u64, Failure> {
        let is_its_own = self.unanswered == self.worker_lost && self.dropped == self.worker_lost;
        if is_its_own && self.wrong == 0 && self.strays == 0 && self.balanced {
            return Ok(self.worker_lost);
        }
        Err(format!("a worker was killed, and it cost more than its own tasks: {self:?}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_killed_workers_own_tasks_may_be_missing() {
        let books = Books { worker_lost: 2, unanswered: 2, dropped: 2, ..Books::default() };
        let right = Books { balanced: true, ..books };
        assert_eq!(right.check().unwrap(), 2);
        let wrongs = [
            books,
            Books { unanswered: 3, ..right },
            Books { unanswered: 1, ..right },
            Books { dropped: 3, unanswered: 3, ..right },
            Books { wrong: 1, ..right },
            Books { strays: 1, ..right },
        ];
        for wrong in wrongs {
            assert!(wrong.check().unwrap_err().to_string().contains("more than its own"));
        }
    }
}
