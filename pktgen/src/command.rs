//! Implementation of the subcommands. The code for DPDK is in [`network`].

use std::io::Write;
use std::sync::Arc;

use clap::CommandFactory;
use rand::seq::SliceRandom;
use serde::Serialize;
use wedjat::state::files::ReportFile;
use wedjat_pktgen::latency::Micros;
use wedjat_pktgen::load::Load;
use wedjat_pktgen::rate::Rate;
use wedjat_pktgen::replay::Replay;
use wedjat_pktgen::report::{self, Report, print_line, print_text};
use wedjat_pktgen::results::{ResultArgs, Results, RunDescription};
use wedjat_pktgen::seed::StreamSeed;
use wedjat_pktgen::selftest;
use wedjat_pktgen::trace::{SkippedPackets, Trace};

use crate::args::{
    Cli, Command, FloorArgs, Format, LoadArgs, NetworkArgs, Order, OutputArgs, RunArgs, SearchArgs,
    SelftestArgs, SweepArgs,
};
use crate::failure::Failure;
use crate::network::{self, Network};

/// Runs a command. Returns false if a result is invalid or missing, or the objective was missed.
pub fn execute(command: Command) -> Result<bool, Failure> {
    match command {
        Command::Run(args) => run(&args),
        Command::Sweep(args) => sweep(&args),
        Command::Search(args) => search(&args),
        Command::Selftest(args) => self_test(&args),
        Command::Floor(args) => floor(&args),
        Command::Reflect(args) => network::reflect(&args).map(|()| true),
        Command::Completions { shell } => {
            // Writes to memory first, because `generate` panics if it cannot write.
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "wedjat-pktgen", &mut text);
            print_text(&text)?;
            Ok(true)
        }
        Command::Man { folder } => {
            clap_mangen::generate_to(Cli::command(), folder)?;
            Ok(true)
        }
    }
}

/// Offers one load, and writes its report and results.
fn run(args: &RunArgs) -> Result<bool, Failure> {
    let mut load = load(args)?;
    load.self_test()?;
    check_writable(&args.output)?;
    let mut results = open_results(&args.results, std::slice::from_mut(&mut load))?;
    let mut report = Network::open(&args.network)?.offer(&load)?;
    if let Some(results) = &mut results {
        add_result(results, 1, &mut report, &load, &args.load, &args.network)?;
    }
    results.map_or(Ok(()), |results| results.finish("wedjat-pktgen run"))?;
    let text = match args.output.format {
        Format::Text => format!("{report}\n"),
        Format::Json => report.json() + "\n",
        Format::Csv => report::csv(std::slice::from_ref(&report))?,
    };
    write(&args.output, &text)?;
    Ok(report.valid)
}

/// Opens the files for the results, if there are any, and makes the loads record their tasks.
fn open_results(args: &ResultArgs, loads: &mut [Load]) -> Result<Option<Results>, Failure> {
    let results = Results::open(args)?;
    if results.is_some() {
        for load in loads {
            load.check_recordable().map_err(|error| format!("{}: {error}", args.option()))?;
            load.records_tasks = true;
        }
    }
    Ok(results)
}

/// Adds a run to the results.
fn add_result(
    results: &mut Results,
    run: usize,
    report: &mut Report,
    load: &Load,
    load_args: &LoadArgs,
    network: &NetworkArgs,
) -> Result<(), Failure> {
    let subject = RunDescription {
        model: "pktgen".to_owned(),
        load: load_args.workers.map(|workers| load.share(workers)),
        offered_pps: Some(load.rate_pps),
        ..RunDescription::default()
    };
    let valid = report.valid;
    Ok(results.add(report.take_tasks(run, subject, network.pool), valid)?)
}

/// Returns the load of the arguments: a rate, or a trace.
fn load(args: &RunArgs) -> Result<Load, Failure> {
    let cores = args.network.core_count();
    let Some(path) = &args.replay else {
        let rate = args.rate.ok_or("give --rate, or a trace with --replay")?;
        return Ok(args.load.load(rate, cores)?);
    };
    let trace = Trace::read(path)?;
    if !trace.skipped().is_empty() {
        log::warn!(
            "{}: {} skipped: they are not tasks",
            path.display(),
            SkippedPackets(trace.skipped())
        );
    }
    let replay = Replay::new(Arc::new(trace), args.speed, args.repeat)?;
    let load = args.load.replay(replay, cores)?;
    log::info!(
        "{}: {:.0} tasks/s for {:.3} s",
        load.arrivals_text(),
        load.rate_pps,
        load.warmup_s + load.duration_s
    );
    Ok(load)
}

