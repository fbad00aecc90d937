//! gRPC service of a controller, for followers and operators.
//!
//! A follower is a node (leaf, spine or agent) with an open call to the controller: its session. The node sends a hello
//! and then its acknowledgements and observations. The service sends the node's view, the part of the fabric that
//! concerns it, and then deltas. Operators send commands and read the topology. The desk, another task, executes the
//! commands. A standby, which is a controller without the lead, refuses all calls; the term numbers the leads.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};
use wedjat_desired::config::ids;
use wedjat_desired::state::Delta;

use super::command::Command;
use super::convert::{self, PROTOCOL, command_status};
use super::desk::{
    AskError, CommandRequest, CommandResult, ControllerRole, Request as DeskRequest, RoleReader,
    notes,
};
use super::fabric::{Fabric, Leaf, PoolSettings};
use super::generated as proto;
use super::generated::fabric_server::Fabric as Calls;
use super::generated::follow_request::Message;
use super::view::{NodeId, View};

/// Timeout for a node's first message.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// Highest plausible version of a node. A controller does not raise its own version above a higher one, which would
/// use up the numbers, and does not refuse commands because of it.
const VERSION_MAX: u64 = 1 << 62;
/// Maximum number of queued messages to one node.
const REPLIES_MAX: usize = 4;

/// Node that follows.
#[derive(Debug)]
struct Follower {
    /// Random number of the node's process. It tells a reconnection from a second process with the same id.
    instance: u64,
    /// Dropped when the same process follows again, which ends the earlier session.
    _replaced: oneshot::Sender<()>,
    /// Number of the node's session, unique in this process. An ended session thus never removes a later one.
    session: u64,
    /// Newest version sent to this node. The service sends only versions that change the node's view.
    sent: u64,
    /// Version that the node has applied.
    version: u64,
    /// Reason why the node refuses its version; empty if it does not.
    refuses: String,
    /// Observations that the node reported: registered and silent workers, and silent spines.
    seen: proto::Seen,
    /// Last logged reason why registered workers did not join.
    last_logged: String,
}

/// Nodes that follow, each with its latest session.
type Followers = BTreeMap<NodeId, Follower>;

/// Service for nodes and operators. Its clones share the followers and caches.
#[derive(Clone, Debug)]
pub struct Service {
    /// Id of the controller.
    id: u16,
    /// Queue of requests to the desk.
    requests: mpsc::Sender<CommandRequest>,
    /// Role of this controller: standby, or leader with the current fabric.
    role: RoleReader,
    /// Nodes with an open session.
    followers: Arc<Mutex<Followers>>,
    /// Number of the next session.
    next_session: Arc<AtomicU64>,
    /// Spines of the fabric that have followed this process. The service marks only these as down by itself: a spine
    /// that has not connected yet after the controller's start, or after its addition, may be alive.
    seen_spines: Arc<Mutex<BTreeSet<u16>>>,
    /// Cache of the pools that differ between two versions. Most nodes need the same pair at the same time.
    changed: Arc<Mutex<PoolDelta>>,
    /// True after a restore of the store by an operator: the service then accepts nodes that are ahead of it, and
    /// raises the store's version above theirs.
    restores: bool,
    /// Newest version among the nodes that are ahead of the store, with its node. The service refuses such nodes. It
    /// also refuses commands while this version is above the store's.
    newest: Arc<Mutex<Option<(u64, NodeId)>>>,
}

/// Term, first version and second version, with the pools that differ.
type PoolDelta = ([u64; 3], Arc<[u16]>);

/// Stream of messages to a node.
type Replies = Pin<Box<dyn Stream<Item = Result<proto::FollowReply, Status>> + Send>>;

/// Returns the status of a controller that stands by.
fn stands_by(reason: &str) -> Status {
    Status::unavailable(format!("this controller stands by: {reason}"))
}

