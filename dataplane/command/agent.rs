//! `wedjat agent`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use wedjat::config::AgentConfig;

use super::Outcome;

/// Shown below its options.
pub const EXAMPLE: &str = "Example, behind a leaf on memif:
  wedjat agent --config agent.toml --stats - -- --no-huge --no-pci
Exit status: 0 after an orderly end with a balanced ledger, 1 otherwise.";

/// What `wedjat agent` is told.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Stop by itself after this time, as in 5s or 500ms.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Write the account as JSON to this file at the end; `-` is standard output, and lines then go
    /// to standard error.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Run on emulated time: that of the conductor which shares this file (wedjat-testbed lockstep)
    #[arg(long, value_name = "FILE")]
    clock: Option<PathBuf>,
    /// Wait so long for the server of a memif device of role client, as in 2m [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    patience: Option<Duration>,
    /// Arguments of EAL.
    #[arg(last = true, value_name = "EAL ARGUMENTS")]
    eal: Vec<String>,
}

/// Runs it until it is told to stop.
#[cfg(not(feature = "dpdk"))]
pub fn run(arguments: &Arguments) -> Outcome {
    AgentConfig::load(&arguments.config)?;
    Err(super::WITHOUT_PORTS.into())
}

/// Runs it until it is told to stop.
#[cfg(feature = "dpdk")]
pub fn run(arguments: &Arguments) -> Outcome {
    use wedjat::run::{Options, agent};

    use super::report::Report;
    use super::signals::stop_on_signals;

    let config = AgentConfig::load(&arguments.config)?;
    let report = Report::to(arguments.stats.as_deref())?;
    let options = Options {
        duration: arguments.duration,
        eal: arguments.eal.clone(),
        pcap: None,
        clock: arguments.clock.clone(),
        patience: arguments.patience,
    };
    let account = agent::run(&config, &options, &stop_on_signals()?, |text| report.say(text))?;
    report.say(account.to_string().trim_end());
    report.end(&account, account.ledger.is_balanced())
}
