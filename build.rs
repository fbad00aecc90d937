//! Stamps the binary with what a report's manifest states, revision and compiler, and what `--version` says.
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let revision = revision().unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=WEDJAT_REVISION={revision}");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = said(&rustc, &["--version"]).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=WEDJAT_RUSTC={version}");
    // Of wedjat-sys; there is none without DPDK.
    let dpdk = std::env::var("DEP_DPDK_VERSION");
    let dpdk = dpdk.map_or("without DPDK".to_owned(), |version| format!("DPDK {version}"));
    let package = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo::rustc-env=WEDJAT_VERSION={package} (revision {revision}, {dpdk})");
}

/// None outside a repository of our own: the sources may lie in somebody else's.
fn revision() -> Option<String> {
    if !Path::new(".git").exists() {
        return None;
    }
    // In a work tree beside others they lie elsewhere; a path that is not there would have cargo build every time.
    for name in ["HEAD", "refs/heads"] {
        let path = said("git", &["rev-parse", "--git-path", name])?;
        println!("cargo::rerun-if-changed={path}");
    }
    said("git", &["describe", "--always", "--dirty", "--abbrev=12"])
}

fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_owned())
}
