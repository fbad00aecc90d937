//! Region shared by a dispatcher and its workers: memory of one process, or anonymous memory that worker
//! processes get from their agent by name ([`super::attach`]).
//!
//! The memory is sealed against resizing: no worker can take pages away from other processes. All its pages exist
//! from the start. Locks of its bytes show the live processes: the system releases them at the end of each process. The
//! dispatcher locks the first byte, the worker of channel i byte i + 1. A hole punched by a process reads as zeros.
//! Both ends treat it like other invalid content.
//!
//! A *channel* is the memory for one worker. A worker *claims* a free channel by its lock and a number, and the
//! dispatcher *grants* the claim. The *offer* names the worker of each channel.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags};
use rustix::io::Errno;

use super::attach::{self, AttachServer, InvalidOffer, Offer, OfferError, ReceivedOffer, VERSION};
use super::channel::Channel;
use super::layout::{Layout, RegionShape};
use super::lock::{ChannelLock, is_held, is_locked, lock};
use super::protocol::{
    ChannelWords, Receiver, SLOT_WORDS, Sender, WorkerIdentity, claim, control, credit,
};
use super::watch::{self, AgentStatusWords};
use super::worker_end::WorkerEnd;
use crate::state::files::{
    ExistingFile, FileIdentity, NameError, NameLock, Scratch, advice, open_again, within_limits,
};
use crate::state::region::{Region, Slice};

/// Folder of the sockets of agents whose name has no slash.
const FOLDER: &str = "/dev/shm";

/// Reason why a region cannot be created or attached to.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The system refused.
    #[error("worker region {path}: {error}{}", advice(error))]
    Io {
        /// Socket of the agent.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// Another agent uses the path.
    #[error(
        "worker region {path}: in use by a running agent{}; stop that one or give this one another `name`",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse {
        /// Socket of the agent.
        path: PathBuf,
        /// Process that uses it, if known.
        pid: Option<u64>,
    },
    /// There is no such agent.
    #[error(
        "worker region {path}: does not exist; start the agent first, or attach to the `name` of its configuration"
    )]
    Missing {
        /// Socket of the agent.
        path: PathBuf,
    },
    /// The region's agent has ended without removing its socket.
    #[error("worker region {path}: its agent has stopped; start it")]
    Dead {
        /// Socket of the agent.
        path: PathBuf,
    },
    /// The agent does not answer.
    #[error(
        "worker region {path}: its agent does not answer; check that it is not suspended or out of descriptors (`ulimit -n`)"
    )]
    Silent {
        /// Socket of the agent.
        path: PathBuf,
    },
    /// The path holds something else.
    #[error(
        "worker region {path}: not a region of wedjat workers but {found}; it is left alone, use another name"
    )]
    Foreign {
        /// Path.
        path: PathBuf,
        /// Contents found there.
        found: String,
    },
    /// Worker and agent have different users.
    #[error("worker region {path}: its agent is {whose}; run agent and workers as one user")]
    Owner {
        /// Socket of the agent.
        path: PathBuf,
        /// User of the agent.
        whose: String,
    },
    /// The region has another layout version.
    #[error(
        "worker region {path}: layout version {found}, this program uses version {VERSION}; build worker and agent from the same release"
    )]
    Version {
        /// Socket of the agent.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// The agent's offer or its memory is invalid.
    #[error("worker region {path}: damaged ({reason}); restart the agent that owns it")]
    Damaged {
        /// Socket of the agent.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// The shape is impossible, or has fewer channels than workers.
    #[error(
        "worker region: {0:?} is impossible; use fewer workers, slots (a power of two) or bytes"
    )]
    RegionShape(RegionShape),
}

/// State of a worker, as observers of the agent's region see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Identity.
    pub identity: WorkerIdentity,
    /// Process.
    pub process: u32,
    /// Thread that attached.
    pub thread: u32,
    /// Nanoseconds worked since it attached.
    pub busy_ns: u64,
}

/// Memory shared by a dispatcher and its workers: a channel for each worker, and for future ones.
#[derive(Debug)]
pub struct WorkerRegion {
    /// Mapped memory.
    region: Arc<Region>,
    /// Offsets of the channels and the watch words.
    layout: Layout,
    shape: RegionShape,
    /// Offered channels. The agent changes them, and its attach thread reads them.
    offer: Arc<Mutex<Offer>>,
    /// Origin of the memory, and this process's role.
    backing: Backing,
}

/// Origin of a region's memory.
#[derive(Debug)]
enum Backing {
    /// Memory of this process. The flag of a channel is true while it has a worker.
    Heap(Arc<[AtomicBool]>),
    /// Memory of an agent, in its own process.
    Agent {
        /// Thread that passes the memory to workers.
        server: AttachServer,
        /// Open file for the agent's lock, which no worker receives.
        memory: File,
        /// Path of the socket.
        path: PathBuf,
        /// The socket file, so that only this one is removed at the end.
        socket: FileIdentity,
        /// Lock of the path; released last.
        name: NameLock,
    },
    /// Memory of an agent, in a worker's process; `pid` is the agent's.
    Worker { memory: File, pid: u64 },
}

