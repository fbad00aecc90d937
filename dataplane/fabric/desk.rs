//! Desk: the only place of a controller that changes the desired state. It leads or waits for the lead,
//! executes requests in turn, and publishes each version after the store has kept it.
//!
//! Several controllers may share a store. One of them has the lead. A standby is a controller that waits for it. The
//! term numbers the leads. The lease limits the time in which a leader may answer. The service passes requests of
//! operators and nodes to the desk, and reads the published role.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::command::{Command, CommandError};
use super::event::Event;
use super::fabric::Fabric;
use super::lease::Lease;
use super::store::{Store, StoreError};
use super::view::{NodeId, Position};

/// Number of versions after which the store is compacted into one whole fabric. It bounds the log that a new
/// leader reads.
const COMPACT: u64 = 1024;
/// Timeout for releasing the lead in the store.
const RESIGN_MAX: Duration = Duration::from_secs(2);
/// Delay before the next attempt at a store that does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// Reason given between the end of the lease and the moment at which the desk notices it.
const LEASE_IS_OVER: &str = "its lease is over";

/// Role of a controller at one moment.
#[derive(Clone, Debug)]
pub enum ControllerRole {
    /// Standby, with the reason for which it does not lead.
    Standby(Arc<str>),
    /// Leader.
    Leader {
        /// Term: larger than all earlier ones.
        term: u64,
        /// Current fabric.
        fabric: Arc<Fabric>,
        /// Lease that limits this role.
        lease: Lease,
    },
}

impl ControllerRole {
    /// Returns the current role: a leader whose lease is over is a standby.
    fn current(&self) -> Self {
        match self {
            Self::Leader { lease, .. } if !lease.holds() => Self::Standby(LEASE_IS_OVER.into()),
            role => role.clone(),
        }
    }
}

/// Read access to a controller's role. Each read compares the lease with the clock, so an ended lease
/// never gives an answer of a leader.
#[derive(Clone, Debug)]
pub(super) struct RoleReader {
    role: watch::Receiver<ControllerRole>,
    /// True after [`Self::changed`] has reported the end of the lease in `role`.
    has_ended: bool,
}

impl RoleReader {
    /// Creates the role of a controller that has not led yet, and its reader.
    pub fn new() -> (watch::Sender<ControllerRole>, Self) {
        let began = ControllerRole::Standby("it has not led yet".into());
        let (sender, role) = watch::channel(began);
        (sender, Self { role, has_ended: false })
    }

    /// Returns the current role.
    pub fn now(&self) -> ControllerRole {
        self.role.borrow().current()
    }

    /// Returns a reader whose first [`Self::changed`] returns at once.
    pub fn restarted(&self) -> Self {
        let mut role = self.role.clone();
        role.mark_changed();
        Self { role, has_ended: false }
    }

    /// Waits for another role, including the end of a lease. Returns `None` when the controller ends.
    pub async fn changed(&mut self) -> Option<ControllerRole> {
        // `None`: no end of a lease to wait for.
        let lease = match &*self.role.borrow() {
            ControllerRole::Leader { lease, .. } if !self.has_ended => Some(lease.clone()),
            _ => None,
        };
        let lease_end = async move {
            match lease {
                Some(mut lease) => lease.end().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.role.changed() => changed.ok()?,
            () = lease_end => {}
        }
        let role = self.role.borrow_and_update();
        let now = role.current();
        // The stored role is still a leader after the end of its lease. The next call must not report that end again.
        let is_over = matches!(now, ControllerRole::Standby(_));
        self.has_ended = is_over && matches!(*role, ControllerRole::Leader { .. });
        Some(now)
    }
}

/// Reason why a request was not executed, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The command is refused.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The fabric has another version than the request requires.
    #[error(
        "the fabric's version is {found}, not {wanted}: look at what has changed since, and ask again"
    )]
    Version {
        /// Version of the fabric.
        found: u64,
        /// Version named in the request.
        wanted: u64,
    },
    /// A node has a newer version than the store, so the store is an old copy or another one.
    #[error(
        "{node} has version {has}, and the store has version {found}: it was restored from an old copy, or is another; restore a newer copy, \
         or start the controller with `--restore` to have the nodes take what it has"
    )]
    Behind {
        /// The node.
        node: NodeId,
        /// Its version.
        has: u64,
        /// The store's version.
        found: u64,
    },
    /// The store did not keep the change, or did not confirm it.
    #[error("{0}")]
    Store(String),
    /// The controller does not lead.
    #[error("this controller stands by: {0}")]
    Standby(Arc<str>),
}

/// Result of a request.
#[derive(Clone, Debug)]
pub struct CommandResult {
    /// Fabric after the request.
    pub fabric: Arc<Fabric>,
    /// Pool that a command added, or whose settings it changed. `None` for other requests.
    pub pool: Option<u16>,
}

/// Request to the desk.
#[derive(Debug)]
pub enum Request {
    /// Execute this command.
    Command(Command),
    /// Raise the fabric's version above this one, without another change. Nodes ignore versions older than their own,
    /// so this makes them accept the state of a restored store.
    Raise(u64),
}

