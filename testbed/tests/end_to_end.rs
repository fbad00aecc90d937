//! Generator, leaf, agent and workers that run RocksDB, each as a process, connected over memif. The leaf schedules the
//! tasks of the rack; the agent gives those of its host to workers, through rings in shared memory (the region).
//!
//! All processes poll, on any available CPUs. The load is therefore small, and the tests assert nothing about
//! time. They check the content of every answer, and find every task in the ledgers of all four parts.
#![cfg(all(feature = "dpdk", feature = "rocksdb"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod processes;

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;
use wedjat::ring::WorkerRegion;
use wedjat::state::{MemberPresence, Snapshot};

use processes::*;

const WORKERS: usize = 3;

/// Running leaf, agent and workers, with their files in a folder.
struct RackRig {
    folder: tempfile::TempDir,
    leaf: Process,
    agent: Process,
    workers: Vec<Process>,
    /// Prefix of the names of the abstract sockets of memif.
    name: String,
    mode: Mode,
}

/// Sharing of a worker's core among tasks, and the agent's exclusion of silent workers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// Workers serve one task at a time.
    InOrder,
    /// Tasks share a worker's core.
    Shared,
    /// Tasks share a worker's core, and the agent excludes workers that are silent for this number of milliseconds.
    Excluded(u32),
}

impl RackRig {
    /// Starts leaf, agent and workers, and waits until the leaf has registered all workers. `name` distinguishes the
    /// sockets of the tests.
    fn start(name: &str, mode: Mode) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("wedjat-{name}-{mode:?}-{}", std::process::id());
        let policy = if mode == Mode::InOrder { "cfcfs" } else { "jsq" };
        // 0: the agent excludes no worker for silence.
        let timeout_ms = if let Mode::Excluded(ms) = mode { ms } else { 0 };
        let cpus = core_affinity::get_core_ids().unwrap_or_default();
        // Leaf and agent get different CPUs if there are two.
        let cpu = |i: usize| cpus.get(i % cpus.len().max(1)).map_or(0, |core| core.id);
        let file = |name: &str| folder.path().join(name);
        let leaf = format!(
            "[leaf]\nid = 1\nworker_timeout_ms = 0\ncores = [{}]\nstate = '{}'\nseed = 7\n\
             [[port]]\ndevice = 'net_memif0,role=server,id=0,socket=@{name}-c'\nside = 'clients'\nip = '10.0.1.1/24'\n\
             [[port]]\ndevice = 'net_memif1,role=server,id=1,socket=@{name}-w'\nside = 'workers'\nip = '10.0.2.1/24'\n\
             [[pool]]\nid = 1\npolicy = 'horus'\n\
             [[server]]\nip = '10.0.2.11'\nworkers = '0-2'\npool = 1\nregisters = true\n",
            cpu(0),
            file("leaf.state").display()
        );
        let agent = format!(
            "[agent]\nname = '{}'\ncore = {}\nstate = '{}'\nseed = 7\nworker_timeout_ms = {timeout_ms}\nleaf = '10.0.2.1'\n\
             [[port]]\ndevice = 'net_memif0,role=client,id=1,socket=@{name}-w'\nip = '10.0.2.11/24'\n\
             [[pool]]\nid = 1\npolicy = '{policy}'\nworkers = '0-2'\n",
            file("region").display(),
            cpu(1),
            file("agent.state").display()
        );
        let mut leaf = scheduler(&folder, "leaf", &leaf);
        wait("the leaf", || leaf.runs() && file("leaf.state").exists());
        let mut agent = scheduler(&folder, "agent", &agent);
        wait("the agent", || agent.runs() && file("region").exists());
        let mut rig = Self { folder, leaf, agent, workers: Vec::new(), name, mode };
        rig.workers = (0..WORKERS).map(|_| rig.worker()).collect();
        rig.wait_for_workers();
        let registered = || {
            let snapshot = Snapshot::open(&rig.file("leaf.state")).unwrap();
            let members = snapshot.pools.iter().flat_map(|pool| &pool.members);
            members.filter(|member| member.presence == MemberPresence::Registered).count()
        };
        wait("registrations", || registered() == WORKERS);
        rig
    }

    /// Returns the path of a file in the test's folder.
    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a worker on the RocksDB database of the test's folder. The first worker creates the database.
    fn worker(&self) -> Process {
        let mut command = command("wedjat-testbed");
        command.args(["worker", "--app", "rocksdb", "--format", "json"]).args(LONG_TIMEOUT);
        command.arg("--attach").arg(self.file("region")).arg("--db").arg(self.file("objects"));
        if self.mode != Mode::InOrder {
            command.args(["--sharing", "20us"]);
        }
        Process::start(&mut command)
    }

    /// Opens the memory that the agent shares with its workers.
    fn region(&self) -> WorkerRegion {
        WorkerRegion::open_within(&self.file("region"), TIMEOUT).unwrap()
    }

    /// Waits until the agent has admitted a process for every worker.
    fn wait_for_workers(&self) {
        let region = self.region();
        wait("the workers", || {
            (0..WORKERS).all(|worker| region.has_worker(worker) && region.granted(worker) > 0)
        });
    }

    /// Reads a counter of the running agent.
    fn agent_counter(&self, name: &str) -> u64 {
        counter(&self.file("agent.state"), name)
    }

    /// Starts a generator of 80 tasks a second. At its end it waits for answers for at most `drain`.
    fn generator(&self, drain: &str) -> Process {
        let device = format!("net_memif0,role=client,id=0,socket=@{}-c", self.name);
        let mut command = generator("rocksdb-90-10", "80", "10.0.1.1", drain, &device);
        Process::start(command.args(["--", "--no-pci"]))
    }

    /// Stops all processes in order. Returns the accounts of leaf, agent and workers. Checks that the ledgers balance
    /// and that no packet buffer is leaked.
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

