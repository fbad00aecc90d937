//! `wedjat agent`.

use clap::Args;
use wedjat::config::AgentConfig;

use super::Outcome;
use super::launch::Launch;

/// Shown below its options.
pub const EXAMPLE: &str = "Example, behind a leaf on memif:
  wedjat agent --config agent.toml --stats - -- --no-huge --no-pci
Exit status: 0 after an orderly end with a balanced ledger, 1 otherwise.";

/// What `wedjat agent` is told.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    launch: Launch,
}

/// Runs it until it is told to stop.
#[cfg(not(feature = "dpdk"))]
pub fn run(arguments: &Arguments) -> Outcome {
    AgentConfig::load(&arguments.launch.config)?;
    Err(super::WITHOUT_PORTS.into())
}

/// Runs it until it is told to stop.
#[cfg(feature = "dpdk")]
pub fn run(arguments: &Arguments) -> Outcome {
    let config = AgentConfig::load(&arguments.launch.config)?;
    let start = |options: &_, stop: &_, report: &dyn Fn(&str)| {
        wedjat::run::agent::run(&config, options, stop, report)
    };
    arguments
        .launch
        .run(wedjat::run::Options::default(), start, |account| account.ledger.is_balanced())
}
