//! `wedjat cosched run`, `status` and `cancel`: a batch job on the idle time of an agent's worker cores.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use wedjat::config::AgentConfig;
use wedjat::cosched::{
    BatchSettings, Job, JobEnd, JobState, Measure, Note, NotesFolder, Objective, Policy, Signals,
    run,
};
use wedjat_cosched::mechanism::{Class, FolderFunctions};
use wedjat_cosched::{Mode, Setup};

use super::super::{Outcome, print};

/// Help text below the options.
pub const EXAMPLE: &str = "Example:
  wedjat cosched run --agent host1 --objective p99.9=500us --wall 10m -- make -j4
Exit status: the command's, 128 and the signal's number where one ended it, 124 when its time was over, 1 when it could not run.";

/// Arguments of `wedjat cosched run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Agent on whose worker cores the batch runs: `name` of its configuration
    #[arg(long, value_name = "NAME")]
    agent: String,
    /// Policy that sets the batch's share of the cores: asax, static(50%), aimd, guard, idle or shares
    #[arg(long, default_value = "guard")]
    policy: Policy,
    /// Objective for the time of tasks from their arrival at the agent to their answer: a percentile and a
    /// time [default: that of the file of experts, for p99.9]
    #[arg(long, value_name = "pN=TIME")]
    objective: Option<Objective>,
    /// File of the chooser, the guard and the experts
    #[arg(long, value_name = "FILE")]
    experts: Option<PathBuf>,
    /// Mode in which the chooser learns: paper, iw or balanced [default: that of the file of experts]
    #[arg(long)]
    mode: Option<Mode>,
    /// Write the chooser's decisions to this file, for `wedjat cosched replay`
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// End the batch after this time, for example 10m
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    wall: Option<Duration>,
    /// Measure of progress: cpu (seconds of CPU time), lines=TEXT (output lines that contain the text) or
    /// counter (8 bytes in the file named by WEDJAT_PROGRESS)
    #[arg(long, value_name = "MEASURE", default_value = "cpu")]
    progress: Measure,
    /// Total work in that measure
    #[arg(long, value_name = "NUMBER")]
    work: Option<f64>,
    /// CPUs that the batch may use, for example 2,3 [default: those that the agent's workers are pinned to]
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Scheduling class of the batch: idle or normal
    #[arg(long, default_value = "idle")]
    class: Class,
    /// Maximum number of processes and threads
    #[arg(long, value_name = "NUMBER", default_value_t = Job::PROCESSES, value_parser = clap::value_parser!(u32).range(1..))]
    processes: u32,
    /// Parent of the batch's cgroup in each hierarchy
    #[arg(long, value_name = "PATH", default_value = "/")]
    cgroup: PathBuf,
    /// Time between the request to end and the kill
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    grace: Duration,
    /// Run the batch even if it is known to do harm
    #[arg(long)]
    force: bool,
    /// Only show the actions
    #[arg(long)]
    dry_run: bool,
    /// Command of the batch
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    /// Returns the job that the arguments describe.
    fn job(&self) -> Result<Job, Box<dyn std::error::Error>> {
        let mut setup = match &self.experts {
            Some(file) => Setup::load(file)?,
            None => Setup::built_in(),
        };
        if let Some(mode) = self.mode {
            setup.settings.mode = mode;
        }
        if let Some(work) = self.work.filter(|work| !(work.is_finite() && *work > 0.0)) {
            return Err(format!("--work {work}: it must be a number above 0").into());
        }
        if self.log.is_some() && !self.policy.is_logged() {
            return Err(format!(
                "--log: policy {} makes no decisions that could be logged",
                self.policy
            )
            .into());
        }
        let default_objective = Objective { us: setup.guard.objective_us, ..Objective::default() };
        let setting = BatchSettings {
            agent: self.agent.clone(),
            policy: self.policy,
            objective: self.objective.unwrap_or(default_objective),
            setup,
            processes: self.processes,
        };
        let cpus: BTreeSet<usize> = self.cpus.iter().copied().collect();
        Ok(Job {
            command: self.command.clone(),
            class: self.class,
            cpus: (!cpus.is_empty()).then_some(cpus),
            cgroup: self.cgroup.clone(),
            wall: self.wall,
            measure: self.progress.clone(),
            work: self.work,
            log: self.log.clone(),
            grace: self.grace,
            force: self.force,
            ..Job::new(setting)
        })
    }
}

/// Runs a batch to its end.
pub fn batch(arguments: &Run) -> Outcome {
    let job = arguments.job()?;
    if arguments.dry_run {
        return print(&job.dry_run()?);
    }
    run_with_signals(&job)
}

/// Runs a job of an agent's file to its end. The agent starts one such process for each job of its file, in turn.
pub fn configured(config: &Path, number: usize) -> Outcome {
    let config = AgentConfig::load(config)?;
    let job = config.jobs.get(number).ok_or("the file has no such job")?;
    run_with_signals(job)
}

