//! What a memif peer may say on the control channel: the order of its messages, and what they must hold to be passed to a driver.
//!
//! DPDK's driver (21.11 to 26.07) believes most of what it is told: it maps a region at the size that is announced, looks for
//! rings at any offset in any region, and counts a ring that is announced twice as two. So a message is passed on only when
//! it is right by what is known here. Layouts are those of memif 2.0: packed, in the machine's byte order.

use std::os::fd::BorrowedFd;

use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fstat, fstatfs};

/// Every message is as long, on a sequenced-packet socket.
pub const MESSAGE_BYTES: usize = 128;
/// Regions that a peer may have. DPDK's driver has one, other programs two; more serve zero-copy, whose memory cannot be sealed.
pub const REGIONS_MAX: u16 = 16;
/// Logarithm of the slots of the longest ring, as in DPDK's driver.
pub const LOG2_SLOTS_MAX: u8 = 14;
/// Queue pairs of a device, as in DPDK's driver.
pub const RINGS_MAX: u16 = 255;
/// Descriptors hold offsets of 32 bits.
pub const REGION_BYTES_MAX: u64 = 1 << 32;

const VERSION: u16 = 0x200;
/// Bytes of the texts in messages.
const NAME_BYTES: usize = 32;
const REASON_AT: usize = 6;
const REASON_BYTES: usize = 96;
/// A ring begins with its cookie, its head and its tail, the latter two on cache lines of their own as DPDK counts them.
const RING_HEADER_BYTES: u64 =
    if cfg!(any(target_arch = "aarch64", target_arch = "powerpc64")) { 256 } else { 128 };
const SLOT_BYTES: u64 = 16;
/// A ring's words are of at most four bytes.
const RING_ALIGNMENT: u32 = 4;
/// The only flag of a ring: it leads to the server.
const TO_SERVER: u16 = 1;
/// The magic number of the file system of huge pages, from which there may be none when one is touched.
const HUGETLBFS: u32 = 0x958458f6;

/// The type of a message, in its first two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum MessageKind {
    /// The server has taken the last message.
    Ack = 1,
    /// The server's first word: what it offers.
    Hello,
    /// The client's first word: which device it wants.
    Init,
    /// A region of the client's memory, with its descriptor.
    AddRegion,
    /// A ring in one of them, with a descriptor that wakes its reader.
    AddRing,
    /// The client has said all.
    Connect,
    /// The server has mapped all: packets flow.
    Connected,
    /// Either has left, and says why.
    Disconnect,
}

/// Numbers of rings, in the directions as the protocol names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    /// From the client to the server: the server's receive queues.
    pub to_server: u16,
    /// From the server to the client: the server's transmit queues.
    pub to_client: u16,
}

/// What the system says of a descriptor that came with a message, whatever the message says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Bytes behind it now.
    pub bytes: u64,
    /// It is memory that nobody can make shorter, and whose pages don't come from a pool that may be empty.
    pub keeps_its_size: bool,
    /// It can be mapped for reading and writing.
    pub is_writable: bool,
}

