//! Child processes of a block (one measurement with one setting): the worker, and the job that runs a batch in
//! the same way as `wedjat cosched run`. The job writes a *note*, a file with its figures, from which the
//! benchmark reads.
//!
//! The agent, here the benchmark's dispatcher, gives tasks to the worker through a *region*, a file of shared memory.
//! The job reads the agent's latencies there. At the end of each round, its policy or learner (*chooser*) sets a new
//! share of the core for the batch.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use wedjat::cosched::notes::Figures;
use wedjat::cosched::{BatchSettings, Job, Measure, Note, NotesFolder, Objective, Policy, Signals};
use wedjat::worker::{Options, Worker};
use wedjat_cosched::mechanism::Class;
use wedjat_cosched::{Mode, Setup};

use super::Failure;
use super::dispatch::TimedTasks;
use crate::app::Spin;
use crate::batch::Batch;
use crate::worker::serve;

/// Longest wait for a child process, generous enough for a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(300);
/// Longest spin of a worker before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Spin of a polling worker: longer than any wait for a task.
const ALWAYS: Duration = Duration::from_secs(1);
/// Environment variable with the folder of the job's notes.
const NOTES: &str = "WEDJAT_COSCHED_DIR";

/// Arguments of the worker process.
#[derive(Args, Clone, Debug)]
pub struct WorkerArguments {
    /// Region of the agent
    #[arg(long)]
    attach: PathBuf,
    /// CPU of the worker
    #[arg(long)]
    cpu: usize,
    /// Polls without ever sleeping
    #[arg(long)]
    polls: bool,
    /// Runs under SCHED_FIFO
    #[arg(long)]
    real_time: bool,
    /// Rounds of busy work per nanosecond, and its fixed overhead in nanoseconds
    #[arg(long, value_delimiter = ',')]
    pace: Vec<f64>,
}

/// Serves tasks until the agent stops. Returns true if the worker ended in order, and false if it lost its agent.
///
/// # Errors
/// If `--pace` is not two numbers, or the worker cannot attach.
pub fn work(arguments: &WorkerArguments) -> Result<bool, Failure> {
    let [rounds_per_ns, overhead_ns] = arguments.pace[..] else {
        return Err("--pace: two numbers are needed".into());
    };
    let options = Options {
        cpu: Some(arguments.cpu),
        attach_timeout: TIMEOUT,
        spin: if arguments.polls { ALWAYS } else { SPIN },
        adaptive_spin: !arguments.polls,
        real_time: arguments.real_time,
        ..Options::default()
    };
    let mut worker = Worker::attach(&arguments.attach.to_string_lossy(), &options)?;
    let app = TimedTasks(Spin::at(rounds_per_ns, overhead_ns));
    let summary = serve(&mut worker, &app, None, &AtomicBool::new(false))?;
    Ok(summary.ended_in_order())
}

/// Arguments of the job process.
#[derive(Args, Clone, Debug)]
pub struct JobArguments {
    /// Region of the agent
    #[arg(long)]
    agent: PathBuf,
    /// Policy that sets the batch's share
    #[arg(long)]
    policy: Policy,
    /// Learning mode of the chooser
    #[arg(long)]
    mode: Option<Mode>,
    /// Scheduling class of the batch
    #[arg(long)]
    class: Class,
    /// Latency objective of the tasks
    #[arg(long)]
    objective: Objective,
    /// Interval of decisions in milliseconds
    #[arg(long)]
    round_ms: u64,
    /// Work that the batch should complete within the wall time, in units of its counter
    #[arg(long)]
    work: Option<f64>,
    /// Wall time of the batch in seconds
    #[arg(long, default_value_t = 600)]
    wall: u64,
    /// File for the log of decisions
    #[arg(long)]
    log: Option<PathBuf>,
    /// Seed of the chooser
    #[arg(long)]
    seed: u64,
    /// The batch job
    #[arg(long)]
    batch: Batch,
}

/// Report of the job process at its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JobReport {
    /// Reason why the job would have been refused without force.
    pub refused: Option<String>,
    /// Final figures.
    pub figures: Figures,
}

