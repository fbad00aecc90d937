//! One block: a worker, a batch beside it, a course of loads, and what each window of it came to.

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
use wedjat_cosched::{Overrides, Replayed, replay};

use super::Failure;
use super::accounts::{self, Machine, Used};
use super::children::{Held, JobSetup, PATIENCE, Process, Told, WorkerSetup};
use super::dispatch::{self, Course, Dispatched, NEVER, Rig, now_ns};
use super::plan::{Block, Cell, Phase, Purpose};
use crate::app::Spin;
use crate::batch::Batch;

/// Tasks that come due so soon after accounts were read do not count: reading takes the dispatcher's CPU for a moment.
const SETTLE_NS: u64 = 2_000_000;
/// Between a block's being ready and its begin.
const LEAD_NS: u64 = 5_000_000;
/// Between two looks at what the batch has had, where steps are looked at closely.
const CLOSELY: Duration = Duration::from_millis(10);
/// After a step up in load, so long may the batch take to be held back.
pub const STEP_NS: u64 = 100_000_000;
/// What is left to it then at most, of the core.
pub const STEP_SHARE: f64 = 0.05;

/// What all blocks have in common.
pub struct Setting {
    /// The dispatcher's CPU and the worker's.
    pub cpus: [usize; 2],
    /// Of one window.
    pub window: Duration,
    /// The tasks' mean.
    pub service_ns: f64,
    /// What their 99.9th percentile may be.
    pub objective: Objective,
    /// The share of one CPU's time that others may have in a window that counts.
    pub foreign_max: f64,
    /// The worker's pace.
    pub spin: Spin,
    /// Where learners' logs are left.
    pub logs: Option<PathBuf>,
    /// What each batch does alone, a second.
    pub alone: BTreeMap<Batch, f64>,
    /// The part of what it would do alone that a batch is to do, by which its happiness is told.
    pub wanted: f64,
}

/// What a window came to.
#[derive(Clone, Debug, Serialize)]
pub struct Window {
    /// The cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// Of which block.
    pub purpose: Purpose,
    /// Of which seed.
    pub seed: u64,
    /// Under which load.
    pub load: String,
    /// CPU time of others, as a part of one CPU's.
    pub foreign: f64,
    /// It counts.
    pub is_calm: bool,
    /// Tasks that came due.
    pub tasks: u64,
    /// The objective was missed.
    pub violates: bool,
    /// 99.9th percentile from due to answer, us; none where a task of those was not answered, or none came.
    pub p999_us: Option<f64>,
    /// What the batch did, a second.
    pub done_rate: f64,
    /// What it had of its core.
    pub batch_core: f64,
    /// What the worker had of it.
    pub worker_core: f64,
    /// What its tasks needed of it.
    pub worked: f64,
    /// What the batch was given at the window's end, as its job noted.
    pub given: f64,
    /// What the guard allowed then.
    pub allowed: f64,
    /// Times of all its tasks, ns.
    #[serde(skip)]
    pub responses: Vec<u32>,
    /// Of those that were given to a worker that waited.
    #[serde(skip)]
    pub hand_overs: Vec<u32>,
}

/// What a batch did after the load had stepped up.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Step {
    /// Of which seed.
    pub seed: u64,
    /// No window of the step was disturbed.
    pub is_calm: bool,
    /// What the batch had of its core from 100 ms after the step on.
    pub share_after: f64,
    /// Milliseconds after which it had no 10 ms any more with 5% of the core or more.
    pub held_after_ms: f64,
}

/// What a learner learnt.
#[derive(Clone, Debug, Serialize)]
pub struct Learner {
    /// The cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// Its seed.
    pub seed: u64,
    /// Its log, done again.
    pub replayed: Replayed,
}

/// What a block came to.
#[derive(Debug)]
pub struct Measured {
    /// Windows that are measured.
    pub windows: Vec<Window>,
    /// Steps up in load, where they were looked at.
    pub steps: Vec<Step>,
    /// What was learnt.
    pub learner: Option<Learner>,
    /// Why the batch would have been refused.
    pub refused: Option<String>,
    /// Tasks sent in all.
    pub tasks: u64,
    /// Threads of the batch that had to be put back.
    pub put_back: u64,
}

