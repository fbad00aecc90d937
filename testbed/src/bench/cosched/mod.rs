//! Benchmark of a batch (background work) on a worker's core: cost for the tasks and progress of the batch, on a
//! real core, with the parts of `wedjat cosched run`. Its mechanism limits the batch by cgroups. Its guard is an
//! upper limit by fixed rules. Its learners (ASA_X, see docs/explanation/asax.md) choose the batch's share below
//! that limit.
//!
//! The benchmark uses two CPUs. Dispatcher and load generator are one loop on the first CPU ([`dispatch`]). A
//! worker process has the second CPU ([`children`]). The batch shares it; a separate job process limits the
//! batch by cgroups, like `wedjat cosched run`.
//!
//! A run is a list of blocks ([`plan`]). Each seed has a different order. A block is one worker, one batch
//! and one arm under a sequence of loads ([`block`]). An arm is a way to limit the batch. Each block is
//! divided into windows. A window does not count after foreign activity: foreign processes and the host took
//! more than `--foreign-max` (by default 5%) of a CPU ([`accounts`]). Discarded windows are reported. The rule
//! ignores response times. The results are in [`mod@report`].

pub mod accounts;
pub mod block;
pub mod children;
pub mod dispatch;
pub mod plan;
pub mod report;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use wedjat::cosched::Objective;

use super::two_cpus;
use crate::app::Spin;
use crate::batch::Batch;
use accounts::Machine;
use block::{BlockResult, Setting, Window, percentile_us};
use plan::{Arm, Block, Cell, Choice, Load, Phase, Purpose, WorkerKind};
use report::Report;

/// Reason why there are no figures.
pub type Failure = Box<dyn std::error::Error>;

/// End of the `--help` text.
pub const EXAMPLE: &str = "Examples:
  wedjat-testbed bench-cosched
  wedjat-testbed bench-cosched --quick --arms none,idle,guard --workers parked-fifo --batches hash,memory
  wedjat cosched replay bench-report/asax-iw-parked-fifo-hash-1.jsonl --mode paper";

/// Ratio of the default objective (limit for a window's 99.9th percentile) to the latency without batch under 20% load.
const TIMES_UNLOADED: f64 = 5.0;
/// Time for which the machine must be quiet before a block begins, with `--quiet-timeout`.
const QUIET: Duration = Duration::from_millis(500);
/// Number of windows in the measurement of the latency without batch.
const UNLOADED_WINDOWS: usize = 16;
/// Fraction of its rate alone that a batch wants. Learning mode `balanced` also counts how far the batch lags
/// behind it.
const WANTED: f64 = 0.4;

/// Arguments of `bench-cosched`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// CPUs of the dispatcher and of the worker
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub cpus: Vec<usize>,
    /// Seeds, each with all blocks in a different order
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Length of a window in milliseconds
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(20..=10_000))]
    pub window_ms: u64,
    /// Windows of each load in a block
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub windows: u64,
    /// Repetitions of all loads in a block, for arms that adapt slowly (aimd, asax)
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub laps: u64,
    /// Windows of each half of a pair with and without batch, and of the steps in load, for the bars; 0
    /// leaves them out
    #[arg(long, default_value_t = 12)]
    pub bar_windows: usize,
    /// Arms: ways to limit the batch
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Arm::ALL)]
    pub arms: Vec<Arm>,
    /// Kinds of worker; all arms are measured beside the first one
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = WorkerKind::ALL)]
    pub workers: Vec<WorkerKind>,
    /// Batch jobs; all arms and workers are measured with the first one
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Batch::ALL)]
    pub batches: Vec<Batch>,
    /// Loads as fractions of the worker's capacity, or bursts (50 ms of 80%, 150 ms of 10%)
    #[arg(long, value_delimiter = ',', default_value = "20%,40%,60%,80%,bursts")]
    pub loads: Vec<Load>,
    /// Measures all combinations of arms, workers and batches, for more than an hour
    #[arg(long)]
    pub full: bool,
    /// Runs one seed, one window per load and one lap: a test of function, not a measurement
    #[arg(long)]
    pub quick: bool,
    /// Mean of the tasks' exponentially distributed service times in us
    #[arg(long, default_value_t = 50.0)]
    pub service_us: f64,
    /// Maximum CPU time of foreign processes in a window that counts, as a fraction of one CPU
    #[arg(long, default_value_t = 0.05)]
    pub foreign_max: f64,
    /// Seconds to wait before each block for the CPUs to become quiet; does not change the rule for windows
    #[arg(long, alias = "patience", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub quiet_timeout: u64,
    /// Objective for the 99.9th percentile of a window in us [default: 5 times the value without batch under
    /// 20% load]
    #[arg(long)]
    pub objective_us: Option<f64>,
    /// Folder for tables, plots and learners' logs
    #[arg(long, default_value = "bench-report")]
    pub out: PathBuf,
}

