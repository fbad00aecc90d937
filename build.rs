//! Stamps the binary with what a report's manifest states: revision and compiler.
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let revision = revision().unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=WEDJAT_REVISION={revision}");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = said(&rustc, &["--version"]).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=WEDJAT_RUSTC={version}");
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