/// Request with the channel for its answer.
#[derive(Debug)]
pub struct CommandRequest {
    /// Request.
    pub request: Request,
    /// Version that the fabric must have for a command, if given. `Request::Raise` ignores it.
    pub if_version: Option<u64>,
    /// Channel for the answer.
    pub answer: oneshot::Sender<Result<CommandResult, AskError>>,
}

/// Writer of the desired state. One task runs it, for the life of the controller.
#[derive(Debug)]
pub(super) struct Desk<S> {
    /// Store of the fabric, which also grants the lead.
    pub store: S,
    /// Requests of the service.
    pub requests: mpsc::Receiver<CommandRequest>,
    /// Published role of this controller, with the fabric while it leads.
    pub role: watch::Sender<ControllerRole>,
    /// Newest version and term with which it has led. A store with older ones was restored from a copy.
    pub known: Position,
    /// Version at the last attempt of a compaction; 0 before the first.
    pub compaction_tried: u64,
}

impl<S: Store> Desk<S> {
    /// Leads or waits for the lead until `stopped`.
    ///
    /// # Errors
    /// If the store needs repair by an operator before it can be used.
    pub async fn run(mut self, mut stopped: watch::Receiver<bool>) -> Result<(), StoreError> {
        let ended = tokio::select! {
            reason = self.serve() => Err(reason),
            _ = stopped.wait_for(|stop| *stop) => Ok(()),
        };
        // A lease that is not released ends by itself.
        let _ = tokio::time::timeout(RESIGN_MAX, self.store.resign()).await;
        ended
    }

    /// Leads whenever it can. Returns the error that only an operator can repair.
    async fn serve(&mut self) -> StoreError {
        // Last logged reason: equal ones are logged once.
        let mut logged = String::new();
        loop {
            let reason = match self.begin().await {
                Ok((term, fabric)) => {
                    logged.clear();
                    self.lead(term, fabric).await
                }
                Err(error) => error,
            };
            if reason.is_final() {
                self.stand_by(&reason.to_string());
                return reason;
            }
            // Losing the lead is no fault: waiting for it again begins at once, without a message.
            let retries = !matches!(reason, StoreError::Deposed);
            if retries && logged != reason.to_string() {
                logged = reason.to_string();
                log::error!("{reason}");
            }
            if matches!(reason, StoreError::WentBack { .. }) {
                // Another controller, started since, may accept the older version.
                self.store.resign().await;
            }
            self.stand_by(&reason.to_string());
            if retries {
                self.refuse_for(RETRY).await;
            }
        }
    }

    /// Publishes that this controller stands by.
    fn stand_by(&self, reason: &str) {
        self.role.send_replace(ControllerRole::Standby(reason.into()));
    }

    /// Waits for the lead and loads the fabric. Refuses requests in the meantime. Returns the term and the fabric.
    /// Fails if the store has an older fabric or term than `known`.
    async fn begin(&mut self) -> Result<(u64, Arc<Fabric>), StoreError> {
        let (store, requests, role) = (&mut self.store, &mut self.requests, &self.role);
        let known = self.known;
        let begun = async {
            // Wakes readers of the role only for a new reason, since the store reports the leader at each check.
            let report_leader = |reason: &str| {
                role.send_if_modified(|now| {
                    let is_new =
                        !matches!(now, ControllerRole::Standby(known) if **known == *reason);
                    *now = ControllerRole::Standby(reason.into());
                    is_new
                });
            };
            let term = store.lead(report_leader).await?;
            let fabric = store.load().await?;
            let found = Position { version: fabric.version, term };
            if found.term < known.term || found.version < known.version {
                return Err(StoreError::WentBack { found, known });
            }
            Ok((term, Arc::new(fabric)))
        };
        tokio::pin!(begun);
        loop {
            tokio::select! {
                begun = &mut begun => return begun,
                Some(request) = requests.recv() => refuse(role, request),
            }
        }
    }

    /// Refuses requests during `time`, so that they do not wait for the next attempt to lead.
    async fn refuse_for(&mut self, time: Duration) {
        let timer = tokio::time::sleep(time);
        tokio::pin!(timer);
        loop {
            tokio::select! {
                () = &mut timer => return,
                Some(request) = self.requests.recv() => refuse(&self.role, request),
            }
        }
    }

