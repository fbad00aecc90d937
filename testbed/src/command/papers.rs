//! `wedjat-testbed papers`: simulation of systems of papers with the papers' settings. Prints the ratio of each claim
//! of a paper beside that of the simulation.

use clap::Args;
use wedjat_testbed::sim::papers;

use super::{Failure, Format};

/// End of the `--help` text.
pub const EXAMPLE: &str = "Example:
  wedjat-testbed papers --system netclone --tasks 100000
  wedjat-testbed papers --seed 2 --format json
Exit status: 0, or 2 if an option is invalid. A ratio that differs from its paper is no error.";

/// Arguments of `papers`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Only this system, as in netclone or prequal [default: all]
    #[arg(long, value_name = "NAME")]
    system: Option<String>,
    /// Number of tasks of each run
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    tasks: u64,
    /// Seed of all runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Output format; json has one object for each claim
    #[arg(long, default_value = "text")]
    format: Format,
}

/// Simulates and prints the claims. Returns true: no result is invalid.
pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let Arguments { system, tasks, seed, format } = arguments;
    let json = matches!(format, Format::Json);
    papers::report(system.as_deref(), *tasks, *seed, json, &mut std::io::stdout().lock())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::command::{Cli, Command};

    /// Runs the command with these arguments and returns its error.
    fn error(line: &[&str]) -> String {
        let line = ["wedjat-testbed", "papers"].iter().chain(line);
        let cli = match Cli::try_parse_from(line) {
            Ok(cli) => cli,
            Err(error) => return error.to_string(),
        };
        let Command::Papers(arguments) = cli.command else { panic!() };
        run(&arguments).unwrap_err().to_string()
    }

    #[test]
    fn impossible_experiment_is_named() {
        for (line, named) in [
            (["--system", "mesos"], "--system mesos"),
            (["--tasks", "7"], "--tasks 7"),
            (["--tasks", "many"], "many"),
            (["--seed", "-1"], "-1"),
        ] {
            let error = error(&line);
            assert!(error.contains(named), "{named}: {error}");
        }
    }
}