/// Why a peer is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A message is longer or shorter than the protocol's.
    #[error("a message of {0} bytes; each has {MESSAGE_BYTES}")]
    Length(usize),
    /// There is no such type.
    #[error("a message of the unknown type {0}")]
    MessageKind(u16),
    /// A message has no place here.
    #[error("{0:?} out of order")]
    Order(MessageKind),
    /// Several descriptors with one message, one where none belongs, or none where one does.
    #[error("{0:?} with {1} descriptors")]
    Descriptors(MessageKind, usize),
    /// The other end speaks another version.
    #[error("memif version {0:#x}; {VERSION:#x} is needed")]
    Version(u16),
    /// The client wants to exchange something other than Ethernet frames.
    #[error("interface mode {0}; only Ethernet (0) is served")]
    Mode(u8),
    /// No device has that id.
    #[error("no device with id={0} is served here")]
    NoDevice(u32),
    /// It has a peer.
    #[error("the device with id={0} has a peer already")]
    Taken(u32),
    /// Regions are numbered from 0 on, without gaps.
    #[error("region {found}; the next is {expected}, and there may be {REGIONS_MAX}")]
    RegionNumber {
        /// That of the message.
        found: u16,
        /// That which would be right.
        expected: u16,
    },
    /// A region is empty, longer than descriptors can say, or longer than the memory behind it.
    #[error(
        "a region of {announced} bytes with {there} bytes behind it; at most {REGION_BYTES_MAX} are allowed"
    )]
    RegionSize {
        /// What the message says.
        announced: u64,
        /// What the system says.
        there: u64,
    },
    /// A region could be made shorter while it is in use, which would end this process.
    #[error("a region that is no memfd sealed with F_SEAL_SHRINK, such as zero-copy clients have")]
    Unsealed,
    /// A region cannot be mapped for writing.
    #[error("a region that cannot be written")]
    ReadOnly,
    /// Rings of each direction are numbered from 0 on, without gaps.
    #[error("ring {found}; the next of that direction is {expected}, of {allowed}")]
    RingNumber {
        /// That of the message.
        found: u16,
        /// That which would be right.
        expected: u16,
        /// How many the device has queues for.
        allowed: u16,
    },
    /// A ring has unknown flags.
    #[error("a ring with flags {0:#x}")]
    RingFlags(u16),
    /// A ring is too long.
    #[error("a ring of 2^{0} slots; at most 2^{LOG2_SLOTS_MAX} are allowed")]
    RingSlots(u8),
    /// A ring has a private header, which drivers do not expect.
    #[error("a private header of {0} bytes")]
    PrivateHeader(u16),
    /// A ring does not lie in a region that was added.
    #[error("a ring of {bytes} bytes at {offset} of region {region}, which has {there}")]
    RingPlace {
        /// Its region.
        region: u16,
        /// Where it begins.
        offset: u32,
        /// Its length.
        bytes: u64,
        /// The region's.
        there: u64,
    },
    /// Each of the device's queues needs its ring.
    #[error(
        "{} rings to the server and {} to the client; {} and {} are needed",
        .made.to_server, .made.to_client, .needed.to_server, .needed.to_client
    )]
    RingCount {
        /// Those announced, or offered.
        made: Rings,
        /// Those the device has queues for.
        needed: Rings,
    },
}

/// What came of a client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is right, and is acknowledged.
    Next,
    /// It was the last: the driver may hear all of it.
    Complete,
    /// The client leaves.
    Leaves,
}

/// A client's part of a handshake, as its server hears it.
#[derive(Debug, Default)]
pub struct ClientSays {
    device: Option<(u32, Rings)>,
    /// Their sizes, in bytes.
    regions: Vec<u64>,
    made: Rings,
    is_complete: bool,
}

/// A server's part of a handshake, as its client hears it.
#[derive(Debug)]
pub struct ServerSays {
    needed: Rings,
    has_greeted: bool,
    /// Messages of the client that are not yet acknowledged.
    unanswered: u32,
    /// The client has said all.
    is_asked: bool,
}

impl MessageKind {
    /// That of a message.
    ///
    /// # Errors
    /// When the message has another length than the protocol's, or an unknown type.
    pub fn of(message: &[u8]) -> Result<Self, Refusal> {
        if message.len() != MESSAGE_BYTES {
            return Err(Refusal::Length(message.len()));
        }
        Ok(match u16_at(message, 0) {
            1 => Self::Ack,
            2 => Self::Hello,
            3 => Self::Init,
            4 => Self::AddRegion,
            5 => Self::AddRing,
            6 => Self::Connect,
            7 => Self::Connected,
            8 => Self::Disconnect,
            other => return Err(Refusal::MessageKind(other)),
        })
    }

    /// A message of this type whose other bytes are zero.
    fn message(self) -> [u8; MESSAGE_BYTES] {
        let mut message = [0; MESSAGE_BYTES];
        put(&mut message, 0, &(self as u16).to_ne_bytes());
        message
    }
}

/// An acknowledgement.
pub fn ack() -> [u8; MESSAGE_BYTES] {
    MessageKind::Ack.message()
}

/// A server's greeting, which offers so many rings (at least one of each direction).
pub fn hello(offered: Rings) -> [u8; MESSAGE_BYTES] {
    let mut message = MessageKind::Hello.message();
    let name = concat!("wedjat ", env!("CARGO_PKG_VERSION")).as_bytes();
    put(&mut message, 2, &name[..name.len().min(NAME_BYTES - 1)]);
    // The greatest numbers: of versions as they are, of regions and rings counted from 0.
    let last = |count: u16| count.saturating_sub(1);
    let numbers =
        [VERSION, VERSION, REGIONS_MAX - 1, last(offered.to_client), last(offered.to_server)];
    for (at, number) in numbers.into_iter().enumerate() {
        put(&mut message, 2 + NAME_BYTES + 2 * at, &number.to_ne_bytes());
    }
    message[44] = LOG2_SLOTS_MAX;
    message
}