    /// Executes requests until the lead ends. Returns the reason. The end of the lease ends the lead at once, even
    /// during a call to the store. An error of the store ends it, too.
    async fn lead(&mut self, term: u64, mut fabric: Arc<Fabric>) -> StoreError {
        log::info!("leads with term {term} from version {}", fabric.version);
        self.known = Position { version: fabric.version, term };
        let lease = self.store.lease();
        let mut lead_end = lease.clone();
        self.publish(term, &fabric, &lease);
        loop {
            let request = tokio::select! {
                () = lead_end.end() => return StoreError::Deposed,
                Some(request) = self.requests.recv() => request,
                // Not reached: the first branch always matches. After the end of the service the lead goes on.
                else => return StoreError::Deposed,
            };
            // The process may have been stopped since the last check of the clock.
            if !lease.holds() {
                let _ = request.answer.send(Err(AskError::Standby(LEASE_IS_OVER.into())));
                return StoreError::Deposed;
            }
            let outcome = tokio::select! {
                // A finished request has a known outcome, which counts even if the lease ends now.
                biased;
                outcome = self.execute(&fabric, &request) => outcome,
                () = lead_end.end() => Err(Err(StoreError::Deposed)),
            };
            match outcome {
                Ok(done) => {
                    if done.fabric.version != fabric.version {
                        fabric = Arc::clone(&done.fabric);
                        self.known = Position { version: fabric.version, term };
                        self.publish(term, &fabric, &lease);
                    }
                    let _ = request.answer.send(Ok(done));
                }
                // A refusal changes nothing, and the lead goes on.
                Err(Ok(refused)) => _ = request.answer.send(Err(refused)),
                // An error of the store ends the lead. The next lead loads the fabric again.
                Err(Err(error)) => {
                    let text = format!(
                        "{error}; whether the command is kept is not known: look at the topology"
                    );
                    let _ = request.answer.send(Err(AskError::Store(text)));
                    return error;
                }
            }
            // Compacts after `COMPACT` versions. Counts them from the store's base, since one lead may have fewer.
            // A failed attempt counts as well. Otherwise each request on a full disk would end the lead.
            if fabric.version.saturating_sub(self.store.base().max(self.compaction_tried))
                >= COMPACT
            {
                self.compaction_tried = fabric.version;
                let compacted = tokio::select! {
                    compacted = self.store.compact(&fabric) => compacted,
                    () = lead_end.end() => Err(StoreError::Deposed),
                };
                if let Err(error) = compacted {
                    return error;
                }
            }
        }
    }

    /// Publishes a version of the fabric.
    fn publish(&self, term: u64, fabric: &Arc<Fabric>, lease: &Lease) {
        let (fabric, lease) = (Arc::clone(fabric), lease.clone());
        self.role.send_replace(ControllerRole::Leader { term, fabric, lease });
    }

    /// Executes one request. The inner `Err` holds an error of the store; the inner `Ok` holds a refusal.
    async fn execute(
        &mut self,
        fabric: &Arc<Fabric>,
        request: &CommandRequest,
    ) -> Result<CommandResult, Result<AskError, StoreError>> {
        let command = match &request.request {
            Request::Command(command) => command,
            Request::Raise(above) => return self.raise(fabric, *above).await.map_err(Err),
        };
        let found = fabric.version;
        if let Some(wanted) = request.if_version.filter(|&wanted| wanted != found) {
            return Err(Ok(AskError::Version { found, wanted }));
        }
        let (events, next) = fabric.decide(command).map_err(|error| Ok(error.into()))?;
        let pool = events.iter().find_map(|event| match event {
            Event::Pool { id, .. } => Some(*id),
            _ => None,
        });
        if events.is_empty() {
            return Ok(CommandResult { fabric: Arc::clone(fabric), pool });
        }
        self.store.append(next.version, &events).await.map_err(Err)?;
        log::info!("version {}: {}", next.version, command);
        Ok(CommandResult { fabric: Arc::new(next), pool })
    }

    /// Raises the fabric's version above a node's version, unless it is higher already. Changes nothing else.
    async fn raise(
        &mut self,
        fabric: &Arc<Fabric>,
        above: u64,
    ) -> Result<CommandResult, StoreError> {
        let mut next = Arc::clone(fabric);
        if above >= fabric.version {
            let version = above.saturating_add(1);
            next = Arc::new(Fabric { version, ..Fabric::clone(fabric) });
            self.store.compact(&next).await?;
            log::warn!("version {version}: restored from version {}", fabric.version);
        }
        Ok(CommandResult { fabric: next, pool: None })
    }
}

/// Answers a request with the reason for which this controller stands by.
fn refuse(role: &watch::Sender<ControllerRole>, request: CommandRequest) {
    let reason = match &*role.borrow() {
        ControllerRole::Standby(reason) => Arc::clone(reason),
        // Not reached: the desk publishes that it stands by before it refuses requests.
        ControllerRole::Leader { .. } => "it begins".into(),
    };
    let _ = request.answer.send(Err(AskError::Standby(reason)));
}

/// Returns notes for operators on probably unintended conditions, such as a pool with too few workers.
pub(super) fn notes(fabric: &Fabric) -> Vec<String> {
    let up = fabric.spine_links().len();
    let mut notes = Vec::new();
    for (&id, pool) in &fabric.pools {
        let (has, wanted) = (fabric.members(id), pool.workers);
        if has < wanted {
            notes.push(format!(
                "pool {id} has {has} of {}; add servers",
                wedjat_core::quantity(wanted, "worker")
            ));
        }
        if pool.spines > up {
            notes.push(format!("pool {id} has {up} of {} spines; add spines", pool.spines));
        }
    }
    notes
}

#[cfg(test)]
mod tests;
