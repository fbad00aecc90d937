//! Attachment of a worker's process to the region of its agent. A thread of the agent passes the memory's
//! descriptor over a socket.
//!
//! The *agent* is the process on a worker host that gives tasks to workers. Its *region* is memory shared with them,
//! with a *channel* for each worker. Below, a *peer* is the remote process of a socket.
//!
//! The socket lies at the path of the agent's name. Its mode admits only the agent's user and root, and the agent
//! also checks each peer's user. It sends the peer one message, an [`Offer`] with the descriptor or a refusal, and
//! closes the connection. The peer sends nothing, so it cannot delay the agent, and costs two descriptors only for
//! that time. The offer holds all data that a worker needs to attach. The memory itself holds only the channels and
//! the agent's published state, so no worker can corrupt another's attachment.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::layout::{CHANNELS_MAX, RegionShape};
use super::protocol::WorkerIdentity;
use crate::outage::Outage;
use crate::state::files::{self, ExistingFile, open_again};

/// First word of an offer and of a refusal: the bytes "WEDJATwk".
const MAGIC: u64 = u64::from_le_bytes(*b"WEDJATwk");
/// Version of the offer, of the region's layout and of the channels' words.
pub const VERSION: u64 = 6;
/// Word of a free channel in an offer.
const FREE: u64 = u64::MAX;
/// Number of words at the start of an offer, before one word per channel.
const HEAD_WORDS: usize = 5;
/// Default time limit for an agent's answer. An agent that exceeds it is stopped or overloaded.
pub const OFFER_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum and maximum of a socket timeout. The system does not accept 0.
const TIMEOUTS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1 << 30));
/// Pause before the next peer is accepted after an error, for example for lack of descriptors or memory.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Message from an agent to a worker about its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Shape of the region: its numbers of channels and slots, and the length of a payload.
    pub shape: RegionShape,
    /// Worker of each channel; `None` for a free one.
    pub identities: Vec<Option<WorkerIdentity>>,
}

/// Reason why an offer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidOffer {
    /// Not an offer.
    Foreign,
    /// Offer of this other version.
    Version(u64),
    /// The agent makes no offer to this user.
    Refused,
    /// Damaged offer, with a description of the fault.
    Damaged(String),
}

impl Offer {
    /// Encodes the offer.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let RegionShape { channels, slots, payload } = self.shape;
        let head = [MAGIC, VERSION, channels as u64, slots as u64, payload as u64];
        let identities =
            self.identities.iter().map(|identity| identity.map_or(FREE, WorkerIdentity::word));
        head.into_iter().chain(identities).flat_map(u64::to_le_bytes).collect()
    }

    /// Decodes a received offer and checks it.
    ///
    /// # Errors
    /// If the offer cannot be valid, or the message is a refusal.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidOffer> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<_> = words.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let (head, identities) = match words[..] {
            [MAGIC, VERSION] if rest.is_empty() => return Err(InvalidOffer::Refused),
            [MAGIC, VERSION, ..] if words.len() > HEAD_WORDS && rest.is_empty() => {
                words.split_at(HEAD_WORDS)
            }
            [MAGIC, VERSION, ..] => {
                return Err(InvalidOffer::Damaged(format!("an offer of {} bytes", bytes.len())));
            }
            [MAGIC, version, ..] => return Err(InvalidOffer::Version(version)),
            _ => return Err(InvalidOffer::Foreign),
        };
        let shape = RegionShape {
            channels: head[2] as usize,
            slots: head[3] as usize,
            payload: head[4] as usize,
        };
        if !shape.is_possible() || shape.channels != identities.len() {
            let text = format!("{shape:?} with {} identities", identities.len());
            return Err(InvalidOffer::Damaged(text));
        }
        let identity = |word: &u64| match *word {
            FREE => Ok(None),
            word => {
                let identity = WorkerIdentity { id: (word >> 32) as u16, pool: word as u16 };
                let damaged = || InvalidOffer::Damaged(format!("the identity {word:#x}"));
                if identity.word() == word { Ok(Some(identity)) } else { Err(damaged()) }
            }
        };
        let identities = identities.iter().map(identity).collect::<Result<_, _>>()?;
        Ok(Self { shape, identities })
    }

    /// Encodes the refusal to a peer of another user: the first two words of an offer.
    fn refusal() -> Vec<u8> {
        [MAGIC, VERSION].into_iter().flat_map(u64::to_le_bytes).collect()
    }
}

