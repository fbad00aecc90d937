//! Comparison of printed text with a file of this folder. With `WRITE_GOLDEN=1` in the environment, the test first
//! writes the file.

use std::fs;
use std::path::Path;

/// Panics if `text` differs from the file `name`. Shows the first line that differs, or the lengths if all common lines
/// are equal.
pub fn assert_golden(name: &str, text: &str) {
    // The test's crate may lie in a folder of the project. Searches that folder and those above it.
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut folders = folders.map(|folder| folder.join("tests/golden"));
    let file = folders.find(|folder| folder.join("mod.rs").exists()).unwrap().join(name);
    if std::env::var_os("WRITE_GOLDEN").is_some() {
        fs::write(&file, text).unwrap();
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    let name = file.display();
    for (at, (found, expected)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "{name}, line {}; WRITE_GOLDEN=1 writes the file", at + 1);
    }
    assert_eq!(text.len(), expected.len(), "{name}; WRITE_GOLDEN=1 writes the file");
    assert!(text == expected, "{name}: other line ends; WRITE_GOLDEN=1 writes the file");
}