/// A farewell with its reason, which is cut where the protocol's room for it ends.
pub fn disconnect(reason: &str) -> [u8; MESSAGE_BYTES] {
    let mut message = MessageKind::Disconnect.message();
    let text = reason.as_bytes();
    put(&mut message, REASON_AT, &text[..text.len().min(REASON_BYTES - 1)]);
    message
}

/// The reason that a farewell gives, in characters that can be printed.
pub fn reason(message: &[u8]) -> String {
    let text = message.get(REASON_AT..REASON_AT + REASON_BYTES).unwrap_or_default();
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    text[..end].escape_ascii().to_string()
}

impl Descriptor {
    /// What the system says of it; of what it does not answer, the worst.
    pub fn of(descriptor: BorrowedFd<'_>) -> Self {
        let seals = fcntl_get_seals(descriptor).unwrap_or(SealFlags::empty());
        let flags = fcntl_getfl(descriptor).unwrap_or(OFlags::empty());
        // The field's type differs between machines; the number has 32 bits.
        let system = fstatfs(descriptor).map(|system| system.f_type as u32);
        Self {
            bytes: fstat(descriptor).map_or(0, |status| status.st_size.try_into().unwrap_or(0)),
            keeps_its_size: seals.contains(SealFlags::SHRINK) && system != Ok(HUGETLBFS),
            is_writable: flags & OFlags::RWMODE == OFlags::RDWR
                && !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE),
        }
    }
}

/// Where a ring is, as the message that adds it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// The client writes and the server reads.
    pub to_server: bool,
    /// Its number, from 0 on in each direction.
    pub number: u16,
    /// The number of its region.
    pub region: u16,
    /// Where it begins there, in bytes.
    pub offset: u32,
}

impl RingPlace {
    /// What a message says; none when it adds no ring.
    pub fn of(message: &[u8]) -> Option<Self> {
        (MessageKind::of(message) == Ok(MessageKind::AddRing)).then(|| Self {
            to_server: u16_at(message, 2) == TO_SERVER,
            number: u16_at(message, 4),
            region: u16_at(message, 6),
            offset: u32_at(message, 8),
        })
    }
}

impl ClientSays {
    /// Takes the next message with the descriptors that came with it. `rings_of` says how many rings a device needs, or why
    /// it cannot be had.
    ///
    /// # Errors
    /// When the message is not what may come here. Nothing more can be taken from this client then.
    pub fn take(
        &mut self,
        message: &[u8],
        descriptors: &[Descriptor],
        rings_of: impl FnOnce(u32) -> Result<Rings, Refusal>,
    ) -> Result<Step, Refusal> {
        let kind = MessageKind::of(message)?;
        let expected = usize::from(matches!(kind, MessageKind::AddRegion | MessageKind::AddRing));
        if kind != MessageKind::Disconnect && descriptors.len() != expected {
            return Err(Refusal::Descriptors(kind, descriptors.len()));
        }
        match (kind, self.device) {
            (MessageKind::Disconnect, _) => return Ok(Step::Leaves),
            _ if self.is_complete => return Err(Refusal::Order(kind)),
            (MessageKind::Init, None) => self.init(message, rings_of)?,
            (MessageKind::AddRegion, Some(_)) => self.add_region(message, descriptors[0])?,
            (MessageKind::AddRing, Some((_, needed))) => self.add_ring(message, needed)?,
            (MessageKind::Connect, Some((_, needed))) if self.made == needed => {
                self.is_complete = true;
                return Ok(Step::Complete);
            }
            (MessageKind::Connect, Some((_, needed))) => {
                return Err(Refusal::RingCount { made: self.made, needed });
            }
            _ => return Err(Refusal::Order(kind)),
        }
        Ok(Step::Next)
    }

    /// The device that it wants, once it has said so.
    pub fn id(&self) -> Option<u32> {
        self.device.map(|(id, _)| id)
    }

    fn init(
        &mut self,
        message: &[u8],
        rings_of: impl FnOnce(u32) -> Result<Rings, Refusal>,
    ) -> Result<(), Refusal> {
        let (version, id, mode) = (u16_at(message, 2), u32_at(message, 4), message[8]);
        if version != VERSION {
            return Err(Refusal::Version(version));
        }
        if mode != 0 {
            return Err(Refusal::Mode(mode));
        }
        self.device = Some((id, rings_of(id)?));
        Ok(())
    }