/// Returns the gRPC status for an error of the desk.
fn status(error: &AskError) -> Status {
    match error {
        AskError::Command(error) => command_status(error),
        AskError::Version { .. } => Status::aborted(error.to_string()),
        AskError::Behind { .. } => Status::failed_precondition(error.to_string()),
        AskError::Store(_) | AskError::Standby(_) => Status::unavailable(error.to_string()),
    }
}

impl Service {
    /// Creates the service of the controller `id`. Requests go to `requests`; `role` has the desired state.
    pub fn new(
        id: u16,
        restores: bool,
        requests: mpsc::Sender<CommandRequest>,
        role: RoleReader,
    ) -> Self {
        let changed = Arc::new(Mutex::new(([0; 3], [].into())));
        let (followers, next_session) = (Arc::default(), Arc::default());
        let (seen_spines, newest) = (Arc::default(), Arc::default());
        Self { id, requests, role, followers, next_session, seen_spines, changed, restores, newest }
    }

    /// Locks the followers. A panic of another thread leaves them consistent.
    fn followers(&self) -> MutexGuard<'_, Followers> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pools that differ between two versions of one term, from the cache if possible.
    fn changed(&self, term: u64, before: &Fabric, now: &Fabric) -> Arc<[u16]> {
        let between = [term, before.version, now.version];
        let mut known = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != between {
            *known = (between, now.changed_pools(before).into());
        }
        Arc::clone(&known.1)
    }

    /// Returns the message that brings a node from its `view` to this version. `None` if nothing changes for the node.
    /// Updates `view`, and `before`, the term and the fabric of the last call. The first message of a term is a whole
    /// snapshot, because another leader may have continued from another state.
    fn update_for(
        &self,
        node: NodeId,
        view: &mut View,
        before: &mut Option<(u64, Arc<Fabric>)>,
        (term, fabric): (u64, &Arc<Fabric>),
    ) -> Option<proto::FollowReply> {
        // `None` for the first call, and for the first one of a term.
        let old = before.replace((term, Arc::clone(fabric))).filter(|(old, _)| *old == term);
        let Some((_, old)) = old else {
            *view = fabric.view(node);
            let all = Delta::between(&View::default(), view);
            return Some(convert::message(term, fabric.version, true, &all));
        };
        let delta = fabric.delta_of_pools(&old, node, view, &self.changed(term, &old, fabric));
        // Spines, agents, and leaves whose rack has changed need a comparison of whole views.
        let delta = delta.unwrap_or_else(|| Delta::between(view, &fabric.view(node)));
        // A removed node gets a message even if its view was empty: `serve` ends its session after it.
        if delta.is_empty() && fabric.has(node) {
            return None;
        }
        let message = convert::message(term, fabric.version, false, &delta);
        view.apply(delta);
        Some(message)
    }

    /// Returns the term and the current fabric. Fails on a standby.
    fn leader_state(&self) -> Result<(u64, Arc<Fabric>), Status> {
        match self.role.now() {
            ControllerRole::Leader { term, fabric, .. } => Ok((term, fabric)),
            ControllerRole::Standby(reason) => Err(stands_by(&reason)),
        }
    }

