//! The `wedjat-pktgen` command.

mod args;
mod command;
#[cfg_attr(not(feature = "dpdk"), path = "offline.rs")]
mod network;
#[cfg(feature = "dpdk")]
mod progress;

use std::process::ExitCode;

use clap::Parser;

/// The run was made and is not to be believed, or the objective was not met.
const INVALID: u8 = 1;
/// The run could not be made; clap's code for a wrong command line as well.
const FAILED: u8 = 2;

fn main() -> ExitCode {
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
