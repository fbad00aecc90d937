//! Spines and leaves in this process that follow a controller. The controller's decisions, each node's
//! desired state and its reconciliation are those of the real code. The conductor sets the delay of messages
//! between them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use rand::RngExt as _;
use wedjat::admin::{FollowResult, FollowerKind, Handle, RequestError, Requests};
use wedjat::clock::{Line, TurnError};
use wedjat::config::{Config, FollowConfig};
use wedjat::control::{LeafCores, Pool};
use wedjat::controller::{Command, Fabric, NodeId, View, wanted};
use wedjat::ring::WorkerRegion;
use wedjat_pktgen::seed::{Stream, StreamSeed};

use super::FaultTarget;
use super::check::Violation;
use super::node::{self, InMemory, LocalNodeState, Maker, Memory, Node};
use super::plan::{POOL, Plan, SERVICE, SPINE_IDS};
use crate::histories;
use crate::histories::record::{self, History, Operation, Request, Update};
use crate::lockstep::LocalLeaf;

/// Time of a message from a node to the controller, or back.
const MESSAGE_NS: u64 = 1_000_000;
/// Time after which a node tries again to apply the rest of a version, as in `wedjat`.
const AGAIN_NS: u64 = 50_000_000;
/// Interval at which a leaf checks for silent spines, as in `wedjat`.
const LOOK_NS: u64 = 50_000_000;

/// Term of the only controller.
const TERM: u64 = 1;
/// Interval at which a node serves requests and completes the removal of members.
const TEND_NS: u64 = 1_000_000;

/// Further store of each decision, for example real controllers. It must reach the same version.
pub type SharedStore = Box<dyn FnMut(&Command, u64) -> Result<(), String>>;

/// Desired state of a fabric at its controller.
pub struct DesiredState {
    fabric: Arc<Fabric>,
    /// Time from which nodes can receive the latest version.
    published_ns: u64,
    keep: Option<SharedStore>,
    /// Nodes that follow.
    follow: BTreeSet<NodeId>,
    /// Silent spines by leaf.
    silent: BTreeMap<u16, Vec<u16>>,
    /// Commands, reads after them, and versions applied by nodes.
    history: History,
    /// Number of processes that have followed.
    processes: u64,
}

impl fmt::Debug for DesiredState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DesiredState")
            .field("version", &self.fabric.version)
            .finish_non_exhaustive()
    }
}

impl DesiredState {
    /// Creates the state of an empty fabric. If `keep` is given, it also stores each decision.
    #[must_use]
    pub fn new(keep: Option<SharedStore>) -> Self {
        Self {
            fabric: Arc::default(),
            published_ns: 0,
            keep,
            follow: BTreeSet::new(),
            silent: BTreeMap::new(),
            history: History::default(),
            processes: 0,
        }
    }

    /// Returns the history of the run so far.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns the desired state.
    #[must_use]
    pub fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// Executes a command at time `now_ns`.
    ///
    /// # Errors
    /// If the command is refused or cannot be stored.
    pub fn command(&mut self, command: &Command, now_ns: u64) -> Result<(), String> {
        self.change(command, now_ns, now_ns)
    }

    /// Executes a command that the controller receives at `now_ns` and publishes to nodes from `kept_ns` on.
    fn change(&mut self, command: &Command, now_ns: u64, kept_ns: u64) -> Result<(), String> {
        let decided = self.fabric.decide(command);
        let (events, next) = decided.map_err(|error| format!("{command}: {error}"))?;
        if !events.is_empty() {
            if let Some(keep) = &mut self.keep {
                keep(command, next.version)?;
            }
            (self.fabric, self.published_ns) = (Arc::new(next), kept_ns + MESSAGE_NS);
        }
        self.record(command, now_ns)
    }