    /// Sends a command to the desk, unless a node has a newer version than the store: the store is then an old copy,
    /// and a change of it would lose acknowledged changes.
    async fn execute(
        &self,
        command: Command,
        if_version: Option<u64>,
    ) -> Result<CommandResult, AskError> {
        let newest = *self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some((has, node)), ControllerRole::Leader { fabric, .. }) =
            (newest, self.role.now())
            && has > fabric.version
        {
            return Err(AskError::Behind { node, has, found: fabric.version });
        }
        self.send_request(DeskRequest::Command(command), if_version).await
    }

    /// Sends a request to the desk and waits for the answer.
    async fn send_request(
        &self,
        request: DeskRequest,
        if_version: Option<u64>,
    ) -> Result<CommandResult, AskError> {
        let (answer, answered) = oneshot::channel();
        let sent = self.requests.send(CommandRequest { request, if_version, answer }).await;
        sent.map_err(|_| AskError::Standby("it ends".into()))?;
        // The desk may have ended while the store kept the command.
        let unknown =
            "the controller ends; whether the command is kept is not known: look at the topology";
        answered.await.map_err(|_| AskError::Store(unknown.to_owned()))?
    }

    /// Checks that a node may follow. A node with a newer version or term than the store may follow only after
    /// an operator restored the store. The store's version is then raised above the node's, up to [`VERSION_MAX`],
    /// because a node refuses versions older than its own.
    async fn check(&self, node: NodeId, hello: &proto::Hello) -> Result<(), Status> {
        let (term, mut fabric) = self.leader_state()?;
        let is_newer = hello.version > fabric.version || hello.term > term;
        // Checked before the node's membership: an old copy of the store may lack the node.
        if is_newer && !self.restores {
            if hello.version <= VERSION_MAX {
                let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
                *newest = (*newest).max(Some((hello.version, node)));
            }
            return Err(Status::failed_precondition(format!(
                "{node} has version {} of term {}, and the store has version {} of term {term}: it was restored from an \
                 old copy, or is another; restore a newer copy, or start the controller with `--restore` to have the nodes take what it has",
                hello.version, hello.term, fabric.version
            )));
        }
        if is_newer && hello.version <= VERSION_MAX {
            let raised = self.send_request(DeskRequest::Raise(hello.version), None).await;
            fabric = raised.map_err(|error| status(&error))?.fabric;
        }
        if !fabric.has(node) {
            let fix = "add it with `wedjat ctl`, or correct its id";
            return Err(Status::not_found(format!("{node}: the fabric has none; {fix}")));
        }
        Ok(())
    }

    /// Registers a node as a follower. Returns the number of its session, and a receiver that ends when a later
    /// session replaces this one. Refuses a second process of the node.
    fn add_follower(
        &self,
        node: NodeId,
        instance: u64,
    ) -> Result<(u64, oneshot::Receiver<()>), Status> {
        let mut followers = self.followers();
        let follower = followers.get(&node);
        if follower.is_some_and(|follower| follower.instance != instance) {
            return Err(Status::already_exists(format!(
                "{node} follows already, as another process: give each node an id of its own; if that process has \
                 died, try again in a few seconds"
            )));
        }
        let session = self.next_session.fetch_add(1, Ordering::Relaxed);
        let (replaced, is_replaced) = oneshot::channel();
        let (sent, version, refuses, last_logged, seen) =
            (0, 0, String::new(), String::new(), proto::Seen::default());
        let follower = Follower {
            instance,
            _replaced: replaced,
            session,
            sent,
            version,
            refuses,
            seen,
            last_logged,
        };
        followers.insert(node, follower);
        if let NodeId::Spine(id) = node {
            self.seen_spines.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
        }
        Ok((session, is_replaced))
    }

    /// Removes a follower at the end of its session, unless a later session has replaced it.
    fn remove_follower(&self, node: NodeId, session: u64) {
        let mut followers = self.followers();
        if followers.get(&node).is_some_and(|follower| follower.session == session) {
            followers.remove(&node);
            log::info!("{node} follows no more");
        }
    }

    /// Sends a node its desired state and handles its messages. Returns at the end of the connection or the lead, after
    /// the node's removal from the fabric, or after the start of a later session.
    async fn serve(
        &self,
        (node, session): (NodeId, u64),
        mut messages: Streaming<proto::FollowRequest>,
        replies: mpsc::Sender<Result<proto::FollowReply, Status>>,
        mut replaced: oneshot::Receiver<()>,
    ) {
        // The first `changed` returns at once, so the node gets a snapshot first.
        let mut role = self.role.restarted();
        let (mut view, mut before) = (View::default(), None::<(u64, Arc<Fabric>)>);
        loop {
            tokio::select! {
                now = role.changed() => {
                    let Some(now) = now else { return };
                    let (term, fabric) = match now {
                        ControllerRole::Leader { term, fabric, .. } => (term, fabric),
                        ControllerRole::Standby(reason) => {
                            let _ = replies.send(Err(stands_by(&reason))).await;
                            return;
                        }
                    };
                    let Some(message) = self.update_for(node, &mut view, &mut before, (term, &fabric)) else { continue };
                    self.update_follower((node, session), |follower| follower.sent = fabric.version);
                    if replies.send(Ok(message)).await.is_err() {
                        return;
                    }
                    if !fabric.has(node) {
                        let reason = format!("{node}: the fabric has none any more");
                        let _ = replies.send(Err(Status::not_found(reason))).await;
                        return;
                    }
                }
                message = messages.message() => match message {
                    Ok(Some(proto::FollowRequest { message: Some(message) })) => {
                        self.handle_message((node, session), message).await;
                    }
                    // A message of a kind that this release does not know.
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return,
                },
                _ = &mut replaced => return,
            }
        }
    }

    /// Changes the entry of a follower, unless a later session has replaced it.
    fn update_follower(&self, (node, session): (NodeId, u64), change: impl Fn(&mut Follower)) {
        let mut followers = self.followers();
        followers.get_mut(&node).filter(|follower| follower.session == session).map(change);
    }

    /// Processes a message of a follower: stores its state, checks silent spines, and registers workers.
    async fn handle_message(&self, (node, session): (NodeId, u64), message: Message) {
        let update = |change: &dyn Fn(&mut Follower)| self.update_follower((node, session), change);
        match message {
            Message::Hello(_) => {}
            Message::Acknowledge(proto::Acknowledge { version }) => {
                update(&|follower| (follower.version, follower.refuses) = (version, String::new()));
            }
            Message::Refuse(proto::Refuse { version, reason }) => {
                log::warn!("{node} can't take version {version}: {reason}");
                update(&|follower| follower.refuses = reason.clone());
            }
            Message::Seen(seen) => {
                update(&|follower| follower.seen = seen.clone());
                let spines = seen.silent_spines.into_iter().filter_map(|id| u16::try_from(id).ok());
                for spine in spines {
                    self.check_spine(spine).await;
                }
            }
            Message::Register(register) => {
                let Err(reason) = self.register(node, &register).await else { return };
                update(&|follower| {
                    if follower.last_logged != reason {
                        log::warn!("{node}: workers {:?} do not join: {reason}", register.workers);
                        follower.last_logged.clone_from(&reason);
                    }
                });
            }
        }
    }

    /// Checks all spines. The service calls it after an operator's command, at the start of a spine's session, and at
    /// the end of a spine's or leaf's session. Each of them can complete the conditions for a spine that leaves have
    /// reported before, and leaves report a silent spine only once.
    async fn check_spines(&self) {
        let Ok((_, fabric)) = self.leader_state() else { return };
        {
            // A removed spine's id may return with another spine, which has not followed yet.
            let mut seen = self.seen_spines.lock().unwrap_or_else(PoisonError::into_inner);
            seen.retain(|id| fabric.spines.contains_key(id));
        }
        for &id in fabric.spines.keys() {
            self.check_spine(id).await;
        }
    }

    /// Marks a spine as down if [`Fabric::is_spine_down`] returns true and it has followed this process
    /// before. An operator must restore it. If another command has changed the fabric meanwhile, checks again.
    async fn check_spine(&self, id: u16) {
        loop {
            let Ok((_, fabric)) = self.leader_state() else { return };
            if !self.is_down(&fabric, id) {
                return;
            }
            match self.execute(Command::FailSpine { id }, Some(fabric.version)).await {
                Ok(_) => log::warn!(
                    "spine {id} is taken to be down: its leaves hear nothing of it; others have its racks. Once it is mended, \
                     `wedjat ctl restore-spine {id}`"
                ),
                // The desk has published the new version before this answer.
                Err(AskError::Version { .. }) => continue,
                Err(error) => log::warn!("spine {id} is silent, and not taken to be down: {error}"),
            }
            return;
        }
    }

    /// Returns true if a spine is down by its leaves' reports. It must have followed this process before.
    fn is_down(&self, fabric: &Fabric, id: u16) -> bool {
        if !self.seen_spines.lock().unwrap_or_else(PoisonError::into_inner).contains(&id) {
            return false;
        }
        let followers = self.followers();
        let reports_silent = |leaf: u16| {
            let leaf = followers.get(&NodeId::Leaf(leaf));
            leaf.is_some_and(|leaf| leaf.seen.silent_spines.contains(&id.into()))
        };
        fabric.is_spine_down(id, |node| followers.contains_key(&node), reports_silent)
    }

    /// Executes the registration of workers that a leaf reported. The error is the reason why they do not join.
    async fn register(&self, node: NodeId, register: &proto::Register) -> Result<(), String> {
        let NodeId::Leaf(leaf) = node else { return Err("it is no leaf".to_owned()) };
        let ip = convert::address(&register.server).map_err(|error| error.to_string())?;
        let workers = convert::workers(&register.workers).map_err(|error| error.to_string())?;
        let pool = u16::try_from(register.pool).map_err(|error| error.to_string())?;
        let command = Command::Register { leaf, ip, pool, workers };
        self.execute(command, None).await.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Returns the state of a node for the topology, as the optional field of a message, always `Some`. `version` is
    /// the fabric's. A node that has applied all messages to it counts as having `version`: the service does not send
    /// versions without a change for the node.
    fn node(followers: &Followers, node: NodeId, version: u64) -> Option<proto::Node> {
        let follower = followers.get(&node);
        Some(follower.map_or_else(proto::Node::default, |follower| proto::Node {
            connected: true,
            version: if follower.version >= follower.sent { version } else { follower.version },
            refuses: follower.refuses.clone(),
            registered: follower.seen.registered.len() as u32,
            silent: follower.seen.silent.clone(),
        }))
    }

    /// Returns the topology for operators: the whole fabric with the states of its nodes.
    fn topology(&self, term: u64, fabric: &Fabric) -> proto::TopologyReply {
        let followers = self.followers();
        let node_state = |node| Self::node(&followers, node, fabric.version);
        let spines = fabric.spines.iter().map(|(&id, spine)| proto::TopologySpine {
            id: id.into(),
            address: spine.ip.to_string(),
            failed: spine.is_failed,
            node: node_state(NodeId::Spine(id)),
        });
        let leaves = fabric.leaves.iter().map(|(&id, leaf)| proto::TopologyLeaf {
            id: id.into(),
            address: leaf.ip.to_string(),
            failed: leaf.is_failed,
            node: node_state(NodeId::Leaf(id)),
            servers: servers(leaf, &followers, fabric.version),
        });
        proto::TopologyReply {
            term,
            version: fabric.version,
            controller: self.id.into(),
            spines: spines.collect(),
            leaves: leaves.collect(),
            pools: fabric.pools.iter().map(|(&id, entry)| pool(fabric, id, entry)).collect(),
            notes: notes(fabric),
        }
    }
}

