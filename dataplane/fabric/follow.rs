//! Follower: a node that receives its desired state from a controller. It applies the state by the same
//! changes as an operator, and acknowledges it. While no controller answers, the node keeps its state and
//! tries to connect.
//!
//! Each node also reports its registered and silent workers to the controller. A leaf reports silent spines, and
//! workers that registered without being configured.
//!
//! A [`Position`] is a version of the fabric's desired state with the term of the leader that sent it. Terms
//! number the leads of controllers. A [`View`] is the part of the fabric that one node receives.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use wedjat_admin::{
    ControllerLink, FollowResult, FollowerKind, Handle, KnownState, NodeSnapshot, RequestError,
    RuntimeThread,
};
use wedjat_core::policy::signals::Protocol;
use wedjat_core::policy::{PolicyChoice, PolicySpec};
use wedjat_core::stage::UnknownWorker;
use wedjat_core::state::MemberPresence;
use wedjat_desired::config::{ControllerAddress, FollowConfig};
use wedjat_desired::state::{Desired, Pool, Server};

use super::client::connect;
use super::convert;
use super::fabric::PoolSettings;
use super::generated as proto;
use super::generated::follow_request::Message;
use super::view::{NodeId, Position, View};

/// Delay before the next round over all controllers: the first, and the maximum.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// Delay before a node retries a version that it could apply only in part: workers must leave before others
/// join.
const RETRY_PARTIAL: Duration = Duration::from_millis(50);
/// Delay before a node retries a version that it has refused.
const RETRY_REFUSED: Duration = Duration::from_secs(1);
/// Interval between checks of the node's workers.
const WORKER_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between a leaf's checks for silent spines.
const SPINE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout for the controller's answer to a node's first message.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Maximum number of queued messages to the controller.
const MESSAGES_MAX: usize = 64;

/// Thread of a follower. Dropping it stops the thread.
#[derive(Debug)]
pub struct FollowerThread {
    _thread: RuntimeThread,
}

impl FollowerThread {
    /// Starts a thread that makes the node behind `handle` follow a controller. The thread runs on `cpus`, or
    /// anywhere if that is empty. `unknown` receives workers that registered at a leaf and are not configured.
    ///
    /// # Errors
    /// If the system has no thread, no runtime or no random number for it.
    pub fn start(
        config: FollowConfig,
        node: NodeId,
        handle: Handle,
        unknown: Option<Arc<ArrayQueue<UnknownWorker>>>,
        cpus: &[usize],
    ) -> std::io::Result<Self> {
        let mut number = [0; 8];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
        let instance = u64::from_ne_bytes(number);
        let mut follower = Follower {
            config,
            node,
            handle,
            unknown,
            instance,
            view: View::default(),
            known: KnownState::default(),
            position: Position::default(),
            is_served: false,
        };
        let run = |mut stopped: watch::Receiver<bool>| async move {
            tokio::select! {
                () = follower.run() => {}
                _ = stopped.wait_for(|stop| *stop) => {}
            }
        };
        Ok(Self { _thread: RuntimeThread::start("wedjat-follow", cpus, run)? })
    }
}

/// State of a follower.
struct Follower {
    /// Addresses of the controllers, and the files of TLS.
    config: FollowConfig,
    node: NodeId,
    /// Queue of requests to the node, whose own thread executes them.
    handle: Handle,
    /// Workers that registered at a leaf and are not configured. The leaf's cores fill the queue.
    unknown: Option<Arc<ArrayQueue<UnknownWorker>>>,
    /// Random number of this process. It tells the controller two processes of one node apart.
    instance: u64,
    /// Desired state received so far.
    view: View,
    /// All pools and workers that it ever received. An agent removes no others: its file or an operator added those.
    known: KnownState,
    /// Newest position received.
    position: Position,
    /// True once the current connection has brought a valid message.
    is_served: bool,
}

/// Connection to the controller.
struct Link {
    /// Messages to the controller.
    to: mpsc::Sender<proto::FollowRequest>,
    /// Messages from the controller.
    from: Streaming<proto::FollowReply>,
}

