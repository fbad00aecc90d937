//! `bench-host` with few samples: it measures an agent's hand-over of tasks to the workers of its host, and the
//! recovery from a killed worker. Under the policy `cfcfs`, one queue holds the tasks of all workers, and the policy
//! chooses a bound on the tasks at a worker. The machine's speed is not asserted. Tasks due in undisturbed time slices
//! count; tasks due in slices with a pause of the machine are excluded.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{self, Write};
use std::process::Command;

use serde_json::Value;

/// Runs `bench-host` with few samples and these arguments. On a machine with fewer than two CPUs, prints a
/// note and returns `None`.
fn figures(name: &str, arguments: &[&str]) -> Option<Vec<Value>> {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        // Written directly to standard error, because the output of passing tests is hidden.
        let _ = writeln!(io::stderr(), "{name}: SKIPPED, it needs two CPUs");
        return None;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat-testbed"));
    command.args(["bench-host", "--rounds", "1", "--tasks", "200", "--format", "json"]);
    let output = command.args(arguments).output().unwrap();
    // There are no figures if an answer was wrong or a kill cost more than the killed worker's tasks. The exit code is
    // 1 also for too few tasks in undisturbed slices.
    let has_figures = output.status.success() || !output.stdout.is_empty();
    assert!(has_figures, "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

// promise: speed.2
#[test]
fn loaded_agent_reports_central_queue_measurements() {
    let name = "loaded_agent_reports_central_queue_measurements";
    // A busy machine may leave no time at all for the tasks of one second.
    let mut seconds = 1_usize;
    let figures = loop {
        let load_seconds = seconds.to_string();
        let arguments = ["--load-seconds", &load_seconds, "--kills", "0"];
        let Some(figures) = figures(name, &arguments) else { return };
        // A count among the figures, by its name.
        let tasks =
            |name| figures.iter().find(|figure| figure["name"] == name).unwrap()["value"].as_f64();
        if tasks("undisturbed_tasks").unwrap() + tasks("excluded_tasks").unwrap() > 0.0 {
            break figures;
        }
        seconds *= 2;
        assert!(seconds < 60, "no task came due in {} s", seconds / 2);
    };
    for figure in &figures {
        let mut keys: Vec<_> = figure.as_object().unwrap().keys().collect();
        keys.sort_unstable();
        let expected = ["against", "name", "note", "ratio", "samples", "unit", "value"];
        assert_eq!(keys, expected, "{figure}");
    }
    // Value of a figure by its name. `None` for an infinite one: tasks due in a stall of the machine may never be
    // answered.
    let figure = |name| {
        let figure = figures.iter().find(|figure| figure["name"] == name).unwrap();
        figure["value"].as_f64()
    };
    let value = |name| figure(name).unwrap();
    assert!(value("cfcfs_hand_over_measured") > 0.0);
    // The chosen bound depends on the machine; policy/bounded.rs tests the choice. Each second is one run, and
    // gives one sample: its bound.
    let bounds = figures.iter().find(|figure| figure["name"] == "cfcfs_bound_chosen").unwrap();
    let samples = bounds["samples"].as_array().unwrap();
    assert_eq!(samples.len(), seconds, "{bounds}");
    assert!(samples.iter().all(|bound| bound.as_f64().unwrap() >= 1.0), "{bounds}");
    assert!(value("agent_loop_round") > 0.0 && value("generator_and_workers_loop_round") > 0.0);
    let (share, undisturbed, excluded) =
        (value("undisturbed_slices"), value("undisturbed_tasks"), value("excluded_tasks"));
    assert!(undisturbed == 0.0 || share > 0.0, "{undisturbed} tasks in no slice");
    assert!(excluded == 0.0 || share < 100.0, "{excluded} tasks excluded with no slice");
    assert!(figure("agent_cfcfs_p99_all_slices").is_none_or(|us| us > 0.0));
    assert!(value("excluded_tasks") == 0.0 || value("longest_pause") > 0.0);
}

// promise: speed.2
#[test]
fn event_devices_have_samples_or_a_reason() {
    let name = "event_devices_have_samples_or_a_reason";
    let Some(figures) = figures(name, &["--load-seconds", "0", "--kills", "0"]) else { return };
    // Only sw needs a scheduler, which the dispatcher runs.
    for (name, package, note) in [
        ("event_dsw0_burst_depth_8", "librte-event-dsw", None),
        ("event_sw0_burst_depth_8", "librte-event-sw", Some("scheduler")),
    ] {
        let figure = figures.iter().find(|figure| figure["name"] == name).unwrap();
        match figure["value"].as_f64() {
            Some(value) => {
                assert!(value > 0.0 && figure["ratio"].as_f64().unwrap() > 0.0, "{figure}");
                assert_eq!(figure["against"], "hand_over_depth_8_burst_8");
                assert_eq!(figure["samples"].as_array().unwrap().len(), 1, "{figure}");
                let has_note =
                    figure["note"].as_str().map(|text| text.contains(note.unwrap_or("-")));
                assert_eq!(has_note, note.map(|_| true), "{figure}");
            }
            None => {
                let note = figure["note"].as_str().unwrap();
                let is_reason = note.contains(package) || note.contains("without event devices");
                assert!(is_reason, "{figure}");
            }
        }
    }
}

// promise: speed.2
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
    // The policy of these runs, `jbsq(k=2)`, bounds each worker to two tasks.
    let lost = samples("killed_worker_tasks_lost");
    assert!(lost.len() == 2 && lost.iter().all(|tasks| (0.0..=2.0).contains(tasks)), "{lost:?}");
}