/// Returns the servers of a rack for the topology, with their workers and the states of their agents.
fn servers(leaf: &Leaf, followers: &Followers, version: u64) -> Vec<proto::TopologyServer> {
    let mut workers = BTreeMap::<_, Vec<u16>>::new();
    leaf.workers
        .iter()
        .for_each(|(&id, worker)| workers.entry(worker.server).or_default().push(id));
    let server =
        |(&ip, server): (&std::net::IpAddr, &super::fabric::Server)| proto::TopologyServer {
            ip: ip.to_string(),
            registers: server.registers,
            drained: server.is_drained,
            workers: ids::text(workers.get(&ip).map_or(&[], Vec::as_slice)),
            agent: Service::node(followers, NodeId::Agent(ip), version),
        };
    leaf.servers.iter().map(server).collect()
}

/// Returns a pool for the topology, with its racks and their spines.
fn pool(fabric: &Fabric, id: u16, settings: &PoolSettings) -> proto::TopologyPool {
    let links = fabric.links.get(&id).cloned().unwrap_or_default();
    let rack = |(leaf, workers)| proto::TopologyRack {
        leaf: u32::from(leaf),
        workers,
        spine: links.get(&leaf).copied().map(u32::from),
    };
    proto::TopologyPool {
        pool: Some(convert::pool(id, settings)),
        members: fabric.members(id) as u64,
        racks: fabric.racks(id).map(rack).collect(),
    }
}

