//! Comparison of a document's table with rows from the code. Tests use it for tables of all items of a kind, such as
//! commands. The documents thus stay complete.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

/// Compares the first table with this head below a heading with these rows. The table ends at an empty line or with the
/// document. With WRITE_TABLES=1 in the environment, writes the rows instead.
pub fn assert_table(document: &str, heading: &str, head: &str, rows: impl Iterator<Item = String>) {
    // Crates in a folder of the project share its documents.
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
