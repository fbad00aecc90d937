//! What a plain packet is: the common task and the common reply, whole in one packet, without IP options and
//! with nothing to object to. Recognised at fixed offsets, mostly by comparing whole words under a mask.

use super::network::{Network, PortAddress, Stranger};
use crate::wire::checksum::Sum;
use crate::wire::task::{self, Code};
use crate::wire::{auth, ether, ipv4, udp};

/// Bytes that a plain packet has at least.
pub const HEAD: usize = udp::PAYLOAD + task::LEN;
/// Offset of the IPv4 header.
pub const IP: usize = ether::LEN;
/// Offset of the UDP header.
pub const UDP: usize = ether::LEN + ipv4::LEN;
/// Offset of the task header.
pub const TASK: usize = udp::PAYLOAD;

/// Set in the codes of replies, and in no task's.
const REPLY_BIT: u8 = Code::TaskDone as u8;
const _: () = assert!(Code::NewTask as u8 == 0 && Code::TaskDoneIdle as u8 == REPLY_BIT | 1);

/// Whether a packet is a reply, and whether its header has an extension.
#[derive(Clone, Copy, Debug)]
pub struct Kind(u8);

impl Kind {
    #[inline(always)]
    pub fn of(head: &[u8; HEAD]) -> Self {
        Self(head[TASK])
    }

    #[inline(always)]
    pub fn is_reply(self) -> bool {
        self.0 & REPLY_BIT != 0
    }

    #[inline(always)]
    pub fn is_extended(self) -> bool {
        self.0 & task::EXTENSION_BIT != 0
    }

    /// Bytes of its extension.
    #[inline(always)]
    pub fn extension_len(self) -> usize {
        usize::from(self.is_extended()) * task::EXTENSION_LEN
    }
}

/// Addresses or networks that a task's source is compared with: as many as a vector holds.
pub const NO_SOURCES: usize = 8;

/// What the first bytes of a frame must be, where the mask has ones.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))] // a power of two, so that one of two is found by a shift
pub struct Pattern {
    pub expected: [u8; Self::LEN],
    pub mask: [u8; Self::LEN],
    /// What the source address must not be where the mask has ones, in memory order.
    pub no_source: [u32; NO_SOURCES],
    pub no_source_mask: [u32; NO_SOURCES],
    /// The length of the datagram at least, but for its extension.
    pub least_udp_len: usize,
}

impl Pattern {
    /// Bytes at a plain packet's start that hold all that must be as expected: whole words.
    pub const LEN: usize = 48;

    /// An IPv4 packet for this port, in one piece, with a UDP datagram in it.
    fn datagram(address: &PortAddress) -> Self {
        let least_udp_len = udp::LEN + task::LEN;
        let mut pattern = Self { expected: [0; Self::LEN], least_udp_len, ..Self::NOTHING };
        pattern.require(0, &address.mac.0, &[0xFF; 6]);
        pattern.require(12, &[0x08, 0x00, ipv4::PLAIN], &[0xFF; 3]);
        pattern.require(IP + 6, &[0, 0], &[0x3F, 0xFF]); // no fragment
        pattern.require(IP + 9, &[ipv4::UDP], &[0xFF]);
        pattern
    }

    /// A whole task to this port's address, from a source that is one of its clients' if that can be told here.
    fn task(
        address: &PortAddress,
        udp_port: u16,
        (near, strangers): (Option<(u32, u32)>, &[Stranger]),
    ) -> Self {
        let mut pattern = Self::datagram(address);
        pattern.require(IP + 16, &address.ip.to_be_bytes(), &[0xFF; 4]);
        pattern.require(UDP + 2, &udp_port.to_be_bytes(), &[0xFF; 2]);
        pattern.require(TASK, &[Code::NewTask as u8], &[!task::EXTENSION_BIT]);
        if let Some((network, mask)) = near {
            pattern.require(IP + 12, &network.to_be_bytes(), &mask.to_be_bytes());
        }
        for (at, stranger) in strangers.iter().take(NO_SOURCES).enumerate() {
            pattern.no_source[at] = (stranger.network & stranger.mask).to_be();
            pattern.no_source_mask[at] = stranger.mask.to_be();
        }
        pattern
    }

    /// A whole reply to anybody.
    fn reply(address: &PortAddress, udp_port: u16) -> Self {
        let mut pattern = Self::datagram(address);
        pattern.require(UDP, &udp_port.to_be_bytes(), &[0xFF; 2]);
        pattern.require(TASK, &[REPLY_BIT], &[!(task::EXTENSION_BIT | 1)]);
        pattern
    }

    /// Nothing: a bit that the mask never lets through.
    const NOTHING: Self = Self {
        expected: [1; Self::LEN],
        mask: [0; Self::LEN],
        // Nor is any source one of these.
        no_source: [1; NO_SOURCES],
        no_source_mask: [0; NO_SOURCES],
        least_udp_len: usize::MAX / 2,
    };

    fn require(&mut self, at: usize, bytes: &[u8], mask: &[u8]) {
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
        self.mask[at..at + mask.len()].copy_from_slice(mask);
    }

