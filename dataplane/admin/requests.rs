//! Requests of other threads to a node's control. The thread that watches the node owns [`Requests`] and serves them.
//! gRPC calls, files of changes, signals and the connection to a controller send them through a [`Handle`]. A change is
//! answered after all cores have taken it, or with an error after a time limit.
//!
//! A node's version is the epoch of its membership: a number that grows with each change. A *place* is the index of a
//! member in its pool.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use wedjat_core::policy::Objective;
use wedjat_core::state::Table;
use wedjat_core::state::table::Snapshot;
use wedjat_core::stats::PortStats;
use wedjat_desired::control::{Change, ChangeError, Control, Cores, LocalWorker, Membership};
use wedjat_desired::state::Desired;

use super::answer::{Answer, TAKEN_MAX};
use super::explain::{ExplainSession, ExplainSpec};
use super::follow::{ControllerLink, FollowResult, FollowerKind};
use super::reload::{Comparison, Reader};
use super::tally::Tally;
use super::tap::{
    CaptureSession, ExplainAnswer, StopAnswer, TapAnswer, TapError, TapPoints, TapSpec, TapStats,
    Taps,
};

/// Interval after which workers' reports are counted again, unless a core lacks a change. The counters in the state
/// wrap at 2^32.
const TALLY: Duration = Duration::from_secs(10);
/// Poll interval while requests wait for cores or other threads.
const LOOK: Duration = Duration::from_micros(500);

/// Time limit for reading and checking the configuration.
pub const READ_MAX: Duration = Duration::from_secs(5);

/// Reason why a request failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// A change was refused. Nothing has changed.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The node has another version. Nothing has changed.
    #[error(
        "the node's version is {found}, not {wanted}: check the changes since then, and try again"
    )]
    Version {
        /// Version of the node.
        found: u64,
        /// Version in the request.
        wanted: u64,
    },
    /// The configuration cannot be read or is invalid, or the node cannot change to it, or to a controller's desired
    /// state, while it runs. Nothing has changed.
    #[error("{0}")]
    Reload(String),
    /// A core has not taken the change in time. The change is made, and the core takes it at its next poll.
    #[error("change {0} is made, but a core has not applied it for 5 s: the core does not poll")]
    Late(u64),
}

/// Result of a reload, or of a dry run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReloadResult {
    /// Version that contains the changes and that all cores have taken; after a dry run, the node's current version.
    pub version: u64,
    /// Changes made, or found by a dry run.
    pub changes: Vec<Change>,
}

/// State of a node at one moment.
#[derive(Clone, Debug)]
pub struct NodeSnapshot {
    /// Membership after the newest change.
    pub membership: Membership,
    /// Version that all cores have taken. Some may have a later one.
    pub acknowledged: u64,
    /// State of the node.
    pub snapshot: Snapshot,
    /// Counters of its devices.
    pub ports: Vec<PortStats>,
    /// Tasks sent to and answered by its workers.
    pub tally: Tally,
    /// Workers of the agent on the node's own core, by id.
    pub workers_here: BTreeMap<u16, LocalWorker>,
    /// Active tap of a client.
    pub tap: Option<TapStats>,
    /// Controller that the node follows.
    pub controller: Option<ControllerLink>,
}

impl NodeSnapshot {
    /// Returns true if the worker gets no new tasks until it is undrained. A worker of the agent on the node's own core
    /// counts as drained once that agent has taken the change.
    pub(super) fn is_drained(&self, worker: &wedjat_desired::control::Worker) -> bool {
        let local_worker = self.workers_here.get(&worker.id);
        worker.is_drained && local_worker.is_none_or(|local| local.is_drained)
    }
}

