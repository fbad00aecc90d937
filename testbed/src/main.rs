//! The `wedjat-testbed` command.

mod command;

use std::process::ExitCode;

use clap::Parser;

/// The run was made and is not to be believed.
const INVALID: u8 = 1;
/// The run could not be made; clap's code for a wrong command line as well.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    let log = env_logger::Env::default().default_filter_or("info");
    env_logger::Builder::from_env(log).format_timestamp(None).format_target(false).init();
    match command::execute(command::Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(INVALID),
        Err(error) => {
            eprintln!("wedjat-testbed: {error}");
            ExitCode::from(FAILED)
        }
    }
}
