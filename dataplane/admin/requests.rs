//! What other threads ask of a node's control, and the answers: changes are answered when all cores have taken them.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use super::answer::{Answer, TAKEN_MAX};
use super::explain::{ExplainSpec, Explaining};
#[cfg(feature = "control")]
use super::follow::{Followed, Follows};
use super::reload::{Delta, Reader};
use super::tally::Tally;
use super::tap::{ExplainAnswer, TapAnswer, TapError, TapPoints, TapSpec, TapStats, Taps};
use crate::control::{Change, ChangeError, Control, Cores, Membership, WorkerHere};
use crate::state::Table;
use crate::state::table::Snapshot;
use crate::stats::PortStats;

/// What workers have answered is counted so often at least; their counts in the state start anew after 2^32.
const TALLY: Duration = Duration::from_secs(10);
/// Between two looks whether they have.
const LOOK: Duration = Duration::from_micros(500);

/// The configuration must be read and checked within this time.
pub const READ_MAX: Duration = Duration::from_secs(5);

/// Why something that was asked for has not been done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// A change can't be; nothing has changed.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The version is another one; nothing has changed.
    #[error(
        "the node's version is {found}, not {wanted}: look at what has changed since, and ask again"
    )]
    Version {
        /// That of the node.
        found: u64,
        /// The one that was asked for.
        wanted: u64,
    },
    /// The configuration is wrong, or has what can't change while the node runs; nothing has changed.
    #[error("{0}")]
    Reload(String),
    /// A core has not taken the change in time. It is made, and will be taken when the core polls again.
    #[error("change {0} is made, and a core has not taken it for 5 s: it does not poll")]
    Late(u64),
}

/// What a reload has done, or would do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reloaded {
    /// All cores decide by this version.
    pub version: u64,
    /// What differed.
    pub changes: Vec<Change>,
}

/// A node at one moment.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What there is, by the newest change.
    pub membership: Membership,
    /// All cores decide by this version, or by a later one.
    pub acknowledged: u64,
    /// Its state.
    pub snapshot: Snapshot,
    /// What its devices have counted.
    pub ports: Vec<PortStats>,
    /// What its workers were sent and have answered.
    pub tally: Tally,
    /// Workers behind the node's own core.
    pub workers_here: BTreeMap<u16, WorkerHere>,
    /// The tap that is on.
    pub tap: Option<TapStats>,
}

/// What is asked.
enum Request {
    Look(Answer<Seen>),
    #[cfg(feature = "control")]
    SilentSpines(Answer<Vec<u16>>),
    Change {
        changes: Vec<Change>,
        if_version: Option<u64>,
        since: Instant,
        answer: Answer<Result<u64, RequestError>>,
    },
    Reload(Reload),
    /// The configuration was read for a reload.
    Apply(Delta, Reload),
    #[cfg(feature = "control")]
    Follow {
        wanted: Box<Membership>,
        follows: Follows,
        since: Instant,
        answer: Answer<Result<Followed, RequestError>>,
    },
    StartTap(TapSpec, TapAnswer),
    StopTap(TapAnswer),
    Explain(ExplainSpec, ExplainAnswer),
    EndExplaining(u64),
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Look(_) => "Look",
            #[cfg(feature = "control")]
            Self::SilentSpines(_) => "SilentSpines",
            Self::Change { .. } => "Change",
            Self::Reload(_) => "Reload",
            Self::Apply(..) => "Apply",
            #[cfg(feature = "control")]
            Self::Follow { .. } => "Follow",
            Self::StartTap(..) => "StartTap",
            Self::StopTap(_) => "StopTap",
            Self::Explain(..) => "Explain",
            Self::EndExplaining(_) => "EndExplaining",
        })
    }
}

/// A request for what the configuration file has by now.
struct Reload {
    dry_run: bool,
    since: Instant,
    answer: Answer<Result<Reloaded, RequestError>>,
}

impl Reload {
    fn refuse(self, error: RequestError) {
        log::error!("reload refused: {error}");
        (self.answer)(Err(error));
    }
}

/// Why a reload is refused while its file is not read.
fn unread() -> RequestError {
    let most = READ_MAX.as_secs();
    RequestError::Reload(format!(
        "the configuration or a file that it names was not read within {most} s; look at the file system that they are on"
    ))
}

/// Asks. When the node has ended, answers are dropped at once.
#[derive(Clone, Debug)]
pub struct Handle(Sender<Request>);

