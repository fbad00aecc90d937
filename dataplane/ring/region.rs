//! The region that a dispatcher shares with its workers: memory of one process, or anonymous memory that workers'
//! processes get from their agent by its name ([`super::attach`]).
//!
//! The memory is sealed, so nobody can take it away from those who have mapped it, and all of it is there from the start.
//! Who is alive is told by locks on it, which the system takes back from a process however it ends: the
//! dispatcher holds the first byte, the worker of channel i byte i + 1.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags};
use rustix::io::Errno;

use super::attach::{self, AttachServer, InvalidOffer, Offer, OfferError, Received, VERSION};
use super::channel::Channel;
use super::layout::{Layout, RegionShape};
use super::lock::{is_held, is_locked, lock};
use super::protocol::{Receiver, SLOT_WORDS, Sender, Words, claim, control, credit};
use super::watch::{self, Watch};
use super::worker_end::WorkerEnd;
use crate::state::files::{
    Found, Identity, NameError, NameLock, Scratch, advice, open_again, within_limits,
};
use crate::state::region::{Region, Slice};

/// Folder of regions that are named without one.
const FOLDER: &str = "/dev/shm";

/// Why a region can't be made or attached to.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The system refused.
    #[error("worker region {path}: {error}{}", advice(error))]
    Io {
        /// The agent's socket.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Another agent runs on it.
    #[error(
        "worker region {path}: in use by a running agent{}; stop that one or give this one another `name`",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The agent's socket.
        path: PathBuf,
        /// Who uses it, if that can be read.
        pid: Option<u64>,
    },
    /// There is no such agent.
    #[error(
        "worker region {path}: there is none; start the agent first, or attach to the `name` of its configuration"
    )]
    Missing {
        /// The agent's socket.
        path: PathBuf,
    },
    /// The agent that made it has ended without taking it away.
    #[error("worker region {path}: its agent does not run any more; start it")]
    Dead {
        /// The agent's socket.
        path: PathBuf,
    },
    /// The agent does not answer.
    #[error(
        "worker region {path}: its agent does not answer; is it stopped, or out of descriptors (`ulimit -n`)?"
    )]
    Silent {
        /// The agent's socket.
        path: PathBuf,
    },
    /// Something else lies there.
    #[error(
        "worker region {path}: not a region of wedjat workers but {found}; it is left alone, use another name"
    )]
    Foreign {
        /// What was looked at.
        path: PathBuf,
        /// What lies there.
        found: String,
    },
    /// Worker and agent are not the same user's.
    #[error("worker region {path}: its agent is {whose}; run agent and workers as one user")]
    Owner {
        /// The agent's socket.
        path: PathBuf,
        /// Whose the agent is.
        whose: String,
    },
    /// Made by another version.
    #[error(
        "worker region {path}: layout version {found}, this program uses version {VERSION}; build worker and agent from the same release"
    )]
    Version {
        /// The agent's socket.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// What the agent offers contradicts itself.
    #[error("worker region {path}: damaged ({reason}); restart the agent that owns it")]
    Damaged {
        /// The agent's socket.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A shape that can't be.
    #[error("worker region: {0:?} can't be; use fewer workers, slots (a power of two) or bytes")]
    RegionShape(RegionShape),
}

/// A worker as a region names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Global worker id.
    pub id: u16,
    /// The pool it serves.
    pub pool: u16,
}

impl Place {
    /// As one number: what a worker claims a channel by.
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from(self.id) << 32 | u64::from(self.pool)
    }
}

/// A worker as those see it who watch its agent's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSeen {
    /// Who it is.
    pub place: Place,
    /// Its process.
    pub process: u32,
    /// The thread that it attached with.
    pub thread: u32,
    /// Nanoseconds worked since it came.
    pub busy_ns: u64,
}

/// Memory that a dispatcher and its workers share: a channel for each worker, and for those that may come.
#[derive(Debug)]
pub struct WorkerRegion {
    region: Arc<Region>,
    layout: Layout,
    shape: RegionShape,
    /// Whose channels they are. At an agent this changes, and its thread for attaching reads it.
    offer: Arc<Mutex<Offer>>,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    /// Which channels have a worker.
    Heap(Vec<AtomicBool>),
    /// The memory of an agent, in its own process.
    Agent {
        server: AttachServer,
        /// An open file that no worker is given, for the agent's lock.
        memory: File,
        path: PathBuf,
        socket: Identity,
        /// Of the path; given back last.
        name: NameLock,
    },
    /// In a worker's.
    Worker { memory: File, pid: u64 },
}

