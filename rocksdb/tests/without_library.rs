//! Build of the crate without the feature `library`, on a machine without librocksdb.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

#[test]
fn crate_builds_without_librocksdb() {
    let target = tempfile::tempdir().unwrap();
    let mut check = Command::new(env!("CARGO"));
    check.args(["check", "--locked", "--offline", "--manifest-path"]);
    check
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(target.path());
    // An empty folder, so that pkg-config finds no library.
    let output =
        check.env("PKG_CONFIG_LIBDIR", target.path()).env_remove("PKG_CONFIG_PATH").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
