//! The `wedjat` command: parses the arguments, starts the log, and runs the subcommand.

mod command;

use std::process::ExitCode;

use clap::Parser;

/// Runs the subcommand of the arguments and returns its exit code. Starts the log before the subcommand, so that the
/// log has the subcommand's error.
fn main() -> ExitCode {
    wedjat::identify();
    let arguments = command::Arguments::parse();
    let logs = arguments.logs();
    logs.start();
    match command::run(arguments) {
        Ok(code) => code,
        Err(error) => {
            logs.fail(error.as_ref());
            ExitCode::FAILURE
        }
    }
}
