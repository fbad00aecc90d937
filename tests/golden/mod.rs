//! Comparison of printed text with a file of this folder. `WRITE_GOLDEN=1` writes the file instead.

use std::fs;
use std::path::Path;

/// Fails at the first line that differs from the file `name`.
pub fn assert_golden(name: &str, text: &str) {
    // A crate of the workspace may lie in a folder below.
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
}