impl Arguments {
    /// Returns the selected combinations, reduced by `--quick`.
    fn choice(&self) -> Choice {
        let sized = |full: u64| if self.quick { 1 } else { full as usize };
        Choice {
            arms: self.arms.clone(),
            workers: self.workers.clone(),
            batches: self.batches.clone(),
            loads: self.loads.clone(),
            is_full: self.full,
            windows: sized(self.windows),
            laps: sized(self.laps),
            bar_windows: if self.quick { self.bar_windows.min(3) } else { self.bar_windows },
        }
    }

    /// Checks the arguments and returns the CPUs of the dispatcher and of the worker.
    fn check(&self) -> Result<[usize; 2], Failure> {
        let cpus = two_cpus(&self.cpus, "the dispatcher")?;
        if !(self.service_us.is_finite() && self.service_us >= 1.0) {
            return Err(format!("--service-us {}: must be at least 1", self.service_us).into());
        }
        if self.foreign_max.is_nan() || self.foreign_max < 0.0 {
            return Err(format!("--foreign-max {}: must be at least 0", self.foreign_max).into());
        }
        if self.objective_us.is_some_and(|us| !(us.is_finite() && us >= 1.0 && us.fract() == 0.0)) {
            return Err("--objective-us: must be a whole number above 0".into());
        }
        let is_distinct = |names: Vec<&str>| {
            let mut distinct = names.clone();
            distinct.sort_unstable();
            distinct.dedup();
            distinct.len() == names.len()
        };
        let loads: Vec<_> = self.loads.iter().map(|load| load.name()).collect();
        let lists = [
            ("--arms", self.arms.iter().map(|item| item.name()).collect::<Vec<_>>()),
            ("--workers", self.workers.iter().map(|item| item.name()).collect()),
            ("--batches", self.batches.iter().map(|item| item.name()).collect()),
            ("--loads", loads.iter().map(String::as_str).collect()),
        ];
        for (option, names) in lists {
            if names.is_empty() || !is_distinct(names) {
                return Err(format!("{option}: give at least one value, and each only once").into());
            }
        }
        Ok(cpus)
    }
}

/// Results of all blocks.
#[derive(Default)]
struct Measurements {
    windows: Vec<Window>,
    steps: Vec<block::Step>,
    learners: Vec<block::LearnerResult>,
    /// Reason for each cell that `wedjat cosched run` would have refused; the benchmark runs these cells nevertheless.
    refused: BTreeMap<Cell, String>,
    /// Units of work per second that each batch completed alone, by seed.
    alone: BTreeMap<Batch, Vec<f64>>,
    /// Number of tasks sent.
    tasks: u64,
    /// Number of times that a job process restored the scheduling class or CPUs that a batch's thread had changed.
    put_back: u64,
}

impl Measurements {
    /// Adds the result of a block.
    fn add(&mut self, block: &Block, measured: BlockResult) {
        if block.purpose == Purpose::Alone {
            self.alone.entry(block.cell.batch).or_default().extend(block::rate(&measured.windows));
        }
        if let Some(reason) = measured.refused {
            self.refused.insert(block.cell, reason);
        }
        self.windows.extend(measured.windows);
        self.steps.extend(measured.steps);
        self.learners.extend(measured.learner);
        self.tasks += measured.tasks;
        self.put_back += measured.put_back;
    }

    /// Returns the mean rate of each batch alone.
    fn alone(&self) -> BTreeMap<Batch, f64> {
        let mean = |rates: &Vec<f64>| rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        self.alone.iter().map(|(batch, rates)| (*batch, mean(rates))).collect()
    }
}

