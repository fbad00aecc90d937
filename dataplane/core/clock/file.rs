//! Clock file shared by a conductor and its nodes: layout, and detection of dead processes.
//!
//! The conductor is the process that advances emulated time. A node polls only in its *turn*, which the conductor
//! begins and the node ends. The words of a node are its *line*.
//!
//! | bytes | contents | written by |
//! |---|---|---|
//! | 0 - 127 | magic, version, length, number of lines, the conductor's process | the conductor, once |
//! | 128 - 255 | `now_ns`; end of the run | the conductor |
//! | then for each node 128 | number of its turn; whether the conductor sleeps | the conductor |
//! | and 128 | last ended turn; whether the node sleeps; polls, packets, earliest timer, identity | the node |
//!
//! The conductor locks the file's first byte, the node of line i locks byte i + 1. The system releases these
//! locks however a process ends.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::waiter::Signal;
use crate::ring::lock::{is_held, is_locked, lock};
use crate::state::files::{NameError, NameLock, advice, open_again};
use crate::state::region::{ALIGN, Region, Slice};
use crate::state::table::Role;

/// "WEDJATck": a clock, of a little-endian machine.
const MAGIC: u64 = u64::from_le_bytes(*b"WEDJATck");
/// Version of the layout, raised by every change.
pub const VERSION: u64 = 1;
/// Maximum number of nodes per conductor.
const NODES_MAX: usize = 256;

/// Indices of the words that the conductor writes once, at the start of the file.
mod word {
    /// [`super::MAGIC`], written last.
    pub const MAGIC: usize = 0;
    /// [`super::VERSION`].
    pub const VERSION: usize = 1;
    /// Length of the file in bytes.
    pub const LEN: usize = 2;
    /// Number of lines.
    pub const NODES: usize = 3;
    /// Process of the conductor.
    pub const PID: usize = 4;
    /// Number of words.
    pub const COUNT: usize = 5;
}

/// Indices of the words for the time, after the header.
mod time {
    /// The time, in nanoseconds.
    pub const NOW_NS: usize = 0;
    /// 1 once the run has ended.
    pub const ENDED: usize = 1;
    /// Number of words.
    pub const COUNT: usize = 2;
}

/// Indices of the 32-bit words at the start of each of the two halves of a line: the writer's turn number, and
/// whether the writer sleeps. The conductor writes the first half, the node the second.
mod signal {
    /// Number of the turn that the writer began (conductor) or ended (node) last.
    pub const TURN: usize = 0;
    /// 1 while the writer sleeps or is about to.
    pub const SLEEPS: usize = 1;
    /// Number of words.
    pub const COUNT: usize = 2;
}

/// Indices of the words after these in the node's half of a line.
pub(super) mod state {
    /// Number of polls.
    pub const POLLS: usize = 0;
    /// Number of received packets.
    pub const RECEIVED: usize = 1;
    /// Number of sent packets.
    pub const SENT: usize = 2;
    /// Earliest timer, in nanoseconds.
    pub const TIMER_NS: usize = 3;
    /// Name of the node, see [`super::Node::word`].
    pub const NODE: usize = 4;
    /// Process of the node.
    pub const PID: usize = 5;
    /// Number of words.
    pub const COUNT: usize = 6;
}

/// Name of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Role.
    pub role: Role,
    /// Configured id.
    pub id: u16,
    /// Dispatcher core.
    pub core: u16,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} core {}", self.role.name(), self.id, self.core)
    }
}

impl Node {
    /// Returns the name as one number, never 0, which stands for no node.
    pub(super) fn word(self) -> u64 {
        (self.role as u64 + 1) << 32 | u64::from(self.id) << 16 | u64::from(self.core)
    }
}

/// Reason why a clock file cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClockError {
    /// The system refused.
    #[error("clock {path}: {error}{}", advice(error))]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: Arc<io::Error>,
    },
    /// The file does not exist.
    #[error(
        "clock {path}: no such file; start its conductor first (wedjat-testbed lockstep), or leave out --clock for real time"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a clock.
    #[error("clock {path}: not a wedjat clock; name the file that wedjat-testbed lockstep made")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The layout has another version.
    #[error(
        "clock {path}: layout version {found}, this program uses version {VERSION}; build node and conductor from the same release"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// The header contradicts itself or the file.
    #[error("clock {path}: damaged ({reason}); remove it, and restart its conductor")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// Another conductor runs.
    #[error(
        "clock {path}: in use by a running conductor (pid {pid}); stop it, or name another file"
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// Process that uses it.
        pid: u64,
    },
    /// The conductor has ended.
    #[error(
        "clock {path}: its conductor (pid {pid}) ended without ending the run, so time has stopped; restart both"
    )]
    NoConductor {
        /// The file.
        path: PathBuf,
        /// Its process.
        pid: u64,
    },
    /// No line is free.
    #[error(
        "clock {path}: all of its {nodes} lines are taken; start the conductor with more nodes"
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// Number of lines.
        nodes: usize,
    },
    /// Worker threads run in real time.
    #[error(
        "--clock {path}: this agent's workers are threads, which work in real time; run it without --clock"
    )]
    Threads {
        /// The file.
        path: PathBuf,
    },
}

