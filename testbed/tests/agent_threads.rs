//! `wedjat-testbed agent` under load from the generator: its worker threads send their replies themselves, from
//! transmit queues of their own. An agent's dispatcher (polling core) receives tasks and gives them to workers.
//!
//! All threads poll, on any available CPUs. Loads are therefore small, and nothing is asserted about time.
//! The tests check the content of every answer and account for every task.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod processes;

use std::io::Write as _;
use std::process::Stdio;

use serde_json::Value;

use processes::*;

/// Configuration of an agent with two worker threads, and the socket to its generator. Its methods start both.
struct AgentRig {
    /// Folder of the agent's configuration and state file.
    folder: tempfile::TempDir,
    /// Abstract socket of memif between agent and generator.
    socket: String,
}

impl AgentRig {
    /// Creates the rig. `role` is the agent's memif role; `sends` is the value of `worker_sends` in its
    /// configuration. If the workers lack transmit queues of their own, `must` refuses to start, and `try` lets the
    /// dispatcher send their replies.
    fn new(name: &str, role: &str, sends: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = format!("@wedjat-{name}-{}", std::process::id());
        let device = format!("net_memif0,role={role},id=0,socket={socket}");
        agent_config(folder.path(), &device, sends);
        Self { folder, socket }
    }

    /// Returns the path of the agent's configuration.
    fn config(&self) -> String {
        self.folder.path().join("agent.toml").display().to_string()
    }

    /// Starts the agent with an app. It reads changes from its standard input.
    fn agent(&self, app: &str) -> Process {
        let mut agent = command("wedjat-testbed");
        agent.args(["agent", "--app", app, "--stats", "-", "--config", &self.config()]);
        agent.args(["--changes", "-"]).stdin(Stdio::piped());
        Process::start(agent.args(LONG_TIMEOUT).args(["--", "--no-pci"]))
    }

    /// Starts a generator of 100 tasks a second, with `more_queues` receive queues in addition to the first. At its end
    /// it waits for answers for at most `drain`.
    fn generator(&self, role: &str, more_queues: &str, workload: &str, drain: &str) -> Process {
        let device = format!("net_memif0,role={role},id=0,socket={}", self.socket);
        let mut command = generator(workload, "100", "10.0.1.11", drain, &device);
        Process::start(command.args(["--more-rx", more_queues, "--", "--no-pci"]))
    }

    /// Reads a counter of the running agent.
    fn counter(&self, name: &str) -> u64 {
        counter(&self.folder.path().join("state"), name)
    }

    /// Runs the agent, and a generator with this memif role, until the agent has sent more than 150 replies. Then stops
    /// both. Returns the generator's report and the agent's account. Checks that ledgers balance and answers are right.
    fn run(&self, role: &str, more_queues: &str, app: &str, workload: &str) -> (Value, Value) {
        let agent = self.agent(app);
        let generator = self.generator(role, more_queues, workload, "300s");
        wait("answers", || self.counter("replies") > 150);
        let report = verified(&generator.end());
        let account = agent.stop();
        assert_eq!(account["balanced"], true, "{account}");
        assert_eq!(account["mbufs_leaked"], 0, "{account}");
        let answered = count(&report, "/answered");
        assert_eq!(count(&account, "/replies"), answered, "{report}\n{account}");
        // The agent's own packets, such as ARP replies, are not in this counter.
        assert_eq!(count(&account, "/tx_packets"), answered, "{account}");
        (report, account)
    }
}

// promise: agent.1
#[test]
fn threads_send_every_answer_themselves_and_rightly() {
    for (app, workload) in [("spin", "exp(50us)"), ("echo", "echo")] {
        let rig = AgentRig::new("own", "client", "must");
        let (report, account) = rig.run("server", "2", app, workload);
        assert_eq!(count(&report, "/answered"), count(&report, "/sent"), "{report}\n{account}");
        assert_eq!(count(&account, "/scheduled"), count(&account, "/replies"), "{account}");
        // Both threads sent replies, and both left in order at the end.
        assert_eq!(
            (count(&account, "/senders"), count(&account, "/attach/left")),
            (2, 2),
            "{account}"
        );
    }
}

/// The driver of a memif server does not know which of its queues lead to the peer. A memif client gets at
/// most as many queues as its server has.
// promise: agent.1
#[test]
fn missing_transmit_queues_use_dispatcher_or_refuse() {
    for (agent_role, generator_role) in [("server", "client"), ("client", "server")] {
        let rig = AgentRig::new("shared", agent_role, "try");
        let (report, account) = rig.run(generator_role, "0", "echo", "echo");
        assert_eq!(count(&report, "/answered"), count(&report, "/sent"), "{report}\n{account}");
        // Neither thread sent replies itself, but both joined the agent.
        assert_eq!(
            (count(&account, "/senders"), count(&account, "/attach/joined")),
            (0, 2),
            "{account}"
        );
    }
    let refused = AgentRig::new("refused", "server", "must").agent("echo").output();
    let errors = output_text(&refused);
    assert_eq!(refused.status.code(), Some(2), "{errors}");
    assert!(errors.contains("has 0 transmit queues to spare for 2 workers"), "{errors}");
    assert!(errors.contains("set worker_sends = \"try\""), "{errors}");
}

