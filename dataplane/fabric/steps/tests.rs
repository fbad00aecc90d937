//! Order of a node's changes and of the steps by which its cores apply them, compared with a recording in
//! tests/golden/steps.txt. A step is one difference between two memberships of a pool, for example `Join(Member(2))`.
//!
//! A membership is the pools, servers and workers of a node at one version, which the code calls epoch. It changes for
//! three reasons: a reload of the node's file, a new version of the fabric at the controller that the node follows, or
//! changes by an operator. Each test input runs the node's real control on cores that only record. A removed worker
//! first leaves: it gets no more tasks. The cores forget it when its tasks in flight have ended. `promise: ID` names
//! the tested promise of SPECIFICATION.md.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use wedjat_admin::reload::{Reader, agent_file_reader, leaf_file_reader};
use wedjat_admin::{FollowerKind, Handle, KnownState, Requests};
use wedjat_core::limits::SPINES_MAX;
use wedjat_core::state::Table;
use wedjat_core::state::table::{Entries, Limits, Role, Spec};
use wedjat_desired::config::{AgentConfig, Config, UNSPECIFIED};
use wedjat_desired::control::{Change, ChangeError, Control, Cores, Differences, Membership};
use wedjat_desired::state::Delta;

use super::{build, golden};
use crate::{Fabric, NodeId, View, convert, wanted};

/// Limits of the table with a node's state, enough for the objects of all inputs.
const LIMITS: Limits = Limits { pools: 8, servers: 16, workers: 64 };
/// Time between two services of the node's requests, by the node's clock.
const SERVICE_INTERVAL_NS: u64 = 1_000_000;
/// Longer than each time limit of a departure: after 10 s, the tasks of a leaving worker count as lost.
const DEPARTURE_NS: u64 = 20_000_000_000;
/// More than the departures that can follow each other: workers, then pools, then servers.
const DEPARTURES: usize = 4;
/// Maximum number of attempts at a version. Workers leave in the first ones, so that others can join in the next.
const TRIES: usize = 4;
/// Term of the only leader of the controllers.
const TERM: u64 = 1;

/// Lines of the recording, shared by the test and the recording cores.
type Lines = Arc<Mutex<String>>;

/// Stand-in for a node's cores, which records each change and each step instead of applying it.
struct Recorder {
    lines: Lines,
    /// Epoch that the cores have reached: that of the latest membership.
    epoch: u64,
    /// True if the node is a spine.
    is_spine: bool,
    /// Address of the node's first server, which is an agent's own host.
    host: IpAddr,
    /// Initial membership of an agent that shares a leaf's core; `None` without one. Changes of the agent do not alter
    /// it.
    agent: Option<Membership>,
    /// True while removed workers must stay. The test sets it.
    holds: Arc<AtomicBool>,
}

/// No change needs prepared objects, and each is possible.
impl Cores for Recorder {
    type PreparedChange = ();

    /// Text of the node's log when all cores use a change. The log is not recorded.
    const DECIDE: &'static str = "recorded";
    const AUTO_REFUSAL: Option<wedjat_desired::state::AutoRefusal> = None;

    /// Records a change, also one of an agent on the same core, and accepts it.
    fn check(&self, change: &Change) -> Result<(), ChangeError> {
        writeln!(self.lines.lock().unwrap(), "  {change}").unwrap();
        Ok(())
    }

    /// Accepts the changes of an agent on the same core. `check` has recorded them.
    fn check_agent(&self, _: &[Change], _: &Membership) -> Result<(), ChangeError> {
        Ok(())
    }

    fn own_host(&self) -> IpAddr {
        self.host
    }

    fn is_spine(&self) -> bool {
        self.is_spine
    }

    fn workers_max(&self) -> usize {
        LIMITS.workers
    }

    fn epoch(&self) -> Option<u64> {
        Some(self.epoch)
    }

    /// Returns true: the recorder has no queue of changes that could be full.
    fn has_room(&self) -> bool {
        true
    }

    /// Does nothing: the recorder replaces no objects.
    fn free_replaced(&mut self) {}

    /// Prepares nothing.
    fn prepare(&mut self, _: &Table, _: &Membership, _: &[Change]) -> Result<(), ChangeError> {
        Ok(())
    }

