//! Quality and cost of the choices of pools under `auto`, in emulated time: 55 cells of load, service times, speeds and
//! delay.
//!
//! A cell is an emulated pool in a steady state. Its *regret* is the fraction by which the 99th percentile of its
//! policy at the end exceeds that of the best policy. Simulations of the true conditions measure both percentiles.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use wedjat::cpus::thread_time;

use crate::advise::conditions::{ConditionArgs, Conditions, worker_count};
use crate::advise::emulation::{Emulation, TimedChange};
use crate::advise::{self};
use crate::sim::candidates::{class_policies, eligible_policies};
use crate::sim::ct;
use crate::sim::model::Cell;
use crate::sim::{SimArgs, rows_of};

/// Time at the start of a cell that does not count for the switches in the steady state.
const START: Duration = Duration::from_secs(40);
/// Limits: median, 95th percentile and maximum of the regrets, CPU seconds of a choice, switches of a cell.
const LIMITS: [f64; 5] = [0.0, 0.05, 0.15, 4.0, 0.1];

/// Arguments of `bench-auto`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Emulated time of a cell
    #[arg(long, value_name = "SECONDS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(50..=86_400))]
    pub length: u64,
    /// Tasks of a simulation of the true conditions
    #[arg(long, default_value_t = 200_000)]
    pub tasks: u64,
    /// Seeds of such a simulation
    #[arg(long, default_value_t = 3)]
    pub seeds: usize,
    /// Number of cells, from the first on
    #[arg(long, default_value_t = 55, value_parser = clap::value_parser!(u8).range(1..=55))]
    pub cells: u8,
    /// Seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Returns the emulation of a pool with these options and changes of its workload. `advise --auto` uses it too.
///
/// # Errors
/// The fault and the allowed values.
pub fn emulation(
    arguments: advise::Arguments,
    changes: &[String],
    length_s: u64,
) -> Result<Emulation, String> {
    let workers = match &arguments.conditions.workers {
        None => 1,
        Some(text) => worker_count(text)?,
    };
    let seed = advise::seed(&arguments)?;
    if arguments.conditions.log.is_some() || arguments.conditions.capture.is_some() {
        let reason =
            "it emulates a pool; give --workers, --load and --service, and no log or capture";
        return Err(format!("--auto: {reason}"));
    }
    let changes = changes
        .iter()
        .map(|text| TimedChange::parse(text, workers).map_err(|error| format!("--at {error}")));
    let mut changes = changes.collect::<Result<Vec<_>, _>>()?;
    changes.sort_by_key(|change| change.at);
    // One thread, as in a node.
    let arguments = advise::Arguments { threads: Some("1".to_owned()), ..arguments };
    let length = Duration::from_secs(length_s);
    Ok(Emulation { arguments, changes, length, seed, clock: thread_time })
}

/// Returns the options of all cells.
fn cells() -> Vec<ConditionArgs> {
    let text = |text: &str| Some(text.to_owned());
    // All have a mean of 2 ms.
    let services = [
        "exp(2ms)",
        "mix(0.9*exp(1ms),0.1*exp(11ms))",
        "mix(0.6*exp(500us),0.3*exp(2ms),0.1*exp(11ms))",
    ];
    let mut cells = Vec::new();
    for service in services {
        for load in ["0.5", "0.8", "0.95"] {
            for speeds in ["32x1", "16x1,16x2", "16x1,16x10"] {
                for delay in ["0us", "400us"] {
                    cells.push(ConditionArgs {
                        workers: text("32"),
                        load: text(load),
                        service: text(service),
                        speeds: text(speeds),
                        delay: text(delay),
                        ..ConditionArgs::default()
                    });
                }
            }
        }
    }
    // Four cores of one leaf.
    cells.push(ConditionArgs { dispatchers: text("4"), ..cells[2].clone() });
    cells
}

