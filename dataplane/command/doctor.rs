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
    let mut request = doctor::Request { eal: arguments.eal.clone(), ..doctor::Request::default() };
    let agents = arguments.config.as_deref().filter(|path| AgentConfig::is_agents(path));
    if let Some(path) = agents {
        let config = AgentConfig::load(path)?;
        request.cores = vec![config.core];
        request.devices = config.ports.iter().map(|port| port.device.clone()).collect();
        request.state = config.state;
        request.state_group = config.state_group;
    } else if let Some(path) = &arguments.config {
        let config = Config::load(path)?;
        request.cores = config.leaf.cores.clone();
        request.devices = config.ports.iter().map(|port| port.device.clone()).collect();
        request.warnings = config.warnings();
        request.state = config.leaf.state;
        request.state_group = config.leaf.state_group;
    }
    let findings = doctor::run(&request);
    print(&doctor::render(&findings))?;
    Ok(if doctor::would_fail(&findings) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
