//! Patterns of fast-path packets: the common task and the common reply, whole in one packet, without IP
//! options, extension headers and a reason to refuse them. They are recognised at fixed offsets, by comparing
//! words under a mask. This file has the patterns and the scalar comparison; `vector` compares with vectors.

use std::fmt;

use crate::stage::spec::PortAddress;
use crate::wire::address::Address;
use crate::wire::checksum::PartialChecksum;
use crate::wire::task::{self, Code};
use crate::wire::{auth, ether, ipv4, ipv6, udp};

/// Offset of the IP header.
pub const IP: usize = ether::LEN;
/// Number of 16-bit words in a vector of 32 bytes; each word has a tolerance.
pub const TOLERANCES: usize = 16;
/// Tolerance of a word that must not be 0. Its expected value has all ones.
const NOT_ZERO: u16 = 0xFFFE;
/// Minimum length of a datagram, without extension and proof.
pub const LEAST: usize = udp::LEN + task::LEN;

/// Bit that is set in the codes of replies, and in no code of tasks.
const REPLY_BIT: u8 = Code::TaskDone as u8;
const _: () = assert!(Code::NewTask as u8 == 0 && Code::TaskDoneIdle as u8 == REPLY_BIT | 1);

/// First byte of a task header. It shows if a packet is a reply, and if its header has an extension.
#[derive(Clone, Copy, Debug)]
pub struct CodeByte(u8);

impl CodeByte {
    /// Creates the value from the first byte of a task header.
    #[inline(always)]
    pub fn at(first: u8) -> Self {
        Self(first)
    }

    /// Returns true for the code of a reply.
    #[inline(always)]
    pub fn is_reply(self) -> bool {
        self.0 & REPLY_BIT != 0
    }

    /// Returns true if the header has an extension.
    #[inline(always)]
    pub fn is_extended(self) -> bool {
        self.0 & task::EXTENSION_BIT != 0
    }

    /// Returns the length of the extension in bytes.
    #[inline(always)]
    pub fn extension_len(self) -> usize {
        usize::from(self.is_extended()) * task::EXTENSION_LEN
    }
}

/// Places of a family's headers, and what both kinds of packets require of them.
pub trait Layout: Address {
    /// The bytes at a packet's start that hold everything to compare.
    type Prefix: AsRef<[u8]> + AsMut<[u8]> + Copy + fmt::Debug;
    /// Largest permitted differences of the words of each vector.
    type Tolerances: AsRef<[[u16; TOLERANCES]]> + AsMut<[[u16; TOLERANCES]]> + Copy + fmt::Debug;

    /// Pattern that matches nothing: it expects a bit that the mask never lets through.
    const NOTHING: Pattern<Self>;
    /// Offsets of the vectors whose words have tolerances.
    const VECTORS: &'static [usize];
    /// Offset of the time to live.
    const TTL: usize;
    /// Offsets of source and destination.
    const ADDRESSES: [usize; 2];
    /// Offset of the length, and of the first byte that it counts.
    const LENGTH: [usize; 2];

    /// Requires a header of this family without options, in front of UDP.
    fn require_header(pattern: &mut Pattern<Self>);

    /// Returns true if the checksums are right. The lengths must fit the frame.
    fn checksums_are_valid(frame: &[u8]) -> bool;
}

/// Bytes and bounds that the first bytes of a frame must match, where the mask has ones.
///
/// One vector instruction checks all bounds of 16 words: a word may differ from the expected one by at most its
/// tolerance. A word with tolerance 0 must be equal. A word that must not be 0 has all ones for its expected
/// value, and may differ from it by anything less.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))] // 128 or 256 bytes: a shift selects one of two
pub struct Pattern<A: Layout> {
    /// Bytes of a matching frame after the mask was applied.
    pub expected: A::Prefix,
    /// Bits to compare.
    pub mask: A::Prefix,
    /// Largest permitted difference of each word of the vectors.
    pub tolerance: A::Tolerances,
    /// Minimum length of the datagram, without its extension.
    pub least_udp_len: u16,
}
const _: () = assert!(size_of::<Pattern<u32>>() == 128 && size_of::<Pattern<u128>>() == 256);

