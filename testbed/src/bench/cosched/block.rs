//! Runs one block: a worker with a batch beside it under a sequence of loads. Gives a result for each window. A
//! job process limits the batch; its guard (fixed rules) and its learner set the batch's share of the worker's
//! core.
//!
//! A block has one cell of the plan (worker, batch, and arm, the way to limit the batch), one seed, and one or more
//! phases of constant or bursty load. A phase consists of windows of equal length. A batch counts its completed units
//! of work.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use serde::Serialize;
use wedjat::cosched::Objective;
use wedjat_cosched::mechanism::Scheduling;
use wedjat_cosched::{Overrides, ReplayResult, replay};

use super::Failure;
use super::accounts::{self, CpuTimes, Machine};
use super::children::{JobReport, JobSetup, Process, RunningBatch, TIMEOUT, WorkerSetup};
use super::dispatch::{self, DispatchCounts, LoadProfile, NEVER, Rig, now_ns};
use super::plan::{Block, Cell, Phase, Purpose};
use crate::app::Spin;
use crate::batch::Batch;

/// Time after the accounts were read in which due tasks do not count, because reading uses the dispatcher's
/// CPU for a moment.
const SETTLE_NS: u64 = 2_000_000;
/// Time between the end of a block's set-up and the start of its loads.
const LEAD_NS: u64 = 5_000_000;
/// Interval between samples of the batch's CPU time in blocks of steps.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// Time after a step up in load by which the batch must be throttled.
pub const STEP_NS: u64 = 100_000_000;
/// Share of the core below which the batch must stay after that time.
pub const STEP_SHARE: f64 = 0.05;

/// Settings common to all blocks.
pub struct Setting {
    /// CPU of the dispatcher and CPU of the worker.
    pub cpus: [usize; 2],
    /// Length of a window.
    pub window: Duration,
    /// Mean service time of the tasks.
    pub service_ns: f64,
    /// Objective for the 99.9th percentile of their response time.
    pub objective: Objective,
    /// Maximum CPU time of foreign processes in a window that counts, as a fraction of one CPU.
    pub foreign_max: f64,
    /// Calibration of the worker's busy loop.
    pub spin: Spin,
    /// Folder for the learners' logs.
    pub logs: Option<PathBuf>,
    /// Units per second that each batch completes alone.
    pub alone: BTreeMap<Batch, f64>,
    /// Fraction of its rate alone that a batch wants. A learner may measure the batch's progress against it.
    pub wanted: f64,
}

/// Result of a window.
#[derive(Clone, Debug, Serialize)]
pub struct Window {
    /// Cell of the plan.
    #[serde(flatten)]
    pub cell: Cell,
    /// Purpose of the block.
    pub purpose: Purpose,
    /// Seed of the block.
    pub seed: u64,
    /// Name of the load.
    pub load: String,
    /// CPU time of foreign processes, as a fraction of one CPU.
    pub foreign: f64,
    /// True if the window is undisturbed and counts.
    pub is_undisturbed: bool,
    /// Number of due tasks.
    pub tasks: u64,
    /// True if the objective was missed.
    pub violates: bool,
    /// 99.9th percentile of the response time, in us. `None` without tasks, or if unanswered tasks reach into
    /// it.
    pub p999_us: Option<f64>,
    /// Units per second that the batch completed.
    pub done_rate: f64,
    /// Share of the worker's core that the batch used.
    pub batch_core: f64,
    /// Share of this core that the worker used.
    pub worker_core: f64,
    /// Share of this core that the tasks needed.
    pub worked: f64,
    /// Share given to the batch at the window's end, from its job's figures.
    pub given: f64,
    /// Limit set by the guard at the window's end.
    pub allowed: f64,
    /// Response times of all tasks, in ns; [`NEVER`] for an unanswered task.
    #[serde(skip)]
    pub responses: Vec<u32>,
    /// Hand-over times of tasks that an idle worker received, in ns.
    #[serde(skip)]
    pub hand_overs: Vec<u32>,
}