/// Starts a leaf or an agent with this configuration, with its account on standard output.
fn scheduler(folder: &tempfile::TempDir, role: &str, config: &str) -> Process {
    let path = folder.path().join(format!("{role}.toml"));
    std::fs::write(&path, config).unwrap();
    let mut command = command("wedjat");
    command.arg(role).arg("--config").arg(path).args(LONG_TIMEOUT);
    command.args(["--stats", "-", "--", "--no-pci"]);
    Process::start(&mut command)
}

/// Stops the generator and returns its report. The load must have two classes of tasks, GET and SCAN.
fn report(generator: Process) -> Value {
    let report = verified(&generator.end());
    assert_eq!(report["classes"].as_array().unwrap().len(), 2);
    report
}

// promise: measurement.3
#[test]
fn every_task_is_answered_rightly() {
    [Mode::InOrder, Mode::Shared].into_iter().for_each(answers_every_task);
}

/// Runs the rack until it has answered 150 tasks. Asserts that generator, leaf, agent and workers all counted the same
/// number of tasks and answers.
fn answers_every_task(mode: Mode) {
    let rig = RackRig::start("e2e", mode);
    let generator = rig.generator("300s");
    wait("answers", || rig.agent_counter("replies") > 150);
    let report = report(generator);
    let (leaf, agent, workers) = rig.stop();
    let answered = count(&report, "/answered");
    assert_eq!(answered, count(&report, "/sent"), "{report}\n{leaf}\n{agent}");
    assert_eq!(workers.iter().map(|worker| count(worker, "/tasks")).sum::<u64>(), answered);
    assert_eq!((count(&leaf, "/scheduled"), count(&leaf, "/replies")), (answered, answered));
    assert_eq!((count(&agent, "/scheduled"), count(&agent, "/replies")), (answered, answered));
    assert_eq!(count(&agent, "/attach/left"), WORKERS as u64, "{agent}");
}

// promise: agent.2
#[test]
fn killed_worker_loses_only_its_tasks() {
    [Mode::InOrder, Mode::Shared].into_iter().for_each(loses_only_tasks_of_killed);
}

/// Kills a worker under load, and replaces it. The generator must lose the tasks that the agent wrote off, and no
/// others. The killed worker's ring bounds their number.
fn loses_only_tasks_of_killed(mode: Mode) {
    let mut rig = RackRig::start("kill", mode);
    // 10 s suffice for answers that a stalled machine delays. The killed worker never answers its tasks.
    let generator = rig.generator("10s");
    wait("answers", || rig.agent_counter("replies") > 50);
    let region = rig.region();
    // A worker without a grant has lost its place at the agent, and its late answers count no more.
    let is_admitted = |worker| region.granted(worker) != 0;
    let killed = rig.workers.remove(0);
    killed.signal(Signal::KILL);
    assert!(!killed.output().status.success());
    wait("its place to be taken away", || !(0..WORKERS).all(is_admitted));
    let before = rig.agent_counter("replies");
    wait("answers again", || rig.agent_counter("replies") > before + 50);
    // A new process takes the place of the killed worker.
    rig.workers.push(rig.worker());
    rig.wait_for_workers();
    let before = rig.agent_counter("replies");
    wait("answers of all", || rig.agent_counter("replies") > before + 100);
    let report = report(generator);
    let (leaf, agent, workers) = rig.stop();
    let lost = count(&agent, "/drops/worker_lost");
    assert_eq!(count(&report, "/lost"), lost, "{report}\n{leaf}\n{agent}");
    assert_eq!(count(&agent, "/attach/died"), 1, "{agent}");
    // An agent gives each worker a ring of 64 slots by default.
    assert!(lost <= 64, "the killed worker lost more tasks than its ring holds: {agent}");
    assert_eq!(count(&leaf, "/scheduled"), count(&leaf, "/replies") + lost, "{leaf}");
    assert!(workers.iter().all(|worker| count(worker, "/tasks") > 0), "{workers:?}");
}

// promise: agent.2
#[test]
fn suspended_worker_is_excluded_and_ends() {
    let mut rig = RackRig::start("stop", Mode::Excluded(2000));
    let generator = rig.generator("10s");
    wait("answers", || rig.agent_counter("replies") > 50);
    let suspended = rig.workers.remove(0);
    suspended.signal(Signal::STOP);
    let region = rig.region();
    // The agent takes back the grant of a worker that it excludes.
    let is_admitted = |worker| region.granted(worker) != 0;
    wait("its place to be taken away", || !(0..WORKERS).all(is_admitted));
    let before = rig.agent_counter("replies");
    wait("answers of the others", || rig.agent_counter("replies") > before + 50);
    // It finishes the tasks that it had begun. The agent ignores their late answers.
    suspended.signal(Signal::CONT);
    // Status 1: it did not end in order.
    assert_eq!(suspended.output().status.code(), Some(1));
    let report = report(generator);
    let (leaf, agent, _) = rig.stop();
    let lost = count(&agent, "/drops/worker_lost");
    assert_eq!(count(&report, "/lost"), lost, "{report}\n{leaf}\n{agent}");
    assert!(count(&agent, "/attach/silent") >= 1, "{agent}");
    assert_eq!(count(&leaf, "/scheduled"), count(&leaf, "/replies") + lost, "{leaf}");
}
