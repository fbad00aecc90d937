//! Stands between a memif driver and its peers on their control channel, so that no core is in a burst when the driver maps or
//! unmaps their memory, and no peer tells the driver what would harm this process.
//!
//! The driver (DPDK 22.11) maps and unmaps in EAL's interrupt thread as soon as its peer says so or its socket closes, whatever
//! cores are polling meanwhile. Here it never has the peer's socket: it gets one of ours, messages pass between the two, and
//! those that make it do that wait at the [`Gate`]. What a peer may say is in [`memif_control`]. A server's driver hears of a
//! client only when that client has said all, and all of it is right.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::Permissions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, fchmod};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, UCred,
};

use super::folders::{self, Private};
use super::gate::Gate;
use super::interrupts::{Announced, RingInterrupt, is_eventfd};
use crate::io::memif_control::{
    self, ClientSays, Descriptor, MESSAGE_BYTES, MessageKind, RINGS_MAX, Refusal, RingPlace, Rings,
    ServerSays, Step,
};
use crate::io::vdev::{self, UnknownArgument};
use crate::outage::Outage;
use crate::state::files::advice;

/// The socket of a device whose arguments name none.
const DEFAULT_SOCKET: &str = "memif";

/// Clients that wait to be taken.
const BACKLOG: i32 = 16;
/// Clients of a socket that may be in the middle of their handshakes. The next is taken when one of them is through.
const HANDSHAKES: usize = 16;
/// A handshake takes so long at most.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);
/// After a shortage of descriptors or memory no client is taken for so long.
const REST: Duration = Duration::from_millis(100);
/// Descriptors that are left to the rest of the process: EAL's interrupt thread ends it when it gets none.
const SPARE: usize = 32;
/// Why a peer is refused that would take them.
const NO_DESCRIPTORS: &str = "too few descriptors left for another peer: raise ulimit -n";
/// Between two lines of the log about refused peers.
const COMPLAINTS: Duration = Duration::from_secs(1);
/// For a socket that is bound but not served yet.
const LOOKS: usize = 3;
const LOOK: Duration = Duration::from_millis(20);

/// Which end of a connection a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// It connects.
    Client,
    /// It is connected to.
    Server,
}

/// Where peers meet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Socket {
    name: String,
    is_abstract: bool,
}

/// Why a memif device's socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process, or another device, serves it.
    #[error("memif socket {0}: another process serves it: give each server a socket= of its own")]
    Served(String),
    /// The system refuses.
    #[error("memif socket {socket}: {reason}: name another with socket=PATH")]
    Refused {
        /// Its name.
        socket: String,
        /// The system's text.
        reason: String,
    },
    /// The folder for sockets cannot be had.
    #[error("memif sockets: {0}")]
    Folder(std::io::Error),
    /// A user in `users=` is not known.
    #[error(
        "memif device {device:?}: users= names {user:?}, who is not in /etc/passwd: name users there, or give their numbers, \
         as in users=alice+1001"
    )]
    User {
        /// The device.
        device: String,
        /// What was found.
        user: String,
    },
    /// An argument that the driver would pass over, with all the others, in silence.
    #[error("memif device {device:?}: {found}; there are {known}")]
    Argument {
        /// The device.
        device: String,
        /// What was found.
        found: String,
        /// Those that there are.
        known: String,
    },
    /// Devices of one socket differ in who may connect.
    #[error("memif socket {0}: its devices have different users=: give all of them the same")]
    Users(String),
}

/// A socket that one or more devices of the same role name, and ours that the driver gets for it.
pub(super) struct Relay {
    role: Role,
    /// That of the arguments, where peers are.
    outer: Socket,
    /// The driver's.
    inner: Socket,
    /// Takes peers for a server, and the driver itself for a client.
    listener: OwnedFd,
    /// The file of `outer` is there, and ours.
    has_file: AtomicBool,
    ways: Ways,
    /// Users that peers may belong to, besides our own and root.
    users: BTreeSet<u32>,
    /// What drivers get in place of a descriptor that they are not to use: ours, which nobody waits for. A peer's own could be made
    /// to block the core that writes to it or reads from it, so drivers write to those alone whose peers could stop this process
    /// anyway ([`Relay::may_be_woken`]), and read none.
    bell: OwnedFd,
    /// Of the rings that this end reads, by number, of each device that has a peer.
    interrupts: Mutex<BTreeMap<u32, RingInterrupts>>,
    /// Raised whenever these change.
    connection: AtomicU64,
    /// The queues of a server's started devices, by their ids.
    served: Mutex<BTreeMap<u32, Rings>>,
    told: Mutex<Told>,
    /// How long a handshake may take, in milliseconds.
    handshake_ms: AtomicU64,
}

/// None of a ring whose writer would wake nobody.
pub(super) type RingInterrupts = Vec<Option<Arc<RingInterrupt>>>;

/// What is known of peers for those who ask.
#[derive(Default)]
struct Told {
    /// Connections that have ended, by the device's id.
    ended: BTreeMap<u32, u64>,
    /// Peers that were refused.
    refused: u64,
    /// Those of them that the log has not told of.
    unlogged: u64,
    logged_at: Option<Instant>,
    /// Why the last connection did not come about.
    last: String,
}

/// What a message waits for that makes the driver map or unmap memory.
struct Ways {
    gate: Arc<Gate>,
    settle: Settle,
}

impl Ways {
    /// Says something to the driver that makes it map or unmap memory, and waits until it has, while no core is in a burst.
    fn tell(&self, say: impl FnOnce()) {
        self.gate.while_closed(|| {
            say();
            (self.settle)();
        });
    }
}

/// Returns when the driver has done what it was told before.
pub(super) type Settle = Arc<dyn Fn() + Send + Sync>;

/// A started server's device; while there is one, peers are taken.
pub(super) struct Serving {
    relay: Arc<Relay>,
    id: u32,
}

/// A memif device and what stands before it.
#[derive(Clone)]
pub(super) struct Interposed {
    pub(super) device: String,
    /// That of the protocol, by which devices of one socket differ.
    pub(super) id: u32,
    pub(super) relay: Arc<Relay>,
}

/// All memif devices of this process.
#[derive(Default)]
pub(super) struct Relays {
    all: Vec<Interposed>,
    /// Where drivers have their sockets; there as soon as one needs it.
    private: Option<Private>,
}

/// What a memif device's arguments say of its connection.
struct Arguments<'a> {
    role: Role,
    name: &'a str,
    is_abstract: Option<bool>,
    id: u32,
    users: &'a str,
    others: Vec<&'a str>,
}

impl fmt::Display for Socket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_abstract { "abstract" } else { "file" };
        write!(out, "{} ({kind})", self.name)
    }
}

impl Socket {
    /// The driver's in place of this, where only this user can reach it.
    fn inner(&self, role: Role, folder: &Path) -> Self {
        let mut hasher = DefaultHasher::new();
        (self, role).hash(&mut hasher);
        let file = folder.join(format!("{:x}", hasher.finish()));
        Self { name: file.display().to_string(), is_abstract: false }
    }

    fn address(&self) -> Result<SocketAddrUnix, Errno> {
        match self.is_abstract {
            true => SocketAddrUnix::new_abstract_name(self.name.as_bytes()),
            false => SocketAddrUnix::new(&self.name),
        }
    }