/// Request to the thread that watches the node.
enum Request {
    /// Snapshot of the node.
    Look(Answer<NodeSnapshot>),
    /// Ids of silent spines.
    SilentSpines(Answer<Vec<u16>>),
    /// Controller for later snapshots.
    NoteController(ControllerLink),
    /// Changes, all or none. `since` is the time of the request.
    Change {
        changes: Vec<Change>,
        if_version: Option<u64>,
        since: Instant,
        answer: Answer<Result<u64, RequestError>>,
    },
    /// Reload whose file is not read yet.
    Reload(Reload),
    /// Reload whose file was read.
    Apply(Comparison, Reload),
    /// Changes toward a controller's desired state.
    Follow {
        wanted: Box<Desired>,
        follows: FollowerKind,
        since: Instant,
        answer: Answer<Result<FollowResult, RequestError>>,
    },
    StartTap(TapSpec, TapAnswer),
    /// End of the tap with this number, or of a client's.
    StopTap(Option<u64>, StopAnswer),
    /// End of the tap with this number, whose [`CaptureSession`] was dropped.
    AbandonTap(u64),
    /// Pools whose policy the node chooses.
    AutoPools(Answer<Vec<(u16, Objective)>>),
    /// Decision on a pool's policy, and the number of switches so far.
    NoteDecision(u16, String, u64),
    Explain(ExplainSpec, ExplainAnswer),
    /// End of the explanation with this order number.
    EndExplaining(u64),
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Look(_) => "Look",
            Self::SilentSpines(_) => "SilentSpines",
            Self::NoteController(_) => "NoteController",
            Self::Change { .. } => "Change",
            Self::Reload(_) => "Reload",
            Self::Apply(..) => "Apply",
            Self::Follow { .. } => "Follow",
            Self::StartTap(..) => "StartTap",
            Self::StopTap(..) => "StopTap",
            Self::AbandonTap(_) => "AbandonTap",
            Self::AutoPools(_) => "AutoPools",
            Self::NoteDecision(..) => "NoteDecision",
            Self::Explain(..) => "Explain",
            Self::EndExplaining(_) => "EndExplaining",
        })
    }
}

/// Request for a reload.
struct Reload {
    dry_run: bool,
    /// Time of the request.
    since: Instant,
    answer: Answer<Result<ReloadResult, RequestError>>,
}

impl Reload {
    /// Answers with an error.
    fn refuse(self, error: RequestError) {
        log::error!("reload refused: {error}");
        (self.answer)(Err(error));
    }
}

/// Returns the error of a reload whose file was not read in time.
fn unread() -> RequestError {
    let most = READ_MAX.as_secs();
    RequestError::Reload(format!(
        "the configuration or a file that it names was not read within {most} s; check their file system"
    ))
}

/// Sender of requests. After the end of the node, answers are dropped at once.
#[derive(Clone, Debug)]
pub struct Handle(Sender<Request>);

impl Handle {
    /// Requests a snapshot of the node.
    pub fn snapshot(&self, answer: impl FnOnce(NodeSnapshot) + Send + 'static) {
        let _ = self.0.send(Request::Look(Box::new(answer)));
    }

    /// Requests the ids of a leaf's silent spines, to report them to the controller.
    pub fn silent_spines(&self, answer: impl FnOnce(Vec<u16>) + Send + 'static) {
        let _ = self.0.send(Request::SilentSpines(Box::new(answer)));
    }

    /// Sets the controller in later snapshots.
    pub fn note_controller(&self, link: ControllerLink) {
        let _ = self.0.send(Request::NoteController(link));
    }

    /// Requests changes: all of them or none. With `if_version`, only at this version of the node. The answer
    /// is the version that contains them, once all cores have taken it.
    pub fn change(
        &self,
        changes: Vec<Change>,
        if_version: Option<u64>,
        answer: impl FnOnce(Result<u64, RequestError>) + Send + 'static,
    ) {
        let (since, answer) = (Instant::now(), Box::new(answer));
        let _ = self.0.send(Request::Change { changes, if_version, since, answer });
    }

    /// Requests a reload of the configuration file. With `dry_run`, nothing changes.
    pub fn reload(
        &self,
        dry_run: bool,
        answer: impl FnOnce(Result<ReloadResult, RequestError>) + Send + 'static,
    ) {
        let (since, answer) = (Instant::now(), Box::new(answer));
        let _ = self.0.send(Request::Reload(Reload { dry_run, since, answer }));
    }

    /// Requests the changes that lead to a controller's desired state.
    pub fn follow(
        &self,
        wanted: Desired,
        follows: FollowerKind,
        answer: impl FnOnce(Result<FollowResult, RequestError>) + Send + 'static,
    ) {
        let (wanted, since, answer) = (Box::new(wanted), Instant::now(), Box::new(answer));
        let _ = self.0.send(Request::Follow { wanted, follows, since, answer });
    }

