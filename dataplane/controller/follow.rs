//! Follower: a node that receives its desired state from a controller. It applies the state by the same
//! changes as an operator, and acknowledges it. While no controller answers, the node keeps its state and
//! tries to connect.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::client::connect;
use super::convert;
use super::generated as proto;
use super::generated::follow_request::Message;
use super::view::{NodeId, PoolView, Position, View};
use crate::admin::{
    ControllerLink, FollowResult, FollowerKind, Handle, KnownState, NodeSnapshot, RequestError,
    stay_on,
};
use crate::config::{ControllerAddress, FollowConfig};
use crate::control::{Membership, Pool, Server, Spine, Worker};
use crate::policy::signals::Protocol;
use crate::policy::{PolicySpec, Reports};
use crate::stage::UnknownWorker;
use crate::stage::network::SpineLink;
use crate::state::Presence;

/// Delay before the next attempt to reach a controller: the first, and the maximum.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// Delay before a node retries a version that it could apply only in part: workers must leave before others
/// join.
const AGAIN: Duration = Duration::from_millis(50);
/// The same after a refusal.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// Interval between checks of the node's workers.
const LOOK: Duration = Duration::from_millis(500);
/// Interval between a leaf's checks for silent spines.
const LOOK_AT_SPINES: Duration = Duration::from_millis(50);
/// Timeout for the controller's answer to a node's first message.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Maximum number of messages that the controller has not taken yet.
const AHEAD: usize = 64;

