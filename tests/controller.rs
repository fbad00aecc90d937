//! The controller of a fabric: commands of operators, nodes that follow it, and rejected requests.
//!
//! The controller stores the desired state of a fabric: spines, leaves (racks), servers (worker hosts) and pools of
//! workers. Each accepted command increments the state's version. A controller has a new term each time it becomes the
//! leader. A node follows the controller over a gRPC stream: it first sends a hello, and gets a snapshot, and then
//! changes. Leaves of these tests run in this process, over ports in memory.
#![cfg(feature = "admin")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod rig;
mod timeouts;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use serde_json::Value;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use wedjat::admin::{Handle, Requests};
use wedjat::config::{ControllerAddress, ControllerConfig, FollowConfig};
use wedjat::controller::generated as proto;
use wedjat::controller::generated::fabric_client::FabricClient;
use wedjat::controller::generated::follow_request::Message;
use wedjat::controller::{Controller, ControllerClient, ControllerRole, FollowerThread, NodeId};
use wedjat::stage::UnknownWorker;

use rig::{CoreRig, Sizes};
use timeouts::wait_until;

const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");

/// Folder of a controller, with its configuration, store and socket. Its methods start the controller, and call it as
/// operators do.
struct Home(tempfile::TempDir);

impl Home {
    /// Creates an empty folder.
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Returns the path of a file in the folder.
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes and returns the controller's configuration.
    fn config(&self) -> ControllerConfig {
        let text = format!("[controller]\nid = 1\nstore = '{}'\n", self.path("fabric").display());
        std::fs::write(self.path("controller.toml"), &text).unwrap();
        ControllerConfig::parse(Path::new("controller.toml"), &text).unwrap()
    }

    /// Starts a controller in this process and waits until it leads.
    fn start(&self) -> Controller {
        let controller =
            Controller::start(&self.config()).unwrap_or_else(|error| panic!("{error}"));
        wait_until("the controller leads", || {
            matches!(controller.role(), ControllerRole::Leader { .. })
        });
        controller
    }

    /// Returns the address of the controller's socket.
    fn address(&self) -> ControllerAddress {
        ControllerAddress::Socket(self.path("fabric.ctl"))
    }

    /// Sends these commands to the controller and returns the last version.
    fn ask(&self, commands: &[&str]) -> u64 {
        let mut operator = ControllerClient::open(&self.address(), None).unwrap();
        let mut version = 0;
        for text in commands {
            let done = operator.command(&text.parse().unwrap(), None);
            version = done.unwrap_or_else(|error| panic!("{text}: {error}")).version;
        }
        version
    }

    /// Returns the fabric's state, as the controller shows it.
    fn topology(&self) -> proto::TopologyReply {
        ControllerClient::open(&self.address(), None).unwrap().topology().unwrap()
    }

    /// Runs `wedjat ctl` for this controller.
    fn ctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(WEDJAT);
        command.env("WEDJAT_CONTROLLER", self.path("fabric"));
        command.arg("ctl").args(arguments).output().unwrap()
    }

    /// Runs `wedjat ctl` with `--json`, checks that it succeeds, and returns its output.
    fn ctl_json(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Checks that `wedjat ctl` fails with an error that contains `says`.
    fn refused(&self, arguments: &[&str], says: &str) {
        let output = self.ctl(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains(says) && !stderr.contains("panicked"), "{arguments:?}: {stderr}");
    }
}

/// Returns output of a process as text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A process that ends with the test.
struct Process(Child);

impl Process {
    /// Starts a controller and waits until it leads.
    fn controller(home: &Home) -> Self {
        home.config();
        let mut command = Command::new(WEDJAT);
        command.args(["controller", "--config"]).arg(home.path("controller.toml"));
        let process = Self(command.stderr(Stdio::null()).spawn().unwrap());
        wait_until("the controller leads", || home.ctl(&["topology"]).status.success());
        process
    }

