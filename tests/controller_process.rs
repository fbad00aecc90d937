//! Controller, leaf and agent as processes, joined by memif (DPDK's network device in shared memory). Workers register
//! and join a pool, and everything continues without the controller.
//!
//! The controller stores the desired state, and sends it to leaf and agent. The agent gives tasks to its workers, and
//! registers each attached worker with the leaf. The leaf reports registered workers to the controller, which adds them
//! to a pool that admits them.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod timeouts;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use serde_json::Value;
use wedjat::worker::{Options, Worker};

use timeouts::{LIFETIME, TIMEOUT, wait_until};

const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");

/// A folder with the files of all nodes.
struct Home(tempfile::TempDir);

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Home {
    /// Writes the configurations of a controller, a leaf without workers, and an agent with workers 20 to 22. The leaf
    /// is the memif server, to which the agent connects.
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        let cpus: Vec<_> =
            core_affinity::get_core_ids().unwrap().iter().map(|core| core.id).collect();
        let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
        let (clients, workers) = (home.path("clients.sock"), home.path("workers.sock"));
        let follows =
            format!("[controller]\naddresses = ['unix:{}']\n", home.path("fabric.ctl").display());
        home.write(
            "controller",
            &format!("[controller]\nid = 1\nstore = '{}'\n", home.path("fabric").display()),
        );
        home.write(
            "leaf",
            &format!(
                "[leaf]\nid = 1\ncores = [{first}]\nstate = '{}'\nworker_timeout_ms = 0\n\
                 [[port]]\ndevice = 'net_memif0,role=server,id=0,socket={}'\nside = 'clients'\nip = '10.0.1.1/24'\n\
                 [[port]]\ndevice = 'net_memif1,role=server,id=1,socket={}'\nside = 'workers'\nip = '10.0.2.1/24'\n{follows}",
                home.path("leaf").display(),
                clients.display(),
                workers.display(),
            ),
        );
        home.write(
            "agent",
            &format!(
                "[agent]\nname = '{}'\ncore = {last}\nleaf = '10.0.2.1'\nstate = '{}'\nworker_timeout_ms = 0\n\
                 [[port]]\ndevice = 'net_memif0,role=client,id=1,socket={}'\nip = '10.0.2.11/24'\n\
                 [[pool]]\nid = 7\npolicy = 'cfcfs'\nworkers = '20-22'\n{follows}",
                home.path("region").display(),
                home.path("agent").display(),
                workers.display(),
            ),
        );
        home
    }

    /// Returns the path of a file in the folder.
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes the configuration of the process with this role.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(&format!("{name}.toml")), text).unwrap();
    }

    /// Starts the process with this role: `controller`, `leaf` or `agent`. `--peer-timeout` limits the agent's wait for
    /// the memif server.
    fn start(&self, role: &str) -> Process {
        let mut command = Command::new(WEDJAT);
        command
            .args([role, "--duration", LIFETIME, "--config"])
            .arg(self.path(&format!("{role}.toml")));
        if role != "controller" {
            command.args(["--peer-timeout", "300s", "--", "--no-huge", "-m", "256"]);
        }
        let log = fs::File::create(self.path(&format!("{role}.log"))).unwrap();
        Process(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    /// Runs `wedjat ctl --json` for the controller, by the socket beside its store.
    fn ctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(WEDJAT);
        command.env("WEDJAT_CONTROLLER", self.path("fabric"));
        command.arg("ctl").args(arguments).arg("--json").output().unwrap()
    }

    /// Runs `wedjat ctl`, checks that it succeeds, and returns its output.
    fn ctl_json(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Asks a node, not the controller, for its workers that are not leaving: id and presence. Empty if the node does
    /// not answer.
    fn workers(&self, node: &str) -> Vec<(u64, String)> {
        let state = self.path(node);
        let output = self.ctl(&["--node", state.to_str().unwrap(), "workers"]);
        let Ok(answer) = serde_json::from_slice::<Value>(&output.stdout) else { return Vec::new() };
        let pools = answer["pools"].as_array().unwrap().iter();
        let workers = pools.flat_map(|pool| pool["workers"].as_array().unwrap());
        let present = workers.filter(|one| one["leaving"] == false);
        present
            .map(|one| (one["id"].as_u64().unwrap(), one["presence"].as_str().unwrap().to_owned()))
            .collect()
    }

    /// Returns the ids of a node's workers that are not leaving.
    fn ids(&self, node: &str) -> Vec<u64> {
        self.workers(node).into_iter().map(|one| one.0).collect()
    }
}

/// Starts a thread that is a worker of the agent, with this id, until `stop`. It answers each task with an empty reply.
fn work(home: &Home, id: u16, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let (name, stop) = (home.path("region").display().to_string(), Arc::clone(stop));
    std::thread::spawn(move || {
        let options = Options { worker: Some(id), attach_timeout: TIMEOUT, ..Options::default() };
        let Ok(mut worker) = Worker::attach(&name, &options) else { return };
        while !stop.load(Acquire) {
            match worker.recv(Duration::from_millis(20)) {
                Ok(Some(task)) => task.reply_with(|_, _| 0),
                Ok(None) => {}
                Err(_) => return,
            }
        }
    })
}

// promise: controller.1
#[test]
fn registered_workers_continue_without_the_controller() {
    let home = Home::new();
    let controller = home.start("controller");
    wait_until("the controller leads", || home.ctl(&["topology"]).status.success());
    home.ctl_json(&["add-leaf", "1", "10.0.1.1"]);
    home.ctl_json(&["pool", "create", "7", "--workers", "0", "--policy", "horus", "--admits", "8"]);
    let _leaf = home.start("leaf");
    wait_until("the leaf runs", || home.path("leaf").exists());
    let _agent = home.start("agent");
    wait_until("the agent runs", || home.ids("agent").len() == 3);
    let stop = Arc::<AtomicBool>::default();
    let mut threads = vec![work(&home, 20, &stop), work(&home, 21, &stop)];
    // No file of the leaf or the controller names these workers.
    let registered = |id: u64| (id, "registered".to_owned());
    wait_until("both have registered", || home.workers("leaf") == [registered(20), registered(21)]);
    let node = || home.ctl_json(&["topology"])["leaves"][0].clone();
    wait_until("the leaf reports both to the controller", || node()["node"]["registered"] == 2);
    let server = node()["servers"][0].clone();
    assert_eq!((&server["ip"], &server["workers"]), (&"10.0.2.11".into(), &"20-21".into()));
    wait_until("the agent follows", || node()["servers"][0]["agent"]["connected"] == true);
    assert_eq!(home.ids("agent"), [20, 21, 22], "the agent keeps the place of worker 22");
    // The controller dies and a worker attaches. The leaf keeps its current workers.
    drop(controller);
    threads.push(work(&home, 22, &stop));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(home.workers("leaf"), [registered(20), registered(21)]);
    let _controller = home.start("controller");
    wait_until("the third joins", || home.workers("leaf").contains(&registered(22)));
    // Leaf and agent both remove a deleted pool.
    home.ctl_json(&["--controller", home.path("fabric").to_str().unwrap(), "pool", "delete", "7"]);
    wait_until("the workers are gone at the leaf", || home.ids("leaf").is_empty());
    wait_until("the workers are gone at the agent", || home.ids("agent").is_empty());
    stop.store(true, Release);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
