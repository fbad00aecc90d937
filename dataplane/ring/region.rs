//! The region that a dispatcher shares with its workers: memory of one process, or a file that workers attach
//! to by name.
//!
//! Who is alive is told by locks on the file, which the system takes back from a process however it ends: the
//! dispatcher holds the file's first byte, the worker of channel i byte i + 1. They are locks of the
//! open file (F_OFD_SETLK), so threads of one process count as strangers, too, and looking for a lock
//! takes none.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use super::channel::{Receiver, SLOT_WORDS, Sender, Words, claim, control, credit};
use super::guest::Guest;
use super::host::Channel;
use super::layout::{HEADER_WORDS, Layout, Shape};
use crate::state::region::{Region, Slice, advice};

/// "WEDJATwk": a region of workers, of a little-endian machine.
const MAGIC: u64 = u64::from_le_bytes(*b"WEDJATwk");
/// Version of the layout; any change of [`super::layout`] or of the channels' words raises it.
pub const VERSION: u64 = 2;
/// Folder of regions that are named without one.
const FOLDER: &str = "/dev/shm";

/// Numbers of the header's words.
mod word {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    pub const LEN: usize = 2;
    pub const CHANNELS: usize = 3;
    pub const SLOTS: usize = 4;
    pub const PAYLOAD: usize = 5;
    pub const PID: usize = 6;
}

/// Why a region can't be made or attached to.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The system refused.
    #[error("worker region {path}: {error}{}", advice(error))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Another agent runs on it.
    #[error(
        "worker region {path}: in use by a running agent (pid {pid}); stop that one or give this one another `name`"
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// Who uses it.
        pid: u64,
    },
    /// There is no such file.
    #[error(
        "worker region {path}: there is none; start the agent first, or attach to the `name` of its configuration"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Something else lies there.
    #[error("worker region {path}: not a region of wedjat workers; remove it or use another name")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Made by another version.
    #[error(
        "worker region {path}: layout version {found}, this program uses version {VERSION}; build worker and agent from the same release"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// Its header contradicts itself or the file.
    #[error("worker region {path}: damaged ({reason}); restart the agent that owns it")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A shape that can't be.
    #[error("worker region: {0:?} can't be; use fewer workers, slots (a power of two) or bytes")]
    Shape(Shape),
}

/// A worker as a region names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Global worker id.
    pub id: u16,
    /// The pool it serves.
    pub pool: u16,
}

/// See the module's text.
#[derive(Debug)]
pub struct WorkerRegion {
    region: Arc<Region>,
    shape: Shape,
    layout: Layout,
    header: Slice<AtomicU64>,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    /// Which channels have a worker.
    Heap(Vec<AtomicBool>),
    File {
        file: File,
        path: PathBuf,
        owned: bool,
    },
}

/// The file of an agent's name: the name itself when it holds a slash.
#[must_use]
pub fn path_of(name: &str) -> PathBuf {
    match name.contains('/') {
        true => PathBuf::from(name),
        false => Path::new(FOLDER).join(format!("wedjat-{name}")),
    }
}

