//! Worker processes from a user's view. The test itself is the agent: it creates the region (shared memory), grants the
//! claims by which workers request channels, and gives tasks through a ring of each channel.
#![allow(clippy::unwrap_used, reason = "a test")]

mod processes;

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use wedjat::ring::{Channel, Outcome, TaskIds, WorkerIdentity, WorkerRegion};
use wedjat_pktgen::mix::Workload;
use wedjat_pktgen::oracle::Oracle;
use wedjat_pktgen::payload::{LEN, Work, seed_of};

use processes::{LONG_TIMEOUT, wait};

/// Number of the client in its task ids.
const APP: u32 = 5;

/// Returns the command of a worker.
fn worker(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat-testbed"));
    command.arg("worker").args(LONG_TIMEOUT).args(arguments);
    command
}

/// Runs a command to its end.
fn output(command: &mut Command) -> Output {
    command.output().expect("the command starts")
}

/// Converts output to text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The part of an agent that workers see.
struct Agent {
    _folder: tempfile::TempDir,
    path: PathBuf,
    /// Memory shared with the workers.
    region: Arc<WorkerRegion>,
    /// The agent's ends of the channels to the workers.
    channels: Vec<Channel>,
}

impl Agent {
    /// Creates an agent for this number of workers of pool 1, with ids from 7.
    fn new(workers: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent");
        let identities: Vec<_> =
            (0..workers).map(|id| WorkerIdentity { id: 7 + id, pool: 1 }).collect();
        // Each worker's ring has 4 slots of 64 bytes.
        let region = Arc::new(WorkerRegion::create(&path, &identities, 4, 64).unwrap());
        let channels = (0..identities.len()).map(|channel| region.channel(channel)).collect();
        Self { _folder: folder, path, region, channels }
    }

    /// Returns the agent's name for `--attach`, the path of its region.
    fn name(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Waits until workers have claimed all channels, and grants each claim. A claim is a number that a worker writes.
    /// Only granted workers get tasks.
    fn welcome(&mut self) {
        let channels = &mut self.channels;
        wait("the workers claim channels", || {
            for channel in channels.iter_mut() {
                let claim = channel.sender().claim();
                if claim != channel.sender().granted() {
                    channel.sender_mut().grant(claim);
                }
            }
            channels.iter().all(|channel| channel.sender().is_granted())
        });
    }

    /// Gives every worker this number of tasks, one at a time, and checks each answer. The tasks take the
    /// operations 1 to `operations` in turn.
    fn work(&mut self, tasks: u32, workload: Workload, operations: u16) {
        let oracle = Oracle::new(workload, LEN);
        for channel in &mut self.channels {
            for seq in 0..tasks {
                let operation = 1 + (seq % u32::from(operations)) as u16;
                let mut work = [0; LEN];
                Work { service_ns: 0, operation, seed: seed_of(APP, seq) }.emit(&mut work);
                assert!(channel.send(TaskIds { app: APP, seq, class: operation }, &work));
                // Numbers of the completions since the last look.
                let mut done = 0..0;
                wait("the answer comes", || {
                    done = channel.collect().unwrap();
                    !done.is_empty()
                });
                let task = channel.sender().completed(done.start);
                let Outcome::Reply { len, .. } = channel.outcome(task) else {
                    panic!("{:?}", channel.outcome(task))
                };
                let mut reply = vec![0; len];
                channel.reply(task, &mut reply);
                // The oracle returns the operation to which this is the right answer.
                assert_eq!(oracle.answered(APP, seq, &reply), Some(operation), "{reply:?}");
            }
        }
    }
}

/// A worker process that ends with the test.
struct Process(Child);

impl Process {
    /// Starts a worker with these arguments.
    fn start(arguments: &[&str]) -> Self {
        let mut command = worker(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("the worker starts"))
    }

    /// Sends a signal to the process.
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("the worker still runs");
    }

