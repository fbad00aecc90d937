//! Capture of a running node's packets. Cores copy packets, a separate thread writes them, and the thread
//! that watches the node starts and ends both. It gives each core numbered orders; a core has taken an order
//! once its `epoch` has reached the number.
//!
//! Explanations of packets use the same orders, and are started and ended here, too.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wedjat_core::io::vdev;
use wedjat_core::limits::SNAPLEN_MAX;
use wedjat_core::node::explain::{Explainer, Filter, Records};
use wedjat_core::node::tap::{TapBuffers, TapCommands, TapOrder, TapRecorder, copies};
use wedjat_core::state::files::{ExistingFile, Scratch, advice};

use super::answer::{Answer, TAKEN_MAX};
use super::cpus::stay_on;
use super::explain::{ExplainSession, ExplainSpec};
use super::stamps::Stamps;
use crate::pcap::{Capture, CaptureError};

/// Interval at which the writing thread takes copies.
const WRITE: Duration = Duration::from_millis(1);
/// Maximum number of bytes of waiting packets. A packet waits for earlier ones of other cores, so that the file is
/// in the order of time. Beyond the maximum, all waiting packets are written.
const WAITING_MAX: usize = 64 << 20;

/// Maximum length of a path in bytes.
const PATH_MAX: usize = 4096;

/// Owner of a tap, which decides on its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TapOwner {
    /// No client: the tap is on until any client ends it, or it has all its packets.
    #[default]
    Nobody,
    /// The client of a call: the tap also ends with the call. The node then removes the file, unless a client has
    /// stopped the tap.
    Call,
    /// The node itself, to choose a policy: as for a call. The tap also gives way to that of a client. Clients do not
    /// see it.
    Node,
}

/// Request for a tap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TapSpec {
    /// Absolute path of the file, which must not exist.
    pub file: PathBuf,
    /// Index of a port, or its device's name; `None` for all ports.
    pub port: Option<String>,
    /// Number of bytes kept of each packet, from 1 to [`SNAPLEN_MAX`]. `None` is the maximum.
    pub snaplen: Option<usize>,
    /// Number of packets after which the tap ends; `None` for no limit.
    pub packets: Option<u64>,
    /// Owner.
    pub owner: TapOwner,
}

/// State of a tap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapStats {
    /// Number of the tap at its node.
    pub number: u64,
    /// Owner.
    pub owner: TapOwner,
    /// File.
    pub file: PathBuf,
    /// Devices of the recorded ports.
    pub ports: Vec<String>,
    /// Number of bytes kept of each packet.
    pub snaplen: usize,
    /// Number of packets in the file.
    pub written: u64,
    /// Number of packets missing in the file for lack of buffers.
    pub lost: u64,
    /// True if the tap ended by itself: it has all its packets, or its file cannot be written.
    pub has_ended: bool,
}

/// Reason why a tap or its capture failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TapError {
    /// The request is invalid.
    #[error("{what}; allowed: {allowed}")]
    Argument {
        /// Value in the request.
        what: String,
        /// Allowed values.
        allowed: String,
    },
    /// The port does not exist.
    #[error("port {port}: no such port; the node has {there}")]
    Port {
        /// Port in the request.
        port: String,
        /// Indices and devices of the node's ports.
        there: String,
    },
    /// Another tap is on. A node has one at a time.
    #[error("a tap into {} is running: stop it first", .file.display())]
    Running {
        /// File of that tap.
        file: PathBuf,
    },
    /// No tap is on.
    #[error("no tap is on")]
    None,
    /// The path exists.
    #[error("{}: {found} exists there; remove it, or name another file", .path.display())]
    Exists {
        /// Path.
        path: PathBuf,
        /// Description of the file there.
        found: String,
    },
    /// The file or the thread that writes it cannot be created.
    #[error("{}: {reason}", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        reason: String,
    },
    /// The file is incomplete.
    #[error("{reason} The file has {}", wedjat_core::quantity(*written, "packet"))]
    Incomplete {
        /// Reason.
        reason: String,
        /// Number of packets written before.
        written: u64,
    },
    /// The node has no port to record.
    #[error("this node has no port to record")]
    Nowhere,
    /// A core has not taken the order in time. The tap stays on.
    #[error("the tap is on, but a core has not started it for 5 s: the core does not poll")]
    Late,
    /// A core has not taken the order in time. The tap of a call or of the node itself then ends.
    #[error("a core has not started the tap for 5 s: the core does not poll")]
    LateToCapture,
    /// Packets are explained to another client. A node serves one at a time.
    #[error("another `wedjat explain` is running: stop it first")]
    Explaining,
    /// A core has not taken the order in time.
    #[error("a core has not started to explain packets for 5 s: the core does not poll")]
    LateToExplain,
    /// A core's queue is full of earlier orders.
    #[error("a core has not stopped the previous tap: the core does not poll; try again")]
    Busy,
}

