//! Relays between memif drivers and their peers on the control channel. No core is in a burst while the
//! driver maps or unmaps a peer's memory, and no harmful message reaches the driver.
//!
//! memif is a packet interface in shared memory: the client allocates regions with rings and announces them to
//! the server over a Unix socket, the control channel. These messages are the handshake.
//!
//! The driver (DPDK 22.11) maps and unmaps in EAL's interrupt thread on the arrival of a message or the close
//! of the socket, even during bursts. So it never has the peer's socket: it gets a private one, and the relay
//! forwards messages between the two. Messages that make it map or unmap wait at the [`Gate`].
//! [`memif_control`] checks the messages of peers. A server's driver sees a client only after all its
//! messages, and only if all are valid.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::Permissions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
use wedjat_core::io::memif_control::{
    self, ClientMessages, Descriptor, MESSAGE_BYTES, MessageKind, RINGS_MAX, Refusal, RingPlace,
    Rings, ServerMessages, Step,
};
use wedjat_core::io::vdev::{self, UnknownArgument};
use wedjat_core::outage::Outage;
use wedjat_core::state::files::advice;

use super::folders::{self, PrivateFolder};
use super::gate::Gate;
use super::interrupts::{AnnouncedMemory, RingInterrupt, is_eventfd};

/// Socket of a device without a `socket=` argument.
const DEFAULT_SOCKET: &str = "memif";

/// Maximum number of connections that wait at a listener.
const BACKLOG: i32 = 16;
/// Maximum number of concurrent handshakes of a socket. The next client waits until one of them ends.
const HANDSHAKES: usize = 16;
/// Time limit of a handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);
/// Pause between clients after a shortage of descriptors or memory.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Descriptors reserved for the rest of the process. EAL's interrupt thread ends the process if it cannot
/// open one.
const SPARE: usize = 32;
/// Reason for refusing a peer that would use the reserved descriptors.
const NO_DESCRIPTORS: &str = "too few descriptors left for another peer: raise ulimit -n";
/// Minimum interval between log lines about refused peers.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Number of checks of a socket file before it counts as left over. A live one may be bound but not served
/// yet.
const CHECKS_MAX: usize = 3;
/// Interval of these checks, and pause after a failed `poll`.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Role of a device in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// The device connects.
    Client,
    /// The device accepts connections.
    Server,
}

/// Address of the control channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Socket {
    /// Path of a file, or abstract name without its leading NUL byte.
    name: String,
    /// True for a socket in the system's abstract namespace, without a file.
    is_abstract: bool,
}

/// Reason why the socket of a memif device is not available.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process or device serves the socket.
    #[error("memif socket {0}: another process serves it: give each server a socket= of its own")]
    Served(String),
    /// The system refuses, or another file exists at the path.
    #[error("memif socket {socket}: {reason}: name another with socket=PATH")]
    Refused {
        /// Name of the socket.
        socket: String,
        /// The system's error, or a text on that file.
        reason: String,
    },
    /// The folder for sockets is not available.
    #[error("memif sockets: {0}")]
    Folder(std::io::Error),
    /// A user in `users=` is unknown.
    #[error(
        "memif device {device:?}: users= names {user:?}, which is not in /etc/passwd: name \
         users of that file, or give their numbers, as in users=alice+1001"
    )]
    User {
        /// Name of the device.
        device: String,
        /// The unknown user.
        user: String,
    },
    /// An unknown argument, or an invalid `socket-abstract=`. The driver would silently ignore an unknown argument
    /// together with all other arguments.
    #[error("memif device {device:?}: {found}; known arguments: {known}")]
    Argument {
        /// Name of the device.
        device: String,
        /// The faulty argument.
        found: String,
        /// The known arguments or values.
        known: String,
    },
    /// The devices of one socket allow different users.
    #[error("memif socket {0}: its devices have different users=: give all of them the same")]
    Users(String),
}

/// Relay of one socket: the public socket that devices of one role name, and the private one for the driver.
pub(super) struct Relay {
    /// Role of the socket's devices in this process.
    role: Role,
    /// Public socket from the arguments, which peers use.
    outer: Socket,
    /// Private socket of the driver.
    inner: Socket,
    /// Accepts peers for a server, and the driver itself for a client.
    listener: OwnedFd,
    /// True if this process created the file of `outer`, and it still exists.
    has_file: AtomicBool,
    /// Keeps cores out of bursts while the driver maps or unmaps memory.
    barrier: MapBarrier,
    /// Users whose processes may be peers, besides our own and root.
    users: BTreeSet<u32>,
    /// Our own eventfd, which no thread waits for. A server's driver gets it in place of a client's forbidden
    /// descriptor, and a server in place of an eventfd of our driver. A peer could make a shared descriptor block
    /// the core that writes or reads it. So drivers write only to descriptors shared with peers that could stop this
    /// process anyway ([`Relay::may_be_woken`]), and read none that a peer has.
    dummy_event: OwnedFd,
    /// Interrupts of the rings that this end reads, by device id; `None` while the device is not connected. Also the
    /// number of the device's last forwarder: the one with its connection, or with its latest handshake.
    interrupts: Mutex<BTreeMap<u32, (u64, Option<RingInterrupts>)>>,
    /// Number of forwarders so far.
    forwarders: AtomicU64,
    /// Number of changes of `interrupts`.
    connection: AtomicU64,
    /// Eventfd that each change of `interrupts` writes. It wakes the cores that sleep with the old ones.
    changed: OwnedFd,
    /// Queues of a server's started devices, by device id.
    served: Mutex<BTreeMap<u32, Rings>>,
    /// Status of the peers, for reports.
    status: Mutex<PeerStatus>,
    /// Time limit of a handshake, in milliseconds.
    handshake_ms: AtomicU64,
}

/// Interrupts of a device's receive rings by ring number. A core that sleeps waits for them. `None` for a ring without
/// a usable one: its descriptor is not an eventfd, or its region cannot be mapped.
pub(super) type RingInterrupts = Vec<Option<Arc<RingInterrupt>>>;

/// Status of peers for reports.
#[derive(Default)]
struct PeerStatus {
    /// Number of ended connections, by device id. Failed handshakes do not count.
    ended: BTreeMap<u32, u64>,
    /// Number of refused peers.
    refused: u64,
    /// Number of refused peers since the last log line.
    unlogged: u64,
    /// Time of the last log line.
    logged_at: Option<Instant>,
    /// Reason why the last attempt to connect failed.
    last_failure: String,
}

/// Barrier for messages that make the driver map or unmap memory.
struct MapBarrier {
    /// Gate that the cores pass for each burst.
    gate: Arc<Gate>,
    /// Waits until the driver has processed all earlier messages.
    settle: MapSettler,
}

impl MapBarrier {
    /// Calls `send`, which sends a message to the driver. Then waits until the driver has mapped or unmapped the
    /// memory. No core is in a burst meanwhile.
    fn send_and_settle(&self, send: impl FnOnce()) {
        self.gate.while_closed(|| {
            send();
            (self.settle)();
        });
    }
}

/// Function that waits until the driver has processed all earlier messages: it runs empty work in EAL's interrupt
/// thread. Tests without EAL pass another one.
pub(super) type MapSettler = Arc<dyn Fn() + Send + Sync>;

/// Guard of a started server device. The relay accepts peers while at least one exists.
pub(super) struct ServerDevice {
    /// Relay that accepts its peers.
    relay: Arc<Relay>,
    /// Id of the device in the protocol.
    id: u32,
}

/// A memif device and its relay.
#[derive(Clone)]
pub(super) struct RelayedDevice {
    /// Name of the device, such as `net_memif0`.
    pub(super) device: String,
    /// Id in the protocol, which is different for each device of a socket.
    pub(super) id: u32,
    /// Relay of its socket, which devices of the same role share.
    pub(super) relay: Arc<Relay>,
}

/// All memif devices of this process.
#[derive(Default)]
pub(super) struct Relays {
    /// The devices with their relays.
    all: Vec<RelayedDevice>,
    /// Folder of the drivers' sockets; created for the first one.
    private: Option<PrivateFolder>,
}

/// Arguments of a memif device for its connection.
struct Arguments<'a> {
    /// Value of `role=`.
    role: Role,
    /// Value of `socket=`.
    name: &'a str,
    /// Value of `socket-abstract=`, if given.
    is_abstract: Option<bool>,
    /// Value of `id=`.
    id: u32,
    /// Value of `users=`: names or numbers, separated by `+`. The driver has no such argument.
    users: &'a str,
    /// Arguments that the driver gets unchanged.
    for_driver: Vec<&'a str>,
}

impl fmt::Display for Socket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_abstract { "abstract" } else { "file" };
        write!(out, "{} ({kind})", self.name)
    }
}

impl Socket {
    /// Returns the driver's private socket for this one; only this user can reach it. A hash of socket and role names
    /// it, because a public name may be long or contain slashes.
    fn inner(&self, role: Role, folder: &Path) -> Self {
        let mut hasher = DefaultHasher::new();
        (self, role).hash(&mut hasher);
        let file = folder.join(format!("{:x}", hasher.finish()));
        Self { name: file.display().to_string(), is_abstract: false }
    }

    /// Returns the address for system calls.
    fn address(&self) -> Result<SocketAddrUnix, Errno> {
        match self.is_abstract {
            true => SocketAddrUnix::new_abstract_name(self.name.as_bytes()),
            false => SocketAddrUnix::new(&self.name),
        }
    }

