//! A capture of what passes a running node: cores copy, a thread of its own writes, and the thread that watches the node begins and
//! ends both.

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

use super::answer::{Answer, TAKEN_MAX};
use super::cpus::stay_on;
use super::explain::{ExplainSpec, Explaining};
use super::stamps::Stamps;
use crate::io::pcap::{Capture, CaptureError};
use crate::io::vdev;
use crate::limits::SNAPLEN_MAX;
use crate::node::explain::{Explainer, Filter, Records};
use crate::node::tap::{TapBuffers, TapCommands, TapOrder, TapRecorder, copies};
use crate::state::files::{Found, Scratch, advice};

/// Between two looks of the writing thread for what cores have copied.
const WRITE: Duration = Duration::from_millis(1);
/// What one core hands over late others wait for, so that the file is in order; but for no more bytes than these.
const WAITING_MAX: usize = 64 << 20;

/// No file has a longer path.
const PATH_MAX: usize = 4096;

/// What a tap is to record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TapSpec {
    /// The file, which must not be there yet; an absolute path.
    pub file: PathBuf,
    /// The index of a port, or its device's name; all ports when none.
    pub port: Option<String>,
    /// Bytes of each packet that are kept, 1 to [`SNAPLEN_MAX`]; that most when none.
    pub snaplen: Option<usize>,
    /// It ends by itself after so many packets.
    pub packets: Option<u64>,
}

/// What a tap has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapStats {
    /// The file.
    pub file: PathBuf,
    /// Devices of the ports that are recorded.
    pub ports: Vec<String>,
    /// Bytes of each packet that are kept.
    pub snaplen: usize,
    /// Packets in the file.
    pub written: u64,
    /// Packets that passed and are not in the file, since there was no room for them.
    pub lost: u64,
    /// It has ended by itself.
    pub has_ended: bool,
}

/// Why there is no tap, or no capture of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TapError {
    /// It is not what a tap can be.
    #[error("{what}; allowed: {allowed}")]
    Argument {
        /// What was asked for.
        what: String,
        /// What may be.
        allowed: String,
    },
    /// No such port.
    #[error("port {port}: there is none; there are {there}")]
    Port {
        /// What was asked for.
        port: String,
        /// Indices and devices of those that there are.
        there: String,
    },
    /// One at a time.
    #[error("a tap is on, into {}: end it first", .file.display())]
    Running {
        /// Its file.
        file: PathBuf,
    },
    /// There is none to be ended.
    #[error("no tap is on")]
    None,
    /// Something lies there.
    #[error("{}: {found} lies there; remove it, or name another file", .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
        /// What lies there.
        found: String,
    },
    /// The file can't be made.
    #[error("{}: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The file is not whole.
    #[error("{reason} It has {}", crate::quantity(*written, "packet"))]
    Incomplete {
        /// Why.
        reason: String,
        /// Packets that were written before.
        written: u64,
    },
    /// The node records nothing.
    #[error("this node has no port that could be recorded")]
    Nowhere,
    /// A core has not taken what it was told.
    #[error("the tap is on, and a core has not begun with it for 5 s: it does not poll")]
    Late,
    /// One at a time.
    #[error("packets are explained to somebody already: that is to end first")]
    Explaining,
    /// A core has not taken what it was told.
    #[error("a core has not begun to explain packets for 5 s: it does not poll")]
    LateToExplain,
    /// Cores have not taken enough of the orders before.
    #[error("a core has not ended the taps before: it does not poll; try again")]
    Busy,
}

/// Where a node can be tapped.
pub struct TapPoints {
    /// Each core's orders.
    pub cores: Vec<TapCommands>,
    /// The devices of its ports.
    pub ports: Vec<String>,
    /// The cores' clock, in ticks.
    pub clock: Box<dyn Fn() -> u64>,
    /// Ticks a second.
    pub ticks_hz: u64,
    /// The CPUs on which a capture is written, if there are any.
    pub cpus: Vec<usize>,
}