    /// Records the next epoch and the steps to it: the index of a pool with a difference. The cores reach the epoch at
    /// once. The last argument is the result of `prepare`.
    fn issue(
        &mut self,
        _: &Table,
        differences: &Differences<'_>,
        (): (),
    ) -> Result<(), ChangeError> {
        self.epoch = differences.to.epoch;
        let mut lines = self.lines.lock().unwrap();
        writeln!(lines, "  version {}", self.epoch).unwrap();
        for (pool, difference) in differences.all() {
            writeln!(lines, "    {pool} {difference:?}").unwrap();
        }
        Ok(())
    }

    /// Returns the minimum time for which the cores remember a leaving worker: forever while `holds` is true, else 0.
    fn linger_ns(&self, _: u16) -> u64 {
        if self.holds.load(Ordering::Acquire) { u64::MAX } else { 0 }
    }

    fn of_agent(&self) -> Option<&Membership> {
        self.agent.as_ref()
    }
}

/// Node whose cores record, with the queue of requests to it and the state that it got from a controller.
struct RecordedNode {
    /// Folder of the node's file.
    folder: tempfile::TempDir,
    /// Control of the node, which serves the queued requests.
    requests: Requests<Recorder>,
    /// Sender of requests.
    handle: Handle,
    lines: Lines,
    /// True while removed workers must stay; shared with the cores.
    holds: Arc<AtomicBool>,
    /// The node's part of the fabric, as received from the controller.
    view: View,
    /// All pools and workers that the node ever received from the controller. An agent keeps others.
    known: KnownState,
    /// Time of the node's clock.
    now_ns: u64,
}

impl RecordedNode {
    /// Starts a node with this membership. `agent` is the membership of an agent on its core. `reader` reads the file
    /// in `folder` at a reload.
    fn new(
        folder: tempfile::TempDir,
        role: Role,
        membership: Membership,
        agent: Option<Membership>,
        reader: Reader,
    ) -> Self {
        // Table of the node's state, in memory.
        let Entries { servers, pools, .. } = membership.entries();
        let spec = Spec {
            role,
            cores: 1,
            ports: 2,
            servers: servers.into_iter().flatten().collect(),
            spines: SPINES_MAX,
            pools: pools.into_iter().flatten().collect(),
            limits: LIMITS,
            ticks_hz: 1_000_000_000,
            ..Spec::default()
        };
        let table = Arc::new(Table::heap(&spec));
        let (lines, holds) = (Lines::default(), Arc::<AtomicBool>::default());
        let host = membership.servers.iter().flatten().next().map_or(UNSPECIFIED, |one| one.ip);
        let cores = Recorder {
            lines: Arc::clone(&lines),
            epoch: membership.epoch,
            is_spine: role == Role::Spine,
            host,
            agent,
            holds: Arc::clone(&holds),
        };
        let control = Control::of(Arc::clone(&table), membership, cores);
        let requests = Requests::new(control, table, reader);
        let (handle, view, known) = (requests.handle(), View::default(), KnownState::default());
        Self { folder, requests, handle, lines, holds, view, known, now_ns: 0 }
    }

    /// Starts a leaf or spine with this file.
    fn leaf_or_spine(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.toml");
        std::fs::write(&path, text).unwrap();
        let config = Config::load(&path).unwrap_or_else(|error| panic!("{error}"));
        let agent = config.agent.as_ref().map(Membership::of_host);
        let reader = leaf_file_reader(&config);
        Self::new(folder, config.role, Membership::of(&config), agent, reader)
    }

    /// Starts an agent with this file.
    fn agent(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.toml");
        std::fs::write(&path, text).unwrap();
        let config = AgentConfig::load(&path).unwrap_or_else(|error| panic!("{error}"));
        let membership = Membership::of_host(&config.host);
        Self::new(folder, Role::Agent, membership, None, agent_file_reader(&config))
    }

    /// Adds a line to the recording.
    fn note(&self, line: impl std::fmt::Display) {
        writeln!(self.lines.lock().unwrap(), "{line}").unwrap();
    }

    /// Serves the node's requests until the answer is there. The node's clock advances before each service.
    fn answer<T>(&mut self, answer: &Receiver<T>) -> T {
        let began = Instant::now();
        loop {
            self.serve_after(SERVICE_INTERVAL_NS);
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(began.elapsed() < crate::TIMEOUT, "no answer");
        }
    }

    /// Advances the node's clock by `ns` nanoseconds and serves the requests. The node has no ports with counters.
    fn serve_after(&mut self, ns: u64) {
        self.now_ns += ns;
        self.requests.serve(self.now_ns, &Vec::new);
    }