    /// Binds and listens. A file gets `mode`, and replaces the file of a dead process.
    fn listen(&self, mode: u32) -> Result<OwnedFd, Errno> {
        let (socket, address) = (socket(SocketFlags::empty())?, self.address()?);
        // The new file has the mode that the socket has before `bind`.
        fchmod(&socket, Mode::from_raw_mode(mode))?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) if self.is_left_over() => {
                std::fs::remove_file(&self.name).map_err(|_| Errno::ADDRINUSE)?;
                rustix::net::bind(&socket, &address)?;
            }
            bound => bound?,
        }
        if !self.is_abstract {
            // The umask of the process has removed some bits.
            let _ = std::fs::set_permissions(&self.name, Permissions::from_mode(mode));
        }
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    /// Returns true if its path has a socket file that no process serves at any of [`CHECKS_MAX`] checks.
    fn is_left_over(&self) -> bool {
        let is_socket = |found: std::fs::Metadata| found.file_type().is_socket();
        !self.is_abstract
            && std::fs::symlink_metadata(&self.name).is_ok_and(is_socket)
            && (0..CHECKS_MAX).all(|check| {
                thread::sleep(CHECK_INTERVAL * u32::from(check > 0));
                folders::is_unserved(Path::new(&self.name))
            })
    }

    /// Returns the error for a name in use, depending on the kind of file.
    fn in_use_error(&self) -> SocketError {
        let socket = self.to_string();
        if !self.is_not_a_socket() {
            return SocketError::Served(socket);
        }
        let reason = "another file exists there and is left alone".to_owned();
        SocketError::Refused { socket, reason }
    }

    /// Returns true if the file at its path is no socket.
    fn is_not_a_socket(&self) -> bool {
        let found = std::fs::symlink_metadata(&self.name);
        !self.is_abstract && found.is_ok_and(|found| !found.file_type().is_socket())
    }

    /// Returns true if `sockets`, the text of /proc/net/unix, contains a listening socket of this name. It lists the
    /// sockets of this network namespace. The server does not notice this check, unlike a connection.
    fn is_listed(&self, sockets: &str) -> bool {
        let name = if self.is_abstract { format!("@{}", self.name) } else { self.name.clone() };
        sockets.lines().any(|line| {
            // The columns are Num RefCount Protocol Flags Type St Inode Path. A listening socket has the flag
            // __SO_ACCEPTCON. The second `nth(3)` counts from the column after Flags.
            let mut words = line.split_whitespace();
            words.nth(3) == Some("00010000") && words.nth(3) == Some(name.as_str())
        })
    }

    /// Returns true if a process serves the socket. If the list lacks a file, connects to it and closes: its server may
    /// be in another network namespace.
    fn is_served(&self) -> bool {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let is_there = || std::fs::symlink_metadata(&self.name).is_ok();
        self.is_listed(&sockets)
            || (!self.is_abstract && is_there() && !folders::is_unserved(Path::new(&self.name)))
    }

    /// Connects without waiting. Fails if the server's queue is full.
    fn connect(&self) -> Result<OwnedFd, Errno> {
        let socket = socket(SocketFlags::NONBLOCK)?;
        rustix::net::connect(&socket, &self.address()?)?;
        Ok(socket)
    }
}

/// Creates an unconnected socket of the type that memif uses.
fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | flags, None)
}

impl<'a> Arguments<'a> {
    /// Parses the arguments. Returns `None` if `socket-abstract=` is neither `yes` nor `no`, which the driver refuses.
    fn parse(arguments: &'a str) -> Option<Self> {
        let mut parsed = Self {
            role: Role::Client,
            name: DEFAULT_SOCKET,
            is_abstract: None,
            id: 0,
            users: "",
            for_driver: Vec::new(),
        };
        for argument in arguments.split(',').filter(|argument| !argument.is_empty()) {
            let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
            match (key, value) {
                ("socket", name) => parsed.name = name,
                ("socket-abstract", "yes") => parsed.is_abstract = Some(true),
                ("socket-abstract", "no") => parsed.is_abstract = Some(false),
                ("socket-abstract", _) => return None,
                ("users", users) => parsed.users = users,
                _ => parsed.for_driver.push(argument),
            }
            // The driver gets these too, so they are only read.
            match (key, value) {
                ("role", "server" | "master") => parsed.role = Role::Server,
                ("role", _) => parsed.role = Role::Client,
                ("id", id) => parsed.id = id.parse().unwrap_or(0),
                _ => {}
            }
        }
        Some(parsed)
    }

    /// Returns the public socket. It is abstract by `socket-abstract=`, or without that if the name begins with `@`.
    /// Otherwise a name with a slash is a file's path, and any other a file in `folder`. Only the latter calls
    /// `folder`, which may create it.
    fn socket(&self, folder: fn() -> std::io::Result<PathBuf>) -> Result<Socket, SocketError> {
        let is_abstract = self.is_abstract.unwrap_or(self.name.starts_with('@'));
        let name = match is_abstract || self.name.contains('/') {
            true => self.name.to_owned(),
            false => folder().map_err(SocketError::Folder)?.join(self.name).display().to_string(),
        };
        Ok(Socket { name, is_abstract })
    }

    /// Returns the ids of the users in `users=`.
    fn users(&self, device: &str) -> Result<BTreeSet<u32>, SocketError> {
        let unknown = |user: &str| SocketError::User { device: device.into(), user: user.into() };
        let named = self.users.split('+').filter(|user| !user.is_empty());
        named.map(|user| user_id(user).ok_or_else(|| unknown(user))).collect()
    }
}

/// Public socket of a memif device, for checks before a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// Name and kind of the socket, for messages.
    pub socket: String,
    /// True if the device is the server, false for a client.
    pub is_server: bool,
    /// True if a process serves the socket already.
    pub is_served: bool,
}

/// Returns the public socket of a memif device, given as in `--vdev`, and its state. Creates nothing.
///
/// # Errors
/// If `socket-abstract=` is invalid, a user is unknown, other users may enter the folder of sockets, or another file is
/// at a server's path. A server that serves it already is no error.
pub fn server_address(device: &str) -> Result<ServerAddress, SocketError> {
    let (name, arguments) = device.split_once(',').unwrap_or((device, ""));
    let Some(arguments) = Arguments::parse(arguments) else {
        let known = "yes or no".to_owned();
        let found = "socket-abstract is neither".to_owned();
        return Err(SocketError::Argument { device: name.to_owned(), found, known });
    };
    arguments.users(name)?;
    let socket = arguments.socket(folders::checked_path)?;
    let (is_server, is_served) = (arguments.role == Role::Server, socket.is_served());
    if is_server && socket.is_not_a_socket() {
        return Err(socket.in_use_error());
    }
    Ok(ServerAddress { socket: socket.to_string(), is_server, is_served })
}

/// Returns a user's id from a number or a name in /etc/passwd; `None` for an unknown name.
fn user_id(user: &str) -> Option<u32> {
    // A line of the file is NAME:PASSWORD:ID:...
    let id_in = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(user)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    let id_by_name = || std::fs::read_to_string("/etc/passwd").ok()?.lines().find_map(id_in);
    user.parse().ok().or_else(id_by_name)
}

impl Relays {
    /// Replaces the sockets in EAL's arguments for memif devices by private ones, and creates the relays.
    ///
    /// # Errors
    /// If a socket is not available, an argument or a user is unknown, or devices of one socket allow different users.
    pub(super) fn interpose(
        &mut self,
        arguments: &[String],
        settle: &MapSettler,
    ) -> Result<Vec<String>, SocketError> {
        let mut new_arguments = Vec::with_capacity(arguments.len());
        for argument in arguments {
            // Both `--vdev=DEVICE` and `--vdev DEVICE` are allowed.
            let (option, vdev) = argument
                .strip_prefix("--vdev=")
                .map_or(("", argument.as_str()), |vdev| ("--vdev=", vdev));
            let is_vdev =
                !option.is_empty() || new_arguments.last().is_some_and(|last| last == "--vdev");
            let (name, rest) = vdev.split_once(',').unwrap_or((vdev, ""));
            new_arguments.push(match is_vdev && name.starts_with("net_memif") {
                true => format!("{option}{}", self.interpose_device(name, rest, settle)?),
                false => argument.clone(),
            });
        }
        Ok(new_arguments)
    }

    /// Returns a device with its relay by the device's name; `None` for an unknown device.
    pub(super) fn of(&self, device: &str) -> Option<&RelayedDevice> {
        self.all.iter().find(|one| one.device == device)
    }

    /// Returns one memif device with its new arguments. Creates its relay, or finds that of another device on the same
    /// socket.
    fn interpose_device(
        &mut self,
        device: &str,
        arguments: &str,
        settle: &MapSettler,
    ) -> Result<String, SocketError> {
        if let Some(UnknownArgument { found, known, .. }) =
            vdev::unknown_argument(&format!("{device},{arguments}"))
        {
            return Err(SocketError::Argument { device: device.to_owned(), found, known });
        }
        let Some(arguments) = Arguments::parse(arguments) else {
            // Unchanged: the driver refuses them with a message of its own.
            return Ok(format!("{device},{arguments}"));
        };
        let (role, id) = (arguments.role, arguments.id);
        let (socket, users) = (arguments.socket(folders::runtime)?, arguments.users(device)?);
        let mut relays = self.all.iter().map(|one| &one.relay);
        let relay = match relays.find(|relay| relay.role == role && relay.outer == socket) {
            Some(relay) if relay.users != users => {
                return Err(SocketError::Users(socket.to_string()));
            }
            Some(relay) => Arc::clone(relay),
            None => {
                let private = match self.private.take() {
                    Some(private) => private,
                    None => PrivateFolder::new().map_err(SocketError::Folder)?,
                };
                let folder = self.private.insert(private).path();
                Arc::new(Relay::new(role, socket, folder, users, Arc::clone(settle))?)
            }
        };
        let inner = &relay.inner.name;
        let words: Vec<&str> = std::iter::once(device).chain(arguments.for_driver).collect();
        let device_text = format!("{},socket={inner},socket-abstract=no", words.join(","));
        self.all.push(RelayedDevice { device: device.to_owned(), id, relay });
        Ok(device_text)
    }
}