impl fmt::Debug for TapPoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TapPoints").field("ports", &self.ports).finish_non_exhaustive()
    }
}

/// What becomes of a request.
pub type TapAnswer = Answer<Result<TapStats, TapError>>;

/// The tap of a node: one at a time, or none.
#[derive(Debug, Default)]
pub struct Taps {
    points: Option<TapPoints>,
    /// That of the last order.
    number: u64,
    running: Option<Running>,
    /// One that has ended by itself, and nobody has asked for yet.
    ended: Option<Result<TapStats, TapError>>,
    /// To whom packets are explained.
    explained: Option<Explained>,
}

/// What becomes of a request that packets be explained.
pub type ExplainAnswer = Answer<Result<Explaining, TapError>>;

/// Packets are explained, or are about to be.
struct Explained {
    /// That of the order which cores are to take.
    number: u64,
    /// When they were given it.
    since: Instant,
    /// Who waits for that.
    waiting: Option<(Explaining, ExplainAnswer)>,
}

impl fmt::Debug for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explained").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Taps {
    /// Of a node that can be tapped there.
    pub fn of(points: TapPoints) -> Self {
        let number = points.cores.iter().map(TapCommands::epoch).max().unwrap_or_default();
        Self { points: Some(points), number, running: None, ended: None, explained: None }
    }

    /// Begins a tap; answered when all cores record.
    pub fn start(&mut self, spec: &TapSpec, answer: TapAnswer) {
        match self.begin(spec) {
            Ok(mut running) => {
                log::info!("tap: {} is written", spec.file.display());
                running.on = Some(answer);
                (self.running, self.ended) = (Some(running), None);
            }
            Err(error) => {
                log::error!("tap refused: {error}");
                answer(Err(error));
            }
        }
    }

    fn begin(&mut self, spec: &TapSpec) -> Result<Running, TapError> {
        let points = self.points.as_ref().filter(|points| !points.ports.is_empty());
        let points = points.ok_or(TapError::Nowhere)?;
        if let Some(running) = &self.running {
            return Err(TapError::Running { file: running.stats.file.clone() });
        }
        let snaplen = spec.snaplen.unwrap_or(SNAPLEN_MAX);
        if !(1..=SNAPLEN_MAX).contains(&snaplen) {
            return Err(argument(format!("snaplen {snaplen}"), format!("1 to {SNAPLEN_MAX}")));
        }
        if spec.packets == Some(0) {
            return Err(argument("0 packets".to_owned(), "1 or more".to_owned()));
        }
        let ports = points.indices(spec.port.as_deref())?;
        if !points.cores.iter().all(TapCommands::has_room) {
            return Err(TapError::Busy);
        }
        let capture = create(&spec.file)?;
        self.number += 1;
        let buffers: Vec<Arc<TapBuffers>> = points.cores.iter().map(|_| Arc::default()).collect();
        let writer = Writer {
            capture,
            buffers: buffers.clone(),
            shared: Arc::default(),
            packets: spec.packets.unwrap_or(u64::MAX),
            stamps: Stamps::from_now((points.clock)(), points.ticks_hz),
        };
        let (shared, cpus) = (Arc::clone(&writer.shared), points.cpus.clone());
        let thread = std::thread::Builder::new().name("wedjat-tap".to_owned());
        let thread = thread.spawn(move || {
            stay_on(&cpus);
            writer.run()
        });
        let thread = thread.map_err(|error| TapError::File {
            path: spec.file.clone(),
            reason: format!("the system starts no thread to write it: {error}"),
        })?;
        for (commands, buffers) in points.cores.iter().zip(&buffers) {
            let recorder = Some(TapRecorder::new(&ports, snaplen, Arc::clone(buffers)));
            let _ = commands.push(TapOrder::record(self.number, recorder)); // there is room
        }
        let names = ports.iter().map(|&port| points.ports[port].clone());
        let stats = TapStats {
            file: spec.file.clone(),
            ports: names.collect(),
            snaplen,
            written: 0,
            lost: 0,
            has_ended: false,
        };
        let thread = Some(thread);
        let (on, off, since, phase) = (None, Vec::new(), Instant::now(), Phase::On);
        Ok(Running { stats, shared, thread, number: self.number, since, on, off, phase })
    }

    /// Ends the tap; answered when the file is complete.
    pub fn stop(&mut self, answer: TapAnswer) {
        match (&mut self.running, self.ended.take()) {
            (Some(running), _) => {
                running.off.push(answer);
                self.end();
            }
            (None, Some(ended)) => answer(ended),
            (None, None) => answer(Err(TapError::None)),
        }
    }

    /// Tells the cores to record no more.
    fn end(&mut self) {
        let (Some(running), Some(points)) = (&mut self.running, &self.points) else { return };
        if running.phase != Phase::On {
            return;
        }
        self.number += 1;
        for commands in &points.cores {
            let _ = commands.push(TapOrder::record(self.number, None));
        }
        (running.phase, running.number, running.since) =
            (Phase::Ending, self.number, Instant::now());
    }

    /// Begins to explain packets; answered when all cores do. `end` is to be called when nobody reads any more, with the number that
    /// [`Taps::end_explaining`] is given.
    pub fn explain(
        &mut self,
        spec: &ExplainSpec,
        end: impl FnOnce(u64) + Send + Sync + 'static,
        answer: ExplainAnswer,
    ) {
        match self.begin_to_explain(spec, end) {
            Ok(explaining) => {
                let (number, since) = (self.number, Instant::now());
                self.explained =
                    Some(Explained { number, since, waiting: Some((explaining, answer)) });
            }
            Err(error) => answer(Err(error)),
        }
    }

    fn begin_to_explain(
        &mut self,
        spec: &ExplainSpec,
        end: impl FnOnce(u64) + Send + Sync + 'static,
    ) -> Result<Explaining, TapError> {
        let points = self.points.as_ref().filter(|points| !points.ports.is_empty());
        let points = points.ok_or(TapError::Nowhere)?;
        if self.explained.is_some() {
            return Err(TapError::Explaining);
        }
        let ports = match &spec.port {
            Some(port) => points.indices(Some(port))?,
            None => Vec::new(),
        };
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
            let _ = commands.push(TapOrder::explain(number, Some(explainer))); // there is room
        }
        let stamps = Stamps::from_now((points.clock)(), points.ticks_hz);
        Ok(Explaining::new(records, points.ports.clone(), stamps, Box::new(move || end(number))))
    }

    /// Nobody reads any more what was begun under this number.
    pub fn end_explaining(&mut self, number: u64) {
        let Some(points) = self.points.as_ref() else { return };
        if self.explained.take_if(|one| one.number == number).is_some() {
            self.number += 1;
            for commands in &points.cores {
                let _ = commands.push(TapOrder::explain(self.number, None));
            }
        }
    }

    /// Answers who waits for cores to explain packets.
    fn tend_explained(&mut self) {
        let (Some(points), Some(explained)) = (&self.points, &mut self.explained) else { return };
        let is_taken = points.cores.iter().all(|core| core.epoch() >= explained.number);
        let is_late = explained.since.elapsed() > TAKEN_MAX;
        if let Some((explaining, answer)) = explained.waiting.take_if(|_| is_taken || is_late) {
            // One that is given up ends itself.
            answer(if is_taken { Ok(explaining) } else { Err(TapError::LateToExplain) });
        }
    }

    /// Somebody waits for what will be done soon.
    pub fn is_pending(&self) -> bool {
        let explained = self.explained.as_ref().is_some_and(|one| one.waiting.is_some());
        let running = self.running.as_ref();
        explained || running.is_some_and(|one| one.on.is_some() || one.phase != Phase::On)
    }

    /// The tap that is on.
    pub fn seen(&self) -> Option<TapStats> {
        self.running.as_ref().map(Running::stats)
    }

    /// Answers who waits, ends a tap that has all its packets, and frees what cores have given back.
    pub fn tend(&mut self) {
        let Some(points) = &self.points else { return };
        for commands in &points.cores {
            while let Some(order) = commands.next_done() {
                drop(order);
            }
        }
        self.tend_explained();
        let (Some(points), Some(running)) = (&self.points, &mut self.running) else { return };
        let is_taken = points.cores.iter().all(|core| core.epoch() >= running.number);
        let is_late = !is_taken && running.since.elapsed() > TAKEN_MAX;
        if running.phase == Phase::On {
            if let Some(answer) = running.on.take_if(|_| is_taken || is_late) {
                answer(if is_taken { Ok(running.stats()) } else { Err(TapError::Late) });
            }
            if running.has_written() {
                running.stats.has_ended = true;
                self.end();
            }
            return;
        }
        if running.phase == Phase::Ending && (is_taken || is_late) {
            running.finish();
        }
        if running.phase == Phase::Finishing && running.has_written() {
            self.answer();
        }
    }

    /// The file is complete, or can't be.
    fn answer(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        let ended = running.join();
        match &ended {
            Ok(TapStats { file, written, lost, .. }) => {
                log::info!("tap: {} has {}; {lost} lost", file.display(), packets(*written));
            }
            Err(error) => log::error!("tap: {error}"),
        }
        if let Some(answer) = running.on.take() {
            answer(ended.clone());
        }
        if running.off.is_empty() {
            self.ended = Some(ended);
            return;
        }
        running.off.drain(..).for_each(|answer| answer(ended.clone()));
    }
}