    /// Serves it. A file gets `mode`, and takes the place of one that a dead process has left.
    fn listen(&self, mode: u32) -> Result<OwnedFd, Errno> {
        let (socket, address) = (socket(SocketFlags::empty())?, self.address()?);
        // What it has before it is bound the file has from the first moment.
        fchmod(&socket, Mode::from_raw_mode(mode))?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) if self.is_left_over() => {
                std::fs::remove_file(&self.name).map_err(|_| Errno::ADDRINUSE)?;
                rustix::net::bind(&socket, &address)?;
            }
            bound => bound?,
        }
        if !self.is_abstract {
            // The mask of the process took part of it.
            let _ = std::fs::set_permissions(&self.name, Permissions::from_mode(mode));
        }
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    /// It is a file that nobody serves, now and a moment later.
    fn is_left_over(&self) -> bool {
        let is_socket = |found: std::fs::Metadata| found.file_type().is_socket();
        !self.is_abstract
            && std::fs::symlink_metadata(&self.name).is_ok_and(is_socket)
            && (0..LOOKS).all(|look| {
                thread::sleep(LOOK * u32::from(look > 0));
                folders::is_unserved(Path::new(&self.name))
            })
    }

    /// Why it can't be served: by what lies there.
    fn taken(&self) -> SocketError {
        let socket = self.to_string();
        if !self.is_something_else() {
            return SocketError::Served(socket);
        }
        let reason = "something else lies there, which is left alone".to_owned();
        SocketError::Refused { socket, reason }
    }

    /// What lies at its path is no socket.
    fn is_something_else(&self) -> bool {
        let found = std::fs::symlink_metadata(&self.name);
        !self.is_abstract && found.is_ok_and(|found| !found.file_type().is_socket())
    }

    /// Somebody serves it, as far as the system tells without asking him: it lists the sockets of this network namespace.
    fn is_listed(&self, sockets: &str) -> bool {
        let name = if self.is_abstract { format!("@{}", self.name) } else { self.name.clone() };
        sockets.lines().any(|line| {
            // Num RefCount Protocol Flags Type St Inode Path; the flag is __SO_ACCEPTCON.
            let mut words = line.split_whitespace();
            words.nth(3) == Some("00010000") && words.nth(3) == Some(name.as_str())
        })
    }

    /// Somebody serves it. A file's server in another network namespace is asked, by connecting and going again.
    fn is_served(&self) -> bool {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let is_there = || std::fs::symlink_metadata(&self.name).is_ok();
        self.is_listed(&sockets)
            || (!self.is_abstract && is_there() && !folders::is_unserved(Path::new(&self.name)))
    }

    /// At once or not at all: whoever has no room for another does not keep the caller waiting.
    fn connect(&self) -> Result<OwnedFd, Errno> {
        let socket = socket(SocketFlags::NONBLOCK)?;
        rustix::net::connect(&socket, &self.address()?)?;
        Ok(socket)
    }
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | flags, None)
}

impl<'a> Arguments<'a> {
    /// None when the driver would refuse them, and may.
    fn parse(arguments: &'a str) -> Option<Self> {
        let mut parsed = Self {
            role: Role::Client,
            name: DEFAULT_SOCKET,
            is_abstract: None,
            id: 0,
            users: "",
            others: Vec::new(),
        };
        for argument in arguments.split(',').filter(|argument| !argument.is_empty()) {
            let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
            match (key, value) {
                ("socket", name) => parsed.name = name,
                ("socket-abstract", "yes") => parsed.is_abstract = Some(true),
                ("socket-abstract", "no") => parsed.is_abstract = Some(false),
                ("socket-abstract", _) => return None,
                ("users", users) => parsed.users = users,
                _ => parsed.others.push(argument),
            }
            match (key, value) {
                ("role", "server" | "master") => parsed.role = Role::Server,
                ("role", _) => parsed.role = Role::Client,
                ("id", id) => parsed.id = id.parse().unwrap_or(0),
                _ => {}
            }
        }
        Some(parsed)
    }

    /// A name with a slash is a file's path, one that begins with `@` is abstract, and any other a file's in `folder`.
    fn socket(&self, folder: fn() -> std::io::Result<PathBuf>) -> Result<Socket, SocketError> {
        let is_abstract = self.is_abstract.unwrap_or(self.name.starts_with('@'));
        let name = match is_abstract || self.name.contains('/') {
            true => self.name.to_owned(),
            false => folder().map_err(SocketError::Folder)?.join(self.name).display().to_string(),
        };
        Ok(Socket { name, is_abstract })
    }

    fn users(&self, device: &str) -> Result<BTreeSet<u32>, SocketError> {
        let unknown = |user: &str| SocketError::User { device: device.into(), user: user.into() };
        let named = self.users.split('+').filter(|user| !user.is_empty());
        named.map(|user| number_of(user).ok_or_else(|| unknown(user))).collect()
    }
}

/// Where a memif device meets its peers, for those who only look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeetingPoint {
    /// Its name and kind, for people.
    pub socket: String,
    /// It is the device that would serve it.
    pub is_server: bool,
    /// Somebody serves it already.
    pub is_served: bool,
}

/// Looks where a memif device with these arguments would meet its peers, and makes nothing.
///
/// # Errors
/// When its socket could not be had, for another reason than that it is served.
pub fn meeting_point(device: &str) -> Result<MeetingPoint, SocketError> {
    let (name, arguments) = device.split_once(',').unwrap_or((device, ""));
    let Some(arguments) = Arguments::parse(arguments) else {
        let known = "yes or no".to_owned();
        let found = "socket-abstract is neither".to_owned();
        return Err(SocketError::Argument { device: name.to_owned(), found, known });
    };
    arguments.users(name)?;
    let socket = arguments.socket(folders::look)?;
    let (is_server, is_served) = (arguments.role == Role::Server, socket.is_served());
    if is_server && socket.is_something_else() {
        return Err(socket.taken());
    }
    Ok(MeetingPoint { socket: socket.to_string(), is_server, is_served })
}

/// A user's number, which may be given as such.
fn number_of(user: &str) -> Option<u32> {
    let of = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(user)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    let known = || std::fs::read_to_string("/etc/passwd").ok()?.lines().find_map(of);
    user.parse().ok().or_else(known)
}

impl Relays {
    /// The arguments that EAL gets in place of these: memif devices with sockets of ours, for which relays are added.
    ///
    /// # Errors
    /// The socket that cannot be had, and why.
    pub(super) fn interpose(
        &mut self,
        arguments: &[String],
        settle: &Settle,
    ) -> Result<Vec<String>, SocketError> {
        let mut all = Vec::with_capacity(arguments.len());
        for word in arguments {
            let (option, vdev) =
                word.strip_prefix("--vdev=").map_or(("", word.as_str()), |vdev| ("--vdev=", vdev));
            let is_vdev = !option.is_empty() || all.last().is_some_and(|last| last == "--vdev");
            let (name, rest) = vdev.split_once(',').unwrap_or((vdev, ""));
            all.push(match is_vdev && name.starts_with("net_memif") {
                true => format!("{option}{}", self.interposed(name, rest, settle)?),
                false => word.clone(),
            });
        }
        Ok(all)
    }

    /// What stands before a device.
    pub(super) fn of(&self, device: &str) -> Option<&Interposed> {
        self.all.iter().find(|one| one.device == device)
    }

    /// One device with its new arguments.
    fn interposed(
        &mut self,
        device: &str,
        arguments: &str,
        settle: &Settle,
    ) -> Result<String, SocketError> {
        if let Some(UnknownArgument { found, known, .. }) =
            vdev::unknown_argument(&format!("{device},{arguments}"))
        {
            return Err(SocketError::Argument { device: device.to_owned(), found, known });
        }
        let Some(arguments) = Arguments::parse(arguments) else {
            return Ok(format!("{device},{arguments}"));
        };
        let (role, id) = (arguments.role, arguments.id);
        let (socket, users) = (arguments.socket(folders::runtime)?, arguments.users(device)?);
        let mut there = self.all.iter().map(|one| &one.relay);
        let relay = match there.find(|relay| relay.role == role && relay.outer == socket) {
            Some(relay) if relay.users != users => {
                return Err(SocketError::Users(socket.to_string()));
            }
            Some(relay) => Arc::clone(relay),
            None => {
                let private = match self.private.take() {
                    Some(private) => private,
                    None => Private::new().map_err(SocketError::Folder)?,
                };
                let folder = self.private.insert(private).path();
                Arc::new(Relay::new(role, socket, folder, users, Arc::clone(settle))?)
            }
        };
        let inner = &relay.inner.name;
        let all: Vec<&str> = std::iter::once(device).chain(arguments.others).collect();
        let words = format!("{},socket={inner},socket-abstract=no", all.join(","));
        self.all.push(Interposed { device: device.to_owned(), id, relay });
        Ok(words)
    }
}

impl Relay {
    fn new(
        role: Role,
        outer: Socket,
        folder: &Path,
        users: BTreeSet<u32>,
        settle: Settle,
    ) -> Result<Self, SocketError> {
        let inner = outer.inner(role, folder);
        let ours = match role {
            Role::Server => &outer,
            Role::Client => &inner,
        };
        let refused = |error: Errno| match error {
            Errno::ADDRINUSE => ours.taken(),
            _ => SocketError::Refused { socket: ours.to_string(), reason: error.to_string() },
        };
        // Whom the system lets connect is looked at when he has.
        let mode = if users.is_empty() { 0o600 } else { 0o666 };
        let listener = ours.listen(mode).map_err(refused)?;
        let has_file = (role == Role::Server && !outer.is_abstract).into();
        let bell = new_event().map_err(refused)?;
        let ways = Ways { gate: Arc::default(), settle };
        let (served, told) = Default::default();
        let handshake_ms = AtomicU64::new(HANDSHAKE_MAX.as_millis() as u64);
        Ok(Self {
            role,
            outer,
            inner,
            listener,
            has_file,
            ways,
            users,
            bell,
            interrupts: Mutex::default(),
            connection: AtomicU64::new(0),
            served,
            told,
            handshake_ms,
        })
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    fn handshake_max(&self) -> Duration {
        Duration::from_millis(self.handshake_ms.load(Relaxed))
    }

    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.ways.gate
    }