/// Runs all blocks. Calls `show` after each of them, with its number, the number of all, and the block.
///
/// # Errors
/// If an argument is invalid, the CPUs or cgroups are not available, or a block fails.
pub fn measure(
    arguments: &Arguments,
    show: &mut impl FnMut(usize, usize, &Block),
) -> Result<Report, Failure> {
    let cpus = arguments.check()?;
    std::fs::create_dir_all(&arguments.out)
        .map_err(|error| format!("{}: {error}", arguments.out.display()))?;
    let began = Instant::now();
    let mut setting = Setting {
        cpus,
        window: Duration::from_millis(arguments.window_ms),
        service_ns: arguments.service_us * 1e3,
        objective: Objective::default(),
        foreign_max: arguments.foreign_max,
        spin: calibrated(cpus[1])?,
        logs: Some(arguments.out.clone()),
        alone: BTreeMap::new(),
        wanted: WANTED,
    };
    // The objective is measured first, because every block needs it.
    setting.objective.us = match arguments.objective_us {
        Some(us) => us,
        // Objectives are whole numbers of microseconds.
        None => (TIMES_UNLOADED * unloaded_us(&setting, arguments)?).round(),
    };
    let (choice, mut measurements) = (arguments.choice(), Measurements::default());
    let seeds = if arguments.quick { 1 } else { arguments.seeds };
    let blocks: Vec<_> = (1..=seeds).flat_map(|seed| choice.blocks(seed)).collect();
    for (index, block) in blocks.iter().enumerate() {
        wait_for_quiet(arguments);
        let measured = block::run(&setting, block).map_err(|error| {
            let Cell { worker, arm, batch } = block.cell;
            let seed = block.seed;
            let cell = (worker.name(), arm.name(), batch.name());
            format!("worker {}, arm {}, batch {}, seed {seed}: {error}", cell.0, cell.1, cell.2)
        })?;
        measurements.add(block, measured);
        // The batches run alone first, so that all other blocks know their rates.
        setting.alone = measurements.alone();
        show(index + 1, blocks.len(), block);
    }
    Ok(report::build(&setting, &choice, seeds, measurements, began.elapsed()))
}

/// Calibrates busy work on the worker's CPU.
fn calibrated(cpu: usize) -> Result<Spin, Failure> {
    let calibrate = move || {
        let _ = wedjat::cpus::pin(cpu); // the CPU was checked
        Spin::calibrate(dispatch::now_ns)
    };
    let calibration =
        std::thread::spawn(calibrate).join().map_err(|_| "the calibration panicked")?;
    if !calibration.is_good() {
        log::warn!("busy work is off by more than 3% ({calibration}); keep other work off the CPU");
    }
    Ok(calibration.spin)
}

/// Waits until the whole machine uses at most `--foreign-max` of a CPU for [`QUIET`], at most for the time of
/// `--quiet-timeout`. Fewer windows of the next block are then discarded; the rule for windows stays the same.
fn wait_for_quiet(arguments: &Arguments) {
    let (machine, began) = (Machine::new(), Instant::now());
    let read_times = || (Instant::now(), machine.used());
    let mut previous = read_times();
    while began.elapsed() < Duration::from_secs(arguments.quiet_timeout) {
        std::thread::sleep(QUIET);
        let current = read_times();
        // This process sleeps meanwhile, so that all used time is foreign.
        let used = (current.1.ran_ns + current.1.stolen_ns)
            .saturating_sub(previous.1.ran_ns + previous.1.stolen_ns);
        let share = used as f64 / current.0.duration_since(previous.0).as_nanos().max(1) as f64;
        if share <= arguments.foreign_max {
            return;
        }
        previous = current;
    }
}

/// Measures the objective's percentile without batch under 20% load, in us.
fn unloaded_us(setting: &Setting, arguments: &Arguments) -> Result<f64, Failure> {
    // `Arm::None` runs no batch; the cell names one nevertheless.
    let cell = Cell { worker: WorkerKind::ParkedFifo, arm: Arm::None, batch: arguments.batches[0] };
    let windows = if arguments.quick { 2 } else { UNLOADED_WINDOWS };
    let phase = |windows, is_measured| Phase { load: Load::Steady(0.2), windows, is_measured };
    let phases = vec![phase(1, false), phase(windows, true)];
    let block = Block { cell, purpose: Purpose::Control, seed: 0, phases };
    wait_for_quiet(arguments);
    let windows = block::run(setting, &block)?.windows;
    let has_undisturbed = windows.iter().any(|window| window.is_undisturbed);
    if !has_undisturbed {
        log::warn!("the machine was busy while the objective was measured; give --objective-us");
    }
    let counted = windows.iter().filter(|window| window.is_undisturbed || !has_undisturbed);
    let mut times: Vec<u32> = counted.flat_map(|window| window.responses.iter().copied()).collect();
    percentile_us(&mut times, setting.objective.part)
        .ok_or_else(|| "no task was answered without batch; give --objective-us".into())
}

/// Measures, writes tables and plots, and prints the report.
///
/// # Errors
/// If [`measure`] or the output fails.
pub fn report(arguments: &Arguments, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let mut show = |index, all, block: &Block| {
        let Cell { worker, arm, batch } = block.cell;
        let names = (worker.name(), arm.name(), batch.name());
        log::info!("{index} of {all}: seed {} {} {} {}", block.seed, names.0, names.1, names.2);
    };
    let report = measure(arguments, &mut show)?;
    report.write(&arguments.out)?;
    match json {
        true => serde_json::to_writer_pretty(&mut *out, &report)?,
        false => write!(out, "{report}")?,
    }
    Ok(writeln!(out)?)
}