    fn of_pool(mut self, pool: [u8; 2]) -> Self {
        self.require(TASK + 1, &pool, &[0xFF; 2]);
        self
    }

    /// The same with sequence and tag behind the header.
    fn authenticated(mut self) -> Self {
        self.expected[TASK] |= task::AUTHENTICATION_BIT;
        self.least_udp_len += auth::LEN;
        self
    }

    #[inline(always)]
    fn fits(&self, head: &[u8; HEAD]) -> bool {
        let mut differs = 0;
        for at in (0..Self::LEN).step_by(8) {
            differs |= (word(head, at) & word(&self.mask, at)) ^ word(&self.expected, at);
        }
        let source = u32::from_ne_bytes(bytes(head, IP + 12));
        let mut strangers = self.no_source.iter().zip(&self.no_source_mask);
        differs == 0 && !strangers.any(|(network, mask)| source & mask == *network)
    }
}

/// What is plain on one port: tasks, and replies.
#[derive(Clone, Copy, Debug)]
pub struct Plain {
    /// Of tasks, and of replies.
    patterns: [Pattern; 2],
    /// Whether a task's source is a client's is not told by its pattern.
    sources_vary: bool,
}

impl Plain {
    /// What is plain on the port at `index`.
    pub fn new(network: &Network, index: usize) -> Self {
        let address = network.port(index);
        let on = |side: bool, pattern| if side { pattern } else { Pattern::NOTHING };
        let (near, strangers) = network.sources(index);
        let task = Pattern::task(address, network.udp_port, (near, &strangers));
        let patterns = [
            on(address.side.has_clients(), task),
            on(address.side.has_workers(), Pattern::reply(address, network.udp_port)),
        ];
        Self { patterns, sources_vary: strangers.len() > NO_SOURCES }
    }

    /// The sources of tasks that are plain here have still to be looked at.
    #[inline(always)]
    pub fn sources_vary(&self) -> bool {
        self.sources_vary
    }

    /// As it is, and of this pool (its id as it stands in packets).
    pub fn of_pool(self, pool: [u8; 2]) -> Self {
        Self { patterns: self.patterns.map(|pattern| pattern.of_pool(pool)), ..self }
    }

    /// As it is, of a pool with a key: replies come with proof, which is still to be looked at.
    #[inline(never)]
    pub fn authenticated(self) -> Self {
        let [task, reply] = self.patterns;
        Self { patterns: [task, reply.authenticated()], ..self }
    }

    /// What packets of that kind must be.
    #[inline(always)]
    pub fn pattern(&self, kind: Kind) -> &Pattern {
        // Chosen by arithmetic: which of the two comes next is anybody's guess.
        &self.patterns[usize::from(kind.is_reply())]
    }

    /// What the frame is, when it is plain.
    #[inline(always)]
    pub fn read(&self, frame: &[u8], verified: bool) -> Option<Kind> {
        let head = frame.first_chunk::<HEAD>()?;
        let kind = Kind::of(head);
        let pattern = self.pattern(kind);
        let plain = pattern.fits(head)
            & (head[IP + 8] >= 2)
            & lengths_fit(frame, head, pattern.least_udp_len + kind.extension_len());
        if !plain {
            return None;
        }
        let whole = verified || (ip_is_whole(head) && udp_is_whole(head, frame));
        whole.then_some(kind)
    }
}

#[inline(always)]
fn bytes<const N: usize, const LEN: usize>(head: &[u8; LEN], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&head[at..at + N]);
    bytes
}

#[inline(always)]
fn word<const LEN: usize>(head: &[u8; LEN], at: usize) -> u64 {
    u64::from_le_bytes(bytes(head, at))
}

#[inline(always)]
fn number(head: &[u8; HEAD], at: usize) -> usize {
    usize::from(u16::from_be_bytes(bytes(head, at)))
}

#[inline(always)]
fn lengths_fit(frame: &[u8], head: &[u8; HEAD], least: usize) -> bool {
    let (total_len, udp_len) = (number(head, IP + 2), number(head, UDP + 4));
    (total_len <= frame.len() - IP) & (total_len >= ipv4::LEN + udp_len) & (udp_len >= least)
}

#[inline(always)]
fn ip_is_whole(head: &[u8; HEAD]) -> bool {
    let last = u32::from_le_bytes(bytes(head, IP + 16));
    Sum::default().words([word(head, IP), word(head, IP + 8), u64::from(last)]).is_whole()
}

/// Lengths must fit.
#[inline(always)]
fn udp_is_whole(head: &[u8; HEAD], frame: &[u8]) -> bool {
    if bytes(head, UDP + 6) == [0, 0] {
        return true;
    }
    // Of the pseudo header (RFC 768): protocol and length, as they would stand in the packet.
    let length = u16::from_le_bytes(bytes(head, UDP + 4));
    let pseudo = u64::from(length) + u64::from(u16::from(ipv4::UDP).swap_bytes());
    let (addresses, header) = (word(head, IP + 12), word(head, UDP));
    let sum = Sum::default().words([pseudo, addresses, header, word(head, UDP + 8)]);
    sum.stretch(frame, UDP + 16, UDP + number(head, UDP + 4)).is_whole()
}