#[tonic::async_trait]
impl Calls for Service {
    type FollowStream = Replies;

    /// Checks a node's hello, registers the node as a follower, and streams its desired state.
    async fn follow(
        &self,
        request: Request<Streaming<proto::FollowRequest>>,
    ) -> Result<Response<Replies>, Status> {
        let mut messages = request.into_inner();
        let first = timeout(HELLO_MAX, messages.message()).await;
        let first =
            first.map_err(|_| Status::deadline_exceeded("the node did not say who it is"))??;
        let Some(proto::FollowRequest { message: Some(Message::Hello(hello)) }) = first else {
            return Err(Status::invalid_argument("the first message of a node is its hello"));
        };
        if hello.protocol != PROTOCOL {
            return Err(Status::failed_precondition(format!(
                "the node speaks version {} of the protocol, and this controller version {PROTOCOL}: run one release on both",
                hello.protocol
            )));
        }
        let node =
            convert::node(&hello).map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.check(node, &hello).await?;
        let (session, replaced) = self.add_follower(node, hello.instance)?;
        log::info!("{node} follows");
        let (replies, queued) = mpsc::channel(REPLIES_MAX);
        let service = self.clone();
        tokio::spawn(async move {
            let begin = async {
                // A new spine could replace one that leaves have reported before.
                if matches!(node, NodeId::Spine(_)) {
                    service.check_spines().await;
                }
            };
            tokio::join!(service.serve((node, session), messages, replies, replaced), begin);
            service.remove_follower(node, session);
            // Leaves may already have reported this spine as silent. This leaf may have been the only one that had not
            // reported some spine.
            if !matches!(node, NodeId::Agent(_)) {
                service.check_spines().await;
            }
        });
        // The lease may have ended while a reply waited here.
        let role = self.role.clone();
        let replies = ReceiverStream::new(queued).map(move |reply| match role.now() {
            ControllerRole::Leader { .. } => reply,
            ControllerRole::Standby(reason) => reply.and(Err(stands_by(&reason))),
        });
        Ok(Response::new(Box::pin(replies)))
    }

    /// Executes an operator's command. Returns the fabric's version after it, the id of the pool that it created or
    /// changed, if any, and notes.
    async fn command(
        &self,
        request: Request<proto::CommandRequest>,
    ) -> Result<Response<proto::CommandReply>, Status> {
        let proto::CommandRequest { command, if_version } = request.into_inner();
        let command = command.parse().map_err(|error| wedjat_admin::refusal(&error))?;
        let done = self.execute(command, if_version).await.map_err(|error| status(&error))?;
        let (version, notes, pool) = (done.fabric.version, notes(&done.fabric), done.pool);
        self.check_spines().await;
        Ok(Response::new(proto::CommandReply { version, notes, pool: pool.map(u32::from) }))
    }

    /// Returns the topology for operators; fails on a standby.
    async fn topology(
        &self,
        _: Request<proto::TopologyRequest>,
    ) -> Result<Response<proto::TopologyReply>, Status> {
        let (term, fabric) = self.leader_state()?;
        Ok(Response::new(self.topology(term, &fabric)))
    }
}

#[cfg(test)]
mod tests;