// promise: agent.2
#[test]
fn stopped_agent_accounts_for_every_task() {
    let rig = AgentRig::new("end", "client", "try");
    let agent = rig.agent("spin");
    let generator = rig.generator("server", "2", "fixed(100us)", "1s");
    wait("answers", || rig.counter("replies") > 100);
    let account = agent.stop();
    assert_eq!(account["balanced"], true, "{account}");
    assert_eq!(account["mbufs_leaked"], 0, "{account}");
    let lost =
        ["worker_lost", "shutdown"].map(|reason| count(&account, &format!("/drops/{reason}")));
    // Each task was answered, or dropped for one of these reasons at the end.
    let ended = count(&account, "/replies") + lost.iter().sum::<u64>();
    assert_eq!(count(&account, "/scheduled"), ended, "{account}");
    let report = verified(&generator.end());
    // The memif device ends with the agent. A stalled generator loses the replies that it had not yet
    // received.
    assert!(count(&report, "/answered") <= count(&account, "/replies"), "{report}\n{account}");
}

// promise: agent.1
#[test]
fn threads_change_and_leave_but_never_join() {
    let rig = AgentRig::new("changes", "client", "try");
    let mut agent = rig.agent("spin");
    let generator = rig.generator("server", "2", "fixed(100us)", "300s");
    wait("answers", || rig.counter("replies") > 100);
    // The agent refuses the first of these changes: its workers are threads, and no process may join them.
    let changes = "add-workers pool=1 workers=9\nset-policy pool=1 policy=weighted-random\n\
                   set-queue pool=1 queue=8\nset-speed workers=4 speed=2\nremove-workers workers=5\n";
    agent.input().write_all(changes.as_bytes()).unwrap();
    // Returns the ids of the agent's workers in its state file.
    let worker_ids = || {
        let path = rig.folder.path().join("state");
        let output = command("wedjat").arg("state").arg(path).arg("--json").output().unwrap();
        let state: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let workers = state["pools"][0]["members"].as_array().cloned().unwrap_or_default();
        workers.iter().filter_map(|worker| worker["worker"].as_u64()).collect::<Vec<_>>()
    };
    wait("a worker that leaves", || worker_ids() == [4]);
    let before = rig.counter("replies");
    wait("answers of the other", || rig.counter("replies") > before + 100);
    let report = verified(&generator.end());
    let output = agent.end();
    let (account, printed) = (json(&output), output_text(&output));
    assert!(output.status.success(), "{printed}");
    assert_eq!((&account["balanced"], &account["mbufs_leaked"]), (&true.into(), &0.into()));
    assert_eq!(count(&report, "/answered"), count(&report, "/sent"), "{report}\n{account}");
    assert_eq!(count(&account, "/replies"), count(&report, "/answered"), "{account}");
    assert_eq!(count(&account, "/attach/left"), 2, "{account}");
    let policy = account["policy"].as_str().unwrap();
    assert!(account["workers"] == 1 && policy.starts_with("weighted-random"), "{account}");
    // The refused change and the last accepted one.
    for line in ["workers are threads of its own process", "remove-workers workers=5"] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
}

// promise: agent.1
#[test]
fn mistakes_name_input_reason_and_fix() {
    let rigs = ["sometimes", "try"].map(|sends| AgentRig::new("mistakes", "client", sends));
    let [invalid, valid] = rigs.each_ref().map(AgentRig::config);
    let mistakes = [
        (vec!["--app", "echo", "--config", &invalid], "sometimes", "`try`, `must`, `never`"),
        (vec!["--app", "echo", "--config", "/no/such/file"], "/no/such/file", "No such file"),
        (vec!["--app", "lucene", "--config", &valid], "lucene", "spin, rocksdb, tpcc, echo"),
        (vec!["--app", "echo", "--db", "/run/x", "--config", &valid], "--db", "no database"),
        (vec!["--app", "echo", "--cpus", "4096", "--config", &valid], "no CPU 4096", "may use ["),
    ];
    for (arguments, reason, fix) in mistakes {
        let output = command("wedjat-testbed").arg("agent").args(&arguments).output().unwrap();
        let errors = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(reason) && errors.contains(fix), "{arguments:?}: {errors}");
    }
}
