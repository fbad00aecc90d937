//! What `bench-host` measures, with few samples: that it measures, not how fast the machine is.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{self, Write};
use std::process::Command;

use serde_json::Value;

/// Runs it with few samples and with these arguments; none, and a word about it, where there are not two CPUs.
fn figures(name: &str, arguments: &[&str]) -> Option<Vec<Value>> {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        // Straight to standard error: what a passing test prints is not shown.
        let _ = writeln!(io::stderr(), "{name}: SKIPPED, it needs two CPUs");
        return None;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat-testbed"));
    command.args(["bench-host", "--rounds", "1", "--tasks", "200", "--format", "json"]);
    let output = command.args(arguments).output().unwrap();
    // With 1 and without figures when an answer was wrong, or a task was lost that no killed worker had.
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn an_agent_under_load_tells_what_its_central_queue_measured_and_chose() {
    let name = "an_agent_under_load_tells_what_its_central_queue_measured_and_chose";
    // A machine may leave no time at all for the tasks of one second.
    let mut seconds = 1_usize;
    let figures = loop {
        let load_seconds = seconds.to_string();
        let arguments = ["--load-seconds", &load_seconds, "--kills", "0"];
        let Some(figures) = figures(name, &arguments) else { return };
        let tasks =
            |name| figures.iter().find(|one| one["name"] == name).unwrap()["value"].as_f64();
        if tasks("calm_tasks").unwrap() + tasks("thrown_tasks").unwrap() > 0.0 {
            break figures;
        }
        seconds *= 2;
        assert!(seconds < 60, "no task came due in {} s", seconds / 2);
    };
    for figure in &figures {
        let mut keys: Vec<_> = figure.as_object().unwrap().keys().collect();
        keys.sort_unstable();
        assert_eq!(keys, ["against", "name", "ratio", "samples", "unit", "value"], "{figure}");
    }
    // None where it is infinite: of the time in which the machine stands still, tasks may never be answered.
    let told = |name| {
        let figure = figures.iter().find(|figure| figure["name"] == name).unwrap();
        figure["value"].as_f64()
    };
    let value = |name| told(name).unwrap();
    assert!(value("cfcfs_hand_over_measured") > 0.0);
    // Which it is depends on the machine; policy/bounded.rs tests the choice. Of each run it is one of those that were seen.
    let bounds = figures.iter().find(|figure| figure["name"] == "cfcfs_bound_chosen").unwrap();
    let samples = bounds["samples"].as_array().unwrap();
    assert_eq!(samples.len(), seconds, "{bounds}");
    assert!(samples.iter().all(|bound| bound.as_f64().unwrap() >= 1.0), "{bounds}");
    assert!(value("agent_loop_round") > 0.0 && value("generator_and_workers_loop_round") > 0.0);
    let (share, calm, thrown) = (value("calm_slices"), value("calm_tasks"), value("thrown_tasks"));
    assert!(calm == 0.0 || share > 0.0, "{calm} tasks in no slice");
    assert!(thrown == 0.0 || share < 100.0, "{thrown} tasks thrown away with no slice");
    assert!(told("agent_cfcfs_p99_all_slices").is_none_or(|us| us > 0.0));
    assert!(value("thrown_tasks") == 0.0 || value("longest_pause") > 0.0);
}

#[test]
fn killed_workers_cost_their_own_tasks_only() {
    let name = "killed_workers_cost_their_own_tasks_only";
    let Some(figures) = figures(name, &["--load-seconds", "0", "--kills", "2"]) else { return };
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