/// Runs a job to its end, and returns its exit code.
fn run_with_signals(job: &Job) -> Outcome {
    let signals = signals()?;
    let end = run(job, &signals)?;
    Ok(exit_code(&end, signals.end_signal.load(Relaxed)))
}

/// Starts to handle signals, and returns their record for the job's loop: the first SIGINT or SIGTERM ends the batch,
/// the second one at once. SIGHUP, SIGUSR1 and SIGUSR2 go to the batch.
fn signals() -> io::Result<Signals> {
    let signals = Signals::default();
    let (ends, end_signal) = (Arc::clone(&signals.ends), Arc::clone(&signals.end_signal));
    let mut end_signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("wedjat-signals".to_owned()).spawn(move || {
        end_signals.forever().for_each(|signal| {
            // Keeps the first signal.
            let _ = end_signal.compare_exchange(0, signal as usize, Relaxed, Relaxed);
            // Release pairs with the runner's Acquire.
            ends.fetch_add(1, Release);
        });
    })?;
    for signal in [SIGHUP, SIGUSR1, SIGUSR2] {
        let passed = Arc::clone(&signals.passed);
        signal_hook::flag::register_usize(signal, passed, signal as usize)?;
    }
    Ok(signals)
}

/// Returns the exit code that a shell would give. `end_signal` is the first signal that requested the end; 0 for none.
fn exit_code(end: &JobEnd, end_signal: usize) -> ExitCode {
    /// Exit code after the job's time, as of `timeout`.
    const LATE: u8 = 124;
    let code_of = |status: ExitStatus| {
        let signal = status.signal().map(|signal| 128 + signal);
        status.code().or(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
    };
    match end.status {
        _ if end.is_late => ExitCode::from(LATE),
        Some(status) => ExitCode::from(code_of(status)),
        // The command never started: SIGINT or SIGTERM ended the job while it waited for its turn.
        None => ExitCode::from(128 + end_signal as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_job_exits_with_its_end_signal() {
        let end = JobEnd { status: None, is_late: false, figures: Default::default() };
        for (signal, code) in [(SIGINT, 130_u8), (SIGTERM, 143)] {
            assert_eq!(exit_code(&end, signal as usize), ExitCode::from(code));
        }
    }
}

/// Arguments of `wedjat cosched status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Removes the processes and cgroups that killed jobs left, and prints the remaining jobs.
pub fn status(arguments: &Status) -> Outcome {
    let folder = NotesFolder::open()?;
    for note in folder.clean(FolderFunctions::REAL)? {
        log::warn!("job {} ({}) was killed; its leftovers are removed", note.id(), note.command);
    }
    let jobs = folder.jobs();
    match arguments.json {
        true => print(&format!("{}\n", serde_json::to_string_pretty(&jobs)?)),
        false => print(&jobs.iter().map(text).collect::<String>()),
    }
}

/// Formats a job for people.
fn text(note: &Note) -> String {
    let Note { agent, command, policy, objective, state, figures, .. } = note;
    let mut text = format!(
        "job {}  {}  {}  policy {policy}  objective {objective}  {command}\n",
        note.id(),
        state.name(),
        agent.display(),
    );
    if *state != JobState::Waiting {
        let wall = figures.wall_seconds.map_or(String::new(), |wall| format!(" of {wall:.0}"));
        let work = figures.work.map_or(String::new(), |work| format!(" of {work}"));
        let tail = figures.tail_us.map_or("none".to_owned(), |tail| format!("{tail:.1} us"));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  {:.0}{wall} s, {:.1} s of CPU time, {:.1}{work} done; share {:.0}%, allowed {:.0}%",
            figures.elapsed_seconds,
            figures.cpu_seconds,
            figures.done,
            figures.share * 100.0,
            figures.allowed * 100.0,
        );
        let _ = writeln!(
            text,
            "  workers: load {:.2}, percentile {tail}, objective missed at {} of {} looks; {} decisions, {} threads moved back",
            figures.load, figures.violations, figures.windows, figures.decisions, figures.put_back,
        );
    }
    text
}

/// Asks a job to end. Its id is the number of its process, which gets SIGTERM.
pub fn cancel(id: u32) -> Outcome {
    let folder = NotesFolder::open()?;
    let jobs = folder.jobs();
    let Some(note) = jobs.iter().find(|note| note.id() == id) else {
        let ids: Vec<_> = jobs.iter().map(|note| note.id().to_string()).collect();
        let existing_jobs = if ids.is_empty() {
            "there is none".to_owned()
        } else {
            format!("there are {}", ids.join(", "))
        };
        return Err(format!("there is no job {id}; {existing_jobs} (wedjat cosched status)").into());
    };
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw).ok_or("no process has this number")?;
    kill_process(pid, Signal::TERM)
        .map_err(|error| format!("job {id}: {}", io::Error::from(error)))?;
    print(&format!("job {id} ({}) was asked to end\n", note.command))
}