    /// Requests a tap. The answer comes when all cores record.
    pub fn start_tap(
        &self,
        spec: TapSpec,
        answer: impl FnOnce(Result<TapStats, TapError>) + Send + 'static,
    ) {
        let _ = self.0.send(Request::StartTap(spec, Box::new(answer)));
    }

    /// Requests the end of the tap with this number, or of a client's tap for `None`. The answer comes when the file is
    /// complete. `answer` returns false if the client has left.
    pub fn stop_tap(
        &self,
        number: Option<u64>,
        answer: impl FnOnce(Result<TapStats, TapError>) -> bool + Send + 'static,
    ) {
        let _ = self.0.send(Request::StopTap(number, Box::new(answer)));
    }

    /// Requests a tap that ends with the session in the answer. The answer comes when all cores record.
    pub fn capture(
        &self,
        spec: TapSpec,
        answer: impl FnOnce(Result<CaptureSession, TapError>) + Send + 'static,
    ) {
        let sender = self.0.clone();
        self.start_tap(spec, move |started| {
            let end = move |number| _ = sender.send(Request::AbandonTap(number));
            answer(started.map(|stats| CaptureSession::new(stats, end)));
        });
    }

    /// Requests the pools whose policy the node chooses, with their objectives. The choosing thread uses them.
    pub fn auto_pools(&self, answer: impl FnOnce(Vec<(u16, Objective)>) + Send + 'static) {
        let _ = self.0.send(Request::AutoPools(Box::new(answer)));
    }

    /// Publishes the last decision on a pool's policy, and the number of switches so far.
    pub fn note_decision(&self, pool: u16, decision: String, switches: u64) {
        let _ = self.0.send(Request::NoteDecision(pool, decision, switches));
    }

    /// Requests explanations of packets. The answer comes when all cores record them. They stop when the
    /// session is dropped.
    pub fn explain(
        &self,
        spec: ExplainSpec,
        answer: impl FnOnce(Result<ExplainSession, TapError>) + Send + 'static,
    ) {
        let _ = self.0.send(Request::Explain(spec, Box::new(answer)));
    }
}

/// A read of the configuration on a thread of its own.
struct ReadJob {
    began: Instant,
    result: Receiver<Result<Comparison, String>>,
    /// Reload that waits for the read; `None` after the time limit.
    reload: Option<Reload>,
}

impl ReadJob {
    /// Starts the read. Returns the reload with the reason if there is no thread.
    fn start(reader: &Reader, reload: Reload) -> Result<Self, (String, Reload)> {
        let (reader, (sender, result)) = (Arc::clone(reader), mpsc::channel());
        let read = move || _ = sender.send(reader());
        let thread = std::thread::Builder::new().name("wedjat-reload".to_owned()).spawn(read);
        match thread {
            Ok(_) => Ok(Self { began: Instant::now(), result, reload: Some(reload) }),
            Err(error) => Err((format!("cannot start a thread to read it: {error}"), reload)),
        }
    }
}

/// Request that waits for cores to take its change.
struct PendingRequest {
    /// Version that contains the change.
    version: u64,
    /// Time at which the change was made.
    since: Instant,
    answer: Answer<Result<u64, RequestError>>,
}

impl PendingRequest {
    /// Creates the request of a change made now in this version.
    fn made_now(version: u64, answer: Answer<Result<u64, RequestError>>) -> Self {
        Self { version, since: Instant::now(), answer }
    }
}

/// A node's control and the requests to it. `C` is the kind of node, with the command queues to its cores.
pub struct Requests<C: Cores> {
    /// Pools, servers and workers of the node.
    control: Control<C>,
    /// State of the node.
    table: Arc<Table>,
    sender: Sender<Request>,
    receiver: Receiver<Request>,
    /// Received requests, in order. The first may wait for a busy core, or for the end of the node's own capture.
    next: VecDeque<Request>,
    /// Requests whose changes are made, until all cores have taken them.
    waiting: Vec<PendingRequest>,
    /// Reads the configuration file.
    reader: Reader,
    /// Current read of the file.
    read_job: Option<ReadJob>,
    /// Reloads that wait for the reader's thread.
    reloads: VecDeque<Reload>,
    /// Captures and explanations of packets.
    taps: Taps,
    /// State of an agent on a leaf's core.
    agent_table: Option<Arc<Table>>,
    /// Connection to the controller that the node follows.
    controller: Option<ControllerLink>,
    /// Tasks sent to and answered by workers.
    tally: Tally,
    /// Time of the last count.
    last_count: Instant,
    /// Last acknowledged version that was logged.
    last_logged: u64,
    /// Zero of the time that `serve_for` passes to `serve`.
    started: Instant,
}

