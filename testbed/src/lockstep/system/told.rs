//! Spines and leaves in this process that follow a controller. What it decides, what each node is told and how a node makes itself
//! so is the real one's; how long words between them take is the conductor's to say.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use rand::RngExt as _;
use wedjat::admin::{Followed, Follows, Handle, RequestError, Requests};
use wedjat::clock::{Line, TurnError};
use wedjat::config::{Config, FollowConfig};
use wedjat::control::{LeafCores, Pool};
use wedjat::controller::{Command, Fabric, NodeId, View, wanted};
use wedjat::ring::WorkerRegion;
use wedjat_pktgen::seed::{Stream, StreamSeed};

use super::Who;
use super::check::Violation;
use super::node::{self, InMemory, Inside, Maker, Memory, Node};
use super::plan::{POOL, Plan, SERVICE, SPINE_IDS};
use crate::histories;
use crate::histories::record::{self, History, Operation, Request, Update};
use crate::lockstep::Local;

/// What a word takes from a node to the controller, or back.
const WORD_NS: u64 = 1_000_000;
/// A node that could not take all of a version tries again after so long, as `wedjat` does.
const AGAIN_NS: u64 = 50_000_000;
/// A leaf looks so often whether its spines are silent, as `wedjat` does.
const LOOK_NS: u64 = 50_000_000;

/// Term of the only controller.
const TERM: u64 = 1;
/// It sees to what leaves so often.
const TEND_NS: u64 = 1_000_000;

/// Who else is to keep what is decided: real controllers, which must come to the same version.
pub type Keep = Box<dyn FnMut(&Command, u64) -> Result<(), String>>;

/// What a fabric is to be, as its controller knows it.
pub struct Truth {
    fabric: Arc<Fabric>,
    /// From when on nodes can have heard of it.
    told_ns: u64,
    keep: Option<Keep>,
    /// Nodes that follow.
    follow: BTreeSet<NodeId>,
    /// Spines of which a leaf hears nothing.
    silent: BTreeMap<u16, Vec<u16>>,
    /// Commands, reads after them, and versions that nodes applied.
    history: History,
    /// Number of processes that have followed.
    processes: u64,
}

impl fmt::Debug for Truth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Truth").field("version", &self.fabric.version).finish_non_exhaustive()
    }
}

impl Truth {
    /// Of an empty fabric. What is decided others keep, too, if there are any.
    #[must_use]
    pub fn new(keep: Option<Keep>) -> Self {
        Self {
            fabric: Arc::default(),
            told_ns: 0,
            keep,
            follow: BTreeSet::new(),
            silent: BTreeMap::new(),
            history: History::default(),
            processes: 0,
        }
    }

    /// History of the run so far.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// What there is to be.
    #[must_use]
    pub fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// Does a command at this time.
    ///
    /// # Errors
    /// Why it can't be, or is not kept.
    pub fn command(&mut self, command: &Command, now_ns: u64) -> Result<(), String> {
        self.change(command, now_ns, now_ns)
    }

    /// Carries out a command, which the controller receives at `now_ns`, for nodes to hear of from `kept_ns` on.
    fn change(&mut self, command: &Command, now_ns: u64, kept_ns: u64) -> Result<(), String> {
        let decided = self.fabric.decide(command);
        let (events, next) = decided.map_err(|error| format!("{command}: {error}"))?;
        if !events.is_empty() {
            if let Some(keep) = &mut self.keep {
                keep(command, next.version)?;
            }
            (self.fabric, self.told_ns) = (Arc::new(next), kept_ns + WORD_NS);
        }
        self.record(command, now_ns)
    }

    /// Records a command, and what an operator reads after it.
    fn record(&mut self, command: &Command, now_ns: u64) -> Result<(), String> {
        let text = command.to_string();
        let of = record::of_command(command);
        let (key, change) = of.ok_or_else(|| format!("{text}: a history has no place for it"))?;
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

    /// A leaf tells of which spines it hears nothing.
    fn hear(&mut self, leaf: u16, silent: Vec<u16>, now_ns: u64) -> Result<(), String> {
        let is_new = self.silent.insert(leaf, silent.clone()) != Some(silent.clone());
        let mut silent = silent.into_iter().filter(|_| is_new);
        silent.try_for_each(|spine| self.judge(spine, now_ns))
    }

    /// Takes a spine to be down as `wedjat controller` does.
    fn judge(&mut self, spine: u16, now_ns: u64) -> Result<(), String> {
        match self.is_down(spine) {
            true => self.change(&Command::FailSpine { id: spine }, now_ns, now_ns + WORD_NS),
            false => Ok(()),
        }
    }

    fn is_down(&self, id: u16) -> bool {
        let follows = |node| self.follow.contains(&node);
        let is_silent = |leaf| self.silent.get(&leaf).is_some_and(|spines| spines.contains(&id));
        self.fabric.is_spine_down(id, follows, is_silent)
    }
}

/// What nodes and their maker share.
pub type SharedTruth = Rc<RefCell<Truth>>;

/// Makes nodes in this process whose spines and leaves follow a controller.
pub struct Told<F> {
    /// The controller.
    pub truth: SharedTruth,
    /// What is done at the plan's acts, by number and time.
    pub act: F,
}

impl<F> fmt::Debug for Told<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told").field("truth", &self.truth).finish_non_exhaustive()
    }
}

