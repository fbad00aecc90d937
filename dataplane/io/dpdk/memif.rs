//! Stands between a memif driver and its peer on their control channel, so that no core is in a burst when the driver maps or
//! unmaps their memory.
//!
//! The driver (DPDK 22.11) does that in EAL's interrupt thread as soon as its peer says so or its socket closes, whatever
//! cores are polling meanwhile. Here it never has the peer's socket: it gets one of ours, messages pass between the two, and
//! those that make it do that wait at the [`Gate`]. memif's messages: 128 bytes on a sequenced-packet socket, the type in the
//! first two, at most one file descriptor each (`drivers/net/memif/memif.h` in DPDK).

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::AcqRel;
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use super::gate::Gate;

/// The driver's socket when its arguments name none.
const DEFAULT_SOCKET: &str = "/run/memif.sock";

/// Clients that wait to be taken.
const BACKLOG: i32 = 16;

const MESSAGE_BYTES: usize = 128;

/// Types of messages. On `HELLO` a client makes its regions and rings; on `CONNECT` a server maps the client's.
const HELLO: u16 = 2;
const CONNECT: u16 = 6;
const CONNECTED: u16 = 7;
const DISCONNECT: u16 = 8;

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

/// A socket that one or more devices of the same role name, and ours that the driver gets for it.
pub(super) struct Relay {
    role: Role,
    /// That of the arguments, where the peer is.
    outer: Socket,
    /// The driver's.
    inner: Socket,
    /// Takes peers for a server, and the driver itself for a client.
    listener: OwnedFd,
    ways: Ways,
    /// How many devices of a server's are started.
    serving: AtomicUsize,
}

/// What a message waits for that makes the driver map or unmap memory.
#[derive(Clone)]
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

/// A started server; while there is one, peers are taken.
pub(super) struct Serving(Arc<Relay>);

/// What a memif device's arguments say of its connection.
struct Arguments<'a> {
    role: Role,
    socket: Socket,
    others: Vec<&'a str>,
}

impl fmt::Display for Socket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_abstract { "abstract" } else { "file" };
        write!(out, "{} ({kind})", self.name)
    }
}

impl Socket {
    /// The driver's in place of this: no other of this process, and of no other process.
    fn inner(&self, role: Role) -> Self {
        let mut hasher = DefaultHasher::new();
        (self, role).hash(&mut hasher);
        let name = format!("wedjat-{}-memif-{:x}", std::process::id(), hasher.finish());
        Self { name, is_abstract: true }
    }

    fn address(&self) -> Result<SocketAddrUnix, Errno> {
        match self.is_abstract {
            true => SocketAddrUnix::new_abstract_name(self.name.as_bytes()),
            false => SocketAddrUnix::new(&self.name),
        }
    }

