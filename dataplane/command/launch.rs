//! What `wedjat leaf` and `wedjat agent` have in common: their options, and the way from a start to an account.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::logs::Logs;

/// Options of both.
#[derive(Debug, Args)]
pub struct Launch {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
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
    #[command(flatten)]
    pub logs: Logs,
    /// Arguments for EAL.
    #[arg(last = true, value_name = "EAL ARGUMENTS")]
    eal: Vec<String>,
}

#[cfg(feature = "dpdk")]
impl Launch {
    /// Runs `start` until it is told to stop, and tells its account and whether it balances.
    /// `options` has those of one of them alone.
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
            self.logs.rates(text, |text| report.say(text));
        })?;
        self.logs.account(account.to_string().trim_end(), |text| report.say(text));
        report.end(&account, is_balanced(&account))
    }
}