/// Where the socket of an agent of this name is: the name itself when it holds a slash.
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
        Self::heap_for(workers, RegionShape { channels: workers.len(), slots, payload })
    }

    /// The same with as many channels as `shape` says; those behind the workers' are free.
    ///
    /// # Errors
    /// When the shape can't be.
    pub fn heap_for(workers: &[Place], shape: RegionShape) -> Result<Self, RegionError> {
        let (offer, layout) = planned(workers, shape)?;
        let taken = (0..shape.channels).map(|_| AtomicBool::new(false)).collect();
        let region = Region::heap(layout.len);
        Ok(Self { region, layout, shape, offer, backing: Backing::Heap(taken) })
    }

    /// A region that workers' processes of the same user get over a socket at `path`, for as long as this lives. A socket
    /// left by an agent that no longer runs is replaced.
    ///
    /// # Errors
    /// When another agent runs at the path, when something else lies there, or when the system refuses.
    pub fn create(
        path: &Path,
        workers: &[Place],
        slots: usize,
        payload: usize,
    ) -> Result<Self, RegionError> {
        Self::create_for(path, workers, RegionShape { channels: workers.len(), slots, payload })
    }

    /// The same with as many channels as `shape` says; those behind the workers' are free.
    ///
    /// # Errors
    /// As [`WorkerRegion::create`].
    pub fn create_for(
        path: &Path,
        workers: &[Place],
        shape: RegionShape,
    ) -> Result<Self, RegionError> {
        let (offer, layout) = planned(workers, shape)?;
        let io = |error| RegionError::Io { path: path.to_owned(), error };
        socket_at(path)?; // also where nothing can be made beside it
        let name = NameLock::take(path).map_err(|error| taken(path, error))?;
        let left = socket_at(path)?;
        left.iter().try_for_each(|_| check_dead(path))?;
        let given = within_limits(|| anonymous(layout.len)).map_err(io)?;
        let memory = open_again(&given).map_err(io)?;
        lock(&memory, 0).map_err(io)?;
        let region = Region::shared(&given, layout.len).map_err(io)?;
        // Whoever connects before the server starts waits for it.
        let socket = Scratch::socket(path).map_err(io)?;
        let (socket, identity) = socket.put_at(path, left.is_some()).map_err(io)?;
        let server = AttachServer::open(socket, given, Arc::clone(&offer)).map_err(|error| {
            identity.remove_at(path);
            io(error)
        })?;
        let path = path.to_owned();
        let backing = Backing::Agent { server, memory, path, socket: identity, name };
        Ok(Self { region, layout, shape, offer, backing })
    }

    /// Gets the region of a running agent, whose socket lies at `path`.
    ///
    /// # Errors
    /// When there is none, when it does not answer, or when it is foreign, of another version or damaged.
    pub fn open(path: &Path) -> Result<Self, RegionError> {
        Self::open_within(path, attach::PATIENCE)
    }

    /// The same, for an agent that has so long to answer.
    ///
    /// # Errors
    /// As [`WorkerRegion::open`].
    pub fn open_within(path: &Path, patience: Duration) -> Result<Self, RegionError> {
        let Received { offer, memory, pid } =
            attach::ask(path, patience).map_err(|why| refused(path, why))?;
        let layout = Layout::new(&offer.shape);
        let region = Region::shared(&memory, layout.len).map_err(|error| {
            let path = path.to_owned();
            match error.kind() {
                io::ErrorKind::InvalidData => {
                    RegionError::Damaged { path, reason: error.to_string() }
                }
                _ => RegionError::Io { path, error },
            }
        })?;
        let (shape, offer) = (offer.shape, Arc::new(Mutex::new(offer)));
        Ok(Self { region, layout, shape, offer, backing: Backing::Worker { memory, pid } })
    }

    /// How much of everything there is.
    #[must_use]
    pub fn shape(&self) -> RegionShape {
        self.shape
    }

    /// The agent's process.
    #[must_use]
    pub fn pid(&self) -> u64 {
        match &self.backing {
            Backing::Heap(_) | Backing::Agent { .. } => std::process::id().into(),
            Backing::Worker { pid, .. } => *pid,
        }
    }

    /// The worker of a channel; none when it is free. In a worker's process as it was when the region was got.
    #[must_use]
    pub fn place(&self, channel: usize) -> Option<Place> {
        attach::locked(&self.offer).places[channel]
    }

    /// Offers a channel to a worker, or to nobody any more. Who is there already hears nothing of it, and who was told of
    /// the channel before is known by the name that it claims.
    pub fn offer(&self, channel: usize, place: Option<Place>) {
        attach::locked(&self.offer).places[channel] = place;
    }

    /// The dispatcher's end of a channel. Ask once for each.
    #[must_use]
    pub fn channel(&self, channel: usize) -> Channel {
        let sender = Sender::new(self.words(channel));
        Channel::new(channel, sender, self.sleep_word(channel), self.area(channel), self.shape())
    }

    /// Claims a channel for the worker that it returns; none when it has one, or is free.
    ///
    /// # Errors
    /// Those of the system.
    pub fn claim(self: &Arc<Self>, channel: usize) -> io::Result<Option<WorkerEnd>> {
        let Some(place) = self.place(channel) else { return Ok(None) };
        let held = match &self.backing {
            Backing::Heap(taken) => {
                if taken[channel].swap(true, AcqRel) {
                    return Ok(None);
                }
                ChannelLock::Heap { region: Arc::clone(self), channel }
            }
            // Locks are the open file's, so each worker opens it for itself.
            Backing::Agent { memory, .. } | Backing::Worker { memory, .. } => {
                let own = open_again(memory)?;
                match lock(&own, 1 + channel as i64) {
                    Ok(()) => ChannelLock::File { _file: own },
                    Err(error) if is_held(&error) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
        };
        let words = self.words(channel);
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        words.claim[claim::THREAD].store(u64::from(thread.unsigned_abs()), Relaxed);
        let receiver = Receiver::claim(words, std::process::id(), place.word());
        let (sleep, area) = (self.sleep_word(channel), self.area(channel));
        Ok(Some(WorkerEnd::new(receiver, sleep, area, self.shape(), place, held)))
    }

    /// The worker of this channel lives.
    #[must_use]
    pub fn has_worker(&self, channel: usize) -> bool {
        match &self.backing {
            Backing::Heap(taken) => taken[channel].load(Acquire),
            Backing::Agent { memory, .. } | Backing::Worker { memory, .. } => {
                is_locked(memory, 1 + channel as i64)
            }
        }
    }

    /// The agent lives.
    #[must_use]
    pub fn has_agent(&self) -> bool {
        match &self.backing {
            Backing::Heap(_) | Backing::Agent { .. } => true,
            Backing::Worker { memory, .. } => is_locked(memory, 0),
        }
    }

    /// The claim that the agent has granted on a channel, 0 for none.
    #[must_use]
    pub fn granted(&self, channel: usize) -> u64 {
        self.words(channel).control[control::GRANTED].load(Acquire)
    }

    /// What the worker of this channel tells of itself; none while nobody has the grant.
    #[must_use]
    pub fn worker(&self, channel: usize) -> Option<WorkerSeen> {
        let (words, place) = (self.words(channel), self.place(channel)?);
        let is_there = words.control[control::GRANTED].load(Acquire) != 0;
        is_there.then(|| WorkerSeen {
            place,
            process: words.claim[claim::PID].load(Relaxed) as u32,
            thread: words.claim[claim::THREAD].load(Relaxed) as u32,
            busy_ns: words.credit[credit::BUSY_NS].load(Relaxed),
        })
    }

    /// What the agent tells those who watch its workers.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::new(self.region.slice(self.layout.watch, watch::WORDS))
    }

    pub(super) fn words(&self, channel: usize) -> Words<Slice<AtomicU64>> {
        let at = self.layout.channel(channel);
        Words {
            control: self.region.slice(at.control, control::WORDS),
            claim: self.region.slice(at.claim, claim::WORDS),
            credit: self.region.slice(at.credit, credit::WORDS),
            slots: self.region.slice(at.slots, SLOT_WORDS * self.shape().slots),
        }
    }

    /// All words of the region, any of which a worker may write.
    #[must_use]
    pub fn memory(&self) -> Slice<AtomicU64> {
        self.region.slice(0, self.layout.len / 8)
    }

    fn sleep_word(&self, channel: usize) -> Slice<AtomicU32> {
        self.region.slice(self.layout.channel(channel).sleep, 1)
    }

    pub(super) fn area(&self, channel: usize) -> Slice<AtomicU64> {
        let len = self.shape().slots * self.shape().stride() / 8;
        self.region.slice(self.layout.channel(channel).area, len)
    }
}

