//! `wedjat agent`.

use std::path::PathBuf;

use clap::Args;
use wedjat::config::AgentConfig;
#[cfg(feature = "dpdk")]
use wedjat::cosched::{Folder, Queue};
#[cfg(feature = "dpdk")]
use wedjat_cosched::mechanism::System;

use super::Outcome;
use super::launch::Launch;

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
#[cfg(not(feature = "dpdk"))]
pub fn run(arguments: &Arguments) -> Outcome {
    AgentConfig::load(&arguments.launch.config)?;
    Err(super::WITHOUT_PORTS.into())
}

/// Runs the agent until a signal or the end of its duration.
#[cfg(feature = "dpdk")]
pub fn run(arguments: &Arguments) -> Outcome {
    let config = AgentConfig::load(&arguments.launch.config)?;
    // A killed agent may have left batch jobs.
    if let Some(Err(error)) = Folder::existing().map(|folder| folder.clean(System::REAL)) {
        log::warn!("cannot clean up after killed batch jobs: {error}");
    }
    let _jobs = match config.jobs.len() {
        0 => None,
        jobs => Some(Queue::start(
            std::env::current_exe()?,
            config.path.clone(),
            &config.host.name,
            jobs,
        )?),
    };
    let start = |options: &_, stop: &_, report: &dyn Fn(&str)| {
        wedjat::run::agent::run(&config, options, stop, report)
    };
    let changes = arguments.changes.clone();
    let options = wedjat::run::Options { changes, ..Default::default() };
    arguments.launch.run(options, start, |account| account.ledger.is_balanced())
}
