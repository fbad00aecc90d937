//! Installation of the built programs and files by the Makefile, for tests of the installed files and of packages.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Folder of the sources.
pub const SOURCE: &str = env!("CARGO_MANIFEST_DIR");

/// Runs a command, checks that it succeeds, and returns its output.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {stderr}", output.status);
    output
}

/// Returns cargo's target folder. This test lies in its `PROFILE/deps`.
pub fn target() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned()
}

/// Runs the Makefile with these targets or other arguments, and the prefix `prefix` for installation. It installs the
/// programs that the test build has compiled.
pub fn make(arguments: &[&str], prefix: &Path) {
    let mut make = Command::new("make");
    make.current_dir(SOURCE).args(arguments).arg("PROFILE=dev");
    // The same features as in the test build, which shares the target folder: with others, make would replace
    // the commands that tests start.
    make.arg("FEATURES=wedjat-testbed/rocksdb");
    make.env("PREFIX", prefix).env("CARGO", env!("CARGO")).env("CARGO_TARGET_DIR", target());
    run(as_from_a_shell(make.env_remove("MAKEFLAGS").env_remove("DESTDIR")));
}

/// Removes cargo's variables about the test's package. Crates whose build scripts read them would otherwise
/// be rebuilt each time.
pub fn as_from_a_shell(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_of_package = |prefix: &&str| text.starts_with(prefix);
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "OUT_DIR"].iter().any(is_of_package) {
            command.env_remove(name);
        }
    }
    command
}

/// Returns an empty folder of this name for this test program. It lies in cargo's target folder, so that the next run
/// replaces it.
pub fn empty(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns the prefix of the installation, which all tests share.
pub fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let folder = empty("installed");
        make(&["install"], &folder);
        folder
    })
}

/// Returns the files below a folder, with paths relative to it.
pub fn below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(folder, &mut files);
    let mut files: Vec<_> =
        files.iter().map(|file| file.strip_prefix(folder).unwrap().to_owned()).collect();
    files.sort();
    files
}

/// Adds the files below a folder to `files`.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), files);
        } else {
            files.push(entry.path());
        }
    }
}
