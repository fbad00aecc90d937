//! Comparison of a document's table with rows from the code. Tests use it for complete lists, such as all commands or
//! all drop reasons. A test fails if the document and the code differ.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

/// Compares a table of a document with these rows. The table is the first one below `heading` with the header row
/// `head`. It ends at an empty line or with the document. If WRITE_TABLES is set in the environment, writes the rows
/// instead.
pub fn assert_table(document: &str, heading: &str, head: &str, rows: impl Iterator<Item = String>) {
    // All crates of the workspace share the documents, which may thus be in a folder above the crate.
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = package.ancestors().map(|folder| folder.join(document)).find(|path| path.exists());
    let path = path.unwrap_or_else(|| panic!("{document} is missing"));
    let text = fs::read_to_string(&path).unwrap();
    let below = text.find(heading).unwrap_or_else(|| panic!("{document} has no {heading:?}"));
    let start = text[below..].find(head).map(|at| below + at);
    let start = start.unwrap_or_else(|| panic!("{document} has no table {head:?}"));
    let end = text[start..].find("\n\n").map_or(text.len(), |at| start + at + 1);
    let rule = "|---".repeat(head.matches('|').count() - 1);
    let table = format!("{head}\n{rule}|\n{}", rows.collect::<String>());
    if std::env::var_os("WRITE_TABLES").is_some() {
        fs::write(&path, [&text[..start], &table, &text[end..]].concat()).unwrap();
    } else {
        let how = "WRITE_TABLES=1 cargo test documented";
        assert_eq!(text[start..end], table, "{document} is not as the code; {how} makes it so");
    }
}
