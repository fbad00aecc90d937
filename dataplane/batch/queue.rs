//! Batch jobs in an agent's configuration, run one after another while the agent runs.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use wedjat_core::ring::WorkerRegion;
use wedjat_core::ring::region::path_of;

/// Interval of checks for workers and for the end of a job.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Thread that runs the jobs in turn, in one process each. That process starts the batch in its cgroup, and only it
/// forks: the standard library starts a plain command like this one by `posix_spawn`. A fork of the agent would mark
/// its pages copy-on-write and delay its dispatcher.
#[derive(Debug)]
pub struct JobQueue {
    /// True once the agent stops. The thread reads it once per `CHECK_INTERVAL`.
    stop: Arc<AtomicBool>,
    /// The thread; `None` once it was joined.
    thread: Option<JoinHandle<()>>,
}

impl JobQueue {
    /// Starts the thread. It runs the jobs of configuration `config`, each by `program cosched job CONFIG NUMBER`.
    /// Before each job it waits for an attached worker. A failed job does not stop the next one.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        program: PathBuf,
        config: PathBuf,
        agent: &str,
        jobs: usize,
    ) -> std::io::Result<Self> {
        let (stop, region) = (Arc::new(AtomicBool::new(false)), path_of(agent));
        let thread_stop = Arc::clone(&stop);
        let run = move || {
            for job in 0..jobs {
                if !wait_for_workers(&region, &thread_stop) {
                    return;
                }
                let mut command = Command::new(&program);
                command.args(["cosched", "job"]).arg(&config).arg(job.to_string());
                match command.spawn() {
                    Ok(child) => watch(child, job, &thread_stop),
                    Err(error) => log::error!("job {job} of {}: {error}", config.display()),
                }
            }
        };
        let thread = std::thread::Builder::new().name("wedjat-jobs".to_owned()).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for JobQueue {
    /// Requests the end of the running job, and waits for it.
    fn drop(&mut self) {
        self.stop.store(true, Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // nothing is left to do after a panic
        }
    }
}

/// Waits until the agent has a worker. Returns false when the agent stops first.
fn wait_for_workers(region: &Path, stop: &AtomicBool) -> bool {
    let has_worker = || {
        WorkerRegion::open(region).is_ok_and(|region| {
            (0..region.shape().channels).any(|channel| region.worker(channel).is_some())
        })
    };
    while !stop.load(Acquire) {
        if has_worker() {
            return true;
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    false
}

/// Waits for the end of a job's process; asks it to end when the agent stops.
fn watch(mut child: Child, job: usize, stop: &AtomicBool) {
    let mut is_signalled = false;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return log::info!("job {job} has ended"),
            Ok(Some(status)) => return log::warn!("job {job} has ended: {status}"),
            Ok(None) => {}
            Err(error) => return log::error!("job {job}: {error}"),
        }
        if stop.load(Acquire) && !is_signalled {
            is_signalled = true;
            if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::TERM); // the process may have exited meanwhile
            }
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}
