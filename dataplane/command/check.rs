//! `wedjat check`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use wedjat::config::{AgentConfig, Config, ControllerConfig, StoreConfig};
use wedjat::quantity;
use wedjat::state::table::Role;

use super::{Outcome, print};

/// Help text below the options.
pub const EXAMPLE: &str = "Example:
  wedjat check --config leaf.toml
Exit status: 0 when it is right, also with warnings, 1 otherwise, with every fault's file, line and key.";

/// Arguments of `wedjat check`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    if AgentConfig::is_agents(&arguments.config) {
        return check_agent(&arguments.config);
    }
    if ControllerConfig::is_controllers(&arguments.config) {
        return check_controller(&arguments.config);
    }
    let config = Config::load(&arguments.config)?;
    for warning in config.warnings() {
        print(&format!("warning: {warning}\n"))?;
    }
    if config.role == Role::Spine {
        return check_spine(&config);
    }
    let workers: usize = config.servers.iter().map(|server| server.workers.len()).sum();
    let local_agent = config.agent.as_ref().map_or_else(String::new, |agent| {
        let workers = quantity(agent.places().len(), "worker");
        format!(", and agent {} with {workers}", agent.name)
    });
    print(&format!(
        "{}: right: leaf {} with {}, {}, {}, {} on {}{local_agent}\n",
        arguments.config.display(),
        config.leaf.id,
        quantity(config.ports.len(), "port"),
        quantity(config.pools.len(), "pool"),
        quantity(config.servers.len(), "server"),
        quantity(workers, "worker"),
        quantity(config.leaf.cores.len(), "core"),
    ))
}

/// Prints a summary of a spine's file.
fn check_spine(config: &Config) -> Outcome {
    let leaves: BTreeSet<_> = config.servers.iter().map(|leaf| leaf.ip).collect();
    let workers: f64 = config.servers.iter().map(|leaf| leaf.speed).sum();
    print(&format!(
        "{}: right: spine {} with {}, {}, {}, {} on {}\n",
        config.path.display(),
        config.leaf.id,
        quantity(config.ports.len(), "port"),
        quantity(config.pools.len(), "pool"),
        if leaves.len() == 1 { "1 leaf".to_owned() } else { format!("{} leaves", leaves.len()) },
        quantity(workers, "worker"),
        quantity(config.leaf.cores.len(), "core"),
    ))
}

/// Prints a summary of a controller's file.
fn check_controller(path: &Path) -> Outcome {
    let config = ControllerConfig::load(path)?;
    let store = match &config.store {
        StoreConfig::File(file) => format!("file {}", file.display()),
        StoreConfig::Etcd { members, .. } => format!("etcd at {}", members.join(", ")),
    };
    print(&format!("{}: right: controller {}, whose store is {store}\n", path.display(), config.id))
}

/// Prints the warnings and a summary of an agent's file.
fn check_agent(path: &Path) -> Outcome {
    let config = AgentConfig::load(path)?;
    for warning in config.warnings() {
        print(&format!("warning: {warning}\n"))?;
    }
    let workers = config.host.places().len();
    let peers = config.peers.as_ref().map_or_else(String::new, |peers| {
        format!(
            ", node {} of {} without a leaf under {}",
            peers.own,
            peers.nodes.len(),
            peers.policy
        )
    });
    print(&format!(
        "{}: right: agent {} with {}, {}, {} on CPU {}{peers}\n",
        path.display(),
        config.host.name,
        quantity(config.ports.len(), "port"),
        quantity(config.host.pools.len(), "pool"),
        quantity(workers, "worker"),
        config.core,
    ))
}
