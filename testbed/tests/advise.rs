//! `wedjat-testbed advise`: choice by seed, measurement of logs, trust in the model, and messages for wrong input.
//!
//! The command simulates a pool of workers under all policies, and recommends one for an objective. A log of tasks or
//! options give the conditions. It trusts its advice if the simulation of the running policy fits the measurement.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../tests/golden/mod.rs"]
mod golden;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs `wedjat-testbed` in a folder.
fn testbed(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat-testbed"));
    command.args(arguments).current_dir(folder).output().unwrap()
}

/// Returns the standard output of a successful command.
fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `advise` with short simulations and returns its JSON.
fn advise(folder: &Path, arguments: &[&str]) -> Value {
    let common = ["advise", "--format", "json", "--tasks", "20000"];
    serde_json::from_str(&stdout(&testbed(folder, &[&common[..], arguments].concat()))).unwrap()
}

/// Writes `tasks.csv` with the tasks of a simulation of 8 workers with a mean service time of 55 us. `arguments` give
/// the policy.
fn write_log(folder: &Path, arguments: &[&str]) {
    let service = "mix(0.9*exp(50us),0.1*exp(100us))";
    let common = ["sim", "--model", "ct", "--servers", "8", "--dispatchers", "1", "--classes"];
    let run =
        ["--load", "0.7", "--tasks", "40000", "--log-tasks", "tasks.csv", "--service", service];
    stdout(&testbed(folder, &[&common[..], &run, arguments].concat()));
}

/// Finds the entry of a policy.
fn policy<'a>(report: &'a Value, name: &str) -> &'a Value {
    let policies = report["policies"].as_array().unwrap();
    policies.iter().find(|entry| entry["policy"] == name).unwrap()
}

/// Options that describe a pool in place of a log.
const POOL: [&str; 6] = ["--workers", "16", "--load", "0.8", "--service", "exp(100us)"];

#[test]
fn shortest_queue_replaces_random() {
    let folder = tempfile::tempdir().unwrap();
    for seed in ["1", "2", "3"] {
        let more = ["--policy", "random,round-robin,jsq", "--running", "random", "--seed", seed];
        let report = advise(folder.path(), &[&POOL[..], &more].concat());
        let advice = &report["advice"];
        assert_eq!((&advice["action"], &advice["policy"]), (&"change".into(), &"jsq".into()));
        assert!(advice["gain"].as_f64().unwrap() > 0.5 && advice["trusted"].is_null(), "{report}");
        // The running policy stays to the end, so that both have runs of equal length.
        assert_eq!(policy(&report, "random")["rounds"], 4);
        let keep = ["--policy", "random,jsq", "--running", "jsq", "--seed", seed];
        let report = advise(folder.path(), &[&POOL[..], &keep].concat());
        assert_eq!(report["advice"]["action"], "keep", "{report}");
    }
}

#[test]
fn unstable_policy_is_dropped_and_named() {
    let folder = tempfile::tempdir().unwrap();
    // A random choice gives each slow worker 4.4 times its capacity. `sed` knows the speeds.
    let pool =
        ["--workers", "20", "--speeds", "10x1,10x10", "--load", "0.8", "--service", "exp(10us)"];
    let more = ["--policy", "random,sed", "--running", "random", "--objective", "mean"];
    let report = advise(folder.path(), &[&pool[..], &more].concat());
    assert_eq!(policy(&report, "random")["dropped"], "unstable", "{report}");
    assert_eq!(
        (&report["advice"]["policy"], &report["advice"]["gain"]),
        (&"sed".into(), &Value::Null)
    );
    // Without a stable policy there is no advice, and the exit status says so.
    let alone = [&["advise"], &pool[..], &["--policy", "random", "--tasks", "20000"]].concat();
    let output = testbed(folder.path(), &alone);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("No advice: the queues of each policy grow."), "{text}");
}

#[test]
fn log_gives_conditions_and_fit() {
    let folder = tempfile::tempdir().unwrap();
    write_log(folder.path(), &["--policy", "random"]);
    let arguments = ["tasks.csv", "--policy", "random,jsq", "--objective", "slo(class=2, us=400)"];
    let report = advise(folder.path(), &arguments);
    let conditions = &report["conditions"];
    assert_eq!((&conditions["workers"], &conditions["arrivals"]), (&8.into(), &"poisson".into()));
    let near =
        |key: &str, value: f64| (conditions[key].as_f64().unwrap() / value - 1.0).abs() < 0.03;
    assert!(near("load", 0.7) && near("service_mean_us", 55.0), "{conditions}");
    let class = &conditions["classes"][1];
    assert_eq!((conditions["classes"].as_array().unwrap().len(), &class["class"]), (2, &2.into()));
    assert!((class["mean_us"].as_f64().unwrap() - 100.0).abs() < 5.0, "{class}");
    assert_eq!(conditions["assumed"], serde_json::json!(["delay", "speeds", "dispatchers"]));
    // The log names the running policy. The model is that of the log, so it fits.
    assert_eq!((&report["running"], &report["measured"]["fits"]), (&"random".into(), &true.into()));
    assert_eq!(
        (&report["advice"]["policy"], &report["advice"]["trusted"]),
        (&"jsq".into(), &true.into())
    );
}

