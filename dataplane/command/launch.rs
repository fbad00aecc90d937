//! Common options of `wedjat leaf`, `wedjat spine` and `wedjat agent`. EAL is DPDK's environment layer.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::logs::Logs;

/// Options of all three commands.
#[derive(Debug, Args)]
pub struct Launch {
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Stop after this time, for example 5s or 500ms.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,
    /// Write the account as JSON to this file at the end; `-` is standard output, and other lines then go to
    /// standard error.
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Run in emulated time from the conductor that shares this file (wedjat-testbed lockstep)
    #[arg(long, value_name = "FILE")]
    pub clock: Option<PathBuf>,
    /// Wait this long for the server of a memif device with role client, for example 2m [default: 10s]
    #[arg(long, alias = "patience", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub peer_timeout: Option<Duration>,
    #[command(flatten)]
    pub logs: Logs,
    /// Arguments for EAL.
    #[arg(last = true, value_name = "EAL ARGUMENTS")]
    pub eal: Vec<String>,
}
