//! `wedjat-testbed cosched-sim`: simulation of the evaluation in ASA_X's paper (arXiv 2401.09706), in which jobs of a
//! cluster learn to share their cores with other jobs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use wedjat_cosched::Setup;
use wedjat_cosched::cluster::{Arm, ClusterReport, Contention, Experiment, tables};

use super::{Failure, Format};

/// End of the `--help` text.
pub const EXAMPLE: &str = "Example:
  wedjat-testbed cosched-sim --cores 64,128,256 --format json
  wedjat-testbed cosched-sim --cores 64 --arms asax-paper --seeds 1 --log logs
  wedjat cosched replay logs/64-asax-paper-1-blast.jsonl --mode iw";

/// Arguments of `cosched-sim`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Sizes of the cluster in cores
    #[arg(long, value_delimiter = ',', default_value = "64,128,256")]
    cores: Vec<u32>,
    /// Ways of sharing: slurm, static, idle, asax-paper, asax-printed, asax-iw, asax-balanced
    #[arg(long, value_delimiter = ',', default_values_t = Arm::ALL.map(Arm::name).map(str::to_owned))]
    arms: Vec<String>,
    /// Number of seeds; each is a different order of the jobs
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Use the decision trees of this file, by which the asax arms choose shares, instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    experts: Option<PathBuf>,
    /// Relative slow-down of a parallel stage next to a job that keeps all cores busy
    #[arg(long, default_value_t = Contention::default().caches)]
    caches: f64,
    /// Relative slow-down per unit of memory demand beyond the total memory
    #[arg(long, default_value_t = Contention::default().paging)]
    paging: f64,
    /// Exponent of a parallel stage's speed over its fraction of the wanted cores: 1 is proportional; larger
    /// values model threads that wait for each other
    #[arg(long, default_value_t = Contention::default().barriers)]
    barriers: f64,
    /// Seconds before a job that refused to share its cores is asked again
    #[arg(long, default_value_t = 60.0)]
    refusal: f64,
    /// Write the learners' logs to this folder, for `wedjat cosched replay`
    #[arg(long, value_name = "FOLDER")]
    log: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// JSON output: the arguments of these names, and a row for each size and arm. The rows do not contain these arguments.
#[derive(Serialize)]
struct Report {
    seeds: u64,
    caches: f64,
    paging: f64,
    barriers: f64,
    refusal: f64,
    rows: Vec<ClusterReport>,
}

/// Simulates and prints the results. Returns true: no result is invalid.
pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let text = report(arguments)?;
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(true)
}

/// Runs an experiment for each size, arm and seed. Returns the output. Separate from `run` for the tests.
fn report(arguments: &Arguments) -> Result<String, Failure> {
    let setup = match &arguments.experts {
        Some(file) => Setup::load(file)?,
        None => Setup::built_in(),
    };
    let Arguments { seeds, caches, paging, barriers, refusal, .. } = *arguments;
    let arms =
        arguments.arms.iter().map(|name| name.parse::<Arm>()).collect::<Result<Vec<_>, _>>()?;
    if let Some(folder) = &arguments.log {
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let mut rows = Vec::new();
    for cores in &arguments.cores {
        for arm in &arms {
            let runs = (1..=seeds).map(|seed| {
                let contention = Contention { caches, paging, barriers };
                let experts = setup.trees();
                let experiment =
                    Experiment { cores: *cores, arm: *arm, experts, contention, refusal, seed };
                run_one(&experiment, arguments)
            });
            rows.extend(ClusterReport::of(runs.collect::<Result<_, _>>()?));
        }
    }
    Ok(match arguments.format {
        Format::Text => tables(&rows),
        Format::Json => {
            let report = Report { seeds, caches, paging, barriers, refusal, rows };
            format!("{}\n", serde_json::to_string(&report)?)
        }
    })
}

/// Runs one experiment. With `--log`, each workflow's learner writes its log to a file there. A file that
/// cannot be created fails the experiment at its end.
fn run_one(
    experiment: &Experiment,
    arguments: &Arguments,
) -> Result<wedjat_cosched::cluster::RunResults, Failure> {
    let Some(folder) = &arguments.log else { return Ok(experiment.run(&mut |_| None)?) };
    let mut log_error = None;
    let results = experiment.run(&mut |workflow| {
        let Experiment { cores, arm, seed, .. } = experiment;
        let name = format!("{cores}-{}-{seed}-{}.jsonl", arm.name(), workflow.name());
        let path = folder.join(name);
        match File::create(&path) {
            Ok(file) => Some(Box::new(BufWriter::new(file))),
            Err(error) => {
                log_error = Some(format!("{}: {error}", path.display()));
                None
            }
        }
    })?;
    match log_error {
        Some(log_error) => Err(log_error.into()),
        None => Ok(results),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;
    use wedjat_cosched::{Overrides, replay};

    use super::*;
    use crate::command::{Cli, Command};

    /// Runs the command with these arguments and returns its output or its error.
    fn reported(line: &[&str]) -> Result<String, String> {
        let line = ["wedjat-testbed", "cosched-sim"].iter().chain(line);
        let cli = Cli::try_parse_from(line).map_err(|error| error.to_string())?;
        let Command::CoschedSim(arguments) = cli.command else { panic!() };
        report(&arguments).map_err(|error| error.to_string())
    }

    // promise: measurement.4
    #[test]
    fn each_arm_has_rows_and_replayable_logs() {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("logs");
        let line = ["--cores", "64,128", "--arms", "slurm,static,asax-paper", "--seeds", "2"];
        let text =
            reported(&[&line[..], &["--format", "json", "--log", logs.to_str().unwrap()]].concat());
        let report: Value = serde_json::from_str(&text.unwrap()).unwrap();
        let rows = report["rows"].as_array().unwrap();
        // Two sizes and three arms.
        assert_eq!(rows.len(), 6);
        for row in rows {
            for key in ["waiting_h", "response_h", "makespan_h", "core_use", "overhead"] {
                assert!(row[key]["mean"].is_number(), "{key}");
            }
            assert_eq!(row["runs"][0]["workflows"].as_array().unwrap().len(), 4);
        }
        // Only `asax-paper` learns: two sizes, two seeds, four workflows.
        assert_eq!(std::fs::read_dir(&logs).unwrap().count(), 2 * 2 * 4);
        let log = std::fs::read(logs.join("64-asax-paper-1-blast.jsonl")).unwrap();
        assert!(replay(log.as_slice(), &Overrides::default()).unwrap().agrees());
        let table = reported(&line).unwrap();
        assert!(table.contains("asax-paper") && table.contains("montage"), "{table}");
    }

    #[test]
    fn impossible_simulation_is_named() {
        for (line, named) in [
            (["--cores", "32"], "32 cores are too few"),
            (["--arms", "mesos"], "arms are slurm"),
            (["--barriers", "0"], "barriers is 0"),
            (["--seeds", "0"], "seeds"),
            (["--experts", "/nowhere/experts"], "/nowhere/experts"),
            (["--log", "/dev/null/logs"], "/dev/null/logs"),
        ] {
            let error = reported(&line).unwrap_err();
            assert!(error.contains(named), "{named}: {error}");
        }
    }
}
