//! Everything at once, each part a process of its own: generator, leaf, agent and workers that run RocksDB, over memif.
//!
//! All of them poll, on whatever CPUs there are, so the load is small and nothing is asserted of time: every answer's
//! content is checked, and every task accounted for, in the books of all four.
#![cfg(all(feature = "dpdk", feature = "rocksdb"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod processes;

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;
use wedjat::ring::WorkerRegion;

use processes::*;

const WORKERS: usize = 3;

/// Leaf, agent and workers, running.
struct Stand {
    folder: tempfile::TempDir,
    leaf: Process,
    agent: Process,
    workers: Vec<Process>,
    name: String,
}

impl Stand {
    fn start(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("wedjat-{name}-{}", std::process::id());
        let cpus = core_affinity::get_core_ids().unwrap_or_default();
        let cpu = |i: usize| cpus.get(i % cpus.len().max(1)).map_or(0, |core| core.id);
        let at = |file: &str| folder.path().join(file);
        let leaf = format!(
            "[leaf]\nid = 1\nworker_timeout_ms = 60000\ncores = [{}]\nstate = '{}'\nseed = 7\n\
             [[port]]\ndevice = 'net_memif0,role=server,id=0,socket=@{name}-c'\nside = 'clients'\nip = '10.0.1.1/24'\n\
             [[port]]\ndevice = 'net_memif1,role=server,id=1,socket=@{name}-w'\nside = 'workers'\nip = '10.0.2.1/24'\n\
             [[pool]]\nid = 1\npolicy = 'horus'\n\
             [[server]]\nip = '10.0.2.11'\nworkers = '0-2'\npool = 1\nregisters = true\n",
            cpu(0),
            at("leaf.state").display()
        );
        let agent = format!(
            "[agent]\nname = '{}'\ncore = {}\nstate = '{}'\nseed = 7\nleaf = '10.0.2.1'\n\
             [[port]]\ndevice = 'net_memif0,role=client,id=1,socket=@{name}-w'\nip = '10.0.2.11/24'\n\
             [[pool]]\nid = 1\npolicy = 'cfcfs'\nworkers = '0-2'\n",
            at("region").display(),
            cpu(1),
            at("agent.state").display()
        );
        let mut leaf = scheduler(&folder, "leaf", &leaf);
        wait("the leaf", || leaf.runs() && at("leaf.state").exists());
        let mut agent = scheduler(&folder, "agent", &agent);
        wait("the agent", || agent.runs() && at("region").exists());
        let mut stand = Self { folder, leaf, agent, workers: Vec::new(), name };
        stand.workers = (0..WORKERS).map(|_| stand.worker()).collect();
        stand.wait_for_workers();
        stand
    }