impl WorkerRegion {
    /// A region in this process's own memory, for workers that are its threads.
    ///
    /// # Errors
    /// When the shape can't be.
    pub fn heap(workers: &[Place], slots: usize, payload: usize) -> Result<Self, RegionError> {
        let shape = possible(Shape { channels: workers.len(), slots, payload })?;
        let layout = Layout::new(&shape);
        let taken = workers.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Self::fill(Region::heap(layout.len), shape, layout, workers, Backing::Heap(taken)))
    }

    /// A region in the file at `path`. A file left by an agent that no longer runs is replaced; the new one
    /// takes its place when it is complete.
    ///
    /// # Errors
    /// When another agent runs on the file, when it is something else, or when the system refuses.
    pub fn create(
        path: &Path,
        workers: &[Place],
        slots: usize,
        payload: usize,
    ) -> Result<Self, RegionError> {
        let shape = possible(Shape { channels: workers.len(), slots, payload })?;
        let _old = take_over(path)?;
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".new-{}", std::process::id()));
        let new = PathBuf::from(name);
        let made = Self::create_new(&new, path, shape, workers);
        if made.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        made
    }

    fn create_new(
        new: &Path,
        path: &Path,
        shape: Shape,
        workers: &[Place],
    ) -> Result<Self, RegionError> {
        let io = |error| RegionError::Io { path: path.to_owned(), error };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(new).map_err(io)?;
        let layout = Layout::new(&shape);
        file.set_len(layout.len as u64).map_err(io)?;
        // A mapping keeps its open file, and with it the file's locks; this one goes with the region.
        let own = open_again(&file).map_err(io)?;
        lock(&own, 0).map_err(io)?;
        let region = Region::map(&file, layout.len).map_err(io)?;
        let backing = Backing::File { file: own, path: path.to_owned(), owned: true };
        let made = Self::fill(region, shape, layout, workers, backing);
        std::fs::rename(new, path).map_err(io)?;
        Ok(made)
    }

    fn fill(
        region: Arc<Region>,
        shape: Shape,
        layout: Layout,
        workers: &[Place],
        backing: Backing,
    ) -> Self {
        let header = region.slice::<AtomicU64>(0, HEADER_WORDS);
        let words = [
            (word::VERSION, VERSION),
            (word::LEN, layout.len as u64),
            (word::CHANNELS, shape.channels as u64),
            (word::SLOTS, shape.slots as u64),
            (word::PAYLOAD, shape.payload as u64),
            (word::PID, u64::from(std::process::id())),
        ];
        for (at, value) in words {
            header[at].store(value, Relaxed);
        }
        let ids = region.slice::<AtomicU64>(layout.workers, workers.len());
        for (word, place) in ids.iter().zip(workers) {
            word.store(u64::from(place.id) << 32 | u64::from(place.pool), Relaxed);
        }
        header[word::MAGIC].store(MAGIC, Release);
        Self { region, shape, layout, header, backing }
    }

    /// Opens the region of a running agent.
    ///
    /// # Errors
    /// When there is none, or it is foreign, of another version or damaged.
    pub fn open(path: &Path) -> Result<Self, RegionError> {
        let io = |error| RegionError::Io { path: path.to_owned(), error };
        let file =
            OpenOptions::new().read(true).write(true).open(path).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::NotFound => RegionError::Missing { path: path.to_owned() },
                    _ => io(error),
                }
            })?;
        let len = file.metadata().map_err(io)?.len();
        if len < 8 * HEADER_WORDS as u64 {
            return Err(RegionError::Foreign { path: path.to_owned() });
        }
        let head = Region::map(&file, 8 * HEADER_WORDS).map_err(io)?;
        let shape = shape_of(&head.slice(0, HEADER_WORDS), path, len)?;
        let layout = Layout::new(&shape);
        let region = Region::map(&file, layout.len).map_err(io)?;
        let header = region.slice(0, HEADER_WORDS);
        let backing = Backing::File { file, path: path.to_owned(), owned: false };
        Ok(Self { region, shape, layout, header, backing })
    }

    /// How much of everything there is.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The agent's process.
    #[must_use]
    pub fn pid(&self) -> u64 {
        self.header[word::PID].load(Relaxed)
    }

    /// The worker of a channel.
    #[must_use]
    pub fn place(&self, channel: usize) -> Place {
        let word = self.region.slice::<AtomicU64>(self.layout.workers + 8 * channel, 1);
        let word = word[0].load(Relaxed);
        Place { id: (word >> 32) as u16, pool: word as u16 }
    }

    /// The dispatcher's end of a channel. Ask once for each.
    #[must_use]
    pub fn channel(&self, channel: usize) -> Channel {
        let sender = Sender::new(self.words(channel));
        Channel::new(sender, self.sleep_word(channel), self.area(channel), self.shape)
    }

    /// Claims a channel for the worker that it returns; none when it has one.
    ///
    /// # Errors
    /// Those of the system.
    pub fn claim(self: &Arc<Self>, channel: usize) -> io::Result<Option<Guest>> {
        let guard = match &self.backing {
            Backing::Heap(taken) => {
                if taken[channel].swap(true, AcqRel) {
                    return Ok(None);
                }
                Guard::Heap { region: Arc::clone(self), channel }
            }
            // Locks are the open file's, so each worker opens it for itself.
            Backing::File { file, .. } => {
                let own = open_again(file)?;
                match lock(&own, 1 + channel as i64) {
                    Ok(()) => Guard::File { _file: own },
                    Err(error) if is_held(&error) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
        };
        let receiver = Receiver::claim(self.words(channel), std::process::id());
        let (sleep, area) = (self.sleep_word(channel), self.area(channel));
        let place = self.place(channel);
        Ok(Some(Guest::new(receiver, sleep, area, self.shape, place, guard)))
    }

    /// The worker of this channel lives.
    #[must_use]
    pub fn has_worker(&self, channel: usize) -> bool {
        match &self.backing {
            Backing::Heap(taken) => taken[channel].load(Acquire),
            Backing::File { file, .. } => is_locked(file, 1 + channel as i64),
        }
    }

    /// The agent lives.
    #[must_use]
    pub fn has_agent(&self) -> bool {
        match &self.backing {
            Backing::Heap(_) => true,
            Backing::File { owned: true, .. } => true,
            Backing::File { file, .. } => is_locked(file, 0),
        }
    }

    /// The claim that the agent has granted on a channel, 0 for none.
    #[must_use]
    pub fn granted(&self, channel: usize) -> u64 {
        self.words(channel).control[control::GRANTED].load(Acquire)
    }

    pub(super) fn words(&self, channel: usize) -> Words<Slice<AtomicU64>> {
        let at = self.layout.channel(channel);
        Words {
            control: self.region.slice(at.control, control::WORDS),
            claim: self.region.slice(at.claim, claim::WORDS),
            credit: self.region.slice(at.credit, credit::WORDS),
            slots: self.region.slice(at.slots, SLOT_WORDS * self.shape.slots),
        }
    }

    fn sleep_word(&self, channel: usize) -> Slice<AtomicU32> {
        self.region.slice(self.layout.channel(channel).sleep, 1)
    }

    pub(super) fn area(&self, channel: usize) -> Slice<AtomicU64> {
        let len = self.shape.slots * self.shape.stride() / 8;
        self.region.slice(self.layout.channel(channel).area, len)
    }
}

impl Drop for WorkerRegion {
    fn drop(&mut self) {
        if let Backing::File { path, owned: true, .. } = &self.backing {
            // Its lock is still held, so it is ours.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Keeps other workers off a channel.
#[derive(Debug)]
pub(super) enum Guard {
    Heap { region: Arc<WorkerRegion>, channel: usize },
    File { _file: File },
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Self::Heap { region, channel } = self
            && let Backing::Heap(taken) = &region.backing
        {
            taken[*channel].store(false, Release);
        }
    }
}

fn possible(shape: Shape) -> Result<Shape, RegionError> {
    if shape.is_possible() { Ok(shape) } else { Err(RegionError::Shape(shape)) }
}

/// What a header says, read once and held against the file.
fn shape_of(header: &[AtomicU64], path: &Path, len: u64) -> Result<Shape, RegionError> {
    let value = |at: usize| header[at].load(Acquire);
    let path = path.to_owned();
    if value(word::MAGIC) != MAGIC {
        return Err(RegionError::Foreign { path });
    }
    let found = value(word::VERSION);
    if found != VERSION {
        return Err(RegionError::Version { path, found });
    }
    let shape = Shape {
        channels: value(word::CHANNELS) as usize,
        slots: value(word::SLOTS) as usize,
        payload: value(word::PAYLOAD) as usize,
    };
    if !shape.is_possible() {
        return Err(RegionError::Damaged { path, reason: format!("{shape:?}") });
    }
    let needed = Layout::new(&shape).len as u64;
    if value(word::LEN) != needed || len < needed {
        let reason = format!("{len} bytes where {needed} are needed");
        return Err(RegionError::Damaged { path, reason });
    }
    Ok(shape)
}

/// Makes sure that what lies at `path` may be replaced, and keeps it locked until that is done.
fn take_over(path: &Path) -> Result<Option<File>, RegionError> {
    let io = |error| RegionError::Io { path: path.to_owned(), error };
    let mut file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mut head = Vec::new();
    (&mut file).take(8 * HEADER_WORDS as u64).read_to_end(&mut head).map_err(io)?;
    if !head.is_empty() && !head.starts_with(&MAGIC.to_le_bytes()) {
        return Err(RegionError::Foreign { path: path.to_owned() });
    }
    match lock(&file, 0) {
        Ok(()) => Ok(Some(file)),
        Err(error) if is_held(&error) => {
            let pid = head[8 * word::PID..].first_chunk().map_or(0, |pid| u64::from_le_bytes(*pid));
            Err(RegionError::InUse { path: path.to_owned(), pid })
        }
        Err(error) => Err(io(error)),
    }
}

/// The same file, opened anew: an open file of its own, for locks of its own.
fn open_again(file: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).write(true).open(path)
}

fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

fn byte(at: i64, kind: i32) -> libc::flock {
    // SAFETY: `flock` is plain numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = at;
    lock.l_len = 1;
    lock
}

/// Locks one byte for as long as the file is open.
fn lock(file: &File, at: i64) -> io::Result<()> {
    let lock = byte(at, libc::F_WRLCK);
    // SAFETY: the descriptor is open, and `lock` outlives the call, which only reads it.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Somebody else has locked that byte. A system that can't tell counts as a yes.
fn is_locked(file: &File, at: i64) -> bool {
    let mut lock = byte(at, libc::F_WRLCK);
    // SAFETY: as in `lock`; the call writes its answer into it.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    done != 0 || lock.l_type != libc::F_UNLCK as libc::c_short
}