/// Points where a node can be tapped.
pub struct TapPoints {
    /// Order queues of the cores.
    pub cores: Vec<TapCommands>,
    /// Devices of the node's ports.
    pub ports: Vec<String>,
    /// Clock of the cores, in ticks.
    pub clock: Box<dyn Fn() -> u64>,
    /// Ticks per second.
    pub ticks_hz: u64,
    /// CPUs of the writing thread; empty for any.
    pub cpus: Vec<usize>,
}

impl fmt::Debug for TapPoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TapPoints").field("ports", &self.ports).finish_non_exhaustive()
    }
}

/// A tap that ends when this value is dropped. The node then removes the file, unless the tap was stopped before.
pub struct CaptureSession {
    /// State at the start.
    pub stats: TapStats,
    /// Callback for the drop.
    end: Box<dyn Fn(u64) + Send + Sync>,
}

impl CaptureSession {
    /// Creates the session of a tap. It calls `end` on drop, with the number for `Taps::abandon`.
    pub fn new(stats: TapStats, end: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self { stats, end: Box::new(end) }
    }
}

impl fmt::Debug for CaptureSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureSession").field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl Drop for CaptureSession {
    fn drop(&mut self) {
        (self.end)(self.stats.number);
    }
}

/// Callback for the result of a tap request.
pub type TapAnswer = Answer<Result<TapStats, TapError>>;
/// Callback for the result of a request to stop a tap. Returns false if the client has left.
pub type StopAnswer = Box<dyn FnOnce(Result<TapStats, TapError>) -> bool + Send>;

/// Result of a tap that ended by itself.
#[derive(Debug)]
struct EndedTap {
    /// State of the tap at its end.
    stats: TapStats,
    /// Reason why its file is incomplete, if it is.
    error: Option<TapError>,
}

impl EndedTap {
    /// Converts the result to an answer.
    fn into_answer(self) -> Result<TapStats, TapError> {
        self.error.map_or(Ok(self.stats), Err)
    }
}

/// Tap and explanation of a node: at most one of each.
#[derive(Debug, Default)]
pub struct Taps {
    /// Points where packets can be recorded; `None` for a node without any.
    points: Option<TapPoints>,
    /// Number of the last order to the cores.
    number: u64,
    /// Tap that is on or about to end.
    active: Option<ActiveTap>,
    /// Results of the last tap of clients and of the last tap of the node itself, if it ended by itself. Each is
    /// kept until it is requested, or the next tap of clients or of the node itself starts.
    ended: Vec<EndedTap>,
    /// Explanation of packets that is active or about to start.
    explained: Option<ExplainState>,
}

/// Callback for the result of a request for explanations.
pub type ExplainAnswer = Answer<Result<ExplainSession, TapError>>;

/// Explanation that is active or about to start.
struct ExplainState {
    /// Number of the order that starts it.
    number: u64,
    /// Time of the order.
    since: Instant,
    /// Request that waits for the cores to take the order.
    waiting: Option<(ExplainSession, ExplainAnswer)>,
}

