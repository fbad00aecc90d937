//! A batch beside an agent's workers, from its place in the queue to its end.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CpuSet;
use wedjat_cosched::mechanism::{
    Actuator, Class, Controller, Group, Hierarchies, Limits, Made, Process, Quota, Scheduling,
    Unlimited, Weight, in_group, set_class, threads_of,
};
use wedjat_cosched::{
    Chooser, Expert, Guard, Logged, Mode, Outcome, Plan, Progress, Settings, Setup, Share, State,
};

use super::notes::{Figures, Folder, JobState, Note};
use super::progress::{self, Reading};
use super::{CoschedError, Measure, Objective, Policy, Watching};
use crate::cpus;
use crate::ring::region::path_of;

/// Between two looks at the workers.
const LOOK: Duration = Duration::from_millis(20);
/// Between two notes of what it does.
const NOTED: Duration = Duration::from_millis(200);
/// Between two looks whether it is one's turn.
const TURN: Duration = Duration::from_millis(50);
/// How long what was killed may take to be gone.
const GONE: Duration = Duration::from_secs(10);

/// A batch, and how it is to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The agent.
    pub agent: String,
    /// What runs: a program and its arguments.
    pub command: Vec<OsString>,
    /// Who says how much it gets.
    pub policy: Policy,
    /// What the workers are owed.
    pub objective: Objective,
    /// The guard, the chooser and its experts.
    pub setup: Setup,
    /// How it ranks among other threads.
    pub class: Class,
    /// Cores that it may have; those of the workers when none.
    pub cpus: Option<BTreeSet<usize>>,
    /// Below which cgroup, in each hierarchy, its own is made.
    pub cgroup: PathBuf,
    /// Processes and threads that it may have.
    pub processes: u32,
    /// How long it may run.
    pub wall: Option<Duration>,
    /// By what its progress is told.
    pub measure: Measure,
    /// How much there is to do, by that measure.
    pub work: Option<f64>,
    /// Where decisions are written down.
    pub log: Option<PathBuf>,
    /// Between two choices of a share.
    pub round: Duration,
    /// How long it has to end when it is told to.
    pub grace: Duration,
    /// Also what does harm.
    pub force: bool,
}

/// Signals that were sent to whoever runs a job.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// How often it was told to end.
    pub ends: Arc<AtomicUsize>,
    /// The last one that is only to be passed on, 0 for none.
    pub passed: Arc<AtomicUsize>,
}

/// How a job ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The command's; none when it never began.
    pub status: Option<ExitStatus>,
    /// Its time was over.
    pub is_late: bool,
    /// What it did.
    pub figures: Figures,
}

/// What is known before a batch begins.
struct Planned {
    watching: Watching,
    hierarchies: Hierarchies,
    made: Made,
    limits: Limits,
    actuator: Box<dyn Actuator>,
}

/// What the jobs of one agent have in common.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The agent.
    pub agent: String,
    /// Who says how much a batch gets.
    pub policy: Policy,
    /// What the workers are owed.
    pub objective: Objective,
    /// The guard, the chooser and its experts.
    pub setup: Setup,
    /// Processes and threads that a batch may have.
    pub processes: u32,
}

impl Job {
    /// Processes and threads that a batch may have unless configured.
    pub const PROCESSES: u32 = 1024;
    /// Between two choices of a share unless said otherwise.
    pub const ROUND: Duration = Duration::from_secs(1);
    /// How long it has to end unless configured.
    pub const GRACE: Duration = Duration::from_secs(5);

    /// A job of this setting without a command.
    #[must_use]
    pub fn new(setting: Setting) -> Self {
        let Setting { agent, policy, objective, setup, processes } = setting;
        Self {
            agent,
            command: Vec::new(),
            policy,
            objective,
            setup,
            class: Class::Idle,
            cpus: None,
            cgroup: PathBuf::from("/"),
            processes,
            wall: None,
            measure: Measure::Cpu,
            work: None,
            log: None,
            round: Self::ROUND,
            grace: Self::GRACE,
            force: false,
        }
    }