/// Behaviour of a batch after a step up in load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Step {
    /// Seed of the block.
    pub seed: u64,
    /// True if no window of the step was disturbed.
    pub is_undisturbed: bool,
    /// Share of the core that the batch used from 100 ms after the step.
    pub share_after: f64,
    /// Milliseconds until the end of the last interval of 10 ms in which the batch used 5% of the core or
    /// more.
    pub held_after_ms: f64,
}

/// Result of a learner.
#[derive(Clone, Debug, Serialize)]
pub struct LearnerResult {
    /// Cell of the plan.
    #[serde(flatten)]
    pub cell: Cell,
    /// Seed of the block.
    pub seed: u64,
    /// Result of a replay of its log.
    pub replayed: ReplayResult,
}

/// Result of a block.
#[derive(Debug)]
pub struct BlockResult {
    /// Measured windows.
    pub windows: Vec<Window>,
    /// Steps up in load, for blocks of steps.
    pub steps: Vec<Step>,
    /// Result of the learner, if there is one.
    pub learner: Option<LearnerResult>,
    /// Reason why `wedjat cosched run` would refuse this batch; here it runs nevertheless.
    pub refused: Option<String>,
    /// Number of tasks sent.
    pub tasks: u64,
    /// Threads of the batch restored to their scheduling class or CPUs.
    pub put_back: u64,
}

/// CPU times at one moment, with the batch's progress and its limits.
#[derive(Clone, Copy, Debug, Default)]
struct Snapshot {
    /// Time of the snapshot.
    at_ns: u64,
    /// CPU time of the whole machine.
    used: CpuTimes,
    /// CPU time of this process and of the job.
    own_ns: u64,
    /// CPU time of the worker.
    worker_ns: u64,
    /// CPU time of the batch.
    batch_ns: u64,
    /// Units that the batch has completed.
    done: u64,
    /// Share of the core that the batch may use.
    share: f64,
    /// Limit set by the guard.
    allowed: f64,
}

impl Snapshot {
    /// Reads all accounts. `worker` is the worker's process id.
    fn take(machine: &Machine, worker: u32, running: Option<&RunningBatch>) -> Self {
        let figures = running.map(RunningBatch::figures).unwrap_or_default();
        // Reads the machine and its parts in quick succession.
        let used = machine.used();
        let worker_ns = accounts::of_process(worker);
        let batch_ns = running.map_or(0, RunningBatch::ran_ns);
        let job_ns = running.map_or(0, |running| accounts::of_process(running.id()));
        let own_ns = accounts::of_process(std::process::id()) + job_ns;
        let done = running.map_or(0, RunningBatch::done);
        let (share, allowed) = (figures.share, figures.allowed);
        Self { at_ns: now_ns(), used, own_ns, worker_ns, batch_ns, done, share, allowed }
    }

    /// Computes the CPU time of foreign processes from `self` to `next`, in nanoseconds. The accounts of
    /// running threads lag by some milliseconds, so a part may seem to exceed the whole, and differences saturate
    /// at 0.
    fn foreign_ns(&self, next: &Self) -> u64 {
        let increase = |value: fn(&Self) -> u64| value(next).saturating_sub(value(self));
        let ours_ns =
            increase(|it| it.own_ns) + increase(|it| it.worker_ns) + increase(|it| it.batch_ns);
        let ran = next.used.ran_ns.saturating_sub(self.used.ran_ns);
        ran.saturating_sub(ours_ns) + next.used.stolen_ns.saturating_sub(self.used.stolen_ns)
    }
}

/// Flags shared by the dispatching and the supervising thread. The dispatcher admits the worker and sets the
/// first flag; the supervisor then starts the batch and sets the start time. Release and acquire order these
/// steps. `stop` guards no data, so that the dispatcher reads it relaxed.
#[derive(Default)]
struct Flags {
    /// True once the worker has attached.
    is_admitted: AtomicBool,
    /// Start time of the loads; 0 while it is unknown.
    begin_ns: AtomicU64,
    /// True if the block must end.
    stop: AtomicBool,
}