#[test]
fn speeds_scale_the_measured_service_times() {
    let folder = tempfile::tempdir().unwrap();
    // Both models log service times of 100 us: `rack` at a worker of speed 1, `ct` at one of average speed, here 2.
    for (model, workers, service_us) in [("rack", "--racks", 50.0), ("ct", "--servers", 100.0)] {
        let speeds = ["--speeds", "4x1,4x3"];
        let run = ["sim", "--model", model, workers, "8", "--policy", "sed", "--load", "0.6"];
        let log = ["--tasks", "20000", "--log-tasks", "tasks.csv"];
        stdout(&testbed(folder.path(), &[&run[..], &log, &speeds].concat()));
        let report =
            advise(folder.path(), &[&["tasks.csv", "--policy", "sed"], &speeds[..]].concat());
        let conditions = &report["conditions"];
        let value = |key: &str| conditions[key].as_f64().unwrap();
        assert!((value("load") / 0.6 - 1.0).abs() < 0.05, "{model}: {conditions}");
        assert!((value("service_mean_us") / service_us - 1.0).abs() < 0.05, "{conditions}");
        assert_eq!(conditions["speeds"], "4x1,4x3");
    }
}

#[test]
fn misfit_of_the_model_is_told() {
    let folder = tempfile::tempdir().unwrap();
    // The log is of `jsq`, but --running says `random`, which the log's missing policy cannot contradict.
    write_log(folder.path(), &["--policy", "jsq"]);
    let log = fs::read_to_string(folder.path().join("tasks.csv")).unwrap();
    fs::write(folder.path().join("tasks.csv"), log.replace(",jsq,", ",,")).unwrap();
    let arguments = ["tasks.csv", "--policy", "random,jsq", "--running", "random"];
    let report = advise(folder.path(), &arguments);
    assert_eq!(
        (&report["measured"]["fits"], &report["advice"]["trusted"]),
        (&false.into(), &false.into())
    );
    let text = [&["advise", "--tasks", "20000"], &arguments[..]].concat();
    let text = stdout(&testbed(folder.path(), &text));
    assert!(text.contains("Do not trust this advice."), "{text}");
    // With another load than the log's, its response times say nothing about the model.
    let report = advise(folder.path(), &[&arguments[..], &["--load", "0.5"]].concat());
    assert!(report["measured"].is_null() && report["advice"]["trusted"].is_null(), "{report}");
    assert_eq!(report["conditions"]["load"], 0.5);
}

#[test]
fn page_shows_table_and_chart() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--policy", "random,jsq", "--html", "advice.html"];
    advise(folder.path(), &[&POOL[..], &more].concat());
    let page = fs::read_to_string(folder.path().join("advice.html")).unwrap();
    for part in ["<svg", "<td>jsq</td>", "Advice: take jsq.", "exp(100us)"] {
        assert!(page.contains(part), "{part}");
    }
}

/// Arguments of `advise`, each list with a fault. The test writes the logs that they name, except none.csv.
const COMMANDS: [&str; 23] = [
    "",
    "none.csv",
    "empty.csv",
    "header.csv",
    "column.csv",
    "number.csv",
    "short.csv",
    "unnamed.csv",
    "untimed.csv --workers 4",
    "overload.csv",
    "overload.csv --workers 1",
    "runs.csv",
    "runs.csv --run 3",
    "runs.csv --run 2 --running jsq",
    "--node none --load 0.5 --service exp(1us)",
    "--pool 3 --workers 4 --load 0.5 --service exp(1us)",
    "--workers 0 --load 0.5 --service exp(1us)",
    "--workers 4 --load 1 --service exp(1us)",
    "--workers 4 --load 0.5,0.6 --service exp(1us)",
    "--workers 4 --load 0.5 --service exp(1us) --running jsk",
    "--workers 4 --load 0.5 --service exp(1us) --policy horus-spine",
    "--workers 4 --load 0.5 --service exp(1us) --objective slo(class=2,us=9)",
    "--workers 4 --load 0.5 --service exp(1us) --objective p98",
];

/// Returns the rows of a log of two workers with this number of tasks, one each microsecond. Each took 1.5 us of
/// service.
fn log(run: u32, policy: &str, tasks: u32) -> String {
    let row = |n: u32| format!("{run},{policy},{},{},1500,1600,answered\n", n % 2, n * 1000);
    (0..tasks).map(row).collect()
}

#[test]
fn messages_equal_the_golden_file() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let header = "run,policy,worker,scheduled_ns,service_ns,response_ns,status\n";
    write("empty.csv", "");
    write("header.csv", header);
    write("column.csv", "run,scheduled_ns,status\n1,0,answered\n");
    write("number.csv", &format!("{header}1,jsq,0,soon,5,5,answered\n"));
    write("short.csv", &format!("{header}{}", log(1, "jsq", 50)));
    let log_text = log(1, "jsq", 1200);
    write("unnamed.csv", &format!("{}{log_text}", header.replace("worker", "note")));
    write("untimed.csv", &format!("{}{log_text}", header.replace("service_ns", "note")));
    // 2.5 us of work each microsecond for two workers: a load of 1.25. In runs.csv, 1.5 us: a load of 0.75.
    write("overload.csv", &format!("{header}{}", log_text.replace(",1500,", ",2500,")));
    write("runs.csv", &format!("{header}{log_text}{}", log(2, "random", 1200)));
    let mut text = String::new();
    for line in COMMANDS {
        let arguments: Vec<_> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let output = testbed(folder.path(), &[&["advise"], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{line}");
        let _ = writeln!(text, "advise {line}\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let valid = "runs.csv --run 1 --policy jsq,random --tasks 2000 --delay 2us";
    let arguments: Vec<_> = valid.split(' ').collect();
    let report = stdout(&testbed(folder.path(), &[&["advise"], &arguments[..]].concat()));
    golden::assert_golden("advise.txt", &format!("{text}advise {valid}\n{report}"));
}
