//! Control channel of memif: order of a peer's messages, and conditions for passing them to a driver.
//!
//! memif joins two processes by packet rings in shared memory. They exchange messages and file descriptors over a Unix
//! socket: the *server* listens, and the *client* shares its memory, the *regions* with the *rings*. DPDK's driver has
//! one of these parts, and the peer has the opposite one. The node passes messages on between them.
//!
//! DPDK's driver (21.11 to 26.07) trusts most messages. It maps a region with the announced size, looks for
//! rings at any offset in any region, and counts a ring that is announced twice as two. So a message is
//! passed on only if it is valid by the checks here. Layouts are those of memif 2.0: packed, in the machine's
//! byte order.

use std::os::fd::BorrowedFd;

use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fstat, fstatfs};

/// Length of every message, on a sequenced-packet socket.
pub const MESSAGE_BYTES: usize = 128;
/// Maximum number of regions of a peer. DPDK's driver has one, other programs two. Zero-copy needs more, and
/// its memory cannot be sealed.
pub const REGIONS_MAX: u16 = 16;
/// log2 of the maximum slots of a ring, as in DPDK's driver.
pub const LOG2_SLOTS_MAX: u8 = 14;
/// Maximum number of queue pairs of a device, as in DPDK's driver.
pub const RINGS_MAX: u16 = 255;
/// Maximum region size: descriptors hold offsets of 32 bits.
pub const REGION_BYTES_MAX: u64 = 1 << 32;

/// Protocol version 2.0: major version in the high byte.
const VERSION: u16 = 0x200;
/// Bytes of the texts in messages.
const NAME_BYTES: usize = 32;
/// Offset of the reason in a disconnect message.
const REASON_OFFSET: usize = 6;
/// Size of the reason, with its NUL byte.
const REASON_BYTES: usize = 96;
/// Size of a ring's header: two cache lines, with DPDK's line size. The first has cookie, flags and head, the second
/// has tail.
const RING_HEADER_BYTES: u64 =
    if cfg!(any(target_arch = "aarch64", target_arch = "powerpc64")) { 256 } else { 128 };
/// Size of a descriptor, which fills one slot of a ring.
const SLOT_BYTES: u64 = 16;
/// Alignment of a ring, whose words have at most four bytes.
const RING_ALIGNMENT: u32 = 4;
/// The only flag of a ring: its direction is to the server.
const TO_SERVER: u16 = 1;
/// Magic number of hugetlbfs, whose pages may be missing at the first access.
const HUGETLBFS: u32 = 0x958458f6;

/// Type of a message, in its first two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum MessageKind {
    /// The server has accepted the last message.
    Ack = 1,
    /// First message of the server: its offer.
    Hello,
    /// First message of the client: the requested device.
    Init,
    /// A region of the client's memory, with its descriptor.
    AddRegion,
    /// A ring in one of the client's regions, with a descriptor that wakes its reader.
    AddRing,
    /// The client has sent everything.
    Connect,
    /// The server has mapped everything: packets flow.
    Connected,
    /// One side has left, with the reason.
    Disconnect,
}

/// Numbers of rings in both directions, as the protocol names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    /// From the client to the server: the server's receive queues.
    pub to_server: u16,
    /// From the server to the client: the server's transmit queues.
    pub to_client: u16,
}

/// The kernel's information on a descriptor that came with a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Current size in bytes.
    pub bytes: u64,
    /// True if no process can shrink the memory, and an access never fails for lack of a page. Pages of hugetlbfs
    /// may be missing.
    pub keeps_its_size: bool,
    /// True if it can be mapped for reading and writing.
    pub is_writable: bool,
}