    /// Records a command, and an operator's read after it.
    fn record(&mut self, command: &Command, now_ns: u64) -> Result<(), String> {
        let text = command.to_string();
        let of = record::of_command(command);
        let (key, change) =
            of.ok_or_else(|| format!("{text}: the history cannot record this command"))?;
        let version = self.fabric.version;
        let state = self.history.intern(record::of_fabric(&self.fabric));
        let operation = |request, answer| Operation {
            client: 1,
            controller: 1,
            began_ns: now_ns,
            ended_ns: now_ns,
            request,
            answer,
        };
        let command = Request::Command { text, key, change, if_version: None };
        self.history.operations.extend([
            operation(command, record::Answer::Done { version }),
            operation(Request::Read, record::Answer::State { term: TERM, version, state }),
        ]);
        Ok(())
    }

    /// Stores a leaf's list of silent spines, and judges these if the list is new.
    fn receive_silence(&mut self, leaf: u16, silent: Vec<u16>, now_ns: u64) -> Result<(), String> {
        let is_new = self.silent.insert(leaf, silent.clone()) != Some(silent.clone());
        let mut silent = silent.into_iter().filter(|_| is_new);
        silent.try_for_each(|spine| self.judge(spine, now_ns))
    }

    /// Declares a spine down under the same conditions as `wedjat controller`.
    fn judge(&mut self, spine: u16, now_ns: u64) -> Result<(), String> {
        match self.is_down(spine) {
            true => self.change(&Command::FailSpine { id: spine }, now_ns, now_ns + MESSAGE_NS),
            false => Ok(()),
        }
    }

    fn is_down(&self, id: u16) -> bool {
        let follows = |node| self.follow.contains(&node);
        let is_silent = |leaf| self.silent.get(&leaf).is_some_and(|spines| spines.contains(&id));
        self.fabric.is_spine_down(id, follows, is_silent)
    }
}

/// Desired state shared by the nodes and their maker.
pub type SharedTruth = Rc<RefCell<DesiredState>>;

/// Maker of nodes in this process. Its spines and leaves follow a controller.
pub struct ControlledNodes<F> {
    /// The controller.
    pub truth: SharedTruth,
    /// Function that executes the plan's acts, by number and time.
    pub act: F,
}

impl<F> fmt::Debug for ControlledNodes<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlledNodes").field("truth", &self.truth).finish_non_exhaustive()
    }
}

impl<F: FnMut(&mut DesiredState, usize, u64) -> Result<(), String>> Maker for ControlledNodes<F> {
    fn make(&mut self, plan: &Plan, who: FaultTarget) -> Result<Box<dyn Node>, String> {
        let (id, mut config) = match who {
            FaultTarget::Spine(number) => {
                (NodeId::Spine(SPINE_IDS + number), plan.spine_config(number)?)
            }
            FaultTarget::Leaf(number) => (NodeId::Leaf(number), plan.leaf_config(number)?),
            _ => return InMemory.make(plan, who),
        };
        let Config { pools, servers, spines, controller, .. } = &mut config;
        *controller = Some(FollowConfig { addresses: Vec::new(), tls: None });
        pools.clear();
        servers.clear();
        spines.clear();
        let (inner, (control, table)) = node::controlled(&config)?;
        let reader = Arc::new(|| Err("it has no configuration file".to_owned()));
        let requests = Requests::new(control, table, reader);
        let truth = Rc::clone(&self.truth);
        let process = {
            let mut truth = truth.borrow_mut();
            truth.follow.insert(id);
            truth.processes += 1;
            truth.processes
        };
        let handle = requests.handle();
        Ok(Box::new(Follower {
            inner,
            requests,
            handle,
            id,
            process,
            truth,
            taken: None,
            due_ns: 0,
            now_ns: 0,
            look_ns: 0,
            tend_ns: 0,
            held_up_ns: 0,
            refused: None,
            answer: Arc::default(),
        }))
    }

    fn act(&mut self, number: usize, now_ns: u64) -> Result<(), String> {
        (self.act)(&mut self.truth.borrow_mut(), number, now_ns)
    }

