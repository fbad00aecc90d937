//! C programs that the tests run, compiled with the header and linked with the shared library as cargo builds them.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where cargo puts this profile's files: tests lie in `deps` there.
fn profile() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()
}

pub fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
}

/// The header, as it was made with the library.
#[allow(dead_code, reason = "not every test has it")]
pub fn header() -> PathBuf {
    profile().join("include/wedjat.h")
}

/// Compiles `source`, a path in this package, into a program in `folder`. A library built beside crates that use DPDK
/// needs libdpdk, so it is built alone first.
pub fn compile(source: &str, folder: &Path) -> PathBuf {
    compile_with(source, folder, &[])
}

/// The same with further arguments for the compiler.
pub fn compile_with(source: &str, folder: &Path, more: &[&str]) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(package).args(["build", "--locked", "--package", "wedjat-capi"]);
    run(cargo.arg("--target-dir").arg(profile().parent().unwrap()));
    if !folder.join("libwedjat.so").exists() {
        let link = package.join("../scripts/link-library.sh");
        run(Command::new(link).arg(profile()).arg(folder.join("libwedjat.so.0")));
        symlink("libwedjat.so.0", folder.join("libwedjat.so")).unwrap();
    }
    let program = folder.join(Path::new(source).file_stem().unwrap());
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-o"]).arg(&program);
    cc.arg(package.join(source)).arg("-I").arg(profile().join("include"));
    cc.arg("-L").arg(folder).arg("-lwedjat");
    run(cc.arg(format!("-Wl,-rpath,{}", folder.display())).args(more));
    program
}