/// Accounts at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Snapshot {
    at_ns: u64,
    used: Used,
    /// Of this process, the worker's and the job's.
    own_ns: u64,
    worker_ns: u64,
    batch_ns: u64,
    done: u64,
    given: f64,
    allowed: f64,
}

impl Snapshot {
    fn take(machine: &Machine, worker: u32, held: Option<&Held>) -> Self {
        let figures = held.map(Held::figures).unwrap_or_default();
        // The machine's and its parts' as soon after each other as can be.
        let used = machine.used();
        let worker_ns = accounts::of_process(worker);
        let batch_ns = held.map_or(0, Held::ran_ns);
        let job_ns = held.map_or(0, |held| accounts::of_process(held.id()));
        let own_ns = accounts::of_process(std::process::id()) + job_ns;
        let done = held.map_or(0, Held::done);
        let (given, allowed) = (figures.share, figures.allowed);
        Self { at_ns: now_ns(), used, own_ns, worker_ns, batch_ns, done, given, allowed }
    }

    /// CPU time of others from `self` to `next`, in nanoseconds. Accounts of running threads are some milliseconds old.
    fn foreign_ns(&self, next: &Self) -> u64 {
        let ours = |of: fn(&Self) -> u64| of(next).saturating_sub(of(self));
        let ours = ours(|it| it.own_ns) + ours(|it| it.worker_ns) + ours(|it| it.batch_ns);
        let ran = next.used.ran_ns.saturating_sub(self.used.ran_ns);
        ran.saturating_sub(ours) + next.used.stolen_ns.saturating_sub(self.used.stolen_ns)
    }
}

/// What two threads tell each other.
#[derive(Default)]
struct Flags {
    is_admitted: AtomicBool,
    /// When the course begins; 0 until that is known.
    begin_ns: AtomicU64,
    stop: AtomicBool,
}

/// Runs a block.
///
/// # Errors
/// When worker or batch can't be run, or a task is in no account.
pub fn run(setting: &Setting, block: &Block) -> Result<Measured, Failure> {
    let folder = tempfile::tempdir()?;
    let agent = folder.path().join("agent");
    let rig = Rig::new(&agent, setting.cpus[0])?;
    let flags = Flags::default();
    let course = Course {
        phases: &block.phases,
        window: setting.window,
        service_ns: setting.service_ns,
        seed: block.seed,
    };
    let (attended, dispatched) = std::thread::scope(|scope| {
        let dispatching = scope.spawn(|| dispatch_on(setting.cpus[0], rig, &course, &flags));
        // On a thread of its own, since it pins itself once the others, who inherit where they may run, are there.
        let attending = scope.spawn(|| {
            let attended = attend(setting, block, &agent, folder.path(), &flags);
            flags.stop.store(true, Release);
            attended.map_err(|error| error.to_string())
        });
        (attending.join(), dispatching.join())
    });
    // The rig lives until the worker has ended.
    let (rig, dispatched) = dispatched.map_err(|_| "the dispatcher has panicked")?;
    let attended = attended.map_err(|_| "the thread beside the dispatcher has panicked")??;
    let Attended { worker, snapshots, samples, told, log } = attended;
    worker.ends()?;
    drop(rig);
    if !dispatched.balances() {
        let Dispatched { tasks, answered, refused, left, wrong, .. } = dispatched;
        let sent = tasks.len();
        return Err(format!(
            "{sent} tasks: {answered} answered, {refused} refused, {left} left, {wrong} wrong"
        )
        .into());
    }
    let windows = windows(setting, block, &dispatched, &snapshots);
    let steps = match block.purpose {
        Purpose::Step => steps(block, &dispatched.phases_ns, &windows, &samples),
        _ => Vec::new(),
    };
    let learner = log.map(|log| learner(block, &log)).transpose()?;
    let measured = windows.into_iter().zip(phase_of_each(&block.phases));
    Ok(Measured {
        windows: measured.filter(|(_, phase)| phase.is_measured).map(|(it, _)| it).collect(),
        steps,
        learner,
        refused: told.as_ref().and_then(|told| told.refused.clone()),
        tasks: dispatched.tasks.len() as u64,
        put_back: told.map_or(0, |told| told.figures.put_back),
    })
}

