//! Leaf processes in lockstep over memif, as users run them, and the end of nodes after their conductor's end or death.
//! The conductor sets the time in a clock file, and gives a node turns through it. In a turn, the node polls until it
//! is quiet. Nodes are leaves, which schedule the tasks of a rack, and agents, which give tasks to the workers of a
//! host.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod processes;

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wedjat::clock::{Conductor, Node};
use wedjat::state::table::Role;

use processes::TIMEOUT;

/// Runs `wedjat-testbed`.
fn testbed(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wedjat-testbed")).args(arguments).output().unwrap()
}

/// Returns the path of `wedjat`, the command of leaves and agents. It belongs to another package: `cargo test
/// --workspace` and `cargo build` make it.
fn wedjat() -> PathBuf {
    let leaf = Path::new(env!("CARGO_BIN_EXE_wedjat-testbed")).with_file_name("wedjat");
    assert!(leaf.is_file(), "{} is not built: run `cargo build --bin wedjat`", leaf.display());
    leaf
}

/// Runs `lockstep` or `sim` with flags that both have, and with `arguments`. Returns its rows, one per policy.
fn rows(command: &str, arguments: &[&str]) -> Vec<Value> {
    let flags = [
        command,
        "--policy",
        "horus,cfcfs,ppot-learned,jbsq",
        "--load",
        "0.9",
        "--workers",
        "16",
        "--tasks",
        "4000",
        "--seed",
        "7",
        "--format",
        "json",
    ];
    let output = testbed(&[&flags[..], arguments].concat());
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

// promise: emulated-time.1
#[test]
fn leaf_processes_match_the_simulator() {
    let (found, expected) = (rows("lockstep", &[]), rows("sim", &["--model", "rack", "--digest"]));
    assert_eq!((found.len(), expected.len()), (4, 4));
    for (found, expected) in found.iter().zip(&expected) {
        for key in ["policy", "digest", "mean", "p50", "p99", "answered", "lost"] {
            assert_eq!(found[key], expected[key], "{key}: {found} {expected}");
        }
        assert_eq!(found["answered"], 4000);
    }
}

/// Starts a leaf or agent whose clock is the file `clock`. Its null devices need no peer, and carry no packets. The
/// clock file may be invalid.
fn node(role: &str, folder: &Path, clock: &Path) -> Child {
    let config = folder.join(format!("{role}.toml"));
    let text = match role {
        "leaf" => "[leaf]\nid = 5\ncores = [0]\n\
             [[port]]\ndevice = \"net_null0\"\nside = \"both\"\nip = \"10.0.2.1/24\"\n\
             [[pool]]\nid = 1\npolicy = \"horus\"\n\
             [[server]]\nip = \"10.0.2.11\"\nworkers = \"0-3\"\npool = 1\n"
            .to_owned(),
        _ => format!(
            "[agent]\nid = 6\nname = \"lockstep-{}\"\ncore = 0\n\
             [[port]]\ndevice = \"net_null0\"\nip = \"10.0.2.11/24\"\n\
             [[pool]]\nid = 1\npolicy = \"jbsq(k=1)\"\nworkers = \"0-3\"\n",
            std::process::id()
        ),
    };
    fs::write(&config, text).unwrap();
    Command::new(wedjat())
        .arg(role)
        .arg("--config")
        .arg(config)
        .arg("--clock")
        .arg(clock)
        .args(["--", "--no-huge", "--no-pci", "--vdev", "net_null0,no-rx=1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the end of a process, and kills it after [`TIMEOUT`]. Returns true for success, and the text of both its
/// outputs.
fn wait_for_end(mut child: Child) -> (bool, String) {
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > TIMEOUT {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
    (status.success(), printed)
}

/// Waits until a node joins the conductor's clock. Returns its number, by which the conductor gives it turns. Panics if
/// the process has ended.
fn join(conductor: &mut Conductor, child: &mut Child, node: Node) -> usize {
    loop {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        match conductor.take(node) {
            Some(number) => return number,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

// promise: emulated-time.1
#[test]
fn nodes_take_turns_and_end_with_their_conductor() {
    for (role, node_name) in [
        ("leaf", Node { role: Role::Leaf, id: 5, core: 0 }),
        ("agent", Node { role: Role::Agent, id: 6, core: 0 }),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let clock = folder.path().join("clock");

        let mut conductor = Conductor::create(&clock, 1).unwrap();
        let mut child = node(role, folder.path(), &clock);
        let number = join(&mut conductor, &mut child, node_name);
        let first = conductor.turn(number).unwrap();
        // The node has a timer of its own, its tick of 100 us. The conductor may advance to it.
        assert_eq!(first.timer_ns, 100_000, "{role}");
        conductor.set_now_ns(first.timer_ns);
        assert_eq!(conductor.turn(number).unwrap().timer_ns, 200_000, "{role}");
        assert_eq!(conductor.turn(number).unwrap().timer_ns, 200_000, "{role}: time stands");
        conductor.end();
        let (is_success, printed) = wait_for_end(child);
        assert!(is_success, "{role}: {printed}");
        drop(conductor);

        // The same run, but the conductor dies.
        let mut conductor = Conductor::create(&clock, 1).unwrap();
        let mut child = node(role, folder.path(), &clock);
        let number = join(&mut conductor, &mut child, node_name);
        conductor.turn(number).unwrap();
        drop(conductor);
        let (is_success, printed) = wait_for_end(child);
        assert!(
            !is_success && printed.contains("ended without ending the run"),
            "{role}: {printed}"
        );
        assert!(printed.contains(&clock.display().to_string()), "{role}: {printed}");

        // The error names a dead node.
        let mut conductor = Conductor::create(&clock, 1).unwrap();
        let mut child = node(role, folder.path(), &clock);
        let number = join(&mut conductor, &mut child, node_name);
        child.kill().unwrap();
        child.wait().unwrap();
        let error = conductor.turn(number).unwrap_err().to_string();
        assert!(error.contains(&node_name.to_string()) && error.contains("ended"), "{error}");
    }
}

// promise: emulated-time.1
#[test]
fn invalid_clock_is_refused_before_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let foreign = folder.path().join("foreign");
    fs::write(&foreign, vec![b'x'; 4096]).unwrap();
    for role in ["leaf", "agent"] {
        for (clock, part) in [(&missing, "no such file"), (&foreign, "not a wedjat clock")] {
            let (is_success, printed) = wait_for_end(node(role, folder.path(), clock));
            assert!(!is_success && printed.contains(part), "{role}: {printed}");
            assert!(printed.contains(&clock.display().to_string()), "{role}: {printed}");
        }
    }
}