    /// Finds out what it would run on and be held by, and refuses what would do harm.
    fn plan(&self, hierarchies: Hierarchies) -> Result<Planned, CoschedError> {
        let watching = Watching::open(&self.agent, self.objective)?;
        let cpus = watching.cpus(self.cpus.as_ref())?;
        let actuator: Box<dyn Actuator> = match self.policy {
            Policy::Idle => Box::new(Unlimited),
            Policy::Shares => Box::new(Weight::default()),
            _ => Box::new(Quota::of(cpus.len())),
        };
        if hierarchies.folders().is_empty() {
            return Err(CoschedError::NoGroups);
        }
        if self.policy != Policy::Idle && hierarchies.place(Controller::Cpu).is_none() {
            let what = if self.policy == Policy::Shares { "a weight" } else { "a quota" };
            return Err(wedjat_cosched::mechanism::GroupError::Missing(what).into());
        }
        if self.class == Class::Normal
            && !self.force
            && let Some(worker) = watching.normal_worker()
        {
            return Err(CoschedError::Harmful { limit: actuator.name(), worker });
        }
        // Cores that were named may be of nobody who can be watched; then the guard would see no load and allow all.
        if self.policy.is_guarded() && watching.workers().is_empty() && !self.force {
            let (agent, policy) = (self.agent.clone(), self.policy.to_string());
            return Err(CoschedError::Unwatched { agent, policy });
        }
        let own = Process::own();
        let made =
            Group::planned(&hierarchies, &self.cgroup, &format!("{}-{}", own.pid, own.started));
        let limits = Limits { cpus, processes: self.processes };
        Ok(Planned { watching, hierarchies, made, limits, actuator })
    }

    /// What would be done, for people; nothing is.
    ///
    /// # Errors
    /// Those for which it would not be done.
    pub fn told(&self) -> Result<String, CoschedError> {
        let planned = self.plan(Hierarchies::of_this_machine())?;
        let cpus: Vec<_> = planned.limits.cpus.iter().map(usize::to_string).collect();
        let mut lines = vec![
            format!(
                "agent {} (pid {}), {} workers",
                self.agent,
                planned.watching.pid(),
                planned.watching.workers().len()
            ),
            format!(
                "cores {}, class {}, at most {} processes",
                cpus.join(","),
                self.class.name(),
                self.processes
            ),
            format!(
                "policy {}, objective {}, limited by {}",
                self.policy,
                self.objective,
                planned.actuator.name()
            ),
        ];
        lines.extend(planned.made.paths().map(|path| format!("would make {}", path.display())));
        lines.extend(
            planned
                .hierarchies
                .missing()
                .map(|it| format!("this machine lacks the controller {}", it.name())),
        );
        lines.push(format!("would run {}", self.shown()));
        Ok(lines.join("\n") + "\n")
    }

    fn shown(&self) -> String {
        self.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    fn program(&self) -> String {
        self.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// Runs a job when it is its turn, until it ends or is told to. What it made is taken away again, and its note.
///
/// # Errors
/// When it can't run, or when its agent ends.
pub fn run(job: &Job, signals: &Signals) -> Result<Ended, CoschedError> {
    let folder = Folder::open()?;
    let hierarchies = Hierarchies::of_this_machine();
    for note in folder.clean(wedjat_cosched::mechanism::System::REAL)? {
        log::warn!("job {} ({}) was killed; what it left is taken away", note.id(), note.command);
    }
    let Planned { watching, hierarchies, made, limits, actuator } = job.plan(hierarchies)?;
    for lacking in hierarchies.missing() {
        log::warn!("this machine lacks the controller {} of cgroups", lacking.name());
    }
    let mut note = Note {
        process: Process::own(),
        turn: 0,
        agent: path_of(&job.agent),
        agent_pid: watching.pid(),
        command: job.shown(),
        policy: job.policy.to_string(),
        objective: job.objective.to_string(),
        state: JobState::Waiting,
        made: Made::default(),
        figures: Figures::default(),
    };
    let entered = Entered { folder: &folder, id: note.id() };
    folder.enter(&mut note)?;
    while !folder.take_turn(&mut note)? {
        if signals.ends.load(Acquire) > 0 {
            return Ok(Ended { status: None, is_late: false, figures: note.figures });
        }
        if !watching.is_there() {
            return Err(CoschedError::AgentGone(job.agent.clone()));
        }
        std::thread::sleep(TURN);
    }
    // Before it is made, so that it is known to be ours whatever happens now.
    note.made = made;
    folder.write(&note)?;
    let group = Group::make(&hierarchies, &note.made, &limits)?;
    let ran = Batch::start(job, &folder, &mut note, (&group, &limits), watching, actuator)
        .and_then(|batch| batch.run(signals));
    let cleared = match group.kill(GONE, || {}) {
        true => group.remove(GONE).map_err(CoschedError::from),
        false => Err(CoschedError::Unkillable(group.processes().into_iter().collect())),
    };
    if cleared.is_err() {
        // Its note stays, for whoever comes next.
        std::mem::forget(entered);
    }
    cleared.and(ran)
}

/// A job's place in the folder, left when dropped.
struct Entered<'a> {
    folder: &'a Folder,
    id: u32,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.folder.forget(self.id);
    }
}

/// Chooses shares, and writes down why.
type Choosing = Logged<Box<dyn io::Write>>;

/// A batch that runs.
struct Batch<'a> {
    job: &'a Job,
    folder: &'a Folder,
    note: &'a mut Note,
    group: &'a Group,
    limits: &'a Limits,
    watching: Watching,
    actuator: Box<dyn Actuator>,
    guard: Guard,
    choosing: Option<Choosing>,
    reading: Reading,
    child: Child,
    began: Instant,
    /// What it gets where the guard allows it.
    chosen: Share,
    /// What it was given last.
    given: Share,
}