/// Clock shared by its conductor and its nodes.
#[derive(Clone, Debug)]
pub struct ClockFile {
    /// The mapped file.
    region: Arc<Region>,
    pub(super) path: Arc<Path>,
    /// Open file, for testing locks, and for opening it again to lock a line.
    file: Arc<File>,
    /// Number of lines.
    nodes: usize,
    /// Words that the conductor wrote once; see the module `word`.
    header: Slice<AtomicU64>,
    /// Time and end of the run; see the module `time`.
    time: Slice<AtomicU64>,
}

/// Words shared by the conductor and one node.
#[derive(Clone, Debug)]
pub(super) struct ClockWords {
    /// Conductor's half: number of the turn, and whether the conductor sleeps.
    conductor: Slice<AtomicU32>,
    /// Start of the node's half: last ended turn, and whether the node sleeps.
    node: Slice<AtomicU32>,
    /// Rest of the node's half; see the module `state`.
    pub state: Slice<AtomicU64>,
}

impl ClockWords {
    /// Returns the conductor's signal that a turn has begun.
    #[inline]
    pub fn turn(&self) -> Signal<'_> {
        Signal { word: &self.conductor[signal::TURN], asleep: &self.node[signal::SLEEPS] }
    }

    /// Returns the node's signal that a turn has ended.
    #[inline]
    pub fn done(&self) -> Signal<'_> {
        Signal { word: &self.node[signal::TURN], asleep: &self.conductor[signal::SLEEPS] }
    }
}

/// Returns the file length in bytes for `nodes` nodes: header and time, then two halves per line.
fn len_for(nodes: usize) -> usize {
    2 * ALIGN * (1 + nodes)
}

