//! The processes of a block: the worker, and the one that has a batch and holds it as `wedjat cosched run` does.

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
use wedjat::cosched::{Folder, Job, Measure, Note, Objective, Policy, Setting, Signals};
use wedjat::worker::{Options, Worker};
use wedjat_cosched::mechanism::Class;
use wedjat_cosched::{Mode, Setup};

use super::Failure;
use super::dispatch::Timed;
use crate::app::Spin;
use crate::batch::Batch;
use crate::worker::serve;

/// Whatever a busy machine needs.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// The longest that a worker spins before it sleeps; longer than it waits at all where it polls.
const SPIN: Duration = Duration::from_micros(50);
const ALWAYS: Duration = Duration::from_secs(1);
/// Names the folder of notes to a job.
const NOTES: &str = "WEDJAT_COSCHED_DIR";

/// What the worker's process is told.
#[derive(Args, Clone, Debug)]
pub struct WorkerArguments {
    /// The agent's region
    #[arg(long)]
    attach: PathBuf,
    /// Its CPU
    #[arg(long)]
    cpu: usize,
    /// It never sleeps
    #[arg(long)]
    polls: bool,
    /// It is SCHED_FIFO
    #[arg(long)]
    real_time: bool,
    /// Rounds of busy work in a nanosecond, and what none of them takes
    #[arg(long, value_delimiter = ',')]
    pace: Vec<f64>,
}

/// Serves until there will be no more tasks.
///
/// # Errors
/// When it can't attach, or loses its agent.
pub fn work(arguments: &WorkerArguments) -> Result<bool, Failure> {
    let [rounds_per_ns, overhead_ns] = arguments.pace[..] else {
        return Err("--pace: two numbers".into());
    };
    let options = Options {
        cpu: Some(arguments.cpu),
        patience: PATIENCE,
        spin: if arguments.polls { ALWAYS } else { SPIN },
        adaptive_spin: !arguments.polls,
        real_time: arguments.real_time,
        ..Options::default()
    };
    let mut worker = Worker::attach(&arguments.attach.to_string_lossy(), &options)?;
    let mut app = Timed(Spin::at(rounds_per_ns, overhead_ns));
    Ok(serve(&mut worker, &mut app, &AtomicBool::new(false)).is_well())
}

/// What the job's process is told.
#[derive(Args, Clone, Debug)]
pub struct JobArguments {
    /// The agent's region
    #[arg(long)]
    agent: PathBuf,
    /// Who says how much the batch gets
    #[arg(long)]
    policy: Policy,
    /// How the chooser learns
    #[arg(long)]
    mode: Option<Mode>,
    /// How the batch ranks
    #[arg(long)]
    class: Class,
    /// What tasks may take
    #[arg(long)]
    objective: Objective,
    /// Between two choices, in milliseconds
    #[arg(long)]
    round_ms: u64,
    /// What the batch is to have done within the wall time, by its counter
    #[arg(long)]
    work: Option<f64>,
    /// Its time, in seconds
    #[arg(long, default_value_t = 600)]
    wall: u64,
    /// Where decisions are written down
    #[arg(long)]
    log: Option<PathBuf>,
    /// Of the chooser
    #[arg(long)]
    seed: u64,
    /// The batch
    #[arg(long)]
    batch: Batch,
}

/// What the job's process tells at its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// Why it would not have run but for being forced to.
    pub refused: Option<String>,
    /// What it did.
    pub figures: Figures,
}

/// Runs a batch until it is told to end. What would be refused as harmful is told, and run all the same.
///
/// # Errors
/// When it can't be run even so.
pub fn hold(arguments: &JobArguments) -> Result<bool, Failure> {
    let signals = Signals::default();
    let ends = Arc::clone(&signals.ends);
    signal_hook::flag::register_usize(signal_hook::consts::SIGTERM, ends, 2)?;
    let mut setup = Setup::built_in();
    setup.settings.mode = arguments.mode.unwrap_or(setup.settings.mode);
    setup.settings.seed = arguments.seed;
    let setting = Setting {
        agent: arguments.agent.to_string_lossy().into_owned(),
        policy: arguments.policy,
        objective: arguments.objective,
        setup,
        processes: 64,
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
    let refused = job.told().err().map(|error| error.to_string());
    job.force = refused.is_some();
    let ended = wedjat::cosched::run(&job, &signals)?;
    let told = Told { refused, figures: ended.figures };
    serde_json::to_writer(std::io::stdout().lock(), &told)?;
    Ok(true)
}

/// A process, killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Option<Child>,
    what: &'static str,
}

