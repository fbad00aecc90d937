//! A batch job beside an agent's workers, from the queue to its end. The process `wedjat cosched run` calls [`run`].
//!
//! A *batch* is a command that uses CPU time which the workers of an agent leave idle. Its *share* is the fraction of
//! their cores' time that it may use. Jobs of one agent run one at a time; each describes itself in a *note*, a file.
//! A *guard* observes the workers and limits the job's share of their cores' time. A *chooser* picks a share within
//! that limit once per round; it mixes the votes of *experts* (decision trees and rules) and learns which to follow. An
//! *actuator* applies the share to the job's cgroup, as a quota or a weight.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CpuSet;
use wedjat_core::cpus;
use wedjat_core::ring::region::path_of;
use wedjat_cosched::mechanism::{
    Actuator, CgroupFolders, Class, Controller, Group, Hierarchies, Limits, Process, Quota,
    Scheduling, Unlimited, Weight, in_group, set_class, threads_of,
};
use wedjat_cosched::{
    Chooser, Expert, Guard, LoggingChooser, Mode, Outcome, Plan, Progress, Settings, Setup, Share,
    State,
};

use super::notes::{Figures, JobState, Note, NotesFolder};
use super::progress::{self, ProgressSource};
use super::{AgentMonitor, CoschedError, Measure, Objective, Policy};

/// Interval of worker observations, and of checks for the job's end.
const OBSERVATION_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of updates of the job's note.
const NOTE_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of checks for the job's turn.
const TURN_INTERVAL: Duration = Duration::from_millis(50);
/// Time for killed processes to disappear.
const EXIT_MAX: Duration = Duration::from_secs(10);

/// A batch job and its options.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Name of the agent.
    pub agent: String,
    /// Program and its arguments.
    pub command: Vec<OsString>,
    /// Policy that sets the share.
    pub policy: Policy,
    /// Latency objective of the workers' tasks.
    pub objective: Objective,
    /// Configuration of guard, chooser and experts.
    pub setup: Setup,
    /// Scheduling class of its threads.
    pub class: Class,
    /// CPUs that it may use; `None` for those of the workers.
    pub cpus: Option<BTreeSet<usize>>,
    /// Parent cgroup, in each hierarchy, of its own cgroup.
    pub cgroup: PathBuf,
    /// Maximum number of processes and threads.
    pub processes: u32,
    /// Maximum run time.
    pub wall: Option<Duration>,
    /// Measure of its progress.
    pub measure: Measure,
    /// Total work in that measure.
    pub work: Option<f64>,
    /// File for the log of decisions.
    pub log: Option<PathBuf>,
    /// Interval of decisions.
    pub round: Duration,
    /// Time to end after a request.
    pub grace: Duration,
    /// True to run even if the job can harm the workers.
    pub force: bool,
}

/// Signals received by the process that runs a job. Its signal handlers write them, and the job's loop reads them.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// Number of requests to end.
    pub ends: Arc<AtomicUsize>,
    /// Signal of the first request to end; 0 for none.
    pub end_signal: Arc<AtomicUsize>,
    /// Last signal to forward to the job; 0 for none.
    pub passed: Arc<AtomicUsize>,
}

/// End of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobEnd {
    /// Exit status of the command; `None` if it never started.
    pub status: Option<ExitStatus>,
    /// True if the run time was exceeded.
    pub is_late: bool,
    /// Final figures.
    pub figures: Figures,
}

/// Everything that a batch needs at its start, determined and checked beforehand.
struct JobPlan {
    /// Observer of the agent.
    monitor: AgentMonitor,
    /// Cgroup hierarchies of this machine.
    hierarchies: Hierarchies,
    /// Folders of its cgroup, not yet created.
    folders: CgroupFolders,
    /// CPUs, and the number of processes and threads.
    limits: Limits,
    /// Means to apply the share.
    actuator: Box<dyn Actuator>,
}

/// Argument of [`Job::new`]: the settings without a default there. The command line and the agent's file give them.
#[derive(Clone, Debug)]
pub struct BatchSettings {
    /// Name of the agent.
    pub agent: String,
    /// Policy that sets the share.
    pub policy: Policy,
    /// Latency objective of the workers' tasks.
    pub objective: Objective,
    /// Configuration of guard, chooser and experts.
    pub setup: Setup,
    /// Maximum number of processes and threads.
    pub processes: u32,
}