impl fmt::Debug for ExplainState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExplainState").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Taps {
    /// Creates the tap of a node with these points. Numbers of orders go on after those that the cores have taken.
    pub fn of(points: TapPoints) -> Self {
        let number = points.cores.iter().map(TapCommands::epoch).max().unwrap_or_default();
        Self { points: Some(points), number, active: None, ended: Vec::new(), explained: None }
    }

    /// Starts a tap. Answers when all cores record, after a time limit, or at once with the reason for refusal.
    pub fn start(&mut self, spec: &TapSpec, answer: TapAnswer) {
        match self.begin(spec) {
            Ok(mut active) => {
                log::log!(active.level(), "tap: {} is written", spec.file.display());
                active.start_answer = Some(answer);
                self.active = Some(active);
                let is_own = |owner: TapOwner| owner == TapOwner::Node;
                self.ended.retain(|ended| is_own(ended.stats.owner) != is_own(spec.owner));
            }
            Err(error) => {
                log::error!("tap refused: {error}");
                answer(Err(error));
            }
        }
    }

    /// Returns the error if another tap is on.
    fn refuse_second(&self) -> Result<(), TapError> {
        let running = |active: &ActiveTap| TapError::Running { file: active.stats.file.clone() };
        self.active.as_ref().map_or(Ok(()), |active| Err(running(active)))
    }

    /// Checks the request. Returns the points, the number of bytes kept of each packet, and the ports. Disregards a
    /// capture by the node itself that gives way to this request.
    fn check(&self, spec: &TapSpec) -> Result<(&TapPoints, usize, Vec<usize>), TapError> {
        let points = self.points.as_ref().filter(|points| !points.ports.is_empty());
        let points = points.ok_or(TapError::Nowhere)?;
        if self.own_capture_before(spec).is_none() {
            self.refuse_second()?;
        }
        let snaplen = spec.snaplen.unwrap_or(SNAPLEN_MAX);
        if !(1..=SNAPLEN_MAX).contains(&snaplen) {
            return Err(argument(format!("snaplen {snaplen}"), format!("1 to {SNAPLEN_MAX}")));
        }
        if spec.packets == Some(0) {
            return Err(argument("0 packets".to_owned(), "1 or more".to_owned()));
        }
        let ports = points.indices(spec.port.as_deref())?;
        check_path(&spec.file)?;
        Ok((points, snaplen, ports))
    }

    /// Checks the request, creates the file and its thread, and orders the cores to record.
    fn begin(&mut self, spec: &TapSpec) -> Result<ActiveTap, TapError> {
        let (points, snaplen, ports) = self.check(spec)?;
        self.refuse_second()?;
        if !points.cores.iter().all(TapCommands::has_room) {
            return Err(TapError::Busy);
        }
        let number = self.number + 1;
        let capture = create(&spec.file)?;
        let buffers: Vec<Arc<TapBuffers>> = points.cores.iter().map(|_| Arc::default()).collect();
        let writer = Writer {
            capture,
            buffers: buffers.clone(),
            shared: Arc::default(),
            packets: spec.packets.unwrap_or(u64::MAX),
            stamps: Stamps::from_now(&points.clock, points.ticks_hz),
        };
        let (shared, cpus) = (Arc::clone(&writer.shared), points.cpus.clone());
        let thread = std::thread::Builder::new().name("wedjat-tap".to_owned());
        let thread = thread.spawn(move || {
            stay_on(&cpus);
            writer.run()
        });
        let thread = thread.map_err(|error| {
            remove(&spec.file);
            let reason = format!("cannot start a thread to write it: {error}");
            TapError::File { path: spec.file.clone(), reason }
        })?;
        for (commands, buffers) in points.cores.iter().zip(&buffers) {
            let recorder = Some(TapRecorder::new(&ports, snaplen, Arc::clone(buffers)));
            let _ = commands.push(TapOrder::record(number, recorder)); // checked above: there is room
        }
        let names = ports.iter().map(|&port| points.ports[port].clone());
        let stats = TapStats {
            number,
            owner: spec.owner,
            file: spec.file.clone(),
            ports: names.collect(),
            snaplen,
            written: 0,
            lost: 0,
            has_ended: false,
        };
        self.number = number;
        let thread = Some(thread);
        Ok(ActiveTap {
            stats,
            shared,
            thread,
            number,
            since: Instant::now(),
            start_answer: None,
            stop_answers: Vec::new(),
            is_abandoned: false,
            has_lost_owner: false,
            phase: Phase::On,
        })
    }

    /// Ends the tap with this number, or a client's for `None`. Answers when the file is complete. After a tap that
    /// ended by itself, answers with its result, once.
    pub fn stop(&mut self, number: Option<u64>, answer: StopAnswer) {
        let is_meant = |stats: &TapStats| match number {
            Some(number) => stats.number == number,
            None => stats.owner != TapOwner::Node,
        };
        match &mut self.active {
            Some(active) if is_meant(&active.stats) => {
                active.stop_answers.push(answer);
                return self.end();
            }
            _ => {}
        }
        let ended = self.ended.extract_if(.., |ended| is_meant(&ended.stats)).next();
        let _ = answer(ended.map_or(Err(TapError::None), EndedTap::into_answer));
    }

    /// Ends the tap of a client that has left, and removes its file. Keeps the file for a waiting request to stop the
    /// tap. The client of that request must still be there. Also discards the result and the file of a tap that ended
    /// by itself.
    pub fn abandon(&mut self, number: u64) {
        match &mut self.active {
            Some(active) if active.stats.number == number => {
                // A request to stop it still wants the file.
                active.is_abandoned = active.stop_answers.is_empty();
                active.has_lost_owner = true;
                self.end();
            }
            _ => {
                for ended in self.ended.extract_if(.., |ended| ended.stats.number == number) {
                    remove(&ended.stats.file);
                }
            }
        }
    }

    /// Ends a capture by the node itself to give way to the tap of a client, unless the client's request is invalid.
    /// Returns true while it is ending: the request must wait.
    pub fn gives_way(&mut self, spec: &TapSpec) -> bool {
        let Some(number) = self.own_capture_before(spec) else { return false };
        if self.check(spec).is_err() {
            return false;
        }
        self.abandon(number);
        true
    }

    /// Returns the number of the active capture by the node itself, if a tap of this request takes precedence.
    fn own_capture_before(&self, spec: &TapSpec) -> Option<u64> {
        let own = self.active.as_ref().filter(|one| one.stats.owner == TapOwner::Node);
        own.filter(|_| spec.owner != TapOwner::Node).map(|active| active.stats.number)
    }

    /// Orders the cores to stop recording.
    fn end(&mut self) {
        let (Some(active), Some(points)) = (&mut self.active, &self.points) else { return };
        if active.phase != Phase::On {
            return;
        }
        self.number += 1;
        for commands in &points.cores {
            // If the queue is full, the core does not poll, and the file ends without its last packets.
            let _ = commands.push(TapOrder::record(self.number, None));
        }
        (active.phase, active.number, active.since) = (Phase::Ending, self.number, Instant::now());
    }

    /// Starts to explain packets. Answers when all cores do. The session calls `end` on drop, with the number
    /// for [`Taps::end_explaining`].
    pub fn explain(
        &mut self,
        spec: &ExplainSpec,
        end: impl FnOnce(u64) + Send + Sync + 'static,
        answer: ExplainAnswer,
    ) {
        match self.begin_to_explain(spec, end) {
            Ok(session) => {
                let (number, since) = (self.number, Instant::now());
                self.explained =
                    Some(ExplainState { number, since, waiting: Some((session, answer)) });
            }
            Err(error) => answer(Err(error)),
        }
    }

    /// Checks the request and orders the cores to explain.
    fn begin_to_explain(
        &mut self,
        spec: &ExplainSpec,
        end: impl FnOnce(u64) + Send + Sync + 'static,
    ) -> Result<ExplainSession, TapError> {
        let points = self.points.as_ref().filter(|points| !points.ports.is_empty());
        let points = points.ok_or(TapError::Nowhere)?;
        if self.explained.is_some() {
            return Err(TapError::Explaining);
        }
        let ports = match &spec.port {
            Some(port) => points.indices(Some(port))?,
            None => Vec::new(),
        };
        // Set of ports with one bit for each; 0 stands for all ports.
        let ports = ports.iter().fold(0, |all, &port| all | 1 << port);
        if !points.cores.iter().all(TapCommands::has_room) {
            return Err(TapError::Busy);
        }
        self.number += 1;
        let number = self.number;
        let filter = Filter { ports, ..spec.filter };
        let count = spec.packets.unwrap_or(u64::MAX);
        let records: Vec<Arc<Records>> = points.cores.iter().map(|_| Arc::default()).collect();
        for (commands, records) in points.cores.iter().zip(&records) {
            let explainer = Explainer::new(filter, count, Arc::clone(records));
            let _ = commands.push(TapOrder::explain(number, Some(explainer))); // checked above: there is room
        }
        let stamps = Stamps::from_now(&points.clock, points.ticks_hz);
        Ok(ExplainSession::new(
            records,
            points.ports.clone(),
            stamps,
            Box::new(move || end(number)),
        ))
    }

    /// Ends the explanation with this number, after its reader has left.
    pub fn end_explaining(&mut self, number: u64) {
        let Some(points) = self.points.as_ref() else { return };
        if self.explained.take_if(|one| one.number == number).is_some() {
            self.number += 1;
            for commands in &points.cores {
                // If the queue is full, the core does not poll, and explains nothing either.
                let _ = commands.push(TapOrder::explain(self.number, None));
            }
        }
    }

    /// Answers the request that waits for cores to explain packets.
    fn poll_explanation(&mut self) {
        let (Some(points), Some(explained)) = (&self.points, &mut self.explained) else { return };
        let is_taken = points.cores.iter().all(|core| core.epoch() >= explained.number);
        let is_late = explained.since.elapsed() > TAKEN_MAX;
        if let Some((session, answer)) = explained.waiting.take_if(|_| is_taken || is_late) {
            // After the time limit, dropping the session ends it.
            answer(if is_taken { Ok(session) } else { Err(TapError::LateToExplain) });
        }
    }

    /// Returns true if a request waits for the cores, or the tap is ending, so that `poll` must be called soon.
    pub fn is_pending(&self) -> bool {
        let is_explanation_pending =
            self.explained.as_ref().is_some_and(|one| one.waiting.is_some());
        let active = self.active.as_ref();
        is_explanation_pending
            || active.is_some_and(|one| one.start_answer.is_some() || one.phase != Phase::On)
    }

    /// Returns the state of a client's active tap.
    pub fn stats_now(&self) -> Option<TapStats> {
        let active = self.active.as_ref().filter(|one| one.stats.owner != TapOwner::Node);
        active.map(ActiveTap::stats)
    }

    /// Answers waiting requests, and frees the orders that cores returned. Ends a tap that has all its packets, or
    /// whose file cannot be written.
    pub fn poll(&mut self) {
        let Some(points) = &self.points else { return };
        for commands in &points.cores {
            while let Some(order) = commands.next_done() {
                drop(order);
            }
        }
        self.poll_explanation();
        let (Some(points), Some(active)) = (&self.points, &mut self.active) else { return };
        let is_taken = points.cores.iter().all(|core| core.epoch() >= active.number);
        let is_late = !is_taken && active.since.elapsed() > TAKEN_MAX;
        if active.phase == Phase::On {
            if let Some(answer) = active.start_answer.take_if(|_| is_taken || is_late) {
                let late = match active.stats.owner {
                    TapOwner::Nobody => TapError::Late,
                    TapOwner::Call | TapOwner::Node => TapError::LateToCapture,
                };
                answer(if is_taken { Ok(active.stats()) } else { Err(late) });
                // A call that failed cannot end the tap.
                active.is_abandoned = !is_taken && active.stats.owner != TapOwner::Nobody;
            }
            // The thread has written all requested packets, or cannot write any more.
            active.stats.has_ended = active.has_written();
            if active.stats.has_ended || active.is_abandoned {
                self.end();
            }
            return;
        }
        if active.phase == Phase::Ending && (is_taken || is_late) {
            active.finish();
        }
        if active.phase == Phase::Finishing && active.has_written() {
            self.answer();
        }
    }

    /// Ends the tap, and answers the waiting requests with the complete file, or with the reason why it is incomplete.
    /// Without such a request, keeps the result for a later one. Removes the file of an abandoned tap.
    fn answer(&mut self) {
        let Some(mut active) = self.active.take() else { return };
        let mut ended = active.join();
        match &ended {
            Ok(TapStats { file, written, lost, .. }) => {
                let packets = packets(*written);
                log::log!(active.level(), "tap: {} has {packets}; {lost} lost", file.display());
            }
            Err(error) => log::error!("tap: {error}"),
        }
        if let Some(answer) = active.start_answer.take() {
            answer(ended.clone());
        }
        if active.is_abandoned || (active.stats.owner == TapOwner::Node && ended.is_err()) {
            remove(&active.stats.file);
            // Nothing is left of this tap.
            ended = ended.and(Err(TapError::None));
        } else if active.stop_answers.is_empty() {
            self.ended.push(EndedTap { stats: active.stats(), error: ended.err() });
            return;
        }
        let mut has_client = false;
        for answer in active.stop_answers.drain(..) {
            has_client |= answer(ended.clone());
        }
        if active.has_lost_owner && !active.is_abandoned && !has_client {
            remove(&active.stats.file);
        }
    }
}

