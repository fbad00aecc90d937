//! Processes started by tests. A node is a process `wedjat leaf`, `wedjat spine` or `wedjat agent`. At its end it
//! prints its account: packets and tasks by port, pool and drop reason, as JSON.
#![allow(dead_code, reason = "no test uses all of it")]

use std::process::{Child, ChildStdin, Command, Output};

use serde_json::Value;

/// A process, killed when dropped. Holds `None` only after [`ChildProcess::output`], which consumes the process.
pub struct ChildProcess(Option<Child>);

impl ChildProcess {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Self {
        Self::of(command.spawn().unwrap())
    }

    /// Takes over a started process.
    pub fn of(child: Child) -> Self {
        Self(Some(child))
    }

    /// Takes its standard input. Panics if it is no pipe, or in a second call.
    pub fn stdin(&mut self) -> ChildStdin {
        self.0.as_mut().unwrap().stdin.take().unwrap()
    }

    pub fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Sends a signal, such as `-TERM`.
    pub fn signal(&self, signal: &str) {
        let id = self.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits for the end of the process and returns its output.
    pub fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
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
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
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