impl Handle {
    /// For a node at this moment.
    pub fn look(&self, answer: impl FnOnce(Seen) + Send + 'static) {
        let _ = self.0.send(Request::Look(Box::new(answer)));
    }

    /// For a leaf's spines that are silent, by id.
    #[cfg(feature = "control")]
    pub fn silent_spines(&self, answer: impl FnOnce(Vec<u16>) + Send + 'static) {
        let _ = self.0.send(Request::SilentSpines(Box::new(answer)));
    }

    /// For changes, all of them at once or none, if the node's version is this one. The answer is the version that has them.
    pub fn change(
        &self,
        changes: Vec<Change>,
        if_version: Option<u64>,
        answer: impl FnOnce(Result<u64, RequestError>) + Send + 'static,
    ) {
        let (since, answer) = (Instant::now(), Box::new(answer));
        let _ = self.0.send(Request::Change { changes, if_version, since, answer });
    }

    /// For what the configuration file has by now; with `dry_run` only for what would change.
    pub fn reload(
        &self,
        dry_run: bool,
        answer: impl FnOnce(Result<Reloaded, RequestError>) + Send + 'static,
    ) {
        let (since, answer) = (Instant::now(), Box::new(answer));
        let _ = self.0.send(Request::Reload(Reload { dry_run, since, answer }));
    }

    /// For what a controller says that the node is to be.
    #[cfg(feature = "control")]
    pub fn follow(
        &self,
        wanted: Membership,
        follows: Follows,
        answer: impl FnOnce(Result<Followed, RequestError>) + Send + 'static,
    ) {
        let (wanted, since, answer) = (Box::new(wanted), Instant::now(), Box::new(answer));
        let _ = self.0.send(Request::Follow { wanted, follows, since, answer });
    }

    /// For a capture of what passes. The answer is what it records, when all cores do.
    pub fn start_tap(
        &self,
        spec: TapSpec,
        answer: impl FnOnce(Result<TapStats, TapError>) + Send + 'static,
    ) {
        let _ = self.0.send(Request::StartTap(spec, Box::new(answer)));
    }

    /// For the end of it. The answer is what was recorded, when the file is complete.
    pub fn stop_tap(&self, answer: impl FnOnce(Result<TapStats, TapError>) + Send + 'static) {
        let _ = self.0.send(Request::StopTap(Box::new(answer)));
    }

    /// For what becomes of packets, and why. The answer is what tells it, when all cores do; they end when it is dropped.
    pub fn explain(
        &self,
        spec: ExplainSpec,
        answer: impl FnOnce(Result<Explaining, TapError>) + Send + 'static,
    ) {
        let _ = self.0.send(Request::Explain(spec, Box::new(answer)));
    }
}

/// A reader's thread, and the reload that waits for it until its time is over.
struct ReadJob {
    began: Instant,
    result: Receiver<Result<Delta, String>>,
    reload: Option<Reload>,
}

impl ReadJob {
    fn start(reader: &Reader, reload: Reload) -> Result<Self, (String, Reload)> {
        let (reader, (to, result)) = (Arc::clone(reader), mpsc::channel());
        let read = move || _ = to.send(reader());
        let thread = std::thread::Builder::new().name("wedjat-reload".to_owned()).spawn(read);
        match thread {
            Ok(_) => Ok(Self { began: Instant::now(), result, reload: Some(reload) }),
            Err(error) => Err((format!("the system starts no thread to read it: {error}"), reload)),
        }
    }
}

/// Who waits for cores to take a change.
struct Waiting {
    epoch: u64,
    since: Instant,
    answer: Answer<Result<u64, RequestError>>,
}

/// A node's control, and what is asked of it.
pub struct Requests<C: Cores> {
    control: Control<C>,
    table: Arc<Table>,
    sender: Sender<Request>,
    asked: Receiver<Request>,
    /// Taken, and not done yet: a core is busy.
    next: VecDeque<Request>,
    waiting: Vec<Waiting>,
    reader: Reader,
    reading: Option<ReadJob>,
    /// Reloads that wait for the reader's thread.
    reloads: VecDeque<Reload>,
    taps: Taps,
    tally: Tally,
    /// When that was last counted.
    tallied: Instant,
    /// The last epoch that was told of.
    told: u64,
    started: Instant,
}