impl Relay {
    /// Creates the relay of the socket `outer`, with its private socket in `folder`. Listens at once: for peers if
    /// the devices are servers, for the driver if they are clients.
    fn new(
        role: Role,
        outer: Socket,
        folder: &Path,
        users: BTreeSet<u32>,
        settle: MapSettler,
    ) -> Result<Self, SocketError> {
        let inner = outer.inner(role, folder);
        let listening = match role {
            Role::Server => &outer,
            Role::Client => &inner,
        };
        let refusal = |error: Errno| match error {
            Errno::ADDRINUSE => listening.in_use_error(),
            _ => SocketError::Refused { socket: listening.to_string(), reason: error.to_string() },
        };
        // With `users=` the file is open to all, and `admit` checks each peer.
        let mode = if users.is_empty() { 0o600 } else { 0o666 };
        let listener = listening.listen(mode).map_err(refusal)?;
        let has_file = (role == Role::Server && !outer.is_abstract).into();
        let dummy_event = new_event().map_err(refusal)?;
        let changed = new_event().map_err(refusal)?;
        let barrier = MapBarrier { gate: Arc::default(), settle };
        let (served, status) = Default::default();
        let handshake_ms = AtomicU64::new(HANDSHAKE_MAX.as_millis() as u64);
        Ok(Self {
            role,
            outer,
            inner,
            listener,
            has_file,
            barrier,
            users,
            dummy_event,
            interrupts: Mutex::default(),
            forwarders: AtomicU64::new(0),
            connection: AtomicU64::new(0),
            changed,
            served,
            status,
            handshake_ms,
        })
    }

    /// Returns the role of the socket's devices.
    pub(super) fn role(&self) -> Role {
        self.role
    }

    /// Returns the time limit of a handshake.
    fn handshake_max(&self) -> Duration {
        Duration::from_millis(self.handshake_ms.load(Relaxed))
    }

    /// Returns the gate that the cores of the socket's devices pass for each burst.
    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.barrier.gate
    }

    /// Returns the public socket.
    pub(super) fn public_socket(&self) -> &Socket {
        &self.outer
    }

    /// Returns the reason why the last attempt to connect failed: a refusal, or an error of the system.
    pub(super) fn last_refusal(&self) -> String {
        locked(&self.status).last_failure.clone()
    }

    /// Returns the number of ended connections of a device.
    pub(super) fn ended(&self, id: u32) -> u64 {
        locked(&self.status).ended.get(&id).copied().unwrap_or(0)
    }

    /// Returns the number of refused peers, over all devices of the socket.
    pub(super) fn refused(&self) -> u64 {
        locked(&self.status).refused
    }

    /// Registers a started device of a server, with its queues. The first one starts the thread that accepts
    /// peers. After the drop of the last one the listener is shut down, so later devices get no peers.
    ///
    /// # Errors
    /// If the system has no thread.
    pub(super) fn serve(self: &Arc<Self>, id: u32, rings: Rings) -> std::io::Result<ServerDevice> {
        let is_first = {
            let mut served = locked(&self.served);
            let is_first = served.is_empty();
            served.insert(id, rings);
            is_first
        };
        // Unregisters the device if the thread does not start.
        let device = ServerDevice { relay: Arc::clone(self), id };
        if is_first {
            Forwarder::new(self, true).spawn()?;
        }
        Ok(device)
    }

    /// Accepts a connection from the listener. Waits for one.
    fn accept(&self) -> Result<OwnedFd, Errno> {
        retry_on_intr(|| rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC))
    }

    /// Connects a client's device with these queues if its server runs; `start` starts the device. The returned thread
    /// runs the handshake and forwards messages. It exits when the connection ends, also after a refusal by the server.
    /// Returns `None` if no server runs or its queue is full, its user is not allowed, the device does not start, or
    /// the system gives no descriptor or thread.
    pub(super) fn connect(
        self: &Arc<Self>,
        id: u32,
        rings: Rings,
        start: impl FnOnce() -> bool,
    ) -> Option<JoinHandle<()>> {
        let peer = match self.outer.connect() {
            Ok(peer) => peer,
            Err(error) => return self.note_failure(error),
        };
        if let Err(why) = self.admit(&peer) {
            self.refuse(&peer, &why);
            return None;
        }
        self.forget_pending();
        let mut forwarder = Forwarder::new(self, false);
        self.begin(id, forwarder.number); // the device is stopped
        if !start() {
            return self.note_failure("the device does not start");
        }
        // The driver connects before its start returns.
        let driver = match self.accept() {
            Ok(driver) => driver,
            Err(error) => return self.note_failure(error),
        };
        let (checker, announced) = (ServerMessages::new(rings), AnnouncedMemory::default());
        forwarder.add(peer, ChannelState::Server { id, checker, driver, announced });
        forwarder.spawn().map_or_else(|error| self.note_failure(error), Some)
    }

    /// Stores the reason why an attempt to connect failed. Returns `None`.
    fn note_failure<T>(&self, why: impl fmt::Display) -> Option<T> {
        locked(&self.status).last_failure = why.to_string();
        None
    }

    /// Drops connections of the driver from failed starts. The next accept then returns that of the new start.
    fn forget_pending(&self) {
        let at_once = Timespec::default();
        while poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&at_once)) == Ok(1) {
            drop(self.accept());
        }
    }

    /// Checks that the process behind the socket may be a peer: its user is root, ours, or in `users=`.
    fn admit(&self, peer: &OwnedFd) -> Result<(), String> {
        let Some(user) = credentials(peer).map(|peer| peer.uid) else {
            return Err("the system does not name its user".to_owned());
        };
        let is_allowed = user.is_root()
            || user == rustix::process::geteuid()
            || self.users.contains(&user.as_raw());
        match is_allowed {
            true => Ok(()),
            false => Err("its user is neither this user nor root nor in users=".to_owned()),
        }
    }

    /// Returns true if our driver may write to a descriptor shared with this peer, which the peer could make block: its
    /// user is root or ours, so it could stop this process anyway.
    fn may_be_woken(peer: &OwnedFd) -> bool {
        let user = credentials(peer).map(|peer| peer.uid);
        user.is_some_and(|user| user.is_root() || user == rustix::process::geteuid())
    }

    /// Returns a number that grows with each connect or disconnect of a peer. After a change a core reads
    /// [`Relay::interrupts`] again.
    pub(super) fn connection(&self) -> u64 {
        self.connection.load(Acquire)
    }

    /// Returns the eventfd that is written after each change of [`Relay::connection`]. Nothing reads it, so only an
    /// edge-triggered wait serves.
    pub(super) fn changed(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }

    /// Returns true if a device has a peer and the handshake has ended: its ports send and receive packets.
    pub(super) fn is_connected(&self, id: u32) -> bool {
        self.interrupts(id).is_some()
    }

    /// Returns the interrupts of the rings that a device reads; `None` without a peer.
    pub(super) fn interrupts(&self, id: u32) -> Option<RingInterrupts> {
        locked(&self.interrupts).get(&id).and_then(|(_, interrupts)| interrupts.clone())
    }

    /// Records that a client's device begins a handshake by this forwarder, and has no peer yet.
    fn begin(&self, id: u32, forwarder: u64) {
        let mut by_device = locked(&self.interrupts);
        if let Some((_, Some(_))) = by_device.insert(id, (forwarder, None)) {
            self.note_change();
        }
    }

    /// Records that a device has a peer, with these interrupts, by this forwarder. Returns false if a later forwarder
    /// has begun a handshake of the device. The peer then belongs to an older connection.
    fn note_connection(&self, id: u32, forwarder: u64, interrupts: RingInterrupts) -> bool {
        let mut by_device = locked(&self.interrupts);
        let is_last = by_device.get(&id).is_none_or(|(last, _)| *last <= forwarder);
        if is_last {
            by_device.insert(id, (forwarder, Some(interrupts)));
            self.note_change();
        }
        is_last
    }

    /// Records that a device has no peer any more, by this forwarder. A client's device may have a new connection by a
    /// new forwarder before the old one notices its end.
    fn note_end(&self, id: u32, forwarder: u64) {
        let mut by_device = locked(&self.interrupts);
        if let Some((owner, interrupts)) = by_device.get_mut(&id)
            && *owner == forwarder
            && interrupts.take().is_some()
        {
            self.note_change();
        }
    }

    /// Counts a change of the connections, and wakes sleeping cores. The caller has locked `interrupts`.
    fn note_change(&self) {
        self.connection.fetch_add(1, Release);
        // Fails only after 2^64 - 2 changes.
        let _ = rustix::io::write(&self.changed, &1_u64.to_ne_bytes());
    }

    /// Counts a refused peer and stores the reason. Logs refusals at most once per [`LOG_INTERVAL`]. Sends the peer
    /// nothing.
    fn refuse(&self, peer: &OwnedFd, why: &dyn fmt::Display) {
        let mut status = locked(&self.status);
        status.last_failure = why.to_string();
        status.refused += 1;
        status.unlogged += 1;
        if status.logged_at.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            return;
        }
        let process = credentials(peer).map_or("somebody".to_owned(), |peer| {
            format!("process {} of user {}", peer.pid.as_raw_nonzero(), peer.uid.as_raw())
        });
        let (socket, count) = (&self.outer, std::mem::take(&mut status.unlogged));
        status.logged_at = Some(Instant::now());
        match self.role {
            Role::Server => {
                log::warn!("memif socket {socket}: refused {count} peers, last {process}: {why}")
            }
            Role::Client => {
                log::info!("memif socket {socket}: the server, {process}, is refused: {why}")
            }
        }
    }

    /// Returns true if this process can open `descriptors` more descriptors. Opens and closes as many.
    fn has_room_for(&self, descriptors: usize) -> bool {
        let more: Result<Vec<_>, _> =
            (0..descriptors).map(|_| self.dummy_event.try_clone()).collect();
        more.is_ok()
    }

    /// Removes the file of the public socket if this process created it.
    fn remove_file(&self) {
        if self.has_file.swap(false, Relaxed) {
            let _ = std::fs::remove_file(&self.outer.name);
        }
    }

    /// Forwards a client's messages to a server's driver. Returns the driver's socket and its final message,
    /// `Connected`.
    ///
    /// # Errors
    /// If the driver refuses, with the reason given by it, if any.
    fn introduce(
        &self,
        peer: &OwnedFd,
        messages: &[Message],
    ) -> Result<(OwnedFd, Message), String> {
        let driver = self.inner.connect().map_err(|error| error.to_string())?;
        match self.introduce_to(&driver, Self::may_be_woken(peer), messages) {
            Ok(connected) => Ok((driver, connected)),
            Err(reason) => {
                self.barrier.send_and_settle(|| {
                    let _ = rustix::net::shutdown(&driver, Shutdown::Both);
                });
                Err(reason)
            }
        }
    }

    /// Sends a client's messages to the driver on its socket and waits for each answer. Returns the last one.
    /// `may_wake` allows the driver to write to the client's eventfds.
    fn introduce_to(
        &self,
        driver: &OwnedFd,
        may_wake: bool,
        messages: &[Message],
    ) -> Result<Message, String> {
        let silent = || "the driver does not accept it".to_owned();
        let expect = |expected: MessageKind| {
            let answer = Message::await_from(driver, self.handshake_max()).ok_or_else(silent)?;
            match answer.kind() {
                Ok(kind) if kind == expected => Ok(answer),
                Ok(MessageKind::Disconnect) => Err(memif_control::reason(answer.bytes())),
                _ => Err(silent()),
            }
        };
        expect(MessageKind::Hello)?;
        let (connect, announcements) = messages.split_last().ok_or_else(silent)?;
        for message in announcements {
            message.send(driver, Some(message.event(may_wake, false).unwrap_or(&self.dummy_event)));
            expect(MessageKind::Ack)?;
        }
        self.barrier.send_and_settle(|| connect.send(driver, None));
        expect(MessageKind::Connected)
    }
}