    /// Lets departing objects go, unless [`Self::hold`] keeps them.
    fn settle(&mut self) {
        (0..DEPARTURES).for_each(|_| self.serve_after(DEPARTURE_NS));
    }

    /// Sets whether removed workers must stay.
    fn hold(&mut self, holds: bool) {
        self.holds.store(holds, Ordering::Release);
    }

    /// Reloads this file. Records the changes, and their number or the error. `what` names the contents of the file in
    /// the recording.
    fn reload(&mut self, what: &str, text: &str) {
        self.note(format_args!("reload: {what}"));
        std::fs::write(self.folder.path().join("node.toml"), text).unwrap();
        let (sender, answer) = mpsc::channel();
        let dry_run = false;
        self.handle.reload(dry_run, move |result| _ = sender.send(result));
        match self.answer(&answer) {
            Ok(result) => self.note(format_args!("  = {} changes", result.changes.len())),
            Err(error) => {
                error.to_string().lines().for_each(|line| self.note(format_args!("  ! {line}")))
            }
        }
        self.settle();
    }

    /// Makes changes in one request, as an operator does. Records an error.
    fn change(&mut self, changes: &[&str]) {
        self.note("change");
        let changes = changes.iter().map(|text| text.parse().unwrap()).collect();
        let (sender, answer) = mpsc::channel();
        let any_version = None;
        self.handle.change(changes, any_version, move |result| _ = sender.send(result));
        if let Err(error) = self.answer(&answer) {
            self.note(format_args!("  ! {error}"));
        }
        self.settle();
    }

    /// Follows the current version of `fabric` as this node of it, with at most `tries` attempts. A version may need
    /// several: workers must leave before others can join. The node gets the version in the controller's message, as
    /// over the network. `what` names the version in the recording.
    fn follow(&mut self, what: &str, node: NodeId, fabric: &Fabric, tries: usize) {
        let delta = Delta::between(&self.view, &fabric.view(node));
        let is_snapshot = false;
        let message = convert::message(TERM, fabric.version, is_snapshot, &delta);
        self.view.apply(convert::delta(message).unwrap());
        self.known.pools.extend(self.view.pools.keys());
        self.known.workers.extend(self.view.workers.keys().map(|(_, id)| id));
        let kind = match node {
            NodeId::Leaf(_) => FollowerKind::Leaf,
            NodeId::Spine(_) => FollowerKind::Spine,
            NodeId::Agent(_) => FollowerKind::Agent(self.known.clone()),
        };
        for _ in 0..tries {
            self.note(format_args!("follow: {what}"));
            let (sender, answer) = mpsc::channel();
            let wanted = wanted(node, &self.view).unwrap();
            self.handle.follow(wanted, kind.clone(), move |result| _ = sender.send(result));
            match self.answer(&answer) {
                Ok(result) if result.is_complete => {
                    self.note("  = complete");
                    break;
                }
                Ok(_) => self.note("  = partial"),
                Err(error) => {
                    error.to_string().lines().for_each(|line| self.note(format_args!("  ! {line}")))
                }
            }
            self.settle();
        }
        self.settle();
    }

    /// Ends the recording. Returns its lines under this heading.
    fn end(self, name: &str) -> String {
        format!("# {name}\n{}\n", self.lines.lock().unwrap())
    }
}

/// Start of a leaf's file, without pools and servers.
const LEAF: &str = "[leaf]\nid = 1\ncores = [1]\n\
    [[port]]\ndevice = 'a'\nside = 'both'\nip = '10.0.2.1/24'\n\
    [[spine]]\nid = 900\nip = '10.0.2.90'\n[[spine]]\nid = 901\nip = '10.0.2.91'\n";

/// Returns a `[[pool]]` of a file, with the additional lines `more`.
fn pool(id: u16, policy: &str, more: &str) -> String {
    format!("[[pool]]\nid = {id}\npolicy = '{policy}'\n{more}\n")
}

/// Returns a `[[server]]` of a file, with the additional lines `more`. `ip` is the address's last byte.
fn server(ip: &str, workers: &str, pool: u16, more: &str) -> String {
    format!("[[server]]\nip = '10.0.2.{ip}'\nworkers = '{workers}'\npool = {pool}\n{more}\n")
}

