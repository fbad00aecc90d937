//! What packets of the fast path look like: the common task and the common reply, whole in one packet, without IP
//! options and with nothing to object to. Recognised at fixed offsets, by comparing words under a mask.

use crate::stage::network::{Network, PortAddress};
use crate::wire::checksum::Sum;
use crate::wire::task::{self, Code};
use crate::wire::{auth, ether, ipv4, udp};

/// Bytes that a packet of the fast path has at least.
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

/// The first byte of a task header: whether a packet is a reply, and whether its header has an extension.
#[derive(Clone, Copy, Debug)]
pub struct CodeByte(u8);

impl CodeByte {
    #[inline(always)]
    pub fn of(head: &[u8; HEAD]) -> Self {
        Self(head[TASK])
    }

    /// Of a packet whose task header begins with this byte.
    #[inline(always)]
    pub fn at(first: u8) -> Self {
        Self(first)
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

/// Bytes and bounds that the first bytes of a frame must match, where the mask has ones.
///
/// Bounds cost a vector one instruction for all of them: a word may differ from the expected one by at most its tolerance. A word of
/// tolerance 0 must be equal. A word that must not be 0 is expected to have all ones, and may differ from that by anything less.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))] // 128 bytes: a shift finds one of two
pub struct Pattern {
    pub expected: [u8; Self::LEN],
    pub mask: [u8; Self::LEN],
    /// Greatest permitted difference of each word from the IPv4 header on.
    pub tolerance: [u16; TOLERANCES],
    /// Least length of the datagram, without its extension.
    pub least_udp_len: u16,
}
const _: () = assert!(size_of::<Pattern>() == 128);

/// Words of a vector.
pub const TOLERANCES: usize = 16;
/// Tolerance of a word that is expected to have all ones and must not be 0.
pub const NOT_ZERO: u16 = 0xFFFE;

/// Tolerance of a byte that is expected to be 0xFF and must be at least `least`, and is followed by a byte that must be equal.
pub const fn at_least(least: u8) -> u16 {
    (u8::MAX - least) as u16
}

/// Bits of the word at `at` that differ from the expected ones, as a little-endian number.
#[inline(always)]
pub fn differing(head: &[u8], expected: &[u8], mask: &[u8], at: usize) -> u16 {
    let word = |bytes: &[u8]| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    (word(head) & word(mask)) ^ word(expected)
}

impl Pattern {
    /// Bytes at a packet's start that hold everything to compare: the Ethernet header, and one vector.
    pub const LEN: usize = IP + 2 * TOLERANCES;

    /// An IPv4 packet for this port, in one piece, with a UDP datagram in it.
    fn datagram(address: &PortAddress) -> Self {
        let least_udp_len = (udp::LEN + task::LEN) as u16;
        let mut pattern = Self { expected: [0; Self::LEN], least_udp_len, ..Self::NOTHING };
        pattern.require(0, &address.mac.0, &[0xFF; 6]);
        pattern.require(12, &[0x08, 0x00, ipv4::NO_OPTIONS], &[0xFF; 3]);
        pattern.require(IP + 6, &[0, 0], &[0x3F, 0xFF]); // no fragment
        pattern.require(IP + 9, &[ipv4::UDP], &[0xFF]);
        pattern.require_ttl(ipv4::TTL_MIN);
        pattern
    }

    /// A whole task to this address, at this port, from this network if all clients are there. Its worker can answer it: the source port
    /// is not 0, and the time to live lasts.
    fn task(
        address: &PortAddress,
        (to, udp_port): (u32, u16),
        near: Option<(u32, u32)>,
        least_ttl: u8,
    ) -> Self {
        let mut pattern = Self::datagram(address);
        pattern.require_ttl(least_ttl);
        pattern.require(UDP, &[0xFF; 2], &[0xFF; 2]);
        pattern.tolerance[(UDP - IP) / 2] = NOT_ZERO;
        pattern.require(IP + 16, &to.to_be_bytes(), &[0xFF; 4]);
        pattern.require(UDP + 2, &udp_port.to_be_bytes(), &[0xFF; 2]);
        pattern.require(TASK, &[Code::NewTask as u8], &[!task::EXTENSION_BIT]);
        if let Some((network, mask)) = near {
            pattern.require(IP + 12, &network.to_be_bytes(), &mask.to_be_bytes());
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
        tolerance: [0; TOLERANCES],
        least_udp_len: u16::MAX,
    };

    fn require(&mut self, at: usize, bytes: &[u8], mask: &[u8]) {
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
        self.mask[at..at + mask.len()].copy_from_slice(mask);
    }

    fn require_ttl(&mut self, least: u8) {
        self.require(IP + 8, &[0xFF], &[0xFF]);
        self.tolerance[8 / 2] = at_least(least);
    }

    fn of_pool(mut self, pool: [u8; 2]) -> Self {
        self.require(TASK + 1, &pool, &[0xFF; 2]);
        self
    }

    /// The same with sequence and tag behind the header.
    fn authenticated(mut self) -> Self {
        self.expected[TASK] |= task::AUTHENTICATION_BIT;
        self.least_udp_len += auth::LEN as u16;
        self
    }

    #[inline(always)]
    fn fits(&self, head: &[u8; HEAD]) -> bool {
        let differing = |at| differing(head, &self.expected, &self.mask, at);
        let mut differs = 0;
        for at in (0..IP).step_by(2) {
            differs |= differing(at);
        }
        for (word, &tolerance) in self.tolerance.iter().enumerate() {
            differs |= differing(IP + 2 * word).saturating_sub(tolerance);
        }
        differs == 0
    }
}

/// What takes the fast path on one port: tasks, and replies.
#[derive(Clone, Copy, Debug)]
pub struct Template([Pattern; 2]);

impl Template {
    /// What takes the fast path on the port at `index`, of this pool. Whether a task's source is a client's is still to be looked at,
    /// and so is the proof of replies, which all have one if there is a key.
    pub fn new(network: &Network, index: usize, pool: usize) -> Self {
        let (address, to) = (network.port(index), network.task_address(index, pool));
        let authenticated = network.authenticator(index, pool).is_some();
        let is_v4 = address.v6.is_none() && network.takes_v4(pool);
        let least_ttl = network.least_ttl(pool);
        let pool = network.pool_id(pool).unwrap_or_default().to_be_bytes();
        let on = |side: bool, pattern: Pattern| match side {
            true => pattern.of_pool(pool),
            false => Pattern::NOTHING,
        };
        let (near, _) = network.sources(index);
        let reply = Pattern::reply(address, network.udp_port);
        let reply = if authenticated { reply.authenticated() } else { reply };
        Self([
            on(
                is_v4 && address.side.has_clients(),
                Pattern::task(address, (to, network.udp_port), near, least_ttl),
            ),
            on(is_v4 && address.side.has_workers() && !network.is_spine(), reply),
        ])
    }

    /// What packets of that code must be.
    #[inline(always)]
    pub fn pattern(&self, code: CodeByte) -> &Pattern {
        // Chosen by arithmetic: which of the two comes next is anybody's guess.
        &self.0[usize::from(code.is_reply())]
    }

    /// The code of the frame, when it matches.
    #[inline(always)]
    pub fn recognise(&self, frame: &[u8], verified: bool) -> Option<CodeByte> {
        let head = frame.first_chunk::<HEAD>()?;
        let code = CodeByte::of(head);
        let pattern = self.pattern(code);
        let least = usize::from(pattern.least_udp_len) + code.extension_len();
        let fits = pattern.fits(head) & lengths_fit(frame, head, least);
        if !fits {
            return None;
        }
        let valid = verified || (ip_checksum_is_valid(head) && udp_checksum_is_valid(head, frame));
        valid.then_some(code)
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
fn ip_checksum_is_valid(head: &[u8; HEAD]) -> bool {
    let last = u32::from_le_bytes(bytes(head, IP + 16));
    Sum::default().words([word(head, IP), word(head, IP + 8), u64::from(last)]).is_valid()
}

/// Lengths must fit.
#[inline(always)]
fn udp_checksum_is_valid(head: &[u8; HEAD], frame: &[u8]) -> bool {
    if bytes(head, UDP + 6) == [0, 0] {
        return true;
    }
    // Of the pseudo header (RFC 768): protocol and length, as they would stand in the packet.
    let length = u16::from_le_bytes(bytes(head, UDP + 4));
    let pseudo = u64::from(length) + u64::from(u16::from(ipv4::UDP).swap_bytes());
    let (addresses, header) = (word(head, IP + 12), word(head, UDP));
    let sum = Sum::default().words([pseudo, addresses, header, word(head, UDP + 8)]);
    sum.range(frame, UDP + 16, UDP + number(head, UDP + 4)).is_valid()
}