impl<F: FnMut(&mut Truth, usize, u64) -> Result<(), String>> Maker for Told<F> {
    fn make(&mut self, plan: &Plan, who: Who) -> Result<Box<dyn Node>, String> {
        let (id, mut config) = match who {
            Who::Spine(number) => (NodeId::Spine(SPINE_IDS + number), plan.spine_config(number)?),
            Who::Leaf(number) => (NodeId::Leaf(number), plan.leaf_config(number)?),
            _ => return InMemory.make(plan, who),
        };
        let Config { pools, servers, spines, controller, .. } = &mut config;
        *controller = Some(FollowConfig { addresses: Vec::new(), tls: None });
        pools.clear();
        servers.clear();
        spines.clear();
        let (inner, (control, table)) = node::controlled(&config)?;
        let reader = Arc::new(|| Err("it has no file".to_owned()));
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

/// A command, of its text.
///
/// # Errors
/// When it is none.
pub fn command(text: &str) -> Result<Command, String> {
    text.parse().map_err(|error| format!("{text}: {error}"))
}

/// The commands that make a leaf and its rack part of the fabric.
///
/// # Errors
/// When one is none.
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

/// The commands that make the fabric of a plan, with the first so many leaves and all their workers in one pool, which is linked to so
/// many spines.
///
/// # Errors
/// When one is none.
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

/// What an operator does next: something that a fabric lets one do.
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

/// Makes the nodes of a plan whose controller has orders drawn from its seed.
///
/// # Errors
/// When its fabric can't be.
pub fn drawn(plan: &Plan) -> Result<impl Maker + use<>, String> {
    let mut stream = StreamSeed::derive(plan.seed, "orders", 0).stream();
    let spines = stream.random_range(1..=plan.topology.spines);
    let mut truth = Truth::new(None);
    for command in begin(plan, plan.topology.leaves, spines)? {
        truth.command(&command, 0)?;
    }
    let act = move |truth: &mut Truth, _, now_ns| {
        let order = order(truth.fabric(), &mut stream);
        order.map_or(Ok(()), |order| truth.command(&order, now_ns))
    };
    Ok(Told { truth: Rc::new(RefCell::new(truth)), act })
}

/// What came of which version.
type Answer = Arc<Mutex<Option<(u64, Result<Followed, RequestError>)>>>;

/// A spine or leaf that follows.
struct Follower {
    inner: Memory<Local>,
    requests: Requests<LeafCores>,
    handle: Handle,
    id: NodeId,
    process: u64,
    truth: SharedTruth,
    /// The version that it has all of.
    taken: Option<u64>,
    /// Before that it does not try.
    due_ns: u64,
    now_ns: u64,
    look_ns: u64,
    tend_ns: u64,
    /// When something was leaving last, or not taken yet.
    held_up_ns: u64,
    refused: Option<String>,
    answer: Answer,
}

impl Follower {
    /// Asks for what the controller says, when it is time; true if it did.
    fn ask(&mut self, now_ns: u64) -> bool {
        let truth = self.truth.borrow();
        let version = truth.fabric.version;
        if self.taken == Some(version) || now_ns < truth.told_ns.max(self.due_ns) {
            return false;
        }
        let follows =
            if matches!(self.id, NodeId::Spine(_)) { Follows::Spine } else { Follows::Leaf };
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

    /// Takes the answer, which may come some turns after the question.
    fn settle(&mut self, now_ns: u64) {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match answer {
            Some((version, Ok(Followed { is_complete: true, .. }))) => {
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

    /// A leaf looks at its spines.
    fn look(&mut self, now_ns: u64) {
        let NodeId::Leaf(leaf) = self.id else { return };
        self.look_ns = now_ns + LOOK_NS;
        let silent = self.requests.control().silent_spines();
        if let Err(reason) = self.truth.borrow_mut().hear(leaf, silent, now_ns) {
            self.refused = Some(reason);
        }
    }
}

/// Members by pool and id, of what a node is told, and whether they get no new tasks.
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

    fn inside(&self) -> Option<Inside<'_>> {
        let inside = self.inner.inside()?;
        let is_idle = inside.dispatcher.is_some_and(|of| of.view().active().is_empty());
        let stranded = if is_idle { inside.waiting as u64 } else { 0 };
        Some(Inside { stranded, ..inside })
    }

    fn region(&self) -> Option<Arc<WorkerRegion>> {
        None
    }

    fn pause(&mut self, paused: bool) -> Result<(), String> {
        self.inner.pause(paused)
    }

    fn differs(&self) -> Option<(String, u64)> {
        let since_ns = self.held_up_ns.max(self.truth.borrow().told_ns);
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
    /// What of it is other than the controller says.
    fn difference(&self) -> Option<String> {
        let truth = self.truth.borrow();
        let version = truth.fabric.version;
        if self.taken != Some(version) {
            return Some(format!(
                "it has version {:?}, and the controller {version}{}",
                self.taken,
                self.refused.as_ref().map_or_else(String::new, |reason| format!(": {reason}"))
            ));
        }
        let told = members_of(&truth.fabric.view(self.id));
        let has = self.members();
        (has != told).then(|| format!("its members are {has:?}, and the controller's {told:?}"))
    }

    /// Members that the node schedules for, as [`members_of`] has them.
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
        let mut truth = Truth::new(None);
        let add = |truth: &mut Truth, id: u16, now_ns| {
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
