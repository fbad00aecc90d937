//! How a running node speaks: its log, a line a second, and its account, as text or as JSON.

use std::io::Write;

use clap::{Args, ValueEnum};
use serde::Serialize;

/// The form of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// An object for each record, with the keys time, level, target and message.
    Json,
}

/// What is logged, and how.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Logs {
    /// Form of the log on standard error; json has an object a line, among them the line a second and the account as text
    #[arg(long, value_enum, default_value = "text")]
    log_format: Format,
    /// Log warnings and errors only, whatever RUST_LOG says, and say nothing each second
    #[arg(long)]
    quiet: bool,
}

/// Target of the records of what a node did within a second.
#[cfg(feature = "dpdk")]
const RATES: &str = "rates";
/// Target of the records of a node's account at its end, which is not left out by `--quiet`.
const ACCOUNT: &str = "account";

#[derive(Serialize)]
struct Record<'a> {
    time: String,
    level: &'static str,
    target: &'a str,
    message: String,
}

impl Logs {
    /// Starts the log, which RUST_LOG filters; panics are in it, too, if it is JSON. Its level may be changed while a node runs, up
    /// to what RUST_LOG lets pass if it is set, or `--quiet`.
    pub fn start(self) {
        let mut log =
            env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("trace"));
        if self.quiet {
            log = env_logger::Builder::new();
            log.filter_level(log::LevelFilter::Warn).filter_module(ACCOUNT, log::LevelFilter::Info);
        }
        match self.log_format {
            Format::Text => drop(log.format_timestamp_millis().format_target(false)),
            Format::Json => {
                log.format(|out, record| {
                    let time = out.timestamp_millis().to_string();
                    writeln!(out, "{}", json(time, record))
                });
                std::panic::set_hook(Box::new(|panic| log::error!("{panic}")));
            }
        }
        log.init();
        if !self.quiet && std::env::var_os(env_logger::DEFAULT_FILTER_ENV).is_none() {
            log::set_max_level(log::LevelFilter::Info);
        }
    }

    /// Says why a command failed.
    pub fn fail(self, error: &dyn std::error::Error) {
        match self.log_format {
            Format::Text => eprintln!("wedjat: {error}"),
            Format::Json => log::error!("{error}"),
        }
    }

    /// Says what the node did within a second; `print` does as text.
    #[cfg(feature = "dpdk")]
    pub fn rates(self, text: &str, print: impl FnOnce(&str)) {
        match self.log_format {
            _ if self.quiet => {}
            Format::Text => print(text),
            Format::Json => log::info!(target: RATES, "{text}"),
        }
    }

    /// Says the account.
    #[cfg(feature = "dpdk")]
    pub fn account(self, text: &str, print: impl FnOnce(&str)) {
        match self.log_format {
            Format::Text => print(text),
            Format::Json => log::info!(target: ACCOUNT, "{text}"),
        }
    }
}

fn json(time: String, record: &log::Record<'_>) -> String {
    let level = match record.level() {
        log::Level::Error => "error",
        log::Level::Warn => "warn",
        log::Level::Info => "info",
        log::Level::Debug => "debug",
        log::Level::Trace => "trace",
    };
    let record =
        Record { time, level, target: record.target(), message: record.args().to_string() };
    // Strings can't fail.
    serde_json::to_string(&record).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_whatever_it_says() {
        let said = |record: &log::Record<'_>| json("2026-01-02T03:04:05.678Z".to_owned(), record);
        let line = said(
            &log::Record::builder()
                .level(log::Level::Warn)
                .target("dpdk")
                .args(format_args!("two\nlines of \"{}\" \u{1b}[31m", 7))
                .build(),
        );
        let expected = r#"{"time":"2026-01-02T03:04:05.678Z","level":"warn","target":"dpdk","message":"two\nlines of \"7\" \u001b[31m"}"#;
        assert_eq!(line, expected);
    }
}