/// Maximum length of an agent's socket path in bytes: a Unix socket address has room for 108 with the final zero.
pub const PATH_MAX: usize = 107;

/// Returns the socket path of an agent: the name itself if it contains a slash.
#[must_use]
pub fn path_of(name: &str) -> PathBuf {
    match name.contains('/') {
        true => PathBuf::from(name),
        false => Path::new(FOLDER).join(format!("wedjat-{name}")),
    }
}

impl WorkerRegion {
    /// Creates a region in this process's own memory, for worker threads.
    ///
    /// # Errors
    /// If the shape is impossible.
    pub fn heap(
        workers: &[WorkerIdentity],
        slots: usize,
        payload: usize,
    ) -> Result<Self, RegionError> {
        Self::heap_for(workers, RegionShape { channels: workers.len(), slots, payload })
    }

    /// Same as [`WorkerRegion::heap`], with the channels of `shape`. Channels beyond the workers' are free, for
    /// workers that are configured later.
    ///
    /// # Errors
    /// If the shape is impossible, or there are more workers than channels.
    pub fn heap_for(workers: &[WorkerIdentity], shape: RegionShape) -> Result<Self, RegionError> {
        let (offer, layout) = plan(workers, shape)?;
        let taken = (0..shape.channels).map(|_| AtomicBool::new(false)).collect();
        let region = Region::heap(layout.len);
        Ok(Self { region, layout, shape, offer, backing: Backing::Heap(taken) })
    }

    /// Creates a region for worker processes of the same user. They get it over a socket at `path` until it is
    /// dropped. Replaces the socket of an agent that no longer runs.
    ///
    /// # Errors
    /// If the shape is impossible, another agent uses the path, the path holds something else, or the system refuses.
    pub fn create(
        path: &Path,
        workers: &[WorkerIdentity],
        slots: usize,
        payload: usize,
    ) -> Result<Self, RegionError> {
        Self::create_for(path, workers, RegionShape { channels: workers.len(), slots, payload })
    }

    /// Same as [`WorkerRegion::create`], with the channels of `shape`. Channels beyond the workers' are free, for
    /// workers that are configured later.
    ///
    /// # Errors
    /// Same as for [`WorkerRegion::create`].
    pub fn create_for(
        path: &Path,
        workers: &[WorkerIdentity],
        shape: RegionShape,
    ) -> Result<Self, RegionError> {
        let (offer, layout) = plan(workers, shape)?;
        let io = |error| RegionError::Io { path: path.to_owned(), error };
        socket_at(path)?; // reports a foreign file before anything is created, also in a read-only folder
        let name = NameLock::take(path).map_err(|error| name_error(path, error))?;
        let old_socket = socket_at(path)?; // again, under the lock
        old_socket.iter().try_for_each(|_| check_dead(path))?;
        let offered = within_limits(|| anonymous(layout.len)).map_err(io)?;
        let memory = open_again(&offered).map_err(io)?;
        lock(&memory, 0).map_err(io)?; // shows that the agent lives
        let region = Region::shared(&offered, layout.len).map_err(io)?;
        // Clients that connect before the server starts wait for it.
        let socket = Scratch::socket(path).map_err(io)?;
        let (socket, identity) = socket.put_at(path, old_socket.is_some()).map_err(io)?;
        let server = AttachServer::open(socket, offered, Arc::clone(&offer)).map_err(|error| {
            identity.remove_at(path);
            io(error)
        })?;
        let path = path.to_owned();
        let backing = Backing::Agent { server, memory, path, socket: identity, name };
        Ok(Self { region, layout, shape, offer, backing })
    }

    /// Gets the region of a running agent with its socket at `path`, in a worker's or an observer's process.
    ///
    /// # Errors
    /// If there is none, it has stopped, it does not answer, it belongs to another user, the system refuses, or the
    /// region is foreign, damaged or of another version.
    pub fn open(path: &Path) -> Result<Self, RegionError> {
        Self::open_within(path, attach::OFFER_TIMEOUT)
    }