/// Runs a block.
///
/// # Errors
/// If the worker or the batch cannot run, a reply was invalid, the counts of tasks do not balance, or a learner's
/// log cannot be replayed.
pub fn run(setting: &Setting, block: &Block) -> Result<BlockResult, Failure> {
    let folder = tempfile::tempdir()?;
    let agent = folder.path().join("agent");
    let rig = Rig::new(&agent, setting.cpus[0])?;
    let flags = Flags::default();
    let loads = LoadProfile {
        phases: &block.phases,
        window: setting.window,
        service_ns: setting.service_ns,
        seed: block.seed,
    };
    let (observed, dispatched) = std::thread::scope(|scope| {
        let dispatching = scope.spawn(|| dispatch_on(setting.cpus[0], rig, &loads, &flags));
        // A separate thread, since it pins itself after it has started the child processes. These inherit the
        // unpinned CPUs.
        let supervising = scope.spawn(|| {
            let observed = supervise(setting, block, &agent, folder.path(), &flags);
            flags.stop.store(true, Release);
            observed.map_err(|error| error.to_string())
        });
        let observed = supervising.join();
        // A supervisor that panicked has not ended the block.
        flags.stop.store(true, Release);
        (observed, dispatching.join())
    });
    // The rig, with the memory shared with the worker, outlives the worker.
    let (rig, dispatched) = dispatched.map_err(|_| "the dispatcher panicked")?;
    let observed = observed.map_err(|_| "the thread beside the dispatcher panicked")??;
    let Observation { worker, snapshots, samples, job, log } = observed;
    worker.wait_for_output()?;
    drop(rig);
    if !dispatched.balances() {
        let DispatchCounts { tasks, answered, refused, unanswered, wrong, .. } = dispatched;
        let sent = tasks.len();
        return Err(format!(
            "{sent} tasks: {answered} answered, {refused} refused, {unanswered} unanswered, {wrong} wrong"
        )
        .into());
    }
    let windows = windows(setting, block, &dispatched, &snapshots);
    let steps = match block.purpose {
        Purpose::Step => steps(block, &dispatched.phases_ns, &windows, &samples),
        _ => Vec::new(),
    };
    let learner = log.map(|log| replay_learner(block, &log)).transpose()?;
    let measured = windows.into_iter().zip(phase_of_each(&block.phases));
    Ok(BlockResult {
        windows: measured
            .filter(|(_, phase)| phase.is_measured)
            .map(|(window, _)| window)
            .collect(),
        steps,
        learner,
        refused: job.as_ref().and_then(|job| job.refused.clone()),
        tasks: dispatched.tasks.len() as u64,
        put_back: job.map_or(0, |job| job.figures.put_back),
    })
}

/// Returns the phase of each window.
fn phase_of_each(phases: &[Phase]) -> impl Iterator<Item = &Phase> {
    phases.iter().flat_map(|phase| std::iter::repeat_n(phase, phase.windows))
}

/// Dispatches on CPU `cpu`: admits the worker, waits for the start time, and runs the loads.
fn dispatch_on(
    cpu: usize,
    mut rig: Rig,
    loads: &LoadProfile<'_>,
    flags: &Flags,
) -> (Rig, DispatchCounts) {
    // Cannot fail: the CPU was checked at the start.
    let _ = wedjat::cpus::pin(cpu);
    if dispatch::admit(&mut rig, || flags.stop.load(Relaxed)) {
        flags.is_admitted.store(true, Release);
    }
    let begin = dispatch::wait_for(&mut rig, &flags.begin_ns, &flags.stop);
    let dispatched = match begin {
        Some(begin) => dispatch::run(&mut rig, loads, begin),
        None => DispatchCounts::default(),
    };
    rig.stop();
    (rig, dispatched)
}

/// Observations of the supervising thread.
struct Observation {
    /// Process of the worker, which ends after the dispatcher.
    worker: Process,
    /// Accounts at the start and at each window's end.
    snapshots: Vec<Snapshot>,
    /// Pairs of a time and the CPU time of the batch until then, in nanoseconds.
    samples: Vec<(u64, u64)>,
    /// Report of the batch's job, if there is a batch.
    job: Option<JobReport>,
    /// Log of the learner, if there is one.
    log: Option<PathBuf>,
}