/// Offers several loads, in the given or in random order. Reports keep the given order.
fn sweep(args: &SweepArgs) -> Result<bool, Failure> {
    let mut loads: Vec<_> = args
        .rates
        .iter()
        .map(|rate| args.load.load(*rate, args.network.core_count()))
        .collect::<Result<_, _>>()?;
    loads.iter().try_for_each(|load| load.self_test().map(drop))?;
    let mut order: Vec<_> = (0..loads.len()).collect();
    // Has a random stream of its own, so that the order does not change the loads.
    if args.order == Order::Shuffled {
        order.shuffle(&mut StreamSeed::derive(args.load.seed, "order", 0).stream());
    }
    check_writable(&args.output)?;
    let mut results = open_results(&args.results, &mut loads)?;
    let mut network = Network::open(&args.network)?;
    let mut reports: Vec<Option<Report>> = vec![None; loads.len()];
    for i in order {
        if network.stopped() {
            break;
        }
        let mut report = network.offer(&loads[i])?;
        if let Some(results) = &mut results {
            add_result(results, i + 1, &mut report, &loads[i], &args.load, &args.network)?;
        }
        reports[i] = Some(report);
    }
    results.map_or(Ok(()), |results| results.finish("wedjat-pktgen sweep"))?;
    let reports: Vec<_> = reports.into_iter().flatten().collect();
    write_all(&args.output, &reports)?;
    Ok(reports.len() == loads.len() && reports.iter().all(|report| report.valid))
}

/// Writes the reports of several runs.
fn write_all(output: &OutputArgs, reports: &[Report]) -> Result<(), Failure> {
    let text = match output.format {
        Format::Text => report::table(reports),
        Format::Json => serde_json::to_string_pretty(reports)? + "\n",
        Format::Csv => report::csv(reports)?,
    };
    write(output, &text)
}

/// Result of a search.
#[derive(Serialize)]
struct SearchResult<'a> {
    /// Limit for the 99th percentile of the response time.
    objective_p99_us: f64,
    /// Highest load that met the objective; null if none did.
    highest_pps: Option<f64>,
    /// Report of each tested load, in the order of the runs.
    runs: &'a [Report],
    /// True if the user stopped the search, so that a higher load may meet the objective.
    #[serde(skip)]
    was_stopped: bool,
}

/// Searches the highest load that meets the objective. An invalid run counts as a miss. A search that the user stops
/// reports the loads tested so far.
fn search(args: &SearchArgs) -> Result<bool, Failure> {
    let cores = args.network.core_count();
    let [low, high] = [args.low, args.high].map(|rate| args.load.load(rate, cores));
    let (low, high) = (low?, high?);
    if low.rate_pps >= high.rate_pps {
        return Err(format!("--low {} must be below --high {}", args.low, args.high).into());
    }
    low.self_test()?;
    check_writable(&args.output)?;
    let mut network = Network::open(&args.network)?;
    let mut reports: Vec<Report> = Vec::new();
    // Highest tested load that met the objective.
    let mut highest_met = None;
    let found = highest(low.rate_pps, high.rate_pps, args.steps, |rate_pps| {
        if network.stopped() {
            return Err(Failure::from("stopped"));
        }
        let load = args.load.load(Rate::Pps(rate_pps), cores)?;
        let report = network.offer(&load)?;
        let meets_objective =
            report.valid && report.undisturbed.response_us.p99 <= Micros(args.p99 * 1e6);
        log::info!(
            "{}: p99 {} us in undisturbed slices, {}",
            Rate::Pps(rate_pps),
            report.undisturbed.response_us.p99,
            if meets_objective { "met" } else { "not met" }
        );
        reports.push(report);
        if meets_objective {
            highest_met = Some(rate_pps);
        }
        Ok(meets_objective)
    });
    let was_stopped = network.stopped() && !reports.is_empty();
    let highest_pps = match found {
        Err(_) if was_stopped => highest_met,
        found => found?,
    };
    let objective_p99_us = args.p99 * 1e6;
    let result = SearchResult { objective_p99_us, highest_pps, runs: &reports, was_stopped };
    let text = match args.output.format {
        Format::Json => serde_json::to_string_pretty(&result)? + "\n",
        Format::Csv => report::csv(&reports)?,
        Format::Text => report::table(&reports) + &conclusion(&result),
    };
    write(&args.output, &text)?;
    Ok(highest_pps.is_some() && !was_stopped)
}

/// Returns the result of a search as text.
fn conclusion(result: &SearchResult<'_>) -> String {
    let objective = Micros(result.objective_p99_us);
    if result.was_stopped {
        let rate = |pps| Rate::Pps(pps).to_string();
        let highest = result.highest_pps.map_or_else(|| "none".to_owned(), rate);
        return format!("stopped; highest tested load with p99 <= {objective} us: {highest}\n");
    }
    match result.highest_pps {
        Some(pps) => format!("highest load with p99 <= {objective} us: {}\n", Rate::Pps(pps)),
        None => format!("no tested load has p99 <= {objective} us; lower --low or raise --p99\n"),
    }
}

