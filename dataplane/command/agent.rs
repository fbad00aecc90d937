//! `wedjat agent`: runs the agent of a worker host, which hands tasks to worker processes.

use std::path::PathBuf;

use clap::Args;
use wedjat::config::AgentConfig;

use super::launch::Launch;
use super::{Outcome, ports};

/// Help text below the options.
pub const EXAMPLE: &str = "Example, behind a leaf on memif:
  wedjat agent --config agent.toml --stats - -- --no-huge --no-pci
Exit status: 0 after an orderly end with a balanced ledger, 1 otherwise.";

/// Arguments of `wedjat agent`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    pub launch: Launch,
    /// Apply the changes in this file while the agent runs, one per line, as they arrive; `-` is standard
    /// input (docs/howto/change-a-running-node.md)
    #[arg(long, value_name = "FILE")]
    changes: Option<PathBuf>,
}

/// Runs the agent until a signal or the end of its duration.
pub fn run(arguments: &Arguments) -> Outcome {
    let config = AgentConfig::load(&arguments.launch.config)?;
    ports::run_agent(&config, &arguments.launch, arguments.changes.clone())
}