/// Reason for refusing a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The message has a wrong length.
    #[error("a message of {0} bytes; each has {MESSAGE_BYTES}")]
    Length(usize),
    /// The type does not exist.
    #[error("a message of the unknown type {0}")]
    MessageKind(u16),
    /// The message is out of order.
    #[error("{0:?} out of order")]
    Order(MessageKind),
    /// Several descriptors with one message, an unexpected one, or a missing one.
    #[error("{0:?} with {1} descriptors")]
    Descriptors(MessageKind, usize),
    /// The peer uses another version.
    #[error("memif version {0:#x}; {VERSION:#x} is needed")]
    Version(u16),
    /// The client wants another mode than Ethernet.
    #[error("interface mode {0}; only Ethernet (0) is served")]
    Mode(u8),
    /// No device has this id.
    #[error("no device with id={0} is served here")]
    NoDevice(u32),
    /// The device has a peer.
    #[error("the device with id={0} has a peer already")]
    Taken(u32),
    /// Region numbers do not count from 0 without gaps, or there are too many regions.
    #[error("region {found}; the next is {expected}, and there may be {REGIONS_MAX}")]
    RegionNumber {
        /// Number in the message.
        found: u16,
        /// Expected number.
        expected: u16,
    },
    /// The region is empty, longer than descriptors can address, or longer than its memory.
    #[error(
        "a region of {announced} bytes with {there} bytes behind it; at most {REGION_BYTES_MAX} are allowed"
    )]
    RegionSize {
        /// Announced size.
        announced: u64,
        /// Actual size.
        there: u64,
    },
    /// The region could shrink or lack a page while in use. An access there would kill this process.
    #[error("a region that is no memfd sealed with F_SEAL_SHRINK, such as zero-copy clients have")]
    Unsealed,
    /// The region cannot be mapped for writing.
    #[error("a region that cannot be written")]
    ReadOnly,
    /// Ring numbers of a direction do not count from 0 without gaps, or exceed the device's queues.
    #[error("ring {found}; the next of that direction is {expected}, of {allowed}")]
    RingNumber {
        /// Number in the message.
        found: u16,
        /// Expected number.
        expected: u16,
        /// Number of queues of the device.
        allowed: u16,
    },
    /// The ring has unknown flags.
    #[error("a ring with flags {0:#x}")]
    RingFlags(u16),
    /// The ring is too long.
    #[error("a ring of 2^{0} slots; at most 2^{LOG2_SLOTS_MAX} are allowed")]
    RingSlots(u8),
    /// The ring has a private header, which drivers do not expect.
    #[error("a private header of {0} bytes")]
    PrivateHeader(u16),
    /// The ring is outside the added regions, or its offset is not aligned.
    #[error("a ring of {bytes} bytes at {offset} of region {region}, which has {there}")]
    RingPlace {
        /// Its region.
        region: u16,
        /// Its offset.
        offset: u32,
        /// Its length.
        bytes: u64,
        /// Length of the region.
        there: u64,
    },
    /// The client's rings differ from the device's queues in number, or the server offers too few.
    #[error(
        "{} rings to the server and {} to the client; {} and {} are needed",
        .made.to_server, .made.to_client, .needed.to_server, .needed.to_client
    )]
    RingCount {
        /// Announced or offered rings.
        made: Rings,
        /// Needed rings.
        needed: Rings,
    },
}

/// Result of a client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Valid: the node acknowledges it. The driver gets no message before the last one is valid.
    Next,
    /// The last message: the driver may get all of them.
    Complete,
    /// The client leaves.
    Leaves,
}

/// A client's messages in a handshake, as its server receives them.
#[derive(Debug, Default)]
pub struct ClientMessages {
    /// Id and rings of the requested device, once known.
    device: Option<(u32, Rings)>,
    /// Sizes of the regions in bytes.
    regions: Vec<u64>,
    /// Rings announced so far.
    announced: Rings,
    /// True once the client has sent everything.
    is_complete: bool,
}

/// A server's messages in a handshake, as its client receives them.
#[derive(Debug)]
pub struct ServerMessages {
    /// Rings of the client.
    needed: Rings,
    /// True once the server's offer has come.
    has_greeted: bool,
    /// Client messages without an acknowledgement.
    unanswered: u32,
    /// True once the client has sent everything.
    is_client_done: bool,
}

impl MessageKind {
    /// Returns the type of a message.
    ///
    /// # Errors
    /// If the message has a wrong length or an unknown type.
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

    /// Returns a message of this type with zeros otherwise.
    fn message(self) -> [u8; MESSAGE_BYTES] {
        let mut message = [0; MESSAGE_BYTES];
        put(&mut message, 0, &(self as u16).to_ne_bytes());
        message
    }
}

