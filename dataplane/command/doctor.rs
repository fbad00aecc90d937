//! `wedjat doctor`: checks this machine, and whether a planned start of a node would succeed.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use wedjat::config::{AgentConfig, Config, NodeConfig};
use wedjat::doctor::{self, Finding};

use super::{Outcome, print};

/// Help text below the options.
pub const EXAMPLE: &str = "Example:
  wedjat doctor --config leaf.toml -- --no-huge --no-pci
  wedjat doctor --config leaf.toml --probe
Exit status: 1 when a start would fail.";

/// Arguments of `wedjat doctor`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Configuration file of the planned start.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Also open the ports, as a start would, and print their properties. The node must not run.
    #[arg(long, requires = "config")]
    probe: bool,
    /// EAL arguments of the planned start.
    #[arg(last = true, value_name = "EAL ARGUMENTS")]
    eal: Vec<String>,
}

/// Prints the findings. Returns a failure's exit code if a start would fail.
pub fn run(arguments: &Arguments) -> Outcome {
    let findings = match arguments.config.as_deref() {
        None => {
            let request =
                doctor::Request { eal: arguments.eal.clone(), ..doctor::Request::default() };
            doctor::run(&request)
        }
        Some(path) if AgentConfig::is_agents(path) => {
            check(AgentConfig::load(path)?.node(), arguments, None)
        }
        Some(path) => {
            let config = Config::load(path)?;
            check(config.node(), arguments, Some(config.leaf.udp_port))
        }
    };
    print(&doctor::render(&findings))?;
    Ok(if doctor::would_fail(&findings) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Checks the planned start of a node, and opens its ports with `--probe`. `task_port` is the UDP port of tasks at a
/// leaf or spine, whose devices must steer each reply to the right core; `None` for an agent.
fn check(config: NodeConfig<'_>, arguments: &Arguments, task_port: Option<u16>) -> Vec<Finding> {
    let mut findings = doctor::run(&doctor::Request::of(&config, &arguments.eal));
    // A start that would fail needs no probe: the findings have the reason.
    if arguments.probe && !doctor::would_fail(&findings) {
        findings.extend(doctor::probe(config, &arguments.eal, task_port));
    }
    findings
}
