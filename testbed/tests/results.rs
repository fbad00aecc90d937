//! Results of runs as files: plots, page and log of tasks, and the figures that `wedjat-testbed plot` computes from the
//! log. A log is CSV with a row for each task. A row of the simulator's output is one run: a policy at a load.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs `wedjat-testbed`.
fn testbed(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wedjat-testbed")).args(arguments).output().unwrap()
}

/// Returns the standard output of a command. Panics with its messages if it failed.
fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the messages of a command.
fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a simulation and returns its rows, without durations: equal runs have equal rows.
fn sim(arguments: &[&str]) -> Vec<Value> {
    let common = ["sim", "--format", "json", "--timing", "no"];
    let text = stdout(&testbed(&[&common[..], arguments].concat()));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the table that `wedjat-testbed plot` prints for a log: for each run, its cells by heading.
fn plot(log: &Path) -> Vec<HashMap<String, String>> {
    let text = stdout(&testbed(&["plot", log.to_str().unwrap()]));
    let cells = |line: &str| -> Vec<String> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    let mut lines = text.lines();
    let head = cells(lines.next().unwrap());
    lines.map(|line| head.iter().cloned().zip(cells(line)).collect()).collect()
}

/// Parses a cell such as `11.000 ±12.71`: the figure (part 0), or half the width of its confidence interval (part 1).
fn number(cell: &str, part: usize) -> f64 {
    cell.split(" ±").nth(part).unwrap().parse().unwrap()
}

/// Checks that a figure of `plot` or of pandas equals one of the run, except for rounding: `plot` prints three
/// decimals, the run six significant digits. `tolerance` is a further relative difference that is allowed.
fn assert_equal(printed: f64, expected: f64, tolerance: f64, name: &str) {
    let allowed = expected.abs() * (1e-5 + tolerance) + 6e-4;
    assert!((printed - expected).abs() <= allowed, "{name}: {printed}, but the run had {expected}");
}

/// Compares the figures that `plot` computes from a log with the rows of the run. `unit_us` is the rows' unit of time
/// in microseconds. `tolerance` is 0 if log and run have equal histograms, else the width of a histogram's step.
fn compare(log: &Path, rows: &[Value], unit_us: f64, tolerance: f64) {
    let runs = plot(log);
    assert_eq!(runs.len(), rows.len());
    for (run, row) in runs.iter().zip(rows) {
        let name = format!("{} at {}", row["policy"], row["load"]);
        let of_row = |key: &str| row[key].as_f64().unwrap() * unit_us;
        for (heading, key) in [
            ("mean us", "mean"),
            ("p50 us", "p50"),
            ("p90 us", "p90"),
            ("p99 us", "p99"),
            ("p99.9 us", "p999"),
        ] {
            let printed = number(&run[heading], 0);
            assert_equal(printed, of_row(key), tolerance, &format!("{name}: {key}"));
        }
        for (heading, key) in [("mean us", "mean_ci95"), ("p99 us", "p99_ci95")] {
            // With other histograms, the intervals differ by more than rounding.
            if tolerance > 0.0 {
                break;
            }
            let printed = number(&run[heading], 1);
            // Half widths have two decimals.
            assert!((printed - of_row(key)).abs() <= of_row(key) * 1e-5 + 6e-3, "{name}: {key}");
        }
        assert_eq!(run["tasks"], row["tasks"].to_string(), "{name}");
        assert_eq!(run["seeds"], row["seeds"].to_string(), "{name}");
    }
}

#[test]
fn log_reproduces_the_simulators_figures() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("tasks.csv");
    let file = log.to_str().unwrap();
    for (arguments, unit_us, tolerance) in [
        (&["--policy", "horus,cfcfs", "--load", "0.5,0.9", "--tasks", "20000"][..], 1.0, 0.0),
        (&["--policy", "horus", "--racks", "8,8,8", "--loss", "0.01", "--tasks", "9000"], 1.0, 0.0),
        (&["--policy", "jsq", "--seeds", "3", "--hop", "1us,20us", "--tasks", "5000"], 1.0, 0.0),
        (&["--model", "nodes", "--policy", "rsteal", "--load", "0.7", "--tasks", "5000"], 1.0, 0.0),
        (
            &[
                "--model",
                "fabric",
                "--leaves",
                "4",
                "--pools",
                "3",
                "--pool-size",
                "exp(min=50,max=200,mean=60)",
                "--tasks",
                "9000",
                "--load",
                "0.5",
            ],
            1.0,
            0.0,
        ),
        // These two count in mean service times and slots of 100 us, whose histograms have other steps of
        // 0.1%.
        (&["--model", "ct", "--policy", "jsq", "--load", "0.9", "--tasks", "9000"], 100.0, 1e-3),
        (&["--model", "slots", "--policy", "jsq", "--load", "0.7", "--slots", "300"], 100.0, 1e-3),
    ] {
        let plain = sim(arguments);
        let rows = sim(&[arguments, &["--log-tasks", file]].concat());
        assert_eq!(rows, plain, "the log changes nothing");
        compare(&log, &rows, unit_us, tolerance);
    }
}

