//! Sets the environment variables for `--version` and for a report's manifest: revision, compiler, release of
//! DPDK.
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let revision = revision().unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=WEDJAT_REVISION={revision}");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = stdout_of(&rustc, &["--version"]).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=WEDJAT_RUSTC={version}");
    // Set by wedjat-sys; missing without DPDK.
    let dpdk = std::env::var("DEP_DPDK_VERSION");
    let dpdk = dpdk.map_or("without DPDK".to_owned(), |version| format!("DPDK {version}"));
    let package = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo::rustc-env=WEDJAT_VERSION={package} (revision {revision}, {dpdk})");
}

/// Returns the revision; `None` outside a repository of our own. The sources may lie in another project's
/// repository.
fn revision() -> Option<String> {
    if !Path::new(".git").exists() {
        return None;
    }
    // A linked work tree keeps these files elsewhere. A missing path would make cargo run this script in each
    // build.
    for name in ["HEAD", "refs/heads"] {
        let path = stdout_of("git", &["rev-parse", "--git-path", name])?;
        println!("cargo::rerun-if-changed={path}");
    }
    stdout_of("git", &["describe", "--always", "--dirty", "--abbrev=12"])
}

/// Returns the trimmed standard output of a command; `None` if it cannot run, fails, or writes no UTF-8.
fn stdout_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_owned())
}
