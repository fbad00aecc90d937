//! The `wedjat` command.

mod command;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = command::Arguments::parse();
    // The level may be changed while a node runs, up to what RUST_LOG lets pass if it is set.
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("trace"))
        .format_timestamp_millis()
        .format_target(false)
        .init();
    if std::env::var_os(env_logger::DEFAULT_FILTER_ENV).is_none() {
        log::set_max_level(log::LevelFilter::Info);
    }
    match command::run(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("wedjat: {error}");
            ExitCode::FAILURE
        }
    }
}