impl Process {
    fn start(command: &mut Command, what: &'static str) -> Result<Self, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("{what}: {error}"))?;
        Ok(Self { child: Some(child), what })
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// It has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Tells it to end.
    pub fn terminate(&self) {
        if let Some(pid) = i32::try_from(self.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM); // it may have ended
        }
    }

    /// Waits for its end, which should be in order; what it said.
    ///
    /// # Errors
    /// When it ended otherwise.
    pub fn ends(mut self) -> Result<String, Failure> {
        let Some(child) = self.child.take() else { return Ok(String::new()) };
        let output = child.wait_with_output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                Err(format!("{} ended with {}: {}", self.what, output.status, said.trim()).into())
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

/// How a worker is to be.
pub struct WorkerSetup<'a> {
    /// Its agent's region.
    pub agent: &'a Path,
    /// Its CPU.
    pub cpu: usize,
    /// It never sleeps.
    pub polls: bool,
    /// It is SCHED_FIFO.
    pub is_real_time: bool,
    /// Of its busy work.
    pub spin: &'a Spin,
}

impl WorkerSetup<'_> {
    /// The worker's process, which is not there yet.
    ///
    /// # Errors
    /// When it can't be started.
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

/// How a batch is to be held.
pub struct JobSetup<'a> {
    /// The agent's region.
    pub agent: &'a Path,
    /// The folder of its notes.
    pub notes: &'a Path,
    /// Who says how much it gets.
    pub policy: Policy,
    /// How that learns.
    pub mode: Option<Mode>,
    /// How it ranks.
    pub class: Class,
    /// What tasks may take.
    pub objective: Objective,
    /// Between two choices.
    pub round: Duration,
    /// What it is to do within its wall time.
    pub work: Option<f64>,
    /// Where decisions go.
    pub log: Option<&'a Path>,
    /// Of the chooser.
    pub seed: u64,
    /// What it does.
    pub batch: Batch,
}

/// A batch that runs.
#[derive(Debug)]
pub struct Held {
    process: Process,
    folder: Folder,
    note: Note,
}

impl JobSetup<'_> {
    /// The wall time of all batches, in seconds: blocks end them sooner.
    pub const WALL: u64 = 600;

    /// Starts it, and waits until the batch does something.
    ///
    /// # Errors
    /// When it ends instead.
    pub fn start(&self) -> Result<Held, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("bench-cosched-job").arg("--agent").arg(self.agent).env(NOTES, self.notes);
        // What it would log about a machine's cgroups is the same for each block.
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
        let (folder, began) = (Folder::at(self.notes.to_owned())?, Instant::now());
        loop {
            let jobs = folder.jobs();
            let own = jobs.into_iter().find(|note| note.id() == process.id());
            let is_there = |path: &Path| {
                let text = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
                !text.trim().is_empty()
            };
            match own {
                Some(note) if note.made.paths().next().is_some_and(is_there) => {
                    return Ok(Held { process, folder, note });
                }
                _ if process.has_ended() || began.elapsed() > PATIENCE => {
                    return Err(process.ends().err().unwrap_or("the batch has ended".into()));
                }
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }
}

impl Held {
    /// The process that holds it.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Nanoseconds that it has run.
    #[must_use]
    pub fn ran_ns(&self) -> u64 {
        super::accounts::of_group(&self.note.made).unwrap_or(0)
    }

    /// What it has done, by its counter.
    #[must_use]
    pub fn done(&self) -> u64 {
        let mut bytes = [0; 8];
        let read = File::open(self.folder.counter(self.id()))
            .and_then(|mut file| file.read_exact(&mut bytes));
        read.map_or(0, |()| u64::from_le_bytes(bytes))
    }

    /// What its job noted last.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let own = self.folder.jobs().into_iter().find(|note| note.id() == self.id());
        own.map_or_else(Figures::default, |note| note.figures)
    }

    /// Ends it.
    ///
    /// # Errors
    /// When it had ended before, or did not end in order.
    pub fn end(self) -> Result<Told, Failure> {
        self.process.terminate();
        let said = self.process.ends()?;
        Ok(serde_json::from_str(&said)?)
    }
}
