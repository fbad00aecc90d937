//! `wedjat-testbed worker`: workers at an agent of this host, which run a real workload. The agent gives them tasks
//! through a region (shared memory). With sharing, several tasks are in progress on a core, each for a quantum in turn.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;
use wedjat::ring::WorkerRegion;
use wedjat::ring::region::path_of;
use wedjat::worker::{AttachError, Options, QuantumClock, Sharing, SharingError, Worker};
use wedjat_pktgen::process;
use wedjat_pktgen::report::print_line;
use wedjat_testbed::app::{AnyApp, Echo, RocksDb, Spin, Tpcc};
use wedjat_testbed::worker::{WorkerSummary, serve};

use super::{Failure, Format, seconds};

/// Text below the help.
pub const EXAMPLE: &str = "Examples, at the agent whose configuration says name = \"host1\":
  wedjat-testbed worker --app spin --attach host1 --core 2
  wedjat-testbed worker --app rocksdb --attach host1 --workers 4 --core 2,3,4,5 --db objects
  wedjat-testbed worker --app rocksdb --attach host1 --core 2 --sharing 10us   # GETs pass SCANs
Matching loads: `wedjat-pktgen run --service 'exp(50us)' --verify`, `--service rocksdb-90-10 --verify` and so on.";

/// App of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AppName {
    /// Busy work for the service time of the task
    Spin,
    /// GET and SCAN on a database of 5,000 objects (operation 1 and 2)
    Rocksdb,
    /// Busy work by TPC-C transaction (operation 1 to 5)
    Tpcc,
    /// Return the bytes of the task
    Echo,
}

impl AppName {
    /// Returns the name on the command line.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Choice of the app.
#[derive(Args, Debug)]
pub struct AppArguments {
    /// App to run
    #[arg(long, value_enum)]
    app: AppName,
    /// rocksdb: folder of the database, filled if new [default: a temporary folder]
    #[arg(long, value_name = "FOLDER")]
    db: Option<PathBuf>,
}

/// Command line of `worker`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    run: AppArguments,
    /// Name of the agent in its configuration, or path of its region
    #[arg(long, value_name = "NAME")]
    attach: String,
    /// Id of the worker, or of the first of several [default: any free worker]
    #[arg(long)]
    worker: Option<u16>,
    /// Pool to serve [default: any]
    #[arg(long)]
    pool: Option<u16>,
    /// Number of workers, one thread each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// CPUs to run on, assigned in turn [default: the kernel decides]
    #[arg(long, value_delimiter = ',')]
    core: Vec<usize>,
    /// Let up to SLOTS tasks share the core, each for QUANTUM in turn [default: one task at a time; SLOTS: 64]
    #[arg(long, value_name = "QUANTUM[,SLOTS]", value_parser = sharing)]
    sharing: Option<Sharing>,
    /// End quanta by a timer signal instead of clock readings at yield points
    #[arg(long, requires = "sharing")]
    sharing_timer: bool,
    /// Time that an idle worker spins before it sleeps
    #[arg(long, default_value = "50us", value_parser = seconds)]
    spin: f64,
    /// Shorten the spin if tasks are rare, to at least one sixteenth
    #[arg(long)]
    adaptive_spin: bool,
    /// Run with real-time priority, before all normal threads
    #[arg(long)]
    real_time: bool,
    /// Longest wait for the agent to admit the workers
    #[arg(long, alias = "patience", default_value = "5s", value_parser = seconds)]
    peer_timeout: f64,
    /// Stop after this time [default: on SIGINT or SIGTERM]
    #[arg(long, value_parser = seconds)]
    duration: Option<f64>,
    /// Output format of the account at the end
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Arguments {
    /// Returns the parameters of sharing; `None` without `--sharing`.
    fn sharing(&self) -> Option<Sharing> {
        let clock = match self.sharing_timer {
            true => QuantumClock::Timer,
            false => QuantumClock::Readings,
        };
        self.sharing.map(|sharing| Sharing { clock, ..sharing })
    }

    /// Returns the options of the worker that thread number `thread` runs.
    fn options(&self, thread: u16) -> Options {
        // At least 1 as a divisor. Without `--core`, `cpu` is `None`.
        let cpus = self.core.len().max(1);
        Options {
            worker: self.worker.map(|first| first.saturating_add(thread)),
            pool: self.pool,
            cpu: self.core.get(usize::from(thread) % cpus).copied(),
            attach_timeout: Duration::from_secs_f64(self.peer_timeout),
            spin: Duration::from_secs_f64(self.spin),
            adaptive_spin: self.adaptive_spin,
            real_time: self.real_time,
        }
    }
}

/// Account at the end, as JSON.
#[derive(Serialize)]
struct Account {
    app: String,
    agent: String,
    tasks: u64,
    workers: Vec<WorkerSummary>,
}

/// Serves until a stop signal or the end of `--duration`; without `--duration`, also until all workers have lost their
/// agent. Returns false if the agent died, or excluded a worker.
pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
    arguments.run.check()?;
    // Checks the agent first, because an app may take seconds to start.
    check_agent(&arguments.attach, arguments.options(0).attach_timeout)?;
    let stop = process::stop_on_signals()?;
    // The app may use a temporary folder, which must exist until the end.
    let (app, _folder) = app(&arguments.run)?;
    let workers = serve_all(arguments, &app, &stop)?;
    let account = Account {
        app: arguments.run.app.name(),
        agent: arguments.attach.clone(),
        tasks: workers.iter().map(|summary| summary.tasks).sum(),
        workers,
    };
    match arguments.format {
        Format::Text => account.workers.iter().try_for_each(print_line)?,
        Format::Json => print_line(serde_json::to_string_pretty(&account)?)?,
    }
    Ok(account.workers.iter().all(WorkerSummary::ended_in_order))
}

