//! Where the lines and the account of a running leaf or agent go.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use wedjat::state::files::ReportFile;

use super::{Outcome, print};

/// Where a run's lines and its account go.
pub struct Report<'a> {
    file: Option<ReportFile<'a>>,
    to_stdout: bool,
}

impl<'a> Report<'a> {
    /// To this file, `-` for standard output, or nowhere.
    pub fn to(file: Option<&'a Path>) -> Result<Self, Box<dyn Error>> {
        let to_stdout = file == Some(Path::new("-"));
        let file = file.filter(|_| !to_stdout);
        // Better refused now than after the run.
        let file = file.map(|path| ReportFile::new("--stats", path)).transpose()?;
        Ok(Self { file, to_stdout })
    }

    /// Says a line, beside the account.
    pub fn say(&self, text: &str) {
        if self.to_stdout {
            eprintln!("{text}");
        } else {
            let _ = print(&format!("{text}\n"));
        }
    }

    /// Writes the account.
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