/// Locks a mutex. A panic of another thread leaves the data consistent, so it is ignored.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the process and user of a peer, as the kernel recorded them at its connect; `None` if the kernel has none.
fn credentials(peer: &OwnedFd) -> Option<UCred> {
    socket_peercred(peer).ok()
}

impl Drop for ServerDevice {
    /// Unregisters the device. After the last one the relay accepts no more peers for good, and removes its file.
    fn drop(&mut self) {
        let mut served = locked(&self.relay.served);
        served.remove(&self.id);
        if served.is_empty() {
            // Wakes the thread that waits there for a peer.
            let _ = rustix::net::shutdown(&self.relay.listener, Shutdown::Both);
            self.relay.remove_file();
        }
    }
}

impl Drop for Relay {
    /// Removes the file of the public socket, if this process created it and it still exists.
    fn drop(&mut self) {
        self.remove_file();
    }
}

/// State of the thread that forwards all messages of a server's socket, or of a client's single connection.
struct Forwarder {
    /// Relay of the socket.
    relay: Arc<Relay>,
    /// Number of this forwarder among those of the relay.
    number: u64,
    /// True while it accepts peers.
    accepts: bool,
    /// Earliest time of the next accept, after a shortage.
    accepts_from: Option<Instant>,
    /// Failures to accept a peer.
    outage: Outage,
    /// Control channels of the current peers.
    channels: Vec<PeerChannel>,
    /// Ids of the connected devices.
    connected: BTreeSet<u32>,
}

/// Control channel of one peer.
struct PeerChannel {
    /// Socket of the peer.
    peer: OwnedFd,
    /// Phase of the connection.
    state: ChannelState,
    /// Time of the channel's creation.
    began: Instant,
}

/// State of a connection. A `checker` accepts only messages that the protocol allows next.
enum ChannelState {
    /// Handshake of a client. Its valid messages wait in `messages`; the driver has seen none of them.
    Client { checker: ClientMessages, messages: Vec<Message> },
    /// Handshake of our driver with a server. `announced` collects the driver's memory, for the interrupts.
    Server { id: u32, checker: ServerMessages, driver: OwnedFd, announced: AnnouncedMemory },
    /// The connection is up: packets flow.
    Connected { id: u32, driver: OwnedFd },
}

impl ChannelState {
    /// Returns the driver's socket; `None` while the driver takes no part yet.
    fn driver(&self) -> Option<&OwnedFd> {
        match self {
            Self::Client { .. } => None,
            Self::Server { driver, .. } | Self::Connected { driver, .. } => Some(driver),
        }
    }

    /// Returns true until the connection is up.
    fn is_handshake(&self) -> bool {
        !matches!(self, Self::Connected { .. })
    }
}

/// Ends of a channel that are ready to read.
#[derive(Clone, Copy)]
struct ReadyEnds {
    /// True if the driver has sent a message or closed its socket.
    driver: bool,
    /// True if the peer has sent a message or closed its socket.
    peer: bool,
}

impl Forwarder {
    /// Creates a forwarder without channels. `accepts` is true for the thread of a server's socket.
    fn new(relay: &Arc<Relay>, accepts: bool) -> Self {
        let number = relay.forwarders.fetch_add(1, Relaxed);
        let (relay, channels) = (Arc::clone(relay), Vec::new());
        let (outage, connected) = (Outage::default(), BTreeSet::new());
        Self { relay, number, accepts, accepts_from: None, outage, channels, connected }
    }

    /// Adds a channel.
    fn add(&mut self, peer: OwnedFd, state: ChannelState) {
        self.channels.push(PeerChannel { peer, state, began: Instant::now() });
    }

    /// Starts the thread on the caller's CPUs. It sleeps except when a peer connects or leaves.
    fn spawn(self) -> std::io::Result<JoinHandle<()>> {
        thread::Builder::new().name("memif".to_owned()).spawn(move || self.run())
    }

    /// Runs until it accepts no more peers and the last one has left.
    fn run(mut self) {
        while self.accepts || !self.channels.is_empty() {
            let (ready, has_client) = self.wait();
            for (channel, ready) in std::mem::take(&mut self.channels).into_iter().zip(ready) {
                let next = self.advance(channel, ready);
                self.channels.extend(next);
            }
            if has_client {
                self.accept_client();
            }
        }
    }

    /// Waits for messages until the next deadline. Returns the ready ends of each channel, and true if a peer
    /// waits at the listener.
    fn wait(&mut self) -> (Vec<ReadyEnds>, bool) {
        let now = Instant::now();
        if self.accepts_from.is_some_and(|from| from <= now) {
            self.accepts_from = None;
        }
        let handshakes = || self.channels.iter().filter(|channel| channel.state.is_handshake());
        let listens =
            self.accepts && self.accepts_from.is_none() && handshakes().count() < HANDSHAKES;
        let longest = self.relay.handshake_max();
        let ends = handshakes().map(|channel| channel.began + longest);
        let wait =
            ends.chain(self.accepts_from).min().map(|end| end.saturating_duration_since(now));
        // Rounded up, so that the deadline has passed at the return.
        let wait = wait.and_then(|wait| Timespec::try_from(wait + Duration::from_millis(1)).ok());

        let watch = |end| PollFd::new(end, PollFlags::IN);
        let mut ends: Vec<PollFd<'_>> = Vec::new();
        for channel in &self.channels {
            ends.push(watch(&channel.peer));
            ends.extend(channel.state.driver().map(watch));
        }
        if listens {
            ends.push(watch(&self.relay.listener));
        }
        if retry_on_intr(|| poll(&mut ends, wait.as_ref())).is_err() {
            // No end counts as ready. The system may lack memory now and have some later.
            ends.iter_mut().for_each(PollFd::clear_revents);
            thread::sleep(CHECK_INTERVAL);
        }
        let mut readiness = ends.iter().map(|end| !end.revents().is_empty());
        let mut next_is_ready = || readiness.next().unwrap_or(false);
        let ready = self.channels.iter().map(|channel| ReadyEnds {
            peer: next_is_ready(),
            driver: channel.state.driver().is_some() && next_is_ready(),
        });
        let ready = ready.collect();
        (ready, listens && next_is_ready())
    }

    /// Accepts a client from the listener and offers it the rings. Refuses it if its user is not allowed or descriptors
    /// are short.
    fn accept_client(&mut self) {
        let relay = Arc::clone(&self.relay);
        let peer = match relay.accept() {
            Ok(peer) => peer,
            // The last device has shut down the listener.
            Err(_) if locked(&relay.served).is_empty() => {
                self.accepts = false;
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
                self.accepts_from = Some(Instant::now() + RETRY_PAUSE);
                return;
            }
        };
        if let Some(count) = self.outage.works(Instant::now()) {
            log::info!("memif socket {}: accepts peers again after {count} failures", relay.outer);
        }
        if let Err(why) = relay.admit(&peer) {
            return relay.refuse(&peer, &why);
        }
        if !relay.has_room_for(SPARE) {
            self.accepts_from = Some(Instant::now() + RETRY_PAUSE);
            return relay.refuse(&peer, &NO_DESCRIPTORS);
        }
        // The client names its device only in its answer, so the offer is the largest of all devices.
        let largest =
            |of: fn(&Rings) -> u16| locked(&relay.served).values().map(of).max().unwrap_or(0);
        let offered = Rings {
            to_server: largest(|rings| rings.to_server),
            to_client: largest(|rings| rings.to_client),
        };
        Message::new(memif_control::hello(offered)).send(&peer, None);
        self.add(
            peer,
            ChannelState::Client { checker: ClientMessages::default(), messages: Vec::new() },
        );
    }

