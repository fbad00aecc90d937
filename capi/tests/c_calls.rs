//! The C interface from C: a program compiled with the header and linked with the shared library, one case a test.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where cargo puts this profile's files: this test lies in `deps` there.
fn profile() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
}

/// The program, built once. A library built beside crates that use DPDK needs libdpdk, so it is built alone first.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(source).args(["build", "--locked", "--package", "wedjat-capi"]);
        run(cargo.arg("--target-dir").arg(profile().parent().unwrap()));
        let folder = tempfile::tempdir().unwrap();
        for name in ["libwedjat.so", "libwedjat.so.0"] {
            symlink(profile().join("libwedjat_capi.so"), folder.path().join(name)).unwrap();
        }
        let program = folder.path().join("calls");
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program);
        cc.arg(source.join("tests/c/calls.c")).arg("-I").arg(profile().join("include"));
        cc.arg("-L").arg(folder.path()).arg("-lwedjat");
        run(cc.arg(format!("-Wl,-rpath,{}", folder.path().display())));
        (folder, program)
    });
    path
}

fn case(name: &str) {
    run(Command::new(program()).arg(name));
}

#[test]
fn versions_names_and_sizes_are_those_of_the_header() {
    case("versions");
}

#[test]
fn a_wrong_configuration_is_refused_with_its_reason() {
    case("create_refuses");
}

#[test]
fn deciding_leaves_the_bytes_alone() {
    case("decides");
}

#[test]
fn packets_are_held_asked_for_resumed_and_given_up() {
    case("holds");
}

#[test]
fn workers_are_taken_out() {
    case("members");
}

#[test]
fn null_is_refused_everywhere() {
    case("null");
}

#[test]
fn too_large_a_burst_is_refused() {
    case("burst");
}

#[test]
fn a_port_that_is_not_there_is_refused() {
    case("port");
}

#[test]
fn a_context_of_another_scheduler_is_refused() {
    case("foreign_context");
}

#[test]
fn a_scheduler_freed_twice_is_noticed() {
    case("freed_twice");
}

#[test]
fn misaligned_pointers_are_refused() {
    case("misaligned");
}

#[test]
fn nothing_is_allocated_after_creation() {
    case("nothing_is_allocated");
}
