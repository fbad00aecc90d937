//! The `wedjat` command.

mod command;

use std::process::ExitCode;

use clap::Parser;

/// Runs the command of the arguments. Starts the log before the command, so that the log has the command's error.
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