    /// Same as [`WorkerRegion::open`], with a limit on the agent's response time.
    ///
    /// # Errors
    /// Same as for [`WorkerRegion::open`].
    pub fn open_within(path: &Path, timeout: Duration) -> Result<Self, RegionError> {
        let ReceivedOffer { offer, memory, pid } =
            attach::request_offer(path, timeout).map_err(|error| offer_error(path, error))?;
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

    /// Returns the dimensions.
    #[must_use]
    pub fn shape(&self) -> RegionShape {
        self.shape
    }

    /// Returns the agent's process id.
    #[must_use]
    pub fn pid(&self) -> u64 {
        match &self.backing {
            Backing::Heap(_) | Backing::Agent { .. } => std::process::id().into(),
            Backing::Worker { pid, .. } => *pid,
        }
    }

    /// Returns the worker to which a channel is offered; `None` if it is free. A process other than the agent sees the
    /// state at [`WorkerRegion::open`].
    #[must_use]
    pub fn identity(&self, channel: usize) -> Option<WorkerIdentity> {
        attach::locked(&self.offer).identities[channel]
    }

    /// Offers a channel to a worker, or to none. An attached worker is not affected. A worker that received an
    /// earlier offer claims the channel under its own identity, and the dispatcher compares it with the current one.
    pub fn offer(&self, channel: usize, identity: Option<WorkerIdentity>) {
        attach::locked(&self.offer).identities[channel] = identity;
    }

    /// Returns the dispatcher's end of a channel. Call it once per channel.
    #[must_use]
    pub fn channel(&self, channel: usize) -> Channel {
        let sender = Sender::new(self.words(channel));
        Channel::new(channel, sender, self.sleep_word(channel), self.area(channel), self.shape())
    }

    /// Claims a channel for the worker to which it is offered, and returns the worker's end. `None` if a worker has
    /// it already, or it is offered to none.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn claim(&self, channel: usize) -> io::Result<Option<WorkerEnd>> {
        let Some(identity) = self.identity(channel) else { return Ok(None) };
        let channel_lock = match &self.backing {
            Backing::Heap(taken) => {
                // Acquire pairs with the Release of the previous worker, which has then written everything.
                if taken[channel].swap(true, AcqRel) {
                    return Ok(None);
                }
                ChannelLock::Heap { taken: Arc::clone(taken), channel }
            }
            // Locks belong to the open file, so each worker opens it separately.
            Backing::Agent { memory, .. } | Backing::Worker { memory, .. } => {
                let file = open_again(memory)?;
                match lock(&file, 1 + channel as i64) {
                    Ok(()) => ChannelLock::File { _file: file },
                    Err(error) if is_held(&error) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
        };
        let words = self.words(channel);
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        words.claim[claim::THREAD].store(u64::from(thread.unsigned_abs()), Relaxed);
        let receiver = Receiver::claim(words, std::process::id(), identity.word());
        let (sleep, area) = (self.sleep_word(channel), self.area(channel));
        Ok(Some(WorkerEnd::new(receiver, sleep, area, self.shape(), identity, channel_lock)))
    }

    /// Returns true if the worker of this channel is alive, or the system cannot tell.
    #[must_use]
    pub fn has_worker(&self, channel: usize) -> bool {
        match &self.backing {
            Backing::Heap(taken) => taken[channel].load(Acquire),
            Backing::Agent { memory, .. } | Backing::Worker { memory, .. } => {
                is_locked(memory, 1 + channel as i64)
            }
        }
    }

    /// Returns true if the agent is alive, or the system cannot tell.
    #[must_use]
    pub fn has_agent(&self) -> bool {
        match &self.backing {
            Backing::Heap(_) | Backing::Agent { .. } => true,
            Backing::Worker { memory, .. } => is_locked(memory, 0),
        }
    }

    /// Returns the granted claim of a channel; 0 for none. It differs from worker to worker, so a caller detects a
    /// successor.
    #[must_use]
    pub fn granted(&self, channel: usize) -> u64 {
        self.words(channel).control[control::GRANTED].load(Acquire)
    }

    /// Returns true if the worker with this granted claim has left the channel in order.
    #[must_use]
    pub fn has_left(&self, channel: usize, granted: u64) -> bool {
        let words = self.words(channel);
        // A worker that leaves during its revocation clears its claim's bit only.
        words.claim[claim::LEFT].load(Acquire) == granted
            || words.claim[claim::CLAIM].load(Acquire) == granted & !claim::ATTACHED
    }

    /// Returns the state of a channel's worker; `None` without a grant, or while the channel is offered to no worker.
    #[must_use]
    pub fn worker(&self, channel: usize) -> Option<WorkerStatus> {
        let (words, identity) = (self.words(channel), self.identity(channel)?);
        let is_granted = words.control[control::GRANTED].load(Acquire) != 0;
        is_granted.then(|| WorkerStatus {
            identity,
            process: words.claim[claim::PID].load(Relaxed) as u32,
            thread: words.claim[claim::THREAD].load(Relaxed) as u32,
            busy_ns: words.credit[credit::BUSY_NS].load(Relaxed),
        })
    }

    /// Returns the words in which the agent publishes its state to observers.
    #[must_use]
    pub fn watch(&self) -> AgentStatusWords {
        AgentStatusWords::new(self.region.slice(self.layout.watch, watch::WORDS))
    }

    /// Returns the shared words of a channel.
    pub(super) fn words(&self, channel: usize) -> ChannelWords<Slice<AtomicU64>> {
        let offsets = self.layout.channel(channel);
        ChannelWords {
            control: self.region.slice(offsets.control, control::WORDS),
            claim: self.region.slice(offsets.claim, claim::WORDS),
            credit: self.region.slice(offsets.credit, credit::WORDS),
            slots: self.region.slice(offsets.slots, SLOT_WORDS * self.shape().slots),
            completed: self.region.slice(offsets.completed, self.shape().slots),
        }
    }

    /// Returns all words of the region, for tests that overwrite them as a faulty worker may.
    #[must_use]
    pub fn memory(&self) -> Slice<AtomicU64> {
        self.region.slice(0, self.layout.len / 8)
    }

    /// Returns the word in which a channel's worker stores that it sleeps.
    fn sleep_word(&self, channel: usize) -> Slice<AtomicU32> {
        self.region.slice(self.layout.channel(channel).sleep, 1)
    }

    /// Returns the words for the bytes of a channel's tasks and replies.
    pub(super) fn area(&self, channel: usize) -> Slice<AtomicU64> {
        let len = self.shape().slots * self.shape().stride() / 8;
        self.region.slice(self.layout.channel(channel).area, len)
    }
}

impl Drop for WorkerRegion {
    /// Removes the socket of an agent that ends, so that workers no longer find it.
    fn drop(&mut self) {
        let Backing::Agent { server, path, socket, name, .. } = &mut self.backing else {
            return;
        };
        // The lock of the name is not this process's in a forked child, which must leave the agent's socket alone.
        match name.is_own() {
            true => socket.remove_at(path),
            false => server.forget(),
        }
    }
}

/// Returns the initial offer and the layout of a region. The first channels belong to `workers`; further ones
/// are free.
fn plan(
    workers: &[WorkerIdentity],
    shape: RegionShape,
) -> Result<(Arc<Mutex<Offer>>, Layout), RegionError> {
    if !shape.is_possible() || workers.len() > shape.channels {
        return Err(RegionError::RegionShape(shape));
    }
    let mut identities: Vec<_> = workers.iter().copied().map(Some).collect();
    identities.resize(shape.channels, None);
    Ok((Arc::new(Mutex::new(Offer { shape, identities })), Layout::new(&shape)))
}

/// Creates anonymous memory with all pages allocated, sealed against resizing.
fn anonymous(len: usize) -> io::Result<File> {
    let name = "wedjat-workers";
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Some systems require a declaration that the memory is not executable; others do not know the flag.
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

/// Returns the error for a region name that cannot be locked.
fn name_error(path: &Path, error: NameError) -> RegionError {
    match error {
        NameError::Held(pid) => RegionError::InUse { path: path.to_owned(), pid },
        NameError::Foreign(path, found) => RegionError::Foreign { path, found },
        NameError::Io(error) => RegionError::Io { path: path.to_owned(), error },
    }
}

/// Checks the path for a new agent's region, as far as possible without creating anything.
///
/// # Errors
/// If another agent uses the path, the path holds something else, or the system refuses.
pub fn check_free(path: &Path) -> Result<(), RegionError> {
    let old_socket = socket_at(path)?;
    NameLock::look(path).map_err(|error| name_error(path, error))?;
    old_socket.iter().try_for_each(|_| check_dead(path))
}

/// Returns this user's or root's socket at `path`, perhaps of a former agent; `None` if the path is free.
fn socket_at(path: &Path) -> Result<Option<ExistingFile>, RegionError> {
    let found = ExistingFile::at(path);
    let found = found.map_err(|error| RegionError::Io { path: path.to_owned(), error })?;
    match found {
        Some(found) if !found.is_socket() || !found.is_own_or_roots() => {
            Err(RegionError::Foreign { path: path.to_owned(), found: found.describe() })
        }
        found => Ok(found),
    }
}

/// Checks that no one listens at the socket at `path`, by a request for an offer.
fn check_dead(path: &Path) -> Result<(), RegionError> {
    match attach::request_offer(path, attach::OFFER_TIMEOUT) {
        Err(OfferError::Dead | OfferError::Missing) => Ok(()),
        // An agent runs, and only its lock file was removed.
        Ok(ReceivedOffer { pid, .. }) => {
            Err(RegionError::InUse { path: path.to_owned(), pid: Some(pid) })
        }
        Err(OfferError::Silent) => Err(RegionError::InUse { path: path.to_owned(), pid: None }),
        Err(error) => Err(offer_error(path, error)),
    }
}

/// Returns the error for a process that got no offer.
fn offer_error(path: &Path, error: OfferError) -> RegionError {
    let path = path.to_owned();
    match error {
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
