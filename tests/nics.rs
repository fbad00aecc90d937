//! Leaf (`wedjat leaf`) on emulated NICs of two models, in a guest of QEMU. A Python program (the lab,
//! testbed/lab/nics/run.py) builds the guest and runs the checks. `make test-nics` runs more models and checks. The
//! tests pass where the lab cannot run, and print the reason.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::Write as _;
use std::process::Command;

/// Runs the lab's check `check` on a NIC of this model. Panics unless the check passes or the lab cannot run. Also
/// panics if QEMU lacks the model.
fn run(model: &str, check: &str) {
    let lab = concat!(env!("CARGO_MANIFEST_DIR"), "/testbed/lab/nics/run.py");
    let mut command = Command::new("python3");
    command.args([lab, "--models", model, "--checks", check]);
    let output = command.args(["--wedjat", env!("CARGO_BIN_EXE_wedjat")]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed, 0 failed") || text.starts_with("SKIPPED: "), "{text}");
    if text.starts_with("SKIPPED: ") {
        // Not captured, so that a skipped check is visible.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

// promise: ports.1
#[test]
fn one_core_serves_on_e1000e() {
    run("e1000e", "one_core");
}

// promise: ports.1
#[test]
fn replies_reach_their_core_on_virtio() {
    run("virtio-rss", "two_cores");
}
