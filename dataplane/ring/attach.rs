//! How a worker's process gets the region of its agent: over a socket, on which a thread of the agent hands out the
//! memory's descriptor.
//!
//! At the path of an agent's name lies a socket that only its user can connect to. Who connects is sent one message, an
//! [`Offer`], with the descriptor, and the connection is closed: nobody has to say anything, so nobody can hold the
//! agent up, and a peer costs two descriptors for as long as that takes. What a worker must know to attach is in
//! the message. The memory itself holds nothing but the channels, so no other worker can spoil it by what he writes.
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
use super::region::Place;
use crate::outage::Outage;
use crate::state::files::{self, Found, open_again};

/// "WEDJATwk": a region of workers, of a little-endian machine.
const MAGIC: u64 = u64::from_le_bytes(*b"WEDJATwk");
/// Version of the offer, of the region's layout and of the channels' words.
pub const VERSION: u64 = 5;
/// The word of a channel that is nobody's.
const NOBODY: u64 = u64::MAX;
/// Words of an offer before those of the places.
const WORDS: usize = 5;
/// An agent that has not answered after so long is stopped or overloaded, unless its worker is more patient.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// What the system takes as a time of waiting, and no time at all is not among it.
const WAITS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1 << 30));
/// Before a peer is accepted again when descriptors or memory are used up.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// What an agent tells a worker of its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// How much of everything there is.
    pub shape: RegionShape,
    /// The worker of each channel; none when it is free.
    pub places: Vec<Option<Place>>,
}

/// Why a worker can't use an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidOffer {
    /// It is none.
    Foreign,
    /// It is of this other version.
    Version(u64),
    /// The agent has no offer for this user.
    Refused,
    /// What is wrong with it.
    Damaged(String),
}

impl Offer {
    /// As it is sent.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let RegionShape { channels, slots, payload } = self.shape;
        let head = [MAGIC, VERSION, channels as u64, slots as u64, payload as u64];
        let places = self.places.iter().map(|place| place.map_or(NOBODY, Place::word));
        head.into_iter().chain(places).flat_map(u64::to_le_bytes).collect()
    }

    /// What was received, believed only if it can be.
    ///
    /// # Errors
    /// Why it can't.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidOffer> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<_> = words.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let (head, places) = match words[..] {
            [MAGIC, VERSION] if rest.is_empty() => return Err(InvalidOffer::Refused),
            [MAGIC, VERSION, ..] if words.len() > WORDS && rest.is_empty() => words.split_at(WORDS),
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
        if !shape.is_possible() || shape.channels != places.len() {
            let text = format!("{shape:?} with {} places", places.len());
            return Err(InvalidOffer::Damaged(text));
        }
        let place = |word: &u64| match *word {
            NOBODY => None,
            word => Some(Place { id: (word >> 32) as u16, pool: word as u16 }),
        };
        Ok(Self { shape, places: places.iter().map(place).collect() })
    }

    /// What a peer is sent that may have none.
    fn refusal() -> Vec<u8> {
        [MAGIC, VERSION].into_iter().flat_map(u64::to_le_bytes).collect()
    }
}

/// An offer that another thread may change; whoever panicked with it had not begun to.
pub(super) fn locked(offer: &Mutex<Offer>) -> MutexGuard<'_, Offer> {
    offer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a socket gave no offer.
#[derive(Debug)]
pub enum OfferError {
    /// Nothing lies there.
    Missing,
    /// Something else lies there: this.
    Foreign(String),
    /// Nobody listens any more.
    Dead,
    /// Nothing was said in time.
    Silent,
    /// It is another user's, who has this number.
    Owner(u32),
    /// What was said can't be used.
    Bad(InvalidOffer),
    /// The system refused.
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

/// What an agent gave.
#[derive(Debug)]
pub struct Received {
    /// Of its region.
    pub offer: Offer,
    /// Its region's memory.
    pub memory: File,
    /// Its process.
    pub pid: u64,
}

/// Asks the agent whose socket lies at `path`, and waits so long for it at most.
///
/// # Errors
/// Why there is no offer.
pub fn ask(path: &Path, patience: Duration) -> Result<Received, OfferError> {
    let found = Found::behind(path)?.ok_or(OfferError::Missing)?;
    if !found.is_socket() {
        return Err(OfferError::Foreign(found.describe()));
    }
    let socket = connect(&found, patience.clamp(WAITS.0, WAITS.1))?;
    let agent = peer(&socket)?;
    if !is_trusted(agent.uid) {
        // Its tasks would be done with this user's rights.
        return Err(OfferError::Owner(agent.uid));
    }
    let (bytes, memory) = receive(&socket)?;
    let offer = Offer::parse(&bytes).map_err(OfferError::Bad)?;
    let missing = || OfferError::Bad(InvalidOffer::Damaged("an offer without memory".to_owned()));
    let memory = memory.ok_or_else(missing)?;
    Ok(Received { offer, memory, pid: agent.pid as u64 })
}

/// Who is at the other end, as the system knows; process 0 when it is not visible from here.
fn peer(socket: &OwnedFd) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    let (at, len) = ((&raw mut peer).cast(), &raw mut len);
    // SAFETY: the descriptor is open, and `len` is the size of the memory at `at`, which may hold any numbers.
    let done = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, at, len)
    };
    if done == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
}

/// This process's user and root may share memory with it.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

fn connect(found: &Found, patience: Duration) -> Result<OwnedFd, OfferError> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(found.path())?) {
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

fn receive(socket: &OwnedFd) -> Result<(Vec<u8>, Option<File>), OfferError> {
    let mut bytes = vec![0; 8 * (WORDS + CHANNELS_MAX)];
    // Room for one: the system closes those beyond it.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(OfferError::Silent),
            other => break other?,
        }
    };
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

/// The thread of an agent that hands its region out.
#[derive(Debug)]
pub struct AttachServer {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl AttachServer {
    /// Offers `memory` to whoever connects to `socket`, which listens, with the offer of that moment.
    ///
    /// # Errors
    /// Those of the system.
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

    /// For a child that was forked since: there it has no thread.
    pub fn forget(&mut self) {
        std::mem::forget(self.thread.take());
    }
}

impl Drop for AttachServer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
            let _ = thread.join();
        }
    }
}

fn serve(socket: &OwnedFd, stop: &OwnedFd, memory: &File, offer: &Mutex<Offer>) {
    let mut outage = Outage::default();
    loop {
        let mut both = [PollFd::new(stop, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
        match poll(&mut both, None) {
            Ok(_) if !both[0].revents().is_empty() => return,
            Ok(_) => {}
            Err(_) => continue,
        }
        match rustix::net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(peer) => {
                if let Some(count) = outage.works(Instant::now()) {
                    log::info!("workers can attach again, after {count} failures");
                }
                let offer = locked(offer).to_bytes();
                match hand_over(&peer, memory, &offer) {
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
                let _ = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&PAUSE));
            }
        }
    }
}

/// Sends the offer, without waiting for anything.
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
    // Workers of the same user can change it, and those that come later must be able to open it.
    rustix::fs::fchmod(memory, Mode::RUSR | Mode::WUSR)?;
    // An open file of its own, so that no worker has a hand in the locks of another.
    let own = open_again(memory)?;
    let rights = [own.as_fd()];
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
}
