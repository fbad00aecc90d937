//! Runs of the Makefile that install the built programs and files, for tests of the installed files and of packages.
#![allow(dead_code, reason = "each test program uses some of the functions")]

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

/// Runs the Makefile with these arguments (targets and variables), and the prefix `prefix` for installation. With the
/// profile and the features of the test build, `make install` installs the programs of the test build, without another
/// compilation.
pub fn make(arguments: &[&str], prefix: &Path) {
    let mut make = Command::new("make");
    make.current_dir(SOURCE).args(arguments).arg("PROFILE=dev");
    // The same features as in the test build. With others, make would replace the commands in the shared target
    // folder, which tests start.
    make.arg("FEATURES=wedjat-testbed/rocksdb");
    make.env("PREFIX", prefix).env("CARGO", env!("CARGO")).env("CARGO_TARGET_DIR", target());
    // A `make` that runs the tests sets MAKEFLAGS, with its options and a job server. A package build sets DESTDIR and
    // LIBDIR, which would move the installation below another folder, and the library within it.
    make.env_remove("MAKEFLAGS").env_remove("DESTDIR").env_remove("LIBDIR");
    run(as_from_a_shell(&mut make));
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

/// Creates an empty folder of this name for this test program, in cargo's target folder. Removes the folder of the last
/// run first.
pub fn empty_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns the prefix of an installation. The first call installs; all tests of this test program share the result.
pub fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let folder = empty_folder("installed");
        make(&["install"], &folder);
        folder
    })
}

/// Returns the files below a folder, with paths relative to it.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(folder, &mut files);
    let mut files: Vec<_> =
        files.iter().map(|file| file.strip_prefix(folder).unwrap().to_owned()).collect();
    files.sort();
    files
}

/// Adds the files below a folder to `files`.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), files);
        } else {
            files.push(entry.path());
        }
    }
}
