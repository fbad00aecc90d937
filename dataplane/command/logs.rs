//! Log of a running node, as text or JSON.

use std::io::Write;

use clap::{Args, ValueEnum};
use serde::Serialize;

/// Format of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people.
    #[default]
    Text,
    /// One object per record, with the keys time, level, target and message.
    Json,
}

/// Options of the log.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Logs {
    /// Format of the log on standard error; json writes one object per line, also for the line of rates per
    /// second and for the account as text
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: Format,
    /// Log only warnings and errors, ignore RUST_LOG, and print no line of rates per second
    #[arg(long)]
    pub quiet: bool,
}

/// Log target of a node's account at its end. `--quiet` does not suppress it.
pub const ACCOUNT: &str = "account";

/// Record of a JSON log.
#[derive(Serialize)]
struct Record<'a> {
    time: String,
    level: &'static str,
    target: &'a str,
    message: String,
}

impl Logs {
    /// Starts the log with the filter of RUST_LOG. A JSON log also contains panics. The level may change at
    /// run time, up to that of RUST_LOG or `--quiet`. Without both, the filter passes everything, and the level
    /// begins at info.
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

    /// Reports the error of a failed command.
    pub fn fail(self, error: &dyn std::error::Error) {
        match self.log_format {
            Format::Text => eprintln!("wedjat: {error}"),
            Format::Json => log::error!("{error}"),
        }
    }
}

/// Formats a record as JSON.
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
    // Serializing strings cannot fail.
    serde_json::to_string(&record).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: control.3
    #[test]
    fn a_record_is_one_line_whatever_it_says() {
        let line_of =
            |record: &log::Record<'_>| json("2026-01-02T03:04:05.678Z".to_owned(), record);
        let line = line_of(
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