impl<A: Layout> Pattern<A> {
    /// Returns the pattern of a datagram of this pool for this port. The first byte of its task header is
    /// `code`, where `code_mask` has ones.
    fn datagram(address: &PortAddress, pool: u16, (code, code_mask): (u8, u8)) -> Self {
        let mut pattern = A::NOTHING;
        pattern.expected.as_mut().fill(0);
        pattern.require(0, &address.mac.0, &[0xFF; 6]); // destination
        A::require_header(&mut pattern);
        pattern.require_ttl(ipv4::TTL_MIN);
        pattern.require(A::PAYLOAD, &[code], &[code_mask]);
        pattern.require(A::PAYLOAD + 1, &pool.to_be_bytes(), &[0xFF; 2]);
        pattern
    }

    /// Returns the pattern of a task from the clients to the node. Its worker can reply: the source port is not 0,
    /// and the time to live lasts.
    fn task(address: &PortAddress, common: &CommonPackets<A>) -> Self {
        let code = (Code::NewTask as u8, !task::EXTENSION_BIT);
        let mut pattern = Self::datagram(address, common.pool, code);
        pattern.require_ttl(common.least_ttl);
        pattern.require_not_zero(A::UDP); // source port
        let [source, destination] = A::ADDRESSES;
        let task_address = common.task_address.to_bytes();
        pattern.require(destination, task_address.as_ref(), &[0xFF; 16]);
        pattern.require(A::UDP + 2, &common.udp_port.to_be_bytes(), &[0xFF; 2]);
        if let Some((network, mask)) = common.clients {
            pattern.require(source, network.to_bytes().as_ref(), mask.to_bytes().as_ref());
        }
        pattern
    }

    /// Returns the pattern of a reply to any client.
    fn reply(address: &PortAddress, common: &CommonPackets<A>, authenticated: bool) -> Self {
        let proof = if authenticated { task::AUTHENTICATION_BIT } else { 0 };
        // Both codes of replies, with or without an extension.
        let code = (REPLY_BIT | proof, !(task::EXTENSION_BIT | 1));
        let mut pattern = Self::datagram(address, common.pool, code);
        pattern.require(A::UDP, &common.udp_port.to_be_bytes(), &[0xFF; 2]);
        pattern.least_udp_len += if authenticated { auth::LEN as u16 } else { 0 };
        pattern
    }

    /// Requires these bytes at an offset, where the mask has ones.
    fn require(&mut self, at: usize, bytes: &[u8], mask: &[u8]) {
        let range = at..at + bytes.len();
        self.expected.as_mut()[range.clone()].copy_from_slice(bytes);
        self.mask.as_mut()[range].copy_from_slice(&mask[..bytes.len()]);
    }

    /// Requires a minimum time to live. The expected value 0xFF makes the differing bits the number 255 - TTL, the
    /// lower byte of its little-endian word. The byte behind it must be equal where its mask has ones.
    fn require_ttl(&mut self, least: u8) {
        self.require(A::TTL, &[0xFF], &[0xFF]);
        self.tolerate(A::TTL, u16::from(u8::MAX - least));
    }

    /// Requires that a word is not 0.
    fn require_not_zero(&mut self, at: usize) {
        self.require(at, &[0xFF; 2], &[0xFF; 2]);
        self.tolerate(at, NOT_ZERO);
    }

    /// Sets the tolerance of the word at an offset. A vector with a word there must exist.
    fn tolerate(&mut self, at: usize, tolerance: u16) {
        let vectors = self.tolerance.as_mut().iter_mut().zip(A::VECTORS);
        for (words, start) in vectors {
            let offset = at.wrapping_sub(*start);
            if offset.is_multiple_of(2) && offset < 2 * TOLERANCES {
                words[offset / 2] = tolerance;
                return;
            }
        }
        unreachable!("no vector has a word at {at}");
    }