impl Job {
    /// Default number of processes and threads.
    pub const PROCESSES: u32 = 1024;
    /// Default interval of decisions.
    pub const ROUND: Duration = Duration::from_secs(1);
    /// Default time to end after a request.
    pub const GRACE: Duration = Duration::from_secs(5);

    /// Creates a job with these settings and without a command.
    #[must_use]
    pub fn new(settings: BatchSettings) -> Self {
        let BatchSettings { agent, policy, objective, setup, processes } = settings;
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

    /// Determines CPUs and cgroups, and refuses a job that can harm the workers.
    fn plan(&self, hierarchies: Hierarchies) -> Result<JobPlan, CoschedError> {
        let monitor = AgentMonitor::open(&self.agent, self.objective)?;
        let cpus = monitor.cpus(self.cpus.as_ref())?;
        let actuator: Box<dyn Actuator> = match self.policy {
            Policy::Idle => Box::new(Unlimited),
            Policy::Shares => Box::new(Weight::default()),
            _ => Box::new(Quota::of(cpus.len())),
        };
        if hierarchies.folders().is_empty() {
            return Err(CoschedError::NoGroups);
        }
        if self.policy != Policy::Idle && hierarchies.mount_point(Controller::Cpu).is_none() {
            let control = if self.policy == Policy::Shares { "a weight" } else { "a quota" };
            return Err(wedjat_cosched::mechanism::GroupError::Missing(control).into());
        }
        if self.class == Class::Normal
            && !self.force
            && let Some(worker) = monitor.normal_worker()
        {
            return Err(CoschedError::Harmful { limit: actuator.name(), worker });
        }
        // The given CPUs may have no worker that can be watched. The guard would then see no load and allow
        // everything.
        if self.policy.is_guarded() && monitor.workers().is_empty() && !self.force {
            let (agent, policy) = (self.agent.clone(), self.policy.to_string());
            return Err(CoschedError::Unwatched { agent, policy });
        }
        let this_process = Process::own();
        let folders = Group::planned(
            &hierarchies,
            &self.cgroup,
            &format!("{}-{}", this_process.pid, this_process.started),
        );
        let limits = Limits { cpus, processes: self.processes };
        Ok(JobPlan { monitor, hierarchies, folders, limits, actuator })
    }

    /// Describes the run as text, without running anything.
    ///
    /// # Errors
    /// Reasons why the job would be refused.
    pub fn dry_run(&self) -> Result<String, CoschedError> {
        let plan = self.plan(Hierarchies::of_this_machine())?;
        let cpus: Vec<_> = plan.limits.cpus.iter().map(usize::to_string).collect();
        let mut lines = vec![
            format!(
                "agent {} (pid {}), {} workers",
                self.agent,
                plan.monitor.pid(),
                plan.monitor.workers().len()
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
                plan.actuator.name()
            ),
        ];
        lines.extend(plan.folders.paths().map(|path| format!("would make {}", path.display())));
        lines.extend(
            plan.hierarchies
                .missing()
                .map(|missing| format!("this machine lacks the controller {}", missing.name())),
        );
        lines.push(format!("would run {}", self.command_text()));
        Ok(lines.join("\n") + "\n")
    }

    /// Returns the command as one line.
    fn command_text(&self) -> String {
        self.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    /// Returns the name of the program.
    fn program(&self) -> String {
        self.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// Runs a job on its turn until it ends or is stopped. First removes what killed jobs left. At the end removes
/// everything that the job created, including its note.
///
/// # Errors
/// If the job cannot run, its agent ends, its decisions cannot be logged, or its processes or cgroups remain. In the
/// last case its note remains, too.
pub fn run(job: &Job, signals: &Signals) -> Result<JobEnd, CoschedError> {
    let folder = NotesFolder::open()?;
    let hierarchies = Hierarchies::of_this_machine();
    for note in folder.clean(wedjat_cosched::mechanism::FolderFunctions::REAL)? {
        log::warn!("job {} ({}) was killed; its leftovers are removed", note.id(), note.command);
    }
    let mut plan = job.plan(hierarchies)?;
    for controller in plan.hierarchies.missing() {
        log::warn!("this machine lacks the controller {} of cgroups", controller.name());
    }
    let mut note = Note {
        process: Process::own(),
        turn: 0,
        agent: path_of(&job.agent),
        agent_pid: plan.monitor.pid(),
        command: job.command_text(),
        policy: job.policy.to_string(),
        objective: job.objective.to_string(),
        state: JobState::Waiting,
        made: CgroupFolders::default(),
        figures: Figures::default(),
    };
    let entry = JobEntry { folder: &folder, id: note.id() };
    folder.enter(&mut note)?;
    let mut has_waited = false;
    while !folder.take_turn(&mut note)? {
        has_waited = true;
        if signals.ends.load(Acquire) > 0 {
            return Ok(JobEnd { status: None, is_late: false, figures: note.figures });
        }
        if !plan.monitor.is_running() {
            return Err(CoschedError::AgentGone(job.agent.clone()));
        }
        std::thread::sleep(TURN_INTERVAL);
    }
    // The agent's workers and their CPUs may have changed during the wait.
    if has_waited {
        plan = job.plan(plan.hierarchies)?;
        note.agent_pid = plan.monitor.pid();
    }
    let JobPlan { mut monitor, hierarchies, folders, limits, actuator } = plan;
    monitor.restart();
    // Noted before creation, so that leftovers can be identified.
    note.made = folders;
    folder.write(&note)?;
    let group = Group::make(&hierarchies, &note.made, &limits)?;
    let result = Batch::start(job, &folder, &mut note, (&group, &limits), monitor, actuator)
        .and_then(|batch| batch.run(signals));
    let clean_up = match group.kill(EXIT_MAX, || {}) {
        true => group.remove(EXIT_MAX).map_err(CoschedError::from),
        false => Err(CoschedError::Unkillable(group.processes().into_iter().collect())),
    };
    if clean_up.is_err() {
        // Keeps the note for the next clean-up.
        std::mem::forget(entry);
    }
    clean_up.and(result)
}

/// A job's entry in the folder of notes; removed on drop.
struct JobEntry<'a> {
    /// Folder of notes.
    folder: &'a NotesFolder,
    /// Number of the job.
    id: u32,
}

impl Drop for JobEntry<'_> {
    fn drop(&mut self) {
        self.folder.forget(self.id);
    }
}

/// Chooser of shares with its log.
type ShareChooser = LoggingChooser<Box<dyn io::Write>>;

/// A running batch.
struct Batch<'a> {
    /// Options of the job.
    job: &'a Job,
    /// Folder of notes.
    folder: &'a NotesFolder,
    /// Note of the job, with its figures.
    note: &'a mut Note,
    /// Cgroup of the command.
    group: &'a Group,
    /// CPUs, and the number of processes and threads.
    limits: &'a Limits,
    /// Observer of the agent.
    monitor: AgentMonitor,
    /// Means to apply the share.
    actuator: Box<dyn Actuator>,
    /// Limit of the share, from the observations.
    guard: Guard,
    /// Chooser of the share; `None` for policies without one.
    chooser: Option<ShareChooser>,
    /// Source of the command's progress.
    reading: ProgressSource,
    /// First process of the command.
    child: Child,
    /// Start of the command.
    began: Instant,
    /// Share chosen within the guard's limit.
    chosen_share: Share,
    /// Current share.
    current_share: Share,
}

impl<'a> Batch<'a> {
    /// Prepares the cgroup and starts the command.
    fn start(
        job: &'a Job,
        folder: &'a NotesFolder,
        note: &'a mut Note,
        (group, limits): (&'a Group, &'a Limits),
        monitor: AgentMonitor,
        mut actuator: Box<dyn Actuator>,
    ) -> Result<Self, CoschedError> {
        // Makes the whole cgroup idle, or gives it the least weight if the kernel cannot do that. `shares` sets that
        // weight itself, which the kernel refuses for an idle cgroup.
        if job.class == Class::Idle
            && job.policy != Policy::Shares
            && !group.set_idle_class()?
            && group.set_least_weight().is_err()
        {
            log::warn!("this kernel has no idle cgroups: threads of the batch yield one by one");
        }
        let mut settings = job.setup.guard.clone();
        settings.objective_us = job.objective.us;
        let guard = Guard::new(settings)?;
        let chooser = chooser(job)?;
        let chosen_share = match job.policy {
            Policy::Static(share) => share,
            Policy::Asax | Policy::Aimd => Share::NONE,
            Policy::Guard | Policy::Idle | Policy::Shares => Share::MOST,
        };
        let current_share = if job.policy.is_guarded() { Share::NONE } else { chosen_share };
        // A frozen process cannot even start, so the batch begins with a small share until the first
        // observation.
        actuator.give(
            group,
            if current_share == Share::NONE { Share::at_most(0.1) } else { current_share },
        )?;
        leave_cpus(&limits.cpus);
        let (child, reading) = spawn(job, folder, note.id(), group, limits)?;
        log::info!("job {} runs {} on CPUs {:?}", note.id(), job.program(), limits.cpus);
        let began = Instant::now();
        note.figures = Figures {
            wall_seconds: job.wall.map(|wall| wall.as_secs_f64()),
            work: job.work,
            ..Figures::default()
        };
        Ok(Self {
            job,
            folder,
            note,
            group,
            limits,
            monitor,
            actuator,
            guard,
            chooser,
            reading,
            child,
            began,
            chosen_share,
            current_share,
        })
    }