/// The phase of each window.
fn phase_of_each(phases: &[Phase]) -> impl Iterator<Item = &Phase> {
    phases.iter().flat_map(|phase| std::iter::repeat_n(phase, phase.windows))
}

fn dispatch_on(cpu: usize, mut rig: Rig, course: &Course<'_>, flags: &Flags) -> (Rig, Dispatched) {
    // That the CPU is there was seen at the start.
    let _ = wedjat::cpus::pin(cpu);
    if dispatch::admit(&mut rig, || flags.stop.load(Relaxed)) {
        flags.is_admitted.store(true, Release);
    }
    let begin = dispatch::wait_for(&mut rig, &flags.begin_ns, &flags.stop);
    let dispatched = match begin {
        Some(begin) => dispatch::run(&mut rig, course, begin),
        None => Dispatched::default(),
    };
    rig.stop();
    (rig, dispatched)
}

/// What the calling thread saw.
struct Attended {
    worker: Process,
    snapshots: Vec<Snapshot>,
    /// When, and what the batch had had.
    samples: Vec<(u64, u64)>,
    told: Option<Told>,
    log: Option<PathBuf>,
}

/// The calling thread's part: starts the worker and the batch, reads the accounts at each window's end, and ends the batch.
fn attend(
    setting: &Setting,
    block: &Block,
    agent: &Path,
    folder: &Path,
    flags: &Flags,
) -> Result<Attended, Failure> {
    let Cell { worker: kind, arm, batch } = block.cell;
    let worker = WorkerSetup {
        agent,
        cpu: setting.cpus[1],
        polls: kind.polls(),
        is_real_time: kind.is_real_time(),
        spin: &setting.spin,
    };
    let worker = settled(worker.start()?, setting.cpus[1], kind.is_real_time(), flags)?;
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
        work: rate.map(|rate| rate * setting.wanted * JobSetup::WALL as f64),
        log: log.as_deref(),
        seed: block.seed,
        batch,
    };
    let held = arm.policy().map(|policy| job(policy).start()).transpose()?;
    // The worker's core is the worker's and the batch's.
    let _ = wedjat::cpus::pin(setting.cpus[0]); // it is there
    let machine = Machine::new();
    let begin = now_ns() + LEAD_NS;
    flags.begin_ns.store(begin, Release);
    let window = setting.window.as_nanos() as u64;
    let windows: usize = block.phases.iter().map(|phase| phase.windows).sum();
    let (mut snapshots, mut samples) = (Vec::with_capacity(windows + 1), Vec::new());
    for at in 0..=windows as u64 {
        let is_close = block.purpose == Purpose::Step;
        sleep_until(begin + at * window, is_close, || {
            samples.extend(held.as_ref().map(|held| (now_ns(), held.ran_ns())));
        });
        snapshots.push(Snapshot::take(&machine, worker.id(), held.as_ref()));
    }
    let told = held.map(Held::end).transpose()?;
    Ok(Attended { worker, snapshots, samples, told, log })
}

