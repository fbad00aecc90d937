//! `wedjat-testbed agent`: an agent with its workers in one process, which run a real workload and send their
//! replies themselves. An agent is the process of a worker host that receives tasks and gives them to worker cores. Its
//! account is the report of packets and tasks at its end.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use wedjat::config::AgentConfig;
use wedjat::role::agent::Request;
use wedjat::state::files::ReportFile;
use wedjat_pktgen::process;
use wedjat_pktgen::report::print_line;
use wedjat_testbed::app::App;

use super::ports::{self, AgentOptions, Threads, run_with};
use super::{Failure, seconds, worker};

/// Text below the help.
pub const EXAMPLE: &str = "Example:
  wedjat-testbed agent --config agent.toml --app spin --cpus 2,3 -- --no-pci
All workers of the configuration run in this process, one thread each; none attaches. Exit status: 0 after an orderly end with a
balanced ledger, 1 otherwise.";

/// Command line of `agent`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Configuration file of the agent
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    run: worker::AppArguments,
    /// CPUs of the workers, assigned in turn [default: the kernel decides]
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Time that an idle worker spins before it sleeps
    #[arg(long, default_value = "50us", value_parser = seconds)]
    spin: f64,
    /// Write the account as JSON to this file at the end; `-` is standard output
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Apply the changes in this file while running, one per line, as they arrive; `-` is standard input
    /// (docs/howto/change-a-running-node.md)
    #[arg(long, value_name = "FILE")]
    changes: Option<PathBuf>,
    /// Stop after this time [default: on SIGINT or SIGTERM]
    #[arg(long, value_parser = seconds)]
    duration: Option<f64>,
    /// Longest wait for the server of a memif device with role client [default: 10s]
    #[arg(long, alias = "patience", value_parser = seconds)]
    peer_timeout: Option<f64>,
    /// EAL arguments
    #[arg(last = true)]
    eal: Vec<String>,
}

/// Serves until a stop signal, at most for `--duration`, and reports the account. Returns true if the ledger balances:
/// received packets equal the sum of those sent on, consumed, dropped and held.
pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
    ports::check()?;
    let config = AgentConfig::load(&arguments.config)?;
    // Opened before the run, so that an invalid path is reported at once.
    let stats = arguments.stats.as_deref().filter(|path| *path != "-");
    let stats = stats.map(|path| ReportFile::new("--stats", path)).transpose()?;
    let stop = process::stop_on_signals()?;
    // The app may use a temporary folder, which must exist until the end.
    let (app, _folder) = worker::app(&arguments.run)?;
    // Each worker thread gets its own copy of the app.
    let work = |_| {
        let app = app.clone();
        move |request: &Request<'_>, reply: &mut [u8]| {
            // The yield point does nothing: a task runs to its end.
            Some(app.serve(request.payload, reply, &|| {}))
        }
    };
    let spin = Duration::from_secs_f64(arguments.spin);
    let threads = Threads { cpus: arguments.cpus.clone(), spin, work };
    let duration = arguments.duration.map(Duration::from_secs_f64);
    let peer_timeout = arguments.peer_timeout.map(Duration::from_secs_f64);
    let (eal, changes) = (arguments.eal.clone(), arguments.changes.clone());
    let options = AgentOptions { duration, peer_timeout, eal, changes, ..AgentOptions::default() };
    let account = run_with(&config, &options, threads, &stop, |line| log::info!("{line}"))?;
    let json = serde_json::to_string_pretty(&account)?;
    match stats {
        None if arguments.stats.is_some() => print_line(json)?,
        None => print_line(account.to_string().trim_end())?,
        Some(file) => {
            file.write(json)?;
            print_line(account.to_string().trim_end())?;
        }
    }
    Ok(account.ledger.is_balanced())
}
