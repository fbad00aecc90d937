//! What `bench-host` measures, with few samples: that it measures, not how fast the machine is.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{self, Write};
use std::process::Command;

use serde_json::Value;

#[test]
fn killed_workers_cost_their_own_tasks_only() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        // Straight to standard error: what a passing test prints is not shown.
        let _ = writeln!(
            io::stderr(),
            "killed_workers_cost_their_own_tasks_only: SKIPPED, it needs two CPUs"
        );
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat-testbed"));
    command.args(["bench-host", "--rounds", "1", "--tasks", "200", "--load-seconds", "0"]);
    let output = command.args(["--kills", "2", "--format", "json"]).output().unwrap();
    // With 1 and without figures when a task was lost that no killed worker had.
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let figure = |name| figures.iter().find(|figure| figure["name"] == name).unwrap();
    let samples = |name| {
        let all = figure(name)["samples"].as_array().unwrap();
        all.iter().map(|sample| sample.as_f64().unwrap()).collect::<Vec<_>>()
    };
    let resumed = samples("killed_worker_replies_resume");
    assert!(resumed.len() == 2 && resumed.iter().all(|&ms| ms > 0.0), "{resumed:?}");
    let worst = figure("killed_worker_replies_resume_worst")["value"].as_f64().unwrap();
    assert_eq!(worst, resumed[0].max(resumed[1]));
    let lost = samples("killed_worker_tasks_lost");
    assert!(lost.len() == 2 && lost.iter().all(|tasks| (0.0..=2.0).contains(tasks)), "{lost:?}");
}
