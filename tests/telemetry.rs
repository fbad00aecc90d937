//! A leaf's data in DPDK's telemetry socket, read with DPDK's client `dpdk-telemetry.py`.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod frames;
mod process;
mod running;
mod timeouts;

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use wedjat::state::counters::METRICS;

use frames::POOL;
use running::*;

/// Sends commands to the leaf with this process id through DPDK's client. Returns the values of the answers in
/// the same order. A command may have parameters after commas; the key of its answer is the name without them.
fn ask(process: u32, commands: &[&str]) -> Vec<Value> {
    let mut client = Command::new("dpdk-telemetry.py");
    client.args(["-f", &format!("wedjat-{process}")]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = client.spawn().unwrap();
    writeln!(client.stdin.take().unwrap(), "{}", commands.join("\n")).unwrap();
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect();
    assert_eq!(answers.len(), commands.len(), "{text}");
    answers
        .iter()
        .zip(commands)
        .map(|(answer, command)| answer[command.split(',').next().unwrap()].clone())
        .collect()
}

// promise: control.3
#[test]
fn dpdks_client_shows_the_leaf() {
    if Command::new("dpdk-telemetry.py").arg("--help").output().is_err() {
        // Written directly to standard error, because the output of passing tests is hidden.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: telemetry needs dpdk-telemetry.py (Debian: dpdk-dev)"
        );
        return;
    }
    let home = Home::new();
    let leaf = home.start(home.leaf(&[]));
    let answers = ask(
        leaf.id(),
        &[
            "/",
            "/wedjat/nodes",
            "/wedjat/leaf/info",
            "/wedjat/leaf/counters",
            "/wedjat/leaf/counters,0",
            "/wedjat/leaf/counters,1",
            "/wedjat/leaf/drops",
            "/wedjat/leaf/pools",
            &format!("/wedjat/leaf/pool,{POOL}"),
            &format!("/wedjat/leaf/workers,{POOL}"),
            &format!("/wedjat/leaf/worker,{POOL},11"),
            "/wedjat/agent/info",
        ],
    );
    let [all, nodes, info, counters, core, none, drops, pools, pool, workers, worker, agent] =
        &answers[..]
    else {
        panic!()
    };
    let listed: BTreeSet<_> = all.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for name in ["info", "counters", "drops", "pools", "pool", "workers", "worker"] {
        assert!(listed.contains(&*format!("/wedjat/leaf/{name}")), "{name}: {listed:?}");
    }
    assert_eq!(
        (nodes, &info["pid"], &info["workers"]),
        (&json!(["leaf"]), &json!(leaf.id()), &json!(4))
    );
    for metric in METRICS {
        assert!(counters[metric.name].is_u64(), "{}: {counters}", metric.name);
    }
    // The leaf has one core. Its counters, read later, are at least the sums over all cores.
    assert!(
        core["scheduled"].as_u64() >= counters["scheduled"].as_u64()
            && counters["scheduled"].as_u64() > Some(0)
    );
    assert!(drops["ether_type"].as_u64() > Some(0), "{drops}");
    assert_eq!((pools, workers), (&json!([POOL]), &json!([10, 11, 12, 13])));
    assert_eq!((&pool["policy"], &pool["workers"]), (&json!("random"), &json!(4)));
    assert!(pool["outstanding"].as_u64() > Some(0), "{pool}");
    assert_eq!(
        (&worker["server"], &worker["presence"]),
        (&json!("10.0.2.11"), &json!("configured"))
    );
    assert!(none.is_null() && agent.is_null(), "no core 1 and no agent: {none} {agent}");
    leaf.ended_by("-TERM");
}