    fn add_region(&mut self, message: &[u8], memory: Descriptor) -> Result<(), Refusal> {
        let (found, announced) = (u16_at(message, 2), u64_at(message, 4));
        let expected = self.regions.len() as u16;
        if found != expected || expected >= REGIONS_MAX {
            return Err(Refusal::RegionNumber { found, expected });
        }
        if !memory.keeps_its_size {
            return Err(Refusal::Unsealed);
        }
        if !memory.is_writable {
            return Err(Refusal::ReadOnly);
        }
        if announced == 0 || announced > memory.bytes.min(REGION_BYTES_MAX) {
            return Err(Refusal::RegionSize { announced, there: memory.bytes });
        }
        self.regions.push(announced);
        Ok(())
    }

    fn add_ring(&mut self, message: &[u8], needed: Rings) -> Result<(), Refusal> {
        let (flags, found, region) = (u16_at(message, 2), u16_at(message, 4), u16_at(message, 6));
        let (offset, log2) = (u32_at(message, 8), message[12]);
        let private_header = u16_at(message, 13);
        let (made, allowed) = match flags {
            TO_SERVER => (&mut self.made.to_server, needed.to_server),
            0 => (&mut self.made.to_client, needed.to_client),
            _ => return Err(Refusal::RingFlags(flags)),
        };
        if found != *made || found >= allowed {
            return Err(Refusal::RingNumber { found, expected: *made, allowed });
        }
        if log2 > LOG2_SLOTS_MAX {
            return Err(Refusal::RingSlots(log2));
        }
        if private_header != 0 {
            return Err(Refusal::PrivateHeader(private_header));
        }
        let bytes = RING_HEADER_BYTES + (SLOT_BYTES << log2);
        let there = self.regions.get(usize::from(region)).copied().unwrap_or(0);
        if u64::from(offset) + bytes > there || offset % RING_ALIGNMENT != 0 {
            return Err(Refusal::RingPlace { region, offset, bytes, there });
        }
        *made += 1;
        Ok(())
    }
}

impl ServerSays {
    /// For a client that has so many rings.
    pub fn new(needed: Rings) -> Self {
        Self { needed, has_greeted: false, unanswered: 0, is_asked: false }
    }

    /// Notes what the client says.
    pub fn client_says(&mut self, kind: MessageKind) {
        match kind {
            MessageKind::Connect => self.is_asked = true,
            MessageKind::Disconnect => {}
            _ => self.unanswered += 1,
        }
    }

    /// Takes the server's next message, with which so many descriptors came, until the connection stands.
    ///
    /// # Errors
    /// When the message is not what may come here. Nothing more can be taken from this server then.
    pub fn take(&mut self, message: &[u8], descriptors: usize) -> Result<MessageKind, Refusal> {
        let kind = MessageKind::of(message)?;
        if descriptors != 0 {
            return Err(Refusal::Descriptors(kind, descriptors));
        }
        match kind {
            MessageKind::Hello if !self.has_greeted => self.greeted(message)?,
            MessageKind::Ack if self.unanswered > 0 => self.unanswered -= 1,
            MessageKind::Connected if self.is_asked && self.unanswered == 0 => {}
            MessageKind::Disconnect => {}
            _ => return Err(Refusal::Order(kind)),
        }
        Ok(kind)
    }

    fn greeted(&mut self, message: &[u8]) -> Result<(), Refusal> {
        let [least, most, _, to_client, to_server] =
            [34, 36, 38, 40, 42].map(|at| u16_at(message, at));
        if !(least..=most).contains(&VERSION) {
            return Err(Refusal::Version(most));
        }
        // The driver would make fewer rings and go on to use those that it has not made.
        let offered = Rings {
            to_server: to_server.saturating_add(1),
            to_client: to_client.saturating_add(1),
        };
        let needed = self.needed;
        if offered.to_server < needed.to_server || offered.to_client < needed.to_client {
            return Err(Refusal::RingCount { made: offered, needed });
        }
        self.has_greeted = true;
        Ok(())
    }
}

/// The bytes lie within every message of the protocol's length.
fn bytes_at<const LEN: usize>(message: &[u8], at: usize) -> [u8; LEN] {
    std::array::from_fn(|index| message[at + index])
}

fn u16_at(message: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(bytes_at(message, at))
}

fn u32_at(message: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes_at(message, at))
}

fn u64_at(message: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes_at(message, at))
}

fn put(message: &mut [u8; MESSAGE_BYTES], at: usize, bytes: &[u8]) {
    message[at..at + bytes.len()].copy_from_slice(bytes);
}