#[test]
fn log_has_every_task_once() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("tasks.csv");
    // Losses, and a leaf that fails with tasks in its queue.
    let rows = sim(&[
        "--racks",
        "4,4",
        "--policy",
        "cfcfs",
        "--load",
        "0.95",
        "--loss",
        "0.02",
        "--fail",
        "leaf:1@20ms",
        "--tasks",
        "4000",
        "--log-tasks",
        log.to_str().unwrap(),
    ]);
    let mut reader = csv::Reader::from_path(&log).unwrap();
    let mut ends: HashMap<String, u64> = HashMap::new();
    let mut numbers = Vec::new();
    for row in reader.deserialize::<HashMap<String, String>>() {
        let row = row.unwrap();
        *ends.entry(row["status"].clone()).or_default() += 1;
        numbers.push(row["task"].parse::<u64>().unwrap());
        let time = |column: &str| row[column].parse::<f64>().unwrap();
        if row["status"] == "answered" {
            let response = time("answered_ns") - time("scheduled_ns");
            assert!((response - time("response_ns")).abs() < 0.01, "{row:?}");
            assert!(time("service_ns") <= response + 0.01, "{row:?}");
            assert!(row["worker"].parse::<u32>().unwrap() < 8, "{row:?}");
        } else {
            assert!(row["response_ns"].is_empty() && row["worker"].is_empty(), "{row:?}");
        }
    }
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..4000));
    assert_eq!(ends["lost"], rows[0]["lost"].as_u64().unwrap());
    assert!(ends["lost"] > 0 && ends["answered"] + ends["lost"] == 4000, "{ends:?}");
}

#[test]
fn plots_and_page_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let (plots, log) = (folder.path().join("plots"), folder.path().join("tasks.csv"));
    let (plots_text, log_text) = (plots.to_str().unwrap(), log.to_str().unwrap());
    sim(&[
        "--policy",
        "horus,random",
        "--load",
        "0.5,0.9",
        "--tasks",
        "4000",
        "--seeds",
        "2",
        "--plot",
        plots_text,
        "--html",
        plots_text,
        "--log-tasks",
        log_text,
    ]);
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    let expected = [
        "index.html",
        "mean-over-load.svg",
        "p99-over-load.svg",
        // Distribution of the response times at each load, and response times over the time of each run.
        "responses-50.svg",
        "responses-90.svg",
        "time-01-horus-at-50.svg",
        "time-02-horus-at-90.svg",
        "time-03-random-at-50.svg",
        "time-04-random-at-90.svg",
    ];
    assert_eq!(names(&plots), expected);
    // The page has all eight plots, and a table of a header and four runs.
    let page = fs::read_to_string(plots.join("index.html")).unwrap();
    assert_eq!((page.matches("<svg").count(), page.matches("<tr").count()), (8, 5));
    for outside in ["<script", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    // `plot` draws the same from the log.
    let again = folder.path().join("again");
    let page_file = folder.path().join("again.html");
    stdout(&testbed(&[
        "plot",
        log_text,
        "--out",
        again.to_str().unwrap(),
        "--html",
        page_file.to_str().unwrap(),
    ]));
    assert_eq!(names(&again), expected[1..]);
    for name in &expected[1..] {
        let read = |folder: &Path| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(read(&again), read(&plots), "{name}");
    }
    assert!(fs::read_to_string(page_file).unwrap().contains("Tasks of "));
}

