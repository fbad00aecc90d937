//! `wedjat-testbed histories`: controllers under faults, and a check that their answers are linearizable. A
//! history lists all requests of clients with their answers, and all messages to followers (nodes that
//! receive the desired state).

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use wedjat_pktgen::process;
use wedjat_testbed::demo::fabric::controllers::has_etcd;
use wedjat_testbed::demo::leaf;
use wedjat_testbed::histories::check::{self, Violation};
use wedjat_testbed::histories::cluster::{Store, enter_namespaces};
use wedjat_testbed::histories::nemesis::ClusterFault;
use wedjat_testbed::histories::record::History;
use wedjat_testbed::histories::{self, Report, Setting};

use super::{Failure, Format};

/// End of the `--help` text.
pub const EXAMPLE: &str = "Example:\n  wedjat-testbed histories --store etcd --faults kill,pause,cut --seconds 60 --seed 7";
/// Maximum number of violations in text output. `--format json` prints all.
const SHOWN_MAX: usize = 8;

/// Arguments of `histories`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Store of the controllers
    #[arg(long, value_enum, default_value = "etcd")]
    store: Store,
    /// Faults: kill, pause, cut, one-way, unplug, member, restart, full; or all, or none
    #[arg(long, default_value = "all")]
    faults: String,
    /// Length of the run
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    seconds: u64,
    /// Seed of the faults and of the clients
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Lease of a leader
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..=60))]
    lease: u64,
    /// Number of clients
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Number of leaves that follow
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    followers: u16,
    /// Write `history.jsonl` and the logs of the processes to this folder; without it, only after a
    /// violation, to histories-STORE-SEED
    #[arg(long, value_name = "FOLDER")]
    report: Option<PathBuf>,
    /// Check this history again instead of recording one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["store", "faults", "seconds", "seed", "report"])]
    check: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Command of the controllers [default: `wedjat` beside this one, or in PATH]
    #[arg(long, value_name = "FILE")]
    wedjat: Option<PathBuf>,
    /// The process already has its own namespaces
    #[arg(long, hide = true)]
    in_namespaces: bool,
}

/// Records a history and checks it, or checks only the one of `--check`. Returns false if it has a violation.
pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
    if let Some(file) = &arguments.check {
        return check_file(file);
    }
    let faults = faults(arguments)?;
    if arguments.store == Store::Etcd && !has_etcd() {
        return Err(
            "--store etcd: etcd is not installed; install etcd-server, or give --store file".into(),
        );
    }
    // Faults such as cut links need a network of the run's own. The call replaces this process by the same
    // command in new namespaces, and returns only on an error.
    if !arguments.in_namespaces {
        let own_arguments = std::env::args_os().skip(1).chain(["--in-namespaces".into()]);
        return Err(enter_namespaces(own_arguments).into());
    }
    let wedjat = match &arguments.wedjat {
        Some(file) => file.clone(),
        None => leaf::find()?,
    };
    // The run copies the processes' logs there.
    let scratch = tempfile::tempdir()?;
    let setting = Setting {
        store: arguments.store,
        faults,
        time: Duration::from_secs(arguments.seconds),
        seed: arguments.seed,
        lease: Duration::from_secs(arguments.lease),
        clients: arguments.clients,
        followers: arguments.followers,
        wedjat,
        logs: Some(scratch.path().to_owned()),
    };
    let report = histories::run(&setting, &*process::stop_on_signals()?)?;
    let is_valid = report.violations.is_empty();
    let name = format!("histories-{}-{}", arguments.store.name(), arguments.seed);
    let folder = arguments.report.clone().or((!is_valid).then(|| PathBuf::from(name)));
    if let Some(folder) = &folder {
        write(folder, &report, scratch.path())?;
    }
    match arguments.format {
        Format::Json => println!("{}", serde_json::to_string_pretty(&as_json(&report))?),
        Format::Text => print!("{}", as_text(&report)),
    }
    if let Some(folder) = folder.filter(|_| arguments.format == Format::Text) {
        println!("wrote {}", folder.join("history.jsonl").display());
    }
    if !is_valid {
        eprintln!(
            "repeat with: wedjat-testbed histories --store {} --faults {} --seconds {} --seed {} --lease {} --clients {} \
             --followers {}; the seed does not determine the leader at a fault, so try several times",
            arguments.store.name(),
            arguments.faults,
            arguments.seconds,
            arguments.seed,
            arguments.lease,
            arguments.clients,
            arguments.followers
        );
    }
    Ok(is_valid)
}