impl Drop for WorkerRegion {
    fn drop(&mut self) {
        let Backing::Agent { server, path, socket, name, .. } = &mut self.backing else {
            return;
        };
        match name.is_own() {
            true => socket.remove_at(path),
            false => server.forget(),
        }
    }
}

/// Keeps other workers off a channel.
#[derive(Debug)]
pub(super) enum ChannelLock {
    Heap { region: Arc<WorkerRegion>, channel: usize },
    File { _file: File },
}

impl Drop for ChannelLock {
    fn drop(&mut self) {
        if let Self::Heap { region, channel } = self
            && let Backing::Heap(taken) = &region.backing
        {
            taken[*channel].store(false, Release);
        }
    }
}

fn planned(
    workers: &[Place],
    shape: RegionShape,
) -> Result<(Arc<Mutex<Offer>>, Layout), RegionError> {
    if !shape.is_possible() || workers.len() > shape.channels {
        return Err(RegionError::RegionShape(shape));
    }
    let mut places: Vec<_> = workers.iter().copied().map(Some).collect();
    places.resize(shape.channels, None);
    Ok((Arc::new(Mutex::new(Offer { shape, places })), Layout::new(&shape)))
}

/// Memory without a name, all of it there, which nobody can shorten or lengthen.
fn anonymous(len: usize) -> io::Result<File> {
    let name = "wedjat-workers";
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Systems that can want it said that nothing in it will be executed; others don't know the flag.
    let memory = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        result => result?,
    };
    rustix::fs::fchmod(&memory, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&memory, len as u64)?;
    rustix::fs::fallocate(&memory, FallocateFlags::empty(), 0, len as u64)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&memory, seals)?;
    Ok(File::from(memory))
}