    /// Advances a channel by one message or its timeout. Returns `None` at its end.
    fn advance(&mut self, channel: PeerChannel, ready: ReadyEnds) -> Option<PeerChannel> {
        let relay = Arc::clone(&self.relay);
        let PeerChannel { peer, state, began } = channel;
        let longest = relay.handshake_max();
        let is_late = state.is_handshake() && began.elapsed() >= longest;
        let state = match state {
            ChannelState::Client { checker, messages } if ready.peer => {
                self.receive_from_client(&peer, checker, messages)?
            }
            ChannelState::Server { id, checker, driver, announced } if ready.driver => {
                self.receive_from_driver(&peer, id, checker, driver, announced)?
            }
            ChannelState::Server { id, checker, driver, announced } if ready.peer => {
                self.receive_from_server(&peer, id, checker, driver, announced)?
            }
            ChannelState::Connected { id, driver } if ready.driver => {
                // The driver comes first: its state decides the meaning of the peer's message.
                match Message::receive(&driver) {
                    Some(message) => message.send(&peer, None),
                    None => return self.count_end(id),
                };
                ChannelState::Connected { id, driver }
            }
            // A connected peer may send only a disconnect. Any other message ends the connection, too.
            ChannelState::Connected { id, driver } if ready.peer => {
                self.end(&peer, &driver, Message::receive(&peer));
                return self.count_end(id);
            }
            state if is_late => {
                relay.refuse(&peer, &format_args!("no connection after {longest:?}"));
                if let Some(driver) = state.driver() {
                    self.end(&peer, driver, None);
                }
                return None;
            }
            state => state,
        };
        Some(PeerChannel { peer, state, began })
    }

    /// Counts an ended connection, whose device becomes free for another peer. Returns `None`, which ends the
    /// channel.
    fn count_end(&mut self, id: u32) -> Option<PeerChannel> {
        self.connected.remove(&id);
        self.relay.note_end(id, self.number);
        *locked(&self.relay.status).ended.entry(id).or_default() += 1;
        None
    }

