//! Run of a leaf, spine or agent on the ports of DPDK, from the start to the account (the fate of each packet, and the
//! counters).

mod report;

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use signal_hook::consts::SIGHUP;
use wedjat::config::{AgentConfig, Config};
use wedjat::cosched::{JobQueue, NotesFolder};
use wedjat::run::{LaunchError, Options};
use wedjat_cosched::mechanism::FolderFunctions;

use super::Outcome;
use super::launch::Launch;
use super::signals::stop_on_signals;
use report::Report;

/// Runs a leaf or spine until a signal or the end of its duration. `pcap` names the files that record all packets, and
/// `changes` the file with changes to apply while the node runs.
pub fn run_scheduler(
    config: &Config,
    launch: &Launch,
    pcap: Option<PathBuf>,
    changes: Option<PathBuf>,
) -> Outcome {
    let run_node = |options: &_, stop: &_, print_rates: &dyn Fn(&str)| {
        wedjat::run::leaf::run(config, options, stop, print_rates)
    };
    let options = Options { pcap, changes, ..Default::default() };
    run(launch, options, run_node, |account| account.is_balanced())
}

/// Runs an agent until a signal or the end of its duration. `changes` names the file with changes to apply meanwhile.
pub fn run_agent(config: &AgentConfig, launch: &Launch, changes: Option<PathBuf>) -> Outcome {
    // A killed batch job leaves processes and cgroups behind. Its note lists them, so that this process removes them.
    if let Some(Err(error)) =
        NotesFolder::existing().map(|folder| folder.clean(FolderFunctions::REAL))
    {
        log::warn!("cannot clean up after killed batch jobs: {error}");
    }
    // Batch jobs of the configuration use the CPU time that tasks leave. They run one after another, each as a process
    // of this executable. At the end of this function, the drop of the queue ends the running job.
    let _jobs = match config.jobs.len() {
        0 => None,
        jobs => Some(JobQueue::start(
            std::env::current_exe()?,
            config.path.clone(),
            &config.host.name,
            jobs,
        )?),
    };
    let run_node = |options: &_, stop: &_, print_rates: &dyn Fn(&str)| {
        wedjat::run::agent::run(config, options, stop, print_rates)
    };
    let options = Options { changes, ..Default::default() };
    run(launch, options, run_node, |account| account.ledger.is_balanced())
}

/// Calls `run_node`, which returns the account after a signal or the end of its duration. Reports the account. The exit
/// code is a failure unless it balances. `launch` has the options of all commands, `options` those of some.
fn run<A: Display + Serialize>(
    launch: &Launch,
    options: Options,
    run_node: impl FnOnce(&Options, &Arc<AtomicBool>, &dyn Fn(&str)) -> Result<A, LaunchError>,
    is_balanced: impl FnOnce(&A) -> bool,
) -> Outcome {
    let report = Report::to(launch.stats.as_deref(), launch.logs)?;
    let options = Options {
        duration: launch.duration,
        eal: launch.eal.clone(),
        clock: launch.clock.clone(),
        peer_timeout: launch.peer_timeout,
        reload: reload_on_signal()?,
        ..options
    };
    let account = run_node(&options, &stop_on_signals()?, &|text| report.rates(text))?;
    report.account(account.to_string().trim_end());
    report.end(&account, is_balanced(&account))
}

/// Returns a flag that SIGHUP sets to make the node reload its configuration. It stays unset if the process was started
/// with SIGHUP ignored, as under nohup.
fn reload_on_signal() -> io::Result<Arc<AtomicBool>> {
    let reload = Arc::default();
    if !is_ignored(SIGHUP) {
        signal_hook::flag::register(SIGHUP, Arc::clone(&reload))?;
    }
    Ok(reload)
}

/// Returns true if the process was started with this signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    // A hexadecimal mask of the ignored signals; bit 0 is signal 1.
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