/// Runs a batch until it ends, its wall time is over, or SIGTERM. Runs a job by force if it would be refused, and
/// reports the reason. Returns true, even if the batch ended with an error.
///
/// # Errors
/// If the batch cannot run even by force, or its agent ends.
pub fn run_job(arguments: &JobArguments) -> Result<bool, Failure> {
    let signals = Signals::default();
    let ends = Arc::clone(&signals.ends);
    // Two requests to end: the batch ends at once, without grace.
    signal_hook::flag::register_usize(signal_hook::consts::SIGTERM, ends, 2)?;
    // Experts and settings of the learner.
    let mut setup = Setup::built_in();
    setup.settings.mode = arguments.mode.unwrap_or(setup.settings.mode);
    setup.settings.seed = arguments.seed;
    let setting = BatchSettings {
        agent: arguments.agent.to_string_lossy().into_owned(),
        policy: arguments.policy,
        objective: arguments.objective,
        setup,
        processes: 64, // limit for processes and threads of the batch; it needs fewer
    };
    let program = std::env::current_exe()?.into_os_string();
    let mut job = Job {
        command: vec![program, "batch".into(), arguments.batch.name().into()],
        class: arguments.class,
        measure: Measure::Counter,
        wall: Some(Duration::from_secs(arguments.wall)),
        work: arguments.work,
        log: arguments.log.clone(),
        round: Duration::from_millis(arguments.round_ms),
        grace: Duration::ZERO,
        ..Job::new(setting)
    };
    // Without force, `run` would refuse here.
    let refused = job.dry_run().err().map(|error| error.to_string());
    job.force = refused.is_some();
    let result = wedjat::cosched::run(&job, &signals)?;
    let report = JobReport { refused, figures: result.figures };
    serde_json::to_writer(std::io::stdout().lock(), &report)?;
    Ok(true)
}

/// Child process, killed on drop.
#[derive(Debug)]
pub struct Process {
    /// The process; `None` after its end.
    child: Option<Child>,
    /// Name in errors.
    name: &'static str,
}

impl Process {
    /// Starts a process, with pipes for its outputs.
    fn start(command: &mut Command, name: &'static str) -> Result<Self, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        Ok(Self { child: Some(child), name })
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Returns true if the process has exited, or its status cannot be read.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        if let Some(pid) = i32::try_from(self.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM); // the process may have exited
        }
    }

    /// Returns the error of a process that ended, or did not become ready within [`TIMEOUT`]. In the second case,
    /// terminates it and waits for its end.
    pub fn into_failure(mut self) -> Failure {
        let (name, is_late) = (self.name, !self.has_ended());
        if is_late {
            self.terminate();
        }
        match self.wait_for_output() {
            _ if is_late => format!("{name} was not ready within {TIMEOUT:?}").into(),
            Err(error) => error,
            Ok(_) => format!("{name} ended before it was ready").into(),
        }
    }

    /// Waits for a successful exit, however long it takes, and returns the standard output.
    ///
    /// # Errors
    /// If the process fails.
    pub fn wait_for_output(mut self) -> Result<String, Failure> {
        let Some(child) = self.child.take() else { return Ok(String::new()) };
        let output = child.wait_with_output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let printed = String::from_utf8_lossy(&output.stderr);
                Err(format!("{} ended with {}: {}", self.name, output.status, printed.trim())
                    .into())
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Properties of a worker process.
pub struct WorkerSetup<'a> {
    /// Region of its agent.
    pub agent: &'a Path,
    /// CPU of the worker.
    pub cpu: usize,
    /// True if it polls without ever sleeping.
    pub polls: bool,
    /// True if it runs under SCHED_FIFO.
    pub is_real_time: bool,
    /// Calibration of its busy work.
    pub spin: &'a Spin,
}

impl WorkerSetup<'_> {
    /// Starts the worker process, which attaches later.
    ///
    /// # Errors
    /// If the process cannot start.
    pub fn start(&self) -> Result<Process, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        let (rounds_per_ns, overhead_ns) = self.spin.pace();
        command.arg("bench-cosched-worker").arg("--attach").arg(self.agent);
        command.args(["--cpu", &self.cpu.to_string()]);
        command.args(["--pace", &format!("{rounds_per_ns},{overhead_ns}")]);
        command.args(self.polls.then_some("--polls"));
        command.args(self.is_real_time.then_some("--real-time"));
        Process::start(&mut command, "the worker")
    }
}

