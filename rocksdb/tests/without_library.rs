//! Compilation of the crate without the feature `library`, as on a machine without librocksdb.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

#[test]
fn crate_compiles_without_librocksdb() {
    let target = tempfile::tempdir().unwrap();
    // `check` compiles the crate and runs its build script, but does not link.
    let mut check = Command::new(env!("CARGO"));
    check.args(["check", "--locked", "--offline", "--manifest-path"]);
    check
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(target.path());
    // pkg-config searches this folder, which has no description of a library, instead of the system's.
    let output =
        check.env("PKG_CONFIG_LIBDIR", target.path()).env_remove("PKG_CONFIG_PATH").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