    /// Where peers are.
    pub(super) fn place(&self) -> &Socket {
        &self.outer
    }

    /// Why the last connection did not come about.
    pub(super) fn last_refusal(&self) -> String {
        locked(&self.told).last.clone()
    }

    /// How many connections of a device have ended.
    pub(super) fn ended(&self, id: u32) -> u64 {
        locked(&self.told).ended.get(&id).copied().unwrap_or(0)
    }

    /// How many peers were refused, on all devices of the socket.
    pub(super) fn refused(&self) -> u64 {
        locked(&self.told).refused
    }

    /// A server's device has started, with so many queues: from the first on peers are taken.
    pub(super) fn serve(self: &Arc<Self>, id: u32, rings: Rings) -> Serving {
        let is_first = {
            let mut served = locked(&self.served);
            let is_first = served.is_empty();
            served.insert(id, rings);
            is_first
        };
        if is_first {
            drop(Carrier::new(self, true).spawn());
        }
        Serving { relay: Arc::clone(self), id }
    }

    fn accept(&self) -> Result<OwnedFd, Errno> {
        retry_on_intr(|| rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC))
    }

    /// Connects a client's device with so many queues, which `start` starts, if its server is there. What it gives has
    /// finished when the connection has ended, which is also how a server refuses.
    pub(super) fn connect(
        self: &Arc<Self>,
        id: u32,
        rings: Rings,
        start: impl FnOnce() -> bool,
    ) -> Option<JoinHandle<()>> {
        let peer = match self.outer.connect() {
            Ok(peer) => peer,
            Err(error) => {
                locked(&self.told).last = error.to_string();
                return None;
            }
        };
        if let Err(why) = self.admit(&peer) {
            self.refuse(&peer, &why);
            return None;
        }
        self.forget_pending();
        // The driver connects before its start returns.
        let driver = start().then(|| self.accept().ok())??;
        let mut carrier = Carrier::new(self, false);
        let (says, announced) = (ServerSays::new(rings), Announced::default());
        carrier.add(peer, Stage::Server { id, says, driver, announced });
        carrier.spawn()
    }

    /// A start that failed may have connected.
    fn forget_pending(&self) {
        let at_once = Timespec::default();
        while poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&at_once)) == Ok(1) {
            drop(self.accept());
        }
    }

    /// Whether the process at the other end may be our peer.
    fn admit(&self, peer: &OwnedFd) -> Result<(), String> {
        let Some(user) = credentials(peer).map(|peer| peer.uid) else {
            return Err("the system does not say whose it is".to_owned());
        };
        let may = user.is_root()
            || user == rustix::process::geteuid()
            || self.users.contains(&user.as_raw());
        match may {
            true => Ok(()),
            false => Err("its user is neither ours nor root nor in users=".to_owned()),
        }
    }

    /// Whether our driver may write into a descriptor that this peer has, too: its process could stop this one anyway.
    fn may_be_woken(peer: &OwnedFd) -> bool {
        let user = credentials(peer).map(|peer| peer.uid);
        user.is_some_and(|user| user.is_root() || user == rustix::process::geteuid())
    }

    /// Raised whenever a peer of this socket has come or gone.
    pub(super) fn connection(&self) -> u64 {
        self.connection.load(Acquire)
    }

    /// The interrupts of the rings that a device reads; none while it has no peer.
    pub(super) fn interrupts(&self, id: u32) -> Option<RingInterrupts> {
        locked(&self.interrupts).get(&id).cloned()
    }

    /// A device has a peer, or none any more.
    fn note_connection(&self, id: u32, interrupts: Option<RingInterrupts>) {
        let mut all = locked(&self.interrupts);
        match interrupts {
            Some(interrupts) => all.insert(id, interrupts),
            None => all.remove(&id),
        };
        self.connection.fetch_add(1, Release);
    }

    /// Counts a peer that is not taken, and tells of it at most once in [`COMPLAINTS`].
    fn refuse(&self, peer: &OwnedFd, why: &dyn fmt::Display) {
        let mut told = locked(&self.told);
        told.last = why.to_string();
        told.refused += 1;
        told.unlogged += 1;
        if told.logged_at.is_some_and(|last| last.elapsed() < COMPLAINTS) {
            return;
        }
        let who = credentials(peer).map_or("somebody".to_owned(), |peer| {
            format!("process {} of user {}", peer.pid.as_raw_nonzero(), peer.uid.as_raw())
        });
        let (socket, count) = (&self.outer, std::mem::take(&mut told.unlogged));
        told.logged_at = Some(Instant::now());
        match self.role {
            Role::Server => {
                log::warn!("memif socket {socket}: refused {count} peers, last {who}: {why}")
            }
            Role::Client => {
                log::info!("memif socket {socket}: the server, {who}, is refused: {why}")
            }
        }
    }

    /// Whether this process may have so many descriptors more.
    fn has_room_for(&self, descriptors: usize) -> bool {
        let more: Result<Vec<_>, _> = (0..descriptors).map(|_| self.bell.try_clone()).collect();
        more.is_ok()
    }

    fn remove_file(&self) {
        if self.has_file.swap(false, Relaxed) {
            let _ = std::fs::remove_file(&self.outer.name);
        }
    }

    /// Tells a server's driver what a client has said, and waits for its consent, with which the connection stands.
    ///
    /// # Errors
    /// Why it does not consent, as far as it says.
    fn introduce(&self, peer: &OwnedFd, said: &[Message]) -> Result<(OwnedFd, Message), String> {
        let driver = self.inner.connect().map_err(|error| error.to_string())?;
        match self.introduce_to(&driver, Self::may_be_woken(peer), said) {
            Ok(connected) => Ok((driver, connected)),
            Err(reason) => {
                self.ways.tell(|| {
                    let _ = rustix::net::shutdown(&driver, Shutdown::Both);
                });
                Err(reason)
            }
        }
    }

    fn introduce_to(
        &self,
        driver: &OwnedFd,
        wakes: bool,
        said: &[Message],
    ) -> Result<Message, String> {
        let silent = || "the driver does not take it".to_owned();
        let expect = |expected: MessageKind| {
            let answer = Message::await_from(driver, self.handshake_max()).ok_or_else(silent)?;
            match answer.kind() {
                Ok(kind) if kind == expected => Ok(answer),
                Ok(MessageKind::Disconnect) => Err(memif_control::reason(answer.bytes())),
                _ => Err(silent()),
            }
        };
        expect(MessageKind::Hello)?;
        let (connect, all) = said.split_last().ok_or_else(silent)?;
        for message in all {
            message.send(driver, Some(message.event(wakes, false).unwrap_or(&self.bell)));
            expect(MessageKind::Ack)?;
        }
        self.ways.tell(|| connect.send(driver, None));
        expect(MessageKind::Connected)
    }
}

/// What a thread that panicked has left of it is whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn credentials(peer: &OwnedFd) -> Option<UCred> {
    socket_peercred(peer).ok()
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut served = locked(&self.relay.served);
        served.remove(&self.id);
        if served.is_empty() {
            // Whoever waits for a peer there is woken.
            let _ = rustix::net::shutdown(&self.relay.listener, Shutdown::Both);
            self.relay.remove_file();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.remove_file();
    }
}

/// The thread that carries all messages of a server's socket, or of a client's one connection.
struct Carrier {
    relay: Arc<Relay>,
    /// More peers are taken.
    takes: bool,
    /// But not before.
    takes_from: Option<Instant>,
    /// Failures to accept a peer.
    outage: Outage,
    channels: Vec<Channel>,
    /// The ids of devices that have peers.
    connected: BTreeSet<u32>,
}

/// One peer.
struct Channel {
    peer: OwnedFd,
    stage: Stage,
    began: Instant,
}