impl Drop for Taps {
    /// The node ends, and its cores have: what they recorded is written.
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            running.finish();
            self.answer();
        }
    }
}

impl TapPoints {
    /// The indices of the ports that are meant.
    fn indices(&self, port: Option<&str>) -> Result<Vec<usize>, TapError> {
        let Some(port) = port else { return Ok((0..self.ports.len()).collect()) };
        let is_named = |device: &String| device == port || vdev::name(device) == port;
        let named = self.ports.iter().position(is_named);
        let index = || port.parse().ok().filter(|&index: &usize| index < self.ports.len());
        let there = || {
            let one = |(index, device): (usize, &String)| format!("{index} ({device})");
            self.ports.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
        };
        let found = named.or_else(index).map(|index| vec![index]);
        let short: String = port.chars().filter(|one| !one.is_control()).take(40).collect();
        found.ok_or_else(|| TapError::Port { port: short, there: there() })
    }
}

fn argument(what: String, allowed: String) -> TapError {
    TapError::Argument { what, allowed }
}

/// A new file that only its owner may read, where nothing lies; no link is followed there.
fn create(path: &Path) -> Result<Capture, TapError> {
    if !path.is_absolute() || path.as_os_str().len() > PATH_MAX {
        let path = path.display().to_string();
        let short: String = path.chars().filter(|one| !one.is_control()).take(200).collect();
        return Err(argument(
            format!("file {short:?}"),
            format!("an absolute path of {PATH_MAX} bytes at most"),
        ));
    }
    let refused = |error: io::Error| match Found::at(path) {
        Ok(Some(found)) => TapError::Exists { path: path.to_owned(), found: found.describe() },
        _ => {
            let reason = format!("{error}{}", advice(&error));
            TapError::File { path: path.to_owned(), reason }
        }
    };
    // Not every file system looks and renames in one.
    if let Some(found) = Found::at(path).map_err(refused)? {
        return Err(TapError::Exists { path: path.to_owned(), found: found.describe() });
    }
    let made = Scratch::<File>::file(path, None).and_then(|new| new.put_at(path, false));
    let (file, _) = made.map_err(refused)?;
    Capture::into_file(file, path).map_err(|error| incomplete(&error, 0))
}

