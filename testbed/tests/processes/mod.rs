//! Processes of the workspace's commands, as tests run them.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Whatever a busy machine needs, also one that stands still for a while; reached only by a test that fails.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// The same for processes under test: none gives another up because it waits for a CPU.
pub const PATIENT: [&str; 2] = ["--patience", "300s"];

/// A command of the workspace. Those of other packages are there after `cargo test --workspace` or `cargo build`.
pub fn command(name: &str) -> Command {
    let path = Path::new(env!("CARGO_BIN_EXE_wedjat-testbed")).with_file_name(name);
    assert!(path.is_file(), "{} is not built: run `cargo build --bins`", path.display());
    let mut command = Command::new(path);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn wait(what: &str, mut there: impl FnMut() -> bool) {
    let began = Instant::now();
    while !there() {
        assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A process that ends with the test.
pub struct Process(Option<Child>);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    /// What it reads, if it was started with a pipe for that.
    pub fn input(&mut self) -> ChildStdin {
        self.0.as_mut().and_then(|child| child.stdin.take()).expect("a pipe")
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.0.as_ref().unwrap()), signal).unwrap();
    }

    /// It has not ended by itself: what it said otherwise.
    pub fn runs(&mut self) -> bool {
        if self.0.as_mut().unwrap().try_wait().unwrap().is_some() {
            panic!("{}", said(&self.0.take().unwrap().wait_with_output().unwrap()));
        }
        true
    }

    pub fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    /// Ends it in order; how it ended.
    pub fn end(self) -> Output {
        self.signal(Signal::TERM);
        self.output()
    }

    /// Ends it in order, and takes its account.
    pub fn stop(self) -> Value {
        let output = self.end();
        assert!(output.status.success(), "{}", said(&output));
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

/// Its messages, and how it ended.
pub fn said(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stderr), output.status)
}

pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(output)))
}

pub fn count(account: &Value, pointer: &str) -> u64 {
    account.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// The configuration of an agent with two workers, one port and one pool: `sends` is what it says of workers' sending.
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

/// What the running leaf or agent that writes this state file has counted under this name.
pub fn counter(state: &Path, name: &str) -> u64 {
    let output = command("wedjat").arg("state").arg(state).arg("--json").output().unwrap();
    let state = serde_json::from_slice(&output.stdout).unwrap_or_default();
    count(&state, &format!("/cores/0/counters/{name}"))
}

/// A generator of these tasks to this address over this device, which sends until it is told to stop and then waits so long
/// for answers. It checks them. Its tasks are so few that a queue of 1024 holds those of ten seconds in which whoever should
/// take them stands still.
pub fn generator(workload: &str, rate: &str, dst: &str, drain: &str, device: &str) -> Command {
    let mut command = command("wedjat-pktgen");
    command.args(["run", "--service", workload, "--verify", "--rate", rate, "--dst", dst]);
    command.args(["--warmup", "0s", "--duration", "3600s", "--drain", drain, "--no-floor"]);
    command.args(PATIENT).args(["--format", "json", "--device", device]);
    command
}

/// The report of a generator that has checked every answer: none was wrong, and its books balance.
pub fn verified(output: &Output) -> Value {
    let report = json(output);
    // A machine that was too busy makes the figures invalid, and the status says so; the books balance nevertheless.
    let status = i32::from(report["valid"] != true);
    assert_eq!(output.status.code(), Some(status), "{}", said(output));
    assert_eq!((&report["verified"], &report["wrong"]), (&true.into(), &0.into()), "{report}");
    for book in report["classes"].as_array().unwrap().iter().chain([&report]) {
        let [sent, answered] = ["/sent", "/answered"].map(|key| count(book, key));
        assert_eq!(sent, answered + count(book, "/refused") + count(book, "/lost"), "{book}");
        assert!(answered > 0, "{book}");
    }
    for stray in ["duplicates", "late_answers", "unknown"] {
        assert_eq!(report[stray], 0, "{report}");
    }
    report
}
