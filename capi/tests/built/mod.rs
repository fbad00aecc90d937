//! C programs for the tests, compiled with the header and linked with the shared library. Cargo builds the
//! header and the static library; scripts/link-library.sh links the shared one from it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns cargo's output folder for this profile, such as target/debug. The test programs lie in its folder `deps`.
fn profile() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {stderr}", output.status);
}

/// Returns the path of the header generated with the library.
#[allow(dead_code, reason = "not every test uses it")]
pub fn header() -> PathBuf {
    profile().join("include/wedjat.h")
}

/// Returns the path of the static library built with this test. It is the newest one beside the test: older
/// ones have other features or sources.
fn library() -> PathBuf {
    let files = fs::read_dir(profile().join("deps")).unwrap().map(|entry| entry.unwrap().path());
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libwedjat_capi-") && name.ends_with(".a")
    };
    let build_time = |path: &PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    files.filter(is_library).max_by_key(build_time).unwrap()
}

/// Compiles `source`, a path relative to this package, to a program in `folder`, and links the shared library there.
/// Returns the program's path. The ending `.cc` is that of C++.
pub fn compile(source: &str, folder: &Path) -> PathBuf {
    compile_with(source, folder, &[])
}

/// Compiles like [`compile`], with further arguments for the compiler.
pub fn compile_with(source: &str, folder: &Path, more: &[&str]) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Links the shared library once per folder. The script expects the static library under its name without a hash.
    if !folder.join("libwedjat.so").exists() {
        let link = package.join("../scripts/link-library.sh");
        symlink(library(), folder.join("libwedjat_capi.a")).unwrap();
        run(Command::new(link).arg(folder).arg(folder.join("libwedjat.so.0")));
        symlink("libwedjat.so.0", folder.join("libwedjat.so")).unwrap();
    }
    let program = folder.join(Path::new(source).file_stem().unwrap());
    let (compiler, standard) = match source.ends_with(".cc") {
        true => ("c++", "-std=c++11"),
        false => ("cc", "-std=gnu11"),
    };
    let mut cc = Command::new(compiler);
    cc.args([standard, "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-o"]).arg(&program);
    cc.arg(package.join(source)).arg("-I").arg(profile().join("include"));
    cc.arg("-L").arg(folder).arg("-lwedjat");
    run(cc.arg(format!("-Wl,-rpath,{}", folder.display())).args(more));
    program
}