fn incomplete(error: &CaptureError, written: u64) -> TapError {
    TapError::Incomplete { reason: error.to_string(), written }
}

/// How far a tap is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Cores record, or begin to.
    On,
    /// They have been told to end.
    Ending,
    /// They have ended, and the rest is written.
    Finishing,
}

/// A tap that is on, or about to end.
struct Running {
    /// As far as they are known at its start, and whether it ends by itself.
    stats: TapStats,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), CaptureError>>>,
    /// That of the order which cores are to take.
    number: u64,
    /// When they were given it.
    since: Instant,
    on: Option<TapAnswer>,
    off: Vec<TapAnswer>,
    phase: Phase,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stats, phase, .. } = self;
        f.debug_struct("Running")
            .field("stats", stats)
            .field("phase", phase)
            .finish_non_exhaustive()
    }
}

impl Running {
    fn stats(&self) -> TapStats {
        let (written, lost) = (self.shared.written.load(Relaxed), self.shared.lost.load(Relaxed));
        TapStats { written, lost, ..self.stats.clone() }
    }

    /// The thread has written all that it is to, or can't.
    fn has_written(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Nothing more comes from the cores.
    fn finish(&mut self) {
        self.phase = Phase::Finishing;
        self.shared.stop.store(true, Release);
    }

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

/// What the writing thread is told and tells.
#[derive(Debug, Default)]
struct Shared {
    /// All cores have handed over what they are to.
    stop: AtomicBool,
    written: AtomicU64,
    lost: AtomicU64,
}

/// A packet that is not written yet.
struct Packet {
    ticks: u64,
    len: u32,
    bytes: Box<[u8]>,
}

/// The thread that writes a capture.
struct Writer {
    capture: Capture,
    buffers: Vec<Arc<TapBuffers>>,
    shared: Arc<Shared>,
    /// At most so many.
    packets: u64,
    stamps: Stamps,
}

impl Writer {
    /// Writes what cores hand over, in the order of time, until it is told to stop or has written as many as it is to.
    fn run(mut self) -> Result<(), CaptureError> {
        let mut waiting = Vec::new();
        loop {
            let is_last = self.shared.stop.load(Acquire);
            // Before the buffers are looked at: what passed until then is in them.
            let until = self.buffers.iter().map(|one| one.until()).min().unwrap_or_default();
            let bytes = self.take_copies(&mut waiting);
            waiting.sort_by_key(|packet: &Packet| packet.ticks); // which keeps the order of each core
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

    /// Takes what has been handed over; returns how many bytes wait.
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

    /// True when all that are to be written are.
    fn write(&mut self, packets: impl Iterator<Item = Packet>) -> Result<bool, CaptureError> {
        let mut written = self.shared.written.load(Relaxed);
        for packet in packets {
            if written == self.packets {
                break;
            }
            self.capture.write(self.stamps.at(packet.ticks), packet.len, &packet.bytes)?;
            written += 1;
            self.shared.written.store(written, Relaxed);
        }
        Ok(written == self.packets)
    }
}

/// A recording's size for people; an empty one is named so.
pub fn packets(written: u64) -> String {
    match written {
        0 => "no packets: none came while it recorded".to_owned(),
        _ => crate::quantity(written, "packet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(cores: usize) -> TapPoints {
        TapPoints {
            cores: (0..cores).map(|_| TapCommands::default()).collect(),
            ports: ["c", "1", "w"].map(str::to_owned).into(),
            clock: Box::new(|| 5_000),
            ticks_hz: 1_000,
            cpus: Vec::new(),
        }
    }

    #[test]
    fn ports_have_an_index_and_a_name() {
        let points = points(1);
        let indices = |port| points.indices(port);
        assert_eq!(indices(None).unwrap(), [0, 1, 2]);
        assert_eq!((indices(Some("w")).unwrap(), indices(Some("2")).unwrap()), (vec![2], vec![2]));
        assert_eq!(indices(Some("1")).unwrap(), [1], "a name goes first");
        let error = indices(Some("3")).unwrap_err().to_string();
        assert_eq!(error, "port 3: there is none; there are 0 (c), 1 (1), 2 (w)");
        assert!(indices(Some("")).is_err());
    }
}
