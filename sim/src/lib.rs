//! Simulator: the dataplane's policies over modelled networks, queues and clocks.
//!
//! [`run`] is the command `wedjat-testbed sim`; other commands and tests call [`rows`] and [`rows_of`]. A *cell* is one
//! combination of the flags' values: a model with its parameters ([`model`]). A *run* simulates a cell with one seed. A
//! *row* of the report summarises all runs of a cell. The runs of all cells are the jobs of a few threads.

pub mod advise;
pub mod args;
pub mod candidates;
pub mod ct;
pub mod digest;
pub mod engine;
pub mod events;
pub mod fabric;
pub mod failure;
pub mod hop;
pub mod knowledge;
pub mod lists;
pub mod model;
pub mod nodes;
pub mod outcome;
pub mod papers;
pub mod plan;
pub mod print;
pub mod rack;
pub mod reference;
pub mod reports;
pub mod script;
pub mod sharing;
pub mod slots;
pub mod stats;
pub mod sweep;
pub mod watched;

use std::io::{self, IsTerminal as _, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

pub use args::SimArgs;
use model::Cell;
pub use outcome::Row;
use stats::Observer;
use wedjat_workload::results::{Results, RunTasks};

/// Runs the simulations selected by the flags and prints the rows. Returns false if a row has no measured
/// task.
///
/// # Errors
/// Invalid flags, a failed run, or a failure to write the output.
pub fn run(args: SimArgs, out: &mut impl Write) -> Result<bool, String> {
    let args = args.complete()?;
    let format = args.format.clone().unwrap_or_else(|| "text".to_owned());
    if !["text", "json", "csv"].contains(&format.as_str()) {
        return Err(format!("--format {format}: allowed are text, json, csv"));
    }
    let cells = plan::cells(&args)?;
    cells.iter().filter_map(Cell::caution).for_each(|text| log::warn!("{text}"));
    let runs = Runs::parse(&args)?;
    let longest = cells.iter().map(|cell| cell.model.tasks()).max().unwrap_or(0);
    args.results.check(cells.len() * runs.seeds, longest)?;
    let queue = Results::open(&args.results)?.map(ResultQueue::new);
    let rows = simulate(cells, &runs, queue.as_ref(), &|| true)?;
    if let Some(queue) = queue {
        queue.finish()?.finish("wedjat-testbed sim")?;
    }
    print::print(&rows, &format, out).map_err(|error| format!("cannot write: {error}"))?;
    let empty = rows.iter().filter(|row| row.mean.is_nan());
    let invalid = empty.map(|row| {
        let Row { policy, load, lost, tasks, .. } = row;
        log::error!(
            "INVALID: {policy} at load {load}: no task was measured; {lost} of {tasks} were lost"
        );
    });
    Ok(invalid.count() == 0)
}

/// Returns the rows selected by the flags.
///
/// # Errors
/// Invalid flags, or a failed run.
pub fn rows(args: &SimArgs) -> Result<Vec<Row>, String> {
    rows_of(plan::cells(args)?, args)
}

/// Returns the row of each cell. The flags select seeds and threads.
///
/// # Errors
/// Invalid flags, or a failed run.
pub fn rows_of(cells: Vec<Cell>, args: &SimArgs) -> Result<Vec<Row>, String> {
    rows_while(cells, args, &|| true)
}

/// Function that returns true if the next run may start. It limits the time of a node's own simulations.
pub type MayRun<'a> = dyn Fn() -> bool + Sync + 'a;

/// Like [`rows_of`], as long as further runs are permitted.
///
/// # Errors
/// Invalid flags, a failed run, or a run without permission.
pub fn rows_while(
    cells: Vec<Cell>,
    args: &SimArgs,
    may_run: &MayRun<'_>,
) -> Result<Vec<Row>, String> {
    simulate(cells, &Runs::parse(args)?, None, may_run)
}

/// Number of runs per cell, and of threads. A cell is one combination of the flags' values.
struct Runs {
    /// First seed.
    first: u64,
    /// Number of seeds, and so of runs per cell.
    seeds: usize,
    threads: usize,
    /// True to print the duration of each row.
    timing: bool,
}

impl Runs {
    /// Parses --seed, --seeds, --threads and --timing.
    fn parse(args: &SimArgs) -> Result<Self, String> {
        // Parses a flag's number from 1 to `max`.
        let count = |flag, value: &Option<String>, default, max| match value {
            Some(text) => plan::integer(flag, text, 1..=max),
            None => Ok(default),
        };
        let first = match &args.seed {
            Some(text) => {
                let max = u64::MAX;
                let refusal =
                    || format!("--seed {text}: a whole number from 0 to {max} is allowed");
                text.parse().map_err(|_| refusal())?
            }
            None => 1_u64,
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let timing = plan::yes("timing", args.timing.as_deref(), true)?;
        let seeds = count("seeds", &args.seeds, 1, 10_000)?;
        let threads = count("threads", &args.threads, cpus, 1024)?;
        Ok(Self { first, seeds, threads, timing })
    }
}

/// Adds the runs of several threads to the results, in the order of the jobs. A job is one run. At most one run
/// per thread waits for its turn.
struct ResultQueue {
    /// Number of the job whose turn it is, and the results. The first error replaces the results.
    state: Mutex<(usize, Result<Results, String>)>,
    /// Notified after each change of the state.
    changed: Condvar,
}

/// Turn of one job in a [`ResultQueue`]. Its drop adds the run and passes the turn on, even if the run failed
/// or panicked, so that later jobs never wait for it.
struct Turn<'a> {
    queue: &'a ResultQueue,
    /// Number of the job.
    job: usize,
    /// Tasks of the run, and true if the run is valid; `None` if it failed.
    run: Option<(RunTasks, bool)>,
}

impl ResultQueue {
    fn new(results: Results) -> Self {
        Self { state: Mutex::new((0, Ok(results))), changed: Condvar::new() }
    }

    /// Reserves the turn of a job.
    fn turn(&self, job: usize) -> Turn<'_> {
        Turn { queue: self, job, run: None }
    }

    /// Returns the error of a run that could not be added; `None` if there is none so far.
    fn error(&self) -> Option<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1.as_ref().err().cloned()
    }

    /// Returns the results after the last job.
    fn finish(self) -> Result<Results, String> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).1
    }
}