/// Progress of the node with its desired state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The node has applied the state.
    Done,
    /// Retry at this time.
    Retry(Instant),
}

impl Follower {
    /// Follows one of the controllers, and connects again after each loss. Logs each controller's reason once until it
    /// changes or a controller serves the node. The wait before the next round doubles until then.
    async fn run(&mut self) {
        // Last logged reason of each controller, by the index of its address.
        let (mut wait, mut last_logged) = (BACKOFF.0, BTreeMap::<usize, String>::new());
        loop {
            for index in 0..self.config.addresses.len() {
                let address = self.config.addresses[index].clone();
                let note = |connected| {
                    let address = address.to_string();
                    self.handle.note_controller(ControllerLink { address, connected });
                };
                note(false);
                let reason = match self.dial(&address).await {
                    Ok(link) => {
                        log::info!("follows the controller at {address}");
                        note(true);
                        let reason = self.follow(link).await;
                        if std::mem::take(&mut self.is_served) {
                            wait = BACKOFF.0;
                            last_logged.clear();
                        }
                        reason
                    }
                    Err(reason) => reason,
                };
                if last_logged.get(&index) != Some(&reason) {
                    log::warn!(
                        "controller at {address}: {reason}; the node goes on as it is, and tries again"
                    );
                    last_logged.insert(index, reason);
                }
            }
            sleep(wait).await;
            wait = (wait * 2).min(BACKOFF.1);
        }
    }

    /// Connects to a controller and sends the first message. The error is the reason, for the log.
    async fn dial(&self, address: &ControllerAddress) -> Result<Link, String> {
        let tls: Option<&[PathBuf; 3]> = self.config.tls.as_ref();
        let mut client = connect(address, tls).await?;
        let (to, messages) = mpsc::channel(MESSAGES_MAX);
        let hello = Message::Hello(convert::hello(self.node, self.instance, self.position));
        let _ = to.send(proto::FollowRequest { message: Some(hello) }).await;
        let reply = timeout(ANSWER_MAX, client.follow(ReceiverStream::new(messages))).await;
        let from =
            reply.map_err(|_| "no answer".to_owned())?.map_err(|status| status_text(&status))?;
        Ok(Link { to, from: from.into_inner() })
    }

    /// Follows until the connection ends. Returns the reason.
    ///
    /// Each message of the controller, and each retry that is due, applies the desired state. At the intervals
    /// in between, it reports observations of workers and spines that have changed.
    async fn follow(&mut self, mut link: Link) -> String {
        let mut spine_check = tokio::time::interval(SPINE_CHECK_INTERVAL);
        spine_check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last_worker_check = None::<Instant>;
        let (mut progress, mut last_refusal, mut observations) =
            (Progress::Done, String::new(), proto::Seen::default());
        loop {
            let retry = async {
                match progress {
                    Progress::Done => std::future::pending().await,
                    Progress::Retry(at) => tokio::time::sleep_until(at.into()).await,
                }
            };
            // True: apply the state. False: report observations.
            let must_apply = tokio::select! {
                message = link.from.message() => match message {
                    Ok(Some(message)) => match self.receive(message) {
                        Ok(()) => true,
                        Err(reason) => return reason,
                    },
                    Ok(None) => return "it has ended".to_owned(),
                    Err(status) => return status_text(&status),
                },
                () = retry => true,
                _ = spine_check.tick() => false,
            };
            // A leaf checks its spines at each tick, and its workers less often.
            let message = if must_apply {
                self.apply(&mut progress, &mut last_refusal).await
            } else {
                let with_workers =
                    last_worker_check.is_none_or(|at| at.elapsed() >= WORKER_CHECK_INTERVAL);
                if with_workers {
                    last_worker_check = Some(Instant::now());
                }
                self.changed_observations(&mut observations, with_workers).await
            };
            for message in message.into_iter().chain(self.unknown_workers()) {
                if link.to.send(proto::FollowRequest { message: Some(message) }).await.is_err() {
                    return "it has ended".to_owned();
                }
            }
        }
    }