    /// Returns true if the first bytes of a frame match.
    #[inline(always)]
    fn fits(&self, head: &[u8]) -> bool {
        let (expected, mask) = (self.expected.as_ref(), self.mask.as_ref());
        // The bits that differ, in a little-endian number. Words with a tolerance expect ones, so this is their
        // distance from the expected value.
        let differing = |at: usize| {
            let word = |bytes: &[u8]| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            (word(head) & word(mask)) ^ word(expected)
        };
        let mut differs = 0;
        for at in (0..IP).step_by(2) {
            differs |= differing(at);
        }
        for (start, tolerance) in A::VECTORS.iter().zip(self.tolerance.as_ref()) {
            for (word, &tolerance) in tolerance.iter().enumerate() {
                differs |= differing(start + 2 * word).saturating_sub(tolerance);
            }
        }
        differs == 0
    }
}

/// Packets of a pool that may take the fast path on a port.
#[derive(Clone, Copy, Debug)]
pub struct CommonPackets<A> {
    /// Pool id.
    pub pool: u16,
    /// UDP port of the protocol.
    pub udp_port: u16,
    /// Address at which tasks arrive.
    pub task_address: A,
    /// Network of all clients and its mask, if no router leads to others.
    pub clients: Option<(A, A)>,
    /// Minimum time to live of tasks.
    pub least_ttl: u8,
    /// True if all replies are authenticated, false if none are; `None` where no replies arrive.
    pub replies: Option<bool>,
}

/// Patterns of one port and pool: tasks, and replies.
#[derive(Clone, Copy, Debug)]
pub struct Template<A: Layout>([Pattern<A>; 2]);

impl<A: Layout> Template<A> {
    /// Template that matches nothing.
    pub const NOTHING: Self = Self([A::NOTHING; 2]);

    /// Builds the patterns of this port. They do not verify that a reply comes from its worker's server, nor its
    /// proof. They compare a task's source only with the network of the clients. The caller must check for
    /// unreachable sources.
    pub fn new(address: &PortAddress, common: &CommonPackets<A>) -> Self {
        let mut template = Self::NOTHING;
        if address.side.has_clients() {
            template.0[0] = Pattern::task(address, common);
        }
        if let Some(authenticated) = common.replies.filter(|_| address.side.has_workers()) {
            template.0[1] = Pattern::reply(address, common, authenticated);
        }
        template
    }

    /// Returns the pattern of packets with this code.
    #[inline(always)]
    pub fn pattern(&self, code: CodeByte) -> &Pattern<A> {
        // Selected by arithmetic: a branch on the next kind would be unpredictable.
        &self.0[usize::from(code.is_reply())]
    }

    /// Returns the code of the frame, if it matches. `verified` is true if the device has verified its
    /// checksums.
    #[inline(always)]
    pub fn recognise(&self, frame: &[u8], verified: bool) -> Option<CodeByte> {
        if frame.len() < A::HEAD {
            return None;
        }
        let head = &frame[..A::HEAD];
        let code = CodeByte::at(head[A::PAYLOAD]);
        let pattern = self.pattern(code);
        let least = usize::from(pattern.least_udp_len) + code.extension_len();
        let ([length, start], udp_len) = (A::LENGTH, number(head, A::UDP + 4));
        let packet_end = start + number(head, length);
        // `&` evaluates all conditions without a branch.
        let fits = pattern.fits(head)
            & (packet_end <= frame.len())
            & (packet_end >= A::UDP + udp_len)
            & (udp_len >= least);
        let valid = fits && (verified || A::checksums_are_valid(frame));
        valid.then_some(code)
    }
}

/// Returns the 16-bit number at an offset.
#[inline(always)]
fn number(head: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([head[at], head[at + 1]]))
}