/// Waits for the agent's region, at most for `timeout`, and checks that the agent is running.
fn check_agent(name: &str, timeout: Duration) -> Result<(), AttachError> {
    match WorkerRegion::open_within(&path_of(name), timeout)?.has_agent() {
        true => Ok(()),
        false => Err(AttachError::NoAgent(name.to_owned())),
    }
}

/// Runs all workers, one thread each, until they end, at most for `--duration`. If one cannot attach or serve, stops
/// all.
fn serve_all(
    arguments: &Arguments,
    app: &AnyApp,
    stop: &AtomicBool,
) -> Result<Vec<WorkerSummary>, Failure> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.workers)
            .map(|thread| {
                let app = app.clone();
                scope.spawn(move || {
                    let summary = serve_one(arguments, thread, &app, stop);
                    summary.inspect_err(|_| stop.store(true, Ordering::Relaxed))
                })
            })
            .collect();
        if let Some(duration) = arguments.duration {
            let is_over = || threads.iter().all(ScopedJoinHandle::is_finished);
            wait_until_stopped(Duration::from_secs_f64(duration), stop, is_over);
            stop.store(true, Ordering::Relaxed);
        }
        let summaries = threads.into_iter().map(|thread| match thread.join() {
            Ok(summary) => Ok(summary?),
            Err(_) => Err(Failure::from("a worker panicked")),
        });
        summaries.collect()
    })
}

/// Attaches a worker with this number and runs it until it ends.
fn serve_one(
    arguments: &Arguments,
    thread: u16,
    app: &AnyApp,
    stop: &AtomicBool,
) -> Result<WorkerSummary, WorkerError> {
    let mut worker = Worker::attach(&arguments.attach, &arguments.options(thread))?;
    log::info!("worker {} of pool {} is attached", worker.id(), worker.pool());
    Ok(serve(&mut worker, app, arguments.sharing().as_ref(), stop)?)
}

/// Reason why a worker cannot serve. Unlike [`Failure`], it can leave the worker's thread.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum WorkerError {
    Attach(#[from] AttachError),
    Sharing(#[from] SharingError),
}

/// Waits for `duration`, or until `stop` is set or `is_over` returns true.
fn wait_until_stopped(duration: Duration, stop: &AtomicBool, is_over: impl Fn() -> bool) {
    let began = Instant::now();
    while began.elapsed() < duration && !stop.load(Ordering::Relaxed) && !is_over() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Parses `--sharing`: a quantum, and optionally a comma and a number of slots.
fn sharing(text: &str) -> Result<Sharing, String> {
    let (quantum, slots) =
        text.split_once(',').map_or((text, None), |(quantum, slots)| (quantum, Some(slots)));
    let quantum = Duration::from_secs_f64(seconds(quantum).map_err(|error| error.to_string())?);
    let default = Sharing { quantum, ..Sharing::default() };
    let Some(slots) = slots else { return Ok(default) };
    let slots = slots.parse().ok().filter(|&slots| slots > 0);
    let slots = slots.ok_or_else(|| format!("SLOTS: expected a number from 1, found `{text}`"))?;
    Ok(Sharing { slots, ..default })
}

impl AppArguments {
    /// Checks that the arguments are consistent.
    fn check(&self) -> Result<(), Failure> {
        if self.db.is_some() && self.app != AppName::Rocksdb {
            return Err(format!(
                "--db is only for --app rocksdb; {} has no database",
                self.app.name()
            )
            .into());
        }
        Ok(())
    }
}

/// Creates the app, and the temporary folder that must outlive it. `wedjat-testbed agent` calls it, too.
pub fn app(arguments: &AppArguments) -> Result<(AnyApp, Option<tempfile::TempDir>), Failure> {
    arguments.check()?;
    let app = match arguments.app {
        AppName::Spin => AnyApp::Spin(calibrated()),
        AppName::Tpcc => AnyApp::Tpcc(Tpcc::new(calibrated())),
        AppName::Echo => AnyApp::Echo(Echo),
        AppName::Rocksdb => return rocksdb(arguments),
    };
    Ok((app, None))
}

/// Returns a clock in nanoseconds that starts at 0.
fn now_ns() -> impl Fn() -> u64 {
    let began = Instant::now();
    move || began.elapsed().as_nanos() as u64
}

/// Calibrates busy work and logs its error.
fn calibrated() -> Spin {
    let calibration = Spin::calibrate(now_ns());
    match calibration.is_good() {
        true => log::info!("busy work calibrated: {calibration}"),
        false => log::warn!(
            "busy work is off by more than 3% ({calibration}); keep other work off the CPU, and fix its clock frequency"
        ),
    }
    calibration.spin
}

/// Opens the database of `--db`, or of a temporary folder, and fills it if new. Also returns the temporary folder.
fn rocksdb(arguments: &AppArguments) -> Result<(AnyApp, Option<tempfile::TempDir>), Failure> {
    let temporary_folder = match arguments.db {
        Some(_) => None,
        None => Some(RocksDb::scratch()?),
    };
    let temporary_path = temporary_folder.as_ref().map(|folder| folder.path().to_owned());
    // One of the two is given.
    let path = arguments.db.clone().or(temporary_path).unwrap_or_default();
    let app = RocksDb::open(&path)?;
    let [get_us, scan_us] = app.pace(now_ns());
    log::info!("database {}: median GET {get_us:.1} us, SCAN {scan_us:.1} us", path.display());
    Ok((AnyApp::RocksDb(app), temporary_folder))
}
