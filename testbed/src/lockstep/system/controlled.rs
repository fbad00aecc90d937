//! Spines and leaves in this process that follow a controller. The real code makes the controller's decisions,
//! computes each node's desired state, and changes the node to match it (reconciliation). A message between a
//! node and the controller takes 1 ms of emulated time. In a turn, a node polls until no packet moves.

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
use super::node::{self, InMemory, LocalNodeState, Memory, Node, NodeFactory, Violation};
use super::plan::{POOL, Plan, SERVICE, SPINE_IDS};
use crate::histories;
use crate::histories::record::{self, History, Operation, Request, Update};
use crate::lockstep::LocalLeaf;

/// Travel time of a message between a node and the controller.
const MESSAGE_NS: u64 = 1_000_000;
/// Time after which a node retries to apply a version. In `wedjat` it is the same for the rest of a version, and
/// longer after a refusal.
const RETRY_NS: u64 = 50_000_000;
/// Interval at which a leaf checks for silent spines, as in `wedjat`.
const SILENCE_CHECK_NS: u64 = 50_000_000;

/// Term of the only controller: a number that grows with each new leader, here constant.
const TERM: u64 = 1;
/// Interval at which a node serves requests and completes the removal of members.
const SERVE_NS: u64 = 1_000_000;

/// Second store of each decision, for example real controllers. It receives the command and the version that it must
/// reach.
pub type SharedStore = Box<dyn FnMut(&Command, u64) -> Result<(), String>>;