    /// Takes a message into the view. Refuses one that is older than the view, from a deposed controller or
    /// an old copy of a store.
    fn receive(&mut self, message: proto::FollowReply) -> Result<(), String> {
        let received = Position { version: message.version, term: message.term };
        let snapshot = message.snapshot;
        if received < self.position {
            return Err(format!(
                "it tells {received} after {}: it does not lead any more, or its store is an old copy; in that case start \
                 it with `--restore`",
                self.position
            ));
        }
        let delta = convert::delta(message).map_err(|error| error.to_string())?;
        // A snapshot replaces the view. Any other message is a delta to it.
        if snapshot {
            self.view = View::default();
        }
        self.view.apply(delta);
        self.known.pools.extend(self.view.pools.keys());
        self.known.workers.extend(self.view.workers.keys().map(|(_, id)| id));
        self.position = received;
        self.is_served = true;
        Ok(())
    }

    /// Applies the received state as far as possible now, and sets the time of the next attempt. Returns the
    /// message to the controller: an acknowledgement of the whole state, or a refusal with a new reason. Returns `None`
    /// for a part of the state, for a reason sent before, and for a node that ends.
    async fn apply(&self, progress: &mut Progress, last_refusal: &mut String) -> Option<Message> {
        let version = self.position.version;
        let result = match wanted(self.node, &self.view) {
            Ok(wanted) => {
                let (answer, answered) = oneshot::channel();
                let follows = match self.node {
                    NodeId::Leaf(_) => FollowerKind::Leaf,
                    NodeId::Spine(_) => FollowerKind::Spine,
                    NodeId::Agent(_) => FollowerKind::Agent(self.known.clone()),
                };
                self.handle.follow(wanted, follows, move |done| _ = answer.send(done));
                // No answer: the node ends.
                answered.await.ok()?
            }
            Err(reason) => Err(RequestError::Reload(reason)),
        };
        match result {
            Ok(FollowResult { is_complete: true, .. }) => {
                *progress = Progress::Done;
                last_refusal.clear();
                Some(Message::Acknowledge(proto::Acknowledge { version }))
            }
            Ok(_) => {
                *progress = Progress::Retry(Instant::now() + RETRY_PARTIAL);
                None
            }
            Err(error) => {
                *progress = Progress::Retry(Instant::now() + RETRY_REFUSED);
                let reason = error.to_string();
                let is_new = *last_refusal != reason;
                last_refusal.clone_from(&reason);
                is_new.then_some(Message::Refuse(proto::Refuse { version, reason }))
            }
        }
    }

    /// Returns the node's observations of its spines and, if `with_workers`, of its workers, as a message. `None` if
    /// they are equal to `before`, the last reported ones, or if the node ends. Updates `before`.
    async fn changed_observations(
        &self,
        before: &mut proto::Seen,
        with_workers: bool,
    ) -> Option<Message> {
        // Observations not renewed here stay as they were reported.
        let mut observations = before.clone();
        if with_workers {
            let (answer, answered) = oneshot::channel();
            self.handle.snapshot(move |snapshot| _ = answer.send(snapshot));
            observations = presences(&answered.await.ok()?);
        }
        if matches!(self.node, NodeId::Leaf(_)) {
            let (answer, answered) = oneshot::channel();
            self.handle.silent_spines(move |silent| _ = answer.send(silent));
            observations.silent_spines = answered.await.ok()?.into_iter().map(u32::from).collect();
        }
        let is_new = observations != *before;
        before.clone_from(&observations);
        is_new.then_some(Message::Seen(observations))
    }