impl<C: Cores> fmt::Debug for Requests<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<C: Cores> Requests<C> {
    /// To a control of the node with this state, whose configuration `reader` reads.
    pub fn new(control: Control<C>, table: Arc<Table>, reader: Reader) -> Self {
        let told = control.membership().epoch;
        let (sender, asked) = mpsc::channel();
        let (next, waiting) = (VecDeque::new(), Vec::new());
        let (taps, tally, started) = (Taps::default(), Tally::default(), Instant::now());
        Self {
            control,
            table,
            sender,
            asked,
            next,
            waiting,
            reader,
            reading: None,
            reloads: VecDeque::new(),
            taps,
            tally,
            tallied: started,
            told,
            started,
        }
    }

    /// The same, where what passes can be recorded.
    #[must_use]
    pub fn with_taps(self, points: TapPoints) -> Self {
        Self { taps: Taps::of(points), ..self }
    }

    /// Asks.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(self.sender.clone())
    }

    /// The control, with what all that was asked for has led to.
    #[must_use]
    pub fn control(&self) -> &Control<C> {
        &self.control
    }

    /// Does what is asked for during this time. `ports` are looked at when somebody asks.
    pub fn serve_for(&mut self, time: Duration, ports: &dyn Fn() -> Vec<PortStats>) {
        let end = Instant::now() + time;
        loop {
            self.serve(self.started.elapsed().as_nanos() as u64, ports);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let is_pending = !self.waiting.is_empty() || !self.next.is_empty();
            let is_pending = is_pending
                || self.taps.is_pending()
                || self.reading.as_ref().is_some_and(|job| job.reload.is_some());
            let time = if is_pending { left.min(LOOK) } else { left };
            match self.asked.recv_timeout(time) {
                Ok(request) => self.next.push_back(request),
                // Whoever has the sender is here.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Does what has been asked for, answers whose changes all cores have taken, and lets go of what has left. `now_ns` is any
    /// clock's that does not go back.
    pub fn serve(&mut self, now_ns: u64, ports: &dyn Fn() -> Vec<PortStats>) {
        // Before anybody leaves, whose last answers would not be counted.
        if self.has_all() && (!self.control.is_settled() || self.tallied.elapsed() > TALLY) {
            self.count();
        }
        self.control.tend(now_ns);
        self.taps.tend();
        self.next.extend(self.asked.try_iter());
        self.read();
        while let Some(request) = self.next.pop_front() {
            if let Some(again) = self.meet(request, ports) {
                self.next.push_front(again);
                break;
            }
        }
        self.answer();
    }

    /// All cores have all changes.
    fn has_all(&self) -> bool {
        self.control.acknowledged() == self.control.membership().epoch
    }

    /// Counts what was sent and answered; not while a core has the words of a worker whose place is another's by now.
    fn count(&mut self) -> Snapshot {
        let snapshot = self.table.snapshot();
        if self.has_all() {
            self.tally.look(&snapshot);
            self.tallied = Instant::now();
        }
        snapshot
    }

    fn answer(&mut self) {
        let acknowledged = self.control.acknowledged();
        if acknowledged > self.told {
            self.told = acknowledged;
            log::info!("change {acknowledged}: {}", C::DECIDE);
        }
        let is_over = |one: &Waiting| one.epoch <= acknowledged || one.since.elapsed() > TAKEN_MAX;
        for one in self.waiting.extract_if(.., |one| is_over(one)) {
            let taken = one.epoch <= acknowledged;
            (one.answer)(if taken { Ok(one.epoch) } else { Err(RequestError::Late(one.epoch)) });
        }
    }

    /// Does one thing, unless a core is busy: then it gives it back.
    fn meet(&mut self, request: Request, ports: &dyn Fn() -> Vec<PortStats>) -> Option<Request> {
        match request {
            Request::Look(answer) => {
                let snapshot = self.count();
                answer(Seen {
                    membership: self.control.membership().clone(),
                    acknowledged: self.control.acknowledged(),
                    snapshot,
                    ports: ports(),
                    tally: self.tally.clone(),
                    workers_here: self.control.workers_here(),
                    tap: self.taps.seen(),
                });
            }
            #[cfg(feature = "control")]
            Request::SilentSpines(answer) => answer(self.control.silent_spines()),
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
                    Ok(epoch) => self.waiting.push(Waiting { epoch, since, answer }),
                }
            }
            Request::Reload(reload) => {
                self.reloads.push_back(reload);
                self.read();
            }
            Request::Apply(delta, reload) => match self.reload(&delta, reload.dry_run) {
                Err(RequestError::Change(ChangeError::Busy))
                    if reload.since.elapsed() < TAKEN_MAX =>
                {
                    return Some(Request::Apply(delta, reload));
                }
                Err(error) => reload.refuse(error),
                Ok(reloaded) if reload.dry_run => (reload.answer)(Ok(reloaded)),
                Ok(reloaded) => {
                    let (epoch, changes) = (reloaded.version, reloaded.changes);
                    let Reload { since, answer, .. } = reload;
                    let answer: Answer<Result<u64, RequestError>> = Box::new(move |taken| {
                        answer(taken.map(|version| Reloaded { version, changes }));
                    });
                    self.waiting.push(Waiting { epoch, since, answer });
                }
            },
            #[cfg(feature = "control")]
            Request::Follow { wanted, follows, since, answer } => {
                match self.follow(&wanted, &follows) {
                    Err(RequestError::Change(ChangeError::Busy)) if since.elapsed() < TAKEN_MAX => {
                        return Some(Request::Follow { wanted, follows, since, answer });
                    }
                    Err(error) => answer(Err(error)),
                    Ok(Followed { version: epoch, is_complete }) => {
                        let answer: Answer<Result<u64, RequestError>> = Box::new(move |taken| {
                            answer(taken.map(|version| Followed { version, is_complete }));
                        });
                        self.waiting.push(Waiting { epoch, since, answer });
                    }
                }
            }
            Request::StartTap(spec, answer) => self.taps.start(&spec, answer),
            Request::StopTap(answer) => self.taps.stop(answer),
            Request::Explain(spec, answer) => {
                let sender = self.sender.clone();
                let end = move |number| _ = sender.send(Request::EndExplaining(number));
                self.taps.explain(&spec, end, answer);
            }
            Request::EndExplaining(number) => self.taps.end_explaining(number),
        }
        None
    }

    fn change(&mut self, changes: &[Change], if_version: Option<u64>) -> Result<u64, RequestError> {
        let found = self.control.membership().epoch;
        if let Some(wanted) = if_version.filter(|&wanted| wanted != found) {
            return Err(RequestError::Version { found, wanted });
        }
        let epoch = self.control.apply_all(changes)?;
        changes.iter().for_each(|change| log::info!("change {epoch}: {change}"));
        Ok(epoch)
    }

    #[cfg(feature = "control")]
    fn follow(&mut self, wanted: &Membership, follows: &Follows) -> Result<Followed, RequestError> {
        let next = super::follow::changes(self.control.membership(), wanted, follows);
        let (changes, is_complete) = next.map_err(RequestError::Reload)?;
        Ok(Followed { version: self.change(&changes, None)?, is_complete })
    }

    /// Takes the reader's result, and starts the next reading. A reading that takes too long is given up: its reload is refused, and so
    /// are later ones until its thread ends.
    fn read(&mut self) {
        if let Some(mut reading) = self.reading.take() {
            match reading.result.try_recv() {
                Ok(read) => match (reading.reload, read) {
                    (Some(reload), Ok(delta)) => self.next.push_back(Request::Apply(delta, reload)),
                    (Some(reload), Err(error)) => reload.refuse(RequestError::Reload(error)),
                    (None, _) => log::info!("the configuration could be read again"),
                },
                Err(TryRecvError::Disconnected) => {
                    let text = "the thread that reads the configuration failed".to_owned();
                    let refuse = |reload: Reload| reload.refuse(RequestError::Reload(text.clone()));
                    reading.reload.into_iter().for_each(refuse);
                }
                Err(TryRecvError::Empty) => {
                    let is_late = reading.began.elapsed() > READ_MAX;
                    if is_late {
                        let late = reading.reload.take().into_iter();
                        let late = late.chain(self.reloads.drain(..));
                        late.for_each(|reload| reload.refuse(unread()));
                    }
                    self.reading = Some(reading);
                }
            }
        }
        if self.reading.is_none()
            && let Some(reload) = self.reloads.pop_front()
        {
            match ReadJob::start(&self.reader, reload) {
                Ok(reading) => self.reading = Some(reading),
                Err((error, reload)) => reload.refuse(RequestError::Reload(error)),
            }
        }
    }

    fn reload(&mut self, delta: &Delta, dry_run: bool) -> Result<Reloaded, RequestError> {
        let (now, of_agent) = (self.control.membership(), self.control.of_agent());
        let changes = delta(now, of_agent).map_err(RequestError::Reload)?;
        if dry_run {
            self.control.after(&changes)?;
            return Ok(Reloaded { version: self.control.membership().epoch, changes });
        }
        let version = self.change(&changes, None)?;
        log::info!("reloaded: {}, version {version}", crate::quantity(changes.len(), "change"));
        Ok(Reloaded { version, changes })
    }
}
