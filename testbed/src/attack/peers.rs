//! Hostile memif peers, which open thousands of connections to a leaf's control socket, disconnect during the
//! handshake, and send invalid messages.
//!
//! memif's messages are 128 bytes on a sequenced-packet socket, with the type in the first two bytes and at
//! most one descriptor each (`drivers/net/memif/memif.h` in DPDK).

use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

use super::rigs::processes::{Site, TIMEOUT, check_alive, check_end, check_outcomes, resources};
use super::{Account, Attack, Budget, Failure, attack_table};
use crate::demo::leaf::NodeProcess;

/// Bytes of a message.
const MESSAGE_BYTES: usize = 128;
/// Types of messages, in the order of a handshake. A peer announces its shared memory (regions) and its rings
/// there.
const INIT: u16 = 3;
const ADD_REGION: u16 = 4;
const ADD_RING: u16 = 5;
const CONNECT: u16 = 6;
/// Magic number of a ring in shared memory.
const COOKIE: u32 = 0x03E3_1F20;
/// Bytes of a valid peer's region: two rings of 1024 slots, and their buffers.
const REGION_BYTES: u64 = 8 << 20;
/// Binary logarithm of a ring's number of slots.
const LOG2_SLOTS: u8 = 10;
/// Offset of the second ring.
const SECOND_RING: u32 = 1 << 16;
/// Timeout of an answer.
const ANSWER: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Number of connections opened at once.
const FLOOD: u64 = 3000;
/// Maximum number of additional descriptors and threads of the leaf during the flood.
const BOUND: (usize, usize) = (512, 64);
/// Additional descriptors or threads that a leaf may have after an attack, for its current activity.
const SPARE: usize = 3;

/// The attacks of this file.
pub static ATTACKS: &[Attack] = attack_table! {
    "memif-handshakes" Processes => handshakes,
        "memif peers with wrong regions, rings, descriptors and messages, to a leaf that also serves an honest one";
    "memif-flood" Processes => |_, account| flood(account),
        "3000 simultaneous connections to a leaf that serves an honest memif peer, and 300 that end in the middle of \
         the handshake";
    "memif-no-descriptors" Processes => |_, account| no_descriptors(account),
        "connections to a leaf until it has no file descriptor left";
};

/// A peer on the control channel.
struct Peer(OwnedFd);

impl Peer {
    /// Connects to a control socket without waiting: fails if its listen queue is full.
    fn connect(socket: &Path) -> rustix::io::Result<Self> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let end = rustix::net::socket_with(
            family,
            kind,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        rustix::net::connect(&end, &SocketAddrUnix::new(socket)?)?;
        Ok(Self(end))
    }

    /// Sends a message with descriptors.
    fn send_message(&self, bytes: &[u8], descriptors: &[&OwnedFd]) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives the next message and returns its type. Returns `None` after a timeout, an error or the end of the
    /// connection.
    fn receive_type(&self) -> Option<u16> {
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&ANSWER))
            .ok()
            .filter(|ready| *ready > 0)?;
        let mut bytes = [0; 2 * MESSAGE_BYTES];
        let (len, _) = rustix::net::recv(&self.0, &mut bytes[..], RecvFlags::empty()).ok()?;
        (len >= 2).then(|| u16::from_ne_bytes([bytes[0], bytes[1]]))
    }
}

/// Builds a message of type `kind` from consecutive fields.
fn message(kind: u16, fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = kind.to_ne_bytes().to_vec();
    fields.iter().for_each(|field| bytes.extend_from_slice(field));
    bytes.resize(MESSAGE_BYTES, 0);
    bytes
}

/// A peer's description of one of its rings.
#[derive(Clone, Copy)]
struct Ring {
    /// 1 for the ring on which the peer sends, 0 for the ring on which it receives.
    flags: u16,
    /// Number of the ring among those of its direction.
    index: u16,
    /// Number of the region that contains the ring.
    region: u16,
    /// Offset of the ring in the region, in bytes.
    offset: u32,
    /// Binary logarithm of the number of slots.
    log2_slots: u8,
}