/// Thread of a follower.
#[derive(Debug)]
pub struct FollowerThread {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl FollowerThread {
    /// Makes the node behind `handle` follow a controller, on a thread on `cpus` if there are any.
    /// `newcomers` holds workers that registered at a leaf.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(
        config: FollowConfig,
        node: NodeId,
        handle: Handle,
        newcomers: Option<Arc<ArrayQueue<UnknownWorker>>>,
        cpus: &[usize],
    ) -> std::io::Result<Self> {
        let (stop, mut stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut number = [0; 8];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
        let instance = u64::from_ne_bytes(number);
        let mut follower = Follower {
            config,
            node,
            handle,
            newcomers,
            instance,
            view: View::default(),
            told: KnownState::default(),
            heard: Position::default(),
        };
        let cpus = cpus.to_vec();
        let run = move || {
            stay_on(&cpus);
            runtime.block_on(async {
                tokio::select! {
                    () = follower.run() => {}
                    _ = stopped.wait_for(|stop| *stop) => {}
                }
            });
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("wedjat-follow".to_owned()).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for FollowerThread {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Follower {
    config: FollowConfig,
    node: NodeId,
    handle: Handle,
    newcomers: Option<Arc<ArrayQueue<UnknownWorker>>>,
    instance: u64,
    /// Desired state received so far.
    view: View,
    /// All pools and workers that it ever received.
    told: KnownState,
    /// Newest position received.
    heard: Position,
}

/// Connection to the controller: messages to it and from it.
struct Link {
    to: mpsc::Sender<proto::FollowRequest>,
    from: Streaming<proto::FollowReply>,
}

/// Progress of the node with its desired state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Done,
    /// Retry at this time.
    Again(Instant),
}

impl Follower {
    async fn run(&mut self) {
        let (mut wait, mut said) = (BACKOFF.0, String::new());
        loop {
            for at in 0..self.config.addresses.len() {
                let address = self.config.addresses[at].clone();
                let note = |connected| {
                    let address = address.to_string();
                    self.handle.note_controller(ControllerLink { address, connected });
                };
                note(false);
                let reason = match self.dial(&address).await {
                    Ok(link) => {
                        log::info!("follows the controller at {address}");
                        note(true);
                        (wait, said) = (BACKOFF.0, String::new());
                        self.follow(link).await
                    }
                    Err(reason) => reason,
                };
                if said != reason {
                    log::warn!(
                        "controller at {address}: {reason}; the node goes on as it is, and tries again"
                    );
                    said = reason;
                }
            }
            sleep(wait).await;
            wait = (wait * 2).min(BACKOFF.1);
        }
    }

    async fn dial(&self, address: &ControllerAddress) -> Result<Link, String> {
        let tls: Option<&[PathBuf; 3]> = self.config.tls.as_ref();
        let mut client = connect(address, tls).await?;
        let (to, messages) = mpsc::channel(AHEAD);
        let hello = Message::Hello(convert::hello(self.node, self.instance, self.heard));
        let _ = to.send(proto::FollowRequest { message: Some(hello) }).await;
        let called = timeout(ANSWER_MAX, client.follow(ReceiverStream::new(messages))).await;
        let from =
            called.map_err(|_| "no answer".to_owned())?.map_err(|status| announced(&status))?;
        Ok(Link { to, from: from.into_inner() })
    }

    /// Follows until the connection ends. Returns the reason.
    async fn follow(&mut self, mut link: Link) -> String {
        let mut look = tokio::time::interval(LOOK_AT_SPINES);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut looked = None::<Instant>;
        let (mut progress, mut refused, mut seen) =
            (Progress::Done, String::new(), proto::Seen::default());
        loop {
            let again = async {
                match progress {
                    Progress::Done => std::future::pending().await,
                    Progress::Again(at) => tokio::time::sleep_until(at.into()).await,
                }
            };
            let is_due = tokio::select! {
                message = link.from.message() => match message {
                    Ok(Some(message)) => match self.take(message) {
                        Ok(()) => true,
                        Err(reason) => return reason,
                    },
                    Ok(None) => return "it has ended".to_owned(),
                    Err(status) => return announced(&status),
                },
                () = again => true,
                _ = look.tick() => false,
            };
            let message = if is_due {
                self.apply(&mut progress, &mut refused).await
            } else {
                let all = looked.is_none_or(|at| at.elapsed() >= LOOK);
                if all {
                    looked = Some(Instant::now());
                }
                self.look(&mut seen, all).await
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
    fn take(&mut self, message: proto::FollowReply) -> Result<(), String> {
        let received = Position { version: message.version, term: message.term };
        let snapshot = message.snapshot;
        if received < self.heard {
            return Err(format!(
                "it tells {received} after {}: it does not lead any more, or its store is an old copy; in that case start \
                 it with `--restore`",
                self.heard
            ));
        }
        let delta = convert::delta(message).map_err(|error| error.to_string())?;
        if snapshot {
            self.view = View::default();
        }
        self.view.take(delta);
        self.told.pools.extend(self.view.pools.keys());
        self.told.workers.extend(self.view.workers.keys());
        self.heard = received;
        Ok(())
    }

    /// Applies the desired state, as completely as possible now.
    async fn apply(&self, progress: &mut Progress, refused: &mut String) -> Option<Message> {
        let version = self.heard.version;
        let followed = match wanted(self.node, &self.view) {
            Ok(wanted) => {
                let (answer, answered) = oneshot::channel();
                let follows = match self.node {
                    NodeId::Leaf(_) => FollowerKind::Leaf,
                    NodeId::Spine(_) => FollowerKind::Spine,
                    NodeId::Agent(_) => FollowerKind::Agent(self.told.clone()),
                };
                self.handle.follow(wanted, follows, move |done| _ = answer.send(done));
                answered.await.ok()?
            }
            Err(reason) => Err(RequestError::Reload(reason)),
        };
        match followed {
            Ok(FollowResult { is_complete: true, .. }) => {
                *progress = Progress::Done;
                refused.clear();
                Some(Message::Acknowledge(proto::Acknowledge { version }))
            }
            Ok(_) => {
                *progress = Progress::Again(Instant::now() + AGAIN);
                None
            }
            Err(error) => {
                *progress = Progress::Again(Instant::now() + AFTER_REFUSAL);
                let reason = error.to_string();
                let is_new = *refused != reason;
                refused.clone_from(&reason);
                is_new.then_some(Message::Refuse(proto::Refuse { version, reason }))
            }
        }
    }

    /// Returns the node's observations of its spines, with `all` also of its workers, if they have changed.
    async fn look(&self, before: &mut proto::Seen, all: bool) -> Option<Message> {
        let mut seen = before.clone();
        if all {
            let (answer, answered) = oneshot::channel();
            self.handle.look(move |seen| _ = answer.send(seen));
            seen = presences(&answered.await.ok()?);
        }
        if matches!(self.node, NodeId::Leaf(_)) {
            let (answer, answered) = oneshot::channel();
            self.handle.silent_spines(move |silent| _ = answer.send(silent));
            seen.silent_spines = answered.await.ok()?.into_iter().map(u32::from).collect();
        }
        let is_new = seen != *before;
        before.clone_from(&seen);
        is_new.then_some(Message::Seen(seen))
    }

    /// Returns the registrations of workers that are missing from the desired state, by server and pool.
    fn unknown_workers(&self) -> Vec<Message> {
        let mut found = BTreeMap::<_, BTreeSet<u32>>::new();
        while let Some(one) = self.newcomers.as_ref().and_then(|newcomers| newcomers.pop()) {
            found.entry((one.server, one.pool)).or_default().insert(one.worker.into());
        }
        let register = |((server, pool), workers): (_, BTreeSet<u32>)| {
            let (server, pool) = (Ipv4Addr::from_bits(server).to_string(), u32::from(pool));
            Message::Register(proto::Register {
                server,
                pool,
                workers: workers.into_iter().collect(),
            })
        };
        found.into_iter().map(register).collect()
    }
}

fn announced(status: &Status) -> String {
    match status.code() {
        Code::Unknown | Code::Cancelled => format!("the connection is lost ({})", status.message()),
        _ => status.message().to_owned(),
    }
}

fn presences(seen: &NodeSnapshot) -> proto::Seen {
    let mut found = proto::Seen::default();
    for member in seen.snapshot.pools.iter().flat_map(|pool| &pool.members) {
        match member.presence {
            Presence::Registered => found.registered.push(member.worker.into()),
            Presence::Silent | Presence::Unreachable => found.silent.push(member.worker.into()),
            Presence::Configured | Presence::Absent | Presence::Unregistered => {}
        }
    }
    found
}

/// Returns the membership that a node should have.
///
/// # Errors
/// If the membership is impossible. The error is the reason.
pub fn wanted(node: NodeId, view: &View) -> Result<Membership, String> {
    let mut wanted =
        Membership { epoch: 0, servers: Vec::new(), spines: Vec::new(), pools: Vec::new() };
    let host = |ip: Ipv4Addr, mac, registers| Server {
        ip: ip.into(),
        mac,
        registers,
        is_leaving: false,
        was: None,
    };
    match node {
        NodeId::Leaf(_) => {
            let servers = view.servers.iter();
            let servers = servers.map(|(&ip, one)| Some(host(ip, one.mac, one.registers)));
            wanted.servers.extend(servers);
        }
        NodeId::Agent(ip) => wanted.servers.push(Some(host(ip, None, true))),
        NodeId::Spine(_) => {
            let leaves: BTreeSet<Ipv4Addr> = view.racks.values().map(|rack| rack.ip).collect();
            let leaves = leaves.into_iter().map(|ip| Some(host(ip, None, false)));
            wanted.servers.extend(leaves);
        }
    }
    for (&id, pool) in &view.pools {
        let pool = pool_of(node, view, (id, pool), &mut wanted)?;
        wanted.pools.push(Some(pool));
    }
    Ok(wanted)
}

/// Returns a pool with its members. Their servers are in `wanted` already; the pool's spine is added to it.
fn pool_of(
    node: NodeId,
    view: &View,
    (id, of): (u16, &PoolView),
    wanted: &mut Membership,
) -> Result<Pool, String> {
    let settings = &of.settings;
    let parsed = |policy: &str| policy.parse().map_err(|error| format!("pool {id}: {error}"));
    let spine_policy: PolicySpec = parsed(&settings.spine_policy)?;
    let policy = match node {
        NodeId::Leaf(_) => parsed(&settings.policy)?,
        NodeId::Agent(_) => parsed(&settings.agent_policy)?,
        NodeId::Spine(_) => spine_policy.clone(),
    };
    let place = |ip: Ipv4Addr| {
        let at = wanted.servers.iter().position(|one| one.is_some_and(|one| one.ip == ip));
        at.map(|at| at as u16)
            .ok_or_else(|| format!("pool {id}: server {ip} is not among the servers"))
    };
    let mut members = Vec::new();
    for (&worker, of) in view.workers.iter().filter(|(_, worker)| worker.pool == id) {
        let one = Worker::new(worker, place(of.server)?, of.speed);
        members.push(Some(Worker { is_drained: of.is_drained, ..one }));
    }
    for (&(_, leaf), rack) in view.racks.range((id, 0)..=(id, u16::MAX)) {
        members.push(Some(Worker::new(leaf, place(rack.ip)?, f64::from(rack.workers.max(1)))));
    }
    let spine = of.spine.map(|(id, ip)| Some(Spine { id, ip: ip.into() }));
    let link = spine.map(|spine| {
        let known = wanted.spines.iter().position(|one| *one == spine);
        let spine = known.unwrap_or_else(|| {
            wanted.spines.push(spine);
            wanted.spines.len() - 1
        });
        SpineLink { spine: spine as u16, protocol: Protocol::below(&spine_policy) }
    });
    Ok(Pool {
        id,
        policy,
        queue: settings.queue,
        overflow: settings.overflow,
        shared_workers: false,
        reports: Reports::Replies,
        authenticator: None,
        key: None,
        service: settings
            .address
            .filter(|_| settings.spines > 0 && !matches!(node, NodeId::Agent(_)))
            .map(IpAddr::V4),
        link,
        is_leaving: false,
        members,
    })
}