    fn listen(&self) -> Result<OwnedFd, Errno> {
        let socket = socket()?;
        rustix::net::bind(&socket, &self.address()?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    fn connect(&self) -> Result<OwnedFd, Errno> {
        let socket = socket()?;
        rustix::net::connect(&socket, &self.address()?)?;
        Ok(socket)
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)
}

impl<'a> Arguments<'a> {
    /// None when the driver would refuse them, and may.
    fn parse(arguments: &'a str) -> Option<Self> {
        let mut parsed = Self {
            role: Role::Client,
            socket: Socket { name: DEFAULT_SOCKET.to_owned(), is_abstract: true },
            others: Vec::new(),
        };
        for argument in arguments.split(',').filter(|argument| !argument.is_empty()) {
            match argument.split_once('=').unwrap_or((argument, "")) {
                ("socket", name) => parsed.socket.name = name.to_owned(),
                ("socket-abstract", "yes") => parsed.socket.is_abstract = true,
                ("socket-abstract", "no") => parsed.socket.is_abstract = false,
                ("socket-abstract", _) => return None,
                (key, value) => {
                    if (key, value) == ("role", "server") || (key, value) == ("role", "master") {
                        parsed.role = Role::Server;
                    }
                    parsed.others.push(argument);
                }
            }
        }
        Some(parsed)
    }
}

/// The arguments that EAL gets in place of these: memif devices with sockets of ours, for which relays are added.
///
/// # Errors
/// The socket that cannot be had, and why.
pub(super) fn interpose(
    arguments: &[String],
    settle: &Settle,
    relays: &mut Vec<(String, Arc<Relay>)>,
) -> Result<Vec<String>, (Socket, Errno)> {
    let mut all = Vec::with_capacity(arguments.len());
    for word in arguments {
        let (option, vdev) =
            word.strip_prefix("--vdev=").map_or(("", word.as_str()), |vdev| ("--vdev=", vdev));
        let is_vdev = !option.is_empty() || all.last().is_some_and(|last| last == "--vdev");
        let (name, rest) = vdev.split_once(',').unwrap_or((vdev, ""));
        all.push(match is_vdev && name.starts_with("net_memif") {
            true => format!("{option}{}", interposed(name, rest, settle, relays)?),
            false => word.clone(),
        });
    }
    Ok(all)
}

/// One device with its new arguments.
fn interposed(
    name: &str,
    arguments: &str,
    settle: &Settle,
    relays: &mut Vec<(String, Arc<Relay>)>,
) -> Result<String, (Socket, Errno)> {
    let Some(Arguments { role, socket, others }) = Arguments::parse(arguments) else {
        return Ok(format!("{name},{arguments}"));
    };
    let there = relays.iter().find(|(_, relay)| relay.role == role && relay.outer == socket);
    let relay = match there {
        Some((_, relay)) => Arc::clone(relay),
        None => Arc::new(Relay::new(role, socket, Arc::clone(settle))?),
    };
    let inner = &relay.inner.name;
    let all: Vec<&str> = std::iter::once(name).chain(others).collect();
    let words = format!("{},socket={inner}", all.join(","));
    relays.push((name.to_owned(), relay));
    Ok(words)
}

impl Relay {
    fn new(role: Role, outer: Socket, settle: Settle) -> Result<Self, (Socket, Errno)> {
        let inner = outer.inner(role);
        let ours = match role {
            Role::Server => &outer,
            Role::Client => &inner,
        };
        let listener = ours.listen().map_err(|error| (ours.clone(), error))?;
        let (ways, serving) = (Ways { gate: Arc::default(), settle }, AtomicUsize::new(0));
        Ok(Self { role, outer, inner, listener, ways, serving })
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.ways.gate
    }

    /// A server's device has started: from the first on peers are taken.
    pub(super) fn serve(self: &Arc<Self>) -> Serving {
        if self.serving.fetch_add(1, AcqRel) == 0 {
            let relay = Arc::clone(self);
            drop(spawn(move || relay.take_peers()));
        }
        Serving(Arc::clone(self))
    }

    fn take_peers(self: Arc<Self>) {
        while let Ok(peer) = self.accept() {
            // The driver's listener is there as long as one of its devices.
            let Ok(driver) = self.inner.connect() else { continue };
            // Nobody waits for its end.
            drop(self.carry(peer, driver));
        }
    }

    fn accept(&self) -> Result<OwnedFd, Errno> {
        retry_on_intr(|| rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC))
    }

    /// Connects a client's device, which `start` starts, if its server is there. What it gives has finished when the
    /// connection has ended, which is also how a server refuses.
    pub(super) fn connect(&self, start: impl FnOnce() -> bool) -> Option<JoinHandle<()>> {
        let peer = self.outer.connect().ok()?;
        self.forget_pending();
        // The driver connects before its start returns.
        let driver = start().then(|| self.accept().ok())??;
        self.carry(peer, driver)
    }

    /// A start that failed may have connected.
    fn forget_pending(&self) {
        let at_once = Timespec::default();
        while poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&at_once)) == Ok(1) {
            drop(self.accept());
        }
    }

    /// Carries messages to and fro until one of the two has gone.
    fn carry(&self, peer: OwnedFd, driver: OwnedFd) -> Option<JoinHandle<()>> {
        let ways = self.ways.clone();
        spawn(move || Channel { peer, driver, ways, connected: false }.carry())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let Self(relay) = self;
        if relay.serving.fetch_sub(1, AcqRel) == 1 {
            // Whoever waits for a peer there is woken.
            let _ = rustix::net::shutdown(&relay.listener, Shutdown::Both);
            if !relay.outer.is_abstract {
                let _ = std::fs::remove_file(&relay.outer.name);
            }
        }
    }
}

/// On the CPUs of the caller; such a thread sleeps but for a peer's coming and going.
fn spawn(work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    // Without a thread there is no link, and whoever waits for that says so.
    thread::Builder::new().name("memif".to_owned()).spawn(work).ok()
}

struct Channel {
    peer: OwnedFd,
    driver: OwnedFd,
    ways: Ways,
    /// Packets flow.
    connected: bool,
}

struct Message {
    bytes: [u8; MESSAGE_BYTES],
    len: usize,
    descriptor: Option<OwnedFd>,
}

