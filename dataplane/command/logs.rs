//! Log of a running node, as text or JSON.

use std::borrow::Cow;
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
    /// Log only warnings, errors and the account at the end, ignore RUST_LOG, and print no line of rates per second
    #[arg(long)]
    pub quiet: bool,
}

/// Log target of a node's account at its end. `--quiet` does not suppress it.
pub const ACCOUNT: &str = "account";

/// Names of modules in the log, as the crate `wedjat` exports them, and their own names, as crates of the workspace.
/// Users see and filter by the first; log records have the second. The first match counts, so `wedjat` comes last.
const MODULES: [(&str, &str); 11] = [
    ("wedjat::admin", "wedjat_admin"),
    ("wedjat::assembly", "wedjat_assembly"),
    ("wedjat::command", "wedjat::command"),
    ("wedjat::config", "wedjat_desired::config"),
    ("wedjat::control", "wedjat_desired::control"),
    ("wedjat::controller", "wedjat_fabric"),
    ("wedjat::cosched", "wedjat_batch"),
    ("wedjat::doctor", "wedjat_node::doctor"),
    ("wedjat::io::dpdk", "wedjat_dpdk"),
    ("wedjat::run", "wedjat_node::run"),
    ("wedjat", "wedjat_core"),
];

/// Returns the path of a module with its head `from` replaced by `to`; `None` for another head.
fn moved(module: &str, from: &str, to: &str) -> Option<String> {
    let rest = module.strip_prefix(from)?;
    (rest.is_empty() || rest.starts_with("::")).then(|| format!("{to}{rest}"))
}

/// Returns the public name of a log target of the dataplane. Other targets stay unchanged.
fn public_target(target: &str) -> Cow<'_, str> {
    let named = MODULES.iter().find_map(|(public, own)| moved(target, own, public));
    named.map_or(Cow::Borrowed(target), Cow::Owned)
}

/// Converts filters in the form of RUST_LOG from public names of modules to their own names.
fn own_filters(filters: &str) -> String {
    let filters = filters.split(',').map(|filter| {
        // The name of a module ends at its level or at a pattern.
        let end = filter.find(['=', '/']).unwrap_or(filter.len());
        let (target, rest) = filter.split_at(end);
        // `wedjat` alone means all crates, whose names begin with it.
        let mut modules = MODULES.iter().filter(|_| target != "wedjat");
        let own = modules.find_map(|(public, own)| moved(target, public, own));
        own.unwrap_or_else(|| target.to_owned()) + rest
    });
    filters.collect::<Vec<_>>().join(",")
}

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
        let filters = std::env::var(env_logger::DEFAULT_FILTER_ENV);
        let mut log = env_logger::Builder::from_env(env_logger::Env::default());
        log.parse_filters(&filters.map_or_else(|_| "trace".to_owned(), |text| own_filters(&text)));
        if self.quiet {
            // A new builder has no filter of RUST_LOG.
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
    let record = Record {
        time,
        level,
        target: &public_target(record.target()),
        message: record.args().to_string(),
    };
    // Serializing strings cannot fail.
    serde_json::to_string(&record).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_have_their_public_names() {
        let cases = [
            ("wedjat_node::run::leaf", "wedjat::run::leaf"),
            ("wedjat_dpdk::eal", "wedjat::io::dpdk::eal"),
            ("wedjat_core::state::files", "wedjat::state::files"),
            ("wedjat_fabric", "wedjat::controller"),
            ("wedjat::command::ports", "wedjat::command::ports"),
        ];
        for (own, public) in cases {
            assert_eq!(public_target(own), public);
            assert_eq!(
                own_filters(&format!("warn,{public}=debug/x")),
                format!("warn,{own}=debug/x")
            );
        }
        assert_eq!(public_target("dpdk"), "dpdk");
        assert_eq!(own_filters("wedjat=debug,dpdk"), "wedjat=debug,dpdk");
    }

    // promise: control.3
    #[test]
    fn record_of_any_text_is_one_line() {
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
