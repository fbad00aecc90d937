//! The `wedjat-pktgen` command.
#![cfg_attr(not(feature = "dpdk"), allow(dead_code, reason = "only a network reads its arguments"))]

mod args;
mod command;
mod failure;
#[cfg_attr(not(feature = "dpdk"), path = "offline.rs")]
mod network;

use std::process::ExitCode;

use clap::Parser;

/// Exit status of a command whose result is invalid or missing, or misses its objective.
const INVALID: u8 = 1;
/// Exit status of a command that failed. Equals clap's status for a wrong command line.
const FAILED: u8 = 2;

/// Runs the command of the arguments. Its result selects the exit status.
fn main() -> ExitCode {
    // The page of results shows the version.
    wedjat::identify();
    let log = env_logger::Env::default().default_filter_or("info");
    env_logger::Builder::from_env(log).format_timestamp(None).format_target(false).init();
    match command::execute(args::Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(INVALID),
        Err(error) => {
            eprintln!("wedjat-pktgen: {error}");
            ExitCode::from(FAILED)
        }
    }
}