/// Returns an acknowledgement, which the node sends in place of the driver.
pub fn ack() -> [u8; MESSAGE_BYTES] {
    MessageKind::Ack.message()
}

/// Returns a server's greeting, which offers these rings (at least one per direction).
pub fn hello(offered: Rings) -> [u8; MESSAGE_BYTES] {
    let mut message = MessageKind::Hello.message();
    let name = concat!("wedjat ", env!("CARGO_PKG_VERSION")).as_bytes();
    put(&mut message, 2, &name[..name.len().min(NAME_BYTES - 1)]);
    // Lowest and highest version, then the highest number of a region and of a ring in each direction, from 0.
    let last = |count: u16| count.saturating_sub(1);
    let numbers =
        [VERSION, VERSION, REGIONS_MAX - 1, last(offered.to_client), last(offered.to_server)];
    for (index, number) in numbers.into_iter().enumerate() {
        put(&mut message, 2 + NAME_BYTES + 2 * index, &number.to_ne_bytes());
    }
    // After the type, the name and these five numbers.
    message[44] = LOG2_SLOTS_MAX;
    message
}

/// Returns a disconnect message with its reason, truncated to the protocol's room.
pub fn disconnect(reason: &str) -> [u8; MESSAGE_BYTES] {
    let mut message = MessageKind::Disconnect.message();
    let text = reason.as_bytes();
    put(&mut message, REASON_OFFSET, &text[..text.len().min(REASON_BYTES - 1)]);
    message
}

/// Returns the reason in a disconnect message, in printable characters.
pub fn reason(message: &[u8]) -> String {
    let text = message.get(REASON_OFFSET..REASON_OFFSET + REASON_BYTES).unwrap_or_default();
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    text[..end].escape_ascii().to_string()
}

impl Descriptor {
    /// Queries the kernel. A failed query counts as unfit memory.
    pub fn of(descriptor: BorrowedFd<'_>) -> Self {
        let seals = fcntl_get_seals(descriptor).unwrap_or(SealFlags::empty());
        let flags = fcntl_getfl(descriptor).unwrap_or(OFlags::empty());
        // The field's type differs between machines; the number has 32 bits.
        let file_system = fstatfs(descriptor).ok().map(|system| system.f_type as u32);
        Self {
            bytes: fstat(descriptor).map_or(0, |status| status.st_size.try_into().unwrap_or(0)),
            keeps_its_size: keeps_its_size(seals, file_system),
            is_writable: flags & OFlags::RWMODE == OFlags::RDWR
                && !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE),
        }
    }
}

/// Returns true for memory with these seals on this file system (`None` if unknown) whose accesses never fail. No
/// process can remove the seal against shrinking.
fn keeps_its_size(seals: SealFlags, file_system: Option<u32>) -> bool {
    seals.contains(SealFlags::SHRINK) && file_system.is_some_and(|system| system != HUGETLBFS)
}

/// Position of a ring, from the message that adds it. The node finds the ring's interrupt by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// True if the client writes and the server reads.
    pub to_server: bool,
    /// Number, from 0 in each direction.
    pub number: u16,
    /// Number of its region.
    pub region: u16,
    /// Offset in the region in bytes.
    pub offset: u32,
}

impl RingPlace {
    /// Parses a message; `None` if it adds no ring.
    pub fn of(message: &[u8]) -> Option<Self> {
        (MessageKind::of(message) == Ok(MessageKind::AddRing)).then(|| Self {
            to_server: u16_at(message, 2) == TO_SERVER,
            number: u16_at(message, 4),
            region: u16_at(message, 6),
            offset: u32_at(message, 8),
        })
    }
}