impl Channel {
    fn carry(mut self) {
        loop {
            let events = PollFlags::IN;
            let mut both = [PollFd::new(&self.driver, events), PollFd::new(&self.peer, events)];
            if retry_on_intr(|| poll(&mut both, None)).is_err() {
                return;
            }
            // The driver first: whether it is connected says what the peer's word means.
            match both.each_ref().map(|end| !end.revents().is_empty()) {
                [true, _] if !self.answer() => return,
                [false, true] => match Message::receive(&self.peer) {
                    Some(message) if !self.ends_with(&message) => self.pass_on(&message),
                    last => return self.end(last),
                },
                _ => {}
            }
        }
    }

    /// One message of the driver's; false when it has closed.
    fn answer(&mut self) -> bool {
        let message = Message::receive(&self.driver);
        let Some(message) = &message else { return false };
        self.connected |= message.kind() == CONNECTED;
        message.send(&self.peer);
        true
    }

    fn pass_on(&mut self, message: &Message) {
        self.connected |= message.kind() == CONNECTED;
        match message.kind() {
            // The driver looks its ring up before it looks whether it is connected.
            HELLO | CONNECT => self.ways.tell(|| message.send(&self.driver)),
            _ => message.send(&self.driver),
        }
    }

    /// Once packets flow there is nothing to say but good-bye; the driver takes anything else for that too.
    fn ends_with(&self, message: &Message) -> bool {
        self.connected || message.kind() == DISCONNECT
    }

    /// Tells the driver that its peer has gone, and waits until it has let go of the peer's memory. That its end is closed
    /// then would not do: a process that this one has just started may have it too.
    fn end(mut self, last: Option<Message>) {
        self.ways.tell(|| {
            if let Some(message) = last.filter(|last| last.kind() == DISCONNECT) {
                message.send(&self.driver);
            }
            let _ = rustix::net::shutdown(&self.driver, Shutdown::Write);
        });
        // What it has said to that, if anything.
        let _ = rustix::net::shutdown(&self.driver, Shutdown::Read);
        while self.answer() {}
    }
}

impl Message {
    /// None when the other end is closed.
    fn receive(end: &OwnedFd) -> Option<Self> {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(end, parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let len = received.ok()?.bytes;
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        (len > 0).then_some(Self { bytes, len, descriptor })
    }

    /// To an end that may have closed; whoever waits there learns it from its socket.
    fn send(&self, end: &OwnedFd) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = self.descriptor.as_ref().map(AsFd::as_fd);
        if let Some(descriptor) = &descriptors {
            let rights = std::slice::from_ref(descriptor);
            control.push(SendAncillaryMessage::ScmRights(rights));
        }
        let parts = [IoSlice::new(&self.bytes[..self.len])];
        let sent = || rustix::net::sendmsg(end, &parts, &mut control, SendFlags::NOSIGNAL);
        let _ = retry_on_intr(sent);
    }