    /// Takes the queued registrations of workers that are missing from the desired state. Returns one message for each
    /// server and pool.
    fn unknown_workers(&self) -> Vec<Message> {
        let mut by_server = BTreeMap::<_, BTreeSet<u32>>::new();
        while let Some(one) = self.unknown.as_ref().and_then(|unknown| unknown.pop()) {
            by_server.entry((one.server, one.pool)).or_default().insert(one.worker.into());
        }
        let register = |((server, pool), workers): ((IpAddr, u16), BTreeSet<u32>)| {
            let (server, pool) = (server.to_string(), u32::from(pool));
            Message::Register(proto::Register {
                server,
                pool,
                workers: workers.into_iter().collect(),
            })
        };
        by_server.into_iter().map(register).collect()
    }
}

/// Describes the end of a call, for the log. tonic reports a lost connection as `Unknown` or `Cancelled`.
fn status_text(status: &Status) -> String {
    match status.code() {
        Code::Unknown | Code::Cancelled => format!("the connection is lost ({})", status.message()),
        _ => status.message().to_owned(),
    }
}

/// Returns the observations of workers: those that registered, and those that are silent or unreachable.
fn presences(node: &NodeSnapshot) -> proto::Seen {
    let mut found = proto::Seen::default();
    for member in node.snapshot.pools.iter().flat_map(|pool| &pool.members) {
        match member.presence {
            MemberPresence::Registered => found.registered.push(member.worker.into()),
            MemberPresence::Silent | MemberPresence::Unreachable => {
                found.silent.push(member.worker.into())
            }
            MemberPresence::Configured | MemberPresence::Absent | MemberPresence::Unregistered => {}
        }
    }
    found
}

/// Returns the state that a node should have, by its view. It completes the view with objects that the controller does
/// not send to this kind of node, and selects the policy for it.
///
/// # Errors
/// If this release does not know a policy. The error is the reason.
pub fn wanted(node: NodeId, view: &View) -> Result<Desired, String> {
    let pool = |(&id, pool): (&u16, &PoolSettings)| Ok((id, pool_of(node, id, pool)?));
    let pools = view.pools.iter().map(pool).collect::<Result<_, String>>()?;
    let mut wanted =
        Desired { pools, servers: view.servers.clone(), workers: view.workers.clone() };
    match node {
        NodeId::Leaf(_) => {}
        // The only server of an agent is its own host, which the view leaves out.
        NodeId::Agent(ip) => {
            let host = Server { mac: None, registers: true };
            wanted.servers.insert(ip, [host].into());
        }
        // The servers of a spine's members are leaves. The view leaves them out. A rack's speed is the sum of its
        // workers' speeds: 0 without workers, but a node's speeds are above 0.
        NodeId::Spine(_) => {
            for rack in wanted.workers.values_mut() {
                let leaf = Server { mac: None, registers: false };
                wanted.servers.insert(rack.server, [leaf].into());
                rack.speed = rack.speed.max(1.0);
            }
        }
    }
    Ok(wanted)
}

/// Returns the settings of a pool at this node.
fn pool_of(node: NodeId, id: u16, settings: &PoolSettings) -> Result<Pool, String> {
    let fault = |error| format!("pool {id}: {error}");
    let parse = |policy: &str| policy.parse::<PolicySpec>().map_err(fault);
    let spine_policy = parse(&settings.spine_policy)?;
    // Rules of the load reports that a leaf sends to a spine with this policy.
    let signals = Protocol::below(&spine_policy);
    let policy: PolicyChoice = match node {
        NodeId::Leaf(_) => settings.policy.parse().map_err(fault)?,
        NodeId::Agent(_) => parse(&settings.agent_policy)?.into(),
        NodeId::Spine(_) => spine_policy.into(),
    };
    // Spines and leaves share the pool's address. Without spines, clients use the leaf's own. Agents serve no clients.
    let has_service = settings.spines > 0 && !matches!(node, NodeId::Agent(_));
    let service = settings.address.filter(|_| has_service);
    let link = settings.spine.map(|spine| (spine, signals));
    // Placeholders for settings that the controller does not know: the node keeps those of its file.
    Ok(Pool { service, link, ..Pool::new(policy, settings.queue) })
}
