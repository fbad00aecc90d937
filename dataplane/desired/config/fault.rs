//! Fault of a configuration file, and the lines of its text. A warning has the same form.

use std::path::Path;

/// Fault of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// Line of the file, from 1; 0 if the fault concerns the whole file.
    pub line: usize,
    /// Key, for example `server.ip`.
    pub key: String,
    /// Value found.
    pub found: String,
    /// Allowed values.
    pub allowed: String,
}

impl ConfigFault {
    /// Creates a fault of the whole file.
    pub(super) fn of_file(found: &str, allowed: &str) -> Self {
        let (found, allowed) = (found.to_owned(), allowed.to_owned());
        Self { line: 0, key: String::new(), found, allowed }
    }

    /// Returns the beginning of a message, which faults and warnings share: the file, line and key if known, and the
    /// value found.
    pub(super) fn place_and_found(&self, path: &Path) -> String {
        let line = if self.line > 0 { format!(":{}", self.line) } else { String::new() };
        let key = if self.key.is_empty() { String::new() } else { format!(": `{}`", self.key) };
        format!("{}{line}{key}: found {}", path.display(), self.found)
    }
}

/// Offsets of a text's line ends. They convert the byte offsets of the TOML parser to lines, by binary search.
pub struct Lines(Vec<usize>);

impl Lines {
    /// Finds the line ends of a text.
    pub fn of(text: &str) -> Self {
        Self(
            text.bytes()
                .enumerate()
                .filter(|(_, byte)| *byte == b'\n')
                .map(|(offset, _)| offset)
                .collect(),
        )
    }

    /// Returns the line, from 1, that holds the byte at `offset`.
    pub fn at(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}