impl ClientMessages {
    /// Checks the next message with its descriptors. `rings_of` returns the rings of a device, or the reason
    /// why it is unavailable.
    ///
    /// # Errors
    /// If the message is not allowed here. No more messages can be processed from this client then.
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
            (MessageKind::Connect, Some((_, needed))) if self.announced == needed => {
                self.is_complete = true;
                return Ok(Step::Complete);
            }
            (MessageKind::Connect, Some((_, needed))) => {
                return Err(Refusal::RingCount { made: self.announced, needed });
            }
            _ => return Err(Refusal::Order(kind)),
        }
        Ok(Step::Next)
    }

    /// Returns the requested device, once known.
    pub fn id(&self) -> Option<u32> {
        self.device.map(|(id, _)| id)
    }

    /// Checks the request for a device.
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

    /// Checks a region and its memory.
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

    /// Checks that a ring has the next number and lies within a region.
    fn add_ring(&mut self, message: &[u8], needed: Rings) -> Result<(), Refusal> {
        let (flags, found, region) = (u16_at(message, 2), u16_at(message, 4), u16_at(message, 6));
        let (offset, log2) = (u32_at(message, 8), message[12]);
        let private_header = u16_at(message, 13);
        let (announced, allowed) = match flags {
            TO_SERVER => (&mut self.announced.to_server, needed.to_server),
            0 => (&mut self.announced.to_client, needed.to_client),
            _ => return Err(Refusal::RingFlags(flags)),
        };
        if found != *announced || found >= allowed {
            return Err(Refusal::RingNumber { found, expected: *announced, allowed });
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
        *announced += 1;
        Ok(())
    }
}

impl ServerMessages {
    /// Creates the state for a client with these rings.
    pub fn new(needed: Rings) -> Self {
        Self { needed, has_greeted: false, unanswered: 0, is_client_done: false }
    }

    /// Records a message of the client. The server answers each with [`MessageKind::Ack`], but `Connect` with
    /// [`MessageKind::Connected`].
    pub fn note_client_message(&mut self, kind: MessageKind) {
        match kind {
            MessageKind::Connect => self.is_client_done = true,
            MessageKind::Disconnect => {}
            _ => self.unanswered += 1,
        }
    }

    /// Checks the server's next message, with its number of descriptors, until the connection is established.
    ///
    /// # Errors
    /// If the message is not allowed here. No more messages can be processed from this server then.
    pub fn take(&mut self, message: &[u8], descriptors: usize) -> Result<MessageKind, Refusal> {
        let kind = MessageKind::of(message)?;
        if descriptors != 0 {
            return Err(Refusal::Descriptors(kind, descriptors));
        }
        match kind {
            MessageKind::Hello if !self.has_greeted => self.check_hello(message)?,
            MessageKind::Ack if self.unanswered > 0 => self.unanswered -= 1,
            MessageKind::Connected if self.is_client_done && self.unanswered == 0 => {}
            MessageKind::Disconnect => {}
            _ => return Err(Refusal::Order(kind)),
        }
        Ok(kind)
    }

    /// Checks the offer in the server's first message.
    fn check_hello(&mut self, message: &[u8]) -> Result<(), Refusal> {
        // The five numbers after the type and the name, as in `hello`.
        let [min_version, max_version, _, to_client, to_server] =
            [34, 36, 38, 40, 42].map(|offset| u16_at(message, offset));
        if !(min_version..=max_version).contains(&VERSION) {
            return Err(Refusal::Version(max_version));
        }
        // The driver would create fewer rings and then use those that it did not create.
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

/// Returns the bytes at `offset`. The callers pass offsets within every message of the protocol's length.
fn bytes_at<const LEN: usize>(message: &[u8], offset: usize) -> [u8; LEN] {
    std::array::from_fn(|index| message[offset + index])
}

fn u16_at(message: &[u8], offset: usize) -> u16 {
    u16::from_ne_bytes(bytes_at(message, offset))
}

fn u32_at(message: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(bytes_at(message, offset))
}

fn u64_at(message: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(bytes_at(message, offset))
}

/// Writes `bytes` at `offset`.
fn put(message: &mut [u8; MESSAGE_BYTES], offset: usize, bytes: &[u8]) {
    message[offset..offset + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_file_system_counts_as_unfit() {
        let tmpfs = Some(0x0102_1994);
        assert!(keeps_its_size(SealFlags::SHRINK, tmpfs));
        assert!(!keeps_its_size(SealFlags::SHRINK, Some(HUGETLBFS)));
        assert!(!keeps_its_size(SealFlags::SHRINK, None));
        assert!(!keeps_its_size(SealFlags::GROW, tmpfs));
    }
}
