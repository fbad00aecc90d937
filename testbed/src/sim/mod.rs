//! The simulator: the dataplane's own policies over modelled networks, queues and clocks.

pub mod args;
pub mod ct;
pub mod events;
pub mod fabric;
pub mod failure;
pub mod fifo;
pub mod hop;
pub mod knowledge;
pub mod outcome;
pub mod plan;
pub mod rack;
pub mod reference;
pub mod script;
pub mod slots;
pub mod stats;
pub mod watched;

use std::io::{self, IsTerminal as _, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

pub use args::SimArgs;
pub use outcome::Row;
use plan::Cell;

/// Runs what the flags ask for and prints the rows.
///
/// # Errors
/// What is wrong with the flags, or with the output.
pub fn run(args: SimArgs, out: &mut impl Write) -> Result<(), String> {
    let args = args.complete()?;
    let format = args.format.clone().unwrap_or_else(|| "text".to_owned());
    if !["text", "json", "csv"].contains(&format.as_str()) {
        return Err(format!("--format {format}: allowed are text, json, csv"));
    }
    print(&rows(&args)?, &format, out).map_err(|error| format!("cannot write: {error}"))
}

/// The rows that the flags ask for.
///
/// # Errors
/// What is wrong with the flags.
pub fn rows(args: &SimArgs) -> Result<Vec<Row>, String> {
    let cells = plan::cells(args)?;
    let whole = |flag, value: &Option<String>, default, most| match value {
        Some(text) => plan::whole(flag, text, 1..=most),
        None => Ok(default),
    };
    let seeds = whole("seeds", &args.seeds, 1, 10_000)?;
    let first = match &args.seed {
        Some(text) => {
            text.parse().map_err(|_| format!("--seed {text}: a whole number is allowed"))?
        }
        None => 1_u64,
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = whole("threads", &args.threads, cpus, 1024)?;
    let timing = match args.timing.as_deref() {
        None | Some("yes") => true,
        Some("no") => false,
        Some(other) => return Err(format!("--timing {other}: allowed are yes, no")),
    };
    simulate(cells, first, seeds, threads, timing)
}

/// Runs every cell with every seed, over some threads; the rows come in the cells' order.
fn simulate(
    cells: Vec<Cell>,
    first: u64,
    seeds: usize,
    threads: usize,
    timing: bool,
) -> Result<Vec<Row>, String> {
    let jobs = cells.len() * seeds;
    let bar = progress(jobs);
    let next = AtomicUsize::new(0);
    let done = Mutex::new((0..jobs).map(|_| None).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for _ in 0..threads.min(jobs) {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(job / seeds) else { break };
                    let started = Instant::now();
                    let outcome = cell.model.run(first.wrapping_add((job % seeds) as u64));
                    let result = outcome.map(|outcome| (outcome, started.elapsed()));
                    if let Ok(mut done) = done.lock() {
                        done[job] = Some(result);
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut results = done.into_inner().map_err(|_| "a run panicked".to_owned())?.into_iter();
    let mut rows = Vec::new();
    for cell in cells {
        let mut outcomes = Vec::new();
        let mut wall = Duration::ZERO;
        for result in results.by_ref().take(seeds) {
            let (outcome, elapsed) = result.ok_or_else(|| "a run is missing".to_owned())??;
            outcomes.push(outcome);
            wall += elapsed;
        }
        rows.push(Row::new(cell.subject, outcomes, timing.then_some(wall)));
    }
    Ok(rows)
}

fn progress(jobs: usize) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(jobs as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} left") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn print(rows: &[Row], format: &str, out: &mut impl Write) -> io::Result<()> {
    match format {
        "json" => {
            for row in rows {
                serde_json::to_writer(&mut *out, row)?;
                writeln!(out)?;
            }
        }
        "csv" => {
            let mut csv = csv::Writer::from_writer(out);
            for row in rows {
                csv.serialize(row).map_err(io::Error::other)?;
            }
            csv.flush()?;
        }
        _ => table(rows, out)?,
    }
    Ok(())
}

fn table(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let width = rows.iter().map(|row| row.policy.len()).max().unwrap_or(0).max(6);
    writeln!(
        out,
        "{:width$}  {:>5} {:>9} {:>16} {:>9} {:>9} {:>16} {:>9} {:>8} {:>7}",
        "policy", "load", "tasks", "mean", "p50", "p90", "p99", "p999", "msg/task", "lost"
    )?;
    for row in rows {
        let with = |value: f64, ci: f64| {
            if ci.is_finite() { format!("{value:.4} ±{ci:.2}") } else { format!("{value:.4}") }
        };
        writeln!(
            out,
            "{:width$}  {:>5} {:>9} {:>16} {:>9.3} {:>9.3} {:>16} {:>9.3} {:>8.3} {:>7}{}",
            row.policy,
            row.load,
            row.tasks,
            with(row.mean, row.mean_ci95),
            row.p50,
            row.p90,
            with(row.p99, row.p99_ci95),
            row.p999,
            row.messages_per_task,
            row.lost,
            if row.unstable { "  UNSTABLE: queues grow without bound" } else { "" }
        )?;
    }
    if let Some(row) = rows.first() {
        writeln!(out, "times in {}", row.unit)?;
    }
    Ok(())
}