    fn violations(&self) -> Vec<Violation> {
        let found = histories::check::check(self.truth.borrow().history()).into_iter();
        let who = || "controller".to_owned();
        found.map(|one| Violation { at_ns: one.at_ns, who: who(), what: one.to_string() }).collect()
    }
}

/// Parses a command.
///
/// # Errors
/// If the text is no command.
pub fn command(text: &str) -> Result<Command, String> {
    text.parse().map_err(|error| format!("{text}: {error}"))
}

/// Returns the commands that add a leaf and its rack to the fabric.
///
/// # Errors
/// If one of them is invalid.
pub fn rack(plan: &Plan, leaf: u16) -> Result<Vec<Command>, String> {
    let mut commands = vec![command(&format!("add-leaf id={leaf} ip={}", Plan::below(leaf)))?];
    for agent in plan.agents_of(leaf) {
        let (ip, each) = (Plan::server(agent), plan.topology.workers);
        let (first, last) = ((agent - 1) * each, agent * each - 1);
        let text = format!("add-server ip={ip} leaf={leaf} workers={first}-{last} registers=true");
        commands.push(command(&text)?);
    }
    Ok(commands)
}

/// Returns the commands that create the fabric of a plan. The first `leaves` leaves and all their workers
/// form one pool, linked to `spines` spines.
///
/// # Errors
/// If one of them is invalid.
pub fn begin(plan: &Plan, leaves: u16, spines: u16) -> Result<Vec<Command>, String> {
    let mut commands = Vec::new();
    for spine in 1..=plan.topology.spines {
        let text = format!("add-spine id={} ip={}", SPINE_IDS + spine, Plan::above(spine));
        commands.push(command(&text)?);
    }
    let mut workers = 0;
    for leaf in 1..=leaves {
        workers += plan.workers_of(leaf).len();
        commands.extend(rack(plan, leaf)?);
    }
    let overflow = if plan.refuse { "refuse" } else { "drop" };
    commands.push(command(&format!(
        "add-pool id={POOL} workers={workers} policy={} spine-policy={} queue={} overflow={overflow} spines={spines} \
         address={SERVICE}",
        plan.leaf, plan.spine, plan.queue
    ))?);
    Ok(commands)
}

/// Draws an operator's next command among those that the fabric allows.
fn order(fabric: &Fabric, stream: &mut Stream) -> Option<Command> {
    let mut all = Vec::new();
    let up = |failed: &mut dyn Iterator<Item = bool>| failed.filter(|failed| !failed).count();
    let leaves_up = up(&mut fabric.leaves.values().map(|leaf| leaf.is_failed));
    let spines_up = up(&mut fabric.spines.values().map(|spine| spine.is_failed));
    for (&id, leaf) in &fabric.leaves {
        match leaf.is_failed {
            true => all.push(Command::RestoreLeaf { id }),
            false if leaves_up > 1 => all.push(Command::FailLeaf { id, to: None }),
            false => {}
        }
        for (&ip, server) in &leaf.servers {
            let drain = if server.is_drained {
                Command::UndrainServer { ip }
            } else {
                Command::DrainServer { ip }
            };
            all.push(drain);
        }
    }
    for (&id, spine) in &fabric.spines {
        match spine.is_failed {
            true => all.push(Command::RestoreSpine { id }),
            false if spines_up > 1 => all.push(Command::FailSpine { id }),
            false => {}
        }
    }
    let workers = stream.random_range(1..=fabric.members(POOL).max(1));
    all.push(Command::ResizePool { id: POOL, workers });
    let at = stream.random_range(0..all.len());
    all.into_iter().nth(at)
}

/// Returns a maker of the plan's nodes, whose controller executes commands drawn from the plan's seed.
///
/// # Errors
/// If the plan's fabric is invalid.
pub fn drawn(plan: &Plan) -> Result<impl Maker + use<>, String> {
    let mut stream = StreamSeed::derive(plan.seed, "orders", 0).stream();
    let spines = stream.random_range(1..=plan.topology.spines);
    let mut truth = DesiredState::new(None);
    for command in begin(plan, plan.topology.leaves, spines)? {
        truth.command(&command, 0)?;
    }
    let act = move |truth: &mut DesiredState, _, now_ns| {
        let order = order(truth.fabric(), &mut stream);
        order.map_or(Ok(()), |order| truth.command(&order, now_ns))
    };
    Ok(ControlledNodes { truth: Rc::new(RefCell::new(truth)), act })
}

