//! `bench-policy`, which measures the cost of a policy's decision (the choice of a worker for a task) in time and
//! instructions, for several numbers of workers (members).

use std::process::{Command, Stdio};

/// Returns true if valgrind is installed.
fn has_valgrind() -> bool {
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    valgrind.status().is_ok_and(|status| status.success())
}

/// Instructions are counted by valgrind, or null; never estimated.
// promise: speed.2
#[test]
fn instructions_are_counted_or_null() {
    let output = Command::new(env!("CARGO_BIN_EXE_wedjat-testbed"))
        .args(["bench-policy", "--members", "32,1024", "--policies", "round-robin,vector-scan"])
        .args(["--millis", "1", "--format", "json"])
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let counts: Vec<Option<f64>> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .map(|row| row["instructions_per_decision"].as_f64())
        .collect();
    // Rows: 32 members with each policy, then 1024.
    assert_eq!(counts.len(), 4);
    if !has_valgrind() {
        assert_eq!(counts, [None; 4]);
        return;
    }
    let counts: Vec<f64> = counts.into_iter().map(|count| count.expect("a count")).collect();
    // `round-robin` costs the same for any number of members. `vector-scan` visits all of them.
    assert!(counts[0] > 10.0 && (counts[2] / counts[0] - 1.0).abs() < 0.1, "{counts:?}");
    assert!(counts[3] > 4.0 * counts[1], "{counts:?}");
}