    fn kind(&self) -> u16 {
        u16::from_ne_bytes([self.bytes[0], self.bytes[1]])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    fn at_once() -> Settle {
        Arc::new(|| {})
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn name(test: &str) -> String {
        format!("@wedjat-{test}-{}", std::process::id())
    }

    fn message(kind: u16, descriptor: Option<OwnedFd>) -> Message {
        let mut bytes = [kind as u8 ^ 0x55; MESSAGE_BYTES];
        bytes[..2].copy_from_slice(&kind.to_ne_bytes());
        Message { bytes, len: MESSAGE_BYTES, descriptor }
    }

    #[test]
    fn memif_devices_get_sockets_of_ours_and_nothing_else_changes() {
        let mut relays = Vec::new();
        let line = format!(
            "-m 512 --vdev net_memif0,role=server,socket={0},id=3 --vdev=net_memif1,socket={0} --vdev=net_memif2 \
             --vdev net_memif3,id=4,role=master,socket-abstract=yes,socket={0} --vdev net_null0,size=64 \
             --vdev=net_memif4,socket-abstract=perhaps net_memif5,role=server",
            name("rewrite")
        );
        let all = interpose(&words(&line), &at_once(), &mut relays).unwrap().join(" ");
        let at = |name: &str, is_abstract| Socket { name: name.to_owned(), is_abstract };
        let socket = at(&name("rewrite"), true);
        assert_eq!(
            all,
            format!(
                "-m 512 --vdev net_memif0,role=server,id=3,socket={0} --vdev=net_memif1,socket={1} --vdev=net_memif2,socket={2} \
                 --vdev net_memif3,id=4,role=master,socket={0} --vdev net_null0,size=64 \
                 --vdev=net_memif4,socket-abstract=perhaps net_memif5,role=server",
                socket.inner(Role::Server).name,
                socket.inner(Role::Client).name,
                at(DEFAULT_SOCKET, true).inner(Role::Client).name
            )
        );
        let outer: Vec<_> =
            relays.iter().map(|(_, relay)| (relay.role, relay.outer.clone())).collect();
        let expected = [
            (Role::Server, socket.clone()),
            (Role::Client, socket.clone()),
            (Role::Client, at(DEFAULT_SOCKET, true)),
            (Role::Server, socket),
        ];
        assert_eq!(outer, expected);
    }

    #[test]
    fn a_socket_that_another_serves_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taken").display().to_string();
        let vdev = format!("--vdev=net_memif0,role=server,socket={file},socket-abstract=no");
        let mut first = Vec::new();
        interpose(std::slice::from_ref(&vdev), &at_once(), &mut first).unwrap();
        let refused = interpose(&[vdev], &at_once(), &mut Vec::new()).unwrap_err();
        assert_eq!((refused.0.name.as_str(), refused.1), (file.as_str(), Errno::ADDRINUSE));
        let serving = first[0].1.serve();
        drop(serving);
        assert!(!std::path::Path::new(&file).exists());
    }

    /// Between a client and a server that stand for drivers and peers.
    #[test]
    fn messages_pass_and_the_last_waits_until_nobody_is_in_a_burst() {
        for (farewell, name) in [(None, name("falls")), (Some(DISCONNECT), name("leaves"))] {
            let mut relays = Vec::new();
            let vdev = format!("--vdev=net_memif0,role=server,socket={name}");
            let (settled, told) = channel();
            let told = Mutex::new(told);
            let settle: Settle = Arc::new(move || told.lock().unwrap().recv().unwrap());
            interpose(&[vdev], &settle, &mut relays).unwrap();
            let relay = Arc::clone(&relays[0].1);
            let listener = relay.inner.listen().unwrap();
            let pass = relay.gate().pass();
            let _serving = relay.serve();
            let peer = relay.outer.connect().unwrap();
            let driver = rustix::net::accept(&listener).unwrap();

            let file = OwnedFd::from(std::io::pipe().unwrap().0);
            message(4, Some(file)).send(&peer);
            let region = Message::receive(&driver).unwrap();
            assert_eq!((region.kind(), region.len), (4, MESSAGE_BYTES));
            assert_eq!(region.bytes, message(4, None).bytes);
            assert!(region.descriptor.is_some());
            message(CONNECT, None).send(&peer);
            assert_eq!(Message::receive(&driver).unwrap().kind(), CONNECT);
            assert_eq!(pass.burst(|| 1), 0, "it maps the region");
            message(CONNECTED, None).send(&driver);
            settled.send(()).unwrap();
            assert_eq!(Message::receive(&peer).unwrap().kind(), CONNECTED);
            while pass.burst(|| 1) == 0 {
                thread::yield_now();
            }

            let is_quiet = |end: &OwnedFd| {
                let wait = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&wait)).unwrap() == 0
            };
            pass.burst(|| {
                match farewell {
                    Some(kind) => message(kind, None).send(&peer),
                    None => rustix::net::shutdown(&peer, Shutdown::Write).unwrap(),
                }
                assert!(is_quiet(&driver), "the driver learns it in the middle of a burst");
                0
            });
            let last = Message::receive(&driver).map(|last| last.kind());
            assert_eq!(last, farewell);
            assert!(farewell.is_none() || Message::receive(&driver).is_none());
            assert_eq!(pass.burst(|| 1), 0, "it has not let go yet");
            settled.send(()).unwrap();
            assert!(Message::receive(&peer).is_none());
            while pass.burst(|| 1) == 0 {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_client_finds_no_server_fails_to_start_and_finds_one() {
        let mut relays = Vec::new();
        let vdev = format!("--vdev=net_memif0,socket={}", name("client"));
        interpose(&[vdev], &at_once(), &mut relays).unwrap();
        let relay = &relays[0].1;
        assert!(relay.connect(|| panic!("there is no server")).is_none());
        let server = relay.outer.listen().unwrap();
        let failed = relay.connect(|| relay.inner.connect().is_err());
        assert!(failed.is_none());
        drop(rustix::net::accept(&server).unwrap());
        let mut driver = None;
        let connection = relay.connect(|| {
            driver = relay.inner.connect().ok();
            driver.is_some()
        });
        let peer = rustix::net::accept(&server).unwrap();
        message(HELLO, None).send(&peer);
        assert_eq!(Message::receive(driver.as_ref().unwrap()).unwrap().kind(), HELLO);
        assert!(!connection.as_ref().unwrap().is_finished());
        drop(driver);
        assert!(Message::receive(&peer).is_none());
        connection.unwrap().join().unwrap();
    }
}