    /// Waits for the end of the process and returns its output.
    fn end(mut self) -> Output {
        // The wait consumes the child, which a type with `Drop` cannot give away. So `drop` gets another process.
        let child = std::mem::replace(&mut self.0, Command::new("true").spawn().unwrap());
        child.wait_with_output().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Parses the account that a worker prints at its end.
fn account(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

#[test]
fn missing_agent_is_reported_before_the_app_starts() {
    let nowhere = tempfile::tempdir().unwrap();
    let name = nowhere.path().join("agent");
    // Returns the error of a worker at the agent `name`. Its app has an impossible folder, which would be an error too.
    let error_at = |name: &str| {
        let app = ["--app", "rocksdb", "--db", "/proc/no/objects"];
        let refused = output(&mut worker(&[&app[..], &["--attach", name]].concat()));
        assert!(!refused.status.success());
        text(&refused.stderr).to_lowercase()
    };
    let error = error_at(name.to_str().unwrap());
    assert!(error.contains("start the agent") && !error.contains("rocksdb"), "{error}");
    let agent = Agent::new(1);
    let error = error_at(agent.name());
    assert!(error.contains("/proc/no/objects") || error.contains("without rocksdb"), "{error}");
}

// promise: measurement.3
#[test]
fn workers_answer_until_stopped() {
    let apps =
        [("echo", Workload::Echo, 1), ("spin", Workload::Spin, 3), ("tpcc", Workload::Tpcc, 5)];
    let sharing = [&[][..], &["--sharing", "5us,3"], &["--sharing", "20us", "--sharing-timer"]];
    for ((app, workload, operations), sharing) in apps.into_iter().zip(sharing) {
        let mut agent = Agent::new(2);
        let arguments = ["--app", app, "--workers", "2", "--format", "json", "--attach"];
        let process = Process::start(&[&arguments[..], &[agent.name()], sharing].concat());
        agent.welcome();
        agent.work(20, workload, operations);
        process.signal(Signal::TERM);
        let output = process.end();
        assert!(output.status.success(), "{}", text(&output.stderr));
        // Two workers with 20 tasks each.
        let account = account(&output);
        assert_eq!((&account["app"], &account["tasks"]), (&app.into(), &40.into()), "{account}");
        let mut ids = [0, 1].map(|at| account["workers"][at]["worker"].as_u64().unwrap());
        ids.sort_unstable();
        assert_eq!(ids, [7, 8]);
        assert_eq!(account["workers"][0]["ended"], "stopped");
        assert!(!agent.region.has_worker(0) && !agent.region.has_worker(1), "free channels");
    }
}

// promise: measurement.3
#[cfg(feature = "rocksdb")]
#[test]
fn a_database_is_filled_read_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("objects");
    // The first worker fills the database, the second one finds it.
    for _ in 0..2 {
        let mut agent = Agent::new(1);
        let arguments = ["--app", "rocksdb", "--db", database.to_str().unwrap(), "--attach"];
        let process = Process::start(&[&arguments[..], &[agent.name()]].concat());
        agent.welcome();
        agent.work(6, Workload::RocksDb, 2);
        process.signal(Signal::TERM);
        let output = process.end();
        let errors = text(&output.stderr);
        assert!(output.status.success() && errors.contains("median GET"), "{errors}");
        assert!(text(&output.stdout).contains("6 tasks answered"), "{}", text(&output.stdout));
    }
    assert!(database.join("CURRENT").exists());
}

// promise: measurement.3
#[test]
fn only_an_orderly_agent_ends_workers_cleanly() {
    for in_order in [true, false] {
        let mut agent = Agent::new(1);
        let process = Process::start(&["--app", "echo", "--attach", agent.name()]);
        agent.welcome();
        agent.work(2, Workload::Echo, 1);
        match in_order {
            true => agent.channels[0].stop(),
            // The agent holds a lock on its region while it lives. The drop releases it, like the end of a process.
            false => drop(agent),
        }
        let output = process.end();
        assert_eq!(output.status.code(), Some(if in_order { 0 } else { 1 }));
        let reason = if in_order { "the agent has stopped" } else { "the agent has died" };
        assert!(text(&output.stdout).contains(reason), "{}", text(&output.stdout));
    }
}

#[test]
fn mistakes_name_input_reason_and_fix() {
    let agent = Agent::new(1);
    let unknown_worker = ["--app", "echo", "--worker", "3", "--attach", agent.name()];
    let mut mistakes = vec![
        (&["--app", "lucene", "--attach", "host1"][..], "lucene", "spin, rocksdb, tpcc, echo"),
        (&["--app", "spin"], "--attach <NAME>", "required"),
        (
            &["--app", "echo", "--attach", "wedjat-no-such-agent"],
            "does not exist",
            "start the agent",
        ),
        (&["--app", "spin", "--db", "/run/x", "--attach", "host1"], "--db", "no database"),
        (&unknown_worker, "no worker with id 3", "[7]"),
        (&["--app", "echo", "--sharing", "10us,0", "--attach", "host1"], "SLOTS", "from 1"),
        (&["--app", "echo", "--sharing-timer", "--attach", "host1"], "--sharing", "required"),
    ];
    let database = ["--app", "rocksdb", "--attach", agent.name(), "--db", "/proc/no/objects"];
    match cfg!(feature = "rocksdb") {
        true => mistakes.push((&database, "/proc/no/objects", "give a writable folder")),
        false => mistakes.push((&database, "built without RocksDB", "--features rocksdb")),
    }
    for (arguments, reason, fix) in mistakes {
        let output = output(&mut worker(arguments));
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(reason) && errors.contains(fix), "{arguments:?}: {errors}");
    }
}

#[test]
fn second_worker_in_a_place_is_refused() {
    let mut agent = Agent::new(1);
    let first = Process::start(&["--app", "echo", "--attach", agent.name()]);
    agent.welcome();
    let output = output(&mut worker(&["--app", "echo", "--attach", agent.name()]));
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("has a process at every requested worker"), "{errors}");
    agent.work(1, Workload::Echo, 1);
    drop(first);
}