impl Drop for Turn<'_> {
    /// Waits until all earlier jobs have ended, then adds the run. After an error, neither waits nor adds.
    fn drop(&mut self) {
        let Self { queue, job, run } = self;
        let state = queue.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state =
            queue.changed.wait_while(state, |(next, results)| *next < *job && results.is_ok());
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if let (Some((run, valid)), Ok(results)) = (run.take(), &mut state.1)
            && let Err(error) = results.add(run, valid)
        {
            state.1 = Err(error);
        }
        state.0 += 1;
        drop(state);
        queue.changed.notify_all();
    }
}

/// Error of a run without permission.
const OUT_OF_TIME: &str = "the simulations need more time than they may have";

/// Runs every cell with every seed on several threads. The rows keep the cells' order. `queue`, if given, receives the
/// tasks of each run.
///
/// # Errors
/// The first error of a run, or of adding a run to the results.
fn simulate(
    cells: Vec<Cell>,
    runs: &Runs,
    queue: Option<&ResultQueue>,
    may_run: &MayRun<'_>,
) -> Result<Vec<Row>, String> {
    let &Runs { first, seeds, threads, timing } = runs;
    // Job `j` runs cell `j / seeds` with seed `first + j % seeds`.
    let jobs = cells.len() * seeds;
    let tasks = cells.iter().map(|cell| cell.model.tasks()).sum::<u64>() * seeds as u64;
    let bar = progress(tasks);
    let records_tasks = queue.is_some();
    let observer = Observer { progress: bar.clone(), records_tasks, ..Observer::hidden() };
    let next = AtomicUsize::new(0);
    let done = Mutex::new((0..jobs).map(|_| None).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        let work = || {
            loop {
                // Relaxed: the threads only need distinct numbers.
                let job = next.fetch_add(1, Ordering::Relaxed);
                let Some(cell) = cells.get(job / seeds) else { break };
                // Nothing can be stored after an error.
                if queue.is_some_and(|queue| queue.error().is_some()) || !may_run() {
                    break;
                }
                let turn = queue.map(|queue| queue.turn(job));
                let (started, seed) = (Instant::now(), first.wrapping_add((job % seeds) as u64));
                let outcome = cell.model.run(seed, &observer);
                let mut result = outcome.map(|outcome| (outcome, started.elapsed()));
                // The turn is dropped after this statement, with or without a run.
                if let (Some(mut turn), Ok((outcome, _))) = (turn, &mut result) {
                    let ended = std::mem::take(&mut outcome.ended);
                    let run = cell.subject.run_tasks(job / seeds + 1, seed, ended);
                    turn.run = Some((run, !outcome.is_unstable()));
                }
                if let Ok(mut done) = done.lock() {
                    done[job] = Some(result);
                }
            }
        };
        for _ in 1..threads.min(jobs) {
            scope.spawn(work);
        }
        // The calling thread is one of them. A node simulates on one thread, with that thread's priority.
        work();
    });
    bar.finish_and_clear();
    if let Some(error) = queue.and_then(ResultQueue::error) {
        return Err(error);
    }
    let mut results = done.into_inner().map_err(|_| "a run panicked".to_owned())?.into_iter();
    let mut rows = Vec::new();
    for cell in cells {
        let mut outcomes = Vec::new();
        let mut wall = Duration::ZERO;
        for result in results.by_ref().take(seeds) {
            let (outcome, elapsed) = result.ok_or_else(|| OUT_OF_TIME.to_owned())??;
            outcomes.push(outcome);
            wall += elapsed;
        }
        rows.push(Row::new(cell.subject, outcomes, timing.then_some(wall)));
    }
    Ok(rows)
}

/// Creates a progress bar for this many tasks, which is hidden unless stderr is a terminal.
fn progress(tasks: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(tasks);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} tasks, {eta} left")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
