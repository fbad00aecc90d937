//! Processes that a test starts.
#![allow(dead_code, reason = "no test uses all of it")]

use std::process::{Child, ChildStdin, Command, Output};

use serde_json::Value;

/// A process, killed when dropped.
pub struct Running(Option<Child>);

impl Running {
    pub fn start(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    /// Its standard input, which is a pipe.
    pub fn stdin(&mut self) -> ChildStdin {
        self.0.as_mut().unwrap().stdin.take().unwrap()
    }

    pub fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    pub fn signal(&self, signal: &str) {
        let id = self.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// What it has said when it ends.
    pub fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    /// The same after this signal.
    pub fn end(self, signal: &str) -> Output {
        self.signal(signal);
        self.output()
    }

    /// Ended by itself and in order.
    pub fn ended(self) {
        let output = self.output();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The same after this signal.
    pub fn ended_by(self, signal: &str) {
        self.signal(signal);
        self.ended();
    }

    /// A node's account, which balances, after SIGTERM.
    pub fn account(self) -> Value {
        account(&self.end("-TERM"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The account that a node has written at its end, which balances.
pub fn account(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let account: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(account["balanced"], true, "{account}");
    assert_eq!(account["mbufs_leaked"], 0, "{account}");
    account
}