/// A peer's handshake, in which any field may be wrong.
struct Handshake {
    /// Version of the protocol; 0x0200 is valid.
    version: u16,
    /// Id of the leaf's interface; 0 is valid.
    id: u32,
    /// Descriptor of the region.
    region: Option<OwnedFd>,
    /// Claimed size of the region.
    size: u64,
    /// Number of the region.
    index: u16,
    rings: Vec<Ring>,
    /// True if each ring comes with a descriptor for its interrupts.
    ring_descriptors: bool,
    /// Action on the region after the last message.
    final_action: fn(&File) -> std::io::Result<()>,
}

/// Creates a region of `len` bytes with the cookies of both rings, as far as they fit.
fn region(len: u64) -> Result<OwnedFd, Failure> {
    let file = File::from(memfd_create("region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(len)?;
    for offset in [0, u64::from(SECOND_RING)].into_iter().filter(|offset| offset + 4 <= len) {
        file.write_all_at(&COOKIE.to_ne_bytes(), offset)?;
    }
    // The leaf refuses a region that may shrink.
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file.into())
}

impl Handshake {
    /// Returns the handshake of a valid peer.
    fn valid() -> Result<Self, Failure> {
        let ring =
            |flags, offset| Ring { flags, index: 0, region: 0, offset, log2_slots: LOG2_SLOTS };
        Ok(Self {
            version: 0x0200,
            id: 0,
            region: Some(region(REGION_BYTES)?),
            size: REGION_BYTES,
            index: 0,
            rings: vec![ring(1, 0), ring(0, SECOND_RING)],
            ring_descriptors: true,
            final_action: |_| Ok(()),
        })
    }

    /// Sends the whole handshake, whatever the answers. Returns the number of answers.
    fn send_all(&self, socket: &Path) -> Result<usize, Failure> {
        let peer = Peer::connect(socket)?;
        let mut answers = usize::from(peer.receive_type().is_some());
        let mut exchange = |bytes: &[u8], descriptors: &[&OwnedFd]| {
            if peer.send_message(bytes, descriptors).is_ok() {
                answers += usize::from(peer.receive_type().is_some());
            }
        };
        // Version, id, mode and secret (25 bytes of 0), and the name of the peer.
        let init = [&self.version.to_ne_bytes()[..], &self.id.to_ne_bytes(), &[0; 25], b"hostile"];
        exchange(&message(INIT, &init), &[]);
        let fields = [&self.index.to_ne_bytes()[..], &self.size.to_ne_bytes()];
        exchange(&message(ADD_REGION, &fields), &self.region.iter().collect::<Vec<_>>());
        for ring in &self.rings {
            let fields: [&[u8]; 6] = [
                &ring.flags.to_ne_bytes(),
                &ring.index.to_ne_bytes(),
                &ring.region.to_ne_bytes(),
                &ring.offset.to_ne_bytes(),
                &[ring.log2_slots],
                &[0; 2],
            ];
            let eventfd_descriptor = eventfd(0, EventfdFlags::CLOEXEC)?;
            let descriptors: &[&OwnedFd] =
                if self.ring_descriptors { &[&eventfd_descriptor] } else { &[] };
            exchange(&message(ADD_RING, &fields), descriptors);
        }
        exchange(&message(CONNECT, &[b"hostile"]), &[]);
        if let Some(region) = &self.region {
            // Some regions are objects that do not allow the action.
            let _ = (self.final_action)(&File::from(region.try_clone()?));
        }
        // The leaf polls in this time.
        std::thread::sleep(Duration::from_millis(50));
        Ok(answers)
    }
}

/// Fills both rings with invalid contents: indices far ahead, descriptors that point anywhere.
///
/// A ring has its cookie at offset 0, its head at 6 and its tail at 64. Descriptors of 16 bytes start at 128,
/// each with its region at offset 2.
fn overwrite(file: &File) -> std::io::Result<()> {
    for base in [0, u64::from(SECOND_RING)] {
        for slot in 0..1_u64 << LOG2_SLOTS {
            let mut descriptor = [0xFF; 16];
            descriptor[2] = slot as u8;
            descriptor[3] = (slot >> 3) as u8;
            file.write_all_at(&descriptor, base + 128 + 16 * slot)?;
        }
        file.write_all_at(&0xFFFF_u16.to_ne_bytes(), base + 6)?;
        file.write_all_at(&0x8000_u16.to_ne_bytes(), base + 64)?;
    }
    Ok(())
}

/// A wrong handshake: the name of its fault, and the function that introduces it.
type WrongHandshake = (&'static str, fn(&mut Handshake) -> Result<(), Failure>);

/// Returns the reading end of a pipe: a descriptor that the leaf cannot map.
fn pipe_end() -> Result<OwnedFd, Failure> {
    Ok(std::io::pipe()?.0.into())
}

/// All wrong handshakes.
const WRONG: [WrongHandshake; 19] = [
    ("region shorter than announced", |handshake| {
        handshake.region = Some(region(4096)?);
        Ok(())
    }),
    ("region of no bytes", |handshake| {
        handshake.region = Some(region(0)?);
        Ok(())
    }),
    ("region of 2^64 - 1 bytes", |handshake| {
        handshake.size = u64::MAX;
        Ok(())
    }),
    ("region announced as empty", |handshake| {
        handshake.size = 0;
        Ok(())
    }),
    ("region without descriptor", |handshake| {
        handshake.region = None;
        Ok(())
    }),
    ("a pipe for a region", |handshake| {
        handshake.region = Some(pipe_end()?);
        Ok(())
    }),
    ("a device for a region", |handshake| {
        handshake.region = Some(File::open("/dev/null")?.into());
        Ok(())
    }),
    ("a folder for a region", |handshake| {
        handshake.region = Some(File::open("/")?.into());
        Ok(())
    }),
    ("an ordinary file for a region", |handshake| {
        let mut file = tempfile::tempfile()?;
        file.write_all(&[0; 4096])?;
        handshake.region = Some(file.into());
        Ok(())
    }),
    ("region number 65535", |handshake| {
        handshake.index = u16::MAX;
        Ok(())
    }),
    ("region truncated after the connection", |handshake| {
        handshake.final_action = |file| file.set_len(0);
        Ok(())
    }),
    ("rings overwritten after the connection", |handshake| {
        handshake.final_action = overwrite;
        Ok(())
    }),
    ("a ring beyond the region", |handshake| {
        handshake.rings[1].offset = u32::MAX - 63;
        Ok(())
    }),
    ("a ring that ends beyond the region", |handshake| {
        handshake.rings[1].offset = (REGION_BYTES - 64) as u32;
        Ok(())
    }),
    ("rings of 2^14 and of 2^255 slots", |handshake| {
        (handshake.rings[0].log2_slots, handshake.rings[1].log2_slots) = (14, 255);
        Ok(())
    }),
    ("a ring in a missing region", |handshake| {
        handshake.rings[0].region = 7;
        Ok(())
    }),
    ("a ring of number 65535", |handshake| {
        handshake.rings[0].index = u16::MAX;
        Ok(())
    }),
    ("rings without descriptors, odd offsets", |handshake| {
        handshake.ring_descriptors = false;
        handshake.rings[0].offset = 1;
        Ok(())
    }),
    ("no rings, another version, another id", |handshake| {
        handshake.rings.clear();
        (handshake.version, handshake.id) = (0x0100, 99);
        Ok(())
    }),
];

/// A leaf that has served an honest peer, and its resources at that time. The attacks connect to its memif
/// socket.
struct ServedLeaf {
    site: Site,
    leaf: NodeProcess,
    /// Numbers of descriptors and threads.
    resources: (usize, usize),
}

impl ServedLeaf {
    /// Starts a leaf and serves a driver (honest emulated clients and workers) for a moment.
    fn start() -> Result<Self, Failure> {
        let site = Site::new()?;
        let leaf = site.leaf()?;
        site.drive(0.1)?;
        let resources = resources(leaf.id());
        Ok(Self { site, leaf, resources })
    }

    /// Checks the promises after the attack `name`. Returns false if the leaf has ended or keeps resources of the
    /// attack.
    fn check(&mut self, account: &mut Account, name: &str) -> bool {
        if !check_alive(account, &format!("{name}: the leaf lives"), &mut self.leaf) {
            return false;
        }
        let outcomes = self.site.drive(0.1);
        check_outcomes(account, &format!("{name}: an honest peer is served"), outcomes);
        let are_released = self.check_release(account, name);
        check_alive(account, &format!("{name}: the leaf lives afterwards"), &mut self.leaf)
            && are_released
    }

    /// Checks that the leaf's numbers of descriptors and threads return to the earlier ones, plus at most [`SPARE`],
    /// within a timeout.
    fn check_release(&self, account: &mut Account, name: &str) -> bool {
        let (began, before) = (Instant::now(), self.resources);
        let is_released = |current: (usize, usize)| {
            current.0 <= before.0 + SPARE && current.1 <= before.1 + SPARE
        };
        let mut current = resources(self.leaf.id());
        while !is_released(current) && began.elapsed() < TIMEOUT / 10 {
            std::thread::sleep(Duration::from_millis(50));
            current = resources(self.leaf.id());
        }
        account.check(
            format!("{name}: descriptors and threads are released"),
            is_released(current),
            format!("{} and {} instead of {} and {}", current.0, current.1, before.0, before.1),
        );
        is_released(current)
    }

    /// Ends the leaf and checks its account.
    fn end(self, account: &mut Account, name: &str) {
        check_end(account, name, self.leaf);
    }
}

/// Carries out each wrong handshake three times, then sends garbage.
fn handshakes(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    let mut target = ServedLeaf::start()?;
    for (fault, introduce) in WRONG {
        for _ in 0..3 {
            let mut handshake = Handshake::valid()?;
            introduce(&mut handshake)?;
            // A refused connection counts as no answer.
            let answers = handshake.send_all(&target.site.socket()).unwrap_or(0);
            account.tried("handshakes", 1);
            account.tried("answers", answers as u64);
        }
        // The next fault meets a new leaf if this one has failed.
        if !target.check(account, fault) {
            target = ServedLeaf::start()?;
        }
    }
    target.end(account, "after all handshakes");
    garbage(budget, account)
}

/// Sends random messages, short and long, with many descriptors.
fn garbage(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    let mut target = ServedLeaf::start()?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(budget.seed);
    let began = Instant::now();
    let pipe = pipe_end()?;
    while began.elapsed().as_secs_f64() < budget.seconds && target.leaf.check().is_ok() {
        let Some(peer) = connect_with_retries(&target.site.socket()) else { continue };
        for _ in 0..random.random_range(1..6) {
            let mut bytes = vec![0; random.random_range(1..200)];
            random.fill_bytes(&mut bytes);
            // Most messages have a type near the valid ones, so that the leaf parses their contents.
            if random.random_bool(0.8) && bytes.len() >= 2 {
                bytes[..2].copy_from_slice(&random.random_range(0..10_u16).to_ne_bytes());
            }
            let descriptors = vec![&pipe; random.random_range(0..10)];
            let _ = peer.send_message(&bytes, &descriptors);
            account.tried("random messages", 1);
        }
    }
    if target.check(account, "random messages") {
        target.end(account, "random messages");
    }
    Ok(())
}

/// Connects despite a full listen queue. Gives up after 200 ms.
fn connect_with_retries(socket: &Path) -> Option<Peer> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(200) {
        match Peer::connect(socket) {
            Ok(peer) => return Some(peer),
            Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return None,
        }
    }
    None
}

/// Opens [`FLOOD`] connections while an honest driver runs, and checks that the leaf's resources stay within [`BOUND`].
/// Then ends connections in the middle of the handshake.
fn flood(account: &mut Account) -> Result<(), Failure> {
    // Each connection needs a descriptor of this process too, which keeps 100 for its other files.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let count = limit.maximum.map_or(FLOOD, |maximum| maximum.saturating_sub(100).min(FLOOD));
    let mut target = ServedLeaf::start()?;
    let socket = target.site.socket();
    let replies = target.site.counter("replies")?;
    let driver = target.site.start_drive(5.0)?;
    let site = &target.site;
    site.until("the driver's link", || Ok(site.counter("replies")? > replies))?;
    let before = resources(target.leaf.id());
    let (began, mut peers) = (Instant::now(), Vec::new());
    for _ in 0..count {
        if began.elapsed() < TIMEOUT / 2 {
            peers.extend(connect_with_retries(&socket));
        }
        account.tried("connections", 1);
    }
    account.figure("connections accepted or waiting", peers.len() as f64);
    // The leaf accepts connections in this time.
    std::thread::sleep(Duration::from_millis(300));
    let during = resources(target.leaf.id());
    let added = (during.0.saturating_sub(before.0), during.1.saturating_sub(before.1));
    account.figure("descriptors during the attack", during.0 as f64);
    account.figure("threads during the attack", during.1 as f64);
    account.check(
        format!("at most {} descriptors and {} threads more", BOUND.0, BOUND.1),
        added.0 <= BOUND.0 && added.1 <= BOUND.1,
        format!("{} and {}", added.0, added.1),
    );
    check_outcomes(account, "the honest peer is served during the attack", driver.outcomes());
    drop(peers);
    if !target.check(account, "after the flood") {
        target = ServedLeaf::start()?;
    }
    for _ in 0..300 {
        if let Some(peer) = connect_with_retries(&target.site.socket()) {
            // Ends after the second message of the handshake: INIT (version; id, mode and secret of 0),
            // ADD_REGION.
            let region = region(REGION_BYTES)?;
            peer.receive_type();
            let fields = [&[0_u8; 2][..], &REGION_BYTES.to_ne_bytes()];
            let version = 0x0200_u16.to_ne_bytes();
            let _ = peer.send_message(&message(INIT, &[&version, &[0; 29], b"hostile"]), &[]);
            let _ = peer.send_message(&message(ADD_REGION, &fields), &[&region]);
        }
        account.tried("connections that end early", 1);
    }
    if target.check(account, "after 300 that end early") {
        target.end(account, "after 300 that end early");
    }
    Ok(())
}

/// Limits the leaf's descriptors, and connects until none is left. Checks that the leaf lives and recovers.
fn no_descriptors(account: &mut Account) -> Result<(), Failure> {
    let mut target = ServedLeaf::start()?;
    // The leaf reserves 32 descriptors, which peers do not get. The rest, 64, allows a few handshakes.
    let limit = target.resources.0 as u64 + 96;
    let pid = Pid::from_raw(i32::try_from(target.leaf.id())?);
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    let mut peers = Vec::new();
    for _ in 0..200 {
        peers.extend(connect_with_retries(&target.site.socket()));
        account.tried("connections", 1);
    }
    std::thread::sleep(Duration::from_millis(500));
    check_alive(account, "the leaf lives without a free descriptor", &mut target.leaf);
    drop(peers);
    target.check_release(account, "connections until no descriptor is free");
    if target.check(account, "afterwards") {
        target.end(account, "afterwards");
    }
    Ok(())
}
