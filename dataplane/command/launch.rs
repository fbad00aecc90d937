//! Common parts of `wedjat leaf` and `wedjat agent`: their options, and the run from the start to the
//! account.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::logs::Logs;

/// Options of both commands.
#[derive(Debug, Args)]
pub struct Launch {
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Stop after this time, for example 5s or 500ms.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Write the account as JSON to this file at the end; `-` is standard output, and other lines then go to
    /// standard error.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Run in emulated time from the conductor that shares this file (wedjat-testbed lockstep)
    #[arg(long, value_name = "FILE")]
    clock: Option<PathBuf>,
    /// Wait this long for the server of a memif device with role client, for example 2m [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    patience: Option<Duration>,
    #[command(flatten)]
    pub logs: Logs,
    /// Arguments for EAL.
    #[arg(last = true, value_name = "EAL ARGUMENTS")]
    eal: Vec<String>,
}

#[cfg(feature = "dpdk")]
impl Launch {
    /// Runs `start` until a signal or the end of its duration. Reports the account and its balance. `options`
    /// holds the options of only one command.
    pub fn run<A: std::fmt::Display + serde::Serialize>(
        &self,
        options: wedjat::run::Options,
        start: impl FnOnce(
            &wedjat::run::Options,
            &std::sync::Arc<std::sync::atomic::AtomicBool>,
            &dyn Fn(&str),
        ) -> Result<A, wedjat::run::LaunchError>,
        is_balanced: impl FnOnce(&A) -> bool,
    ) -> super::Outcome {
        let report = super::report::Report::to(self.stats.as_deref())?;
        let options = wedjat::run::Options {
            duration: self.duration,
            eal: self.eal.clone(),
            clock: self.clock.clone(),
            patience: self.patience,
            reload: super::signals::reload_on_signal()?,
            ..options
        };
        let account = start(&options, &super::signals::stop_on_signals()?, &|text| {
            self.logs.rates(text, |text| report.print_line(text));
        })?;
        self.logs.account(account.to_string().trim_end(), |text| report.print_line(text));
        report.end(&account, is_balanced(&account))
    }
}
