//! Several controllers with etcd: leadership, takeover, and writes of deposed leaders. Skipped without etcd.
//!
//! Controllers store the desired state of a fabric (here a list of leaves and spines) in etcd. One of them leads while
//! its lease in etcd lasts; each lead has a term, a number that grows. Only the leader may change the state. All other
//! controllers stand by. Each accepted change increments the fabric's version.
#![cfg(feature = "admin")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod etcd;
#[path = "../testbed/src/free_address.rs"]
mod free_address;
mod timeouts;

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio_stream::wrappers::ReceiverStream;
use wedjat::config::{ControllerAddress, ControllerConfig};
use wedjat::controller::generated::fabric_client::FabricClient;
use wedjat::controller::generated::{self as proto, TopologyReply};
use wedjat::controller::{Controller, ControllerClient, ControllerRole};

use etcd::proxy::{Action, Proxy};
use etcd::{Etcd, Process};
use timeouts::wait_until;

const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");
/// Shortest lease that etcd grants.
const LEASE: Duration = Duration::from_secs(2);

/// etcd, and the settings of the controllers that store their fabric in it.
struct Controllers {
    /// The processes of etcd.
    etcd: Etcd,
    /// Length of the leader's lease, for configurations written from now on.
    lease: Duration,
    /// URLs of etcd's members through proxies, by controller id. Controllers without an entry connect
    /// directly.
    proxied: HashMap<u16, Vec<String>>,
}

// Tests call the methods of `Etcd` on the controllers, too.
impl Deref for Controllers {
    type Target = Etcd;

    fn deref(&self) -> &Etcd {
        &self.etcd
    }
}

impl DerefMut for Controllers {
    fn deref_mut(&mut self) -> &mut Etcd {
        &mut self.etcd
    }
}