/// Locks an offer that another thread may change. Ignores a poisoned lock: a thread that panicked with it had not begun
/// a change.
pub(super) fn locked(offer: &Mutex<Offer>) -> MutexGuard<'_, Offer> {
    offer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reason why a socket gave no offer.
#[derive(Debug)]
pub enum OfferError {
    /// Nothing at the path.
    Missing,
    /// Another kind of file or socket at the path, with its description.
    Foreign(String),
    /// No process listens any more.
    Dead,
    /// No answer in time, or the end of the connection without one.
    Silent,
    /// The socket or the agent belongs to another user, with this number.
    Owner(u32),
    /// The agent sent an invalid offer or a refusal.
    Bad(InvalidOffer),
    /// System error.
    Io(io::Error),
}

impl From<io::Error> for OfferError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for OfferError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// Offer, memory and process of an agent.
#[derive(Debug)]
pub struct ReceivedOffer {
    /// Offer of its region.
    pub offer: Offer,
    /// Memory of its region.
    pub memory: File,
    /// Number of its process.
    pub pid: u64,
}

/// Requests the offer of the agent with the socket at `path`. Waits at most `timeout` for the connection, and as long
/// for the offer. Refuses an agent of another user except root.
///
/// # Errors
/// If there is no valid offer of a trusted agent in time, or a system call fails.
pub fn request_offer(path: &Path, timeout: Duration) -> Result<ReceivedOffer, OfferError> {
    let found = ExistingFile::behind(path)?.ok_or(OfferError::Missing)?;
    if !found.is_socket() {
        return Err(OfferError::Foreign(found.describe()));
    }
    let timeout = timeout.clamp(TIMEOUTS.0, TIMEOUTS.1);
    let socket = connect(&found, timeout)?;
    let agent = peer(&socket)?;
    if !is_trusted(agent.uid) {
        // Otherwise tasks of another user would run with this user's rights.
        return Err(OfferError::Owner(agent.uid));
    }
    let (bytes, memory) = receive(&socket, timeout)?;
    let offer = Offer::parse(&bytes).map_err(OfferError::Bad)?;
    let missing = || OfferError::Bad(InvalidOffer::Damaged("an offer without memory".to_owned()));
    let memory = memory.ok_or_else(missing)?;
    Ok(ReceivedOffer { offer, memory, pid: agent.pid as u64 })
}

/// Returns the peer's credentials from the system. The process number is 0 if it is not visible from here.
fn peer(socket: &OwnedFd) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    let (value, len) = ((&raw mut peer).cast(), &raw mut len);
    // SAFETY: the descriptor is open, and `len` is the size of the memory at `value`, which may hold any
    // numbers.
    let status = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, value, len)
    };
    if status == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
}

/// Returns true if `user` may share memory with this process: its own user or root.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Calls `attempt`, a system call on the socket, again as long as signals interrupt it. Fails with
/// [`Errno::AGAIN`] after `timeout` over all calls. `kind` is the limit of the socket that applies to the call.
fn retried<T>(
    socket: &OwnedFd,
    kind: Timeout,
    timeout: Duration,
    mut attempt: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let end = Instant::now() + timeout;
    let mut left = timeout;
    loop {
        set_socket_timeout(socket, kind, Some(left.max(TIMEOUTS.0)))?;
        match attempt() {
            Err(Errno::INTR) => {}
            other => return other,
        }
        left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::AGAIN);
        }
    }
}

/// Connects to an agent's socket within `timeout`.
fn connect(found: &ExistingFile, timeout: Duration) -> Result<OwnedFd, OfferError> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let address = SocketAddrUnix::new(found.path())?;
    // A connection that a signal interrupts has not begun: the next call starts anew.
    let connect = || rustix::net::connect(&socket, &address);
    match retried(&socket, Timeout::Send, timeout, connect) {
        Ok(()) => Ok(socket),
        Err(Errno::CONNREFUSED) => Err(OfferError::Dead),
        Err(Errno::AGAIN) => Err(OfferError::Silent),
        Err(Errno::ACCESS) => Err(OfferError::Owner(found.owner())),
        Err(Errno::PROTOTYPE) => {
            Err(OfferError::Foreign(format!("{} of another program", found.describe())))
        }
        Err(error) => Err(error.into()),
    }
}

