//! The `wedjat` command.

mod command;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
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
