//! `wedjat doctor`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use wedjat::config::{AgentConfig, Config};
use wedjat::doctor;

use super::{Outcome, print};

/// Shown below its options.
pub const EXAMPLE: &str = "Example:
  wedjat doctor --config leaf.toml -- --no-huge --no-pci
Exit status: 1 when a start would fail.";

/// What `wedjat doctor` is told.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The configuration that is to be started.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The arguments for EAL that are to be used.
    #[arg(last = true, value_name = "EAL ARGUMENTS")]
    eal: Vec<String>,
}

/// Does it.
pub fn run(arguments: &Arguments) -> Outcome {
    let eal = arguments.eal.as_slice();
    let request = match arguments.config.as_deref() {
        None => doctor::Request { eal: eal.to_vec(), ..doctor::Request::default() },
        Some(path) if AgentConfig::is_agents(path) => {
            doctor::Request::of_agent(&AgentConfig::load(path)?, eal)
        }
        Some(path) => doctor::Request::of(&Config::load(path)?, eal),
    };
    let findings = doctor::run(&request);
    print(&doctor::render(&findings))?;
    Ok(if doctor::would_fail(&findings) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
