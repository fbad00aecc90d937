//! Thread that chooses the policies of a leaf's pools under `policy = "auto(objective=p99)"`.
//!
//! It captures packets of the leaf, simulates the pool, and changes its running policy. [`Auto`] decides on all three.
//! The thread has a low priority and polls no port. The packet path does nothing for it except during a capture.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wedjat_admin::{Handle, TapOwner, TapSpec, packets, show_reply, stay_on};
use wedjat_core::cpus::thread_time;
use wedjat_core::policy::Objective;
use wedjat_desired::control::Change;
use wedjat_sim::advise::auto::{Auto, CaptureRequest, Kind, Step};
use wedjat_sim::advise::conditions::{ConditionArgs, Conditions};
use wedjat_sim::advise::{self, advise_under, usual_tasks};

use crate::advice::{CaptureFile, SNAPLEN, lost_too_many, node_pool};

/// Interval at which the thread looks for pools under `auto`.
const IDLE: Duration = Duration::from_millis(500);
/// Longest wait for an answer between two checks of the stop flag.
const ANSWER: Duration = Duration::from_millis(100);
/// Maximum CPU time of a choice.
const CPU_MAX: Duration = Duration::from_secs(4);
/// CPU time of a choice for which the number of tasks is chosen, in seconds.
const CPU_GOAL: f64 = 2.8;
/// The same for the duration. On a machine without idle CPUs it is much longer than the CPU time, and old conditions
/// make a bad choice.
const DURATION_GOAL: f64 = 5.0;
/// Nice value of the thread. With 19 and busy CPUs it gets less than 1% of a CPU. The thread holds locks of the whole
/// process for short times, such as the kernel's lock of its memory map. A preempted holder would delay all
/// threads by seconds.
const NICE: i32 = 10;
/// Smallest number of tasks of a simulation in the last round, and the number of the first choice.
const TASKS_MIN: u64 = 10_000;
/// Packets of a task in a capture of all ports: the task and its reply, each on two ports.
const PACKETS_PER_TASK: u64 = 4;
/// Smallest number of packets in a capture: those of 1000 tasks.
const PACKETS_MIN: u64 = 4000;

