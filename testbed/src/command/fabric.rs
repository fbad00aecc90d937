//! `wedjat-testbed fabric`: a whole fabric (spines, leaves, agents and controllers) in emulated time, under
//! failures. Spines distribute tasks over leaves, leaves over the worker hosts of their rack, and the agents of these
//! hosts over worker cores. Controllers store the desired state of all of them.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;
use wedjat::policy::PolicySpec;
use wedjat::state::files::ReportFile;
use wedjat_pktgen::process;
use wedjat_pktgen::results::{ResultArgs, Results};
use wedjat_testbed::demo::fabric::controllers::has_etcd;
use wedjat_testbed::demo::fabric::{self, RealControllers, Report, Setting, page};
use wedjat_testbed::demo::leaf;

use super::{Failure, Format};

/// End of the `--help` text.
pub const EXAMPLE: &str = "Example:\n  wedjat-testbed fabric --report fabric-report --format json";

/// Controller processes beside the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Controllers {
    /// Over etcd if it is installed, else one with a file
    Any,
    /// Two, over an etcd cluster of three members
    Etcd,
    /// One, with a file
    File,
    /// None: the same decisions in this process
    None,
}

/// Arguments of `fabric`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Write `index.html` and `fabric.json` to this folder
    #[arg(long, value_name = "FOLDER")]
    report: Option<PathBuf>,
    /// Controllers to run beside it, in real time
    #[arg(long, value_enum, default_value = "any")]
    controllers: Controllers,
    /// Policy of the spines, over racks
    #[arg(long, default_value = "horus-spine-weighted")]
    spine_policy: PolicySpec,
    /// Policy of the leaves
    #[arg(long, default_value = "horus")]
    policy: PolicySpec,
    /// Service times
    #[arg(long, default_value = "exp(1ms)")]
    service: String,
    /// Load as a fraction of the workers' capacity
    #[arg(long, default_value_t = 0.5)]
    load: f64,
    /// Seed of all random streams
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    #[command(flatten)]
    results: ResultArgs,
    /// Command of the controllers [default: `wedjat` beside this one, or in PATH]
    #[arg(long, value_name = "FILE")]
    wedjat: Option<PathBuf>,
}

/// Runs the fabric. Returns false if a recovery exceeds its bound, an event has no effect on tasks, an invariant is
/// violated, or a task is lost that no event may lose.
pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
    // Suppresses each node's messages about the changes it receives.
    if std::env::var_os("RUST_LOG").is_none() {
        log::set_max_level(log::LevelFilter::Warn);
    }
    if let Some(folder) = &arguments.report {
        fs::create_dir_all(folder)
            .map_err(|error| format!("--report {}: {error}", folder.display()))?;
    }
    // Controller processes, which run in real time beside the fabric and store the same commands.
    let real = match arguments.controllers {
        Controllers::Etcd if !has_etcd() => {
            return Err("--controllers etcd: etcd is not installed; install etcd-server, or give --controllers file".into());
        }
        Controllers::Any if has_etcd() => RealControllers::Etcd,
        Controllers::Etcd => RealControllers::Etcd,
        Controllers::Any | Controllers::File => RealControllers::File,
        Controllers::None => RealControllers::None,
    };
    let wedjat = match &arguments.wedjat {
        Some(file) => Some(file.clone()),
        None if real == RealControllers::None => None,
        None => Some(leaf::find()?),
    };
    let setting = Setting {
        spine: arguments.spine_policy.clone(),
        leaf: arguments.policy.clone(),
        service: arguments.service.clone(),
        load: arguments.load,
        seed: arguments.seed,
        real,
        wedjat,
    };
    let results = Results::open(&arguments.results)?;
    let report = fabric::run(&setting, &*process::stop_on_signals()?)?;
    if let Some(mut results) = results {
        let policy = arguments.policy.to_string();
        let tasks = report.outcome.run_tasks("fabric", policy, arguments.load, arguments.seed);
        results.add(tasks, report.holds())?;
        results.finish("wedjat-testbed fabric")?;
    }
    for violation in &report.outcome.violations {
        log::error!(
            "VIOLATED at {} ns: {}: {}",
            violation.at_ns,
            violation.node,
            violation.description
        );
    }
    let written = arguments.report.as_deref().map(|folder| write(folder, &report)).transpose()?;
    match arguments.format {
        Format::Json => wedjat_pktgen::report::print_line(as_json(&report)?)?,
        Format::Text => {
            print!(
                "{}\n{}{}",
                report.summary,
                fabric::table(&report.rows),
                written.unwrap_or_default()
            );
        }
    }
    Ok(report.holds())
}

/// Formats the report as JSON, for the standard output and for `fabric.json`.
fn as_json(report: &Report) -> Result<String, Failure> {
    let outcome = &report.outcome;
    let json = json!({
        "rows": report.rows,
        "summary": report.summary,
        "tasks": outcome.tasks,
        "answered": outcome.answered,
        "refused": outcome.refused,
        "lost": outcome.lost,
        "digest": outcome.digest,
        "violations": outcome.violations.len(),
        "holds": report.holds(),
    });
    Ok(serde_json::to_string_pretty(&json)?)
}

/// Writes the report. Returns a list of the written files.
fn write(folder: &Path, report: &Report) -> Result<String, Failure> {
    let mut written = String::new();
    for (name, text) in
        [("fabric.json", as_json(report)? + "\n"), ("index.html", page::page(report)?)]
    {
        let file = folder.join(name);
        ReportFile::new("--report", &file)?.write(text)?;
        written += &format!("wrote {}\n", file.display());
    }
    Ok(written)
}
