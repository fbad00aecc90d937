//! Tests of the C interface from C. The programs are compiled with the header and linked with the shared library. Most
//! tests run tests/c/calls.c with the name of a case; the checks are in C.
#![allow(clippy::unwrap_used, reason = "a test")]

mod built;
#[path = "../../testbed/src/free_address.rs"]
mod free_address;
#[path = "../../tests/own_header/mod.rs"]
mod own_header;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the path of the program tests/c/calls.c, built once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = PROGRAM.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let program = built::compile("tests/c/calls.c", folder.path());
        (folder, program)
    });
    path
}

/// Runs one case of the program, which fails if a check in C fails.
fn case(name: &str) {
    built::run(Command::new(program()).arg(name));
}

// promise: library.3
#[test]
fn versions_names_and_sizes_match_the_header() {
    case("versions");
}

// promise: library.2
#[test]
fn a_wrong_configuration_is_refused_with_its_reason() {
    case("create_refuses");
}

// promise: library.1
#[test]
fn deciding_leaves_the_bytes_alone() {
    case("decides");
}

// promise: library.2
#[test]
fn packets_are_held_and_resumed_or_dropped() {
    case("holds");
}

// promise: library.2
#[test]
fn reply_releases_the_first_queued_task() {
    case("waits");
}

// promise: membership.1
#[test]
fn workers_are_taken_out() {
    case("members");
}

// promise: membership.1
#[test]
fn workers_and_policies_change_under_traffic() {
    case("changes");
}

// promise: library.2
#[test]
fn null_pointers_are_refused() {
    case("null");
}

// promise: library.2
#[test]
fn too_large_a_burst_is_refused() {
    case("burst");
}

// promise: library.2
#[test]
fn packets_of_any_length_and_alignment_are_accepted() {
    case("lengths_and_places");
}

// promise: library.2
#[test]
fn extreme_numbers_and_clock_jumps_are_harmless() {
    case("limits");
}

// promise: library.2
#[test]
fn a_port_that_is_not_there_is_refused() {
    case("port");
}

// promise: library.2
#[test]
fn a_context_of_another_scheduler_is_refused() {
    case("foreign_context");
}

// promise: library.2
#[test]
fn a_scheduler_freed_twice_is_noticed() {
    case("freed_twice");
}

// promise: library.2
#[test]
fn an_end_that_is_refused_changes_nothing() {
    case("free_refused");
}

/// Misuse that could touch freed memory, with every access of the program and every block of the library's
/// memory watched. Heads of schedulers are never freed, so leaks at the end are no fault.
// promise: library.2
#[test]
fn the_address_sanitizer_finds_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-fsanitize=address", "-fno-omit-frame-pointer"];
    let program = built::compile_with("tests/c/calls.c", folder.path(), &flags);
    for name in ["free_refused", "freed_twice", "foreign_context", "misaligned", "holds"] {
        built::run(Command::new(&program).arg(name).env("ASAN_OPTIONS", "detect_leaks=0"));
    }
}

// promise: library.2
#[test]
fn misaligned_pointers_are_refused() {
    case("misaligned");
}

// promise: library.2
#[test]
fn calls_work_from_signal_handlers_threads_and_children() {
    case("from_anywhere");
}

// promise: library.3, speed.1
#[test]
fn nothing_is_allocated_after_creation() {
    case("nothing_is_allocated");
}

/// Ports and servers with IPv6 addresses, beside others with IPv4 addresses.
// promise: library.1
#[test]
fn ipv6_packets_are_decided_rewritten_and_resolved() {
    let folder = tempfile::tempdir().unwrap();
    let program = built::compile("tests/c/ipv6.c", folder.path());
    for name in ["processes", "decides", "configurations"] {
        built::run(Command::new(&program).arg(name));
    }
}

/// Calls of programs with their own header, which pass tasks as values instead of packets.
// promise: library.2
#[test]
fn reported_tasks_are_decided_and_misuse_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let program = built::compile("tests/c/tasks.c", folder.path());
    for name in [
        "decides",
        "classes",
        "misuse",
        "statistics",
        "logs",
        "memory_nodes",
        "nothing_is_allocated",
    ] {
        built::run(Command::new(&program).arg(name));
    }
}

// promise: library.1
#[test]
fn own_header_example_serves() {
    let folder = tempfile::tempdir().unwrap();
    let program = built::compile("../examples/own_header.c", folder.path());
    let config = folder.path().join("tasks.toml");
    std::fs::write(&config, own_header::TEXT).unwrap();
    let address = free_address::free_address().unwrap();
    let mut server =
        Command::new(&program).arg(&config).arg(address.port().to_string()).spawn().unwrap();
    // Sends tasks as a client, and answers them as a worker. Catches a failure, so that the server ends in any case.
    let result = std::panic::catch_unwind(|| own_header::tasks_are_done(address));
    let status = server.try_wait().unwrap();
    let _ = server.kill();
    server.wait().unwrap();
    assert_eq!(status, None, "it serves for ever");
    result.unwrap();
}

/// Every function of the header has its version in the shared library. The library exports no other function.
// promise: library.3
#[test]
fn symbols_have_versions() {
    let folder = tempfile::tempdir().unwrap();
    // Any program does: its compilation links the shared library in the folder.
    built::compile("tests/c/tasks.c", folder.path());
    let symbols = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--with-symbol-versions"])
        .arg(folder.path().join("libwedjat.so.0"))
        .output()
        .unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    // Exported functions have the type T.
    let mut exported: Vec<_> = symbols
        .lines()
        .filter(|line| line.split_whitespace().nth(1) == Some("T"))
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    exported.sort_unstable();
    let header = std::fs::read_to_string(built::header()).unwrap();
    // The last line with a name and a parenthesis, before each semicolon.
    let declared = header.split(";\n").filter_map(|text| {
        text.rsplit("\n").find(|line| line.contains('(') && line.contains("wedjat_"))
    });
    // Leaves out continued lines, type definitions, comments and the inline function.
    let declared = declared.filter(|line| !line.starts_with("static inline "));
    let names = declared.filter(|line| !line.starts_with([' ', 't', '/'])).filter_map(|line| {
        line.split('(').next()?.rsplit([' ', '*']).next().map(|name| format!("{name}@@WEDJAT_0.1"))
    });
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    assert!(
        names.len() > 40 && exported == names,
        "{exported:?} in the library, {names:?} in the header"
    );
}