/// Why the name of a region can't be had.
fn taken(path: &Path, error: NameError) -> RegionError {
    match error {
        NameError::Held(pid) => RegionError::InUse { path: path.to_owned(), pid },
        NameError::Foreign(path, found) => RegionError::Foreign { path, found },
        NameError::Io(error) => RegionError::Io { path: path.to_owned(), error },
    }
}

/// Makes sure that an agent could have its region at `path` now, as far as that shows without making anything.
///
/// # Errors
/// Those that [`WorkerRegion::create`] would have.
pub fn check_free(path: &Path) -> Result<(), RegionError> {
    let left = socket_at(path)?;
    NameLock::look(path).map_err(|error| taken(path, error))?;
    left.iter().try_for_each(|_| check_dead(path))
}

/// The socket of this user or root at `path`, which an agent may have left; none when nothing lies there.
fn socket_at(path: &Path) -> Result<Option<Found>, RegionError> {
    let found = Found::at(path);
    let found = found.map_err(|error| RegionError::Io { path: path.to_owned(), error })?;
    match found {
        Some(found) if !found.is_socket() || !found.is_own_or_roots() => {
            Err(RegionError::Foreign { path: path.to_owned(), found: found.describe() })
        }
        found => Ok(found),
    }
}

/// Makes sure that nobody listens at the socket at `path`.
fn check_dead(path: &Path) -> Result<(), RegionError> {
    match attach::ask(path, attach::PATIENCE) {
        Err(OfferError::Dead | OfferError::Missing) => Ok(()),
        // An agent whose lock somebody has removed.
        Ok(Received { pid, .. }) => {
            Err(RegionError::InUse { path: path.to_owned(), pid: Some(pid) })
        }
        Err(OfferError::Silent) => Err(RegionError::InUse { path: path.to_owned(), pid: None }),
        Err(why) => Err(refused(path, why)),
    }
}

/// What a worker is told.
fn refused(path: &Path, why: OfferError) -> RegionError {
    let path = path.to_owned();
    match why {
        OfferError::Missing => RegionError::Missing { path },
        OfferError::Foreign(found) => RegionError::Foreign { path, found },
        OfferError::Dead => RegionError::Dead { path },
        OfferError::Silent => RegionError::Silent { path },
        OfferError::Owner(user) => RegionError::Owner { path, whose: format!("user {user}'s") },
        OfferError::Io(error) => RegionError::Io { path, error },
        OfferError::Bad(InvalidOffer::Foreign) => {
            RegionError::Foreign { path, found: "a socket of another program".to_owned() }
        }
        OfferError::Bad(InvalidOffer::Version(found)) => RegionError::Version { path, found },
        OfferError::Bad(InvalidOffer::Refused) => {
            RegionError::Owner { path, whose: "another user's".to_owned() }
        }
        OfferError::Bad(InvalidOffer::Damaged(reason)) => RegionError::Damaged { path, reason },
    }
}
