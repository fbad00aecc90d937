//! `wedjat doctor`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use wedjat::config::{AgentConfig, Config};
use wedjat::doctor;

use super::{Outcome, print};

/// Help text below the options.
pub const EXAMPLE: &str = "Example:
  wedjat doctor --config leaf.toml -- --no-huge --no-pci
Exit status: 1 when a start would fail.";

/// Arguments of `wedjat doctor`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Configuration file of the planned start.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// EAL arguments of the planned start.
    #[arg(last = true, value_name = "EAL ARGUMENTS")]
    eal: Vec<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    let eal = arguments.eal.as_slice();
    let request = match arguments.config.as_deref() {
        None => doctor::Request { eal: eal.to_vec(), ..doctor::Request::default() },
        Some(path) if AgentConfig::is_agents(path) => {
            doctor::Request::of(&AgentConfig::load(path)?.node(), eal)
        }
        Some(path) => doctor::Request::of(&Config::load(path)?.node(), eal),
    };
    let findings = doctor::run(&request);
    print(&doctor::render(&findings))?;
    Ok(if doctor::would_fail(&findings) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
