//! `wedjat leaf`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use wedjat::config::Config;

use super::Outcome;

/// Shown below its options.
pub const EXAMPLE: &str = "Example, with two virtual devices and no hugepages:
  wedjat leaf --config leaf.toml --duration 5s --stats - -- \\
      --no-huge --no-pci --vdev=net_memif0,role=server,id=0,socket=wedjat-clients \\
      --vdev=net_memif1,role=server,id=1,socket=wedjat-workers
Exit status: 0 after an orderly end with a balanced ledger, 1 otherwise.";

/// What `wedjat leaf` is told.
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
    /// Record all packets, for looking into a problem: writes FILE.port0.core0.pcap and so on. Slow.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Run on emulated time: that of the conductor which shares this file (wedjat-testbed lockstep)
    #[arg(long, value_name = "FILE")]
    clock: Option<PathBuf>,
    /// Wait so long for the server of a memif device of role client, as in 2m [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    patience: Option<Duration>,
    /// Arguments for EAL.
    #[arg(last = true, value_name = "EAL ARGUMENTS")]
    eal: Vec<String>,
}

/// Runs it until it is told to stop.
#[cfg(not(feature = "dpdk"))]
pub fn run(arguments: &Arguments) -> Outcome {
    Config::load(&arguments.config)?;
    Err(super::WITHOUT_PORTS.into())
}

/// Runs it until it is told to stop.
#[cfg(feature = "dpdk")]
pub fn run(arguments: &Arguments) -> Outcome {
    use wedjat::run::{Options, leaf};

    use super::report::Report;
    use super::signals::stop_on_signals;

    let config = Config::load(&arguments.config)?;
    let report = Report::to(arguments.stats.as_deref())?;
    let options = Options {
        duration: arguments.duration,
        eal: arguments.eal.clone(),
        pcap: arguments.pcap.clone(),
        clock: arguments.clock.clone(),
        patience: arguments.patience,
    };
    let account = leaf::run(&config, &options, &stop_on_signals()?, |text| report.say(text))?;
    report.say(account.to_string().trim_end());
    report.end(&account, account.is_balanced())
}