impl Drop for Taps {
    /// Writes the recorded packets. The node's cores have ended before.
    fn drop(&mut self) {
        if let Some(active) = &mut self.active {
            active.finish();
            self.answer();
        }
    }
}

impl TapPoints {
    /// Returns the indices of the requested ports: all for `None`. A device's name takes precedence over an index.
    fn indices(&self, port: Option<&str>) -> Result<Vec<usize>, TapError> {
        let Some(port) = port else { return Ok((0..self.ports.len()).collect()) };
        let is_named = |device: &String| device == port || vdev::name(device) == port;
        let named = self.ports.iter().position(is_named);
        let index = || port.parse().ok().filter(|&index: &usize| index < self.ports.len());
        let existing = || {
            let port_text = |(index, device): (usize, &String)| format!("{index} ({device})");
            self.ports.iter().enumerate().map(port_text).collect::<Vec<_>>().join(", ")
        };
        let found = named.or_else(index).map(|index| vec![index]);
        // The name comes from a client. Only a harmless part of it may appear in the message.
        let short: String = port.chars().filter(|one| !one.is_control()).take(40).collect();
        found.ok_or_else(|| TapError::Port { port: short, there: existing() })
    }
}

/// Returns the error of an invalid request.
fn argument(what: String, allowed: String) -> TapError {
    TapError::Argument { what, allowed }
}