/// Returns the 99th percentile of each policy that `auto` may choose and that is stable under the true conditions.
fn p99s(conditions: &ct::Config, arguments: &Arguments) -> Result<Vec<(String, f64)>, String> {
    let cell = |name: &str| {
        let policy = name.parse().map_err(|error| format!("{error}"))?;
        let config = ct::Config { policy, tasks: arguments.tasks, ..conditions.clone() };
        Ok::<_, String>(Cell::of_policy(name, config))
    };
    let of_classes = class_policies(conditions.service.classes(), conditions.speeds.len());
    let names = eligible_policies().map(str::to_owned).chain(of_classes);
    let cells = names.map(|name| cell(&name)).collect::<Result<_, _>>()?;
    let flags = SimArgs {
        seed: Some("1000".to_owned()),
        seeds: Some(arguments.seeds.to_string()),
        ..SimArgs::default()
    };
    let rows = rows_of(cells, &flags)?.into_iter().filter(|row| !row.unstable);
    Ok(rows.map(|row| (row.policy, row.p99)).collect())
}

/// Returns the smallest value that at least this fraction of the sorted values does not exceed; NaN without values.
fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let index = (sorted.len() as f64 * fraction).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Runs all cells and prints each, then the summary beside the limits. Returns false if a limit is exceeded.
///
/// # Errors
/// If a run fails or the output cannot be written.
pub fn report(
    arguments: &Arguments,
    out: &mut impl Write,
) -> Result<bool, Box<dyn std::error::Error>> {
    let (mut regrets, mut cpu_seconds, mut switches) = (Vec::new(), Vec::new(), 0);
    let all = cells();
    for (index, conditions) in all.into_iter().take(arguments.cells.into()).enumerate() {
        let value = |text: &Option<String>| text.clone().unwrap_or_default();
        let label = [
            value(&conditions.service),
            format!("load {}", value(&conditions.load)),
            value(&conditions.speeds),
            value(&conditions.delay),
            format!("cores {}", conditions.dispatchers.as_deref().unwrap_or("1")),
        ];
        let truth = Conditions::new(&conditions)?;
        let seed = Some(arguments.seed.wrapping_add(index as u64).to_string());
        let options = advise::Arguments { conditions, seed, ..advise::Arguments::default() };
        let outcome = emulation(options, &[], arguments.length)?.run()?;
        let p99s = p99s(&truth.model, arguments)?;
        let best = p99s.iter().min_by(|a, b| a.1.total_cmp(&b.1)).ok_or("no policy is stable")?;
        let own = p99s.iter().find(|(name, _)| *name == outcome.running);
        let regret = own.map_or(f64::INFINITY, |(_, p99)| p99 / best.1 - 1.0);
        let late = outcome.switches_after(START);
        let costs = outcome.decisions.iter().map(|one| one.cpu.as_secs_f64());
        let cost = costs.fold(0.0, f64::max);
        writeln!(
            out,
            "{:2}  {}  {} (best {}), regret {:.1}%, {late} late switches, {cost:.2} s CPU a choice, {} lost",
            index + 1,
            label.join(", "),
            outcome.running,
            best.0,
            regret * 100.0,
            outcome.lost
        )?;
        out.flush()?;
        regrets.push(regret);
        cpu_seconds.push(cost);
        switches += late;
    }
    regrets.sort_by(f64::total_cmp);
    cpu_seconds.sort_by(f64::total_cmp);
    let values = [
        quantile(&regrets, 0.5),
        quantile(&regrets, 0.95),
        quantile(&regrets, 1.0),
        quantile(&cpu_seconds, 1.0),
        switches as f64 / regrets.len() as f64,
    ];
    let names = [
        "regret, median",
        "regret, 95th percentile",
        "regret, maximum",
        "CPU seconds of a choice, maximum",
        "switches of a cell after 40 s",
    ];
    for ((name, value), limit) in names.iter().zip(values).zip(LIMITS) {
        writeln!(out, "{name}: {value:.3}, limit {limit}")?;
    }
    // The printed median must be 0.
    Ok(values.iter().zip(LIMITS).all(|(value, limit)| *value < limit + 5e-4))
}