#[test]
fn unusable_result_options_are_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let (folder_text, file) = (folder.path().to_str().unwrap(), file.to_str().unwrap());
    let missing = format!("{folder_text}/none/tasks.csv");
    // A run of this length would take hours.
    let long = ["sim", "--tasks", "30000000", "--load", "0.5,0.6,0.7,0.8,0.9", "--seeds", "50"];
    for (option, path, part) in [
        ("--log-tasks", missing.as_str(), "make its folder first"),
        ("--log-tasks", folder_text, "exists there"),
        ("--plot", file, "--plot"),
        ("--html", &missing, "make its folder first"),
    ] {
        let output = testbed(&[&long[..], &[option, path]].concat());
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(option) && text.contains(path) && text.contains(part), "{text}");
    }
    let output = testbed(&["sim", "--tasks", "90000000", "--log-tasks", file]);
    assert!(stderr(&output).contains("at most 33554432 are recorded"), "{}", stderr(&output));
    let output = testbed(&["lockstep", "--soak", "2", "--faults", "none", "--plot", folder_text]);
    assert!(
        stderr(&output).contains("--plot: only for one run; omit --soak"),
        "{}",
        stderr(&output)
    );
    assert_eq!(fs::read_to_string(file).unwrap(), "x", "the previous file is whole");
}

#[test]
fn full_disk_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("tasks.csv");
    // A limit of 8 blocks (4 KiB) for each file stands for a full disk.
    let command = format!(
        "ulimit -f 8; exec {} sim --tasks 20000 --log-tasks {}",
        env!("CARGO_BIN_EXE_wedjat-testbed"),
        log.display()
    );
    let output = Command::new("sh").args(["-c", &command]).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--log-tasks") && text.contains("ulimit -f"), "{text}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no partial file is left");
}

#[test]
fn faulty_logs_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("tasks.csv");
    for (text, part) in [
        ("", "the header has no column scheduled_ns"),
        ("scheduled_ns,response_ns,status\n", "it has no row"),
        (
            "scheduled_ns,response_ns,status\n1,2,answered\n1,x,answered\n",
            "line 3: response_ns is `x`",
        ),
    ] {
        fs::write(&log, text).unwrap();
        let output = testbed(&["plot", log.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        let message = stderr(&output);
        assert!(message.contains(log.to_str().unwrap()) && message.contains(part), "{message}");
    }
}

/// Returns the first block of Python in docs/howto/analyse-results.md, without its indentation, as a script.
fn python() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/howto/analyse-results.md");
    let page = fs::read_to_string(page).unwrap();
    let block = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    block.lines().map(|line| format!("{}\n", line.trim_start())).collect()
}

#[test]
fn pandas_lines_reproduce_p99() {
    let has_pandas = Command::new("python3").args(["-c", "import pandas"]).output();
    if !has_pandas.is_ok_and(|output| output.status.success()) {
        // Written directly to standard error, because the output of passing tests is hidden.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: the lines of docs/howto/analyse-results.md need pandas (Debian: python3-pandas)"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("tasks.csv");
    let arguments =
        ["--policy", "horus,random", "--load", "0.5,0.9", "--tasks", "9000", "--loss", "0.01"];
    let rows = sim(&[&arguments[..], &["--log-tasks", log.to_str().unwrap()]].concat());
    let script = python();
    let output = Command::new("python3").args(["-c", &script]).current_dir(folder.path()).output();
    let text = stdout(&output.unwrap());
    // The last cells of a line are the run, p50 and p99.
    let last_cells = |line: &str| -> Option<[f64; 3]> {
        let cells =
            line.split_whitespace().rev().take(3).map(str::parse).collect::<Result<Vec<_>, _>>();
        cells.ok()?.try_into().ok()
    };
    let printed: Vec<_> = text.lines().filter_map(last_cells).collect();
    // Other lines with three numbers have no whole number in the place of the run.
    let printed: Vec<_> = printed.iter().filter(|[_, _, run]| run.fract() == 0.0).collect();
    assert_eq!(printed.len(), rows.len(), "{text}");
    for [p99, p50, run] in printed {
        let row = &rows[*run as usize - 1];
        assert_equal(*p50, row["p50"].as_f64().unwrap(), 1e-3, &text);
        assert_equal(*p99, row["p99"].as_f64().unwrap(), 1e-3, &text);
    }
}

#[test]
fn runs_with_faults_have_a_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("tasks.csv");
    let text = stdout(&testbed(&[
        "lockstep",
        "--faults",
        "loss=0.02",
        "--tasks",
        "600",
        "--format",
        "json",
        "--log-tasks",
        log.to_str().unwrap(),
    ]));
    let report: Value = serde_json::from_str(&text).unwrap();
    let runs = plot(&log);
    let count = |heading: &str| runs[0][heading].parse::<u64>().unwrap();
    assert_eq!(count("tasks"), report["tasks"].as_u64().unwrap());
    assert_eq!(count("answered"), report["answered"].as_u64().unwrap(), "{report}");
}