impl<'a> Batch<'a> {
    fn start(
        job: &'a Job,
        folder: &'a Folder,
        note: &'a mut Note,
        (group, limits): (&'a Group, &'a Limits),
        watching: Watching,
        mut actuator: Box<dyn Actuator>,
    ) -> Result<Self, CoschedError> {
        if job.class == Class::Idle && !group.yield_to_all()? && group.set_least_weight().is_err() {
            log::warn!("this kernel has no idle cgroups: threads of the batch give way one by one");
        }
        let mut settings = job.setup.guard.clone();
        settings.objective_us = job.objective.us;
        let guard = Guard::new(settings)?;
        let choosing = choosing(job)?;
        let chosen = match job.policy {
            Policy::Static(share) => share,
            Policy::Asax | Policy::Aimd => Share::NONE,
            Policy::Guard | Policy::Idle | Policy::Shares => Share::MOST,
        };
        let given = if job.policy.is_guarded() { Share::NONE } else { chosen };
        // What is frozen can't even start, so it begins with little until the workers have been looked at.
        actuator.give(group, if given == Share::NONE { Share::at_most(0.1) } else { given })?;
        keep_off(&limits.cpus);
        let (child, reading) = spawn(job, folder, note.id(), group, limits)?;
        log::info!("job {} runs {} on CPUs {:?}", note.id(), job.program(), limits.cpus);
        let began = Instant::now();
        note.figures = Figures {
            wall_seconds: job.wall.map(|it| it.as_secs_f64()),
            work: job.work,
            ..Figures::default()
        };
        Ok(Self {
            job,
            folder,
            note,
            group,
            limits,
            watching,
            actuator,
            guard,
            choosing,
            reading,
            child,
            began,
            chosen,
            given,
        })
    }

    /// Until it ends; what is left of it then is ended, too.
    fn run(mut self, signals: &Signals) -> Result<Ended, CoschedError> {
        let watched = self.watch(signals);
        if watched.is_err() {
            self.note.state = JobState::Ending;
        }
        let ended = self.finish(signals);
        let (mut status, is_late) = watched?;
        if status.is_none() {
            status = ended;
        }
        let done = self.measure();
        self.note.figures.done = done;
        self.reading.end();
        if let Some(choosing) = self.choosing.take() {
            choosing.into_log().map_err(|error| CoschedError::Log(error.into()))?;
        }
        Ok(Ended { status, is_late, figures: self.note.figures })
    }