/// Starts the worker and the batch, reads the accounts at each window's end, and ends the batch.
fn supervise(
    setting: &Setting,
    block: &Block,
    agent: &Path,
    folder: &Path,
    flags: &Flags,
) -> Result<Observation, Failure> {
    let Cell { worker: kind, arm, batch } = block.cell;
    let worker = WorkerSetup {
        agent,
        cpu: setting.cpus[1],
        polls: kind.polls(),
        is_real_time: kind.is_real_time(),
        spin: &setting.spin,
    };
    let worker = wait_for_admission(worker.start()?, setting.cpus[1], kind.is_real_time(), flags)?;
    // Only learners write a log.
    let log = arm.mode().and(setting.logs.as_ref()).map(|folder| {
        let names = (arm.name(), kind.name(), batch.name(), block.seed);
        folder.join(format!("{}-{}-{}-{}.jsonl", names.0, names.1, names.2, names.3))
    });
    let rate = setting.alone.get(&batch);
    let job = |policy| JobSetup {
        agent,
        notes: folder,
        policy,
        mode: arm.mode(),
        class: arm.class(),
        objective: setting.objective,
        round: setting.window,
        // Work for the whole wall time, at the wanted fraction of the rate alone.
        work: rate.map(|rate| rate * setting.wanted * JobSetup::WALL as f64),
        log: log.as_deref(),
        seed: block.seed,
        batch,
    };
    let running = arm.policy().map(|policy| job(policy).start()).transpose()?;
    // From here on, leaves the worker's core to the worker and the batch, which are already running.
    let _ = wedjat::cpus::pin(setting.cpus[0]); // the CPU exists
    let machine = Machine::new();
    let begin = now_ns() + LEAD_NS;
    flags.begin_ns.store(begin, Release);
    let window = setting.window.as_nanos() as u64;
    let windows: usize = block.phases.iter().map(|phase| phase.windows).sum();
    let (mut snapshots, mut samples) = (Vec::with_capacity(windows + 1), Vec::new());
    for index in 0..=windows as u64 {
        let is_sampled = block.purpose == Purpose::Step;
        sleep_until(begin + index * window, is_sampled, || {
            samples.extend(running.as_ref().map(|running| (now_ns(), running.ran_ns())));
        });
        snapshots.push(Snapshot::take(&machine, worker.id(), running.as_ref()));
    }
    let job = running.map(RunningBatch::end).transpose()?;
    Ok(Observation { worker, snapshots, samples, job, log })
}