/// Records reloads of a leaf's file: more objects, drained workers, fewer objects, changes that need a restart, and
/// reloads while removed objects still leave.
fn leaf_reloads() -> String {
    let first = [
        LEAF,
        &pool(1, "horus", "spine = 900\n"),
        &pool(2, "jbsq(k=3)", "queue = 64\n"),
        &server("11", "0-3", 1, ""),
        &server("11", "4-5", 2, "registers = true\n"),
        &server("12", "6-9", 1, "speed = 2.0\n"),
    ]
    .concat();
    let mut node = RecordedNode::leaf_or_spine(&first);
    node.reload("the same", &first);
    let second = [
        LEAF,
        &pool(1, "sed", "service = '10.0.2.80'\nspine = 901\nsignals = 'every-reply'\n"),
        &pool(2, "jbsq(k=2)", "queue = 9\noverflow = 'refuse'\n"),
        &pool(3, "horus", "service = '10.0.2.81'\nspine = 900\n"),
        &pool(4, "random", "shared_workers = true\n"),
        &server("11", "0-3", 1, "mac = '02:00:00:00:02:0b'\n"),
        &server("11", "4-5,40", 2, "mac = '02:00:00:00:02:0b'\nregisters = true\n"),
        &server("12", "6-9", 1, "speed = 3.0\n"),
        &server("13", "10-13", 3, ""),
        &server("13", "14-15", 4, "speed = 0.5\n"),
        &server("14", "16,20", 3, "registers = true\n"),
    ]
    .concat();
    node.reload("more of everything", &second);
    node.change(&["drain workers=0-1,6"]);
    node.reload("drains stay", &second);
    let third = [
        LEAF,
        &pool(1, "sed", ""),
        &pool(3, "horus", "service = '10.0.2.82'\n"),
        &pool(4, "random", "shared_workers = true\n"),
        &server("11", "0,2-3", 1, ""),
        &server("12", "6-9", 1, "speed = 3.0\n"),
        &server("13", "10-11", 3, ""),
        &server("13", "14-15", 4, "speed = 0.5\n"),
    ]
    .concat();
    node.reload("fewer", &third);
    // A running node can make none of these changes.
    let refused = [
        &LEAF.replace("id = 1", "id = 2"),
        &pool(1, "sed", "reports = 'replies'\nshared_workers = true\n")[..],
        &pool(3, "jiq", "reports = 'messages'\n"),
        &pool(4, "random", ""),
        &pool(5, "jiq", "reports = 'messages'\n"),
        &server("11", "0,2", 1, "registers = true\n"),
        &server("12", "3,6-9", 1, "speed = 3.0\n"),
        &server("13", "10", 3, ""),
        &server("13", "11,14-15", 4, "speed = 0.5\n"),
        &server("15", "30", 1, ""),
        &server("15", "31", 5, "registers = true\n"),
    ]
    .concat();
    node.reload("refused changes", &refused);
    node.hold(true);
    node.change(&["remove-server ip=10.0.2.12", "remove-pool id=4", "remove-workers workers=2"]);
    node.reload("leaving", &third);
    node.hold(false);
    node.settle();
    node.reload("after they have left", &third);
    node.reload("back", &first);
    node.end("leaf, reloads")
}

/// Records reloads of a leaf with an agent on its core: other workers and settings of the agent's pools.
fn leaf_with_agent() -> String {
    // The head has the leaf's part of the file, which stays the same, and the start of the agent's part.
    let head = LEAF.replace("cores = [1]", "cores = [1]\nworkers_max = 64");
    let pools = [pool(1, "horus", ""), pool(2, "sed", "")].concat();
    let servers = [server("11", "0-3", 1, ""), server("12", "8", 2, "")].concat();
    let head = format!("{head}{pools}{servers}[agent]\nname = 'memory'\n");
    // Returns a pool of the agent; its workers join the leaf's pool of the same id.
    let agent_pool = |id: u16, policy: &str, workers: &str, more: &str| {
        format!("[[agent.pool]]\nid = {id}\npolicy = '{policy}'\nworkers = '{workers}'\n{more}\n")
    };
    let first = format!("{head}{}", agent_pool(1, "cfcfs", "20-22", ""));
    let mut node = RecordedNode::leaf_or_spine(&first);
    node.reload("the same", &first);
    let second = [
        head.clone(),
        agent_pool(1, "jbsq(k=2)", "20-21,23", "queue = 9\nspeeds = { 21 = 2.0 }\n"),
        agent_pool(2, "sed", "30-31", ""),
    ];
    node.reload("more", &second.concat());
    node.reload("another pool", &format!("{head}{}", agent_pool(2, "sed", "30", "")));
    node.end("leaf with an agent")
}