/// Result of a follow request, with its version.
type Answer = Arc<Mutex<Option<(u64, Result<FollowResult, RequestError>)>>>;

/// A spine or leaf that follows the controller.
struct Follower {
    inner: Memory<LocalLeaf>,
    requests: Requests<LeafCores>,
    handle: Handle,
    id: NodeId,
    process: u64,
    truth: SharedTruth,
    /// Version that the node has applied completely.
    taken: Option<u64>,
    /// Earliest time of the next try.
    due_ns: u64,
    now_ns: u64,
    look_ns: u64,
    tend_ns: u64,
    /// Last time at which a removal or another change was pending.
    held_up_ns: u64,
    refused: Option<String>,
    answer: Answer,
}

impl Follower {
    /// Requests the reconciliation with the controller's version, if it is due. Returns true if it did.
    fn ask(&mut self, now_ns: u64) -> bool {
        let truth = self.truth.borrow();
        let version = truth.fabric.version;
        if self.taken == Some(version) || now_ns < truth.published_ns.max(self.due_ns) {
            return false;
        }
        let follows = if matches!(self.id, NodeId::Spine(_)) {
            FollowerKind::Spine
        } else {
            FollowerKind::Leaf
        };
        match wanted(self.id, &truth.fabric.view(self.id)) {
            Ok(wanted) => {
                let answer = Arc::clone(&self.answer);
                let take = move |done| {
                    *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some((version, done));
                };
                self.handle.follow(wanted, follows, take);
                drop(truth);
                self.due_ns = now_ns + AGAIN_NS;
                true
            }
            Err(reason) => {
                (self.refused, self.due_ns) = (Some(reason), now_ns + AGAIN_NS);
                false
            }
        }
    }

    /// Handles the answer, which may arrive some turns after the request.
    fn settle(&mut self, now_ns: u64) {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match answer {
            Some((version, Ok(FollowResult { is_complete: true, .. }))) => {
                (self.taken, self.refused, self.due_ns) = (Some(version), None, now_ns);
                self.record(version, now_ns);
            }
            Some((_, Err(error))) => self.refused = Some(error.to_string()),
            Some((_, Ok(_))) | None => {}
        }
    }

    /// Records a version that the node has applied.
    fn record(&self, version: u64, now_ns: u64) {
        let mut hasher = DefaultHasher::new();
        self.members().hash(&mut hasher);
        self.truth.borrow_mut().history.updates.push(Update {
            node: self.id.to_string(),
            process: self.process,
            controller: 1,
            asked_ns: None,
            at_ns: now_ns,
            term: TERM,
            version,
            view: hasher.finish(),
            part: Vec::new(),
        });
    }

    /// Sends a leaf's silent spines to the controller.
    fn look(&mut self, now_ns: u64) {
        let NodeId::Leaf(leaf) = self.id else { return };
        self.look_ns = now_ns + LOOK_NS;
        let silent = self.requests.control().silent_spines();
        if let Err(reason) = self.truth.borrow_mut().receive_silence(leaf, silent, now_ns) {
            self.refused = Some(reason);
        }
    }
}

/// Returns the members in a node's desired state: pool, id, and true if the member is drained.
fn members_of(view: &View) -> BTreeSet<(u16, u16, bool)> {
    let workers = view.workers.iter().map(|(&id, of)| (of.pool, id, of.is_drained));
    workers.chain(view.racks.keys().map(|&(pool, leaf)| (pool, leaf, false))).collect()
}