impl ClockFile {
    /// Creates a clock at time 0 for at most `nodes` nodes (limited to 1 to [`NODES_MAX`]). Replaces the file of a
    /// conductor that no longer runs. Returns the clock, and a file that holds the conductor's lock.
    ///
    /// # Errors
    /// If another conductor uses the file, it is no valid clock of this version, or the system refuses.
    pub(super) fn create(path: &Path, nodes: usize) -> Result<(Self, File), ClockError> {
        let nodes = nodes.clamp(1, NODES_MAX);
        // Otherwise two conductors could both find no running one, and the later would replace the earlier one's file.
        let _name = NameLock::take(path).map_err(|error| lock_error(path, error))?;
        match Self::open(path) {
            Ok(clock) => {
                return Err(ClockError::InUse { path: path.to_owned(), pid: clock.pid() });
            }
            Err(ClockError::Missing { .. } | ClockError::NoConductor { .. }) => {}
            Err(error) => return Err(error),
        }
        // Fills a file under another name and renames it, so that no node opens an incomplete one.
        let io = io_error(path);
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".new-{}", std::process::id()));
        let new = PathBuf::from(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&new).map_err(&io)?;
        let clock = Self::fill(file, path, nodes).map_err(&io);
        let rename = |clock| std::fs::rename(&new, path).map(|()| clock).map_err(&io);
        let clock = clock.and_then(rename);
        if clock.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        clock
    }

    /// Writes a new file and locks it for the conductor. The returned file holds the lock.
    fn fill(file: File, path: &Path, nodes: usize) -> io::Result<(Self, File)> {
        let len = len_for(nodes);
        file.set_len(len as u64)?;
        // Separately opened: a mapping keeps its file open, and thus its locks. This file is closed with the conductor.
        let locked = open_again(&file)?;
        lock(&locked, 0)?;
        let region = Region::own_file(&file, len)?;
        let clock = Self::over(region, file, path, nodes);
        for (index, value) in [
            (word::VERSION, VERSION),
            (word::LEN, len as u64),
            (word::NODES, nodes as u64),
            (word::PID, u64::from(std::process::id())),
        ] {
            clock.header[index].store(value, Relaxed);
        }
        clock.header[word::MAGIC].store(MAGIC, Release);
        Ok((clock, locked))
    }

    /// Creates the clock over a mapped file.
    fn over(region: Arc<Region>, file: File, path: &Path, nodes: usize) -> Self {
        Self {
            header: region.slice(0, word::COUNT),
            time: region.slice(ALIGN, time::COUNT),
            region,
            path: path.into(),
            file: Arc::new(file),
            nodes,
        }
    }

    /// Opens the clock of a running conductor.
    ///
    /// # Errors
    /// If the file is missing, foreign, damaged, of another version, or without a conductor, or the system refuses.
    pub fn open(path: &Path) -> Result<Self, ClockError> {
        let io = io_error(path);
        let owned_path = || path.to_owned();
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ClockError::Missing { path: owned_path() },
            _ => io(error),
        })?;
        let len = file.metadata().map_err(&io)?.len();
        if len < len_for(1) as u64 {
            return Err(ClockError::Foreign { path: owned_path() });
        }
        let mut head = [0; 8 * word::COUNT];
        file.read_exact_at(&mut head, 0).map_err(&io)?;
        let words = head.as_chunks::<8>().0;
        let value = |index: usize| u64::from_ne_bytes(words[index]);
        if value(word::MAGIC) != MAGIC {
            return Err(ClockError::Foreign { path: owned_path() });
        }
        let found = value(word::VERSION);
        if found != VERSION {
            return Err(ClockError::Version { path: owned_path(), found });
        }
        let nodes = value(word::NODES) as usize;
        let needed = len_for(nodes.min(NODES_MAX)) as u64;
        if nodes > NODES_MAX || value(word::LEN) != needed || len < needed {
            let reason = format!("{len} bytes for {nodes} nodes");
            return Err(ClockError::Damaged { path: owned_path(), reason });
        }
        if !is_locked(&file, 0) {
            return Err(ClockError::NoConductor { path: owned_path(), pid: value(word::PID) });
        }
        let region = Region::own_file(&file, needed as usize).map_err(&io)?;
        Ok(Self::over(region, file, path, nodes))
    }

    /// Claims the first free line for a node. Returns its number, and a file that holds its lock.
    pub(super) fn claim(&self) -> Result<(usize, File), ClockError> {
        let io = io_error(&self.path);
        for line in 0..self.nodes {
            let file = open_again(&self.file).map_err(&io)?;
            match lock(&file, 1 + line as i64) {
                Ok(()) => return Ok((line, file)),
                Err(error) if is_held(&error) => {}
                Err(error) => return Err(io(error)),
            }
        }
        Err(ClockError::Full { path: self.path.to_path_buf(), nodes: self.nodes })
    }

    /// Returns the words of a line.
    pub(super) fn words(&self, line: usize) -> ClockWords {
        let start = 2 * ALIGN * (1 + line);
        ClockWords {
            conductor: self.region.slice(start, signal::COUNT),
            node: self.region.slice(start + ALIGN, signal::COUNT),
            // Behind the two 32-bit words of the signal.
            state: self.region.slice(start + ALIGN + 8, state::COUNT),
        }
    }

    /// Returns the number of lines.
    pub(super) fn nodes(&self) -> usize {
        self.nodes
    }

    /// Returns the conductor's process id.
    #[must_use]
    pub fn pid(&self) -> u64 {
        self.header[word::PID].load(Relaxed)
    }

    /// Returns the time in nanoseconds since the start of the run.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.time[time::NOW_NS].load(Acquire)
    }

    /// Sets the time. `Release` pairs with the `Acquire` in [`ClockFile::now_ns`].
    #[inline]
    pub(super) fn set_now_ns(&self, now_ns: u64) {
        self.time[time::NOW_NS].store(now_ns, Release);
    }

    /// Returns true once the conductor has ended the run.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.time[time::ENDED].load(Acquire) != 0
    }

    /// Marks the run as ended. The caller wakes the nodes that sleep.
    pub(super) fn end(&self) {
        self.time[time::ENDED].store(1, Release);
    }

    /// Returns true if the conductor is alive.
    pub(super) fn has_conductor(&self) -> bool {
        is_locked(&self.file, 0)
    }

    /// Returns true if the node of this line is alive.
    pub(super) fn has_node(&self, line: usize) -> bool {
        is_locked(&self.file, 1 + line as i64)
    }

    /// Returns the error for a conductor that died.
    pub(super) fn without_conductor(&self) -> ClockError {
        ClockError::NoConductor { path: self.path.to_path_buf(), pid: self.pid() }
    }
}

/// Converts the error of a path's lock, which a conductor holds while it creates its file.
fn lock_error(path: &Path, error: NameError) -> ClockError {
    match error {
        NameError::Held(pid) => {
            ClockError::InUse { path: path.to_owned(), pid: pid.unwrap_or_default() }
        }
        NameError::Foreign(lock, found) => {
            let text = format!("{found} exists there; remove it, or name another clock");
            io_error(&lock)(io::Error::new(io::ErrorKind::AlreadyExists, text))
        }
        NameError::Io(error) => io_error(path)(error),
    }
}

/// Returns a function that adds the path to an error of the system.
fn io_error(path: &Path) -> impl Fn(io::Error) -> ClockError {
    move |error| ClockError::Io { path: path.to_owned(), error: Arc::new(error) }
}
