//! `wedjat leaf`: runs the scheduler of a rack. A spine runs the same code in another role.

use std::path::PathBuf;

use clap::Args;
use wedjat::config::Config;
use wedjat::state::table::Role;

use super::launch::Launch;
use super::{Outcome, ports};

/// Help text below the options.
pub const EXAMPLE: &str = "Example, with two virtual devices and no hugepages:
  wedjat leaf --config leaf.toml --duration 5s --stats - -- \\
      --no-huge --no-pci --vdev=net_memif0,role=server,id=0,socket=wedjat-clients \\
      --vdev=net_memif1,role=server,id=1,socket=wedjat-workers
Exit status: 0 after an orderly end with a balanced ledger, 1 otherwise.";

/// Arguments of `wedjat leaf`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    pub launch: Launch,
    /// Record all packets for debugging: writes FILE.port0.core0.pcap and so on. Slow.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Apply the changes in this file while the leaf runs, one per line, as they arrive; `-` is standard
    /// input (docs/howto/change-a-running-node.md)
    #[arg(long, value_name = "FILE")]
    changes: Option<PathBuf>,
}

/// Runs the leaf until a signal or the end of its duration.
pub fn run(arguments: &Arguments) -> Outcome {
    start(arguments, Role::Leaf)
}

/// Runs a node of this role. Fails for a configuration file of another role.
pub(super) fn start(arguments: &Arguments, role: Role) -> Outcome {
    let config = Config::load(&arguments.launch.config)?.of(role)?;
    let (pcap, changes) = (arguments.pcap.clone(), arguments.changes.clone());
    ports::run_scheduler(&config, &arguments.launch, pcap, changes)
}
