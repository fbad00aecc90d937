//! The configurations `agent-leaf.toml` and `agent.toml` of examples/ work together. Processes over memif: leaf, agent,
//! a process of two workers, and a generator before and after the workers register with the leaf.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod processes;

use std::path::{Path, PathBuf};

use serde_json::Value;
use wedjat::state::{MemberPresence, Snapshot};

use processes::*;

/// Folder and sockets of the leaf and agent of the examples. `start` starts either.
struct Pair {
    folder: tempfile::TempDir,
    /// Prefix of the abstract sockets.
    name: String,
}

impl Pair {
    /// Creates an empty folder and a prefix for the sockets. Starts nothing.
    fn new() -> Self {
        let name = format!("wedjat-examples-{}", std::process::id());
        Self { folder: tempfile::tempdir().unwrap(), name }
    }

    /// Returns the path of a file in the test's folder.
    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts `wedjat leaf` or `wedjat agent` with an example, whose sockets, files and CPUs it replaces.
    fn start(&self, role: &str, example: &str) -> Process {
        let cpus = core_affinity::get_core_ids().unwrap();
        let cpu = |index: usize| cpus[index % cpus.len()].id.to_string();
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
        let mut text = std::fs::read_to_string(examples.join(example)).unwrap();
        let path = |name: &str| self.file(name).display().to_string();
        for (from, to) in [
            ("socket=wedjat-", format!("socket=@{}-", self.name)),
            ("\"/dev/shm/wedjat-leaf1\"", format!("\"{}\"", path("leaf.state"))),
            ("\"/dev/shm/wedjat-agent1\"", format!("\"{}\"", path("agent.state"))),
            ("\"host1\"", format!("\"{}\"", path("region"))),
            ("cores = [0]", format!("cores = [{}]", cpu(0))),
            ("core = 1", format!("core = {}", cpu(1))),
            // Neither node excludes a silent worker: workers on a busy machine are silent now and then. The first line
            // is the leaf's, the second one the agent's.
            ("seed = 7\n", "seed = 7\nworker_timeout_ms = 0\n".to_owned()),
            ("\nleaf = ", "\nworker_timeout_ms = 0\nleaf = ".to_owned()),
        ] {
            text = text.replace(from, &to);
        }
        let config = self.file(example);
        std::fs::write(&config, text).unwrap();
        let mut command = command("wedjat");
        command.arg(role).arg("--config").arg(config).args(LONG_TIMEOUT);
        Process::start(command.args(["--stats", "-", "--", "--no-pci"]))
    }

    /// Returns the number of workers with this presence in the leaf's state file.
    fn workers(&self, presence: MemberPresence) -> usize {
        let snapshot = Snapshot::open(&self.file("leaf.state")).unwrap();
        let members = snapshot.pools.iter().flat_map(|pool| &pool.members);
        members.filter(|member| member.presence == presence).count()
    }

    /// Returns the number of tasks that the leaf dropped because no worker may receive tasks (`no_member`).
    fn no_member(&self) -> u64 {
        let snapshot = Snapshot::open(&self.file("leaf.state")).unwrap();
        snapshot.cores.iter().filter_map(|core| core.drops.get("no_member")).sum()
    }
}

// promise: membership.4
#[test]
fn every_task_after_registration_is_answered() {
    let pair = Pair::new();
    let mut leaf = pair.start("leaf", "agent-leaf.toml");
    wait("the leaf", || leaf.runs() && Snapshot::open(&pair.file("leaf.state")).is_ok());
    // Tasks that arrive before any worker registers are dropped.
    let device = format!("net_memif0,role=client,id=0,socket=@{}-clients", pair.name);
    let generator = |drain| {
        let mut command = generator("exp(50us)", "200", "10.0.1.1", drain, &device);
        Process::start(command.args(["--", "--no-pci"]))
    };
    let early = generator("1s");
    wait("tasks without a worker", || leaf.runs() && pair.no_member() > 20);
    // The examples have four workers.
    assert_eq!(pair.workers(MemberPresence::Unregistered), 4);
    let early = count(&json(&early.end()), "/sent");
    wait("the rest of them", || pair.no_member() == early);

    let mut agent = pair.start("agent", "agent.toml");
    wait("the agent", || agent.runs() && pair.file("region").exists());
    let mut worker = command("wedjat-testbed");
    worker
        .args(["worker", "--app", "spin", "--format", "json", "--workers", "2"])
        .args(LONG_TIMEOUT);
    let worker = Process::start(worker.arg("--attach").arg(pair.file("region")));
    wait("registered workers", || agent.runs() && pair.workers(MemberPresence::Registered) == 2);
    assert_eq!(pair.workers(MemberPresence::Unregistered), 2, "those that no process attached to");
    let generator = generator("300s");
    wait("answers", || agent.runs() && counter(&pair.file("agent.state"), "replies") > 200);
    let report = verified(&generator.end());
    drop(worker.end());
    let (agent, leaf): (Value, Value) = (agent.stop(), leaf.stop());
    let answered = count(&report, "/answered");
    assert_eq!(answered, count(&report, "/sent"), "{report}\n{leaf}\n{agent}");
    assert_eq!((count(&leaf, "/scheduled"), count(&leaf, "/replies")), (answered, answered));
    assert_eq!(count(&leaf, "/drops/no_member"), early, "{leaf}");
    assert_eq!(count(&agent, "/scheduled"), answered, "{agent}");
}
