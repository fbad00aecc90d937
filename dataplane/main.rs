//! The `wedjat` command.

mod command;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = command::Arguments::parse();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info"))
        .format_timestamp_millis()
        .format_target(false)
        .init();
    match command::run(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("wedjat: {error}");
            ExitCode::FAILURE
        }
    }
}