/// Handle of the thread. Drop stops the thread and waits for its end.
pub struct AutoThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl AutoThread {
    /// Starts the thread on these CPUs.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn start(handle: Handle, cpus: &[usize]) -> io::Result<Self> {
        let (stop, cpus) = (Arc::<AtomicBool>::default(), cpus.to_vec());
        let chooser = Chooser {
            handle,
            stop: Arc::clone(&stop),
            started: Instant::now(),
            tasks: TASKS_MIN,
            choices: 0,
        };
        let thread = std::thread::Builder::new().name("wedjat-auto".to_owned());
        let thread = thread.spawn(move || {
            stay_on(&cpus);
            // On Linux, the nice value is that of a thread. A refusal only keeps the old priority.
            let _ = rustix::process::nice(NICE);
            chooser.run();
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for AutoThread {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Pools under `auto`, by id.
type AutoPools = BTreeMap<u16, (Objective, Auto)>;

/// State of the thread.
struct Chooser {
    handle: Handle,
    stop: Arc<AtomicBool>,
    started: Instant,
    /// Tasks of the last round's simulations that the CPU time allows.
    tasks: u64,
    /// Number of simulated choices so far, for their seeds.
    choices: u64,
}

impl Chooser {
    /// Chooses policies until the stop flag is set.
    fn run(mut self) {
        let mut pools = AutoPools::new();
        while let Some(found) = self.ask(|handle, answer| handle.auto_pools(answer)) {
            pools.retain(|id, (objective, _)| found.contains(&(*id, *objective)));
            for (id, objective) in found {
                pools.entry(id).or_insert_with(|| (objective, Auto::new(self.now())));
            }
            let now = self.now();
            let due = pools.iter().map(|(&id, (_, auto))| (auto.next_capture(now), id));
            match due.min_by_key(|(capture, _)| capture.at) {
                Some((capture, id)) if capture.at <= now => {
                    if let Some((objective, auto)) = pools.get_mut(&id) {
                        self.choose(id, *objective, auto, capture);
                    }
                }
                Some((capture, _)) => self.sleep(IDLE.min(capture.at - now)),
                None => self.sleep(IDLE),
            }
        }
    }

    /// Returns the time since the start.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Acquire)
    }

    /// Waits for this time, or until the stop flag is set.
    fn sleep(&self, time: Duration) {
        let end = Instant::now() + time;
        while !self.is_stopped() {
            let remaining = end.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            std::thread::park_timeout(remaining);
        }
    }

    /// Sends a request and waits for its answer; `None` if the node ends.
    fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(&Handle, Box<dyn FnOnce(T) + Send>),
    ) -> Option<T> {
        let (sender, receiver) = mpsc::channel();
        request(&self.handle, Box::new(move |answer| _ = sender.send(answer)));
        while !self.is_stopped() {
            match receiver.recv_timeout(ANSWER) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        None
    }

    /// Captures packets of a pool. If a choice is due, simulates the pool, switches its policy if the decision names
    /// another one, and publishes the decision.
    fn choose(&mut self, id: u16, objective: Objective, auto: &mut Auto, capture: CaptureRequest) {
        let cpu_started = thread_time();
        let Some(conditions) = self.capture(id, capture) else { return };
        let mut decision = match auto.observe(self.now(), capture, conditions) {
            Step::Wait => return,
            Step::Decided(decision) => decision,
            Step::Simulate(conditions) => {
                self.choices += 1;
                let tasks = self.tasks.min(usual_tasks(&conditions.model));
                // Round `r` simulates with the seed plus `r`. With 16 between choices, no two share a seed.
                let arguments = advise::Arguments {
                    objective: Some(objective.to_string()),
                    policy: Some(conditions.eligible_policies()),
                    tasks: Some(tasks.to_string()),
                    seed: Some((self.choices * 16).to_string()),
                    threads: Some("1".to_owned()),
                    ..advise::Arguments::default()
                };
                let used = || thread_time().saturating_sub(cpu_started);
                let may_simulate = || used() < CPU_MAX && !self.is_stopped();
                let began = Instant::now();
                let report = advise_under(&arguments, *conditions, &may_simulate);
                if self.is_stopped() {
                    return;
                }
                // Simulations take about as long a task in the next choice. Without CPU time left there is no report,
                // and the next choice has fewer tasks. Other faults are found before the first simulation.
                if report.is_ok() || used() >= CPU_MAX {
                    let scale = (CPU_GOAL / used().as_secs_f64().max(1e-3))
                        .min(DURATION_GOAL / began.elapsed().as_secs_f64().max(1e-3));
                    self.tasks = ((tasks as f64 * scale) as u64).max(TASKS_MIN);
                }
                auto.decide(self.now(), report.as_ref().map_err(String::clone))
            }
        };
        if let Some(policy) = &decision.policy {
            let Ok(spec) = policy.parse() else { return };
            let change = Change::SwitchPolicy { pool: id, policy: spec };
            let changed = self.ask(|handle, answer| handle.change(vec![change], None, answer));
            match changed {
                None => return,
                Some(Ok(_)) => log::info!("pool {id}: {decision}"),
                Some(Err(error)) => {
                    log::error!("pool {id}: {decision}; refused: {error}");
                    decision.reason = format!("{policy} was refused: {error}");
                    decision.kind = Kind::Unmeasured;
                    auto.take_back();
                }
            }
        }
        self.handle.note_decision(id, decision.to_string(), auto.switches);
    }

    /// Captures packets and measures the conditions of a pool; the error is the reason why they stay unknown. `None` if
    /// the node ends.
    fn capture(&self, id: u16, capture: CaptureRequest) -> Option<Result<Conditions, String>> {
        let shown =
            self.ask(|handle, answer| handle.snapshot(move |node| answer(show_reply(&node))))?;
        let pool = shown.pools.iter().find(|pool| pool.id == u32::from(id));
        let pool = match pool.ok_or_else(|| "the pool has left".to_owned()) {
            Ok(pool) => node_pool(&shown, pool),
            Err(error) => Err(error),
        };
        let pool = match pool {
            Ok(pool) => pool,
            Err(error) => return Some(Err(error)),
        };
        let file = CaptureFile::new("auto");
        let spec = TapSpec {
            file: file.path().to_owned(),
            snaplen: Some(SNAPLEN),
            packets: Some(PACKETS_PER_TASK * capture.tasks_max()),
            owner: TapOwner::Node,
            ..TapSpec::default()
        };
        let session = match self.ask(|handle, answer| handle.capture(spec, answer))? {
            Ok(session) => session,
            Err(error) => return Some(Err(error.to_string())),
        };
        self.sleep(capture.longest());
        let number = Some(session.stats.number);
        let stopped = self.ask(|handle, answer| {
            handle.stop_tap(number, move |result| {
                answer(result);
                true
            });
        });
        let stats = match stopped? {
            Ok(stats) => stats,
            Err(_) => return Some(Err("a client's tap has ended the capture".to_owned())),
        };
        if stats.written < PACKETS_MIN {
            return Some(Err(format!(
                "{} in {:?} are too few; {PACKETS_MIN} are needed",
                packets(stats.written),
                capture.longest()
            )));
        }
        if lost_too_many(stats.written, stats.lost) {
            return Some(Err(format!("the capture lost {} of its packets", stats.lost)));
        }
        let arguments = ConditionArgs {
            capture: Some(file.path().to_owned()),
            pool: Some(id.into()),
            running_node: Some(pool),
            ..ConditionArgs::default()
        };
        // The rest of an error is about the file and the options of `wedjat advise`.
        let path = format!("{}: ", file.path().display());
        let reason = |error: String| {
            let reason = error.strip_prefix(&path).unwrap_or(&error);
            reason.split(';').next().unwrap_or_default().to_owned()
        };
        Some(Conditions::new(&arguments).map_err(reason))
    }
}