    /// Kills the process and waits for its end.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Commands for a spine, and two leaves with four workers each. A new fabric then has version 5.
const RACKS: [&str; 5] = [
    "add-spine id=1 ip=10.0.1.250",
    "add-leaf id=1 ip=10.0.1.1",
    "add-leaf id=2 ip=10.0.1.2",
    "add-server ip=10.0.2.11 leaf=1 workers=0-3 registers=true",
    "add-server ip=10.0.3.11 leaf=2 workers=0-3",
];

// promise: controller.2
#[test]
fn restart_keeps_an_operators_fabric() {
    let home = Home::new();
    let controller = Process::controller(&home);
    assert_eq!(home.ctl_json(&["add-spine", "1", "10.0.1.250"])["version"], 1);
    home.ctl_json(&["add-leaf", "1", "10.0.1.1"]);
    home.ctl_json(&["add-leaf", "2", "10.0.1.2"]);
    home.ctl_json(&["add-server", "10.0.2.11", "--leaf", "1", "--workers", "0-31", "--registers"]);
    home.ctl_json(&["add-server", "10.0.3.11", "--leaf", "2", "--workers", "0-31", "--speed", "2"]);
    let pool =
        ["pool", "create", "--workers", "40", "--policy", "horus", "--pack", "--spines", "1"];
    let made = home.ctl_json(&pool);
    assert_eq!((&made["version"], &made["pool"]), (&6.into(), &1.into()), "{made}");
    let shown = text(&home.ctl(&["topology"]).stdout);
    for says in [
        "version 6",
        "leaf 1  10.0.1.1  not connected",
        "pool 1  policy horus  40 of 40 workers  pack  2 racks",
    ] {
        assert!(shown.contains(says), "{says}: {shown}");
    }
    home.refused(&["add-leaf", "1", "10.0.9.1"], "id 1: leaf 1 has it already; choose another");
    home.refused(
        &["pool", "create", "--workers", "99", "--policy", "sed"],
        "24 are free; add servers",
    );
    home.refused(&["fail-leaf", "9"], "leaf 9: there is none; `wedjat ctl topology`");
    home.refused(&["restore-leaf", "1", "--if-version", "3"], "the fabric's version is 6, not 3");
    home.refused(
        &["--controller", "/no/where", "topology"],
        "no controller answers at unix:/no/where.ctl",
    );
    home.refused(
        &["--controller", "http://10.1.1.1:7", "topology"],
        "http://127.0.0.1:PORT on this host",
    );
    home.refused(&["--controller", "/a", "drain", "5"], "a controller has no such command");
    let server = ["--controller", "/a", "add-server", "10.0.2.12"];
    home.refused(&server, "a fabric's server needs --leaf and --workers");
    let pool = ["pool", "create", "--workers", "4", "--policy", "sed", "--shared-workers"];
    home.refused(&pool, "--shared-workers: only a pool of a node has it");
    home.refused(&["pool", "--agent", "resize", "1", "4"], "--agent: only a fabric's pool");
    for command in ["reload", "topology"] {
        let arguments = [command, "--if-version", "3"];
        home.refused(&arguments, "--if-version: this command checks no version");
    }
    let failed = home.ctl_json(&["fail-leaf", "1"]);
    assert_eq!(failed["notes"][0], "pool 1 has 32 of 40 workers; add servers", "{failed}");
    let before = home.ctl_json(&["topology"]);
    controller.kill();
    home.refused(&["topology"], "no controller answers at");
    let _controller = Process::controller(&home);
    let mut after = home.ctl_json(&["topology"]);
    assert_eq!(after["term"], 2, "each lead has a new term");
    after["term"] = before["term"].clone();
    assert_eq!(after, before);
    // Only this user can open the store. A second controller is refused, with the same or with another socket.
    let mode = std::os::unix::fs::PermissionsExt::mode;
    assert_eq!(mode(&std::fs::metadata(home.path("fabric")).unwrap().permissions()) & 0o777, 0o600);
    let mut second = Command::new(WEDJAT);
    let second = second.args(["controller", "--config"]).arg(home.path("controller.toml")).output();
    let stderr = text(&second.unwrap().stderr);
    assert!(stderr.contains("another node uses it, process"), "{stderr}");
    let own = format!(
        "[controller]\nid = 2\nstore = '{}'\nsocket = '{}'\n",
        home.path("fabric").display(),
        home.path("own").display()
    );
    let own = ControllerConfig::parse(Path::new("own.toml"), &own).unwrap();
    let error = Controller::start(&own).unwrap_err().to_string();
    assert!(
        error.contains("another controller has it; stop that one, name another file, or use etcd"),
        "{error}"
    );
}

// promise: controller.2
#[test]
fn foreign_store_file_is_left_alone() {
    let home = Home::new();
    std::fs::write(home.path("fabric"), "my letters").unwrap();
    let error = Controller::start(&home.config()).unwrap_err().to_string();
    assert!(error.contains("is open to others than its owner"), "{error}");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(home.path("fabric"), private).unwrap();
    let error = Controller::start(&home.config()).unwrap_err().to_string();
    assert!(error.contains("restore it from a copy, or name a new file"), "{error}");
    assert_eq!(std::fs::read_to_string(home.path("fabric")).unwrap(), "my letters");
}

/// A leaf that polls in the background, with its control and its follower. Its configuration has no pools and no
/// workers: the controller sends them.
struct Leaf {
    /// True when the threads should end.
    stop: Arc<AtomicBool>,
    /// Threads of the core and of the control.
    threads: Vec<JoinHandle<()>>,
    /// Handle for requests to the control.
    handle: Handle,
    /// Registrations of workers that the leaf does not know. The follower reports them to the controller.
    newcomers: Arc<ArrayQueue<UnknownWorker>>,
    /// Thread that follows the controller, and requests the changes from the control.
    following: Option<FollowerThread>,
}

impl Leaf {
    /// Starts a leaf that follows the controller of `home`.
    fn start(home: &Home, id: u16) -> Self {
        Self::with(id, &format!("addresses = ['{}']\n", home.address()))
    }