    /// Runs until the end, then kills the remaining processes.
    fn run(mut self, signals: &Signals) -> Result<JobEnd, CoschedError> {
        let watch_result = self.watch(signals);
        if watch_result.is_err() {
            self.note.state = JobState::Ending;
        }
        let final_status = self.finish(signals);
        let (mut status, is_late) = watch_result?;
        if status.is_none() {
            status = final_status;
        }
        let cpu_ns = self.group.used_ns();
        self.note.figures.done = match self.group.processes().is_empty() {
            true => self.reading.end(cpu_ns),
            // A process that cannot be killed keeps the output open.
            false => self.reading.done(cpu_ns),
        };
        if let Some(chooser) = self.chooser.take() {
            chooser.into_log().map_err(|error| CoschedError::Log(error.into()))?;
        }
        Ok(JobEnd { status, is_late, figures: self.note.figures })
    }

    /// Watches until the first process ends or must end. Returns its status if it has ended, and true if the run time
    /// was exceeded.
    fn watch(&mut self, signals: &Signals) -> Result<(Option<ExitStatus>, bool), CoschedError> {
        let (mut next_round, mut next_note) = (Instant::now() + self.job.round, Instant::now());
        loop {
            let now = Instant::now();
            if let Some(status) =
                self.child.try_wait().map_err(|error| self.command_error(error))?
            {
                return Ok((Some(status), false));
            }
            if !self.monitor.is_running() {
                return Err(CoschedError::AgentGone(self.job.agent.clone()));
            }
            if signals.ends.load(Acquire) > 0 {
                return Ok((None, false));
            }
            if self.job.wall.is_some_and(|wall| now.duration_since(self.began) >= wall) {
                log::warn!("job {} has used up its time and is ended", self.note.id());
                return Ok((None, true));
            }
            self.forward_signal(signals);
            self.look(now);
            if now >= next_round {
                next_round = now + self.job.round;
                self.choose(now)?;
                self.restore_threads();
            }
            self.apply_share()?;
            if now >= next_note {
                next_note = now + NOTE_INTERVAL;
                self.note_figures(now)?;
            }
            std::thread::sleep(OBSERVATION_INTERVAL);
        }
    }

