//! Output of a running leaf, spine or agent: its lines of rates, and its account, which is the report at the end of a
//! run.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use wedjat::state::files::ReportFile;

use super::super::logs::{ACCOUNT, Format, Logs};
use super::super::{Outcome, print};

/// Log target of a node's rates per second.
const RATES: &str = "rates";

/// Destination of a run's lines and account.
pub struct Report<'a> {
    /// File of the account; `None` for standard output and for no JSON.
    file: Option<ReportFile<'a>>,
    /// True if the account goes to standard output.
    to_stdout: bool,
    /// Options of the log: a JSON log has the lines, and `--quiet` suppresses those of rates.
    logs: Logs,
}

impl<'a> Report<'a> {
    /// Creates a report whose JSON goes to a file, to standard output for `-`, or nowhere. Fails if the file cannot be
    /// written.
    pub fn to(file: Option<&'a Path>, logs: Logs) -> Result<Self, Box<dyn Error>> {
        let to_stdout = file == Some(Path::new("-"));
        let file = file.filter(|_| !to_stdout);
        // A bad path must fail before the run, not after it.
        let file = file.map(|path| ReportFile::new("--stats", path)).transpose()?;
        Ok(Self { file, to_stdout, logs })
    }

    /// Prints a node's rates in one second, or logs them in JSON. Does nothing with `--quiet`.
    pub fn rates(&self, text: &str) {
        match self.logs.log_format {
            _ if self.logs.quiet => {}
            Format::Text => self.print_line(text),
            Format::Json => log::info!(target: RATES, "{text}"),
        }
    }

    /// Prints the account as text, or logs it in JSON; also with `--quiet`.
    pub fn account(&self, text: &str) {
        match self.logs.log_format {
            Format::Text => self.print_line(text),
            Format::Json => log::info!(target: ACCOUNT, "{text}"),
        }
    }

    /// Prints a line to standard output; to standard error if standard output gets the account, which is pure JSON.
    fn print_line(&self, text: &str) {
        if self.to_stdout {
            eprintln!("{text}");
        } else {
            let _ = print(&format!("{text}\n"));
        }
    }

    /// Writes the account as JSON to the destination of `--stats`. Returns a failure's exit code unless the account is
    /// `balanced`: it has the fate of every packet.
    pub fn end(&self, account: &impl serde::Serialize, balanced: bool) -> Outcome {
        let json = serde_json::to_string_pretty(account)?;
        match self.file {
            Some(file) => file.write(json)?,
            None if self.to_stdout => drop(print(&format!("{json}\n"))?),
            None => {}
        }
        Ok(if balanced { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