    /// Starts a leaf with these lines in its `[controller]` section.
    fn with(id: u16, follow: &str) -> Self {
        let text = format!(
            "[leaf]\nid = {id}\ncores = [1]\nseed = 7\n\
             [[port]]\ndevice = 'clients'\nside = 'clients'\nip = '10.0.1.{id}/24'\n\
             [[port]]\ndevice = 'workers'\nside = 'workers'\nip = '10.0.{}.1/24'\n\
             [controller]\n{follow}",
            id + 1,
        );
        let (stop, mut threads) = (Arc::<AtomicBool>::default(), Vec::new());
        let sizes = Sizes { depth: 64, frames: 256, bytes: 256 };
        let staged = rig::stages(&text, None);
        let config = staged.config.controller.clone().unwrap();
        let (mut cores, table, control) = rig::leaves(staged, sizes);
        let CoreRig { mut leaf, far, .. } = cores.remove(0);
        let stopped = Arc::clone(&stop);
        threads.push(std::thread::spawn(move || {
            let (began, _far) = (Instant::now(), far);
            while !stopped.load(Acquire) {
                leaf.poll(began.elapsed().as_nanos() as u64);
                std::thread::sleep(Duration::from_micros(100));
            }
        }));
        let (made, handle) = mpsc::channel();
        let stopped = Arc::clone(&stop);
        threads.push(std::thread::spawn(move || {
            let reader = || Err("it has no file".to_owned());
            let mut requests = Requests::new(control, table, Arc::new(reader));
            made.send(requests.handle()).unwrap();
            while !stopped.load(Acquire) {
                requests.serve_for(Duration::from_millis(20), &Vec::new);
            }
        }));
        let handle = handle.recv().unwrap();
        let newcomers = Arc::new(ArrayQueue::new(16));
        let reported = Some(Arc::clone(&newcomers));
        let following = start_to_follow(config, NodeId::Leaf(id), &handle, reported);
        Self { stop, threads, handle, newcomers, following: Some(following) }
    }

    /// Returns the leaf's workers that are not leaving, by id: id, pool, server, and true if drained.
    fn workers(&self) -> Vec<(u16, u16, String, bool)> {
        let (answer, answered) = mpsc::channel();
        self.handle.snapshot(move |seen| answer.send(seen).unwrap());
        let now = answered.recv().unwrap().membership;
        let shown = |(pool, worker): (usize, &wedjat::control::Worker)| {
            let ip = now.servers[usize::from(worker.server)].unwrap().ip.to_string();
            let pool = now.pools[pool].as_ref().unwrap().id;
            (!worker.is_leaving).then_some((worker.id, pool, ip, worker.is_drained))
        };
        let mut workers: Vec<_> = now.workers().filter_map(shown).collect();
        workers.sort();
        workers
    }