impl Controllers {
    /// Starts etcd with `members` members, each with the further arguments `more`. Prints a note and returns `None` if
    /// etcd is not installed.
    fn start(members: usize, more: &[&'static str]) -> Option<Self> {
        let etcd = Etcd::start(members, more)?;
        Some(Self { etcd, lease: LEASE, proxied: HashMap::new() })
    }

    /// Writes a controller's configuration, with the present lease and URLs, and returns its path.
    fn file(&self, id: u16) -> PathBuf {
        let urls = self.proxied.get(&id).cloned().unwrap_or_else(|| self.urls());
        let urls: Vec<_> = urls.iter().map(|url| format!("'{url}'")).collect();
        let text = format!(
            "[controller]\nid = {id}\netcd = [{}]\nlease_s = {}\nsocket = '{}'\n\
             [control]\nlisten = '127.0.0.1:0'\n",
            urls.join(", "),
            self.lease.as_secs(),
            self.socket(id).display()
        );
        let file = self.folder.path().join(format!("controller{id}.toml"));
        std::fs::write(&file, text).unwrap();
        file
    }

    /// Returns the path of a controller's socket.
    fn socket(&self, id: u16) -> PathBuf {
        self.folder.path().join(format!("controller{id}.ctl"))
    }

    /// Starts a controller in this process. The test can read its role, and ends it in order by a drop.
    fn controller(&self, id: u16) -> Controller {
        Controller::start(&ControllerConfig::load(&self.file(id)).unwrap()).unwrap()
    }

    /// Starts a controller as a process of its own, for tests that stop or kill it by a signal.
    fn process(&self, id: u16) -> Process {
        Process(self.command(id).spawn().unwrap())
    }

    /// Writes a controller's configuration, and returns the command that starts the controller.
    fn command(&self, id: u16) -> Command {
        let mut command = Command::new(WEDJAT);
        command.args(["controller", "--config"]).arg(self.file(id)).stderr(Stdio::null());
        command
    }

    /// Sends a command to this controller as an operator. Returns the fabric's new version, or the error as text.
    fn ask(&self, id: u16, text: &str) -> Result<u64, String> {
        let address = ControllerAddress::Socket(self.socket(id));
        let mut operator =
            ControllerClient::open(&address, None).map_err(|error| error.to_string())?;
        let done = operator.command(&text.parse().unwrap(), None);
        done.map(|done| done.version).map_err(|error| error.to_string())
    }

    /// Asks this controller for its term. `None` if it does not lead or cannot be reached. For controllers in other
    /// processes; [`term`] reads the role of one in this process.
    fn leads(&self, id: u16) -> Option<u64> {
        Some(self.topology(id)?.term)
    }

    /// Asks this controller for the leaves of its fabric. `None` as for `topology`.
    fn leaves(&self, id: u16) -> Option<Vec<u32>> {
        Some(self.topology(id)?.leaves.iter().map(|leaf| leaf.id).collect())
    }

    /// Asks this controller for its fabric. `None` if it does not lead or cannot be reached.
    fn topology(&self, id: u16) -> Option<TopologyReply> {
        let address = ControllerAddress::Socket(self.socket(id));
        ControllerClient::open(&address, None).ok()?.topology().ok()
    }
}

/// Returns the term of a controller in this process, if it leads.
fn term(controller: &Controller) -> Option<u64> {
    match controller.role() {
        ControllerRole::Leader { term, .. } => Some(term),
        ControllerRole::Standby(_) => None,
    }
}

// promise: controller.2, controller.3
#[test]
fn next_leader_has_all_kept_changes() {
    let Some(mut etcd) = Controllers::start(1, &[]) else { return };
    // The lease outlasts the test, so that only an orderly end can hand over the lead.
    etcd.lease = Duration::from_secs(3600);
    let first = etcd.controller(1);
    wait_until("the first leads", || term(&first).is_some());
    assert_eq!(etcd.ask(1, "add-spine id=1 ip=10.0.0.1"), Ok(1));
    assert_eq!(etcd.ask(1, "add-leaf id=1 ip=10.0.1.1"), Ok(2));
    let second = etcd.controller(2);
    let refused = etcd.ask(2, "add-leaf id=2 ip=10.0.1.2").unwrap_err();
    assert!(refused.contains("this controller stands by"), "{refused}");
    wait_until("the second names the leader", || {
        let refused = etcd.ask(2, "add-leaf id=2 ip=10.0.1.2").unwrap_err();
        refused.contains("this controller stands by: controller 1 at") && refused.ends_with("leads")
    });
    // A controller that ends hands over the lead long before its lease expires.
    let before = term(&first);
    drop(first);
    wait_until("the next leads", || term(&second).is_some());
    assert!(term(&second) > before);
    assert_eq!(etcd.ask(2, "add-leaf id=2 ip=10.0.1.2"), Ok(3));
    let ControllerRole::Leader { fabric, .. } = second.role() else { panic!() };
    assert_eq!((fabric.version, fabric.leaves.len(), fabric.spines.len()), (3, 2, 1));
}

// promise: controller.3
#[test]
fn killed_leader_is_replaced() {
    let Some(etcd) = Controllers::start(3, &[]) else { return };
    let first = etcd.process(1);
    wait_until("the first leads", || etcd.leads(1).is_some());
    assert_eq!(etcd.ask(1, "add-leaf id=1 ip=10.0.1.1"), Ok(1));
    let second = etcd.controller(2);
    first.signal("-KILL");
    let began = Instant::now();
    wait_until("the other leads", || term(&second).is_some());
    eprintln!("another leads after {:?}, with a lease of {LEASE:?}", began.elapsed());
    assert_eq!(etcd.ask(2, "add-leaf id=2 ip=10.0.1.2"), Ok(2));
}

// promise: controller.3
#[test]
fn stopped_leader_can_write_nothing() {
    let Some(mut etcd) = Controllers::start(3, &[]) else { return };
    let first = etcd.process(1);
    wait_until("the first leads", || etcd.leads(1).is_some());
    assert_eq!(etcd.ask(1, "add-leaf id=1 ip=10.0.1.1"), Ok(1));
    let second = etcd.controller(2);
    first.signal("-STOP");
    let began = Instant::now();
    wait_until("the other leads", || term(&second).is_some());
    eprintln!("another leads after {:?}, with a lease of {LEASE:?}", began.elapsed());
    assert_eq!(etcd.ask(2, "add-leaf id=2 ip=10.0.1.2"), Ok(2));
    // The resumed controller refuses a request at once, with or without knowledge of its deposition.
    let socket = etcd.socket(1);
    let asked = std::thread::spawn(move || {
        let mut operator = ControllerClient::open(&ControllerAddress::Socket(socket), None).ok()?;
        Some(operator.command(&"add-leaf id=9 ip=10.0.1.9".parse().unwrap(), None))
    });
    std::thread::sleep(Duration::from_millis(50));
    first.signal("-CONT");
    let answer = asked.join().unwrap();
    assert!(!matches!(answer, Some(Ok(_))), "{answer:?}");
    let refused = etcd.ask(1, "add-leaf id=8 ip=10.0.1.8").unwrap_err();
    assert!(refused.contains("does not lead") || refused.contains("stands by"), "{refused}");
    // etcd loses one of three members; a quorum remains.
    etcd.kill(0);
    // During etcd's election, the fate of a command may be unknown, and either controller may lead
    // afterwards. The command is therefore repeated until it is written.
    wait_until("the command is written", || {
        let _ = [1, 2].map(|id| etcd.ask(id, "add-leaf id=3 ip=10.0.1.3"));
        [1, 2].iter().any(|&id| etcd.leaves(id) == Some(vec![1, 2, 3]))
    });
}

// promise: controller.2, controller.3
#[test]
fn etcd_outage_suspends_the_lead_and_keeps_data() {
    let Some(mut etcd) = Controllers::start(1, &[]) else { return };
    let controller = etcd.controller(1);
    wait_until("the controller leads", || term(&controller).is_some());
    assert_eq!(etcd.ask(1, "add-leaf id=1 ip=10.0.1.1"), Ok(1));
    // etcd stalls: a request is not acknowledged, and the lease expires.
    etcd.signal(0, "-STOP");
    let refused = etcd.ask(1, "add-leaf id=2 ip=10.0.1.2").unwrap_err();
    assert!(
        refused.contains("whether the command is kept is not known")
            || refused.contains("stands by"),
        "{refused}"
    );
    wait_until("the controller lost the lead", || term(&controller).is_none());
    etcd.signal(0, "-CONT");
    wait_until("the controller leads again", || term(&controller).is_some());
    etcd.kill(0);
    wait_until("the controller lost the lead", || term(&controller).is_none());
    let refused = etcd.ask(1, "add-leaf id=3 ip=10.0.1.3").unwrap_err();
    assert!(refused.contains("stands by"), "{refused}");
    wait_until("the controller gives the reason", || {
        let ControllerRole::Standby(reason) = controller.role() else { return false };
        reason.contains("no member of etcd can be reached") && reason.contains("what runs goes on")
    });
    etcd.members[0] = Some(etcd.spawn(0));
    wait_until("the controller leads again", || term(&controller).is_some());
    assert!(etcd.ask(1, "add-leaf id=3 ip=10.0.1.3").is_ok());
    let ControllerRole::Leader { fabric, .. } = controller.role() else { panic!() };
    assert!(fabric.leaves.contains_key(&1) && fabric.leaves.contains_key(&3));
}

/// Minimum interval between two readings of the clock that counts as a stall of the machine.
const STALL: Duration = Duration::from_millis(500);

/// Kills the member that leads etcd, and sends a command to the leading controller during etcd's election. Then starts
/// the member again. Returns an error if the command is refused, or if the term is another one a lease later.
///
/// Returns `None` after a stall of the machine, or an election longer than half the lease, such as one with a split
/// vote. Such a run proves nothing.
fn kill_etcd_leader(
    etcd: &mut Controllers,
    controller: &Controller,
    command: &str,
) -> Option<Result<(), String>> {
    let mut leader = None;
    wait_until("etcd has a leader", || {
        leader = etcd.leader().filter(|_| (0..3).all(|at| etcd.is_healthy_at(at)));
        leader.is_some() && term(controller).is_some()
    });
    let (leader, before) = (leader?, term(controller));
    etcd.kill(leader);
    let began = Instant::now();
    let (mut last_look, mut stall, mut election) = (began, Duration::ZERO, None);
    let shared = &*etcd;
    let answer = std::thread::scope(|scope| {
        let elected = scope.spawn(move || {
            wait_until("etcd has another leader", || shared.is_healthy_at((leader + 1) % 3));
            began.elapsed()
        });
        let asked = scope.spawn(move || shared.ask(1, command));
        while began.elapsed() < shared.lease || !asked.is_finished() || !elected.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
            stall = stall.max(last_look.elapsed());
            last_look = Instant::now();
        }
        election = elected.join().ok();
        asked.join().unwrap()
    });
    let after = term(controller);
    etcd.members[leader] = Some(etcd.spawn(leader));
    eprintln!("etcd elected another leader within {election:?}; longest stall {stall:?}");
    let is_short = stall < STALL && election.is_some_and(|took| took < etcd.lease / 2);
    let is_kept = answer.is_ok() && after.is_some() && before == after;
    let lost = || format!("{answer:?}; term {before:?}, then {after:?}");
    is_short.then(|| if is_kept { Ok(()) } else { Err(lost()) })
}