    /// Processes the next message of a client's handshake: acknowledges it in place of the driver, or refuses the
    /// client. After the last one the driver gets all messages. Returns the next state; `None` ends the channel.
    fn receive_from_client(
        &mut self,
        peer: &OwnedFd,
        mut checker: ClientMessages,
        mut messages: Vec<Message>,
    ) -> Option<ChannelState> {
        let relay = Arc::clone(&self.relay);
        let message = Message::receive(peer)?;
        let memory: Vec<_> =
            message.descriptors.iter().map(|one| Descriptor::of(one.as_fd())).collect();
        // The message's descriptors are open now, and may have used up the reserve.
        let has_room = message.descriptors.is_empty() || relay.has_room_for(SPARE);
        let rings_of = |id: u32| match locked(&relay.served).get(&id) {
            _ if self.connected.contains(&id) => Err(Refusal::Taken(id)),
            Some(&rings) => Ok(rings),
            None => Err(Refusal::NoDevice(id)),
        };
        let step = checker.take(message.bytes(), &memory, rings_of);
        messages.push(message);
        let refuse = |why: &dyn fmt::Display| {
            relay.refuse(peer, why);
            Message::new(memif_control::disconnect(&why.to_string())).send(peer, None);
        };
        let id = checker.id().unwrap_or_default();
        match step {
            Ok(_) if !has_room => {
                self.accepts_from = Some(Instant::now() + RETRY_PAUSE);
                refuse(&NO_DESCRIPTORS);
                None
            }
            Ok(Step::Next) => {
                Message::new(memif_control::ack()).send(peer, None);
                Some(ChannelState::Client { checker, messages })
            }
            Ok(Step::Leaves) => None,
            // Another client of the same device was faster: handshakes run side by side.
            Ok(Step::Complete) if self.connected.contains(&id) => {
                refuse(&Refusal::Taken(id));
                None
            }
            // The driver opens a copy of each descriptor and more of its own. A message has at most one descriptor, so
            // twice the number of messages is ample.
            Ok(Step::Complete) if !relay.has_room_for(SPARE + 2 * messages.len()) => {
                self.accepts_from = Some(Instant::now() + RETRY_PAUSE);
                refuse(&NO_DESCRIPTORS);
                None
            }
            Ok(Step::Complete) => match relay.introduce(peer, &messages) {
                Ok((driver, connected)) => {
                    self.connected.insert(id);
                    relay.note_connection(id, self.number, announced(messages).interrupts());
                    connected.send(peer, None);
                    Some(ChannelState::Connected { id, driver })
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

    /// Forwards the next message of our own driver in a handshake with a server. Replaces eventfds that the server must
    /// not share with the driver. `None` ends the channel.
    fn receive_from_driver(
        &mut self,
        peer: &OwnedFd,
        id: u32,
        mut checker: ServerMessages,
        driver: OwnedFd,
        mut announced: AnnouncedMemory,
    ) -> Option<ChannelState> {
        let message = Message::receive(&driver)?;
        if let Ok(kind) = message.kind() {
            checker.note_client_message(kind);
        }
        if message.kind() == Ok(MessageKind::AddRegion)
            && let Some(region) = message.descriptors.first()
        {
            announced.add_region(region.as_fd());
        }
        // The peer writes the rings that we read. It gets a new eventfd in place of the driver's, so the driver never
        // reads it. A core that sleeps waits for it.
        let read_ring = RingPlace::of(message.bytes()).filter(|place| !place.to_server);
        let own_event = read_ring.and_then(|_| new_event().ok());
        let may_wake = Relay::may_be_woken(peer);
        let event = own_event.as_ref().or_else(|| message.event(may_wake, true));
        message.send(peer, Some(event.unwrap_or(&self.relay.dummy_event)));
        if let Some(place) = read_ring {
            announced.add_ring(place, own_event);
        }
        Some(ChannelState::Server { id, checker, driver, announced })
    }

    /// Checks the next message of a server in a handshake with our driver, and forwards it. `None` ends the channel.
    fn receive_from_server(
        &mut self,
        peer: &OwnedFd,
        id: u32,
        mut checker: ServerMessages,
        driver: OwnedFd,
        announced: AnnouncedMemory,
    ) -> Option<ChannelState> {
        let relay = Arc::clone(&self.relay);
        let Some(message) = Message::receive(peer) else {
            locked(&relay.status).last_failure = "the server closed its end".to_owned();
            self.end(peer, &driver, None);
            return None;
        };
        match checker.take(message.bytes(), message.descriptors.len()) {
            // The driver creates its regions and rings.
            Ok(MessageKind::Hello) => relay.barrier.send_and_settle(|| message.send(&driver, None)),
            Ok(MessageKind::Connected) => {
                // At this message the driver masks the interrupts of the rings that it reads. A core may unmask them
                // only afterwards.
                relay.barrier.send_and_settle(|| message.send(&driver, None));
                if !relay.note_connection(id, self.number, announced.interrupts()) {
                    self.end(peer, &driver, None);
                    return None;
                }
                self.connected.insert(id);
                return Some(ChannelState::Connected { id, driver });
            }
            Ok(MessageKind::Disconnect) => {
                locked(&relay.status).last_failure = memif_control::reason(message.bytes());
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
        Some(ChannelState::Server { id, checker, driver, announced })
    }

    /// Disconnects the driver from its peer, and waits until it has unmapped the peer's memory. Closing our
    /// end would not suffice: a process that this one has just started may have a copy of it.
    fn end(&self, peer: &OwnedFd, driver: &OwnedFd, last: Option<Message>) {
        self.relay.barrier.send_and_settle(|| {
            let is_farewell = |last: &Message| last.kind() == Ok(MessageKind::Disconnect);
            if let Some(message) = last.filter(is_farewell) {
                Message { descriptors: Vec::new(), ..message }.send(driver, None);
            }
            let _ = rustix::net::shutdown(driver, Shutdown::Write);
        });
        // Forwards the driver's answer, if any. Messages that wait already stay readable.
        let _ = rustix::net::shutdown(driver, Shutdown::Read);
        while let Some(message) = Message::receive(driver) {
            message.send(peer, None);
        }
    }
}

/// Message of the control channel with its descriptors.
struct Message {
    /// One byte more than the protocol's messages, to detect longer ones.
    bytes: [u8; MESSAGE_BYTES + 1],
    /// Length of the message in bytes.
    len: usize,
    /// Descriptors that came with the message or go with it.
    descriptors: Vec<OwnedFd>,
}

impl Message {
    /// Creates a message without descriptors.
    fn new(message: [u8; MESSAGE_BYTES]) -> Self {
        let mut bytes = [0; MESSAGE_BYTES + 1];
        bytes[..MESSAGE_BYTES].copy_from_slice(&message);
        Self { bytes, len: MESSAGE_BYTES, descriptors: Vec::new() }
    }

    /// Returns the received or sent bytes.
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the type, or the reason why it is no message of the protocol.
    fn kind(&self) -> Result<MessageKind, Refusal> {
        MessageKind::of(self.bytes())
    }

    /// Receives a message without waiting. Returns `None` if the peer's end is closed, no message waits, or the message
    /// is empty.
    fn receive(end: &OwnedFd) -> Option<Self> {
        let mut bytes = [0; MESSAGE_BYTES + 1];
        // A message has at most one descriptor. With room for two, the checker sees a second one.
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
            // Too many descriptors for the buffer or for this process. None of them is used.
            descriptors.clear();
        }
        (len > 0).then_some(Self { bytes, len, descriptors })
    }

    /// Returns the eventfd of a ring that our driver writes. `to_server` is the direction in which it writes: true for
    /// a client's driver. `None` for other messages and rings, or if the driver may not write to the eventfd:
    /// `may_wake` is false, or the descriptor is no eventfd.
    fn event(&self, may_wake: bool, to_server: bool) -> Option<&OwnedFd> {
        let place = RingPlace::of(self.bytes())?;
        let event = self.descriptors.first()?;
        (may_wake && place.to_server == to_server && is_eventfd(event.as_fd())).then_some(event)
    }

    /// Waits for the next message, at most for `timeout`. `None` if none comes or the end is closed.
    fn await_from(end: &OwnedFd, timeout: Duration) -> Option<Self> {
        let wait = Timespec::try_from(timeout).ok();
        let mut watched = [PollFd::new(end, PollFlags::IN)];
        let ready_ends = retry_on_intr(|| poll(&mut watched, wait.as_ref()));
        (ready_ends == Ok(1)).then(|| Self::receive(end)).flatten()
    }

    /// Sends the message without waiting. A closed or busy end misses it; the state of that end shows the reason. If
    /// given, `event` replaces the descriptor of an `AddRing` message.
    fn send(&self, end: &OwnedFd, event: Option<&OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let original = self.descriptors.first();
        let descriptor = match self.kind() {
            Ok(MessageKind::AddRing) => event.or(original),
            _ => original,
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

/// Creates an eventfd whose reads and writes do not block.
fn new_event() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Collects a client's memory from its messages, for the interrupts of the rings to the server, which this end reads.
fn announced(messages: Vec<Message>) -> AnnouncedMemory {
    let mut announced = AnnouncedMemory::default();
    for Message { bytes, descriptors, .. } in messages {
        let message = &bytes[..MESSAGE_BYTES];
        let place = RingPlace::of(message).filter(|place| place.to_server);
        let is_region = MessageKind::of(message) == Ok(MessageKind::AddRegion);
        for descriptor in descriptors {
            match place {
                Some(place) => announced.add_ring(place, Some(descriptor)),
                None if is_region => announced.add_region(descriptor.as_fd()),
                None => {}
            }
        }
    }
    announced
}

/// Returns the numbers of rings, by direction, of a device with these numbers of receive and transmit queues; at most
/// [`RINGS_MAX`] each.
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
    use crate::TIMEOUT;

    /// Size of a test client's region in bytes.
    const REGION: u64 = 1 << 16;
    /// One queue pair.
    const ONE: Rings = Rings { to_server: 1, to_client: 1 };

    impl Relay {
        /// Sets the time limit of handshakes. A test may stall in the middle of one.
        fn set_handshake_timeout(&self, handshake: Duration) {
            self.handshake_ms.store(handshake.as_millis() as u64, Relaxed);
        }
    }

    /// Returns the settler of a driver that has always processed all messages, so nothing needs to wait.
    fn at_once() -> MapSettler {
        Arc::new(|| {})
    }

    /// Splits a command line into its words.
    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the name of an abstract socket of this test process.
    fn name(test: &str) -> String {
        format!("@wedjat-{test}-{}", std::process::id())
    }

    /// Creates a message of this kind with these bytes at their offsets, and with the descriptor if given.
    fn message(
        kind: MessageKind,
        fields: &[(usize, &[u8])],
        descriptor: Option<OwnedFd>,
    ) -> Message {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..2].copy_from_slice(&(kind as u16).to_ne_bytes());
        for (offset, field) in fields {
            bytes[*offset..offset + field.len()].copy_from_slice(field);
        }
        Message { descriptors: descriptor.into_iter().collect(), ..Message::new(bytes) }
    }

    /// Creates a message of this kind, with zeros in its fields.
    fn plain(kind: MessageKind) -> Message {
        message(kind, &[], None)
    }

    /// Creates a client's request for device `id`, in protocol version 2.0.
    fn init(id: u32) -> Message {
        message(MessageKind::Init, &[(2, &0x200_u16.to_ne_bytes()), (4, &id.to_ne_bytes())], None)
    }

    /// Creates the memory of a region, with these seals.
    fn memory(seals: SealFlags) -> OwnedFd {
        let file = memfd_create("region", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, REGION).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    /// Creates the announcement of a region of `bytes` bytes. Its memory has [`REGION`] bytes and these seals.
    fn region(bytes: u64, seals: SealFlags) -> Message {
        message(MessageKind::AddRegion, &[(4, &bytes.to_ne_bytes())], Some(memory(seals)))
    }

    /// Creates the announcement of a ring of 2^4 slots at `offset` in region 0; flag 1 means to the server. Its
    /// descriptor is a pipe, which could block the driver.
    fn ring(flags: u16, offset: u32) -> Message {
        let fields: [(usize, &[u8]); 3] =
            [(2, &flags.to_ne_bytes()), (8, &offset.to_ne_bytes()), (12, &[4])];
        message(MessageKind::AddRing, &fields, Some(OwnedFd::from(std::io::pipe().unwrap().1)))
    }

    /// Creates all messages of the handshake of a client with one queue pair.
    fn introduction(id: u32) -> Vec<Message> {
        let region = region(REGION, SealFlags::SHRINK);
        vec![init(id), region, ring(1, 0), ring(0, 4096), plain(MessageKind::Connect)]
    }

    /// Receives the next message, with a generous time limit.
    fn receive(end: &OwnedFd) -> Option<Message> {
        let wait = Timespec::try_from(TIMEOUT).ok();
        let mut watched = [PollFd::new(end, PollFlags::IN)];
        assert_eq!(poll(&mut watched, wait.as_ref()), Ok(1), "no message came");
        Message::receive(end)
    }

    /// Receives the next message, and returns its kind; `None` if the end is closed.
    fn receive_kind(end: &OwnedFd) -> Option<MessageKind> {
        receive(end).map(|message| message.kind().unwrap())
    }

    /// Creates a relay of a device with these arguments, on a socket named after the test. Returns the owner of the
    /// private socket's folder, too.
    fn relay_of(arguments: &str, test: &str, settle: &MapSettler) -> (Relays, Arc<Relay>) {
        let mut relays = Relays::default();
        let vdev = format!("--vdev=net_memif0,{arguments}socket={}", name(test));
        relays.interpose(&[vdev], settle).unwrap();
        let relay = Arc::clone(&relays.of("net_memif0").unwrap().relay);
        relay.set_handshake_timeout(TIMEOUT);
        (relays, relay)
    }

    /// A relay of a server. The test plays its driver.
    struct Scene {
        /// The relay under test.
        relay: Arc<Relay>,
        /// Listener of the driver, at the relay's private socket.
        driver: OwnedFd,
        /// Makes the relay accept peers.
        _serving: ServerDevice,
        /// Owns the folder of the private socket.
        _relays: Relays,
    }

    impl Scene {
        /// Starts a server with device 3 on a socket named after the test.
        fn new(test: &str, settle: &MapSettler) -> Self {
            let (relays, relay) = relay_of("role=server,id=3,", test, settle);
            let driver = relay.inner.listen(0o600).unwrap();
            let serving = relay.serve(3, ONE).unwrap();
            Self { relay, driver, _serving: serving, _relays: relays }
        }

        /// Connects a client that sends `messages`, each after the acknowledgement of the one before; any other answer
        /// ends it. Returns the client's socket, the kind of the last answer, and the reason in it.
        fn visit(&self, messages: &[Message]) -> (OwnedFd, Option<MessageKind>, String) {
            let peer = self.connect();
            let mut answer = receive(&peer);
            for message in messages {
                message.send(&peer, None);
                answer = receive(&peer);
                if answer.as_ref().is_none_or(|answer| answer.kind() != Ok(MessageKind::Ack)) {
                    break;
                }
            }
            let reason = answer.as_ref().map(|answer| memif_control::reason(answer.bytes()));
            (peer, answer.map(|answer| answer.kind().unwrap()), reason.unwrap_or_default())
        }

        /// Connects a client. Repeats while the listener's queue is full.
        fn connect(&self) -> OwnedFd {
            let began = Instant::now();
            loop {
                match self.relay.outer.connect() {
                    Ok(peer) => return peer,
                    Err(error) => assert!(began.elapsed() < TIMEOUT, "{error}"),
                }
                thread::yield_now();
            }
        }

        /// Connects a client successfully. Returns it and the driver's end.
        fn admit(&self) -> (OwnedFd, OwnedFd) {
            thread::scope(|scope| {
                let visitor = scope.spawn(|| self.visit(&introduction(3)));
                let driver = self.drive();
                let (peer, answer, reason) = visitor.join().unwrap();
                assert_eq!(answer, Some(MessageKind::Connected), "{reason}");
                (peer, driver)
            })
        }

        /// Plays the driver's part of a successful handshake. Returns the driver's end.
        fn drive(&self) -> OwnedFd {
            let driver = self.accept_relay();
            for kind in [
                MessageKind::Init,
                MessageKind::AddRegion,
                MessageKind::AddRing,
                MessageKind::AddRing,
            ] {
                let received = receive(&driver).unwrap();
                assert_eq!(received.kind(), Ok(kind));
                let expected = usize::from(kind != MessageKind::Init);
                assert_eq!(received.descriptors.len(), expected);
                plain(MessageKind::Ack).send(&driver, None);
            }
            assert_eq!(receive_kind(&driver), Some(MessageKind::Connect));
            plain(MessageKind::Connected).send(&driver, None);
            driver
        }

        /// Accepts the relay's connection to the driver, and sends the driver's Hello.
        fn accept_relay(&self) -> OwnedFd {
            let wait = Timespec::try_from(TIMEOUT).ok();
            let mut watched = [PollFd::new(&self.driver, PollFlags::IN)];
            assert_eq!(poll(&mut watched, wait.as_ref()), Ok(1), "the relay did not connect");
            let driver = rustix::net::accept(&self.driver).unwrap();
            Message::new(memif_control::hello(ONE)).send(&driver, None);
            driver
        }

        /// Returns true if a connection of the relay waits at the driver's listener.
        fn has_driver_received(&self) -> bool {
            let at_once = Timespec::default();
            poll(&mut [PollFd::new(&self.driver, PollFlags::IN)], Some(&at_once)) == Ok(1)
        }
    }

    /// Returns the number of open descriptors.
    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    // promise: ports.2
    #[test]
    fn memif_sockets_are_replaced_by_private_ones() {
        // Unchanged are net_memif4, whose arguments the driver refuses, and net_memif5, which is no `--vdev`.
        let mut relays = Relays::default();
        let line = format!(
            "-m 512 --vdev net_memif0,role=server,socket={0},id=3 --vdev=net_memif1,socket={0},users=0+17 --vdev=net_memif2 \
             --vdev net_memif3,id=4,role=master,socket-abstract=yes,socket={0} --vdev net_null0,size=64 \
             --vdev=net_memif4,socket-abstract=perhaps net_memif5,role=server --vdev=net_memif6,socket=/run/x",
            name("rewrite")
        );
        let all = relays.interpose(&words(&line), &at_once()).unwrap().join(" ");
        let folder = relays.private.as_ref().unwrap().path();
        let socket_named = |name: &str, is_abstract| Socket { name: name.to_owned(), is_abstract };
        let default = folders::runtime().unwrap().join("memif").display().to_string();
        let socket = socket_named(&name("rewrite"), true);
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
                inner(&socket_named(&default, false), Role::Client),
                inner(&socket_named("/run/x", false), Role::Client),
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
            (0, Role::Client, socket_named(&default, false)),
            (4, Role::Server, socket),
            (0, Role::Client, socket_named("/run/x", false)),
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

    // promise: ports.2
    #[test]
    fn dead_servers_socket_is_replaced_live_one_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taken").display().to_string();
        let vdev = |users: &str| format!("--vdev=net_memif0,role=server,socket={file}{users}");
        let mode = || std::fs::metadata(&file).unwrap().mode() & 0o777;
        // Leftover of a dead process.
        drop(Socket { name: file.clone(), is_abstract: false }.listen(0o600).unwrap());
        let mut first = Relays::default();
        first.interpose(&[vdev("")], &at_once()).unwrap();
        assert_eq!(mode(), 0o600);
        let refused = Relays::default().interpose(&[vdev("")], &at_once()).unwrap_err();
        assert!(refused.to_string().contains(&file) && matches!(refused, SocketError::Served(_)));
        let serving = first.of("net_memif0").unwrap().relay.serve(0, ONE).unwrap();
        drop(serving);
        assert!(!Path::new(&file).exists());
        let mut second = Relays::default();
        second.interpose(&[vdev(",users=1")], &at_once()).unwrap();
        assert_eq!(mode(), 0o666, "with `users=` the relay checks each peer's user");
        drop(second);
        assert!(!Path::new(&file).exists());
        std::fs::write(&file, "something else").unwrap();
        assert!(Relays::default().interpose(&[vdev("")], &at_once()).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"something else");
    }

    /// The test plays the client and the driver. It ends each wait for the driver by a message on `settled`.
    // promise: ports.2
    #[test]
    fn driver_sees_clients_only_between_bursts() {
        for (farewell, test) in [(None, "falls"), (Some(MessageKind::Disconnect), "leaves")] {
            let (settled, is_settled) = channel();
            let is_settled = Mutex::new(is_settled);
            let scene = Scene::new(
                test,
                &(Arc::new(move || is_settled.lock().unwrap().recv().unwrap()) as MapSettler),
            );
            let pass = scene.relay.gate().pass();
            let peer = scene.connect();
            assert_eq!(receive_kind(&peer), Some(MessageKind::Hello));
            let (last, earlier) = introduction(3).into_iter().collect::<Vec<_>>().split_off_last();
            for message in &earlier {
                message.send(&peer, None);
                assert_eq!(receive_kind(&peer), Some(MessageKind::Ack));
            }
            assert!(!scene.has_driver_received(), "the client has not sent its last message");
            last.send(&peer, None);
            let driver = scene.drive();
            assert_eq!(pass.burst(|| 1), 0, "the driver maps the region");
            settled.send(()).unwrap();
            assert_eq!(receive_kind(&peer), Some(MessageKind::Connected));
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
            assert_eq!(receive_kind(&driver), farewell);
            assert!(farewell.is_none() || receive(&driver).is_none());
            assert_eq!(pass.burst(|| 1), 0, "the driver has not unmapped the region yet");
            settled.send(()).unwrap();
            assert!(receive(&peer).is_none());
            while pass.burst(|| 1) == 0 {
                thread::yield_now();
            }
            while scene.relay.ended(3) == 0 {
                thread::yield_now();
            }
        }
    }

    /// Separation of a handshake's last message, which completes it.
    trait SplitOffLast {
        /// Returns the last message and the ones before it.
        fn split_off_last(self) -> (Message, Vec<Message>);
    }

    impl SplitOffLast for Vec<Message> {
        fn split_off_last(mut self) -> (Message, Vec<Message>) {
            (self.pop().unwrap(), self)
        }
    }

    /// The first hostile clients come beside an honest peer, which stays connected. Later ones find a device without a
    /// peer.
    // promise: ports.2
    #[test]
    fn hostile_clients_never_reach_the_driver() {
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
        for (why, messages) in &cases {
            let (_, last, reason) = scene.visit(messages);
            assert_eq!(last, Some(MessageKind::Disconnect), "{why}");
            assert!(reason.contains(why), "{why}: {reason}");
        }
        assert_eq!(scene.relay.refused() - before, cases.len() as u64);

        assert_eq!(scene.relay.ended(3), 0, "the honest peer is connected");
        // Cases that need a device without a peer.
        drop(driver);
        assert!(receive(&honest).is_none());
        let region_without = message(MessageKind::AddRegion, &[(4, &REGION.to_ne_bytes())], None);
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let unsealable = message(MessageKind::AddRegion, &[(4, &1_u64.to_ne_bytes())], Some(file));
        // A ring has a header of 128 bytes and 16 slots of 16 bytes.
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
        for (why, messages) in &cases {
            let (_, last, reason) = scene.visit(messages);
            assert_eq!(last, Some(MessageKind::Disconnect), "{why}");
            assert!(reason.contains(why), "{why}: {reason}");
        }
        assert!(!scene.has_driver_received());
        let (honest, _driver) = scene.admit();
        drop(honest);
    }

    // promise: ports.2
    #[test]
    fn driver_never_gets_blocking_descriptors() {
        let scene = Scene::new("bell", &at_once());
        thread::scope(|scope| {
            let visitor = scope.spawn(|| scene.visit(&introduction(3)));
            let driver = scene.accept_relay();
            let mut ring_events = 0; // descriptors that wake a ring's reader
            loop {
                let received = receive(&driver).unwrap();
                if received.kind() == Ok(MessageKind::Connect) {
                    break;
                }
                if received.kind() == Ok(MessageKind::AddRing) {
                    let target = std::fs::read_link(format!(
                        "/proc/self/fd/{}",
                        std::os::fd::AsRawFd::as_raw_fd(&received.descriptors[0])
                    ));
                    assert_eq!(target.unwrap().to_str(), Some("anon_inode:[eventfd]"));
                    let flags = rustix::fs::fcntl_getfl(&received.descriptors[0]).unwrap();
                    assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
                    ring_events += 1;
                }
                plain(MessageKind::Ack).send(&driver, None);
            }
            assert_eq!(ring_events, 2);
            // The driver refuses, so the relay refuses with its reason.
            Message::new(memif_control::disconnect("Wrong ring")).send(&driver, None);
            let (_, last, reason) = visitor.join().unwrap();
            assert_eq!((last, reason.as_str()), (Some(MessageKind::Disconnect), "Wrong ring"));
        });
    }

    // promise: ports.2
    #[test]
    fn driver_only_writes_its_peers_eventfd() {
        let scene = Scene::new("wake", &at_once());
        assert!(scene.relay.interrupts(3).is_none(), "there is no peer");
        let events = [new_event().unwrap(), new_event().unwrap()];
        let mut messages = introduction(3);
        for (ring, event) in messages[2..4].iter_mut().zip(&events) {
            ring.descriptors = vec![event.try_clone().unwrap()];
        }
        let before = scene.relay.connection();
        let rings = thread::scope(|scope| {
            let visitor = scope.spawn(|| scene.visit(&messages));
            let driver = scene.accept_relay();
            let mut rings = Vec::new();
            loop {
                let received = receive(&driver).unwrap();
                if received.kind() == Ok(MessageKind::Connect) {
                    break;
                }
                let is_ring = received.kind() == Ok(MessageKind::AddRing);
                rings.extend(received.descriptors.into_iter().filter(|_| is_ring));
                plain(MessageKind::Ack).send(&driver, None);
            }
            plain(MessageKind::Connected).send(&driver, None);
            let (_peer, last, _) = visitor.join().unwrap();
            assert_eq!(last, Some(MessageKind::Connected));
            // Writes to the driver's descriptor of a ring. True if the client's eventfd received it.
            let was_written = |ring: usize| {
                rustix::io::write(&rings[ring], &1_u64.to_ne_bytes()).unwrap();
                rustix::io::read(&events[ring], &mut [0; 8]).is_ok()
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
            assert!(began.elapsed() < TIMEOUT, "a departed peer has interrupts");
            thread::yield_now();
        }
    }

    /// Counts descriptors and threads, so it runs in a process without other tests.
    // promise: ports.2
    #[test]
    fn half_open_clients_expire_without_leftovers() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memif::tests::half_open_clients", "--nocapture"])
            .env("WEDJAT_HALF_OPEN", "")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        let errors = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && output.contains("nothing left"), "{output}{errors}");
    }

    /// Child process of the test above; does nothing in the main process.
    // promise: ports.2
    #[test]
    fn half_open_clients() {
        if std::env::var_os("WEDJAT_HALF_OPEN").is_none() {
            return;
        }
        let scene = Scene::new("half", &at_once());
        let (honest, driver) = scene.admit();
        scene.relay.set_handshake_timeout(Duration::from_millis(200));
        let before = descriptors();
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let threads_before = threads();
        let mut most = 0;
        for _ in 0..20 {
            let silent: Vec<_> = (0..HANDSHAKES).map(|_| scene.connect()).collect();
            for (number, peer) in silent.iter().enumerate() {
                // Each stops after 0, 1 or 2 messages. There is no device 4, so the relay refuses those with messages.
                for message in introduction(4).iter().take(number % 3) {
                    message.send(peer, None);
                }
            }
            most = most.max(descriptors());
        }
        // Far fewer threads and descriptors than the 20 * 16 clients would keep.
        assert!(threads() <= threads_before + 8, "a thread for each would be {}", 20 * HANDSHAKES);
        assert!(most < before + 8 * HANDSHAKES, "{most} descriptors");
        // The relay disconnects a client that sends nothing, and then accepts an honest one.
        let silent = scene.connect();
        assert_eq!(receive_kind(&silent), Some(MessageKind::Hello));
        assert!(receive(&silent).is_none(), "its time limit has passed");
        assert!(scene.relay.refused() > 0);
        drop((honest, driver, silent));
        while scene.relay.ended(3) == 0 {
            thread::yield_now();
        }
        scene.relay.set_handshake_timeout(TIMEOUT);
        let (honest, driver) = scene.admit();
        drop((honest, driver));
        let began = Instant::now();
        while descriptors() > before {
            assert!(began.elapsed() < TIMEOUT, "{} descriptors, {before} before", descriptors());
            thread::yield_now();
        }
        println!("nothing left");
    }

    // promise: ports.2
    #[test]
    fn peers_without_known_user_are_refused() {
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
        assert_eq!(user_id("root"), Some(0));
        assert_eq!(user_id("4711"), Some(4711));
        assert_eq!(user_id("nobody-of-that-name"), None);
    }

    // promise: ports.2
    #[test]
    fn client_connects_only_to_a_valid_server() {
        let mut relays = Relays::default();
        let vdev = format!("--vdev=net_memif0,socket={}", name("client"));
        relays.interpose(&[vdev], &at_once()).unwrap();
        let relay = &relays.of("net_memif0").unwrap().relay;
        relay.set_handshake_timeout(TIMEOUT);
        assert!(relay.connect(0, ONE, || panic!("there is no server")).is_none());
        assert!(relay.last_refusal().contains("refused"), "{}", relay.last_refusal());
        let server = relay.outer.listen(0o600).unwrap();
        let failed = relay.connect(0, ONE, || relay.inner.connect().is_err());
        assert!(failed.is_none());
        assert_eq!(relay.last_refusal(), "the device does not start");
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
        assert_eq!(receive_kind(&driver), Some(MessageKind::Hello));
        assert!(!connection.is_finished());
        drop(driver);
        assert!(receive(&peer).is_none());
        connection.join().unwrap();
        assert_eq!(relay.ended(0), 0, "no connection was up");

        // Messages that no server sends, and last a server's refusal.
        let cases = [
            ("Connected out of order", vec![hello(), plain(MessageKind::Connected)]),
            ("Hello out of order", vec![hello(), hello()]),
            ("Ack out of order", vec![plain(MessageKind::Ack)]),
            ("AddRegion with 1 descriptors", vec![region(REGION, SealFlags::SHRINK)]),
            ("memif version", vec![plain(MessageKind::Hello)]),
            ("because", vec![Message::new(memif_control::disconnect("because"))]),
        ];
        for (why, messages) in cases {
            let (connection, peer, driver) = connect();
            messages.iter().for_each(|message| message.send(&peer, None));
            connection.join().unwrap();
            assert!(relay.last_refusal().contains(why), "{why}: {}", relay.last_refusal());
            drop(driver);
        }

        // A complete handshake.
        let (connection, peer, driver) = connect();
        hello().send(&peer, None);
        assert_eq!(receive_kind(&driver), Some(MessageKind::Hello));
        let (last, earlier) = introduction(0).split_off_last();
        for message in earlier {
            message.send(&driver, None);
            let received = receive(&peer).unwrap();
            assert_eq!(received.descriptors.len(), message.descriptors.len());
            plain(MessageKind::Ack).send(&peer, None);
            assert_eq!(receive_kind(&driver), Some(MessageKind::Ack));
        }
        last.send(&driver, None);
        assert_eq!(receive_kind(&peer), Some(MessageKind::Connect));
        plain(MessageKind::Connected).send(&peer, None);
        assert_eq!(receive_kind(&driver), Some(MessageKind::Connected));
        drop(peer);
        assert!(receive(&driver).is_none());
        connection.join().unwrap();
        assert_eq!(relay.ended(0), 1);
    }

    /// A relay of a client with device 0. The test plays its driver, and its server.
    struct ClientScene {
        relay: Arc<Relay>,
        server: OwnedFd,
        /// Owns the folder of the private socket.
        _relays: Relays,
    }

    impl ClientScene {
        fn new(test: &str, settle: &MapSettler) -> Self {
            let (relays, relay) = relay_of("", test, settle);
            let server = relay.outer.listen(0o600).unwrap();
            Self { relay, server, _relays: relays }
        }

        /// Runs a handshake until the driver has its last message. Returns the thread of the connection, and the ends
        /// of server and driver.
        fn connect(&self) -> (JoinHandle<()>, OwnedFd, OwnedFd) {
            let mut driver = None;
            let thread = self.relay.connect(0, ONE, || {
                driver = self.relay.inner.connect().ok();
                driver.is_some()
            });
            let (peer, driver) = (rustix::net::accept(&self.server).unwrap(), driver.unwrap());
            Message::new(memif_control::hello(ONE)).send(&peer, None);
            assert_eq!(receive_kind(&driver), Some(MessageKind::Hello));
            let (last, earlier) = introduction(0).split_off_last();
            for message in earlier {
                message.send(&driver, None);
                receive(&peer).unwrap();
                plain(MessageKind::Ack).send(&peer, None);
                assert_eq!(receive_kind(&driver), Some(MessageKind::Ack));
            }
            last.send(&driver, None);
            assert_eq!(receive_kind(&peer), Some(MessageKind::Connect));
            plain(MessageKind::Connected).send(&peer, None);
            assert_eq!(receive_kind(&driver), Some(MessageKind::Connected));
            (thread.unwrap(), peer, driver)
        }

        /// Waits until the device is connected.
        fn await_connection(&self) {
            let began = Instant::now();
            while !self.relay.is_connected(0) {
                assert!(began.elapsed() < TIMEOUT, "no connection");
                thread::yield_now();
            }
        }
    }

    // promise: ports.2
    #[test]
    fn connected_client_can_send_at_once() {
        let (settled, is_settled) = channel();
        let is_settled = Mutex::new(is_settled);
        let settle = move || is_settled.lock().unwrap().recv().unwrap();
        let scene = ClientScene::new("at-once", &(Arc::new(settle) as MapSettler));
        let pass = scene.relay.gate().pass();
        settled.send(()).unwrap(); // after Hello
        let (_thread, _peer, _driver) = scene.connect();
        assert!(!scene.relay.is_connected(0), "the driver has not handled the last message");
        assert_eq!(pass.burst(|| 1), 0);
        settled.send(()).unwrap();
        scene.await_connection();
        assert_eq!(pass.burst(|| 1), 1);
        // The end of the connection waits for the driver, too.
        settled.send(()).unwrap();
    }

    // promise: ports.2
    #[test]
    fn late_handshake_connects_no_restarted_device() {
        let (settled, is_settled) = channel();
        let is_settled = Mutex::new(is_settled);
        let settle = move || is_settled.lock().unwrap().recv().unwrap();
        let scene = ClientScene::new("late-handshake", &(Arc::new(settle) as MapSettler));
        settled.send(()).unwrap(); // after Hello
        let (first, _first_peer, _first_driver) = scene.connect();
        // The device starts again while the driver handles the last message of the first handshake.
        let mut driver = None;
        let _second = scene.relay.connect(0, ONE, || {
            driver = scene.relay.inner.connect().ok();
            driver.is_some()
        });
        (0..2).for_each(|_| settled.send(()).unwrap()); // after the last message, and at the end
        let began = Instant::now();
        while !first.is_finished() {
            assert!(!scene.relay.is_connected(0), "the second handshake has not begun");
            assert!(began.elapsed() < TIMEOUT, "the first connection does not end");
            thread::yield_now();
        }
        assert!(!scene.relay.is_connected(0));
        drop(scene.server);
    }

    // promise: ports.2
    #[test]
    fn late_end_keeps_the_next_connection() {
        let scene = ClientScene::new("late-end", &at_once());
        let (first, first_peer, _first_driver) = scene.connect();
        scene.await_connection();
        let (_second, _second_peer, _second_driver) = scene.connect();
        scene.await_connection();
        let number = scene.relay.connection();
        drop(first_peer);
        first.join().unwrap();
        assert_eq!(scene.relay.ended(0), 1);
        assert!(scene.relay.interrupts(0).is_some(), "the new connection keeps its interrupts");
        assert_eq!(scene.relay.connection(), number);
        drop(scene.server);
    }
}
