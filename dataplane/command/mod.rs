//! Command line of `wedjat`: one file per subcommand with its arguments and code, files of shared parts, and the list
//! of subcommands here. The comments of the arguments are the help texts. `main` parses [`Arguments`] and calls
//! [`run`].

mod advise;
mod agent;
mod check;
mod controller;
mod cosched;
mod ctl;
mod doctor;
mod explain;
mod launch;
mod leaf;
mod logs;
mod manual;
mod node;
mod policies;
#[cfg_attr(not(feature = "dpdk"), path = "no_ports.rs")]
mod ports;
mod signals;
mod spine;
mod state;
mod top;

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Software leaf scheduler for microsecond tasks, on DPDK.
#[derive(Debug, Parser)]
#[command(name = "wedjat", version = wedjat::VERSION)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a leaf scheduler until SIGINT, SIGTERM or the end of its duration.
    #[command(after_help = leaf::EXAMPLE)]
    Leaf(leaf::Arguments),
    /// Run a spine scheduler, which sends tasks to leaves, until SIGINT, SIGTERM or the end of its duration.
    #[command(after_help = spine::EXAMPLE)]
    Spine(leaf::Arguments),
    /// Run a host's agent, which hands tasks to worker processes, until SIGINT, SIGTERM or the end of its
    /// duration.
    #[command(after_help = agent::EXAMPLE)]
    Agent(agent::Arguments),
    /// Run the controller of a fabric until SIGINT or SIGTERM.
    #[command(after_help = controller::EXAMPLE)]
    Controller(controller::Arguments),
    /// Run, watch and end batch jobs beside worker cores, and replay logs of their decisions.
    #[command(after_help = cosched::EXAMPLE)]
    Cosched(cosched::Arguments),
    /// Check a configuration without running it.
    #[command(after_help = check::EXAMPLE)]
    Check(check::Arguments),
    /// Check this machine: libraries, drivers, hugepages, permissions, cores, ports.
    #[command(after_help = doctor::EXAMPLE)]
    Doctor(doctor::Arguments),
    /// Print the shared state of a running or ended leaf or agent.
    #[command(after_help = state::EXAMPLE)]
    State(state::Arguments),
    /// Change and watch a running leaf or agent, or a fabric.
    #[command(after_help = ctl::EXAMPLE)]
    Ctl(Box<ctl::Arguments>),
    /// Explain the path of packets through a running leaf, spine or agent, or of a capture's packets.
    #[command(after_help = explain::EXAMPLE)]
    Explain(explain::Arguments),
    /// Measure a pool of a running leaf or agent, simulate it under all policies, and recommend one.
    #[command(after_help = advise::EXAMPLE)]
    Advise(Box<advise::Arguments>),
    /// Watch a running leaf or agent: rates, cores, pools, drops, and the worst workers.
    #[command(after_help = top::EXAMPLE)]
    Top(top::Arguments),
    /// List the scheduling policies.
    #[command(after_help = policies::EXAMPLE)]
    Policies,
    /// Print the completions of this command for a shell.
    #[command(after_help = COMPLETIONS_EXAMPLE)]
    Completions {
        /// Name of the shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a folder; for the installation.
    #[command(hide = true)]
    Man {
        /// Folder for the commands' pages.
        folder: PathBuf,
        /// File for the page of the configuration file.
        #[arg(long)]
        configuration: Option<PathBuf>,
    },
}

/// Help text below the options of `completions`.
const COMPLETIONS_EXAMPLE: &str = "Example:
  wedjat completions bash > ~/.local/share/bash-completion/completions/wedjat";

impl Arguments {
    /// Returns the options of the log, which `main` starts before the command; the defaults for commands without them.
    pub fn logs(&self) -> logs::Logs {
        match &self.command {
            Command::Leaf(arguments) | Command::Spine(arguments) => arguments.launch.logs,
            Command::Agent(arguments) => arguments.launch.logs,
            Command::Controller(arguments) => arguments.logs,
            _ => logs::Logs::default(),
        }
    }
}

/// Exit code of a command, or the error that it reports.
type Outcome = Result<ExitCode, Box<dyn Error>>;

/// Executes the subcommand.
pub fn run(arguments: Arguments) -> Outcome {
    match arguments.command {
        Command::Leaf(arguments) => leaf::run(&arguments),
        Command::Spine(arguments) => spine::run(&arguments),
        Command::Agent(arguments) => agent::run(&arguments),
        Command::Controller(arguments) => controller::run(&arguments),
        Command::Cosched(arguments) => cosched::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::State(arguments) => state::run(&arguments),
        Command::Ctl(arguments) => ctl::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Advise(arguments) => advise::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Policies => policies::run(),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "wedjat", &mut text);
            print(&String::from_utf8(text)?)
        }
        Command::Man { folder, configuration } => {
            manual::write(&folder)?;
            if let Some(path) = configuration {
                std::fs::write(path, manual::configuration())?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Writes to standard output. A reader that has closed it, such as `head`, is no error.
fn print(text: &str) -> Outcome {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

#[cfg(test)]
#[path = "../../tests/tables/commands.rs"]
mod commands;

#[cfg(test)]
mod tests {
    use super::*;

    // promise: control.2
    #[test]
    fn documented_commands_are_those_of_the_program() {
        // Compares the section `wedjat` of docs/reference/commands.md with the definitions above.
        let detail = commands::Detail::Options;
        commands::assert_documented("\n## wedjat\n", &Arguments::command(), detail);
    }
}
