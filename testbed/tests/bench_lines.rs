//! `bench-lines`, which counts cache-line transfers between dispatcher cores with valgrind, on a load of a
//! few bursts. Cores run their bursts one after another (`in_turn`) or interleaved (`at_once`).

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Returns true if valgrind is installed.
fn has_valgrind() -> bool {
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    valgrind.status().is_ok_and(|status| status.success())
}

/// Runs the command on a small load.
fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat-testbed"));
    command.args(["bench-lines", "--warm-up", "2", "--bursts", "40", "--workers", "32"]);
    command.args(["--replies", "any", "--format", "json"]).args(arguments);
    command.output().expect("the program starts")
}

/// Returns the rows of a successful run.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let output = bench(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Returns the cache-line transfers per packet in a part of a row, for both orders of the bursts.
fn transfers(part: &Value) -> [f64; 2] {
    ["in_turn", "at_once"].map(|order| part[order]["transfers"].as_f64().expect("a number"))
}

/// A single core shares no line. Several cores share the state, but no packets or queues.
// promise: speed.2
#[test]
fn only_core_shared_lines_move() {
    if !has_valgrind() {
        println!("skipped: valgrind is not installed");
        return;
    }
    let rows = rows(&["--cores", "1,2", "--policy", "horus", "--top", "1"]);
    let [alone, two] = &rows[..] else { panic!("{rows:?}") };
    for (row, cores) in [(alone, 1), (two, 2)] {
        // Forty bursts of 32 packets for each core; half of the packets are replies. The cores exchange their counts
        // at least once, because a core does so after 32 full bursts.
        assert_eq!(row["packets"], 40 * 32 * cores);
        assert_eq!(row["reply_packets"], 40 * 16 * cores);
        // Packet bytes belong to one core.
        assert_eq!(transfers(&row["sections"]["wire"]), [0.0, 0.0]);
    }
    assert_eq!(transfers(&alone["lines"]), [0.0, 0.0]);
    let [in_turn, at_once] = transfers(&two["lines"]);
    // The limit of 0.2 is below the third of a line per packet that cores with shared memory words move.
    assert!(0.0 < in_turn && in_turn <= at_once && at_once < 0.2, "{two}");
    // `top` lists the most expensive lines with the functions that move them.
    assert!(two["top"][0]["functions"][0][0].is_string(), "{two}");
    assert_eq!(alone["top"].as_array().map(Vec::len), Some(0));
}

// promise: speed.2
#[test]
fn impossible_load_is_reported() {
    if !has_valgrind() {
        println!("skipped: valgrind is not installed");
        return;
    }
    let output = bench(&["--cores", "1", "--policy", "no-such-policy"]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && printed.contains("no-such-policy"), "{printed}");
    // At most 64 cores are allowed.
    assert!(!bench(&["--cores", "65"]).status.success());
}
