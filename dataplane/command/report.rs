//! Output of a running leaf or agent: its lines and its account.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use wedjat::state::files::ReportFile;

use super::{Outcome, print};

/// Destination of a run's lines and account.
pub struct Report<'a> {
    file: Option<ReportFile<'a>>,
    to_stdout: bool,
}

impl<'a> Report<'a> {
    /// Creates a report to a file, `-` for standard output, or nowhere.
    pub fn to(file: Option<&'a Path>) -> Result<Self, Box<dyn Error>> {
        let to_stdout = file == Some(Path::new("-"));
        let file = file.filter(|_| !to_stdout);
        // A bad path must fail before the run, not after it.
        let file = file.map(|path| ReportFile::new("--stats", path)).transpose()?;
        Ok(Self { file, to_stdout })
    }

    /// Prints a line: to standard error if the account goes to standard output, else to standard output.
    pub fn print_line(&self, text: &str) {
        if self.to_stdout {
            eprintln!("{text}");
        } else {
            let _ = print(&format!("{text}\n"));
        }
    }

    /// Writes the account. Returns a failure's exit code unless it is `balanced`.
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