    /// Returns the ids of a pool's workers that are not leaving, in ascending order.
    fn ids(&self, pool: u16) -> Vec<u16> {
        self.workers()
            .into_iter()
            .filter(|worker| worker.1 == pool)
            .map(|worker| worker.0)
            .collect()
    }
}

/// Starts the thread by which a node follows its controller, on any CPU.
fn start_to_follow(
    config: FollowConfig,
    node: NodeId,
    handle: &Handle,
    newcomers: Option<Arc<ArrayQueue<UnknownWorker>>>,
) -> FollowerThread {
    FollowerThread::start(config, node, handle.clone(), newcomers, &[]).unwrap()
}

impl Drop for Leaf {
    fn drop(&mut self) {
        drop(self.following.take());
        self.stop.store(true, Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

// promise: controller.2
#[test]
fn leaf_keeps_its_state_without_the_controller() {
    let home = Home::new();
    let controller = home.start();
    home.ask(&RACKS);
    let leaf = Leaf::start(&home, 1);
    assert!(leaf.workers().is_empty());
    let version = home.ask(&["add-pool id=7 workers=6 policy=horus spines=1"]);
    wait_until("the leaf has its workers", || leaf.ids(7) == [0, 1, 2]);
    wait_until("the leaf acknowledges the version", || {
        let node = home.topology().leaves[0].node.clone().unwrap();
        node.connected && node.version == version
    });
    home.ask(&["drain-server ip=10.0.2.11"]);
    wait_until("the workers are drained", || leaf.workers().iter().all(|one| one.3));
    home.ask(&["undrain-server ip=10.0.2.11"]);
    wait_until("the workers are undrained", || leaf.workers().iter().all(|one| !one.3));
    // Workers join another pool only after they have left this one.
    home.ask(&["remove-pool id=7", "add-pool id=8 workers=8 policy=sed"]);
    wait_until("the workers are in pool 8", || leaf.ids(8) == [0, 1, 2, 3]);
    drop(controller);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(leaf.ids(8), [0, 1, 2, 3], "the leaf keeps its workers");
    let controller = home.start();
    wait_until("the leaf follows again", || {
        home.topology().leaves[0].node.as_ref().unwrap().connected
    });
    home.ask(&["fail-leaf id=1"]);
    wait_until("the failed leaf has no workers", || leaf.workers().is_empty());
    home.ask(&["restore-leaf id=1"]);
    wait_until("the restored leaf has its workers", || leaf.ids(8) == [0, 1, 2, 3]);
    drop(controller);
}

// promise: controller.2
#[test]
fn restored_old_store_reverts_no_node() {
    let home = Home::new();
    let controller = home.start();
    home.ask(&RACKS);
    home.ask(&["add-pool id=7 workers=8 policy=horus"]);
    let leaf = Leaf::start(&home, 1);
    wait_until("the leaf has its workers", || leaf.ids(7) == [0, 1, 2, 3]);
    // The copy is made while the controller leads, so it has that controller's term.
    let copy = std::fs::read(home.path("fabric")).unwrap();
    let newest = home.ask(&["resize-pool id=7 workers=4"]);
    wait_until("the leaf has fewer workers", || leaf.ids(7).len() == 2);
    let newer = leaf.ids(7);
    drop(controller);
    std::fs::write(home.path("fabric"), copy).unwrap();
    // Each new start of the controller has a higher term. It refuses commands all the same.
    for _ in 0..3 {
        let _controller = home.start();
        wait_until("the controller knows that its store is old", || {
            let stderr = text(&home.ctl(&["fail-leaf", "9"]).stderr);
            stderr.contains("leaf 1 has version 7")
                && stderr.contains("start the controller with `--restore`")
        });
        assert_eq!(leaf.ids(7), newer);
        home.refused(&["add-leaf", "9", "10.0.1.9"], "restored from an old copy, or is another");
    }
    let controller = Controller::restore(&home.config()).unwrap();
    wait_until("the leaf has the state of the copy", || leaf.ids(7) == [0, 1, 2, 3]);
    assert!(home.topology().version > newest);
    drop(controller);
    let _controller = home.start();
    home.ask(&["resize-pool id=7 workers=6"]);
    wait_until("the leaf follows again", || leaf.ids(7).len() == 3);
}

// promise: controller.2
#[test]
fn impossible_leaf_change_is_reported() {
    let home = Home::new();
    let _controller = home.start();
    let leaf = Leaf::start(&home, 1);
    home.ask(&RACKS);
    // A server that is reachable from no port of the leaf.
    home.ask(&[
        "add-server ip=192.168.7.7 leaf=1 workers=9",
        "add-pool id=7 workers=9 policy=horus",
    ]);
    wait_until("the leaf reports the reason", || {
        let node = home.topology().leaves[0].node.clone().unwrap();
        node.refuses.contains("no port on the workers' side")
    });
    assert!(leaf.workers().is_empty(), "no part of a refused change applies");
    home.ask(&["remove-server ip=192.168.7.7"]);
    wait_until("the valid change applies", || leaf.ids(7) == [0, 1, 2, 3]);
    let node = || home.topology().leaves[0].node.clone().unwrap();
    wait_until("nothing is refused", || node().refuses.is_empty());
}

// promise: controller.1
#[test]
fn registered_workers_join_an_admitting_pool() {
    let home = Home::new();
    let _controller = home.start();
    home.ask(&RACKS);
    home.ask(&["add-pool id=7 workers=0 policy=horus admits=3"]);
    let leaf = Leaf::start(&home, 1);
    let newcomer = |ip: [u8; 4], worker| UnknownWorker { server: ip.into(), worker, pool: 7 };
    for worker in [20, 21] {
        leaf.newcomers.push(newcomer([10, 0, 2, 77], worker)).unwrap();
    }
    leaf.newcomers.push(newcomer([10, 0, 3, 11], 22)).unwrap(); // a server of another leaf
    wait_until("both workers are admitted", || leaf.ids(7) == [20, 21]);
    // The new server, and the one of `RACKS`.
    let leaves = home.topology().leaves;
    assert_eq!(leaves[0].servers.iter().filter(|one| one.registers).count(), 2);
    assert_eq!((leaves[1].servers.len(), &leaves[1].servers[0].workers[..]), (1, "0-3"));
}

/// A gRPC client in the place of a node. It can send any message, including invalid ones.
struct Raw {
    /// Runs the calls in the calling thread.
    runtime: tokio::runtime::Runtime,
    /// Stub of the controller's service.
    client: FabricClient<tonic::transport::Channel>,
}

/// Both directions of a node's stream: requests to the controller, and its replies.
type Line = (tokio::sync::mpsc::Sender<proto::FollowRequest>, tonic::Streaming<proto::FollowReply>);

impl Raw {
    /// Connects to the controller.
    fn open(home: &Home) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let at = format!("unix:{}", home.path("fabric.ctl").display());
        let endpoint = tonic::transport::Endpoint::from_shared(at).unwrap();
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        Self { runtime, client: FabricClient::new(channel) }
    }

    /// Opens a stream with this first message.
    fn send(&mut self, first: Option<Message>) -> Result<Line, Status> {
        let (sender, messages) = tokio::sync::mpsc::channel(8);
        sender.try_send(proto::FollowRequest { message: first }).unwrap();
        let replies = self.runtime.block_on(self.client.follow(ReceiverStream::new(messages)));
        replies.map(|replies| (sender, replies.into_inner()))
    }

    /// Waits for the next reply; `None` at the end of the stream.
    fn receive(&self, line: &mut Line) -> Result<Option<proto::FollowReply>, Status> {
        self.runtime.block_on(line.1.message())
    }
}

/// Returns the first message of a node without state. `instance` identifies its process.
fn hello(kind: proto::Kind, id: u32, instance: u64) -> proto::Hello {
    let (address, term, version) = (String::new(), 0, 0);
    proto::Hello { protocol: 1, kind: kind.into(), id, address, instance, term, version }
}

// promise: controller.2
#[test]
fn invalid_nodes_are_refused() {
    let home = Home::new();
    let _controller = home.start();
    home.ask(&RACKS);
    let mut raw = Raw::open(&home);
    let leaf = hello(proto::Kind::Leaf, 1, 5);
    let ack = Message::Acknowledge(proto::Acknowledge { version: 1 });
    for (message, code, says) in [
        (None, Code::InvalidArgument, "the first message of a node is its hello"),
        (Some(ack), Code::InvalidArgument, "the first message of a node is its hello"),
        (
            Some(Message::Hello(proto::Hello { protocol: 2, ..leaf.clone() })),
            Code::FailedPrecondition,
            "version 2 of the protocol, and this controller version 1: run one release on both",
        ),
        (
            Some(Message::Hello(hello(proto::Kind::Leaf, 9, 5))),
            Code::NotFound,
            "leaf 9: the fabric has none; add it",
        ),
        (
            Some(Message::Hello(hello(proto::Kind::Leaf, 70_000, 5))),
            Code::InvalidArgument,
            "id 70000",
        ),
        (
            Some(Message::Hello(hello(proto::Kind::Unspecified, 1, 5))),
            Code::InvalidArgument,
            "a node of no kind",
        ),
        (
            Some(Message::Hello(hello(proto::Kind::Agent, 1, 5))),
            Code::InvalidArgument,
            "address \"\"",
        ),
        (
            Some(Message::Hello(proto::Hello { term: 1, version: 99, ..leaf.clone() })),
            Code::FailedPrecondition,
            "has version 99 of term 1, and the store has version 5 of term 1: it was restored from an old copy",
        ),
        (
            Some(Message::Hello(proto::Hello { term: 7, version: 1, ..leaf.clone() })),
            Code::FailedPrecondition,
            "start the controller with `--restore`",
        ),
    ] {
        let status = raw.send(message.clone()).map(|_| ()).unwrap_err();
        let refusal = status.message();
        assert_eq!(status.code(), code, "{message:?}: {refusal}");
        assert!(refusal.contains(says) && refusal.len() < 400, "{message:?}: {refusal}");
    }
    // The first process with an id holds it until it leaves. The same process may connect again.
    let mut first = raw.send(Some(Message::Hello(leaf.clone()))).unwrap();
    let reply = raw.receive(&mut first).unwrap().unwrap();
    assert!(reply.snapshot && reply.version == 5 && reply.term == 1);
    let mut other = Raw::open(&home);
    let status =
        other.send(Some(Message::Hello(hello(proto::Kind::Leaf, 1, 6)))).map(|_| ()).unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
    assert!(
        status.message().contains(
            "leaf 1 follows already, as another process: give each node an id of its own"
        )
    );
    let mut again = other.send(Some(Message::Hello(leaf.clone()))).unwrap();
    assert!(other.receive(&mut again).unwrap().is_some());
    assert!(matches!(raw.receive(&mut first), Ok(None) | Err(_)), "the connection before is over");
    drop((again, other, first, raw));
    let mut third = Raw::open(&home);
    wait_until("the id is free", || {
        third.send(Some(Message::Hello(hello(proto::Kind::Leaf, 1, 6)))).is_ok()
    });
}

#[test]
fn store_copy_without_a_leaf_refuses_commands() {
    let home = Home::new();
    let controller = home.start();
    home.ask(&RACKS);
    let copy = std::fs::read(home.path("fabric")).unwrap();
    let version = home.ask(&["add-leaf id=3 ip=10.0.1.3"]);
    drop(controller);
    std::fs::write(home.path("fabric"), copy).unwrap();
    let _controller = home.start();
    // The copy knows nothing of leaf 3, which has the version that added it.
    let leaf = proto::Hello { term: 1, version, ..hello(proto::Kind::Leaf, 3, 5) };
    let status = Raw::open(&home).send(Some(Message::Hello(leaf))).map(|_| ()).unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("restored from an old copy"), "{status}");
    home.refused(&["add-leaf", "9", "10.0.1.9"], "leaf 3 has version 6");
}

// promise: controller.2
#[test]
fn nodes_get_only_their_own_changes() {
    let home = Home::new();
    let _controller = home.start();
    home.ask(&RACKS);
    let mut raw = Raw::open(&home);
    let mut spine = raw.send(Some(Message::Hello(hello(proto::Kind::Spine, 1, 1)))).unwrap();
    let mut leaf = raw.send(Some(Message::Hello(hello(proto::Kind::Leaf, 2, 2)))).unwrap();
    assert!(raw.receive(&mut spine).unwrap().unwrap().snapshot);
    assert!(raw.receive(&mut leaf).unwrap().unwrap().snapshot);
    home.ask(&["add-pool id=7 workers=4 policy=horus spines=1 address=10.9.0.1"]);
    let reply = raw.receive(&mut spine).unwrap().unwrap();
    let racks: Vec<_> =
        reply.racks.iter().map(|rack| (rack.pool, rack.leaf, rack.workers)).collect();
    assert_eq!(racks, [(7, 1, 2), (7, 2, 2)]);
    assert_eq!(
        (&reply.pools[0].spine_policy[..], &reply.pools[0].address[..]),
        ("horus-spine", "10.9.0.1")
    );
    let reply = raw.receive(&mut leaf).unwrap().unwrap();
    assert_eq!((reply.version, reply.snapshot, reply.workers[0].ids.len()), (6, false, 2));
    assert_eq!((reply.pools[0].spine, &reply.pools[0].spine_address[..]), (1, "10.0.1.250"));
    // Changes of leaf 1 are not sent to leaf 2.
    let version = home.ask(&[
        "drain-server ip=10.0.2.11",
        "undrain-server ip=10.0.2.11",
        "set-policy pool=7 policy=sed",
    ]);
    let reply = raw.receive(&mut leaf).unwrap().unwrap();
    assert_eq!((reply.version, reply.pools.len(), reply.workers.len()), (version, 1, 0));
    home.ask(&["remove-leaf id=2"]);
    let reply = raw.receive(&mut leaf).unwrap().unwrap();
    assert_eq!((reply.gone_pools.len(), reply.gone_workers.len()), (1, 2));
    assert_eq!(raw.receive(&mut leaf).unwrap_err().code(), Code::NotFound);
}

// promise: control.1
#[test]
fn tcp_requires_certificates_of_the_authority() {
    let home = Home::new();
    let tls = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    for name in ["ca", "other-ca", "node", "client", "stranger"] {
        for ending in ["pem", "key"] {
            let (file, own) =
                (tls.join(format!("{name}.{ending}")), home.path(&format!("{name}.{ending}")));
            if file.exists() {
                std::fs::copy(file, &own).unwrap();
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                std::fs::set_permissions(own, mode).unwrap();
            }
        }
    }
    let path = |name: &str| home.path(name).display().to_string();
    let text = format!(
        "[controller]\nid = 1\nstore = '{}'\n[control]\nlisten = '127.0.0.1:0'\ncertificate = '{}'\nkey = '{}'\n\
         clients_ca = '{}'\n",
        path("fabric"),
        path("node.pem"),
        path("node.key"),
        path("ca.pem"),
    );
    let config = ControllerConfig::parse(Path::new("controller.toml"), &text).unwrap();
    let controller = Controller::start(&config).unwrap_or_else(|error| panic!("{error}"));
    wait_until("the controller leads", || {
        matches!(controller.role(), ControllerRole::Leader { .. })
    });
    home.ask(&RACKS);
    home.ask(&["add-pool id=7 workers=6 policy=horus"]);
    let url = format!("https://127.0.0.1:{}", controller.listen.unwrap().port());
    // Returns true if a client with the certificate of `who`, which trusts `ca`, gets the topology.
    let asks = |ca: &str, who: &str| {
        let files = [format!("{ca}.pem"), format!("{who}.pem"), format!("{who}.key")]
            .map(|name| home.path(&name));
        let operator = ControllerClient::open(&ControllerAddress::Url(url.clone()), Some(&files));
        operator.and_then(|mut operator| operator.topology()).is_ok()
    };
    assert!(asks("ca", "client"));
    assert!(!asks("ca", "stranger"), "from another authority");
    assert!(!asks("ca", "node"), "a node's certificate");
    assert!(!asks("other-ca", "client"), "the client trusts another authority only");
    let follow = |who: &str| {
        let files = (path("ca.pem"), path(&format!("{who}.pem")), path(&format!("{who}.key")));
        format!(
            "addresses = ['{url}']\nca = '{}'\ncertificate = '{}'\nkey = '{}'\n",
            files.0, files.1, files.2
        )
    };
    let (leaf, stranger) = (Leaf::with(1, &follow("client")), Leaf::with(2, &follow("stranger")));
    wait_until("the leaf has its workers", || leaf.ids(7) == [0, 1, 2]);
    assert!(stranger.workers().is_empty());
}