enum Stage {
    /// A client introduces itself, of which the driver does not know yet.
    Client { says: ClientSays, said: Vec<Message> },
    /// Our driver introduces itself to a server.
    Server { id: u32, says: ServerSays, driver: OwnedFd, announced: Announced },
    /// Packets flow.
    Connected { id: u32, driver: OwnedFd },
}

impl Stage {
    fn driver(&self) -> Option<&OwnedFd> {
        match self {
            Self::Client { .. } => None,
            Self::Server { driver, .. } | Self::Connected { driver, .. } => Some(driver),
        }
    }

    fn is_handshake(&self) -> bool {
        !matches!(self, Self::Connected { .. })
    }
}

/// Which ends of a channel have something to say.
#[derive(Clone, Copy)]
struct Ready {
    driver: bool,
    peer: bool,
}

impl Carrier {
    fn new(relay: &Arc<Relay>, takes: bool) -> Self {
        let (relay, channels) = (Arc::clone(relay), Vec::new());
        let (outage, connected) = (Outage::default(), BTreeSet::new());
        Self { relay, takes, takes_from: None, outage, channels, connected }
    }

    fn add(&mut self, peer: OwnedFd, stage: Stage) {
        self.channels.push(Channel { peer, stage, began: Instant::now() });
    }

    /// On the CPUs of the caller; such a thread sleeps but for a peer's coming and going.
    fn spawn(self) -> Option<JoinHandle<()>> {
        // Without a thread there is no link, and whoever waits for that says so.
        thread::Builder::new().name("memif".to_owned()).spawn(move || self.carry()).ok()
    }

    /// Until no peers are taken any more and those that there were have gone.
    fn carry(mut self) {
        while self.takes || !self.channels.is_empty() {
            let (ready, has_newcomer) = self.wait();
            for (channel, ready) in std::mem::take(&mut self.channels).into_iter().zip(ready) {
                let next = self.turn(channel, ready);
                self.channels.extend(next);
            }
            if has_newcomer {
                self.take();
            }
        }
    }

    /// Who has something to say, each channel and the listener. Returns at the latest when time is up for one of them.
    fn wait(&mut self) -> (Vec<Ready>, bool) {
        let now = Instant::now();
        if self.takes_from.is_some_and(|from| from <= now) {
            self.takes_from = None;
        }
        let handshakes = || self.channels.iter().filter(|channel| channel.stage.is_handshake());
        let listens = self.takes && self.takes_from.is_none() && handshakes().count() < HANDSHAKES;
        let longest = self.relay.handshake_max();
        let ends = handshakes().map(|channel| channel.began + longest);
        let wait = ends.chain(self.takes_from).min().map(|end| end.saturating_duration_since(now));
        // Rounded up, so that time is up when it is.
        let wait = wait.and_then(|wait| Timespec::try_from(wait + Duration::from_millis(1)).ok());

        let watch = |end| PollFd::new(end, PollFlags::IN);
        let mut ends: Vec<PollFd<'_>> = Vec::new();
        for channel in &self.channels {
            ends.push(watch(&channel.peer));
            ends.extend(channel.stage.driver().map(watch));
        }
        if listens {
            ends.push(watch(&self.relay.listener));
        }
        if retry_on_intr(|| poll(&mut ends, wait.as_ref())).is_err() {
            // Nobody is ready; a system that has no memory for this may have some later.
            ends.iter_mut().for_each(PollFd::clear_revents);
            thread::sleep(LOOK);
        }
        let mut spoke = ends.iter().map(|end| !end.revents().is_empty());
        let mut next = || spoke.next().unwrap_or(false);
        let ready = self.channels.iter().map(|channel| Ready {
            peer: next(),
            driver: channel.stage.driver().is_some() && next(),
        });
        let ready = ready.collect();
        (ready, listens && next())
    }

    /// Takes a client that has come to the listener.
    fn take(&mut self) {
        let relay = Arc::clone(&self.relay);
        let peer = match relay.accept() {
            Ok(peer) => peer,
            Err(_) if locked(&relay.served).is_empty() => {
                self.takes = false;
                return;
            }
            Err(Errno::CONNABORTED | Errno::AGAIN) => return,
            Err(error) => {
                if self.outage.fails(Instant::now()) {
                    let error = std::io::Error::from(error);
                    log::warn!(
                        "memif socket {}: cannot accept a peer: {error}{}; retried",
                        relay.outer,
                        advice(&error)
                    );
                }
                self.takes_from = Some(Instant::now() + REST);
                return;
            }
        };
        if let Some(count) = self.outage.works(Instant::now()) {
            log::info!(
                "memif socket {}: peers are accepted again, after {count} failures",
                relay.outer
            );
        }
        if let Err(why) = relay.admit(&peer) {
            return relay.refuse(&peer, &why);
        }
        if !relay.has_room_for(SPARE) {
            self.takes_from = Some(Instant::now() + REST);
            return relay.refuse(&peer, &NO_DESCRIPTORS);
        }
        let most =
            |of: fn(&Rings) -> u16| locked(&relay.served).values().map(of).max().unwrap_or(0);
        let offered = Rings {
            to_server: most(|rings| rings.to_server),
            to_client: most(|rings| rings.to_client),
        };
        Message::new(memif_control::hello(offered)).send(&peer, None);
        self.add(peer, Stage::Client { says: ClientSays::default(), said: Vec::new() });
    }

    /// What becomes of a channel.
    fn turn(&mut self, channel: Channel, ready: Ready) -> Option<Channel> {
        let relay = Arc::clone(&self.relay);
        let Channel { peer, stage, began } = channel;
        let longest = relay.handshake_max();
        let is_late = stage.is_handshake() && began.elapsed() >= longest;
        let stage = match stage {
            Stage::Client { says, said } if ready.peer => self.hear_client(&peer, says, said)?,
            Stage::Server { id, says, driver, announced } if ready.driver => {
                self.hear_own(&peer, id, says, driver, announced)?
            }
            Stage::Server { id, says, driver, announced } if ready.peer => {
                self.hear_server(&peer, id, says, driver, announced)?
            }
            Stage::Connected { id, driver } if ready.driver => {
                // Whether it is connected says what the peer's word means, so it comes first.
                match Message::receive(&driver) {
                    Some(message) => message.send(&peer, None),
                    None => return self.count_end(id),
                };
                Stage::Connected { id, driver }
            }
            // Once packets flow there is nothing to say but good-bye, and anything else is that too.
            Stage::Connected { id, driver } if ready.peer => {
                self.end(&peer, &driver, Message::receive(&peer));
                return self.count_end(id);
            }
            stage if is_late => {
                relay.refuse(&peer, &format_args!("no connection after {longest:?}"));
                if let Some(driver) = stage.driver() {
                    self.end(&peer, driver, None);
                }
                return None;
            }
            stage => stage,
        };
        Some(Channel { peer, stage, began })
    }

    fn count_end(&mut self, id: u32) -> Option<Channel> {
        self.connected.remove(&id);
        self.relay.note_connection(id, None);
        *locked(&self.relay.told).ended.entry(id).or_default() += 1;
        None
    }

    /// The next message of a client that introduces itself.
    fn hear_client(
        &mut self,
        peer: &OwnedFd,
        mut says: ClientSays,
        mut said: Vec<Message>,
    ) -> Option<Stage> {
        let relay = Arc::clone(&self.relay);
        let message = Message::receive(peer)?;
        let memory: Vec<_> =
            message.descriptors.iter().map(|one| Descriptor::of(one.as_fd())).collect();
        let has_room = message.descriptors.is_empty() || relay.has_room_for(SPARE);
        let rings_of = |id: u32| match locked(&relay.served).get(&id) {
            _ if self.connected.contains(&id) => Err(Refusal::Taken(id)),
            Some(&rings) => Ok(rings),
            None => Err(Refusal::NoDevice(id)),
        };
        let step = says.take(message.bytes(), &memory, rings_of);
        said.push(message);
        let refuse = |why: &dyn fmt::Display| {
            relay.refuse(peer, why);
            Message::new(memif_control::disconnect(&why.to_string())).send(peer, None);
        };
        let id = says.id().unwrap_or_default();
        match step {
            Ok(_) if !has_room => {
                self.takes_from = Some(Instant::now() + REST);
                refuse(&NO_DESCRIPTORS);
                None
            }
            Ok(Step::Next) => {
                Message::new(memif_control::ack()).send(peer, None);
                Some(Stage::Client { says, said })
            }
            Ok(Step::Leaves) => None,
            Ok(Step::Complete) if self.connected.contains(&id) => {
                refuse(&Refusal::Taken(id));
                None
            }
            Ok(Step::Complete) if !relay.has_room_for(SPARE + 2 * said.len()) => {
                self.takes_from = Some(Instant::now() + REST);
                refuse(&NO_DESCRIPTORS);
                None
            }
            Ok(Step::Complete) => match relay.introduce(peer, &said) {
                Ok((driver, connected)) => {
                    self.connected.insert(id);
                    relay.note_connection(id, Some(announced(said).interrupts()));
                    connected.send(peer, None);
                    Some(Stage::Connected { id, driver })
                }
                Err(reason) => {
                    refuse(&reason);
                    None
                }
            },
            Err(refusal) => {
                refuse(&refusal);
                None
            }
        }
    }

