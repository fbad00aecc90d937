//! Counts of the design: types for one concept, and lines of code by crate. tests/tidy.rs prints them beside their
//! maxima.

use std::collections::BTreeMap;
use std::path::Path;

/// Folders of `dataplane/` that are crates. Its other files belong to the crate `wedjat`.
const DATAPLANE: [&str; 8] =
    ["core", "dpdk", "desired", "assembly", "admin", "fabric", "node", "batch"];
/// Further folders that are crates.
const OTHERS: [&str; 8] =
    ["sys", "learner", "cosched", "capi", "workload", "sim", "pktgen", "testbed"];
/// Folders and ends of file names without code of their own: tests, examples, and generated files.
const LEFT_OUT: ([&str; 4], [&str; 4]) = (
    ["tests", "roles", "benches", "examples"],
    ["tests.rs", "generated.rs", "etcd_api.rs", "fixture.rs"],
);

/// Returns the crate of a source file; `None` for files without code: tests, examples, and generated files.
pub fn crate_of(path: &Path) -> Option<&'static str> {
    let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
    let (folders, endings) = LEFT_OUT;
    let name = parts.last()?;
    let is_folder = |part: &&str| folders.contains(part);
    if parts.iter().any(is_folder) || endings.iter().any(|end| name.ends_with(end)) {
        return None;
    }
    let find = |names: &[&'static str], name: &str| names.iter().find(|one| **one == name).copied();
    match parts[..] {
        ["dataplane", folder, ..] => Some(find(&DATAPLANE, folder).unwrap_or("wedjat")),
        [folder, _, ..] => find(&OTHERS, folder),
        _ => None,
    }
}

/// Returns the lines of code in a source file: without comments, empty lines, and the module of tests at its end.
pub fn code(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//"))
}

/// Returns the names of the structs and enums with "Pool" in their names, also of those that the macro `entry!` of the
/// configuration's readers defines.
pub fn pool_types(text: &str) -> Vec<String> {
    let (mut names, has_entries) = (Vec::new(), text.contains("\nentry! {"));
    for line in code(text) {
        let words = line.split_whitespace().filter(|word| !word.starts_with("pub"));
        let words: Vec<_> = words.collect();
        let name = match words[..] {
            ["struct" | "enum", name, ..] => name,
            [name, "{"] if has_entries => name,
            _ => continue,
        };
        let end = name.find(|letter: char| !letter.is_ascii_alphanumeric());
        let name = &name[..end.unwrap_or(name.len())];
        if name.starts_with("Pool") || name.ends_with("Pool") {
            names.push(name.to_owned());
        }
    }
    names
}

/// Returns the numbers of lines of the crates' code in ARCHITECTURE.md, by crate. They are the last cells of rows whose
/// first cell has the crate's name. A row may have two crates.
pub fn documented_lines(architecture: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for row in architecture.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (Some(names), Some(numbers)) = (cells.first(), cells.last()) else { continue };
        for (name, number) in names.split(", ").zip(numbers.split("; ")) {
            if let Ok(number) = number.replace(',', "").parse() {
                found.insert(name.trim_matches('`').to_owned(), number);
            }
        }
    }
    found
}

#[test]
fn parts_of_a_source_are_counted() {
    let text = "//! About.\n\nentry! {\n    /// One.\n    Pool {\n        id: u16,\n    }\n}\npub struct PoolView<P> {\n    \
                pool: Pool,\n}\n\n#[cfg(test)]\nmod tests {\n    struct Pool {}\n}\n";
    assert_eq!(code(text).count(), 8);
    assert_eq!(pool_types(text), ["Pool", "PoolView"]);
    assert_eq!(crate_of(Path::new("dataplane/command/ctl.rs")), Some("wedjat"));
    assert_eq!(crate_of(Path::new("dataplane/core/policy/tests.rs")), None);
    assert_eq!(crate_of(Path::new("tests/tidy.rs")), None);
    let rows = "| crate | lines |\n|---|---|\n| `core` | packets | 32,500 |\n| `learner`, `cosched` | guard | 1,200; 2,700 |\n\
                | `fuzz` | targets | - |\n";
    let lines = [("core", 32_500), ("cosched", 2_700), ("learner", 1_200)];
    assert_eq!(
        documented_lines(rows),
        lines.map(|(name, number)| (name.to_owned(), number)).into()
    );
}
