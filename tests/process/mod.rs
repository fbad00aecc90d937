//! Processes started by tests. A node is a process `wedjat leaf`, `wedjat spine` or `wedjat agent`. At its end it
//! prints its account: packets and tasks by port, pool and drop reason, as JSON.
#![allow(dead_code, reason = "no test uses all of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

/// Time in which a stopped process must end in a failing test.
const END_MAX: Duration = Duration::from_secs(10);

/// Maximum number of lines of a log file in a failing test.
const LOG_LINES: usize = 50;

/// A process, killed when dropped.
pub struct ChildProcess {
    /// The process; `None` only after [`ChildProcess::output`], which consumes it.
    child: Option<Child>,
    /// File of its standard error, see [`log_of`].
    log: Option<PathBuf>,
}

impl ChildProcess {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Self {
        Self::of(command.spawn().unwrap())
    }

    /// Takes over a started process.
    pub fn of(child: Child) -> Self {
        Self { log: log_of(child.id(), std::process::id()), child: Some(child) }
    }

    /// Takes its standard input. Panics if it is no pipe, or in a second call.
    pub fn stdin(&mut self) -> ChildStdin {
        self.child.as_mut().unwrap().stdin.take().unwrap()
    }

    pub fn id(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Sends a signal, such as `-TERM`.
    pub fn signal(&self, signal: &str) {
        let id = self.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits for the end of the process and returns its output.
    pub fn output(mut self) -> Output {
        self.child.take().unwrap().wait_with_output().unwrap()
    }

    /// Sends this signal, waits for the end of the process, and returns its output.
    pub fn end(self, signal: &str) -> Output {
        self.signal(signal);
        self.output()
    }

    /// Waits until the process ends, and checks that it succeeds.
    pub fn ended(self) {
        let output = self.output();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Sends this signal, waits until the process ends, and checks that it succeeds.
    pub fn ended_by(self, signal: &str) {
        self.signal(signal);
        self.ended();
    }

    /// Stops a node with SIGTERM. Checks and returns its account, as [`account`] does.
    pub fn account(self) -> Value {
        account(&self.end("-TERM"))
    }
}

impl Drop for ChildProcess {
    /// Kills the process. Under a panic, which fails the test, stops it and prints its output instead: a node then
    /// still writes its account.
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if std::thread::panicking() {
            print_end(child);
            return self.log.iter().for_each(|log| print_log(log));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Returns the file of a process's standard error; `None` if it is no file. Also returns `None` if process `parent` has
/// the same one, because an inherited standard error is no log of its own.
pub fn log_of(process: u32, parent: u32) -> Option<PathBuf> {
    let file_of = |process: u32| fs::read_link(format!("/proc/{process}/fd/2")).ok();
    file_of(process).filter(|log| log.is_file() && file_of(parent).as_ref() != Some(log))
}

/// Ends a process, by SIGKILL after [`END_MAX`], and prints its status and its output, where this is a pipe.
fn print_end(mut child: Child) {
    let id = child.id().to_string();
    let state = if matches!(child.try_wait(), Ok(None)) { "ran until now" } else { "had ended" };
    let _ = Command::new("kill").args(["-TERM", &id]).stderr(Stdio::null()).status();
    let (ended, is_ended) = mpsc::channel::<()>();
    let process = id.clone();
    let killer = std::thread::spawn(move || {
        if is_ended.recv_timeout(END_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").args(["-KILL", &process]).status();
        }
    });
    let output = child.wait_with_output();
    drop(ended);
    let _ = killer.join();
    match output {
        Ok(Output { status, stdout, stderr }) => {
            let [stdout, stderr] =
                [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            eprintln!("process {id} {state}: {status}\n{stderr}{stdout}");
        }
        Err(error) => eprintln!("process {id} {state}: {error}"),
    }
}

/// Prints the last lines of a log file.
fn print_log(path: &Path) {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    eprintln!("{}:\n{}", path.display(), last.join("\n"));
}

/// Returns the account written by a node at its end. Checks that the node succeeded, and that no packet buffer is
/// missing. The account must balance: each received packet is sent, dropped for a reason, or consumed.
pub fn account(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let account: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(account["balanced"], true, "{account}");
    assert_eq!(account["mbufs_leaked"], 0, "{account}");
    account
}