    /// The next message of our own driver, which introduces itself to a server.
    fn hear_own(
        &mut self,
        peer: &OwnedFd,
        id: u32,
        mut says: ServerSays,
        driver: OwnedFd,
        mut announced: Announced,
    ) -> Option<Stage> {
        let message = Message::receive(&driver)?;
        if let Ok(kind) = message.kind() {
            says.client_says(kind);
        }
        if message.kind() == Ok(MessageKind::AddRegion)
            && let Some(region) = message.descriptors.first()
        {
            announced.add_region(region.as_fd());
        }
        // A ring that we read is written by the peer, which gets an eventfd of ours that our driver never reads.
        let read = RingPlace::of(message.bytes()).filter(|place| !place.to_server);
        let ours = read.and_then(|_| new_event().ok());
        let wakes = Relay::may_be_woken(peer);
        let event = ours.as_ref().or_else(|| message.event(wakes, true));
        message.send(peer, Some(event.unwrap_or(&self.relay.bell)));
        if let (Some(place), Some(event)) = (read, ours) {
            announced.add_ring(place, event);
        }
        Some(Stage::Server { id, says, driver, announced })
    }

    /// The next message of a server to which our driver introduces itself.
    fn hear_server(
        &mut self,
        peer: &OwnedFd,
        id: u32,
        mut says: ServerSays,
        driver: OwnedFd,
        announced: Announced,
    ) -> Option<Stage> {
        let relay = Arc::clone(&self.relay);
        let Some(message) = Message::receive(peer) else {
            locked(&relay.told).last = "the server closed its end".to_owned();
            self.end(peer, &driver, None);
            return None;
        };
        match says.take(message.bytes(), message.descriptors.len()) {
            // The driver makes its regions and rings.
            Ok(MessageKind::Hello) => relay.ways.tell(|| message.send(&driver, None)),
            Ok(MessageKind::Connected) => {
                message.send(&driver, None);
                relay.note_connection(id, Some(announced.interrupts()));
                self.connected.insert(id);
                return Some(Stage::Connected { id, driver });
            }
            Ok(MessageKind::Disconnect) => {
                locked(&relay.told).last = memif_control::reason(message.bytes());
                self.end(peer, &driver, Some(message));
                return None;
            }
            Ok(_) => message.send(&driver, None),
            Err(refusal) => {
                relay.refuse(peer, &refusal);
                Message::new(memif_control::disconnect(&refusal.to_string())).send(peer, None);
                self.end(peer, &driver, None);
                return None;
            }
        }
        Some(Stage::Server { id, says, driver, announced })
    }

    /// Tells the driver that its peer has gone, and waits until it has let go of the peer's memory. That its end is closed
    /// then would not do: a process that this one has just started may have it too.
    fn end(&self, peer: &OwnedFd, driver: &OwnedFd, last: Option<Message>) {
        self.relay.ways.tell(|| {
            let is_farewell = |last: &Message| last.kind() == Ok(MessageKind::Disconnect);
            if let Some(message) = last.filter(is_farewell) {
                Message { descriptors: Vec::new(), ..message }.send(driver, None);
            }
            let _ = rustix::net::shutdown(driver, Shutdown::Write);
        });
        // What it has said to that, if anything.
        let _ = rustix::net::shutdown(driver, Shutdown::Read);
        while let Some(message) = Message::receive(driver) {
            message.send(peer, None);
        }
    }
}

struct Message {
    /// One more than the protocol's, to see what is longer.
    bytes: [u8; MESSAGE_BYTES + 1],
    len: usize,
    descriptors: Vec<OwnedFd>,
}

impl Message {
    fn new(message: [u8; MESSAGE_BYTES]) -> Self {
        let mut bytes = [0; MESSAGE_BYTES + 1];
        bytes[..MESSAGE_BYTES].copy_from_slice(&message);
        Self { bytes, len: MESSAGE_BYTES, descriptors: Vec::new() }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn kind(&self) -> Result<MessageKind, Refusal> {
        MessageKind::of(self.bytes())
    }

    /// None when the other end is closed.
    fn receive(end: &OwnedFd) -> Option<Self> {
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            rustix::net::recvmsg(end, parts, &mut control, flags)
        });
        let len = received.as_ref().ok()?.bytes;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                descriptors.extend(more);
            }
        }
        if received.is_ok_and(|received| received.flags.contains(ReturnFlags::CTRUNC)) {
            // More than one, or more than this process may have: none is worth anything.
            descriptors.clear();
        }
        (len > 0).then_some(Self { bytes, len, descriptors })
    }

    /// The eventfd that came with a ring which our driver writes, `to_server` or from it, if it may write there.
    fn event(&self, wakes: bool, to_server: bool) -> Option<&OwnedFd> {
        let place = RingPlace::of(self.bytes())?;
        let event = self.descriptors.first()?;
        (wakes && place.to_server == to_server && is_eventfd(event.as_fd())).then_some(event)
    }

    /// The next one, for which a driver gets as long as a handshake may take.
    fn await_from(end: &OwnedFd, longest: Duration) -> Option<Self> {
        let wait = Timespec::try_from(longest).ok();
        let mut watched = [PollFd::new(end, PollFlags::IN)];
        let said = retry_on_intr(|| poll(&mut watched, wait.as_ref()));
        (said == Ok(1)).then(|| Self::receive(end)).flatten()
    }

    /// To an end that may have closed, or that does not listen: it misses the message, and its own end says why. What wakes
    /// a ring's reader is replaced by `bell`.
    fn send(&self, end: &OwnedFd, bell: Option<&OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let own = self.descriptors.first();
        let descriptor = match self.kind() {
            Ok(MessageKind::AddRing) => bell.or(own),
            _ => own,
        };
        let descriptor = descriptor.map(AsFd::as_fd);
        if let Some(descriptor) = &descriptor {
            let rights = std::slice::from_ref(descriptor);
            control.push(SendAncillaryMessage::ScmRights(rights));
        }
        let parts = [IoSlice::new(self.bytes())];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = || rustix::net::sendmsg(end, &parts, &mut control, flags);
        let _ = retry_on_intr(sent);
    }
}

/// An eventfd that nobody waits for when it is read or written.
fn new_event() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// What a client has said of its memory, whose rings to the server are read here.
fn announced(said: Vec<Message>) -> Announced {
    let mut announced = Announced::default();
    for Message { bytes, descriptors, .. } in said {
        let message = &bytes[..MESSAGE_BYTES];
        let place = RingPlace::of(message).filter(|place| place.to_server);
        let is_region = MessageKind::of(message) == Ok(MessageKind::AddRegion);
        for descriptor in descriptors {
            match place {
                Some(place) => announced.add_ring(place, descriptor),
                None if is_region => announced.add_region(descriptor.as_fd()),
                None => {}
            }
        }
    }
    announced
}