/// Receives an offer's bytes within `timeout`, and the memory's descriptor, if one came with them.
fn receive(socket: &OwnedFd, timeout: Duration) -> Result<(Vec<u8>, Option<File>), OfferError> {
    let mut bytes = vec![0; 8 * (HEAD_WORDS + CHANNELS_MAX)];
    // Room for one descriptor, and by alignment for a few more, which the loop below closes. The system discards the
    // rest.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retried(socket, Timeout::Recv, timeout, || {
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let received = match received {
        Err(Errno::AGAIN) => return Err(OfferError::Silent),
        other => other?,
    };
    // The agent closed the connection without an offer, for example for lack of descriptors.
    if received.bytes == 0 {
        return Err(OfferError::Silent);
    }
    bytes.truncate(received.bytes);
    let mut memory = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            memory = descriptors.into_iter().map(File::from).next();
        }
    }
    Ok((bytes, memory))
}

/// Thread of an agent that passes its region to workers, because the polling core makes no system calls.
#[derive(Debug)]
pub struct AttachServer {
    /// Event that stops the thread.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl AttachServer {
    /// Starts the thread. It sends `memory` and the current offer to each peer that connects to the listening
    /// `socket`.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn open(socket: OwnedFd, memory: File, offer: Arc<Mutex<Offer>>) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let thread = std::thread::Builder::new().name("wedjat-attach".to_owned()).spawn({
            let stop = Arc::clone(&stop);
            move || {
                files::block_signals();
                serve(&socket, &stop, &memory, &offer);
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Forgets the thread, so that the drop does not wait for it. For a forked child process, which does not have the
    /// thread.
    pub fn forget(&mut self) {
        std::mem::forget(self.thread.take());
    }
}

impl Drop for AttachServer {
    /// Stops the thread and waits for its end.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
            let _ = thread.join();
        }
    }
}

/// Accepts peers and sends them the offer until `stop` is set. The body of the attach thread.
fn serve(socket: &OwnedFd, stop: &OwnedFd, memory: &File, offer: &Mutex<Offer>) {
    let mut outage = Outage::default();
    loop {
        let mut events = [PollFd::new(stop, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
        match poll(&mut events, None) {
            Ok(_) if !events[0].revents().is_empty() => return,
            Ok(_) => {}
            Err(_) => continue,
        }
        match rustix::net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(peer) => {
                if let Some(count) = outage.works(Instant::now()) {
                    log::info!("workers can attach again after {count} failures");
                }
                let offer = locked(offer).to_bytes();
                match hand_over(&peer, memory, &offer) {
                    // A peer was accepted, but no descriptor is left for its memory. The next arm logs the first such
                    // failure of an outage, but no later one.
                    Err(error)
                        if files::has_no_descriptor(&error) && !outage.fails(Instant::now()) => {}
                    Err(error) => log::warn!("a worker could not be given the region: {error}"),
                    Ok(()) => {}
                }
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => {
                if outage.fails(Instant::now()) {
                    let error = io::Error::from(error);
                    log::warn!("no worker can attach: {error}{}; retried", files::advice(&error));
                }
                // Pauses, but not after a stop request.
                let _ = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&PAUSE));
            }
        }
    }
}

/// Sends a peer the offer and the memory's descriptor without blocking. A peer of another user gets only a refusal, and
/// the call returns an error for the log.
fn hand_over(peer: &OwnedFd, memory: &File, offer: &[u8]) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let user = self::peer(peer)?.uid;
    if !is_trusted(user) {
        rustix::net::sendmsg(peer, &[IoSlice::new(&Offer::refusal())], &mut control, flags)?;
        let text = format!("its process is user {user}'s");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    // A worker of the same user can change the mode. Later workers must still be able to open the memory.
    rustix::fs::fchmod(memory, Mode::RUSR | Mode::WUSR)?;
    // A separate open file, because locks belong to the open file: a worker cannot touch another worker's locks.
    let file = open_again(memory)?;
    let rights = [file.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&rights));
    rustix::net::sendmsg(peer, &[IoSlice::new(offer)], &mut control, flags)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_same_user_are_trusted() {
        let own = rustix::process::geteuid().as_raw();
        assert!(is_trusted(own) && is_trusted(0));
        assert!([1, 2].into_iter().all(|more| !is_trusted(own + more)));
    }

    #[cfg(not(miri))]
    #[test]
    fn signals_do_not_prolong_a_wait() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let mut calls = 0;
        let result = retried(&socket, Timeout::Recv, crate::TIMEOUT, || {
            calls += 1;
            if calls < 3 { Err(Errno::INTR) } else { Ok(calls) }
        });
        assert_eq!(result, Ok(3));
        let (began, timeout) = (Instant::now(), Duration::from_millis(2));
        let result = retried(&socket, Timeout::Send, timeout, || Err::<(), _>(Errno::INTR));
        assert_eq!(result, Err(Errno::AGAIN));
        assert!(began.elapsed() >= timeout);
    }
}