/// Parses the kinds of faults on the command line; `all` are those that the store allows, `none` is an empty list.
fn faults(arguments: &Arguments) -> Result<Vec<ClusterFault>, Failure> {
    let store = arguments.store;
    match arguments.faults.as_str() {
        "none" => Ok(Vec::new()),
        "all" => Ok(ClusterFault::ALL.into_iter().filter(|fault| fault.fits(store)).collect()),
        list => list
            .split(',')
            .map(|name| {
                let fault: ClusterFault =
                    name.trim().parse().map_err(|reason| format!("--faults: {reason}"))?;
                if !fault.fits(store) {
                    let reason = format!(
                        "--faults: {name} is not a fault for --store {}; omit it",
                        store.name()
                    );
                    return Err(reason.into());
                }
                Ok(fault)
            })
            .collect(),
    }
}

/// Checks a recorded history again and prints the result as text, whatever `--format` says. Returns false if it has a
/// violation.
fn check_file(file: &Path) -> Result<bool, Failure> {
    let describe = |error| format!("--check {}: {error}", file.display());
    let history = File::open(file).and_then(|opened| History::read(BufReader::new(opened)));
    let history = history.map_err(describe)?;
    let violations = check::check(&history);
    let (operations, updates) = (history.operations.len(), history.updates.len());
    println!("{operations} operations, {updates} messages to followers");
    print!("{}", as_sentences(&violations));
    Ok(violations.is_empty())
}

/// Formats the first [`SHOWN_MAX`] violations as text.
fn as_sentences(violations: &[Violation]) -> String {
    let shown = violations.iter().take(SHOWN_MAX);
    let mut text: String = shown.map(|violation| format!("VIOLATED: {violation}\n")).collect();
    if violations.len() > SHOWN_MAX {
        text += &format!("and {} more violations\n", violations.len() - SHOWN_MAX);
    }
    if violations.is_empty() {
        text += "no violation\n";
    }
    text
}

/// Formats the report as text: the injected faults, counts, the longest interval without an answer of a leader, and the
/// violations.
fn as_text(report: &Report) -> String {
    let mut text = String::new();
    for injection in &report.injected {
        text += &format!("{injection}\n");
    }
    let list = |counts: std::collections::BTreeMap<&str, usize>| {
        let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
        if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
    };
    text += &format!("operations: {}\n", list(report.outcomes()));
    text += &format!("messages to followers: {}\n", report.history.updates.len());
    text += &format!("faults: {}\n", list(report.faults()));
    let (gap, end) = report.longest_gap;
    let (gap, end) = (gap.as_secs_f64(), end.as_secs_f64());
    text += &format!("longest time without a leader: {gap:.1} s, ended at {end:.1} s\n");
    if let Some(recovered) = report.recovered {
        text += &format!("first change after the faults: after {:.1} s\n", recovered.as_secs_f64());
    }
    text += &format!("checked in {:.1} s\n", report.checked_in.as_secs_f64());
    text + &as_sentences(&report.violations)
}

/// Formats the report as JSON, with all violations.
fn as_json(report: &Report) -> serde_json::Value {
    let violations = report.violations.iter().map(|violation| {
        json!({ "rule": format!("{:?}", violation.rule), "at_ns": violation.at_ns, "what": violation.description,
            "lines": violation.lines })
    });
    let injected = report.injected.iter().map(ToString::to_string);
    json!({
        "operations": report.outcomes(),
        "updates": report.history.updates.len(),
        "faults": report.faults(),
        "injected": injected.collect::<Vec<_>>(),
        "longest_without_leader_s": report.longest_gap.0.as_secs_f64(),
        "recovered_s": report.recovered.map(|time| time.as_secs_f64()),
        "violations": violations.collect::<Vec<_>>(),
    })
}

/// Writes the history to `folder` and copies the processes' logs from the temporary folder `logs`.
fn write(folder: &Path, report: &Report, logs: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)?;
    let file = folder.join("history.jsonl");
    let describe = |error| format!("{}: {error}", file.display());
    let result =
        File::create(&file).and_then(|opened| report.history.write(&mut BufWriter::new(opened)));
    result.map_err(describe)?;
    for log in std::fs::read_dir(logs)? {
        let log = log?;
        std::fs::copy(log.path(), folder.join(log.file_name()))?;
    }
    Ok(())
}