    /// Returns the error for a command that cannot be started or watched.
    fn command_error(&self, error: io::Error) -> CoschedError {
        CoschedError::Command { command: self.job.program(), error }
    }

    /// Forwards the last received signal to the first process.
    fn forward_signal(&self, signals: &Signals) {
        let number = signals.passed.swap(0, Relaxed) as i32;
        if let (Some(signal), Ok(pid)) =
            (Signal::from_named_raw(number), i32::try_from(self.child.id()))
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _ = kill_process(pid, signal); // the process may have exited meanwhile
        }
    }

    /// Observes the workers, updates the guard's limit, and records the figures.
    fn look(&mut self, now: Instant) {
        let observation = self.monitor.look(now);
        let at_ns = now.duration_since(self.began).as_nanos() as u64;
        let allowed = self.guard.observe(at_ns, &observation, self.current_share);
        let figures = &mut self.note.figures;
        figures.windows += u64::from(observation.tail.is_some());
        figures.violations +=
            u64::from(observation.tail.is_some_and(|tail| tail > self.job.objective.us));
        (figures.load, figures.allowed) = (observation.load, allowed.part());
    }

    /// Reads the latency percentile of the last round. With a chooser, reports the outcome of the last share to it and
    /// chooses the next share.
    fn choose(&mut self, now: Instant) -> Result<(), CoschedError> {
        let (tail, _) = self.monitor.tail();
        self.note.figures.tail_us = tail;
        let at_ns = now.duration_since(self.began).as_nanos() as u64;
        let (batch, workers) = (self.progress(now), self.workers_progress(tail));
        let limit = self.guard.allowed(at_ns);
        let Some(chooser) = &mut self.chooser else { return Ok(()) };
        // Without a completed task, nothing was delayed.
        let observed = tail.unwrap_or(0.0);
        chooser.learn(at_ns, &Outcome { expected: self.job.objective.us, observed, batch })?;
        // Elapsed fraction of the job's maximum run time; 0 without one.
        let interval = self.job.wall.map_or(0.0, |wall| {
            (now.duration_since(self.began).as_secs_f64() / wall.as_secs_f64()).min(1.0)
        });
        let load = self.note.figures.load;
        // `stage` is the fraction of workers in use. Tasks arrive one by one, so it is the load.
        let state =
            State { cpu: load, memory: memory_used(), stage: load, interval, progress: workers };
        self.chosen_share = chooser.decide(at_ns, &state, limit)?;
        self.note.figures.decisions += 1;
        Ok(())
    }