impl<C: Cores> fmt::Debug for Requests<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<C: Cores> Requests<C> {
    /// Creates a queue of requests to the control of the node with this state. `reader` reads the node's
    /// configuration file.
    pub fn new(control: Control<C>, table: Arc<Table>, reader: Reader) -> Self {
        let last_logged = control.membership().epoch;
        let (sender, receiver) = mpsc::channel();
        let (next, waiting) = (VecDeque::new(), Vec::new());
        let (taps, tally, started) = (Taps::default(), Tally::default(), Instant::now());
        Self {
            control,
            table,
            sender,
            receiver,
            next,
            waiting,
            reader,
            read_job: None,
            reloads: VecDeque::new(),
            taps,
            agent_table: None,
            controller: None,
            tally,
            last_count: started,
            last_logged,
            started,
        }
    }

    /// Adds the points where packets can be recorded.
    #[must_use]
    pub fn with_taps(self, points: TapPoints) -> Self {
        Self { taps: Taps::of(points), ..self }
    }

    /// Adds the state of an agent on the leaf's core to the leaf's snapshots.
    #[must_use]
    pub fn with_agent(self, agent_table: Option<Arc<Table>>) -> Self {
        Self { agent_table, ..self }
    }

    /// Returns a sender of requests.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(self.sender.clone())
    }

    /// Returns the control after all requests so far.
    #[must_use]
    pub fn control(&self) -> &Control<C> {
        &self.control
    }

    /// Serves requests for this time. `ports` reads the counters of the devices; it is called for snapshots only.
    pub fn serve_for(&mut self, time: Duration, ports: &dyn Fn() -> Vec<PortStats>) {
        let end = Instant::now() + time;
        loop {
            self.serve(self.started.elapsed().as_nanos() as u64, ports);
            let remaining = end.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            let is_pending = !self.waiting.is_empty() || !self.next.is_empty();
            let is_pending = is_pending
                || self.taps.is_pending()
                || self.read_job.as_ref().is_some_and(|job| job.reload.is_some());
            let time = if is_pending { remaining.min(LOOK) } else { remaining };
            match self.receiver.recv_timeout(time) {
                Ok(request) => self.next.push_back(request),
                // `Disconnected` cannot occur: `self` has a sender.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Handles requests, answers those whose changes all cores have taken, and frees the places of departed
    /// members. `now_ns` is any monotonic clock's.
    pub fn serve(&mut self, now_ns: u64, ports: &dyn Fn() -> Vec<PortStats>) {
        // Counts before `tend` frees the places of departed members, so that their last replies count.
        if self.has_all() && (!self.control.is_settled() || self.last_count.elapsed() > TALLY) {
            self.count();
        }
        self.control.tend(now_ns);
        self.taps.poll();
        self.next.extend(self.receiver.try_iter());
        self.read();
        while let Some(request) = self.next.pop_front() {
            if let Some(blocked) = self.try_handle(request, ports) {
                self.next.push_front(blocked);
                break;
            }
        }
        self.answer();
    }

    /// Returns true if all cores have taken all changes.
    fn has_all(&self) -> bool {
        self.control.acknowledged() == self.control.membership().epoch
    }

    /// Counts sent and answered tasks, unless a core lacks a change. Such a core may still have the numbers of
    /// the previous worker of a place. Returns the state of the node.
    fn count(&mut self) -> Snapshot {
        let snapshot = self.table.snapshot();
        if self.has_all() {
            self.last_count = Instant::now();
            for (pool, worker) in self.tally.look(&snapshot, self.last_count) {
                self.warn_of_unresponsive(pool, worker);
            }
        }
        snapshot
    }

    /// Warns of a worker that has tasks and sends no reply.
    fn warn_of_unresponsive(&self, pool: u16, worker: u16) {
        let membership = self.control.membership();
        let Some(server) = membership.server_of(worker) else { return };
        let sent = self.tally.worker(pool, worker).sent;
        log::warn!(
            "worker {worker} of pool {pool} at {server} does not reply, after {sent} tasks. Start it, or remove it with `wedjat ctl remove-workers \
             {worker}`. Workers of a [[server]] with `registers = true` get no tasks before they register"
        );
    }

    /// Answers changes that all cores have taken, and those whose time limit has passed.
    fn answer(&mut self) {
        let acknowledged = self.control.acknowledged();
        if acknowledged > self.last_logged {
            self.last_logged = acknowledged;
            // `DECIDE` says that all cores use the change.
            log::info!("change {acknowledged}: {}", C::DECIDE);
        }
        let is_over = |pending: &PendingRequest| {
            pending.version <= acknowledged || pending.since.elapsed() > TAKEN_MAX
        };
        for pending in self.waiting.extract_if(.., |pending| is_over(pending)) {
            let PendingRequest { version, answer, .. } = pending;
            let is_taken = version <= acknowledged;
            answer(if is_taken { Ok(version) } else { Err(RequestError::Late(version)) });
        }
    }

    /// Handles one request. Returns it for another attempt if a core is busy, within [`TAKEN_MAX`]. Also returns a
    /// client's tap until the node's own capture has ended.
    fn try_handle(
        &mut self,
        request: Request,
        ports: &dyn Fn() -> Vec<PortStats>,
    ) -> Option<Request> {
        match request {
            Request::Look(answer) => {
                let mut snapshot = self.count();
                snapshot.agent = self.agent_table.as_ref().map(|table| Box::new(table.snapshot()));
                answer(NodeSnapshot {
                    membership: self.control.membership().clone(),
                    acknowledged: self.control.acknowledged(),
                    snapshot,
                    ports: ports(),
                    tally: self.tally.clone(),
                    workers_here: self.control.workers_here(),
                    tap: self.taps.stats_now(),
                    controller: self.controller.clone(),
                });
            }
            Request::SilentSpines(answer) => answer(self.control.silent_spines()),
            Request::NoteController(link) => self.controller = Some(link),
            Request::Change { changes, if_version, since, answer } => {
                match self.change(&changes, if_version) {
                    Err(RequestError::Change(ChangeError::Busy)) if since.elapsed() < TAKEN_MAX => {
                        return Some(Request::Change { changes, if_version, since, answer });
                    }
                    Err(error) => {
                        let text: Vec<_> = changes.iter().map(Change::to_string).collect();
                        log::error!("change refused: {}: {error}", text.join("; "));
                        answer(Err(error));
                    }
                    Ok(version) => self.waiting.push(PendingRequest::made_now(version, answer)),
                }
            }
            Request::Reload(reload) => {
                self.reloads.push_back(reload);
                self.read();
            }
            Request::Apply(comparison, reload) => match self.reload(&comparison, reload.dry_run) {
                Err(RequestError::Change(ChangeError::Busy))
                    if reload.since.elapsed() < TAKEN_MAX =>
                {
                    return Some(Request::Apply(comparison, reload));
                }
                Err(error) => reload.refuse(error),
                Ok(reloaded) if reload.dry_run => (reload.answer)(Ok(reloaded)),
                Ok(reloaded) => {
                    let (version, changes) = (reloaded.version, reloaded.changes);
                    let answer = reload.answer;
                    let answer: Answer<Result<u64, RequestError>> = Box::new(move |taken| {
                        answer(taken.map(|version| ReloadResult { version, changes }));
                    });
                    self.waiting.push(PendingRequest::made_now(version, answer));
                }
            },
            Request::Follow { wanted, follows, since, answer } => {
                match self.follow(&wanted, &follows) {
                    Err(RequestError::Change(ChangeError::Busy)) if since.elapsed() < TAKEN_MAX => {
                        return Some(Request::Follow { wanted, follows, since, answer });
                    }
                    Err(error) => answer(Err(error)),
                    Ok(FollowResult { version, is_complete }) => {
                        let answer: Answer<Result<u64, RequestError>> = Box::new(move |taken| {
                            answer(taken.map(|version| FollowResult { version, is_complete }));
                        });
                        self.waiting.push(PendingRequest::made_now(version, answer));
                    }
                }
            }
            Request::StartTap(spec, answer) if self.taps.gives_way(&spec) => {
                return Some(Request::StartTap(spec, answer));
            }
            Request::StartTap(spec, answer) => self.taps.start(&spec, answer),
            Request::StopTap(number, answer) => self.taps.stop(number, answer),
            Request::AbandonTap(number) => self.taps.abandon(number),
            Request::AutoPools(answer) => {
                let pools = self.control.membership().pools.iter().flatten();
                let pools = pools.filter(|pool| !pool.is_leaving);
                answer(pools.filter_map(|pool| Some((pool.id, pool.settings.auto?))).collect());
            }
            Request::NoteDecision(pool, decision, switches) => {
                self.table.note_decision(pool, &decision, switches);
            }
            Request::Explain(spec, answer) => {
                let sender = self.sender.clone();
                let end = move |number| _ = sender.send(Request::EndExplaining(number));
                self.taps.explain(&spec, end, answer);
            }
            Request::EndExplaining(number) => self.taps.end_explaining(number),
        }
        None
    }

    /// Applies all changes or none, with `if_version` only at this version. Returns the version that contains them.
    fn change(&mut self, changes: &[Change], if_version: Option<u64>) -> Result<u64, RequestError> {
        let found = self.control.membership().epoch;
        if let Some(wanted) = if_version.filter(|&wanted| wanted != found) {
            return Err(RequestError::Version { found, wanted });
        }
        let version = self.control.apply_all(changes)?;
        changes.iter().for_each(|change| log::info!("change {version}: {change}"));
        Ok(version)
    }

    /// Applies the changes toward `wanted` that can be made now.
    fn follow(
        &mut self,
        wanted: &Desired,
        follows: &FollowerKind,
    ) -> Result<FollowResult, RequestError> {
        let next = super::follow::changes(self.control.membership(), wanted, follows);
        let (changes, is_complete) = next.map_err(RequestError::Reload)?;
        Ok(FollowResult { version: self.change(&changes, None)?, is_complete })
    }

    /// Takes the reader's result and starts the next read. A read that takes too long is abandoned: its
    /// reload is refused, and so are later ones until its thread ends. At most one such thread can thus hang.
    fn read(&mut self) {
        if let Some(mut job) = self.read_job.take() {
            match job.result.try_recv() {
                Ok(result) => match (job.reload, result) {
                    (Some(reload), Ok(comparison)) => {
                        self.next.push_back(Request::Apply(comparison, reload))
                    }
                    (Some(reload), Err(error)) => reload.refuse(RequestError::Reload(error)),
                    // The reload was refused because the read took too long.
                    (None, _) => log::info!("reads the configuration again"),
                },
                Err(TryRecvError::Disconnected) => {
                    let text = "the thread that reads the configuration failed".to_owned();
                    let refuse = |reload: Reload| reload.refuse(RequestError::Reload(text.clone()));
                    job.reload.into_iter().for_each(refuse);
                }
                Err(TryRecvError::Empty) => {
                    let is_late = job.began.elapsed() > READ_MAX;
                    if is_late {
                        let late = job.reload.take().into_iter();
                        let late = late.chain(self.reloads.drain(..));
                        late.for_each(|reload| reload.refuse(unread()));
                    }
                    self.read_job = Some(job);
                }
            }
        }
        if self.read_job.is_none()
            && let Some(reload) = self.reloads.pop_front()
        {
            match ReadJob::start(&self.reader, reload) {
                Ok(job) => self.read_job = Some(job),
                Err((error, reload)) => reload.refuse(RequestError::Reload(error)),
            }
        }
    }

    /// Computes the changes of a reload, and applies them. A dry run only checks that they can be applied.
    fn reload(
        &mut self,
        comparison: &Comparison,
        dry_run: bool,
    ) -> Result<ReloadResult, RequestError> {
        let (now, agent_membership) = (self.control.membership(), self.control.of_agent());
        let changes = comparison(now, agent_membership).map_err(RequestError::Reload)?;
        if dry_run {
            self.control.after(&changes)?;
            return Ok(ReloadResult { version: self.control.membership().epoch, changes });
        }
        let version = self.change(&changes, None)?;
        log::info!(
            "reloaded: {}, version {version}",
            wedjat_core::quantity(changes.len(), "change")
        );
        Ok(ReloadResult { version, changes })
    }
}
