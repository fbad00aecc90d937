//! Stamps the binary with what a report's manifest states: revision and compiler.
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=.git/HEAD");
    println!("cargo::rerun-if-changed=.git/refs/heads");
    let stamp = |program: &str, arguments: &[&str]| {
        Command::new(program)
            .args(arguments)
            .output()
            .ok()
            .filter(|output| output.status.success())
            .and_then(|output| String::from_utf8(output.stdout).ok())
            .map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned())
    };
    let revision = stamp("git", &["describe", "--always", "--dirty", "--abbrev=12"]);
    println!("cargo::rustc-env=WEDJAT_REVISION={revision}");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    println!("cargo::rustc-env=WEDJAT_RUSTC={}", stamp(&rustc, &["--version"]));
}