    /// Expresses the workers' latency as progress, because the experts judge a job by its progress. The objective is
    /// the allowed time, and the measured percentile the needed time.
    fn workers_progress(&self, tail: Option<f64>) -> Progress {
        let remaining = tail.unwrap_or(0.0);
        Progress { wall: self.job.objective.us, elapsed: 0.0, rate: 1.0, remaining }
    }

    /// Returns the progress of the batch, from which the chooser learns. `None` unless both its total work and its
    /// maximum run time are known.
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

    /// Returns the completed work.
    fn measure(&self) -> f64 {
        self.reading.done(self.group.used_ns())
    }

    /// Applies the chosen share; under a guarded policy at most the guard's limit. Called at each observation, because
    /// the limit may fall between decisions.
    fn apply_share(&mut self) -> Result<(), CoschedError> {
        let at_ns = self.began.elapsed().as_nanos() as u64;
        let share = match self.job.policy.is_guarded() {
            true => self.chosen_share.min(self.guard.allowed(at_ns)),
            false => self.chosen_share,
        };
        self.current_share = share;
        let unlimited = matches!(self.job.policy, Policy::Idle | Policy::Shares);
        self.note.figures.share = if unlimited { 1.0 } else { share.part() };
        Ok(self.actuator.give(self.group, share)?)
    }

    /// Restores the scheduling class and the CPUs of threads of the batch that have changed them, and counts each
    /// restored property. A batch of the normal class may use any class except the real-time ones.
    fn restore_threads(&mut self) {
        let mut cores = CpuSet::new();
        self.limits.cpus.iter().for_each(|cpu| cores.set(*cpu));
        for thread in self.group.processes().into_iter().flat_map(threads_of) {
            let Some(scheduling) = Scheduling::of(thread) else { continue };
            let has_wrong_class = scheduling.is_real_time()
                || (self.job.class == Class::Idle && scheduling.class != 5); // SCHED_IDLE
            let has_wrong_cpus = !scheduling.cpus.is_subset(&self.limits.cpus);
            if has_wrong_class {
                let _ = set_class(thread, self.job.class); // the thread may have exited meanwhile
            }
            if has_wrong_cpus && let Some(pid) = i32::try_from(thread).ok().and_then(Pid::from_raw)
            {
                let _ = rustix::thread::sched_setaffinity(Some(pid), &cores);
            }
            self.note.figures.put_back += u64::from(has_wrong_class) + u64::from(has_wrong_cpus);
        }
    }