/// The worker's process once it is let in, on its core and of its class.
fn settled(
    mut worker: Process,
    cpu: usize,
    is_real_time: bool,
    flags: &Flags,
) -> Result<Process, Failure> {
    let began = Instant::now();
    let is_there = |id: u32| {
        let scheduling = Scheduling::of(id);
        flags.is_admitted.load(Acquire)
            && scheduling
                .is_some_and(|it| it.cpus.iter().eq([&cpu]) && it.is_real_time() == is_real_time)
    };
    while !is_there(worker.id()) {
        if worker.has_ended() || began.elapsed() > PATIENCE {
            return Err(worker.ends().err().unwrap_or("the worker does not come".into()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(worker)
}

fn sleep_until(at_ns: u64, is_close: bool, mut look: impl FnMut()) {
    loop {
        let left = Duration::from_nanos(at_ns.saturating_sub(now_ns()));
        if left.is_zero() {
            return;
        }
        std::thread::sleep(if is_close { left.min(CLOSELY) } else { left });
        if is_close {
            look();
        }
    }
}

fn windows(
    setting: &Setting,
    block: &Block,
    dispatched: &Dispatched,
    snapshots: &[Snapshot],
) -> Vec<Window> {
    let mut tasks = dispatched.tasks.iter().peekable();
    let mut all = Vec::new();
    for (phase, ends) in phase_of_each(&block.phases).zip(snapshots.windows(2)) {
        let (from, to) = (&ends[0], &ends[1]);
        let mut window = Window::between(from, to, block, phase);
        window.is_calm = window.foreign <= setting.foreign_max;
        let mut worked_ns = 0_u64;
        while let Some(task) = tasks.next_if(|task| task.due_ns < to.at_ns) {
            if task.due_ns < from.at_ns + SETTLE_NS {
                continue;
            }
            worked_ns += u64::from(if task.response_ns == NEVER { 0 } else { task.service_ns });
            window.responses.push(task.response_ns);
            window.hand_overs.extend(Some(task.hand_over_ns).filter(|ns| *ns != NEVER));
        }
        let length = to.at_ns.saturating_sub(from.at_ns + SETTLE_NS);
        window.worked = worked_ns as f64 / length.max(1) as f64;
        window.tasks = window.responses.len() as u64;
        window.p999_us = percentile_us(&mut window.responses, setting.objective.part);
        let is_missed = window.p999_us.is_none_or(|us| us > setting.objective.us);
        window.violates = window.tasks > 0 && is_missed;
        all.push(window);
    }
    all
}

impl Window {
    fn between(from: &Snapshot, to: &Snapshot, block: &Block, phase: &Phase) -> Self {
        let length = to.at_ns.saturating_sub(from.at_ns).max(1) as f64;
        let part = |of: fn(&Snapshot) -> u64| of(to).saturating_sub(of(from)) as f64 / length;
        let foreign = from.foreign_ns(to) as f64 / length;
        Self {
            cell: block.cell,
            purpose: block.purpose,
            seed: block.seed,
            load: phase.load.name(),
            foreign,
            is_calm: false,
            tasks: 0,
            violates: false,
            p999_us: None,
            done_rate: part(|it| it.done) * 1e9,
            batch_core: part(|it| it.batch_ns),
            worker_core: part(|it| it.worker_ns),
            worked: 0.0,
            given: to.given,
            allowed: to.allowed,
            responses: Vec::new(),
            hand_overs: Vec::new(),
        }
    }
}

/// The time in us that this part of them does not exceed; none where there are none, or where it has no end.
pub fn percentile_us(times: &mut [u32], part: f64) -> Option<f64> {
    times.sort_unstable();
    let rank = (times.len() as f64 * part).ceil().max(1.0) as usize;
    let at = times.get(rank - 1).copied()?;
    (at != NEVER).then(|| f64::from(at) / 1e3)
}

/// What the batch had after each step up.
fn steps(
    block: &Block,
    phases_ns: &[u64],
    windows: &[Window],
    samples: &[(u64, u64)],
) -> Vec<Step> {
    let (mut found, mut before) = (Vec::new(), 0);
    for (at, phase) in block.phases.iter().enumerate() {
        let own = &windows[before.min(windows.len())..(before + phase.windows).min(windows.len())];
        before += phase.windows;
        let is_up = at > 0 && phase.load.at(0) > block.phases[at - 1].load.at(0);
        if is_up && phase.is_measured {
            let is_calm = own.iter().all(|window| window.is_calm);
            let (from, to) = (phases_ns[at], phases_ns[at + 1]);
            found.extend(step(from, to, samples).map(|(share_after, held_after_ms)| Step {
                seed: block.seed,
                is_calm,
                share_after,
                held_after_ms,
            }));
        }
    }
    found
}

/// What the batch had of the core from 100 ms after `from` to `to`, and after how many milliseconds it had little for good.
fn step(from: u64, to: u64, samples: &[(u64, u64)]) -> Option<(f64, f64)> {
    let after: Vec<_> = samples.iter().filter(|it| it.0 >= from && it.0 < to).collect();
    let late = after.iter().position(|it| it.0 >= from + STEP_NS)?;
    let (first, last) = (after[late], after.last()?);
    let share = |from: &(u64, u64), to: &(u64, u64)| {
        to.1.saturating_sub(from.1) as f64 / to.0.saturating_sub(from.0).max(1) as f64
    };
    let much = |pair: &[&(u64, u64)]| share(pair[0], pair[1]) >= STEP_SHARE;
    let end = after.windows(2).rev().find(|pair| much(pair)).map_or(from, |pair| pair[1].0);
    Some((share(first, last), end.saturating_sub(from) as f64 / 1e6))
}

fn learner(block: &Block, log: &Path) -> Result<Learner, Failure> {
    let file = File::open(log).map_err(|error| format!("{}: {error}", log.display()))?;
    let replayed = replay(BufReader::new(file), &Overrides::default())?;
    Ok(Learner { cell: block.cell, seed: block.seed, replayed })
}

/// What a batch does alone, a second: of its windows that count, of all of them where none does.
#[must_use]
pub fn rate(windows: &[Window]) -> Option<f64> {
    let has_calm = windows.iter().any(|window| window.is_calm);
    let counted = windows.iter().filter(|window| window.is_calm || !has_calm);
    let rates: Vec<_> = counted.map(|window| window.done_rate).collect();
    (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_tasks_and_have_no_end_where_one_was_lost() {
        let mut times: Vec<u32> = (1..=1000).map(|us| us * 1000).rev().collect();
        assert_eq!(percentile_us(&mut times, 0.999), Some(999.0));
        assert_eq!(percentile_us(&mut times, 0.5), Some(500.0));
        times[0] = NEVER;
        times[1] = NEVER;
        assert_eq!(percentile_us(&mut times, 0.999), None);
        assert_eq!(percentile_us(&mut times, 0.99), Some(992.0));
        assert_eq!(percentile_us(&mut [], 0.5), None);
    }

    #[test]
    fn what_is_nobodys_and_what_is_stolen_is_foreign() {
        let before = Snapshot::default();
        let used = Used { ran_ns: 900, stolen_ns: 40 };
        let after = Snapshot { used, own_ns: 500, worker_ns: 200, batch_ns: 150, ..before };
        assert_eq!(before.foreign_ns(&after), 50 + 40);
        // Accounts that are read one after the other may say that more was ours than there was.
        let early = Snapshot { used: Used { ran_ns: 800, stolen_ns: 0 }, ..after };
        assert_eq!(before.foreign_ns(&early), 0);
    }

    #[test]
    fn a_step_is_held_when_the_batch_has_little_from_then_on() {
        const MS: u64 = 1_000_000;
        // All of the core for 60 ms, then nothing but 1 ms in 100.
        let at =
            |ms: u64| (ms * MS, if ms <= 60 { ms * MS } else { 60 * MS + (ms - 60) * MS / 100 });
        let samples: Vec<_> = (0..50).map(|sample| at(sample * 10)).collect();
        let (share, held_ms) = step(0, 500 * MS, &samples).unwrap();
        assert!((share - 0.01).abs() < 1e-9 && held_ms == 60.0, "{share} {held_ms}");
        assert!(step(0, 50 * MS, &samples).is_none());
        let all: Vec<_> = (0..50).map(|sample| (sample * 10 * MS, sample * 10 * MS)).collect();
        assert_eq!(step(0, 500 * MS, &all), Some((1.0, 490.0)));
    }
}