/// Records reloads of an agent's file: more pools, fewer pools, and a refused change of `[control]`.
fn agent_reloads() -> String {
    let head = "[agent]\nname = 'memory'\ncore = 0\n\
        [[port]]\ndevice = 'memory'\nip = '10.0.1.11/24'\n";
    let pool = |id: u16, policy: &str, workers: &str, more: &str| {
        format!("[[pool]]\nid = {id}\npolicy = '{policy}'\nworkers = '{workers}'\n{more}\n")
    };
    let first = format!("{head}{}", pool(7, "cfcfs", "40-42", ""));
    let mut node = RecordedNode::agent(&first);
    let more = pool(8, "sed", "50-51", "speeds = { 50 = 4.0 }\n");
    let changed = pool(7, "jbsq(k=2)", "40-41,43", "queue = 12\noverflow = 'refuse'\n");
    node.reload("more", &[head, &changed, &more].concat());
    node.reload("fewer", &[head, &more].concat());
    node.reload("refused changes", &[head, "[control]\nlisten = '127.0.0.1:1'\n", &more].concat());
    node.end("agent, reloads")
}

/// Commands that create a fabric with two spines and two racks.
const FABRIC: &[&str] = &[
    "add-spine id=1 ip=10.0.0.1",
    "add-spine id=2 ip=10.0.0.2",
    "add-leaf id=1 ip=10.0.1.1",
    "add-leaf id=2 ip=10.0.2.1",
    "add-server ip=10.0.1.11 leaf=1 workers=0-3 registers=true",
    "add-server ip=10.0.1.12 leaf=1 workers=4-7 speed=2",
    "add-server ip=10.0.2.11 leaf=2 workers=0-3",
    "add-pool id=7 workers=8 policy=horus spines=2",
];

/// Versions of the fabric, each with its name and the commands that lead to it from the version before.
const VERSIONS: &[(&str, &[&str])] = &[
    ("first", &[]),
    (
        "another policy and queue",
        &["set-policy pool=7 policy=racksched", "set-queue pool=7 queue=9"],
    ),
    ("more pools", &["add-pool id=3 workers=2 policy=sed address=10.9.0.3 spines=1"]),
    ("drained", &["drain-server ip=10.0.1.11"]),
    ("undrained", &["undrain-server ip=10.0.1.11"]),
    ("failed spine", &["fail-spine id=1"]),
    ("resized", &["resize-pool id=7 workers=3"]),
    ("workers of another pool", &["remove-pool id=3", "resize-pool id=7 workers=12"]),
    (
        "drained newcomers",
        &[
            "add-server ip=10.0.1.13 leaf=1 workers=20-23",
            "resize-pool id=7 workers=16",
            "drain-server ip=10.0.1.13",
        ],
    ),
    ("removed server", &["remove-server ip=10.0.1.12"]),
    (
        "server with a former pool's workers",
        &["add-pool id=4 workers=0 policy=sed", "remove-pool id=7", "resize-pool id=4 workers=6"],
    ),
    ("failed leaf", &["fail-leaf id=1"]),
    ("restored leaf", &["restore-leaf id=1", "resize-pool id=4 workers=8"]),
];

/// Lets a node follow all versions as the fabric's node `id`. Returns its recording, with the heading `name`. With
/// `holds`, removed workers are still leaving at the next version. More attempts at a version would then change
/// nothing, so there is only one.
fn follow_all(mut node: RecordedNode, id: NodeId, holds: bool, name: &str) -> String {
    let mut fabric = build(FABRIC);
    for &(what, commands) in VERSIONS {
        for text in commands {
            let decided = fabric.decide(&text.parse().unwrap());
            fabric = decided.unwrap_or_else(|error| panic!("{text}: {error}")).1;
        }
        node.hold(holds);
        node.follow(what, id, &fabric, if holds { 1 } else { TRIES });
    }
    node.hold(false);
    node.settle();
    node.follow("last", id, &fabric, TRIES);
    node.end(name)
}

/// File of a leaf that follows a controller, without pools and servers: the controller sends them. The node does not
/// check the id against that under which it follows.
const FOLLOWER: &str = "[leaf]\nid = 1\ncores = [1]\n\
    [[port]]\ndevice = 'a'\nside = 'both'\nip = '10.0.1.1/24'\n\
    [controller]\naddresses = ['unix:/run/fabric.ctl']\n";