    fn at(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn worker(&self) -> Process {
        let mut command = command("wedjat-testbed");
        command.args(["worker", "--app", "rocksdb", "--format", "json", "--attach"]);
        command.arg(self.at("region")).arg("--db").arg(self.at("objects"));
        Process::start(&mut command)
    }

    fn wait_for_workers(&self) {
        let region = WorkerRegion::open(&self.at("region")).unwrap();
        wait("the workers", || {
            (0..WORKERS).all(|worker| region.has_worker(worker) && region.granted(worker) > 0)
        });
    }

    /// What the running agent has counted under this name.
    fn agent_counter(&self, name: &str) -> u64 {
        let mut state = command("wedjat");
        let output = state.arg("state").arg(self.at("agent.state")).arg("--json").output().unwrap();
        count(&json(&output), &format!("/cores/0/counters/{name}"))
    }

    fn generator(&self, duration: &str) -> Process {
        let mut command = command("wedjat-pktgen");
        command.args(["run", "--service", "rocksdb-90-10", "--verify", "--rate", "400"]);
        command.args(["--dst", "10.0.1.1", "--warmup", "0s", "--drain", "8s", "--no-floor"]);
        command.args(["--duration", duration, "--format", "json", "--device"]);
        command.arg(format!("net_memif0,role=client,id=0,socket=@{}-c", self.name));
        Process::start(command.args(["--", "--no-pci"]))
    }

    /// Ends all in order; the accounts of leaf, agent and workers.
    fn stop(self) -> (Value, Value, Vec<Value>) {
        let workers = self.workers.into_iter().map(Process::stop).collect();
        let agent = self.agent.stop();
        let leaf = self.leaf.stop();
        for account in [&agent, &leaf] {
            assert_eq!(account["balanced"], true, "{account}");
            assert_eq!(account["mbufs_leaked"], 0, "{account}");
        }
        (leaf, agent, workers)
    }
}

/// A leaf or an agent with this configuration.
fn scheduler(folder: &tempfile::TempDir, role: &str, config: &str) -> Process {
    let path = folder.path().join(format!("{role}.toml"));
    std::fs::write(&path, config).unwrap();
    let mut command = command("wedjat");
    command.arg(role).arg("--config").arg(path).args(["--stats", "-", "--", "--no-pci"]);
    Process::start(&mut command)
}

/// The generator's report, with what must hold of any: answers right, books balanced by class as well.
fn report(generator: Process) -> Value {
    let output = generator.output();
    // 1: the machine was too busy for the figures to be believed; the books balance nevertheless.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", said(&output));
    let report = json(&output);
    assert_eq!((&report["verified"], &report["wrong"]), (&true.into(), &0.into()), "{report}");
    let classes = report["classes"].as_array().unwrap();
    assert_eq!(classes.len(), 2);
    for book in classes.iter().chain([&report]) {
        let [sent, answered] = ["/sent", "/answered"].map(|key| count(book, key));
        assert_eq!(sent, answered + count(book, "/refused") + count(book, "/lost"), "{book}");
        assert!(answered > 0, "{book}");
    }
    for stray in ["duplicates", "late_answers", "unknown"] {
        assert_eq!(report[stray], 0, "{report}");
    }
    report
}

#[test]
fn every_task_is_answered_rightly() {
    let stand = Stand::start("e2e");
    let report = report(stand.generator("1500ms"));
    let (leaf, agent, workers) = stand.stop();
    let answered = count(&report, "/answered");
    assert_eq!(answered, count(&report, "/sent"), "{report}\n{leaf}\n{agent}");
    assert_eq!(workers.iter().map(|worker| count(worker, "/tasks")).sum::<u64>(), answered);
    assert_eq!((count(&leaf, "/scheduled"), count(&leaf, "/replies")), (answered, answered));
    assert_eq!((count(&agent, "/scheduled"), count(&agent, "/replies")), (answered, answered));
    assert_eq!(count(&agent, "/comings/left"), WORKERS as u64, "{agent}");
}

#[test]
fn a_killed_worker_loses_its_own_tasks_and_no_other() {
    let mut stand = Stand::start("kill");
    let generator = stand.generator("3s");
    wait("answers", || stand.agent_counter("replies") > 100);
    let killed = stand.workers.remove(0);
    killed.signal(Signal::KILL);
    let before = stand.agent_counter("replies");
    wait("answers again", || stand.agent_counter("replies") > before + 100);
    assert!(!killed.output().status.success());
    // Another comes in its place.
    stand.workers.push(stand.worker());
    stand.wait_for_workers();
    let report = report(generator);
    let (leaf, agent, workers) = stand.stop();
    let lost = count(&agent, "/drops/worker_lost");
    assert_eq!(count(&report, "/lost"), lost, "{report}\n{leaf}\n{agent}");
    assert_eq!(count(&agent, "/comings/died"), 1, "{agent}");
    assert!(lost <= 64, "no more than its ring holds: {agent}");
    assert_eq!(count(&leaf, "/scheduled"), count(&leaf, "/replies") + lost, "{leaf}");
    assert!(workers.iter().all(|worker| count(worker, "/tasks") > 0), "{workers:?}");
}