/// Checks that a path is absolute and does not exist.
fn check_path(path: &Path) -> Result<(), TapError> {
    if !path.is_absolute() || path.as_os_str().len() > PATH_MAX {
        let path = path.display().to_string();
        let short: String = path.chars().filter(|one| !one.is_control()).take(200).collect();
        return Err(argument(
            format!("file {short:?}"),
            format!("an absolute path of at most {PATH_MAX} bytes"),
        ));
    }
    match ExistingFile::at(path) {
        Ok(Some(found)) => Err(TapError::Exists { path: path.to_owned(), found: found.describe() }),
        Ok(None) => Ok(()),
        Err(error) => Err(refused_file(path, &error)),
    }
}

/// Returns the error of a file that the system refuses.
fn refused_file(path: &Path, error: &io::Error) -> TapError {
    let reason = format!("{error}{}", advice(error));
    TapError::File { path: path.to_owned(), reason }
}

/// Creates a file that only its owner may read, at a path that [`check_path`] has accepted. Links are not followed.
fn create(path: &Path) -> Result<Capture, TapError> {
    // `put_at` does not replace a file that was created since the check.
    let result = Scratch::<File>::file(path, None).and_then(|new| new.put_at(path, false));
    let (file, _) = result.map_err(|error| match ExistingFile::at(path) {
        Ok(Some(found)) => TapError::Exists { path: path.to_owned(), found: found.describe() },
        _ => refused_file(path, &error),
    })?;
    Capture::in_file(file, path).map_err(|error| {
        remove(path);
        incomplete(&error, 0)
    })
}