// promise: controller.3
#[test]
fn dead_etcd_member_keeps_the_lead() {
    let Some(mut etcd) = Controllers::start(3, &[]) else { return };
    etcd.lease = Duration::from_secs(5);
    let controller = etcd.controller(1);
    // On a busy machine the controller's own threads may stall, so up to two lost leads are no failure.
    let mut lost = Vec::new();
    for leaf in 1..=9 {
        let command = format!("add-leaf id={leaf} ip=10.0.1.{leaf}");
        match kill_etcd_leader(&mut etcd, &controller, &command) {
            Some(Ok(())) => return,
            Some(Err(error)) => lost.push(error),
            None => {}
        }
        assert!(lost.len() < 3, "{lost:?}");
    }
    eprintln!("SKIPPED: etcd had no short election in which the lead stayed; lost leads: {lost:?}");
}

/// Compiles a library for `LD_PRELOAD`, checks it, and returns its path. With it the time of day is a day ahead and a
/// day behind in turn, for a second each. The monotonic clock is unchanged.
fn leaping_clock(folder: &Path) -> PathBuf {
    let library = folder.join("clock.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/clock.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(&library).args([source, "-ldl"]);
    assert!(cc.status().unwrap().success());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let shown = Command::new("date").arg("+%s").env("LD_PRELOAD", &library).output().unwrap();
    let shown: u64 = String::from_utf8(shown.stdout).unwrap().trim().parse().unwrap();
    // A day has 86,400 s.
    assert!(shown.abs_diff(now) > 40_000, "the time of day does not leap");
    library
}

// promise: controller.3
#[test]
fn clock_jump_keeps_the_lead() {
    let Some(mut etcd) = Controllers::start(1, &[]) else { return };
    etcd.lease = Duration::from_secs(20);
    let clock = leaping_clock(etcd.folder.path());
    let _leader = Process(etcd.command(1).env("LD_PRELOAD", clock).spawn().unwrap());
    wait_until("the first leads", || etcd.leads(1).is_some());
    let before = etcd.leads(1);
    for leaf in 1..=6 {
        let text = format!("add-leaf id={leaf} ip=10.0.1.{leaf}");
        assert_eq!(etcd.ask(1, &text), Ok(leaf));
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(etcd.leads(1), before);
}

// promise: controller.2
#[test]
fn restored_old_etcd_is_reported_by_its_leader() {
    let Some(mut etcd) = Controllers::start(1, &[]) else { return };
    let (data, copy) = (etcd.folder.path().join("m0"), etcd.folder.path().join("copy"));
    let duplicate = |from: &Path, to: &Path| {
        let done = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
        assert!(done.success());
    };
    let first = etcd.controller(1);
    wait_until("the first leads", || term(&first).is_some());
    assert_eq!(etcd.ask(1, "add-leaf id=1 ip=10.0.1.1"), Ok(1));
    etcd.kill(0);
    duplicate(&data, &copy);
    etcd.members[0] = Some(etcd.spawn(0));
    wait_until("the first writes again", || {
        let _ = etcd.ask(1, "add-leaf id=2 ip=10.0.1.2");
        etcd.leaves(1) == Some(vec![1, 2])
    });
    etcd.kill(0);
    std::fs::remove_dir_all(&data).unwrap();
    duplicate(&copy, &data);
    etcd.members[0] = Some(etcd.spawn(0));
    // Returns true if a text reports the old copy.
    let reports_copy = |text: &str| {
        text.contains("the store has version 1 ")
            && text.contains("this controller has led with version 2 ")
            && text.contains("was restored from an old copy")
    };
    wait_until("the old copy is reported", || {
        // The controller may get the request before it notices. The store then rejects the write because of
        // its version.
        let refused = etcd.ask(1, "add-leaf id=3 ip=10.0.1.3").expect_err("nothing is written");
        reports_copy(&refused)
    });
    // A fresh controller knows no newer version, so it accepts the old state. It would refuse nodes with a newer
    // version.
    let second = etcd.controller(2);
    wait_until("the other leads", || term(&second).is_some());
    assert_eq!(etcd.leaves(2), Some(vec![1]));
    drop(second);
    wait_until(
        "the first still reports it",
        || matches!(first.role(), ControllerRole::Standby(reason) if reports_copy(&reason)),
    );
}

// promise: controller.2
#[test]
fn full_etcd_is_reported() {
    let Some(etcd) = Controllers::start(1, &["--quota-backend-bytes", "65536"]) else { return };
    let controller = etcd.controller(1);
    let mut leaf = 0;
    let full = |text: &str| text.contains("it is full: compact and defragment it");
    wait_until("etcd is full", || {
        leaf += 1;
        let ip = format!("10.{}.{}.1", leaf / 250, leaf % 250 + 1);
        let refused = etcd.ask(1, &format!("add-leaf id={leaf} ip={ip}")).err();
        let ControllerRole::Standby(reason) = controller.role() else {
            return refused.is_some_and(|text| full(&text));
        };
        full(&reason) || refused.is_some_and(|text| full(&text))
    });
    assert!(Path::new(&etcd.socket(1)).exists());
}

// promise: controller.2
#[test]
fn late_write_of_an_abandoned_attempt_is_refused() {
    let Some(mut etcd) = Controllers::start(1, &[]) else { return };
    etcd.lease = Duration::from_secs(3600);
    let proxy = Proxy::start(&etcd.urls()[0]);
    etcd.proxied.insert(1, vec![proxy.url()]);
    let first = etcd.controller(1);
    wait_until("the first leads", || term(&first).is_some());
    let before = term(&first);
    // The key of the store's first change.
    proxy.catch("log/00000000000000000001", Action::Hold);
    let refused = etcd.ask(1, "add-leaf id=1 ip=10.0.1.1").unwrap_err();
    assert!(refused.contains("whether the command is kept is not known"), "{refused}");
    assert!(proxy.has_caught());
    wait_until("the first leads in a new term", || term(&first).is_some());
    // The proxy delivers the held write of the old term, like a kernel that retransmits it late.
    proxy.deliver();
    assert_eq!(etcd.ask(1, "add-leaf id=2 ip=10.0.1.2"), Ok(1));
    assert_eq!(etcd.leaves(1), Some(vec![2]));
    let after = term(&first);
    drop(first);
    let second = etcd.controller(2);
    wait_until("the next leads", || term(&second).is_some());
    assert_eq!(etcd.leaves(2), Some(vec![2]), "only the acknowledged change is kept");
    assert!(after > before);
}

/// A client of a controller, without keep-alive and timeout: it waits for an answer however long the controller stalls.
/// `ControllerClient` would give up.
struct Client {
    /// Runs the client's calls in the calling thread.
    runtime: tokio::runtime::Runtime,
    /// Stub of the controller's service.
    client: FabricClient<tonic::transport::Channel>,
}

impl Client {
    /// Connects to a URL of TCP or of a Unix socket.
    fn connect(url: String) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let endpoint = tonic::transport::Endpoint::from_shared(url).unwrap();
        let client = FabricClient::new(runtime.block_on(endpoint.connect()).unwrap());
        Self { runtime, client }
    }

    /// Asks for the fabric's state.
    fn topology(&mut self) -> Result<TopologyReply, tonic::Status> {
        let reply = self.runtime.block_on(self.client.topology(proto::TopologyRequest {}));
        reply.map(tonic::Response::into_inner)
    }

    /// Sends a command, to be executed only at the fabric's version `if_version` if one is given. Returns the new
    /// version.
    fn command(&mut self, text: &str, if_version: Option<u64>) -> Result<u64, tonic::Status> {
        let request = proto::CommandRequest { command: text.to_owned(), if_version };
        let reply = self.runtime.block_on(self.client.command(request));
        reply.map(|reply| reply.into_inner().version)
    }
}

/// The client side of a leaf that follows a controller. It applies nothing.
struct Leaf {
    /// Connection to the controller.
    client: Client,
    /// The controller's replies, once the leaf follows.
    replies: Option<tonic::Streaming<proto::FollowReply>>,
}

impl Leaf {
    /// Connects to a controller.
    fn connect(controller: &Controller) -> Self {
        let client = Client::connect(format!("http://{}", controller.listen.unwrap()));
        Self { client, replies: None }
    }

    /// Follows the controller as leaf 1. Returns the first version that it gets.
    fn follow(&mut self) -> Result<u64, tonic::Status> {
        let hello = proto::Hello {
            protocol: 1,
            kind: proto::Kind::Leaf.into(),
            id: 1,
            instance: 7,
            ..Default::default()
        };
        let (sender, requests) = tokio::sync::mpsc::channel(8);
        let message = Some(proto::follow_request::Message::Hello(hello));
        sender.try_send(proto::FollowRequest { message }).unwrap();
        // The stream of requests stays open.
        std::mem::forget(sender);
        let Client { runtime, client } = &mut self.client;
        let replies = client.follow(ReceiverStream::new(requests));
        self.replies = Some(runtime.block_on(replies)?.into_inner());
        self.next()
    }

    /// Waits for the next version of the leaf's desired state.
    fn next(&mut self) -> Result<u64, tonic::Status> {
        let reply = self.client.runtime.block_on(self.replies.as_mut().unwrap().message())?;
        reply.map(|reply| reply.version).ok_or_else(|| tonic::Status::cancelled("it ended"))
    }
}

// promise: controller.3
#[test]
fn deposed_leader_answers_nothing_while_a_write_hangs() {
    let Some(mut etcd) = Controllers::start(1, &[]) else { return };
    let proxy = Proxy::start(&etcd.urls()[0]);
    etcd.proxied.insert(1, vec![proxy.url()]);
    let first = etcd.controller(1);
    wait_until("the first leads", || term(&first).is_some());
    wait_until("the first writes", || {
        let _ = etcd.ask(1, "add-leaf id=1 ip=10.0.1.1");
        etcd.leaves(1) == Some(vec![1])
    });
    let (mut follower, mut newcomer) = (Leaf::connect(&first), Leaf::connect(&first));
    wait_until("a leaf follows", || follower.follow().is_ok());
    let second = etcd.controller(2);
    proxy.cut(true);
    let socket = etcd.socket(1);
    let asked = std::thread::spawn(move || {
        let mut operator =
            ControllerClient::open(&ControllerAddress::Socket(socket), None).unwrap();
        let done = operator.command(&"add-leaf id=9 ip=10.0.1.9".parse().unwrap(), None);
        done.map_err(|error| error.to_string())
    });
    wait_until("another leads", || term(&second).is_some());
    // The write of the first controller still hangs.
    assert_eq!(etcd.leaves(1), None, "the first controller still answers");
    let refused = newcomer.follow().unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
    assert_eq!(etcd.ask(2, "add-leaf id=2 ip=10.0.1.2"), Ok(2));
    let ended = follower.next().unwrap_err();
    assert_eq!(ended.code(), tonic::Code::Unavailable, "{ended}");
    let refused = asked.join().unwrap().unwrap_err();
    assert!(refused.contains("not known") || refused.contains("stands by"), "{refused}");
    proxy.cut(false);
    wait_until(
        "the first knows the leader",
        || matches!(first.role(), ControllerRole::Standby(reason) if reason.contains("controller 2")),
    );
    assert_eq!(etcd.leaves(2), Some(vec![1, 2]));
}

// promise: controller.3
#[test]
fn stopped_leader_answers_nothing_that_waited() {
    let Some(etcd) = Controllers::start(1, &[]) else { return };
    let first = etcd.process(1);
    wait_until("the first leads", || etcd.leads(1).is_some());
    wait_until("the first writes", || {
        let _ = etcd.ask(1, "add-leaf id=1 ip=10.0.1.1");
        etcd.leaves(1) == Some(vec![1])
    });
    let version = etcd.topology(1).unwrap().version;
    let second = etcd.controller(2);
    // Each request returns true if the answer is of the old version. A later version is possible: the first
    // controller may lead again if the second loses its lease.
    // The second changes nothing; the third expects a version that does not exist.
    let asks: [fn(&mut Client, u64) -> bool; 3] = [
        |client, version| client.topology().is_ok_and(|reply| reply.version == version),
        |client, version| {
            client.command("restore-leaf id=1", None).is_ok_and(|done| done == version)
        },
        |client, version| {
            let refused = client.command("add-leaf id=9 ip=10.0.1.9", Some(version + 9));
            let refused = refused.unwrap_err().to_string();
            refused.contains(&format!("the fabric's version is {version},"))
        },
    ];
    // The connections are open before the process is stopped.
    let clients = asks.map(|ask| {
        let mut client = Client::connect(format!("unix:{}", etcd.socket(1).display()));
        client.topology().unwrap();
        (ask, client)
    });
    first.signal("-STOP");
    // One thread receives the signal and stops all threads once it runs.
    wait_until("all threads are stopped", || first.is_stopped());
    let asked =
        clients.map(|(ask, mut client)| std::thread::spawn(move || ask(&mut client, version)));
    wait_until("another leads", || term(&second).is_some());
    assert_eq!(etcd.ask(2, "add-leaf id=2 ip=10.0.1.2"), Ok(version + 1));
    assert!(asked.iter().all(|asked| !asked.is_finished()), "all requests still wait");
    first.signal("-CONT");
    let answered = asked.map(|asked| asked.join().unwrap());
    assert_eq!(answered, [false; 3], "topology, a change of nothing, a change of another version");
}

// promise: controller.3
#[test]
fn one_reachable_member_keeps_the_lead() {
    let Some(mut etcd) = Controllers::start(1, &[]) else { return };
    etcd.lease = Duration::from_secs(10);
    let proxies: Vec<_> = (0..4).map(|_| Proxy::start(&etcd.urls()[0])).collect();
    let mut urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    urls.extend(etcd.urls());
    etcd.proxied.insert(1, urls);
    let controller = etcd.controller(1);
    wait_until("the controller leads", || term(&controller).is_some());
    let before = term(&controller);
    // Four of the five URLs hang. The last leads to etcd directly.
    proxies.iter().for_each(|proxy| proxy.cut(true));
    assert_eq!(etcd.ask(1, "add-leaf id=1 ip=10.0.1.1"), Ok(1));
    let began = Instant::now();
    while began.elapsed() < 2 * etcd.lease {
        assert_eq!(term(&controller), before, "after {:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(etcd.ask(1, "add-leaf id=2 ip=10.0.1.2"), Ok(2));
    assert_eq!(term(&controller), before);
}
