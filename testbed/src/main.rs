//! The `wedjat-testbed` command: simulator, demo, workers and comparisons. Exits with 0 if the result is valid.

mod command;

use std::process::ExitCode;

use clap::Parser;

/// Exit code of a run whose result is invalid or violates a limit.
const INVALID: u8 = 1;
/// Exit code of a run that could not be made. clap uses it for a wrong command line too.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    // Messages and reports name this build.
    wedjat::identify();
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