/// Returns the error of an incomplete file.
fn incomplete(error: &CaptureError, written: u64) -> TapError {
    TapError::Incomplete { reason: error.to_string(), written }
}

/// Phase of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Cores record, or start to.
    On,
    /// Cores have the order to stop.
    Ending,
    /// Cores have stopped, or have not within the time limit. The thread writes the rest.
    Finishing,
}

/// Tap that is on or about to end.
struct ActiveTap {
    /// Values known at the start, and `has_ended`. The counters are in `shared`.
    stats: TapStats,
    /// State shared with the writing thread.
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), CaptureError>>>,
    /// Number of the last order of this tap, to start or to stop.
    number: u64,
    /// Time of that order.
    since: Instant,
    /// Request for the start that waits for the cores.
    start_answer: Option<TapAnswer>,
    /// Requests for the end that wait for the file.
    stop_answers: Vec<StopAnswer>,
    /// True if no client wants its file any more.
    is_abandoned: bool,
    /// True if the client that started it has left.
    has_lost_owner: bool,
    phase: Phase,
}

impl fmt::Debug for ActiveTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stats, phase, .. } = self;
        f.debug_struct("ActiveTap")
            .field("stats", stats)
            .field("phase", phase)
            .finish_non_exhaustive()
    }
}

/// Removes the file of a tap without clients.
fn remove(file: &Path) {
    if let Err(error) = std::fs::remove_file(file) {
        log::warn!("tap: {}: not removed: {error}", file.display());
    }
}

impl ActiveTap {
    /// Returns the level of its log lines. Captures by the node itself are too frequent for the usual one.
    fn level(&self) -> log::Level {
        match self.stats.owner {
            TapOwner::Node => log::Level::Debug,
            _ => log::Level::Info,
        }
    }

    /// Returns the state with the current counters.
    fn stats(&self) -> TapStats {
        let (written, lost) = (self.shared.written.load(Relaxed), self.shared.lost.load(Relaxed));
        TapStats { written, lost, ..self.stats.clone() }
    }

    /// Returns true if the writing thread has ended, with success or failure.
    fn has_written(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Tells the writing thread to write the rest and end. The file lacks packets that a core hands over later.
    fn finish(&mut self) {
        self.phase = Phase::Finishing;
        self.shared.stop.store(true, Release);
    }

    /// Waits for the writing thread, which has ended or is about to, and returns its result.
    fn join(&mut self) -> Result<TapStats, TapError> {
        let ended = self.thread.take().map(JoinHandle::join);
        let stats = self.stats();
        match ended {
            Some(Ok(Err(error))) => Err(incomplete(&error, stats.written)),
            Some(Err(_)) => {
                let reason = format!("{}: its thread has a defect.", stats.file.display());
                Err(TapError::Incomplete { reason, written: stats.written })
            }
            _ => Ok(stats),
        }
    }
}

/// State shared with the writing thread.
#[derive(Debug, Default)]
struct Shared {
    /// Set after the cores have handed over their last buffers, or after a time limit. Release and Acquire: the writing
    /// thread sees all buffers that were handed over before.
    stop: AtomicBool,
    /// Number of packets in the file. Relaxed: the counters only inform.
    written: AtomicU64,
    /// Number of packets without a buffer.
    lost: AtomicU64,
}

/// Packet to be written.
struct Packet {
    /// Time on the cores' clock.
    ticks: u64,
    /// Length on the wire; `bytes` may be cut.
    len: u32,
    bytes: Box<[u8]>,
}

/// State of the thread that writes a capture.
struct Writer {
    /// File.
    capture: Capture,
    /// Buffers of each core, with copies of its packets.
    buffers: Vec<Arc<TapBuffers>>,
    shared: Arc<Shared>,
    /// Maximum number of packets.
    packets: u64,
    /// Conversion of the cores' ticks to time.
    stamps: Stamps,
}

impl Writer {
    /// Writes packets in the order of time until `stop` is set or `packets` of them are written.
    fn run(mut self) -> Result<(), CaptureError> {
        let mut waiting = Vec::new();
        loop {
            let is_last = self.shared.stop.load(Acquire);
            // Time up to which all cores have handed over their packets. Read before the buffers, which then
            // contain all of these packets.
            let until = self.buffers.iter().map(|one| one.until()).min().unwrap_or_default();
            let bytes = self.take_copies(&mut waiting);
            waiting.sort_by_key(|packet: &Packet| packet.ticks); // a stable sort keeps the order of each core
            let due = match is_last || bytes > WAITING_MAX {
                true => waiting.len(),
                false => waiting.partition_point(|packet| packet.ticks < until),
            };
            let has_all = self.write(waiting.drain(..due))?;
            let lost = self.buffers.iter().map(|one| one.lost()).sum();
            self.shared.lost.store(lost, Relaxed);
            if is_last || has_all {
                return self.capture.finish();
            }
            std::thread::sleep(WRITE);
        }
    }