/// Returns the eight bytes at an offset, in packet byte order.
#[inline(always)]
fn word(head: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// The Ethernet header, and one vector.
const PREFIX_V4: usize = IP + 2 * TOLERANCES;

impl Layout for u32 {
    type Prefix = [u8; PREFIX_V4];
    type Tolerances = [[u16; TOLERANCES]; 1];

    const NOTHING: Pattern<Self> = Pattern {
        expected: [1; PREFIX_V4],
        mask: [0; PREFIX_V4],
        tolerance: [[0; TOLERANCES]; 1],
        least_udp_len: LEAST as u16,
    };
    const VECTORS: &'static [usize] = &[IP];
    const TTL: usize = IP + 8;
    const ADDRESSES: [usize; 2] = [IP + 12, IP + 16];
    const LENGTH: [usize; 2] = [IP + 2, IP];

    fn require_header(pattern: &mut Pattern<Self>) {
        pattern.require(12, &[0x08, 0x00, ipv4::NO_OPTIONS], &[0xFF; 3]); // IPv4, header of 20 bytes
        pattern.require(IP + 6, &[0, 0], &[0x3F, 0xFF]); // no fragment
        pattern.require(IP + 9, &[ipv4::UDP], &[0xFF]);
    }

    #[inline(always)]
    fn checksums_are_valid(frame: &[u8]) -> bool {
        const UDP: usize = u32::UDP;
        let head = &frame[..Self::HEAD];
        // The header in words of eight, eight and four bytes.
        let last = u64::from(u32::from_le_bytes([16, 17, 18, 19].map(|at| head[IP + at])));
        let header = PartialChecksum::default().words([word(head, IP), word(head, IP + 8), last]);
        if !header.is_valid() || head[UDP + 6..UDP + 8] == [0, 0] {
            return header.is_valid(); // a datagram without a checksum is valid
        }
        // Protocol and length of the pseudo header (RFC 768), in packet byte order.
        let length = u16::from_le_bytes([head[UDP + 4], head[UDP + 5]]);
        let pseudo = u64::from(length) + u64::from(u16::from(ipv4::UDP).swap_bytes());
        let (addresses, ports, rest) = (word(head, IP + 12), word(head, UDP), word(head, UDP + 8));
        // The first 16 bytes of the datagram are in the head of every frame. The rest has any length.
        let sum = PartialChecksum::default().words([pseudo, addresses, ports, rest]);
        sum.range(frame, UDP + 16, UDP + number(head, UDP + 4)).is_valid()
    }
}

/// End of the second vector, behind the pool id in the task header: see the assertions below.
const PREFIX_V6: usize = 72;

impl Layout for u128 {
    type Prefix = [u8; PREFIX_V6];
    type Tolerances = [[u16; TOLERANCES]; 2];

    const NOTHING: Pattern<Self> = Pattern {
        expected: [1; PREFIX_V6],
        mask: [0; PREFIX_V6],
        tolerance: [[0; TOLERANCES]; 2],
        least_udp_len: LEAST as u16,
    };
    // The hop limit is at an odd offset. It is the first byte of a word only if the first vector is at an odd offset,
    // too.
    const VECTORS: &'static [usize] = &[IP - 1, PREFIX_V6 - 2 * TOLERANCES];
    const TTL: usize = IP + 7;
    const ADDRESSES: [usize; 2] = [IP + 8, IP + 24];
    const LENGTH: [usize; 2] = [IP + 4, Self::UDP];

    fn require_header(pattern: &mut Pattern<Self>) {
        pattern.require(12, &ether::IPV6.to_be_bytes(), &[0xFF; 2]);
        pattern.require(IP, &[0x60], &[0xF0]); // version
        pattern.require(IP + 6, &[ipv6::UDP], &[0xFF]); // no extension header
        pattern.require_not_zero(Self::UDP + 6); // the checksum, which IPv6 requires
    }

    #[inline(always)]
    fn checksums_are_valid(frame: &[u8]) -> bool {
        udp::checksum_is_valid_v6(frame, number(frame, Self::UDP + 4))
    }
}

// Every compared byte is in the head of a frame, and in the Ethernet header or a vector.
const _: () = assert!(PREFIX_V4 <= udp::PAYLOAD + task::LEN);
const _: () = assert!(PREFIX_V6 <= udp::PAYLOAD_V6 + task::LEN);
const _: () = assert!(PREFIX_V6 >= udp::PAYLOAD_V6 + 3);
const _: () =
    assert!(<u128 as Layout>::VECTORS[1] <= <u128 as Layout>::VECTORS[0] + 2 * TOLERANCES);