    /// Until the first process ends, or is to.
    fn watch(&mut self, signals: &Signals) -> Result<(Option<ExitStatus>, bool), CoschedError> {
        let (mut rounds, mut noted) = (Instant::now() + self.job.round, Instant::now());
        loop {
            let now = Instant::now();
            if let Some(status) = self.child.try_wait().map_err(|error| self.broken(error))? {
                return Ok((Some(status), false));
            }
            if !self.watching.is_there() {
                return Err(CoschedError::AgentGone(self.job.agent.clone()));
            }
            if signals.ends.load(Acquire) > 0 {
                return Ok((None, false));
            }
            if self.job.wall.is_some_and(|wall| now.duration_since(self.began) >= wall) {
                log::warn!("job {} has had its time and is ended", self.note.id());
                return Ok((None, true));
            }
            self.pass_on(signals);
            self.look(now);
            if now >= rounds {
                rounds = now + self.job.round;
                self.choose(now)?;
                self.hold();
            }
            self.give()?;
            if now >= noted {
                noted = now + NOTED;
                self.note_figures(now)?;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn broken(&self, error: io::Error) -> CoschedError {
        CoschedError::Command { command: self.job.program(), error }
    }

    fn pass_on(&self, signals: &Signals) {
        let number = signals.passed.swap(0, Relaxed) as i32;
        if let (Some(signal), Ok(pid)) =
            (Signal::from_named_raw(number), i32::try_from(self.child.id()))
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _ = kill_process(pid, signal); // it may have ended meanwhile
        }
    }

    /// What the workers do, and what may be given by that.
    fn look(&mut self, now: Instant) {
        let seen = self.watching.look(now);
        let at_ns = now.duration_since(self.began).as_nanos() as u64;
        let allowed = self.guard.observe(at_ns, &seen, self.given);
        let figures = &mut self.note.figures;
        figures.windows += u64::from(seen.tail.is_some());
        figures.violations += u64::from(seen.tail.is_some_and(|tail| tail > self.job.objective.us));
        (figures.load, figures.allowed) = (seen.load, allowed.part());
    }

    /// What came of the last share, and the next one.
    fn choose(&mut self, now: Instant) -> Result<(), CoschedError> {
        let (tail, _) = self.watching.tail();
        self.note.figures.tail_us = tail;
        let at_ns = now.duration_since(self.began).as_nanos() as u64;
        let (batch, workers) = (self.progress(now), self.workers_progress(tail));
        let limit = self.guard.allowed(at_ns);
        let Some(choosing) = &mut self.choosing else { return Ok(()) };
        let observed = tail.unwrap_or(0.0);
        choosing.learn(at_ns, &Outcome { expected: self.job.objective.us, observed, batch })?;
        let interval = self.job.wall.map_or(0.0, |wall| {
            (now.duration_since(self.began).as_secs_f64() / wall.as_secs_f64()).min(1.0)
        });
        let load = self.note.figures.load;
        // Tasks come one by one to each worker, so that how many workers a stage of theirs uses is their load.
        let state =
            State { cpu: load, memory: memory_used(), stage: load, interval, progress: workers };
        self.chosen = choosing.decide(at_ns, &state, limit)?;
        self.note.figures.decisions += 1;
        Ok(())
    }

    /// The workers are content when the objective is met: it is what they may take, and the percentile what they do take.
    fn workers_progress(&self, tail: Option<f64>) -> Progress {
        let remaining = tail.unwrap_or(0.0);
        Progress { wall: self.job.objective.us, elapsed: 0.0, rate: 1.0, remaining }
    }

    fn progress(&self, now: Instant) -> Option<Progress> {
        let (wall, work) = (self.job.wall?.as_secs_f64(), self.job.work?);
        let (elapsed, done) = (now.duration_since(self.began).as_secs_f64(), self.measure());
        Some(Progress {
            wall,
            elapsed,
            rate: done / elapsed.max(1e-3),
            remaining: (work - done).max(0.0),
        })
    }

    fn measure(&self) -> f64 {
        self.reading.done(self.group.used_ns())
    }

    fn give(&mut self) -> Result<(), CoschedError> {
        let at_ns = self.began.elapsed().as_nanos() as u64;
        let share = match self.job.policy.is_guarded() {
            true => self.chosen.min(self.guard.allowed(at_ns)),
            false => self.chosen,
        };
        self.given = share;
        let unlimited = matches!(self.job.policy, Policy::Idle | Policy::Shares);
        self.note.figures.share = if unlimited { 1.0 } else { share.part() };
        Ok(self.actuator.give(self.group, share)?)
    }

    /// Puts threads back that have taken another class than they may have, or other cores.
    fn hold(&mut self) {
        let mut cores = CpuSet::new();
        self.limits.cpus.iter().for_each(|cpu| cores.set(*cpu));
        for thread in self.group.processes().into_iter().flat_map(threads_of) {
            let Some(scheduling) = Scheduling::of(thread) else { continue };
            let may_not = scheduling.is_real_time()
                || (self.job.class == Class::Idle && scheduling.class != 5);
            let is_elsewhere = !scheduling.cpus.is_subset(&self.limits.cpus);
            if may_not {
                let _ = set_class(thread, self.job.class); // it may have ended meanwhile
            }
            if is_elsewhere && let Some(pid) = i32::try_from(thread).ok().and_then(Pid::from_raw) {
                let _ = rustix::thread::sched_setaffinity(Some(pid), &cores);
            }
            self.note.figures.put_back += u64::from(may_not) + u64::from(is_elsewhere);
        }
    }

    fn note_figures(&mut self, now: Instant) -> Result<(), CoschedError> {
        let done = self.measure();
        let figures = &mut self.note.figures;
        figures.elapsed_seconds = now.duration_since(self.began).as_secs_f64();
        figures.cpu_seconds = self.group.used_ns().unwrap_or(0) as f64 / 1e9;
        figures.done = done;
        self.folder.write(self.note)
    }

    /// Ends whatever of it still runs: asks first, unless it is to be at once, and then kills. The first process's status.
    fn finish(&mut self, signals: &Signals) -> Option<ExitStatus> {
        self.note.state = JobState::Ending;
        let _ = self.note_figures(Instant::now()); // what counts is that it ends
        // What is frozen hears no signal; with more it would end sooner, but might do harm.
        let little = self.given.max(Share::at_most(0.1));
        if let Err(error) = self.actuator.give(self.group, little) {
            log::warn!("{error}");
        }
        if !self.group.processes().is_empty() {
            self.group.signal(Signal::TERM);
        }
        let began = Instant::now();
        let mut status = None;
        while !self.group.processes().is_empty()
            && began.elapsed() < self.job.grace
            && signals.ends.load(Acquire) < 2
        {
            status = status.or_else(|| self.child.try_wait().ok().flatten());
            std::thread::sleep(LOOK);
        }
        self.group.kill(GONE, || drop(self.child.try_wait()));
        status.or_else(|| self.child.wait().ok())
    }
}

/// Keeps the calling thread, which runs now and then, off the workers' cores where there are others.
fn keep_off(cores: &BTreeSet<usize>) {
    let others = cpus::beside(&cores.iter().copied().collect::<Vec<_>>());
    if !others.is_empty() {
        let mut set = CpuSet::new();
        others.iter().for_each(|cpu| set.set(*cpu));
        let _ = rustix::thread::sched_setaffinity(None, &set); // it then runs where it ran before
    }
}

fn choosing(job: &Job) -> Result<Option<Choosing>, CoschedError> {
    let (settings, experts) = match job.policy {
        Policy::Asax => (job.setup.settings.clone(), job.setup.experts.clone()),
        Policy::Aimd => {
            let settings = Settings { mode: Mode::Iw, ..job.setup.settings.clone() };
            (settings, vec![Expert { name: "aimd".to_owned(), plan: Plan::Aimd }])
        }
        _ => return Ok(None),
    };
    let log: Box<dyn io::Write> = match &job.log {
        Some(path) => {
            let file = File::create(path)
                .map_err(|error| CoschedError::Notes { path: path.clone(), error })?;
            Box::new(BufWriter::new(file))
        }
        None => Box::new(io::sink()),
    };
    let logged = Logged::new(Chooser::new(settings, experts)?, log);
    logged.map(Some).map_err(|error| CoschedError::Log(error.into()))
}

fn spawn(
    job: &Job,
    folder: &Folder,
    id: u32,
    group: &Group,
    limits: &Limits,
) -> Result<(Child, Reading), CoschedError> {
    let fault = |error| CoschedError::Command { command: job.program(), error };
    let Some((program, arguments)) = job.command.split_first() else {
        return Err(fault(io::ErrorKind::InvalidInput.into()));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    if job.measure == Measure::Counter {
        let path = folder.counter(id);
        std::fs::write(&path, [0; 8])
            .map_err(|error| CoschedError::Notes { path: path.clone(), error })?;
        command.env(progress::COUNTER, path);
    }
    if let Measure::Lines(_) = job.measure {
        command.stdout(Stdio::piped());
    }
    let mut child =
        in_group(&mut command, group, limits, job.class).and_then(Command::spawn).map_err(fault)?;
    let reading = match &job.measure {
        Measure::Cpu => Reading::Cpu,
        Measure::Counter => Reading::Counter(folder.counter(id)),
        Measure::Lines(text) => match child.stdout.take() {
            Some(out) => progress::count_lines(out, io::stdout(), text.clone()).map_err(fault)?,
            None => Reading::Cpu,
        },
    };
    Ok((child, reading))
}

/// The part of this machine's memory that is in use; 0 where that is not told.
fn memory_used() -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok()
    };
    match (field("MemTotal"), field("MemAvailable")) {
        (Some(total), Some(free)) if total > 0.0 => (1.0 - free / total).clamp(0.0, 1.0),
        _ => 0.0,
    }
}