/// Properties of a batch and its job.
pub struct JobSetup<'a> {
    /// Region of the agent.
    pub agent: &'a Path,
    /// Folder of the job's notes.
    pub notes: &'a Path,
    /// Policy that sets the batch's share.
    pub policy: Policy,
    /// Learning mode of the policy; `None` for the default, or without a learner.
    pub mode: Option<Mode>,
    /// Scheduling class of the batch.
    pub class: Class,
    /// Latency objective of the tasks.
    pub objective: Objective,
    /// Interval of decisions.
    pub round: Duration,
    /// Work that the batch should complete within its wall time; `None` if its rate alone is unknown.
    pub work: Option<f64>,
    /// File for the log of decisions.
    pub log: Option<&'a Path>,
    /// Seed of the chooser.
    pub seed: u64,
    /// Kind of batch job.
    pub batch: Batch,
}

/// A running batch.
#[derive(Debug)]
pub struct RunningBatch {
    /// Process of the job.
    process: Process,
    /// Folder of the job's note.
    folder: NotesFolder,
    /// The job's note at the start, with the batch's cgroups.
    note: Note,
}

impl JobSetup<'_> {
    /// Wall time of all batches in seconds. Blocks end them earlier.
    pub const WALL: u64 = 600;

    /// Starts the job and waits until its batch has a process.
    ///
    /// # Errors
    /// If the job ends before that, or starts no process within [`TIMEOUT`].
    pub fn start(&self) -> Result<RunningBatch, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("bench-cosched-job").arg("--agent").arg(self.agent).env(NOTES, self.notes);
        // Suppresses the messages about the machine's cgroups, which are the same for each block.
        command.env("RUST_LOG", "error");
        let mut option = |name: &str, value: &dyn std::fmt::Display| {
            command.arg(format!("--{name}")).arg(value.to_string());
        };
        option("policy", &self.policy);
        option("class", &self.class.name());
        option("objective", &self.objective);
        option("round-ms", &self.round.as_millis());
        option("seed", &self.seed);
        option("batch", &self.batch.name());
        option("wall", &Self::WALL);
        if let Some(mode) = self.mode {
            option("mode", &mode.name());
        }
        if let Some(work) = self.work {
            option("work", &work);
        }
        if let Some(log) = self.log {
            command.arg("--log").arg(log);
        }
        let mut process = Process::start(&mut command, "the batch's job")?;
        let (folder, began) = (NotesFolder::at(self.notes.to_owned())?, Instant::now());
        loop {
            let jobs = folder.jobs();
            let own_note = jobs.into_iter().find(|note| note.id() == process.id());
            // Each folder of the batch's cgroup lists its processes, so the first folder suffices.
            let has_process = |path: &Path| {
                let text = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
                !text.trim().is_empty()
            };
            match own_note {
                Some(note) if note.made.paths().next().is_some_and(has_process) => {
                    return Ok(RunningBatch { process, folder, note });
                }
                _ if process.has_ended() || began.elapsed() > TIMEOUT => {
                    return Err(process.into_failure());
                }
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }
}

impl RunningBatch {
    /// Returns the id of the job process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the CPU time consumed by the batch in nanoseconds; 0 if it cannot be read.
    #[must_use]
    pub fn ran_ns(&self) -> u64 {
        super::accounts::of_group(&self.note.made).unwrap_or(0)
    }

    /// Returns the batch's counter of completed units; 0 if it cannot be read.
    #[must_use]
    pub fn done(&self) -> u64 {
        let mut bytes = [0; 8];
        let read = File::open(self.folder.counter(self.id()))
            .and_then(|mut file| file.read_exact(&mut bytes));
        read.map_or(0, |()| u64::from_le_bytes(bytes))
    }

    /// Returns the latest figures in the job's note; the default ones if there is no note.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let note = self.folder.jobs().into_iter().find(|note| note.id() == self.id());
        note.map_or_else(Figures::default, |note| note.figures)
    }

    /// Ends the batch and returns the job's report.
    ///
    /// # Errors
    /// If the job did not exit successfully, or printed no report.
    pub fn end(self) -> Result<JobReport, Failure> {
        self.process.terminate();
        let printed = self.process.wait_for_output()?;
        Ok(serde_json::from_str(&printed)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_process_is_terminated_and_reported() {
        let start = |script| Process::start(Command::new("sh").args(["-c", script]), "it").unwrap();
        let text = start("exec sleep 1000").into_failure().to_string();
        assert_eq!(text, "it was not ready within 300s");
        let mut ended = start("echo reason >&2; exit 3");
        while !ended.has_ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let text = ended.into_failure().to_string();
        assert!(text.contains("exit status: 3") && text.contains("reason"), "{text}");
    }
}