/// The rings of a device that has so many queues.
pub(super) fn rings(role: Role, receive: u16, transmit: u16) -> Rings {
    let (receive, transmit) = (receive.min(RINGS_MAX), transmit.min(RINGS_MAX));
    match role {
        Role::Server => Rings { to_server: receive, to_client: transmit },
        Role::Client => Rings { to_server: transmit, to_client: receive },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::mpsc::channel;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;
    use crate::PATIENCE;

    const REGION: u64 = 1 << 16;
    const ONE: Rings = Rings { to_server: 1, to_client: 1 };

    impl Relay {
        /// Both ends of a test's handshakes may stand still in the middle.
        fn be_patient(&self, handshake: Duration) {
            self.handshake_ms.store(handshake.as_millis() as u64, Relaxed);
        }
    }

    fn at_once() -> Settle {
        Arc::new(|| {})
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn name(test: &str) -> String {
        format!("@wedjat-{test}-{}", std::process::id())
    }

    fn message(
        kind: MessageKind,
        fields: &[(usize, &[u8])],
        descriptor: Option<OwnedFd>,
    ) -> Message {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..2].copy_from_slice(&(kind as u16).to_ne_bytes());
        for (at, field) in fields {
            bytes[*at..at + field.len()].copy_from_slice(field);
        }
        Message { descriptors: descriptor.into_iter().collect(), ..Message::new(bytes) }
    }

    fn plain(kind: MessageKind) -> Message {
        message(kind, &[], None)
    }

    fn init(id: u32) -> Message {
        message(MessageKind::Init, &[(2, &0x200_u16.to_ne_bytes()), (4, &id.to_ne_bytes())], None)
    }

    fn memory(seals: SealFlags) -> OwnedFd {
        let file = memfd_create("region", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, REGION).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    fn region(bytes: u64, seals: SealFlags) -> Message {
        message(MessageKind::AddRegion, &[(4, &bytes.to_ne_bytes())], Some(memory(seals)))
    }

    fn ring(flags: u16, offset: u32) -> Message {
        let fields: [(usize, &[u8]); 3] =
            [(2, &flags.to_ne_bytes()), (8, &offset.to_ne_bytes()), (12, &[4])];
        message(MessageKind::AddRing, &fields, Some(OwnedFd::from(std::io::pipe().unwrap().1)))
    }

    /// What a client of one queue pair says.
    fn introduction(id: u32) -> Vec<Message> {
        let region = region(REGION, SealFlags::SHRINK);
        vec![init(id), region, ring(1, 0), ring(0, 4096), plain(MessageKind::Connect)]
    }

    /// The next message, for which the other side gets all the time it needs.
    fn hear(end: &OwnedFd) -> Option<Message> {
        let wait = Timespec::try_from(PATIENCE).ok();
        let mut watched = [PollFd::new(end, PollFlags::IN)];
        assert_eq!(poll(&mut watched, wait.as_ref()), Ok(1), "nothing was said");
        Message::receive(end)
    }

    fn hear_kind(end: &OwnedFd) -> Option<MessageKind> {
        hear(end).map(|message| message.kind().unwrap())
    }

    /// A server's relay whose driver is played by the test.
    struct Scene {
        relay: Arc<Relay>,
        driver: OwnedFd,
        _serving: Serving,
        _relays: Relays,
    }

    impl Scene {
        fn new(test: &str, settle: &Settle) -> Self {
            let mut relays = Relays::default();
            let vdev = format!("--vdev=net_memif0,role=server,id=3,socket={}", name(test));
            relays.interpose(&[vdev], settle).unwrap();
            let relay = Arc::clone(&relays.of("net_memif0").unwrap().relay);
            relay.be_patient(PATIENCE);
            let driver = relay.inner.listen(0o600).unwrap();
            let serving = relay.serve(3, ONE);
            Self { relay, driver, _serving: serving, _relays: relays }
        }

        /// A client that says `all`, each when it has the answer to the last; what it heard last, and the reason in it.
        fn visit(&self, all: &[Message]) -> (OwnedFd, Option<MessageKind>, String) {
            let peer = self.connect();
            let mut heard = hear(&peer);
            for message in all {
                message.send(&peer, None);
                heard = hear(&peer);
                if heard.as_ref().is_none_or(|heard| heard.kind() != Ok(MessageKind::Ack)) {
                    break;
                }
            }
            let reason = heard.as_ref().map(|heard| memif_control::reason(heard.bytes()));
            (peer, heard.map(|heard| heard.kind().unwrap()), reason.unwrap_or_default())
        }

        fn connect(&self) -> OwnedFd {
            let began = Instant::now();
            loop {
                match self.relay.outer.connect() {
                    Ok(peer) => return peer,
                    Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
                }
                thread::yield_now();
            }
        }

        /// A client that is let through, and the driver's end of it.
        fn admit(&self) -> (OwnedFd, OwnedFd) {
            thread::scope(|scope| {
                let visitor = scope.spawn(|| self.visit(&introduction(3)));
                let driver = self.drive();
                let (peer, heard, reason) = visitor.join().unwrap();
                assert_eq!(heard, Some(MessageKind::Connected), "{reason}");
                (peer, driver)
            })
        }

        /// The driver's part of a handshake.
        fn drive(&self) -> OwnedFd {
            let driver = self.hear_of_one();
            for kind in [
                MessageKind::Init,
                MessageKind::AddRegion,
                MessageKind::AddRing,
                MessageKind::AddRing,
            ] {
                let heard = hear(&driver).unwrap();
                assert_eq!(heard.kind(), Ok(kind));
                let expected = usize::from(kind != MessageKind::Init);
                assert_eq!(heard.descriptors.len(), expected);
                plain(MessageKind::Ack).send(&driver, None);
            }
            assert_eq!(hear_kind(&driver), Some(MessageKind::Connect));
            plain(MessageKind::Connected).send(&driver, None);
            driver
        }

        fn hear_of_one(&self) -> OwnedFd {
            let wait = Timespec::try_from(PATIENCE).ok();
            let mut watched = [PollFd::new(&self.driver, PollFlags::IN)];
            assert_eq!(poll(&mut watched, wait.as_ref()), Ok(1), "the driver heard of nobody");
            let driver = rustix::net::accept(&self.driver).unwrap();
            Message::new(memif_control::hello(ONE)).send(&driver, None);
            driver
        }

        fn has_driver_heard(&self) -> bool {
            let at_once = Timespec::default();
            poll(&mut [PollFd::new(&self.driver, PollFlags::IN)], Some(&at_once)) == Ok(1)
        }
    }

    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn memif_devices_get_sockets_of_ours_and_nothing_else_changes() {
        let mut relays = Relays::default();
        let line = format!(
            "-m 512 --vdev net_memif0,role=server,socket={0},id=3 --vdev=net_memif1,socket={0},users=0+17 --vdev=net_memif2 \
             --vdev net_memif3,id=4,role=master,socket-abstract=yes,socket={0} --vdev net_null0,size=64 \
             --vdev=net_memif4,socket-abstract=perhaps net_memif5,role=server --vdev=net_memif6,socket=/run/x",
            name("rewrite")
        );
        let all = relays.interpose(&words(&line), &at_once()).unwrap().join(" ");
        let folder = relays.private.as_ref().unwrap().path();
        let at = |name: &str, is_abstract| Socket { name: name.to_owned(), is_abstract };
        let default = folders::runtime().unwrap().join("memif").display().to_string();
        let socket = at(&name("rewrite"), true);
        let inner = |socket: &Socket, role| socket.inner(role, folder).name;
        assert_eq!(
            all,
            format!(
                "-m 512 --vdev net_memif0,role=server,id=3,socket={0},socket-abstract=no \
                 --vdev=net_memif1,socket={1},socket-abstract=no --vdev=net_memif2,socket={2},socket-abstract=no \
                 --vdev net_memif3,id=4,role=master,socket={0},socket-abstract=no --vdev net_null0,size=64 \
                 --vdev=net_memif4,socket-abstract=perhaps net_memif5,role=server \
                 --vdev=net_memif6,socket={3},socket-abstract=no",
                inner(&socket, Role::Server),
                inner(&socket, Role::Client),
                inner(&at(&default, false), Role::Client),
                inner(&at("/run/x", false), Role::Client),
            )
        );
        let outer: Vec<_> = relays
            .all
            .iter()
            .map(|one| (one.id, one.relay.role, one.relay.outer.clone()))
            .collect();
        let expected = [
            (3, Role::Server, socket.clone()),
            (0, Role::Client, socket.clone()),
            (0, Role::Client, at(&default, false)),
            (4, Role::Server, socket),
            (0, Role::Client, at("/run/x", false)),
        ];
        assert_eq!(outer, expected);
        assert_eq!(relays.of("net_memif1").unwrap().relay.users, BTreeSet::from([0, 17]));

        let refused = |arguments: &str| {
            let vdev = format!("--vdev=net_memif9,{arguments}");
            Relays::default().interpose(&[vdev], &at_once()).unwrap_err().to_string()
        };
        assert!(refused("users=nobody-of-that-name").contains("/etc/passwd"));
        assert!(refused("role=server,socket=/no/such/folder/x").contains("No such file"));
        let two = words("--vdev=net_memif0,socket=@x --vdev=net_memif1,id=1,socket=@x,users=1");
        let differ = Relays::default().interpose(&two, &at_once()).unwrap_err();
        assert!(matches!(differ, SocketError::Users(_)), "{differ}");
    }

    #[test]
    fn a_socket_is_its_users_alone_and_one_that_another_serves_is_refused_and_a_dead_ones_replaced()
    {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taken").display().to_string();
        let vdev = |users: &str| format!("--vdev=net_memif0,role=server,socket={file}{users}");
        let mode = || std::fs::metadata(&file).unwrap().mode() & 0o777;
        // A dead process has left it.
        drop(Socket { name: file.clone(), is_abstract: false }.listen(0o600).unwrap());
        let mut first = Relays::default();
        first.interpose(&[vdev("")], &at_once()).unwrap();
        assert_eq!(mode(), 0o600);
        let refused = Relays::default().interpose(&[vdev("")], &at_once()).unwrap_err();
        assert!(refused.to_string().contains(&file) && matches!(refused, SocketError::Served(_)));
        let serving = first.of("net_memif0").unwrap().relay.serve(0, ONE);
        drop(serving);
        assert!(!Path::new(&file).exists());
        let mut second = Relays::default();
        second.interpose(&[vdev(",users=1")], &at_once()).unwrap();
        assert_eq!(mode(), 0o666, "who connects is looked at");
        drop(second);
        assert!(!Path::new(&file).exists());
        std::fs::write(&file, "something else").unwrap();
        assert!(Relays::default().interpose(&[vdev("")], &at_once()).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"something else");
    }

    /// Between a client and a driver that the test plays.
    #[test]
    fn a_driver_hears_of_a_client_at_the_end_and_of_its_leaving_while_nobody_is_in_a_burst() {
        for (farewell, test) in [(None, "falls"), (Some(MessageKind::Disconnect), "leaves")] {
            let (settled, told) = channel();
            let told = Mutex::new(told);
            let scene = Scene::new(
                test,
                &(Arc::new(move || told.lock().unwrap().recv().unwrap()) as Settle),
            );
            let pass = scene.relay.gate().pass();
            let peer = scene.connect();
            assert_eq!(hear_kind(&peer), Some(MessageKind::Hello));
            let (last, all) = introduction(3).into_iter().collect::<Vec<_>>().split_off_last();
            for message in &all {
                message.send(&peer, None);
                assert_eq!(hear_kind(&peer), Some(MessageKind::Ack));
            }
            assert!(!scene.has_driver_heard(), "the client has not said all");
            last.send(&peer, None);
            let driver = scene.drive();
            assert_eq!(pass.burst(|| 1), 0, "it maps the region");
            settled.send(()).unwrap();
            assert_eq!(hear_kind(&peer), Some(MessageKind::Connected));
            while pass.burst(|| 1) == 0 {
                thread::yield_now();
            }
            assert_eq!(scene.relay.ended(3), 0);

            let is_quiet = |end: &OwnedFd| {
                let wait = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&wait)).unwrap() == 0
            };
            pass.burst(|| {
                match farewell {
                    Some(kind) => plain(kind).send(&peer, None),
                    None => rustix::net::shutdown(&peer, Shutdown::Write).unwrap(),
                }
                assert!(is_quiet(&driver), "the driver learns it in the middle of a burst");
                0
            });
            assert_eq!(hear_kind(&driver), farewell);
            assert!(farewell.is_none() || hear(&driver).is_none());
            assert_eq!(pass.burst(|| 1), 0, "it has not let go yet");
            settled.send(()).unwrap();
            assert!(hear(&peer).is_none());
            while pass.burst(|| 1) == 0 {
                thread::yield_now();
            }
            while scene.relay.ended(3) == 0 {
                thread::yield_now();
            }
        }
    }

    trait SplitOffLast {
        fn split_off_last(self) -> (Message, Vec<Message>);
    }

    impl SplitOffLast for Vec<Message> {
        fn split_off_last(mut self) -> (Message, Vec<Message>) {
            (self.pop().unwrap(), self)
        }
    }

    /// Each beside an honest peer, which stays connected.
    #[test]
    fn hostile_clients_are_refused_with_a_reason_and_their_driver_never_hears_of_them() {
        let scene = Scene::new("hostile", &at_once());
        let (honest, driver) = scene.admit();
        let good = SealFlags::SHRINK;
        let mut long = plain(MessageKind::Init);
        long.len += 1;
        let cases: Vec<(&str, Vec<Message>)> = vec![
            ("unknown type", vec![message(MessageKind::Ack, &[(0, &77_u16.to_ne_bytes())], None)]),
            ("129 bytes", vec![long]),
            ("AddRegion out of order", vec![region(REGION, good)]),
            ("Connect out of order", vec![plain(MessageKind::Connect)]),
            ("Hello out of order", vec![plain(MessageKind::Hello)]),
            ("has a peer already", vec![init(3)]),
            ("no device with id=4", vec![init(4)]),
            ("version", vec![message(MessageKind::Init, &[(2, &[1, 1])], None)]),
            ("Init with 1 descriptors", vec![message(MessageKind::Init, &[], Some(memory(good)))]),
        ];
        let before = scene.relay.refused();
        for (why, all) in &cases {
            let (_, last, reason) = scene.visit(all);
            assert_eq!(last, Some(MessageKind::Disconnect), "{why}");
            assert!(reason.contains(why), "{why}: {reason}");
        }
        assert_eq!(scene.relay.refused() - before, cases.len() as u64);

        // Those that need the device.
        drop(driver);
        assert!(hear(&honest).is_none());
        let region_without = message(MessageKind::AddRegion, &[(4, &REGION.to_ne_bytes())], None);
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let unsealable = message(MessageKind::AddRegion, &[(4, &1_u64.to_ne_bytes())], Some(file));
        let cases: Vec<(&str, Vec<Message>)> = vec![
            ("AddRegion with 0 descriptors", vec![init(3), region_without]),
            ("F_SEAL_SHRINK", vec![init(3), region(REGION, SealFlags::empty())]),
            ("F_SEAL_SHRINK", vec![init(3), unsealable]),
            ("cannot be written", vec![init(3), region(REGION, good | SealFlags::WRITE)]),
            ("65536 bytes behind it", vec![init(3), region(REGION + 1, good)]),
            ("region of 0 bytes", vec![init(3), region(0, good)]),
            ("ring of 384 bytes at 0 of region 0, which has 0", vec![init(3), ring(1, 0)]),
            ("at 65280", vec![init(3), region(REGION, good), ring(1, REGION as u32 - 256)]),
            ("at 2 of", vec![init(3), region(REGION, good), ring(1, 2)]),
            ("flags 0x2", vec![init(3), region(REGION, good), ring(2, 0)]),
            ("0 to the client", {
                vec![init(3), region(REGION, good), ring(1, 0), plain(MessageKind::Connect)]
            }),
            ("ring 0; the next of that direction is 1", {
                vec![init(3), region(REGION, good), ring(1, 0), ring(1, 0)]
            }),
        ];
        for (why, all) in &cases {
            let (_, last, reason) = scene.visit(all);
            assert_eq!(last, Some(MessageKind::Disconnect), "{why}");
            assert!(reason.contains(why), "{why}: {reason}");
        }
        assert!(!scene.has_driver_heard());
        let (honest, _driver) = scene.admit();
        drop(honest);
    }

    #[test]
    fn a_driver_never_gets_what_a_peer_could_block_it_with() {
        let scene = Scene::new("bell", &at_once());
        thread::scope(|scope| {
            let visitor = scope.spawn(|| scene.visit(&introduction(3)));
            let driver = scene.hear_of_one();
            let mut bells = 0;
            loop {
                let heard = hear(&driver).unwrap();
                if heard.kind() == Ok(MessageKind::Connect) {
                    break;
                }
                if heard.kind() == Ok(MessageKind::AddRing) {
                    let target = std::fs::read_link(format!(
                        "/proc/self/fd/{}",
                        std::os::fd::AsRawFd::as_raw_fd(&heard.descriptors[0])
                    ));
                    assert_eq!(target.unwrap().to_str(), Some("anon_inode:[eventfd]"));
                    let flags = rustix::fs::fcntl_getfl(&heard.descriptors[0]).unwrap();
                    assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
                    bells += 1;
                }
                plain(MessageKind::Ack).send(&driver, None);
            }
            assert_eq!(bells, 2);
            // The driver says no: so does the relay, with its reason.
            Message::new(memif_control::disconnect("Wrong ring")).send(&driver, None);
            let (_, last, reason) = visitor.join().unwrap();
            assert_eq!((last, reason.as_str()), (Some(MessageKind::Disconnect), "Wrong ring"));
        });
    }

    #[test]
    fn a_driver_writes_into_its_peers_eventfd_and_reads_none_and_the_relay_knows_whom_to_wait_for()
    {
        let scene = Scene::new("wake", &at_once());
        assert!(scene.relay.interrupts(3).is_none(), "there is no peer");
        let events = [new_event().unwrap(), new_event().unwrap()];
        let mut said = introduction(3);
        for (ring, event) in said[2..4].iter_mut().zip(&events) {
            ring.descriptors = vec![event.try_clone().unwrap()];
        }
        let before = scene.relay.connection();
        let rings = thread::scope(|scope| {
            let visitor = scope.spawn(|| scene.visit(&said));
            let driver = scene.hear_of_one();
            let mut rings = Vec::new();
            loop {
                let heard = hear(&driver).unwrap();
                if heard.kind() == Ok(MessageKind::Connect) {
                    break;
                }
                let is_ring = heard.kind() == Ok(MessageKind::AddRing);
                rings.extend(heard.descriptors.into_iter().filter(|_| is_ring));
                plain(MessageKind::Ack).send(&driver, None);
            }
            plain(MessageKind::Connected).send(&driver, None);
            let (_peer, last, _) = visitor.join().unwrap();
            assert_eq!(last, Some(MessageKind::Connected));
            // What each ring's descriptor at the driver is, tells what comes out of the client's.
            let was_written = |at: usize| {
                rustix::io::write(&rings[at], &1_u64.to_ne_bytes()).unwrap();
                rustix::io::read(&events[at], &mut [0; 8]).is_ok()
            };
            assert!(!was_written(0), "the ring that the driver reads");
            assert!(was_written(1), "the ring that it writes");
            let rings = scene.relay.interrupts(3).expect("a peer is there");
            assert!(scene.relay.connection() > before);
            rings
        });
        let [Some(ring)] = rings.as_slice() else { panic!("{rings:?}") };
        rustix::io::write(&events[0], &1_u64.to_ne_bytes()).unwrap();
        let mut watched = [PollFd::from_borrowed_fd(ring.event(), PollFlags::IN)];
        assert_eq!(poll(&mut watched, Some(&Timespec::default())), Ok(1));
        let began = Instant::now();
        while scene.relay.interrupts(3).is_some() {
            assert!(began.elapsed() < PATIENCE, "the peer has gone");
            thread::yield_now();
        }
    }

    /// Descriptors and threads are counted, so it runs in a process where no other test does.
    #[test]
    fn half_open_clients_hold_places_for_a_moment_only_and_leave_nothing_behind() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "io::dpdk::memif::tests::half_open_clients", "--nocapture"])
            .env("WEDJAT_HALF_OPEN", "")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        let errors = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("nothing left"), "{said}{errors}");
    }

    /// The child's part of the test before; nothing to do without it.
    #[test]
    fn half_open_clients() {
        if std::env::var_os("WEDJAT_HALF_OPEN").is_none() {
            return;
        }
        let scene = Scene::new("half", &at_once());
        let (honest, driver) = scene.admit();
        scene.relay.be_patient(Duration::from_millis(200));
        let before = descriptors();
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let threads_before = threads();
        let mut most = 0;
        for _ in 0..20 {
            let silent: Vec<_> = (0..HANDSHAKES).map(|_| scene.connect()).collect();
            for (number, peer) in silent.iter().enumerate() {
                // Each breaks off at another message.
                for message in introduction(4).iter().take(number % 3) {
                    message.send(peer, None);
                }
            }
            most = most.max(descriptors());
        }
        assert!(threads() <= threads_before + 8, "a thread for each would be {}", 20 * HANDSHAKES);
        assert!(most < before + 8 * HANDSHAKES, "{most} descriptors");
        // One that says nothing at all is sent away, and an honest one gets its turn.
        let silent = scene.connect();
        assert_eq!(hear_kind(&silent), Some(MessageKind::Hello));
        assert!(hear(&silent).is_none(), "its time was up");
        assert!(scene.relay.refused() > 0);
        drop((honest, driver, silent));
        while scene.relay.ended(3) == 0 {
            thread::yield_now();
        }
        scene.relay.be_patient(PATIENCE);
        let (honest, driver) = scene.admit();
        drop((honest, driver));
        let began = Instant::now();
        while descriptors() > before {
            assert!(began.elapsed() < PATIENCE, "{} descriptors, {before} before", descriptors());
            thread::yield_now();
        }
        println!("nothing left");
    }

    #[test]
    fn strangers_are_refused() {
        let scene = Scene::new("strangers", &at_once());
        let (ours, _theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        assert_eq!(scene.relay.admit(&ours), Ok(()), "this process is our user's");
        let no_socket = OwnedFd::from(std::io::pipe().unwrap().0);
        assert!(scene.relay.admit(&no_socket).is_err());
        assert_eq!(number_of("root"), Some(0));
        assert_eq!(number_of("4711"), Some(4711));
        assert_eq!(number_of("nobody-of-that-name"), None);
    }

    #[test]
    fn a_client_finds_no_server_fails_to_start_and_finds_one() {
        let mut relays = Relays::default();
        let vdev = format!("--vdev=net_memif0,socket={}", name("client"));
        relays.interpose(&[vdev], &at_once()).unwrap();
        let relay = &relays.of("net_memif0").unwrap().relay;
        relay.be_patient(PATIENCE);
        assert!(relay.connect(0, ONE, || panic!("there is no server")).is_none());
        assert!(relay.last_refusal().contains("refused"), "{}", relay.last_refusal());
        let server = relay.outer.listen(0o600).unwrap();
        let failed = relay.connect(0, ONE, || relay.inner.connect().is_err());
        assert!(failed.is_none());
        drop(rustix::net::accept(&server).unwrap());
        let mut driver = None;
        let mut connect = || {
            let connection = relay.connect(0, ONE, || {
                driver = relay.inner.connect().ok();
                driver.is_some()
            });
            (connection.unwrap(), rustix::net::accept(&server).unwrap(), driver.take().unwrap())
        };
        let hello = || Message::new(memif_control::hello(ONE));
        let (connection, peer, driver) = connect();
        hello().send(&peer, None);
        assert_eq!(hear_kind(&driver), Some(MessageKind::Hello));
        assert!(!connection.is_finished());
        drop(driver);
        assert!(hear(&peer).is_none());
        connection.join().unwrap();
        assert_eq!(relay.ended(0), 0, "it never stood");

        // What no server says.
        let cases = [
            ("Connected out of order", vec![hello(), plain(MessageKind::Connected)]),
            ("Hello out of order", vec![hello(), hello()]),
            ("Ack out of order", vec![plain(MessageKind::Ack)]),
            ("AddRegion with 1 descriptors", vec![region(REGION, SealFlags::SHRINK)]),
            ("memif version", vec![plain(MessageKind::Hello)]),
            ("because", vec![Message::new(memif_control::disconnect("because"))]),
        ];
        for (why, all) in cases {
            let (connection, peer, driver) = connect();
            all.iter().for_each(|message| message.send(&peer, None));
            connection.join().unwrap();
            assert!(relay.last_refusal().contains(why), "{why}: {}", relay.last_refusal());
            drop(driver);
        }

        // And what one does say.
        let (connection, peer, driver) = connect();
        hello().send(&peer, None);
        assert_eq!(hear_kind(&driver), Some(MessageKind::Hello));
        let (last, all) = introduction(0).split_off_last();
        for message in all {
            message.send(&driver, None);
            let heard = hear(&peer).unwrap();
            assert_eq!(heard.descriptors.len(), message.descriptors.len());
            plain(MessageKind::Ack).send(&peer, None);
            assert_eq!(hear_kind(&driver), Some(MessageKind::Ack));
        }
        last.send(&driver, None);
        assert_eq!(hear_kind(&peer), Some(MessageKind::Connect));
        plain(MessageKind::Connected).send(&peer, None);
        assert_eq!(hear_kind(&driver), Some(MessageKind::Connected));
        drop(peer);
        assert!(hear(&driver).is_none());
        connection.join().unwrap();
        assert_eq!(relay.ended(0), 1);
    }
}