impl Node for Follower {
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        let none = Vec::new;
        self.now_ns = now_ns;
        let asked = self.ask(now_ns);
        let tends = asked || now_ns >= self.tend_ns;
        if tends {
            self.requests.serve(now_ns, &none);
        }
        let line = Node::turn(&mut self.inner, now_ns)?;
        if tends {
            self.tend_ns = now_ns + TEND_NS;
            self.requests.serve(now_ns, &none);
            if !self.requests.control().is_settled() {
                self.held_up_ns = now_ns;
            }
        }
        self.settle(now_ns);
        if now_ns >= self.look_ns {
            self.look(now_ns);
        }
        Ok(line)
    }

    fn give(&mut self, port: usize, frame: &[u8]) -> bool {
        self.inner.give(port, frame)
    }

    fn take(&mut self, port: usize, each: &mut dyn FnMut(&[u8])) {
        self.inner.take(port, each);
    }

    fn inside(&self) -> Option<LocalNodeState<'_>> {
        let inside = self.inner.inside()?;
        let is_idle = inside.dispatcher.is_some_and(|of| of.view().active().is_empty());
        let stranded = if is_idle { inside.waiting as u64 } else { 0 };
        Some(LocalNodeState { stranded, ..inside })
    }

    fn region(&self) -> Option<Arc<WorkerRegion>> {
        None
    }

    fn pause(&mut self, paused: bool) -> Result<(), String> {
        self.inner.pause(paused)
    }

    fn differs(&self) -> Option<(String, u64)> {
        let since_ns = self.held_up_ns.max(self.truth.borrow().published_ns);
        self.difference().map(|what| (what, since_ns))
    }

    fn end(self: Box<Self>, killed: bool) -> Result<(), String> {
        let mut truth = self.truth.borrow_mut();
        truth.follow.remove(&self.id);
        match self.id {
            NodeId::Leaf(leaf) => _ = truth.silent.remove(&leaf),
            NodeId::Spine(spine) if killed => truth.judge(spine, self.now_ns)?,
            NodeId::Spine(_) | NodeId::Agent(_) => {}
        }
        drop(truth);
        let Self { inner, requests, .. } = *self;
        drop(requests);
        Box::new(inner).end(killed)
    }
}

impl Follower {
    /// Returns the node's difference from the controller's desired state.
    fn difference(&self) -> Option<String> {
        let truth = self.truth.borrow();
        let version = truth.fabric.version;
        if self.taken != Some(version) {
            return Some(format!(
                "it has version {:?}, but the controller {version}{}",
                self.taken,
                self.refused.as_ref().map_or_else(String::new, |reason| format!(": {reason}"))
            ));
        }
        let wanted = members_of(&truth.fabric.view(self.id));
        let has = self.members();
        (has != wanted)
            .then(|| format!("its members are {has:?}, but the controller's are {wanted:?}"))
    }

    /// Returns the members that the node schedules for, in the form of [`members_of`].
    fn members(&self) -> BTreeSet<(u16, u16, bool)> {
        let pools = self.requests.control().membership().pools.iter().flatten();
        let members = |pool: &Pool| {
            let id = pool.id;
            let members: Vec<_> =
                pool.members.iter().flatten().map(|one| (id, one.id, one.is_drained)).collect();
            members
        };
        pools.flat_map(members).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controller_that_loses_a_change_is_found() {
        let mut truth = DesiredState::new(None);
        let add = |truth: &mut DesiredState, id: u16, now_ns| {
            let text = format!("add-spine id={id} ip=10.0.0.{id}");
            truth.command(&command(&text).unwrap(), now_ns).unwrap();
        };
        add(&mut truth, 1, 10);
        let before = Arc::clone(&truth.fabric);
        add(&mut truth, 2, 20);
        assert_eq!(histories::check::check(truth.history()), []);
        truth.fabric = before;
        add(&mut truth, 3, 30);
        let found = histories::check::check(truth.history());
        let lost = "spine 2 is not linearizable";
        assert!(found.iter().any(|violation| violation.what.contains(lost)), "{found:?}");
    }
}