    /// Writes the current figures to the job's note, where other commands read them.
    fn note_figures(&mut self, now: Instant) -> Result<(), CoschedError> {
        let done = self.measure();
        let figures = &mut self.note.figures;
        figures.elapsed_seconds = now.duration_since(self.began).as_secs_f64();
        figures.cpu_seconds = self.group.used_ns().unwrap_or(0) as f64 / 1e9;
        figures.done = done;
        self.folder.write(self.note)
    }

    /// Ends all remaining processes: requests the end, waits for the grace time, and then kills. A second end
    /// signal skips the wait. Returns the first process's status; `None` if it cannot be killed.
    fn finish(&mut self, signals: &Signals) -> Option<ExitStatus> {
        self.note.state = JobState::Ending;
        let _ = self.note_figures(Instant::now()); // only the end matters here
        // A frozen process receives no signal. A large share would end it sooner, but might harm the workers.
        let small_share = self.current_share.max(Share::at_most(0.1));
        if let Err(error) = self.actuator.give(self.group, small_share) {
            log::warn!("{error}");
        }
        if !self.group.processes().is_empty() {
            self.group.signal(Signal::TERM);
        }
        let began = Instant::now();
        let mut status = None;
        // Ends early if all processes have ended.
        while !self.group.processes().is_empty()
            && began.elapsed() < self.job.grace
            && signals.ends.load(Acquire) < 2
        {
            status = status.or_else(|| self.child.try_wait().ok().flatten());
            std::thread::sleep(OBSERVATION_INTERVAL);
        }
        // Reaps the first process meanwhile.
        let has_ended = self.group.kill(EXIT_MAX, || drop(self.child.try_wait()));
        status.or_else(|| match has_ended {
            true => self.child.wait().ok(),
            false => self.child.try_wait().ok().flatten(),
        })
    }
}

/// Moves the calling thread off these CPUs if this process may use others, so that its observations do not delay the
/// workers.
fn leave_cpus(avoided_cpus: &BTreeSet<usize>) {
    let other_cpus = cpus::except(&avoided_cpus.iter().copied().collect::<Vec<_>>());
    if !other_cpus.is_empty() {
        let mut set = CpuSet::new();
        other_cpus.iter().for_each(|cpu| set.set(*cpu));
        let _ = rustix::thread::sched_setaffinity(None, &set); // keeps its affinity on failure
    }
}

/// Creates the chooser of the job's policy with its log; `None` for policies without one.
fn chooser(job: &Job) -> Result<Option<ShareChooser>, CoschedError> {
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
    let logged = LoggingChooser::new(Chooser::new(settings, experts)?, log);
    logged.map(Some).map_err(|error| CoschedError::Log(error.into()))
}

/// Starts the command in its cgroup. Returns its first process and the source of its progress.
fn spawn(
    job: &Job,
    folder: &NotesFolder,
    id: u32,
    group: &Group,
    limits: &Limits,
) -> Result<(Child, ProgressSource), CoschedError> {
    let fault = |error| CoschedError::Command { command: job.program(), error };
    let Some((program, arguments)) = job.command.split_first() else {
        return Err(fault(io::ErrorKind::InvalidInput.into()));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    // The terminal stops a process of another process group that reads from it.
    if io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
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
        Measure::Cpu => ProgressSource::Cpu,
        Measure::Counter => ProgressSource::Counter(folder.counter(id)),
        Measure::Lines(text) => match child.stdout.take() {
            Some(out) => progress::count_lines(out, io::stdout(), text.clone()).map_err(fault)?,
            None => ProgressSource::Cpu,
        },
    };
    Ok((child, reading))
}

/// Returns the used fraction of this machine's memory; 0 if unknown.
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