/// Records two leaves, an agent and a spine that follow all versions. In the first round workers leave at once; in the
/// second one they stay until the end.
fn followers() -> String {
    let mut all = String::new();
    // The fabric has a pool 7, too. Pool 9 is only in the agent's file. Its worker 0 has an id that the fabric gives to
    // pool 7.
    let agent = "[agent]\nname = 'memory'\ncore = 0\n\
        [[port]]\ndevice = 'memory'\nip = '10.0.1.11/24'\n\
        [[pool]]\nid = 7\npolicy = 'cfcfs'\nworkers = '40-42'\n\
        [[pool]]\nid = 9\npolicy = 'cfcfs'\nworkers = '0'\n";
    let spine = FOLLOWER.replace("[leaf]", "[spine]");
    for (holds, how) in [(false, ""), (true, ", workers held")] {
        let leaf = || RecordedNode::leaf_or_spine(FOLLOWER);
        all += &follow_all(leaf(), NodeId::Leaf(1), holds, &format!("leaf 1{how}"));
        all += &follow_all(leaf(), NodeId::Leaf(2), holds, &format!("leaf 2{how}"));
        let agent = RecordedNode::agent(agent);
        let id = NodeId::Agent([10, 0, 1, 11].into());
        all += &follow_all(agent, id, holds, &format!("agent{how}"));
        let spine = RecordedNode::leaf_or_spine(&spine);
        all += &follow_all(spine, NodeId::Spine(2), holds, &format!("spine 2{how}"));
    }
    all
}

/// Records reloads of a spine's file: racks that change pool, size or address, and a removed pool.
fn spine_reloads() -> String {
    let head = "[spine]\nid = 9\ncores = [1]\n\
        [[port]]\ndevice = 'a'\nside = 'both'\nip = '10.0.2.1/24'\n";
    let rack = |id: u16, ip: u8, pool: u16, workers: u16| {
        format!("[[leaf]]\nid = {id}\nip = '10.0.2.{ip}'\npool = {pool}\nworkers = {workers}\n")
    };
    let (one, two) = (pool(1, "horus-spine", ""), pool(2, "racksched", ""));
    let first = [head, &one, &two, &rack(1, 11, 1, 8), &rack(1, 11, 2, 4), &rack(2, 12, 1, 8)];
    let first = first.concat();
    let mut node = RecordedNode::leaf_or_spine(&first);
    node.reload("the same", &first);
    let second = [head, &one, &two, &rack(1, 11, 1, 16), &rack(1, 11, 2, 4), &rack(2, 12, 2, 8)];
    node.reload("another pool", &second.concat());
    let third = [head, &one, &rack(1, 11, 1, 16), &rack(3, 13, 1, 2)];
    node.reload("a pool less", &third.concat());
    node.reload("another address", &third.concat().replace("10.0.2.13", "10.0.2.14"));
    node.end("spine, reloads")
}

/// Records changes by an operator of a leaf. Each list is one request.
fn operators() -> String {
    let first = [LEAF, &pool(1, "horus", ""), &server("11", "0-3", 1, "")];
    let mut node = RecordedNode::leaf_or_spine(&first.concat());
    for changes in [
        &["add-server ip=10.0.2.12 mac=02:00:00:00:02:0c registers=true"][..],
        &["add-pool id=5 policy=sed queue=64 overflow=refuse shared-workers=true"],
        &["add-workers server=10.0.2.12 pool=5 workers=20-22 speed=2", "drain workers=0,20"],
        &["undrain workers=20", "set-speed workers=1,21 speed=4", "set-policy pool=5 policy=jsq"],
        &["set-queue pool=5 queue=10", "set-service pool=5 ip=10.0.2.77"],
        &["link-pool pool=1 spine=900 ip=10.0.2.90", "link-pool pool=5 spine=901 ip=10.0.2.91"],
        &["link-pool pool=5 spine=901 ip=10.0.2.92 signals=every-reply"],
        &["unlink-pool pool=1", "set-service pool=5"],
        &["move-server ip=10.0.2.11 to=10.0.2.13"],
        &["remove-workers workers=2-3", "add-workers server=10.0.2.12 pool=5 workers=2"],
        &["remove-pool id=5", "remove-server ip=10.0.2.13"],
        &["remove-server ip=10.0.2.12"],
    ] {
        node.change(changes);
    }
    node.end("leaf, operators")
}

// promise: membership.2
#[test]
fn changes_and_steps_are_the_recorded_ones() {
    let all = [
        operators(),
        leaf_reloads(),
        leaf_with_agent(),
        agent_reloads(),
        spine_reloads(),
        followers(),
    ];
    golden::assert_golden("steps.txt", &all.concat());
}
