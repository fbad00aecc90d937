//! Processes of the workspace's commands, as tests run them.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Whatever a busy machine needs; reached only by a test that fails.
const PATIENCE: Duration = Duration::from_secs(60);

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

    /// Ends it in order, and takes its account.
    pub fn stop(self) -> Value {
        self.signal(Signal::TERM);
        let output = self.output();
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
        "[agent]\nname = 'here'\ncore = {cpu}\nstate = '{}'\nseed = 7\nworker_sends = '{sends}'\n\
         [[port]]\ndevice = '{device}'\nip = '10.0.1.11/24'\n\
         [[pool]]\nid = 1\npolicy = 'jbsq(k=2)'\nworkers = '4-5'\n",
        folder.join("state").display()
    );
    let config = folder.join("agent.toml");
    std::fs::write(&config, text).unwrap();
    config
}

/// The report of a generator that has checked every answer: none was wrong.
pub fn verified(output: &Output) -> Value {
    // 1: the machine was too busy for the figures to be believed; the books balance nevertheless.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", said(output));
    let report = json(output);
    assert_eq!((&report["verified"], &report["wrong"]), (&true.into(), &0.into()), "{report}");
    report
}
