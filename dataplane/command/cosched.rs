//! `wedjat cosched`: batch jobs on the idle time of worker cores, and replay of their decision logs.
//!
//! A chooser draws the batch's share of the cores from the advice of *experts*, computes a loss from the tasks' times
//! that follow, and learns which experts to trust. Its *mode* is the rule by which it learns. A log has each decision
//! and its outcome, so a replay repeats the learning, in the same mode or another one.

mod job;

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use wedjat_cosched::{Mode, Overrides, Setup, replay};

use self::job::{Run, Status};
use super::logs::Format;
use super::{Outcome, print};

/// Help text below the options of `wedjat cosched replay`.
pub const EXAMPLE: &str = "Example:
  wedjat cosched replay decisions.jsonl --mode iw --format json
Exit status: 0, or 1 when the file is not a log, or contradicts its own mode.";

/// Arguments of `wedjat cosched`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a batch command on the idle time of an agent's worker cores, in a cgroup of its own.
    #[command(after_help = job::EXAMPLE)]
    Run(Box<Run>),
    /// Run a batch job of an agent's file; the agent calls this itself.
    #[command(hide = true)]
    Job {
        /// File of the agent.
        config: PathBuf,
        /// Index of the job in the file, from 0.
        number: usize,
    },
    /// Show running and waiting batch jobs, and remove what killed ones left.
    #[command(after_help = "Example:\n  wedjat cosched status --json")]
    Status(Status),
    /// End a batch job.
    #[command(after_help = "Example:\n  wedjat cosched cancel 4711")]
    Cancel {
        /// Number of the job, as `wedjat cosched status` shows it.
        job: u32,
    },
    /// Replay a log of decisions: weights after each round, shares, losses, excess risk and its bound.
    #[command(after_help = EXAMPLE)]
    Replay(Replay),
    /// Check a file of experts without using it.
    #[command(after_help = "Example:\n  wedjat cosched check experts.toml")]
    Check {
        /// File of experts.
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Replay {
    /// Log: one line of JSON per decision and per outcome.
    log: PathBuf,
    /// Learn in this mode instead of the logged one: paper, iw or balanced.
    #[arg(long)]
    mode: Option<Mode>,
    /// Distribute this fraction of all weight evenly after each round.
    #[arg(long, value_name = "PART")]
    fixed_share: Option<f64>,
    /// In mode balanced, weight of the batch's dissatisfaction in the loss.
    #[arg(long)]
    lambda: Option<f64>,
    /// Use the experts of this file instead of the log's.
    #[arg(long, value_name = "FILE")]
    experts: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    match &arguments.command {
        Command::Run(arguments) => job::batch(arguments),
        Command::Job { config, number } => job::configured(config, *number),
        Command::Status(arguments) => job::status(arguments),
        Command::Cancel { job } => job::cancel(*job),
        Command::Replay(replay) => {
            let (text, agrees) = replay.report()?;
            print(&text)?;
            Ok(if agrees { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Check { file } => {
            let setup = Setup::load(file)?;
            let names: Vec<_> = setup.experts.iter().map(|expert| expert.name.as_str()).collect();
            let (mode, names) = (setup.settings.mode.name(), names.join(", "));
            print(&format!("{}: right: mode {mode}, experts {names}\n", file.display()))
        }
    }
}

impl Replay {
    /// Replays the log. Returns the output, and false if a replay with the log's own settings differs from it.
    fn report(&self) -> Result<(String, bool), Box<dyn std::error::Error>> {
        let path = self.log.display();
        let experts = match &self.experts {
            Some(file) => Some(Setup::load(file)?.experts),
            None => None,
        };
        let Self { mode, fixed_share, lambda, .. } = *self;
        let overrides = Overrides { mode, fixed_share, lambda, experts };
        let file = File::open(&self.log).map_err(|error| format!("{path}: {error}"))?;
        let replayed =
            replay(BufReader::new(file), &overrides).map_err(|error| format!("{path}: {error}"))?;
        let text = match self.format {
            Format::Text => replayed.summary(),
            Format::Json => format!("{}\n", serde_json::to_string(&replayed)?),
        };
        Ok((text, replayed.agrees()))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;
    use serde_json::Value;
    use wedjat_cosched::{Chooser, LoggingChooser, Outcome, Progress, Settings, Share, State};

    use super::*;
    use crate::command;

    /// Writes a log of `decisions` decisions. Each delays tasks in proportion to the batch's share.
    fn write_log(path: &Path, decisions: u64) {
        let settings = Settings { mode: Mode::Paper, ..Settings::default() };
        let chooser = Chooser::new(settings, Setup::built_in().experts).unwrap();
        let mut logged = LoggingChooser::new(chooser, File::create(path).unwrap()).unwrap();
        let progress = Progress { wall: 100.0, elapsed: 10.0, rate: 1.0, remaining: 80.0 };
        let state = State { cpu: 0.6, memory: 0.4, stage: 0.5, interval: 0.1, progress };
        for round in 0..decisions {
            let share = logged.decide(round, &state, Share::MOST).unwrap();
            let observed = 1.0 + share.part();
            logged
                .learn(round, &Outcome { expected: 1.0, observed, batch: Some(progress) })
                .unwrap();
        }
        logged.into_log().unwrap();
    }

    /// Returns the report for these arguments of `wedjat cosched replay`.
    fn report(line: &[&str]) -> Result<(String, bool), String> {
        let line = ["wedjat", "cosched", "replay"].iter().chain(line);
        let parsed = command::Arguments::try_parse_from(line).map_err(|error| error.to_string())?;
        let command::Command::Cosched(Arguments { command: Command::Replay(replay) }) =
            parsed.command
        else {
            panic!()
        };
        replay.report().map_err(|error| error.to_string())
    }

    // promise: batch.1
    #[test]
    fn log_replays_under_each_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        write_log(&path, 500);
        let log = path.to_str().unwrap();
        let (text, agrees) = report(&[log]).unwrap();
        assert!(agrees && text.starts_with("mode paper: 500 decisions"), "{text}");
        for mode in ["paper", "iw", "balanced"] {
            let (text, agrees) = report(&[log, "--mode", mode, "--format", "json"]).unwrap();
            let report: Value = serde_json::from_str(&text).unwrap();
            assert!(agrees);
            // Only a replay in the log's own mode is compared with the log.
            assert_eq!(report["difference"].is_number(), mode == "paper");
            let round = &report["rounds"][0];
            // The experts' weights.
            let sum: f64 =
                round["alpha"].as_array().unwrap().iter().filter_map(Value::as_f64).sum();
            assert!((sum - 1.0).abs() < 1e-12);
            let steps = round["actions"].as_array().unwrap().len();
            assert!(steps > 0 && steps == round["losses"].as_array().unwrap().len());
            assert!(round["excess_risk"].is_number() && round["bound"].is_number());
        }
    }

    // promise: batch.1
    #[test]
    fn invalid_and_altered_logs_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        write_log(&path, 100);
        let log = path.to_str().unwrap();
        assert!(report(&["/nowhere/log"]).unwrap_err().contains("/nowhere/log"));
        assert!(report(&[log, "--mode", "asax"]).unwrap_err().contains("paper, iw and balanced"));
        assert!(
            report(&[log, "--mode", "iw", "--fixed-share", "2"])
                .unwrap_err()
                .contains("fixed-share")
        );
        assert!(
            report(&[log, "--experts", "/nowhere/experts"])
                .unwrap_err()
                .contains("/nowhere/experts")
        );
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"loss\":0.", "\"loss\":0.1")).unwrap();
        let (text, agrees) = report(&[log]).unwrap();
        assert!(!agrees && text.contains("differs from the log"), "{text}");
        std::fs::write(&path, "a line\n").unwrap();
        assert!(report(&[log]).unwrap_err().contains("line 1"));
    }
}
