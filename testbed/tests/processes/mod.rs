//! Processes of the workspace's commands for the tests of this folder: start and end, counters, and configurations.
//! Nodes with `--stats -`, and workers with `--format json`, print an account at their end: a JSON object with counts
//! of packets and tasks.
#![allow(dead_code, unused_imports, reason = "each test uses what it needs")]

#[path = "../../../tests/timeouts/mod.rs"]
mod timeouts;

use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub use timeouts::{TIMEOUT, wait_until as wait};

/// Flag for processes under test: the wait for their peer lasts up to [`TIMEOUT`], because the peer may lack a CPU.
/// Peers are a memif server, the next hop, and a worker's agent.
pub const LONG_TIMEOUT: [&str; 2] = ["--peer-timeout", "300s"];

/// Returns a command of the workspace, with pipes for its outputs. `cargo test --workspace` and `cargo build` make
/// those of other packages.
pub fn command(name: &str) -> Command {
    let path = Path::new(env!("CARGO_BIN_EXE_wedjat-testbed")).with_file_name(name);
    assert!(path.is_file(), "{} is not built: run `cargo build --bins`", path.display());
    let mut command = Command::new(path);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Process that is killed on drop, so that a failed test leaves none. `None` after its output was taken.
pub struct Process(Option<Child>);

impl Process {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    /// Takes the standard input of a process that was started with a pipe for it. Its drop closes the pipe. Panics at
    /// a second call.
    pub fn input(&mut self) -> ChildStdin {
        self.0.as_mut().and_then(|child| child.stdin.take()).expect("a pipe")
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.0.as_ref().unwrap()), signal).unwrap();
    }

    /// Returns true if the process runs. Panics with its messages otherwise, so that a [`wait`] for the process fails
    /// at once and with the reason.
    pub fn runs(&mut self) -> bool {
        if self.0.as_mut().unwrap().try_wait().unwrap().is_some() {
            panic!("{}", output_text(&self.0.take().unwrap().wait_with_output().unwrap()));
        }
        true
    }

    /// Waits for the end of the process and returns its output.
    pub fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    /// Sends SIGTERM, on which the process stops in order, and returns its output after its end.
    pub fn end(self) -> Output {
        self.signal(Signal::TERM);
        self.output()
    }

    /// Same as [`Process::end`], but returns the account from the standard output. Panics if the process failed.
    pub fn stop(self) -> Value {
        let output = self.end();
        assert!(output.status.success(), "{}", output_text(&output));
        json(&output)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the standard error and the exit status of a process, as text for failed checks.
pub fn output_text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stderr), output.status)
}

/// Parses the standard output of a process as one JSON value. Panics with its messages otherwise.
pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", output_text(output)))
}

/// Returns a count of an account by its JSON pointer; 0 if it is missing.
pub fn count(account: &Value, pointer: &str) -> u64 {
    account.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// Writes the configuration of an agent with two workers, one port and one pool, and returns its path. The agent
/// writes the state file `state` in `folder`. `sends` is its `worker_sends`, the sender of the worker threads' replies:
/// the thread if it has a transmit queue (`try`), the thread or no start (`must`), or the agent's core (`never`).
pub fn agent_config(folder: &Path, device: &str, sends: &str) -> PathBuf {
    let cpu = core_affinity::get_core_ids().unwrap()[0].id;
    let text = format!(
        "[agent]\nname = 'here'\ncore = {cpu}\nstate = '{}'\nseed = 7\nworker_timeout_ms = 0\nworker_sends = '{sends}'\n\
         [[port]]\ndevice = '{device}'\nip = '10.0.1.11/24'\n\
         [[pool]]\nid = 1\npolicy = 'jbsq(k=2)'\nworkers = '4-5'\n",
        folder.join("state").display()
    );
    let config = folder.join("agent.toml");
    std::fs::write(&config, text).unwrap();
    config
}

/// Reads a counter of the first core of the running leaf or agent that writes this state file, by `wedjat state`. 0 if
/// the file cannot be read, for example before the node has created it.
pub fn counter(state: &Path, name: &str) -> u64 {
    let output = command("wedjat").arg("state").arg(state).arg("--json").output().unwrap();
    let state = serde_json::from_slice(&output.stdout).unwrap_or_default();
    count(&state, &format!("/cores/0/counters/{name}"))
}

/// Returns the command of a generator that verifies every answer. It sends `rate` tasks a second to the address `dst`
/// until it is stopped, at most for an hour. Then it waits for answers for at most `drain`. Use rates near 100: a
/// device queue of 1024 packets then holds the tasks of ten seconds, so that a receiver without a CPU loses none.
pub fn generator(workload: &str, rate: &str, dst: &str, drain: &str, device: &str) -> Command {
    let mut command = command("wedjat-pktgen");
    command.args(["run", "--service", workload, "--verify", "--rate", rate, "--dst", dst]);
    command.args(["--warmup", "0s", "--duration", "3600s", "--drain", drain, "--no-floor"]);
    command.args(LONG_TIMEOUT).args(["--format", "json", "--device", device]);
    command
}

/// Checks a generator's report and returns it: no answer is wrong or stray, every class has answers, and each task was
/// answered, refused or lost. A class is a kind of task in the workload.
pub fn verified(output: &Output) -> Value {
    let report = json(output);
    // On a busy machine the figures are invalid, and the exit status is 1. The ledgers balance in any case.
    let status = i32::from(report["valid"] != true);
    assert_eq!(output.status.code(), Some(status), "{}", output_text(output));
    assert_eq!((&report["verified"], &report["wrong"]), (&true.into(), &0.into()), "{report}");
    for class in report["classes"].as_array().unwrap().iter().chain([&report]) {
        let [sent, answered] = ["/sent", "/answered"].map(|key| count(class, key));
        assert_eq!(sent, answered + count(class, "/refused") + count(class, "/lost"), "{class}");
        assert!(answered > 0, "{class}");
    }
    for stray in ["duplicates", "late_answers", "unknown"] {
        assert_eq!(report[stray], 0, "{report}");
    }
    report
}