/// Desired state of a fabric at its controller.
pub struct DesiredState {
    fabric: Arc<Fabric>,
    /// Time from which nodes can receive the latest version.
    published_ns: u64,
    /// Second store of each decision.
    store: Option<SharedStore>,
    /// Nodes that follow the controller and are alive.
    followers: BTreeSet<NodeId>,
    /// Silent spines, from which a leaf receives no heartbeats, by the leaf that reports them.
    silent: BTreeMap<u16, Vec<u16>>,
    /// Commands, reads after them, and versions applied by nodes.
    history: History,
    /// Number of followers started so far. A restarted node counts again.
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
    /// Creates the state of an empty fabric. Each decision also goes to `store`, if there is one.
    #[must_use]
    pub fn new(store: Option<SharedStore>) -> Self {
        Self {
            fabric: Arc::default(),
            published_ns: 0,
            store,
            followers: BTreeSet::new(),
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

    /// Executes a command that is recorded at `now_ns`, and that the controller has stored at `stored_ns`. Nodes can
    /// receive the new version one message later.
    fn change(&mut self, command: &Command, now_ns: u64, stored_ns: u64) -> Result<(), String> {
        let decided = self.fabric.decide(command);
        let (events, next) = decided.map_err(|error| format!("{command}: {error}"))?;
        if !events.is_empty() {
            if let Some(store) = &mut self.store {
                store(command, next.version)?;
            }
            (self.fabric, self.published_ns) = (Arc::new(next), stored_ns + MESSAGE_NS);
        }
        self.record(command, now_ns)
    }

    /// Records a command, and an operator's read after it, so that the history shows the command's effect.
    fn record(&mut self, command: &Command, now_ns: u64) -> Result<(), String> {
        let text = command.to_string();
        let recorded = record::of_command(command);
        let (key, change) =
            recorded.ok_or_else(|| format!("{text}: the history cannot record this command"))?;
        let version = self.fabric.version;
        // `intern` stores equal states once and returns their number.
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

    /// Stores a leaf's list of silent spines. If the list is new, checks whether these spines are down.
    fn receive_silence(&mut self, leaf: u16, silent: Vec<u16>, now_ns: u64) -> Result<(), String> {
        let is_new = self.silent.insert(leaf, silent.clone()) != Some(silent.clone());
        let mut silent = silent.into_iter().filter(|_| is_new);
        silent.try_for_each(|spine| self.fail_if_down(spine, now_ns))
    }

    /// Declares a spine down under the same conditions as `wedjat controller`.
    fn fail_if_down(&mut self, spine: u16, now_ns: u64) -> Result<(), String> {
        match self.is_down(spine) {
            true => self.change(&Command::FailSpine { id: spine }, now_ns, now_ns + MESSAGE_NS),
            false => Ok(()),
        }
    }

    /// Returns true if the controller may declare the spine down.
    fn is_down(&self, id: u16) -> bool {
        let follows = |node| self.followers.contains(&node);
        let is_silent = |leaf| self.silent.get(&leaf).is_some_and(|spines| spines.contains(&id));
        self.fabric.is_spine_down(id, follows, is_silent)
    }
}

/// Desired state shared by the nodes and their factory.
pub type SharedDesiredState = Rc<RefCell<DesiredState>>;

/// Factory of nodes in this process. Its spines and leaves follow a controller: they receive the desired state from it.
pub struct ControlledNodes<F> {
    /// Desired state at the controller.
    pub truth: SharedDesiredState,
    /// Function that executes the plan's acts, by number and time.
    pub act: F,
}

impl<F> fmt::Debug for ControlledNodes<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlledNodes").field("truth", &self.truth).finish_non_exhaustive()
    }
}

impl<F: FnMut(&mut DesiredState, usize, u64) -> Result<(), String>> NodeFactory
    for ControlledNodes<F>
{
    fn make(&mut self, plan: &Plan, target: FaultTarget) -> Result<Box<dyn Node>, String> {
        let (id, mut config) = match target {
            FaultTarget::Spine(number) => {
                (NodeId::Spine(SPINE_IDS + number), plan.spine_config(number)?)
            }
            FaultTarget::Leaf(number) => (NodeId::Leaf(number), plan.leaf_config(number)?),
            // Agents need no controller here.
            _ => return InMemory.make(plan, target),
        };
        // The node starts without members, and receives them from the controller.
        let Config { pools, servers, spines, controller, .. } = &mut config;
        *controller = Some(FollowConfig { addresses: Vec::new(), tls: None });
        pools.clear();
        servers.clear();
        spines.clear();
        let (inner, (control, table)) = node::controlled(&config)?;
        // The node cannot reload a configuration.
        let reader = Arc::new(|| Err("it has no configuration file".to_owned()));
        let requests = Requests::new(control, table, reader);
        let desired = Rc::clone(&self.truth);
        let process = {
            let mut desired = desired.borrow_mut();
            desired.followers.insert(id);
            desired.processes += 1;
            desired.processes
        };
        let handle = requests.handle();
        Ok(Box::new(Follower {
            inner,
            requests,
            handle,
            id,
            process,
            desired,
            applied_version: None,
            next_attempt_ns: 0,
            now_ns: 0,
            next_silence_check_ns: 0,
            next_serve_ns: 0,
            last_pending_ns: 0,
            last_error: None,
            answer: Arc::default(),
        }))
    }

    fn act(&mut self, number: usize, now_ns: u64) -> Result<(), String> {
        (self.act)(&mut self.truth.borrow_mut(), number, now_ns)
    }

    fn violations(&self) -> Vec<Violation> {
        let violations = histories::check::check(self.truth.borrow().history()).into_iter();
        let controller_name = || "controller".to_owned();
        violations
            .map(|violation| Violation {
                at_ns: violation.at_ns,
                node: controller_name(),
                description: violation.to_string(),
            })
            .collect()
    }
}

/// Parses a command.
///
/// # Errors
/// If the text is no command.
pub fn command(text: &str) -> Result<Command, String> {
    text.parse().map_err(|error| format!("{text}: {error}"))
}

/// Returns the commands that add a leaf and the servers of its rack to the fabric.
///
/// # Errors
/// If one of them is invalid.
pub fn rack(plan: &Plan, leaf: u16) -> Result<Vec<Command>, String> {
    let mut commands =
        vec![command(&format!("add-leaf id={leaf} ip={}", Plan::leaf_uplink_ip(leaf)))?];
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
        let text = format!("add-spine id={} ip={}", SPINE_IDS + spine, Plan::spine_ip(spine));
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

/// Draws an operator's next command. At least one leaf and one spine stay up.
fn draw_command(fabric: &Fabric, stream: &mut Stream) -> Option<Command> {
    let mut all = Vec::new();
    // Counts the nodes that have not failed.
    let count_up = |failed: &mut dyn Iterator<Item = bool>| failed.filter(|failed| !failed).count();
    let leaves_up = count_up(&mut fabric.leaves.values().map(|leaf| leaf.is_failed));
    let spines_up = count_up(&mut fabric.spines.values().map(|spine| spine.is_failed));
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
    let index = stream.random_range(0..all.len());
    all.into_iter().nth(index)
}

/// Returns a factory of the plan's nodes, whose controller executes commands drawn from the plan's seed.
///
/// # Errors
/// If the plan's fabric is invalid.
pub fn drawn(plan: &Plan) -> Result<impl NodeFactory + use<>, String> {
    let mut stream = StreamSeed::derive(plan.seed, "orders", 0).stream();
    let spines = stream.random_range(1..=plan.topology.spines);
    let mut desired = DesiredState::new(None);
    for command in begin(plan, plan.topology.leaves, spines)? {
        desired.command(&command, 0)?;
    }
    let act = move |desired: &mut DesiredState, _, now_ns| {
        let drawn = draw_command(desired.fabric(), &mut stream);
        drawn.map_or(Ok(()), |command| desired.command(&command, now_ns))
    };
    Ok(ControlledNodes { truth: Rc::new(RefCell::new(desired)), act })
}

/// Result of a follow request, by which the node reconciles its state, with its version.
type Answer = Arc<Mutex<Option<(u64, Result<FollowResult, RequestError>)>>>;

/// A spine or leaf that follows the controller.
struct Follower {
    /// The node itself.
    inner: Memory<LocalLeaf>,
    /// Queue of requests to the node, as in the process; `handle` adds to it.
    requests: Requests<LeafCores>,
    handle: Handle,
    id: NodeId,
    /// Number of this process among all followers of the run.
    process: u64,
    desired: SharedDesiredState,
    /// Version that the node has applied completely.
    applied_version: Option<u64>,
    /// Earliest time of the next attempt to apply a version.
    next_attempt_ns: u64,
    /// Time of the last turn.
    now_ns: u64,
    /// Time of the next check for silent spines.
    next_silence_check_ns: u64,
    /// Time at which the node serves requests next.
    next_serve_ns: u64,
    /// Last time at which a removal or another change was pending.
    last_pending_ns: u64,
    /// Error of the last failed attempt.
    last_error: Option<String>,
    /// Answer to the last request, once there is one.
    answer: Answer,
}

impl Follower {
    /// Requests the reconciliation with the controller's version, if it is due. Returns true if it was requested.
    fn request_reconciliation(&mut self, now_ns: u64) -> bool {
        let desired = self.desired.borrow();
        let version = desired.fabric.version;
        if self.applied_version == Some(version)
            || now_ns < desired.published_ns.max(self.next_attempt_ns)
        {
            return false;
        }
        let kind = if matches!(self.id, NodeId::Spine(_)) {
            FollowerKind::Spine
        } else {
            FollowerKind::Leaf
        };
        match wanted(self.id, &desired.fabric.view(self.id)) {
            Ok(wanted) => {
                let answer = Arc::clone(&self.answer);
                let store = move |result| {
                    *answer.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some((version, result));
                };
                self.handle.follow(wanted, kind, store);
                drop(desired);
                self.next_attempt_ns = now_ns + RETRY_NS;
                true
            }
            Err(reason) => {
                (self.last_error, self.next_attempt_ns) = (Some(reason), now_ns + RETRY_NS);
                false
            }
        }
    }

    /// Handles the answer to a request, which may arrive some turns later. An incomplete reconciliation is
    /// retried.
    fn receive_answer(&mut self, now_ns: u64) {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match answer {
            Some((version, Ok(FollowResult { is_complete: true, .. }))) => {
                (self.applied_version, self.last_error, self.next_attempt_ns) =
                    (Some(version), None, now_ns);
                self.record(version, now_ns);
            }
            Some((_, Err(error))) => self.last_error = Some(error.to_string()),
            Some((_, Ok(_))) | None => {}
        }
    }

    /// Records a version that the node has applied, with a hash of its members. The check of the history finds a node
    /// with two views of one version.
    fn record(&self, version: u64, now_ns: u64) {
        let mut hasher = DefaultHasher::new();
        self.members().hash(&mut hasher);
        self.desired.borrow_mut().history.updates.push(Update {
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
    fn report_silent_spines(&mut self, now_ns: u64) {
        let NodeId::Leaf(leaf) = self.id else { return };
        self.next_silence_check_ns = now_ns + SILENCE_CHECK_NS;
        let silent = self.requests.control().silent_spines();
        if let Err(reason) = self.desired.borrow_mut().receive_silence(leaf, silent, now_ns) {
            self.last_error = Some(reason);
        }
    }
}

/// Returns the members in a node's desired state: pool, id, and whether the member is drained.
fn members_of(view: &View) -> BTreeSet<(u16, u16, bool)> {
    let workers = view.workers.iter();
    workers.map(|(&(_, id), worker)| (worker.pool, id, worker.is_drained)).collect()
}

impl Node for Follower {
    /// Polls the node. Requests a reconciliation before the poll, serves requests around it, and reports silent
    /// spines after it, each only if it is due.
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        // The node has no device whose port statistics a request could read.
        let none = Vec::new;
        self.now_ns = now_ns;
        let requested = self.request_reconciliation(now_ns);
        let serves = requested || now_ns >= self.next_serve_ns;
        if serves {
            self.requests.serve(now_ns, &none);
        }
        let line = Node::turn(&mut self.inner, now_ns)?;
        if serves {
            self.next_serve_ns = now_ns + SERVE_NS;
            self.requests.serve(now_ns, &none);
            if !self.requests.control().is_settled() {
                self.last_pending_ns = now_ns;
            }
        }
        self.receive_answer(now_ns);
        if now_ns >= self.next_silence_check_ns {
            self.report_silent_spines(now_ns);
        }
        Ok(line)
    }

    fn give(&mut self, port: usize, frame: &[u8]) -> bool {
        self.inner.give(port, frame)
    }

    fn take(&mut self, port: usize, each: &mut dyn FnMut(&[u8])) {
        self.inner.take(port, each);
    }

    /// Returns the node's state. Its waiting tasks are stranded if it has no active member: the report of a lost task
    /// then names drained workers as a possible cause.
    fn local_state(&self) -> Option<LocalNodeState<'_>> {
        let state = self.inner.local_state()?;
        let has_no_member =
            state.dispatcher.is_some_and(|dispatcher| dispatcher.view().active().is_empty());
        let stranded = if has_no_member { state.waiting as u64 } else { 0 };
        Some(LocalNodeState { stranded, ..state })
    }

    fn region(&self) -> Option<Arc<WorkerRegion>> {
        None
    }

    fn pause(&mut self, paused: bool) -> Result<(), String> {
        self.inner.pause(paused)
    }

    fn differs(&self) -> Option<(String, u64)> {
        let since_ns = self.last_pending_ns.max(self.desired.borrow().published_ns);
        self.difference().map(|difference| (difference, since_ns))
    }

    /// Ends the node, which no longer follows. The controller then decides whether a killed spine is down.
    fn end(self: Box<Self>, killed: bool) -> Result<(), String> {
        let mut desired = self.desired.borrow_mut();
        desired.followers.remove(&self.id);
        match self.id {
            NodeId::Leaf(leaf) => _ = desired.silent.remove(&leaf),
            NodeId::Spine(spine) if killed => desired.fail_if_down(spine, self.now_ns)?,
            NodeId::Spine(_) | NodeId::Agent(_) => {}
        }
        drop(desired);
        let Self { inner, requests, .. } = *self;
        drop(requests);
        Box::new(inner).end(killed)
    }
}

impl Follower {
    /// Returns the node's difference from the controller's desired state.
    fn difference(&self) -> Option<String> {
        let desired = self.desired.borrow();
        let version = desired.fabric.version;
        if self.applied_version != Some(version) {
            return Some(format!(
                "it has version {:?}, but the controller {version}{}",
                self.applied_version,
                self.last_error.as_ref().map_or_else(String::new, |reason| format!(": {reason}"))
            ));
        }
        let wanted = members_of(&desired.fabric.view(self.id));
        let members = self.members();
        (members != wanted)
            .then(|| format!("its members are {members:?}, but the controller's are {wanted:?}"))
    }

    /// Returns the members that the node schedules for, in the form of [`members_of`].
    fn members(&self) -> BTreeSet<(u16, u16, bool)> {
        let pools = self.requests.control().membership().pools.iter().flatten();
        let members = |pool: &Pool| {
            let id = pool.id;
            let members: Vec<_> = pool
                .members
                .iter()
                .flatten()
                .map(|member| (id, member.id, member.is_drained))
                .collect();
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
        let mut desired = DesiredState::new(None);
        let add = |desired: &mut DesiredState, id: u16, now_ns| {
            let text = format!("add-spine id={id} ip=10.0.0.{id}");
            desired.command(&command(&text).unwrap(), now_ns).unwrap();
        };
        // The controller forgets the second spine, then makes another change.
        add(&mut desired, 1, 10);
        let before = Arc::clone(&desired.fabric);
        add(&mut desired, 2, 20);
        assert_eq!(histories::check::check(desired.history()), []);
        desired.fabric = before;
        add(&mut desired, 3, 30);
        let found = histories::check::check(desired.history());
        let lost = "spine 2 is not linearizable";
        assert!(found.iter().any(|violation| violation.description.contains(lost)), "{found:?}");
    }
}