    /// Moves the packets of the filled buffers to `waiting`, and returns the buffers to the cores. Returns the number
    /// of waiting bytes.
    fn take_copies(&self, waiting: &mut Vec<Packet>) -> usize {
        for buffers in &self.buffers {
            while let Some(buffer) = buffers.next_filled() {
                waiting.extend(copies(&buffer).map(|one| Packet {
                    ticks: one.ticks,
                    len: one.len,
                    bytes: one.bytes.into(),
                }));
                buffers.give_back(buffer);
            }
        }
        waiting.iter().map(|packet| packet.bytes.len()).sum()
    }

    /// Writes packets. Returns true if the maximum is reached.
    fn write(&mut self, packets: impl Iterator<Item = Packet>) -> Result<bool, CaptureError> {
        let mut written = self.shared.written.load(Relaxed);
        for packet in packets {
            if written == self.packets {
                break;
            }
            self.capture.write(self.stamps.time_of(packet.ticks), packet.len, &packet.bytes)?;
            written += 1;
            self.shared.written.store(written, Relaxed);
        }
        Ok(written == self.packets)
    }
}

/// Formats a recording's number of packets, with a reason if there are none.
pub fn packets(written: u64) -> String {
    match written {
        0 => "no packets: none passed while it recorded".to_owned(),
        _ => wedjat_core::quantity(written, "packet"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Returns the points of a node with three ports.
    fn points(cores: usize) -> TapPoints {
        TapPoints {
            cores: (0..cores).map(|_| TapCommands::default()).collect(),
            ports: ["c", "2", "w"].map(str::to_owned).into(),
            clock: Box::new(|| 5_000),
            ticks_hz: 1_000,
            cpus: Vec::new(),
        }
    }

    /// Returns a request for a tap into this file of a folder.
    fn spec(folder: &tempfile::TempDir, file: &str, owner: TapOwner) -> TapSpec {
        TapSpec { file: folder.path().join(file), owner, ..TapSpec::default() }
    }

    /// Starts a tap at a node without cores, and returns its state.
    fn start(taps: &mut Taps, spec: &TapSpec) -> Result<TapStats, TapError> {
        let (sender, receiver) = mpsc::channel();
        taps.start(spec, Box::new(move |started| _ = sender.send(started)));
        taps.poll();
        receiver.try_recv().unwrap()
    }

    /// Polls until no tap is on.
    fn settle(taps: &mut Taps) {
        while taps.active.is_some() {
            taps.poll();
            std::thread::sleep(WRITE);
        }
    }

    /// Requests the end of a tap, waits for it, and returns the answer.
    fn stop(taps: &mut Taps, number: Option<u64>) -> Result<TapStats, TapError> {
        let (sender, receiver) = mpsc::channel();
        taps.stop(number, Box::new(move |stopped| sender.send(stopped).is_ok()));
        settle(taps);
        receiver.try_recv().unwrap()
    }

    #[test]
    fn own_capture_keeps_the_result_for_clients() {
        let folder = tempfile::tempdir().unwrap();
        let mut taps = Taps::of(points(0));
        let of_client = start(&mut taps, &spec(&folder, "client", TapOwner::Nobody)).unwrap();
        taps.end();
        settle(&mut taps);
        let own = start(&mut taps, &spec(&folder, "own", TapOwner::Node)).unwrap();
        taps.end();
        settle(&mut taps);
        assert_eq!(stop(&mut taps, None).unwrap().number, of_client.number);
        assert_eq!(stop(&mut taps, None), Err(TapError::None));
        assert_eq!(stop(&mut taps, Some(own.number)).unwrap().number, own.number);
        // The next tap of a client replaces the result of the previous one.
        start(&mut taps, &spec(&folder, "second", TapOwner::Nobody)).unwrap();
        taps.end();
        settle(&mut taps);
        let third = start(&mut taps, &spec(&folder, "third", TapOwner::Nobody)).unwrap();
        assert_eq!(stop(&mut taps, None).unwrap().number, third.number);
        assert_eq!(stop(&mut taps, None), Err(TapError::None));
    }

    #[test]
    fn failed_result_belongs_to_its_own_tap() {
        let folder = tempfile::tempdir().unwrap();
        let mut taps = Taps::of(points(0));
        let error = TapError::Incomplete { reason: "full".to_owned(), written: 3 };
        let fail = |taps: &mut Taps| {
            let started = start(taps, &spec(&folder, "file", TapOwner::Call)).unwrap();
            taps.end();
            settle(taps);
            taps.ended[0].error = Some(error.clone());
            started
        };
        let failed = fail(&mut taps);
        assert_eq!(stop(&mut taps, Some(failed.number + 9)), Err(TapError::None));
        assert_eq!(stop(&mut taps, Some(failed.number)), Err(error.clone()));
        std::fs::remove_file(&failed.file).unwrap();
        // The client leaves before it asks for the result.
        let failed = fail(&mut taps);
        taps.abandon(failed.number);
        assert!(!failed.file.exists());
        assert_eq!(stop(&mut taps, None), Err(TapError::None));
    }

    #[test]
    fn invalid_request_does_not_end_own_capture() {
        let folder = tempfile::tempdir().unwrap();
        let mut taps = Taps::of(points(0));
        start(&mut taps, &spec(&folder, "own", TapOwner::Node)).unwrap();
        let client = spec(&folder, "client", TapOwner::Nobody);
        let existing = spec(&folder, "own", TapOwner::Nobody);
        for invalid in [TapSpec { snaplen: Some(0), ..client.clone() }, existing] {
            assert!(!taps.gives_way(&invalid));
            let error = start(&mut taps, &invalid).unwrap_err();
            assert!(
                matches!(error, TapError::Argument { .. } | TapError::Exists { .. }),
                "{error}"
            );
            assert_eq!(taps.active.as_ref().unwrap().phase, Phase::On);
        }
        assert!(taps.gives_way(&client));
        settle(&mut taps);
        assert!(!taps.gives_way(&client) && start(&mut taps, &client).is_ok());
    }

    #[test]
    fn file_remains_only_for_clients_still_there() {
        let folder = tempfile::tempdir().unwrap();
        let mut taps = Taps::of(points(0));
        for is_there in [false, true] {
            let started = start(&mut taps, &spec(&folder, "file", TapOwner::Call)).unwrap();
            taps.stop(None, Box::new(move |_| is_there));
            taps.abandon(started.number);
            settle(&mut taps);
            assert_eq!(started.file.exists(), is_there);
        }
    }

    #[test]
    fn late_capture_is_not_called_on() {
        let folder = tempfile::tempdir().unwrap();
        for (owner, late) in [
            (TapOwner::Nobody, TapError::Late),
            (TapOwner::Call, TapError::LateToCapture),
            (TapOwner::Node, TapError::LateToCapture),
        ] {
            let mut taps = Taps::of(points(1));
            let (sender, receiver) = mpsc::channel();
            let spec = spec(&folder, &format!("{owner:?}"), owner);
            taps.start(&spec, Box::new(move |started| _ = sender.send(started)));
            let active = taps.active.as_mut().unwrap();
            active.since = active.since.checked_sub(2 * TAKEN_MAX).unwrap();
            taps.poll();
            assert_eq!(receiver.try_recv().unwrap(), Err(late));
        }
    }

    #[test]
    fn ports_have_an_index_and_a_name() {
        let points = points(1);
        let indices = |port| points.indices(port);
        assert_eq!(indices(None).unwrap(), [0, 1, 2]);
        assert_eq!((indices(Some("w")).unwrap(), indices(Some("1")).unwrap()), (vec![2], vec![1]));
        assert_eq!(indices(Some("2")).unwrap(), [1], "a name goes first");
        let error = indices(Some("3")).unwrap_err().to_string();
        assert_eq!(error, "port 3: no such port; the node has 0 (c), 1 (2), 2 (w)");
        assert!(indices(Some("")).is_err());
    }
}