/// Waits until the worker is admitted, on its core and in its scheduling class.
fn wait_for_admission(
    mut worker: Process,
    cpu: usize,
    is_real_time: bool,
    flags: &Flags,
) -> Result<Process, Failure> {
    let began = Instant::now();
    let is_ready = |id: u32| {
        let scheduling = Scheduling::of(id);
        flags.is_admitted.load(Acquire)
            && scheduling
                .is_some_and(|it| it.cpus.iter().eq([&cpu]) && it.is_real_time() == is_real_time)
    };
    while !is_ready(worker.id()) {
        if worker.has_ended() || began.elapsed() > TIMEOUT {
            return Err(worker.into_failure());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(worker)
}

/// Sleeps until a time. Calls `sample` every [`SAMPLE_INTERVAL`] if `is_sampled`.
fn sleep_until(at_ns: u64, is_sampled: bool, mut sample: impl FnMut()) {
    loop {
        let remaining = Duration::from_nanos(at_ns.saturating_sub(now_ns()));
        if remaining.is_zero() {
            return;
        }
        std::thread::sleep(if is_sampled { remaining.min(SAMPLE_INTERVAL) } else { remaining });
        if is_sampled {
            sample();
        }
    }
}

/// Builds a result for each window from the tasks due in it and the snapshots at its ends.
fn windows(
    setting: &Setting,
    block: &Block,
    dispatched: &DispatchCounts,
    snapshots: &[Snapshot],
) -> Vec<Window> {
    let mut tasks = dispatched.tasks.iter().peekable();
    let mut all = Vec::new();
    for (phase, ends) in phase_of_each(&block.phases).zip(snapshots.windows(2)) {
        let (from, to) = (&ends[0], &ends[1]);
        let mut window = Window::between(from, to, block, phase);
        window.is_undisturbed = window.foreign <= setting.foreign_max;
        let mut worked_ns = 0_u64;
        while let Some(task) = tasks.next_if(|task| task.due_ns < to.at_ns) {
            if task.due_ns < from.at_ns + SETTLE_NS {
                continue;
            }
            // An unanswered task may not have run.
            worked_ns += u64::from(if task.response_ns == NEVER { 0 } else { task.service_ns });
            window.responses.push(task.response_ns);
            // `NEVER` marks a task that the worker did not receive while it was idle.
            window.hand_overs.extend(Some(task.hand_over_ns).filter(|ns| *ns != NEVER));
        }
        let length = to.at_ns.saturating_sub(from.at_ns + SETTLE_NS);
        window.worked = worked_ns as f64 / length.max(1) as f64;
        window.tasks = window.responses.len() as u64;
        window.p999_us = percentile_us(&mut window.responses, setting.objective.part);
        let misses_objective = window.p999_us.is_none_or(|us| us > setting.objective.us);
        window.violates = window.tasks > 0 && misses_objective;
        all.push(window);
    }
    all
}

impl Window {
    /// Builds the result of a window from the snapshots at its ends, without its tasks.
    fn between(from: &Snapshot, to: &Snapshot, block: &Block, phase: &Phase) -> Self {
        let length = to.at_ns.saturating_sub(from.at_ns).max(1) as f64;
        let part =
            |value: fn(&Snapshot) -> u64| value(to).saturating_sub(value(from)) as f64 / length;
        let foreign = from.foreign_ns(to) as f64 / length;
        Self {
            cell: block.cell,
            purpose: block.purpose,
            seed: block.seed,
            load: phase.load.name(),
            foreign,
            is_undisturbed: false,
            tasks: 0,
            violates: false,
            p999_us: None,
            done_rate: part(|it| it.done) * 1e9,
            batch_core: part(|it| it.batch_ns),
            worker_core: part(|it| it.worker_ns),
            worked: 0.0,
            given: to.share,
            allowed: to.allowed,
            responses: Vec::new(),
            hand_overs: Vec::new(),
        }
    }
}

/// Sorts `times` and returns their percentile `part` in us. `None` without times, or if unanswered tasks reach
/// into it.
pub fn percentile_us(times: &mut [u32], part: f64) -> Option<f64> {
    times.sort_unstable();
    let rank = (times.len() as f64 * part).ceil().max(1.0) as usize;
    let time = times.get(rank - 1).copied()?;
    (time != NEVER).then(|| f64::from(time) / 1e3)
}

/// Evaluates the batch after each step up.
fn steps(
    block: &Block,
    phases_ns: &[u64],
    windows: &[Window],
    samples: &[(u64, u64)],
) -> Vec<Step> {
    let (mut steps, mut first_window) = (Vec::new(), 0);
    for (index, phase) in block.phases.iter().enumerate() {
        let phase_windows = &windows
            [first_window.min(windows.len())..(first_window + phase.windows).min(windows.len())];
        first_window += phase.windows;
        let is_up = index > 0 && phase.load.at(0) > block.phases[index - 1].load.at(0);
        if is_up && phase.is_measured {
            let is_undisturbed = phase_windows.iter().all(|window| window.is_undisturbed);
            let (from, to) = (phases_ns[index], phases_ns[index + 1]);
            steps.extend(step(from, to, samples).map(|(share_after, held_after_ms)| Step {
                seed: block.seed,
                is_undisturbed,
                share_after,
                held_after_ms,
            }));
        }
    }
    steps
}

/// Returns the batch's share of the core from 100 ms after `from` until `to`, and the milliseconds after
/// which its share stayed below 5%. Samples are pairs of a time and the batch's CPU time until then, in
/// nanoseconds. `None` without samples from 100 ms after `from` on.
fn step(from: u64, to: u64, samples: &[(u64, u64)]) -> Option<(f64, f64)> {
    let after: Vec<_> = samples.iter().filter(|it| it.0 >= from && it.0 < to).collect();
    let settled = after.iter().position(|it| it.0 >= from + STEP_NS)?;
    let (first, last) = (after[settled], after.last()?);
    let share = |from: &(u64, u64), to: &(u64, u64)| {
        to.1.saturating_sub(from.1) as f64 / to.0.saturating_sub(from.0).max(1) as f64
    };
    let exceeds = |pair: &[&(u64, u64)]| share(pair[0], pair[1]) >= STEP_SHARE;
    let end = after.windows(2).rev().find(|pair| exceeds(pair)).map_or(from, |pair| pair[1].0);
    Some((share(first, last), end.saturating_sub(from) as f64 / 1e6))
}

/// Replays the log of a learner, from which the report takes the experts' weights and losses in each round.
fn replay_learner(block: &Block, log: &Path) -> Result<LearnerResult, Failure> {
    let file = File::open(log).map_err(|error| format!("{}: {error}", log.display()))?;
    let replayed = replay(BufReader::new(file), &Overrides::default())?;
    Ok(LearnerResult { cell: block.cell, seed: block.seed, replayed })
}

/// Returns the mean rate of a batch that runs alone, in units per second: over its undisturbed windows, or
/// over all if none is undisturbed. `None` without windows.
#[must_use]
pub fn rate(windows: &[Window]) -> Option<f64> {
    let has_undisturbed = windows.iter().any(|window| window.is_undisturbed);
    let counted = windows.iter().filter(|window| window.is_undisturbed || !has_undisturbed);
    let rates: Vec<_> = counted.map(|window| window.done_rate).collect();
    (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: speed.2
    #[test]
    fn percentile_among_lost_tasks_is_none() {
        let mut times: Vec<u32> = (1..=1000).map(|us| us * 1000).rev().collect();
        assert_eq!(percentile_us(&mut times, 0.999), Some(999.0));
        assert_eq!(percentile_us(&mut times, 0.5), Some(500.0));
        times[0] = NEVER;
        times[1] = NEVER;
        assert_eq!(percentile_us(&mut times, 0.999), None);
        // Two of 1000 times moved to the end, so that rank 990 holds 992 us.
        assert_eq!(percentile_us(&mut times, 0.99), Some(992.0));
        assert_eq!(percentile_us(&mut [], 0.5), None);
    }

    // promise: speed.2
    #[test]
    fn stolen_and_unowned_time_is_foreign() {
        let before = Snapshot::default();
        let used = CpuTimes { ran_ns: 900, stolen_ns: 40 };
        let after = Snapshot { used, own_ns: 500, worker_ns: 200, batch_ns: 150, ..before };
        assert_eq!(before.foreign_ns(&after), 50 + 40);
        // Accounts are read one by one, so that our share may exceed the total.
        let early = Snapshot { used: CpuTimes { ran_ns: 800, stolen_ns: 0 }, ..after };
        assert_eq!(before.foreign_ns(&early), 0);
    }

    // promise: speed.2
    #[test]
    fn step_ends_when_the_batch_shrinks() {
        const MS: u64 = 1_000_000;
        // All of the core for 60 ms, then 1 ms in 100.
        let at =
            |ms: u64| (ms * MS, if ms <= 60 { ms * MS } else { 60 * MS + (ms - 60) * MS / 100 });
        let samples: Vec<_> = (0..50).map(|sample| at(sample * 10)).collect();
        let (share, above_limit_ms) = step(0, 500 * MS, &samples).unwrap();
        assert!((share - 0.01).abs() < 1e-9 && above_limit_ms == 60.0, "{share} {above_limit_ms}");
        assert!(step(0, 50 * MS, &samples).is_none());
        let all: Vec<_> = (0..50).map(|sample| (sample * 10 * MS, sample * 10 * MS)).collect();
        // The last of 50 samples is at 490 ms.
        assert_eq!(step(0, 500 * MS, &all), Some((1.0, 490.0)));
    }
}