/// Returns the highest load among `low`, `high` and `steps` bisections that meets the objective.
fn highest(
    low: f64,
    high: f64,
    steps: u32,
    mut meets: impl FnMut(f64) -> Result<bool, Failure>,
) -> Result<Option<f64>, Failure> {
    if !meets(low)? {
        return Ok(None);
    }
    if meets(high)? {
        return Ok(Some(high));
    }
    // `low` meets the objective and `high` misses it. Each step halves the range between them.
    let (mut low, mut high) = (low, high);
    for _ in 0..steps {
        let middle = (low + high) / 2.0;
        if meets(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(Some(low))
}

/// Checks the random streams and the pacing of a load.
fn self_test(args: &SelftestArgs) -> Result<bool, Failure> {
    let load = args.load.load(args.rate, args.cores)?;
    for seeds in load.seeds() {
        print_line(format_args!(
            "core {}: arrivals {:#018x}",
            seeds.arrivals.core, seeds.arrivals.seed
        ))?;
        print_line(format_args!(
            "core {}: service  {:#018x}",
            seeds.service.core, seeds.service.seed
        ))?;
    }
    let independence = load.self_test()?;
    print_line(format_args!(
        "streams independent: largest rank correlation of gaps and service times {:.4}, expected by chance up to {:.4}",
        independence.correlation_max, independence.limit
    ))?;
    let pacing = selftest::pacing(&load)?;
    print_line(format_args!("{pacing}"))?;
    Ok(pacing.is_exact())
}

/// Measures the floor: the latency of the generator alone, with immediate answers.
fn floor(args: &FloorArgs) -> Result<bool, Failure> {
    let load = args.load.load(args.rate, 1)?;
    load.self_test()?;
    let tally = network::floor(&load, &args.eal)?;
    let (ledger, floor) = (tally.measured, tally.response().summary());
    print_line(format_args!(
        "floor at {} tasks/s: adherence {:.3}%, sent {:.0} tasks/s, in us:",
        Rate::Pps(load.rate_pps),
        ledger.adherence() * 100.0,
        ledger.sent as f64 / tally.measured_s
    ))?;
    for key in ["p50", "p90", "p99", "p999", "p9999", "mean", "max"] {
        print_line(format_args!("  {key:<6}{:>10}", floor.named(key)))?;
    }
    Ok(ledger.adherence() >= report::ADHERENCE_MIN)
}

/// Checks that the report can be written. Called before a run, whose results would otherwise be lost.
fn check_writable(output: &OutputArgs) -> Result<(), Failure> {
    report_file(output).map(drop)
}

/// Returns the file of the report, if it is not standard output.
fn report_file(output: &OutputArgs) -> Result<Option<ReportFile<'_>>, Failure> {
    Ok(output.out.as_deref().map(|path| ReportFile::new("--out", path)).transpose()?)
}

/// Writes a report to its file or to standard output.
fn write(output: &OutputArgs, text: &str) -> Result<(), Failure> {
    match report_file(output)? {
        Some(file) => Ok(file.write(text)?),
        None => Ok(std::io::stdout().write_all(text.as_bytes())?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_converges_to_the_knee() {
        // Six bisections of a range of 800 leave an error of at most 12.5.
        let mut rates = Vec::new();
        let highest_rate = highest(100.0, 900.0, 6, |rate| {
            rates.push(rate);
            Ok(rate <= 640.0)
        });
        let highest_rate = highest_rate.unwrap().unwrap();
        assert!((627.5..=640.0).contains(&highest_rate), "{highest_rate}");
        assert_eq!(rates.len(), 8);
    }

    #[test]
    fn search_tries_its_ends_first() {
        assert_eq!(highest(1.0, 2.0, 6, |_| Ok(false)).unwrap(), None);
        assert_eq!(highest(1.0, 2.0, 6, |_| Ok(true)).unwrap(), Some(2.0));
    }

    #[test]
    fn stopped_search_names_the_highest_tested_load() {
        let result = |highest_pps| SearchResult {
            objective_p99_us: 100.0,
            highest_pps,
            runs: &[],
            was_stopped: true,
        };
        let text = conclusion(&result(Some(1e6)));
        assert!(text.starts_with("stopped; highest tested load"), "{text}");
        assert!(conclusion(&result(None)).ends_with(": none\n"));
    }

    #[test]
    fn unwritable_output_is_refused_before_the_run() {
        let folder = std::env::temp_dir();
        let output = |out| OutputArgs { format: Format::Text, out: Some(out) };
        let error = check_writable(&output(folder.clone())).unwrap_err().to_string();
        assert!(error.contains("--out") && error.contains(&*folder.to_string_lossy()), "{error}");
    }
}
