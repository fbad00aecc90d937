//! `wedjat top` beside a running leaf: one printed page, the screen on a terminal, and all ways to name the node. The
//! command reads the leaf's state file, and shows rates between two snapshots.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod frames;
mod process;
mod running;
mod timeouts;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use running::*;
use timeouts::*;

/// Returns the standard output of a command. Panics if the command failed.
fn output(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

// promise: control.3
#[test]
fn running_leaf_is_shown() {
    let home = Home::new();
    let state = home.state();
    let _leaf = home.start(home.leaf(&[]));
    // Returns the command that prints one page and ends.
    let once = || {
        let mut command = Command::new(WEDJAT);
        command.args(["top", "--once", "--interval", "300ms"]).env_remove("WEDJAT_STATE");
        command
    };
    // Returns the line below the heading that begins with `word`.
    let after = |text: &str, word: &str| {
        text.lines().skip_while(|line| !line.starts_with(word)).nth(1).unwrap().to_owned()
    };
    // Returns the cells of the core's row. Indices: 1 busy (%), 3 rx/s, 4 tx/s, 5 tasks/s, 8 dropped.
    let numbers = |text: &str| -> Vec<f64> {
        let core = after(text, "core");
        core.split_whitespace().map(|cell| cell.trim_end_matches('%').parse().unwrap()).collect()
    };
    // Returns true for a drop reason with new drops.
    let new = |line: &str| line.split_whitespace().nth(1).is_some_and(|new| new != "0");
    // On a busy machine the leaf may do nothing between two snapshots.
    let mut text = String::new();
    wait_until("packets come, go and are dropped between two looks", || {
        text = output(&once().arg(&state).output().unwrap());
        let numbers = numbers(&text);
        // More packets arrive than leave, because the leaf drops some.
        numbers[1] > 0.0
            && numbers[3] > numbers[4]
            && numbers[5] > 0.0
            && numbers[8] > 0.0
            && text.lines().skip_while(|line| !line.starts_with("dropped")).skip(1).any(new)
    });
    assert!(numbers(&text)[1] <= 100.0, "busy: {text}");
    assert!(after(&text, "pool").ends_with("random"), "{text}");
    assert!(text.contains("leaf 1  pid") && text.contains("10.0.2.11"), "{text}");
    // Other ways to name the node.
    assert!(output(&once().arg("--node").arg(&state).output().unwrap()).contains("leaf 1"));
    assert!(output(&once().env("WEDJAT_STATE", &state).output().unwrap()).contains("leaf 1"));
    let state_of =
        Command::new(WEDJAT).args(["state", "--json"]).env("WEDJAT_STATE", &state).output();
    assert!(output(&state_of.unwrap()).contains("\"running\": true"));

    drawn_on_a_terminal(&state);
    let missing = once().arg("--node").arg(home.path("none")).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("does not exist"), "{missing:?}");
}

/// Runs `wedjat top` under `script` on a terminal of its own. A key ends it.
fn drawn_on_a_terminal(state: &Path) {
    if Command::new("script").arg("--version").output().is_err() {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: the screen needs the feature cli and the program script"
        );
        return;
    }
    let line = format!("stty rows 40 cols 120; {WEDJAT} top {} --interval 100ms", state.display());
    let mut command = Command::new("script");
    command.args(["-qefc", &line, "/dev/null"]).env("TERM", "xterm");
    let mut top = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keys, mut screen) = (top.stdin.take().unwrap(), top.stdout.take().unwrap());
    let (mut drawn, mut piece) = (String::new(), [0; 4096]);
    while !drawn.contains("10.0.2.11") {
        let len = screen.read(&mut piece).unwrap();
        assert!(len > 0, "top ended early: {drawn}");
        drawn.push_str(&String::from_utf8_lossy(&piece[..len]));
    }
    keys.write_all(b"q").unwrap();
    screen.read_to_string(&mut drawn).unwrap();
    assert!(top.wait().unwrap().success(), "{drawn}");
    // The escape sequence that leaves the alternate screen.
    assert!(drawn.contains("\u{1b}[?1049l"), "the terminal is given back: {drawn:?}");
}
